"""Contact sheets and strips of fields that are pictures, drawn by Pillow for sources without a provider of their own.

A field of (rows, H, W, C) uint8 is pictures, one of (rows, T, H, W, C) is clips; C is 1 or 3. Under each stands the id
of its record and what the batch says of it in words or whole numbers.
"""

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from dew.cli.look import flat
from dew.data.provider import Picture, ShowRequest

if TYPE_CHECKING:
    from PIL.Image import Image

_CELL, _SMALLEST = 192, 96  # pixels of a cell's longer side; smaller pictures are magnified by a whole number
_ACROSS = 1200
_MOST_PICTURES, _MOST_CLIPS, _FRAMES, _MOVING_FRAMES = 48, 16, 8, 64
_LINE, _PAD = 15, 8
_BACKGROUND, _INK, _FAINT = (240, 241, 244), (30, 32, 38), (96, 102, 112)
_MILLISECONDS: Final = 100  # of a frame: what was read need not say how long each lasts
_MOST_WORDS: Final = 2  # fields of words or numbers under a picture

Pixels = npt.NDArray[np.uint8]


def sheets(request: ShowRequest) -> list[Picture]:
    """A picture for each field that holds pictures or clips; none where Pillow is absent."""
    fields = [(name, np.asarray(value)) for name, value in flat(request.batch)]
    found = [(name, array) for name, array in fields if _is_pictures(array, 4) or _is_pictures(array, 5)]
    if not found or not _has_pillow():
        return []
    labels = list(_labels(request, fields))
    return [
        _sheet(name, array, labels) if array.ndim == 4 else _clips(name, array, labels, moving=request.moving)
        for name, array in found
    ]


def _is_pictures(array: npt.NDArray[Any], axes: int) -> bool:
    return array.ndim == axes and array.dtype == np.uint8 and array.shape[-1] in (1, 3) and array.size > 0


def _has_pillow() -> bool:
    from importlib.util import find_spec

    return find_spec("PIL") is not None


