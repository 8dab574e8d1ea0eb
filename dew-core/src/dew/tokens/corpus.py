"""`TokenCorpus`: all shards of a corpus as one long array of ids, wherever it is stored.

Opening reads `manifest.json` and nothing else, whatever the number of shards. A corpus pickles by path: the copy opens
the manifest again and refuses one that has changed in between.
"""

import bisect
import os
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from dew.data.errors import DamagedSourceError, OptionsError, SourceNotFoundError
from dew.data.storage import Storage
from dew.tokens.manifest import FILE_DTYPES, MANIFEST, Manifest, is_receipt, parse_manifest
from dew.tokens.npy import HEADER_BYTES
from dew.tokens.shards import LocalShards, Pieces, RemoteShards, ShardReader, Tokens, check_file, location

_READ_PIECE = 1 << 22


class TokenCorpus:
    """A corpus of token ids, read only.

    Safe to read from several threads. Local shards are memory maps, up to a bound for the whole process; a file that
    another program cuts while it is mapped ends the process, so replace a corpus by writing beside it.

    Args:
        path: a directory or URL that holds `manifest.json`, or its `Storage`.
        options: for the file system of a URL, as fsspec takes them; a `Storage` has its own.

    Raises:
        SourceNotFoundError: nothing is stored at `path`.
        DamagedSourceError: there is no manifest, or it is not what was written.
    """

    def __init__(self, path: str | os.PathLike[str] | Storage, *, options: Mapping[str, Any] | None = None) -> None:
        storage = path if isinstance(path, Storage) else Storage(path, options=options or {})
        self._set_up(storage, read_manifest(storage))

    def _set_up(self, storage: Storage, manifest: Manifest) -> None:
        self._storage = storage
        self.manifest: Manifest = manifest
        self._itemsize = np.dtype(manifest.dtype).itemsize
        self._ends_array: npt.NDArray[np.int64] = np.cumsum([shard.tokens for shard in manifest.shards], dtype=np.int64)
        self._ends: list[int] = self._ends_array.tolist()
        self._starts: list[int] = [0, *self._ends[:-1]]
        self._starts_array: npt.NDArray[np.int64] = np.array(self._starts, np.int64)
        self._reader: ShardReader = _reader(storage, manifest)
        self._offsets: npt.NDArray[np.int64] | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"TokenCorpus(tokens={self.tokens}, documents={self.documents}, id={self.manifest.id[:12]})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._storage, self.manifest.id)

    @property
    def tokens(self) -> int:
        """Number of tokens over all shards."""
        return self.manifest.tokens

    @property
    def documents(self) -> int:
        """Number of documents that have tokens."""
        return self.manifest.documents

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """(documents + 1,) int64: document d is tokens `[offsets[d], offsets[d + 1])`. Read on first use; read-only.

        Raises:
            DamagedSourceError: a `.docs.npy` file is not what the manifest states.
        """
        with self._lock:
            if self._offsets is None:
                # Concatenated from what was read, not filled in: a manifest's count is not believed before its files.
                parts = [self._shard_offsets(number)[1:] + start for number, start in enumerate(self._starts)]
                self._offsets = np.concatenate([np.zeros(1, np.int64), *parts])
                self._offsets.flags.writeable = False
            return self._offsets

    def document_start(self, token: int) -> int:
        """First token of the document that holds `token`; reads the offsets of one shard.

        Raises:
            IndexError: there is no such token.
        """
        self._check_range(token, token + 1)
        number = bisect.bisect_right(self._starts, token) - 1
        local = self._shard_offsets(number)
        place = int(np.searchsorted(local, token - self._starts[number], side="right")) - 1
        return self._starts[number] + int(local[place])

    def read(self, start: int, stop: int) -> Tokens:
        """Tokens `[start, stop)` in the corpus's own dtype, a new array.

        Raises:
            IndexError: the range is not in the corpus.
            DamagedSourceError: a shard is not what the manifest states.
        """
        self._check_range(start, stop)
        firsts = range(start, stop, _READ_PIECE)
        parts = [self._joined(self._pieces(first, min(first + _READ_PIECE, stop))) for first in firsts]
        return np.concatenate([np.empty(0, self.manifest.dtype), *parts])

    def gather(
        self, starts: npt.ArrayLike, width: int, *, within: tuple[int, int] | None = None
    ) -> npt.NDArray[np.int32]:
        """Windows `(k, width) int32`: row j is tokens `[starts[j], starts[j] + width)`, in a new array.

        Windows may overlap each other and cross from one shard to the next.

        Args:
            starts: (k,) int64.
            width: tokens of a window, at least 1.
            within: tokens `[first, last)` that windows must not leave; the whole corpus by default.

        Raises:
            IndexError: a window leaves the corpus, or `within`.
            OptionsError: `width` is below 1.
            DamagedSourceError: a shard is not what the manifest states.
        """
        places = np.asarray(starts, np.int64)
        if width < 1:
            raise OptionsError(f"width must be at least 1, got {width}")
        if not places.size:
            return np.empty((0, width), np.int32)
        first, last = within or (0, self.tokens)
        # Negative distances become huge as uint64, so one pass checks both ends.
        distances = places if first == 0 else places - first
        furthest = int(np.maximum.reduce(distances.view(np.uint64)))
        if furthest > last - first - width:
            self._refuse_windows(places, width, first, last)
        if len(self._starts) > 1:
            return self._gather_over(places, first + furthest, width)
        mapped = self._reader.mapped(0)
        if mapped is None:
            return self._gather_pieces(places, width)
        # Index the overlapping view, then widen: measured twice as fast as a loop over rows that does both at once.
        return mapped.windows(width)[places].astype(np.int32)

    def open(self) -> "TokenCorpus":
        """A second reader of the same corpus with maps of its own; reads nothing."""
        reader = TokenCorpus.__new__(TokenCorpus)
        reader._set_up(self._storage, self.manifest)
        return reader

    def close(self) -> None:
        """Frees maps; reading again opens them again."""
        self._reader.close()

    def _gather_over(self, places: npt.NDArray[np.int64], highest: int, width: int) -> npt.NDArray[np.int32]:
        number = bisect.bisect_right(self._starts, highest) - 1
        lowest = int(np.minimum.reduce(places))
        if self._starts[number] <= lowest and highest + width <= self._ends[number]:
            mapped = self._reader.mapped(number)
            if mapped is not None:
                return mapped.windows(width)[places - self._starts[number]].astype(np.int32)
        return self._gather_pieces(places, width)

    def _gather_pieces(self, places: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int32]:
        numbers = np.searchsorted(self._starts_array, places, side="right") - 1
        starts = (places - self._starts_array[numbers]) * self._itemsize
        pieces = Pieces(numbers.tolist(), starts.tolist(), (starts + width * self._itemsize).tolist())
        crossing = np.flatnonzero(places + width > self._ends_array[numbers])
        # From the last on, so that a row that becomes several pieces does not move the rows still to do.
        for row in crossing[::-1].tolist():
            pieces.replace(row, self._pieces(int(places[row]), int(places[row]) + width))
        return self._joined(pieces).astype(np.int32).reshape(len(places), width)

    def _pieces(self, start: int, stop: int) -> Pieces:
        """The pieces of tokens `[start, stop)`, which may go over the ends of shards."""
        pieces = Pieces([], [], [])
        number = bisect.bisect_right(self._starts, start) - 1
        while start < stop:
            first, last = self._starts[number], min(stop, self._ends[number])
            pieces.append(number, (start - first) * self._itemsize, (last - first) * self._itemsize)
            start, number = last, number + 1
        return pieces

    def _joined(self, pieces: Pieces) -> Tokens:
        # Joining bytes costs half of np.concatenate over as many slices.
        return np.frombuffer(b"".join(self._reader.read(pieces)), self.manifest.dtype)

    def _shard_offsets(self, number: int) -> npt.NDArray[np.int64]:
        shard = self.manifest.shards[number]
        name, size = shard.file("docs"), shard.files["docs"].bytes
        check_file(self._storage, name, size, FILE_DTYPES["docs"], shard.documents + 1)
        data = self._storage.read_range(name, HEADER_BYTES, size)
        offsets = np.frombuffer(data, FILE_DTYPES["docs"]).astype(np.int64)
        if offsets[0] != 0 or offsets[-1] != shard.tokens or (np.diff(offsets) < 1).any():
            raise DamagedSourceError(
                f"{location(self._storage, name)} must rise from 0 to {shard.tokens} without a step below 1, it goes from {offsets[0]} to "
                f"{offsets[-1]} with a smallest step of {np.diff(offsets).min()}; copy the corpus again"
            )
        return offsets

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"tokens [{start}, {stop}) were asked for, the corpus has tokens [0, {self.tokens})")

    def _refuse_windows(self, places: npt.NDArray[np.int64], width: int, first: int, last: int) -> NoReturn:
        start = int(places[(places < first) | (places > last - width)][0])
        raise IndexError(f"tokens [{start}, {start + width}) were asked for, there are tokens [{first}, {last})")


