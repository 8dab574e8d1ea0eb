"""`dew demo` in real processes: what it claims is checked again from the files it leaves, and its proof can fail."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np
import pytest

from dew.cli import demo as command
from dew.cli.demo_compare import Outcome, compare
from dew.cli.demo_member import MemberOrder, digests, places
from dew.cli.demo_model import Learner, Shape
from dew.cli.demo_pool import Killed, Members, Stage, Taken
from dew.cli.demo_screen import Screen
from dew.data.build import dataset_of, in_memory
from dew.data.dataset import DataPartition
from dew.data.errors import PoolError
from dew.data.load import load
from dew.data.order import ShuffledOrder
from dew.data.stream import RecordStream
from dew.tokens import TokenOptions

Dew: TypeAlias = Callable[..., Any]
Script: TypeAlias = Callable[[str], Any]

STEPS, BATCH, SEQ_LEN = 8, 32, 64


def test_report_says_what_happened(demo: Any) -> None:
    report = demo.ran.json
    assert report["steps"] == STEPS
    assert [stage["processes"] for stage in report["stages"]] == [1, 2, 1]
    first, second, third = report["stages"]
    assert (first["from_step"], third["ended_before_step"]) == (0, STEPS)
    # A kill undoes the steps after the last checkpoint; the next processes take them again.
    assert 0 < second["from_step"] <= first["ended_before_step"] < STEPS
    assert second["from_step"] < third["from_step"] <= second["ended_before_step"] < STEPS
    loss = report["loss"]
    assert len(loss["killed"]) == len(loss["never_stopped"]) == STEPS
    assert loss["killed"] == pytest.approx(loss["never_stopped"], abs=loss["tolerance"])
    assert loss["largest_difference"] <= loss["tolerance"] == 1e-3
    assert loss["validation"] == pytest.approx(loss["validation_never_stopped"], abs=1e-3)
    assert loss["fell"]
    assert loss["validation"] < loss["killed"][0] - 0.5
    assert 0 <= report["wait_share"] < 1
    assert report["compared"]["different"] == 0
    assert report["compared"]["records"] == STEPS * BATCH
    assert report["compared"]["tokens"] == STEPS * BATCH * (SEQ_LEN + 1)


def test_ids_are_those_of_the_order(demo: Any) -> None:
    records = load(demo.source, batch=BATCH, options=TokenOptions(seq_len=SEQ_LEN, val=0.05)).records
    assert records is not None
    order = ShuffledOrder(records=records, seed=0)
    steps = demo.ran.json["compared"]["steps"]
    assert [step["step"] for step in steps] == list(range(STEPS))
    for step in steps:
        of_step = np.arange(step["step"] * BATCH, (step["step"] + 1) * BATCH)
        assert step["killed"] == step["never_stopped"] == order.at(of_step).tolist()


def test_every_stage_took_its_steps(demo: Any) -> None:
    report = demo.ran.json
    taken_by = [step["processes"] for step in report["compared"]["steps"]]
    first, second, third = (stage["from_step"] for stage in report["stages"])
    assert first == 0
    assert taken_by == [1] * second + [2] * (third - second) + [1] * (STEPS - third)


def test_files_are_where_it_says(demo: Any) -> None:
    files = demo.ran.json["files"]
    assert all((demo.home / path).exists() for path in files.values())
    assert json.loads((demo.home / files["report"]).read_text()) == demo.ran.json
    assert (demo.home / files["checkpoints"] / str(STEPS)).is_dir()
    assert sorted(path.name for path in (demo.home / "dew-demo").iterdir()) == sorted(
        ["checkpoints", "corpus", "dew-demo.json", "tokenizer.json"]
    )


IGNORES_POSITIONS = """
from dew.data.stream import RecordStream
RecordStream.set_state = lambda self, state, accept=(): None
"""


def test_a_resume_that_goes_wrong_is_seen(demo: Any, dew: Dew, tmp_path: Path) -> None:
    """Every process starts with positions that are ignored, in a directory of a run before; the terminal is ASCII."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(IGNORES_POSITIONS)
    shutil.copytree(demo.home / "dew-demo", tmp_path / "again")
    site = {"PYTHONPATH": str(tmp_path / "site"), "COLUMNS": "100", "PYTHONIOENCODING": "ascii"}
    ran = dew("demo", "--steps", str(STEPS), "--out", "again", **site)
    assert ran.code == 1, ran.err
    assert "rows DIFFER" in ran.out
    assert "32 differ" in ran.out
    assert ran.out.isascii()
    report = json.loads((tmp_path / "again/dew-demo.json").read_text())
    assert report["compared"]["different"] > 0
    # The first stage is right still, whatever the run before left.
    assert not any(step["different_rows"] for step in report["compared"]["steps"] if step["step"] == 0)


