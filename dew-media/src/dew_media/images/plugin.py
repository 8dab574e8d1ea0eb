"""The plugin of the prefix `images`. Importing it imports no decoder."""

from typing import TYPE_CHECKING

from dew.data.provider import LoadRequest, Provider, hookimpl
from dew_media.images.options import ImageOptions

if TYPE_CHECKING:
    from dew_media.images.source import ImageSource


def _open(request: LoadRequest, split: str) -> "ImageSource":
    from dew_media.images.opening import open_split

    options: ImageOptions = request.options
    return open_split(
        request.name, split, options, layout=options.layout, batch=request.batch, validation=request.validation
    )


IMAGES = Provider(
    prefix="images",
    summary="image files in folders, tar shards and parquet, with labels and captions",
    options=ImageOptions,
    open=_open,
    cli="dew_media.images.cli:images",
    show="dew_media.images.show:show",
)


@hookimpl
def dew_provider() -> Provider:
    """The provider of the prefix `images`."""
    return IMAGES
