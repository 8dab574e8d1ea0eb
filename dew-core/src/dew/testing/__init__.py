"""The conformance kit: test classes that the author of a source or provider subclasses (extra `dew-core[testing]`).

A subclass says how to make the thing under test; pytest runs the checks::

    class TestMySource(SourceSuite):
        def make_source(self) -> RecordSource:
            return MySource("tests/data")

The names are resolved on first use: `dew check` runs the same checks where pytest is not installed.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dew.testing.compare import whole_step
    from dew.testing.counterexample import Counterexample
    from dew.testing.leaks import assert_nothing_left
    from dew.testing.providers import ProviderSuite
    from dew.testing.sources import SourceSuite
    from dew.testing.streams import StreamSuite
else:
    _NAMES = {
        "Counterexample": "dew.testing.counterexample",
        "ProviderSuite": "dew.testing.providers",
        "SourceSuite": "dew.testing.sources",
        "StreamSuite": "dew.testing.streams",
        "assert_nothing_left": "dew.testing.leaks",
        "whole_step": "dew.testing.compare",
    }

    def __getattr__(name: str) -> object:
        if name not in _NAMES:
            raise AttributeError(f"module 'dew.testing' has no attribute {name!r}; it has {', '.join(_NAMES)}")
        return getattr(importlib.import_module(_NAMES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_NAMES})


__all__ = ["Counterexample", "ProviderSuite", "SourceSuite", "StreamSuite", "assert_nothing_left", "whole_step"]
