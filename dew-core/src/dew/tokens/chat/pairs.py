"""Preference pairs: a prompt, a completion that is preferred and one that is not, as arrays: `PreferencePairs`.

Both completions follow the same prompt, token by token; where it ends is known from the prompt alone. Each row is
encoded once into a token corpus, as two documents side by side.
"""

import os
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import attrs
import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.dataset import Dataset
from dew.data.errors import OptionsError, SourceError
from dew.data.loading import Loading
from dew.data.source import Indices
from dew.tokens.chat.artefact import Artefact, content_digest
from dew.tokens.chat.column import RoleReader
from dew.tokens.chat.conversation import RowRules
from dew.tokens.chat.pieces import PROMPT, SCORED, UNSCORED, Ids, PieceReader, form_of
from dew.tokens.chat.renderer import ChatRenderer, ChatRules
from dew.tokens.chat.rows import Rows, open_rows
from dew.tokens.chat.tokenizer import load_chat_tokenizer
from dew.tokens.corpus import TokenCorpus
from dew.tokens.writer import TokenWriter

LongPair: TypeAlias = Literal["error", "drop", "truncate_left", "truncate_right"]
LONG_PAIR: Final[tuple[str, ...]] = get_args(LongPair)

SIDES: Final = ("chosen", "rejected")

_Side: TypeAlias = "tuple[Ids, npt.NDArray[np.uint8]]"


class PairSource:
    """Pairs of a rendered corpus, as a record source.

    A record is `chosen`, `rejected` (S,) int32, `chosen_mask`, `rejected_mask` (S,) bool, and `prompt_length`,
    `chosen_length`, `rejected_length`, () int32.

    Args:
        corpus: made by `PreferencePairs`; documents 2i and 2i + 1 are pair i.
        seq_len: S.
        pad_id: of the places after a sequence.
    """

    def __init__(self, corpus: TokenCorpus, *, seq_len: int, pad_id: int = 0) -> None:
        self._set_up(corpus, RoleReader(corpus), seq_len, pad_id)

    def _set_up(self, corpus: TokenCorpus, roles: RoleReader, seq_len: int, pad_id: int) -> None:
        self._rendered = corpus
        self.seq_len = seq_len
        self._pad_id = pad_id
        self._roles = roles

    def __repr__(self) -> str:
        return f"PairSource(seq_len={self.seq_len}, pairs={len(self)})"

    def __len__(self) -> int:
        return self._rendered.documents // 2

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return {name: column[0] for name, column in self.take(np.array([index], np.int64)).items()}

    def take(self, indices: Indices) -> dict[str, npt.NDArray[Any]]:
        """Pairs `indices` (k,) int64 as columns, new arrays.

        Raises:
            IndexError: there is no such pair.
        """
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"pair {indices.max()} was asked for, there are pairs 0 to {len(self) - 1}")
        found: dict[str, npt.NDArray[Any]] = {}
        for number, side in enumerate(SIDES):
            starts = self._rendered.offsets[2 * indices + number]
            lengths = self._rendered.offsets[2 * indices + number + 1] - starts
            ones = np.ones(len(indices), np.int64)
            ids = self._rendered.gather_rows(starts, lengths, ones, self.seq_len)
            roles = self._roles.gather_rows(starts, lengths, ones, self.seq_len)
            padding = np.arange(self.seq_len) >= lengths[:, None]
            ids[padding] = self._pad_id
            found[side] = ids
            found[f"{side}_mask"] = roles == SCORED
            found[f"{side}_length"] = lengths.astype(np.int32)
            if number == 0:
                found["prompt_length"] = ((roles == PROMPT) & ~padding).sum(1, dtype=np.int32)
        return found

    def fingerprint(self) -> str:
        """Of what was rendered: ids, roles, and where documents end."""
        return content_digest(self._rendered)

    def identity(self) -> dict[str, Any]:
        """`{"tokenizer": sha256 of its definition, "pad": the padding's id}`."""
        return {"tokenizer": self._rendered.tokenizer_sha256, "pad": self._pad_id}

    def open(self) -> "PairSource":
        """A reader of the same pairs with maps of its own; reads nothing."""
        reader = PairSource.__new__(PairSource)
        reader._set_up(self._rendered.open(), self._roles.open(), self.seq_len, self._pad_id)
        return reader

    def close(self) -> None:
        """Frees maps; reading again opens them again."""
        self._rendered.close()
        self._roles.close()


def _check_long(_instance: object, _attribute: Any, value: object) -> None:
    if value not in LONG_PAIR:
        raise OptionsError(f"long must be one of {', '.join(LONG_PAIR)}, got {value!r}")


