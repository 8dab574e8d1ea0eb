"""Positions against a slow model: a run as the plain list of its steps, with skips, other batches and ramps."""

import copy
import json
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dew.data.dataset import DataPartition
from dew.data.errors import DewWarning, OptionsError, PositionError, PositionMismatchError
from dew.data.loading import Loading
from dew.data.order import ShuffledOrder
from dew.data.position import (
    RecordPosition,
    Segment,
    ShardPosition,
    State,
    position_from_json,
    rebatch,
    record_position,
    skip,
)
from dew.data.schedule import FixedBatch, Ramp, Schedule
from dew.data.stream import RecordStream, train_stream

HERE = Loading(workers=0, threads=1, read_buffer=0)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
batches = st.integers(1, 24)


@st.composite
def ramps(draw: Any) -> tuple[Ramp, int]:
    start, increment = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    return Ramp(start, increment, draw(st.integers(1, 120))), start + draw(st.integers(1, 4)) * increment


@st.composite
def schedules(draw: Any) -> Schedule:
    if draw(st.booleans()):
        return FixedBatch(draw(batches))
    ramp, batch = draw(ramps())
    return ramp.schedule(batch)


changes = st.lists(
    st.tuples(st.just("run"), st.integers(1, 6))
    | st.tuples(st.just("skip"), st.integers(1, 40))
    | st.tuples(st.just("rebatch"), batches),
    max_size=8,
)


@attrs.define
class Model:
    """A run, one step at a time."""

    schedule: Schedule
    place: int = 0
    taken: int = 0  # records since the schedule began
    spans: list[tuple[int, int]] = attrs.field(factory=list[tuple[int, int]])

    def run(self) -> None:
        size = next(
            stop - start for start, stop in map(self.schedule.span, range(self.taken + 1)) if start == self.taken
        )
        self.spans.append((self.place, self.place + size))
        self.place += size
        self.taken += size

    def change(self, kind: str, value: int) -> None:
        if kind == "run":
            for _ in range(value):
                self.run()
        elif kind == "skip":
            self.place += value
        else:
            self.schedule, self.taken = FixedBatch(value), 0


def changed(state: State, kind: str, value: int) -> State:
    """The same change by position alone; every state passes through JSON."""
    if kind == "skip":
        state = skip(state, value)
    elif kind == "rebatch":
        state = rebatch(state, value)
    else:
        position = record_position(state)
        state = position.at_step(position.step + value).to_json()
    return json.loads(json.dumps(state))


def fresh(schedule: Schedule) -> State:
    return RecordPosition(records=0, order={}, segments=(Segment(step=0, place=0, schedule=schedule),)).to_json()


@given(schedules(), changes)
def test_a_position_is_the_run_that_led_to_it(schedule: Schedule, made: list[tuple[str, int]]) -> None:
    model, state = Model(schedule), fresh(schedule)
    for kind, value in made:
        model.change(kind, value)
        state = changed(state, kind, value)
        position = record_position(state)
        assert position.records == model.place
        assert position.step == len(model.spans)
    position = record_position(state)
    past = len(model.spans)
    for _ in range(5):
        model.run()
    assert [position.span(step) for step in range(past + 5)] == model.spans
    steps = {place: step for step, (start, stop) in enumerate(model.spans) for place in range(start, stop)}
    assert [position.step_of(place) for place in range(model.place)] == [steps.get(n) for n in range(model.place)]


@given(schedules(), changes)
def test_json_round_trip(schedule: Schedule, made: list[tuple[str, int]]) -> None:
    state = fresh(schedule)
    for kind, value in made:
        state = changed(state, kind, value)
    position = position_from_json(state)
    assert position_from_json(json.loads(json.dumps(position.to_json()))) == position
    assert position.to_json() == state


@given(st.dictionaries(st.text(), json_values, max_size=5), st.none() | st.text(), st.lists(json_values, max_size=3))
def test_whatever_json_an_order_states_is_kept(
    order: dict[str, Any], preprocess: str | None, values: list[Any]
) -> None:
    position = RecordPosition(
        records=8,
        order=order,
        segments=(Segment(step=0, place=0, schedule=FixedBatch(8)),),
        preprocess=preprocess,
        made_by={"numpy": "2.4"},
        accepted=tuple({"part": "seed", "saved": value, "current": None} for value in values),
    )
    assert position_from_json(json.loads(json.dumps(position.to_json()))) == position


@given(st.integers(0, 7), st.integers(1, 8), json_values)
def test_shard_round_trip(index: int, count: int, state: Any) -> None:
    assume(index < count)
    position = ShardPosition(index, count, state)
    assert position_from_json(json.loads(json.dumps(position.to_json()))) == position


