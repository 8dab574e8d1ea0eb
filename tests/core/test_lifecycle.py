"""However a program ends, nothing of its streams is left and nothing is said that its user did not ask for.

Each test runs a script in a process of its own, as a user would.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import attrs
import psutil
import pytest

SECONDS = 60.0  # a bound for what must happen at all, never for how fast
SHARED = Path("/dev/shm")

PRELUDE = """
    import json, os, signal, sys, threading, time
    import numpy as np
    from dew.data import DataPartition, DewWarning, Loading, StreamClosedError, skip, train_stream, validation_pass

    class Ids:
        def __len__(self):
            return 1000
        def __getitem__(self, index):
            return {"id": index}
        def __repr__(self):
            return "Ids()"

    def children():
        import psutil
        return [child.pid for child in psutil.Process().children(recursive=True)]

    def tell(value):
        print(json.dumps(value), flush=True)

    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    loading = Loading(workers=workers)
"""

WORKERS = pytest.mark.parametrize("workers", [0, 2])


@attrs.frozen
class Done:
    code: int
    out: str
    err: str

    @property
    def told(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Program:
    """A script that runs in a process group of its own; its words come one JSON line at a time."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def told(self) -> Any:
        """The next line that it prints."""
        line = _stream(self.process.stdout).readline()
        if not line:
            pytest.fail(f"the script ended early: {self.done()}")
        return json.loads(line)

    def done(self) -> Done:
        """Waits for the end."""
        out, err = self.process.communicate(timeout=SECONDS)
        return Done(self.process.returncode, out, err)


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `script` as a file, or as `form` says; ended with the test, whatever happens."""
    programs: list[Program] = []

    def start(
        script: str, *arguments: object, form: str = "file", options: tuple[str, ...] = (), cwd: Path | None = None
    ) -> Program:
        text = textwrap.dedent(PRELUDE) + textwrap.dedent(script)
        path = tmp_path / "script.py"
        path.write_text(text)
        how = {"file": [str(path)], "stdin": ["-"], "text": ["-c", text], "module": ["-m", "script"]}[form]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        with path.open() as file:
            process = subprocess.Popen(
                [sys.executable, *options, *how, *map(str, arguments)],
                stdin=file if form == "stdin" else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path if cwd is None else cwd,
                env=environment,
                start_new_session=True,
            )
        programs.append(Program(process))
        return programs[-1]

    yield start
    for program in programs:
        if program.process.poll() is None:
            program.process.kill()
        program.process.communicate()


@pytest.fixture
def run(start: Start) -> Callable[..., Done]:
    """Runs a script to its end."""

    def run(script: str, *arguments: object, **options: Any) -> Done:
        return start(script, *arguments, **options).done()

    return run


Run = Callable[..., Done]


def gone(pids: list[int]) -> bool:
    """Whether these processes end; those that do not are killed."""
    end = time.monotonic() + 10
    while left := [pid for pid in pids if _runs(pid)]:
        if time.monotonic() > end:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.01)
    return True


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def shared() -> list[str]:
    return sorted(os.listdir(SHARED)) if SHARED.is_dir() else []


# Scripts as people write them

PLAIN = """
    with open("ran", "a") as file:
        file.write("once\\n")

    def preprocess(record):
        return {"id": record["id"] + 1, "pid": os.getpid()}

    stream = train_stream(Ids(), batch=4, preprocess=preprocess, loading=loading)
    again = train_stream(Ids(), batch=4, preprocess=lambda record: preprocess(record), loading=loading)
    pids = set()
    for step in range(5):
        for batch in (next(stream), next(again)):
            assert batch["id"].tolist() == (stream.ids(step) + 1).tolist()
            pids |= set(batch["pid"].tolist())
    stream.close()
    again.close()
    heavy = {"absl", "grain", "jax", "multiprocessing.process"} & set(sys.modules)
    tell([len(pids), len(children()), threading.active_count(), sorted(heavy)])
