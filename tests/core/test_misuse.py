"""What a user could do without meaning to: each is refused, or gives the right data."""

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.data import (
    DamagedSourceError,
    DataPartition,
    Loading,
    Mixture,
    OptionsError,
    OptionsTypeError,
    OverlapError,
    PackedDocuments,
    PositionMismatchError,
    SourceError,
    TokenWindows,
    dataset_of,
    from_records,
    load,
    train_stream,
)
from dew.data.build import in_memory
from dew.data.errors import StreamBusyError
from dew.tokens import TokenizerInfo, TokenOptions, write_corpus


def _corpus(path: Path, *, tokenizer: str | None = None, first: int = 0) -> str:
    documents = [np.arange(100) + (document + first) % 50 for document in range(60)]
    write_corpus(documents, path, tokenizer=TokenizerInfo(vocab_size=300, sha256=tokenizer), overwrite=True)
    return str(path)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (np.ma.array([1, 2, 3, 4], mask=[0, 1, 0, 0]), "masked array"),
        ([9007199254740993, 0.5, 1, 2], "float64|int64"),
        (["a\0", "b", "c", "d"], "NUL"),
        ([1, "a", 2, 3], "int64 in element .0. .* and <U1"),
        ([True, 3, 4, 5], "bool in element|int64"),
        ([1, None, 2, 3], "None"),
    ],
)
def test_columns_are_as_strict_as_rows(column: Any, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        from_records({"x": column}, batch=2)


def test_a_preprocess_that_writes_into_its_record_changes_no_later_step() -> None:
    def spoil(record: Any) -> Any:
        record["x"][0] += 1
        record["pair"][0][0] += 1
        return {"x": record["x"], "first": record["pair"][0]}

    rows = [{"x": np.zeros(2), "pair": [np.zeros(1), np.zeros(1)]} for _ in range(4)]
    with dataset_of(rows, batch=4, preprocess=spoil, loading=Loading(workers=0)).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        for _ in range(3):
            batch = next(stream)
            assert batch["x"].tolist() == [[1, 0]] * 4
            assert batch["first"].tolist() == [[1]] * 4
    assert rows[0]["x"].tolist() == [0, 0]  # type: ignore[union-attr]


def test_a_swapped_list_is_noticed() -> None:
    def stream(offset: int) -> Any:
        return dataset_of([{"x": np.int64(index + offset)} for index in range(8)], batch=2).train(DataPartition())

    with stream(0) as one, stream(100) as other, pytest.raises(PositionMismatchError, match="another fingerprint"):
        other.set_state(one.get_state())


def test_validation_columns_that_are_views_of_training_are_refused() -> None:
    x = np.arange(100)
    with pytest.raises(OverlapError, match="would share 10 records"):
        from_records({"x": x}, val={"x": x[90:]}, batch=4)
    from_records({"x": x[:90]}, val={"x": x[90:]}, batch=4)
    from_records({"x": x[::2]}, val={"x": x[1::2]}, batch=4)
    one = np.ones(50)
    from_records({"x": x[:50], "one": one}, val={"x": x[50:], "one": one}, batch=4)


def test_two_tokenizers_in_one_run_are_refused(tmp_path: Path) -> None:
    a, b = _corpus(tmp_path / "a", tokenizer="a" * 64), _corpus(tmp_path / "b", tokenizer="b" * 64, first=7)
    words = r"different tokenizers, a{64} and b{64}"
    with pytest.raises(SourceError, match="part 'a' and part 'b' were prepared with " + words):
        Mixture([(TokenWindows(a, seq_len=8), 1), (TokenWindows(b, seq_len=8), 1)]).load(batch=4)
    with pytest.raises(SourceError, match=words):
        load({f"tokens/{a}": 1, f"tokens/{b}": 1}, batch=4, options=TokenOptions(seq_len=8))
    _corpus(tmp_path / "both" / "train", tokenizer="a" * 64)
    _corpus(tmp_path / "both" / "val", tokenizer="b" * 64, first=3)
    with pytest.raises(SourceError, match="the training data and the validation data .* " + words):
        TokenWindows(str(tmp_path / "both"), seq_len=8, val="val").load(batch=4)


def test_a_part_does_not_train_on_the_validation_of_another(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path / "c")
    parts = {
        "whole": (PackedDocuments(corpus, seq_len=16), 1),
        "held": (PackedDocuments(corpus, seq_len=16, val=0.1), 1),
    }
    with pytest.raises(OverlapError, match=r"validation of part 'held' would share \d+ records with .* 'whole'"):
        Mixture(parts).load(batch=4)
    unequal = {"a": (TokenWindows(corpus, seq_len=8, val=0.05), 1), "b": (TokenWindows(corpus, seq_len=8, val=0.2), 1)}
    with pytest.raises(OverlapError, match="validation of part 'b' would share"):
        Mixture(unequal).load(batch=4)
    equal = {name: (TokenWindows(corpus, seq_len=8, val=0.1), 1) for name in ("a", "b")}
    assert Mixture(equal).load(batch=4).val is not None


def test_a_corpus_swapped_before_reading_is_refused(tmp_path: Path) -> None:
    dataset = TokenWindows(_corpus(tmp_path / "c"), seq_len=8).load(batch=4)
    _corpus(tmp_path / "c", first=9)
    with dataset.train(DataPartition()) as stream, pytest.raises(DamagedSourceError, match="must not be replaced"):  # type: ignore[attr-defined]
        next(stream)


def test_two_threads_cannot_read_one_stream() -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(record: Any) -> Any:
        entered.set()
        assert leave.wait(20)
        return record

    dataset = dataset_of(in_memory({"x": np.arange(8)}), batch=2, preprocess=slow, loading=Loading(workers=0))
    stream: Any = dataset.train(DataPartition())
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.append(next(stream)))
    reader.start()
    assert entered.wait(20)
    with pytest.raises(StreamBusyError, match="read by another thread"):
        next(stream)
    leave.set()
    reader.join()
    assert len(got) == 1
    assert stream.position.step == 1
    stream.close()


@pytest.mark.parametrize("carry", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_stream_is_not_copied(carry: Any) -> None:
    with (
        from_records({"x": np.arange(8)}, batch=2).train(DataPartition()) as stream,  # type: ignore[attr-defined]
        pytest.raises(OptionsTypeError, match="cannot be copied or pickled"),
    ):
        carry(stream)


@pytest.mark.parametrize(
    "wrong",
    [{"partition": 1}, {"partition": (0, 1)}, {"partition": None}, {"loading": None}, {"order": 5}, {"schedule": 5}],
)
def test_values_of_another_type_are_named(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(OptionsTypeError, match=rf"^{name} must be"):
        train_stream(in_memory({"x": np.arange(8)}), batch=2, **wrong)


def test_a_step_past_all_places_is_refused() -> None:
    with (
        from_records({"x": np.arange(8)}, batch=2).train(DataPartition()) as stream,  # type: ignore[attr-defined]
        pytest.raises(OptionsError, match=r"places go up to 2\^63"),
    ):
        stream.ids(2**62)


def test_all_parts_that_differ_are_named_and_the_source_first(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path / "c")
    streams = [TokenWindows(corpus, seq_len=size).load(batch=4).train(DataPartition()) for size in (8, 9)]
    with streams[0] as one, streams[1] as other, pytest.raises(PositionMismatchError) as raised:  # type: ignore[attr-defined]
        other.set_state(one.get_state())
    assert raised.value.part == "source"
    assert "seq_len=8" in str(raised.value)
    assert "Other parts that differ: records" in str(raised.value)
