"""The caller's decoders: passed on unchanged where tensorflow-datasets can run them, else refused by name."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from dew.data import OptionsError, OptionsTypeError, PositionMismatchError, TFDSOptions, load
from dew.data.dataset import DataPartition
from dew_tfds.source import TFDSSource, open_split

F = tfds.features
Prepare = Callable[..., Path]
SKIP = tfds.decode.SkipDecoding()


def opened(path: Path, decoders: Any) -> TFDSSource:
    return open_split(path.parents[1].name, "train", TFDSOptions(path=str(path), decoders=decoders))


def first(path: Path, decoders: Any) -> Any:
    source = open_split("kinds", "train", TFDSOptions(path=str(path), decoders=decoders))
    try:
        return source[0]
    finally:
        source.close()


@tfds.decode.make_decoder()
def halved(data: Any, feature: Any) -> Any:
    return feature.decode_example_np(data)[::2, ::2]


class Scaled(tfds.decode.Decoder):
    """A decoder with a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def decode_example(self, serialized_example: Any) -> Any:
        raise AssertionError("TensorFlow's way")

    def decode_example_np(self, serialized_example: Any) -> Any:
        return serialized_example * self.factor


class Importing(tfds.decode.Decoder):
    def decode_example(self, serialized_example: Any) -> Any:
        import tensorflow

        return tensorflow.io.decode_image(serialized_example)


FEATURES = {
    "image": F.Image(shape=(8, 8, 3)),
    "x": F.Tensor(shape=(2,), dtype=np.float32),
    "n": np.int64,
    "text": F.Text(),
    "seq": F.Sequence(np.int64),
    "objects": F.Sequence({"id": np.int64}),
    "steps": F.Dataset({"x": np.float32, "n": np.int64}),
    "inner": {"n": np.int64, "m": np.int64},
}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory, prepare: Prepare, as_png: Any) -> Path:
    record = {
        "image": as_png(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)),
        "x": np.array([1.5, 2.0], np.float32),
        "n": 3,
        "text": "é",
        "seq": [1, 2],
        "objects": [{"id": 1}],
        "steps": [{"x": 0.5, "n": 1}, {"x": 1.5, "n": 2}],
        "inner": {"n": 4, "m": 5},
    }
    return prepare(tmp_path_factory.mktemp("decoders"), "kinds", FEATURES, {"train": [record]})


def test_skipping_gives_the_stored_value(kinds: Path) -> None:
    record = first(kinds, {"image": SKIP, "text": SKIP, "n": SKIP, "x": SKIP, "inner": {"m": SKIP}})
    assert record["image"].startswith(b"\x89PNG")
    assert record["text"] == "é".encode()
    assert record["n"] == 3
    assert type(record["n"]) is int
    np.testing.assert_array_equal(record["x"], np.array([1.5, 2.0], np.float32))
    assert type(record["inner"]["m"]) is int
    assert type(record["inner"]["n"]) is np.int64


def test_decoders_of_ones_own(kinds: Path) -> None:
    decoders = {"image": halved(), "x": Scaled(2.0), "inner": {"n": Scaled(10)}}
    record = first(kinds, decoders)
    theirs = tfds.builder_from_directory(str(kinds)).as_data_source("train", decoders=decoders)[0]
    np.testing.assert_array_equal(record["image"], np.arange(192, dtype=np.uint8).reshape(8, 8, 3)[::2, ::2])
    np.testing.assert_array_equal(record["image"], theirs["image"])
    np.testing.assert_array_equal(record["x"], [3.0, 4.0])
    assert record["inner"]["n"] == theirs["inner"]["n"] == 40


def test_decoders_inside_a_nested_dataset(kinds: Path) -> None:
    record = first(kinds, {"steps": {"x": Scaled(2.0)}})
    assert record["steps"]["x"] == [1.0, 3.0]
    np.testing.assert_array_equal(record["steps"]["n"], [1, 2])


