"""The order: microseconds a record in blocks of 4096 places, both ways, and the first step far into a run."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.measure import Figure, at_most, seconds_each
from dew.data import DataPartition, Dataset, Loading, from_records
from dew.data.order import ShuffledOrder

RECORDS = {"4096": 4096, "65 537": 65_537, "1e6": 10**6, "2^40+1": 2**40 + 1, "1e12": 10**12}
BLOCK = 4096


def figures() -> Iterator[Figure]:
    for name, records in RECORDS.items():
        yield at_most(f"order, N = {name}", _block_seconds(records) / BLOCK * 1e6, 0.15, "us/record")
    order = ShuffledOrder(records=10**12, seed=1)
    found = seconds_each({"one": lambda: order.places(12345, 0, 1000 * 10**12)}, rounds=5, calls=5)["one"]
    yield Figure(what="order, when one record is read", value=f"{found / 1000 * 1e6:.2f} us/epoch", budget="")
    yield _far_step()


def _block_seconds(records: int) -> float:
    order = ShuffledOrder(records=records, seed=1)
    places = np.arange(BLOCK, dtype=np.int64) + 3 * records
    return seconds_each({"block": lambda: order.at(places)}, rounds=9, calls=20)["block"]


def _far_step() -> Figure:
    """Opening at place 1e12 against opening at place 0, first batch included."""
    dataset = from_records({"x": np.zeros((100_003, 4), np.float32)}, batch=32, loading=Loading(workers=0))
    at_start, far = [], []
    for _ in range(9):
        at_start.append(_first_step(dataset, 0))
        far.append(_first_step(dataset, 10**12))
    extra = sorted(far)[4] - sorted(at_start)[4]
    return at_most("first step at place 1e12, over place 0", max(0.0, extra) * 1e3, 20, "ms")


def _first_step(dataset: Dataset, place: int) -> float:
    stream: Any = dataset.train(DataPartition())
    state = {**stream.get_state(), "records": place}
    started = time.perf_counter()
    stream.set_state(state)
    next(stream)
    seconds = time.perf_counter() - started
    stream.close()
    return seconds
