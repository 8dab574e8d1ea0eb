"""Real processes: a pool that prepares one cache at once, shares a stream, and is killed and started again."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
        if steps > 50:
            sys.stdin.read()

if __name__ == "__main__":
    main()
"""


def start(tmp_path: Path, files: Any, index: int, count: int, mode: str, steps: int, saved: Any = None) -> Any:
    script = tmp_path / "child.py"
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


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["stream", "records"])
@pytest.mark.parametrize("count", [2, 4])
def test_a_killed_pool_goes_on(mode: str, count: int, tmp_path: Path, write_files: Any) -> None:
    files = write_files("parquet", (400,), 20)
    pool = [start(tmp_path, files, index, count, mode, 60) for index in range(count)]
    lines = [[json.loads(process.stdout.readline()) for _ in range(7)] for process in pool]
    for process in pool:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    again = results([start(tmp_path, files, index, count, mode, 3, lines[index][3][1]) for index in range(count)])
    for index in range(count):
        assert [step[0] for step in again[index]] == [step[0] for step in lines[index][4:]]
