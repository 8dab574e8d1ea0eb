"""`MediaFiles`: encoded files in one fixed order, and what is known of each: the seam between storage and decoders.

A folder, tar shards and parquet rows all look the same from here on. Images and video share it: neither knows how its
bytes are stored, and what is stored never decides how they are decoded.
"""

import hashlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any, BinaryIO, Generic, Protocol, TypeAlias, TypeVar, cast

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import DamagedSourceError, OptionsError
from dew_media.files.problems import Missing as Missing
from dew_media.files.problems import listed

_Chosen: TypeAlias = "tuple[npt.NDArray[np.int64], tuple[int, ...]]"


class MediaFiles(Protocol):
    """An ordered collection of encoded files.

    It pickles by path, never by content: another process lists the files or reads the index again, when it first needs
    to, and refuses a collection that is no longer the same. Threads may share it. Indices run from 0 to `len - 1`.
    """

    @property
    def label_names(self) -> tuple[str, ...]:
        """The name of each label, `()` where labels have no names or there are none."""
        ...

    @property
    def has_labels(self) -> bool:
        """Whether every file has a label; otherwise none has."""
        ...

    @property
    def has_captions(self) -> bool:
        """Whether every file has one caption or more; otherwise none has."""
        ...

    @property
    def blocks(self) -> tuple[int, ...]:
        """Lengths of the runs of files that are read whole or not at all (row groups), in order.

        `()` where each file is read alone. An order that jumps between many runs reads each again and again.
        """
        ...

    def __len__(self) -> int:
        """How many files."""
        ...

    def name(self, index: int) -> str:
        """For messages: `cats/1.jpg`, or `0001.tar: key.jpg at byte 5120`; no mount and no host."""
        ...

    def key(self, index: int) -> str:
        """Unique and stable: the relative path, `shard.tar/key` or `part.parquet/row`; what manifests hold."""
        ...

    def read(self, index: int) -> bytes:
        """The encoded bytes. Nothing stays open.

        Raises:
            SourceNotFoundError: the file is gone.
            DamagedSourceError: it is cut, or not what was listed.
            StorageError: it could not be read.
        """
        ...

    def open_file(self, index: int) -> BinaryIO:
        """The encoded bytes as a seekable file, read as far as it is asked for; the caller closes it."""
        ...

    def path(self, index: int) -> str | None:
        """The local path, where the file is a file of its own on a local disk."""
        ...

    def label(self, index: int) -> int | None:
        """Its label, None where there are none."""
        ...

    def captions(self, index: int) -> tuple[str, ...]:
        """Its captions, `()` where there are none."""
        ...

    def digest(self) -> str:
        """sha256, in hex, of what tells this collection from another, as cheaply as can be; never of times.

        It covers names, sizes, and what else was read to open the collection. Bytes that change inside a file and
        leave its size as it was are not seen.
        """
        ...

    def stored(self) -> str:
        """The same of the files alone: whatever is made of captions, labels, and what does not fit together."""
        ...

    def description(self) -> str:
        """Format, counts and what was left out: `folder, 1020 files, 102 classes`; never a location."""
        ...

    def without(self, keys: Collection[str]) -> "MediaFiles":
        """The same without the files of these keys.

        Raises:
            OptionsError: a key is not in the collection, or nothing would be left.
        """
        ...

    def reopened(self) -> "MediaFiles":
        """The same with files and memory of its own, to be closed by the caller."""
        ...

    def close(self) -> None:
        """Frees what it holds; it may be called again."""
        ...


@attrs.frozen(kw_only=True)
class Opened:
    """What opening a collection finds out; each layout adds where the bytes are.

    Args:
        keys: of the files, in order.
        label_names, has_labels, has_captions, blocks, digest, description: as in `MediaFiles`.
        stored: as in `MediaFiles`; "" where it is the digest.
    """

    keys: Sequence[str]
    label_names: tuple[str, ...] = ()
    has_labels: bool = False
    has_captions: bool = False
    blocks: tuple[int, ...] = ()
    digest: str
    description: str
    stored: str = ""


OpenedT = TypeVar("OpenedT", bound=Opened)


