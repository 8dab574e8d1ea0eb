"""Roles: whose words a token is, and which tokens a model is to learn.

A token's role is that of the message whose text it is. Of an assistant's message only what the model itself would write
has that role: not the header, which the prompt ends with, and nothing after the token that ends the turn.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import numpy as np

from dew.data.errors import OptionsError, OptionsTypeError, SourceError
from dew.data.fields import target_mask
from dew.tokens.chat.conversation import Conversation

if TYPE_CHECKING:
    from dew.tokens.chat.render import ChatTemplate, Rendered, Span

ROLES: Final[Mapping[str, int]] = MappingProxyType(
    {"template": 0, "system": 1, "user": 2, "assistant": 3, "tool": 4, "developer": 5}
)
"""Role -> its id in `text_roles`. 0 is what the template adds, and padding."""

_ASSISTANT: Final = ROLES["assistant"]
_PROBE: Final = ({"role": "user", "content": "Hi"},)


def role_ids(target_roles: Sequence[str]) -> tuple[int, ...]:
    """Ids of `target_roles`, in order of the ids.

    Raises:
        OptionsError: one of them is no role, is the template's, or there are none.
        OptionsTypeError: it is a string.
    """
    if isinstance(target_roles, str):
        raise OptionsTypeError(f"target_roles is a sequence of roles such as ('assistant',), got {target_roles!r}")
    known = [role for role in ROLES if role != "template"]
    if wrong := [role for role in target_roles if role not in known]:
        raise OptionsError(f"target_roles has {wrong[0]!r}, which is none of {', '.join(known)}")
    if not target_roles:
        raise OptionsError("target_roles is empty, so that nothing would be learnt; the usual is ('assistant',)")
    return tuple(sorted({ROLES[role] for role in target_roles}))


def loss_mask(batch: Mapping[str, Any], target_roles: Sequence[str] = ("assistant",)) -> Any:
    """Which targets of a packed batch of conversations are scored.

    Position t predicts token t + 1. It is scored if that token has a target role, and if both are of one conversation.

    Args:
        batch: with `text_segment_ids` and `text_roles`, (B, S+1) int32, NumPy or JAX arrays (also traced ones).
        target_roles: whose words are learnt.

    Returns:
        (B, S) bool, an array of the same kind, aligned with `dew.data.shift(batch)["targets"]`.

    Raises:
        OptionsError: a target role that there is not.
    """
    of_targets = batch["text_roles"][..., 1:]
    wanted = of_targets == -1
    for role in role_ids(target_roles):
        wanted = wanted | (of_targets == role)
    return wanted & target_mask(batch["text_segment_ids"])


@attrs.frozen
class Painted:
    """A conversation as text, with a role for every character.

    Args:
        text: as rendered.
        runs: `(start, stop, role)`, in order and apart; what is in none has role 0.
        starts: where a prompt ends and the model begins to write: tokens never reach over these.
        literal: `[start, stop)` of control tokens that somebody typed: they are encoded as text.
        hidden: messages whose text the template writes outside of its loop, so that its place is not known.
    """

    text: str
    runs: tuple[tuple[int, int, int], ...]
    starts: tuple[int, ...]
    literal: tuple[tuple[int, int], ...] = ()
    hidden: int = 0


class RolePainter:
    """Finds the roles in renders of one template.

    Args:
        template: which.
        names: role names of the data -> names in `ROLES`, for those that are not in it.
        targets: ids of the roles that are learnt.
        added: the tokens that were added to the tokenizer's vocabulary, control tokens among them.

    Raises:
        SourceError: (from `paint`) a role that is not known, or a message whose place is not.
    """

    def __init__(
        self, template: "ChatTemplate", names: Mapping[str, str], targets: Sequence[int], added: Sequence[str]
    ) -> None:
        self._template = template
        self._ids = {**ROLES, **{name: ROLES[role] for name, role in names.items()}}
        del self._ids["template"]
        self._targets = frozenset(targets)
        self._added = tuple(added)
        self._parts = re.compile("|".join([*map(re.escape, sorted(added, key=len, reverse=True)), "\n"]))
        self._prompts: dict[bool, str | None] = {}

    def check(self, conversation: Conversation) -> None:
        """Refuse roles that are not known, before a template ignores their messages.

        Raises:
            SourceError: naming the message.
        """
        for place, message in enumerate(conversation.messages):
            if message["role"] not in self._ids:
                raise SourceError(
                    f"message {place} has the role {message['role']!r}, which is none of {', '.join(self._ids)}; say "
                    f"which of these it is with role_names={{{message['role']!r}: ...}}"
                )

    def paint(self, conversation: Conversation, rendered: "Rendered") -> Painted:
        """The roles in `rendered`.

        Raises:
            SourceError: a message that is to be learnt has no known place, or a message is left out by the template.
        """
        messages = conversation.messages
        spans = _outermost(rendered.spans)
        hidden = self._check_spans(messages, spans, rendered.text)
        tagged = self._template.tagged
        runs: list[tuple[int, int, int]] = []
        starts: list[int] = []
        for span in spans:
            role = self._ids[messages[span.message]["role"]]
            if role != _ASSISTANT:
                runs.append((span.start, span.stop, role))
            elif not tagged:
                start, stop = self._turn(rendered.text, span, conversation)
                starts.append(start)
                runs.append((start, stop, role))
        if tagged:
            written = _merged(rendered.generations)
            runs = [piece for run in runs for piece in _without(run, written)]
            runs += [(start, stop, _ASSISTANT) for start, stop in written]
            starts = [start for start, _ in written]
        runs = sorted(run for run in runs if run[1] > run[0])
        return Painted(rendered.text, tuple(runs), tuple(sorted(starts)), hidden=hidden)

    def _check_spans(self, messages: Sequence[Mapping[str, Any]], spans: "Sequence[Span]", text: str) -> int:
        """Number of messages without a span, all of which are somewhere in the text."""
        found = {span.message for span in spans}
        hidden = 0
        for place, message in enumerate(messages):
            said = _said(message)
            if isinstance(message.get("content"), list) and "'type': 'text'" in text:
                raise SourceError(
                    f"message {place} has its content in parts, which this template writes as Python source; "
                    "make the content a string"
                )
            if place in found:
                continue
            role = self._ids[message["role"]]
            if role in self._targets and not (role == _ASSISTANT and self._template.tagged):
                raise SourceError(
                    f"message {place} ({message['role']}) is to be learnt, and where the template writes it cannot be "
                    "known: it stands in no loop over the messages, or in a macro; put {% generation %} and "
                    "{% endgeneration %} around it, in a loop"
                )
            if any(one not in text for one in said):
                raise SourceError(
                    f"message {place} ({message['role']}) renders to nothing: the template leaves it out; leave it out "
                    "of the row, or use another template"
                )
            hidden += 1
        return hidden

    def _turn(self, text: str, span: "Span", conversation: Conversation) -> tuple[int, int]:
        """What the model writes of an assistant's message: from its header to the token that ends the turn."""
        whole = text[span.start : span.stop]
        message, prompt = conversation.messages[span.message], self._prompt(conversation, span.message)
        header = self._header(whole, prompt)
        if header is None or not (prompt or _begins_with_words(whole, message)):
            what = f"a prompt for it ends with {prompt!r}" if prompt else "the template adds no prompt for it"
            raise SourceError(
                f"message {span.message} ({message['role']}) begins with {whole[:60]!r}, but {what}: where its header "
                "ends cannot be known; put {% generation %} and {% endgeneration %} into the template"
            )
        body = whole.rstrip()
        ends = len(body) if len(body) > header and body.endswith(self._added) else len(whole)
        return span.start + header, span.start + max(ends, header)

    def _header(self, turn: str, prompt: str | None) -> int | None:
        """How many characters of a turn the prompt gives; None where that is not known."""
        if prompt is None:
            return None
        at = turn.find(prompt)
        if at >= 0 and not turn[:at].strip():
            return at + len(prompt)
        # The prompt of another mode, such as one that begins to think: what both have, up to a control token or line.
        shared = next((i for i, (a, b) in enumerate(zip(turn, prompt, strict=False)) if a != b), len(prompt))
        bounds = [part.end() for part in self._parts.finditer(prompt) if part.end() <= shared]
        return bounds[-1] if bounds else None

    def _prompt(self, conversation: Conversation, place: int) -> str | None:
        """What `add_generation_prompt` adds."""
        tools = conversation.tools
        if bool(tools) not in self._prompts:
            self._prompts[bool(tools)] = self._added_prompt(list(_PROBE), tools)
        found = self._prompts[bool(tools)]
        return self._added_prompt(conversation.messages[:place], tools) if found is None else found

    def _added_prompt(self, messages: list[dict[str, Any]], tools: list[Any] | None) -> str | None:
        try:
            without = self._template.render(messages, tools).text
            with_prompt = self._template.render(messages, tools, generation_prompt=True).text
        except Exception:
            return None
        if with_prompt.startswith(without):
            return with_prompt[len(without) :]
        # A template may end a finished conversation, as with an end token, where it would go on with a prompt.
        shared = next((i for i, (a, b) in enumerate(zip(with_prompt, without, strict=False)) if a != b), len(without))
        return with_prompt[shared:] if any(without[shared:].startswith(token) for token in self._added) else None


