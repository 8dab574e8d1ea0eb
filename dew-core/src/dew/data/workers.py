"""Worker processes: each builds every n-th step and hands it over a socket of its own.

A worker is a fresh interpreter that never runs the caller's script again, so scripts need no main guard and may come
from standard input or a notebook. Steps travel over a socket pair, not over named shared memory: when either side dies,
however it dies, the kernel frees what was in flight and the other side reads an end of file at once. A worker that
reads that end of file exits, in the middle of a step too; a parent that does raises `WorkerError` with the exit code.
"""

import contextlib
import fcntl
import io
import marshal
import os
import pickle
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import types
import weakref
from typing import Any, NoReturn

import numpy as np

from dew.data.dataset import Batch
from dew.data.errors import WorkerError
from dew.data.step import LoadStep, StepStoppedError, batch_bytes

_SIZE = struct.Struct("<Q")
_CREDIT = b"+"
_END_SECONDS = 1.0

# The code of a worker: everything else comes over the socket.
_MAIN = "import sys; sys.path[:], sys.argv[:] = {path!r}, {argv!r}; from dew.data.workers import serve; serve({fd})"

# A worker decodes records; it must take neither the accelerator nor more than its share of the cores.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
}

# Options of this interpreter that a worker's must share; -W and -X beside them.
_FLAGS = {
    "dont_write_bytecode": "B",
    "optimize": "O",
    "bytes_warning": "b",
    "isolated": "I",
    "ignore_environment": "E",
    "no_user_site": "s",
    "no_site": "S",
}

# The parent's ends of all sockets. A fork would hold them open, and workers would outlive a parent that is killed.
_parent_ends: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


