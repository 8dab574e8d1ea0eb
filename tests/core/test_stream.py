"""A training stream hands out the records of its order, one share of every global batch, and knows where it stands."""

import functools
import itertools
import json
import operator
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from dew.data import (
    DataPartition,
    Dataset,
    Loading,
    OptionsError,
    OptionsTypeError,
    PartitionError,
    PositionError,
    PositionMismatchError,
    Ramp,
    RecordStream,
    SourceError,
    StreamClosedError,
    from_records,
    ramped,
    rebatch,
    skip,
    train_stream,
)
from dew.data.order import SequentialOrder, ShuffledOrder
from dew.data.schedule import FixedBatch

HERE = Loading(workers=0, threads=1, read_buffer=0)
AHEAD = Loading(workers=0, threads=1, read_buffer=3)
POOL = Loading(workers=0, threads=4, read_buffer=2)
WAYS = pytest.mark.parametrize("loading", [HERE, AHEAD, POOL], ids=["here", "ahead", "pool"])


class Ids:
    """Record i is `{"id": i}`; counts what is read."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        self.reads.append(index)
        return {"id": index}

    def __repr__(self) -> str:
        return f"Ids({self.records})"


class Many(Ids):
    """The same, read by `__getitems__`, whose answer `change` may spoil."""

    def __init__(self, records: int, change: Callable[[list[Any]], Any] = list) -> None:
        super().__init__(records)
        self.change = change

    def __getitems__(self, indices: list[int]) -> Any:
        assert all(type(index) is int for index in indices)
        return self.change([self[index] for index in indices])


class Taking(Ids):
    """The same, whole steps at once."""

    def take(self, indices: Any) -> Mapping[str, Any]:
        assert indices.dtype == np.int64
        self.reads.extend(indices.tolist())
        return {"id": np.array(indices)}


class Failing(Ids):
    """Raises at one record, until it is repaired."""

    def __init__(self, records: int, bad: int, error: BaseException) -> None:
        super().__init__(records)
        self.bad: int | None = bad
        self.error = error

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        if index == self.bad:
            raise self.error
        return super().__getitem__(index)


def own_threads() -> list[str]:
    """Threads of streams; other libraries keep some of their own."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dew-")]


def read(stream: Iterator[Mapping[str, Any]], steps: int, field: str = "id") -> list[Any]:
    return [next(stream)[field].tolist() for _ in range(steps)]


def flat(steps: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(steps))


def joined(shares: list[list[list[int]]]) -> list[list[int]]:
    """Steps of the shares of one run -> steps of the whole, rows in the order of their places."""
    return [[row for rows in zip(*step, strict=True) for row in rows] for step in zip(*shares, strict=True)]


# Order and tiling


@WAYS
@pytest.mark.parametrize("source", [Ids, Many, Taking])
def test_step_k_holds_the_places_of_step_k(source: Callable[[int], Ids], loading: Loading) -> None:
    order = ShuffledOrder(records=10, seed=3)
    with train_stream(source(10), batch=4, seed=3, loading=loading) as stream:
        for step in range(8):
            expected = order.at(np.arange(4 * step, 4 * step + 4)).tolist()
            assert stream.ids(step).tolist() == expected
            batch = next(stream)
            assert batch["id"].tolist() == expected
            assert batch["id"].dtype == np.int64


@WAYS
def test_steps_straddle_epochs_and_lose_nothing(loading: Loading) -> None:
    with train_stream(Ids(10), batch=4, loading=loading) as stream:
        rows = flat(read(stream, 5))
    assert Counter(rows[:10]) == Counter(rows[10:]) == Counter(range(10))
    assert rows[:10] != rows[10:]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 12])
@WAYS
def test_shares_tile_every_step(count: int, loading: Loading) -> None:
    def share(index: int) -> list[list[int]]:
        with train_stream(Ids(50), batch=12, seed=7, partition=DataPartition(index, count), loading=loading) as stream:
            assert stream.partition == DataPartition(index, count)
            return read(stream, 9)

    with train_stream(Ids(50), batch=12, seed=7, loading=HERE) as whole:
        assert joined([share(index) for index in range(count)]) == read(whole, 9)


def test_readers_of_one_share_get_the_same_rows() -> None:
    rows: list[list[list[int]]] = []
    for reader in range(3):
        partition = DataPartition(1, 2, readers=3, reader=reader)
        with train_stream(Ids(30), batch=6, partition=partition, loading=HERE) as stream:
            rows.append(read(stream, 5))
    assert rows[0] == rows[1] == rows[2]


def test_ids_are_of_the_whole_step_in_past_and_future() -> None:
    with train_stream(Ids(50), batch=6, partition=DataPartition(1, 3), loading=HERE) as stream:
        steps = read(stream, 4)
        for step in (0, 3):
            assert stream.ids(step)[1::3].tolist() == steps[step]
        far = stream.ids(10**15)
        assert far.shape == (6,)
        assert far.dtype == np.int64
        with pytest.raises(OptionsError, match="step must be at least 0, got -1"):
            stream.ids(-1)
    assert stream.ids(0).shape == (6,)


