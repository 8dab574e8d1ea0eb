"""`Checkpoints`: the model and the position of its data are saved and restored together, or refused by name."""

import json
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dew.data import DataPartition, Loading, from_records
from dew.data.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    OptionsError,
    OptionsTypeError,
    PositionError,
    PositionMismatchError,
)
from dew.data.position import rebatch
from dew.data.stream import RecordStream
from dew.training.checkpoints import Checkpoints
from dew.training.prefetch import DevicePrefetch

ROWS, BATCH = 48, 8


def stream(partition: DataPartition = DataPartition(), *, batch: int = BATCH, **options: Any) -> RecordStream:  # noqa: B008
    columns = {"x": options.pop("x", np.arange(ROWS, dtype=np.int32))}
    made = from_records(columns, batch=batch, loading=Loading(workers=0), **options).train(partition)
    assert isinstance(made, RecordStream)
    return made


def rows(batch: Any) -> list[int]:
    return np.asarray(batch["x"]).tolist()


def expected(first: int, stop: int) -> list[list[int]]:
    with stream() as alone:
        return [rows(next(alone)) for _ in range(stop)][first:]


def model(step: int) -> dict[str, Any]:
    return {
        "weights": {"w": jnp.full((8, 4), step, jnp.float32), "b": jnp.full((3,), step, jnp.bfloat16)},
        "host": np.full((2,), step),
        "step": step,
        "key": jax.random.key(step),
    }


def same(left: Any, right: Any) -> bool:
    def raw(leaf: Any) -> Any:
        return jax.random.key_data(leaf) if jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key) else leaf

    equal = jax.tree.map(lambda a, b: np.array_equal(raw(a), raw(b)), left, right)
    return all(jax.tree.leaves(equal))


def position_file(folder: Path, step: int) -> Path:
    return folder / str(step) / "position" / "position.json"


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


def test_a_run_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "run") as checkpoints, DevicePrefetch(stream(), jax.device_put) as data:
        assert checkpoints.latest() is None
        assert not (tmp_path / "run").exists()
        for step in range(5):
            checkpoints.save(step, model(step), data)
            next(data)
    for step in (2, 3, 4):
        with Checkpoints(tmp_path / "run") as checkpoints, DevicePrefetch(stream(), jax.device_put) as data:
            assert checkpoints.steps() == [2, 3, 4]
            restored, state = checkpoints.restore(model(0), data, step=step)
            assert restored == step
            assert same(state, model(step))
            assert [rows(next(data)) for _ in range(3)] == expected(step, step + 3)


