"""Parquet files as records at random access, in row groups: local or remote, with no table prepared.

The footers tell how many rows each row group has, so that all files together are one numbered sequence. A row group is
read whole, once, and kept while its rows are wanted; which groups are wanted together is `BlockOrder`'s to say. Reading
these files in a uniformly random order would read a whole row group for every row.
"""

import weakref
from typing import Any, Final

import attrs
import numpy as np

from dew.data.blocks import BlockOrder
from dew.data.errors import DamagedSourceError, SourceError
from dew.data.loading import cores_here
from dew.data.order import Places
from dew.data.source import Record
from dew_hf.fetching import Groups
from dew_hf.footers import Footers, ParquetFiles, open_footers
from dew_hf.opening import arrow
from dew_hf.sources import fitted
from dew_hf.values import Rows, rows_of

MOST_LANES: Final = 16
WINDOW_BYTES: Final = 1 << 29
"""Decoded bytes that the row groups of one window should take: with large groups there are fewer lanes. A reader holds
one window and what it has read of the next."""

JOINED_BYTES: Final = 32 << 20
"""Windows up to this size become one table, out of which a step takes its rows at once."""

_THREADS: Final = 8
_AHEAD_FROM: Final = 0.5
_AHEAD_UNTIL: Final = 0.75
"""Between these parts of a window the next one's row groups are read, one after the other."""


class GroupOrder(BlockOrder):
    """The order of row groups. It keeps its last look-up, in which a reader finds where in the order it stands.

    Attributes:
        latest: places and the records there; None before the first look-up.
    """

    latest: tuple[Places, Places] | None

    def at(self, places: Places) -> Places:
        """Records at `places` (k,) int64."""
        found = super().at(places)
        self.latest = (np.asarray(places, np.int64), found)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "latest"}

    def _forget(self) -> None:
        super()._forget()
        self.latest = None

    def standing(self, records: Places) -> tuple[int, int] | None:
        """The place of the first of `records` and the distance between them, if the last look-up holds them so."""
        places, known = self.latest or (records[:0], records[:0])
        if len(records) < 2 or len(places) < 2 or places[-1] - places[0] != len(places) - 1:
            return None
        for at in np.flatnonzero(known == records[0]).tolist():
            second = np.flatnonzero(known[at + 1 :] == records[1])
            if second.size:
                distance = int(second[0]) + 1
                if np.array_equal(known[at : at + distance * len(records) : distance], records):
                    return int(places[at]), distance
        return None


