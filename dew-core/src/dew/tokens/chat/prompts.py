"""Prompts to generate from, as arrays, with the way back to their rows: `Prompts`."""

import os
from collections.abc import Mapping
from typing import Any, cast

import attrs
import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.dataset import Dataset
from dew.data.errors import SourceError
from dew.data.loading import Loading
from dew.data.source import Indices
from dew.tokens.chat.artefact import Artefact, content_digest
from dew.tokens.chat.conversation import RowRules
from dew.tokens.chat.pieces import PieceReader
from dew.tokens.chat.renderer import ChatRenderer, ChatRules
from dew.tokens.chat.rows import Rows, open_rows
from dew.tokens.chat.tokenizer import load_chat_tokenizer
from dew.tokens.corpus import TokenCorpus
from dew.tokens.writer import TokenWriter


class PromptSource:
    """Prompts of a rendered corpus, as a record source.

    A record is `prompt` (L,) int32, padded on the left, `prompt_mask` (L,) bool, `prompt_length` and `row`, () int32.

    Args:
        corpus: made by `Prompts`; document i is row i.
        max_prompt: L.
        pad_id: of the places before a prompt.
    """

    def __init__(self, corpus: TokenCorpus, *, max_prompt: int, pad_id: int = 0) -> None:
        self._rendered = corpus
        self.max_prompt = max_prompt
        self._pad_id = pad_id

    def __repr__(self) -> str:
        return f"PromptSource(max_prompt={self.max_prompt}, prompts={len(self)})"

    def __len__(self) -> int:
        return self._rendered.documents

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return {name: column[0] for name, column in self.take(np.array([index], np.int64)).items()}

    def take(self, indices: Indices) -> dict[str, npt.NDArray[Any]]:
        """Prompts `indices` (k,) int64 as columns, new arrays.

        Raises:
            IndexError: there is no such prompt.
        """
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"prompt {indices.max()} was asked for, there are prompts 0 to {len(self) - 1}")
        starts = self._rendered.offsets[indices]
        lengths = self._rendered.offsets[indices + 1] - starts
        ones = np.ones(len(indices), np.int64)
        found = self._rendered.gather_rows(starts, lengths, ones, self.max_prompt)
        places = np.arange(self.max_prompt) - (self.max_prompt - lengths)[:, None]
        mask = places >= 0
        prompts = np.take_along_axis(found, np.maximum(places, 0), 1)
        prompts[~mask] = self._pad_id
        return {
            "prompt": prompts,
            "prompt_mask": mask,
            "prompt_length": lengths.astype(np.int32),
            "row": indices.astype(np.int32),
        }

    def fingerprint(self) -> str:
        """Of what was rendered: ids, roles, and where documents end."""
        return content_digest(self._rendered)

    def identity(self) -> dict[str, Any]:
        """`{"tokenizer": sha256 of its definition, "pad": the padding's id}`."""
        return {"tokenizer": self._rendered.tokenizer_sha256, "pad": self._pad_id}

    def open(self) -> "PromptSource":
        """A reader of the same prompts with maps of its own; reads nothing."""
        return PromptSource(self._rendered.open(), max_prompt=self.max_prompt, pad_id=self._pad_id)

    def close(self) -> None:
        """Frees maps; reading again opens them again."""
        self._rendered.close()


