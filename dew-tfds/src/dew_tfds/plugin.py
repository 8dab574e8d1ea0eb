"""The plugin of the prefix `tfds`. This version states the prefix and its options; it reads no data."""

from typing import NoReturn

from dew.data.errors import ProviderError
from dew.data.provider import LoadRequest, Provider, hookimpl
from dew_tfds.options import TFDSOptions


def open_split(request: LoadRequest, split: str) -> NoReturn:
    """Refuses: this version of dew-tfds has no reader.

    Raises:
        ProviderError: always.
    """
    raise ProviderError(
        f"'tfds/{request.name}' (split {split!r}) cannot be read: this version of dew-tfds only states the prefix "
        "'tfds' and its options; install one that reads data: pip install --upgrade dew-tfds"
    )


TFDS = Provider(
    prefix="tfds",
    summary="datasets prepared by tensorflow-datasets (this version only states the prefix)",
    options=TFDSOptions,
    open=open_split,
    needs_preprocess=True,
)


@hookimpl
def dew_provider() -> Provider:
    """The provider of the prefix `tfds`."""
    return TFDS
