"""The block order: every epoch each record once, blocks side by side and no more of them, both ways, golden."""

import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dew.data.blocks import BLOCK_ORDER_VERSION, BlockOrder
from dew.data.errors import OptionsError

GOLDEN = Path(__file__).parents[1] / "golden" / f"blocks-v{BLOCK_ORDER_VERSION}.json"
LARGEST_SEED = (1 << 64) - 1

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=40)
seeds = st.integers(0, LARGEST_SEED)


def epoch(order: BlockOrder, number: int) -> Any:
    return order.at(np.arange(number * order.records, (number + 1) * order.records, dtype=np.int64))


@given(sizes, seeds, st.integers(1, 20), st.integers(0, 1 << 30))
def test_each_epoch_holds_each_record_once(blocks: list[int], seed: int, lanes: int, number: int) -> None:
    order = BlockOrder(blocks, seed=seed, lanes=lanes)
    np.testing.assert_array_equal(np.sort(epoch(order, number)), np.arange(sum(blocks)))


@given(sizes, seeds, st.integers(1, 20), st.data())
def test_places_is_the_inverse(blocks: list[int], seed: int, lanes: int, data: st.DataObject) -> None:
    order = BlockOrder(blocks, seed=seed, lanes=lanes)
    record = data.draw(st.integers(0, order.records - 1))
    places = order.places(record, 2 * order.records, 5 * order.records)
    assert len(places) == 3
    np.testing.assert_array_equal(order.at(places), [record] * 3)
    assert order.places(record, int(places[0]) + 1, int(places[1])).tolist() == []


@given(sizes, seeds, st.integers(1, 20), st.data())
def test_any_places_are_those_of_the_whole_epoch(blocks: list[int], seed: int, lanes: int, data: st.DataObject) -> None:
    order = BlockOrder(blocks, seed=seed, lanes=lanes)
    places = np.array(data.draw(st.lists(st.integers(0, 3 * order.records - 1), min_size=1, max_size=30)), np.int64)
    whole = np.concatenate([epoch(order, number) for number in range(3)])
    np.testing.assert_array_equal(order.at(places), whole[places])


def test_no_more_blocks_are_open_than_lanes() -> None:
    order = BlockOrder([10] * 64, seed=3, lanes=8)
    windows = epoch(order, 1).reshape(-1, 80) // 10
    assert all(len(set(window.tolist())) == 8 for window in windows)
    assert len({int(block) for window in windows for block in window}) == 64


@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_share_reads_only_its_own_lanes(count: int) -> None:
    order = BlockOrder([10] * 64, seed=3, lanes=8)
    shares = [set((epoch(order, 0)[index::count] // 10).tolist()) for index in range(count)]
    assert sum(map(len, shares)) == 64
    assert set.union(*shares) == set(range(64))


def test_seeds_epochs_and_salts_give_other_orders() -> None:
    orders = [
        epoch(BlockOrder([10] * 64, seed=seed, salt=salt), number).tolist()
        for seed, salt, number in ((0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 1, 0), (LARGEST_SEED, 0, 0))
    ]
    assert len({tuple(order) for order in orders}) == len(orders)


def test_neighbours_in_a_block_are_not_neighbours_in_the_order() -> None:
    found = epoch(BlockOrder([1000] * 32, seed=0, lanes=16), 0)
    steps = np.diff(found)
    assert np.mean(np.abs(steps) == 1) < 0.01
    lane = found[:16_000:16]  # one lane of the first window
    assert abs(np.corrcoef(lane[:-1], lane[1:])[0, 1]) < 0.15


def test_pickles_without_what_it_worked_out() -> None:
    order = BlockOrder(range(1, 100), seed=3)
    before = epoch(order, 2)
    np.testing.assert_array_equal(epoch(pickle.loads(pickle.dumps(order)), 2), before)


def test_identity_tells_blocks_lanes_and_seed_apart() -> None:
    identity = BlockOrder([3, 4], seed=1, lanes=2).identity()
    assert (identity["version"], identity["kind"], identity["records"]) == (BLOCK_ORDER_VERSION, "blocks", 7)
    others = [BlockOrder([4, 3], seed=1, lanes=2), BlockOrder([3, 4], lanes=2), BlockOrder([3, 4], seed=1, lanes=3)]
    assert all(other.identity() != identity for other in others)
    assert json.loads(json.dumps(identity)) == identity


@pytest.mark.parametrize("blocks", [[], [0], [3, 0], [[1]], [-1]])
def test_blocks_without_records_are_refused(blocks: Any) -> None:
    with pytest.raises(OptionsError, match="needs blocks of at least one record each"):
        BlockOrder(blocks)


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(OptionsError, match="lanes must be at least 1, got 0"):
        BlockOrder([1], lanes=0)
    with pytest.raises(OptionsError, match="at most 2\\^62 records"):
        BlockOrder([1 << 61, 1 << 61, 1])
    with pytest.raises(OptionsError, match="record 7 does not exist"):
        BlockOrder([3, 4]).places(7, 0, 10)


def golden(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the golden file holds; DEW_UPDATE_GOLDEN=1 writes a missing one and never changes one that is there."""
    if os.environ.get("DEW_UPDATE_GOLDEN") == "1" and not GOLDEN.exists():
        text = json.dumps(made, indent=1)
        GOLDEN.write_text(re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n")
    return json.loads(GOLDEN.read_text())


def test_golden() -> None:
    made = []
    for blocks, seed, lanes, salt in (
        ([7, 5, 6, 3], 0, 16, 0),
        ([10] * 9, 1, 4, 0),
        ([1, 100, 3], LARGEST_SEED, 2, 5),
        ([5000] * 40, 12, 8, 0),
    ):
        order = BlockOrder(blocks, seed=seed, lanes=lanes, salt=salt)
        starts = (0, order.records - 3, 1000 * order.records + 1)
        made.append(
            {
                "sizes": blocks if len(blocks) < 10 else [blocks[0], len(blocks)],
                "seed": str(seed),
                "lanes": lanes,
                "salt": salt,
                "records": {str(start): order.at(np.arange(start, start + 12)).tolist() for start in starts},
            }
        )
    assert made == golden(made)
