"""The `.npy` files of a corpus: one-dimensional, little-endian, with a header of exactly 128 bytes.

The header is what `numpy.save` writes for such an array, so `numpy.load(path, mmap_mode="r")` reads every file; because
its size is fixed, element i of a file lies at byte `128 + i * itemsize`, and a range of a remote file is one request.
"""

import io
import struct
import tokenize
from typing import Final

import numpy as np

HEADER_BYTES: Final = 128  # part of the format: readers compute offsets from it

_PREFIX: Final = b"\x93NUMPY\x01\x00"
_TEXT_BYTES: Final = HEADER_BYTES - len(_PREFIX) - 2


def header(dtype: str, length: int) -> bytes:
    """The 128 bytes before `length` elements of `dtype`, such as `"<u2"`."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({length},), }}"
    return _PREFIX + struct.pack("<H", _TEXT_BYTES) + text.ljust(_TEXT_BYTES - 1).encode("latin1") + b"\n"


def file_bytes(dtype: str, length: int) -> int:
    """Size of a whole file of `length` elements."""
    return HEADER_BYTES + length * np.dtype(dtype).itemsize


def parse_header(data: bytes) -> tuple[str, int]:
    """dtype and length that a file's first 128 bytes state.

    Raises:
        ValueError: they are not the header of a one-dimensional array of a plain type; nothing is ever unpickled.
    """
    if len(data) < HEADER_BYTES or data[: len(_PREFIX)] != _PREFIX:
        raise ValueError(f"no .npy header of version 1.0 and {HEADER_BYTES} bytes, but {data[:10]!r}")
    (size,) = struct.unpack("<H", data[len(_PREFIX) : len(_PREFIX) + 2])
    if size != _TEXT_BYTES:
        raise ValueError(f"a .npy header of {size + len(_PREFIX) + 2} bytes instead of {HEADER_BYTES}")
    try:
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(io.BytesIO(data[len(_PREFIX) : HEADER_BYTES]))
    except (SyntaxError, tokenize.TokenError, RecursionError) as error:  # NumPy's parser is Python's own
        raise ValueError(f"a .npy header that cannot be read: {error}") from error
    if fortran or len(shape) != 1 or dtype.hasobject:
        raise ValueError(f"an array of shape {shape} and dtype {dtype} instead of a flat one of integers")
    return dtype.str, int(shape[0])
