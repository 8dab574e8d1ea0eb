"""The contract: shares of a global batch, two callables and two numbers, and how steps are counted."""

import itertools
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dew.data.dataset import Batch, DataPartition, Dataset
from dew.data.errors import OptionsError, OptionsTypeError, PartitionError
from dew.data.schedule import Ramp

# Shares


def test_a_partition_without_arguments_reads_every_row() -> None:
    partition = DataPartition()
    assert (partition.index, partition.count, partition.readers, partition.reader) == (0, 1, 1, 0)
    assert partition.rows(8) == 8


def test_rows_are_the_batch_over_the_count() -> None:
    assert [DataPartition(1, count).rows(24) for count in (2, 3, 4, 24)] == [12, 8, 6, 1]
    assert DataPartition(0, 2, readers=4, reader=3).rows(24) == 12


def test_partitions_are_values() -> None:
    assert DataPartition(1, 2) == DataPartition(index=1, count=2)
    assert len({DataPartition(1, 2), DataPartition(1, 2), DataPartition(0, 2)}) == 2
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        DataPartition().index = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("batch", "count", "advice"),
    [
        (8, 3, "use a batch of 6 or 9"),
        (6, 4, "use a batch of 4 or 8"),
        (2, 4, "use a batch of 4,"),
        (1, 1000, "use a batch of 1000,"),
    ],
)
def test_a_batch_that_does_not_divide_names_both(batch: int, count: int, advice: str) -> None:  # B07
    expected = f"a global batch of {batch} rows does not divide over {count} processes; {advice}"
    with pytest.raises(PartitionError, match=expected) as found:
        DataPartition(0, count).rows(batch)
    assert isinstance(found.value, ValueError)
    assert f"or a process count that divides {batch}" in str(found.value)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"index": 2, "count": 2}, "share index 2 does not exist among 2: use 0 to 1"),
        ({"index": 1}, "share index 1 does not exist among 1: use 0 to 0"),
        ({"readers": 2, "reader": 2}, "reader 2 does not exist among 2: use 0 to 1"),
        ({"index": -1}, "index must be at least 0, got -1"),
        ({"count": 0}, "count must be at least 1, got 0"),
        ({"readers": 0}, "readers must be at least 1, got 0"),
        ({"reader": -1}, "reader must be at least 0, got -1"),
    ],
)
def test_shares_that_cannot_be_are_refused(arguments: dict[str, int], match: str) -> None:
    with pytest.raises(OptionsError, match=match):
        DataPartition(**arguments)


@pytest.mark.parametrize("name", ["index", "count", "readers", "reader"])
@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_shares_are_python_ints(name: str, value: Any) -> None:
    with pytest.raises(OptionsTypeError, match=f"{name} must be an int, got {value!r}"):
        DataPartition(**{name: value})


@pytest.mark.parametrize("batch", [0, -8])
def test_rows_of_no_batch_are_refused(batch: int) -> None:
    with pytest.raises(OptionsError, match=f"batch must be at least 1, got {batch}"):
        DataPartition().rows(batch)


# Two callables


def test_a_dataset_of_two_lambdas() -> None:
    batch = {"x": np.arange(8)}
    dataset = Dataset(
        train=lambda partition: itertools.repeat(batch),
        val=lambda partition: itertools.repeat(batch, 1),
        records=8,
        batch=8,
    )
    assert dataset.val is not None
    assert dataset.steps_per_epoch == 1
    assert dataset.steps_for(3) == 3
    train = dataset.train(DataPartition())
    assert [next(train)["x"].shape for _ in range(3)] == [(8,)] * 3
    assert [found["x"].tolist() for found in dataset.val(DataPartition())] == [list(range(8))]
    assert DataPartition().rows(dataset.batch) == 8
    assert next(dataset.train(DataPartition()))["x"].tolist() == list(range(8))


def test_a_callable_that_slices_by_its_partition_reads_each_record_once() -> None:  # B03
    def train(partition: DataPartition) -> Iterator[Batch]:
        for start in range(0, 64, 8):
            yield {"id": np.arange(start, start + 8)[partition.index :: partition.count]}

    dataset = Dataset(train=train, records=64, batch=8)
    for count in (1, 2, 4, 8):
        shares = [list(dataset.train(DataPartition(index, count))) for index in range(count)]
        assert {len(batch["id"]) for share in shares for batch in share} == {DataPartition(0, count).rows(8)}
        rows = np.concatenate([batch["id"] for share in shares for batch in share])
        assert sorted(rows.tolist()) == list(range(64))


def test_each_call_returns_a_fresh_iterator() -> None:
    dataset = Dataset(train=lambda partition: iter([{"x": np.zeros(2)}]), batch=2)
    first, second = dataset.train(DataPartition()), dataset.train(DataPartition())
    assert first is not second
    assert len(list(first)) == len(list(second)) == 1


