"""Dew: the way training data reaches JAX runs.

`dew.data` holds the contract, the endless order, positions, streams and providers; `dew.tokens` is the provider of
token corpora; `dew.testing` is the kit that a provider's author subclasses.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        # Read only when asked: importlib.metadata costs more than all of `import dew.data`.
        if name == "__version__":
            from importlib.metadata import version

            return version("dew-core")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
