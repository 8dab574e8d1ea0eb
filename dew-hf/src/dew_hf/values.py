"""Arrow tables as records: what `preprocess` receives of each column type.

Whole columns are converted at once and rows are cut out of them. A number is a NumPy scalar of the column's dtype, a
list of numbers an array of it, an image `(H, W, 3)` uint8; text is str, binary is bytes, dates, times and decimals are
Python's own, a struct is a dict, and a null is None. What a value becomes depends on its type and on itself, never on
its neighbours.
"""

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast, overload

import attrs
import numpy as np

from dew.data.errors import SourceError
from dew.data.pixels import decode_image
from dew.data.source import Record
from dew_hf.opening import arrow

Feature: TypeAlias = Any
"""An entry of `datasets.Features`, or None where the type of the column is all that is known."""


@attrs.frozen
class Encoded:
    """An image that is not decoded yet: bytes, or where they are."""

    data: bytes | None
    path: str | None


Rows: TypeAlias = Sequence[Record]
"""Rows of a table, each a dict of its own; images are decoded when their row is asked for, by the thread that asks."""


class ImageRows(Sequence[Record]):
    """Rows that hold encoded images.

    Args:
        rows: name -> value, with `Encoded` images at any depth.
        images: names of the columns that hold them.
        background: RGB behind transparent images.
    """

    def __init__(self, rows: list[dict[str, Any]], images: frozenset[str], background: tuple[int, int, int]) -> None:
        self._rows = rows
        self._images = images
        self._background = background

    def __len__(self) -> int:
        return len(self._rows)

    def alone(self, index: int) -> "ImageRows":
        """Row `index`, apart from the others and not decoded."""
        return ImageRows([copy.deepcopy(self._rows[index])], self._images, self._background)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = self._rows[index]
        return row | {name: decoded(row[name], name, self._background) for name in self._images}


def rows_of(table: Any, features: Any, background: tuple[int, int, int]) -> Rows:
    """The rows of a `pyarrow.Table`, whose meaning `features` (or None) tells."""
    known = cast("Mapping[str, Any]", {} if features is None else features)
    columns = {name: _values(_whole(table.column(name)), known.get(name)) for name in table.column_names}
    images = frozenset(name for name in table.column_names if holds_image(known.get(name)))
    return _rows(columns, table.num_rows, images, background)


def rows_of_lists(columns: Mapping[str, Sequence[Any]], features: Any, background: tuple[int, int, int]) -> Rows:
    """The rows of columns of Python values, with images as `{"bytes", "path"}`."""
    known = cast("Mapping[str, Any]", {} if features is None else features)
    images = frozenset(name for name in columns if holds_image(known.get(name)))
    length = len(next(iter(columns.values()), ()))
    held = {
        name: [_encoded(value, known[name]) for value in values] if name in images else values
        for name, values in columns.items()
    }
    return _rows(held, length, images, background)


def row_alone(rows: Rows, index: int) -> Rows:
    """A copy of row `index`, with nothing decoded yet."""
    return rows.alone(index) if isinstance(rows, ImageRows) else [copy.deepcopy(rows[index])]


def _rows(
    columns: Mapping[str, Sequence[Any]], length: int, images: frozenset[str], background: tuple[int, int, int]
) -> Rows:
    names = tuple(columns)
    # All at once: it takes half as long as making each dict when its row is asked for.
    every = zip(*columns.values(), strict=True) if names else itertools.repeat((), length)
    rows: list[dict[str, Any]] = [dict(zip(names, values, strict=True)) for values in every]
    return ImageRows(rows, images, background) if images else rows


def holds_image(feature: Feature) -> bool:
    """Whether a feature is an image that is to be decoded, or holds one at any depth."""
    if isinstance(feature, Mapping):
        return any(holds_image(part) for part in cast("Mapping[str, Any]", feature).values())
    if isinstance(feature, list | tuple):
        return any(holds_image(part) for part in cast("list[Any]", feature))
    return _is_image(feature) or (_inner(feature) is not None and holds_image(_inner(feature)))


