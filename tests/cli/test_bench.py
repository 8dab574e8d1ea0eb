"""`dew bench`: every setting in a process of its own, what is measured, what is advised, and what fails."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np
import pytest
from click.testing import CliRunner

from dew.cli.bench import Setting, Tried, bench, grid, recommended
from dew.cli.measuring import Clock, Job, TimedSource, measure, reloaded
from dew.cli.opening import Asked
from dew.data.loading import Loading
from dew.data.stream import RecordStream, train_stream

Dew: TypeAlias = Callable[..., Any]

PROGRAM = """
import os, signal, time
import numpy as np
from dew.data import Dataset, from_records, train_stream

print("a program may print")

class Rows:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.001)
        return {"x": np.full(100, index, np.float32)}

def slow(record):
    time.sleep(0.0005)
    return record

def only_here(record):
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # as in worker processes
        raise ValueError("not in a worker")
    return record

def fatal(record):
    os.kill(os.getpid(), signal.SIGKILL)

def dataset(preprocess):
    return Dataset(lambda partition: train_stream(Rows(), batch=4, partition=partition, preprocess=preprocess), batch=4)

def waiting(record):
    open("started", "w").close()
    time.sleep(60)

def failing(record):
    if record["x"][0] == 17:
        raise KeyError("caption")
    return record

rows = dataset(slow)
fails = Dataset(lambda partition: train_stream(Rows(), batch=64, partition=partition, preprocess=failing), batch=64)
waits = dataset(waiting)
here = dataset(only_here)
dies = dataset(fatal)
arrays = from_records({"x": np.zeros((64, 5))}, batch=8)
stream = Dataset(lambda partition: iter([{"x": np.zeros(3)}] * 40), batch=3)
short = Dataset(lambda partition: iter([]), batch=3)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "train.py").write_text(PROGRAM)
    return str(tmp_path / "train.py")


def job(source: str, **given: Any) -> Job:
    return Job(**{"asked": attrs.asdict(Asked(source=source)), "setting": None, "steps": 3, "seconds": 9.0, **given})


def test_settings_for_a_machine() -> None:
    def shown(cores: int, whole: bool = False) -> list[tuple[int, int, int]]:
        return [attrs.astuple(setting) for setting in grid(cores, whole)]

    assert shown(1) == [(0, 1, 0), (0, 1, 2), (0, 2, 2), (1, 1, 2)]  # a second thread while one waits for a disk
    assert shown(2) == [(0, 1, 0), (0, 1, 2), (0, 2, 2), (1, 1, 2), (2, 1, 2)]
    assert shown(8, whole=True) == [(0, 1, 0), (0, 1, 2), *((workers, 1, 2) for workers in (1, 2, 4, 7, 8))]
    assert shown(96) == [(0, 1, 0), *((0, threads, 2) for threads in (1, 2, 4)), (1, 1, 2), (24, 1, 2)]
    assert [attrs.astuple(one) for one in grid(8, False, [4, 0], None, [1, 3])] == [
        (0, 1, 1), (0, 1, 3), (4, 1, 1), (4, 1, 3),
    ]  # fmt: skip


def tried(workers: int, threads: int, ahead: int, rate: float, wait: float = 1.0) -> Tried:
    result = {"steps_per_second": rate, "wait_share": wait}
    return Tried(setting=Setting(workers, threads, ahead), result=result if rate else None)


@pytest.mark.parametrize(
    ("measured", "compute", "expected"),
    [
        ([tried(0, 1, 2, 10), tried(0, 2, 2, 20), tried(2, 1, 2, 20.9)], 0.0, 1),  # as fast, and no processes
        ([tried(0, 1, 2, 10), tried(0, 2, 2, 20), tried(2, 1, 2, 22)], 0.0, 2),
        ([tried(0, 1, 0, 90), tried(0, 1, 2, 20)], 0.0, 1),  # read-ahead can hide, its absence cannot
        ([tried(0, 1, 0, 20, 0.01), tried(0, 1, 2, 20, 0.0)], 5.0, 0),  # unless there is next to nothing to hide
        ([tried(0, 1, 0, 20), tried(0, 1, 2, 0)], 0.0, 0),
        ([tried(0, 1, 2, 10, 0.2), tried(0, 2, 2, 12, 0.04), tried(2, 1, 2, 13, 0.0)], 5.0, 1),  # hidden well enough
        ([tried(0, 1, 2, 10, 0.6), tried(2, 1, 2, 12, 0.4)], 5.0, 1),  # nothing hides it: the fastest
        ([tried(0, 1, 2, 0), tried(2, 1, 2, 3)], 0.0, 1),  # what failed is not advised
    ],
)
def test_what_is_advised(measured: list[Tried], compute: float, expected: int) -> None:
    assert recommended(measured, compute) is measured[expected]


