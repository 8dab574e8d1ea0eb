"""Streaming: shares, positions on the record, what is refused, and what `datasets` gets wrong around it."""

import json
import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from dew.data import (
    DataPartition,
    Dataset,
    Loading,
    OptionsError,
    OptionsTypeError,
    PositionError,
    PositionMismatchError,
    SourceError,
    columns,
    identity,
    load,
)

# The library leaves closing of csv and text files to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:(?s).*unclosed file.*\.(csv|txt)",
    r"ignore:(?s).*FileIO.*\.(csv|txt):pytest.PytestUnraisableExceptionWarning",
)

KINDS = ("parquet", "json", "csv", "text", "arrow", "webdataset")
TOTAL = 21
DIRECT = Loading(read_buffer=0, threads=1)


def stream(files: Any, batch: int, preprocess: Any = identity, **more: Any) -> Dataset:
    more = {"options": files.options(), "loading": DIRECT, **more}
    return load(files.source, batch=batch, streaming=True, preprocess=preprocess, **more)


def ids(dataset: Dataset, index: int, count: int, steps: int) -> list[list[int]]:
    with dataset.train(DataPartition(index, count)) as opened:
        return [next(opened)["id"].tolist() for _ in range(steps)]


def check_chain(dataset: Dataset, index: int, count: int, steps: int) -> None:
    """Saved and restored at every step, in a chain, the rows and draws are those of a run without an interruption."""
    with dataset.train(DataPartition(index, count)) as opened:
        whole = [next(opened) for _ in range(steps)]
    state: Any = None
    for step in range(steps):
        with dataset.train(DataPartition(index, count)) as opened:
            if state is not None:
                opened.set_state(json.loads(json.dumps(state)))
            batch = next(opened)
            assert batch["id"].tolist() == whole[step]["id"].tolist(), f"step {step} of share {index} of {count}"
            assert batch["draw"].tolist() == whole[step]["draw"].tolist()
            state = opened.get_state()
            assert opened.get_state() == state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3])
