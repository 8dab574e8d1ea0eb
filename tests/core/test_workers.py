"""Worker processes deliver what this process would have built, and whatever ends one of them is an error by name."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import ml_dtypes
import numpy as np
import psutil
import pytest

from dew.data import (
    DataPartition,
    Loading,
    Ramp,
    SourceError,
    StreamClosedError,
    WorkerError,
    skip,
    train_stream,
    validation_pass,
)

TWO = Loading(workers=2)
SECONDS = 30.0  # a bound for what must happen at all, never for how fast
HERE = os.getpid()


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    """Workers cannot import a test module: what it defines travels by value, as from a script."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]


def own_threads() -> list[str]:
    """Threads of streams; other libraries keep some of their own."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dew-")]


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class Ids:
    """Record i is `{"id": i}`."""

    def __init__(self, records: int = 1000) -> None:
        self.records = records

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return {"id": index}

    def __repr__(self) -> str:
        return f"Ids({self.records})"


def with_pid(record: Any) -> Any:
    return {**record, "pid": os.getpid()}


def draw(record: Any, rng: np.random.Generator) -> Any:
    return {**record, "u": int(rng.integers(1 << 62))}


def in_worker(act: Callable[[], Any], record_id: int = 17) -> Callable[[Any], Any]:
    """A preprocess that acts at one record, unless it is this process that reads it."""
    parent = HERE

    def preprocess(record: Any) -> Any:
        if record["id"] == record_id and os.getpid() != parent:
            act()
        return record

    return preprocess


def steps_of(stream: Iterator[Any], steps: int) -> list[str]:
    """Each step as text, with dtypes."""
    return [str({name: (column.dtype, column.tolist()) for name, column in next(stream).items()}) for _ in range(steps)]


# Content


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("share", [(0, 1), (1, 2)])
def test_content_is_that_of_one_process(workers: int, share: tuple[int, int]) -> None:
    options: dict[str, Any] = {
        "batch": 12,
        "seed": 3,
        "partition": DataPartition(*share),
        "preprocess": draw,
        "place_field": "place",
        "schedule": Ramp(4, 4, 40),
    }
    with train_stream(Ids(100), loading=Loading(workers=0, read_buffer=0), **options) as plain:
        expected = steps_of(plain, 15)
    with train_stream(Ids(100), loading=Loading(workers=workers, threads=2, worker_buffer=3), **options) as stream:
        assert steps_of(stream, 5) == expected[:5]
        state = json.loads(json.dumps(stream.get_state()))
        assert steps_of(stream, 3) == expected[5:8]
        stream.set_state(state)
        assert steps_of(stream, 10) == expected[5:]


def test_steps_are_built_by_the_workers_in_turn() -> None:
    with train_stream(Ids(), batch=4, preprocess=with_pid, loading=Loading(workers=3)) as stream:
        pids = [set(next(stream)["pid"].tolist()) for _ in range(10)]
        running = {child.pid for child in children()}
    assert pids[0] == {HERE}  # its size is known before any worker is started
    assert all(len(pid) == 1 for pid in pids)
    assert pids[1] | pids[2] | pids[3] == running
    assert pids[1:4] == pids[4:7] == pids[7:10]
    assert children() == []


def test_the_position_counts_what_was_delivered(tmp_path: Path) -> None:
    log = tmp_path / "built"

    def logged(record: Any) -> Any:
        with log.open("a") as file:
            file.write(f"{record['id']}\n")
        return record

    loading = Loading(workers=2, read_buffer=4, worker_buffer=4)
    with train_stream(Ids(200), batch=4, preprocess=logged, loading=loading) as stream:
        for _ in range(5):
            next(stream)
        ahead = 4 + 2 * 4  # waiting here, and in the workers
        assert until(lambda: len(log.read_text().split()) >= 4 * (5 + ahead))
        time.sleep(0.1)
        assert len(log.read_text().split()) <= 4 * (5 + ahead + 1)  # and one that the reading thread holds
        state = stream.get_state()
    assert state["records"] == 20
    with train_stream(Ids(200), batch=4, preprocess=logged, loading=Loading(workers=0)) as plain:
        plain.set_state(state)
        assert next(plain)["id"].tolist() == plain.ids(5).tolist()


@pytest.mark.parametrize(("memory", "each"), [(1, 1), (4 * 3 * 4_000, 3), (1 << 30, 8)])
def test_memory_bounds_what_workers_build_ahead(memory: int, each: int, tmp_path: Path) -> None:
    log = tmp_path / "built"

    def logged(record: Any) -> Any:
        with log.open("a") as file:
            file.write("x")
        return {"x": np.zeros(1000, np.uint8)}

    def built() -> int:
        return len(log.read_text())

    loading = Loading(workers=2, read_buffer=1, worker_buffer=8, memory=memory)
    with train_stream(Ids(), batch=4, preprocess=logged, loading=loading) as stream:
        next(stream)
        next(stream)
        ahead = 1 + 2 * each
        assert until(lambda: built() >= 4 * (2 + ahead))
        time.sleep(0.1)
        assert built() <= 4 * (2 + ahead + 1)


def test_a_slow_consumer_gets_every_step() -> None:
    with train_stream(Ids(), batch=4, loading=TWO) as stream:
        for step in range(6):
            time.sleep(0.05)
            assert next(stream)["id"].tolist() == stream.ids(step).tolist()


def test_a_slow_worker_keeps_its_turn() -> None:
    def slow(record: Any) -> Any:
        if record["id"] % 8 < 4:  # one worker of two
            time.sleep(0.01)
        return record

    with train_stream(Ids(), batch=4, shuffle=False, preprocess=slow, loading=TWO) as stream:
        for step in range(20):
            assert next(stream)["id"].tolist() == stream.ids(step).tolist()


# Arrays


def test_every_kind_of_array_arrives() -> None:
    def preprocess(record: Any) -> Any:
        number = record["id"]
        return {
            "id": number,
            "empty": np.zeros((0, 3), np.float32),
            "flat": np.zeros((2, 0), np.uint8),
            "text": "héllo" * (number % 3) + "w",
            "flag": number % 2 == 0,
            "bfloat16": np.full(3, number, ml_dtypes.bfloat16),
            "float8": np.ones((2, 2), ml_dtypes.float8_e4m3fn),
            "nested": {"a": {"float16": np.float16(number)}, "complex": 1j * number, "u8": np.uint64(number)},
        }

    def flat(batch: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        for name, value in batch.items():
            if isinstance(value, Mapping):
                yield from flat(value, f"{prefix}{name}.")
            else:
                yield prefix + name, value

    options: dict[str, Any] = {"batch": 4, "preprocess": preprocess}
    with (
        train_stream(Ids(), loading=Loading(workers=0), **options) as plain,
        train_stream(Ids(), loading=TWO, **options) as stream,
    ):
        for _ in range(4):
            ours, theirs = dict(flat(next(plain))), dict(flat(next(stream)))
            assert list(ours) == list(theirs)
            for name, array in theirs.items():
                assert type(array) is np.ndarray
                assert array.dtype == ours[name].dtype, name
                assert array.shape == ours[name].shape
                assert array.tolist() == ours[name].tolist()
                assert array.flags.writeable
                assert array.flags.c_contiguous


def test_batches_are_the_receivers_own(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(40, dtype=np.int32).reshape(10, 4))
    on_disk = path.read_bytes()

    class Mapped(Ids):
        def open(self) -> "Mapped":
            opened = Mapped(10)
            opened.rows = np.load(path, mmap_mode="r")
            return opened

        def take(self, indices: Any) -> Any:
            return {"x": self.rows[indices]}

        def close(self) -> None:
            self.rows._mmap.close()

    with train_stream(Mapped(10), batch=10, shuffle=False, loading=TWO) as stream:
        batches = [next(stream) for _ in range(5)]
        for batch in batches:
            batch["x"] += 1
        assert all(batch["x"].tolist() == batches[0]["x"].tolist() for batch in batches)
        assert not any(np.may_share_memory(batches[1]["x"], other["x"]) for other in batches[2:])
    assert path.read_bytes() == on_disk


@pytest.mark.parametrize("megabytes", [16, pytest.param(100, marks=pytest.mark.nightly)])
def test_big_batches(megabytes: int) -> None:
    size = (megabytes << 20) // 4

    def big(record: Any) -> Any:
        return {"x": np.full(size, record["id"] % 251, np.uint8)}

    with train_stream(Ids(), batch=4, preprocess=big, loading=TWO) as stream:
        for step in range(5):
            x = next(stream)["x"]
            assert x.shape == (4, size)
            assert (x == (stream.ids(step) % 251)[:, None]).all()


def test_a_big_source_in_memory_reaches_all_workers() -> None:
    class Held(Ids):
        def __init__(self) -> None:
            super().__init__(100)
            self.rows = np.arange(100 * 20_000).reshape(100, -1)

        def __getitem__(self, index: int) -> Any:
            return {"x": self.rows[index, 0]}

    with train_stream(Held(), batch=4, loading=Loading(workers=3)) as stream:
        for step in range(8):
            assert next(stream)["x"].tolist() == (20_000 * stream.ids(step)).tolist()


@pytest.mark.parametrize("steps", [300, pytest.param(3000, marks=pytest.mark.nightly)])
def test_memory_stays_flat(steps: int) -> None:
    def preprocess(record: Any) -> Any:
        return {"x": np.zeros(25_000, np.uint8)}

    def used(stream: Iterator[Any], steps: int) -> int:
        for _ in range(steps):
            next(stream)
        return sum(process.memory_info().rss for process in (psutil.Process(), *children()))

    with train_stream(Ids(), batch=4, preprocess=preprocess, loading=TWO) as stream:
        first = used(stream, 100)
        assert used(stream, steps) - first < 20 << 20  # the steps read were at least 30 MB


# The start and the end of workers


def test_no_more_workers_than_steps() -> None:
    with validation_pass(Ids(9), batch=4, preprocess=with_pid, loading=Loading(workers=8)) as stream:
        pids = [next(stream)["pid"].tolist() for _ in range(2)]
        assert len(children()) <= 2
        pids.append(next(stream)["pid"].tolist())
        assert list(stream) == []
    assert len({pid for step in pids for pid in step}) == 3
    with validation_pass(Ids(3), batch=4, preprocess=with_pid, loading=Loading(workers=8)) as stream:
        assert next(stream)["pid"].tolist() == [HERE] * 4
        assert children() == []


def test_workers_end_with_the_pass() -> None:
    stream = validation_pass(Ids(20), batch=4, loading=TWO)
    assert len(list(stream)) == 5
    assert children() == []


def test_nothing_starts_before_the_first_batch() -> None:
    with train_stream(Ids(), batch=4, loading=TWO) as stream:
        assert children() == []
        assert own_threads() == []
        stream.set_state(skip(stream.get_state(), 100))
        assert children() == []


@pytest.mark.parametrize("delay", [0, 0.01, 0.05, 0.1, 0.2])
def test_close_at_any_moment_of_the_start(delay: float) -> None:
    before = psutil.Process().num_fds()
    stream = train_stream(Ids(), batch=4, loading=Loading(workers=3))
    next(stream)
    time.sleep(delay)
    stream.close()
    assert children() == []
    assert own_threads() == []
    assert psutil.Process().num_fds() == before


@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=pytest.mark.nightly)])
def test_many_streams_leave_nothing(rounds: int) -> None:
    shared = sorted(os.listdir("/dev/shm"))
    with train_stream(Ids(), batch=4, loading=TWO) as stream:
        next(stream)
    before, memory = psutil.Process().num_fds(), psutil.Process().memory_info().rss
    for seed in range(rounds):
        stream = train_stream(Ids(), batch=4, seed=seed, loading=TWO)
        assert next(stream)["id"].tolist() == stream.ids(0).tolist()
        if seed % 2:
            next(stream)
        stream.close()
    assert psutil.Process().num_fds() == before
    assert children() == []
    assert own_threads() == []
    assert psutil.Process().memory_info().rss - memory < 50 << 20
    assert sorted(os.listdir("/dev/shm")) == shared


def test_a_dropped_stream_ends_its_workers() -> None:
    stream = train_stream(Ids(), batch=4, loading=TWO)
    next(stream)
    next(stream)
    assert len(children()) == 2
    del stream
    assert children() == []


def test_a_worker_stuck_in_preprocess_is_ended_by_close() -> None:
    with train_stream(Ids(), batch=4, preprocess=in_worker(lambda: time.sleep(600), 3), loading=TWO) as stream:
        next(stream)
        assert until(lambda: len(children()) == 2)
    assert children() == []


def test_close_while_the_consumer_waits_for_a_worker() -> None:
    stream = train_stream(Ids(), batch=4, shuffle=False, preprocess=in_worker(lambda: time.sleep(600), 5), loading=TWO)
    next(stream)
    errors: list[BaseException] = []

    def consume() -> None:
        try:
            next(stream)
        except BaseException as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert until(lambda: len(children()) == 2)
    time.sleep(0.05)
    stream.close()
    consumer.join(SECONDS)
    assert [type(error) for error in errors] == [StreamClosedError]
    assert children() == []


def test_an_interpreter_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with (
        train_stream(Ids(), batch=4, loading=TWO) as stream,
        pytest.raises(WorkerError, match=r"worker process 0 could not be started with the interpreter '.*/python'"),
    ):
        steps_of(stream, 2)
    assert psutil.Process().num_fds() == before


def test_an_interpreter_that_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        train_stream(Ids(), batch=4, loading=TWO) as stream,
        pytest.raises(WorkerError, match="worker process 0 ended with exit code 1 before it delivered step 1"),
    ):
        steps_of(stream, 2)


def test_entries_of_sys_path_that_are_no_text_do_no_harm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "dew_beside.py").write_text("def preprocess(record):\n    return {'id': record['id'] + 1}\n")
    monkeypatch.setattr(sys, "path", [Path("/nowhere"), *sys.path, str(tmp_path)])
    import dew_beside  # pyright: ignore[reportMissingImports]

    with train_stream(Ids(), batch=4, preprocess=dew_beside.preprocess, loading=TWO) as stream:
        for step in range(3):
            assert next(stream)["id"].tolist() == (stream.ids(step) + 1).tolist()
    del sys.modules["dew_beside"]


def test_the_surroundings_of_a_worker() -> None:
    names = ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")
    mine = {name: os.environ.get(name) for name in names}

    def look(record: Any) -> Any:
        values = [os.environ.get(name, "") for name in names]
        heavy = sorted({"jax", "grain", "torch", "tensorflow", "multiprocessing.util"} & set(sys.modules))
        ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        return {"seen": json.dumps([values, heavy, ignored, os.getpgrp() == os.getpid(), sys.stdin.read()])}

    def look_in_worker(record: Any, parent: int = HERE) -> Any:
        return {"seen": "" if os.getpid() == parent else look(record)["seen"]}

    with train_stream(Ids(), batch=1, preprocess=look_in_worker, loading=TWO) as stream:
        next(stream)
        assert json.loads(next(stream)["seen"][0]) == [["cpu", "", "1", "1"], [], True, True, ""]
    assert {name: os.environ.get(name) for name in names} == mine


def test_what_workers_print_arrives(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)

    def loud(record: Any) -> Any:
        if os.getpid() != parent:
            print("read", record["id"])
            print("note", record["id"], file=sys.stderr)
        return record

    parent = HERE
    with train_stream(Ids(), batch=2, shuffle=False, preprocess=loud, loading=Loading(workers=1)) as stream:
        for _ in range(3):
            next(stream)
    out, err = capfd.readouterr()
    assert out.splitlines()[:4] == [f"read {number}" for number in range(2, 6)]
    assert err.splitlines()[:4] == [f"note {number}" for number in range(2, 6)]


def test_processes_of_a_preprocess_end_with_the_worker(tmp_path: Path) -> None:
    log, parent = tmp_path / "pids", HERE

    def spawns(record: Any) -> Any:
        if os.getpid() != parent:
            child = subprocess.Popen(["sleep", "600"])
            with log.open("a") as file:
                file.write(f"{child.pid}\n")
            child.wait()
        return record

    with train_stream(Ids(), batch=4, preprocess=spawns, loading=TWO) as stream:
        next(stream)
        assert until(lambda: log.exists() and len(log.read_text().split()) == 2)
    pids = [int(line) for line in log.read_text().split()]
    try:
        assert until(lambda: not any(map(runs, pids)))
    finally:
        for pid in filter(runs, pids):
            os.kill(pid, signal.SIGKILL)


def test_threads_of_a_preprocess_do_not_keep_a_worker() -> None:
    def threads(record: Any) -> Any:
        if os.getpid() != parent:
            threading.Thread(target=time.sleep, args=(600,)).start()
        return record

    parent = HERE
    with train_stream(Ids(), batch=2, preprocess=threads, loading=TWO) as stream:
        for _ in range(5):
            next(stream)
    assert children() == []


# Errors


class Odd(Exception):
    """Its `__init__` takes other arguments than it passes on, as many classes do."""

    def __init__(self, name: str, *, code: int) -> None:
        super().__init__(f"no {name}")
        self.code = code


class Doubling(Exception):
    """Comes back from a pickle as another error."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no {name}")


