"""A chat template, rendered to text together with the stretches of it that belong to each message.

Which text belongs to a message is known from the template itself, never from rendering part of a conversation: every
loop gets marks in the template's syntax tree, and while the text is made piece by piece, a mark notes how much there is
already. Templates drop the thoughts of earlier turns, put tools into the first message and end the last turn in another
way, so a difference of two renders says nothing; the marks are exact whatever a template does.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
from jinja2 import nodes
from jinja2.environment import Template
from jinja2.visitor import NodeTransformer

from dew.tokens.chat.sandbox import CLOSE, OPEN, Sandbox, mark

Messages = Sequence[Mapping[str, Any]]

_BEGIN: Final = "_dew_loop_begins"
_END: Final = "_dew_loop_ends"
_MARKS: Final = frozenset({OPEN, CLOSE})
# What stands in these is collected before it is written, so a mark in it would come too early.
_COLLECTED: Final = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock)


@attrs.frozen
class Span:
    """Characters `[start, stop)` of a render, all of message `message`."""

    message: int
    start: int
    stop: int


@attrs.frozen
class Rendered:
    """A conversation as text.

    Args:
        text: what the template rendered.
        spans: of the messages, in the order in which they end; one that begins later lies within or after.
        generations: `[start, stop)` of what stands in `{% generation %}`, in order.
    """

    text: str
    spans: tuple[Span, ...]
    generations: tuple[tuple[int, int], ...]


class ChatTemplate:
    """One template, compiled.

    Args:
        source: its text.
        sandbox: where it runs.
        variables: what it sees beside messages and tools: special tokens, and options such as `enable_thinking`.

    Raises:
        jinja2.TemplateSyntaxError: it is no template.

    Attributes:
        tagged: whether it has a `{% generation %}` whose place can be known.
        hidden_tags: whether it has one where it cannot: in a macro, or another block that is collected first.
        literals: every text that stands in the template itself, joined by zeros.
    """

    def __init__(self, source: str, sandbox: Sandbox, variables: Mapping[str, Any]) -> None:
        tree = sandbox.parse(source)
        written = [node.data for node in tree.find_all(nodes.TemplateData)]
        written += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
        self.literals = "\0".join(written)
        marks = _Marked()
        tree = marks.visit(tree)
        tree.set_environment(sandbox)
        self.tagged = marks.tagged
        self.hidden_tags = marks.hidden
        self._variables = dict(variables)
        self._template = Template.from_code(sandbox, sandbox.compile(tree), sandbox.make_globals(None))

    def render(
        self, messages: Messages, tools: Sequence[Any] | None = None, *, generation_prompt: bool = False
    ) -> Rendered:
        """The text of `messages`, and the spans of each; `generation_prompt` adds the header of the next turn.

        Raises:
            Exception: whatever the template raises.
        """
        seen = _Marks(messages)
        parts: list[str] = []
        for part in self._template.generate(
            **{
                **self._variables,
                "messages": messages,
                "tools": tools,
                "documents": None,
                "add_generation_prompt": generation_prompt,
                _BEGIN: seen.begin,
                _END: seen.end,
                OPEN: seen.open,
                CLOSE: seen.close,
            }
        ):
            parts.append(part)
            seen.at += len(part)
        return Rendered("".join(parts), tuple(seen.spans), tuple(seen.generations))


class _Marked(NodeTransformer):
    """Puts a mark at the beginning of the body of every loop, which ends the turn before too, and one after it."""

    def __init__(self) -> None:
        self.tagged = False
        self.hidden = False
        self._loops = 0
        self._collected = 0

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(node, _COLLECTED):
            return super().visit(node, *args, **kwargs)
        self._collected += 1
        try:
            return super().visit(node, *args, **kwargs)
        finally:
            self._collected -= 1

    def visit_ExprStmt(self, node: nodes.ExprStmt) -> nodes.Node | None:
        """Drops the marks of a `{% generation %}` whose place is not known."""
        call = node.node
        if isinstance(call, nodes.Call) and isinstance(call.node, nodes.Name) and call.node.name in _MARKS:
            if self._collected:
                self.hidden = True
                return None
            self.tagged = True
        return node

    def visit_For(self, node: nodes.For) -> Any:
        """Adds the marks of a loop; a recursive loop is collected."""
        self._collected += node.recursive
        self.generic_visit(node)
        self._collected -= node.recursive
        if self._collected or node.recursive or not isinstance(node.target, nodes.Name):
            return node
        self._loops += 1
        number, line = nodes.Const(self._loops), node.lineno
        first = mark(_BEGIN, [number, nodes.Name(node.target.name, "load")], line)
        node.body = [first, *node.body]
        return [node, mark(_END, [number], line)]


class _Marks:
    """What the marks of one render note; `at` is the number of characters so far."""

    def __init__(self, messages: Messages) -> None:
        self.at = 0
        self.spans: list[Span] = []
        self.generations: list[tuple[int, int]] = []
        self._messages = messages
        self._places = {id(message): place for place, message in enumerate(messages)}
        self._within: dict[int, tuple[int, int]] = {}
        self._opened: list[int] = []

    def begin(self, loop: int, value: Any) -> None:
        """A loop's body begins with `value`."""
        self.end(loop)
        place = self._place(value)
        if place is not None:
            self._within[loop] = (place, self.at)

    def end(self, loop: int) -> None:
        """A loop has ended, or its body begins again."""
        place, start = self._within.pop(loop, (0, self.at))
        if self.at > start:
            self.spans.append(Span(place, start, self.at))

    def open(self) -> None:
        """`{% generation %}`."""
        self._opened.append(self.at)

    def close(self) -> None:
        """`{% endgeneration %}`."""
        start = self._opened.pop()
        if self.at > start:
            self.generations.append((start, self.at))

    def _place(self, value: Any) -> int | None:
        place = self._places.get(id(value))
        if place is None and isinstance(value, dict) and "role" in value:
            # A copy that the template made. Of equal messages any will do, since their roles are equal too.
            place = next((at for at, message in enumerate(self._messages) if message == value), None)
        return place
