"""Streams in the checkpoint classes of Grain and Orbax, as other trainers use them."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.data import DataPartition, Loading, from_records
from dew.data.errors import PositionError, StreamClosedError
from dew.data.stream import RecordStream, train_stream, validation_pass

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


def test_grains_handler_saves_and_restores_a_stream(tmp_path: Path) -> None:
    import grain
    import orbax.checkpoint as ocp

    with stream() as data, stream() as other, ocp.CheckpointManager(tmp_path) as manager:
        for _ in range(3):
            next(data)
        manager.save(3, args=ocp.args.Composite(data=grain.checkpoint.CheckpointSave(data)))
        manager.wait_until_finished()
        manager.restore(3, args=ocp.args.Composite(data=grain.checkpoint.CheckpointRestore(other)))
        assert other.get_state() == data.get_state()
        assert rows(next(other)) == rows(next(data)) == expected(3, 4)[0]


GRAIN_LATE = """
import sys
import threading
import numpy as np
from dew.data import DataPartition, from_records
stream = from_records({"x": np.arange(8)}, batch=4).train(DataPartition())
assert "grain" not in sys.modules
import grain
assert isinstance(stream, grain.DatasetIterator)
assert type(stream).__name__ == stream.__class__.__name__ == "RecordStream"
"""


def test_grain_may_be_imported_after_the_stream_was_made() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", GRAIN_LATE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_orbax_saves_and_restores_a_stream_as_one_of_its_own(tmp_path: Path) -> None:
    from orbax.checkpoint.experimental import v1

    with stream() as data, stream() as other, stream(seed=5) as wrong:
        assert isinstance(data, v1.handlers.StatefulCheckpointable)
        for _ in range(3):
            next(data)
        saving = v1.save_checkpointables_async(tmp_path / "3", {"data": data, "model": {"w": np.arange(4)}})
        next(data)
        saving.result()
        v1.load_checkpointables(tmp_path / "3", {"data": other})
        assert rows(next(other)) == expected(3, 4)[0]
        file = tmp_path / "3" / "data" / "position.json"
        for damage, reader, named in (
            (lambda: None, wrong, "another seed"),
            (lambda: file.write_text("{"), other, "position.json is damaged"),
            (file.unlink, other, "has no position.json"),
        ):
            damage()
            with pytest.raises(KeyError) as caught:  # Orbax's own, whatever was wrong
                v1.load_checkpointables(tmp_path / "3", {"data": reader})
            assert isinstance(caught.value.__cause__, PositionError)
            assert named in str(caught.value.__cause__)


class Watched(list[Any]):
    """Records that tell when they are read."""

    def __init__(self) -> None:
        super().__init__({"x": np.int32(number)} for number in range(ROWS))
        self.read = threading.Event()

    def __getitem__(self, index: Any) -> Any:
        self.read.set()
        return super().__getitem__(index)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dew-")]


def test_reading_ahead_begins_when_asked(tmp_path: Path) -> None:
    """Grain's handler asks for it after a restore, so that data are there when the model is."""
    import grain
    import orbax.checkpoint as ocp

    source = Watched()
    with train_stream(source, batch=BATCH, loading=Loading(workers=0)) as data, stream() as plain:
        assert not source.read.is_set()
        with ocp.CheckpointManager(tmp_path) as manager:
            manager.save(3, args=ocp.args.Composite(data=grain.checkpoint.CheckpointSave(data)))
            manager.wait_until_finished()
            manager.restore(3, args=ocp.args.Composite(data=grain.checkpoint.CheckpointRestore(data)))
        assert source.read.wait(60)
        saved = data.get_state()
        assert saved["records"] == 0, "read ahead, not delivered"
        data.start_prefetch()
        assert threads().count("dew-read-ahead") == 1, "one call is enough"
        assert [rows(next(data)) for _ in range(5)] == [rows(next(plain)) for _ in range(5)]
        data.set_state(saved)
        data.start_prefetch()
        assert rows(next(data)) == expected(0, 1)[0]
    assert threads() == []
    with pytest.raises(StreamClosedError, match="this stream was closed"):
        data.start_prefetch()


def test_where_nothing_is_read_ahead_nothing_begins() -> None:
    source = Watched()
    with train_stream(source, batch=BATCH, loading=Loading(workers=0, threads=1, read_buffer=0)) as data:
        data.start_prefetch()
        assert not source.read.is_set()
        assert rows(next(data)) == expected(0, 1)[0]
    with validation_pass(source, batch=ROWS, loading=Loading(workers=0)) as once:
        assert len(list(once)) == 1
        once.start_prefetch()
        assert threads() == [], "there is nothing left to read"
        with pytest.raises(StopIteration):
            next(once)
