"""The plugin of the prefix `images`. This version states the prefix and its options; it reads no data."""

from typing import NoReturn

from dew.data.errors import ProviderError
from dew.data.provider import LoadRequest, Provider, hookimpl
from dew_media.images.options import ImageOptions


def open_split(request: LoadRequest, split: str) -> NoReturn:
    """Refuses: this version of dew-media has no image reader.

    Raises:
        ProviderError: always.
    """
    raise ProviderError(
        f"'images/{request.name}' (split {split!r}) cannot be read: this version of dew-media only states the prefix "
        "'images' and its options; install one that reads data: pip install --upgrade dew-media"
    )


IMAGES = Provider(
    prefix="images",
    summary="image files (this version only states the prefix)",
    options=ImageOptions,
    open=open_split,
)


@hookimpl
def dew_provider() -> Provider:
    """The provider of the prefix `images`."""
    return IMAGES
