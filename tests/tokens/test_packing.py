"""The planner: rows known by heart, the cases that broke other packers, what is refused, and the golden plans."""

import json
import os
import re
from pathlib import Path
from typing import Any

import attrs
import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.data import check_batch, shift
from dew.data.errors import DamagedSourceError, OptionsError, OptionsTypeError, SourceError
from dew.data.fields import segment_mask, target_mask
from dew.tokens import PackingCounts, PackingRules, TokenizerInfo, packing_report
from dew.tokens.manifest import FileRecord, Framing, Shard, make_manifest, manifest_json, parse_manifest
from dew.tokens.npy import file_bytes
from dew.tokens.packing import PLAN_VERSION, WINDOW, PackingPlan, plan_rows, plan_window, row_marks

GOLDEN = Path(__file__).parents[1] / "golden" / "packing-v1.json"

Row = list[tuple[int, int]]


def lengths_from(seed: int, count: int, most: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Lengths 1 to `most` by integer arithmetic alone, so that golden plans outlive NumPy's generators."""
    words = (np.arange(count, dtype=np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(32)
    words *= np.uint64(0xD6E8FEB86659FD93)
    words ^= words >> np.uint64(32)
    return (words % np.uint64(most)).astype(np.int64) + 1


def row(plan: PackingPlan, index: int) -> Row:
    """`(first token, tokens)` of each piece of a row."""
    _, starts, lengths = plan.pieces(np.array([index]))
    return list(zip(starts.tolist(), lengths.tolist(), strict=True))


def rows(plan: PackingPlan) -> list[Row]:
    return [row(plan, index) for index in range(len(plan))]


def planned(lengths: Any, seq_len: int, **rules: Any) -> list[Row]:
    return rows(plan_rows(lengths, PackingRules(seq_len=seq_len, **rules)))


# Rows known by heart


@pytest.mark.parametrize(
    ("lengths", "rules", "expected"),
    [
        ([3, 3], {"seq_len": 7}, [[(0, 3), (3, 3)]]),
        ([1], {"seq_len": 1}, [[(0, 1)]]),
        ([5, 4, 3, 2], {"seq_len": 6}, [[(0, 5), (12, 2)], [(5, 4), (9, 3)]]),
        # Best fit, not first fit: the 2 goes beside the 5, where it leaves no room.
        ([4, 5, 2], {"seq_len": 6}, [[(0, 4)], [(4, 5), (9, 2)]]),
        # Pieces overlap by one token, and a document of exactly one row is whole.
        ([7, 10], {"seq_len": 6}, [[(0, 7)], [(7, 7)], [(13, 4)]]),
        ([13], {"seq_len": 6}, [[(0, 7)], [(6, 7)]]),
        ([14], {"seq_len": 6}, [[(0, 7)], [(6, 7)], [(12, 2)]]),
        ([14, 5], {"seq_len": 6}, [[(0, 7)], [(6, 7)], [(12, 2), (14, 5)]]),
        ([14, 5], {"seq_len": 6, "long": "truncate"}, [[(0, 7)], [(14, 5)]]),
        ([14, 5, 2], {"seq_len": 6, "long": "drop"}, [[(14, 5), (19, 2)]]),
        ([7, 5, 2], {"seq_len": 6, "long": "error"}, [[(0, 7)], [(7, 5), (12, 2)]]),
        # Documents of one token stay, though they hold no target.
        ([1, 6, 1], {"seq_len": 6}, [[(0, 1), (1, 6)], [(7, 1)]]),
        ([1] * 5, {"seq_len": 7, "max_segments": 2}, [[(0, 1), (1, 1)], [(2, 1), (3, 1)], [(4, 1)]]),
        ([3, 2, 1], {"seq_len": 7, "max_segments": 1}, [[(0, 3)], [(3, 2)], [(5, 1)]]),
    ],
)
def test_rows_in_numbers(lengths: list[int], rules: Any, expected: list[Row]) -> None:
    assert planned(lengths, **rules) == expected


def test_pieces_of_each_document() -> None:
    lengths = np.array([1, 2, 6, 7, 8, 13, 14])
    for long, expected in (
        ("split", [1, 1, 1, 1, 2, 2, 3]),
        ("truncate", [1] * 7),
        ("drop", [1, 1, 1, 1, 0, 0, 0]),
        ("error", [1] * 7),
    ):
        assert PackingRules(seq_len=6, long=long).pieces(lengths).tolist() == expected  # type: ignore[arg-type]


def test_aligned_arrays_of_unequal_length_are_refused() -> None:
    """Case C07, first half: roles beside tokens, refused with both lengths when the corpus is opened."""
    files = {"tokens": file_bytes("<u2", 2), "docs": file_bytes("<u8", 2), "roles": file_bytes("|u1", 1)}
    shard = Shard(
        name="shard-00000",
        tokens=2,
        documents=1,
        empty_documents=0,
        max_id=1,
        files={kind: FileRecord(bytes=size, sha256="0" * 64) for kind, size in files.items()},
    )
    manifest = make_manifest(dtype="<u2", framing=Framing(), tokenizer=TokenizerInfo(vocab_size=2), shards=(shard,))
    with pytest.raises(DamagedSourceError, match=r"129 bytes for shard-00000\.roles\.npy, 2 elements take 130"):
        parse_manifest(manifest_json(manifest), "manifest.json")


def test_full_rows_keep_their_place() -> None:
    """Case C07, second half."""
    assert planned([10, 5, 5], 9) == [[(0, 10)], [(10, 5), (15, 5)]]


def test_the_end_of_a_document_predicts_nothing() -> None:
    """Case C15."""
    sizes, _, lengths = plan_rows([3, 3], PackingRules(seq_len=7)).pieces(np.array([0]))
    segments, positions = row_marks(sizes, lengths, 8)
    assert segments.tolist() == [[1, 1, 1, 2, 2, 2, 0, 0]]
    assert positions.tolist() == [[0, 1, 2, 0, 1, 2, 0, 0]]
    assert target_mask(segments).tolist() == [[True, True, False, True, True, False, False]]
    batch = {"text": np.arange(8, dtype=np.int32)[None], "text_segment_ids": segments, "text_positions": positions}
    check_batch(batch, "packed-lm")
    np.testing.assert_array_equal(shift(batch)["target_mask"], target_mask(segments))


@pytest.mark.parametrize("width", [8192, 8193, 16385])
@pytest.mark.parametrize("off", [-1, 0])
def test_widths_around_powers_of_two(width: int, off: int) -> None:
    """Case C16, for the row's width and for seq_len."""
    lengths = np.clip(np.random.default_rng(0).normal(4096, 512, 3000).astype(np.int64), 100, 8192)
    plan = plan_rows(lengths, PackingRules(seq_len=width + off, long="truncate"))
    assert len(plan) < 1.15 * lengths.sum() / width


def test_rows_come_in_the_order_of_their_documents() -> None:
    """Neighbouring rows are not all of one kind, as they would be in the order in which they are made."""
    plan = plan_rows(lengths_from(3, 5000, 300), PackingRules(seq_len=255))
    firsts = plan.starts[plan.rows[:-1]]
    assert (np.diff(firsts) > 0).all()
    sizes = np.diff(plan.rows)
    assert len(set(sizes[:50].tolist())) > 2


def test_rows_stay_in_their_window_of_documents() -> None:
    lengths = lengths_from(5, WINDOW + 1000, 40)
    plan = plan_rows(lengths, PackingRules(seq_len=63))
    tail = plan_window(lengths[WINDOW:], PackingRules(seq_len=63))
    cut = int(lengths[:WINDOW].sum())
    rows_of_tail = len(tail.sizes)
    np.testing.assert_array_equal(plan.starts[-len(tail.starts) :], tail.starts + cut)
    first = plan.rows[len(plan) - rows_of_tail]
    assert plan.starts[:first].max() < cut
    assert len(plan.starts) - first == len(tail.starts)


def test_lengths_past_16_bits_are_sorted_too() -> None:
    lengths = [70_000, 3, 65_536, 65_535, 4464, 1]
    expected = [[(0, 70_000)], [(70_000, 3), (135_539, 65_535), (205_538, 1)], [(70_003, 65_536), (201_074, 4464)]]
    assert planned(lengths, 69_999) == expected


# What is counted


def test_counts_of_each_way_with_long_documents() -> None:
    lengths = [1, 9, 4, 20]
    common = {"documents": 4, "tokens": 34, "single": 1}
    expected = {
        "split": PackingCounts(**common, cut=2, rows=5, pieces=8, filled=38),
        "truncate": PackingCounts(**common, truncated=2, lost_tokens=17, lost_targets=17, rows=3, pieces=4, filled=17),
        "drop": PackingCounts(**common, dropped=2, lost_tokens=29, lost_targets=27, rows=1, pieces=2, filled=5),
    }
    for long, counts in expected.items():
        plan = plan_rows(lengths, PackingRules(seq_len=5, long=long))  # type: ignore[arg-type]
        assert attrs.evolve(plan.counts, rows=0) == attrs.evolve(counts, rows=0), long
        assert plan.counts.targets + plan.counts.lost_targets == 30


def test_the_report_in_numbers() -> None:
    report = packing_report(plan_rows([5, 4, 3, 2, 1], PackingRules(seq_len=7)))
    assert report.segments == {2: 1, 3: 1}
    assert (report.padding, report.counts.rows, report.counts.targets) == (1, 2, 10)
    assert report.fill == 15 / 16
    assert report.target_share == 10 / 14
    assert report.mean_segments == 2.5
    assert str(report) == (
        "5 documents (0 in several pieces) in 2 rows of 8 tokens, 93.7500% full; "
        "2.50 segments a row; 10 targets, 0 lost"
    )
    values = report.to_json()
    assert json.loads(json.dumps(values)) == values
    assert values["segments"] == {"2": 1, "3": 1}
    lossy = packing_report(plan_rows([3, 9], PackingRules(seq_len=3, long="truncate")))
    assert lossy.lost_share == 0.5
    assert "(1 truncated, 0 dropped)" in str(lossy)
    assert str(lossy).endswith("5 targets, 5 lost")


# What is refused


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"seq_len": 0}, OptionsError, r"seq_len must be at least 1, got 0"),
        ({"seq_len": 2.0}, OptionsTypeError, r"seq_len must be an int, got 2\.0 \(float\)"),
        ({"seq_len": 2, "long": "cut"}, OptionsError, r"long must be one of split, truncate, drop, error, got 'cut'"),
        ({"seq_len": 2, "long": None}, OptionsTypeError, r"long must be one of split, .* got None \(NoneType\)"),
        ({"seq_len": 2, "max_segments": 0}, OptionsError, r"max_segments must be at least 1, got 0"),
        ({"seq_len": 2, "max_segments": True}, OptionsTypeError, r"max_segments must be an int, got True"),
    ],
)
def test_wrong_rules(options: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        PackingRules(**options)


def test_lengths_that_cannot_be_packed() -> None:
    rules = PackingRules(seq_len=4)
    with pytest.raises(SourceError, match=r"document 2 has 0 tokens; empty documents cannot be packed"):
        plan_rows([3, 1, 0, 5], rules)
    with pytest.raises(SourceError, match=r"document 1 has -3 tokens"):
        plan_rows([3, -3], rules)
    with pytest.raises(SourceError, match=r"document 1048577 has 0 tokens"):
        plan_rows(np.concatenate([np.ones(WINDOW + 1, np.int64), [0]]), rules)
    with pytest.raises(SourceError, match=r"document lengths are whole numbers \(n,\), got \(2,\) of float64"):
        plan_rows([3.0, 1.0], rules)
    with pytest.raises(SourceError, match=r"document lengths are whole numbers \(n,\), got \(1, 2\) of int64"):
        plan_rows([[3, 1]], rules)


def test_nothing_to_pack() -> None:
    with pytest.raises(SourceError, match=r"nothing to pack: of 0 documents, 0 are longer"):
        plan_rows([], PackingRules(seq_len=4))
    with pytest.raises(
        SourceError, match=r"of 2 documents, 2 are longer than the 5 tokens of a row and long='drop' drops them; use a"
    ):
        plan_rows([6, 7], PackingRules(seq_len=4, long="drop"))


def test_long_documents_can_be_an_error() -> None:
    rules = PackingRules(seq_len=4, long="error")
    assert len(plan_rows([5, 5], rules)) == 2
    with pytest.raises(
        SourceError,
        match=r"document 1 has 6 tokens, and a row of seq_len 4 has room for 5; 1 more of 4 documents are too long",
    ):
        plan_rows([5, 6, 1, 9], rules)


def test_rows_that_do_not_exist() -> None:
    plan = plan_rows([5, 5], PackingRules(seq_len=4))
    assert [len(part) for part in plan.pieces(np.array([], np.int64))] == [0, 0, 0]
    for index in (-1, 2):
        with pytest.raises(IndexError, match=rf"row {index} was asked for, there are rows 0 to 1"):
            plan.pieces(np.array([0, index]))


def test_a_plan_cannot_be_changed() -> None:
    plan = plan_rows([5, 5], PackingRules(seq_len=4))
    for array in (plan.rows, plan.starts, plan.lengths):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


# The masks, in both kinds of array


def test_masks_are_the_same_in_numpy_and_jax() -> None:
    segments = np.array([[1, 1, 2, 2, 0, 0], [1, 2, 3, 3, 3, 3]], np.int32)
    for mask in (segment_mask, target_mask):
        expected = mask(segments)
        assert isinstance(expected, np.ndarray)
        for function in (mask, jax.jit(mask)):
            found = function(jnp.asarray(segments))
            assert isinstance(found, jax.Array)
            np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(segment_mask(segments[0]), segment_mask(segments)[0])
    assert segment_mask(segments)[0].astype(int).tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]


