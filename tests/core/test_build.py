"""Datasets from records in hand: what goes in comes out, and what cannot is refused before the first step."""

import copy
import json
import os
import pickle
import subprocess
import sys
from collections import UserList
from itertools import chain
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from dew.data.build import ColumnSource, check_records, dataset_of, from_records, in_memory, ramped
from dew.data.dataset import Batch, DataPartition, Dataset
from dew.data.errors import CollateError, OptionsError, OptionsTypeError, OverlapError, PartitionError, SourceError
from dew.data.loading import Loading
from dew.data.schedule import Ramp
from dew.data.stream import RecordStream

HERE = Loading(workers=0, threads=1, read_buffer=0)
AHEAD = Loading(workers=0, threads=2)


def ids(records: int = 64) -> dict[str, Any]:
    return {"id": np.arange(records)}


def rows(records: int = 64) -> list[dict[str, Any]]:
    return [{"id": index} for index in range(records)]


def first(dataset: Dataset, partition: DataPartition = DataPartition()) -> Batch:  # noqa: B008 - frozen
    with stream_of(dataset, partition) as stream:
        return next(stream)


def stream_of(dataset: Dataset, partition: DataPartition = DataPartition()) -> RecordStream:  # noqa: B008 - frozen
    stream = dataset.train(partition)
    assert isinstance(stream, RecordStream)
    return stream


# What goes in comes out


@pytest.mark.parametrize("loading", [HERE, AHEAD])
@pytest.mark.parametrize("make", [ids, rows])
def test_an_epoch_is_every_record_once_on_any_count(make: Any, loading: Loading) -> None:
    dataset = from_records(make(), batch=8, seed=3, loading=loading)
    assert (dataset.records, dataset.batch, dataset.steps_per_epoch) == (64, 8, 8)
    whole = stream_of(dataset)
    expected = [next(whole)["id"].tolist() for _ in range(16)]
    whole.close()
    assert sorted(chain.from_iterable(expected[:8])) == list(range(64))
    assert expected[:8] != expected[8:]
    for count in (2, 4, 8):
        shares = [stream_of(dataset, DataPartition(index, count)) for index in range(count)]
        for step in range(16):
            parts = [next(share)["id"].tolist() for share in shares]
            assert [record for row in zip(*parts, strict=True) for record in row] == expected[step]
        for share in shares:
            share.close()


def test_columns_and_rows_of_the_same_records_are_read_alike() -> None:
    values = np.random.default_rng(0).random((20, 3))
    by_columns = stream_of(from_records({"x": values, "y": {"z": np.arange(20)}}, batch=4, loading=HERE))
    as_rows = [{"x": values[index], "y": {"z": index}} for index in range(20)]
    by_rows = stream_of(from_records(as_rows, batch=4, loading=HERE))
    for _ in range(10):
        one, other = next(by_columns), next(by_rows)
        np.testing.assert_array_equal(one["x"], other["x"])
        np.testing.assert_array_equal(one["y"]["z"], other["y"]["z"])


