"""The scan that makes an index: every packet of every file is read once, side by side, and nothing is read twice.

What is found is written down file by file, so that an interrupted scan goes on where it stopped, and its memory does
not grow with the tables. Two scans at once do no harm: each adds whole lines, and both end with the same bytes.
"""

import base64
import collections
import errno
import json
import os
import zlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, cast

import attrs

from dew.data.errors import DamagedSourceError, SourceError, SourceNotFoundError, StorageError
from dew.data.loading import cores_here
from dew.data.storage import Storage
from dew_media.files.collection import MediaFiles
from dew_media.files.exclude import BadRecord
from dew_media.video.frames import FrameTable, read_table
from dew_media.video.index import FORMAT, VERSION, Entry, Head, VideoIndex, index_in_memory
from dew_media.video.tables import packed

OnProgress = Callable[[int, int, int], None]
"""`(files done, files in all, bad ones found)`."""

Found: TypeAlias = Entry | BadRecord

_REMOTE_THREADS: Final = 8
_AHEAD: Final = 4  # files a thread that are begun before the first of them is done


@attrs.frozen
class Scan:
    """What a scan found.

    Args:
        head: of the index.
        table: gives the packed table of a file, by its key.
    """

    head: Head
    table: Callable[[str], bytes]

    def index(self) -> VideoIndex:
        """The index, in memory."""
        return index_in_memory(self.head, b"".join(map(self.table, self.head.keys)))

    def write(self, storage: Storage, name: str) -> None:
        """Stores the index, all or nothing, a table at a time."""
        path = storage.unfinished(name)
        try:
            with path.open("xb") as file:
                file.write(self.head.to_bytes())
                for key in self.head.keys:
                    file.write(self.table(key))
            storage.adopt(name, path)
        finally:
            path.unlink(missing_ok=True)


def scan(
    files: MediaFiles,
    *,
    decode: bool = False,
    threads: int | None = None,
    journal: "Journal | None" = None,
    on_progress: OnProgress | None = None,
) -> Scan:
    """Reads every packet of every file of a collection.

    Args:
        files: the whole collection.
        decode: decode every frame too, which finds damage that only a decoder sees, and takes much longer.
        threads: files read side by side; by default one a core, and eight or more where files are not local.
        journal: what an interrupted scan has found, and where more is written down; by default in memory.
        on_progress: told how far it is.

    Raises:
        StorageError: the storage failed, which says nothing about a file.
    """
    known = Journal() if journal is None else journal
    if threads is None:
        threads = cores_here() if files.path(0) is not None else max(_REMOTE_THREADS, cores_here())
    entries: list[Entry] = []
    bad: list[BadRecord] = []
    with _pool(threads) as pool:

        def begin(index: int) -> "Future[_Looked] | Found":
            done = known.found.get(files.key(index))
            return pool.submit(_look, files, index, decode) if done is None else done

        for number, one in enumerate(_in_order(begin, len(files), threads * _AHEAD)):
            found = known.add(*one) if isinstance(one, tuple) else one
            if isinstance(found, Entry):
                entries.append(found)
            else:
                bad.append(found)
            if on_progress is not None:
                on_progress(number + 1, len(files), len(bad))
    return Scan(Head.of(files.stored(), entries, bad), known.table)


_Looked: TypeAlias = "tuple[Found, bytes]"


@contextmanager
def _pool(threads: int) -> Generator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(threads, "dew-scan")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(begin: "Callable[[int], Future[_Looked] | Found]", count: int, ahead: int) -> "Iterator[_Looked | Found]":
    """What `begin` gives for each number, in order, up to `ahead` of them begun before they are wanted."""
    waiting: collections.deque[Future[_Looked] | Found] = collections.deque()
    for number in range(count):
        waiting.append(begin(number))
        if len(waiting) > ahead:
            yield _done(waiting.popleft())
    while waiting:
        yield _done(waiting.popleft())


def _done(one: "Future[_Looked] | Found") -> "_Looked | Found":
    return one.result() if isinstance(one, Future) else one


def _look(files: MediaFiles, index: int, decode: bool) -> _Looked:
    """What is to be said of a file, and its packed table."""
    key, name = files.key(index), files.name(index)
    try:
        table = _whole(_table(files, index, name, decode), name)
    except (StorageError, SourceNotFoundError):
        raise
    except DamagedSourceError as error:
        return BadRecord(key=key, reason="damaged, or no video", message=str(error)), b""
    except SourceError as error:
        return BadRecord(key=key, reason="no video that can be read", message=str(error)), b""
    data = packed(table)
    return Entry.of(key, table, data), data


