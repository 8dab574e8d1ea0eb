"""What every record source must do, as checks. Each takes `make`, which opens the same data anew on every call."""

import pickle
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from dew.data.order import draws_at
from dew.data.source import RecordSource, describe, fingerprint, identity
from dew.testing.compare import arrays_of, copied, difference, layout, row_of
from dew.testing.counterexample import Check, Counterexample

MakeSource: TypeAlias = Callable[[], RecordSource]

_SAMPLED = 16


def sampled(source: RecordSource, most: int = _SAMPLED) -> list[int]:
    """At most `most` indices over the whole source, first and last included."""
    return sorted(set(np.linspace(0, len(source) - 1, most, dtype=np.int64).tolist()))


def has_a_length(make: MakeSource) -> Check:
    """A length of at least one record, the same each time."""
    source = make()
    if len(source) < 1:
        raise Counterexample("the source holds no records")
    yield True
    if len(source) != (other := len(make())):
        raise Counterexample(f"the source has {len(source)} records, and {other} when it is opened anew")
    yield True


def reads_the_same_record_twice(make: MakeSource, indices: Sequence[int] | None = None) -> Check:
    """Also from a source that was opened anew."""
    source, other = make(), make()
    for index in sampled(source) if indices is None else indices:
        once = copied(source[index])  # a buffer that is filled again would agree with itself
        alike(once, source[index], "is not the same when it is read again", index)
        alike(once, other[index], "is not the same in a source that is opened anew", index)
        yield True


def records_stay(make: MakeSource) -> Check:
    """Reading another record does not change one that was read before, as a buffer that is filled again would."""
    source = make()
    kept = [(record, copied(record)) for record in map(source.__getitem__, sampled(source))]
    for index, (record, before) in zip(sampled(source), kept, strict=True):
        alike(before, record, "changed when other records were read", index)
        yield True


def records_have_one_layout(make: MakeSource, *, shapes: bool) -> Check:
    """All records have the fields and dtypes of record 0, and its shapes where `shapes`."""
    source = make()
    first = layout(source[0], shapes=shapes)
    for index in sampled(source):
        found = layout(source[index], shapes=shapes)
        if found != first:
            raise Counterexample(f"record 0 has the fields {first}, this one {found}", records=[index])
        yield True


def refuses_absent_records(make: MakeSource) -> Check:
    """The record after the last is an IndexError."""
    source = make()
    try:
        source[len(source)]
    except IndexError:
        yield True
        return
    except Exception as error:
        raise Counterexample(
            f"a record past the end is a {type(error).__name__}, not an IndexError", records=[len(source)]
        ) from error
    raise Counterexample("a record past the end is read as if it existed", records=[len(source)])


def many_are_the_same_records(make: MakeSource) -> Check:
    """`__getitems__` and `take`, where defined, agree with `source[i]`, in any order and with repeats."""
    source = make()
    indices = [*reversed(sampled(source)), 0, 0]
    expected = [copied(source[index]) for index in indices]
    many, take = getattr(source, "__getitems__", None), getattr(source, "take", None)
    if many is not None:
        together = many(indices)
        if len(together) != len(indices):
            raise Counterexample(f"__getitems__ was asked for {len(indices)} records and returned {len(together)}")
        for index, one, record in zip(indices, expected, together, strict=True):
            alike(one, record, "is another from __getitems__", index)
            yield True
    if take is not None:
        columns = take(np.array(indices, np.int64))
        for row, index in enumerate(indices):
            alike(expected[row], row_of(columns, row), "is another from take", index)
            yield True


def records_are_owned(make: MakeSource) -> Check:
    """Changing a record in place leaves the source alone, or the record is read-only."""
    source = make()
    before = copied(source[0])
    _overwrite(source[0])
    alike(before, source[0], "is another after it was changed in place", 0)
    yield True
    take = getattr(source, "take", None)
    if take is not None:
        indices = np.array(sampled(source), np.int64)
        columns = copied(take(indices))
        _overwrite(take(indices))
        alike(columns, take(indices), "are others after columns from take were changed", *indices)
        yield True


def threads_read_the_same(make: MakeSource) -> Check:
    """Eight threads at once get what one gets."""
    source = make()
    indices = sampled(source) * 4
    other = make()
    expected = [copied(other[index]) for index in sampled(source)] * 4
    with ThreadPoolExecutor(8) as threads:
        for index, left, right in zip(indices, threads.map(source.__getitem__, indices), expected, strict=True):
            alike(right, left, "is another when eight threads read at once", index)
            yield True


