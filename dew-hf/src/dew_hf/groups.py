"""Parquet files as records at random access, in row groups: local or remote, with no table prepared.

The footers tell how many rows each row group has, so that all files together are one numbered sequence. A row group is
read whole, once, and kept while its rows are wanted; which groups are wanted together is `BlockOrder`'s to say. Reading
these files in a uniformly random order would read a whole row group for every row.
"""

import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, overload

import attrs
import numpy as np

from dew.data.blocks import BlockOrder
from dew.data.errors import DamagedSourceError, SourceError
from dew.data.source import Record
from dew.data.storage import Storage
from dew_hf.opening import arrow, parquet
from dew_hf.sources import fitted
from dew_hf.values import Rows, rows_of

MOST_LANES: Final = 16
WINDOW_BYTES: Final = 1 << 30
"""Decoded bytes that the row groups of one window should take: with large groups there are fewer lanes."""

_FOOTER_THREADS: Final = 16
_READING_THREADS: Final = 8


@attrs.frozen
class Group:
    """One row group: file, number within it, rows, and bytes when decoded."""

    file: int
    number: int
    rows: int
    size: int


@attrs.frozen(kw_only=True)
class ParquetFiles:
    """Where the files are and what to read of them.

    Args:
        urls: paths or URLs, in order.
        storage_options: of fsspec; never shown.
        columns: those to read, None for all.
    """

    urls: tuple[str, ...]
    storage_options: Mapping[str, Any] = attrs.field(factory=dict[str, Any], repr=False)
    columns: tuple[str, ...] | None = None

    def name(self, file: int) -> str:
        """The file's name, without its location."""
        return self.urls[file].rpartition("/")[2]

    def footer(self, file: int) -> Any:
        """Its `pyarrow.parquet.FileMetaData`.

        Raises:
            DamagedSourceError: it is no whole parquet file.
        """
        return self._read(file, parquet().read_metadata)

    def group(self, file: int, number: int, footer: Any) -> Any:
        """Row group `number` as a `pyarrow.Table`."""

        def read(opened: Any) -> Any:
            columns = None if self.columns is None else list(self.columns)
            with parquet().ParquetFile(opened, metadata=footer, pre_buffer=True) as reader:
                return reader.read_row_group(number, columns=columns)

        return self._read(file, read)

    def _read(self, file: int, read: Any) -> Any:
        folder, _, name = self.urls[file].rpartition("/")
        storage = Storage(folder or "/", options=self.storage_options)
        path = storage.path(name)
        try:
            if path is not None:
                return read(str(path))
            with _RemoteFile(storage, name) as opened:
                return read(opened)
        except arrow().ArrowException as error:
            raise DamagedSourceError(f"{name} is not a parquet file that can be read: {error}") from error


