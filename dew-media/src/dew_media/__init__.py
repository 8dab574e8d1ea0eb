"""Dew's providers `images` and `video`. Importing it imports no decoder."""

from dew_media.images import ImageFolder, ImageOptions, ImageParquet, ImageTar, OxfordFlowers
from dew_media.video import AudioOptions, VideoFolder, VideoOptions

__all__ = [
    "AudioOptions",
    "ImageFolder",
    "ImageOptions",
    "ImageParquet",
    "ImageTar",
    "OxfordFlowers",
    "VideoFolder",
    "VideoOptions",
]
