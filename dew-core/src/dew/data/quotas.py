"""Weights -> one block of places that repeats: which part each place reads, in exact proportions, without a pattern.

A block gives each part an integer quota of its places. They are dealt by earliest deadline first, which leaves no
prefix more than one record away from the exact share (quotas are periodic tasks of total load one; the rule then
misses no deadline). Dealt alone, two equal parts would alternate, and one of two processes would read one part
only; so the places of every window of 64 are shuffled with keys. A part's records keep their order in the shuffle:
only which part reads at which place is shuffled, so that at any place a part has read exactly its first so many.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, TypeAlias, cast

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import OptionsError, OptionsTypeError
from dew.data.order import Places

Words: TypeAlias = npt.NDArray[np.uint64]

MOST_PARTS: Final = 65_534
LARGEST_BLOCK: Final = 1 << 20
SMALLEST_BLOCK: Final = 1 << 16
STRAY: Final = 5
"""No prefix of a stage holds this many records more or fewer of a part than its share says."""

_WINDOW: Final = 64
_SUBWINDOW: Final = 16  # any order within 16 places strays by less than 1 + 16/4 records
_TOLERANCE: Final = Fraction(1, 100)
_NUMBERS: Final = (int, float, Fraction, Decimal, np.integer, np.floating)

# Part of version 1 of mixtures: changing one of these moves records.
_MULTIPLY_1 = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_2 = np.uint64(0xD6E8FEB86659FD93)
_MULTIPLY_3 = np.uint64(0xBF58476D1CE4E5B9)
_HALF = np.uint64(32)
_SLOTS = np.arange(_WINDOW, dtype=np.uint32)
_SUBWINDOWS = _SLOTS // np.uint32(_SUBWINDOW) << np.uint32(30)


def exact_weight(label: str, weight: object) -> Fraction:
    """The weight as its decimal form says: 0.1 is 1/10, and not the nearest binary fraction.

    Raises:
        OptionsTypeError: it is no number.
        OptionsError: it is zero, negative, infinite or NaN.
    """
    if isinstance(weight, bool) or not isinstance(weight, _NUMBERS):
        kind = type(weight).__name__
        raise OptionsTypeError(f"the weight of {label!r} must be a number above 0, got {weight!r} ({kind})")
    text = str(cast("object", weight))
    try:
        exact = Fraction(text)
    except ValueError:
        raise OptionsError(f"the weight of {label!r} must be a finite number above 0, got {text}") from None
    if exact <= 0:
        raise OptionsError(f"the weight of {label!r} must be above 0, got {text}; leave out a part that is not wanted")
    return exact


def shares_of(weights: Mapping[str, object]) -> dict[str, Fraction]:
    """Label -> exact share of all records, sorted by label; weights are relative.

    Raises:
        OptionsError, OptionsTypeError: there is none, or one cannot be used; names it.
    """
    if not weights:
        raise OptionsError("a mixture needs at least one part with a weight, got none")
    exact = {label: exact_weight(label, weights[label]) for label in sorted(weights)}
    total = sum(exact.values())
    return {label: weight / total for label, weight in exact.items()}


def quotas_of(shares: Mapping[str, Fraction]) -> dict[str, int]:
    """Label -> places of each block: the shares' common denominator as the block, where that is at most 2^20.

    Else a block of 65 536 places, dealt by largest remainder and doubled while a share moves by more than 1 %.

    Raises:
        OptionsError: a share is so small that no block up to 2^20 holds it to within 1 %.
    """
    exact = math.lcm(*(share.denominator for share in shares.values()))
    if exact <= LARGEST_BLOCK:
        return {label: int(share * exact) for label, share in shares.items()}
    size = SMALLEST_BLOCK
    while True:
        quotas = _largest_remainder(shares, size)
        moved = {label: abs(quotas[label] / (share * size) - 1) for label, share in shares.items()}
        if max(moved.values()) <= _TOLERANCE:
            return quotas
        if size >= LARGEST_BLOCK:
            break
        size *= 2
    worst = max(moved, key=lambda label: moved[label])
    share = shares[worst]
    raise OptionsError(
        f"the weight of {worst!r} asks for a share of {float(share):.3g}, one record in {float(1 / share):.0f}; "
        f"in a block of {LARGEST_BLOCK} places that is {float(share * LARGEST_BLOCK):.3g} places, and {quotas[worst]} "
        f"would be off by {float(moved[worst]):.3g} of it, more than 0.01; raise this weight, or leave the part out"
    )


def _largest_remainder(shares: Mapping[str, Fraction], size: int) -> dict[str, int]:
    quotas = {label: int(share * size) for label, share in shares.items()}
    # Stable, so that equal remainders are decided by the labels' order.
    by_remainder = sorted(shares, key=lambda label: quotas[label] - shares[label] * size)
    for label in by_remainder[: size - sum(quotas.values())]:
        quotas[label] += 1
    return quotas


def earliest_deadline_first(quotas: Sequence[int]) -> npt.NDArray[np.uint16]:
    """Which part stands at each of `sum(quotas)` places; ties go to the part that comes first.

    Record k of a part with quota q is due in the places `[floor(k B / q), ceil((k + 1) B / q))`.
    """
    size, parts = sum(quotas), len(quotas)
    dealt: list[int] = [0] * size
    done = [0] * parts
    released: list[list[int] | None] = [None] * (size + 1)
    # Deadline and part in one number: heaps of numbers are twice as fast as heaps of tuples.
    ready = [-(-size // quota) * parts + part for part, quota in enumerate(quotas) if quota]
    heapq.heapify(ready)
    for place in range(size):
        for waiting in released[place] or ():
            heapq.heappush(ready, waiting)
        part = dealt[place] = heapq.heappop(ready) % parts
        quota = quotas[part]
        done[part] = record = done[part] + 1
        if record < quota:
            release = record * size // quota
            entry = -(-(record + 1) * size // quota) * parts + part
            if release <= place + 1:
                heapq.heappush(ready, entry)
            else:
                waiting_then = released[release] = released[release] or []
                waiting_then.append(entry)
        released[place] = None
    return np.array(dealt, np.uint16)


@attrs.frozen(eq=False)
class Block:
    """The places that one stage repeats, in windows of 64; made by `block_of`.

    A place past the end of the last window holds part number `parts`.

    Args:
        size: places in a block, B.
        quotas: places of each part in a block, (parts + 1,) int64, the last one 0.
        parts: the parts in each window, grouped, (windows, 64) uint16.
        counts: how many records of its part the block has before each, grouped likewise, (windows, 64) int32.
        groups: of the dealt, ungrouped places: number of the place's part among those of its window, times 64.
    """

    size: int
    quotas: Places
    parts: npt.NDArray[np.uint16]
    counts: npt.NDArray[np.int32]
    groups: npt.NDArray[np.uint16]

    @property
    def windows(self) -> int:
        """Windows in a block."""
        return len(self.parts)

    def arranged(self, windows: Places, keys: Words) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int32]]:
        """The shuffled `windows` (k,), numbered over all blocks.

        Returns:
            Of each place, (k, 64): its part, and the number of records of that part before it in its block.
        """
        rows = windows % self.windows
        draws = _draws(windows, keys)
        parts, counts = self._shuffled(rows, draws)
        stray = np.flatnonzero(self._strays(rows, parts, counts))
        if stray.size:
            near = (_SUBWINDOWS | (draws[stray] & np.uint32((1 << 30) - 1))).astype(np.uint32, copy=False)
            parts[stray], counts[stray] = self._shuffled(rows[stray], near)
        return parts, counts

    def windows_of(self, part: int) -> Places:
        """Window of each record of `part` within a block, ascending, (quota,)."""
        return np.flatnonzero(self.parts.reshape(-1) == part) // _WINDOW

    def _shuffled(
        self, rows: Places, draws: npt.NDArray[np.uint32]
    ) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int32]]:
        """Each slot's draw decides its place; of one part, the records then take its places in ascending order."""
        if self.size % _WINDOW:
            outside = rows[:, None] * _WINDOW + _SLOTS >= self.size
            draws = np.where(outside, np.uint32(0xFFFFFFC0) | _SLOTS, draws)
        places = (np.sort(draws, axis=1) & np.uint32(_WINDOW - 1)).astype(np.uint16)
        places |= self.groups[rows]
        places.sort(axis=1)
        places &= np.uint16(_WINDOW - 1)
        parts = np.empty(places.shape, np.uint16)
        counts = np.empty(places.shape, np.int32)
        np.put_along_axis(parts, places, self.parts[rows], axis=1)
        np.put_along_axis(counts, places, self.counts[rows], axis=1)
        return parts, counts

    def _strays(
        self, rows: Places, parts: npt.NDArray[np.uint16], counts: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.bool_]:
        """Windows in which a prefix holds more than `STRAY` records of a part too many, or too few.

        Just after and just before its own places a part is furthest from its share.
        """
        offsets = rows[:, None] * _WINDOW + _SLOTS
        ahead = counts * self.size - offsets * self.quotas[parts]
        early = ahead + (self.size - self.quotas[parts]) > STRAY * self.size
        late = ahead < -STRAY * self.size
        strays: npt.NDArray[np.bool_] = ((early | late) & (offsets < self.size)).any(axis=1)  # pyright: ignore[reportAssignmentType]
        return strays


