"""Video files: the provider `video`."""

from dew_media.video.options import VideoOptions

__all__ = ["VideoOptions"]
