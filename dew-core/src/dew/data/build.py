"""Datasets from sources in hand: `dataset_of` for providers and specifications, `from_records` for arrays in memory."""

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import attrs
import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.collate import one_array
from dew.data.dataset import Batch, DataPartition, Dataset
from dew.data.errors import CollateError, OptionsError, OptionsTypeError, OverlapError, SourceError
from dew.data.loading import Loading
from dew.data.order import Order
from dew.data.schedule import Ramp
from dew.data.source import (
    Indices,
    Preprocess,
    Record,
    RecordSource,
    check_one_tokenizer,
    describe,
    fingerprint,
    records_in,
    shared_records,
)
from dew.data.stream import RecordStream, Remainder, ValidationPass, stop_of, train_stream, validation_pass

Columns: TypeAlias = Mapping[str, Any]
"""Field name -> array `(records, ...)`, or a nested mapping of such arrays."""

_DEFAULT_LOADING = Loading()
_SAMPLED_ROWS = 64
_EQUAL_RECORDS = (
    "give its records one dtype and one shape: cut, pad or pack those of unequal length, and fill each None"
)


def dataset_of(
    source: RecordSource | Sequence[Record],
    *,
    batch: int,
    val: RecordSource | Sequence[Record] | None = None,
    seed: int = 0,
    order: Order | None = None,
    preprocess: Preprocess | None = None,
    loading: Loading = _DEFAULT_LOADING,
    place_field: str | None = None,
    repeat_in_step: bool = False,
    val_remainder: Remainder = "pad",
    valid_field: str = "valid",
    allow_overlap: bool = False,
) -> Dataset:
    """A `Dataset` that trains on `source` and validates on `val`; see `train_stream` and `validation_pass`.

    A list or tuple of records is read as `from_records` reads it. Everything that can be refused without a partition is
    refused here, before any step.

    Raises:
        OverlapError: `val` is the same data as `source`, or shares records with it, unless `allow_overlap`.
        SourceError, OptionsError, OptionsTypeError: as `train_stream` and `validation_pass`.
    """
    source = _opened(source)
    train = _Training(
        source=source,
        order=order,
        batch=batch,
        seed=seed,
        preprocess=preprocess,
        loading=loading,
        place_field=place_field,
        repeat_in_step=repeat_in_step,
    )
    train(DataPartition()).close()
    validation: Validation | None = None
    if val is not None:
        val = _opened(val)
        check_one_tokenizer({"the training data": source, "the validation data": val})
        if not allow_overlap:
            _refuse_overlap(source, val)
        validation = Validation(
            source=val,
            batch=batch,
            seed=seed,
            preprocess=preprocess,
            remainder=val_remainder,
            valid_field=valid_field,
            place_field=place_field,
            loading=loading,
        )
        validation(DataPartition()).close()
    ends = None if order is None else stop_of(order)
    return Dataset(train=train, val=validation, records=records_in(source) if ends is None else ends, batch=batch)


def from_records(
    records: Columns | Sequence[Record],
    *,
    batch: int,
    seed: int = 0,
    val: Columns | Sequence[Record] | None = None,
    repeat_in_step: bool = False,
    allow_overlap: bool = False,
    loading: Loading = _DEFAULT_LOADING,
) -> Dataset:
    """A `Dataset` over arrays in memory.

    Args:
        records: columns (field name -> array whose first axis is the record), or a sequence of records.
        batch: the global batch.
        seed: of the order.
        val: validation records in either form.
        repeat_in_step: allows fewer records than one global batch.
        allow_overlap: allows to validate on the records of training.
        loading: speed only.

    Raises:
        SourceError: columns of unequal length, no records, or fewer than one global batch.
        OverlapError: `val` holds the same records as `records`.
    """
    return dataset_of(
        in_memory(records),
        batch=batch,
        seed=seed,
        val=None if val is None else in_memory(val),
        repeat_in_step=repeat_in_step,
        allow_overlap=allow_overlap,
        loading=loading,
    )


