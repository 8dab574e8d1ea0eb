"""Token windows: a corpus as records of S + 1 tokens, for next-token training.

All documents are one long array of T tokens, in the manifest's order; window k is tokens `[kS, kS + S + 1)`. Each
window shares one token with the next, since the last target of one is the first input of the other, so there are
`(T - 1) // S` windows. They may cross documents and shards, so how a corpus is cut into shards never moves them.
"""

import os
from fractions import Fraction
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.dataset import Dataset
from dew.data.errors import OptionsError, SourceError, SplitError
from dew.data.loading import Loading
from dew.data.source import Indices
from dew.tokens.access import CorpusOptions
from dew.tokens.opening import has_split, open_corpus
from dew.tokens.options import TokenOptions, check_val
from dew.tokens.reader import TokenReader, shared_tokens
from dew.tokens.shards import Tokens


class WindowSource:
    """The windows of tokens `[start, stop)` of a corpus, as a record source.

    A record is `{"text": (S+1,) int32}`.

    Args:
        corpus: where the tokens are; it is shared, not copied, and pickles by path.
        seq_len: S.
        start, stop: the stretch that is cut into windows; the whole corpus by default.

    Raises:
        OptionsError: `seq_len` is below 1, or the stretch is not in the corpus.
        OptionsTypeError: `seq_len` is no int.
        SourceError: the stretch is too short for one window.
    """

    def __init__(self, corpus: TokenReader, *, seq_len: int, start: int = 0, stop: int | None = None) -> None:
        self.corpus = corpus
        self.seq_len = checks.check_count("seq_len", seq_len)
        self.start = checks.check_count("start", start, 0)
        self.stop = corpus.tokens if stop is None else checks.check_count("stop", stop, 0)
        if not self.start <= self.stop <= corpus.tokens:
            raise OptionsError(f"tokens [{start}, {self.stop}) are not in a corpus of {corpus.tokens} tokens")
        self._records = (self.stop - self.start - 1) // self.seq_len
        if self._records < 1:
            raise SourceError(
                f"one window of seq_len {seq_len} takes {seq_len + 1} tokens, there are {self.stop - self.start} "
                f"(tokens [{self.start}, {self.stop}) of {corpus.tokens}); use a seq_len of at most "
                f"{max(self.stop - self.start - 1, 0)}, or more text"
            )
        self._view: Tokens | None = None  # all windows, where they lie in one mapped shard
        self._within = (self.start, self.start + self._records * self.seq_len + 1)

    def __repr__(self) -> str:
        stretch = f"tokens {self.start} to {self.stop} of {self.corpus.tokens}"
        return f"WindowSource(seq_len={self.seq_len}, {stretch})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_view": None}

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, index: int, /) -> dict[str, npt.NDArray[np.int32]]:
        if not 0 <= index < self._records:
            raise IndexError(f"window {index} was asked for, there are windows 0 to {self._records - 1}")
        return {"text": self.take(np.array([index], np.int64))["text"][0]}

    def take(self, indices: Indices) -> dict[str, npt.NDArray[np.int32]]:
        """Windows `indices` (k,) int64 as `{"text": (k, S+1) int32}`, a new array.

        Raises:
            IndexError: there is no such window.
        """
        view = self._view
        if view is None:
            view = self._view = self.corpus.view(self.start, self._records, self.seq_len, self.seq_len + 1)
        if view is not None and len(indices) and indices[indices.argmin()] >= 0:
            try:
                return {"text": view[indices].astype(np.int32)}
            except IndexError:
                pass  # gather says which window there is not
        starts = indices * self.seq_len
        if self.start:
            starts += self.start
        return {"text": self.corpus.gather(starts, self.seq_len + 1, within=self._within)}

    def fingerprint(self) -> str:
        """The corpus's id. It does not read the files again: `verify_corpus` does."""
        return self.corpus.id

    def identity(self) -> dict[str, Any]:
        """`{"tokenizer": sha256 of the tokenizer's definition}`, None where the corpus does not state it."""
        return {"tokenizer": self.corpus.tokenizer_sha256}

    def shares_records_with(self, other: object) -> int:
        """How many windows lie at least in part in a stretch of the same corpus that `other` reads."""
        return -(-shared_tokens(self, other) // self.seq_len)

    def open(self) -> "WindowSource":
        """A reader of the same windows with maps of its own; reads nothing."""
        return WindowSource(self.corpus.open(), seq_len=self.seq_len, start=self.start, stop=self.stop)

    def close(self) -> None:
        """Frees the corpus's maps; reading again opens them again."""
        self._view = None
        self.corpus.close()


@attrs.frozen
class TokenWindows(CorpusOptions):
    """Windows of a token corpus, as one value: `TokenWindows("corpus", seq_len=2048, val=0.01).load(batch=32)`.

    The same as `dew.data.load("tokens/corpus", batch=32, options=TokenOptions(seq_len=2048, val=0.01))`.

    Args:
        path: a corpus, or a directory of splits with one named `train`; a path or a URL.
        seq_len, val: as in `TokenOptions`.
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
    seed: int = attrs.field(default=0, validator=checks.seed, kw_only=True)
    loading: Loading = attrs.field(factory=Loading, kw_only=True)

    @property
    def options(self) -> TokenOptions:
        """The same wishes, for `dew.data.load`."""
        return TokenOptions(seq_len=self.seq_len, val=self.val, **self.access())

    def load(self, *, batch: int) -> Dataset:
        """The data set, with `batch` rows in one step over all processes.

        Raises:
            SourceError: nothing usable is stored at the path, or it is too short.
            SplitError: `val` names a split that is not there.
            OverlapError: `val` names the training split, or a copy of it.
        """
        from dew.data.build import dataset_of

        val_split = self.options.val_split
        return dataset_of(
            open_split(self.path, "train", self.options),
            batch=batch,
            val=None if val_split is None else open_split(self.path, val_split, self.options),
            seed=self.seed,
            loading=self.loading,
        )


def open_split(path: str, split: str, options: TokenOptions) -> WindowSource:
    """The windows of one split below `path`.

    With a fraction as `options.val`, the split `train` is all but the tail of the training corpus, and the split `val`
    is that tail.

    Raises:
        SourceNotFoundError: nothing is stored at `path`.
        DamagedSourceError: the corpus is unfinished or was altered.
        SplitError: there is no split of that name.
        SourceError: the corpus is too short for the windows or for the validation asked for.
    """
    corpus, start, stop = open_stretch(path, split, options)
    return WindowSource(corpus, seq_len=options.seq_len, start=start, stop=stop)


def open_stretch(path: str, split: str, options: TokenOptions) -> tuple[TokenReader, int, int]:
    """The corpus of one split below `path`, and which tokens `[start, stop)` of it, all of whole documents.

    Raises:
        SourceError, SplitError: as `open_split`.
    """
    val = options.val
    if not isinstance(val, float):
        corpus = open_corpus(path, split, options)
        return corpus, 0, corpus.tokens
    if split not in {"train", "val"}:
        raise SplitError(
            f"there is no split {split!r} with val={val}: a fraction is cut from the split 'train' and read as 'val', "
            "so the splits are 'train' and 'val'; to validate on another one that is stored, name it as val"
        )
    if has_split(path, "val", options):
        raise OptionsError(
            f"val={val} would be cut from the split 'train', but {options.storage(path).location()} has a split "
            "'val' of its own; pass val='val' to read it"
        )
    corpus = open_corpus(path, "train", options)
    cut = tail_start(corpus, val)
    start, stop = (0, cut) if split == "train" else (cut, corpus.tokens)
    return corpus, start, stop


def tail_start(corpus: TokenReader, fraction: float) -> int:
    """First token of the fewest whole documents at the corpus's end that hold at least `fraction` of its tokens.

    Raises:
        SourceError: they would be all its documents.
    """
    # The fraction as it is written: 0.01 of 100 tokens is 1, where the float 0.01 is a little more.
    wanted = -(-Fraction(repr(fraction)) * corpus.tokens // 1)
    cut = corpus.document_start(corpus.tokens - int(wanted))
    if cut == 0:
        raise SourceError(
            f"val={fraction} asks for {wanted} of {corpus.tokens} tokens, and the last documents holding them are all "
            f"{corpus.documents} of it: none is left to train on; use a smaller fraction, or more documents"
        )
    return cut
