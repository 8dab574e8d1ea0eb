"""The packing plan: which pieces of documents share a row, computed from document lengths alone.

A plan is a pure function of the lengths, the rules and `PLAN_VERSION`: integers only, the same on every machine and on
every process count. Documents are planned in windows of 2^20, each alone (`bestfit.py` says how), so that a window
needs nothing but its own lengths. A changed algorithm is a new version: the plan's id is part of every position, and
positions of the old one are refused.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs
import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.errors import OptionsError, OptionsTypeError, SourceError
from dew.tokens.bestfit import best_fit_rows

PLAN_VERSION: Final = 1
WINDOW: Final = 1 << 20  # documents planned together; part of version 1

Long: TypeAlias = Literal["split", "truncate", "drop", "error"]
LONG: Final[tuple[str, ...]] = get_args(Long)

# The arrays of a plan and their types in a file.
ARRAYS: Final[Mapping[str, str]] = {"rows": "<i8", "starts": "<i8", "lengths": "<i4"}

Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]


def check_long(_instance: object, _attribute: "attrs.Attribute[Long]", value: object) -> None:
    """An attrs validator for `long`."""
    if not isinstance(value, str):
        raise OptionsTypeError(f"long must be one of {', '.join(LONG)}, got {value!r} ({type(value).__name__})")
    if value not in LONG:
        raise OptionsError(f"long must be one of {', '.join(LONG)}, got {value!r}")


check_max_segments: Final = attrs.validators.optional(checks.count())
"""An attrs validator for `max_segments`."""


@attrs.frozen(kw_only=True)
class PackingRules:
    """How documents become rows.

    Args:
        seq_len: S: a row has room for S + 1 tokens, so that it holds up to S targets.
        long: what becomes of a document of more than S + 1 tokens. "split": pieces that overlap by one token, so that
            no target is lost; "truncate": its first S + 1 tokens; "drop": nothing; "error": a `SourceError`.
        max_segments: most pieces in one row; None for any number.

    Raises:
        OptionsError, OptionsTypeError: a value that cannot be used.
    """

    seq_len: int = attrs.field(validator=checks.count())
    long: Long = attrs.field(default="split", validator=check_long)
    max_segments: int | None = attrs.field(default=None, validator=check_max_segments)

    @property
    def width(self) -> int:
        """Tokens that a row has room for: S + 1."""
        return self.seq_len + 1

    def identity(self) -> dict[str, Any]:
        """Everything but the lengths that decides a plan, as JSON values."""
        return {"version": PLAN_VERSION, "window": WINDOW, **attrs.asdict(self)}

    def pieces(self, lengths: Int64s) -> Int64s:
        """(n,) int64: how many pieces each document of `lengths` (n,) becomes."""
        if self.long == "split":
            return np.maximum((lengths - 2) // self.seq_len, 0) + 1
        if self.long == "drop":
            return (lengths <= self.width).astype(np.int64)
        return np.ones(len(lengths), np.int64)


@attrs.frozen(kw_only=True)
class PackingCounts:
    """What went into a plan and what came out; counts of different documents add up.

    Args:
        documents, tokens: what was there.
        single: documents of one token: they are packed and hold no target.
        cut: documents in several pieces.
        truncated, dropped: documents that lost their end, or all.
        lost_tokens, lost_targets: what these lost.
        rows, pieces: what was made.
        filled: tokens in rows; a token that two pieces share counts twice.
    """

    documents: int = 0
    tokens: int = 0
    single: int = 0
    cut: int = 0
    truncated: int = 0
    dropped: int = 0
    lost_tokens: int = 0
    lost_targets: int = 0
    rows: int = 0
    pieces: int = 0
    filled: int = 0

    def __add__(self, other: "PackingCounts") -> "PackingCounts":
        ours, theirs = attrs.asdict(self), attrs.asdict(other)
        return PackingCounts(**{name: value + theirs[name] for name, value in ours.items()})

    @property
    def targets(self) -> int:
        """Valid targets in the rows: every token of a piece but its first."""
        return self.filled - self.pieces


@attrs.frozen(kw_only=True, eq=False)
class PlannedRows:
    """Rows of one window. The pieces of row r follow those of row r - 1.

    Args:
        sizes: (rows,) int64: pieces of each row.
        starts: (pieces,) int64: first token of each piece, counted from the first token of document 0.
        lengths: (pieces,) int32: its tokens.
        counts: of the window.
    """

    sizes: Int64s
    starts: Int64s
    lengths: Int32s
    counts: PackingCounts


@attrs.frozen(kw_only=True, eq=False)
class PackingPlan:
    """A whole plan, in memory or mapped from files.

    Args:
        rules: it was made by.
        rows: (rows + 1,) int64: row r has pieces `[rows[r], rows[r + 1])`.
        starts, lengths: of the pieces, as in `PlannedRows`.
        counts: of all documents.
        id: sha256 of rules, counts and arrays: two plans of one id are the same plan.
    """

    rules: PackingRules
    rows: Int64s
    starts: Int64s
    lengths: Int32s
    counts: PackingCounts
    id: str

    def __len__(self) -> int:
        return self.counts.rows

    def pieces(self, rows: Int64s) -> tuple[Int64s, Int64s, Int32s]:
        """Pieces of `rows` (k,): how many each row has, then starts and lengths of all, one row after the other.

        Raises:
            IndexError: there is no such row.
        """
        if rows.size and (int(rows.min()) < 0 or int(rows.max()) >= len(self)):
            wrong = int(rows[(rows < 0) | (rows >= len(self))][0])
            raise IndexError(f"row {wrong} was asked for, there are rows 0 to {len(self) - 1}")
        firsts = self.rows[rows]
        sizes = self.rows[rows + 1] - firsts
        picks = np.repeat(firsts - (np.cumsum(sizes) - sizes), sizes)
        picks += np.arange(len(picks))
        return sizes, self.starts[picks], self.lengths[picks]


class PlanDigest:
    """The id of a plan, computed while its windows are made.

    Attributes:
        counts: of the windows so far.
    """

    def __init__(self, rules: PackingRules) -> None:
        self._rules = rules
        # `rows` begins with a 0 that belongs to no window.
        self._hashes = {name: hashlib.sha256(bytes(8 if name == "rows" else 0)) for name in ARRAYS}
        self.counts = PackingCounts()

    def add(self, window: PlannedRows) -> dict[str, npt.NDArray[Any]]:
        """Take in the next window; returns its part of each array of the plan, in the types of `ARRAYS`."""
        ends = np.cumsum(window.sizes) + self.counts.pieces
        arrays = {"rows": ends, "starts": window.starts, "lengths": window.lengths}
        parts = {name: np.ascontiguousarray(array, ARRAYS[name]) for name, array in arrays.items()}
        for name, part in parts.items():
            self._hashes[name].update(part.data)
        self.counts += window.counts
        return parts

    def arrays(self) -> dict[str, str]:
        """sha256 of the elements of each array."""
        return {name: digest.hexdigest() for name, digest in self._hashes.items()}

    def id(self) -> str:
        """The id of the plan of all windows so far."""
        return plan_id(self._rules, self.counts, self.arrays())


def plan_id(rules: PackingRules, counts: PackingCounts, arrays: Mapping[str, str]) -> str:
    """sha256 of everything that a plan is; `arrays` holds the sha256 of the elements of each array."""
    values = {"rules": rules.identity(), "counts": attrs.asdict(counts), "arrays": dict(arrays)}
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def plan_rows(lengths: npt.ArrayLike, rules: PackingRules) -> PackingPlan:
    """The plan of documents of `lengths` (n,), in memory: 12 bytes a piece and 8 a row.

    Raises:
        SourceError: there is nothing to pack, a length is below 1, or `rules.long` is "error" and a document is longer
            than a row.
    """
    whole = _whole_numbers(lengths)
    too_long = whole[whole > rules.width].astype(np.int64)
    pieces = len(whole) - len(too_long) + int(rules.pieces(too_long).sum())
    starts, sizes = np.empty(pieces, ARRAYS["starts"]), np.empty(pieces, ARRAYS["lengths"])
    digest, rows = PlanDigest(rules), [np.zeros(1, ARRAYS["rows"])]
    for window in plan_windows(_windows(whole), rules):
        first = digest.counts.pieces
        parts = digest.add(window)
        starts[first : digest.counts.pieces] = parts["starts"]
        sizes[first : digest.counts.pieces] = parts["lengths"]
        rows.append(parts["rows"])
    check_not_empty(digest.counts, rules)
    plan = PackingPlan(
        rules=rules, rows=np.concatenate(rows), starts=starts, lengths=sizes, counts=digest.counts, id=digest.id()
    )
    for array in (plan.rows, plan.starts, plan.lengths):
        array.flags.writeable = False
    return plan


def plan_windows(windows: Iterable[Int64s], rules: PackingRules) -> Iterator[PlannedRows]:
    """The rows of each window; `windows` are the lengths of `WINDOW` documents each, the last of fewer."""
    document = token = 0
    for lengths in windows:
        yield plan_window(lengths, rules, document=document, token=token)
        document += len(lengths)
        token += int(lengths.sum())


def plan_window(lengths: Int64s, rules: PackingRules, *, document: int = 0, token: int = 0) -> PlannedRows:
    """The rows of one window, from the lengths of its documents (n,) int64, n at most `WINDOW`.

    Rows come in the order of their first documents, and the pieces of a row in the order of the documents.

    Args:
        lengths: at least 1 each.
        rules: what to do with them.
        document, token: numbers of the window's first document and token.

    Raises:
        SourceError: a length is below 1, or the rules refuse a document.
    """
    _check_lengths(lengths, rules, document)
    starts, sizes, counts = _pieces(lengths, rules)
    if not len(sizes):
        return PlannedRows(sizes=np.empty(0, np.int64), starts=starts, lengths=sizes, counts=counts)
    dealt, row_sizes = best_fit_rows(sizes, rules.width, rules.max_segments or rules.width)
    starts += token
    filled = int(sizes.sum(dtype=np.int64))
    made = attrs.evolve(counts, rows=len(row_sizes), pieces=len(sizes), filled=filled)
    return PlannedRows(sizes=row_sizes, starts=starts[dealt], lengths=sizes[dealt], counts=made)


def check_not_empty(counts: PackingCounts, rules: PackingRules) -> None:
    """Refuse a plan without rows.

    Raises:
        SourceError: it has none.
    """
    if not counts.rows:
        raise SourceError(
            f"nothing to pack: of {counts.documents} documents, {counts.dropped} are longer than the {rules.width} "
            f"tokens of a row and long={rules.long!r} drops them; use a larger seq_len, or long='split'"
        )


@attrs.frozen(kw_only=True)
class PackingReport:
    """How well a plan fills its rows, and what became of the documents.

    Args:
        rules, counts: of the plan.
        segments: pieces in a row -> number of such rows.
    """

    rules: PackingRules
    counts: PackingCounts
    segments: Mapping[int, int]

    @property
    def fill(self) -> float:
        """Share of the places in rows that hold a token."""
        return self.counts.filled / (self.counts.rows * self.rules.width)

    @property
    def padding(self) -> int:
        """Places in rows that hold none."""
        return self.counts.rows * self.rules.width - self.counts.filled

    @property
    def target_share(self) -> float:
        """Share of the S targets that a row has room for that are valid."""
        return self.counts.targets / (self.counts.rows * self.rules.seq_len)

    @property
    def lost_share(self) -> float:
        """Share of the documents' targets that are in no row, because documents were truncated or dropped."""
        lost = self.counts.lost_targets
        return lost / max(1, lost + self.counts.targets)

    @property
    def mean_segments(self) -> float:
        """Pieces in a row, on average."""
        return self.counts.pieces / self.counts.rows

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            **attrs.asdict(self.rules),
            **attrs.asdict(self.counts),
            "targets": self.counts.targets,
            "padding": self.padding,
            "fill": self.fill,
            "target_share": self.target_share,
            "lost_share": self.lost_share,
            "mean_segments": self.mean_segments,
            "segments": {str(size): rows for size, rows in self.segments.items()},
        }

    def __str__(self) -> str:
        counts, lost = self.counts, self.counts.lost_targets
        what = f"{counts.truncated} truncated, {counts.dropped} dropped" if lost else f"{counts.cut} in several pieces"
        return (
            f"{counts.documents} documents ({what}) in {counts.rows} rows of {self.rules.width} tokens, "
            f"{self.fill:.4%} full; {self.mean_segments:.2f} segments a row; {counts.targets} targets, {lost} lost"
        )