class Holding(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__(threading.Lock())


def raising(make: Callable[[], BaseException]) -> Callable[[Any], Any]:
    def act() -> None:
        raise make()

    return in_worker(act)


def failed(preprocess: Callable[[Any], Any], loading: Loading = TWO) -> BaseException:
    """What reading to record 17, in step 4, raises; twice."""
    with train_stream(Ids(), batch=4, shuffle=False, preprocess=preprocess, loading=loading) as stream:
        for step in range(4):
            assert next(stream)["id"].tolist() == stream.ids(step).tolist()
        with pytest.raises(BaseException) as caught:  # noqa: PT011 - the callers look closely
            next(stream)
        assert children() == []
        assert stream.position.records == 16
        with pytest.raises(type(caught.value)) as again:
            next(stream)
        assert again.value is caught.value
    return caught.value


NOTES = ["reading record 17 (place 17)", "in step 4 of Ids(1000)"]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_an_error_keeps_type_message_place_and_the_users_line(workers: int) -> None:
    def act() -> None:
        raise KeyError("caption")  # this very line

    error = failed(in_worker(act), Loading(workers=workers))
    assert type(error) is KeyError
    assert error.args == ("caption",)
    assert error.__notes__ == NOTES
    text = "".join(traceback.format_exception(error))
    assert f'File "{__file__}", line {act.__code__.co_firstlineno + 1}, in act' in text
    assert 'raise KeyError("caption")  # this very line' in text


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: Odd("corpus", code=7), Odd, "no corpus"),
        (lambda: Doubling("corpus"), Doubling, "no corpus"),
        (lambda: Holding("held"), Holding, "held"),
        (lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), UnicodeDecodeError, "0xff in position 0: bad"),
        (lambda: json.JSONDecodeError("bad", "x", 0), json.JSONDecodeError, "bad: line 1 column 1"),
        (lambda: FileNotFoundError(2, "gone", "/x"), FileNotFoundError, r"\[Errno 2\] gone: '/x'"),
        (lambda: SystemExit(3), SystemExit, "3"),
        (lambda: ExceptionGroup("two", [ValueError("a"), KeyError("b")]), ExceptionGroup, "two"),
    ],
    ids=["odd", "doubling", "holding", "unicode", "json", "os", "exit", "group"],
)
def test_errors_of_any_class_come_back(
    make: Callable[[], BaseException], kind: type[BaseException], message: str
) -> None:
    error = failed(raising(make))
    assert type(error) is kind
    assert error.__notes__ == NOTES
    assert re.search(message, str(error))
    if isinstance(error, Odd):
        assert error.code == 7
    if isinstance(error, ExceptionGroup):
        assert [type(inner) for inner in error.exceptions] == [ValueError, KeyError]


