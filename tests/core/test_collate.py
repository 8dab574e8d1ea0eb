"""Records become columns with their own dtypes and shapes; what NumPy would convert in silence is refused by name."""

import datetime
import decimal
import enum
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dew.data.collate import checked_columns, collate
from dew.data.errors import CollateError, DewDataError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Label(enum.IntEnum):
    CAT = 3


class Word(str, enum.Enum):  # noqa: UP042, str() of it is not its value, which is the point
    CAT = "cat"


class Row(Mapping[str, Any]):
    """A record that is a mapping without being a dict, as lazy rows of dataset libraries are."""

    def __init__(self, **values: Any) -> None:
        self.values_ = values

    def __getitem__(self, name: str) -> Any:
        return self.values_[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


class Broken:
    """An array-like whose conversion fails, as a tensor on another device does."""

    def __array__(self, *_args: Any, **_options: Any) -> Any:
        raise RuntimeError("cannot copy from the device")


def column(*values: Any) -> Any:
    return collate([{"x": value} for value in values])["x"]


def refused(*values: Any, match: str) -> None:
    with pytest.raises(CollateError, match=match):
        column(*values)


def assert_owned(array: Any) -> None:
    assert type(array) is np.ndarray
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.flags.owndata


# What fits


def test_records_become_columns() -> None:
    batch = collate([{"x": np.array([i, i + 1], np.int32), "y": i} for i in range(3)])
    assert list(batch) == ["x", "y"]
    np.testing.assert_array_equal(batch["x"], [[0, 1], [1, 2], [2, 3]])
    assert batch["x"].dtype == np.int32
    np.testing.assert_array_equal(batch["y"], [0, 1, 2])


def test_nested_mappings_become_nested_dicts() -> None:
    batch = collate([{"a": {"b": i, "c": {"d": np.float32(i)}}, "e": {}} for i in range(2)])
    assert batch.keys() == {"a", "e"}
    assert batch["e"] == {}
    np.testing.assert_array_equal(batch["a"]["b"], [0, 1])
    assert batch["a"]["c"]["d"].dtype == np.float32


def test_any_mapping_is_a_record_and_field_order_is_free() -> None:
    rows: list[Mapping[str, Any]] = [
        {"a": 1, "b": 2},
        OrderedDict(b=2, a=1),
        MappingProxyType({"a": 1, "b": 2}),
        Row(b=2, a=1),
        defaultdict(int, a=1, b=2),
    ]
    batch = collate(rows)
    assert list(batch) == ["a", "b"]
    assert batch["a"].tolist() == [1] * 5
    assert batch["b"].tolist() == [2] * 5


@pytest.mark.parametrize(
    "dtype", ["uint8", "int32", "float16", "float64", "bool", "complex64", "uint64", BFLOAT16, ml_dtypes.int4]
)
def test_dtypes_are_kept(dtype: Any) -> None:  # I08
    value = np.array([[0, 1, 1]]).astype(dtype)
    for values in ([value] * 4, [value, value[:, ::-1]], [value[0, 1]] * 2, [[value[0, 0], value[0, 1]]]):
        stacked = column(*values)
        assert stacked.dtype == np.dtype(dtype)
        assert_owned(stacked)
    assert column(value, value).tolist() == [value.tolist()] * 2


def test_byte_order_is_kept() -> None:
    stacked = column(np.array([1, 2], ">i4"), np.array([3, 4], ">i4"))
    assert stacked.dtype.str == ">i4"
    assert stacked.tolist() == [[1, 2], [3, 4]]


def test_scalars_and_empty_arrays() -> None:  # I07
    records = [{"label": i, "flag": i > 0, "share": 0.5, "empty": np.zeros((0,), np.float32)} for i in range(3)]
    batch = collate(records)
    shapes = {name: (array.shape, array.dtype.name) for name, array in batch.items()}
    assert shapes == {
        "label": ((3,), "int64"),
        "flag": ((3,), "bool"),
        "share": ((3,), "float64"),
        "empty": ((3, 0), "float32"),
    }
    assert batch["label"].tolist() == [0, 1, 2]
    assert batch["flag"].tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (3, "int64", ()),
        (True, "bool", ()),
        (0.1, "float64", ()),
        (1 + 2j, "complex128", ()),
        (np.int16(3), "int16", ()),
        (np.float32(0.5), "float32", ()),
        (np.array(3, np.uint8), "uint8", ()),
        (ml_dtypes.bfloat16(1.5), "bfloat16", ()),
        (Label.CAT, "int64", ()),
        ([1, 2], "int64", (2,)),
        ((1.0, 2.0), "float64", (2,)),
        ([True, False], "bool", (2,)),
        ([[1, 2, 3], (4, 5, 6)], "int64", (2, 3)),
        ([np.int16(3), np.int16(4)], "int16", (2,)),
        ([np.int64(3), 4], "int64", (2,)),
        ([Label.CAT, 4], "int64", (2,)),
        ([np.zeros(3, np.float32)] * 2, "float32", (2, 3)),
        ([[np.zeros(3, np.float32)]] * 2, "float32", (2, 1, 3)),
        (jnp.ones((2, 2), jnp.bfloat16), "bfloat16", (2, 2)),
        (jnp.int32(3), "int32", ()),
        (np.array([2**63], np.uint64), "uint64", (1,)),
    ],
)
def test_one_kind_of_value_is_an_array(value: Any, dtype: str, shape: tuple[int, ...]) -> None:
    stacked = column(value, value)
    assert stacked.dtype.name == dtype
    assert stacked.shape == (2, *shape)
    assert_owned(stacked)
    np.testing.assert_array_equal(stacked[1], np.asarray(value))