def packing_report(plan: PackingPlan) -> PackingReport:
    """What `plan` comes to; reads the number of pieces of every row."""
    segments: dict[int, int] = {}
    for first in range(0, len(plan), WINDOW):
        sizes = np.diff(plan.rows[first : first + WINDOW + 1])
        for size, rows in zip(*(part.tolist() for part in np.unique(sizes, return_counts=True)), strict=True):
            segments[size] = segments.get(size, 0) + rows
    return PackingReport(rules=plan.rules, counts=plan.counts, segments=dict(sorted(segments.items())))


def row_marks(sizes: Int64s, lengths: Int32s, width: int) -> tuple[Int32s, Int32s]:
    """Segment ids and positions, (k, width) int32 each, of rows with pieces of `lengths`, `sizes[j]` of them in row j.

    Segments are 1, 2, ... in each row, and positions restart at 0 in each segment; both are 0 in the padding.
    """
    rows, pieces = len(sizes), len(lengths)
    row_of = np.repeat(np.arange(rows), sizes)
    after = np.cumsum(sizes)
    totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    padding = width - (totals[after] - totals[after - sizes])
    # The padding of a row is one more stretch after its pieces.
    stretches, ids = np.empty(pieces + rows, np.int64), np.zeros(pieces + rows, np.int32)
    places = np.arange(pieces) + row_of
    stretches[places] = lengths
    stretches[after + np.arange(rows)] = padding
    ids[places] = np.arange(1, pieces + 1) - (after - sizes)[row_of]
    segments = np.array(np.repeat(ids, stretches).reshape(rows, width))  # of its own memory, or a stream copies it
    kind = np.int32 if rows * width < 1 << 31 else np.int64
    firsts = np.repeat((np.cumsum(stretches) - stretches).astype(kind), stretches)
    positions = np.empty((rows, width), np.int32)
    np.subtract(np.arange(rows * width, dtype=kind), firsts, out=positions.reshape(-1), casting="same_kind")
    for row in np.flatnonzero(padding).tolist():
        positions[row, width - padding[row] :] = 0
    return segments, positions


