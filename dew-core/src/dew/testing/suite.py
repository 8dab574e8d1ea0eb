"""What the suites share: a test of theirs is left out or replaced only with a reason that is stated.

A subclass that redefines, deletes or shadows a suite's test without naming it in `exempt` is refused when its class is
made, so that a plugin cannot lose a check by accident. A test that `exempt` names and the subclass does not define is
skipped, and its reason is in pytest's report (`pytest -rs`).
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn, cast

from dew.testing.counterexample import Check, passes

_KIT = "dew.testing."


class Suite:
    """Base of the suites.

    Attributes:
        exempt: test of the suite -> why this subclass leaves it out, or has one of its own in its place.
    """

    exempt: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__.startswith(_KIT):
            return
        tests, exempt = _kit_tests(cls), _exemptions(cls)
        if unknown := sorted(set(exempt) - set(tests)):
            raise TypeError(f"{cls.__name__}.exempt names {unknown}; the tests of its suites are {sorted(tests)}")
        for name, test in tests.items():
            found = inspect.getattr_static(cls, name)
            if name in exempt and found is test:
                setattr(cls, name, _left_out(name, exempt[name]))
            elif name not in exempt and found is not test:
                raise TypeError(
                    f"{cls.__name__} redefines {name}, a test of the suite, without a reason; "
                    f'give it another name, or say why in exempt = {{"{name}": "..."}}'
                )

    def check(self, check: Check) -> None:
        """Runs a check to its end; fails with its first counter-example."""
        passes(check)


def skip(reason: str) -> NoReturn:
    """Skips the running test."""
    import pytest

    pytest.skip(reason)


def _kit_tests(cls: type) -> dict[str, Any]:
    """Name -> function of every test of the suites that `cls` inherits from."""
    tests: dict[str, Any] = {}
    for base in cls.__mro__:
        if base.__module__.startswith(_KIT):
            for name, value in vars(base).items():
                if name.startswith("test_"):
                    tests.setdefault(name, value)
    return tests


def _exemptions(cls: type) -> dict[str, str]:
    """The exemptions of `cls` and of the classes it inherits from."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= cast("Mapping[str, str]", vars(base).get("exempt", {}))
    for name, reason in found.items():
        if not isinstance(reason, str) or not reason.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{cls.__name__}.exempt[{name!r}] must say why in words, got {reason!r}")
    return found


def _left_out(name: str, reason: str) -> Callable[[Any], None]:
    def left_out(self: Any) -> None:
        skip(reason)

    left_out.__name__ = name
    left_out.__doc__ = f"Left out: {reason}"
    return left_out