def test_stages_are_measured_where_they_happen(program: str) -> None:
    """Sleeping lasts at least as long as asked, and nothing else sleeps."""
    stages = measure(job(f"{program}:rows", stages=True))
    assert stages["steps"] == 3
    assert stages["read"] >= 4 * 0.001
    assert stages["preprocess"] >= 4 * 0.0005
    assert stages["collate"] > 0
    whole = measure(job(f"{program}:arrays", stages=True))
    assert whole["read"] > 0
    assert whole["preprocess"] == 0


def test_rates(program: str) -> None:
    told: list[float] = []
    setting = {"workers": 0, "threads": 2, "read_buffer": 2}
    started = time.perf_counter()
    found = measure(job(f"{program}:rows", setting=setting, compute=0.002), told.append)
    took = time.perf_counter() - started
    assert found["steps"] == 3
    assert found["records_per_second"] == pytest.approx(4 * found["steps_per_second"])
    assert found["bytes_per_second"] == pytest.approx(4 * 400 * found["steps_per_second"])
    assert 3 / found["steps_per_second"] >= 3 * 0.002  # the compute of each step is part of the loop
    assert 0 < found["first_batch_seconds"] + found["open_seconds"] + 3 / found["steps_per_second"] < took
    assert 0 <= found["wait_share"] <= 1
    assert found["peak_bytes"] > 10 << 20
    assert told == [1 / 3, 2 / 3, 1.0]


def test_bounded_by_time(program: str) -> None:
    setting = {"workers": 0, "threads": 1, "read_buffer": 0}
    assert measure(job(f"{program}:rows", setting=setting, steps=None, seconds=0.0))["steps"] == 1


