"""Geometry: how a picture of any size comes to the size a batch wants. Images and the frames of a clip share it.

A `Geometry` says what is wanted; `plan` turns it, for one width and height, into a `Placement` in whole pixels: the
size the picture is scaled to, the part that is kept, what is padded, whether it is mirrored. All chance is in `plan`,
and comes from the record's own draws: the same record at the same place is cut the same, whoever reads it.
"""

from typing import Any, Final, Literal, TypeAlias, cast, get_args

import attrs
import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.errors import OptionsError, OptionsTypeError, SourceError
from dew.data.pixels import (
    MAX_PIXELS,
    WHITE,
    Box,
    Colour,
    Engine,
    Icc,
    Pixels,
    Resample,
    check_decoding,
    check_engine,
    resized,
    upright_image,
)

GEOMETRY_VERSION: Final = 1

Size: TypeAlias = tuple[int, int]

Fit: TypeAlias = Literal["crop", "squash", "pad", "none"]
"""`"crop"`: scaled to cover the size, and what hangs over is cut off. `"squash"`: scaled to the size, whatever becomes
of the proportions. `"pad"`: scaled to fit into the size, the rest is background. `"none"`: pictures keep their size."""

Crop: TypeAlias = Literal["center", "random"]

_DRAWS: Final = 3  # words of the record's draws that `plan` takes, whatever it needs of them


@attrs.frozen(kw_only=True)
class Placement:
    """Where one picture goes, in whole pixels. Sizes are (width, height), offsets (x, y).

    Args:
        scaled: what the whole picture is scaled to.
        crop: the corner of the part that is kept, within `scaled`.
        kept: the size of that part.
        output: the size that comes out.
        pad: where the part lies within `output`; around it is background.
        flip: mirrored left to right, as the last step.
    """

    scaled: Size
    crop: Size
    kept: Size
    output: Size
    pad: Size
    flip: bool

    def box(self, picture: Box) -> Box:
        """The part that is kept, as left, top, right, bottom in the pixels of an image that holds the picture there."""
        left, top, right, bottom = picture
        (width, height), (x, y), (kept_width, kept_height) = self.scaled, self.crop, self.kept
        across, down = (right - left) / width, (bottom - top) / height
        return (
            left + x * across,
            top + y * down,
            right if x + kept_width == width else left + (x + kept_width) * across,
            bottom if y + kept_height == height else top + (y + kept_height) * down,
        )


def _size(value: Any) -> Any:
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


