"""The checks of tests/conftest.py can fail: a run of bad tests, each of which must be caught, beside good ones."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

SAMPLE = """
import os, socket, subprocess, sys, tempfile, threading, time
from multiprocessing import shared_memory

import hypothesis
import pytest

kept = []

def test_good(tmp_path):
    thread = threading.Thread(target=time.sleep, args=(0.2,))
    thread.start()
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    (tmp_path / "a").write_text("a")
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
    assert child.wait() == 0

@hypothesis.given(hypothesis.strategies.integers())
def test_good_property(number):
    assert isinstance(number, int)

def test_thread():
    event = threading.Event()
    kept.append(event)
    threading.Thread(target=event.wait, name="still here", daemon=True).start()

def test_process():
    kept.append(subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE))

def test_file(tmp_path):
    kept.append(open(tmp_path / "open.bin", "wb"))

def test_shared_memory():
    memory = shared_memory.SharedMemory(create=True, size=8, name=f"dew-test-{os.getpid()}")
    kept.append(memory)
    memory.close()

def test_temp_file():
    descriptor, name = tempfile.mkstemp(prefix="left-")
    os.close(descriptor)

@pytest.mark.parametrize("address", [("192.0.2.1", 9), ("example.invalid", 9)])
def test_network(address):
    with socket.socket() as client:
        client.connect(address)

def test_end():
    kept.pop(0).set()
    with kept.pop(0) as child:
        child.communicate()
    kept.pop(0).close()
    kept.pop(0).unlink()
    assert not kept
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("guards")
    (folder / "conftest.py").write_bytes(CONFTEST.read_bytes())
    (folder / "test_sample.py").write_text(SAMPLE)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--basetemp", "base", "."]
    environment = {**os.environ, "DEW_LEAK_SECONDS": "0.5", "COLUMNS": "300"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("test_thread", "thread 'still here'"),
        ("test_process", r"process \d+: .*sys\.stdin\.read"),
        ("test_file", r"open file .*open\.bin"),
        ("test_shared_memory", r"/dev/shm/dew-test-\d+"),
        ("test_temp_file", r"left-"),
    ],
)
def test_what_a_test_leaves_is_named(report: str, test: str, message: str) -> None:
    assert re.search(
        rf"^ERROR test_sample\.py::{test} - Failed: left behind (after 0\.5 s|in the temp folder): .*{message}",
        report,
        re.MULTILINE,
    )


def test_only_the_loopback_can_be_reached(report: str) -> None:
    for address in ("('192.0.2.1', 9)", "('example.invalid', 9)"):
        assert f"RuntimeError: a test tried to reach {address}; tests may reach only this machine" in report


def test_good_tests_pass(report: str) -> None:
    assert re.search(r"^2 failed, 8 passed, 5 errors", report.splitlines()[-1])
