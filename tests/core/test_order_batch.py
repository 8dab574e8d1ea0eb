"""Orders that can be read with one batch only, such as that of aspect buckets: every other way is refused, by name."""

import json
import re
from typing import Any

import attrs
import numpy as np
import pytest

from dew.data import DataPartition, Loading, Ramp, from_records, ramped, rebatch, skip
from dew.data.errors import OptionsError, OptionsTypeError, PositionError, PositionMismatchError
from dew.data.mixture import MixtureOrder, MixturePart, Stage
from dew.data.order import Order, Places, ShuffledOrder, batch_of
from dew.data.schedule import FixedBatch
from dew.data.stream import RecordStream, train_stream

RECORDS = 48
DIRECT = Loading(workers=0, threads=1, read_buffer=0)
ROWS: list[dict[str, Any]] = [{"x": np.int32(number)} for number in range(RECORDS)]


@attrs.frozen(kw_only=True)
class Grouped:
    """Steps of `batch` records, all of one remainder by 4, like buckets."""

    records: int = RECORDS
    batch: Any = 4
    seed: int = 0

    def identity(self) -> dict[str, Any]:
        return {"version": 1, "kind": "grouped", "records": self.records, "seed": self.seed}

    def at(self, places: Places) -> Places:
        steps, rows = np.divmod(np.asarray(places, np.int64), self.batch)
        return (steps % 4 + 4 * (steps // 4 * self.batch + rows)) % self.records

    def places(self, record: int, start: int, stop: int) -> Places:
        places = np.arange(start, stop, dtype=np.int64)
        return places[self.at(places) == record]


def stream(order: Order, batch: int = 4, **options: Any) -> RecordStream:
    return train_stream(ROWS, order=order, batch=batch, loading=DIRECT, **options)


def read(reader: RecordStream, steps: int) -> list[list[int]]:
    return [next(reader)["x"].tolist() for _ in range(steps)]


def test_it_is_read_with_its_own_batch_on_any_number_of_processes() -> None:
    expected = Grouped().at(np.arange(40)).reshape(10, 4)
    assert all(len(set((row % 4).tolist())) == 1 for row in expected)
    np.testing.assert_array_equal(read(stream(Grouped()), 10), expected)
    for count in (2, 4):
        shares = [stream(Grouped(), partition=DataPartition(index, count)) for index in range(count)]
        for step in range(10):
            found = [value for share in shares for value in next(share)["x"].tolist()]
            assert sorted(found) == sorted(expected[step].tolist())


def test_another_batch_is_refused_naming_both() -> None:
    message = re.escape(
        "Grouped(records=48, batch=4, seed=0) reads steps of 4 records and no others, batch=8 was asked"
    )
    with pytest.raises(OptionsError, match=message):
        stream(Grouped(), 8)
    with pytest.raises(OptionsError, match=r"read it with batch=4, or make it for the batch that you want"):
        stream(Grouped(), 2)


def test_a_ramp_is_refused() -> None:
    message = r"reads steps of 4 records and no others, a ramp over the batches \[2, 4\] was asked for"
    with pytest.raises(OptionsError, match=message):
        stream(Grouped(), schedule=Ramp(start=2, increment=2, samples=8))
    with pytest.raises(OptionsError, match=message):
        stream(Grouped()).with_schedule(Ramp(start=2, increment=2, samples=8))
    with pytest.raises(OptionsError, match=r"batch=8 was asked for"):
        stream(Grouped()).with_schedule(FixedBatch(8))
    assert read(stream(Grouped()).with_schedule(FixedBatch(4)), 2) == read(stream(Grouped()), 2)


def test_a_ramped_dataset_is_refused_when_it_is_read() -> None:
    made = attrs.evolve(from_records(ROWS, batch=4), train=lambda partition: stream(Grouped(), partition=partition))
    with pytest.raises(OptionsError, match=r"a ramp over the batches \[1, 2, 3, 4\] was asked for"):
        ramped(made, Ramp(start=1, increment=1, samples=40)).train(DataPartition())


def test_every_position_states_it() -> None:
    reader = stream(Grouped())
    read(reader, 3)
    state = json.loads(json.dumps(reader.get_state()))
    assert state["order"]["batch"] == 4
    assert "batch" not in stream(ShuffledOrder(records=RECORDS)).get_state()["order"]
    again = stream(Grouped())
    again.set_state(state)
    assert read(again, 5) == read(reader, 5)


def test_rebatch_is_refused_naming_both() -> None:
    state = stream(Grouped()).get_state()
    message = r"rebatch\(state, 8\) cannot be: the order of this position reads steps of 4 records and no others"
    with pytest.raises(OptionsError, match=message):
        rebatch(state, 8)
    kept = rebatch(state, 4)
    reader = stream(Grouped())
    reader.set_state(kept)
    assert read(reader, 1) == read(stream(Grouped()), 1)


def test_only_whole_steps_can_be_skipped() -> None:
    reader = stream(Grouped())
    read(reader, 2)
    state = reader.get_state()
    message = r"skip\(state, 6\) would end inside a step: .* steps of 4 records and no others; .* such as 8"
    with pytest.raises(OptionsError, match=message):
        skip(state, 6)
    reader.set_state(skip(state, 8))
    np.testing.assert_array_equal(read(reader, 1)[0], Grouped().at(np.arange(16, 20)))
    plain = stream(ShuffledOrder(records=RECORDS))
    plain.set_state(skip(plain.get_state(), 6))


def test_a_position_inside_a_step_is_refused() -> None:
    reader = stream(Grouped())
    state = reader.get_state()
    state = {**state, "records": 6, "segments": [{"step": 0, "place": 2, "batch": 4}]}
    with pytest.raises(PositionError, match=r"goes on at place 2, inside a step: Grouped\(.* from a multiple of 4"):
        reader.set_state(state)
    assert read(reader, 1) == read(stream(Grouped()), 1), "and has changed nothing"


def test_a_position_of_another_batch_is_refused_and_cannot_be_accepted() -> None:
    state = stream(Grouped()).get_state()
    other = stream(Grouped(batch=8), 8)
    message = r"another batch: saved 4, this stream has 8\. .*Its order reads steps of that many records and no others"
    with pytest.raises(PositionMismatchError, match=message) as caught:
        other.set_state(state)
    assert (caught.value.part, caught.value.saved, caught.value.current) == ("batch", 4, 8)
    with pytest.raises(OptionsError, match=r"accept=\['batch'\] cannot be accepted"):
        other.set_state(state, accept={"batch"})


@pytest.mark.parametrize(("batch", "error"), [(0, OptionsError), (-4, OptionsError), (4.0, OptionsTypeError)])
def test_a_batch_that_cannot_be(batch: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"Grouped\.batch must be"):
        stream(Grouped(batch=batch))


def test_it_is_no_part_of_a_mixture() -> None:
    parts = (MixturePart(label="a", order=Grouped()), MixturePart(label="b", order=ShuffledOrder(records=8)))
    message = r"'a' cannot be a part of a mixture: its order reads whole steps of 4 records"
    with pytest.raises(OptionsError, match=message):
        MixtureOrder(parts=parts, stages=(Stage(0, {"a": 1, "b": 1}),))


def test_orders_without_one_are_read_with_any() -> None:
    assert batch_of(ShuffledOrder(records=8)) is None
    assert batch_of(Grouped()) == 4
    assert len(read(stream(ShuffledOrder(records=RECORDS), 16), 2)[0]) == 16
