"""The one decoder of still images: encoded bytes -> RGB, `(H, W, 3)` uint8.

Pixels depend on the bytes and on nothing else: whatever is installed, whichever provider read them, the same image
gives the same array. Orientation, colour models, depth and transparency are settled here, once; what cannot be read
right is refused by name. Everything here may run in many threads at once. Needs Pillow (extra `dew-core[images]`).
"""

import functools
import io
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, Final, Literal, NoReturn, TypeAlias, cast, get_args

import attrs
import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.errors import DamagedSourceError, OptionsError, SourceError
from dew.data.imagefile import (
    TooMuchTextError,
    check_strict,
    load_image,
    open_image,
    pillow,
    png_may_turn,
    quiet,
    use_block_pool,
    without_text,
)

Pixels = npt.NDArray[np.uint8]

MAX_PIXELS: Final = 89_478_485
"""Pixels of the largest image that is decoded: 256 MiB of RGB. A bigger one is taken for a decompression bomb."""

WHITE: Final = (255, 255, 255)

Colour: TypeAlias = tuple[int, int, int]
Icc: TypeAlias = Literal["ignore", "srgb"]
"""What becomes of an embedded colour profile: left alone, or its colours converted to sRGB."""

Resample: TypeAlias = Literal["box", "bilinear", "bicubic", "lanczos"]
"""A filter of the resize. All widen when they shrink, so none aliases; `bicubic` is Catmull-Rom's, a = -1/2."""

Engine: TypeAlias = Literal["pillow", "fast"]
"""What resizes: Pillow, or cykooz-resizer (extra `dew-media[fast]`), which differs from Pillow by a few levels."""

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels of an image, which need not be whole."""

Needed: TypeAlias = Callable[[int, int], tuple[int, int]]
"""Upright width and height of an image -> the width and height that it will be resized to."""

_ORIENTATION: Final = 0x0112
_WITH_ALPHA: Final = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_COLOURS: Final = frozenset({"1", "CMYK", "HSV", "L", "LAB", "P", "RGB", "RGBX", "YCbCr"}) | _WITH_ALPHA
_PROFILE_SPACES: Final = {"RGB": "RGB", "L": "GRAY", "CMYK": "CMYK"}

# Stored -> upright: the name of Pillow's transposition, whether the axes swap, and which upright axes are mirrored.
_TURNS: Final = {
    2: ("FLIP_LEFT_RIGHT", False, True, False),
    3: ("ROTATE_180", False, True, True),
    4: ("FLIP_TOP_BOTTOM", False, False, True),
    5: ("TRANSPOSE", True, False, False),
    6: ("ROTATE_270", True, True, False),
    7: ("TRANSVERSE", True, True, True),
    8: ("ROTATE_90", True, False, True),
}


@attrs.frozen(kw_only=True)
class ImageHeader:
    """What the first bytes of an image say.

    Args:
        width, height: in pixels, after the turn that its orientation asks for.
        format: one of `imagefile.FORMATS` (a JPEG of several pictures is `"MPO"`).
        mode: how pixels are stored, in Pillow's words: `"RGB"`, `"L"`, `"P"`, `"CMYK"`, ...
    """

    width: int
    height: int
    format: str
    mode: str


@attrs.frozen(eq=False)
class Upright:
    """A decoded image, turned upright.

    Args:
        image: a `PIL.Image.Image` of mode RGB.
        box: where the picture lies in it; a JPEG decoded at a fraction of its size ends within the last pixels.
    """

    image: Any
    box: Box


def decode_image(
    data: bytes,
    *,
    name: str = "the image",
    background: Colour = WHITE,
    max_pixels: int = MAX_PIXELS,
    icc: Icc = "ignore",
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
        icc: `"srgb"` converts colours by the embedded profile. One that is for other channels than the image has
            says nothing.

    Raises:
        DamagedSourceError: empty, cut, or not an image in one of `imagefile.FORMATS`.
        SourceError: larger than `max_pixels`, with pixels that have no 8-bit meaning (floats, 32-bit integers), or
            with a profile that cannot be used.
        OptionsError: `background`, `max_pixels` or `icc` is out of range.
        ImportError: Pillow is not installed.
    """
    return np.array(upright_image(data, name=name, background=background, max_pixels=max_pixels, icc=icc).image)