def test_an_error_that_cannot_travel_is_told_in_words() -> None:
    error = failed(raising(Unpicklable))
    assert type(error) is WorkerError
    assert str(error).startswith("a worker process failed: Unpicklable: <unlocked _thread.lock object")
    assert error.__notes__ == NOTES
    assert f'File "{__file__}"' in str(error.__cause__)


def test_a_cause_is_shown() -> None:
    def act() -> None:
        try:
            {}["inner"]
        except KeyError as error:
            raise OSError("outer") from error

    error = failed(in_worker(act))
    text = "".join(traceback.format_exception(error))
    assert "KeyError: 'inner'" in text
    assert "OSError: outer" in text


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, GeneratorExit])
def test_an_error_that_looks_like_the_end_does_not_end_the_stream(kind: type[BaseException]) -> None:
    error = failed(raising(kind))
    assert type(error) is SourceError
    assert f"the source or preprocess raised {kind.__name__}" in str(error)
    assert error.__notes__ == NOTES


def test_one_worker_that_fails_ends_the_stream_at_its_step_and_not_before() -> None:
    def act() -> None:
        raise ValueError("17")

    error = failed(in_worker(act), Loading(workers=3, worker_buffer=4, read_buffer=4))
    assert type(error) is ValueError


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda: os._exit(3), "ended with exit code 3 before it delivered step 4"),
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            r"ended with exit code -9 \(SIGKILL\) before it delivered step 4",
        ),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), r"ended with exit code -11 \(SIGSEGV\) before"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), r"ended with exit code -15 \(SIGTERM\) before"),
    ],
    ids=["exit", "kill", "segv", "term"],
)
def test_a_worker_that_ends_is_an_error(end: Callable[[], None], how: str) -> None:
    def act() -> None:
        time.sleep(0.05)  # until the step before has been sent
        end()

    error = failed(in_worker(act))
    assert type(error) is WorkerError
    assert re.match(f"worker process 1 {how}", str(error))
    assert ("out of memory is the usual reason: lower Loading(workers=, worker_buffer=)" in str(error)) == (
        "SIGKILL" in str(error)
    )


