"""Validation inside a run: several named sets, and the exact mean over each at any number of processes.

The one idea: a mean over a split is a sum divided once, by what was really scored. All processes take the same number
of batches: Dew's own passes do by construction, and for any other iterator they agree on each batch before it is
scored; one that has no more goes on with rows that are not `valid`.
"""

# JAX leaves parts of its own signatures untyped.
# pyright: reportUnknownMemberType=false

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final, TypeAlias, cast

import attrs
import jax
import numpy as np

from dew.data.dataset import Batch, DataPartition, Dataset, StreamFactory
from dew.data.errors import DewDataError, FieldError, OptionsError, OptionsTypeError, PoolError
from dew.data.mixing import validation_sets
from dew.data.stepstream import StepStream
from dew.data.stream import ValidationPass
from dew.training.agreement import exchange
from dew.training.placement import rows_in
from dew.training.prefetch import DevicePrefetch
from dew.training.progress import Bar
from dew.training.watch import Watch

Evaluate: TypeAlias = Callable[[Any, Any], Mapping[str, tuple[Any, Any]]]
"""`(state, batch) -> {metric: (total, mass)}`: sums over the rows that are `valid`, both scalars."""

Evaluates: TypeAlias = Evaluate | Mapping[str, Evaluate | tuple[StreamFactory | Dataset, Evaluate]]
"""One function for the dataset's own validation, or set name -> function, or -> (validation data, function)."""

_VALID: Final = "valid"
_CLOSING: Final = 5.0  # seconds that closing waits for a read


@attrs.frozen
class ValidationSet:
    """One named set: how a pass over it is opened, how a batch is scored, and its global batch where that is known."""

    name: str
    val: StreamFactory
    evaluate: Evaluate
    batch: int | None


def named_sets(evaluate: Evaluates, dataset: Dataset) -> list[ValidationSet]:
    """The sets that `evaluate` asks for; see `Trainer`.

    Raises:
        OptionsError: a set has no data; names it.
        OptionsTypeError: neither a function nor (validation data, function).
    """
    own = validation_sets(dataset)
    if isinstance(evaluate, Mapping):
        asked = cast("Mapping[str, Any]", evaluate)
        return [_named(name, given, own, dataset) for name, given in asked.items()]
    if not callable(evaluate):
        raise OptionsTypeError(f"evaluate must be a function or a mapping of set names, got {evaluate!r}")
    if not own:
        raise OptionsError("evaluate was given, but the dataset has no validation split: make it with val=")
    return [ValidationSet(name, val, evaluate, dataset.batch) for name, val in own.items()]


def _named(name: str, given: Any, own: Mapping[str, StreamFactory], dataset: Dataset) -> ValidationSet:
    data, function = cast("tuple[Any, Any]", given) if isinstance(given, tuple) else (None, given)
    if not callable(function):
        raise OptionsTypeError(f"evaluate[{name!r}] must be a function or (validation data, function), got {given!r}")
    val: Any = data.val if isinstance(data, Dataset) else data
    if data is None:
        val = own.get(name, dataset.val)
    if val is None:
        raise OptionsError(f"evaluate[{name!r}] has no data: its dataset has no validation split; make it with val=")
    if not callable(val):
        raise OptionsTypeError(
            f"the validation data of evaluate[{name!r}] must be a Dataset or a callable DataPartition -> iterator, "
            f"got {type(val).__name__}"
        )
    whose = dataset if data is None else data
    batch = whose.batch if isinstance(whose, Dataset) else None
    return ValidationSet(name, cast("StreamFactory", val), cast("Evaluate", function), batch)


