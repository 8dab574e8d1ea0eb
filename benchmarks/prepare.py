"""Preparation from Parquet to shards beside the bare engine, in one process; its memory; merging and opening.

The bare engine encodes texts that are in memory, in batches of the same size; for `tokenizers` that is
`encode_batch_fast` and the `.ids` of its results. Fast engines are measured where they are installed.
"""

import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Figure, at_least, at_most
from dew.data.storage import Storage
from dew.tokens import TokenCorpus
from dew.tokens.manifest import FILE_DTYPES, FileRecord, Shard, shard_name
from dew.tokens.npy import file_bytes
from dew.tokens.prepare import merge, prepare
from dew.tokens.prepare.plan import read_plan, task_receipt
from dew.tokens.prepare.receipts import Receipt, receipt_text

# Bytes of text: a fast engine is done with little before anything can be measured.
ENGINES = {"hf": 20 << 20, "gigatoken": 160 << 20, "fastokens": 160 << 20}
MEMORY_BYTES = 96 << 20
BATCH = 1 << 19
ROUNDS = 3
SHARDS = 10_000
MANY = "x" * 99 + "\n"


def figures() -> Iterator[Figure]:
    # One thread for the tokenizer, as in a worker.
    with tempfile.TemporaryDirectory() as directory, mock.patch.dict(os.environ, TOKENIZERS_PARALLELISM="false"):
        home = Path(directory)
        _train(_texts(2 << 20), home / "tokenizer.json")
        for engine, size in ENGINES.items():
            if engine == "hf" or find_spec(engine) is not None:
                yield _beside_the_bare_engine(home, engine, size)
        yield _peak_memory(home)
        yield from _many_shards(home)


def _texts(size: int) -> list[str]:
    """Python's own library in documents of 4 kB, and copies of it in which names differ."""
    texts: list[str] = []
    copy = total = 0
    while True:
        for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
            text = path.read_text(encoding="utf-8", errors="replace").replace("self", f"self{copy}" if copy else "self")
            for start in range(0, len(text), 4000):
                texts.append(text[start : start + 4000])
                total += len(texts[-1].encode())
                if total >= size:
                    return texts
        copy += 1


def _train(texts: list[str], path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=16_000, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


def _beside_the_bare_engine(home: Path, engine: str, size: int) -> Figure:
    texts = _texts(size)
    source = home / f"{engine}.parquet"
    pq.write_table(pa.table({"text": texts}), source, row_group_size=1000)
    batches = _batches(texts)
    del texts
    bare, ours = [], []
    for number in range(ROUNDS):
        encode = _bare_engine(home / "tokenizer.json", engine)
        started = time.process_time()  # neighbours do not count, and there is one thread
        for batch in batches:
            encode(batch)
        bare.append(time.process_time() - started)
        started = time.process_time()
        prepare(
            source,
            home / f"{engine}-{number}",
            tokenizer=home / "tokenizer.json",
            eos=True,
            eos_token="<end>",
            engine=engine,
            workers=0,
        )
        ours.append(time.process_time() - started)
    slow, fast = statistics.median(ours), statistics.median(bare)
    rates = f" ({size / slow / 1e6:.1f} of {size / fast / 1e6:.1f} MB/s)"
    if engine == "hf":
        return at_least("tokenize parquet, one process / bare tokenizers", fast / slow, 0.9, rates)
    return Figure(what=f"tokenize parquet, one process / bare {engine}", value=f"{fast / slow:.2f}{rates}", budget="")


def _batches(texts: list[str]) -> list[list[str]]:
    batches: list[list[str]] = [[]]
    size = 0
    for text in texts:
        if size >= BATCH:
            batches.append([])
            size = 0
        batches[-1].append(text)
        size += len(text)
    return batches


def _bare_engine(path: Path, engine: str) -> Callable[[list[str]], object]:
    if engine == "hf":
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
        return lambda texts: [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    module: Any = __import__(engine)
    if engine == "gigatoken":
        giga = module.Tokenizer.from_json(path.read_text())
        return lambda texts: giga.encode_batch(texts, parallel=False)
    return module.Tokenizer.from_json_str(path.read_text()).encode_batch_flat


def _peak_memory(home: Path) -> Figure:
    """A worker's peak: row groups of 64 MB, documents of up to 4 MB."""
    whole = "".join(_texts(MEMORY_BYTES // 8))
    texts, at, total = [], 0, 0
    while total < MEMORY_BYTES:
        length = (4 << 20) if len(texts) % 50 == 0 else 20_000
        texts.append((whole[at:] + whole)[:length])
        at, total = (at + length) % len(whole), total + length
    pq.write_table(pa.table({"text": texts}), home / "large.parquet", row_group_size=(60 << 20) * len(texts) // total)
    code = (
        "import sys; from dew.tokens.prepare import prepare; "
        "prepare(sys.argv[1], sys.argv[2], tokenizer=sys.argv[3], workers=0); "
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    words = [str(home / "large.parquet"), str(home / "large"), str(home / "tokenizer.json")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    return at_most("peak memory of a worker, row groups of 64 MB", int(done.stdout) * 1024 / 1e6, 400, "MB")


def _many_shards(home: Path) -> Iterator[Figure]:
    """Merging as many receipts, and opening what comes of it. The shards are holes of the right size."""
    source, out = home / "many.jsonl", home / "many"
    source.write_text(MANY * SHARDS)
    prepare(source, out, tokenizer="bytes", task=(SHARDS - 1, SHARDS), task_bytes=len(MANY), on_bad="skip", workers=0)
    plan = read_plan(Storage(out))
    for number in range(len(plan.tasks)):
        _pretend(out, plan.id, number)
    started = time.perf_counter()
    merge(out)
    yield at_most(f"merging {SHARDS} receipts", time.perf_counter() - started, 10, "s")
    started = time.perf_counter()
    corpus = TokenCorpus(out)
    yield at_most(f"opening {len(corpus.manifest.shards)} shards", time.perf_counter() - started, 2, "s")


def _pretend(out: Path, plan: str, number: int) -> None:
    name, lengths = shard_name(number), {"tokens": 100, "docs": 2, "origin": 2}
    sizes = {kind: file_bytes(FILE_DTYPES.get(kind, "<u2"), length) for kind, length in lengths.items()}
    for kind, size in sizes.items():
        with open(out / f"{name}.{kind}.npy", "wb") as file:
            file.truncate(size)
    files = {kind: FileRecord(bytes=size, sha256="0" * 64) for kind, size in sizes.items()}
    shard = Shard(name=name, tokens=100, documents=1, empty_documents=0, max_id=5, files=files)
    receipt = Receipt(
        plan=plan,
        task=number,
        shards={"train": shard},
        documents=1,
        empty=0,
        text_bytes=100,
        tokens=100,
        unknown=0,
        rows=(1,),
        left_out=0,
        listed=(),
    )
    (out / task_receipt(number)).write_bytes(receipt_text(receipt))