@attrs.frozen
class Prompts(ChatRules):
    """Prompts to generate from: `Prompts("prompts.jsonl", tokenizer="model", max_prompt=512).load(batch=64)`.

    A batch has `prompt` (B, L) int32, padded on the left, so that what is generated follows its last column;
    `prompt_mask` (B, L) bool, false in the padding; `prompt_length` (B,) int32; and `row` (B,) int32, with which
    `row(i)` gives the row back: the answer to check, the tests to run. Of a prompt of more than L tokens the last L are
    kept.

    Args:
        data, tokenizer: as in `ChatMessages`.
        max_prompt: L.
        field: the field of a row that holds the prompt: messages, a string, or ids. Messages get the header of the
            assistant's turn; a row may have `tools`.
        parse_special: whether control tokens in strings are tokens; else they are text.
        renders: as in `ChatMessages`.
        template, variables, date, role_names, arguments: as in `ChatRules`.
        seed: of the order.
        loading: how fast batches are made, never what they hold.

    Raises:
        OptionsError, OptionsTypeError: a value that cannot be used.
    """

    data: Any = attrs.field(repr=False)
    tokenizer: str = attrs.field(converter=os.fspath, kw_only=True)
    max_prompt: int = attrs.field(validator=checks.count(), kw_only=True)
    field: str = attrs.field(default="prompt", kw_only=True)
    parse_special: bool = attrs.field(default=False, kw_only=True)
    renders: str | None = attrs.field(default=None, converter=attrs.converters.optional(os.fspath), kw_only=True)
    seed: int = attrs.field(default=0, validator=checks.seed, kw_only=True)
    loading: Loading = attrs.field(factory=Loading, kw_only=True)
    _rows: list[Rows] = attrs.field(factory=list[Rows], init=False, repr=False, eq=False)

    def load(self, *, batch: int) -> Dataset:
        """The data set, with `batch` prompts in one step over all processes; encodes what is not encoded yet.

        Raises:
            SourceError: a row that has no prompt; named.
            PoolError: the rows are not rendered yet, and this is a process of a pool: call `prepare` before.
        """
        from dew.data.build import dataset_of

        return dataset_of(self.source(), batch=batch, seed=self.seed, loading=self.loading)

    def row(self, index: int) -> Any:
        """Row `index` of the data, as it is stored."""
        return self._opened().row(int(index))

    def source(self) -> PromptSource:
        """The prompts."""
        corpus = self._corpus(in_pool=False)
        return PromptSource(corpus, max_prompt=self.max_prompt, pad_id=corpus.manifest.tokenizer.pad_id or 0)

    def prepare(self) -> None:
        """Encode what is not encoded yet, in this process."""
        self._corpus(in_pool=True)

    def _opened(self) -> Rows:
        if not self._rows:
            self._rows.append(open_rows(self.data))
        return self._rows[0]

    def _corpus(self, *, in_pool: bool) -> TokenCorpus:
        rows = self._opened()
        renderer = ChatRenderer(load_chat_tokenizer(self.tokenizer), ChatRules(**self.rules()), required=False)
        reader = PieceReader(renderer, RowRules(arguments=self.arguments, arrow=rows.arrow), self.parse_special)
        rules = {"max_prompt": self.max_prompt, "field": self.field, "parse_special": self.parse_special}
        artefact = Artefact(kind="prompts", rows=rows, renderer=renderer, rules=rules, folder=self.renders)

        def fill(writer: TokenWriter) -> Mapping[str, int]:
            return self._fill(writer, rows, reader)

        return artefact.find_or_make(fill, in_pool=in_pool)

    def _fill(self, writer: TokenWriter, rows: Rows, reader: PieceReader) -> Mapping[str, int]:
        count = cut = 0
        for index, row in enumerate(rows):
            try:
                ids = self._prompt(row, reader)
            except SourceError as error:
                raise SourceError(f"{rows.name(index)}: {error}") from error
            count += 1
            cut += len(ids) > self.max_prompt
            kept = ids[-self.max_prompt :]
            writer.add(kept, np.zeros(len(kept), np.uint8))
        if not count:
            raise SourceError("there are no prompts: there is no row")
        return {"rows": count, "truncated": cut}

    def _prompt(self, row: Any, reader: PieceReader) -> npt.NDArray[np.uint32]:
        if not isinstance(row, Mapping):
            raise SourceError(f"a row is a mapping with {self.field!r}, got {row!r:.80}")
        fields = cast("Mapping[str, Any]", row)
        if fields.get(self.field) is None:
            raise SourceError(f"the row has no {self.field!r}; its fields are {', '.join(map(str, fields)) or 'none'}")
        return reader.prompt(fields[self.field], fields.get("tools"))