class Validation:
    """The sets of one run.

    The next pass over each set is kept warm: it is opened, and its first batch read, while training goes on. It holds
    host memory for that batch and what its stream reads ahead, and nothing on the devices.

    Args:
        sets: what to score.
        partition: this process's share.
        place: puts one batch of a set on the devices; also gets the global batch, where it is known.
        watch: the run's.
    """

    def __init__(
        self,
        sets: list[ValidationSet],
        partition: DataPartition,
        place: Callable[[Batch, int | None], Any],
        watch: Watch,
    ) -> None:
        self._sets = sets
        self._partition = partition
        self._place = place
        self._watch = watch
        self._warm: dict[str, _Pass] = {}

    def warm(self) -> None:
        """Opens the next pass over each set, in threads."""
        for each in self._sets:
            if each.name not in self._warm:
                self._warm[each.name] = _Pass(each.val, self._partition)

    def close(self) -> None:
        """Closes the passes that were opened and not used."""
        while self._warm:
            self._warm.popitem()[1].close()

    def run(self, state: Any, bar: Bar) -> dict[str, float] | None:
        """The mean of each metric over each set, as `set/metric`; None where all processes are to stop instead."""
        self.warm()
        means: dict[str, float] = {}
        for each in self._sets:
            with closing(self._warm.pop(each.name)) as batches:
                found = self._score(each, state, batches, bar)
            if found is None:
                return None
            means |= {f"{each.name}/{metric}": mean for metric, mean in found.items()}
        return means

    def _score(self, each: ValidationSet, state: Any, batches: "_Pass", bar: Bar) -> dict[str, float] | None:
        sums = _Sums(each.name)
        number = 0
        scored: Any = None
        with (
            DevicePrefetch(batches, lambda batch: self._placed(each, batches, batch)) as ahead,
            bar.beside(f"validate {each.name}", None) as second,
        ):
            while True:
                if self._watch.border():
                    return None
                batch = self._next(each, batches, ahead, number)
                if batch is None:
                    break
                previous, scored = scored, each.evaluate(state, batch)
                if previous is not None:  # one behind, so that the devices are never idle
                    sums.add(previous)
                number += 1
                second.show(number, {})
        if scored is not None:
            sums.add(scored)
        return sums.means(number)

    def _next(self, each: ValidationSet, batches: "_Pass", ahead: DevicePrefetch, number: int) -> Any:
        """The next batch on the devices; None at the end, which is everybody's."""
        if batches.is_even or jax.process_count() == 1:
            return next(ahead, None)
        found: list[Any] = []

        def read() -> dict[str, Any]:
            batch = next(ahead, None)
            ended = batch is None
            if batch is None and batches.can_fill:
                batch = self._placed(each, batches, batches.filling())
            found.append(batch)
            return {"ended": ended, "shapes": None if batch is None else _shapes(batch)}

        said = exchange(f"reading batch {number} of the validation set {each.name!r}", read)
        if all(answer["ended"] for answer in said):
            return None
        _check_together(each.name, number, [answer["shapes"] for answer in said])
        return found[0]

    def _placed(self, each: ValidationSet, batches: "_Pass", batch: Batch) -> Any:
        if batches.is_even:
            return self._place(batch, each.batch)
        # A pass of a user's own may end with fewer rows than a batch, in all processes alike, which is checked then.
        rows = rows_in(batch)
        share = None if each.batch is None else self._partition.rows(each.batch)
        if share is not None and rows > share:
            raise FieldError(
                f"a batch of the validation set {each.name!r} has {rows} rows in this process, at most {share} "
                f"expected: one of {self._partition.count} shares of a global batch of {each.batch}; its iterator is "
                "to read the share that it was made with"
            )
        return self._place(batch, rows * self._partition.count if rows else None)


def _shapes(batch: Any) -> list[list[int]]:
    return [list(np.shape(leaf)) for leaf in jax.tree.leaves(batch)]


def _check_together(name: str, number: int, shapes: list[Any]) -> None:
    """Every process has a batch, of the same global shapes.

    Raises:
        PoolError: names the processes that differ.
    """
    if without := [process for process, each in enumerate(shapes) if each is None]:
        raise PoolError(
            f"the validation set {name!r} ended after {number} batches in the processes {without}, and others have "
            f"more: give every process the same number, or batches with a field {_VALID!r}, (rows,) bool, from which "
            "padding is made"
        )
    if other := [process for process, each in enumerate(shapes) if each != shapes[0]]:
        raise PoolError(
            f"batch {number} of the validation set {name!r} would be {shapes[0]} in process 0 and {shapes[other[0]]} "
            f"in process {other[0]}: give every process as many rows; fill up the last ones and mark them with a field "
            f"{_VALID!r}, (rows,) bool"
        )


