"""`Mixture`: parts of every form become one dataset whose position names every part and weight, on any topology."""

import itertools
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
import numpy as np
import pytest

from dew.data import (
    CollateError,
    DataPartition,
    Dataset,
    DewWarning,
    Loading,
    Mixture,
    OptionsError,
    OptionsTypeError,
    OverlapError,
    PositionError,
    PositionMismatchError,
    Ramp,
    RecordStream,
    SourceError,
    dataset_of,
    from_records,
    ramped,
    rebatch,
    skip,
    validation_sets,
)
from dew.data.blocks import BlockOrder
from dew.data.build import in_memory
from dew.data.mixture import MixtureOrder
from dew.data.order import SequentialOrder
from dew.testing import StreamSuite
from dew.testing.streams import whole_step

HERE = Loading(workers=0, threads=1, read_buffer=0)
WAYS = [HERE, Loading(workers=0, threads=1), Loading(workers=0, threads=4), Loading(workers=1)]


def columns(count: int, first: int = 0) -> dict[str, Any]:
    return {"x": np.arange(first, first + count), "y": np.full((count, 2), first, np.float32)}


class Rows:
    """Records without columns, described by name."""

    def __init__(self, name: str, count: int, first: int = 0, digest: str | None = None) -> None:
        self.name, self.count, self.first, self.digest = name, count, first, digest

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return {"x": np.int64(self.first + index), "y": np.full(2, self.first, np.float32)}

    def __repr__(self) -> str:
        return f"Rows({self.name})"

    def fingerprint(self) -> str | None:
        return self.digest


@attrs.frozen
class Corpus:
    """A specification over a path, as `TokenWindows` is."""

    path: str
    count: int = 20
    first: int = 0
    val: int = 0

    def load(self, *, batch: int) -> Dataset:
        val = from_records(columns(self.val, -1000), batch=batch).train if self.val else None
        made = from_records(columns(self.count, self.first), batch=batch, repeat_in_step=True)
        if val is None:
            return made
        return from_records(columns(self.count, self.first), val=columns(self.val, -1000), batch=batch)


def jitter(record: Mapping[str, Any], rng: np.random.Generator) -> Mapping[str, Any]:
    return {"x": record["x"], "y": record["y"] + rng.random(2, dtype=np.float32)}


def double(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"x": record["x"], "y": record["y"] * 2}


def two(weight_a: Any = 0.7, weight_b: Any = 0.3, **options: Any) -> Mixture:
    parts = {"a": (columns(1000), weight_a), "b": (columns(30, 5000), weight_b)}
    return Mixture(parts, **{"loading": HERE, **options})


def stream_of(mixture: Mixture | Dataset, batch: int = 16, *share: int) -> RecordStream:
    dataset = mixture.load(batch=batch) if isinstance(mixture, Mixture) else mixture
    stream = dataset.train(DataPartition(*share))
    assert isinstance(stream, RecordStream)
    return stream


def read(stream: RecordStream, steps: int | None = None) -> list[int]:
    """`x` of the next steps, one after the other."""
    return [int(x) for batch in itertools.islice(stream, steps) for x in batch["x"]]


# The suite of a stream


