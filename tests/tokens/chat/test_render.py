"""Text, spans and generation tags are those of transformers, over every template that trl ships."""

import copy
import datetime
import importlib.metadata
import re
from pathlib import Path
from typing import Any

import jinja2
import pytest

from dew.tokens.chat.conversation import RowRules
from dew.tokens.chat.render import ChatTemplate
from dew.tokens.chat.sandbox import Sandbox

TEMPLATES = sorted(Path(str(importlib.metadata.distribution("trl").locate_file("trl/chat_templates"))).glob("*.jinja"))
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}

PLAIN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <there> & 'you'"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "  See you.\n"},
]
THINKING = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "<think>\nsum\n</think>\n\n4"},
    {"role": "user", "content": "3+3?"},
    {"role": "assistant", "content": "<think>\nmore\n</think>\n\n6"},
]
REASONING = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4", "reasoning_content": "sum"},
    {"role": "user", "content": "3+3?"},
    {"role": "assistant", "content": "6", "thinking": "more", "name": None},
]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Bonn", "für": "ü<>"}}}
CALLING = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "weather", "content": "sunny"},
    {"role": "assistant", "content": "Sunny."},
]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a <city>",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "which"}},
            "required": ["city"],
        },
    },
}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[Any] | None]] = {
    "plain": (PLAIN, None),
    "no system": (PLAIN[1:], None),
    "thinking": (THINKING, None),
    "reasoning": (REASONING, None),
    "calling": (CALLING, [TOOL]),
    "all parts": (
        [{"role": role, "content": [{"type": "text", "text": "Hi"}]} for role in ("user", "assistant")],
        None,
    ),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, PLAIN[2]], None),
}


def theirs(
    template: str, messages: list[dict[str, Any]], tools: list[Any] | None, *, prompt: bool
) -> tuple[str, list[tuple[int, int]]] | None:
    """What transformers renders, and its generation spans; None where the template refuses."""
    from transformers.utils import chat_template_utils

    tagged = re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None
    without = [{key: value for key, value in message.items() if value is not None} for message in messages]
    try:
        texts, spans = chat_template_utils.render_jinja_template(
            [copy.deepcopy(without)],
            tools=copy.deepcopy(tools),
            chat_template=template,
            add_generation_prompt=prompt,
            return_assistant_tokens_mask=tagged,
            **SPECIAL,
        )
    except Exception:
        return None
    return texts[0], spans[0] if tagged else []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_renders_are_those_of_transformers(path: Path) -> None:
    source = path.read_text()
    template = ChatTemplate(source, Sandbox(datetime.date.today()), SPECIAL)
    assert not template.hidden_tags
    rendered = 0
    for messages, tools in CONVERSATIONS.values():
        given = RowRules(arguments="given").messages(messages)
        for prompt in (False, True):
            expected = theirs(source, messages, tools, prompt=prompt)
            if expected is None:
                with pytest.raises(Exception):  # noqa: B017, PT011
                    template.render(given, tools, generation_prompt=prompt)
                continue
            found = template.render(given, tools, generation_prompt=prompt)
            assert found.text == expected[0]
            assert list(found.generations) == [span for span in expected[1] if span[0] < span[1]]
            if not prompt:
                spoken = {place for place, message in enumerate(given) if message["role"] == "assistant"}
                assert spoken <= {span.message for span in found.spans}
            rendered += 1
    assert rendered


def test_there_are_templates() -> None:
    assert len(TEMPLATES) >= 72


def test_spans_hold_their_messages_where_prefixes_would_not() -> None:
    source = (TEMPLATES[0].parent / "qwen3.jinja").read_text()
    template = ChatTemplate(source, Sandbox(None), SPECIAL)
    found = template.render(RowRules().messages(THINKING))
    texts = {span.message: found.text[span.start : span.stop] for span in found.spans}
    # The thoughts of an earlier turn are left out once there is a later one: a render of its beginning has them.
    assert texts[1] == "<|im_start|>assistant\n4<|im_end|>\n"
    assert texts[3] == "<|im_start|>assistant\n<think>\nmore\n</think>\n\n6<|im_end|>\n"
    assert not found.text.startswith(template.render(RowRules().messages(THINKING[:2])).text)


def rendered(source: str, messages: list[dict[str, Any]] = PLAIN, date: datetime.date | None = None) -> Any:
    return ChatTemplate(source, Sandbox(date), SPECIAL).render(RowRules().messages(messages))


def spans(found: Any) -> list[tuple[int, str]]:
    return [(span.message, found.text[span.start : span.stop]) for span in found.spans]


def test_loops_that_skip_break_nest_and_run_backwards() -> None:
    two = PLAIN[1:3]
    skipping = "{% for m in messages %}{{ m.role }}.{% if loop.first %}{% continue %}{% endif %}!{% endfor %}after"
    assert spans(rendered(skipping, two)) == [(0, "user."), (1, "assistant.!")]
    breaking = "{% for m in messages %}{{ m.role }}{% break %}{% endfor %}after"
    assert spans(rendered(breaking, two)) == [(0, "user")]
    looking = "{% for m in messages %}{% for n in messages[::-1] %}{% endfor %}{{ m.role }} {% endfor %}"
    assert spans(rendered(looking, two)) == [(0, "user "), (1, "assistant ")]
    copying = "{% for m in messages %}{% set ns = namespace(m=m) %}{{ ns.m.role }} {% endfor %}"
    assert spans(rendered(copying, two)) == [(0, "user "), (1, "assistant ")]


def test_what_is_collected_before_it_is_written_has_no_spans() -> None:
    for source in (
        "{% set x %}{% for m in messages %}{{ m.role }}{% endfor %}{% endset %}head{{ x }}",
        "{% macro all() %}{% for m in messages %}{{ m.role }}{% endfor %}{% endmacro %}head{{ all() }}",
        "{% filter upper %}{% for m in messages %}{{ m.role }}{% endfor %}{% endfilter %}",
    ):
        assert rendered(source).spans == ()
    hidden = ChatTemplate(
        "{% macro all() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ all() }}", Sandbox(None), {}
    )
    assert (hidden.tagged, hidden.hidden_tags) == (False, True)


def test_the_date_is_what_was_configured() -> None:
    source = "{{ strftime_now('%d %b %Y') }}"
    assert rendered(source, date=datetime.date(2024, 7, 26)).text == "26 Jul 2024"
    with pytest.raises(jinja2.TemplateError, match=r"writes today's date.*say which date it is with date="):
        rendered(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ namespace(_x=1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ dict.__class__ }}{{ dict.mro() }}",
        "{{ 'a' * 100000000 }}",
        "{{ 9 ** 99999 }}",
        "{{ range(10000000) | list }}",
        "{{ (cycler | attr('__init__')).__globals__ }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises((jinja2.TemplateError, TypeError, OverflowError)):
        rendered(source)
