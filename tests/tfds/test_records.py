"""Every kind of feature: the right values in the declared dtypes, and refusals where what is stored is not declared.

The expected values are those that went into the preparation; where tensorflow-datasets can read a field without
TensorFlow, its own reader is a second witness.
"""

import json
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from dew.data import TFDSOptions
from dew.data.errors import DamagedSourceError, OptionsError, SourceError
from dew_tfds.source import TFDSSource, open_split

F = tfds.features
Prepare = Callable[..., Path]

FEATURES: dict[str, Any] = {
    "flag": np.bool_,
    "i8": np.int8,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u64": np.uint64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "scalar": F.Scalar(dtype=np.int16),
    "label": F.ClassLabel(names=["a", "b", "c"]),
    "text": F.Text(),
    "raw": F.Tensor(shape=(), dtype=np.bytes_),
    "words": F.Tensor(shape=(2,), dtype=np.str_),
    "fixed": F.Tensor(shape=(2, 3), dtype=np.float32),
    "grid": F.Tensor(shape=(2, 2), dtype=np.uint8),
    "mask": F.Tensor(shape=(4,), dtype=np.bool_),
    "open": F.Tensor(shape=(None, 2), dtype=np.int16),
    "zipped": F.Tensor(shape=(3, 2), dtype=np.int32, encoding="zlib"),
    "bytes": F.Tensor(shape=(None, 2), dtype=np.float64, encoding="bytes"),
    "sized": F.Tensor(shape=(None, None, 2), dtype=np.uint16, encoding="zlib"),
    "box": F.BBoxFeature(),
    "ids": F.Sequence(np.int32),
    "pair": F.Sequence(np.float32, length=2),
    "boxes": F.Sequence(F.Tensor(shape=(4,), dtype=np.float32)),
    "labels": F.Sequence(F.ClassLabel(names=["x", "y"])),
    "texts": F.Sequence(F.Text()),
    "raws": F.Sequence(F.Tensor(shape=(), dtype=np.bytes_)),
    "zips": F.Sequence(F.Tensor(shape=(2,), dtype=np.int64, encoding="zlib")),
    "uneven": F.Sequence(F.Tensor(shape=(None,), dtype=np.int64, encoding="bytes")),
    "objects": F.Sequence({"id": np.int64, "name": F.Text(), "at": {"x": np.float32}}),
    "nested": {"deep": {"value": np.int32}, "text": F.Text()},
    "translation": F.Translation(languages=["de", "en"]),
    "variable": F.TranslationVariableLanguages(languages=["de", "en", "fr"]),
    "steps": F.Dataset({"reward": np.float32, "action": F.Tensor(shape=(2,), dtype=np.int32), "said": F.Text()}),
    "maybe": F.Tensor(shape=(), dtype=np.int32, optional=True),
}


def given(number: int) -> dict[str, Any]:
    """What record `number` is prepared from."""
    n, many = number, number % 3
    rng = np.random.default_rng(number)
    return {
        "flag": n % 2 == 1,
        "i8": -n,
        "i32": -(2**31) + n,
        "i64": 2**63 - 1 - n,
        "u8": 255 - n,
        "u64": 2**64 - 1 - n,
        "f16": 0.5 * n,
        "f32": 0.1,
        "f64": 0.25 * n,
        "scalar": -3 * n,
        "label": n % 3,
        "text": f"grüße {n} \U0001f9ea" if many else "",
        "raw": b"\xff\x00" * many,
        "words": [f"w{n}", ""],
        "fixed": rng.random((2, 3), dtype=np.float32),
        "grid": rng.integers(0, 256, (2, 2), dtype=np.uint8),
        "mask": rng.integers(0, 2, 4).astype(bool),
        "open": rng.integers(-9, 9, (many, 2), dtype=np.int16),
        "zipped": rng.integers(-9, 9, (3, 2), dtype=np.int32),
        "bytes": rng.random((many, 2)),
        "sized": rng.integers(0, 9, (many, 3, 2), dtype=np.uint16),
        "box": F.BBox(ymin=0.25, xmin=0.5, ymax=0.5, xmax=0.75),
        "ids": list(range(many)),
        "pair": [0.5, n],
        "boxes": [[0, 1, 2, n]] * many,
        "labels": ["x", "y", "x"][:many],
        "texts": ["one", "zwölf", ""][:many],
        "raws": [b"\xfe", b""][:many],
        "zips": [rng.integers(0, 9, 2) for _ in range(many)],
        "uneven": [np.arange(length) for length in range(many)],
        "objects": [{"id": n + i, "name": f"o{i}", "at": {"x": i / 2}} for i in range(many)],
        "nested": {"deep": {"value": n}, "text": f"inner {n}"},
        "translation": {"de": f"Satz {n}", "en": f"sentence {n}"},
        "variable": {"en": "a", "fr": ["b", "c"][:many]} if many else {"de": "d"},
        "steps": [{"reward": i / 4, "action": [i, n], "said": f"s{i}"} for i in range(many + 1)],
        "maybe": None if n % 2 else n,
    }


