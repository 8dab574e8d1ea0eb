"""`dew demo` in real processes: what it claims is checked again from the files that it leaves."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from dew.cli.demo_model import Learner, Shape, on_cpu
from dew.cli.demo_training import GlobalBatches, Taken, compare
from dew.data.build import from_records
from dew.data.dataset import Dataset
from dew.data.load import load
from dew.data.order import ShuffledOrder
from dew.tokens import TokenOptions

Dew: TypeAlias = Callable[..., Any]
Script: TypeAlias = Callable[[str], Any]

BATCH, SEQ_LEN = 32, 64


def test_report_says_what_happened(demo: Any) -> None:
    report = demo.ran.json
    assert report["steps"] == len(report["losses"]) == 8
    assert report["position"] == report["stopped_at"] * report["batch"] == 4 * BATCH
    assert report["loss"]["fell"]
    assert report["loss"]["validation_after"] < report["loss"]["validation_before"] - 0.5
    assert 0 <= report["wait_share"] < 1
    assert report["compared"]["different"] == 0
    assert report["compared"]["records"] == 4 * BATCH
    assert report["compared"]["tokens"] == 4 * BATCH * (SEQ_LEN + 1)


def test_ids_are_those_of_the_order(demo: Any) -> None:
    source = f"tokens/{demo.home}/dew-demo/corpus"
    records = load(source, batch=BATCH, options=TokenOptions(seq_len=SEQ_LEN, val=0.05)).records
    assert records is not None
    order = ShuffledOrder(records=records, seed=0)
    steps = demo.ran.json["compared"]["steps"]
    assert [step["step"] for step in steps] == [4, 5, 6, 7]
    for step in steps:
        places = np.arange(step["step"] * BATCH, (step["step"] + 1) * BATCH)
        assert step["resumed"] == step["uninterrupted"] == order.at(places).tolist()


def test_files_are_where_it_says(demo: Any) -> None:
    files = demo.ran.json["files"]
    assert all((demo.home / path).exists() for path in files.values())
    assert json.loads((demo.home / files["report"]).read_text()) == demo.ran.json
    position = json.loads((demo.home / files["position"]).read_text())
    assert position["kind"] == "records"
    assert position["records"] == 4 * BATCH
    with np.load(demo.home / files["model"], allow_pickle=False) as model:
        assert int(model["steps"]) == 4


def test_second_run_replaces_the_first_and_shows_a_table(demo: Any, dew: Dew) -> None:
    """On a terminal that can show ASCII only."""
    shutil.copytree(demo.home / "dew-demo", demo.home / "again")
    ran = dew("demo", "--steps", "6", "--out", "again", cwd=demo.home, COLUMNS="100", PYTHONIOENCODING="ascii")
    assert ran.code == 0, ran.err
    assert ran.err == ""
    assert ran.out.isascii()
    assert '{"records": 96} in again/position.json' in ran.out
    first = demo.ran.json["compared"]["steps"][0]
    assert first["step"] == 4
    shown = "".join(f"{record:>5}" for record in first["resumed"][:6])
    assert ran.out.count(shown) == 2  # the resumed run beside the one that never stopped
    assert "96 record ids and 6,240 tokens compared, none differs" in ran.out
    assert len(json.loads((demo.home / "again/dew-demo.json").read_text())["losses"]) == 6


def test_a_resume_that_goes_wrong_is_seen(script: Script) -> None:
    """The demo's own proof must be able to fail: here positions are ignored, so the second half starts at step 0."""
    ran = script("""
        import sys
        from dew.cli import main
        from dew.data.stream import RecordStream
        RecordStream.set_state = lambda self, state, accept=(): None
        sys.exit(main(["demo", "--steps", "4"]))
    """)
    assert ran.code == 1, ran.err
    assert "64 rows DIFFER" in ran.out


