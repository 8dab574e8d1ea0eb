"""Checkpoints that hold the model's state and the data's position, or neither.

Orbax writes both as items of one step, whose folder gets its name only when everything is in it: a kill at any moment
leaves the checkpoints before it as they were. The position is taken when `save` is called, however late it is written.
Saving and restoring are done by all processes together, and end the same way in all of them.
"""

# Orbax is untyped, and JAX leaves parts of its own signatures untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
import os
import textwrap
import threading
import weakref
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import jax

from dew.data import checks
from dew.data.dataset import DataPartition
from dew.data.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    OptionsError,
    OptionsTypeError,
    PositionError,
    PositionMismatchError,
)
from dew.data.position import RecordPosition, ShardPosition, State
from dew.data.source import describe
from dew.training.agreement import exchange, told
from dew.training.positions import PositionTable, row_of

T = TypeVar("T")

_STATE: Final = "state"
_POSITION: Final = "position"
_FILE: Final = "position.json"


class Checkpoints:
    """The checkpoints of one run in one directory that all processes see; a context manager.

    Every process of the pool makes one and calls `save`, `restore`, `position` and `close` at the same points; `steps`
    and `latest` only look. A directory belongs to one run: two that write into it would delete each other's work. A
    script that ends without `close` still waits for the checkpoint that is being written.

    Args:
        directory: a local folder, or a URL that Orbax knows, such as `gs://bucket/run`. Made by the first `save`.
        keep: how many checkpoints stay, the newest; None keeps all.

    Raises:
        ImportError: Orbax is not installed.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int | None = 3) -> None:
        _ = _orbax()
        name = os.fspath(directory)
        self._directory = name if "://" in name else str(Path(name).absolute())
        self._keep = None if keep is None else checks.check_count("keep", keep)
        self._manager: Any = None
        self._saved: tuple[int, Any] | None = None  # the step saved last, and the position with it
        self._stale = False  # Orbax counts a checkpoint that it could not write, and not the one it should replace
        self._closed = False
        _wait_at_exit(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Checkpoints({self._directory!r}, keep={self._keep})"

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints that are there now, ascending; one that is being written is not among them."""
        return sorted(self._folders())

    def latest(self) -> int | None:
        """The last of `steps()`, None where there is none. In a pool, `restore` is what makes all agree on one."""
        return max(self._folders(), default=None)

    def save(
        self, step: int, state: Any, position: Any, *, partition: DataPartition | None = None, wait: bool = False
    ) -> None:
        """Saves the state before step `step`, and the position of its data, in the background.

        Returns when the state has been copied from the devices: it may be donated or changed then. The same step with
        the same position again is saved already. An error while writing is raised by the next `save`, `wait` or
        `close`.

        Args:
            step: how many steps were taken; greater than that of every checkpoint in the directory.
            state: a tree of arrays, numbers and keys.
            position: the stream (or prefetch) that the steps came from, or what its `get_state()` returned; None saves
                the state alone.
            partition: this process's share, for an iterator with a state of its own. By default that of the stream, or
                the process's number.
            wait: whether to return only when the checkpoint is whole.

        Raises:
            CheckpointError: a later step is there, or the checkpoint before this one could not be written.
            PositionError: a state that is not a JSON value, or processes that stand at different places.
            OptionsTypeError: `position` has no `get_state`.
            PoolError: another process failed.
        """
        self._check_open()
        said = exchange(f"saving step {step}", lambda: self._ready(step, position, partition))
        if len({each["step"] for each in said}) > 1:
            raise CheckpointError(f"the processes save different steps: {[each['step'] for each in said]}, by process")
        table = _table([each["row"] for each in said])
        if self._saved is None or self._saved[0] != step:
            self._write(step, state, table)
        elif self._saved[1] != table:
            raise CheckpointError(f"step {step} was saved already, with another data position")
        if wait:
            self.wait()

    def restore(
        self,
        template: T,
        stream: Any,
        *,
        step: int | None = None,
        accept: Collection[str] = frozenset(),
        restart_data: bool = False,
        partition: DataPartition | None = None,
    ) -> tuple[int, T]:
        """Sets `stream` to the position of a checkpoint, and returns its step and its state.

        Process 0 picks the checkpoint for all. The position is restored first, so that data which do not fit are
        refused before the model is read.

        Args:
            template: a tree like the one saved, of arrays or `jax.ShapeDtypeStruct`; the state gets their shardings.
            stream: the fresh stream (or prefetch) that goes on; None restores the state alone.
            step: which checkpoint; by default the latest.
            accept: parts of the position that may differ, each by name, such as `{"fingerprint"}`.
            restart_data: leaves the stream where it stands, a fresh one at its start, whatever position was saved.
            partition: as for `save`.

        Returns:
            `(step, state)`: how many steps were taken, and the state before the next one.

        Raises:
            CheckpointNotFoundError: no checkpoint, or none of that step; lists those that are there.
            CheckpointError: it has no position, or a damaged one.
            PositionMismatchError: other data, or a shard position from another number of processes; names both.
            PoolError: another process failed.
        """
        self._check_open()
        wanted = stream is not None and not restart_data
        chosen, text = self._chosen(step, with_position=wanted, with_state=True)
        doing = f"restoring step {chosen} of {self._directory}"
        if wanted:
            share = _partition(partition, stream)
            exchange(
                doing, lambda: _set_state(stream, self._own_state(chosen, text, share), accept, self._named(chosen))
            )
        read: list[T] = []
        exchange(doing, lambda: read.append(self._read(chosen, template)))
        return chosen, read[0]

    def position(self, *, step: int | None = None, partition: DataPartition | None = None) -> Any:
        """What `set_state` of this process's stream takes to go on from a checkpoint; for `skip` and `rebatch`.

        Raises:
            CheckpointNotFoundError, CheckpointError, PositionMismatchError: as `restore`.
        """
        self._check_open()
        chosen, text = self._chosen(step, with_position=True, with_state=False)
        return self._own_state(chosen, text, _partition(partition, None))

    def wait(self) -> None:
        """Until the checkpoint that is being written is whole.

        Raises:
            CheckpointError: it could not be written.
        """
        if self._manager is None:
            return
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Waits for the checkpoint that is being written, and ends; idempotent.

        Raises:
            CheckpointError: it could not be written.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.wait()
        finally:
            if self._manager is not None:
                self._manager.close()

    def _check_open(self) -> None:
        if self._closed:
            raise CheckpointError(f"these checkpoints of {self._directory} were closed; make new ones")

    def _folders(self) -> dict[int, Any]:
        """Step -> its folder, of whole checkpoints; an empty folder, which somebody else made, is none."""
        paths = _orbax().utils.checkpoint_steps_paths(self._directory)
        return {int(path.name): path for path in paths if path.name.isdigit() and not _is_empty(path)}

    def _ready(self, step: int, position: Any, partition: DataPartition | None) -> State:
        """What this process says before a step is saved."""
        checks.check_count("step", step, 0)
        self.wait()
        again = self._saved is not None and self._saved[0] == step
        if jax.process_index() == 0 and not again and (later := [there for there in self.steps() if there >= step]):
            raise CheckpointError(
                f"step {step} was to be saved, but {self._directory} holds the steps {later} already: two runs in one "
                "directory would delete each other's checkpoints; move those away, or use another directory"
            )
        if jax.process_index() == 0 and self._manager is None:
            _remove_empty(self._directory)
        state = _state_of(position)
        if state is None:
            return {"step": step, "row": None}
        share = _partition(partition, position)
        row = row_of(state, process=jax.process_index(), processes=jax.process_count(), partition=share)
        return {"step": step, "row": row}

    def _write(self, step: int, state: Any, table: State | None) -> None:
        ocp = _orbax()
        if self._manager is None:
            self._manager = ocp.CheckpointManager(
                self._directory,
                item_handlers={_STATE: ocp.StandardCheckpointHandler(), _POSITION: ocp.JsonCheckpointHandler(_FILE)},
                options=ocp.CheckpointManagerOptions(
                    max_to_keep=self._keep,
                    cleanup_tmp_directories=True,  # what a killed run was writing
                ),
            )
        elif self._stale:
            self._manager.reload()
        self._stale = False
        items = {_STATE: ocp.args.StandardSave(state)}
        if table is not None:
            items[_POSITION] = ocp.args.JsonSave(table)
        self._saved = (step, table)
        try:
            self._manager.save(step, args=ocp.args.Composite(**items), force=True)
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> CheckpointError:
        saved, self._saved = self._saved, None
        self._stale = True
        step = "a step" if saved is None else f"step {saved[0]}"
        why = textwrap.shorten(f"{type(error).__name__}: {error}", 400, placeholder=" ...")
        return CheckpointError(f"{step} could not be written to {self._directory}; those before it are whole. {why}")

    def _named(self, step: int) -> str:
        return f"step {step} of {self._directory}"

    def _chosen(self, step: int | None, *, with_position: bool, with_state: bool) -> tuple[int, str | None]:
        """The step that process 0 picks, and the text of its position."""

        def look() -> State:
            folders = self._folders()
            chosen = max(folders, default=None) if step is None else step
            if with_state and chosen in folders and not (folders[chosen] / _STATE).exists():
                others = sorted(set(folders) - {chosen})
                raise CheckpointError(
                    f"{folders[chosen]} is damaged: it has no folder {_STATE!r}, so the model is lost; restore another "
                    f"step, step= one of {others}, or move that folder away"
                )
            text = _read_text(folders[chosen] / _POSITION / _FILE) if with_position and chosen in folders else None
            return {"step": chosen, "steps": sorted(folders), "text": text}

        found = told(f"looking into {self._directory}", look)
        if found["step"] not in found["steps"]:
            asked = "no checkpoint was found" if step is None else f"there is no checkpoint of step {step}"
            raise CheckpointNotFoundError(f"{asked} in {self._directory}; it holds the steps {found['steps']}")
        return found["step"], found["text"]

    def _own_state(self, step: int, text: str | None, partition: DataPartition) -> Any:
        where = self._named(step)
        if text is None:
            raise CheckpointError(
                f"{where} has no data position; begin the data at its start with restart_data=True, or restore the "
                "state alone with stream=None"
            )
        table = PositionTable.from_text(text, where)
        return table.state_for(partition, process=jax.process_index(), processes=jax.process_count())

    def _read(self, step: int, template: T) -> T:
        ocp = _orbax()
        handler = ocp.CompositeCheckpointHandler(**{_STATE: ocp.StandardCheckpointHandler()})
        with ocp.Checkpointer(handler) as reader:
            try:
                args = ocp.args.Composite(**{_STATE: ocp.args.StandardRestore(template)})
                return reader.restore(self._folders()[step], args=args)[_STATE]
            except Exception as error:
                error.add_note(f"while the state of {self._named(step)} was restored")
                raise


