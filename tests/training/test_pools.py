"""Whole runs in real pools: the same records at any number of processes, after kills, stops and errors; never a hang.

Members run `train`, which takes its orders from the environment: see `Order`. What a run has read is in its state, as
integers that no order of sums can change: how often each record was seen, and a hash of the records by step.
"""

import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.data import DataPartition, Dataset, PositionMismatchError, Ramp, dataset_of, from_records, ramped
from dew.data.build import in_memory
from dew.data.errors import DewDataError
from dew.training import Checkpoints, build_mesh, row_keys
from dew.training.trainer import Trainer
from dew.training.watch import PREEMPTED

RECORDS, BATCH, LAST = 53, 8, 9
"""53 records do not divide by the batch: from step 6 on, steps hold records of two epochs."""

VALIDATION = {"x": np.arange(1000, 1021, dtype=np.int32)}

TRAIN = f"""
import importlib.util, sys, types
spec = importlib.util.spec_from_file_location("pools", {__file__!r})
sys.modules["pools"] = pools = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pools)
say(result=pools.train(types.SimpleNamespace(index=INDEX, folder=FOLDER, say=say)))
"""
"""`train` as a script, so that errors and exits take their own course."""


class Ended(Protocol):
    index: int
    code: int
    said: list[Any]
    err: str
    result: Any


class Pool(Protocol):
    members: list[Any]

    def wait_said(self, index: int, text: str) -> None: ...
    def send(self, number: signal.Signals, index: int) -> None: ...
    def kill(self, *indices: int) -> None: ...
    def wait(self, *, check: bool = True, expected: Mapping[int, int] | None = None) -> list[Ended]: ...


RunPool = Callable[..., list[Ended]]
StartPool = Callable[..., Pool]


@attrs.frozen
class Order:
    """What a member is to do; travels as JSON in an environment variable.

    `fail` is `"step P N"` or `"record P X"`: process P fails in its N-th step, or when it reads record X.
    """

    steps: int = 10_000
    data: str = "plain"
    checkpoint_every: int | None = 1
    validate_every: int | None = None
    slow: float = 0.0
    slow_validation: float = 0.0
    fail: str = ""

    def env(self) -> dict[str, str]:
        """One device a process, and programs that are compiled in little time."""
        return {
            "DEW_TEST_ORDER": json.dumps(attrs.asdict(self)),
            "XLA_FLAGS": "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0",
        }


def the_order() -> Order:
    return Order(**json.loads(os.environ["DEW_TEST_ORDER"]))


class Counting:
    """A user's own iterator with a state, `{"offset": k}`, that counts inside its share."""

    def __init__(self, partition: DataPartition, stop: int | None = None) -> None:
        self.partition = partition
        self.offset = 0
        self.stop = stop

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> dict[str, Any]:
        if self.offset == self.stop:
            raise StopIteration
        rows = BATCH // self.partition.count
        numbers = np.arange(self.offset * rows, (self.offset + 1) * rows, dtype=np.int32)
        self.offset += 1
        return {"x": numbers * self.partition.count % RECORDS + self.partition.index}

    def get_state(self) -> dict[str, int]:
        return {"offset": self.offset}

    def set_state(self, state: Mapping[str, int]) -> None:
        self.offset = state["offset"]


def broken_record(record: Any) -> Any:
    if the_order().fail == f"record {jax.process_index()} {int(record['x'])}":
        raise OSError("the disk of this process is broken")
    return record


def make_dataset(data: str) -> Dataset:
    records = {"x": np.arange(RECORDS, dtype=np.int32)}
    plain = from_records(records, batch=BATCH, seed=7, val=VALIDATION)
    if data == "places":
        return dataset_of(in_memory(records), batch=BATCH, seed=7, val=in_memory(VALIDATION), place_field="place")
    if data == "broken":
        return dataset_of(in_memory(records), batch=BATCH, seed=7, preprocess=broken_record)
    if data == "ramp":
        return ramped(plain, Ramp(start=4, increment=4, samples=24))
    return plain


def first_state() -> dict[str, Any]:
    return {
        "seen": np.zeros(RECORDS, np.int32),
        "hash": np.zeros((), np.uint32),
        "w": np.ones((), np.float32),
        "key": jax.random.key(5),
    }


