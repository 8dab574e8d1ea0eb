"""Bad records by key: the manifest that a verification writes, and a collection without them.

A record that cannot be read is never skipped while training: that would depend on luck, and every later position would
count other records. It is left out from the start, by a list that is part of what the collection is.
"""

import json
import os
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeAlias, cast

import attrs

from dew.data.errors import DamagedSourceError, OptionsTypeError, SourceError
from dew.data.storage import Storage
from dew_media.files.collection import MediaFiles

FORMAT: Final = "dew-bad-records"
VERSION: Final = 1

Exclude: TypeAlias = str | os.PathLike[str] | Collection[str]
"""The path or URL of a manifest, or the keys themselves."""


@attrs.frozen(kw_only=True)
class BadRecord:
    """One file that cannot be used.

    Args:
        key: as in `MediaFiles.key`.
        reason: what is wrong, in two or three words that several files share.
        message: what is wrong, in a sentence.
    """

    key: str
    reason: str
    message: str


@attrs.frozen(kw_only=True)
class Manifest:
    """The files of one collection that cannot be used.

    Args:
        collection: `stored()` or `digest()` of the collection that was verified.
        files: how many it held.
        bad: those that cannot be used, in order.
        made_by: versions of the libraries that tried.
    """

    collection: str
    files: int
    bad: tuple[BadRecord, ...]
    made_by: Mapping[str, str] = attrs.field(factory=dict[str, str])

    def reasons(self) -> dict[str, int]:
        """Reason -> how many, the most frequent first."""
        return dict(Counter(record.reason for record in self.bad).most_common())

    def text(self) -> str:
        """JSON lines: what was verified, then a line for each bad file."""
        head = {
            "format": FORMAT,
            "version": VERSION,
            "collection": self.collection,
            "files": self.files,
            "bad": len(self.bad),
            "made_by": dict(self.made_by),
        }
        lines = [head, *(attrs.asdict(record) for record in self.bad)]
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    def write(self, path: "str | os.PathLike[str]", storage_options: Mapping[str, Any] | None = None) -> None:
        """Store it, all or nothing."""
        storage, name = _place(path, storage_options)
        storage.write(name, self.text().encode())


def read_manifest(path: "str | os.PathLike[str]", storage_options: Mapping[str, Any] | None = None) -> Manifest:
    """The manifest at `path`.

    Raises:
        SourceNotFoundError: nothing is stored there.
        DamagedSourceError: it is no manifest, or it is cut.
    """
    storage, name = _place(path, storage_options)
    where, data = storage.location(name), storage.read(name)
    try:
        head, *lines = [cast("dict[str, Any]", json.loads(line)) for line in data.decode().split("\n") if line]
        if head["format"] != FORMAT or head["version"] != VERSION:
            raise ValueError(f"it has the format {head['format']!r}, version {head['version']!r}")
        bad = tuple(BadRecord(**{field: str(line[field]) for field in ("key", "reason", "message")}) for line in lines)
        if len(bad) != head["bad"]:
            raise ValueError(f"it is cut: it states {head['bad']} bad files and lists {len(bad)}")
        return Manifest(collection=head["collection"], files=head["files"], bad=bad, made_by=head["made_by"])
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedSourceError(
            f"{where} is no manifest of bad files (format {FORMAT!r}, version {VERSION}): {error}; verify again"
        ) from error


def excluded(
    files: MediaFiles, exclude: Exclude | None, storage_options: Mapping[str, Any] | None = None
) -> MediaFiles:
    """`files` without those that `exclude` names.

    Raises:
        SourceError: the manifest was made from another collection.
        OptionsError: a key is not in the collection, or nothing would be left.
    """
    if exclude is None:
        return files
    if not isinstance(exclude, str | os.PathLike | Collection):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsTypeError(f"exclude is the path of a manifest, or a collection of keys, got {exclude!r}")
    if not isinstance(exclude, str | os.PathLike):
        return files.without(exclude)
    manifest = read_manifest(exclude, storage_options)
    if manifest.collection not in (files.stored(), files.digest()):
        raise SourceError(
            f"{os.fspath(exclude)} lists bad files of another collection: that one had {manifest.files} files and the "
            f"digest {manifest.collection[:12]}, this one is {files.stored()[:12]} ({files.description()}); "
            "verify this one"
        )
    # A bad file may be left out already, for want of a row or a caption.
    there = {files.key(index) for index in range(len(files))}
    return files.without([record.key for record in manifest.bad if record.key in there])


def _place(path: "str | os.PathLike[str]", storage_options: Mapping[str, Any] | None) -> tuple[Storage, str]:
    folder, slash, name = os.fspath(path).rpartition("/")
    return Storage(folder or (slash or "."), options=storage_options or {}), name