"""


@WORKERS
@pytest.mark.parametrize("form", ["file", "stdin", "text", "module"])
def test_a_script_needs_no_main_guard_and_runs_once(run: Run, form: str, workers: int, tmp_path: Path) -> None:
    done = run(PLAIN, workers, form=form)
    assert done == Done(0, f"[{1 + 2 * workers}, 0, 1, []]\n", "")
    assert (tmp_path / "ran").read_text() == "once\n"


@pytest.mark.parametrize("options", [("-X", "dev", "-W", "error"), ("-I",), ("-B", "-s", "-E", "-OO")], ids=" ".join)
def test_options_of_the_interpreter_reach_the_workers(run: Run, options: tuple[str, ...]) -> None:
    script = """
        def look(record):
            try:
                assert False
            except AssertionError:
                asserts = True
            else:
                asserts = False
            flags = sys.flags
            seen = [asserts, list(sys.warnoptions), flags.dev_mode, flags.isolated, flags.no_user_site]
            return {"seen": json.dumps(seen + [flags.ignore_environment, flags.optimize, flags.dont_write_bytecode])}

        with train_stream(Ids(), batch=1, preprocess=look, loading=loading) as stream:
            tell([str(next(stream)["seen"][0]) for _ in range(3)])
    """
    done = run(script, 2, options=options)
    assert (done.code, done.err) == (0, "")
    [[here, *there]] = done.told
    assert there == [here, here]


def test_a_module_beside_the_script_is_found(run: Run, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(
        "class Doubled:\n"
        "    def __len__(self):\n        return 50\n"
        "    def __getitem__(self, index):\n        return {'id': 2 * index}\n"
        "def tripled(record):\n    return {'id': 3 * record['id']}\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    script = """
        import beside
        with train_stream(beside.Doubled(), batch=4, preprocess=beside.tripled, loading=loading) as stream:
            tell([next(stream)["id"].tolist() == (6 * stream.ids(step)).tolist() for step in range(4)])
    """
    assert run(script, 2, cwd=elsewhere) == Done(0, "[true, true, true, true]\n", "")


def test_a_program_whose_standard_streams_are_closed(run: Run, tmp_path: Path) -> None:
    script = """
        def loud(record):
            print("read", record["id"], flush=True)
            return record

        for number in (0, 1, 2):
            os.close(number)
        sys.stdin = sys.stdout = sys.stderr = None
        with train_stream(Ids(), batch=4, preprocess=loud, loading=loading) as stream:
            right = [next(stream)["id"].tolist() == stream.ids(step).tolist() for step in range(6)]
        with open("right", "w") as file:
            json.dump(right, file)
    """
    done = run(script, 2)
    assert done == Done(0, "", "")
    assert json.loads((tmp_path / "right").read_text()) == [True] * 6


def test_a_program_that_starts_by_multiprocessing(run: Run) -> None:
    script = """
        import multiprocessing

        def read(workers):
            with train_stream(Ids(), batch=4, loading=Loading(workers=workers)) as stream:
                tell([next(stream)["id"].tolist() == stream.ids(step).tolist() for step in range(4)])

        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            process = context.Process(target=read, args=(workers,), daemon=True)
            process.start()
            process.join()
            tell(process.exitcode)
    """
    assert run(script, 2) == Done(0, "[true, true, true, true]\n0\n", "")


# Ends of a program


@pytest.mark.parametrize(
    ("script", "workers", "code"),
    [
        ("stream = train_stream(Ids(), batch=4, loading=loading); next(stream)", 0, 0),
        ("stream = train_stream(Ids(), batch=4, loading=loading); next(stream)", 2, 0),
        ("stream = train_stream(Ids(), batch=4, loading=loading); [next(stream) for _ in range(5)]", 2, 0),
        ("stream = train_stream(Ids(), batch=4, loading=loading); next(stream); stream.close()", 2, 0),
        ("stream = train_stream(Ids(), batch=4, loading=loading); next(stream); sys.exit(5)", 2, 5),
        ("stream = train_stream(Ids(), batch=4, loading=loading); next(stream); os._exit(7)", 2, 7),
        ("streams = [train_stream(Ids(), batch=4, loading=loading)]; next(streams[0]); streams.append(streams)", 0, 0),
        ("streams = [train_stream(Ids(), batch=4, loading=loading)]; next(streams[0]); streams.append(streams)", 2, 0),
        ("stream = validation_pass(Ids(), batch=4, loading=loading); next(stream)", 2, 0),
        ("rows = list(validation_pass(Ids(), batch=300, loading=loading))", 2, 0),
        ("[batch for batch in zip(train_stream(Ids(), batch=4, loading=loading), range(3))]", 0, 0),
        ("json.stream = train_stream(Ids(), batch=4, loading=loading); next(json.stream)", 0, 0),
        ("json.stream = train_stream(Ids(), batch=4, loading=loading); next(json.stream); next(json.stream)", 2, 0),
    ],
)
def test_a_program_that_ends_unclosed_is_silent(start: Start, script: str, workers: int, code: int) -> None:
    before = shared()
    watch = (
        "\n"
        "    start = __import__('subprocess').Popen\n"
        "    class Popen(start):\n"
        "        def __init__(self, *given, **more):\n"
        "            super().__init__(*given, **more)\n"
        "            tell(self.pid)\n"
        "    __import__('subprocess').Popen = Popen\n"
    )
    done = start(f"{watch}    {script}\n", workers).done()
    assert (done.code, done.err) == (code, "")
    assert len(done.told) == workers
    assert gone(done.told)
    assert [name for name in shared() if name not in before] == []


@WORKERS
def test_an_error_that_ends_a_program_is_all_that_is_said(run: Run, workers: int) -> None:
    script = """
        def bad(record):
            if record["id"] == 17:
                raise KeyError("caption")
            return record
        stream = train_stream(Ids(), batch=4, shuffle=False, preprocess=bad, loading=loading)
        for batch in stream:
            pass
    """
    done = run(script, workers)
    assert (done.code, done.out) == (1, "")
    assert done.err.rstrip().endswith("KeyError: 'caption'\nreading record 17 (place 17)\nin step 4 of Ids()")
    assert done.err.count("Traceback (most recent call last):") == (1 if workers == 0 else 2)
    assert 'script.py", line' in done.err
    assert 'in bad\n    raise KeyError("caption")' in done.err
    assert "Exception ignored" not in done.err


@WORKERS
def test_streams_that_failed_and_were_not_closed_are_silent_at_exit(run: Run, workers: int) -> None:
    script = """
        def bad(record):
            raise KeyError("caption")
        stream = train_stream(Ids(), batch=4, preprocess=bad, loading=loading)
        try:
            next(stream)
        except KeyError as error:
            kept = error
        tell(threading.active_count())
    """
    assert run(script, workers) == Done(0, "1\n", "")


def test_a_source_that_blocks_for_ever_does_not_keep_the_program(run: Run) -> None:
    script = """
        def blocked(record):
            if record["id"] == 4:
                threading.Event().wait()
            return record
        stream = train_stream(Ids(), batch=4, shuffle=False, preprocess=blocked, loading=loading)
        tell(next(stream)["id"].tolist())
        time.sleep(0.2)
    """
    done = run(script, 0)
    assert (done.code, done.told) == (0, [[0, 1, 2, 3]])
    assert "DewWarning: Ids() was still busy 5 s after close(); its thread ends as soon as that" in done.err
    assert len(done.err.splitlines()) <= 2
    assert run(script, 2) == Done(0, "[0, 1, 2, 3]\n", "")  # a worker is ended, whatever it does


# Signals

READING = """
    def slow(record):
        time.sleep(float(sys.argv[2]))
        return record

    stream = train_stream(Ids(), batch=4, preprocess=slow, loading=loading)
    next(stream)
    for _ in range(int(sys.argv[3])):
        next(stream)
    while len(children()) < workers:
        time.sleep(0.001)
    tell(children())
    while True:
        next(stream)
