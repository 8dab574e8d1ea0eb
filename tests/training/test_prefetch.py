"""`DevicePrefetch`: the position of what was delivered, errors in their turn, and an end from any state."""

import collections
import contextvars
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.data import DataPartition, Loading, from_records
from dew.data.errors import DewWarning, OptionsError, OptionsTypeError, PositionMismatchError, StreamClosedError
from dew.data.stream import RecordStream, train_stream
from dew.training.prefetch import DevicePrefetch

ROWS = 40


def stream(seed: int = 0, **options: Any) -> RecordStream:
    loading = Loading(workers=0, **options)
    dataset = from_records({"x": np.arange(ROWS, dtype=np.int32)}, batch=4, seed=seed, loading=loading)
    made = dataset.train(DataPartition())
    assert isinstance(made, RecordStream)
    return made


def rows(batch: Any) -> list[int]:
    return np.asarray(batch["x"]).tolist()


def expected(steps: int) -> list[list[int]]:
    with stream() as alone:
        return [rows(next(alone)) for _ in range(steps)]


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "time is up"
        time.sleep(0.005)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dew-")]


class Quick(RecordStream):
    """A stream that notes which threads read it."""

    def __init__(self, setup: Any) -> None:
        super().__init__(setup)
        self.readers: set[str] = set()

    def __next__(self) -> Any:
        self.readers.add(threading.current_thread().name)
        return super().__next__()


def quick_stream(monkeypatch: pytest.MonkeyPatch, **limits: float) -> Quick:
    """A stream whose steps are never too slow to be read by the consumer, however busy the machine is."""
    from dew.data import loading

    for name, seconds in ({"_QUICK_SECONDS": 1e9, "_SLOW_SECONDS": 1e9} | limits).items():
        monkeypatch.setattr(loading, name, seconds)
    return Quick(stream()._setup)


class Counted:
    """A custom iterator: 0, 1, 2, ...; its state is its own dict, handed out and then changed. `gate` holds it up."""

    def __init__(self, end: int = 1000) -> None:
        self.state = {"at": 0}
        self.end = end
        self.gate = threading.Event()
        self.gate.set()
        self.readers: set[int] = set()
        self.waiting = self.closed = 0

    def __iter__(self) -> "Counted":
        return self

    def __next__(self) -> int:
        self.readers.add(threading.get_ident())
        self.waiting += 1
        assert self.gate.wait(60)
        self.waiting -= 1
        if self.state["at"] == self.end:
            raise StopIteration
        self.state["at"] += 1
        return self.state["at"] - 1

    def get_state(self) -> dict[str, int]:
        return self.state

    def set_state(self, state: dict[str, int]) -> None:
        self.state = dict(state)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_delivers_what_the_stream_does_placed_on_a_device(depth: int) -> None:
    import jax

    with DevicePrefetch(stream(), jax.device_put, depth) as prefetch:
        got = [next(prefetch) for _ in range(25)]
    assert [rows(batch) for batch in got] == expected(25)
    assert all(isinstance(batch["x"], jax.Array) for batch in got)
    assert prefetch.delivered == 25


@pytest.mark.parametrize("read_buffer", [0, 2])
def test_the_state_is_that_of_the_last_batch_delivered(read_buffer: int) -> None:
    whole = expected(14)
    with DevicePrefetch(stream(read_buffer=read_buffer)) as prefetch:
        for step in range(12):
            state = prefetch.get_state()
            assert state["records"] == 4 * step
            with DevicePrefetch(stream()) as resumed:
                resumed.set_state(state)
                assert [rows(next(resumed)) for _ in range(2)] == whole[step : step + 2]
            assert rows(next(prefetch)) == whole[step]


def test_a_state_that_its_iterator_goes_on_changing_is_not_followed() -> None:
    source = Counted()
    with DevicePrefetch(source, depth=3) as prefetch:
        assert prefetch.get_state() == {"at": 0}
        for number in range(3):
            assert next(prefetch) == number
            until(lambda: source.state["at"] == number + 4)  # noqa: B023 - called here
            assert prefetch.get_state() == {"at": number + 1}


