"""A bounded number of open video files, shared by the threads of a process.

A file is opened for the thread that reads it, kept when it is done, and closed when more than `capacity` are kept: the
least recently read first. Nothing is held for a thread, so nothing leaks when one ends.
"""

import collections
import contextlib
import os
import threading
from collections.abc import Callable, Generator

from dew.data.errors import StreamClosedError
from dew_media.video.container import VideoFile
from dew_media.video.decode import OpenVideo

CAPACITY = 8


class OpenVideos:
    """Open videos by key. Safe for many threads; pickles as an empty one; a forked child begins with none.

    Args:
        capacity: files kept open that nobody reads; those being read come on top, one a thread.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._idle: collections.OrderedDict[tuple[int, int], OpenVideo] = collections.OrderedDict()
        self._count = 0
        self._closed = False

    def __reduce__(self) -> tuple[type["OpenVideos"], tuple[int]]:
        return type(self), (self.capacity,)

    @contextlib.contextmanager
    def opened(self, key: int, file: Callable[[], VideoFile], *, name: str) -> Generator[OpenVideo]:
        """The open file `key`, for this thread until the block ends. A file that fails in the block is closed.

        Args:
            key: of the file, the same for the same content.
            file: gives the path, bytes or file object, where it is not open.
            name: of the file, for messages.

        Raises:
            StreamClosedError: `close` was called.
            SourceNotFoundError, DamagedSourceError, SourceError: it cannot be opened.
        """
        video = self._taken(key) or OpenVideo(file(), name=name)
        try:
            yield video
        except BaseException:
            video.close()
            raise
        self._returned(key, video)

    def close(self) -> None:
        """Closes every file; one being read is closed when its reader is done. A second call does nothing."""
        if os.getpid() != self._process:
            self._begin()
        with self._lock:
            idle, self._closed = list(self._idle.values()), True
            self._idle.clear()
        for video in idle:
            video.close()

    def _taken(self, key: int) -> OpenVideo | None:
        if os.getpid() != self._process:
            # The parent's files share their places in the file with it, and its lock may be held for ever.
            self._begin()
        with self._lock:
            if self._closed:
                raise StreamClosedError("the videos were closed; open the source again")
            found = next((held for held in reversed(self._idle) if held[0] == key), None)
            return None if found is None else self._idle.pop(found)

    def _returned(self, key: int, video: OpenVideo) -> None:
        with self._lock:
            self._count += 1
            self._idle[key, self._count] = video
            surplus = [] if not self._closed else list(self._idle.values())
            if self._closed:
                self._idle.clear()
            while len(self._idle) > self.capacity:
                surplus.append(self._idle.popitem(last=False)[1])
        for video in surplus:
            video.close()
