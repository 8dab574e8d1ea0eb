"""Parquet files with a column of encoded images: plain bytes, or `struct{bytes, path}` as Hugging Face writes them.

A row group is read whole, the wanted columns of it, and kept while its rows are asked for; `blocks` says which rows lie
together.
"""

import io
import threading
from collections import OrderedDict
from concurrent.futures import CancelledError, Future
from typing import Any, BinaryIO, Final, cast

from dew.data.errors import DamagedSourceError, SourceError
from dew_media.files import metadata
from dew_media.files.collection import StoredFiles, check_index, real_place
from dew_media.files.parquet_io import ParquetSpec, read_footer, read_group
from dew_media.files.parquet_rows import ParquetRows, read_rows

KEPT_BYTES: Final = 1 << 30
"""Bytes of the row groups that are kept in memory; as many as `keep_blocks` says are kept however large they are."""


class ParquetFiles(StoredFiles[ParquetRows]):
    """`MediaFiles` of parquet files."""

    def __init__(self, spec: ParquetSpec) -> None:
        self._spec = spec
        self._least_kept = 1
        self._fresh()
        super().__init__()

    def _open(self) -> ParquetRows:
        return read_rows(self._spec)

    def _location(self) -> str:
        return self._spec.where

    @property
    def origin(self) -> str:
        """The directory of the files, also where one of them was named."""
        return real_place(self._spec.storage.location(self._spec.below))

    def name(self, index: int) -> str:
        """File and row."""
        file, _, row = self.key(index).rpartition("/")
        return f"{file}: row {row}"

    def read(self, index: int) -> bytes:
        """The encoded bytes, out of a row group that is kept."""
        known = self.known
        value = self._value(index, known.column)
        if known.nested and isinstance(value, dict):
            value = cast("dict[str, Any]", value).get("bytes")
        if not isinstance(value, bytes):
            raise DamagedSourceError(f"{self.name(index)} holds no bytes in {known.column!r}; list it in exclude")
        return value

    def open_file(self, index: int) -> BinaryIO:
        """The encoded bytes, in memory."""
        return io.BytesIO(self.read(index))

    def label(self, index: int) -> int | None:
        """From its column."""
        known = self.known
        check_index(index, len(known.keys))
        return None if known.labels is None else int(known.labels[index])

    def captions(self, index: int) -> tuple[str, ...]:
        """From its column."""
        caption = self.known.caption
        if caption is None:
            check_index(index, len(self))
            return ()
        where = f"{self.name(index)}, {caption!r}"
        try:
            found = metadata.captions_of(self._value(index, caption), where)
        except UnicodeDecodeError as error:
            raise DamagedSourceError(f"{where} is no UTF-8: {error.reason} at {error.start}") from error
        if found is None:
            raise SourceError(f"{self.name(index)} has no caption in {caption!r}; list it in exclude")
        return found

    def keep_blocks(self, count: int) -> None:
        """Keep at least `count` row groups, whatever memory they take: for an order that reads so many side by side."""
        self._least_kept = max(1, count)

    def close(self) -> None:
        """Lets go of the row groups."""
        with self._groups_lock:
            self._kept.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in _OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._fresh()

    def _fresh(self) -> None:
        self._groups_lock = threading.Lock()
        self._kept: OrderedDict[int, Future[Any]] = OrderedDict()
        self._footers: dict[int, Any] = {}
        self.reads = 0

    def _value(self, index: int, column: str) -> Any:
        known = self.known
        group, row = known.rows[check_index(index, len(known.keys))].tolist()
        return self._group(known, group).column(column)[row].as_py()

    def _group(self, known: ParquetRows, number: int) -> Any:
        """A row group, the columns that are used of it; threads that want the same one wait for the first of them."""
        with self._groups_lock:
            flight = self._kept.get(number)
            mine = flight is None
            if flight is None:
                flight = self._kept[number] = Future()
                self.reads += 1
            self._kept.move_to_end(number)
        if mine:
            self._fetch(known, number, flight)
        try:
            return flight.result()
        except CancelledError:  # the thread that read it was interrupted
            return self._group(known, number)

    def _fetch(self, known: ParquetRows, number: int, flight: "Future[Any]") -> None:
        file, group = known.groups[number]
        columns = [known.column, *([known.caption] if known.caption else [])]
        try:
            if file not in self._footers:
                self._footers[file] = read_footer(self._spec, known.names[file])
            flight.set_result(read_group(self._spec, known.names[file], group, columns, self._footers[file]))
        except BaseException as error:
            with self._groups_lock:
                self._kept.pop(number, None)
            if not isinstance(error, Exception):
                flight.cancel()
                raise
            flight.set_exception(error)
        with self._groups_lock:
            sizes = {one: kept.result().nbytes for one, kept in self._kept.items() if kept.done()}
            for one in [one for one in sizes if one != number]:
                if sum(sizes.values()) <= KEPT_BYTES or len(self._kept) <= self._least_kept:
                    break
                del self._kept[one], sizes[one]


_OF_THIS_PROCESS: Final = frozenset({"_footers", "_groups_lock", "_kept", "reads"})
