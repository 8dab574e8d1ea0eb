"""The order: which record stands at which place of one endless sequence. Pure functions of (seed, place).

Place q = 0, 1, 2, ... of a shuffled order over N records is epoch q // N, record permutation(seed, epoch)[q % N].
Nothing is stored: the permutation is computed, at any place, in both directions. An order is saved by its `identity()`;
a changed algorithm is a new `ORDER_VERSION`, and positions of the old one are refused.

The permutation is a keyed Feistel network over a domain a * b with a, b near sqrt(N), as in Black and Rogaway, "Ciphers
with Arbitrary Finite Domains" (CT-RSA 2002), with cycle walking for the few points of the domain past N. Since a * b is
at most N + sqrt(N), N just above a power of two costs no more than any other.
"""

import functools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, SupportsIndex, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.errors import OptionsError, OptionsTypeError

ORDER_VERSION = 1
DRAWS_VERSION = 1

# Part of version 1 of the order and of the draws: changing one of these moves records or draws.
_ROUNDS = 8
_ROUNDS_SMALL = 16  # below 4096 records a round mixes few bits: 8 rounds favour some permutations of 5 or 6 records
_SMALL = 4096
_ORDER_DOMAIN = 0x6465775F6F726472
_DRAWS_DOMAIN = 0x6465775F64726177
_MULTIPLY_1 = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_2 = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)

# Arrays longer than this are permuted piece by piece, so that the intermediates stay in the cache of a core.
_PIECE = 4096

MAX_RECORDS = 1 << 62

Places: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint64]
_Side: TypeAlias = int | _Words


class Order(Protocol):
    """An endless order over the records of a source. The stream knows nothing else of how records are chosen.

    Optional members, looked up by name:
        `stop: int | None`: a stream ends after the last whole step before this place.
        `batch: int`: the only global batch that it can be read with, in steps from a multiple of it, such as those of
            aspect buckets. A stream states it in every position; a ramp, a skip of part of a step and a mixture are
            refused.
        `identity_at(place: int) -> dict`: what the records before `place` depend on, saved instead of `identity()` in a
            position at `place`. It describes the sources too: the stream adds neither description nor fingerprint.
    """

    @property
    def records(self) -> int:
        """Number of records in the source."""
        ...

    def identity(self) -> dict[str, Any]:
        """What must match for a saved position to go on, in JSON values; has at least `version`, `kind`, `records`."""
        ...

    def at(self, places: Places) -> Places:
        """Records at `places` (k,) int64 -> (k,) int64 indices into the source."""
        ...

    def places(self, record: int, start: int, stop: int) -> Places:
        """The places in `[start, stop)` at which `record` is read, ascending, (m,) int64."""
        ...


def batch_of(order: object) -> int | None:
    """The only global batch that an order can be read with, None where any will do.

    Raises:
        OptionsError, OptionsTypeError: it is not an int of at least 1.
    """
    own = getattr(order, "batch", None)
    return None if own is None else checks.check_count(f"{type(order).__name__}.batch", own)


@attrs.frozen(kw_only=True)
class ShuffledOrder:
    """Every epoch a fresh permutation of all records, from `seed` alone.

    Args:
        records: number of records N, 1 to 2^62.
        seed: a Python int in [0, 2^64).
        salt: tells apart orders that share a seed, such as the parts of a mixture; a Python int in [0, 2^64).
    """

    records: int = attrs.field(validator=checks.count())
    seed: int = attrs.field(default=0, validator=checks.seed)
    salt: int = attrs.field(default=0, validator=checks.seed)

    def __attrs_post_init__(self) -> None:
        _check_records(self.records)

    def identity(self) -> dict[str, Any]:
        """`{"version", "kind": "shuffled", "records", "seed", "salt"}`."""
        return {"version": ORDER_VERSION, "kind": "shuffled", **attrs.asdict(self)}

    def at(self, places: Places) -> Places:
        """Records at `places`: about 0.05 us each in blocks of 4096."""
        epochs, offsets = np.divmod(np.asarray(places, np.int64), self.records)
        records = np.empty(len(offsets), np.int64)
        for start in range(0, len(offsets), _PIECE):
            piece = slice(start, start + _PIECE)
            keys = self._keys_of(epochs[piece])
            records[piece] = _permute(offsets[piece].astype(np.uint64), self.records, keys)
        return records

    def places(self, record: int, start: int, stop: int) -> Places:
        """One place an epoch: the permutation's inverse, O(1) an epoch."""
        record = _checked_record(record, self.records)
        first, last = max(start, 0) // self.records, max(stop - 1, 0) // self.records
        epochs = np.arange(first, last + 1, dtype=np.int64)
        found = np.empty(len(epochs), np.int64)
        for piece_start in range(0, len(epochs), _PIECE):
            piece = slice(piece_start, piece_start + _PIECE)
            target = np.full(len(epochs[piece]), record, np.uint64)
            offsets = _unpermute(target, self.records, self._keys_of(epochs[piece]))
            found[piece] = epochs[piece] * self.records + offsets.astype(np.int64)
        return found[(found >= start) & (found < stop)]

    def _keys_of(self, epochs: Places) -> _Words:
        """Round keys (rounds, 1) for one epoch, (rounds, k) where epochs differ."""
        first = int(epochs[0])
        if (epochs == first).all():
            return self._keys(first)[:, None]
        distinct, inverse = np.unique(epochs, return_inverse=True)
        table = np.stack([self._keys(int(epoch)) for epoch in distinct], axis=1)
        return table[:, inverse]

    @property
    def rounds(self) -> int:
        """Rounds of the permutation's network."""
        return _ROUNDS if self.records >= _SMALL else _ROUNDS_SMALL

    def _keys(self, epoch: int) -> _Words:
        return _round_keys(self.seed, self.salt, epoch, self.rounds)


