"""What the training streams of every dataset must do, as checks of a `Subject`; for positions see `position_checks`."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dew.data.dataset import Batch, Dataset
from dew.data.errors import PositionMismatchError
from dew.data.loading import Loading
from dew.data.mixture import MixtureOrder
from dew.data.order import Order, SequentialOrder, batch_of
from dew.data.stream import RecordStream
from dew.testing.compare import arrays_of, copied, layout, leaves, rows_in
from dew.testing.counterexample import Check, Counterexample
from dew.testing.source_checks import watched_generators
from dew.testing.subject import Step, Subject, in_words, taken, whole

_LARGEST_EPOCH = 1_000_000


def batches_have_one_layout(subject: Subject) -> Check:
    """Every batch has the fields of the first, in its dtypes and, but for the rows, its shapes.

    An order that is read with one batch only (aspect buckets) may give each step shapes of its own.
    """
    with subject.streams(1) as (stream,):
        shapes = batch_of(getattr(stream, "order", None)) is None
        first = layout(taken(stream, 0), shapes=shapes, rows=True)
        for step in range(1, subject.steps):
            found = layout(taken(stream, step), shapes=shapes, rows=True)
            if found != first:
                raise Counterexample(f"step 0 has the fields {first}, this one {found}", step=step)
            yield True


def shares_have_their_rows(subject: Subject) -> Check:
    """Every field of a share's batch has the global batch's rows divided by the number of shares."""
    for count in subject.counts:
        dataset = subject.make()
        with subject.streams(count, dataset) as streams:
            for step in range(subject.steps):
                expected = batch_at(streams[0], dataset, step) // count
                for index, stream in enumerate(streams):
                    batch = taken(stream, step)
                    _check_rows(batch, expected, step, f"share {index} of {count}")
                yield True


def batch_at(stream: "Iterator[Batch]", dataset: Dataset, step: int) -> int:
    """Rows of the global batch of `step`."""
    if isinstance(stream, RecordStream):
        start, stop = stream.position.span(step)
        return stop - start
    return dataset.batch


def _check_rows(batch: Batch, expected: int, step: int, share: str) -> None:
    rows_in(batch)
    for name, value in leaves(batch):
        found = len(value) if np.ndim(value) else 0
        if found != expected:
            raise Counterexample(f"field {name!r} of {share} has {found} rows instead of {expected}", step=step)


def shares_tile(subject: Subject) -> Check:
    """For each process count the shares together are the step that one process reads, fields and draws alike."""
    alone: list[Step] = []
    yield from subject.read(1, subject.steps, alone)
    for count in subject.counts[1:]:
        with subject.streams(count) as streams:
            for step in alone:
                step.check(whole(streams, step.number), f"on {in_words(count)} than on one")
                yield True


def batches_are_owned(subject: Subject) -> Check:
    """C-contiguous and writable; writing into one, or reading on, changes no other batch of any stream."""
    dataset = subject.make()
    kept: list[tuple[Batch, Step]] = []
    with subject.streams(1, dataset) as (stream,), subject.streams(1, dataset) as (other,):
        for step in range(subject.steps):
            unwritten = taken(other, step)
            kept.append((unwritten, Step(step, copied(unwritten))))
            batch = taken(stream, step)
            kept[-1][1].check(batch, "in a second stream of the dataset")
            _check_arrays(batch, step)
            for array in arrays_of(batch):
                array[...] = np.zeros((), array.dtype)
            yield True
        for batch, step in kept:
            step.check(batch, "after others were read and written into")
    again: list[Step] = []
    yield from subject.read(1, subject.steps, again, dataset)
    for step in again:
        kept[step.number][1].check(step, "after batches of another stream were written into")
        yield True


def _check_arrays(batch: Batch, step: int) -> None:
    for name, value in leaves(batch):
        if not isinstance(value, np.ndarray):
            raise Counterexample(f"field {name!r} is a {type(value).__name__}, not a NumPy array", step=step)
        if not (value.flags.c_contiguous and value.flags.writeable):
            raise Counterexample(f"field {name!r} is not contiguous and writable", step=step)


def ids_name_the_records(subject: Subject) -> Check:
    """`ids(step)` has one record a row, the same on every share, and the epoch's inverse finds them again."""
    for count in subject.counts:
        with subject.streams(count) as streams:
            shares = record_streams(streams)
            for step in range(subject.steps):
                ids = [share.ids(step) for share in shares]
                rows = sum(rows_in(taken(share, step)) for share in shares)
                if len(ids[0]) != rows:
                    raise Counterexample(
                        f"ids(step) names {len(ids[0])} records, the batches have {rows} rows", step=step
                    )
                for index, other in enumerate(ids):
                    if not np.array_equal(ids[0], other):
                        raise Counterexample(f"ids(step) differs on shares 0 and {index}", step=step, records=other)
                yield True


