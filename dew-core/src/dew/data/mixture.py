"""A weighted mixture as one order: any place -> a part and one of its records, exact shares, O(1) memory, both ways.

The records of all parts, side by side in the order of their labels, are the records of the mixture. A stage says which
share each part has from its first place on (`dew.data.quotas` deals them); a part goes on in a stage where the stages
before left it. So the number of records that a part has read before any place is known in closed form, and so are its
inverse, the place of a part's k-th record, and with it where a part is used up. Each part has an order of its own.
"""

import bisect
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs
import numpy as np

from dew.data import checks
from dew.data.errors import OptionsError, OptionsTypeError
from dew.data.order import (
    MAX_RECORDS,
    ORDER_VERSION,
    Order,
    Places,
    SequentialOrder,
    ShuffledOrder,
    ShuffledOrders,
    batch_of,
)
from dew.data.quotas import MOST_PARTS, Block, Words, block_of, quotas_of, shares_of

MIXTURE_VERSION: Final = 1

Exhaustion: TypeAlias = Literal["repeat", "stop_first", "stop_all"]
"""Whether a mixture ends: never, where the first of its parts is used up, or where the last one is."""

_MIXTURE_DOMAIN = 0x6465775F6D697874
_PIECE = 4096
_BUILT_IN: Mapping[type, str] = {ShuffledOrder: "shuffled", SequentialOrder: "sequential"}


@attrs.frozen(kw_only=True)
class MixturePart:
    """One source of a mixture, as its order sees it.

    Args:
        label: its name, unique in the mixture; labels decide ties and the parts' permutations.
        order: over the part's own records; `part_order` makes the usual one.
        facts: what must match to resume, as JSON values: description, fingerprint, identity.
        max_epochs: how often its records may be read before the mixture ends; None: see `Exhaustion`.
    """

    label: str = attrs.field()
    order: Order
    facts: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    max_epochs: int | None = attrs.field(default=None, validator=attrs.validators.optional(checks.count()))

    @label.validator  # pyright: ignore[reportAttributeAccessIssue, reportUntypedFunctionDecorator, reportUnknownMemberType]
    def _check_label(self, _attribute: "attrs.Attribute[str]", value: object) -> None:
        if not isinstance(value, str):
            raise OptionsTypeError(f"the label of a part must be a str, got {value!r} ({type(value).__name__})")
        if not value:
            raise OptionsError("the label of a part must not be empty")


def part_order(label: str, records: int, *, seed: int, shuffle: bool = True) -> Order:
    """A part's own order: shuffled with a salt from its label, so that parts of equal length share no permutation."""
    if not shuffle:
        return SequentialOrder(records=records)
    return ShuffledOrder(records=records, seed=seed, salt=_salt(label))


def part_seed(label: str, seed: int) -> int:
    """A seed of a part's own, for orders that take no salt."""
    words = np.random.Philox(key=seed | _MIXTURE_DOMAIN << 64, counter=_salt(label) << 128).random_raw(1)
    return int(words[0])


def _salt(label: str) -> int:
    return int.from_bytes(hashlib.sha256(label.encode()).digest()[:8], "big")


@attrs.frozen
class Stage:
    """From place `start` on each label of `weights` has this share of the records; other parts are not read."""

    start: int = attrs.field(validator=checks.count(0))
    weights: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class PartCount:
    """What a mixture has read of one part: records, epochs (a fraction), and the share of all records so far."""

    records: int
    epochs: float
    share: float


