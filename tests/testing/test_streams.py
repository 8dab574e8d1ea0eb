"""`StreamSuite` on sound datasets of every kind; see test_stream_faults.py for what it must find."""

from typing import Any

import numpy as np
import pytest

from dew.data import Dataset, Loading, Mixture, Ramp, from_records, ramped
from dew.data.build import dataset_of, in_memory
from dew.data.order import SequentialOrder
from dew.testing import StreamSuite

BATCH = 12


def columns(records: int = 37, first: int = 0) -> dict[str, Any]:
    ids = np.arange(first, first + records)
    return {"id": ids, "x": np.linspace(0, 1, records * 3, dtype=np.float32).reshape(records, 3)}


def jitter(record: Any, rng: np.random.Generator) -> Any:
    return {"id": record["id"], "x": record["x"] + rng.random(3, dtype=np.float32)}


# Sound datasets


class TestColumnStream(StreamSuite):
    def make_dataset(self, *, seed: int = 5, loading: Loading = Loading()) -> Dataset:  # noqa: B008 - frozen
        return from_records(columns(), batch=BATCH, seed=seed, val=columns(29, 100), loading=loading)


class TestDrawingStream(StreamSuite):
    """Draws, threads, and epochs of less than two steps."""

    steps = 8

    def make_dataset(self) -> Dataset:
        source = in_memory(columns())
        return dataset_of(source, batch=24, preprocess=jitter, place_field="place", loading=Loading(threads=3))


@pytest.mark.nightly
class TestWorkerStream(StreamSuite):
    steps = 2
    largest_count = 2

    def make_dataset(self) -> Dataset:
        return from_records(columns(), batch=4, loading=Loading(workers=1))


class TestReadByWorkersToo(StreamSuite):
    """Built in this process, and once more by a worker: with the same draws."""

    steps = 3
    largest_count = 2
    workers = 1

    def make_dataset(self) -> Dataset:
        return dataset_of(in_memory(columns()), batch=BATCH, preprocess=jitter, loading=Loading(read_buffer=0))


class TestRamp(StreamSuite):
    valid_field = None

    def make_dataset(self) -> Dataset:
        data = dataset_of(in_memory(columns()), batch=12, val=in_memory(columns(29, 90)), val_remainder="drop")
        return ramped(data, Ramp(start=4, increment=4, samples=40))


class TestMixture(StreamSuite):
    def make_dataset(self, *, seed: int = 3) -> Dataset:
        parts = {"a": (columns(20), 2), "b": (columns(9, 50), 1)}
        return Mixture(parts, seed=seed, val={"a": columns(7, 900)}).load(batch=BATCH)


class TestInOrder(StreamSuite):
    def make_dataset(self) -> Dataset:
        return dataset_of(in_memory(columns()), batch=BATCH, order=SequentialOrder(records=37))
