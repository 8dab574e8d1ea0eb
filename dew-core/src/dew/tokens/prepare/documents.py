"""The documents of one piece of an input: each with its row, or with the reason why it is none.

A piece is bytes of a plain `.jsonl` file, row groups of a `.parquet` file, or a whole file of any other kind. A line
belongs to the piece in which its first byte lies, so that cutting a file needs no look at it.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from dew.data.errors import DamagedSourceError
from dew.data.storage import Storage
from dew.tokens.prepare import tables
from dew.tokens.prepare.compression import decompressed
from dew.tokens.prepare.inputs import Input, check_input
from dew.tokens.prepare.pieces import Piece, Refused, Row

LONGEST: Final = 1 << 30
"""Bytes of the longest line or text file."""

_READ_BYTES: Final = 4 << 20
_BOM: Final = b"\xef\xbb\xbf"


def documents(storage: Storage, found: Input, piece: Piece, field: str) -> Iterator[Row]:
    """`(row, text)` of every document of a piece, `(row, Refused)` for what is none, `(row, None)` for a blank line.

    Rows count from 0: lines of a file of lines from where the piece begins, rows of a table from its first one.

    Raises:
        DamagedSourceError: the file has changed since it was planned, or it is damaged as a whole.
    """
    if found.kind == "text":
        return _text_file(storage, found)
    check_input(storage, found)
    if found.kind == "lines":
        return _numbered_lines(storage, found, piece, field)
    return tables.documents(storage, found, piece, field)


def place(storage: Storage, found: Input, piece: Piece, row: int) -> str:
    """Where a row is, for people: file and line, or file and row."""
    where = storage.location(found.name)
    if found.kind == "text":
        return where
    if found.kind != "lines":
        return f"{where}, row {row}"
    before = 0
    if piece.start:  # counted only when somebody wants to know
        before = sum(data.count(b"\n") for data in _ranges(storage, found.name, 0, piece.start))
        if storage.read_range(found.name, piece.start - 1, piece.start) != b"\n":
            before += 1
    return f"{where}, line {before + row + 1}"


def line_text(line: bytes, field: str) -> str | Refused | None:
    """The text in one line of a JSON lines file; None for a blank line."""
    if line.startswith(_BOM):
        line = line[len(_BOM) :]
    try:
        source = line.decode()
    except UnicodeDecodeError as error:
        return Refused(f"no UTF-8: byte {line[error.start]:#04x} at {error.start}")
    if not source or source.isspace():
        return None
    try:
        value = json.loads(source)
    except (ValueError, RecursionError) as error:
        return Refused(f"no JSON: {error}")
    text = _field(value, field)
    if isinstance(text, str) and "\\u" in source:
        return _encodable(text)
    return text


def _field(value: Any, field: str) -> str | Refused:
    if not isinstance(value, dict):
        return Refused(f"a JSON {_json_type(value)} and not an object")
    row = cast("dict[str, Any]", value)
    if field not in row:
        names = ", ".join(repr(name) for name in list(row)[:8]) or "no fields"
        return Refused(f"no field {field!r}; it has {names}")
    text = row[field]
    if not isinstance(text, str):
        return Refused(f"the field {field!r} is {_json_type(text)} ({text!r:.40}) and not a string")
    return text


def _json_type(value: object) -> str:
    kinds = {"bool": "boolean", "int": "number", "float": "number", "NoneType": "null", "dict": "object"}
    return kinds.get(type(value).__name__, type(value).__name__.replace("str", "string"))


def _encodable(text: str) -> str | Refused:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return Refused(f"half of a surrogate pair, {text[error.start]!a}, at character {error.start} of the text")
    return text


def _numbered_lines(storage: Storage, found: Input, piece: Piece, field: str) -> Iterator[Row]:
    for row, (_, line) in enumerate(_lines_of(storage, found, piece)):
        if len(line) > LONGEST:
            yield row, Refused(f"a line of more than {LONGEST} bytes")
        else:
            yield row, line_text(line, field)


def _lines_of(storage: Storage, found: Input, piece: Piece) -> Iterator[tuple[int, bytes]]:
    if found.compression is None:
        return _lines_in(storage, found.name, piece.start, piece.stop, found.size)
    return _lines(_whole(storage, found, _ranges(storage, found.name, 0, found.size)))


def _whole(storage: Storage, found: Input, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """What is in a file after decompression; an error in it names the file."""
    try:
        yield from decompressed(pieces, found.compression)
    except ValueError as error:
        raise DamagedSourceError(f"{storage.location(found.name)} {error}; copy it again") from error


def _lines_in(storage: Storage, name: str, start: int, stop: int, size: int) -> Iterator[tuple[int, bytes]]:
    """The lines whose first byte lies in bytes `[start, stop)`."""
    # One byte more in front: a line begins at `start` if the byte before it ends one.
    begin = max(start - 1, 0)
    for at, line in _lines(_ranges(storage, name, begin, size, ahead=stop), begin):
        if at >= stop:
            return
        if at >= start:
            yield at, line


def _ranges(storage: Storage, name: str, start: int, stop: int, ahead: int | None = None) -> Iterator[bytes]:
    """Bytes `[start, stop)` in pieces; past `ahead` in small ones, since little of them is wanted."""
    last = stop if ahead is None else min(ahead, stop)
    while start < stop:
        end = min(start + _READ_BYTES, last) if start < last else min(start + _READ_BYTES // 16, stop)
        yield storage.read_range(name, start, end)
        start = end


def _lines(pieces: Iterable[bytes], at: int = 0) -> Iterator[tuple[int, bytes]]:
    """The lines of joined `pieces`, that begin at byte `at`, each with the place of its first byte, without its end.

    Of a line over `LONGEST` bytes only so much is kept that this can be seen.
    """
    kept: list[bytes] = []
    size = 0
    for piece in pieces:
        first, *others = piece.split(b"\n")
        if size <= LONGEST:
            kept.append(first)
        size += len(first)
        for line in others:
            yield at, b"".join(kept)
            at += size + 1
            kept, size = [line], len(line)
    if size:
        yield at, b"".join(kept)


def _text_file(storage: Storage, found: Input) -> Iterator[Row]:
    """The one document of a `.txt` file."""
    if found.size > LONGEST:
        check_input(storage, found)
        yield 0, Refused(f"a file of {found.size} bytes, at most {LONGEST} make a document")
        return
    data = storage.read(found.name)
    check_input(storage, found, data)
    whole = bytearray()
    for piece in _whole(storage, found, [data]):
        whole += piece
        if len(whole) > LONGEST:
            yield 0, Refused(f"a file of more than {LONGEST} bytes, at most so many make a document")
            return
    try:
        yield 0, whole.removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        yield 0, Refused(f"no UTF-8: byte {error.object[error.start]:#04x} at {error.start}")
