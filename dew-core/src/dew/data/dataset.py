"""The contract: what a training program receives.

A `Dataset` is two callables and two numbers. `train` and `val` map a `DataPartition` (a share of every global batch) to
an iterator of batches; `records` and `batch` are all that is needed to count steps. Everything else in Dew makes one.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import attrs

from dew.data import checks
from dew.data.errors import OptionsError, OptionsTypeError, PartitionError
from dew.data.schedule import FixedBatch, Ramp, whole_steps

Batch: TypeAlias = dict[str, Any]
"""Field name -> array whose first axis is the rows of this share, `(rows, ...)`, or a nested dict of such arrays."""


@attrs.frozen
class DataPartition:
    """Share `index` of `count` of every global batch.

    Rows `index`, `index + count`, ... of each step belong to the share. `readers` processes read this same share (their
    devices hold the same rows) and this is number `reader`; readers of one share get identical batches.
    `DataPartition()` reads every row.

    Raises:
        OptionsError: an index outside its count.
    """

    index: int = attrs.field(default=0, validator=checks.count(0))
    count: int = attrs.field(default=1, validator=checks.count(1))
    readers: int = attrs.field(default=1, validator=checks.count(1))
    reader: int = attrs.field(default=0, validator=checks.count(0))

    def __attrs_post_init__(self) -> None:
        if self.index >= self.count:
            raise OptionsError(f"share index {self.index} does not exist among {self.count}: use 0 to {self.count - 1}")
        if self.reader >= self.readers:
            raise OptionsError(f"reader {self.reader} does not exist among {self.readers}: use 0 to {self.readers - 1}")

    def rows(self, batch: int) -> int:
        """Rows of this share in a global batch of `batch` rows: `batch // count`.

        Raises:
            PartitionError: `batch` does not divide by `count`; the message names both.
        """
        checks.check_count("batch", batch)
        rows, rest = divmod(batch, self.count)
        if rest:
            near = [n for n in (batch - rest, batch - rest + self.count) if n > 0]
            raise PartitionError(
                f"a global batch of {batch} rows does not divide over {self.count} processes; "
                f"use a batch of {' or '.join(map(str, near))}, or a process count that divides {batch}"
            )
        return rows


StreamFactory: TypeAlias = Callable[[DataPartition], Iterator[Batch]]
"""`DataPartition -> iterator`; each call returns a fresh iterator owned by the caller."""


@attrs.frozen
class Dataset:
    """Training and validation data of one run.

    Args:
        train: `DataPartition -> iterator` of batches; each call returns a fresh iterator owned by the caller. Training
            iterators of Dew never end.
        val: the same for one pass over the validation split, or None.
        records: number of training records, None when unknown.
        batch: the GLOBAL batch: rows of one step over all processes.
        ramp: set only by `dew.data.ramped`: how the global batch grows to `batch`.

    `train` receives the partition and must slice by it; a callable that ignores it gives every process the same rows.
    """

    train: StreamFactory = attrs.field()
    val: StreamFactory | None = attrs.field(default=None)
    records: int | None = attrs.field(default=None)
    batch: int = attrs.field(default=0)
    ramp: Ramp | None = attrs.field(default=None)

    def __attrs_post_init__(self) -> None:
        if not callable(self.train):
            raise OptionsTypeError(
                f"train must be a callable DataPartition -> iterator, got {type(self.train).__name__}"
            )
        if self.val is not None and not callable(self.val):
            raise OptionsTypeError(
                f"val must be a callable DataPartition -> iterator or None, got {type(self.val).__name__}"
            )
        if self.records is not None:
            checks.check_count("records", self.records)
        if self.batch == 0:
            raise OptionsError("a Dataset needs batch=, the global batch (rows of one step over all processes)")
        checks.check_count("batch", self.batch)
        if self.ramp is not None:
            self.ramp.schedule(self.batch)

    @property
    def steps_per_epoch(self) -> int | None:
        """Whole steps in `records` records, the ramp applied from the start; None when `records` is unknown."""
        return None if self.records is None else self.steps_for(1)

    def steps_for(self, epochs: int) -> int:
        """Whole steps in `epochs * records` records, the batch schedule applied once.

        Not `epochs * steps_per_epoch`: a step may straddle two epochs, so 1000 records, batch 300 and 3 epochs are 10
        steps.

        Raises:
            OptionsError: `records` is unknown.
        """
        checks.check_count("epochs", epochs, 0)
        if self.records is None:
            raise OptionsError(
                f"steps in {epochs} epochs were asked for, but this dataset does not know its number of records; "
                "pass records= when you make it, or count steps instead of epochs"
            )
        schedule = FixedBatch(self.batch) if self.ramp is None else self.ramp.schedule(self.batch)
        return whole_steps(schedule, epochs * self.records)
