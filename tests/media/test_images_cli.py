"""`dew images index` and `dew images verify`, in the process and in one of its own."""

import functools
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from dew.data.errors import SourceError, StorageError
from dew.data.storage import Storage
from dew_media.files.exclude import read_manifest
from dew_media.files.open import open_files
from dew_media.images.cli import images

Encode: TypeAlias = Callable[..., bytes]
WriteTar: TypeAlias = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("user_cache")


def run(*words: object) -> Result:
    result = CliRunner().invoke(images, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@functools.cache
def bomb() -> bytes:
    """A hundred million pixels in a few kilobytes."""
    made = io.BytesIO()
    Image.new("1", (10000, 10000)).save(made, "PNG")
    return made.getvalue()


@pytest.fixture
def damaged(tmp_path: Path, encode: Encode) -> Path:
    """E06 and E05: good images of every kind, and one of each that is none."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}.jpg").write_bytes(encode(number, (64, 48)))
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "page.jpg").write_bytes(b"<html><body>404 Not Found</body></html>")
    whole = encode(3, (64, 48))
    (folder / "cut.jpg").write_bytes(whole[: len(whole) * 6 // 10])
    (folder / "png-in-truth.jpg").write_bytes(encode(1, (1, 1), "PNG"))
    (folder / "bomb.png").write_bytes(bomb())
    return folder


class TestVerify:
    def test_what_was_found_is_not_lost_where_it_cannot_be_written(
        self, damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Collections often lie where nothing can be written, and decoding all of one takes hours."""
        here = tmp_path / "here"
        here.mkdir()
        monkeypatch.chdir(here)
        done = run("verify", damaged, "--out", damaged / "0.jpg" / "bad.jsonl")
        assert done.exit_code == 1
        assert "could not be written" in done.stderr
        assert "it is in the working directory instead" in done.stderr
        assert "manifest: dew-bad-train.jsonl; leave them out with exclude='dew-bad-train.jsonl'" in done.stdout
        assert len(read_manifest(here / "dew-bad-train.jsonl").bad) == 4

    def test_bad_files_are_listed_and_left_out(self, damaged: Path) -> None:
        done = run("verify", damaged)
        assert done.exit_code == 1
        assert "15 files, 4 bad (folder, 15 files)" in done.stdout
        for words in ("empty.jpg is empty: 0 bytes", "page.jpg is no image that can be read", "cut.jpg"):
            assert words in done.stdout
        out = damaged / "dew-bad-train.jsonl"
        assert f"manifest: {out}; leave them out with exclude='{out}'" in done.stdout
        reasons = {record.key: record.reason for record in read_manifest(out).bad}
        assert reasons == {
            "bomb.png": "too large, or of another kind",
            "cut.jpg": "cut or damaged",
            "empty.jpg": "empty",
            "page.jpg": "not an image",
        }
        files = open_files(damaged, exclude=out)
        assert len(files) == 11
        assert run("verify", damaged, "--out", out).exit_code == 1  # the same again

    def test_json(self, damaged: Path, tmp_path: Path) -> None:
        out = tmp_path / "bad.jsonl"
        done = run("verify", damaged, "--json", "--out", out, "--threads", 2)
        about = json.loads(done.stdout)
        assert done.exit_code == 1
        assert (about["files"], len(about["bad"]), about["manifest"]) == (15, 4, str(out))
        assert about["reasons"]["empty"] == 1
        assert [record["key"] for record in about["bad"]] == ["bomb.png", "cut.jpg", "empty.jpg", "page.jpg"]

    def test_all_good(self, tmp_path: Path, encode: Encode) -> None:
        for number in range(3):
            (tmp_path / f"{number}.jpg").write_bytes(encode(number))
        done = run("verify", tmp_path)
        assert (done.exit_code, "3 files, 0 bad" in done.stdout) == (0, True)
        assert read_manifest(tmp_path / "dew-bad-train.jsonl").bad == ()
        assert len(open_files(tmp_path, exclude=tmp_path / "dew-bad-train.jsonl")) == 3

    def test_tar_with_captions_and_labels(self, tmp_path: Path, encode: Encode, write_tar: WriteTar) -> None:
        members: list[tuple[str, bytes]] = []
        for number in range(4):
            members += [(f"{number}.jpg", encode(number)), (f"{number}.txt", b"x"), (f"{number}.cls", b"1")]
        members[4] = ("1.txt", b"\xff")
        members[8] = ("2.cls", b"cat")
        members[9] = ("3.jpg", b"GIF89a")
        path = write_tar(tmp_path / "s.tar", members)
        done = run("verify", path)
        assert done.exit_code == 1
        bad = read_manifest(f"{path}.bad.jsonl").bad
        assert [(record.key, record.reason) for record in bad] == [
            ("s.tar/1", "bad caption or label"),
            ("s.tar/2", "bad caption or label"),
            ("s.tar/3", "not an image"),
        ]
        assert "s.tar: 3 at byte" in bad[2].message
        assert len(open_files(path, exclude=f"{path}.bad.jsonl")) == 1

    def test_a_split_of_parquet(self, tmp_path: Path, encode: Encode) -> None:
        arrow: Any = pytest.importorskip("pyarrow")
        parquet: Any = pytest.importorskip("pyarrow.parquet")
        for split in ("train", "val"):
            rows = arrow.table({"image": [encode(0), b"", b"x"], "mask": [encode(0)] * 3})
            parquet.write_table(rows, tmp_path / f"{split}-0.parquet")
        with pytest.raises(SourceError, match="column= says which"):
            run("verify", tmp_path)
        done = run("verify", tmp_path, "--split", "val", "--column", "image", "--layout", "parquet")
        assert done.exit_code == 1
        bad = read_manifest(tmp_path / "dew-bad-val.jsonl").bad
        assert [(record.key, record.reason) for record in bad] == [
            ("val-0.parquet/1", "empty"),
            ("val-0.parquet/2", "not an image"),
        ]

    def test_a_storage_that_fails_says_nothing_of_images(
        self, tmp_path: Path, encode: Encode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "1.jpg").write_bytes(encode(1))

        def failed(self: Storage, name: str) -> bytes:
            raise StorageError("the disk is gone")

        monkeypatch.setattr(Storage, "read", failed)
        with pytest.raises(StorageError, match="the disk is gone"):
            run("verify", tmp_path)
        assert not (tmp_path / "dew-bad-train.jsonl").exists()

    def test_many_bad_files_are_counted(self, tmp_path: Path) -> None:
        for number in range(30):
            (tmp_path / f"{number}.jpg").write_bytes(b"")
        assert "and 10 more, all of them in the manifest" in run("verify", tmp_path).stdout


class TestIndex:
    def test_beside_the_shards(self, tmp_path: Path, write_tar: WriteTar) -> None:
        for split in ("train", "val"):
            write_tar(tmp_path / f"{split}/0.tar", [("1.jpg", b"x"), ("1.txt", b"y"), ("2.jpg", b"z"), ("2.txt", b"y")])
        done = run("index", tmp_path)
        assert done.exit_code == 0
        where = tmp_path / "val/dew.idx.npz"
        size = (tmp_path / "val/0.tar").stat().st_size
        assert f"{where}: 2 samples in 1 tar shard, 4 members (jpg, txt), {size:,} bytes" in done.stdout
        assert open_files(tmp_path, split="val").read(1) == b"z"

    def test_problems_are_listed(self, tmp_path: Path, write_tar: WriteTar) -> None:
        path = write_tar(tmp_path / "s.tar", [("1.jpg", b"x" * 600), ("../2.jpg", b"x"), ("3.jpg", b"x" * 600)])
        path.write_bytes(path.read_bytes()[:3700])
        done = run("index", path)
        assert done.exit_code == 1
        assert "1 name that leads out of the archive: 's.tar: ../2.jpg'" in done.stdout
        assert "1 truncated member: 's.tar: 3.jpg at byte 3072, of which" not in done.stdout  # 600 bytes are there
        path.write_bytes(path.read_bytes()[:3100])
        done = run("index", path, "--json")
        (about,) = json.loads(done.stdout)
        assert done.exit_code == 1
        assert about["problems"] == {"names that lead out of the archive": 1, "truncated members": 1}
        assert about["without_end"] == ["s.tar"]

    def test_into_a_directory(self, tmp_path: Path, write_tar: WriteTar) -> None:
        path = write_tar(tmp_path / "in/s.tar", [("1.jpg", b"x")])
        done = run("index", path, "--into", tmp_path / "indexes", "--json")
        (about,) = json.loads(done.stdout)
        assert Path(about["index"]).parent == tmp_path / "indexes"
        told: list[Any] = []
        open_files(path, index=str(tmp_path / "indexes"), on_progress=lambda *now: told.append(now))
        assert not told

    def test_no_shards(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match=r"layout='tar' was asked for, and .* holds no file at all"):
            run("index", tmp_path)


def test_the_command_of_the_installed_provider(damaged: Path) -> None:
    def dew(*words: object) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "dew", "images", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = dew("verify", damaged, "--json")
    assert (done.returncode, json.loads(done.stdout)["files"], done.stderr) == (1, 15, "")
    done = dew("verify", damaged / "nowhere")
    assert done.returncode == 1
    assert done.stderr.startswith("dew: nothing is stored at ")


def test_bars_are_for_terminals(tmp_path: Path, encode: Encode, write_tar: WriteTar) -> None:
    path = write_tar(tmp_path / "s.tar", [(f"{number}.jpg", encode(number)) for number in range(5)])
    here, terminal = os.openpty()
    try:
        command = [sys.executable, "-m", "dew", "images", "verify", str(path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, text=True, check=True)
        shown = os.read(here, 1 << 16).decode()
    finally:
        os.close(here)
        os.close(terminal)
    assert "5 members" in shown
    assert "5 of 5 files, 0 bad" in shown
    assert done.stdout.startswith("5 files, 0 bad")
