"""How a run goes: steps a second, the share of time spent waiting for data, and a bar that shows both.

The bar is drawn on stderr by process 0 alone, and only where stderr is a terminal.
"""

# JAX leaves parts of its own signatures untyped.
# pyright: reportUnknownMemberType=false

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import jax

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

RATE: Final = "steps_per_second"
WAIT: Final = "wait_share"
_OWN: Final = (RATE, WAIT)
_SHOWN: Final = 3  # metrics of the user beside the bar


class Meter:
    """Counts steps and seconds from the first batch on: what comes before it is starting, not training.

    Validation is left out of both.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._waited = 0.0
        self._steps = 0
        self._away = 0.0

    def begin(self, waited: float) -> None:
        """The first batch is here, after `waited` seconds of waiting; later calls change nothing."""
        if self._began is None:
            self._began, self._waited = time.perf_counter(), waited

    def step(self) -> None:
        """One more step has been taken."""
        self._steps += 1

    @contextmanager
    def away(self) -> Generator[None]:
        """Time that is not training."""
        left = time.perf_counter()
        try:
            yield
        finally:
            self._away += time.perf_counter() - left

    def metrics(self, waited: float) -> dict[str, float]:
        """`steps_per_second`, and `wait_share` from 0 to 1; `waited` seconds were waited for data in all."""
        if self._began is None:
            return {}
        seconds = max(time.perf_counter() - self._began - self._away, 1e-9)
        return {RATE: self._steps / seconds, WAIT: min((waited - self._waited) / seconds, 1.0)}


class Bar:
    """The progress bar of a run; a context manager. Where it is not to be seen, it does nothing."""

    def __init__(self, steps: int, taken: int) -> None:
        self._steps = steps
        self._taken = taken
        self._bars: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars = _bars()
        if self._bars is not None:
            self._bars.start()
            self._task = self._bars.add_task("train", total=self._steps, completed=self._taken, said="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, taken: int, metrics: Mapping[str, float]) -> None:
        """`taken` steps are done, and these are the metrics of the last one."""
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=taken, said=_said(metrics))

    @contextmanager
    def beside(self, label: str, steps: int | None) -> Generator["Bar"]:
        """A second bar, for the block, over `steps` steps where their number is known."""
        second = Bar(0, 0)
        if self._bars is None:
            yield second
            return
        second._bars = self._bars
        second._task = self._bars.add_task(label, total=steps, said="")
        try:
            yield second
        finally:
            self._bars.remove_task(second._task)


def _bars() -> "Progress | None":
    """rich's bars, if this process is to draw any."""
    import sys

    if jax.process_index() != 0 or not getattr(sys.stderr, "isatty", bool)():
        return None
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}", markup=False),
        console=Console(stderr=True),
    )


def _said(metrics: Mapping[str, float]) -> str:
    words = [f"{name} {value:.4g}" for name, value in metrics.items() if name not in _OWN][:_SHOWN]
    if RATE in metrics:
        words.append(f"{metrics[RATE]:.1f} steps/s")
    if WAIT in metrics:
        words.append(f"waiting for data {metrics[WAIT]:.1%}")
    return "   ".join(words)
