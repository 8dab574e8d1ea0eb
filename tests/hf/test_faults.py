"""What goes wrong for users of `datasets` in public reports, by kind, and that it does not go wrong here.

`TESTED` and `CASES` say which test holds each kind; those that no other file has stand below.
"""

import ast
import gc
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dew.data import DataPartition, Dataset, HFOptions, Loading, SourceError, columns, identity, load

DIRECT = Loading(read_buffer=0, threads=1)
TOTAL = 21

TESTED = {
    "#8308, #8295: the second resume starts over": "test_every_format_resumes_on_the_record_at_every_position",
    "#8145: map skips rows after a resume": "test_a_mapped_or_shuffled_stream_that_was_given_has_no_position",
    "#7901, #8408, #7056, #7385: a shuffle buffer loses and repeats rows": "test_a_shuffle_buffer_has_no_position",
    "#5454: going on reads everything again": "test_going_on_in_a_large_file_reads_few_row_groups",
    "#8669: after shuffle() some processes have no data": "test_every_share_of_a_shuffled_stream_has_rows",
    "#6623, #6437, #7854: processes end at different steps": "test_shares_of_uneven_files_never_end",
    "#6719: a filter makes processes uneven": "test_a_filtered_stream_validates_in_equal_steps",
    "#8253, #8565: how a stream is split": "test_where_a_split_by_files_leaves_a_share_empty_all_split_by_rows",
    "#8568, torchtitan #1082: skip() after the split": "test_skips_nothing_after_the_split",
    "#8079: shares lose their rows where tables have one row": "test_row_groups_of_one_row_lose_no_share",
    "#6990: a stream is split twice": "test_a_stream_that_was_split_is_not_split_again",
    "#5961: dropped rows are mapped all the same": "test_preprocess_runs_on_kept_rows_alone",
    "#5881: more processes than shards": "test_shares_of_a_pass_hold_each_row_once",
    "#7447, #7451: the epoch after a resume is short": "test_the_pass_after_a_resume_is_whole",
    "#7156, #7196: a mixture drops the shuffle": "test_a_mixture_shuffles_its_parts",
    "#7051: epochs of nested streams": "test_passes_are_counted_here_and_the_librarys_epoch_stays_0",
    "#7269, #7722, #4883, #4528, #7180: memory grows": "test_memory_stays_level_over_many_passes",
    "#7467, #7357, #8169, #7566, #7879: the script hangs or aborts at its end": "test_a_script_that_forgets_close_ends",
    "#7506, #7847, #8129, #5374: the hub is busy or hangs up": "test_a_hub_that_is_busy_or_hangs_up_is_asked_again",
    "#8015, #8194: poor mixing": "test_row_order_is_shuffled_in_every_epoch",
    "#8193: reshard() does nothing for parquet": "test_parquet_in_a_directory_is_parquet",
    "torchtitan #2733: no reshuffle between epochs": "test_each_pass_over_a_buffer_is_shuffled_anew",
    "transformers #26251: hours of skipping": "test_going_on_reads_no_more_than_a_step",
    "parcae #12: the data ends in silence": "test_a_stream_that_runs_dry_says_whose_and_after_how_many_rows",
}

CASES = {
    "A09": ("test_a_shuffle_buffer_has_no_position", "test_a_given_stream_has_no_position"),
    "A14": ("test_skips_nothing_after_the_split",),
    "B02": ("test_more_processes_than_rows_are_refused_everywhere",),
    "B09": ("test_a_stream_that_was_split_is_not_split_again",),
    "F02": ("test_ragged_rows_are_refused_with_both_lengths",),
    "F08": ("test_values_without_a_place_in_a_batch_are_refused_by_field", "test_a_duration_as_nanoseconds_is_exact"),
    "F09": ("test_splits_that_streams_do_not_have",),
    "F11": ("test_a_pattern_reads_by_spelling", "test_a_list_keeps_its_order"),
    "F12": ("test_fewer_rows_than_a_batch_are_refused", "test_fewer_rows_than_a_batch_are_refused_with_both"),
    "F13": ("test_a_large_integer_beside_a_null_is_exact",),
}
"""The same for cases that were collected on the way, by their number."""


