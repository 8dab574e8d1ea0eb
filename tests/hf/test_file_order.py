"""In which order files are read: a list as it stands, a pattern or a directory by spelling, wherever they lie."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dew.data import DataPartition, HFOptions, Loading, columns, load

MODES = ({}, {"streaming": True}, {"streaming": True, "position": "records"})
SPELLED = ["part-1", "part-10", "part-2"]  # "1" < "10" < "2", letter by letter
DIRECT = Loading(read_buffer=0, threads=1, workers=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Written in an order of their own, so that neither time nor the directory's order gives the right answer."""
    (tmp_path / "data").mkdir()
    for name in ("part-2", "part-10", "part-1"):
        pq.write_table(pa.table({"id": [int(name[5:])] * 3}), tmp_path / "data" / f"{name}.parquet")
    return tmp_path / "data"


@pytest.fixture
def memory(folder: Path) -> Iterator[str]:
    files: Any = fsspec.filesystem("memory")
    files.pipe({f"/order/{path.name}": path.read_bytes() for path in folder.iterdir()})
    yield "memory://order"
    files.rm("/order", recursive=True)


def read(data_files: Any, mode: dict[str, Any], name: str = "parquet", index: int = 0, count: int = 1) -> list[int]:
    """The files' numbers in the source's own order, as a validation pass reads them, without repetitions."""
    position = {"position": mode["position"]} if "position" in mode else {}
    dataset = load(
        f"hf/{name}",
        batch=3,
        split="train",
        val_split="train",
        allow_overlap=True,
        streaming=mode.get("streaming", False),
        options=HFOptions(data_files=data_files, **position),
        preprocess=columns("id"),
        loading=DIRECT,
    )
    assert dataset.val is not None
    return list(
        dict.fromkeys(row for batch in dataset.val(DataPartition(index, count)) for row in batch["id"].tolist())
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_pattern_reads_by_spelling(mode: Any, folder: Path) -> None:
    found = [f"part-{number}" for number in read(str(folder / "*.parquet"), mode)]
    assert found == SPELLED
    assert [f"part-{number}" for number in read(None, mode, str(folder))] == SPELLED
    assert read(str(folder / "*.parquet"), mode, index=2, count=3) == [1, 10, 2], "each process"


@pytest.mark.parametrize("mode", MODES)
def test_a_list_keeps_its_order(mode: Any, folder: Path) -> None:
    for order in ([10, 1, 2], [2, 10, 1]):
        assert read([str(folder / f"part-{number}.parquet") for number in order], mode) == order


@pytest.mark.parametrize("mode", MODES[1:])
def test_another_file_system_has_the_same_order(mode: Any, memory: str) -> None:
    assert read(f"{memory}/*.parquet", mode) == [1, 10, 2]
    assert read([f"{memory}/part-{number}.parquet" for number in (2, 1, 10)], mode) == [2, 1, 10]


def test_another_order_of_the_files_is_other_data(folder: Path) -> None:
    def fingerprint(numbers: list[int]) -> str:
        options = HFOptions(data_files=[str(folder / f"part-{n}.parquet") for n in numbers], position="records")
        dataset = load("hf/parquet", batch=3, streaming=True, options=options, preprocess=columns("id"), loading=DIRECT)
        with dataset.train(DataPartition()) as stream:
            return stream.source.fingerprint()

    assert fingerprint([1, 2, 10]) != fingerprint([1, 10, 2])
