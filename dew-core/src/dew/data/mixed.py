"""Reading a mixture: the records of several sources as those of one, each part read by its own best way.

Record numbers run over the parts in the order of their labels. A step's rows are grouped by part, every part is asked
once, and the rows come back in the order they were asked for. Where all parts build columns and none has a `preprocess`
the mixture builds columns too; else records travel with the number of their part, which picks the part's `preprocess`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from dew.data.collate import checked_columns, collate
from dew.data.dataset import Batch
from dew.data.errors import CollateError, SourceError
from dew.data.order import draws_at
from dew.data.source import Indices, Preprocess, Record, RecordSource, describe, fingerprint, made_by
from dew.data.step import preprocess_name, takes_draws

Layout: TypeAlias = dict[str, tuple[str, tuple[int, ...]]]
"""Field -> dtype and shape in one record; text of any width is "text", nested fields have dotted names."""


class PartRecord(Mapping[str, Any]):
    """A record, and the number of the part that it was read from."""

    __slots__ = ("part", "record")

    def __init__(self, part: int, record: Record) -> None:
        self.part = part
        self.record = record

    def __getitem__(self, name: str) -> Any:
        return self.record[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.record)

    def __len__(self) -> int:
        return len(self.record)


class MixedSource:
    """The records of several sources as one; made by `mixed_source`.

    Args:
        parts: label -> source.
        opened: readers that `close` closes.
    """

    def __init__(self, parts: Mapping[str, RecordSource], *, opened: Sequence[Any] = ()) -> None:
        self._labels = tuple(sorted(parts))
        self._sources: tuple[Any, ...] = tuple(parts[label] for label in self._labels)
        self._offsets = np.cumsum([0, *map(len, self._sources)])
        self._opened = tuple(opened)

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def __getitem__(self, index: int, /) -> PartRecord:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} was asked for, there are records 0 to {len(self) - 1}")
        which, local = self._in_parts(np.array([index], np.int64))
        return self.read(int(which[0]), int(local[0]))

    def __getitems__(self, indices: Sequence[int]) -> "MixedRows":
        """Records `indices`; those of a part that reads them one at a time are read when they are looked at."""
        which, local = self._in_parts(np.asarray(indices, np.int64))
        rows = MixedRows(self, which, local)
        for part, of in _groups(which):
            try:
                read = _many(self._sources[part], local[of])
                if read is not None:
                    rows.fill(of, read)
            except BaseException as error:
                self._note(error, part)
                raise
        return rows

    def read(self, part: int, local: int) -> PartRecord:
        """Record `local` of part number `part`."""
        try:
            return PartRecord(part, self._sources[part][local])
        except BaseException as error:
            self._note(error, part)
            raise

    def __repr__(self) -> str:
        parts = zip(self._labels, self._sources, strict=True)
        return f"Mixture({', '.join(f'{label}: {describe(source)}' for label, source in parts)})"

    def fingerprint(self) -> str | None:
        """A digest of the parts' labels and fingerprints; None where a part has none."""
        parts = [(label, fingerprint(source)) for label, source in zip(self._labels, self._sources, strict=True)]
        if any(digest is None for _, digest in parts):
            return None
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def made_by(self) -> dict[str, str]:
        """Of all parts."""
        return {name: version for source in self._sources for name, version in made_by(source).items()}

    def open(self) -> "MixedSource":
        """A reader of the same records; each part that has an `open` gets files of its own."""
        readers: dict[str, Any] = {}
        opened: list[Any] = []
        for part, (label, source) in enumerate(zip(self._labels, self._sources, strict=True)):
            own = getattr(source, "open", None)
            if own is None:
                readers[label] = source
                continue
            try:
                readers[label] = reader = own()
                if not hasattr(reader, "close"):
                    raise SourceError(
                        f"{describe(source)}.open() must return a reader with a close() method, which the stream "
                        f"calls; got {type(reader).__name__}"
                    )
            except BaseException as error:
                self._note(error, part)
                _close_all(opened)
                raise
            opened.append(reader)
        return type(self)(readers, opened=opened)

    def close(self) -> None:
        """Closes every reader that `open` opened, whatever one of them raises."""
        _close_all(self._opened)

    def _in_parts(self, records: Indices) -> tuple[Indices, Indices]:
        """Part of each record, and its number there."""
        which = np.searchsorted(self._offsets, records, "right") - 1
        return which, records - self._offsets[which]

    def _note(self, error: BaseException, part: int) -> None:
        first, end = self._offsets[part : part + 2]
        error.add_note(f"in part {self._labels[part]!r} of the mixture, which holds its records {first} to {end - 1}")