def _whole_numbers(lengths: npt.ArrayLike) -> npt.NDArray[np.integer]:
    values: npt.NDArray[Any] = np.asarray(lengths)
    if values.ndim != 1 or (values.dtype.kind not in "iu" and values.size):
        raise SourceError(f"document lengths are whole numbers (n,), got {values.shape} of {values.dtype}")
    return values


def _windows(lengths: npt.NDArray[np.integer]) -> Iterator[Int64s]:
    for first in range(0, len(lengths), WINDOW):
        yield lengths[first : first + WINDOW].astype(np.int64)


def _check_lengths(lengths: Int64s, rules: PackingRules, document: int) -> None:
    if int(lengths.min(initial=1)) < 1:
        place = int(np.argmax(lengths < 1))
        raise SourceError(f"document {document + place} has {lengths[place]} tokens; empty documents cannot be packed")
    if rules.long == "error" and int(lengths.max(initial=0)) > rules.width:
        places = np.flatnonzero(lengths > rules.width)
        raise SourceError(
            f"document {document + places[0]} has {lengths[places[0]]} tokens, and a row of seq_len {rules.seq_len} "
            f"has room for {rules.width}; {len(places) - 1} more of {len(lengths)} documents are too long; use a "
            "larger seq_len, or say with long= what becomes of them: 'split', 'truncate' or 'drop'"
        )


