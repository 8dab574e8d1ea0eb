"""Aspect buckets: one bucket a step, nothing dropped or repeated, both ways, golden; and which buckets are chosen."""

import itertools
import json
import math
import os
import pickle
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dew.data import DataPartition, Dataset, Loading
from dew.data.build import dataset_of
from dew.data.errors import OptionsError, OptionsTypeError, SourceError
from dew.data.order import ShuffledOrder
from dew.data.stream import train_stream
from dew.testing import StreamSuite
from dew_media.images.buckets import (
    BUCKET_ORDER_VERSION,
    AspectBuckets,
    BucketOrder,
    bucketed,
    candidates,
    choose_buckets,
    nearest,
    sorted_buckets,
)

GOLDEN = Path(__file__).parents[1] / "golden" / f"buckets-v{BUCKET_ORDER_VERSION}.json"
LARGEST_SEED = (1 << 64) - 1
SIZES = ((8, 2), (6, 3), (4, 4), (3, 6), (2, 8))

members = st.lists(st.integers(0, 4), min_size=1, max_size=60)
batches = st.integers(1, 40)
seeds = st.integers(0, LARGEST_SEED)


def order_of(which: Any, batch: int, seed: int = 0, salt: int = 0) -> BucketOrder:
    buckets = AspectBuckets(SIZES, np.array(which, np.uint8), 0.0)
    return BucketOrder(buckets, batch=batch, seed=seed, salt=salt)


