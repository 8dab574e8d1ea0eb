"""A step of one process becomes global arrays: rows over the batch axes, a sequence axis only where it is named.

The one idea: what is placed is what was read, or nothing. Every field is checked before the first array is made, and
refused by its name where JAX would narrow it, stretch it or fail without saying which field it was. The checks need
only names, shapes and dtypes, which hardly change: they are made once for each combination, and give a plan.
"""

# JAX leaves parts of its own signatures untyped.
# pyright: reportUnknownMemberType=false

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dew.data import checks
from dew.data.dataset import Batch
from dew.data.errors import FieldError, OptionsError, OptionsTypeError
from dew.data.fields import CONTRACTS
from dew.training.shares import RowLayout, mesh_axes, row_axes, row_layout

Array: TypeAlias = npt.NDArray[Any]
_Field: TypeAlias = tuple[str, tuple[int, ...], np.dtype[Any]]  # its name with dots, shape and dtype

_ALIGNED: Final = 64  # bytes; JAX uses a host buffer that starts there as it is, without a copy of its own
_UNSHIFTED: Final = frozenset(
    (field.name, field.axes.index("S+1")) for fields in CONTRACTS.values() for field in fields if "S+1" in field.axes
)
_NARROW: Final = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


def _axes_by_field(value: Mapping[str, int]) -> dict[str, int]:
    if not isinstance(value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsTypeError(f"sequence must map field names to axes, such as {{'inputs': 1}}, got {value!r}")
    return {name: checks.check_count(f"sequence[{name!r}]", axis) for name, axis in value.items()}


def _pairs(value: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(value.items()))


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _fields(value: frozenset[str] | set[str] | Sequence[str]) -> frozenset[str]:
    if isinstance(value, str):
        raise OptionsTypeError(f"narrow must be a set of field names, such as {{{value!r}}}, got the text {value!r}")
    return frozenset(value)


@attrs.frozen(kw_only=True, cache_hash=True)
class Placement:
    """What is asked for single fields; a field inside nested dicts is named with dots, `"chosen.inputs"`.

    Args:
        sequence: field -> which of its axes (1 or more) is the sequence; that axis is sharded over `sequence_axes`.
            Never guessed: a field that is not named has only its rows sharded.
        sequence_axes: mesh axes for sequences.
        narrow: fields that may be cast to 32 bits: int64 and uint64 if every value fits, float64 if none becomes
            infinite. By default such a field is refused, unless JAX runs with 64 bits.
    """

    sequence: Mapping[str, int] = attrs.field(factory=dict[str, int], converter=_axes_by_field, eq=_pairs)
    sequence_axes: tuple[str, ...] = attrs.field(default=("sequence",), converter=_names)
    narrow: frozenset[str] = attrs.field(default=frozenset(), converter=_fields)


def shard_batch(
    mesh: Mesh,
    batch: Mapping[str, Any],
    *,
    batch_axes: str | Sequence[str] | None = None,
    placement: Placement = Placement(),
    global_batch: int | None = None,
) -> Batch:
    """Global arrays of one step, from this process's share of it; every process of the mesh calls it with its own.

    Array rows 0, 1, ... of a share's shards are the share's rows in order, so the rows of one process lie together:
    `row_order` says which row of the step stands where. For one process it is the order of the step. Dtypes are kept.
    `batch` may be reused and written to as soon as the call returns: the arrays hold copies.

    Args:
        mesh: the mesh of the whole run.
        batch: field -> host array with rows first, `(rows, ...)`, or a nested dict of such; 0-d values are replicated
            and must be the same everywhere. Strings stay on the host: encode them, or take them out.
        batch_axes: mesh axes of the rows; by default `data` and `fsdp`, as far as the mesh has them.
        placement: sequence axes and casts of single fields.
        global_batch: rows of the step over all processes, `Dataset.batch` without a ramp: what is handed over must be
            this process's share of them. Several processes must give it, since a process that hands over the whole
            batch cannot be told from one that hands over its share of a larger one.

    Raises:
        FieldError: a field has a dtype that the devices do not take as it is, other rows than its share or than the
            other fields, or a sequence axis that does not divide; names the field. `global_batch` is missing.
        PartitionError: the batch does not divide over the devices, or the processes' rows overlap.
        OptionsError: an axis that the mesh does not have, or a field in `placement` that the batch does not have.
    """
    fields: list[_Field] = []
    hosts: list[Array] = []
    flat = _collect(batch, "", fields, hosts)
    axes = batch_axes if batch_axes is None else _names(batch_axes)
    plan = _plan(mesh, axes, placement, global_batch, tuple(fields), _wide())
    placed = _place(plan, [_owned(*each) for each in zip(fields, hosts, plan.dtypes, strict=True)])
    return dict(zip(batch, placed, strict=True)) if flat else _nested(batch, iter(placed))


def _wide() -> bool:
    """Whether JAX has 64 bits in this thread."""
    return cast("Any", jax.config).jax_enable_x64


@attrs.frozen
class _Plan:
    """How the fields of a batch are placed, in their order: the dtypes they get, their shardings and global shapes.

    `together` is the shardings as `jax.device_put` takes them soonest: one for all where they are the same.
    """

    dtypes: tuple[np.dtype[Any], ...]
    shardings: list[NamedSharding]
    shapes: tuple[tuple[int, ...], ...]
    together: NamedSharding | list[NamedSharding]


@functools.lru_cache(maxsize=512)
def _plan(
    mesh: Mesh,
    batch_axes: tuple[str, ...] | None,
    placement: Placement,
    global_batch: int | None,
    fields: tuple[_Field, ...],
    wide: bool,  # whether JAX has 64 bits: only so that this is looked up again where it changes
) -> _Plan:
    """Checks everything that can be known without the values, and says how they are placed."""
    layout = row_layout(mesh, row_axes(mesh, batch_axes))
    shapes = {name: shape for name, shape, _ in fields}
    for name, shape, dtype in fields:
        _check_held(name, shape, dtype)
    _check_named(shapes, placement)
    count = layout.partition(jax.process_index()).count
    _check_rows({name: shape[0] for name, shape in shapes.items() if shape}, layout, count, global_batch)
    specs = [_spec(mesh, layout, name, shape, placement) for name, shape, _ in fields]
    shardings = [NamedSharding(mesh, spec) for spec in specs]
    return _Plan(
        dtypes=tuple(_dtype(name, shape, dtype, name in placement.narrow) for name, shape, dtype in fields),
        shardings=shardings,
        shapes=tuple((shape[0] * count, *shape[1:]) if shape else () for _, shape, _ in fields),
        together=shardings[0] if len(set(shardings)) == 1 else shardings,
    )


def rows_in(batch: Any) -> int:
    """Rows of the first array that has any; 0 where none has."""
    leaves: list[Any] = jax.tree.leaves(batch)
    return next((np.shape(leaf)[0] for leaf in leaves if np.ndim(leaf)), 0)


def _collect(batch: Mapping[str, Any], prefix: str, fields: list[_Field], hosts: list[Array]) -> bool:
    """Adds every field of a batch, in order; returns whether none is nested."""
    if not isinstance(batch, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsTypeError(f"a batch is a mapping of field names to arrays, got a {type(batch).__name__}")
    flat = True
    for name, value in batch.items():
        host = value
        if type(value) is not np.ndarray:  # an array, as nearly always, is asked nothing else
            if isinstance(value, Mapping):
                _collect(cast("Mapping[str, Any]", value), f"{prefix}{name}.", fields, hosts)
                flat = False
                continue
            host = _host(f"{prefix}{name}", value)
        fields.append((f"{prefix}{name}", host.shape, host.dtype))
        hosts.append(host)
    return flat


def _nested(batch: Mapping[str, Any], placed: Iterator[jax.Array]) -> Batch:
    """The placed fields, which come in the order of `_collect`, nested as the batch is."""
    return {
        name: _nested(cast("Mapping[str, Any]", value), placed) if isinstance(value, Mapping) else next(placed)
        for name, value in batch.items()
    }


def _host(name: str, value: Any) -> Array:
    """The value as an array."""
    if isinstance(value, jax.Array):
        raise FieldError(
            f"field {name!r} is on devices already; shard_batch takes host arrays, as streams deliver them"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise FieldError(f"field {name!r} is a masked array, whose mask would be lost; make it a field of its own")
    if not isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
        raise FieldError(f"field {name!r} is a {type(value).__name__}; every field is an array with one row a record")
    return np.asarray(value)


def _check_held(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if not _is_held(dtype):
        raise FieldError(
            f"field {name!r} is {shape} {dtype}, which no device holds: turn it into numbers in preprocess "
            "or with a condition encoder, or take it out of the batch"
        )
    if not dtype.isnative:
        raise FieldError(
            f"field {name!r} is {shape} of the big-endian dtype {dtype.str}; devices take this machine's "
            'byte order: cast with value.astype(value.dtype.newbyteorder("="))'
        )


def _is_held(dtype: np.dtype[Any]) -> bool:
    """Whether devices have numbers of this kind; not text, objects, dates, spans of time, and `longdouble`."""
    if dtype.kind in "mM" or dtype.itemsize > {"f": 8, "c": 16}.get(dtype.kind, dtype.itemsize):
        return False
    return dtype == np.bool_ or jnp.issubdtype(dtype, jnp.number)


def _check_named(shapes: Mapping[str, Any], placement: Placement) -> None:
    for option, names in (("sequence", placement.sequence), ("narrow", placement.narrow)):
        for name in names:
            if name not in shapes:
                raise OptionsError(
                    f"placement.{option} names the field {name!r}, which the batch does not have; "
                    f"it has: {', '.join(shapes) or 'none'}"
                )


def _check_rows(sized: Mapping[str, int], layout: RowLayout, count: int, global_batch: int | None) -> None:
    """Every field has the rows of one of `count` shares, and these divide over the devices."""
    if global_batch is not None:
        layout.rows_per_shard(global_batch)
        _check_share(sized, global_batch // count, global_batch, count)
    if not sized:
        return
    first, rows = next(iter(sized.items()))
    for name, other in sized.items():
        if other != rows:
            raise FieldError(
                f"field {name!r} has {other} rows and {first!r} has {rows}; every field has one row a record"
            )
    if rows == 0:
        raise FieldError(f"field {first!r} has no rows; a step has at least one row a device")
    layout.rows_per_shard(rows * count)
    if global_batch is None and jax.process_count() > 1:
        raise FieldError(
            f"field {first!r} has {rows} rows here, in one of {jax.process_count()} processes, and it was not said of "
            f"how many: pass global_batch={rows * count} if they are one of {count} shares of the step, as "
            f"data_partition(mesh) gives; if the step has {rows} rows in all, read a share of it and pass "
            f"global_batch={rows}"
        )


def _check_share(sized: Mapping[str, int], expected: int, global_batch: int, count: int) -> None:
    for name, rows in sized.items():
        if rows != expected:
            whole = (
                "; these are the rows of all processes: read with data_partition(mesh)" if rows == global_batch else ""
            )
            raise FieldError(
                f"field {name!r} has {rows} rows, {expected} expected: one of {count} shares of a global batch of "
                f"{global_batch}{whole}"
            )


def _spec(mesh: Mesh, layout: RowLayout, name: str, shape: tuple[int, ...], placement: Placement) -> PartitionSpec:
    axis = placement.sequence.get(name)
    if axis is None:
        return PartitionSpec(layout.axes or None) if shape else PartitionSpec()
    if axis >= len(shape):
        raise FieldError(f"field {name!r} is {shape}; it has no axis {axis} for placement.sequence")
    if (name.rpartition(".")[2], axis) in _UNSHIFTED:
        raise FieldError(
            f"field {name!r} is {shape}: S+1 tokens, of which inputs and targets overlap, do not divide over a "
            "sequence axis; make inputs and targets with dew.data.fields.shift and name those"
        )
    axes = mesh_axes(mesh, placement.sequence_axes, f"the sequence of field {name!r}")
    if both := set(axes) & set(layout.axes):
        raise OptionsError(
            f"mesh axis {', '.join(sorted(both))} was asked for the rows and for the sequence of field {name!r}; an "
            "axis can take one of them"
        )
    parts = math.prod(mesh.shape[part] for part in axes)
    if shape[axis] % parts:
        hint = "; one token less would: is it shifted? dew.data.fields.shift makes S of S+1"
        raise FieldError(
            f"field {name!r} is {shape}: axis {axis} of length {shape[axis]} does not divide over {parts} "
            f"devices (mesh axes {', '.join(axes)}){hint if shape[axis] % parts == 1 else ''}"
        )
    return PartitionSpec(layout.axes or None, *[None] * (axis - 1), axes or None)


def _dtype(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], narrow: bool) -> np.dtype[Any]:
    """What the field becomes on the devices."""
    if narrow:
        return np.dtype(_NARROW.get(dtype.name, dtype))
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise _would_narrow(name, shape, dtype)
    return dtype


def _owned(field: _Field, host: Array, dtype: np.dtype[Any]) -> Array:
    """A copy that only JAX will hold, cast where that was asked for.

    JAX may use a host buffer as the memory of a CPU device, or read it after it returned; so it gets one that nobody
    else has. That one begins where JAX needs no copy of its own, so there is one copy in all.
    """
    memory = np.empty(host.size * dtype.itemsize + _ALIGNED, np.uint8)
    own: Array = np.ndarray(host.shape, dtype, buffer=memory, offset=-memory.ctypes.data % _ALIGNED)
    if dtype == host.dtype:
        own[...] = host
    else:
        _cast(field[0], host, own)
    return own


def _would_narrow(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> FieldError:
    narrow = _NARROW[dtype.name]
    top = name.partition(".")[0]
    return FieldError(
        f"field {name!r} is {shape} {dtype}, which JAX would make {narrow} without a word; make it {narrow} "
        f'in preprocess (for instance dew.data.columns({top}="{narrow}")), or allow it here with '
        f"Placement(narrow={{{name!r}}})"
    )


def _cast(name: str, host: Array, own: Array) -> None:
    """Copies into fewer bits, and refuses a value that they do not hold."""
    with np.errstate(over="ignore"):
        np.copyto(own, host, casting="unsafe")
    lost = own != host if host.dtype.kind in "iu" else np.isinf(own) & ~np.isinf(host)
    if lost.any():
        where = tuple(int(at) for at in np.argwhere(lost)[0])
        row = f" in row {where[0]}" if where else ""
        raise FieldError(
            f"field {name!r} holds {host[where]}{row}, which {own.dtype} does not hold, so it cannot be narrowed from "
            f"{host.dtype}; change the data, or run JAX with 64 bits"
        )


def _place(plan: _Plan, owned: list[Array]) -> list[jax.Array]:
    if jax.process_count() == 1:  # the same as below, in one call and quicker
        return jax.device_put(owned, plan.together) if len(owned) != 1 else [jax.device_put(owned[0], plan.together)]
    make = cast("Callable[..., jax.Array]", jax.make_array_from_process_local_data)
    return [make(*field) for field in zip(plan.shardings, owned, plan.shapes, strict=True)]
