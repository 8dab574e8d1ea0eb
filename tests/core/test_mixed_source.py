"""Reading several sources as one: by each one's best way, rows in order; closed again, refused where unlike."""

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from dew.data import CollateError, DataPartition, Loading, Mixture, SourceError
from dew.data.build import in_memory
from dew.data.mixed import MixedColumns, MixedSource, PartRecord, check_layouts, mixed_preprocess, mixed_source
from dew.data.source import RecordSource, describe
from dew.testing import SourceSuite

HERE = Loading(workers=0, threads=1, read_buffer=0)


class OneByOne:
    """Records `{"x": first + i}`; counts how it is read."""

    def __init__(self, records: int, first: int = 0, name: str = "one") -> None:
        self.records = records
        self.first = first
        self.name = name
        self.calls: list[tuple[str, Any]] = []

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        if not 0 <= index < self.records:
            raise IndexError(index)
        self.calls.append(("one", index))
        return self.record(index)

    def record(self, index: int) -> dict[str, Any]:
        return {"x": np.int64(self.first + index)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.records})"


class InLists(OneByOne):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        self.calls.append(("many", indices))
        return [self.record(index) for index in indices]


class InColumns(InLists):
    def take(self, indices: Any) -> dict[str, Any]:
        self.calls.append(("take", indices.tolist()))
        return {"x": np.asarray(indices) + self.first}


class Opened(InColumns):
    """Has files: `open` makes readers, `close` closes them."""

    def __init__(self, *args: Any, log: list[str]) -> None:
        super().__init__(*args)
        self.log = log

    def open(self) -> "Opened":
        self.log.append(f"open {self.name}")
        return Opened(self.records, self.first, self.name, log=self.log)

    def close(self) -> None:
        self.log.append(f"close {self.name}")

    def fingerprint(self) -> str:
        return f"digest of {self.name}"


def parts() -> dict[str, Any]:
    return {"c": OneByOne(5, 200), "a": InColumns(7, 0), "b": InLists(4, 100)}


# The suites of a source and its reader


class TestColumns(SourceSuite):
    largest_pickle = None

    def make_source(self) -> RecordSource:
        columns = {"id": np.arange(20), "in": {"y": np.ones((20, 2)), "name": np.array(["a", "bcd"] * 10)}}
        more = {"id": np.arange(9) + 50, "in": {"y": np.zeros((9, 2)), "name": np.array(["longer"] * 9)}}
        source = mixed_source({"b": in_memory(columns), "a": in_memory(more)})
        assert type(source) is MixedColumns
        return source


class TestRecords(SourceSuite):
    def make_source(self) -> RecordSource:
        source = mixed_source(parts())
        assert type(source) is MixedSource
        return source


class TestReaders(SourceSuite):
    def make_source(self) -> RecordSource:
        return mixed_source({name: Opened(5, 10 * number, name, log=[]) for number, name in enumerate("ab")})


# Ways to read


def test_records_run_over_the_parts_by_label() -> None:
    source = mixed_source(parts())
    assert len(source) == 16
    assert [int(source[index]["x"]) for index in range(16)] == [*range(7), *range(100, 104), *range(200, 205)]
    with pytest.raises(IndexError, match="record 16 was asked for, there are records 0 to 15"):
        source[16]


def test_each_part_is_asked_once_by_its_best_way_and_rows_keep_their_order() -> None:
    of = parts()
    rows = mixed_source(of).__getitems__([15, 3, 8, 0, 12, 3, 7])
    assert len(rows) == 7
    assert of["a"].calls == [("take", [3, 0, 3])]
    assert of["b"].calls == [("many", [1, 0])]
    assert of["c"].calls == [], "read when it is looked at, by whoever does"
    assert [int(row["x"]) for row in rows] == [204, 3, 101, 0, 201, 3, 100]
    assert of["c"].calls == [("one", 4), ("one", 1)]
    assert [row.part for row in rows] == [2, 0, 1, 0, 2, 0, 1]


def test_columns_are_taken_once_a_part_and_scattered() -> None:
    of = {"b": InColumns(4, 100), "a": InColumns(7, 0)}
    source = mixed_source(of)
    assert isinstance(source, MixedColumns)
    batch = source.take(np.array([10, 3, 8, 0, 3]))
    assert batch["x"].tolist() == [103, 3, 101, 0, 3]
    assert [of["a"].calls, of["b"].calls] == [[("take", [3, 0, 3])], [("take", [3, 1])]]
    assert source.take(np.array([9, 7]))["x"].tolist() == [102, 100], "of one part alone"
    assert batch["x"].flags.c_contiguous
    assert batch["x"].flags.owndata


def test_a_source_without_take_leaves_the_mixture_without() -> None:
    assert not hasattr(mixed_source(parts()), "take")


