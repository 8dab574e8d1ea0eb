"""A pool of threads over the records of one step.

`concurrent.futures` joins its threads at interpreter exit without a limit, so that one blocked read keeps a program
alive; these threads are daemons, `close()` waits a bounded time, and the error of the lowest row wins, always.
"""

import itertools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

JOIN_SECONDS = 5.0


class OwnThread(threading.Thread):
    """A daemon thread whose end can be waited for, also after a Ctrl-C cut such a wait short.

    CPython before 3.13 takes a thread for ended once its `join` was interrupted (the repair of its issue 89437 releases
    the lock of a thread that is still running), so an event of our own says when it is.
    """

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self._over = threading.Event()

    def run(self) -> None:
        """Runs the target, and says when it is over."""
        try:
            super().run()
        finally:
            self._over.set()

    def ends(self, seconds: float) -> bool:
        """Whether it ends within `seconds`; what little it does after its target is waited for too."""
        deadline = time.monotonic() + seconds
        if not self._over.wait(seconds):
            return False
        self.join(max(0.0, deadline - time.monotonic()))
        while self in threading.enumerate() and time.monotonic() < deadline:
            time.sleep(0.0005)
        return True


class RecordPool:
    """`threads` threads that map a function over row numbers; the calling thread is one of them."""

    def __init__(self, threads: int) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[OwnThread] = [_RowThread(self._jobs, number) for number in range(threads - 1)]
        for thread in self._threads:
            thread.start()

    def map(self, function: Callable[[int], T], rows: int) -> list[T]:
        """`[function(0), ..., function(rows - 1)]`, each row taken by the next free thread.

        Raises:
            BaseException: of the lowest row that failed; rows after it may not have run.
        """
        job = _Job(function, rows)
        for _ in range(min(len(self._threads), rows - 1)):
            self._jobs.put(job)
        job.work()
        return job.finish()

    def close(self) -> list[str]:
        """Ends the threads; names of those that are still blocked after five seconds."""
        for _ in self._threads:
            self._jobs.put(None)
        return join(self._threads)


def join(threads: list[OwnThread], seconds: float = JOIN_SECONDS) -> list[str]:
    """Joins `threads` within `seconds` in all; names of those still alive.

    The garbage collector may close a dropped stream from one of its own threads: that one is not waited for, nor
    is a thread that waits for it.
    """
    here = threading.current_thread()
    waiting = (here, here.mapper) if isinstance(here, _RowThread) else (here,)
    others = [thread for thread in threads if thread not in waiting and thread.ident is not None]
    deadline = time.monotonic() + seconds
    return [thread.name for thread in others if not thread.ends(max(0.0, deadline - time.monotonic()))]


class _Job:
    def __init__(self, function: Callable[[int], Any], rows: int) -> None:
        self._function = function
        self._next = itertools.count()  # its next() is atomic
        self._rows = rows
        self._left = rows
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._failed_row = rows
        self._failure: BaseException | None = None
        self._results: list[Any] = [None] * rows
        if not rows:
            self._done.set()

    def work(self) -> None:
        while (row := next(self._next)) < self._rows:
            try:
                # A row below the one that failed may fail too, and would then be the one to report.
                if row < self._failed_row:
                    self._results[row] = self._function(row)
            except BaseException as error:
                self._fail(row, error)
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._done.set()

    def finish(self) -> list[Any]:
        """Waits for all rows. A thread that came late may still hold the job: records must not live on in it."""
        self._done.wait()
        results, failure = self._results, self._failure
        self._results, self._failure = [], None
        del self._function
        if failure is not None:
            raise failure
        return results

    def _fail(self, row: int, error: BaseException) -> None:
        with self._lock:
            if row < self._failed_row:
                self._failed_row, self._failure = row, error


class _RowThread(OwnThread):
    """Works on the rows of jobs; `mapper` is the thread whose `map` it helps."""

    def __init__(self, jobs: "queue.SimpleQueue[_Job | None]", number: int) -> None:
        super().__init__(self._work, f"dew-records-{number}")
        self._jobs = jobs
        self.mapper = threading.current_thread()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.work()
            del job  # its rows must not live on while this thread waits
