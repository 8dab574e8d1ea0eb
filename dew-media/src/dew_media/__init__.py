"""Dew's providers `images` and `video`. Importing it imports no decoder."""

from dew_media.images import ImageOptions
from dew_media.video import VideoOptions

__all__ = ["ImageOptions", "VideoOptions"]