def _orbax() -> Any:
    try:
        import orbax.checkpoint as ocp  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise ImportError(
            'checkpoints are written by Orbax, which is missing: pip install "dew-core[training]"'
        ) from error
    return ocp


def _partition(given: DataPartition | None, stream: Any) -> DataPartition:
    own = given if given is not None else getattr(stream, "partition", None)
    return own if isinstance(own, DataPartition) else DataPartition(jax.process_index(), jax.process_count())


def _table(rows: list[State | None]) -> State | None:
    present = [row for row in rows if row is not None]
    if present and len(present) < len(rows):
        without = [process for process, row in enumerate(rows) if row is None]
        raise CheckpointError(f"the processes {without} save no data position, the others do; all must save one")
    return PositionTable(tuple(present)).to_json() if present else None


def _state_of(position: Any) -> Any:
    if position is None or isinstance(position, Mapping):
        return position
    if isinstance(position, RecordPosition | ShardPosition):
        return position.to_json()
    if not hasattr(position, "get_state"):
        raise OptionsTypeError(
            f"{describe(position)} has no get_state(), so that no later run could continue its data; "
            "save a stream with a position, or position=None for the state alone"
        )
    return position.get_state()


def _set_state(stream: Any, state: Any, accept: Collection[str], where: str) -> None:
    if not hasattr(stream, "set_state"):
        raise OptionsTypeError(
            f"{describe(stream)} has no set_state(), so that it cannot continue from a position; begin the data at its "
            "start with restart_data=True, or restore the state alone with stream=None"
        )
    is_records = isinstance(state, Mapping) and cast("Mapping[str, Any]", state).get("kind") == "records"
    if accept and not is_records:
        raise OptionsError(
            f"accept={sorted(accept)} names parts of a record position; the one saved is of another kind"
        )
    try:
        if accept:
            stream.set_state(state, accept)
        else:
            stream.set_state(state)
    except PositionMismatchError:
        raise
    except PositionError as error:
        if is_records:
            raise
        raise _other_kind(stream, state, where) from error
    except Exception as error:
        if is_records:
            error.add_note(f"{where} was saved by a record stream of Dew; {describe(stream)} is to go on from it")
        raise


