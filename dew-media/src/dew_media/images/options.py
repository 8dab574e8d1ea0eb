"""What a caller can say about a collection of images: how pictures become arrays, and where the files are.

The specifications (`ImageFolder`, `OxfordFlowers`, ...) say the same as one value, so the two groups are classes of
their own: `PictureOptions` for any picture, `CollectionOptions` for collections of files, which videos share, and
`FileOptions` for those of images.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

import attrs

from dew.data import checks
from dew.data.cache import BlockCache
from dew.data.errors import OptionsError, OptionsTypeError
from dew.data.pixels import MAX_PIXELS, WHITE, Colour, Engine, Icc, Resample, check_decoding
from dew_media.files.collection import Missing
from dew_media.files.exclude import Exclude
from dew_media.files.folder import CaptionsFrom, LabelsFrom
from dew_media.files.open import Layout
from dew_media.files.problems import check_missing
from dew_media.geometry import Crop, Fit, Geometry, Size
from dew_media.images.buckets import FEWEST, candidates, sorted_buckets

Captions: TypeAlias = Literal["keep", "drop", "require"]
"""Whether batches carry captions: where there are any, never, or always, so that a collection without is refused."""

FileCaptions: TypeAlias = Literal["keep", "drop", "require", "metadata", "sidecars"]
"""The same, or where they are: in the metadata, or in files beside the images."""


def _of(kind: type[Any], what: str) -> Any:
    """A validator: one of a class, or None."""

    def check(_instance: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
        if value is not None and not isinstance(value, kind):
            raise OptionsTypeError(f"{attribute.name} must be {what} or None, got {value!r} ({type(value).__name__})")

    return check


_text = _of(str, "a text")


def _one_of(known: Any, *, optional: bool = False) -> Any:
    """A validator: one of the words of a Literal, or None where `optional`."""
    words = get_args(known)

    def check(_instance: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
        if value not in words and not (optional and value is None):
            choice = ", ".join(map(repr, words)) + (" or None" if optional else "")
            raise OptionsError(f"{attribute.name} must be one of {choice}, got {value!r}")

    return check


def _as_tuple(value: Any) -> Any:
    """A command line and JSON write lists."""
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _as_path(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, os.PathLike):
        raise OptionsTypeError(f"index must be a path or None, got {value!r} ({type(value).__name__})")
    return os.fspath(cast("os.PathLike[str]", value))


def _as_sizes(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise OptionsTypeError(f"buckets must be True, False, or sizes (height, width), got {value!r}")
    return tuple(_as_tuple(size) for size in cast("Sequence[Any]", value))


@attrs.frozen(kw_only=True)
class PictureOptions:
    """How every picture becomes an array.

    Args:
        size: (height, width) in pixels, or one number for a square; None keeps each picture's own size, and then all
            must have one size, or a `preprocess` must give them one.
        fit: `"crop"` scales to cover the size and cuts off what hangs over, `"pad"` fits into it, `"squash"` gives up
            the proportions.
        crop: which part `fit="crop"` keeps: `"center"`, or `"random"`, drawn anew each time a record is trained on.
        resample: the filter, `"bicubic"` by default; all of them shrink without aliasing.
        flip: how often a picture is mirrored left to right in training, 0 to 1.
        upscale: False refuses pictures that would have to grow.
        background: RGB of padding and behind transparent parts.
        exact: decodes JPEG at full size, always.
        engine: what resizes, `"pillow"` or `"fast"` (extra `dew-media[fast]`).
        icc: `"srgb"` converts colours by the embedded profile; by default it is left alone.
        max_pixels: the largest picture that is decoded.
        captions: `"keep"` puts captions in the batch where there are any, as strings, for `dew.data.tokenized`;
            `"drop"` leaves them out; `"require"` refuses a collection without.

    Raises:
        OptionsError, OptionsTypeError: an option is out of range, or does not go with another.
        ImportError: `engine="fast"`, and it is not installed.
    """

    size: int | Size | None = attrs.field(default=None, converter=_as_tuple)
    fit: Fit | None = None
    crop: Crop = "center"
    resample: Resample = "bicubic"
    flip: float = 0.0
    upscale: bool = True
    background: Colour = attrs.field(default=WHITE, converter=_as_tuple)
    exact: bool = False
    engine: Engine = "pillow"
    icc: Icc = "ignore"
    max_pixels: int = MAX_PIXELS
    captions: Captions = attrs.field(default="keep", validator=_one_of(Captions))

    def __attrs_post_init__(self) -> None:
        check_decoding(self.background, self.max_pixels, self.icc)
        _ = self.geometry

    @property
    def geometry(self) -> Geometry:
        """What pictures are brought to."""
        shared = {field.name: getattr(self, field.name) for field in attrs.fields(Geometry) if field.name != "fit"}
        return Geometry(**shared) if self.fit is None else Geometry(fit=self.fit, **shared)


@attrs.frozen(kw_only=True)
class CollectionOptions(PictureOptions):
    """How a collection of encoded files is read, images or videos.

    Args:
        missing: `"error"` refuses a collection whose files, metadata and captions do not fit each other; `"drop"`
            leaves out what does not, and says how much that was in the description.
        exclude: the manifest that `dew images verify` wrote, or the keys of files to leave out.
        captions: as in `PictureOptions`, or `"metadata"` or `"sidecars"`, where it must be said which of them count.
        labels: `"metadata"`, `"folders"` (class directories) or `"none"`; by default found from what is there.
        caption_field: the column or member that holds captions; by default `text` or `caption`.
        part: in tars, what follows the first dot in the name of the main file, such as `jpg` or `mp4`; by default any
            suffix of the kind.
        storage_options: of the file system behind a URL, for fsspec; never shown.
        cache: where blocks of remote files are kept on a local disk.
    """

    missing: Missing = "error"
    exclude: Exclude | None = None
    captions: FileCaptions = attrs.field(default="keep", validator=_one_of(FileCaptions))  # pyright: ignore[reportIncompatibleVariableOverride]
    labels: LabelsFrom | None = attrs.field(default=None, validator=_one_of(LabelsFrom, optional=True))
    caption_field: str | None = attrs.field(default=None, validator=_text)
    part: str | None = attrs.field(default=None, validator=_text)
    storage_options: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    cache: BlockCache | None = attrs.field(default=None, repr=False, validator=_of(BlockCache, "a BlockCache"))

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_missing(self.missing)
        if self.storage_options is not None and not isinstance(self.storage_options, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsTypeError(f"storage_options must be a mapping, got {type(self.storage_options).__name__}")
        if self.captions == "drop" and self.caption_field is not None:
            raise OptionsError(f'captions="drop" reads none; leave caption_field={self.caption_field!r} out')

    @property
    def captions_from(self) -> CaptionsFrom | None:
        """Where captions are looked for; None: found from what is there."""
        places: dict[str, CaptionsFrom] = {"drop": "none", "metadata": "metadata", "sidecars": "sidecars"}
        return places.get(self.captions)


@attrs.frozen(kw_only=True)
class FileOptions(CollectionOptions):
    """How a collection of image files is read; what `CollectionOptions` has, and:

    Args:
        column: in parquet, the column of encoded images; by default the only one.
        index: a local directory for the index of tar shards; by default beside the shards, or in the user's cache.
        buckets: trains on pictures of several proportions, a step on those of one: True chooses 5 to 9 sizes of at most
            `size` x `size` pixels, or the sizes themselves, (height, width) each. Validation reads at `size`.
        bucket_step: what both sides of a chosen bucket are multiples of.
        lanes: for parquet: trains in an order that reads this many row groups side by side and each of them once an
            epoch; by default every epoch is a full shuffle.
    """

    column: str | None = attrs.field(default=None, validator=_text)
    index: str | None = attrs.field(default=None, converter=_as_path)
    buckets: bool | tuple[Size, ...] = attrs.field(default=False, converter=_as_sizes)
    bucket_step: int = attrs.field(default=64, validator=checks.count())
    lanes: int | None = attrs.field(default=None, validator=attrs.validators.optional(checks.count()))

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.buckets:
            self._check_buckets()

    def _check_buckets(self) -> None:
        size = self.geometry.size
        if size is None or size[0] != size[1]:
            raise OptionsError(
                f"buckets need size=, the side of a square: a bucket has at most as many pixels, and validation reads "
                f"at that size; got size={self.size!r}"
            )
        if self.lanes is not None:
            raise OptionsError(f"buckets and lanes={self.lanes} are two orders of training; choose one")
        if not isinstance(self.buckets, bool):
            sorted_buckets(self.buckets)
        elif (found := len(candidates(size[0], self.bucket_step))) < FEWEST:
            raise OptionsError(
                f"bucket_step={self.bucket_step} leaves {found} of the {FEWEST} buckets or more that are chosen at "
                f"size={size[0]}; give a smaller one, such as bucket_step={max(1, size[0] // 8)}, or the buckets"
            )


@attrs.frozen(kw_only=True)
class ImageOptions(FileOptions):
    """Options of `dew.data.load("images/<path>")`.

    Args:
        layout: `"folder"`, `"tar"` or `"parquet"`; by default found from what is there.
        val_split: the split to validate on when the caller names none.
    """

    layout: Layout | None = attrs.field(default=None, validator=_one_of(Layout, optional=True))
    val_split: str | None = attrs.field(default=None, validator=_text)
