"""A training loop that keeps Dew's promises: every step of the run takes its own records, however often it was stopped.

`Trainer.fit` opens this process's share, goes on from the latest checkpoint, and hands over to the loop.
"""

# JAX leaves parts of its own signatures untyped.
# pyright: reportUnknownMemberType=false

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Generic, TypeAlias, TypeVar

import jax
from jax.sharding import Mesh

from dew.data import checks
from dew.data.dataset import Batch, Dataset
from dew.data.errors import OptionsError, OptionsTypeError
from dew.data.position import RecordPosition
from dew.data.source import describe
from dew.data.stream import RecordStream
from dew.training.agreement import told
from dew.training.checkpoints import Checkpoints
from dew.training.loop import Loop, Plan, Report
from dew.training.placement import Placement, shard_batch
from dew.training.prefetch import DevicePrefetch
from dew.training.progress import Bar
from dew.training.shares import build_mesh, row_axes, row_layout
from dew.training.state import on_mesh
from dew.training.validation import Evaluates, Validation, ValidationSet, named_sets
from dew.training.watch import Watch

State = TypeVar("State")

Step: TypeAlias = Callable[[State, Any], tuple[State, Mapping[str, Any]]]
"""`(state, batch) -> (state, metrics)`: one step, usually jitted; metrics are scalars by name."""

Place: TypeAlias = Placement | Callable[[Batch], Any]


