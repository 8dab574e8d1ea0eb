"""The plugin of the prefix `video`. Importing it imports no decoder."""

from typing import TYPE_CHECKING

from dew.data.provider import LoadRequest, Provider, hookimpl
from dew_media.video.options import VideoOptions

if TYPE_CHECKING:
    from dew_media.video.source import VideoSource


def _open(request: LoadRequest, split: str) -> "VideoSource":
    from dew_media.video.opening import open_split

    options: VideoOptions = request.options
    return open_split(request.name, split, options, layout=options.layout)


VIDEO = Provider(
    prefix="video",
    summary="clips of video files in folders and tar shards, with sound, labels and captions",
    options=VideoOptions,
    open=_open,
    cli="dew_media.video.cli:video",
    show="dew_media.video.show:show",
)


@hookimpl
def dew_provider() -> Provider:
    """The provider of the prefix `video`."""
    return VIDEO
