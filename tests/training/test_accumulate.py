"""Accumulated gradients equal those of the whole batch; parts are split where they lie; no step is ever empty."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dew.data.errors import FieldError, OptionsError, OptionsTypeError, PartitionError
from dew.data.fields import shift
from dew.training import (
    accumulate,
    accumulate_mean,
    build_mesh,
    check_mass,
    data_partition,
    microbatches,
    shard_batch,
    valid_targets,
)

ROWS, WIDTH, PARTS = 16, 6, 4
NO_TARGETS = "the microbatches of this step hold 0 targets"


@pytest.fixture(autouse=True)
def strict_promotion() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"):
        yield


def make_batch() -> dict[str, np.ndarray[Any, Any]]:
    """Rows with very different numbers of targets: row r has r % 7, those of one part none."""
    draw = np.random.default_rng(0)
    mask = np.arange(WIDTH) < np.arange(ROWS)[:, None] % 7
    mask[: ROWS // PARTS] = False
    return {
        "x": draw.normal(size=(ROWS, WIDTH)).astype(np.float32),
        "y": draw.normal(size=(ROWS, WIDTH)).astype(np.float32),
        "mask": mask,
    }


def make_params() -> dict[str, jax.Array]:
    return {"scale": jnp.linspace(-1, 1, WIDTH), "shift": jnp.float32(0.3)}


def summed(params: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    error = (params["scale"] * batch["x"] + params["shift"] - batch["y"]) ** 2
    return jnp.where(batch["mask"], error, jnp.float32(0)).sum(), batch["mask"].sum()


def own_mean(params: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> jax.Array:
    total, mass = summed(params, batch)
    return total / jnp.maximum(mass, 1).astype(jnp.float32)


def close(one: Any, other: Any) -> bool:
    return jax.tree.all(jax.tree.map(lambda a, b: bool(np.allclose(a, b, rtol=1e-6, atol=1e-7)), one, other))


def placed() -> dict[str, Any]:
    return {name: jnp.asarray(value) for name, value in make_batch().items()}


class TestAccumulate:
    @pytest.mark.parametrize("count", [1, 2, 4, 16])
    def test_equals_the_whole_batch(self, count: int) -> None:
        expected = jax.value_and_grad(own_mean)(make_params(), placed())
        parts = microbatches(placed(), count)
        assert close(jax.jit(lambda p, m: accumulate(summed, p, m))(make_params(), parts), expected)
        assert close(accumulate(summed, make_params(), parts), expected)

    def test_the_plain_mean_differs(self) -> None:
        whole = jax.value_and_grad(own_mean)(make_params(), placed())
        parts = microbatches(placed(), PARTS)
        each = [own_mean(make_params(), jax.tree.map(lambda leaf, j=j: leaf[j], parts)) for j in range(PARTS)]
        value, grads = jax.jit(lambda p, m: accumulate_mean(own_mean, p, m))(make_params(), parts)
        np.testing.assert_allclose(value, np.mean(each), rtol=1e-6)
        assert abs(float(value) - float(whole[0])) > 0.1
        assert not close(grads, whole[1])

    def test_the_plain_mean_of_equal_parts_is_the_mean(self) -> None:
        even = placed() | {"mask": jnp.ones((ROWS, WIDTH), bool)}
        parts = microbatches(even, PARTS)
        assert close(accumulate_mean(own_mean, make_params(), parts), accumulate(summed, make_params(), parts))

    def test_a_part_without_targets_adds_nothing(self) -> None:
        def broken(params: jax.Array, batch: Any) -> tuple[jax.Array, jax.Array]:
            mass = batch["mask"].sum()
            return params * (batch["x"] * batch["mask"].astype(jnp.float32)).sum() / (mass > 0).astype(
                jnp.float32
            ), mass

        parts = microbatches(placed(), PARTS)
        assert np.isnan(broken(jnp.float32(1), jax.tree.map(lambda leaf: leaf[0], parts))[0])
        value, grads = accumulate(broken, jnp.float32(2), parts)
        batch = make_batch()
        mean = (batch["x"] * batch["mask"]).sum() / batch["mask"].sum()
        np.testing.assert_allclose([value, grads], [2 * mean, mean], rtol=1e-5)

    def test_an_empty_step_is_an_error(self) -> None:
        parts = microbatches(placed() | {"mask": jnp.zeros((ROWS, WIDTH), bool)}, PARTS)
        step = jax.jit(lambda p, m: accumulate(summed, p, m))
        with pytest.raises(FieldError, match=NO_TARGETS):
            accumulate(summed, make_params(), parts)
        with pytest.raises(jax.errors.JaxRuntimeError, match=NO_TARGETS):
            jax.block_until_ready(step(make_params(), parts))
        jax.block_until_ready(step(make_params(), microbatches(placed(), PARTS)))  # the next step is a step again

    def test_with_mass_the_caller_checks(self) -> None:
        step = jax.jit(lambda p, m: accumulate(summed, p, m, with_mass=True))
        value, grads, mass = step(make_params(), microbatches(placed(), PARTS))
        assert mass.dtype == jnp.int32
        assert int(mass) == make_batch()["mask"].sum()
        check_mass(mass)
        assert close((value, grads), accumulate(summed, make_params(), microbatches(placed(), PARTS)))
        empty = microbatches(placed() | {"mask": jnp.zeros((ROWS, WIDTH), bool)}, PARTS)
        value, grads, mass = step(make_params(), empty)
        assert close((value, grads), (0, {"scale": np.zeros(WIDTH), "shift": 0}))
        with pytest.raises(FieldError, match=NO_TARGETS):
            check_mass(mass)

    def test_masses_are_counted_exactly(self) -> None:
        def loss(params: jax.Array, batch: Any) -> tuple[jax.Array, jax.Array]:
            return params, batch["n"][0]

        one = 2**24 + 1
        parts = {"n": jnp.full((3, 1), one, jnp.int32)}
        assert int(accumulate(loss, jnp.float32(1), parts, with_mass=True)[2]) == 3 * one
        small = {"n": jnp.full((3, 1), 200, jnp.uint8)}
        assert int(accumulate(loss, jnp.float32(1), small, with_mass=True)[2]) == 600

    @pytest.mark.parametrize("masses", [[2**30] * 2, [2**30] * 4, [2**30] * 5, [2**31 - 1] * 9, [2**31 - 1, 1]])
    @pytest.mark.parametrize("jitted", [False, True])
    def test_more_targets_than_an_integer_of_jax_holds(self, masses: list[int], jitted: bool) -> None:
        def loss(params: jax.Array, batch: Any) -> tuple[jax.Array, jax.Array]:
            return params * batch[0].astype(jnp.float32), batch[0]

        parts = jnp.array(masses, jnp.int32)[:, None]
        step = jax.jit(accumulate, static_argnums=0) if jitted else accumulate
        value, slope = step(loss, jnp.float32(3), parts)
        np.testing.assert_allclose([value, slope], [3, 1], rtol=1e-6)
        value, slope, mass = accumulate(loss, jnp.float32(3), parts, with_mass=True)
        np.testing.assert_allclose([value, slope], [3, 1], rtol=1e-6)
        with pytest.raises(FieldError, match="mass of this step is -2147483648: a negative mass, or more targets than"):
            check_mass(mass)
        with jax.enable_x64(True):
            wide = jnp.array(masses, jnp.int64)[:, None]
            assert int(accumulate(loss, jnp.float32(3), wide, with_mass=True)[2]) == sum(masses)

    @pytest.mark.parametrize("dtype", ["int8", "int32", "uint32", "int64"])
    def test_masses_of_any_integers(self, dtype: str) -> None:
        def loss(params: jax.Array, batch: Any) -> tuple[jax.Array, jax.Array]:
            return params, batch[0]

        with jax.enable_x64(True):
            top = int(jnp.iinfo(dtype).max) >> (8 if dtype == "int64" else 0)
            parts = jnp.array([[top], [0], [3], [top], [1]], dtype)
            words = accumulate(loss, jnp.float64(1), parts, with_mass=True)
            assert float(words[0]) == pytest.approx(4 / (2 * top + 4))
            assert int(words[2]) == (2 * top + 4 if 2 * top + 4 < 2**31 or dtype == "int64" else -(2**31))
            with pytest.raises(FieldError, match="mass of this step is -"):
                accumulate(loss, jnp.float64(1), jnp.array([[1], [-2]], "int32"))

    def test_short_floats_are_summed_in_long_ones(self) -> None:
        def loss(params: jax.Array, batch: Any) -> tuple[jax.Array, jax.Array]:
            return params.sum(), batch.sum()

        value, grads = accumulate(loss, jnp.ones(2, jnp.bfloat16), jnp.ones((512, 1), jnp.int32))
        assert (value.dtype, float(value)) == (jnp.float32, 2.0)
        assert (grads.dtype, grads.tolist()) == (jnp.bfloat16, [1.0, 1.0])  # bfloat16 stops counting at 256

    @pytest.mark.parametrize(
        ("returned", "words"),
        [
            (
                (1.0, 3.0),
                r"the mass that loss returns is \(\) float32; it must be an integer scalar, since float32 stops",
            ),
            ((1.0, True), r"the mass that loss returns is \(\) bool"),
            ((1.0, [1, 2]), r"the mass that loss returns is \(2,\) int32"),
            ((1, 2), "the total that loss returns must be a float scalar, it is .*int32"),
            (([1.0, 2.0], 2), "the total that loss returns must be a float scalar"),
            (
                1.0,
                r"loss must return \(total, mass\), it returned .*; one that returns its own mean is for accumulate_",
            ),
        ],
    )
    def test_what_a_loss_may_not_return(self, returned: Any, words: str) -> None:
        def loss(params: Any, batch: Any) -> Any:
            if isinstance(returned, tuple):
                return tuple(jnp.asarray(value) for value in returned)
            return jnp.asarray(returned)

        for call in (accumulate, jax.jit(accumulate, static_argnums=0)):
            with pytest.raises(OptionsTypeError, match=words):
                call(loss, jnp.float32(1), jnp.ones((2, 1)))

    @pytest.mark.parametrize("parts", [{}, {"a": jnp.ones(())}, {"a": jnp.ones((2, 3)), "b": jnp.ones((3, 2))}])
    def test_no_first_axis(self, parts: Any) -> None:
        with pytest.raises(OptionsTypeError, match="microbatches must be arrays with one first axis"):
            accumulate(summed, make_params(), parts)
        with pytest.raises(OptionsTypeError, match="microbatches must be arrays with one first axis"):
            accumulate_mean(own_mean, make_params(), parts)

    def test_a_mean_that_is_no_scalar(self) -> None:
        with pytest.raises(OptionsTypeError, match="the mean that loss returns must be a float scalar"):
            accumulate_mean(lambda params, batch: batch, jnp.float32(1), jnp.ones((2, 3)))


class TestMicrobatches:
    def test_shapes(self) -> None:
        batch = {"a": {"x": jnp.arange(12).reshape(6, 2)}, "scale": jnp.float32(0.5)}
        parts = microbatches(batch, 3)
        assert parts["a"]["x"].tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]
        assert parts["scale"].tolist() == [0.5] * 3

    def test_refusals(self) -> None:
        batch = {"a": {"x": jnp.zeros(6)}}
        with pytest.raises(
            PartitionError, match=r"field 'a\.x' has 6 rows on each device, .* 4 microbatches; .* of 4, or"
        ):
            microbatches(batch, 4)
        with pytest.raises(OptionsError, match="count must be at least 1, got 0"):
            microbatches(batch, 0)
        with pytest.raises(
            OptionsTypeError, match=r"field 'a\.x' is a ndarray, not an array on devices; call shard_batch"
        ):
            microbatches({"a": {"x": np.zeros(6)}}, 2)
        with pytest.raises(OptionsTypeError, match=r"field 'a\.x' is traced; call microbatches outside jit"):
            jax.jit(lambda some: microbatches(some, 2))(batch)


MOVES = re.compile(r"all-gather|all-to-all|collective-permute|reduce-scatter")


def train(member: Any) -> Any:
    """Accumulates over the mesh of all devices; the same rows at any number of them."""
    mesh = build_mesh()
    partition = data_partition(mesh)
    host = {name: value[partition.index :: partition.count] for name, value in make_batch().items()}
    batch = shard_batch(mesh, host, global_batch=ROWS)
    parts = microbatches(batch, PARTS)
    step = jax.jit(lambda params, some: accumulate(summed, params, some))
    plain = jax.jit(lambda params, some: accumulate_mean(own_mean, params, some))

    def moving(params: Any, some: Any) -> Any:
        inside = jax.tree.map(lambda leaf: leaf.reshape(PARTS, ROWS // PARTS, *leaf.shape[1:]), some)
        return accumulate(summed, params, inside)

    value, grads = step(make_params(), parts)
    dark = microbatches(shard_batch(mesh, host | {"mask": np.zeros_like(host["mask"])}, global_batch=ROWS), PARTS)
    try:
        jax.block_until_ready(step(make_params(), dark))
        said = "nothing"
    except jax.errors.JaxRuntimeError as error:
        said = str(error)
    again = step(make_params(), parts)[0]
    return {
        "explicit": accumulate_with_explicit_shardings(host),
        "value": float(value),
        "again": float(again),
        "grads": jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), grads),
        "plain": float(plain(make_params(), parts)[0]),
        "local": [np.asarray(shard.data).tolist() for shard in parts["x"].addressable_shards],
        "whole": [np.asarray(shard.data).tolist() for shard in batch["x"].addressable_shards],
        "moves": MOVES.findall(step.lower(make_params(), parts).compile().as_text()),
        "moves inside": MOVES.findall(jax.jit(moving).lower(make_params(), batch).compile().as_text()),
        "said": said,
    }


def accumulate_with_explicit_shardings(host: Mapping[str, Any]) -> Any:
    """Value and sharding of the gradients, on a mesh whose shardings are part of types, with sharded parameters."""
    count = jax.device_count()
    mesh = jax.make_mesh((count // 2, 2), ("data", "fsdp"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)

    def gathered(params: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return summed(jax.tree.map(lambda leaf: jax.sharding.reshard(leaf, PartitionSpec()), params), batch)

    with jax.set_mesh(mesh):
        sharded = NamedSharding(mesh, PartitionSpec("fsdp"))
        params = make_params() | {"scale": jax.device_put(make_params()["scale"], sharded)}
        parts = microbatches(shard_batch(mesh, host, global_batch=ROWS), PARTS)
        value, grads = jax.jit(lambda p, m: accumulate(gathered, p, m))(params, parts)
        mean, _ = jax.jit(lambda p, m: accumulate_mean(lambda *some: gathered(*some)[0], p, m))(params, parts)
    return [float(value), float(mean), str(grads["scale"].sharding.spec)]


def check_training(results: list[Any], devices: int) -> None:
    value, grads = jax.value_and_grad(own_mean)(make_params(), placed())
    rows = ROWS // devices
    for result in results:
        found = {name: np.asarray(result["grads"][name]) for name in grads}
        assert close((result["value"], found), (value, grads))
        assert result["again"] == result["value"]
        total = float(summed(make_params(), placed())[0])
        np.testing.assert_allclose(result["explicit"][:2], [value, total / PARTS], rtol=1e-6)
        assert result["explicit"][2] == "P('fsdp',)"
        assert result["moves"] == [], "the compiled step moves rows between devices"
        assert result["moves inside"], "the check of the compiled step finds nothing where rows do move"
        for local, whole in zip(result["local"], result["whole"], strict=True):
            assert np.shape(local) == (PARTS, rows // PARTS, WIDTH)
            assert np.reshape(local, (rows, WIDTH)).tolist() == whole
        assert NO_TARGETS in result["said"], "an empty step must be an error on every process"


def test_nothing_moves_between_devices(run_pool: Any) -> None:
    one = run_pool(train, 1, devices_per_process=4)[0].result
    check_training([one], devices=4)
    two = [ended.result for ended in run_pool(train, 2)]
    check_training(two, devices=2)
    assert abs(one["plain"] - two[0]["plain"]) > 1e-3, "the plain mean depends on the topology, as its docstring says"


class TestValidTargets:
    BATCH: Mapping[str, Any] = {
        "text": np.array([[5, 6, 7, 8, 9, 0], [5, 6, 7, 8, 9, 4]], np.int32),
        "text_segment_ids": np.array([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1]], np.int32),
        "text_positions": np.array([[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5]], np.int32),
    }
    ROLES = np.array([[2, 3, 3, 3, 2, 0], [2, 3, 3, 0, 1, 3]], np.int32)
    PACKED = np.array([[1, 0, 1, 1, 0], [1, 1, 1, 1, 1]], bool)

    def test_packed(self) -> None:
        for batch in (self.BATCH, shift(self.BATCH)):
            mask = jax.jit(valid_targets)(batch)
            assert (np.asarray(mask) == self.PACKED).all()
            assert jnp.sum(mask).dtype == jnp.int32
        assert valid_targets({"text": self.BATCH["text"]}).all()

    def test_roles_of_the_predicted_token_decide(self) -> None:
        batch = {**self.BATCH, "text_roles": self.ROLES}
        for found in (batch, shift(batch)):
            assert (np.asarray(valid_targets(found)) == (self.PACKED & (self.ROLES[:, 1:] == 3))).all()
            both = self.PACKED & np.isin(self.ROLES[:, 1:], [1, 2])
            assert (np.asarray(valid_targets(found, roles={1, 2})) == both).all()
            assert not valid_targets(found, roles=()).any()

    def test_rows_that_are_padding(self) -> None:
        valid = np.array([True, False])
        assert (np.asarray(valid_targets({**self.BATCH, "valid": valid})) == self.PACKED & valid[:, None]).all()

    def test_no_tokens(self) -> None:
        with pytest.raises(FieldError, match=r"neither 'target_mask' nor 'text' is in the batch, .* has: image"):
            valid_targets({"image": np.zeros(2)})
