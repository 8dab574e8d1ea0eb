"""Open files, and the same rows whoever reads them: images under a low limit, in threads, in worker processes."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from dew.data import DataPartition, ImageFolder, Loading
from dew.testing import assert_nothing_left, whole_step

FILES = 1000

# Case E14: an epoch over many small files under `ulimit -n 256`.
SCRIPT = """
import os, resource, sys
from dew.data import DataPartition, ImageFolder, Loading

if __name__ == "__main__":
    path, workers = sys.argv[1], int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    dataset = ImageFolder(path, size=8, crop="random", loading=Loading(workers=workers, threads=4)).load(batch=50)
    before = len(os.listdir("/proc/self/fd"))
    seen = 0
    with dataset.train(DataPartition()) as stream:
        for step in range(dataset.steps_per_epoch):
            seen += len(next(stream)["image"])
        during = len(os.listdir("/proc/self/fd"))
    after = len(os.listdir("/proc/self/fd"))
    print(seen, during - before < 60, after - before < 10)
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand files of a few bytes each."""
    folder = tmp_path_factory.mktemp("many")
    made = io.BytesIO()
    Image.new("RGB", (9, 8), (10, 20, 30)).save(made, "PNG")
    for number in range(FILES):
        (folder / f"{number:04d}.png").write_bytes(made.getvalue())
    return folder


@pytest.mark.parametrize("workers", [0, 2])
def test_files_are_opened_one_at_a_time(many: Path, tmp_path: Path, workers: int) -> None:
    script = tmp_path / "epoch.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-W", "error", str(script), str(many), str(workers)]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(FILES), "True", "True"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty noisy JPEGs of several sizes, whose every crop is another."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(3)
    for number in range(30):
        height, width = rng.integers(24, 60, 2)
        noise = rng.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"{number:02d}.jpg", quality=90)
        (folder / f"{number:02d}.txt").write_text(f"picture {number}")
    return folder


def batches(folder: Path, seed: int, loading: Loading, count: int, steps: int) -> list[Any]:
    """Global batches, read by `count` processes."""
    spec = ImageFolder(folder, size=16, crop="random", flip=0.5, seed=seed, loading=loading)
    shares = [spec.load(batch=12).train(DataPartition(index, count)) for index in range(count)]
    found = [whole_step([next(share) for share in shares]) for _ in range(steps)]
    for share in shares:
        share.close()  # type: ignore[attr-defined]
    return found


def assert_same(one: list[Any], other: list[Any]) -> None:
    for left, right in zip(one, other, strict=True):
        assert sorted(left) == sorted(right) == ["caption", "image"]
        for name in left:
            np.testing.assert_array_equal(left[name], right[name])


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**64 - 1),
    count=st.sampled_from([1, 2, 3, 4, 6, 12]),
    threads=st.integers(0, 5),
    ahead=st.integers(0, 3),
)
def test_rows_do_not_depend_on_processes_and_threads(
    pictures: Path, seed: int, count: int, threads: int, ahead: int
) -> None:
    alone = batches(pictures, seed, Loading(workers=0, threads=0, read_buffer=0), 1, 3)
    assert_same(batches(pictures, seed, Loading(workers=0, threads=threads, read_buffer=ahead), count, 3), alone)


def test_rows_do_not_depend_on_worker_processes(pictures: Path) -> None:
    alone = batches(pictures, 5, Loading(workers=0), 1, 4)
    for workers in (1, 2):
        assert_same(batches(pictures, 5, Loading(workers=workers), 1, 4), alone)


def test_nothing_is_left_open(pictures: Path) -> None:
    batches(pictures, 1, Loading(workers=0, threads=4), 1, 1)  # what a library keeps from its first use
    with assert_nothing_left():
        batches(pictures, 1, Loading(workers=0, threads=4), 2, 3)
