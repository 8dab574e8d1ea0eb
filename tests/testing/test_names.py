"""The names of `dew.testing`, which are resolved on first use."""

import pytest

import dew.testing


def test_every_public_name_is_there() -> None:
    assert set(dew.testing.__all__) <= set(dir(dew.testing))
    assert [getattr(dew.testing, name).__name__ for name in dew.testing.__all__] == dew.testing.__all__


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'Suit'; it has Counterexample, ProviderSuite"):
        _ = dew.testing.Suit
