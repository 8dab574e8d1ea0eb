"""The mesh, and which share of every global batch each process reads from it.

The one idea: a share is a set of row shards. The sharding of the batch says which rows each device holds; processes
whose devices hold the same rows read the same share, and shares are numbered by their lowest row. Nothing is taken from
the order of devices.
"""

# JAX leaves parts of its own signatures untyped.
# pyright: reportUnknownMemberType=false

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import attrs
import jax
import numpy as np
import numpy.typing as npt
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dew.data import checks
from dew.data.dataset import DataPartition
from dew.data.errors import OptionsError, OptionsTypeError, PartitionError

ROW_AXES: Final = ("data", "fsdp")
"""Mesh axes that rows are sharded over where nothing else is said, as far as the mesh has them."""


def build_mesh(
    *,
    data: int | None = None,
    fsdp: int = 1,
    sequence: int = 1,
    tensor: int = 1,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """A mesh with the axes `data`, `fsdp`, `sequence` and `tensor`, in this order; `tensor` varies fastest.

    All four axes are always there, with size 1 where nothing is asked, so that a specification can name any of them.

    Args:
        data: copies of the model, each reading rows of its own; by default what the other axes leave.
        fsdp: shards of the model, each reading rows of its own.
        sequence: parts of a sequence.
        tensor: parts of a layer.
        devices: by default all devices of all processes. One size may be -1: the rest of them.

    Raises:
        OptionsError: the sizes do not multiply to the number of devices, or several are -1.
    """
    chosen = list(cast("Sequence[Any]", jax.devices() if devices is None else devices))
    asked = {"data": data, "fsdp": fsdp, "sequence": sequence, "tensor": tensor}
    if data is None:
        asked["data"] = 1 if -1 in asked.values() else -1
    sizes = _sizes({name: 1 if size is None else size for name, size in asked.items()}, len(chosen))
    grid = mesh_utils.create_device_mesh(tuple(sizes.values()), chosen)
    return Mesh(grid, tuple(sizes))


def _sizes(asked: Mapping[str, int], devices: int) -> dict[str, int]:
    """The sizes with -1 replaced by what the others leave."""
    rest = [name for name, size in asked.items() if size == -1]
    for name, size in asked.items():
        if name not in rest:
            checks.check_count(name, size)
    if len(rest) > 1:
        raise OptionsError(f"{' and '.join(rest)} are both -1; only one axis can take the rest of the devices")
    known = {name: size for name, size in asked.items() if name not in rest}
    product = math.prod(known.values())
    shown = " * ".join(f"{name}={size}" for name, size in known.items() if size > 1) or "1"
    if rest and devices % product:
        raise OptionsError(f"{shown} = {product} does not divide the {devices} devices, so {rest[0]}=-1 has no size")
    if not rest and product != devices:
        raise OptionsError(f"{shown} = {product}, but there are {devices} devices; let one axis be -1, the rest")
    return {name: devices // product if name in rest else size for name, size in asked.items()}


def data_partition(mesh: Mesh, batch_spec: PartitionSpec | None = None) -> DataPartition:
    """This process's share of every global batch, from the rows that its devices hold.

    Processes whose devices hold the same rows (a tensor, sequence or pipeline axis that spans them) read one share
    together: same `index`, with `readers` and `reader` set.

    Args:
        mesh: the mesh of the whole run.
        batch_spec: how a batch is sharded; only its first entry, the rows, matters here. By default rows lie over the
            axes named `data` and `fsdp`, as far as the mesh has them.

    Raises:
        PartitionError: processes hold overlapping rows that are not the same, or unequal numbers of rows, or this one
            has no device in the mesh; names the processes and what they hold.
        OptionsError: the mesh has no such axis.
    """
    return row_layout(mesh, spec_axes(mesh, batch_spec)).partition(jax.process_index())


def row_order(mesh: Mesh, batch: int, batch_spec: PartitionSpec | None = None) -> npt.NDArray[np.int64]:
    """Which row of the step each row of a global array holds, (batch,) int64.

    `stream.ids(step)[row_order(mesh, batch)]` are the records of the array's rows. A fixed permutation: the identity
    for one process, and for n shares the rows 0, n, 2n, ..., then 1, n+1, ... where each share's rows lie together.

    Raises:
        PartitionError: `batch` does not divide over the row shards.
    """
    layout = row_layout(mesh, spec_axes(mesh, batch_spec))
    per_shard = layout.rows_per_shard(batch)
    order = np.empty((layout.shards, per_shard), np.int64)
    for index, held in enumerate(layout.shares):
        share = np.arange(index, batch, len(layout.shares), dtype=np.int64)
        order[sorted(held)] = share.reshape(len(held), per_shard)
    return order.reshape(batch)


def spec_axes(mesh: Mesh, batch_spec: PartitionSpec | None) -> tuple[str, ...]:
    """The mesh axes that rows are sharded over by `batch_spec`."""
    if batch_spec is None:
        return row_axes(mesh, None)
    if not isinstance(batch_spec, PartitionSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsTypeError(f"batch_spec must be a PartitionSpec or None, got {batch_spec!r}")
    entry: Any = batch_spec[0] if len(batch_spec) else None
    return row_axes(mesh, () if entry is None else entry)


def row_axes(mesh: Mesh, axes: str | Sequence[str] | None) -> tuple[str, ...]:
    """`axes` as a checked tuple of mesh axes; None means those of `data` and `fsdp` that the mesh has."""
    if axes is None:
        axes = tuple(name for name in ROW_AXES if name in mesh.axis_names)
        if not axes:
            raise OptionsError(
                f"the mesh has the axes {_listed(mesh.axis_names)}, none of them named data or fsdp; say over which "
                "ones the rows are sharded, with batch_spec=PartitionSpec(...) or batch_axes=(...), or () for none"
            )
    return mesh_axes(mesh, axes, "rows")


def mesh_axes(mesh: Mesh, axes: str | Sequence[str], what: str) -> tuple[str, ...]:
    """`axes` as a tuple of axes that the mesh has."""
    names = (axes,) if isinstance(axes, str) else tuple(axes)
    for name in names:
        if name not in mesh.axis_names:
            raise OptionsError(
                f"{what} over the mesh axis {name!r} was asked for; the mesh has {_listed(mesh.axis_names)}"
            )
    return names


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names)) or "none"


@attrs.frozen
class RowLayout:
    """Where the rows of a batch lie.

    Args:
        axes: the mesh axes that rows are sharded over.
        shards: number of row shards.
        held: process -> the row shards that its devices hold.
        shares: the distinct sets of row shards, by lowest row; share i of the batch goes to number i.
    """

    axes: tuple[str, ...]
    shards: int
    held: Mapping[int, frozenset[int]]
    shares: tuple[frozenset[int], ...]

    def partition(self, process: int) -> DataPartition:
        """The share of `process`."""
        if process not in self.held:
            raise PartitionError(
                f"process {process} has no device in the mesh, which spans the processes {_runs(self.held)}; "
                "it has no share to read"
            )
        mine = self.held[process]
        readers = sorted(other for other, held in self.held.items() if held == mine)
        return DataPartition(
            index=self.shares.index(mine),
            count=len(self.shares),
            readers=len(readers),
            reader=readers.index(process),
        )

    def rows_per_shard(self, batch: int) -> int:
        """Rows of one shard of a global batch.

        Raises:
            PartitionError: `batch` does not divide over the shards; the message names both.
        """
        checks.check_count("batch", batch)
        rows, rest = divmod(batch, self.shards)
        if rest:
            near = [n for n in (batch - rest, batch - rest + self.shards) if n > 0]
            raise PartitionError(
                f"a global batch of {batch} rows does not divide over the {self.shards} row shards of the mesh "
                f"(axes {_listed(self.axes)}); use a batch of {' or '.join(map(str, near))}"
            )
        return rows


@functools.lru_cache(maxsize=64)
def row_layout(mesh: Mesh, axes: tuple[str, ...]) -> RowLayout:
    """The layout of rows sharded over `axes`."""
    shards = math.prod(mesh.shape[name] for name in axes)
    sharding = NamedSharding(mesh, PartitionSpec(axes or None))
    placed = cast("Mapping[Any, tuple[slice, ...]]", sharding.devices_indices_map((shards,)))
    held: dict[int, set[int]] = {}
    for device, index in placed.items():
        held.setdefault(device.process_index, set()).update(range(*index[0].indices(shards)))
    frozen = {process: frozenset(held[process]) for process in sorted(held)}
    return RowLayout(axes=axes, shards=shards, held=frozen, shares=distinct_shares(frozen, shards))


def distinct_shares(held: Mapping[int, frozenset[int]], shards: int) -> tuple[frozenset[int], ...]:
    """The distinct sets among `held` (process -> row shards), by lowest row.

    Raises:
        PartitionError: two sets overlap without being equal, or are not of one size.
    """
    owners: dict[int, int] = {}
    for process, rows in held.items():
        for other in sorted({owners.setdefault(row, process) for row in rows}):
            if held[other] != rows:
                raise PartitionError(
                    f"processes {other} and {process} share some rows of the batch and not others: of {shards} row "
                    f"shards, process {other} holds {_runs(held[other])} and process {process} holds {_runs(rows)}; "
                    "arrange the mesh so that two processes hold the same rows or none in common, for instance with "
                    "axis sizes that multiply to the devices of one process"
                )
    shares = sorted(set(held.values()), key=min)
    if len({len(share) for share in shares}) > 1:
        each = "; ".join(f"process {process} holds {_runs(rows)}" for process, rows in held.items())
        raise PartitionError(
            f"the processes hold unequal numbers of the {shards} row shards: {each}; "
            "arrange the mesh so that each process holds as many as any other"
        )
    return tuple(shares)


def _runs(numbers: Mapping[int, Any] | frozenset[int]) -> str:
    """Numbers as text, with runs as `0-3`."""
    ordered = sorted(numbers)
    starts = [n for n in ordered if n - 1 not in numbers]
    ends = [n for n in ordered if n + 1 not in numbers]
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in zip(starts, ends, strict=True))