class _Pass(Iterator[Batch]):
    """One pass over a set, opened and begun in a thread of its own."""

    def __init__(self, val: StreamFactory, partition: DataPartition) -> None:
        self._val = val
        self._partition = partition
        self._iterator: Any = None
        self._first: Batch | None = None
        self._began = False
        self._error: BaseException | None = None
        self._last: Batch | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._open, name="dew-validation", daemon=True)
        self._thread.start()

    def __next__(self) -> Batch:
        self._thread.join()
        if self._error is not None:
            raise self._error
        if not self._began:
            self._began, batch = True, self._first
            if batch is None:
                raise StopIteration
        else:
            batch = next(self._iterator)
        self._first, self._last = None, batch
        return batch

    def close(self) -> None:
        """Closes the iterator: one of Dew's even while it reads, any other once it has read; idempotent."""
        if self._closed:
            return
        self._closed = True
        if isinstance(self._iterator, StepStream):
            self._iterator.close()
        self._thread.join(_CLOSING)
        if not self._thread.is_alive():
            getattr(self._iterator, "close", _nothing)()

    @property
    def is_even(self) -> bool:
        """Whether every process's pass has as many batches, by construction."""
        self._thread.join()
        return isinstance(self._iterator, ValidationPass)

    @property
    def can_fill(self) -> bool:
        """Whether a batch without any valid row can be made."""
        valid = None if self._last is None else self._last.get(_VALID)
        return isinstance(valid, np.ndarray) and cast("np.ndarray[Any, Any]", valid).dtype == np.bool_

    def filling(self) -> Batch:
        """The last batch with no row valid."""
        assert self._last is not None
        return {**self._last, _VALID: np.zeros_like(self._last[_VALID])}

    def _open(self) -> None:
        try:
            self._iterator = iter(self._val(self._partition))
            self._first = None if self._closed else next(self._iterator, None)
        except BaseException as error:
            self._error = error


def _nothing() -> None:
    """What closing means for an iterator that cannot be closed."""


class _Sums:
    """Totals and masses of one pass by metric, on the host: totals as exact sums of floats, masses as integers."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._totals: dict[str, list[float]] = {}
        self._masses: dict[str, list[float]] = {}

    def add(self, scored: Any) -> None:
        """What `evaluate` returned for one batch."""
        if not isinstance(scored, Mapping) or not scored:
            raise self._wrong(scored)
        for metric, pair in cast("Mapping[str, Any]", scored).items():
            if not isinstance(pair, tuple) or len(cast("tuple[Any, ...]", pair)) != 2:
                raise self._wrong(scored)
            total, mass = cast("tuple[Any, Any]", pair)
            self._totals.setdefault(metric, []).append(number_of(f"the total of {self._name}/{metric}", total))
            self._masses.setdefault(metric, []).append(number_of(f"the mass of {self._name}/{metric}", mass))

    def means(self, batches: int) -> dict[str, float]:
        """Metric -> sum of totals over sum of masses."""
        if not self._totals:
            raise FieldError(f"the validation set {self._name!r} delivered no batch, so there is no mean")
        masses = {metric: math.fsum(each) for metric, each in self._masses.items()}
        for metric, mass in masses.items():
            if not mass > 0:
                raise FieldError(
                    f"{self._name}/{metric} has a mass of {mass:g} after {batches} batches, so there is no mean: no "
                    "row is valid, or nothing of what is valid is scored"
                )
        return {metric: math.fsum(self._totals[metric]) / mass for metric, mass in masses.items()}

    def _wrong(self, scored: Any) -> DewDataError:
        return OptionsTypeError(
            f"evaluate must return {{metric: (total, mass)}}, both summed over the valid rows; for the set "
            f"{self._name!r} it returned {scored!r}"
        )


def number_of(what: str, value: Any) -> float:
    """A scalar as a Python number.

    Raises:
        OptionsTypeError: it is no scalar number; names `what`.
    """
    if np.shape(value) != () or isinstance(value, str | bytes):
        raise OptionsTypeError(f"{what} must be a scalar, it is {np.shape(value)}")
    if isinstance(value, jax.Array) and not value.is_fully_replicated:
        raise OptionsTypeError(f"{what} must be the same on every device; sum it inside jit over the whole batch")
    return np.asarray(value).item()
