"""Checks of arguments that every module shares: they refuse by name, with the value they got."""

from collections.abc import Callable
from typing import Any

import attrs

from dew.data.errors import OptionsError, OptionsTypeError

SEEDS = 1 << 64


def check_count(name: str, value: object, least: int = 1) -> int:
    """`value` as an int of at least `least`; bools, floats and smaller numbers are refused by `name`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionsTypeError(f"{name} must be an int, got {value!r} ({type(value).__name__})")
    if value < least:
        raise OptionsError(f"{name} must be at least {least}, got {value}")
    return value


def check_seed(value: object, name: str = "seed") -> int:
    """`value` as a seed: a Python int in [0, 2^64). All else is refused, since a wrapped seed aliases another run."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionsTypeError(f"{name} must be a Python int in [0, 2**64), got {value!r} ({type(value).__name__})")
    if not 0 <= value < SEEDS:
        raise OptionsError(f"{name} must be in [0, 2**64), got {value}")
    return value


def count(least: int = 1) -> Callable[[Any, "attrs.Attribute[int]", object], None]:
    """An attrs validator for `check_count`."""

    def validate(_instance: object, attribute: "attrs.Attribute[int]", value: object) -> None:
        check_count(attribute.name, value, least)

    return validate


def seed(_instance: object, attribute: "attrs.Attribute[int]", value: object) -> None:
    """An attrs validator for `check_seed`."""
    check_seed(value, attribute.name)