def ramped(dataset: Dataset, ramp: Ramp) -> Dataset:
    """`dataset` with a training batch that grows as `ramp` says; order, records and validation stay as they are.

    Raises:
        OptionsError: the ramp does not lead to the dataset's batch, or the dataset has a ramp already.
        OptionsTypeError: (from `train`) its training iterators are not record streams.
    """
    if dataset.ramp is not None:
        raise OptionsError(
            f"this dataset already has the ramp {dataset.ramp}; apply {ramp} to the dataset it was made from"
        )
    return attrs.evolve(dataset, train=_RampedTraining(dataset.train, ramp), ramp=ramp)


def identity(record: Record) -> Record:
    """A `preprocess` that takes each record as it is."""
    return record


def columns(*names: str, **casts: str) -> "Columnar":
    """A `preprocess` that keeps the fields `names`, and those of `casts` with the dtype given.

    `columns("image", label="int32")` keeps `image` as it is and `label` as int32; a value that the dtype cannot hold is
    refused.
    """
    return Columnar(names=names, casts=tuple((name, np.dtype(dtype)) for name, dtype in casts.items()))


@attrs.frozen(kw_only=True)
class Columnar:
    """The `preprocess` that `columns` makes."""

    names: tuple[str, ...]
    casts: tuple[tuple[str, np.dtype[Any]], ...]

    def __attrs_post_init__(self) -> None:
        if not self.names and not self.casts:
            raise OptionsError("columns() needs at least one field to keep")
        for name, dtype in self.casts:
            if dtype.kind in "OSUMm":
                raise OptionsError(f"columns({name}={str(dtype)!r}) is asked for, but fields are cast to numbers only")

    def __call__(self, record: Record) -> Record:
        """The chosen fields of `record`."""
        kept = {name: _field(record, name) for name in self.names}
        return kept | {name: _cast(name, _field(record, name), dtype) for name, dtype in self.casts}


def _opened(source: RecordSource | Sequence[Record]) -> RecordSource:
    """A plain list would hand out the caller's own arrays, and have no fingerprint."""
    rows = isinstance(source, list | tuple)
    return RowSource(cast("Sequence[Record]", source)) if rows else cast("RecordSource", source)


