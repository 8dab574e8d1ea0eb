"""The mixture's promises for any weights, sizes, stages and places."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import attrs
import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dew.data.errors import OptionsError
from dew.data.mixture import MixtureOrder, MixturePart, Stage, part_order
from dew.data.order import Places
from dew.data.quotas import STRAY, earliest_deadline_first, quotas_of, shares_of

LABELS = "abcdefgh"
LAST_PLACE = 1 << 61

weights = st.integers(1, 20) | st.integers(1, 99).map(lambda hundredths: hundredths / 100)
any_weights = weights | st.integers(1, 10**6) | st.floats(1e-3, 1e3) | st.fractions(Fraction(1, 50), 50)
seeds = st.integers(0, (1 << 64) - 1) | st.integers(0, 3)
places = st.integers(0, 3000) | st.integers(0, LAST_PLACE)


@st.composite
def weighted(draw: Callable[..., Any], labels: str, weight: st.SearchStrategy[Any] = weights) -> dict[str, Any]:
    chosen = draw(st.lists(st.sampled_from(labels), min_size=1, unique=True))
    return {label: draw(weight) for label in chosen}


@st.composite
def mixtures(
    draw: Callable[..., Any],
    most_stages: int = 4,
    largest: int = 1 << 40,
    weight: st.SearchStrategy[Any] = weights,
) -> MixtureOrder:
    labels = LABELS[: draw(st.integers(1, len(LABELS)))]
    starts = draw(st.lists(st.integers(1, 2000) | st.integers(1, LAST_PLACE), max_size=most_stages - 1, unique=True))
    stages = [Stage(start, draw(weighted(labels, weight))) for start in [0, *sorted(starts)]]
    read = sorted(set[str]().union(*(stage.weights for stage in stages)))
    seed = draw(seeds)
    sizes = st.integers(1, 40) | st.integers(1, largest)
    parts = [MixturePart(label=label, order=part_order(label, draw(sizes), seed=seed)) for label in read]
    return MixtureOrder(parts=tuple(draw(st.permutations(parts))), stages=tuple(stages), seed=seed)


def span(start: int, count: int) -> Places:
    return np.arange(start, start + count, dtype=np.int64)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_earliest_deadline_first_is_within_a_record_everywhere(quotas: list[int]) -> None:
    dealt, size = earliest_deadline_first(quotas).astype(np.int64), sum(quotas)
    for part, quota in enumerate(quotas):
        ahead = np.cumsum(dealt == part) * size - np.arange(1, size + 1) * quota
        assert np.abs(ahead).max() < size


@given(weighted(LABELS, any_weights))
def test_quotas_follow_the_shares(given_weights: Mapping[str, Any]) -> None:
    shares = shares_of(given_weights)
    assert sum(shares.values()) == 1
    try:
        quotas = quotas_of(shares)
    except OptionsError:
        assert min(shares.values()) < Fraction(1, 10_000), "only a rare part can be refused"
        return
    size = sum(quotas.values())
    for label, share in shares.items():
        assert abs(quotas[label] - share * size) < 1
        assert abs(quotas[label] / (share * size) - 1) <= Fraction(1, 100)


@settings(max_examples=40)
@given(mixtures(), places)
def test_a_part_has_read_exactly_its_first_records(order: MixtureOrder, start: int) -> None:
    which, items = order.look_up(span(start, 700))
    before = order.counts(start)
    for part in range(len(order.parts)):
        mine = items[which == part]
        np.testing.assert_array_equal(mine, before[part] + np.arange(len(mine)))
    np.testing.assert_array_equal(order.counts(start + 700), before + np.bincount(which, minlength=len(before)))
    assert order.counts(start).sum() == start


@given(mixtures(), st.integers(0, 20_000))
def test_no_prefix_of_a_stage_strays(order: MixtureOrder, length: int) -> None:
    check_strays(order, length)


@settings(max_examples=15)
@given(mixtures(1, weight=st.floats(0.1, 10)), st.integers(0, LAST_PLACE))
def test_no_prefix_of_rounded_shares_strays(order: MixtureOrder, length: int) -> None:
    check_strays(order, length)


def check_strays(order: MixtureOrder, length: int) -> None:
    starts = [stage.start for stage in order.stages]
    for number, start in enumerate(starts):
        stop = min(start + length, starts[number + 1] if number + 1 < len(starts) else LAST_PLACE)
        read = dict(zip(order.labels, (order.counts(stop) - order.counts(start)).tolist(), strict=True))
        shares = order.shares(number)
        for label, count in read.items():
            share = shares[label][1] if label in shares else Fraction(0)
            assert abs(count - (stop - start) * share) <= STRAY


@settings(max_examples=40)
@given(mixtures(), places, st.data())
def test_a_record_is_found_where_it_is_read(order: MixtureOrder, place: int, data: st.DataObject) -> None:
    record = int(order.at(np.array([place]))[0])
    assert 0 <= record < order.records
    part, local = order.part_of(record)
    which, items = order.look_up(np.array([place]))
    assert which[0] == part
    assert order.parts[part].order.at(items)[0] == local
    assert order.place_of(order.labels[part], int(items[0])) == place
    start = max(0, place - data.draw(st.integers(0, 300)))
    stop = place + data.draw(st.integers(1, 300))
    found = order.at(span(start, stop - start))
    np.testing.assert_array_equal(order.places(record, start, stop), start + np.flatnonzero(found == record))


@settings(max_examples=40)
@given(mixtures(), places, st.lists(st.integers(0, 999), min_size=1, max_size=50))
def test_places_are_looked_up_alone_or_together(order: MixtureOrder, start: int, offsets: list[int]) -> None:
    stretch = order.at(span(start, 1000))
    np.testing.assert_array_equal(order.at(start + np.array(offsets)), stretch[offsets])


@settings(max_examples=40)
@given(mixtures(most_stages=3), st.integers(1, 3000), st.data())
def test_a_stage_added_later_changes_nothing_before(order: MixtureOrder, start: int, data: st.DataObject) -> None:
    kept = tuple(stage for stage in order.stages if stage.start < start)
    labels = sorted(set[str]().union(*(stage.weights for stage in kept)))
    added = Stage(start, data.draw(weighted("".join(labels))))
    parts = tuple(part for part in order.parts if part.label in labels)
    before = attrs.evolve(order, parts=parts, stages=kept)
    after = attrs.evolve(before, stages=(*kept, added))
    np.testing.assert_array_equal(after.at(span(0, start)), before.at(span(0, start)))
    assert after.identity_at(start) == before.identity_at(start)
    np.testing.assert_array_equal(after.counts(start), before.counts(start))
    assert {after.labels[part] for part in after.look_up(span(start, 200))[0]} <= set(added.weights)


@settings(max_examples=40)
@given(mixtures(largest=300), st.integers(1, 4))
def test_ends_are_where_counting_finds_them(order: MixtureOrder, epochs: int) -> None:
    which, _ = order.look_up(span(0, 20_000))
    for number, part in enumerate(order.parts):
        mine = np.flatnonzero(which == number)
        wanted = epochs * part.order.records
        end = order.used_up(part.label, epochs)
        if len(mine) >= wanted:
            assert end == mine[wanted - 1] + 1
        else:
            assert end is None or end > 20_000
    ends = [end for end in (order.used_up(label) for label in order.labels) if end is not None]
    assume(ends)
    assert attrs.evolve(order, exhaustion="stop_first").stop == min(ends)
