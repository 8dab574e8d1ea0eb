"""Streams of `datasets`: how each is opened anew, in which form its rows come, and whether it has a position.

A stream is opened from its beginning for every pass and every reader, since the library's objects keep where they
stand; epochs are counted by Dew, and `set_epoch` is never called. Sources that yield Arrow tables are read as tables,
whose types are held to those of the first; others (webdataset, generators) as Python values.
"""

import copy
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

import attrs

from dew.data.errors import OptionsError, SourceError
from dew.data.provider import LoadRequest
from dew_hf.opening import (
    arrow,
    described,
    differing_types,
    format_of,
    guarded,
    hub_commit,
    inner,
    is_cast,
    library,
    short_name,
    split_files,
)
from dew_hf.options import HFOptions
from dew_hf.values import Rows, rows_of, rows_of_lists

_MOST_RESHARDED: Final = 512


@attrs.frozen(kw_only=True)
class Stream:
    """One split that can be streamed.

    Args:
        name: how positions and messages call it; no location.
        asked, split: as asked for, for messages.
        make: opens it from its beginning: an `IterableDataset` that is neither split nor shuffled nor decoded.
        arrow: whether it is read as Arrow tables.
        features: what the columns mean, None where nothing tells.
        identity: what must match to resume.
        no_position: why it has no position, None where it has one.
        options: for decoding, and for secrets that messages must not show.
        explain: what names column and files where a value does not fit, or None.
    """

    name: str
    asked: str
    split: str
    make: Callable[[], Any]
    arrow: bool
    features: Any
    identity: dict[str, Any]
    no_position: str | None
    options: HFOptions
    explain: Callable[[], str | None] = lambda: None

    @property
    def columns(self) -> Sequence[str] | None:
        """Names of the columns, None where nothing tells."""
        return None if self.features is None else list(self.features)

    def reader(self, change: Callable[[Any], Any] | None = None) -> Any:
        """The stream from its beginning, changed (split, shuffled) by `change`, in the form that `chunks` reads."""
        opened = self.make()
        opened = opened if change is None else change(opened)
        return opened.with_format("arrow") if self.arrow else opened

    def chunks(self, opened: Any, size: int) -> Iterator[Rows]:
        """The rows of `opened` (what `reader` gave), at most `size` at a time.

        Raises:
            SourceError, StorageError: it cannot be read; names the row after which.
        """
        read = 0
        tables = opened.iter(batch_size=size)
        try:
            while True:
                chunk = self._next(tables, read)
                if chunk is None:
                    return
                read += len(chunk)
                yield chunk
        finally:
            tables.close()

    def _next(self, tables: Iterator[Any], read: int) -> Rows | None:
        def read_on() -> Rows | None:
            found = next(tables, None)
            return None if found is None else self._rows(found)

        try:
            return guarded(self.asked, self.split, self.options, read_on)
        except Exception as error:
            error.add_note(f"after row {read} of this reader of {self.name}")
            if untyped := null_columns(self.features):
                error.add_note(f"columns {untyped} were null throughout the first rows: HFOptions(features=...)")
            said = self.explain() if is_cast(error) else None
            if said is None:
                raise
            raise SourceError(f"{self.name}, after row {read} of this reader: {said}") from error

    def _rows(self, found: Any) -> Rows:
        background = self.options.background
        if not self.arrow:
            return rows_of_lists(found, self.features, background)
        return rows_of(fitted(found, self.features), self.features, background)

    def first_row(self) -> Any:
        """The first row, for what a row looks like.

        Raises:
            SourceError: there is none.
        """
        chunks = self.chunks(self.reader(), 1)
        try:
            for rows in chunks:
                return rows[0]
        finally:
            cast("Any", chunks).close()
        raise SourceError(f"{self.name} holds no rows")

    def count_up_to(self, limit: int) -> int:
        """Rows there are, counted no further than `limit`."""
        counted = 0
        chunks = self.chunks(self.reader(), limit)
        try:
            for rows in chunks:
                counted += len(rows)
                if counted >= limit:
                    return limit
        finally:
            cast("Any", chunks).close()
        return counted


def named_stream(builder: Any, request: LoadRequest, split: str, *, reshard: bool) -> Stream:
    """A split that is opened by name.

    With `reshard`, a parquet file counts as one shard a row group, so that going on reads at most one of them again;
    not where there are more than 512 files, since it reads the footer of each.

    Raises:
        SplitError: there is no such split.
        OptionsError: a slice of a split, which streams do not have.
        SourceError: it cannot be read.
    """
    options: HFOptions = request.options
    datasets = library()
    parquet = format_of(builder) == "Parquet"
    arrow = isinstance(builder, datasets.ArrowBasedBuilder)

    by_groups = reshard and parquet and len(split_files(builder, split)) <= _MOST_RESHARDED

    def begin() -> Any:
        opened = guarded(request.name, split, options, lambda: builder.as_streaming_dataset(split=split))
        opened = _undecoded(opened)
        return guarded(request.name, split, options, opened.reshard) if by_groups else opened

    first = begin()

    def make() -> Any:
        # Counting row groups reads every footer: once, and copies from then on.
        return _copied(first, builder) if by_groups else begin()

    name = described(request.name, split, options)
    features = first.features
    moves = guarded(request.name, split, options, lambda: _state_moves(make()))
    if arrow and features is None:
        features = guarded(request.name, split, options, lambda: _first_features(make()))
    reason = None
    if request.shuffle_buffer:
        reason = f"shuffle_buffer={request.shuffle_buffer} is set, and what a buffer holds cannot be saved"
    elif not moves:
        reason = f"{name} keeps no state: it would start over"
    identity = {
        "source": name,
        "commit": hub_commit(builder, split),
        "files": files_digest(builder, split, options),
        "shards": first.num_shards,
        "format": format_of(builder),
    }
    return Stream(
        name=name,
        asked=request.name,
        split=split,
        make=make,
        arrow=arrow,
        features=_meant(builder, features),
        identity=identity,
        no_position=reason,
        options=options,
        explain=lambda: differing_types(builder, split),
    )


