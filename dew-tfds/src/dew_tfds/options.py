"""What a caller can say about a prepared TFDS dataset."""

import os
from typing import Any

import attrs

_text = attrs.validators.optional(attrs.validators.instance_of(str))


@attrs.frozen(kw_only=True)
class TFDSOptions:
    """Options of `dew.data.load("tfds/<builder>")`.

    Args:
        path: directory of prepared datasets, or of one version of one; by default that of tensorflow-datasets.
        config: builder config, for a builder that has several.
        version: exact version, such as `"1.2.0"`; by default the one that is there.
        decoders: feature decoders by field name, as tensorflow-datasets takes them.
    """

    path: str | None = attrs.field(default=None, converter=attrs.converters.optional(os.fspath))
    config: str | None = attrs.field(default=None, validator=_text)
    version: str | None = attrs.field(default=None, validator=_text)
    decoders: Any = None
