"""The conformance suites on sources in memory, and on sources with one fault each, which each must be caught."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dew.data import DataPartition, Dataset, Loading, from_records
from dew.data.build import dataset_of, in_memory
from dew.data.source import RecordSource
from dew.testing import SourceSuite, StreamSuite, assert_nothing_left


def _columns() -> dict[str, Any]:
    return {"id": np.arange(37), "x": np.linspace(0, 1, 37 * 3, dtype=np.float32).reshape(37, 3)}


class TestColumnSource(SourceSuite):
    largest_pickle = None

    def make_source(self) -> RecordSource:
        return in_memory(_columns())


class TestRowSource(SourceSuite):
    largest_pickle = None

    def make_source(self) -> RecordSource:
        return in_memory([{"id": index, "name": f"record {index}", "in": {"y": np.ones(2)}} for index in range(9)])


class TestColumnStream(StreamSuite):
    def make_dataset(self) -> Dataset:
        return from_records(_columns(), batch=12, seed=5, val={"id": np.arange(29), "x": np.ones((29, 3), np.float32)})


class TestDrawingStream(StreamSuite):
    """Draws, threads, and epochs of less than two steps."""

    steps = 8

    def make_dataset(self) -> Dataset:
        def jitter(record: Any, rng: np.random.Generator) -> Any:
            return {"id": record["id"], "x": record["x"] + rng.random(3, dtype=np.float32)}

        source = in_memory(_columns())
        return dataset_of(source, batch=24, preprocess=jitter, place_field="place", loading=Loading(threads=3))


class TestWorkerStream(StreamSuite):
    steps = 2
    largest_count = 2

    def make_dataset(self) -> Dataset:
        return from_records(_columns(), batch=4, loading=Loading(workers=1))


class _Faulty:
    """A source with one fault."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.x = np.arange(20.0)
        self.reads = 0

    def __len__(self) -> int:
        return 0 if self.fault == "empty" else 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads += 1
        if index >= 20 and self.fault != "wraps":
            raise IndexError(index)
        index %= 20
        if self.fault == "unstable" and self.reads % 2:
            return {"x": self.x[index] + 1}
        if self.fault == "dtype" and index == 7:
            return {"x": np.float32(self.x[index])}
        if self.fault == "buffer":
            self.x[0] = index
            return {"x": self.x[:1]}
        if self.fault == "view":
            return {"x": self.x[index : index + 1]}
        return {"x": self.x[index].copy()}

    def take(self, indices: Any) -> dict[str, Any]:
        if self.fault == "take":
            return {"x": self.x[np.sort(indices)]}
        if self.fault == "kept":
            return {"x": self.x if len(indices) == 20 else self.x[indices]}
        return {"x": self.x[indices]} if self.fault != "view" else {"x": self.x[indices][:, None]}

    def __repr__(self) -> str:
        if self.fault == "path":
            return "Faulty(/data/corpus)"
        return f"Faulty at 0x{id(self):x}" if self.fault == "address" else "Faulty"

    def __reduce__(self) -> Any:
        return (_Faulty, (self.fault, np.zeros(9000))) if self.fault == "pickle" else (_Faulty, (self.fault,))

    def fingerprint(self) -> str:
        return str(id(self)) if self.fault == "fingerprint" else "0"


_FAULTS = {
    "empty": "test_has_a_length",
    "unstable": "test_reads_the_same_record_twice",
    "dtype": "test_fields_and_dtypes_are_stable",
    "buffer": "test_a_record_stays_what_it_was",
    "wraps": "test_refuses_records_that_do_not_exist",
    "take": "test_many_at_once_are_the_same_records",
    "view": "test_changing_a_record_in_place_leaves_the_source_alone",
    "pickle": "test_pickles_by_path",
    "path": "test_describes_its_data",
    "address": "test_describes_its_data",
    "fingerprint": "test_identity_is_stable",
}


def _suite(fault: str) -> SourceSuite:
    class Suite(SourceSuite):
        location = "/data"

        def make_source(self) -> RecordSource:
            return _Faulty(fault)

    return Suite()


def _checks() -> list[str]:
    return [name for name in dir(SourceSuite) if name.startswith("test_")]


@pytest.mark.parametrize("check", _checks())
def test_a_sound_source_passes(check: str) -> None:
    assert getattr(_suite(""), check)() is None


@pytest.mark.parametrize(("fault", "check"), list(_FAULTS.items()))
def test_each_fault_is_caught_by_its_check(fault: str, check: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception, TypeError)):
        getattr(_suite(fault), check)()


def _dataset(train: Callable[[DataPartition], Any]) -> StreamSuite:
    class Suite(StreamSuite):
        def make_dataset(self) -> Dataset:
            return Dataset(train=train, records=37, batch=12)

    return Suite()


def test_a_stream_that_ignores_its_share_is_caught() -> None:
    data = from_records(_columns(), batch=12)
    suite = _dataset(lambda partition: data.train(DataPartition(0, partition.count)))
    with pytest.raises(AssertionError, match="field 'id'"):
        suite.test_shares_tile_the_global_batch()


def test_draws_from_a_global_generator_are_caught() -> None:
    def careless(record: Any) -> Any:
        return {"id": record["id"], "noise": np.random.random()}

    data = dataset_of(in_memory(_columns()), batch=12, preprocess=careless)
    with pytest.raises(AssertionError, match="global random generator"):
        _dataset(data.train).test_leaves_the_global_random_generators_alone()


def test_a_thread_left_behind_is_caught(tmp_path: Any) -> None:
    with pytest.raises(AssertionError, match=r"left behind.*open file"), assert_nothing_left(seconds=0.1):
        handle = (tmp_path / "open").open("w")
    handle.close()
