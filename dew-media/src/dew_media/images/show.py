"""The contact sheet of `dew peek images/...`: every picture with its record, its file, its class and its caption."""

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dew.data.provider import Picture, ShowRequest
from dew_media.images.source import CAPTION, IMAGE, LABEL, ImageSource

if TYPE_CHECKING:
    from PIL.Image import Image

MOST: Final = 64
"""Pictures of a batch that are shown."""

_CELL: Final = 224  # pixels of the longer side of a picture on the sheet
_WIDTH: Final = 1200
_PAD: Final = 10
_LINE: Final = 15
_LETTERS: Final = 36  # of a line under a picture, about as many as fit
_CAPTION_LINES: Final = 3
_PAPER, _INK, _FAINT = (250, 250, 250), (25, 25, 30), (110, 115, 125)


def show(request: ShowRequest) -> list[Picture]:
    """One contact sheet of the first pictures of the batch, as a PNG; none where the batch has no images."""
    images = np.asarray(request.batch.get(IMAGE, ()))
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[3] != 3 or not images.size:
        return []
    count = min(len(images), MOST)
    texts = [_lines(request, row) for row in range(count)]
    height, width = images.shape[1:3]
    more = f" of {len(images)}" if count < len(images) else ""
    alt = f"Contact sheet: {count}{more} pictures of {width} by {height} pixels. " + "; ".join(
        ", ".join(lines) for lines in texts
    )
    data = _png(_sheet([_fitted(image) for image in images[:count]], texts))
    return [Picture(name=IMAGE, media_type="image/png", data=data, alt=alt)]


def _lines(request: ShowRequest, row: int) -> list[str]:
    """What stands under a picture; the first line is the record."""
    batch, ids, source = request.batch, request.ids, request.source
    known = ids is not None and row < len(ids)
    lines = [f"record {ids[row]}" if ids is not None and known else f"row {row}"]
    if isinstance(source, ImageSource) and ids is not None and known:
        lines.append(_tail(source.files.key(ids[row])))
    if LABEL in batch:
        label = int(batch[LABEL][row])
        names = source.label_names if isinstance(source, ImageSource) else ()
        lines.append(names[label] if label < len(names) else f"label {label}")
    if CAPTION in batch:
        caption = textwrap.wrap(str(batch[CAPTION][row]), _LETTERS, max_lines=_CAPTION_LINES, placeholder=" ...")
        lines += caption or ["(empty caption)"]
    return lines


def _tail(key: str) -> str:
    """The end of a name, where files differ."""
    return key if len(key) <= _LETTERS else "..." + key[3 - _LETTERS :]


def _fitted(pixels: Any) -> "Image":
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(pixels))
    scale = _CELL / max(image.size)
    if scale >= 2:  # tiny pictures are magnified by a whole number and without blur, so that their pixels are seen
        return image.resize((image.width * int(scale), image.height * int(scale)), Image.Resampling.NEAREST)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize(size, Image.Resampling.LANCZOS)


def _sheet(images: "Sequence[Image]", texts: Sequence[Sequence[str]]) -> "Image":
    from PIL import Image, ImageDraw, ImageFont

    wide, high = images[0].size
    wide = max(wide, _CELL)
    cell = wide + _PAD, high + _PAD + 4 + _LINE * max(map(len, texts))
    across = min(len(images), (_WIDTH - _PAD) // cell[0])
    sheet = Image.new("RGB", (_PAD + across * cell[0], _PAD + -(-len(images) // across) * cell[1]), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for number, (image, lines) in enumerate(zip(images, texts, strict=True)):
        x, y = _PAD + number % across * cell[0], _PAD + number // across * cell[1]
        sheet.paste(image, (x, y))
        for at, line in enumerate(lines):
            draw.text((x, y + high + 4 + at * _LINE), line, fill=_FAINT if at else _INK, font=font)
    return sheet


def _png(image: "Image") -> bytes:
    made = io.BytesIO()
    image.save(made, "PNG", compress_level=1)
    return made.getvalue()
