"""What validation must do, as checks of a `Subject`: end, repeat, overlap nothing, score every record once."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack
from contextlib import closing as close_at_end
from itertools import islice, zip_longest
from typing import Any

import numpy as np

from dew.data.dataset import Batch, DataPartition, Dataset
from dew.data.source import describe, fingerprint, shared_records
from dew.data.stream import RecordStream, ValidationPass
from dew.testing.compare import difference, leaves, row_of, rows_in, whole_step
from dew.testing.counterexample import Check, Counterexample
from dew.testing.source_checks import sampled
from dew.testing.subject import Step, Subject, in_words

# A pass that is longer is taken not to end.
_MOST_STEPS = 100_000


def passes_end_together(subject: Subject, most: int = _MOST_STEPS) -> Check:
    """Every share of every process count sees the same number of steps, and a pass ends."""
    expected: int | None = None
    for count in subject.counts:
        dataset = subject.make()
        for index in range(count):
            steps = sum(1 for _ in _pass(dataset, index, count, most))
            if expected is not None and steps != expected:
                raise Counterexample(
                    f"share {index} of {count} sees {steps} validation steps, share 0 of 1 sees {expected}",
                    step=min(steps, expected),
                )
            expected = steps
            yield True


def passes_repeat(subject: Subject, most: int = _MOST_STEPS, limit: int | None = None) -> Check:
    """A second pass is the same as the first, also after one that was left in the middle; the first `limit` steps."""
    dataset = subject.make()
    with close_at_end(_pass(dataset, 0, 1, most)) as left:
        next(left, None)
    with close_at_end(_pass(dataset, 0, 1, most)) as first, close_at_end(_pass(dataset, 0, 1, most)) as second:
        yield from _same_steps(first, second, "in a second validation pass", limit)


def shares_of_passes_tile(subject: Subject, most: int = _MOST_STEPS, limit: int | None = None) -> Check:
    """The shares of every process count together are the step that one process reads; the first `limit` steps."""
    for count in subject.counts[1:]:
        with ExitStack() as stack:
            alone = stack.enter_context(close_at_end(_pass(subject.make(), 0, 1, most)))
            dataset = subject.make()
            shares = [stack.enter_context(close_at_end(_pass(dataset, i, count, most))) for i in range(count)]
            together = (whole_step(batches) for batches in zip(*shares, strict=False))
            yield from _same_steps(alone, together, f"in validation on {in_words(count)} than on one", limit)


def _same_steps(one: Iterator[Batch], other: Iterator[Batch], how: str, limit: int | None) -> Check:
    for step, (expected, found) in enumerate(zip_longest(islice(one, limit), islice(other, limit))):
        if expected is None or found is None:
            raise Counterexample(f"there are {'more' if expected is None else 'fewer'} steps {how}", step=step)
        Step(step, expected).check(found, how)
        yield True


def passes_score_each_record_once(subject: Subject, valid_field: str | None, most: int = _MOST_STEPS) -> Check:
    """As many valid rows as the split has records, padding only at the end, and the records in their own order."""
    dataset = subject.make()
    batches = list(_pass(dataset, 0, 1, most))
    valid = [_valid(batch, valid_field, step) for step, batch in enumerate(batches)]
    for step, mask in enumerate(valid):
        if step + 1 < len(valid) and not mask.all():
            raise Counterexample("a validation step before the last holds padding", step=step)
        if not mask.any():
            raise Counterexample("a validation step holds padding alone", step=step)
        if (np.diff(mask.astype(np.int8)) > 0).any():
            raise Counterexample("padding stands before a real row", step=step)
        yield True
    opened = _validation_pass(dataset)
    if opened is None:
        return
    source, stored = opened.source, opened.preprocess is None
    scored = int(sum(mask.sum() for mask in valid))
    expected = len(source) if valid_field is not None else len(source) // dataset.batch * dataset.batch
    if scored != expected:
        raise Counterexample(f"a pass scores {scored} records; the split has {len(source)}, of which {expected} count")
    if stored:
        yield from _check_records(source, batches, scored)


def _check_records(source: Any, batches: list[Batch], scored: int) -> Check:
    """Row i of the pass is record i, where no `preprocess` stands between."""
    rows = rows_in(batches[0])
    for index in sampled(source):
        if index < scored:
            record, row = source[index], row_of(batches[index // rows], index % rows)
            if missing := [name for name in record if name not in row]:
                raise Counterexample(f"validation rows lack the field {missing[0]!r}", records=[index])
            unlike = difference(record, {name: row[name] for name in record})
            if unlike is not None and " is <U" not in unlike.text:
                raise Counterexample(
                    f"row {index} of a pass is not record {index}: {unlike.text}",
                    step=index // rows,
                    records=[index],
                )
        yield True


def shares_nothing_with_training(subject: Subject) -> Check:
    """Training and validation read no record in common, as far as their sources can tell."""
    dataset = subject.make()
    stream, passed = dataset.train(DataPartition()), _validation_pass(dataset)
    if isinstance(stream, RecordStream):
        stream.close()
        if passed is not None:
            ours, theirs = stream.source, passed.source
            digest = fingerprint(ours)
            same = ours is theirs or (
                digest is not None and digest == fingerprint(theirs) and describe(ours) == describe(theirs)
            )
            shared = len(theirs) if same else shared_records(ours, theirs)
            if shared:
                raise Counterexample(f"training and validation share {shared} records of {describe(theirs)}")
    yield True


def _pass(dataset: Dataset, index: int, count: int, most: int) -> Generator[Batch]:
    """The batches of one validation pass; the pass is closed at the end."""
    assert dataset.val is not None
    batches: Any = dataset.val(DataPartition(index, count))
    try:
        for step, batch in enumerate(batches):
            if step >= most:
                raise Counterexample(f"a validation pass has not ended after {most} steps", step=step)
            yield batch
    finally:
        if hasattr(batches, "close"):
            batches.close()


def _validation_pass(dataset: Dataset) -> ValidationPass | None:
    """A pass of Dew's own, closed, to ask what it reads."""
    assert dataset.val is not None
    batches = dataset.val(DataPartition())
    if not isinstance(batches, ValidationPass):
        return None
    batches.close()
    return batches


def _valid(batch: Mapping[str, Any], valid_field: str | None, step: int) -> Any:
    rows = rows_in(batch)
    if valid_field is None:
        return np.ones(rows, np.bool_)
    fields = dict(leaves(batch))
    if valid_field not in fields:
        raise Counterexample(f"validation batches have no field {valid_field!r}; they have {sorted(fields)}", step=step)
    mask = np.asarray(fields[valid_field])
    if mask.shape != (rows,) or mask.dtype != np.bool_:
        raise Counterexample(f"field {valid_field!r} is {mask.dtype} {mask.shape}, not bool ({rows},)", step=step)
    return mask
