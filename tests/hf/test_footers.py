"""The index of footers: written once, checked whenever it is read, and never taken for that of other files."""

import os
import pickle
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dew.data import DamagedSourceError, DataPartition, HFOptions, Loading, columns, load
from dew_hf.footers import ParquetFiles, open_footers

FILES = 12
ROWS = 40


def write(path: Path, number: int, letter: str = "x") -> None:
    # Texts that differ in width, so that no footer equals another.
    texts = [letter * (row % 7 + number + 1) for row in range(ROWS)]
    ids = range(number * ROWS, (number + 1) * ROWS)
    pq.write_table(pa.table({"id": ids, "text": texts}), path, compression="none")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(FILES):
        write(data / f"{number:02}.parquet", number)
    return data


def files_of(folder: Path, **more: Any) -> ParquetFiles:
    paths = sorted(folder.glob("*.parquet"))
    versions = tuple(str(path.stat().st_mtime_ns) for path in paths)
    cache = str(folder.parent / "cache")
    return ParquetFiles(urls=tuple(map(str, paths)), **{"versions": versions, "cache": cache, **more})


def only(folder: Path) -> Path:
    (index,) = (folder.parent / "cache").iterdir()
    return index


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The files whose footers were read from the files themselves."""
    read: list[int] = []
    footer = ParquetFiles.footer

    def counted(self: ParquetFiles, file: int, size: int) -> bytes:
        read.append(file)
        return footer(self, file, size)

    monkeypatch.setattr(ParquetFiles, "footer", counted)
    return read


def test_footers_are_read_once_and_then_come_out_of_the_index(folder: Path, readings: list[int]) -> None:
    first = open_footers(files_of(folder))
    assert sorted(readings) == list(range(FILES))
    again = open_footers(files_of(folder))
    assert [again.metadata(file).num_rows for file in range(FILES)] == [ROWS] * FILES
    assert len(readings) == FILES, "the index is enough"
    assert again.indexed == str(only(folder))
    assert again.fingerprint() == first.fingerprint()
    for name in ("sizes", "counts", "rows", "group_sizes"):
        np.testing.assert_array_equal(getattr(again, name), getattr(first, name))


def test_it_says_what_pyarrow_says(folder: Path) -> None:
    footers = open_footers(files_of(folder))
    for file, path in enumerate(sorted(folder.glob("*.parquet"))):
        assert footers.metadata(file).equals(pq.read_metadata(path))
        assert footers.sizes[file] == path.stat().st_size


def test_a_footer_longer_than_the_first_read(tmp_path: Path) -> None:
    names = {f"column {number} {'x' * 200}": [number] for number in range(300)}
    pq.write_table(pa.table(names), tmp_path / "wide.parquet")
    assert open_footers(files_of(tmp_path, cache=None)).metadata(0).num_columns == 300


@pytest.mark.parametrize("how", ["cut", "flipped", "foreign", "longer"])
def test_a_damaged_index_is_written_anew(
    how: str, folder: Path, readings: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    expected = open_footers(files_of(folder)).fingerprint()
    index = only(folder)
    data = index.read_bytes()
    index.write_bytes(
        {
            "cut": data[:100],
            "flipped": data[:90] + bytes([data[90] ^ 1]) + data[91:],
            "foreign": b"something else",
            "longer": data[:40] + b"\xff" * 16 + data[56:],
        }[how]
    )
    readings.clear()
    assert open_footers(files_of(folder)).fingerprint() == expected
    assert len(readings) == FILES
    assert "written anew" in caplog.text
    assert index.read_bytes() == data


def test_a_damaged_footer_in_the_index_is_read_from_its_file(folder: Path, readings: list[int]) -> None:
    open_footers(files_of(folder))
    index = only(folder)
    data = index.read_bytes()
    index.write_bytes(data[:-20] + bytes(20))
    readings.clear()
    assert open_footers(files_of(folder)).metadata(FILES - 1).num_rows == ROWS
    assert readings == [FILES - 1]


def test_files_that_changed_have_another_index(folder: Path, readings: list[int]) -> None:
    first = open_footers(files_of(folder))
    path = folder / "03.parquet"
    size = path.stat().st_size
    write(path, 3, "y")
    os.utime(path, ns=(1, 1))
    assert path.stat().st_size == size
    readings.clear()
    assert open_footers(files_of(folder)).fingerprint() != first.fingerprint()
    assert len(readings) == FILES
    # What was opened before knows the old footer; without its index it would have to take the new one.
    assert first.indexed is not None
    Path(first.indexed).unlink()
    with pytest.raises(DamagedSourceError, match=r"03\.parquet is not what it was .*: its footer is another one"):
        first.metadata(3)


def test_files_without_a_version_are_read_each_time(folder: Path, readings: list[int]) -> None:
    for _ in range(2):
        assert open_footers(files_of(folder, versions=("",) * FILES)).indexed is None
    assert len(readings) == 2 * FILES


def test_a_cache_that_cannot_be_written_is_no_obstacle(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder.parent / "cache").write_text("a file where the directory should be")
    footers = open_footers(files_of(folder))
    assert footers.indexed is None
    assert footers.metadata(5).num_rows == ROWS
    assert "cannot be kept" in caplog.text


def test_addresses_do_not_stand_in_the_index(folder: Path) -> None:
    open_footers(files_of(folder))
    assert str(folder).encode() not in only(folder).read_bytes()
    assert str(folder) not in only(folder).name
    assert not stat.S_IMODE(only(folder).stat().st_mode) & stat.S_IWOTH


def test_it_pickles_by_path(folder: Path) -> None:
    footers = open_footers(files_of(folder))
    data = pickle.dumps(footers)
    assert pickle.loads(data).fingerprint() == footers.fingerprint()
    only(folder).unlink()
    assert pickle.loads(data).fingerprint() == footers.fingerprint(), "without the index the files are asked"


def test_load_keeps_an_index_below_its_cache(folder: Path, tmp_path: Path, readings: list[int]) -> None:
    def first() -> Any:
        options = HFOptions(data_files=str(folder / "*.parquet"), cache_dir=str(tmp_path / "mine"), position="records")
        dataset = load(
            "hf/parquet",
            batch=8,
            streaming=True,
            options=options,
            preprocess=columns("id"),
            loading=Loading(read_buffer=0),
        )
        with dataset.train(DataPartition()) as stream:
            return next(stream)["id"].tolist()

    found = first()
    assert len(readings) == FILES
    assert first() == found
    assert len(readings) == FILES
    assert len(list((tmp_path / "mine" / "dew-footers").iterdir())) == 1
