"""Control tokens that somebody typed: found in a conversation, and where the template put them.

"<|im_end|>" in a user's message must not end the user's turn. A render with the typed ones marked shows where they
went, if it is the same render but for the marks; a template that looks into the message and then writes something else
is refused, not guessed at.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from dew.data.errors import SourceError
from dew.tokens.chat.conversation import Conversation
from dew.tokens.chat.tokenizer import AddedToken

_PRIVATE: Final = range(0xF0000, 0xF1000, 2)  # code points that belong to nobody


class TypedTokens:
    """Looks for control tokens in what people wrote.

    Args:
        added: the tokenizer's added tokens. Special ones are looked for everywhere. Others, such as `<think>` or
            `<tool_call>`, are a part of what an assistant writes; elsewhere they are looked for if the template writes
            them too.
        literals: every text that stands in the template itself.
    """

    def __init__(self, added: Sequence[AddedToken], literals: str) -> None:
        special = [token.text for token in added if token.special and not token.text.isspace()]
        written = [t.text for t in added if not t.special and t.text in literals and not t.text.isspace()]
        self._special = _Finder(special)
        self._all = _Finder(special + written)

    def find(
        self, conversation: Conversation, text: str, render: Callable[[Conversation], str]
    ) -> list[tuple[int, int]]:
        """`[start, stop)` in `text`, the render of `conversation`, of every control token that was typed.

        Raises:
            SourceError: the template writes something else where one is marked.
        """
        if not self._all.any_in(_strings([conversation.messages, conversation.tools])):
            return []
        marks = next(
            (chr(code), chr(code + 1)) for code in _PRIVATE if chr(code) not in text and chr(code + 1) not in text
        )
        for others in (self._all, self._special):
            found = _places(render(self._marked(conversation, others, marks)), text, marks)
            if found is not None:
                return found
        tokens = sorted({t for s in _strings([conversation.messages, conversation.tools]) for t in self._all.all_in(s)})
        raise SourceError(
            f"{', '.join(map(repr, tokens))} was typed in a message, and the template writes another text because of "
            "it, so that what was typed cannot be told from what the template adds; take it out of the row"
        )

    def _marked(self, conversation: Conversation, others: "_Finder", marks: tuple[str, str]) -> Conversation:
        messages = [
            {key: value if key == "role" else _mapped(value, finder, marks) for key, value in message.items()}
            for message in conversation.messages
            for finder in [self._special if message["role"] == "assistant" else others]
        ]
        return Conversation(messages, _mapped(conversation.tools, others, marks))


def control_tokens_in(text: str, added: Sequence[AddedToken]) -> list[tuple[int, int]]:
    """`[start, stop)` of every added token in `text`."""
    finder = _Finder([token.text for token in added if not token.text.isspace()])
    return finder.spans(text) if finder.any_in([text]) else []


class _Finder:
    """Finds any of some texts quickly where there is none: by two letters first."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._begins = tuple({text[:2] for text in texts})
        longest = sorted(texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest)) or "(?!)")

    def any_in(self, strings: Sequence[str]) -> bool:
        """Whether one of `strings` has one."""
        return any(self._pattern.search(string) for string in strings if any(begin in string for begin in self._begins))

    def all_in(self, string: str) -> list[str]:
        """Those in `string`."""
        return self._pattern.findall(string)

    def spans(self, string: str) -> list[tuple[int, int]]:
        """`[start, stop)` of those in `string`."""
        return [match.span() for match in self._pattern.finditer(string)]

    def marked(self, string: str, marks: tuple[str, str]) -> str:
        """`string` with a mark before and after each."""
        return self._pattern.sub(lambda match: f"{marks[0]}{match[0]}{marks[1]}", string)


def _strings(value: Any) -> list[str]:
    """Every string in `value` but keys."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [string for item in cast("Mapping[str, Any]", value).values() for string in _strings(item)]
    if isinstance(value, list):
        return [string for item in cast("list[Any]", value) for string in _strings(item)]
    return []


def _mapped(value: Any, finder: _Finder, marks: tuple[str, str]) -> Any:
    if isinstance(value, str):
        return finder.marked(value, marks)
    if isinstance(value, dict):
        return {key: _mapped(item, finder, marks) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_mapped(item, finder, marks) for item in cast("list[Any]", value)]
    return value


def _places(marked: str, text: str, marks: tuple[str, str]) -> list[tuple[int, int]] | None:
    """Where the marked stretches are in the text without marks; None where it is not `text`, or a mark stands alone."""
    found: list[tuple[int, int]] = []
    plain: list[str] = []
    at = 0
    for number, part in enumerate(re.split(f"[{marks[0]}{marks[1]}]", marked)):
        plain.append(part)
        if number % 2:
            found.append((at, at + len(part)))
        at += len(part)
    whole = "".join(plain)
    order = re.findall(f"[{marks[0]}{marks[1]}]", marked)
    return found if whole == text and order == list(marks) * len(found) else None
