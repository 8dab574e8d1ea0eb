"""What a process holds: threads, child processes, open files, shared memory; more of it afterwards is a leak."""

import gc
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import attrs
import psutil

# Started once by a library, on purpose, and kept until the interpreter ends.
_KEPT_THREADS = (
    "tqdm_monitor",  # watches every progress bar of the process
    "fsspecIO",  # fsspec's one event loop
    "asyncio_",  # the pool in which that loop resolves names
    "Dummy-",  # not Python's: one of Arrow's that once ran Python, say; it stays listed after it has ended
)
_KEPT_CHILDREN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

_SHARED_MEMORY = Path("/dev/shm")


@attrs.frozen
class Held:
    """What this process holds at one moment."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    files: frozenset[tuple[str, int]]
    shared: frozenset[str]

    @classmethod
    def now(cls) -> Self:
        """What is held now."""
        process = psutil.Process()
        return cls(
            threads=frozenset(threading.enumerate()),
            children=frozenset(child.pid for child in process.children(recursive=True)),
            files=frozenset((file.path, file.fd) for file in process.open_files()),
            shared=frozenset(os.listdir(_SHARED_MEMORY)) if _SHARED_MEMORY.is_dir() else frozenset(),
        )

    def beyond(self, before: "Held") -> list[str]:
        """What is held now and was not before, named, without what libraries keep on purpose."""
        threads = [thread.name for thread in self.threads - before.threads]
        found = [f"thread {name!r}" for name in threads if not name.startswith(_KEPT_THREADS)]
        commands = {pid: _command(pid) for pid in self.children - before.children}
        found += [
            f"process {pid}: {command}"
            for pid, command in commands.items()
            if command is not None and not any(kept in command for kept in _KEPT_CHILDREN)
        ]
        found += [f"open file {path}" for path, _ in self.files - before.files]
        return found + [f"{_SHARED_MEMORY / name}" for name in self.shared - before.shared if not _is_foreign(name)]


@contextmanager
def assert_nothing_left(*, seconds: float = 5.0) -> Generator[None]:
    """Asserts that the block leaves no thread, child process, open file or `/dev/shm` entry behind.

    Args:
        seconds: how long after the block threads and processes may take to end.

    Raises:
        AssertionError: after that time something is still held; names it.
    """
    before = Held.now()
    yield
    end = time.monotonic() + seconds
    while left := Held.now().beyond(before):
        gc.collect()  # what was dropped unclosed may hang on a cycle
        assert time.monotonic() < end, f"left behind after {seconds:g} s: " + "; ".join(left)
        time.sleep(0.02)  # threads and processes that were told to end take a moment


def _command(pid: int) -> str | None:
    """The command line of a process, its state where it has none, None when it has gone."""
    try:
        process = psutil.Process(pid)
        return " ".join(process.cmdline())[:300] or process.status()
    except psutil.ZombieProcess:
        return psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None


def _is_foreign(name: str) -> bool:
    """Whether a live process that is not ours maps the shared memory `name`: another run on the same machine."""
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    path = str(_SHARED_MEMORY / name)
    for pid in set(psutil.pids()) - ours:
        try:
            if path in Path(f"/proc/{pid}/maps").read_text():
                return True
        except OSError:
            continue
    return False
