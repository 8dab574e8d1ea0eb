"""Megatron-LM: `x.bin` holds the ids, `x.idx` says where sequences and documents end.

The index: magic, version, a code for the dtype, two counts, then for each sequence its length (int32) and the byte at
which it begins (int64), then for each document its first sequence (int64) and at the end the number of sequences. Some
writers count documents, others the entries of that last list, one more; the size of the file tells which. An array of
modes at the end marks multimodal files, which are more than ids.

Sequences must follow one another without gaps, as every writer lays them out, so that the file is one stream.
"""

import struct
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

import attrs
import numpy as np

from dew.data.errors import DamagedSourceError, OptionsError, SourceError
from dew.data.storage import Storage
from dew.tokens.access import CorpusOptions
from dew.tokens.foreign.shard import ForeignShard, Format, IndexFile, Int64s, check_stated_dtype, size_of, without_empty

MAGIC: Final = b"MMIDIDX\x00\x00"
DTYPES: Final = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}

_HEADER: Final = struct.Struct("<9sQBQQ")
_SEQUENCE_BYTES: Final = 12
_ENTRY_BYTES: Final = 8


@attrs.frozen(kw_only=True)
class _Index:
    """A whole index, checked: `offsets` are those of the documents that have tokens."""

    dtype: str
    offsets: Int64s
    empty: int
    size: int
    sha256: str


@attrs.frozen(kw_only=True)
class _Counts:
    """The head of an index: what follows it."""

    dtype: str
    sequences: int
    entries: int  # of the list of documents


def _select(names: Sequence[str]) -> list[str]:
    return [f"{name.removesuffix('.idx')}.bin" for name in names if name.endswith(".idx")]


def _open(storage: Storage, name: str, options: CorpusOptions) -> ForeignShard:
    index_name = str(PurePosixPath(name).with_suffix(".idx"))
    found = _read(storage, index_name)
    if options.eos_id is not None or options.bos_id is not None:
        raise OptionsError(
            f"{storage.location(index_name)} says where documents end; leave eos_id and bos_id out, they are for files "
            "that do not"
        )
    check_stated_dtype(storage, index_name, found.dtype, options)
    size = size_of(storage, name, f"{index_name} says where its documents end")
    tokens, itemsize = int(found.offsets[-1]), np.dtype(found.dtype).itemsize
    if size != tokens * itemsize:
        raise DamagedSourceError(
            f"{storage.location(name)} has {size} bytes, and {index_name} states {tokens} tokens of "
            f"{np.dtype(found.dtype).name}, {tokens * itemsize} bytes; copy both files again"
        )
    return ForeignShard(
        name=name,
        tokens=tokens,
        dtype=found.dtype,
        documents=len(found.offsets) - 1,
        empty=found.empty,
        index=index_name,
        index_bytes=found.size,
        index_sha256=found.sha256,
    )


def _offsets(storage: Storage, shard: ForeignShard) -> Int64s:
    found = _read(storage, shard.index)
    if found.sha256 != shard.index_sha256:
        raise DamagedSourceError(
            f"{storage.location(shard.index)} had the sha256 {shard.index_sha256} when it was opened, now it has "
            f"{found.sha256}; a corpus must not be changed while it is read"
        )
    return found.offsets


MEGATRON: Final = Format(
    name="megatron", sign="x.bin with x.idx beside it", select=_select, open=_open, offsets=_offsets
)


def _read(storage: Storage, name: str) -> _Index:
    file = IndexFile(storage, name, size_of(storage, name, "it says where the documents of its .bin file end"))
    counts = _read_counts(storage, name, file)
    ends = _read_sequences(file, counts)
    offsets, empty = _read_documents(file, counts, ends)
    return _Index(dtype=counts.dtype, offsets=offsets, empty=empty, size=file.size, sha256=file.sha256())


