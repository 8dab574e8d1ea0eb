"""The packing plan's promises for any documents: every target once, no row too full, exact best fit, windows alone."""

import bisect
import itertools
import random
from typing import Any

import attrs
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dew.data.fields import segment_mask, target_mask
from dew.tokens import packing_report
from dew.tokens.packing import LONG, PackingPlan, PackingRules, plan_rows, plan_window, plan_windows, row_marks


def many(seed: int, count: int, most: int) -> list[int]:
    """More lengths than hypothesis likes to draw one by one."""
    drawn = random.Random(seed)
    return [drawn.randint(1, most) for _ in range(count)]


lengths_of = st.lists(st.integers(1, 12) | st.integers(1, 90), min_size=1, max_size=120) | st.builds(
    many, st.integers(0, 1 << 32), st.integers(1, 400), st.integers(1, 90)
)
seq_lens = st.integers(1, 8) | st.integers(1, 64)
rules_of = st.builds(
    PackingRules,
    seq_len=seq_lens,
    long=st.sampled_from(["split", "truncate"]),
    max_segments=st.none() | st.integers(1, 5),
)


def rows_of(plan: PackingPlan) -> list[list[tuple[int, int]]]:
    """Token ranges of the pieces of each row."""
    pieces = list(zip(plan.starts.tolist(), (plan.starts + plan.lengths).tolist(), strict=True))
    return [pieces[first:last] for first, last in itertools.pairwise(plan.rows.tolist())]


def targets_of(rows: list[list[tuple[int, int]]]) -> list[int]:
    """The tokens that are predicted, each as often as it is."""
    return [token for row in rows for start, stop in row for token in range(start + 1, stop)]


@given(lengths_of, seq_lens, st.none() | st.integers(1, 5))
def test_split_keeps_every_target_of_every_document_once(lengths: list[int], seq_len: int, most: int | None) -> None:
    plan = plan_rows(lengths, PackingRules(seq_len=seq_len, max_segments=most))
    rows = rows_of(plan)
    firsts = {sum(lengths[:document]) for document in range(len(lengths))}
    tokens = range(sum(lengths))
    assert sorted(targets_of(rows)) == [token for token in tokens if token not in firsts]
    # No token is lost either, not even that of a document without a target.
    assert {token for row in rows for start, stop in row for token in range(start, stop)} == set(tokens)
    assert plan.counts.targets == sum(lengths) - len(lengths)
    assert (plan.counts.lost_tokens, plan.counts.lost_targets) == (0, 0)


@given(lengths_of, rules_of)
def test_pieces_are_of_one_document_and_fit_their_row(lengths: list[int], rules: PackingRules) -> None:
    plan = plan_rows(lengths, rules)
    ends = np.cumsum(lengths).tolist()
    for row in rows_of(plan):
        assert 1 <= len(row) <= (rules.max_segments or rules.width)
        assert sum(stop - start for start, stop in row) <= rules.width
        assert row == sorted(row)
        for start, stop in row:
            assert bisect.bisect_right(ends, start) == bisect.bisect_right(ends, stop - 1)
    firsts = [row[0][0] for row in rows_of(plan)]
    assert firsts == sorted(firsts)


@given(lengths_of, seq_lens, st.sampled_from(LONG[1:3]))
def test_what_is_lost_is_counted(lengths: list[int], seq_len: int, long: Any) -> None:
    rules = PackingRules(seq_len=seq_len, long=long)
    if long == "drop" and min(lengths) > rules.width:
        return
    plan = plan_rows(lengths, rules)
    counts = plan.counts
    kept = {token for row in rows_of(plan) for start, stop in row for token in range(start, stop)}
    offset, expected = 0, set()
    for length in lengths:
        if length <= rules.width or long == "truncate":
            expected |= set(range(offset, offset + min(length, rules.width)))
        offset += length
    assert kept == expected
    assert counts.filled == len(kept)
    assert counts.lost_tokens == sum(lengths) - len(kept)
    assert counts.targets + counts.lost_targets == sum(lengths) - len(lengths)
    too_long = sum(length > rules.width for length in lengths)
    assert (counts.truncated, counts.dropped) == ((too_long, 0) if long == "truncate" else (0, too_long))


def textbook(sizes: list[int], width: int) -> list[int]:
    """Rooms left by best-fit-decreasing, one piece at a time, sorted."""
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        place = bisect.bisect_left(rooms, size)
        room = rooms.pop(place) if place < len(rooms) else width
        bisect.insort(rooms, room - size)
    return rooms


@given(lengths_of, st.integers(1, 69))
def test_rows_are_those_of_best_fit_decreasing(lengths: list[int], seq_len: int) -> None:
    rules = PackingRules(seq_len=seq_len, long="truncate")
    plan = plan_rows(lengths, rules)
    sizes = [min(length, rules.width) for length in lengths]
    rooms = sorted(rules.width - sum(stop - start for start, stop in row) for row in rows_of(plan))
    assert rooms == textbook(sizes, rules.width)


