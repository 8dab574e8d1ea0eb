"""What a caller says of token windows, by name (`TokenOptions`); `TokenWindows` says the same as one value."""

import math

import attrs

from dew.data import checks
from dew.data.errors import OptionsError, OptionsTypeError
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


@attrs.frozen(kw_only=True)
class TokenOptions:
    """How `dew.data.load("tokens/<path>", options=...)` cuts a corpus into records.

    Args:
        seq_len: S: a record is S + 1 tokens, `text` (B, S+1) int32 in a batch; inputs and targets overlap by one.
        val: what validation reads: the name of another split, or the fraction of the tokens at the end of the corpus
            that is kept from training, rounded up to whole documents; None: no validation.

    Raises:
        OptionsError: a value that cannot be used.
        OptionsTypeError: a value of a type that cannot be used.
    """

    seq_len: int = attrs.field(validator=checks.count())
    val: str | float | None = attrs.field(default=None, validator=check_val)

    @property
    def val_split(self) -> str | None:
        """The split that validation reads when the caller names none: `"val"` for a fraction."""
        return self.val if self.val is None or isinstance(self.val, str) else "val"
