"""A part of a stored file as a seekable file: a member of a tar, or a remote file that is not fetched whole."""

import io
from typing import BinaryIO, Final, cast

from dew.data.ranged import RangedFile
from dew.data.storage import Storage

_LOCAL_BUFFER: Final = 1 << 16
_REMOTE_BUFFER: Final = 1 << 20


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
        "BinaryIO",
        io.BufferedReader(RangedFile(read, whole, start=start), _REMOTE_BUFFER if path is None else _LOCAL_BUFFER),
    )