def _read_counts(storage: Storage, name: str, file: IndexFile) -> _Counts:
    if file.size < _HEADER.size:
        raise DamagedSourceError(
            f"{file.where} has {file.size} bytes, the head of a Megatron index alone takes {_HEADER.size}; copy it "
            "again"
        )
    magic, version, code, sequences, stated = _HEADER.unpack(file.take(_HEADER.size))
    if magic != MAGIC:
        raise DamagedSourceError(f"{file.where} is no Megatron index: it begins with {magic!r} instead of {MAGIC!r}")
    if version != 1:
        raise DamagedSourceError(f"{file.where} is a Megatron index of version {version}, and Dew reads version 1")
    dtype = DTYPES.get(code)
    if dtype is None:
        raise DamagedSourceError(f"{file.where} states the dtype code {code}, the codes are 1 to {max(DTYPES)}")
    if np.dtype(dtype).kind == "f":
        raise SourceError(
            f"{file.where} states the dtype code {code}, {np.dtype(dtype).name}, and ids are whole numbers; it is no "
            "file of tokens"
        )
    base = _HEADER.size + sequences * _SEQUENCE_BYTES
    entries = _entries(storage, name, file, base, sequences, stated)
    return _Counts(dtype=dtype, sequences=sequences, entries=entries)


def _entries(storage: Storage, name: str, file: IndexFile, base: int, sequences: int, stated: int) -> int:
    """Length of the list of documents: `stated`, or one more, by the size of the file."""
    counted, listed = base + (stated + 1) * _ENTRY_BYTES, base + stated * _ENTRY_BYTES
    if file.size == counted and not (sequences == _ENTRY_BYTES and _last(storage, name, file.size) != sequences):
        return stated + 1
    if file.size == listed and stated:
        return stated
    about = (
        f"{file.where} has {file.size} bytes; {sequences} sequences and {stated} documents take {listed} or {counted}"
    )
    if sequences and file.size in (listed + sequences, counted + sequences):
        raise SourceError(
            f"{about}, and {sequences} more are the modes of a multimodal file: its sequences are not all text, and "
            "Dew reads text alone"
        )
    trouble = "it goes on after its end" if file.size > counted else "it is cut"
    raise DamagedSourceError(f"{about}, so {trouble}; copy it again")


def _last(storage: Storage, name: str, size: int) -> int:
    """The last entry: with 8 sequences their modes are as long as one, and only its value tells which it is."""
    return int.from_bytes(storage.read_range(name, size - _ENTRY_BYTES, size), "little")


def _read_sequences(file: IndexFile, counts: _Counts) -> Int64s:
    """(sequences + 1,) tokens before each sequence and after the last, once every byte offset agrees with them."""
    parts = [np.zeros(1, np.int64)]
    for first, lengths in file.arrays("<i4", counts.sequences):
        if int(lengths.min()) < 0:
            place = int(np.argmax(lengths < 0))
            raise DamagedSourceError(
                f"{file.where} states the length {lengths[place]} for sequence {first + place}; copy it again"
            )
        parts.append(np.cumsum(lengths, dtype=np.int64) + parts[-1][-1])
    ends = np.concatenate(parts)
    itemsize = np.dtype(counts.dtype).itemsize
    for first, begins in file.arrays("<i8", counts.sequences):
        wrong = begins != ends[first : first + len(begins)] * itemsize
        if wrong.any():
            place = int(np.argmax(wrong))
            raise DamagedSourceError(
                f"{file.where} states that sequence {first + place} begins at byte {begins[place]}, and those before "
                f"it end at {ends[first + place] * itemsize}; only sequences that follow one another make one stream"
            )
    return ends


def _read_documents(file: IndexFile, counts: _Counts, ends: Int64s) -> tuple[Int64s, int]:
    """Offsets of the documents that have tokens, and how many have none."""
    parts: list[Int64s] = []
    begin = before = 0
    for first, entries in file.arrays("<i8", counts.entries):
        steps = np.diff(entries, prepend=before if first else entries[0])
        if int(entries[0]) < 0 or int(steps.min()) < 0 or int(entries.max()) > counts.sequences:
            wrong = (steps < 0) | (entries < 0) | (entries > counts.sequences)
            place = int(np.argmax(wrong))
            raise DamagedSourceError(
                f"{file.where} states that document {first + place} begins with sequence {entries[place]}; documents "
                f"rise from sequence 0 to {counts.sequences}; copy it again"
            )
        begin, before = (begin if first else int(entries[0])), int(entries[-1])
        parts.append(ends[entries])
    if (begin, before) != (0, counts.sequences):
        raise DamagedSourceError(
            f"{file.where} lists documents from sequence {begin} to {before}, and has sequences 0 to "
            f"{counts.sequences}; copy it again"
        )
    return without_empty(np.concatenate(parts))
