"""Token ids as text, for `dew peek`: by the tokenizer that is named, or as bytes where the corpus says that they are.

A row is shown in pieces, each of one document and of one role, decoded whole, so that no piece depends on another.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from dew.cli.look import Look
from dew.data.errors import OptionsError

if TYPE_CHECKING:
    from dew.tokens.tokenizer import ByteTokenizer

MOST_ROWS: Final = 16
"""Rows whose text is shown."""

Decode: TypeAlias = Callable[[list[int]], str]
_BYTES, _BYTE_IDS = "bytes", 256


@attrs.frozen
class Piece:
    """Text of tokens that have one segment and one role; None where the batch does not say."""

    text: str
    segment: int | None
    role: int | None


@attrs.frozen
class RowText:
    """A row of a field, in its pieces."""

    row: int
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """The whole of it, without padding."""
        return "".join(piece.text for piece in self.pieces)


def texts_of(seen: Look, tokenizer: str | None) -> dict[str, list[RowText]]:
    """Field -> the text of its first rows, for each field of token ids; nothing where no tokenizer is known.

    Args:
        seen: the batch.
        tokenizer: as `dew tokenize` takes it: the path of a `tokenizer.json`, a model's name, "bytes"; or None.

    Raises:
        OptionsError: the tokenizer cannot be used, or is not the one that made the ids.
        SourceNotFoundError: there is no such tokenizer.
    """
    fields = list(_fields(seen))
    if tokenizer is not None and not fields:
        raise OptionsError(
            f"--tokenizer {tokenizer} was given, and no field of {sorted(seen.batch)} holds token ids: none is called "
            "text, and none has <field>_segment_ids beside it"
        )
    decode = _decoder(seen, tokenizer) if fields else None
    if decode is None:
        return {}
    return {
        name: [_row_text(seen, name, row, ids[row], decode) for row in range(min(len(ids), MOST_ROWS))]
        for name, ids in fields
    }


def _fields(seen: Look) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Fields of token ids, (rows, n) integers: `text`, and what is packed."""
    if seen.alone is not None:
        return
    for name, value in seen.batch.items():
        ids = np.asarray(value)
        if ids.ndim == 2 and ids.dtype.kind in "iu" and (name == "text" or f"{name}_segment_ids" in seen.batch):
            yield name, ids


def _decoder(seen: Look, named: str | None) -> Decode | None:
    from dew.data.source import identity

    stated = None if seen.source is None else identity(seen.source).get("tokenizer")
    if named in (None, _BYTES):
        found = next((one for one in _byte_tokenizers() if one.info.sha256 == stated), None)
        if found is None and named is None:
            return None
        if found is None and stated is not None:
            raise _other_tokenizer(_BYTES, "any of bytes", stated)
        return _of_bytes(found)
    from dew.tokens.prepare.tokenizers import load_definition, reference

    definition = load_definition(named)
    if stated not in (None, definition.info.sha256):
        raise _other_tokenizer(named, str(definition.info.sha256), stated)
    tokenizer = reference(definition, parse_special=True)
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


def _other_tokenizer(named: str, digest: str, stated: str) -> OptionsError:
    return OptionsError(
        f"--tokenizer {named} was given, whose sha256 is {digest}, and the ids were made by the tokenizer with "
        f"{stated}: they would be shown as other text"
    )


def _byte_tokenizers() -> "Iterator[ByteTokenizer]":
    """With each choice of special ids."""
    from dew.tokens.tokenizer import ByteTokenizer

    for bos, eos, pad in product((False, True), repeat=3):
        yield ByteTokenizer(bos=bos, eos=eos, pad=pad)


def _of_bytes(found: "ByteTokenizer | None") -> Decode:
    """By the tokenizer found; where it is not known which ids are special, all beyond the bytes are."""
    if found is not None:
        return lambda ids: found.decode(np.array(ids, np.int64))
    return lambda ids: bytes(one for one in ids if one < _BYTE_IDS).decode(errors="replace")


def _row_text(seen: Look, name: str, row: int, ids: npt.NDArray[Any], decode: Decode) -> RowText:
    segments = _marks(seen, f"{name}_segment_ids", row, ids)
    roles = _marks(seen, f"{name}_roles", row, ids)
    pieces: list[Piece] = []
    for start, stop in _runs([marks for marks in (segments, roles) if marks is not None], len(ids)):
        segment = None if segments is None else int(segments[start])
        if segment == 0:
            continue
        role = None if roles is None else int(roles[start])
        pieces.append(Piece(decode([int(one) for one in ids[start:stop] if one >= 0]), segment, role))
    return RowText(row, tuple(pieces))


def _marks(seen: Look, name: str, row: int, ids: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    value = seen.batch.get(name)
    marks = None if value is None else np.asarray(value)[row]
    return marks if marks is not None and marks.shape == ids.shape else None


def _runs(marks: Sequence[npt.NDArray[Any]], length: int) -> Iterator[tuple[int, int]]:
    """`[start, stop)` of positions in which all marks stay the same."""
    edges = {0, length}
    for each in marks:
        edges.update((np.flatnonzero(each[1:] != each[:-1]) + 1).tolist())
    yield from pairwise(sorted(edges))
