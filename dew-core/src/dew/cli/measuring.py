"""One `Loading` setting of `dew bench`, measured in a process of its own.

So that its peak of memory and its first batch owe nothing to the settings before it, and a setting that the kernel
kills for its memory ends nothing else. The process reads one job as JSON and writes lines of JSON: what part of it is
done, and at last what was measured.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

import attrs

from dew.cli.opening import Asked, dataset_stream

if TYPE_CHECKING:
    from dew.data.dataset import Batch
    from dew.data.loading import Loading
    from dew.data.source import Preprocess, RecordSource
    from dew.data.stream import RecordStream

_SAY_SECONDS: Final = 0.1
_WARM_STEPS, _WARM_SHARE = 16, 0.2
_READS: Final = frozenset({"take", "__getitems__", "drawn"})  # beside `source[index]`


@attrs.frozen(kw_only=True)
class Job:
    """What to measure.

    Args:
        asked: the source, as `attrs.asdict` of an `Asked`.
        setting: `workers`, `threads` and `read_buffer`; None reads the stream as it is.
        steps, seconds: of reading, after the warm-up; whichever ends first, but one step at least. None: any number.
        compute: seconds that each step of the run takes, in which steps can be built ahead.
        stages: measure where building a step spends its time, rather than how fast steps come.
    """

    asked: dict[str, Any]
    setting: dict[str, int] | None
    steps: int | None
    seconds: float
    compute: float = 0.0
    stages: bool = False

    def done(self, steps: int, seconds: float) -> float:
        """What part of the job that is; 1 or more ends it."""
        of_steps = 0.0 if self.steps is None else steps / self.steps
        return max(of_steps, 1.0 if seconds >= self.seconds else seconds / self.seconds) if steps else 0.0


@attrs.define
class Clock:
    """Seconds spent in reading records and in `preprocess`."""

    read: float = 0.0
    preprocess: float = 0.0

    def reading(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """`read`, timed."""

        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return read(*arguments)
            finally:
                self.read += time.perf_counter() - started

        return timed

    def preprocessing(self, preprocess: "Preprocess") -> "Preprocess":
        """`preprocess`, timed, with as many arguments as it has."""
        from dew.data.step import takes_draws

        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return preprocess(*arguments)
            finally:
                self.preprocess += time.perf_counter() - started

        def without_draws(record: Any) -> Any:
            return timed(record)

        def with_draws(record: Any, rng: Any) -> Any:
            return timed(record, rng)

        return with_draws if takes_draws(preprocess) else without_draws


class TimedSource:
    """A record source, and readers that it opens, whose reads are timed; it has the methods that the source has."""

    def __init__(self, source: Any, clock: Clock) -> None:
        self._source = source
        self._clock = clock

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int, /) -> Any:
        return self._clock.reading(self._source.__getitem__)(index)

    def __getattr__(self, name: str) -> Any:
        if name == "open":
            opened = self._source.open
            return lambda: TimedSource(opened(), self._clock)
        found = getattr(self._source, name)
        return self._clock.reading(found) if name in _READS else found


def measure(job: Job, say: Callable[[float], None] = lambda _: None) -> dict[str, Any]:
    """What `job` asks for, as JSON values; `say` hears what part of it is done.

    Raises:
        Exception: whatever opening or reading raises.
    """
    started = time.perf_counter()
    with Asked(**job.asked).opened() as dataset:
        stream = dataset_stream(dataset)
        opened = time.perf_counter() - started
        from dew.data.stream import RecordStream

        if job.stages and isinstance(stream, RecordStream):
            return _stages(stream, job, say)
        warm = 1
        if job.setting is not None and isinstance(stream, RecordStream):
            loading = _loading(**job.setting)
            warm += job.setting["read_buffer"] + job.setting["workers"] * loading.worker_buffer
            stream = reloaded(stream, loading)
        with closing(_Closed(stream)):
            return {"open_seconds": opened, **_rates(stream, job, warm, say)}


def reloaded(
    stream: "RecordStream",
    loading: "Loading",
    *,
    source: "RecordSource | None" = None,
    preprocess: "Preprocess | None" = None,
) -> "RecordStream":
    """The steps of `stream` read in another way; by the timed `source` and `preprocess` where they are given."""
    from dew.data.stream import train_stream

    order = stream.position.order
    return train_stream(
        stream.source if source is None else source,
        order=stream.order,
        batch=stream.batch,
        seed=order.get("draws_seed", order["seed"]),
        partition=stream.partition,
        preprocess=stream.preprocess if preprocess is None else preprocess,
        repeat_in_step=True,
        loading=loading,
    )


def _loading(workers: int, threads: int, read_buffer: int) -> "Loading":
    from dew.data.loading import Loading

    return Loading(workers=workers, threads=threads, read_buffer=read_buffer)


class _Closed:
    """Closes a stream that can be closed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def close(self) -> None:
        """Ends its threads and processes."""
        if hasattr(self._stream, "close"):
            self._stream.close()