class StoredFiles(ABC, Generic[OpenedT]):
    """What the layouts share: found out once, kept out of pickles, found out again and compared in another process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: OpenedT | None = self._open()
        self._digest = self._opened.digest

    @abstractmethod
    def _open(self) -> OpenedT:
        """Look at what is stored."""

    @abstractmethod
    def read(self, index: int) -> bytes:
        """See `MediaFiles`."""

    @abstractmethod
    def open_file(self, index: int) -> BinaryIO:
        """See `MediaFiles`."""

    @abstractmethod
    def name(self, index: int) -> str:
        """See `MediaFiles`."""

    @abstractmethod
    def label(self, index: int) -> int | None:
        """See `MediaFiles`."""

    @abstractmethod
    def captions(self, index: int) -> tuple[str, ...]:
        """See `MediaFiles`."""

    @property
    def known(self) -> OpenedT:
        """What opening found out.

        Raises:
            DamagedSourceError: in another process than the one that opened it, it is no longer the same.
        """
        found = self._opened
        if found is None:
            with self._lock:
                found = self._opened
                if found is None:
                    found = self._open()
                    if found.digest != self._digest:
                        raise DamagedSourceError(
                            f"{self._location()} changed after it was opened: it was {self._digest[:12]} and is now "
                            f"{found.digest[:12]} ({found.description}); leave it as it is while a run reads it"
                        )
                    self._opened = found
        return found

    @abstractmethod
    def _location(self) -> str:
        """Where it is, for a message."""

    @property
    def origin(self) -> str:
        """The directory that keys are relative to, a real path or a URL; it never becomes part of a position."""
        return real_place(self._location())

    def shares_records_with(self, other: object) -> int:
        """How many files both read."""
        return shared_files(self, other)

    @property
    def label_names(self) -> tuple[str, ...]:
        """See `MediaFiles`, as for every method here."""
        return self.known.label_names

    @property
    def has_labels(self) -> bool:
        """Whether files have labels."""
        return self.known.has_labels

    @property
    def has_captions(self) -> bool:
        """Whether files have captions."""
        return self.known.has_captions

    @property
    def blocks(self) -> tuple[int, ...]:
        """Runs that are read whole."""
        return self.known.blocks

    def __len__(self) -> int:
        return len(self.known.keys)

    def key(self, index: int) -> str:
        """Unique and stable."""
        return self.known.keys[check_index(index, len(self))]

    def path(self, index: int) -> str | None:
        """No file of its own, unless a layout says otherwise."""
        check_index(index, len(self))
        return None

    def digest(self) -> str:
        """Of what is stored, and of what was made of it."""
        return self._digest

    def stored(self) -> str:
        """Of the files alone."""
        return self.known.stored or self._digest

    def description(self) -> str:
        """Format and counts."""
        return self.known.description

    def without(self, keys: Collection[str]) -> MediaFiles:
        """All but some."""
        return ChosenFiles(self, keys) if keys else self

    def reopened(self) -> MediaFiles:
        """With memory of its own; what is known of the files never changes, and is shared."""
        other = object.__new__(type(self))
        other.__setstate__(self.__getstate__())
        other._opened = self._opened
        return other

    def close(self) -> None:
        """Nothing is held."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_opened")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()
        self._opened = None