def given_stream(given: Any, request: LoadRequest, split: str) -> Stream:
    """A stream that the caller opened; it has no position, since nothing tells what it is made of.

    Raises:
        OptionsError: it is split already.
    """
    earlier = inner(given, "_distributed", "whether a stream was split already")
    if earlier is not None:
        raise OptionsError(
            f"dataset is part {earlier.rank} of {earlier.world_size} of a stream already (split_dataset_by_node), and "
            "Dew gives each process its share itself; pass the stream that it was split from"
        )
    features = given.features

    def make() -> Any:
        # A copy, since the library's objects keep where they stand; one that cannot be copied is read by turns.
        try:
            opened = _copied(given)
        except Exception:
            opened = given
        return _undecoded(opened.with_format(None))

    return Stream(
        name=f"hf({short_name(request.name)!r}, given)",
        asked=request.name,
        split=split,
        make=make,
        arrow=False,
        features=features,
        identity={},
        no_position="it was given as dataset=, and nothing tells whether a later run is given the same",
        options=request.options,
    )


def fitted(table: Any, features: Any) -> Any:
    """`table` with the columns and types of `features`; a column that is absent is null throughout.

    Raises:
        SourceError: a column is new, or its values do not fit the type that the first rows have.
    """
    datasets = library()
    schema = features.arrow_schema
    if unknown := [name for name in table.column_names if name not in features]:
        raise SourceError(
            f"columns {unknown} come up in later rows, and the first rows have only {list(features)}; "
            "state all of them in HFOptions(features=...)"
        )
    if table.schema.remove_metadata() == schema.remove_metadata():
        return table
    columns: dict[str, Any] = {}
    for field in schema:
        columns[field.name] = _fitted_column(datasets, table, field, features[field.name])
    return arrow().table(columns)


def _fitted_column(datasets: Any, table: Any, field: Any, feature: Any) -> Any:
    if field.name not in table.column_names:
        return arrow().nulls(table.num_rows, field.type)
    column = table.column(field.name)
    if column.type == field.type:
        return column
    try:
        return datasets.table.cast_array_to_feature(column, feature, allow_primitive_to_str=False)
    except (TypeError, ValueError, arrow().ArrowException) as error:
        raise SourceError(
            f"column {field.name!r} is {field.type} in the first rows and {column.type} later: {error}; "
            f"state one type for it in HFOptions(features=...)"
        ) from error


def null_columns(features: Any) -> list[str]:
    """Columns whose type is that of nothing but nulls."""
    null = arrow().null()
    return [] if features is None else [field.name for field in features.arrow_schema if field.type == null]


def files_digest(builder: Any, split: str, options: HFOptions) -> str | None:
    """Digest of the split's files: names and sizes, in order; of hub files their paths, which a commit goes with."""
    files = builder.config.data_files
    if files is None:
        return None
    names = split.split("+")
    wanted = [path for part, paths in files.items() if part in names for path in paths]
    digest = hashlib.sha256()
    for path in map(str, wanted):
        digest.update(f"{_file_identity(path, options)}\n".encode())
    return digest.hexdigest()[:32]


def _file_identity(path: str, options: HFOptions) -> str:
    if path.startswith("hf://"):
        return re.sub("@[0-9a-f]{40}(?=/)", "", path)
    if "://" not in path:
        return f"{os.path.basename(path)} {os.path.getsize(path)}"
    from fsspec import core  # pyright: ignore[reportMissingTypeStubs]

    files, inner = cast("Any", core).url_to_fs(path, **dict(options.storage_options or {}))
    return f"{inner.rpartition('/')[2]} {files.info(inner).get('size')}"


def _copied(opened: Any, *shared: Any) -> Any:
    """A stream that begins anew and keeps its own place; what is `shared` is not copied."""
    from huggingface_hub import HfFileSystem

    # A stream refers to the hub's file systems, and copying one registers it among those that are being copied.
    shared += (getattr(HfFileSystem, "_cache", None),)
    return copy.deepcopy(opened, {id(one): one for one in shared})


def _undecoded(opened: Any) -> Any:
    """Images, audio and video as they are stored: Dew decodes images, and the rest is the caller's to decode."""
    return opened if opened.features is None else opened.decode(False)


def _meant(builder: Any, features: Any) -> Any:
    """The features as the builder states them: what was left undecoded for reading is to be decoded."""
    stated = builder.info.features
    return features if stated is None or set(stated) != set(features or stated) else stated


def _state_moves(opened: Any) -> bool:
    """Whether reading a row changes the stream's state, by trying it."""
    before = opened.state_dict()
    rows = iter(opened)
    try:
        if next(rows, None) is None:
            return True  # there is no row; what reads it says so
        return opened.state_dict() != before
    finally:
        rows.close()


def _first_features(opened: Any) -> Any:
    """Columns and types of the first table."""
    datasets = library()
    tables = opened.with_format("arrow").iter(batch_size=1)
    try:
        table = next(tables, None)
    finally:
        tables.close()
    if table is None:
        return None
    return datasets.Features.from_arrow_schema(table.schema)