@jax.jit
def jitted_step(state: dict[str, Any], batch: dict[str, Any]) -> Any:
    x = batch["x"]
    seen = state["seen"].at[x].add(1)
    # Of the set of records, and of its number among the steps.
    mixed = (x.astype(jnp.uint32) + 1) * (x.astype(jnp.uint32) + 17)
    hashed = state["hash"] * jnp.uint32(31) + jnp.sum(mixed)
    noise = jnp.zeros(x.shape)
    if "place" in batch:
        noise = jax.vmap(jax.random.uniform)(row_keys(state["key"], batch))
    loss, slope = jax.value_and_grad(lambda w: jnp.mean((w * (x / RECORDS + noise) - 0.3) ** 2))(state["w"])
    return {**state, "seen": seen, "hash": hashed, "w": state["w"] - 0.1 * slope}, {"loss": loss}


@jax.jit
def evaluate(state: dict[str, Any], batch: dict[str, Any]) -> Any:
    valid = batch.get("valid", jnp.ones_like(batch["x"]))
    return {"x": (jnp.sum(batch["x"] * valid), jnp.sum(valid))}


def rows_of(batch: dict[str, Any]) -> list[int]:
    """The rows that this process's devices hold."""
    return [int(x) for shard in batch["x"].addressable_shards for x in np.asarray(shard.data)]


def train(member: Any) -> Any:
    order = the_order()
    reported: dict[int, dict[str, float]] = {}
    calls: list[int] = []

    def step(state: Any, batch: Any) -> Any:
        member.say(step=trainer.taken + len(calls), rows=rows_of(batch))
        calls.append(1)
        if order.fail == f"step {member.index} {len(calls)}":
            raise LookupError("the step of this process is broken")
        time.sleep(order.slow)
        return jitted_step(state, batch)

    def score(state: Any, batch: Any) -> Any:
        member.say(validating=True)
        time.sleep(order.slow_validation)
        return evaluate(state, batch)

    with Checkpoints(member.folder / "run") as checkpoints:
        trainer = Trainer(step, first_state(), evaluate=score, checkpoints=checkpoints)
        state = trainer.fit(
            make_dataset(order.data),
            steps=order.steps,
            checkpoint_every=order.checkpoint_every,
            validate_every=order.validate_every,
            report=lambda step, metrics: reported.setdefault(step, {}).update(metrics),
        )
    losses = {step: metrics["loss"] for step, metrics in reported.items() if "loss" in metrics}
    return {**what_was_read(state), "losses": losses, "val": trainer.metrics.get("val/x"), "taken": trainer.taken}


def what_was_read(state: Any) -> dict[str, Any]:
    return {"seen": np.asarray(state["seen"]).tolist(), "hash": int(state["hash"])}


@attrs.frozen
class Whole:
    """A run that nothing stopped, in this process."""

    read: dict[str, Any]
    rows: list[list[int]]
    losses: list[float]


def uninterrupted(data: str, steps: int) -> Whole:
    rows: list[list[int]] = []
    losses: list[float] = []

    def step(state: Any, batch: Any) -> Any:
        rows.append(sorted(np.asarray(batch["x"]).tolist()))
        return jitted_step(state, batch)

    trainer = Trainer(step, first_state())
    state = trainer.fit(make_dataset(data), steps=steps, report=lambda step, metrics: losses.append(metrics["loss"]))
    return Whole(what_was_read(state), rows, losses)


def finished_here(folder: Path, data: str, more: int) -> tuple[int, dict[str, Any]]:
    """Goes on in this process, for `more` steps; what the whole run has read then, and its steps."""
    with Checkpoints(folder / "run") as checkpoints:
        latest = checkpoints.latest()
        assert latest is not None
        trainer = Trainer(jitted_step, first_state(), checkpoints=checkpoints)
        return latest + more, what_was_read(trainer.fit(make_dataset(data), steps=latest + more))


