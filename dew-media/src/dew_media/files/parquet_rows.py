"""What parquet files hold: how many rows, which columns mean what, which rows lack something.

Known from the footers and the label column alone; encoded bytes are not read, unless a row group may lack some.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, cast, overload

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import DamagedSourceError, OptionsError, SourceError
from dew_media.files import metadata
from dew_media.files.arrow import pyarrow
from dew_media.files.collection import Opened
from dew_media.files.parquet_io import ParquetSpec, read_footer, read_group
from dew_media.files.problems import CLASSES, FILES, Kind, Problems, listed

NO_BYTES: Final = Kind("row without bytes", "rows without bytes")
NO_CAPTION: Final = Kind("row without a caption", "rows without a caption")
NO_LABEL: Final = Kind("row without a label", "rows without a label")

_FOOTER_THREADS: Final = 16


@attrs.frozen(kw_only=True, eq=False)
class ParquetRows(Opened):
    """What parquet files hold.

    Args:
        names: of the files.
        column, nested: where the encoded bytes are, and whether in a struct.
        caption, label: the columns of captions and labels, if any.
        groups: file and number of each row group that holds rows.
        rows: group and row in it of each record.
        labels: one a record, or None.
    """

    names: tuple[str, ...]
    column: str
    nested: bool
    caption: str | None
    label: str | None
    groups: tuple[tuple[int, int], ...]
    rows: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int32] | None


def read_rows(spec: ParquetSpec) -> ParquetRows:
    """Read the footers, and bring columns and rows together.

    Raises:
        SourceError: there is no file or no row, the files differ, or rows lack something and `missing` is "error".
    """
    return _Reading(spec).rows()


class _Reading:
    """One look at parquet files."""

    def __init__(self, spec: ParquetSpec) -> None:
        self._spec = spec
        self._names = spec.names()
        if not self._names:
            raise SourceError(f"{spec.where} holds no .parquet file")
        self._footers = self._read_footers(self._names)
        self._schema = self._footers[0].schema.to_arrow_schema()
        for name, footer in zip(self._names, self._footers, strict=True):
            schema = footer.schema.to_arrow_schema()
            if not schema.equals(self._schema):
                raise SourceError(
                    f"the parquet files in {spec.where} have other columns: {self._names[0]!r} has "
                    f"{_other(self._schema, schema)}, {name!r} has {_other(schema, self._schema)}; "
                    "keep files of one kind in a directory"
                )
        columns = Counter(cast("list[str]", self._schema.names))
        if twice := [name for name, count in columns.items() if count > 1]:
            raise SourceError(f"{spec.where} names a column twice: {listed(twice)}; write it with one of each")
        self._problems = Problems()

    def rows(self) -> ParquetRows:
        spec = self._spec
        column, nested = self._media_column()
        caption, label = self._caption_column(), self._label_column()
        groups = [
            (file, number, footer.row_group(number).num_rows)
            for file, footer in enumerate(self._footers)
            for number in range(footer.num_row_groups)
            if footer.row_group(number).num_rows
        ]
        firsts = self._first_rows(groups)
        counts = [rows for _, _, rows in groups]
        places = np.empty((sum(counts), 2), np.int64)
        places[:, 0] = np.repeat(np.arange(len(groups)), counts)
        places[:, 1] = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        keys = _Keys(
            self._names, tuple((file, first) for (file, _, _), first in zip(groups, firsts, strict=True)), places
        )
        keep = self._complete(groups, column, nested, caption, label, keys)
        labels, words = self._labels(groups, label, keep, keys)
        dropped = self._problems.settle(spec.missing, spec.where)
        places = places[keep]
        if not len(places):
            raise SourceError(f"{spec.where} holds no rows in {FILES.counted(len(self._names))}{dropped}")
        return ParquetRows(
            keys=_Keys(self._names, keys.firsts, places),
            names=tuple(self._names),
            column=column,
            nested=nested,
            caption=caption,
            label=label,
            groups=tuple((file, number) for file, number, _ in groups),
            rows=places,
            labels=labels,
            label_names=words,
            has_labels=labels is not None,
            has_captions=caption is not None,
            blocks=tuple(count for count in np.bincount(places[:, 0], minlength=len(groups)).tolist() if count),
            stored=self._stored(column),
            digest=self._digest(column, caption, labels, words, keep),
            description=self._describe(len(places), column, caption, words, labels) + dropped,
        )

    def _read_footers(self, names: Sequence[str]) -> list[Any]:
        pyarrow()
        with ThreadPoolExecutor(_FOOTER_THREADS, "dew-parquet") as threads:
            return list(threads.map(partial(read_footer, self._spec), names))

    def _media_column(self) -> tuple[str, bool]:
        types = pyarrow().types

        def nested(kind: Any) -> bool:
            return types.is_struct(kind) and any(
                field.name == "bytes" and _is_bytes(types, field.type) for field in kind
            )

        found = {
            field.name: nested(field.type)
            for field in self._schema
            if nested(field.type) or _is_bytes(types, field.type)
        }
        wanted = self._spec.column
        shown = ", ".join(f"{field.name!r} ({field.type})" for field in list(self._schema)[:8])
        if wanted is not None:
            if wanted not in found:
                raise OptionsError(
                    f"column={wanted!r} is no column of bytes, or of struct{{bytes, path}}, in {self._spec.where}; "
                    f"it has {shown}"
                )
            return wanted, found[wanted]
        if len(found) != 1:
            raise SourceError(
                f"{self._spec.where} has {len(found)} columns of bytes, {listed(list(found)) or 'none'}, among "
                f"{shown}; column= says which one holds the files"
            )
        return next(iter(found.items()))

    def _caption_column(self) -> str | None:
        spec, names = self._spec, self._schema.names
        if spec.captions == "sidecars":
            raise OptionsError("captions='sidecars' is for folders and tar shards; in parquet they are a column")
        if spec.captions == "none":
            return None
        if spec.caption_field is not None:
            if spec.caption_field not in names:
                raise OptionsError(
                    f"{spec.where} has no column {spec.caption_field!r}, which caption_field names; it has "
                    f"{listed(names)}"
                )
            return spec.caption_field
        found = [name for name in metadata.CAPTIONS if name in names]
        if len(found) > 1:
            raise SourceError(
                f"{spec.where} has the columns {found[0]!r} and {found[1]!r}; caption_field says which one counts"
            )
        return found[0] if found else None

    def _label_column(self) -> str | None:
        if self._spec.labels == "folders":
            raise OptionsError("labels='folders' is for folders; in parquet labels are the column 'label'")
        return metadata.LABEL if self._spec.labels != "none" and metadata.LABEL in self._schema.names else None

    def _first_rows(self, groups: Sequence[tuple[int, int, int]]) -> list[int]:
        firsts: list[int] = []
        seen = [0] * len(self._names)
        for file, _, rows in groups:
            firsts.append(seen[file])
            seen[file] += rows
        return firsts

    def _complete(
        self,
        groups: Sequence[tuple[int, int, int]],
        column: str,
        nested: bool,
        caption: str | None,
        label: str | None,
        keys: "_Keys",
    ) -> npt.NDArray[np.bool_]:
        """Which rows have all that they need; the columns are read only of groups that may lack something."""
        arrow, keep = pyarrow(), np.ones(len(keys), bool)
        wanted = {f"{column}.bytes" if nested else column: (column, NO_BYTES)}
        if caption is not None:
            wanted[caption] = (caption, NO_CAPTION)
        if label is not None:
            wanted[label] = (label, NO_LABEL)
        start = 0
        for file, number, rows in groups:
            group = self._footers[file].row_group(number)
            for path, (name, kind) in wanted.items():
                if _may_lack(group, path):
                    table = read_group(self._spec, self._names[file], number, [path], self._footers[file])
                    values = table.column(name)
                    if path != name:
                        values = arrow.compute.struct_field(values, "bytes")
                    absent = start + np.flatnonzero(_absent(arrow, values))
                    self._problems.add(kind, [keys[row] for row in absent.tolist()])
                    keep[absent] = False
            start += rows
        return keep

    def _labels(
        self, groups: Sequence[tuple[int, int, int]], label: str | None, keep: npt.NDArray[np.bool_], keys: "_Keys"
    ) -> tuple[npt.NDArray[np.int32] | None, tuple[str, ...]]:
        """The label of each row that is kept, and their names; rows without one are taken out of `keep`."""
        if label is None:
            return None, ()
        values = [value for file, number, _ in groups for value in self._column(self._names[file], number, label)]
        at = f"{self._spec.where}, {label!r}"
        found = [metadata.label_of(value, at) if ok else None for value, ok in zip(values, keep, strict=True)]
        empty = [row for row, value in enumerate(found) if value is None and keep[row]]
        self._problems.add(NO_LABEL, [keys[row] for row in empty])
        keep[empty] = False
        kept = [value for value in found if value is not None]
        words = metadata.label_names([*kept, *self._others(label, kept)], self._spec.where)
        if words:
            numbers = {word: number for number, word in enumerate(words)}
            return np.array([numbers[cast("str", value)] for value in kept], np.int32), words
        labels = np.array(kept, np.int64)
        names = self._class_names(label)
        if names and len(labels) and labels.max() >= len(names):
            raise SourceError(f"{self._spec.where} has the label {labels.max()} and names for {len(names)} labels")
        return labels.astype(np.int32), names

    def _others(self, label: str, kept: Sequence[Any]) -> list[metadata.Label]:
        """Labels in the files of other splits, where labels are words: a word has one number in all splits."""
        if not any(isinstance(value, str) for value in kept):
            return []
        found: list[metadata.Label] = []
        for other in self._spec.others():
            name = cast("str", other.only)
            footer = read_footer(other, name)
            if label in footer.schema.to_arrow_schema().names:
                for number in range(footer.num_row_groups):
                    values = read_group(other, name, number, [label], footer).column(label).to_pylist()
                    found += [value for value in values if value is not None]
        return found

    def _column(self, name: str, number: int, column: str) -> list[Any]:
        try:
            return read_group(self._spec, name, number, [column]).column(column).to_pylist()
        except UnicodeDecodeError as error:
            where = f"{self._spec.storage.location(self._spec.inside(name))}, {column!r}"
            raise DamagedSourceError(f"{where} is no UTF-8: {error.reason} at {error.start}") from error

    def _class_names(self, label: str) -> tuple[str, ...]:
        """The names that the Hugging Face library notes in a file's schema."""
        notes: dict[bytes, bytes] = self._schema.metadata or {}
        note = notes.get(b"huggingface")
        try:
            names = json.loads(note)["info"]["features"][label]["names"] if note else ()
        except (KeyError, TypeError, ValueError):
            return ()
        return tuple(str(name) for name in names)

    def _stored(self, column: str) -> str:
        """Of the files' names, row groups, sizes and types as the footers state them."""
        digest = hashlib.sha256(b"dew-parquet-1\0")
        for name, footer in zip(self._names, self._footers, strict=True):
            groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
            sizes = [(group.num_rows, group.total_byte_size) for group in groups]
            digest.update(f"{name}\0{footer.serialized_size}\0{sizes}\n".encode())
        digest.update(f"{self._schema.remove_metadata()}\0{column}".encode())
        return digest.hexdigest()

    def _digest(self, column: str, caption: Any, labels: Any, words: Sequence[str], keep: Any) -> str:
        """Of the files, and of which rows are kept with which captions and labels."""
        digest = hashlib.sha256(self._stored(column).encode())
        digest.update(f"\0{caption}\0{list(words)}".encode())
        digest.update(np.packbits(keep).tobytes())
        if labels is not None:
            digest.update(labels.astype("<i4").tobytes())
        return digest.hexdigest()

    def _describe(self, count: int, column: str, caption: str | None, words: Sequence[str], labels: Any) -> str:
        facts = [
            "parquet",
            f"{Kind('row', 'rows').counted(count)} in {FILES.counted(len(self._names))}",
            f"files in {column!r}",
            CLASSES.counted(len(words)) if words else "labels" if labels is not None else "",
            f"captions in {caption!r}" if caption else "",
        ]
        return ", ".join(fact for fact in facts if fact)


