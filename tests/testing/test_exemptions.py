"""A test of a suite is left out or replaced only with a reason."""

from typing import Any

import numpy as np
import pytest

from dew.data.build import in_memory
from dew.data.source import RecordSource
from dew.testing import SourceSuite, StreamSuite

NAME = "test_pickles_by_path"


class Rows(SourceSuite):
    largest_pickle = None

    def make_source(self) -> RecordSource:
        return in_memory({"id": np.arange(5)})


def test_redefining_without_a_reason_is_refused() -> None:
    with pytest.raises(TypeError, match=f"Mine redefines {NAME}, a test of the suite, without a reason; give it"):

        class Mine(Rows):
            def test_pickles_by_path(self) -> None:
                """Nothing."""


def test_deleting_is_refused() -> None:
    with pytest.raises(TypeError, match=f"Mine redefines {NAME}"):

        class Mine(Rows):
            test_pickles_by_path = None  # type: ignore[assignment]


def test_a_mixin_does_not_hide_a_test_either() -> None:
    class Mixin:
        def test_pickles_by_path(self) -> None:
            """Nothing."""

    with pytest.raises(TypeError, match=f"Mine redefines {NAME}"):

        class Mine(Mixin, Rows):
            pass


@pytest.mark.parametrize("reason", ["", "  ", None, True])
def test_the_reason_is_words(reason: Any) -> None:
    with pytest.raises(TypeError, match=rf"Mine.exempt\['{NAME}'\] must say why in words"):

        class Mine(Rows):
            exempt = {NAME: reason}  # noqa: RUF012


def test_only_tests_that_there_are_can_be_exempt() -> None:
    with pytest.raises(TypeError, match=r"Mine.exempt names \['test_pickle'\]; the tests of its suites are"):

        class Mine(Rows):
            exempt = {"test_pickle": "a typing error"}  # noqa: RUF012


def test_an_exempt_test_is_skipped_with_its_reason() -> None:
    class Mine(Rows):
        exempt = {NAME: "the data lives in memory"}  # noqa: RUF012

    with pytest.raises(pytest.skip.Exception, match="the data lives in memory"):
        Mine().test_pickles_by_path()
    Mine().test_has_a_length()
    Rows().test_pickles_by_path()


def test_an_exempt_test_can_be_replaced_and_the_exemption_is_inherited() -> None:
    ran: list[str] = []

    class Mine(Rows):
        exempt = {NAME: "pickled by its own service"}  # noqa: RUF012

        def test_pickles_by_path(self) -> None:
            ran.append("mine")

    class Further(Mine):
        def test_something_else(self) -> None:
            ran.append("more")

    Further().test_pickles_by_path()
    assert ran == ["mine"]


@pytest.mark.parametrize(
    ("suite", "message"),
    [(SourceSuite, r"must define make_source\(\)"), (StreamSuite, r"must define make_dataset\(\)")],
)
def test_what_a_subclass_must_define_is_said(suite: Any, message: str) -> None:
    class Mine(suite):  # type: ignore[misc]
        pass

    test = getattr(Mine(), "test_has_a_length", None) or Mine().test_close_leaves_nothing_behind
    with pytest.raises(TypeError, match=f"Mine {message}"):
        test()


def test_fewer_than_two_steps_find_nothing() -> None:
    class Mine(StreamSuite):
        steps = 1

        def make_dataset(self) -> Any:
            from dew.data import from_records

            return from_records({"id": np.arange(5)}, batch=2)

    with pytest.raises(TypeError, match=r"Mine.steps must be at least 2, got 1"):
        Mine().test_a_share_has_its_rows()
