"""`Checkpoints` in runs that are killed, and in pools, where all processes save and restore the same, or none does."""

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.data import DataPartition, Loading, from_records
from dew.data.errors import PositionMismatchError
from dew.data.stream import RecordStream
from dew.training.checkpoints import Checkpoints
from dew.training.prefetch import DevicePrefetch

ROWS, BATCH = 48, 8


def stream(partition: DataPartition = DataPartition(), **options: Any) -> RecordStream:  # noqa: B008
    columns = {"x": np.arange(ROWS, dtype=np.int32)}
    made = from_records(columns, batch=BATCH, loading=Loading(workers=0), **options).train(partition)
    assert isinstance(made, RecordStream)
    return made


def rows(batch: Any) -> list[int]:
    return np.asarray(batch["x"]).tolist()


def expected(first: int, stop: int) -> list[list[int]]:
    with stream() as alone:
        return [rows(next(alone)) for _ in range(stop)][first:]


class Shard:
    """Somebody's own iterator; its state counts inside its own shard."""

    def __init__(self, offset: Any = 0) -> None:
        self.offset = offset

    def __iter__(self) -> "Shard":
        return self

    def __next__(self) -> int:
        self.offset += 1
        return self.offset

    def get_state(self) -> Any:
        return {"offset": self.offset}

    def set_state(self, state: Any) -> None:
        self.offset = state["offset"]


TRAINER = """
import sys
import jax.numpy as jnp, numpy as np
from dew.data import DataPartition, Loading, from_records
from dew.data.errors import CheckpointNotFoundError
from dew.training.checkpoints import Checkpoints

dataset = from_records({"x": np.arange(48, dtype=np.int32)}, batch=8, loading=Loading(workers=0))
stream, checkpoints = dataset.train(DataPartition()), Checkpoints(sys.argv[1], keep=1)
state = {f"w{n}": jnp.zeros((64, 1024)) for n in range(8)}
try:
    step, state = checkpoints.restore(state, stream)
except CheckpointNotFoundError:
    step = 0
print(step, flush=True)
while step < 10_000:
    checkpoints.save(step + 1, {name: value + 1 for name, value in state.items()}, None if not next(stream) else stream)
    state = {name: value + 1 for name, value in state.items()}
    step += 1
    print(step, flush=True)
"""