def test_every_format_resumes_on_the_record_at_every_position(
    kind: str, count: int, all_kinds: Any, with_draws: Any
) -> None:
    check_chain(stream(all_kinds[kind], count, with_draws), 0, count, TOTAL // count + 3)


@pytest.mark.parametrize("count", [2, 4, 5])
@pytest.mark.parametrize("rows", [1, 3])
def test_every_share_resumes_on_the_record(count: int, rows: int, all_kinds: Any, with_draws: Any) -> None:
    dataset = stream(all_kinds["parquet"], count * rows, with_draws)
    for index in range(count):
        check_chain(dataset, index, count, 9 // rows)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_whole_matrix(kind: str, count: int, all_kinds: Any, with_draws: Any) -> None:
    for rows in (1, 2, 4):
        dataset = stream(all_kinds[kind], count * rows, with_draws)
        for index in range(count):
            check_chain(dataset, index, count, 2 * TOTAL // (count * rows) + 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_shares_of_a_pass_hold_each_row_once(kind: str, count: int, all_kinds: Any, with_draws: Any) -> None:
    dataset = stream(all_kinds[kind], count, with_draws)
    seen: list[int] = []
    for index in range(count):
        with dataset.train(DataPartition(index, count)) as opened:
            while True:
                batch = next(opened)
                if opened.get_state()["state"]["pass"]:
                    break
                seen += batch["id"].tolist()
    assert sorted(seen) == list(range(TOTAL))


def test_draws_differ_between_shares_rows_and_passes(all_kinds: Any, with_draws: Any) -> None:
    dataset = stream(all_kinds["json"], 3, with_draws)
    draws: list[int] = []
    for index in range(3):
        with dataset.train(DataPartition(index, 3)) as opened:
            draws += [int(next(opened)["draw"][0]) for _ in range(20)]
    assert len(set(draws)) == len(draws)


def test_reading_ahead_changes_nothing(all_kinds: Any, with_draws: Any) -> None:
    direct = stream(all_kinds["parquet"], 4, with_draws)
    ahead = stream(all_kinds["parquet"], 4, with_draws, loading=Loading(read_buffer=4, threads=3))
    with direct.train(DataPartition()) as one, ahead.train(DataPartition()) as other:
        for _ in range(12):
            assert next(one)["id"].tolist() == next(other)["id"].tolist()
            assert one.get_state() == other.get_state()


def test_passes_are_counted_here_and_the_librarys_epoch_stays_0(all_kinds: Any, with_draws: Any) -> None:
    dataset = stream(all_kinds["parquet"], 7, with_draws)
    assert (dataset.records, dataset.steps_per_epoch) == (None, None)
    with dataset.train(DataPartition()) as opened:
        for _ in range(7):
            next(opened)
        state = opened.get_state()["state"]
    # Epoch 1 of the library would permute the files, and a state of another epoch is ignored by it.
    assert (state["pass"], state["rows"], state["stream"]["epoch"]) == (2, 49, 0)


def test_skips_nothing_after_the_split(write_files: Any, with_draws: Any) -> None:
    dataset = stream(write_files("parquet", (400,), 400), 4, with_draws)
    union: list[int] = []
    for index in range(2):
        with dataset.train(DataPartition(index, 2)) as opened:
            for _ in range(5):
                next(opened)
            state = opened.get_state()
        with dataset.train(DataPartition(index, 2)) as again:
            again.set_state(state)
            union += next(again)["id"].tolist()
    assert sorted(union) == [20, 21, 22, 23]


def test_records_are_what_the_caller_says(all_kinds: Any) -> None:
    dataset = stream(all_kinds["json"], 4, records=21)
    assert (dataset.records, dataset.steps_per_epoch) == (21, 5)


# What a position belongs to


def saved(dataset: Dataset, index: int = 0, count: int = 1) -> Any:
    with dataset.train(DataPartition(index, count)) as opened:
        next(opened)
        return opened.get_state()


def refusal(dataset: Dataset, state: Any, index: int = 0, count: int = 1) -> PositionMismatchError:
    with dataset.train(DataPartition(index, count)) as opened:
        with pytest.raises(PositionMismatchError) as caught:
            opened.set_state(state)
        assert next(opened)["id"][0] == ids(dataset, index, count, 1)[0][0], "a refusal changes nothing"
    return caught.value


def test_another_process_count_or_share_is_refused_with_both(all_kinds: Any) -> None:
    dataset = stream(all_kinds["json"], 4)
    state = saved(dataset, 0, 2)
    assert "share 0 of 2 and cannot continue on 4 shares" in str(refusal(dataset, state, 0, 4))
    assert "belongs to share 0 of 2, not to share 1" in str(refusal(dataset, state, 1, 2))


def test_other_data_is_refused_by_part(all_kinds: Any, write_files: Any) -> None:
    state = saved(stream(all_kinds["json"], 4))
    assert refusal(stream(all_kinds["parquet"], 4), state).part == "source"
    assert refusal(stream(write_files("json", (7, 5, 6)), 4), state).part == "files"
    assert refusal(stream(write_files("json", (7, 5, 6, 4), folder="longer"), 4), state).part == "files"
    error = refusal(stream(all_kinds["json"], 4, seed=1), state)
    assert (error.part, error.saved, error.current) == ("seed", 0, 1)
    assert refusal(stream(all_kinds["json"], 5), state).part == "batch"


def test_a_moved_file_list_goes_on(all_kinds: Any, write_files: Any) -> None:
    state = saved(stream(all_kinds["json"], 4))
    with stream(write_files("json"), 4).train(DataPartition()) as opened:
        opened.set_state(state)
        assert next(opened)["id"].tolist() == [4, 5, 6, 7]


def test_one_part_can_be_accepted(all_kinds: Any) -> None:
    state = saved(stream(all_kinds["json"], 4))
    state["state"]["identity"]["library"] = "datasets 5.0.1"
    dataset = stream(all_kinds["json"], 4)
    assert refusal(dataset, state).part == "library"
    with dataset.train(DataPartition()) as opened:
        opened.set_state(state, accept={"library"})
        assert next(opened)["id"].tolist() == [4, 5, 6, 7]
        with pytest.raises(OptionsError, match=r"accept=\['libary'\] names no part"):
            opened.set_state(state, accept={"libary"})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"kind": "shard", "index": 0, "count": 1, "state": {}}, "has the fields"),
        ({"kind": "shard", "index": 0, "count": 1, "state": 3}, "has the fields"),
        ({"records": 4}, "kind"),
    ],
)
def test_what_is_no_position_is_refused(state: Any, message: str, all_kinds: Any) -> None:
    with stream(all_kinds["json"], 4).train(DataPartition()) as opened, pytest.raises(PositionError, match=message):
        opened.set_state(state)


