"""Threads of our own end when they end, and are known to run until then."""

import os
import signal
import threading

import pytest

from dew.data.pool import OwnThread, join


def test_a_wait_that_ctrl_c_cut_short_does_not_take_the_thread_for_ended() -> None:
    go = threading.Event()
    thread = OwnThread(go.wait, "dew-test")
    thread.start()
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        join([thread])
    timer.join()
    assert join([thread], 0.05) == ["dew-test"]
    assert thread in threading.enumerate()
    go.set()
    assert join([thread]) == []
    assert thread not in threading.enumerate()


def test_a_thread_that_never_started_is_not_waited_for() -> None:
    assert join([OwnThread(threading.Event().wait, "dew-test")]) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_failed_has_ended() -> None:
    def fail() -> None:
        raise ValueError

    thread = OwnThread(fail, "dew-test")
    thread.start()
    assert thread.ends(5)
