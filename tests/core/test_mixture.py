"""The mixture's order: exact shares in every prefix, any place at once, both ways; the same for ever (golden file)."""

import decimal
import itertools
import json
import math
import os
import pickle
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dew.data.errors import OptionsError, OptionsTypeError
from dew.data.mixture import MIXTURE_VERSION, MixtureOrder, MixturePart, Stage, part_order, part_seed
from dew.data.order import Places, SequentialOrder, ShuffledOrder
from dew.data.quotas import STRAY, block_of, earliest_deadline_first, exact_weight, quotas_of, shares_of

GOLDEN = Path(__file__).parents[1] / "golden" / f"mixture-v{MIXTURE_VERSION}.json"
HUNDRED = {f"part-{number:02}": 1 + number**2 for number in range(100)}
RANDOM = {"a": 0.3151278429, "b": 0.2207139843, "c": 0.0071128643, "d": 0.4415902217, "e": 0.0154550868}
WEIGHTS: Mapping[str, Mapping[str, Any]] = {
    "one": {"a": 1},
    "equal": {"a": 1, "b": 1},
    "three to one": {"a": 3, "b": 1},
    "rare": {"a": 999, "b": 1},
    "random": RANDOM,
    "prime": {"a": 30_011, "b": 20_000, "c": 3},
    "hundred": HUNDRED,
}
MANY = pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)


def mixture(
    weights: Mapping[str, Any],
    records: Mapping[str, int] | None = None,
    stages: Sequence[tuple[int, Mapping[str, Any]]] = (),
    *,
    seed: int = 3,
    max_epochs: Mapping[str, int] | None = None,
    **options: Any,
) -> MixtureOrder:
    sizes = {label: 1000 + number for number, label in enumerate(weights)} if records is None else records
    limits = max_epochs or {}
    parts = [
        MixturePart(label=label, order=part_order(label, count, seed=seed), max_epochs=limits.get(label))
        for label, count in sizes.items()
    ]
    plan = [Stage(0, weights), *(Stage(start, later) for start, later in stages)]
    return MixtureOrder(parts=tuple(parts), stages=tuple(plan), seed=seed, **options)


def span(start: int, count: int) -> Places:
    return np.arange(start, start + count, dtype=np.int64)


def strays(order: MixtureOrder, which: Places, shares: Mapping[str, Fraction]) -> dict[str, float]:
    """Label -> how far any prefix of `which` is from the share."""
    places = np.arange(1, len(which) + 1)
    return {
        label: float(np.abs(np.cumsum(which == number) - places * float(shares.get(label, 0))).max())
        for number, label in enumerate(order.labels)
    }


# Weights


@pytest.mark.parametrize(
    ("weight", "exact"),
    [
        (3, Fraction(3)),
        (0.1, Fraction(1, 10)),
        (0.75, Fraction(3, 4)),
        (1e-3, Fraction(1, 1000)),
        (Fraction(2, 7), Fraction(2, 7)),
        (decimal.Decimal("0.30"), Fraction(3, 10)),
        (np.float64(0.3), Fraction(3, 10)),
        (np.float32(0.1), Fraction(1, 10)),
        (np.int64(4), Fraction(4)),
    ],
)
def test_a_weight_is_what_its_decimal_form_says(weight: Any, exact: Fraction) -> None:
    assert exact_weight("a", weight) == exact


@pytest.mark.parametrize("weight", [0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf, np.float64("nan")])
def test_weights_that_are_no_share_are_refused(weight: Any) -> None:
    with pytest.raises(OptionsError, match=rf"the weight of 'web' must be .*above 0, got {re.escape(str(weight))}"):
        mixture({"web": weight, "code": 1})


@pytest.mark.parametrize("weight", [True, False, np.True_, "0.5", None, [1], 1j])
def test_weights_that_are_no_number_are_refused(weight: Any) -> None:
    message = f"the weight of 'web' must be a number above 0, got {weight!r} ({type(weight).__name__})"
    with pytest.raises(OptionsTypeError, match=re.escape(message)):
        mixture({"web": weight, "code": 1})


