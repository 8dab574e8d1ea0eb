"""What holds for every test: fixed random examples, no network but the loopback, and nothing left behind.

Left behind means threads, child processes, open files, shared memory, and entries of the temp folder. Whatever a test's
own fixtures close is closed before the check; what module and session fixtures hold was there before the test.
"""

import ipaddress
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from dew.testing import assert_nothing_left

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None)
hypothesis.settings.register_profile("nightly", max_examples=2000, deadline=None)
hypothesis.settings.load_profile("fixed")

SECONDS = float(os.environ.get("DEW_LEAK_SECONDS", "10"))  # processes take a moment to end on a busy machine
KEPT_TEMP = ("pymp-",)  # multiprocessing's own folder, removed at exit


@pytest.fixture(scope="session", autouse=True)
def temp_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temp folder of the run's own, for children too: what is left in it is ours, not another program's."""
    folder = str(tmp_path_factory.mktemp("temp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def only_loopback() -> Iterator[None]:
    """Connections to anything but this machine are refused, before a packet leaves."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))
        yield


def _guarded(connect: Callable[[socket.socket, Any], Any]) -> Callable[[socket.socket, Any], Any]:
    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(address[0]):
            raise RuntimeError(f"a test tried to reach {address!r}; tests may reach only this machine")
        return connect(self, address)

    return guarded


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@pytest.fixture(autouse=True)
def nothing_left(temp_folder: None, only_loopback: None) -> Iterator[None]:
    """Fails a test after which something is held that was not held before, once it had time to end."""
    temp = Path(tempfile.gettempdir())
    before = set(os.listdir(temp))
    try:
        with assert_nothing_left(seconds=SECONDS):
            yield
    except AssertionError as error:
        pytest.fail(str(error), pytrace=False)
    left = [name for name in set(os.listdir(temp)) - before if not name.startswith(KEPT_TEMP)]
    if left:
        pytest.fail(f"left behind in the temp folder: {sorted(left)}", pytrace=False)