def test_a_worker_killed_from_outside_is_an_error_and_the_stream_can_go_on() -> None:
    with train_stream(Ids(), batch=4, loading=TWO) as stream:
        for _ in range(3):
            next(stream)
        victim = children()[0]
        os.kill(victim.pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"worker process [01] ended with exit code -9 \(SIGKILL\)"):
            steps_of(stream, 100)
        assert children() == []
        step = stream.position.step
        assert 3 <= step < 20
        stream.set_state(stream.get_state())
        for later in range(step, step + 4):
            assert next(stream)["id"].tolist() == stream.ids(later).tolist()


def test_a_worker_killed_with_children_of_its_own_is_seen(tmp_path: Path) -> None:
    """A child of a killed worker that lives on must not hold the connection open."""
    parent, orphan = HERE, tmp_path / "orphan"

    def forks(record: Any) -> Any:
        if os.getpid() != parent and record["id"] == 4:
            child = os.fork()
            if child == 0:
                time.sleep(600)
            orphan.write_text(str(child))
            os.kill(os.getpid(), signal.SIGKILL)
        return record

    with train_stream(Ids(), batch=4, shuffle=False, preprocess=forks, loading=Loading(workers=1)) as stream:
        next(stream)
        try:
            with pytest.raises(WorkerError, match="SIGKILL"):
                next(stream)
        finally:
            os.kill(int(orphan.read_text()), signal.SIGKILL)


