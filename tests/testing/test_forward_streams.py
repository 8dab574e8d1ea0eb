"""`StreamSuite` on streams that are only read forwards, with a shard's position or none, and with planted faults."""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest

from dew.data import DataPartition, Dataset
from dew.data.errors import PositionError, StreamClosedError
from dew.data.position import ShardPosition, position_from_json
from dew.testing import StreamSuite

Failing: TypeAlias = Callable[[Any], dict[str, BaseException]]

BATCH = 12


class Forward(Iterator[Any]):
    """A stream that somebody wrote by hand: it reads forwards, and only its own share can continue it."""

    def __init__(self, partition: DataPartition, *, step: int = 0) -> None:
        self.partition, self.step, self.closed = partition, step, False

    def __next__(self) -> Any:
        if self.closed:
            raise StreamClosedError("closed")
        self.step += 1
        rows = BATCH // self.partition.count
        return {"x": np.arange(rows) + 1000 * self.step + 100_000 * self.partition.index}

    def get_state(self) -> Any:
        return ShardPosition(self.partition.index, self.partition.count, {"step": self.step}).to_json()

    def set_state(self, state: Any) -> None:
        position = position_from_json(state)
        assert isinstance(position, ShardPosition)
        position.check_share(self.partition.index, self.partition.count)
        self.step = position.state["step"]

    def close(self) -> None:
        self.closed = True


class TestShardStream(StreamSuite):
    random_access = False
    known_length = False
    position = "shard"

    def make_dataset(self) -> Dataset:
        return Dataset(train=Forward, batch=BATCH)


class WithoutPosition(Forward):
    get_state = property()  # type: ignore[assignment]
    set_state = property()  # type: ignore[assignment]


class TestStreamWithoutPosition(StreamSuite):
    random_access = False
    known_length = False
    position = None

    def make_dataset(self) -> Dataset:
        return Dataset(train=WithoutPosition, batch=BATCH)


class TakesOtherCounts(Forward):
    def set_state(self, state: Any) -> None:
        self.step = state["state"]["step"]


class RefusesWithoutCounts(Forward):
    def set_state(self, state: Any) -> None:
        if (state["index"], state["count"]) != (self.partition.index, self.partition.count):
            raise PositionError("another share")
        super().set_state(state)


class ReadAhead(Forward):
    def get_state(self) -> Any:
        state = super().get_state()
        return {**state, "state": {"step": self.step + 1}}


class HalfAPosition(Forward):
    set_state = property()  # type: ignore[assignment]


class Restless(Forward):
    """The same share reads other records each time."""

    opened = 0

    def __init__(self, partition: DataPartition) -> None:
        super().__init__(partition)
        Restless.opened += 1
        self.number = Restless.opened

    def __next__(self) -> Any:
        batch = super().__next__()
        return {"x": batch["x"] + self.number}


OWNED = "test_batches_are_owned_by_the_receiver"
CLAIM = "test_has_the_position_it_claims"
REFUSES = "test_refuses_positions_of_other_data"
RESUMES = "test_resumes_at_every_step_on_every_process_count"
NEUTRAL = "test_setting_its_own_state_changes_nothing"
GLOBAL = "test_leaves_the_global_random_generators_alone"

FAULTS = [
    (TakesOtherCounts, "shard", REFUSES, (), "share 0 of 4 is taken by share 1"),
    (RefusesWithoutCounts, "shard", REFUSES, (), "without naming"),
    (ReadAhead, "shard", RESUMES, (NEUTRAL,), "restored on 1 process from"),
    (HalfAPosition, "shard", CLAIM, (RESUMES, NEUTRAL, REFUSES), "lacks get_state or set_state"),
    (Forward, None, CLAIM, (), "without a position has get_state and set_state"),
    (WithoutPosition, "shard", CLAIM, (RESUMES, NEUTRAL, REFUSES), "lacks get_state"),
    (Restless, "shard", OWNED, (RESUMES, NEUTRAL, GLOBAL), "second stream"),
]


@pytest.mark.parametrize(("kind", "claims", "found_by", "also", "says"), FAULTS)
def test_each_fault_is_found_by_its_test(
    kind: type[Forward], claims: Any, found_by: str, also: tuple[str, ...], says: str, failing: Failing
) -> None:
    class Suite(StreamSuite):
        random_access = False
        known_length = False
        position = claims
        largest_count = 4

        def make_dataset(self) -> Dataset:
            return Dataset(train=kind, batch=BATCH)

    found = failing(Suite())
    assert set(found) == {found_by, *also}
    with pytest.raises(AssertionError, match=says):
        raise found[found_by]


def test_a_stream_without_random_access_must_say_so(failing: Failing) -> None:
    class Suite(StreamSuite):
        known_length = False
        position = "shard"

        def make_dataset(self) -> Dataset:
            return Dataset(train=Forward, batch=BATCH)

    found = failing(Suite())
    with pytest.raises(AssertionError, match=r"not a RecordStream.*random_access = False"):
        raise found["test_rows_are_the_records_that_ids_names"]
