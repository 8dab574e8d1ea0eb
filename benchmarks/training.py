"""The training side: the cost of placing batches ahead, how long a step waits for data, the weight of a position."""

import json
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import Figure, at_most, seconds_each
from dew.data import DataPartition, Loading, from_records
from dew.training.distributed import build_mesh, shard_batch
from dew.training.positions import PositionTable, row_of
from dew.training.prefetch import DevicePrefetch

PROCESSES = 1024


def figures() -> Iterator[Figure]:
    yield from _placing()
    yield _waiting()
    yield from _weights()


def _placing() -> Iterator[Figure]:
    ratio, _ = _ahead_beside_bare((64, 224, 224, 3), np.uint8)
    yield at_most("prefetch + shard_batch / device_put, 64 images of 224 x 224", ratio, 1.1, "x")
    ratio, added = _ahead_beside_bare((32, 2049), np.int32)
    what = f"prefetch + shard_batch / device_put, 32 x 2049 tokens ({added * 1e6:+.0f} us a batch)"
    yield at_most(what, ratio, 1.1, "x")
    # A hand-off between threads costs as much as placing these few bytes.
    _, added = _ahead_beside_bare((32, 2049), np.int32, any_thread=False)
    what = "the same, where the source belongs to one thread, against the bare loop"
    yield Figure(what=what, value=f"{added * 1e6:+.0f} us a batch", budget="")


def _ahead_beside_bare(shape: tuple[int, ...], dtype: Any, any_thread: bool | None = None) -> tuple[float, float]:
    """How many times the seconds a batch of a bare loop over the same ready batches, and how many more."""
    ready = [{"x": np.random.default_rng(seed).integers(0, 255, shape, dtype)} for seed in range(4)] * 1000
    mesh = build_mesh(data=jax.device_count())
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    bare = iter(ready)
    with DevicePrefetch(iter(ready), lambda batch: shard_batch(mesh, batch), any_thread=any_thread) as prefetch:
        variants = {
            "bare": lambda: jax.block_until_ready(jax.device_put(next(bare), sharding)),
            "ahead": lambda: jax.block_until_ready(next(prefetch)),
        }
        times = seconds_each(variants, rounds=31, calls=60)
    return times["ahead"] / times["bare"], times["ahead"] - times["bare"]


def _waiting() -> Figure:
    """Share of the time that a loop waits for its data, where a step takes about four times as long as they do."""
    side = 1024
    data = from_records({"x": np.zeros((4096, side), np.float32)}, batch=512, loading=Loading(workers=0))
    mesh = build_mesh(data=jax.device_count())
    step = jax.jit(lambda weights, x: jnp.tanh(x @ weights).T @ x / side)
    weights = jnp.eye(side)
    with DevicePrefetch(data.train(DataPartition()), lambda batch: shard_batch(mesh, batch)) as prefetch:
        for _ in range(5):
            weights = step(weights, next(prefetch)["x"]).block_until_ready()
        waited, started = prefetch.waited, time.perf_counter()
        for _ in range(100):
            weights = step(weights, next(prefetch)["x"]).block_until_ready()
        share = (prefetch.waited - waited) / (time.perf_counter() - started)
    return at_most("waiting for data, the step longer than its data", 100 * share, 2, "% of the time")


def _weights() -> Iterator[Figure]:
    stream: Any = from_records({"x": np.arange(64)}, batch=8).train(DataPartition())
    states = {"records": stream.get_state(), "shard": {"offset": 123_456}}
    for kind, state in states.items():
        sizes = [_bytes(state, count) for count in (1, PROCESSES)]
        each = (sizes[1] - sizes[0]) / (PROCESSES - 1)
        what = f"position of the {kind} kind: {sizes[0]} bytes, and for each further process"
        yield at_most(what, each, 256, "bytes")


def _bytes(state: Any, count: int) -> int:
    shares = [DataPartition(index, count) for index in range(count)]
    rows = [row_of(state, process=p, processes=count, partition=share) for p, share in enumerate(shares)]
    return len(json.dumps(PositionTable(tuple(rows)).to_json()))
