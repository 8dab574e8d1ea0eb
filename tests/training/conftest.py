"""Real pools: N fresh interpreters joined by `jax.distributed` over the loopback, on the CPU, with simulated devices.

`run_pool` runs one function in every member and gives back what each said; `start_pool` hands out the running pool, for
tests that send signals. Each start costs seconds: put several checks into one pool. No member outlives its test.

What a member runs is a module-level function of the test module, called with a `Member`, or the text of a script:

    def check_rows(member: Any) -> Any:         # module-level; the test module is imported anew in each member
        member.say(step=3)                      # one JSON line on stdout, at once
        return {"rows": [0, 2]}                 # the member's result, any JSON

    def test_rows(run_pool: RunPool) -> None:
        ended = run_pool(check_rows, 2, devices_per_process=2)
        assert [e.result["rows"] for e in ended] == [[0, 2], [1, 3]]

In a script the names `INDEX`, `PROCESSES`, `FOLDER` and `say` are there already, and errors and exits take JAX's own
course; a function that raises ends its member at once, so that the test fails at once.
"""

import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs
import psutil
import pytest

RUNNER = """
import importlib.util, json, os, pathlib, runpy, sys, traceback, types

index, processes, address, heartbeat, folder, program, function = sys.argv[1:]
index, processes, heartbeat, folder = int(index), int(processes), int(heartbeat), pathlib.Path(folder)

def say(**values):
    os.write(1, (json.dumps(values) + "\\n").encode())

import jax
# Initialization and shutdown are bounded, so that no member waits long for one that has gone.
jax.distributed.initialize(address, processes, index, initialization_timeout=120, shutdown_timeout_seconds=30,
                           heartbeat_timeout_seconds=heartbeat)
if function:
    try:
        spec = importlib.util.spec_from_file_location("pool_checks", program)
        module = importlib.util.module_from_spec(spec)
        sys.modules["pool_checks"] = module
        spec.loader.exec_module(module)
        member = types.SimpleNamespace(index=index, processes=processes, folder=folder, say=say)
        say(result=getattr(module, function)(member))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
else:
    runpy.run_path(program, {"INDEX": index, "PROCESSES": processes, "FOLDER": folder, "say": say}, "__main__")
"""


@attrs.frozen
class Ended:
    """What one member left.

    Args:
        index: its process index.
        code: exit code; minus the signal's number where a signal ended it.
        said: the JSON values it wrote, line by line.
        out, err: all of its output.
    """

    index: int
    code: int
    said: list[Any]
    out: str
    err: str

    @property
    def result(self) -> Any:
        """What the function returned."""
        return next(said["result"] for said in reversed(self.said) if isinstance(said, dict) and "result" in said)


class Pool:
    """A running pool; `members` are the processes, by index."""

    def __init__(self, folder: Path, members: list["subprocess.Popen[bytes]"], deadline: float) -> None:
        self.folder = folder
        self.members = members
        self._deadline = deadline

    def out(self, index: int) -> str:
        return (self.folder / f"{index}.out").read_text(errors="replace")

    def err(self, index: int) -> str:
        return (self.folder / f"{index}.err").read_text(errors="replace")

    def wait_said(self, index: int, text: str) -> None:
        """Until the member wrote a whole line that holds `text`."""
        self._until(lambda: any(text in line for line in self.out(index).split("\n")[:-1]), f"{index} to say {text!r}")

    def send(self, number: signal.Signals, index: int) -> None:
        """Sends a signal to one member, by its id."""
        self.members[index].send_signal(number)

    def kill(self, *indices: int) -> None:
        """SIGKILL to these members, or to all."""
        for index in indices or range(len(self.members)):
            self.send(signal.SIGKILL, index)

    def wait(self, *, check: bool = True, expected: Mapping[int, int] | None = None) -> list[Ended]:
        """Until all members have ended.

        Args:
            check: a member that ends with a code other than 0 fails the test at once, with its error.
            expected: member -> exit code, where it is another than 0.
        """
        codes = expected or {}

        def over() -> bool:
            ended = [member.poll() for member in self.members]
            wrong = [i for i, code in enumerate(ended) if code is not None and code != codes.get(i, 0)]
            if check and wrong:
                self.fail(f"member {wrong[0]} ended with exit code {ended[wrong[0]]}")
            return None not in ended

        self._until(over, "the members to end", watch=False)
        return [self._ended(index) for index in range(len(self.members))]

    def fail(self, why: str) -> None:
        """Ends every member and fails the test, with the end of what each wrote."""
        codes = [member.poll() for member in self.members]
        self.end()
        shown = [
            f"--- member {i} (exit code {code}) said:\n{self.out(i)[-1000:]}\n{self.err(i)[-4000:]}"
            for i, code in enumerate(codes)
        ]
        pytest.fail("\n".join([why, *shown]), pytrace=False)

    def end(self) -> None:
        """Kills what still runs, each process by its id, and reaps it; also what the members started."""
        started: list[psutil.Process] = []
        for member in self.members:
            if member.poll() is None:
                started += psutil.Process(member.pid).children(recursive=True)
                member.kill()
        for process in started:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        for member in self.members:
            member.wait()

    def _until(self, over: Callable[[], bool], what: str, *, watch: bool = True) -> None:
        while not over():
            if watch and all(member.poll() is not None for member in self.members) and not over():
                self.fail(f"every member ended while the test waited for {what}")
            if time.monotonic() > self._deadline:
                self.fail(f"time is up: the test waited for {what}")
            time.sleep(0.02)

    def _ended(self, index: int) -> Ended:
        out = self.out(index)
        said = [value for line in out.splitlines() if (value := _json(line)) is not None]
        return Ended(index, self.members[index].wait(), said, out, self.err(index))


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