class MixedColumns(MixedSource):
    """A mixture of sources that all build columns."""

    def take(self, indices: Indices) -> Batch:
        """Records `indices` as columns, (k, ...) each."""
        which, local = self._in_parts(np.asarray(indices, np.int64))
        columns: Batch = {}
        owner = ""
        for part, rows in _groups(which):
            name = f"part {self._labels[part]!r}"
            try:
                read = checked_columns(self._sources[part].take(local[rows]), len(rows), name)
                if len(rows) == len(which):
                    return read
                _scatter(columns, read, rows, len(which), (owner, name))
            except BaseException as error:
                self._note(error, part)
                raise
            owner = owner or name
        return columns


class MixedRows(Sequence[PartRecord]):
    """Records of one step; what no part gave at once is read by whoever looks at it, in a thread of a pool."""

    def __init__(self, source: MixedSource, which: Indices, local: Indices) -> None:
        self._source = source
        self._which: list[int] = which.tolist()
        self._local: list[int] = local.tolist()
        self._read: list[Record | None] = [None] * len(which)

    def fill(self, rows: Indices, records: Sequence[Record]) -> None:
        """The records of `rows`, which one part gave."""
        if len(records) != len(rows):
            raise SourceError(f"{len(rows)} records were asked for and {len(records)} returned")
        for row, record in zip(rows.tolist(), records, strict=True):
            self._read[row] = record

    def __len__(self) -> int:
        return len(self._read)

    def __getitem__(self, row: int) -> PartRecord:  # pyright: ignore[reportIncompatibleMethodOverride]
        part = self._which[row]
        record = self._read[row]
        return self._source.read(part, self._local[row]) if record is None else PartRecord(part, record)


class MixedDrawn(MixedSource):
    """A mixture with a part whose records have random parts."""

    def drawn(self, index: int, rng: np.random.Generator) -> PartRecord:
        """Record `index` with its draws, where its part takes them."""
        which, local = self._in_parts(np.array([index], np.int64))
        part = int(which[0])
        own = getattr(self._sources[part], "drawn", None)
        if own is None:
            return self.read(part, int(local[0]))
        try:
            return PartRecord(part, own(int(local[0]), rng))
        except BaseException as error:
            self._note(error, part)
            raise


def mixed_source(parts: Mapping[str, RecordSource]) -> MixedSource:
    """The records of `parts` as one source: with `drawn` where a part has it, else `take` where every part has."""
    if any(hasattr(source, "drawn") for source in parts.values()):
        return MixedDrawn(parts)
    columns = all(hasattr(source, "take") for source in parts.values())
    return (MixedColumns if columns else MixedSource)(parts)


class _Functions:
    """Applies to each record the function of its part.

    It is named after all of its functions, so that a position warns when one of them is another.
    """

    def __init__(self, functions: Mapping[str, Preprocess | None]) -> None:
        self._labels = tuple(sorted(functions))
        self._functions = tuple(functions[label] for label in self._labels)
        self._draws = tuple(function is not None and takes_draws(function) for function in self._functions)
        names = (preprocess_name(function) for function in self._functions)
        self.__qualname__ = (
            f"({', '.join(f'{label}: {name}' for label, name in zip(self._labels, names, strict=True))})"
        )

    def apply(self, record: PartRecord, *draws: np.random.Generator) -> Record:
        """The fields of one row."""
        function = self._functions[record.part]
        if function is None:
            return record.record
        try:
            return function(record.record, *(draws if self._draws[record.part] else ()))
        except BaseException as error:
            error.add_note(f"in preprocess of part {self._labels[record.part]!r} of the mixture")
            raise


class MixedPreprocess(_Functions):
    """The `preprocess` of a mixture; made by `mixed_preprocess`."""

    def __call__(self, record: PartRecord) -> Record:
        """The fields of one row."""
        return self.apply(record)


class MixedDrawingPreprocess(_Functions):
    """The same where a function takes the record's draws."""

    def __call__(self, record: PartRecord, rng: np.random.Generator) -> Record:
        """The fields of one row."""
        return self.apply(record, rng)


def mixed_preprocess(functions: Mapping[str, Preprocess | None]) -> MixedPreprocess | MixedDrawingPreprocess:
    """Label -> function, None where records are taken as they are; as one `preprocess` of a mixed source."""
    draws = any(function is not None and takes_draws(function) for function in functions.values())
    return (MixedDrawingPreprocess if draws else MixedPreprocess)(functions)