def upright_image(
    data: bytes,
    *,
    needed: Needed | None = None,
    name: str = "the image",
    background: Colour = WHITE,
    max_pixels: int = MAX_PIXELS,
    icc: Icc = "ignore",
) -> Upright:
    """What `decode_image` reads, as a Pillow image, before it becomes an array.

    Args:
        data, name, background, max_pixels, icc: see `decode_image`.
        needed: what the image will be resized to. A JPEG is then decoded at the smallest of 1, 1/2, 1/4, 1/8 of its
            size that keeps twice as many pixels each way, which costs less and shows next to no difference.

    Raises:
        As `decode_image`, and whatever `needed` raises.
    """
    check_decoding(background, max_pixels, icc)
    if not data:
        raise DamagedSourceError(f"{name} is empty: 0 bytes; fetch it again, or leave the record out")
    use_block_pool()
    with quiet():
        try:
            return _upright(data, needed, name, background, max_pixels, icc)
        except TooMuchTextError:
            return _upright(without_text(data), needed, name, background, max_pixels, icc)


def read_header(file: bytes | BinaryIO, *, name: str = "the image") -> ImageHeader:
    """Size, format and mode of an image, without decoding its pixels.

    Args:
        file: the file's bytes, or a seekable file, of which only the first parts are read.
        name: how messages call the image.

    Raises:
        DamagedSourceError: not an image in one of `imagefile.FORMATS`.
        SourceError: larger than `MAX_PIXELS`.
    """
    if isinstance(file, bytes):
        if not file:
            raise DamagedSourceError(f"{name} is empty: 0 bytes; fetch it again, or leave the record out")
        file = io.BytesIO(file)
    with quiet():
        try:
            image = open_image(file, name)
        except TooMuchTextError:
            file.seek(0)
            file = io.BytesIO(without_text(file.read()))
            image = open_image(file, name)
        _check_size(image, name, MAX_PIXELS)
        # Pillow has turned a TIFF's size by now. Of a PNG the orientation may stand after the pixels, and Pillow would
        # decode them to come to it.
        settled = image.format == "TIFF" or (image.format == "PNG" and not png_may_turn(file))
        turn = None if settled else _TURNS.get(_orientation(image))
        width, height = image.size[::-1] if turn is not None and turn[1] else image.size
        return ImageHeader(width=width, height=height, format=str(image.format), mode=str(image.mode))


def resized(
    image: Any,
    size: tuple[int, int],
    *,
    box: Box,
    resample: Resample = "bicubic",
    engine: Engine = "pillow",
) -> Any:
    """The part `box` of an RGB Pillow image as one of `size` (width, height), in one resampling."""
    whole = tuple(int(edge) for edge in box)
    if whole == box and (whole[2] - whole[0], whole[3] - whole[1]) == size:
        return image.crop(whole)
    if engine == "fast":
        return _fast_resized(image, size, box, resample)
    return image.resize(size, pillow().Resampling[resample.upper()], box=box)


def check_decoding(background: object, max_pixels: int, icc: object) -> None:
    """Refuses options of `decode_image` that are out of range.

    Raises:
        OptionsError: names the option and its value.
    """
    levels = cast("tuple[object, ...]", background) if isinstance(background, tuple) else ()
    if len(levels) != 3 or not all(isinstance(level, int) and 0 <= level <= 255 for level in levels):
        raise OptionsError(f"background is (red, green, blue), ints from 0 to 255, got {background!r}")
    if checks.check_count("max_pixels", max_pixels) > MAX_PIXELS:
        raise OptionsError(f"max_pixels is at most {MAX_PIXELS}, got {max_pixels}")
    if icc not in get_args(Icc):
        raise OptionsError(f'icc must be "ignore" or "srgb", got {icc!r}')


