"""The index of a collection: one scan, whole or not at all, of exactly one collection, resumed where it stopped."""

import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.media.video.conftest import Video, write_sound_only, write_video

import dew.cli
from dew.data import SourceError, VideoOptions
from dew.data.errors import DamagedSourceError, SourceNotFoundError
from dew_media.files.exclude import BadRecord, Manifest
from dew_media.video import scan as scan_module
from dew_media.video.frames import read_table
from dew_media.video.index import VideoIndex, read_index
from dew_media.video.opening import FEW, open_split, stored_videos
from dew_media.video.scan import FileJournal, scan
from dew_media.video.tables import packed, unpacked

FILES = 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "clips"
    root.mkdir()
    for number in range(FILES):
        write_video(root, Video(name=f"{number}.mp4", frames=10 + number))
    return root


def files_of(folder: Path) -> Any:
    return stored_videos(str(folder), "train", VideoOptions())


def index_of(folder: Path, **how: Any) -> VideoIndex:
    return scan(files_of(folder), **how).index()


def journal_of(folder: Path, path: Path) -> FileJournal:
    return FileJournal(path, files_of(folder).stored(), decode=False)


def opened(folder: Path, **options: Any) -> Any:
    return open_split(str(folder), "train", VideoOptions(frames=4, size=16, **options))


def run(*words: str) -> int:
    return dew.cli.main(["video", "index", *words])


def test_the_command_writes_an_index_that_runs_use(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without = opened(folder)
    assert run(str(folder), "--json") == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["files"], about["frames"], about["bad"]) == (FILES, sum(range(10, 10 + FILES)), [])
    assert about["seconds"] == pytest.approx(about["frames"] / 25)
    assert [path.name for path in folder.iterdir() if path.suffix != ".mp4"] == ["dew-video-train.index"]
    with_index = opened(folder)
    assert with_index.fingerprint() == without.fingerprint()
    assert len(pickle.dumps(with_index)) < len(pickle.dumps(without))
    assert len(pickle.dumps(with_index)) < 4_000
    again = pickle.loads(pickle.dumps(with_index))
    assert (again[2]["video"] == with_index[2]["video"]).all()


def test_the_table_on_the_screen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "empty.mp4").write_bytes(b"")
    write_sound_only(folder).rename(folder / "sound.mp4")
    assert run(str(folder)) == 1
    shown = capsys.readouterr().out
    assert "5 videos, 60 frames" in shown
    assert "2 cannot be read" in shown
    assert "damaged, or no video" in shown
    assert "empty.mp4" in shown
    assert "sound.mp4 holds no video, only sound" in shown


def test_what_could_not_be_read_is_in_the_index(folder: Path) -> None:
    (folder / "empty.mp4").write_bytes(b"")
    assert run(str(folder)) == 1
    with pytest.raises(SourceError, match="1 of 6 videos cannot be read"):
        opened(folder)
    assert len(opened(folder, unreadable="drop")) == FILES


def test_the_same_files_make_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    made = [tmp_path / name / "dew-video-train.index" for name in ("one", "two")]
    for path, threads in zip(made, ("1", "3"), strict=True):
        assert run(str(folder), "--into", str(path.parent), "--threads", threads) == 0
    assert made[0].read_bytes() == made[1].read_bytes()
    assert [path.suffix for path in folder.iterdir()] == [".mp4"] * FILES
    source = opened(folder, index=str(tmp_path / "one"))
    assert len(source) == FILES
    assert len(pickle.dumps(source)) < 4_000