@attrs.frozen
class _Label:
    """What stands under one picture."""

    record: str
    words: tuple[str, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        return (self.record, *self.words)


def _labels(request: ShowRequest, fields: Sequence[tuple[str, npt.NDArray[Any]]]) -> Iterator[_Label]:
    ids = request.ids
    said = [(name, array) for name, array in fields if array.ndim == 1 and _is_said(array)]
    rows = max((len(array) for _, array in fields if array.ndim), default=0)
    for row in range(rows):
        record = f"row {row}" if ids is None or row >= len(ids) else f"record {ids[row]}"
        yield _Label(record, tuple(_words(name, array[row]) for name, array in said[:_MOST_WORDS] if row < len(array)))


def _is_said(array: npt.NDArray[Any]) -> bool:
    """Whole numbers or text."""
    return array.dtype.kind in "iuUT" or (array.dtype.kind == "O" and all(isinstance(value, str) for value in array))


def _words(name: str, value: Any) -> str:
    text = " ".join(str(value).split())
    return text if isinstance(value, str) else f"{name} {text}"


def _sheet(name: str, pixels: Pixels, labels: Sequence[_Label]) -> Picture:
    shown = pixels[:_MOST_PICTURES]
    page = _grid(shown, [label.lines for label in labels])
    alt = f"Contact sheet of {name}: {_of(len(shown), len(pixels), 'pictures')} of {_size(pixels)}. {_spoken(labels)}"
    return Picture(name=name, media_type="image/png", data=page.png(), alt=alt)


def _grid(pictures: Pixels, texts: Sequence[Sequence[str]]) -> "_Page":
    """Pictures side by side in rows, each with its lines of text."""
    shown = [_scaled(picture, _CELL) for picture in pictures]
    wide, high = max(shown[0].width, _SMALLEST), shown[0].height
    cell = (wide + _PAD, high + _PAD + 4 + _LINE * max(map(len, texts)))
    across = min(len(shown), max(1, (_ACROSS - _PAD) // cell[0]))
    page = _Page((_PAD + across * cell[0], _PAD + -(-len(shown) // across) * cell[1]))
    for number, (picture, text) in enumerate(zip(shown, texts, strict=False)):
        x, y = _PAD + number % across * cell[0], _PAD + number // across * cell[1]
        page.paste(picture, x, y)
        page.lines(text, x, y + high + 2, wide)
    return page


def _clips(name: str, pixels: Pixels, labels: Sequence[_Label], *, moving: bool) -> Picture:
    clips = pixels[:_MOST_CLIPS]
    what = f"{_of(len(clips), len(pixels), 'clips')} of {pixels.shape[1]} frames of {_size(pixels)}"
    if moving:
        alt = f"Moving contact sheet of {name}: {what}. {_spoken(labels)}"
        return Picture(name=name, media_type="image/webp", data=_webp(clips, labels), alt=alt)
    last = pixels.shape[1] - 1
    frames = sorted({round(last * number / (_FRAMES - 1)) for number in range(_FRAMES)})
    cell = min(_CELL, (_ACROSS - _PAD) // len(frames) - _PAD)
    strips = [[_scaled(clip[frame], cell) for frame in frames] for clip in clips]
    wide, high = strips[0][0].size
    tall = high + 2 * _LINE + 8
    page = _Page((_PAD + len(frames) * (wide + _PAD), _PAD + len(strips) * (tall + _PAD)))
    for row, (strip, label) in enumerate(zip(strips, labels, strict=False)):
        y = _PAD + row * (tall + _PAD)
        page.lines((" · ".join(label.lines),), _PAD, y, page.width - 2 * _PAD)
        for column, picture in enumerate(strip):
            x = _PAD + column * (wide + _PAD)
            page.paste(picture, x, y + _LINE + 3)
            page.lines((f"frame {frames[column]}",), x, y + _LINE + high + 5, wide, faint=True)
    alt = f"Strips of {name}, a row a clip: {what}, frames {', '.join(map(str, frames))}. {_spoken(labels)}"
    return Picture(name=name, media_type="image/png", data=page.png(), alt=alt)


def _webp(clips: Pixels, labels: Sequence[_Label]) -> bytes:
    """All clips side by side, in motion."""
    texts = [(label.record,) for label in labels]
    frames = [_grid(clips[:, frame], texts).image for frame in range(min(clips.shape[1], _MOVING_FRAMES))]
    made = io.BytesIO()
    frames[0].save(
        made, "WEBP", save_all=True, append_images=frames[1:], duration=_MILLISECONDS, loop=0, quality=80, method=2
    )
    return made.getvalue()


class _Page:
    """A picture that is drawn on."""

    def __init__(self, size: tuple[int, int]) -> None:
        from PIL import Image, ImageDraw, ImageFont

        self.width = size[0]
        self.image = Image.new("RGB", size, _BACKGROUND)
        self._draw = ImageDraw.Draw(self.image)
        self._font = ImageFont.load_default(12)

    def paste(self, picture: "Image", x: int, y: int) -> None:
        self.image.paste(picture, (x, y))

    def lines(self, lines: Sequence[str], x: int, y: int, width: int, *, faint: bool = False) -> None:
        """Each line cut to `width` pixels; all but the first fainter."""
        for number, line in enumerate(lines):
            ink = _FAINT if faint or number else _INK
            self._draw.text((x, y + number * _LINE), self._cut(line, width), fill=ink, font=self._font)

    def png(self) -> bytes:
        made = io.BytesIO()
        self.image.save(made, "PNG", compress_level=1)
        return made.getvalue()

    def _cut(self, text: str, width: int) -> str:
        text = text[: max(width, 1)]  # no letter is narrower than a pixel
        if self._draw.textlength(text, font=self._font) <= width:
            return text
        while text and self._draw.textlength(text + "...", font=self._font) > width:
            text = text[:-1]
        return text + "..."


def _scaled(frame: Pixels, cell: int) -> "Image":
    """At most `cell` pixels on the longer side; small pictures magnified without blur, so that pixels are seen."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(frame[..., 0] if frame.shape[-1] == 1 else frame)).convert("RGB")
    longer = max(image.size)
    if longer > cell:
        size = [max(1, side * cell // longer) for side in image.size]
        return image.resize((size[0], size[1]), Image.Resampling.LANCZOS)
    times = max(1, min(-(-_SMALLEST // longer), cell // longer))
    return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)


def _of(shown: int, all_of_them: int, what: str) -> str:
    return f"{shown} {what}" if shown == all_of_them else f"the first {shown} of {all_of_them} {what}"


def _size(pixels: Pixels) -> str:
    return f"{pixels.shape[-2]} by {pixels.shape[-3]} pixels"


def _spoken(labels: Sequence[_Label]) -> str:
    return "; ".join(": ".join(label.lines) for label in labels[:_MOST_PICTURES]) + "."
