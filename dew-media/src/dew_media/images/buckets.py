"""Aspect buckets: pictures of like proportions share one size, and a step reads one bucket on every process.

Buckets are planned for the whole source, ahead of any share, from the pictures' widths and heights alone. The order
over them (`BucketOrder`) has a place for every record as any other order has: in each bucket the records follow one
endless shuffle; epoch e gives bucket b the steps `floor(e n_b / B)` to `floor((e + 1) n_b / B)` of that shuffle, and
takes the steps of all its buckets in a fresh order. So nothing is dropped or repeated: the part of a step that an epoch
leaves over begins the bucket's next step. Everything is a function of (seed, place), both ways.
"""

import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, Final, TypeAlias, cast

import attrs
import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.errors import OptionsError, OptionsTypeError, SourceError
from dew.data.order import Places, ShuffledOrder, ShuffledOrders

BUCKET_ORDER_VERSION: Final = 1

Size: TypeAlias = tuple[int, int]
"""Height and width of a bucket, in pixels."""

FEWEST: Final = 5
MOST: Final = 9
"""How many buckets are chosen: each is one more shape that the training step is compiled for."""

_FAR: Final = 1e3  # in logarithms; no picture has such proportions
_TRIMMED: Final = 0.03  # more buckets are taken while the mean picture loses more than this to its bucket's proportions

# Part of version 1: tell the shuffle of a bucket's records and that of an epoch's steps apart.
_BUCKET_SALT: Final = 0x6465775F6275636B
_STEP_SALT: Final = 0x6465775F73746570


# Which buckets