@attrs.frozen(kw_only=True)
class Geometry:
    """What pictures are brought to.

    Args:
        size: (height, width) in pixels, or one number for a square; None keeps each picture's own size.
        fit: how a picture comes to that size; by default `"crop"`, or `"none"` where there is no `size`.
        crop: which part `fit="crop"` keeps: the middle, or one drawn anew each time a record is read in training.
        resample: the filter. All of them widen when they shrink (no aliasing); there is no nearest neighbour.
        flip: how often a picture is mirrored left to right in training, 0 to 1.
        upscale: False refuses pictures that would have to grow; with `fit="pad"` they keep their size instead.
        background: RGB of padding, and behind transparent parts.
        exact: decodes JPEG at full size, always. Else a picture that shrinks a lot is decoded at 1/2, 1/4 or 1/8,
            with at least twice the pixels that are needed each way.
        engine: `"pillow"`, or `"fast"` (extra `dew-media[fast]`), which differs by a few levels.

    Raises:
        OptionsError, OptionsTypeError: an option is out of range, or does not go with another; names them.
        ImportError: `engine="fast"`, and it is not installed.
    """

    size: Size | None = attrs.field(default=None, converter=_size)
    fit: Fit = attrs.field(default=attrs.Factory(lambda self: "none" if self.size is None else "crop", takes_self=True))
    crop: Crop = "center"
    resample: Resample = "bicubic"
    flip: float = 0.0
    upscale: bool = True
    background: Colour = WHITE
    exact: bool = False
    engine: Engine = "pillow"

    def __attrs_post_init__(self) -> None:
        _check_size(self.size)
        for name, value, known in (
            ("fit", self.fit, get_args(Fit)),
            ("crop", self.crop, get_args(Crop)),
            ("resample", self.resample, get_args(Resample)),
        ):
            if value not in known:
                raise OptionsError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
        for name, flag in (("upscale", self.upscale), ("exact", self.exact)):
            if not isinstance(flag, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise OptionsTypeError(f"{name} must be True or False, got {flag!r}")
        if (self.size is None) != (self.fit == "none"):
            raise OptionsError(
                f"size={self.size!r} and fit={self.fit!r} do not go together: "
                "pictures that keep their size have neither, all others have both"
            )
        if self.crop == "random" and self.fit != "crop":
            raise OptionsError(f'crop="random" has no meaning with fit={self.fit!r}, which cuts nothing off')
        check_flip(self.flip)
        check_decoding(self.background, MAX_PIXELS, "ignore")
        check_engine(self.engine)

    def at_size(self, size: int | Size) -> "Geometry":
        """The same geometry for another (height, width), such as that of an aspect bucket."""
        return attrs.evolve(self, size=size)

    def plan(
        self, width: int, height: int, rng: np.random.Generator | None = None, *, name: str = "the image"
    ) -> Placement:
        """Where a picture of `width` x `height` goes.

        Args:
            width, height: of the picture, turned upright.
            rng: the record's draws; None leaves nothing to chance: the middle, never mirrored. Three 64-bit words are
                taken, always: for x of the crop, y of the crop, and the mirror. So an option changes no other's draw.
            name: how messages call the picture.

        Raises:
            SourceError: the picture would have to grow, and `upscale` is False.
            OptionsTypeError: `rng` draws words of fewer than 64 bits.
        """
        x_word, y_word, flip_word = (None,) * _DRAWS if rng is None else _words(rng)
        random = self.crop == "random"
        scaled = self._scaled(width, height, name)
        output = scaled if self.size is None else (self.size[1], self.size[0])
        kept = min(scaled[0], output[0]), min(scaled[1], output[1])
        return Placement(
            scaled=scaled,
            crop=(
                _offset(scaled[0] - kept[0], x_word if random else None),
                _offset(scaled[1] - kept[1], y_word if random else None),
            ),
            kept=kept,
            output=output,
            pad=((output[0] - kept[0]) // 2, (output[1] - kept[1]) // 2),
            flip=flip_word is not None and flip_word < int(self.flip * (1 << 64)),
        )

    def identity(self) -> dict[str, Any]:
        """Everything that shapes pixels, as JSON values."""
        fields = {field.name: getattr(self, field.name) for field in attrs.fields(Geometry)}
        return {"version": GEOMETRY_VERSION, **{name: _json(value) for name, value in fields.items()}}

    def _scaled(self, width: int, height: int, name: str) -> Size:
        if self.size is None:
            return width, height
        out_height, out_width = self.size
        if self.fit == "squash":
            scaled = out_width, out_height
        elif (width * out_height >= height * out_width) == (self.fit == "crop"):
            # The height decides: to cover the size with a wider picture, or to fit a taller one into it.
            scaled = max(1, _rounded(width * out_height, height)), out_height
        else:
            scaled = out_width, max(1, _rounded(height * out_width, width))
        if self.upscale or (scaled[0] <= width and scaled[1] <= height):
            return scaled
        if self.fit == "pad":
            return width, height
        raise SourceError(
            f"{name} has {width} x {height} pixels and would have to grow to {scaled[0]} x {scaled[1]}; "
            "allow it with upscale=True, or leave it out"
        )


def decode_placed(
    data: bytes,
    *,
    geometry: Geometry,
    rng: np.random.Generator | None = None,
    name: str = "the image",
    max_pixels: int = MAX_PIXELS,
    icc: Icc = "ignore",
) -> Pixels:
    """An encoded image, decoded and brought to its geometry in one resampling: `(H, W, 3)` uint8, a new array.

    Args:
        data: the file's bytes.
        geometry: what it is brought to.
        rng: the record's draws for `Geometry.plan`; None leaves nothing to chance.
        name: how messages call the image.
        max_pixels, icc: see `dew.data.pixels.decode_image`.

    Raises:
        DamagedSourceError, SourceError: the image cannot be read, see `decode_image`; or it would have to grow.
    """
    plans: list[Placement] = []

    def needed(width: int, height: int) -> Size:
        plans.append(geometry.plan(width, height, rng, name=name))
        return plans[0].scaled

    # The plan is made as soon as the size is known, so that a JPEG can be decoded at a fraction of it.
    draft = None if geometry.exact else needed
    options: dict[str, Any] = {"background": geometry.background, "max_pixels": max_pixels, "icc": icc}
    upright = upright_image(data, needed=draft, name=name, **options)
    if not plans:
        needed(upright.image.width, upright.image.height)
    placement = plans[0]
    image = resized(
        upright.image,
        placement.kept,
        box=placement.box(upright.box),
        resample=geometry.resample,
        engine=geometry.engine,
    )
    return _finished(np.asarray(image), placement, geometry.background)


def _finished(kept: Pixels, placement: Placement, background: Colour) -> Pixels:
    """Padded and mirrored, in an array of its own."""
    kept = kept[:, ::-1] if placement.flip else kept
    (width, height), (left, top) = placement.output, placement.pad
    if placement.flip:
        left = width - left - placement.kept[0]
    made = np.empty((height, width, 3), np.uint8)
    if placement.kept != placement.output:
        made[:] = background
    made[top : top + kept.shape[0], left : left + kept.shape[1]] = kept
    return made


def check_flip(flip: object) -> None:
    """Refuses a probability that is none.

    Raises:
        OptionsTypeError, OptionsError: not a number, or not from 0 to 1.
    """
    if isinstance(flip, bool) or not isinstance(flip, int | float):
        raise OptionsTypeError(f"flip must be a probability from 0 to 1, got {flip!r} ({type(flip).__name__})")
    if not 0 <= flip <= 1:
        raise OptionsError(f"flip must be a probability from 0 to 1, got {flip!r}")


def _check_size(size: object) -> None:
    if size is None:
        return
    sides = cast("tuple[object, ...]", size) if isinstance(size, tuple) else ()
    if len(sides) != 2:
        raise OptionsTypeError(f"size must be a side or (height, width) in pixels, got {size!r}")
    height = checks.check_count("the height in size", sides[0])
    width = checks.check_count("the width in size", sides[1])
    if height * width > MAX_PIXELS:
        raise OptionsError(f"size must have at most {MAX_PIXELS} pixels, got {height} x {width}")


def _words(rng: np.random.Generator) -> list[int]:
    """Straight from the bit generator: NumPy may change what a Generator makes of the same words."""
    if isinstance(rng.bit_generator, np.random.MT19937):
        raise OptionsTypeError("rng must draw words of 64 bits, as Philox does; MT19937 draws 32")
    words: npt.NDArray[np.uint64] = rng.bit_generator.random_raw(_DRAWS)
    return words.tolist()


def _offset(room: int, word: int | None) -> int:
    """The middle of 0 to `room`, or any of them, as the word says."""
    return room // 2 if word is None else word * (room + 1) >> 64


def _rounded(numerator: int, denominator: int) -> int:
    """To the nearest integer, halves up."""
    return (2 * numerator + denominator) // (2 * denominator)


def _json(value: object) -> object:
    return list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value
