"""Encoded images -> arrays of the declared channels and dtype, as TensorFlow's decoders would give them.

tensorflow-datasets without TensorFlow hands out what the file holds: four channels where three are declared, 16 bits
cut to their low 8. Here the file's form is converted to the declared one: palettes and grey to colours, colours to grey
where one channel is declared, alpha dropped where none is, 16 bits to their high 8, CMYK to RGB. Like TensorFlow, it
ignores the orientation in a photograph's metadata.
"""

from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from dew.data.errors import SourceError

Array = npt.NDArray[Any]

_UPRIGHT: Final = cv2.IMREAD_IGNORE_ORIENTATION
_WIDEN: Final = 257  # 255 of 8 bits is 65535 of 16


def decode_image(data: bytes, shape: tuple[int | None, ...], dtype: Any) -> Array:
    """An encoded image as `(height, width, channels)`, or `(frames, height, width, channels)` of an animation.

    Args:
        data: a PNG, JPEG, GIF, BMP or WebP file.
        shape: the declared shape; its last entry is the number of channels, 0 for those of the file; four entries are
            an animation.
        dtype: uint8, uint16, or float32 (stored as the four bytes of each value).

    Raises:
        SourceError: it is no image that OpenCV can decode, or has another shape.
    """
    channels = shape[-1]
    if dtype == np.float32:
        image = np.ascontiguousarray(_as_stored(data, 4, np.dtype(np.uint8))).view(np.float32)
    elif len(shape) == 4:
        image = _deepened(_animation(data), dtype)
    elif channels == 3:
        image = _deepened(_read(data, cv2.IMREAD_COLOR_RGB | _UPRIGHT | _depth(dtype)), dtype)
    elif channels == 1:
        image = _deepened(_read(data, cv2.IMREAD_GRAYSCALE | _UPRIGHT | _depth(dtype)), dtype)[..., None]
    else:
        image = np.ascontiguousarray(_as_stored(data, channels or 0, dtype))
    if not fits(image.shape, shape):
        raise SourceError(f"an image is declared as {shown(shape)} and stored as {shown(image.shape)}")
    return image


def fits(found: tuple[int, ...], declared: tuple[int | None, ...]) -> bool:
    """Whether a shape is the declared one, where that says something: 0 channels are those of the file."""
    if len(found) != len(declared):
        return False
    return all(want in (None, 0, got) for want, got in zip(declared, found, strict=True))


def shown(shape: tuple[int | None, ...]) -> str:
    """A shape in words, such as `(?, ?, 3)`."""
    sizes = ["?" if size is None else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _depth(dtype: Any) -> int:
    return cv2.IMREAD_ANYDEPTH if dtype == np.uint16 else 0


def _deepened(image: Array, dtype: Any) -> Array:
    """8 bits as 16 where 16 are declared."""
    return image if image.dtype == dtype else image.astype(dtype) * dtype.type(_WIDEN)


def _as_stored(data: bytes, channels: int, dtype: Any) -> Array:
    """With the channels of the file, then alpha added or split off as declared: 0, 2 or 4 of them."""
    image = _read(data, cv2.IMREAD_UNCHANGED)
    if image.dtype == np.uint16 and dtype == np.uint8:
        image = (image >> 8).astype(np.uint8)
    image = _deepened(image, dtype)
    if image.ndim == 2:
        image = image[..., None]
    if image.shape[-1] >= 3:  # OpenCV has blue first
        image = image[..., [2, 1, 0, 3][: image.shape[-1]]]
    stored = image.shape[-1]
    if channels == 4 and stored in (1, 3):
        opaque = np.full((*image.shape[:2], 1), np.iinfo(dtype).max, dtype)
        return np.concatenate([np.repeat(image, 3 // stored, axis=-1), opaque], axis=-1)
    if channels == 2 and stored == 4:  # grey with alpha, which OpenCV widens to colours
        return image[..., [0, 3]]
    return image


def _animation(data: bytes) -> Array:
    read, frames = cv2.imdecodemulti(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    if not read or not frames:
        raise _unreadable(data)
    return np.stack(frames)


def _read(data: bytes, flags: int) -> Array:
    try:
        image: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise _unreadable(data) from error
    if image is None:
        raise _unreadable(data)
    return image


def _unreadable(data: bytes) -> SourceError:
    return SourceError(f"no image can be decoded from {len(data)} bytes that begin with {data[:8].hex(' ')}")
