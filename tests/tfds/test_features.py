"""What the metadata names is never imported, and never TensorFlow; features that would need either are refused."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from dew.data import TFDSOptions
from dew.data.errors import DamagedSourceError, ProviderNotInstalledError, SourceError
from dew_tfds import builder as opening
from dew_tfds.source import TFDSSource, open_split

F = tfds.features
Prepare = Callable[..., Path]
OWN = "tensorflow_datasets.core.features."


def opened(path: Path) -> TFDSSource:
    return open_split(path.parent.name, "train", TFDSOptions(path=str(path)))


def describe(path: Path, **fields: Any) -> None:
    """Changes the description of fields."""
    file = path / "features.json"
    described = json.loads(file.read_text())
    described["featuresDict"]["features"].update(fields)
    file.write_text(json.dumps(described))


@pytest.fixture
def numbers(tmp_path: Path, write: Prepare) -> Path:
    return write(tmp_path, "numbers", {"x": np.int64, "inner": {"y": np.int64}}, [{"x": [1], "inner/y": [2]}])


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that must not be imported."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "named_by_data.py").write_text("raise SystemExit('code that was named by data has run')")
    monkeypatch.syspath_prepend(str(site))
    return "named_by_data"


TENSOR = {"tensor": {"dtype": "int64", "encoding": "none", "shape": {}}}


@pytest.mark.parametrize(
    "node",
    [
        {"pythonClassName": "named_by_data.Feature", **TENSOR},
        {"python_class_name": "named_by_data.Feature", **TENSOR},
        {"type": "named_by_data.Feature", "content": {}},
        {"pythonClassName": {}, "type": "named_by_data.Feature", "content": {}},
        {
            "pythonClassName": f"{OWN}sequence_feature.Sequence",
            "sequence": {"feature": {"pythonClassName": "named_by_data.Feature", **TENSOR}, "length": "-1"},
        },
        {
            "pythonClassName": f"{OWN}sequence_feature.Sequence",
            "jsonFeature": {
                "json": json.dumps({"feature": {"type": "named_by_data.Feature", "content": {}}, "length": 1})
            },
        },
        {
            "pythonClassName": f"{OWN}features_dict.FeaturesDict",
            "featuresDict": {"features": {"features": {"pythonClassName": "named_by_data.Feature", **TENSOR}}},
        },
        {
            "type": f"{OWN}features_dict.FeaturesDict",
            "content": {"features": {"type": "named_by_data.Feature", "content": {}}},
        },
        {"pythonClassName": f"{OWN}evil.named_by_data.Feature", **TENSOR},
        {"pythonClassName": "tensorflow_datasets.datasets.mnist.mnist_dataset_builder.Builder", **TENSOR},
    ],
)
def test_code_that_the_metadata_names_is_never_imported(numbers: Path, module: str, node: Any) -> None:
    describe(numbers, x=node)
    message = "which is none of tensorflow-datasets' own features; reading it would run that code"
    with pytest.raises(SourceError, match=re.escape(message)):
        opened(numbers)
    assert module not in sys.modules
    assert not [name for name in sys.modules if name.startswith("tensorflow_datasets.datasets.mnist")]


def test_nor_what_the_other_metadata_file_names(numbers: Path, module: str) -> None:
    file = numbers / "dataset_info.json"
    info = json.loads(file.read_text())
    feature = {"pythonClassName": f"{module}.Feature", **TENSOR}
    described = {"pythonClassName": f"{OWN}features_dict.FeaturesDict", "featuresDict": {"features": {"x": feature}}}
    file.write_text(json.dumps(info | {"features": described}))
    with pytest.raises(
        SourceError, match=re.escape("field 'x' of numbers/1.2.0 is of the class named_by_data.Feature")
    ):
        opened(numbers)
    assert module not in sys.modules


def test_the_field_is_named_with_its_path(numbers: Path) -> None:
    feature = {"pythonClassName": "mine.Feature", **TENSOR}
    inner = {"pythonClassName": f"{OWN}features_dict.FeaturesDict", "featuresDict": {"features": {"y": feature}}}
    describe(numbers, inner=inner)
    with pytest.raises(SourceError, match=re.escape("field 'inner/y' of numbers/1.2.0 is of the class mine.Feature")):
        opened(numbers)


def test_a_dtype_that_only_tensorflow_knows(numbers: Path) -> None:
    describe(numbers, x={"pythonClassName": f"{OWN}tensor_feature.Tensor", "tensor": {"dtype": "qint8", "shape": {}}})
    with pytest.raises(SourceError, match=re.escape("field 'x' of numbers/1.2.0 has the dtype 'qint8', which NumPy")):
        opened(numbers)


def audio(**options: Any) -> dict[str, Any]:
    return {"pythonClassName": f"{OWN}audio_feature.Audio", "audio": {"dtype": "int64", "encoding": "NONE", **options}}


def test_audio_is_its_samples(tmp_path: Path, write: Prepare) -> None:
    features = {"sound": F.Sequence(np.int64), "stereo": F.Tensor(shape=(None, 2), dtype=np.int64)}
    path = write(tmp_path, "sounds", features, [{"sound": [1, -2, 3], "stereo": [1, 2, 3, 4]}])
    describe(
        path,
        sound=audio(shape={"dimensions": ["-1"]}, sampleRate=16000),
        stereo=audio(shape={"dimensions": ["-1", "2"]}, dtype="int16"),
    )
    with pytest.raises(ModuleNotFoundError, match="tensorflow"):
        tfds.builder_from_directory(str(path))
    source = opened(path)
    record = source[0]
    source.close()
    np.testing.assert_array_equal(record["sound"], [1, -2, 3])
    np.testing.assert_array_equal(record["stereo"], [[1, 2], [3, 4]])
    assert (record["sound"].dtype, record["stereo"].dtype) == (np.int64, np.int16)


def test_encoded_audio_is_refused(numbers: Path) -> None:
    describe(numbers, x=audio(lazyDecode=True, shape={"dimensions": ["-1"]}))
    message = "field 'x' of numbers/1.2.0 holds encoded audio, which tensorflow-datasets decodes with TensorFlow alone"
    with pytest.raises(SourceError, match=re.escape(message)):
        opened(numbers)


@pytest.mark.parametrize("kind", ["video_feature.Video", "audio_feature.Audio"])
def test_descriptions_of_old_releases_that_would_need_tensorflow(numbers: Path, kind: str) -> None:
    describe(numbers, x={"type": OWN + kind, "content": {"shape": [None, 4, 4, 3]}})
    with pytest.raises(
        SourceError, match=r"field 'x' of numbers/1\.2\.0 is described as an old release did it; prepare"
    ):
        opened(numbers)


def test_rewriting_is_behind_a_test_of_the_version(numbers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe(numbers, x=audio(shape={"dimensions": []}))
    for version in ("4.9.9", "5.0.0"):
        monkeypatch.setattr(tfds, "__version__", version)
        with pytest.raises(SourceError, match=rf"are read with tensorflow-datasets 4\.9\.\d+ or later.*; {version} is"):
            opened(numbers)


def test_metadata_that_tfds_cannot_make_sense_of(numbers: Path) -> None:
    describe(numbers, x={"pythonClassName": f"{OWN}tensor_feature.NoSuchFeature", **TENSOR})
    message = (
        f"tensorflow-datasets {tfds.__version__} cannot open numbers/1.2.0 in {numbers}: "
        "ValueError: Unrecognized FeatureConnector"
    )
    with pytest.raises(DamagedSourceError, match=re.escape(message)):
        opened(numbers)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match="needs tensorflow-datasets, which is not installed: pip install dew-tfds"):
        opening.library()
    assert issubclass(ProviderNotInstalledError, ImportError)


READ = """
import sys
sys.path.insert(0, {stub!r})
import dew_tfds
from dew.data import DataPartition, Loading, TFDSOptions, load
dataset = load(
    "tfds/{name}",
    batch=2,
    split="train",
    options=TFDSOptions(path={path!r}, check="full"),
    preprocess=lambda record: {{"id": record["id"]}},
    loading=Loading(workers={workers}),
)
with dataset.train(DataPartition()) as steps:
    assert len(next(steps)["id"]) == 2
loaded = [name for name in sys.modules if name.startswith(("tensorflow.", "tensorflow_datasets.datasets"))]
print("tensorflow" in sys.modules, loaded)
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_tensorflow_is_not_imported_where_it_is_installed(images: Path, tmp_path: Path, workers: int) -> None:
    """A package of that name stands in for it: importing it ends the process, here or in a worker."""
    stub = tmp_path / "site"
    (stub / "tensorflow").mkdir(parents=True)
    (stub / "tensorflow" / "__init__.py").write_text("import os; os._exit(3)")
    script = READ.format(stub=str(stub), name="dew_images", path=str(images), workers=workers)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "False []\n"), done.stderr


LIGHT = """
import sys, dew_tfds, dew_tfds.plugin
dew_tfds.TFDSOptions(path="x")
dew_tfds.even_splits("train", 2)
heavy = "absl array_record click cv2 etils google.protobuf jax PIL rich tensorflow tensorflow_datasets"
print(sorted(set(heavy.split()) & set(sys.modules)))
"""


def test_importing_the_package_is_light() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