def test_values_of_one_dtype_in_different_forms_agree() -> None:
    assert column(1, np.int64(2), np.array(3), Label.CAT).tolist() == [1, 2, 3, 3]
    assert column([1, 2], np.array([3, 4]), jnp.array([5, 6], jnp.int32).astype(int).tolist()).shape == (3, 2)
    assert column(np.ones(2, np.float32), jnp.ones(2, jnp.float32)).dtype == np.float32


def test_unpickled_arrays_are_the_same_dtype() -> None:
    value = np.ones((2, 2), np.float32)
    stacked = column(value, pickle.loads(pickle.dumps(value)))
    assert stacked.dtype == np.float32
    assert_owned(stacked)


def test_strings_stay_text_of_the_widest() -> None:  # I02, host part
    assert column("a", "", "bcd").tolist() == ["a", "", "bcd"]
    assert column("a", "bcd").dtype == np.dtype("U3")
    assert column("").dtype.kind == "U"
    assert column(["a", "bb"], ["ccc", "d"]).dtype == np.dtype("U3")
    assert column(np.array(["a"]), np.array(["bcd"])).tolist() == [["a"], ["bcd"]]
    assert column(np.str_("xy"), "z").tolist() == ["xy", "z"]
    assert column("a\0b", "\ud800").tolist() == ["a\0b", "\ud800"]
    assert_owned(column(np.array("ab"), np.array("cd")))


def test_an_enum_of_strings_is_its_value() -> None:
    assert column(Word.CAT, "d").tolist() == ["cat", "d"]
    assert column([Word.CAT, Word.CAT]).tolist() == [["cat", "cat"]]


def test_numbers_stay_exact() -> None:  # F08, F13
    assert column(5_000_000_000).dtype == np.int64
    assert column(5_000_000_000).tolist() == [5_000_000_000]
    assert column(1, -1, 9007199254740993).tolist() == [1, -1, 9007199254740993]
    assert column([2**63 - 1, -(2**63)]).tolist() == [[2**63 - 1, -(2**63)]]
    assert column(1e300).tolist() == [1e300]


