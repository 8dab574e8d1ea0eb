"""The provider `tokens`: registered through dew-core's own entry point, like a stranger's."""

from dew.data.provider import LoadRequest, Provider, hookimpl
from dew.tokens.documents import PackedSource, open_rows
from dew.tokens.options import TokenOptions
from dew.tokens.windows import WindowSource, open_split


def _open(request: LoadRequest, split: str) -> WindowSource | PackedSource:
    opened = open_rows if request.options.pack else open_split
    return opened(request.name, split, request.options)


TOKENS = Provider(
    prefix="tokens",
    summary="token corpora: windows and packed documents for next-token training",
    options=TokenOptions,
    open=_open,
    cli="dew.tokens.cli:tokens",
    show="dew.tokens.show:show",
)


@hookimpl
def dew_provider() -> Provider:
    """The provider of token corpora."""
    return TOKENS
