"""Decoding every image once, ahead of a run, to find those that cannot be: what `exclude=` then leaves out by name."""

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from dew.data.errors import DamagedSourceError, SourceError
from dew.data.loading import cores_here
from dew.data.pixels import MAX_PIXELS, decode_image
from dew_media.files.collection import MediaFiles
from dew_media.files.exclude import BadRecord, Manifest

OnProgress = Callable[[int, int, int], None]
"""`(files done, files in all, bad ones found)`."""

EMPTY: Final = "empty"
NO_IMAGE: Final = "not an image"
DAMAGED: Final = "cut or damaged"
NOT_DECODED: Final = "too large, or of another kind"
NOT_READ: Final = "cannot be read"
CAPTION: Final = "bad caption or label"

_AHEAD: Final = 256  # files handed to the threads at once


def verify_images(
    files: MediaFiles,
    *,
    threads: int | None = None,
    max_pixels: int = MAX_PIXELS,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Read and decode every image of a collection, and its caption and label.

    JPEG has no checksum: what decodes without an error may still show other pixels than were taken.

    Args:
        files: the collection.
        threads: how many images are decoded side by side; None: one a core.
        max_pixels: as for decoding.
        on_progress: told how far it is.

    Raises:
        StorageError: the storage failed, which says nothing about an image.
    """
    bad: list[BadRecord] = []

    def look(index: int) -> BadRecord | None:
        return _look(files, index, max_pixels)

    pool = ThreadPoolExecutor(threads or cores_here(), "dew-verify")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a decoder doubts and still decodes is not what is asked here
            for first in range(0, len(files), _AHEAD):
                some = range(first, min(first + _AHEAD, len(files)))
                bad += [record for record in pool.map(look, some) if record is not None]
                if on_progress is not None:
                    on_progress(some.stop, len(files), len(bad))
    finally:
        pool.shutdown(cancel_futures=True)
    return Manifest(collection=files.stored(), files=len(files), bad=tuple(bad), made_by=_versions())


def _look(files: MediaFiles, index: int, max_pixels: int) -> BadRecord | None:
    """What is wrong with a file, None where it is good; a storage's own failure passes."""
    name, reason = files.name(index), NOT_READ
    try:
        data = files.read(index)
        reason = NO_IMAGE if data else EMPTY
        decode_image(data, name=name, max_pixels=max_pixels)
        reason = CAPTION
        files.captions(index)
        files.label(index)
    except DamagedSourceError as error:
        # Pillow names the format of what it could open and then not read.
        known = reason == NO_IMAGE and _is_recognised(error)
        return BadRecord(key=files.key(index), reason=DAMAGED if known else reason, message=str(error))
    except SourceError as error:
        reason = NOT_DECODED if reason == NO_IMAGE else reason
        return BadRecord(key=files.key(index), reason=reason, message=str(error))
    return None


def _is_recognised(error: DamagedSourceError) -> bool:
    from PIL import UnidentifiedImageError

    return not isinstance(error.__cause__, UnidentifiedImageError)


def _versions() -> dict[str, str]:
    import PIL

    return {"Pillow": PIL.__version__}
