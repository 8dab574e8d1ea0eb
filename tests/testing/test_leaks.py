"""What the leak check takes for left behind, and what it does not."""

import _thread
import threading

import pytest

from dew.testing import assert_nothing_left


def test_a_thread_of_a_library_that_once_ran_python_is_none_of_ours() -> None:
    ran, go = threading.Event(), threading.Event()

    def foreign() -> None:
        threading.current_thread()  # makes Python list it
        ran.set()
        go.wait()

    with assert_nothing_left(seconds=0.1):
        _thread.start_new_thread(foreign, ())
        assert ran.wait(5)
    go.set()


def test_a_thread_of_ours_is_named() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="kept")
    with pytest.raises(AssertionError, match="thread 'kept'"), assert_nothing_left(seconds=0.1):
        thread.start()
    go.set()
    thread.join()
