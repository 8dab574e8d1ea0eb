"""Typed access to parsed JSON: every value is checked when it is taken, and errors name the file and the key."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn, cast

import attrs

from dew.data.errors import DamagedSourceError

_INTEGERS = 1 << 62


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON value")


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `data`; `where` names it in errors.

    Raises:
        DamagedSourceError: `data` is not UTF-8 JSON, or not an object.
    """
    try:
        values = json.loads(data.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedSourceError(f"{where} is not JSON ({len(data)} bytes): {error}") from error
    if not isinstance(values, dict):
        raise DamagedSourceError(f"{where} holds a JSON {type(values).__name__}, not an object")
    return cast("dict[str, Any]", values)


@attrs.frozen
class Entry:
    """One JSON object, and where it stands.

    Every method raises `DamagedSourceError` when the key is missing or its value is of another type.
    """

    values: Mapping[str, Any]
    where: str

    def names(self) -> list[str]:
        """The keys."""
        return list(self.values)

    def integer(self, name: str) -> int:
        """An int in [0, 2^62), so that sums and byte offsets fit in int64."""
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _INTEGERS:
            self._refuse(name, "a whole number in [0, 2**62)", value)
        return value

    def optional_integer(self, name: str) -> int | None:
        """An int in [0, 2^62), or null."""
        return None if self._value(name) is None else self.integer(name)

    def text(self, name: str) -> str:
        """A string."""
        value = self._value(name)
        if not isinstance(value, str):
            self._refuse(name, "a string", value)
        return value

    def optional_text(self, name: str) -> str | None:
        """A string, or null."""
        return None if self._value(name) is None else self.text(name)

    def flag(self, name: str) -> bool:
        """true or false."""
        value = self._value(name)
        if not isinstance(value, bool):
            self._refuse(name, "true or false", value)
        return value

    def part(self, name: str) -> "Entry":
        """An object."""
        return self._as_part(name, self._value(name))

    def parts(self, name: str) -> list["Entry"]:
        """A list of objects."""
        value = self._value(name)
        if not isinstance(value, list):
            self._refuse(name, "a list", value)
        return [self._as_part(f"{name}[{i}]", item) for i, item in enumerate(cast("list[Any]", value))]

    def _as_part(self, name: str, value: Any) -> "Entry":
        if not isinstance(value, dict):
            self._refuse(name, "an object", value)
        return Entry(cast("dict[str, Any]", value), f"{self.where}: {name}")

    def _value(self, name: str) -> Any:
        if name not in self.values:
            raise DamagedSourceError(f"{self.where} has no {name!r}; it has {sorted(self.values)[:20]}")
        return self.values[name]

    def _refuse(self, name: str, expected: str, value: object) -> NoReturn:
        raise DamagedSourceError(f"{self.where}: {name!r} must be {expected}, got {value!r:.80}")
