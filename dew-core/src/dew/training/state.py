"""The state of a run on its mesh: whatever does not lie there yet is copied to every device."""

# JAX leaves parts of its own signatures untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import functools
import hashlib
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dew.data.errors import PoolError
from dew.training.agreement import exchange

State = TypeVar("State")


def on_mesh(mesh: Mesh, state: State) -> State:
    """`state` with its arrays on the mesh: those that are not on all of its devices are replicated over it.

    Python's own numbers stay as they are. All processes call it.

    Raises:
        PoolError: an array to be replicated differs between processes; names it.
    """
    devices = set(mesh.devices.flat)
    leaves, tree = jax.tree.flatten_with_path(state)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    away = [at for at, (_, leaf) in enumerate(leaves) if _is_array(leaf) and not _is_on(devices, leaf)]
    hosts = {at: _host(leaves[at][1]) for at in away}
    if jax.process_count() > 1:
        _check_same({names[at]: host for at, host in hosts.items()})
    place = functools.partial(_replicated, NamedSharding(mesh, PartitionSpec()))
    placed = [place(leaf, hosts[at]) if at in hosts else leaf for at, (_, leaf) in enumerate(leaves)]
    return jax.tree.unflatten(tree, placed)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _is_on(devices: set[Any], leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.sharding.device_set == devices


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _host(leaf: Any) -> Any:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _replicated(sharding: NamedSharding, leaf: Any, host: Any) -> jax.Array:
    host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype))  # a copy, so that nobody else can write to it
    placed = jax.make_array_from_process_local_data(sharding, host, host.shape)
    return jax.random.wrap_key_data(placed, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else placed


def _check_same(hosts: dict[str, Any]) -> None:
    """Every process has the same values; only their digests travel."""
    said = exchange("placing the state", lambda: {name: _digest(host) for name, host in hosts.items()})
    for process, digests in enumerate(said):
        for name in {**said[0], **digests}:
            if digests.get(name) != said[0].get(name):
                raise PoolError(
                    f"state{name} in process {process} is not what it is in process 0; make the state in the same way "
                    "everywhere, with one seed, or on the mesh, with shardings"
                )


def _digest(host: Any) -> str:
    head = f"{host.dtype}{host.shape}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(host).tobytes()).hexdigest()