def test_an_index_that_cannot_be_written(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run(str(folder), "--into", str(tmp_path / "file")) == 1
    assert "cannot be written: File exists; --into DIRECTORY puts the index elsewhere" in capsys.readouterr().err


def test_an_index_that_is_not_where_it_should_be(folder: Path, tmp_path: Path) -> None:
    match = r"index='.*' was given, and .*dew-video-train.index is not there; make it: dew video index .* --into"
    with pytest.raises(SourceNotFoundError, match=match):
        opened(folder, index=tmp_path / "nowhere")


def test_an_index_of_one_shard_lies_beside_it(folder: Path, tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    with tarfile.open(shard, "w") as made:
        for path in sorted(folder.glob("*.mp4")):
            made.add(path, arcname=path.name)
    assert run(str(shard)) == 0
    assert (tmp_path / "a.tar.video-train.index").exists()
    assert len(pickle.dumps(opened(shard))) < 4_000
    assert run(str(shard), "--into", str(tmp_path / "there")) == 0
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["a.tar.video-train.index"]


def test_a_manifest_and_an_index_together(folder: Path, tmp_path: Path) -> None:
    (folder / "0.mp4").write_bytes(b"")
    assert run(str(folder)) == 1
    bad = (BadRecord(key="3.mp4", reason="dull", message="3.mp4 is dull"),)
    manifest = Manifest(collection=files_of(folder).stored(), files=FILES, bad=bad)
    manifest.write(tmp_path / "dull.jsonl")
    with pytest.raises(SourceError, match=r"1 of 4 videos cannot be read: '0.mp4'"):
        opened(folder, exclude=tmp_path / "dull.jsonl")
    source = opened(folder, exclude=tmp_path / "dull.jsonl", unreadable="drop")
    assert [source.files.key(index) for index in range(len(source))] == ["1.mp4", "2.mp4", "4.mp4"]
    again = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(again[2]["video"], source[2]["video"])


def test_nothing_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "0.mp4").write_bytes(b"")
    with pytest.raises(SourceError, match=r"none of the 1 videos can be read; the first: 0.mp4 is damaged"):
        opened(tmp_path, unreadable="drop")
    assert run(str(tmp_path)) == 1
    with pytest.raises(SourceError, match="none of the 1 videos"):
        opened(tmp_path, unreadable="drop")


def test_the_command_in_a_refusal_can_be_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = folder.rename(folder.parent / "it's odd")
    assert run(str(odd)) == 0
    write_video(odd, Video(name="late.mp4"))
    with pytest.raises(SourceError) as caught:
        opened(odd)
    words = shlex.split(str(caught.value).rpartition("Index them again: ")[2])
    assert words[:3] == ["dew", "video", "index"]
    assert dew.cli.main(words[1:]) == 0
    assert len(opened(odd)) == FILES + 1


def test_an_index_of_other_files_is_refused(folder: Path) -> None:
    assert run(str(folder)) == 0
    write_video(folder, Video(name="late.mp4"))
    match = r"is the index of other files, of 5 with .*here are 6 .*again: dew video index .* --split train"
    with pytest.raises(SourceError, match=match):
        opened(folder)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"{}" + data,
        lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
    ],
    ids=["last byte", "half", "empty", "other", "one bit"],
)
def test_a_damaged_index_is_refused(folder: Path, spoil: Any) -> None:
    assert run(str(folder)) == 0
    path = folder / "dew-video-train.index"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DamagedSourceError, match=r"is no index of videos \(version 1\).*make it again"):
        opened(folder)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_byte_of_an_index_can_change_unnoticed(folder: Path, data: st.DataObject) -> None:
    path = folder / "dew-video-train.index"
    if not path.exists():
        assert run(str(folder)) == 0
        (folder / "good").write_bytes(path.read_bytes())
    good = (folder / "good").read_bytes()
    place = data.draw(st.integers(0, len(good) - 1))
    changed = bytearray(good)
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(changed)
    with pytest.raises(DamagedSourceError, match=r"make it again with `dew video index`|index the file again"):
        read_all(folder)


def read_all(folder: Path) -> None:
    source = opened(folder)
    for index in range(FILES):
        source.clip(index)


def test_tables_are_stored_as_they_are(library: Any) -> None:
    for kind in ("b-frames", "variable rate mkv", "sound mkv", "negative times", "no times at all", "gif", "edit list"):
        table = read_table(str(library[kind].path), name=kind)
        again = unpacked(packed(table), kind)
        assert again.digest() == table.digest()
        assert again.facts() == table.facts()
        np.testing.assert_array_equal(again.packets, table.packets)
        np.testing.assert_array_equal(again.times, table.times)
    with pytest.raises(DamagedSourceError, match=r"the index holds no frame table for 'x'"):
        unpacked(b"no table", "x")


