"""Schedules: step -> span of records, in closed form, against loops that take one step at a time."""

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dew.data.errors import OptionsError, OptionsTypeError, PositionError
from dew.data.schedule import FixedBatch, Ramp, RampedBatch, Schedule, WholeRamp, schedule_from_json, whole_steps


def megatron_batch(ramp: Ramp, batch: int, consumed: int) -> int:
    """The batch after `consumed` records, as Megatron-LM computes it at every step, with exact division."""
    increments = (batch - ramp.start) // ramp.increment
    if not increments or consumed >= ramp.samples:
        return batch
    return ramp.start + consumed * increments // ramp.samples * ramp.increment


def loop(ramp: Ramp, batch: int, steps: int) -> list[tuple[int, int]]:
    """The spans of the first steps, one after the other."""
    spans = [(0, megatron_batch(ramp, batch, 0))]
    while len(spans) < steps:
        start = spans[-1][1]
        spans.append((start, start + megatron_batch(ramp, batch, start)))
    return spans


@st.composite
def ramped(draw: Any) -> RampedBatch:
    start = draw(st.integers(1, 12))
    increment = draw(st.integers(1, 12))
    ramp = Ramp(start=start, increment=increment, samples=draw(st.integers(1, 600)))
    return ramp.schedule(start + draw(st.integers(0, 12)) * increment)


def schedules() -> st.SearchStrategy[Schedule]:
    return ramped() | st.integers(1, 40).map(FixedBatch)


# A fixed batch


def test_a_fixed_batch_is_multiples() -> None:
    schedule = FixedBatch(8)
    assert [schedule.span(step) for step in (0, 1, 10**15)] == [(0, 8), (8, 16), (8 * 10**15, 8 * 10**15 + 8)]
    assert schedule.step_at(8 * 10**15) == 10**15
    assert schedule.batches() == (8,)
    assert schedule.after(16) is schedule
    assert schedule.whole() == schedule
    assert schedule.to_json() == {"batch": 8}


@pytest.mark.parametrize("value", [0, -1])
def test_batches_below_one_are_refused(value: int) -> None:
    with pytest.raises(OptionsError, match=f"batch must be at least 1, got {value}"):
        FixedBatch(value)
    with pytest.raises(OptionsError, match=f"batch must be at least 1, got {value}"):
        Ramp(1, 1, 10).schedule(value)


@pytest.mark.parametrize("value", [True, 8.0, "8", None])
def test_batches_that_are_no_int_are_refused(value: Any) -> None:
    with pytest.raises(OptionsTypeError, match="batch must be an int, got"):
        FixedBatch(value)


# A ramp


def test_a_ramp_grows_at_the_border_after_each_stretch() -> None:
    """2 to 8 by 2 over 24 records: the batch is 2 from 0, 4 from 8 and 6 from 16 or the next border, 8 from 24 on."""
    schedule = Ramp(start=2, increment=2, samples=24).schedule(8)
    spans = [schedule.span(step) for step in range(10)]
    assert spans == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 12), (12, 16), (16, 22), (22, 28), (28, 36), (36, 44)]
    assert schedule.batches() == (2, 4, 6, 8)
    assert schedule.batch == 8
    assert schedule.whole() == WholeRamp(Ramp(2, 2, 24), 8)
    assert str(schedule.whole()) == "8 reached from 2 by 2 over 24 records"


def test_a_stretch_may_be_jumped_over() -> None:
    schedule = Ramp(start=10, increment=1, samples=12).schedule(14)
    assert [schedule.span(step) for step in range(3)] == [(0, 10), (10, 23), (23, 37)]
    assert schedule.batches() == (10, 13, 14)


def test_a_ramp_of_no_increments_is_the_full_batch() -> None:
    assert [Ramp(8, 3, 100).schedule(8).span(step) for step in range(2)] == [(0, 8), (8, 16)]


def test_a_ramp_of_a_large_run() -> None:
    """Megatron's own example: 16 to 512 by 8 over 2 million samples."""
    ramp = Ramp(start=16, increment=8, samples=2_000_000)
    schedule = ramp.schedule(512)
    spans = loop(ramp, 512, 20_000)
    assert [schedule.span(step) for step in range(20_000)] == spans
    last = 10**15
    start = spans[-1][1] + (last - 20_000) * 512
    assert schedule.span(last) == (start, start + 512)
    assert schedule.step_at(start) == last


@pytest.mark.parametrize(("start", "increment", "batch"), [(2, 3, 9), (4, 2, 7), (8, 2, 6), (8, 1, 7)])
def test_a_ramp_that_misses_the_batch_is_refused(start: int, increment: int, batch: int) -> None:
    expected = (
        f"a ramp from {start} by {increment} never reaches the batch of {batch}; "
        f"{batch} - {start} must be a multiple of {increment} and not negative"
    )
    with pytest.raises(OptionsError, match=expected):
        Ramp(start, increment, 100).schedule(batch)


def test_a_ramp_of_too_many_increments_is_refused() -> None:
    assert len(Ramp(1, 1, 10**12).schedule(1 + (1 << 16)).batches()) == 1 + (1 << 16)
    expected = "from 1 by 1 to 1000000000000 has 999999999999 increments, .* at most 65536; use a larger increment"
    with pytest.raises(OptionsError, match=expected):
        Ramp(1, 1, 100).schedule(10**12)


