"""One way in: what is stored at a path, found from what is there, as `MediaFiles`.

A layout and a split are never guessed from half of the evidence: what could be read in two ways is refused, and
`layout`, `split` or another path decides.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from dew.data.cache import BlockCache
from dew.data.errors import OptionsError, SourceError, SourceNotFoundError, SplitError
from dew.data.storage import Storage
from dew_media.files import metadata
from dew_media.files.collection import MediaFiles, Missing
from dew_media.files.exclude import Exclude, excluded
from dew_media.files.folder import CaptionsFrom, FolderFiles, FolderSpec, LabelsFrom
from dew_media.files.listing import Listing, list_files, suffix_of
from dew_media.files.parquet import ParquetFiles
from dew_media.files.parquet_io import ParquetSpec, is_data
from dew_media.files.problems import check_missing, listed
from dew_media.files.tar_files import TarFiles, TarSpec
from dew_media.files.tar_places import OnProgress, ShardSpec

Layout: TypeAlias = Literal["folder", "tar", "parquet"]

_LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)

IMAGE_SUFFIXES: Final = frozenset(
    {".apng", ".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg"}
    | {".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
VIDEO_SUFFIXES: Final = frozenset({".avi", ".gif", ".m4v", ".mkv", ".mov", ".mp4", ".webm"})

SPLITS: Final = ("train", "val", "valid", "validation", "test", "dev", "eval")
"""Names of directories, and beginnings of the names of shards, that make splits."""

_SAME: Final = ("val", "valid", "validation")
_PREFIX: Final = re.compile(rf"({'|'.join(sorted(SPLITS, key=len, reverse=True))})(?![A-Za-z])")
_COMPRESSED: Final = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz", ".zip")

_NOT_READ: Final = frozenset({".arw", ".cr2", ".dng", ".heic", ".heif", ".ico", ".jxl", ".nef", ".psd", ".svg", ".tga"})
"""Suffixes of images in formats that are not read, so that a folder of them is not taken for a smaller one."""

_FILES: Final = frozenset({".tar", ".parquet", *(suffix[suffix.rindex(".") :] for suffix in _COMPRESSED)})

logger = logging.getLogger("dew.media")


@attrs.frozen(kw_only=True)
class _Place:
    """Where one split is: a directory, one file of it, or the files that begin with a prefix.

    `layout` is None for directories of splits: only the one that is opened is looked into.
    """

    layout: Layout | None = None
    below: str = ""
    only: str | None = None
    prefix: str = ""


def open_files(
    path: "str | os.PathLike[str]",
    *,
    suffixes: frozenset[str] = IMAGE_SUFFIXES,
    split: str = "train",
    layout: Layout | None = None,
    missing: Missing = "error",
    exclude: Exclude | None = None,
    captions: CaptionsFrom | None = None,
    labels: LabelsFrom | None = None,
    caption_field: str | None = None,
    part: str | None = None,
    column: str | None = None,
    index: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache: BlockCache | None = None,
    on_progress: OnProgress | None = None,
) -> MediaFiles:
    """One split of what is stored at `path`.

    Args:
        path: a directory, or one `.tar` or `.parquet` file; local or a URL of fsspec.
        suffixes: of the files, with their dot; case does not count.
        split: `train/`, `val/`, ... below `path`, or shards whose names begin with it; where neither tells splits, all
            of it is "train". "val", "valid" and "validation" are one split.
        layout: "folder", "tar" or "parquet"; None: found from what is there.
        missing: what becomes of a file without a row, a row without a file, a sample without its main file, and the
            like: "error" refuses them by name, "drop" leaves them out and counts them in the description.
        exclude: a manifest of bad files, or their keys.
        captions: where captions come from: "metadata" (tables of a folder, `.json` of a tar, a column), "sidecars"
            (`.txt` and `.caption`), or "none"; None: found from what is there.
        labels: where labels come from: "metadata", "folders" (class directories), or "none"; None: found.
        caption_field: the column or field of captions; None: `text` or `caption`.
        part: in tars, what follows the first dot in the name of the main file; None: one of `suffixes`.
        column: in parquet, the column of encoded bytes; None: the only one.
        index: a local directory for the index of tar shards; None: beside the shards or in the user's cache.
        storage_options: of fsspec; never shown.
        cache: where blocks of remote files are kept.
        on_progress: told how far the index of tar shards is; None shows a bar on a terminal.

    Raises:
        SourceNotFoundError: nothing is stored at `path`.
        SplitError: there is no such split.
        SourceError: what is there can be read in two ways, or in none, or does not fit together.
        DamagedSourceError: a table, an index or a file is cut or altered.
        OptionsError: an option has no meaning here.
    """
    check_missing(missing)
    _check_layout(layout)
    folded = _check_suffixes(suffixes)
    storage, only = _root(path, storage_options, cache)
    places, listing = _splits(storage, only, layout, folded, labels)
    place = _chosen(places, split, storage.location(only or ""))
    kind = place.layout
    if kind is None:
        kind, listing = _layout(storage, place.below, layout, folded)
    _check_options(kind, {"part": part, "column": column, "index": index})
    common: dict[str, Any] = {"missing": missing, "captions": captions, "labels": labels}
    common["caption_field"] = caption_field
    siblings = tuple(other.below for other in places.values() if other.below != place.below)
    files: MediaFiles
    if kind == "folder":
        whole = FolderSpec(storage=storage, below=place.below, suffixes=folded, siblings=siblings, **common)
        listing = listing or list_files(storage, place.below)
        files = FolderFiles(whole, listing)
        _tell_of_others(storage.location(place.below), listing, folded)
    elif kind == "tar":
        shards = ShardSpec(storage=storage, below=place.below, only=place.only, index=index)
        tars = TarSpec(shards=shards, suffixes=folded, prefix=place.prefix, part=part and part.lower(), **common)
        with _bar(on_progress) as tell:
            files = TarFiles(tars, tell)
    else:
        where = ParquetSpec(storage=storage, below=place.below, only=place.only, prefix=place.prefix, **common)
        files = ParquetFiles(attrs.evolve(where, siblings=siblings, column=column))
    files = excluded(files, exclude, storage_options)
    logger.info("%s, split %r: %s", storage.location(only or ""), split, files.description())
    return files


def _tell_of_others(where: str, listing: Listing, suffixes: frozenset[str]) -> None:
    """Says so where a folder of images also has some in formats that are not read."""
    if ".jpg" in suffixes:
        found = Counter(suffix_of(name) for name in listing.names)
        others = [f"{count} with {suffix}" for suffix, count in found.items() if suffix in _NOT_READ - suffixes]
        if others:
            logger.warning("%s also holds images that are not read: %s; convert them", where, ", ".join(others))


def splits_in(
    path: "str | os.PathLike[str]",
    *,
    suffixes: frozenset[str] = IMAGE_SUFFIXES,
    layout: Layout | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """The splits that `open_files` finds at `path`."""
    storage, only = _root(path, storage_options, None)
    return list(_splits(storage, only, layout, _check_suffixes(suffixes), None)[0])


def tar_places(path: "str | os.PathLike[str]", *, storage_options: Mapping[str, Any] | None = None) -> list[ShardSpec]:
    """Where the tar shards at `path` are, one for each index that they need."""
    storage, only = _root(path, storage_options, None)
    places, _ = _splits(storage, only, "tar", frozenset(), None)
    specs = [ShardSpec(storage=storage, below=place.below, only=place.only) for place in places.values()]
    return list({(spec.below, spec.only): spec for spec in specs}.values())


def _check_suffixes(suffixes: frozenset[str]) -> frozenset[str]:
    if wrong := sorted(suffix for suffix in suffixes if not suffix.startswith(".")):
        raise OptionsError(f"suffixes begin with a dot, got {listed(wrong)}")
    return frozenset(suffix.lower() for suffix in suffixes)


def _check_layout(layout: object) -> None:
    if layout not in (None, *_LAYOUTS):
        raise OptionsError(f"layout must be 'folder', 'tar' or 'parquet', got {layout!r}")


def _check_options(layout: Layout, given: Mapping[str, object]) -> None:
    owners = {"part": "tar", "column": "parquet", "index": "tar"}
    for name, value in given.items():
        if value is not None and owners[name] != layout:
            raise OptionsError(f"{name}={value!r} is for the layout {owners[name]!r}, and this is {layout!r}")


def _root(
    path: "str | os.PathLike[str]", options: Mapping[str, Any] | None, cache: BlockCache | None
) -> tuple[Storage, str | None]:
    """The directory, and the one file in it that was named, if one was."""
    text = os.fspath(path)
    bare, mark, query = text.partition("?") if "://" in text else (text, "", "")
    bare = bare.rstrip("/")
    if suffix_of(bare) in _FILES:
        folder, slash, name = bare.rpartition("/")
        storage = Storage((folder or slash or ".") + mark + query, options=options or {}, cache=cache)
        if not storage.is_dir(name):
            if not storage.exists(name):
                raise SourceNotFoundError(f"nothing is stored at {storage.location(name)}; check the path")
            return storage, name
    storage = Storage(text, options=options or {}, cache=cache)
    if not storage.exists(""):
        raise SourceNotFoundError(f"nothing is stored at {storage.location()}; check the path")
    if storage.local and not storage.is_dir(""):
        raise SourceError(f"{storage.location()} is a file; a directory, a .tar or a .parquet file can be opened")
    return storage, None


def _splits(
    storage: Storage, only: str | None, layout: Layout | None, suffixes: frozenset[str], labels: str | None
) -> tuple[dict[str, _Place], Listing | None]:
    """The splits there are; and the listing of the whole, where it was made."""
    if only is not None:
        return {"train": _Place(layout=_layout_of_file(storage.location(only), only, layout), only=only)}, None
    folders = _split_folders(storage, suffixes, labels)
    if folders:
        return {name.lower(): _Place(below=name) for name in folders}, None
    found, listing = _layout(storage, "", layout, suffixes)
    if found == "folder":
        return {"train": _Place(layout=found)}, listing
    shards = [name for name in listing.names if (suffix_of(name) == ".tar" if found == "tar" else is_data(name))]
    return {name: _Place(layout=found, prefix=prefix) for name, prefix in _prefixes(storage, shards).items()}, listing


def _split_folders(storage: Storage, suffixes: frozenset[str], labels: str | None) -> list[str]:
    """Directories that are splits; none where the whole is one."""
    names = [name for name in storage.list() if not name.startswith(".")]
    found = [name for name in names if name.lower() in SPLITS and storage.is_dir(name)]
    if not found:
        return []
    others = [name for name in names if name not in found and not _is_file(storage, name)]
    loose = [
        name
        for name in names
        if suffix_of(name) in suffixes or suffix_of(name) in (".tar", ".parquet") or name in metadata.TABLES
    ]
    if not others and not loose:
        _check_spellings(storage, found)
        return found
    if labels is not None:
        return []
    raise SourceError(
        f"{storage.location()} holds {listed(found)}, which look like splits, beside {listed(others + loose)}, which "
        f"do not. Give one of the directories as the path, such as {storage.location(found[0])}; or where all "
        "are class directories, labels='folders'"
    )


def _is_file(storage: Storage, name: str) -> bool:
    path = storage.path(name)
    return path.is_file() if path is not None else suffix_of(name) != "" or not storage.is_dir(name)


def _check_spellings(storage: Storage, names: Sequence[str]) -> None:
    same = [name for name in names if name.lower() in _SAME]
    twice = [name for name, count in Counter(name.lower() for name in names).items() if count > 1]
    if len(same) > 1 or twice:
        raise SourceError(
            f"{storage.location()} holds {listed(same or list(names))}, which are names of one split; rename them, or "
            "merge them"
        )


def _prefixes(storage: Storage, shards: Sequence[str]) -> dict[str, str]:
    """Split -> what its shards' names begin with."""
    found: dict[str, str] = {}
    without: list[str] = []
    for name in shards:
        match = _PREFIX.match(name.rpartition("/")[2])
        if match is None:
            without.append(name)
        else:
            found.setdefault(match[1], name)
    if not found:
        return {"train": ""}
    if without:
        some = next(iter(found.values()))
        raise SourceError(
            f"in {storage.location()} the names of some shards tell a split, such as {some!r}, and those of "
            f"{len(without)} do not, such as {without[0]!r}; name all of them so, or none"
        )
    _check_spellings(storage, list(found))
    return {name: name for name in sorted(found, key=SPLITS.index)}


