"""Footers of parquet files: what row groups there are and where, read once and kept in an index file.

A footer lies at the end of each file, so that opening tens of thousands of files would read each of them. An index
holds all of them in one local file, named by the digest of the files' addresses and versions (commit, ETag or time of
change): files that changed have another index. It is written by rename and checked by its digests whenever something is
read from it; where it is damaged, absent or cannot be written, the footers come from the files themselves.
"""

import functools
import hashlib
import io
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, cast
from urllib import parse

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import DamagedSourceError, DewDataError, StorageError
from dew.data.ranged import RangedFile
from dew.data.storage import Storage
from dew_hf.opening import arrow, hidden, parquet
from dew_hf.options import HFOptions

logger = logging.getLogger("dew.hf")

_MAGIC: Final = b"DEWFOOT1"
_PARQUET: Final = b"PAR1"
_TAIL: Final = 1 << 15  # most footers are shorter, so that one request reads them
_THREADS: Final = 16
_FEW_PARSED: Final = 16
_PARSED_BYTES: Final = 64 << 20
"""Parsed footers are kept up to this size, or up to that number where each is large."""

_FILE: Final = np.dtype([("size", "<u8"), ("length", "<u8"), ("groups", "<u8"), ("digest", "u1", 32)])
_GROUP: Final = np.dtype([("rows", "<i8"), ("size", "<i8")])
_HEAD: Final = np.dtype([("magic", "S8"), ("digest", "u1", 32), ("files", "<u8"), ("groups", "<u8")])


@attrs.frozen(kw_only=True)
class ParquetFiles:
    """Where the files are and what to read of them.

    Args:
        urls: paths or URLs, in order.
        versions: what tells one state of each file from another; empty where nothing does.
        storage_options: of fsspec; never shown.
        columns: those to read, None for all.
        cache: the directory of indexes, None for none.
    """

    urls: tuple[str, ...]
    versions: tuple[str, ...] = ()
    storage_options: Mapping[str, Any] = attrs.field(factory=dict[str, Any], repr=False)
    columns: tuple[str, ...] | None = None
    cache: str | None = None

    def name(self, file: int) -> str:
        """The file's name, without its location."""
        return self._stored(file)[1]

    def size(self, file: int) -> int:
        """Its bytes."""
        storage, name = self._stored(file)
        return storage.size(name)

    def range(self, file: int, start: int, stop: int) -> bytes:
        """Exactly bytes `[start, stop)`."""
        url = self.urls[file]
        if not url.startswith("hf://"):
            storage, name = self._stored(file)
            return storage.read_range(name, start, stop)
        return self._hub_range(url, start, stop)

    def group(self, file: int, number: int, metadata: Any, size: int) -> Any:
        """Row group `number` as a `pyarrow.Table`, in reads of exactly its columns.

        Args:
            file, number: which.
            metadata: the file's `pyarrow.parquet.FileMetaData`.
            size: bytes of the file.

        Raises:
            DamagedSourceError: the file is not what it was when `metadata` was read.
        """
        storage, name = self._stored(file)
        path = storage.path(name)
        if path is not None and (found := storage.size(name)) != size:
            raise DamagedSourceError(
                f"{name} is not what it was when it was opened: {size} bytes then, {found} now; open the dataset again"
            )
        opened = str(path) if path is not None else RangedFile(functools.partial(self.range, file), size)
        columns = None if self.columns is None else list(self.columns)
        try:
            with parquet().ParquetFile(opened, metadata=metadata, pre_buffer=True) as reader:
                return reader.read_row_group(number, columns=columns)
        except DewDataError:
            raise
        except (arrow().ArrowException, OSError) as error:
            raise DamagedSourceError(f"{name} is not a parquet file that can be read: {error}") from error

    def footer(self, file: int, size: int) -> bytes:
        """The file's footer, with the length and magic behind it.

        Raises:
            DamagedSourceError: it is no whole parquet file.
        """
        start = max(0, size - _TAIL)
        tail = self.range(file, start, size)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if len(tail) < 12 or tail[-4:] != _PARQUET or length + 4 > size:
            raise DamagedSourceError(
                f"{self.name(file)} is not a parquet file that can be read: its last bytes are {tail[-4:]!r}, a whole "
                f"one ends in {_PARQUET!r}; write or copy it again"
            )
        if length > len(tail):
            tail = self.range(file, size - length, start) + tail
        return tail[-length:]

    def _hub_range(self, url: str, start: int, stop: int) -> bytes:
        from fsspec import core  # pyright: ignore[reportMissingTypeStubs]

        try:
            hub, path = cast("Any", core).url_to_fs(url, **dict(self.storage_options))
            # The hub's files read ahead unless told otherwise, and try again by themselves.
            with hub.open(path, "rb", cache_type="none") as opened:
                opened.seek(start)
                return opened.read(stop - start)
        except Exception as error:
            failure = hidden(f"{type(error).__name__}: {error}", HFOptions(token=self.storage_options.get("token")))
        # Outside the handler: what the error follows from may hold the address that the hub signed.
        raise StorageError(f"bytes {start} to {stop} of {url} could not be read: {failure}")

    def _stored(self, file: int) -> tuple[Storage, str]:
        url, mark, query = self.urls[file], "", ""
        if url.startswith(("http://", "https://")):
            url, mark, query = url.partition("?")  # a storage's query is that of each of its files
            url = parse.unquote(url)
        folder, _, name = url.rpartition("/")
        return Storage(f"{folder or '/'}{mark}{query}", options=self.storage_options), name


