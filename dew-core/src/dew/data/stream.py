"""Streams: iterators of batches over a record source.

`train_stream` reads an order, endless unless the order says otherwise, and knows its position; `validation_pass` reads
a split once, in order. Both count DELIVERED steps only: what was built ahead is nobody's business. A stream starts
nothing before its first batch and leaves nothing behind after `close()`, an error, or when it is dropped.
"""

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Self

import attrs
import numpy as np

from dew.data import checks
from dew.data.checkpointable import Checkpointable
from dew.data.dataset import Batch, DataPartition
from dew.data.errors import OptionsError, OptionsTypeError, SourceError, StreamClosedError
from dew.data.loading import Feed, Loading, open_feed
from dew.data.order import DRAWS_VERSION, Order, Places, SequentialOrder, ShuffledOrder
from dew.data.position import RecordPosition, Segment, State, record_position
from dew.data.schedule import FixedBatch, Ramp, Schedule, whole_steps
from dew.data.source import Preprocess, RecordSource, describe, fingerprint, identity, records_in
from dew.data.step import (
    LoadStep,
    PassRows,
    StepFields,
    StepStoppedError,
    TrainingRows,
    preprocess_name,
    takes_draws,
)

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
    if order is None:
        order = ShuffledOrder(records=records, seed=seed) if shuffle else SequentialOrder(records=records)
    elif order.records != records:
        raise OptionsError(f"the order is over {order.records} records, the source holds {records}")
    if isinstance(schedule, Ramp):
        schedule = schedule.schedule(batch)
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


class StepStream(Iterator[Batch]):
    """What training and validation streams share: delivery in order, latched errors, a life that ends.

    After one failed step every later `next` raises the same error. Streams are context managers; `close()` is
    idempotent. A stream belongs to the process that made it and to one consumer at a time.
    """

    def __init__(self, loading: Loading) -> None:
        self._loading = loading
        self._feed: Feed | None = None
        self._feed_step: int | None = None
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._closed = False
        self._process = os.getpid()
        self._end = _End()
        # Runs when the stream is dropped, and at interpreter exit before modules are torn down.
        self._finalizer = weakref.finalize(self, self._end.run)

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends threads and worker processes and closes what this stream opened, within five seconds; idempotent."""
        self._closed = True
        self._drop_feed()

    def _take(self, step: int, stop: int | None, make: Callable[[], LoadStep]) -> Batch:
        """The batch of `step`, from the feed that is there or one that `make` starts; the end at step `stop`."""
        self._check_usable()
        if stop is not None and step >= stop:
            self._drop_feed()
            raise StopIteration
        feed = self._feed
        if feed is None or self._feed_step != step:
            feed = self._open(step, stop, make())
        # Not set while a step is on its way: a Ctrl-C may lose it, and a feed that lost a step is not asked again.
        self._feed_step = None
        try:
            batch = feed.get(step)
        except KeyboardInterrupt:
            raise  # the consumer's own doing: the step was not delivered and can be asked for again
        except BaseException as error:
            self._refuse_if_closed(error)
            latched = self._latch(error)
            if latched is error:
                raise
            raise latched from error
        self._feed_step = step + 1
        return batch

    def _check_usable(self) -> None:
        if self._closed:
            raise StreamClosedError("this stream was closed; make a new one from the dataset")
        if self._error is not None:
            raise self._error.with_traceback(self._traceback)
        if os.getpid() != self._process:
            raise StreamClosedError(
                f"this stream belongs to process {self._process} and was carried into process {os.getpid()} by a fork; "
                "make a stream of its own in each process"
            )

    def _refuse_if_closed(self, error: BaseException | None) -> None:
        if (self._closed and isinstance(error, Exception | None)) or isinstance(error, StepStoppedError):
            cause = None if isinstance(error, StepStoppedError) else error
            raise StreamClosedError("the stream was closed while a batch was being read") from cause

    def _open(self, step: int, stop: int | None, load: LoadStep) -> Feed:
        self._drop_feed()
        picked = self._loading.picked(whole_steps=load.builds_whole_steps)
        feed = open_feed(load.with_threads(picked.threads), first=step, stop=stop, loading=self._loading, picked=picked)
        self._end.feed = self._feed = feed
        if self._closed:  # by another thread, meanwhile
            self._drop_feed()
            self._refuse_if_closed(None)
        return feed

    def _drop_feed(self) -> None:
        self._feed = None
        self._end.run()

    def _latch(self, error: BaseException) -> BaseException:
        if isinstance(error, StopIteration | StopAsyncIteration | GeneratorExit):
            # Any of these would look like the end of the data to the loop that reads the stream.
            notes = getattr(error, "__notes__", ())
            error = SourceError(f"the source or preprocess raised {type(error).__name__} while a step was read")
            for note in notes:
                error.add_note(note)
        self._error, self._traceback = error, error.__traceback__
        try:
            self._drop_feed()
        except Exception as closing:  # must not take the place of the first error
            error.add_note(f"closing the source then failed too: {closing!r}")
        return error


class _End:
    """Closes a stream's feed; holds no reference to the stream, so that dropping the stream ends it."""

    def __init__(self) -> None:
        self.feed: Feed | None = None
        self._process = os.getpid()

    def run(self) -> None:
        feed = self.feed
        if feed is not None and os.getpid() == self._process:
            feed.close()
            self.feed = None  # not earlier: a close that a Ctrl-C cut short is done again at exit


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
            made_by={"numpy": np.__version__},
        )
        self._start = start
        self._run = start  # the run's segments; its `records` is not kept up with every step
        self._step = 0
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
        self._drop_feed()
        self._error = None
        self._run, self._step = run, run.step
        self._stop = self._last_step()

    def with_schedule(self, schedule: Schedule | Ramp) -> "RecordStream":
        """A fresh stream over the same records in the same order, cut into steps by `schedule`."""
        if isinstance(schedule, Ramp):
            schedule = schedule.schedule(self.batch)
        return RecordStream(attrs.evolve(self._setup, schedule=schedule))

    def __next__(self) -> Batch:
        batch = self._take(self._step, self._stop, self._load_step)
        self._step += 1
        return batch

    def __repr__(self) -> str:
        return (
            f"RecordStream({describe(self.source)}, batch={self.batch}, partition={self.partition}, step={self._step})"
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

    def __init__(self, load: LoadStep, *, steps: int, loading: Loading) -> None:
        super().__init__(loading)
        self._load = load
        self._stop = steps
        self._step = 0

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
        return self._stop

    def __next__(self) -> Batch:
        batch = self._take(self._step, self._stop, lambda: self._load)
        self._step += 1
        return batch


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
        self._check_enough_records()
        object.__setattr__(self, "identity", self._identity())

    def identity_at(self, place: int) -> Mapping[str, Any]:
        """What must match for a run to go on that has read what stands before `place`."""
        own = getattr(self.order, "identity_at", None)
        return self.identity if own is None else self._with_draws(own(place))

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
        return parts


def stop_of(order: Order) -> int | None:
    """The place before which an order ends, None where it never does."""
    return getattr(order, "stop", None)


def _read_until(position: RecordPosition) -> int:
    """The place after the last step that was read; `skip` passes over others."""
    step = position.step
    return position.span(step - 1)[1] if step > position.segments[0].step else 0


def _field_name(option: str, value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise OptionsTypeError(f"{option} must be the name of a field, got {value!r}")
    return value
