"""A conversation token by token, each with the colour of its role: a mask is seen before a run."""

from collections.abc import Iterator
from typing import Any, Final

import attrs

from dew.data.errors import OptionsError, SourceError
from dew.tokens.chat.conversation import RowRules
from dew.tokens.chat.messages import ChatMessages
from dew.tokens.chat.rendering import RenderPlan
from dew.tokens.chat.roles import ROLES
from dew.tokens.chat.tokenizer import reference

# Of each role in a terminal and on a page, there under black text.
COLOURS: Final = {
    "template": ("bright_black", "#eeeeee"),
    "system": ("magenta", "#e6ccff"),
    "user": ("cyan", "#cce6ff"),
    "assistant": ("green", "#b3f0b3"),
    "tool": ("yellow", "#fff0b3"),
    "developer": ("red", "#ffd1cc"),
}
_LONGEST_CHARACTER: Final = 4  # tokens, one for each byte
_NAMES: Final = {number: name for name, number in ROLES.items()}


@attrs.frozen
class ShownToken:
    """One token: its text, id, and the name of its role."""

    text: str
    id: int
    role: str


def tokens_of_row(chats: ChatMessages, index: int) -> list[ShownToken]:
    """The tokens of row `index` of the data, whatever its length.

    Raises:
        OptionsError: there is no such row.
        SourceError: the row cannot be rendered.
    """
    plan = chats.plan()
    row = _row(plan, index)
    rules = RowRules(arguments=chats.arguments, arrow=plan.rows.arrow)
    try:
        conversation = rules.conversation(row, messages=chats.messages_field, tools=chats.tools_field)
        found = plan.renderer.encode([plan.renderer.painted(conversation)])[0]
    except SourceError as error:
        raise SourceError(f"{plan.rows.name(index)}: {error}") from error
    tokenizer = reference(plan.renderer.tokenizer.definition)
    roles = [_NAMES[int(role)] for role in found.roles]
    return list(_decoded(tokenizer, found.ids.tolist(), roles))


def _row(plan: RenderPlan, index: int) -> Any:
    number = -1
    for number, row in enumerate(plan.rows):
        if number == index:
            return row
    raise OptionsError(f"row {index} was asked for, there are {number + 1}")


def _decoded(tokenizer: Any, ids: list[int], roles: list[str]) -> Iterator[ShownToken]:
    """Texts of tokens; of tokens that share a character the last one has it."""

    def decode(some: list[int]) -> str:
        return tokenizer.decode(some, skip_special_tokens=False)

    before: list[int] = []
    held: list[int] = []
    for token, role in zip(ids, roles, strict=True):
        held.append(token)
        # After what stands before it, since some tokenizers drop the space before the first word.
        text = decode(before + held)[len(decode(before)) :]
        if text.endswith("\ufffd") and len(held) < _LONGEST_CHARACTER:
            yield ShownToken("", token, role)
            continue
        yield ShownToken(text, token, role)
        before, held = held, []