def test_set_state_before_and_after_reading() -> None:
    whole = expected(12)
    with DevicePrefetch(stream()) as prefetch:
        start = prefetch.get_state()
        for _ in range(5):
            next(prefetch)
        later = prefetch.get_state()
        prefetch.set_state(start)
        assert prefetch.get_state() == start
        assert [rows(next(prefetch)) for _ in range(2)] == whole[:2]
        prefetch.set_state(later)
        prefetch.set_state(prefetch.get_state())
        assert [rows(next(prefetch)) for _ in range(7)] == whole[5:]


def test_a_state_that_is_refused_changes_nothing() -> None:
    with stream(seed=1) as other:
        wrong = other.get_state()
    with DevicePrefetch(stream()) as prefetch:
        first = [rows(next(prefetch)) for _ in range(3)]
        with pytest.raises(PositionMismatchError, match="seed"):
            prefetch.set_state(wrong)
        assert prefetch.get_state()["records"] == 12
        assert first + [rows(next(prefetch)) for _ in range(3)] == expected(6)
        prefetch.set_state(wrong, accept={"seed"})
        assert prefetch.get_state()["accepted"][0]["part"] == "seed"


def test_has_a_state_only_where_its_source_has_one() -> None:
    with DevicePrefetch(iter([1, 2])) as prefetch:
        assert not hasattr(prefetch, "get_state")
        assert not hasattr(prefetch, "set_state")
        with pytest.raises(AttributeError, match="get_state"):
            _ = prefetch.get_state
    with DevicePrefetch(stream()) as prefetch:
        assert hasattr(prefetch, "get_state")
        assert hasattr(prefetch, "set_state")
    with DevicePrefetch(DevicePrefetch(iter([1, 2]))) as outer:
        assert not hasattr(outer, "get_state")
        assert list(outer) == [1, 2]


def test_one_thread_reads_and_places_never_more_than_depth_ahead() -> None:
    source, placing = Counted(end=20), set[int]()

    def place(batch: int) -> int:
        placing.add(threading.get_ident())
        return batch

    with DevicePrefetch(source, place, depth=3) as prefetch:
        assert threads() == []
        for number in range(20):
            assert next(prefetch) == number
            until(lambda: source.state["at"] == min(20, number + 4))  # noqa: B023 - called here
    assert placing == source.readers
    assert len(placing) == 1
    assert threading.get_ident() not in placing


HERE = threading.main_thread().name
AHEAD = "dew-read-ahead"


def test_quick_batches_are_read_and_placed_by_the_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    source, placing = quick_stream(monkeypatch), list[str]()

    def place(batch: Any) -> Any:
        placing.append(threading.current_thread().name)
        return batch

    whole = expected(31)
    with DevicePrefetch(source, place, depth=2) as prefetch:
        states = list[Any]()
        for step in range(30):
            states.append(prefetch.get_state())
            assert states[-1]["records"] == 4 * step
            assert rows(next(prefetch)) == whole[step]
        assert placing == [AHEAD] * 8 + [HERE] * 22
        assert source.readers == {AHEAD, HERE}
        prefetch.set_state(states[29])
        assert [rows(next(prefetch)) for _ in range(2)] == whole[29:31]
    assert threads() == []


def test_slow_batches_go_back_to_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    source, placing = quick_stream(monkeypatch, _SLOW_SECONDS=0.0), list[str]()

    def place(batch: Any) -> Any:
        placing.append(threading.current_thread().name)
        return batch

    with DevicePrefetch(source, place) as prefetch:
        assert [rows(next(prefetch)) for _ in range(40)] == expected(40)
    assert placing[:36] == ([AHEAD] * 8 + [HERE]) * 4