def candidates(base: int, step: int = 64) -> tuple[Size, ...]:
    """Sizes of `base` x `base` pixels or up to a quarter fewer, by width over height; the square is always there.

    Both sides are multiples of `step`, from `base / 2` to `2 base`. Of equal proportions the largest is taken.

    Raises:
        OptionsError: `base` is smaller than `step`.
    """
    checks.check_count("step", step)
    if checks.check_count("the base size of buckets", base) < step:
        raise OptionsError(f"the base size of buckets must be at least their step, got {base} and {step}")
    sides = range(-(-base // (2 * step)) * step, 2 * base + 1, step)
    enough, square = -(-3 * base * base // 4), base // step * step
    sizes = {(height, width) for height in sides for width in sides if enough <= height * width <= base * base}
    return sorted_buckets({*sizes, (square, square)})


def sorted_buckets(sizes: Iterable[Size]) -> tuple[Size, ...]:
    """Distinct sizes by width over height, the tallest first.

    Raises:
        OptionsError, OptionsTypeError: none, two of the same proportions, or one that is no (height, width).
    """
    checked = [_checked_size(size) for size in sizes]
    if not checked:
        raise OptionsError("aspect buckets need at least one (height, width), got none")
    by_ratio: dict[Fraction, Size] = {}
    for size in sorted(set(checked), key=lambda size: (-size[0] * size[1], size)):
        by_ratio.setdefault(Fraction(size[1], size[0]), size)  # of equal proportions the largest
    return tuple(by_ratio[ratio] for ratio in sorted(by_ratio))


def choose_buckets(
    widths: npt.ArrayLike, heights: npt.ArrayLike, *, base: int, step: int = 64, least: int = 1
) -> tuple[Size, ...]:
    """The buckets of a set of pictures: 5 to 9 of the `candidates`, those that trim the least off them.

    Of as few as do, the ones with the smallest total distance, in the logarithm of width over height, from pictures to
    their buckets. A bucket that would hold fewer than `least` pictures is not taken.

    Args:
        widths, heights: of the pictures, (records,), turned upright.
        base: side of the square whose area no bucket exceeds.
        step: both sides of a bucket are multiples of it.
        least: the batch, say, so that no step holds one picture twice.
    """
    widths, heights = _checked_pictures(widths, heights)
    sizes = candidates(base, step)
    ratios, counts = np.unique(np.log(widths / heights), return_counts=True)
    chosen = _closest(np.array([np.log(width / height) for height, width in sizes]), ratios, counts)
    buckets = tuple(sizes[number] for number in chosen)
    while True:
        held = np.bincount(nearest(widths, heights, buckets), minlength=len(buckets))
        smallest = int(held.argmin())
        if held[smallest] >= max(1, least) or len(buckets) == 1:
            return buckets
        buckets = buckets[:smallest] + buckets[smallest + 1 :]


def nearest(widths: npt.NDArray[np.int64], heights: npt.NDArray[np.int64], buckets: Sequence[Size]) -> Places:
    """The bucket of each picture, (records,) int64: the nearest in the logarithm of width over height.

    In whole numbers, so that no two machines differ: between neighbours a and b the border is the square root of a b.
    """
    found = np.zeros(len(widths), np.int64)
    largest = int(max(widths.max(initial=1), heights.max(initial=1)))
    for (height_a, width_a), (height_b, width_b) in itertools.pairwise(buckets):
        wide, tall = width_a * width_b, height_a * height_b
        exact: Any = np.int64 if largest**2 * max(wide, tall) < 1 << 63 else object
        beyond = widths.astype(exact) ** 2 * tall > heights.astype(exact) ** 2 * wide
        found += beyond.astype(np.int64)
    return found


def _closest(
    sizes: npt.NDArray[np.float64], ratios: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]
) -> list[int]:
    """Which of the ascending `sizes` lie closest to the ascending `ratios`: 5 to 9 of them, or all where fewer."""
    costs = _costs_between(sizes, ratios, counts)
    last = len(sizes) + 1
    best = costs[0].copy()  # best[j]: everything left of size j - 1, which is taken, with so many taken before
    came: list[npt.NDArray[np.int64]] = []
    picks: list[int] = []
    for taken in range(1, min(MOST, len(sizes)) + 1):
        steps = best[1:last, None] + costs[1:last]  # the next one taken, or the end
        came.append(steps.argmin(axis=0) + 1)
        best = steps.min(axis=0)
        picks = [int(came[-1][last])]
        for before in reversed(came[:-1]):
            picks.append(int(before[picks[-1]]))
        if taken >= FEWEST and best[last] <= _TRIMMED * counts.sum():
            break
    return sorted({pick - 1 for pick in picks})


def _costs_between(
    sizes: npt.NDArray[np.float64], ratios: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Distance of all ratios between sizes i - 1 and j - 1 to the nearer of the two, (m + 2, m + 2).

    Rows and columns 0 and m + 1 stand for no size at all on that side; infinite where j does not come after i.
    """
    edges = np.concatenate([[-np.inf], sizes, [np.inf]])
    finite = np.clip(edges, -_FAR, _FAR)
    number = np.concatenate([[0], np.cumsum(counts)])
    total = np.concatenate([[0.0], np.cumsum(counts * ratios)])
    bounds = np.searchsorted(ratios, edges)
    costs = np.full((len(edges), len(edges)), np.inf)
    for i in range(len(edges) - 1):
        stops = slice(i + 1, None)
        middles: npt.NDArray[np.float64] = (finite[i] + finite[stops]) / 2
        turns = np.searchsorted(ratios, middles)
        if i == 0:
            turns[:] = bounds[0]
        turns[-1] = bounds[-1]
        left = total[turns] - total[bounds[i]] - (number[turns] - number[bounds[i]]) * finite[i]
        right = (number[bounds[stops]] - number[turns]) * finite[stops] - (total[bounds[stops]] - total[turns])
        costs[i, stops] = left + right
    costs[0, -1] = np.inf  # nothing taken at all
    return costs


# The plan


@attrs.frozen(eq=False)
class AspectBuckets:
    """Which bucket each record of a source belongs to; made by `bucketed`.

    Args:
        sizes: (height, width) of each bucket, by width over height.
        which: each record's bucket, (records,) uint8.
        trimmed: which part of a picture is cut off, on average.
    """

    sizes: tuple[Size, ...]
    which: npt.NDArray[np.uint8]
    trimmed: float

    def __len__(self) -> int:
        return len(self.which)

    def size_of(self, record: int) -> Size:
        """Height and width of the bucket that a record belongs to."""
        return self.sizes[int(self.which[record])]

    @property
    def counts(self) -> tuple[int, ...]:
        """Records of each bucket."""
        return tuple(np.bincount(self.which, minlength=len(self.sizes)).tolist())

    def digest(self) -> str:
        """Of the buckets' sizes and of every record's bucket, 16 hex digits."""
        sizes = json.dumps(self.sizes).encode()
        return hashlib.sha256(sizes + b"\n" + self.which.tobytes()).hexdigest()[:16]

    def listing(self, batch: int) -> str:
        """One line for each bucket: what it holds, and how often a step of `batch` records reads it."""
        counts = self.counts
        used = sum(count > 0 for count in counts)
        lines = [
            f"{used} aspect bucket{'' if used == 1 else 's'} for {len(self)} records, batch {batch}: "
            f"{self.trimmed:.1%} of a picture is trimmed on average; what an epoch leaves over of a step begins the "
            "bucket's next one"
        ]
        for (height, width), count in zip(self.sizes, counts, strict=True):
            lines.append(f"  {width} x {height}: {count} records, {_often(count, batch)}")
        return "\n".join(lines)


def bucketed(widths: npt.ArrayLike, heights: npt.ArrayLike, sizes: Iterable[Size]) -> AspectBuckets:
    """Every record in the bucket of the nearest proportions.

    Args:
        widths, heights: of the pictures, (records,), turned upright.
        sizes: (height, width) of the buckets, 1 to 255 of them, in any order; those that `choose_buckets` chose.

    Raises:
        SourceError: a width or height is below 1.
        OptionsError, OptionsTypeError: sizes that cannot be.
    """
    buckets = sorted_buckets(sizes)
    if len(buckets) > 255:
        raise OptionsError(f"there are at most 255 aspect buckets, got {len(buckets)}")
    widths, heights = _checked_pictures(widths, heights)
    which = nearest(widths, heights, buckets)
    of_bucket = np.array([width / height for height, width in buckets])[which]
    lost = 1 - np.exp(-np.abs(np.log(widths / heights / of_bucket)))
    return AspectBuckets(buckets, which.astype(np.uint8), float(lost.mean()))


def _often(count: int, batch: int) -> str:
    if not count:
        return "never read"
    if count >= batch:
        return f"{count / batch:.2f} steps an epoch"
    return f"fewer than a batch: a step every {batch / count:.1f} epochs, each of them {batch / count:.1f} times in it"


def _checked_pictures(
    widths: npt.ArrayLike, heights: npt.ArrayLike
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    found = np.asarray(widths, np.int64), np.asarray(heights, np.int64)
    if found[0].shape != found[1].shape or found[0].ndim != 1 or not len(found[0]):
        raise SourceError(
            f"aspect buckets need a width and a height of each record, got {found[0].shape} and {found[1].shape}"
        )
    small = np.flatnonzero((found[0] < 1) | (found[1] < 1))
    if small.size:
        record = int(small[0])
        raise SourceError(
            f"record {record} is {found[0][record]} x {found[1][record]} pixels, which has no proportions; leave it out"
        )
    return found


def _checked_size(size: object) -> Size:
    sides = cast("tuple[object, ...]", size) if isinstance(size, tuple) else ()
    if len(sides) != 2:
        raise OptionsTypeError(f"a bucket is (height, width) in pixels, got {size!r}")
    return (
        checks.check_count("the height of a bucket", sides[0]),
        checks.check_count("the width of a bucket", sides[1]),
    )


# The order


class BucketOrder:
    """An order whose every step of `batch` records reads one bucket.

    Args:
        buckets: of the source's records.
        batch: the only global batch that this order can be read with; a step is `batch` places from a multiple of it.
        seed: a Python int in [0, 2^64).
        salt: tells apart orders that share a seed; a Python int in [0, 2^64).
    """

    def __init__(self, buckets: AspectBuckets, *, batch: int, seed: int = 0, salt: int = 0) -> None:
        self._buckets = buckets
        self.batch = checks.check_count("batch", batch)
        self.seed = checks.check_seed(seed)
        self.salt = checks.check_seed(salt, "salt")
        self._arrange()

    def __getstate__(self) -> dict[str, Any]:
        return {"_buckets": self._buckets, "batch": self.batch, "seed": self.seed, "salt": self.salt}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._arrange()

    def __repr__(self) -> str:
        return f"BucketOrder({len(self._counts)} buckets, {self.records} records, batch={self.batch}, seed={self.seed})"

    @property
    def records(self) -> int:
        """Records in all buckets."""
        return len(self._buckets)

    @property
    def buckets(self) -> AspectBuckets:
        """Which bucket each record belongs to."""
        return self._buckets

    def identity(self) -> dict[str, Any]:
        """`{"version", "kind": "buckets", "records", "seed", "salt", "batch", "buckets": digest of the plan}`."""
        return {
            "version": BUCKET_ORDER_VERSION,
            "kind": "buckets",
            "records": self.records,
            "seed": self.seed,
            "salt": self.salt,
            "batch": self.batch,
            "buckets": self._buckets.digest(),
        }

    def at(self, places: Places) -> Places:
        """Records at `places` (k,) int64."""
        places = np.asarray(places, np.int64)
        if not len(places):
            return places
        steps, rows = np.divmod(places, self.batch)
        steps, inverse = np.unique(steps, return_inverse=True)
        parts, numbers = (values[inverse] for values in self._read_in(steps))
        within = self._shuffles.at(parts, numbers * self.batch + rows)
        return self._members[self._starts[parts] + within]

    def places(self, record: int, start: int, stop: int) -> Places:
        """As often as its bucket is read through, found without a search through an epoch."""
        if not 0 <= record < self.records:
            raise OptionsError(f"record {record} does not exist: the source has records 0 to {self.records - 1}")
        start = max(start, 0)
        if stop <= start:
            return np.empty(0, np.int64)
        part = int(np.searchsorted(self._used, int(self._buckets.which[record])))
        count = int(self._counts[part])
        members = self._members[int(self._starts[part]) :][:count]
        first, last = self._epochs_of(np.array([start, stop - 1]) // self.batch).tolist()
        reads = self._orders[part].places(
            int(np.searchsorted(members, record)),
            first * count // self.batch * self.batch,
            (last + 1) * count // self.batch * self.batch,
        )
        numbers, rows = np.divmod(reads, self.batch)
        steps = np.array([self._step(part, number) for number in numbers.tolist()], np.int64)
        found = np.sort(steps * self.batch + rows)
        return found[(found >= start) & (found < stop)]

    def bucket_of_step(self, step: int) -> Size:
        """Height and width of the pictures that a step reads; steps are counted from place 0."""
        parts, _ = self._read_in(np.array([checks.check_count("step", step, 0)], np.int64))
        return self._buckets.sizes[int(self._used[int(parts[0])])]

    def _arrange(self) -> None:
        counts = np.array(self._buckets.counts, np.int64)
        self._used = np.flatnonzero(counts)
        self._counts = counts[self._used]
        self._starts = np.cumsum(self._counts) - self._counts
        self._members = np.argsort(self._buckets.which, kind="stable")
        self._orders = [
            ShuffledOrder(records=count, seed=self.seed, salt=self.salt ^ _BUCKET_SALT ^ number)
            for number, count in zip(self._used.tolist(), self._counts.tolist(), strict=True)
        ]
        self._shuffles = ShuffledOrders(self._orders)

    def _done(self, epochs: Places) -> Places:
        """Steps of each used bucket before each epoch, (epochs, buckets)."""
        return epochs[:, None] * self._counts // self.batch

    def _epochs_of(self, steps: Places) -> Places:
        """The epoch of each step: the last one that no more than `step` steps come before."""
        buckets = len(self._counts)
        low = steps * self.batch // self.records
        high = (steps + buckets + 1) * self.batch // self.records + 1
        while (high - low > 1).any():
            middle = (low + high) // 2
            early = self._done(middle).sum(axis=1) <= steps
            low, high = np.where(early, middle, low), np.where(early, high, middle)
        return low

    def _read_in(self, steps: Places) -> tuple[Places, Places]:
        """Which used bucket each step reads, and which step of that bucket's own it is."""
        epochs = self._epochs_of(steps)
        done, then = self._done(epochs), self._done(epochs + 1)
        before, lengths = done.sum(axis=1), (then - done).sum(axis=1)
        slots = np.empty(len(steps), np.int64)
        for length in np.unique(lengths).tolist():  # they differ by less than the number of buckets
            there = np.flatnonzero(lengths == length)
            slots[there] = self._steps_order(length).at(epochs[there] * length + steps[there] - before[there])
        ends = np.cumsum(then - done, axis=1)
        parts = (slots[:, None] >= ends).sum(axis=1)
        rows = np.arange(len(steps))
        return parts, then[rows, parts] - (ends[rows, parts] - slots)

    def _step(self, part: int, number: int) -> int:
        """The step that reads step `number` of a used bucket."""
        epoch = ((number + 1) * self.batch - 1) // int(self._counts[part])
        done, then = self._done(np.array([epoch, epoch + 1], np.int64))
        lengths = (then - done).tolist()
        slot = sum(lengths[:part]) + number - int(done[part])
        length = sum(lengths)
        at = int(self._steps_order(length).places(slot, epoch * length, (epoch + 1) * length)[0])
        return int(done.sum()) + at - epoch * length

    def _steps_order(self, steps: int) -> ShuffledOrder:
        return _steps_order(steps, self.seed, self.salt ^ _STEP_SALT)


@functools.lru_cache(maxsize=256)
def _steps_order(steps: int, seed: int, salt: int) -> ShuffledOrder:
    return ShuffledOrder(records=steps, seed=seed, salt=salt)
