"""What a caller can say about a Hugging Face dataset."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import attrs

from dew.data import checks
from dew.data.errors import OptionsError, OptionsTypeError

DataFiles: TypeAlias = str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""One file or pattern, several, or those of each split."""

_text = attrs.validators.optional(attrs.validators.instance_of(str))
_flag = attrs.validators.instance_of(bool)


def _check_storage(_instance: object, _attribute: "attrs.Attribute[Any]", value: object) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise OptionsTypeError(f"storage_options is a mapping of fsspec's options, got a {type(value).__name__}")


def _check_config_kwargs(_instance: object, _attribute: "attrs.Attribute[Any]", value: object) -> None:
    if not isinstance(value, Mapping):
        raise OptionsTypeError(f"config_kwargs is a mapping of a format's own arguments, got {value!r}")
    if "trust_remote_code" in value:
        raise OptionsError(
            "config_kwargs has trust_remote_code, and Dew never runs code that comes with a dataset; leave it out, and "
            "convert the dataset's files to a format that `datasets` reads (parquet, jsonl, ...)"
        )
    if own := sorted(set(map(str, cast("Mapping[Any, Any]", value))) & _LOADING):
        raise OptionsError(f"config_kwargs has {own}, which HFOptions and load have arguments of their own for")


def _check_position(_instance: object, _attribute: "attrs.Attribute[Any]", value: object) -> None:
    if value not in (None, "records"):
        raise OptionsError(f'position must be "records" or None, got {value!r}')


def _check_background(_instance: object, _attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if not isinstance(value, tuple) or len(value) != 3 or not all(isinstance(one, int) for one in value):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        raise OptionsError(f"background is (red, green, blue), ints from 0 to 255, got {value!r}")


@attrs.frozen(kw_only=True)
class HFOptions:
    """Options of `dew.data.load("hf/<name>")`, with the names and meanings of `datasets.load_dataset`.

    Args:
        config: the dataset's configuration (`name` there).
        data_dir: directory inside the dataset.
        data_files: one file or pattern, a list of them, or a mapping from split to these.
        cache_dir: where downloads and prepared tables are kept.
        features: a `datasets.Features` that the columns are cast to.
        download_config, download_mode, verification_mode: as there.
        keep_in_memory: holds the table in memory instead of mapping its file.
        revision: branch, tag or commit of the dataset.
        token: of the hub; it appears in no message and no position.
        num_proc: processes that prepare the table.
        save_infos: as there.
        storage_options: of the file system behind `data_files`, for fsspec; never shown.
        config_kwargs: further arguments of the format, such as `{"columns": [...]}` for parquet.
        position: "records" gives a stream the position of the whole run, one integer for any process count; None leaves
            it with the position of its share.
        lanes: row groups that `position="records"` reads side by side, and so the size of its shuffle.
        read_everything: allows more than 16 processes to read the whole stream each, where that is the only way to
            `position="records"`.
        background: RGB behind transparent images.
    """

    config: str | None = attrs.field(default=None, validator=_text)
    data_dir: str | None = attrs.field(default=None, validator=_text)
    data_files: DataFiles | None = None
    cache_dir: str | None = attrs.field(default=None, converter=attrs.converters.optional(os.fspath))
    features: Any = None
    download_config: Any = attrs.field(default=None, repr=False)
    download_mode: Any = None
    verification_mode: Any = None
    keep_in_memory: bool | None = attrs.field(default=None, validator=attrs.validators.optional(_flag))
    revision: str | None = attrs.field(default=None, validator=_text)
    token: str | bool | None = attrs.field(default=None, repr=False)
    num_proc: int | None = attrs.field(default=None, validator=attrs.validators.optional(checks.count()))
    save_infos: bool = attrs.field(default=False, validator=_flag)
    storage_options: Mapping[str, Any] | None = attrs.field(default=None, repr=False, validator=_check_storage)
    config_kwargs: Mapping[str, Any] = attrs.field(factory=dict, repr=False, validator=_check_config_kwargs)
    position: Literal["records"] | None = attrs.field(default=None, validator=_check_position)
    lanes: int | None = attrs.field(default=None, validator=attrs.validators.optional(checks.count()))
    read_everything: bool = attrs.field(default=False, validator=_flag)
    background: tuple[int, int, int] = attrs.field(default=(255, 255, 255), validator=_check_background)

    def given(self) -> list[str]:
        """Names of the arguments that say how a dataset is opened by name, where they are not the default."""
        return [
            field.name
            for field in attrs.fields(HFOptions)
            if field.name in _LOADING and getattr(self, field.name) != _default(field)
        ]


def _default(field: "attrs.Attribute[Any]") -> Any:
    return {} if field.name == "config_kwargs" else field.default


_LOADING = frozenset(
    {
        *("cache_dir", "config", "config_kwargs", "data_dir", "data_files", "download_config", "download_mode"),
        *("features", "keep_in_memory", "num_proc", "revision", "save_infos", "storage_options", "token"),
        *("name", "path", "split", "streaming", "verification_mode"),
    }
)
