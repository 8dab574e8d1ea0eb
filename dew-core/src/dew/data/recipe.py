"""`Mixture`: several sources of data in exact proportions, as one value that loads into a `Dataset`.

A part is anything that ends in a record source: a source in hand, a specification such as `TokenWindows`, a `Dataset`,
or, through `dew.data.load`, a provider's name. `dew.data.mixing` makes the dataset of what they bring.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import attrs

from dew.data import checks
from dew.data.build import Columns, in_memory
from dew.data.dataset import DataPartition, Dataset
from dew.data.errors import OptionsError, OptionsTypeError
from dew.data.loading import Loading
from dew.data.mixing import MixedOptions, MixedPart, Reading, by_label, check_unique, last_component, mixed_dataset
from dew.data.mixture import Exhaustion, MixtureOrder, Stage
from dew.data.order import ShuffledOrder
from dew.data.position import RecordPosition, record_position
from dew.data.quotas import quotas_of, shares_of
from dew.data.source import Preprocess, Record, RecordSource, describe
from dew.data.stream import RecordStream, Remainder, ValidationPass, stop_of


def _labelled(parts: Any) -> dict[str, tuple[Any, Any]]:
    if isinstance(parts, Mapping):
        named = cast("Mapping[Any, Any]", parts)
        return {label: _pair(f"part {label!r}", pair) for label, pair in named.items()}
    if isinstance(parts, str) or not isinstance(parts, Sequence):
        raise OptionsTypeError(
            "a mixture takes a mapping of label to (part, weight), or a list of (part, weight), "
            f"got {type(parts).__name__}"
        )
    labelled: dict[str, tuple[Any, Any]] = {}
    names: dict[str, str] = {}
    for number, given in enumerate(cast("Sequence[Any]", parts)):
        part, weight = _pair(f"part {number}", given)
        given_path = getattr(part, "path", None)
        path = str(cast("object", given_path)) if isinstance(given_path, str | os.PathLike) else ""
        if not path:
            raise OptionsError(
                f"part {number} of the mixture, {describe(part)}, has no path to take a label from; "
                'label the parts yourself: Mixture({"one": (part, weight), ...})'
            )
        names[f"part {number} ({path})"] = label = last_component(path)
        check_unique(names)
        labelled[label] = part, weight
    return labelled


def _pair(name: str, pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, tuple | list) or len(cast("Sequence[Any]", pair)) != 2:
        raise OptionsTypeError(f"{name} of a mixture is a pair (part, weight), got {describe(cast('object', pair))}")
    part, weight = cast("Sequence[Any]", pair)
    if isinstance(part, str):
        raise OptionsTypeError(
            f"{name} of the mixture is the text {part!r}; providers' names are mixed by dew.data.load, "
            f"load({{{part!r}: {weight!r}, ...}}, batch=...), or made into a part: load({part!r}, batch=1)"
        )
    return part, weight


def _as_tuple(stages: Iterable[Any]) -> tuple[Stage, ...]:
    return tuple(stages)


@attrs.frozen
class Mixture:
    """Several sources in exact proportions, as one value: `Mixture({"web": (web, 0.7), "code": (code, 0.3)})`.

    Each part is a record source, a specification (`TokenWindows(...)`), a `Dataset` (of which the records and their
    `preprocess` are taken, and the validation set), or columns or rows in memory. Weights are relative, per record, and
    exact as written: (3, 1), (0.75, 0.25) and (0.3, 0.1) are one mixture. The order of the parts does not matter; their
    labels do.

    Args:
        parts: label -> (part, weight), or a list of (part, weight), labelled by the last component of each part's
            `path`. A weight of None: the part is read in later stages only.
        stages: `(start, weights)`: from record `start` of the run on the weights are these, a mapping by label (parts
            left out are not read) or one weight a part. A part goes on where the stages before left it.
        exhaustion: "repeat" never ends, "stop_first" ends where the first part is used up, "stop_all" where the last.
        max_epochs: the mixture ends where a part was read this often; one number, or one for each label.
        preprocess: `record -> record` or `(record, rng) -> record` for parts without one of their own; one function, or
            one for each label.
        val: label -> validation records, for parts that bring none.
        seed: of the parts' permutations, the mixture's own shuffle, and each record's draws.
        place_field, repeat_in_step, val_remainder, valid_field, allow_overlap, loading: as in `dew.data.load`.

    Raises:
        OptionsError: a weight, label or stage that cannot be; names it and its value.
        OptionsTypeError: an argument of another type.
    """

    parts: Mapping[str, tuple[Any, Any]] = attrs.field(converter=_labelled)
    stages: tuple[Stage, ...] = attrs.field(default=(), converter=_as_tuple, kw_only=True)
    exhaustion: Exhaustion = attrs.field(default="repeat", kw_only=True)
    max_epochs: int | Mapping[str, int] | None = attrs.field(default=None, kw_only=True)
    preprocess: Preprocess | Mapping[str, Preprocess] | None = attrs.field(default=None, kw_only=True)
    val: Mapping[str, Any] = attrs.field(factory=dict[str, Any], kw_only=True)
    seed: int = attrs.field(default=0, validator=checks.seed, kw_only=True)
    place_field: str | None = attrs.field(default=None, kw_only=True)
    repeat_in_step: bool = attrs.field(default=False, kw_only=True)
    val_remainder: Remainder = attrs.field(default="pad", kw_only=True)
    valid_field: str = attrs.field(default="valid", kw_only=True)
    allow_overlap: bool = attrs.field(default=False, kw_only=True)
    loading: Loading = attrs.field(factory=Loading, kw_only=True)

    def __attrs_post_init__(self) -> None:
        labels = tuple(self.parts)
        object.__setattr__(self, "stages", _staged(self.stages, labels))
        for weights in (self._weights, *(stage.weights for stage in self.stages)):
            quotas_of(shares_of(weights))
        for option in ("max_epochs", "preprocess", "val"):
            by_label(option, getattr(self, option), labels)

    def load(self, *, batch: int) -> Dataset:
        """The data set, with `batch` rows in one step over all processes.

        `records` is the number of records of all parts, or of the whole run where the mixture ends.

        Raises:
            SourceError, CollateError, OverlapError: see `mixed_dataset`.
        """
        limits = by_label("max_epochs", self.max_epochs, tuple(self.parts))
        preprocess = by_label("preprocess", self.preprocess, tuple(self.parts))
        parts = [
            attrs.evolve(_opened(label, part, preprocess.get(label), self.val.get(label)), max_epochs=limits.get(label))
            for label, (part, _) in self.parts.items()
        ]
        options = MixedOptions(
            batch=batch,
            seed=self.seed,
            exhaustion=self.exhaustion,
            place_field=self.place_field,
            repeat_in_step=self.repeat_in_step,
            val_remainder=self.val_remainder,
            valid_field=self.valid_field,
            allow_overlap=self.allow_overlap,
            loading=self.loading,
        )
        return mixed_dataset(parts, [Stage(0, self._weights), *self.stages], options)

    @property
    def _weights(self) -> dict[str, Any]:
        return {label: weight for label, (_, weight) in self.parts.items() if weight is not None}

    def add_stage_at(
        self, position: Mapping[str, Any] | RecordPosition | int, weights: Mapping[str, Any] | Sequence[Any]
    ) -> "Mixture":
        """The same mixture with other weights from a saved position on; its stream goes on from there exactly.

        No record before the position changes, none is skipped and none is read again: each part continues where it
        stands. Stages that are planned for later stay.

        Args:
            position: what a stream's `get_state()` returned, its `position`, or the number of records read.
            weights: as in a stage.

        Raises:
            OptionsError: nothing has been read at the position, or a stage begins there already.
        """
        if isinstance(position, int):
            start = checks.check_count("position", position, 0)
        else:
            start = (position if isinstance(position, RecordPosition) else record_position(position)).records
        if start == 0:
            raise OptionsError("no record has been read at position 0; give the weights to the mixture's parts")
        if any(stage.start == start for stage in self.stages):
            raise OptionsError(f"a stage begins at record {start} already; make a mixture with other stages")
        stages = sorted([*self.stages, Stage(start, _weights(weights, tuple(self.parts)))], key=lambda one: one.start)
        return attrs.evolve(self, stages=tuple(stages))


def _staged(stages: Any, labels: tuple[str, ...]) -> tuple[Stage, ...]:
    staged: list[Stage] = []
    for given in stages:
        if isinstance(given, Stage):
            stage = given
        elif isinstance(given, tuple | list) and len(cast("Sequence[Any]", given)) == 2:
            start, weights = cast("Sequence[Any]", given)
            stage = Stage(start, _weights(weights, labels))
        else:
            raise OptionsTypeError(f"a stage is a pair (start, weights), got {given!r}")
        if stage.start == 0:
            raise OptionsError("a stage starts after record 0; up to it the parts' own weights hold")
        staged.append(stage)
    return tuple(staged)


def _weights(weights: Any, labels: tuple[str, ...]) -> dict[str, Any]:
    if isinstance(weights, Mapping):
        return by_label("a stage's weights", weights, labels)
    if isinstance(weights, str) or len(weights) != len(labels):
        raise OptionsError(f"a stage's weights are one for each of {list(labels)}, got {weights!r}")
    return {label: weight for label, weight in zip(labels, weights, strict=True) if weight is not None}


def _opened(label: str, part: Any, preprocess: Preprocess | None, val: Any) -> MixedPart:
    """A part as records and what is applied to them."""
    if isinstance(part, Mixture):
        raise OptionsTypeError(f"part {label!r} is a mixture itself; list its parts, their weights multiplied, instead")
    brought = _brought(label, part)
    if preprocess is not None:
        if brought.train.preprocess is not None:
            raise OptionsError(f"part {label!r} brings a preprocess of its own; leave it out of preprocess=")
        brought = attrs.evolve(brought, train=attrs.evolve(brought.train, preprocess=preprocess))
        if brought.val is not None:
            brought = attrs.evolve(brought, val=attrs.evolve(brought.val, preprocess=preprocess))
    if val is not None:
        if brought.val is not None:
            raise OptionsError(f"part {label!r} brings validation records of its own; leave it out of val=")
        brought = attrs.evolve(brought, val=Reading(_source(label, val), brought.train.preprocess))
    return brought


def _brought(label: str, part: Any) -> MixedPart:
    """What a part is by itself."""
    if isinstance(part, Dataset):
        return _part_of_dataset(label, part)
    if isinstance(part, RecordSource) or not callable(getattr(part, "load", None)):
        return MixedPart(label=label, train=Reading(_source(label, part)))
    dataset = part.load(batch=1)
    if not isinstance(dataset, Dataset):
        raise OptionsTypeError(
            f"part {label!r}: load(batch=1) of {describe(part)} must return a Dataset, got {type(dataset).__name__}"
        )
    return _part_of_dataset(label, dataset)


def _source(label: str, given: Any) -> RecordSource:
    if isinstance(given, Mapping | list):
        return in_memory(cast("Columns | Sequence[Record]", given))
    if not isinstance(given, RecordSource):
        raise OptionsTypeError(
            f"part {label!r} of a mixture is a record source (__len__ and __getitem__), a specification with "
            f"load(batch=...), or a Dataset; got {describe(given)} ({type(given).__name__})"
        )
    return given


def _part_of_dataset(label: str, dataset: Dataset) -> MixedPart:
    """The records of a dataset; its batch, its seed and its shuffle are not taken."""
    if dataset.ramp is not None:
        raise OptionsError(f"part {label!r} has the batch ramp {dataset.ramp}; apply ramped() to the whole mixture")
    stream = dataset.train(DataPartition())
    if not isinstance(stream, RecordStream):
        raise OptionsTypeError(_no_random_access(label, stream))
    stream.close()
    if hasattr(stream, "conditions"):
        raise OptionsError(
            f"part {label!r} is tokenized, and a mixture takes its records before that; mix the datasets as they are, "
            "and apply tokenized() to the mixture"
        )
    order, train = stream.order, Reading(stream.source, stream.preprocess)
    if isinstance(order, MixtureOrder) or stop_of(order) is not None:
        raise OptionsTypeError(f"part {label!r} is a mixture itself; list its parts, their weights multiplied, instead")
    val: Reading | None = None
    if dataset.val is not None:
        one_pass = dataset.val(DataPartition())
        if not isinstance(one_pass, ValidationPass):
            raise OptionsTypeError(_no_random_access(label, one_pass))
        val = Reading(one_pass.source, one_pass.preprocess)
        one_pass.close()
    ours = isinstance(order, ShuffledOrder) or hasattr(train.source, "order")  # of another seed in the mixture
    return MixedPart(label=label, train=train, val=val, order=None if ours else order)


def _no_random_access(label: str, stream: object) -> str:
    return (
        f"part {label!r} is read as a stream ({type(stream).__name__}), and a mixture needs random access to its "
        "records; open it as a record source, or prepare it as one"
    )
