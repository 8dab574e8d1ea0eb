"""A shuffled order for storage where random reads are dear: blocks of consecutive records, read whole.

Blocks (row groups of a file, stretches of a corpus) are permuted anew in each epoch and taken in windows of `lanes`
blocks. A window's records lie in a line that is cut into as many equal lanes as it has blocks; consecutive places take
one record of each lane in turn, and each lane is permuted. So a window's blocks are read side by side, each once, and a
process whose count divides `lanes` reads only its own lanes. Everything is a function of (seed, place), both ways.
"""

import functools
import hashlib
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.errors import OptionsError
from dew.data.order import MAX_RECORDS, Places, ShuffledOrder

BLOCK_ORDER_VERSION: Final = 1

# Part of version 1: tells the permutation of a lane from that of the blocks.
_LANE_SALT: Final = 0x6465775F6C616E65

# Blocks that are laid out at once, of however many epochs.
_SPAN: Final = 1 << 14


class BlockOrder:
    """Every epoch the blocks in a fresh order, and the records of each window of blocks in a fresh order.

    Args:
        sizes: records in each block, in the source's own order; every block has at least one.
        seed: a Python int in [0, 2^64).
        lanes: blocks that are read side by side, and so the size of the shuffle; a process reads `lanes / count` of
            them where the process count divides it.
        salt: tells apart orders that share a seed; a Python int in [0, 2^64).

    Raises:
        OptionsError: no block, an empty one, or a number out of range.
    """

    def __init__(self, sizes: npt.ArrayLike, *, seed: int = 0, lanes: int = 16, salt: int = 0) -> None:
        self._sizes = np.array(sizes, np.int64)
        if self._sizes.ndim != 1 or not len(self._sizes) or int(self._sizes.min()) < 1:
            raise OptionsError(f"a block order needs blocks of at least one record each, got sizes {sizes!r}")
        self.lanes = checks.check_count("lanes", lanes)
        self.seed = checks.check_seed(seed)
        self.salt = checks.check_seed(salt, "salt")
        self._starts = _cumulated(self._sizes)
        self._records = int(self._starts[-1])
        if self._records > MAX_RECORDS:
            raise OptionsError(f"an order holds at most 2^62 records, got {self._records}")
        self._blocks = ShuffledOrder(records=len(self._sizes), seed=seed, salt=salt)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_layout"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __repr__(self) -> str:
        return f"BlockOrder({len(self._sizes)} blocks, {self._records} records, seed={self.seed}, lanes={self.lanes})"

    @property
    def records(self) -> int:
        """Number of records in all blocks."""
        return self._records

    def identity(self) -> dict[str, Any]:
        """`{"version", "kind": "blocks", "records", "seed", "salt", "lanes", "blocks": digest of the sizes}`."""
        return {
            "version": BLOCK_ORDER_VERSION,
            "kind": "blocks",
            "records": self._records,
            "seed": self.seed,
            "salt": self.salt,
            "lanes": self.lanes,
            "blocks": hashlib.sha256(self._sizes.astype("<i8").tobytes()).hexdigest()[:16],
        }

    def at(self, places: Places) -> Places:
        """Records at `places` (k,) int64."""
        places = np.asarray(places, np.int64)
        epochs = places // self._records
        if not len(places):
            return places
        first, last = int(epochs.min()), int(epochs.max())
        if (last - first) * len(self._sizes) <= _SPAN:  # small data: many epochs are laid out at once
            return self._at(first, last - first + 1, places - first * self._records)
        found = np.empty(len(places), np.int64)
        for epoch in np.unique(epochs).tolist():
            rows = np.flatnonzero(epochs == epoch)
            found[rows] = self._at(epoch, 1, places[rows] - epoch * self._records)
        return found

    def places(self, record: int, start: int, stop: int) -> Places:
        """One place an epoch, found without a search through the epoch."""
        if not 0 <= record < self._records:
            raise OptionsError(f"record {record} does not exist: the source has records 0 to {self._records - 1}")
        block = int(np.searchsorted(self._starts, record, "right")) - 1
        first, last = max(start, 0) // self._records, max(stop - 1, 0) // self._records
        places = np.array([self._place(epoch, block, record) for epoch in range(first, last + 1)], np.int64)
        return places[(places >= start) & (places < stop)]

    def window(self, place: int) -> tuple[int, int]:
        """The places `[start, stop)` around `place` that one window of blocks fills."""
        epoch, offset = divmod(place, self._records)
        laid = self._layout(epoch, 1)
        number = int(np.searchsorted(laid.starts, offset, "right")) - 1
        start = epoch * self._records
        return start + int(laid.starts[number]), start + int(laid.starts[number + 1])

    def blocks(self, first: int, step: int = 1) -> Places:
        """Blocks in which the records at `first`, `first + step`, ... lie, up to the end of the window of `first`.

        Lanes are counted whole: from the middle of a window on, some of the blocks may have been read to their end.
        """
        epoch, offset = divmod(first, self._records)
        laid = self._layout(epoch, 1)
        number = int(np.searchsorted(laid.starts, offset, "right")) - 1
        start, stop = int(laid.starts[number]), int(laid.starts[number + 1])
        lanes, depth = int(laid.lanes[number]), int(laid.depths[number])
        own = np.unique((offset - start + step * np.arange(lanes)) % lanes)
        rest = np.arange(start + lanes * depth, stop)
        rest = rest[(rest >= offset) & ((rest - offset) % step == 0)]
        lows = np.concatenate([start + own * depth, rest])
        highs = np.concatenate([start + (own + 1) * depth, rest + 1])
        from_, to = np.searchsorted(laid.bounds, lows, "right") - 1, np.searchsorted(laid.bounds, highs, "left")
        spans = [laid.blocks[low:high] for low, high in zip(from_.tolist(), to.tolist(), strict=True)]
        return np.unique(np.concatenate(spans))

    def _forget(self) -> None:
        self._layout = functools.lru_cache(maxsize=4)(self._laid_out)

    def _laid_out(self, first: int, epochs: int) -> "_Layout":
        """`epochs` epochs from `first` on, as one line of blocks; windows end with their epoch."""
        count = len(self._sizes)
        blocks = self._blocks.at(np.arange(first * count, (first + epochs) * count, dtype=np.int64))
        bounds = _cumulated(self._sizes[blocks])
        firsts = np.arange(0, count, self.lanes)
        starts = bounds[np.append(np.add.outer(np.arange(epochs) * count, firsts).ravel(), epochs * count)]
        lanes = np.tile(np.minimum(self.lanes, count - firsts), epochs)
        return _Layout(blocks=blocks, bounds=bounds, starts=starts, lanes=lanes, depths=np.diff(starts) // lanes)

    def _at(self, first: int, epochs: int, offsets: Places) -> Places:
        laid = self._layout(first, epochs)
        windows = np.searchsorted(laid.starts, offsets, "right") - 1
        within = offsets - laid.starts[windows]
        line = offsets.copy()  # the few past the last whole round of lanes stay where they are
        rows = np.flatnonzero(within < laid.lanes[windows] * laid.depths[windows])
        windows, within = windows[rows], within[rows]
        lane, at = within % laid.lanes[windows], within // laid.lanes[windows]
        depths = laid.depths[windows]
        epoch, window = np.divmod(windows, len(laid.lanes) // epochs)
        numbers = self._numbered(first + epoch, window, lane)
        for depth in np.unique(depths).tolist():
            there = np.flatnonzero(depths == depth)
            at[there] = self._lane_order(depth).at(numbers[there] * depth + at[there])
        line[rows] = laid.starts[windows] + lane * depths + at
        index = np.searchsorted(laid.bounds, line, "right") - 1
        return self._starts[laid.blocks[index]] + line - laid.bounds[index]

    def _lane_order(self, depth: int) -> ShuffledOrder:
        return ShuffledOrder(records=depth, seed=self.seed, salt=self.salt ^ _LANE_SALT)

    def _numbered(self, epoch: Any, window: Any, lane: Any) -> Any:
        """A number of its own for each lane of each window of each epoch: the epoch of that lane's permutation."""
        return epoch * len(self._sizes) + window * self.lanes + lane

    def _place(self, epoch: int, block: int, record: int) -> int:
        laid = self._layout(epoch, 1)
        index = int(np.flatnonzero(laid.blocks == block)[0])
        line = int(laid.bounds[index]) + record - int(self._starts[block])
        window = index // self.lanes
        start, lanes, depth = int(laid.starts[window]), int(laid.lanes[window]), int(laid.depths[window])
        offset = line - start
        if offset < lanes * depth:
            lane, at = divmod(offset, depth)
            first = int(self._numbered(epoch, window, lane)) * depth
            found = int(self._lane_order(depth).places(at, first, first + depth)[0]) - first
            offset = found * lanes + lane
        return epoch * self._records + start + offset


@attrs.frozen(kw_only=True, eq=False)
class _Layout:
    """Blocks in order, where each begins in the line, and each window's start, lanes and depth."""

    blocks: Places
    bounds: Places
    starts: Places
    lanes: Places
    depths: Places


def _cumulated(sizes: Places) -> Places:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
