"""Streams: iterators of batches over a record source.

`train_stream` reads an order, endless unless the order says otherwise, and knows its position; `validation_pass` reads
a split once, in order. Both count DELIVERED steps only: what was built ahead is nobody's business. A stream starts
nothing before its first batch and leaves nothing behind after `close()`, an error, or when it is dropped.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs
import numpy as np

from dew.data import checks, metrics
from dew.data.checkpointable import Checkpointable
from dew.data.dataset import DataPartition
from dew.data.errors import OptionsError, OptionsTypeError, PositionError, SourceError, StreamClosedError
from dew.data.loading import Loading
from dew.data.order import DRAWS_VERSION, Order, Places, SequentialOrder, ShuffledOrder, batch_of
from dew.data.position import MAX_PLACE, RecordPosition, Segment, State, record_position
from dew.data.schedule import FixedBatch, Ramp, Schedule, whole_steps
from dew.data.source import Preprocess, RecordSource, describe, fingerprint, identity, made_by, records_in
from dew.data.step import (
    LoadStep,
    PassRows,
    StepFields,
    TrainingRows,
    preprocess_name,
    takes_draws,
)
from dew.data.stepstream import StepStream

Remainder = Literal["pad", "drop"]


def train_stream(
    source: RecordSource,
    *,
    order: Order | None = None,
    batch: int,
    seed: int = 0,
    partition: DataPartition = DataPartition(),  # noqa: B008 - frozen
    preprocess: Preprocess | None = None,
    shuffle: bool = True,
    schedule: Schedule | Ramp | None = None,
    place_field: str | None = None,
    repeat_in_step: bool = False,
    loading: Loading = Loading(),  # noqa: B008 - frozen
) -> "RecordStream":
    """An endless stream of batches over `source`, one share of every global batch.

    Step k holds the records at places `[k * batch, (k + 1) * batch)` of the order, and this share every `count`-th of
    them, whatever the number of processes, workers or threads.

    Args:
        source: records with random access.
        order: which record stands at which place; by default shuffled anew in each epoch.
        batch: the GLOBAL batch.
        seed: of the order and of each record's draws; a Python int in [0, 2^64).
        partition: this process's share.
        preprocess: `record -> record`, or `(record, rng) -> record` with draws keyed by the record's place. It must not
            use a global random generator.
        shuffle: False reads each epoch in the source's own order.
        schedule: a growing batch; `Ramp` or a schedule that ends at `batch`.
        place_field: adds each record's place under this name, (rows, 2) uint32, high word first.
        repeat_in_step: allows fewer records than one global batch.
        loading: speed only.

    Raises:
        PartitionError: `batch` (or a batch of the ramp) does not divide over the processes.
        SourceError: no records, or fewer than one global batch.
        OptionsError, OptionsTypeError: an argument cannot be used.
    """
    records = records_in(source)
    checks.check_seed(seed)
    _check_values(partition, loading)
    if order is None:
        order = ShuffledOrder(records=records, seed=seed) if shuffle else SequentialOrder(records=records)
    elif not all(hasattr(order, name) for name in ("records", "identity", "at", "places")):
        raise OptionsTypeError(f"order must be an Order such as ShuffledOrder, got {order!r} ({type(order).__name__})")
    elif order.records != records:
        raise OptionsError(f"the order is over {order.records} records, the source holds {records}")
    if isinstance(schedule, Ramp):
        schedule = schedule.schedule(batch)
    elif schedule is not None and not hasattr(schedule, "span"):
        raise OptionsTypeError(f"schedule must be a Ramp or a schedule, got {schedule!r} ({type(schedule).__name__})")
    setup = _Setup(
        source=source,
        order=order,
        schedule=FixedBatch(batch) if schedule is None else schedule,
        seed=seed,
        partition=partition,
        preprocess=preprocess,
        fields=StepFields(place=_field_name("place_field", place_field)),
        repeat_in_step=repeat_in_step,
        loading=loading,
    )
    if setup.schedule.batch != batch:
        raise OptionsError(f"the schedule ends at a batch of {setup.schedule.batch}, batch= says {batch}")
    return RecordStream(setup)


def validation_pass(
    source: RecordSource,
    *,
    batch: int,
    seed: int = 0,
    partition: DataPartition = DataPartition(),  # noqa: B008 - frozen
    preprocess: Preprocess | None = None,
    remainder: Remainder = "pad",
    valid_field: str = "valid",
    place_field: str | None = None,
    loading: Loading = Loading(),  # noqa: B008 - frozen
) -> "ValidationPass":
    """One pass over `source` in its own order; each record is scored exactly once and each pass is the same.

    With `remainder="pad"` the last global batch is filled up with record 0 and every batch carries `valid_field`,
    (rows,) bool; rows that are padding have segment 0 and role 0 where those fields exist. Every process sees the same
    number of steps. `remainder="drop"` leaves part batches and the mask out.

    Raises:
        PartitionError: `batch` does not divide over the processes.
        SourceError: no records, or with "drop" fewer than one global batch.
    """
    records = records_in(source)
    checks.check_seed(seed)
    _check_values(partition, loading)
    partition.rows(batch)
    if remainder not in ("pad", "drop"):
        raise OptionsError(f'remainder must be "pad" or "drop", got {remainder!r}')
    steps = -(-records // batch) if remainder == "pad" else records // batch
    if not steps:
        raise SourceError(
            f"{describe(source)} holds {records} records, fewer than one global batch of {batch}: with "
            'remainder="drop" nothing would be scored; use remainder="pad" or a smaller batch'
        )
    valid = _field_name("valid_field", valid_field) if remainder == "pad" else None
    if valid is not None and valid == place_field:
        raise OptionsError(f"place_field and valid_field are both {valid!r}; give the two fields names of their own")
    load = LoadStep(
        source,
        rows=PassRows(records=records, batch=batch, partition=partition),
        seed=seed,
        preprocess=preprocess,
        fields=StepFields(place=_field_name("place_field", place_field), valid=valid),
    )
    return ValidationPass(load, steps=steps, loading=loading)


class RecordStream(Checkpointable, StepStream):
    """A training stream with a position; made by `train_stream`. It ends only where its order has a `stop`.

    Attributes:
        source, order, batch, partition, position: read-only.
    """

    def __init__(self, setup: "_Setup") -> None:
        super().__init__(setup.loading)
        self._setup = setup
        start = RecordPosition(
            records=0,
            order=setup.identity_at(0),
            segments=(Segment(step=0, place=0, schedule=setup.schedule),),
            preprocess=preprocess_name(setup.preprocess),
            made_by={"numpy": np.__version__, **made_by(setup.source)},
        )
        self._start = start
        self._run = start  # the run's segments; its `records` is not kept up with every step
        self._stop = self._last_step()

    @property
    def source(self) -> RecordSource:
        """The source of the records."""
        return self._setup.source

    @property
    def preprocess(self) -> Preprocess | None:
        """What is applied to each record."""
        return self._setup.preprocess

    @property
    def order(self) -> Order:
        """Which record stands at which place."""
        return self._setup.order

    @property
    def batch(self) -> int:
        """The full global batch."""
        return self._setup.schedule.batch

    @property
    def partition(self) -> DataPartition:
        """This process's share."""
        return self._setup.partition

    @property
    def position(self) -> RecordPosition:
        """Where the stream stands: the place of the next record to be delivered."""
        position = self._run.at_step(self._step)
        return attrs.evolve(position, order=self._setup.identity_at(_read_until(position)))

    def ids(self, step: int) -> Places:
        """Records of the whole global batch of `step`, in the order of their places, (batch,) int64.

        Row i of share p of n is `ids(step)[p + i * n]`. `step` may be past or to come.
        """
        checks.check_count("step", step, 0)
        if self._stop is not None and step >= self._stop:
            raise OptionsError(f"step {step} does not exist: this stream ends after {self._stop} steps")
        start, stop = self._run.span(step)
        if stop > MAX_PLACE:
            raise OptionsError(f"step {step} ends at place {stop}, and places go up to 2^63 - 2^40")
        return np.asarray(self.order.at(np.arange(start, stop, dtype=np.int64)))

    def get_state(self) -> State:
        """The position as JSON values: of the batches delivered, the same on every process."""
        return self.position.to_json()

    def set_state(self, state: Mapping[str, Any], accept: Iterable[str] = ()) -> None:
        """Goes on from a saved position, in O(1); before or after reading, and after an error.

        Args:
            state: what `get_state()` of a stream over the same data returned, on any process count.
            accept: parts that may differ, each by name, such as `{"fingerprint"}`; remembered in the position.

        Raises:
            PositionMismatchError: names the part that differs, both values, and how to go on.
            PositionError: `state` is not a position of a record stream.
        """
        if self._closed:
            raise StreamClosedError("this stream was closed; make a new one from the dataset")
        saved = record_position(state)
        current = attrs.evolve(self._start, order=self._setup.identity_at(_read_until(saved)))
        run = saved.resumed_by(current, accept)
        for batch in run.segments[-1].schedule.batches():
            self.partition.rows(batch)
        self._check_border(run.segments[-1].place)
        self._restart()
        self._run, self._step = run, run.step
        self._stop = self._last_step()

    def with_schedule(self, schedule: Schedule | Ramp) -> "RecordStream":
        """A fresh stream over the same records in the same order, cut into steps by `schedule`."""
        if isinstance(schedule, Ramp):
            schedule = schedule.schedule(self.batch)
        return RecordStream(attrs.evolve(self._setup, schedule=schedule))

    def __repr__(self) -> str:
        return (
            f"RecordStream({describe(self.source)}, batch={self.batch}, partition={self.partition}, step={self._step})"
        )

    def _check_border(self, place: int) -> None:
        batch = batch_of(self.order)
        if batch is not None and place % batch:
            raise PositionError(
                f"the saved position goes on at place {place}, inside a step: {self.order!r} reads steps of {batch} "
                f"records from a multiple of {batch}; skip whole steps only"
            )

    def _last_step(self) -> int | None:
        """The step before which the stream ends: the last whole one before its order does."""
        places, last = stop_of(self.order), self._run.segments[-1]
        if places is None:
            return None
        return last.step + (whole_steps(last.schedule, places - last.place) if places > last.place else 0)

    def _load_step(self) -> LoadStep:
        setup = self._setup
        return LoadStep(
            setup.source,
            rows=TrainingRows(setup.order, self._run.segments[-1], setup.partition),
            seed=setup.seed,
            preprocess=setup.preprocess,
            fields=setup.fields,
        )


