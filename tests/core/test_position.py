"""Positions: what is saved, and how a run goes on: on any process count, past a skip, with another batch."""

import copy
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from dew.data.dataset import DataPartition
from dew.data.errors import OptionsError, OptionsTypeError, PositionError
from dew.data.errors import PositionMismatchError as MismatchError
from dew.data.loading import Loading
from dew.data.order import DRAWS_VERSION, ORDER_VERSION, SequentialOrder, ShuffledOrder
from dew.data.position import RecordPosition, Segment, ShardPosition, State, rebatch, record_position, skip
from dew.data.schedule import FixedBatch, Ramp
from dew.data.stream import RecordStream, train_stream

GOLDEN = Path(__file__).parents[1] / "golden" / "position-v1.json"
HERE = Loading(workers=0, threads=1, read_buffer=0)
RAMP = Ramp(start=2, increment=2, samples=24)  # steps start at 0, 2, 4, 6, 8, 12, 16, 22, 28, 36, ...


@attrs.frozen
class Numbers:
    """Record i is the number i."""

    records: int = attrs.field(default=100, repr=False)
    name: str = "numbers"
    content: str | None = attrs.field(default="a1", repr=False)
    parts: Mapping[str, Any] = attrs.field(factory=dict, repr=False)

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index}

    def fingerprint(self) -> str | None:
        return self.content

    def identity(self) -> Mapping[str, Any]:
        return self.parts


def stream(source: Numbers = Numbers(), *, batch: int = 8, **options: Any) -> RecordStream:
    return train_stream(source, batch=batch, loading=HERE, **options)


def streams(count: int, *, batch: int, state: State | None = None, **options: Any) -> list[RecordStream]:
    """All shares of a run."""
    made = [stream(batch=batch, partition=DataPartition(index, count), **options) for index in range(count)]
    for share in made:
        if state is not None:
            share.set_state(state)
    return made


def steps(run: list[RecordStream], count: int) -> list[list[int]]:
    """The global batches of the next steps, put together from all shares."""
    found: list[list[int]] = []
    for _ in range(count):
        shares = [next(share)["id"].tolist() for share in run]
        found.append([record for row in zip(*shares, strict=True) for record in row])
    return found


def one_state(run: list[RecordStream]) -> State:
    """The position that every share saves, through JSON."""
    states = [json.dumps(share.get_state()) for share in run]
    assert len(set(states)) == 1
    return json.loads(states[0])


def order_of(seed: int = 0, records: int = 100) -> Callable[[int, int], list[int]]:
    order = ShuffledOrder(records=records, seed=seed)
    return lambda start, stop: order.at(np.arange(start, stop)).tolist()


def fresh_position(**changes: Any) -> RecordPosition:
    values: dict[str, Any] = {
        "records": 0,
        "order": {},
        "segments": (Segment(step=0, place=0, schedule=FixedBatch(8)),),
    }
    return RecordPosition(**values | changes)


# What is saved


def test_a_position_is_json_and_says_what_must_match() -> None:
    run = stream(Numbers(parts={"tokenizer": "t1"}), seed=5)
    next(run)
    state = run.get_state()
    assert json.loads(json.dumps(state)) == state
    assert state == {
        "kind": "records",
        "records": 8,
        "order": {
            "version": ORDER_VERSION,
            "kind": "shuffled",
            "records": 100,
            "seed": 5,
            "salt": 0,
            "draws": DRAWS_VERSION,
            "source": "Numbers(name='numbers')",
            "fingerprint": "a1",
            "tokenizer": "t1",
        },
        "segments": [{"step": 0, "place": 0, "batch": 8}],
        "preprocess": None,
        "made_by": {"numpy": np.__version__},
        "accepted": [],
    }


def test_a_returned_state_is_the_callers_own() -> None:
    run = stream()
    state = run.get_state()
    kept = copy.deepcopy(state)
    state["order"]["seed"] = 9
    state["segments"].clear()
    state["made_by"]["numpy"] = "0"
    state["accepted"].append({"part": "all"})
    assert run.get_state() == kept


def test_every_share_saves_the_same_position() -> None:
    run = streams(4, batch=8)
    for step in range(5):
        assert one_state(run)["records"] == 8 * step
        steps(run, 1)


