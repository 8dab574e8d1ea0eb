"""What `load` does once its arguments are checked: finds the provider, opens its splits, and makes the `Dataset`.

The provider opens splits and nothing more; order, position, validation and batches are made by core from what was
opened, so that they are the same for every provider. What can be refused without opening anything is refused before.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias, cast

import attrs

from dew.data import registry
from dew.data.blocks import BlockOrder
from dew.data.build import check_records, dataset_of
from dew.data.dataset import Batch, DataPartition, Dataset
from dew.data.errors import OptionsError, OptionsTypeError, OverlapError, ProviderError, SourceError
from dew.data.loading import Loading
from dew.data.mixing import MixedOptions, MixedPart, Reading, by_label, check_unique, last_component, mixed_dataset
from dew.data.mixture import Stage
from dew.data.order import Order
from dew.data.provider import LoadRequest, Provider
from dew.data.quotas import quotas_of, shares_of
from dew.data.source import RecordSource, records_in
from dew.data.stream import validation_pass

StreamFactory: TypeAlias = Callable[[DataPartition], Iterator[Batch]]
Opened: TypeAlias = RecordSource | StreamFactory

_VAL_DATASET_SPLIT: Final = "validation"
_LONGEST_VALUE: Final = 40


def open_dataset(
    source: str,
    prefix: str,
    request: LoadRequest,
    *,
    options: Any,
    split: str,
    val_split: str | None,
    val_dataset: Any,
    place_field: str | None,
    repeat_in_step: bool,
    allow_overlap: bool,
) -> Dataset:
    """The dataset that `load` was asked for; `request` holds what a provider sees, all but its `options`."""
    call = _call(
        source,
        prefix,
        request,
        options=options,
        val_dataset=val_dataset,
        place_field=place_field,
        repeat_in_step=repeat_in_step,
        allow_overlap=allow_overlap,
    )
    return call.dataset(*call.splits(split, val_split, val_dataset))


def open_mixture(
    weights: Mapping[str, Any],
    names: Mapping[str, tuple[str, str]],
    request: LoadRequest,
    *,
    options: Any,
    preprocess: Any,
    split: Any,
    val_split: Any,
    val_dataset: Any,
    place_field: str | None,
    repeat_in_step: bool,
    allow_overlap: bool,
) -> Dataset:
    """The mixture that `load` was asked for; `names` are the prefix and the name of each source of `weights`."""
    sources = tuple(weights)
    _check_for_mixture(request, val_dataset)
    quotas_of(shares_of(weights))  # refuses by the sources' full names, before anything is opened
    labels = {source: last_component(name) for source, (_, name) in names.items()}
    check_unique(labels)
    given = {"options": options, "preprocess": preprocess, "split": split, "val_split": val_split}
    by_source = {option: by_label(option, value, sources) for option, value in given.items()}
    parts: list[MixedPart] = []
    for source, (prefix, name) in names.items():
        own = {option: values.get(source) for option, values in by_source.items()}
        call = _call(
            source,
            prefix,
            attrs.evolve(request, name=name, preprocess=own["preprocess"]),
            options=own["options"],
            allow_overlap=allow_overlap,
            of_mixture=True,
        )
        parts.append(call.part(labels[source], own["split"] or "train", own["val_split"]))
    mixed = MixedOptions(
        batch=request.batch,
        seed=request.seed,
        place_field=place_field,
        repeat_in_step=repeat_in_step,
        val_remainder=request.val_remainder,
        valid_field=request.valid_field,
        allow_overlap=allow_overlap,
        loading=request.loading,
    )
    return mixed_dataset(parts, [Stage(0, {labels[source]: weight for source, weight in weights.items()})], mixed)


def _call(
    source: str,
    prefix: str,
    request: LoadRequest,
    *,
    options: Any,
    val_dataset: Any = None,
    place_field: str | None = None,
    repeat_in_step: bool = False,
    allow_overlap: bool,
    of_mixture: bool = False,
) -> "_Call":
    if not isinstance(request.loading, Loading):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsTypeError(f"loading must be a dew.data.Loading, got {request.loading!r}")
    provider = registry.find(prefix)
    _check_accepted(provider, source, request, val_dataset)
    return _Call(
        source=source,
        provider=provider,
        request=attrs.evolve(request, options=_options(provider, source, options)),
        place_field=place_field,
        repeat_in_step=repeat_in_step,
        allow_overlap=allow_overlap,
        of_mixture=of_mixture,
    )


@attrs.frozen(kw_only=True)
class _Call:
    """One call of `load`, its arguments checked and its provider found."""

    source: str
    provider: Provider
    request: LoadRequest
    place_field: str | None
    repeat_in_step: bool
    allow_overlap: bool
    of_mixture: bool = False

    def splits(self, split: str, val_split: str | None, val_dataset: Any) -> tuple[Opened, Opened | None]:
        """The training split, and the one to validate on."""
        val_split = _validation_split(val_split, self.request.options, val_dataset)
        if val_split is not None and not self.allow_overlap:
            _check_overlap(self.source, split, val_split, self.request.dataset, val_dataset)
        train = self.training(split)
        return train, None if val_split is None else self.validation(val_split, val_dataset)

    def part(self, label: str, split: str, val_split: str | None) -> MixedPart:
        """The same two as a part of a mixture."""
        train, val = (cast("RecordSource | None", opened) for opened in self.splits(split, val_split, None))
        assert train is not None
        preprocess = self.request.preprocess
        return MixedPart(
            label=label,
            train=Reading(train, preprocess),
            val=None if val is None else Reading(val, preprocess),
        )

    def training(self, split: str) -> Opened:
        """The training split, refused where it cannot fill a step or cannot be read as asked."""
        opened = self._open(self.request, split)
        preprocess_missing = self.provider.needs_preprocess and self.request.preprocess is None
        if isinstance(opened, RecordSource):
            records = records_in(opened)
            if preprocess_missing:
                raise self._preprocess_wanted(split, f"\n{_row(opened)}")
            check_records(self.request.records, opened)
            if not self.of_mixture:
                self._check_enough(split, records)
            return opened
        if preprocess_missing:
            raise self._preprocess_wanted(split, " the fields that the provider's documentation lists")
        self._check_stream(split)
        if self.request.records is not None:
            self._check_enough(split, self.request.records)
        return opened

    def validation(self, split: str, dataset: Any) -> Opened:
        """The validation split."""
        request = attrs.evolve(self.request, dataset=dataset, records=None, validation=True)
        opened = self._open(request, split)
        if isinstance(opened, RecordSource):
            records_in(opened)
        return opened

    def dataset(self, train: Opened, val: Opened | None) -> Dataset:
        """The dataset of what was opened; a stream is handed on as it is."""
        request = self.request
        if isinstance(train, RecordSource):
            order = _own_order(train, request.seed)
            loading = request.loading
            if isinstance(order, BlockOrder) and loading.workers is None:
                # Each worker process would read every block that a step touches.
                loading = attrs.evolve(loading, workers=0)
            made = dataset_of(
                train,
                batch=request.batch,
                val=val if isinstance(val, RecordSource) else None,
                seed=request.seed,
                order=order,
                preprocess=request.preprocess,
                loading=loading,
                place_field=self.place_field,
                repeat_in_step=self.repeat_in_step,
                val_remainder=request.val_remainder,
                valid_field=request.valid_field,
                allow_overlap=self.allow_overlap,
            )
        else:
            passes = self._passes(val) if isinstance(val, RecordSource) else None
            made = Dataset(train=train, val=passes, records=request.records, batch=request.batch)
            if train is val and not self.allow_overlap:
                raise OverlapError(
                    f"the provider opened one stream for training and validation of {self.source!r}; "
                    "validate on other records, or allow it with allow_overlap=True"
                )
        if val is None or isinstance(val, RecordSource):
            return made
        return attrs.evolve(made, val=val)

    def _open(self, request: LoadRequest, split: str) -> Opened:
        opened = cast("object", self.provider.open(request, split))
        if isinstance(opened, RecordSource):
            return opened
        if callable(opened):
            if self.of_mixture:
                raise OptionsTypeError(
                    f"split {split!r} of {self.source!r} is read as a stream, and a mixture needs random access to the "
                    "records of its parts; open it without streaming, or prepare it as records"
                )
            return cast("Opened", opened)
        raise ProviderError(
            f"the provider {self.provider.prefix!r} opened split {split!r} of {self.source!r} as a "
            f"{type(opened).__name__}; open must return a record source (__len__ and __getitem__), "
            "or a callable DataPartition -> iterator of batches"
        )

    def _passes(self, val: RecordSource) -> StreamFactory:
        request = self.request

        def one_pass(partition: DataPartition) -> Iterator[Batch]:
            return validation_pass(
                val,
                batch=request.batch,
                seed=request.seed,
                partition=partition,
                preprocess=request.preprocess,
                remainder=request.val_remainder,
                valid_field=request.valid_field,
                place_field=self.place_field,
                loading=request.loading,
            )

        return one_pass

    def _check_enough(self, split: str, records: int) -> None:
        if records < self.request.batch and not self.repeat_in_step:
            raise SourceError(
                f"split {split!r} of {self.source!r} holds {records} records, fewer than one global batch of "
                f"{self.request.batch}: steps_per_epoch would be 0; use batch={records} or less, "
                "or repeat_in_step=True to let one step hold a record more than once"
            )

    def _check_stream(self, split: str) -> None:
        for name, given in (("place_field", self.place_field is not None), ("repeat_in_step", self.repeat_in_step)):
            if given:
                raise OptionsError(
                    f"{name} needs random access to the records, and split {split!r} of {self.source!r} is a stream; "
                    f"leave {name} out"
                )

    def _preprocess_wanted(self, split: str, fields: str) -> OptionsTypeError:
        return OptionsTypeError(
            f"load({self.source!r}) needs preprocess=, a function from one row of {self.provider.prefix!r} "
            "to the fields of a batch: `preprocess(record)` or `preprocess(record, rng)`, such as "
            f"dew.data.columns(...) or dew.data.identity; a row of split {split!r} has{fields}"
        )


def _own_order(source: RecordSource, seed: int) -> Order | None:
    """The order that the source wants to be trained on in, None where any will do."""
    own = getattr(source, "order", None)
    return None if own is None else own(seed)


def _check_for_mixture(request: LoadRequest, val_dataset: object) -> None:
    """Arguments that mean one source."""
    given = {
        "records": request.records is not None,
        "streaming": request.streaming,
        "shuffle_buffer": request.shuffle_buffer > 0,
        "dataset": request.dataset is not None,
        "val_dataset": val_dataset is not None,
    }
    for name, is_given in given.items():
        if is_given:
            raise OptionsTypeError(
                f"load was given a mixture of sources and {name}, which belongs to one source; leave {name} out, "
                "or mix what load returns: Mixture({label: (dataset, weight), ...})"
            )


def _check_accepted(provider: Provider, source: str, request: LoadRequest, val_dataset: object) -> None:
    """Arguments that mean something to some providers only."""
    given = {
        "streaming": ("streaming", request.streaming),
        "shuffle_buffer": ("shuffle_buffer", request.shuffle_buffer > 0),
        "dataset": ("dataset", request.dataset is not None),
        "val_dataset": ("dataset", val_dataset is not None),
    }
    for name, (needed, is_given) in given.items():
        if is_given and needed not in provider.accepts:
            accepted = ", ".join(sorted(provider.accepts)) or "none of streaming, shuffle_buffer, dataset"
            raise OptionsTypeError(
                f"load({source!r}) was given {name}, which means nothing to the provider {provider.prefix!r}; "
                f"it accepts {accepted}: leave {name} out"
            )


def _options(provider: Provider, source: str, options: object) -> Any:
    """The options to open with: an instance of the provider's own class."""
    wanted = provider.options
    if wanted is None:
        if options is None:
            return None
        raise OptionsTypeError(
            f"the provider {provider.prefix!r} takes no options, and load({source!r}) was given {_class(type(options))}"
        )
    if options is None:
        return _default_options(wanted, source)
    if isinstance(options, wanted):
        return options
    if isinstance(options, type):
        found, advice = f"the class {_class(options)} itself", f"pass an instance, {wanted.__name__}(...)"
    else:
        found, advice = f"an instance of {_class(type(options))}", f"pass options={wanted.__name__}(...)"
    raise OptionsTypeError(f"load({source!r}) takes options of the class {_class(wanted)}, got {found}; {advice}")


