"""The order: a bijection in every epoch, with an inverse and without memory; the same for ever (golden files)."""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dew.data.errors import OptionsError, OptionsTypeError
from dew.data.order import (
    DRAWS_VERSION,
    MAX_RECORDS,
    ORDER_VERSION,
    Order,
    Places,
    SequentialOrder,
    ShuffledOrder,
    draws_at,
)

GOLDEN = Path(__file__).parents[1] / "golden"
SIZES = (1, 2, 3, 5, 7, 100, 65_536, 65_537, 262_145, 1_000_003)
LARGEST_SEED = (1 << 64) - 1
BOUND = 4.0


def golden(name: str, made: dict[str, Any]) -> dict[str, Any]:
    """What the golden file holds; DEW_UPDATE_GOLDEN=1 writes a missing one and never changes one that is there."""
    path = GOLDEN / name
    if os.environ.get("DEW_UPDATE_GOLDEN") == "1" and not path.exists():
        text = json.dumps(made, indent=1)
        path.write_text(re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n")
    return json.loads(path.read_text())


def stretch(order: Order, start: int, count: int) -> Places:
    return order.at(np.arange(start, start + count, dtype=np.int64))


def epochs(order: Order, count: int, first: int = 0) -> Places:
    """Whole epochs, (count, records)."""
    return stretch(order, first * order.records, count * order.records).reshape(count, order.records)


# A bijection


@pytest.mark.parametrize("records", SIZES)
def test_each_epoch_holds_each_record_once(records: int) -> None:
    for seed, epoch in ((0, 0), (0, 1), (LARGEST_SEED, 7), (1, 1 << 40)):
        found = stretch(ShuffledOrder(records=records, seed=seed), epoch * records, records)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(np.bincount(found, minlength=records), np.ones(records, np.int64))


@pytest.mark.parametrize("records", SIZES[5:])
def test_epochs_and_seeds_differ(records: int) -> None:
    first = epochs(ShuffledOrder(records=records, seed=5), 2)
    other = epochs(ShuffledOrder(records=records, seed=6), 1)
    salted = epochs(ShuffledOrder(records=records, seed=5, salt=1), 1)
    for one, another in ((first[0], first[1]), (first[0], other[0]), (first[0], salted[0])):
        assert (one == another).sum() <= 8  # one on average
    assert (first[0] == np.arange(records)).sum() <= 8


@pytest.mark.parametrize("records", [10**9, 10**12, (1 << 40) + 1, MAX_RECORDS])
def test_large_orders_repeat_nothing_in_a_stretch(records: int) -> None:
    for start in (0, records // 2, records - 10_000):
        found = stretch(ShuffledOrder(records=records, seed=3), start, 10_000)
        assert len(np.unique(found)) == 10_000
        assert found.min() >= 0
        assert found.max() < records


def test_the_sequential_order_is_the_sources_own() -> None:
    order = SequentialOrder(records=3)
    assert order.at(np.arange(7)).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert order.at(np.array([(1 << 62) + 1])).tolist() == [((1 << 62) + 1) % 3]
    assert order.places(1, 0, 9).tolist() == [1, 4, 7]
    assert order.places(1, 2, 7).tolist() == [4]
    assert order.places(1, 7, 8).tolist() == [7]
    assert order.places(1, 5, 5).tolist() == []
    assert order.places(1, 9, 2).tolist() == []


def test_a_stretch_over_several_epochs_is_the_epochs_in_turn() -> None:
    order = ShuffledOrder(records=7, seed=2)
    np.testing.assert_array_equal(stretch(order, 3, 25), epochs(order, 4).ravel()[3:28])


def test_places_are_read_as_given_and_left_alone() -> None:
    order = ShuffledOrder(records=1000, seed=2)
    places = np.array([5, 999, 1000, 5, 0, 123_456])
    kept = places.copy()
    found = order.at(places)
    np.testing.assert_array_equal(places, kept)
    assert found[0] == found[3]
    assert found.tolist() == [int(order.at(np.array([place]))[0]) for place in places]
    assert order.at(np.empty(0, np.int64)).tolist() == []
    assert order.at(places.astype(np.int32)).tolist() == found.tolist()


# The inverse


@pytest.mark.parametrize("records", [1, 2, 5, 100, 65_537, 10**6, 10**12, (1 << 40) + 1, MAX_RECORDS])
@pytest.mark.parametrize("start", [0, 10**12 - 20, (1 << 62) - 20])
def test_places_of_a_record_are_where_it_is_read(records: int, start: int) -> None:
    for order in (ShuffledOrder(records=records, seed=11, salt=4), SequentialOrder(records=records)):
        places = np.arange(start, start + 40, dtype=np.int64)
        for place, record in zip(places.tolist(), order.at(places), strict=True):
            found = order.places(record, start, start + 40)
            assert place in found
            assert (order.at(found) == record).all()
            assert (np.diff(found) > 0).all()
            assert order.places(int(record), place, place + 1).tolist() == [place]


def test_a_record_has_one_place_an_epoch() -> None:
    order = ShuffledOrder(records=1000, seed=1)
    found = order.places(17, 0, 10_000 * 1000)
    np.testing.assert_array_equal(found // 1000, np.arange(10_000))
    assert (order.at(found) == 17).all()
    assert order.places(17, int(found[3]) + 1, int(found[5])).tolist() == [found[4]]
    assert order.places(17, 5, 5).tolist() == []
    assert order.places(17, -3, 0).tolist() == []


@pytest.mark.parametrize("order", [ShuffledOrder(records=10), SequentialOrder(records=10)])
def test_records_that_do_not_exist_have_no_places(order: Order) -> None:
    for record in (-1, 10):
        with pytest.raises(OptionsError, match=f"record {record} does not exist: the source has records 0 to 9"):
            order.places(record, 0, 100)
    with pytest.raises(OptionsTypeError, match=r"a record is an integer, got 1\.5 \(float\)"):
        order.places(1.5, 0, 100)  # type: ignore[arg-type]


# What is refused, and what is saved


@pytest.mark.parametrize("seed", [0, 1, 1 << 63, LARGEST_SEED])
def test_any_seed_below_2_to_64_is_an_order_of_its_own(seed: int) -> None:
    found = epochs(ShuffledOrder(records=100, seed=seed), 1)[0]
    assert sorted(found.tolist()) == list(range(100))
    near = epochs(ShuffledOrder(records=100, seed=seed ^ 1), 1)[0]
    far = epochs(ShuffledOrder(records=100, seed=seed ^ 1 << 63), 1)[0]
    assert (found == near).sum() <= 8
    assert (found == far).sum() <= 8


@pytest.mark.parametrize("name", ["seed", "salt"])
@pytest.mark.parametrize("value", [-1, 1 << 64, 1 << 100])
def test_seeds_out_of_range_are_refused(name: str, value: int) -> None:
    with pytest.raises(OptionsError, match=rf"{name} must be in \[0, 2\*\*64\), got {value}"):
        ShuffledOrder(records=10, **{name: value})


@pytest.mark.parametrize("name", ["seed", "salt"])
@pytest.mark.parametrize("value", [True, 1.0, "1", None, np.int64(1), np.uint64(1), np.float64(1)])
def test_seeds_that_are_no_python_int_are_refused(name: str, value: Any) -> None:
    expected = rf"{name} must be a Python int in \[0, 2\*\*64\), got .*\({type(value).__name__}\)"
    with pytest.raises(OptionsTypeError, match=expected):
        ShuffledOrder(records=10, **{name: value})


@pytest.mark.parametrize("kind", [ShuffledOrder, SequentialOrder])
def test_record_counts_that_cannot_be_are_refused(kind: Callable[..., Order]) -> None:
    with pytest.raises(OptionsError, match="records must be at least 1, got 0"):
        kind(records=0)
    with pytest.raises(OptionsError, match=rf"an order holds at most 2\^62 records, got {MAX_RECORDS + 1}"):
        kind(records=MAX_RECORDS + 1)
    for value in (True, 10.0, np.int64(10)):
        with pytest.raises(OptionsTypeError, match="records must be an int, got"):
            kind(records=value)


def test_identities_are_json_and_tell_orders_apart() -> None:
    orders = [
        ShuffledOrder(records=10),
        ShuffledOrder(records=11),
        ShuffledOrder(records=10, seed=LARGEST_SEED),
        ShuffledOrder(records=10, salt=1),
        SequentialOrder(records=10),
    ]
    identities = [order.identity() for order in orders]
    assert json.loads(json.dumps(identities)) == identities
    assert len({json.dumps(identity) for identity in identities}) == len(orders)
    assert identities[0] == {"version": ORDER_VERSION, "kind": "shuffled", "records": 10, "seed": 0, "salt": 0}
    assert identities[4] == {"version": ORDER_VERSION, "kind": "sequential", "records": 10}


# No aliasing


def test_seed_0_epoch_1_is_not_seed_1_epoch_0() -> None:
    records = 10_000
    found = {
        (seed, epoch): epochs(ShuffledOrder(records=records, seed=seed), 1, epoch)[0]
        for seed in range(6)
        for epoch in range(6)
    }
    keys = list(found)
    agreeing = [
        (found[one] == found[other]).sum() for at, one in enumerate(keys) for other in keys[:at]
    ]  # each Poisson with mean 1
    assert max(agreeing) <= 10
    assert 0.8 < np.mean(agreeing) < 1.2
    one, other = found[0, 1], found[1, 0]
    correlation = np.corrcoef(one, other)[0, 1]
    assert abs(correlation) < BOUND / np.sqrt(records)
    # nor is one the other moved along, or up: every shift agrees in about one place
    spectrum = np.fft.rfft(_indicator(one)) * np.conj(np.fft.rfft(_indicator(other)))
    assert np.fft.irfft(spectrum, records).max() < 12


def _indicator(order: Places) -> npt.NDArray[np.float64]:
    """1 at the places of a hundred of the records, so that a correlation counts agreements at every shift."""
    return (order < 100).astype(np.float64)


# Draws


def words(seed: int, place: int, salt: int = 0, count: int = 4) -> list[int]:
    return draws_at(seed, place, salt).bit_generator.random_raw(count).tolist()


def test_draws_belong_to_the_place() -> None:
    assert words(3, 10**12) == words(3, 10**12)
    seen = {tuple(words(*key)) for key in [(3, 7, 0), (4, 7, 0), (3, 8, 0), (3, 6, 0), (3, 7, 1), (7, 3, 0), (3, 0, 7)]}
    assert len(seen) == 7
    assert len({word for found in seen for word in found}) == 28


def test_neighbours_draw_nothing_in_common() -> None:
    """However much one record draws, it never comes to what another draws."""
    found = [set(words(1, place, count=2000)) for place in (0, 1, 2, 1 << 32, 1 << 62)]
    assert len(set.union(*found)) == sum(map(len, found)) == 5 * 2000


def test_draws_have_no_word_of_the_orders_keys() -> None:
    keys = {
        int(key) for seed in range(4) for epoch in range(64) for key in ShuffledOrder(records=5, seed=seed)._keys(epoch)
    }
    drawn = {word for seed in range(4) for place in range(64) for word in words(seed, place, count=64)}
    assert len(keys) == 4 * 64 * 16
    assert len(drawn) == 4 * 64 * 64
    assert not keys & drawn


def test_draws_leave_global_generators_alone() -> None:
    np.random.seed(5)
    expected = np.random.random(3).tolist()
    np.random.seed(5)
    draws_at(0, 0).random()
    ShuffledOrder(records=10).at(np.arange(10))
    assert np.random.random(3).tolist() == expected


# Golden files: version 1 for ever

CASES = [
    (records, seed, salt, start)
    for records in (1, 2, 3, 7, 100, 4095, 4096, 65_536, 65_537, 1_000_003, (1 << 40) + 1, 10**12, MAX_RECORDS)
    for seed, salt in ((0, 0), (1, 0), (LARGEST_SEED, 1))
    for start in sorted({0, max(0, records - 8), 10**12 - 8, 1 << 62})
]


def test_golden_order() -> None:
    made = {
        "order_version": ORDER_VERSION,
        "stretches": [
            {
                "records": records,
                "seed": seed,
                "salt": salt,
                "start": start,
                "found": stretch(ShuffledOrder(records=records, seed=seed, salt=salt), start, 16).tolist(),
            }
            for records, seed, salt, start in CASES
        ],
        "digests_of_20000": [
            {
                "records": records,
                "seed": 7,
                "start": start,
                "sha256": _sha256(stretch(ShuffledOrder(records=records, seed=7), start, 20_000)),
            }
            for records in (3, 100, 65_537, 10**6, 10**12)
            for start in (0, 10**12)
        ],
    }
    assert made == golden(f"order-v{ORDER_VERSION}.json", made)


def test_golden_draws() -> None:
    made = {
        "draws_version": DRAWS_VERSION,
        "raw_words": [
            {"seed": seed, "place": place, "salt": salt, "found": words(seed, place, salt, 6)}
            for seed in (0, 1, 1 << 63, LARGEST_SEED)
            for place in (0, 1, 10**12, 1 << 62)
            for salt in (0, 1)
        ],
    }
    assert made == golden(f"draws-v{DRAWS_VERSION}.json", made)


def in_plain_integers(records: int, seed: int, salt: int, place: int) -> int:
    """The record at `place`, as version 1 is written down: one place at a time, Python's integers, no arrays."""
    epoch, x = divmod(place, records)
    rounds = 8 if records >= 4096 else 16
    counter = epoch << 64 | salt << 128
    keys = np.random.Philox(key=seed | 0x6465775F6F726472 << 64, counter=counter).random_raw(rounds).tolist()
    a = next(side for side in (math.isqrt(records), math.isqrt(records) + 1) if side * side >= records)
    b = -(-records // a)
    while True:
        left, right = divmod(x, b)
        for number in range(0, rounds, 2):
            left = (left + hashed_below(right, keys[number], a)) % a
            right = (right + hashed_below(left, keys[number + 1], b)) % b
        x = left * b + right
        if x < records:
            return x


def hashed_below(x: int, key: int, bound: int) -> int:
    word = (1 << 64) - 1
    x = (x ^ key) * 0x9E3779B97F4A7C15 & word
    x ^= x >> 32
    x = x * 0xD6E8FEB86659FD93 & word
    x ^= x >> 32
    return (x >> 32) * bound >> 32


def test_the_order_is_what_version_1_says() -> None:
    for records, seed, salt, start in CASES:
        found = stretch(ShuffledOrder(records=records, seed=seed, salt=salt), start, 16).tolist()
        assert found == [in_plain_integers(records, seed, salt, start + place) for place in range(16)]


def _sha256(found: Places) -> str:
    return hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()
