"""Datasets prepared on the spot by tensorflow-datasets' own writer, without TensorFlow."""

import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter

F = tfds.features
Prepare = Callable[..., Path]
Splits = Mapping[str, Iterable[Mapping[str, Any]]]

VERSION = "1.2.0"


class Given(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A builder whose features and records are given by a subclass."""

    VERSION = tfds.core.Version(VERSION)
    features: Any
    splits: Splits
    ordered: bool

    def _info(self) -> Any:
        features = F.FeaturesDict(self.features)
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=self.ordered)

    def _split_generators(self, _downloads: Any) -> Any:
        return {name: enumerate(records) for name, records in self.splits.items()}

    def _generate_examples(self) -> Any:
        yield from ()


def prepared(
    directory: Path,
    name: str,
    features: Any,
    splits: Splits,
    *,
    shards: int = 1,
    config: str | None = None,
    version: str = VERSION,
    ordered: bool = True,
    file_format: str = "array_record",
) -> Path:
    """Prepares a dataset in the `data_dir` `directory`; returns the version's own directory."""
    members: dict[str, Any] = {"name": name, "features": features, "splits": splits, "ordered": ordered}
    members["VERSION"] = tfds.core.Version(version)
    if config is not None:
        members["BUILDER_CONFIGS"] = [tfds.core.BuilderConfig(name=config)]
    kind = type(name, (Given,), members, skip_registration=True)
    with (
        tempfile.TemporaryDirectory() as scratch,  # where TFDS leaves a folder behind
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        patch.setattr(tempfile, "tempdir", scratch)
        builder = kind(data_dir=str(directory), file_format=file_format)
        builder.download_and_prepare(
            download_config=tfds.download.DownloadConfig(num_shards=shards, try_download_gcs=False)
        )
    return Path(builder.data_dir)


@pytest.fixture(scope="session")
def prepare() -> Prepare:
    """`prepared`."""
    return prepared


def written(directory: Path, name: str, features: Any, examples: Iterable[Mapping[str, Any]]) -> Path:
    """A dataset of one split whose records are given as they are stored: key -> list of integers, floats or bytes.

    For what only TensorFlow could prepare, and for records that are not what is declared.
    """
    proto = __import__("tensorflow_datasets.proto", fromlist=["tf_feature_pb2"])
    place = directory / name / VERSION
    place.mkdir(parents=True)

    def feature(values: list[Any]) -> Any:
        feature_pb2 = proto.tf_feature_pb2
        if any(isinstance(value, bytes) for value in values):
            return feature_pb2.Feature(bytes_list=feature_pb2.BytesList(value=values))
        if any(isinstance(value, float) for value in values):
            return feature_pb2.Feature(float_list=feature_pb2.FloatList(value=values))
        return feature_pb2.Feature(int64_list=feature_pb2.Int64List(value=values))

    writer = ArrayRecordWriter(str(place / f"{name}-train.array_record-00000-of-00001"), "group_size:1")
    count = 0
    for example in examples:
        stored = {key: feature(values) for key, values in example.items()}
        features_pb2 = proto.tf_feature_pb2.Features(feature=stored)
        writer.write(proto.tf_example_pb2.Example(features=features_pb2).SerializeToString())
        count += 1
    writer.close()
    F.FeaturesDict(features).save_config(str(place))
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    split = {"name": "train", "filepathTemplate": template, "numBytes": "1", "shardLengths": [str(count)]}
    info = {"name": name, "version": VERSION, "fileFormat": "array_record", "splits": [split]}
    (place / "dataset_info.json").write_text(json.dumps(info))
    return place


@pytest.fixture(scope="session")
def write() -> Prepare:
    """`written`."""
    return written


def png(array: Any) -> io.BytesIO:
    """An RGB or grey array as a PNG file, the one form in which images are prepared without TensorFlow."""
    rgb = np.asarray(array)
    return io.BytesIO(cv2.imencode(".png", rgb[..., ::-1] if rgb.shape[-1] == 3 else rgb)[1].tobytes())


@pytest.fixture(scope="session")
def as_png() -> Callable[[Any], io.BytesIO]:
    """`png`."""
    return png


def picture(number: int) -> Any:
    """The image of record `number` of `images`, (8, 8, 3)."""
    return np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)


def image_records(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"image": png(picture(number)), "label": number % 3, "id": number, "caption": f"c{number} é"}
        for number in range(first, first + count)
    ]


IMAGE_FEATURES = {
    "image": F.Image(shape=(8, 8, 3), encoding_format="png"),
    "label": F.ClassLabel(names=["cat", "dog", "owl"]),
    "id": np.int64,
    "caption": F.Text(),
}


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`dew_images` in two configs: 100 training records in 4 shards and 20 of the split `test`. Not to be changed."""
    path = tmp_path_factory.mktemp("data_dir")
    for config in ("big", "small"):
        splits = {"train": image_records(100), "test": image_records(20, 1000)}
        prepared(path, "dew_images", IMAGE_FEATURES, splits, shards=4, config=config)
    return path


@pytest.fixture(scope="session")
def images(data_dir: Path) -> Path:
    """The directory of one version of `dew_images`. Not to be changed."""
    return data_dir / "dew_images" / "small" / VERSION


@pytest.fixture
def copied(images: Path, tmp_path: Path) -> Path:
    """A copy of `images` for a test to damage, in a `data_dir` of its own."""
    path = tmp_path / "data" / "dew_images" / "small" / VERSION
    shutil.copytree(images, path)
    return path


@pytest.fixture(autouse=True)
def no_default_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine's own data directory holds must not matter."""
    monkeypatch.setenv("TFDS_DATA_DIR", os.devnull + "/nothing")
