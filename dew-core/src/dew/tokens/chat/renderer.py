"""From rows to ids and roles: the one way that conversations, prompts and preference pairs share.

`ChatRules` says how, as a value that is a part of what a render is filed under; `ChatRenderer` does it.
"""

import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs

from dew.data.errors import DewDataError, OptionsError, OptionsTypeError, SourceError
from dew.tokens.chat.conversation import ARGUMENTS, Arguments, Conversation
from dew.tokens.chat.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from dew.tokens.chat.encoding import Encoded, Encoder
    from dew.tokens.chat.render import Rendered
    from dew.tokens.chat.roles import Painted

RENDER_VERSION = 1  # raised when the same rows and rules give other ids or roles


def _check_template(_instance: object, _attribute: Any, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise OptionsTypeError(
            f"template must be the name or the text of a template, or None, got {value!r:.80} ({type(value).__name__})"
        )


def _check_date(_instance: object, _attribute: Any, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise OptionsTypeError(f"date must be a day as '2026-01-31', or None, got {value!r} ({type(value).__name__})")
    try:
        datetime.date.fromisoformat(value)
    except ValueError as error:
        raise OptionsError(f"date must be a day as '2026-01-31', or None, got {value!r}") from error


def _check_json(_instance: object, attribute: Any, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise OptionsTypeError(f"{attribute.name} must be a mapping, got {value!r:.80} ({type(value).__name__})")
    try:
        json.dumps(dict(cast("Mapping[str, Any]", value)), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise OptionsError(f"{attribute.name} must hold JSON values, got {value!r:.80}: {error}") from error


def _check_names(instance: object, attribute: Any, value: Any) -> None:
    from dew.tokens.chat.roles import ROLES

    _check_json(instance, attribute, value)
    for name, role in value.items():
        if role not in ROLES or role == "template":
            known = ", ".join(role for role in ROLES if role != "template")
            raise OptionsError(f"role_names says that {name!r} is {role!r}, which is none of {known}")


@attrs.frozen(kw_only=True)
class ChatRules:
    """How conversations become text.

    Args:
        template: the name of one of the tokenizer's chat templates, the text of another, or None for the usual one.
        variables: what the template sees beside messages and tools, such as `{"enable_thinking": False}`.
        date: what a template that writes today's date writes, as "2026-01-31"; None refuses such a template.
        role_names: roles of the data that are none of Dew's -> one of "system", "user", "assistant", "tool",
            "developer". The template still sees the data's own.
        arguments: form of a tool call's arguments for the template: "parsed", an object; "text", JSON in a string;
            "given", as the row has them.

    Raises:
        OptionsError, OptionsTypeError: a value that cannot be used.
    """

    template: str | None = attrs.field(default=None, validator=_check_template)
    variables: Mapping[str, Any] = attrs.field(factory=dict[str, Any], validator=_check_json, hash=False)
    date: str | None = attrs.field(default=None, validator=_check_date)
    role_names: Mapping[str, str] = attrs.field(factory=dict[str, str], validator=_check_names, hash=False)
    arguments: Arguments = attrs.field(default="parsed")

    @arguments.validator  # pyright: ignore[reportAttributeAccessIssue, reportUntypedFunctionDecorator, reportUnknownMemberType]
    def _check_arguments(self, _attribute: Any, value: object) -> None:
        if value not in ARGUMENTS:
            raise OptionsError(f"arguments must be one of {', '.join(ARGUMENTS)}, got {value!r}")

    def rules(self) -> dict[str, Any]:
        """These alone, as JSON values."""
        return {field.name: getattr(self, field.name) for field in attrs.fields(ChatRules)}


class ChatRenderer:
    """Renders and encodes conversations by some rules.

    Args:
        tokenizer: with its templates.
        rules: how.
        targets: ids of the roles that are learnt: where the words of these stand must be known.
        required: whether a tokenizer without a template is refused now, or when messages are to be rendered.

    Raises:
        OptionsError: a template is missing or is none, or the package jinja2 is.
    """

    def __init__(
        self, tokenizer: ChatTokenizer, rules: ChatRules, targets: Sequence[int] = (3,), *, required: bool = True
    ) -> None:
        self.tokenizer = tokenizer
        self.rules = rules
        self._targets = tuple(targets)
        self._made: dict[str, _Template] = {}
        self._encoder: Encoder | None = None
        if required or rules.template is not None or "default" in tokenizer.templates:
            self._template(tools=False)
            self._template(tools=True)

    def digest(self) -> str:
        """sha256 of everything that decides what a row becomes, but the versions of libraries."""
        values = {
            "version": RENDER_VERSION,
            "tokenizer": self.tokenizer.digest(),
            "templates": list(self._made),
            "rules": self.rules.rules(),
            "targets": self._targets,
        }
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def painted(self, conversation: Conversation) -> "Painted":
        """Text and roles of a conversation.

        Raises:
            SourceError: what is wrong with it; the caller adds the row.
        """
        made = self._of(conversation)
        made.painter.check(conversation)
        rendered = self._rendered(made, conversation)
        painted = made.painter.paint(conversation, rendered)
        typed = made.typed.find(conversation, painted.text, lambda marked: self._rendered(made, marked).text)
        return attrs.evolve(painted, literal=tuple(typed)) if typed else painted

    def prompt(self, conversation: Conversation) -> "Painted":
        """A conversation that the model is to go on with, as text; the header of its turn is at the end."""
        from dew.tokens.chat.roles import Painted

        made = self._of(conversation)
        made.painter.check(conversation)
        text = self._rendered(made, conversation, prompt=True).text
        typed = made.typed.find(conversation, text, lambda marked: self._rendered(made, marked, prompt=True).text)
        return Painted(text, (), (), literal=tuple(typed))

    def typed_in(self, text: str) -> list[tuple[int, int]]:
        """`[start, stop)` of every control token in a string."""
        from dew.tokens.chat.typed import control_tokens_in

        return control_tokens_in(text, self.tokenizer.added)

    def encode(self, texts: "Sequence[Painted]", *, begin: bool = True) -> "list[Encoded]":
        """Ids and roles; `begin`: with the begin token that the tokenizer itself puts, if it puts one."""
        if self._encoder is None:
            from dew.tokens.chat.encoding import Encoder

            self._encoder = Encoder(self.tokenizer, "\0".join(made.template.literals for made in self._made.values()))
        return self._encoder.encode(texts, begin=begin)

    def _of(self, conversation: Conversation) -> "_Template":
        return self._template(tools=bool(conversation.tools))

    def _template(self, *, tools: bool) -> "_Template":
        source = self.tokenizer.template(self.rules.template, tools=tools)
        if source not in self._made:
            self._made[source] = _Template(source, self.tokenizer, self.rules, self._targets)
        return self._made[source]

    @staticmethod
    def _rendered(made: "_Template", conversation: Conversation, *, prompt: bool = False) -> "Rendered":
        try:
            return made.template.render(conversation.messages, conversation.tools, generation_prompt=prompt)
        except DewDataError:
            raise
        except Exception as error:  # a template's errors are those of Python
            hint = ""
            if isinstance(error, TypeError) and any("tool_calls" in message for message in conversation.messages):
                hint = "; if it wants a tool call's arguments in another form, say so with arguments="
            what = f"{type(error).__name__}: {error}{hint}"
            raise SourceError(f"the template refuses the conversation: {what}") from error


class _Template:
    """A template with all that goes with it."""

    def __init__(self, source: str, tokenizer: ChatTokenizer, rules: ChatRules, targets: Sequence[int]) -> None:
        try:
            import jinja2
        except ImportError as error:
            raise OptionsError('chat templates need the package jinja2: pip install "dew-core[chat]"') from error
        from dew.tokens.chat.render import ChatTemplate
        from dew.tokens.chat.roles import RolePainter
        from dew.tokens.chat.sandbox import Sandbox
        from dew.tokens.chat.typed import TypedTokens

        self.source = source
        date = None if rules.date is None else datetime.date.fromisoformat(rules.date)
        try:
            self.template = ChatTemplate(source, Sandbox(date), {**tokenizer.special, **rules.variables})
        except jinja2.TemplateSyntaxError as error:
            raise OptionsError(f"the chat template is none: line {error.lineno}: {error.message}") from error
        if self.template.hidden_tags:
            raise OptionsError(
                "the template has {% generation %} in a macro or another block that is made before it is written, so "
                "that its place is not known; put it where the text is written"
            )
        added = tokenizer.added
        self.painter = RolePainter(self.template, rules.role_names, targets, [token.text for token in added])
        self.typed = TypedTokens(added, self.template.literals)
