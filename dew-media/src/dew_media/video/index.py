"""The index of a collection of videos: the timestamp table of every file, and which files cannot be used.

Frames are found by timestamps alone, and these are known only when all packets of a file were read, so it is done once,
by `dew video index`. The index belongs to exactly one collection (by its digest) and is written whole or not at all.

Its head says of each file what opening a collection needs; a table is read when a clip of its file is. So an index of
hours of video costs neither memory nor time before they are looked at. Head and tables have checksums of their own.
"""

import hashlib
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.cache import BlockCache
from dew.data.errors import DamagedSourceError
from dew.data.storage import Storage
from dew_media.files.exclude import BadRecord
from dew_media.video.frames import FrameTable
from dew_media.video.tables import unpacked

FORMAT: Final = "dew-video-index"
VERSION: Final = 1

MOST_REMEMBERED: Final = 64 << 20
"""Bytes of tables that are kept in memory."""

AT_ONCE: Final = 16 << 20
"""A remote index of up to so many bytes is fetched whole; of a larger one, tables are fetched one by one."""

_VALIDATION: Final = ("valid", "validation")  # other names of the split "val"

_MAGIC: Final = b"dew-video-index 1\n"
_HASH: Final = 32
_START: Final = len(_MAGIC) + 8 + _HASH

FACTS: Final = np.dtype(
    [
        ("frames", "<i8"),
        ("ticks", "<i8"),  # from the first frame to the end of the last
        ("base", "<i8", 2),  # seconds in a tick, as a fraction
        ("aspect", "<i8", 2),
        ("rounded", "?"),
        ("sound", "?"),
        ("stop", "<i8"),  # where its packed table ends
        ("check", "<u4"),  # CRC-32 of the packed table
        ("digest", "S64"),  # of the table itself
    ]
)
"""What the head says of a file."""

Facts = npt.NDArray[np.void]


@attrs.frozen(kw_only=True, eq=False)
class Entry:
    """One file that can be used.

    Args:
        key: as in `MediaFiles.key`.
        facts: of its table: a tuple in the order of `FACTS`, without the last three.
        length, check: of its packed table, in bytes, and its CRC-32.
        digest: of its table.
    """

    key: str
    facts: tuple[Any, ...]
    length: int
    check: int
    digest: str

    @classmethod
    def of(cls, key: str, table: FrameTable, data: bytes) -> "Entry":
        """The entry of a file with this table, packed as `data`."""
        base, aspect = table.time_base, table.aspect
        facts = (
            len(table),
            table.end - int(table.times[0]),
            (base.numerator, base.denominator),
            (aspect.numerator, aspect.denominator),
            table.rounded,
            table.sound is not None,
        )
        return cls(key=key, facts=facts, length=len(data), check=zlib.crc32(data), digest=table.digest())


