"""How steps are built ahead of the consumer. Content never depends on it: every way runs the same `LoadStep`.

With `workers=0` a thread of this process builds steps ahead, and a pool inside a step reads its records side by side;
with workers, processes build whole steps (`dew.data.workers`). The unit is always one step of this process, so that one
hand-off is paid a step, not a record. A feed owns everything it starts and ends it in `close()`.
"""

import functools
import logging
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import attrs

from dew.data import checks
from dew.data.dataset import Batch
from dew.data.errors import DewWarning
from dew.data.pool import JOIN_SECONDS, OwnThread, join
from dew.data.step import LoadStep, StepStoppedError, batch_bytes

logger = logging.getLogger("dew.data")

_MOST_WORKERS = 32
_MOST_THREADS = 4

# Eight steps in a row built within 100 us each are cheaper to build than to hand over; 1 ms says that has changed.
_QUICK_STEPS = 8
_QUICK_SECONDS = 100e-6
_SLOW_SECONDS = 1e-3

# Set by launchers that start several processes of a run on one host.
_LOCAL_PROCESSES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "LOCAL_WORLD_SIZE")


@attrs.frozen(kw_only=True)
class Loading:
    """How fast batches are made, never what they hold. Buffers are counted in steps.

    Args:
        workers: worker processes; 0 builds steps in this process. None picks: up to 32, never more than the cores less
            one, and none on two cores or where a source builds whole steps itself.
        threads: size of the one pool over records in each process. None picks: 1 in workers, else up to 4.
        read_buffer: steps built ahead in this process; 0 builds each step when it is asked for.
        worker_buffer: steps that each worker process builds ahead.
        memory: bytes that steps built ahead may take; the first step's size decides how many fit, at least one.
    """

    workers: int | None = attrs.field(default=None, validator=attrs.validators.optional(checks.count(0)))
    threads: int | None = attrs.field(default=None, validator=attrs.validators.optional(checks.count(0)))
    read_buffer: int = attrs.field(default=2, validator=checks.count(0))
    worker_buffer: int = attrs.field(default=2, validator=checks.count(1))
    memory: int = attrs.field(default=2 << 30, validator=checks.count(1))

    def picked(self, *, whole_steps: bool) -> "Picked":
        """The numbers this process uses. `whole_steps`: the source builds steps itself (`take`, no preprocess)."""
        cores = cores_here()
        workers = self.workers
        if workers is None:
            workers = 0 if whole_steps or cores <= 2 else min(_MOST_WORKERS, cores - 1)
        threads = self.threads
        if threads is None:
            threads = 1 if workers or whole_steps else min(_MOST_THREADS, cores)
        picked = Picked(workers=workers, threads=threads)
        _log_once(picked, cores)
        return picked


@attrs.frozen(kw_only=True)
class Picked:
    """What `Loading` came to on this machine."""

    workers: int
    threads: int


@functools.cache
def _log_once(picked: Picked, cores: int) -> None:
    logger.info("reading with %d workers and %d threads on %d cores", picked.workers, picked.threads, cores)


def cores_here() -> int:
    """Cores this process may use: the smaller of affinity and cgroup quota, over the run's processes on this host."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    local = next((int(os.environ[name]) for name in _LOCAL_PROCESSES if os.environ.get(name, "").isdigit()), 1)
    return max(1, min(affinity, _cgroup_quota() or affinity) // max(1, local))


def _cgroup_quota() -> int | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return None


class Steps(Protocol):
    """Builds steps, in ascending order."""

    def __call__(self, step: int) -> Batch:
        """The batch of `step`."""
        ...

    def stop(self) -> None:
        """Makes the step that is being built end soon; called from another thread."""
        ...

    def close(self) -> None:
        """Frees everything; called by the thread that builds."""
        ...


class Feed(Protocol):
    """Where a stream takes its batches from."""

    def start(self) -> None:
        """Begins to build ahead, where the feed does; `get` does so too."""
        ...

    def get(self, step: int) -> Batch:
        """The batch of `step`; steps are asked for in order.

        Raises:
            StepStoppedError: the feed was closed meanwhile, from another thread or by a signal handler.
            Exception: whatever building the step raised.
        """
        ...

    def close(self) -> None:
        """Ends everything the feed started, within five seconds; idempotent."""
        ...


def open_feed(load: LoadStep, *, first: int, stop: int | None, loading: Loading, picked: Picked) -> Feed:
    """A feed of steps `first`, `first + 1`, ..., up to `stop`."""
    steps: Steps = load
    depth, memory = loading.read_buffer, loading.memory
    if picked.workers:
        from dew.data.workers import WorkerSteps

        memory //= 2  # one half for what the workers hold, one for what waits here
        steps = WorkerSteps(
            load,
            first=first,
            stop=stop,
            workers=picked.workers,
            buffer=loading.worker_buffer,
            memory=memory,
        )
        depth = max(1, depth)  # workers are owned by the read-ahead thread, so that close() can always end them
    if not depth:
        return DirectFeed(steps)
    inline = always if steps is load else None
    return ReadAheadFeed(steps, first=first, stop=stop, depth=depth, memory=memory, inline=inline)


def always() -> bool:
    """For a feed whose steps any thread may build at any time."""
    return True


class DirectFeed:
    """Builds each step in the consumer's thread."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._closed = False
        self._building = threading.RLock()  # reentrant for a close() out of a signal handler

    def start(self) -> None:
        """Nothing is built ahead."""

    def get(self, step: int) -> Batch:
        """The batch of `step`, built here."""
        with self._building:
            if self._closed:
                raise StepStoppedError
            try:
                return self._steps(step)
            finally:
                if self._closed:  # by close(), which may not have waited for this step
                    self._steps.close()

    def close(self) -> None:
        """Frees the reader and the pool, once the step that another thread may be building has ended."""
        self._closed = True
        self._steps.stop()
        if self._building.acquire(timeout=JOIN_SECONDS):
            try:
                self._steps.close()
            finally:
                self._building.release()
        else:
            _warn_of_busy(self._steps)


