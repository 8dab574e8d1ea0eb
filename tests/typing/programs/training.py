"""The training side: steps, states, positions, and batches on devices."""

from collections.abc import Mapping
from typing import Any, assert_type

import jax
import jax.numpy as jnp

from dew.data import DataPartition, Dataset, from_records, segment_mask, shift
from dew.training import Checkpoints, DevicePrefetch, Trainer, accumulate, build_mesh, data_partition, shard_batch

data = from_records({"x": jnp.arange(8)}, batch=4)
State = dict[str, jax.Array]


def step(state: State, batch: Mapping[str, Any]) -> tuple[State, dict[str, jax.Array]]:
    return state, {"loss": jnp.sum(batch["x"])}


def one_value(state: State, batch: Mapping[str, Any]) -> State:
    return state


state: State = {"w": jnp.zeros(3)}
trainer = Trainer(step, state)
assert_type(trainer.state, State)
assert_type(trainer.fit(data, steps=10), State)
trainer.fit(data, step=10)  # error: reportCallIssue
trainer.fit([1, 2, 3], steps=10)  # error: reportArgumentType
Trainer(one_value, state)  # error: reportArgumentType
Trainer(step, state, checkpoints="runs")  # error: reportArgumentType

mesh = build_mesh()
assert_type(data_partition(mesh), DataPartition)
arrays = shard_batch(mesh, next(data.train(DataPartition())))
shard_batch(next(data.train(DataPartition())), mesh)  # error: reportArgumentType

with Checkpoints("runs") as checkpoints:
    checkpoints.restore(accept="fingerprint", acept=())  # error: reportCallIssue


def loss(params: State, batch: Mapping[str, Any]) -> tuple[jax.Array, jax.Array]:
    return jnp.sum(params["w"]), jnp.sum(batch["mask"])


# The loss and its gradients; with the mass where it is asked for.
assert_type(accumulate(loss, state, arrays), tuple[jax.Array, State])
assert_type(accumulate(loss, state, arrays, with_mass=True), tuple[jax.Array, State, jax.Array])
accumulate(loss, state)  # error: reportCallIssue

# What an objective of tokens needs of a batch.
shifted = shift(next(data.train(DataPartition())))
assert_type(shifted, dict[str, Any])
segment_mask(shifted, causl=True)  # error: reportCallIssue

with DevicePrefetch(data.train(DataPartition()), lambda batch: batch) as prefetched:
    next(prefetched)


def train(trainer: Trainer[State], dataset: Dataset) -> None:
    assert_type(trainer.fit(dataset, epochs=1, checkpoint_every=100), State)