def test_numbers_in_a_position_are_checked(all_kinds: Any) -> None:
    dataset = stream(all_kinds["json"], 4)
    state = saved(dataset)
    state["state"]["rows"] = -4
    with dataset.train(DataPartition()) as opened, pytest.raises(PositionError, match=r"rows in the state .* got -4"):
        opened.set_state(state)


# Streams without a position


def test_a_shuffle_buffer_has_no_position(write_files: Any) -> None:
    files = write_files("parquet", (5000,), 5000)
    dataset = stream(files, 10, shuffle_buffer=50, seed=3)
    with dataset.train(DataPartition()) as opened:
        assert not hasattr(opened, "get_state")
        assert not hasattr(opened, "set_state")
        assert "shuffle_buffer=50" in opened.no_position_reason
        first = np.concatenate([next(opened)["id"] for _ in range(20)])
    with dataset.train(DataPartition()) as opened:
        np.testing.assert_array_equal(first, np.concatenate([next(opened)["id"] for _ in range(20)]))
    assert first.max() < 250
    assert first.tolist() != sorted(first.tolist())
    assert ids(stream(files, 10, shuffle_buffer=50, seed=4), 0, 1, 1)[0] != first[:10].tolist()
    assert dataset.records is None


def test_each_pass_over_a_buffer_is_shuffled_anew(all_kinds: Any) -> None:
    passes = ids(stream(all_kinds["json"], 21, shuffle_buffer=100), 0, 1, 2)
    assert [sorted(one) for one in passes] == [list(range(21))] * 2
    assert passes[0] != passes[1]


@pytest.mark.parametrize("filtered", [False, True])
def test_a_given_stream_has_no_position(filtered: bool, all_kinds: Any) -> None:
    given = datasets.load_dataset("json", data_files=list(all_kinds["json"].paths), split="train", streaming=True)
    if filtered:
        given = given.filter(lambda row: row["id"] % 2 == 0)
    dataset = load("hf/mine", batch=3, dataset=given, streaming=True, preprocess=identity, loading=DIRECT)
    with dataset.train(DataPartition()) as opened:
        assert not hasattr(opened, "get_state")
        assert "dataset=" in opened.no_position_reason
        assert next(opened)["id"].tolist() == ([0, 2, 4] if filtered else [0, 1, 2])
    assert ids(dataset, 0, 1, 1) == ids(dataset, 0, 1, 1)


