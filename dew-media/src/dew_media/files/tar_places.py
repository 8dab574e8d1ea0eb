"""Where tar shards and their index are: found beside the shards or in a cache directory, or made there.

An index beside the shards has one name, and one that does not fit them any more is refused. In a cache directory it is
named by what it was made from, so that another state of the shards is another index.
"""

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import attrs

from dew.data import filenames
from dew.data.errors import DamagedSourceError, OptionsError, SourceError, StorageDeniedError, StorageError
from dew.data.storage import Storage
from dew_media.files.listing import UNKNOWN, list_files, suffix_of
from dew_media.files.problems import SHARDS
from dew_media.files.tar_index import COMMAND, SUFFIX, IndexBuilder, TarIndex, parse_index
from dew_media.files.tar_walk import Members, Read, walk

OnProgress = Callable[[int, int, int], None]
"""`(bytes done, bytes in all, members found)`."""

logger = logging.getLogger("dew.media")

_BESIDE: Final = "dew" + SUFFIX
_ENDS: Final = 1 << 14  # bytes at each end of a shard
_REMOTE_PIECE: Final = 8 << 20
_REMOTE_THREADS: Final = 8
_SIZE_THREADS: Final = 16


class Found(NamedTuple):
    """A shard as it is stored."""

    name: str
    size: int


@attrs.frozen(kw_only=True)
class ShardSpec:
    """Tar shards.

    Args:
        storage: the directory that was named.
        below: the directory of the shards in it.
        only: one shard there; None for all.
        index: a directory for the index; None: beside the shards, else in the user's cache directory.
    """

    storage: Storage
    below: str = ""
    only: str | None = None
    index: str | None = None

    @property
    def where(self) -> str:
        """For messages."""
        return self.storage.location(self.inside(self.only or ""))

    def inside(self, name: str) -> str:
        """A shard's name in the storage."""
        return "/".join(filter(None, (self.below, name)))

    @property
    def beside(self) -> str:
        """The index's name in the storage, when it lies beside the shards."""
        return self.inside(_BESIDE if self.only is None else self.only + SUFFIX)

    def shards(self) -> list[Found]:
        """The shards, in order."""
        if self.only is not None:
            return [Found(self.only, self.storage.size(self.inside(self.only)))]
        listing = list_files(self.storage, self.below)
        sizes = dict(zip(listing.names, listing.sizes, strict=True))
        names = filenames.in_order(name for name in listing.names if suffix_of(name) == ".tar")
        unknown = [name for name in names if sizes[name] == UNKNOWN]
        with ThreadPoolExecutor(_SIZE_THREADS, "dew-sizes") as threads:
            sizes.update(zip(unknown, threads.map(self._size, unknown), strict=True))
        return [Found(name, sizes[name]) for name in names]

    def _size(self, name: str) -> int:
        return self.storage.size(self.inside(name))


def open_index(spec: ShardSpec, on_progress: OnProgress | None = None) -> TarIndex:
    """The index of the shards: found, or made and kept where they are local.

    Raises:
        SourceError: an index beside the shards does not fit them; or they are remote and have none.
        DamagedSourceError: an index is no index.
    """
    shards = spec.shards()
    if not shards:
        raise SourceError(f"{spec.where} holds no .tar file")
    ends = _all_ends(spec, shards) if spec.storage.local else [""] * len(shards)
    if spec.index is None and spec.storage.exists(spec.beside):
        index = parse_index(spec.storage.read(spec.beside), spec.storage.location(spec.beside))
        _check_fits(spec, index, shards, ends)
        return index
    name = _cache_name(shards, ends)
    kept = (user_folder() if spec.index is None else Path(spec.index)) / name
    if kept.exists():
        return parse_index(kept.read_bytes(), str(kept))
    if not spec.storage.local:
        raise SourceError(
            f"{spec.where} has no index of its {SHARDS.counted(len(shards))}, and making one reads all of it: make it "
            f"once with '{COMMAND} PATH', which needs permission to write there, or '{COMMAND} PATH --into DIRECTORY' "
            "and the option index=DIRECTORY"
        )
    index = build_index(spec, shards, on_progress)
    _keep(spec, index, name)
    return index


def write_index(
    spec: ShardSpec, into: str | None = None, on_progress: OnProgress | None = None
) -> tuple[TarIndex, str]:
    """Make the index anew, and put it beside the shards or into a directory; returns it and where it is.

    Raises:
        SourceError: there are no shards.
        StorageError: it cannot be written there.
    """
    shards = spec.shards()
    if not shards:
        raise SourceError(f"{spec.where} holds no .tar file")
    index = build_index(spec, shards, on_progress)
    if into is None:
        spec.storage.write(spec.beside, index.to_bytes())
        return index, spec.storage.location(spec.beside)
    ends = [shard.ends for shard in index.shards] if spec.storage.local else [""] * len(shards)
    storage, name = Storage(into), _cache_name(shards, ends)
    if not storage.local:
        raise OptionsError(f"an index goes beside its shards or into a local directory, got {into!r}")
    storage.write(name, index.to_bytes())
    return index, storage.location(name)


