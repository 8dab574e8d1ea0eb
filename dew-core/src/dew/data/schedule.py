"""How many records each step takes: a fixed global batch, or one that ramps up.

A schedule is a pure function from step to a span of records, counted from the schedule's own start: span(0) starts at 0
and each span starts where the one before ended. It knows nothing of epochs, processes or orders.
"""

import bisect
from typing import Any, Protocol

import attrs

from dew.data import checks
from dew.data.errors import OptionsError, PositionError

# A ramp is kept as a list of its phases; a damaged position must not make one without end.
_MOST_INCREMENTS = 1 << 16


class Schedule(Protocol):
    """Step -> span of records, both counted from the schedule's start."""

    @property
    def batch(self) -> int:
        """The full global batch."""
        ...

    def span(self, step: int) -> tuple[int, int]:
        """Records `[start, stop)` of step `step`."""
        ...

    def step_at(self, record: int) -> int:
        """The step that starts at `record`.

        Raises:
            PositionError: `record` lies inside a step; the message names the two borders.
        """
        ...

    def batches(self) -> tuple[int, ...]:
        """Every global batch size that occurs, in order."""
        ...

    def after(self, records: int) -> "Schedule":
        """What is left of the schedule once `records` records are taken, at a border of a step."""
        ...

    def whole(self) -> "FixedBatch | WholeRamp":
        """What must match on resume, wherever in the schedule a stream stands."""
        ...

    def to_json(self) -> dict[str, Any]:
        """What `schedule_from_json` reads."""
        ...


@attrs.frozen
class FixedBatch:
    """The same global batch at every step."""

    batch: int = attrs.field(validator=checks.count())

    def __str__(self) -> str:
        return str(self.batch)

    def span(self, step: int) -> tuple[int, int]:
        """Records `[step * batch, (step + 1) * batch)`."""
        return step * self.batch, (step + 1) * self.batch

    def step_at(self, record: int) -> int:
        """`record // batch`, refused inside a step."""
        step, inside = divmod(record, self.batch)
        if inside:
            raise _inside(record, self.span(step), step)
        return step

    def batches(self) -> tuple[int, ...]:
        """The one batch."""
        return (self.batch,)

    def after(self, records: int) -> "FixedBatch":
        """The same schedule."""
        self.step_at(records)
        return self

    def whole(self) -> "FixedBatch":
        """The batch itself."""
        return self

    def to_json(self) -> dict[str, Any]:
        """`{"batch": B}`."""
        return {"batch": self.batch}


@attrs.frozen
class Ramp:
    """A batch-size ramp: `start` rows at first, `increment` more in equal stretches of the first `samples` records.

    The rule is Megatron-LM's `--rampup-batch-size START INCREMENT SAMPLES`: with n increments between `start` and the
    full batch, the batch grows after every `samples / n` records, at the next step border. All in integers.
    """

    start: int = attrs.field(validator=checks.count())
    increment: int = attrs.field(validator=checks.count())
    samples: int = attrs.field(validator=checks.count())

    def schedule(self, batch: int) -> "RampedBatch":
        """The schedule that ends at the full global `batch`.

        Raises:
            OptionsError: `increment` does not lead from `start` to `batch`; the message names all three.
        """
        return RampedBatch(ramp=self, batch=batch)


@attrs.frozen
class WholeRamp:
    """A ramp and the full batch at its end."""

    ramp: Ramp
    batch: int

    def __str__(self) -> str:
        ramp = self.ramp
        return f"{self.batch} reached from {ramp.start} by {ramp.increment} over {ramp.samples} records"


@attrs.frozen
class _Phase:
    step: int  # first step of the phase
    record: int  # first record of the phase
    batch: int


