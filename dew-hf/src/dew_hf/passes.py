"""Reading a stream: rows of one share, pass after pass, and one validation pass over the unsplit stream.

What a step needs to be read again is known before it is read: the library's state before the chunk that is under way,
and how many of the chunk's rows were taken. So a position is exact at any row, wherever passes and chunks end.
"""

import copy
import hashlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, TypeAlias, cast

import attrs
import numpy as np

from dew.data import metrics
from dew.data.collate import collate
from dew.data.dataset import Batch, DataPartition
from dew.data.errors import OptionsError, SourceError
from dew.data.fields import zero_padding
from dew.data.loading import Loading
from dew.data.order import draws_at
from dew.data.pool import RecordPool
from dew.data.source import Preprocess, Record
from dew.data.step import StepStoppedError, takes_draws
from dew.data.stepstream import StepStream
from dew_hf.opening import split_share
from dew_hf.sources import Stream
from dew_hf.values import Rows, row_alone

TRAINING: Final = 0  # salts of the draws, as in `dew.data.step`
VALIDATION: Final = 1


Row: TypeAlias = tuple[Rows, int]
"""A row that is not looked at yet: asking its chunk for it is what decodes images."""


@attrs.frozen(kw_only=True)
class Setup:
    """What reading a stream takes, checked."""

    stream: Stream
    batch: int
    seed: int
    preprocess: Preprocess
    loading: Loading
    shuffle_buffer: int = 0


class ShardRows:
    """The rows of one share, pass after pass, from a state on."""

    START: ClassVar[dict[str, Any]] = {"pass": 0, "rows": 0, "taken": 0, "stream": None}

    def __init__(self, setup: Setup, partition: DataPartition, strategy: str, state: dict[str, Any]) -> None:
        self._setup = setup
        self._partition = partition
        self._strategy = strategy
        self._size = partition.rows(setup.batch)
        self._pass: int = state["pass"]
        self._rows: int = state["rows"]
        self._skip: int = state["taken"]
        self._before: Any = state["stream"]
        self._tracked = setup.stream.no_position is None
        self._found = self._before is not None or self._skip > 0
        self._chunk: Rows | None = None
        self._taken = 0
        self._opened: Any = None
        self._chunks: Iterator[Rows] | None = None

    @property
    def state(self) -> dict[str, Any]:
        """Where the next row is, as JSON values."""
        taken, before = (self._skip, self._before) if self._chunk is None else (self._taken, self._before)
        return {"pass": self._pass, "rows": self._rows, "taken": taken, "stream": before}

    @property
    def rows(self) -> int:
        """Rows read so far, over all passes."""
        return self._rows

    def take(self, count: int) -> list[Row]:
        """The next `count` rows.

        Raises:
            SourceError: a pass had no row for this share; names the share and the rows read.
        """
        taken: list[Row] = []
        while len(taken) < count:
            chunk = self._current()
            stop = min(len(chunk), self._taken + count - len(taken))
            taken += [(chunk, row) for row in range(self._taken, stop)]
            self._taken = stop
            if stop == len(chunk):
                self._finish_chunk()
        self._rows += count
        return taken

    def close(self) -> None:
        """Closes the files."""
        chunks, self._chunks = self._chunks, None
        self._opened = None
        if chunks is not None:
            cast("Any", chunks).close()

    def _current(self) -> Rows:
        while self._chunk is None:
            if self._chunks is None:
                self._open()
            assert self._chunks is not None
            chunk = next(self._chunks, None)
            if chunk is None:
                self._end_pass()
            elif len(chunk) <= self._skip:
                self._skip -= len(chunk)
                self._mark()
            else:
                self._chunk, self._taken, self._skip = chunk, self._skip, 0
                self._found = True
        return self._chunk

    def _finish_chunk(self) -> None:
        self._chunk, self._taken = None, 0
        self._mark()

    def _mark(self) -> None:
        """The next chunk starts where the stream stands now."""
        if self._tracked:
            self._before = copy.deepcopy(self._opened.state_dict())

    def _open(self) -> None:
        self._opened = self._setup.stream.reader(self._share_of)
        if self._before is not None:
            self._opened.load_state_dict(self._before)
        self._chunks = self._setup.stream.chunks(self._opened, self._size)

    def _share_of(self, opened: Any) -> Any:
        share, buffer = self._partition, self._setup.shuffle_buffer
        if buffer:
            opened = opened.shuffle(seed=_pass_seed(self._setup.seed, self._pass), buffer_size=buffer)
        if share.count == 1:
            return opened
        return split_share(opened, share.index, share.count, self._strategy)

    def _end_pass(self) -> None:
        share = self._partition
        if not self._found:
            raise SourceError(
                f"pass {self._pass} over {self._setup.stream.name} had no row for share {share.index} of "
                f"{share.count}, which has read {self._rows} rows before; its files may have changed"
            )
        self.close()
        self._pass += 1
        self._before, self._skip, self._found = None, 0, False


