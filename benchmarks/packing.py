"""Packing, S = 2048: the plan of 10^7 web-like documents, its fill beside Grain's packers, and rows read by a plan.

Lengths are log-normal with a mean of 740 tokens, 7 % of them longer than a row. CPU seconds, since all of it is one
thread and the machine may be shared. Grain packs documents as they come and hands on whole rows, so it is set beside
planning and reading all rows of the same corpus.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Figure, at_least, at_most
from dew.data import DataPartition, Loading
from dew.tokens import PackedDocuments, PackedSource, TokenCorpus, write_corpus

SEQ_LEN = 2048
BATCH = 32
DOCUMENTS = 10**7
SMALL = 20_000
STEPS = 400

# A process of its own, so that the lengths are all that it held before.
PLAN = """
import json, resource, sys, time
import numpy as np, psutil
from dew.tokens.packing import PackingRules, packing_report, plan_rows
lengths = np.load(sys.argv[1])
rules = PackingRules(seq_len=int(sys.argv[2]))
plan_rows(lengths[:1000], rules)
before, seconds = psutil.Process().memory_info().rss, []
for _ in range(5):
    started = time.process_time()
    plan = plan_rows(lengths, rules)
    seconds.append(time.process_time() - started)
    fill = packing_report(plan).fill
    del plan
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
print(json.dumps({"seconds": min(seconds), "bytes": grown, "fill": fill}))
"""


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        yield from _plan(Path(directory))
        documents = _documents(SMALL)
        corpus = Path(directory) / "corpus"
        write_corpus(documents, corpus, vocab_size=50_000)
        yield from _beside_grain(documents, corpus)
        yield _rows(corpus)


def _lengths(count: int) -> Any:
    drawn = np.random.default_rng(0).lognormal(6.0, 1.1, count)
    return np.maximum(drawn, 1).astype(np.uint32)


def _documents(count: int) -> list[Any]:
    lengths = _lengths(count)
    ids = np.random.default_rng(1).integers(0, 50_000, int(lengths.sum()), dtype=np.uint16)
    return np.split(ids, np.cumsum(lengths)[:-1])


def _plan(directory: Path) -> Iterator[Figure]:
    path = directory / "lengths.npy"
    np.save(path, _lengths(DOCUMENTS))
    command = [sys.executable, "-c", PLAN, str(path), str(SEQ_LEN)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    yield at_most("packing plan, 1e7 documents", found["seconds"], 1.0, "s")
    yield at_most("packing plan, 1e7 documents, over the lengths", found["bytes"] / 1e6, 300, "MB")
    yield Figure(
        what="packing plan, fill of its rows",
        value=f"{found['fill']:.5f}",
        budget=">= 0.999",
        met=found["fill"] >= 0.999,
    )


def _beside_grain(documents: list[Any], corpus: Path) -> Iterator[Figure]:
    source = PackedSource(TokenCorpus(corpus), seq_len=SEQ_LEN)
    ours = _seconds(lambda: _read_all(PackedSource(TokenCorpus(corpus), seq_len=SEQ_LEN)))
    fill = source.report().fill
    what = f"packing {SMALL} documents into rows"
    yield Figure(what=what, value=f"{SMALL / ours / 1e3:.0f} k documents/s, fill {fill:.4f}", budget="")
    for name in ("FirstFit", "BestFit"):
        rows = 0

        def pack(name: str = name) -> None:
            nonlocal rows
            rows = _grain_rows(documents, name)

        theirs = _seconds(pack)
        # Grain cannot split: its documents are cut into the same pieces before they are given to it.
        of_grain = source.counts.filled / (rows * (SEQ_LEN + 1))
        value = f"{SMALL / theirs / 1e3:.1f} k documents/s, fill {of_grain:.4f} (ours {theirs / ours:.0f}x as fast)"
        yield Figure(what=f"{what}, Grain's {name}, 64 bins", value=value, budget="")


def _read_all(source: PackedSource) -> None:
    for first in range(0, len(source), BATCH):
        source.take(np.arange(first, min(first + BATCH, len(source))))


def _grain_rows(documents: list[Any], name: str) -> int:
    import grain

    pieces = [
        document[first : first + SEQ_LEN + 1].astype(np.int32)
        for document in documents
        for first in range(0, max(len(document) - 1, 1), SEQ_LEN)
    ]
    chain = grain.MapDataset.source(pieces).map(lambda piece: {"text": piece})
    packer = getattr(grain.experimental, f"{name}PackIterDataset")
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    rows = packer(chain.to_iter_dataset(options), length_struct={"text": SEQ_LEN + 1}, num_packing_bins=64)
    return sum(1 for _ in rows)


def _rows(corpus: Path) -> Figure:
    packed = PackedDocuments(str(corpus), seq_len=SEQ_LEN, loading=Loading(workers=0, read_buffer=0))
    stream: Any = packed.load(batch=BATCH).train(DataPartition())

    def steps() -> None:
        for _ in range(STEPS):
            next(stream)

    with stream:
        seconds = min(_seconds(steps) for _ in range(7)) / STEPS
    speed = BATCH * (SEQ_LEN + 1) / seconds / 1e6
    return at_least("packed rows, million tokens/s of one core", speed, 100, f" ({seconds * 1e6:.0f} us/step)")


def _seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started