class WorkerSteps:
    """Steps built by worker processes; the first one is built here, so that its size is known before any is started.

    Args:
        load: builds a step, here and in the workers.
        first, stop: steps `first` to `stop - 1`; without end where `stop` is None.
        workers: processes, never more than there are steps for.
        buffer: steps that each worker builds ahead.
        memory: bytes that all steps built ahead may take; at least one step a worker is.
    """

    def __init__(self, load: LoadStep, *, first: int, stop: int | None, workers: int, buffer: int, memory: int) -> None:
        self._load = load
        self._first = first
        self._stop = stop
        self._count = workers if stop is None else min(workers, stop - first - 1)
        self._buffer = buffer
        self._memory = memory
        self._workers: list[_Worker] = []
        self._stopped = False
        self._lock = threading.RLock()  # reentrant: the garbage collector may close a dropped stream in any thread

    def __str__(self) -> str:
        return f"{self._load} in {self._count} worker processes"

    def __call__(self, step: int) -> Batch:
        """The batch of `step`; raises what building it raised, with the worker's traceback as its cause."""
        if step == self._first:
            batch = self._load(step)
            self._load.close()
            self._start(batch_bytes(batch))
            return batch
        worker = self._workers[(step - self._first - 1) % self._count]
        try:
            built = worker.receive()
        except OSError as error:
            if self._stopped:
                raise StepStoppedError from None
            raise worker.lost(step) from error
        if isinstance(built, _Failure):
            raise built.error()
        return built

    def stop(self) -> None:
        """Ends the workers, whatever they are doing."""
        self._load.stop()
        with self._lock:
            self._stopped = True
            for worker in self._workers:
                worker.end()

    def close(self) -> None:
        """Ends the workers and waits for them."""
        self.stop()
        deadline = time.monotonic() + _END_SECONDS
        for worker in self._workers:
            worker.wait(max(0.0, deadline - time.monotonic()))
        self._load.close()

    def _start(self, step_bytes: int) -> None:
        if not self._count:
            return
        credits = max(1, min(self._buffer, self._memory // max(1, step_bytes * self._count)))
        payload = _pickled(self._load)
        for number in range(self._count):
            with self._lock:
                if self._stopped:
                    raise StepStoppedError
                self._workers.append(_Worker(number))
        # All of them start up side by side, and stop() can end each send.
        for number, worker in enumerate(self._workers):
            first = self._first + 1 + number
            worker.begin(_Task(first=first, every=self._count, stop=self._stop, load=payload), credits)


class _Task:
    """What a worker is told first. The step itself stays pickled, so that failing to load it can be reported."""

    def __init__(self, *, first: int, every: int, stop: int | None, load: bytes) -> None:
        self.first = first
        self.every = every
        self.stop = stop
        self.load = load


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._socket, theirs = map(_above_standard_streams, socket.socketpair())
        _parent_ends.add(self._socket)
        path = [entry for entry in sys.path if isinstance(entry, str)]  # pyright: ignore[reportUnnecessaryIsInstance]
        with theirs:
            main = _MAIN.format(path=path, argv=sys.argv, fd=theirs.fileno())
            try:
                self._process = subprocess.Popen(
                    [sys.executable, *_interpreter_flags(), "-c", main],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **_ENVIRONMENT},
                    process_group=0,  # Ctrl-C in the terminal goes to the parent, which ends its workers
                )
            except OSError as error:
                self._socket.close()
                raise WorkerError(
                    f"worker process {number} could not be started with the interpreter {sys.executable!r}: {error}; "
                    "use fewer workers, or Loading(workers=0)"
                ) from error

    def begin(self, task: _Task, credits: int) -> None:
        with contextlib.suppress(OSError):  # it died already; receive() says so
            _send(self._socket, task)
            self._socket.sendall(_CREDIT * credits)

    def receive(self) -> Any:
        built = _receive(self._socket)
        with contextlib.suppress(OSError):  # it died after this step; the next one says so
            self._socket.sendall(_CREDIT)
        return built

    def end(self) -> None:
        with contextlib.suppress(OSError):  # it died already
            self._socket.shutdown(socket.SHUT_RDWR)

    def wait(self, seconds: float) -> None:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._socket.close()

    def lost(self, step: int) -> WorkerError:
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        how = "closed its connection" if code is None else f"ended with exit code {code}{_signal_name(code)}"
        hint = "; out of memory is the usual reason: lower Loading(workers=, worker_buffer=)" if code == -9 else ""
        return WorkerError(f"worker process {self._number} {how} before it delivered step {step}{hint}")


class _Failure:
    """An exception on its way from a worker, with its traceback as text."""

    def __init__(self, error: BaseException) -> None:
        self._text = "".join(traceback.format_exception(error))
        self._summary = f"{type(error).__qualname__}: {traceback.TracebackException.from_exception(error)}"
        self._notes: list[str] = getattr(error, "__notes__", [])
        self._pickled = _pickled_error(error)

    def error(self) -> BaseException:
        error: BaseException = WorkerError(f"a worker process failed: {self._summary}")
        if self._pickled is not None:
            with contextlib.suppress(Exception):
                error = _error_of(pickle.loads(self._pickled))
        error.__notes__ = self._notes
        error.__cause__ = _WorkerTracebackError(f"\n\n{self._text}")
        return error


class _WorkerTracebackError(Exception):
    """Shows the traceback of the worker process above the error."""


def _pickled_error(error: BaseException) -> bytes | None:
    """The error in the first form that comes back with the same text; None where none does.

    Many classes have an `__init__` that takes other arguments than `args`, and come back from a pickle as another error
    or not at all: these travel as type, `args` and attributes, without attributes that cannot be pickled.
    """
    forms: tuple[Any, ...] = (error, (type(error), error.args, vars(error)), (type(error), error.args, {}))
    for form in forms:
        with contextlib.suppress(Exception):
            pickled = _pickled(form)
            if str(_error_of(pickle.loads(pickled))) == str(error):
                return pickled
    return None


def _error_of(form: Any) -> BaseException:
    if isinstance(form, BaseException):
        return form
    kind, arguments, attributes = form
    error: BaseException = kind.__new__(kind, *arguments)
    vars(error).update(attributes)
    return error


def serve(descriptor: int) -> NoReturn:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=descriptor)
    # Processes that preprocess starts must not hold this end: the parent would not see that the worker died.
    connection.set_inheritable(False)
    os.register_at_fork(after_in_child=connection.close)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # the worker ends by os._exit, at any moment
    try:
        task: _Task = _receive(connection)
        credits = threading.Semaphore(0)
        built: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=_watch, args=(connection, credits), daemon=True).start()
        threading.Thread(target=_send_built, args=(connection, built), daemon=True).start()
        _build(task, credits, built)
    except OSError:
        os._exit(0)  # the parent is gone
    except BaseException:
        traceback.print_exc()
    os._exit(1)  # the interpreter's own shut-down could be blocked by a library's thread


def _build(task: _Task, credits: threading.Semaphore, built: "queue.SimpleQueue[Any]") -> None:
    """Builds as many steps ahead as there are credits; the sender thread sends one while the next is built."""
    step = task.first
    try:
        load = _loaded(task.load)
        while task.stop is None or step < task.stop:
            credits.acquire()
            built.put(load(step))
            step += task.every
    except BaseException as error:
        built.put(_Failure(error))
    threading.Event().wait()  # the parent ends this process


