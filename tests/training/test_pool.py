"""The fixture that starts pools: members see each other, and no way of ending a test leaves one behind."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np


def meet(member: Any) -> Any:
    import jax
    from jax.experimental import multihost_utils

    indices = multihost_utils.process_allgather(np.int32(member.index))
    return {"devices": jax.device_count(), "local": jax.local_device_count(), "met": np.asarray(indices).tolist()}


def test_members_meet(run_pool: Any) -> None:
    ended = run_pool(meet, 2, devices_per_process=2)
    assert [e.result for e in ended] == [{"devices": 4, "local": 2, "met": [0, 1]}] * 2


def test_a_member_is_killed_where_it_says(run_pool: Any) -> None:
    script = """
        import time
        say(step=3)
        if INDEX == 0:
            time.sleep(600)
    """
    ended = run_pool(script, 1, kill={0: '"step": 3'})
    assert (ended[0].code, ended[0].said) == (-9, [{"step": 3}])


BAD = """
import time

def fails(member):
    if member.index == 1:
        raise ValueError("the second one fails")
    time.sleep(600)

def hangs(member):
    time.sleep(600)

def test_fails(run_pool):
    run_pool(fails, 2)

def test_hangs(run_pool):
    run_pool(hangs, 1, timeout=6)

def test_left_running(start_pool):
    start_pool(hangs, 1)
    raise KeyError("the test itself")
"""


def test_no_member_outlives_a_failing_test(tmp_path: Path) -> None:
    for name in ("conftest.py", "training/conftest.py"):
        target = tmp_path / "tests" / name
        target.parent.mkdir(exist_ok=True)
        target.write_text((Path(__file__).parents[1] / name).read_text())
    (tmp_path / "tests" / "training" / "test_bad.py").write_text(BAD)
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--import-mode=importlib", "--basetemp=base", "tests"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "3 failed" in done.stdout, done.stdout
    assert "left behind" not in done.stdout
    for words in ("member 1 ended with exit code 1", "the second one fails", "time is up", "the test itself"):
        assert words in done.stdout
