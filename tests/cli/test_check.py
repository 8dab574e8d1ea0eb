"""`dew check` on datasets of programs and on loaded sources, sound ones and ones with a planted fault."""

import itertools
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from dew.cli import main

Dew: TypeAlias = Callable[..., Any]
Check: TypeAlias = Callable[..., Any]

PROGRAM = """
    import itertools, time
    import numpy as np
    import attrs
    from dew.data import DataPartition, Dataset, Loading, Mixture, dataset_of, from_records
    from dew.data.build import ColumnSource

    def columns(records=100, first=0):
        return {"x": np.arange(first, first + records)}

    data = from_records(columns(), batch=12, val=columns(30, 100), loading=Loading(threads=2))

    def drawing():
        def draw(record, rng):
            return {"x": record["x"], "draw": rng.random()}
        return dataset_of(ColumnSource(columns()), batch=12, preprocess=draw)

    def careless():
        def draw(record):
            return {"x": record["x"], "draw": np.random.random()}
        return dataset_of(ColumnSource(columns()), batch=12, preprocess=draw)

    def own_share():
        return attrs.evolve(data, train=lambda share: data.train(DataPartition(0, share.count)))

    class Unsteady(ColumnSource):
        reads = 0
        def __getitem__(self, index):
            Unsteady.reads += index == 42
            return {"x": np.int64(index + self.reads)}
        take = property()

    unsteady = dataset_of(Unsteady(columns(48)), batch=48)

    def once():
        with open("first", "x"):
            return data

    def of_the_process():
        def named(record):
            return {"x": record["x"], "hash": np.int64(hash("a name") % 1_000_003)}
        return dataset_of(ColumnSource(columns()), batch=12, preprocess=named)

    def broken():
        def fail(record):
            raise KeyError("caption")
        return dataset_of(ColumnSource(columns()), batch=12, preprocess=fail)

    def slow():
        def wait(record):
            time.sleep(0.01)
            return record
        return dataset_of(ColumnSource(columns()), batch=12, preprocess=wait)

    def ends():
        return Mixture({"a": (columns(40), 1)}, exhaustion="stop_first").load(batch=12)

    class Forward:
        def __init__(self, share):
            self.numbers, self.share = itertools.count(), share
        def __iter__(self):
            return self
        def __next__(self):
            rows = 12 // self.share.count
            return {"x": np.full(rows, next(self.numbers)) + self.share.index}

    forward = Dataset(train=Forward, batch=12)

    class Counting(Forward):
        def __init__(self, share):
            super().__init__(share)
            self.step = 0
        def __next__(self):
            self.step += 1
            return {"x": np.full(12 // self.share.count, self.step) + self.share.index}
        def get_state(self):
            return {"step": self.step}
        def set_state(self, state):
            self.step = state["step"]

    counting = Dataset(train=Counting, batch=12)
    generated = Dataset(train=lambda share: itertools.islice(Forward(share), 5), batch=12)
    nothing = Dataset(train=lambda share: itertools.repeat(None), batch=12)
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """`check("data", ...)` -> exit code and the JSON value of `dew check train.py:data`."""
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    monkeypatch.chdir(tmp_path)

    def run(name: str, *words: str) -> tuple[int, Any]:
        code = main(["check", f"train.py:{name}", "--json", *words])
        out = capsys.readouterr().out
        return code, json.loads(out) if out else None

    return run


def statuses(answer: Any) -> dict[str, str]:
    return {check["name"]: check["status"] for check in answer["checks"]}


def failed(answer: Any) -> dict[str, Any]:
    return {check["name"]: check["counterexample"] for check in answer["checks"] if check["status"] == "failed"}


@pytest.mark.parametrize("name", ["data", "drawing"])
def test_what_is_sound_holds(check: Check, name: str) -> None:
    code, answer = check(name)
    assert code == 0
    assert answer["holds"]
    assert set(statuses(answer).values()) == {"held"}
    assert {"records", "tiling", "draws", "loading", "resume"} <= set(statuses(answer))
    assert all(one["cases"] >= 1 for one in answer["checks"])
    assert (answer["batch"], answer["steps"], answer["processes"]) == (12, 6, [1, 2, 4])


def test_what_a_resume_requires_is_said(check: Check) -> None:
    _, answer = check("drawing")
    resume = answer["resume"]
    assert resume["must_match"] | {"seed": 0, "records": 100, "batch": 12} == resume["must_match"]
    assert len(resume["must_match"]["fingerprint"]) == 64
    assert resume["warns"]["preprocess"].endswith("drawing.<locals>.draw")
    assert resume["processes"] == [1, 2, 3, 4, 6, 12]


def test_the_stages_of_a_step_are_timed(check: Check) -> None:
    _, answer = check("slow", "--steps", "2", "--seconds", "1")
    assert answer["stages"]["preprocess"] > answer["stages"]["read"]


def test_validation_is_checked(check: Check) -> None:
    _, answer = check("data")
    assert {"validation", "validation tiling", "overlap"} <= set(statuses(answer))


def test_a_global_generator_is_found_with_step_place_and_records(check: Check) -> None:
    code, answer = check("careless", "--steps", "2")
    assert code == 1
    assert not answer["holds"]
    found = failed(answer)
    assert set(found) == {"draws", "loading", "processes", "tiling", "resume", "jumps"}
    assert (found["draws"]["step"], found["draws"]["place"], len(found["draws"]["records"])) == (0, 0, 12)
    assert "global random generator of numpy.random" in found["draws"]["what"]
    assert len(found["tiling"]["records"]) == 1


def test_a_train_that_ignores_its_share_is_found(check: Check) -> None:
    code, answer = check("own_share")
    assert code == 1
    assert set(failed(answer)) == {"tiling", "resume"}
    assert "on 2 processes than on one" in failed(answer)["tiling"]["what"]


def test_what_depends_on_the_process_is_found(check: Check) -> None:
    """Python's hashes of text differ from process to process."""
    code, answer = check("of_the_process")
    assert code == 1
    found = failed(answer)
    assert set(found) == {"processes"}
    assert "PYTHONHASHSEED, in 'hash': no record may depend on" in found["processes"]["what"]
    assert (found["processes"]["step"], found["processes"]["place"]) == (0, 0)