def check_layouts(parts: Mapping[str, tuple[RecordSource, Preprocess | None]], seed: int) -> None:
    """Record 0 of every part, preprocessed, must have the same fields, dtypes and shapes.

    Raises:
        CollateError: naming the field, both parts and what each holds.
    """
    layouts = {label: _layout(label, *part, seed) for label, part in sorted(parts.items())}
    (first, wanted), *others = layouts.items()
    for label, layout in others:
        for field in dict.fromkeys((*wanted, *layout)):
            here, there = wanted.get(field), layout.get(field)
            if here == there:
                continue
            raise CollateError(
                f"field {field!r} is {_shown(here)} in part {first!r} and {_shown(there)} in part {label!r} "
                "(record 0 of each); the parts of a mixture need the same fields, dtypes and shapes: "
                "make them so in the part's `preprocess`"
            )


def _layout(label: str, source: RecordSource, preprocess: Preprocess | None, seed: int) -> Layout:
    own = getattr(source, "open", None)
    reader: Any = source if own is None else own()
    try:
        record = reader[0]
        if preprocess is not None:
            record = preprocess(record, draws_at(seed, 0)) if takes_draws(preprocess) else preprocess(record)
        return dict(_fields(collate([record], names=lambda _: f"record 0 of part {label!r}"), ""))
    except BaseException as error:
        error.add_note(f"looking at record 0 of part {label!r} of the mixture")
        raise
    finally:
        if own is not None and hasattr(reader, "close"):
            reader.close()


def _fields(columns: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    for name, column in columns.items():
        if isinstance(column, Mapping):
            yield from _fields(cast("Mapping[str, Any]", column), f"{prefix}{name}.")
        else:
            yield prefix + name, ("text" if column.dtype.kind == "U" else str(column.dtype), column.shape[1:])


def _shown(field: tuple[str, tuple[int, ...]] | None) -> str:
    return "missing" if field is None else f"{field[0]} {field[1]}"


def _many(source: Any, local: Indices) -> Sequence[Record] | None:
    """Records of one part at once, None where it reads one at a time."""
    if hasattr(source, "take"):
        columns = checked_columns(source.take(local), len(local), describe(source))
        return [_row(columns, row) for row in range(len(local))]
    if hasattr(source, "__getitems__"):
        return source.__getitems__(local.tolist())
    return None


def _row(columns: Mapping[str, Any], row: int) -> dict[str, Any]:
    return {
        name: _row(cast("Mapping[str, Any]", column), row) if isinstance(column, Mapping) else column[row]
        for name, column in columns.items()
    }


def _groups(which: Indices) -> Iterator[tuple[int, Indices]]:
    """Each part that occurs, and its rows, ascending."""
    by_part = np.argsort(which, kind="stable")
    parts = which[by_part]
    first = [0, *(np.flatnonzero(parts[1:] != parts[:-1]) + 1).tolist()] if parts.size else []
    for start, stop in zip(first, [*first[1:], len(parts)], strict=True) if first else ():
        yield int(parts[start]), by_part[start:stop]


def _scatter(
    batch: Batch, columns: Batch, rows: Indices, total: int, owners: tuple[str, str], prefix: str = ""
) -> None:
    """Writes the columns of one part into its rows of the batch; `owners` are the first part and this one."""
    if batch and batch.keys() != columns.keys():
        name = min(batch.keys() ^ columns.keys())
        here, there = owners if name in batch else owners[::-1]
        raise CollateError(f"field {prefix + name!r} is in {here} and missing from {there} of the mixture")
    for name, column in columns.items():
        field, target = prefix + name, batch.get(name)
        if target is not None and (type(target) is dict) != (type(column) is dict):
            raise CollateError(
                f"field {field!r} is a mapping in one of {owners[0]} and {owners[1]} of the mixture only"
            )
        if type(column) is dict:
            nested = batch.setdefault(name, {})
            _scatter(nested, cast("Batch", column), rows, total, owners, f"{field}.")
            continue
        if target is None:
            target = batch[name] = np.empty((total, *column.shape[1:]), column.dtype)
        elif target.dtype.kind == column.dtype.kind == "U" and target.dtype < column.dtype:
            target = batch[name] = target.astype(column.dtype)
        _check_fits(target, column, field, owners)
        target[rows] = column


def _check_fits(target: npt.NDArray[Any], column: npt.NDArray[Any], field: str, owners: tuple[str, str]) -> None:
    text = target.dtype.kind == column.dtype.kind == "U"
    if target.shape[1:] != column.shape[1:] or (target.dtype != column.dtype and not text):
        raise CollateError(
            f"field {field!r} is {target.dtype} {target.shape[1:]} in {owners[0]} and {column.dtype} "
            f"{column.shape[1:]} in {owners[1]} of the mixture; give it one dtype and one shape"
        )


def _close_all(readers: Sequence[Any]) -> None:
    first: BaseException | None = None
    for reader in readers:
        try:
            reader.close()
        except Exception as error:
            if first is None:
                first = error
            else:
                first.add_note(f"closing another part failed too: {error!r}")
    if first is not None:
        raise first
