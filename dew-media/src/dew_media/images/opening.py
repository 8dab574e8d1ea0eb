"""A path and options -> the record source of one split of images."""

import logging
from typing import Final

from dew.data.errors import OptionsError
from dew_media.files.collection import MediaFiles
from dew_media.files.open import Layout, open_files
from dew_media.images.buckets import AspectBuckets, bucketed, choose_buckets
from dew_media.images.options import FileOptions
from dew_media.images.sizes import measured
from dew_media.images.source import BlockedImages, BucketedImages, ImageSource

logger = logging.getLogger("dew.media")

_FEW: Final = 16  # row groups: as many as are likely to be kept while an epoch jumps between them


def open_split(
    path: str, split: str, options: FileOptions, *, layout: Layout | None, batch: int, validation: bool
) -> ImageSource:
    """The images of one split below `path`; logs what was found, and the aspect buckets.

    Args:
        path: a directory, or one `.tar` or `.parquet` file; local or a URL.
        split: directories or shards of that name; where there are none, all of it is "train".
        options: how files are found, and how pictures become arrays.
        layout: how they are stored; None: found from what is there.
        batch: the global batch, which steps of aspect buckets are made of.
        validation: read in the source's own order, at one size.

    Raises:
        SourceNotFoundError: nothing is stored there.
        SplitError: there is no such split; lists those there are.
        SourceError: files, metadata and captions do not fit each other; says how many, and names five.
        DamagedSourceError: an index, a table, or an image that is measured for buckets cannot be read.
        OptionsError: an option does not go with the layout.
    """
    files = open_files(
        path,
        split=split,
        layout=layout,
        missing=options.missing,
        exclude=options.exclude,
        captions=options.captions_from,
        labels=options.labels,
        caption_field=options.caption_field,
        part=options.part,
        column=options.column,
        index=options.index,
        storage_options=options.storage_options,
        cache=options.cache,
    )
    if validation:
        return ImageSource(files, options)
    if options.buckets:
        buckets = _buckets(files, options, batch)
        logger.info("%s", buckets.listing(batch))
        return BucketedImages(files, options, buckets, batch)
    if options.lanes is not None:
        return BlockedImages(files, options, options.lanes)
    _warn_of_blocks(files)
    return ImageSource(files, options)


def _buckets(files: MediaFiles, options: FileOptions, batch: int) -> AspectBuckets:
    widths, heights = measured(files)
    sizes = options.buckets
    if isinstance(sizes, bool):
        base = options.geometry.size
        if base is None:
            raise OptionsError("buckets need size=, the side of a square")
        sizes = choose_buckets(widths, heights, base=base[0], step=options.bucket_step, least=batch)
    return bucketed(widths, heights, sizes)


def _warn_of_blocks(files: MediaFiles) -> None:
    """A full shuffle jumps between row groups, and each of them is read whole."""
    blocks = files.blocks
    if len(blocks) > _FEW and len(files) > 2 * len(blocks):
        logger.warning(
            "%s: the %d images lie in %d row groups of about %d, and a full shuffle reads a whole one for nearly every "
            "image; lanes=%d reads each row group once an epoch",
            files.description(),
            len(files),
            len(blocks),
            len(files) // len(blocks),
            _FEW,
        )
