"""What becomes of each row of conversations on its way into a rendered corpus: made to fit, counted, or refused."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import attrs
import numpy as np

from dew.data.errors import OptionsError, SourceError
from dew.tokens.chat.artefact import Artefact, counts_in, encoded_ahead
from dew.tokens.chat.conversation import RowRules
from dew.tokens.chat.renderer import ChatRenderer
from dew.tokens.chat.rows import Rows
from dew.tokens.corpus import TokenCorpus
from dew.tokens.writer import TokenWriter

if TYPE_CHECKING:
    from dew.tokens.chat.encoding import Encoded
    from dew.tokens.chat.roles import Painted

LongChat: TypeAlias = Literal["error", "drop", "truncate_left", "truncate_right"]
LONG_CHAT: Final[tuple[str, ...]] = get_args(LongChat)


def check_long_chat(_instance: object, _attribute: Any, value: object) -> None:
    """An attrs validator for `long`."""
    if value not in LONG_CHAT:
        raise OptionsError(
            f"long must be one of {', '.join(LONG_CHAT)}, got {value!r}; a conversation is never split, since the "
            "second part would answer what it does not show"
        )


@attrs.frozen(kw_only=True)
class ChatCounts:
    """What was in the rows and what became of it.

    Args:
        rows: that were there; each is in the corpus, or in `dropped` or `targetless`.
        tokens, targets: in the corpus, and how many of them have a target role.
        truncated: rows that lost their end or beginning, because they were too long.
        dropped: rows left out because they were too long.
        targetless: rows left out because truncating left nothing to learn.
        straddling: tokens over the border of two roles, with role 0.
        hidden: messages written outside of the template's loop, such as a system message, with role 0.
        typed: control tokens that somebody typed, encoded as text.
    """

    rows: int = 0
    tokens: int = 0
    targets: int = 0
    truncated: int = 0
    dropped: int = 0
    targetless: int = 0
    straddling: int = 0
    hidden: int = 0
    typed: int = 0


@attrs.frozen(kw_only=True)
class RenderPlan:
    """What a render is made of.

    Args:
        rows: which rows.
        renderer: by what.
        width: most tokens of a conversation: S + 1.
        long: what becomes of a longer one.
        targets: ids of the roles that are learnt.
        messages_field, tools_field: names of the fields of a row.
        folder: where renders are kept; None for beside the file, else the user's cache directory.
    """

    rows: Rows
    renderer: ChatRenderer
    width: int
    long: LongChat
    targets: tuple[int, ...]
    messages_field: str = "messages"
    tools_field: str = "tools"
    folder: str | None = None

    @property
    def artefact(self) -> Artefact:
        """The corpus that it makes."""
        rules = {
            "width": self.width,
            "long": self.long,
            "targets": self.targets,
            "fields": [self.messages_field, self.tools_field],
        }
        return Artefact(kind="messages", rows=self.rows, renderer=self.renderer, rules=rules, folder=self.folder)

    def corpus(self, *, in_pool: bool = False) -> TokenCorpus:
        """The conversations with roles, a document each; `in_pool`: make it also where many processes would.

        Raises:
            SourceError: a row that cannot be rendered, has nothing to learn, or is too long.
            PoolError, StorageError: as `Artefact.find_or_make`.
        """
        return self.artefact.find_or_make(self._fill, in_pool=in_pool)

    def _fill(self, writer: TokenWriter) -> Mapping[str, int]:
        tally = _Tally(self)
        for encoded in rendered_rows(self, tally.painted):
            for ids, roles in tally.fitted(encoded):
                writer.add(ids, roles)
        tally.check()
        return attrs.asdict(tally.counts)


def counts_of(corpus: TokenCorpus) -> ChatCounts:
    """What became of the rows of a rendered corpus."""
    return ChatCounts(**counts_in(corpus))


def rendered_rows(plan: RenderPlan, painted: Callable[[int, "Painted"], None]) -> "Iterator[Encoded]":
    """Every row, encoded; the next rows are rendered while a thread encodes.

    Args:
        plan: which rows, and how.
        painted: is told the text of each row.
    """
    rules = RowRules(arguments=plan.renderer.rules.arguments, arrow=plan.rows.arrow)

    def texts() -> "Iterator[Painted]":
        for index, row in enumerate(plan.rows):
            try:
                conversation = rules.conversation(row, messages=plan.messages_field, tools=plan.tools_field)
                text = plan.renderer.painted(conversation)
            except SourceError as error:
                raise SourceError(f"{plan.rows.name(index)}: {error}") from error
            painted(index, text)
            yield text

    yield from encoded_ahead(plan.renderer, texts())


class _Tally:
    """Counts rows, and makes them fit."""

    def __init__(self, plan: RenderPlan) -> None:
        self.counts = ChatCounts()
        self._plan = plan
        self._learnt = np.zeros(256, np.bool_)  # by role
        self._learnt[list(plan.targets)] = True
        self._without: list[int] = []
        self._too_long: list[tuple[int, int]] = []
        self._numbers = {field.name: 0 for field in attrs.fields(ChatCounts)}

    def painted(self, _index: int, text: "Painted") -> None:
        """One row as text."""
        self._numbers["hidden"] += text.hidden
        self._numbers["typed"] += len(text.literal)

    def fitted(self, encoded: "Encoded") -> Iterator[tuple[Any, Any]]:
        """Ids and roles of one row as the corpus gets them, if it does."""
        numbers, width, long = self._numbers, self._plan.width, self._plan.long
        row = numbers["rows"]
        numbers["rows"] += 1
        numbers["straddling"] += encoded.straddling
        ids, roles = encoded.ids, encoded.roles
        if not self._targets(roles):
            self._without.append(row)
            return
        if len(ids) > width:
            if long == "error":
                self._too_long.append((row, len(ids)))
                return
            if long == "drop":
                numbers["dropped"] += 1
                return
            part = slice(len(ids) - width, None) if long == "truncate_left" else slice(width)
            ids, roles = ids[part], roles[part]
            if not self._targets(roles):
                numbers["targetless"] += 1
                return
            numbers["truncated"] += 1
        numbers["tokens"] += len(ids)
        numbers["targets"] += self._targets(roles)
        yield ids, roles

    def check(self) -> None:
        """Refuse rows that cannot be learnt from, once all are seen, and say how many there are.

        Raises:
            SourceError: there are some, or nothing is left.
        """
        self.counts = ChatCounts(**self._numbers)
        rows, name = self.counts.rows, self._plan.rows.name
        if not rows:
            raise SourceError("there are no conversations: there is no row")
        if self._without:
            raise SourceError(
                f"{name(self._without[0])} has no token of a target role (ids {list(self._plan.targets)}: 3 is the "
                f"assistant), so there is nothing to learn from it; {len(self._without)} of {rows} rows have none. "
                "Leave these rows out, or check the template and role_names"
            )
        if self._too_long:
            row, length = self._too_long[0]
            raise SourceError(
                f"{name(row)} has {length} tokens, and a row of seq_len {self._plan.width - 1} has room for "
                f"{self._plan.width}; {len(self._too_long)} of {rows} rows are too long. Use a larger seq_len, or say "
                "with long= what becomes of them: 'drop', 'truncate_left' or 'truncate_right'"
            )
        if not self.counts.tokens:
            raise SourceError(
                f"no conversation is left: of {rows} rows {self.counts.dropped} are too long and "
                f"{self.counts.targetless} have nothing to learn once they are truncated; use a larger seq_len"
            )

    def _targets(self, roles: Any) -> int:
        """Targets in a row: its first token is none."""
        return int(np.count_nonzero(self._learnt[roles[1:]]))


def check_roles(target_roles: Sequence[str]) -> tuple[int, ...]:
    """Ids of the target roles; see `dew.tokens.chat.roles.role_ids`."""
    from dew.tokens.chat.roles import role_ids

    return role_ids(target_roles)
