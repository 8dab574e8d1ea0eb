"""What a caller can say about a prepared TFDS dataset."""

import os
from typing import Any, Final, Literal

import attrs

from dew.data.errors import OptionsError

Check = Literal["sizes", "full"]

_CHECKS: Final = ("sizes", "full")
_text = attrs.validators.optional(attrs.validators.instance_of(str))


def _check(_instance: object, _attribute: "attrs.Attribute[Check]", value: object) -> None:
    if value not in _CHECKS:
        raise OptionsError(f'check must be "sizes" or "full", got {value!r}')


@attrs.frozen(kw_only=True)
class TFDSOptions:
    """Options of `dew.data.load("tfds/<builder>")`.

    Args:
        path: directory of one prepared version, or a `data_dir` above it; by default `$TFDS_DATA_DIR`, else
            `~/tensorflow_datasets`. A local or mounted directory.
        config: builder config, for a builder that has several.
        version: exact version, such as `"1.2.0"`; by default the newest that is there.
        decoders: feature decoders by field name, as tensorflow-datasets takes them:
            `{"image": tfds.decode.SkipDecoding()}`.
        check: `"sizes"` compares one listing of the directory with the metadata; `"full"` also opens every shard and
            counts its records.

    Raises:
        TypeError: an argument of another type.
        OptionsError: no such `check`.
    """

    path: str | None = attrs.field(default=None, converter=attrs.converters.optional(os.fspath))
    config: str | None = attrs.field(default=None, validator=_text)
    version: str | None = attrs.field(default=None, validator=_text)
    decoders: Any = None
    check: Check = attrs.field(default="sizes", validator=_check)
