"""The demo's proof: the killed run beside the one that never stopped, step by step, and beside the source itself."""

import math
from collections.abc import Mapping
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from dew.cli.demo_member import digests
from dew.cli.demo_pool import Killed, Taken
from dew.data.stream import RecordStream

TOLERANCE: Final = 1e-3
"""Nats by which two losses of one step may differ: two processes round their sums in another order than one."""

_CLEAR_FALL: Final = 0.5  # nats; a few steps from the start fall further


@attrs.frozen(eq=False)
class Compared:
    """A step of the killed run beside the same step of the other.

    Args:
        killed, whole: what the two took.
        ids, whole_ids: (B,) int64, the records.
        different: rows whose record or tokens differ, or whose tokens are not what the source holds for the record.
    """

    killed: Taken
    whole: Taken
    ids: npt.NDArray[np.int64]
    whole_ids: npt.NDArray[np.int64]
    different: tuple[int, ...]

    @property
    def apart(self) -> float:
        """By how much the losses differ, in nats."""
        return abs(self.killed.loss - self.whole.loss)


@attrs.frozen
class Outcome:
    """What became of both runs, in the order of steps."""

    killed: Killed
    steps: tuple[Compared, ...]
    validation: float
    whole_validation: float

    @property
    def losses(self) -> list[float]:
        """Of the killed run."""
        return [step.killed.loss for step in self.steps]

    @property
    def whole_losses(self) -> list[float]:
        """Of the run that never stopped."""
        return [step.whole.loss for step in self.steps]

    @property
    def different(self) -> int:
        """Rows that differ."""
        return sum(len(step.different) for step in self.steps)

    @property
    def apart(self) -> float:
        """The largest difference between two losses of one step, in nats."""
        return max(step.apart for step in self.steps)

    @property
    def same_curve(self) -> bool:
        """Whether all losses are within the tolerance."""
        return self.apart <= TOLERANCE

    @property
    def fell(self) -> bool:
        """Whether the loss on text that was not trained on is clearly below that of the fresh model."""
        return self.validation < self.losses[0] - _CLEAR_FALL

    @property
    def proven(self) -> bool:
        """Whether the demo showed what it is to show."""
        return self.fell and self.same_curve and not self.different


def compare(stream: RecordStream, killed: Killed, whole: Mapping[int, Taken], whole_validation: float) -> Outcome:
    """Holds every step against the other run, and its tokens against what the source of `stream` holds."""
    steps = [_compared(stream, killed.taken[step], whole[step]) for step in range(killed.steps)]
    validation = math.nan if killed.validation is None else killed.validation
    return Outcome(killed, tuple(steps), validation, whole_validation)


def _compared(stream: RecordStream, one: Taken, other: Taken) -> Compared:
    ids, other_ids = (np.asarray(stream.order.at(taken.places)) for taken in (one, other))
    stored = digests(np.stack([stream.source[int(record)]["text"] for record in ids]))
    rows = zip(one.places, other.places, one.digests, other.digests, stored, strict=True)
    different = [row for row, (p, q, *found) in enumerate(rows) if p != q or len(set(found)) > 1]
    return Compared(one, other, ids, other_ids, tuple(different))