def test_fields_name_their_decoder(kinds: Path) -> None:
    source = open_split("kinds", "train", TFDSOptions(path=str(kinds), decoders={"image": SKIP, "steps": {"n": SKIP}}))
    assert source.fields()["image"] == "by SkipDecoding, Image"
    assert source.fields()["steps"]["n"] == "by SkipDecoding, Dataset of Tensor"
    assert "decoders={image: SkipDecoding, steps: {n: SkipDecoding}})" in repr(source)


@pytest.mark.parametrize(
    ("decoders", "kind", "message"),
    [
        ({"seq": SKIP}, OptionsError, "the decoder SkipDecoding of 'seq' stands inside a sequence, where"),
        ({"objects": {"id": Scaled(1)}}, OptionsError, "the decoder Scaled of 'objects/id' stands inside a sequence"),
        (
            {"imge": SKIP},
            OptionsError,
            "decoders of kinds/1.2.0 name ['imge'], which are no fields; there are ['image'",
        ),
        ({"inner": {"k": SKIP}}, OptionsError, "decoders of 'inner' of kinds/1.2.0 name ['k']"),
        ({"inner": SKIP}, OptionsTypeError, "decoders of 'inner' must be a mapping of field name to decoder, got <"),
        ({"image": tfds.decode.SkipDecoding}, OptionsTypeError, "the decoder of 'image' must be an instance of tfds"),
        ({"image": "skip"}, OptionsTypeError, "the decoder of 'image' must be an instance of tfds.decode.Decoder"),
        ({"image": {"x": SKIP}}, OptionsTypeError, "the decoder of 'image' must be an instance"),
        (SKIP, OptionsTypeError, "decoders must be a mapping of field name to decoder"),
        (["image"], OptionsTypeError, "decoders must be a mapping of field name to decoder, got ['image'] (list)"),
        (
            tfds.decode.PartialDecoding({"n": True}),
            OptionsError,
            "decoders=PartialDecoding(...) needs TensorFlow; leave fields out in preprocess, and the decoding of dear",
        ),
        (
            {"text": Scaled(2.5)},
            OptionsError,
            "the decoder of 'text' cannot decode record 0 of kinds/1.2.0 without TensorFlow: TypeError: can't multiply",
        ),
        (
            {"image": Importing()},
            OptionsError,
            "the decoder of 'image' cannot decode record 0 of kinds/1.2.0 without TensorFlow: ModuleNotFoundError: No",
        ),
    ],
)
def test_refused_at_load_by_name(kinds: Path, decoders: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        load("tfds/kinds", batch=1, options=TFDSOptions(path=str(kinds), decoders=decoders), preprocess=dict)


def test_a_decoder_that_would_load_tensorflow_is_refused(
    kinds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorflow.py").write_text("class io:\n    decode_image = len\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with pytest.raises(OptionsError, match="the decoder of 'image' imports TensorFlow, which must not be loaded"):
            first(kinds, {"image": Importing()})
    finally:
        sys.modules.pop("tensorflow", None)


def test_what_a_decoder_raises_later_keeps_its_type(kinds: Path) -> None:
    decoder = Scaled(1)
    source = open_split("kinds", "train", TFDSOptions(path=str(kinds), decoders={"n": decoder}))
    decoder.factor = None  # type: ignore[assignment]
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        source[0]
    assert caught.value.__notes__[0] == "in the decoder of 'n', Scaled"
    source.close()


def test_a_position_belongs_to_its_decoders(images: Path) -> None:
    def stream(decoders: Any) -> Any:
        options = TFDSOptions(path=str(images), decoders=decoders)
        return load("tfds/dew_images", batch=4, options=options, preprocess=dict).train(DataPartition())

    state = stream(None).get_state()
    stream(None).set_state(state)
    with pytest.raises(PositionMismatchError, match=re.escape("decoders={image: SkipDecoding}")):
        stream({"image": SKIP}).set_state(state)


def test_functions_are_described_by_their_names(images: Path) -> None:
    source = opened(images, {"image": halved()})
    assert re.search(r"decoders={image: [\w.]*test_decoders\.halved}\)$", repr(source))
    assert " at 0x" not in repr(source)
