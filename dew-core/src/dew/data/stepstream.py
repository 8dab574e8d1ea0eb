"""What training and validation streams share: delivery in order, latched errors, a life that ends."""

import abc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from time import perf_counter
from types import TracebackType
from typing import ClassVar, NoReturn, Self

from dew.data import metrics
from dew.data.dataset import Batch
from dew.data.errors import OptionsTypeError, SourceError, StreamBusyError, StreamClosedError
from dew.data.loading import Feed, Loading, open_feed
from dew.data.step import LoadStep, StepStoppedError


class StepStream(Iterator[Batch]):
    """What training and validation streams share: delivery in order, latched errors, a life that ends.

    After one failed step every later `next` raises the same error. Streams are context managers; `close()` is
    idempotent. A stream belongs to the process that made it and to one consumer at a time.

    Attributes:
        counts: what was handed out so far; `dew.data.metrics` adds up those of all streams.
        kind: `"train"` or `"validation"`, as the metrics call it.
    """

    kind: ClassVar[str] = metrics.TRAIN

    def __init__(self, loading: Loading) -> None:
        self._loading = loading
        self.counts = metrics.Counts(self.kind)
        self._feed: Feed | None = None
        self._feed_step: int | None = None
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._closed = False
        self._step = 0
        self._stop: int | None = None
        self._turn = threading.RLock()  # reentrant: a signal handler may close or read the stream in its own thread
        self._process = os.getpid()
        self._end = _End()
        # Runs when the stream is dropped, and at interpreter exit before modules are torn down.
        self._finalizer = weakref.finalize(self, self._end.run)

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends threads and worker processes and closes what this stream opened, within five seconds; idempotent."""
        self._closed = True
        self._drop_feed()

    def start_prefetch(self) -> None:
        """Begins to read ahead now, and not with the first `next`; Grain's checkpoint handler calls it after a restore.

        With `read_buffer=0` nothing is ever read ahead, and nothing begins.
        """
        self._check_usable()
        with self._turn:
            begun = self._feed is not None and self._feed_step == self._step
            if not begun and (self._stop is None or self._step < self._stop):
                self._open(self._step, self._stop, self._load_step()).start()
                self._feed_step = self._step

    def __next__(self) -> Batch:
        if self._closed or self._error is not None or os.getpid() != self._process:
            self._check_usable()
        if not self._turn.acquire(blocking=False):
            raise StreamBusyError(
                "this stream is being read by another thread, and belongs to one consumer at a time; "
                "make a stream of its own for each thread, or let one thread hand the batches out"
            )
        try:
            if metrics.every and self.counts.steps % metrics.every == 0:
                self.counts.log(self)
            asked = perf_counter()
            batch = self._take(self._step, self._stop, self._load_step)
        finally:
            self._turn.release()
        self.counts.delivered(batch, perf_counter() - asked)
        self._step += 1  # not earlier: a Ctrl-C before this line has the step read again
        return batch

    def __reduce__(self) -> NoReturn:
        raise OptionsTypeError(
            f"a {type(self).__name__} cannot be copied or pickled: it owns threads and files; make another one "
            "from the dataset, and carry the position by get_state() and set_state()"
        )

    @abc.abstractmethod
    def _load_step(self) -> LoadStep:
        """Builds the steps of this stream."""

    def _take(self, step: int, stop: int | None, make: Callable[[], LoadStep]) -> Batch:
        """The batch of `step`, from the feed that is there or one that `make` starts; the end at step `stop`."""
        if stop is not None and step >= stop:
            self._drop_feed()
            raise StopIteration
        feed = self._feed
        if feed is None or self._feed_step != step:
            feed = self._open(step, stop, make())
        # Not set while a step is on its way: a Ctrl-C may lose it, and a feed that lost a step is not asked again.
        self._feed_step = None
        try:
            batch = feed.get(step)
        except KeyboardInterrupt:
            raise  # the consumer's own doing: the step was not delivered and can be asked for again
        except BaseException as error:
            self._refuse_if_closed(error)
            latched = self._latch(error)
            if latched is error:
                raise
            raise latched from error
        self._feed_step = step + 1
        return batch

    def _check_usable(self) -> None:
        if self._closed:
            raise StreamClosedError("this stream was closed; make a new one from the dataset")
        if self._error is not None:
            raise self._error.with_traceback(self._traceback)
        if os.getpid() != self._process:
            raise StreamClosedError(
                f"this stream belongs to process {self._process} and was carried into process {os.getpid()} by a fork; "
                "make a stream of its own in each process"
            )

    def _refuse_if_closed(self, error: BaseException | None) -> None:
        if (self._closed and isinstance(error, Exception | None)) or isinstance(error, StepStoppedError):
            cause = None if isinstance(error, StepStoppedError) else error
            raise StreamClosedError("the stream was closed while a batch was being read") from cause

    def _open(self, step: int, stop: int | None, load: LoadStep) -> Feed:
        self._drop_feed()
        self.counts.begin(self, self)
        picked = self._loading.picked(whole_steps=load.builds_whole_steps)
        feed = open_feed(load.with_threads(picked.threads), first=step, stop=stop, loading=self._loading, picked=picked)
        self._end.feed = self._feed = feed
        if self._closed:  # by another thread, meanwhile
            self._drop_feed()
            self._refuse_if_closed(None)
        return feed

    def _restart(self) -> None:
        """Forgets what was read ahead, and the error: the stream goes on from a position that was set."""
        self._drop_feed()
        self._error = None
        self.counts.restarts += 1

    def _drop_feed(self) -> None:
        self._feed = None
        self._end.run()

    def _latch(self, error: BaseException) -> BaseException:
        if isinstance(error, StopIteration | StopAsyncIteration | GeneratorExit):
            # Any of these would look like the end of the data to the loop that reads the stream.
            notes = getattr(error, "__notes__", ())
            error = SourceError(f"the source or preprocess raised {type(error).__name__} while a step was read")
            for note in notes:
                error.add_note(note)
        self._error, self._traceback = error, error.__traceback__
        self.counts.errors += 1
        try:
            self._drop_feed()
        except Exception as closing:  # must not take the place of the first error
            error.add_note(f"closing the source then failed too: {closing!r}")
        return error


class _End:
    """Closes a stream's feed; holds no reference to the stream, so that dropping the stream ends it."""

    def __init__(self) -> None:
        self.feed: Feed | None = None
        self._process = os.getpid()

    def run(self) -> None:
        feed = self.feed
        if feed is not None and os.getpid() == self._process:
            feed.close()
            self.feed = None  # not earlier: a close that a Ctrl-C cut short is done again at exit
