"""A collection of videos as one value: `VideoFolder("clips", frames=16, fps=8, size=64).load(batch=8)`."""

import os
from typing import Self

import attrs

from dew.data import checks
from dew.data.dataset import Dataset
from dew.data.loading import Loading
from dew_media.video.options import ClipOptions, Layout, VideoOptions
from dew_media.video.source import VideoSource

_text = attrs.validators.optional(attrs.validators.instance_of(str))


@attrs.frozen
class VideoFolder(ClipOptions):
    """Videos in a directory or in tar shards; the same as `dew.data.load("video/<path>", options=VideoOptions(...))`.

    Args:
        path: the directory; one of splits (`train/`, `val/`, ...) or one that holds the videos; or a `.tar` file.
        layout: `"folder"` or `"tar"`; by default found from what is there.
        split: the split to train on; where there are no directories of splits, all of it is "train".
        val_split: the split to validate on.
        frames, stride, fps, clips_per_video, short, size, fit, crop, resample, flip, upscale, background, captions,
            aspect, audio, field, times, missing, exclude, labels, caption_field, part, index,
            tar_index, unreadable, storage_options, cache: as in `ClipOptions`.
        seed: of the order and of every record's draws.
        loading: how fast batches are made, never what they hold.

    Raises:
        OptionsError, OptionsTypeError: a value that cannot be used.
    """

    path: str = attrs.field(converter=os.fspath)
    layout: Layout | None = attrs.field(default=None, kw_only=True)
    split: str = attrs.field(default="train", validator=attrs.validators.instance_of(str), kw_only=True)
    val_split: str | None = attrs.field(default=None, validator=_text, kw_only=True)
    seed: int = attrs.field(default=0, validator=checks.seed, kw_only=True)
    loading: Loading = attrs.field(factory=Loading, kw_only=True)

    @property
    def options(self) -> VideoOptions:
        """The same wishes, for `dew.data.load`."""
        shared = {field.name: getattr(self, field.name) for field in attrs.fields(ClipOptions)}
        return VideoOptions(layout=self.layout, val_split=self.val_split, **shared)

    def load(self, *, batch: int) -> Dataset:
        """The data set, with `batch` clips in one step over all processes.

        Raises:
            SourceNotFoundError: nothing is stored at the path.
            SplitError: there is no such split; lists those there are.
            SourceError, DamagedSourceError: what is there does not fit together, or cannot be read.
            OverlapError: `val_split` names the training split, or a copy of it.
        """
        from dew.data.build import dataset_of

        return dataset_of(
            self.open(self.split),
            batch=batch,
            val=None if self.val_split is None else self.open(self.val_split),
            seed=self.seed,
            loading=self.loading,
        )

    def open(self, split: str) -> VideoSource:
        """One split as a record source.

        Raises:
            As `load`.
        """
        from dew_media.video.opening import open_split

        return open_split(self.path, split, self, layout=self.layout)

    def at(self, path: str | os.PathLike[str]) -> Self:
        """The same of another path."""
        return attrs.evolve(self, path=path)
