"""`dew tfds info`, and the other commands on a prepared dataset."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dew.cli import main

Prepare = Callable[..., Path]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_info_as_json(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tfds", "info", images, "--check", "--json")
    assert code == 0
    assert json.loads(out) == {
        "path": str(images),
        "name": "dew_images",
        "config": "small",
        "version": "1.2.0",
        "formats": ["array_record"],
        "splits": [
            {"name": "train", "records": 100, "shards": 4, "bytes": json.loads(out)["splits"][0]["bytes"]},
            {"name": "test", "records": 20, "shards": 4, "bytes": json.loads(out)["splits"][1]["bytes"]},
        ],
        "fields": {
            "caption": "str, Text",
            "id": "int64, Tensor",
            "image": "uint8 (8, 8, 3), Image",
            "label": "int64, ClassLabel of 3",
        },
        "refused": [],
        "checked": True,
    }


def test_info_as_tables(data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, out, _ = run(capsys, "tfds", "info", data_dir / "dew_images", "--config", "big", "--version", "1.2.0")
    assert code == 0
    assert out.startswith("dew_images/big/1.2.0, prepared as array_record\nin ")
    lines = [line.split() for line in out.splitlines()]
    assert ["image", "uint8", "(8,", "8,", "3),", "Image"] in lines
    assert ["train", "100", "4"] in [line[:3] for line in lines]
    assert out.endswith("nothing is refused; --check counts the records of every shard\n")


def test_nested_fields_have_their_path(tmp_path: Path, prepare: Prepare, capsys: pytest.CaptureFixture[str]) -> None:
    path = prepare(tmp_path, "deep", {"a": {"b": {"c": np.int8}}}, {"train": [{"a": {"b": {"c": 1}}}]})
    _, out, _ = run(capsys, "tfds", "info", path)
    assert ["a/b/c", "int8,", "Tensor"] in [line.split() for line in out.splitlines()]


def test_several_configs_are_listed(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "tfds", "info", data_dir / "dew_images")
    assert (code, out) == (1, "")
    assert "holds several, ['big', 'small']; name one as the config" in err


def test_what_would_be_refused_is_told(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "dew_images-train.array_record-00001-of-00004").unlink()
    os.truncate(copied / "dew_images-test.array_record-00002-of-00004", 100)
    code, out, _ = run(capsys, "tfds", "info", copied)
    assert code == 0
    assert "refused: split 'train': 1 of 4 shards are missing from" in out
    assert "refused: split 'test': " in out
    assert "has 100 bytes" in out
    assert "nothing is refused" not in out
    code, out, _ = run(capsys, "tfds", "info", copied, "--check", "--json")
    assert code == 1
    assert len(json.loads(out)["refused"]) == 2


def test_check_counts_and_reads(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.truncate(copied / "dew_images-train.array_record-00003-of-00004", 1 << 16)
    code, out, _ = run(capsys, "tfds", "info", copied)
    assert code == 0
    assert "nothing is refused" in out
    code, out, _ = run(capsys, "tfds", "info", copied, "--check")
    assert code == 1
    assert "refused: split 'train': " in out
    assert "is no whole ArrayRecord file" in out


def test_another_file_format_is_told_with_what_it_holds(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = json.loads((copied / "dataset_info.json").read_text())
    (copied / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
    code, out, _ = run(capsys, "tfds", "info", copied)
    assert code == 0
    assert "prepared as tfrecord" in out
    assert "refused: dew_images/small/1.2.0 in" in out
    assert "tfds build dew_images/small --file_format=array_record" in out
    assert ["train", "100", "4"] in [line.split()[:3] for line in out.splitlines()]


def test_features_that_are_refused(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = copied / "features.json"
    described = json.loads(file.read_text())
    for name in ("id", "label"):
        described["featuresDict"]["features"][name]["pythonClassName"] = "mine.Feature"
    file.write_text(json.dumps(described))
    _, out, _ = run(capsys, "tfds", "info", copied, "--json")
    refused = json.loads(out)["refused"]
    assert [text[: text.index(" of ")] for text in refused] == ["field 'id'", "field 'label'"]


def test_a_path_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "tfds", "info", tmp_path / "none")
    assert (code, out) == (1, "")
    assert err == f"dew: no TFDS data at {tmp_path}/none: there is no such directory\n"
    assert run(capsys, "tfds", "info")[0] == 2


def test_peek_and_order(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "peek", "tfds/dew_images", "--batch", 4, "-o", f"path={images}", "--json")
    assert code == 0
    shown = json.loads(out)
    assert shown["fields"]["image"]["shape"] == [4, 8, 8, 3]
    assert shown["fields"]["id"]["sample"] == shown["ids"]
    words = ("--batch", 4, "--step", 0, "-o", f"path={images}", "--json")
    code, out, _ = run(capsys, "order", "tfds/dew_images", *words)
    assert code == 0
    assert str(shown["ids"])[1:-1] in out