"""


@pytest.mark.parametrize(
    ("workers", "pause", "steps"),
    [(0, 0.001, 3), (0, 0.1, 0), (2, 0.001, 4), (2, 0.1, 1), (2, 0, 0)],
    ids=["here", "here, busy", "workers", "workers, busy", "workers, starting"],
)
def test_ctrl_c_ends_all_with_one_traceback(start: Start, workers: int, pause: float, steps: int) -> None:
    before = shared()
    program = start(READING, workers, pause, steps)
    pids = program.told()
    assert len(pids) == workers
    os.killpg(program.process.pid, signal.SIGINT)
    done = program.done()
    assert done.code == -signal.SIGINT
    assert done.err.count("Traceback (most recent call last):") == 1
    assert done.err.rstrip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in done.err
    assert gone(pids)
    assert [name for name in shared() if name not in before] == []


def test_after_a_ctrl_c_that_was_caught_no_step_is_lost(start: Start) -> None:
    script = """
        def slow(record):
            time.sleep(0.002)
            return record

        stream = train_stream(Ids(), batch=4, preprocess=slow, loading=loading)
        tell(len(children()))
        for hit in (1, 2, 3):
            try:
                while True:
                    batch = next(stream)
                    assert batch["id"].tolist() == stream.ids(stream.position.step - 1).tolist()
            except KeyboardInterrupt:
                tell(hit)
        stream.close()
        tell([children(), threading.active_count()])
    """
    program = start(script, 2)
    program.told()
    for hit in range(1, 4):
        time.sleep(0.35)
        os.killpg(program.process.pid, signal.SIGINT)
        assert program.told() == hit
    assert program.done() == Done(0, "[[], 1]\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
@pytest.mark.parametrize(
    ("pause", "steps"), [(0.001, 4), (30, -1), (0, 0)], ids=["idle", "busy for half a minute", "starting"]
)
def test_workers_do_not_outlive_a_parent_that_is_killed(
    start: Start, number: signal.Signals, pause: float, steps: int
) -> None:
    before = shared()
    script = READING
    if steps < 0:  # the first step is read here
        script = READING.replace("time.sleep(float", "os.getpid() != parent and time.sleep(float")
        script = "\n    parent = os.getpid()\n" + script
    program = start(script, 2, pause, max(steps, 0))
    pids = program.told()
    assert len(pids) == 2
    if steps:
        time.sleep(0.3)
    os.kill(program.process.pid, number)
    assert gone(pids)
    done = program.done()
    assert (done.code, done.err) == (-number, "")
    assert [name for name in shared() if name not in before] == []


def test_workers_do_not_outlive_a_parent_whose_forked_child_lives_on(start: Start) -> None:
    script = """
        stream = train_stream(Ids(), batch=4, loading=loading)
        next(stream)
        next(stream)
        workers = children()
        child = os.fork()
        if child == 0:
            time.sleep(600)
        tell([child, workers])
        time.sleep(600)
    """
    program = start(script, 2)
    child, pids = program.told()
    try:
        os.kill(program.process.pid, signal.SIGKILL)
        assert gone(pids)
        assert _runs(child)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("way", ["sys.exit(3)", "(stream.close(), sys.exit(3))"])
@WORKERS
def test_a_handler_of_sigterm_may_end_the_program(start: Start, workers: int, way: str) -> None:
    script = f"""
        def slow(record):
            time.sleep(0.002)
            return record

        stream = train_stream(Ids(), batch=4, preprocess=slow, loading=loading)
        next(stream)
        next(stream)
        signal.signal(signal.SIGTERM, lambda *_: {way})
        tell(children())
        while True:
            next(stream)
    """
    program = start(script, workers)
    pids = program.told()
    time.sleep(0.05)
    os.kill(program.process.pid, signal.SIGTERM)
    assert program.done() == Done(3, "", "")
    assert gone(pids)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["int", "term", "kill"])
@pytest.mark.parametrize("delay", [step / 40 for step in range(20)])
def test_kills_at_any_moment(start: Start, number: signal.Signals, delay: float) -> None:
    before = shared()
    script = """
        tell("begin")
        for seed in range(1000):
            with train_stream(Ids(), batch=4, seed=seed, loading=loading) as stream:
                for step in range(40):
                    next(stream)
    """
    program = start(script, 2)
    program.told()
    time.sleep(delay)
    pids = [child.pid for child in psutil.Process(program.process.pid).children(recursive=True)]
    os.killpg(program.process.pid, number)
    done = program.done()
    assert done.code == -number
    assert done.err.count("Traceback") == (1 if number == signal.SIGINT else 0)
    assert gone(pids)
    assert [name for name in shared() if name not in before] == []


# Forks


@WORKERS
def test_a_stream_that_was_carried_into_a_fork_is_refused(run: Run, workers: int) -> None:
    script = """
        stream = train_stream(Ids(), batch=4, loading=loading)
        untouched = train_stream(Ids(), batch=4, loading=loading)
        assert next(stream)["id"].tolist() == stream.ids(0).tolist()
        next(stream)
        before = children()
        child = os.fork()
        if child == 0:
            for carried in (stream, untouched):
                try:
                    next(carried)
                except StreamClosedError as error:
                    tell(str(error).replace(str(os.getppid()), "PARENT").replace(str(os.getpid()), "CHILD"))
            stream.close()
            with train_stream(Ids(), batch=4, loading=loading) as own:
                tell([next(own)["id"].tolist() == own.ids(step).tolist() for step in range(3)])
            sys.exit(4)
        assert os.waitpid(child, 0)[1] >> 8 == 4
        assert children() == before
        tell([next(stream)["id"].tolist() == stream.ids(step).tolist() for step in range(2, 6)])
        del stream
        tell(children())
    """
    done = run(script, workers)
    assert (done.code, done.err) == (0, "")
    refusal = (
        "this stream belongs to process PARENT and was carried into process CHILD by a fork; "
        "make a stream of its own in each process"
    )
    assert done.told == [refusal, refusal, [True] * 3, [True] * 4, []]


@WORKERS
def test_a_fork_that_reads_nothing_ends_in_silence(run: Run, workers: int) -> None:
    script = """
        stream = train_stream(Ids(), batch=4, loading=loading)
        next(stream)
        next(stream)
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        tell([next(stream)["id"].tolist() == stream.ids(step).tolist() for step in range(2, 6)])
    """
    assert run(script, workers) == Done(0, "[true, true, true, true]\n", "")


# Open files


@WORKERS
def test_an_epoch_over_many_files_holds_few_of_them_open(run: Run, workers: int, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(1000):
        (folder / f"{number}.bin").write_bytes(number.to_bytes(4, "little"))
    script = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

        class Files:
            def __len__(self):
                return 1000
            def __getitem__(self, index):
                with open(f"files/{index}.bin", "rb") as file:
                    return {"id": int.from_bytes(file.read(), "little")}

        def held():
            return len(os.listdir("/proc/self/fd"))

        with train_stream(Files(), batch=10, loading=Loading(workers=workers, threads=4)) as stream:
            seen = set(next(stream)["id"].tolist())
            before = held()
            for step in range(99):
                seen |= set(next(stream)["id"].tolist())
            during = held()
        tell([len(seen), during - before <= 10, held() <= before])
    """
    assert run(script, workers) == Done(0, "[1000, true, true]\n", "")


@pytest.mark.nightly
@WORKERS
def test_fifty_streams_of_a_program_leave_nothing(run: Run, workers: int) -> None:
    script = """
        import psutil
        process = psutil.Process()

        def held():
            return [process.num_fds(), threading.active_count(), len(children())]

        def read(seed):
            stream = train_stream(Ids(), batch=4, seed=seed, loading=loading)
            next(stream)
            stream.close()

        read(0)
        before, memory = held(), process.memory_info().rss
        for seed in range(50):
            read(seed)
        tell([held() == before, process.memory_info().rss - memory < 50 << 20])
    """
    assert run(script, workers) == Done(0, "[true, true]\n", "")