def _default_options(wanted: type, source: str) -> Any:
    needed: list[str] = []
    if attrs.has(wanted):
        fields = attrs.fields(wanted)
        needed = [field.alias for field in fields if field.init and field.default is attrs.NOTHING]
    if needed:
        arguments = ", ".join(f"{name}=..." for name in needed)
        raise OptionsTypeError(f"load({source!r}) needs options={wanted.__name__}({arguments}), got none")
    return wanted()


def _class(kind: type) -> str:
    return f"{kind.__qualname__} ({kind.__module__})"


def _validation_split(val_split: str | None, options: object, val_dataset: object) -> str | None:
    """The split to validate on, None without validation. The name says nothing about a `val_dataset` that is given."""
    if val_split is None:
        val_split = getattr(options, "val_split", None)
    if val_split is None and val_dataset is not None:
        return _VAL_DATASET_SPLIT
    return val_split


def _check_overlap(source: str, split: str, val_split: str, dataset: object, val_dataset: object) -> None:
    """Refuses what is one and the same before anything is opened; `dataset_of` compares what was opened."""
    if dataset is not val_dataset:
        return
    if dataset is None and val_split != split:
        return
    names = ("split", "val_split") if dataset is None else ("dataset", "val_dataset")
    what = f"both are {split!r}" if dataset is None else "both are one object"
    raise OverlapError(
        f"load({source!r}) would validate on the records that it trains on: {names[0]} and {names[1]} {what}; "
        "validate on other records, or allow it with allow_overlap=True"
    )