def test_slow_parts_are_read_side_by_side() -> None:
    """Records that a part reads one at a time are read by the step's pool, not one after the other."""
    readers = 0
    lock, two_at_once = threading.Lock(), threading.Event()

    class Slow(OneByOne):
        def record(self, index: int) -> dict[str, Any]:
            nonlocal readers
            with lock:
                readers += 1
                if readers == 2:
                    two_at_once.set()
            if threading.current_thread() is not threading.main_thread():  # which looks at record 0 when it opens
                two_at_once.wait(20)
            with lock:
                readers -= 1
            return super().record(index)

    mixture = Mixture({"a": (Slow(40), 1), "b": (InColumns(40, 100), 1)}, loading=Loading(workers=0, threads=4))
    with mixture.load(batch=16).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        assert len(next(stream)["x"]) == 16
    assert two_at_once.is_set()


# Description


def test_description_and_fingerprint_come_from_the_parts_whatever_their_order() -> None:
    log: list[str] = []
    of = {name: Opened(5, 0, name, log=log) for name in "ba"}
    one, other = mixed_source(of), mixed_source(dict(reversed(of.items())))
    assert repr(one) == repr(other) == "Mixture(a: Opened(a, 5), b: Opened(b, 5))"
    assert one.fingerprint() == other.fingerprint()
    assert one.fingerprint() != mixed_source({"a": of["a"]}).fingerprint()
    assert mixed_source({**of, "c": OneByOne(3)}).fingerprint() is None
    many = {f"part-{number}": OneByOne(3) for number in range(100)}
    assert describe(mixed_source(many)).startswith("MixedSource(sha256=")


# Opening and closing


def test_parts_are_opened_for_each_reader_and_closed_with_it() -> None:
    log: list[str] = []
    source = mixed_source({"a": Opened(5, 0, "a", log=log), "b": InColumns(5), "c": Opened(5, 0, "c", log=log)})
    reader = source.open()
    assert type(reader) is MixedColumns
    assert log == ["open a", "open c"]
    source.close()
    assert log == ["open a", "open c"], "the source itself holds nothing"
    reader.close()
    assert log == ["open a", "open c", "close a", "close c"]


def test_a_part_that_cannot_be_opened_closes_the_others() -> None:
    log: list[str] = []

    class Broken(InColumns):
        def open(self) -> Any:
            raise OSError("no such file")

    source = mixed_source({"a": Opened(5, 0, "a", log=log), "b": Broken(5)})
    with pytest.raises(OSError, match="no such file") as caught:
        source.open()
    assert caught.value.__notes__ == ["in part 'b' of the mixture, which holds its records 5 to 9"]
    assert log == ["open a", "close a"]


def test_a_reader_without_close_is_refused() -> None:
    class Endless(InColumns):
        def open(self) -> Any:
            return InColumns(5)

    with pytest.raises(SourceError, match=r"Endless\(one, 5\).open\(\) must return a reader with a close\(\) method"):
        mixed_source({"a": Endless(5)}).open()


def test_all_parts_are_closed_whatever_one_raises() -> None:
    log: list[str] = []

    class Stuck(Opened):
        def open(self) -> "Stuck":
            return self

        def close(self) -> None:
            super().close()
            raise OSError(f"{self.name} is stuck")

    reader = mixed_source({name: Stuck(5, 0, name, log=log) for name in "ab"}).open()
    with pytest.raises(OSError, match="a is stuck") as caught:
        reader.close()
    assert log == ["close a", "close b"]
    assert caught.value.__notes__ == ["closing another part failed too: OSError('b is stuck')"]


# Errors while reading


@pytest.mark.parametrize("kind", [OneByOne, InLists, InColumns])
def test_an_error_names_the_part(kind: type[OneByOne]) -> None:
    class Bad(kind):  # type: ignore[misc, valid-type]
        def record(self, index: int) -> dict[str, Any]:
            raise OSError("disk")

        def take(self, indices: Any) -> dict[str, Any]:
            raise OSError("disk")

    if kind is not InColumns:
        del Bad.take
    source = mixed_source({"a": InColumns(5), "b": Bad(5)})
    with pytest.raises(OSError, match="disk") as caught:
        [*source.__getitems__([1, 6])]
    assert "in part 'b' of the mixture, which holds its records 5 to 9" in caught.value.__notes__