def test_a_mixture_of_nothing_is_refused() -> None:
    with pytest.raises(OptionsError, match="at least one part with a weight, got none"):
        shares_of({})
    with pytest.raises(OptionsError, match="a mixture has 1 to 65534 parts, got 0"):
        MixtureOrder(parts=(), stages=(Stage(0, {"a": 1}),))


def test_weights_are_relative_and_exact() -> None:
    expected = {"a": Fraction(3, 4), "b": Fraction(1, 4)}
    for three, one in ((3, 1), (0.75, 0.25), (0.3, 0.1), (3e-7, 1e-7), (Fraction(3, 7), Fraction(1, 7))):
        assert shares_of({"a": three, "b": one}) == expected
        order = mixture({"a": three, "b": one})
        assert order.identity() == mixture({"a": 3, "b": 1}).identity()
        np.testing.assert_array_equal(order.at(span(0, 500)), mixture({"a": 3, "b": 1}).at(span(0, 500)))


# Quotas


@MANY
def test_quotas_are_the_largest_remainder_or_exact(weights: Mapping[str, Any]) -> None:
    shares = shares_of(weights)
    quotas = quotas_of(shares)
    size = sum(quotas.values())
    for label, share in shares.items():
        assert abs(quotas[label] - share * size) < 1
        assert abs(quotas[label] / (share * size) - 1) <= Fraction(1, 100)
    if math.lcm(*(share.denominator for share in shares.values())) <= 1 << 20:
        assert all(quotas[label] == share * size for label, share in shares.items())
    else:
        assert size == 1 << 16


def test_a_block_is_doubled_for_a_rare_part() -> None:
    sizes: set[int] = set()
    for records in (100_000, 2266, 1133, 555, 266):
        share = Fraction(records, 3_000_017)  # a denominator beyond any block
        quotas = quotas_of({"common": 1 - share, "rare": share})
        near = [size for size in (1 << bits for bits in range(16, 21)) if off_by_a_percent(share, size) <= 1]
        assert sum(quotas.values()) == near[0]
        assert quotas["rare"] == round(share * near[0])
        sizes.add(near[0])
    assert sizes == {1 << bits for bits in range(16, 21)}


def off_by_a_percent(share: Fraction, size: int) -> Fraction:
    return 100 * abs(round(share * size) / (share * size) - 1)


def test_a_share_too_small_for_any_block_is_refused() -> None:
    with pytest.raises(OptionsError, match="'rare' asks for a share of 1e-09, one record in 1000000001; in a block of"):
        mixture({"common": 1, "rare": 1e-9})
    exact = mixture({"common": (1 << 20) - 1, "rare": 1})
    assert exact.place_of("rare", 10**6) // (1 << 20) == 10**6  # type: ignore[operator]


@MANY
def test_earliest_deadline_first_leaves_no_prefix_a_record_away(weights: Mapping[str, Any]) -> None:
    quotas = list(quotas_of(shares_of(weights)).values())
    dealt = earliest_deadline_first(quotas).astype(np.int64)
    np.testing.assert_array_equal(np.bincount(dealt), quotas)
    places = np.arange(1, len(dealt) + 1)
    for part, quota in enumerate(quotas):
        scaled = np.cumsum(dealt == part) * len(dealt) - places * quota
        assert np.abs(scaled).max() < len(dealt)


def test_ties_go_to_the_first_label() -> None:
    assert earliest_deadline_first([1, 1, 1]).tolist() == [0, 1, 2]
    assert earliest_deadline_first([2, 0, 2]).tolist() == [0, 2, 0, 2]


# Shares in every prefix


@MANY
def test_no_prefix_strays_by_more_than_five_records(weights: Mapping[str, Any]) -> None:
    order = mixture(weights)
    which, _ = order.look_up(span(0, 1_000_000))
    effective = {label: share for label, (_, share) in order.shares().items()}
    assert max(strays(order, which, effective).values()) <= STRAY + 1e-6


@MANY
def test_far_prefixes_do_not_stray_either(weights: Mapping[str, Any]) -> None:
    order = mixture(weights)
    shares = [share for _, share in order.shares().values()]
    far = np.random.default_rng(1).integers(0, 10**12, 200).tolist()
    for place in [10**12, 10**12 + 1, *far]:
        counts = order.counts(place).tolist()
        assert sum(counts) == place
        assert all(abs(count - place * share) <= STRAY for count, share in zip(counts, shares, strict=True))


