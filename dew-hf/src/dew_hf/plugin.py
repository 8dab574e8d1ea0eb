"""The plugin of the prefix `hf`."""

from typing import Any

from dew.data.provider import LoadRequest, Provider, hookimpl
from dew_hf.options import HFOptions


def _open(request: LoadRequest, split: str) -> Any:
    from dew_hf.choosing import open_split

    return open_split(request, split)


HF = Provider(
    prefix="hf",
    summary="Hugging Face datasets: Arrow splits, streams, and streamed files with one position for any process count",
    options=HFOptions,
    open=_open,
    needs_preprocess=True,
    accepts=frozenset({"streaming", "shuffle_buffer", "dataset"}),
    cli="dew_hf.cli:hf",
)


@hookimpl
def dew_provider() -> Provider:
    """The provider of the prefix `hf`."""
    return HF
