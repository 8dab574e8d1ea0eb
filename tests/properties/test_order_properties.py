"""The order's promises for any number of records, any seed and any place."""

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dew.data.order import MAX_RECORDS, Order, Places, SequentialOrder, ShuffledOrder, ShuffledOrders, draws_at

LAST_PLACE = 1 << 62

seeds = st.integers(0, (1 << 64) - 1) | st.integers(0, 3)
records_up_to_2_20 = st.integers(1, 40) | st.integers(1, 5000) | st.integers(1 << 15, 1 << 20)
any_records = st.integers(1, 40) | st.integers(1, 1 << 20) | st.integers(1, MAX_RECORDS)
places = st.integers(0, 1000) | st.integers(0, LAST_PLACE)


@st.composite
def orders(draw: Callable[..., int]) -> Order:
    records = draw(any_records)
    if draw(st.booleans()):
        return SequentialOrder(records=records)
    return ShuffledOrder(records=records, seed=draw(seeds), salt=draw(st.just(0) | seeds))


def stretch(order: Order, start: int, count: int) -> Places:
    return order.at(np.arange(start, start + count, dtype=np.int64))


@given(records_up_to_2_20, seeds, seeds, st.integers(0, 1 << 40))
def test_each_epoch_is_a_bijection(records: int, seed: int, salt: int, epoch: int) -> None:
    found = stretch(ShuffledOrder(records=records, seed=seed, salt=salt), epoch * records, records)
    assert (np.bincount(found, minlength=records) == 1).all()


@given(orders(), places)
def test_a_record_is_found_where_it_is_read(order: Order, place: int) -> None:
    record = int(order.at(np.array([place]))[0])
    assert 0 <= record < order.records
    assert order.places(record, place, place + 1).tolist() == [place]
    assert order.places(record, place + 1, place + 1).tolist() == []


@given(st.integers(1, 60), seeds, st.booleans(), places, st.integers(0, 500), st.data())
def test_places_are_all_and_only_those_of_the_record(
    records: int, seed: int, shuffled: bool, start: int, length: int, data: st.DataObject
) -> None:
    order = ShuffledOrder(records=records, seed=seed) if shuffled else SequentialOrder(records=records)
    record = data.draw(st.integers(0, records - 1))
    found = order.places(record, start, start + length)
    assert found.dtype == np.int64
    expected = np.flatnonzero(stretch(order, start, length) == record) + start
    assert found.tolist() == expected.tolist()


@given(st.integers(1, MAX_RECORDS), seeds, st.integers(0, 7), st.integers(1, 5), st.data())
def test_a_record_is_read_once_in_each_epoch(
    records: int, seed: int, first: int, count: int, data: st.DataObject
) -> None:
    """Epochs to come too, as long as their places are int64."""
    first = min(first, LAST_PLACE // records)
    count = min(count, (LAST_PLACE + records) // records - first)
    order = ShuffledOrder(records=records, seed=seed)
    record = data.draw(st.integers(0, records - 1))
    found = order.places(record, first * records, (first + count) * records)
    assert (found // records).tolist() == list(range(first, first + count))
    assert (order.at(found) == record).all()


@given(orders(), places, st.lists(st.integers(0, 10_000), max_size=50))
def test_a_place_holds_its_record_whatever_it_is_asked_with(order: Order, start: int, offsets: list[int]) -> None:
    asked = np.array([start + offset for offset in offsets], np.int64)
    alone = [int(order.at(asked[number : number + 1])[0]) for number in range(len(asked))]
    assert order.at(asked).tolist() == alone
    assert order.at(asked[::-1]).tolist() == alone[::-1]


@given(records_up_to_2_20, seeds, places, st.integers(1, 9000), st.integers(1, 9000))
def test_a_stretch_is_its_pieces(records: int, seed: int, start: int, first: int, second: int) -> None:
    order = ShuffledOrder(records=records, seed=seed)
    whole = stretch(order, start, first + second)
    pieces = np.concatenate([stretch(order, start, first), stretch(order, start + first, second)])
    np.testing.assert_array_equal(whole, pieces)


@given(seeds, places, st.integers(0, 3), st.integers(1, 20))
def test_draws_are_a_function_of_seed_place_and_salt(seed: int, place: int, salt: int, count: int) -> None:
    def drawn(seed: int, place: int, salt: int) -> list[int]:
        return draws_at(seed, place, salt).bit_generator.random_raw(count).tolist()

    one = drawn(seed, place, salt)
    assert drawn(seed, place, salt) == one
    for other in (drawn(seed, place + 1, salt), drawn(seed ^ 1, place, salt), drawn(seed, place, salt + 1)):
        assert not set(one) & set(other)


@given(st.lists(st.tuples(any_records, seeds, seeds), min_size=1, max_size=6), st.data())
def test_orders_looked_up_together_are_each_its_own(made: list[tuple[int, int, int]], data: st.DataObject) -> None:
    together = [ShuffledOrder(records=records, seed=seed, salt=salt) for records, seed, salt in made]
    asked = data.draw(st.lists(st.tuples(st.integers(0, len(made) - 1), places), max_size=40))
    which, at = (np.array([pair[side] for pair in asked], np.int64) for side in (0, 1))
    expected = [int(together[number].at(np.array([place]))[0]) for number, place in asked]
    assert ShuffledOrders(together).at(which, at).tolist() == expected