def test_the_seed_is_that_of_the_order() -> None:
    found = [first(from_records(ids(), batch=8, seed=seed, loading=HERE))["id"].tolist() for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    with pytest.raises(OptionsTypeError, match=r"seed must be a Python int in \[0, 2\*\*64\), got 1\.0"):
        from_records(ids(), batch=8, seed=1.0)  # type: ignore[arg-type]


def test_validation_is_one_pass_in_order() -> None:
    dataset = from_records(ids(), batch=8, val=rows(11), loading=HERE)
    assert dataset.val is not None
    for _ in range(2):
        found = list(dataset.val(DataPartition()))
        assert [batch["id"].tolist() for batch in found] == [list(range(8)), [8, 9, 10, 0, 0, 0, 0, 0]]
        assert [batch["valid"].sum() for batch in found] == [8, 3]


def test_scalars_and_empty_arrays() -> None:  # I07
    records = [{"label": i, "flag": i > 2, "empty": np.zeros((0,), np.float32)} for i in range(6)]
    as_columns = {"label": np.arange(6), "flag": np.arange(6) > 2, "empty": np.zeros((6, 0), np.float32)}
    for form in (records, as_columns):
        batch = first(from_records(form, batch=4, loading=HERE))
        shapes = {name: (array.shape, array.dtype.name) for name, array in batch.items()}
        assert shapes == {"label": ((4,), "int64"), "flag": ((4,), "bool"), "empty": ((4, 0), "float32")}


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float16", "float64", "bool", ml_dtypes.bfloat16])
def test_dtypes_are_kept(dtype: Any) -> None:  # I08
    values = np.array([[0, 1, 1], [1, 0, 1]] * 2).astype(dtype)
    for form in ({"x": values}, [{"x": value} for value in values]):
        batch = first(from_records(form, batch=2, loading=HERE))
        assert batch["x"].dtype == np.dtype(dtype)
        assert batch["x"].shape == (2, 3)


def test_anything_that_becomes_an_array_is_a_column() -> None:
    dataset = from_records({"a": [1, 2, 3, 4], "b": jnp.arange(4.0), "c": ("w", "x", "yy", "z")}, batch=4, loading=HERE)
    batch = first(dataset)
    assert sorted(batch["a"].tolist()) == [1, 2, 3, 4]
    assert batch["b"].dtype == np.float32
    assert batch["c"].dtype == np.dtype("<U2")
    assert all(type(array) is np.ndarray and array.flags.writeable for array in batch.values())


# In-place work stays where it is


def test_in_place_work_on_a_batch_never_reaches_the_source(tmp_path: Path) -> None:  # I06
    np.save(tmp_path / "x.npy", np.arange(12.0).reshape(6, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    plain = np.arange(12.0).reshape(6, 2)
    forms: list[Any] = [{"x": mapped}, {"x": plain}, [{"x": row} for row in plain], [{"x": row} for row in mapped]]
    for form in forms:
        kept = copy.deepcopy(form)
        stream = stream_of(from_records(form, batch=3, loading=HERE))
        for _ in range(4):
            batch = next(stream)
            assert batch["x"].flags.owndata
            assert batch["x"].flags.c_contiguous
            batch["x"] += 1
            batch["extra"] = 1
        for name, value in enumerate(form) if isinstance(form, list) else form.items():
            np.testing.assert_array_equal(value["x"] if isinstance(form, list) else value, _x(kept, name))
        del batch, stream
    del mapped, forms, form, kept, value


def _x(kept: Any, name: Any) -> Any:
    return kept[name]["x"] if isinstance(kept, list) else kept[name]


def test_in_place_work_in_preprocess_never_reaches_the_source() -> None:
    def wild(record: Any) -> Any:
        record["x"] *= 2
        record["inner"]["y"] += 1
        record["tags"].append("seen")
        del record["tags"]
        record["new"] = 1
        return record

    records = [{"x": np.ones(2), "inner": {"y": np.zeros(1)}, "tags": ["a"]} for _ in range(4)]
    kept = copy.deepcopy(records)
    stream = stream_of(dataset_of(in_memory(records), batch=4, preprocess=wild, loading=HERE))
    for _ in range(3):
        batch = next(stream)
        assert batch["x"].tolist() == [[2.0, 2.0]] * 4
        assert batch["inner"]["y"].tolist() == [[1.0]] * 4
    np.testing.assert_equal(records, kept)
    columns_kept = {"x": np.ones((4, 2)), "inner": {"y": np.zeros((4, 1))}}

    def scaled(record: Any) -> Any:
        record["x"] *= 2
        record["inner"]["y"] += 1
        return record

    stream = stream_of(dataset_of(in_memory(columns_kept), batch=4, preprocess=scaled, loading=HERE))
    for _ in range(3):
        assert next(stream)["x"].tolist() == [[2.0, 2.0]] * 4
    assert columns_kept["x"].tolist() == [[1.0, 1.0]] * 4
    assert columns_kept["inner"]["y"].tolist() == [[0.0]] * 4


# What is refused, before the first step


@pytest.mark.parametrize("make", [ids, rows])
def test_fewer_records_than_a_batch_are_refused(make: Any) -> None:  # F12
    expected = "holds 3 records, fewer than one global batch of 8: .* smaller batch, or .* repeat_in_step=True"
    with pytest.raises(SourceError, match=expected):
        from_records(make(3), batch=8)
    repeated = first(from_records(make(3), batch=8, repeat_in_step=True, loading=HERE))
    assert sorted(repeated["id"][:6].tolist()) == [0, 0, 1, 1, 2, 2]


def test_a_batch_that_does_not_divide_is_refused_at_the_call() -> None:  # B07
    dataset = from_records(ids(), batch=8, val=ids(9))
    assert dataset.val is not None
    expected = "a global batch of 8 rows does not divide over 3 processes; use a batch of 6 or 9"
    for make in (dataset.train, dataset.val):
        with pytest.raises(PartitionError, match=expected):
            make(DataPartition(0, 3))


@pytest.mark.parametrize(
    ("records", "match"),
    [
        ({}, "no columns were given"),
        ({"x": {}}, "no columns were given"),
        ([], "holds no records"),
        ({"x": []}, "field 'x' is an empty list in its column"),
        ({"x": [1, 2], "y": {"z": [1, 2, 3]}}, r"got unequal lengths: \{'x': 2, 'y.z': 3\}"),
        ({"x": [1, 2], "y": 5}, "column 'y' is a single value; a column has one entry a record"),
        ({"x": {"y": [[1], [2, 3]]}}, r"field 'x\.y' is a ragged list in its column: .*; give its records one dtype"),
        ({"x": [1, None]}, r"field 'x' is None in element \[1\] of its column; fill it"),
        ({1: [1, 2]}, r"a column has the name 1 \(int\); field names are of type str"),
        ({"x": {2: [1, 2]}}, r"a column has the name 2 \(int\)"),
        ([1, 2, 3], r"a record is a mapping of field name to value, got 1 \(int\); name what it holds"),
        (["abc", "def"], r"a record is a mapping of field name to value, got 'abc' \(str\)"),
        ([[1, 2], [3, 4]], r"a record is a mapping of field name to value, got list\(length=2\) \(list\)"),
        ([None, None], r"a record is a mapping of field name to value, got None \(NoneType\)"),
    ],
)
def test_records_that_are_none_are_refused(records: Any, match: str) -> None:
    with pytest.raises(SourceError, match=match):
        from_records(records, batch=2)


@pytest.mark.parametrize("records", ["abc", b"abc", 3, None, np.arange(4), {1, 2}, iter([{"x": 1}])])
def test_what_is_neither_columns_nor_rows_is_refused(records: Any) -> None:
    expected = rf"records are columns .* or a sequence of mappings, got {type(records).__name__}"
    with pytest.raises(OptionsTypeError, match=expected):
        from_records(records, batch=2)


@pytest.mark.parametrize(
    ("records", "match"),
    [
        ([{"x": None}] * 2, "field 'x' is None in record"),
        ([{"x": [[1], [2, 3]]}] * 2, "field 'x' is a ragged list in record"),
        ([{"x": np.zeros(2)}, {"x": np.zeros(3)}], "field 'x' has shape"),
        ([{"x": 1}, {"x": 1.5}], "field 'x' is .*int64.*float64|field 'x' is .*float64.*int64"),
        ([{1: 1}] * 2, r"has the key 1 \(int\); field names are of type str"),
    ],
)
def test_records_that_fit_into_no_batch_are_refused_by_name(records: Any, match: str) -> None:
    with pytest.raises(CollateError, match=match):
        first(from_records(records, batch=2, loading=HERE))


@pytest.mark.parametrize("batch", [0, -8])
def test_no_batch_is_refused(batch: int) -> None:
    with pytest.raises(OptionsError, match=f"batch must be at least 1, got {batch}"):
        from_records(ids(), batch=batch)


# Training and validation apart


def test_the_same_records_are_refused_as_validation() -> None:
    source = in_memory(ids())
    expected = r"training and validation would read the same records: Columns\(.*\) \(fingerprint [0-9a-f]{64}\); .*"
    for make in (
        lambda **more: dataset_of(source, val=source, batch=8, **more),
        lambda **more: from_records(ids(), val=ids(), batch=8, **more),
        lambda **more: from_records(ids(), val=ids(), batch=8, seed=1, **more),
    ):
        with pytest.raises(OverlapError, match=expected + "allow_overlap=True"):
            make()
        assert make(allow_overlap=True).val is not None
    assert from_records(rows(), val=rows()[1:], batch=8).val is not None


def test_sources_that_know_no_fingerprint_are_the_same_only_as_one_object() -> None:
    class Unknown(UserList[Any]):
        def fingerprint(self) -> str | None:
            return None

    source = Unknown(rows())
    with pytest.raises(OverlapError, match="fingerprint None"):
        dataset_of(source, val=source, batch=8)
    assert dataset_of(source, val=Unknown(rows()), batch=8).val is not None


def test_a_stated_count_must_be_the_counted_one() -> None:
    check_records(None, rows(5))
    check_records(5, rows(5))
    expected = r"records=6 was given, but list\(length=5\) counts 5; leave records out"
    with pytest.raises(OptionsError, match=expected):
        check_records(6, rows(5))
    with pytest.raises(OptionsTypeError, match=r"records must be an int, got 5\.0"):
        check_records(5.0, rows(5))  # type: ignore[arg-type]


# What a position says of records in memory


def test_descriptions_name_fields_and_dtypes() -> None:
    assert repr(in_memory({"x": np.zeros((4, 2), np.uint8)})) == "Columns({x: ndarray(shape=(4, 2), dtype=uint8)})"
    assert repr(in_memory(rows(4))) == "Rows(list(length=4))"
    assert repr(in_memory(tuple(rows(4)))) == "Rows(tuple(length=4))"


@pytest.mark.parametrize(
    "changed",
    [
        {"x": np.array([0, 1, 2, 9])},
        {"x": np.arange(4, dtype=np.int32)},
        {"x": np.arange(8).reshape(4, 2)},
        {"z": np.arange(4)},
        {"x": np.arange(4), "y": np.arange(4)},
        {"x": {"y": np.arange(4)}},
    ],
)
def test_a_fingerprint_sees_what_differs(changed: dict[str, Any]) -> None:
    assert in_memory(changed).fingerprint() != in_memory({"x": np.arange(4)}).fingerprint()
    assert in_memory(changed).fingerprint() == in_memory(copy.deepcopy(changed)).fingerprint()


def test_a_fingerprint_reads_64_records_however_many_there_are() -> None:
    class Counted(list[Any]):
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            self.reads += 1
            return super().__getitem__(index)

    records = Counted(rows(100_000))
    before = in_memory(records).fingerprint()
    assert records.reads == 64
    for index, seen in ((0, True), (99_999, True), (1, False)):
        records[index] = {"id": -1}
        assert (in_memory(records).fingerprint() != before) is seen
        records[index] = {"id": index}


@pytest.mark.parametrize(
    "record",
    [
        {"x": [[1], [2, 3]]},
        {"x": [{"y": 1}, {"y": 2}]},
        {"x": None, 3: "a"},
        {"x": "text", "y": b"bytes", "z": 2**80},
        {"x": object()},
        {"x": [object(), 1]},
    ],
)
def test_any_record_has_a_fingerprint_that_lasts(record: dict[Any, Any]) -> None:
    """Records for a preprocess hold what they like; an object's address is no part of them."""
    found = in_memory([record]).fingerprint()
    assert in_memory([{**record}]).fingerprint() == found
    assert in_memory([{**record, "x": object() if type(record["x"]) is object else record["x"]}]).fingerprint() == found
    assert in_memory([{**record, "x": 5}]).fingerprint() != found


FINGERPRINTS = """
import numpy as np
from dew.data.build import in_memory
records = [{"id": index, "text": "abc", "more": {"a": [1, [2, 3]], "b": None}} for index in range(100)]
print(in_memory(records).fingerprint(), in_memory({"b": np.arange(9.0), "a": np.arange(9)}).fingerprint())
"""


def test_fingerprints_are_the_same_in_every_process() -> None:
    found = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", FINGERPRINTS]
        found.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1
    assert len(found.pop().split()) == 2


def test_swapped_records_are_refused_under_a_saved_position() -> None:
    state = json.loads(json.dumps(stream_of(from_records(ids(), batch=8, loading=HERE)).get_state()))
    stream_of(from_records(ids(), batch=8, loading=HERE)).set_state(state)
    other = from_records({"id": np.arange(64) + 1}, batch=8, loading=HERE)
    with pytest.raises(ValueError, match="the saved position has another fingerprint"):
        stream_of(other).set_state(state)


def test_datasets_pickle() -> None:
    """Worker processes get the source that way."""
    dataset = from_records(ids(), batch=8, val=rows(9), loading=HERE)
    again = pickle.loads(pickle.dumps(dataset))
    assert first(again)["id"].tolist() == first(dataset)["id"].tolist()


# A growing batch


def test_a_ramp_keeps_the_order_and_the_validation() -> None:
    plain = from_records(ids(60), batch=8, val=rows(9), loading=HERE)
    dataset = ramped(plain, Ramp(start=2, increment=2, samples=24))
    whole, growing = stream_of(plain), stream_of(dataset)
    found = [next(growing)["id"].tolist() for _ in range(10)]
    assert [len(step) for step in found] == [2, 2, 2, 2, 4, 4, 6, 6, 8, 8]
    expected = [record for _ in range(6) for record in next(whole)["id"].tolist()]
    assert list(chain.from_iterable(found)) == expected[:44]
    assert growing.get_state()["records"] == 44
    assert dataset.steps_per_epoch == 8 + (60 - 28) // 8
    assert dataset.val is not None
    assert [len(batch["id"]) for batch in dataset.val(DataPartition())] == [8, 8]


def test_every_batch_of_a_ramp_must_divide() -> None:
    dataset = ramped(from_records(ids(), batch=8, loading=HERE), Ramp(start=2, increment=2, samples=24))
    with pytest.raises(PartitionError, match="a global batch of 2 rows does not divide over 4 processes"):
        dataset.train(DataPartition(0, 4))
    assert [len(next(stream_of(dataset, DataPartition(index, 2)))["id"]) for index in range(2)] == [1, 1]


def test_ramps_that_cannot_be_are_refused() -> None:
    dataset = from_records(ids(), batch=8, loading=HERE)
    with pytest.raises(OptionsError, match="a ramp from 3 by 2 never reaches the batch of 8"):
        ramped(dataset, Ramp(3, 2, 24))
    once = ramped(dataset, Ramp(2, 2, 24))
    with pytest.raises(OptionsError, match=r"already has the ramp Ramp\(start=2.*; apply Ramp\(start=4"):
        ramped(once, Ramp(4, 2, 24))
    own = Dataset(train=lambda partition: iter([{"x": np.zeros(8)}]), records=8, batch=8)
    expected = "a ramp needs a record stream, .* this dataset's training iterator is a list_iterator"
    with pytest.raises(OptionsTypeError, match=expected):
        ramped(own, Ramp(2, 2, 24)).train(DataPartition())


# The sources themselves


def test_column_sources_read_records_one_by_one_or_as_columns() -> None:
    source = ColumnSource({"x": np.arange(6).reshape(3, 2), "y": {"z": [5, 6, 7]}})
    assert len(source) == 3
    assert source[1]["x"].tolist() == [2, 3]
    assert source[1]["y"]["z"] == 6
    taken = source.take(np.array([2, 0, 2]))
    assert taken["x"].tolist() == [[4, 5], [0, 1], [4, 5]]
    assert taken["y"]["z"].tolist() == [7, 5, 7]
    with pytest.raises(IndexError):
        source[3]
