"""Packed corpora, windows and plain rows in one run: exact shares, validation by name, one position."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.data import (
    CollateError,
    DataPartition,
    Loading,
    Mixture,
    PackedDocuments,
    TokenWindows,
    check_batch,
    validation_sets,
)
from dew.testing.streams import whole_step
from dew.tokens import TokenizerInfo, write_corpus

HERE = Loading(workers=0, threads=1, read_buffer=0)
SEQ_LEN = 16


def one_segment(record: Mapping[str, Any]) -> Mapping[str, Any]:
    text = record["text"]
    return {
        "text": text,
        "text_segment_ids": np.ones_like(text),
        "text_positions": np.arange(len(text), dtype=np.int32),
    }


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    """`packed`: ids below 1000 in documents of 3 to 40 tokens; `windows`: ids from 1000 on."""
    info = TokenizerInfo(vocab_size=5000)
    lengths = np.random.default_rng(0).integers(3, 41, 120)
    write_corpus((np.arange(length, dtype=np.uint16) for length in lengths), tmp_path / "packed", tokenizer=info)
    windows = (np.arange(1000 + 90 * n, 1090 + 90 * n, dtype=np.uint16) for n in range(30))
    write_corpus(windows, tmp_path / "windows", tokenizer=info)
    return tmp_path


def three(corpora: Path, **options: Any) -> Mixture:
    rows = [one_segment({"text": np.full(SEQ_LEN + 1, 4000 + number, np.int32)}) for number in range(50)]
    parts = {
        "packed": (PackedDocuments(str(corpora / "packed"), seq_len=SEQ_LEN, val=0.1), 5),
        "windows": (TokenWindows(str(corpora / "windows"), seq_len=SEQ_LEN, val=0.1), 3),
        "rows": (rows, 2),
    }
    return Mixture(parts, **{"preprocess": {"windows": one_segment}, "loading": HERE, **options})


def test_three_kinds_of_source_in_one_run(corpora: Path) -> None:
    dataset = three(corpora).load(batch=20)
    stream: Any = dataset.train(DataPartition())
    batches = [next(stream) for _ in range(16)]
    for batch in batches:
        check_batch(batch, "packed-lm")
    text = np.concatenate([batch["text"] for batch in batches])
    kinds = np.select([text[:, 0] >= 4000, text[:, 0] >= 1000], ["rows", "windows"], "packed")
    counts = {kind: int((kinds == kind).sum()) for kind in ("packed", "windows", "rows")}
    assert sum(counts.values()) == 320
    for kind, share in (("packed", 0.5), ("windows", 0.3), ("rows", 0.2)):
        assert abs(counts[kind] - 320 * share) <= 5
    report = stream.order.report(320)
    assert {label: count.records for label, count in report.items()} == counts
    segments = np.concatenate([batch["text_segment_ids"] for batch in batches])
    assert (segments[kinds == "windows"] == 1).all()
    assert segments[kinds == "packed"].max() > 1


def test_it_goes_on_from_one_position_on_any_topology(corpora: Path) -> None:
    alone: Any = three(corpora).load(batch=20).train(DataPartition())
    batches = [next(alone) for _ in range(6)]
    for count, loading in ((4, HERE), (2, Loading(workers=0, threads=4)), (1, Loading(workers=1))):
        shares: list[Any] = [
            three(corpora, loading=loading).load(batch=20).train(DataPartition(index, count)) for index in range(count)
        ]
        position = {**alone.get_state(), "records": 60}
        for share in shares:
            share.set_state(position)
        for step in (3, 4):
            together = whole_step([next(share) for share in shares])
            for name, array in batches[step].items():
                np.testing.assert_array_equal(together[name], array)
        for share in shares:
            share.close()


def test_the_position_names_tokenizer_plan_and_corpus_of_each_part(corpora: Path) -> None:
    stream: Any = three(corpora).load(batch=20).train(DataPartition())
    order = stream.get_state()["order"]
    for label in ("packed", "windows"):
        assert isinstance(order[f"parts.{label}.fingerprint"], str)
        assert f"parts.{label}.tokenizer" in order
    packed = {key for key in order if key.startswith("parts.packed.")}
    assert packed > {key.replace("windows", "packed") for key in order if key.startswith("parts.windows.")}, "a plan"


def test_validation_is_named_by_part(corpora: Path) -> None:
    dataset = three(corpora).load(batch=4)
    sets = validation_sets(dataset)
    assert list(sets) == ["packed", "windows"]
    scored = {}
    for name, val in sets.items():
        batches = [*val(DataPartition())]
        for batch in batches:
            check_batch(batch, "packed-lm")
        scored[name] = sum(int(batch["valid"].sum()) for batch in batches)
        first = np.concatenate([batch["text"][batch["valid"], 0] for batch in batches])
        assert ((first >= 1000) == (name == "windows")).all()
    assert dataset.val is not None
    assert sum(int(batch["valid"].sum()) for batch in dataset.val(DataPartition())) == sum(scored.values())


def test_windows_beside_packed_rows_need_their_fields(corpora: Path) -> None:
    with pytest.raises(
        CollateError, match=r"field 'text_segment_ids' is int32 \(17,\) in part 'packed' and missing in"
    ):
        three(corpora, preprocess=None).load(batch=20)