class _RemoteFile(io.RawIOBase):
    """A remote file that fetches exactly what is asked for: reading ahead would fetch neighbours of a row group."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self._size = storage.size(name)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size is None or size < 0 else min(self._size, self._at + size)  # pyright: ignore[reportUnnecessaryComparison]
        data = self._storage.read_range(self._name, self._at, max(stop, self._at))
        self._at += len(data)
        return data


class ParquetRows:
    """The rows of parquet files as a record source; `order` is the order to read them in.

    Args:
        files: where they are.
        features: what the columns mean and the types they are cast to.
        description: how positions call the data; no location.
        background: RGB behind transparent images.
        lanes: row groups read side by side; by default at most 16, fewer where a window would exceed `WINDOW_BYTES`.

    Raises:
        SourceError: no file has a row.
    """

    def __init__(
        self,
        files: ParquetFiles,
        *,
        features: Any,
        description: str,
        background: tuple[int, int, int] = (255, 255, 255),
        lanes: int | None = None,
    ) -> None:
        with ThreadPoolExecutor(_FOOTER_THREADS) as threads:
            footers = list(threads.map(files.footer, range(len(files.urls))))
        self._files = files
        self._features = features
        self._description = description
        self._background = background
        self._groups = [
            Group(file, number, footer.row_group(number).num_rows, footer.row_group(number).total_byte_size)
            for file, footer in enumerate(footers)
            for number in range(footer.num_row_groups)
            if footer.row_group(number).num_rows
        ]
        if not self._groups:
            raise SourceError(f"{description} holds no rows in {len(files.urls)} files")
        self._starts = np.concatenate([[0], np.cumsum(self._sizes())]).astype(np.int64)
        self._fingerprint = self._digest(footers)
        self.lanes = self._picked_lanes() if lanes is None else lanes
        self._fresh()

    def __repr__(self) -> str:
        return self._description

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int, /) -> Record:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} was asked for, there are rows 0 to {len(self) - 1}")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> Sequence[Record]:
        """Rows `indices`: each row group that holds one of them is read at most once."""
        rows = np.asarray(indices, np.int64)
        groups = np.searchsorted(self._starts, rows, "right") - 1
        by_group = np.argsort(groups, kind="stable")
        wanted, firsts = np.unique(groups[by_group], return_index=True)
        parts = np.split(rows[by_group] - self._starts[groups[by_group]], firsts[1:])
        tables = self._tables(wanted.tolist())
        taken = [tables[group].take(part) for group, part in zip(wanted.tolist(), parts, strict=True)]
        place = np.empty(len(rows), np.int64)
        place[by_group] = np.arange(len(rows))
        found = rows_of(arrow().concat_tables(taken), self._features, self._background)
        return _Gathered(found, place.tolist())

    @property
    def features(self) -> Any:
        """The `datasets.Features` of the rows."""
        return self._features

    @property
    def groups(self) -> Sequence[Group]:
        """The row groups that hold rows, in order."""
        return self._groups

    def order(self, seed: int) -> BlockOrder:
        """Row groups in a fresh order in every epoch, `lanes` of them read side by side and shuffled together."""
        return BlockOrder(self._sizes(), seed=seed, lanes=self.lanes)

    def fingerprint(self) -> str:
        """Digest of the files' names, row groups, types and sizes, as the footers state them, in order.

        Values that change and leave all of these as they are would not be seen.
        """
        return self._fingerprint

    def open(self) -> "ParquetRows":
        """A reader with row groups and threads of its own."""
        other = object.__new__(ParquetRows)
        other.__setstate__(self.__getstate__())
        return other

    def close(self) -> None:
        """Lets go of the row groups and ends the threads."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        self._kept.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fresh()

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._footers: dict[int, Any] = {}
        self._pool: ThreadPoolExecutor | None = None
        self.reads = 0

    def _sizes(self) -> list[int]:
        return [group.rows for group in self._groups]

    def _picked_lanes(self) -> int:
        largest = max(group.size for group in self._groups)
        lanes = MOST_LANES
        while lanes > 1 and lanes * largest > WINDOW_BYTES:
            lanes //= 2
        return lanes

    def _digest(self, footers: Sequence[Any]) -> str:
        digest = hashlib.sha256()
        for file, footer in enumerate(footers):
            sizes = [footer.row_group(number).total_byte_size for number in range(footer.num_row_groups)]
            rows = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
            digest.update(f"{self._files.name(file)} {footer.serialized_size} {rows} {sizes}\n".encode())
        digest.update(f"{self._files.columns}\n{self._features.arrow_schema.remove_metadata()}".encode())
        return digest.hexdigest()[:32]

    def _tables(self, groups: list[int]) -> dict[int, Any]:
        """The groups' tables; those at hand first, so that what is read then may take their place."""
        with self._lock:  # one step at a time: two would read the same groups twice
            held = {group: self._kept[group] for group in groups if group in self._kept}
            for group in held:
                self._kept.move_to_end(group)
            missing = [group for group in groups if group not in held]
            if len(missing) > 1:
                self._pool = self._pool or ThreadPoolExecutor(_READING_THREADS, thread_name_prefix="dew-row-groups")
                read = list(self._pool.map(self._read, missing))
            else:
                read = [self._read(group) for group in missing]
            for group, table in zip(missing, read, strict=True):
                self._kept[group] = table
                while len(self._kept) > self.lanes:
                    self._kept.popitem(last=False)
            self.reads += len(missing)
        return held | dict(zip(missing, read, strict=True))

    def _read(self, number: int) -> Any:
        group = self._groups[number]
        footer = self._footers.get(group.file)
        if footer is None:
            footer = self._footers[group.file] = self._files.footer(group.file)
        name = self._files.name(group.file)
        try:
            table = fitted(self._files.group(group.file, group.number, footer), self._features)
        except Exception as error:
            error.add_note(f"in row group {group.number} of {name}")
            raise
        if table.num_rows != group.rows:
            raise DamagedSourceError(
                f"row group {group.number} of {name} holds {table.num_rows} rows, its footer said {group.rows}; "
                "the file changed while it was read"
            )
        return table.combine_chunks()


class _Gathered(Sequence[Record]):
    """Rows of several groups in the order asked for; images are decoded as each is asked for."""

    def __init__(self, rows: Rows, places: list[int]) -> None:
        self._rows = rows
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        return self._rows[self._places[index]]


_OF_THIS_PROCESS: Final = frozenset({"_footers", "_kept", "_lock", "_pool", "reads"})