def expected(number: int) -> dict[str, Any]:
    """What record `number` holds."""
    n, many, stored = number, number % 3, given(number)
    objects, steps = stored["objects"], stored["steps"]
    variable = [("en", "a"), *(("fr", text) for text in "bc"[:many])] if many else [("de", "d")]
    return stored | {
        "flag": np.bool_(n % 2 == 1),
        "i8": np.int8(-n),
        "i32": np.int32(-(2**31) + n),
        "i64": np.int64(2**63 - 1 - n),
        "u8": np.uint8(255 - n),
        "u64": np.uint64(2**64 - 1 - n),
        "f16": np.float16(0.5 * n),
        "f32": np.float32(0.1),
        "f64": np.float64(0.25 * n),
        "scalar": np.int16(-3 * n),
        "label": np.int64(n % 3),
        "words": np.array([f"w{n}".encode(), b""], object),
        "box": np.array([0.25, 0.5, 0.5, 0.75], np.float32),
        "ids": np.arange(many, dtype=np.int32),
        "pair": np.array([0.5, n], np.float32),
        "boxes": np.array([[0, 1, 2, n]] * many, np.float32).reshape(-1, 4),
        "labels": np.array([0, 1, 0][:many], np.int64),
        "zips": np.array(stored["zips"], np.int64).reshape(-1, 2),
        "objects": {
            "id": np.array([one["id"] for one in objects], np.int64),
            "name": [one["name"] for one in objects],
            "at": {"x": np.array([one["at"]["x"] for one in objects], np.float32)},
        },
        "nested": {"deep": {"value": np.int32(n)}, "text": f"inner {n}"},
        "variable": {"language": [one for one, _ in variable], "translation": [text for _, text in variable]},
        "steps": {
            "reward": np.array([one["reward"] for one in steps], np.float32),
            "action": np.array([one["action"] for one in steps], np.int32),
            "said": [one["said"] for one in steps],
        },
        "maybe": None if n % 2 else np.int32(n),
    }


def same(found: Any, wanted: Any, path: str = "") -> None:
    """Values, types and dtypes alike."""
    assert type(found) is type(wanted), f"{path}: {found!r} ({type(found)}), not {wanted!r} ({type(wanted)})"
    if isinstance(wanted, Mapping):
        assert sorted(found) == sorted(wanted)
        for name, value in wanted.items():
            same(found[name], value, f"{path}/{name}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other, path)
    elif isinstance(wanted, np.ndarray):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), path
        np.testing.assert_array_equal(found, wanted, err_msg=path)
    else:
        assert found == wanted, path


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory, prepare: Prepare) -> Path:
    directory = tmp_path_factory.mktemp("kinds")
    return prepare(directory, "kinds", FEATURES, {"train": [given(number) for number in range(12)]}, shards=3)


def opened(path: Path, **options: Any) -> TFDSSource:
    return open_split(path.parent.name, "train", TFDSOptions(path=str(path), **options))


@pytest.mark.parametrize("number", range(12))
def test_each_kind_has_its_values_and_dtypes(kinds: Path, number: int) -> None:
    with_record = opened(kinds)
    record = with_record[number]
    with_record.close()
    assert list(record) == sorted(FEATURES)
    wanted = expected(number)
    for name, value in record.items():
        same(value, wanted[name], name)