def test_a_fresh_stream_of_any_count_goes_on() -> None:
    expected = steps(streams(1, batch=24), 12)
    for before, after in ((1, 2), (2, 3), (3, 8), (24, 4)):
        run = streams(before, batch=24)
        assert steps(run, 5) == expected[:5]
        assert steps(streams(after, batch=24, state=one_state(run)), 7) == expected[5:]


def test_set_state_of_get_state_changes_nothing() -> None:
    run = stream(schedule=RAMP)
    expected = steps([stream(schedule=RAMP)], 12)
    for step in range(12):
        state = run.get_state()
        run.set_state(state)
        assert run.get_state() == state
        assert next(run)["id"].tolist() == expected[step]
        assert run.get_state() != state


def test_a_stream_goes_back_and_forth() -> None:
    run = stream()
    states = []
    found = []
    for _ in range(5):
        states.append(run.get_state())
        found += steps([run], 1)
    for step in (3, 0, 4, 2, 1):
        run.set_state(states[step])
        assert steps([run], 1) == [found[step]]


@pytest.mark.parametrize("records", [7, 10**6, 10**12, (1 << 62) - 10])
@pytest.mark.parametrize("place", [10**12, 1 << 62])
def test_far_places(records: int, place: int) -> None:
    """Opening and going on there reads nothing but the next step."""
    run = stream(Numbers(records), batch=6, shuffle=records != 7)
    start = place // 6 * 6
    run.set_state(run.get_state() | {"records": start})
    expected = run.order.at(np.arange(start, start + 12)).tolist()
    assert run.ids(start // 6).tolist() == expected[:6]
    assert steps([run], 2) == [expected[:6], expected[6:]]
    assert run.position.records == start + 12
    assert run.position.step_of(start + 7) == start // 6 + 1


def test_places_that_int64_does_not_hold_are_refused() -> None:
    run = stream()
    expected = r"a position is at most 2\^63 - 2\^40, since places are int64, got 9223372036854775808"
    with pytest.raises(PositionError, match=expected):
        run.set_state(run.get_state() | {"records": 1 << 63})
    with pytest.raises(PositionError, match=expected):
        skip(run.get_state(), 1 << 63)


# Segments


def test_skip_passes_over_records_and_nothing_else() -> None:
    at = order_of()
    run = streams(2, batch=8)
    assert steps(run, 3) == [at(0, 8), at(8, 16), at(16, 24)]
    state = skip(one_state(run), 13)
    assert state["records"] == 37
    assert state["segments"] == [{"step": 0, "place": 0, "batch": 8}, {"step": 3, "place": 37, "batch": 8}]
    run = streams(4, batch=8, state=state)
    assert steps(run, 2) == [at(37, 45), at(45, 53)]
    position = run[0].position
    assert position.step == 5
    assert [position.span(step) for step in (2, 3, 4)] == [(16, 24), (37, 45), (45, 53)]
    assert [position.step_of(place) for place in (0, 23, 24, 36, 37, 60)] == [0, 2, None, None, 3, 5]
    assert run[0].ids(1).tolist() == at(8, 16)
    assert run[0].ids(3).tolist() == at(37, 45)


def test_skips_at_one_step_add_up() -> None:
    run = stream()
    next(run)
    twice = skip(skip(run.get_state(), 5), 6)
    assert twice == skip(run.get_state(), 11)
    first = skip(stream().get_state(), 3)
    assert first["segments"] == [{"step": 0, "place": 3, "batch": 8}]
    run.set_state(first)
    assert steps([run], 1) == [order_of()(3, 11)]
    assert run.position.step_of(2) is None


def test_rebatch_loses_and_repeats_nothing() -> None:
    """Batch 8 on 4 processes, then 6 on 3: five steps of 8 and ten of 6 are one epoch of 100 records."""
    at = order_of()
    run = streams(4, batch=8)
    before = steps(run, 5)
    state = rebatch(one_state(run), 6)
    assert state["segments"] == [{"step": 0, "place": 0, "batch": 8}, {"step": 5, "place": 40, "batch": 6}]
    assert state["records"] == 40
    run = streams(3, batch=6, state=state)
    after = steps(run, 10)
    assert [record for step in before + after for record in step] == at(0, 100)
    assert steps(run, 1) == [at(100, 106)]
    assert [run[2].ids(step).tolist() for step in range(15)] == before + after
    assert [run[1].position.span(step) for step in (4, 5, 14)] == [(32, 40), (40, 46), (94, 100)]
    assert [run[0].position.step_of(place) for place in (39, 40, 45, 46)] == [4, 5, 5, 6]


def test_rebatch_back_and_forth_keeps_every_segment() -> None:
    at = order_of()
    state = one_state(streams(1, batch=8))
    found: list[int] = []
    for batch in (8, 6, 8, 20):
        run = streams(2, batch=batch, state=rebatch(state, batch))
        found += [record for step in steps(run, 2) for record in step]
        state = one_state(run)
    assert found == at(0, 2 * (8 + 6 + 8 + 20))
    assert [(entry["step"], entry["batch"]) for entry in state["segments"]] == [(0, 8), (2, 6), (4, 8), (6, 20)]


def test_rebatch_at_once_replaces_what_was_never_used() -> None:
    run = stream()
    next(run)
    assert rebatch(rebatch(run.get_state(), 6), 4) == rebatch(run.get_state(), 4)
    skipped = rebatch(skip(run.get_state(), 3), 6)
    assert skipped["segments"][1:] == [{"step": 1, "place": 11, "batch": 6}]


def test_a_skip_inside_a_ramp_goes_on_with_the_ramp() -> None:
    at = order_of()
    run = streams(2, batch=8, schedule=RAMP)
    assert [len(step) for step in steps(run, 5)] == [2, 2, 2, 2, 4]
    state = skip(one_state(run), 5)
    assert state["segments"][1] == {
        "step": 5,
        "place": 17,
        "schedule": {"start": 2, "increment": 2, "samples": 24, "batch": 8, "done": 12},
    }
    run = streams(1, batch=8, schedule=RAMP, state=state)
    assert steps(run, 4) == [at(17, 21), at(21, 27), at(27, 33), at(33, 41)]
    assert run[0].position.step == 9


def test_rebatch_ends_a_ramp() -> None:
    run = stream(schedule=RAMP)
    for _ in range(5):
        next(run)
    state = rebatch(run.get_state(), 8)
    plain = stream()
    plain.set_state(state)
    assert steps([plain], 1) == [order_of()(12, 20)]
    with pytest.raises(MismatchError, match="this stream has 8 reached from 2 by 2 over 24 records"):
        run.set_state(state)


@pytest.mark.parametrize("value", [0, -8])
def test_skips_and_batches_below_one_are_refused(value: int) -> None:
    state = stream().get_state()
    with pytest.raises(OptionsError, match=f"records must be at least 1, got {value}"):
        skip(state, value)
    with pytest.raises(OptionsError, match=f"batch must be at least 1, got {value}"):
        rebatch(state, value)
    for bad in (True, 8.0, "8"):
        with pytest.raises(OptionsTypeError, match="records must be an int"):
            skip(state, bad)  # type: ignore[arg-type]
        with pytest.raises(OptionsTypeError, match="batch must be an int"):
            rebatch(state, bad)  # type: ignore[arg-type]


def test_skip_and_rebatch_take_record_positions_only() -> None:
    shard = ShardPosition(0, 2, {"offset": 3}).to_json()
    for change in (skip, rebatch):
        with pytest.raises(PositionError, match="a record stream cannot continue from the position of share 0 of 2"):
            change(shard, 8)
        with pytest.raises(PositionError, match="a position has the kind 'records' or 'shard', got None"):
            change({}, 8)


def test_segments_go_forward() -> None:
    first = Segment(step=0, place=0, schedule=FixedBatch(8))
    for step, place in ((0, 8), (2, 15), (2, 0)):
        with pytest.raises(PositionError, match="segments of a position must go forward"):
            fresh_position(records=50, segments=(first, Segment(step=step, place=place, schedule=FixedBatch(8))))
    with pytest.raises(PositionError, match="a position needs at least one segment"):
        fresh_position(segments=())
    with pytest.raises(PositionError, match="the position 7 lies before its last segment, which starts at 9"):
        fresh_position(records=7, segments=(Segment(step=0, place=9, schedule=FixedBatch(8)),))


def test_steps_before_the_run_do_not_exist() -> None:
    position = fresh_position(records=9, segments=(Segment(step=4, place=9, schedule=FixedBatch(8)),))
    with pytest.raises(OptionsError, match="step 3 does not exist: this run starts at step 4"):
        position.span(3)
    assert position.step_of(8) is None
    assert position.at_step(6).records == 25
    for ramped in (position, attrs.evolve(position, segments=(Segment(step=4, place=9, schedule=RAMP.schedule(8)),))):
        with pytest.raises(OptionsError, match="step 3 lies before the last segment of this run, which starts at 4"):
            ramped.at_step(3)


# Borders of steps


def test_a_restore_inside_a_step_is_refused_unless_by_a_segment() -> None:
    run = stream(schedule=RAMP)
    state = run.get_state()
    expected = "place 14 lies inside step 5, which takes the places 12 to 15; .* at a border of a step: 12 or 16"
    with pytest.raises(PositionError, match=expected):
        run.set_state(state | {"records": 14})
    ramp = {"start": 2, "increment": 2, "samples": 24, "batch": 8, "done": 12}
    segments = [*state["segments"], {"step": 5, "place": 14, "schedule": ramp}]
    run.set_state(state | {"records": 14, "segments": segments})
    assert steps([run], 2) == [order_of()(14, 18), order_of()(18, 24)]


def test_borders_are_named_as_places_after_a_skip() -> None:
    run = stream()
    next(run)
    state = skip(run.get_state(), 3)
    with pytest.raises(PositionError, match="place 13 lies inside step 1, which takes the places 11 to 18"):
        run.set_state(state | {"records": 13})
    run.set_state(state | {"records": 19})
    assert run.position.step == 2


def test_a_refused_state_changes_nothing() -> None:
    run = stream()
    expected = steps([stream()], 3)
    found = steps([run], 1)
    state = run.get_state()
    for bad in ({}, state | {"records": 13}, rebatch(state, 6), state | {"order": {}}):
        with pytest.raises(PositionError):
            run.set_state(bad)
        assert run.get_state() == state
    assert found + steps([run], 2) == expected


# Golden positions: what version 1 saved stays readable, or is refused by name


def golden_runs() -> dict[str, State]:
    """One saved position of each kind."""
    plain = stream(seed=7)
    steps([plain], 3)
    ramp = stream(seed=7, schedule=RAMP)
    steps([ramp], 6)
    runs = {
        "fresh": stream(seed=7).get_state(),
        "plain": plain.get_state(),
        "sequential": stream(seed=7, shuffle=False).get_state(),
        "ramp": ramp.get_state(),
        "skipped": skip(plain.get_state(), 13),
        "skipped in a ramp": skip(ramp.get_state(), 5),
        "rebatched": rebatch(plain.get_state(), 6),
        "far": plain.get_state() | {"records": 10**12},
    }
    moved = stream(Numbers(content="b2", parts={"tokenizer": "t1"}), seed=7)
    moved.set_state(plain.get_state(), accept={"fingerprint", "tokenizer"})
    runs["accepted"] = moved.get_state()
    return {name: state | {"made_by": {"numpy": "2.4.6"}} for name, state in runs.items()}


def golden_stream(state: State) -> RecordStream:
    """The stream that goes on from a golden position."""
    order = state["order"]
    last = state["segments"][-1]
    parts = {"tokenizer": order["tokenizer"]} if "tokenizer" in order else {}
    source = Numbers(content=order["fingerprint"], parts=parts)
    ramp = RAMP if "schedule" in last else None
    batch = 8 if ramp else last["batch"]
    run = stream(source, batch=batch, seed=7, schedule=ramp, shuffle=order["kind"] == "shuffled")
    run.set_state(state | {"made_by": {"numpy": np.__version__}})
    return run


def test_golden_positions() -> None:
    made: dict[str, Any] = {
        name: {"state": state, "next_steps": steps([golden_stream(state)], 3)} for name, state in golden_runs().items()
    }
    if os.environ.get("DEW_UPDATE_GOLDEN") == "1" and not GOLDEN.exists():
        text = json.dumps(made, indent=1)
        GOLDEN.write_text(re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n")
    assert made == json.loads(GOLDEN.read_text())


def test_golden_orders_agree_with_the_order() -> None:
    for name, saved in json.loads(GOLDEN.read_text()).items():
        records = record_position(saved["state"]).records
        made = SequentialOrder(records=100) if name == "sequential" else ShuffledOrder(records=100, seed=7)
        found = [record for step in saved["next_steps"] for record in step]
        assert found == made.at(np.arange(records, records + len(found))).tolist()