def test_a_loss_that_stays_is_seen(script: Script) -> None:
    ran = script("""
        import sys
        import dew.cli.demo_model as model
        model._RATE = 0.0
        from dew.cli import main
        sys.exit(main(["demo", "--steps", "4"]))
    """)
    assert ran.code == 1
    assert "the loss did NOT clearly fall" in ran.out
    assert "none differs" in ran.out


def test_another_directory_is_left_alone(dew: Dew, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/position.json").write_text("mine")
    dew("demo", "--out", "thesis").fails("thesis is not empty and was not made by dew demo", "position.json", "--out")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["position.json"]
    assert (tmp_path / "thesis/position.json").read_text() == "mine"


def test_a_place_that_cannot_be_written(dew: Dew, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    dew("demo", "--out", "a-file/below").fails("a-file/below cannot be written", "--out")


def test_without_tokenizers(script: Script) -> None:
    ran = script("""
        import sys
        sys.modules["tokenizers"] = None
        from dew.cli import main
        sys.exit(main(["demo"]))
    """)
    assert ran.code == 1
    assert 'pip install "dew-core[demo]"' in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("words", [["--steps", "3"], ["--out", "a-file"]])
def test_wrong_usage(dew: Dew, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "a-file").touch()
    assert dew("demo", *words).code == 2


@pytest.fixture
def rows() -> Dataset:
    return from_records({"text": np.arange(100 * 5, dtype=np.int32).reshape(100, 5)}, batch=8, seed=3)


def test_partitions_are_put_together_in_global_order(rows: Dataset) -> None:
    with GlobalBatches(rows) as whole, GlobalBatches(rows, 4) as shared:
        for _ in range(3):
            one, four = next(whole), next(shared)
            assert one.ids.tolist() == four.ids.tolist() == (one.text[:, 0] // 5).tolist()
            assert (one.text == four.text).all()
        assert whole.get_state() == shared.get_state()


def _swapped(taken: Taken) -> Taken:
    text = taken.text.copy()
    text[[1, 6]] = text[[6, 1]]
    return Taken(taken.step, taken.ids, text)


def _one_token(taken: Taken) -> Taken:
    text = taken.text.copy()
    text[7, 4] += 1
    return Taken(taken.step, taken.ids, text)


@pytest.mark.parametrize(
    ("change", "different"),
    [
        (lambda taken: taken, ()),
        (lambda taken: Taken(taken.step, taken.ids[::-1].copy(), taken.text), tuple(range(8))),
        (lambda taken: Taken(taken.step + 1, taken.ids, taken.text), tuple(range(8))),
        (_swapped, (1, 6)),
        (_one_token, (7,)),
    ],
)
def test_compare_names_the_rows_that_differ(
    rows: Dataset, change: Callable[[Taken], Taken], different: tuple[int, ...]
) -> None:
    with GlobalBatches(rows, 2) as batches:
        taken = [next(batches) for _ in range(5)]
    pairs = compare(rows, [taken[3], change(taken[4])], 3)
    assert [pair.different for pair in pairs] == [(), different]
    assert [pair.whole.step for pair in pairs] == [3, 4]


def test_model_learns_a_sequence_by_heart() -> None:
    """Targets that do not count have no part in the loss, and a repeated batch is learnt."""
    on_cpu()
    learner = Learner(Shape(vocabulary=16, length=8, width=16, heads=2, blocks=1))
    text = np.arange(18, dtype=np.int32).reshape(2, 9) % 16
    batch = {"inputs": text[:, :-1], "targets": text[:, 1:], "target_mask": np.ones((2, 8), bool)}
    state = learner.start()
    half = dict(batch, target_mask=np.repeat([[True], [False]], 8, axis=1))
    garbled = dict(half, targets=np.where(half["target_mask"], batch["targets"], 3))
    assert learner.totals(state, half) == learner.totals(state, garbled)
    assert learner.totals(state, half)[1] == 8
    losses = []
    for _ in range(150):
        state, loss = learner.step(state, batch)
        losses.append(loss)
    assert losses[0] == pytest.approx(np.log(16), abs=0.6)
    assert losses[-1] < 0.1
    assert state.steps == 150
