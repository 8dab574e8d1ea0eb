"""Batches on their devices before the step asks for them.

The position of the whole is that of the last batch DELIVERED, whatever was placed ahead: each batch travels with the
state behind it. Nothing polls: the thread and the queues are those of `dew.data.loading`.

The one idea: at any time one thread owns the source, and it is the only one that reads and places. As a rule that is a
thread of the prefetch. Batches that are placed faster than they could be handed over, as tokens are, the consumer
places itself, and is the owner meanwhile; but only where nobody can tell the difference: the source must hold nothing
that belongs to a thread (a database connection, a lock, a context), and no context manager of JAX may be active.
"""

import contextvars
import copy
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Self

from dew.data import checks, metrics
from dew.data.dataset import Batch
from dew.data.errors import OptionsTypeError, StreamClosedError
from dew.data.loading import ReadAheadFeed
from dew.data.source import describe
from dew.data.step import StepStoppedError
from dew.data.stepstream import StepStream
from dew.data.stream import RecordStream


def identity(batch: Any) -> Any:
    """The batch as it is, for a prefetch that only reads ahead."""
    return batch


class DevicePrefetch(Iterator[Any]):
    """Reads `iterator` and places its batches ahead, in a thread of its own.

    Nothing starts before the first `next`. Batches that were placed before an error are delivered before
    it; the error is then raised by every later `next`. A prefetch is a context manager, belongs to one consumer, and
    ends when it is dropped. It owns its source: read, move and close the source through the prefetch only.

    `place` always runs as in a new thread, where JAX's context managers of the consumer (`jax.default_device`, ...) do
    not reach: name the mesh or sharding in it. Where eight batches in a row took less than 0.1 ms each, `next` reads
    and places them itself, until one takes more than 1 ms.

    Args:
        iterator: where batches come from; a record stream, or any iterator.
        place: puts one batch on the devices, such as `lambda batch: shard_batch(mesh, batch)`.
        depth: batches placed ahead, at least 1; each takes its memory on the devices.
        any_thread: whether `next` may read the source itself. By default for streams of Dew and for iterators over
            lists and tuples, which hold nothing that belongs to a thread; any other is read by one thread to its end.

    Attributes:
        counts: what was handed out so far; `dew.data.metrics` adds up those of all streams.

    Raises:
        OptionsTypeError: `iterator` is not an iterator, or `place` cannot be called.
    """

    def __init__(
        self,
        iterator: Iterator[Any],
        place: Callable[[Any], Any] = identity,
        depth: int = 2,
        *,
        any_thread: bool | None = None,
    ) -> None:
        if not callable(getattr(iterator, "__next__", None)):
            raise OptionsTypeError(
                f"DevicePrefetch reads an iterator, got {type(iterator).__name__}; pass iter(...) of it, or a stream"
            )
        if not callable(place):
            raise OptionsTypeError(f"place must be a function of a batch, got {place!r}")
        self._depth = checks.check_count("depth", depth)
        self._source: Any = iterator
        free = isinstance(iterator, _FREE) if any_thread is None else any_thread
        self._end = _End(_Reading(iterator, place), inline=free)
        self._last: Any = None  # the state behind the last batch delivered; of the source itself before any was read
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._closed = False
        self._unsure = False  # batches were taken from the source that will not be delivered
        self.counts = metrics.Counts(metrics.PREFETCH)
        # Runs when the prefetch is dropped, and at interpreter exit while the devices are still there.
        self._finalizer = weakref.finalize(self, self._end.run)

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DevicePrefetch({describe(self._source)}, depth={self._depth}, delivered={self.delivered})"

    def close(self) -> None:
        """Ends the thread and closes the source, from any state and any thread; idempotent.

        A source or `place` that still blocks after five seconds is named in a warning. Streams of Dew are told to stop
        at once; another source is closed by the thread when its read returns.
        """
        self._closed = True
        self._end.run()

    def __next__(self) -> Any:
        self._check_usable()
        feed = self._feed()
        self._unsure = True  # a Ctrl-C from here on may lose the batch that is on its way
        asked = time.perf_counter()
        try:
            item = feed.get(self.counts.steps)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._unsure = False
            if self._closed or isinstance(error, StepStoppedError):
                cause = None if isinstance(error, StepStoppedError) else error
                raise StreamClosedError("the prefetch was closed while a batch was being read") from cause
            self._error, self._traceback = error, error.__traceback__
            self.counts.errors += not isinstance(error, StopIteration)
            raise
        finally:
            self.counts.wait_seconds += time.perf_counter() - asked
        self._last = item["state"]
        self.counts.steps += 1
        self._unsure = False
        return item["batch"]

    @property
    def delivered(self) -> int:
        """Batches that `next` returned."""
        return self.counts.steps

    @property
    def waited(self) -> float:
        """Seconds that `next` waited for a batch, in all."""
        return self.counts.wait_seconds

    @property
    def get_state(self) -> Callable[[], Any]:
        """`get_state()`: the source's state behind the last batch delivered; absent where the source has none."""
        _ = self._source.get_state
        return self._get_state

    @property
    def set_state(self) -> Callable[..., None]:
        """`set_state(state, accept=())`: goes on from there, before or after reading, and after an error.

        What was placed ahead is dropped; a batch that is being read is waited for. Absent where the source has none;
        `accept` is passed on to a source that knows it.
        """
        _ = self._source.set_state
        return self._set_state

    def _get_state(self) -> Any:
        return self._source.get_state() if self._end.feed is None and not self._unsure else self._last

    def _set_state(self, state: Any, accept: Iterable[str] = ()) -> None:
        if self._closed:
            raise _closed()
        self._stop_reading()
        if accept:
            self._source.set_state(state, accept)
        else:
            self._source.set_state(state)
        self._error, self._unsure = None, False

    def _check_usable(self) -> None:
        if self._closed:
            raise _closed()
        if self._error is not None:
            raise self._error.with_traceback(self._traceback)

    def _feed(self) -> ReadAheadFeed:
        if self._unsure:
            self._rewind()
        feed = self._end.feed
        if feed is None:
            if hasattr(self._source, "get_state"):
                self._last = _snapshot(self._source)
            self.counts.begin(self, self._source)
            feed = self._end.open(self._depth)
            if self._closed:  # by another thread, meanwhile
                self._end.run()
                raise _closed()
        return feed

    def _rewind(self) -> None:
        """After a Ctrl-C or a refused `set_state`: back to the last batch delivered."""
        if not (hasattr(self._source, "get_state") and hasattr(self._source, "set_state")):
            self._error = StreamClosedError(
                f"next() was interrupted and a batch may be lost: {describe(self._source)} lacks get_state() or "
                "set_state(), by which to go back to it; make a new iterator"
            )
            raise self._error
        self._stop_reading()
        self._source.set_state(self._last)
        self._unsure = False

    def _stop_reading(self) -> None:
        if self._end.feed is not None:
            self._unsure = True
            self._end.pause()


