"""Every type of a column: an array of a stated dtype, the value itself, or an error that names column and row."""

import datetime
import decimal
import io
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dew.data import CollateError, DataPartition, HFOptions, Loading, SourceError, identity, load

MODES = ({}, {"streaming": True}, {"streaming": True, "position": "records"})
DIRECT = Loading(read_buffer=0, threads=1, workers=0)


def opened(paths: Any, mode: dict[str, Any], batch: int = 1, preprocess: Any = identity, **options: Any) -> Any:
    kind = "json" if str(paths if isinstance(paths, str) else paths[0]).endswith("jsonl") else "parquet"
    position = {"position": mode["position"]} if "position" in mode else {}
    return load(
        f"hf/{kind}",
        batch=batch,
        streaming=mode.get("streaming", False),
        options=HFOptions(data_files=paths, **position, **options),
        preprocess=preprocess,
        loading=DIRECT,
    )


def rows(paths: Any, mode: dict[str, Any], count: int, **options: Any) -> list[Any]:
    """What `preprocess` receives of the first `count` rows, by their `id`."""
    seen: list[Any] = []

    def keep(record: Any) -> Any:
        seen.append(record)
        return {"id": record["id"]}

    with opened(paths, mode, preprocess=keep, **options).train(DataPartition()) as stream:
        for _ in range(count):
            next(stream)
    return sorted(seen, key=lambda record: record["id"])


def write(path: Path, columns: dict[str, Any], schema: pa.Schema | None = None) -> str:
    pq.write_table(pa.table(columns, schema=schema), path)
    return str(path)


@pytest.mark.parametrize("mode", MODES)
def test_values_are_what_the_types_say(mode: Any, tmp_path: Path) -> None:
    when = datetime.datetime(2020, 1, 2, 3, 4, 5)
    path = write(
        tmp_path / "a.parquet",
        {
            "id": pa.array([0, 1, 2], pa.int64()),
            "small": pa.array([1, None, 3], pa.int8()),
            "flag": pa.array([True, False, None]),
            "ragged": pa.array([[], [1], [1, 2]], pa.list_(pa.uint16())),
            "holed": pa.array([[1.5, None], None, [2.0]], pa.list_(pa.float32())),
            "fixed": pa.array([[1, 2], [3, 4], None], pa.list_(pa.int32(), 2)),
            "deep": pa.array([[[1], [2, 3]], [], None], pa.list_(pa.list_(pa.int64()))),
            "struct": pa.array([{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}]),
            "structs": pa.array([[{"n": 1}], [], None], pa.list_(pa.struct({"n": pa.int16()}))),
            "when": pa.array([when, None, when]),
            "took": pa.array([datetime.timedelta(seconds=5)] * 3),
            "price": pa.array([decimal.Decimal("1.10")] * 3),
            "raw": pa.array([b"\x00\xff", b"", None]),
            "nothing": pa.nulls(3),
            "large": pa.array(["a", "b", "c"], pa.large_string()),
        },
    )
    first, second, third = rows(path, mode, 3)
    assert (first["small"].dtype, first["small"], second["small"]) == (np.int8, 1, None)
    assert [row["flag"] for row in (first, second, third)] == [True, False, None]
    assert [row["ragged"].tolist() for row in (first, second, third)] == [[], [1], [1, 2]]
    assert {row["ragged"].dtype for row in (first, second, third)} == {np.dtype(np.uint16)}
    assert first["holed"] == [1.5, None]
    assert second["holed"] is None
    assert third["holed"].dtype == np.float32
    assert (first["fixed"].tolist(), second["fixed"].tolist(), third["fixed"]) == ([1, 2], [3, 4], None)
    assert [part.tolist() for part in first["deep"]] == [[1], [2, 3]]
    assert (second["deep"], third["deep"]) == ([], None)
    assert (first["struct"], second["struct"]) == ({"a": 1, "b": {"c": "x"}}, None)
    assert third["struct"] == {"a": None, "b": None}
    assert (first["structs"], second["structs"], third["structs"]) == ([{"n": 1}], [], None)
    assert (first["when"], second["when"]) == (when, None)
    assert (first["took"], first["price"]) == (datetime.timedelta(seconds=5), decimal.Decimal("1.10"))
    assert [row["raw"] for row in (first, second, third)] == [b"\x00\xff", b"", None]
    assert (first["nothing"], first["large"]) == (None, "a")


