"""Gradients of a batch too large for the devices at once: the batch in parts, divided once at the end.

The one idea: a mean over targets is a sum divided by a count. Parts hold different numbers of targets, so their means
must not be averaged; `accumulate` adds up sums and counts and divides once, which equals the mean of the whole batch.
"""

# JAX leaves parts of its own signatures untyped.
# pyright: reportUnknownMemberType=false

import functools
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from dew.data import checks
from dew.data.dataset import Batch
from dew.data.errors import FieldError, OptionsTypeError, PartitionError

Params = TypeVar("Params")
Summed: TypeAlias = Callable[[Params, Any], tuple[jax.Array, jax.Array]]
"""`loss(params, microbatch) -> (total, mass)`: the summed loss, a float scalar, and how many targets, an int scalar."""

ASSISTANT: Final = 3
"""The role id of what a model is trained to say."""


@overload
def accumulate(loss: Summed[Params], params: Params, microbatches: Any) -> tuple[jax.Array, Params]: ...
@overload
def accumulate(
    loss: Summed[Params], params: Params, microbatches: Any, *, with_mass: Literal[True]
) -> tuple[jax.Array, Params, jax.Array]: ...
def accumulate(
    loss: Summed[Params], params: Params, microbatches: Any, *, with_mass: bool = False
) -> tuple[jax.Array, Params] | tuple[jax.Array, Params, jax.Array]:
    """The mean loss over all targets of all microbatches and its gradients, one microbatch in memory at a time.

    Equal to `loss` on the whole batch, total / mass, up to the order of floating point sums, however the targets are
    spread. Totals and gradients are summed in float32 or wider. A microbatch of mass 0 adds nothing, whatever its total
    is. Masses are added up in 64 bits, whatever integers JAX has. Meant to be called inside a jitted step.

    A step without any target is an error, never NaN. Outside jit it is raised at once. Inside, the step's results raise
    a `jax.errors.JaxRuntimeError` with the same message, on every process; this costs nothing until it happens, except
    that JAX does not keep such a program in its compilation cache on disk. With `with_mass=True` the mass is returned,
    value and gradients of an empty step are 0, and the caller gives the mass to `check_mass` outside jit. A sum that
    the mass's dtype does not hold is returned as its lowest number, which `check_mass` refuses.

    Args:
        loss: `(params, microbatch) -> (total, mass)`, the mass an integer scalar: float32 stops counting at 2^24.
        params: a tree of floating point arrays.
        microbatches: a tree of arrays `(A, b, ...)`, as `microbatches` makes them.
        with_mass: also return the mass, and leave the check to the caller.

    Returns:
        value, a float scalar; gradients with the shapes and dtypes of `params`; with `with_mass` the summed mass.

    Raises:
        FieldError: outside jit, no microbatch holds a target.
        OptionsTypeError: `loss` returns something else, or `microbatches` have no common first axis.
    """
    _count(microbatches)
    total_shape, mass_shape = _summed_shapes(loss, params, microbatches)
    slope: Callable[..., Any] = jax.value_and_grad(loss, has_aux=True)

    def add(sums: Any, part: Any) -> tuple[Any, None]:
        (total, mass), slopes = slope(params, part)
        # Selected, not multiplied: what is left out may be NaN.
        new = jax.tree.map(functools.partial(jnp.where, mass != 0), (total, slopes), _zeros((total, slopes)))
        return (_plus(sums[0], new), _counted(sums[1], mass)), None

    start = (jnp.zeros((), _wide(total_shape.dtype)), _zeros(params, _wide))
    ((total, slopes), words), _ = jax.lax.scan(add, (start, _no_targets()), microbatches)
    divisor = functools.partial(_divisor, words)  # 1 in an empty step, which is reported below, and not to make NaN
    value, grads = total / divisor(total.dtype), _divided(slopes, divisor, params)
    mass = _whole(words, jnp.int64 if mass_shape.dtype.itemsize == 8 else jnp.int32)
    if with_mass:
        return value, grads, mass
    none = (words[0] < 0) | ((words[0] == 0) & (words[1] == 0))  # more than the mass's dtype holds are well divided
    if isinstance(none, Tracer):
        # On each device with its own copy of the mass, so that every process raises, not only the first.
        report: Callable[..., None] = functools.partial(jax.debug.callback, check_mass, partitioned=True)
        jax.lax.cond(none, report, _nothing, mass)
    elif none:
        check_mass(mass)
    return value, grads


