"""What is known of one file of ids that another program wrote, and how a format tells it."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import DamagedSourceError, OptionsError, SourceNotFoundError
from dew.data.storage import Storage
from dew.tokens.access import CorpusOptions
from dew.tokens.shards import TokenFile

Int64s: TypeAlias = npt.NDArray[np.int64]

_PIECE = 1 << 20  # elements of an index that are read at once


@attrs.frozen(kw_only=True)
class ForeignShard:
    """One file of ids.

    Args:
        name: of the file.
        start: byte at which its ids begin; they go on to its end.
        tokens, dtype: how many ids, and of which type.
        documents, empty: documents that have tokens, and that have none; None where the files do not say.
        index, index_bytes, index_sha256: the file that says where documents end; "" where there is none.
        tokenizer: what the files call the tokenizer.
    """

    name: str
    start: int = 0
    tokens: int
    dtype: str
    documents: int | None = None
    empty: int = 0
    index: str = ""
    index_bytes: int = 0
    index_sha256: str = ""
    tokenizer: str = ""

    @property
    def bytes(self) -> int:
        """Size of the whole file."""
        return self.start + self.tokens * np.dtype(self.dtype).itemsize


@attrs.frozen(kw_only=True)
class Format:
    """One format of token files.

    Args:
        name: as in `CorpusOptions.format`.
        sign: what its files look like, for messages.
        select: of the names in a directory, those of its files of ids, by spelling alone.
        open: what is known of one such file; refuses one that is not of the format, or damaged.
        offsets: `(documents + 1,)` offsets of the documents that have tokens, from 0; None where files do not say.
    """

    name: str
    sign: str
    select: Callable[[Sequence[str]], list[str]]
    open: Callable[[Storage, str, CorpusOptions], ForeignShard]
    offsets: Callable[[Storage, ForeignShard], Int64s] | None = None


@attrs.frozen
class ForeignFiles:
    """Files of ids, in order, for the readers of shards."""

    shards: tuple[ForeignShard, ...]

    @property
    def dtype(self) -> str:
        """The one dtype of all files."""
        return self.shards[0].dtype

    @property
    def ids_fit(self) -> bool:
        """Whether no id can be negative or past 2^31 - 1, by the dtype alone."""
        dtype = np.dtype(self.dtype)
        return dtype.kind == "u" and dtype.itemsize < 4

    def lengths(self) -> list[int]:
        """Tokens in each file."""
        return [shard.tokens for shard in self.shards]

    def file(self, number: int) -> TokenFile:
        """File `number`."""
        shard = self.shards[number]
        return TokenFile(shard.name, shard.start, shard.tokens)

    def check(self, storage: Storage, number: int) -> None:
        """Compare the file's size with what it was when the corpus was opened."""
        shard = self.shards[number]
        size = size_of(storage, shard.name, "it was there when the corpus was opened")
        if size != shard.bytes:
            raise DamagedSourceError(
                f"{storage.location(shard.name)} has {size} bytes, it had {shard.bytes} when the corpus was opened; "
                "a corpus must not be changed while it is read"
            )


def size_of(storage: Storage, name: str, why: str) -> int:
    """Size of a file that must be there, `why`.

    Raises:
        DamagedSourceError: it is missing.
    """
    try:
        return storage.size(name)
    except SourceNotFoundError as error:
        raise DamagedSourceError(f"{storage.location(name)} is missing, and {why}; copy the files again") from error


def check_stated_dtype(storage: Storage, name: str, stated: str, options: CorpusOptions) -> None:
    """Refuse a `dtype` option that the file contradicts."""
    if options.dtype is not None and options.dtype != stated:
        raise OptionsError(
            f"dtype={np.dtype(options.dtype).name!r} was given, and {storage.location(name)} states "
            f"{np.dtype(stated).name}; leave dtype out"
        )


def without_empty(offsets: Int64s) -> tuple[Int64s, int]:
    """Rising offsets of the documents that have tokens, and how many have none."""
    kept = offsets[np.diff(offsets, prepend=-1) > 0]
    return kept, len(offsets) - len(kept)


class IndexFile:
    """A file read once from its begin to its end, in pieces of bounded size, and hashed on the way."""

    def __init__(self, storage: Storage, name: str, size: int) -> None:
        self._storage = storage
        self._name = name
        self._hash = hashlib.sha256()
        self.size = size
        self.at = 0

    @property
    def where(self) -> str:
        """Its location, for messages."""
        return self._storage.location(self._name)

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        data = self._storage.read_range(self._name, self.at, self.at + count)
        self._hash.update(data)
        self.at += count
        return data

    def arrays(self, dtype: str, count: int) -> "Iterator[tuple[int, npt.NDArray[Any]]]":
        """The next `count` elements as `(number of the first, some of them)`."""
        itemsize = np.dtype(dtype).itemsize
        for first in range(0, count, _PIECE):
            yield first, np.frombuffer(self.take(min(_PIECE, count - first) * itemsize), dtype)

    def sha256(self) -> str:
        """Digest of what was read."""
        return self._hash.hexdigest()