def _layout_of_file(where: str, name: str, layout: Layout | None) -> Layout:
    if name.lower().endswith(_COMPRESSED):
        raise SourceError(
            f"{where} is compressed, and its members cannot be read at random: unpack it into a folder, or write it as "
            "a plain .tar"
        )
    found: Layout = "tar" if suffix_of(name) == ".tar" else "parquet"
    if layout not in (None, found):
        raise OptionsError(f"layout={layout!r} was asked for, and {where} is {found}")
    return found


def _layout(storage: Storage, below: str, layout: Layout | None, suffixes: frozenset[str]) -> tuple[Layout, Listing]:
    """How the files below a directory are stored."""
    listing, where = list_files(storage, below), storage.location(below)
    kinds = Counter(suffix_of(name) if not is_data(name) else "data" for name in listing.names)
    media = sum(count for suffix, count in kinds.items() if suffix in suffixes)
    counts = dict(zip(_LAYOUTS, (media, kinds[".tar"], kinds["data"]), strict=True))
    if layout is not None:
        if not counts[layout]:
            raise SourceError(f"layout={layout!r} was asked for, and {where} holds {_holds(listing)}")
        return layout, listing
    present: list[Layout] = [kind for kind in _LAYOUTS if counts[kind]]
    if len(present) > 1:
        several = ", ".join(f"{counts[kind]} for {kind!r}" for kind in present)
        raise SourceError(f"{where} holds files of several layouts: {several}; layout= decides")
    if not present:
        raise SourceError(
            f"{where} holds no file with {' '.join(sorted(suffixes))} .tar .parquet; it holds {_holds(listing)}"
        )
    return present[0], listing


