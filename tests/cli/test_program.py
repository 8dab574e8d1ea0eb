"""`train.py:data`: a dataset of the user's own program, opened by `dew peek`, `dew order`, `dew check`, `dew bench`."""

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from dew.cli.opening import Asked, dataset_stream
from dew.data.dataset import DataPartition, Dataset
from dew.data.errors import OptionsError, SourceNotFoundError

Dew: TypeAlias = Callable[..., Any]

TRAIN = """
import sys
import numpy as np
from beside import WIDTH
from dew.data import Loading, TokenWindows, columns, from_records, train_stream, Dataset

print("this goes to stderr", sys.argv)

def double(record):
    return {"x": record["x"] * 2}

rows = {"x": np.arange(40), "y": np.zeros((40, WIDTH))}
data = from_records(rows, batch=4, val={"x": np.arange(5), "y": np.ones((5, WIDTH))})

def workers():
    source = [{"x": n} for n in range(40)]
    return Dataset(lambda partition: train_stream(source, batch=4, partition=partition, preprocess=double,
                                                  loading=Loading(workers=1)), records=40, batch=4)

def sized(batch, seed=0):
    return data

def fails():
    raise KeyError("corpus")

windows = TokenWindows("corpus", seq_len=8)
_hidden = data
number = 3

if __name__ == "__main__":
    raise SystemExit("this would train")
"""


@pytest.fixture
def train(tmp_path: Path) -> str:
    (tmp_path / "beside.py").write_text("WIDTH = 3\n")
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    return str(tmp_path / "train.py")


def opened(source: str, **given: Any) -> Dataset:
    with Asked(source=source, **given).opened() as dataset:
        return dataset


def test_a_dataset_and_nothing_left_behind(train: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "beside", None)
    del sys.modules["beside"]
    path, arguments, modules = sys.path[:], sys.argv, {name for name in sys.modules if name.startswith("dew_program")}
    with Asked(source=f"{train}:data").opened() as dataset:
        assert dataset.batch == 4
        assert next(dataset.train(DataPartition()))["y"].shape == (4, 3)
        assert sys.path[0] == str(Path(train).parent)
    with pytest.raises(OptionsError), Asked(source=f"{train}:number").opened():
        pass
    assert sys.path == path
    assert sys.argv is arguments
    assert {name for name in sys.modules if name.startswith("dew_program")} == modules
    assert sorted(entry.name for entry in Path(train).parent.iterdir() if entry.suffix == ".py") == [
        "beside.py",
        "train.py",
    ]


def test_each_opening_runs_the_file_anew(train: str) -> None:
    assert opened(f"{train}:data") is not opened(f"{train}:data")


def test_a_function_read_by_workers(train: str) -> None:
    """The program's functions reach worker processes by value."""
    with Asked(source=f"{train}:workers").opened() as dataset:
        stream: Any = dataset.train(DataPartition())
        with stream:
            batches = [next(stream)["x"] for _ in range(3)]
            assert [batch.tolist() for batch in batches] == [(2 * stream.ids(k)).tolist() for k in range(3)]


def test_the_validation_split(train: str) -> None:
    dataset = opened(f"{train}:data", split="val", batch=4)
    assert [batch["valid"].tolist() for batch in dataset.train(DataPartition())] == [[True] * 4, [True] + [False] * 3]
    assert opened(f"{train}:workers").val is None


def test_commands_on_a_program(dew: Dew, train: str) -> None:
    shown = dew("peek", "train.py:data", "--step", 3, "--json")
    assert "this goes to stderr ['train.py']" in shown.err
    assert (shown.json["batch"], shown.json["seed"]) == (4, None)
    step = dew("order", "train.py:data", "--step", 3, "--json").json
    assert step["ids"] == shown.json["ids"] == shown.json["fields"]["x"]["sample"]


