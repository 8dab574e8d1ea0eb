"""One row of a chat data set: checked, and made what templates expect, before anything is rendered.

A template is lenient: it renders a missing key as nothing and a list as Python source. So everything that can be wrong
with a row is refused here, with the message's index.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import attrs

from dew.data.errors import SourceError

Arguments: TypeAlias = Literal["parsed", "text", "given"]
ARGUMENTS: Final[tuple[str, ...]] = get_args(Arguments)

_REASONING: Final = ("reasoning_content", "thinking", "reasoning")  # the first is the name that templates read


@attrs.frozen
class Conversation:
    """Messages and tools as a template gets them."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None


@attrs.frozen(kw_only=True)
class RowRules:
    """How a row is read.

    Args:
        arguments: form of a tool call's arguments for the template: "parsed", an object; "text", JSON in a string;
            "given", as the row has them.
        arrow: whether every key that is None was filled in by Arrow, at any depth, and so is none.
    """

    arguments: Arguments = "parsed"
    arrow: bool = False

    def conversation(self, row: object, *, messages: str = "messages", tools: str = "tools") -> Conversation:
        """The conversation in the fields `messages` and `tools` of `row`.

        Raises:
            SourceError: it is none; the message names the index of the message.
        """
        if not isinstance(row, Mapping):
            raise SourceError(f"a row is a mapping with {messages!r}, got {row!r:.80} ({type(row).__name__})")
        fields = cast("Mapping[str, Any]", row)
        if fields.get(messages) is None:
            raise SourceError(f"the row has no {messages!r}; its fields are {', '.join(map(str, fields)) or 'none'}")
        return Conversation(self.messages(fields[messages]), self.tools(fields.get(tools)))

    def messages(self, value: object) -> list[dict[str, Any]]:
        """The messages of a conversation, new objects.

        Raises:
            SourceError: as `conversation`.
        """
        given = _listed(value)
        if given is None:
            raise SourceError(f"a conversation is a list of messages, got {value!r:.80} ({type(value).__name__})")
        if not given:
            raise SourceError("the conversation is empty: it has no messages")
        return [self._message(message, place) for place, message in enumerate(given)]

    def tools(self, value: object) -> list[Any] | None:
        """The tools of a conversation, from a list or its JSON; None for none.

        Raises:
            SourceError: it is no list of tools.
        """
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise SourceError(f"tools are a list, or the JSON of one: {value[:80]!r} is not: {error}") from error
        if value is None:
            return None
        given = _listed(value)
        if given is None or not all(isinstance(tool, Mapping) for tool in given):
            raise SourceError(f"tools are a list of objects, got {value!r:.80}")
        return [_plain(tool, "a tool", arrow=self.arrow) for tool in given] or None

    def _message(self, value: object, place: int) -> dict[str, Any]:
        where = f"message {place}"
        if not isinstance(value, Mapping):
            raise SourceError(f"{where} is an object with a role and a content, got {value!r:.80}")
        found: dict[str, Any] = {
            str(key): _plain(item, where, arrow=self.arrow)
            for key, item in cast("Mapping[Any, Any]", value).items()
            if item is not None
        }
        role = found.get("role")
        if not isinstance(role, str) or not role:
            raise SourceError(f"{where} has no role, it has {', '.join(found) or 'nothing'}")
        if "tool_calls" in found:
            found["tool_calls"] = self._calls(found["tool_calls"], f"{where} ({role})")
            if not found["tool_calls"]:
                del found["tool_calls"]
        _check_content(found, f"{where} ({role})")
        thought = next((found[name] for name in _REASONING if name in found), None)
        return found if thought is None else {"thinking": thought, **found, "reasoning_content": thought}

    def _calls(self, value: Any, where: str) -> list[dict[str, Any]]:
        if not isinstance(value, list):
            raise SourceError(f"{where}: tool_calls is a list, got {value!r:.80}")
        calls = cast("list[Any]", value)
        return [self._call(call, f"{where}: tool call {number}") for number, call in enumerate(calls)]

    def _call(self, value: Any, where: str) -> dict[str, Any]:
        call = _present(value, where)
        # With or without the object "function" around name and arguments.
        function = _present(call["function"], where) if "function" in call else call
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise SourceError(f"{where} names no function, it has {json.dumps(function)[:120]}")
        arguments = function.get("arguments", {})
        parsed = arguments
        if isinstance(arguments, str):
            try:
                parsed = json.loads(arguments)
            except ValueError as error:
                raise SourceError(
                    f"{where} ({function['name']}) has arguments that are no JSON, {arguments[:80]!r}: {error}"
                ) from error
        if not isinstance(parsed, dict):
            raise SourceError(f"{where} ({function['name']}) has the arguments {arguments!r:.80}, which are no object")
        if self.arguments == "parsed":
            arguments = cast("Any", parsed)
        elif self.arguments == "text" and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        made = {**function, "arguments": arguments}
        return {**call, "function": made} if "function" in call else made


def _check_content(message: Mapping[str, Any], where: str) -> None:
    """A message says something, in text."""
    content = message.get("content")
    texts = [content]
    if isinstance(content, list):
        texts = [_text_of(part, where) for part in cast("list[Any]", content)]
    elif content is not None and not isinstance(content, str):
        raise SourceError(f"{where} has a content that is no text, {content!r:.80}")
    for name in _REASONING:
        if name in message and not isinstance(message[name], str):
            raise SourceError(f"{where} has {name} that is no text, {message[name]!r:.80}")
    said = any(isinstance(text, str) and text.strip() for text in [*texts, *(message.get(n) for n in _REASONING)])
    if content is None and not said and "tool_calls" not in message:
        raise SourceError(f"{where} has no content, it has {', '.join(message)}")
    if message["role"] == "assistant" and not said and "tool_calls" not in message:
        raise SourceError(f"{where} is empty: there is nothing in its turn to learn; leave the row out, or the turn")


def _text_of(part: Any, where: str) -> str:
    values: dict[str, Any] = cast("dict[str, Any]", part) if isinstance(part, dict) else {"type": type(part).__name__}
    if values.get("type") != "text" or not isinstance(values.get("text"), str):
        raise SourceError(
            f"{where} has a part that is no text ({values.get('type')!r}); only text can be rendered to tokens"
        )
    return values["text"]


def _present(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SourceError(f"{where} is no object, but {value!r:.80}")
    return {key: item for key, item in cast("dict[str, Any]", value).items() if item is not None}


def _listed(value: object) -> Sequence[Any] | None:
    if isinstance(value, str | bytes | Mapping):
        return None
    if isinstance(value, Sequence):
        return cast("Sequence[Any]", value)
    to_list = getattr(value, "tolist", None)  # an array, as tables give
    listed = to_list() if to_list is not None else None
    return cast("list[Any]", listed) if isinstance(listed, list) else None


def _plain(value: Any, where: str, *, arrow: bool) -> Any:
    """`value` in JSON's own types, a new object; with `arrow` without keys that are None."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        raise SourceError(f"{where} holds {value}, which JSON cannot write")
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): _plain(item, where, arrow=arrow) for key, item in items if not (arrow and item is None)}
    listed = _listed(value)
    if listed is not None:
        return [_plain(item, where, arrow=arrow) for item in listed]
    scalar = getattr(value, "item", None)
    if scalar is not None:
        return _plain(scalar(), where, arrow=arrow)
    raise SourceError(f"{where} holds a {type(value).__name__}, messages hold text, numbers, lists and objects")
