"""Documents in Parquet and Arrow files, read a few rows at a time."""

import contextlib
import functools
import importlib
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, TypeAlias

from dew.data.errors import DamagedSourceError, DewDataError, OptionsError, SourceError
from dew.data.ranged import RangedFile
from dew.data.storage import Storage
from dew.tokens.prepare.inputs import Input
from dew.tokens.prepare.pieces import Piece, Refused, Row

Check: TypeAlias = Callable[[Any, str], None]

_ROWS: Final = 1024
_BUFFER: Final = 1 << 20
_ARROW_MAGIC: Final = b"ARROW1"


def row_groups(storage: Storage, found: Input, field: str) -> list[tuple[int, int]]:
    """`(rows, bytes of the column)` of every row group, after a look at the schema; reads the footer alone.

    Raises:
        SourceError: there is no such column, or it holds no text.
        DamagedSourceError: it is no Parquet file.
    """
    with _naming(storage, found), _parquet(storage, found) as file:
        _check_column(file.schema_arrow, field, storage.location(found.name), check_text)
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        return [(int(group.num_rows), _column_bytes(group, field)) for group in groups]


def documents(storage: Storage, found: Input, piece: Piece, field: str) -> Iterator[Row]:
    """As `dew.tokens.prepare.documents.documents`, for tables."""
    for first, column in columns(storage, found, field, check_text, piece):
        yield from _rows(first, column)


def columns(
    storage: Storage, found: Input, field: str, check: Check, piece: Piece | None = None
) -> Iterator[tuple[int, Any]]:
    """`(number of the first row, some rows of the column)`: of the whole file, or of a piece of it.

    Raises:
        SourceError: there is no such column, or it is not what `check` wants.
        DamagedSourceError: the file is not of its kind, or damaged.
    """
    read = _parquet_columns if found.kind == "parquet" else _arrow_columns
    with _naming(storage, found):
        yield from read(storage, found, field, check, piece)


def _rows(first: int, column: Any) -> Iterator[Row]:
    try:
        texts = column.to_pylist()
    except UnicodeDecodeError:
        texts = [_value(value) for value in column]
    for row, text in enumerate(texts, first):
        if isinstance(text, bytes):
            text = _decoded(text)
        yield row, Refused("null and not a string") if text is None else text


def _value(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return Refused(f"no UTF-8: byte {error.object[error.start]:#04x} at {error.start}")


def _decoded(data: bytes) -> str | Refused:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return Refused(f"no UTF-8: byte {data[error.start]:#04x} at {error.start}")


def _parquet_columns(
    storage: Storage, found: Input, field: str, check: Check, piece: Piece | None
) -> Iterator[tuple[int, Any]]:
    with _parquet(storage, found) as file:
        _check_column(file.schema_arrow, field, storage.location(found.name), check)
        groups = range(file.metadata.num_row_groups) if piece is None else range(piece.start, piece.stop)
        row = sum(file.metadata.row_group(number).num_rows for number in range(groups.start))
        for number in groups:
            rows = _rows_at_once(file.metadata.row_group(number), field)
            for batch in file.iter_batches(rows, row_groups=[number], columns=[field], use_threads=False):
                yield row, batch.column(0)
                row += batch.num_rows


def _arrow_columns(
    storage: Storage, found: Input, field: str, check: Check, _piece: Piece | None
) -> Iterator[tuple[int, Any]]:
    pa = _pyarrow()
    start = storage.read_range(found.name, 0, min(found.size, len(_ARROW_MAGIC)))
    with _opened(storage, found, pa) as file:
        reader = pa.ipc.open_file(file) if start == _ARROW_MAGIC else pa.ipc.open_stream(file)
        _check_column(reader.schema, field, storage.location(found.name), check)
        index, row = reader.schema.get_field_index(field), 0
        for batch in _batches(reader):
            column = batch.column(index)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            for first in range(0, len(column), _ROWS):
                yield row + first, column.slice(first, _ROWS)
            row += len(column)


def _batches(reader: Any) -> Iterator[Any]:
    if hasattr(reader, "num_record_batches"):
        return (reader.get_batch(number) for number in range(reader.num_record_batches))
    return iter(reader)


def _check_column(schema: Any, field: str, where: str, check: Check) -> None:
    index = schema.get_field_index(field)
    if index < 0:
        raise SourceError(f"{where} has no column {field!r}; it has {', '.join(map(repr, schema.names[:8]))}")
    kind = schema.field(index).type
    if _pyarrow().types.is_dictionary(kind):
        kind = kind.value_type
    check(kind, f"{where}: the column {field!r}")


def check_text(kind: Any, column: str) -> None:
    """Refuse a column that holds no text."""
    types = _pyarrow().types
    names = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary", "is_binary_view")
    if not any(getattr(types, name)(kind) for name in names if hasattr(types, name)):
        raise SourceError(f"{column} holds {kind} and not strings; name another field")


def _rows_at_once(group: Any, field: str) -> int:
    """Rows of about 1 MiB of text."""
    return max(1, min(_ROWS, _BUFFER * group.num_rows // max(1, _column_bytes(group, field))))


def _column_bytes(group: Any, field: str) -> int:
    for number in range(group.num_columns):
        if group.column(number).path_in_schema == field:
            return int(group.column(number).total_uncompressed_size)
    return int(group.total_byte_size)


def _parquet(storage: Storage, found: Input) -> Any:
    pa = _pyarrow()
    parquet: Any = importlib.import_module("pyarrow.parquet")
    path = storage.path(found.name)
    source = str(path) if path is not None else pa.PythonFile(_file(storage, found), mode="r")
    # With a buffer, pages are read as they are used: a row group may be larger than memory.
    return parquet.ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True)


def _opened(storage: Storage, found: Input, pa: Any) -> Any:
    path = storage.path(found.name)
    return pa.OSFile(str(path)) if path is not None else pa.PythonFile(_file(storage, found), mode="r")


def _pyarrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise OptionsError(
            'Parquet and Arrow files need the package pyarrow: pip install "dew-core[prepare]"'
        ) from error


@contextlib.contextmanager
def _naming(storage: Storage, found: Input) -> Generator[None]:
    """What pyarrow raises for a damaged file becomes an error that names it."""
    pa = _pyarrow()
    try:
        yield
    except DewDataError:
        raise
    except (pa.lib.ArrowException, OSError, EOFError) as error:
        said = " ".join(str(error).split())
        raise DamagedSourceError(
            f"{storage.location(found.name)} is no {found.kind} file, or a damaged one: {said}; copy it again"
        ) from error


def _file(storage: Storage, found: Input) -> RangedFile:
    """A file of a storage as pyarrow wants it."""
    return RangedFile(functools.partial(storage.read_range, found.name), found.size)
