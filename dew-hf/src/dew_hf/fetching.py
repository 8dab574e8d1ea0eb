"""Row groups of one reader: fetched side by side, each once, kept while they are wanted, and some before they are.

Only so many are kept, those asked for last; what is read ahead takes the place of the oldest.
"""

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from dew.data.errors import StreamClosedError
from dew.data.pool import OwnThread, join

_Job: TypeAlias = "tuple[int, Future[Any]]"


class Groups:
    """Row groups by number.

    Args:
        read: reads one; called from several threads.
        most: how many are kept beyond those that one call asks for.
        threads: how many are read side by side, besides the one that the caller reads.
    """

    def __init__(self, read: Callable[[int], Any], *, most: int, threads: int) -> None:
        self._read = read
        self._most = most
        self._most_threads = threads
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Future[Any]] = OrderedDict()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[OwnThread] = []
        self._closed = False
        self.reads = 0

    def get(self, groups: Sequence[int]) -> list[Any]:
        """Row groups `groups`; those that are not there are read side by side.

        Raises:
            Exception: whatever reading the first of them that failed raised.
        """
        futures, mine = self._futures(groups, here=True)
        if mine is not None:
            self._run(*mine)
        return [future.result() for future in futures]

    def ahead(self, groups: Sequence[int]) -> None:
        """Begins to read row groups that will be asked for."""
        self._futures(groups, here=False)

    def close(self) -> None:
        """Lets go of everything and ends the threads, within five seconds."""
        with self._lock:
            self._closed = True
            for future in self._kept.values():
                future.cancel()
            self._kept.clear()
            threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        join(threads)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def waiting(self) -> int:
        """Row groups that are being read, or wait for it."""
        with self._lock:
            return sum(not future.done() for future in self._kept.values())

    def _futures(self, groups: Sequence[int], *, here: bool) -> "tuple[list[Future[Any]], _Job | None]":
        """One future a group, and the job that is left to the calling thread."""
        mine: _Job | None = None
        with self._lock:
            if self._closed:
                raise StreamClosedError("the reader of these row groups was closed")
            missing = [group for group in groups if group not in self._kept]
            for number, group in enumerate(missing):
                future = self._kept[group] = Future[Any]()
                if here and number == len(missing) - 1:
                    mine = group, future
                else:
                    self._jobs.put((group, future))
            self.reads += len(missing)
            self._start_threads(len(missing) - here)
            for group in groups:
                self._kept.move_to_end(group)
            futures = [self._kept[group] for group in groups]
            while len(self._kept) > max(self._most, len(groups)):
                self._kept.popitem(last=False)
        return futures, mine

    def _start_threads(self, jobs: int) -> None:
        for _ in range(min(jobs, self._most_threads) - len(self._threads)):
            # Daemons: a read that hangs must not keep the interpreter from ending.
            thread = OwnThread(self._work, f"dew-row-groups-{len(self._threads)}")
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._run(*job)
            del job  # the row group must not live on while this thread waits

    def _run(self, group: int, future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self._read(group))
        except BaseException as error:
            with self._lock:
                if self._kept.get(group) is future:
                    del self._kept[group]  # asked for again, it is read again
            future.set_exception(error)
