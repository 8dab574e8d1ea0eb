"""One split as an Arrow table: rows with random access, so any process count and one integer as position.

Rows are gathered by `datasets` itself, a whole step at once, and converted by column; a file-backed table stays in its
file and pickles by path. A table in memory is written to a temporary directory the first time a worker process needs
it; the directory goes with the source, or at exit.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, cast

import attrs
import numpy as np

from dew.data.errors import OptionsError, OptionsTypeError
from dew.data.source import Record
from dew_hf.opening import inner, library
from dew_hf.values import Rows, rows_of

_SAMPLED_ROWS: Final = 64


@attrs.frozen
class Stretches:
    """Rows `[start, stop)` of whole splits of the dataset `key`."""

    key: str
    parts: tuple[tuple[str, int, int], ...]

    def shared(self, other: "Stretches") -> int:
        """Rows that lie in both."""
        if self.key != other.key:
            return 0
        pairs = [(ours, theirs) for ours in self.parts for theirs in other.parts if ours[0] == theirs[0]]
        return sum(max(0, min(ours[2], theirs[2]) - max(ours[1], theirs[1])) for ours, theirs in pairs)


def stretches_of(table: Any, key: str, split: str) -> Stretches | None:
    """Where the rows of a split expression lie, None where the table does not tell."""
    known = table.info.splits
    if not known:
        return None
    sizes = {name: info.num_examples for name, info in known.items()}
    parts = library().ReadInstruction.from_spec(split).to_absolute(sizes)
    return Stretches(key, tuple((part.splitname, part.from_ or 0, part.to or sizes[part.splitname]) for part in parts))


class ArrowRows:
    """The rows of a `datasets.Dataset` as a record source.

    Args:
        table: one split; its own format (`set_format`) is left aside, its choice of columns is kept.
        description: how positions call the data; no location.
        background: RGB behind transparent images.
        stretches: where its rows lie, for comparing splits that were opened by name.

    Raises:
        OptionsTypeError: `table` is not one split.
        OptionsError: `table` has a transform of its own, which would not be applied.
    """

    def __init__(
        self,
        table: Any,
        *,
        description: str,
        background: tuple[int, int, int] = (255, 255, 255),
        stretches: "Stretches | None" = None,
    ) -> None:
        check_split(table)
        _chosen(table)
        self._table = table
        self._description = description
        self._background = background
        self._stretches = stretches
        self._records = len(table)
        self._features = table.features
        self._spill: _Spill | None = None
        columns = table.format["columns"]
        self._columns: list[str] | None = None if set(columns) == set(table.column_names) else list(columns)

    def __repr__(self) -> str:
        return self._description

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, index: int, /) -> Record:
        if not 0 <= index < self._records:
            raise IndexError(f"row {index} was asked for, there are rows 0 to {self._records - 1}")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> Rows:
        """Rows `indices`, gathered at once; images are decoded as each row is asked for."""
        return rows_of(self._gather(indices), self.features, self._background)

    @property
    def features(self) -> Any:
        """The `datasets.Features` of the rows."""
        return self._features

    def fingerprint(self) -> str:
        """Digest of columns, types, number of rows and 64 whole rows, first and last included.

        It follows the content, not the files: a table that was moved or prepared again is recognised. A change in
        another row is not seen.
        """
        digest = hashlib.sha256(f"{self._records}\n{self.features.arrow_schema.remove_metadata()}".encode())
        chosen = np.linspace(0, self._records - 1, min(self._records, _SAMPLED_ROWS), dtype=np.int64)
        if self._records:
            for row in self._gather(sorted(set(chosen.tolist()))).to_pylist():
                _digest(digest, row)
        return digest.hexdigest()[:32]

    def shares_records_with(self, other: object) -> int:
        """Rows that both read, where both were opened by name from the same dataset; 0 where it cannot tell."""
        theirs = other._stretches if isinstance(other, ArrowRows) else None
        if self._stretches is None or theirs is None:
            return 0
        return self._stretches.shared(theirs)

    def __getstate__(self) -> dict[str, Any]:
        """By path: a table in memory is written out first, once."""
        table = self._table
        if _in_memory(table):
            if self._spill is None:
                self._spill = _Spill(table)
                # The directory belongs to this source, not to what worker processes make of its pickle.
                weakref.finalize(self, self._spill.remove)
            table = self._spill.table
        return {**self.__dict__, "_table": table, "_spill": None}

    def _gather(self, indices: list[int]) -> Any:
        """Rows as a `pyarrow.Table`, without the copies of its own description that the table's `[]` makes."""
        from datasets import formatting  # pyright: ignore[reportMissingTypeStubs]

        chosen = _chosen(self._table)
        found = cast("Any", formatting).query_table(self._table.data, indices, indices=chosen)
        return found if self._columns is None else found.select(self._columns)