class ParquetRows:
    """The rows of parquet files as a record source; `order` is the order to read them in.

    Args:
        files: where they are.
        features: what the columns mean and the types they are cast to.
        description: how positions call the data; no location.
        background: RGB behind transparent images.
        lanes: row groups read side by side; by default at most 16, fewer where a window would exceed `WINDOW_BYTES`.

    Raises:
        SourceError: no file has a row.
    """

    def __init__(
        self,
        files: ParquetFiles,
        *,
        features: Any,
        description: str,
        background: tuple[int, int, int] = (255, 255, 255),
        lanes: int | None = None,
    ) -> None:
        footers = open_footers(files)
        if not footers.rows.any():
            raise SourceError(f"{description} holds no rows in {len(files.urls)} files")
        self._reading = _Reading(files, footers, features)
        self._description = description
        self._background = background
        self._fingerprint = footers.fingerprint()
        self.lanes = self._picked_lanes() if lanes is None else lanes
        self._orders: list[GroupOrder] = []
        self._fresh()

    def __repr__(self) -> str:
        return self._description

    def __len__(self) -> int:
        return int(self._reading.starts[-1])

    def __getitem__(self, index: int, /) -> Record:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} was asked for, there are rows 0 to {len(self) - 1}")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> Rows:
        """Rows `indices`: each row group that holds one of them is read at most once."""
        rows = np.asarray(indices, np.int64)
        groups = np.searchsorted(self._reading.starts, rows, "right") - 1
        standing = self._standing(rows)
        found = None if standing is None else self._of_window(standing, rows, groups)
        if found is None:
            found = self._of_groups(rows, groups)
        if standing is not None:
            self._read_ahead(standing)
        return rows_of(found, self.features, self._background)

    def _standing(self, records: Places) -> "_Standing | None":
        """Where in an order `records` stand, if its last look-up tells."""
        for order in self._orders:
            found = order.standing(records)
            if found is not None:
                place, distance = found
                start, stop = order.window(place)
                return _Standing(order, place, place + distance * len(records), distance, start, stop)
        return None

    def _of_window(self, standing: "_Standing", rows: Places, groups: Places) -> Any:
        """Rows out of the window's table; None where they lie in two windows, or a window is too large for one."""
        if standing.end - standing.distance >= standing.stop:
            return None
        key = standing.start, standing.distance, (standing.place - standing.start) % standing.distance
        window = self._window  # one look: another thread may put another one there
        if window.key != key or window.order is not standing.order:
            window = self._window = self._joined(key, standing)
        if window.table is None:
            return None
        at = np.minimum(np.searchsorted(window.groups, groups), len(window.groups) - 1)
        if not np.array_equal(window.groups[at], groups):
            return None
        return window.table.take(arrow().array(window.offsets[at] + rows - self._reading.starts[groups]))

    def _joined(self, key: tuple[int, int, int], standing: "_Standing") -> "_Window":
        groups = standing.order.blocks(standing.start + key[2], standing.distance)
        table = None
        if self._reading.decoded[groups].sum() <= JOINED_BYTES:
            table = arrow().concat_tables(self._groups.get(groups.tolist())).combine_chunks()
        sizes = self._reading.sizes[groups]
        return _Window(standing.order, key, groups, np.cumsum(sizes) - sizes, table)

    def _of_groups(self, rows: Places, groups: Places) -> Any:
        """Rows out of the tables of their row groups, in the order asked for."""
        by_group = np.argsort(groups, kind="stable")
        wanted, firsts = np.unique(groups[by_group], return_index=True)
        parts = np.split(rows[by_group] - self._reading.starts[groups[by_group]], firsts[1:])
        tables = self._groups.get(wanted.tolist())
        taken = [table.take(arrow().array(part)) for table, part in zip(tables, parts, strict=True)]
        back = np.empty(len(rows), np.int64)
        back[by_group] = np.arange(len(rows))
        return arrow().concat_tables(taken).combine_chunks().take(arrow().array(back))

    @property
    def features(self) -> Any:
        """The `datasets.Features` of the rows."""
        return self._reading.features

    @property
    def groups(self) -> int:
        """Number of row groups that hold rows."""
        return len(self._reading.sizes)

    @property
    def reads(self) -> int:
        """Row groups that this reader has read."""
        return self._groups.reads

    @property
    def kept(self) -> int:
        """Row groups that this reader holds, or is reading."""
        return len(self._groups)

    @property
    def waiting(self) -> int:
        """Row groups that are being read, or wait for it."""
        return self._groups.waiting

    def order(self, seed: int) -> GroupOrder:
        """Row groups in a fresh order in every epoch, `lanes` of them read side by side and shuffled together."""
        order = GroupOrder(self._reading.sizes, seed=seed, lanes=self.lanes)
        self._orders.append(order)
        return order

    def fingerprint(self) -> str:
        """Digest of the files' names, sizes and footers, in order.

        Footers state types, row groups, and as a rule the least and greatest value of each column; values that change
        and leave all of these as they are would not be seen.
        """
        return self._fingerprint

    def open(self) -> "ParquetRows":
        """A reader with row groups and threads of its own."""
        other = object.__new__(ParquetRows)
        other.__setstate__(self.__getstate__())
        return other

    def close(self) -> None:
        """Lets go of the row groups and ends the threads."""
        self._groups.close()
        self._window = _NO_WINDOW

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OF_THIS_READER}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fresh()

    def _fresh(self) -> None:
        # What a window holds, and as much of the next one, where that fits.
        self._may_read_ahead = self.lanes * self._reading.largest <= WINDOW_BYTES
        most = self.lanes * (2 if self._may_read_ahead else 1)
        self._groups = Groups(self._reading.read, most=most, threads=self._reading.threads)
        self._next = _NOTHING_COMING
        self._window = _NO_WINDOW
        weakref.finalize(self, self._groups.close)

    def _picked_lanes(self) -> int:
        lanes = MOST_LANES
        while lanes > 1 and lanes * self._reading.largest > WINDOW_BYTES:
            lanes //= 2
        return lanes

    def _read_ahead(self, standing: "_Standing") -> None:
        """Has the row groups of the next window read while this one lasts, so that there is no halt between them."""
        done = (standing.end - standing.start) / (standing.stop - standing.start)
        if not self._may_read_ahead or done <= _AHEAD_FROM:
            return
        distance = standing.distance
        first = standing.stop + (standing.place - standing.stop) % distance
        coming = self._next
        if coming.order is not standing.order or coming.key != (first, distance):
            blocks = standing.order.blocks(first, distance).tolist()
            coming = self._next = _Coming(standing.order, (first, distance), blocks)
        wanted = len(coming.groups) * (done - _AHEAD_FROM) / (_AHEAD_UNTIL - _AHEAD_FROM)
        self._groups.ahead(coming.groups[: int(wanted) + 1])