def _loaded(payload: bytes) -> LoadStep:
    try:
        return pickle.loads(payload)
    except BaseException as error:
        error.add_note(
            "a worker process could not load the source or preprocess: what they need must be importable there, "
            "by the sys.path of this process; or use Loading(workers=0)"
        )
        raise


def _send_built(connection: socket.socket, built: "queue.SimpleQueue[Any]") -> None:
    while True:
        step = built.get()
        try:
            _send(connection, step)
        except OSError:
            _end()  # the parent is gone
        except BaseException as error:  # nothing was sent: it failed while the step was pickled
            _send(connection, _Failure(error))
        del step  # else it would stay alive while this thread waits


def _watch(connection: socket.socket, credits: threading.Semaphore) -> None:
    """Takes credits; the end of file means that the parent closed the stream or died."""
    try:
        while received := connection.recv(64):
            credits.release(len(received))
    except OSError:
        pass
    _end()


def _end() -> NoReturn:
    """Ends this process, and those that preprocess started in its group.

    By SIGTERM, which spares multiprocessing's resource tracker: it frees what preprocess shared.
    """
    with contextlib.suppress(OSError):
        os.killpg(0, signal.SIGTERM)
    os._exit(0)


def _above_standard_streams(end: socket.socket) -> socket.socket:
    """The socket under a number of 3 or more: where a program has closed its output, a worker would print into it."""
    if end.fileno() > 2:
        return end
    with end:
        return socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def _send(connection: socket.socket, value: object) -> None:
    """Array buffers travel outside the pickle, without a copy."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    sizes = [len(head), *(len(view) for view in raw)]
    connection.sendall(_SIZE.pack(len(raw)) + b"".join(map(_SIZE.pack, sizes)) + head)
    for view in raw:
        connection.sendall(view)


def _receive(connection: socket.socket) -> Any:
    (count,) = _SIZE.unpack(_exactly(connection, _SIZE.size))
    sizes = [_SIZE.unpack(_exactly(connection, _SIZE.size))[0] for _ in range(count + 1)]
    head = _exactly(connection, sizes[0])
    return pickle.loads(head, buffers=[_exactly(connection, size) for size in sizes[1:]])


def _exactly(connection: socket.socket, size: int) -> memoryview:
    # Not zero-filled, as a bytearray would be: each byte is written once, by the kernel.
    view = memoryview(np.empty(size, np.uint8))  # pyright: ignore[reportArgumentType]
    filled = 0
    while filled < size:
        got = connection.recv_into(view[filled:])
        if not got:
            raise ConnectionResetError("end of file")
        filled += got
    return view


def _pickled(value: object) -> bytes:
    """`value` with functions of the caller's script, and lambdas, by value."""
    import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

    class Pickler(cloudpickle.Pickler):
        """Keeps the file names of functions, for tracebacks; cloudpickle's own way drops them."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, types.CodeType):
                return marshal.loads, (marshal.dumps(obj),)
            return super().reducer_override(obj)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    script = sys.modules.get("__mp_main__")  # what multiprocessing calls the script in processes that it started
    if script is not None:
        cloudpickle.register_pickle_by_value(script)  # pyright: ignore[reportUnknownMemberType]
    buffer = io.BytesIO()
    try:
        Pickler(buffer).dump(value)  # pyright: ignore[reportUnknownMemberType]
        return buffer.getvalue()
    except Exception as error:
        error.add_note(
            "worker processes get the source and preprocess by pickling them; "
            "move what cannot be pickled into a module, or use Loading(workers=0)"
        )
        raise


def _interpreter_flags() -> list[str]:
    flags = [f"-W{option}" for option in sys.warnoptions]
    flags += [f"-X{key}" if value is True else f"-X{key}={value}" for key, value in sys._xoptions.items()]  # pyright: ignore[reportPrivateUsage]
    counts = {letter: int(getattr(sys.flags, name)) for name, letter in _FLAGS.items()}
    return flags + [f"-{letter * count}" for letter, count in counts.items() if count]


def _close_parent_ends() -> None:
    for end in list(_parent_ends):
        end.close()


os.register_at_fork(after_in_child=_close_parent_ends)


def _signal_name(code: int) -> str:
    try:
        return f" ({signal.Signals(-code).name})" if code < 0 else ""
    except ValueError:
        return ""