class MixedStreamSuite(StreamSuite):
    exempt: ClassVar = {"test_epochs_hold_each_record_once": "a mixture has none; here those of its parts are"}

    def test_epochs_hold_each_record_once(self) -> None:
        """Each part's epochs do; the mixture has none of its own."""
        stream = stream_of(self.make_dataset())
        order = stream.order
        assert isinstance(order, MixtureOrder)
        found = order.at(np.arange(20 * order.records, dtype=np.int64))
        which = np.array([order.part_of(record)[0] for record in found.tolist()])
        for number, part in enumerate(order.parts):
            read = found[which == number]
            epochs = read[: len(read) // part.order.records * part.order.records].reshape(-1, part.order.records)
            assert len(epochs) > 1
            assert (np.sort(epochs, axis=1) == np.sort(epochs[0])).all()
        stream.close()


class TestColumns(MixedStreamSuite):
    def make_dataset(self) -> Dataset:
        parts = {"b": (columns(9, 50), 0.3), "a": (columns(29), 0.7)}
        val = {"a": columns(7, 900), "b": columns(5, 800)}
        return Mixture(parts, seed=5, val=val).load(batch=12)


class TestRecords(MixedStreamSuite):
    """Parts of different kinds, one with draws, over three stages, read by threads."""

    steps = 9

    def make_dataset(self) -> Dataset:
        parts = {"rows": (Rows("one", 25), 1), "drawn": (columns(13, 100), 2), "late": (Rows("late", 8, 500), None)}
        stages = [(40, {"late": 1, "rows": 1}), (101, {"drawn": 1, "late": 0.5, "rows": 3})]
        mixture = Mixture(
            parts, stages=stages, preprocess={"drawn": jitter}, place_field="place", loading=Loading(threads=3)
        )
        return mixture.load(batch=24)


class TestWorkers(MixedStreamSuite):
    steps = 2
    largest_count = 2

    def make_dataset(self) -> Dataset:
        parts = {"rows": (Rows("one", 25), 1), "drawn": (columns(13, 100), 2)}
        return Mixture(parts, preprocess={"drawn": jitter}, loading=Loading(workers=1)).load(batch=4)


# Parts


def test_parts_of_every_form_are_one_mixture() -> None:
    forms: list[Any] = [
        columns(20),
        [{"x": index, "y": np.zeros(2, np.float32)} for index in range(20)],
        Rows("rows", 20),
        in_memory(columns(20)),
        from_records(columns(20), batch=7),
        Corpus("/data/corpus"),
    ]
    expected = read(stream_of(Mixture({"a": (columns(20), 1), "b": (columns(9, 100), 1)}, loading=HERE)), 9)
    for form in forms:
        assert read(stream_of(Mixture({"a": (form, 1), "b": (columns(9, 100), 1)}, loading=HERE)), 9) == expected


def test_labels_come_from_paths() -> None:
    mixture = Mixture([(Corpus("gs://bucket/web/"), 1), (Corpus("/data/code", 9, 100), 3)], loading=HERE)
    assert list(mixture.parts) == ["web", "code"]
    named = Mixture({"code": (Corpus("/else/x", 9, 100), 3), "web": (Corpus("y"), 1)}, loading=HERE)
    assert read(stream_of(mixture), 5) == read(stream_of(named), 5)


def test_parts_without_a_label_of_their_own_are_refused() -> None:
    message = "part 0 (/a/train) and part 1 (/b/train) would both be labelled 'train', and saved positions know"
    with pytest.raises(OptionsError, match=re.escape(message)):
        Mixture([(Corpus("/a/train"), 1), (Corpus("/b/train"), 1)])
    with pytest.raises(OptionsError, match=r"part 1 of the mixture, Rows\(x\), has no path to take a label from"):
        Mixture([(Corpus("/a/train"), 1), (Rows("x", 3), 1)])


@pytest.mark.parametrize(
    ("parts", "kind", "message"),
    [
        ({}, OptionsError, "at least one part with a weight, got none"),
        ([], OptionsError, "at least one part with a weight, got none"),
        ("tokens/a", OptionsTypeError, "a mixture takes a mapping of label to (part, weight), or a list of"),
        (3, OptionsTypeError, "or a list of (part, weight), got int"),
        ({"a": Rows("x", 3)}, OptionsTypeError, "part 'a' of a mixture is a pair (part, weight), got Rows(x)"),
        ([Rows("x", 3)], OptionsTypeError, "part 0 of a mixture is a pair (part, weight), got Rows(x)"),
        ({"a": ("tokens/a", 0.5)}, OptionsTypeError, "load({'tokens/a': 0.5, ...}, batch=...)"),
        ({"a": (columns(3), -1)}, OptionsError, "the weight of 'a' must be above 0, got -1"),
        ({"a": (columns(3), True)}, OptionsTypeError, "the weight of 'a' must be a number above 0, got True (bool)"),
        ({"a": (columns(3), 1), "b": (columns(3), 1e-9)}, OptionsError, "the weight of 'b' asks for a share of 1e-09"),
        ({"a": (columns(3), None)}, OptionsError, "at least one part with a weight, got none"),
    ],
)
def test_parts_that_cannot_be_are_refused_when_they_are_named(parts: Any, kind: type, message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        Mixture(parts)


def streaming(partition: DataPartition) -> Any:
    return iter([{"x": np.zeros(partition.rows(4))}])


@pytest.mark.parametrize(
    ("part", "kind", "message"),
    [
        (two(), OptionsTypeError, "part 'a' is a mixture itself; list its parts, their weights multiplied, instead"),
        (two().load(batch=8), OptionsTypeError, "part 'a' is a mixture itself"),
        (3, OptionsTypeError, "part 'a' of a mixture is a record source (__len__ and __getitem__), a specification"),
        (Dataset(streaming, batch=4), OptionsTypeError, "part 'a' is read as a stream (list_iterator), and a mixture"),
        (ramped(from_records(columns(20), batch=4), Ramp(2, 2, 8)), OptionsError, "part 'a' has the batch ramp Ramp("),
        ({"x": np.zeros(0)}, SourceError, "holds no records"),
    ],
)
def test_parts_that_cannot_be_are_refused_when_they_are_loaded(part: Any, kind: type, message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        Mixture({"a": (part, 1), "b": (columns(9), 1)}).load(batch=4)


def test_an_empty_part_is_named() -> None:
    with pytest.raises(SourceError, match="holds no records") as caught:
        Mixture({"web": (columns(9), 1), "code": (Rows("x", 0), 1)}).load(batch=4)
    assert caught.value.__notes__ == ["in part 'code' of the mixture"]


def test_a_specification_that_loads_something_else_is_refused() -> None:
    class Odd:
        def load(self, *, batch: int) -> int:
            return batch

    with pytest.raises(OptionsTypeError, match=r"part 'a': load\(batch=1\) of .*Odd must return a Dataset, got int"):
        Mixture({"a": (Odd(), 1)}).load(batch=4)


def test_parts_that_differ_are_refused_by_field_at_open() -> None:
    other = {"x": np.arange(9), "y": np.zeros((9, 2))}
    with pytest.raises(CollateError, match=r"field 'y' is float32 \(2,\) in part 'a' and float64 \(2,\) in part 'b'"):
        Mixture({"a": (columns(9), 1), "b": (other, 1)}).load(batch=4)


def test_a_part_smaller_than_a_batch_needs_nothing_and_a_mixture_smaller_does() -> None:
    mixture = Mixture({"a": (columns(3), 1), "b": (columns(100, 100), 1)}, loading=HERE)
    counts = np.bincount([x for x in read(stream_of(mixture, 64), 10) if x < 100])
    assert np.abs(counts - 320 / 3).max() <= 2
    small = {"a": (columns(3), 1), "b": (columns(4, 100), 1)}
    with pytest.raises(SourceError, match="holds 7 records, fewer than one global batch of 8"):
        Mixture(small).load(batch=8)
    assert len(read(stream_of(Mixture(small, repeat_in_step=True, loading=HERE), 8), 1)) == 8


def test_a_parts_own_order_is_kept_where_it_is_no_shuffle() -> None:
    ordered = dataset_of(in_memory(columns(50)), batch=5, order=SequentialOrder(records=50))
    x = read(stream_of(Mixture({"a": (ordered, 1), "b": (columns(9, 100), 1)}, loading=HERE)), 20)
    assert [value for value in x if value < 100][:120] == [number % 50 for number in range(120)]


class Groups(Rows):
    """Dear to read in a uniform order: wants blocks of ten records, two side by side."""

    def order(self, seed: int) -> BlockOrder:
        return BlockOrder([10] * (self.count // 10), seed=seed, lanes=2)


def test_a_part_is_read_in_the_order_that_its_source_wants() -> None:
    parts = {"a": (Groups("a", 50), 1), "b": (Groups("b", 50, 100), 1), "c": (columns(30, 500), 2)}
    mixture = Mixture(parts, loading=Loading(workers=None, threads=1, read_buffer=0))
    stream = stream_of(mixture, 16)
    x = read(stream, 40)
    a, b = ([value - first for value in x if value // 100 == first // 100] for first in (0, 100))
    for values in (a, b):
        for start in (0, 20, 50):
            assert len({value // 10 for value in values[start : start + 20]}) == 2, "two blocks, read whole"
        assert sorted(values[:50]) == list(range(50))
    assert a != b, "blocks of equal sizes are not permuted alike"
    order = stream.get_state()["order"]
    assert order["parts.c.order"] == "shuffled"
    assert order["parts.a.order"]["kind"] != order["parts.c.order"]
    assert order["parts.a.order"]["seed"] != order["parts.b.order"]["seed"]
    through = Mixture({**parts, "a": (dataset_of(Groups("a", 50), batch=2), 1)}, loading=HERE)
    assert read(stream_of(through, 16), 40) == x
    record = int(stream.ids(7)[3])
    assert 7 * 16 + 3 in stream.order.places(record, 0, 640)


def test_preprocess_by_part() -> None:
    parts = {"a": (columns(40, 1), 1), "b": (columns(40, 100), 1)}
    by_part = next(stream_of(Mixture(parts, preprocess={"b": double}, loading=HERE)))
    assert set(by_part["y"][by_part["x"] < 100].ravel()) == {1}
    assert set(by_part["y"][by_part["x"] >= 100].ravel()) == {200}
    for_all = next(stream_of(Mixture(parts, preprocess=double, loading=HERE)))
    assert set(for_all["y"][for_all["x"] < 100].ravel()) == {2}
    brought = dataset_of(in_memory(columns(40, 1)), batch=5, preprocess=double)
    own = next(stream_of(Mixture({**parts, "a": (brought, 1)}, loading=HERE)))
    assert set(own["y"][own["x"] < 100].ravel()) == {2}
    with pytest.raises(OptionsError, match="part 'a' brings a preprocess of its own; leave it out of preprocess="):
        Mixture({**parts, "a": (brought, 1)}, preprocess=double).load(batch=4)
    for option in ("preprocess", "max_epochs", "val"):
        with pytest.raises(OptionsError, match=rf"{option} given for \['c'\], which are no parts of the mixture"):
            Mixture(parts, **{option: {"c": 1}})  # type: ignore[arg-type]


# Content and topology


@pytest.mark.parametrize("loading", WAYS, ids=["here", "ahead", "threads", "workers"])
def test_a_small_part_on_many_processes_resumes_in_the_middle(loading: Loading) -> None:
    """Sources of 3 and 100 rows, 4 processes: the records of one process without workers."""

    def make(loading: Loading) -> Mixture:
        return Mixture({"three": (columns(3), 1), "hundred": (Rows("h", 100, 50), 1)}, seed=9, loading=loading)

    alone = stream_of(make(HERE), 8)
    batches = [next(alone) for _ in range(6)]
    shares = [stream_of(make(loading), 8, index, 4) for index in range(4)]
    states = []
    for step in range(3):
        states = [share.get_state() for share in shares]
        assert all(state == states[0] for state in states)
        np.testing.assert_array_equal(whole_step([next(share) for share in shares])["x"], batches[step]["x"])
    again = [stream_of(make(loading), 8, index, 2) for index in range(2)]
    for share in again:
        share.set_state(json.loads(json.dumps(states[0])))
    for step in range(2, 4):
        np.testing.assert_array_equal(whole_step([next(share) for share in again])["x"], batches[step]["x"])
    for stream in (*shares, *again):
        stream.close()


def test_draws_follow_the_place_in_the_mixture() -> None:
    """The same record draws anew at each place, and the same at that place on any topology, whoever reads it."""
    parts = {"a": (columns(5), 1), "b": (Rows("b", 30, 100), 1)}
    mixture = Mixture(parts, preprocess=jitter, loading=HERE)
    alone = [next(stream) for stream in [stream_of(mixture, 12)] for _ in range(5)]
    for threads in (1, 4):
        shares = [
            stream_of(attrs.evolve(mixture, loading=Loading(workers=0, threads=threads)), 12, index, 3)
            for index in range(3)
        ]
        for batch in alone:
            np.testing.assert_array_equal(whole_step([next(share) for share in shares])["y"], batch["y"])
        for share in shares:
            share.close()
    drawn = [float(y[0]) for batch in alone for x, y in zip(batch["x"], batch["y"], strict=True) if x == 3]
    assert len(set(drawn)) == len(drawn) > 3


def test_ids_name_the_records_of_all_parts() -> None:
    stream = stream_of(two())
    for step in range(3):
        ids = stream.ids(step)
        x = np.where(ids < 1000, ids, ids - 1000 + 5000)
        np.testing.assert_array_equal(next(stream)["x"], x)
    record = int(stream.ids(2)[5])
    assert 2 * 16 + 5 in stream.order.places(record, 0, 1000)


def test_a_ramp_and_a_new_batch_keep_the_order() -> None:
    whole = read(stream_of(two()), 20)
    ramp = ramped(two().load(batch=16), Ramp(4, 4, 64))
    assert read(stream_of(ramp), 12) == whole[: len(read(stream_of(ramp), 12))]
    stream = stream_of(two())
    head = read(stream, 4)
    other = stream_of(two(), 32)
    other.set_state(rebatch(stream.get_state(), 32))
    assert head + read(other, 3) == whole[: 64 + 96]


# Positions


def test_a_position_resumes_whatever_the_order_of_the_parts() -> None:
    stream = stream_of(two())
    read(stream, 7)
    state = stream.get_state()
    swapped = Mixture({"b": (columns(30, 5000), 3), "a": (columns(1000), 7)}, loading=HERE)
    other = stream_of(swapped)
    other.set_state(state)
    assert read(other, 5) == read(stream, 5)
    assert other.get_state() == stream.get_state()


def changed(**parts: Any) -> Mixture:
    return Mixture({label: (part, 1) for label, part in parts.items()}, loading=HERE)


@pytest.mark.parametrize(
    ("other", "part", "saved", "current"),
    [
        (changed(a=Rows("a", 20, digest="1"), b=Rows("b", 9, digest="9")), "parts.b.fingerprint", "2", "9"),
        (changed(a=Rows("a", 20, digest="1"), b=Rows("c", 9, digest="2")), "parts.b.source", "Rows(b)", "Rows(c)"),
        (changed(a=Rows("a", 21, digest="1"), b=Rows("b", 9, digest="2")), "parts.a.records", 20, 21),
        (changed(a=Rows("a", 20, digest="1")), "parts.b.records", 9, "(absent)"),
    ],
)
def test_another_part_is_refused_by_name(other: Mixture, part: str, saved: Any, current: Any) -> None:
    stream = stream_of(changed(a=Rows("a", 20, digest="1"), b=Rows("b", 9, digest="2")), 4)
    next(stream)
    with pytest.raises(PositionMismatchError, match=re.escape(f"another {part}: saved {saved!r}, ")) as caught:
        stream_of(other, 4).set_state(stream.get_state())
    assert (caught.value.part, caught.value.saved, caught.value.current) == (part, saved, current)
    assert f"accept={{{part!r}}}" in str(caught.value)


def test_one_part_is_accepted_at_a_time() -> None:
    stream = stream_of(changed(a=Rows("a", 20, digest="1"), b=Rows("b", 9, digest="2")), 4)
    state = (next(stream), stream.get_state())[1]
    other = stream_of(changed(a=Rows("a", 20, digest="7"), b=Rows("b", 9, digest="9")), 4)
    with pytest.raises(PositionMismatchError, match=r"parts\.b\.fingerprint"):
        other.set_state(state, accept={"parts.a.fingerprint"})
    other.set_state(state, accept={"parts.a.fingerprint", "parts.b.fingerprint"})
    accepted = other.get_state()["accepted"]
    assert [entry["part"] for entry in accepted] == ["parts.a.fingerprint", "parts.b.fingerprint"]
    assert read(other, 3) == read(stream, 3)


def test_a_seed_and_a_kind_are_refused() -> None:
    stream = stream_of(two())
    state = (next(stream), stream.get_state())[1]
    with pytest.raises(PositionMismatchError, match="another seed: saved 0, this stream has 1"):
        stream_of(two(seed=1)).set_state(state)
    plain = from_records(columns(1030), batch=16, loading=HERE)
    with pytest.raises(PositionMismatchError, match="another version"):
        stream_of(plain).set_state(state)


def test_facts_of_a_source_that_would_hide_another_are_refused() -> None:
    class Named(Rows):
        def identity(self) -> Mapping[str, Any]:
            return {"tokenizer": "abc", "records": 3}

    with pytest.raises(SourceError, match=r"identity\(\) has \['records'\], which name parts of the order") as caught:
        changed(a=Named("a", 5)).load(batch=2)
    assert caught.value.__notes__ == ["in part 'a' of the mixture"]


def test_another_preprocess_warns_and_names_every_parts() -> None:
    parts = {"a": (columns(40), 1), "b": (columns(40, 100), 1)}
    stream = stream_of(Mixture(parts, preprocess={"b": double}, loading=HERE))
    state = (next(stream), stream.get_state())[1]
    other = stream_of(Mixture(parts, preprocess={"a": jitter, "b": double}, loading=HERE))
    with pytest.warns(
        DewWarning, match=r"preprocess .*\(a: None, b: .*double\)', this stream has .*\(a: .*jitter, b: "
    ):
        other.set_state(state)


# Weights that change


def test_changed_weights_are_refused_and_the_way_is_shown() -> None:
    stream = stream_of(two())
    state = (read(stream, 3), stream.get_state())[1]
    other = stream_of(two(0.6, 0.4))
    message = (
        "another weights: saved {'a': '7/10', 'b': '3/10'}, this stream has {'a': '3/5', 'b': '2/5'}. Weights change "
        "where a stage begins: Mixture.add_stage_at(state, weights)"
    )
    with pytest.raises(PositionMismatchError, match=re.escape(message)) as caught:
        other.set_state(state)
    assert caught.value.part == "weights"
    with pytest.raises(OptionsError, match=r"accept=\['weights'\] cannot be accepted"):
        other.set_state(state, accept={"weights"})
    stream_of(two(7, 3)).set_state(state)  # the same shares


@pytest.mark.parametrize("steps", [1, 3, 4, 20])
def test_a_stage_added_at_a_position_skips_and_repeats_nothing(steps: int) -> None:
    before = stream_of(two())
    head = read(before, steps)
    state = before.get_state()
    for position in (state, json.loads(json.dumps(state)), before.position, 16 * steps):
        changed = two().add_stage_at(position, {"a": 1, "b": 2})
        after = stream_of(changed)
        after.set_state(state)
        assert read(stream_of(changed), steps) == head, "a run from the start reads the same before it"
        tail = read(after, 60)
        whole = head + tail
        for label, size, first in (("a", 1000, 0), ("b", 30, 5000)):
            of = [x for x in whole if (x >= 5000) == (first == 5000)]
            plain = [
                x for x in read(stream_of(changed_only(label)), -(-len(of) // 16)) if (x >= 5000) == (first == 5000)
            ]
            assert of == plain[: len(of)], f"{label} goes on where it stood"
            assert len(set(of[:size])) == min(size, len(of))
        report = after.order.report(after.position.records)  # type: ignore[attr-defined]
        assert report["b"].records == sum(x >= 5000 for x in whole)
        assert abs(sum(x >= 5000 for x in tail) - len(tail) * 2 / 3) <= 5


def changed_only(label: str) -> Mixture:
    """All records of one part, in its own order: nothing else in the mixture."""
    part = columns(1000) if label == "a" else columns(30, 5000)
    return Mixture({label: (part, 1)}, repeat_in_step=True, loading=HERE)


def test_a_checkpoint_before_a_stage_goes_on_into_it() -> None:
    """Rolling back behind an added stage is fine; a position behind it does not fit the mixture without."""
    before = stream_of(two())
    states = []
    for _ in range(6):
        states.append(before.get_state())
        next(before)
    changed = two().add_stage_at(states[4], {"b": 1})
    whole = read(stream_of(changed), 10)
    for step in (0, 2, 4):
        again = stream_of(changed)
        again.set_state(states[step])
        assert read(again, 10 - step) == whole[16 * step :]
    with pytest.raises(PositionMismatchError, match=r"another weights@64: saved '\(absent\)', this stream has"):
        stream_of(changed).set_state(states[5])
    after = stream_of(changed)
    read(after, 5)
    with pytest.raises(
        PositionMismatchError, match=r"another weights@64: saved {'b': '1'}, this stream has '\(absent\)'"
    ):
        stream_of(two()).set_state(after.get_state())
    with pytest.raises(OptionsError, match=r"accept=\['weights@64'\] cannot be accepted"):
        stream_of(two()).set_state(after.get_state(), accept={"weights@64"})


def test_a_part_that_a_later_stage_brings() -> None:
    stream = stream_of(two())
    head = read(stream, 3)
    state = stream.get_state()
    parts = {"a": (columns(1000), 0.7), "b": (columns(30, 5000), 0.3), "c": (columns(50, 9000), None)}
    grown = Mixture(parts, stages=[(48, {"a": 1, "c": 1})], loading=HERE)
    after = stream_of(grown)
    after.set_state(state)
    tail = read(after, 5)
    assert head + tail == read(stream_of(grown), 8)
    assert {x // 1000 for x in tail} == {0, 9}
    assert "parts.c.records" in after.get_state()["order"]
    assert "parts.c.records" not in state["order"]


def test_a_skip_over_the_start_of_a_stage() -> None:
    mixture = two().add_stage_at(64, {"a": 1, "b": 1})
    stream = stream_of(mixture)
    head = read(stream, 3)
    after = stream_of(mixture)
    after.set_state(skip(stream.get_state(), 40))
    whole = read(stream_of(mixture), 20)
    assert head == whole[:48]
    assert read(after, 3) == whole[88 : 88 + 48]
    again = stream_of(mixture)
    again.set_state(after.get_state())
    assert read(again, 2) == read(after, 2)


def test_stages_that_cannot_be_added_are_refused() -> None:
    staged = two(stages=[(100, {"a": 1}), (300, (1, 2))])
    assert [stage.start for stage in staged.add_stage_at(200, (None, 1)).stages] == [100, 200, 300]
    with pytest.raises(OptionsError, match="a stage begins at record 100 already"):
        staged.add_stage_at(100, {"a": 1})
    with pytest.raises(OptionsError, match="no record has been read at position 0"):
        staged.add_stage_at(stream_of(two()).get_state(), {"a": 1})
    with pytest.raises(OptionsError, match="position must be at least 0, got -1"):
        staged.add_stage_at(-1, {"a": 1})
    with pytest.raises(PositionError, match="a record stream cannot continue from the position of share 0 of 2"):
        staged.add_stage_at({"kind": "shard", "index": 0, "count": 2, "state": 1}, {"a": 1})
    for stages, message in (
        ([(0, {"a": 1})], "a stage starts after record 0"),
        ([5], r"a stage is a pair \(start, weights\), got 5"),
        ([(5, {"c": 1})], r"a stage's weights given for \['c'\], which are no parts"),
        ([(5, (1, 2, 3))], r"a stage's weights are one for each of \['a', 'b'\], got \(1, 2, 3\)"),
        ([(5, {"a": 0})], "the weight of 'a' must be above 0, got 0"),
        ([(5, {"a": 1}), (5, {"b": 1})], "got 5 after 5"),
    ):
        with pytest.raises((OptionsError, OptionsTypeError), match=message):
            two(stages=stages).load(batch=4)


# Ends


@pytest.mark.parametrize("loading", WAYS, ids=["here", "ahead", "threads", "workers"])
def test_a_mixture_that_ends_ends_after_the_last_whole_step(loading: Loading) -> None:
    whole = stream_of(two())
    order = stream_of(two(exhaustion="stop_first")).order
    assert isinstance(order, MixtureOrder)
    assert order.stop is not None
    steps = order.stop // 16
    expected = read(whole, steps)
    dataset = two(exhaustion="stop_first", loading=loading).load(batch=16)
    assert (dataset.records, dataset.steps_per_epoch) == (order.stop, steps)
    for count in (1, 2):
        shares = [stream_of(dataset, 16, index, count) for index in range(count)]
        batches = [[*share] for share in shares]
        assert [len(of) for of in batches] == [steps] * count
        assert [int(x) for step in zip(*batches, strict=True) for x in whole_step(step)["x"]] == expected
        state = shares[0].get_state()
        assert state["records"] == steps * 16
        for share in shares:
            with pytest.raises(StopIteration):
                next(share)
            share.close()
        after = stream_of(dataset)
        after.set_state(state)
        assert read(after) == []
        after.close()


def test_a_run_that_ends_resumes_and_changes_its_batch() -> None:
    dataset = two(max_epochs={"b": 5}).load(batch=16)
    assert dataset.records is not None
    stream = stream_of(dataset)
    read(stream, 4)
    later = stream_of(dataset)
    later.set_state(stream.get_state())
    assert len([*later]) == dataset.records // 16 - 4
    other = stream_of(two(max_epochs={"b": 5}), 48)
    other.set_state(rebatch(stream.get_state(), 48))
    assert len([*other]) == (dataset.records - 64) // 48
    past = stream_of(dataset)
    past.set_state(skip(stream.get_state(), 10**6))
    assert read(past) == []
    with pytest.raises(OptionsError, match=rf"step {dataset.records // 16} does not exist: this stream ends after"):
        stream.ids(dataset.records // 16)
    ramp = ramped(dataset, Ramp(4, 4, 64))
    assert len([*stream_of(ramp)]) == ramp.steps_per_epoch


def test_an_end_before_the_first_step_is_refused() -> None:
    with pytest.raises(SourceError, match=r"ends after \d+ records, before the first global batch of 512 is full"):
        two(exhaustion="stop_first").load(batch=512)


def test_an_endless_mixture_counts_the_records_of_its_parts() -> None:
    dataset = two().load(batch=16)
    assert (dataset.records, dataset.steps_per_epoch) == (1030, 64)


# Validation


def validated(**options: Any) -> Mixture:
    parts = {"b": (Corpus("/b", 40, 100, val=5), 1), "a": (columns(50), 3)}
    return Mixture(parts, val={"a": columns(7, 700)}, **{"loading": HERE, **options})


def scored(passes: Any, count: int = 1) -> list[int]:
    shares = [[*passes(DataPartition(index, count))] for index in range(count)]
    steps = [whole_step(step) for step in zip(*shares, strict=True)]
    return [int(x) for step in steps for x in step["x"][step["valid"]]]


def test_validation_is_named_by_part_and_joined() -> None:
    dataset = validated().load(batch=4)
    sets = validation_sets(dataset)
    assert list(sets) == ["a", "b"]
    for count in (1, 2, 4):
        assert scored(sets["a"], count) == list(range(700, 707))
        assert scored(sets["b"], count) == list(range(-1000, -995))
        assert scored(dataset.val, count) == [*range(700, 707), *range(-1000, -995)]
    assert len([*dataset.val(DataPartition())]) == 3  # type: ignore[misc]


def test_validation_takes_the_parts_preprocess() -> None:
    dataset = validated(preprocess={"a": double}).load(batch=4)
    assert set(next(validation_sets(dataset)["a"](DataPartition()))["y"].ravel()) == {1400}
    assert set(next(validation_sets(dataset)["b"](DataPartition()))["y"].ravel()) == {-1000}
    joined = next(dataset.val(DataPartition()))  # type: ignore[misc]
    assert set(joined["y"].ravel()) == {1400}


def test_validation_sets_of_other_datasets() -> None:
    assert validation_sets(from_records(columns(9), batch=4)) == {}
    plain = from_records(columns(9), val=columns(5, 50), batch=4)
    assert validation_sets(plain) == {"val": plain.val}
    assert two().load(batch=4).val is None


def test_validation_on_what_any_part_trains_on_is_refused() -> None:
    source = Rows("a", 50, digest="1")
    parts = {"a": (source, 1), "b": (Rows("b", 9, digest="2"), 1)}
    message = "validation of part 'b' would read what part 'a' trains on: Rows(a) (fingerprint 1)"
    for val in (source, Rows("a", 50, digest="1")):
        with pytest.raises(OverlapError, match=re.escape(message)):
            Mixture(parts, val={"b": val}).load(batch=4)
        Mixture(parts, val={"b": val}, allow_overlap=True).load(batch=4)
    Mixture(parts, val={"b": Rows("a", 50, digest="3")}).load(batch=4)
    with pytest.raises(OptionsError, match="part 'b' brings validation records of its own; leave it out of val="):
        Mixture({"b": (Corpus("/b", 40, val=5), 1)}, val={"b": columns(3)}).load(batch=4)


def test_a_validation_set_smaller_than_a_batch_without_padding_is_refused() -> None:
    with pytest.raises(SourceError, match="holds 7 records, fewer than one global batch of 8"):
        validated(val_remainder="drop").load(batch=8)


def test_validation_sets_must_be_alike_to_be_joined() -> None:
    with pytest.raises(CollateError, match="field 'y' is float32"):
        Mixture(
            {"a": (columns(9), 1), "b": (columns(9, 100), 1)},
            val={"a": columns(5, 700), "b": {"x": np.arange(3), "y": np.ones((3, 2))}},
        ).load(batch=4)


# Reports and the value itself


def test_shares_and_ends_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="dew.data"):
        dataset = two(1 / 3, 2, exhaustion="stop_first", stages=[(10, {"b": 1})]).load(batch=20)
        stream_of(dataset).close()
    (record,) = [record for record in caplog.records if "mixture" in record.message]
    lines = record.message.splitlines()
    assert lines[0] == "mixture of 2 parts, 1030 records"
    assert lines[1:4] == [
        "from record 0 on:",
        "  a: share 0.142853, asked 0.142857; 1000 records",
        "  b: share 0.857147, asked 0.857143; 30 records",
    ]
    assert lines[4:6] == ["from record 10 on:", "  b: share 1, asked 1; 30 records"]
    assert lines[6] == "it ends after 32 records; the last 12 fill no step"


def test_a_mixture_is_a_value() -> None:
    parts = {"a": (Corpus("/a"), 1), "b": (Corpus("/b"), 2)}
    assert Mixture(parts, stages=[(5, {"a": 1})]) == Mixture(parts, stages=[(5, {"a": 1})])
    assert Mixture(parts) != Mixture({**parts, "b": (Corpus("/b"), 3)})
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Mixture(parts).seed = 3  # type: ignore[misc]
    with pytest.raises(OptionsError, match="seed must be in"):
        Mixture(parts, seed=-1)


def test_token_windows_are_mixed_by_their_paths(tmp_path: Path) -> None:
    from dew.data import TokenWindows
    from dew.tokens import TokenizerInfo, write_corpus

    for number, name in enumerate(("web", "code")):
        ids = np.arange(number * 1000, number * 1000 + 321, dtype=np.uint16)
        write_corpus([ids], tmp_path / name, tokenizer=TokenizerInfo(vocab_size=5000))
    windows = [(TokenWindows(str(tmp_path / name), seq_len=8, val=0.2), 1) for name in ("web", "code")]
    with pytest.raises(SourceError, match="none is left to train on"):
        Mixture(windows).load(batch=4)  # type: ignore[arg-type]
    mixture = Mixture({name: (attrs.evolve(part, val=None), 1) for name, (part, _) in zip("cw", windows, strict=True)})
    with stream_of(mixture, 8) as stream:
        batch = next(stream)
        assert batch["text"].shape == (8, 9)
        assert batch["text"].dtype == np.int32
        state = stream.get_state()["order"]
    assert {key for key in state if key.startswith("parts.c.")} >= {"parts.c.fingerprint", "parts.c.tokenizer"}
    assert str(tmp_path) not in json.dumps(state)
