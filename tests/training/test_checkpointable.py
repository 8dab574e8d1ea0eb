"""Streams in the checkpoint classes of Grain and Orbax, as other trainers use them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.data import DataPartition, Loading, from_records
from dew.data.errors import PositionError
from dew.data.stream import RecordStream

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
