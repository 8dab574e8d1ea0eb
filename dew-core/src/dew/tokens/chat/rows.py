"""Rows of conversations, wherever they are: a list, JSON lines, Parquet, or a record source of another provider.

Rows are read from first to last, once for each thing that is made of them; what they are is known by a digest of their
content, so that what was made of them is found again, and a changed file is another data set.
"""

import contextlib
import hashlib
import importlib
import io
import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from dew.data.errors import DamagedSourceError, OptionsError, OptionsTypeError, SourceError, SourceNotFoundError
from dew.data.source import describe, fingerprint
from dew.data.storage import Storage

_TABLE: Final = (".parquet",)
_LINES: Final = (".jsonl", ".ndjson", ".json")
_AT_ONCE: Final = 256
_PIECE: Final = 1 << 22


class Rows(Protocol):
    """Rows in order."""

    arrow: bool
    """Whether keys that are None were perhaps filled in by Arrow."""

    def __iter__(self) -> Iterator[Any]:
        """Every row, from the first."""
        ...

    def row(self, index: int) -> Any:
        """Row `index` as it is stored."""
        ...

    def digest(self) -> str:
        """sha256 of the content, or of the source's own fingerprint."""
        ...

    def name(self, index: int) -> str:
        """What a message calls row `index`."""
        ...


def open_rows(data: Any) -> Rows:
    """The rows of `data`: the path or URL of a file or a directory of files, a sequence of rows, or a record source.

    Raises:
        OptionsTypeError: it is none of these.
        OptionsError: files of a kind that is not read.
        SourceNotFoundError: nothing is stored there.
    """
    if isinstance(data, str | os.PathLike):
        return FileRows(os.fspath(cast("str | os.PathLike[str]", data)))
    if isinstance(data, Mapping) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise OptionsTypeError(
            "conversations come from the path of a file or directory, a sequence of rows, or a record source, got "
            f"{cast('object', data)!r:.80} ({type(cast('object', data)).__name__})"
        )
    return MemoryRows(cast("Sequence[Any]", data)) if isinstance(data, list | tuple) else SourceRows(data)


class MemoryRows:
    """A list of rows."""

    arrow = False

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def name(self, index: int) -> str:
        """`row 3`."""
        return f"row {index}"

    def row(self, index: int) -> Any:
        """The row itself."""
        return self._rows[index]

    def digest(self) -> str:
        """Of all rows as JSON."""
        return _digest_rows(self)


class SourceRows:
    """A record source of rows, such as a split that another provider opened."""

    arrow = True

    def __init__(self, source: Any) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        many = getattr(self._source, "__getitems__", None)
        for first in range(0, len(self._source), _AT_ONCE):
            indices = list(range(first, min(first + _AT_ONCE, len(self._source))))
            found: Any = many(indices) if many is not None else None
            yield from found if isinstance(found, list) else (self._source[index] for index in indices)

    def name(self, index: int) -> str:
        """`row 3`."""
        return f"row {index}"

    def row(self, index: int) -> Any:
        """The row, read now."""
        return self._source[index]

    def digest(self) -> str:
        """Of its fingerprint, or of all rows where it has none."""
        own = fingerprint(self._source)
        if own is None:
            return _digest_rows(self)
        return hashlib.sha256(f"{describe(self._source)} {len(self._source)} {own}".encode()).hexdigest()


