"""The one decoder of still images: encoded bytes -> RGB, `(H, W, 3)` uint8.

Pixels depend on the bytes and on nothing else: whatever is installed, whichever provider read them, the same image
gives the same array. Orientation, colour models, depth and transparency are settled here, once. Needs Pillow (extra
`dew-core[images]`).
"""

from typing import Any, Final, NoReturn, cast

import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.errors import DamagedSourceError, OptionsError, SourceError

Pixels = npt.NDArray[np.uint8]

FORMATS: Final = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""What is read. Formats that start other programs (EPS) or follow links to other files stay out."""

MAX_PIXELS: Final = 89_478_485
"""Pixels of the largest image that is decoded: 256 MiB of RGB. A bigger one is taken for a decompression bomb."""

_ORIENTATION: Final = 0x0112
_WITH_ALPHA: Final = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_COLOURS: Final = frozenset({"1", "CMYK", "HSV", "L", "LAB", "P", "RGB", "RGBX", "YCbCr"}) | _WITH_ALPHA


def decode_image(
    data: bytes,
    *,
    name: str = "the image",
    background: tuple[int, int, int] = (255, 255, 255),
    max_pixels: int = MAX_PIXELS,
) -> Pixels:
    """The pixels of an encoded image, `(H, W, 3)` uint8, a new array.

    Turned as its EXIF orientation says. Grey, 1-bit, palette, CMYK (Adobe's inverted kind too) and the other colour
    models become RGB; of 16-bit channels the high byte is kept; transparent parts are laid over `background`; of an
    animation the first frame is read.

    Args:
        data: the file's bytes.
        name: how messages call the image.
        background: RGB, 0 to 255 each.
        max_pixels: the largest image (H * W) that is decoded; at most `MAX_PIXELS`.

    Raises:
        DamagedSourceError: empty, cut, or not an image in one of `FORMATS`.
        SourceError: larger than `max_pixels`, or with pixels that have no 8-bit meaning (floats, 32-bit integers).
        OptionsError: `background` or `max_pixels` is out of range.
        ImportError: Pillow is not installed.
    """
    _check_options(background, max_pixels)
    if not data:
        raise DamagedSourceError(f"{name} is empty: 0 bytes; fetch it again, or leave the record out")
    image = _opened(data, name)
    try:
        width, height = image.size
        if width * height > max_pixels:
            raise SourceError(
                f"{name} has {width} x {height} pixels, at most {max_pixels} are decoded; "
                "shrink it, or raise max_pixels if it is meant to be that large"
            )
        return _pixels(image, name, background)
    finally:
        image.close()


def _check_options(background: object, max_pixels: int) -> None:
    levels = cast("tuple[object, ...]", background) if isinstance(background, tuple) else ()
    if len(levels) != 3 or not all(isinstance(level, int) and 0 <= level <= 255 for level in levels):
        raise OptionsError(f"background is (red, green, blue), ints from 0 to 255, got {background!r}")
    if checks.check_count("max_pixels", max_pixels) > MAX_PIXELS:
        raise OptionsError(f"max_pixels is at most {MAX_PIXELS}, got {max_pixels}")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading images needs Pillow 12 or newer: pip install 'dew-core[images]'") from error
    return Image


def _opened(data: bytes, name: str) -> Any:
    import io

    library = _pillow()
    try:
        return library.open(io.BytesIO(data), formats=FORMATS)
    except (library.DecompressionBombError, library.DecompressionBombWarning) as error:
        raise SourceError(f"{name} is taken for a decompression bomb: {error}; shrink it") from error
    except Exception as error:
        raise DamagedSourceError(
            f"{name} is no image that can be read ({len(data)} bytes, the first are {data[:12]!r}); formats read are "
            f"{', '.join(FORMATS)}: convert it, or leave the record out"
        ) from error


def _pixels(image: Any, name: str, background: tuple[int, int, int]) -> Pixels:
    try:
        image.load()
    except Exception as error:
        raise DamagedSourceError(
            f"{name} is cut or damaged ({image.format}, {image.width} x {image.height}): {error}; fetch it again"
        ) from error
    turned = _upright(image)
    if turned.mode.startswith("I;16"):
        return np.repeat((np.asarray(turned) >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    if turned.mode not in _COLOURS:
        _refuse_mode(turned, name)
    if turned.mode in _WITH_ALPHA or "transparency" in turned.info:
        return _over(turned, background)
    return np.array(turned if turned.mode == "RGB" else turned.convert("RGB"))


def _refuse_mode(image: Any, name: str) -> NoReturn:
    raise SourceError(
        f"{name} has pixels of the kind {image.mode!r} ({image.format}), which have no 8-bit meaning; "
        "convert it to 8 or 16 bits a channel"
    )


def _upright(image: Any) -> Any:
    """Turned or mirrored as the camera noted; an orientation that cannot be read says nothing."""
    turns = _pillow().Transpose
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:
        return image
    turn = {
        2: turns.FLIP_LEFT_RIGHT,
        3: turns.ROTATE_180,
        4: turns.FLIP_TOP_BOTTOM,
        5: turns.TRANSPOSE,
        6: turns.ROTATE_270,
        7: turns.TRANSVERSE,
        8: turns.ROTATE_90,
    }.get(orientation)
    return image if turn is None else image.transpose(turn)


def _over(image: Any, background: tuple[int, int, int]) -> Pixels:
    pixels = np.array(image.convert("RGBA")).astype(np.uint32)
    colour, alpha = pixels[..., :3], pixels[..., 3:]
    mixed = colour * alpha + np.array(background, np.uint32) * (255 - alpha)
    return ((mixed + 127) // 255).astype(np.uint8)