def test_a_batch_never_reaches_its_records() -> None:  # I06
    value = np.zeros(3)
    repeated = {"x": value, "n": {"y": value}}
    batch = collate([repeated, repeated])
    batch["x"] += 1
    batch["n"]["y"][0] = 5
    assert value.tolist() == [0, 0, 0]
    assert batch["x"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert batch["n"]["y"].tolist() == [[5, 5, 5], [0, 0, 0]]
    for one in (value, np.broadcast_to(value, (2, 3)), np.frombuffer(b"\0\1", np.uint8)):
        batch = column(one)
        assert_owned(batch)
        assert not np.shares_memory(batch, one)


# What is refused


def test_no_records() -> None:
    with pytest.raises(CollateError, match="at least one record, got an empty list"):
        collate([])
    with pytest.raises(CollateError, match="record 0 has no fields"):
        collate([{}])


def test_the_error_is_a_value_error_of_dew() -> None:
    with pytest.raises(ValueError, match="ragged"):
        column([[1], [1, 2]])
    assert issubclass(CollateError, DewDataError)


@pytest.mark.parametrize("record", [3, None, "text", [1], np.zeros(2)])
def test_a_record_must_be_a_mapping(record: Any) -> None:
    with pytest.raises(CollateError, match=r"record 0 is .*not a mapping of field names to values; name what it holds"):
        collate([record])
    with pytest.raises(CollateError, match=r"record 1 is .*not a mapping"):
        collate([{"x": 1}, record])


def test_field_names_are_text() -> None:
    with pytest.raises(CollateError, match=r"record 0 has the key 1 \(int\); field names are of type str"):
        collate([{1: 2}])  # pyright: ignore[reportArgumentType]
    with pytest.raises(CollateError, match=r"record 1 has the key None \(NoneType\)"):
        collate([{"x": 1}, {"x": 1, None: 2}])  # pyright: ignore[reportArgumentType]
    with pytest.raises(CollateError, match=r"field 'a' of record 0 has the key 2 \(int\)"):
        collate([{"a": {2: 1}}])


def test_a_field_is_missing() -> None:
    with pytest.raises(
        CollateError,
        match=r"field 'mask' is in record 0 but missing from record 2 \(its fields: x\); fill it in every record",
    ):
        collate([{"x": 1, "mask": 1}, {"x": 1, "mask": 1}, {"x": 1}])


def test_a_field_is_extra() -> None:
    with pytest.raises(CollateError, match=r"field 'mask' is in record 1 but missing from record 0 \(its fields: x\)"):
        collate([{"x": 1}, {"x": 1, "mask": 1}])
    with pytest.raises(CollateError, match=r"field 'a\.c' is in record 1 but missing from record 0 \(its fields: b\)"):
        collate([{"a": {"b": 1}}, {"a": {"b": 1, "c": 1}}])
    with pytest.raises(
        CollateError, match=r"field 'a\.b' is in record 0 but missing from record 1 \(its fields: none\)"
    ):
        collate([{"a": {"b": 1}}, {"a": {}}])


def test_a_missing_field_is_not_made_up_by_the_record() -> None:
    record: defaultdict[str, int] = defaultdict(int, y=1)
    with pytest.raises(CollateError, match="field 'x' is in record 0 but missing from record 1"):
        collate([{"x": 1}, record])
    assert dict(record) == {"y": 1}


def test_a_mapping_beside_an_array() -> None:
    refused({"a": 1}, 3, match=r"field 'x' is a mapping in record 0 and 3 \(int\) in record 1; give it the same form")
    refused(
        np.zeros(2),
        {"a": 1},
        match=r"'x' is an array of shape \(2,\) and dtype float64 in record 0 and a mapping in record 1",
    )


def test_dtypes_differ() -> None:
    refused(
        np.zeros(2, np.int32),
        np.zeros(2, np.int64),
        match="field 'x' is int32 in record 0 and int64 in record 1; give it one dtype everywhere",
    )
    refused(np.zeros(2), np.zeros(2), np.zeros(2, BFLOAT16), match="float64 in record 0 and bfloat16 in record 2")
    refused(1, 2.5, match="int64 in record 0 and float64 in record 1")
    refused(True, 1, match="bool in record 0 and int64 in record 1")
    refused(1, np.int32(1), match="int64 in record 0 and int32 in record 1")
    refused("a", 1, match="<U1 in record 0 and int64 in record 1")
    refused(1, "a", match="int64 in record 0 and <U1 in record 1")
    refused(np.zeros(1, "<i4"), np.zeros(1, ">i4"), match="int32 in record 0 and >i4 in record 1")


def test_ragged_rows() -> None:  # F02
    scores = [np.zeros(2), np.zeros(3), np.zeros(2), np.zeros(3)]
    refused(
        *scores,
        match=r"field 'x' has shape \(2,\) in record 0 and \(3,\) in record 1; a batch needs one shape: "
        r"cut \(or resize\) it, pad it, or pack several records",
    )
    refused([1, 2], [3, 4], [5], match=r"shape \(2,\) in record 0 and \(1,\) in record 2")
    refused(1, [1], match=r"shape \(\) in record 0 and \(1,\) in record 1")
    refused(np.zeros((1, 3)), np.zeros((3, 1)), match=r"\(1, 3\) in record 0 and \(3, 1\) in record 1")


def test_images_of_unequal_size() -> None:  # E13
    records = [{"image": np.zeros(shape, np.uint8)} for shape in ((4, 5, 3), (5, 4, 3))]
    with pytest.raises(
        CollateError, match=r"'image' has shape \(4, 5, 3\) in record 0 and \(5, 4, 3\) in record 1.*resize"
    ):
        collate(records)


def test_ragged_lists_in_one_record() -> None:
    refused([[1, 2], [3]], match=r"'x' is a ragged list in record 0: rows of length 1 and 2 at depth 1; cut or pad")
    refused([[[1], [2]], [[3], [4, 5]]], match=r"ragged list in record 0: rows of length 1 and 2 at depth 2")
    refused([[1], 2], match=r"shape \(1,\) in element \[0\] of record 0 and \(\) in element \[1\] of record 0")
    refused([np.zeros(2), np.zeros(3)], match=r"shape \(2,\) in element \[0\] of record 0 and \(3,\) in element \[1\]")


def test_an_empty_list_has_no_dtype() -> None:
    refused(
        [], [], match=r"'x' is an empty list in record 0 \(shape \(0,\)\), which has no dtype; state one: numpy.zeros"
    )
    refused([[], []], match=r"empty list in record 0 \(shape \(2, 0\)\)")


def test_none_is_never_a_number() -> None:  # F13
    advice = "; fill it with a value of the field's own dtype in `preprocess`, or leave the record out"
    refused(None, match="field 'x' is None in record 0" + advice)
    refused(1, None, 9007199254740993, match="field 'x' is None in record 1" + advice)
    refused(np.float32(1), None, match="None in record 1")
    refused("a", None, match="None in record 1")
    refused([1, None], match=r"field 'x' is None in element \[1\] of record 0" + advice)
    refused([[1, 2], [3, None]], match=r"None in element \[1, 1\] of record 0")
    refused(
        np.array([1, None]),
        match=r"an array of dtype object in record 0, the first element is 1 \(int\).*fill each None",
    )
    with pytest.raises(CollateError, match=r"field 'a\.b' is None in record 0"):
        collate([{"a": {"b": None}}])


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (b"\0\xff", r"field 'x' is b'\\x00\\xff' \(bytes\) in record 0; decode it to text, or make numbers of it"),
        (bytearray(2), r"\(bytearray\) in record 0; decode"),
        (memoryview(b"abc"), r"a value of type memoryview in record 0; decode"),
        (b"a" * 1000, r"field 'x' is a value of type bytes in record 0"),
        (
            decimal.Decimal("1.10"),
            r"Decimal\('1.10'\) \(decimal.Decimal\) in record 0; make a float of it, or an integer",
        ),
        (datetime.timedelta(seconds=5), r"timedelta\(seconds=5\) .* in record 0; make an integer of it, in a unit"),
        (datetime.datetime(2020, 1, 1), r"\(datetime.datetime\) in record 0; make an integer of it"),
        (datetime.date(2020, 1, 1), r"\(datetime.date\) in record 0; make an integer of it"),
        (object(), r"field 'x' is a value of type object in record 0; make a NumPy array, a number or a str of it"),
        ({1, 2}, r"field 'x' is \{1, 2\} \(set\) in record 0; make a NumPy array"),
        (range(3), r"field 'x' is range\(0, 3\) \(range\) in record 0"),
        (float, r"field 'x' is <class 'float'> \(type\) in record 0"),
        (np.ndarray, r"field 'x' is <class 'numpy.ndarray'> \(type\) in record 0"),
        (
            [{"a": 1}],
            r"field 'x' is a mapping \(dict\) in element \[0\] of record 0; turn a list of mappings into a mapping",
        ),
        (
            np.array(["a"], object),
            r"array of dtype object in record 0, the first element is 'a' \(str\); give it one dtype",
        ),
        (
            np.array([np.zeros(2), np.zeros(3)], object),
            r"an array of shape \(2,\) and dtype float64; .*cut, pad or pack",
        ),
        (np.array([], object), r"an array of dtype object in record 0; give"),
        (np.array([b"a"]), r"an array of dtype \|S1 in record 0; bytes lose their trailing zeros"),
        (np.bytes_(b"a"), r"an array of dtype \|S1 in record 0"),
        (np.array(1, "M8[s]"), r"dtype datetime64\[s\] in record 0; make an integer of it.*astype\('int64'\)"),
        (np.datetime64(1, "s"), r"dtype datetime64\[s\] in record 0"),
        (np.timedelta64(5, "ns"), r"dtype timedelta64\[ns\] in record 0; make an integer"),
        (np.array(5, "m8[ns]"), r"dtype timedelta64\[ns\] in record 0; make an integer"),
        (np.zeros(1, [("a", "i4")]), r"dtype \[\('a', '<i4'\)\] in record 0; make one field of each member"),
        (np.void(b"abc"), r"dtype \|V3 in record 0"),
        (np.array(["a"], np.dtypes.StringDType()), r"dtype StringDType.* in record 0; give it a fixed width"),
        (np.ma.masked_equal([1, 2], 2), r"a masked array in record 0, and its mask would be lost; fill it"),
        (
            Broken(),
            r"Broken in record 0 that does not become a NumPy array \(RuntimeError: cannot copy from the device\)",
        ),
    ],
)
def test_objects_have_no_place(value: Any, match: str) -> None:  # F08, I02
    refused(value, match=match)
    refused(0, value, match=match.replace("record 0", "record 1"))