def test_another_directory_is_left_alone(dew: Dew, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/position.json").write_text("mine")
    dew("demo", "--out", "thesis").fails("thesis is not empty and was not made by dew demo", "position.json", "--out")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["position.json"]
    assert (tmp_path / "thesis/position.json").read_text() == "mine"


def test_a_place_that_cannot_be_written(dew: Dew, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    dew("demo", "--out", "a-file/below").fails("a-file/below cannot be written", "--out")


@pytest.mark.parametrize(("module", "package"), [("tokenizers", "tokenizers"), ("orbax", "orbax-checkpoint")])
def test_without_a_package(script: Script, module: str, package: str) -> None:
    ran = script(f"""
        import sys
        sys.modules[{module!r}] = None
        from dew.cli import main
        sys.exit(main(["demo"]))
    """)
    assert ran.code == 1
    assert f'{package}, is not installed: pip install "dew-core[demo]"' in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("words", [["--steps", "7"], ["--out", "a-file"]])
def test_wrong_usage(dew: Dew, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "a-file").touch()
    assert dew("demo", *words).code == 2


def order_of(folder: Path) -> MemberOrder:
    return MemberOrder(
        source=f"tokens/{folder}", batch=BATCH, seq_len=SEQ_LEN, val=0.05, vocabulary=2048, steps=4, programs=""
    )


def test_a_process_that_fails_is_shown(tmp_path: Path) -> None:
    with (
        Members(order_of(tmp_path / "nothing"), Stage(1, None)) as members,
        pytest.raises(PoolError, match=r"process 0 of 1 ended with exit code 1:\n(.|\n)*nothing"),
    ):
        members.hear(lambda taken: None, None)


def interrupted(folder: Path) -> None:
    with Members(order_of(folder), Stage(2, None)):
        raise KeyboardInterrupt


def test_no_process_is_left_after_an_interrupt(demo: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(demo.home / "dew-demo/corpus")


@pytest.fixture
def stream() -> Iterator[RecordStream]:
    rows = in_memory({"text": np.arange(100 * 5, dtype=np.int32).reshape(100, 5)})
    made = dataset_of(rows, batch=8, seed=3, place_field="place").train(DataPartition())
    assert isinstance(made, RecordStream)
    with made:
        yield made


def steps_of(stream: RecordStream, count: int) -> dict[int, Taken]:
    """What a right run takes."""
    found: dict[int, Taken] = {}
    for step in range(count):
        batch = next(stream)
        found[step] = Taken(
            step=step,
            processes=2 if step % 2 else 1,
            places=places(batch),
            digests=tuple(digests(batch["text"])),
            loss=8.0 - step,
            wait=0.25,
        )
    return found


def outcome_of(stream: RecordStream, change: Callable[[Taken], Taken] = lambda taken: taken) -> Outcome:
    """Five steps, the last of which is changed in the killed run."""
    whole = steps_of(stream, 5)
    killed = Killed(5, validation=4.5)
    for stage, steps in ((Stage(1, 2), [0, 1]), (Stage(2, 4), [1, 2, 3]), (Stage(1, None), [3, 4])):
        killed.add(stage, [whole[step] if step < 4 else change(whole[step]) for step in steps])
    return compare(stream, killed, whole, 4.5)


def swapped(taken: Taken) -> Taken:
    order = [0, 6, 2, 3, 4, 5, 1, 7]
    return attrs.evolve(taken, places=taken.places[order], digests=tuple(taken.digests[row] for row in order))


def other_tokens(taken: Taken) -> Taken:
    return attrs.evolve(taken, digests=(*taken.digests[:7], "0" * 16))


@pytest.mark.parametrize(
    ("change", "different"),
    [
        (lambda taken: taken, ()),
        (lambda taken: attrs.evolve(taken, places=taken.places[::-1].copy()), tuple(range(8))),
        (lambda taken: attrs.evolve(taken, places=taken.places - 8), tuple(range(8))),
        (swapped, (1, 6)),
        (other_tokens, (7,)),
    ],
)
def test_compare_names_the_rows_that_differ(
    stream: RecordStream, change: Callable[[Taken], Taken], different: tuple[int, ...]
) -> None:
    outcome = outcome_of(stream, change)
    assert [step.different for step in outcome.steps] == [(), (), (), (), different]
    assert outcome.proven is not bool(different)
    assert [step.ids.tolist() for step in outcome.steps[:4]] == [stream.ids(step).tolist() for step in range(4)]


def test_losses_that_differ_are_seen(stream: RecordStream) -> None:
    assert outcome_of(stream).same_curve
    apart = outcome_of(stream, lambda taken: attrs.evolve(taken, loss=taken.loss + 0.002))
    assert apart.apart == pytest.approx(0.002)
    assert not apart.same_curve
    assert not apart.proven


def test_a_loss_that_stays_is_seen(stream: RecordStream, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = outcome_of(stream)
    stays = attrs.evolve(outcome, validation=7.9)
    assert outcome.fell
    assert outcome.proven
    assert not stays.fell
    assert not stays.proven
    command._conclude(Path("out"), stays, Screen())
    assert "the loss did NOT clearly fall" in capsys.readouterr().out


def test_what_is_shown(
    stream: RecordStream, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    outcome = outcome_of(stream)
    command._conclude(Path("out"), outcome, Screen())
    shown = capsys.readouterr().out
    assert "none differs" in shown
    assert "killed after 2 and 4 steps" in shown
    assert "0 nats apart; 0.001 would be too much" in shown
    assert "8.00 before, 4.50 after; training waited for data 25.0% of the time" in shown
    for step in (0, 1, 3, 4):
        ids = "".join(f"{record:>5}" for record in stream.ids(step)[:5])
        assert shown.count(ids) == 2  # the killed run beside the one that never stopped
    command._conclude(Path("out"), outcome, Screen(quiet=True))
    assert capsys.readouterr().out == ""


def test_bars_show_who_took_which_steps(stream: RecordStream, capsys: pytest.CaptureFixture[str]) -> None:
    taken = steps_of(stream, 3)
    with Screen().runs(3) as runs:
        first, second = runs.begin("1 process"), runs.begin("2 processes")
        first(taken[0])
        first.killed()
        second(taken[1])
        second(taken[2])
    shown = capsys.readouterr().out
    assert "1/3 loss 8.00   killed" in shown
    assert "3/3 from step 1, loss 6.00" in shown


def test_model_learns_a_sequence_by_heart() -> None:
    """Targets that do not count have no part in the loss, and a repeated batch is learnt."""
    learner = Learner(Shape(vocabulary=16, length=8, width=16, heads=2, blocks=1))
    text = np.arange(18, dtype=np.int32).reshape(2, 9) % 16
    batch = {"inputs": text[:, :-1], "targets": text[:, 1:], "target_mask": np.ones((2, 8), bool)}
    state = learner.start()
    half = dict(batch, target_mask=np.repeat([[True], [False]], 8, axis=1), valid=np.ones(2, bool))
    garbled = dict(half, targets=np.where(half["target_mask"], batch["targets"], 3))
    padded = dict(batch, valid=np.array([True, False]))
    total, mass = learner.score(state, half)["loss"]
    assert mass == 8
    for same in (garbled, padded):
        assert learner.score(state, same)["loss"] == (total, mass)
    losses = []
    for _ in range(150):
        state, metrics = learner.step(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[0] == pytest.approx(np.log(16), abs=0.6)
    assert losses[-1] < 0.1
    assert state["steps"] == 150