@MANY
def test_whole_windows_are_exact_to_a_record(weights: Mapping[str, Any]) -> None:
    order = mixture(weights)
    size = block_of(list(quotas_of(shares_of(weights)).values())).size
    for place in range(0, min(size, 100_000), 64 * 13):
        for count, (_, share) in zip(order.counts(place).tolist(), order.shares().values(), strict=True):
            assert abs(count - place * share) < 1


def test_equal_parts_do_not_line_up_with_processes() -> None:
    which, _ = mixture({"a": 1, "b": 1}).look_up(span(0, 64_000))
    for processes in (2, 4, 8, 64):
        for index in range(processes):
            share = (which[index::processes] == 0).mean()
            assert abs(share - 0.5) < 4 * 0.5 / math.sqrt(64_000 / processes), (processes, index)


def test_the_shuffle_of_windows_depends_on_seed_and_window() -> None:
    one, other = (mixture({"a": 1, "b": 1}, seed=seed).look_up(span(0, 6400))[0].reshape(-1, 64) for seed in (1, 2))
    assert len({row.tobytes() for row in one}) == 100
    assert not (one == other).all(axis=1).any()


# Look-up


@MANY
def test_each_parts_records_come_in_order_and_none_is_left_out(weights: Mapping[str, Any]) -> None:
    order = mixture(weights)
    which, items = order.look_up(span(0, 200_000))
    for part in range(len(order.labels)):
        np.testing.assert_array_equal(items[which == part], np.arange((which == part).sum()))


@pytest.mark.parametrize("start", [0, 63, 12_345, 10**12 - 5, (1 << 61) + 7])
def test_any_place_is_found_at_once(start: int) -> None:
    """Places one by one, backwards and in a heap are those of one stretch."""
    order = mixture(HUNDRED, stages=[(12_400, {"part-03": 1, "part-04": 2}), (10**12, RANDOM_OF_HUNDRED)])
    stretch = order.at(span(start, 300))
    np.testing.assert_array_equal(order.at(span(start, 300)[::-1]), stretch[::-1])
    np.testing.assert_array_equal(np.concatenate([order.at(span(start + n, 1)) for n in range(300)]), stretch)
    heap = np.random.default_rng(0).permutation(300)
    far = np.concatenate([span(start, 300)[heap], span(0, 10), span(10**9, 10)])
    np.testing.assert_array_equal(order.at(far)[:300], stretch[heap])


RANDOM_OF_HUNDRED = {f"part-{number:02}": 1 + number % 7 for number in range(0, 100, 3)}


def test_a_step_over_many_pieces_is_one_look_up() -> None:
    order = mixture(RANDOM, stages=[(4000, {"a": 1, "e": 1})])
    whole = order.at(span(0, 20_000))
    np.testing.assert_array_equal(np.concatenate([order.at(span(at, 500)) for at in range(0, 20_000, 500)]), whole)


def test_parts_of_other_orders_are_mixed_too() -> None:
    parts = (
        MixturePart(label="a", order=SequentialOrder(records=7)),
        MixturePart(label="b", order=ShuffledOrder(records=5, seed=1)),
    )
    order = MixtureOrder(parts=parts, stages=(Stage(0, {"a": 1, "b": 2}),))
    found = order.at(span(0, 192))
    assert found[found < 7].tolist() == [number % 7 for number in range(64)]
    np.testing.assert_array_equal(found[found >= 7] - 7, ShuffledOrder(records=5, seed=1).at(span(0, 128)))
    assert order.identity()["parts.a.order"] == "sequential"
    assert order.places(3, 0, 192).tolist() == np.flatnonzero(found == 3).tolist()


def test_each_part_has_a_permutation_for_each_epoch() -> None:
    order = mixture({"a": 1, "b": 1, "c": 2}, {"a": 50, "b": 50, "c": 80})
    found = order.at(span(0, 6400))
    a, b, c = (found[(found >= low) & (found < high)] - low for low, high in ((0, 50), (50, 100), (100, 180)))
    for records, epochs in ((50, a.reshape(-1, 50)), (50, b.reshape(-1, 50)), (80, c.reshape(-1, 80))):
        assert (np.sort(epochs, axis=1) == np.arange(records)).all()
        assert len({row.tobytes() for row in epochs}) == len(epochs)
    assert not (a.reshape(-1, 50) == b.reshape(-1, 50)).all(axis=1).any(), "equal parts share no permutation"


