"""The conformance kit: test classes that the author of a source or provider subclasses (extra `dew-core[testing]`).

A subclass says how to make the thing under test; pytest runs the checks::

    class TestMySource(SourceSuite):
        def make_source(self) -> RecordSource:
            return MySource("tests/data")
"""

import pytest

# Before the import: a failing assert in the kit then shows both sides.
pytest.register_assert_rewrite("dew.testing.sources", "dew.testing.streams", "dew.testing.leaks")

from dew.testing.leaks import assert_nothing_left  # noqa: E402
from dew.testing.sources import SourceSuite  # noqa: E402
from dew.testing.streams import StreamSuite, whole_step  # noqa: E402

__all__ = ["SourceSuite", "StreamSuite", "assert_nothing_left", "whole_step"]