def test_many_files_need_an_index(tmp_path: Path) -> None:
    for number in range(FEW + 1):
        (tmp_path / f"{number:04}.mp4").write_bytes(b"x")
    with pytest.raises(SourceError, match=rf"the {FEW + 1} videos of split 'train' have no index.*dew video index"):
        opened(tmp_path)


def test_an_index_that_changes_under_a_run_is_noticed(folder: Path) -> None:
    assert run(str(folder)) == 0
    kept = pickle.dumps(opened(folder))
    write_video(folder, Video(name="0.mp4", frames=12))
    assert run(str(folder)) == 0
    with pytest.raises(DamagedSourceError, match="changed after it was opened"):
        len(pickle.loads(kept)[0])


def test_a_scan_goes_on_where_it_stopped(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    (folder / "0.mp4").write_bytes(b"")
    whole = index_of(folder)

    def stop(done: int, total: int, bad: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), journal_of(folder, path) as journal:
        scan(files_of(folder), threads=1, journal=journal, on_progress=stop)
    with path.open("a") as file:
        file.write('\n{"key": "3.mp4", "dig')  # killed while it wrote
    read: list[str] = []
    original = scan_module.read_table
    monkeypatch.setattr(
        scan_module, "read_table", lambda file, **more: read.append(more["name"]) or original(file, **more)
    )
    with journal_of(folder, path) as journal:
        assert sorted(journal.found) == ["0.mp4", "1.mp4", "2.mp4"]
        assert scan(files_of(folder), journal=journal).index().to_bytes() == whole.to_bytes()
    assert sorted(read) == ["3.mp4", "4.mp4"]


def test_two_scans_at_once_do_no_harm(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with journal_of(folder, path) as one, journal_of(folder, path) as other:
        made = scan(files_of(folder), journal=one)
        assert not other.found
        again = scan(files_of(folder), journal=other)
        one.remove()
        assert made.index().to_bytes() == again.index().to_bytes() == index_of(folder).to_bytes()


def test_a_journal_of_other_files_is_begun_anew(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with journal_of(folder, path) as journal:
        scan(files_of(folder), journal=journal)
    write_video(folder, Video(name="0.mp4", frames=20))
    with journal_of(folder, path) as journal:
        assert not journal.found
        assert len(scan(files_of(folder), journal=journal).index().table("0.mp4")) == 20


def test_a_journal_that_changes_under_a_scan_is_noticed(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with journal_of(folder, path) as journal:
        made = scan(files_of(folder), journal=journal)
        path.write_bytes(bytes(path.stat().st_size))
        with pytest.raises(DamagedSourceError, match=r"journal was changed while it was used; remove it, and scan ag"):
            made.index()


def test_a_killed_scan_leaves_no_index_and_is_resumed(tmp_path: Path) -> None:
    first = write_video(tmp_path, Video(name="source.mp4", frames=200, size=(256, 256)))
    folder = tmp_path / "clips"
    folder.mkdir()
    for number in range(400):
        os.link(first, folder / f"{number:03}.mp4")
    command = [sys.executable, "-m", "dew", "video", "index", str(folder), "--threads", "1"]
    journal, made = folder / "dew-video-train.index.unfinished", folder / "dew-video-train.index"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if journal.exists() and journal.read_bytes().count(b"\n") > 32:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.005)
    process.wait(60)
    assert process.returncode == -signal.SIGKILL
    assert not made.exists()
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=120).returncode == 0
    assert not journal.exists()
    assert made.read_bytes() == index_of(folder).to_bytes()
    assert isinstance(read_index(made), VideoIndex)


def test_decoding_finds_what_packets_do_not_show(folder: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (20, 48, 64, 3), np.uint8)
    path = write_video(folder, Video(name="2.mp4", frames=20), lambda number: noise[number])
    data = bytearray(path.read_bytes())
    place = data.index(b"mdat") + 6000
    data[place : place + 3000] = bytes(3000)
    path.write_bytes(data)
    assert not index_of(folder).bad
    found = index_of(folder, decode=True)
    assert [record.key for record in found.bad] == ["2.mp4"]
