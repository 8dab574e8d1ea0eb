"""The trainer in one process: what it counts, saves, resumes and refuses, and what it leaves. Pools: test_pools."""

import itertools
import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.data import DataPartition, Dataset, Mixture, Ramp, from_records, ramped
from dew.data.errors import (
    CheckpointError,
    DewDataError,
    FieldError,
    OptionsError,
    OptionsTypeError,
    PositionMismatchError,
    SourceError,
)
from dew.data.mixing import validation_sets
from dew.training import Checkpoints, Placement, Preempted, Trainer, shard_batch

RECORDS, BATCH = 53, 8


def numbers(records: int = RECORDS, **options: Any) -> Dataset:
    return from_records({"x": np.arange(records, dtype=np.int32)}, batch=BATCH, **{"seed": 3, **options})


@jax.jit
def step(state: dict[str, Any], batch: dict[str, Any]) -> Any:
    total = jnp.sum(batch["x"])
    return {"sum": state["sum"] + total, "hash": state["hash"] * 31 + total}, {"total": total}


def start() -> dict[str, Any]:
    return {"sum": np.zeros((), np.int32), "hash": np.zeros((), np.uint32)}


@jax.jit
def evaluate(state: dict[str, Any], batch: dict[str, Any]) -> Any:
    valid = batch["valid"]
    return {"x": (jnp.sum(batch["x"] * valid), jnp.sum(valid)), "sum": (state["sum"] * jnp.sum(valid), jnp.sum(valid))}


def plain(state: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(value) for name, value in state.items()}


def uninterrupted(dataset: Dataset, steps: int) -> dict[str, int]:
    with dataset.train(DataPartition()) as stream:  # pyright: ignore[reportGeneralTypeIssues]
        state = start()
        for batch in itertools.islice(stream, steps):
            state, _ = step(state, {"x": batch["x"]})
    return plain(state)


class Own:
    """An iterator of a user's own, without a position."""

    def __init__(self, stop: int | None = None, rows: int = BATCH) -> None:
        self.stop = stop
        self.rows = rows
        self.read = 0
        self.closed = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> dict[str, Any]:
        if self.read == self.stop:
            raise StopIteration
        self.read += 1
        return {"x": np.full(self.rows, self.read, np.int32)}

    def close(self) -> None:
        self.closed += 1


class Positioned(Own):
    """The same with a state that is no mapping."""

    def get_state(self) -> int:
        return self.read

    def set_state(self, state: int) -> None:
        self.read = state


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    with Checkpoints(tmp_path / "run", keep=None) as made:
        yield made


