"""How far steps are built ahead, by which threads, and how those end: speed and memory only, never content."""

import gc
import linecache
import logging
import os
import signal
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import dew.data.loading
import dew.data.stepstream
import dew.data.stream
from dew.data import (
    DewWarning,
    Loading,
    OptionsError,
    OptionsTypeError,
    RecordStream,
    StreamClosedError,
    train_stream,
    validation_pass,
)
from dew.data.loading import cores_here
from dew.data.pool import RecordPool

HERE = Loading(workers=0, threads=1, read_buffer=0)
AHEAD = Loading(workers=0, threads=1, read_buffer=2)
POOL = Loading(workers=0, threads=4, read_buffer=2)
WAYS = pytest.mark.parametrize("loading", [HERE, AHEAD, POOL], ids=["here", "ahead", "pool"])
SECONDS = 30.0  # a bound for what must happen at all, never for how fast


def own_threads() -> list[str]:
    """Threads of streams; other libraries keep some of their own."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dew-")]


def until(condition: Callable[[], bool]) -> bool:
    """Waits for `condition`; whether it came true."""
    end = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


class Rows:
    """Whole steps of `width` bytes a row; knows how many it built and which of their arrays are alive."""

    def __init__(self, width: int = 1000) -> None:
        self.width = width
        self.built = 0
        self.arrays: list[weakref.ref[Any]] = []

    @property
    def alive(self) -> int:
        return sum(array() is not None for array in self.arrays)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        raise AssertionError("read by take")

    def take(self, indices: Any) -> Mapping[str, Any]:
        time.sleep(0.002)  # not quick, so that steps are built by the read-ahead thread
        self.built += 1
        array = np.zeros((len(indices), self.width), np.uint8)
        self.arrays.append(weakref.ref(array))
        return {"x": array, "inner": {"y": array[:, :0].copy()}}


class Ids:
    """Record i is `{"id": i}`; `before` is called ahead of each read."""

    def __init__(self, before: Callable[[int], None] = lambda index: None, records: int = 1000) -> None:
        self.before = before
        self.records = records
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        self.before(index)
        self.reads.append(index)
        return {"id": index}

    def __repr__(self) -> str:
        return "Ids()"


# Options


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"workers": -1}, OptionsError, "workers must be at least 0, got -1"),
        ({"workers": 1.5}, OptionsTypeError, r"workers must be an int, got 1\.5 \(float\)"),
        ({"workers": True}, OptionsTypeError, "workers must be an int, got True"),
        ({"threads": -2}, OptionsError, "threads must be at least 0, got -2"),
        ({"read_buffer": -1}, OptionsError, "read_buffer must be at least 0, got -1"),
        ({"read_buffer": None}, OptionsTypeError, "read_buffer must be an int, got None"),
        ({"worker_buffer": 0}, OptionsError, "worker_buffer must be at least 1, got 0"),
        ({"memory": 0}, OptionsError, "memory must be at least 1, got 0"),
        ({"memory": "2G"}, OptionsTypeError, "memory must be an int, got '2G'"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Loading(**options)


@pytest.mark.parametrize(
    ("cores", "whole_steps", "workers", "threads"),
    [
        (1, False, 0, 1),
        (2, False, 0, 2),
        (3, False, 2, 1),
        (8, False, 7, 1),
        (200, False, 32, 1),
        (2, True, 0, 1),
        (200, True, 0, 1),
    ],
)
def test_what_is_picked(
    cores: int, whole_steps: bool, workers: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dew.data.loading, "cores_here", lambda: cores)
    picked = Loading().picked(whole_steps=whole_steps)
    assert (picked.workers, picked.threads) == (workers, threads)
    picked = Loading(workers=5, threads=7).picked(whole_steps=whole_steps)
    assert (picked.workers, picked.threads) == (5, 7)
    assert Loading(workers=0).picked(whole_steps=False).threads == min(4, cores)


def test_cores_are_shared_by_the_processes_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    alone = cores_here()
    assert 1 <= alone <= len(os.sched_getaffinity(0))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert cores_here() == max(1, alone // 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert cores_here() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    assert cores_here() == alone


def test_the_affinity_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert cores_here() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_what_was_picked_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    dew.data.loading._log_once.cache_clear()
    caplog.set_level(logging.INFO, "dew.data")
    for _ in range(3):
        with train_stream(Ids(), batch=4, loading=POOL) as stream:
            next(stream)
    assert caplog.messages == [f"reading with 0 workers and 4 threads on {cores_here()} cores"]


# Depth and memory


@pytest.mark.parametrize(
    ("read_buffer", "memory", "ahead"),
    [
        (0, 1 << 30, 0),
        (1, 1 << 30, 1),
        (2, 1 << 30, 2),
        (5, 1 << 30, 5),
        (5, 12_000, 3),  # a step has 4 rows of 1000 bytes
        (5, 11_999, 2),
        (5, 4_000, 1),
        (5, 1, 1),
    ],
)
def test_steps_built_ahead_are_bounded_by_buffer_and_memory(read_buffer: int, memory: int, ahead: int) -> None:
    source = Rows()
    loading = Loading(workers=0, read_buffer=read_buffer, memory=memory)
    with train_stream(source, batch=4, loading=loading) as stream:
        for delivered in range(1, 7):
            batch = next(stream)
            assert until(lambda: source.built >= delivered + ahead)  # noqa: B023 - called here
            time.sleep(0.01)  # time to build one too many
            assert source.built == delivered + ahead
            assert source.alive == ahead + 1  # and the one in hand
            del batch
            assert source.alive == ahead
    assert source.alive == 0


def test_nothing_is_built_before_the_first_batch_is_asked_for() -> None:
    source = Rows()
    with train_stream(source, batch=4, loading=AHEAD):
        assert own_threads() == []
        time.sleep(0.01)
    assert source.built == 0


def test_a_pass_is_never_read_beyond_its_end() -> None:
    source = Ids(records=10)
    with validation_pass(source, batch=4, loading=attrs.evolve(AHEAD, read_buffer=50)) as stream:
        next(stream)
        assert until(lambda: not own_threads())  # the thread ends by itself
        assert len(source.reads) == 12


@pytest.mark.parametrize("pattern", ["quick", "slow", "mixed", "slow at first"])
def test_quick_and_slow_steps_come_in_order(pattern: str) -> None:
    """Quick steps are built by the consumer, slow ones ahead of it; each change of hands keeps the order."""
    threads: set[str] = set()

    class Varying(Ids):
        def take(self, indices: Any) -> Mapping[str, Any]:
            threads.add(threading.current_thread().name)
            step = len(self.reads)
            self.reads.append(step)
            slow = {"quick": False, "slow": True, "mixed": step // 30 % 2 == 1, "slow at first": step < 40}[pattern]
            if slow:
                time.sleep(0.0015)
            return {"id": np.array(indices)}

    with train_stream(Varying(), batch=4, loading=AHEAD) as stream:
        for step in range(200):
            assert next(stream)["id"].tolist() == stream.ids(step).tolist()
            assert stream.position.step == step + 1
    if pattern != "slow":
        assert threads == {"dew-read-ahead", "MainThread"}
    else:
        assert threads == {"dew-read-ahead"}


# The pool over records


def test_rows_of_a_step_are_read_side_by_side() -> None:
    meeting = threading.Barrier(4, timeout=SECONDS)
    loading = attrs.evolve(POOL, read_buffer=0)
    with train_stream(Ids(lambda index: meeting.wait() and None), batch=4, loading=loading) as stream:
        for step in range(3):
            assert next(stream)["id"].tolist() == stream.ids(step).tolist()


@pytest.mark.parametrize("threads", [0, 1, 2, 8])
def test_no_more_threads_than_asked_for(threads: int) -> None:
    names: set[str] = set()
    source = Ids(lambda index: names.add(threading.current_thread().name) or time.sleep(0.001))
    with train_stream(source, batch=64, loading=Loading(workers=0, threads=threads, read_buffer=1)) as stream:
        next(stream)
        assert len(own_threads()) <= 1 + max(0, threads - 1)
    assert names <= {"dew-read-ahead", *(f"dew-records-{number}" for number in range(threads - 1))}


def test_records_do_not_live_on_in_threads_that_come_late() -> None:
    class Record(dict[str, Any]):
        pass

    records: list[weakref.ref[Record]] = []

    def tracked(record: Any) -> Record:
        record = Record(record)
        records.append(weakref.ref(record))
        return record

    loading = Loading(workers=0, threads=8, read_buffer=0)
    with train_stream(Ids(), batch=8, preprocess=tracked, loading=loading) as stream:
        for _ in range(300):
            next(stream)
            assert sum(record() is not None for record in records[-64:]) <= 8  # one that each thread just read


@pytest.mark.parametrize("repeat", range(5))
def test_the_lowest_row_that_fails_is_reported(repeat: int) -> None:
    """Row 0 starts first and fails last."""
    failed = threading.Event()

    def read(row: int) -> int:
        if row == 0:
            assert failed.wait(SECONDS)
        elif row == 3:
            failed.set()
        else:
            return row
        raise ValueError(f"row {row}")

    pool = RecordPool(2 + repeat % 2)
    try:
        with pytest.raises(ValueError, match="row 0"):
            pool.map(read, 20)
        assert pool.map(lambda row: row, 5) == [0, 1, 2, 3, 4]
        assert pool.map(lambda row: row, 0) == []
    finally:
        assert pool.close() == []


def test_a_row_that_was_handed_out_before_a_higher_one_failed_is_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that takes row 0 is held up until row 1, which another thread takes, has failed."""
    failed = threading.Event()

    class Counting:
        def __init__(self) -> None:
            self.rows = iter(range(100))

        def __next__(self) -> int:
            row = next(self.rows)
            if row == 0:
                assert failed.wait(SECONDS)
                time.sleep(0.02)  # until the failure is noted, too
            return row

    monkeypatch.setattr("dew.data.pool.itertools.count", Counting)

    def read(row: int) -> int:
        failed.set()
        raise ValueError(f"row {row}")

    pool = RecordPool(2)
    try:
        with pytest.raises(ValueError, match="row 0"):
            pool.map(read, 2)
    finally:
        pool.close()


