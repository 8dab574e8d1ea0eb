"""The order of files: numbers as numbers, everything else by code points."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dew.data.errors import SourceError
from dew.data.filenames import in_order


@pytest.mark.parametrize(
    "names",
    [
        ["a2", "a10", "a100"],
        ["a", "a0", "a1", "aB", "ab"],
        ["a!1", "a1", "a:", "aa"],
        ["data-9-of-10", "data-10-of-10"],
        ["part-00001", "part-1", "part-00002", "part-2"],
        ["Z", "a", "ä", "中"],
        ["٢", "١٠"][::-1],  # other digits than ASCII's are characters  # noqa: RUF001
        ["0" * 50 + "1", "1", "9" * 40],
    ],
)
def test_order(names: list[str]) -> None:
    mixed = random.Random(0).sample(names, len(names))
    assert in_order(mixed) == names


@given(st.lists(st.text(alphabet="ab019!~", max_size=6), unique=True))
def test_it_is_that_of_a_plain_definition(names: list[str]) -> None:
    def key(name: str) -> tuple[list[tuple[int, int]], str]:
        parts = re.findall("[0-9]+|[^0-9]", name)
        return [(0x30, int(part)) if part[0].isdigit() else (ord(part), 0) for part in parts], name

    assert in_order(names) == sorted(names, key=key)


def test_one_name_in_two_spellings_is_refused() -> None:
    with pytest.raises(SourceError, match=r"one name spelt in two ways, 'a\\u0308' and '\\xe4', .*; rename one"):
        in_order(["\u00e4", "b", "a\u0308"])
