"""Painted text to ids and roles, many conversations at a time.

Three things decide where text is cut before it is encoded. Where the model begins to write, always: the prompt ended
there, and a token over that place would be one that the model never sees. Around control tokens that somebody typed,
always: they are encoded apart, as text. And beside the template's own control tokens, where a cut changes no id: so
that most pieces are of one role, and where in the text each token lies need not be asked.
"""

import itertools
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import SourceError
from dew.tokens.chat.roles import Painted, role_columns
from dew.tokens.chat.tokenizer import AddedToken, ChatTokenizer, plain, reference

Ids: TypeAlias = npt.NDArray[np.uint32]
Roles: TypeAlias = npt.NDArray[np.uint8]

_GUARDS: Final = ("\n", ":", "~", "]", "0", "\u2028")


@attrs.frozen(eq=False)
class Encoded:
    """One conversation.

    Args:
        ids, roles: (n,).
        straddling: tokens that reach over the border of two roles; their role is 0.
    """

    ids: Ids
    roles: Roles
    straddling: int


@attrs.frozen
class _Piece:
    text: str
    start: int
    role: int | None  # None: more than one
    literal: bool


class Encoder:
    """Encodes with one tokenizer; `literals`: the text of the template itself, for the control tokens it writes."""

    def __init__(self, tokenizer: ChatTokenizer, literals: str) -> None:
        self._tokenizer = reference(tokenizer.definition)
        self._text_only = plain(tokenizer.definition)
        bos = tokenizer.info.bos_id
        begins = self._tokenizer.encode("", add_special_tokens=True).ids[:1]
        self._begin: int | None = bos if bos is not None and begins == [bos] else None
        word = self._ids(self._tokenizer, "a")
        self._prefixes = not any(
            self._ids(self._tokenizer, guard + "a") == self._ids(self._tokenizer, guard) + word for guard in _GUARDS
        )
        added = tokenizer.added
        self._controls = frozenset(token["id"] for token in tokenizer.definition.added)
        written = {token.text for token in added if token.plain and token.text in literals}
        written |= {tokenizer.special[name] for name in ("bos_token", "eos_token") if name in tokenizer.special}
        anchors = tuple(token.text for token in added if token.text in written and token.plain and _alone(token, added))
        self._before = anchors
        # A tokenizer that puts a space before text would put one after the cut.
        self._after = () if self._prefixes else anchors

    def encode(self, texts: Sequence[Painted], *, begin: bool = True) -> list[Encoded]:
        """Ids and roles of `texts`, with exactly one begin token where the tokenizer itself would put one.

        Raises:
            SourceError: text that cannot be had without a control token.
        """
        of_texts = [self._pieces(painted) for painted in texts]
        pieces = [(piece, painted) for found, painted in zip(of_texts, texts, strict=True) for piece in found]
        ids: list[list[int]] = [[]] * len(pieces)
        roles = np.array([piece.role or 0 for piece, _ in pieces], np.uint8)
        placed: dict[int, tuple[Roles, int]] = {}
        quick = [at for at, (piece, _) in enumerate(pieces) if piece.role is not None and not self._slow(piece)]
        batch = self._tokenizer.encode_batch_fast([pieces[at][0].text for at in quick], add_special_tokens=False)
        for at, encoding in zip(quick, batch, strict=True):
            ids[at] = encoding.ids
        for at in sorted(set(range(len(pieces))) - set(quick)):
            ids[at], of_piece, over = self._one(*pieces[at])
            placed[at] = of_piece, over
        lengths = np.array([len(found) for found in ids], np.int64)
        stops = np.cumsum(lengths)
        # All at once: an array for each piece costs more than its ids.
        every = np.fromiter(itertools.chain.from_iterable(ids), np.uint32, int(lengths.sum()))
        of_tokens = np.repeat(roles, lengths)
        for at, (found, _) in placed.items():
            of_tokens[stops[at] - lengths[at] : stops[at]] = found
        made: list[Encoded] = []
        first = start = 0
        for found in of_texts:
            last = first + len(found)
            stop = int(stops[last - 1]) if last else 0
            over = sum(placed[at][1] for at in range(first, last) if at in placed) if placed else 0
            made.append(self._begun(every[start:stop], of_tokens[start:stop], over, begin))
            first, start = last, stop
        return made

    def _begun(self, ids: Ids, roles: Roles, straddling: int, begin: bool) -> Encoded:
        if begin and self._begin is not None and not (ids.size and int(ids[0]) == self._begin):
            ids = np.concatenate([np.array([self._begin], np.uint32), ids])
            roles = np.concatenate([np.zeros(1, np.uint8), roles])
        return Encoded(ids, roles, straddling)

    def _slow(self, piece: _Piece) -> bool:
        return piece.literal or (self._prefixes and piece.start > 0)

    def _pieces(self, painted: Painted) -> list[_Piece]:
        text, runs = painted.text, painted.runs
        forced = {0, len(text), *painted.starts, *(at for span in painted.literal for at in span)}
        borders = {at for start, stop, _ in runs for at in (start, stop)}
        cuts = forced | {at for at in borders if text.startswith(self._before, at) or text.endswith(self._after, 0, at)}
        typed = {start for start, _ in painted.literal}
        bounds = sorted(cuts)
        pieces: list[_Piece] = []
        run = 0
        for start, stop in itertools.pairwise(bounds):
            while run < len(runs) and runs[run][1] <= start:
                run += 1
            role: int | None = 0
            if run < len(runs) and runs[run][0] < stop:
                role = runs[run][2] if runs[run][0] <= start and runs[run][1] >= stop else None
            pieces.append(_Piece(text[start:stop], start, role, start in typed))
        return pieces

    def _one(self, piece: _Piece, painted: Painted) -> tuple[list[int], Roles, int]:
        """A piece of which it must be known where its tokens lie, or one that is encoded as text."""
        tokenizer = self._text_only if piece.literal else self._tokenizer
        encoding, skipped, shift = self._within(tokenizer, piece)
        ids: list[int] = encoding.ids[skipped:]
        if piece.literal and not self._controls.isdisjoint(ids):
            raise SourceError(
                f"{piece.text!r} was typed, and this tokenizer cannot write it but as the control token; "
                "take it out of the row"
            )
        if piece.role is not None:
            return ids, np.full(len(ids), piece.role, np.uint8), 0
        if not ids:
            return ids, np.zeros(0, np.uint8), 0
        columns = role_columns(painted.runs, len(painted.text) + 1)
        offsets = np.array(encoding.offsets[skipped:], np.int64) + (piece.start - shift)
        starts, stops = offsets[:, 0], np.maximum(offsets[:, 1], offsets[:, 0] + 1)
        changes = np.concatenate([np.zeros(1, np.int64), np.cumsum(columns[1:] != columns[:-1])])
        over = changes[stops - 1] != changes[starts]
        roles = np.where(over, 0, columns[starts]).astype(np.uint8)
        return ids, roles, int(np.count_nonzero(over))

    def _within(self, tokenizer: Any, piece: _Piece) -> tuple[Any, int, int]:
        """The encoding of a piece, how many ids of it to leave out, and by how many characters it is shifted."""
        if self._prefixes and piece.start > 0:
            # Within a text no space is put: encoded after one character, if the two do not grow together.
            for guard in _GUARDS:
                after = tokenizer.encode(guard + piece.text, add_special_tokens=False)
                alone = self._ids(tokenizer, guard)
                if after.ids[: len(alone)] == alone:
                    return after, len(alone), len(guard)
        return tokenizer.encode(piece.text, add_special_tokens=False), 0, 0

    @staticmethod
    def _ids(tokenizer: Any, text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids


def _alone(token: AddedToken, added: Sequence[AddedToken]) -> bool:
    """Whether `token` is found wherever its text stands: no other added token begins before it and reaches into it."""
    text = token.text
    for other in (one.text for one in added if one.text != text):
        if other.startswith(text):
            return False
        if text[0] not in other[1:]:
            continue
        tails = (other[at:] for at in range(1, len(other)))
        if any(text.startswith(tail) or tail.startswith(text) for tail in tails):
            return False
    return True