# Beside Grain


def grain_rows(lengths: Any, width: int, packer: Any, bins: int) -> list[dict[str, Any]]:
    ends = np.cumsum(lengths)
    documents = [np.arange(end - length, end, dtype=np.int32) for length, end in zip(lengths, ends, strict=True)]
    source = grain.MapDataset.source(documents).map(lambda document: {"text": document})  # type: ignore[arg-type]
    chain = packer(source.to_iter_dataset(), length_struct={"text": width}, num_packing_bins=bins, shuffle_bins=False)
    return list(chain)


def test_a_row_is_laid_out_as_grain_does() -> None:
    """The same fields for the documents of a row, given to Grain one row at a time."""
    lengths = lengths_from(1, 60, 30)
    plan = plan_rows(lengths, PackingRules(seq_len=39))
    for index in range(len(plan)):
        sizes, _, found = plan.pieces(np.array([index]))
        (theirs,) = grain_rows(found.tolist(), 40, grain.experimental.FirstFitPackIterDataset, 1)
        segments, positions = row_marks(sizes, found, 40)
        np.testing.assert_array_equal(theirs["text_segment_ids"], segments[0])
        np.testing.assert_array_equal(theirs["text_positions"], positions[0])


@pytest.mark.parametrize("packer", ["FirstFitPackIterDataset", "BestFitPackIterDataset"])
def test_rows_are_never_fewer_in_grain(packer: str) -> None:
    lengths = np.minimum(lengths_from(2, 1000, 90), 64)
    ours = len(plan_rows(lengths, PackingRules(seq_len=63)))
    assert ours <= len(grain_rows(lengths, 64, getattr(grain.experimental, packer), 64))