def test_the_order_of_the_parts_does_not_matter_and_their_labels_do() -> None:
    sizes = {"b": 30, "a": 1000, "c": 77}
    weights = {"a": 5, "b": 3, "c": 2}
    order = mixture(weights, sizes)
    for labels in itertools.permutations(sizes):
        other = mixture(weights, {label: sizes[label] for label in labels})
        assert other == order
        assert other.identity() == order.identity()
        np.testing.assert_array_equal(other.at(span(0, 1000)), order.at(span(0, 1000)))
    renamed = mixture({"a": 5, "b": 3, "d": 2}, {"b": 30, "a": 1000, "d": 77})
    assert renamed.identity() != order.identity()
    np.testing.assert_array_equal(renamed.look_up(span(0, 1000))[0], order.look_up(span(0, 1000))[0])
    assert not (renamed.at(span(0, 1000)) == order.at(span(0, 1000))).all()


def test_an_order_pickles_small_and_whole() -> None:
    order = mixture(HUNDRED, stages=[(500, RANDOM_OF_HUNDRED)])
    data = pickle.dumps(order)
    np.testing.assert_array_equal(pickle.loads(data).at(span(0, 1000)), order.at(span(0, 1000)))


# The inverse


@pytest.mark.parametrize("stages", [(), [(777, {"a": 1, "c": 2}), (5000, {"b": 1}), (5001, {"a": 2, "b": 2, "c": 3})]])
def test_a_record_is_found_where_it_is_read(stages: Any) -> None:
    order = mixture({"a": 0.7, "b": 0.3} if stages else {"a": 7, "b": 3, "c": 1}, {"a": 100, "b": 30, "c": 7}, stages)
    found = order.at(span(0, 20_000))
    assert order.records == 137
    for record in (0, 57, 99, 100, 129, 130, 136):
        for start, stop in ((0, 20_000), (101, 6007), (776, 5002), (5, 5), (9, 3), (-5, 100)):
            expected = np.flatnonzero(found[max(start, 0) : max(stop, 0)] == record) + max(start, 0)
            np.testing.assert_array_equal(order.places(record, start, stop), expected)
    with pytest.raises(OptionsError, match="record 137 does not exist: the mixture has records 0 to 136"):
        order.places(137, 0, 10)


def test_the_place_of_a_parts_record() -> None:
    order = mixture({"a": 0.7, "b": 0.3}, {"a": 100, "b": 30, "c": 7}, [(777, {"a": 1, "c": 2}), (5000, {"b": 1})])
    which, items = order.look_up(span(0, 7000))
    for place in range(0, 7000, 13):
        assert order.place_of(order.labels[which[place]], int(items[place])) == place
    a_before_the_last_stage = int(order.counts(5000)[0])
    assert order.place_of("a", a_before_the_last_stage - 1) is not None
    assert order.place_of("a", a_before_the_last_stage) is None, "no later stage reads it"
    assert mixture({"a": 1, "b": 1}).place_of("a", 1 << 62) is None


# Ends


def brute_end(order: MixtureOrder, limits: Mapping[str, int]) -> dict[str, int]:
    """Label -> places until its records were read that many times, by counting."""
    which, _ = order.look_up(span(0, 50_000))
    return {
        label: int(np.flatnonzero(which == order.labels.index(label))[limit - 1]) + 1 for label, limit in limits.items()
    }


def test_where_parts_are_used_up_is_exact() -> None:
    sizes = {"a": 1000, "b": 30, "c": 211}
    weights = {"a": 0.6, "b": 0.3, "c": 0.1}
    endless = mixture(weights, sizes)
    once = brute_end(endless, sizes)
    assert endless.stop is None
    assert {label: endless.used_up(label) for label in sizes} == once
    assert endless.used_up("b", 17) == brute_end(endless, {"b": 17 * 30})["b"]
    assert mixture(weights, sizes, exhaustion="stop_first").stop == min(once.values())
    assert mixture(weights, sizes, exhaustion="stop_all").stop == max(once.values())
    limited = mixture(weights, sizes, max_epochs={"b": 4, "c": 9})
    assert limited.stop == brute_end(endless, {"b": 120})["b"]
    both = mixture(weights, sizes, max_epochs={"c": 2}, exhaustion="stop_all")
    assert both.stop == brute_end(endless, {"c": 422})["c"]
    assert limited.report(limited.stop)["b"].epochs == 4  # type: ignore[arg-type]
    assert limited.report(limited.stop - 1)["b"].records == 119  # type: ignore[operator]


