"""A part of a stored file as a seekable file: a member of a tar, or a remote file that is not fetched whole."""

import io
from collections.abc import Callable
from typing import BinaryIO, Final, cast

from dew.data.storage import Storage

_LOCAL_BUFFER: Final = 1 << 16
_REMOTE_BUFFER: Final = 1 << 20


class _Range(io.RawIOBase):
    """Bytes `[start, start + size)` of what `read` reads; nothing is open between two reads."""

    def __init__(self, read: Callable[[int, int], bytes], start: int, size: int) -> None:
        self._read, self._start, self._size = read, start, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        if at < 0:
            raise ValueError(f"seek to {at}, before the beginning")
        self._at = at
        return at

    def readinto(self, buffer: "bytearray | memoryview", /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        first, last = min(self._at, self._size), min(self._at + len(buffer), self._size)
        data = self._read(self._start + first, self._start + last)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def open_range(storage: Storage, name: str, start: int = 0, size: int | None = None) -> BinaryIO:
    """Bytes `[start, start + size)` of a file, by default all of it, as a file to read and seek; the caller closes it.

    A whole local file is opened as it is. Of anything else so much is read as is asked for, and at least 64 KiB of a
    local file or 1 MiB of a remote one.
    """
    path = storage.path(name)
    if path is not None and start == 0 and size is None:
        storage.size(name)  # says what is wrong, where nothing is there
        return path.open("rb")

    def read(first: int, last: int) -> bytes:
        return storage.read_range(name, first, last)

    whole = storage.size(name) - start if size is None else size
    return cast(
        "BinaryIO", io.BufferedReader(_Range(read, start, whole), _REMOTE_BUFFER if path is None else _LOCAL_BUFFER)
    )