@pytest.fixture(autouse=True)
def _sigterm() -> Iterator[None]:
    """A stopped run ignores SIGTERM until its process ends, which this one does not."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_steps_are_those_of_the_stream() -> None:
    trainer = Trainer(step, start())
    state = trainer.fit(numbers(), steps=9)
    assert plain(state) == uninterrupted(numbers(), 9)
    assert trainer.state is state
    assert trainer.taken == 9


def test_epochs_are_counted_over_the_whole_run() -> None:
    trainer = Trainer(step, start())
    state = trainer.fit(numbers(24), epochs=2)
    assert trainer.taken == 6
    assert int(state["sum"]) == 2 * sum(range(24))
    assert int(trainer.fit(numbers(24), epochs=3)["sum"]) == 3 * sum(range(24))


def test_a_second_fit_goes_on() -> None:
    trainer = Trainer(step, start())
    trainer.fit(numbers(), steps=4)
    assert plain(trainer.fit(numbers(), steps=9)) == uninterrupted(numbers(), 9)
    assert plain(trainer.fit(numbers(), steps=9)) == uninterrupted(numbers(), 9)
    with pytest.raises(OptionsError, match=r"taken 9 steps already, past the target of 8: steps= counts the whole run"):
        trainer.fit(numbers(), steps=8)


def test_a_second_fit_of_data_without_a_position_begins_it_anew_where_that_is_asked_for() -> None:
    trainer = Trainer(step, start())
    trainer.fit(Dataset(train=lambda _: Own(), batch=BATCH), steps=2)
    with pytest.raises(OptionsError, match=r"taken 2 steps of a stream without a position.*restart_data=True"):
        trainer.fit(Dataset(train=lambda _: Own(), batch=BATCH), steps=4)
    state = trainer.fit(Dataset(train=lambda _: Own(), batch=BATCH), steps=4, restart_data=True)
    assert int(state["sum"]) == BATCH * (1 + 2 + 1 + 2)


@pytest.mark.parametrize("make", [numbers, lambda: Dataset(train=lambda _: Positioned(), batch=BATCH)])
@pytest.mark.parametrize("cut", [1, 4, 7, 8])
def test_resumes_from_the_latest_checkpoint(tmp_path: Path, make: Callable[[], Dataset], cut: int) -> None:
    """The position is that behind the last step taken, whatever was read ahead."""
    with Checkpoints(tmp_path / "run") as checkpoints:
        Trainer(step, start(), checkpoints=checkpoints).fit(make(), steps=cut, checkpoint_every=3)
        assert checkpoints.steps() == sorted({*range(3, cut + 1, 3), cut})
    with Checkpoints(tmp_path / "run") as checkpoints:
        trainer = Trainer(step, start(), checkpoints=checkpoints)
        state = trainer.fit(make(), steps=9)
        assert trainer.taken == checkpoints.latest() == 9
    assert plain(state) == plain(Trainer(step, start()).fit(make(), steps=9))


def test_a_checkpoint_of_another_dataset_is_refused(checkpoints: Checkpoints) -> None:
    Trainer(step, start(), checkpoints=checkpoints).fit(numbers(), steps=2)
    other = numbers(seed=4)
    with pytest.raises(PositionMismatchError, match="seed"):
        Trainer(step, start(), checkpoints=checkpoints).fit(other, steps=4)
    moved = numbers(60)
    with pytest.raises(PositionMismatchError):
        Trainer(step, start(), checkpoints=checkpoints).fit(moved, steps=4)
    restarted = Trainer(step, start(), checkpoints=checkpoints)
    state = restarted.fit(other, steps=4, restart_data=True)
    assert restarted.taken == 4
    assert int(state["sum"]) == uninterrupted(numbers(), 2)["sum"] + uninterrupted(other, 2)["sum"]


def test_accepted_differences_are_passed_on(checkpoints: Checkpoints) -> None:
    Trainer(step, start(), checkpoints=checkpoints).fit(numbers(), steps=2)
    changed = from_records({"x": np.arange(RECORDS, dtype=np.int32)[::-1]}, batch=BATCH, seed=3)
    with pytest.raises(PositionMismatchError, match="fingerprint"):
        Trainer(step, start(), checkpoints=checkpoints).fit(changed, steps=3)
    trainer = Trainer(step, start(), checkpoints=checkpoints)
    trainer.fit(changed, steps=3, accept={"fingerprint"})
    assert trainer.taken == 3


def test_ramps_resume(tmp_path: Path) -> None:
    ramp = ramped(numbers(), Ramp(start=2, increment=2, samples=20))
    whole = plain(Trainer(step, start()).fit(ramp, steps=8))
    for target in (3, 8):
        with Checkpoints(tmp_path / "run") as checkpoints:
            state = Trainer(step, start(), checkpoints=checkpoints).fit(ramp, steps=target)
    assert plain(state) == whole == uninterrupted(ramp, 8)


def test_checkpoints_of_a_stream_without_a_position_are_refused(checkpoints: Checkpoints) -> None:
    opened: list[Own] = []

    def train(partition: DataPartition) -> Own:
        opened.append(Own())
        return opened[-1]

    trainer = Trainer(step, start(), checkpoints=checkpoints)
    with pytest.raises(OptionsError, match=r"no position.*Own.*has no get_state\(\).*checkpoint_every=None"):
        trainer.fit(Dataset(train=train, batch=BATCH), steps=3, checkpoint_every=1)
    assert (opened[0].read, opened[0].closed, trainer.taken) == (0, 1, 0)
    Own.no_position_reason = "it is shuffled by a buffer"  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with pytest.raises(OptionsError, match="continue its data: it is shuffled by a buffer"):
            trainer.fit(Dataset(train=train, batch=BATCH), steps=3, checkpoint_every=1)
    finally:
        del Own.no_position_reason  # pyright: ignore[reportAttributeAccessIssue]


def test_without_a_position_the_state_alone_is_saved(checkpoints: Checkpoints) -> None:
    data = Dataset(train=lambda _: Own(), batch=BATCH)
    Trainer(step, start(), checkpoints=checkpoints).fit(data, steps=2)
    assert checkpoints.steps() == [2]
    with pytest.raises(CheckpointError, match="has no data position"):
        Trainer(step, start(), checkpoints=checkpoints).fit(data, steps=3)
    state = Trainer(step, start(), checkpoints=checkpoints).fit(data, steps=3, restart_data=True)
    assert int(state["sum"]) == BATCH * (1 + 2 + 1)


@pytest.mark.parametrize("make", [Own, Positioned])
def test_training_data_that_end_early(checkpoints: Checkpoints, make: type[Own]) -> None:
    data = Dataset(train=lambda _: make(stop=4), batch=BATCH)
    trainer = Trainer(step, start(), checkpoints=checkpoints)
    with pytest.raises(SourceError, match=r"data ended after 4 of 6 steps; the state after them was saved.*next epoch"):
        trainer.fit(data, steps=6)
    assert trainer.taken == checkpoints.latest() == 4
    assert int(trainer.state["sum"]) == BATCH * (1 + 2 + 3 + 4)
    with pytest.raises(SourceError, match="ended after 4 of 6 steps; nothing was saved"):
        Trainer(step, start()).fit(data, steps=6)


def test_data_without_a_batch(checkpoints: Checkpoints) -> None:
    trainer = Trainer(step, start(), checkpoints=checkpoints)
    with pytest.raises(SourceError, match="ended after 0 of 6 steps"):
        trainer.fit(Dataset(train=lambda _: iter(()), batch=BATCH), steps=6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of steps and epochs, got steps=None and epochs=None"),
        ({"steps": 3, "epochs": 3}, "exactly one of steps and epochs, got steps=3 and epochs=3"),
        ({"steps": 0}, "steps"),
        ({"steps": 1, "checkpoint_every": 1}, "checkpoint_every=1 was asked for.*without checkpoints="),
        ({"steps": 1, "validate_every": 1}, "validate_every=1 was asked for.*without evaluate="),
    ],
)
def test_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        Trainer(step, start()).fit(numbers(), **options)


def test_epochs_of_unknown_length_are_refused() -> None:
    with pytest.raises(OptionsError, match="does not know its number of records"):
        Trainer(step, start()).fit(Dataset(train=lambda _: Own(), batch=BATCH), epochs=1)


def test_arguments_of_a_wrong_type_are_refused() -> None:
    with pytest.raises(OptionsTypeError, match="step must be a function"):
        Trainer(3, start())  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionsTypeError, match="place must be a Placement or a function"):
        Trainer(step, start(), place=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionsTypeError, match="checkpoints must be a Checkpoints"):
        Trainer(step, start(), checkpoints="folder")  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionsTypeError, match="evaluate must be a function or a mapping"):
        Trainer(step, start(), evaluate=3).fit(numbers(val={"x": [1]}), steps=1, validate_every=1)  # pyright: ignore


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda state, batch: state, r"step must return \(state, metrics\), it returned a dict"),
        (lambda state, batch: (state, 3), "metrics must be a mapping of names to scalars, step returned 3"),
        (lambda state, batch: (state, {"x": batch["x"]}), r"the metric 'x' must be a scalar, it is \(8,\)"),
        (lambda state, batch: (state, {"x": "y"}), "the metric 'x' must be a scalar"),
    ],
)
def test_steps_that_return_something_else_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(OptionsTypeError, match=message):
        Trainer(wrong, start()).fit(numbers(), steps=2)


def test_a_step_without_targets_is_an_error() -> None:
    def without(state: Any, batch: Any) -> Any:
        return state, {"mass": jnp.zeros((), jnp.int32)}

    with pytest.raises(FieldError, match="hold 0 targets"):
        Trainer(without, start()).fit(numbers(), steps=1)
    weight = Trainer(lambda state, batch: (state, {"mass": 0.0}), start())  # somebody's own, of a body
    weight.fit(numbers(), steps=1)
    assert weight.metrics["mass"] == 0.0


def test_batches_that_do_not_fit_are_refused_by_field() -> None:
    wide = from_records({"x": np.arange(RECORDS)}, batch=BATCH)
    with pytest.raises(FieldError, match=r"'x' is .* int64, which JAX would make int32"):
        Trainer(step, start()).fit(wide, steps=1)
    assert int(Trainer(step, start(), place=Placement(narrow={"x"})).fit(wide, steps=1)["sum"]) > 0
    text = from_records({"x": np.arange(RECORDS, dtype=np.int32), "caption": ["a"] * RECORDS}, batch=BATCH)
    with pytest.raises(FieldError, match="field 'caption' is"):
        Trainer(step, start()).fit(text, steps=1)
    short = Dataset(train=lambda _: Own(rows=4), batch=BATCH)
    with pytest.raises(FieldError, match="'x' has 4 rows, 8 expected"):
        Trainer(step, start()).fit(short, steps=1)


def test_a_place_of_ones_own() -> None:
    trainer = Trainer(step, start())

    def place(batch: Any) -> Any:
        return shard_batch(trainer.mesh, {"x": batch["x"] * 2})

    trainer = Trainer(step, start(), place=place)
    assert int(trainer.fit(numbers(), steps=3)["sum"]) == 2 * uninterrupted(numbers(), 3)["sum"]


def test_errors_of_data_keep_their_type_and_notes(checkpoints: Checkpoints) -> None:
    class Broken:
        def __len__(self) -> int:
            return RECORDS

        def __getitem__(self, index: int) -> Any:
            if index == 11:
                raise ZeroDivisionError("record 11 is broken")
            return {"x": np.int32(index)}

    from dew.data import dataset_of

    dataset = dataset_of(Broken(), batch=BATCH, seed=3)
    with pytest.raises(ZeroDivisionError) as caught:
        Trainer(step, start(), checkpoints=checkpoints).fit(dataset, steps=50, checkpoint_every=1)
    assert any("record 11" in note for note in caught.value.__notes__)


def test_an_error_of_the_step_closes_the_stream() -> None:
    opened: list[Own] = []

    def train(partition: DataPartition) -> Own:
        opened.append(Own())
        return opened[-1]

    def broken(state: Any, batch: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Trainer(broken, start()).fit(Dataset(train=train, batch=BATCH), steps=3)
    assert opened[0].closed == 1


def test_metrics_are_reported_in_order() -> None:
    said: list[tuple[int, Mapping[str, float]]] = []
    trainer = Trainer(step, start(), evaluate=evaluate)
    dataset = numbers(val={"x": np.arange(10, dtype=np.int32)})
    trainer.fit(dataset, steps=5, validate_every=2, report=lambda *each: said.append(each))
    assert [taken for taken, _ in said] == [1, 2, 2, 3, 4, 4, 5, 5]
    training = [metrics for _, metrics in said if "total" in metrics]
    assert sum(metrics["total"] for metrics in training) == uninterrupted(dataset, 5)["sum"]
    assert all(0 <= metrics["wait_share"] <= 1 and metrics["steps_per_second"] > 0 for metrics in training)
    validated = [metrics for _, metrics in said if "val/x" in metrics]
    assert [set(metrics) for metrics in validated] == [{"val/x", "val/sum"}] * 3
    # Scored with the state as it is then.
    assert [metrics["val/sum"] for metrics in validated] == [uninterrupted(dataset, k)["sum"] for k in (2, 4, 5)]
    assert set(trainer.metrics) == {"total", "wait_share", "steps_per_second", "val/x", "val/sum"}


@pytest.mark.parametrize("records", [1, 7, 8, 21])
def test_validation_gives_the_exact_mean(records: int) -> None:
    values = np.arange(100, 100 + records, dtype=np.int32)
    trainer = Trainer(step, start(), evaluate=evaluate)
    trainer.fit(numbers(val={"x": values}), steps=1, validate_every=1)
    assert trainer.metrics["val/x"] == np.mean(values)


def test_several_validation_sets() -> None:
    first, second = ({"x": np.arange(at, at + 9, dtype=np.int32)} for at in (0, 100))
    other = from_records({"x": np.arange(4, dtype=np.int32)}, batch=2, val=second)
    trainer = Trainer(
        step,
        start(),
        evaluate={
            "own": evaluate,
            "other": (other, evaluate),
            "again": (validation_sets(other)["val"], lambda state, batch: {"first": (batch["x"][0], 1)}),
        },
    )
    trainer.fit(numbers(val=first), steps=1, validate_every=1)
    found = {name: value for name, value in trainer.metrics.items() if "/" in name and not name.endswith("/sum")}
    assert found == {"own/x": 4, "other/x": 104, "again/first": np.mean([100, 102, 104, 106, 108])}


def test_the_sets_of_a_mixture() -> None:
    parts = {
        name: (numbers(val={"x": np.arange(at, at + 5, dtype=np.int32)}, seed=at), 1)
        for at, name in enumerate(["a", "b"])
    }
    trainer = Trainer(step, start(), evaluate=evaluate)
    trainer.fit(Mixture(parts).load(batch=BATCH), steps=1, validate_every=1)
    assert (trainer.metrics["a/x"], trainer.metrics["b/x"]) == (2, 3)


def test_validation_without_data_is_refused() -> None:
    with pytest.raises(OptionsError, match="no validation split"):
        Trainer(step, start(), evaluate=evaluate).fit(numbers(), steps=1, validate_every=1)
    for given, message in [
        ({"a": evaluate}, r"evaluate\['a'\] has no data"),
        ({"a": (numbers(), evaluate)}, r"evaluate\['a'\] has no data"),
    ]:
        with pytest.raises(OptionsError, match=message):
            Trainer(step, start(), evaluate=given).fit(numbers(), steps=1, validate_every=1)
    for given, message in [
        ({"a": (3, evaluate)}, "must be a Dataset or a callable DataPartition -> iterator, got int"),
        ({"a": 3}, r"evaluate\['a'\] must be a function"),
    ]:
        with pytest.raises(OptionsTypeError, match=message):
            Trainer(step, start(), evaluate=given).fit(numbers(), steps=1, validate_every=1)  # pyright: ignore


@pytest.mark.parametrize(
    ("scored", "kind", "message"),
    [
        (3, OptionsTypeError, r"must return {metric: \(total, mass\)}.*it returned 3"),
        ({}, OptionsTypeError, r"must return {metric: \(total, mass\)}"),
        ({"x": 3}, OptionsTypeError, r"must return {metric: \(total, mass\)}"),
        ({"x": (np.ones(3), 3)}, OptionsTypeError, r"the total of val/x must be a scalar, it is \(3,\)"),
        ({"x": (1.0, 0)}, FieldError, "val/x has a mass of 0 after 2 batches"),
    ],
)
def test_scores_that_are_no_mean_are_refused(scored: Any, kind: type[DewDataError], message: str) -> None:
    trainer = Trainer(step, start(), evaluate=lambda state, batch: scored)
    with pytest.raises(kind, match=message):
        trainer.fit(numbers(val={"x": np.arange(10, dtype=np.int32)}), steps=1, validate_every=1)


def passes(opened: list[Own], stop: int = 3) -> Callable[[DataPartition], Own]:
    def val(partition: DataPartition) -> Own:
        opened.append(Own(stop=stop))
        return opened[-1]

    return val


def test_passes_are_opened_ahead_and_closed() -> None:
    opened: list[Own] = []
    seen: list[tuple[int, int]] = []

    def own_step(state: Any, batch: Any) -> Any:
        for thread in threading.enumerate():
            if thread.name == "dew-validation":
                thread.join()
        seen.append((len(opened), opened[-1].read))
        return step(state, batch)

    def score(state: Any, batch: Any) -> Any:
        return {"x": (jnp.sum(batch["x"]), BATCH)}

    trainer = Trainer(own_step, start(), evaluate={"a": (passes(opened), score)})
    trainer.fit(numbers(), steps=5, validate_every=2)
    assert seen == [(1, 1), (1, 1), (2, 1), (2, 1), (3, 1)]  # the next pass, with its first batch
    assert trainer.metrics["a/x"] == 2
    assert [(each.read, each.closed) for each in opened] == [(3, 1)] * 3


def test_a_pass_left_part_way_is_closed(checkpoints: Checkpoints) -> None:
    opened: list[Own] = []
    scored: list[int] = []

    def score(state: Any, batch: Any) -> Any:
        scored.append(1)
        if len(scored) == 2:
            raise ZeroDivisionError
        return {"x": (1, 1)}

    trainer = Trainer(step, start(), evaluate={"a": (passes(opened), score), "b": (passes(opened), score)})
    with pytest.raises(ZeroDivisionError):
        trainer.fit(numbers(), steps=5, validate_every=2)
    assert [each.closed for each in opened] == [1, 1]


def test_an_empty_validation_set_is_an_error() -> None:
    trainer = Trainer(step, start(), evaluate={"a": (passes([], stop=0), lambda state, batch: {"x": (1, 1)})})
    with pytest.raises(FieldError, match="set 'a' delivered no batch"):
        trainer.fit(numbers(), steps=5, validate_every=2)


def test_sigterm_stops_at_the_next_border_and_saves(tmp_path: Path) -> None:
    def asked(state: Any, batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGTERM)
        return step(state, batch)

    calls: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    with Checkpoints(tmp_path / "run") as checkpoints:
        trainer = Trainer(asked, start(), checkpoints=checkpoints)
        with pytest.raises(SystemExit) as caught:
            trainer.fit(numbers(), steps=9)
        assert isinstance(caught.value, Preempted)
        assert (caught.value.code, caught.value.step, caught.value.saved) == (75, 3, True)
        assert checkpoints.steps() == [3]
    signal.raise_signal(signal.SIGTERM)  # another one changes nothing: the process is on its way out
    signal.signal(signal.SIGTERM, before)
    with Checkpoints(tmp_path / "run") as checkpoints:
        state = Trainer(step, start(), checkpoints=checkpoints).fit(numbers(), steps=9)
    assert plain(state) == uninterrupted(numbers(), 9)
    assert signal.getsignal(signal.SIGTERM) == before


def test_sigterm_in_a_validation_leaves_it_part_way(checkpoints: Checkpoints) -> None:
    opened: list[Own] = []

    def asked(state: Any, batch: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return {"x": (1, 1)}

    trainer = Trainer(step, start(), checkpoints=checkpoints, evaluate={"a": (passes(opened), asked)})
    with pytest.raises(Preempted):
        trainer.fit(numbers(), steps=9, validate_every=2)
    assert checkpoints.steps() == [2]
    assert opened[0].closed == 1


def test_sigterm_without_checkpoints_saves_nothing() -> None:
    def asked(state: Any, batch: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return step(state, batch)

    with pytest.raises(Preempted) as caught:
        Trainer(asked, start()).fit(numbers(), steps=9)
    assert (caught.value.step, caught.value.saved) == (1, False)


def test_a_thread_can_fit() -> None:
    """Signals belong to the main thread; elsewhere SIGTERM keeps what it does."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(Trainer(step, start()).fit(numbers(), steps=3)))
    thread.start()
    thread.join()
    assert plain(found[0]) == uninterrupted(numbers(), 3)