def _begins_with_words(turn: str, message: Mapping[str, Any]) -> bool:
    """Whether a turn has no header: it begins with what was said, as far as that can be told."""
    said = _said(message)
    return "tool_calls" in message or "reasoning_content" in message or turn.lstrip().startswith(said[0][:16])


def _said(message: Mapping[str, Any]) -> list[str]:
    """Texts of a message's content."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else [part["text"] for part in cast("list[Any]", content or [])]
    return [part.strip() for part in parts if part.strip()]


def _outermost(spans: "Sequence[Span]") -> "list[Span]":
    """Spans in order that do not overlap: of a span in another's the outer one stays."""
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.stop)):
        if not kept or span.start >= kept[-1].stop:
            kept.append(span)
    return kept


def _merged(stretches: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(stretches):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _without(run: tuple[int, int, int], stretches: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """The parts of `run` outside of `stretches`."""
    start, stop, role = run
    parts: list[tuple[int, int, int]] = []
    for first, last in stretches:
        if first < stop and last > start:
            parts.append((start, first, role))
            start = max(start, last)
    return [*parts, (start, stop, role)]


def role_columns(runs: Sequence[tuple[int, int, int]], length: int) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """(length,) uint8: the role of every character."""
    roles = np.zeros(length, np.uint8)
    for start, stop, role in runs:
        roles[start:stop] = role
    return roles
