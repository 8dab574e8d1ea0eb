"""Opened parts -> the `Dataset` of a mixture, and its validation sets by name.

A mixture is one order (`dew.data.mixture`) over one source (`dew.data.mixed`), so that positions, draws, processes and
workers do what they do for any other source. What parts there are is for others to say: `Mixture`, or `dew.data.load`.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import attrs

from dew.data.build import Validation, dataset_of
from dew.data.dataset import Batch, DataPartition, Dataset, StreamFactory
from dew.data.errors import OptionsError, OverlapError, SourceError
from dew.data.loading import Loading
from dew.data.mixed import check_layouts, mixed_preprocess, mixed_source
from dew.data.mixture import Exhaustion, MixtureOrder, MixturePart, Stage, part_order, part_seed
from dew.data.order import Order
from dew.data.schedule import FixedBatch, whole_steps
from dew.data.source import (
    Preprocess,
    RecordSource,
    check_one_tokenizer,
    describe,
    fingerprint,
    identity,
    records_in,
    shared_records,
)
from dew.data.stream import Remainder

logger = logging.getLogger("dew.data")

_OF_THE_ORDER: Final = ("records", "order", "source", "fingerprint")


@attrs.frozen
class Reading:
    """Records, and what is applied to each."""

    source: RecordSource
    preprocess: Preprocess | None = None


@attrs.frozen(kw_only=True)
class MixedPart:
    """One part of a mixture, opened.

    Args:
        label: its name, unique in the mixture.
        train: its training records.
        val: its validation records.
        order: over its training records, where it is not for the mixture to choose.
        max_epochs: how often it may be read before the mixture ends.
    """

    label: str
    train: Reading
    val: Reading | None = None
    order: Order | None = None
    max_epochs: int | None = None


@attrs.frozen(kw_only=True)
class MixedOptions:
    """What a mixture's `Dataset` is made with besides its parts and their weights; as in `train_stream`."""

    batch: int
    seed: int = 0
    exhaustion: Exhaustion = "repeat"
    place_field: str | None = None
    repeat_in_step: bool = False
    val_remainder: Remainder = "pad"
    valid_field: str = "valid"
    allow_overlap: bool = False
    loading: Loading = attrs.field(factory=Loading)


def mixed_dataset(parts: Sequence[MixedPart], stages: Sequence[Stage], options: MixedOptions) -> Dataset:
    """The `Dataset` of opened parts; logs each part's share, and where the mixture ends.

    Raises:
        OptionsError, OptionsTypeError: labels, weights, stages or options that cannot be.
        SourceError: a part holds no records, or the mixture fewer than one global batch.
        CollateError: the parts' records differ in fields, dtypes or shapes.
        OverlapError: a validation set is what a part trains on, unless `allow_overlap`.
    """
    order = MixtureOrder(
        parts=tuple(_part_of_order(part, options.seed) for part in parts),
        stages=tuple(stages),
        seed=options.seed,
        exhaustion=options.exhaustion,
    )
    check_one_tokenizer({f"part {part.label!r}": part.train.source for part in parts})
    mixed = _mixed({part.label: part.train for part in parts}, options.seed)
    dataset = dataset_of(
        mixed.source,
        batch=options.batch,
        seed=options.seed,
        order=order,
        preprocess=mixed.preprocess,
        loading=_loading(parts, options.loading),
        place_field=options.place_field,
        repeat_in_step=options.repeat_in_step,
    )
    validation = _validation(parts, options)
    _log(order, options.batch)
    return attrs.evolve(dataset, val=validation)


def _loading(parts: Sequence[MixedPart], loading: Loading) -> Loading:
    """No workers by default where a part wants an order of its own: each would read every block that a step touches."""
    dear = any(hasattr(part.train.source, "order") for part in parts)
    return attrs.evolve(loading, workers=0) if dear and loading.workers is None else loading


class MixedValidation(Mapping[str, StreamFactory]):
    """Validation of a mixture: `validation[label]` passes over one part's set, and calling it over all, one by one."""

    def __init__(self, together: StreamFactory, sets: Mapping[str, StreamFactory]) -> None:
        self._together = together
        self._sets = dict(sets)

    def __call__(self, partition: DataPartition) -> Iterator[Batch]:
        """One pass over the sets of all parts, in the order of their labels; every record is scored exactly once."""
        return self._together(partition)

    def __getitem__(self, label: str) -> StreamFactory:
        return self._sets[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sets)

    def __len__(self) -> int:
        return len(self._sets)


def validation_sets(dataset: Dataset) -> dict[str, StreamFactory]:
    """Name -> validation set: of a mixture one for each part that has one, of any other dataset `{"val": dataset.val}`.

    Each is a callable `DataPartition -> iterator`, one pass as `dataset.val` is. Empty without validation.
    """
    if dataset.val is None:
        return {}
    if isinstance(dataset.val, MixedValidation):
        return dict(dataset.val)
    return {"val": dataset.val}