def _pieces(lengths: Int64s, rules: PackingRules) -> tuple[Int64s, Int32s, PackingCounts]:
    """Starts and lengths of all pieces in the order of the documents, and what was found and lost."""
    ends = np.cumsum(lengths)
    starts = ends - lengths
    found = PackingCounts(documents=len(lengths), tokens=int(lengths.sum()), single=int(np.count_nonzero(lengths == 1)))
    too_long = lengths > rules.width
    many = int(np.count_nonzero(too_long))
    if not many:
        return starts, lengths.astype(np.int32), found
    tokens = int(lengths[too_long].sum())
    if rules.long == "drop":
        counts = attrs.evolve(found, dropped=many, lost_tokens=tokens, lost_targets=tokens - many)
        return starts[~too_long], lengths[~too_long].astype(np.int32), counts
    if rules.long == "truncate":
        lost = tokens - many * rules.width
        counts = attrs.evolve(found, truncated=many, lost_tokens=lost, lost_targets=lost)
        return starts, np.minimum(lengths, rules.width).astype(np.int32), counts
    return *_split(lengths, rules), attrs.evolve(found, cut=many)


def _split(lengths: Int64s, rules: PackingRules) -> tuple[Int64s, Int32s]:
    """Every piece but a document's last fills a row, and the next begins at its last token."""
    pieces = rules.pieces(lengths)
    last = np.cumsum(pieces) - 1
    tails = lengths - (pieces - 1) * rules.seq_len
    steps = np.full(int(last[-1]) + 1, rules.seq_len, np.int64)
    sizes = np.full(len(steps), rules.width, np.int32)
    steps[last] = tails
    sizes[last] = tails
    return np.cumsum(steps) - steps, sizes
