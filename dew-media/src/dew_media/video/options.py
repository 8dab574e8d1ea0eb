"""What a caller can say about a collection of videos: which frames make a clip, and how they become arrays.

As for images, what the specification `VideoFolder` shares with `VideoOptions` is a class of its own.
"""

import os
from fractions import Fraction
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from dew.data.errors import OptionsError, OptionsTypeError
from dew.data.pixels import MAX_PIXELS
from dew_media.files.collection import Missing
from dew_media.geometry import Geometry
from dew_media.images.options import CollectionOptions
from dew_media.video.audio import AudioOptions
from dew_media.video.clips import ClipPolicy, Short

Layout: TypeAlias = Literal["folder", "tar"]
Aspect: TypeAlias = Literal["respect", "refuse", "ignore"]
"""What becomes of pixels that are not square: stretched to the shape that was filmed, refused, or taken as square."""

_IMAGES_ONLY: Final = {"exact": False, "engine": "pillow", "icc": "ignore", "max_pixels": MAX_PIXELS}

_text = attrs.validators.optional(attrs.validators.instance_of(str))


def _named(_instance: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if not isinstance(value, str):
        raise OptionsTypeError(f"{attribute.name} must be the name of a field, got {value!r}")
    if not value:
        raise OptionsError(f"{attribute.name} must not be empty")


def _optional(kind: type) -> Any:
    """A validator: of this class, or None."""

    def check(_instance: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
        if value is not None and not isinstance(value, kind):
            raise OptionsTypeError(f"{attribute.name} must be {kind.__name__}(...) or None, got {value!r}")

    return check


@attrs.frozen(kw_only=True)
class ClipOptions(CollectionOptions):
    """Which clips are taken of which files, and how they become arrays.

    Args:
        frames, stride, fps, clips_per_video, short: see `ClipPolicy`.
        size, fit, crop, resample, flip, upscale, background: as for images; one crop and one flip a clip.
        aspect: pixels that are not square: `"respect"` stretches pictures to the shape that was filmed, `"refuse"`
            names the files, `"ignore"` takes pixels as square.
        audio: the sound that comes with each clip, as the field `audio`.
        field: name of the field of clips.
        times: name of a field for the time of each frame in seconds from the file's first, (B, T) float32; none by
            default.
        missing, exclude, captions, labels, caption_field, part, storage_options, cache: see `CollectionOptions`.
        index: a directory or URL that `dew video index --into` put the index in; by default it is beside the videos.
        tar_index: a local directory for the index of tar shards; by default beside them, or in the user's cache.
        unreadable: files that the index could not read: `"error"` refuses the collection, naming them, `"drop"` leaves
            them out and says how many in the description.

    Raises:
        OptionsError, OptionsTypeError: an option is out of range, or does not go with another.
    """

    frames: int = 16
    stride: int | None = None
    fps: Fraction | float | None = None
    clips_per_video: int | None = None
    short: Short = "error"
    aspect: Aspect = "respect"
    audio: AudioOptions | None = attrs.field(default=None, validator=_optional(AudioOptions))
    field: str = attrs.field(default="video", validator=_named)
    times: str | None = attrs.field(default=None, validator=attrs.validators.optional(_named))
    index: str | None = attrs.field(default=None, converter=attrs.converters.optional(os.fspath))
    tar_index: str | None = attrs.field(default=None, converter=attrs.converters.optional(os.fspath))
    unreadable: Missing = "error"

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        for name, value, known in (
            ("aspect", self.aspect, get_args(Aspect)),
            ("unreadable", self.unreadable, get_args(Missing)),
        ):
            if value not in known:
                raise OptionsError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
        for name, default in _IMAGES_ONLY.items():
            if (value := getattr(self, name)) != default:
                raise OptionsError(f"{name}={value!r} is for images; videos are scaled as they are decoded")
        policy = self.policy
        if self.audio is not None:
            self.audio.samples(policy)
        taken = [name for name in (self.field, self.times, "label", "caption", "audio") if name is not None]
        if len(set(taken)) < len(taken):
            raise OptionsError(
                f"field={self.field!r} and times={self.times!r} must be two names, and not label, caption or audio"
            )

    @property
    def policy(self) -> ClipPolicy:
        """Which frames make a clip."""
        return ClipPolicy(**{field.name: getattr(self, field.name) for field in attrs.fields(ClipPolicy)})

    def shape(self) -> dict[str, Any]:
        """Everything that shapes a record, as JSON values."""
        geometry: Geometry = self.geometry
        return {
            "clips": self.policy.identity(),
            "pixels": {**geometry.identity(), "aspect": self.aspect},
            "audio": None if self.audio is None else self.audio.identity(),
        }


@attrs.frozen(kw_only=True)
class VideoOptions(ClipOptions):
    """Options of `dew.data.load("video/<path>")`; those of `ClipOptions`, and:

    Args:
        layout: `"folder"` or `"tar"`; by default found from what is there.
        val_split: the split to validate on when the caller names none.
    """

    layout: Layout | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.in_(get_args(Layout)))
    )
    val_split: str | None = attrs.field(default=None, validator=_text)