def by_label(option: str, given: Any, labels: Sequence[str]) -> dict[str, Any]:
    """An option as label -> value: a mapping by label, or one value for all; None says nothing.

    Raises:
        OptionsError: a mapping names something that is no label.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return dict.fromkeys(labels, given)
    values = cast("Mapping[str, Any]", given)
    if unknown := sorted(set(values) - set(labels), key=str):
        raise OptionsError(f"{option} given for {unknown}, which are no parts of the mixture: {list(labels)}")
    return dict(values)


def last_component(path: str) -> str:
    """What a part is labelled by default: the last component of its path."""
    return path.rstrip("/").rpartition("/")[2] or path


def check_unique(labels: Mapping[str, str]) -> None:
    """Refuses parts (name -> label) of one label.

    Raises:
        OptionsError: names both parts, and says how to label them.
    """
    seen: dict[str, str] = {}
    for name, label in labels.items():
        if label in seen:
            raise OptionsError(
                f"{seen[label]} and {name} would both be labelled {label!r}, and saved positions know parts by their "
                f'labels; label them yourself: Mixture({{"one": (part, weight), "two": (part, weight)}})'
            )
        seen[label] = name


def _part_of_order(part: MixedPart, seed: int) -> MixturePart:
    source = part.train.source
    try:
        records = records_in(source)
        facts = {"source": describe(source), "fingerprint": fingerprint(source)}
        own = identity(source)
        if clash := sorted(set(own) & {*facts, *_OF_THE_ORDER}):
            raise SourceError(f"{describe(source)}.identity() has {clash}, which name parts of the order; rename them")
    except Exception as error:
        error.add_note(f"in part {part.label!r} of the mixture")
        raise
    return MixturePart(
        label=part.label,
        order=_order(part, records, seed),
        facts=facts | own,
        max_epochs=part.max_epochs,
    )


def _order(part: MixedPart, records: int, seed: int) -> Order:
    """The order that a part has, the one that its source wants, or its own permutation in each epoch."""
    if part.order is not None:
        return part.order
    own = getattr(part.train.source, "order", None)
    return part_order(part.label, records, seed=seed) if own is None else own(part_seed(part.label, seed))


def _mixed(readings: Mapping[str, Reading], seed: int) -> Reading:
    """All parts as one; without a `preprocess` where every part builds columns as they are."""
    check_layouts({label: (reading.source, reading.preprocess) for label, reading in readings.items()}, seed)
    source = mixed_source({label: reading.source for label, reading in readings.items()})
    functions = {label: reading.preprocess for label, reading in readings.items()}
    if hasattr(source, "take") and not any(functions.values()):
        return Reading(source)
    return Reading(source, mixed_preprocess(functions))


def _validation(parts: Sequence[MixedPart], options: MixedOptions) -> MixedValidation | None:
    readings = {part.label: part.val for part in sorted(parts, key=lambda part: part.label) if part.val is not None}
    if not readings:
        return None
    check_one_tokenizer(
        {f"part {part.label!r}": part.train.source for part in parts}
        | {f"the validation of part {label!r}": reading.source for label, reading in readings.items()}
    )
    if not options.allow_overlap:
        _refuse_overlap(parts, readings)
    sets = {label: _passes(reading, options) for label, reading in readings.items()}
    return MixedValidation(_passes(_mixed(readings, options.seed), options), sets)


def _passes(reading: Reading, options: MixedOptions) -> Validation:
    passes = Validation(
        source=reading.source,
        batch=options.batch,
        seed=options.seed,
        preprocess=reading.preprocess,
        remainder=options.val_remainder,
        valid_field=options.valid_field,
        place_field=options.place_field,
        loading=options.loading,
    )
    passes(DataPartition()).close()
    return passes


def _refuse_overlap(parts: Sequence[MixedPart], readings: Mapping[str, Reading]) -> None:
    trained = {part.label: part.train.source for part in parts}
    digests = {(describe(source), fingerprint(source)): label for label, source in trained.items()}
    for label, reading in readings.items():
        digest = describe(reading.source), fingerprint(reading.source)
        same = next((name for name, source in trained.items() if source is reading.source), None)
        if same is None and digest[1] is not None:
            same = digests.get(digest)
        if same is not None:
            raise OverlapError(
                f"validation of part {label!r} would read what part {same!r} trains on: {digest[0]} (fingerprint "
                f"{digest[1]}); validate on another split, or allow it with allow_overlap=True"
            )
        for name, source in trained.items():
            if shared := shared_records(source, reading.source):
                raise OverlapError(
                    f"validation of part {label!r} would share {shared} records with what part {name!r} trains on: "
                    f"{digest[0]} and {describe(source)}; validate on other records, or allow it with "
                    "allow_overlap=True"
                )


def _log(order: MixtureOrder, batch: int) -> None:
    """What was asked and what came of it, once for each mixture that is loaded."""
    sizes = {part.label: part.order.records for part in order.parts}
    lines = [f"mixture of {len(sizes)} parts, {order.records} records"]
    for number, stage in enumerate(order.stages):
        lines.append(f"from record {stage.start} on:")
        for label, (asked, effective) in order.shares(number).items():
            lines.append(f"  {label}: share {float(effective):.6g}, asked {float(asked):.6g}; {sizes[label]} records")
    if order.stop is not None:
        left = order.stop - FixedBatch(batch).span(whole_steps(FixedBatch(batch), order.stop))[0]
        lines.append(f"it ends after {order.stop} records" + (f"; the last {left} fill no step" if left else ""))
    logger.info("%s", "\n".join(lines))
