"""What a caller can say about a Hugging Face dataset."""

import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs

DataFiles: TypeAlias = str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""One file or pattern, several, or those of each split."""

_text = attrs.validators.optional(attrs.validators.instance_of(str))


@attrs.frozen(kw_only=True)
class HFOptions:
    """Options of `dew.data.load("hf/<name>")`, with the names and meanings of `datasets.load_dataset`.

    Args:
        config: the dataset's configuration.
        data_dir: directory inside the dataset.
        data_files: one file or pattern, a list of them, or a mapping from split to these.
        cache_dir: where downloads and prepared tables are kept.
        revision: branch, tag or commit of the dataset.
    """

    config: str | None = attrs.field(default=None, validator=_text)
    data_dir: str | None = attrs.field(default=None, validator=_text)
    data_files: DataFiles | None = None
    cache_dir: str | None = attrs.field(default=None, converter=attrs.converters.optional(os.fspath))
    revision: str | None = attrs.field(default=None, validator=_text)
