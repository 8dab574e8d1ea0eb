"""`load` of a mapping of names to weights: any providers, one dataset; what may be given by name; refusals."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import dew.data
from dew.data import (
    CollateError,
    DataPartition,
    Dataset,
    Loading,
    Mixture,
    OptionsError,
    OptionsTypeError,
    OverlapError,
    PositionMismatchError,
    ProviderError,
    SplitError,
    load,
    validation_sets,
)
from dew.data.provider import LoadRequest, Provider

HERE = Loading(workers=0, threads=1, read_buffer=0)


@attrs.frozen
class Rows:
    name: str
    split: str
    count: int
    first: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.int64(self.first + index)}

    def __repr__(self) -> str:
        return f"Rows({self.name}, {self.split})"


@attrs.frozen(kw_only=True)
class RowOptions:
    first: int = 0
    val_split: str | None = None
    stream: bool = False


def open_rows(request: LoadRequest, split: str) -> Any:
    sizes = {"train": 100, "more": 50, "val": 7, "test": 5}
    if split not in sizes:
        raise SplitError(f"no split {split!r}; there are {sorted(sizes)}")
    if request.options.stream:
        return lambda partition: iter([])
    first = request.options.first + {"train": 0, "more": 500, "val": 700, "test": 800}[split]
    return Rows(request.name, split, sizes[split], first)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for prefix, needs in (("rows", False), ("raw", True)):
        fields: dict[str, Any] = {"options": RowOptions, "open": open_rows, "needs_preprocess": needs}
        dew.data.register(Provider(prefix=prefix, summary="for tests", **fields))
    yield
    for prefix in ("rows", "raw"):
        dew.data.unregister(prefix)


def values(dataset: Dataset, steps: int = 30) -> list[int]:
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        return [int(x) for _ in range(steps) for x in next(stream)["x"]]


def negated(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"x": -record["x"]}


def test_a_mapping_loads_as_the_same_mixture() -> None:
    options = {"rows/some/a": RowOptions(), "rows/b": RowOptions(first=1000)}
    by_name = load({"rows/some/a": 0.7, "rows/b": 0.3}, batch=8, options=options, seed=4, loading=HERE)
    parts = {"b": (load("rows/b", batch=1, options=options["rows/b"]), 3), "a": (load("rows/some/a", batch=1), 7)}
    by_value = Mixture(parts, seed=4, loading=HERE).load(batch=8)
    assert (by_name.records, by_name.batch) == (200, 8)
    assert values(by_name) == values(by_value)
    with by_name.train(DataPartition()) as one, by_value.train(DataPartition()) as other:  # type: ignore[attr-defined]
        other.set_state(one.get_state())
        assert [*one.order.report(100)] == ["a", "b"]


def test_options_split_and_preprocess_for_all_or_by_name() -> None:
    names = {"rows/a": 1, "raw/b": 1}
    for_all = values(load(names, batch=8, preprocess=negated, split="more", options=RowOptions(first=1), loading=HERE))
    assert {*range(-550, -500)} == set(for_all)
    by_name = load(
        names,
        batch=8,
        preprocess={"raw/b": negated},
        split={"raw/b": "more"},
        options={"rows/a": RowOptions(first=2000)},
        loading=HERE,
    )
    assert set(values(by_name, 60)) == {*range(2000, 2100), *range(-549, -499)}


def test_validation_is_opened_for_each_name() -> None:
    names = {"rows/a": 1, "rows/b": 1}
    assert load(names, batch=4, val_split={"rows/b": "val"}, loading=HERE).val is not None
    for_all = load(names, batch=4, val_split="val", options={"rows/b": RowOptions(first=1000)}, loading=HERE)
    assert list(validation_sets(for_all)) == ["a", "b"]
    by_options = load(names, batch=4, options={"rows/b": RowOptions(val_split="test")}, loading=HERE)
    assert list(validation_sets(by_options)) == ["b"]
    passes = [*validation_sets(by_options)["b"](DataPartition())]
    assert [int(x) for batch in passes for x in batch["x"][batch["valid"]]] == [800, 801, 802, 803, 804]


def test_token_corpora_and_rows_of_another_provider(tmp_path: Path) -> None:
    from dew.tokens import TokenizerInfo, TokenOptions, write_corpus

    ids = np.arange(161, dtype=np.uint16)
    write_corpus([ids[:80], ids[80:]], tmp_path / "corpus", tokenizer=TokenizerInfo(vocab_size=5000))

    def as_text(record: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"text": np.full(9, record["x"], np.int32)}

    name = f"tokens/{tmp_path / 'corpus'}"
    dataset = load(
        {name: 0.75, "rows/b": 0.25},
        batch=16,
        options={name: TokenOptions(seq_len=8), "rows/b": RowOptions(first=1000)},
        preprocess={"rows/b": as_text},
        loading=HERE,
    )
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        first = np.concatenate([next(stream)["text"] for _ in range(4)])
        state = stream.get_state()
        following = next(stream)["text"]
    rows = first[first[:, 0] >= 1000]
    assert len(rows) == 16
    assert (rows == rows[:, :1]).all()
    assert all((row[1:] == row[:-1] + 1).all() for row in first[first[:, 0] < 1000])
    assert state["order"]["parts.corpus.tokenizer"] is None
    shares = [dataset.train(DataPartition(index, 4)) for index in range(4)]
    for share in shares:
        share.set_state(state)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(np.stack([next(share)["text"] for share in shares], 1).reshape(-1, 9), following)


def test_a_changed_weight_is_refused() -> None:
    stream: Any = load({"rows/a": 1, "rows/b": 1}, batch=4, loading=HERE).train(DataPartition())
    next(stream)
    other: Any = load({"rows/a": 1, "rows/b": 2}, batch=4, loading=HERE).train(DataPartition())
    with pytest.raises(PositionMismatchError, match=r"another weights: saved {'a': '1/2', 'b': '1/2'}"):
        other.set_state(stream.get_state())


@pytest.mark.parametrize(
    ("source", "arguments", "kind", "message"),
    [
        ({}, {}, OptionsError, "a mixture needs at least one part with a weight, got none"),
        ({"rows/a": 0, "rows/b": 1}, {}, OptionsError, "the weight of 'rows/a' must be above 0, got 0"),
        ({"rows/a": "1"}, {}, OptionsTypeError, "the weight of 'rows/a' must be a number above 0, got '1' (str)"),
        ({"rows/a": True}, {}, OptionsTypeError, "the weight of 'rows/a' must be a number above 0, got True (bool)"),
        ({"rows": 1}, {}, OptionsError, 'load takes "prefix/name" such as'),
        ({3: 1}, {}, OptionsTypeError, 'load takes a source "prefix/name", got 3 (int)'),
        (
            {"rows/x/train": 1, "rows/y/train/": 1},
            {},
            OptionsError,
            "rows/x/train and rows/y/train/ would both be labelled",
        ),
        ({"nowhere/a": 1}, {}, ProviderError, "nowhere"),
        (
            {"rows/a": 1},
            {"split": {"rows/b": "val"}},
            OptionsError,
            "split given for ['rows/b'], which are no parts",
        ),
        ({"rows/a": 1}, {"options": {"a": 1}}, OptionsError, "options given for ['a'], which are no parts"),
        ({"rows/a": 1}, {"split": {"rows/a": 3}}, OptionsTypeError, "split must be a str, got 3 (int)"),
        ({"rows/a": 1}, {"split": "none"}, SplitError, "no split 'none'"),
        ({"rows/a": 1}, {"preprocess": {"rows/a": 3}}, OptionsTypeError, "preprocess must be a function"),
        ({"rows/a": 1, "raw/b": 1}, {}, OptionsTypeError, "load('raw/b') needs preprocess="),
        ({"rows/a": 1}, {"options": 5}, OptionsTypeError, "load('rows/a') takes options of the class RowOptions"),
        (
            {"rows/a": 1},
            {"records": 5},
            OptionsTypeError,
            "a mixture of sources and records, which belongs to one source",
        ),
        ({"rows/a": 1}, {"streaming": True}, OptionsTypeError, "a mixture of sources and streaming"),
        ({"rows/a": 1}, {"dataset": []}, OptionsTypeError, "a mixture of sources and dataset"),
        ({"rows/a": 1}, {"loading": 3}, OptionsTypeError, "loading must be a dew.data.Loading, got 3"),
        (
            {"rows/a": 1},
            {"options": RowOptions(stream=True)},
            OptionsTypeError,
            "is read as a stream, and a mixture needs",
        ),
        ({"rows/a": 1}, {"val_split": "train"}, OverlapError, "would validate on the records that it trains on"),
        (
            {"rows/a": 1, "raw/b": 1},
            {"preprocess": {"raw/b": lambda record: {"x": np.float32(1)}}},
            CollateError,
            "field 'x' is int64 () in part 'a' and float32 () in part 'b'",
        ),
    ],
)
def test_what_cannot_be_mixed_is_refused(
    source: Any, arguments: Mapping[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        load(source, batch=4, **arguments)


def test_options_of_one_source_by_name_are_refused() -> None:
    with pytest.raises(OptionsTypeError, match=r"split must be a str, got {'rows/a': 'val'}"):
        load("rows/a", batch=4, split={"rows/a": "val"})
