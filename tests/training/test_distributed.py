"""Shares from the mesh, in real pools: the union of all processes' rows is the one-process step, in any topology."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from dew.data.dataset import DataPartition
from dew.data.errors import FieldError, OptionsError, OptionsTypeError, PartitionError
from dew.data.stream import RecordStream, train_stream

RECORDS, BATCH, STEPS, SEED = 40, 16, 4, 3


def stream(partition: DataPartition) -> RecordStream:
    """Records that hold their own number and a vector; steps straddle epochs."""
    from dew.data.build import in_memory

    vectors = np.random.default_rng(0).normal(size=(RECORDS, 8)).astype(np.float32)
    source = in_memory({"id": np.arange(RECORDS, dtype=np.int32), "vector": vectors})
    return train_stream(source, batch=BATCH, seed=SEED, partition=partition, place_field="place")


def local_rows(array: Any) -> list[tuple[int, list[int]]]:
    """First row and values of each shard that this process holds."""
    return [(shard.index[0].start or 0, np.asarray(shard.data).tolist()) for shard in array.addressable_shards]


def merged(members: Sequence[Sequence[tuple[int, list[int]]]]) -> list[int]:
    """The whole array from what every process holds; rows held several times must agree."""
    rows: dict[int, int] = {}
    for shards in members:
        for start, values in shards:
            for at, value in enumerate(values, start):
                assert rows.setdefault(at, value) == value
    return [rows[at] for at in range(len(rows))]


def said_by(call: Callable[[], object]) -> str:
    """What an error says."""
    try:
        call()
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def train(member: Any) -> Any:
    """A few steps of a model whose noise follows the record: ids, bits of the noise, and losses."""
    import jax
    import jax.numpy as jnp

    from dew.training import build_mesh, data_partition, row_keys, row_order, shard_batch

    mesh = build_mesh(data=2, fsdp=-1)
    key = jax.random.key(7)

    @jax.jit
    def bits(batch: Mapping[str, jax.Array]) -> jax.Array:
        return jax.vmap(lambda one: jax.random.bits(one, (2,), jnp.uint32))(row_keys(key, batch))

    @jax.jit
    @jax.value_and_grad
    def loss(weights: jax.Array, batch: Mapping[str, jax.Array]) -> jax.Array:
        noise = jax.vmap(lambda one: jax.random.normal(one, (8,)))(row_keys(key, batch))
        return jnp.mean((batch["vector"] + noise - noise * weights) ** 2)

    steps, losses, weights = [], [], jnp.zeros(8)
    with stream(data_partition(mesh)) as batches:
        for _ in range(STEPS):
            batch = shard_batch(mesh, next(batches), global_batch=BATCH)
            value, slope = loss(weights, batch)
            weights = weights - 0.1 * slope
            losses.append(float(value))
            steps.append({"ids": local_rows(batch["id"]), "bits": local_rows(bits(batch))})
    order = row_order(mesh, BATCH).tolist()
    return {"steps": steps, "losses": losses, "order": order, "share": repr(data_partition(mesh))}


def test_any_process_count_trains_on_the_same_rows(run_pool: Any) -> None:
    alone = stream(DataPartition())
    noise: dict[int, list[int]] = {}  # by place in the endless order
    losses: list[float] = []
    for processes in (1, 2, 4):
        results = [ended.result for ended in run_pool(train, processes, devices_per_process=4 // processes)]
        order = results[0]["order"]
        assert sorted(order) == list(range(BATCH))
        assert order == [row for share in range(processes) for row in range(share, BATCH, processes)]
        for step in range(STEPS):
            ids = merged([result["steps"][step]["ids"] for result in results])
            assert ids == alone.ids(step)[order].tolist()
            for row, drawn in zip(order, merged([r["steps"][step]["bits"] for r in results]), strict=True):
                assert noise.setdefault(step * BATCH + row, drawn) == drawn
        losses = losses or results[0]["losses"]
        for result in results:
            np.testing.assert_allclose(result["losses"], losses, rtol=1e-6)
    assert len(noise) == BATCH * STEPS
    assert len({tuple(drawn) for drawn in noise.values()}) == len(noise), "no two places share their noise"
    alone.close()


# Name -> order of the devices (process by process, -1: backwards, or the given one), axes with their sizes, row axes.
TOPOLOGIES: dict[str, tuple[Any, dict[str, int], Any]] = {
    "rows": (None, {"data": 4}, None),
    "backwards": (-1, {"data": 4}, None),
    "woven": ([0, 2, 1, 3], {"data": 4}, None),
    "tensor": (None, {"data": 2, "tensor": 2}, None),
    "tensor outside": (None, {"tensor": 2, "fsdp": 2}, None),
    "crossed": ([0, 3, 2, 1], {"data": 2, "tensor": 2}, None),
    "everywhere": (None, {"data": 1, "tensor": 4}, None),
    "own names": (None, {"y": 2, "x": 2}, ("x", "y")),
    "no row axes": (None, {"x": 4}, ()),
}


def read_topologies(member: Any) -> Any:
    import jax
    from jax.sharding import Mesh, PartitionSpec

    from dew.training import data_partition, row_order, shard_batch

    found = {}
    for name, (order, sizes, axes) in TOPOLOGIES.items():
        devices = np.array(jax.devices())[:: -1 if order == -1 else 1]
        devices = devices[order] if isinstance(order, list) else devices
        mesh = Mesh(devices.reshape(*sizes.values()), tuple(sizes))
        spec = None if axes is None else PartitionSpec(axes or None)
        share = data_partition(mesh, spec)
        with stream(share) as batches:
            batch = shard_batch(mesh, next(batches), batch_axes=axes, global_batch=BATCH)
        found[name] = {
            "share": [share.index, share.count, share.readers, share.reader],
            "ids": local_rows(batch["id"]),
            "order": row_order(mesh, BATCH, spec).tolist(),
        }
    return found


def shares(results: Sequence[Any], name: str) -> list[list[int]]:
    return [result[name]["share"] for result in results]


def check_topologies(results: Sequence[Any]) -> None:
    """What holds at any process count."""
    with stream(DataPartition()) as alone:
        ids = alone.ids(0)
    for name in TOPOLOGIES:
        order = results[0][name]["order"]
        assert merged([result[name]["ids"] for result in results]) == ids[order].tolist(), name
        assert sorted(order) == list(range(BATCH))
        # Readers of one share have numbers 0, 1, ... and the shares are all there.
        found = [tuple(share) for share in shares(results, name)]
        assert sorted(found) == sorted(
            (i, found[0][1], found[0][2], r) for i in range(found[0][1]) for r in range(found[0][2])
        )


def test_shares_of_two_processes_with_two_devices(run_pool: Any) -> None:
    results = [ended.result for ended in run_pool(read_topologies, 2, devices_per_process=2)]
    check_topologies(results)
    assert shares(results, "rows") == [[0, 2, 1, 0], [1, 2, 1, 0]]
    assert shares(results, "backwards") == [[1, 2, 1, 0], [0, 2, 1, 0]]
    assert shares(results, "woven") == [[0, 2, 1, 0], [1, 2, 1, 0]]
    assert results[0]["woven"]["order"] == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    assert shares(results, "tensor") == [[0, 2, 1, 0], [1, 2, 1, 0]]
    for name in ("tensor outside", "crossed", "everywhere", "no row axes"):
        assert shares(results, name) == [[0, 1, 2, 0], [0, 1, 2, 1]]
        assert results[0][name]["order"] == list(range(BATCH))


def test_shares_of_four_processes(run_pool: Any) -> None:
    results = [ended.result for ended in run_pool(read_topologies, 4)]
    check_topologies(results)
    assert shares(results, "backwards") == [[3, 4, 1, 0], [2, 4, 1, 0], [1, 4, 1, 0], [0, 4, 1, 0]]
    assert shares(results, "tensor") == [[0, 2, 2, 0], [0, 2, 2, 1], [1, 2, 2, 0], [1, 2, 2, 1]]
    assert shares(results, "tensor outside") == [[0, 2, 2, 0], [1, 2, 2, 0], [0, 2, 2, 1], [1, 2, 2, 1]]
    assert shares(results, "crossed") == [[0, 2, 2, 0], [1, 2, 2, 0], [1, 2, 2, 1], [0, 2, 2, 1]]
    assert shares(results, "no row axes") == [[0, 1, 4, reader] for reader in range(4)]


def read_random_topologies(member: Any) -> Any:
    """Meshes of all devices in random order with random axes: what each process reads, or why it refuses."""
    import jax
    from jax.sharding import Mesh

    from dew.training import data_partition, row_order, shard_batch

    draw = np.random.default_rng(11)
    found = []
    for _ in range(60):
        devices = np.array(jax.devices())[draw.permutation(jax.device_count()) if draw.random() < 0.7 else slice(None)]
        names = draw.permutation(["data", "fsdp", "sequence", "tensor"])[:3]
        sizes = draw.permutation([[2, 2, 2], [4, 2, 1], [8, 1, 1]][draw.integers(3)])
        mesh = Mesh(devices.reshape(sizes), tuple(names))
        try:
            share = data_partition(mesh)
        except PartitionError as error:
            found.append({"said": str(error)})
            continue
        with stream(share) as batches:
            batch = shard_batch(mesh, next(batches), global_batch=BATCH)
        found.append({"ids": local_rows(batch["id"]), "order": row_order(mesh, BATCH).tolist()})
    return found


@pytest.mark.nightly
def test_random_topologies(run_pool: Any) -> None:
    with stream(DataPartition()) as alone:
        ids = alone.ids(0)
    for processes in (2, 4):
        members = [ended.result for ended in run_pool(read_random_topologies, processes, 8 // processes, timeout=300)]
        read = 0
        for results in zip(*members, strict=True):
            if "said" in results[0]:
                assert all(result == results[0] for result in results)
                assert re.search("share some rows of the batch and not others|unequal numbers", results[0]["said"])
                continue
            read += 1
            order = results[0]["order"]
            assert merged([result["ids"] for result in results]) == ids[order].tolist()
        assert 10 < read < 60, "both kinds of meshes were drawn"


def refused(member: Any) -> Any:
    import jax
    from jax.sharding import Mesh, PartitionSpec

    from dew.training import build_mesh, data_partition, shard_batch

    devices = jax.devices()  # three a process
    rows = build_mesh(devices=devices[:2] + devices[3:5])
    eight = {"x": {"id": np.arange(8, dtype=np.int32)}, "y": np.zeros(8, np.float32)}
    calls = {
        "overlap": lambda: data_partition(build_mesh(data=3, tensor=2)),
        "overlap placed": lambda: shard_batch(build_mesh(data=3, tensor=2), eight),
        "unequal": lambda: data_partition(Mesh(np.array(devices[:5]), ("data",))),
        "absent": lambda: data_partition(Mesh(np.array(devices[:3]), ("data",))),
        "names": lambda: data_partition(Mesh(np.array(devices), ("x",))),
        "unknown": lambda: data_partition(Mesh(np.array(devices), ("x",)), PartitionSpec("y")),
        "type": lambda: data_partition(Mesh(np.array(devices), ("x",)), "x"),  # type: ignore[arg-type]
        "whole batch": lambda: shard_batch(rows, eight, global_batch=8),
        "nobody said": lambda: shard_batch(rows, eight),
        "too few rows": lambda: shard_batch(rows, {"id": np.arange(2, dtype=np.int32)}, global_batch=8),
        "indivisible": lambda: shard_batch(rows, {"id": np.arange(3, dtype=np.int32)}),
        "indivisible batch": lambda: shard_batch(rows, {"id": np.arange(3, dtype=np.int32)}, global_batch=6),
        "sizes": lambda: build_mesh(data=4),
        "rest": lambda: build_mesh(tensor=4),
        "two rests": lambda: build_mesh(data=-1, fsdp=-1),
        "zero": lambda: build_mesh(tensor=0),
    }
    shapes = [list(build_mesh(fsdp=-1).shape.items()), list(build_mesh(tensor=2).shape.items())]
    return {"said": {name: said_by(call) for name, call in calls.items()}, "shapes": shapes}


def test_what_is_refused(run_pool: Any) -> None:
    first, second = (ended.result for ended in run_pool(refused, 2, devices_per_process=3))
    assert first["shapes"] == [
        [["data", 1], ["fsdp", 6], ["sequence", 1], ["tensor", 1]],
        [["data", 3], ["fsdp", 1], ["sequence", 1], ["tensor", 2]],
    ]
    overlap = (
        "PartitionError: processes 0 and 1 share some rows of the batch and not others: of 3 row shards, "
        "process 0 holds 0-1 and process 1 holds 1-2"
    )
    expected = {
        "overlap": overlap,
        "overlap placed": overlap,
        "unequal": "PartitionError: .* unequal numbers of the 5 row shards: process 0 holds 0-2; process 1 holds 3-4",
        "names": "OptionsError: the mesh has the axes x, none of them named data or fsdp",
        "unknown": "OptionsError: rows over the mesh axis 'y' was asked for; the mesh has x",
        "type": "OptionsTypeError: batch_spec must be a PartitionSpec or None, got 'x'",
        "whole batch": r"FieldError: field 'x\.id' has 8 rows, 4 expected: one of 2 shares of a global batch of 8; "
        "these are the rows of all processes",
        "nobody said": r"FieldError: field 'x\.id' has 8 rows here, in one of 2 processes, .* of how many: "
        r"pass global_batch=16 if they are one of 2 shares of the step, as data_partition\(mesh\) gives; "
        "if the step has 8 rows in all, read a share of it and pass global_batch=8",
        "too few rows": "FieldError: field 'id' has 2 rows, 4 expected: one of 2 shares of a global batch of 8$",
        "indivisible": "PartitionError: a global batch of 6 rows does not divide over the 4 row shards",
        "indivisible batch": "PartitionError: a global batch of 6 rows .* 4 row shards .* use a batch of 4 or 8",
        "sizes": "OptionsError: data=4 = 4, but there are 6 devices",
        "rest": "OptionsError: tensor=4 = 4 does not divide the 6 devices, so data=-1 has no size",
        "two rests": "OptionsError: data and fsdp are both -1",
        "zero": "OptionsError: tensor must be at least 1, got 0",
    }
    for member in (first["said"], second["said"]):
        for name, words in expected.items():
            assert re.match(words, member[name]), (name, member[name])
    assert first["said"]["absent"] == "nothing"
    assert re.match("PartitionError: process 1 has no device in the mesh, .* processes 0", second["said"]["absent"])


@hypothesis.given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(1, 6), st.randoms())
def test_equal_groups_in_any_order_are_shares(groups: list[int], size: int, random: Any) -> None:
    from dew.training.shares import distinct_shares

    shards = list(range(6 * size))
    random.shuffle(shards)
    held = {process: frozenset(shards[group * size : (group + 1) * size]) for process, group in enumerate(groups)}
    found = distinct_shares(held, 6 * size)
    assert set(found) == set(held.values())
    assert [min(share) for share in found] == sorted(min(share) for share in set(held.values()))


def test_groups_that_overlap_are_refused() -> None:
    from dew.training.shares import distinct_shares

    held = {0: frozenset({0, 1}), 4: frozenset({2, 3, 4, 7}), 9: frozenset({7, 8})}
    with pytest.raises(PartitionError, match=r"processes 4 and 9 .* process 4 holds 2-4, 7 and process 9 holds 7-8"):
        distinct_shares(held, 9)


class TestRowKeys:
    PLACES = np.array([[0, 5], [5, 0], [0, 6]], np.uint32)

    def test_follow_the_place_not_the_row(self) -> None:
        import jax

        from dew.training import row_keys

        key = jax.random.key(0)
        keys = row_keys(key, {"place": self.PLACES})
        again = jax.jit(row_keys)(key, {"place": self.PLACES[::-1]})
        assert keys.shape == (3,)
        assert (jax.random.key_data(keys) == jax.random.key_data(again)[::-1]).all()
        assert len(np.unique(np.asarray(jax.random.key_data(keys)), axis=0)) == 3

    def test_old_style_keys(self) -> None:
        import jax

        from dew.training import row_keys

        new = row_keys(jax.random.key(3), {"at": self.PLACES}, place_field="at")
        old = row_keys(jax.random.PRNGKey(3), {"at": self.PLACES}, "at")
        assert (np.asarray(old) == np.asarray(jax.random.key_data(new))).all()

    def test_no_places(self) -> None:
        import jax

        from dew.training import row_keys

        key = jax.random.key(0)
        with pytest.raises(
            FieldError, match=r"field 'place' is missing; .* place_field='place'\. The batch has: image"
        ):
            row_keys(key, {"image": 0})
        with pytest.raises(FieldError, match=r"field 'place' is \(3, 2\) int32; places are \(B, 2\) uint32"):
            row_keys(key, {"place": self.PLACES.astype(np.int32)})


def test_one_device() -> None:
    from jax.sharding import PartitionSpec

    from dew.training import build_mesh, data_partition, row_order
    from dew.training.shares import row_layout

    mesh = build_mesh()
    assert data_partition(mesh) == data_partition(mesh, PartitionSpec()) == DataPartition()
    assert row_order(mesh, 3).tolist() == [0, 1, 2]
    with pytest.raises(OptionsTypeError, match="batch must be an int"):
        row_layout(mesh, ("data",)).rows_per_shard(2.0)  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match="batch must be at least 1, got 0"):
        row_order(mesh, 0)
