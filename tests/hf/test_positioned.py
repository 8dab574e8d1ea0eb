"""`position="records"`: row groups of parquet in a seekable order, and whole streams, with one integer."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dew.data import (
    DataPartition,
    Dataset,
    HFOptions,
    Loading,
    OptionsError,
    OptionsTypeError,
    PositionMismatchError,
    SourceError,
    columns,
    identity,
    load,
    rebatch,
)

DIRECT = Loading(read_buffer=0, threads=1, workers=0)


def dataset_of(files: Any, batch: int = 12, preprocess: Any = identity, **more: Any) -> Dataset:
    options = files.options(position="records", **{name: more.pop(name) for name in ("lanes",) if name in more})
    return load(
        files.source, batch=batch, streaming=True, options=options, preprocess=preprocess, **{"loading": DIRECT, **more}
    )


def source_of(dataset: Dataset) -> Any:
    with dataset.train(DataPartition()) as stream:
        return stream.source


def test_length_and_steps_are_known(write_files: Any) -> None:
    dataset = dataset_of(write_files("parquet"))
    assert (dataset.records, dataset.steps_per_epoch) == (21, 1)
    with pytest.raises(OptionsError, match=r"records=20 was given, but .* counts 21"):
        dataset_of(write_files("parquet"), records=20)


def test_each_group_is_read_once_an_epoch_and_few_are_kept(write_files: Any) -> None:
    files = write_files("parquet", (640,), group=10)
    dataset = dataset_of(files, batch=16, lanes=8)
    source = source_of(dataset)
    reader = source.open()
    order = source.order(0)
    for start in range(0, 3 * 640, 16):
        reader.__getitems__(order.at(np.arange(start, start + 16)).tolist())
        assert reader.kept <= 16, "one window, and what is read ahead of the next"
    assert 3 * 64 <= reader.reads <= 3 * 64 + 8, "each once an epoch; of the fourth, the first window is read ahead"
    reader.close()


@pytest.mark.parametrize("count", [2, 4])
def test_a_process_reads_only_its_groups(count: int, write_files: Any) -> None:
    source = source_of(dataset_of(write_files("parquet", (640,), group=10), batch=16, lanes=8))
    order, reads = source.order(0), 0
    for index in range(count):
        reader = source.open()
        for start in range(0, 640, 16):
            reader.__getitems__(order.at(np.arange(start, start + 16))[index::count].tolist())
        reads += reader.reads
        reader.close()
    assert 64 <= reads <= 64 + 8, "together they read each once, and ahead the first window of the next epoch"


def bytes_read() -> int:
    """What this process has read from files, as the system counts it."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count what is read")