@pytest.mark.parametrize("loading", [HERE, AHEAD, POOL, Loading(workers=0, threads=16)])
def test_errors_of_several_records_are_the_same_error_with_any_threads(loading: Loading) -> None:
    def bad(record: Any) -> Any:
        if record["id"] % 7 == 5:
            time.sleep(0.005 * (record["id"] < 10))  # the lowest is the slowest
            raise KeyError(int(record["id"]))
        return record

    for _ in range(3):
        with train_stream(Ids(), batch=40, shuffle=False, preprocess=bad, loading=loading) as stream:
            with pytest.raises(KeyError) as caught:
                next(stream)
            assert caught.value.args == (5,)
            assert caught.value.__notes__ == ["reading record 5 (place 5)", "in step 0 of Ids()"]


# Ends


@WAYS
def test_close_stops_between_two_records(loading: Loading) -> None:
    """A step of many slow records does not hold up close()."""
    started = threading.Event()
    source = Ids(lambda index: started.set() or time.sleep(0.01), records=100_000)
    stream = train_stream(source, batch=50_000, loading=loading)
    errors: list[BaseException] = []

    def consume() -> None:
        try:
            next(stream)
        except BaseException as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert started.wait(SECONDS)
    stream.close()
    consumer.join(SECONDS)
    assert not consumer.is_alive()
    assert [type(error) for error in errors] == [StreamClosedError]
    assert "the stream was closed while a batch was being read" in str(errors[0])
    assert len(source.reads) < 1000
    assert own_threads() == []


