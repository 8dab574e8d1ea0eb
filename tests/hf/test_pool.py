"""Real processes: a pool that prepares one cache at once, shares a stream, and is killed and started again."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dew.data import DataPartition, HFOptions, Loading, identity, load

CHILD = """
import json, os, sys
import datasets
datasets.disable_progress_bars()
from dew.data import DataPartition, HFOptions, Loading, identity, load

def main():
    index, count, mode, steps, saved, paths, cache = json.loads(sys.argv[1])
    options = HFOptions(data_files=paths, cache_dir=cache, position="records" if mode == "records" else None)
    dataset = load(
        "hf/parquet", batch=4, streaming=mode != "table", options=options, preprocess=identity,
        loading=Loading(workers=0),
    )
    with dataset.train(DataPartition(index, count)) as stream:
        if saved is not None:
            stream.set_state(saved)
        for _ in range(steps):
            batch = next(stream)
            print(json.dumps([batch["id"].tolist(), stream.get_state()]), flush=True)

if __name__ == "__main__":
    main()
"""


def start(tmp_path: Path, files: Any, index: int, count: int, mode: str, steps: int, saved: Any = None) -> Any:
    script = tmp_path / "child.py"
    if not script.exists():  # another process may be reading it
        script.write_text(CHILD)
    arguments = json.dumps([index, count, mode, steps, saved, list(files.paths), str(tmp_path / "cache")])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, str(script), arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def results(pool: list[Any]) -> list[list[Any]]:
    found = []
    for process in pool:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        found.append([json.loads(line) for line in out.splitlines()])
    return found


@pytest.mark.parametrize("mode", ["table", "stream", "records"])
def test_a_pool_reads_what_one_process_reads(mode: str, tmp_path: Path, write_files: Any) -> None:
    files = write_files("parquet", (40,), 40)
    pool = results([start(tmp_path, files, index, 2, mode, 4) for index in range(2)])
    (alone,) = results([start(tmp_path, files, 0, 1, mode, 4)])
    for step in range(4):
        rows = sorted(row for share in pool for row in share[step][0])
        assert rows == sorted(alone[step][0])


def expected(files: Any, mode: str, index: int, count: int, steps: int) -> list[list[int]]:
    """The steps of a share that nobody interrupts."""
    options = HFOptions(data_files=list(files.paths), position="records" if mode == "records" else None)
    dataset = load(
        "hf/parquet",
        batch=4,
        streaming=mode != "table",
        options=options,
        preprocess=identity,
        loading=Loading(workers=0, read_buffer=0),
    )
    with dataset.train(DataPartition(index, count)) as stream:
        return [next(stream)["id"].tolist() for _ in range(steps)]


KILLS = [
    pytest.param("records", 2, 1),
    *(pytest.param(mode, 2, 2, marks=pytest.mark.nightly) for mode in ("table", "stream", "records")),
    *(pytest.param(mode, 4, 4, marks=pytest.mark.nightly) for mode in ("table", "stream", "records")),
    *(pytest.param(mode, 4, 2, marks=pytest.mark.nightly) for mode in ("table", "records")),
    *(pytest.param(mode, 1, 2, marks=pytest.mark.nightly) for mode in ("table", "records")),
]


@pytest.mark.parametrize(("mode", "before", "after"), KILLS)
def test_a_killed_pool_goes_on_from_its_last_position(
    mode: str, before: int, after: int, tmp_path: Path, write_files: Any
) -> None:
    files = write_files("parquet", (400,), 20)
    pool = [start(tmp_path, files, index, before, mode, 10**6) for index in range(before)]
    # Killed in the middle of whatever each does, some steps after its first ones; what it printed last is where it was.
    lines: list[list[str]] = []
    for process in pool:
        read = [process.stdout.readline() for _ in range(5)]
        process.send_signal(signal.SIGKILL)
        lines.append(read + process.stdout.readlines())
        process.stdin.close()
        process.stdout.close()
        process.wait(60)
    last = [json.loads(next(line for line in reversed(share) if line.endswith("}]\n"))) for share in lines]
    assert [process.returncode for process in pool] == [-signal.SIGKILL] * before
    if mode == "stream":
        states = [state for _, state in last]
        done = [state["state"]["rows"] // (4 // after) for state in states]
    else:
        states = [min((state for _, state in last), key=lambda state: state["records"])] * after
        done = [state["records"] // 4 for state in states]
    again = results([start(tmp_path, files, index, after, mode, 3, states[index]) for index in range(after)])
    for index in range(after):
        whole = expected(files, mode, index, after, done[index] + 3)
        assert [rows for rows, _ in again[index]] == whole[done[index] :]