def parsed(footer: bytes, name: str) -> Any:
    """A footer's `pyarrow.parquet.FileMetaData`.

    Raises:
        DamagedSourceError: it is none.
    """
    try:
        return parquet().read_metadata(io.BytesIO(_PARQUET + footer))
    except (arrow().ArrowException, OSError) as error:
        raise DamagedSourceError(f"{name} is not a parquet file that can be read: {error}") from error


class Footers:
    """The footers of files: sizes and row groups as arrays, each footer itself on demand.

    Attributes:
        sizes, counts: bytes and row groups of each file, (files,) int64.
        rows, group_sizes: rows and decoded bytes of each row group, file after file, (groups,) int64.
    """

    def __init__(self, files: ParquetFiles, table: "_Table", path: str | None) -> None:
        self._files = files
        self._table = table
        self._path = path
        self.sizes = table.files["size"].astype(np.int64)
        self.counts = table.files["groups"].astype(np.int64)
        self.rows = table.groups["rows"].astype(np.int64)
        self.group_sizes = table.groups["size"].astype(np.int64)
        self._lock = threading.Lock()
        self._parsed: OrderedDict[int, Any] = OrderedDict()  # those used last

    def __len__(self) -> int:
        return len(self.sizes)

    def __getstate__(self) -> dict[str, Any]:
        """By the index's path where there is one."""
        return {"files": self._files, "table": None if self._path else self._table, "path": self._path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        files, table, path = state["files"], state["table"], state["path"]
        found = table or _load(path) or _build(files)[0]
        self.__init__(files, found, path)

    @property
    def indexed(self) -> str | None:
        """The index file, None where there is none."""
        return self._path

    def fingerprint(self) -> str:
        """Digest of the files' names, sizes and footers, in order."""
        digest = hashlib.sha256()
        for file, entry in enumerate(self._table.files):
            digest.update(f"{self._files.name(file)} {entry['size']} ".encode() + entry["digest"].tobytes())
        return digest.hexdigest()[:32]

    def metadata(self, file: int) -> Any:
        """The `pyarrow.parquet.FileMetaData` of a file: out of the index, or of the file itself.

        Raises:
            DamagedSourceError: the file has another footer by now.
        """
        with self._lock:  # threads that need the same footer wait for one reading of it
            metadata = self._parsed.pop(file, None)
            if metadata is None:
                metadata = parsed(self._footer(file), self._files.name(file))
            self._parsed[file] = metadata
            held = sum(one.serialized_size for one in self._parsed.values())
            while len(self._parsed) > _FEW_PARSED and held > _PARSED_BYTES:
                held -= self._parsed.popitem(last=False)[1].serialized_size
            return metadata

    def _footer(self, file: int) -> bytes:
        entry = self._table.files[file]
        expected = entry["digest"].tobytes()
        found = self._indexed_footer(file)
        if found is not None and hashlib.sha256(found).digest() == expected:
            return found
        found = self._files.footer(file, int(entry["size"]))
        if hashlib.sha256(found).digest() != expected:
            raise DamagedSourceError(
                f"{self._files.name(file)} is not what it was when it was opened: its footer is another one; "
                "open the dataset again"
            )
        return found

    def _indexed_footer(self, file: int) -> bytes | None:
        if self._path is None:
            return None
        try:
            with open(self._path, "rb") as index:
                index.seek(self._table.footers_at + int(self._table.files["length"][:file].sum()))
                return index.read(int(self._table.files["length"][file]))
        except OSError:
            return None


@attrs.frozen(eq=False)
class _Table:
    """What an index holds beside the footers themselves."""

    files: npt.NDArray[Any]
    groups: npt.NDArray[Any]

    @property
    def footers_at(self) -> int:
        return _HEAD.itemsize + self.files.nbytes + self.groups.nbytes

    def to_bytes(self) -> bytes:
        data = self.files.tobytes() + self.groups.tobytes()
        head = np.zeros((), _HEAD)
        head["magic"], head["files"], head["groups"] = _MAGIC, len(self.files), len(self.groups)
        head["digest"] = np.frombuffer(hashlib.sha256(data).digest(), np.uint8)
        return head.tobytes() + data


def open_footers(files: ParquetFiles) -> Footers:
    """The footers of all files, out of an index where there is one of exactly these files, else read and indexed.

    Raises:
        DamagedSourceError: a file is no whole parquet file.
        SourceNotFoundError, StorageError: a file cannot be read.
    """
    path = _index_path(files)
    if path is not None and (table := _load(path)) is not None:
        return Footers(files, table, path)
    table, footers = _build(files)
    if path is not None and not _store(path, table, footers):
        path = None
    return Footers(files, table, path)


def _index_path(files: ParquetFiles) -> str | None:
    """None where nothing tells whether a file is still the same."""
    if files.cache is None or len(files.versions) != len(files.urls) or not all(files.versions):
        return None
    digest = hashlib.sha256()
    for url, version in zip(files.urls, files.versions, strict=True):
        digest.update(f"{url}\n{version}\n".encode())
    return os.path.join(files.cache, f"{digest.hexdigest()}.footers")


def _build(files: ParquetFiles) -> tuple[_Table, list[bytes]]:
    def read(file: int) -> tuple[int, bytes, Any]:
        size = files.size(file)
        footer = files.footer(file, size)
        return size, footer, parsed(footer, files.name(file))

    with ThreadPoolExecutor(_THREADS) as threads:
        found = list(threads.map(read, range(len(files.urls))))
    entries = np.zeros(len(found), _FILE)
    groups: list[tuple[int, int]] = []
    for file, (size, footer, metadata) in enumerate(found):
        digest = np.frombuffer(hashlib.sha256(footer).digest(), np.uint8)
        entries[file] = (size, len(footer), metadata.num_row_groups, digest)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            groups.append((group.num_rows, group.total_byte_size))
    return _Table(entries, np.array(groups, _GROUP)), [footer for _, footer, _ in found]


def _load(path: str) -> _Table | None:
    """The table of an index, None where it is absent or not whole."""
    try:
        with open(path, "rb") as index:
            head = np.frombuffer(index.read(_HEAD.itemsize), _HEAD)[0]
            if head["magic"] != _MAGIC:
                raise ValueError("another kind of file")
            sizes = int(head["files"]) * _FILE.itemsize, int(head["groups"]) * _GROUP.itemsize
            if sum(sizes) > os.fstat(index.fileno()).st_size:
                raise ValueError("cut short")
            data = index.read(sum(sizes))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, IndexError) as error:
        logger.warning("the index %s cannot be used (%s) and is written anew", Path(path).name, error)
        return None
    if hashlib.sha256(data).digest() != head["digest"].tobytes():
        logger.warning("the index %s is damaged and is written anew", Path(path).name)
        return None
    return _Table(np.frombuffer(data[: sizes[0]], _FILE), np.frombuffer(data[sizes[0] :], _GROUP))


def _store(path: str, table: _Table, footers: Sequence[bytes]) -> bool:
    """Whether the index could be written: without one, the next opening reads the footers again."""
    folder, name = os.path.split(path)
    try:
        Storage(folder).write(name, table.to_bytes() + b"".join(footers))
    except DewDataError as error:
        logger.warning("the index of %d files cannot be kept: %s", len(footers), error)
        return False
    return True
