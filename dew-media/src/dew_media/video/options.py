"""What a caller can say about a collection of videos."""

import attrs

from dew.data import checks


@attrs.frozen(kw_only=True)
class VideoOptions:
    """Options of `dew.data.load("video/<path>")`.

    Args:
        field: name of the field that holds the clip, (B, T, H, W, C) uint8.
        frames: frames T of a clip.
        stride: a clip holds every `stride`-th frame.
    """

    field: str = attrs.field(default="video", validator=attrs.validators.instance_of(str))
    frames: int = attrs.field(default=16, validator=checks.count())
    stride: int = attrs.field(default=1, validator=checks.count())
