"""Whatever ends a run, in whatever moment: nothing half-written, no process left, and the next run goes on."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from dew.data.errors import SourceError, StorageError
from dew.data.storage import Storage
from dew.tokens import verify_corpus
from dew.tokens.prepare import prepare
from dew.tokens.prepare.plan import read_plan

Digests = Callable[[Path], dict[str, str]]

TASK_BYTES = 20_000

# Ten times slower than the tokenizer: there is time to be killed in.
SLOW = """
import time
from dew.tokens.prepare.engines import HuggingFaceEngine

class Slow(HuggingFaceEngine):
    def encode(self, texts):
        time.sleep({seconds})
        return super().encode(texts)
"""


def slow_engine(directory: Path, seconds: float) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "slow_engine.py").write_text(SLOW.format(seconds=seconds))
    return "slow_engine:Slow"


@pytest.fixture
def source(tmp_path: Path, texts: Any, write_lines: Any) -> Path:
    """About twenty tasks."""
    return write_lines(tmp_path / "in" / "a.jsonl", texts(2500, seed=11))


def command(source: Path, out: Path, tokenizer: Path, *words: str, task_bytes: int = TASK_BYTES) -> list[str]:
    return [
        *(sys.executable, "-m", "dew", "tokenize", str(source), "--out", str(out), "--tokenizer", str(tokenizer)),
        *("--eos", "--workers", "2", "--task-bytes", str(task_bytes), *words),
    ]


@contextmanager
def running(words: list[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The command; when the block ends, it and all its processes have ended too."""
    with subprocess.Popen(
        words, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        workers: list[psutil.Process] = []
        try:
            yield process
            workers = children(process.pid)
        finally:
            process.kill()
            psutil.wait_procs(workers, timeout=10)


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)


def receipts(out: Path) -> int:
    return len(list(out.glob("tasks/task-*.json")))


def kill_and_go_on(words: list[str], out: Path, own: Path, kills: int) -> None:
    for _ in range(kills):
        done = receipts(out)
        with running(words, PYTHONPATH=str(own)) as process:
            wait_for(lambda done=done: receipts(out) > done, process)
            workers = children(process.pid)
            process.send_signal(signal.SIGKILL)
            process.wait()
            gone, alive = psutil.wait_procs(workers, timeout=10)
            assert (len(gone) > 0, alive) == (True, [])
        assert not (out / "manifest.json").exists()


