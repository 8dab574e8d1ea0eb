"""Reading the files of shards: local ones through memory maps, remote ones as byte ranges.

A window of a mapped shard costs about 0.7 us, opening a file for one window 5 us, making a map 30 us. So a shard is
mapped once and stays mapped, up to a bound that all corpora of the process share; shards past the bound are opened for
each read and closed again. Evicting maps instead would cost 30 us for almost every read of a corpus past the bound.

A file is compared with what is known of it when it is first touched, never when a corpus opens.
"""

import mmap
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import DamagedSourceError, SourceNotFoundError
from dew.data.storage import Storage
from dew.tokens.manifest import Manifest
from dew.tokens.npy import HEADER_BYTES, parse_header

Tokens: TypeAlias = npt.NDArray[np.integer[Any]]
Data: TypeAlias = bytes | memoryview


@attrs.frozen
class TokenFile:
    """One file of ids: `tokens` of them from byte `start` to its end."""

    name: str
    start: int
    tokens: int


class TokenFiles(Protocol):
    """Which files hold the ids of a corpus, in order."""

    @property
    def dtype(self) -> str:
        """Of the ids in all files, such as `"<u2"`."""
        ...

    @property
    def ids_fit(self) -> bool:
        """Whether it is known that every id is from 0 to 2^31 - 1."""
        ...

    def lengths(self) -> list[int]:
        """Tokens in each file, at least 1."""
        ...

    def file(self, number: int) -> TokenFile:
        """File `number`."""
        ...

    def check(self, storage: Storage, number: int) -> None:
        """Compare a file with what is known of it, before it is read.

        Raises:
            DamagedSourceError: it is another, or missing.
        """
        ...


@attrs.frozen
class ManifestFiles:
    """The token files of a corpus that Dew wrote."""

    manifest: Manifest

    @property
    def dtype(self) -> str:
        """As the manifest states it."""
        return self.manifest.dtype

    @property
    def ids_fit(self) -> bool:
        """True: a manifest that states a larger id is refused when it is read."""
        return True

    def lengths(self) -> list[int]:
        """Tokens in each shard."""
        return [shard.tokens for shard in self.manifest.shards]

    def file(self, number: int) -> TokenFile:
        """The token file of shard `number`."""
        shard = self.manifest.shards[number]
        return TokenFile(shard.file("tokens"), HEADER_BYTES, shard.tokens)

    def check(self, storage: Storage, number: int) -> None:
        """Compare size and header with the manifest."""
        shard = self.manifest.shards[number]
        check_file(storage, shard.file("tokens"), shard.files["tokens"].bytes, self.dtype, shard.tokens)


@attrs.frozen
class Pieces:
    """Stretches of shards: piece i is bytes `[starts[i], stops[i])` of the ids in shard `numbers[i]`."""

    numbers: list[int]
    starts: list[int]
    stops: list[int]

    def append(self, number: int, start: int, stop: int) -> None:
        """Add one piece at the end."""
        self.numbers.append(number)
        self.starts.append(start)
        self.stops.append(stop)

    def replace(self, place: int, pieces: "Pieces") -> None:
        """Put `pieces` where piece `place` is."""
        self.numbers[place : place + 1] = pieces.numbers
        self.starts[place : place + 1] = pieces.starts
        self.stops[place : place + 1] = pieces.stops


_FETCHERS: Final = 8
_FETCH_BYTES: Final = 4 << 20  # neighbouring windows are read as one range up to this size
_FETCH_GAP: Final = 16 << 10  # bytes between two windows that are cheaper to read than to ask for apart


