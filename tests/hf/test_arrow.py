"""Arrow splits: random access, one integer as position, tables in files and in memory."""

import gc
import os
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dew.data import (
    DataPartition,
    Dataset,
    HFOptions,
    Loading,
    OptionsError,
    OptionsTypeError,
    OverlapError,
    SourceError,
    columns,
    identity,
    load,
)

ROWS = 41


def table(start: int = 0, rows: int = ROWS) -> pa.Table:
    ids = range(start, start + rows)
    return pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "score": pa.array([[i, i / 2] for i in ids], pa.list_(pa.float32())),
            "text": [f"row {i}" for i in ids],
            "nested": [{"n": i, "flags": [True, False]} for i in ids],
        }
    )


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "rows.parquet"
    pq.write_table(table(), path)
    return str(path)


def opened(file: Any, **more: Any) -> Dataset:
    more = {"options": HFOptions(data_files=file), "preprocess": identity, "batch": 4, **more}
    return load("hf/parquet", **more)


def source_of(dataset: Dataset) -> Any:
    with dataset.train(DataPartition()) as stream:
        return stream.source


def test_rows_keep_their_dtypes(file: str) -> None:
    with opened(file, preprocess=columns("id", "score", "text")).train(DataPartition()) as stream:
        batch = next(stream)
    assert {name: (field.dtype.kind, field.shape) for name, field in batch.items()} == {
        "id": ("i", (4,)),
        "score": ("f", (4, 2)),
        "text": ("U", (4,)),
    }
    assert (batch["id"].dtype, batch["score"].dtype) == (np.int32, np.float32)


def test_preprocess_is_asked_for_with_the_fields(file: str) -> None:
    with pytest.raises(OptionsTypeError, match=r"(?s)needs preprocess=.*id: int32 \(\).*score: float32 \(2,\)"):
        opened(file, preprocess=None)


def test_a_moved_file_goes_on_and_a_changed_one_does_not(file: str, tmp_path: Path) -> None:
    first = source_of(opened(file))
    moved = str(tmp_path / "elsewhere.parquet")
    shutil.copy(file, moved)
    os.utime(moved, (0, 0))
    assert source_of(opened(moved)).fingerprint() == first.fingerprint()
    assert repr(source_of(opened(moved))) == repr(first)
    pq.write_table(table(1), tmp_path / "changed.parquet")
    assert source_of(opened(str(tmp_path / "changed.parquet"))).fingerprint() != first.fingerprint()


def test_slices_are_splits(file: str) -> None:
    dataset = opened(file, split="train[10:30]")
    assert dataset.records == 20
    assert source_of(dataset)[0]["id"] == 10


@pytest.mark.parametrize(
    ("split", "val_split", "shared"), [("train[:80%]", "train[70%:]", 4), ("train", "train[:5]", 5)]
)
def test_overlapping_slices_are_refused(split: str, val_split: str, shared: int, file: str) -> None:
    with pytest.raises(OverlapError, match=str(shared)):
        opened(file, split=split, val_split=val_split)
    assert opened(file, split=split, val_split=val_split, allow_overlap=True).val is not None


def test_a_given_table_and_another_to_validate_on() -> None:
    dataset = load(
        "hf/mine",
        batch=8,
        dataset=datasets.Dataset(table()),
        val_dataset=datasets.Dataset(table(100, 9)),
        preprocess=columns("id"),
    )
    assert dataset.val is not None
    batches = list(dataset.val(DataPartition()))
    ids = np.concatenate([batch["id"][batch["valid"]] for batch in batches])
    np.testing.assert_array_equal(ids, np.arange(100, 109))


def test_the_same_table_to_validate_on_is_refused() -> None:
    given = datasets.Dataset(table())
    with pytest.raises(OverlapError, match="both are one object"):
        load("hf/mine", batch=8, dataset=given, val_dataset=given, preprocess=identity)


def test_a_table_in_memory_is_written_once_and_goes_with_its_source() -> None:
    temp = Path(tempfile.gettempdir())
    before = set(temp.iterdir())
    source = source_of(load("hf/mine", batch=4, dataset=datasets.Dataset(table()), preprocess=identity))
    assert set(temp.iterdir()) == before, "nothing is written before a process needs it"
    first, second = pickle.dumps(source), pickle.dumps(source)
    assert len(first) < 5000
    (made,) = set(temp.iterdir()) - before
    reader, other = pickle.loads(first), pickle.loads(second)
    assert reader[7]["id"] == other[7]["id"] == 7
    del reader, other
    gc.collect()
    assert made.exists(), "it belongs to the source that wrote it"
    del source
    gc.collect()
    assert not made.exists()


@pytest.mark.parametrize("memory", [False, True])
def test_worker_processes_read_the_same(memory: bool, file: str) -> None:
    given = datasets.Dataset(table()) if memory else None

    def dataset(loading: Loading) -> Dataset:
        if given is not None:
            return load("hf/m", batch=4, dataset=given, preprocess=columns("id", "score"), loading=loading)
        return opened(file, preprocess=columns("id", "score"), loading=loading)

    with (
        dataset(Loading(workers=1)).train(DataPartition()) as workers,
        dataset(Loading(workers=0)).train(DataPartition()) as here,
    ):
        for _ in range(3):
            np.testing.assert_array_equal(next(workers)["score"], next(here)["score"])


def test_a_selection_and_its_column_choice_are_kept() -> None:
    given = datasets.Dataset(table()).shuffle(seed=1).select(range(5)).with_format("numpy", columns=["id"])
    source = source_of(load("hf/mine", batch=4, dataset=given, preprocess=identity))
    assert len(source) == 5
    assert [dict(source[index]) for index in range(5)] == [{"id": given[index]["id"]} for index in range(5)]
    assert len(pickle.dumps(source)) < 10_000


def test_what_is_not_one_split_is_refused() -> None:
    one = datasets.Dataset(table())
    both = datasets.DatasetDict(train=one, test=one)
    with pytest.raises(OptionsTypeError, match=r"got a DatasetDict with the splits \['test', 'train'\]"):
        load("hf/x", batch=4, dataset=both, preprocess=identity)
    with pytest.raises(OptionsTypeError, match=r"must be a datasets.Dataset or IterableDataset, got list"):
        load("hf/x", batch=4, dataset=[{"id": 1}], preprocess=identity)
    with pytest.raises(OptionsError, match="has a transform of its own"):
        load("hf/x", batch=4, dataset=one.with_transform(lambda rows: rows), preprocess=identity)
    with pytest.raises(OptionsTypeError, match=r"leave streaming out, or pass dataset.to_iterable_dataset\(\)"):
        load("hf/x", batch=4, dataset=one, streaming=True, preprocess=identity)


def test_fewer_rows_than_a_batch_are_refused_with_both(file: str) -> None:
    with pytest.raises(SourceError, match=r"41 records, fewer than one global batch of 48"):
        opened(file, batch=48)


def test_records_that_disagree_are_refused_with_both(file: str) -> None:
    with pytest.raises(OptionsError, match=r"records=40 was given, but .* counts 41"):
        opened(file, records=40)
