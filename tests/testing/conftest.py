"""Runs a suite as pytest would, one test after the other, and says which of its tests fail."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

Failing: TypeAlias = Callable[[Any], dict[str, BaseException]]
Later: TypeAlias = list[Callable[[], object]]


@pytest.fixture
def failing() -> Failing:
    """`failing(suite) -> {name of a test: what it raised}`; skipped tests do not count."""

    def run(suite: Any) -> dict[str, BaseException]:
        found: dict[str, BaseException] = {}
        for name, _ in inspect.getmembers(suite, inspect.ismethod):
            if name.startswith("test_"):
                try:
                    getattr(suite, name)()
                except pytest.skip.Exception:
                    continue
                except Exception as error:
                    found[name] = error
        return found

    return run


@pytest.fixture
def later() -> Iterator[Later]:
    """What a leak of a test's own is ended by."""
    ends: Later = []
    yield ends
    for end in ends:
        end()
