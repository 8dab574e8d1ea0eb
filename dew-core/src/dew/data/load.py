"""`dew.data.load`: a `Dataset` from `"prefix/name"`, or from several such names and their weights.

This module is the signature and what can be refused by looking at the arguments alone; `dew.data.opening` does the
rest. It is imported with `dew.data`, so it imports what reading needs only when it is called.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import attrs

from dew.data import checks
from dew.data.errors import OptionsError, OptionsTypeError

if TYPE_CHECKING:
    from dew.data.dataset import Dataset
    from dew.data.loading import Loading
    from dew.data.source import Preprocess
    from dew.data.stream import Remainder


def load(
    source: "str | Mapping[str, float]",
    *,
    batch: int,
    split: "str | Mapping[str, str]" = "train",
    val_split: "str | Mapping[str, str] | None" = None,
    preprocess: "Preprocess | Mapping[str, Preprocess] | None" = None,
    options: Any = None,
    records: int | None = None,
    seed: int = 0,
    shuffle_buffer: int = 0,
    streaming: bool = False,
    dataset: Any = None,
    val_dataset: Any = None,
    val_remainder: "Remainder" = "pad",
    valid_field: str = "valid",
    allow_overlap: bool = False,
    place_field: str | None = None,
    repeat_in_step: bool = False,
    loading: "Loading | None" = None,
) -> "Dataset":
    """A `Dataset` from the provider of `"prefix/name"`, or a weighted mixture of several.

    Args:
        source: `"prefix/name"`, split at the first `/` only: `"hf/allenai/c4"`, `"tokens//data/corpus"`. Or a mapping
            of such names to weights, of any providers: see `dew.data.Mixture`, which has stages and ends besides.
            `split`, `val_split`, `preprocess` and `options` may then each be a mapping by the same names.
        batch: the GLOBAL batch: rows of one step over all processes.
        split: the split to train on.
        val_split: the split to validate on; by default `options.val_split`, where the options have one.
        preprocess: `preprocess(record)` or `preprocess(record, rng)` -> the fields of one row.
        options: an instance of the provider's options class; its defaults where they suffice.
        records: number of training records, for a stream that cannot count them.
        seed: of the order and of every record's draws, a Python int in [0, 2^64).
        shuffle_buffer: records that a stream is shuffled in; only for providers that accept it.
        streaming: read as a stream, without random access; only for providers that accept it.
        dataset: a training split that is open already, read instead of one opened by name; only where accepted.
        val_dataset: the same for validation.
        val_remainder: `"pad"` fills the last validation batch up, `"drop"` leaves it out.
        valid_field: the field, (rows,) bool, that marks the real rows of a validation batch.
        allow_overlap: validate on records that are also trained on.
        place_field: adds each record's place in the order under this name, (rows, 2) uint32.
        repeat_in_step: lets a step hold a record twice where there are fewer records than one global batch.
        loading: how fast batches are made, never what they hold; by default `Loading()`.

    Raises:
        OptionsTypeError: an argument or the options have the wrong type, an argument means nothing to the provider, or
            the provider's rows need a `preprocess`.
        OptionsError: an argument has a value that cannot be used.
        ProviderError: the provider cannot be found or used, see `dew.data.registry.Registry.find`.
        SourceError: the split is empty or smaller than one global batch.
        OverlapError: training and validation would share records.
    """
    mixed = isinstance(source, Mapping)
    names = {one: _split_source(one) for one in (source if mixed else [source])}
    _check_each(mixed, split, val_split, preprocess)
    _check_texts(valid_field=valid_field, place_field=place_field)
    _check_flags(streaming=streaming, allow_overlap=allow_overlap, repeat_in_step=repeat_in_step)
    _check_remainder(val_remainder)
    checks.check_count("batch", batch)
    checks.check_seed(seed)
    checks.check_count("shuffle_buffer", shuffle_buffer, 0)
    if records is not None:
        checks.check_count("records", records)

    from dew.data.loading import Loading
    from dew.data.opening import open_dataset, open_mixture
    from dew.data.provider import LoadRequest

    request = LoadRequest(
        name="",
        batch=batch,
        seed=seed,
        records=records,
        shuffle_buffer=shuffle_buffer,
        streaming=streaming,
        dataset=dataset,
        val_remainder=val_remainder,
        valid_field=valid_field,
        loading=Loading() if loading is None else loading,
    )
    if isinstance(source, Mapping):
        return open_mixture(
            source,
            names,
            request,
            options=options,
            preprocess=preprocess,
            split=split,
            val_split=val_split,
            val_dataset=val_dataset,
            place_field=place_field,
            repeat_in_step=repeat_in_step,
            allow_overlap=allow_overlap,
        )
    prefix, name = names[source]
    return open_dataset(
        source,
        prefix,
        attrs.evolve(request, name=name, preprocess=preprocess),
        options=options,
        split=cast("str", split),
        val_split=cast("str | None", val_split),
        val_dataset=val_dataset,
        place_field=place_field,
        repeat_in_step=repeat_in_step,
        allow_overlap=allow_overlap,
    )


def _check_each(mixed: bool, split: object, val_split: object, preprocess: object) -> None:
    """Options that a mixture may have by name."""

    def each(given: object) -> list[object]:
        return list(cast("Mapping[str, object]", given).values()) if mixed and isinstance(given, Mapping) else [given]

    for one in each(split):
        _check_texts(split=one)
    for one in each(val_split):
        _check_texts(val_split=one)
    for one in each(preprocess):
        _check_preprocess(one)


def _split_source(source: object) -> tuple[str, str]:
    """`"prefix/name"` -> prefix, name; the name may hold further slashes and is never looked at."""
    if not isinstance(source, str):
        raise OptionsTypeError(
            f'load takes a source "prefix/name", got {source!r} ({type(source).__name__}); '
            "to mix several, a mapping of such names to weights"
        )
    prefix, _, name = source.partition("/")
    if prefix.endswith(":") or (not prefix and name):
        raise OptionsError(
            f'load takes "prefix/name", and {source!r} is an address without a provider; '
            f"put one in front, for token shards 'tokens/{source}'"
        )
    if not prefix or not name:
        raise OptionsError(f'load takes "prefix/name" such as "tokens/path/to/corpus", got {source!r}')
    return prefix, name


def _check_texts(**named: object) -> None:
    for name, value in named.items():
        if value is None and name in ("val_split", "place_field"):
            continue
        if not isinstance(value, str):
            raise OptionsTypeError(f"{name} must be a str, got {value!r} ({type(value).__name__})")
        if not value:
            raise OptionsError(f"{name} must not be empty")


def _check_flags(**flags: object) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise OptionsTypeError(f"{name} must be True or False, got {value!r} ({type(value).__name__})")


def _check_preprocess(preprocess: object) -> None:
    if preprocess is not None and not callable(preprocess):
        raise OptionsTypeError(
            f"preprocess must be a function `preprocess(record)` or `preprocess(record, rng)`, got {preprocess!r} "
            f"({type(preprocess).__name__})"
        )


def _check_remainder(val_remainder: object) -> None:
    if val_remainder not in ("pad", "drop"):
        raise OptionsError(f'val_remainder must be "pad" or "drop", got {val_remainder!r}')