def _map_bound() -> int:
    """256, or a quarter of the files that the process may open, if that is less: each map holds a file open."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return 256
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 256 if soft == resource.RLIM_INFINITY else max(8, min(256, soft // 4))


MAX_MAPS: Final = _map_bound()


class MappedShard:
    """One mapped shard: its ids as bytes, and as a view of all windows of one width."""

    __slots__ = ("__weakref__", "_tokens", "_windows", "data")

    def __init__(self, tokens: Tokens) -> None:
        self.data = tokens.data.cast("B")
        self._tokens = tokens
        self._windows = tokens.reshape(-1, 1)

    def windows(self, width: int) -> Tokens:
        """`(n - width + 1, width)`: row i is tokens `[i, i + width)`. The rows overlap: index it, never write."""
        view = self._windows
        if view.shape[1] != width:
            tokens = self._tokens
            # np.ndarray checks that the strides stay inside the buffer, which as_strided does not.
            shape = (len(tokens) - width + 1, width)
            view = np.ndarray(shape, tokens.dtype, tokens.data, 0, (tokens.itemsize, tokens.itemsize))
            self._windows = view
        return view


# The maps alive, whichever corpus holds them: each leaves by itself with its last reader.
_mapped: "weakref.WeakSet[MappedShard]" = weakref.WeakSet()


class ShardReader(Protocol):
    """Reads the ids of shards as bytes. Safe from several threads."""

    def mapped(self, number: int) -> MappedShard | None:
        """Shard `number` as a map, or None where it must be read by pieces."""
        ...

    def read(self, pieces: Pieces) -> list[Data]:
        """The bytes of each piece, perhaps as views of maps: to be copied at once, never kept."""
        ...

    def close(self) -> None:
        """Frees what reading opened; reading again opens it again."""
        ...


class LocalShards:
    """Shards in a directory of this machine."""

    def __init__(self, storage: Storage, files: TokenFiles, directory: Path) -> None:
        self._directory = str(directory)  # joining a pathlib.Path costs as much as the read
        self._storage = storage
        self._files = files
        self._maps: dict[int, MappedShard] = {}
        self._data: dict[int, memoryview] = {}
        self._checked: set[int] = set()

    def mapped(self, number: int) -> MappedShard | None:
        """Shard `number` as a map, while the process has room for one more."""
        found = self._maps.get(number)
        if found is None and len(_mapped) < MAX_MAPS:
            found = self._maps.setdefault(number, self._map(number))
            self._data[number] = found.data
            _mapped.add(found)
        return found

    def read(self, pieces: Pieces) -> list[Data]:
        """The bytes of each piece: slices of maps, and copies of what is not mapped."""
        stretches = zip(pieces.numbers, pieces.starts, pieces.stops, strict=True)
        try:
            data = self._data
            return [data[number][start:stop] for number, start, stop in stretches]
        except KeyError:
            stretches = zip(pieces.numbers, pieces.starts, pieces.stops, strict=True)
            return [self._read(number, start, stop) for number, start, stop in stretches]

    def close(self) -> None:
        """Drops the maps."""
        self._maps, self._data = {}, {}

    def _read(self, number: int, start: int, stop: int) -> Data:
        found = self.mapped(number)
        if found is not None:
            return found.data[start:stop]
        file = self._files.file(number)
        if number not in self._checked:
            self._files.check(self._storage, number)
            self._checked.add(number)
        descriptor = os.open(os.path.join(self._directory, file.name), os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            os.lseek(descriptor, file.start + start, os.SEEK_SET)
            data = os.read(descriptor, stop - start)
        finally:
            os.close(descriptor)
        if len(data) != stop - start:
            raise DamagedSourceError(
                f"{self._storage.location(file.name)} was cut while it was read: {stop - start} bytes from "
                f"{file.start + start} on were asked for, {len(data)} are there; copy the corpus again"
            )
        return data

    def _map(self, number: int) -> MappedShard:
        self._files.check(self._storage, number)
        file, dtype = self._files.file(number), np.dtype(self._files.dtype)
        with open(os.path.join(self._directory, file.name), "rb", buffering=0) as opened:
            size = file.start + file.tokens * dtype.itemsize
            data = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ)
        return MappedShard(np.frombuffer(data, dtype, file.tokens, file.start))


class RemoteShards:
    """Shards behind a URL: pieces that lie close together are one range, ranges are fetched side by side."""

    def __init__(self, storage: Storage, files: TokenFiles) -> None:
        self._storage = storage
        self._files = files
        self._checked: set[int] = set()

    def mapped(self, number: int) -> MappedShard | None:
        """None: nothing remote is mapped."""
        return None

    def read(self, pieces: Pieces) -> list[Data]:
        """The bytes of each piece, after one request for each stretch of close pieces."""
        ranges = _join(pieces)
        if len(ranges) <= 1:
            fetched = [self._fetch(wanted) for wanted in ranges]
        else:
            with ThreadPoolExecutor(min(_FETCHERS, len(ranges)), "dew-tokens") as pool:
                fetched = list(pool.map(self._fetch, ranges))
        found: list[Data] = [b""] * len(pieces.numbers)
        for wanted, data in zip(ranges, fetched, strict=True):
            for place in wanted.places:
                found[place] = memoryview(data)[
                    pieces.starts[place] - wanted.start : pieces.stops[place] - wanted.start
                ]
        return found

    def close(self) -> None:
        """Nothing stays open between reads."""

    def _fetch(self, wanted: "_Range") -> bytes:
        if wanted.number not in self._checked:
            self._files.check(self._storage, wanted.number)
            self._checked.add(wanted.number)
        file = self._files.file(wanted.number)
        return self._storage.read_range(file.name, file.start + wanted.start, file.start + wanted.stop)


@attrs.define
class _Range:
    """Bytes `[start, stop)` of the ids of one shard, and which pieces lie in them."""

    number: int
    start: int
    stop: int
    places: list[int]


def _join(pieces: Pieces) -> list[_Range]:
    ranges: list[_Range] = []
    for number, start, stop, place in sorted(
        zip(pieces.numbers, pieces.starts, pieces.stops, range(len(pieces.numbers)), strict=True)
    ):
        last = ranges[-1] if ranges else None
        close = last is not None and number == last.number and start - last.stop <= _FETCH_GAP
        if last is not None and close and stop - last.start <= _FETCH_BYTES:
            last.stop = max(last.stop, stop)
            last.places.append(place)
        else:
            ranges.append(_Range(number, start, stop, [place]))
    return ranges


def check_file(storage: Storage, name: str, size: int, dtype: str, length: int) -> None:
    """Compare one file's size and header with what the manifest states, before anything is allocated for it.

    Raises:
        DamagedSourceError: they differ, or the file is missing.
    """
    where = storage.location(name)
    try:
        found = storage.size(name)
    except SourceNotFoundError as error:
        raise DamagedSourceError(
            f"{where} is missing, the manifest lists it with {size} bytes; copy the corpus again"
        ) from error
    if found != size:
        raise DamagedSourceError(f"{where} has {found} bytes, the manifest states {size}; copy the corpus again")
    data = storage.read_range(name, 0, HEADER_BYTES)
    try:
        stated = parse_header(data)
    except ValueError as error:
        raise DamagedSourceError(
            f"{where} is not a token file, it starts with {error}; copy the corpus again"
        ) from error
    if stated != (dtype, length):
        raise DamagedSourceError(
            f"{where} has {stated[1]} elements of {stated[0]} by its own header, {length} of {dtype} by the manifest; "
            "copy the corpus again"
        )
