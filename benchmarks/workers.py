"""Worker processes: time to the first batches and steps a second, beside Grain's workers over the same steps."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.measure import Figure
from dew.data import DataPartition, Loading, from_records
from dew.data.build import ColumnSource

WORKERS = 2
STEPS = 60
COLUMNS = {"image": np.zeros((256, 128, 128, 3), np.uint8)}
BATCH = 32


def figures() -> Iterator[Figure]:
    ours, grains = _ours(), _grain()
    for what, mine, theirs in zip(("first two steps", f"{STEPS} steps of 1.5 MiB"), ours, grains, strict=True):
        yield Figure(
            what=f"{WORKERS} workers, {what}, beside Grain's",
            value=f"{mine * 1e3:.0f} ms, Grain {theirs * 1e3:.0f} ms ({theirs / mine:.1f}x)",
            budget="",
        )


def _ours() -> tuple[float, float]:
    dataset = from_records(COLUMNS, batch=BATCH, loading=Loading(workers=WORKERS))
    started = time.perf_counter()
    stream: Any = dataset.train(DataPartition())
    return _timed(stream, started)


def _timed(iterator: Any, started: float) -> tuple[float, float]:
    next(iterator)
    next(iterator)
    first = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(STEPS):
        next(iterator)
    total = time.perf_counter() - started
    iterator.close()
    return first, total


def _grain() -> tuple[float, float]:
    import grain
    from absl import flags

    name = "grain_enable_multiprocess_worker_profiling"
    if name in flags.FLAGS:
        flags.FLAGS[name].present = True  # 0.2.18 raises UnparsedFlagAccessError outside of absl apps
    source = ColumnSource(COLUMNS)

    def load(step: int) -> Any:
        return source.take(np.arange(step * BATCH, (step + 1) * BATCH) % 256)

    started = time.perf_counter()
    steps = grain.MapDataset.range(0, 2**40).map(load).to_iter_dataset(grain.ReadOptions(num_threads=1))
    return _timed(iter(steps.mp_prefetch(grain.MultiprocessingOptions(num_workers=WORKERS))), started)
