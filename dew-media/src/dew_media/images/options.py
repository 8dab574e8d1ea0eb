"""What a caller can say about a collection of images."""

import attrs

from dew.data import checks


@attrs.frozen(kw_only=True)
class ImageOptions:
    """Options of `dew.data.load("images/<path>")`.

    Args:
        layout: how the images are stored; by default it is found from what is there.
        size: side of the square that images are brought to, in pixels; by default they keep their size.
    """

    layout: str | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.instance_of(str))
    )
    size: int | None = attrs.field(default=None, validator=attrs.validators.optional(checks.count()))
