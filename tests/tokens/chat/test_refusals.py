"""Rows that cannot be right are refused, with the index of the message."""

import re
from typing import Any

import numpy as np
import pytest

from dew.data import SourceError
from dew.tokens.chat.conversation import RowRules

HI = {"role": "user", "content": "Hi"}


def call(**function: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("text", "a row is a mapping with 'messages', got 'text' (str)"),
        ({"prompt": 1}, "the row has no 'messages'; its fields are prompt"),
        ({"messages": None}, "the row has no 'messages'"),
        ({"messages": []}, "the conversation is empty: it has no messages"),
        ({"messages": "hi"}, "a conversation is a list of messages, got 'hi' (str)"),
        ({"messages": ["hi"]}, "message 0 is an object with a role and a content, got 'hi'"),
        ({"messages": [HI, {"content": "x"}]}, "message 1 has no role, it has content"),
        ({"messages": [HI, {"role": "user"}]}, "message 1 (user) has no content, it has role"),
        ({"messages": [{"role": "user", "content": None}]}, "message 0 (user) has no content"),
        ({"messages": [{"role": "user", "content": 3}]}, "message 0 (user) has a content that is no text, 3"),
        ({"messages": [HI, {"role": "assistant", "content": " \n"}]}, "message 1 (assistant) is empty"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "image": "x.png"}]}]},
            "message 0 (user) has a part that is no text ('image')",
        ),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "message 0 (user) has a part that is no text ('str')"),
        ({"messages": [{**HI, "reasoning": 3}]}, "message 0 (user) has reasoning that is no text, 3"),
        ({"messages": [{**HI, "extra": {1, 2}}]}, "message 0 holds a set, messages hold text, numbers"),
        ({"messages": [{**HI, "score": float("nan")}]}, "message 0 holds nan, which JSON cannot write"),
        ({"messages": [HI, call(arguments={})]}, "message 1 (assistant): tool call 0 names no function"),
        (
            {"messages": [HI, call(name="f", arguments='{"a": 1')]},
            "message 1 (assistant): tool call 0 (f) has arguments that are no JSON, '{\"a\": 1'",
        ),
        ({"messages": [HI, call(name="f", arguments="[1]")]}, "tool call 0 (f) has the arguments '[1]', which are no"),
        ({"messages": [{**call(name="f"), "tool_calls": "f"}]}, "message 0 (assistant): tool_calls is a list, got 'f'"),
        ({"messages": [{**call(name="f"), "tool_calls": ["f"]}]}, "tool call 0 is no object, but 'f'"),
        ({"messages": [HI], "tools": "["}, "tools are a list, or the JSON of one: '[' is not"),
        ({"messages": [HI], "tools": ["f"]}, "tools are a list of objects, got ['f']"),
    ],
)
def test_wrong_rows(row: Any, words: str) -> None:
    with pytest.raises(SourceError, match=re.escape(words)):
        RowRules().conversation(row)


@pytest.mark.parametrize("form", ["parsed", "text", "given"])
@pytest.mark.parametrize("given", ['{"city": "Köln"}', {"city": "Köln"}])
def test_arguments_have_the_form_that_was_asked_for(form: Any, given: Any) -> None:
    wanted = {"parsed": {"city": "Köln"}, "text": '{"city": "Köln"}', "given": given}[form]
    for message in (call(name="f", arguments=given), {**HI, "tool_calls": [{"name": "f", "arguments": given}]}):
        found = RowRules(arguments=form).conversation({"messages": [message]}).messages[0]["tool_calls"][0]
        assert found.get("function", found)["arguments"] == wanted


def test_keys_that_arrow_filled_in_are_dropped() -> None:
    """Arrow gives every object of a column the keys of all."""
    arguments = {"city": "Bonn", "days": None, "deep": [{"a": 1, "b": None}]}
    row = {
        "messages": [
            {"role": "user", "content": "Hi", "tool_calls": None, "name": None},
            {**call(name="f", arguments=arguments), "name": None},
        ],
        "tools": None,
    }
    found = RowRules(arrow=True).conversation(row)
    assert found.messages[0] == HI
    assert found.messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Bonn", "deep": [{"a": 1}]}
    assert found.tools is None
    # In JSON a null was written by somebody, but a key of the message itself means the same as none.
    kept = RowRules().conversation(row)
    assert kept.messages[0] == HI
    assert kept.messages[1]["tool_calls"][0]["function"]["arguments"] == arguments


def test_rows_from_tables_and_scalars_become_plain_values() -> None:
    messages = np.array([{"role": np.str_("user"), "content": "Hi", "weight": np.float32(0.5)}], object)
    found = RowRules().conversation({"messages": messages, "tools": "[]"})
    assert found.messages == [{"role": "user", "content": "Hi", "weight": 0.5}]
    assert type(found.messages[0]["role"]) is str
    assert found.tools is None


def test_reasoning_has_the_names_that_templates_read() -> None:
    message = {"role": "assistant", "content": "4", "reasoning": "sum"}
    found = RowRules().conversation({"messages": [message]}).messages[0]
    assert (found["thinking"], found["reasoning_content"]) == ("sum", "sum")
