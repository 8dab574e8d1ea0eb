"""The pictures of `dew peek video/...`: a strip with a row a clip and the time under each frame, or clips in motion."""

import bisect
import io
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from dew.data.provider import Picture, ShowRequest
from dew_media.video.source import CAPTION, LABEL, VideoSource

if TYPE_CHECKING:
    from PIL.Image import Image

CLIPS: Final = 8
"""Clips of a batch that are shown."""

FRAMES: Final = 8
"""Frames of a clip on a strip: the first, the last, and others evenly between."""

_CELL: Final = 144  # pixels of the longer side of a frame on the strip
_PAD: Final = 8
_LINE: Final = 15
_PAPER, _INK, _FAINT = (250, 250, 250), (25, 25, 30), (110, 115, 125)
_MILLISECONDS: Final = 100  # a frame where its time is unknown

Clips = npt.NDArray[np.uint8]


def show(request: ShowRequest) -> list[Picture]:
    """A PNG strip, or an animated WebP where moving pictures are wanted; none where the batch has no clips."""
    source = request.source if isinstance(request.source, VideoSource) else None
    field = "video" if source is None else source.field
    clips: Clips = np.asarray(request.batch.get(field, ()))
    if clips.ndim != 5 or clips.dtype != np.uint8 or clips.shape[4] != 3 or not clips.size:
        return []
    clips = clips[:CLIPS]
    times = [_times(request, source, row, clips.shape[1]) for row in range(len(clips))]
    names = [_name(request, source, row) for row in range(len(clips))]
    size = f"{clips.shape[1]} frames of {clips.shape[3]} by {clips.shape[2]} pixels"
    if request.moving:
        alt = f"{len(clips)} clips in motion, {size}: {'; '.join(names)}"
        return [Picture(name=field, media_type="image/webp", data=_moving(clips, times), alt=alt)]
    alt = f"Film strip: {len(clips)} clips, a row each, {size}: {'; '.join(names)}"
    return [Picture(name=field, media_type="image/png", data=_strip(clips, times, names), alt=alt)]


def _times(request: ShowRequest, source: VideoSource | None, row: int, frames: int) -> list[float] | None:
    """Seconds from the file's first frame, of each of a clip's `frames`; None where that cannot be told."""
    if source is None or request.ids is None or row >= len(request.ids):
        return None
    rng = None if request.draws is None else request.draws(row)
    table, clip = source.clip(request.ids[row], rng)
    return table.seconds(clip.times).tolist() if len(clip.times) == frames else None


def _name(request: ShowRequest, source: VideoSource | None, row: int) -> str:
    """What stands above a row."""
    batch, ids = request.batch, request.ids
    known = ids is not None and row < len(ids)
    words = [f"record {ids[row]}" if ids is not None and known else f"row {row}"]
    if source is not None and ids is not None and known:
        words.append(source.files.key(ids[row] // (len(source) // len(source.files))))
    if LABEL in batch:
        label = int(batch[LABEL][row])
        names = () if source is None else source.label_names
        words.append(names[label] if label < len(names) else f"label {label}")
    if CAPTION in batch:
        words.append(str(batch[CAPTION][row]))
    return " · ".join(words)


def _strip(clips: Clips, times: list[list[float] | None], names: list[str]) -> bytes:
    from PIL import Image, ImageDraw, ImageFont

    chosen = sorted({round(number * (clips.shape[1] - 1) / (FRAMES - 1)) for number in range(FRAMES)})
    rows = [[_fitted(clip[frame]) for frame in chosen] for clip in clips]
    wide, high = rows[0][0].size
    step = max(wide, 72) + _PAD, high + _PAD + 2 * _LINE
    sheet = Image.new("RGB", (_PAD + len(chosen) * step[0], _PAD + len(rows) * step[1]), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for row, frames in enumerate(rows):
        y = _PAD + row * step[1]
        draw.text((_PAD, y), _shortened(names[row], sheet.width - 2 * _PAD, font), fill=_INK, font=font)
        shown = times[row]
        for column, (frame, image) in enumerate(zip(chosen, frames, strict=True)):
            x = _PAD + column * step[0]
            sheet.paste(image, (x, y + _LINE))
            text = f"frame {frame}" if shown is None else f"{shown[frame]:.3f} s"
            draw.text((x, y + _LINE + high + 1), text, fill=_FAINT, font=font)
    return _saved(sheet, "PNG", compress_level=1)


def _moving(clips: Clips, times: list[list[float] | None]) -> bytes:
    """All clips side by side, at the rate of the first one."""
    from PIL import Image

    across = min(4, len(clips))
    down = -(-len(clips) // across)
    wide, high = _fitted(clips[0, 0]).size
    pictures: list[Image.Image] = []
    for frame in range(clips.shape[1]):
        sheet = Image.new("RGB", (across * (wide + _PAD) + _PAD, down * (high + _PAD) + _PAD), _PAPER)
        for number, clip in enumerate(clips):
            place = _PAD + number % across * (wide + _PAD), _PAD + number // across * (high + _PAD)
            sheet.paste(_fitted(clip[frame]), place)
        pictures.append(sheet)
    first = times[0]
    held = [_MILLISECONDS] * len(pictures)
    if first is not None and len(first) > 1:
        gaps = [max(20, round(1000 * gap)) for gap in np.diff(first).tolist()]
        held = [*gaps, gaps[-1]]
    return _saved(
        pictures[0], "WEBP", save_all=True, append_images=pictures[1:], duration=held, loop=0, quality=80, method=2
    )


def _fitted(pixels: Any) -> "Image":
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(pixels))
    scale = _CELL / max(image.size)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize(size, Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST)


def _shortened(text: str, width: int, font: Any) -> str:
    """One line of at most `width` pixels."""
    line = " ".join(text.split())
    if font.getlength(line) <= width:
        return line
    kept = bisect.bisect(range(len(line)), width, key=lambda letters: font.getlength(line[:letters] + "..."))
    return line[: max(0, kept - 1)] + "..."


def _saved(image: "Image", kind: str, **how: Any) -> bytes:
    made = io.BytesIO()
    image.save(made, kind, **how)
    return made.getvalue()
