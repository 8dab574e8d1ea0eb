"""The source of a split: conformance, what a saved position says of it, and what a move or a replacement does."""

import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from dew.data import DataPartition, Dataset, Loading, OptionsError, PositionMismatchError, TFDSOptions, load
from dew.data.errors import DamagedSourceError
from dew.data.source import RecordSource, describe, fingerprint
from dew.testing import SourceSuite, StreamSuite
from dew_tfds.source import TFDSSource, open_split

F = tfds.features
Prepare = Callable[..., Path]


def opened(path: Path, split: str = "train", **options: Any) -> TFDSSource:
    return open_split("dew_images", split, TFDSOptions(path=str(path), **options))


class _OnImages:
    """Remembers what was opened, to close it: the suites read from sources that nobody closes."""

    @pytest.fixture(autouse=True)
    def _given(self, images: Path) -> Any:
        self.path = images
        self.location = str(images)
        self.sources: list[TFDSSource] = []
        yield
        for source in self.sources:
            source.close()

    def open(self, split: str, **options: Any) -> TFDSSource:
        self.sources.append(opened(self.path, split, **options))
        return self.sources[-1]


class TestSource(_OnImages, SourceSuite):
    def make_source(self) -> RecordSource:
        return self.open("train")


class TestSliceOfSplits(_OnImages, SourceSuite):
    def make_source(self) -> RecordSource:
        return self.open("train[20:60]+test[:3]", decoders={"image": tfds.decode.SkipDecoding()})


class TestEvenPart(_OnImages, SourceSuite):
    def make_source(self) -> RecordSource:
        return self.open("even(all, 1/3)", check="full")


def numbers(record: Any) -> Any:
    return {"id": record["id"], "image": record["image"], "label": record["label"]}


def cropped(record: Any, rng: np.random.Generator) -> Any:
    at = int(rng.integers(0, 4))
    return {"id": record["id"], "image": record["image"][at : at + 4], "draw": rng.random()}


class TestStream(_OnImages, StreamSuite):
    """110 records in batches of 24: epochs are no whole number of steps."""

    def make_dataset(self) -> Dataset:
        return load(
            "tfds/dew_images",
            batch=24,
            split="train+test[:10]",
            val_split="test[10:]",
            seed=5,
            options=TFDSOptions(path=str(self.path)),
            preprocess=cropped,
        )


class TestDirectStream(_OnImages, StreamSuite):
    valid_field = None

    def make_dataset(self) -> Dataset:
        return load(
            "tfds/dew_images",
            batch=12,
            val_split="test",
            val_remainder="drop",
            options=TFDSOptions(path=str(self.path)),
            preprocess=numbers,
            place_field="place",
            loading=Loading(workers=0, read_buffer=0, threads=3),
        )


class TestWorkerStream(_OnImages, StreamSuite):
    steps = 2
    largest_count = 2

    def make_dataset(self) -> Dataset:
        options = TFDSOptions(path=str(self.path))
        return load("tfds/dew_images", batch=8, options=options, preprocess=cropped, loading=Loading(workers=1))


def test_a_run_goes_on_from_one_to_two_to_four_to_one(images: Path, data_dir: Path) -> None:
    def made(path: Path) -> Dataset:
        options = TFDSOptions(path=str(path), config="small")
        return load("tfds/dew_images", batch=16, seed=3, options=options, preprocess=cropped)

    with made(images).train(DataPartition()) as stream:
        alone = [next(stream) for _ in range(16)]
    state: Any = None
    step = 0
    for count, path in ((1, images), (2, data_dir), (4, images), (1, data_dir / "dew_images")):
        streams: list[Any] = [made(path).train(DataPartition(index, count)) for index in range(count)]
        for stream in streams:
            if state is not None:
                stream.set_state(json.loads(json.dumps(state)))
        for _ in range(4):
            shares = [next(stream) for stream in streams]
            for index, share in enumerate(shares):
                for name, rows in share.items():
                    np.testing.assert_array_equal(rows, alone[step][name][index::count])
            step += 1
        state = streams[0].get_state()
        for stream in streams:
            assert stream.get_state() == state
            stream.close()


