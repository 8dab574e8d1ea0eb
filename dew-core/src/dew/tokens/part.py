"""One shard on its way to the disk: ids are appended, and the shard exists from the moment its receipt does.

What fits into a few MiB is kept in memory and written at once; more goes to an unfinished file as it comes, so that a
shard's size does not decide how much memory writing it takes.
"""

import contextlib
import hashlib
import weakref
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from dew.data.errors import StorageError
from dew.data.storage import Storage
from dew.tokens.manifest import FILE_DTYPES, FileRecord, Shard, receipt_json
from dew.tokens.npy import HEADER_BYTES, header

_SPILL_BYTES: Final = 8 << 20
_HASH_BYTES: Final = 1 << 20

_unfinished: "weakref.WeakSet[ShardPart]" = weakref.WeakSet()


class ShardPart:
    """The shard being filled. Nothing is checked here: ids are below the vocabulary's size, documents have some.

    Args:
        storage, name: where, and under which name.
        dtype: of the ids, `"<u2"` or `"<u4"`.
        origin: whether each document has an origin.
        roles: whether each token has a role.
    """

    def __init__(self, storage: Storage, name: str, dtype: str, *, origin: bool = False, roles: bool = False) -> None:
        self.name = name
        self.tokens = 0
        self.empty = 0
        self._storage = storage
        self._dtype = np.dtype(dtype)
        self._buffer = np.empty(1 << 12, self._dtype)
        self._filled = 0
        self._max_id = 0
        self._ends = array("Q", [0])
        self._origin = array("Q") if origin else None
        self._roles = bytearray() if roles else None
        self._file: BinaryIO | None = None
        self._path: Path | None = None
        _unfinished.add(self)

    @property
    def documents(self) -> int:
        """Documents so far."""
        return len(self._ends) - 1

    def extend(self, ids: "Sequence[int] | npt.NDArray[np.integer[Any]]") -> None:
        """Append ids to the current document."""
        count = len(ids)
        if self._filled + count > len(self._buffer):
            self._make_room(count)
        self._buffer[self._filled : self._filled + count] = ids
        self._filled += count
        self.tokens += count

    def extend_roles(self, roles: npt.NDArray[np.uint8]) -> None:
        """Append roles, one for each id that was appended."""
        assert self._roles is not None
        self._roles += roles.tobytes()

    def end_document(self) -> None:
        """The next id belongs to the next document."""
        self._ends.append(self.tokens)

    def add_documents(
        self,
        ids: npt.NDArray[np.integer[Any]],
        lengths: npt.NDArray[np.int64],
        origins: npt.NDArray[np.uint64],
    ) -> None:
        """Append whole documents.

        Args:
            ids: (n,), those of all of them.
            lengths: (k,), each at least 1.
            origins: (k, 2): input and row of each.
        """
        assert self._origin is not None
        self._ends.frombytes((np.cumsum(lengths) + self.tokens).astype(np.uint64).tobytes())
        self._origin.frombytes(origins.astype(np.uint64).tobytes())
        self.extend(ids)

    def commit(self) -> Shard:
        """Write what is not written yet, the receipt last.

        Raises:
            StorageError: it could not be written; nothing of the shard is left but perhaps files without a receipt.
        """
        files = {"tokens": self._write_tokens(), "docs": self._write_numbers("docs", self._ends)}
        if self._origin is not None:
            files["origin"] = self._write_numbers("origin", self._origin)
        if self._roles is not None:
            files["roles"] = self._write(
                f"{self.name}.roles.npy", header(FILE_DTYPES["roles"], len(self._roles)) + self._roles
            )
        shard = Shard(
            name=self.name,
            tokens=self.tokens,
            documents=self.documents,
            empty_documents=self.empty,
            max_id=self._max_id,
            files=files,
        )
        self._storage.write(shard.receipt, receipt_json(shard, self._dtype.str))
        _unfinished.discard(self)
        return shard

    def discard(self) -> None:
        """Remove what was written so far."""
        path, self._path = self._path, None
        if path is not None:
            path.unlink(missing_ok=True)
        if self._file is not None:
            with contextlib.suppress(OSError):  # what is left in its buffer has no room either
                self._file.close()
        _unfinished.discard(self)

    def __del__(self) -> None:
        if getattr(self, "_path", None) is not None:
            self.discard()

    def _make_room(self, count: int) -> None:
        if (self._filled + count) * self._dtype.itemsize > _SPILL_BYTES:
            self._spill()
        needed = self._filled + count
        if needed > len(self._buffer):
            grown = np.empty(max(needed, min(2 * len(self._buffer), _SPILL_BYTES // self._dtype.itemsize)), self._dtype)
            grown[: self._filled] = self._buffer[: self._filled]
            self._buffer = grown

    def _spill(self) -> None:
        """Move the buffer to the unfinished file."""
        try:
            if self._file is None:
                self._path = self._storage.unfinished(f"{self.name}.tokens.npy")
                # It stays open until the shard is whole.
                self._file = open(self._path, "x+b")  # noqa: SIM115
                self._file.write(bytes(HEADER_BYTES))
            self._file.write(self._taken().data)
        except OSError as error:
            raise self._refusal(error) from error
        self._filled = 0

    def _taken(self) -> npt.NDArray[np.integer[Any]]:
        ids = self._buffer[: self._filled]
        if len(ids):
            self._max_id = max(self._max_id, int(ids.max()))
        return ids

    def _write_tokens(self) -> FileRecord:
        name, first = f"{self.name}.tokens.npy", header(self._dtype.str, self.tokens)
        if self._file is None:
            return self._write(name, first + self._taken().tobytes())
        self._spill()
        assert self._path is not None
        try:
            with self._file as file:
                file.seek(0)
                file.write(first)
                file.seek(0)
                digest = hashlib.sha256()
                while piece := file.read(_HASH_BYTES):
                    digest.update(piece)
        except OSError as error:
            raise self._refusal(error) from error
        self._storage.adopt(name, self._path)
        self._path = None
        return FileRecord(bytes=HEADER_BYTES + self.tokens * self._dtype.itemsize, sha256=digest.hexdigest())

    def _write_numbers(self, kind: str, numbers: "array[int]") -> FileRecord:
        dtype = FILE_DTYPES[kind]
        data = header(dtype, len(numbers)) + np.frombuffer(numbers, np.uint64).astype(dtype, copy=False).tobytes()
        return self._write(f"{self.name}.{kind}.npy", data)

    def _write(self, name: str, data: bytes) -> FileRecord:
        self._storage.write(name, data)
        return FileRecord(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def _refusal(self, error: OSError) -> StorageError:
        where = self._storage.location(f"{self.name}.tokens.npy")
        return StorageError(f"{where} could not be written: {type(error).__name__}: {error}")


def discard_unfinished() -> None:
    """Remove the unfinished files of this process: it is about to end without finishing them."""
    for part in list(_unfinished):
        part.discard()
