"""Collections of images as values: `ImageFolder("flowers", size=64, val_split="val").load(batch=32)`.

The same as `dew.data.load("images/flowers", batch=32, options=ImageOptions(layout="folder", size=64))`, without the
question of what the layout is.
"""

import os
from typing import ClassVar

import attrs

from dew.data import checks
from dew.data.dataset import Dataset
from dew.data.loading import Loading
from dew_media.files.open import Layout
from dew_media.images.options import FileOptions, ImageOptions
from dew_media.images.source import ImageSource


@attrs.frozen
class _Images(FileOptions):
    """What the three layouts share; the arguments are described by each of them."""

    layout: ClassVar[Layout]

    path: str = attrs.field(converter=os.fspath)
    split: str = attrs.field(default="train", validator=attrs.validators.instance_of(str), kw_only=True)
    val_split: str | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.instance_of(str)), kw_only=True
    )
    seed: int = attrs.field(default=0, validator=checks.seed, kw_only=True)
    loading: Loading = attrs.field(factory=Loading, kw_only=True)

    @property
    def options(self) -> ImageOptions:
        """The same wishes, for `dew.data.load`."""
        shared = {field.name: getattr(self, field.name) for field in attrs.fields(FileOptions)}
        return ImageOptions(layout=self.layout, val_split=self.val_split, **shared)

    def load(self, *, batch: int) -> Dataset:
        """The data set, with `batch` rows in one step over all processes.

        Raises:
            SourceNotFoundError: nothing is stored at the path.
            SplitError: there is no such split; lists those there are.
            SourceError, DamagedSourceError: what is there does not fit together, or cannot be read.
            OverlapError: `val_split` names the training split, or a copy of it.
        """
        from dew.data.build import dataset_of

        source = self.open(self.split, batch=batch)
        own = getattr(source, "order", None)
        loading = self.loading
        if self.lanes is not None and loading.workers is None:
            # Each worker process would read every row group that a step touches.
            loading = attrs.evolve(loading, workers=0)
        return dataset_of(
            source,
            batch=batch,
            val=None if self.val_split is None else self.open(self.val_split, batch=batch, validation=True),
            seed=self.seed,
            order=None if own is None else own(self.seed),
            loading=loading,
        )

    def open(self, split: str, *, batch: int = 1, validation: bool = False) -> ImageSource:
        """One split as a record source; `batch` is the global batch that steps of aspect buckets are made of.

        Raises:
            As `load`.
        """
        from dew_media.images.opening import open_split

        return open_split(self.path, split, self, layout=self.layout, batch=batch, validation=validation)


@attrs.frozen
class ImageFolder(_Images):
    """Image files in a directory, with labels from class directories and captions from a table or from files beside.

    Args:
        path: the directory; one of splits (`train/`, `val/`, ...) or one that holds the images.
        split: the split to train on; where there are no directories of splits, all of it is "train".
        val_split: the split to validate on.
        missing, exclude, captions, labels, caption_field, storage_options, cache, buckets, bucket_step: as in
            `FileOptions`.
        size, fit, crop, resample, flip, upscale, background, exact, engine, icc, max_pixels: as in `PictureOptions`.
        seed: of the order and of every record's draws.
        loading: how fast batches are made, never what they hold.

    Raises:
        OptionsError, OptionsTypeError: a value that cannot be used.
    """

    layout = "folder"


@attrs.frozen
class ImageTar(_Images):
    """Images in tar shards of the webdataset layout, in any order by an index that is built once.

    Args:
        path: a directory of shards, or one shard; shards named `train-*.tar`, `val-*.tar` make splits.
        part, index: which members are the images, and where the index is kept, as in `FileOptions`.
        split, val_split, missing, exclude, captions, labels, caption_field, storage_options, cache, buckets,
            bucket_step, seed, loading, and how pictures become arrays: as in `ImageFolder`.

    Raises:
        OptionsError, OptionsTypeError: a value that cannot be used.
    """

    layout = "tar"


@attrs.frozen
class ImageParquet(_Images):
    """Encoded images in a column of parquet files, as bytes or as Hugging Face's `{bytes, path}`.

    Args:
        path: a directory of files, or one file; files named `train-*.parquet`, `val-*.parquet` make splits.
        column: the column that holds the images, as in `FileOptions`.
        lanes: row groups that are read side by side; by default every epoch is a full shuffle.
        split, val_split, missing, exclude, captions, labels, caption_field, storage_options, cache, buckets,
            bucket_step, seed, loading, and how pictures become arrays: as in `ImageFolder`.

    Raises:
        OptionsError, OptionsTypeError: a value that cannot be used.
    """

    layout = "parquet"