def _closed() -> StreamClosedError:
    return StreamClosedError("this prefetch was closed; make a new one over a new stream")


def _snapshot(source: Any) -> Any:
    """The source's state as it is now; an iterator of somebody's own may hand out one that it goes on changing."""
    state = source.get_state()
    return state if isinstance(source, RecordStream) else copy.deepcopy(state)


_FREE: Final = (StepStream, DevicePrefetch, type(iter([])), type(iter(())))
"""Iterators that hold nothing that belongs to a thread."""


class _Reading:
    """The `Steps` of a feed: each is the next batch of the source, placed, and the state behind it."""

    def __init__(self, source: Any, place: Callable[[Any], Any]) -> None:
        self._source = source
        self._place = place
        self._has_state = hasattr(source, "get_state")
        self._context = contextvars.Context()  # empty, as that of a new thread
        self._jax_context: Any = None  # as in the feed's own thread
        self.busy = threading.Lock()  # held while a batch is read or placed, and while the source is closed
        self.paused = False
        self.ending = False
        self._released = False

    def __str__(self) -> str:
        return f"DevicePrefetch over {describe(self._source)}"

    def __call__(self, step: int) -> Batch:
        """The next batch; StopIteration at the source's end."""
        with self.busy:
            if self.paused or self.ending:
                raise StepStoppedError
            if self._jax_context is None:
                self._jax_context = _jax_context()  # the feed's own thread builds its first steps
            return self._context.run(self._next, step)

    def is_the_same_here(self) -> bool:
        """Whether this thread gives `place` the same surroundings as the feed's own."""
        return self._jax_context is not None and _jax_context() == self._jax_context

    def stop(self) -> None:
        """Only streams of our own can be closed while another thread reads them."""
        if self.ending and isinstance(self._source, StepStream | DevicePrefetch):
            self._source.close()

    def close(self) -> None:
        """Closes the source once no batch is being read; where one is, the thread that reads it does so after it."""
        if not self.ending or not self.busy.acquire(blocking=False):
            return
        try:
            if not self._released:
                self._released = True
                getattr(self._source, "close", _nothing)()
        finally:
            self.busy.release()

    def _next(self, step: int) -> Batch:
        batch = next(self._source)
        state = _snapshot(self._source) if self._has_state else None
        try:
            return {"batch": self._place(batch), "state": state}
        except StopIteration as error:  # would look like the end of the data
            raise RuntimeError(f"place raised StopIteration for batch {step} of {self}") from error


def _nothing() -> None:
    """What closing means for an iterator that cannot be closed."""


def _jax_context() -> Any:
    """What JAX's context managers have set in this thread; None if this JAX keeps it elsewhere, it has no public name.

    All guards, too: a user may have forbidden transfers around the step.
    """
    config = sys.modules.get("jax._src.config")
    if config is None:
        return ()  # nobody can have set anything
    try:
        guards = config.guard_lib.thread_local_state()
        return config.trace_context(), guards.host_to_device, guards.device_to_device, guards.device_to_host
    except AttributeError:
        return None


class _End:
    """Owns the feed and ends it; holds no reference to the prefetch, so that dropping the prefetch ends it."""

    def __init__(self, reading: _Reading, *, inline: bool) -> None:
        self.feed: ReadAheadFeed | None = None
        self._reading = reading
        self._inline = reading.is_the_same_here if inline else None
        self._process = os.getpid()

    def open(self, depth: int) -> ReadAheadFeed:
        self._reading.paused = False
        feed = ReadAheadFeed(self._reading, first=0, stop=None, depth=depth, memory=sys.maxsize, inline=self._inline)
        self.feed = feed
        return feed

    def pause(self) -> None:
        """Ends the thread but leaves the source open, once the batch that is being read has come."""
        self._reading.paused = True
        with self._reading.busy:
            feed = self.feed
        if feed is not None:
            feed.close()
            self.feed = None

    def run(self) -> None:
        if os.getpid() != self._process:
            return  # a fork's copy: the source belongs to the parent
        self._reading.ending = True
        if self.feed is not None:
            self.feed.close()
        self._reading.stop()  # where no thread ever read
        self._reading.close()
