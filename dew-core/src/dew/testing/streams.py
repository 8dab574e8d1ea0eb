"""`StreamSuite`: what every dataset must do, with flags for streams without random access, length or position."""

import inspect
from collections.abc import Sequence
from typing import Any, Literal, cast

from dew.data.dataset import DataPartition, Dataset
from dew.data.errors import StreamClosedError
from dew.data.loading import Loading
from dew.testing import position_checks, stream_checks, validation_checks
from dew.testing.compare import whole_step
from dew.testing.counterexample import Counterexample
from dew.testing.leaks import assert_nothing_left
from dew.testing.subject import DIRECT, Subject, closing, counts_dividing, taken, varied
from dew.testing.suite import Suite, skip

_RESUMED = (1, 2, 4)
_LOADINGS = (DIRECT, Loading(workers=0, threads=4, read_buffer=3))


class StreamSuite(Suite):
    """Subclass and define `make_dataset`; every call must make the same dataset anew.

    `make_dataset` may take `seed` and `loading` as keywords, with defaults; the suite then makes the dataset of another
    seed, or read in another way, by them. Without them it changes what Dew's own streams are made of.

    Attributes:
        steps: steps that are read; small data and a few more steps than an epoch has find the most.
        largest_count: process counts up to this one are tried, where they divide the batch.
        valid_field: name of the validation mask; None where the remainder is dropped.
        random_access: training iterators are record streams; False for a stream that is only read forwards.
        position: the kind of position that training iterators save: "records" resumes on any process count, "shard" on
            the one that wrote it; None where they have no `get_state`.
        known_length: the dataset knows its number of records.
        shares_validation: validation reads records of training on purpose (`allow_overlap`).
        longest_pass: a validation pass of more steps is taken not to end.
        workers: worker processes that the steps are read with once more; 0 leaves that out.
        leak_seconds: how long after a `close()` threads and processes may take to end.
    """

    steps: int = 6
    largest_count: int = 64
    valid_field: str | None = "valid"
    random_access: bool = True
    position: Literal["records", "shard"] | None = "records"
    known_length: bool = True
    shares_validation: bool = False
    longest_pass: int = 100_000
    workers: int = 0
    leak_seconds: float = 5.0

    def make_dataset(self) -> Dataset:
        """A fresh dataset over the same data, with the same seed."""
        raise TypeError(f"{type(self).__name__} must define make_dataset()")

    # What every stream does

    def test_batches_have_stable_fields_dtypes_and_shapes(self) -> None:
        """Every batch has the fields, dtypes and row shapes of the first."""
        self.check(stream_checks.batches_have_one_layout(self.subject([1])))

    def test_a_share_has_its_rows(self) -> None:
        """Rows of a batch are the global batch divided by the number of shares."""
        self.check(stream_checks.shares_have_their_rows(self.subject()))

    def test_shares_tile_the_global_batch(self) -> None:
        """For each process count the shares together are the step that one process reads, fields and draws alike."""
        self._needs_one_order()
        self.check(stream_checks.shares_tile(self.subject()))

    def test_batches_are_owned_by_the_receiver(self) -> None:
        """C-contiguous and writable; writing into one changes no other batch."""
        self.check(stream_checks.batches_are_owned(self.subject([1])))

    def test_knows_its_length_or_says_that_it_does_not(self) -> None:
        """`records` is a number exactly where `known_length` says so."""
        records = self.make_dataset().records
        if (records is not None) != self.known_length:
            raise Counterexample(f"the dataset has records={records}, the suite known_length={self.known_length}")

    def test_content_does_not_depend_on_loading(self) -> None:
        """Threads, buffers and (where `workers`) processes change no record and no draw."""
        loadings = [*_LOADINGS, *([Loading(workers=self.workers, threads=1)] if self.workers else [])]
        made = [(loading, self._made(loading=loading)) for loading in loadings]
        others = [
            (stream_checks.loading_in_words(loading), dataset) for loading, dataset in made if dataset is not None
        ]
        if not others:
            skip("make_dataset takes no loading=, and the stream is not one of Dew's own")
        self.check(stream_checks.loading_changes_nothing(self.subject([1]), others))

    def test_leaves_the_global_random_generators_alone(self) -> None:
        """Records drawn from a global generator would not be the same again."""
        self.check(stream_checks.uses_no_global_generator(self.subject([1])))

    def test_close_leaves_nothing_behind(self) -> None:
        """No thread, process, open file or shared memory, in training or validation; and a closed stream says so."""
        dataset = self.make_dataset()
        self._read_and_close(dataset)  # what the first use of a library keeps for itself
        with assert_nothing_left(seconds=self.leak_seconds):
            for _ in range(2):
                self._read_and_close(dataset)
            stream = self._read_and_close(dataset)
        try:
            next(stream)
        except StreamClosedError:
            return
        except StopIteration:
            raise Counterexample("a closed stream looks like one that has ended; raise StreamClosedError") from None
        raise Counterexample("a closed stream still hands out batches")

    def test_a_dropped_stream_leaves_nothing_behind(self) -> None:
        """The same for a stream that nobody closed, once it is collected."""
        dataset = self.make_dataset()
        self._read_and_close(dataset)
        with assert_nothing_left(seconds=self.leak_seconds):
            taken(dataset.train(DataPartition()), 0)

    # What record streams do

    def test_rows_are_the_records_that_ids_names(self) -> None:
        """`ids(step)` has one record a row and is the same on every share."""
        self._needs_random_access()
        self.check(stream_checks.ids_name_the_records(self.subject()))

    def test_epochs_hold_each_record_once(self) -> None:
        """The first epochs of the order (of a mixture, of each part) are permutations of all records."""
        self._needs_random_access()
        self.check(stream_checks.epochs_hold_each_record_once(self.subject([1])))

    def test_the_order_finds_a_record_again(self) -> None:
        """`order.places(record)` are the places at which the record is read, and no others."""
        self._needs_random_access()
        self.check(stream_checks.order_has_an_inverse(self.subject([1])))

    def test_the_seed_makes_the_order(self) -> None:
        """The same seed gives the same order; another seed another, and its positions are told apart."""
        self._needs_random_access()
        self.check(stream_checks.seed_makes_the_order(self.subject([1]), self._made(seed=987_654_321)))

    # Positions

    def test_has_the_position_it_claims(self) -> None:
        """A stream without a position has no `get_state` and no `set_state`."""
        self.check(position_checks.has_the_position_it_claims(self.subject([1]), self.position))

    def test_every_process_saves_the_same_position(self) -> None:
        """One integer for the whole run, which JSON carries."""
        self._needs_one_order()
        self.check(position_checks.saves_one_position(self.subject()))

    def test_resumes_at_every_step_on_every_process_count(self) -> None:
        """Saved at each step by each process count, restored on each other one: the rest is the same."""
        if self.position is None:
            skip("the stream has no position")
        subject = self.subject([count for count in self.counts() if count in _RESUMED])
        whole_run = self.position == "records"
        resumes = position_checks.resumes_on_every_count if whole_run else position_checks.resumes_its_own_shard
        self.check(resumes(subject))

    def test_restores_wherever_it_stands(self) -> None:
        """A stream that has read any number of steps goes back or forward to any saved position."""
        self._needs_one_order()
        self.check(position_checks.restores_wherever_it_stands(self.subject([1])))

    def test_setting_its_own_state_changes_nothing(self) -> None:
        """`set_state(get_state())`, before and after reading."""
        if self.position is None:
            skip("the stream has no position")
        self.check(position_checks.setting_its_own_state_changes_nothing(self.subject([1])))

    def test_refuses_positions_of_other_data(self) -> None:
        """Of another source, record count, seed, order version or batch; a shard's of another share or count."""
        if self.position is None:
            skip("the stream has no position")
        whole_run = self.position == "records"
        refuses = position_checks.refuses_other_positions if whole_run else position_checks.refuses_other_shards
        self.check(refuses(self.subject()))

    # Validation

    def test_validation_ends_together(self) -> None:
        """Every share of every process count sees the same number of steps."""
        self._needs_validation()
        self.check(validation_checks.passes_end_together(self.subject(), self.longest_pass))

    def test_validation_repeats(self) -> None:
        """Every pass is the same, also after one that was left in the middle."""
        self._needs_validation()
        self.check(validation_checks.passes_repeat(self.subject([1]), self.longest_pass))

    def test_validation_shares_tile(self) -> None:
        """For each process count the shares together are the validation step that one process reads."""
        self._needs_validation()
        self.check(validation_checks.shares_of_passes_tile(self.subject(), self.longest_pass))

    def test_validation_scores_each_record_once(self) -> None:
        """As many valid rows as the split has records, padding only at the end."""
        self._needs_validation()
        scores = validation_checks.passes_score_each_record_once
        self.check(scores(self.subject([1]), self.valid_field, self.longest_pass))

    def test_validation_shares_nothing_with_training(self) -> None:
        """As far as the sources can tell."""
        self._needs_validation()
        if self.shares_validation:
            skip("validation reads records of training on purpose")
        self.check(validation_checks.shares_nothing_with_training(self.subject([1])))

    # How the tests are run

    def counts(self) -> list[int]:
        """Process counts up to `largest_count` that divide every global batch."""
        return list(counts_dividing(self.make_dataset(), range(1, self.largest_count + 1)))

    def subject(self, counts: Sequence[int] | None = None) -> Subject:
        """What the checks look at; by default at all process counts."""
        if self.steps < 2:
            raise TypeError(f"{type(self).__name__}.steps must be at least 2, got {self.steps}")
        return Subject(make=self.make_dataset, steps=self.steps, counts=tuple(counts or self.counts()))

    def _made(self, **wanted: Any) -> Dataset | None:
        """The dataset with another seed or loading; None where there is no way to make it."""
        takes = inspect.signature(self.make_dataset).parameters
        if set(wanted) <= set(takes):
            return cast("Any", self.make_dataset)(**wanted)
        return varied(self.make_dataset(), **wanted)

    def _needs_one_order(self) -> None:
        if self.position != "records":
            skip("shares of this stream are cut from shards, so its steps differ with the process count")

    def _needs_random_access(self) -> None:
        if not self.random_access:
            skip("the stream has no random access, so no order and no ids")

    def _needs_validation(self) -> None:
        if self.make_dataset().val is None:
            skip("the dataset has no validation")

    @staticmethod
    def _read_and_close(dataset: Dataset) -> Any:
        stream: Any = dataset.train(DataPartition())
        taken(stream, 0)
        stream.close()
        stream.close()
        if dataset.val is not None:
            with closing([dataset.val(DataPartition())]) as (batches,):
                taken(batches, 0)
        return stream


__all__ = ["StreamSuite", "whole_step"]