def pickles_by_path(make: MakeSource, *, largest: int | None) -> Check:
    """A pickle of at most `largest` bytes that reads the same records."""
    source = make()
    try:
        data = pickle.dumps(source)
    except Exception as error:
        raise Counterexample(
            f"the source does not pickle, so no worker process can open it: {type(error).__name__}: {error}; "
            "define __reduce__, which returns how to open it by path"
        ) from error
    if largest is not None and len(data) > largest:
        raise Counterexample(
            f"a pickle of the source takes {len(data)} bytes, more than {largest}: "
            "a source pickles by path, never by content"
        )
    other = pickle.loads(data)
    if len(other) != len(source):
        raise Counterexample(f"the source has {len(source)} records, and {len(other)} after a pickle")
    for index in sampled(source):
        alike(copied(source[index]), other[index], "is another after a pickle", index)
        yield True


def describes_its_data(make: MakeSource, *, location: str | None) -> Check:
    """The description is the same each time, and names no object's address and no location."""
    source = make()
    text, again = describe(source), describe(make())
    if type(source).__repr__ is object.__repr__:
        raise Counterexample(f"{type(source).__name__} has no __repr__: it names the data in saved positions")
    if " at 0x" in repr(source):
        raise Counterexample(f"the repr names an object's address: {repr(source)!r}")
    if text != again:
        raise Counterexample(f"the source is {text!r}, and {again!r} when it is opened anew")
    yield True
    if location is not None and location in repr(source):
        raise Counterexample(f"the repr names a location, so that a moved copy is other data: {repr(source)!r}")
    yield True


def identity_is_stable(make: MakeSource) -> Check:
    """Fingerprint and identity are the same for a source opened anew."""
    source, other = make(), make()
    for name, part in (("fingerprint", fingerprint), ("identity", identity)):
        here, there = part(source), part(other)
        if here != there:
            raise Counterexample(f"the {name} is {here!r}, and {there!r} when the source is opened anew")
        yield True


def readers_are_independent(make: MakeSource) -> Check:
    """Where `open` is defined, closing the reader leaves the source and other readers usable."""
    source = make()
    own = getattr(source, "open", None)
    if own is None:
        return
    one, two = own(), own()
    alike(copied(one[0]), two[0], "is another from a second reader", 0)
    one.close()
    try:
        alike(copied(source[0]), two[0], "is another once a first reader was closed", 0)
    except Counterexample:
        raise
    except Exception as error:
        raise Counterexample(
            f"closing one reader broke another: {type(error).__name__}: {error}", records=[0]
        ) from error
    finally:
        two.close()
    yield True


def drawn_follows_its_generator(make: MakeSource) -> Check:
    """Where `drawn` is defined, equal generators give equal records, with the layout of `source[i]`."""
    source = make()
    drawn = getattr(source, "drawn", None)
    if drawn is None:
        return
    other: Any = make()
    for index in sampled(source):
        plain, once = copied(source[index]), copied(drawn(index, draws_at(1, index)))
        if layout(once, shapes=True) != layout(plain, shapes=True):
            raise Counterexample(
                f"source[i] has the fields {layout(plain, shapes=True)}, drawn(i) {layout(once, shapes=True)}",
                records=[index],
            )
        drawn(index, draws_at(2, index))  # other draws leave no trace
        alike(once, drawn(index, draws_at(1, index)), "is drawn otherwise from an equal generator", index)
        alike(once, other.drawn(index, draws_at(1, index)), "is drawn otherwise by a source that is opened anew", index)
        alike(plain, source[index], "is another after it was drawn", index)
        yield True


def reading_uses_no_global_generator(make: MakeSource) -> Check:
    """Records that are read from a global generator would not be the same again."""
    with watched_generators() as used:
        source = make()
        for index in sampled(source):
            _ = source[index]
            if hasattr(source, "drawn"):
                source.drawn(index, draws_at(1, index))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            if name := used():
                raise Counterexample(f"reading uses the global generator of {name}", records=[index])
            yield True


@contextmanager
def watched_generators(seed: int = 1) -> Generator[Callable[[], str | None]]:
    """Seeds the global generators, yields a function that names one that was used since, and puts them back."""
    # Exactly the global generator is watched.
    saved = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    before = random.getstate(), _words()

    def used() -> str | None:
        if random.getstate() != before[0]:
            return "the module random"
        return None if _words() == before[1] else "numpy.random"

    try:
        yield used
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])


def _words() -> tuple[Any, ...]:
    state: Any = np.random.get_state()
    return (state[1].tobytes(), *state[2:])


def alike(expected: Mapping[str, Any], found: Mapping[str, Any], otherwise: str, *records: int) -> None:
    """Refuses records that differ; `otherwise` says what that means."""
    if (unlike := difference(expected, found)) is not None:
        what = "a record" if len(records) == 1 else "records"
        raise Counterexample(f"{what} {otherwise}: {unlike.text}", records=records)


def _overwrite(values: Mapping[str, Any]) -> None:
    for array in arrays_of(values):
        if array.flags.writeable and array.size and array.dtype.kind in "biuf":
            array[...] = np.logical_not(array)  # changes every value