def test_ends_over_stages() -> None:
    sizes = {"a": 400, "b": 300, "c": 50}
    stages = [(100, {"b": 1, "c": 1}), (350, {"a": 1, "b": 2})]
    endless = mixture({"a": 1}, sizes, stages)
    assert endless.used_up("a") == brute_end(endless, {"a": 400})["a"]
    assert endless.used_up("c", 2) == brute_end(endless, {"c": 100})["c"]
    assert mixture({"a": 1}, sizes, stages, exhaustion="stop_first").stop == endless.used_up("c")
    never = [(100, {"b": 1, "c": 1}), (150, {"a": 1, "b": 2})]
    assert mixture({"a": 1}, sizes, never, exhaustion="stop_first").stop == mixture({"a": 1}, sizes, never).used_up("b")
    with pytest.raises(OptionsError, match=r"stop_all\" would never end: \['c'\] are not used up by any stage"):
        mixture({"a": 1}, sizes, never, exhaustion="stop_all")


def test_ends_far_away_cost_nothing() -> None:
    order = mixture({"a": 3, "b": 1}, {"a": 10**12, "b": 10**15}, exhaustion="stop_all")
    assert order.stop is not None
    assert abs(order.stop - 4 * 10**15) <= 4 * STRAY
    assert mixture({"a": 1, "b": 1}, {"a": 1 << 61, "b": 1 << 60}, exhaustion="stop_first").stop is not None
    assert mixture({"a": 1, "b": 99}, {"a": 1 << 60, "b": 9}, max_epochs={"a": 3}).stop is None, "beyond any place"


def test_an_end_that_is_unknown_is_refused() -> None:
    with pytest.raises(OptionsError, match='must be "repeat", "stop_first" or "stop_all", got \'first\''):
        mixture({"a": 1}, exhaustion="first")
    with pytest.raises(OptionsError, match="max_epochs must be at least 1, got 0"):
        MixturePart(label="a", order=SequentialOrder(records=3), max_epochs=0)


def test_a_record_is_not_read_past_the_end() -> None:
    order = mixture({"a": 1, "b": 1}, {"a": 10, "b": 1000}, exhaustion="stop_first")
    assert order.stop is not None
    assert len(order.places(3, 0, 10**6)) == 1
    assert order.places(3, order.stop, 10**6).size == 0


# Stages


def test_a_part_goes_on_where_the_stages_before_left_it() -> None:
    stages = [(777, {"a": 1, "c": 2}), (778, {"b": 1}), (5000, {"a": 1, "b": 1, "c": 1})]
    order = mixture({"a": 0.7, "b": 0.3}, {"a": 100, "b": 30, "c": 7}, stages)
    which, items = order.look_up(span(0, 20_000))
    for part in range(3):
        np.testing.assert_array_equal(items[which == part], np.arange((which == part).sum()))
    borders = [0, 777, 778, 5000, 20_000]
    for number, (start, stop) in enumerate(itertools.pairwise(borders)):
        effective = {label: share for label, (_, share) in order.shares(number).items()}
        assert max(strays(order, which[start:stop], effective).values()) <= STRAY + 1e-6
    for place in (0, 1, 776, 777, 778, 779, 4999, 5000, 5001, 19_999):
        np.testing.assert_array_equal(order.counts(place), np.bincount(which[:place], minlength=3))


