"""Files of bare ids (nanoGPT's `.bin`, OLMo's `.npy`), and those of llm.c, which begin with 256 int32.

Nothing in a bare file says how many bytes an id takes, so the caller does; what shows that this cannot be is refused,
and what makes it unlikely is a warning. A file of llm.c states magic, version and the number of ids.
"""

import struct
import warnings
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dew.data.errors import DamagedSourceError, DewWarning, OptionsError, SourceError
from dew.data.storage import Storage
from dew.tokens.access import CorpusOptions
from dew.tokens.foreign import arrays, megatron
from dew.tokens.foreign.shard import ForeignShard, Format, check_stated_dtype, size_of

_LLMC_HEADER: Final = 256 * 4
_LLMC: Final = {20240520: ("<u2", (1,)), 20240801: ("<u4", (1, 7))}  # magic -> dtype, versions
_LLMC_EVALUATION: Final = 20240522
_LAST_ID: Final = (1 << 31) - 1
_SAMPLED: Final = 1 << 15  # bytes at the begin that are looked at
_LEAST_SAMPLE: Final = 64  # ids, fewer of which say nothing
_HIGH_WORDS: Final = 64  # the upper halves of 4-byte ids are below it for every vocabulary under 2^22
_LOW_WORDS: Final = 1024  # ids of a vocabulary of some size go past it

# Other kinds of files, by how they begin.
_OTHERS: Final = {
    arrays.MAGIC: "a .npy file with a header: use format='npy'",
    megatron.MAGIC: "a Megatron index: name its .bin file, with format='megatron'",
    b"PAR1": "a parquet file: bring it in with `dew tokens import`",
    b"ARROW1": "an Arrow file: bring it in with `dew tokens import`",
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: decompress it",
}


def is_llmc(head: bytes) -> bool:
    """Whether a file that begins with `head` is one of llm.c's."""
    magic = int.from_bytes(head[:4], "little")
    return len(head) >= 4 and (magic in _LLMC or magic == _LLMC_EVALUATION)


def _select(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.endswith((".bin", ".npy", ".ds"))]


def _select_bin(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.endswith(".bin")]


def _open_llmc(storage: Storage, name: str, options: CorpusOptions) -> ForeignShard:
    where = storage.location(name)
    size = size_of(storage, name, "it is to be read")
    if size < _LLMC_HEADER:
        raise DamagedSourceError(f"{where} has {size} bytes, the header of llm.c alone takes {_LLMC_HEADER}")
    magic, version, tokens = struct.unpack("<iii", storage.read_range(name, 0, 12))
    if magic == _LLMC_EVALUATION:
        raise SourceError(f"{where} holds evaluation examples of llm.c (magic {magic}), not a stream of tokens")
    if magic not in _LLMC:
        raise DamagedSourceError(
            f"{where} begins with {magic}, files of llm.c with {' or '.join(map(str, _LLMC))}; is it "
            "format='headerless'?"
        )
    dtype, versions = _LLMC[magic]
    if version not in versions:
        known = " or ".join(map(str, versions))
        raise DamagedSourceError(f"{where} is of version {version}, and with magic {magic} Dew reads {known}")
    expected = _LLMC_HEADER + tokens * np.dtype(dtype).itemsize
    if size != expected:
        raise DamagedSourceError(
            f"{where} has {size} bytes, its header states {tokens} tokens of {np.dtype(dtype).name}, {expected} bytes; "
            "copy it again"
        )
    check_stated_dtype(storage, name, dtype, options)
    return ForeignShard(name=name, start=_LLMC_HEADER, tokens=tokens, dtype=dtype)


def _open(storage: Storage, name: str, options: CorpusOptions) -> ForeignShard:
    where = storage.location(name)
    if options.dtype is None:
        raise OptionsError(
            f"{where} is headerless: nothing in it says how many bytes an id takes; give dtype='uint16' or "
            "dtype='uint32', whichever it was written with"
        )
    size = size_of(storage, name, "it is to be read")
    dtype = np.dtype(options.dtype)
    if size % dtype.itemsize:
        raise DamagedSourceError(
            f"{where} has {size} bytes, no whole number of ids of {dtype.itemsize} bytes ({dtype.name}); it is cut, or "
            "of another dtype"
        )
    head = storage.read_range(name, 0, min(size, _SAMPLED))
    if is_llmc(head):
        raise SourceError(f"{where} is not headerless, it begins like a file of llm.c: use format='llm.c'")
    for magic, other in _OTHERS.items():
        if head.startswith(magic):
            raise SourceError(f"{where} is not headerless, it begins like {other}")
    _check_sample(where, np.frombuffer(head[: len(head) // dtype.itemsize * dtype.itemsize], dtype), dtype.name)
    return ForeignShard(name=name, tokens=size // dtype.itemsize, dtype=dtype.str)


def _check_sample(where: str, ids: "npt.NDArray[Any]", dtype: str) -> None:
    """Look at the first ids for what a wrong dtype does to them."""
    wrong = (ids < 0) | (ids > _LAST_ID)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise DamagedSourceError(
            f"token {place} of {where} is {ids[place]} as {dtype}, and ids are whole numbers from 0 to {_LAST_ID}; is "
            "it of another dtype?"
        )
    if ids.dtype.itemsize == 2 and len(ids) >= 2 * _LEAST_SAMPLE:
        low, high = ids[0 : len(ids) // 2 * 2 : 2], ids[1::2]
        if int(high.max()) < _HIGH_WORDS and int(low.max()) >= _LOW_WORDS:
            warnings.warn(
                f"every second id of {where} is below {_HIGH_WORDS} as {dtype}, which looks like ids of 4 bytes; is "
                "it dtype='uint32'?",
                DewWarning,
                stacklevel=2,
            )


LLMC: Final = Format(
    name="llm.c", sign="x.bin that begins with 20240520 or 20240801", select=_select_bin, open=_open_llmc
)
HEADERLESS: Final = Format(
    name="headerless", sign="x.bin or x.npy without any header, with dtype=", select=_select, open=_open
)
