"""The demo's processes: starts them, hears what they say, and kills them in the middle of the run.

Every process is a fresh interpreter that runs `dew.cli.demo_member`. Nothing is handed from one to the next but the
directory of checkpoints, and nothing is left of any when the demo ends.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import IO, Any, Final, Self, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from dew.cli.demo_member import MemberOrder
from dew.data.errors import PoolError

OnStep: TypeAlias = Callable[["Taken"], None]
"""Called after every step of a run."""

OnStage: TypeAlias = Callable[["Stage"], tuple[OnStep, Callable[[], None]]]
"""Called before a stage: what to call after each of its steps, and when it was killed."""

_LOOK: Final = 0.02  # seconds between two looks for a checkpoint
_TAIL: Final = 2000  # characters of a failed process's output


@attrs.frozen(kw_only=True, eq=False)
class Taken:
    """What one step took, put together from all processes.

    Args:
        step: its number.
        processes: how many took it.
        places: (B,) int64 of its records in the order, in the order of the rows of the step.
        digests: of each row's tokens.
        loss: before the step.
        wait: share of the time that training waited for data so far, 0 to 1.
    """

    step: int
    processes: int
    places: npt.NDArray[np.int64]
    digests: tuple[str, ...]
    loss: float
    wait: float


@attrs.frozen
class Stage:
    """A part of the run: on how many processes, and after how many steps they are killed; None lets them finish."""

    processes: int
    hold: int | None


class Members:
    """The processes of one stage, or of the run that is never stopped; a context manager that leaves none behind."""

    def __init__(self, order: MemberOrder, stage: Stage) -> None:
        address = f"127.0.0.1:{_free_port()}"
        self._words: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self._count = stage.processes
        self._open = stage.processes
        self._members: list[_Member] = []
        self.validation: float | None = None
        try:
            for index in range(stage.processes):
                own = attrs.evolve(order, index=index, processes=stage.processes, address=address, hold=stage.hold)
                self._members.append(_Member(own, self._words))
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def hear(self, on_step: OnStep, until: int | None) -> list[Taken]:
        """Every step that the processes take, until they have taken `until` or have ended.

        Raises:
            PoolError: a process failed; with the end of what it wrote.
        """
        said: dict[int, dict[int, Any]] = {}
        taken: list[Taken] = []
        while self._open:
            index, words = self._words.get()
            if words is None:
                self._ended(index)
            elif "validation" in words:
                self.validation = words["validation"]
            else:
                of_step = said.setdefault(words["step"], {})
                of_step[index] = words
                if len(of_step) == self._count:
                    taken.append(_together(said.pop(words["step"])))
                    on_step(taken[-1])
                    if taken[-1].step + 1 == until:
                        return taken
        return taken

    def check(self) -> None:
        """Raises PoolError if a process has ended."""
        for index, member in enumerate(self._members):
            if member.process.poll() is not None:
                self._ended(index)

    def kill(self) -> None:
        """SIGKILL to those that still run; all are gone then."""
        for member in self._members:
            member.process.kill()
        for member in self._members:
            member.end()

    def _ended(self, index: int) -> None:
        self._open -= 1
        member = self._members[index]
        code = member.process.wait()
        if code:
            raise PoolError(f"process {index} of {self._count} ended with exit code {code}:\n{member.wrote()[-_TAIL:]}")


class _Member:
    """One process, a thread that hears it, and a file for whatever else it writes."""

    def __init__(self, order: MemberOrder, words: "SimpleQueue[tuple[int, Any]]") -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        heard, said = os.pipe()
        try:
            order = attrs.evolve(order, said=said)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dew.cli.demo_member", json.dumps(attrs.asdict(order))],
                env=_environment(order),
                stdin=subprocess.PIPE,  # it reads the end there when this process is gone
                stdout=self._log,
                stderr=subprocess.STDOUT,
                pass_fds=[said],
            )
        except BaseException:
            os.close(heard)
            self._log.close()
            raise
        finally:
            os.close(said)
        self._thread = threading.Thread(target=_hear, args=(heard, order.index, words), daemon=True)
        self._thread.start()

    def wrote(self) -> str:
        """All of its output."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def end(self) -> None:
        """Reaps it."""
        self.process.wait()
        self._thread.join()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._log.close()


def _hear(heard: int, index: int, words: "SimpleQueue[tuple[int, Any]]") -> None:
    """Passes on every line that process `index` says, and None when it says no more."""
    with os.fdopen(heard, "rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):  # the last one may be cut by the kill
                words.put((index, json.loads(line)))
    words.put((index, None))


def _together(said: dict[int, Any]) -> Taken:
    """One step from what its processes said: row i of the step is row i // n of process i % n."""
    count, first = len(said), said[0]
    rows = len(first["places"]) * count
    places, digests = np.empty(rows, np.int64), [""] * rows
    for index, words in said.items():
        places[index::count] = words["places"]
        digests[index::count] = words["digests"]
    return Taken(
        step=first["step"],
        processes=count,
        places=places,
        digests=tuple(digests),
        loss=first["loss"],
        wait=first["wait"],
    )


def run_killed(order: MemberOrder, stages: Sequence[Stage], on_stage: OnStage) -> "Killed":
    """The run in stages, each killed after its hold and continued by the next; the last one finishes it."""
    killed = Killed(order.steps)
    directory = Path(order.checkpoints or "")
    for stage in stages:
        before = _whole(directory)
        on_step, on_kill = on_stage(stage)
        with Members(order, stage) as members:
            taken = members.hear(on_step, stage.hold)
            if stage.hold is not None:
                while not _whole(directory) - before:  # else the next stage would begin where this one did
                    members.check()
                    time.sleep(_LOOK)
            else:
                killed.validation = members.validation
        if stage.hold is not None:
            on_kill()
        killed.add(stage, taken)
    return killed


@attrs.define
class Killed:
    """What the killed run took: of each step what was taken last, since a kill undoes what no checkpoint holds.

    Args:
        steps: of the whole run.
        taken: by step.
        stages: of each stage: processes, its first step, the step before which it ended.
        validation: mean loss over the validation tokens after the last step.
    """

    steps: int
    taken: dict[int, Taken] = attrs.field(factory=dict[int, Taken])
    stages: list[tuple[int, int, int]] = attrs.field(factory=list[tuple[int, int, int]])
    validation: float | None = None

    def add(self, stage: Stage, taken: Sequence[Taken]) -> None:
        """One more stage."""
        self.taken |= {each.step: each for each in taken}
        self.stages.append((stage.processes, taken[0].step, taken[-1].step + 1))


def _whole(directory: Path) -> set[str]:
    """Steps of the whole checkpoints; one that is being written has another kind of name."""
    return {path.name for path in directory.glob("*") if path.name.isdigit()}


def _environment(order: MemberOrder) -> dict[str, str]:
    """A process of its own on the CPU, with one device."""
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        # One thread each: threads of several processes that wait for each other on two cores cost more than they bring.
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1 --xla_cpu_multi_thread_eigen=false "
        "--xla_backend_optimization_level=1",
        "JAX_COMPILATION_CACHE_DIR": order.programs,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
