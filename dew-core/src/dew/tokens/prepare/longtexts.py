"""Long texts in parts that have the ids of the whole.

While it encodes one text, `tokenizers` takes 100 bytes of memory for each byte of it. A text may be encoded in parts
where that changes no id: the model sees one word at a time, as normalizer and pre-tokenizer cut them, so a text can be
cut between two words if both sides are normalized and cut into words as in the whole. That is tried on a window around
each cut, and believed of tokenizers whose parts look at their neighbourhood alone; others are given whole texts.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, cast

LONGEST: Final = 1 << 18
"""Characters of a part, where the text can be cut."""

# Parts of a definition that look at a place and what follows it, however long the text before is.
_NORMALIZERS: Final = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer", "Sequence"}
_PRE_TOKENIZERS: Final = {
    "BertPreTokenizer",
    "ByteLevel",
    "Digits",
    "Punctuation",
    "Sequence",
    "Split",
    "Whitespace",
    "WhitespaceSplit",
}
_WINDOW: Final = 2048
_TRIES: Final = 16
# Right before the end of a line or a space that follows a plain letter or digit.
_CUTS: Final = (re.compile(r"(?<=[A-Za-z0-9])\n"), re.compile(r"(?<=[A-Za-z0-9]) (?=[A-Za-z])"))


class TextCutter:
    """Cuts texts for one tokenizer.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
        definition: its parsed `tokenizer.json`.
        longest: characters of a part.
    """

    def __init__(self, tokenizer: Any, definition: dict[str, Any], longest: int = LONGEST) -> None:
        self._normalizer = tokenizer.normalizer
        self._pre_tokenizer = tokenizer.pre_tokenizer
        self._longest = longest
        self._possible = self._pre_tokenizer is not None and _is_local(definition)

    def parts(self, text: str) -> list[str]:
        """`text` in parts, in order; itself where it is short or cannot be cut."""
        if len(text) <= self._longest or not self._possible:
            return [text]
        parts: list[str] = []
        start = 0
        while len(text) - start > self._longest:
            at = self._cut(text, start)
            if at is None:
                break
            parts.append(text[start:at])
            start = at
        return [*parts, text[start:]]

    def _cut(self, text: str, start: int) -> int | None:
        """The last good cut in the second half of the part that begins at `start`."""
        first, stop = start + self._longest // 2, start + self._longest
        for pattern in _CUTS:
            for at in _last_matches(pattern, text, first, stop):
                if self._is_cut(text, at):
                    return at
        return None

    def _is_cut(self, text: str, at: int) -> bool:
        left, right = text[max(0, at - _WINDOW) : at], text[at : at + _WINDOW]
        return self._words(left + right) == self._words(left) + self._words(right)

    def _words(self, text: str) -> list[str]:
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        return [word for word, _ in self._pre_tokenizer.pre_tokenize_str(text)]


def _last_matches(pattern: re.Pattern[str], text: str, first: int, stop: int) -> Iterator[int]:
    """Where `pattern` matches in `text[first:stop]`, the last first, a few of them."""
    found: list[int] = []
    size = 1 << 12
    while first < stop and len(found) < _TRIES:
        begin = max(first, stop - size)
        found += [match.start() for match in pattern.finditer(text, begin, stop)][::-1]
        stop, size = begin, 2 * size
    return iter(found[:_TRIES])


def _is_local(definition: dict[str, Any]) -> bool:
    """Whether no word depends on what stands far before it."""
    added: list[dict[str, Any]] = definition.get("added_tokens") or []
    for token in added:
        # It may eat the white space beside it, or span a cut.
        if token.get("lstrip") or token.get("rstrip") or token.get("single_word"):
            return False
        if any(pattern.search(token["content"]) for pattern in _CUTS):
            return False
    normalizers = set(_values(definition.get("normalizer"), "type"))
    pre_tokenizers = set(_values(definition.get("pre_tokenizer"), "type"))
    looks_back = any("(?<" in pattern for pattern in _values(definition.get("pre_tokenizer"), "Regex"))
    return normalizers <= _NORMALIZERS and pre_tokenizers <= _PRE_TOKENIZERS and not looks_back


def _values(value: Any, key: str) -> list[str]:
    """Every text that stands under `key` in a part of a definition."""
    if isinstance(value, dict):
        parts = cast("dict[str, Any]", value)
        own = [parts[key]] if isinstance(parts.get(key), str) else []
        return own + [found for part in parts.values() for found in _values(part, key)]
    if isinstance(value, list):
        return [found for part in cast("list[Any]", value) for found in _values(part, key)]
    return []