def _row(source: RecordSource) -> str:
    """A row of the source in lines: its fields as it states them, else those of record 0."""
    own = getattr(source, "fields", None)
    return _stated(cast("Mapping[str, Any]", own())) if callable(own) else _fields(_first_record(source))


def _stated(fields: Mapping[str, Any], indent: str = "  ") -> str:
    lines = [
        f"{indent}{name}:\n{_stated(cast('Mapping[str, Any]', what), indent + '  ')}"
        if isinstance(what, Mapping)
        else f"{indent}{name}: {what}"
        for name, what in fields.items()
    ]
    return "\n".join(lines)


def _first_record(source: RecordSource) -> object:
    """Record 0, through a reader of its own where the source opens one."""
    own = getattr(source, "open", None)
    if own is None:
        return source[0]
    reader = own()
    try:
        return reader[0]
    finally:
        reader.close()


def _fields(record: object, indent: str = "  ") -> str:
    """One line a field: its name, and the dtype and shape of an array, or the type and value of anything else."""
    if not isinstance(record, Mapping):
        return f"{indent}no fields: it is {_value(record)}"
    lines: list[str] = []
    for name, value in cast("Mapping[object, object]", record).items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}:", _fields(cast("object", value), indent + "  ")]
        else:
            lines.append(f"{indent}{name}: {_value(value)}")
    return "\n".join(lines)


def _value(value: object) -> str:
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and shape is not None:
        return f"{dtype} {shape}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + '...'}"