class _Spill:
    """A table that was written to a temporary directory of its own."""

    def __init__(self, table: Any) -> None:
        self._process = os.getpid()
        self._path = tempfile.mkdtemp(prefix="dew-hf-")
        try:
            with _no_progress_bars():
                table.save_to_disk(self._path)
            self.table = library().load_from_disk(self._path)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Removes the directory; not in a process that was forked off."""
        if os.getpid() == self._process:
            shutil.rmtree(self._path, ignore_errors=True)


def check_split(table: Any) -> None:
    """Refuses what is not one split with random access.

    Raises:
        OptionsTypeError: a dict of splits, a stream, or something else.
        OptionsError: a table with a transform.
    """
    datasets = library()
    refuse_splits(table)
    if not isinstance(table, datasets.Dataset):
        raise OptionsTypeError(f"dataset must be a datasets.Dataset or IterableDataset, got {type(table).__name__}")
    if table.format["type"] == "custom":
        raise OptionsError(
            "dataset has a transform of its own (set_transform, with_transform), which Dew would not apply; "
            "do it in preprocess=, and pass dataset.with_format(None)"
        )


def refuse_splits(table: Any) -> None:
    """Refuses a dict of splits, naming them."""
    if isinstance(table, Mapping):
        given = cast("Mapping[Any, Any]", table)
        splits = sorted(map(str, given))
        raise OptionsTypeError(
            f"dataset must be one split, got a {type(given).__name__} with the splits {splits}; "
            f"pass dataset=splits[{splits[0] if splits else 'train'!r}], and another as val_dataset="
        )


@contextlib.contextmanager
def _no_progress_bars() -> Generator[None]:
    """Writing a table is none of the user's steps."""
    datasets = library()
    enabled = datasets.are_progress_bars_disabled() is False
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if enabled:
            datasets.enable_progress_bars()


def _chosen(table: Any) -> Any:
    """Which rows a table that was shuffled or selected from holds; None for all, in their order."""
    return inner(table, "_indices", "which rows a shuffled or selected table holds")


def _in_memory(table: Any) -> bool:
    indices = _chosen(table)
    return _table_in_memory(table.data) or (indices is not None and _table_in_memory(indices))


def _table_in_memory(table: Any) -> bool:
    kinds = library().table
    if isinstance(table, kinds.ConcatenationTable):
        return any(_table_in_memory(block) for row in table.blocks for block in row)
    return isinstance(table, kinds.InMemoryTable)


def _digest(digest: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        for name, part in cast("Mapping[str, Any]", value).items():
            digest.update(f"{{{name}".encode())
            _digest(digest, part)
    elif isinstance(value, list | tuple):
        parts = cast("Sequence[Any]", value)
        digest.update(f"[{len(parts)}".encode())
        for part in parts:
            _digest(digest, part)
    elif isinstance(value, bytes):
        digest.update(f"b{len(value)}".encode())
        digest.update(value)
    else:
        digest.update(f"{type(value).__name__} {value!r}\n".encode())