@pytest.mark.parametrize(("kills", "task_bytes"), [(3, 40_000), pytest.param(20, 8000, marks=pytest.mark.nightly)])
def test_the_same_bytes_after_kills(
    source: Path,
    tokenizer_dir: Path,
    tmp_path: Path,
    digests: Digests,
    kills: int,
    task_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, out = tmp_path / "own", tmp_path / "out"
    engine = slow_engine(own, 0.05)
    monkeypatch.syspath_prepend(own)
    words = command(source, out, tokenizer_dir, "--engine", engine, task_bytes=task_bytes)
    kill_and_go_on(words, out, own, kills)
    asked: dict[str, Any] = {"tokenizer": tokenizer_dir, "eos": True, "engine": engine, "task_bytes": task_bytes}
    prepared = prepare(source, out, workers=2, **asked)
    assert 0 < prepared.ran < prepared.tasks
    prepare(source, tmp_path / "clean", workers=0, **asked)
    assert digests(out) == digests(tmp_path / "clean")
    sys.modules.pop("slow_engine", None)


def test_two_runs_at_once(source: Path, tokenizer_dir: Path, tmp_path: Path, digests: Digests) -> None:
    prepare(source, tmp_path / "clean", tokenizer=tokenizer_dir, eos=True, workers=0, task_bytes=TASK_BYTES)
    words = command(source, tmp_path / "out", tokenizer_dir)
    with running(words) as first, running(words) as second:
        codes = [process.wait(60) for process in (first, second)]
        assert codes == [0, 0], [process.communicate() for process in (first, second)]
    assert digests(tmp_path / "out") == digests(tmp_path / "clean")


def test_two_plans_at_once(source: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    """One of them is refused, whoever comes first, and the other is whole."""
    words = command(source, tmp_path / "out", tokenizer_dir)
    with running(words) as first, running([*words, "--bos"]) as second:
        codes = [process.wait(60) for process in (first, second)]
        errors = [process.communicate()[1] for process in (first, second)]
    assert sorted(codes) == [0, 1]
    assert "begun otherwise: the option bos was" in errors[codes.index(1)]
    assert verify_corpus(tmp_path / "out").framing.bos == (codes[1] == 0)


@pytest.mark.parametrize("to_group", [False, True])
def test_ctrl_c(source: Path, tokenizer_dir: Path, tmp_path: Path, to_group: bool) -> None:
    """Ends within seconds, in the middle of a long task, whether the terminal tells one process or all of them."""
    own = tmp_path / "own"
    words = command(source, tmp_path / "out", tokenizer_dir, "--engine", slow_engine(own, 60))
    with subprocess.Popen(
        words,
        env={**os.environ, "PYTHONPATH": str(own)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        wait_for(lambda: len(children(process.pid)) == 2, process)
        time.sleep(0.5)
        workers = children(process.pid)
        started = time.monotonic()
        if to_group:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert time.monotonic() - started < 20
    assert (process.returncode, errors.strip()) == (130, "")
    assert not [worker for worker in workers if worker.is_running()]
    assert not [name for name in os.listdir(tmp_path / "out") if name.startswith(".dew-tmp")]


def test_an_error_in_one_worker_ends_all(tmp_path: Path, texts: Any, write_lines: Any) -> None:
    """K14."""
    for number in (1, 2, 3):
        write_lines(tmp_path / "in" / f"{number}.jsonl", texts(1000, seed=number))
    lines = (tmp_path / "in" / "2.jsonl").read_bytes().split(b"\n")
    lines[499] = b'{"text": "cut'
    (tmp_path / "in" / "2.jsonl").write_bytes(b"\n".join(lines))
    words = [sys.executable, "-m", "dew", "tokenize", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    words += ["--tokenizer", "bytes", "--workers", "3", "--task-bytes", "50000"]
    with running(words) as process:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
    assert errors.count("\n") == 1
    assert f"{tmp_path}/in/2.jsonl, line 500: no JSON: Unterminated string" in errors
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not list((tmp_path / "out").rglob(".dew-tmp*"))


def test_a_killed_worker_is_an_error(source: Path, tokenizer_dir: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    words = command(source, tmp_path / "out", tokenizer_dir, "--engine", slow_engine(own, 60))
    with running(words, PYTHONPATH=str(own)) as process:
        wait_for(lambda: len(children(process.pid)) == 2, process)
        children(process.pid)[1].kill()
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 1
    assert "ended with exit code -9 (SIGKILL) in task " in errors
    assert "out of memory is the usual reason: use fewer workers" in errors


def test_an_engine_that_returns_too_little(
    source: Path, tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "odd_engine.py").write_text(
        "from dew.tokens.prepare.engines import HuggingFaceEngine\n"
        "class Odd(HuggingFaceEngine):\n"
        "    def encode(self, texts):\n"
        "        ids, offsets = super().encode(texts)\n"
        "        return ids[:-1] if len(texts) > 50 else ids, offsets\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "own")
    with pytest.raises(
        SourceError, match=r"the engine 'odd_engine:Odd' returned \d+ ids and 2501 offsets for 2500 tex"
    ):
        prepare(source, tmp_path / "out", tokenizer=tokenizer_dir, engine="odd_engine:Odd", workers=2)


class TestFullDisk:
    """A limit on the size of files, which fails as a full disk does, in workers too."""

    def test_in_workers(self, tmp_path: Path, texts: Any, write_lines: Any, digests: Digests) -> None:
        path = write_lines(tmp_path / "in" / "a.jsonl", texts(2000, seed=3, most=300))
        out = tmp_path / "out"
        words = [sys.executable, "-m", "dew", "tokenize", str(path), "--out", str(out), "--tokenizer", "bytes"]
        words += ["--workers", "2", "--task-bytes", "300000"]
        code = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)); os.execv"
        with running([sys.executable, "-c", f"{code}(sys.argv[1], sys.argv[1:])", *words]) as process:
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 1, errors
        assert "there is no room for shard-0000" in errors
        assert "File too large" in errors
        assert "MB are free there; make room and run the same again: what is finished is kept" in errors.replace(
            "GB are", "MB are"
        )
        assert not list(out.glob("*.npy"))
        assert not [name for name in os.listdir(out) if name.startswith(".dew-tmp")]
        with running(words) as process:
            assert process.wait(60) == 0, process.communicate()
        prepare(path, tmp_path / "clean", tokenizer="bytes", workers=0, task_bytes=300_000)
        assert digests(out) == digests(tmp_path / "clean")

    @pytest.mark.parametrize("limit", [60_000, 200_000, 9 << 20])
    def test_at_any_moment(
        self, tmp_path: Path, texts: Any, write_lines: Any, limit: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While a large shard is written as it comes, or when a small one is written at once."""
        monkeypatch.setattr("dew.tokens.part._SPILL_BYTES", 100_000 if limit < 1 << 20 else 8 << 20)
        path = write_lines(tmp_path / "a.jsonl", ["x" * 1000] * (limit // 1000 + 1000))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
            with pytest.raises(StorageError, match=r"there is no room for shard-00000 in .*/out.*; it needs about \d+"):
                prepare(path, tmp_path / "out", tokenizer="bytes", workers=0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert sorted(os.listdir(tmp_path / "out")) == ["plan.json"]
        prepare(path, tmp_path / "out", tokenizer="bytes", workers=0)
        verify_corpus(tmp_path / "out")

    def test_what_is_needed_is_about_right(self, tmp_path: Path, texts: Any, write_lines: Any) -> None:
        path = write_lines(tmp_path / "a.jsonl", ["x" * 1000] * 3000)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (900_000, before[1]))
            with pytest.raises(StorageError) as caught:
                prepare(path, tmp_path / "out", tokenizer="bytes", workers=0, task_bytes=1_000_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert len(read_plan(Storage(tmp_path / "out")).tasks) == 4
        assert "it needs about 2 MB, all that is left to write about 6 MB" in str(caught.value)