@pytest.mark.parametrize("count", [1, 4])
def test_an_epoch_reads_the_bytes_of_the_files_and_few_more(count: int, tmp_path: Path) -> None:
    rng, paths = np.random.default_rng(0), [tmp_path / f"{number}.parquet" for number in range(4)]
    for path in paths:
        table = pa.table({"id": range(4000), "noise": [rng.bytes(500) for _ in range(4000)]})
        pq.write_table(table, path, row_group_size=100, compression="none")
    options = HFOptions(data_files=list(map(str, paths)), position="records", lanes=8)
    before = bytes_read()
    dataset = load("hf/parquet", batch=400, streaming=True, options=options, preprocess=columns("id"), loading=DIRECT)
    for index in range(count):
        with dataset.train(DataPartition(index, count)) as stream:
            for _ in range(16_000 // 400):
                next(stream)
    assert bytes_read() - before <= 1.1 * sum(path.stat().st_size for path in paths)


def test_going_on_reads_no_more_than_a_step(write_files: Any) -> None:
    source = source_of(dataset_of(write_files("parquet", (640,), group=10), batch=16, lanes=8))
    reader = source.open()
    order = source.order(0)
    reader.__getitems__(order.at(np.arange(10**12, 10**12 + 16)).tolist())
    assert reader.reads <= 9  # the groups of one window, and one more where the step straddles two
    reader.close()


def test_row_order_is_shuffled_in_every_epoch(write_files: Any) -> None:
    source = source_of(dataset_of(write_files("parquet", (640,), group=10), batch=16, lanes=8))
    order = source.order(0)
    epochs = [order.at(np.arange(epoch * 640, (epoch + 1) * 640)).tolist() for epoch in range(2)]
    assert epochs[0] != epochs[1]
    assert all(sorted(epoch) == list(range(640)) for epoch in epochs)
    assert len({record // 10 for record in epochs[0][:16]}) == 8, "a step mixes all lanes"


@pytest.mark.parametrize("joined", [1 << 25, 0])
def test_rows_are_those_asked_for_in_whatever_order_they_are_read(
    joined: int, write_files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dew_hf.groups.JOINED_BYTES", joined)
    sizes = tuple(np.random.default_rng(0).integers(1, 40, 12).tolist())
    source = source_of(dataset_of(write_files("parquet", sizes, group=7), batch=16, lanes=4))
    orders = [source.order(seed) for seed in (0, 1)]
    reader = source.open()
    rng = np.random.default_rng(1)
    start = 0
    for _ in range(150):  # two orders by turns, steps of all sizes and distances, now and then a leap
        order = orders[int(rng.integers(2))]
        count, distance = int(rng.integers(1, 30)), int(rng.integers(1, 6))
        block = order.at(np.arange(start, start + 400))
        wanted = block[int(rng.integers(5)) :: distance][:count].tolist()
        assert [row["id"] for row in reader.__getitems__(wanted)] == wanted
        start += int(rng.integers(40)) if rng.random() < 0.9 else int(rng.integers(10**9))
    picks = rng.integers(0, len(source), 50).tolist()
    assert [row["id"] for row in reader.__getitems__(picks)] == picks
    reader.close()


def test_large_groups_have_fewer_lanes(write_files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dew_hf.groups.WINDOW_BYTES", 3000)
    assert 1 <= source_of(dataset_of(write_files("parquet", (640,), group=40), batch=16)).lanes < 16


def test_another_file_list_or_lanes_are_refused(write_files: Any) -> None:
    with dataset_of(write_files("parquet", group=2)).train(DataPartition()) as stream:
        next(stream)
        state = json.loads(json.dumps(stream.get_state()))
    for other, part in (
        (dataset_of(write_files("parquet", (7, 5, 6, 3), group=3, folder="other")), "blocks"),
        (dataset_of(write_files("parquet", group=2), lanes=2), "lanes"),
    ):
        with other.train(DataPartition()) as stream, pytest.raises(PositionMismatchError, match=part):
            stream.set_state(state)


def test_a_mixture_is_refused(write_files: Any) -> None:
    files = write_files("parquet")
    with pytest.raises(OptionsTypeError, match=r"belongs to one source|read in an order of its own"):
        load(
            {files.source: 1.0, "hf/other": 1.0},
            batch=4,
            streaming=True,
            options=files.options(position="records"),
            preprocess=identity,
        )


def test_arguments_that_leave_rows_out_are_refused(write_files: Any) -> None:
    files = write_files("parquet")
    options = files.options(position="records", config_kwargs={"filters": [("id", ">", 3)]})
    with pytest.raises(OptionsError, match=r"config_kwargs has \['filters'\], which leave some out"):
        load(files.source, batch=4, streaming=True, options=options, preprocess=identity)


def test_chosen_columns(write_files: Any) -> None:
    files = write_files("parquet")
    options = files.options(position="records", config_kwargs={"columns": ["id"]})
    dataset = load(files.source, batch=4, streaming=True, options=options, preprocess=identity, loading=DIRECT)
    with dataset.train(DataPartition()) as stream:
        assert list(next(stream)) == ["id"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:21], r"part-0.parquet is not what it was when it was opened: \d+ bytes then, 21 now"),
        (lambda data: bytes(len(data)), r"part-0.parquet is not a parquet file that can be read"),
    ],
)
def test_a_file_damaged_after_opening_is_named(damage: Any, message: str, write_files: Any) -> None:
    files = write_files("parquet", (7,))
    dataset = dataset_of(files, batch=4)
    path = Path(files.paths[0])
    path.write_bytes(damage(path.read_bytes()))
    with dataset.train(DataPartition()) as stream, pytest.raises(SourceError, match=message) as caught:
        next(stream)
    assert "in row group 0 of part-0.parquet" in caught.value.__notes__


def test_worker_processes_read_the_same(write_files: Any) -> None:
    files = write_files("parquet", group=2)
    with (
        dataset_of(files, preprocess=columns("id"), loading=Loading(workers=1)).train(DataPartition()) as workers,
        dataset_of(files, preprocess=columns("id")).train(DataPartition()) as here,
    ):
        for _ in range(3):
            np.testing.assert_array_equal(next(workers)["id"], next(here)["id"])


# Any other format


@pytest.mark.parametrize("kind", ["json", "webdataset"])
def test_a_whole_stream_resumes_at_every_step_on_any_process_count(kind: str, all_kinds: Any, with_draws: Any) -> None:
    files = all_kinds[kind]
    with dataset_of(files, preprocess=with_draws).train(DataPartition()) as stream:
        states, batches = [], []
        for _ in range(6):
            states.append(stream.get_state())
            batches.append(next(stream))
    for count in (1, 2, 3, 4):
        for index in range(count):
            for step, state in enumerate(states):
                with dataset_of(files, preprocess=with_draws).train(DataPartition(index, count)) as stream:
                    stream.set_state(state)
                    for later in (step, step + 1)[: 6 - step]:
                        batch = next(stream)
                        for field in ("id", "draw"):
                            np.testing.assert_array_equal(batch[field], batches[later][field][index::count])
    assert [state["records"] for state in states] == [0, 12, 24, 36, 48, 60]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count what is read")
def test_going_on_in_a_whole_stream_reads_two_passes_at_most(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"id": number, "text": "x" * 2000}) + "\n" for number in range(2000)))
    options = HFOptions(data_files=str(path), position="records")
    dataset = load("hf/json", batch=50, streaming=True, options=options, preprocess=columns("id"), loading=DIRECT)
    read: list[float] = []
    for place in (500, 2000 * 10**9 + 500):
        with dataset.train(DataPartition()) as stream:
            stream.set_state({**stream.get_state(), "records": place})
            before = bytes_read()
            assert next(stream)["id"].tolist() == list(range(500, 550))
            read.append((bytes_read() - before) / path.stat().st_size)
    assert max(read) <= 2.2, read