def test_a_stage_changes_nothing_before_it() -> None:
    """Wherever it begins, in the middle of a window too: what is planned later is not seen earlier."""
    plain = mixture({"a": 1, "b": 2}).at(span(0, 300))
    for start in (1, 63, 64, 65, 100, 255):
        staged = mixture({"a": 1, "b": 2}, stages=[(start, {"b": 1})])
        np.testing.assert_array_equal(staged.at(span(0, start)), plain[:start])
        assert set(staged.look_up(span(start, 500))[0]) == {1}


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "the first stage of a mixture starts at record 0, got []"),
        ([Stage(5, {"a": 1, "b": 1})], "the first stage of a mixture starts at record 0, got [5]"),
        ([Stage(0, {"a": 1, "b": 1}), Stage(9, {"a": 1}), Stage(9, {"b": 1})], "got 9 after 9"),
        ([Stage(0, {"a": 1, "b": 1}), Stage(9, {"a": 1}), Stage(4, {"b": 1})], "got 4 after 9"),
        ([Stage(0, {"a": 1})], "the parts ['b'] have no weight in any stage"),
        ([Stage(0, {"a": 1, "b": 1}), Stage(9, {"c": 1})], "weights are given for ['c'], which are no parts"),
        ([Stage(0, {"a": 1, "b": 1}), Stage(9, {})], "at least one part with a weight, got none"),
        ([Stage(0, {"a": 1, "b": 1}), Stage((1 << 62) + 1, {"a": 1})], "starts at record 2^62 at most"),
    ],
)
def test_stages_that_cannot_be_are_refused(stages: Sequence[Stage], message: str) -> None:
    parts = tuple(MixturePart(label=label, order=SequentialOrder(records=5)) for label in "ab")
    with pytest.raises(OptionsError, match=re.escape(message)):
        MixtureOrder(parts=parts, stages=tuple(stages))


def test_labels_that_cannot_be_are_refused() -> None:
    same = tuple(MixturePart(label="web", order=SequentialOrder(records=5)) for _ in range(2))
    with pytest.raises(OptionsError, match="two parts of the mixture are labelled 'web'"):
        MixtureOrder(parts=same, stages=(Stage(0, {"web": 1}),))
    with pytest.raises(OptionsError, match="must not be empty"):
        MixturePart(label="", order=SequentialOrder(records=5))
    with pytest.raises(OptionsTypeError, match=r"must be a str, got 3 \(int\)"):
        MixturePart(label=3, order=SequentialOrder(records=5))  # type: ignore[arg-type]
    large = tuple(MixturePart(label=label, order=SequentialOrder(records=1 << 61)) for label in "abc")
    with pytest.raises(OptionsError, match="a mixture holds at most 2"):
        MixtureOrder(parts=large, stages=(Stage(0, {"a": 1, "b": 1, "c": 1}),))


# What a position holds, and reports


def test_the_identity_names_every_part_and_weight() -> None:
    part = MixturePart(label="web", order=part_order("web", 10, seed=3), facts={"source": "Web()", "fingerprint": "f"})
    order = MixtureOrder(parts=(part,), stages=(Stage(0, {"web": 4}),), seed=3)
    assert order.identity() == {
        "version": {"order": 1, "mixture": 1},
        "kind": "mixture",
        "seed": 3,
        "parts.web.records": 10,
        "parts.web.order": "shuffled",
        "parts.web.source": "Web()",
        "parts.web.fingerprint": "f",
        "weights": {"web": "1"},
        "records": 10,
    }
    assert json.loads(json.dumps(order.identity())) == order.identity()


def test_the_identity_at_a_place_holds_what_was_read() -> None:
    stages = [(100, {"b": 1, "c": 1}), (350, {"d": 1})]
    order = mixture({"a": 1, "b": 1}, dict.fromkeys("abcd", 9), stages)

    def parts(place: int) -> str:
        return "".join(sorted({key.split(".")[1] for key in order.identity_at(place) if key.startswith("parts.")}))

    def weights(place: int) -> list[str]:
        return [key for key in order.identity_at(place) if key.startswith("weights")]

    assert [parts(place) for place in (0, 1, 100, 101, 350, 351)] == ["ab", "ab", "ab", "abc", "abc", "abcd"]
    assert weights(100) == ["weights"]
    assert weights(101) == ["weights", "weights@100"]
    assert weights(351) == ["weights", "weights@100", "weights@350"]