@pytest.mark.parametrize("name", ["start", "increment", "samples"])
def test_ramp_values_are_counts(name: str) -> None:
    values = {"start": 2, "increment": 2, "samples": 24}
    with pytest.raises(OptionsError, match=f"{name} must be at least 1, got 0"):
        Ramp(**values | {name: 0})
    with pytest.raises(OptionsTypeError, match=f"{name} must be an int, got 2.0"):
        Ramp(**values | {name: 2.0})  # type: ignore[arg-type]


@given(ramped())
def test_the_closed_form_is_the_loop(schedule: RampedBatch) -> None:
    spans = loop(schedule.ramp, schedule.batch, 60)
    while spans[-1][0] < schedule.ramp.samples:  # on to the full batch
        start = spans[-1][1]
        spans.append((start, start + megatron_batch(schedule.ramp, schedule.batch, start)))
    assert [schedule.span(step) for step in range(len(spans))] == spans
    assert schedule.batches() == tuple(dict.fromkeys(stop - start for start, stop in spans))
    borders = {start: step for step, (start, _) in enumerate(spans)}
    for record in range(spans[8][1]):
        if record in borders:
            assert schedule.step_at(record) == borders[record]
        else:
            with pytest.raises(PositionError, match=f"record {record} lies inside step"):
                schedule.step_at(record)


def test_inside_a_step_both_borders_are_named() -> None:
    expected = "record 14 lies inside step 5, which takes records 12 to 15; .* at a border of a step: 12 or 16"
    with pytest.raises(PositionError, match=expected):
        Ramp(2, 2, 24).schedule(8).step_at(14)
    with pytest.raises(PositionError, match="record 9 lies inside step 1, which takes records 8 to 15"):
        FixedBatch(8).step_at(9)


# What every schedule does


@given(schedules(), st.integers(0, 60), st.integers(0, 60))
def test_the_rest_of_a_schedule_goes_on_as_the_whole(schedule: Schedule, taken: int, step: int) -> None:
    done = schedule.span(taken)[0]
    rest = schedule.after(done)
    start, stop = schedule.span(taken + step)
    assert rest.span(step) == (start - done, stop - done)
    assert rest.step_at(start - done) == step
    assert rest.whole() == schedule.whole()
    assert set(rest.batches()) <= set(schedule.batches())
    assert rest.batches()[0] == schedule.span(taken)[1] - done
    again = rest.after(rest.span(step)[0])
    assert again.span(0) == (0, stop - start)


@given(schedules(), st.integers(1, 400))
def test_no_rest_begins_inside_a_step(schedule: Schedule, record: int) -> None:
    step = whole_steps(schedule, record)
    assume(schedule.span(step)[0] != record)
    with pytest.raises(PositionError, match=f"record {record} lies inside step {step}"):
        schedule.after(record)


@given(schedules(), st.integers(0, 60))
def test_json_round_trip(schedule: Schedule, taken: int) -> None:
    rest = schedule.after(schedule.span(taken)[0])
    read = schedule_from_json(json.loads(json.dumps(rest.to_json())))
    assert read == rest
    assert [read.span(step) for step in range(40)] == [rest.span(step) for step in range(40)]


@given(schedules(), st.integers(0, 2000))
def test_whole_steps_counts_borders(schedule: Schedule, records: int) -> None:
    step = 0
    while schedule.span(step)[1] <= records:
        step += 1
    assert whole_steps(schedule, records) == step


@pytest.mark.parametrize("schedule", [FixedBatch(1), FixedBatch(8), Ramp(2, 2, 24).schedule(8)])
@pytest.mark.parametrize("records", [10**12, (1 << 62) + 5, 10**24])
def test_whole_steps_of_large_runs(schedule: Schedule, records: int) -> None:
    step = whole_steps(schedule, records)
    assert schedule.span(step)[0] <= records < schedule.span(step)[1]


@pytest.mark.parametrize(
    ("saved", "match"),
    [
        ({}, "has the wrong fields"),
        ({"batch": 8, "done": 0}, "has the wrong fields"),
        ({"batch": 0}, r"cannot be read: \{'batch': 0\}: batch must be at least 1"),
        ({"batch": "8"}, "batch must be an int"),
        ({"batch": True}, "batch must be an int"),
        ({"start": 2, "increment": 2, "samples": 24, "batch": 7, "done": 0}, "never reaches the batch of 7"),
        ({"start": 2, "increment": 2, "samples": 24, "batch": 8, "done": 3}, "record 3 lies inside step 1"),
        ({"start": 2, "increment": 2, "samples": 24, "batch": 8, "done": -2}, "done must be at least 0"),
        ({"start": 2, "increment": 0, "samples": 24, "batch": 8, "done": 0}, "increment must be at least 1"),
        ({"start": 2, "increment": 2, "samples": None, "batch": 8, "done": 0}, "samples must be an int"),
    ],
)
def test_damaged_schedules_are_refused(saved: dict[str, Any], match: str) -> None:
    with pytest.raises(PositionError, match=match):
        schedule_from_json(saved)