# Damage: any part of a position replaced by any JSON value, or lost


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in nested JSON."""
    found = [at]
    if isinstance(value, dict):
        found += [path for key, inner in value.items() for path in paths(inner, (*at, key))]
    elif isinstance(value, list):
        found += [path for number, inner in enumerate(value) for path in paths(inner, (*at, number))]
    return found


@st.composite
def damaged(draw: Any) -> Any:
    schedule = draw(schedules())
    record = changed(changed(fresh(schedule), "run", 3), "skip", 5) | {"accepted": [{"part": "seed"}]}
    state = draw(st.sampled_from([record, ShardPosition(0, 2, {"offset": 3}).to_json()]))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([path for path in paths(state) if path]))
        inner = state = copy.deepcopy(state)
        for part in path[:-1]:
            inner = inner[part]
        if draw(st.booleans()):
            del inner[path[-1]]
        else:
            inner[path[-1]] = draw(json_values | st.integers(-2, 40) | st.just(1 << 80))
        assume(len(paths(state)) > 1)
    return state


@given(damaged() | json_values)
def test_damage_is_a_position_error_and_nothing_else(state: Any) -> None:
    """Or it is a position all the same, and then it is read as it is written."""
    try:
        position = position_from_json(state)
    except PositionError:
        return
    again = position.to_json()
    assert position_from_json(again) == position
    if isinstance(position, RecordPosition):
        start, stop = position.span(position.step)
        assert start == position.records < stop


# Real streams


def shares(count: int, batch: int, schedule: Schedule | Ramp | None, state: State | None) -> list[RecordStream]:
    made: list[RecordStream] = []
    for index in range(count):
        source = [{"id": record} for record in range(60)]
        partition = DataPartition(index, count)
        made.append(train_stream(source, batch=batch, seed=3, partition=partition, schedule=schedule, loading=HERE))
        if state is not None:
            made[-1].set_state(state)
    return made


def global_step(run: list[RecordStream]) -> list[int]:
    rows = zip(*(next(share)["id"].tolist() for share in run), strict=True)
    return [record for row in rows for record in row]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(0, 4), st.integers(0, 30)), max_size=5))
def test_streams_read_the_order_across_any_changes(made: list[tuple[int, int, int, int]]) -> None:
    """Process counts, batches and skips change at will; what is read is the order without what was skipped."""
    order = ShuffledOrder(records=60, seed=3)
    state, place = None, 0
    for count, per_share, ran, skipped in made:
        batch = count * per_share
        if state is not None:
            state = rebatch(skip(state, skipped) if skipped else state, batch)
            place += skipped
        run = shares(count, batch, None, state)
        for _ in range(ran):
            assert global_step(run) == order.at(np.arange(place, place + batch)).tolist()
            place += batch
        states = [json.dumps(share.get_state()) for share in run]
        assert len(set(states)) == 1
        state = json.loads(states[0])
        assert state["records"] == place


@given(ramps(), st.integers(0, 12), st.integers(0, 12))
def test_a_ramp_is_resumed_anywhere(made: tuple[Ramp, int], before: int, after: int) -> None:
    ramp, batch = made
    whole = shares(1, batch, ramp, None)
    for _ in range(before):
        next(whole[0])
    resumed = shares(1, batch, ramp, json.loads(json.dumps(whole[0].get_state())))
    for _ in range(after):
        assert global_step(resumed) == global_step(whole)
    assert resumed[0].get_state() == whole[0].get_state()


@given(schedules(), st.integers(0, 8), st.integers(0, 8))
def test_set_state_of_get_state_is_neutral(schedule: Schedule, before: int, after: int) -> None:
    plain, restored = shares(1, schedule.batch, schedule, None), shares(1, schedule.batch, schedule, None)
    for _ in range(before):
        assert global_step(restored) == global_step(plain)
    restored[0].set_state(restored[0].get_state())
    assert restored[0].get_state() == plain[0].get_state()
    for _ in range(after):
        assert global_step(restored) == global_step(plain)


# What must match

parts = st.dictionaries(
    st.sampled_from(["source", "fingerprint", "records", "seed", "draws", "tokenizer", "plan"]), json_values, min_size=1
)


def position(order: dict[str, Any]) -> RecordPosition:
    whole = {"version": 1, "kind": "shuffled", **order}
    return RecordPosition(
        records=0, order=whole, segments=(Segment(step=0, place=0, schedule=FixedBatch(8)),), made_by={"numpy": "1"}
    )


@given(parts, parts, st.sets(st.sampled_from(["source", "fingerprint", "records", "seed", "draws", "tokenizer"])))
def test_every_difference_is_refused_by_name_or_remembered(
    saved: dict[str, Any], current: dict[str, Any], accept: set[str]
) -> None:
    accept &= {*saved, *current}
    differing = {part for part in {*saved, *current} if saved.get(part, "(absent)") != current.get(part, "(absent)")}
    if differing <= accept:
        resumed = position(saved).resumed_by(position(current), accept)
        assert {entry["part"] for entry in resumed.accepted} == differing
        assert resumed.order == position(current).order
        for entry in resumed.accepted:
            assert entry["saved"] == saved.get(entry["part"], "(absent)")
            assert entry["current"] == current.get(entry["part"], "(absent)")
        return
    with pytest.raises(PositionMismatchError) as found:
        position(saved).resumed_by(position(current), accept)
    part = found.value.part
    assert part in differing - accept
    assert found.value.saved == saved.get(part, "(absent)")
    assert found.value.current == current.get(part, "(absent)")
    for said in (f"another {part}:", repr(found.value.saved), repr(found.value.current), f"accept={{{part!r}}}"):
        assert said in str(found.value)


@given(parts, st.text())
def test_unknown_parts_are_never_accepted(order: dict[str, Any], part: str) -> None:
    assume(part not in order)
    with pytest.raises(OptionsError, match="cannot be accepted; parts that can be:"):
        position(order).resumed_by(position(order), {part})


@given(parts, st.text(), st.text())
def test_versions_of_libraries_only_warn(order: dict[str, Any], saved: str, current: str) -> None:
    old = attrs.evolve(position(order), made_by={"pillow": saved})
    new = attrs.evolve(position(order), made_by={"pillow": current})
    if saved == current:
        old.resumed_by(new)
        return
    with pytest.warns(DewWarning, match="the saved position was made with pillow"):
        assert old.resumed_by(new).made_by == {"pillow": current}
