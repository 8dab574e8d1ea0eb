"""Memory over 10 000 steps: what the process holds must not grow."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil

from benchmarks.measure import Figure, at_most
from dew.data import DataPartition, Loading, from_records

STEPS = 10_000


def figures() -> Iterator[Figure]:
    dataset = from_records({"x": np.zeros((50_000, 512), np.float32)}, batch=64, loading=Loading(workers=0))
    stream: Any = dataset.train(DataPartition())
    with stream:
        for _ in range(500):
            next(stream)
        before = psutil.Process().memory_info().rss
        for _ in range(STEPS):
            next(stream)
        grown = psutil.Process().memory_info().rss - before
    yield at_most(f"memory over {STEPS} steps", max(0, grown) / 2**20, 4, "MiB")
