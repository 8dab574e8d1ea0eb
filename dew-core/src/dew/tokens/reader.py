"""`TokenReader`: the ids of many files as one long array, wherever they are stored and whatever wrote them.

What sources read: windows, rows of documents, and where documents begin. A kind of corpus says which files hold its ids
(`TokenFiles`) and where the documents of one file end; everything else is here.
"""

import abc
import bisect
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from dew.data.errors import DamagedSourceError, OptionsError
from dew.data.storage import Storage
from dew.tokens.shards import Data, LocalShards, Pieces, RemoteShards, ShardReader, TokenFiles, Tokens

_READ_PIECE = 1 << 22
_OFFSETS_AT_ONCE = 16  # shards whose offsets are asked for side by side
_LAST_ID = np.iinfo(np.int32).max


def shared_tokens(one: Any, other: Any) -> int:
    """How many tokens are read by both of two sources over stretches `[start, stop)` of one corpus; 0 of others."""
    if not all(isinstance(getattr(source, "corpus", None), TokenReader) for source in (one, other)):
        return 0
    if one.corpus.id != other.corpus.id:
        return 0
    return max(0, min(one.stop, other.stop) - max(one.start, other.start))


class TokenReader(abc.ABC):
    """Ids of a corpus, read only. Safe to read from several threads, each stream through an `open()` of its own.

    Local files are memory maps, up to a bound for the whole process; a file that another program cuts while it is
    mapped ends the process, so replace a corpus by writing beside it.
    """

    _storage: Storage

    def _set_up(self, storage: Storage, files: TokenFiles) -> None:
        self._storage = storage
        self._dtype = np.dtype(files.dtype)
        self._itemsize = self._dtype.itemsize
        self._ids_fit = files.ids_fit
        self._unsigned = np.dtype(f"{self._dtype.byteorder}u{self._itemsize}")
        self._largest = min(_LAST_ID, (1 << (8 * self._itemsize - (self._dtype.kind == "i"))) - 1)
        self._ends_array: npt.NDArray[np.int64] = np.cumsum(files.lengths(), dtype=np.int64)
        self._ends: list[int] = self._ends_array.tolist()
        self._starts: list[int] = [0, *self._ends[:-1]]
        self._starts_array: npt.NDArray[np.int64] = np.array(self._starts, np.int64)
        self._reader: ShardReader = _reader(storage, files)
        self._offsets: npt.NDArray[np.int64] | None = None
        self._lock = threading.Lock()

    @property
    @abc.abstractmethod
    def id(self) -> str:
        """A digest of the content, 64 hexadecimal digits; where the files lie does not change it."""

    @property
    @abc.abstractmethod
    def tokenizer_sha256(self) -> str | None:
        """Digest of the definition of the tokenizer that made the ids, None where the files do not state it."""

    @property
    @abc.abstractmethod
    def documents(self) -> int:
        """Number of documents that have tokens."""

    @abc.abstractmethod
    def open(self) -> "TokenReader":
        """A second reader of the same corpus with maps of its own; reads nothing."""

    @abc.abstractmethod
    def _shard_offsets(self, number: int) -> npt.NDArray[np.int64]:
        """(documents + 1,) int64 of one file, from 0 to its length in steps of 1 or more."""

    @property
    def directory(self) -> Path | None:
        """Where the files are on this machine; None for a remote corpus."""
        return self._storage.path()

    @property
    def tokens(self) -> int:
        """Number of tokens over all files."""
        return self._ends[-1]

    @property
    def dtype(self) -> str:
        """Of the ids in the files, such as `"<u2"`."""
        return self._dtype.str

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """(documents + 1,) int64: document d is tokens `[offsets[d], offsets[d + 1])`. Read on first use; read-only.

        Raises:
            DamagedSourceError: what says where documents end is not what it was.
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
            DamagedSourceError: a file is not what it was, or holds what is no id.
        """
        self._check_range(start, stop)
        firsts = range(start, stop, _READ_PIECE)
        parts = [self._joined(self._pieces(first, min(first + _READ_PIECE, stop))) for first in firsts]
        found = np.concatenate([np.empty(0, self._dtype), *parts])
        if not self._ids_fit:
            self._check_ids(found, lambda place: start + place)
        return found

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
            DamagedSourceError: a file is not what it was, or holds what is no id.
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
        return self._widened(mapped.windows(width)[places], places)

    def view(self, start: int, rows: int, stride: int, width: int) -> Tokens | None:
        """`(rows, width)`: row i is tokens `[start + i * stride, start + i * stride + width)`, in the corpus's dtype.

        None where the rows are not in one mapped file, or where ids must be looked at as they are read. The rows may
        overlap: index the view, never write. It keeps its map alive.
        """
        if not self._ids_fit:
            return None
        self._check_range(start, start + (rows - 1) * stride + width)
        number = bisect.bisect_right(self._starts, start) - 1
        first = start - self._starts[number]
        last = first + (rows - 1) * stride
        if self._starts[number] + last + width > self._ends[number]:
            return None
        mapped = self._reader.mapped(number)
        return None if mapped is None else mapped.windows(width)[first : last + 1 : stride]

    def gather_rows(
        self,
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.integer],
        sizes: npt.NDArray[np.int64],
        width: int,
    ) -> npt.NDArray[np.int32]:
        """Rows `(k, width) int32` of several spans each, then zeros, in a new array.

        Args:
            starts, lengths: (n,): span i is tokens `[starts[i], starts[i] + lengths[i])`. A span stays in one shard, as
                every document does.
            sizes: (k,): row j has the next `sizes[j]` spans.
            width: tokens of a row, at least 1.

        Raises:
            IndexError: a span leaves its shard.
            OptionsError: the spans of a row hold more than `width` tokens.
            DamagedSourceError: a file is not what it was, or holds what is no id.
        """
        after = np.cumsum(sizes)
        totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        padding = (width - (totals[after] - totals[after - sizes])) * self._itemsize
        if padding.size and int(padding.min()) < 0:
            raise OptionsError(
                f"row {np.argmin(padding)} has {width - padding.min() // self._itemsize} tokens, a row holds {width}"
            )
        data = self._reader.read(self._spans(starts, lengths))
        zeros = memoryview(bytes(width * self._itemsize))
        joined: list[Data] = []
        first = 0
        for last, missing in zip(after.tolist(), padding.tolist(), strict=True):
            joined += data[first:last]
            joined.append(zeros[:missing])
            first = last
        rows = np.frombuffer(b"".join(joined), self._dtype).reshape(len(sizes), width)
        if not self._ids_fit:
            self._check_ids(rows, lambda place: self._token_of(starts, totals, after, sizes, divmod(place, width)))
        return rows.astype(np.int32)

    def document_lengths(self, start: int = 0, stop: int | None = None) -> Iterator[npt.NDArray[np.int64]]:
        """Lengths of the documents in tokens `[start, stop)`, an array for each shard; holds few of them at a time.

        Raises:
            OptionsError: a document lies only in part between `start` and `stop`.
            IndexError: the range is not in the corpus.
            DamagedSourceError: a `.docs.npy` file is not what the manifest states.
        """
        last = self.tokens if stop is None else stop
        self._check_range(start, last)
        numbers = range(bisect.bisect_right(self._starts, start) - 1, bisect.bisect_left(self._starts, last))
        for first in range(0, len(numbers), _OFFSETS_AT_ONCE):
            some = numbers[first : first + _OFFSETS_AT_ONCE]
            for number, local in zip(some, self._fetch_offsets(some), strict=True):
                offsets = local + self._starts[number]
                inside = offsets[(offsets >= start) & (offsets <= last)]
                wanted = max(start, self._starts[number]), min(last, self._ends[number])
                if not inside.size or (inside[0], inside[-1]) != wanted:
                    raise OptionsError(f"tokens [{start}, {last}) hold a document only in part; cut between documents")
                yield np.diff(inside)

    def close(self) -> None:
        """Frees maps; reading again opens them again."""
        self._reader.close()

    def _gather_over(self, places: npt.NDArray[np.int64], highest: int, width: int) -> npt.NDArray[np.int32]:
        number = bisect.bisect_right(self._starts, highest) - 1
        lowest = int(np.minimum.reduce(places))
        if self._starts[number] <= lowest and highest + width <= self._ends[number]:
            mapped = self._reader.mapped(number)
            if mapped is not None:
                return self._widened(mapped.windows(width)[places - self._starts[number]], places)
        return self._gather_pieces(places, width)

    def _gather_pieces(self, places: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int32]:
        numbers = np.searchsorted(self._starts_array, places, side="right") - 1
        starts = (places - self._starts_array[numbers]) * self._itemsize
        pieces = Pieces(numbers.tolist(), starts.tolist(), (starts + width * self._itemsize).tolist())
        crossing = np.flatnonzero(places + width > self._ends_array[numbers])
        # From the last on, so that a row that becomes several pieces does not move the rows still to do.
        for row in crossing[::-1].tolist():
            pieces.replace(row, self._pieces(int(places[row]), int(places[row]) + width))
        return self._widened(self._joined(pieces).reshape(len(places), width), places)

    def _pieces(self, start: int, stop: int) -> Pieces:
        """The pieces of tokens `[start, stop)`, which may go over the ends of shards."""
        pieces = Pieces([], [], [])
        number = bisect.bisect_right(self._starts, start) - 1
        while start < stop:
            first, last = self._starts[number], min(stop, self._ends[number])
            pieces.append(number, (start - first) * self._itemsize, (last - first) * self._itemsize)
            start, number = last, number + 1
        return pieces

    def _spans(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.integer]) -> Pieces:
        """One piece for each span, none of which may leave its shard."""
        numbers = np.searchsorted(self._ends_array, starts, side="right")
        stops = starts + lengths
        # A start past the end has no shard; the first is as good as any to refuse it.
        known = np.where(numbers < len(self._ends), numbers, 0)
        wrong = (starts < 0) | (lengths < 1) | (stops > self._ends_array[known])
        if wrong.any():
            place = int(np.argmax(wrong))
            raise IndexError(
                f"tokens [{starts[place]}, {stops[place]}) were asked for as a part of one document, and no shard of "
                f"this corpus of {self.tokens} tokens holds them"
            )
        firsts = self._starts_array[numbers]
        begins, ends = (starts - firsts) * self._itemsize, (stops - firsts) * self._itemsize
        return Pieces(numbers.tolist(), begins.tolist(), ends.tolist())

    def _joined(self, pieces: Pieces) -> Tokens:
        # Joining bytes costs half of np.concatenate over as many slices.
        return np.frombuffer(b"".join(self._reader.read(pieces)), self._dtype)

    def _widened(self, ids: Tokens, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        if not self._ids_fit:
            self._check_ids(ids, lambda place: int(places[place // ids.shape[1]]) + place % ids.shape[1])
        return ids.astype(np.int32)

    def _check_ids(self, ids: Tokens, token: Callable[[int], int]) -> None:
        """Refuse ids that int32 would not hold as they are; `token` says which token element `place` of `ids` is."""
        # Read as unsigned, a negative id is a huge one: one pass checks both ends.
        if not ids.size or int(ids.view(self._unsigned).max()) <= self._largest:
            return
        flat = ids.reshape(-1)
        place = int(np.argmax((flat < 0) | (flat > _LAST_ID)))
        number = token(place)
        raise DamagedSourceError(
            f"token {number} of {self._storage.location()} is {flat[place]} as {self._dtype.name}, and ids are whole "
            f"numbers from 0 to {_LAST_ID}; the files are damaged, or are of another dtype"
        )

    @staticmethod
    def _token_of(
        starts: npt.NDArray[np.int64],
        totals: npt.NDArray[np.int64],
        after: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        cell: tuple[int, int],
    ) -> int:
        """Which token lies in a cell (row, column) of rows made of spans."""
        row, column = cell
        first = int(after[row] - sizes[row])
        within = int(totals[first]) + column
        span = int(np.searchsorted(totals, within, side="right")) - 1
        return int(starts[span]) + within - int(totals[span])

    def _fetch_offsets(self, numbers: Sequence[int]) -> list[npt.NDArray[np.int64]]:
        """The offsets of some shards, asked for side by side where they are remote."""
        if self._storage.local or len(numbers) < 2:
            return [self._shard_offsets(number) for number in numbers]
        with ThreadPoolExecutor(len(numbers), "dew-tokens") as pool:
            return list(pool.map(self._shard_offsets, numbers))

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"tokens [{start}, {stop}) were asked for, the corpus has tokens [0, {self.tokens})")

    def _refuse_windows(self, places: npt.NDArray[np.int64], width: int, first: int, last: int) -> NoReturn:
        start = int(places[(places < first) | (places > last - width)][0])
        raise IndexError(f"tokens [{start}, {start + width}) were asked for, there are tokens [{first}, {last})")


def _reader(storage: Storage, files: TokenFiles) -> ShardReader:
    directory = storage.path()
    return RemoteShards(storage, files) if directory is None else LocalShards(storage, files, directory)