def test_descriptions_name_the_data_and_no_place(images: Path) -> None:
    source = opened(images, "train[:80%]")
    assert describe(source) == "TFDSSource(dew_images/small/1.2.0, split='train[:80%]', records=80)"
    assert source.name == "dew_images/small/1.2.0"
    assert source.labels == {"label": ("cat", "dog", "owl")}


def test_pickles_are_small_and_by_path(images: Path) -> None:
    source = opened(images, decoders={"image": tfds.decode.SkipDecoding()})
    assert source[3]["id"] == 3
    data = pickle.dumps(source)
    assert len(data) < 1000
    assert str(images).encode() in data
    again = pickle.loads(data)
    assert again[3] == source[3]
    assert describe(again) == describe(source)
    again.close()
    source.close()


def test_a_moved_directory_is_the_same_data(images: Path, copied: Path) -> None:
    ours, theirs = opened(images), opened(copied)
    assert fingerprint(ours) == fingerprint(theirs)
    assert describe(ours) == describe(theirs)
    assert fingerprint(ours) != fingerprint(opened(images, "train[1:]"))
    assert fingerprint(ours) != fingerprint(opened(images, "test"))


def test_neither_times_nor_spelling_are_in_the_fingerprint(copied: Path) -> None:
    before = fingerprint(opened(copied))
    for name in ("dataset_info.json", "features.json"):
        described = json.loads((copied / name).read_text())
        (copied / name).write_text(
            json.dumps(described | {"description": "in other words"} if name[0] == "d" else described)
        )
    for file in copied.iterdir():
        os.utime(file, (1, 1))
        file.chmod(0o600)
    assert fingerprint(opened(copied)) == before


def test_another_preparation_is_refused(tmp_path: Path, prepare: Prepare) -> None:
    """Of the same shards, counts and sizes, with one value changed."""

    def made(place: str, last: int) -> Any:
        records = [{"id": number} for number in [*range(9), last]]
        path = prepare(tmp_path / place, "ids", {"id": np.int64}, {"train": records}, shards=2)
        options = TFDSOptions(path=str(path))
        return load("tfds/ids", batch=2, options=options, preprocess=dict).train(DataPartition())

    state = made("one", 9).get_state()
    made("again", 9).set_state(state)
    with pytest.raises(PositionMismatchError, match="fingerprint"):
        made("other", 5).set_state(state)


@pytest.mark.parametrize("change", ["metadata", "size", "end"])
def test_what_the_fingerprint_sees(copied: Path, change: str) -> None:
    before = fingerprint(opened(copied))
    shard = copied / "dew_images-train.array_record-00002-of-00004"
    if change == "metadata":
        file = copied / "dataset_info.json"
        file.write_text(file.read_text().replace('"numBytes": "', '"numBytes": "1'))
    elif change == "size":
        shard.write_bytes(shard.read_bytes() + bytes(1 << 16))
    else:
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
    assert fingerprint(opened(copied)) != before


def test_a_dataset_replaced_while_workers_start_is_refused(copied: Path) -> None:
    data = pickle.dumps(opened(copied))
    file = copied / "dataset_info.json"
    whole = file.read_text()
    file.write_text(whole.replace('"numBytes": "', '"numBytes": "1'))
    with pytest.raises(DamagedSourceError, match=f"{re.escape(str(copied))} was prepared again or altered since"):
        pickle.loads(data)
    file.write_text(whole)
    assert len(pickle.loads(data)) == 100


