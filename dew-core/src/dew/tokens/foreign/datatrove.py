"""datatrove: `x.ds` holds the ids, `x.ds.index` where each document ends, `x.ds.metadata` the tokenizer and a count.

Ids take 2 or 4 bytes. The index states tokens, so it and the size of the file tell which; the metadata must agree.
"""

import warnings
from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np

from dew.data.errors import DamagedSourceError, DewWarning, OptionsError
from dew.data.storage import Storage
from dew.tokens.access import CorpusOptions
from dew.tokens.foreign.shard import ForeignShard, Format, IndexFile, Int64s, check_stated_dtype, size_of, without_empty

_DTYPES: Final = {2: "<u2", 4: "<u4"}
_ENTRY_BYTES: Final = 8
_LARGEST_END: Final = 1 << 60
_INDEX: Final = ".index"
_METADATA: Final = ".metadata"
_LOSS: Final = ".loss"


@attrs.frozen(kw_only=True)
class _Index:
    offsets: Int64s
    empty: int
    size: int
    sha256: str

    @property
    def tokens(self) -> int:
        return int(self.offsets[-1])


@attrs.frozen(kw_only=True)
class _Metadata:
    tokenizer: str
    itemsize: int
    tokens: int


def _select(names: Sequence[str]) -> list[str]:
    found = {name.removesuffix(end) for name in names for end in (_INDEX, _METADATA) if name.endswith(f".ds{end}")}
    return list(found)


def _open(storage: Storage, name: str, options: CorpusOptions) -> ForeignShard:
    index = _read(storage, f"{name}{_INDEX}") if storage.exists(f"{name}{_INDEX}") else None
    metadata = _metadata(storage, f"{name}{_METADATA}") if storage.exists(f"{name}{_METADATA}") else None
    if index is not None and (options.eos_id is not None or options.bos_id is not None):
        raise OptionsError(
            f"{storage.location(name + _INDEX)} says where documents end; leave eos_id and bos_id out, they are for "
            "files that do not"
        )
    size = size_of(storage, name, "its index or metadata is there")
    itemsize = _itemsize(storage, name, size, index, metadata)
    check_stated_dtype(storage, name, _DTYPES[itemsize], options)
    if storage.exists(f"{name}{_LOSS}"):
        _tell_of_loss(storage, name)
    return ForeignShard(
        name=name,
        tokens=size // itemsize,
        dtype=_DTYPES[itemsize],
        documents=None if index is None else len(index.offsets) - 1,
        empty=0 if index is None else index.empty,
        index="" if index is None else f"{name}{_INDEX}",
        index_bytes=0 if index is None else index.size,
        index_sha256="" if index is None else index.sha256,
        tokenizer="" if metadata is None else metadata.tokenizer,
    )


def _offsets(storage: Storage, shard: ForeignShard) -> Int64s:
    found = _read(storage, shard.index)
    if found.sha256 != shard.index_sha256:
        raise DamagedSourceError(
            f"{storage.location(shard.index)} had the sha256 {shard.index_sha256} when it was opened, now it has "
            f"{found.sha256}; a corpus must not be changed while it is read"
        )
    return found.offsets


DATATROVE: Final = Format(
    name="datatrove",
    sign="x.ds with x.ds.index or x.ds.metadata beside it",
    select=_select,
    open=_open,
    offsets=_offsets,
)


def _read(storage: Storage, name: str) -> _Index:
    size = storage.size(name)
    if size % _ENTRY_BYTES:
        raise DamagedSourceError(
            f"{storage.location(name)} has {size} bytes, and each document takes {_ENTRY_BYTES}: it is cut; copy it "
            "again"
        )
    file = IndexFile(storage, name, size)
    parts = [np.zeros(1, np.int64)]
    for first, ends in file.arrays("<u8", size // _ENTRY_BYTES):
        before = parts[-1][-1].astype(np.uint64)
        wrong = (ends > _LARGEST_END) | (ends < np.concatenate([before[None], ends[:-1]]))
        if wrong.any():
            place = int(np.argmax(wrong))
            raise DamagedSourceError(
                f"{file.where} states that document {first + place} ends at token {ends[place]}, the one before it at "
                f"{ends[place - 1] if place else before}; the ends must rise; copy it again"
            )
        parts.append(ends.astype(np.int64))
    offsets, empty = without_empty(np.concatenate(parts))
    return _Index(offsets=offsets, empty=empty, size=size, sha256=file.sha256())


def _metadata(storage: Storage, name: str) -> _Metadata:
    """The first two lines: the tokenizer, `|` and the bytes of an id (2 where old files leave it out); the count."""
    text = storage.read(name).decode(errors="replace")
    lines = text.split("\n")
    tokenizer, mark, itemsize = lines[0].rpartition("|")
    if not mark:
        tokenizer, itemsize = lines[0], "2"
    count = lines[1].strip() if len(lines) > 1 else ""
    if itemsize not in ("2", "4") or not (count.isascii() and count.isdigit()):
        raise DamagedSourceError(
            f"{storage.location(name)} should state a tokenizer, '|' and 2 or 4, and in its second line the number of "
            f"tokens; it begins with {text[:80]!r}"
        )
    return _Metadata(tokenizer=tokenizer, itemsize=int(itemsize), tokens=int(count))


def _itemsize(storage: Storage, name: str, size: int, index: _Index | None, metadata: _Metadata | None) -> int:
    """Bytes of an id, by all that is known of the file."""
    where = storage.location(name)
    stated = [(f"{name}{_METADATA}", metadata.tokens)] if metadata is not None else []
    stated += [(f"{name}{_INDEX}", index.tokens)] if index is not None else []
    possible = [metadata.itemsize] if metadata is not None else list(_DTYPES)
    for file, tokens in stated:
        fitting = [itemsize for itemsize in possible if tokens * itemsize == size]
        if not fitting:
            sizes = " or ".join(f"{tokens * itemsize}" for itemsize in possible)
            raise DamagedSourceError(
                f"{where} has {size} bytes, and {file} states {tokens} tokens, {sizes} bytes; copy the files again"
            )
        possible = fitting
    return possible[0]


def _tell_of_loss(storage: Storage, name: str) -> None:
    warnings.warn(
        f"{storage.location(name + _LOSS)} says which tokens are not to be learned, and Dew does not read it: all "
        "tokens are targets",
        DewWarning,
        stacklevel=2,
    )