@attrs.frozen(eq=False)
class _Plan:
    """A stage, dealt."""

    start: int
    shares: Mapping[str, Fraction]
    block: Block
    keys: Words  # of the windows' shuffle, (2,)
    before: Places  # records of each part that the stages before it read, (parts,)

    def look_up(self, places: Places) -> tuple[Places, Places]:
        """Part and record number (counted over all epochs) at each of `places`, (k,) each."""
        block = self.block
        blocks, offsets = np.divmod(places - self.start, block.size)
        windows, inverse = _distinct(blocks * block.windows + (offsets >> 6))
        parts, counts = block.arranged(windows, self.keys)
        at = inverse, offsets & 63
        which = parts[at].astype(np.int64)
        return which, counts[at] + blocks * block.quotas[which] + self.before[which]

    def counts(self, place: int) -> Places:
        """Records of each part before `place`, (parts,)."""
        block, parts = self.block, len(self.before)
        blocks, offset = divmod(place - self.start, block.size)
        window, slot = divmod(offset, 64)
        read = np.bincount(block.parts[:window].reshape(-1), minlength=parts).astype(np.int64)
        if slot:
            arranged, _ = block.arranged(np.array([blocks * block.windows + window], np.int64), self.keys)
            read += np.bincount(arranged[0, :slot], minlength=parts)
        return self.before + blocks * block.quotas[:-1] + read

    def places_of(self, part: int, items: Places) -> Places:
        """Places of the records `items` (k,) of `part`, all of which this stage reads."""
        block = self.block
        blocks, ranks = np.divmod(items - self.before[part], block.quotas[part])
        rows = block.windows_of(part)[ranks]
        found = np.empty(len(items), np.int64)
        for start in range(0, len(items), _PIECE):
            piece = slice(start, start + _PIECE)
            parts, counts = block.arranged(blocks[piece] * block.windows + rows[piece], self.keys)
            found[piece] = ((parts == part) & (counts == ranks[piece, None])).argmax(axis=1)
        return self.start + blocks * block.size + rows * 64 + found

    def first_place_past(self, part: int, item: int) -> int:
        """A place that `item` of `part` is at or before, in Python's integers, which do not overflow."""
        blocks = (item - int(self.before[part])) // int(self.block.quotas[part])
        return self.start + (blocks + 1) * self.block.size