def test_only_one_thread_places_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners change all the time, and whatever `place` counts is counted in order."""
    source, numbers = quick_stream(monkeypatch, _SLOW_SECONDS=20e-6), list[int]()
    inside = threading.Lock()

    def place(batch: Any) -> Any:
        assert inside.acquire(blocking=False), "two threads place at once"
        numbers.append(len(numbers))
        inside.release()
        return numbers[-1], rows(batch)

    with DevicePrefetch(source, place, depth=3) as prefetch:
        got = [next(prefetch) for _ in range(2000)]
    assert [number for number, _ in got] == list(range(2000))
    with stream() as alone:
        assert [each for _, each in got] == [rows(next(alone)) for _ in range(2000)]


def test_errors_and_ctrl_c_while_the_consumer_places(monkeypatch: pytest.MonkeyPatch) -> None:
    faults: dict[int, BaseException] = {11: KeyboardInterrupt(), 20: KeyError("the device is full")}
    placed = itertools.count()

    def place(batch: Any) -> Any:
        if fault := faults.pop(next(placed), None):
            raise fault
        return batch

    whole = expected(30)
    with DevicePrefetch(quick_stream(monkeypatch), place) as prefetch:
        assert [rows(next(prefetch)) for _ in range(11)] == whole[:11]
        with pytest.raises(KeyboardInterrupt):
            next(prefetch)
        assert [rows(next(prefetch)) for _ in range(8)] == whole[11:19]
        for _ in range(2):
            with pytest.raises(KeyError, match="the device is full"):
                next(prefetch)
        assert prefetch.get_state()["records"] == 4 * 19
    assert threads() == []


def test_the_surroundings_of_place_are_those_of_a_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    kind = contextvars.ContextVar("kind", default="new")
    found = list[tuple[str, bool, str]]()

    def place(batch: Any) -> Any:
        found.append((kind.get(), jax.config.read("jax_enable_x64"), threading.current_thread().name))
        return batch

    kind.set("consumer's")
    with DevicePrefetch(quick_stream(monkeypatch), place) as prefetch:
        for _ in range(12):
            next(prefetch)
        with jax.enable_x64(True):
            for _ in range(12):
                next(prefetch)
    assert {(kind, wide) for kind, wide, _ in found} == {("new", False)}
    assert [thread for _, _, thread in found[:24]] == [AHEAD] * 8 + [HERE] * 4 + [AHEAD] * 12


@pytest.mark.parametrize("guard", ["disallow", "disallow_explicit"])
def test_a_guard_around_the_step_does_not_reach_place(monkeypatch: pytest.MonkeyPatch, guard: str) -> None:
    import jax

    with DevicePrefetch(quick_stream(monkeypatch), jax.device_put) as prefetch:
        for _ in range(12):
            next(prefetch)
        with jax.transfer_guard(guard):
            batch = next(prefetch)
    assert isinstance(batch["x"], jax.Array)


def test_close_while_the_consumer_places(monkeypatch: pytest.MonkeyPatch) -> None:
    placing, gate = threading.Event(), threading.Event()
    caught = list[BaseException]()

    def place(batch: Any) -> Any:
        if threading.current_thread().name == "consumer":
            placing.set()
            assert gate.wait(60)
        return batch

    source = quick_stream(monkeypatch)
    prefetch = DevicePrefetch(source, place)

    def consume() -> None:
        try:
            while True:
                next(prefetch)
        except BaseException as error:
            caught.append(error)

    consumer = threading.Thread(target=consume, name="consumer")
    consumer.start()
    assert placing.wait(60)
    threading.Timer(0.1, gate.set).start()
    prefetch.close()
    consumer.join()
    assert isinstance(caught[0], StreamClosedError)
    assert threads() == []
    with pytest.raises(StreamClosedError, match="this stream was closed"):
        next(source)


@pytest.mark.parametrize("name", [HERE, AHEAD])
def test_close_out_of_place_itself(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As a signal handler may, in the thread that it interrupts."""
    prefetch: DevicePrefetch

    def place(batch: Any) -> Any:
        if threading.current_thread().name == name:
            prefetch.close()
        return batch

    prefetch = DevicePrefetch(quick_stream(monkeypatch), place)
    with pytest.raises(StreamClosedError):
        collections.deque(prefetch, maxlen=0)
    until(lambda: threads() == [])


def test_a_buffer_that_its_source_reuses_changes_no_array() -> None:
    import jax

    from dew.training import build_mesh, shard_batch

    mesh = build_mesh(devices=jax.devices()[:1])
    memory = np.zeros(64 * 33, np.int32)
    start = -memory.ctypes.data % 64 // 4
    for buffer in (memory[start : start + 2048], memory[start + 1 : start + 2049]):  # where JAX would share it, or not

        def numbers(buffer: Any = buffer) -> Iterator[Any]:
            for number in range(40):
                buffer[...] = number
                yield {"x": buffer}

        for any_thread in (None, True):
            with DevicePrefetch(numbers(), lambda batch: shard_batch(mesh, batch), any_thread=any_thread) as prefetch:
                placed = [batch["x"] for batch in prefetch]
            assert [np.unique(array).tolist() for array in placed] == [[number] for number in range(40)]


