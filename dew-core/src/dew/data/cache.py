"""A cache of remote bytes on a local disk, shared by the processes of a machine without locks.

Files are kept in blocks of a few MiB. A block appears whole under its name or not at all (temporary name, rename), ends
in a checksum, and is told apart by where the file lies, its size, and the version that the storage gives it. So the
worst that a crash, a full disk or another process can do is to make a block missing, and a missing block is fetched.
"""

import hashlib
import json
import logging
import math
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeAlias, cast

import attrs

from dew.data import checks
from dew.data.errors import OptionsError

Fetch: TypeAlias = Callable[[int, int], bytes]

_LOG: Final = logging.getLogger(__name__)
_MIB: Final = 1 << 20
_TRAILER: Final = struct.Struct("<II")  # length and crc32 of what comes before
_BLOCK_NAME: Final = re.compile(r"[0-9a-f]{64}-[0-9a-f]+-[0-9a-f]+", re.ASCII)
_FOLDER_NAME: Final = re.compile(r"[0-9a-f]{2}", re.ASCII)
_TEMPORARY: Final = ".dew-tmp-"
_ABANDONED: Final = 3600.0  # seconds after which a temporary file has lost its writer
_USE_NOTED: Final = 60.0  # seconds in which several uses of a block count as one
_SCAN_SHARE: Final = 64  # a process looks at the directory again after writing this part of the bound
_FREED_SHARE: Final = 16  # what is removed beyond the need, so that not every block looks for another one to remove
_MOST_NOTES: Final = 1 << 17  # entries of what a process remembers, each

# Names of storage options that say who asks, not what is asked for.
_CREDENTIAL: Final = re.compile("key|secret|token|pass|user|cred|auth|sign|sas|cookie", re.IGNORECASE)


def _check_block(_instance: object, attribute: "attrs.Attribute[int]", value: object) -> None:
    if not _MIB <= checks.check_count(attribute.name, value) <= 8 * _MIB:
        raise OptionsError(f"block must be from {_MIB} to {8 * _MIB} bytes (1 to 8 MiB), got {value}")


def _as_directory(value: "str | os.PathLike[str]") -> str:
    path = os.fspath(value)
    if not path or "://" in path:
        raise OptionsError(f"directory must be a path on a local disk, got {path!r}")
    return os.path.abspath(path)


@attrs.frozen
class CachedFile:
    """One remote file in one state: the digest of place, size and version names its blocks."""

    digest: str
    size: int