def test_too_few_records_are_refused() -> None:
    class Short(InLists):
        def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
            return super().__getitems__(indices)[:1]

    with pytest.raises(SourceError, match="2 records were asked for and 1 returned") as caught:
        mixed_source({"a": Short(5), "b": OneByOne(3)}).__getitems__([1, 2, 6])
    assert caught.value.__notes__ == ["in part 'a' of the mixture, which holds its records 0 to 4"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": np.arange(3.0)}, "field 'x' is int64 () in part 'a' and float64 () in part 'b' of the mixture"),
        ({"x": np.ones((3, 2), np.int64)}, "field 'x' is int64 () in part 'a' and int64 (2,) in part 'b'"),
        ({"y": np.arange(3)}, "field 'x' is in part 'a' and missing from part 'b' of the mixture"),
        ({"x": np.arange(3), "y": np.arange(3)}, "field 'y' is in part 'b' and missing from part 'a' of the mixture"),
        ({"x": {"y": np.arange(3)}}, "field 'x' is a mapping in one of part 'a' and part 'b' of the mixture only"),
    ],
)
def test_columns_that_differ_in_a_step_are_refused(columns: Mapping[str, Any], message: str) -> None:
    source = mixed_source({"a": InColumns(5), "b": in_memory(columns)})
    with pytest.raises(CollateError, match=re.escape(message)):
        source.take(np.array([0, 5, 6]))  # type: ignore[attr-defined]


# Preprocess


def test_the_part_picks_the_preprocess() -> None:
    def double(record: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"x": record["x"] * 2}

    def jitter(record: Mapping[str, Any], rng: np.random.Generator) -> Mapping[str, Any]:
        return {"x": record["x"] + rng.integers(1000)}

    plain: Any = mixed_preprocess({"b": double, "a": None})
    assert plain(PartRecord(1, {"x": 3})) == {"x": 6}
    assert plain(PartRecord(0, {"x": 3})) == {"x": 3}
    drawing: Any = mixed_preprocess({"a": jitter, "b": double})
    assert drawing(PartRecord(1, {"x": 3}), np.random.default_rng(0)) == {"x": 6}
    expected = 3 + np.random.default_rng(0).integers(1000)
    assert drawing(PartRecord(0, {"x": 3}), np.random.default_rng(0)) == {"x": expected}
    assert plain.__qualname__.startswith("(a: None, b: ")
    assert plain.__qualname__.endswith("double)")


def test_an_error_in_preprocess_names_the_part() -> None:
    def fails(record: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ValueError("no image")

    with pytest.raises(ValueError, match="no image") as caught:
        mixed_preprocess({"a": None, "b": fails})(PartRecord(1, {"x": 3}))  # type: ignore[call-arg]
    assert caught.value.__notes__ == ["in preprocess of part 'b' of the mixture"]


# Layouts


def layouts(*records: Any, preprocess: Sequence[Any] = (None, None)) -> None:
    sources = [in_memory([record]) for record in records]
    check_layouts({label: (*part,) for label, *part in zip("ab", sources, preprocess, strict=True)}, 0)  # type: ignore[misc]


IMAGE = {"image": np.zeros((8, 8, 3), np.uint8), "label": np.int32(1), "text": "short"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"label": np.int64(1)}, "field 'label' is int32 () in part 'a' and int64 () in part 'b' (record 0 of each)"),
        ({"image": np.zeros((8, 9, 3), np.uint8)}, "field 'image' is uint8 (8, 8, 3) in part 'a' and uint8 (8, 9, 3)"),
        ({"extra": np.zeros(3)}, "field 'extra' is missing in part 'a' and float64 (3,) in part 'b'"),
        ({"label": {"id": np.int32(1)}}, "field 'label' is int32 () in part 'a' and missing in part 'b'"),
        ({"text": 3}, "field 'text' is text () in part 'a' and int64 () in part 'b'"),
    ],
)
def test_records_that_differ_are_refused_by_field_and_part(other: Mapping[str, Any], message: str) -> None:
    with pytest.raises(CollateError, match=re.escape(message)):
        layouts(IMAGE, {**IMAGE, **other})


def test_records_alike_pass() -> None:
    layouts(IMAGE, {**IMAGE, "text": "a longer text"})
    layouts(IMAGE, {"label": np.int32(1), "text": "x", "image": np.ones((8, 8, 3), np.uint8)})
    layouts({"x": 1}, {"y": 1.5}, preprocess=(None, lambda record: {"x": int(record["y"])}))
    layouts({"x": 1}, {"x": 1}, preprocess=(lambda record, rng: {"x": record["x"] + int(rng.integers(3))}, None))


def test_what_no_batch_can_hold_is_refused_at_once() -> None:
    with pytest.raises(CollateError, match="field 'x' is None in record 0 of part 'b'") as caught:
        layouts({"x": 1}, {"x": None})
    assert caught.value.__notes__ == ["looking at record 0 of part 'b' of the mixture"]


def test_looking_closes_what_it_opened() -> None:
    log: list[str] = []
    check_layouts({"a": (Opened(5, 0, "a", log=log), None), "b": (Opened(5, 0, "b", log=log), None)}, 0)
    assert log == ["open a", "close a", "open b", "close b"]