def test_resume_on_1_2_4_and_1_processes(run_pool: RunPool) -> None:
    """The same rows at each step, each once; the same losses to 1e-6 with noise by record; the exact mean."""
    whole = uninterrupted("places", LAST)
    losses: dict[int, float] = {}
    ended: list[Ended] = []
    for processes, steps in ((1, 2), (2, 4), (4, 7), (1, LAST)):
        order = Order(steps=steps, data="places", validate_every=100)
        ended = run_pool(TRAIN, processes, env=order.env())
        read: dict[int, list[int]] = {}
        for each in ended:
            for said in each.said:
                if "rows" in said:
                    read.setdefault(said["step"], []).extend(said["rows"])
            assert each.result["taken"] == steps
            assert each.result["val"] == np.mean(VALIDATION["x"])
        assert {k: sorted(rows) for k, rows in read.items()} == {k: whole.rows[k] for k in range(len(losses), steps)}
        losses |= {int(step): loss for step, loss in ended[0].result["losses"].items()}
    assert {name: ended[0].result[name] for name in whole.read} == whole.read
    assert [losses[step + 1] for step in range(LAST)] == pytest.approx(whole.losses, rel=1e-6)


def wait_for_checkpoint(folder: Path, pool: Pool) -> None:
    """Until the pool has written a checkpoint that was not there."""
    checkpoints = Checkpoints(folder / "run")
    before, end = checkpoints.latest(), time.monotonic() + 100
    while checkpoints.latest() == before:
        assert time.monotonic() < end
        assert pool.members[0].poll() is None
        time.sleep(0.02)


def kill_and_resume(start_pool: StartPool, folder: Path, kills: list[tuple[int, tuple[int, ...]]], seed: int) -> None:
    """Kills members at random points of a ramped run, each time on as many processes as asked for.

    Args:
        kills: (processes, those that are killed; none for all).
    """
    draw = random.Random(seed)
    order = Order(data="ramp", slow=0.03)
    for processes, victims in kills:
        pool = start_pool(TRAIN, processes, env=order.env(), heartbeat=5)
        wait_for_checkpoint(folder, pool)
        time.sleep(draw.uniform(0, 0.4))
        pool.kill(*victims)
        codes = [each.code for each in pool.wait(check=False)]
        for index, code in enumerate(codes):  # nobody is left, and nobody has finished
            assert code == -signal.SIGKILL if not victims or index in victims else code != 0
    steps, read = finished_here(folder, "ramp", 3)
    assert read == uninterrupted("ramp", steps).read