def test_a_failed_conversion_keeps_its_cause() -> None:
    with pytest.raises(CollateError, match="does not become a NumPy array") as caught:
        column(Broken())
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ([1, 2.5], r"int64 in element \[0\] of record 0 and float64 in element \[1\] of record 0; give it one dtype"),
        ([1, "a"], r"int64 in element \[0\] of record 0 and <U1 in element \[1\] of record 0"),
        ([True, 2], r"bool in element \[0\] of record 0 and int64 in element \[1\] of record 0"),
        ([np.int32(1), 2], r"int32 in element \[0\] of record 0 and int64 in element \[1\] of record 0"),
        ([[1, 2], [3, 4.0]], r"int64 in element \[0, 0\] of record 0 and float64 in element \[1, 1\] of record 0"),
        ([1, b"a"], r"b'a' \(bytes\) in element \[1\] of record 0"),
    ],
)
def test_a_list_of_mixed_kinds(value: Any, match: str) -> None:
    refused(value, match="field 'x' is " + match)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, [0, 2**63], [[1], [2**64]]])
def test_integers_beyond_int64(value: Any) -> None:
    refused(
        value,
        match=r"field 'x' holds -?\d{19,} in record 0, which int64 cannot hold \(it ends at 9223372036854775807\)",
    )


@pytest.mark.parametrize("value", ["a\0", ["ok", "a\0"], np.str_("a\0"), "\0"])
def test_text_that_would_lose_its_end(value: Any) -> None:
    refused(value, match="field 'x' ends in a NUL character in record 0 .* NumPy would cut off; strip it")