class Trainer(Generic[State]):
    """Trains `state` by `step`; every process of the pool makes one in the same way and calls `fit`.

    Args:
        step: `(state, batch) -> (state, metrics)`, usually jitted; the batch holds global arrays. An integer metric
            named `mass`, as `accumulate(..., with_mass=True)` returns it, is checked: 0 targets are an error.
        state: a tree of arrays, numbers and keys. Arrays that do not lie on all devices of the mesh are replicated over
            it, and must be the same in every process.
        mesh: by default all devices along the axis `data`.
        evaluate: `(state, batch) -> {metric: (total, mass)}`, both summed over the rows that `valid` marks. It is
            applied to the dataset's validation split as `val/metric`, or to each set of a mixture by its label. For
            sets of your own a mapping: name -> (validation data, function), the data a `Dataset` or a callable as
            `Dataset.val` is; or name -> function, for a set of the dataset.
        checkpoints: where the run is saved, and continued from. The trainer does not close it.
        place: how a batch gets onto the devices: a `Placement` for `shard_batch`, or a function of the host batch.
            A function runs as in a thread of its own. By default `shard_batch(mesh, batch, global_batch=...)`.
        batch_axes: mesh axes of the rows; by default `data` and `fsdp`, as far as the mesh has them.

    Attributes:
        state: after the last step of a `fit` that returned, or that was stopped.
        taken: steps taken, counted over the whole run.
        mesh: that of the run.
        metrics: the last of each: those of `step`, of validation, `steps_per_second`, and `wait_share`, the share of
            the time that training waited for data, 0 to 1.

    Raises:
        OptionsError, OptionsTypeError: an argument cannot be used.
    """

    def __init__(
        self,
        step: Step[State],
        state: State,
        *,
        mesh: Mesh | None = None,
        evaluate: Evaluates | None = None,
        checkpoints: Checkpoints | None = None,
        place: Place | None = None,
        batch_axes: str | Sequence[str] | None = None,
    ) -> None:
        if not callable(step):
            raise OptionsTypeError(f"step must be a function (state, batch) -> (state, metrics), got {step!r}")
        if place is not None and not isinstance(place, Placement) and not callable(place):
            raise OptionsTypeError(f"place must be a Placement or a function of a batch, got {place!r}")
        if checkpoints is not None and not isinstance(checkpoints, Checkpoints):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsTypeError(f"checkpoints must be a Checkpoints, got {checkpoints!r}; Checkpoints(directory)")
        self.state: State = state
        self.taken = 0
        self.metrics: dict[str, float] = {}
        self._step = step
        self.mesh = build_mesh() if mesh is None else mesh
        self._axes = row_axes(self.mesh, batch_axes)
        self._layout = row_layout(self.mesh, self._axes)
        self._partition = self._layout.partition(jax.process_index())
        self._evaluate = evaluate
        self._checkpoints = checkpoints
        self._place = Placement() if place is None else place
        self._position: Any = None  # of the data, behind the last step that this trainer took

    def fit(
        self,
        dataset: Dataset,
        *,
        steps: int | None = None,
        epochs: int | None = None,
        checkpoint_every: int | None = None,
        validate_every: int | None = None,
        accept: Collection[str] = frozenset(),
        restart_data: bool = False,
        report: Report | None = None,
        grace: float = 30.0,
    ) -> State:
        """Takes steps until the run has taken `steps`, going on from the latest checkpoint if there is one.

        With checkpoints the last step is always saved, and the last whole one when SIGTERM comes: then all processes
        stop at the same step and leave with `Preempted`, a `SystemExit` of code 75. An error in one process ends all.

        Args:
            dataset: what to train on; its batch is the global one.
            steps: the target, counted over the whole run, whatever was taken before.
            epochs: the same, in epochs; only where the number of records is known.
            checkpoint_every: steps between two checkpoints; needs a training stream with a position.
            validate_every: steps between two validations; one follows the last step too.
            accept: parts of the data's position that may differ, by name; see `Checkpoints.restore`.
            restart_data: begins the data at its start when going on from a checkpoint.
            report: called after every step, and after every validation, with the steps taken and the metrics.
            grace: seconds within which a stopped run must be saved; then the process ends with code 1.

        Returns:
            The state after the last step.

        Raises:
            OptionsError: not exactly one of `steps` and `epochs`; checkpoints of a stream without a position; a target
                that the run has passed.
            PartitionError: the batch does not divide over the devices or processes.
            SourceError: the data ended before the target; what was taken is saved.
            PoolError: another process failed; names it, its host and its error.
            Preempted: SIGTERM.
        """
        plan = Plan(
            target=_target(dataset, steps, epochs),
            checkpoint_every=_every("checkpoint_every", checkpoint_every, "checkpoints", self._checkpoints),
            validate_every=_every("validate_every", validate_every, "evaluate", self._evaluate),
            grace=grace,
            report=report,
        )
        self._check_rows(dataset)
        sets = [] if plan.validate_every is None else self._sets(dataset)
        with Watch() as watch, ExitStack() as opened:
            try:
                loop = self._opened(dataset, plan, sets, watch, opened, accept, restart_data)
                try:
                    loop.run()
                finally:
                    self.state, self.taken, self._position = loop.state, loop.taken, loop.position
                    self.metrics |= loop.metrics
            except BaseException as error:
                instead = watch.failed(error)
                if instead is not None:
                    raise instead from error
                raise
        return self.state

    def _check_rows(self, dataset: Dataset) -> None:
        """Every global batch that occurs divides over the processes, and over the devices if they get rows by it."""
        ramp = dataset.ramp
        for batch in (dataset.batch,) if ramp is None else ramp.schedule(dataset.batch).batches():
            self._partition.rows(batch)
            if isinstance(self._place, Placement):
                self._layout.rows_per_shard(batch)

    def _sets(self, dataset: Dataset) -> list[ValidationSet]:
        assert self._evaluate is not None
        sets = named_sets(self._evaluate, dataset)
        for each in sets:
            if each.batch is not None:
                self._partition.rows(each.batch)
        return sets

    def _opened(
        self,
        dataset: Dataset,
        plan: Plan,
        sets: list[ValidationSet],
        watch: Watch,
        opened: ExitStack,
        accept: Collection[str],
        restart_data: bool,
    ) -> Loop:
        """The loop, with everything that it reads and writes opened, standing where the run is to go on."""
        stream: Any = dataset.train(self._partition)
        placing = _Placing(self._placed, dataset)
        batches = opened.enter_context(DevicePrefetch(stream, placing))
        if plan.checkpoint_every is not None and not hasattr(batches, "get_state"):
            raise _no_position(stream, plan.checkpoint_every)
        self.state = on_mesh(self.mesh, self.state)
        saved = self._resume(batches, accept, restart_data)
        if self.taken > plan.target:
            raise OptionsError(
                f"this run has taken {self.taken} steps already, past the target of {plan.target}: steps= counts the "
                "whole run; give a larger target, or other checkpoints"
            )
        placing.begin(stream)
        validation = Validation(sets, self._partition, self._placed, watch)
        opened.callback(validation.close)
        if sets and self.taken < plan.target:
            validation.warm()
        return Loop(
            plan=plan,
            step=self._step,
            state=self.state,
            taken=self.taken,
            batches=batches,
            even=isinstance(stream, RecordStream),
            partition=self._partition,
            position=batches.get_state() if hasattr(batches, "get_state") else None,
            checkpoints=self._checkpoints,
            validation=validation if sets else None,
            watch=watch,
            bar=opened.enter_context(Bar(plan.target, self.taken)),
            saved=saved,
        )

    def _resume(self, batches: DevicePrefetch, accept: Collection[str], restart_data: bool) -> int | None:
        """Goes on from the latest checkpoint, or from where this trainer's last `fit` ended; the step that is saved."""
        latest = None
        if self._checkpoints is not None:
            latest = told("looking for a checkpoint", self._checkpoints.latest)
        if latest is not None and self._checkpoints is not None and (latest > self.taken or not self.taken):
            self.taken, self.state = self._checkpoints.restore(
                self.state,
                batches,
                step=latest,
                accept=accept,
                restart_data=restart_data,
                partition=self._partition,
            )
        elif self.taken and not restart_data:
            if self._position is None:
                raise OptionsError(
                    f"this trainer has taken {self.taken} steps of a stream without a position, and cannot go on with "
                    "its data: take all steps in one fit, or begin the data at its start with restart_data=True"
                )
            batches.set_state(self._position)
        return latest

    def _placed(self, batch: Batch, global_batch: int | None) -> Any:
        if not isinstance(self._place, Placement):
            return self._place(batch)
        return shard_batch(self.mesh, batch, batch_axes=self._axes, placement=self._place, global_batch=global_batch)


