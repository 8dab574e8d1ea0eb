"""Widths and heights of a whole collection, from the first bytes of each file: what aspect buckets are planned from."""

import functools
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import numpy.typing as npt

from dew.data.pixels import ImageHeader, read_header
from dew_media.files.collection import MediaFiles

logger = logging.getLogger("dew.media")

_THREADS: Final = 4
_AT_ONCE: Final = 4096  # so that an error, or Ctrl-C, does not wait for the whole collection
_LONG: Final = 20_000  # from so many files on it takes long enough to say that it is being done

Sides = npt.NDArray[np.int64]


def header_of(files: MediaFiles, index: int) -> ImageHeader:
    """Size, format and mode of one image; only the first bytes of its file are read.

    Raises:
        DamagedSourceError, SourceError: it is no image; names it.
    """
    with files.open_file(index) as file:
        return read_header(file, name=files.name(index))


def measured(files: MediaFiles) -> tuple[Sides, Sides]:
    """Widths and heights of all images, turned upright, (n,) int64 each.

    Raises:
        DamagedSourceError, SourceError: one cannot be measured; names it.
    """
    if len(files) >= _LONG:
        logger.info("measuring %d images", len(files))
    widths, heights = np.empty(len(files), np.int64), np.empty(len(files), np.int64)
    for index, (width, height) in enumerate(_sides(files)):
        widths[index], heights[index] = width, height
    return widths, heights


def _sides(files: MediaFiles) -> Iterator[tuple[int, int]]:
    with ThreadPoolExecutor(_THREADS) as threads:
        for start in range(0, len(files), _AT_ONCE):
            some = range(start, min(start + _AT_ONCE, len(files)))
            for header in threads.map(functools.partial(header_of, files), some):
                yield header.width, header.height
