"""The demo's run: train, stop, resume on two partitions, and compare with a run that never stopped.

Training sees global batches only; `GlobalBatches` reads them as any number of partitions, as that many processes would,
and puts their rows together again. So a stop and a resume on other partitions change nothing for the model.
"""

import itertools
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import attrs
import numpy as np
import numpy.typing as npt

from dew.cli.demo_model import Learner, TrainState, Weights
from dew.cli.demo_screen import OnStep
from dew.data.dataset import Batch, DataPartition, Dataset
from dew.data.errors import PositionError
from dew.data.fields import shift
from dew.data.stream import RecordStream

Ids = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]

_CLEAR_FALL: Final = 0.5  # nats; four steps from the start fall further


@attrs.frozen(eq=False)
class Taken:
    """What one step took: `ids` (B,) int64 of its records in row order, and `text` (B, S+1) int32."""

    step: int
    ids: Ids
    text: Tokens


class GlobalBatches:
    """The steps of a run, read as `partitions` shares of every global batch.

    Args:
        dataset: what to read; its training streams are opened here and closed by `close`.
        partitions: number of shares; share p holds rows p, p + partitions, ... of each step.
        state: a saved position to continue from, or None for the start.
    """

    def __init__(self, dataset: Dataset, partitions: int = 1, state: dict[str, Any] | None = None) -> None:
        self.streams: list[RecordStream] = []
        for index in range(partitions):
            stream = dataset.train(DataPartition(index, partitions))
            assert isinstance(stream, RecordStream)
            self.streams.append(stream)
            if state is not None:
                stream.set_state(state)

    @property
    def step(self) -> int:
        """Number of the next step."""
        return self.streams[0].position.step

    def __iter__(self) -> Iterator[Taken]:
        return self

    def __next__(self) -> Taken:
        step = self.step
        ids = self._joined([stream.ids(step)[at :: len(self.streams)] for at, stream in enumerate(self.streams)])
        return Taken(step, ids, self._joined([next(stream)["text"] for stream in self.streams]))

    def _joined(self, shares: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """The rows of all shares in global order."""
        rows = np.empty((sum(map(len, shares)), *shares[0].shape[1:]), shares[0].dtype)
        for at, share in enumerate(shares):
            rows[at :: len(shares)] = share
        return rows

    def get_state(self) -> dict[str, Any]:
        """The one position of all shares.

        Raises:
            PositionError: two shares stand at different places.
        """
        states = [stream.get_state() for stream in self.streams]
        if any(state != states[0] for state in states):
            raise PositionError(f"the shares of one run stand at different places: {[s['records'] for s in states]}")
        return states[0]

    def close(self) -> None:
        """Closes the streams."""
        for stream in self.streams:
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


@attrs.define
class Outcome:
    """What became of a run, filled in as it goes.

    Args:
        stopped_at: the step before which it stopped.
        validation_before, validation_after: mean loss in nats over the validation tokens.
        position: the one integer that was saved at the stop.
        losses: of every step, in order.
        taken: what each step took, in order.
        waited, worked: seconds spent waiting for a batch, and computing.
    """

    stopped_at: int
    validation_before: float
    validation_after: float = math.nan
    position: int = 0
    losses: list[float] = attrs.field(factory=list[float])
    taken: list[Taken] = attrs.field(factory=list[Taken])
    waited: float = 0.0
    worked: float = 0.0

    @property
    def resumed(self) -> list[Taken]:
        """What each step after the stop took."""
        return self.taken[self.stopped_at :]

    @property
    def wait_share(self) -> float:
        """Share of the time that training waited for a batch, 0 to 1."""
        return self.waited / max(self.waited + self.worked, 1e-9)

    @property
    def fell(self) -> bool:
        """Whether the loss on text that was not trained on clearly fell."""
        return self.validation_after < self.validation_before - _CLEAR_FALL


def train(
    learner: Learner, state: TrainState, batches: GlobalBatches, steps: int, outcome: Outcome, on_step: OnStep
) -> TrainState:
    """Takes `steps` steps, adding to `outcome`; returns the state after them."""
    for _ in range(steps):
        asked = time.perf_counter()
        taken = next(batches)
        arrived = time.perf_counter()
        state, loss = learner.step(state, shift({"text": taken.text}))
        outcome.waited += arrived - asked
        outcome.worked += time.perf_counter() - arrived
        outcome.losses.append(loss)
        outcome.taken.append(taken)
        on_step(loss, outcome.wait_share)
    return state


def validation_loss(learner: Learner, state: TrainState, dataset: Dataset) -> float:
    """Mean loss in nats over every validation token once; rows that only fill up the last batch are left out."""
    assert dataset.val is not None
    total, mass = 0.0, 0
    for batch in dataset.val(DataPartition()):
        loss, targets = learner.totals(state, _real_rows(shift(batch)))
        total, mass = total + loss, mass + targets
    return total / mass


def _real_rows(batch: Batch) -> Batch:
    return {**batch, "target_mask": batch["target_mask"] & batch["valid"][:, None]}


def compile_both(learner: Learner, batch: int) -> None:
    """Compiles the step and the loss on empty batches, so that the run's own times hold no compiler."""
    empty = shift({"text": np.zeros((batch, learner.shape.length + 1), np.int32)})
    state, _ = learner.step(learner.start(), empty)
    learner.totals(state, empty)


_PARTS: Final = ("weights", "first", "second")


def save(path: Path, model: TrainState, position: dict[str, Any]) -> None:
    """Writes `position.json`, the data's whole state, and `model.npz` beside it."""
    (path / "position.json").write_text(json.dumps(position, indent=1) + "\n")
    arrays: dict[str, Any] = {"steps": np.asarray(model.steps)}
    for part in _PARTS:
        arrays |= {f"{part}/{name}": np.asarray(value) for name, value in getattr(model, part).items()}
    with (path / "model.npz").open("wb") as file:
        np.savez(file, **arrays)


def saved(path: Path) -> tuple[TrainState, dict[str, Any]]:
    """What `save` wrote."""
    parts: dict[str, Weights] = {part: {} for part in _PARTS}
    with np.load(path / "model.npz", allow_pickle=False) as arrays:
        steps = int(arrays["steps"])
        for key in arrays.files:
            part, _, name = key.partition("/")
            if name:
                parts[part][name] = arrays[key]
    return TrainState(**parts, steps=steps), json.loads((path / "position.json").read_text())


@attrs.frozen(eq=False)
class Compared:
    """A step after the resume beside the same step of a run that never stopped.

    Args:
        resumed: what the resumed run took.
        whole: what the run that never stopped took.
        different: rows whose record or tokens differ, or whose tokens are not what the source holds for the record.
    """

    resumed: Taken
    whole: Taken
    different: tuple[int, ...]


def compare(dataset: Dataset, resumed: list[Taken], first: int) -> list[Compared]:
    """Reads a fresh stream from step 0 on, and holds what the steps from `first` on took against it and the source."""
    with GlobalBatches(dataset) as batches:
        source = batches.streams[0].source
        whole = list(itertools.islice(batches, first + len(resumed)))[first:]
    found: list[Compared] = []
    for taken, other in zip(resumed, whole, strict=True):
        stored = np.stack([source[int(record)]["text"] for record in taken.ids])
        found.append(Compared(taken, other, _different(taken, other, stored)))
    return found


def _different(one: Taken, other: Taken, stored: Tokens) -> tuple[int, ...]:
    if one.step != other.step or one.text.shape != other.text.shape or one.text.shape != stored.shape:
        return tuple(range(len(one.ids)))
    same = (one.ids == other.ids) & (one.text == other.text).all(axis=1) & (one.text == stored).all(axis=1)
    return tuple(int(row) for row in np.flatnonzero(~same))
