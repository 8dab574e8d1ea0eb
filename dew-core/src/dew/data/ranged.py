"""A part of a stored file as a seekable file object, for libraries that read such: a member of a tar, a remote table.

It fetches exactly what is asked for and reads nothing ahead; nothing is open between two reads.
"""

import io
from collections.abc import Callable


class RangedFile(io.RawIOBase):
    """Bytes `[start, start + size)` of what `read_range` reads.

    Args:
        read_range: `(first, last) -> bytes`, exactly those of `[first, last)`, such as one file's `Storage.read_range`.
        size: bytes of this file object.
        start: where it begins in what `read_range` reads.
    """

    def __init__(self, read_range: Callable[[int, int], bytes], size: int, *, start: int = 0) -> None:
        super().__init__()
        self._read_range, self._start, self._size = read_range, start, size
        self._at = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Place of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Moves the next byte; also past the end, where there is nothing to read.

        Raises:
            ValueError: it would stand before the beginning.
        """
        at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        if at < 0:
            raise ValueError(f"seek to {at}, before the beginning")
        self._at = at
        return at

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes, fewer only at the end."""
        first = min(self._at, self._size)
        last = self._size if size is None or size < 0 else min(first + size, self._size)
        data = self._read_range(self._start + first, self._start + last)
        self._at += len(data)
        return data

    def readinto(self, buffer: "bytearray | memoryview", /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The next bytes, into `buffer`; how many."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