def test_an_iterator_of_somebodys_own_is_read_by_one_thread_unless_it_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick_stream(monkeypatch).close()
    for any_thread, readers in ((None, 1), (True, 2), (False, 1)):
        source = Counted()
        with DevicePrefetch(source, any_thread=any_thread) as prefetch:
            assert [next(prefetch) for _ in range(30)] == list(range(30))
        assert len(source.readers) == readers
    placing = list[str]()
    with DevicePrefetch(iter([1] * 30), lambda batch: placing.append(threading.current_thread().name)) as prefetch:
        assert len(list(prefetch)) == 30
    assert set(placing) == {AHEAD, HERE}


def test_the_end_of_the_data_stays_the_end() -> None:
    with DevicePrefetch(Counted(end=3)) as prefetch:
        assert list(prefetch) == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(prefetch)
        assert prefetch.get_state() == {"at": 3}


def test_queued_batches_come_before_an_error_which_then_stays() -> None:
    def place(batch: int) -> int:
        if batch == 3:
            raise KeyError("the device is full")
        return batch

    with DevicePrefetch(Counted(), place, depth=8) as prefetch:
        assert [next(prefetch) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(KeyError, match="the device is full") as first:
            next(prefetch)
        with pytest.raises(KeyError) as second:
            next(prefetch)
        assert second.value is first.value
        assert prefetch.get_state() == {"at": 3}
        prefetch.set_state({"at": 5})
        assert next(prefetch) == 5


def test_a_source_error_keeps_its_notes_and_its_place() -> None:
    def preprocess(record: Any) -> Any:
        if record["x"] == 7:
            raise ValueError("record seven is bad")
        return record

    records = [{"x": np.int32(number)} for number in range(ROWS)]
    source = train_stream(records, batch=4, preprocess=preprocess, shuffle=False, loading=Loading(workers=0))
    with DevicePrefetch(source) as prefetch:
        assert rows(next(prefetch)) == [0, 1, 2, 3]
        with pytest.raises(ValueError, match="record seven is bad") as caught:
            next(prefetch)
        assert any("record 7" in note for note in caught.value.__notes__)
        assert prefetch.get_state()["records"] == 4


def test_stop_iteration_in_place_is_no_end() -> None:
    def place(batch: int) -> int:
        raise StopIteration

    with DevicePrefetch(Counted(), place) as prefetch, pytest.raises(RuntimeError, match="place raised StopIteration"):
        next(prefetch)


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(OptionsTypeError, match="reads an iterator, got list"):
        DevicePrefetch([1, 2])  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionsTypeError, match="place must be a function"):
        DevicePrefetch(iter([1]), "gpu")  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionsError, match="depth must be at least 1, got 0"):
        DevicePrefetch(iter([1]), depth=0)


def test_waiting_is_counted() -> None:
    source = Counted()
    source.gate.clear()
    with DevicePrefetch(source) as prefetch:
        assert (prefetch.waited, prefetch.delivered) == (0.0, 0)
        threading.Timer(0.05, source.gate.set).start()
        asked = time.perf_counter()
        next(prefetch)
        assert 0 < prefetch.waited <= time.perf_counter() - asked
        assert prefetch.delivered == 1


def interrupt_next(prefetch: Any) -> None:
    """Sends Ctrl-C to this process while its main thread waits in `next`."""
    main = threading.get_ident()
    stat = Path(f"/proc/self/task/{threading.get_native_id()}/stat")

    def waits() -> bool:
        sleeps = not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "S"
        return sleeps and sys._current_frames()[main].f_code.co_name == "get"

    def send() -> None:
        # Twice: a signal in the moment before the wait begins would not end it; Python looks for signals before.
        until(lambda: waits() and not time.sleep(0.05) and waits())
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        next(prefetch)
    sender.join()


