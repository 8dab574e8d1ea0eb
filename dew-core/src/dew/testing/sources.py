"""`SourceSuite`: what every record source must do."""

import pickle
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

from dew.data.source import RecordSource, describe, fingerprint, identity

_SAMPLED = 16


class SourceSuite:
    """Subclass and define `make_source`; every call must open the same data anew.

    Attributes:
        largest_pickle: bytes that a pickled source may take; a source pickles by path, never by content. None for a
            source that lives in memory.
        location: text that must not occur in the description, such as the directory of the data.
    """

    largest_pickle: int | None = 10_000
    location: str | None = None

    def make_source(self) -> RecordSource:
        """A fresh source over the same data."""
        raise TypeError(f"{type(self).__name__} must define make_source()")

    def test_has_a_length(self) -> None:
        """A length of at least one record, the same each time."""
        source = self.make_source()
        assert len(source) >= 1
        assert len(source) == len(self.make_source())

    def test_reads_the_same_record_twice(self) -> None:
        """Also from a source that was opened anew."""
        source, other = self.make_source(), self.make_source()
        for index in sampled(source):
            assert_same(source[index], source[index])
            assert_same(source[index], other[index])

    def test_a_record_stays_what_it_was(self) -> None:
        """Reading another record does not change one that was read before, as a buffer that is filled again would."""
        source = self.make_source()
        kept = [source[index] for index in sampled(source)]
        for index, record in zip(sampled(source), kept, strict=True):
            assert_same(record, self.make_source()[index])

    def test_fields_and_dtypes_are_stable(self) -> None:
        """All records have the fields and dtypes of record 0."""
        source = self.make_source()
        first = layout(source[0])
        for index in sampled(source):
            assert layout(source[index]) == first, f"record {index} differs from record 0"

    def test_refuses_records_that_do_not_exist(self) -> None:
        """The record after the last is an IndexError."""
        source = self.make_source()
        with pytest.raises(IndexError):
            source[len(source)]

    def test_many_at_once_are_the_same_records(self) -> None:
        """`__getitems__` and `take`, where defined, agree with `source[i]`, in any order and with repeats."""
        source = self.make_source()
        indices = [*reversed(sampled(source)), 0, 0]
        one_by_one = [source[index] for index in indices]
        many = getattr(source, "__getitems__", None)
        if many is not None:
            together = many(indices)
            assert len(together) == len(indices)
            for left, right in zip(together, one_by_one, strict=True):
                assert_same(left, right)
        take = getattr(source, "take", None)
        if take is not None:
            columns = take(np.array(indices, np.int64))
            for row, record in enumerate(one_by_one):
                assert_same(row_of(columns, row), record)

    def test_changing_a_record_in_place_leaves_the_source_alone(self) -> None:
        """Or the record is read-only."""
        source = self.make_source()
        _overwrite(source[0])
        assert_same(source[0], self.make_source()[0])
        take = getattr(source, "take", None)
        if take is not None:
            indices = np.array(sampled(source), np.int64)
            _overwrite(take(indices))
            assert_same(take(indices), self.make_source().take(indices))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]

    def test_threads_read_the_same_records(self) -> None:
        """Eight threads at once get what one gets."""
        source = self.make_source()
        indices = sampled(source) * 4
        expected = [self.make_source()[index] for index in indices]
        with ThreadPoolExecutor(8) as threads:
            for left, right in zip(threads.map(source.__getitem__, indices), expected, strict=True):
                assert_same(left, right)

    def test_pickles_by_path(self) -> None:
        """A small pickle that reads the same records."""
        source = self.make_source()
        data = pickle.dumps(source)
        if self.largest_pickle is not None:
            assert len(data) <= self.largest_pickle, "a source pickles by path, never by content"
        other = pickle.loads(data)
        assert len(other) == len(source)
        for index in sampled(source):
            assert_same(other[index], source[index])

    def test_describes_its_data(self) -> None:
        """The description is the same each time, and names no object's address and no location."""
        source = self.make_source()
        text = describe(source)
        assert text == describe(self.make_source())
        assert type(source).__repr__ is not object.__repr__, "define __repr__: it names the data in saved positions"
        assert " at 0x" not in repr(source)
        if self.location is not None:
            assert self.location not in text

    def test_identity_is_stable(self) -> None:
        """Fingerprint and identity are the same for a source opened anew."""
        source, other = self.make_source(), self.make_source()
        assert fingerprint(source) == fingerprint(other)
        assert identity(source) == identity(other)

    def test_opens_a_reader_of_its_own(self) -> None:
        """Where `open` is defined, closing the reader leaves the source and other readers usable."""
        source = self.make_source()
        own = getattr(source, "open", None)
        if own is None:
            return
        one, two = own(), own()
        assert_same(one[0], two[0])
        one.close()
        assert_same(two[0], source[0])
        two.close()


def sampled(source: RecordSource) -> list[int]:
    """At most sixteen indices over the whole source, first and last included."""
    return sorted(set(np.linspace(0, len(source) - 1, _SAMPLED, dtype=np.int64).tolist()))


def layout(record: Mapping[str, Any]) -> dict[str, Any]:
    """Field -> dtype, without the width of text."""
    kinds: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            kinds[name] = layout(cast("Mapping[str, Any]", value))
        else:
            dtype = np.asarray(value).dtype
            kinds[name] = "text" if dtype.kind == "U" else dtype
    return kinds


def arrays_of(record: Mapping[str, Any]) -> list[np.ndarray[Any, np.dtype[Any]]]:
    """All NumPy arrays of a record, nested ones too."""
    found: list[np.ndarray[Any, np.dtype[Any]]] = []
    for value in record.values():
        if isinstance(value, Mapping):
            found += arrays_of(cast("Mapping[str, Any]", value))
        elif isinstance(value, np.ndarray):
            found.append(cast("np.ndarray[Any, np.dtype[Any]]", value))
    return found


def _overwrite(values: Mapping[str, Any]) -> None:
    for array in arrays_of(values):
        if array.flags.writeable and array.size and array.dtype.kind in "biuf":
            array[...] = np.logical_not(array)  # changes every value


def row_of(columns: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Row `row` of every column."""
    return {
        name: row_of(cast("Mapping[str, Any]", value), row) if isinstance(value, Mapping) else value[row]
        for name, value in columns.items()
    }


def assert_same(left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    """Two records, or two batches, with the same fields, dtypes and values; NaN equals NaN.

    Raises:
        AssertionError: naming the first field that differs.
    """
    assert list(left) == list(right)
    for name, value in left.items():
        other = right[name]
        if isinstance(value, Mapping):
            assert_same(cast("Mapping[str, Any]", value), other)
            continue
        here, there = np.asarray(value), np.asarray(other)
        if "U" not in (here.dtype.kind, there.dtype.kind):
            assert here.dtype == there.dtype, f"field {name!r}"
        np.testing.assert_array_equal(here, there, err_msg=f"field {name!r}")
