"""Worker processes for tasks: fresh interpreters, each with one tokenizer thread, that talk over their pipes.

The parent sends numbers of tasks and gets back what was done. A worker whose standard input ends has lost its parent,
or is told to end: it removes its unfinished files and exits within a second, in the middle of a task too, so killing
the parent leaves no orphan. A worker that ends without a word is an error with its exit code.
"""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, Final, NoReturn

import attrs

from dew.data import errors
from dew.data.errors import DewDataError, WorkerError
from dew.tokens.part import discard_unfinished
from dew.tokens.prepare.receipts import Receipt
from dew.tokens.prepare.task import Setting

_MAIN: Final = "import sys; sys.path[:] = {path!r}; from dew.tokens.prepare.workers import serve; serve()"

# One thread for the tokenizer: a worker for each core costs less CPU a byte than threads do.
_ENVIRONMENT: Final = {
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_REPORT_SECONDS: Final = 0.2
_LEAVE_SECONDS: Final = 0.7  # for a file that is being written, until a worker ends in the middle of what it does
_END_SECONDS: Final = 3.0


@attrs.frozen
class Advance:
    """What a worker has done since it last said so; `receipt` when that ends a task."""

    documents: int = 0
    text_bytes: int = 0
    tokens: int = 0
    receipt: Receipt | None = None


@attrs.frozen
class _Failed:
    """An exception on its way to the parent."""

    kind: str
    message: str
    text: str

    def error(self) -> DewDataError:
        """The error again; one that Dew did not raise on purpose shows the worker's traceback."""
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, DewDataError) and kind is not errors.PositionMismatchError:
            return kind(self.message)
        error = WorkerError(f"a worker process failed: {self.kind}: {self.message}")
        error.__cause__ = RuntimeError(f"\n\n{self.text}")
        return error


@attrs.frozen
class _Ended:
    """A worker's pipe has ended."""


def run_in_workers(
    setting: Setting, tasks: Iterable[int], workers: int, advanced: Callable[[int, Advance], None]
) -> None:
    """Does `tasks` in processes, each the next one that is left; `advanced(task, what)` is called in this thread.

    Raises:
        DewDataError: what a worker raised, or `WorkerError` when one ended; all of them have ended by then.
    """
    waiting = list(tasks)[::-1]
    messages: queue.SimpleQueue[tuple[_Worker, Any]] = queue.SimpleQueue()
    started: list[_Worker] = []
    try:
        for number in range(min(workers, len(waiting))):
            started.append(_Worker(number, setting, messages))
        for worker in started:
            worker.give(waiting.pop())
        busy = len(started)
        while busy:
            worker, message = messages.get()
            if isinstance(message, _Failed):
                raise message.error()
            if isinstance(message, _Ended):
                raise worker.lost()
            assert worker.task is not None
            advanced(worker.task, message)
            if message.receipt is not None:
                if waiting:
                    worker.give(waiting.pop())
                else:
                    worker.task = None
                    busy -= 1
    finally:
        _end(started)


