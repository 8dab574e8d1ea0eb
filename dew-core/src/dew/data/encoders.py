"""What turns captions into the arrays that a model's text encoder reads.

`ConditionEncoder` is all that Dew asks of one; `TokenizerEncoder` makes one of a `tokenizer.json`. An encoder is known
by the digest of its vocabulary, its context length and its pad id: where these agree, so do the ids.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast, runtime_checkable

import attrs
import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.errors import DamagedSourceError, OptionsError, SourceNotFoundError

_LONGEST_CONTEXT: Final = 1 << 20  # `tokenizer_config.json` writes 1e30 for "no limit"


@runtime_checkable
class ConditionEncoder(Protocol):
    """Turns captions into the arrays that a model's text encoder reads.

    It must pickle, since worker processes build steps too, and be safe to call from several threads.

    Optional, looked up by name:
        `made_by: Mapping[str, str]`: library -> version, of those that decide the ids; another one warns on resume.
    """

    @property
    def context_length(self) -> int:
        """Tokens of one caption, padding included."""
        ...

    @property
    def pad_id(self) -> int | None:
        """The id that fills a caption up, None where the encoder pads none."""
        ...

    @property
    def vocabulary(self) -> str:
        """A digest of what decides the ids: two encoders of one digest give every caption the same ids."""
        ...

    def tokenize(self, captions: Sequence[str], /) -> Mapping[str, npt.NDArray[Any]]:
        """The arrays of k captions by name, `(k, ...)` each, such as `input_ids` and `attention_mask`."""
        ...


class TokenizerEncoder:
    """A Hugging Face `tokenizer.json` as a `ConditionEncoder`, with the package `tokenizers`.

    Captions get the special tokens that the definition says, and are cut and filled up to `context_length`, on the side
    that the definition or the `tokenizer_config.json` beside it says (by default the right one).

    Args:
        path: a `tokenizer.json`, or a directory that holds one.
        context_length: tokens of one caption; by default what the definition or the `tokenizer_config.json` states.
        pad_id: the id to fill up with; by default what the definition or the `tokenizer_config.json` states.

    Raises:
        SourceNotFoundError: there is no `tokenizer.json`.
        DamagedSourceError: it cannot be read.
        OptionsError: length or pad id are stated nowhere, or the tokenizer draws at random.
        ImportError: the package `tokenizers` is not installed.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, context_length: int | None = None, pad_id: int | None = None
    ) -> None:
        self._path = _definition_path(path)
        parts, self._vocabulary = _read_definition(self._path)
        beside = _Beside.of(self._path.parent, parts)
        self._context_length = _context_length(context_length, beside, self._path)
        self._tokenizer = _tokenizer(parts, self._path)
        self._pad_id = _pad_id(pad_id, beside, self._tokenizer, self._path)
        self._tokenizer.enable_truncation(self._context_length, direction=beside.truncation_side)
        self._tokenizer.enable_padding(
            length=self._context_length,
            pad_id=self._pad_id,
            pad_token=self._tokenizer.id_to_token(self._pad_id),
            direction=beside.padding_side,
        )

    @property
    def context_length(self) -> int:
        """Tokens of one caption, padding included."""
        return self._context_length

    @property
    def pad_id(self) -> int:
        """The id that fills a caption up."""
        return self._pad_id

    @property
    def made_by(self) -> dict[str, str]:
        """`{"tokenizers": its version}`."""
        import tokenizers  # pyright: ignore[reportMissingTypeStubs]

        return {"tokenizers": tokenizers.__version__}

    @property
    def vocabulary(self) -> str:
        """sha256 of the definition, without what it says of cutting and padding."""
        return self._vocabulary

    def tokenize(self, captions: Sequence[str], /) -> dict[str, npt.NDArray[np.int32]]:
        """`{"input_ids", "attention_mask"}` of k captions, each `(k, context_length)` int32; the mask is 0 on padding.

        Raises:
            OptionsError: the definition adds more special tokens than the context holds.
        """
        encodings = self._tokenizer.encode_batch(list(captions))
        shape = (len(encodings), self._context_length)
        ids = [encoding.ids for encoding in encodings]
        if any(len(row) != self._context_length for row in ids):
            raise OptionsError(
                f"{self._path.name} adds special tokens that a context of {self._context_length} cannot hold; "
                "use a larger context_length"
            )
        return {
            "input_ids": np.array(ids, np.int32).reshape(shape),
            "attention_mask": np.array([one.attention_mask for one in encodings], np.int32).reshape(shape),
        }

    def __repr__(self) -> str:
        return f"TokenizerEncoder(context_length={self._context_length}, pad_id={self._pad_id})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (str(self._path), self._context_length, self._pad_id, self._vocabulary)


