"""A validation pass scores every record exactly once, in order, the same number of steps on every process."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from dew.data import (
    DataPartition,
    Loading,
    OptionsError,
    OptionsTypeError,
    OverlapError,
    PartitionError,
    SourceError,
    StreamClosedError,
    dataset_of,
    from_records,
    train_stream,
    validation_pass,
)

HERE = Loading(workers=0, threads=1, read_buffer=0)
AHEAD = Loading(workers=0, threads=1, read_buffer=3)
POOL = Loading(workers=0, threads=4, read_buffer=2)
WAYS = pytest.mark.parametrize("loading", [HERE, AHEAD, POOL], ids=["here", "ahead", "pool"])


class Ids:
    def __init__(self, records: int) -> None:
        self.records = records

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return {"id": index}

    def __repr__(self) -> str:
        return f"Ids({self.records})"


class Rows(Ids):
    """Packed rows of 3 tokens, all of segment 1 and role 2."""

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        ones = np.ones(3, np.int32)
        return {
            "text": ones * index,
            "text_segment_ids": ones,
            "text_positions": np.arange(3, dtype=np.int32),
            "text_roles": 2 * ones,
            "other_roles": ones.astype(np.int8),
            "score_roles": np.ones(3, np.float32),
            "inner": {"text_segment_ids": ones},
        }


class TakenRows(Rows):
    def take(self, indices: Any) -> Mapping[str, Any]:
        rows: list[Any] = [self[int(index)] for index in indices]
        columns: dict[str, Any] = {name: np.stack([row[name] for row in rows]) for name in rows[0] if name != "inner"}
        inner = np.stack([row["inner"]["text_segment_ids"] for row in rows])
        return {**columns, "inner": {"text_segment_ids": inner}}


def own_threads() -> list[str]:
    """Threads of streams; other libraries keep some of their own."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dew-")]


def passed(records: int, batch: int, **options: Any) -> list[dict[str, Any]]:
    with validation_pass(Ids(records), batch=batch, **{"loading": HERE, **options}) as stream:
        return list(stream)


def ids(batches: list[dict[str, Any]]) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def scored(batches: list[dict[str, Any]]) -> list[int]:
    return [int(row) for batch in batches for row in batch["id"][batch["valid"]]]


@WAYS
def test_the_split_is_read_in_order_and_padded_with_record_0(loading: Loading) -> None:
    batches = passed(10, 4, loading=loading)
    assert ids(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 0]]
    assert [batch["valid"].tolist() for batch in batches] == [[True] * 4, [True] * 4, [True, True, False, False]]
    assert all(batch["valid"].dtype == np.bool_ for batch in batches)


def test_a_split_that_divides_needs_no_padding_but_has_the_mask() -> None:
    batches = passed(8, 4)
    assert ids(batches) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert all(batch["valid"].all() for batch in batches)