# What cannot be sent


def test_a_preprocess_that_cannot_be_pickled_is_told_what_to_do() -> None:
    lock = threading.Lock()

    def preprocess(record: Any) -> Any:
        with lock:
            return record

    with train_stream(Ids(), batch=4, preprocess=preprocess, loading=TWO) as stream:
        with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock' object") as caught:
            next(stream)
        assert caught.value.__notes__ == [
            "worker processes get the source and preprocess by pickling them; "
            "move what cannot be pickled into a module, or use Loading(workers=0)"
        ]
    assert children() == []


def test_a_source_that_cannot_be_loaded_in_a_worker() -> None:
    def gone() -> Any:
        raise FileNotFoundError(2, "no such corpus", "/data/x")

    class Gone(Ids):
        def __reduce__(self) -> Any:
            return gone, ()

    with train_stream(Gone(), batch=4, loading=TWO) as stream:
        next(stream)
        with pytest.raises(FileNotFoundError, match="no such corpus: '/data/x'") as caught:
            next(stream)
    assert "a worker process could not load the source or preprocess" in caught.value.__notes__[0]


def test_a_module_that_a_worker_cannot_import() -> None:
    module = types.ModuleType("dew_only_here")
    exec("def preprocess(record):\n    return record\n", module.__dict__)
    sys.modules["dew_only_here"] = module
    try:
        with train_stream(Ids(), batch=4, preprocess=module.preprocess, loading=TWO) as stream:
            next(stream)
            with pytest.raises(ModuleNotFoundError, match="No module named 'dew_only_here'") as caught:
                next(stream)
        assert "what they need must be importable there, by the sys.path of this process" in caught.value.__notes__[0]
    finally:
        del sys.modules["dew_only_here"]


def test_a_step_that_cannot_be_pickled_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(dict[str, Any]):
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise MemoryError("no room for the step")

    class Takes(Ids):
        def take(self, indices: Any) -> Any:
            return {"id": np.array(indices)}

        def __setstate__(self, state: Any) -> None:
            import dew.data.step

            self.__dict__ = state
            plain = dew.data.step.checked_columns
            dew.data.step.checked_columns = lambda *given: Broken(plain(*given))

    with train_stream(Takes(), batch=4, loading=TWO) as stream:
        next(stream)
        with pytest.raises(MemoryError, match="no room for the step"):
            next(stream)