def _reopen(storage: Storage, expected: str) -> TokenCorpus:
    corpus = TokenCorpus(storage)
    if corpus.manifest.id != expected:
        raise DamagedSourceError(
            f"{location(storage)} held the corpus {expected} when it was opened, now it holds {corpus.manifest.id}; "
            "a corpus must not be replaced while it is read"
        )
    return corpus


def _reader(storage: Storage, manifest: Manifest) -> ShardReader:
    directory = storage.path()
    return RemoteShards(storage, manifest) if directory is None else LocalShards(storage, manifest, directory)


def read_manifest(storage: Storage) -> Manifest:
    """Read and check the manifest of the corpus in `storage`.

    Raises:
        SourceNotFoundError: nothing is stored there.
        DamagedSourceError: there is no manifest, or it is not what was written.
    """
    if storage.exists(MANIFEST):
        return parse_manifest(storage.read(MANIFEST), location(storage, MANIFEST))
    if not storage.is_dir(""):
        raise SourceNotFoundError(f"no token corpus at {location(storage)}: there is no such directory; check the path")
    receipts = sum(is_receipt(name) for name in storage.list())
    raise DamagedSourceError(
        f"{location(storage)} is no finished token corpus: it has no {MANIFEST}, which is written last, and {receipts} "
        "shards with receipts; write the corpus again"
    )
