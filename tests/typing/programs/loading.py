"""Loading, and what comes out of a dataset. A line that a checker must refuse says so: `# error: <its rule>`."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, assert_type

import numpy as np

from dew.data import (
    DataPartition,
    Dataset,
    Loading,
    Mixture,
    Ramp,
    RecordStream,
    TokenOptions,
    columns,
    from_records,
    load,
    ramped,
    train_stream,
)

# One source, with every kind of argument; the position of arguments after the source is their name.
data = load("tokens/corpus", batch=8, options=TokenOptions(seq_len=64, val=0.01), seed=3, loading=Loading(workers=0))
assert_type(data, Dataset)
load()  # error: reportCallIssue
load("tokens/corpus")  # error: reportCallIssue
load("tokens/corpus", 8)  # error: reportCallIssue
load("tokens/corpus", batch="8")  # error: reportArgumentType
load("tokens/corpus", batch=8, spilt="val")  # error: reportCallIssue
load("tokens/corpus", batch=8, val_remainder="keep")  # error: reportArgumentType
load("tokens/corpus", batch=8, loading={"workers": 0})  # error: reportArgumentType
load(3, batch=8)  # error: reportArgumentType

# Several sources by their weights, where some options may be given for each by name.
mixed = load(
    {"tokens/code": 0.7, "hf/books": 0.3},
    batch=8,
    split={"tokens/code": "train", "hf/books": "all"},
    options={"tokens/code": TokenOptions(seq_len=64)},
    preprocess={"hf/books": columns("text")},
)
assert_type(mixed, Dataset)
load({"tokens/code": "most", "hf/books": 0.3}, batch=8)  # error: reportArgumentType
load(["tokens/code", "hf/books"], batch=8)  # error: reportArgumentType
assert_type(Mixture({"code": (data, 0.7), "books": (mixed, 0.3)}, exhaustion="stop_all").load(batch=8), Dataset)
Mixture({"code": (data, 0.7)}, exhaustion="never")  # error: reportArgumentType

# preprocess takes a record, or a record and its draws, and returns fields.


def of_a_record(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"x": record["x"]}


def with_draws(record: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"x": record["x"], "noise": rng.normal()}


def of_nothing(record: Mapping[str, Any]) -> int:
    return len(record)


load("hf/x", batch=8, preprocess=of_a_record)
load("hf/x", batch=8, preprocess=with_draws)
load("hf/x", batch=8, preprocess=lambda record: {"x": record["x"]})
load("hf/x", batch=8, preprocess=of_nothing)  # error: reportArgumentType
load("hf/x", batch=8, preprocess="x")  # error: reportArgumentType

# A dataset: two functions of a share, and numbers.
assert_type(data.train, Callable[[DataPartition], Iterator[dict[str, Any]]])
assert_type(data.records, int | None)
assert_type(data.batch, int)
assert_type(data.steps_per_epoch, int | None)
assert_type(data.steps_for(epochs=2), int)
for batch in data.train(DataPartition(index=0, count=2)):
    assert_type(batch, dict[str, Any])
data.train()  # error: reportCallIssue
data.val(DataPartition())  # error: reportOptionalCall
if data.val is not None:
    assert_type(next(data.val(DataPartition())), dict[str, Any])
data.batch = 9  # error: reportAttributeAccessIssue
print(data.length)  # error: reportAttributeAccessIssue
DataPartition(0, 1, reader="0")  # error: reportArgumentType

# Datasets and streams made by hand.
rows = from_records({"x": np.arange(8)}, batch=4, val=[{"x": 1}])
assert_type(rows, Dataset)
assert_type(ramped(rows, Ramp(start=2, increment=2, samples=100)), Dataset)
from_records({"x": np.arange(8)})  # error: reportCallIssue
stream = train_stream([{"x": 1}, {"x": 2}], batch=2, seed=1)
assert_type(stream, RecordStream)
assert_type(next(stream), dict[str, Any])
assert_type(stream.get_state(), dict[str, Any])
train_stream([{"x": 1}], batch=2, sede=1)  # error: reportCallIssue
train_stream(3, batch=2)  # error: reportArgumentType
Loading(worker=2)  # error: reportCallIssue
Loading(workers=0).workers = 2  # error: reportAttributeAccessIssue