def test_a_report_counts_records_epochs_and_shares() -> None:
    order = mixture({"a": 0.7, "b": 0.3}, {"a": 1000, "b": 30})
    report = order.report(1000)
    assert (report["a"].records, report["b"].records) == (700, 300)
    assert (report["a"].epochs, report["b"].epochs) == (0.7, 10.0)
    assert (report["a"].share, report["b"].share) == (0.7, 0.3)
    start = order.report(0)
    assert (start["a"].records, start["a"].epochs, start["a"].share) == (0, 0.0, 0.0)
    with pytest.raises(OptionsError, match="place must be at least 0, got -1"):
        order.report(-1)
    far = order.report(10**12)
    assert far["a"].records + far["b"].records == 10**12


def test_shares_asked_and_in_effect() -> None:
    assert mixture({"a": 0.7, "b": 0.3}).shares()["a"] == (Fraction(7, 10), Fraction(7, 10))
    asked, effective = mixture({"a": 1 / 3, "b": 2 / 3}).shares()["a"]
    assert asked == Fraction("0.3333333333333333") / (Fraction("0.3333333333333333") + Fraction("0.6666666666666666"))
    assert asked == Fraction(1, 3)
    asked, effective = mixture({"a": math.pi, "b": math.e}).shares()["a"]
    assert effective.denominator <= 1 << 16
    assert abs(effective / asked - 1) < 1e-4


# Public cases


def test_a_mixture_does_not_end_when_the_small_source_does() -> None:
    order = mixture({"small": 0.5, "large": 0.5}, {"small": 3, "large": 1000})
    found = order.at(span(0, 2000))
    large, small = found[found < 1000], found[found >= 1000]
    assert abs(len(large) - 1000) <= STRAY
    assert len(set(large[:1000].tolist())) == min(len(large), 1000), "no repeat in its first 1000"
    assert np.abs(np.bincount(small - 1000) - 333).max() <= 3


def test_more_records_than_a_source_has() -> None:
    order = mixture({"ten": 1, "twenty": 1}, {"ten": 10, "twenty": 20})
    found = order.at(span(0, 80))
    counts: npt.NDArray[np.int64] = np.bincount(found, minlength=30)
    assert np.ptp(counts[:10]) <= 1
    assert np.ptp(counts[10:]) <= 1
    assert abs(counts[:10].sum() - 40) <= STRAY


# Golden


def golden(made: dict[str, Any]) -> dict[str, Any]:
    """What the golden file holds; DEW_UPDATE_GOLDEN=1 writes a missing one and never changes one that is there."""
    if os.environ.get("DEW_UPDATE_GOLDEN") == "1" and not GOLDEN.exists():
        text = json.dumps(made, indent=1)
        GOLDEN.write_text(re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n")
    return json.loads(GOLDEN.read_text())


CASES: Sequence[tuple[Mapping[str, Any], Mapping[str, int], Sequence[tuple[int, Mapping[str, Any]]]]] = [
    ({"a": 1}, {"a": 5}, []),
    ({"a": 1, "b": 1}, {"a": 3, "b": 1000}, []),
    ({"a": 0.7, "b": 0.3}, {"a": 10**12, "b": 65_537}, []),
    ({"a": 0.1, "b": 0.2, "c": 0.3}, {"a": 40, "b": 5000, "c": 7}, [(50, {"b": 1}), (1000, {"a": 2, "c": 1})]),
    (HUNDRED, {label: 10 + number for number, label in enumerate(HUNDRED)}, []),
    ({"a": 3.14159265, "b": 2.71828182, "c": 0.00577215}, {"a": 10**9, "b": 10**9, "c": 3}, []),
    ({"a": 30_011, "b": 20_000}, {"a": 4096, "b": 4095}, []),
]


def test_golden_mixture() -> None:
    made = {
        "mixture_version": MIXTURE_VERSION,
        "part_seeds": [part_seed(label, seed) for label in ("a", "web", "a" * 40) for seed in (0, 1, (1 << 64) - 1)],
        "stretches": [
            {
                "weights": dict(weights),
                "records": dict(records),
                "stages": [[start, dict(later)] for start, later in stages],
                "seed": seed,
                "start": start,
                "found": mixture(weights, records, stages, seed=seed).at(span(start, 40)).tolist(),
            }
            for weights, records, stages in CASES
            for seed, start in ((0, 0), ((1 << 64) - 1, 49_990), (7, 10**12))
        ],
    }
    assert made == golden(made)
