"""Video files: the provider `video`, and the specification of a collection of videos."""

from dew_media.video.audio import AudioOptions
from dew_media.video.options import VideoOptions
from dew_media.video.specs import VideoFolder

__all__ = ["AudioOptions", "VideoFolder", "VideoOptions"]