@attrs.frozen(kw_only=True)
class _Beside:
    """What definition and `tokenizer_config.json` say of cutting and padding."""

    context_length: int | None
    pad_id: int | None
    pad_token: str | None
    padding_side: str
    truncation_side: str

    @classmethod
    def of(cls, folder: Path, parts: Mapping[str, Any]) -> "_Beside":
        """Of the definition first, then of the files beside it."""
        padding, truncation = _part(parts, "padding"), _part(parts, "truncation")
        config = {**_object(folder / "special_tokens_map.json"), **_object(folder / "tokenizer_config.json")}
        token = config.get("pad_token")
        token = cast("Mapping[str, Any]", token).get("content") if isinstance(token, Mapping) else token
        length = truncation.get("max_length", config.get("model_max_length"))
        known = isinstance(length, int) and 0 < length <= _LONGEST_CONTEXT
        return cls(
            context_length=length if known else None,
            pad_id=padding.get("pad_id"),
            pad_token=token if isinstance(token, str) else None,
            padding_side=str(padding.get("direction", config.get("padding_side", "right"))).lower(),
            truncation_side=str(truncation.get("direction", config.get("truncation_side", "right"))).lower(),
        )


def _part(parts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Any = parts.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _definition_path(path: str | os.PathLike[str]) -> Path:
    found = Path(path).absolute()
    found = found / "tokenizer.json" if found.is_dir() else found
    if not found.is_file():
        raise SourceNotFoundError(
            f"there is no tokenizer.json at {found}; TokenizerEncoder takes its path or that of its directory"
        )
    return found


def _read_definition(path: Path) -> tuple[dict[str, Any], str]:
    """The definition, and the digest of what decides ids."""
    try:
        parts = cast("dict[str, Any]", json.loads(path.read_bytes()))
        model = parts["model"]
        digest = {name: value for name, value in parts.items() if name not in ("padding", "truncation")}
        dropout = model.get("dropout")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedSourceError(f"{path} is no tokenizer.json: {error!r}") from error
    if dropout:
        raise OptionsError(
            f"{path} splits words at random (dropout {dropout}), so its ids are never the same twice; "
            "set its dropout to null"
        )
    return parts, hashlib.sha256(json.dumps(digest, sort_keys=True).encode()).hexdigest()


def _tokenizer(parts: Mapping[str, Any], path: Path) -> Any:
    try:
        from tokenizers import Tokenizer  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise ImportError("TokenizerEncoder needs the package tokenizers: pip install 'dew-core[chat]'") from error
    try:
        return Tokenizer.from_str(json.dumps(parts))
    except Exception as error:  # the library raises nothing narrower
        raise DamagedSourceError(f"{path} is no tokenizer.json that the package tokenizers reads: {error}") from error


def _context_length(given: int | None, beside: _Beside, path: Path) -> int:
    if given is not None:
        return checks.check_count("context_length", given)
    if beside.context_length is None:
        raise OptionsError(
            f"neither {path} nor a tokenizer_config.json beside it says how many tokens a caption has; "
            "pass context_length=, such as 77 for CLIP"
        )
    return beside.context_length


def _pad_id(given: int | None, beside: _Beside, tokenizer: Any, path: Path) -> int:
    if given is None:
        given = beside.pad_id
    if given is None and beside.pad_token is not None:
        given = tokenizer.token_to_id(beside.pad_token)
    if given is None:
        raise OptionsError(
            f"neither {path} nor a tokenizer_config.json beside it says what captions are filled up with; pass pad_id="
        )
    if tokenizer.id_to_token(checks.check_count("pad_id", given, 0)) is None:
        raise OptionsError(f"pad_id={given} is no token of {path}, which has {tokenizer.get_vocab_size()}")
    return given


def _reopened(path: str, context_length: int, pad_id: int, expected: str) -> TokenizerEncoder:
    """A pickled encoder, in another process."""
    encoder = TokenizerEncoder(path, context_length=context_length, pad_id=pad_id)
    if encoder.vocabulary != expected:
        raise DamagedSourceError(
            f"{path} was altered since it was opened: its digest is {encoder.vocabulary}, expected {expected}"
        )
    return encoder


def _object(path: Path) -> dict[str, Any]:
    """A JSON object beside the definition, empty where there is none."""
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_bytes())
    except ValueError as error:
        raise DamagedSourceError(f"{path} is not JSON: {error}") from error
    return cast("dict[str, Any]", values) if isinstance(values, dict) else {}
