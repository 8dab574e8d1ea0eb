"""The dataset that is checked: how to make it anew, how far to read, and over which process counts.

Processes are played by streams side by side, one a share, since a share's batches depend on nothing but its partition.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar, cast

import attrs

from dew.data.dataset import Batch, DataPartition, Dataset, StreamFactory
from dew.data.loading import Loading
from dew.data.schedule import FixedBatch
from dew.data.stream import RecordStream
from dew.testing.compare import difference, whole_step
from dew.testing.counterexample import Check, Counterexample

Streams: TypeAlias = "Sequence[Iterator[Batch]]"
_Factory = TypeVar("_Factory")

DIRECT = Loading(workers=0, threads=1, read_buffer=0)
"""Builds each step when it is asked for, in the consumer's thread."""


@attrs.frozen(kw_only=True)
class Subject:
    """What the checks of streams look at.

    Args:
        make: makes the same dataset anew on every call.
        steps: steps that are read.
        counts: process counts, ascending; the first is 1.
    """

    make: Callable[[], Dataset]
    steps: int
    counts: tuple[int, ...] = (1,)

    @contextmanager
    def streams(self, count: int, dataset: Dataset | None = None) -> "Generator[Streams]":
        """A fresh training stream for each of `count` shares, closed at the end."""
        dataset = self.make() if dataset is None else dataset
        with closing([dataset.train(DataPartition(index, count)) for index in range(count)]) as streams:
            yield streams

    def read(self, count: int, steps: int, into: "list[Step]", dataset: Dataset | None = None) -> Check:
        """Puts the global batches of the first `steps` steps, read by `count` shares, into a list."""
        with self.streams(count, dataset) as streams:
            for step in range(steps):
                into.append(whole(streams, step))
                yield False


@attrs.frozen
class Step:
    """The global batch of one step, its number, its first place and its records where they are known."""

    number: int
    batch: Batch
    place: int | None = None
    ids: tuple[int, ...] = ()

    def check(self, found: "Step | Batch", how: str) -> None:
        """Refuses another batch than this one; `how` says how that one was read."""
        unlike = difference(self.batch, found.batch if isinstance(found, Step) else found)
        if unlike is None:
            return
        row = unlike.row
        place = self.place if row is None or self.place is None else self.place + row
        records = self.ids if row is None else self.ids[row : row + 1]
        raise Counterexample(
            f"the step is another {how}: {unlike.text}", step=self.number, place=place, records=records
        )


def counts_dividing(dataset: Dataset, wanted: Sequence[int]) -> tuple[int, ...]:
    """Those of the process counts `wanted` over which every global batch divides, and 1."""
    schedule = FixedBatch(dataset.batch) if dataset.ramp is None else dataset.ramp.schedule(dataset.batch)
    batches = schedule.batches()
    return tuple(sorted({1, *(count for count in wanted if all(batch % count == 0 for batch in batches))}))


def in_words(count: int) -> str:
    """`"1 process"`, `"2 processes"`."""
    return f"{count} process{'' if count == 1 else 'es'}"


def taken(stream: "Iterator[Batch]", step: int) -> Batch:
    """The next batch.

    Raises:
        Counterexample: the stream has ended, or what it yields is no batch.
    """
    try:
        batch = cast("object", next(stream))
    except StopIteration:
        raise Counterexample("the stream ended before this step", step=step) from None
    if not isinstance(batch, Mapping):
        raise Counterexample(f"a batch must be a mapping of field to array, got {type(batch).__name__}", step=step)
    return cast("Batch", batch)


def whole(streams: Streams, step: int) -> Step:
    """The next global batch of all shares, which stand before step `step`."""
    shares = [taken(stream, step) for stream in streams]
    first = streams[0]
    try:
        batch = whole_step(shares)
    except Counterexample as error:
        raise Counterexample(error.what, step=step) from error
    if isinstance(first, RecordStream):
        start, _ = first.position.span(step)
        return Step(step, batch, start, tuple(first.ids(step).tolist()))
    return Step(step, batch)


@contextmanager
def closing(streams: "Sequence[Iterator[Batch]]") -> "Generator[Streams]":
    """Closes the streams at the end; one without `close` is dropped."""
    try:
        yield streams
    finally:
        for stream in streams:
            close: Any = getattr(stream, "close", None)
            if close is not None:
                close()


def varied(dataset: Dataset, *, loading: Loading | None = None, seed: int | None = None) -> Dataset | None:
    """The same dataset read with another `loading`, or in the order of another `seed`; None where there is no way."""
    if loading is not None:
        train = _with(dataset.train, loading=loading)
        val = None if dataset.val is None else _with(dataset.val, loading=loading) or dataset.val
        dataset = dataset if train is None else attrs.evolve(dataset, train=train, val=val)
        if train is None:
            return None
    if seed is not None:
        train = _with(dataset.train, seed=seed)
        return None if train is None else attrs.evolve(dataset, train=train)
    return dataset


def _with(factory: StreamFactory, **changes: Any) -> StreamFactory | None:
    """A stream factory of Dew's own with other fields; None where it is somebody else's callable."""
    made, kind = cast("Any", factory), cast("type[Any]", type(factory))
    if not attrs.has(kind):
        return None
    fields = attrs.fields_dict(kind)
    if changes.keys() <= fields.keys():
        keyed = "seed" in changes and getattr(made, "order", None) is not None
        return None if keyed else cast("StreamFactory", attrs.evolve(made, **changes))  # an order has its own seed
    inner = _with(made.train, **changes) if "train" in fields else None
    return None if inner is None else cast("StreamFactory", attrs.evolve(made, train=inner))