@given(lengths_of, st.integers(1, 20))
def test_documents_of_one_length_are_dealt_in_their_order(lengths: list[int], seq_len: int) -> None:
    """Rows that are alike hold documents of one length one after the other."""
    plan = plan_rows(lengths, PackingRules(seq_len=seq_len, long="truncate"))
    alike: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for row in rows_of(plan):
        alike.setdefault(tuple(sorted(stop - start for start, stop in row)), []).extend(row)
    for pieces in alike.values():
        for size in {stop - start for start, stop in pieces}:
            dealt = [start for start, stop in pieces if stop - start == size]
            assert dealt == sorted(dealt)


@given(st.lists(lengths_of, min_size=1, max_size=4), rules_of)
def test_a_window_needs_its_own_lengths_alone(windows: list[list[int]], rules: PackingRules) -> None:
    arrays = [np.array(window, np.int64) for window in windows]
    document = token = 0
    for window, found in zip(arrays, plan_windows(iter(arrays), rules), strict=True):
        alone = plan_window(window, rules)
        np.testing.assert_array_equal(found.sizes, alone.sizes)
        np.testing.assert_array_equal(found.lengths, alone.lengths)
        np.testing.assert_array_equal(found.starts, alone.starts + token)
        assert found.counts == alone.counts
        document += len(window)
        token += int(window.sum())


@given(lengths_of, rules_of)
def test_a_plan_is_a_function_of_lengths_and_rules(lengths: list[int], rules: PackingRules) -> None:
    plan = plan_rows(lengths, rules)
    for dtype in (np.int16, np.uint32, np.uint64):
        assert plan_rows(np.array(lengths, dtype), rules).id == plan.id
    assert plan_rows([*lengths, 1], rules).id != plan.id
    assert plan_rows(lengths, attrs.evolve(rules, seq_len=rules.seq_len + 1)).id != plan.id


@given(lengths_of, rules_of)
def test_the_report_adds_up(lengths: list[int], rules: PackingRules) -> None:
    plan = plan_rows(lengths, rules)
    report = packing_report(plan)
    rows = rows_of(plan)
    assert report.segments == {size: sum(len(row) == size for row in rows) for size in sorted(set(map(len, rows)))}
    assert report.counts.rows == len(plan) == len(rows)
    assert report.padding + report.counts.filled == len(rows) * rules.width
    assert report.fill == report.counts.filled / (len(rows) * rules.width)
    assert report.counts.targets == len(targets_of(rows))
    assert report.target_share == len(targets_of(rows)) / (len(rows) * rules.seq_len)
    assert report.mean_segments == sum(map(len, rows)) / len(rows)
    lost = sum(lengths) - len(lengths) - len(targets_of(rows))
    assert report.lost_share == (lost / (sum(lengths) - len(lengths)) if lost else 0)


@given(lengths_of, rules_of, st.lists(st.integers(0, 1 << 30), max_size=9))
def test_marks_against_a_slow_loop(lengths: list[int], rules: PackingRules, picks: list[int]) -> None:
    plan = plan_rows(lengths, rules)
    rows = np.array([pick % len(plan) for pick in picks], np.int64)
    sizes, starts, found = plan.pieces(rows)
    segments, positions = row_marks(sizes, found, rules.width)
    assert segments.dtype == positions.dtype == np.int32
    expected = np.zeros((2, len(rows), rules.width), np.int32)
    told = list(zip(starts.tolist(), (starts + found).tolist(), strict=True))
    for place, row in enumerate(rows.tolist()):
        pieces, at = rows_of(plan)[row], 0
        assert told[: len(pieces)] == pieces
        del told[: len(pieces)]
        for number, (start, stop) in enumerate(pieces, 1):
            for position in range(stop - start):
                expected[:, place, at] = number, position
                at += 1
    np.testing.assert_array_equal(np.stack([segments, positions]), expected)


@given(lengths_of, rules_of)
def test_masks_against_a_slow_loop(lengths: list[int], rules: PackingRules) -> None:
    plan = plan_rows(lengths, rules)
    sizes, _, found = plan.pieces(np.arange(min(3, len(plan))))
    segments, _ = row_marks(sizes, found, rules.width)
    attention, targets = segment_mask(segments), target_mask(segments)
    assert attention.dtype == targets.dtype == np.bool_
    for row, ids in enumerate(segments.tolist()):
        for i, j in itertools.product(range(rules.width), repeat=2):
            assert attention[row, i, j] == (j <= i and ids[i] == ids[j])
        for t in range(rules.seq_len):
            assert targets[row, t] == (ids[t] == ids[t + 1] and ids[t + 1] > 0)
    assert targets.sum() == found.sum() - len(found)