def test_state_of_all_kinds_is_kept(checkpoints: Checkpoints) -> None:
    def with_key(state: Any, batch: Any) -> Any:
        key, _ = jax.random.split(state["key"])
        return {"key": key, "count": state["count"] + 1, "list": [state["list"][0] + 0.5]}, {}

    made = {"key": jax.random.key(1), "count": 0, "list": [np.float32(1)]}
    for target in (2, 4):
        trainer = Trainer(with_key, made, checkpoints=checkpoints)
        state = trainer.fit(numbers(), steps=target)
    whole = Trainer(with_key, made).fit(numbers(), steps=4)
    assert jax.random.key_data(state["key"]).tolist() == jax.random.key_data(whole["key"]).tolist()
    assert (int(state["count"]), float(state["list"][0])) == (4, 3.0)


SCRIPT = """
import os, signal, sys
import jax, jax.numpy as jnp, numpy as np
from dew.data import from_records
from dew.training import Checkpoints, Trainer

dataset = from_records({"x": np.arange(50, dtype=np.int32)}, batch=8, val={"x": np.arange(9, dtype=np.int32)})

def step(state, batch):
    if "stop" in sys.argv:
        os.kill(os.getpid(), signal.SIGTERM)
    return state, {"loss": jnp.mean(batch["x"])}

def evaluate(state, batch):
    return {"x": (jnp.sum(batch["x"] * batch["valid"]), jnp.sum(batch["valid"]))}

with Checkpoints("run") as checkpoints:
    trainer = Trainer(step, {"w": np.ones(1 << 22, np.float32)}, checkpoints=checkpoints, evaluate=evaluate)
    trainer.fit(dataset, steps=3, validate_every=2, grace=float(sys.argv[1]))
"""


def run_script(folder: Path, *words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(SCRIPT), *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "TERM": "xterm", "COLUMNS": "120"},
        **{"capture_output": True, **options},
    )


def test_a_stop_exits_with_75_or_with_1_after_the_grace(tmp_path: Path) -> None:
    late = run_script(tmp_path, "0.001", "stop")
    assert late.returncode == 1, late.stderr
    assert "step 1 was not saved within the grace of 0.001 s after SIGTERM" in late.stderr
    saved = run_script(tmp_path, "60", "stop")
    assert saved.returncode == 75, saved.stderr
    assert "stopped by SIGTERM after step 1, which was saved" in saved.stderr
    done = run_script(tmp_path, "60")
    assert done.returncode == 0
    assert (done.stdout, done.stderr) == ("", "")  # no terminal, no bar


def test_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        done = run_script(tmp_path, "60", capture_output=False, stdout=subprocess.PIPE, stderr=theirs)
        shown = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0
    assert done.stdout == ""
    assert "3/3" in shown
    assert "steps/s" in shown
    assert "waiting for data" in shown
