"""Encoded images, opened by Pillow as far as their header, and loaded whole or refused: what `dew.data.pixels` reads.

Here stand the ways in which Pillow's own defaults do not fit a training run: warnings out of every thread, files that
it refuses for the length of their text, damage that it can be told to overlook.
"""

import contextlib
import functools
import io
import os
import sys
import threading
import warnings
import zlib
from collections.abc import Generator, Iterator
from typing import Any, BinaryIO, Final, cast

from dew.data.errors import DamagedSourceError, DewDataError, SourceError

FORMATS: Final = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "JPEG2000", "PPM")
"""What is read. Formats that start other programs (EPS) or follow links to other files stay out."""

# Text that a PNG carries is no part of its picture; Pillow refuses files with more of it than this.
_LONGEST_TEXT: Final = 1 << 16
_TEXTS: Final = (b"iCCP", b"iTXt", b"tEXt", b"zTXt")


class TooMuchTextError(Exception):
    """Pillow refuses a PNG for the length of its text, or of its profile; read it `without_text`."""


def open_image(file: BinaryIO, name: str) -> Any:
    """A Pillow image of which the header is read.

    Raises:
        DamagedSourceError: not an image in one of `FORMATS`.
        SourceError: twice as large as Pillow's own limit.
        TooMuchTextError: see there.
    """
    library = pillow()
    try:
        return library.open(file, formats=FORMATS)
    except (DewDataError, MemoryError):  # of the file's own reading
        raise
    except library.DecompressionBombError as error:
        raise SourceError(f"{name} is taken for a decompression bomb: {error}; shrink it") from error
    except Exception as error:
        _check_text(error)
        file.seek(0)
        start = file.read(12)
        raise DamagedSourceError(
            f"{name} is no image that can be read ({file.seek(0, os.SEEK_END)} bytes, the first are {start!r}); "
            f"formats read are {', '.join(FORMATS)}: convert it, or leave the record out"
        ) from error


def pillow() -> Any:
    """The module `PIL.Image`.

    Raises:
        ImportError: Pillow is not installed; says what to install.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading images needs Pillow 12 or newer: pip install 'dew-core[images]'") from error
    return Image


@functools.cache
def use_block_pool() -> None:
    """Lets Pillow keep 4 blocks of memory, unless its own variable says how many: new ones cost page faults."""
    library = pillow().core
    if "PILLOW_BLOCKS_MAX" not in os.environ and library.get_blocks_max() == 0:
        library.set_blocks_max(4)


def check_strict(name: str) -> None:
    """Refuses to read while Pillow is told to make pictures of cut files.

    Raises:
        SourceError: it is.
    """
    from PIL import ImageFile

    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise SourceError(
            f"{name} is not read, because PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set: cut files would become grey or "
            "black pictures; set it to False, and leave cut files out"
        )


def load_image(image: Any, name: str) -> None:
    """Decodes the whole image.

    Raises:
        DamagedSourceError: it is cut or damaged.
        TooMuchTextError: see there.
    """
    try:
        image.load()
    except MemoryError:
        raise
    except Exception as error:
        _check_text(error)
        raise DamagedSourceError(
            f"{name} is cut or damaged ({image.format}, {image.width} x {image.height}): {error}; fetch it again"
        ) from error


# Warnings


class _Decoding:
    """The module of a warnings filter: it fits every module, in threads that are decoding.

    `warnings.catch_warnings` changes what all threads see; this does not.
    """

    def match(self, _module: str) -> bool:
        return getattr(_threads, "decoding", False)


_threads = threading.local()
_filters_lock = threading.Lock()
_QUIET: Final[Any] = ("ignore", None, Warning, _Decoding(), 0)

# From Python 3.14 on, and by default where there is no GIL, each thread can have filters of its own.
_OWN_FILTERS: Final[bool] = bool(getattr(sys.flags, "context_aware_warnings", False))


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """No warning of Pillow comes out of this thread: what matters is refused, and the rest is no user's business."""
    if _OWN_FILTERS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
        return
    filters = cast("list[Any]", warnings.filters)
    if not filters or filters[0] is not _QUIET:
        with _filters_lock:
            filters[:] = [_QUIET, *(entry for entry in filters if entry is not _QUIET)]
    _threads.decoding = True
    try:
        yield
    finally:
        _threads.decoding = False


# PNG's chunks


def _check_text(error: Exception) -> None:
    """Raises `TooMuchTextError` where Pillow refused a file for the text in it."""
    if isinstance(error, ValueError) and "MAX_TEXT" in str(error):
        raise TooMuchTextError from error


def _png_chunks(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Kind, start and length (with header and checksum) of each chunk of a PNG, as far as they go."""
    position = 8
    while True:
        file.seek(position)
        header = file.read(8)
        if len(header) < 8:
            return
        length = int.from_bytes(header[:4], "big") + 12
        yield header[4:], position, length
        position += length


def png_may_turn(file: BinaryIO) -> bool:
    """Whether a PNG has a chunk in which an orientation can stand."""
    return any(kind == b"eXIf" or kind in _TEXTS for kind, _, _ in _png_chunks(file))


def without_text(data: bytes) -> bytes:
    """A PNG without its long texts and profiles."""
    kept = [data[:8]]
    for kind, start, length in _png_chunks(io.BytesIO(data)):
        if kind not in _TEXTS or _unpacked_length(kind, data[start + 8 : start + length - 4]) < _LONGEST_TEXT:
            kept.append(data[start : start + length])
    return b"".join(kept)


def _unpacked_length(kind: bytes, body: bytes) -> int:
    """How long a text is, counted up to `_LONGEST_TEXT`; one that cannot be unpacked is as long as that."""
    after_name = body.find(b"\0") + 1
    start = after_name + 1
    if kind == b"iTXt":
        after_language = body.find(b"\0", after_name + 2) + 1
        start = body.find(b"\0", after_language) + 1
    if kind == b"tEXt" or (kind == b"iTXt" and body[after_name : after_name + 1] == b"\0"):
        return len(body)
    try:
        return len(zlib.decompressobj().decompress(body[start:], _LONGEST_TEXT))
    except zlib.error:
        return _LONGEST_TEXT