def test_a_program_that_fails_in_another_process_is_found(check: Check) -> None:
    code, answer = check("once")
    assert code == 1
    assert set(failed(answer)) == {"processes"}
    assert "another process cannot read the source: " in failed(answer)["processes"]["what"]
    assert "FileExistsError" in failed(answer)["processes"]["what"]


def test_a_record_that_changes_is_named(check: Check) -> None:
    code, answer = check("unsteady", "--steps", "2")
    assert code == 1
    assert failed(answer)["records"]["records"] == [42]


def test_what_raises_is_a_counterexample(check: Check) -> None:
    code, answer = check("broken")
    assert code == 1
    assert failed(answer)["layout"]["what"].startswith("KeyError: 'caption' (reading record ")
    assert statuses(answer)["records"] == "held"
    assert answer["stages"] is None


def test_the_time_is_shared(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on whenever it is looked at."""
    monkeypatch.setattr("dew.cli.check.time", SimpleNamespace(monotonic=itertools.count().__next__))
    code, answer = check("data", "--seconds", "200")
    assert code == 0
    found = statuses(answer)
    assert (found["epochs"], found["threads"], found["resume"]) == ("held", "held so far", "held so far")
    assert all(1 <= one["cases"] < 12 for one in answer["checks"] if one["status"] == "held so far")
    code, answer = check("data", "--seconds", "1")
    assert "not reached" in statuses(answer).values()


def test_a_dataset_that_ends_is_read_to_its_end(check: Check) -> None:
    code, answer = check("ends", "--steps", "50")
    assert (code, answer["steps"]) == (0, 1)


@pytest.mark.parametrize(("name", "kind"), [("forward", None), ("counting", "shard")])
def test_streams_without_random_access(check: Check, name: str, kind: str | None) -> None:
    code, answer = check(name)
    assert code == 0
    assert ("resume" in statuses(answer)) == (kind is not None)
    assert "records" not in statuses(answer)
    assert statuses(answer)["loading"] == "does not apply"
    assert (answer["resume"] or {}).get("kind") == kind
    assert answer["stages"] is None


def test_streams_without_an_order_that_end(check: Check) -> None:
    """A pass over validation data, and a generator: fewer steps, and no fault; what yields no batch is one."""
    code, answer = check("data", "--split", "val")
    assert (code, answer["steps"]) == (0, 1)
    code, answer = check("generated", "--steps", "9")
    assert (code, answer["steps"]) == (0, 3)
    code, answer = check("nothing")
    assert code == 1
    assert failed(answer)["layout"]["what"] == "a batch must be a mapping of field to array, got NoneType"


def test_large_steps_are_fewer(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that those that are compared fit into memory together."""
    monkeypatch.setattr("dew.cli.check._MEMORY", 3 * 12 * 8)
    code, answer = check("data", "--processes", "1")
    assert (code, answer["steps"]) == (0, 3)


def test_processes_that_do_not_divide_are_refused(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "train.py:data", "--processes", "5"]) == 1
    words = (
        "the global batch of train.py:data, 12 rows, does not divide over 5 processes; it does over 1, 2, 3, 4, 6, 12"
    )
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--processes", "two"], ["--processes", "0"], ["--steps", "1"], ["--seconds", "0"]])
def test_wrong_usage_is_exit_code_2(check: Check, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "train.py:data", *words]) == 2
    assert "Error: Invalid value for" in capsys.readouterr().err


def test_the_table_ends_with_the_counterexample_once(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "train.py:broken"]) == 1
    out = capsys.readouterr().out
    assert out.count("layout: KeyError: 'caption'") == 1
    assert out.count("KeyError") == 1
    assert "a run goes on where all of this is the same: version 1; kind shuffled; records 100; seed 0" in out


def test_a_loaded_source_in_a_real_process(dew: Dew, demo: Any) -> None:
    ran = dew("check", demo.source, "--batch", 8, "-o", "seq_len=64", "-o", "val=0.05", "--steps", 3)
    assert (ran.code, ran.err) == (0, "")
    for words in ("processes 1, 2, 4", "records/s", "it may go on on 1, 2, 4, 8 processes", "tokenizer"):
        assert words in ran.out


def test_rows_that_form_no_batch_as_stored(dew: Dew, strangers: str) -> None:
    ran = dew("check", "toy/x", "--batch", 4, "-o", "ragged=true", PYTHONPATH=strangers)
    ran.fails("as they are stored, the rows of toy/x form no batch", "dew check train.py:data")


def test_without_pytest(script: Any, check: Check, tmp_path: Path) -> None:
    """And without the other libraries of the extra `testing`."""
    ran = script(
        """
        import sys
        for name in ("pytest", "psutil", "hypothesis"):
            sys.modules[name] = None
        from dew.cli import main
        sys.exit(main(["check", "train.py:data", "--steps", "2"]))
        """
    )
    assert (ran.code, ran.err) == (0, "")
