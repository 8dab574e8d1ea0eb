"""The conformance kit over every form of data: tables from files and in memory, row groups, streams of each kind."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dew.data import DataPartition, Dataset, HFOptions, Loading, identity, load
from dew.data.source import RecordSource
from dew.testing import SourceSuite, StreamSuite

DIRECT = Loading(read_buffer=0, threads=1, workers=0)


def table(rows: int = 41) -> pa.Table:
    ids = range(rows)
    return pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "score": pa.array([[i, i / 2] for i in ids], pa.list_(pa.float32())),
            "text": [f"row {i}" for i in ids],
            "nested": [{"n": i, "flags": [True, False]} for i in ids],
        }
    )


def scored(record: Any, rng: Any) -> Any:
    return {"id": record["id"], "score": record["score"] + rng.random(2, dtype=np.float32)}


def drawn(record: Any, rng: Any) -> Any:
    return {"id": np.int64(record["id"]), "draw": rng.integers(1 << 60)}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "rows.parquet"
    pq.write_table(table(), path, row_group_size=3)
    return str(path)


class _OverFile:
    """A parquet file in row groups of three rows, as a table, as a stream, in row groups, or through a buffer."""

    mode = "table"

    @pytest.fixture(autouse=True)
    def _file(self, file: str) -> None:
        self.file = file
        self.location = str(Path(file).parent)

    def dataset(self, **more: Any) -> Dataset:
        grouped = {"position": "records", "lanes": 4} if self.mode == "groups" else {}
        arguments = {"batch": 12, "preprocess": scored, "loading": DIRECT, **more}
        return load(
            "hf/parquet",
            options=HFOptions(data_files={"train": self.file, "val": self.file}, **grouped),
            streaming=self.mode != "table",
            shuffle_buffer=8 if self.mode == "buffer" else 0,
            **arguments,
        )

    def source(self) -> Any:
        with self.dataset(preprocess=identity).train(DataPartition()) as stream:
            return stream.source


class TestArrowSource(_OverFile, SourceSuite):
    def make_source(self) -> RecordSource:
        return self.source()


class TestMemorySource(SourceSuite):
    def make_source(self) -> RecordSource:
        dataset = load("hf/mine", batch=4, dataset=datasets.Dataset(table()), preprocess=identity)
        with dataset.train(DataPartition()) as stream:
            return stream.source


class TestGroupSource(_OverFile, SourceSuite):
    mode = "groups"

    def make_source(self) -> RecordSource:
        return self.source()


class TestArrowStream(_OverFile, StreamSuite):
    steps = 4
    largest_count = 6

    def make_dataset(self, seed: int = 0, loading: Loading = DIRECT) -> Dataset:
        return self.dataset(seed=seed, loading=loading, split="train[:30]", val_split="train[30:]")


class TestGroupStream(_OverFile, StreamSuite):
    mode = "groups"
    steps = 4
    largest_count = 6
    shares_validation = True

    def make_dataset(self, seed: int = 0, loading: Loading = DIRECT) -> Dataset:
        return self.dataset(seed=seed, loading=loading, val_split="val", allow_overlap=True)


class TestShardStream(_OverFile, StreamSuite):
    mode = "stream"
    steps = 5  # an epoch and a half
    largest_count = 4
    random_access = False
    position = "shard"
    known_length = False
    shares_validation = True

    def make_dataset(self, seed: int = 0, loading: Loading = DIRECT) -> Dataset:
        return self.dataset(seed=seed, loading=loading, val_split="val", allow_overlap=True)


class TestBufferedStream(TestShardStream):
    largest_count = 3
    mode = "buffer"
    leak_seconds = 20.0  # threads of the library's own end when it is collected
    position = None


class TestGivenStream(StreamSuite):
    steps = 5
    largest_count = 3
    random_access = False
    position = None
    known_length = False

    def make_dataset(self, seed: int = 0, loading: Loading = DIRECT) -> Dataset:
        return load(
            "hf/mine",
            batch=12,
            dataset=datasets.Dataset(table()).to_iterable_dataset(),
            val_dataset=datasets.Dataset(table(17)).to_iterable_dataset(),
            streaming=True,
            preprocess=scored,
            seed=seed,
            loading=loading,
        )


class TestWholeStream(StreamSuite):
    """Any other format with the position of the whole run."""

    steps = 3
    largest_count = 4
    random_access = False
    known_length = False
    shares_validation = True
    kind = "json"

    @pytest.fixture(autouse=True)
    def _files(self, all_kinds: Any) -> None:
        self.files = all_kinds[self.kind]

    def make_dataset(self, seed: int = 0, loading: Loading = DIRECT) -> Dataset:
        paths = list(self.files.paths)
        return load(
            self.files.source,
            batch=12,
            streaming=True,
            val_split="val",
            allow_overlap=True,
            options=HFOptions(data_files={"train": paths, "val": paths}, position="records"),
            preprocess=drawn,
            seed=seed,
            loading=loading,
        )