class _Placing:
    """Places training batches, each with the global batch of its own step."""

    def __init__(self, place: Callable[[Batch, int | None], Any], dataset: Dataset) -> None:
        self._place = place
        self._dataset = dataset
        self._position: RecordPosition | None = None
        self._step = 0

    def begin(self, stream: Any) -> None:
        """The stream stands where the run is to go on."""
        if isinstance(stream, RecordStream):
            self._position = stream.position
            self._step = self._position.step

    def __call__(self, batch: Batch) -> Any:
        size = self._dataset.batch if self._dataset.ramp is None else None
        if self._position is not None:
            start, stop = self._position.span(self._step)
            size = stop - start
        self._step += 1
        return self._place(batch, size)


def _target(dataset: Dataset, steps: int | None, epochs: int | None) -> int:
    if (steps is None) == (epochs is None):
        raise OptionsError(f"give exactly one of steps and epochs, got steps={steps} and epochs={epochs}")
    if steps is not None:
        return checks.check_count("steps", steps)
    assert epochs is not None
    return dataset.steps_for(checks.check_count("epochs", epochs))


def _every(option: str, value: int | None, needs: str, given: object) -> int | None:
    if value is None:
        return None
    if given is None:
        raise OptionsError(f"{option}={value} was asked for, but the trainer was made without {needs}=")
    return checks.check_count(option, value)


def _no_position(stream: Any, every: int) -> OptionsError:
    reason = getattr(stream, "no_position_reason", None) or f"{describe(stream)} has no get_state()"
    return OptionsError(
        f"checkpoint_every={every} was asked for, but this training stream has no position, so that no later run could "
        f"continue its data: {reason}; use a stream with get_state() and set_state(), or checkpoint_every=None, with "
        "which only the state is saved, at the end"
    )
