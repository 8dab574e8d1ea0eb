"""The steps of one run, once it is known from where and to where.

The one idea: everything that processes do together happens at a number that all of them know. The checkpoint of step k
holds the position behind the batch of step k - 1, never that of a batch that was only read ahead.
"""

# JAX leaves parts of its own signatures untyped.
# pyright: reportUnknownMemberType=false

import logging
import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NoReturn, TypeAlias, cast

import attrs
import jax

from dew.data.dataset import DataPartition
from dew.data.errors import OptionsTypeError, SourceError
from dew.training.accumulate import check_mass
from dew.training.agreement import exchange
from dew.training.checkpoints import Checkpoints
from dew.training.prefetch import DevicePrefetch
from dew.training.progress import Bar, Meter
from dew.training.validation import Validation, number_of
from dew.training.watch import Preempted, Watch

Step: TypeAlias = Callable[[Any, Any], tuple[Any, Mapping[str, Any]]]
"""`(state, batch) -> (state, metrics)`: one step, usually jitted; metrics are scalars by name."""

Report: TypeAlias = Callable[[int, Mapping[str, float]], None]
"""Called with the number of steps taken, and the metrics of the last of them or those of a validation."""

_MASS: Final = "mass"
_LOG = logging.getLogger("dew.training")


@attrs.frozen(kw_only=True)
class Plan:
    """What one `fit` is asked to do, checked; see `Trainer.fit`."""

    target: int
    checkpoint_every: int | None
    validate_every: int | None
    grace: float
    report: Report | None


@attrs.frozen
class Delivered:
    """A position that was taken from a stream, for `Checkpoints.save`."""

    state: Any
    partition: DataPartition

    def get_state(self) -> Any:
        """The position."""
        return self.state