@attrs.frozen(kw_only=True)
class RampedBatch:
    """`ramp` up to the full `batch`; `done` records of it were taken before this schedule's own start."""

    ramp: Ramp
    batch: int = attrs.field(validator=checks.count())
    done: int = attrs.field(default=0, validator=checks.count(0))
    _phases: tuple[_Phase, ...] = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        ramp = self.ramp
        increments, rest = divmod(self.batch - ramp.start, ramp.increment)
        if self.batch < ramp.start or rest:
            raise OptionsError(
                f"a ramp from {ramp.start} by {ramp.increment} never reaches the batch of {self.batch}; "
                f"{self.batch} - {ramp.start} must be a multiple of {ramp.increment} and not negative"
            )
        if increments > _MOST_INCREMENTS:
            raise OptionsError(
                f"a ramp from {ramp.start} by {ramp.increment} to {self.batch} has {increments} increments, and a ramp "
                f"has at most {_MOST_INCREMENTS}; use a larger increment"
            )
        object.__setattr__(self, "_phases", tuple(_phases(ramp, increments)))
        self._full_step_at(self.done)

    def span(self, step: int) -> tuple[int, int]:
        """Records `[start, stop)` of step `step`, counted from where this schedule began."""
        start, stop = self._full_span(step + self._full_step_at(self.done))
        return start - self.done, stop - self.done

    def step_at(self, record: int) -> int:
        """The step that starts at `record`, refused inside a step."""
        return self._full_step_at(record + self.done) - self._full_step_at(self.done)

    def batches(self) -> tuple[int, ...]:
        """Every batch size from here on."""
        first = self._phase_at(self.done)
        return tuple(phase.batch for phase in self._phases[first:])

    def after(self, records: int) -> "RampedBatch":
        """The rest of the ramp."""
        return attrs.evolve(self, done=self.done + records)

    def whole(self) -> WholeRamp:
        """The ramp and its full batch."""
        return WholeRamp(self.ramp, self.batch)

    def to_json(self) -> dict[str, Any]:
        """`{"start", "increment", "samples", "batch", "done"}`."""
        return {**attrs.asdict(self.ramp), "batch": self.batch, "done": self.done}

    def _phase_at(self, record: int) -> int:
        return bisect.bisect_right(self._phases, record, key=lambda phase: phase.record) - 1

    def _full_span(self, step: int) -> tuple[int, int]:
        phase = self._phases[bisect.bisect_right(self._phases, step, key=lambda phase: phase.step) - 1]
        start = phase.record + (step - phase.step) * phase.batch
        return start, start + phase.batch

    def _full_step_at(self, record: int) -> int:
        phase = self._phases[self._phase_at(record)]
        step, inside = divmod(record - phase.record, phase.batch)
        step += phase.step
        if inside:
            raise _inside(record, self._full_span(step), step)
        return step


def _phases(ramp: Ramp, increments: int) -> list[_Phase]:
    """The phases of a ramp; a stretch that a larger step jumps over has none."""
    phases: list[_Phase] = []
    step = record = 0
    for number in range(increments):
        batch = ramp.start + number * ramp.increment
        # The phase lasts while record / (samples / increments) < number + 1.
        end = -(-(number + 1) * ramp.samples // increments)
        steps = max(0, -(-(end - record) // batch))
        if steps:
            phases.append(_Phase(step, record, batch))
            step, record = step + steps, record + steps * batch
    phases.append(_Phase(step, record, ramp.start + increments * ramp.increment))
    return phases


def whole_steps(schedule: Schedule, records: int) -> int:
    """Number of whole steps in the first `records` records; also the step that holds record number `records`."""
    low, high = 0, 1
    while schedule.span(high)[0] <= records:
        low, high = high, 2 * high
    # Step `low` starts at or before `records`, step `high` after it. (A range given to bisect ends at 2^63.)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if schedule.span(middle)[0] <= records else (low, middle)
    return low


def schedule_from_json(value: dict[str, Any]) -> Schedule:
    """The schedule that `to_json` wrote.

    Raises:
        PositionError: `value` is not such a mapping.
    """
    try:
        if set(value) == {"batch"}:
            return FixedBatch(value["batch"])
        if set(value) == {"start", "increment", "samples", "batch", "done"}:
            ramp = Ramp(start=value["start"], increment=value["increment"], samples=value["samples"])
            return RampedBatch(ramp=ramp, batch=value["batch"], done=value["done"])
    except (ValueError, TypeError) as error:
        raise PositionError(f"a saved batch schedule cannot be read: {value!r}: {error}") from error
    raise PositionError(f"a saved batch schedule has the wrong fields: {value!r}")


def _inside(record: int, span: tuple[int, int], step: int) -> PositionError:
    return PositionError(
        f"record {record} lies inside step {step}, which takes records {span[0]} to {span[1] - 1}; "
        f"a stream can only stand at a border of a step: {span[0]} or {span[1]}"
    )
