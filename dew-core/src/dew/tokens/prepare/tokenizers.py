"""Which tokenizer: its definition, its special ids, and what a corpus records of it.

A definition is the text of a Hugging Face `tokenizer.json`; it alone decides the ids, whatever engine makes them. It
does not say which of its tokens begin and end a document: that stands in `tokenizer_config.json` beside it, or is said
by the caller.
"""

import hashlib
import importlib
import json
import os
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import DamagedSourceError, OptionsError, OptionsTypeError, SourceNotFoundError
from dew.tokens.manifest import TokenizerInfo
from dew.tokens.tokenizer import ByteTokenizer

TokenizerSource: TypeAlias = "str | os.PathLike[str] | ByteTokenizer | Any"

DEFINITION: Final = "tokenizer.json"
BYTES: Final = "bytes"
SPECIAL: Final = ("bos", "eos", "pad")

_CONFIGS: Final = ("tokenizer_config.json", "special_tokens_map.json")


@attrs.frozen
class Definition:
    """A tokenizer as it travels to workers.

    Args:
        info: what a corpus records of it.
        text: its `tokenizer.json`; None for `ByteTokenizer`.
    """

    info: TokenizerInfo
    text: str | None = attrs.field(repr=False)

    def check(self, where: str) -> None:
        """Compare the text with the digest in `info`.

        Raises:
            DamagedSourceError: it is another tokenizer; `where` names it.
        """
        digest = hashlib.sha256((self.text or "").encode()).hexdigest()
        if digest != self.info.sha256:
            raise DamagedSourceError(
                f"{where} is not the tokenizer that this corpus was begun with: its sha256 is {digest}, the plan "
                f"states {self.info.sha256}; restore it"
            )

    @cached_property
    def parts(self) -> dict[str, Any]:
        """The parsed definition."""
        return json.loads(self.text or "{}")

    @property
    def added(self) -> list[dict[str, Any]]:
        """The tokens that were added to the vocabulary, special ones among them."""
        return self.parts.get("added_tokens") or []

    def unknown_id(self) -> int | None:
        """The id for what the vocabulary does not hold, where there is one."""
        model: Any = self.parts.get("model") or {}
        if isinstance(model.get("unk_id"), int):
            return model["unk_id"]
        vocabulary = model.get("vocab")
        return cast("Any", vocabulary).get(model.get("unk_token")) if isinstance(vocabulary, dict) else None

    def control_ids(self) -> npt.NDArray[np.int64]:
        """Ids that no text may become: the special tokens, without the one for unknown text."""
        ids: set[int | None] = {token["id"] for token in self.added if token.get("special")}
        ids |= {self.info.bos_id, self.info.eos_id, self.info.pad_id}
        ids -= {self.unknown_id(), None}
        return np.array(sorted(cast("set[int]", ids)), np.int64)


def load_definition(
    source: TokenizerSource,
    *,
    bos_token: str | None = None,
    eos_token: str | None = None,
    pad_token: str | None = None,
) -> Definition:
    """The definition that `source` names.

    Args:
        source: the path of a `tokenizer.json` or of a directory that holds one, the name of a model on the Hugging Face
            hub (`name` or `name@revision`), a `tokenizers.Tokenizer`, a `ByteTokenizer`, or `"bytes"` for one.
        bos_token, eos_token, pad_token: texts of the tokens that begin a document, end it, and fill up, where
            `tokenizer_config.json` does not say so or is to be overruled.

    Raises:
        OptionsError: it is no tokenizer, draws at random, or has no such token.
        SourceNotFoundError: there is no such file.
    """
    given = {"bos": bos_token, "eos": eos_token, "pad": pad_token}
    if isinstance(source, str) and source == BYTES:
        source = ByteTokenizer()
    if isinstance(source, ByteTokenizer):
        if any(given.values()):
            raise OptionsError(
                "the byte tokenizer's special tokens have no text; make one with ByteTokenizer(bos=True)"
            )
        return Definition(source.info, None)
    if hasattr(source, "to_str"):
        return _definition(cast("Any", source).to_str(), "the tokenizer", "", {}, given)
    if not isinstance(source, str | os.PathLike):
        raise OptionsTypeError(
            "tokenizer must be a path, the name of a model, or a tokenizer, "
            f"got {source!r:.80} ({type(source).__name__})"
        )
    path, name = _find(os.fspath(cast("str | os.PathLike[str]", source)))
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise OptionsError(f"{path} is no tokenizer.json: {error}") from error
    return _definition(text, str(path), name, _named_beside(path), given)


def plain(definition: Definition, *, parse_special: bool) -> str:
    """The definition for an engine that has no switches: nothing is cut, padded or added, and special tokens are text.

    Args:
        definition: the tokenizer.
        parse_special: keep the special tokens, so that their text becomes them.
    """
    parts = {**definition.parts, "truncation": None, "padding": None, "post_processor": None}
    if not parse_special:
        parts["added_tokens"] = [token for token in definition.added if not token.get("special")]
    return json.dumps(parts, ensure_ascii=False)


