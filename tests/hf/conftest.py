"""Four uneven files of 7, 5, 6 and 3 rows in every format that `datasets` streams, and nothing but this machine."""

import csv
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

ROWS = (7, 5, 6, 3)


@pytest.fixture(scope="session", autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The hub is not asked, caches lie in the run's own folder, and closing a stream does not sleep."""
    home = tmp_path_factory.mktemp("hf-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_HOME", str(home))
        import datasets
        import huggingface_hub.constants

        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", home / "datasets")
        patch.setattr(datasets.config, "HF_CACHE_HOME", str(home))
        patch.setattr(datasets.config, "HF_MODULES_CACHE", str(home / "modules"))
        patch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)
        yield


@attrs.frozen
class Files:
    """Files of one format, as `load` takes them."""

    source: str
    paths: tuple[str, ...]

    def options(self, **more: Any) -> Any:
        from dew.data import HFOptions

        return HFOptions(data_files=list(self.paths), **more)


def rows_of(numbers: range) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"row {number}"} for number in numbers]


def write(folder: Path, kind: str, sizes: tuple[int, ...] = ROWS, group: int | None = None) -> Files:
    """Files of `sizes` rows each: `id` counts through all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    paths, start = [], 0
    for number, size in enumerate(sizes):
        path = folder / f"part-{number}.{ {'json': 'jsonl', 'text': 'txt', 'webdataset': 'tar'}.get(kind, kind) }"
        _WRITERS[kind](path, rows_of(range(start, start + size)), group)
        paths.append(str(path))
        start += size
    return Files(f"hf/{kind}", tuple(paths))


def _parquet(path: Path, rows: list[dict[str, Any]], group: int | None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema({"id": pa.int64(), "text": pa.string()})
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=group or 100)


def _arrow(path: Path, rows: list[dict[str, Any]], group: int | None) -> None:
    import pyarrow as pa

    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def _json(path: Path, rows: list[dict[str, Any]], group: int | None) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _csv(path: Path, rows: list[dict[str, Any]], group: int | None) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "text"])
        writer.writeheader()
        writer.writerows(rows)


def _text(path: Path, rows: list[dict[str, Any]], group: int | None) -> None:
    path.write_text("".join(f"{row['id']}\n" for row in rows))


def _webdataset(path: Path, rows: list[dict[str, Any]], group: int | None) -> None:
    with tarfile.open(path, "w") as tar:
        for row in rows:
            data = json.dumps(row).encode()
            entry = tarfile.TarInfo(f"{row['id']:06}.json")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


_WRITERS = {
    "parquet": _parquet,
    "arrow": _arrow,
    "json": _json,
    "csv": _csv,
    "text": _text,
    "webdataset": _webdataset,
}


@pytest.fixture
def write_files(tmp_path: Path) -> Any:
    """`write_files(kind, sizes=ROWS, group=None)` below the test's own folder."""

    def make(kind: str, sizes: tuple[int, ...] = ROWS, group: int | None = None, folder: str = "data") -> Files:
        return write(tmp_path / folder, kind, sizes, group)

    return make


@pytest.fixture(scope="session")
def all_kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    """Every format, written once."""
    folder = tmp_path_factory.mktemp("kinds")
    return {kind: write(folder / kind, kind) for kind in _WRITERS}


def id_of(record: Any) -> int:
    """The row's number in any of the formats."""
    if "json" in record:
        return record["json"]["id"]
    return int(record["id"] if "id" in record else record["text"])


@pytest.fixture(scope="session")
def with_draws() -> Any:
    """A `preprocess`: the row's number and its draws."""

    def draw(record: Any, rng: Any) -> dict[str, Any]:
        return {"id": id_of(record), "draw": rng.integers(1 << 60)}

    return draw