def in_memory(records: Columns | Sequence[Record]) -> "ColumnSource | RowSource":
    """A record source over columns or over a sequence of records.

    Raises:
        OptionsTypeError: neither of the two.
        SourceError: columns of unequal length.
    """
    if isinstance(records, Mapping):
        return ColumnSource(records)
    if isinstance(records, Sequence) and not isinstance(records, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        return RowSource(records)
    raise OptionsTypeError(
        "records are columns (a mapping of field name to array) or a sequence of mappings, "
        f"got {type(records).__name__}"
    )


class ColumnSource:
    """Columns in memory as records; builds whole steps by indexing."""

    def __init__(self, columns: Columns) -> None:
        self._columns = _arrays(columns)
        self._records = _common_length(self._columns)

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, index: int) -> Record:
        def one(array: npt.NDArray[Any]) -> Any:
            return array[index].copy()

        return _map_arrays(self._columns, one)

    def take(self, indices: Indices) -> Batch:
        """Records `indices` as columns, (k, ...) each."""

        def many(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return array[indices]

        return _map_arrays(self._columns, many)

    def __repr__(self) -> str:
        return f"Columns({describe(self._columns)})"

    def shares_records_with(self, other: object) -> int:
        """All records of columns that are each a view of the same memory."""
        if not isinstance(other, ColumnSource):
            return 0
        ours, theirs = list(_leaves(self._columns)), list(_leaves(other._columns))
        shared = len(ours) == len(theirs) and all(map(_share, ours, theirs))
        return min(len(self), len(other)) if shared else 0

    def fingerprint(self) -> str:
        """Digest of 64 records spread over all, first and last included; a change elsewhere is not seen."""
        return _digest([self[index] for index in _sampled(self._records)])


class RowSource:
    """A sequence of records in memory."""

    def __init__(self, rows: Sequence[Record]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Record:
        return _own(self._rows[index])

    def __repr__(self) -> str:
        return f"Rows({describe(self._rows)})"

    def fingerprint(self) -> str:
        """Digest of 64 records spread over all, first and last included; a change elsewhere is not seen."""
        return _digest([self._rows[index] for index in _sampled(len(self._rows))])


@attrs.frozen(kw_only=True)
class _Training:
    source: RecordSource
    order: Order | None
    batch: int
    seed: int
    preprocess: Preprocess | None
    loading: Loading
    place_field: str | None
    repeat_in_step: bool

    def __call__(self, partition: DataPartition) -> RecordStream:
        return train_stream(
            self.source,
            order=self.order,
            batch=self.batch,
            seed=self.seed,
            partition=partition,
            preprocess=self.preprocess,
            place_field=self.place_field,
            repeat_in_step=self.repeat_in_step,
            loading=self.loading,
        )


@attrs.frozen(kw_only=True)
class Validation:
    """Passes over a validation split: `DataPartition -> ValidationPass`, each one from its beginning."""

    source: RecordSource
    batch: int
    seed: int
    preprocess: Preprocess | None
    remainder: Remainder
    valid_field: str
    place_field: str | None
    loading: Loading

    def __call__(self, partition: DataPartition) -> ValidationPass:
        """A fresh pass for this share."""
        return validation_pass(
            self.source,
            batch=self.batch,
            seed=self.seed,
            partition=partition,
            preprocess=self.preprocess,
            remainder=self.remainder,
            valid_field=self.valid_field,
            place_field=self.place_field,
            loading=self.loading,
        )


@attrs.frozen
class _RampedTraining:
    train: Any
    ramp: Ramp

    def __call__(self, partition: DataPartition) -> Iterator[Batch]:
        stream = self.train(partition)
        if not isinstance(stream, RecordStream):
            raise OptionsTypeError(
                f"a ramp needs a record stream, whose order does not depend on the batch; this dataset's training "
                f"iterator is a {type(stream).__name__}"
            )
        return stream.with_schedule(self.ramp)


def _refuse_overlap(source: RecordSource, val: RecordSource) -> None:
    ours, theirs = fingerprint(source), fingerprint(val)
    same = source is val or (ours is not None and ours == theirs and describe(source) == describe(val))
    if same:
        raise OverlapError(
            f"training and validation would read the same records: {describe(source)} (fingerprint {ours}); "
            "validate on another split, or allow it with allow_overlap=True"
        )
    if shared := shared_records(source, val):
        raise OverlapError(
            f"training and validation would share {shared} records: {describe(source)} and {describe(val)}; "
            "validate on other records, or allow it with allow_overlap=True"
        )


def _field(record: Record, name: str) -> Any:
    try:
        return record[name]
    except KeyError:
        raise SourceError(f"the record has no field {name!r}; it has {sorted(record)}") from None


def _cast(name: str, value: Any, dtype: np.dtype[Any]) -> Any:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise SourceError(f"field {name!r} holds {array.dtype} values, which cannot become {dtype}")
    if dtype.kind in "biu" and array.size:
        if array.dtype.kind == "f" and not (np.isfinite(array) & (np.trunc(array) == array)).all():
            raise SourceError(f"field {name!r} holds fractions or no numbers, which {dtype} cannot; got {array!r}")
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if int(array.min()) < low or int(array.max()) > high:
            raise SourceError(f"field {name!r} holds {array.min()} to {array.max()}, which {dtype} cannot")
    with np.errstate(over="ignore"):
        cast_array = array.astype(dtype)
    if dtype.kind == "f" and (np.isinf(cast_array) & np.isfinite(array)).any():
        raise SourceError(f"field {name!r} holds {array.min()} to {array.max()}, which {dtype} cannot")
    return cast_array


def _arrays(columns: Columns, prefix: str = "") -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for name, value in columns.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SourceError(f"a column has the name {name!r} ({type(name).__name__}); field names are of type str")
        field = prefix + name
        nested = isinstance(value, Mapping)
        arrays[name] = _arrays(cast("Columns", value), f"{field}.") if nested else _array(field, value)
    return arrays


def _array(field: str, column: Any) -> npt.NDArray[Any]:
    try:
        # As strict as collation of records: no masks lost, no kinds mixed, no text cut.
        return one_array(column, field, lambda: "its column")
    except CollateError as error:
        raise SourceError(f"{error}; {_EQUAL_RECORDS}") from error


def _map_arrays(columns: Mapping[str, Any], function: Callable[[npt.NDArray[Any]], Any]) -> dict[str, Any]:
    return {
        name: _map_arrays(cast("Columns", value), function) if isinstance(value, Mapping) else function(value)
        for name, value in columns.items()
    }


def _leaves(columns: Mapping[str, Any]) -> Iterator[npt.NDArray[Any]]:
    for value in columns.values():
        if isinstance(value, Mapping):
            yield from _leaves(cast("Columns", value))
        else:
            yield value


def _share(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    try:
        return np.shares_memory(one, other, max_work=1000)  # pyright: ignore[reportArgumentType]
    except np.exceptions.TooHardError:
        return False  # too interleaved to tell: not refused on a guess


def _own(record: Record) -> Record:
    """A copy that preprocess may write into; scalars and text cannot be changed in place."""
    if not isinstance(record, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        return record  # collation refuses it by number
    return {
        name: _own(cast("Record", value)) if isinstance(value, Mapping) else copy.deepcopy(value)
        for name, value in record.items()
    }


def _lengths(columns: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    for name, value in columns.items():
        if isinstance(value, Mapping):
            yield from _lengths(cast("Columns", value), f"{prefix}{name}.")
        elif value.ndim == 0:
            raise SourceError(f"column {prefix + name!r} is a single value; a column has one entry a record")
        else:
            yield prefix + name, len(value)


def _common_length(columns: Mapping[str, Any]) -> int:
    lengths = dict(_lengths(columns))
    if not lengths:
        raise SourceError("no columns were given")
    if len(set(lengths.values())) > 1:
        raise SourceError(f"columns must have one entry a record, got unequal lengths: {lengths}")
    return next(iter(lengths.values()))


def _sampled(records: int) -> list[int]:
    return sorted(set(np.linspace(0, records - 1, min(records, _SAMPLED_ROWS), dtype=np.int64).tolist()))


def _digest(records: Sequence[Record]) -> str:
    digest = hashlib.sha256()
    for record in records:
        _digest_record(digest, record)
    return digest.hexdigest()


def _digest_record(digest: Any, record: Any) -> None:
    if not isinstance(record, Mapping):
        raise SourceError(
            f"a record is a mapping of field name to value, got {describe(record)} ({type(record).__name__}); "
            'name what it holds, e.g. {"x": value}'
        )
    fields = cast("Mapping[Any, Any]", record)
    for name in sorted(fields, key=str):
        digest.update(f"{name}\0".encode())
        _digest_value(digest, fields[name])


def _digest_value(digest: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        _digest_record(digest, value)
        return
    try:
        array = np.asarray(value)
    except ValueError:  # rows of unequal length
        array = np.empty(0, object)
    digest.update(f"{array.dtype}{array.shape}".encode())
    if not array.dtype.hasobject:
        digest.update(np.ascontiguousarray(array).tobytes())
    elif isinstance(value, list | tuple):
        for entry in cast("Sequence[Any]", value):
            _digest_value(digest, entry)
    else:
        digest.update(describe(value).encode())


def check_records(stated: int | None, source: RecordSource) -> None:
    """Refuses a number of records that the caller states and the source contradicts."""
    if stated is not None and checks.check_count("records", stated) != (counted := records_in(source)):
        raise OptionsError(f"records={stated} was given, but {describe(source)} counts {counted}; leave records out")