def kill_and_check(folder: Path, kills: int, seed: int) -> None:
    """Kills a run that only saves, at random moments; the checkpoint before is whole and the next run goes on."""
    chance, last = random.Random(seed), 0
    for _ in range(kills):
        command = [sys.executable, "-c", TRAINER, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            assert int(run.stdout.readline() or -1) == last, "the run did not go on from the last whole checkpoint"
            for _ in range(2):
                assert run.stdout.readline(), run.stderr.read() if run.stderr else ""
            time.sleep(chance.uniform(0, 0.3))
            run.kill()
        with Checkpoints(folder) as checkpoints, stream() as data:
            template = {f"w{n}": jnp.zeros((64, 1024)) for n in range(8)}
            step, state = checkpoints.restore(template, data)
            assert step > last
            assert {float(value) for weights in state.values() for value in np.unique(weights)} == {float(step)}
            assert data.position.step == step
            last = step


def test_kills_leave_the_checkpoint_before_whole(tmp_path: Path) -> None:
    kill_and_check(tmp_path, kills=3, seed=1)


@pytest.mark.nightly
def test_many_kills_leave_the_checkpoint_before_whole(tmp_path: Path) -> None:
    kill_and_check(tmp_path, kills=20, seed=2)


UNCLOSED = """
import sys
import jax.numpy as jnp
from dew.training.checkpoints import Checkpoints

checkpoints = Checkpoints(sys.argv[1])
for step in (1, 2):
    checkpoints.save(step, {"w": jnp.full((512, 1024), step)}, {"offset": step})
"""


def test_a_script_that_forgets_to_close_ends_and_loses_no_whole_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNCLOSED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    with Checkpoints(tmp_path) as checkpoints:
        step, state = checkpoints.restore({"w": jnp.zeros((512, 1024), jnp.int32)}, own := Shard())
        assert step in (1, 2), done.stderr
        assert (np.unique(state["w"]), own.offset) == (step, step)


def sharded(value: float) -> dict[str, Any]:
    """A state spread over all devices of the pool."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    return {"w": jax.jit(lambda: jnp.full((8, 4), value), out_shardings=rows)()}


def raised(member: Any, call: Any) -> str:
    """What `call` raised in this member; every member must raise, or the others would wait."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def go_on_in_a_pool(member: Any) -> Any:
    """Continues the run that one process saved, and tries everything that one member alone might do wrong."""
    folder, share = member.folder / "run", DataPartition(member.index, member.processes)
    said: dict[str, Any] = {}
    with Checkpoints(folder, keep=None) as checkpoints, stream(share) as data:
        # Process 0 chooses, whatever this one was asked for.
        step, state = checkpoints.restore(sharded(0), data, step=None if member.index == 0 else 1)
        said["restored"] = [step, float(state["w"].addressable_data(0).sum())]
        said["rows"] = []
        for step in (3, 4):
            said["rows"].append(rows(next(data)))
            checkpoints.save(step, sharded(step), data, wait=True)
        ahead = stream(share)
        for _ in range(4 + member.index):
            next(ahead)
        said["apart"] = raised(member, lambda: checkpoints.save(5, sharded(5), ahead))
        said["no position"] = raised(member, lambda: checkpoints.save(5, sharded(5), data if member.index else None))
        said["steps apart"] = raised(member, lambda: checkpoints.save(5 + member.index, sharded(5), data))
        odd = stream(share, seed=member.index)
        said["other data"] = raised(member, lambda: checkpoints.restore(sharded(0), odd))
        said["bad state"] = raised(member, lambda: checkpoints.save(5, sharded(5), Shard(b"" if member.index else 0)))
        said["missing"] = raised(member, lambda: checkpoints.restore(sharded(0), data, step=77))
        said["steps"] = checkpoints.steps()
    with Checkpoints(member.folder / "shards") as checkpoints:
        checkpoints.save(1, sharded(1), Shard(100 * member.index), wait=True)
        own = Shard()
        checkpoints.restore(sharded(0), own)
        said["own"] = next(own)
    return said


def test_a_pool_goes_on_and_fails_together(run_pool: Any, tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "run", keep=None) as checkpoints, stream() as data:
        for step in (1, 2):
            next(data)
            checkpoints.save(step, sharded(step), data)

    zero, one = (ended.result for ended in run_pool(go_on_in_a_pool, 2, devices_per_process=2))

    assert zero["restored"] == one["restored"] == [2, 2.0 * 8]  # a device's two rows of four
    whole = expected(2, 4)
    for step in range(2):
        assert [zero["rows"][step], one["rows"][step]] == [whole[step][0::2], whole[step][1::2]]
    assert zero["apart"] == one["apart"]
    assert "records is 32 in process 0 and 40 in process 1" in zero["apart"]
    assert "the processes [0] save no data position" in zero["no position"]
    assert "different steps: [5, 6]" in zero["steps apart"]
    assert one["other data"].startswith("PositionMismatchError: the saved position has another seed")
    assert zero["other data"].startswith("PoolError: restoring step 4")
    assert "failed in process 1 on " in zero["other data"]
    assert one["bad state"].startswith("PositionError: the state of a shard must be a JSON value, got dict")
    assert "PositionError" in zero["bad state"]
    assert zero["missing"] == one["missing"]
    assert zero["missing"].startswith("CheckpointNotFoundError: there is no checkpoint of step 77")
    assert zero["steps"] == one["steps"] == [1, 2, 3, 4]
    assert (zero["own"], one["own"]) == (1, 101)

    with Checkpoints(tmp_path / "run") as checkpoints, stream() as data:
        step, state = checkpoints.restore(sharded(0), data)
        assert (step, np.unique(state["w"])) == (4, 4)
        assert rows(next(data)) == expected(4, 5)[0]
    with (
        Checkpoints(tmp_path / "shards") as checkpoints,
        pytest.raises(PositionMismatchError, match="saved by 2 processes, a state for each, and cannot continue on 1"),
    ):
        checkpoints.restore(sharded(0), Shard())


def take_two_steps(member: Any) -> Any:
    data = stream(DataPartition(member.index, member.processes))
    with Checkpoints(member.folder / "run", keep=None) as checkpoints, DevicePrefetch(data) as ahead:
        step, state = checkpoints.restore(sharded(0), ahead)
        taken = [rows(next(ahead)) for _ in range(2)]
        checkpoints.save(step + 2, jax.tree.map(lambda leaf: leaf + 2, state), ahead)
    return taken


@pytest.mark.nightly
def test_one_two_four_one(run_pool: Any, tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "run") as checkpoints, stream() as data:
        checkpoints.save(0, sharded(0), data)
    done = list[list[int]]()
    for count in (1, 2, 4, 1):
        shares = [ended.result for ended in run_pool(take_two_steps, count, devices_per_process=4 // count)]
        for step in range(2):
            taken = [0] * BATCH
            for index, share in enumerate(shares):
                taken[index::count] = share[step]
            done.append(taken)
    assert done == expected(0, 8)
    with Checkpoints(tmp_path / "run") as checkpoints:
        step, state = checkpoints.restore(sharded(0), None)
    assert (step, np.unique(state["w"])) == (8, 8)