class StreamSteps:
    """Builds the steps of one share, in order; the unit that `dew.data.loading` runs."""

    builds_whole_steps = False

    def __init__(
        self, setup: Setup, partition: DataPartition, strategy: str, first: int, state: dict[str, Any]
    ) -> None:
        self._setup = setup
        self._partition = partition
        self._source = ShardRows(setup, partition, strategy, state)
        self._finish = Finish(setup, TRAINING)
        self._states: dict[int, dict[str, Any]] = {first: state}

    def __str__(self) -> str:
        return self._setup.stream.name

    def with_threads(self, threads: int) -> "StreamSteps":
        """These steps, their rows finished by `threads` threads."""
        self._finish.threads = threads
        return self

    def state_before(self, step: int) -> dict[str, Any]:
        """Where `step` begins; it was built, or is the next to be."""
        return self._states[step]

    def forget_before(self, step: int) -> None:
        """Lets go of where older steps began."""
        for old in [number for number in list(self._states) if number < step]:
            del self._states[old]

    def __call__(self, step: int) -> Batch:
        """The local rows of step `step`."""
        self._finish.check()
        share = self._partition
        try:
            first = self._source.rows * share.count + share.index
            rows = self._source.take(share.rows(self._setup.batch))
            batch = self._finish(rows, range(first, first + len(rows) * share.count, share.count))
            self._states[step + 1] = self._source.state
        except StepStoppedError:
            raise
        except BaseException as error:
            error.add_note(f"in step {step} of {self} (share {share.index} of {share.count})")
            raise
        return batch

    def stop(self) -> None:
        """Makes the step that is being built end at its next record."""
        self._finish.stop()

    def close(self) -> None:
        """Closes files and threads."""
        self._finish.close()
        self._source.close()


class Finish:
    """Rows -> a batch: decoding and `preprocess` side by side, then collation."""

    def __init__(self, setup: Setup, salt: int) -> None:
        self.threads = 1
        self._name = setup.stream.name
        self._preprocess = setup.preprocess
        self._draws = takes_draws(setup.preprocess)
        self._seed = setup.seed
        self._salt = salt
        self._stopped = threading.Event()
        self._pool: RecordPool | None = None

    def check(self) -> None:
        """Ends a step whose stream was closed."""
        if self._stopped.is_set():
            raise StepStoppedError

    def stop(self) -> None:
        """Makes the running step end."""
        self._stopped.set()

    def close(self) -> None:
        """Ends the threads."""
        self._stopped.set()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def __call__(self, rows: Sequence[Row], places: range) -> Batch:
        """The batch of `rows`, which stand at `places`."""
        if self.threads > 1 and self._pool is None:
            self._pool = RecordPool(self.threads)
        if self._pool is None:
            records = self._in_turn(rows, places)
        else:
            records = self._pool.map(lambda at: self._in_turn(rows[at : at + 1], places[at : at + 1])[0], len(rows))
        return collate(records, names=lambda row: f"the row at place {places[row]}")

    def _in_turn(self, rows: Sequence[Row], places: range) -> list[Record]:
        made: list[Record] = []
        stopped, finish = self._stopped.is_set, self._record
        try:
            for (chunk, number), place in zip(rows, places, strict=True):
                if stopped():
                    raise StepStoppedError
                made.append(finish(chunk[number], place))
        except StepStoppedError:
            raise
        except BaseException as error:
            error.add_note(f"reading the row at place {places[len(made)]}")
            raise
        return made

    def _record(self, row: Record, place: int) -> Record:
        if self._draws:
            record = self._preprocess(row, draws_at(self._seed, place, self._salt))
        else:
            record = self._preprocess(row)
        if not hasattr(record, "keys"):
            raise SourceError(
                f"preprocess must return a mapping of field name to value, got {type(record).__name__}; "
                'return for instance {"image": image}'
            )
        return record


