"""What processes tell each other between collectives: that one has failed, and where all of them stop.

The one idea: words travel beside the devices, through the key-value store of JAX's coordination service, so that a
process can be told while it computes, and nobody enters a collective that another will not. A run passes borders: each
process counts them, at the same points. When one was asked to stop, all hold still at a border, tell how many they have
passed, and stop at the highest number; until somebody asks, a border costs nothing.

JAX has a point of this kind (`multihost_utils.reached_preemption_sync_point`). It remembers the last step that it was
told, and Orbax tells it an older one from a thread of its own when a checkpoint is whole; a signal just then lets
processes agree on a step that one of them has passed. So borders are counted here.
"""

# JAX leaves parts of its own signatures untyped, and its client has no public name.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
# pyright: reportUnknownArgumentType=false

import contextlib
import itertools
import logging
import os
import signal
import socket
import threading
import traceback
from types import FrameType, TracebackType
from typing import Any, Final, Self

import jax

from dew.data.errors import PoolError

PREEMPTED: Final = 75
"""Exit code of a run that was stopped by SIGTERM: EX_TEMPFAIL of sysexits.h, "try again later"."""

STUCK: Final = 5.0
"""Seconds that a process may stay inside a collective after another one failed."""

_STOP: Final = "stop"
_OVER: Final = "over"
_FAILED: Final = "failed "
_FOREVER: Final = 2**31 - 1  # milliseconds that a read of the store may take; it is asked again then
_LONGEST: Final = 2000  # characters of an error that travel
_LEAVING: Final = 5.0  # seconds for saying goodbye to the coordinator

_LOG = logging.getLogger("dew.training")
_numbers = itertools.count()  # each watch has keys of its own; every process makes the same ones in the same order


class Preempted(SystemExit):
    """The run was stopped by SIGTERM, with the exit code `PREEMPTED`; further ones are ignored until the process ends.

    Attributes:
        step: steps taken, the same on every process.
        saved: whether a checkpoint of that step is there.
    """

    def __init__(self, step: int, *, saved: bool) -> None:
        super().__init__(PREEMPTED)
        self.step = step
        self.saved = saved


