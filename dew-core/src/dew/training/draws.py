"""Random keys on devices that follow the record, not the row, device or process.

A record's place in the endless order is the same on any topology; folded into a key, it gives the record the same noise
and timestep wherever its row lies.
"""

# JAX leaves parts of its own signatures untyped.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dew.data.errors import FieldError


def row_keys(key: jax.Array, batch: Mapping[str, Any], place_field: str = "place") -> jax.Array:
    """One key a row, (B,): `key` with the place of the row's record folded in. An old-style key gives (B, 2) uint32.

    The same record at the same place gets the same bits at any number of processes and devices. Means over rows may
    still differ in their last digits, since floating point sums depend on their order. Usable inside jit. Each kind of
    draw wants a key of its own, e.g. `jax.random.fold_in(key, 1)`; the step need not be folded in, since a place is
    never read twice.

    Args:
        key: the run's key, the same on every process.
        batch: holds `place_field`, (B, 2) uint32, high word first, as `train_stream(..., place_field="place")` adds it.
        place_field: its name.

    Raises:
        FieldError: no such field, or it is not (B, 2) uint32.
    """
    if place_field not in batch:
        have = ", ".join(map(str, batch)) or "none"
        raise FieldError(
            f"field {place_field!r} is missing; it holds each record's place: read the data with "
            f"place_field={place_field!r}. The batch has: {have}"
        )
    places = jnp.asarray(batch[place_field])
    if places.ndim != 2 or places.shape[1] != 2 or places.dtype != jnp.uint32:
        raise FieldError(f"field {place_field!r} is {places.shape} {places.dtype}; places are (B, 2) uint32")
    return jax.vmap(_fold, in_axes=(None, 0))(key, places)


def _fold(key: jax.Array, place: jax.Array) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(key, place[0]), place[1])
