"""Packed documents: a corpus as rows of whole documents, planned once, for next-token training.

A record is a row of S + 1 tokens: several documents one after the other, each a segment of its own, then padding. Which
documents share a row is planned from their recorded lengths over the whole corpus (`packing.py`), before any share of
the rows is cut, so a row is the same on every process count, and the number of records is the number of rows.
"""

import logging
import os
import warnings
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.dataset import Dataset
from dew.data.errors import DamagedSourceError, DewWarning
from dew.data.loading import Loading
from dew.data.source import Indices
from dew.tokens.access import CorpusOptions
from dew.tokens.options import TokenOptions, check_val, checked_plans
from dew.tokens.packing import (
    Int32s,
    Int64s,
    Long,
    PackingCounts,
    PackingPlan,
    PackingReport,
    PackingRules,
    check_long,
    check_max_segments,
    packing_report,
    row_marks,
)
from dew.tokens.plans import PlanKey, StoredPlan, find_or_make, make
from dew.tokens.reader import TokenReader, shared_tokens
from dew.tokens.windows import open_stretch

logger = logging.getLogger("dew.tokens")  # given text only: a kept record must not keep maps open

_MUCH_LOST = 0.1


class PackedSource:
    """Rows of the documents in tokens `[start, stop)` of a corpus, as a record source.

    A record is `{"text", "text_segment_ids", "text_positions"}`, each (S+1,) int32. Segments are 1, 2, ... and 0 is
    padding, whatever its token; positions restart at 0 in each segment.

    Args:
        corpus: where the tokens are; it is shared, not copied, and pickles by path.
        seq_len: S.
        long, max_segments, plans: as in `PackedDocuments`.
        start, stop: which documents, all of them by default.

    Raises:
        OptionsError: a value that cannot be used, or a cut inside a document.
        OptionsTypeError: a value of a type that cannot be used.
        SourceError: there is nothing to pack, or a document is too long and `long` is "error".
        StorageError: `plans` cannot be written.

    A `DewWarning` says so where more than a tenth of all targets is lost to "truncate" or "drop".
    """

    def __init__(
        self,
        corpus: TokenReader,
        *,
        seq_len: int,
        long: Long = "split",
        max_segments: int | None = None,
        start: int = 0,
        stop: int | None = None,
        plans: str | os.PathLike[str] | None = None,
    ) -> None:
        key = PlanKey(
            corpus=corpus.id,
            start=checks.check_count("start", start, 0),
            stop=corpus.tokens if stop is None else checks.check_count("stop", stop, 0),
            rules=PackingRules(seq_len=seq_len, long=long, max_segments=max_segments),
        )
        found = find_or_make(corpus, key, checked_plans(plans))
        self._set_up(corpus, key, found)
        self._tell(found.counts)

    def _set_up(self, corpus: TokenReader, key: PlanKey, plan: "StoredPlan | PackingPlan | _Made") -> None:
        self.corpus = corpus
        self.start, self.stop, self.rules = key.start, key.stop, key.rules
        self.counts: PackingCounts = plan.counts
        self._key = key
        self._id = plan.id
        self._stored = plan if isinstance(plan, StoredPlan) else None
        self._plan = plan if isinstance(plan, PackingPlan) else None

    def __repr__(self) -> str:
        rules = f"seq_len={self.rules.seq_len}, long={self.rules.long!r}, max_segments={self.rules.max_segments}"
        return f"PackedSource({rules}, tokens {self.start} to {self.stop} of {self.corpus.tokens})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.corpus, self._key, self._stored or _Made(counts=self.counts, id=self._id))

    def __len__(self) -> int:
        return self.counts.rows

    def __getitem__(self, index: int, /) -> dict[str, npt.NDArray[np.int32]]:
        return {name: column[0] for name, column in self.take(np.array([index], np.int64)).items()}

    def take(self, indices: Indices) -> dict[str, npt.NDArray[np.int32]]:
        """Rows `indices` (k,) int64 as `{"text", "text_segment_ids", "text_positions"}`, (k, S+1) int32, new arrays.

        Raises:
            IndexError: there is no such row.
        """
        sizes, starts, lengths = self.pieces(indices)
        width = self.rules.width
        text = self.corpus.gather_rows(starts, lengths, sizes, width)
        segments, positions = row_marks(sizes, lengths, width)
        return {"text": text, "text_segment_ids": segments, "text_positions": positions}

    def pieces(self, indices: Indices) -> tuple[Int64s, Int64s, Int32s]:
        """How many pieces rows `indices` (k,) have, (k,) int64, then first tokens in the corpus and lengths of all.

        Raises:
            IndexError: there is no such row.
        """
        sizes, starts, lengths = self._reading().pieces(indices)
        if self.start:
            starts += self.start
        return sizes, starts, lengths

    def spans(self, index: int) -> list[tuple[int, int]]:
        """Which tokens `[start, stop)` of the corpus are in row `index`, a pair for each segment.

        Raises:
            IndexError: there is no such row.
        """
        _, starts, lengths = self.pieces(np.array([index], np.int64))
        return list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))

    def report(self) -> PackingReport:
        """How well the rows are filled, and what became of the documents."""
        return packing_report(self._reading())

    def fingerprint(self) -> str:
        """The corpus's id. It does not read the files again: `verify_corpus` does."""
        return self.corpus.id

    def identity(self) -> dict[str, Any]:
        """`{"tokenizer": sha256 of the tokenizer's definition or None, "plan": the plan's id}`."""
        return {"tokenizer": self.corpus.tokenizer_sha256, "plan": self._id}

    def shares_records_with(self, other: object) -> int:
        """How many rows, in proportion, lie in a stretch of the same corpus that `other` reads."""
        return -(-shared_tokens(self, other) * len(self) // max(1, self.stop - self.start))

    def open(self) -> "PackedSource":
        """A reader of the same rows with maps of its own; reads nothing."""
        reader = PackedSource.__new__(PackedSource)
        made = _Made(counts=self.counts, id=self._id)
        reader._set_up(self.corpus.open(), self._key, self._stored or self._plan or made)
        return reader

    def close(self) -> None:
        """Frees maps; reading again opens them again."""
        self.corpus.close()
        if self._stored is not None:
            self._plan = None

    def _reading(self) -> PackingPlan:
        plan = self._plan
        if plan is None:
            plan = self._plan = self._open_plan()
        return plan

    def _open_plan(self) -> PackingPlan:
        """The plan that this source was made with: mapped, or made again where no file holds it (any more)."""
        if self._stored is not None:
            try:
                return self._stored.open()
            except DamagedSourceError as error:
                logger.info("the packing plan is made again: %s", str(error))
        plan = make(self.corpus, self._key)
        if plan.id != self._id:
            raise DamagedSourceError(
                f"the documents of {self.corpus!r} gave the packing plan {self._id} when they were opened, now they "
                f"give {plan.id}; a corpus must not be changed while it is read"
            )
        return plan

    def _tell(self, counts: PackingCounts) -> None:
        fill = counts.filled / (counts.rows * self.rules.width)
        logger.info("%s: %d rows, %.4f full, %d targets lost", repr(self), counts.rows, fill, counts.lost_targets)
        targets = counts.tokens - counts.documents
        if counts.lost_targets > _MUCH_LOST * targets:
            warnings.warn(
                f"long={self.rules.long!r} loses {counts.lost_targets / targets:.1%} of the {targets} targets: of "
                f"{counts.documents} documents {counts.truncated} are truncated and {counts.dropped} dropped at "
                f"seq_len {self.rules.seq_len}; long='split' loses none",
                DewWarning,
                stacklevel=3,
            )


@attrs.frozen(kw_only=True)
class _Made:
    """What is known of a plan that is in no file."""

    counts: PackingCounts
    id: str


def _reopen(corpus: TokenReader, key: PlanKey, plan: "StoredPlan | _Made") -> PackedSource:
    source = PackedSource.__new__(PackedSource)
    source._set_up(corpus, key, plan)  # pyright: ignore[reportPrivateUsage]
    return source


@attrs.frozen
class PackedDocuments(CorpusOptions):
    """Whole documents packed into rows, as one value: `PackedDocuments("corpus", seq_len=2048).load(batch=32)`.

    The same as `dew.data.load("tokens/corpus", batch=32, options=TokenOptions(seq_len=2048, pack=True))`. A batch has
    `text`, `text_segment_ids` and `text_positions`, (B, S+1) int32; padding is where the segment id is 0.

    Args:
        path: a corpus, or a directory of splits with one named `train`; a path or a URL.
        seq_len, val: as in `TokenOptions`.
        long: what becomes of a document of more than S + 1 tokens. "split": pieces that overlap by one token, so that
            no target is lost; "truncate": its first S + 1 tokens; "drop": nothing; "error": a `SourceError`.
        max_segments: most documents (or pieces of them) in one row; None for any number.
        plans: a directory for packing plans. By default a plan of over 2^20 documents is kept in `.dew-plans` beside a
            local corpus, else in the user's cache directory; a smaller one is made anew each time.
        format, dtype, eos_id, bos_id, storage_options, cache: as in `CorpusOptions`.
        seed: of the order.
        loading: how fast batches are made, never what they hold.

    Raises:
        OptionsError: a value that cannot be used.
        OptionsTypeError: a value of a type that cannot be used.
    """

    path: str = attrs.field(converter=os.fspath)
    seq_len: int = attrs.field(validator=checks.count(), kw_only=True)
    val: str | float | None = attrs.field(default=None, validator=check_val, kw_only=True)
    long: Long = attrs.field(default="split", validator=check_long, kw_only=True)
    max_segments: int | None = attrs.field(default=None, validator=check_max_segments, kw_only=True)
    plans: str | None = attrs.field(default=None, converter=checked_plans, kw_only=True)
    seed: int = attrs.field(default=0, validator=checks.seed, kw_only=True)
    loading: Loading = attrs.field(factory=Loading, kw_only=True)

    @property
    def options(self) -> TokenOptions:
        """The same wishes, for `dew.data.load`."""
        return TokenOptions(
            seq_len=self.seq_len,
            val=self.val,
            pack=True,
            long=self.long,
            max_segments=self.max_segments,
            plans=self.plans,
            **self.access(),
        )

    def load(self, *, batch: int) -> Dataset:
        """The data set, with `batch` rows in one step over all processes.

        Raises:
            SourceError: nothing usable is stored at the path, or a document is too long and `long` is "error".
            SplitError: `val` names a split that is not there.
            OverlapError: `val` names the training split, or a copy of it.
            StorageError: `plans` cannot be written.
        """
        from dew.data.build import dataset_of

        val_split = self.options.val_split
        return dataset_of(
            open_rows(self.path, "train", self.options),
            batch=batch,
            val=None if val_split is None else open_rows(self.path, val_split, self.options),
            seed=self.seed,
            loading=self.loading,
        )

    def report(self, split: str = "train") -> PackingReport:
        """How well the rows of a split are filled, and what became of its documents."""
        return open_rows(self.path, split, self.options).report()


def open_rows(path: str, split: str, options: TokenOptions) -> PackedSource:
    """The rows of one split below `path`; splits are those of `dew.tokens.windows.open_split`.

    Raises:
        SourceError, SplitError, OptionsError, StorageError: as `PackedSource` and `open_split`.
    """
    corpus, start, stop = open_stretch(path, split, options)
    return PackedSource(
        corpus,
        seq_len=options.seq_len,
        long=options.long,
        max_segments=options.max_segments,
        start=start,
        stop=stop,
        plans=options.plans,
    )