# The golden plans


CASES: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "short documents": ((1, 400, 40), {"seq_len": 63}),
    "long documents, split": ((2, 400, 500), {"seq_len": 63}),
    "long documents, truncated": ((2, 400, 500), {"seq_len": 63, "long": "truncate"}),
    "long documents, dropped": ((2, 400, 500), {"seq_len": 63, "long": "drop"}),
    "three segments at most": ((3, 400, 40), {"seq_len": 64, "max_segments": 3}),
    "rows past 16 bits": ((4, 300, 90_000), {"seq_len": 100_000}),
    "two windows": ((5, WINDOW + 5000, 3000), {"seq_len": 2048}),
}


def golden_plan(name: str) -> dict[str, Any]:
    of_lengths, of_rules = CASES[name]
    plan = plan_rows(lengths_from(*of_lengths), PackingRules(**of_rules))
    return {
        "lengths": list(of_lengths),
        "rules": plan.rules.identity(),
        "counts": attrs.asdict(plan.counts),
        "first rows": [[number for piece in row(plan, index) for number in piece] for index in range(5)],
        "id": plan.id,
    }


@pytest.mark.parametrize("name", CASES)
def test_golden_plans(name: str) -> None:
    """DEW_UPDATE_GOLDEN=1 writes a missing file, never changes one that is there: a changed plan is a new version."""
    if os.environ.get("DEW_UPDATE_GOLDEN") == "1" and not GOLDEN.exists():
        text = json.dumps({"version": PLAN_VERSION, "plans": {name: golden_plan(name) for name in CASES}}, indent=1)
        GOLDEN.write_text(re.sub(r"\[[^][{}]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n")
    stored = json.loads(GOLDEN.read_text())
    assert stored["version"] == PLAN_VERSION
    assert set(stored["plans"]) == set(CASES)
    assert golden_plan(name) == stored["plans"][name]