@pytest.mark.parametrize("mode", MODES)
def test_a_large_integer_beside_a_null_is_exact(mode: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"id": [0, 1, 2], "n": [1, None, 9007199254740993]})
    assert [row["n"] for row in rows(path, mode, 3)] == [1, None, 9007199254740993]


@pytest.mark.parametrize("mode", MODES)
def test_rows_may_be_written_into(mode: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"id": [0, 1], "x": [[1, 2], [3, 4]]})
    for row in rows(path, mode, 2):
        row["x"][:] = 0
    assert [row["x"].tolist() for row in rows(path, mode, 2)] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("mode", MODES)
def test_ragged_rows_are_refused_with_both_lengths(mode: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"score": [[0.0, 0.0], [0.0, 0.0, 0.0]] * 2})
    message = r"'score' has shape \(\d,\) in .* and \(\d,\) in"
    with opened(path, mode, batch=4).train(DataPartition()) as stream, pytest.raises(CollateError, match=message):
        next(stream)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("when", datetime.datetime(2020, 1, 1)),
        ("price", decimal.Decimal("1.10")),
        ("took", datetime.timedelta(seconds=5)),
        ("raw", b"\x00\xff"),
    ],
)
def test_values_without_a_place_in_a_batch_are_refused_by_field(name: str, value: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {name: [value]})
    with opened(path, {}).train(DataPartition()) as stream, pytest.raises(CollateError, match=f"field '{name}' is"):
        next(stream)


def test_a_duration_as_nanoseconds_is_exact(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"took": [datetime.timedelta(seconds=5)]})

    def nanoseconds(record: Any) -> Any:
        return {"ns": round(record["took"].total_seconds() * 1e9)}

    with opened(path, {}, preprocess=nanoseconds).train(DataPartition()) as stream:
        (found,) = next(stream)["ns"]
    assert (found, found.dtype) == (5_000_000_000, np.int64)


# Types that change from file to file


@pytest.mark.parametrize("mode", MODES)
def test_mixed_integer_widths_are_those_of_the_first_file(mode: Any, tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "a.parquet", {"id": pa.array([0], pa.int32())}),
        write(tmp_path / "b.parquet", {"id": pa.array([1], pa.int64())}),
    ]
    found = rows(paths, mode, 2)
    assert [(row["id"], row["id"].dtype) for row in found] == [(0, np.int32), (1, np.int32)]


@pytest.mark.parametrize("mode", MODES)
def test_an_integer_that_the_first_files_type_cannot_hold_is_refused(mode: Any, tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "a.parquet", {"id": pa.array([0], pa.int8())}),
        write(tmp_path / "b.parquet", {"id": pa.array([1000], pa.int64())}),
    ]
    with pytest.raises(SourceError, match=r"column 'id' is int8 .*int64") as caught:
        rows(paths, mode, 2)
    assert "b.parquet" in f"{caught.value} {caught.value.__notes__ if hasattr(caught.value, '__notes__') else ''}"


@pytest.mark.parametrize("mode", MODES)
def test_an_all_null_column_in_the_first_file_is_refused_by_name_or_kept(mode: Any, tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "a.parquet", {"id": [0], "late": pa.nulls(1)}),
        write(tmp_path / "b.parquet", {"id": [1], "late": [5]}),
    ]
    with pytest.raises(SourceError, match=r"column 'late' is null .*int64") as caught:
        rows(paths, mode, 2)
    assert "b.parquet" in f"{caught.value} {caught.value.__notes__ if hasattr(caught.value, '__notes__') else ''}"
    features = datasets.Features(id=datasets.Value("int64"), late=datasets.Value("int16"))
    found = rows(paths, mode, 2, features=features)
    assert [row["late"] for row in found] == [None, 5]
    assert found[1]["late"].dtype == np.int16