def test_shuffle_false_reads_in_order_in_each_epoch() -> None:
    with train_stream(Ids(5), batch=3, shuffle=False, loading=HERE) as stream:
        assert stream.order == SequentialOrder(records=5)
        assert read(stream, 5) == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1], [2, 3, 4]]


def test_any_order_can_be_used() -> None:
    @attrs.frozen
    class Backwards:
        records: int

        def identity(self) -> dict[str, Any]:
            return {"version": 1, "kind": "backwards", "records": self.records}

        def at(self, places: Any) -> Any:
            return self.records - 1 - places % self.records

        def places(self, record: int, start: int, stop: int) -> Any:
            return np.array([place for place in range(start, stop) if self.at(place) == record], np.int64)

    with train_stream(Ids(5), order=Backwards(5), batch=3, loading=HERE) as stream:
        assert read(stream, 3) == [[4, 3, 2], [1, 0, 4], [3, 2, 1]]
        state = stream.get_state()
    with (
        train_stream(Ids(5), batch=3, loading=HERE) as shuffled,
        pytest.raises(PositionMismatchError, match="another kind: saved 'backwards', this stream has 'shuffled'"),
    ):
        shuffled.set_state(state)


@pytest.mark.parametrize(
    ("junk", "message"),
    [
        (lambda places: places[:-1], r"Junk\.at\(\) must return \(\d+,\) integers, got \(\d+,\) of int64"),
        (lambda places: places * 1.0, r"Junk\.at\(\) must return \(\d+,\) integers, got \(\d+,\) of float64"),
        (lambda places: [None] * len(places), r"Junk\.at\(\) must return \(\d+,\) integers, got \(\d+,\) of object"),
        (lambda places: places * 0 - 1, r"Junk\.at\(\) returned record -1 at place 0; there are records 0 to 4"),
        (lambda places: places, r"Junk\.at\(\) returned record 5 at place 5; there are records 0 to 4"),
    ],
)
def test_an_order_that_returns_junk_is_refused(junk: Callable[[Any], Any], message: str) -> None:
    class Junk(SequentialOrder):
        def at(self, places: Any) -> Any:
            return junk(places)

    source = Ids(5)
    with (
        train_stream(source, order=Junk(records=5), batch=2, loading=AHEAD) as stream,
        pytest.raises(SourceError, match=message),
    ):
        next(stream)
    assert source.reads == []


