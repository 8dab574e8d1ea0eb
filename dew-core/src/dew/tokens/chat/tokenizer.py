"""A model's tokenizer directory: `tokenizer.json`, the names of its special tokens, and its chat templates."""

import hashlib
import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from dew.data.errors import OptionsError, SourceNotFoundError
from dew.tokens.manifest import TokenizerInfo

if TYPE_CHECKING:
    from dew.tokens.prepare.tokenizers import Definition

_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
)
_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@attrs.frozen
class AddedToken:
    """A token beside the learnt vocabulary. `plain`: it takes no spaces with it and stands alone nowhere only."""

    text: str
    special: bool
    plain: bool


@attrs.frozen
class ChatTokenizer:
    """A tokenizer with what a chat needs of it.

    Args:
        definition: the tokenizer.
        special: `"bos_token"`, ... -> its text, for templates.
        templates: name -> text of its chat templates; the usual one is called `"default"`.
        where: its path, for messages.
    """

    definition: "Definition"
    special: Mapping[str, str]
    templates: Mapping[str, str]
    where: str

    @property
    def info(self) -> TokenizerInfo:
        """What a corpus records of it."""
        return self.definition.info

    @property
    def added(self) -> list[AddedToken]:
        """The added tokens."""
        return [
            AddedToken(
                text=token["content"],
                special=bool(token.get("special")),
                plain=not any(token.get(flag) for flag in ("lstrip", "rstrip", "single_word", "normalized")),
            )
            for token in self.definition.added
        ]

    def template(self, wanted: str | None, *, tools: bool) -> str:
        """The text of a template.

        Args:
            wanted: its name, its text, or None for the usual one: with tools `"tool_use"`, where there is one.
            tools: whether the conversation has any.

        Raises:
            OptionsError: there is none.
        """
        if wanted is not None and wanted in self.templates:
            return self.templates[wanted]
        if wanted is not None and ("{%" in wanted or "{{" in wanted):
            return wanted
        names = ", ".join(map(repr, self.templates)) or "none"
        if wanted is not None:
            raise OptionsError(
                f"{self.where} has no chat template {wanted!r}, it has {names}; template= takes the name of one, or "
                "the text of a template"
            )
        usual = "tool_use" if tools and "tool_use" in self.templates else "default"
        if usual not in self.templates:
            raise OptionsError(
                f"{self.where} has no chat template, so it is not known how its model reads a conversation (templates: "
                f"{names}); pass its text as template="
            )
        return self.templates[usual]

    def digest(self) -> str:
        """sha256 of all of it but templates and place."""
        values = json.dumps([self.info.sha256, sorted(self.special.items())])
        return hashlib.sha256(values.encode()).hexdigest()


def load_chat_tokenizer(source: str | os.PathLike[str]) -> ChatTokenizer:
    """The tokenizer in a directory, or of the model of that name on the Hugging Face hub (`name` or `name@revision`).

    Raises:
        OptionsError: it is no tokenizer, or a package is missing.
        SourceNotFoundError: there is none.
    """
    from dew.tokens.prepare.tokenizers import load_definition

    folder = _folder(os.fspath(source))
    config = {**_object(folder / "special_tokens_map.json"), **_object(folder / "tokenizer_config.json")}
    special: dict[str, str] = {}
    for name in _SPECIAL:
        token: Any = config.get(name)
        token = cast("Any", token).get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            special[name] = token
    return ChatTokenizer(load_definition(folder), special, _templates(folder, config), str(folder))


def reference(definition: "Definition") -> Any:
    """The `tokenizers.Tokenizer` for a template's own text, in which added tokens are tokens."""
    return _made(definition.parts)


def plain(definition: "Definition") -> Any:
    """The `tokenizers.Tokenizer` for what people typed, in which no text is an added token."""
    return _made({**definition.parts, "added_tokens": []})


def _made(parts: dict[str, Any]) -> Any:
    from dew.tokens.prepare.tokenizers import tokenizers_library

    made: Any = tokenizers_library().Tokenizer.from_str(json.dumps({**parts, "truncation": None, "padding": None}))
    return made


def _folder(source: str) -> Path:
    path = Path(source)
    if path.is_dir():
        return path
    if path.is_file():
        return path.parent
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise SourceNotFoundError(f"there is no tokenizer at {path.absolute()}; check the path")
    name, _, revision = source.partition("@")
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise OptionsError(
            f"there is no directory {source!r}, and to look for a model of that name on the Hugging Face hub the "
            "package is missing: pip install huggingface-hub"
        ) from error
    try:
        return Path(hub.snapshot_download(name, revision=revision or None, allow_patterns=list(_FILES)))
    except Exception as error:  # the package has a dozen kinds
        raise SourceNotFoundError(
            f"there is no directory {source!r}, and no model of that name could be had from the Hugging Face hub: "
            f"{type(error).__name__}: {error}"
        ) from error


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise OptionsError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise OptionsError(f"{path} holds no JSON object, but {values!r:.60}")
    return cast("dict[str, Any]", values)


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Files beside the configuration are right where both have a template."""
    stated: Any = config.get("chat_template")
    found: dict[str, str] = {}
    if isinstance(stated, str):
        found["default"] = stated
    elif isinstance(stated, list):
        found = {entry["name"]: entry["template"] for entry in cast("list[Any]", stated)}
    if (folder / "chat_template.jinja").is_file():
        found["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = path.read_text(encoding="utf-8")
    return found