def test_records_are_what_tensorflow_datasets_reads(kinds: Path) -> None:
    """Up to what it leaves untyped: Python's own scalars, bytes for text, lists for sequences."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: plain(part) for name, part in value.items()}
        if isinstance(value, list | np.ndarray):
            return [plain(part) for part in value]
        if isinstance(value, str):
            return value.encode()
        return value.item() if isinstance(value, np.generic) else value

    theirs = tfds.builder_from_directory(str(kinds)).as_data_source("train")
    source = opened(kinds)
    for number in range(len(source)):
        ours, other = source[number], theirs[number]
        episode = [plain(other["steps"][step]) for step in range(len(other["steps"]))]
        assert plain(ours.pop("steps")) == {key: [one[key] for one in episode] for key in episode[0]}
        del other["steps"]
        assert plain(ours) == plain(other)
    theirs.data_source.__exit__(None, None, None)
    source.close()


def test_fields_in_words(kinds: Path) -> None:
    words = opened(kinds).fields()
    assert words["flag"] == "bool, Tensor"
    assert words["label"] == "int64, ClassLabel of 3"
    assert words["open"] == "int16 (?, 2), Tensor"
    assert words["boxes"] == "float32 (?, 4), Sequence of Tensor"
    assert words["texts"] == "list of str, Sequence of Text"
    assert words["uneven"] == "list of int64 (?,), Sequence of Tensor"
    assert words["raw"] == "bytes, Tensor"
    assert words["words"] == "bytes (2,), Tensor"
    assert words["objects"]["at"] == {"x": "float32 (?,), Sequence of Tensor"}
    assert words["steps"]["action"] == "int32 (?, 2), Dataset of Tensor"
    assert words["maybe"] == "int32, Tensor; None where there is none"


def test_labels_have_their_names(kinds: Path) -> None:
    assert opened(kinds).labels == {"label": ("a", "b", "c"), "labels": ("x", "y")}


def test_arrays_belong_to_the_receiver(kinds: Path) -> None:
    source = opened(kinds)
    record = source[2]
    for name, value in record.items():
        if isinstance(value, np.ndarray):
            assert value.flags.writeable, name
            value[...] = value[::-1].copy()
    for name, value in source[2].items():
        same(value, expected(2)[name], name)
    source.close()


# Sequences within sequences: only TensorFlow prepares them, so they are written as it stores them.
RAGGED = {
    "rows": F.Sequence(F.Sequence(np.int32)),
    "pairs": F.Sequence(F.Sequence(np.float32, length=2)),
    "three": F.Sequence(F.Sequence(F.Sequence(np.int64))),
    "words": F.Sequence(F.Sequence(F.Text())),
    "points": F.Sequence(F.Sequence(F.Tensor(shape=(2,), dtype=np.int64))),
    "objects": F.Sequence({"tags": F.Sequence(F.ClassLabel(num_classes=3))}),
}
ROWS: list[dict[str, Any]] = [
    {
        "rows/ragged_flat_values": [1, 2, 3, 4],
        "rows/ragged_row_lengths_0": [3, 0, 1],
        "pairs/ragged_flat_values": [0.5, 1.5, 2.5, 3.5],
        "pairs/ragged_row_lengths_0": [2, 2],
        "three/ragged_flat_values": [1, 2, 3],
        "three/ragged_row_lengths_0": [2, 0, 1],
        "three/ragged_row_lengths_1": [1, 0, 2],
        "words/ragged_flat_values": [b"a", "é".encode(), b"c"],
        "words/ragged_row_lengths_0": [1, 2],
        "points/ragged_flat_values": [1, 2, 3, 4],
        "points/ragged_row_lengths_0": [0, 2],
        "objects/tags/ragged_flat_values": [0, 2],
        "objects/tags/ragged_row_lengths_0": [1, 1],
    }
]


def test_sequences_within_sequences(tmp_path: Path, write: Prepare) -> None:
    source = opened(write(tmp_path, "ragged", RAGGED, ROWS))
    record = source[0]
    source.close()
    int64 = np.int64
    same(record["rows"], [np.array([1, 2, 3], np.int32), np.array([], np.int32), np.array([4], np.int32)])
    same(record["pairs"], np.array([[0.5, 1.5], [2.5, 3.5]], np.float32))
    same(record["three"], [[np.array([1], int64), np.array([], int64)], [], [np.array([2, 3], int64)]])
    same(record["words"], [["a"], ["é", "c"]])
    same(record["points"], [np.zeros((0, 2), int64), np.array([[1, 2], [3, 4]], int64)])
    same(record["objects"], {"tags": [np.array([0], int64), np.array([2], int64)]})
    assert source.fields()["rows"] == "list of int32 (?,), Sequence of Sequence of Tensor"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows/ragged_row_lengths_0": [3, 0]}, "field 'rows': sequences of 3 elements are declared, and 4 are stored"),
        ({"rows/ragged_row_lengths_0": [5, -1]}, "field 'rows': sequences of 4 elements are declared"),
        ({"pairs/ragged_row_lengths_0": [3, 1]}, "sequences of 2 elements are declared, and one of 3 is stored"),
        ({"words/ragged_row_lengths_0": [b"a"]}, "field 'words': integers are declared and bytes stored"),
    ],
)
def test_lengths_that_do_not_add_up(tmp_path: Path, write: Prepare, change: Any, message: str) -> None:
    path = write(tmp_path, "ragged", RAGGED, [ROWS[0] | change])
    with pytest.raises(DamagedSourceError, match=re.escape(message)):
        opened(path)


PLAIN = {
    "id": np.int32,
    "flag": np.bool_,
    "x": F.Tensor(shape=(2,), dtype=np.float32),
    "text": F.Text(),
    "seq": F.Sequence(np.uint8, length=2),
    "zip": F.Tensor(shape=(2,), dtype=np.int64, encoding="zlib"),
    "size": F.Tensor(shape=(None, None), dtype=np.int64, encoding="bytes"),
}
PACKED = zlib.compress(struct.pack("<2q", 1, 2))
STORED: dict[str, Any] = {
    "id": [7],
    "flag": [1],
    "x": [0.5, 1.5],
    "text": [b"t"],
    "seq": [1, 2],
    "zip": [PACKED],
    "size/value": [struct.pack("<2q", 1, 2)],
    "size/shape": [1, 2],
}


def test_plain_as_it_is_stored(tmp_path: Path, write: Prepare) -> None:
    source = opened(write(tmp_path, "plain", PLAIN, [STORED | {"unknown": [1]}]))
    record = source[0]
    source.close()
    same(record["zip"], np.array([1, 2]))
    same(record["size"], np.array([[1, 2]]))
    assert "unknown" not in record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": None}, "field 'id': nothing is stored for it, under 'id'; the record has ['flag', 'seq', "),
        ({"size/shape": None}, "field 'size': nothing is stored for it, under 'size/shape'"),
        ({"id": []}, "field 'id': one value is declared and 0 are stored"),
        ({"id": [1, 2]}, "field 'id': one value is declared and 2 are stored"),
        ({"id": [2**40]}, "field 'id': Python integer 1099511627776 out of bounds for int32"),
        ({"id": [0.5]}, "field 'id': integers are declared and floats stored, under 'id'"),
        ({"id": [b"7"]}, "field 'id': integers are declared and bytes stored"),
        ({"flag": [2]}, "field 'flag': bool is declared, and 2 is stored"),
        ({"x": [0.5]}, "field 'x': cannot reshape array of size 1 into shape (2,)"),
        ({"x": [1, 2]}, "field 'x': floats are declared and integers stored"),
        ({"text": [b"\xff\xfe"]}, "field 'text': text is declared, and bytes that are not UTF-8 are stored"),
        ({"seq": [1, 2, 3]}, "field 'seq': a sequence of 2 elements is declared, and one of 3 stored"),
        ({"seq": [1, 256]}, "field 'seq': uint8 is declared, and 256 is stored"),
        ({"seq": [-1, 2]}, "field 'seq': uint8 is declared, and -1 is stored"),
        ({"zip": [PACKED[:-6]]}, "field 'zip': the compressed bytes end early, after"),
        ({"zip": [b"nothing"]}, "field 'zip': Error -3 while decompressing data"),
        ({"zip": [zlib.compress(b"1" * 9)]}, "a tensor of int64 (2,) takes 16 bytes, and 9 or more are stored"),
        ({"zip": [zlib.compress(bytes(10**8))]}, "a tensor of int64 (2,) takes 16 bytes, and 17 or more are stored"),
        ({"size/shape": [2, 2]}, "field 'size': a tensor of int64 (2, 2) takes 32 bytes, and 16 or more are stored"),
        ({"size/shape": [1, 2, 1]}, "the shape (?, ?) is declared and (1, 2, 1) stored"),
        ({"size/shape": [2**30, 2**30]}, "a tensor of 9223372036854775808 bytes is stored, more than 2147483648"),
        ({"size/shape": [-1, -2]}, "field 'size': the shape (?, ?) is declared and (-1, -2) stored"),
    ],
)
def test_what_is_not_declared_is_refused_by_field(tmp_path: Path, write: Prepare, change: Any, message: str) -> None:
    stored = {key: value for key, value in (STORED | change).items() if value is not None}
    path = write(tmp_path, "plain", PLAIN, [STORED, stored])
    source = opened(path)
    assert source[0]["text"] == "t"
    with pytest.raises(DamagedSourceError, match=re.escape(message)) as caught:
        source[1]
    assert caught.value.__notes__ == ["record 1 of plain-train.array_record-00000-of-00001"]
    source.close()


def test_record_0_is_read_when_the_split_is_opened(tmp_path: Path, write: Prepare) -> None:
    path = write(tmp_path, "plain", PLAIN, [{**STORED, "id": [2**40]}])
    with pytest.raises(DamagedSourceError, match="out of bounds for int32"):
        opened(path)


def test_bytes_that_are_no_record(tmp_path: Path, write: Prepare) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    path = write(tmp_path, "plain", PLAIN, [STORED])
    for data, message in ((b"\xff" * 40, "is no tf.train.Example (40 bytes)"), (b"", "nothing is stored for it")):
        writer = ArrayRecordWriter(str(path / "plain-train.array_record-00000-of-00001"), "group_size:1")
        writer.write(data)
        writer.close()
        with pytest.raises(DamagedSourceError, match=re.escape(message)):
            opened(path)


def test_sequences_whose_elements_cannot_be_told_apart(tmp_path: Path, write: Prepare) -> None:
    features = {"parts": F.Sequence(F.Tensor(shape=(None, 2), dtype=np.int64))}
    path = write(tmp_path, "parts", features, [{"parts": [1, 2, 3, 4]}])
    message = "field 'parts' of parts/1.2.0 is a sequence of tensors of unknown size, which are stored without"
    with pytest.raises(SourceError, match=re.escape(message)):
        opened(path)
    features = {"a": {"parts": F.Sequence(F.Sequence(F.Tensor(shape=(None, None), dtype=np.int8, encoding="bytes")))}}
    path = write(tmp_path, "deep", features, [{}])
    with pytest.raises(
        SourceError, match=re.escape("field 'a/parts' of deep/1.2.0 is a tensor of unknown shape within")
    ):
        opened(path)


def test_a_record_that_is_no_mapping(tmp_path: Path, write: Prepare) -> None:
    path = write(tmp_path, "bare", {"x": np.int64}, [{"x": [1]}])
    described = json.loads((path / "features.json").read_text())
    sequence = {
        "pythonClassName": "tensorflow_datasets.core.features.sequence_feature.Sequence",
        "sequence": {"feature": described, "length": "-1"},
    }
    (path / "features.json").write_text(json.dumps(sequence))
    with pytest.raises(
        SourceError, match=re.escape("the records of bare/1.2.0 are no mapping of field names but a Seq")
    ):
        opened(path)


SKIP = tfds.decode.SkipDecoding()


def test_text_as_bytes(tmp_path: Path, write: Prepare) -> None:
    source = opened(write(tmp_path, "plain", PLAIN, [STORED | {"text": [b"\xff"]}]), decoders={"text": SKIP})
    assert source[0]["text"] == b"\xff"
    source.close()
    with pytest.raises(OptionsError, match="name \\['txt'\\], which are no fields"):
        opened(tmp_path / "plain" / "1.2.0", decoders={"txt": SKIP})
