"""Windows of the block order, and how a reader finds where in it it stands."""

import pickle
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dew.data.blocks import BlockOrder
from dew_hf.groups import GroupOrder

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=40)
counts = st.integers(1, 20)


def blocks_of(order: BlockOrder, sizes: list[int], places: Any) -> set[int]:
    return set((np.searchsorted(np.cumsum(sizes), order.at(np.asarray(places)), "right")).tolist())


@given(sizes, st.integers(0, 99), counts, st.integers(0, 10**6))
def test_a_window_is_the_stretch_that_its_blocks_fill(data: list[int], seed: int, lanes: int, place: int) -> None:
    order = BlockOrder(data, seed=seed, lanes=lanes)
    start, stop = order.window(place)
    assert start <= place < stop
    inside = blocks_of(order, data, range(start, stop))
    assert len(inside) <= lanes
    assert sum(data[block] for block in inside) == stop - start
    assert (order.window(start), order.window(stop - 1)) == ((start, stop), (start, stop))
    assert order.window(stop)[0] == stop


@given(sizes, st.integers(0, 99), counts, st.integers(0, 10**6), st.integers(1, 7))
def test_blocks_are_those_that_a_share_reads(data: list[int], seed: int, lanes: int, place: int, step: int) -> None:
    order = BlockOrder(data, seed=seed, lanes=lanes)
    start, stop = order.window(place)
    for first in range(start, min(start + step, stop)):
        read = blocks_of(order, data, range(first, stop, step))
        found = order.blocks(first, step).tolist()
        assert found == sorted(set(found))
        assert read <= set(found)
    if lanes % step == 0 and len(set(data)) == 1 and len(data) % lanes == 0:
        shares = [set(order.blocks(first, step).tolist()) for first in range(start, min(start + step, stop))]
        assert sum(map(len, shares)) == len(set.union(*shares)), "each block is one share's"


@given(sizes, counts, st.integers(0, 10**6), st.integers(1, 5), st.integers(2, 30), st.integers(0, 9))
def test_a_reader_finds_its_place(
    data: list[int], lanes: int, start: int, distance: int, count: int, skipped: int
) -> None:
    order = GroupOrder(data, lanes=lanes)
    block = order.at(np.arange(start, start + skipped + distance * count))
    wanted = block[skipped::distance][:count]
    found = order.standing(wanted)
    assert found is not None
    place, apart = found
    np.testing.assert_array_equal(order.at(place + apart * np.arange(count)), wanted)


def test_what_was_not_looked_up_stands_nowhere() -> None:
    order = GroupOrder([10] * 8, lanes=4)
    assert order.standing(np.arange(4)) is None
    block = order.at(np.arange(40))
    assert order.standing(block[:1]) is None, "one record tells no distance"
    assert order.standing(block[[0, 1, 3]]) is None
    assert order.standing(np.array([block[0], 10**6])) is None
    assert pickle.loads(pickle.dumps(order)).latest is None
    order.at(np.array([3, 1, 2]))
    assert order.standing(order.at(np.array([3, 1, 2]))[:2]) is None, "places that do not follow each other"
