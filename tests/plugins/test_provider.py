"""The record that a plugin's author fills in: wrong entries are refused where they are written."""

import re
from typing import Any

import pytest

from dew.data.errors import OptionsError, OptionsTypeError
from dew.data.provider import ACCEPTS, API_VERSION, Provider


def provider(**changes: Any) -> Provider:
    return Provider(**{"prefix": "mem", "summary": "", "options": None, "open": lambda request, split: [], **changes})


def test_defaults() -> None:
    made = provider()
    assert (made.api, made.needs_preprocess, made.accepts, made.cli, made.show) == (
        API_VERSION, False, frozenset(), None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"prefix": ""}, OptionsError, "a provider's prefix must be a word without '/', got ''"),
        ({"prefix": "a/b"}, OptionsError, "a provider's prefix must be a word without '/', got 'a/b'"),
        ({"prefix": 3}, OptionsTypeError, "a provider's prefix must be a str, got 3 (int)"),
        ({"api": "1"}, OptionsTypeError, "api must be an int, got '1' (str)"),
        ({"accepts": {"batch"}}, OptionsError, f"a provider can accept {sorted(ACCEPTS)}, got ['batch']"),
        ({"cli": "module"}, OptionsError, "cli must be \"module:attribute\", got 'module'"),
        ({"show": "a:b:c"}, OptionsError, "show must be \"module:attribute\", got 'a:b:c'"),
    ],
)
def test_wrong_entries(changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        provider(**changes)
