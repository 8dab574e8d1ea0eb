"""The record source of images: encoded files in, records of one picture each out.

`source[i]` leaves nothing to chance: the middle of the picture, never mirrored, its first caption. `drawn(i, rng)` is
the same record with its random parts, which a training stream reads with the record's own draws.
"""

import operator
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from dew.data.blocks import BlockOrder
from dew.data.errors import OptionsError, SourceError
from dew.data.pixels import Icc
from dew_media.files.collection import MediaFiles
from dew_media.geometry import Geometry, decode_placed
from dew_media.images.buckets import AspectBuckets, BucketOrder
from dew_media.images.options import PictureOptions
from dew_media.images.statistics import statistics_of

IMAGE, LABEL, CAPTION = "image", "label", "caption"


class ImageSource:
    """The images of a collection as records.

    A record is `{"image": (H, W, 3) uint8}`, with `"label"` (int32) and `"caption"` (str) where the collection has
    them. A file is opened when it is read, and closed again.

    Args:
        files: the encoded images.
        options: how they become arrays.

    Raises:
        SourceError: captions are required, and there are none.
    """

    def __init__(self, files: MediaFiles, options: PictureOptions) -> None:
        if options.captions == "require" and not files.has_captions:
            raise SourceError(
                f"captions are required, and there are none: {files.description()}; put them in a metadata table, in "
                '.txt files beside the images, or in the shards, or ask for captions="keep"'
            )
        self.files = files
        self._geometry = options.geometry
        self._icc: Icc = options.icc
        self._max_pixels = options.max_pixels
        self._captioned = files.has_captions and options.captions != "drop"

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        """Record `index`, without chance.

        Raises:
            IndexError: there is no such record.
            DamagedSourceError, SourceError: the image cannot be read; names file, shard and offset.
        """
        return self._record(operator.index(index), None)

    def drawn(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """Record `index` with its random parts.

        Four 64-bit words of `rng` are taken, whatever is needed of them: three for the geometry, one for the caption.

        Raises:
            As `source[index]`.
        """
        return self._record(index, rng)

    def __repr__(self) -> str:
        return f"ImageSource({self.files.description()})"

    @property
    def label_names(self) -> tuple[str, ...]:
        """Name of each label, `()` where there are none."""
        return self.files.label_names

    @property
    def geometry(self) -> Geometry:
        """What pictures are brought to."""
        return self._geometry

    def fingerprint(self) -> str:
        """Of the collection, as cheaply as its layout allows; see its `digest`."""
        return self.files.digest()

    def identity(self) -> dict[str, Any]:
        """What shapes pixels, and whether there are captions."""
        return {"pixels": {**self._geometry.identity(), "icc": self._icc}, "captioned": self._captioned}

    def made_by(self) -> dict[str, str]:
        """Version of the library that decodes."""
        import PIL

        return {"pillow": PIL.__version__}

    def statistics(self) -> Mapping[str, Mapping[str, int]]:
        """Sizes, formats, pixel modes and proportions, read from the headers of up to 10 000 images."""
        return statistics_of(self.files)

    def shares_records_with(self, other: object) -> int:
        """How many files both read, where that can be told: local files by their paths."""
        if not isinstance(other, ImageSource):
            return 0
        own = getattr(self.files, "shares_records_with", None)
        if own is not None:
            return int(own(other.files))
        ours, theirs = _root(self.files), _root(other.files)
        if ours is None or theirs is None or not (ours.startswith(theirs) or theirs.startswith(ours)):
            return 0
        paths = {ours + self.files.key(index) for index in range(len(self))}
        return sum(theirs + other.files.key(index) in paths for index in range(len(other)))

    def open(self) -> Self:
        """A reader of the same records with files of its own."""
        reader = object.__new__(type(self))
        reader.__dict__.update(self.__dict__, files=self.files.reopened())
        return reader

    def close(self) -> None:
        """Frees what the files hold."""
        self.files.close()

    def _geometry_of(self, index: int) -> Geometry:
        return self._geometry

    def _record(self, index: int, rng: np.random.Generator | None) -> dict[str, Any]:
        files = self.files
        data = files.read(index)
        image = decode_placed(
            data,
            geometry=self._geometry_of(index),
            rng=rng,
            name=files.name(index),
            max_pixels=self._max_pixels,
            icc=self._icc,
        )
        record: dict[str, Any] = {IMAGE: image}
        word = 0 if rng is None else int(rng.bit_generator.random_raw())
        label = files.label(index)
        if label is not None:
            record[LABEL] = np.int32(label)
        if self._captioned:
            captions = files.captions(index)
            record[CAPTION] = captions[word * len(captions) >> 64]
        return record


class BucketedImages(ImageSource):
    """Images of several proportions, each at the size of its bucket; an epoch's steps read one bucket each.

    Args:
        files, options: as in `ImageSource`.
        buckets: which bucket each image belongs to.
        batch: the global batch of the steps.
    """

    def __init__(self, files: MediaFiles, options: PictureOptions, buckets: AspectBuckets, batch: int) -> None:
        super().__init__(files, options)
        self.buckets = buckets
        self._batch = batch
        self._geometries = {size: self._geometry.at_size(size) for size in buckets.sizes}

    def order(self, seed: int) -> BucketOrder:
        """The order that keeps a step within one bucket."""
        return BucketOrder(self.buckets, batch=self._batch, seed=seed)

    def _geometry_of(self, index: int) -> Geometry:
        return self._geometries[self.buckets.size_of(index)]


class BlockedImages(ImageSource):
    """Images in row groups, trained on in an order that reads each row group once an epoch.

    Args:
        files, options: as in `ImageSource`.
        lanes: row groups that are read side by side.

    Raises:
        OptionsError: the files are read one by one, so that any order is as good.
    """

    def __init__(self, files: MediaFiles, options: PictureOptions, lanes: int) -> None:
        super().__init__(files, options)
        if not files.blocks:
            raise OptionsError(
                f"lanes={lanes} are row groups of parquet, and these files are read one by one: {files.description()}; "
                "leave lanes out"
            )
        self._lanes = lanes
        self._keep()

    def open(self) -> Self:
        """A reader of the same records with files of its own."""
        reader = super().open()
        reader._keep()
        return reader

    def _keep(self) -> None:
        """The row groups of all lanes stay in memory, so that each is read once."""
        keep = getattr(self.files, "keep_blocks", None)
        if keep is not None:
            keep(self._lanes)

    def order(self, seed: int) -> BlockOrder:
        """Row groups in a fresh order in each epoch, and the images of `lanes` of them mixed."""
        return BlockOrder(self.files.blocks, seed=seed, lanes=self._lanes)


def _root(files: MediaFiles) -> str | None:
    """The directory that the keys of local files are relative to."""
    path, key = files.path(0), files.key(0)
    return path.removesuffix(key) if path is not None and path.endswith(key) else None