# Arguments


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch": 0}, OptionsError, "batch must be at least 1, got 0"),
        ({"batch": 2.0}, OptionsTypeError, r"batch must be an int, got 2\.0 \(float\)"),
        ({"seed": -1}, OptionsError, r"seed must be in \[0, 2\*\*64\), got -1"),
        ({"seed": 1 << 64}, OptionsError, r"seed must be in \[0, 2\*\*64\), got 18446744073709551616"),
        ({"seed": 1.5}, OptionsTypeError, r"seed must be a Python int in \[0, 2\*\*64\), got 1\.5 \(float\)"),
        ({"seed": True}, OptionsTypeError, "seed must be a Python int"),
        ({"order": SequentialOrder(records=9)}, OptionsError, "the order is over 9 records, the source holds 10"),
        ({"schedule": FixedBatch(6)}, OptionsError, "the schedule ends at a batch of 6, batch= says 2"),
        ({"place_field": ""}, OptionsTypeError, "place_field must be the name of a field, got ''"),
        ({"place_field": 3}, OptionsTypeError, "place_field must be the name of a field, got 3"),
        ({"preprocess": 5}, OptionsTypeError, r"preprocess must be a function of a record, got 5 \(int\)"),
        (
            {"preprocess": lambda *, record: record},
            OptionsError,
            r"called as preprocess\(record\) or preprocess\(record, rng\); .*<lambda>\(\*, record\) fits neither",
        ),
        (
            {"preprocess": lambda record, rng, more: {}},
            OptionsError,
            r"<lambda>\(record, rng, more\) fits neither",
        ),
        (
            {"partition": DataPartition(0, 3), "batch": 4},
            PartitionError,
            "4 rows does not divide over 3 processes; use a batch of 3 or 6, or a process count that divides 4",
        ),
        (
            {"partition": DataPartition(0, 3), "batch": 9, "schedule": Ramp(1, 4, 8)},
            PartitionError,
            "a global batch of 1 rows does not divide over 3 processes",
        ),
        ({"schedule": Ramp(2, 3, 8), "batch": 9}, OptionsError, "a ramp from 2 by 3 never reaches the batch of 9"),
    ],
)
def test_arguments_that_cannot_be_used(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    source = Ids(10)
    with pytest.raises(error, match=message):
        train_stream(source, **{"batch": 2, **arguments})
    assert source.reads == []


def test_fewer_records_than_a_batch_are_refused() -> None:
    with pytest.raises(SourceError, match=r"holds 3 records, fewer than one global batch of 8: .*repeat_in_step=True"):
        train_stream(Ids(3), batch=8)


def test_repeat_in_step_allows_fewer_records_than_a_batch() -> None:
    with train_stream(Ids(3), batch=8, repeat_in_step=True, loading=AHEAD) as stream:
        rows = flat(read(stream, 3))
    assert Counter(rows) == {0: 8, 1: 8, 2: 8}


def test_an_empty_source_and_one_without_length_are_refused() -> None:
    with pytest.raises(SourceError, match=r"Ids\(0\) holds no records"):
        train_stream(Ids(0), batch=1)
    generator: Any = (row for row in ())
    with pytest.raises(SourceError, match="generator has no length, so it has no order that can be resumed"):
        train_stream(generator, batch=1)


def test_an_identity_that_names_a_part_of_the_order_is_refused() -> None:
    class Clash(Ids):
        def identity(self) -> dict[str, Any]:
            return {"seed": 4}

    with pytest.raises(SourceError, match=r"Ids\(5\)\.identity\(\) has \['seed'\], which name parts of the order"):
        train_stream(Clash(5), batch=1)


def test_what_a_stream_shows() -> None:
    source = Ids(9)
    stream = train_stream(source, batch=4, seed=2, partition=DataPartition(1, 2), loading=HERE)
    assert iter(stream) is stream
    assert stream.source is source
    assert stream.batch == 4
    assert stream.order == ShuffledOrder(records=9, seed=2)
    assert (
        repr(stream)
        == "RecordStream(Ids(9), batch=4, partition=DataPartition(index=1, count=2, readers=1, reader=0), step=0)"
    )
    for name in ("source", "order", "batch", "partition", "position"):
        with pytest.raises(AttributeError):
            setattr(stream, name, None)
    assert source.reads == []


# Position


@WAYS
def test_the_position_counts_what_was_delivered(loading: Loading) -> None:
    with train_stream(Ids(200), batch=4, loading=attrs.evolve(loading, read_buffer=50)) as stream:
        assert stream.get_state()["records"] == 0
        for step in range(1, 6):
            next(stream)
            assert stream.get_state()["records"] == 4 * step
            assert stream.position.step == step
        state = json.loads(json.dumps(stream.get_state()))
    with train_stream(Ids(200), batch=4, loading=HERE) as plain, train_stream(Ids(200), batch=4) as again:
        sixth = read(plain, 6)[5]
        again.set_state(state)
        assert again.get_state() == state
        assert read(again, 1) == [sixth]


def test_every_process_saves_the_same_position() -> None:
    states: list[Any] = []
    for index in range(3):
        with train_stream(Ids(20), batch=6, partition=DataPartition(index, 3), loading=HERE) as stream:
            read(stream, 4)
            states.append(stream.get_state())
    assert states[0] == states[1] == states[2]
    assert states[0]["records"] == 24


@WAYS
def test_set_state_after_reading_and_of_the_own_state(loading: Loading) -> None:
    with train_stream(Ids(40), batch=4, loading=loading) as stream:
        start = stream.get_state()
        first = read(stream, 7)
        middle = stream.get_state()
        stream.set_state(start)
        assert read(stream, 3) == first[:3]
        stream.set_state(stream.get_state())
        assert read(stream, 2) == first[3:5]
        stream.set_state(middle)
        later = read(stream, 2)
        stream.set_state(start)
        assert read(stream, 9) == first + later


def test_restoring_reads_nothing_that_was_read_before() -> None:
    source = Ids(1_000_000)
    stream = train_stream(source, batch=4, loading=Loading(workers=0, threads=1, read_buffer=2))
    state = stream.get_state()
    state["records"] = 800_000
    stream.set_state(state)
    assert source.reads == []
    with stream:
        batch = next(stream)
        assert batch["id"].tolist() == stream.ids(200_000).tolist()
    assert len(source.reads) <= 4 * (1 + 2 + 1)  # delivered, waiting, and in the making
    assert set(source.reads) <= {int(i) for step in range(200_000, 200_004) for i in stream.ids(step)}


def test_a_position_far_out_costs_nothing() -> None:
    source = Taking(10**12)
    with train_stream(source, batch=8, loading=AHEAD) as stream:
        state = stream.get_state()
        state["records"] = 10**15
        stream.set_state(state)
        assert read(stream, 1) == [ShuffledOrder(records=10**12).at(np.arange(10**15, 10**15 + 8)).tolist()]


RESUMED = """
    import json, sys
    import numpy as np
    from dew.data import Loading, from_records

    dataset = from_records({"id": np.arange(1000)}, batch=1, seed=42, loading=Loading(workers=0))
    with dataset.train(__import__("dew.data", fromlist=["x"]).DataPartition()) as stream:
        stream.set_state(json.loads(sys.argv[1]))
        rows = [int(next(stream)["id"][0]) for _ in range(20)]
        print(json.dumps([rows, stream.get_state()]))
"""


def test_restored_in_another_process_the_run_goes_on(tmp_path: Path) -> None:
    dataset = from_records({"id": np.arange(1000)}, batch=1, seed=42, loading=HERE)
    stream: Any = dataset.train(DataPartition())
    read(stream, 55)
    state = stream.get_state()
    rows = [row for [row] in read(stream, 20)]
    script = tmp_path / "resumed.py"
    script.write_text(textwrap.dedent(RESUMED))
    command = [sys.executable, "-W", "error", str(script), json.dumps(state)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert json.loads(done.stdout) == [rows, stream.get_state()]


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 3), (6, 4)])
def test_another_process_count_goes_on_where_the_last_stopped(before: int, after: int) -> None:
    def share(index: int, count: int, state: Any, steps: int) -> tuple[list[list[int]], Any]:
        with train_stream(Ids(50), batch=12, partition=DataPartition(index, count), loading=AHEAD) as stream:
            if state is not None:
                stream.set_state(state)
            return read(stream, steps), stream.get_state()

    with train_stream(Ids(50), batch=12, loading=HERE) as stream:
        whole = read(stream, 11)
    first = [share(index, before, None, 5) for index in range(before)]
    assert joined([rows for rows, _ in first]) == whole[:5]
    second = [share(index, after, first[0][1], 6)[0] for index in range(after)]
    assert joined(second) == whole[5:]