def decoded(value: Any, name: str, background: tuple[int, int, int]) -> Any:
    """`value` with every encoded image in it as pixels."""
    if isinstance(value, Encoded):
        where = f"column {name!r}" + ("" if value.path is None else f" ({value.path})")
        return decode_image(_bytes(value, where), name=where, background=background)
    if isinstance(value, dict):
        return {key: decoded(part, name, background) for key, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [decoded(part, name, background) for part in cast("list[Any]", value)]
    return value


def _bytes(image: Encoded, where: str) -> bytes:
    if image.data is not None:
        return image.data
    if image.path is None:
        raise SourceError(f"{where} has an image with neither bytes nor a path; leave the record out")
    from fsspec import core  # pyright: ignore[reportMissingTypeStubs]

    with cast("Any", core).open(image.path, "rb") as file:
        return file.read()


def _whole(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_image(feature: Feature) -> bool:
    return type(feature).__name__ == "Image" and getattr(feature, "decode", True)


def _inner(feature: Feature) -> Feature:
    """The feature of a list's elements."""
    if isinstance(feature, list):
        return cast("list[Any]", feature)[0]
    return getattr(feature, "feature", None)


def _encoded(value: Any, feature: Feature) -> Any:
    if value is None:
        return None
    if _is_image(feature):
        return Encoded(value.get("bytes"), value.get("path")) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, Mapping) and isinstance(feature, Mapping):
        parts = cast("Mapping[str, Any]", feature)
        return {key: _encoded(part, parts.get(key)) for key, part in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list) and holds_image(feature):
        return [_encoded(part, _inner(feature)) for part in cast("list[Any]", value)]
    return cast("Any", value)


def _values(array: Any, feature: Feature) -> list[Any]:
    """One value a row."""
    types = arrow().types
    kind = array.type
    if isinstance(kind, arrow().BaseExtensionType):
        return _extension_values(array)
    if types.is_dictionary(kind):
        return _values(array.dictionary_decode(), feature)
    if _is_number(types, kind):
        return _numbers(array)
    if _is_image(feature) and types.is_struct(kind):
        return [None if one is None else Encoded(one.get("bytes"), one.get("path")) for one in array.to_pylist()]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(array, feature)
    if types.is_struct(kind):
        return _structs(array, feature)
    return array.to_pylist()


def _is_number(types: Any, kind: Any) -> bool:
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _numbers(array: Any) -> list[Any]:
    if not array.null_count:
        return list(array.to_numpy(zero_copy_only=False))
    scalar = np.dtype(array.type.to_pandas_dtype()).type
    return [None if value is None else scalar(value) for value in array.to_pylist()]


def _extension_values(array: Any) -> list[Any]:
    """Fixed arrays (`Array2D`, ...) by their own conversion, anything else by its storage."""
    if hasattr(array.type, "shape") and hasattr(array.type, "value_type"):
        present = array.drop_null() if array.null_count else array
        found = iter([np.array(one) for one in present.to_numpy(zero_copy_only=False)] if len(present) else [])
        return [next(found) if valid else None for valid in array.is_valid().to_pylist()]
    return _values(array.storage, None)


def _lists(array: Any, feature: Feature) -> list[Any]:
    lengths = array.value_lengths() if hasattr(array, "value_lengths") else _fixed_lengths(array)
    bounds = np.concatenate([[0], np.cumsum(lengths.fill_null(0).to_numpy(zero_copy_only=False))]).tolist()
    flat = array.flatten()
    spans = list(itertools.pairwise(bounds))
    rows: list[Any]
    if _is_number(arrow().types, flat.type):
        rows = _number_lists(flat, spans)
    else:
        values = _values(flat, _inner(feature))
        rows = [values[start:stop] for start, stop in spans]
    if array.null_count:
        rows = [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    return rows


def _fixed_lengths(array: Any) -> Any:
    size = array.type.list_size
    return arrow().array([size if valid else 0 for valid in array.is_valid().to_pylist()], "int64")


def _number_lists(flat: Any, spans: list[tuple[int, int]]) -> list[Any]:
    """Arrays of the stored dtype; a row that holds a null is a list, with None in it."""
    if not flat.null_count:
        numbers = np.array(flat.to_numpy(zero_copy_only=False))  # a copy: rows may be written into
        return [numbers[start:stop] for start, stop in spans]
    dtype = np.dtype(flat.type.to_pandas_dtype())
    values = _numbers(flat)
    rows = [values[start:stop] for start, stop in spans]
    return [row if None in row else np.array(row, dtype) for row in rows]


def _structs(array: Any, feature: Feature) -> list[Any]:
    fields = cast("Mapping[str, Any]", feature if isinstance(feature, Mapping) else {})
    names = [array.type.field(number).name for number in range(array.type.num_fields)]
    parts = [_values(part, fields.get(name)) for name, part in zip(names, array.flatten(), strict=True)]
    rows: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]
    if not parts:
        rows = [{} for _ in range(len(array))]
    if array.null_count:
        return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    return rows
