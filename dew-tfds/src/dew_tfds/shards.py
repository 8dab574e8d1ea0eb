"""The files of a split: whether they are whole, and readers of which only so many are open at a time.

What a listing shows is checked when a split is opened; a shard's number of records when the shard is first read, or all
of them at once on request. ArrayRecord opens a cut file without a word and may read empty records from it, so no reader
is used before its count was compared with the metadata.
"""

import importlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from dew.data.errors import DamagedSourceError
from dew_tfds.splits import Shard

_BLOCK: Final = 1 << 16  # an ArrayRecord file is made of whole blocks
_MOST_OPEN: Final = 1024
_SHARE_OPEN: Final = 3  # a stream keeps at most a third of the files open that this process may open
_COUNTING: Final = 16
_LISTED: Final = 5
_RANDOM_ACCESS: Final = "readahead_buffer_size:0,max_parallelism:0"
_BUFFER: Final = 1 << 15
_AGAIN: Final = "copy it again, or prepare the dataset again"


def list_sizes(directory: str) -> dict[str, int]:
    """Name -> bytes of every file in a directory."""
    with os.scandir(directory) as entries:
        return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}


def size_problems(directory: str, shards: Iterable[Shard], sizes: Mapping[str, int]) -> list[str]:
    """What a listing shows to be wrong with the shards, a sentence each."""
    wanted = {shard.name: shard for shard in shards}
    problems: list[str] = []
    if missing := sorted(name for name in wanted if name not in sizes):
        more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        problems.append(
            f"{len(missing)} of {len(wanted)} shards are missing from {directory}: {missing[:_LISTED]}{more}; copy "
            "them, or prepare the dataset again"
        )
    for name in sorted(wanted.keys() & sizes.keys()):
        path, size = Path(directory, name), sizes[name]
        if size < _BLOCK or size % _BLOCK:
            problems.append(
                f"{path} has {size} bytes, and an ArrayRecord file is a whole number of {_BLOCK}: it is cut; {_AGAIN}"
            )
        elif not os.access(path, os.R_OK):
            problems.append(f"{path} may not be read by this user; change its mode")
    return problems


def count_problems(directory: str, shards: Iterable[Shard]) -> list[str]:
    """Opens each shard and counts its records, several at a time; a sentence for each that is wrong."""

    def problem(shard: Shard) -> str | None:
        try:
            open_shard(directory, shard).close()
        except DamagedSourceError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(_COUNTING, thread_name_prefix="dew-tfds-count") as threads:
        found = list(threads.map(problem, dict.fromkeys(shards)))
    return [text for text in found if text is not None]


def open_shard(directory: str, shard: Shard) -> Any:
    """A reader of one shard, an `array_record` ArrayRecordReader whose count is that of the metadata.

    Raises:
        DamagedSourceError: it is missing, cut, or holds another number of records.
    """
    module: Any = importlib.import_module("array_record.python.array_record_module")
    path = os.path.join(directory, shard.name)
    reader = module.ArrayRecordReader(path, options=_RANDOM_ACCESS, file_reader_buffer_size=_BUFFER)
    records = reader.num_records()
    if reader.ok() and records == shard.records:
        return reader
    try:
        reader.close()
    except RuntimeError as error:  # only closing tells what was wrong from the beginning
        raise DamagedSourceError(f"{path} {_what_is_wrong(path, str(error))}") from error
    raise DamagedSourceError(
        f"{path} holds {records} records and the metadata says {shard.records}: it is cut, or of another preparation; "
        f"{_AGAIN}"
    )


def _what_is_wrong(path: str, reason: str) -> str:
    if "Too many open files" in reason:
        return "cannot be opened, since this process has as many files open as it may; raise the limit with ulimit -n"
    if not os.path.exists(path):
        return f"is missing; {_AGAIN}"
    said = " ".join(reason.split())
    return f"is no whole ArrayRecord file: it is cut or was altered; {_AGAIN}" + (f" ({said})" if said else "")


class ShardFiles:
    """Reads records of shards by number; at most so many files are open, those used last.

    Threads may share it. A reader that is given up while another thread reads from it is closed when that read ends.

    Args:
        directory: of the shards.
        shards: in the order of their numbers.
    """

    def __init__(self, directory: str, shards: Sequence[Shard]) -> None:
        self._directory = directory
        self._shards = shards
        self._most = most_open()
        self._open: OrderedDict[int, Callable[[int, int], list[bytes]]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, number: int, position: int) -> bytes:
        """Record `position` of shard `number`.

        Raises:
            DamagedSourceError: the shard or the record cannot be read.
        """
        with self._lock:
            read = self._open.get(number)
            if read is not None:
                self._open.move_to_end(number)
        if read is None:
            read = self._opened(number)
        try:
            # As a range: a list of positions takes time in proportion to the shard's records, however short it is.
            (data,) = read(position, position + 1)
        except Exception as error:
            path = os.path.join(self._directory, self._shards[number].name)
            raise DamagedSourceError(f"record {position} of {path} cannot be read: {error}; {_AGAIN}") from error
        return data

    def close(self) -> None:
        """Closes the files; reading opens them again."""
        with self._lock:
            self._open.clear()

    def _opened(self, number: int) -> Callable[[int, int], list[bytes]]:
        # Outside of the lock: others read on meanwhile. Two threads may open one shard; the second copy goes at once.
        reader = open_shard(self._directory, self._shards[number])
        with self._lock:
            read = self._open.setdefault(number, reader.read)
            self._open.move_to_end(number)
            while len(self._open) > self._most:
                self._open.popitem(last=False)
        return read


def most_open() -> int:
    """Files that one stream keeps open: a share of what this process may open."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except ImportError:  # not on this platform
        return _MOST_OPEN // 2
    return max(2, min(_MOST_OPEN, limit // _SHARE_OPEN)) if limit > 0 else _MOST_OPEN