@pytest.mark.parametrize("names", ["cat\ndog\n", "cat\ndog\ndog\n", "a\nb\nc\nd\n"])
def test_names_of_classes_that_are_not_as_many(copied: Path, names: str) -> None:
    """tensorflow-datasets swallows its own error about them."""
    file = copied / "label.labels.txt"
    file.write_text(names)
    message = (
        "field 'label' of dew_images/small/1.2.0 has 3 classes, and its labels.txt has "
        f"{len(names.split())} names, {len(set(names.split()))} of them different"
    )
    with pytest.raises(DamagedSourceError, match=re.escape(message)):
        opened(copied)
    file.unlink()
    assert opened(copied).labels == {"label": ("0", "1", "2")}


def test_indices(images: Path) -> None:
    source = opened(images, "train[10:20]")
    assert source[np.int64(9)]["id"] == 19
    for index in (-1, 10, np.int64(-3)):
        with pytest.raises(IndexError, match=f"record {index} was asked for, there are records 0 to 9"):
            source[index]
    with pytest.raises(TypeError):
        source[slice(2)]  # type: ignore[index]
    source.close()


def test_preprocess_is_asked_for_with_the_builders_features(images: Path) -> None:
    with pytest.raises(TypeError) as caught:
        load("tfds/dew_images", batch=4, options=TFDSOptions(path=str(images)))
    assert str(caught.value).endswith(
        "a row of split 'train' has\n"
        "  caption: str, Text\n"
        "  id: int64, Tensor\n"
        "  image: uint8 (8, 8, 3), Image\n"
        "  label: int64, ClassLabel of 3"
    )


def test_what_preprocess_receives(tmp_path: Path, prepare: Prepare, as_png: Any) -> None:
    """An empty sequence is an empty array of the declared dtype, so that every record has the same ones."""
    features = {
        "image": F.Image(shape=(8, 8, 3)),
        "label": F.ClassLabel(num_classes=3),
        "name": F.Text(),
        "boxes": F.Sequence(F.Tensor(shape=(4,), dtype=np.float32)),
    }
    records = [
        {
            "image": as_png(np.full((8, 8, 3), number, np.uint8)),
            "label": number,
            "name": f"n{number}",
            "boxes": [[0, 1, 2, 3]] * number,
        }
        for number in range(3)
    ]
    path = prepare(tmp_path, "boxes", features, {"train": records})
    seen: dict[int, Any] = {}

    def keep(record: Any) -> Any:
        seen[int(record["label"])] = record
        return {"label": record["label"]}

    dataset = load("tfds/boxes", batch=3, options=TFDSOptions(path=str(path)), preprocess=keep)
    with dataset.train(DataPartition()) as stream:
        next(stream)
    for number, record in seen.items():
        assert type(record["label"]) is np.int64
        assert record["name"] == f"n{number}"
        np.testing.assert_array_equal(record["boxes"], np.array([[0, 1, 2, 3]] * number, np.float32).reshape(-1, 4))
        assert (record["boxes"].dtype, len(record["boxes"])) == (np.float32, number)


def test_options_are_checked() -> None:
    with pytest.raises(OptionsError, match=re.escape('check must be "sizes" or "full", got \'deep\'')):
        TFDSOptions(check="deep")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not int"):
        TFDSOptions(path=3)  # type: ignore[arg-type]
    assert TFDSOptions(path=Path("/data")) == TFDSOptions(path="/data")  # type: ignore[arg-type]


def test_names_of_configs_in_load(data_dir: Path) -> None:
    options = TFDSOptions(path=str(data_dir))
    for name in ("dew_images/small", "dew_images/big:1.2.0"):
        assert load(f"tfds/{name}", batch=4, options=options, preprocess=numbers).records == 100


def test_text_stays_on_the_host_and_labels_are_numbers(images: Path) -> None:
    dataset = load("tfds/dew_images", batch=4, options=TFDSOptions(path=str(images)), preprocess=dict)
    with dataset.train(DataPartition()) as stream:
        batch = next(stream)
    assert {name: batch[name].dtype.kind for name in batch} == {"caption": "U", "id": "i", "image": "u", "label": "i"}
    assert batch["caption"].tolist() == [f"c{number} é" for number in batch["id"]]
    assert batch["image"].shape == (4, 8, 8, 3)
