"""One-dimensional `.npy` files of any integer type, as `numpy.save` writes them."""

import io
import tokenize
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dew.data.errors import DamagedSourceError, SourceError
from dew.data.storage import Storage
from dew.tokens.access import CorpusOptions
from dew.tokens.foreign.shard import ForeignShard, Format, check_stated_dtype, size_of

MAGIC: Final = b"\x93NUMPY"

_HEADERS: Final = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_HEADER_BYTES: Final = 1 << 16  # what is read to find the header; NumPy's own are 128 bytes


def _select(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.endswith(".npy")]


def _open(storage: Storage, name: str, options: CorpusOptions) -> ForeignShard:
    where = storage.location(name)
    size = size_of(storage, name, "it is to be read")
    shape, dtype, start = _header(where, storage.read_range(name, 0, min(size, _HEADER_BYTES)))
    if len(shape) != 1:
        raise SourceError(
            f"{where} has the shape {shape}, and ids are one flat array (n,); save array.reshape(-1), if its rows are "
            "one stream"
        )
    if dtype.kind not in "iu":
        raise SourceError(f"{where} holds {dtype}, and ids are whole numbers; it is no file of tokens")
    expected = start + shape[0] * dtype.itemsize
    if size != expected:
        raise DamagedSourceError(
            f"{where} has {size} bytes, its header states {shape[0]} elements of {dtype.name}, {expected} bytes; copy "
            "it again"
        )
    check_stated_dtype(storage, name, dtype.str, options)
    return ForeignShard(name=name, start=start, tokens=shape[0], dtype=dtype.str)


def _header(where: str, data: bytes) -> tuple[tuple[int, ...], "np.dtype[Any]", int]:
    """Shape, dtype, and where the elements begin; nothing is ever unpickled."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"version {version}, and Dew reads 1.0 and 2.0")
        shape, _, dtype = _HEADERS[version](file)
    except (ValueError, SyntaxError, tokenize.TokenError, RecursionError) as error:
        raise DamagedSourceError(f"{where} is no .npy file that can be read: {error}") from error
    return shape, dtype, file.tell()


NPY: Final = Format(name="npy", sign="x.npy with NumPy's header", select=_select, open=_open)