@pytest.mark.parametrize("named", [False, True])
def test_streams_of_one_dataset_keep_their_own_places(named: bool, all_kinds: Any) -> None:
    files, ahead = all_kinds["parquet"], Loading(read_buffer=3, threads=1)
    given = datasets.load_dataset("parquet", data_files=list(files.paths), split="train", streaming=True)
    dataset = load("hf/mine", batch=6, dataset=given, streaming=True, preprocess=identity, loading=ahead)
    if named:
        dataset = stream(files, 6, loading=ahead)
    with dataset.train(DataPartition(0, 2)) as one, dataset.train(DataPartition(1, 2)) as other:
        for _ in range(2 * TOTAL // 6):
            rows = next(one)["id"].tolist() + next(other)["id"].tolist()
            assert len(set(rows)) == 6
    assert ids(dataset, 0, 2, 3) == ids(dataset, 0, 2, 3)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_stream_that_was_split_is_not_split_again() -> None:
    from datasets.distributed import split_dataset_by_node

    whole = datasets.Dataset.from_dict({"id": list(range(64))}).to_iterable_dataset()
    with pytest.raises(OptionsError, match=r"dataset is part 1 of 32 of a stream already"):
        load("hf/x", batch=15, dataset=split_dataset_by_node(whole, 1, 32), streaming=True, preprocess=identity)


# More processes than rows


def test_more_processes_than_rows_are_refused_everywhere(write_files: Any) -> None:
    dataset = stream(write_files("json", (1, 1)), 4)
    for index in range(4):
        with pytest.raises(SourceError, match=r"holds 2 rows, and 4 processes"):
            dataset.train(DataPartition(index, 4))


def test_fewer_rows_than_a_batch_are_refused(write_files: Any) -> None:
    dataset = stream(write_files("json", (3,)), 8)
    with pytest.raises(SourceError, match=r"holds 3 rows, fewer than one global batch of 8"):
        dataset.train(DataPartition())


def test_where_a_split_by_files_leaves_a_share_empty_all_split_by_rows(write_files: Any, with_draws: Any) -> None:
    dataset = stream(write_files("json", (4, 0)), 2, with_draws)
    for index in range(2):
        with dataset.train(DataPartition(index, 2)) as opened:
            assert opened.get_state()["state"]["identity"]["split"] == "examples"
    assert ids(dataset, 0, 2, 2) == [[0], [2]]
    assert ids(dataset, 1, 2, 2) == [[1], [3]]


def test_a_stream_that_runs_dry_says_whose_and_after_how_many_rows(write_files: Any) -> None:
    files = write_files("json", (4,))
    with stream(files, 2).train(DataPartition()) as opened:
        for _ in range(2):
            next(opened)
        Path(files.paths[0]).write_text("")
        with pytest.raises(SourceError, match=r"pass 1 .* had no row for share 0 of 1, which has read 4 rows"):
            next(opened)


# Validation


@pytest.mark.parametrize("kind", ["parquet", "json", "webdataset"])
def test_validation_scores_each_row_once_at_any_count(kind: str, all_kinds: Any, write_files: Any) -> None:
    files = all_kinds[kind]
    data_files = {"train": list(write_files(kind).paths), "val": list(files.paths)}

    def number(record: Any) -> Any:
        return {"id": record["json"]["id"] if "json" in record else record["id"]}

    from dew.data import HFOptions

    options = HFOptions(data_files=data_files)
    dataset = load(
        files.source,
        batch=12,
        streaming=True,
        val_split="val",
        options=options,
        preprocess=number,
        loading=DIRECT,
    )
    assert dataset.val is not None
    for count in (1, 2, 3, 4):
        for _ in range(2):
            shares = [list(dataset.val(DataPartition(index, count))) for index in range(count)]
            assert {len(share) for share in shares} == {2}
            scored = [row for share in shares for batch in share for row in batch["id"][batch["valid"]].tolist()]
            assert sorted(scored) == list(range(TOTAL))
            padding = [row for share in shares for batch in share for row in batch["id"][~batch["valid"]].tolist()]
            assert padding == [0, 0, 0], "padding repeats record 0"
    dropped = load(
        files.source,
        batch=12,
        streaming=True,
        val_split="val",
        options=options,
        preprocess=number,
        val_remainder="drop",
        loading=DIRECT,
    )
    assert dropped.val is not None
    assert [sorted(batch) for batch in dropped.val(DataPartition())] == [["id"]]


def test_validation_of_fewer_rows_than_processes(all_kinds: Any, write_files: Any) -> None:
    few = datasets.Dataset.from_list([{"id": 7, "text": "x"}]).to_iterable_dataset()
    dataset = stream(all_kinds["json"], 4, val_dataset=few)
    assert dataset.val is not None
    found = [list(dataset.val(DataPartition(index, 4))) for index in range(4)]
    assert [share[0]["valid"].tolist() for share in found] == [[True], [False], [False], [False]]


# Errors


def test_a_failing_row_latches(all_kinds: Any) -> None:
    def fail(record: Any) -> Any:
        if record["id"] == 5:
            raise ValueError("no such thing")
        return {"id": record["id"]}

    with stream(all_kinds["json"], 4, fail).train(DataPartition()) as opened:
        next(opened)
        for _ in range(2):
            with pytest.raises(ValueError, match="no such thing") as caught:
                next(opened)
            notes = " ".join(caught.value.__notes__)
            assert "place 5" in notes
            assert "step 1" in notes
            assert "json" in notes


def test_preprocess_is_asked_for_with_the_fields(all_kinds: Any) -> None:
    with pytest.raises(OptionsTypeError, match=r"(?s)needs preprocess=.*id: int64 \(\).*text: str 'row 0'"):
        load(all_kinds["json"].source, batch=4, streaming=True, options=all_kinds["json"].options())


def test_worker_processes_are_refused(all_kinds: Any) -> None:
    with pytest.raises(OptionsError, match=r"Loading\(workers=2\) was given, and a stream has one reader"):
        stream(all_kinds["json"], 4, loading=Loading(workers=2))


@pytest.mark.parametrize(
    ("split", "error", "message"),
    [
        ("train[:50%]", ValueError, r"slices need streaming=False, and whole splits are \['train'\]"),
        ("test", LookupError, r"has no such split; there are \['train'\]"),
    ],
)
def test_splits_that_streams_do_not_have(split: str, error: type[Exception], message: str, all_kinds: Any) -> None:
    with pytest.raises(error, match=message):
        stream(all_kinds["json"], 4, split=split)


def test_a_list_of_files_keeps_its_order(write_files: Any) -> None:
    files = write_files("json", (1,) * 11)
    reversed_files = list(reversed(files.paths))
    dataset = stream(files, 11, options=type(files)(files.source, tuple(reversed_files)).options())
    assert ids(dataset, 0, 1, 1) == [list(range(10, -1, -1))]


def test_a_closed_stream_says_so(all_kinds: Any) -> None:
    opened = stream(all_kinds["parquet"], 4).train(DataPartition())
    next(opened)
    opened.close()
    opened.close()
    with pytest.raises(ValueError, match="closed"):
        next(opened)


def test_a_source_without_state_has_no_position(all_kinds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def still(self: Any) -> dict[str, Any]:
        return {"epoch": 0}

    monkeypatch.setattr(datasets.IterableDataset, "state_dict", still)
    with stream(all_kinds["json"], 4).train(DataPartition()) as opened:
        assert not hasattr(opened, "get_state")
        assert "keeps no state" in opened.no_position_reason


def test_names_hold_no_location(all_kinds: Any) -> None:
    state = saved(stream(all_kinds["parquet"], 4))
    assert not re.search(re.escape(str(Path(all_kinds["parquet"].paths[0]).parent)), json.dumps(state))


def test_a_stream_and_its_passes_are_counted_by_name(all_kinds: Any) -> None:
    from dew.data import metrics

    def counted(name: str) -> dict[str, tuple[int, int]]:
        whole = [each for each in metrics.snapshot() if each.source == name and each.share in ("", "0/1")]
        return {each.kind: (each.steps, each.errors) for each in whole}

    dataset = stream(all_kinds["parquet"], 4, columns("id"), val_split="train", allow_overlap=True)
    assert dataset.val is not None
    with dataset.train(DataPartition()) as opened:
        before = counted(opened.name)
        next(opened)
        with dataset.val(DataPartition()) as one_pass:  # type: ignore[attr-defined]
            assert sum(int(batch["valid"].sum()) for batch in one_pass) == TOTAL
        after = counted(opened.name)
    for kind, steps in (("train", 1), ("validation", 6)):
        first = before.get(kind, (0, 0))
        assert after[kind] == (first[0] + steps, first[1])