def test_skip_and_rebatch_on_other_process_counts_lose_and_repeat_nothing() -> None:
    def share(index: int, count: int, batch: int, state: Any, steps: int) -> tuple[list[list[int]], Any]:
        with train_stream(Ids(1000), batch=batch, partition=DataPartition(index, count), loading=AHEAD) as stream:
            if state is not None:
                stream.set_state(state)
            return read(stream, steps), stream.get_state()

    order = ShuffledOrder(records=1000)
    first = [share(index, 4, 8, None, 5) for index in range(4)]
    state = first[0][1]
    with (
        train_stream(Ids(1000), batch=6, loading=HERE) as other,
        pytest.raises(PositionMismatchError, match=r"global batch 8, this stream has 6.*1, 2, 4, 8 processes.*rebatch"),
    ):
        other.set_state(state)
    second = [share(index, 3, 6, rebatch(state, 6), 7) for index in range(3)]
    third = share(0, 1, 6, skip(second[0][1], 100), 2)
    rows = [row for shares in (first, second) for step in joined([rows for rows, _ in shares]) for row in step]
    assert rows == order.at(np.arange(40 + 42)).tolist()
    assert flat(third[0]) == order.at(np.arange(182, 194)).tolist()
    assert third[1]["records"] == 194


def test_ids_follow_the_segments_of_the_run() -> None:
    with train_stream(Ids(1000), batch=8, loading=HERE) as stream:
        before = read(stream, 3)
        state = skip(stream.get_state(), 50)
        stream.set_state(state)
        after = read(stream, 2)
        assert [stream.ids(step).tolist() for step in range(5)] == before + after


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"kind": "shard", "index": 0, "count": 2, "state": 1}, PositionError, "share 0 of 2: it was saved by a"),
        ([], PositionError, "a position is a mapping with a 'kind', got list"),
        ({"kind": "records"}, PositionError, r"lacks \['order', 'records', 'segments'\]"),
    ],
)
def test_what_is_no_position_is_refused_and_changes_nothing(change: Any, error: type[Exception], message: str) -> None:
    with train_stream(Ids(40), batch=4, loading=AHEAD) as stream:
        first = read(stream, 2)
        state = stream.get_state()
        with pytest.raises(error, match=message):
            stream.set_state(change)
        assert stream.get_state() == state
        stream.set_state(state)
        assert first + read(stream, 1) == [stream.ids(step).tolist() for step in range(3)]


def test_a_mismatch_names_the_part_and_can_be_accepted_alone() -> None:
    with train_stream(Ids(40), batch=4, seed=1, loading=HERE) as stream:
        next(stream)
        state = stream.get_state()
    with train_stream(Ids(41), batch=4, seed=1, loading=HERE) as other:
        with pytest.raises(
            PositionMismatchError, match=r"another source: saved 'Ids\(40\)', this stream has"
        ) as caught:
            other.set_state(state)
        assert (caught.value.part, caught.value.saved, caught.value.current) == ("source", "Ids(40)", "Ids(41)")
        with pytest.raises(PositionMismatchError, match=r"another records: saved 40, this stream has 41"):
            other.set_state(state, accept={"source"})
        other.set_state(state, accept={"records", "source"})
        assert other.get_state()["records"] == 4
        assert [entry["part"] for entry in other.get_state()["accepted"]] == ["source", "records"]


# Places


@pytest.mark.parametrize("start", [0, (1 << 32) - 8, 5 << 40])
def test_place_field_holds_the_place_of_each_record(start: int) -> None:
    for index in range(2):
        partition = DataPartition(index, 2)
        with train_stream(Ids(1000), batch=8, partition=partition, place_field="place", loading=AHEAD) as stream:
            state = stream.get_state()
            state["records"] = start
            stream.set_state(state)
            for step in range(3):
                batch = next(stream)
                words = batch["place"]
                assert words.shape == (4, 2)
                assert words.dtype == np.uint32
                places = [(int(high) << 32) + int(low) for high, low in words]
                assert places == list(range(start + 8 * step + index, start + 8 * step + 8, 2))
                assert stream.order.at(np.array(places)).tolist() == batch["id"].tolist()