class StartPool(Protocol):
    """Starts a pool and returns at once. `timeout` (s) bounds its whole life, `heartbeat` (s) is the coordinator's."""

    def __call__(
        self,
        program: Callable[[Any], Any] | str,
        processes: int,
        devices_per_process: int = 1,
        *,
        timeout: float = 120,
        heartbeat: int = 100,
        env: Mapping[str, str] | None = None,
    ) -> Pool: ...


class RunPool(Protocol):
    """Runs a pool to its end.

    `kill` maps a member to a text: it gets SIGKILL as soon as it has written a line with that text. `check` fails the
    test when a member that was not killed ends with another code than 0.
    """

    def __call__(
        self,
        program: Callable[[Any], Any] | str,
        processes: int,
        devices_per_process: int = 1,
        *,
        timeout: float = 120,
        heartbeat: int = 100,
        env: Mapping[str, str] | None = None,
        kill: Mapping[int, str] | None = None,
        check: bool = True,
    ) -> list[Ended]: ...


@pytest.fixture
def start_pool(tmp_path: Path) -> Iterator[StartPool]:
    """Starts real pools; every member that still runs at the end of the test is killed and reaped."""
    pools: list[Pool] = []

    def start(
        program: Callable[[Any], Any] | str,
        processes: int,
        devices_per_process: int = 1,
        *,
        timeout: float = 120,
        heartbeat: int = 100,
        env: Mapping[str, str] | None = None,
    ) -> Pool:
        folder = tmp_path / f"pool-{len(pools)}"
        folder.mkdir()
        (folder / "runner.py").write_text(RUNNER)
        pool = Pool(folder, [], time.monotonic() + timeout)
        pools.append(pool)
        address = f"127.0.0.1:{_free_port()}"
        for index in range(processes):
            words = [index, processes, address, heartbeat, tmp_path, *_program(program, folder)]
            with (folder / f"{index}.out").open("wb") as out, (folder / f"{index}.err").open("wb") as err:
                member = subprocess.Popen(
                    [sys.executable, "-W", "error", str(folder / "runner.py"), *map(str, words)],
                    env={**os.environ, **_environment(devices_per_process), **(env or {})},
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                )
            pool.members.append(member)
        return pool

    try:
        yield start
    finally:
        for pool in pools:
            pool.end()


@pytest.fixture
def run_pool(start_pool: StartPool) -> RunPool:
    """Runs a function or a script in a real pool, to its end; see the module's docstring."""

    def run(
        program: Callable[[Any], Any] | str,
        processes: int,
        devices_per_process: int = 1,
        *,
        timeout: float = 120,
        heartbeat: int = 100,
        env: Mapping[str, str] | None = None,
        kill: Mapping[int, str] | None = None,
        check: bool = True,
    ) -> list[Ended]:
        pool = start_pool(program, processes, devices_per_process, timeout=timeout, heartbeat=heartbeat, env=env)
        for index, text in (kill or {}).items():
            pool.wait_said(index, text)
            pool.kill(index)
        return pool.wait(check=check, expected=dict.fromkeys(kill or {}, -signal.SIGKILL))

    return run


def _program(program: Callable[[Any], Any] | str, folder: Path) -> tuple[str, str]:
    """The file to run and the name of the function in it."""
    if not isinstance(program, str):
        assert "<" not in program.__qualname__, f"{program.__qualname__} must stand at the level of its module"
        return inspect.getfile(program), program.__name__
    (folder / "script.py").write_text(textwrap.dedent(program))
    return str(folder / "script.py"), ""


def _environment(devices: int) -> dict[str, str]:
    return {
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
