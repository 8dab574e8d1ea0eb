"""`ForeignCorpus`: token files of another program, read like a corpus that Dew wrote.

Files are opened once: sizes, headers and whole indexes are compared with each other. A copy in another process gets
what was learnt, reads nothing, and compares the size of each file when it first touches it.
"""

import bisect
import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import numpy as np

from dew.data.errors import OptionsError, SourceError
from dew.data.storage import Storage
from dew.tokens.access import CorpusOptions
from dew.tokens.foreign.shard import ForeignFiles, ForeignShard, Format, Int64s
from dew.tokens.reader import TokenReader

Item = TypeVar("Item")
Result = TypeVar("Result")

_OPENED_AT_ONCE: Final = 16
_SAMPLED_FILES: Final = 16
_SAMPLED_BYTES: Final = 1 << 20
_SEARCHED: Final = 1 << 20  # tokens that are searched at once for the end of a document


class ForeignCorpus(TokenReader):
    """Token files of another program, in order; `dew.tokens.open_corpus` makes one.

    The end of a file ends a document too: documents never go over into the next file.

    Args:
        storage: the directory.
        format: who wrote the files.
        shards: what is known of them, in order.
        options: where the files do not say where documents end, `eos_id` or `bos_id` do.

    Raises:
        SourceError: there are no tokens, or the files are of several dtypes.
    """

    def __init__(
        self, storage: Storage, format: Format, shards: Sequence[ForeignShard], options: CorpusOptions
    ) -> None:
        self.format = format
        self.shards = tuple(shards)
        self.options = options
        self._id: str | None = None
        self._ended = False  # whether any document was seen to end by `eos_id` or `bos_id`
        self._documents: int | None = None
        filled = tuple(shard for shard in self.shards if shard.tokens)
        if not filled:
            raise SourceError(
                f"{storage.location()} holds no tokens: {_listed([s.name for s in self.shards])} are empty"
            )
        other = next((shard for shard in filled if shard.dtype != filled[0].dtype), None)
        if other is not None:
            raise SourceError(
                f"{storage.location()} has ids of several types, {np.dtype(filled[0].dtype).name} in {filled[0].name} "
                f"and {np.dtype(other.dtype).name} in {other.name}; name files of one type by a pattern"
            )
        self._filled = filled
        self._set_up(storage, ForeignFiles(filled))

    def __repr__(self) -> str:
        return f"ForeignCorpus(format={self.format.name!r}, files={len(self.shards)}, tokens={self.tokens})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._storage, self.format, self.shards, self.options, self._id)

    @property
    def id(self) -> str:
        """A digest of sizes, whole indexes, and the first and last MiB of the files; of over 16 files, of 16 of them.

        A change inside a file that keeps its size and is past its first and before its last MiB is not seen.
        """
        if self._id is None:
            self._id = self._digest()
        return self._id

    @property
    def tokenizer_sha256(self) -> None:
        """None: none of the formats holds a tokenizer's definition."""
        return

    @property
    def documents(self) -> int:
        """Number of documents that have tokens; where the files do not say, all of them are read to find it.

        Raises:
            OptionsError: the files do not say where documents end, and neither `eos_id` nor `bos_id` was given.
            SourceError: the id that was given is nowhere.
        """
        if self._documents is None:
            known = [shard.documents for shard in self._filled]
            self._documents = sum(
                len(self._shard_offsets(number)) - 1 if documents is None else documents
                for number, documents in enumerate(known)
            )
        return self._documents

    @property
    def empty_documents(self) -> int:
        """Documents without tokens that the files list; they are kept out."""
        return sum(shard.empty for shard in self.shards)

    @property
    def tells_documents(self) -> bool:
        """Whether it is known where documents end: by the files themselves, or by `eos_id` or `bos_id`."""
        return self._marker is not None or all(shard.documents is not None for shard in self._filled)

    def open(self) -> "ForeignCorpus":
        """A second reader of the same corpus with maps of its own; reads nothing."""
        reader = ForeignCorpus(self._storage, self.format, self.shards, self.options)
        reader._id, reader._ended, reader._documents = self._id, self._ended, self._documents
        return reader

    def document_start(self, token: int) -> int:
        """First token of the document that holds `token`.

        Raises:
            IndexError: there is no such token.
            OptionsError, SourceError: as for `documents`.
        """
        self._check_range(token, token + 1)
        number = bisect.bisect_right(self._starts, token) - 1
        if self._filled[number].documents is not None:
            return super().document_start(token)
        first, after = self._starts[number], self._after()
        # The search goes back from the token, so that it reads one document, not the file.
        last = token + 1 - after
        while last > first:
            begin = max(first, last - _SEARCHED)
            found = np.flatnonzero(self.read(begin, last) == self._marker)
            if found.size:
                self._ended = True
                return begin + int(found[-1]) + after
            last = begin
        self._check_ended(number)
        return first

    def _shard_offsets(self, number: int) -> Int64s:
        shard = self._filled[number]
        if shard.documents is not None and self.format.offsets is not None:
            return self.format.offsets(self._storage, shard)
        first, last, after = self._starts[number], self._ends[number], self._after()
        parts = [np.zeros(1, np.int64)]
        for begin in range(first, last, _SEARCHED):
            ids = self.read(begin, min(begin + _SEARCHED, last))
            parts.append(np.flatnonzero(ids == self._marker) + (begin - first + after))
        found = np.concatenate([*parts, np.array([last - first], np.int64)])
        if len(found) > 2:
            self._ended = True
        self._check_ended(number)
        return found[np.diff(found, prepend=-1) > 0]

    @property
    def _marker(self) -> int | None:
        return self.options.eos_id if self.options.bos_id is None else self.options.bos_id

    def _after(self) -> int:
        """How many tokens after a marker's place the next document begins: 1 after an end, 0 at a begin."""
        if self._marker is None:
            raise OptionsError(
                f"{self._storage.location(self.shards[0].name)} is read as {self.format.name!r}, which does not say "
                "where documents end; give eos_id= (the id that ends each) or bos_id= (the id that begins each)"
            )
        return 1 if self.options.bos_id is None else 0

    def _check_ended(self, searched: int) -> None:
        """Refuse a marker that is nowhere; `searched` is a file in which it is not, or no longer matters."""
        for number, (first, last) in enumerate(zip(self._starts, self._ends, strict=True)):
            if self._ended:
                return
            if number != searched:
                pieces = range(first, last, _SEARCHED)
                self._ended = any((self.read(b, min(b + _SEARCHED, last)) == self._marker).any() for b in pieces)
        if not self._ended:
            name = "eos_id" if self.options.bos_id is None else "bos_id"
            raise SourceError(
                f"{name}={self._marker} is nowhere in the {self.tokens} tokens of {self._storage.location()}; it is "
                "not the id between documents, or dtype is not that of the files"
            )

    def _digest(self) -> str:
        places = np.linspace(0, len(self._filled) - 1, min(len(self._filled), _SAMPLED_FILES)).astype(int)
        sampled = [self._filled[int(place)] for place in places]
        values = {
            "format": self.format.name,
            "dtype": self.dtype,
            "marker": [self.options.bos_id, self.options.eos_id],
            "files": [[shard.bytes, shard.start, shard.index_bytes, shard.index_sha256] for shard in self._filled],
            "samples": in_parallel(self._storage, self._sample, sampled),
        }
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def _sample(self, shard: ForeignShard) -> str:
        found = hashlib.sha256(self._storage.read_range(shard.name, 0, min(shard.bytes, _SAMPLED_BYTES)))
        found.update(self._storage.read_range(shard.name, max(0, shard.bytes - _SAMPLED_BYTES), shard.bytes))
        return found.hexdigest()


def in_parallel(storage: Storage, call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`call` of each item, side by side where the storage is remote."""
    if storage.local or len(items) < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(_OPENED_AT_ONCE, len(items)), "dew-tokens") as pool:
        return list(pool.map(call, items))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _reopen(
    storage: Storage, format: Format, shards: tuple[ForeignShard, ...], options: CorpusOptions, id: str | None
) -> ForeignCorpus:
    corpus = ForeignCorpus(storage, format, shards, options)
    corpus._id = id  # pyright: ignore[reportPrivateUsage]
    return corpus