def _holds(listing: Listing) -> str:
    if not listing.names:
        return "no file at all"
    packed = [name for name in listing.names if name.lower().endswith(_COMPRESSED)]
    hint = f"; {packed[0]!r} is compressed: unpack it, or write it as a plain .tar" if packed else ""
    found = Counter(suffix_of(name) or "no suffix" for name in listing.names).most_common(6)
    return ", ".join(f"{count} with {suffix}" for suffix, count in found) + hint


def _chosen(places: Mapping[str, _Place], split: str, where: str) -> _Place:
    names = [split] if split not in _SAME else [split, *_SAME]
    for name in names:
        if name in places:
            return places[name]
    if list(places) == ["train"] and not places["train"].below and not places["train"].prefix:
        raise SplitError(
            f"no split {split!r} in {where}: neither directories (train/, val/, test/) nor names of shards "
            "(train-0.tar) tell splits, so that all of it is the split 'train'"
        )
    raise SplitError(f"no split {split!r} in {where}; there are {listed(list(places))}")


@contextmanager
def _bar(on_progress: OnProgress | None) -> Generator[OnProgress]:
    """`on_progress`, or a bar on the terminal that appears when there is something to tell."""
    if on_progress is not None:
        yield on_progress
        return
    from dew_media.files.progress import index_bar

    with index_bar() as tell:
        yield tell
