"""What a collection of images is like, from the first bytes of its files: for `dew peek --stats`."""

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from dew.data.errors import DewDataError
from dew.data.pixels import ImageHeader
from dew_media.files.collection import MediaFiles
from dew_media.images.sizes import header_of

MOST: Final = 10_000
"""Images that are looked at; of a larger collection as many, spread evenly over it."""

_THREADS: Final = 4
_SHOWN_SIZES: Final = 20
_RATIOS: Final = (
    ("1:3 and taller", 1 / 2.5),
    ("1:2", 0.585),
    ("2:3", 0.7085),
    ("3:4", 0.866),
    ("1:1", 1 / 0.866),
    ("4:3", 1 / 0.7085),
    ("3:2", 1.6389),
    ("16:9", 1.886),
    ("2:1", 2.5),
    ("3:1 and wider", math.inf),
)
"""Proportions, width to height, and the ratio up to which each reaches."""


def statistics_of(files: MediaFiles) -> dict[str, dict[str, int]]:
    """Name of a table -> label -> how many images; of images that cannot be read the reason is counted."""
    spread = np.linspace(0, len(files) - 1, min(len(files), MOST)).astype(np.int64)
    chosen: list[int] = np.unique(spread).tolist()
    with ThreadPoolExecutor(_THREADS) as threads:
        headers = list(threads.map(functools.partial(_header, files), chosen))
    readable = [header for header in headers if header is not None]
    sizes = Counter(f"{header.width} x {header.height}" for header in readable)
    shown = dict(sizes.most_common(_SHOWN_SIZES))
    if others := len(readable) - sum(shown.values()):
        shown[f"{len(sizes) - len(shown)} other sizes"] = others
    tables = {
        "images": {"in the collection": len(files), "looked at": len(chosen), "unreadable": headers.count(None)},
        "format": _counted(header.format for header in readable),
        "pixel mode": _counted(header.mode for header in readable),
        "width x height": shown,
        "proportions": _histogram(readable),
    }
    if files.has_labels:
        tables["label"] = _labels(files, chosen)
    return tables


def _header(files: MediaFiles, index: int) -> ImageHeader | None:
    """None where it is damaged: what is wrong with it is for `dew images verify` to say."""
    try:
        return header_of(files, index)
    except DewDataError:
        return None


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _histogram(headers: list[ImageHeader]) -> dict[str, int]:
    found: Mapping[str, int] = Counter(_proportions(header.width / header.height) for header in headers)
    return {name: found[name] for name, _ in _RATIOS if name in found}


def _proportions(ratio: float) -> str:
    return next(name for name, limit in _RATIOS if ratio <= limit)


def _labels(files: MediaFiles, chosen: list[int]) -> dict[str, int]:
    """The names of the labels, or their numbers where they have none."""
    names = files.label_names
    counts = Counter(label for index in chosen if (label := files.label(index)) is not None)
    return {names[label] if names else str(label): count for label, count in sorted(counts.items())}