@attrs.frozen(kw_only=True)
class MixtureOrder:
    """The order of a weighted mixture; see the module.

    Args:
        parts: 1 to 65 534 of them; their order does not matter.
        stages: ascending; the first starts at place 0.
        seed: keys the windows' shuffle, a Python int in [0, 2^64).
        exhaustion: whether the mixture ends by itself; a part with `max_epochs` ends a "repeat" one too.

    Attributes:
        stop: the mixture ends before this place; None where it never ends. `at` goes on past it as if it did not.

    Raises:
        OptionsError: labels, weights, stages or ends that cannot be; names each.
    """

    parts: tuple[MixturePart, ...] = attrs.field(converter=lambda parts: _by_label(parts))
    stages: tuple[Stage, ...] = attrs.field(converter=tuple)
    seed: int = attrs.field(default=0, validator=checks.seed)
    exhaustion: Exhaustion = "repeat"
    stop: int | None = attrs.field(init=False, eq=False, repr=False)
    _offsets: Places = attrs.field(init=False, eq=False, repr=False)
    _plans: tuple[_Plan, ...] = attrs.field(init=False, eq=False, repr=False)
    _shuffled: ShuffledOrders | None = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        _check_parts(self.parts)
        _check_stages(self.stages)
        if self.exhaustion not in get_args(Exhaustion):
            raise OptionsError(f'exhaustion must be "repeat", "stop_first" or "stop_all", got {self.exhaustion!r}')
        orders = [part.order for part in self.parts]
        shuffled = [order for order in orders if isinstance(order, ShuffledOrder)]
        offsets = np.cumsum([0, *(order.records for order in orders)])
        object.__setattr__(self, "_offsets", offsets)
        object.__setattr__(self, "_shuffled", ShuffledOrders(shuffled) if len(shuffled) == len(orders) else None)
        object.__setattr__(self, "_plans", tuple(self._planned()))
        object.__setattr__(self, "stop", self._end())

    @property
    def records(self) -> int:
        """Records of all parts together."""
        return int(self._offsets[-1])

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the parts, sorted."""
        return tuple(part.label for part in self.parts)

    def at(self, places: Places) -> Places:
        """Records at `places`, each counted over all parts in the order of their labels."""
        which, items = self.look_up(places)
        return self._offsets[which] + self._in_parts(which, items)

    def places(self, record: int, start: int, stop: int) -> Places:
        """The places in `[start, stop)`, before the mixture's own end, at which `record` is read."""
        part, local = self.part_of(record)
        start, stop = max(start, 0), stop if self.stop is None else min(stop, self.stop)
        if stop <= start:
            return np.empty(0, np.int64)
        first, end = int(self.counts(start)[part]), int(self.counts(stop)[part])
        items = self.parts[part].order.places(local, first, end)
        stages = [
            plan.places_of(part, items[(items >= plan.before[part]) & (items < after)])
            for plan, after in self._with_ends(part)
            if plan.block.quotas[part]
        ]
        return np.concatenate(stages)

    def look_up(self, places: Places) -> tuple[Places, Places]:
        """Part (its number by label) at each of `places`, and which of the part's records, counted over its epochs."""
        places = np.asarray(places, np.int64)
        which, items = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        for start in range(0, len(places), _PIECE):
            piece = slice(start, start + _PIECE)
            for plan, chosen in self._plans_of(places[piece]):
                which[piece][chosen], items[piece][chosen] = plan.look_up(places[piece][chosen])
        return which, items

    def part_of(self, record: int) -> tuple[int, int]:
        """The part that a record of the mixture belongs to (its number by label), and its number there."""
        if not 0 <= record < self.records:
            raise OptionsError(f"record {record} does not exist: the mixture has records 0 to {self.records - 1}")
        part = int(np.searchsorted(self._offsets, record, "right")) - 1
        return part, int(record - self._offsets[part])

    def counts(self, place: int) -> Places:
        """How many records of each part, by label, stand before `place`, (parts,) int64."""
        return self._plan_at(place).counts(place)

    def report(self, place: int) -> dict[str, PartCount]:
        """Label -> what was read of it before `place`."""
        checks.check_count("place", place, 0)
        counts = zip(self.parts, self.counts(place).tolist(), strict=True)
        return {
            part.label: PartCount(records=count, epochs=count / part.order.records, share=count / max(place, 1))
            for part, count in counts
        }

    def place_of(self, label: str, item: int) -> int | None:
        """The place of the `item`-th record, counted over all epochs, that is read of `label`.

        None where no place up to 2^62 reads it.
        """
        part = self.labels.index(label)
        for plan, after in self._with_ends(part):
            if plan.block.quotas[part] and item < after:
                if plan.first_place_past(part, item) > MAX_RECORDS:
                    return None
                return int(plan.places_of(part, np.array([item], np.int64))[0])
        return None

    def used_up(self, label: str, epochs: int = 1) -> int | None:
        """The place from which all records of `label` have been read `epochs` times; None: never."""
        records = self.parts[self.labels.index(label)].order.records
        last = self.place_of(label, epochs * records - 1)
        return None if last is None else last + 1

    def shares(self, stage: int = 0) -> dict[str, tuple[Fraction, Fraction]]:
        """Label -> share asked for, and share in effect, in stage number `stage`."""
        plan = self._plans[stage]
        quotas = dict(zip(self.labels, plan.block.quotas.tolist(), strict=False))
        return {label: (share, Fraction(quotas[label], plan.block.size)) for label, share in plan.shares.items()}

    def identity(self) -> dict[str, Any]:
        """Everything: all parts and stages, and the number of records."""
        return {**self.identity_at(MAX_RECORDS), "records": self.records}

    def identity_at(self, place: int) -> dict[str, Any]:
        """What the records before `place` depend on: the stages that begin before it, and the parts that they read."""
        plans = [plan for plan in self._plans if plan.start < max(place, 1)]
        read = {label for plan in plans for label in plan.shares}
        facts = {
            f"parts.{part.label}.{name}": value
            for part in self.parts
            if part.label in read
            for name, value in _facts(part).items()
        }
        weights = {
            "weights" if plan.start == 0 else f"weights@{plan.start}": {k: str(v) for k, v in plan.shares.items()}
            for plan in plans
        }
        version = {"order": ORDER_VERSION, "mixture": MIXTURE_VERSION}
        return {"version": version, "kind": "mixture", "seed": self.seed, **facts, **weights}

    def _in_parts(self, which: Places, items: Places) -> Places:
        if self._shuffled is not None:
            return self._shuffled.at(which, items)
        found = np.empty(len(items), np.int64)
        present: list[int] = np.unique(which).tolist()
        for part in present:
            rows = np.flatnonzero(which == part)
            found[rows] = self.parts[part].order.at(items[rows])
        return found

    def _planned(self) -> Sequence[_Plan]:
        labels = self.labels
        blocks: dict[tuple[int, ...], Block] = {}
        plans: list[_Plan] = []
        for number, stage in enumerate(self.stages):
            shares = shares_of(stage.weights)
            if unknown := sorted(set(shares) - set(labels)):
                raise OptionsError(f"weights are given for {unknown}, which are no parts; the parts are {list(labels)}")
            of = quotas_of(shares)
            quotas = tuple(of.get(label, 0) for label in labels)
            block = blocks[quotas] = blocks.get(quotas) or block_of(quotas)
            before = plans[-1].counts(stage.start) if plans else np.zeros(len(labels), np.int64)
            keys = np.random.Philox(key=self.seed | _MIXTURE_DOMAIN << 64, counter=number << 64).random_raw(2)
            plans.append(_Plan(stage.start, shares, block, keys, before))
        if unread := sorted(set(labels).difference(*(plan.shares for plan in plans))):
            raise OptionsError(f"the parts {unread} have no weight in any stage; give them one, or leave them out")
        return plans

    def _plans_of(self, places: Places) -> Sequence[tuple[_Plan, Any]]:
        """The plans of ascending or scattered places, and where in `places` each plan's own are."""
        if len(self._plans) == 1:
            return [(self._plans[0], slice(None))]
        numbers = np.searchsorted([plan.start for plan in self._plans], places, "right") - 1
        present: list[int] = np.unique(numbers).tolist()
        return [(self._plans[number], np.flatnonzero(numbers == number)) for number in present]

    def _plan_at(self, place: int) -> _Plan:
        return self._plans[bisect.bisect_right(self._plans, place, key=lambda plan: plan.start) - 1]

    def _with_ends(self, part: int) -> Sequence[tuple[_Plan, int]]:
        """Each plan, and the first record of `part` that comes after it."""
        ends = [int(plan.before[part]) for plan in self._plans[1:]]
        return list(zip(self._plans, [*ends, MAX_RECORDS], strict=True))

    def _end(self) -> int | None:
        least = None if self.exhaustion == "repeat" else 1
        limits = {part.label: part.max_epochs or least for part in self.parts}
        ends = {label: self.used_up(label, epochs) for label, epochs in limits.items() if epochs is not None}
        if self.exhaustion == "stop_all":
            if never := [label for label, end in ends.items() if end is None]:
                raise OptionsError(
                    f'exhaustion="stop_all" would never end: {never} are not used up by any stage; '
                    'give them a share in the last stage, or use "stop_first"'
                )
            return max(end for end in ends.values() if end is not None)
        return min((end for end in ends.values() if end is not None), default=None)