def test_names_of_records_are_the_callers() -> None:
    def names(row: int) -> str:
        return f"record {row + 10} (place {row + 70})"

    with pytest.raises(CollateError, match=r"\(2,\) in record 10 \(place 70\) and \(3,\) in record 12 \(place 72\)"):
        collate([{"x": np.zeros(n)} for n in (2, 2, 3)], names=names)
    with pytest.raises(CollateError, match=r"None in element \[1\] of record 11 \(place 71\)"):
        collate([{"x": [1, 2]}, {"x": [1, None]}], names=names)
    with pytest.raises(CollateError, match=r"in record 10 \(place 70\) but missing from record 11 \(place 71\)"):
        collate([{"x": 1, "y": 1}, {"x": 1}], names=names)


# Columns that a source built


def test_owned_columns_pass_through() -> None:
    columns = {
        "text": np.zeros((3, 5), np.int32),
        "label": np.zeros(3, BFLOAT16),
        "word": np.array(["a", "bc", "d"]),
        "empty": np.zeros((3, 0), np.float32),
        "n": {"x": np.zeros((3, 1))},
    }
    checked = checked_columns(columns, 3, "Rows()")
    assert checked is not columns
    assert checked["n"]["x"] is columns["n"]["x"]
    for name in ("text", "label", "word", "empty"):
        assert checked[name] is columns[name]