@attrs.frozen(kw_only=True, eq=False)
class Head:
    """All of an index but its tables.

    Args:
        collection: `MediaFiles.stored` of the collection that was scanned.
        keys: of its files that can be used, in order.
        facts: of each of them, (N,) of `FACTS`.
        bad: those that cannot be used.
    """

    collection: str
    keys: Sequence[str]
    facts: Facts
    bad: tuple[BadRecord, ...]

    @classmethod
    def of(cls, collection: str, entries: Sequence[Entry], bad: Iterable[BadRecord]) -> "Head":
        """The head of an index of these files."""
        ends = np.cumsum([entry.length for entry in entries], dtype=np.int64).tolist()
        rows = [(*entry.facts, stop, entry.check, entry.digest) for entry, stop in zip(entries, ends, strict=True)]
        keys = [entry.key for entry in entries]
        return cls(collection=collection, keys=keys, facts=np.array(rows, FACTS), bad=tuple(bad))

    def to_bytes(self) -> bytes:
        """What stands before the tables: a line, the length of the rest and its SHA-256, JSON, and the facts."""
        about = {
            "format": FORMAT,
            "version": VERSION,
            "collection": self.collection,
            "files": list(self.keys),
            "bad": [[record.key, record.reason, record.message] for record in self.bad],
        }
        text = json.dumps(about, ensure_ascii=False, separators=(",", ":")).encode()
        body = len(text).to_bytes(8, "little") + text + self.facts.tobytes()
        return _MAGIC + len(body).to_bytes(8, "little") + hashlib.sha256(body).digest() + body

    @classmethod
    def from_body(cls, body: bytes) -> "Head":
        """The head in the part that its SHA-256 is of."""
        length = int.from_bytes(body[:8], "little")
        about = cast("dict[str, Any]", json.loads(body[8 : 8 + length]))
        facts = np.frombuffer(body, FACTS, len(about["files"]), 8 + length)
        bad = tuple(BadRecord(key=key, reason=reason, message=text) for key, reason, text in about["bad"])
        return cls(collection=about["collection"], keys=about["files"], facts=facts, bad=bad)

    @property
    def stop(self) -> int:
        """Bytes of all tables."""
        return int(self.facts["stop"][-1]) if len(self.facts) else 0

    def digest(self) -> str:
        """sha256, in hex, of every table: of the frames' times and of the packets' checksums."""
        digest = hashlib.sha256()
        for key, table in zip(self.keys, self.facts["digest"].tolist(), strict=True):
            digest.update(f"{key}\0{table.decode()}\n".encode())
        return digest.hexdigest()

    def reasons(self) -> dict[str, int]:
        """Reason -> how many files cannot be used for it, the most frequent first."""
        counts: dict[str, int] = {}
        for record in self.bad:
            counts[record.reason] = counts.get(record.reason, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: -item[1]))


class VideoIndex:
    """The tables of one collection. One that was read from a file pickles by its place.

    Args:
        head: what is known without the tables.
        read: gives bytes `[start, stop)` of the tables.
        place: the storage and the name there that it was read from; None for one that was just made.
    """

    def __init__(self, head: Head, read: Callable[[int, int], bytes], place: tuple[Storage, str] | None = None) -> None:
        self.collection = head.collection
        self.keys = head.keys
        self.facts = head.facts
        self.bad = head.bad
        self._head = head
        self._read = read
        self._place = place
        self._rows = {key: row for row, key in enumerate(head.keys)}
        self._lock = threading.Lock()
        self._tables: dict[int, FrameTable] = {}
        self._held = 0

    def __reduce__(self) -> tuple[Any, ...]:
        if self._place is None:
            return index_in_memory, (self._head, self._read(0, self._head.stop))
        return _read_again, (*self._place, self.digest())

    def __len__(self) -> int:
        return len(self.keys)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def rows(self, keys: Iterable[str]) -> npt.NDArray[np.int64]:
        """The number of each file in `keys` and `facts`.

        Raises:
            DamagedSourceError: one of them is not in the index.
        """
        try:
            return np.array([self._rows[key] for key in keys], np.int64)
        except KeyError as error:
            raise DamagedSourceError(
                f"{error.args[0]!r} is not in the index of its collection; index the collection again"
            ) from None

    def table(self, key: str) -> FrameTable:
        """The table of a file.

        Raises:
            DamagedSourceError: the index has none, or not the one that it had when it was opened.
            StorageError: it could not be read.
        """
        row = int(self.rows([key])[0])
        with self._lock:
            found = self._tables.get(row)
        if found is not None:
            return found
        start, stop = int(self.facts["stop"][row - 1]) if row else 0, int(self.facts["stop"][row])
        data = self._read(start, stop)
        if zlib.crc32(data) != self.facts["check"][row]:
            raise DamagedSourceError(
                f"the table of {key!r} in {self._where()} is not the one that its head tells of: the index is damaged, "
                "or changed after it was opened; make it again with `dew video index`"
            )
        made = unpacked(data, key)
        self._remember(row, made)
        return made

    def digest(self) -> str:
        """See `Head.digest`."""
        return self._head.digest()

    def to_bytes(self) -> bytes:
        """The file: the head, then the tables one after the other."""
        return self._head.to_bytes() + self._read(0, self._head.stop)

    def _where(self) -> str:
        return "an index in memory" if self._place is None else self._place[0].location(self._place[1])

    def _remember(self, row: int, table: FrameTable) -> None:
        with self._lock:
            if row not in self._tables:
                self._tables[row] = table
                self._held += _size(table)
            while self._held > MOST_REMEMBERED and len(self._tables) > 1:
                self._held -= _size(self._tables.pop(next(iter(self._tables))))


