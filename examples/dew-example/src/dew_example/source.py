"""The record source: one table of a SQLite file, a record a row.

SQLite finds a row by its row id, so the source keeps the ids, eight bytes a record, and reads rows when they are asked
for. A connection is opened by the first read and belongs to this object; a pickle carries the path and no connection.
"""

import hashlib
import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from dew.data.errors import OptionsError, SourceNotFoundError, SplitError

_SAMPLED = 64
_MOST_IN_ONE_QUERY = 500


class TableSource:
    """The rows of `table` in the SQLite file at `path`.

    Args:
        path: of the file.
        table: a table there.
        columns: the columns of a record; empty: all of the table.

    Raises:
        SourceNotFoundError: there is no such file.
        SplitError: there is no such table; lists those there are.
        OptionsError: a column is not in the table; lists its columns.
    """

    def __init__(self, path: str | Path, table: str, columns: Sequence[str] = ()) -> None:
        self._path = Path(path)
        self._table = table
        self._lock = threading.Lock()  # one connection serves all threads, one query at a time
        self._connection: sqlite3.Connection | None = None
        if not self._path.is_file():
            raise SourceNotFoundError(f"there is no SQLite file {self._path}; give its path after 'example/'")
        with closing(self):
            self._columns = self._checked(columns)
            rows = self._ask(f"SELECT rowid FROM {_quoted(table)} ORDER BY rowid")
        self._row_ids = np.array([row_id for (row_id,) in rows], np.int64)

    def __len__(self) -> int:
        return len(self._row_ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} was asked for, there are records 0 to {len(self) - 1}")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Many records by one query; Dew reads a whole step this way."""
        wanted = self._row_ids[np.asarray(indices, np.int64)].tolist()
        names = ", ".join(map(_quoted, self._columns))
        rows: dict[int, list[Any]] = {}
        for start in range(0, len(wanted), _MOST_IN_ONE_QUERY):
            some = wanted[start : start + _MOST_IN_ONE_QUERY]
            marks = ", ".join("?" * len(some))
            query = f"SELECT rowid, {names} FROM {_quoted(self._table)} WHERE rowid IN ({marks})"
            rows |= {row_id: values for row_id, *values in self._ask(query, some)}
        return [dict(zip(self._columns, map(np.array, rows[row_id]), strict=True)) for row_id in wanted]

    def __repr__(self) -> str:
        """Names the data and what changes a record; never where it lies, so that a moved file is the same data."""
        return f"TableSource({self._table!r}, columns={list(self._columns)})"

    def fingerprint(self) -> str:
        """Digest of the number of rows and of 64 rows spread over all; a change of other rows is not seen."""
        sampled = sorted(set(np.linspace(0, len(self) - 1, _SAMPLED, dtype=np.int64).tolist())) if len(self) else []
        digest = hashlib.sha256(f"{len(self)} {self._columns}".encode())
        for record in self.__getitems__(sampled):
            digest.update(repr([value.tolist() for value in record.values()]).encode())
        return digest.hexdigest()

    def open(self) -> "TableSource":
        """A reader with a connection of its own, which the stream that asked for it closes."""
        return TableSource(self._path, self._table, self._columns)

    def close(self) -> None:
        """Closes the connection; the next read opens another."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def __del__(self) -> None:
        if hasattr(self, "_connection"):  # else it was refused in __init__
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """By path: a worker process opens the file again."""
        return TableSource, (self._path, self._table, self._columns)

    def _checked(self, columns: Sequence[str]) -> tuple[str, ...]:
        tables = [name for (name,) in self._ask("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        if self._table not in tables:
            raise SplitError(
                f"a split is a table, and {self._path.name} has no table {self._table!r}; "
                f"it has {', '.join(tables) or 'none'}"
            )
        there = [name for _, name, *_ in self._ask(f"PRAGMA table_info({_quoted(self._table)})")]
        if unknown := [name for name in columns if name not in there]:
            raise OptionsError(f"columns={unknown} are not in table {self._table!r}, which has {', '.join(there)}")
        return tuple(columns or there)

    def _ask(self, query: str, values: Sequence[int] = ()) -> list[tuple[Any, ...]]:
        with self._connected() as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def _connected(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            if self._connection is None:
                url = f"{self._path.resolve().as_uri()}?mode=ro"
                self._connection = sqlite3.connect(url, uri=True, check_same_thread=False)
            yield self._connection


def _quoted(name: str) -> str:
    """A name as SQL takes it, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'