class Watch:
    """Watches over one run of this process, as a context manager that all processes of the pool enter together.

    While it is open, SIGTERM asks for a stop, if Python's main thread opened it. An error that leaves the block is
    published. A process that is still in the block `STUCK` seconds after another one failed is ended with exit code 1,
    since it is waiting in a collective that will never be complete.
    """

    def __init__(self) -> None:
        self._client = _client()
        self._prefix = f"dew/watch/{next(_numbers)}"
        self._lock = threading.Lock()  # held while a border is passed, and while all hold still
        self._passed = 0
        self._told_passed = False
        self._stop_at: int | None = None
        self._asked = False
        self._told_stop = False
        self._failure: str | None = None
        self._noticed = threading.Event()
        self._left = threading.Event()
        self._thread: threading.Thread | None = None
        self._previous: Any = None

    def __enter__(self) -> Self:
        if self._client is not None:
            self._thread = threading.Thread(target=self._listen, name="dew-watch", daemon=True)
            self._thread.start()
        # In a pool without the store nobody could be told, so SIGTERM keeps what it does.
        reachable = self._client is not None or jax.process_count() == 1
        if reachable and threading.current_thread() is threading.main_thread():
            found = signal.getsignal(signal.SIGTERM)
            if found is not signal.SIG_IGN:
                self._previous = signal.signal(signal.SIGTERM, self._ask)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None and not isinstance(error, Preempted):
            self._publish(error)
        self._left.set()
        if self._client is not None:
            with self._lock:
                self._tell_passed()
            self._post(jax.process_index(), _OVER)
        if self._thread is not None:
            self._thread.join(_LEAVING)
        if self._previous is None:
            return
        if isinstance(error, Preempted):
            _ignore_sigterm()
        else:
            signal.signal(signal.SIGTERM, self._previous)

    def border(self) -> bool:
        """Whether every process stops here; each calls it at the same points, before what all do together.

        Raises:
            PoolError: another process failed; names it, its host and its error.
        """
        self.check()
        if self._asked and not self._told_stop:
            self._told_stop = True
            if self._client is None:
                self._stop_at = self._passed
            for process in range(jax.process_count()):
                self._post(process, _STOP)
        with self._lock:
            if self._passed == self._stop_at:
                return True
            self._passed += 1
            return False

    def check(self) -> None:
        """Raises PoolError if another process failed."""
        if self._noticed.is_set():
            raise self._pool_error()

    def failed(self, error: BaseException) -> PoolError | None:
        """Publishes an error of this process, and returns when none of its computations waits for another process.

        They may wait for ever, in a collective that the others will not enter any more; then the process ends here,
        with exit code 1, after `STUCK` seconds.

        Returns:
            What to raise instead, where `error` is only how another process's failure shows here.
        """
        if self._client is None or isinstance(error, Preempted):
            return None
        instead: PoolError | None = None
        if isinstance(error, jax.errors.JaxRuntimeError):
            if self._noticed.wait(1.0):  # a process that fails says so before it goes
                instead = self._pool_error()
            else:
                error.add_note("if another process of the pool was killed, this is how it shows; see their logs")
        self._publish(error)
        timer = threading.Timer(STUCK, self._end_process, [error])
        timer.daemon = True
        timer.start()
        _settle()
        timer.cancel()
        return instead

    def _publish(self, error: BaseException) -> None:
        """Tells all others that this process failed; once, and not if it was told by another."""
        if self._failure is not None:
            return
        cause = f"{type(error).__name__}: {error}"[:_LONGEST]
        self._failure = f"process {jax.process_index()} on {socket.gethostname()} failed: {cause}"
        for process in range(jax.process_count()):
            if process != jax.process_index():
                self._post(process, _FAILED + self._failure)

    def _pool_error(self) -> PoolError:
        return PoolError(f"{self._failure}; so the run was ended in every process")

    def _ask(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGTERM; it only takes note, since it may run in the middle of anything."""
        self._asked = True

    def _listen(self) -> None:
        """The thread: reads this process's words as they come."""
        for number in itertools.count():
            word = self._read(f"{jax.process_index()}/{number}")
            if word == _STOP:
                self._agree()
            elif word is not None and word.startswith(_FAILED):
                self._end_with(word.removeprefix(_FAILED))
                return
            else:
                return

    def _agree(self) -> None:
        """All hold still, and the border that the foremost has reached becomes the last."""
        with self._lock:
            if self._stop_at is not None:  # a second process was asked too
                return
            self._tell_passed()
            told = [self._read(f"passed/{process}") for process in range(jax.process_count())]
            if None not in told:
                self._stop_at = max(int(each) for each in told if each is not None)

    def _tell_passed(self) -> None:
        if not self._told_passed:
            self._told_passed = True
            self._write(f"passed/{jax.process_index()}", str(self._passed))

    def _end_with(self, failure: str) -> None:
        """Another process failed: the main thread raises at its next border, or the process ends here."""
        self._failure = self._failure or failure
        self._noticed.set()
        _LOG.error("%s", failure)
        if not self._left.wait(STUCK):
            self._end_process(None)

    def _end_process(self, error: BaseException | None) -> None:
        """Ends a process that waits in a collective which will never be complete."""
        shown = "".join(traceback.format_exception(error)) if error is not None else ""
        said = f"{shown}dew: {self._failure}; this process still waited for others after {STUCK:g} s, and ends\n"
        os.write(2, said.encode(errors="replace"))
        self._leave_pool()
        os._exit(1)

    def _leave_pool(self) -> None:
        """Goodbye to the coordinator, so that the others, who wait for everybody's at their exit, need not wait."""
        thread = threading.Thread(target=self._client.shutdown, daemon=True)
        thread.start()
        thread.join(_LEAVING)

    def _post(self, process: int, word: str) -> None:
        """Adds a word to those of `process`."""
        for number in itertools.count():
            if self._write(f"{process}/{number}", word):
                return

    def _write(self, key: str, value: str) -> bool:
        """False where somebody wrote there before; True, too, where the coordinator has gone."""
        if self._client is None:
            return True
        try:
            self._client.key_value_set(f"{self._prefix}/{key}", value)
        except jax.errors.JaxRuntimeError as error:
            return "ALREADY_EXISTS" not in str(error)
        return True

    def _read(self, key: str) -> str | None:
        """What stands there, as soon as it does; None where the coordinator has gone."""
        while True:
            try:
                return self._client.blocking_key_value_get(f"{self._prefix}/{key}", _FOREVER)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    return None


def _ignore_sigterm() -> None:
    """A process on its way out must not die of another SIGTERM, with another exit code.

    JAX's own notice of preemption would bring back the default handler, before it waits for the other processes.
    """
    state = _jax_state()
    notice: Any = getattr(state, "preemption_sync_manager", None)
    if notice is not None:
        notice.shutdown()
        state.preemption_sync_manager = notice = None  # its end resets the handler
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _settle() -> None:
    """Until everything that was dispatched has been computed, or has failed."""
    for array in jax.live_arrays():
        with contextlib.suppress(Exception):  # deleted meanwhile, or the failure that is being handled
            array.block_until_ready()


def _client() -> Any:
    """JAX's client of the coordination service; None without a pool, or where JAX keeps it elsewhere."""
    return getattr(_jax_state(), "client", None) if jax.process_count() > 1 else None


def _jax_state() -> Any:
    """Where JAX keeps what belongs to the pool; it has no public name."""
    try:
        from jax._src import distributed
    except ImportError:
        return None
    return getattr(distributed, "global_state", None)
