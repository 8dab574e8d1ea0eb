"""What files there are below a directory: names, sizes, in one order everywhere.

Nothing is kept from one opening to the next: a listing that is remembered can be wrong, and 100 000 local files are
listed and measured in half a second. Links are followed; a link that leads back into its own parents is refused.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import attrs

from dew.data.errors import SourceError, StorageError
from dew.data.storage import Storage

UNKNOWN: Final = -1
"""Stands for the size of a file whose server does not tell it."""

_WEB: Final = ("http://", "https://")
_SUFFIX: Final = re.compile(r"\.[A-Za-z0-9]{1,8}$")


@attrs.frozen(kw_only=True)
class Listing:
    """Files below a directory, hidden ones left out, by code points of their relative names.

    Args:
        names: with "/" between their parts.
        sizes: in bytes, `UNKNOWN` where a server does not tell.
        links: how many of the files and directories are symbolic links.
        broken: links that lead nowhere.
        unreadable: names that are not UTF-8, escaped.
    """

    names: list[str]
    sizes: list[int]
    links: int = 0
    broken: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


def list_files(storage: Storage, below: str = "") -> Listing:
    """All files below the directory `below` of `storage`; names are relative to it.

    Raises:
        SourceNotFoundError: there is no such directory.
        StorageDeniedError: it, or a directory in it, may not be listed.
        SourceError: a link leads back to a directory that it lies in.
    """
    path = storage.path(below)
    if path is not None:
        return _listed_locally(storage, below, path)
    storage.list(below)  # its own errors: nothing there, not permitted, and retries
    found = dict(_crawled(storage, below, "") if storage.url.startswith(_WEB) else _found(storage.child(below)))
    return _sorted(found)


def suffix_of(name: str) -> str:
    """Of `a/b.JPG`, `.jpg`; "" where the name has none."""
    base = name.rpartition("/")[2]
    dot = base.rfind(".")
    return base[dot:].lower() if dot > 0 else ""


def _sorted(found: Mapping[str, int], **more: Any) -> Listing:
    names = sorted(found)
    return Listing(names=names, sizes=[found[name] for name in names], **more)


def _listed_locally(storage: Storage, below: str, root: Path) -> Listing:
    found: dict[str, int] = {}
    broken: list[str] = []
    unreadable: list[str] = []
    links = 0
    # A directory still to be listed, and the directories that lead to it: only these can be entered again.
    waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]
    while waiting:
        inside, above = waiting.pop()
        for entry in _entries(storage, below, root, inside):
            name = f"{inside}/{entry.name}" if inside else entry.name
            if entry.name.startswith("."):
                continue
            if not name.isascii() and not _is_utf8(name):
                unreadable.append(ascii(name))
                continue
            try:
                kind = entry.stat()
            except FileNotFoundError:
                broken.append(name)
                continue
            except OSError as error:
                raise SourceError(f"{root / name} cannot be followed: {error.strerror}; remove the link") from error
            links += entry.is_symlink()
            if stat.S_ISREG(kind.st_mode):
                found[name] = kind.st_size
            elif stat.S_ISDIR(kind.st_mode):
                place = (kind.st_dev, kind.st_ino)
                parents = above or (_place(root),)
                if place in parents:
                    raise SourceError(f"{root / name} leads back to a directory that it lies in; remove the link")
                waiting.append((name, (*parents, place)))
    return _sorted(found, links=links, broken=tuple(sorted(broken)), unreadable=tuple(sorted(unreadable)))


def _entries(storage: Storage, below: str, root: Path, inside: str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(root / inside) as entries:
            return list(entries)
    except OSError:
        storage.list("/".join(filter(None, (below, inside))))  # says what is wrong
        raise


def _place(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _found(storage: Storage) -> Iterator[tuple[str, int]]:
    """Names and sizes in an object store: one request for every thousand files, however they are nested."""
    from fsspec import core  # pyright: ignore[reportMissingTypeStubs]

    try:
        files, path = cast("Any", core).url_to_fs(storage.url, **storage.options)
        files.invalidate_cache(path)
        entries: Iterable[Mapping[str, Any]] = files.find(path, detail=True).values()
    except Exception as error:
        raise StorageError(f"{storage.location()} could not be listed: {type(error).__name__}") from error
    prefix = path.rstrip("/") + "/"
    for entry in entries:
        name = str(entry["name"])
        inside = name.removeprefix(prefix)
        if name.startswith(prefix) and inside and not _is_hidden(inside) and entry.get("type") != "directory":
            size = entry.get("size")
            yield inside, UNKNOWN if size is None else int(size)


def _crawled(storage: Storage, below: str, inside: str) -> Iterator[tuple[str, int]]:
    """Names on a web server, page by page: what has a suffix is a file, what has none is looked at."""
    here = "/".join(filter(None, (below, inside)))
    for entry in storage.list(here):
        name = f"{inside}/{entry}" if inside else entry
        if entry.startswith("."):
            continue
        if _SUFFIX.search(entry) is not None or not storage.is_dir(f"{here}/{entry}" if here else entry):
            yield name, UNKNOWN
        else:
            yield from _crawled(storage, below, name)


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))