class _Worker:
    """The parent's end of one worker."""

    def __init__(self, number: int, setting: Setting, messages: "queue.SimpleQueue[tuple[_Worker, Any]]") -> None:
        self.task: int | None = None
        self._number = number
        path = [entry for entry in sys.path if isinstance(entry, str)]  # pyright: ignore[reportUnnecessaryIsInstance]
        try:
            self._process = subprocess.Popen(
                [sys.executable, *(f"-W{option}" for option in sys.warnoptions), "-c", _MAIN.format(path=path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **_ENVIRONMENT},
                process_group=0,  # Ctrl-C in the terminal goes to the parent, which ends its workers
            )
        except OSError as error:
            raise WorkerError(
                f"worker process {number} could not be started with the interpreter {sys.executable!r}: {error}; "
                "use fewer workers"
            ) from error
        self._send(setting)
        self._thread = threading.Thread(target=self._listen, args=(messages,), name="dew-tokenize", daemon=True)
        self._thread.start()

    def give(self, task: int) -> None:
        """The next task."""
        self.task = task
        self._send(task)

    def lost(self) -> WorkerError:
        """The error for a worker that ended without a word."""
        code = self._process.wait()
        with contextlib.suppress(ValueError):
            name = f" ({signal.Signals(-code).name})" if code < 0 else ""
            hint = "; out of memory is the usual reason: use fewer workers" if code == -signal.SIGKILL else ""
            return WorkerError(
                f"worker process {self._number} ended with exit code {code}{name} in task {self.task}{hint}; what is "
                "finished is kept, run the same again to go on"
            )
        return WorkerError(f"worker process {self._number} ended with exit code {code} in task {self.task}")

    def leave(self) -> None:
        """Tells the worker to end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def wait(self, deadline: float) -> None:
        """Waits for the end, and makes it come."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _send(self, value: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died already; its pipe says so
            pickle.dump(value, self._process.stdin)
            self._process.stdin.flush()

    def _listen(self, messages: "queue.SimpleQueue[tuple[_Worker, Any]]") -> None:
        assert self._process.stdout is not None
        try:
            while True:
                messages.put((self, pickle.load(self._process.stdout)))
        except (EOFError, OSError, pickle.UnpicklingError):
            messages.put((self, _Ended()))


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.leave()
    deadline = time.monotonic() + _END_SECONDS
    for worker in workers:
        worker.wait(deadline)


class _ToldToEnd(BaseException):
    """The worker ends as soon as it gets here."""


class _Reporter:
    """The worker's way of saying how far it is: now and then, since each message costs."""

    def __init__(self, send: Callable[[Advance], None], told_to_end: threading.Event) -> None:
        self._send = send
        self._told_to_end = told_to_end
        self._counts = [0, 0, 0]
        self._last = time.monotonic()

    def add(self, documents: int, text_bytes: int, tokens: int) -> None:
        """Counts, and perhaps says so."""
        if self._told_to_end.is_set():
            raise _ToldToEnd
        for at, count in enumerate((documents, text_bytes, tokens)):
            self._counts[at] += count
        if time.monotonic() - self._last > _REPORT_SECONDS:
            self.report()

    def report(self, receipt: Receipt | None = None) -> None:
        """Says what was counted."""
        documents, text_bytes, tokens = self._counts
        self._send(Advance(documents, text_bytes, tokens, receipt))
        self._counts = [0, 0, 0]
        self._last = time.monotonic()


def serve() -> NoReturn:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not come between the answers
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    told_to_end = threading.Event()
    threading.Thread(target=_listen, args=(orders, tasks, told_to_end), daemon=True).start()

    def send(message: object) -> None:
        pickle.dump(message, answers)
        answers.flush()

    try:
        job = tasks.get().job()
        reporter = _Reporter(send, told_to_end)
        while True:
            task = tasks.get()
            if task is None:
                raise _ToldToEnd
            reporter.report(job.run(task, reporter.add))
    except (BrokenPipeError, _ToldToEnd):
        _leave(0)
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        with contextlib.suppress(OSError):
            send(_Failed(type(error).__name__, str(error), text))
    _leave(1)


def _listen(orders: BinaryIO, tasks: "queue.SimpleQueue[Any]", told_to_end: threading.Event) -> None:
    """Takes orders; their end is that of the parent, or its word that all is done."""
    with contextlib.suppress(Exception):
        while True:
            tasks.put(pickle.load(orders))
    told_to_end.set()
    tasks.put(None)
    time.sleep(_LEAVE_SECONDS)  # the main thread is rather in the middle of a text than of a file then
    _leave(0)


def _leave(code: int) -> NoReturn:
    discard_unfinished()
    os._exit(code)  # the interpreter's own shut-down could wait for a library's thread