def test_kills_lose_and_repeat_nothing(start_pool: StartPool, tmp_path: Path) -> None:
    kill_and_resume(start_pool, tmp_path, [(1, ()), (2, (1,)), (2, (0,))], seed=1)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_twenty_kills(start_pool: StartPool, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    kills: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(5):
        processes = draw.choice([1, 2, 4])
        one = (draw.randrange(processes),)
        kills.append((processes, draw.choice([(), one])))
    kill_and_resume(start_pool, tmp_path, kills, seed)


def stopped_steps(ended: list[Ended]) -> set[int]:
    """How many steps each member took."""
    return {1 + max(said["step"] for said in each.said if "step" in said) for each in ended}


def test_sigterm_seconds_apart(start_pool: StartPool, tmp_path: Path) -> None:
    """The second signal comes when the first has stopped all."""
    pool = start_pool(TRAIN, 2, env=Order(slow=0.05, checkpoint_every=1000).env())
    pool.wait_said(1, '"step": 3')
    pool.send(signal.SIGTERM, 1)
    time.sleep(2)
    pool.send(signal.SIGTERM, 0)
    ended = pool.wait(expected={0: PREEMPTED, 1: PREEMPTED})
    (stopped,) = stopped_steps(ended)
    for each in ended:
        assert f"stopped by SIGTERM after step {stopped}, which was saved" in each.err
    steps, read = finished_here(tmp_path, "plain", 2)
    assert steps == stopped + 2
    assert read == uninterrupted("plain", steps).read


def test_sigterm_to_one_process_during_validation(start_pool: StartPool, tmp_path: Path) -> None:
    order = Order(validate_every=2, slow_validation=0.3, checkpoint_every=None)
    pool = start_pool(TRAIN, 2, env=order.env())
    pool.wait_said(0, "validating")
    pool.send(signal.SIGTERM, 0)
    ended = pool.wait(expected={0: PREEMPTED, 1: PREEMPTED})
    assert stopped_steps(ended) == {2}
    assert sum("validating" in said for said in ended[0].said) < 3  # of the three batches of a pass
    steps, read = finished_here(tmp_path, "plain", 2)
    assert steps == 4
    assert read == uninterrupted("plain", steps).read


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
def test_sigterm_between_fast_steps(start_pool: StartPool, tmp_path: Path, seed: int) -> None:
    """No process may pass the border at which another one stops."""
    draw = random.Random(seed)
    processes = draw.choice([2, 4])
    pool = start_pool(TRAIN, processes, env=Order(checkpoint_every=draw.choice([2, 1000])).env())
    pool.wait_said(0, '"step": 5')
    for _ in range(draw.choice([1, 2])):
        time.sleep(draw.uniform(0, 0.2))
        pool.send(signal.SIGTERM, draw.randrange(processes))
    ended = pool.wait(expected=dict.fromkeys(range(processes), PREEMPTED))
    assert len(stopped_steps(ended)) == 1
    steps, read = finished_here(tmp_path, "plain", 2)
    assert read == uninterrupted("plain", steps).read


@pytest.mark.parametrize(
    ("data", "fail", "failed", "cause"),
    [
        ("plain", "step 1 5", 1, "LookupError: the step of this process is broken"),
        ("broken", "record 0 38", 0, "OSError: the disk of this process is broken"),
    ],
)
def test_an_error_in_one_process_ends_all(run_pool: RunPool, data: str, fail: str, failed: int, cause: str) -> None:
    order = Order(data=data, fail=fail, slow=0.05)
    ended = run_pool(TRAIN, 2, env=order.env(), check=False, timeout=60)
    assert [each.code for each in ended] == [1, 1]
    assert f"process {failed} on {socket.gethostname()} failed: {cause}" in ended[1 - failed].err
    assert "Traceback" in ended[failed].err
    assert cause in ended[failed].err


@pytest.mark.nightly
@pytest.mark.parametrize("failed", [0, 2])
@pytest.mark.parametrize("fail", ["step {} 3", "record {} {}"])
def test_an_error_in_one_of_four_processes_ends_all(run_pool: RunPool, fail: str, failed: int) -> None:
    record = int(make_dataset("broken").train(DataPartition()).ids(2)[failed])  # pyright: ignore[reportAttributeAccessIssue]
    order = Order(data="broken", fail=fail.format(failed, record), slow=0.05)
    ended = run_pool(TRAIN, 4, env=order.env(), check=False, timeout=90)
    assert [each.code for each in ended] == [1] * 4
    for each in ended:
        assert f"process {failed} on" in each.err or each.index == failed


class OwnPass:
    """A user's pass over VALIDATION, in which share 0 has more batches than the others."""

    opened: ClassVar[list["OwnPass"]] = []

    def __init__(self, partition: DataPartition, *, masked: bool = True) -> None:
        half = len(VALIDATION["x"]) - 5
        own = VALIDATION["x"][:half] if partition.index == 0 else VALIDATION["x"][half:]
        self.left = [own[at : at + 4] for at in range(0, len(own), 4)]
        self.masked = masked
        self.closed = False
        self.opened.append(self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> dict[str, Any]:
        if not self.left:
            raise StopIteration
        rows = self.left.pop(0)
        mask = {"valid": np.arange(4) < len(rows)} if self.masked else {}
        return {"x": np.resize(rows, 4), **mask}

    def close(self) -> None:
        self.closed = True


def refused(action: Callable[[], Any]) -> str:
    try:
        action()
    except DewDataError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was refused")


def check_own_iterators(member: Any) -> Any:
    """Iterators of a user's own, in two processes with two devices each."""
    found: dict[str, Any] = {}
    plain = make_dataset("plain")

    def fit(dataset: Dataset, steps: int = 6, **options: Any) -> Trainer[Any]:
        trainer = Trainer(jitted_step, first_state(), **options)
        trainer.fit(dataset, steps=steps)
        return trainer

    def whole(partition: DataPartition) -> Iterator[Any]:
        return Counting(DataPartition())

    found["B05"] = refused(lambda: fit(Dataset(train=whole, batch=BATCH)))
    found["B07"] = refused(lambda: fit(from_records({"x": np.arange(50, dtype=np.int32)}, batch=6)))
    found["state"] = refused(lambda: Trainer(jitted_step, {"w": np.full(2, member.index)}).fit(plain, steps=1))

    # Training that ends in one process before the other.
    def ending(partition: DataPartition) -> Iterator[Any]:
        return Counting(partition, stop=3 + partition.index)

    with Checkpoints(member.folder / "ends") as checkpoints:
        found["ends"] = refused(lambda: fit(Dataset(train=ending, batch=BATCH), checkpoints=checkpoints))
        found["ends_saved"] = checkpoints.steps()

    # A position that counts inside a share goes on with as many processes.
    shards = Dataset(train=Counting, batch=BATCH)
    with Checkpoints(member.folder / "run") as checkpoints:
        fit(shards, 2, checkpoints=checkpoints)
    with Checkpoints(member.folder / "run") as checkpoints:
        resumed = fit(shards, 4, checkpoints=checkpoints)
    found["shards"] = what_was_read(resumed.state) == what_was_read(fit(shards, 4).state)

    # Validation with more batches in one process than in the other.
    def unmasked(partition: DataPartition) -> Iterator[Any]:
        return OwnPass(partition, masked=False)

    def ragged(partition: DataPartition) -> Iterator[Any]:
        return iter([{"x": np.arange(4 if partition.index else 2, dtype=np.int32)}])

    def validated(val: Any) -> Any:
        trainer = Trainer(jitted_step, first_state(), evaluate={"own": (val, evaluate), "val": evaluate})
        trainer.fit(plain, steps=2, validate_every=1)
        return trainer.metrics

    found["uneven"] = {name: value for name, value in validated(OwnPass).items() if name.endswith("/x")}
    found["unmasked"] = refused(lambda: validated(unmasked))
    found["ragged"] = refused(lambda: validated(ragged))
    every = Dataset(train=Counting, val=lambda _: iter([{"x": np.arange(BATCH, dtype=np.int32)}]), batch=BATCH)
    found["whole pass"] = refused(lambda: validated(every))

    # A mesh on which both processes hold all rows, and each half of the model.
    sharded = fit(plain, mesh=build_mesh(tensor=4))
    found["readers"] = what_was_read(sharded.state) == what_was_read(fit(plain).state)
    found["closed"] = all(each.closed for each in OwnPass.opened)
    return found


def test_iterators_of_a_users_own(run_pool: RunPool, tmp_path: Path) -> None:
    ended = run_pool(check_own_iterators, 2, devices_per_process=2)
    mean = np.mean(VALIDATION["x"])
    for each in ended:
        found = each.result
        assert "'x' has 8 rows, 4 expected" in found["B05"], found["B05"]
        assert "6 rows does not divide over the 4 row shards" in found["B07"], found["B07"]
        assert "state['w'] in process 1 is not what it is in process 0" in found["state"], found["state"]
        assert found["ends"].startswith("SourceError: the training data ended in the processes [0] after 3 of 6 steps")
        assert "the state after them was saved" in found["ends"]
        assert found["ends_saved"] == [3]
        assert found["shards"]
        assert found["uneven"] == {"own/x": mean, "val/x": mean}
        assert "'own' ended after 2 batches in the processes [1]" in found["unmasked"], found["unmasked"]
        assert "would be [[4]] in process 0 and [[8]] in process 1" in found["ragged"], found["ragged"]
        assert "a batch of the validation set 'own' has 8 rows in this process, at most 4" in found["whole pass"]
        assert found["readers"]
        assert found["closed"]
    with Checkpoints(tmp_path / "run") as checkpoints:
        trainer = Trainer(jitted_step, first_state(), checkpoints=checkpoints)
        with pytest.raises(PositionMismatchError, match=r"saved by 2 processes.*cannot continue on 1"):
            trainer.fit(Dataset(train=Counting, batch=BATCH), steps=6)