def check_mass(mass: Any) -> None:
    """Raises FieldError where a step's mass says that it holds no target, or too many for its integer dtype."""
    found = int(mass)
    if found == 0:
        raise FieldError(
            "the microbatches of this step hold 0 targets, so there is no mean: every row is padding, or the mask or "
            "the roles leave nothing; look at the step's records, and leave them out or score more of them"
        )
    if found < 0:
        raise FieldError(f"the mass of this step is {found}: a negative mass, or more targets than its dtype can count")


def accumulate_mean(
    loss: Callable[[Params, Any], jax.Array], params: Params, microbatches: Any
) -> tuple[jax.Array, Params]:
    """The plain mean of the microbatches' own losses and gradients.

    Equal to the loss on the whole batch only where every microbatch weighs the same, as images of one size do. With
    unequal numbers of targets it weighs a target by how few others its microbatch holds, and since the rows of a
    microbatch depend on the number of devices and processes, so does the result: it changes with the topology. Use
    `accumulate` there.

    Args:
        loss: `(params, microbatch) -> mean`, a float scalar.
        params: a tree of floating point arrays.
        microbatches: a tree of arrays `(A, b, ...)`, as `microbatches` makes them.

    Returns:
        value, a float scalar; gradients with the shapes and dtypes of `params`.
    """
    count = _count(microbatches)
    value_shape = _shapes(loss, params, microbatches)
    _check_float_scalar("the mean that loss returns", value_shape)
    slope: Callable[..., Any] = jax.value_and_grad(loss)

    def add(sums: Any, part: Any) -> tuple[Any, None]:
        return _plus(sums, slope(params, part)), None

    start = (jnp.zeros((), _wide(value_shape.dtype)), _zeros(params, _wide))
    (value, slopes), _ = jax.lax.scan(add, start, microbatches)
    return value / count, _divided(slopes, jnp.asarray(count).astype, params)


def microbatches(batch: Mapping[str, Any], count: int) -> Batch:
    """A placed batch in `count` parts: `(B, ...)` arrays become `(count, B / count, ...)`.

    Number j of A is the local rows [j * b / A, (j + 1) * b / A) of every device's b rows, so nothing moves between
    devices, neither here nor in a step that scans over the first axis. 0-d values are repeated, `(count,)`. Called
    outside jit, after `shard_batch`; for instance both together as the `place` of a `DevicePrefetch`.

    Raises:
        PartitionError: a device's rows do not divide by `count`; names both.
        OptionsTypeError: a value is not a placed array, or is traced: inside jit the rows of a device are not known.
    """
    checks.check_count("count", count)
    return _split(batch, count, "")


def _split(batch: Mapping[str, Any], count: int, prefix: str) -> Batch:
    return {
        name: _split(cast("Mapping[str, Any]", value), count, f"{prefix}{name}.")
        if isinstance(value, Mapping)
        else _split_field(f"{prefix}{name}", value, count)
        for name, value in batch.items()
    }