def _other_kind(stream: Any, state: Any, where: str) -> PositionMismatchError:
    shown = textwrap.shorten(repr(state), 100, placeholder=" ...")
    return PositionMismatchError(
        f"{where} was saved while the data came from an iterator of somebody's own, whose state was {shown}; "
        f"{describe(stream)} counts records, and cannot go on from that: read the iterator that was saved, or begin "
        "the data at its start with restart_data=True",
        part="kind",
        saved="shard",
        current="records",
    )


def _remove_empty(directory: str) -> None:
    """Folders of steps in which nothing is; Orbax would take them for checkpoints, and refuse to write there."""
    for path in _orbax().utils.checkpoint_steps_paths(directory):
        if path.name.isdigit() and _is_empty(path):
            with contextlib.suppress(FileNotFoundError):
                path.rmdir()


def _is_empty(path: Any) -> bool:
    try:
        return not any(path.iterdir())
    except FileNotFoundError:  # taken away meanwhile, by the run that keeps only the newest
        return True


def _read_text(path: Any) -> str | None:
    try:
        return path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return None


def _wait_at_exit(checkpoints: Checkpoints) -> None:
    """Has the interpreter wait for a checkpoint in flight before it shuts the thread pools that Orbax writes with.

    `atexit` runs after them: the write then fails, and Orbax's own threads wait for it for minutes. The hook is the one
    that `concurrent.futures` uses itself; it is private, so it may be absent.
    """
    alive = weakref.ref(checkpoints)

    def wait() -> None:
        left = alive()
        if left is not None and not left._closed:  # pyright: ignore[reportPrivateUsage]
            with contextlib.suppress(CheckpointError):
                left.wait()

    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with contextlib.suppress(RuntimeError):  # the interpreter is shutting down already
            register(wait)
