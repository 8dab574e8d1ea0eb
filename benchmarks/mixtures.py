"""Mixtures of 100 sources: places looked up a second, beside Grain's mix; opening 100 corpora, and a step of them.

A look-up is which part a place reads and which of the part's records; with the record it takes the part's own
permutation too. Shares are uneven (Dirichlet), and rounded to a block of 65 536 places.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Figure, at_least, at_most, seconds_each
from dew.data import DataPartition, Loading, Mixture
from dew.data.mixture import MixtureOrder, MixturePart, Stage, part_order
from dew.tokens import TokenizerInfo, TokenWindows, write_corpus

PARTS = 100
BLOCK = 4096
SEQ_LEN = 2048
BATCH = 32


def figures() -> Iterator[Figure]:
    shares = np.random.default_rng(0).dirichlet(np.ones(PARTS)) + 0.001
    weights = {f"part-{number:03}": float(share) for number, share in enumerate(shares)}
    yield from _look_up(weights)
    with tempfile.TemporaryDirectory() as directory:
        yield from _corpora(Path(directory), weights)


def _look_up(weights: dict[str, float]) -> Iterator[Figure]:
    parts = [
        MixturePart(label=label, order=part_order(label, 10**6 + 17 * number, seed=1))
        for number, label in enumerate(weights)
    ]
    started = time.perf_counter()
    order = MixtureOrder(parts=tuple(parts), stages=(Stage(0, weights),), seed=1)
    planned = time.perf_counter() - started
    near, far = (np.arange(BLOCK, dtype=np.int64) + start for start in (0, 10**12))
    mix = _grain_mix(list(weights.values()))
    some = near[:64].tolist()
    variants = {
        "near": lambda: order.look_up(near),
        "far": lambda: order.look_up(far),
        "record": lambda: order.at(far),
        "place": lambda: order.places(12345, 0, 10**10),
        "grain": lambda: [mix[place] for place in some],
    }
    times = seconds_each(variants, rounds=9, calls=20)
    each = times["grain"] / len(some)
    for name, what in (("near", "part and record number, at 0"), ("far", "the same, at place 1e12")):
        rate = BLOCK / times[name]
        detail = f" M places/s, Grain's mix {1e-6 / each:.2f} ({rate * each:.0f}x)"
        yield at_least(f"mixture of {PARTS}, {what}", rate / 1e6, 10, detail)
    yield Figure(
        what=f"mixture of {PARTS}, part and permuted record, at 1e12",
        value=f"{BLOCK / times['record'] / 1e6:.1f} M places/s",
        budget="",
    )
    found = len(order.places(12345, 0, 10**10))
    yield Figure(
        what=f"mixture of {PARTS}, when a record is read in the first 1e10 places",
        value=f"{times['place'] * 1e3:.1f} ms, {found} times",
        budget="",
    )
    yield Figure(what=f"mixture of {PARTS}, planning it", value=f"{planned * 1e3:.0f} ms", budget="")


def _grain_mix(weights: list[float]) -> Any:
    import grain

    return grain.MapDataset.mix([grain.MapDataset.range(10**6).repeat() for _ in weights], weights)


def _corpora(directory: Path, weights: dict[str, float]) -> Iterator[Figure]:
    ids = np.random.default_rng(0).integers(0, 50_000, 64 * SEQ_LEN + 1, dtype=np.uint16)
    for label in weights:
        write_corpus([ids], directory / label, tokenizer=TokenizerInfo(vocab_size=50_000))
    loading = Loading(workers=0, read_buffer=0)
    started = time.perf_counter()
    corpora = [TokenWindows(str(directory / label), seq_len=SEQ_LEN) for label in weights]
    mixture = Mixture(list(zip(corpora, weights.values(), strict=True)), loading=loading)
    stream: Any = mixture.load(batch=BATCH).train(DataPartition())
    next(stream)
    yield at_most(f"opening {PARTS} corpora, first batch included", time.perf_counter() - started, 1, "s")
    single: Any = corpora[0].load(batch=BATCH).train(DataPartition())
    times = seconds_each({"mixed": lambda: next(stream), "single": lambda: next(single)}, rounds=9, calls=200)
    stream.close()
    single.close()
    yield Figure(
        what=f"a step of {BATCH} windows from {PARTS} corpora, beside one from one",
        value=f"{times['mixed'] * 1e6:.0f} us, {times['single'] * 1e6:.0f} us",
        budget="",
    )