def _table(files: MediaFiles, index: int, name: str, decode: bool) -> FrameTable:
    path = files.path(index)
    if path is not None:
        return read_table(path, name=name, decode=decode)
    with files.open_file(index) as file:
        return read_table(file, name=name, decode=decode)


def _whole(table: FrameTable, name: str) -> FrameTable:
    if table.cut is not None:
        raise DamagedSourceError(
            f"{name} is cut: {table.cut}; it has {len(table)} whole frames. Fetch it again, or leave it out"
        )
    return table


class Journal:
    """What a scan has found so far, in memory.

    Attributes:
        found: by key.
    """

    def __init__(self) -> None:
        self.found: dict[str, Found] = {}
        self._tables: dict[str, bytes] = {}

    def add(self, found: Found, table: bytes) -> Found:
        """Writes down what was found of a file."""
        self.found[found.key] = found
        self._tables[found.key] = table
        return found

    def table(self, key: str) -> bytes:
        """The packed table of a file."""
        return self._tables[key]


class FileJournal(Journal):
    """The same in a local file, a line for each video. A context manager.

    Args:
        path: of the file; what it says of another collection, or of a scan of another depth, is thrown away.
        collection: `stored()` of the collection that is scanned.
        decode: whether every frame is decoded.

    Raises:
        OSError: it cannot be written there.
    """

    def __init__(self, path: Path, collection: str, *, decode: bool) -> None:
        super().__init__()
        self._path = path
        self._places: dict[str, tuple[int, int]] = {}
        about = {"format": FORMAT, "version": VERSION, "collection": collection, "decode": decode}
        head = json.dumps(about).encode() + b"\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("a+b", buffering=0)
        self._file.seek(0)
        if self._file.readline() != head:
            self._file.truncate(0)
            self._file.write(head)
        for place, line in _lines(self._file):
            self._take(place, line)

    def __enter__(self) -> "FileJournal":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, found: Found, table: bytes) -> Found:
        """Writes down what was found of a file; it is remembered when the process is killed."""
        fields = attrs.asdict(found) | {"table": base64.b85encode(table).decode()}
        # Begins with a line's end: a line that was cut before stays alone. One write, which no other tears.
        line = json.dumps(fields).encode()
        if self._file.write(b"\n" + line + b"\n") != len(line) + 2:
            raise OSError(errno.ENOSPC, f"{self._path} could not be written to its end")
        self._places[found.key] = self._file.tell() - len(line) - 1, len(line)
        self.found[found.key] = found
        return found

    def table(self, key: str) -> bytes:
        """The packed table of a file, read again."""
        place, length = self._places[key]
        self._file.seek(place)
        line = self._file.read(length)
        try:
            fields = json.loads(line)
            if fields["key"] == key:
                return base64.b85decode(fields["table"])
        except (KeyError, TypeError, ValueError):
            pass
        raise DamagedSourceError(f"{self._path} was changed while it was used; remove it, and scan again")

    def remove(self) -> None:
        """Removes the file: the index is stored."""
        self._path.unlink(missing_ok=True)

    def _take(self, place: int, line: bytes) -> None:
        """A line of an interrupted scan; one that was being written then says nothing."""
        try:
            fields = cast("dict[str, Any]", json.loads(line))
            table = base64.b85decode(fields.pop("table"))
            found: Found
            if "reason" in fields:
                found = BadRecord(**fields)
            else:
                facts = cast("list[Any]", fields.pop("facts"))
                facts[2:4] = [tuple(facts[2]), tuple(facts[3])]  # fractions, of which JSON makes lists
                found = Entry(facts=tuple(facts), **fields)
                if found.check != zlib.crc32(table):
                    return
        except (KeyError, TypeError, ValueError):
            return
        self.found[found.key] = found
        self._places[found.key] = place, len(line)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines that follow, without their ends, and where each begins."""
    place = file.tell()
    with os.fdopen(os.dup(file.fileno()), "rb") as buffered:
        buffered.seek(place)
        for line in buffered:
            yield place, line.rstrip(b"\n")
            place += len(line)