class ValidationPass(StepStream):
    """One pass over a split; made by `validation_pass`. It has no position: a pass begins at its beginning."""

    kind = metrics.VALIDATION

    def __init__(self, load: LoadStep, *, steps: int, loading: Loading) -> None:
        super().__init__(loading)
        self._load = load
        self._stop = self._steps = steps

    @property
    def source(self) -> RecordSource:
        """The source of the records."""
        return self._load.source

    @property
    def preprocess(self) -> Preprocess | None:
        """What is applied to each record."""
        return self._load.preprocess

    def __len__(self) -> int:
        """Number of steps of the pass, the same on every process."""
        return self._steps

    def _load_step(self) -> LoadStep:
        return self._load


@attrs.frozen(kw_only=True)
class _Setup:
    """What a training stream is made of, checked."""

    source: RecordSource
    order: Order
    schedule: Schedule
    seed: int
    partition: DataPartition
    preprocess: Preprocess | None
    fields: StepFields
    repeat_in_step: bool
    loading: Loading
    identity: Mapping[str, Any] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        for batch in self.schedule.batches():
            self.partition.rows(batch)
        if self.preprocess is not None:
            takes_draws(self.preprocess)
        self._check_batch()
        self._check_enough_records()
        object.__setattr__(self, "identity", self._identity())

    def identity_at(self, place: int) -> Mapping[str, Any]:
        """What must match for a run to go on that has read what stands before `place`."""
        own = getattr(self.order, "identity_at", None)
        return self.identity if own is None else self._with_draws(own(place))

    def _check_batch(self) -> None:
        own, batches = batch_of(self.order), self.schedule.batches()
        if own is not None and batches != (own,):
            asked = f"batch={batches[0]} was" if len(batches) == 1 else f"a ramp over the batches {list(batches)} was"
            raise OptionsError(
                f"{self.order!r} reads steps of {own} records and no others, {asked} asked for; "
                f"read it with batch={own}, or make it for the batch that you want"
            )

    def _check_enough_records(self) -> None:
        batch = self.schedule.batch
        if self.order.records < batch and not self.repeat_in_step:
            raise SourceError(
                f"{describe(self.source)} holds {self.order.records} records, fewer than one global batch of {batch}: "
                "every step would repeat records; use a smaller batch, or allow it with repeat_in_step=True"
            )
        stop = stop_of(self.order)
        if stop is not None and not whole_steps(self.schedule, stop):
            raise SourceError(
                f"{describe(self.source)} ends after {stop} records, before the first global batch of "
                f"{self.schedule.span(0)[1]} is full; use a smaller batch, or let the mixture go on"
            )

    def _identity(self) -> dict[str, Any]:
        """What must match on resume: the order's parts, the source's, the seed of the draws."""
        own = identity(self.source)
        parts = self._with_draws(self.order.identity())
        if not hasattr(self.order, "identity_at"):  # else the order describes the sources itself
            parts |= {"source": describe(self.source), "fingerprint": fingerprint(self.source)}
        if clash := sorted(set(own) & set(parts)):
            raise SourceError(
                f"{describe(self.source)}.identity() has {clash}, which name parts of the order; rename them"
            )
        return {**parts, **own}

    def _with_draws(self, order: Mapping[str, Any]) -> dict[str, Any]:
        parts = {**order, "draws": DRAWS_VERSION, "seed": order.get("seed", self.seed)}
        if parts["seed"] != self.seed:
            parts["draws_seed"] = self.seed
        if (batch := batch_of(self.order)) is not None:
            parts["batch"] = batch
        return parts


def stop_of(order: Order) -> int | None:
    """The place before which an order ends, None where it never does."""
    return getattr(order, "stop", None)


def _read_until(position: RecordPosition) -> int:
    """The place after the last step that was read; `skip` passes over others."""
    step = position.step
    return position.span(step - 1)[1] if step > position.segments[0].step else 0


def _check_values(partition: object, loading: object) -> None:
    for name, value, kind in (("partition", partition, DataPartition), ("loading", loading, Loading)):
        if not isinstance(value, kind):
            raise OptionsTypeError(f"{name} must be a {kind.__name__}, got {value!r} ({type(value).__name__})")


def _field_name(option: str, value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise OptionsTypeError(f"{option} must be the name of a field, got {value!r}")
    return value