class FileRows:
    """Rows in JSON lines, in JSON arrays, or in Parquet.

    Args:
        path: of a file, or of a directory whose files are read in the order of their names.
    """

    def __init__(self, path: str) -> None:
        # A directory, or a file in one.
        whole = Storage(path)
        if whole.is_dir(""):
            self._storage = whole
            self._names = sorted(name for name in whole.list() if name.endswith((*_TABLE, *_LINES)))
            if not self._names:
                raise SourceNotFoundError(f"{whole.location()} holds no .jsonl, .json or .parquet file")
        else:
            folder, _, name = path.replace(os.sep, "/").rpartition("/")
            self._storage = Storage(folder or ("/" if path.startswith("/") else "."))
            self._names = [name]
            if not self._storage.exists(name):
                raise SourceNotFoundError(f"there is no file or directory {whole.location()}; check the path")
        wrong = [name for name in self._names if not name.endswith((*_TABLE, *_LINES))]
        if wrong:
            raise OptionsError(f"{self._storage.location(wrong[0])} is no .jsonl, .json or .parquet file")
        self.arrow = self._names[0].endswith(_TABLE)
        if any(name.endswith(_TABLE) != self.arrow for name in self._names):
            raise OptionsError(
                f"{self._storage.location()} holds both JSON and Parquet files; name one file, or keep the kinds apart"
            )
        self._firsts: list[tuple[int, str]] = []
        self._held: list[Any] | None = None
        self._lines_at: list[tuple[str, int]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "_lines_at": None}

    @property
    def storage(self) -> Storage:
        """Where the files are."""
        return self._storage

    def __iter__(self) -> Iterator[Any]:
        firsts: list[tuple[int, str]] = []
        row = 0
        for name in self._names:
            firsts.append((row, name))
            self._firsts = firsts
            for value in self._table(name) if self.arrow else self._lines(name):
                yield value
                row += 1

    def name(self, index: int) -> str:
        """`row 3 (chats.jsonl)`; the number counts over all files, in a file lines that are not empty."""
        first, name = next(((f, n) for f, n in reversed(self._firsts) if f <= index), (0, self._names[0]))
        within = f", its row {index - first}" if first else ""
        return f"row {index} ({self._storage.location(name)}{within})"

    def row(self, index: int) -> Any:
        """The row: of local JSON lines by where its line is, which is noted at first; others are kept in memory."""
        if self._storage.local and all(name.endswith((".jsonl", ".ndjson")) for name in self._names):
            if self._lines_at is None:
                self._lines_at = [place for name in self._names for place in self._places(name)]
            name, start = self._lines_at[index]
            with self._opened(name) as file:
                file.seek(start)
                return json.loads(file.readline())
        if self._held is None:
            self._held = list(self)
        return self._held[index]

    def digest(self) -> str:
        """Of the bytes of all files."""
        found = hashlib.sha256()
        for name in self._names:
            one = hashlib.sha256()
            with self._opened(name) as file:
                while piece := file.read(_PIECE):
                    one.update(piece)
            found.update(f"{'parquet' if self.arrow else 'json'} {one.hexdigest()}\n".encode())
        return found.hexdigest()

    @contextlib.contextmanager
    def _opened(self, name: str) -> Generator[Any]:
        path = self._storage.path(name)
        if path is None:
            yield io.BytesIO(self._storage.read(name))
        else:
            with path.open("rb") as file:
                yield file

    def _lines(self, name: str) -> Iterator[Any]:
        with self._opened(name) as file:
            first = file.read(1)
            while first and first in b" \t\r\n":
                first = file.read(1)
            file.seek(0)
            if first == b"[" and name.endswith(".json"):
                yield from cast("list[Any]", self._parsed(file.read(), name, None))
                return
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield self._parsed(line, name, number)

    def _places(self, name: str) -> Iterator[tuple[str, int]]:
        with self._opened(name) as file:
            start = 0
            for line in file:
                if line.strip():
                    yield name, start
                start += len(line)

    def _parsed(self, data: bytes, name: str, line: int | None) -> Any:
        try:
            return json.loads(data)
        except ValueError as error:
            where = self._storage.location(name) + ("" if line is None else f", line {line}")
            raise DamagedSourceError(f"{where} is no JSON: {error}") from error

    def _table(self, name: str) -> Iterator[Any]:
        try:
            parquet: Any = importlib.import_module("pyarrow.parquet")
            wrong: Any = importlib.import_module("pyarrow").lib.ArrowException
        except ImportError as error:
            raise OptionsError("Parquet files need the package pyarrow: pip install pyarrow") from error
        try:
            with self._opened(name) as file:
                for batch in parquet.ParquetFile(file).iter_batches(_AT_ONCE, use_threads=False):
                    yield from batch.to_pylist()
        except wrong as error:
            raise DamagedSourceError(f"{self._storage.location(name)} is no Parquet file: {error}") from error


def _digest_rows(rows: Rows) -> str:
    found = hashlib.sha256()
    for index, row in enumerate(rows):
        try:
            text = json.dumps(row, sort_keys=True, ensure_ascii=True, default=_listed)
        except (TypeError, ValueError) as error:
            raise SourceError(f"{rows.name(index)} holds what JSON cannot write: {error}") from error
        found.update(text.encode() + b"\n")
    return found.hexdigest()


def _listed(value: Any) -> Any:
    for name in ("tolist", "item"):
        if hasattr(value, name):
            return getattr(value, name)()
    raise TypeError(f"a {type(value).__name__}")
