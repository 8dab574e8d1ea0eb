"""Manifests of bad files, and collections without them."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from dew.data.errors import DamagedSourceError, OptionsError, OptionsTypeError, SourceError, SourceNotFoundError
from dew_media.files.collection import MediaFiles
from dew_media.files.exclude import BadRecord, Manifest, read_manifest
from dew_media.files.open import open_files

Encode: TypeAlias = Callable[..., bytes]


@pytest.fixture
def folder(tmp_path: Path, encode: Encode) -> Path:
    for number in range(6):
        path = tmp_path / f"data/{'ab'[number % 2]}/{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(number))
    return tmp_path / "data"


def manifest(files: MediaFiles, *keys: str) -> Manifest:
    bad = tuple(BadRecord(key=key, reason="empty", message=f"{key} is ünusable") for key in keys)
    return Manifest(collection=files.stored(), files=len(files), bad=bad, made_by={"Pillow": "13"})


def test_a_manifest_leaves_files_out(folder: Path, tmp_path: Path) -> None:
    files = open_files(folder)
    path = tmp_path / "deep/bad.jsonl"
    made = manifest(files, "a/2.jpg", "b/1.jpg")
    made.write(path)
    assert read_manifest(path) == made
    assert read_manifest(path).reasons() == {"empty": 2}
    chosen = open_files(folder, exclude=path)
    assert [chosen.key(n) for n in range(4)] == ["a/0.jpg", "a/4.jpg", "b/3.jpg", "b/5.jpg"]
    assert [chosen.read(n) == files.read(m) for n, m in enumerate((0, 2, 4, 5))] == [True] * 4
    assert [chosen.label(n) for n in range(4)] == [0, 0, 1, 1]
    assert (chosen.captions(0), chosen.has_captions, chosen.has_labels) == ((), False, True)
    assert (chosen.label_names, chosen.blocks, chosen.name(1)) == (("a", "b"), (), "a/4.jpg")
    assert chosen.path(3) == str(folder / "b/5.jpg")
    with chosen.open_file(1) as opened:
        assert opened.read() == chosen.read(1)
    assert chosen.description() == "folder, 6 files, 2 classes, 2 excluded"
    assert chosen.digest() not in (files.digest(), open_files(folder, exclude=["a/2.jpg"]).digest())
    for index in (-1, 4):
        with pytest.raises(IndexError, match=f"file {index} was asked for, there are files 0 to 3"):
            chosen.read(index)


def test_a_manifest_is_of_the_files_whatever_is_made_of_them(folder: Path, tmp_path: Path) -> None:
    manifest(open_files(folder, labels="none"), "a/2.jpg", "b/1.jpg").write(tmp_path / "bad.jsonl")
    for number in (0, 1, 3, 4, 5):
        (folder / f"{'ab'[number % 2]}/{number}.txt").write_text("x")
    chosen = open_files(folder, missing="drop", exclude=tmp_path / "bad.jsonl")  # 2.jpg is left out for its caption
    assert [chosen.key(n) for n in range(len(chosen))] == ["a/0.jpg", "a/4.jpg", "b/3.jpg", "b/5.jpg"]
    assert chosen.description().endswith("dropped: 1 file without a caption, 1 excluded")
    assert chosen.stored() != open_files(folder, missing="drop").stored()


def test_a_manifest_of_other_files_is_refused(folder: Path, tmp_path: Path) -> None:
    files = open_files(folder)
    manifest(files, "a/2.jpg").write(tmp_path / "bad.jsonl")
    (folder / "b/1.jpg").unlink()
    match = (
        r"bad\.jsonl lists bad files of another collection: that one had 6 files and the digest [0-9a-f]{12}, this one "
        r"is [0-9a-f]{12} \(folder, 5 files, 2 classes\); verify this one"
    )
    with pytest.raises(SourceError, match=match):
        open_files(folder, exclude=tmp_path / "bad.jsonl")


def test_keys_that_are_not_there(folder: Path) -> None:
    with pytest.raises(
        OptionsError, match=r"exclude names 2 files that are not in the collection .*: '7\.jpg', 'x'; a"
    ):
        open_files(folder, exclude=["7.jpg", "x", "a/0.jpg"])
    with pytest.raises(OptionsError, match=r"exclude leaves out all 6 files of the collection"):
        open_files(folder, exclude=[f"{'ab'[number % 2]}/{number}.jpg" for number in range(6)])
    assert open_files(folder, exclude=[]).digest() == open_files(folder).digest()
    with pytest.raises(OptionsTypeError, match=r"exclude is the path of a manifest, or a collection of keys, got 5"):
        open_files(folder, exclude=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", r"is no manifest of bad files \(format 'dew-bad-records', version 1\): not enough values"),
        ("{}", "'format'"),
        ("[1]", "list indices"),
        ("{", "Expecting"),
        ('{"format": "other", "version": 1}', "it has the format 'other', version 1"),
        ('{"format": "dew-bad-records", "version": 1, "collection": "x", "files": 2, "bad": 2, "made_by": {}}\n',
         "it is cut: it states 2 bad files and lists 0"),
    ],
)  # fmt: skip
def test_what_is_no_manifest(folder: Path, tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(DamagedSourceError, match=match):
        open_files(folder, exclude=str(tmp_path / "bad.jsonl"))


def test_no_manifest(folder: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"nothing is stored at .*nowhere\.jsonl"):
        open_files(folder, exclude=folder / "nowhere.jsonl")


def test_exclusions_pickle_add_up_and_reopen(folder: Path) -> None:
    chosen = open_files(folder, exclude=["a/0.jpg"])
    data = pickle.dumps(chosen)
    assert len(data) < 2000
    other = pickle.loads(data)
    assert [other.key(n) for n in range(len(other))] == [chosen.key(n) for n in range(5)]
    fewer = other.without(["b/1.jpg"])
    assert (len(fewer), fewer.key(0), fewer.key(2)) == (4, "a/2.jpg", "b/3.jpg")
    assert other.without([]) is other
    reopened = fewer.reopened()
    assert reopened.read(0) == fewer.read(0)
    reopened.close()
    assert fewer.read(3)


def test_row_groups_shrink(tmp_path: Path) -> None:
    arrow: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"image": [b"x"] * 9}), tmp_path / "a.parquet", row_group_size=3)
    chosen = open_files(tmp_path, exclude=[f"a.parquet/{row}" for row in (0, 3, 4, 5)])
    assert chosen.blocks == (2, 3)


def test_the_text_is_json_lines(folder: Path) -> None:
    lines = manifest(open_files(folder), "a/2.jpg").text().splitlines()
    assert [json.loads(line).get("key") for line in lines] == [None, "a/2.jpg"]
    assert "ü" in lines[1]
