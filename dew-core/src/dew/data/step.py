"""One step of one process: places -> records -> batch.

`LoadStep` is what every way of loading runs, in this process or in a worker: a pure function of the step number, so
that content cannot depend on who builds a step, or when. It pickles; files and threads are opened where it runs.
"""

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.collate import checked_columns, collate
from dew.data.dataset import Batch, DataPartition
from dew.data.errors import OptionsError, OptionsTypeError, SourceError
from dew.data.fields import zero_padding
from dew.data.order import Order, Places, draws_at
from dew.data.pool import RecordPool
from dew.data.position import Segment
from dew.data.schedule import FixedBatch
from dew.data.source import Preprocess, Record, RecordSource, describe

# Places are turned into records this many at a time, or a few epochs; a step then only slices.
_BLOCK = 4096
_EPOCHS = 4


class StepRows(Protocol):
    """Which records a step of this process holds."""

    @property
    def salt(self) -> int:
        """Tells the draws of training and of validation apart."""
        ...

    def rows(self, step: int) -> tuple[range, Places]:
        """Places of the step's local rows, and their records, (rows,) int64."""
        ...

    def padding(self, step: int) -> int:
        """How many of the last local rows are padding."""
        ...


class TrainingRows:
    """Rows of an endless order: share `index` takes every `count`-th place of a step's span."""

    salt = 0  # of training draws

    def __init__(self, order: Order, segment: Segment, partition: DataPartition) -> None:
        self._order = order
        self._segment = segment
        self._partition = partition
        self._block = np.empty(0, np.int64)  # records of `_steps` steps of `_size` places each
        self._first_step = self._first_place = self._steps = self._size = 0

    def rows(self, step: int) -> tuple[range, Places]:
        """Places and records of a step at or after the segment's first."""
        at = step - self._first_step
        if not 0 <= at < self._steps:
            self._fill(step)
            at = 0
        low = at * self._size
        high = low + self._size
        index, count, place = self._partition.index, self._partition.count, self._first_place
        return range(place + low + index, place + high, count), self._block[low + index : high : count]

    def padding(self, step: int) -> int:
        """None: training never pads."""
        return 0

    def _fill(self, step: int) -> None:
        start, stop = self._segment.span(step)
        size = stop - start
        steps = max(1, min(_BLOCK, _EPOCHS * self._order.records) // size)
        if self._segment.span(step + steps - 1)[1] != start + steps * size:
            steps = 1  # the batch grows within the block
        places = np.arange(start, start + steps * size, dtype=np.int64)
        self._block = self._checked(np.asarray(self._order.at(places)), places)
        self._first_step, self._first_place, self._steps, self._size = step, start, steps, size

    def _checked(self, records: Places, places: Places) -> Places:
        name = type(self._order).__name__
        if records.shape != places.shape or records.dtype.kind not in "iu":
            raise SourceError(
                f"{name}.at() must return {places.shape} integers, got {records.shape} of {records.dtype}"
            )
        if records.min() < 0 or records.max() >= self._order.records:
            wrong = np.flatnonzero((records < 0) | (records >= self._order.records))
            raise SourceError(
                f"{name}.at() returned record {records[wrong[0]]} at place {places[wrong[0]]}; "
                f"there are records 0 to {self._order.records - 1}"
            )
        return records


@attrs.frozen(kw_only=True)
class PassRows:
    """Rows of one pass in the source's own order; the last global batch is filled up with record 0."""

    @property
    def salt(self) -> int:
        """1: the draws of a validation pass never equal those of training at the same place."""
        return 1

    records: int
    batch: int
    partition: DataPartition

    def rows(self, step: int) -> tuple[range, Places]:
        """Places and records of step `step`; a padding row has a place past the end and reads record 0."""
        start, stop = FixedBatch(self.batch).span(step)
        places = range(start + self.partition.index, stop, self.partition.count)
        records = _as_array(places)
        return places, np.where(records < self.records, records, 0)

    def padding(self, step: int) -> int:
        """Local rows past the end of the split."""
        places, _ = self.rows(step)
        return sum(place >= self.records for place in places)


@attrs.frozen(kw_only=True)
class StepFields:
    """Fields that Dew adds to a batch: each record's place, and whether a row is real."""

    place: str | None = None
    valid: str | None = None


class LoadStep:
    """Builds the batch of a step for one process.

    Args:
        source: read by `drawn` (in training), `take`, `__getitems__` or `__getitem__`, the first that fits.
        rows: which records each step holds.
        seed: keys each record's draws together with its place.
        preprocess: applied to each record; gets the record's draws where it takes two arguments.
        fields: what Dew adds.
        threads: size of the pool over records; 0 or 1 reads in the calling thread.
    """

    def __init__(
        self,
        source: RecordSource,
        *,
        rows: StepRows,
        seed: int,
        preprocess: Preprocess | None,
        fields: StepFields,
        threads: int = 1,
    ) -> None:
        self._source = source
        self._name = describe(source)
        self._rows = rows
        self._seed = seed
        self._preprocess = preprocess
        self._takes_draws = preprocess is not None and takes_draws(preprocess)
        self._drawn = rows.salt == TrainingRows.salt and hasattr(source, "drawn")
        self._whole = self.builds_whole_steps
        self._fields = fields
        self._adds = fields != StepFields()
        self._threads = threads
        self._stopped = threading.Event()
        self._reader: Any = None
        self._pool: RecordPool | None = None

    def __str__(self) -> str:
        return self._name

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process."""
        return {**self.__dict__, "_stopped": None, "_reader": None, "_pool": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._stopped = threading.Event()

    def with_threads(self, threads: int) -> "LoadStep":
        """The same steps, read by another number of threads, with nothing opened yet."""
        other = object.__new__(LoadStep)
        other.__setstate__({**self.__getstate__(), "_threads": threads})
        return other

    def __call__(self, step: int) -> Batch:
        """The local rows of step `step`, each field `(rows, ...)`.

        Raises:
            CollateError: records do not fit into one batch.
            Exception: whatever the source or `preprocess` raised, with notes naming step, place, record and source.
        """
        if self._stopped.is_set():
            raise StepStoppedError
        try:
            places, records = self._rows.rows(step)
            batch = self._read(places, records)
            if self._adds:
                self._add_fields(batch, step, places)
        except StepStoppedError:
            raise
        except BaseException as error:
            error.add_note(f"in step {step} of {self._name}")
            raise
        return batch

    @property
    def source(self) -> RecordSource:
        """What is read."""
        return self._source

    @property
    def preprocess(self) -> Preprocess | None:
        """What is applied to each record."""
        return self._preprocess

    @property
    def builds_whole_steps(self) -> bool:
        """Whether the source itself builds a step, vectorised."""
        return self._preprocess is None and not self._drawn and hasattr(self._source, "take")

    def stop(self) -> None:
        """Makes the step that is being built end at its next record."""
        self._stopped.set()

    def close(self) -> None:
        """Ends the pool and closes the reader that this step opened; no step may be running."""
        self._stopped.set()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
        reader, self._reader = self._reader, None
        if reader is not None and reader is not self._source:
            reader.close()

    def _open(self) -> Any:
        own = getattr(self._source, "open", None)
        reader = self._source if own is None else own()
        if own is not None and not hasattr(reader, "close"):
            raise SourceError(
                f"{self._name}.open() must return a reader with a close() method, which the stream calls; "
                f"got {type(reader).__name__}"
            )
        self._reader = reader
        if self._threads > 1 and not self.builds_whole_steps:
            self._pool = RecordPool(self._threads)
        return self._reader

    def _read(self, places: range, records: Places) -> Batch:
        reader = self._open() if self._reader is None else self._reader
        if self._whole:
            try:
                columns = reader.take(records)
            except BaseException as error:
                error.add_note(_rows_note(places, records))
                raise
            return checked_columns(columns, len(records), self._name)
        return collate(self._records(reader, places, records), names=lambda row: _row_name(places, records, row))

    def _records(self, reader: Any, places: range, records: Places) -> Sequence[Record]:
        many = None if self._drawn else getattr(reader, "__getitems__", None)
        get: Callable[[int, np.random.Generator | None], Record]
        if self._drawn:
            get = lambda row, rng: reader.drawn(int(records[row]), rng)  # noqa: E731
        elif many is None:
            get = lambda row, _: reader[int(records[row])]  # noqa: E731
        else:
            raw = self._many(many, places, records)
            if self._preprocess is None:
                return raw
            get = lambda row, _: raw[row]  # noqa: E731
        draws = self._drawn or self._takes_draws

        def one(row: int) -> Record:
            if self._stopped.is_set():
                raise StepStoppedError
            try:
                rng = draws_at(self._seed, places[row], self._rows.salt) if draws else None
                return self._finish(get(row, rng), rng)
            except BaseException as error:
                error.add_note(f"reading {_row_name(places, records, row)}")
                raise

        if self._pool is None:
            return [one(row) for row in range(len(records))]
        return self._pool.map(one, len(records))

    def _many(self, many: Callable[[list[int]], Any], places: range, records: Places) -> Sequence[Record]:
        if self._stopped.is_set():
            raise StepStoppedError
        try:
            raw = many(records.tolist())
        except BaseException as error:
            error.add_note(_rows_note(places, records))
            raise
        kind = type(raw).__name__
        if isinstance(raw, Mapping) or not hasattr(raw, "__getitem__"):
            raise SourceError(f"{self._name}.__getitems__ must return a list of records, got {kind}")
        if len(raw) != len(records):
            raise SourceError(f"{self._name}.__getitems__ was asked for {len(records)} records and returned {len(raw)}")
        return raw

    def _finish(self, record: Record, rng: np.random.Generator | None) -> Record:
        if self._preprocess is None:
            return record
        result = self._preprocess(record, rng) if self._takes_draws else self._preprocess(record)
        if not isinstance(result, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SourceError(
                f"preprocess must return a mapping of field name to value, got {type(result).__name__}; "
                'return for instance {"image": image}'
            )
        return result

    def _add_fields(self, batch: Batch, step: int, places: range) -> None:
        for name in (self._fields.place, self._fields.valid):
            if name is not None and name in batch:
                raise OptionsError(
                    f"the records already have a field {name!r}, which Dew was asked to add; "
                    "rename it with place_field= or valid_field=, or drop it in preprocess"
                )
        if self._fields.place is not None:
            batch[self._fields.place] = split_places(_as_array(places))
        if self._fields.valid is not None:
            valid = np.ones(len(places), np.bool_)
            padding = self._rows.padding(step)
            valid[len(places) - padding :] = False
            if padding:
                zero_padding(batch, ~valid)
            batch[self._fields.valid] = valid


class StepStoppedError(Exception):
    """The stream was closed while a step was being built; never reaches a user."""


def split_places(places: Places) -> npt.NDArray[np.uint32]:
    """Places (k,) int64 -> (k, 2) uint32, high word first: JAX keeps no 64-bit integers by default."""
    words = places.astype(np.uint64)
    return np.stack([words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)], axis=1).astype(np.uint32)


def _as_array(places: range) -> Places:
    return np.arange(places.start, places.stop, places.step, dtype=np.int64)


def takes_draws(preprocess: Callable[..., Any]) -> bool:
    """Whether `preprocess` takes the record's draws as a second argument.

    Raises:
        OptionsError: it takes neither one nor two arguments.
        OptionsTypeError: it cannot be called.
    """
    if not callable(preprocess):
        raise OptionsTypeError(
            f"preprocess must be a function of a record, got {preprocess!r} ({type(preprocess).__name__})"
        )
    try:
        signature = inspect.signature(preprocess)
    except (TypeError, ValueError):
        return False  # a built-in without a signature, such as dict
    for arguments in ((None, None), (None,)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2 and _second_is_for_draws(signature)
    raise OptionsError(
        f"preprocess is called as preprocess(record) or preprocess(record, rng); "
        f"{preprocess_name(preprocess)}{signature} fits neither"
    )


def _second_is_for_draws(signature: inspect.Signature) -> bool:
    """A second parameter with a default is the user's own, unless it is called `rng`; *args alone ask for nothing."""
    positional = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(positional) < 2:
        return False
    return positional[1].default is inspect.Parameter.empty or positional[1].name == "rng"


def preprocess_name(preprocess: Callable[..., Any] | None) -> str | None:
    """The qualified name that a position remembers; of a partial, that of its function."""
    if preprocess is None:
        return None
    function = cast("Any", preprocess)
    while hasattr(function, "func"):
        function = function.func
    named = function if hasattr(function, "__qualname__") else cast("Any", type(function))
    module = getattr(named, "__module__", None) or "builtins"  # methods of built-in types have none
    return f"{module}.{named.__qualname__}"


def _row_name(places: range, records: Places, row: int) -> str:
    return f"record {records[row]} (place {places[row]})"


def _rows_note(places: range, records: Places) -> str:
    shown = ", ".join(map(str, records[:8].tolist())) + (", ..." if len(records) > 8 else "")
    return f"reading {len(records)} records ({shown}) of places {places[0]} to {places[-1]}"


def batch_bytes(batch: Mapping[str, Any]) -> int:
    """Bytes of all arrays of a batch."""
    total = 0
    for value in batch.values():
        if isinstance(value, Mapping):
            total += batch_bytes(cast("Mapping[str, Any]", value))
        else:
            total += int(getattr(value, "nbytes", 0))
    return total