def check_engine(engine: object) -> None:
    """Refuses an engine that there is not, or that is not installed.

    Raises:
        OptionsError: not one of `Engine`.
        ImportError: `"fast"` without cykooz-resizer; says what to install.
    """
    if engine not in get_args(Engine):
        raise OptionsError(f'engine must be "pillow" or "fast", got {engine!r}')
    if engine == "fast":
        _fast_library()


def _upright(data: bytes, needed: Needed | None, name: str, background: Colour, max_pixels: int, icc: Icc) -> Upright:
    image = open_image(io.BytesIO(data), name)
    _check_size(image, name, max_pixels)
    check_strict(name)
    if image.format not in ("JPEG", "MPO"):
        load_image(image, name)
        # Only now: of a PNG the orientation may stand after the pixels, and asking for it would hide their damage.
        return _turned(_in_rgb(image, data, name, background, icc), _TURNS.get(_orientation(image)), None)
    turn = _TURNS.get(_orientation(image))
    extent = None if needed is None else _drafted(image, turn, needed)
    load_image(image, name)
    return _turned(_in_rgb(image, data, name, background, icc), turn, extent)


def _check_size(image: Any, name: str, max_pixels: int) -> None:
    width, height = image.size
    if width * height <= max_pixels:
        return
    if width * height > MAX_PIXELS:
        raise SourceError(
            f"{name} is taken for a decompression bomb: {width} x {height} pixels, at most {MAX_PIXELS} are decoded; "
            "shrink it"
        )
    raise SourceError(
        f"{name} has {width} x {height} pixels, at most {max_pixels} are decoded; "
        "shrink it, or raise max_pixels if it is meant to be that large"
    )


# Orientation


def _orientation(image: Any) -> int:
    """1 to 8; an orientation that cannot be read says nothing, and is 1."""
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:
        return 1
    return found if isinstance(found, int) else 1


def _turned(image: Any, turn: tuple[str, bool, bool, bool] | None, extent: tuple[float, float] | None) -> Upright:
    """Turned or mirrored as the camera noted."""
    width, height = image.size if extent is None else extent
    if turn is None:
        return Upright(image, (0, 0, width, height))
    name, swap, mirror_x, mirror_y = turn
    turned = image.transpose(pillow().Transpose[name])
    if swap:
        width, height = height, width
    left, top = (turned.width - width) * mirror_x, (turned.height - height) * mirror_y
    return Upright(turned, (left, top, left + width, top + height))


def _drafted(image: Any, turn: tuple[str, bool, bool, bool] | None, needed: Needed) -> tuple[float, float] | None:
    """Tells the JPEG decoder to scale; the size of the picture in what it will decode, which is rounded up."""
    swap = turn is not None and turn[1]
    width, height = needed(*(image.size[::-1] if swap else image.size))
    if swap:
        width, height = height, width
    drafted = image.draft(None, (2 * width, 2 * height))
    return None if drafted is None else drafted[1][2:]


# Colours


def _in_rgb(image: Any, data: bytes, name: str, background: Colour, icc: Icc) -> Any:
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        key = image.info.get("transparency")
        levels = np.asarray(image)
        colours = pillow().fromarray((levels >> 8).astype(np.uint8))
        colours.info = {"icc_profile": image.info.get("icc_profile")}
        rgb = _colours_in_rgb(colours, name, icc)
        return rgb if key is None else _keyed(rgb, levels == key, background)
    if image.mode not in _COLOURS:
        _refuse_mode(image, name)
    key = image.info.get("transparency")
    if image.mode in _WITH_ALPHA or (image.mode == "P" and key is not None):
        return _over(image, name, background, icc)
    rgb = _colours_in_rgb(image, name, icc)
    if key is None:
        return rgb
    return _keyed(rgb, _is_key(image, data, key), background)


def _refuse_mode(image: Any, name: str) -> NoReturn:
    raise SourceError(
        f"{name} has pixels of the kind {image.mode!r} ({image.format}), which have no 8-bit meaning; "
        "convert it to 8 or 16 bits a channel"
    )