_OF_THIS_READER: Final = frozenset({"_groups", "_next", "_window", "_may_read_ahead"})


@attrs.frozen(eq=False)
class _Standing:
    """Places `place`, `place + distance`, ... before `end`, of which the first lies in the window `[start, stop)`."""

    order: GroupOrder
    place: int
    end: int
    distance: int
    start: int
    stop: int


@attrs.frozen(eq=False)
class _Window:
    """The row groups of one share of a window, and where each begins in the table of all of them."""

    order: GroupOrder | None
    key: tuple[int, int, int]
    groups: Places
    offsets: Places
    table: Any


@attrs.frozen(eq=False)
class _Coming:
    """The row groups of the next window that a share will read."""

    order: GroupOrder | None
    key: tuple[int, int]
    groups: list[int]


_NOTHING_COMING: Final = _Coming(None, (-1, 0), [])
_NO_WINDOW: Final = _Window(None, (-1, 0, 0), np.empty(0, np.int64), np.empty(0, np.int64), None)


@attrs.define(eq=False, slots=False)
class _Reading:
    """What reading a row group takes; holds nothing that is open."""

    files: ParquetFiles
    footers: Footers
    features: Any
    sizes: Places = attrs.field(init=False)
    decoded: Places = attrs.field(init=False)
    starts: Places = attrs.field(init=False)
    largest: int = attrs.field(init=False)
    _held: Places = attrs.field(init=False)
    _firsts: Places = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._held = np.flatnonzero(self.footers.rows)
        self._firsts = np.cumsum(self.footers.counts) - self.footers.counts
        self.sizes = self.footers.rows[self._held]
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        self.decoded = self.footers.group_sizes[self._held]
        self.largest = int(self.decoded.max())

    @property
    def threads(self) -> int:
        """Many for storage that answers late; for local files no more than there are idle cores, which decode."""
        remote = any("://" in url for url in self.files.urls)
        return _THREADS if remote else max(1, min(_THREADS, cores_here() - 1))

    def __getstate__(self) -> dict[str, Any]:
        """Without what the footers tell."""
        return {"files": self.files, "footers": self.footers, "features": self.features}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def file(self, group: int) -> tuple[int, int]:
        """File of a row group, and its number within that file."""
        number = int(self._held[group])
        file = int(np.searchsorted(self._firsts, number, "right")) - 1  # of files without row groups, the one after
        return file, number - int(self._firsts[file])

    def read(self, group: int) -> Any:
        """Row group `group` as a `pyarrow.Table` of one chunk a column, with the types of the features."""
        file, number = self.file(group)
        name = self.files.name(file)
        try:
            size = int(self.footers.sizes[file])
            found = self.files.group(file, number, self.footers.metadata(file), size)
            table = fitted(found, self.features)
        except Exception as error:
            error.add_note(f"in row group {number} of {name}")
            raise
        if table.num_rows != self.sizes[group]:
            raise DamagedSourceError(
                f"row group {number} of {name} holds {table.num_rows} rows, its footer said {self.sizes[group]}; "
                "the file changed while it was read"
            )
        return table.combine_chunks()