def tokenizers_library() -> Any:
    """The package `tokenizers`."""
    try:
        import tokenizers
    except ImportError as error:
        raise OptionsError(
            'this tokenizer needs the package tokenizers: pip install "dew-core[prepare]"; '
            'without it there is tokenizer="bytes"'
        ) from error
    return tokenizers


def reference(definition: Definition, *, parse_special: bool) -> Any:
    """A `tokenizers.Tokenizer` that cuts and pads nothing, and takes the text of special tokens as text."""
    assert definition.text is not None
    tokenizer = tokenizers_library().Tokenizer.from_str(definition.text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = not parse_special
    return tokenizer


def _definition(text: str, where: str, name: str, named: dict[str, str], given: dict[str, str | None]) -> Definition:
    library = tokenizers_library()
    try:
        tokenizer = library.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise OptionsError(f"{where} is no tokenizer that tokenizers {library.__version__} reads: {error}") from error
    model = json.loads(text)["model"]
    if model.get("dropout"):
        raise OptionsError(
            f"{where} splits words at random (dropout {model['dropout']}), so its ids are never the same twice; "
            "set its dropout to null"
        )
    ids: dict[str, int | None] = {}
    for kind in SPECIAL:
        token = given[kind] if given[kind] is not None else named.get(kind)
        ids[kind] = None if token is None else tokenizer.token_to_id(token)
        if token is not None and ids[kind] is None:
            raise OptionsError(
                f"{where} has no token {token!r}, which {kind}_token names; {_special_tokens(tokenizer)}"
            )
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    info = TokenizerInfo(
        vocab_size=max(vocabulary.values(), default=0) + 1,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        name=name,
        library="tokenizers",
        version=library.__version__,
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        pad_id=ids["pad"],
    )
    return Definition(info, text)


def special_tokens_of(definition: Definition) -> str:
    """A phrase that lists the special tokens, for messages."""
    if definition.text is None:
        return "the byte tokenizer has them as it was made"
    return _special_tokens(tokenizers_library().Tokenizer.from_str(definition.text))


def _special_tokens(tokenizer: Any) -> str:
    tokens = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    listed = ", ".join(map(repr, tokens[:12])) + (", ..." if len(tokens) > 12 else "")
    return f"its special tokens are {listed}" if tokens else "it has no special tokens"


def _find(source: str) -> tuple[Path, str]:
    """The definition's path, and the name of the model where it has one."""
    path = Path(source)
    if path.is_dir():
        if (path / DEFINITION).is_file():
            return path / DEFINITION, ""
        raise OptionsError(
            f"{path} holds no {DEFINITION}; a model with another kind of file must be converted first, as "
            "transformers does with AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    if path.is_file():
        return path, ""
    if source.startswith((".", "/", "~")) or path.suffix == ".json" or source.count("/") > 1:
        raise SourceNotFoundError(f"there is no tokenizer at {path.absolute()}; check the path")
    return _from_hub(source), source


def _from_hub(source: str) -> Path:
    name, _, revision = source.partition("@")
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        errors: Any = importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        raise OptionsError(
            f"there is no file or directory {source!r}, and to look for a model of that name on the Hugging Face hub "
            "the package is missing: pip install huggingface-hub"
        ) from error
    found: Path | None = None
    for file in (DEFINITION, *_CONFIGS):
        try:
            path = Path(hub.hf_hub_download(name, file, revision=revision or None))
        except errors.EntryNotFoundError as error:
            if file == DEFINITION:
                raise OptionsError(f"{source} on the Hugging Face hub has no {DEFINITION}: {error}") from error
            continue
        except (errors.HfHubHTTPError, OSError, ValueError) as error:
            raise SourceNotFoundError(
                f"there is no file or directory {source!r}, and no model of that name could be had from the Hugging "
                f"Face hub: {type(error).__name__}: {error}"
            ) from error
        found = found or path
    assert found is not None
    return found


def _named_beside(path: Path) -> dict[str, str]:
    """bos, eos and pad, as the files beside a definition name them; the first file that names one is right."""
    named: dict[str, str] = {}
    for name in reversed(_CONFIGS):
        file = path.with_name(name)
        if file.is_file():
            try:
                values: Any = json.loads(file.read_text(encoding="utf-8"))
            except ValueError as error:
                raise OptionsError(f"{file} is not JSON: {error}") from error
            for kind in SPECIAL:
                token: Any = cast("Any", values).get(f"{kind}_token") if isinstance(values, dict) else None
                token = cast("Any", token).get("content") if isinstance(token, dict) else token
                if isinstance(token, str):
                    named[kind] = token
    return named