def _colours_in_rgb(image: Any, name: str, icc: Icc) -> Any:
    """An image without transparency as RGB."""
    profile = image.info.get("icc_profile") if icc == "srgb" else None
    if profile:
        if image.mode not in _PROFILE_SPACES:
            image = image.convert("L" if image.mode == "1" else "RGB")
        try:
            transform = _to_srgb(profile, image.mode)
            if transform is not None:
                return transform.apply(image)
        except (OSError, ValueError, TypeError, _pillow_cms().PyCMSError) as error:
            raise SourceError(
                f"{name} has a colour profile of {len(profile)} bytes that cannot be used: {error}; "
                'read it with icc="ignore"'
            ) from error
    if image.mode == "RGB":
        return image
    plain = image.copy() if "transparency" in image.info else image
    plain.info.pop("transparency", None)  # what it means is ours to say, and Pillow's conversion warns of it
    return plain.convert("RGB")


def _over(image: Any, name: str, background: Colour, icc: Icc) -> Any:
    """An image with alpha, laid over `background`."""
    full = image if image.mode in ("LA", "RGBA") else image.convert("RGBA")
    colours = full.convert("RGB")
    if icc == "srgb" and image.info.get("icc_profile"):
        colours = full.getchannel("L") if full.mode == "LA" else colours
        colours.info["icc_profile"] = image.info["icc_profile"]
        colours = _colours_in_rgb(colours, name, icc)
    canvas = pillow().new("RGB", full.size, background)
    canvas.paste(colours, mask=full.getchannel("A"))
    return canvas


def _is_key(image: Any, data: bytes, key: Any) -> npt.NDArray[np.bool_]:
    """Which pixels (H, W) have the one colour that a PNG or GIF declares transparent."""
    pixels = np.asarray(image)
    if image.format == "PNG":
        bits = data[24]  # of the header: bits a channel, in which the colour is written
        if bits == 16:
            key = tuple(level >> 8 for level in key)  # of 16-bit RGB the high bytes were kept
        elif bits < 8 and image.mode == "L":
            key = key * 255 // ((1 << bits) - 1)
    if image.mode == "1":
        return pixels == bool(key)
    return (pixels == np.array(key)).all(axis=2) if pixels.ndim == 3 else pixels == key


def _keyed(image: Any, transparent: npt.NDArray[np.bool_], background: Colour) -> Any:
    image = image.copy()
    image.paste(background, mask=pillow().fromarray(transparent))
    return image


@functools.lru_cache(maxsize=16)
def _to_srgb(profile: bytes, mode: str) -> Any:
    """A transform of pixels of `mode` to sRGB; None where the profile is for other channels."""
    library = _pillow_cms()
    source = library.ImageCmsProfile(io.BytesIO(profile))
    if source.profile.xcolor_space.strip() != _PROFILE_SPACES[mode]:
        return None
    return library.buildTransform(source, library.createProfile("sRGB"), mode, "RGB")


def _pillow_cms() -> Any:
    from PIL import ImageCms

    return ImageCms


# Resizing


_FAST_FILTERS: Final = {"box": "box", "bilinear": "bilinear", "bicubic": "catmull_rom", "lanczos": "lanczos3"}
_resizers = threading.local()


def _fast_library() -> Any:
    try:
        import cykooz_resizer  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise ImportError(
            "engine=\"fast\" resizes with cykooz-resizer, which is not installed: pip install 'dew-media[fast]', or "
            'use engine="pillow"'
        ) from error
    return cykooz_resizer


def _fast_resized(image: Any, size: tuple[int, int], box: Box, resample: Resample) -> Any:
    library = _fast_library()
    resizer = getattr(_resizers, "own", None)  # it holds buffers, so each thread has its own
    if resizer is None:
        resizer = _resizers.own = library.Resizer()
    left, top, right, bottom = box
    options = library.ResizeOptions(
        resize_alg=library.ResizeAlg.convolution(library.FilterType[_FAST_FILTERS[resample]]),
        crop_box=library.CropBox(left, top, right - left, bottom - top),
        use_alpha=False,
    )
    made = pillow().new("RGB", size)
    resizer.resize_pil(image, made, options)
    return made