class PassEndedError(Exception):
    """A validation pass has no further step; never reaches a user."""


class PassSteps:
    """Builds the steps of one validation pass: reads whole global batches and keeps this share's rows."""

    builds_whole_steps = False

    def __init__(self, setup: Setup, partition: DataPartition, *, pad: bool, valid_field: str) -> None:
        partition.rows(setup.batch)
        self._setup = setup
        self._partition = partition
        self._pad = pad
        self._valid_field = valid_field
        self._finish = Finish(setup, VALIDATION)
        self._chunks: Iterator[Rows] | None = None
        self._held: list[Row] = []
        self._first: Rows | None = None

    def __str__(self) -> str:
        return self._setup.stream.name

    def with_threads(self, threads: int) -> "PassSteps":
        """These steps, their rows finished by `threads` threads."""
        self._finish.threads = threads
        return self

    def __call__(self, step: int) -> Batch:
        """The local rows of step `step`."""
        self._finish.check()
        batch, share = self._setup.batch, self._partition
        rows = self._global_rows()
        if self._first is None:
            if not rows:
                raise SourceError(f"{self} holds no rows to validate on")
            self._first = row_alone(*rows[0])
            if len(rows) < batch and not self._pad:
                raise SourceError(
                    f"{self} holds {len(rows)} rows, fewer than one global batch of {batch}: with "
                    'val_remainder="drop" nothing would be scored; use "pad" or a smaller batch'
                )
        if not rows or (len(rows) < batch and not self._pad):
            raise PassEndedError
        valid = np.arange(batch) < len(rows)
        # Copies: preprocess may write into the row it is given.
        rows += [(copy.deepcopy(self._first), 0) for _ in range(batch - len(rows))]
        own = slice(share.index, None, share.count)
        places = range(step * batch + share.index, (step + 1) * batch, share.count)
        made = self._finish(rows[own], places)
        if self._pad:
            self._mark(made, valid[own].copy())
        return made

    def stop(self) -> None:
        """Makes the step that is being built end at its next record."""
        self._finish.stop()

    def close(self) -> None:
        """Closes files and threads."""
        self._finish.close()
        chunks, self._chunks = self._chunks, None
        if chunks is not None:
            cast("Any", chunks).close()

    def _global_rows(self) -> list[Row]:
        batch = self._setup.batch
        if self._chunks is None:
            self._chunks = self._setup.stream.chunks(self._setup.stream.reader(), batch)
        while len(self._held) < batch:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._held += [(chunk, row) for row in range(len(chunk))]
        rows, self._held = self._held[:batch], self._held[batch:]
        return rows

    def _mark(self, batch: Batch, valid: Any) -> None:
        if self._valid_field in batch:
            raise OptionsError(
                f"the records already have a field {self._valid_field!r}, which Dew was asked to add; "
                "rename it with valid_field=, or drop it in preprocess"
            )
        if not valid.all():
            zero_padding(batch, ~valid)
        batch[self._valid_field] = valid


class StreamPass(StepStream):
    """One pass over a validation stream, from its beginning; it has no position.

    Every process reads the whole stream and keeps its rows, so all see the same number of steps.
    """

    kind = metrics.VALIDATION

    def __init__(self, setup: Setup, partition: DataPartition, *, remainder: str, valid_field: str) -> None:
        super().__init__(setup.loading)
        self.partition, self._stream = partition, setup.stream
        self._make = lambda: PassSteps(setup, partition, pad=remainder == "pad", valid_field=valid_field)
        self._make()  # refuses a batch that does not divide
        self._ended = False

    @property
    def name(self) -> str:
        """What is read, as messages and metrics call it."""
        return self._stream.name

    def __next__(self) -> Batch:
        if self._ended:
            raise StopIteration
        try:
            return super().__next__()
        except PassEndedError:
            self._error, self._ended = None, True
            self.counts.errors -= 1  # the end of a pass is none
            raise StopIteration from None

    def _load_step(self) -> Any:
        return self._make()


def _pass_seed(seed: int, number: int) -> int:
    """A seed of its own for the shuffle buffer of each pass."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:8], "little")
