"""Token windows, S = 2048, B = 32: against a bare gather and cast, and against Grain's per-record chain.

The corpus is 256 MiB of u2 tokens in the page cache; the bare loop has its indices ready and a view over the file.
"""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Figure, at_least, seconds_each
from dew.data import DataPartition, Dataset, Loading
from dew.tokens import TokenizerInfo, TokenWindows, write_corpus

SEQ_LEN = 2048
BATCH = 32
TOKENS = 128 << 20
STEPS = 400


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "corpus"
        _write(path)
        yield from _measure(path)


def _write(path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 50_000, TOKENS, dtype=np.uint16)
    documents = np.array_split(ids, 1000)
    write_corpus(documents, path, tokenizer=TokenizerInfo(vocab_size=50_000), shard_tokens=2 * TOKENS)


def _measure(path: Path) -> Iterator[Figure]:
    tokens: Any = np.load(path / "shard-00000.tokens.npy", mmap_mode="r").view(np.ndarray)
    width = SEQ_LEN + 1
    view = np.lib.stride_tricks.as_strided(tokens, ((len(tokens) - 1) // SEQ_LEN, width), (SEQ_LEN * 2, 2))
    picks = itertools.cycle(np.random.default_rng(1).integers(0, len(view), (5000, BATCH)))
    direct = _stream(path, Loading(workers=0, read_buffer=0))
    ahead = _stream(path, Loading(workers=0))
    chain = _grain_chain(view)
    variants = {
        "bare": lambda: view[next(picks)].astype(np.int32),
        "direct": lambda: next(direct),
        "ahead": lambda: next(ahead),
    }
    seconds_each(variants, rounds=1, calls=STEPS)  # pages and caches warm
    times = seconds_each(variants, rounds=9, calls=STEPS)
    chain_times = seconds_each({"chain": lambda: next(chain), "direct": variants["direct"]}, rounds=5, calls=40)
    direct.close()
    ahead.close()
    yield Figure(what="token windows, bare gather + cast", value=f"{times['bare'] * 1e6:.1f} us/step", budget="")
    yield at_least("token windows, built directly / bare", times["bare"] / times["direct"], 0.75, _us(times["direct"]))
    yield at_least("token windows, read ahead / bare", times["bare"] / times["ahead"], 0.5, _us(times["ahead"]))
    ratio = chain_times["chain"] / chain_times["direct"]
    yield at_least("token windows, directly / Grain's chain", ratio, 10, _us(chain_times["chain"]))


def _us(seconds: float) -> str:
    return f" ({seconds * 1e6:.1f} us)"


def _stream(path: Path, loading: Loading) -> Any:
    dataset: Dataset = TokenWindows(str(path), seq_len=SEQ_LEN, loading=loading).load(batch=BATCH)
    return dataset.train(DataPartition())


def _grain_chain(view: Any) -> Iterator[Any]:
    """Grain as its tutorial has it: a record at a time, batched in the chain."""
    import grain

    class Windows:
        def __len__(self) -> int:
            return len(view)

        def __getitem__(self, index: int) -> Any:
            return {"text": view[index].astype(np.int32)}

    chain = grain.MapDataset.source(Windows()).shuffle(seed=0).repeat().batch(BATCH)
    return iter(chain.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))