CHATTY = """
import os
import subprocess
import numpy as np
from dew.data import dataset_of

def loud(record):
    print("from preprocess")
    os.write(1, b"from C\\n")
    return record

subprocess.run(["echo", "from a child"], check=True)
data = dataset_of([{"x": np.int32(n)} for n in range(40)], batch=4, preprocess=loud)
"""


@pytest.mark.parametrize("words", ["peek", "check --steps 2 --seconds 5", "bench --seconds 0.1 --workers 0,1"])
def test_stdout_is_one_json_value_whatever_a_program_prints(dew: Dew, tmp_path: Path, words: str) -> None:
    (tmp_path / "chatty.py").write_text(CHATTY)
    ran = dew(*words.split(), "chatty.py:data", "--json")
    assert (ran.code, ran.json["batch"]) == (0, 4)
    assert "from a child" in ran.err
    if not words.startswith("bench"):  # there, others read
        assert "from preprocess" in ran.err
        assert "from C" in ran.err


def test_programs_that_want_arguments_or_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nsys.exit()\n")
    with pytest.raises(OptionsError, match=r"line 2, raised SystemExit; it is run without arguments, and what stands"):
        opened(f"{tmp_path}/train.py:data")


def test_a_train_that_returns_no_iterator(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from dew.data import Dataset\ndata = Dataset(train=lambda part: [1], batch=4)\n"
    )
    with Asked(source=f"{tmp_path}/train.py:data").opened() as dataset:  # noqa: SIM117
        with pytest.raises(OptionsError, match="train of a Dataset must return an iterator over batches, got list"):
            dataset_stream(dataset)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (":dat", r"there is no 'dat': there is .*train.py:data$"),
        (":", "names no dataset: there is .*train.py:data$"),
        ("", "names no dataset: there is .*train.py:data$"),
        (":sized", "is called without arguments, and needs batch; name a Dataset"),
        (":fails", r"line 24, raised KeyError: 'corpus'"),
        (":windows", r"must be a dew.data.Dataset, got dew.tokens.*TokenWindows; .* data = windows.load\(batch=...\)"),
        (":number", "must be a dew.data.Dataset, got int$"),
        (":double", r"and needs record"),
    ],
)
def test_what_is_no_dataset_is_refused(train: str, name: str, expected: str) -> None:
    with pytest.raises(OptionsError, match=expected):
        opened(train + name)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1\nraise ValueError('no')\n", r"bad.py, line 2, raised ValueError: no; .* is not run"),
        ("x = (\n", r"bad.py raised SyntaxError: .*line 1"),
        ("import sys\nsys.exit(3)\n", r"bad.py, line 2, raised SystemExit: 3"),
        ("def make(): pass\n", r"no 'data': it makes no Dataset, and the functions make\(\); what stands under"),
        ("", r"no 'data': it makes no Dataset; what stands under"),
    ],
)
def test_files_without_a_dataset(tmp_path: Path, source: str, expected: str) -> None:
    (tmp_path / "bad.py").write_text(source)
    path = sys.path[:]
    with pytest.raises(OptionsError, match=expected):
        opened(f"{tmp_path}/bad.py:data")
    assert sys.path == path


def test_what_a_program_decides_itself(train: str, tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=r"--batch 5 was given, and .*:data has a batch of 4"):
        opened(f"{train}:data", batch=5)
    with pytest.raises(OptionsError, match=r"-o seq_len=3 was given, and .*:data has its own"):
        opened(f"{train}:data", pairs=("seq_len=3",))
    with pytest.raises(OptionsError, match=r"--seed 7 was given, and .*:data has its own"):
        opened(f"{train}:data", seed=7)
    with pytest.raises(OptionsError, match="train or val, got 'test'"):
        opened(f"{train}:data", split="test")
    with pytest.raises(OptionsError, match=r"--split val was given, and .*:workers has no validation data"):
        opened(f"{train}:workers", split="val")
    with pytest.raises(SourceNotFoundError, match=r"there is no file .*absent.py"):
        opened(f"{tmp_path}/absent.py:data")