class _Shelf:
    """What this process remembers of one directory; losing it costs time, never bytes."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.flights: dict[str, Future[bytes]] = {}  # blocks that a thread is fetching now
        self.known: dict[str, CachedFile] = {}
        self.verified: set[str] = set()
        self.room = threading.Lock()
        self.total: int | None = None  # bytes in the directory, by the last look and what was written since
        self.written = 0  # bytes written since the last look
        self.warned = False


_shelves: dict[str, _Shelf] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shelves.clear)  # its locks may be held by threads that the child has not


@attrs.frozen
class BlockCache:
    """Blocks of remote files in a local directory, for `Storage(url, cache=...)`.

    Any number of processes of one machine may share a directory, with different bounds and block sizes too; clearing it
    at any moment is safe. Files that are not blocks are neither counted nor touched.

    Args:
        directory: on a local disk; it is made when the first block is written.
        block: bytes of a block, from 1 to 8 MiB: what is fetched at least, wherever a read begins.
        size: most bytes in the directory. Blocks used longest ago go first. Each process that writes may pass the bound
            by a 64th for a moment.

    Raises:
        OptionsError, OptionsTypeError: a value that cannot be used.
    """

    directory: str = attrs.field(converter=_as_directory)
    block: int = attrs.field(default=4 * _MIB, validator=_check_block, kw_only=True)
    size: int = attrs.field(default=64 << 30, validator=checks.count(), kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.size < self.block:
            raise OptionsError(f"size must be at least one block of {self.block} bytes, got {self.size}")

    def known(self, place: str) -> CachedFile | None:
        """The file at `place` (as `place_of` gives it) in the state in which this process last noted it."""
        return self._shelf.known.get(place)

    def note(self, place: str, size: int | None, version: str) -> CachedFile | None:
        """Note what the storage says of a file now. None where it does not tell the size: it cannot be cached."""
        known = self._shelf.known
        if size is None:
            known.pop(place, None)
            return None
        if len(known) >= _MOST_NOTES:
            known.clear()
        digest = hashlib.sha256(json.dumps([place, size, version]).encode()).hexdigest()
        file = known[place] = CachedFile(digest, size)
        return file

    def read(self, file: CachedFile, start: int, stop: int, fetch: Fetch) -> bytes:
        """Bytes `[start, stop)` of `file`, from blocks that are here and from `fetch`.

        `fetch(first, last)` gives exactly bytes `[first, last)` of the file; its errors pass as they are.
        """
        numbers = range(start // self.block, -(-stop // self.block))
        spans = {n: (max(start, n * self.block), min(stop, (n + 1) * self.block)) for n in numbers}
        found = {n: self._stored(file, n, *span) for n, span in spans.items()}
        missing = [n for n, data in found.items() if data is None]
        for n, data in self._fetched(file, missing, fetch).items():
            first, last = spans[n]
            found[n] = data[first - n * self.block : last - n * self.block]
        pieces = cast("list[bytes]", list(found.values()))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @property
    def _shelf(self) -> _Shelf:
        return _shelves.get(self.directory) or _shelves.setdefault(self.directory, _Shelf())

    def _length(self, file: CachedFile, number: int) -> int:
        return min(self.block, file.size - number * self.block)

    def _path(self, file: CachedFile, number: int) -> str:
        return os.path.join(self.directory, file.digest[:2], f"{file.digest}-{self.block:x}-{number:x}")

    def _stored(self, file: CachedFile, number: int, start: int, stop: int) -> bytes | None:
        """Bytes `[start, stop)` of the file out of the block that holds them, None where it is missing or unusable."""
        path, length = self._path(file, number), self._length(file, number)
        try:
            with open(path, "rb", buffering=0) as block:
                found = os.fstat(block.fileno())
                if found.st_size == length + _TRAILER.size and self._is_whole(path, block.read, length):
                    if time.time() - found.st_mtime > _USE_NOTED:
                        _touch(path)
                    block.seek(start - number * self.block)
                    data = block.read(stop - start)
                    if len(data) == stop - start:
                        return data
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn("read", error)
            return None
        self._shelf.verified.discard(path)
        _remove(path)
        return None

    def _is_whole(self, path: str, read: Callable[[int], bytes], length: int) -> bool:
        """Whether the block's checksum holds. It is computed once in a process: only a lost machine tears a block."""
        verified = self._shelf.verified
        if path in verified:
            return True
        data = read(length + _TRAILER.size)
        if data[length:] != _trailer(data[:length]):
            return False
        if len(verified) >= _MOST_NOTES:
            verified.clear()
        verified.add(path)
        return True

    def _fetched(self, file: CachedFile, numbers: list[int], fetch: Fetch) -> dict[int, bytes]:
        """Whole blocks `numbers`: those that another thread is fetching from there, the rest by `fetch`."""
        if not numbers:
            return {}
        shelf = self._shelf
        with shelf.lock:
            others = {n: shelf.flights[self._path(file, n)] for n in numbers if self._path(file, n) in shelf.flights}
            mine: dict[int, Future[bytes]] = {n: Future() for n in numbers if n not in others}
            shelf.flights.update({self._path(file, n): flight for n, flight in mine.items()})
        try:
            for run in _runs(mine):
                data = fetch(run.start * self.block, min(run.stop * self.block, file.size))
                for n in run:
                    first = (n - run.start) * self.block
                    block = data[first : first + self._length(file, n)]
                    self._put(self._path(file, n), block)
                    mine[n].set_result(block)
        except BaseException as error:
            for flight in mine.values():
                if not flight.done():
                    flight.set_exception(error if isinstance(error, Exception) else _Abandoned())
            raise
        finally:
            with shelf.lock:
                for n in mine:
                    del shelf.flights[self._path(file, n)]
        return {n: flight.result() for n, flight in mine.items()} | {
            n: self._waited(file, n, flight, fetch) for n, flight in others.items()
        }

    def _waited(self, file: CachedFile, number: int, flight: "Future[bytes]", fetch: Fetch) -> bytes:
        try:
            return flight.result()
        except _Abandoned:  # the thread that fetched it was interrupted
            return fetch(number * self.block, number * self.block + self._length(file, number))

    def _put(self, path: str, data: bytes) -> None:
        """Keep one block. A disk that is full or not writable costs the cache, never the read."""
        folder = os.path.dirname(path)
        temporary = os.path.join(folder, _TEMPORARY + os.urandom(8).hex())
        try:
            self._make_room(len(data) + _TRAILER.size)
            os.makedirs(folder, exist_ok=True)
            try:
                with open(temporary, "xb", buffering=0) as file:
                    _write_all(file.write, data)
                    _write_all(file.write, _trailer(data))
                os.replace(temporary, path)
            except BaseException:
                _remove(temporary)
                raise
        except FileNotFoundError:  # someone cleared the directory just now
            return
        except OSError as error:
            self._warn("written", error)

    def _make_room(self, wanted: int) -> None:
        shelf = self._shelf
        with shelf.room:
            if shelf.total is None or shelf.written >= self.size // _SCAN_SHARE or shelf.total + wanted > self.size:
                shelf.total, shelf.written = self._evicted(wanted), 0
            shelf.total += wanted
            shelf.written += wanted

    def _evicted(self, wanted: int) -> int:
        """Bytes in the directory, after the oldest blocks went where `wanted` more would pass the bound."""
        blocks = sorted(_blocks(self.directory))
        total = sum(block.size for block in blocks)
        if total + wanted > self.size:
            target = max(0, self.size - wanted - self.size // _FREED_SHARE)
            for block in blocks:
                if total <= target:
                    break
                _remove(block.path)  # another process may have been first, which frees as much
                total -= block.size
        return total

    def _warn(self, done: str, error: OSError) -> None:
        shelf = self._shelf
        if not shelf.warned:
            shelf.warned = True
            _LOG.warning(
                "the cache %s could not be %s, reading goes on without what it lacks: %s", self.directory, done, error
            )


class _Block(NamedTuple):
    used: float
    size: int
    path: str


class _Abandoned(Exception):
    """The thread that fetched a block was interrupted."""


def place_of(url: str, options: Mapping[str, Any]) -> str:
    """Which file this is: its URL, and what among the storage options says where, without who asks for it."""
    return json.dumps([url, _plain(options)], sort_keys=True)


def _plain(value: Any) -> Any:
    """`value` as JSON without credentials; an object that JSON lacks counts by its type."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): _plain(item) for key, item in items if not _CREDENTIAL.search(str(key))}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Iterable[Any]", value)]
    return value if value is None or isinstance(value, bool | int | float | str) else type(value).__qualname__


def _runs(numbers: Iterable[int]) -> list[range]:
    """Rising numbers as stretches without a gap: what one request each can fetch."""
    runs: list[range] = []
    for number in numbers:
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs


def _trailer(data: bytes) -> bytes:
    return _TRAILER.pack(len(data), zlib.crc32(data))


def _write_all(write: Callable[[memoryview], int | None], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[write(rest) or 0 :]


def _blocks(directory: str) -> list[_Block]:
    """The blocks in a cache's directory; removes temporary files that nobody writes any more."""
    found: list[_Block] = []
    for folder in _entries(directory):
        if not _FOLDER_NAME.fullmatch(folder.name):
            continue
        for entry in _entries(folder.path):
            try:
                known = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if entry.name.startswith(_TEMPORARY) and time.time() - known.st_mtime > _ABANDONED:
                _remove(entry.path)
            elif entry.name.startswith(_TEMPORARY):
                found.append(_Block(math.inf, known.st_size, entry.path))  # being written: the last to go
            elif _BLOCK_NAME.fullmatch(entry.name):
                found.append(_Block(known.st_mtime, known.st_size, entry.path))
    return found


def _entries(directory: str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:  # not made yet, or removed by someone
        return []


def _touch(path: str) -> None:
    try:
        os.utime(path)
    except OSError:  # gone, or another user's: its place in the line is a matter of speed
        return


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # another process was first
        return