class ShuffledOrders:
    """Several shuffled orders looked up together: a pass over all places costs the same however many orders there are.

    Args:
        orders: 1 to 65 535 of them.
    """

    def __init__(self, orders: Sequence[ShuffledOrder]) -> None:
        # Those of many rounds come last, so that sorted places fall into two stretches of equal rounds.
        ranked = sorted(range(len(orders)), key=lambda number: orders[number].rounds)
        self._orders = [orders[number] for number in ranked]
        self._rank = np.empty(len(orders), np.uint16)
        self._rank[ranked] = np.arange(len(orders))
        self._records = np.array([order.records for order in self._orders], np.uint64)
        self._sides = np.array([_sides(order.records) for order in self._orders], np.uint64).T.copy()
        self._few = sum(order.rounds == _ROUNDS for order in orders)

    def at(self, which: Places, places: Places) -> Places:
        """`orders[which[k]].at(places[k])` for each k, (k,) int64."""
        found = np.empty(len(places), np.int64)
        for start in range(0, len(found), _PIECE):
            piece = slice(start, start + _PIECE)
            ranks = self._rank[which[piece]]
            sort = np.argsort(ranks, kind="stable")
            found[start + sort] = self._sorted_at(ranks[sort], places[piece][sort])
        return found

    def _sorted_at(self, ranks: npt.NDArray[np.uint16], places: Places) -> Places:
        split = int(np.searchsorted(ranks, self._few))
        stretches = (slice(0, split), _ROUNDS), (slice(split, None), _ROUNDS_SMALL)
        found = [self._stretch_at(ranks[part], places[part], rounds) for part, rounds in stretches]
        return np.concatenate(found)

    def _stretch_at(self, ranks: npt.NDArray[np.uint16], places: Places, rounds: int) -> Places:
        if not ranks.size:
            return places
        records = self._records[ranks]
        epochs, offsets = np.divmod(places.astype(np.uint64), records)
        # Runs of places in one epoch of one order share their keys.
        new = np.flatnonzero(np.r_[True, (ranks[1:] != ranks[:-1]) | (epochs[1:] != epochs[:-1])])
        pairs: Iterable[tuple[int, int]] = zip(ranks[new].tolist(), epochs[new].tolist(), strict=True)
        table = np.array([self._remembered(rank, epoch, rounds) for rank, epoch in pairs], np.uint64)
        keys = np.repeat(table.T.copy(), np.diff(new, append=len(ranks)), axis=1)
        return _walk(_forward, offsets, records, self._sides[0][ranks], self._sides[1][ranks], keys)

    def _remembered(self, rank: int, epoch: int, rounds: int) -> _Words:
        order = self._orders[rank]
        return _remembered_keys(order.seed, order.salt, epoch, rounds)


@attrs.frozen(kw_only=True)
class SequentialOrder:
    """The records in the source's own order, in each epoch."""

    records: int = attrs.field(validator=checks.count())

    def __attrs_post_init__(self) -> None:
        _check_records(self.records)

    def identity(self) -> dict[str, Any]:
        """`{"version", "kind": "sequential", "records"}`."""
        return {"version": ORDER_VERSION, "kind": "sequential", "records": self.records}

    def at(self, places: Places) -> Places:
        """`places % records`."""
        return np.asarray(places, np.int64) % self.records

    def places(self, record: int, start: int, stop: int) -> Places:
        """`record`, `record + N`, ... within `[start, stop)`."""
        record = _checked_record(record, self.records)
        start = max(start, 0)
        first = start + (record - start) % self.records
        return np.arange(first, max(stop, first), self.records, dtype=np.int64)