class ChosenFiles:
    """The files of another collection but some.

    Args:
        files: the whole collection.
        excluded: keys of those left out.

    Raises:
        OptionsError: a key is not in `files`, or nothing would be left.
    """

    def __init__(self, files: MediaFiles, excluded: Iterable[str]) -> None:
        self._files = files
        self._excluded = frozenset(excluded)
        self._lock = threading.Lock()
        self._chosen: _Chosen | None = self._choose()

    @property
    def label_names(self) -> tuple[str, ...]:
        """See `MediaFiles`, as for every method here."""
        return self._files.label_names

    @property
    def has_labels(self) -> bool:
        """Whether files have labels."""
        return self._files.has_labels

    @property
    def has_captions(self) -> bool:
        """Whether files have captions."""
        return self._files.has_captions

    @property
    def blocks(self) -> tuple[int, ...]:
        """Runs that are read whole, of what is left."""
        return self._kept[1]

    def __len__(self) -> int:
        return len(self._kept[0])

    def name(self, index: int) -> str:
        """For messages."""
        return self._files.name(self._of(index))

    def key(self, index: int) -> str:
        """Of the file in the whole collection."""
        return self._files.key(self._of(index))

    def read(self, index: int) -> bytes:
        """Encoded bytes."""
        return self._files.read(self._of(index))

    def open_file(self, index: int) -> BinaryIO:
        """The same as a file."""
        return self._files.open_file(self._of(index))

    def path(self, index: int) -> str | None:
        """A local path, if any."""
        return self._files.path(self._of(index))

    def label(self, index: int) -> int | None:
        """A label, if any."""
        return self._files.label(self._of(index))

    def captions(self, index: int) -> tuple[str, ...]:
        """Captions, if any."""
        return self._files.captions(self._of(index))

    @property
    def origin(self) -> str | None:
        """That of the whole collection."""
        return getattr(self._files, "origin", None)

    def shares_records_with(self, other: object) -> int:
        """How many files both read."""
        return shared_files(self, other)

    def digest(self) -> str:
        """Of the whole collection and the keys that are left out."""
        return self._digest_with(self._files.digest())

    def stored(self) -> str:
        """The same of the files alone."""
        return self._digest_with(self._files.stored())

    def description(self) -> str:
        """That of the whole, and how many are left out."""
        return f"{self._files.description()}, {len(self._excluded)} excluded"

    def keep_blocks(self, count: int) -> None:
        """Passed on to a collection of blocks."""
        own = getattr(self._files, "keep_blocks", None)
        if own is not None:
            own(count)

    def without(self, keys: Collection[str]) -> MediaFiles:
        """Leaves out more."""
        return ChosenFiles(self, keys) if keys else self

    def reopened(self) -> MediaFiles:
        """With files of its own."""
        other = object.__new__(ChosenFiles)
        other.__setstate__(self.__getstate__() | {"_files": self._files.reopened()})
        other._chosen = self._chosen
        return other

    def close(self) -> None:
        """Closes the whole collection."""
        self._files.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_chosen", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._chosen = None

    def _digest_with(self, whole: str) -> str:
        return hashlib.sha256("\0".join([whole, *sorted(self._excluded)]).encode()).hexdigest()

    def _of(self, index: int) -> int:
        kept = self._kept[0]
        return int(kept[check_index(index, len(kept))])

    @property
    def _kept(self) -> _Chosen:
        """Indices into the whole collection, and the runs that are left."""
        if self._chosen is None:
            with self._lock:
                self._chosen = self._chosen or self._choose()
        return self._chosen

    def _choose(self) -> _Chosen:
        keys = [self._files.key(index) for index in range(len(self._files))]
        keep = np.array([key not in self._excluded for key in keys], bool)
        if len(keep) - int(keep.sum()) != len(self._excluded):
            unknown = sorted(self._excluded.difference(keys))
            raise OptionsError(
                f"exclude names {len(unknown)} files that are not in the collection ({self._files.description()}): "
                f"{listed(unknown)}; a key is a relative path, shard.tar/key, or file.parquet/row"
            )
        if not keep.any():
            raise OptionsError(f"exclude leaves out all {len(keep)} files of the collection")
        blocks = self._files.blocks
        starts = np.cumsum((0, *blocks))[:-1]
        counts = cast("list[int]", np.add.reduceat(keep, starts, dtype=np.int64).tolist() if blocks else [])
        return np.flatnonzero(keep).astype(np.int64), tuple(count for count in counts if count)


def check_index(index: int, length: int) -> int:
    """`index`, from 0 to `length - 1`.

    Raises:
        IndexError: it is not.
    """
    if not 0 <= index < length:
        raise IndexError(f"file {index} was asked for, there are files 0 to {length - 1}")
    return index


def real_place(location: str) -> str:
    """A location by which two paths to one directory are the same."""
    return location if "://" in location else os.path.realpath(location)


def shared_files(one: Any, other: Any) -> int:
    """How many files two collections have in common, by where they are; 0 where one does not tell."""
    ours, theirs = one.origin, getattr(other, "origin", None)
    if not isinstance(theirs, str) or ours is None or not (_within(ours, theirs) or _within(theirs, ours)):
        return 0
    places = {f"{ours}/{one.key(index)}" for index in range(len(one))}
    return sum(f"{theirs}/{other.key(index)}" in places for index in range(len(other)))


def _within(inner: str, outer: str) -> bool:
    return f"{inner}/".startswith(f"{outer}/")
