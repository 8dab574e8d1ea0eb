"""What a collection of videos is like, as its index knows it: for `dew peek --stats`. Nothing is decoded."""

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Final

import numpy as np

from dew_media.files.collection import MediaFiles
from dew_media.video.frames import FrameTable
from dew_media.video.index import VideoIndex

MOST: Final = 10_000
"""Videos that are looked at; of a larger collection as many, spread evenly over it."""

_SHOWN: Final = 20
_LENGTHS: Final = (1, 2, 5, 10, 30, 60, 300, 1800)
_UNEVEN: Final = 0.01  # of the mean step between frames, or a tick


def statistics_of(files: MediaFiles, index: VideoIndex) -> dict[str, dict[str, int]]:
    """Name of a table -> label -> how many videos."""
    spread = np.linspace(0, len(files) - 1, min(len(files), MOST)).astype(np.int64)
    chosen: list[int] = np.unique(spread).tolist()
    seen = [_Seen(index.table(files.key(at))) for at in chosen]
    made = {
        "videos": {"in the collection": len(files), "looked at": len(chosen)},
        "seconds": {label: count for label in _LABELS if (count := sum(one.length == label for one in seen))},
        "width x height": _most(one.size for one in seen),
        "frames a second": _most(one.rate for one in seen),
        "codec": _most(one.codec for one in seen),
        "sound": _most(one.sound for one in seen),
        "a key frame every ... frames": _most(one.group for one in seen),
    }
    if files.has_labels:
        names = files.label_names
        numbers = Counter(files.label(at) for at in chosen)
        made["label"] = _most(
            names[number] if number is not None and number < len(names) else str(number)
            for number in numbers.elements()
        )
    return made


class _Seen:
    """What is counted of one video."""

    def __init__(self, table: FrameTable) -> None:
        steps = np.diff(table.times)
        lasts = float((table.end - int(table.times[0])) * table.time_base)
        width, height = table.size()
        uneven = len(steps) > 0 and int(steps.max() - steps.min()) > max(1, _UNEVEN * float(steps.mean()))
        self.length = _LABELS[int(np.searchsorted(_LENGTHS, lasts, side="right"))]
        self.size = f"{width} x {height}"
        self.rate = f"{table.rate:.2f}".rstrip("0").rstrip(".") + (" in the mean, uneven" if uneven else "")
        self.codec = table.codec
        self.sound = "none" if table.sound is None else f"{table.sound.codec}, {table.sound.rate} Hz"
        self.group = str(round(table.packets.shape[1] / max(1, len(table.keys))))


def _labels() -> tuple[str, ...]:
    between = [f"{low} to {high}" for low, high in itertools.pairwise(_LENGTHS)]
    return (f"under {_LENGTHS[0]}", *between, f"{_LENGTHS[-1]} and more")


_LABELS: Final = _labels()


def _most(words: Iterable[str]) -> dict[str, int]:
    """The most frequent first, and how many others there are."""
    counts = Counter(words)
    shown = dict(counts.most_common(_SHOWN))
    if others := sum(counts.values()) - sum(shown.values()):
        shown[f"{len(counts) - len(shown)} others"] = others
    return shown