def test_a_field_of_the_same_name_is_refused() -> None:
    with (
        train_stream(Ids(10), batch=2, place_field="id", loading=HERE) as stream,
        pytest.raises(OptionsError, match="already have a field 'id', which Dew was asked to add; rename it with"),
    ):
        next(stream)


# Ramp


@WAYS
@pytest.mark.parametrize("count", [1, 2])
def test_a_ramp_keeps_the_order(count: int, loading: Loading) -> None:
    shares: list[list[list[int]]] = []
    for index in range(count):
        with train_stream(
            Ids(50), batch=8, schedule=Ramp(2, 2, 30), partition=DataPartition(index, count), loading=loading
        ) as stream:
            shares.append(read(stream, 12))
            state = stream.get_state()
    steps = joined(shares)
    assert [len(step) for step in steps] == [2, 2, 2, 2, 2, 4, 4, 4, 6, 6, 8, 8]
    assert state["records"] == sum(map(len, steps)) == 50
    assert flat(steps) == ShuffledOrder(records=50).at(np.arange(50)).tolist()


def test_a_ramp_resumes_inside_itself() -> None:
    def stream() -> RecordStream:
        return train_stream(Ids(50), batch=8, schedule=Ramp(2, 2, 30), loading=AHEAD)

    with stream() as whole:
        steps = read(whole, 12)
    for stop in range(12):
        with stream() as first, stream() as second:
            read(first, stop)
            second.set_state(first.get_state())
            assert second.position.step == stop
            assert read(second, 12 - stop) == steps[stop:]
    state = stream().get_state()
    state["records"] = 11
    with pytest.raises(PositionError, match="place 11 lies inside step 5, which takes the places 10 to 13"):
        stream().set_state(state)


def test_ramped_changes_the_training_batch_alone() -> None:
    dataset = from_records({"id": np.arange(64)}, val={"id": np.arange(100, 108)}, batch=8, loading=HERE)
    small = ramped(dataset, Ramp(4, 4, 16))
    train: Any = small.train(DataPartition())
    assert [len(step) for step in read(train, 6)] == [4, 4, 4, 4, 8, 8]
    assert small.val is not None
    assert read(small.val(DataPartition()), 1) == [list(range(100, 108))]
    with pytest.raises(OptionsError, match="already has the ramp"):
        ramped(small, Ramp(4, 4, 16))
    with pytest.raises(PartitionError, match="4 rows does not divide over 8 processes"):
        small.train(DataPartition(0, 8))


def test_only_record_streams_can_be_ramped() -> None:
    dataset = Dataset(train=lambda partition: iter([{"id": np.arange(8)}]), records=64, batch=8)
    with pytest.raises(OptionsTypeError, match=r"a ramp needs a record stream, .* is a list_iterator"):
        ramped(dataset, Ramp(4, 4, 16)).train(DataPartition())


# Preprocess


class Doubler:
    def __call__(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"x": 2 * record["id"]}

    def method(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"x": 2 * record["id"]}

    @classmethod
    def of_class(cls, record: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"x": 2 * record["id"]}


def scaled(record: Mapping[str, Any], factor: int) -> Mapping[str, Any]:
    return {"x": factor * record["id"]}


@pytest.mark.parametrize(
    "preprocess",
    [
        lambda record: {"x": 2 * record["id"]},
        lambda record, factor=2: {"x": factor * record["id"]},
        lambda record, *, factor=2: {"x": factor * record["id"]},
        lambda *records: {"x": 2 * records[0]["id"]},
        lambda record, **more: {"x": 2 * record["id"]},
        Doubler(),
        Doubler().method,
        Doubler.of_class,
        functools.partial(scaled, factor=2),
        functools.partial(functools.partial(scaled), factor=2),
    ],
)
@WAYS
def test_forms_of_a_preprocess_of_one_argument(preprocess: Any, loading: Loading) -> None:
    with train_stream(Ids(10), batch=4, preprocess=preprocess, loading=loading) as stream:
        batch = next(stream)
        assert batch["x"].tolist() == (2 * stream.ids(0)).tolist()
        assert list(batch) == ["x"]


@pytest.mark.parametrize("preprocess", [dict, dict.copy, operator.itemgetter("inner"), operator.methodcaller("copy")])
def test_builtins_as_preprocess(preprocess: Any) -> None:
    class Nested(Ids):
        def __getitem__(self, index: int) -> Any:
            return {"inner": {"id": index}, "id": index}

    with train_stream(Nested(10), batch=4, preprocess=preprocess, loading=HERE) as stream:
        assert next(stream)["id"].tolist() == stream.ids(0).tolist()
        assert isinstance(stream.get_state()["preprocess"], str)


class Drawing:
    def __call__(self, record: Mapping[str, Any], rng: np.random.Generator) -> Mapping[str, Any]:
        return {"id": record["id"], "u": rng.integers(1 << 62)}


