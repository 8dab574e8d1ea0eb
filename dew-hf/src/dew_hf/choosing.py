"""Which way a split is read: as an Arrow table, as a stream, or as a stream with the position of the whole run.

What contradicts itself is refused here, before anything is opened.
"""

import logging
from typing import Any

from dew.data.errors import OptionsError, OptionsTypeError
from dew.data.provider import LoadRequest
from dew_hf.opening import described, library, open_builder, open_table, short_name
from dew_hf.options import HFOptions
from dew_hf.rows import ArrowRows, refuse_splits, stretches_of

logger = logging.getLogger("dew.hf")


def open_split(request: LoadRequest, split: str) -> Any:
    """One split: a record source where its rows can be reached at random, else a callable for each share.

    Raises:
        OptionsError, OptionsTypeError: arguments that contradict each other, or the data.
        SplitError: there is no such split; lists those there are.
        SourceNotFoundError: there is no such dataset or file.
        SourceError, StorageError: it cannot be read.
    """
    options: HFOptions = request.options
    if request.dataset is not None:
        return _open_given(request, split, options)
    _check_arguments(request, options)
    if not request.streaming:
        table = open_table(request.name, split, options)
        _check_columns(table.column_names, request, split, options)
        return ArrowRows(
            table,
            description=described(request.name, split, options),
            background=options.background,
            stretches=stretches_of(table, f"{request.name} {options}", split),
        )
    return _open_stream(request, split, options)


def _check_arguments(request: LoadRequest, options: HFOptions) -> None:
    if not request.streaming:
        if request.shuffle_buffer:
            raise OptionsError(
                f"shuffle_buffer={request.shuffle_buffer} belongs to streaming=True; without it rows have random "
                "access and every epoch is a full shuffle: leave shuffle_buffer out"
            )
        if options.position is not None:
            raise OptionsError(
                f"position={options.position!r} belongs to streaming=True; without it the position is one integer "
                "anyway: leave position out"
            )
    if options.lanes is not None and options.position is None:
        raise OptionsError(f'lanes={options.lanes} belongs to position="records"; leave it out')
    if request.shuffle_buffer and options.position is not None:
        raise OptionsError(
            f"shuffle_buffer={request.shuffle_buffer} and position={options.position!r} exclude each other: what a "
            "buffer holds cannot be saved; leave one of them out"
        )


def _open_given(request: LoadRequest, split: str, options: HFOptions) -> Any:
    datasets = library()
    argument = "val_dataset" if request.validation else "dataset"
    given = request.dataset
    refuse_splits(given)
    extra = [*options.given(), *(name for name in ("position", "lanes") if getattr(options, name) is not None)]
    if extra and not request.validation:
        raise OptionsError(
            f"{argument} is open already, and HFOptions has {', '.join(extra)}, which say how one is opened by name; "
            "leave them out"
        )
    if isinstance(given, datasets.IterableDataset):
        from dew_hf.sources import given_stream
        from dew_hf.streams import open_stream

        return open_stream(request, split, given_stream(given, request, split))
    if request.streaming and not request.validation:
        raise OptionsTypeError(
            f"{argument} is a {type(given).__name__}, which has random access, and streaming=True was given; "
            f"leave streaming out, or pass {argument}.to_iterable_dataset()"
        )
    if request.shuffle_buffer and not request.validation:
        raise OptionsError(
            f"shuffle_buffer={request.shuffle_buffer} was given with a {type(given).__name__}, whose rows have random "
            "access: every epoch is a full shuffle; leave shuffle_buffer out"
        )
    return ArrowRows(given, description=f"hf({short_name(request.name)!r}, given)", background=options.background)


def _open_stream(request: LoadRequest, split: str, options: HFOptions) -> Any:
    from dew_hf.sources import named_stream
    from dew_hf.streams import open_stream

    builder = open_builder(request.name, split, options)
    if options.position is None or request.validation:
        stream = named_stream(builder, request, split, reshard=not request.shuffle_buffer)
        _check_columns(stream.columns, request, split, options)
        return open_stream(request, split, stream)
    from dew_hf.positioned import open_positioned

    return open_positioned(builder, request, split)


def _check_columns(found: Any, request: LoadRequest, split: str, options: HFOptions) -> None:
    """`columns` of the format's own arguments, which it leaves out in silence where they are not there."""
    wanted = options.config_kwargs.get("columns")
    if wanted is None or found is None:
        return
    if unknown := [name for name in wanted if name not in found]:
        raise OptionsError(
            f"columns {unknown} were asked for, and 'hf/{short_name(request.name)}' (split {split!r}) has none of "
            f"that name; of those asked for it has {list(found)}"
        )