def _rates(stream: "Iterator[Batch]", job: Job, warm: int, say: Callable[[float], None]) -> dict[str, Any]:
    """Steps, records and bytes a second once all buffers have turned over; the first batch and the peak of memory."""
    from dew.data.step import batch_bytes

    started = time.perf_counter()
    batch = next(stream, None)
    if batch is None:
        raise StopIteration("the stream ended before its first step")
    first = time.perf_counter() - started
    size, rows = batch_bytes(batch), _rows_of(batch)
    for _ in _warming(warm, job.seconds):
        time.sleep(job.compute)
        if next(stream, None) is None:
            break
    steps, waited, begun = 0, 0.0, time.perf_counter()
    while True:
        time.sleep(job.compute)
        asked = time.perf_counter()
        batch = next(stream, None)
        now = time.perf_counter()
        if batch is None:
            break
        del batch  # a loop that keeps it would have one more step in memory
        steps, waited = steps + 1, waited + now - asked
        say(job.done(steps, now - begun))
        if job.done(steps, now - begun) >= 1:
            break
    took = time.perf_counter() - begun
    return {
        "steps": steps,
        "steps_per_second": steps / took,
        "records_per_second": steps * rows / took,
        "bytes_per_second": steps * size / took,
        "first_batch_seconds": first,
        "wait_seconds_per_step": waited / steps if steps else 0.0,
        "wait_share": waited / took,
        "peak_bytes": _peak_bytes(),
    }


def _warming(least: int, seconds: float) -> Iterator[int]:
    """Steps of the warm-up: until all buffers have turned over, and some more where they are quick."""
    started = time.perf_counter()
    for number in range(least + _WARM_STEPS):
        if number >= least and time.perf_counter() - started > _WARM_SHARE * seconds:
            return
        yield number


def _stages(stream: "RecordStream", job: Job, say: Callable[[float], None]) -> dict[str, Any]:
    """Seconds a step that one thread spends in each stage, without anything built ahead."""
    clock = Clock()
    preprocess = None if stream.preprocess is None else clock.preprocessing(stream.preprocess)
    source: Any = TimedSource(stream.source, clock)
    loading = _loading(workers=0, threads=1, read_buffer=0)
    with reloaded(stream, loading, source=source, preprocess=preprocess) as timed:
        next(timed)  # opens files, compiles what is compiled on first use
        clock.read = clock.preprocess = 0.0
        steps, begun, took = 0, time.perf_counter(), 0.0
        while (part := job.done(steps, took)) < 1 and next(timed, None) is not None:
            steps, took = steps + 1, time.perf_counter() - begun
            say(part)
    parts = {"read": clock.read, "preprocess": clock.preprocess, "collate": took - clock.read - clock.preprocess}
    return {"steps": steps, **{name: seconds / max(1, steps) for name, seconds in parts.items()}}


def _rows_of(batch: "Batch") -> int:
    """Rows of the batch, by its first array."""
    from dew.cli.look import flat

    return next((len(value) for _, value in flat(batch) if getattr(value, "ndim", 0)), 0)


def _peak_bytes() -> int | None:
    """The sum of the peaks of this process and its children; of this process alone where the system has no /proc."""
    if not Path("/proc/self/status").is_file():
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
    return sum(map(_peak_of, [os.getpid(), *_children(os.getpid())]))


def _peak_of(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:  # it ended meanwhile
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def _children(parent: int) -> list[int]:
    """Processes below `parent`, by the parent that each one names."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name of a program may hold spaces and brackets.
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found = [parent]
    for process in found:
        found += [child for child, its in parents.items() if its == process]
    return found[1:]


class _Teller:
    """Writes a line of JSON now and then."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._next = 0.0

    def part(self, part: float) -> None:
        """What part of the job is done."""
        if (now := time.perf_counter()) >= self._next:
            self._next = now + _SAY_SECONDS
            self.line({"done": part})

    def line(self, value: Any) -> None:
        """One JSON value."""
        self._out.write(json.dumps(value) + "\n")
        self._out.flush()


def main() -> NoReturn:
    """The process of one setting: a job on stdin, answers on what was stdout; what programs print goes to stderr."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        teller = _Teller(out)
        try:
            teller.line({"result": measure(Job(**json.load(sys.stdin)), teller.part)})
        except Exception as error:
            from dew.testing.counterexample import said_by

            teller.line({"error": said_by(error)})
    sys.exit(0)