def block_of(quotas: Sequence[int]) -> Block:
    """The block of these quotas, 0 for a part that is not in it; repeated where that makes its windows whole."""
    parts = len(quotas)
    dealt = earliest_deadline_first(quotas)
    repeats = _WINDOW // math.gcd(_WINDOW, len(dealt))
    if repeats * len(dealt) > LARGEST_BLOCK:
        repeats = 1  # the last window is then shorter
    dealt = np.tile(dealt, repeats)
    size = len(dealt)
    windows = -(-size // _WINDOW)
    slots = np.full(windows * _WINDOW, parts, np.uint16)
    slots[:size] = dealt
    counts = _counts_before(slots).reshape(windows, _WINDOW)
    slots = slots.reshape(windows, _WINDOW)
    grouped = np.argsort(slots, axis=1, kind="stable")
    parts_grouped = np.take_along_axis(slots, grouped, axis=1)
    numbers = np.zeros(slots.shape, np.uint16)
    numbers[:, 1:] = np.cumsum(parts_grouped[:, 1:] != parts_grouped[:, :-1], axis=1)
    groups = np.empty_like(numbers)
    np.put_along_axis(groups, grouped, numbers << 6, axis=1)
    return Block(
        size=size,
        quotas=np.array([*(quota * repeats for quota in quotas), 0], np.int64),
        parts=parts_grouped,
        counts=np.take_along_axis(counts, grouped, axis=1),
        groups=groups,
    )


def _counts_before(slots: npt.NDArray[np.uint16]) -> npt.NDArray[np.int32]:
    """Of each slot, how many of the same part come before it."""
    by_part = np.argsort(slots, kind="stable")
    sizes = np.bincount(slots)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    counts = np.empty(len(slots), np.int32)
    counts[by_part] = np.arange(len(slots)) - first
    return counts


def _draws(windows: Places, keys: Words) -> npt.NDArray[np.uint32]:
    """A keyed hash of each slot of each window, (k, 64): 26 bits, and below them the slot's number."""
    x: Any = (windows.astype(np.uint64)[:, None] << np.uint64(6)) | _SLOTS
    x ^= keys[0]
    x *= _MULTIPLY_1
    x ^= x >> _HALF
    x += keys[1]
    x *= _MULTIPLY_2
    x ^= x >> _HALF
    x *= _MULTIPLY_3
    x >>= _HALF
    return (x.astype(np.uint32) & np.uint32(0xFFFFFFC0)) | _SLOTS