@pytest.mark.parametrize("name", ["train", "val"])
@pytest.mark.parametrize("value", [3, [1], {"x": 1}])
def test_what_cannot_be_called_is_refused(name: str, value: Any) -> None:
    given_callables: dict[str, Any] = {"train": iter, name: value}
    expected = f"{name} must be a callable DataPartition -> iterator.*, got {type(value).__name__}"
    with pytest.raises(OptionsTypeError, match=expected):
        Dataset(batch=8, **given_callables)
    with pytest.raises(OptionsTypeError, match="train must be a callable"):
        Dataset(train=None, batch=8)  # type: ignore[arg-type]


def test_the_global_batch_is_asked_for() -> None:
    with pytest.raises(OptionsError, match=r"a Dataset needs batch=, the global batch \(rows of one step over all"):
        Dataset(train=iter)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["records", "batch"])
def test_numbers_are_counts(name: str) -> None:
    for value in (-1, -8):
        with pytest.raises(OptionsError, match=f"{name} must be at least 1, got {value}"):
            Dataset(train=iter, **{"batch": 8, name: value})  # type: ignore[arg-type]
    for value in (True, 8.0, "8"):
        with pytest.raises(OptionsTypeError, match=f"{name} must be an int, got {value!r}"):
            Dataset(train=iter, **{"batch": 8, name: value})  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match="records must be at least 1, got 0"):
        Dataset(train=iter, batch=8, records=0)  # type: ignore[arg-type]


def test_datasets_are_frozen() -> None:
    dataset = Dataset(train=iter, batch=8)  # type: ignore[arg-type]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        dataset.batch = 4  # type: ignore[misc]
    assert dataset.val is None
    assert dataset.records is None


# Steps


def dataset_of(records: int | None, batch: int, ramp: Ramp | None = None) -> Dataset:
    return Dataset(train=iter, records=records, batch=batch, ramp=ramp)  # type: ignore[arg-type]


def test_steps_straddle_epochs() -> None:
    dataset = dataset_of(1000, 300)
    assert dataset.steps_per_epoch == 3
    assert dataset.steps_for(3) == 10
    assert [dataset.steps_for(epochs) for epochs in range(5)] == [0, 3, 6, 10, 13]


def test_steps_of_unknown_length() -> None:
    dataset = dataset_of(None, 8)
    assert dataset.steps_per_epoch is None
    with pytest.raises(OptionsError, match=r"steps in 2 epochs were asked for, .* pass records= when you make it"):
        dataset.steps_for(2)


def test_fewer_records_than_a_batch_are_no_whole_step() -> None:
    assert dataset_of(3, 8).steps_per_epoch == 0
    assert dataset_of(3, 8).steps_for(3) == 1


def test_a_ramp_counts_once() -> None:
    """2, 2, 2, 2, 4, 4, 6, 6, then 8 a step: 28 records in 8 steps."""
    dataset = dataset_of(60, 8, Ramp(start=2, increment=2, samples=24))
    assert dataset.steps_per_epoch == 8 + (60 - 28) // 8
    assert dataset.steps_for(2) == 8 + (120 - 28) // 8
    assert dataset_of(7, 8, Ramp(2, 2, 24)).steps_per_epoch == 3
    with pytest.raises(OptionsError, match="a ramp from 3 by 2 never reaches the batch of 8"):
        dataset_of(60, 8, Ramp(3, 2, 24))


def test_steps_of_large_runs() -> None:
    assert dataset_of(10**12, 7).steps_for(10**12) == 10**24 // 7


@pytest.mark.parametrize("epochs", [-1, 1.0, True])
def test_epochs_are_counts(epochs: Any) -> None:
    expected = "epochs must be at least 0, got -1" if epochs == -1 else "epochs must be an int, got"
    with pytest.raises((OptionsError, OptionsTypeError), match=expected):
        dataset_of(100, 8).steps_for(epochs)


@given(st.integers(1, 10**6), st.integers(1, 5000), st.integers(0, 20))
def test_steps_are_whole_batches_of_all_records(records: int, batch: int, epochs: int) -> None:
    dataset = dataset_of(records, batch)
    assert dataset.steps_per_epoch == records // batch
    assert dataset.steps_for(epochs) == records * epochs // batch


ramps = st.builds(Ramp, st.integers(1, 6), st.integers(1, 5), st.integers(1, 300))


@given(ramps, st.integers(1, 4), st.integers(1, 500), st.integers(0, 4))
def test_ramped_steps_end_within_the_records(ramp: Ramp, increments: int, records: int, epochs: int) -> None:
    dataset = dataset_of(records, ramp.start + increments * ramp.increment, ramp)
    schedule = ramp.schedule(dataset.batch)
    steps = dataset.steps_for(epochs)
    assert schedule.span(steps)[0] <= epochs * records < schedule.span(steps)[1]
    assert dataset.steps_per_epoch == dataset.steps_for(1)
