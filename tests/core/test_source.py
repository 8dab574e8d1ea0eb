"""How a source is named in a position: its description, its fingerprint, its further parts."""

import functools
from collections import OrderedDict, UserDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from dew.data.errors import SourceError
from dew.data.source import RecordSource, describe, fingerprint, identity, records_in


class Plain:
    """Without a repr of its own."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": index}


class Named(Plain):
    """A source that says what it is."""

    def __init__(self, text: str = "Named(tokens, seq_len=8)") -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


@attrs.frozen
class Options:
    path: str = attrs.field(repr=False)
    seq_len: int = 8


@attrs.frozen
class WithLambda:
    function: Any


# Descriptions


def test_a_source_is_described_by_its_own_repr() -> None:
    assert describe(Named()) == "Named(tokens, seq_len=8)"
    assert describe(Options("/data/corpus")) == "Options(seq_len=8)"
    assert describe(range(10)) == "range(0, 10)"


def test_without_a_repr_the_type_stands() -> None:
    assert describe(Plain()) == "Plain"
    assert describe(object()) == "object"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (WithLambda(lambda record: record), "WithLambda"),
        (len, "<built-in function len>"),
        (lambda: None, "function"),
        (functools.partial(lambda: None), "partial"),
        (Named("Named(<object at 0x7f3a10b2c400>)"), "Named"),
        (Named("Named(0x7F3A10B2C400)"), "Named"),
        (Named("Named(version=0x10)"), "Named(version=0x10)"),
    ],
)
def test_an_address_names_nothing(value: object, expected: str) -> None:
    assert describe(value) == expected


def test_arrays_are_described_by_shape_and_dtype() -> None:
    assert describe(np.zeros((3, 4), np.float32)) == "ndarray(shape=(3, 4), dtype=float32)"
    assert describe(np.array(["a", "bcd"])) == "ndarray(shape=(2,), dtype=<U3)"
    assert describe(np.arange(10**6)) == "ndarray(shape=(1000000,), dtype=int64)"


def test_lists_and_tuples_are_described_by_length() -> None:
    assert describe([{"x": 1}] * 7) == "list(length=7)"
    assert describe(({"x": 1},)) == "tuple(length=1)"
    assert describe([]) == "list(length=0)"


def test_mappings_are_described_field_by_field() -> None:
    columns = {"x": np.zeros((3, 2), np.uint8), "y": {"z": [1, 2, 3]}}
    assert describe(columns) == "{x: ndarray(shape=(3, 2), dtype=uint8), y: {z: list(length=3)}}"
    assert describe({}) == "{}"


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict])
def test_the_order_of_fields_is_no_difference(kind: Any) -> None:
    one, two = np.zeros(3), np.arange(3)
    expected = describe({"x": one, "y": two})
    assert describe(kind({"x": one, "y": two})) == expected
    assert describe(kind({"y": two, "x": one})) == expected


def test_a_path_is_never_told(tmp_path: Path) -> None:
    """A moved corpus is the same corpus."""
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(5))
    mapped = np.load(path, mmap_mode="r")
    files = [str(path), str(tmp_path / "more.npy")]
    for value in (mapped, files, {"x": mapped, "files": files}, tuple(files), Options(str(path))):
        assert str(tmp_path) not in describe(value)
        assert path.name not in describe(value)
    assert describe(mapped) == "ndarray(shape=(5,), dtype=int64)"


def test_over_500_characters_the_digest_stands() -> None:
    assert describe(Named("N" * 500)) == "N" * 500
    found = describe(Named("N" * 501))
    assert found.startswith("Named(sha256=")
    assert len(found) == len("Named(sha256=)") + 64
    assert found == describe(Named("N" * 501)) != describe(Named("N" * 502))
    wide = {f"column {number}": np.zeros(3) for number in range(50)}
    assert describe(wide).startswith("dict(sha256=")
    assert describe(wide) != describe(wide | {"column 7": np.zeros(4)})


# Fingerprints


class Digested(Plain):
    def __init__(self, digest: Any) -> None:
        self.digest = digest

    def fingerprint(self) -> Any:
        return self.digest


def test_a_fingerprint_is_the_sources_own() -> None:
    assert fingerprint(Digested("abc")) == "abc"
    assert fingerprint(Digested(123)) == "123"


def test_a_source_may_have_none() -> None:
    assert fingerprint(Plain()) is None
    assert fingerprint([1, 2, 3]) is None
    assert fingerprint(Digested(None)) is None


def test_what_a_fingerprint_raises_reaches_the_caller() -> None:
    class Broken(Plain):
        def fingerprint(self) -> str:
            raise OSError("the manifest cannot be read")

    with pytest.raises(OSError, match="the manifest cannot be read"):
        fingerprint(Broken())


# Further parts


class Parts(Plain):
    def __init__(self, parts: Any) -> None:
        self.parts = parts

    def identity(self) -> Any:
        return self.parts


def test_parts_are_what_json_keeps() -> None:
    assert identity(Plain()) == {}
    parts = {"tokenizer": "t1", "plan": {"rows": [1, 2]}}
    assert identity(Parts(parts)) == parts
    assert identity(Parts({"shape": (1, 2)})) == {"shape": [1, 2]}  # as it comes back from a saved position
    assert identity(Parts(OrderedDict(a=1))) == {"a": 1}


@pytest.mark.parametrize("value", [np.int64(3), np.zeros(2), {1, 2}, float("nan"), b"abc", object()])
def test_parts_that_are_no_json_are_refused(value: Any) -> None:
    with pytest.raises(SourceError, match=r"Parts\.identity\(\) must hold JSON values only, got \{'part': .*\}: "):
        identity(Parts({"part": value}))


# Length


def test_records_are_counted() -> None:
    assert records_in(Plain()) == 3
    assert records_in(range(7)) == 7


def test_a_source_without_a_length_is_refused() -> None:
    def generator() -> Iterator[Mapping[str, Any]]:
        yield {"x": 1}

    class Stream:
        def __repr__(self) -> str:
            return "Stream(lines)"

        def __iter__(self) -> Iterator[Any]:
            return iter(())

    for source, name in ((Stream(), r"Stream\(lines\)"), (generator(), "generator")):
        expected = f"{name} has no length, so it has no order that can be resumed; a record source defines __len__"
        with pytest.raises(SourceError, match=expected):
            records_in(source)


@pytest.mark.parametrize("source", [[], (), {}, np.zeros((0, 3)), range(0)])
def test_a_source_without_records_is_refused(source: object) -> None:
    with pytest.raises(SourceError, match="holds no records"):
        records_in(source)


def test_lists_and_the_like_are_record_sources() -> None:
    for source in (Plain(), [{"x": 1}], ({"x": 1},)):
        assert isinstance(source, RecordSource)
    assert not isinstance(iter([]), RecordSource)
