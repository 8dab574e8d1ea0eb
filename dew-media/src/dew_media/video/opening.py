"""A path and options -> the record source of one split of videos."""

import logging
import shlex
from typing import Final

import attrs

from dew.data.errors import SourceError, SourceNotFoundError
from dew_media.files.collection import MediaFiles
from dew_media.files.exclude import excluded
from dew_media.files.open import VIDEO_SUFFIXES, open_files
from dew_media.files.problems import listed
from dew_media.files.progress import files_bar
from dew_media.video.index import VideoIndex, default_place, place_of, read_index
from dew_media.video.options import ClipOptions, Layout
from dew_media.video.scan import scan
from dew_media.video.source import VideoSource

logger = logging.getLogger("dew.media")

FEW: Final = 256
"""So many files are scanned when they are opened; more need an index."""

FEW_REMOTE: Final = 16
"""The same of remote ones, of which every byte is fetched."""


def open_split(path: str, split: str, options: ClipOptions, *, layout: Layout | None = None) -> VideoSource:
    """The videos of one split below `path`.

    Args:
        path: a directory, or one `.tar` file; local or a URL.
        split: directories or shards of that name; where there are none, all of it is "train".
        options: how files are found, and how clips become arrays.
        layout: how they are stored; None: found from what is there.

    Raises:
        SourceNotFoundError: nothing is stored there, or no index where `options.index` says.
        SplitError: there is no such split; lists those there are.
        SourceError: there is no index and there are more than `FEW` files; the index is of another collection; files
            cannot be read, are too short, or files, metadata and captions do not fit each other.
        DamagedSourceError: an index or a table cannot be read.
    """
    files = video_files(path, split, options, layout=layout)
    index = _index(path, split, files, options, layout)
    files = _readable(excluded(files, options.exclude, options.storage_options), index, options)
    return VideoSource(files, index, options)


def stored_videos(path: str, split: str, options: ClipOptions, *, layout: Layout | None = None) -> MediaFiles:
    """All videos of a split, whatever else is known of them: what is scanned for an index.

    Captions and labels may change, and be read in other ways, without a new one.
    """
    plain = attrs.evolve(options, missing="drop", captions="drop", caption_field=None, labels="none")
    return video_files(path, split, plain, layout=layout)


def video_files(path: str, split: str, options: ClipOptions, *, layout: Layout | None = None) -> MediaFiles:
    """The videos of a split, with captions and labels as asked for."""
    return open_files(
        path,
        suffixes=VIDEO_SUFFIXES,
        split=split,
        layout=layout,
        missing=options.missing,
        captions=options.captions_from,
        labels=options.labels,
        caption_field=options.caption_field,
        part=options.part,
        index=options.tar_index,
        storage_options=options.storage_options,
        cache=options.cache,
    )


def _command(path: str, split: str, options: ClipOptions, layout: Layout | None) -> str:
    """What makes the index that is missing."""
    words = ["dew", "video", "index", path, "--split", split]
    more = {"--layout": layout, "--part": options.part, "--tar-index": options.tar_index, "--into": options.index}
    for option, value in more.items():
        words += [] if value is None else [option, value]
    return shlex.join(words)


def _index(path: str, split: str, files: MediaFiles, options: ClipOptions, layout: Layout | None) -> VideoIndex:
    where = default_place(path, split, options.index)
    storage, name = place_of(where, options.storage_options, options.cache)
    command = _command(path, split, options, layout)
    if not storage.exists(name):
        if options.index is not None:
            raise SourceNotFoundError(
                f"index={options.index!r} was given, and {storage.location(name)} is not there; make it: {command}"
            )
        stored = files if options.missing == "error" else stored_videos(path, split, options, layout=layout)
        few, remote = (FEW, "") if storage.local else (FEW_REMOTE, "remote ones ")
        if len(stored) > few:
            raise SourceError(
                f"the {len(stored)} videos of split {split!r} have no index ({storage.location(name)}), and more than "
                f"{few} {remote}are not scanned when they are opened; make it once: {command}. Where nothing can be "
                "written there, --into DIRECTORY puts it elsewhere, and the option index=DIRECTORY tells a run where"
            )
        logger.info("scanning %d videos; `%s` does it once for all runs", len(stored), command)
        with files_bar("scan") as tell:
            return scan(stored, on_progress=tell).index()
    index = read_index(where, options.storage_options, options.cache)
    if index.collection != files.stored():
        raise SourceError(
            f"{storage.location(name)} is the index of other files, of {len(index) + len(index.bad)} with the digest "
            f"{index.collection[:12]}; here are {len(files)} with {files.stored()[:12]} ({files.description()}). "
            f"Index them again: {command}"
        )
    return index


def _readable(files: MediaFiles, index: VideoIndex, options: ClipOptions) -> MediaFiles:
    """`files` without those that the index tells cannot be read, or a refusal of them."""
    if not index.bad:
        return files
    keys = {files.key(at) for at in range(len(files))}
    bad = [record for record in index.bad if record.key in keys]
    if not bad:
        return files
    names = listed([record.key for record in bad])
    if options.unreadable == "error":
        raise SourceError(
            f"{len(bad)} of {len(files)} videos cannot be read: {names}; the first: {bad[0].message}. Mend or remove "
            "them and index again, or leave them out with unreadable='drop'"
        )
    if len(bad) == len(files):
        raise SourceError(f"none of the {len(files)} videos can be read; the first: {bad[0].message}")
    logger.warning("%d of %d videos cannot be read and are left out: %s", len(bad), len(files), names)
    return files.without([record.key for record in bad])
