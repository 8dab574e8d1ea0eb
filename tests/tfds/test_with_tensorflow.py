"""What TensorFlow prepared is read without it, and is what TensorFlow reads: run by `with_tensorflow.sh`."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.data import TFDSOptions
from dew_tfds.source import TFDSSource, open_split

pytestmark = pytest.mark.tensorflow

ROOT = Path(__file__).parents[2]
CLOSE = {"jpeg", "file", "file_grey"}  # decoded from JPEG, which decoders are free to round


def versions() -> list[Path]:
    return sorted(path.parent for path in Path(os.environ["DEW_TFDS_DATA"]).rglob("expected.json"))


def opened(path: Path) -> TFDSSource:
    builder = json.loads((path / "dataset_info.json").read_text())["name"]
    return open_split(builder, "train", TFDSOptions(path=str(path), check="full"))


def compare(found: Any, wanted: Any, path: str) -> None:
    if "hex" in wanted and "dtype" in wanted:
        array = np.frombuffer(bytes.fromhex(wanted["hex"]), wanted["dtype"]).reshape(wanted["shape"])
        assert np.asarray(found).dtype == array.dtype, path
        assert np.shape(found) == array.shape or array.size == 0, path
        if path in CLOSE:
            differences = np.abs(found.astype(int) - array.astype(int))
            assert (differences.max() <= 16, differences.mean() <= 4) == (True, True), path
        else:
            np.testing.assert_array_equal(np.asarray(found).reshape(array.shape), array, err_msg=path)
    elif "strings" in wanted:
        texts = [bytes.fromhex(text).decode() for text in wanted["strings"]]
        assert ([found] if not wanted["shape"] else found) == texts, path
    elif "ragged" in wanted:
        plain = [part.tolist() if isinstance(part, np.ndarray) else part for part in found]
        assert plain == wanted["ragged"], path
    else:
        assert sorted(found) == sorted(wanted)
        for name, value in wanted.items():
            compare(found[name], value, f"{path}/{name}" if path else name)


def test_every_record_is_what_tensorflow_reads() -> None:
    names: list[str] = []
    for path in versions():
        source = opened(path)
        expected = json.loads((path / "expected.json").read_text())
        assert len(source) == len(expected)
        for index, wanted in enumerate(expected):
            compare(source[index], wanted, "")
        source.close()
        names.append(source.name.partition("/")[0])
    assert names == ["dummy_dataset", "dummy_mnist", "kinds", "pictures"]


READ = """
import sys
from pathlib import Path
from dew.data import TFDSOptions
from dew_tfds.source import open_split
for path in sys.argv[1:]:
    source = open_split(Path(path).parent.name, "train", TFDSOptions(path=path, check="full"))
    for index in range(len(source)):
        source[index]
print("tensorflow" in sys.modules)
"""


def test_tensorflow_is_not_imported_where_it_is_installed() -> None:
    python = os.environ["DEW_TFDS_PYTHON"]
    places = os.pathsep.join(str(ROOT / package / "src") for package in ("dew-core", "dew-tfds"))
    command = [python, "-c", READ, *map(str, versions())]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": places}, check=False
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
