"""Writing a corpus from one process: shards first, each closed by its receipt, the manifest last.

Every file appears whole under its name or not at all, so a crash at any moment leaves a directory without a manifest,
which no reader opens; the next run clears it and writes again. The same documents and options make the same bytes.
"""

import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, SupportsIndex, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.errors import OptionsError, OptionsTypeError, SourceError, StreamClosedError
from dew.data.storage import Storage
from dew.tokens.manifest import (
    MANIFEST,
    Framing,
    Manifest,
    Shard,
    TokenizerInfo,
    dtype_for,
    make_manifest,
    manifest_json,
    shard_name,
)
from dew.tokens.part import ShardPart
from dew.tokens.tokenizer import Tokenizer

Ids: TypeAlias = "Sequence[int] | npt.NDArray[np.integer]"

SHARD_TOKENS: Final = 1 << 26  # 128 MiB of 16-bit ids

_LEFTOVER: Final = re.compile(r"shard-[0-9]{5,9}(\.(tokens|docs|roles|origin)\.npy|\.json)|\.dew-tmp-.*", re.ASCII)


class TokenWriter:
    """Writes one corpus, document by document.

    Use it as a context manager: leaving the block writes the manifest; leaving it by an exception writes none::

        with TokenWriter("corpus", tokenizer=ByteTokenizer(), eos=True) as writer:
            for text in texts:
                writer.add(tokenizer.encode(text))

    Ids take 16 bits each if every id below the vocabulary's size fits, else 32. Documents are never split over shards.

    Args:
        path: a directory, or a URL. What an unfinished run left there is cleared.
        tokenizer: what made the ids, a `Tokenizer` or its `TokenizerInfo`.
        vocab_size: in place of `tokenizer`: one more than the largest possible id, added tokens included.
        bos, eos: put the tokenizer's begin (end) id before (after) every document that does not have it there already.
        shard_tokens: tokens at which a shard is closed; a longer document has a shard of its own.
        overwrite: replace a finished corpus; without it one is refused. Only on local disks.
        roles: whether every token has a role, see `add`; without `bos` and `eos`.
        preparation: what the manifest says of how the documents were made, as JSON values.
        options: for the file system of a URL, as fsspec takes them.

    Raises:
        OptionsError: a wrong argument, or a finished corpus is there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tokenizer: Tokenizer | TokenizerInfo | None = None,
        vocab_size: int | None = None,
        bos: bool = False,
        eos: bool = False,
        shard_tokens: int = SHARD_TOKENS,
        overwrite: bool = False,
        roles: bool = False,
        preparation: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if roles and (bos or eos):
            raise OptionsError("roles=True with bos or eos: what role these have is not known; put them in yourself")
        self._roles = roles
        self.preparation: Mapping[str, Any] | None = preparation
        self._tokenizer = _tokenizer_info(tokenizer, vocab_size)
        self._framing = Framing(bos=bos, eos=eos)
        self._first = _special(self._tokenizer.bos_id, "bos", asked=bos)
        self._last = _special(self._tokenizer.eos_id, "eos", asked=eos)
        self._shard_tokens = checks.check_count("shard_tokens", shard_tokens)
        self._dtype = dtype_for(self._tokenizer.vocab_size)
        self._storage = Storage(path, options=options or {})
        self._shards: list[Shard] = []
        self._given = 0
        self._open = True
        self._part = self._new_part()
        self.manifest: Manifest | None = None
        _clear(self._storage, overwrite=overwrite)

    def __repr__(self) -> str:
        return f"TokenWriter(documents={self._given}, shards={len(self._shards)}, dtype={self._dtype!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self._part.discard()
            self._open = False

    def add(self, ids: Ids, roles: npt.NDArray[np.uint8] | None = None) -> None:
        """Append one document; one without ids is counted and kept out.

        Args:
            ids: (n,) whole numbers.
            roles: (n,) uint8, of a corpus with roles and of no other.

        Raises:
            SourceError: an id is no whole number, negative, or not below the vocabulary's size; the message names
                document, position and value. Or ids and roles are not of one length. Nothing of the document is
                written.
            StreamClosedError: the writer is closed.
        """
        if not self._open:
            raise StreamClosedError(
                f"this writer was closed after {self._given} documents; make one for the next corpus"
            )
        document = self._given
        self._given += 1
        values = _checked_ids(ids, document, self._tokenizer.vocab_size)
        if (roles is not None) != self._roles or (roles is not None and roles.shape != values.shape):
            found = "no roles" if roles is None else f"roles {roles.shape}"
            raise SourceError(
                f"document {document} has ids {values.shape} and {found}, and this corpus has "
                f"{'a role for every id' if self._roles else 'no roles'}"
            )
        if not values.size:
            self._part.empty += 1
            return
        first = [self._first] if self._first is not None and values[0] != self._first else []
        last = [self._last] if self._last is not None and values[-1] != self._last else []
        length = len(first) + len(values) + len(last)
        if self._part.tokens and self._part.tokens + length > self._shard_tokens:
            self._write_shard()
        for ids_of_part in (first, values, last):
            self._part.extend(ids_of_part)
        if roles is not None:
            self._part.extend_roles(roles)
        self._part.end_document()

    def close(self) -> Manifest:
        """Write the last shard and the manifest; the corpus exists from then on.

        Raises:
            SourceError: no document had any tokens.
        """
        if self.manifest is not None:
            return self.manifest
        if not self._open:
            raise StreamClosedError("this writer was left by an exception, its corpus is not finished; write it again")
        if not self._part.tokens:
            raise SourceError(
                f"no tokens to write to {self._storage.location()}: of {self._given} documents given, all are empty"
            )
        self._write_shard()
        self._open = False
        manifest = make_manifest(
            dtype=self._dtype,
            framing=self._framing,
            tokenizer=self._tokenizer,
            shards=tuple(self._shards),
            preparation=self.preparation,
        )
        self._storage.write(MANIFEST, manifest_json(manifest))
        self.manifest = manifest
        return manifest

    def _write_shard(self) -> None:
        self._shards.append(self._part.commit())
        self._part = self._new_part()

    def _new_part(self) -> ShardPart:
        return ShardPart(self._storage, shard_name(len(self._shards)), self._dtype, roles=self._roles)


def write_corpus(
    documents: Iterable[Ids],
    path: str | os.PathLike[str],
    *,
    tokenizer: Tokenizer | TokenizerInfo | None = None,
    vocab_size: int | None = None,
    bos: bool = False,
    eos: bool = False,
    shard_tokens: int = SHARD_TOKENS,
    overwrite: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Write a corpus of `documents`, each (n,) ids; the arguments and errors are those of `TokenWriter`."""
    with TokenWriter(
        path,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        bos=bos,
        eos=eos,
        shard_tokens=shard_tokens,
        overwrite=overwrite,
        options=options,
    ) as writer:
        for ids in documents:
            writer.add(ids)
    return writer.close()


