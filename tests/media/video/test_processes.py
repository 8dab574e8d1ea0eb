"""Threads, forks, open files, memory and kills: what decoding video leaves behind in a process."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.media.video.conftest import Video, beep, write_video

from dew.data import DataPartition, Loading, VideoFolder, VideoOptions
from dew.testing import assert_nothing_left
from dew_media.video.audio import AudioOptions
from dew_media.video.opened import CAPACITY
from dew_media.video.opening import open_split
from dew_media.video.source import VideoSource

FILES = 24
CODECS = ("libx264", "libx265", "libvpx-vp9", "libsvtav1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of several codecs, large enough that a decoder would like to have threads."""
    root = tmp_path_factory.mktemp("processes") / "clips"
    root.mkdir()
    for number, codec in enumerate(CODECS):
        name = f"{number}.mkv"
        sound = beep if number == 0 else None
        made = write_video(root, Video(name=name, codec=codec, frames=16, size=(256, 192), sound=sound))
        for copy in range(1, FILES // len(CODECS)):
            os.link(made, root / f"{number}-{copy}.mkv")
    return root


def opened(folder: Path) -> VideoSource:
    sound = AudioOptions(seconds=0.2, missing="silence")
    return open_split(str(folder), "train", VideoOptions(frames=4, size=64, audio=sound))


def tasks() -> int:
    """Threads of this process, those of libraries too."""
    return len(os.listdir("/proc/self/task"))


def open_videos(folder: Path) -> int:
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith(str(folder))
        except FileNotFoundError:  # the one that lists them
            continue
    return found


def test_a_clip_is_decoded_by_the_thread_that_asks_for_it(folder: Path) -> None:
    source = opened(folder)
    before = tasks()
    for index in range(FILES):
        _ = source[index]
        assert tasks() == before, source.files.key(index)  # its container is open still
    source.close()
    assert tasks() == before


def test_open_files_are_few_and_closed(folder: Path) -> None:
    threads = 3
    spec = VideoFolder(folder, frames=4, size=64, loading=Loading(workers=0, threads=threads))
    dataset = spec.load(batch=8)
    with assert_nothing_left():
        stream: Any = dataset.train(DataPartition())
        with stream:
            most = 0
            for _ in range(12):
                next(stream)
                most = max(most, open_videos(folder))
        assert 0 < most <= CAPACITY + threads
        assert open_videos(folder) == 0


def test_a_forked_child_reads_what_its_parent_reads(folder: Path) -> None:
    """The parent has containers open and converted pictures, from which some versions of PyAV do not recover."""
    script = f"""
import os, sys, hashlib
from dew_media.video.opening import open_split
from dew_media.video.options import VideoOptions
source = open_split({str(folder)!r}, "train", VideoOptions(frames=4, size=64))
read = lambda: hashlib.sha256(b"".join(source[index]["video"].tobytes() for index in range(6))).hexdigest()
wanted = read()
child = os.fork()
if not child:
    os._exit(0 if read() == wanted else 3)
_, status = os.waitpid(child, 0)
assert read() == wanted
sys.exit(os.waitstatus_to_exitcode(status))
"""
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("clips", [200, pytest.param(2000, marks=pytest.mark.nightly)])
def test_memory_does_not_grow_with_clips(folder: Path, clips: int) -> None:
    script = f"""
import numpy as np
from dew_media.video.opening import open_split
from dew_media.video.options import VideoOptions
source = open_split({str(folder)!r}, "train", VideoOptions(frames=4, size=64, crop="random"))
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
for clip in range({clips}):
    source.drawn(clip * 7 % len(source), np.random.default_rng(clip))
    if clip == {clips} // 4:
        before = resident()
print(resident() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, timeout=300, capture_output=True, text=True)
    # What one clip in ten would leak of a decoded picture is several times as much; the rest is the allocator's.
    assert int(done.stdout) < 16 << 20


TRAINING = """
import hashlib, json, sys
from dew.data import DataPartition, Loading, VideoFolder

folder, state, steps = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
spec = VideoFolder(folder, frames=3, size=32, crop="random", flip=0.5, seed=6, loading=Loading(workers=0))
with spec.load(batch=4).train(DataPartition()) as stream:
    if state is not None:
        stream.set_state(state)
    for _ in range(steps):
        batch = next(stream)
        digest = hashlib.sha256(batch["video"].tobytes()).hexdigest()
        print(json.dumps([digest, stream.get_state()]), flush=True)
"""


def test_a_killed_run_goes_on_with_the_same_clips(folder: Path) -> None:
    command = [sys.executable, "-c", TRAINING, str(folder)]
    with subprocess.Popen([*command, "null", "1000"], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        lines = [json.loads(run.stdout.readline()) for _ in range(3)]
        run.send_signal(signal.SIGKILL)
    resumed = subprocess.run(
        [*command, json.dumps(lines[-1][1]), "5"], check=True, capture_output=True, text=True, timeout=120
    )
    digests = [digest for digest, _ in lines] + [json.loads(line)[0] for line in resumed.stdout.splitlines()]
    spec = VideoFolder(folder, frames=3, size=32, crop="random", flip=0.5, seed=6, loading=Loading(workers=0))
    whole: Any = spec.load(batch=4).train(DataPartition())
    with whole:
        assert digests == [hashlib.sha256(next(whole)["video"].tobytes()).hexdigest() for _ in range(8)]


def test_a_table_of_hours_is_not_kept_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dew_media.video import index as index_module

    monkeypatch.setattr(index_module, "MOST_REMEMBERED", 8_000)
    source = opened(folder)
    clips = [source[index]["video"] for index in range(FILES)]
    assert 1 <= len(source._index._tables) <= 3  # pyright: ignore[reportPrivateUsage]
    for index in range(FILES):
        np.testing.assert_array_equal(source[index]["video"], clips[index])
    source.close()
