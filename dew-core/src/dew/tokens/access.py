"""How a corpus is reached and read, whoever wrote it: what every way to open one takes."""

import difflib
from collections.abc import Mapping
from typing import Any, Final

import attrs
import numpy as np

from dew.data import checks
from dew.data.cache import BlockCache
from dew.data.errors import OptionsError, OptionsTypeError
from dew.data.storage import Storage

FORMATS: Final = ("dew", "megatron", "datatrove", "npy", "llm.c", "headerless")


def _check_format(_instance: object, _attribute: "attrs.Attribute[str | None]", value: object) -> None:
    if value is None or value in FORMATS:
        return
    if not isinstance(value, str):
        raise OptionsTypeError(f"format must be a string or None, got {value!r} ({type(value).__name__})")
    near = difflib.get_close_matches(value, FORMATS, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise OptionsError(f"format must be one of {', '.join(FORMATS)}, or None to look, got {value!r}{hint}")


def _as_dtype(value: object) -> str | None:
    """The NumPy spelling of an integer type, such as `"<u2"` for `"uint16"`; a converter for attrs."""
    if value is None:
        return None
    try:
        dtype = np.dtype(value)  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]
    except TypeError as error:
        raise OptionsError(f"dtype must name an integer type such as 'uint16' or 'uint32', got {value!r}") from error
    if dtype.kind not in "iu":
        raise OptionsError(f"dtype must be an integer type, since ids are whole numbers, got {value!r}")
    return dtype.str


def _check_id(_instance: object, attribute: "attrs.Attribute[int | None]", value: object) -> None:
    if value is not None:
        checks.check_count(attribute.name, value, 0)


def _check_mapping(_instance: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise OptionsTypeError(f"{attribute.name} must be a mapping or None, got {type(value).__name__}")


def _check_cache(_instance: object, _attribute: "attrs.Attribute[Any]", value: object) -> None:
    if value is not None and not isinstance(value, BlockCache):
        raise OptionsTypeError(f"cache must be a dew.data.BlockCache or None, got {value!r} ({type(value).__name__})")


@attrs.frozen(kw_only=True)
class CorpusOptions:
    """How a corpus is reached and read. Nothing of it is needed for a local corpus that Dew wrote.

    Args:
        format: who wrote it: "dew", "megatron", "datatrove", "npy", "llm.c", "headerless"; None: by what is there,
            refused where that could be several.
        dtype: type of the ids in headerless files, such as "uint16"; other formats state theirs.
        eos_id: where files do not say where documents end: the id that ends each of them.
        bos_id: in its place, the id that begins each of them.
        storage_options: for the file system of a URL, as fsspec takes them; never shown.
        cache: where blocks of remote files are kept on a local disk.
        tokenizer: the tokenizer that the model uses, as `prepare` takes it (a `tokenizer.json`, its directory, a
            `ByteTokenizer`, ...): a corpus that another one prepared is refused. None: not checked.

    Raises:
        OptionsError, OptionsTypeError: a value that cannot be used.
    """

    format: str | None = attrs.field(default=None, validator=_check_format)
    dtype: str | None = attrs.field(default=None, converter=_as_dtype)
    eos_id: int | None = attrs.field(default=None, validator=_check_id)
    bos_id: int | None = attrs.field(default=None, validator=_check_id)
    storage_options: Mapping[str, Any] | None = attrs.field(
        default=None, validator=_check_mapping, repr=False, hash=False
    )
    cache: BlockCache | None = attrs.field(default=None, validator=_check_cache, repr=False)
    tokenizer: Any = attrs.field(default=None, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if self.eos_id is not None and self.bos_id is not None:
            raise OptionsError(
                f"eos_id={self.eos_id} and bos_id={self.bos_id} both say where documents end; give the one that "
                "every document has"
            )

    def storage(self, path: str) -> Storage:
        """What is stored at `path`."""
        return Storage(path, options=self.storage_options or {}, cache=self.cache)

    def access(self) -> dict[str, Any]:
        """These options alone, to make other options that have them too."""
        return {field.name: getattr(self, field.name) for field in attrs.fields(CorpusOptions)}
