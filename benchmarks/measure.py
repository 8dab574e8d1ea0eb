"""How things are measured: variants interleaved in one process, the median of each, and ratios between them.

Absolute times belong to the machine; a ratio of medians from the same minutes does not.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs


@attrs.frozen(kw_only=True)
class Figure:
    """One line of the table: what was measured, what it came to, what it should be."""

    what: str
    value: str
    budget: str
    met: bool | None = None


def seconds_each(variants: Mapping[str, Callable[[], object]], *, rounds: int, calls: int) -> dict[str, float]:
    """Median seconds of one call of each variant; each round runs every variant `calls` times.

    Every round begins with another variant, since what ran before leaves its traces in the caches.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants.items())
    for number in range(rounds):
        first = number % len(order)
        for name, call in order[first:] + order[:first]:
            started = time.perf_counter()
            for _ in range(calls):
                call()
            times[name].append((time.perf_counter() - started) / calls)
    return {name: statistics.median(values) for name, values in times.items()}


class BareLoop:
    """A bare loop in a process of its own: told how many rounds to run, it runs them and says when it is done.

    Args:
        code: of the process: reads a number a line from stdin, and answers each with the line `done`.
        arguments: of the process.
    """

    def __init__(self, code: str, *arguments: str) -> None:
        command = [sys.executable, "-c", code, *arguments]
        root = Path(__file__).parents[1]
        self._process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, rounds: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rounds}\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "done\n"

    def close(self) -> None:
        self._process.communicate()


def run_all(loops: Sequence[BareLoop], rounds: int) -> None:
    """All loops side by side, to their end."""
    for loop in loops:
        loop.start(rounds)
    for loop in loops:
        loop.wait()


def at_least(what: str, value: float, budget: float, detail: str = "") -> Figure:
    """A ratio that should not be lower than `budget`."""
    return Figure(what=what, value=f"{value:.2f}{detail}", budget=f">= {budget:g}", met=value >= budget)


def at_most(what: str, value: float, budget: float, unit: str) -> Figure:
    """A figure that should not be higher than `budget`."""
    return Figure(what=what, value=f"{value:.3g} {unit}", budget=f"<= {budget:g} {unit}", met=value <= budget)
