"""Compressed files as streams of pieces: several members one after the other, bounded memory, and no silent end.

Each decompressor is fed small pieces, so that what comes out of one is bounded whatever the file says of itself; a file
that ends inside a member is an error.
"""

import importlib
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from dew.data.errors import OptionsError

_OUTPUT: Final = 4 << 20
_ZSTD_INPUT: Final = 8 << 10  # a frame of repetitions grows by up to 2^15
_XZ_MEMORY: Final = 256 << 20
_WINDOW: Final = 1 << 27

Pieces = Iterator[bytes]


def decompressed(pieces: Iterable[bytes], compression: str | None) -> Pieces:
    """The bytes behind `pieces` of a file, in pieces of a few MiB.

    Raises:
        ValueError: the data is damaged or cut; the caller names the file.
        OptionsError: zstd, and the package for it is not installed.
    """
    return iter(pieces) if compression is None else _READERS[compression](pieces)


def _gzip(pieces: Iterable[bytes]) -> Pieces:
    member: Any = None
    for piece in pieces:
        while piece:
            if member is None:
                piece = piece.lstrip(b"\0")  # padding between members, as tapes leave it
                if not piece:
                    break
                member = zlib.decompressobj(31)
            try:
                data = member.decompress(piece, _OUTPUT)
            except zlib.error as error:
                raise ValueError(f"is no gzip file, or a damaged one: {error}") from error
            if data:
                yield data
            piece = member.unconsumed_tail or member.unused_data
            if member.eof:
                member = None
    while member is not None and not member.eof:
        data = member.decompress(member.unconsumed_tail, _OUTPUT)
        if not data:
            raise ValueError("is cut: it ends inside a gzip member")
        yield data


def _xz(pieces: Iterable[bytes]) -> Pieces:
    stream: lzma.LZMADecompressor | None = None
    for piece in pieces:
        while piece or (stream is not None and not stream.needs_input and not stream.eof):
            if stream is None:
                piece = piece.lstrip(b"\0")
                if not piece:
                    break
                stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
            try:
                data = stream.decompress(piece, _OUTPUT)
            except lzma.LZMAError as error:
                raise ValueError(f"is no xz file, or a damaged one: {error}") from error
            if data:
                yield data
            piece = b""
            if stream.eof:
                piece, stream = stream.unused_data, None
    if stream is not None:
        raise ValueError("is cut: it ends inside an xz stream")


def _zstd(pieces: Iterable[bytes]) -> Pieces:
    try:
        zstandard: Any = importlib.import_module("zstandard")
    except ImportError as error:
        raise OptionsError('files in .zst need the package zstandard: pip install "dew-core[prepare]"') from error
    frame: Any = None
    for whole in pieces:
        for start in range(0, len(whole), _ZSTD_INPUT):
            piece = whole[start : start + _ZSTD_INPUT]
            while piece:
                frame = frame or zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
                try:
                    data = frame.decompress(piece)
                except zstandard.ZstdError as error:
                    raise ValueError(f"is no zstd file, or a damaged one: {error}") from error
                if data:
                    yield data
                piece = b""
                if frame.eof:
                    piece, frame = frame.unused_data, None
    if frame is not None:
        raise ValueError("is cut: it ends inside a zstd frame")


_READERS: Final[dict[str, Callable[[Iterable[bytes]], Pieces]]] = {"gzip": _gzip, "xz": _xz, "zstd": _zstd}
