"""Batches on devices: kept as they are or refused by field name; rows and named sequence axes where they belong."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh

from dew.data.errors import FieldError, OptionsError, OptionsTypeError, PartitionError
from dew.training import Placement, build_mesh, data_partition, microbatches, shard_batch

ROWS = 4


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return build_mesh(devices=jax.devices()[:1])


@pytest.fixture
def wide() -> Iterator[None]:
    """JAX with 64 bits."""
    with jax.enable_x64(True):
        yield


def field(dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    return (np.arange(ROWS * int(np.prod(shape)), dtype=np.int64) % 2).reshape(ROWS, *shape).astype(dtype)


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "uint8", "int8", "uint16", "int32", "uint32", "float16", "float32", "complex64"),
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e5m2,
    ],
    ids=str,
)
def test_dtypes_are_kept(mesh: Mesh, dtype: Any) -> None:
    host = field(dtype, 3)
    placed = shard_batch(mesh, {"x": host})["x"]
    assert placed.dtype == host.dtype
    assert (np.asarray(placed) == host).all()


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
def test_a_dtype_that_jax_would_narrow_is_refused(mesh: Mesh, dtype: str) -> None:
    narrow = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}[dtype]
    words = (
        rf"field 'meta\.label' is \(4, 2\) {dtype}, which JAX would make {narrow} without a word; .*"
        rf'columns\(meta="{narrow}"\).* Placement\(narrow={{\'meta\.label\'}}\)'
    )
    with pytest.raises(FieldError, match=words):
        shard_batch(mesh, {"image": field("uint8"), "meta": {"label": field(dtype, 2)}})


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
@pytest.mark.usefixtures("wide")
def test_with_64_bits_nothing_is_narrowed(mesh: Mesh, dtype: str) -> None:
    assert shard_batch(mesh, {"x": field(dtype)})["x"].dtype == dtype
    assert shard_batch(mesh, {"x": field(dtype)}, placement=Placement(narrow={"x"}))["x"].dtype != dtype


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([-(2**31), 2**31 - 1]), "int32"),
        (np.array([0, 2**32 - 1], np.uint64), "uint32"),
        (np.array([0.1, -1e38]), "float32"),
        (np.array([np.inf, np.nan]), "float32"),
        (np.array([1, 2], np.int32), "int32"),  # another source may deliver what fits already
        (np.zeros((2, 0)), "float32"),
    ],
)
def test_narrowed_where_asked(mesh: Mesh, values: np.ndarray[Any, Any], dtype: str) -> None:
    placed = shard_batch(mesh, {"a": {"x": values}}, placement=Placement(narrow={"a.x"}))["a"]["x"]
    assert placed.dtype == dtype
    np.testing.assert_array_equal(np.asarray(placed), values.astype(dtype))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.array([1, 3_000_000_000]), "holds 3000000000 in row 1, which int32 does not hold, .* from int64"),
        (np.array([[0, 0], [0, -(2**31) - 1]]), "holds -2147483649 in row 1"),
        (np.array([2**32], np.uint64), "holds 4294967296 in row 0, which uint32"),
        (np.array([0.1, 1e300]), r"holds 1e\+300 in row 1, which float32 does not hold"),
        (np.array([-1e39]), r"holds -1e\+39 in row 0"),
        (np.float64(1e300), r"holds 1e\+300, which float32 does not hold"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(mesh: Mesh, values: Any, words: str) -> None:
    with pytest.raises(FieldError, match=f"field 'x' {words}"):
        shard_batch(mesh, {"x": values}, placement=Placement(narrow={"x"}))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.array(["a"] * ROWS), r"\(4,\) <U1, which no device holds"),
        (np.array([b"a"] * ROWS), r"\(4,\) \|S1, which no device holds"),
        (np.array([{}] * ROWS), r"\(4,\) object, which no device holds: turn it into numbers"),
        (np.array(["2024-01-01"] * ROWS, "datetime64[s]"), r"\(4,\) datetime64\[s\], which no device holds"),
        (np.zeros(ROWS, "timedelta64[s]"), r"\(4,\) timedelta64\[s\], which no device holds"),
        (np.zeros(ROWS, [("a", "i4")]), r"\(4,\) \[\('a', '<i4'\)\], which no device holds"),
        (np.zeros(ROWS, np.clongdouble), r"\(4,\) complex\d+, which no device holds"),
        (np.arange(ROWS, dtype=">i4"), r"\(4,\) of the big-endian dtype >i4; .* byte order: cast with"),
        (np.ma.masked_array(field("int32"), mask=[1, 0, 0, 0]), "a masked array"),
        ([1, 2, 3, 4], "a list; every field is an array"),
        (None, "a NoneType; every field is an array"),
        ("text", "a str; every field is an array"),
    ],
    ids=lambda value: str(getattr(value, "dtype", type(value).__name__)),
)
def test_what_no_device_holds_is_refused(mesh: Mesh, value: Any, words: str) -> None:
    with pytest.raises(FieldError, match=rf"field 'meta\.x' is {words}"):
        shard_batch(mesh, {"image": field("uint8"), "meta": {"x": value}})


def test_arrays_on_devices_are_refused(mesh: Mesh) -> None:
    with pytest.raises(FieldError, match="field 'x' is on devices already"):
        shard_batch(mesh, {"x": jnp.zeros(4)})
    with pytest.raises(OptionsTypeError, match="a batch is a mapping of field names to arrays, got a list"):
        shard_batch(mesh, [field("int32")])  # type: ignore[arg-type]


def test_shapes_and_nesting_are_kept(mesh: Mesh) -> None:
    batch = {
        "label": field("int32"),
        "flag": field("bool"),
        "empty": np.zeros((ROWS, 0), np.float32),
        "meta": {"deep": {"x": field("float16", 2, 3)}, "none": {}},
        "strided": field("int32", 6).T[::2].T,
        "temperature": np.float32(0.5),
        "on": True,
        "three": np.array(3, np.int32),
    }
    placed = shard_batch(mesh, batch)
    assert list(placed) == list(batch)
    assert placed["meta"]["none"] == {}
    shapes = jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), placed)
    assert shapes == jax.tree.map(lambda leaf: (np.shape(leaf), str(np.asarray(leaf).dtype)), batch)
    assert jax.tree.all(jax.tree.map(lambda one, other: bool((np.asarray(one) == other).all()), placed, batch))


def test_a_python_number_is_wide(mesh: Mesh) -> None:
    with pytest.raises(FieldError, match=r"field 'step' is \(\) int64, which JAX would make int32"):
        shard_batch(mesh, {"step": 3})


def test_rows(mesh: Mesh) -> None:
    with pytest.raises(FieldError, match=r"field 'meta\.y' has 3 rows and 'x' has 4; every field has one row a record"):
        shard_batch(mesh, {"x": field("int32"), "meta": {"y": np.zeros(3, np.float32)}})
    with pytest.raises(FieldError, match="field 'x' has no rows"):
        shard_batch(mesh, {"x": np.zeros((0, 3), np.float32)})
    with pytest.raises(FieldError, match="field 'x' has 4 rows, 8 expected: one of 1 shares of a global batch of 8"):
        shard_batch(mesh, {"x": field("int32")}, global_batch=8)
    with pytest.raises(
        OptionsError, match="rows over the mesh axis 'rows' was asked for; the mesh has data, fsdp, sequence, tensor"
    ):
        shard_batch(mesh, {"x": field("int32")}, batch_axes="rows")


def test_what_is_known_of_one_batch_is_not_assumed_of_another(mesh: Mesh) -> None:
    """Checks are made once for each combination of what they look at, and of nothing less."""
    good = {"x": field("int32"), "y": field("float32", 3)}
    for _ in range(2):
        shard_batch(mesh, good)
        with pytest.raises(FieldError, match=r"field 'x' is .* int64, which JAX would make int32"):
            shard_batch(mesh, {**good, "x": field("int64")})
        with jax.enable_x64(True):
            assert shard_batch(mesh, {**good, "x": field("int64")})["x"].dtype == np.int64
        with pytest.raises(FieldError, match="field 'y' has 3 rows and 'x' has 4"):
            shard_batch(mesh, {**good, "y": field("float32", 3)[:3]})
        with pytest.raises(FieldError, match="8 expected"):
            shard_batch(mesh, good, global_batch=8)
        with pytest.raises(FieldError, match=">i4"):
            shard_batch(mesh, {**good, "x": field(">i4")})
        with pytest.raises(OptionsError, match="names the field 'z'"):
            shard_batch(mesh, good, placement=Placement(narrow={"z"}))
        assert shard_batch(mesh, {**good, "x": field("int64")}, placement=Placement(narrow={"x"}))["x"].dtype == "int32"
        assert shard_batch(mesh, {}) == {}


def test_equal_placements_are_one() -> None:
    one, other = (Placement(sequence=pairs, narrow={"x"}) for pairs in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    assert (one, hash(one)) == (other, hash(other))
    assert one != Placement(sequence={"a": 1, "b": 1}, narrow={"x"})


def test_names_with_dots_are_not_taken_for_nested_ones(mesh: Mesh) -> None:
    placed = shard_batch(mesh, {"a.b": np.zeros(2, np.int32), "a": {"b": np.ones(2, np.int32)}})
    assert (int(placed["a.b"].sum()), int(placed["a"]["b"].sum())) == (0, 2)


class TestSequence:
    def test_unshifted_fields_are_refused(self, mesh: Mesh) -> None:
        batch = {"pair": {"text": field("int32", 129)}}
        with pytest.raises(
            FieldError, match=r"field 'pair\.text' is \(4, 129\): S\+1 tokens, .* dew\.data\.fields\.shift"
        ):
            shard_batch(mesh, batch, placement=Placement(sequence={"pair.text": 1}))

    def test_a_field_without_that_axis(self, mesh: Mesh) -> None:
        with pytest.raises(FieldError, match=r"field 'x' is \(4,\); it has no axis 1"):
            shard_batch(mesh, {"x": field("int32")}, placement=Placement(sequence={"x": 1}))

    def test_an_axis_that_the_mesh_lacks(self) -> None:
        placement = Placement(sequence={"x": 1}, sequence_axes="context")
        with pytest.raises(OptionsError, match="the sequence of field 'x' over the mesh axis 'context' was asked"):
            shard_batch(build_mesh(), {"x": field("int32", 2)}, placement=placement)

    def test_an_axis_that_rows_take(self) -> None:
        placement = Placement(sequence={"x": 1}, sequence_axes=("sequence", "data"))
        with pytest.raises(
            OptionsError, match="mesh axis data was asked for the rows and for the sequence of field 'x'"
        ):
            shard_batch(build_mesh(), {"x": field("int32", 2)}, placement=placement)

    @pytest.mark.parametrize("option", ["sequence", "narrow"])
    def test_a_field_that_is_not_there(self, mesh: Mesh, option: str) -> None:
        placement = Placement(sequence={"y": 1}) if option == "sequence" else Placement(narrow={"y"})
        with pytest.raises(OptionsError, match=rf"placement\.{option} names the field 'y', .* it has: x, a\.b"):
            shard_batch(mesh, {"x": field("int32"), "a": {"b": field("int32")}}, placement=placement)

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: Placement(sequence={"x": 0}), r"sequence\['x'\] must be at least 1, got 0"),
            (lambda: Placement(sequence={"x": -1}), r"sequence\['x'\] must be at least 1, got -1"),
            (lambda: Placement(sequence={"x": "1"}), r"sequence\['x'\] must be an int, got '1'"),
            (lambda: Placement(sequence=["x"]), r"sequence must map field names to axes, .* got \['x'\]"),
            (lambda: Placement(narrow="label"), r"narrow must be a set of field names, such as {'label'}"),
        ],
    )
    def test_what_a_placement_refuses(self, make: Callable[[], object], words: str) -> None:
        with pytest.raises((OptionsError, OptionsTypeError), match=words):
            make()


def test_the_batch_itself_is_never_changed(mesh: Mesh) -> None:
    batch = {"x": field("int64"), "y": field("float32")}
    kept = {name: value.copy() for name, value in batch.items()}
    shard_batch(mesh, batch, placement=Placement(narrow={"x"}))
    assert all((batch[name] == kept[name]).all() and batch[name].dtype == kept[name].dtype for name in kept)


def reuse_buffers(member: Any) -> Any:
    """Places buffers that are overwritten at once, at many sizes and alignments; how many arrays changed."""
    mesh, odd = build_mesh(), build_mesh(tensor=-1)  # rows sharded, and replicated
    changed = 0
    for size in (8, 64, 4096, 1 << 16, 1 << 22):
        for offset in (0, 16, 1):
            memory = np.zeros(8 * size + 128, np.uint8)
            start = -memory.ctypes.data % 64 + offset
            buffer = memory[start : start + 8 * size].reshape(8, size)
            for layout in (mesh, odd):
                for _ in range(3):
                    buffer[...] = 1
                    batch = {"x": buffer, "scalar": buffer[0, 0]}
                    placed = shard_batch(layout, batch, global_batch=8 * data_partition(layout).count)
                    buffer[...] = 2
                    for array in placed.values():
                        changed += sum(int((np.asarray(shard.data) != 1).any()) for shard in array.addressable_shards)
    return {"changed": changed, "devices": len(jax.devices())}


def refuse_indivisible(member: Any) -> Any:
    said = {}
    for name, rows in {"six": 6, "two": 2}.items():
        try:
            shard_batch(build_mesh(), {"x": np.zeros(rows, np.float32)})
        except PartitionError as error:
            said[name] = str(error)
    return said


def place_alone(member: Any) -> Any:
    """What one process with four devices shows, in one pool."""
    return {"reuse": reuse_buffers(member), "said": refuse_indivisible(member), "sequence": place_sequences(member)}


def place_sequences(member: Any) -> Any:
    """A sequence axis over all four devices: shifted tokens, beside images with rows only."""
    from dew.data.fields import shift

    mesh = build_mesh(sequence=4)
    text = np.arange(2 * 129, dtype=np.int32).reshape(2, 129)
    batch = shift({"text": text, "text_segment_ids": np.ones_like(text), "image": np.zeros((2, 8, 8, 3), np.uint8)})
    names = ("inputs", "targets", "target_mask", "segment_ids")
    placed = shard_batch(mesh, batch, placement=Placement(sequence=dict.fromkeys(names, 1)), global_batch=2)
    shards = {
        name: [
            [shard.index[1].start or 0, np.asarray(shard.data).tolist()] for shard in placed[name].addressable_shards
        ]
        for name in ("inputs", "targets")
    }
    total = jax.jit(lambda some: (some["inputs"] * some["target_mask"]).sum())(placed)
    parts = microbatches(placed, 2)
    said = ""
    try:
        shard_batch(mesh, {"inputs": text}, placement=Placement(sequence={"inputs": 1}), global_batch=2)
    except FieldError as error:
        said = str(error)
    return {
        "shards": shards,
        "specs": {name: str(array.sharding.spec) for name, array in placed.items()},
        "total": int(total),
        "parts": {name: [list(array.shape), str(array.sharding.spec)] for name, array in parts.items()},
        "said": said,
    }


def check_sequences(results: list[Any]) -> None:
    text = np.arange(2 * 129, dtype=np.int32).reshape(2, 129)
    for name, whole in {"inputs": text[:, :-1], "targets": text[:, 1:]}.items():
        found = np.zeros_like(whole)
        for result in results:
            for start, values in result["shards"][name]:
                assert np.shape(values) == (2, 32)
                found[:, start : start + 32] = values
        np.testing.assert_array_equal(found, whole)
    for result in results:
        assert result["total"] == int(text[:, :-1].sum())
        assert "'sequence'" in result["specs"]["targets"]
        assert "'sequence'" not in result["specs"]["image"]
        assert result["parts"]["inputs"] == [[2, 1, 128], "P(None, ('data', 'fsdp'), 'sequence')"]
        words = r"field 'inputs' is \(2, 129\): axis 1 of length 129 does not divide over 4 .*shift makes S of S\+1"
        assert re.match(words, result["said"])


def test_one_process_with_four_devices(run_pool: Any) -> None:
    result = run_pool(place_alone, 1, devices_per_process=4)[0].result
    assert result["reuse"] == {"changed": 0, "devices": 4}, "an array changed with the host buffer it came from"
    assert "a global batch of 6 rows does not divide over the 4 row shards" in result["said"]["six"]
    assert "use a batch of 4 or 8" in result["said"]["six"]
    assert "a global batch of 2 rows does not divide over the 4" in result["said"]["two"]
    check_sequences([result["sequence"]])


def test_a_sequence_spans_processes(run_pool: Any) -> None:
    ended = run_pool(place_sequences, 4)
    check_sequences([member.result for member in ended])


def place_many(member: Any) -> Any:
    """Two processes: nested fields, replicated values, dtypes, and buffers that are reused."""
    mesh = build_mesh()
    batch: Mapping[str, Any] = {
        "half": np.full((2, 3), member.index, np.float16),
        "deep": {"brain": np.full(2, member.index, ml_dtypes.bfloat16), "flag": np.full(2, bool(member.index))},
        "empty": np.zeros((2, 0), np.float32),
        "scale": np.float32(0.25),
    }
    placed = shard_batch(mesh, batch, global_batch=4)
    shapes = jax.tree.map(lambda leaf: [list(leaf.shape), str(leaf.dtype), leaf.is_fully_replicated], placed)
    sums = jax.jit(lambda some: [some["half"].sum(), some["deep"]["brain"].sum(), some["scale"] * 4])(placed)
    return {"shapes": shapes, "sums": [float(value) for value in sums], "reuse": reuse_buffers(member)}


def test_two_processes(run_pool: Any) -> None:
    for ended in run_pool(place_many, 2):
        assert ended.result["shapes"] == {
            "half": [[4, 3], "float16", False],
            "deep": {"brain": [[4], "bfloat16", False], "flag": [[4], "bool", False]},
            "empty": [[4, 0], "float32", False],
            "scale": [[], "float32", True],
        }
        assert ended.result["sums"] == [6.0, 2.0, 1.0]
        assert ended.result["reuse"] == {"changed": 0, "devices": 2}
