"""Text to ids: what a corpus needs of a tokenizer, and the one that needs nothing: bytes.

Dew never adds begin or end tokens through a tokenizer: the writer puts the ids, so that framing is the same for all.
"""

import hashlib
import json
from typing import Protocol, runtime_checkable

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import OptionsError
from dew.tokens.manifest import TokenizerInfo

_BYTES = 256


@runtime_checkable
class Tokenizer(Protocol):
    """Turns text into ids and back."""

    @property
    def info(self) -> TokenizerInfo:
        """What a corpus records of it."""
        ...

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """ids (n,) int32 of `text`, special tokens written in the text being ordinary text; none are added."""
        ...

    def decode(self, ids: npt.NDArray[np.integer], /) -> str:
        """Text of `ids` (n,); special tokens have none."""
        ...


@attrs.frozen(kw_only=True)
class ByteTokenizer:
    """The bytes of UTF-8 as ids 0 to 255, and up to three special ids after them, in the order bos, eos, pad.

    Args:
        bos, eos, pad: whether there is such a token.
    """

    bos: bool = False
    eos: bool = True
    pad: bool = False

    @property
    def info(self) -> TokenizerInfo:
        """Its vocabulary and digest; the digest covers which special ids there are."""
        ids = self._special_ids()
        definition = json.dumps({"bytes": _BYTES, **ids}, sort_keys=True)
        return TokenizerInfo(
            vocab_size=_BYTES + len(ids),
            sha256=hashlib.sha256(definition.encode()).hexdigest(),
            name="bytes",
            library="dew",
            version="1",
            bos_id=ids.get("bos"),
            eos_id=ids.get("eos"),
            pad_id=ids.get("pad"),
        )

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """One id for each byte of `text` in UTF-8, (n,) int32.

        Raises:
            UnicodeEncodeError: a lone surrogate, which UTF-8 cannot write.
        """
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def decode(self, ids: npt.NDArray[np.integer], /) -> str:
        """Text of `ids` (n,): special ids are left out, and bytes that are no UTF-8, such as at a cut, become U+FFFD.

        Raises:
            OptionsError: an id that is neither a byte nor special.
        """
        values = np.asarray(ids).reshape(-1)
        last = _BYTES + len(self._special_ids()) - 1
        wrong = values[(values < 0) | (values > last)]
        if wrong.size:
            raise OptionsError(f"the byte tokenizer has ids 0 to {last}, it cannot decode {wrong[0]}")
        return values[values < _BYTES].astype(np.uint8).tobytes().decode(errors="replace")

    def _special_ids(self) -> dict[str, int]:
        names = [name for name, present in (("bos", self.bos), ("eos", self.eos), ("pad", self.pad)) if present]
        return {name: _BYTES + number for number, name in enumerate(names)}