def test_a_null_column_of_json_is_refused_by_name_and_row(tmp_path: Path) -> None:
    paths = []
    for number, late in enumerate([None, "x"]):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json.dumps({"id": number, "late": late}) + "\n")
        paths.append(str(path))
    with pytest.raises(SourceError, match="string to null") as caught:
        rows(paths, {"streaming": True}, 2)
    notes = " ".join(caught.value.__notes__)
    assert "after row 1" in notes
    assert "columns ['late'] were null" in notes


def test_a_column_that_comes_up_later_is_refused_by_name(tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json.dumps({"id": number} | ({"extra": 1} if number else {})) + "\n")
        paths.append(str(path))
    with pytest.raises(SourceError, match="extra"):
        rows(paths, {"streaming": True}, 2)


def test_a_column_that_is_absent_later_is_null(tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json.dumps({"id": number} | ({} if number else {"extra": 1})) + "\n")
        paths.append(str(path))
    assert [row["extra"] for row in rows(paths, {"streaming": True}, 2)] == [1, None]


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_file_between_others_is_passed_over(mode: Any, tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.int64()})
    paths = [
        write(tmp_path / "a.parquet", {"id": [0, 1]}),
        write(tmp_path / "b.parquet", {"id": []}, schema),
        write(tmp_path / "c.parquet", {"id": [2]}),
    ]
    assert [row["id"] for row in rows(paths, mode, 3)] == [0, 1, 2]


# Images


def png(level: int) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (4, 3), (level, 0, 0)).save(data, "PNG")
    return data.getvalue()


def image_file(path: Path, images: list[Any]) -> str:
    table = datasets.Dataset.from_dict(
        {"id": list(range(len(images))), "image": images},
        features=datasets.Features(id=datasets.Value("int64"), image=datasets.Image()),
    )
    table.to_parquet(path)
    return str(path)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("mode", MODES)
def test_images_are_decoded_here(mode: Any, tmp_path: Path) -> None:
    path = image_file(tmp_path / "a.parquet", [{"bytes": png(10)}, None, {"bytes": png(30)}])
    first, second, third = rows(path, mode, 3)
    assert (first["image"].shape, first["image"].dtype) == ((3, 4, 3), np.uint8)
    assert (first["image"][0, 0].tolist(), second["image"], third["image"][0, 0].tolist()) == (
        [10, 0, 0],
        None,
        [30, 0, 0],
    )


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("mode", MODES)
def test_a_damaged_image_is_named(mode: Any, tmp_path: Path) -> None:
    path = image_file(tmp_path / "a.parquet", [{"bytes": b"<html>not found</html>", "path": "cat.png"}])
    message = r"column 'image' \(cat.png\) is no image"
    with opened(path, mode).train(DataPartition()) as stream, pytest.raises(SourceError, match=message) as caught:
        next(stream)
    assert "place 0" in " ".join(caught.value.__notes__)


def test_images_of_a_webdataset_are_decoded_here(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(3):
            for ending, data in (("png", png(number)), ("cls", str(number).encode())):
                entry = tarfile.TarInfo(f"{number}.{ending}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))

    def keep(record: Any) -> Any:
        return {"image": record["png"], "label": record["cls"]}

    dataset = load(
        "hf/webdataset",
        batch=3,
        streaming=True,
        options=HFOptions(data_files=str(tmp_path / "a.tar")),
        preprocess=keep,
        loading=DIRECT,
    )
    with dataset.train(DataPartition()) as stream:
        batch = next(stream)
    assert (batch["image"].shape, batch["image"].dtype) == ((3, 3, 4, 3), np.uint8)
    assert batch["image"][:, 0, 0, 0].tolist() == batch["label"].tolist() == [0, 1, 2]


def test_fixed_arrays_are_arrays(tmp_path: Path) -> None:
    features = datasets.Features(grid=datasets.Array2D((2, 3), "float32"))
    given = datasets.Dataset.from_dict({"grid": [np.ones((2, 3)), np.zeros((2, 3))]}, features=features)
    with load("hf/x", batch=2, dataset=given, preprocess=identity, loading=DIRECT).train(DataPartition()) as stream:
        assert (next(stream)["grid"].shape, next(stream)["grid"].dtype) == ((2, 2, 3), np.float32)