def test_other_columns_are_copied(tmp_path: Path) -> None:  # I06
    np.save(tmp_path / "x.npy", np.arange(12.0).reshape(4, 3))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    own = np.arange(24).reshape(4, 6).copy()
    locked = own.copy()
    locked.flags.writeable = False
    columns = {
        "view": own[:, :3],
        "rows": own[:4],
        "order": np.asfortranarray(own),
        "locked": locked,
        "mapped": mapped,
        "mapped_rows": mapped[:4],
        "buffer": np.frombuffer(b"abcd", np.uint8),
        "broadcast": np.broadcast_to(np.float32(2), (4, 2)),
        "matrix": np.ones((4, 2)).view(np.matrix),
        "device": jnp.ones((4, 2), jnp.bfloat16),
    }
    expected = {name: np.array(value) for name, value in columns.items()}
    checked = checked_columns(columns, 4, "Rows()")
    for name, value in checked.items():
        assert_owned(value)
        assert value.dtype == expected[name].dtype
        np.testing.assert_array_equal(value, expected[name])
        assert not np.shares_memory(value, np.asarray(columns[name]))
        value[...] = 0
    assert own[0, 1] == 1
    assert mapped[0, 1] == 1


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (
            np.zeros((2, 5)),
            r"field 'x' has shape \(2, 5\) in take\(\) of Rows\(\), but 3 records were asked for; its first axis",
        ),
        (np.zeros(()), r"has shape \(\) in take\(\) of Rows\(\), but 3 records"),
        ([1, 2, 3], r"field 'x' is \[1, 2, 3\] \(list\) in take\(\) of Rows\(\); each field is one array of 3 rows"),
        (None, r"field 'x' is None in take\(\) of Rows\(\)"),
        (np.array([1, None, 2]), r"field 'x' is an array of dtype object in take\(\) of Rows\(\)"),
        (np.array([b"a", b"b", b"c"]), r"dtype \|S1 in take\(\) of Rows\(\); bytes lose"),
        (np.zeros(3, "M8[s]"), r"dtype datetime64\[s\] in take\(\)"),
        (np.ma.masked_equal([1, 2, 3], 2), r"a masked array in take\(\) of Rows\(\)"),
        ({"y": np.zeros(2)}, r"field 'x\.y' has shape \(2,\) in take\(\)"),
        ({1: np.zeros(3)}, r"take\(\) of Rows\(\) returned the key 1 \(int\)"),
    ],
)
def test_columns_that_are_refused(value: Any, match: str) -> None:
    with pytest.raises(CollateError, match=match):
        checked_columns({"ok": np.zeros(3), "x": value}, 3, "Rows()")


def test_columns_must_be_a_mapping() -> None:
    with pytest.raises(CollateError, match=r"take\(\) of Rows\(\) returned None; it must return a mapping"):
        checked_columns(None, 3, "Rows()")  # pyright: ignore[reportArgumentType]
    with pytest.raises(CollateError, match=r"take\(\) of Rows\(\) returned no fields"):
        checked_columns({}, 3, "Rows()")


# Properties

DTYPES = st.one_of(
    hnp.integer_dtypes(endianness="="),
    hnp.unsigned_integer_dtypes(endianness="="),
    hnp.floating_dtypes(endianness="=", sizes=(16, 32, 64)),
    hnp.boolean_dtypes(),
    st.just(BFLOAT16),
)
NAMES = st.text("abcxyz_", min_size=1, max_size=4)