class _Keys(Sequence[str]):
    """`file.parquet/row` of chosen rows; `firsts` holds the file and the first row of each row group."""

    def __init__(
        self, names: Sequence[str], firsts: tuple[tuple[int, int], ...], places: npt.NDArray[np.int64]
    ) -> None:
        self._names, self.firsts, self._places = names, firsts, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        group, row = cast("list[int]", self._places[index].tolist())
        file, first = self.firsts[group]
        return f"{self._names[file]}/{first + row}"


def _is_bytes(types: Any, kind: Any) -> bool:
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)


def _other(schema: Any, than: Any) -> str:
    """The columns of a schema that another does not have so; all of them where they only stand in another order."""
    names = [f"{field.name} ({field.type})" for field in schema]
    there = {f"{field.name} ({field.type})" for field in than}
    return listed([name for name in names if name not in there] or (names if there == set(names) else [])) or "no more"


def _may_lack(group: Any, path: str) -> bool:
    """Whether a column of a row group may hold nulls, by its statistics."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == path:
            known = column.statistics
            return known is None or not known.has_null_count or known.null_count > 0
    return True  # a list: its statistics count the elements


def _absent(arrow: Any, values: Any) -> "npt.NDArray[np.bool_]":
    """Which values are null, or lists of nothing."""
    if arrow.types.is_list(values.type) or arrow.types.is_large_list(values.type):
        return arrow.compute.equal(arrow.compute.fill_null(arrow.compute.list_value_length(values), 0), 0).to_numpy()
    return arrow.compute.is_null(values).to_numpy()