def test_a_whole_stream_can_change_its_batch(all_kinds: Any) -> None:
    with dataset_of(all_kinds["json"]).train(DataPartition()) as stream:
        next(stream)
        state = stream.get_state()
    with dataset_of(all_kinds["json"], batch=5).train(DataPartition()) as stream:
        with pytest.raises(PositionMismatchError, match="global batch"):
            stream.set_state(state)
        stream.set_state(rebatch(state, 5))
        assert next(stream)["id"].tolist() == [12, 13, 14, 15, 16]


def test_which_way_was_picked_is_logged(all_kinds: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dew.hf"):
        dataset_of(all_kinds["parquet"])
        dataset_of(all_kinds["json"])
    assert "21 rows in 4 row groups, 16 read side by side" in caplog.text
    assert "every process reads the whole stream" in caplog.text
    assert "bytes in 4 files" in caplog.text


def test_many_whole_readers_must_be_accepted(write_files: Any) -> None:
    files = write_files("json", (40,))
    dataset = dataset_of(files, batch=20)
    with pytest.raises(OptionsError, match=r"each of 20 processes read the whole stream \([\d,]+ bytes in 1 files\)"):
        dataset.train(DataPartition(0, 20))
    options = files.options(position="records", read_everything=True)
    accepted = load(files.source, batch=20, streaming=True, options=options, preprocess=identity, loading=DIRECT)
    with accepted.train(DataPartition(3, 20)) as stream:
        assert [next(stream)["id"].tolist() for _ in range(3)] == [[3], [23], [3]]


def test_parquet_in_a_directory_is_parquet(tmp_path: Path, write_files: Any) -> None:
    write_files("parquet", folder="mine", group=2)
    options = HFOptions(position="records")
    dataset = load(f"hf/{tmp_path}/mine", batch=4, streaming=True, options=options, preprocess=identity, loading=DIRECT)
    assert dataset.records == 21
    plain = load(f"hf/{tmp_path}/mine", batch=4, streaming=True, preprocess=identity, loading=DIRECT)
    with plain.train(DataPartition()) as stream:
        assert stream.get_state()["state"]["identity"]["shards"] == 12, "a shard is a row group"
