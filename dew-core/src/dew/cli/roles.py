"""`dew peek FILE --roles MODEL`: one conversation, each token in the colour of its role."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from dew.cli.opening import pairs_of
from dew.cli.output import console, print_json, say
from dew.data.errors import OptionsError

_OURS = ("data", "tokenizer")  # given in other ways


def show_roles(source: str, model: str, number: int, *, pairs: Sequence[str], as_json: bool, html: str | None) -> None:
    """Prints row `number` of the conversations in `source`, or writes it as a page.

    Raises:
        OptionsError: there is no such row or option, or `html` cannot be written.
        SourceError: the row cannot be rendered.
    """
    from dew.tokens.chat import ChatMessages
    from dew.tokens.chat.show import COLOURS, as_html, tokens_of_row

    known = [field.alias for field in attrs.fields(ChatMessages) if field.init and field.alias not in _OURS]
    options = pairs_of(pairs)
    if unknown := [key for key in options if key not in known]:
        raise OptionsError(f"there is no option {unknown[0]!r}; the options of conversations are {', '.join(known)}")
    wanted: dict[str, Any] = {"seq_len": 1, **options}
    tokens = tokens_of_row(ChatMessages(source, tokenizer=model, **wanted), number)
    if html is not None:
        try:
            Path(html).write_text(as_html(tokens, f"{source}, row {number}"), encoding="utf-8")
        except OSError as error:
            raise OptionsError(f"--html {html} cannot be written: {error}") from error
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
