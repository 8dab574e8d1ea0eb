"""What a caller says of a token corpus, by name; `TokenWindows` and `PackedDocuments` say the same as one value."""

import math
import os
from typing import cast

import attrs

from dew.data import checks
from dew.data.errors import OptionsError, OptionsTypeError
from dew.tokens.access import CorpusOptions
from dew.tokens.packing import Long, check_long, check_max_segments
from dew.tokens.splits import is_split_name


def check_val(_instance: object, _attribute: "attrs.Attribute[str | float | None]", value: object) -> None:
    """An attrs validator for `val`: a split's name, a fraction between 0 and 1, or None."""
    if value is None:
        return
    if isinstance(value, str):
        if not is_split_name(value):
            raise OptionsError(f"val must name a split, a directory beside the training split's, got {value!r}")
        return
    if not isinstance(value, float):
        raise OptionsTypeError(
            "val must be the name of a split, a fraction of the tokens such as 0.01, or None, "
            f"got {value!r} ({type(value).__name__})"
        )
    if not (math.isfinite(value) and 0 < value < 1):
        raise OptionsError(f"val must be a fraction of the tokens above 0 and below 1, got {value}")


def _check_pack(_instance: object, _attribute: "attrs.Attribute[bool]", value: object) -> None:
    if not isinstance(value, bool):
        raise OptionsTypeError(f"pack must be True or False, got {value!r} ({type(value).__name__})")


def checked_plans(value: object) -> str | None:
    """`plans` as a path: a directory of this machine, or None; a converter for attrs.

    Raises:
        OptionsError, OptionsTypeError: it is neither.
    """
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise OptionsTypeError(f"plans must be the path of a directory or None, got {value!r} ({type(value).__name__})")
    path = str(cast("str | os.PathLike[str]", value))
    if not path or "://" in path:
        raise OptionsError(f"plans must be a directory of this machine, since plans are mapped, got {path!r}")
    return path


@attrs.frozen(kw_only=True)
class TokenOptions(CorpusOptions):
    """How `dew.data.load("tokens/<path>", options=...)` reaches a corpus and cuts it into records.

    Args:
        seq_len: S: a record is S + 1 tokens, `text` (B, S+1) int32 in a batch; inputs and targets overlap by one.
        val: what validation reads: the name of another split, or the fraction of the tokens at the end of the corpus
            that is kept from training, rounded up to whole documents; None: no validation.
        pack: whether a record is a row of whole documents, see `PackedDocuments`, rather than a window of the stream.
        long, max_segments, plans: of packing, as in `PackedDocuments`.
        format, dtype, eos_id, bos_id, storage_options, cache: as in `CorpusOptions`.

    Raises:
        OptionsError: a value that cannot be used.
        OptionsTypeError: a value of a type that cannot be used.
    """

    seq_len: int = attrs.field(validator=checks.count())
    val: str | float | None = attrs.field(default=None, validator=check_val)
    pack: bool = attrs.field(default=False, validator=_check_pack)
    long: Long = attrs.field(default="split", validator=check_long)
    max_segments: int | None = attrs.field(default=None, validator=check_max_segments)
    plans: str | None = attrs.field(default=None, converter=checked_plans)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        given = {"long": self.long != "split", "max_segments": self.max_segments, "plans": self.plans}
        if not self.pack and any(given.values()):
            names = " and ".join(name for name, value in given.items() if value)
            raise OptionsError(f"{names} say how documents are packed, and pack is False; add pack=True, or leave them")

    @property
    def val_split(self) -> str | None:
        """The split that validation reads when the caller names none: `"val"` for a fraction."""
        return self.val if self.val is None or isinstance(self.val, str) else "val"
