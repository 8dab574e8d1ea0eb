"""`dew peek FILE --roles MODEL`: one conversation, each token in the colour of its role."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from dew.cli.opening import pairs_of
from dew.cli.output import console, print_json, say
from dew.data.errors import OptionsError

if TYPE_CHECKING:
    from dew.tokens.chat.show import ShownToken

_OURS = ("data", "tokenizer")  # given in other ways


def show_roles(source: str, model: str, number: int, *, pairs: Sequence[str], as_json: bool, html: str | None) -> None:
    """Prints row `number` of the conversations in `source`, or writes it as a page.

    Raises:
        OptionsError: there is no such row or option, or `html` cannot be written.
        SourceError: the row cannot be rendered.
    """
    from dew.tokens.chat import ChatMessages
    from dew.tokens.chat.show import COLOURS, tokens_of_row

    known = [field.alias for field in attrs.fields(ChatMessages) if field.init and field.alias not in _OURS]
    options = pairs_of(pairs)
    if unknown := [key for key in options if key not in known]:
        raise OptionsError(f"there is no option {unknown[0]!r}; the options of conversations are {', '.join(known)}")
    wanted: dict[str, Any] = {"seq_len": 1, **options}
    tokens = tokens_of_row(ChatMessages(source, tokenizer=model, **wanted), number)
    if html is not None:
        from dew.cli.pictures import write_bytes

        write_bytes(Path(html), _page(tokens, source, number).encode(), option="--html")
        return
    if as_json:
        print_json({"source": source, "row": number, "tokens": [attrs.asdict(token) for token in tokens]})
        return
    from rich.text import Text

    shown = Text()
    for token in tokens:
        shown.append(token.text, COLOURS[token.role][0])
    screen = console()
    screen.print(shown, soft_wrap=True)
    counts = {role: sum(token.role == role for token in tokens) for role in COLOURS}
    legend = Text("tokens: ")
    for role, count in counts.items():
        if count:
            legend.append(f"{role} {count}  ", COLOURS[role][0])
    screen.print(legend)
    say(screen, f"row {number} of {source}, {len(tokens)} tokens")


def _page(tokens: "Sequence[ShownToken]", source: str, number: int) -> str:
    """The conversation as a page; a token's id and role are shown where the pointer is."""
    from dew.cli.pages import Section, counts_table, document, facts_list, text
    from dew.tokens.chat.show import COLOURS

    def marked(role: str, words: str, title: str = "") -> str:
        return f'<span class="role" style="background:{COLOURS[role][1]}"{title}>{words}</span>'

    spans = "".join(marked(token.role, text(token.text), f' title="{token.id} {token.role}"') for token in tokens)
    counts = {role: sum(token.role == role for token in tokens) for role in COLOURS}
    legend = " ".join(marked(role, role) for role, count in counts.items() if count)
    shown = Section("conversation", "Conversation", f'<p>{legend}</p><pre class="flow" tabindex="0">{spans}</pre>')
    table = counts_table("tokens of each role", {role: count for role, count in counts.items() if count})
    return document(
        source, facts_list({"row": number, "tokens": len(tokens)}), [shown, Section("roles", "Roles", table)]
    )