def _tokenizer_info(tokenizer: Tokenizer | TokenizerInfo | None, vocab_size: int | None) -> TokenizerInfo:
    if (tokenizer is None) == (vocab_size is None):
        raise OptionsError(
            f"give tokenizer= or vocab_size=, one of them: got tokenizer={tokenizer!r} and vocab_size={vocab_size!r}"
        )
    if vocab_size is not None:
        return TokenizerInfo(vocab_size=vocab_size)
    if isinstance(tokenizer, TokenizerInfo):
        return tokenizer
    if isinstance(tokenizer, Tokenizer):
        return tokenizer.info
    raise OptionsTypeError(f"tokenizer must be a Tokenizer or a TokenizerInfo, got {type(tokenizer).__name__}")


def _special(token: int | None, name: str, *, asked: bool) -> int | None:
    if asked and token is None:
        raise OptionsError(f"{name}=True was asked for, but the tokenizer has no {name}_id; state one in TokenizerInfo")
    return token if asked else None


def _checked_ids(ids: Ids, document: int, vocab_size: int) -> npt.NDArray[np.integer]:
    """`ids` as an array, once every one of them is seen to be an id: nothing is cast before that."""
    try:
        values = np.asarray(cast("Any", ids))
    except ValueError as error:
        raise SourceError(f"document {document} is no flat sequence of ids (n,): {error}") from error
    if values.ndim != 1:
        raise SourceError(f"document {document} has the shape {values.shape}, ids are a flat sequence (n,)")
    if not values.size:
        return values
    if values.dtype.kind in "iu":
        if values.min() < 0 or values.max() >= vocab_size:
            position = int(np.flatnonzero((values < 0) | (values >= vocab_size))[0])
            raise _wrong_id(int(values[position]), position, document, vocab_size)
        return values
    # Ids past 64 bits and mixtures of types arrive as float64 or object: look at each in its own type.
    for position, value in enumerate(cast("Iterable[object]", ids)):
        if not 0 <= _whole_number(value) < vocab_size:
            raise _wrong_id(value, position, document, vocab_size)
    return values.astype(np.int64)


def _whole_number(value: object) -> int:
    """`value` as an int, -1 where it is none."""
    try:
        return -1 if isinstance(value, bool) else operator.index(cast("SupportsIndex", value))
    except TypeError:
        return -1


def _wrong_id(value: object, position: int, document: int, vocab_size: int) -> SourceError:
    return SourceError(
        f"document {document} has {value!r} at position {position}, and ids are whole numbers from 0 to "
        f"{vocab_size - 1}; if the tokenizer has added tokens, count them in vocab_size"
    )


def _clear(storage: Storage, *, overwrite: bool) -> None:
    """Make room for a new corpus: refuse a finished one, remove what an unfinished run left."""
    directory = storage.path()
    if storage.exists(MANIFEST) and not (overwrite and directory is not None):
        advice = "remove it first" if directory is None else "pass overwrite=True to replace it, or another directory"
        raise OptionsError(f"{storage.location()} already holds a finished corpus; {advice}")
    if directory is None or not directory.is_dir():
        return
    # The manifest goes first, so that a crash from here on leaves no corpus at all rather than a mixture of two.
    (directory / MANIFEST).unlink(missing_ok=True)
    for path in directory.iterdir():
        if _LEFTOVER.fullmatch(path.name):
            path.unlink()