@attrs.frozen
class PreferencePairs(ChatRules):
    """Preference pairs: `PreferencePairs("pairs.jsonl", tokenizer="model", seq_len=1024).load(batch=32)`.

    A batch has `chosen`, `rejected` (B, S) int32, each the prompt, the completion and padding; `chosen_mask`,
    `rejected_mask` (B, S) bool, true for the tokens of the completion that the model writes; and `prompt_length`,
    `chosen_length`, `rejected_length` (B,) int32.

    A row of the data has `prompt`, `chosen` and `rejected`: all messages, all strings, or all ids (with
    `chosen_mask`, `rejected_mask` of the completions where not all of their ids count). Or, without `prompt`, `chosen`
    and `rejected` are whole conversations, whose first messages, up to where they differ, are the prompt.

    Args:
        data, tokenizer: as in `ChatMessages`.
        seq_len: S.
        long: what becomes of a pair of which one is longer than S. "error": a `SourceError`; "drop": nothing;
            "truncate_right": the ends are cut; "truncate_left": the beginning of the prompt is cut, of both the same.
            A pair with nothing left of a completion is refused.
        parse_special: whether control tokens in strings are tokens; else they are text.
        val: what validation reads; None: no validation.
        renders: as in `ChatMessages`.
        template, variables, date, role_names, arguments: as in `ChatRules`.
        seed: of the order.
        loading: how fast batches are made, never what they hold.

    Raises:
        OptionsError, OptionsTypeError: a value that cannot be used.
    """

    data: Any = attrs.field(repr=False)
    tokenizer: str = attrs.field(converter=os.fspath, kw_only=True)
    seq_len: int = attrs.field(validator=checks.count(2), kw_only=True)
    long: LongPair = attrs.field(default="error", validator=_check_long, kw_only=True)
    parse_special: bool = attrs.field(default=False, kw_only=True)
    val: Any = attrs.field(default=None, repr=False, kw_only=True)
    renders: str | None = attrs.field(default=None, converter=attrs.converters.optional(os.fspath), kw_only=True)
    seed: int = attrs.field(default=0, validator=checks.seed, kw_only=True)
    loading: Loading = attrs.field(factory=Loading, kw_only=True)

    def load(self, *, batch: int) -> Dataset:
        """The data set, with `batch` pairs in one step over all processes; encodes what is not encoded yet.

        Raises:
            SourceError: a row that is no pair, or is too long; named.
            OverlapError: `val` is the same data.
            PoolError: the rows are not rendered yet, and this is a process of a pool: call `prepare` before.
        """
        from dew.data.build import dataset_of

        return dataset_of(
            self.source(),
            batch=batch,
            val=None if self.val is None else self.source(val=True),
            seed=self.seed,
            loading=self.loading,
        )

    def source(self, *, val: bool = False) -> PairSource:
        """The pairs of `data`, or of `val`."""
        corpus = self._corpus(val=val, in_pool=False)
        return PairSource(corpus, seq_len=self.seq_len, pad_id=corpus.manifest.tokenizer.pad_id or 0)

    def prepare(self) -> None:
        """Encode what is not encoded yet, in this process."""
        for val in (False, True) if self.val is not None else (False,):
            self._corpus(val=val, in_pool=True)

    def _corpus(self, *, val: bool, in_pool: bool) -> TokenCorpus:
        rows = open_rows(self.val if val else self.data)
        renderer = ChatRenderer(load_chat_tokenizer(self.tokenizer), ChatRules(**self.rules()), required=False)
        reader = PieceReader(renderer, RowRules(arguments=self.arguments, arrow=rows.arrow), self.parse_special)
        rules = {"seq_len": self.seq_len, "long": self.long, "parse_special": self.parse_special}
        artefact = Artefact(kind="pairs", rows=rows, renderer=renderer, rules=rules, folder=self.renders)

        def fill(writer: TokenWriter) -> Mapping[str, int]:
            return _fill(writer, rows, _Pairs(reader, self.seq_len, self.long))

        return artefact.find_or_make(fill, in_pool=in_pool)


def _fill(writer: TokenWriter, rows: Rows, pairs: "_Pairs") -> Mapping[str, int]:
    count = dropped = 0
    for index, row in enumerate(rows):
        count += 1
        try:
            sides = pairs.fitted(pairs.sides(row))
        except SourceError as error:
            raise SourceError(f"{rows.name(index)}: {error}") from error
        if sides is None:
            dropped += 1
            continue
        for ids, roles in sides:
            writer.add(ids, roles)
    if not count:
        raise SourceError("there are no pairs: there is no row")
    if count == dropped:
        raise SourceError(f"no pair is left: all {count} are too long; use a larger seq_len")
    return {"rows": count, "dropped": dropped}