@attrs.define(kw_only=True, eq=False)
class Loop:
    """Takes steps up to the plan's target.

    Args:
        plan: what is asked for.
        step: the step.
        state: of the model, before step `taken`.
        taken: steps taken so far, counted over the whole run.
        batches: placed batches from step `taken` on.
        even: whether the batches end at the same step in every process, by construction.
        position: of the data, behind the last step taken; None without one.
        checkpoints, validation, watch, bar: of the run.
        saved: the last step that is whole in the checkpoints.
        metrics: the last ones of everything.
    """

    plan: Plan
    step: Step
    state: Any
    taken: int
    batches: DevicePrefetch
    even: bool
    partition: DataPartition
    position: Any
    checkpoints: Checkpoints | None
    validation: Validation | None
    watch: Watch
    bar: Bar
    saved: int | None
    metrics: dict[str, float] = attrs.field(factory=dict[str, float])
    _meter: Meter = attrs.field(factory=Meter, init=False)
    _pending: tuple[int, Mapping[str, Any]] | None = attrs.field(default=None, init=False)

    def run(self) -> None:
        """All steps up to the target, with the checkpoints and validations that are due.

        Raises:
            Preempted: SIGTERM.
            SourceError: the data ended before the target.
            PoolError: another process failed.
        """
        while self.taken < self.plan.target:
            if self.watch.border():
                self._stop()
            self._take(self._next())
            self._save_if_due()
            self._validate_if_due()
        self._show_pending()
        if self.checkpoints is not None:
            self.checkpoints.wait()

    def _next(self) -> Any:
        """The next batch, which every process has."""
        if self.even or jax.process_count() == 1:
            batch = next(self.batches, None)
            ended = [jax.process_index()] if batch is None else []
        else:
            batch, ended = self._next_of_all()
        if ended:
            self._end_early(ended)
        self._meter.begin(self.batches.waited)
        return batch

    def _next_of_all(self) -> tuple[Any, list[int]]:
        """The next batch of an iterator that may end anywhere, and the processes whose iterator ended."""
        found: list[Any] = []

        def read() -> bool:
            found.append(next(self.batches, None))
            return found[0] is not None

        said = exchange(f"reading the batch of step {self.taken}", read)
        return found[0], [process for process, has in enumerate(said) if not has]

    def _take(self, batch: Any) -> None:
        """One step; the metrics of the one before are read only then, so that the devices are never idle."""
        result: Any = self.step(self.state, batch)
        if not isinstance(result, tuple) or len(cast("tuple[Any, ...]", result)) != 2:
            got = type(cast("object", result)).__name__
            raise OptionsTypeError(f"step must return (state, metrics), it returned a {got}")
        self.state, metrics = cast("tuple[Any, Any]", result)
        if not isinstance(metrics, Mapping):
            raise OptionsTypeError(f"metrics must be a mapping of names to scalars, step returned {metrics!r}")
        if hasattr(self.batches, "get_state"):
            self.position = self.batches.get_state()
        self.taken += 1
        self._show_pending()
        self._pending = self.taken, cast("Mapping[str, Any]", metrics)

    def _show_pending(self) -> None:
        if self._pending is None:
            return
        (taken, metrics), self._pending = self._pending, None
        numbers = {name: number_of(f"the metric {name!r}", value) for name, value in metrics.items()}
        if isinstance(numbers.get(_MASS), int):
            check_mass(numbers[_MASS])
        self._meter.step()
        self._report(taken, {**numbers, **self._meter.metrics(self.batches.waited)})

    def _report(self, taken: int, metrics: dict[str, float]) -> None:
        self.metrics |= metrics
        self.bar.show(taken, metrics)
        if self.plan.report is not None:
            self.plan.report(taken, metrics)

    def _save_if_due(self) -> None:
        every = self.plan.checkpoint_every
        if self.taken == self.plan.target or (every is not None and self.taken % every == 0):
            self._save(wait=False)

    def _save(self, *, wait: bool) -> None:
        if self.checkpoints is None or self.saved == self.taken:
            return
        self._show_pending()
        position = None if self.position is None else Delivered(self.position, self.partition)
        self.checkpoints.save(self.taken, self.state, position, wait=wait)
        self.saved = self.taken

    def _validate_if_due(self) -> None:
        every = self.plan.validate_every
        if self.validation is None or every is None or (self.taken % every and self.taken != self.plan.target):
            return
        self._show_pending()
        with self._meter.away():
            means = self.validation.run(self.state, self.bar)
        if means is None:
            self._stop()
        else:
            self._report(self.taken, means)
        if self.taken != self.plan.target:
            self.validation.warm()

    def _stop(self) -> NoReturn:
        """All processes stop here, since one of them got SIGTERM."""
        with _within(self.plan.grace, f"step {self.taken} was not saved"):
            self._save(wait=True)
            if self.checkpoints is not None:
                self.checkpoints.wait()
        saved = self.checkpoints is not None and self.saved == self.taken
        _LOG.warning("stopped by SIGTERM after step %d, which was %s", self.taken, "saved" if saved else "not saved")
        raise Preempted(self.taken, saved=saved)

    def _end_early(self, ended: list[int]) -> NoReturn:
        """The data ended before the target, in the processes `ended`; nobody takes this step."""
        self._show_pending()
        self._save(wait=True)
        kept = "the state after them was saved" if self.saved == self.taken and self.taken else "nothing was saved"
        whose = f" in the processes {ended}" if jax.process_count() > 1 and not self.even else ""
        raise SourceError(
            f"the training data ended{whose} after {self.taken} of {self.plan.target} steps; {kept}. Ask for fewer "
            "steps, or make the training iterator go on: it is to begin its next epoch by itself"
        )


@contextmanager
def _within(seconds: float, otherwise: str) -> Generator[None]:
    """Ends the process with exit code 1 if the block takes longer."""

    def end() -> None:
        os.write(2, f"dew: {otherwise} within the grace of {seconds:g} s after SIGTERM; the process ends\n".encode())
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