class ReadAheadFeed:
    """One thread builds steps ahead and owns all that building needs.

    Free slots go to the thread through one queue and built steps come back through another: nothing polls, and either
    side sleeps when it has nothing to do. A hand-off between threads costs tens of microseconds and a fight for the
    interpreter's lock, so steps that are built faster than that (token windows in the page cache) are built by the
    consumer itself, until one is slow again. Never two threads build at once. `inline` says in the consumer's thread
    whether that one may build; None forbids it.
    """

    def __init__(
        self,
        steps: Steps,
        *,
        first: int,
        stop: int | None,
        depth: int,
        memory: int,
        inline: Callable[[], bool] | None = always,
    ) -> None:
        self._steps = steps
        self._stop = stop
        self._depth = depth
        self._memory = memory
        self._may_inline = inline
        self._inline = False  # whose turn it is: the consumer's, if True
        self._inline_thread: threading.Thread | None = None
        self._building = threading.Lock()
        self._freed = False
        self._free_error: BaseException | None = None
        self._closed = False
        self._slots: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._built: queue.SimpleQueue[Batch | BaseException | None] = queue.SimpleQueue()
        self._begin: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._slots.put(True)
        self._begin.put(first)
        # Started later: a Ctrl-C before the stream knows this feed must not leave a thread behind.
        self._thread = OwnThread(self._run, "dew-read-ahead")

    def start(self) -> None:
        """Starts the thread, once."""
        if self._thread.ident is None:
            self._thread.start()

    def get(self, step: int) -> Batch:
        """The next built step; raises what building it raised."""
        if self._inline and self._may_inline is not None and not self._may_inline():
            self._inline, self._may_inline = False, None  # for good: else it would be offered again and again
            self._begin.put(step)
        if self._inline:
            return self._build_here(step)
        self.start()
        built = self._built.get()
        if built is None:
            self._inline = True
            return self.get(step)
        if isinstance(built, BaseException):
            raise built
        self._slots.put(True)
        return built

    def close(self) -> None:
        """Ends the thread; one that is still blocked after five seconds is named in a warning."""
        if self._closed:
            return
        self._steps.stop()
        self._slots.put(False)
        self._begin.put(None)
        # A signal handler may close the stream in the middle of a step that its own thread builds.
        blocked = [] if self._inline_thread is threading.current_thread() else join([self._thread])
        self._closed = True  # not earlier: after a Ctrl-C in the join, the close at exit does all of it again
        self._built.put(StepStoppedError())
        if blocked:
            _warn_of_busy(self._steps)
        if self._free_error is not None:
            raise self._free_error

    def _build_here(self, step: int) -> Batch:
        started = time.perf_counter()
        self._inline_thread = threading.current_thread()
        try:
            with self._building:
                if self._freed:
                    raise StepStoppedError
                batch = self._steps(step)
        finally:
            self._inline_thread = None
        if time.perf_counter() - started > _SLOW_SECONDS:
            self._inline = False
            self._begin.put(step + 1)
        return batch

    def _run(self) -> None:
        try:
            while (step := self._begin.get()) is not None and self._build_ahead(step):
                self._built.put(None)  # from here on the consumer builds
        except StepStoppedError:
            pass
        except BaseException as error:
            self._built.put(error)
        self._free()

    def _free(self) -> None:
        """After the last step, wherever it is built."""
        with self._building:
            self._freed = True
            try:
                self._steps.close()
            except Exception as error:
                self._free_error = error  # close() raises it where the user sees it

    def _build_ahead(self, step: int) -> bool:
        """Builds from `step` on while there are slots; True when steps turn out to be quick, False at the end."""
        quick = 0
        while self._slots.get() and step != self._stop:
            started = time.perf_counter()
            batch = self._steps(step)
            seconds = time.perf_counter() - started
            self._built.put(batch)
            self._grow(batch)
            del batch  # else it would stay alive while this thread waits
            step += 1
            quick = quick + 1 if seconds < _QUICK_SECONDS else 0
            if quick == _QUICK_STEPS and self._may_inline is not None:
                return True
        return False

    def _grow(self, batch: Batch) -> None:
        """After the first step, whose size is known now: as many more slots as memory allows."""
        fit = self._memory // max(1, batch_bytes(batch))
        for _ in range(min(self._depth, fit) - 1):
            self._slots.put(True)
        self._depth = 0


def _warn_of_busy(steps: Steps) -> None:
    warnings.warn(
        f"{steps} was still busy {JOIN_SECONDS:.0f} s after close(); "
        "its thread ends as soon as that read or preprocess returns",
        DewWarning,
        stacklevel=3,
    )
