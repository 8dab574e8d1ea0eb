"""`StreamSuite`: what every dataset whose training iterators have a record position must do."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest

from dew.data.dataset import Batch, DataPartition, Dataset
from dew.data.errors import PositionMismatchError, StreamClosedError
from dew.data.stream import RecordStream, ValidationPass
from dew.testing.leaks import assert_nothing_left
from dew.testing.sources import assert_same, row_of, sampled


class StreamSuite:
    """Subclass and define `make_dataset`; every call must make the same dataset anew.

    Attributes:
        steps: steps that are read; small data and a few more steps than an epoch has find the most.
        largest_count: process counts up to this one are tried, where they divide the batch.
        valid_field: name of the validation mask; None where the remainder is dropped.
    """

    steps: int = 6
    largest_count: int = 4
    valid_field: str | None = "valid"

    def make_dataset(self) -> Dataset:
        """A fresh dataset over the same data, with the same seed."""
        raise TypeError(f"{type(self).__name__} must define make_dataset()")

    def counts(self) -> list[int]:
        """Process counts that divide the global batch."""
        batch = self.make_dataset().batch
        return [count for count in range(1, self.largest_count + 1) if batch % count == 0]

    def test_batches_are_owned_by_the_receiver(self) -> None:
        """C-contiguous and writable; writing into one changes no other batch."""
        dataset = self.make_dataset()
        with _streams(dataset, 1)[0] as stream, _streams(dataset, 1)[0] as other:
            for _ in range(self.steps):
                batch, same = next(stream), next(other)
                assert_same(batch, same)
                for array in _arrays(batch):
                    assert array.flags.c_contiguous
                    assert array.flags.writeable
                    array[...] = np.zeros((), array.dtype)

    def test_shares_tile_the_global_batch(self) -> None:
        """For each process count the shares together are the step that one process reads, fields and draws alike."""
        alone = self.read(1, self.steps)
        for count in self.counts():
            for step, batch in enumerate(self.read(count, self.steps)):
                assert_same(batch, alone[step])

    def test_rows_are_the_records_that_ids_names(self) -> None:
        """`ids(step)` has one record a row and is the same on every share."""
        dataset = self.make_dataset()
        for count in self.counts():
            streams = _streams(dataset, count)
            for step in range(self.steps):
                ids = [stream.ids(step) for stream in streams]
                assert len(ids[0]) == sum(_rows(next(stream)) for stream in streams)
                for other in ids[1:]:
                    np.testing.assert_array_equal(ids[0], other)
            _close(streams)

    def test_epochs_hold_each_record_once(self) -> None:
        """The first whole epoch of the order is a permutation of all records."""
        dataset = self.make_dataset()
        (stream,) = _streams(dataset, 1)
        records = stream.order.records
        if records <= 1_000_000:
            epoch = stream.order.at(np.arange(records, dtype=np.int64))
            np.testing.assert_array_equal(np.sort(epoch), np.arange(records))
        stream.close()

    def test_resumes_at_every_step_on_every_process_count(self) -> None:
        """Saved at each step by each process count, restored on each other one: the rest is the same."""
        alone = self.read(1, self.steps + 2)
        for saved_by in self.counts():
            for step, state in enumerate(self.states(saved_by)):
                for count in self.counts():
                    streams = _streams(self.make_dataset(), count)
                    for stream in streams:
                        stream.set_state(state)
                    for later in (step, step + 1):
                        assert_same(whole_step([next(stream) for stream in streams]), alone[later])
                    _close(streams)

    def test_every_process_saves_the_same_position(self) -> None:
        """One integer for the whole run, which JSON carries."""
        for count in self.counts():
            streams = _streams(self.make_dataset(), count)
            for step in range(self.steps):
                states = [stream.get_state() for stream in streams]
                assert all(state == states[0] for state in states)
                assert json.loads(json.dumps(states[0])) == states[0]
                assert states[0]["records"] == streams[0].position.span(step)[0]
                for stream in streams:
                    next(stream)
            _close(streams)

    def test_setting_its_own_state_changes_nothing(self) -> None:
        """`set_state(get_state())`, before and after reading."""
        (stream,), (other,) = _streams(self.make_dataset(), 1), _streams(self.make_dataset(), 1)
        for _ in range(self.steps):
            stream.set_state(stream.get_state())
            assert_same(next(stream), next(other))
        assert stream.get_state() == other.get_state()
        _close([stream, other])

    def test_refuses_positions_of_other_data(self) -> None:
        """Another fingerprint, record count, seed or order version is refused by name."""
        (stream,) = _streams(self.make_dataset(), 1)
        state = stream.get_state()
        for part in ("fingerprint", "records", "seed", "version", "source"):
            if part in state["order"]:
                other = {**state, "order": {**state["order"], part: "something else"}}
                with pytest.raises(PositionMismatchError, match=part):
                    stream.set_state(other)
        stream.close()

    def test_leaves_the_global_random_generators_alone(self) -> None:
        """Records drawn from a global generator would not be the same again."""
        random.seed(1)
        np.random.seed(1)  # exactly the global generator is watched
        before = random.getstate(), np.random.get_state()[1].tolist()  # pyright: ignore[reportCallIssue, reportArgumentType]
        first = self.read(1, self.steps)
        after = random.getstate(), np.random.get_state()[1].tolist()  # pyright: ignore[reportCallIssue, reportArgumentType]
        assert after == before, "preprocess or the source uses a global random generator; use the rng it is given"
        for step, batch in enumerate(self.read(1, self.steps)):
            assert_same(batch, first[step])

    def test_close_leaves_nothing_behind(self) -> None:
        """No thread, process, open file or shared memory; and a closed stream says so."""
        dataset = self.make_dataset()
        _close(_streams(dataset, 1))  # what the first use of a library keeps for itself
        with assert_nothing_left():
            (stream,) = _streams(dataset, 1)
            next(stream)
            stream.close()
            stream.close()
        with pytest.raises(StreamClosedError, match="closed"):
            next(stream)

    def test_validation_scores_each_record_once(self) -> None:
        """At every process count: equal numbers of steps, the same rows, each record in one valid row."""
        dataset = self.make_dataset()
        if dataset.val is None:
            return
        alone = self.validate(1)
        for count in self.counts():
            for step, batch in enumerate(self.validate(count)):
                assert_same(batch, alone[step])
        if self.valid_field is not None:
            padding = [int((~batch[self.valid_field]).sum()) for batch in alone]
            assert not any(padding[:-1]), "only the last global batch may hold padding"
            assert padding[-1] < dataset.batch
        passes = dataset.val(DataPartition())
        if isinstance(passes, ValidationPass):
            self._check_rows_scored(passes, alone)

    def _check_rows_scored(self, passes: ValidationPass, batches: Sequence[Batch]) -> None:
        """As many valid rows as the split has records, and without `preprocess` these records in their order."""
        passes.close()
        source = passes.source
        rows = [row_of(batch, row) for batch in batches for row in range(_rows(batch))]
        if self.valid_field is not None:
            rows = [row for row in rows if row.pop(self.valid_field)]
            assert len(rows) == len(source), "each record of the split is scored exactly once"
        if passes.preprocess is None:
            for index in sampled(source):
                if index < len(rows):
                    assert_same({name: rows[index][name] for name in source[index]}, source[index])

    def read(self, count: int, steps: int) -> list[Batch]:
        """Global batches of the first `steps` steps, read by `count` shares."""
        streams = _streams(self.make_dataset(), count)
        batches = [whole_step([next(stream) for stream in streams]) for _ in range(steps)]
        _close(streams)
        return batches

    def states(self, count: int) -> list[dict[str, Any]]:
        """Positions before each of the first steps, saved by share 0 of `count`."""
        streams = _streams(self.make_dataset(), count)
        states: list[dict[str, Any]] = []
        for _ in range(self.steps):
            states.append(json.loads(json.dumps(streams[0].get_state())))
            next(streams[0])
        _close(streams)
        return states

    def validate(self, count: int) -> list[Batch]:
        """Global batches of a whole validation pass, read by `count` shares."""
        dataset = self.make_dataset()
        assert dataset.val is not None
        passes = [list(dataset.val(DataPartition(index, count))) for index in range(count)]
        assert len({len(batches) for batches in passes}) == 1, "processes see different numbers of validation steps"
        return [whole_step(batches) for batches in zip(*passes, strict=True)]


def whole_step(shares: Sequence[Mapping[str, Any]]) -> Batch:
    """The global batch of a step from the batches of all its shares: row i of share p is row p + i * count."""
    first = shares[0]
    whole: Batch = {}
    for name, value in first.items():
        if isinstance(value, Mapping):
            whole[name] = whole_step([cast("Mapping[str, Any]", share[name]) for share in shares])
        else:
            parts = [np.asarray(share[name]) for share in shares]
            whole[name] = np.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:])
    return whole


def _streams(dataset: Dataset, count: int) -> list[RecordStream]:
    streams = [dataset.train(DataPartition(index, count)) for index in range(count)]
    for stream in streams:
        assert isinstance(stream, RecordStream), "the suite tests record streams, which have a record position"
    return cast("list[RecordStream]", streams)


def _close(streams: Sequence[RecordStream]) -> None:
    for stream in streams:
        stream.close()


def _rows(batch: Mapping[str, Any]) -> int:
    return len(_arrays(batch)[0])


def _arrays(batch: Mapping[str, Any]) -> list[Any]:
    found: list[Any] = []
    for value in batch.values():
        found += _arrays(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else [value]
    return found