class Drawing:
    """Has every way of reading, and says which was used."""

    def __init__(self) -> None:
        self.used: list[str] = []

    def __len__(self) -> int:
        return 16

    def __repr__(self) -> str:
        return "Drawing()"

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.used.append("getitem")
        return {"x": index}

    def drawn(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        self.used.append("drawn")
        return {"x": index + rng.integers(1 << 30)}

    def open(self) -> "Drawing":
        self.used.append("open")
        return self

    def close(self) -> None:
        self.used.append("close")


def batches(stream: Iterator[Any], steps: int = 5) -> list[list[Any]]:
    return [next(stream)["x"].tolist() for _ in range(steps)]


@pytest.mark.parametrize(
    "preprocess", [None, lambda record: {"x": record["x"] + 1}, lambda record, rng: {"x": rng.integers(1 << 30)}]
)
def test_a_stream_read_in_another_way_holds_the_same(preprocess: Any) -> None:
    source: Any = Drawing()
    with train_stream(source, batch=4, seed=7, preprocess=preprocess, loading=Loading(workers=0)) as stream:
        expected = batches(stream)
        clock = Clock()
        timed: Any = TimedSource(source, clock)
        again = reloaded(
            stream,
            Loading(workers=0, read_buffer=0),
            source=timed,
            preprocess=preprocess and clock.preprocessing(preprocess),
        )
        with again:
            assert batches(again) == expected
    assert isinstance(again, RecordStream)
    assert set(source.used) == {"open", "drawn", "close"}
    assert clock.read > 0
    assert (clock.preprocess > 0) == (preprocess is not None)


def test_a_timed_source_has_no_more_ways_than_its_source() -> None:
    timed = TimedSource([1, 2], Clock())
    assert len(timed) == 2
    assert timed[1] == 2
    assert not any(hasattr(timed, name) for name in ("take", "drawn", "open", "__getitems__"))


def test_the_command(dew: Dew, program: str) -> None:
    words = ("bench", "train.py:rows", "--steps", 2, "--workers", "0,1")
    found = dew(*words, "--json").json
    assert found["batch"] == 4
    assert [(one["workers"], one["threads"], one["read_buffer"]) for one in found["settings"]] == [(0, 1, 2), (1, 1, 2)]
    assert all(one["steps"] == 2 and one["error"] is None for one in found["settings"])
    assert found["settings"][1]["peak_bytes"] > found["settings"][0]["peak_bytes"]  # the worker's too
    assert set(found["stages"]) == {"read", "preprocess", "collate"}
    assert [one["use"] for one in found["settings"]].count(True) == 1
    use = found["use"]
    assert use["code"] == f"Loading(workers={use['workers']}, threads=1, read_buffer=2)"
    assert eval(use["code"], {"Loading": Loading}) == Loading(workers=use["workers"], threads=1, read_buffer=2)


def test_the_table(dew: Dew, program: str) -> None:
    ran = dew("bench", "train.py:arrays", "--seconds", 0, "--threads", 1, "--compute", 1, COLUMNS="80")
    assert ran.code == 0
    assert ran.err == "a program may print\n"
    heading, *lines = ran.out.splitlines()
    assert heading.startswith("train.py:arrays: batches of 8 rows on ")
    for word in ("workers", "threads", "ahead", "steps/s", "rows/s", "MB/s", "first", "wait", "memory", " MiB"):
        assert word in ran.out
    assert lines[-1] == "    loading=Loading(workers=0, threads=1, read_buffer=2)"
    assert "One thread builds a step in " in ran.out
    assert "beside 1 ms of compute" in lines[-2]


def test_a_setting_that_fails_is_shown_and_not_advised(dew: Dew, program: str) -> None:
    ran = dew("bench", "train.py:here", "--steps", 2, "--workers", "0,1")
    assert ran.code == 0
    assert "workers=1, threads=1 failed: ValueError: not in a worker" in ran.out
    assert "    loading=Loading(workers=0, threads=1, read_buffer=2)" in ran.out.splitlines()


def test_every_setting_killed(dew: Dew, program: str) -> None:
    ran = dew("bench", "train.py:dies", "--threads", 1)
    assert ran.code == 1
    assert "train.py:dies could not be read by any setting: its process was ended by SIGKILL" in ran.err


def test_a_record_that_fails_is_named(dew: Dew, program: str) -> None:
    ran = dew("bench", "train.py:fails", "--threads", 1, "--steps", 2)
    assert ran.code == 1
    assert "could not be read by any setting: KeyError: 'caption' (reading record 17 (place " in ran.err


def test_a_stream_that_reads_itself(dew: Dew, program: str) -> None:
    found = dew("bench", "train.py:stream", "--steps", 5, "--json").json
    assert [one["steps"] for one in found["settings"]] == [5]
    assert found["use"] is None
    assert found["stages"] is None
    ran = dew("bench", "train.py:stream", "--workers", 1)
    assert ran.code == 1
    assert "train.py:stream is read as a stream that reads itself, so no setting of Loading applies" in ran.err
    assert "the stream ended before its first step" in dew("bench", "train.py:short").err


def test_a_corpus(dew: Dew, demo: Any) -> None:
    words = ("bench", demo.source, "--batch", 8, "-o", "seq_len=64", "--steps", 2, "--threads", 1)
    found = json.loads(dew(*words, "--json").out)
    assert found["settings"][0]["bytes_per_second"] == pytest.approx(
        found["settings"][0]["steps_per_second"] * 8 * 65 * 4
    )
    dew("bench", demo.source, "--batch", 8).fails("'tokens' needs -o seq_len=...")


def test_rows_as_they_are_stored(dew: Dew, strangers: str) -> None:
    words = ("bench", "toy/x", "--batch", 4, "--steps", 1, "--threads", 1)
    said = dew(*words, PYTHONPATH=strangers).out
    assert "what your preprocess costs is seen with FILE.py:NAME" in said
    assert "With --compute MS" in said


def test_ctrl_c_ends_the_process_that_measures(program: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dew", "bench", "train.py:waits", "--threads", "1"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "started").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)  # to the parent alone, as from another program
        out, err = process.communicate()
    assert (process.returncode, out, err.replace("a program may print", "").strip()) == (130, "", "")


@pytest.mark.parametrize(
    "words", [["--workers", "a"], ["--threads", "1,,2"], ["--seconds", "-1"], ["--steps", "0"], []]
)
def test_wrong_usage(words: list[str]) -> None:
    ran = CliRunner().invoke(bench, ["tokens/x", *words])
    assert ran.exit_code == 2
    assert "Traceback" not in ran.output