def _by_label(parts: Sequence[MixturePart]) -> tuple[MixturePart, ...]:
    return tuple(sorted(parts, key=lambda part: part.label))


def _facts(part: MixturePart) -> dict[str, Any]:
    order = _BUILT_IN.get(type(part.order)) or part.order.identity()
    return {"records": part.order.records, "order": order, **part.facts}


def _check_parts(parts: Sequence[MixturePart]) -> None:
    if not 1 <= len(parts) <= MOST_PARTS:
        raise OptionsError(f"a mixture has 1 to {MOST_PARTS} parts, got {len(parts)}")
    for one, other in itertools.pairwise(parts):
        if one.label == other.label:
            raise OptionsError(f"two parts of the mixture are labelled {one.label!r}; give each a label of its own")
    for part in parts:
        if (batch := batch_of(part.order)) is not None:
            raise OptionsError(
                f"{part.label!r} cannot be a part of a mixture: its order reads whole steps of {batch} records, such "
                "as those of aspect buckets, and a mixture takes records one by one; leave the buckets out"
            )
    records = sum(part.order.records for part in parts)
    if records > MAX_RECORDS:
        raise OptionsError(f"a mixture holds at most 2^62 records, got {records}")


def _check_stages(stages: Sequence[Stage]) -> None:
    if not stages or stages[0].start != 0:
        raise OptionsError(f"the first stage of a mixture starts at record 0, got {[stage.start for stage in stages]}")
    for one, other in itertools.pairwise(stages):
        if other.start <= one.start:
            raise OptionsError(f"stages start one after the other, got {other.start} after {one.start}")
    if stages[-1].start > MAX_RECORDS:
        raise OptionsError(f"a stage starts at record 2^62 at most, got {stages[-1].start}")


def _distinct(windows: Places) -> tuple[Places, Places]:
    """The distinct windows, and of each given one its row among them; ascending ones, the usual case, unsorted."""
    new = windows[1:] != windows[:-1]
    if not (windows[1:] >= windows[:-1]).all():
        return np.unique(windows, return_inverse=True)
    rows = np.zeros(len(windows), np.int64)
    np.cumsum(new, out=rows[1:])
    return windows[np.r_[True, new]], rows