def draw(record: Mapping[str, Any], rng: np.random.Generator | None = None, bits: int = 62) -> Mapping[str, Any]:
    assert rng is not None
    return {"id": record["id"], "u": rng.integers(1 << bits)}


@pytest.mark.parametrize(
    "preprocess",
    [
        lambda record, rng: {"id": record["id"], "u": rng.integers(1 << 62)},
        lambda record, anything, /: {"id": record["id"], "u": anything.integers(1 << 62)},
        Drawing(),
        draw,
        functools.partial(draw, bits=62),
    ],
)
def test_forms_of_a_preprocess_that_draws(preprocess: Any) -> None:
    def pairs(count: int, loading: Loading, source: type[Ids]) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        shares: list[list[Any]] = []
        for index in range(count):
            partition = DataPartition(index, count)
            with train_stream(
                source(7), batch=4, seed=5, partition=partition, preprocess=preprocess, loading=loading
            ) as stream:
                shares.append([next(stream) for _ in range(7)])
        for step in zip(*shares, strict=True):
            for row in range(4 // count):
                found += [(int(batch["id"][row]), int(batch["u"][row])) for batch in step]
        return found

    plain = pairs(1, HERE, Ids)
    assert len({draws for _, draws in plain}) == 28  # 7 records in 4 epochs: each reading has draws of its own
    assert pairs(2, AHEAD, Many) == pairs(4, POOL, Taking) == plain


def test_draws_belong_to_the_place_and_the_seed() -> None:
    def drawn(seed: int, start: int, **options: Any) -> list[int]:
        with train_stream(Ids(100), batch=4, seed=seed, preprocess=draw, loading=AHEAD, **options) as stream:
            state = stream.get_state()
            state["records"] = start
            stream.set_state(state)
            return next(stream)["u"].tolist()

    assert drawn(1, 40) == drawn(1, 40) == drawn(1, 40, shuffle=False)
    assert drawn(1, 40) != drawn(2, 40)
    assert drawn(1, 40) != drawn(1, 140)


@pytest.mark.parametrize(
    ("returned", "kind"), [(None, "NoneType"), (np.zeros(3), "ndarray"), ([("x", 1)], "list"), (3, "int")]
)
@WAYS
def test_a_preprocess_that_returns_no_mapping_is_refused(returned: Any, kind: str, loading: Loading) -> None:
    with (
        train_stream(Ids(10), batch=2, preprocess=lambda record: returned, loading=loading) as stream,
        pytest.raises(SourceError, match=f"preprocess must return a mapping of field name to value, got {kind}; "),
    ):
        next(stream)


def test_another_preprocess_on_resume_warns() -> None:
    with train_stream(Ids(10), batch=2, preprocess=draw, loading=HERE) as stream:
        state = stream.get_state()
    assert state["preprocess"].endswith("test_stream.draw")
    with (
        train_stream(Ids(10), batch=2, preprocess=functools.partial(scaled, factor=1), loading=HERE) as stream,
        pytest.warns(UserWarning, match=r"made with preprocess '.*\.draw', this stream has '.*\.scaled'"),
    ):
        stream.set_state(state)


# Errors


@WAYS
def test_an_error_latches_and_names_step_place_record_and_source(loading: Loading) -> None:
    order = ShuffledOrder(records=30, seed=1)
    place = int(order.places(17, 0, 30)[0])
    failed = place // 4
    error = KeyError("caption")
    source = Failing(30, 17, error)
    with train_stream(source, batch=4, seed=1, loading=loading) as stream:
        read(stream, failed)
        before = stream.get_state()
        for _ in range(3):
            with pytest.raises(KeyError, match="caption") as caught:
                next(stream)
            assert caught.value is error
        assert error.__notes__ == [f"reading record 17 (place {place})", f"in step {failed} of Ids(30)"]
        assert stream.get_state() == before
        assert stream.position.records == 4 * failed
        assert own_threads() == []
    assert any(frame.name == "__getitem__" and frame.path == Path(__file__) for frame in caught.traceback)


@WAYS
def test_after_an_error_the_stream_can_be_moved_on_or_tried_again(loading: Loading) -> None:
    source = Failing(30, 17, OSError("unreadable"))
    with train_stream(source, batch=3, shuffle=False, loading=loading) as stream:
        read(stream, 5)
        with pytest.raises(OSError, match="unreadable"):
            next(stream)
        state = stream.get_state()
        stream.set_state(skip(state, 3))
        assert read(stream, 2) == [[18, 19, 20], [21, 22, 23]]
        stream.set_state(state)
        with pytest.raises(OSError, match="unreadable"):
            next(stream)
        source.bad = None
        with pytest.raises(OSError, match="unreadable"):
            next(stream)  # still latched
        stream.set_state(state)
        assert read(stream, 2) == [[15, 16, 17], [18, 19, 20]]


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, GeneratorExit])
@WAYS
def test_an_error_that_looks_like_the_end_does_not_end_the_stream(kind: type[BaseException], loading: Loading) -> None:
    with train_stream(Failing(30, 17, kind("x")), batch=3, shuffle=False, loading=loading) as stream:
        rows: list[Any] = []
        with pytest.raises(SourceError, match=f"the source or preprocess raised {kind.__name__} while") as caught:
            rows.extend(batch["id"].tolist() for batch in stream)
        assert rows == [[3 * step, 3 * step + 1, 3 * step + 2] for step in range(5)]
        assert caught.value.__notes__ == ["reading record 17 (place 17)", "in step 5 of Ids(30)"]
        assert isinstance(caught.value.__cause__, kind)
        with pytest.raises(SourceError) as again:
            next(stream)
        assert again.value is caught.value