@pytest.mark.parametrize("records", [1, 2, 3, 7, 8, 9, 23, 24])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_every_record_is_scored_once_on_any_process_count(records: int, count: int) -> None:
    shares = [passed(records, 8, partition=DataPartition(index, count)) for index in range(count)]
    assert {len(share) for share in shares} == {-(-records // 8)}
    assert sorted(row for share in shares for row in scored(share)) == list(range(records))
    for share in shares:
        assert all(batch["id"].shape == batch["valid"].shape == (8 // count,) for batch in share)
        assert all((batch["id"][~batch["valid"]] == 0).all() for batch in share)
    whole = passed(records, 8)
    for step, batch in enumerate(whole):
        assert np.stack([share[step]["id"] for share in shares], axis=1).ravel().tolist() == batch["id"].tolist()


def test_the_length_of_a_pass_is_known() -> None:
    assert len(validation_pass(Ids(9), batch=4)) == 3
    assert len(validation_pass(Ids(9), batch=4, remainder="drop")) == 2
    assert len(validation_pass(Ids(9), batch=4, partition=DataPartition(1, 4))) == 3


@pytest.mark.parametrize(
    "loading", [HERE, AHEAD, Loading(workers=1), Loading(workers=3)], ids=["here", "ahead", "1 worker", "3 workers"]
)
def test_passes_are_equal_also_after_one_that_was_left_half_way(loading: Loading) -> None:
    dataset = from_records({"id": np.arange(100, 140)}, val={"id": np.arange(40)}, batch=4, loading=loading)
    assert dataset.val is not None
    found: list[list[list[int]]] = []
    for most in (100, 2, 100):
        stream: Any = dataset.val(DataPartition())
        rows: list[list[int]] = []
        for batch in stream:
            rows.append(batch["id"].tolist())
            if len(rows) == most:
                break
        stream.close()
        found.append(rows)
    assert [len(rows) for rows in found] == [10, 2, 10]
    assert found[0] == found[2] == [list(range(4 * step, 4 * step + 4)) for step in range(10)]
    assert found[1] == found[0][:2]


def test_passes_at_the_same_time_do_not_meet() -> None:
    dataset = from_records({"id": np.arange(100, 140)}, val={"id": np.arange(12)}, batch=4, loading=AHEAD)
    assert dataset.val is not None
    first, second = dataset.val(DataPartition()), dataset.val(DataPartition())
    assert ids([next(first), next(first)]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert ids([*second]) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert ids([*first]) == [[8, 9, 10, 11]]


# The mask


def test_valid_field_renames_the_mask() -> None:
    batches = passed(3, 2, valid_field="real")
    assert [sorted(batch) for batch in batches] == [["id", "real"]] * 2
    assert batches[1]["real"].tolist() == [True, False]


@WAYS
def test_a_field_of_the_users_named_valid_is_refused(loading: Loading) -> None:
    def named(record: Any) -> Any:
        return {**record, "valid": True}

    source = Ids(5)
    with (
        validation_pass(source, batch=2, preprocess=named, loading=loading) as stream,
        pytest.raises(OptionsError, match=r"already have a field 'valid', .*rename it with place_field="),
    ):
        next(stream)
    with validation_pass(source, batch=2, preprocess=named, valid_field="real", loading=loading) as stream:
        assert set(next(stream)) == {"id", "valid", "real"}
    with validation_pass(source, batch=2, preprocess=named, remainder="drop", loading=loading) as stream:
        assert set(next(stream)) == {"id", "valid"}


@pytest.mark.parametrize("source", [Rows, TakenRows])
@WAYS
def test_padding_rows_have_segment_and_role_0(source: type[Rows], loading: Loading) -> None:
    with validation_pass(source(5), batch=4, loading=loading) as stream:
        full, last = list(stream)
    names = ("text_segment_ids", "text_roles", "other_roles")
    for name in names:
        assert full[name].all()
        assert last[name][0].all()
        assert not last[name][1:].any()
    assert last["inner"]["text_segment_ids"].tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert last["text"].tolist() == [[4, 4, 4], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert last["text_positions"].tolist() == [[0, 1, 2]] * 4
    assert last["score_roles"].all()  # not an integer: no role of Dew's


def test_places_go_on_past_the_end() -> None:
    with validation_pass(Ids(5), batch=4, partition=DataPartition(1, 2), place_field="place", loading=HERE) as stream:
        assert [batch["place"][:, 1].tolist() for batch in stream] == [[1, 3], [5, 7]]
    with pytest.raises(OptionsError, match="place_field and valid_field are both 'valid'"):
        validation_pass(Ids(5), batch=4, place_field="valid")


# Leaving the remainder out


@pytest.mark.parametrize("count", [1, 2])
def test_drop_leaves_part_batches_and_the_mask_out(count: int) -> None:
    shares = [passed(11, 4, remainder="drop", partition=DataPartition(index, count)) for index in range(count)]
    rows = np.stack([np.concatenate([batch["id"] for batch in share]) for share in shares], axis=1).ravel()
    assert rows.tolist() == list(range(8))
    assert all(set(batch) == {"id"} for share in shares for batch in share)


def test_drop_of_everything_is_refused() -> None:
    with pytest.raises(SourceError, match=r'holds 3 records, fewer than .* of 4: with .*use remainder="pad"'):
        validation_pass(Ids(3), batch=4, remainder="drop")


# Arguments


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"remainder": "keep"}, OptionsError, 'remainder must be "pad" or "drop", got \'keep\''),
        ({"batch": 0}, OptionsError, "batch must be at least 1, got 0"),
        ({"seed": -2}, OptionsError, r"seed must be in \[0, 2\*\*64\), got -2"),
        ({"partition": DataPartition(0, 3)}, PartitionError, "4 rows does not divide over 3 processes"),
        ({"valid_field": ""}, OptionsTypeError, "valid_field must be the name of a field, got ''"),
        ({"valid_field": 4}, OptionsTypeError, "valid_field must be the name of a field, got 4"),
        ({"preprocess": "lower"}, OptionsTypeError, "preprocess must be a function of a record, got 'lower'"),
        ({"preprocess": lambda *, record: record}, OptionsError, "fits neither"),
    ],
)
def test_arguments_that_cannot_be_used(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        validation_pass(Ids(5), **{"batch": 4, **arguments})


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(SourceError, match=r"Ids\(0\) holds no records"):
        validation_pass(Ids(0), batch=4)


def test_the_records_of_training_are_refused_for_validation() -> None:
    rows = Ids(8)
    with pytest.raises(OverlapError, match=r"would read the same records: Ids\(8\).*allow_overlap=True"):
        dataset_of(rows, val=rows, batch=4)
    dataset = dataset_of(rows, val=rows, batch=4, allow_overlap=True, loading=HERE)
    assert dataset.val is not None
    assert len(list(dataset.val(DataPartition()))) == 2


# Draws


def draw(record: Mapping[str, Any], rng: np.random.Generator) -> Mapping[str, Any]:
    return {**record, "u": int(rng.integers(1 << 62))}


def test_draws_repeat_in_each_pass_and_are_not_those_of_training() -> None:
    def drawn(stream: Iterator[Mapping[str, Any]]) -> list[int]:
        return [int(u) for _ in range(3) for u in next(stream)["u"]]

    options: dict[str, Any] = {"batch": 4, "seed": 9, "preprocess": draw, "loading": HERE}
    first = drawn(validation_pass(Ids(12), **options))
    assert drawn(validation_pass(Ids(12), **{**options, "loading": POOL})) == first
    assert not set(first) & set(drawn(train_stream(Ids(12), shuffle=False, **options)))
    halves = [
        [int(u) for batch in validation_pass(Ids(12), partition=DataPartition(i, 2), **options) for u in batch["u"]]
        for i in range(2)
    ]
    assert np.stack(halves, axis=1).ravel().tolist() == first
    assert len(set(first)) == 12


# Errors and the end


@WAYS
def test_an_error_latches(loading: Loading) -> None:
    error = OSError("unreadable")

    def bad(record: Any) -> Any:
        if record["id"] == 6:
            raise error
        return record

    with validation_pass(Ids(10), batch=4, preprocess=bad, loading=loading) as stream:
        next(stream)
        for _ in range(3):
            with pytest.raises(OSError, match="unreadable") as caught:
                next(stream)
            assert caught.value is error
    assert error.__notes__ == ["reading record 6 (place 6)", "in step 1 of Ids(10)"]


@WAYS
def test_a_pass_ends_once_and_for_all(loading: Loading) -> None:
    stream = validation_pass(Ids(5), batch=4, loading=loading)
    assert len(list(stream)) == 2
    assert own_threads() == []  # nothing waits for close()
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(stream)
    stream.close()
    with pytest.raises(StreamClosedError, match="this stream was closed"):
        next(stream)


def test_a_pass_has_no_position() -> None:
    stream = validation_pass(Ids(5), batch=4)
    assert not hasattr(stream, "get_state")
    assert not hasattr(stream, "set_state")