def test_ctrl_c_loses_no_batch_where_the_source_can_go_back() -> None:
    source = Counted()
    with DevicePrefetch(source, depth=1) as prefetch:
        assert [next(prefetch), next(prefetch)] == [0, 1]
        until(lambda: source.state["at"] == 3)
        source.gate.clear()
        assert next(prefetch) == 2
        interrupt_next(prefetch)
        assert prefetch.get_state() == {"at": 3}
        source.gate.set()
        assert [next(prefetch) for _ in range(3)] == [3, 4, 5]


def test_ctrl_c_is_remembered_where_the_source_cannot_go_back() -> None:
    gate = threading.Event()

    def numbers() -> Iterator[int]:
        assert gate.wait(60)
        yield from range(10)

    with DevicePrefetch(numbers()) as prefetch:
        interrupt_next(prefetch)
        gate.set()
        for _ in range(2):
            with pytest.raises(StreamClosedError, match="a batch may be lost: generator lacks get_state"):
                next(prefetch)


def test_close_from_any_state() -> None:
    ended = list[str]()

    def numbers() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            ended.append(threading.current_thread().name)

    def fails(batch: int) -> int:
        raise KeyError(batch)

    states: list[Callable[[DevicePrefetch], object]] = [
        lambda prefetch: None,
        next,
        list,
    ]
    for reach in states:
        source = Counted(end=5)
        prefetch = DevicePrefetch(source)
        reach(prefetch)
        prefetch.close()
        prefetch.close()
        assert source.closed == 1
        assert threads() == []
        for use in (next, lambda prefetch: prefetch.set_state({"at": 0})):
            with pytest.raises(StreamClosedError, match="this prefetch was closed; make a new one"):
                use(prefetch)
        assert prefetch.get_state() == {"at": prefetch.delivered}

    failing = DevicePrefetch(Counted(), fails)
    with pytest.raises(KeyError):
        next(failing)
    failing.close()
    with DevicePrefetch(numbers()) as prefetch:
        next(prefetch)
    assert len(ended) == 1
    assert threads() == []


def test_close_ends_a_stream_of_dew_that_another_thread_waits_for() -> None:
    gate, waiting = threading.Event(), threading.Event()

    class Slow:
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, index: int) -> dict[str, int]:
            waiting.set()
            assert gate.wait(60)
            return {"x": index}

    prefetch = DevicePrefetch(train_stream(Slow(), batch=4, loading=Loading(workers=0, threads=1)))
    caught = list[BaseException]()

    def consume() -> None:
        try:
            next(prefetch)
        except BaseException as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert waiting.wait(60)
    threading.Timer(0.1, gate.set).start()  # the record that is being read; the step stops behind it
    prefetch.close()
    consumer.join()
    assert isinstance(caught[0], StreamClosedError)
    assert threads() == []


def test_close_names_a_source_that_blocks_and_waits_no_longer() -> None:
    source = Counted()
    source.gate.clear()
    prefetch = DevicePrefetch(source)
    caught = list[BaseException]()

    def consume() -> None:
        try:
            next(prefetch)
        except BaseException as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    until(lambda: source.waiting == 1)
    with pytest.warns(DewWarning, match=r"DevicePrefetch over Counted was still busy 5 s after close\(\)"):
        prefetch.close()
    consumer.join()
    assert isinstance(caught[0], StreamClosedError)
    assert source.closed == 0, "closed while it was being read"
    prefetch.close()
    source.gate.set()
    until(lambda: source.closed == 1)


def test_dropped_unclosed_it_ends() -> None:
    source = Counted()
    prefetch = DevicePrefetch(source)
    next(prefetch)
    dead = weakref.ref(prefetch)
    del prefetch
    gc.collect()
    assert dead() is None
    assert source.closed == 1
    assert threads() == []


def test_many_of_them_leave_nothing() -> None:
    for _ in range(50):
        with DevicePrefetch(stream()) as prefetch:
            next(prefetch)
    assert threads() == []


SCRIPT = """
import jax, numpy as np
from dew.training.prefetch import DevicePrefetch

def source():
    while True:
        yield {"x": np.zeros((64, 1024), np.float32)}

prefetch = DevicePrefetch(source(), jax.device_put, depth=2)
for _ in range(5):
    next(prefetch)
print("done")
"""


def test_a_script_that_forgets_to_close_ends() -> None:
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