@WAYS
def test_closed_streams_inside_a_source_are_errors_like_any_other(loading: Loading) -> None:
    inner = train_stream(Ids(5), batch=1)
    inner.close()

    def preprocess(record: Any) -> Any:
        return {**record, **next(inner)}

    with train_stream(Ids(10), batch=2, preprocess=preprocess, loading=loading) as stream:
        errors: list[BaseException] = []
        for _ in range(2):
            with pytest.raises(StreamClosedError, match="this stream was closed; make a new one") as caught:
                next(stream)
            errors.append(caught.value)
        assert errors[0] is errors[1]
        assert errors[0].__notes__[-1] == "in step 0 of Ids(10)"


@WAYS
def test_an_error_of_take_names_the_records(loading: Loading) -> None:
    class Broken(Taking):
        def take(self, indices: Any) -> Any:
            raise OSError("no such block")

    with train_stream(Broken(30), batch=10, shuffle=False, loading=loading) as stream:
        with pytest.raises(OSError, match="no such block") as caught:
            next(stream)
        note = "reading 10 records (0, 1, 2, 3, 4, 5, 6, 7, ...) of places 0 to 9"
        assert caught.value.__notes__ == [note, "in step 0 of Ids(30)"]


@pytest.mark.parametrize("preprocess", [None, dict])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:-1], r"Ids\(30\)\.__getitems__ was asked for 4 records and returned 3"),
        (lambda rows: rows * 2, "was asked for 4 records and returned 8"),
        (lambda rows: [], "was asked for 4 records and returned 0"),
        (iter, "must return a list of records, got list_iterator"),
        (lambda rows: {"id": np.arange(4)}, "must return a list of records, got dict"),
        (lambda rows: dict.fromkeys(range(4)), "must return a list of records, got dict"),
        (lambda rows: None, "must return a list of records, got NoneType"),
    ],
)
def test_getitems_that_returns_something_else_is_refused(
    change: Callable[[Any], Any], message: str, preprocess: Any
) -> None:
    with (
        train_stream(Many(30, change), batch=4, preprocess=preprocess, loading=HERE) as stream,
        pytest.raises(SourceError, match=message),
    ):
        next(stream)


def test_an_error_of_getitems_names_the_records() -> None:
    def fail(rows: Any) -> Any:
        raise OSError("gone")

    with train_stream(Many(30, fail), batch=4, shuffle=False, loading=HERE) as stream:
        with pytest.raises(OSError, match="gone") as caught:
            next(stream)
        assert caught.value.__notes__ == ["reading 4 records (0, 1, 2, 3) of places 0 to 3", "in step 0 of Ids(30)"]


@WAYS
def test_records_that_do_not_fit_are_named(loading: Loading) -> None:
    def ragged(record: Any) -> Any:
        return {"x": np.zeros(2 + (record["id"] == 5))}

    with train_stream(Ids(30), batch=4, shuffle=False, preprocess=ragged, loading=loading) as stream:
        next(stream)
        with pytest.raises(ValueError, match=r"\(2,\) in record 4 \(place 4\) and \(3,\) in record 5 \(place 5\)") as e:
            next(stream)
        assert e.value.__notes__ == ["in step 1 of Ids(30)"]


# What a stream opens, and what it hands out


class Shelf(Ids):
    """Opens readers, and keeps count of them."""

    def __init__(self, records: int) -> None:
        super().__init__(records)
        self.events: list[str] = []
        self.close_error: Exception | None = None

    def open(self) -> "Reader":
        self.events.append("open")
        return Reader(self)

    def close(self) -> None:
        self.events.append("close of the source itself")


class Reader(Ids):
    def __init__(self, shelf: Shelf) -> None:
        super().__init__(shelf.records)
        self.shelf = shelf

    def close(self) -> None:
        self.shelf.events.append("close")
        if self.shelf.close_error is not None:
            raise self.shelf.close_error


@WAYS
def test_a_stream_opens_its_own_reader_and_closes_only_that(loading: Loading) -> None:
    shelf = Shelf(30)
    first = train_stream(shelf, batch=4, loading=loading)
    second = train_stream(shelf, batch=4, loading=loading)
    assert shelf.events == []
    read(first, 3)
    read(second, 3)
    assert shelf.events == ["open", "open"]
    first.close()
    assert shelf.events == ["open", "open", "close"]
    first.close()
    read(second, 3)
    second.set_state(second.get_state())
    assert shelf.events == ["open", "open", "close", "close"]
    read(second, 1)
    second.close()
    assert shelf.events == ["open", "open", "close", "close", "open", "close"]
    assert shelf.reads == []


