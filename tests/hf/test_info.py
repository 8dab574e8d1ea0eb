"""`dew hf info`: what a dataset holds and which positions it can have."""

import json
from pathlib import Path
from typing import Any

import pytest

from dew.cli import main


def test_parquet_files(all_kinds: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hf", "info", *all_kinds["parquet"].paths]) == 0
    said = capsys.readouterr().out
    for part in (
        "parquet: Parquet",
        "id",
        "Value('int64')",
        "train",
        "21",
        "row groups are numbered",
        "shuffle_buffer",
    ):
        assert part in said, said


def test_json_output_of_a_directory_with_two_splits(
    tmp_path: Path, write_files: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files("json", (3,), folder="mine")
    (tmp_path / "mine" / "part-0.jsonl").rename(tmp_path / "mine" / "train.jsonl")
    (tmp_path / "mine" / "test.jsonl").write_text('{"id": 1, "text": "x"}\n')
    assert main(["hf", "info", str(tmp_path / "mine"), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["name"], about["format"], set(about["splits"])) == ("mine", "Json", {"train", "test"})
    assert about["splits"]["train"] == {"rows": None, "files": 1}
    assert [one["position"] for one in about["positions"]] == ["records", "shard", "none", "records"]
    assert "every process reads the whole stream" in about["positions"][3]["why"]


def test_what_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hf", "info", str(tmp_path / "nothing.parquet")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("dew: nothing to read for")


def test_files_of_two_formats_are_refused(all_kinds: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hf", "info", all_kinds["parquet"].paths[0], all_kinds["json"].paths[0]]) == 2
    assert "files of one format" in capsys.readouterr().err
