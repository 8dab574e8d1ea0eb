"""The plugin of the prefix `video`. This version states the prefix and its options; it reads no data."""

from typing import NoReturn

from dew.data.errors import ProviderError
from dew.data.provider import LoadRequest, Provider, hookimpl
from dew_media.video.options import VideoOptions


def open_split(request: LoadRequest, split: str) -> NoReturn:
    """Refuses: this version of dew-media has no video reader.

    Raises:
        ProviderError: always.
    """
    raise ProviderError(
        f"'video/{request.name}' (split {split!r}) cannot be read: this version of dew-media only states the prefix "
        "'video' and its options; install one that reads data: pip install --upgrade dew-media"
    )


VIDEO = Provider(
    prefix="video",
    summary="video files (this version only states the prefix)",
    options=VideoOptions,
    open=open_split,
)


@hookimpl
def dew_provider() -> Provider:
    """The provider of the prefix `video`."""
    return VIDEO
