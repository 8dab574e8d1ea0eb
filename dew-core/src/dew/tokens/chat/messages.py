"""Conversations as packed rows with a role for every token: `ChatMessages`.

Each conversation is rendered and encoded once into a token corpus with roles; from there on it is a document like any
other: packed whole by the planner, read by place, resumed by one integer. A conversation is never split, since its
second part would answer what it does not show.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.dataset import Dataset
from dew.data.loading import Loading
from dew.data.source import Indices
from dew.tokens.chat.artefact import content_digest
from dew.tokens.chat.column import RoleReader
from dew.tokens.chat.renderer import ChatRenderer, ChatRules
from dew.tokens.chat.rendering import ChatCounts, LongChat, RenderPlan, check_long_chat, check_roles, counts_of
from dew.tokens.chat.rows import open_rows
from dew.tokens.chat.tokenizer import load_chat_tokenizer
from dew.tokens.corpus import TokenCorpus
from dew.tokens.documents import PackedSource
from dew.tokens.packing import PackingReport, check_max_segments


class ChatSource:
    """Packed rows of a rendered corpus, with roles, as a record source.

    A record is `{"text", "text_segment_ids", "text_positions", "text_roles"}`, each (S+1,) int32, aligned.

    Args:
        corpus: made by `ChatMessages`.
        seq_len: S, at least that of the render.
        max_segments: most conversations in one row; None for any number.

    Raises:
        SourceError: the corpus has no roles, or a conversation is longer than a row.
    """

    def __init__(self, corpus: TokenCorpus, *, seq_len: int, max_segments: int | None = None) -> None:
        rows = PackedSource(corpus, seq_len=seq_len, long="error", max_segments=max_segments)
        self._set_up(rows, RoleReader(corpus))

    def _set_up(self, rows: PackedSource, roles: RoleReader) -> None:
        self.rows = rows
        self._roles = roles

    def __repr__(self) -> str:
        rules = self.rows.rules
        return (
            f"ChatSource(seq_len={rules.seq_len}, max_segments={rules.max_segments}, "
            f"conversations={self.rows.corpus.documents})"
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int, /) -> dict[str, npt.NDArray[np.int32]]:
        return {name: column[0] for name, column in self.take(np.array([index], np.int64)).items()}

    def take(self, indices: Indices) -> dict[str, npt.NDArray[np.int32]]:
        """Rows `indices` (k,) int64 as four fields of (k, S+1) int32, new arrays.

        Raises:
            IndexError: there is no such row.
        """
        sizes, starts, lengths = self.rows.pieces(indices)
        roles = self._roles.gather_rows(starts, lengths, sizes, self.rows.rules.width)
        return {**self.rows.take(indices), "text_roles": roles}

    def conversations(self, index: int) -> list[tuple[int, int]]:
        """Which tokens `[start, stop)` of the rendered corpus are in row `index`, a pair for each segment."""
        return self.rows.spans(index)

    def fingerprint(self) -> str:
        """Of what was rendered: ids, roles, and where documents end."""
        return content_digest(self._roles.corpus)

    def identity(self) -> dict[str, Any]:
        """Tokenizer and packing plan, as of `PackedSource`."""
        return self.rows.identity()

    def open(self) -> "ChatSource":
        """A reader of the same rows with maps of its own; reads nothing."""
        reader = ChatSource.__new__(ChatSource)
        reader._set_up(self.rows.open(), self._roles.open())
        return reader

    def close(self) -> None:
        """Frees maps; reading again opens them again."""
        self.rows.close()
        self._roles.close()


@attrs.frozen(kw_only=True)
class ChatReport:
    """What became of the rows of a data set: `counts` of conversations and tokens, `packing` of rows."""

    counts: ChatCounts
    packing: PackingReport

    def __str__(self) -> str:
        counts = self.counts
        lost = f"{counts.dropped} dropped, {counts.truncated} truncated, {counts.targetless} without targets after it"
        return (
            f"{counts.rows} conversations ({lost}); {counts.targets} of {counts.tokens} tokens are learnt, "
            f"{counts.straddling} lie over a border, {counts.hidden} messages have no known place, {counts.typed} "
            f"control tokens were typed; {self.packing}"
        )


@attrs.frozen
class ChatMessages(ChatRules):
    """Conversations for fine-tuning: `ChatMessages("chats.jsonl", tokenizer="model", seq_len=2048).load(batch=32)`.

    A batch has `text`, `text_segment_ids`, `text_positions` and `text_roles`, (B, S+1) int32; `loss_mask(batch)` says
    which targets are learnt. A row of the data has `messages`, a list of objects with `role` and `content` (text, or
    text parts) and perhaps `tool_calls`, `tool_call_id` or `name`; and perhaps `tools`.

    Args:
        data: the path or URL of a .jsonl, .json or .parquet file or of a directory of such, a sequence of rows, or a
            record source of rows.
        tokenizer: a directory with `tokenizer.json` and a chat template, or the name of a model on the Hugging Face
            hub.
        seq_len: S: a row has room for S + 1 tokens, so that it holds up to S targets.
        long: what becomes of a conversation of more than S + 1 tokens. "error": a `SourceError`; "drop": nothing;
            "truncate_right": its first S + 1 tokens, "truncate_left": its last ones, if something to learn is left.
        target_roles: whose words are learnt; a row without any is refused.
        val: what validation reads, of the same kinds as `data`; None: no validation.
        max_segments: most conversations in one row; None for any number.
        messages_field, tools_field: names of the fields of a row.
        renders: a directory of this machine for rendered conversations. By default `.dew-chats` beside a local file,
            else the user's cache directory.
        template, variables, date, role_names, arguments: as in `ChatRules`.
        seed: of the order.
        loading: how fast batches are made, never what they hold.

    Raises:
        OptionsError: a value that cannot be used.
        OptionsTypeError: a value of a type that cannot be used.
    """

    data: Any = attrs.field(repr=False)
    tokenizer: str = attrs.field(converter=os.fspath, kw_only=True)
    seq_len: int = attrs.field(validator=checks.count(), kw_only=True)
    long: LongChat = attrs.field(default="error", validator=check_long_chat, kw_only=True)
    target_roles: Sequence[str] = attrs.field(default=("assistant",), kw_only=True)
    val: Any = attrs.field(default=None, repr=False, kw_only=True)
    max_segments: int | None = attrs.field(default=None, validator=check_max_segments, kw_only=True)
    messages_field: str = attrs.field(default="messages", kw_only=True)
    tools_field: str = attrs.field(default="tools", kw_only=True)
    renders: str | None = attrs.field(default=None, converter=attrs.converters.optional(os.fspath), kw_only=True)
    seed: int = attrs.field(default=0, validator=checks.seed, kw_only=True)
    loading: Loading = attrs.field(factory=Loading, kw_only=True)

    def __attrs_post_init__(self) -> None:
        check_roles(self.target_roles)

    def load(self, *, batch: int) -> Dataset:
        """The data set, with `batch` rows in one step over all processes; renders what is not rendered yet.

        Raises:
            SourceError: a row that cannot be rendered, has nothing to learn, or is too long; named.
            SourceNotFoundError: there is no such file or tokenizer.
            OverlapError: `val` is the same data.
            PoolError: the conversations are not rendered yet, and this is a process of a pool: call `prepare` before.
        """
        from dew.data.build import dataset_of

        return dataset_of(
            self.source(),
            batch=batch,
            val=None if self.val is None else self.source(val=True),
            seed=self.seed,
            loading=self.loading,
        )

    def source(self, *, val: bool = False) -> ChatSource:
        """The packed rows of `data`, or of `val`."""
        corpus = self._corpus(val=val, in_pool=False)
        return ChatSource(corpus, seq_len=self.seq_len, max_segments=self.max_segments)

    def prepare(self) -> ChatReport:
        """Render what is not rendered yet, in this process, and say what became of the rows of `data`.

        Raises:
            SourceError: as `load`.
        """
        if self.val is not None:
            self._corpus(val=True, in_pool=True)
        corpus = self._corpus(val=False, in_pool=True)
        packing = ChatSource(corpus, seq_len=self.seq_len, max_segments=self.max_segments).rows.report()
        return ChatReport(counts=counts_of(corpus), packing=packing)

    def loss_mask(self, batch: Mapping[str, Any]) -> Any:
        """(B, S) bool: which targets of a batch are learnt; see `dew.tokens.chat.loss_mask`."""
        from dew.tokens.chat.roles import loss_mask

        return loss_mask(batch, self.target_roles)

    def plan(self, *, val: bool = False) -> RenderPlan:
        """What the rows of `data`, or of `val`, are rendered by."""
        targets = check_roles(self.target_roles)
        rules = ChatRules(**self.rules())
        return RenderPlan(
            rows=open_rows(self.val if val else self.data),
            renderer=ChatRenderer(load_chat_tokenizer(self.tokenizer), rules, targets),
            width=self.seq_len + 1,
            long=self.long,
            targets=targets,
            messages_field=self.messages_field,
            tools_field=self.tools_field,
            folder=self.renders,
        )

    def _corpus(self, *, val: bool, in_pool: bool) -> TokenCorpus:
        return self.plan(val=val).corpus(in_pool=in_pool)