def test_each_kind_has_a_test() -> None:
    there = {
        node.name
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert set(TESTED.values()) | set(itertools.chain(*CASES.values())) <= there


def stream(files: Any, batch: int, preprocess: Any = identity, **more: Any) -> Dataset:
    more = {"options": files.options(), "loading": DIRECT, **more}
    return load(files.source, batch=batch, streaming=True, preprocess=preprocess, **more)


def given_of(files: Any) -> Any:
    return datasets.load_dataset("parquet", data_files=list(files.paths), split="train", streaming=True)


@pytest.mark.parametrize("change", ["map", "shuffle", "interleave"])
def test_a_mapped_or_shuffled_stream_that_was_given_has_no_position(change: str, all_kinds: Any) -> None:
    given = given_of(all_kinds["parquet"])
    given = {
        "map": lambda: given.map(lambda row: {"id": row["id"] + 100}, batched=False),
        "shuffle": lambda: given.shuffle(seed=3, buffer_size=8),
        "interleave": lambda: datasets.interleave_datasets([given, given]),
    }[change]()
    dataset = load("hf/x", batch=3, dataset=given, streaming=True, preprocess=columns("id"), loading=DIRECT)
    expected = [row["id"] for _, row in zip(range(TOTAL), given, strict=False)]
    with dataset.train(DataPartition()) as opened:
        assert not hasattr(opened, "get_state")
        assert "nothing tells whether a later run is given the same" in opened.no_position_reason
        assert [row for _ in range(TOTAL // 3) for row in next(opened)["id"].tolist()] == expected


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count what is read")
def test_going_on_in_a_large_file_reads_few_row_groups(tmp_path: Path) -> None:
    path, groups = tmp_path / "large.parquet", 100
    table = pa.table({"id": range(groups * 100), "noise": [os.urandom(600) for _ in range(groups * 100)]})
    pq.write_table(table, path, row_group_size=100, compression="none", write_statistics=False)
    options = HFOptions(data_files=str(path))
    dataset = load("hf/parquet", batch=50, streaming=True, options=options, preprocess=columns("id"), loading=DIRECT)
    with dataset.train(DataPartition()) as opened:
        for _ in range(2 * groups - 5):
            next(opened)
        state = opened.get_state()
    with dataset.train(DataPartition()) as opened:
        opened.set_state(state)
        before = bytes_read()
        assert next(opened)["id"][0] == (2 * groups - 5) * 50
        assert bytes_read() - before < path.stat().st_size / 8


@pytest.mark.parametrize("count", [2, 4])
def test_every_share_of_a_shuffled_stream_has_rows(count: int, all_kinds: Any) -> None:
    dataset = stream(all_kinds["json"], count, shuffle_buffer=5)
    # A pass of the smallest file has three rows; every share gives at least its file's rows before it begins again.
    shares: list[set[int]] = []
    for index in range(count):
        with dataset.train(DataPartition(index, count)) as opened:
            shares.append({next(opened)["id"].item() for _ in range(TOTAL)})
    assert all(shares)
    assert set.union(*shares) == set(range(TOTAL))


@pytest.mark.parametrize("mode", [{}, {"position": "records"}])
def test_shares_of_uneven_files_never_end(mode: Any, all_kinds: Any) -> None:
    for kind in ("parquet", "json"):
        files = all_kinds[kind]
        dataset = stream(files, 4, options=files.options(**mode))
        for index in range(4):
            with dataset.train(DataPartition(index, 4)) as opened:
                assert sum(len(next(opened)["id"]) for _ in range(30)) == 30


def test_a_filtered_stream_validates_in_equal_steps(all_kinds: Any) -> None:
    few = given_of(all_kinds["parquet"]).filter(lambda row: row["id"] % 5 == 0)
    dataset = stream(all_kinds["parquet"], 12, val_dataset=few)
    assert dataset.val is not None
    for count in (1, 2, 3, 4):
        shares = [list(dataset.val(DataPartition(index, count))) for index in range(count)]
        assert {len(share) for share in shares} == {1}
        scored = [row for share in shares for batch in share for row in batch["id"][batch["valid"]].tolist()]
        assert sorted(scored) == [0, 5, 10, 15, 20]


def test_row_groups_of_one_row_lose_no_share(write_files: Any) -> None:
    dataset = stream(write_files("parquet", (5, 4, 3), group=1), 7)
    for count in (7,):
        rows: list[int] = []
        for index in range(count):
            with dataset.train(DataPartition(index, count)) as opened:
                rows.append(next(opened)["id"].item())
        assert len(set(rows)) == count


def test_preprocess_runs_on_kept_rows_alone(all_kinds: Any) -> None:
    seen: list[int] = []

    def note(record: Any) -> Any:
        seen.append(int(record["id"]))
        return {"id": record["id"]}

    for mode in ({}, {"position": "records"}):
        files = all_kinds["json"]
        with stream(files, 6, note, options=files.options(**mode)).train(DataPartition(1, 3)) as opened:
            seen.clear()
            delivered = [row for _ in range(3) for row in next(opened)["id"].tolist()]
        assert seen == delivered


@pytest.mark.parametrize("kind", ["parquet", "json", "webdataset"])
def test_the_pass_after_a_resume_is_whole(kind: str, all_kinds: Any, with_draws: Any) -> None:
    dataset = stream(all_kinds[kind], 1, with_draws)
    with dataset.train(DataPartition()) as opened:
        for _ in range(TOTAL - 4):
            next(opened)
        state = opened.get_state()
    with dataset.train(DataPartition()) as opened:
        opened.set_state(state)
        ids = [next(opened)["id"].item() for _ in range(4 + 2 * TOTAL)]
    assert ids == [*range(TOTAL - 4, TOTAL), *range(TOTAL), *range(TOTAL)]


def test_a_mixture_shuffles_its_parts(write_files: Any) -> None:
    files = [write_files("parquet", (40,), folder=folder) for folder in ("one", "other")]
    folders = [str(Path(one.paths[0]).parent) for one in files]
    mixed = {f"hf/{folder}": 1.0 for folder in folders}
    dataset = load(mixed, batch=8, preprocess=columns("id"), loading=DIRECT)
    with dataset.train(DataPartition()) as opened:
        ids = [row for _ in range(5) for row in next(opened)["id"].tolist()]
    rising = sum(later > earlier for earlier, later in itertools.pairwise(ids))
    assert 8 < rising < 32


@pytest.mark.parametrize("mode", [{}, {"position": "records"}])
def test_memory_stays_level_over_many_passes(mode: Any, write_files: Any) -> None:
    files = write_files("parquet", (400, 300), group=50)
    dataset = stream(files, 50, columns("id"), options=files.options(**mode))

    def held() -> tuple[int, int]:
        gc.collect()
        return pa.total_allocated_bytes(), len(gc.get_objects())

    with dataset.train(DataPartition()) as opened:
        for _ in range(28):
            next(opened)
        buffers, objects = held()
        for _ in range(40 * 14):
            next(opened)
        later_buffers, later_objects = held()
    assert later_buffers <= buffers + 100_000
    assert later_objects <= objects + 300


FORGETS = """
import sys
import datasets
datasets.disable_progress_bars()
from dew.data import DataPartition, HFOptions, identity, load

if __name__ == "__main__":
    streams = []
    for mode in sys.argv[2].split(","):
        position = "records" if mode == "records" else None
        options = HFOptions(data_files=sys.argv[3:], cache_dir=sys.argv[1], position=position)
        buffer = 50 if mode == "shuffled" else 0
        dataset = load(
            "hf/parquet", batch=4, streaming=True, shuffle_buffer=buffer, options=options, preprocess=identity
        )
        streams.append(dataset.train(DataPartition()))
        for _ in range(3):
            next(streams[-1])
    print("read")
"""


@pytest.mark.parametrize("modes", ["stream,records", pytest.param("shuffled", marks=pytest.mark.nightly)])
def test_a_script_that_forgets_close_ends(modes: str, write_files: Any, tmp_path: Path) -> None:
    files = write_files("parquet", (2000, 2000), group=100)
    script = tmp_path / "forgets.py"
    script.write_text(FORGETS)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, str(script), str(tmp_path / "cache"), modes, *files.paths]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "read\n")
    # The library sleeps for five seconds when it closes a shuffled parquet stream, and so long does Dew wait for it.
    assert not done.stderr or (modes == "shuffled" and "was still busy 5 s after close()" in done.stderr), done.stderr


def test_an_exhausted_share_is_named_in_a_pool(write_files: Any) -> None:
    files = write_files("json", (4, 4))
    dataset = stream(files, 2)
    with dataset.train(DataPartition(1, 2)) as opened:
        for _ in range(4):
            next(opened)
        for path in files.paths:
            Path(path).write_text("")
        with pytest.raises(SourceError, match=r"had no row for share 1 of 2, which has read 4 rows before"):
            next(opened)