def build_index(spec: ShardSpec, shards: Sequence[Found], on_progress: OnProgress | None = None) -> TarIndex:
    """Walk all shards; remote ones several at a time."""
    builder, count = IndexBuilder(), _Count(sum(shard.size for shard in shards), on_progress)

    def walked(shard: Found) -> tuple[str, Members]:
        with _reader(spec, shard) as read:
            members = walk(count.watched(read), shard.size)
            ends = _ends(read, shard.size)
        count.add(0, len(members.names))
        return ends, members

    if spec.storage.local:  # in this thread, so that Ctrl-C ends it
        for shard in shards:
            builder.add(shard.name, shard.size, *walked(shard))
    else:
        with ThreadPoolExecutor(_REMOTE_THREADS, "dew-tar-index") as threads:
            # A few ahead, so that the members of a thousand shards do not wait in memory for the first one.
            for first in range(0, len(shards), _REMOTE_THREADS):
                some = shards[first : first + _REMOTE_THREADS]
                for shard, (ends, members) in zip(some, threads.map(walked, some), strict=True):
                    builder.add(shard.name, shard.size, ends, members)
    count.finish()
    return builder.index()


def user_folder() -> Path:
    """Where an index goes that cannot lie beside its shards: `$XDG_CACHE_HOME/dew/indexes`, else in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dew", "indexes")


def _keep(spec: ShardSpec, index: TarIndex, name: str) -> None:
    """Beside the shards, or where that cannot be written, in the user's cache; or nowhere, which costs time alone."""
    data = index.to_bytes()
    if spec.index is not None:
        Storage(spec.index).write(name, data)
        return
    for storage, place in ((spec.storage, spec.beside), (Storage(str(user_folder())), name)):
        try:
            storage.write(place, data)
        except StorageError as error:
            logger.info("no index of tar shards can be kept: %s", error)
        else:
            logger.info("index of %d tar shards written to %s", len(index.shards), storage.location(place))
            return


def _check_fits(spec: ShardSpec, index: TarIndex, shards: Sequence[Found], ends: Sequence[str]) -> None:
    """Refuses an index that was made from other shards than these."""
    known = {shard.name: shard for shard in index.shards}
    found = {shard.name: shard for shard in shards}
    again = f"make it again with '{COMMAND} PATH'"
    where = f"the index {spec.storage.location(spec.beside)} is stale"
    for name in [*(name for name in found if name not in known), *(name for name in known if name not in found)]:
        what = "is not in it" if name in found else "is in it and is not there any more"
        raise SourceError(
            f"{where}: it lists {len(known)} shards, {len(found)} are there, and {name!r} {what}; {again}"
        )
    for shard, end in zip(shards, ends, strict=True):
        old = known[shard.name]
        if old.size != shard.size:
            raise SourceError(f"{where}: {shard.name!r} had {old.size} bytes and has {shard.size}; {again}")
        if end and old.ends != end:
            raise SourceError(f"{where}: {shard.name!r} begins or ends with other bytes than it did; {again}")


def _cache_name(shards: Sequence[Found], ends: Sequence[str]) -> str:
    text = json.dumps([[*shard, end] for shard, end in zip(shards, ends, strict=True)])
    return hashlib.sha256(text.encode()).hexdigest()[:32] + SUFFIX


def _all_ends(spec: ShardSpec, shards: Sequence[Found]) -> list[str]:
    found: list[str] = []
    for shard in shards:
        with _reader(spec, shard) as read:
            found.append(_ends(read, shard.size))
    return found


def _ends(read: Read, size: int) -> str:
    head, tail = read(0, min(size, _ENDS)), read(max(0, size - _ENDS), size)
    return hashlib.sha256(head + tail).hexdigest()


@contextmanager
def _reader(spec: ShardSpec, shard: Found) -> Generator[Read]:
    name = spec.inside(shard.name)
    path = spec.storage.path(name)
    if path is None:
        yield _Window(spec.storage, name, shard.size).read
        return
    spec.storage.size(name)  # says what is wrong, where it is not there
    try:
        opened = path.open("rb", buffering=0)
    except PermissionError as error:
        raise StorageDeniedError(f"{path} may not be read: {error.strerror}; check its permissions") from error
    with opened as file:

        def read(start: int, stop: int) -> bytes:
            file.seek(start)
            return file.read(stop - start)

        yield read


class _Window:
    """A remote file read in large pieces: a request for every header would take a hundred times as long."""

    def __init__(self, storage: Storage, name: str, size: int) -> None:
        self._storage, self._name, self._size = storage, name, size
        self._start, self._data = 0, b""

    def read(self, start: int, stop: int) -> bytes:
        stop = min(stop, self._size)
        first = start - self._start
        if first < 0 or start + (stop - start) > self._start + len(self._data):
            last = min(max(stop, start + _REMOTE_PIECE), self._size)
            self._data = self._storage.read_range(self._name, start, last)
            self._start, first = start, 0
        return self._data[first : first + stop - start]


class _Count:
    """Bytes and members so far, of several threads."""

    def __init__(self, total: int, on_progress: OnProgress | None) -> None:
        self._total, self._tell = total, on_progress
        self._bytes = self._members = 0
        self._lock = threading.Lock()

    def watched(self, read: Read) -> Read:
        """`read`, which tells how far it got every half percent of all bytes."""
        step, seen = max(self._total // 200, 1 << 20), 0

        def watched(start: int, stop: int) -> bytes:
            nonlocal seen
            if start - seen >= step:
                self.add(start - seen, 0)
                seen = start
            return read(start, stop)

        return watched

    def add(self, size: int, members: int) -> None:
        with self._lock:
            self._bytes += size
            self._members += members
            if self._tell is not None:
                self._tell(self._bytes, self._total, self._members)

    def finish(self) -> None:
        self.add(self._total - self._bytes, 0)


def no_longer(name: str) -> DamagedSourceError:
    """What reading says of a member whose header is not the one that was indexed."""
    return DamagedSourceError(
        f"{name} is not what the index says: another header is in front of it, so the shard was written again since; "
        f"make the index again with '{COMMAND} PATH'"
    )