def values(draw: st.DrawFn, dtype: np.dtype[Any], shape: tuple[int, ...], k: int) -> list[Any]:
    """k arrays of a dtype and shape, some of them views."""
    base = draw(hnp.arrays(np.uint8, (k, *shape, max(1, dtype.itemsize))))
    flat = np.frombuffer(base.tobytes(), dtype if dtype.kind != "b" else np.uint8).reshape((k, *shape))
    arrays = flat.astype(dtype) if dtype.kind == "b" else flat
    return [np.array(array, order="F") if array.ndim and draw(st.booleans()) else array for array in arrays]


@st.composite
def rows(draw: st.DrawFn, least: int = 1) -> list[dict[str, Any]]:
    k = draw(st.integers(least, 5))
    records: list[dict[str, Any]] = [{} for _ in range(k)]
    for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)):
        shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
        for record, value in zip(records, values(draw, draw(DTYPES), shape, k), strict=True):
            record[name] = value
    return records


@given(rows())
def test_a_batch_equals_numpy_stack(records: list[dict[str, Any]]) -> None:
    for batch in (collate(records), collate([{"n": record} for record in records])["n"]):
        assert list(batch) == list(records[0])
        for name, stacked in batch.items():
            expected = np.stack([record[name] for record in records])
            assert stacked.dtype == expected.dtype
            assert stacked.shape == expected.shape
            assert stacked.tobytes() == expected.tobytes()
            assert_owned(stacked)


@given(rows())
def test_a_batch_passes_as_columns(records: list[dict[str, Any]]) -> None:
    batch = collate(records)
    checked = checked_columns(batch, len(records), "Rows()")
    assert all(checked[name] is batch[name] for name in batch)


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=5), min_size=1, max_size=5))
def test_text_comes_back_or_is_refused(texts: list[str]) -> None:
    if any(text.endswith("\0") for text in texts):
        refused(*texts, match="NUL")
    else:
        assert column(*texts).tolist() == texts


@given(
    st.lists(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)), min_size=1, max_size=4
    )
)
def test_values_come_back_with_their_type_or_are_refused(items: list[Any]) -> None:
    """Whatever is in the list, as records or as one list: the same values of the same types, or an error."""
    for build, read in ((lambda: column(*items), lambda c: c), (lambda: column(items), lambda c: c[0])):
        try:
            back = read(build()).tolist()
        except CollateError as error:
            assert "field 'x'" in str(error)  # noqa: PT017, either outcome is right
            continue
        assert list(map(repr, back)) == list(map(repr, items))
        assert list(map(type, back)) == list(map(type, items))


FAULTS: dict[str, Any] = {
    "none": lambda value: None,
    "bytes": lambda value: b"x",
    "shape": lambda value: np.zeros((*value.shape, 2), value.dtype),
    "dtype": lambda value: np.zeros(value.shape, np.complex64),
    "object": lambda value: np.asarray(value, object),
    "mapping": lambda value: {"y": value},
    "ragged": lambda value: [[1], [1, 2]],
    "mixed": lambda value: [1, None],
}


@given(records=rows(least=2), data=st.data())
def test_a_planted_fault_is_refused_by_its_field(records: list[dict[str, Any]], data: st.DataObject) -> None:
    row = data.draw(st.integers(1, len(records) - 1))
    name = data.draw(st.sampled_from(sorted(records[0])))
    fault = data.draw(st.sampled_from([*FAULTS, "missing", "extra"]))
    if fault == "missing":
        del records[row][name]
    elif fault == "extra":
        name = "EXTRA"
        records[row][name] = 1
    else:
        records[row][name] = FAULTS[fault](records[row][name])
    if not records[row]:
        with pytest.raises(CollateError, match=f"record {row} has no fields"):
            collate(records)
        return
    with pytest.raises(CollateError, match=rf"field '{name}' .*record {row}\b"):
        collate(records)
    with pytest.raises(CollateError, match=rf"field 'n\.{name}' .*record {row}\b"):
        collate([{"n": record} for record in records])