def test_the_latest_is_restored_and_an_abstract_template_is_enough(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints, stream() as data:
        for step in range(2):
            checkpoints.save(step, {"w": jnp.full((4,), step)}, data)
            next(data)
        checkpoints.wait()
        template = {
            "w": jax.ShapeDtypeStruct((4,), jnp.int32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
        }
        step, state = checkpoints.restore(template, stream())
        assert (step, state["w"].tolist()) == (1, [1] * 4)


def test_each_checkpoint_has_the_position_and_state_of_its_own_step(tmp_path: Path) -> None:
    """The run goes on at once after each save: it reads, changes host arrays and donates the device's."""
    train = jax.jit(lambda weights: weights + 1, donate_argnums=0)
    state = {"w": jnp.zeros((256, 1024)), "host": np.zeros(100_000)}
    with Checkpoints(tmp_path, keep=None) as checkpoints, stream() as data:
        for step in range(12):
            checkpoints.save(step, state, data)
            state["w"] = train(state["w"])
            state["host"] += 1
            next(data)
        assert len(checkpoints.steps()) >= 11
    for step in range(12):
        with Checkpoints(tmp_path) as checkpoints, stream() as data:
            assert checkpoints.position(step=step)["records"] == step * BATCH
            _, restored = checkpoints.restore(state, data, step=step)
            assert (np.unique(restored["w"]), np.unique(restored["host"])) == (step, step)
            assert data.position.step == step


@pytest.mark.parametrize(("keep", "kept"), [(1, [5]), (3, [3, 4, 5]), (None, [0, 1, 2, 3, 4, 5])])
def test_keeps_the_newest(tmp_path: Path, keep: int | None, kept: list[int]) -> None:
    with Checkpoints(tmp_path, keep=keep) as checkpoints, stream() as data:
        for step in range(6):
            checkpoints.save(step, {"w": step}, data)
            next(data)
        checkpoints.wait()
        assert checkpoints.steps() == kept


def test_a_position_may_be_given_as_it_was_taken(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints, stream() as data:
        next(data)
        taken, also = data.get_state(), data.position
        next(data)
        checkpoints.save(1, {"w": 1}, taken)
        checkpoints.save(1, {"w": 1}, also, wait=True)
        assert checkpoints.position() == taken
        with pytest.raises(CheckpointError, match="step 1 was saved already, with another data position"):
            checkpoints.save(1, {"w": 1}, data)


def test_another_batch_goes_on_by_a_segment(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints, stream() as data, stream(batch=16) as wider:
        next(data)
        checkpoints.save(1, {"w": 1}, data, wait=True)
        with pytest.raises(PositionMismatchError, match=r"global batch 8.*this stream has 16"):
            checkpoints.restore({"w": 0}, wider)
        wider.set_state(rebatch(checkpoints.position(), 16))
        assert checkpoints.restore({"w": 0}, None) == (1, {"w": 1})
        assert rows(next(wider)) == [row for batch in expected(1, 3) for row in batch]


def test_other_data_is_refused_unless_accepted_by_name(tmp_path: Path) -> None:
    other = np.arange(ROWS, dtype=np.int32) + 1
    with Checkpoints(tmp_path) as checkpoints, stream() as data, stream(x=other) as changed:
        next(data)
        checkpoints.save(1, {"w": 1}, data, wait=True)
        with pytest.raises(PositionMismatchError, match="another fingerprint") as caught:
            checkpoints.restore({"w": 0}, changed)
        assert caught.value.part == "fingerprint"
        assert changed.position.step == 0
        checkpoints.restore({"w": 0}, changed, accept={"fingerprint"})
        assert changed.position.step == 1
        assert changed.position.accepted[0]["part"] == "fingerprint"
        with pytest.raises(OptionsError, match="cannot be accepted"):
            checkpoints.restore({"w": 0}, changed, accept={"everything"})


def test_an_own_state_is_wrapped_with_its_share(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(7, {"w": 7}, Shard(30), wait=True)
        (row,) = json.loads(position_file(tmp_path, 7).read_text())["positions"]
        assert row == {
            "kind": "shard",
            "processes": 1,
            "process": 0,
            "index": 0,
            "count": 1,
            "state": {"offset": 30},
        }
        assert checkpoints.position() == {"offset": 30}
        with DevicePrefetch(Shard()) as data:
            checkpoints.restore({"w": 0}, data)
            assert next(data) == 31
        with pytest.raises(OptionsError, match=r"accept=\['seed'\] names parts of a record position"):
            checkpoints.restore({"w": 0}, Shard(), accept={"seed"})
        with pytest.raises(PositionMismatchError, match="saved by share 0 of 1 and cannot continue on 4 shares"):
            checkpoints.restore({"w": 0}, Shard(), partition=DataPartition(0, 4))


@pytest.mark.parametrize(
    ("state", "named"),
    [
        (b"\x00", "bytes"),
        ({"at": np.int64(3)}, "int64"),
        (np.zeros(2), "ndarray"),
        ((1, 2), r"\(1, 2\), which would come back as \[1, 2\]"),
        ({"loss": float("nan")}, "Out of range float"),
        ({"random": random.Random(1)}, "Random"),
        ({1: 2}, r"would come back as {'1': 2}"),
        ({"kind": "records"}, "lacks"),
    ],
)
def test_a_state_that_is_not_json_is_refused(tmp_path: Path, state: Any, named: str) -> None:
    source = Shard()
    source.get_state = lambda: state
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(PositionError, match=named):
            checkpoints.save(1, {"w": 1}, source)
        assert checkpoints.steps() == []
        checkpoints.save(1, {"w": 1}, stream(), wait=True)
        assert checkpoints.steps() == [1]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A directory with the steps 1 and 2."""
    with Checkpoints(tmp_path) as checkpoints, stream() as data:
        for step in (1, 2):
            next(data)
            checkpoints.save(step, {"w": step}, data)
    return tmp_path


def flipped(text: str) -> str:
    assert '"records": 16' in text
    return text.replace('"records": 16', '"records": 24')


def disagreeing(text: str) -> str:
    """As another program might write it: two rows, each whole, a step apart."""
    from dew.training import positions

    (first,) = json.loads(text)["positions"]
    held = {"positions": [first, {**first, "records": 24}], "rows": [0, 1]}
    return json.dumps({"format": 1, **held, "digest": positions._digest(held)})


@pytest.mark.parametrize(
    ("damage", "error", "named"),
    [
        (lambda text: text[:-20], CheckpointError, "is damaged"),
        (lambda text: "", CheckpointError, "is damaged"),
        (lambda text: "[1, 2]", CheckpointError, "is damaged"),
        (lambda text: "{}", CheckpointError, "is damaged: 'format'"),
        (flipped, CheckpointError, "is damaged: its digest does not fit its content"),
        (lambda text: text.replace('"format": 1', '"format": 2'), CheckpointError, "has the format 2.* reads 1"),
        (disagreeing, PositionMismatchError, "records is 16 in process 0 and 24 in process 1"),
    ],
)
def test_a_damaged_position_is_refused(saved: Path, damage: Any, error: type[Exception], named: str) -> None:
    file = position_file(saved, 2)
    file.write_text(damage(file.read_text()))
    with Checkpoints(saved) as checkpoints, stream() as data:
        with pytest.raises(error, match=named):
            checkpoints.restore({"w": 0}, data)
        with pytest.raises(error, match=named):
            checkpoints.position()
        assert checkpoints.restore({"w": 0}, data, restart_data=True) == (2, {"w": 2})
        assert data.position.step == 0
        assert checkpoints.restore({"w": 0}, data, step=1) == (1, {"w": 1})
        assert data.position.step == 1


def test_a_state_of_an_own_iterator_is_not_for_a_record_stream(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints, stream() as data:
        checkpoints.save(3, {"w": 3}, Shard(30), wait=True)
        for source in (data, DevicePrefetch(stream())):
            words = (
                r"step 3 of .* was saved while the data came from an iterator of somebody's own, whose state was "
                r"{'offset': 30}; (RecordStream|DevicePrefetch)\(.* counts records, .* restart_data=True"
            )
            with pytest.raises(PositionMismatchError, match=words) as caught:
                checkpoints.restore({"w": 0}, source)
            assert (caught.value.part, caught.value.saved, caught.value.current) == ("kind", "shard", "records")
            assert checkpoints.restore({"w": 0}, source, restart_data=True) == (3, {"w": 3})
            source.close()


def test_a_record_position_is_not_for_an_own_iterator(saved: Path) -> None:
    with Checkpoints(saved) as checkpoints, pytest.raises(KeyError, match="offset") as caught:
        checkpoints.restore({"w": 0}, Shard())
    assert "step 2 of" in caught.value.__notes__[-1]
    assert "was saved by a record stream of Dew; Shard is to go on from it" in caught.value.__notes__[-1]


def test_an_empty_folder_is_no_checkpoint(saved: Path) -> None:
    (saved / "3").mkdir()
    with Checkpoints(saved) as checkpoints, stream() as data:
        assert (checkpoints.steps(), checkpoints.latest()) == ([1, 2], 2)
        assert checkpoints.restore({"w": 0}, data) == (2, {"w": 2})
        assert (saved / "3").exists(), "a reader deletes nothing"
        next(data)
        checkpoints.save(3, {"w": 3}, data, wait=True)
        assert checkpoints.restore({"w": 0}, data) == (3, {"w": 3})


def test_looking_while_the_run_takes_old_ones_away(tmp_path: Path) -> None:
    """Another process may look at any moment: it finds each step whole, or not at all."""
    done = threading.Event()
    found = list[list[int]]()

    def look() -> None:
        watching = Checkpoints(tmp_path)
        while not done.is_set():
            found.append(watching.steps())

    with ThreadPoolExecutor(1) as pool, Checkpoints(tmp_path, keep=1) as checkpoints:
        looking = pool.submit(look)
        for step in range(1, 11):
            checkpoints.save(step, {"w": step}, None, wait=True)
        done.set()
        looking.result()
    latest = [max(steps) for steps in found if steps]
    assert latest == sorted(latest)


def test_a_checkpoint_whose_model_is_gone_is_named(saved: Path) -> None:
    shutil.rmtree(saved / "2" / "state")
    with Checkpoints(saved) as checkpoints, stream() as data:
        words = rf"{saved}/2 is damaged: it has no folder 'state', .* step= one of \[1\], or move that folder away"
        with pytest.raises(CheckpointError, match=words):
            checkpoints.restore({"w": 0}, data)
        assert data.position.step == 0, "the stream was moved all the same"
        assert checkpoints.restore({"w": 0}, data, step=1) == (1, {"w": 1})


def test_a_checkpoint_without_a_position_is_refused(tmp_path: Path, saved: Path) -> None:
    position_file(saved, 2).unlink()
    with Checkpoints(saved) as checkpoints, stream() as data:
        checkpoints.save(3, {"w": 3}, None, wait=True)
        assert not position_file(saved, 3).parent.exists()
        for step in (2, 3):
            refused = rf"step {step} of .* has no data position; .*restart_data=True"
            with pytest.raises(CheckpointError, match=refused):
                checkpoints.restore({"w": 0}, data, step=step)
            assert checkpoints.restore({"w": 0}, data, step=step, restart_data=True) == (step, {"w": step})
            assert checkpoints.restore({"w": 0}, None, step=step) == (step, {"w": step})
        assert data.position.step == 0


def test_what_is_not_there_is_refused(tmp_path: Path, saved: Path) -> None:
    with Checkpoints(tmp_path / "nothing") as checkpoints:
        with pytest.raises(CheckpointNotFoundError, match=r"no checkpoint was found in .*nothing"):
            checkpoints.restore({"w": 0}, stream())
        with pytest.raises(FileNotFoundError, match="it holds the steps"):
            checkpoints.position()
    with Checkpoints(saved) as checkpoints:
        with pytest.raises(
            CheckpointNotFoundError, match=r"no checkpoint of step 7 in .*; it holds the steps \[1, 2\]"
        ):
            checkpoints.restore({"w": 0}, stream(), step=7)
        with pytest.raises(ValueError, match=r"(?s)match|structure|shape") as caught:
            checkpoints.restore({"other": jnp.zeros(3)}, stream())
        assert "while the state of step 2" in caught.value.__notes__[-1]


def test_what_cannot_be_saved_or_restored_is_refused(saved: Path) -> None:
    with Checkpoints(saved) as checkpoints:
        with pytest.raises(OptionsTypeError, match=r"list_iterator has no get_state\(\).*position=None"):
            checkpoints.save(3, {"w": 3}, iter([1, 2]))
        with pytest.raises(OptionsTypeError, match=r"list_iterator has no set_state\(\).*restart_data=True"):
            checkpoints.restore({"w": 0}, iter([1, 2]))
        for step in (1, 2):
            with pytest.raises(CheckpointError, match=rf"step {step} was to be saved, but .* holds the steps .*2\]"):
                checkpoints.save(step, {"w": step}, stream())
        with pytest.raises(OptionsTypeError, match=r"step must be an int, got 2\.5"):
            checkpoints.save(2.5, {"w": 0}, stream())  # pyright: ignore[reportArgumentType]
        with pytest.raises(CheckpointError, match="step 3 could not be written"):
            checkpoints.save(3, {"w": object()}, stream())
        checkpoints.save(4, {"w": 4}, stream())
    for use in (lambda: checkpoints.save(5, {"w": 5}, None), lambda: checkpoints.restore({"w": 0}, None)):
        with pytest.raises(CheckpointError, match="were closed; make new ones"):
            use()
    checkpoints.close()
    assert checkpoints.steps() == [1, 2, 4]
    with pytest.raises(OptionsError, match="keep must be at least 1, got 0"):
        Checkpoints(saved, keep=0)


def test_what_a_killed_run_was_writing_goes_with_the_next_save(saved: Path) -> None:
    half = saved / "9.orbax-checkpoint-tmp"
    (half / "state").mkdir(parents=True)
    with Checkpoints(saved) as checkpoints:
        assert checkpoints.latest() == 2
        checkpoints.restore({"w": 0}, stream())
        assert half.exists(), "a reader beside a running trainer must delete nothing"
        checkpoints.save(3, {"w": 3}, stream(), wait=True)
        assert not half.exists()


def fail_in_the_background(checkpoints: Checkpoints, folder: Path, step: int) -> int:
    """Saves from `step` on until something else took a checkpoint's name while it was written; returns that step."""
    for at in range(step, step + 20):
        (folder / "taken" / "by another").mkdir(parents=True, exist_ok=True)
        checkpoints.save(at, {"w": jnp.full((2048, 2048), at)}, {"offset": at})
        try:
            (folder / "taken").rename(folder / str(at))
        except OSError:
            checkpoints.wait()  # it was whole already
        else:
            return at
    raise AssertionError("every checkpoint was whole before its name could be taken")


def test_an_error_while_writing_is_raised_by_the_next_call(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    failed = 0
    for call in (lambda: checkpoints.save(99, {"w": 1}, None), checkpoints.wait, checkpoints.close):
        checkpoints.save(failed + 1, {"w": 1}, {"offset": 1}, wait=True)
        failed = fail_in_the_background(checkpoints, tmp_path, failed + 2)
        with pytest.raises(CheckpointError, match=rf"step {failed} could not be written .*before it are whole\. "):
            call()
        shutil.rmtree(tmp_path / str(failed))
    assert checkpoints.latest() == failed - 1
    assert len(checkpoints.steps()) <= 3
    checkpoints.close()


def test_a_relative_directory_is_meant_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Checkpoints("run") as checkpoints:
        checkpoints.save(1, {"w": 1}, None, wait=True)
    assert (tmp_path / "run" / "1").is_dir()
