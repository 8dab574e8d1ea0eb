"""The plugin of the prefix `hf`. This version states the prefix and its options; it reads no data."""

from typing import NoReturn

from dew.data.errors import ProviderError
from dew.data.provider import LoadRequest, Provider, hookimpl
from dew_hf.options import HFOptions


def open_split(request: LoadRequest, split: str) -> NoReturn:
    """Refuses: this version of dew-hf has no reader.

    Raises:
        ProviderError: always.
    """
    raise ProviderError(
        f"'hf/{request.name}' (split {split!r}) cannot be read: this version of dew-hf only states the prefix 'hf' "
        "and its options; install one that reads data: pip install --upgrade dew-hf"
    )


HF = Provider(
    prefix="hf",
    summary="Hugging Face datasets (this version only states the prefix)",
    options=HFOptions,
    open=open_split,
    needs_preprocess=True,
    accepts=frozenset({"streaming", "shuffle_buffer", "dataset"}),
)


@hookimpl
def dew_provider() -> Provider:
    """The provider of the prefix `hf`."""
    return HF