def draws_at(seed: int, place: int, salt: int = 0) -> np.random.Generator:
    """The random draws of the record at `place`: a generator keyed by the seed and the place alone.

    The words of the generator's Philox stream are Dew's (`DRAWS_VERSION`); how `Generator` methods turn them into
    numbers is NumPy's, and may change between its releases (NEP 19).
    """
    return np.random.Generator(_philox(seed, _DRAWS_DOMAIN, place, salt))


def _philox(seed: int, domain: int, counter: int, salt: int) -> np.random.Philox:
    # Word 0 of the counter is left to Philox itself: each (counter, salt) owns a stream of 2^64 blocks.
    return np.random.Philox(key=seed | domain << 64, counter=counter << 64 | salt << 128)


def _round_keys(seed: int, salt: int, epoch: int, rounds: int) -> _Words:
    # Seed, epoch and salt stand in words of their own, so that no two of them alias (a sum would).
    return _philox(seed, _ORDER_DOMAIN, epoch, salt).random_raw(rounds)


# A mixture's parts each stay in one epoch for many steps.
_remembered_keys = functools.lru_cache(maxsize=4096)(_round_keys)


def _sides(records: int) -> tuple[int, int]:
    a = math.isqrt(records - 1) + 1 if records > 1 else 1
    return a, -(-records // a)


def _below(x: _Words, key: _Words, bound: _Side) -> _Words:
    """A keyed hash of each x in [0, bound), bound < 2^32."""
    x = (x ^ key) * _MULTIPLY_1
    x ^= x >> _HALF
    x *= _MULTIPLY_2
    x >>= _HALF
    x *= np.uint64(bound)
    x >>= _HALF
    return x


def _forward(x: _Words, keys: _Words, a: _Side, b: _Side) -> _Words:
    left, right = np.divmod(x, np.uint64(b))
    for number, key in enumerate(keys):
        if number % 2 == 0:
            left += _below(right, key, a)
            np.minimum(left, left - np.uint64(a), out=left)  # unsigned: below a the difference wraps and loses
        else:
            right += _below(left, key, b)
            np.minimum(right, right - np.uint64(b), out=right)
    left *= np.uint64(b)
    left += right
    return left


def _backward(y: _Words, keys: _Words, a: _Side, b: _Side) -> _Words:
    left, right = np.divmod(y, np.uint64(b))
    for number in reversed(range(len(keys))):
        if number % 2 == 0:
            left += np.uint64(a) - _below(right, keys[number], a)
            np.minimum(left, left - np.uint64(a), out=left)
        else:
            right += np.uint64(b) - _below(left, keys[number], b)
            np.minimum(right, right - np.uint64(b), out=right)
    left *= np.uint64(b)
    left += right
    return left


def _walk(step: Any, x: _Words, records: _Side, a: _Side, b: _Side, keys: _Words) -> npt.NDArray[np.int64]:
    """`records`, `a` and `b` are numbers, or arrays with one for each x."""
    x = step(x, keys, a, b)
    outside = np.flatnonzero(x >= records)
    while outside.size:
        keys_there = keys if keys.shape[1] == 1 else keys[:, outside]
        x[outside] = step(x[outside], keys_there, _entries(a, outside), _entries(b, outside))
        outside = outside[x[outside] >= _entries(records, outside)]
    return x.astype(np.int64)


def _entries(value: _Side, at: Places) -> _Side:
    return value[at] if isinstance(value, np.ndarray) else value


def _permute(offsets: _Words, records: int, keys: _Words) -> npt.NDArray[np.int64]:
    return _walk(_forward, offsets, records, *_sides(records), keys)


def _unpermute(found: _Words, records: int, keys: _Words) -> npt.NDArray[np.int64]:
    return _walk(_backward, found, records, *_sides(records), keys)


def _check_records(records: int) -> None:
    if records > MAX_RECORDS:
        raise OptionsError(f"an order holds at most 2^62 records, got {records}")


def _checked_record(record: SupportsIndex, records: int) -> int:
    """The record as an int; NumPy's integers pass, since records come out of `at` as such."""
    try:
        number = operator.index(record)
    except TypeError as error:
        raise OptionsTypeError(f"a record is an integer, got {record!r} ({type(record).__name__})") from error
    if not 0 <= number < records:
        raise OptionsError(f"record {number} does not exist: the source has records 0 to {records - 1}")
    return number