@attrs.frozen
class _Pairs:
    """Reads pairs in each of their forms, and makes them fit."""

    reader: PieceReader
    seq_len: int
    long: LongPair

    def sides(self, row: Any) -> list[_Side]:
        """Ids and roles of chosen and rejected, each with the prompt before it."""
        if not isinstance(row, Mapping):
            raise SourceError(f"a row is a mapping with 'chosen' and 'rejected', got {row!r:.80}")
        fields = cast("Mapping[str, Any]", row)
        if missing := [side for side in SIDES if fields.get(side) is None]:
            raise SourceError(f"the row has no {missing[0]!r}; its fields are {', '.join(map(str, fields))}")
        tools = fields.get("tools")
        forms = {side: form_of(fields[side], side) for side in SIDES}
        prompt: Any = fields.get("prompt")
        if prompt is None:
            prompt, fields = _implicit(fields, forms)
        forms["prompt"] = form_of(prompt, "the prompt")
        if len(set(forms.values())) > 1:
            listed = ", ".join(f"{name} is {form}" for name, form in forms.items())
            raise SourceError(f"{listed}: all of a pair must have one form")
        if forms["chosen"] == "messages":
            made = [self.reader.turn(prompt, fields[side], tools, side) for side in SIDES]
        else:
            before = self.reader.prompt(prompt, tools)
            made = [self._joined(before, self._completion(fields, side, forms[side])) for side in SIDES]
        _check_prompts(made)
        if np.array_equal(made[0][0], made[1][0]):
            raise SourceError("chosen and rejected are the same, so that neither is preferred; leave the row out")
        return made

    def fitted(self, sides: list[_Side]) -> list[_Side] | None:
        """Sides of at most S tokens; None to drop the pair."""
        longest = max(len(ids) for ids, _ in sides)
        if longest > self.seq_len:
            if self.long == "drop":
                return None
            if self.long == "error":
                raise SourceError(
                    f"the pair has {len(sides[0][0])} tokens (chosen) and {len(sides[1][0])} (rejected), seq_len is "
                    f"{self.seq_len}; use a larger one, or say with long= what becomes of them: 'drop', "
                    "'truncate_left' or 'truncate_right'"
                )
            first = 0
            if self.long == "truncate_left":
                # The prompt of both loses the same, so that it stays the same.
                first = min(longest - self.seq_len, int((sides[0][1] == PROMPT).sum()))
            sides = [(ids[first:][: self.seq_len], roles[first:][: self.seq_len]) for ids, roles in sides]
        for name, (_, roles) in zip(SIDES, sides, strict=True):
            if not (roles == SCORED).any():
                raise SourceError(
                    f"nothing is left of the completion of {name}: the prompt alone fills the {self.seq_len} tokens; "
                    "use a larger seq_len, or long='truncate_left'"
                )
        return sides

    def _completion(self, fields: Mapping[str, Any], side: str, form: str) -> _Side:
        if form == "text":
            return self.reader.text_completion(fields[side], side)
        ids = self.reader.ids(fields[side], side)
        mask = fields.get(f"{side}_mask")
        if mask is None:
            return ids, np.full(len(ids), SCORED, np.uint8)
        scored = np.asarray(mask)
        if scored.shape != ids.shape:
            raise SourceError(f"{side} has {len(ids)} ids and {side}_mask has the shape {scored.shape}")
        return ids, np.where(scored != 0, SCORED, UNSCORED).astype(np.uint8)

    @staticmethod
    def _joined(prompt: Ids, completion: _Side) -> _Side:
        roles = np.concatenate([np.full(len(prompt), PROMPT, np.uint8), completion[1]])
        return np.concatenate([prompt, completion[0]]), roles


def _implicit(fields: Mapping[str, Any], forms: Mapping[str, str]) -> tuple[Any, Mapping[str, Any]]:
    """The messages that both conversations begin with, and what is left of each."""
    if set(forms.values()) != {"messages"}:
        raise SourceError("the row has no 'prompt': only conversations say what it is by what they share; add it")
    whole = [list(fields[side]) for side in SIDES]
    shared = 0
    for one, other in zip(*whole, strict=False):
        if one != other:
            break
        shared += 1
    while shared and whole[0][shared - 1].get("role") == "assistant":
        shared -= 1
    if not shared:
        raise SourceError("chosen and rejected share no messages to begin with, so there is no prompt")
    if any(len(messages) == shared for messages in whole):
        raise SourceError("chosen or rejected is the beginning of the other, so that it has no completion")
    return whole[0][:shared], {side: messages[shared:] for side, messages in zip(SIDES, whole, strict=True)}


def _check_prompts(sides: list[_Side]) -> None:
    """Both begin with one prompt."""
    prompts = [ids[roles == PROMPT] for ids, roles in sides]
    if not np.array_equal(prompts[0], prompts[1]):
        lengths = [len(prompt) for prompt in prompts]
        shared = min(lengths)
        different = np.flatnonzero(prompts[0][:shared] != prompts[1][:shared])
        at = int(different[0]) if different.size else shared
        raise SourceError(
            f"the prompts of chosen and rejected ({lengths[0]} and {lengths[1]} tokens) differ from token {at} on"
        )