@pytest.mark.parametrize("way", ["take", "__getitems__"])
def test_close_builds_nothing_that_was_still_to_be_built(way: str) -> None:
    started, go_on = threading.Event(), threading.Event()
    calls: list[int] = []

    class Slow(Ids):
        pass

    def read(source: Any, indices: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == 2:
            started.set()
            assert go_on.wait(SECONDS)
        return {"id": np.array(indices)} if way == "take" else [{"id": index} for index in indices]

    setattr(Slow, way, read)
    stream = train_stream(Slow(), batch=4, loading=attrs.evolve(AHEAD, read_buffer=20))
    next(stream)
    assert started.wait(SECONDS)
    closer = threading.Thread(target=stream.close)
    closer.start()
    assert until(lambda: stream._closed)
    time.sleep(0.02)
    go_on.set()
    closer.join(SECONDS)
    assert calls == [0, 1]


@pytest.mark.parametrize("loading", [pytest.param(HERE, marks=pytest.mark.nightly), AHEAD], ids=["here", "ahead"])
def test_a_source_that_blocks_is_named_in_a_warning(loading: Loading) -> None:
    blocked, go_on = threading.Event(), threading.Event()
    closed: list[str] = []

    class Reader(Ids):
        def close(self) -> None:
            closed.append(threading.current_thread().name)

    class Blocking(Ids):
        def open(self) -> Reader:
            return Reader(lambda index: blocked.set() or (go_on.wait(SECONDS) and None))

    stream = train_stream(Blocking(), batch=4, loading=loading)
    errors: list[BaseException] = []

    def consume() -> None:
        try:
            next(stream)
        except BaseException as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert blocked.wait(SECONDS)
    with pytest.warns(DewWarning, match=r"^Ids\(\) was still busy 5 s after close\(\); its thread ends as soon as"):
        stream.close()
    stream.close()
    with pytest.raises(StreamClosedError):
        next(stream)
    assert closed == []
    go_on.set()
    consumer.join(SECONDS)
    assert [type(error) for error in errors] == [StreamClosedError]
    assert until(lambda: len(closed) == 1)  # by the thread that was blocked
    assert until(lambda: not own_threads())


@pytest.mark.parametrize("moment", range(6))
@pytest.mark.parametrize("loading", [HERE, AHEAD], ids=["here", "ahead"])
def test_close_from_another_thread_at_any_moment(loading: Loading, moment: int) -> None:
    """The consumer gets whole batches in order, then one clear error; nothing is read from a reader that is closed."""

    class Reader(Ids):
        open = True

        def take(self, indices: Any) -> Any:
            for _ in range(20):
                assert self.open, "the reader was closed in the middle of a step"
                time.sleep(0)
            return {"id": np.array(indices)}

        def close(self) -> None:
            self.open = False

    class Opening(Ids):
        take = None

        def open(self) -> Reader:
            return Reader()

    stream = train_stream(Opening(), batch=4, loading=loading)
    steps: list[list[int]] = []
    errors: list[BaseException] = []

    def consume() -> None:
        try:
            steps.extend(batch["id"].tolist() for batch in stream)
        except BaseException as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert until(lambda: stream.position.step >= 40 * moment)
    stream.close()
    consumer.join(SECONDS)
    assert [type(error) for error in errors] == [StreamClosedError]
    assert steps == [stream.ids(step).tolist() for step in range(len(steps))]
    assert own_threads() == []


@WAYS
def test_a_signal_handler_may_close_the_stream(loading: Loading) -> None:
    """As a handler of SIGTERM does on preemption, in the middle of a step."""
    stream: RecordStream

    def handler(signum: int, frame: types.FrameType | None) -> None:
        stream.close()

    def kill(index: int) -> None:
        if index == 30:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        stream = train_stream(Ids(kill), batch=4, shuffle=False, loading=loading)
        with pytest.raises(StreamClosedError):
            for _ in stream:
                pass
        assert until(lambda: not own_threads())
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_may_close_the_stream_in_a_step_that_is_built_inline() -> None:
    stream: RecordStream
    moments: list[str] = []

    class Quick(Ids):
        def take(self, indices: Any) -> Any:
            if len(self.reads) == 100:
                moments.append(threading.current_thread().name)
                signal.raise_signal(signal.SIGUSR1)
            self.reads.append(0)
            return {"id": np.array(indices)}

    def handler(signum: int, frame: types.FrameType | None) -> None:
        started = time.monotonic()
        stream.close()
        moments.append("quick" if time.monotonic() - started < 4 else "waited for itself")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        stream = train_stream(Quick(), batch=4, loading=AHEAD)
        with pytest.raises(StreamClosedError):
            for _ in stream:
                pass
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert moments == ["MainThread", "quick"]


# Ctrl-C


def interrupted(call: Callable[[], Any], at: int) -> bool:
    """Runs `call` and raises KeyboardInterrupt before line number `at` that it executes in the stream or its feed."""
    files = (dew.data.stepstream.__file__, dew.data.stream.__file__, dew.data.loading.__file__)
    left = at

    def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files or frame.f_code.co_name in ("cores_here", "_cgroup_quota"):
            return None
        # Python itself delivers no signal between the body and the end of a with statement.
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not line.startswith("with "):
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
        return trace

    gc.disable()  # streams of other tests must not end under this trace
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        gc.enable()
    return False


@pytest.mark.parametrize("quick", [True, False], ids=["inline", "handed over"])
@pytest.mark.parametrize("loading", [HERE, Loading(workers=0, threads=1, read_buffer=1)], ids=["here", "ahead"])
@pytest.mark.parametrize("read", [0, 12])
def test_a_ctrl_c_at_any_line_loses_no_step_and_repeats_none(read: int, loading: Loading, quick: bool) -> None:
    class Takes(Ids):
        def take(self, indices: Any) -> Any:
            if not quick:
                time.sleep(0.0002)
            return {"id": np.array(indices)}

    for at in range(1000):
        with train_stream(Takes(), batch=4, loading=loading) as stream:
            for _ in range(read):
                next(stream)
            hit = interrupted(lambda: next(stream), at)
            step = stream.position.step
            assert step - read in (0, 1)
            for later in range(step, step + 12):
                assert next(stream)["id"].tolist() == stream.ids(later).tolist()
        if not hit:
            break
    assert 5 < at < 100  # every line was tried


def test_a_ctrl_c_in_close_leaves_the_rest_to_the_next_close() -> None:
    for at in range(1000):
        stream = train_stream(Rows(), batch=4, loading=AHEAD)
        next(stream)
        hit = interrupted(stream.close, at)
        stream.close()
        assert own_threads() == []
        if not hit:
            break
    assert 5 < at < 100


def test_a_preprocess_that_raises_keyboard_interrupt_does_not_hang_the_next_call() -> None:
    def stopped(record: Any) -> Any:
        raise KeyboardInterrupt

    for loading in (HERE, AHEAD, POOL):
        with train_stream(Ids(), batch=4, preprocess=stopped, loading=loading) as stream:
            for _ in range(3):
                with pytest.raises(KeyboardInterrupt):
                    next(stream)
            assert stream.position.records == 0


# Dropped streams


@WAYS
def test_a_dropped_stream_ends(loading: Loading) -> None:
    closed: list[int] = []

    class Opening(Ids):
        def open(self) -> "Opening":
            return Opening()

        def close(self) -> None:
            closed.append(1)

    stream = train_stream(Opening(), batch=4, loading=loading)
    next(stream)
    gone = weakref.ref(stream)
    del stream
    assert gone() is None
    assert closed == [1]
    assert own_threads() == []


@pytest.mark.parametrize("loading", [AHEAD, POOL], ids=["ahead", "pool"])
def test_a_stream_may_be_collected_by_its_own_threads(loading: Loading) -> None:
    """A stream in a reference cycle ends in whatever thread runs the garbage collector: most often in its own."""
    collected = threading.Event()
    go_on = threading.Event()
    by: list[str] = []

    class Holder:
        stream: RecordStream
        me: "Holder"

    def collect(record: Any) -> Any:
        if record["id"] == 21 and not by:
            assert go_on.wait(SECONDS)
            by.append(threading.current_thread().name)
            gc.collect()
            collected.set()
        return record

    gc.disable()
    gc.freeze()  # what other tests left need not be looked through, which takes seconds late in a long run
    try:
        holder = Holder()
        holder.me = holder
        holder.stream = train_stream(Ids(), batch=10, shuffle=False, preprocess=collect, loading=loading)
        gone = weakref.ref(holder.stream)
        next(holder.stream)
        del holder
        assert gone() is not None
        go_on.set()
        assert collected.wait(4)  # nothing waited for itself
        assert gone() is None
        assert by != ["MainThread"]
    finally:
        gc.unfreeze()
        gc.enable()
    assert until(lambda: not own_threads())


@WAYS
def test_a_stream_with_a_latched_error_leaves_nothing_when_dropped(loading: Loading) -> None:
    def bad(record: Any) -> Any:
        raise OSError("bad")

    stream = train_stream(Ids(), batch=4, preprocess=bad, loading=loading)
    with pytest.raises(OSError, match="bad"):
        next(stream)
    del stream
    assert own_threads() == []


# Fifty of them


@WAYS
def test_fifty_streams_leave_nothing(loading: Loading, tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(1000))

    class Reader:
        def __init__(self) -> None:
            self.file = path.open("rb")

        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> Any:
            return {"id": os.pread(self.file.fileno(), 1, index)[0]}

        def close(self) -> None:
            self.file.close()

    class Files(Ids):
        def open(self) -> Reader:
            return Reader()

    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        stream = train_stream(Files(), batch=4, seed=number, loading=loading)
        next(stream)
        stream.close()
    assert own_threads() == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_stays_flat_over_many_steps() -> None:
    def blocks(stream: Iterator[Any], steps: int) -> int:
        for _ in range(steps):
            next(stream)
        gc.collect()
        return sys.getallocatedblocks()

    for loading in (HERE, AHEAD, POOL):
        with train_stream(Ids(), batch=4, place_field="place", loading=loading) as stream:
            stream.source.reads = _NoList()  # type: ignore[attr-defined]
            first = blocks(stream, 600)
            assert blocks(stream, 2000) - first < 500


class _NoList(list[int]):
    def append(self, value: int) -> None:
        pass