@WAYS
def test_a_reader_is_closed_after_an_error(loading: Loading) -> None:
    shelf = Shelf(30)

    def bad(record: Any) -> Any:
        raise OSError("bad")

    stream = train_stream(shelf, batch=4, preprocess=bad, loading=loading)
    with pytest.raises(OSError, match="bad"):
        next(stream)
    assert shelf.events == ["open", "close"]
    stream.close()
    assert shelf.events == ["open", "close"]


@WAYS
def test_a_reader_that_fails_to_close_is_heard(loading: Loading) -> None:
    shelf = Shelf(30)
    shelf.close_error = OSError("flush failed")
    stream = train_stream(shelf, batch=4, loading=loading)
    next(stream)
    with pytest.raises(OSError, match="flush failed"):
        stream.close()
    stream.close()

    def bad(record: Any) -> Any:
        raise KeyError("first")

    stream = train_stream(shelf, batch=4, preprocess=bad, loading=loading)
    with pytest.raises(KeyError, match="first") as caught:
        next(stream)
    assert caught.value.__notes__[-1] == "closing the source then failed too: OSError('flush failed')"
    stream.close()


def test_a_reader_that_cannot_be_closed_is_refused() -> None:
    class Odd(Ids):
        def open(self) -> Any:
            return [{"id": 0}]

    with (
        train_stream(Odd(5), batch=1, loading=HERE) as stream,
        pytest.raises(SourceError, match=r"Ids\(5\)\.open\(\) must return a reader with a close\(\) method.*got list"),
    ):
        next(stream)


@WAYS
def test_a_source_without_open_is_never_closed(loading: Loading) -> None:
    class Plain(Ids):
        def close(self) -> None:
            raise AssertionError("a stream closes only what it opened")

    with train_stream(Plain(10), batch=2, loading=loading) as stream:
        next(stream)


@pytest.mark.parametrize("way", ["take", "getitems", "getitem", "preprocess"])
@WAYS
def test_batches_are_the_receivers_own(way: str, loading: Loading, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(40, dtype=np.int32).reshape(10, 4))
    on_disk = path.read_bytes()
    stored = np.load(path, mmap_mode="r")

    class Stored:
        def __len__(self) -> int:
            return len(stored)

        def __getitem__(self, index: int) -> Any:
            return {"x": stored[index], "n": {"y": stored[index, ::2]}}

    class Takes(Stored):
        def take(self, indices: Any) -> Any:
            assert len(indices) == len(stored)  # views, against the advice: nothing may reach the source
            return {"x": stored[::-1], "n": {"y": stored[:, ::2]}}

    class Items(Stored):
        def __getitems__(self, indices: Any) -> Any:
            return [self[index] for index in indices]

    source: Any = {"take": Takes, "getitems": Items}.get(way, Stored)()
    preprocess = (lambda record: record) if way == "preprocess" else None
    with train_stream(source, batch=10, shuffle=False, preprocess=preprocess, loading=loading) as stream:
        first, second = next(stream), next(stream)
        for batch in (first, second):
            for array in (batch["x"], batch["n"]["y"]):
                assert type(array) is np.ndarray
                assert array.flags.writeable
                assert array.flags.c_contiguous
                assert array.flags.owndata
                assert not np.may_share_memory(array, stored)
                array += 1
        assert first["x"].tolist() == second["x"].tolist()
        assert not np.may_share_memory(first["x"], second["x"])
    assert path.read_bytes() == on_disk
    stored._mmap.close()  # pyright: ignore[reportAttributeAccessIssue]


# The end of a stream


@WAYS
def test_a_closed_stream_refuses_by_name(loading: Loading) -> None:
    stream = train_stream(Ids(10), batch=2, loading=loading)
    with stream as entered:
        assert entered is stream
        next(stream)
        state = stream.get_state()
    for _ in range(2):
        with pytest.raises(StreamClosedError, match="this stream was closed; make a new one from the dataset"):
            next(stream)
        stream.close()
    with pytest.raises(StreamClosedError, match="this stream was closed"):
        stream.set_state(state)
    assert stream.get_state() == state
    assert own_threads() == []


def test_a_stream_that_was_never_read_closes() -> None:
    source = Shelf(10)
    train_stream(source, batch=2).close()
    with train_stream(source, batch=2):
        pass
    assert source.events == []


@WAYS
def test_leaving_the_block_by_an_error_closes_too(loading: Loading) -> None:
    shelf = Shelf(10)
    with pytest.raises(ZeroDivisionError), train_stream(shelf, batch=2, loading=loading) as stream:
        int(next(stream)["id"][0]) // 0
    assert shelf.events == ["open", "close"]


def test_a_fresh_stream_of_a_schedule_leaves_the_first_alone() -> None:
    with train_stream(Ids(64), batch=8, loading=HERE) as stream:
        next(stream)
        with stream.with_schedule(Ramp(4, 4, 16)) as other:
            assert [len(step) for step in read(other, 2)] == [4, 4]
        assert len(next(stream)["id"]) == 8
        assert stream.position.records == 16
