"""Dew's conformance kit on this provider, and what it does not know: the provider's own messages."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dew.data import DataPartition, OptionsError, SourceNotFoundError, load
from dew.data.source import RecordSource
from dew.testing import ProviderSuite, SourceSuite

from dew_example import ExampleOptions
from dew_example.source import TableSource


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Two tables; the row ids of one have gaps, as they have where rows were deleted."""
    path = tmp_path / "some data.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, rows in (("train", 40), ("test", 9)):
            connection.execute(f"CREATE TABLE {table} (day INTEGER, rain REAL, place TEXT)")
            values = [(day, day / 7, f"town {day % 3}") for day in range(rows)]
            connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", values)
        connection.execute("DELETE FROM train WHERE day % 10 = 3")
    return path


class TestProvider(ProviderSuite):
    splits = ("train", "test")

    @pytest.fixture(autouse=True)
    def _given(self, database: Path) -> None:
        self.source = f"example/{database}"
        self.location = str(database.parent)

    def arguments(self) -> dict[str, Any]:
        return {"options": ExampleOptions(columns=("day", "rain"), val_split="test")}


class TestSource(SourceSuite):
    @pytest.fixture(autouse=True)
    def _given(self, database: Path) -> None:
        self.path = database
        self.location = str(database.parent)

    def make_source(self) -> RecordSource:
        return TableSource(self.path, "train")


def test_a_record_is_a_row(database: Path) -> None:
    source = TableSource(database, "train")
    assert len(source) == 36
    assert [source[3]["day"], source[3]["place"]] == [4, "town 1"]
    assert source[0]["rain"].dtype == np.float64


def test_a_moved_file_goes_on_where_it_was(database: Path) -> None:
    options = ExampleOptions(columns=("day",))
    with load(f"example/{database}", batch=4, options=options).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        next(stream)
        state = stream.get_state()
    moved = database.rename(database.with_name("moved.db"))
    with load(f"example/{moved}", batch=4, options=options).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        stream.set_state(state)
        assert stream.get_state() == state


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda path: TableSource(path / "absent.db", "train"), SourceNotFoundError, "no SQLite file .*absent.db"),
        (lambda path: TableSource(path / "some data.db", "train", ["wind"]), OptionsError, "has day, rain, place"),
    ],
)
def test_what_cannot_be_read_is_refused(
    make: Callable[[Path], Any], error: type[Exception], message: str, database: Path
) -> None:
    with pytest.raises(error, match=message):
        make(database.parent)