def _size(table: FrameTable) -> int:
    return 4096 + table.times.nbytes + table.packets.nbytes


def index_in_memory(head: Head, tables: bytes) -> VideoIndex:
    """An index whose tables are these bytes."""
    return VideoIndex(head, lambda start, stop: tables[start:stop])


def read_index(
    path: "str | os.PathLike[str]",
    storage_options: Mapping[str, Any] | None = None,
    cache: BlockCache | None = None,
) -> VideoIndex:
    """The index at a path or URL; of it, the head is read.

    Raises:
        SourceNotFoundError: nothing is stored there.
        DamagedSourceError: it is no index, of another version, cut or altered.
    """
    return _read(*place_of(path, storage_options, cache))


def _read(storage: Storage, name: str) -> VideoIndex:
    where, size = storage.location(name), storage.size(name)
    whole = None if storage.local or size > AT_ONCE else storage.read(name)

    def read(start: int, stop: int) -> bytes:
        return storage.read_range(name, start, stop) if whole is None else whole[start:stop]

    try:
        start = read(0, min(_START, size))
        if not start.startswith(_MAGIC):
            raise ValueError(f"it begins with {start[:24]!r}")
        first = _START + int.from_bytes(start[len(_MAGIC) : -_HASH], "little")
        if first > size:
            raise ValueError(f"it has {size} bytes, and its head alone should have {first}")
        body = read(_START, first)
        if hashlib.sha256(body).digest() != start[-_HASH:]:
            raise ValueError("its head is not what was written")
        head = Head.from_body(body)
        if (last := first + head.stop) != size:
            raise ValueError(f"it should have {last} bytes and has {size}")
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedSourceError(
            f"{where} is no index of videos (version {VERSION}): {error}; make it again with `dew video index`"
        ) from error
    return VideoIndex(head, lambda start, stop: read(first + start, first + stop), (storage, name))


def _read_again(storage: Storage, name: str, digest: str) -> VideoIndex:
    """In another process, which may have another working directory or find another file."""
    found = _read(storage, name)
    if found.digest() != digest:
        raise DamagedSourceError(
            f"the index {storage.location(name)} changed after it was opened: its digest was {digest[:12]} and is now "
            f"{found.digest()[:12]}; leave it as it is while a run reads it"
        )
    return found


def default_place(path: str, split: str, into: str | None = None) -> str:
    """Where the index of a split of `path` goes: into the directory, or beside a single file; or into another one."""
    bare, name = path.rstrip("/") or path, "val" if split in _VALIDATION else split
    folder, own = bare, f"dew-video-{name}.index"
    if bare.lower().endswith(".tar") and not (Storage(bare).local and os.path.isdir(bare)):
        folder, _, shard = bare.rpartition("/")
        own = f"{shard}.video-{name}.index"
    folder = (folder or ".") if into is None else into.rstrip("/")
    return f"{folder}/{own}"


def place_of(
    path: "str | os.PathLike[str]",
    storage_options: Mapping[str, Any] | None = None,
    cache: BlockCache | None = None,
) -> tuple[Storage, str]:
    """A file's directory as a storage, and its name there."""
    folder, slash, name = os.fspath(path).rpartition("/")
    return Storage(folder or (slash or "."), options=storage_options or {}, cache=cache), name
