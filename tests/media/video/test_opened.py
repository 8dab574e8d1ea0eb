"""Open files are few, shared by threads, and leave nothing behind, in forked and spawned processes too."""

import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dew.data.errors import DamagedSourceError, StreamClosedError
from dew_media.geometry import Geometry
from dew_media.video.decode import OpenVideo
from dew_media.video.frames import read_table
from dew_media.video.opened import OpenVideos

WHOLE = Geometry()


def read(pool: OpenVideos, key: int, path: Any, table: Any, frames: Any) -> Any:
    with pool.opened(key, lambda: str(path), name=path.name) as video:
        return video.clip(table, table.times[frames], geometry=WHOLE, placement=WHOLE.plan(*table.size(), None))


def open_files() -> int:
    return psutil.Process().num_fds()


def test_no_more_than_the_capacity_are_kept_open(library: Any, videos: Any) -> None:
    made = library["b-frames"]
    table = read_table(str(made.path), name="clip")
    before, pool = open_files(), OpenVideos(capacity=3)
    for key in range(10):
        assert [videos.number_in(image) for image in read(pool, key, made.path, table, [key, 20])] == [key, 20]
        assert open_files() - before <= 3
    assert open_files() - before == 3
    pool.close()
    assert open_files() == before
    pool.close()
    with pytest.raises(StreamClosedError, match="the videos were closed; open the source again"):
        read(pool, 0, made.path, table, [0])


def test_a_kept_file_is_used_again_and_a_failed_one_is_not(library: Any) -> None:
    made, pool = library["b-frames"], OpenVideos()
    with pool.opened(5, lambda: str(made.path), name="clip") as first:
        pass
    with pool.opened(5, lambda: str(made.path), name="clip") as again, pool.opened(6, made.path.read_bytes, name="b"):
        assert again is first
    with pytest.raises(RuntimeError, match="stop"), pool.opened(5, lambda: str(made.path), name="clip"):
        raise RuntimeError("stop")
    with pool.opened(5, lambda: str(made.path), name="clip") as anew:
        assert anew is not first
    assert isinstance(pickle.loads(pickle.dumps(pool)), OpenVideos)
    pool.close()


def test_a_file_that_cannot_be_opened_leaves_nothing_open(tmp_path: Any) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"no video" * 100)
    before = open_files()
    with (tmp_path / "bad.mp4").open("rb") as file:
        with pytest.raises(DamagedSourceError, match=r"bad\.mp4 is damaged"):
            OpenVideo(file, name="bad.mp4")
        assert file.closed
    assert open_files() == before


def test_many_threads_read_right_frames_from_few_files(library: Any, videos: Any) -> None:
    kinds = ["b-frames", "open gop mkv", "h265", "vp9", "av1", "gif"]
    files = [library[kind] for kind in kinds]
    tables = [read_table(str(file.path), name=file.name) for file in files]
    pool, before = OpenVideos(capacity=4), threading.active_count()

    def work(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        key, frames = int(rng.integers(len(files))), np.sort(rng.integers(0, 40, 4))
        pixels = read(pool, key, files[key].path, tables[key], frames)
        return [videos.number_in(image) for image in pixels] == frames.tolist()

    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(work, range(120)))
    pool.close()
    assert threading.active_count() == before


def test_no_thread_of_ffmpegs_own_is_started(library: Any) -> None:
    def threads() -> int:
        return psutil.Process().num_threads()

    for kind in ("b-frames", "h265", "vp9", "av1", "sound mkv"):
        made = library[kind]
        table = read_table(str(made.path), name="clip")
        before = threads()
        with OpenVideo(str(made.path), name="clip") as video:
            video.clip(table, table.times[:20], geometry=WHOLE, placement=WHOLE.plan(*table.size(), None))
            assert threads() == before


def memory_grown(made: Any, clips: int) -> float:
    """MB that the process grew by between the first tenth of the clips and the last."""
    table = read_table(str(made.path), name="clip")
    pool, rng = OpenVideos(capacity=2), np.random.default_rng(0)
    for number in range(clips):
        read(pool, number % 5, made.path, table, np.sort(rng.integers(0, 40, 8)))
        if number == clips // 10:
            before = psutil.Process().memory_info().rss
    grown = psutil.Process().memory_info().rss - before  # pyright: ignore[reportPossiblyUnboundVariable]
    pool.close()
    return grown / 1e6


def test_memory_stays_flat_over_200_clips(library: Any) -> None:
    assert memory_grown(library["b-frames"], 200) < 16


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["b-frames", "h265", "vp9", "av1", "gif", "avi"])
def test_memory_stays_flat_over_2000_clips(library: Any, kind: str) -> None:
    assert memory_grown(library[kind], 2000) < 24


PROCESSES = """
import multiprocessing, sys
import numpy as np
from dew_media.geometry import Geometry
from dew_media.video.frames import read_table
from dew_media.video.opened import OpenVideos

WHOLE, POOL = Geometry(), OpenVideos()

def clip(path, pool=None):
    pool = pool or POOL
    table = read_table(path, name="clip")
    with pool.opened(0, lambda: path, name="clip") as video:
        frames = video.clip(table, table.times[[3, 20, 21]], geometry=WHOLE, placement=WHOLE.plan(*table.size(), None))
    return int(frames.sum())

if __name__ == "__main__":
    method, path = sys.argv[1:]
    expected = clip(path)
    context = multiprocessing.get_context(method)
    with context.Pool(2) as workers:
        found = workers.starmap_async(clip, [(path, POOL if method == "spawn" else None)] * 6).get(timeout=90)
        workers.close()
        workers.join()
    assert found == [expected] * 6, (found, expected)
    assert clip(path) == expected
    POOL.close()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_started_after_the_parent_decoded_decode_too(library: Any, tmp_path: Any, method: str) -> None:
    script = tmp_path / "processes.py"
    script.write_text(PROCESSES)
    command = [sys.executable, "-W", "error", str(script), method, str(library["b-frames"].path)]
    done = subprocess.run(command, cwd=Path(os.sep), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_pyav_is_not_imported_with_the_module_and_is_named_where_it_is_missing() -> None:
    script = (
        "import sys\n"
        "import dew_media.video.frames, dew_media.video.decode, dew_media.video.opened, dew_media.video.audio\n"
        "assert 'av' not in sys.modules\n"
        "sys.modules['av'] = None\n"
        "try:\n"
        "    dew_media.video.frames.read_table(b'x', name='clip')\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "reading video needs PyAV: pip install 'dew-media[video]'\n"