def order_has_an_inverse(subject: Subject) -> Check:
    """`order.places(record)` finds the places at which `order.at` reads the record, and no others."""
    with subject.streams(1) as streams:
        (stream,) = record_streams(streams)
        order = stream.order
        start, stop = 0, stream.position.span(subject.steps - 1)[1]
        read = order.at(np.arange(start, stop, dtype=np.int64))
        for record in sorted(set(read[: 2 * subject.steps].tolist())):
            expected = np.flatnonzero(read == record)
            found = order.places(record, start, stop)
            if not np.array_equal(expected, found):
                raise Counterexample(
                    f"the record is read at places {expected.tolist()}, and order.places says {found.tolist()}",
                    records=[record],
                )
            yield True


def epochs_hold_each_record_once(subject: Subject) -> Check:
    """The first two epochs of the order are each a permutation of all records; of a mixture, those of each part.

    An order that is read with one batch only reads each record that often in as many epochs: its steps straddle them.
    """
    with subject.streams(1) as streams:
        order = record_streams(streams)[0].order
        orders = [part.order for part in order.parts] if isinstance(order, MixtureOrder) else [order]
        for one in orders:
            epochs = batch_of(one) or 1
            if epochs * one.records <= _LARGEST_EPOCH:
                _check_epochs(one, epochs)
            yield True


def _check_epochs(order: Order, epochs: int) -> None:
    """Of each of the first two stretches of so many epochs."""
    for stretch in range(2):
        first = stretch * epochs * order.records
        read = order.at(np.arange(first, first + epochs * order.records, dtype=np.int64))
        times = np.bincount(read, minlength=order.records)
        if wrong := np.flatnonzero(times != epochs).tolist():
            last = (stretch + 1) * epochs - 1
            named = f"epoch {last} reads" if epochs == 1 else f"epochs {stretch * epochs} to {last} read"
            raise Counterexample(
                f"{named} the record {times[wrong[0]]} times instead of {'once' if epochs == 1 else epochs}",
                place=first,
                records=wrong[:1],
            )


def loading_changes_nothing(subject: Subject, others: "Sequence[tuple[str, Dataset]]") -> Check:
    """Read in other ways, each a description and a dataset, the steps are the same."""
    expected: list[Step] = []
    yield from subject.read(1, subject.steps, expected)
    for how, dataset in others:
        with subject.streams(1, dataset) as streams:
            for step in expected:
                step.check(whole(streams, step.number), f"read with {how}")
                yield True


def loading_in_words(loading: Loading) -> str:
    """`"workers=0, threads=4, read_buffer=2"`."""
    return f"workers={loading.workers}, threads={loading.threads}, read_buffer={loading.read_buffer}"


def seed_makes_the_order(subject: Subject, other: Dataset | None) -> Check:
    """The same seed gives the same order; another seed another, whose positions are not confused with the first's."""
    expected: list[Step] = []
    again: list[Step] = []
    yield from subject.read(1, subject.steps, expected)
    yield from subject.read(1, subject.steps, again)
    for step, same in zip(expected, again, strict=True):
        if step.ids != same.ids:
            raise Counterexample("the same seed gives other records", step=step.number, records=step.ids)
        step.check(same, "in a second dataset of the same seed")
        yield True
    if other is None:
        return
    with subject.streams(1) as ours, subject.streams(1, other) as theirs:
        stream, another = record_streams(ours)[0], record_streams(theirs)[0]
        places = np.arange(min(3 * stream.order.records, _LARGEST_EPOCH), dtype=np.int64)
        shuffled = not isinstance(stream.order, SequentialOrder) and stream.order.records > 3
        if shuffled and np.array_equal(stream.order.at(places), another.order.at(places)):
            raise Counterexample("another seed gives the same order", place=0, records=stream.ids(0))
        yield True
        try:
            another.set_state(stream.get_state())
        except PositionMismatchError:
            yield True
            return
        raise Counterexample("a stream of another seed goes on from this one's position, and is another from there on")


def uses_no_global_generator(subject: Subject) -> Check:
    """Records drawn from a global generator would not be the same again."""
    seen: list[Any] = []
    for seed in (1, 2):
        with watched_generators(seed) as used, subject.streams(1) as streams:
            for number in range(subject.steps):
                step = whole(streams, number)
                if name := used():
                    raise Counterexample(
                        f"preprocess or the source uses the global random generator of {name}; use the rng it is given",
                        step=number,
                        place=step.place,
                        records=step.ids,
                    )
                if seed == 1:
                    seen.append(step)
                else:
                    seen[number].check(step, "when the global random generators are seeded otherwise")
                yield True


def record_streams(streams: "Sequence[Iterator[Batch]]") -> list[RecordStream]:
    """The streams, which must be record streams."""
    found = [stream for stream in streams if isinstance(stream, RecordStream)]
    if len(found) < len(streams):
        raise Counterexample(
            f"a training stream is a {type(streams[0]).__name__}, not a RecordStream with random access; "
            "a suite over such a stream says random_access = False"
        )
    return found