def walked(which: list[int], batch: int, seed: int, salt: int, epochs: int) -> list[int]:
    """The order from its beginning, as version 1 is written down: step by step, in Python's integers."""
    held = {bucket: [row for row, of in enumerate(which) if of == bucket] for bucket in sorted(set(which))}
    orders = {
        bucket: ShuffledOrder(records=len(rows), seed=seed, salt=salt ^ 0x6465775F6275636B ^ bucket)
        for bucket, rows in held.items()
    }
    found: list[int] = []
    for epoch in range(epochs):
        steps = [
            (bucket, number)
            for bucket, rows in held.items()
            for number in range(epoch * len(rows) // batch, (epoch + 1) * len(rows) // batch)
        ]
        if not steps:
            continue
        shuffled = ShuffledOrder(records=len(steps), seed=seed, salt=salt ^ 0x6465775F73746570)
        for slot in shuffled.at(np.arange(epoch * len(steps), (epoch + 1) * len(steps))).tolist():
            bucket, number = steps[slot]
            reads = orders[bucket].at(np.arange(number * batch, (number + 1) * batch))
            found.extend(held[bucket][read] for read in reads.tolist())
    return found


# The order


@given(members, batches, seeds, st.integers(0, 3))
def test_the_order_is_what_version_1_says(which: list[int], batch: int, seed: int, salt: int) -> None:
    expected = walked(which, batch, seed, salt, epochs=8)
    found = order_of(which, batch, seed, salt).at(np.arange(len(expected), dtype=np.int64))
    assert found.dtype == np.int64
    assert found.tolist() == expected


@given(members, batches, seeds)
def test_a_step_reads_one_bucket(which: list[int], batch: int, seed: int) -> None:
    order = order_of(which, batch, seed)
    buckets = np.array(which)[order.at(np.arange(30 * batch, dtype=np.int64))].reshape(30, batch)
    assert (buckets == buckets[:, :1]).all()
    for step in (0, 1, 29):
        assert order.bucket_of_step(step) == SIZES[buckets[step, 0]]


@given(members, batches, seeds)
def test_nothing_is_dropped_or_repeated(which: list[int], batch: int, seed: int) -> None:
    """At the end of every epoch each record of a bucket was read equally often, but for one read under way."""
    order = order_of(which, batch, seed)
    counts = np.bincount(which, minlength=5)
    stop = 0
    for epoch in range(1, 3 * batch + 1):
        start, stop = stop, int((epoch * counts // batch).sum()) * batch
        if stop == start:
            continue
        read = np.bincount(order.at(np.arange(stop, dtype=np.int64)), minlength=len(which))
        for bucket in set(which):
            times = read[np.array(which) == bucket]
            assert times.max() - times.min() <= 1
            assert times.sum() == epoch * counts[bucket] // batch * batch
        if epoch % batch == 0:
            assert (read == epoch).all(), "no step is cut by the end of this epoch"
    assert stop == 3 * batch * len(which)


@given(members, batches, seeds, st.lists(st.integers(0, 400), min_size=1, max_size=30))
def test_a_seek_is_a_walk(which: list[int], batch: int, seed: int, places: list[int]) -> None:
    order = order_of(which, batch, seed)
    whole = order.at(np.arange(401, dtype=np.int64))
    np.testing.assert_array_equal(order.at(np.array(places, np.int64)), whole[places])


@given(members, batches, seeds, st.sampled_from([0, 1, 57, 10**12, 1 << 61]), st.data())
def test_places_is_the_inverse(which: list[int], batch: int, seed: int, start: int, data: st.DataObject) -> None:
    order = order_of(which, batch, seed)
    stop = start + 5 * max(batch, len(which))
    found = order.at(np.arange(start, stop, dtype=np.int64))
    record = data.draw(st.sampled_from(found.tolist()) | st.integers(0, len(which) - 1))
    places = order.places(record, start, stop)
    assert places.dtype == np.int64
    np.testing.assert_array_equal(places, start + np.flatnonzero(found == record))


def test_ten_thousand_records() -> None:
    which = np.random.default_rng(0).choice(5, 10_000, p=[0.5, 0.3, 0.15, 0.0499, 0.0001])
    order = order_of(which, 64, seed=7)
    counts = np.bincount(which, minlength=5)
    assert counts[4] < 64
    read = np.bincount(order.at(np.arange(int((64 * counts // 64).sum()) * 64, dtype=np.int64)), minlength=10_000)
    assert (read == 64).all()
    for start in (0, 10**9, (1 << 63) - (1 << 41)):
        found = order.at(np.arange(start, start + 6400, dtype=np.int64))
        buckets = (
            which[found].reshape(-1, 64) if start % 64 == 0 else which[found[-start % 64 :][: 99 * 64]].reshape(-1, 64)
        )
        assert (buckets == buckets[:, :1]).all()
        for place in (start, start + 99, start + 6399):
            assert place in order.places(int(found[place - start]), start, start + 6400)


def test_a_bucket_smaller_than_a_batch_has_its_turn() -> None:
    order = order_of([0] * 40 + [1] * 3, 8)
    steps = [order.bucket_of_step(step) for step in range(5 * 8 + 3)]
    assert steps.count(SIZES[1]) == 3, "8 epochs have 24 reads of its 3 records: 3 steps"
    listing = order.buckets.listing(8)
    assert "3 x 6: 3 records, fewer than a batch: a step every 2.7 epochs, each of them 2.7 times in it" in listing
    assert "2 x 8: 40 records, 5.00 steps an epoch" in listing
    assert "6 x 3: 0 records, never read" in listing
    assert "2 aspect buckets for 43 records, batch 8" in listing


def test_steps_of_an_epoch_are_mixed_and_each_epoch_otherwise() -> None:
    order = order_of([0] * 400 + [1] * 400 + [2] * 400, 10)
    epochs = [[order.bucket_of_step(step + 120 * epoch) for step in range(120)] for epoch in range(3)]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    longest = max(len(list(run)) for epoch in epochs for _, run in itertools.groupby(epoch))
    assert longest < 12


def test_seeds_and_salts_give_other_orders() -> None:
    orders = {
        tuple(order_of([0] * 50 + [2] * 50, 4, seed, salt).at(np.arange(200)).tolist())
        for seed, salt in ((0, 0), (1, 0), (0, 1), (LARGEST_SEED, 0))
    }
    assert len(orders) == 4


def test_pickles_without_what_it_worked_out() -> None:
    order = order_of([0, 1, 1, 2] * 5000, 16, seed=3)
    data = pickle.dumps(order)
    assert len(data) < 21_000
    places = np.arange(10**6, 10**6 + 500)
    np.testing.assert_array_equal(pickle.loads(data).at(places), order.at(places))


def test_the_identity_tells_plans_apart() -> None:
    order = order_of([0, 1, 2, 2], 2, seed=1)
    identity = order.identity()
    assert json.loads(json.dumps(identity)) == identity
    assert (identity["kind"], identity["version"], identity["batch"], identity["records"]) == ("buckets", 1, 2, 4)
    others = [order_of([0, 1, 2, 1], 2, seed=1), order_of([0, 1, 2, 2], 3, seed=1), order_of([0, 1, 2, 2], 2)]
    moved = AspectBuckets((*SIZES[:-1], (2, 10)), order.buckets.which, 0.0)
    others += [order_of([0, 1, 2, 2], 2, seed=1, salt=1), BucketOrder(moved, batch=2, seed=1)]
    assert all(other.identity() != identity for other in others)


def test_what_an_order_refuses() -> None:
    with pytest.raises(OptionsError, match="batch must be at least 1, got 0"):
        order_of([0], 0)
    with pytest.raises(OptionsError, match="record 4 does not exist: the source has records 0 to 3"):
        order_of([0, 1, 2, 2], 2).places(4, 0, 10)
    assert order_of([0, 1], 2).places(0, 9, 3).tolist() == []
    assert order_of([0, 1], 2).at(np.empty(0, np.int64)).tolist() == []


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_process_reads_the_same_bucket(count: int) -> None:
    """Through a real stream; pictures of a bucket have its size, so that a mixed step could not be collated."""
    which = np.random.default_rng(1).integers(0, 5, 60)
    buckets = AspectBuckets(SIZES, which.astype(np.uint8), 0.0)
    rows = [{"image": np.full((*buckets.size_of(record), 3), record, np.uint8)} for record in range(60)]
    order = BucketOrder(buckets, batch=8, seed=5)
    streams = [
        train_stream(rows, order=order, batch=8, partition=DataPartition(index, count), loading=Loading(workers=0))
        for index in range(count)
    ]
    for step in range(40):
        shares = [next(stream)["image"] for stream in streams]
        assert len({share.shape for share in shares}) == 1
        whole = np.concatenate(shares)
        assert whole.shape == (8, *order.bucket_of_step(step), 3)
        assert sorted(whole[:, 0, 0, 0].tolist()) == sorted(streams[0].ids(step).tolist())
    for stream in streams:
        stream.close()


class TestStream(StreamSuite):
    """The conformance suite, over pictures of five sizes."""

    steps = 12

    def make_dataset(self, seed: int = 3, loading: Loading = Loading(workers=0)) -> Dataset:  # noqa: B008 - frozen
        which = np.random.default_rng(1).integers(0, 5, 30)
        buckets = AspectBuckets(SIZES, which.astype(np.uint8), 0.0)
        rows = [{"image": np.full((*buckets.size_of(record), 3), record, np.uint8)} for record in range(30)]
        order = BucketOrder(buckets, batch=4, seed=seed)
        return dataset_of(rows, batch=4, seed=seed, order=order, loading=loading)


# Which buckets


def test_candidates_of_512() -> None:
    sizes = candidates(512)
    assert (512, 512) in sizes
    assert {(1024, 256), (768, 320), (640, 384), (576, 384), (576, 448), (256, 1024)} <= set(sizes)
    assert all(height % 64 == width % 64 == 0 and height * width <= 512**2 for height, width in sizes)
    assert all(min(size) >= 256 and max(size) <= 1024 for size in sizes)
    assert [Fraction(width, height) for height, width in sizes] == sorted({Fraction(w, h) for h, w in sizes})
    assert {size[::-1] for size in sizes} == set(sizes)


@pytest.mark.parametrize(("base", "step"), [(64, 64), (100, 64), (256, 64), (512, 8), (1024, 64), (299, 32)])
def test_candidates_of_other_sizes(base: int, step: int) -> None:
    sizes = candidates(base, step)
    assert (base // step * step,) * 2 in sizes
    assert all(height * width <= base**2 for height, width in sizes)


@given(
    st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 4000)), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(1, 64), st.integers(1, 64)), min_size=1, max_size=12),
)
def test_the_nearest_bucket_by_log_ratio(pictures: list[tuple[int, int]], sizes: list[tuple[int, int]]) -> None:
    buckets = sorted_buckets(sizes)
    widths, heights = np.array(pictures, np.int64).T
    for (width, height), found in zip(pictures, nearest(widths, heights, buckets).tolist(), strict=True):
        distances = [abs(math.log(width / height * size[0] / size[1])) for size in buckets]
        assert distances[found] <= min(distances) + 1e-12


def test_borders_are_exact_however_large() -> None:
    """Half-way between 1:1 and 4:1 is 2:1, and belongs to the taller one; one pixel more belongs to the wider."""
    for side in (1, 500, 10**6, 80_000_000):
        widths, heights = np.array([2 * side, 2 * side + 1]), np.array([side, side])
        assert nearest(widths, heights, ((4, 4), (2, 8))).tolist() == [0, 1]


def test_many_candidates_are_chosen_from_at_once() -> None:
    rng = np.random.default_rng(3)
    heights, widths = rng.integers(100, 4000, 100_000), rng.integers(100, 4000, 100_000)
    assert 5 <= len(choose_buckets(widths, heights, base=512, step=8)) <= 9


def test_the_buckets_that_trim_least_are_chosen() -> None:
    rng = np.random.default_rng(3)
    heights = rng.integers(200, 2000, 3000)
    widths = (heights * np.exp(rng.normal(0, 0.3, 3000))).astype(int) + 1
    chosen = choose_buckets(widths, heights, base=256, step=64)
    assert 5 <= len(chosen) <= 9
    ratios = np.log(widths / heights)[:, None]

    def distance(sizes: tuple[tuple[int, int], ...]) -> float:
        return float(np.abs(ratios - np.log([width / height for height, width in sizes])).min(axis=1).sum())

    best = min(distance(sizes) for sizes in itertools.combinations(candidates(256), len(chosen)))
    assert distance(chosen) == pytest.approx(best)


def test_few_proportions_need_few_buckets() -> None:
    widths, heights = np.array([600] * 50 + [400] * 50), np.array([400] * 50 + [600] * 50)
    chosen = choose_buckets(widths, heights, base=512)
    assert len(chosen) <= 4
    assert bucketed(widths, heights, chosen).trimmed < 0.03
    assert choose_buckets([640] * 9, [640] * 9, base=512) == ((512, 512),)


def test_a_bucket_of_too_few_is_not_chosen() -> None:
    widths, heights = np.array([600] * 500 + [2000] * 7), np.array([600] * 500 + [500] * 7)
    assert (256, 1024) in choose_buckets(widths, heights, base=512)
    assert choose_buckets(widths, heights, base=512, least=8) == ((512, 512),)
    assert choose_buckets(widths, heights, base=512, least=10**6) == ((512, 512),)


def test_every_record_is_in_its_bucket() -> None:
    buckets = bucketed([100, 300, 100, 200], [100, 100, 300, 100], [(64, 64), (32, 96), (96, 32)])
    assert buckets.sizes == ((96, 32), (64, 64), (32, 96))
    assert buckets.which.tolist() == [1, 2, 0, 2]
    assert [buckets.size_of(record) for record in range(4)] == [(64, 64), (32, 96), (96, 32), (32, 96)]
    assert (buckets.counts, len(buckets)) == ((1, 1, 2), 4)
    assert buckets.trimmed == pytest.approx((1 - 2 / 3) / 4)


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ([], OptionsError, "aspect buckets need at least one"),
        ([(8, 0)], OptionsError, "the width of a bucket must be at least 1, got 0"),
        ([64], OptionsTypeError, r"a bucket is \(height, width\) in pixels, got 64"),
        ([(8, 8, 3)], OptionsTypeError, r"a bucket is \(height, width\) in pixels, got"),
        ([(8, n) for n in range(1, 300)], OptionsError, "at most 255 aspect buckets, got 299"),
    ],
)
def test_sizes_that_cannot_be(sizes: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        bucketed([3], [4], sizes)


def test_pictures_that_cannot_be() -> None:
    with pytest.raises(SourceError, match="record 1 is 0 x 5 pixels, which has no proportions"):
        bucketed([3, 0], [4, 5], SIZES)
    with pytest.raises(SourceError, match=r"a width and a height of each record, got \(1,\) and \(2,\)"):
        bucketed([3], [4, 5], SIZES)
    with pytest.raises(OptionsError, match="the base size of buckets must be at least their step, got 32 and 64"):
        choose_buckets([3], [4], base=32)


# Golden


def golden(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the golden file holds; DEW_UPDATE_GOLDEN=1 writes a missing one and never changes one that is there."""
    if os.environ.get("DEW_UPDATE_GOLDEN") == "1" and not GOLDEN.exists():
        text = json.dumps(made, indent=1)
        GOLDEN.write_text(re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n")
    return json.loads(GOLDEN.read_text())


def test_golden() -> None:
    made = []
    for counts, batch, seed, salt in (
        ((7, 0, 5, 6, 3), 4, 0, 0),
        ((1, 2, 3, 0, 0), 8, 1, 0),
        ((400, 900, 2000, 700, 30), 64, LARGEST_SEED, 5),
        ((0, 0, 100_003, 0, 0), 32, 12, 0),
    ):
        order = order_of(np.repeat(np.arange(5), counts), batch, seed, salt)
        starts = (0, 3 * batch, 10**12)
        made.append(
            {
                "counts": list(counts),
                "batch": batch,
                "seed": str(seed),
                "salt": salt,
                "digest": order.buckets.digest(),
                "records": {str(start): order.at(np.arange(start, start + 12)).tolist() for start in starts},
            }
        )
    assert made == golden(made)
