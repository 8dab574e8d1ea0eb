"""`SourceSuite`: what every record source must do."""

from typing import Any

from dew.data.source import RecordSource
from dew.testing import source_checks as checks
from dew.testing.leaks import assert_nothing_left
from dew.testing.suite import Suite, skip


class SourceSuite(Suite):
    """Subclass and define `make_source`; every call must open the same data anew.

    Attributes:
        largest_pickle: bytes that a pickled source may take; a source pickles by path, never by content. None for a
            source that lives in memory.
        location: text that must not occur in the description, such as the directory of the data.
        one_shape: all records have the same shapes; False for rows that only a `preprocess` makes alike.
        leak_seconds: how long after a `close()` threads and processes may take to end.
    """

    largest_pickle: int | None = 10_000
    location: str | None = None
    one_shape: bool = True
    leak_seconds: float = 5.0

    def make_source(self) -> RecordSource:
        """A fresh source over the same data."""
        raise TypeError(f"{type(self).__name__} must define make_source()")

    def test_has_a_length(self) -> None:
        """A length of at least one record, the same each time."""
        self.check(checks.has_a_length(self.make_source))

    def test_reads_the_same_record_twice(self) -> None:
        """Also from a source that was opened anew."""
        self.check(checks.reads_the_same_record_twice(self.make_source))

    def test_a_record_stays_what_it_was(self) -> None:
        """Reading another record does not change one that was read before."""
        self.check(checks.records_stay(self.make_source))

    def test_fields_dtypes_and_shapes_are_stable(self) -> None:
        """All records have the fields, dtypes and (where `one_shape`) shapes of record 0."""
        self.check(checks.records_have_one_layout(self.make_source, shapes=self.one_shape))

    def test_refuses_records_that_do_not_exist(self) -> None:
        """The record after the last is an IndexError."""
        self.check(checks.refuses_absent_records(self.make_source))

    def test_many_at_once_are_the_same_records(self) -> None:
        """`__getitems__` and `take`, where defined, agree with `source[i]`, in any order and with repeats."""
        self.check(checks.many_are_the_same_records(self.make_source))

    def test_changing_a_record_in_place_leaves_the_source_alone(self) -> None:
        """Or the record is read-only."""
        self.check(checks.records_are_owned(self.make_source))

    def test_threads_read_the_same_records(self) -> None:
        """Eight threads at once get what one gets."""
        self.check(checks.threads_read_the_same(self.make_source))

    def test_pickles_by_path(self) -> None:
        """A small pickle that reads the same records."""
        self.check(checks.pickles_by_path(self.make_source, largest=self.largest_pickle))

    def test_describes_its_data(self) -> None:
        """The description is the same each time, and names no object's address and no location."""
        self.check(checks.describes_its_data(self.make_source, location=self.location))

    def test_identity_is_stable(self) -> None:
        """Fingerprint and identity are the same for a source opened anew."""
        self.check(checks.identity_is_stable(self.make_source))

    def test_opens_a_reader_of_its_own(self) -> None:
        """Where `open` is defined, closing the reader leaves the source and other readers usable."""
        self.check(checks.readers_are_independent(self.make_source))

    def test_closing_a_reader_frees_what_it_holds(self) -> None:
        """Where `open` is defined, `close()` leaves no thread, process, open file or shared memory."""
        source = self.make_source()
        own = getattr(source, "open", None)
        if own is None:
            skip("the source has no open(): streams read it as it is, and close nothing of it")
        self._read_once(own())  # what the first use of a library keeps for itself is no leak
        with assert_nothing_left(seconds=self.leak_seconds):
            self._read_once(own())

    def test_drawn_records_follow_their_generator(self) -> None:
        """Where `drawn` is defined, equal generators give equal records, with the layout of `source[i]`."""
        self.check(checks.drawn_follows_its_generator(self.make_source))

    def test_reading_leaves_the_global_random_generators_alone(self) -> None:
        """Records read from a global generator would not be the same again."""
        self.check(checks.reading_uses_no_global_generator(self.make_source))

    @staticmethod
    def _read_once(reader: Any) -> None:
        _ = reader[0]
        reader.close()
