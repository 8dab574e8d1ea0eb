"""The plugin of the prefix `tfds`. Importing it imports no reader."""

from typing import TYPE_CHECKING

from dew.data.provider import LoadRequest, Provider, hookimpl
from dew_tfds.options import TFDSOptions

if TYPE_CHECKING:
    from dew_tfds.source import TFDSSource


def _open(request: LoadRequest, split: str) -> "TFDSSource":
    from dew_tfds.source import open_split

    return open_split(request.name, split, request.options)


TFDS = Provider(
    prefix="tfds",
    summary="datasets prepared by tensorflow-datasets, read without TensorFlow",
    options=TFDSOptions,
    open=_open,
    needs_preprocess=True,
    cli="dew_tfds.cli:tfds",
)


@hookimpl
def dew_provider() -> Provider:
    """The provider of the prefix `tfds`."""
    return TFDS