def _split_field(name: str, value: Any, count: int) -> jax.Array:
    if isinstance(value, Tracer):
        raise OptionsTypeError(f"field {name!r} is traced; call microbatches outside jit, on what shard_batch returned")
    if not isinstance(value, jax.Array):
        got = type(value).__name__
        raise OptionsTypeError(
            f"field {name!r} is a {got}, not an array on devices; call shard_batch before microbatches"
        )
    sharding = value.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    elif not isinstance(sharding, SingleDeviceSharding):
        raise OptionsTypeError(f"field {name!r} has a {type(sharding).__name__}; microbatches takes a NamedSharding")
    shards = [shard.data for shard in value.addressable_shards]
    rows = shards[0].shape[0] if value.ndim else count
    if rows % count:
        raise PartitionError(
            f"field {name!r} has {rows} rows on each device, which do not divide into {count} microbatches; use "
            f"a global batch that is a multiple of {value.shape[0] // rows * count}, or a number that divides {rows}"
        )
    parts = [_split_shard(shard, count) for shard in shards]
    shape = (count, value.shape[0] // count, *value.shape[1:]) if value.ndim else (count,)
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def _split_shard(shard: jax.Array, count: int) -> jax.Array:
    """What one device holds, in parts; computed by that device alone, so in any order on the processes.

    A mesh that the caller made current with `jax.set_mesh` would forbid that, so the device's own takes its place.
    """
    with jax.set_mesh(Mesh(np.array(list(shard.devices())), ("device",))):
        if shard.ndim == 0:
            return jnp.broadcast_to(shard, (count,))
        return shard.reshape(count, shard.shape[0] // count, *shard.shape[1:])


def valid_targets(batch: Mapping[str, Any], *, roles: Collection[int] = (ASSISTANT,)) -> jax.Array:
    """Which targets of a packed or SFT batch are scored, (B, S) bool; the mass is `jnp.sum` of it, an int32.

    Takes what `dew.data.fields.shift` made (`target_mask`, `target_roles`), or token fields as read, (B, S+1): then
    position t is scored if tokens t and t+1 are of one segment that is not padding. With roles the token that is
    predicted decides, and with `valid` (B,) rows that are padding count for nothing. Usable inside jit.

    Args:
        batch: holds `target_mask`, or `text` with perhaps `text_segment_ids`; fields of roles and `valid` if there are.
        roles: role ids that are scored, where the batch has roles; by default the assistant's alone.

    Raises:
        FieldError: the batch holds neither.
    """
    if "target_mask" in batch:
        mask = jnp.asarray(batch["target_mask"])
        target_roles = jnp.asarray(batch["target_roles"]) if "target_roles" in batch else None
    elif "text" in batch:
        mask = _unshifted_mask(batch)
        target_roles = jnp.asarray(batch["text_roles"])[:, 1:] if "text_roles" in batch else None
    else:
        have = ", ".join(map(str, batch)) or "none"
        raise FieldError(
            f"neither 'target_mask' nor 'text' is in the batch, so it holds no targets. The batch has: {have}"
        )
    if target_roles is not None:
        mask &= jnp.isin(target_roles, jnp.asarray(list(roles), target_roles.dtype))
    return mask & jnp.asarray(batch["valid"])[:, None] if "valid" in batch else mask


def _unshifted_mask(batch: Mapping[str, Any]) -> jax.Array:
    if "text_segment_ids" not in batch:
        return jnp.ones_like(jnp.asarray(batch["text"])[:, 1:], bool)
    segments = jnp.asarray(batch["text_segment_ids"])
    return (segments[:, :-1] == segments[:, 1:]) & (segments[:, 1:] != 0)


def _count(microbatches: Any) -> int:
    """The length of the first axis, which all arrays share."""
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(microbatches)]
    counts = {shape[0] if shape else None for shape in shapes}
    if len(counts) != 1 or None in counts or 0 in counts:
        raise OptionsTypeError(
            f"microbatches must be arrays with one first axis, the number of microbatches; got the shapes {shapes}"
        )
    return shapes[0][0]


def _shapes(loss: Callable[..., Any], params: Any, microbatches: Any) -> Any:
    """What `loss` returns for one microbatch, as shapes and dtypes."""

    def of_first(some_params: Any, parts: Any) -> Any:
        return loss(some_params, jax.tree.map(operator.itemgetter(0), parts))

    return jax.eval_shape(of_first, params, microbatches)


def _summed_shapes(loss: Callable[..., Any], params: Any, microbatches: Any) -> tuple[Any, Any]:
    found = _shapes(loss, params, microbatches)
    if not isinstance(found, tuple) or len(cast("tuple[Any, ...]", found)) != 2:
        raise OptionsTypeError(
            f"loss must return (total, mass), it returned {found}; one that returns its own mean is for accumulate_mean"
        )
    total, mass = cast("tuple[Any, Any]", found)
    _check_float_scalar("the total that loss returns", total)
    if mass.shape != () or not jnp.issubdtype(mass.dtype, jnp.integer):
        raise OptionsTypeError(
            f"the mass that loss returns is {mass.shape} {mass.dtype}; it must be an integer scalar, since float32 "
            "stops counting at 16777216: sum a bool mask, jnp.sum(mask)"
        )
    return total, mass


def _check_float_scalar(what: str, found: Any) -> None:
    if getattr(found, "shape", None) != () or not jnp.issubdtype(found.dtype, jnp.floating):
        raise OptionsTypeError(f"{what} must be a float scalar, it is {found}")


def _wide(dtype: Any) -> Any:
    """`dtype`, or float32 where that holds more."""
    return dtype if jnp.dtype(dtype).itemsize >= 4 else jnp.float32


def _same(dtype: Any) -> Any:
    return dtype


def _zeros(tree: Any, dtype: Callable[[Any], Any] = _same) -> Any:
    """Zeros with the shapes and shardings of a tree."""

    def zeros(like: Any) -> jax.Array:
        return jnp.zeros_like(like, dtype=dtype(jnp.result_type(like)))

    return jax.tree.map(zeros, tree)


def _plus(sums: Any, new: Any) -> Any:
    """The sums with `new` added, in the dtypes of the sums."""

    def plus(so_far: Any, more: Any) -> Any:
        return so_far + more.astype(so_far.dtype)

    return jax.tree.map(plus, sums, new)


def _divided(sums: Any, divisor: Callable[[Any], jax.Array], like: Any) -> Any:
    """The sums over `divisor(dtype)`, in the dtypes of `like`."""

    def divided(total: Any, param: Any) -> Any:
        return (total / divisor(total.dtype)).astype(jnp.result_type(param))

    return jax.tree.map(divided, sums, like)


# A number of targets in 64 bits, two's complement, as (high int32, low uint32): JAX has no int64 unless it is told to.


def _no_targets() -> tuple[jax.Array, jax.Array]:
    return jnp.zeros((), jnp.int32), jnp.zeros((), jnp.uint32)


def _counted(words: tuple[jax.Array, jax.Array], mass: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The words with `mass` added, an integer of any dtype."""
    high, low = words
    above = (mass >> 32) if mass.dtype.itemsize == 8 else jnp.where(mass < 0, -1, 0)
    added = low + mass.astype(jnp.uint32)
    return high + above.astype(jnp.int32) + (added < low).astype(jnp.int32), added


def _divisor(words: tuple[jax.Array, jax.Array], dtype: Any) -> jax.Array:
    """The number as a float, at least 1."""
    high, low = words
    return jnp.maximum(high.astype(dtype) * 2.0**32 + low.astype(dtype), 1)


def _whole(words: tuple[jax.Array, jax.Array], dtype: Any) -> jax.Array:
    """The number as an integer; the lowest that there is, where `dtype` does not hold it."""
    high, low = words
    if jnp.dtype(dtype).itemsize == 8:
        return (high.astype(dtype) << 32) + low.astype(dtype)
    number = low.astype(dtype)
    return jnp.where(high == jnp.where(number < 0, -1, 0), number, jnp.iinfo(dtype).min)


def _nothing(_: Any) -> None:
    """The branch of a step that has targets."""
