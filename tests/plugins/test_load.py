"""`load` from a registered in-memory provider, end to end: what it opens, what it refuses, and with which words."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import dew.data
from dew.data import DataPartition, Loading, OptionsError, OptionsTypeError, OverlapError, SourceError, load
from dew.data.build import columns
from dew.data.errors import ProviderError, SplitError
from dew.data.provider import ACCEPTS, LoadRequest, Provider
from dew.data.stream import RecordStream

IN_PROCESS = Loading(workers=0, threads=1, read_buffer=0)


@attrs.frozen
class Rows:
    """Records `{"x": start + i}`, described by split alone."""

    split: str
    records: int
    start: int = 0

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.int32(self.start + index)}

    def __repr__(self) -> str:
        return f"Rows({self.split!r})"


@attrs.frozen(repr=False)
class Printed(Rows):
    """The same with a fingerprint."""

    digest: str = "abc"

    def fingerprint(self) -> str:
        return self.digest


@attrs.frozen(kw_only=True)
class MemOptions:
    val_split: str | None = None


@attrs.frozen(kw_only=True)
class NeedyOptions:
    width: int
    height: int
    depth: int = 3


class Memory:
    """A provider of in-memory splits that remembers what it was asked to open."""

    def __init__(self, splits: Mapping[str, Any]) -> None:
        self.splits = splits
        self.opened: list[tuple[LoadRequest, str]] = []

    def open(self, request: LoadRequest, split: str) -> Any:
        self.opened.append((request, split))
        if request.dataset is not None:
            return request.dataset
        if split not in self.splits:
            raise SplitError(f"there is no split {split!r}; there are {sorted(self.splits)}")
        return self.splits[split]


Register = Callable[..., Memory]


@pytest.fixture
def mem() -> Iterator[Register]:
    """Registers the provider `mem` over the splits given; unregisters it at the end."""
    registered: list[str] = []

    def make(splits: Mapping[str, Any] | None = None, **changes: Any) -> Memory:
        memory = Memory({"train": Rows("train", 10), "val": Rows("val", 5, 100)} if splits is None else splits)
        fields = {"prefix": "mem", "summary": "for tests", "options": MemOptions, "open": memory.open, **changes}
        registered.append(dew.data.register(Provider(**fields)).prefix)
        return memory

    yield make
    for prefix in registered:
        dew.data.unregister(prefix)


def values(batches: Iterator[Any], steps: int | None = None) -> list[list[int]]:
    try:
        return [batch["x"].tolist() for batch in itertools.islice(batches, steps)]
    finally:
        batches.close()  # type: ignore[attr-defined]


class TestWhatIsLoaded:
    def test_a_training_epoch_is_every_record_once(self, mem: Register) -> None:
        mem()
        dataset = load("mem/x", batch=5, loading=IN_PROCESS)
        assert (dataset.records, dataset.batch, dataset.steps_per_epoch, dataset.val) == (10, 5, 2, None)
        read = values(dataset.train(DataPartition()), 2)
        assert sorted(itertools.chain(*read)) == list(range(10))

    def test_shares_tile_the_global_batch(self, mem: Register) -> None:
        mem()
        dataset = load("mem/x", batch=6, seed=3, loading=IN_PROCESS)
        whole = values(dataset.train(DataPartition()), 4)
        shares = [values(dataset.train(DataPartition(index=index, count=3)), 4) for index in range(3)]
        assert [[share[step][row] for row in range(2) for share in shares] for step in range(4)] == whole

    def test_validation_scores_every_record_once(self, mem: Register) -> None:
        mem()
        dataset = load("mem/x", batch=4, val_split="val", valid_field="real", loading=IN_PROCESS)
        assert dataset.val is not None
        batches = list(dataset.val(DataPartition()))
        scored = np.concatenate([batch["x"][batch["real"]] for batch in batches])
        assert scored.tolist() == [100, 101, 102, 103, 104]
        assert [len(batch["x"]) for batch in batches] == [4, 4]

    def test_what_core_is_asked_for_reaches_the_stream(self, mem: Register) -> None:
        mem()
        dataset = load(
            "mem/x",
            batch=2,
            val_split="val",
            val_remainder="drop",
            place_field="place",
            preprocess=lambda record: {"y": record["x"] * 2},
            loading=IN_PROCESS,
        )
        assert dataset.val is not None
        stream = dataset.train(DataPartition())
        assert isinstance(stream, RecordStream)
        batch = next(stream)
        assert sorted(batch) == ["place", "y"]
        assert (batch["y"] % 2 == 0).all()
        assert batch["place"].tolist() == [[0, 0], [0, 1]]
        assert [sorted(batch) for batch in dataset.val(DataPartition())] == [["place", "y"]] * 2

    def test_a_step_may_repeat_records_where_asked(self, mem: Register) -> None:
        mem()
        read = values(load("mem/x", batch=20, repeat_in_step=True, loading=IN_PROCESS).train(DataPartition()), 1)
        assert sorted(read[0]) == sorted([*range(10), *range(10)])

    def test_the_request_says_what_was_asked(self, mem: Register) -> None:
        memory = mem()
        preprocess = columns("x")
        load(
            "mem//a/b/c", batch=2, split="train", val_split="val", preprocess=preprocess, seed=7, val_remainder="drop",
            valid_field="real", loading=IN_PROCESS,
        )  # fmt: skip
        expected = LoadRequest(
            name="/a/b/c", batch=2, options=MemOptions(), preprocess=preprocess, seed=7, val_remainder="drop",
            valid_field="real", loading=IN_PROCESS,
        )  # fmt: skip
        assert memory.opened == [(expected, "train"), (attrs.evolve(expected, validation=True), "val")]

    @pytest.mark.parametrize("name", ["/abs/path", "s3://b/x", "a/b//c/", "x"])
    def test_the_source_is_split_at_the_first_slash_only(self, mem: Register, name: str) -> None:
        memory = mem()
        load(f"mem/{name}", batch=2)
        assert memory.opened[0][0].name == name

    def test_options_name_the_validation_split(self, mem: Register) -> None:
        memory = mem()
        assert load("mem/x", batch=2, options=MemOptions(val_split="val")).val is not None
        assert [split for _, split in memory.opened] == ["train", "val"]

    def test_an_unknown_split_is_the_providers_to_refuse(self, mem: Register) -> None:
        mem()
        with pytest.raises(SplitError, match=re.escape("there is no split 'test'; there are ['train', 'val']")):
            load("mem/x", batch=2, split="test")

    def test_datasets_that_are_open_already(self, mem: Register) -> None:
        memory = mem(accepts={"dataset"})
        dataset = load("mem/x", batch=2, dataset=Rows("a", 4), val_dataset=Rows("b", 3, 50), loading=IN_PROCESS)
        assert dataset.val is not None
        assert (dataset.records, len(list(dataset.val(DataPartition())))) == (4, 2)
        assert [(request.dataset, split) for request, split in memory.opened] == [
            (Rows("a", 4), "train"),
            (Rows("b", 3, 50), "validation"),
        ]

    def test_a_validation_split_by_name_beside_an_open_dataset(self, mem: Register) -> None:
        memory = mem(accepts={"dataset"})
        load("mem/x", batch=2, dataset=Rows("a", 4), val_split="train")
        assert [(request.dataset, split) for request, split in memory.opened] == [
            (Rows("a", 4), "train"),
            (None, "train"),
        ]


def stream(partition: DataPartition) -> Iterator[dict[str, Any]]:
    for start in itertools.count(0, 4):
        yield {"x": np.arange(start + partition.index, start + 4, partition.count)}


def one_pass(partition: DataPartition) -> Iterator[dict[str, Any]]:
    yield {"x": np.arange(partition.index, 4, partition.count)}


class TestStreams:
    def test_a_stream_is_handed_on_as_it_is(self, mem: Register) -> None:
        memory = mem({"train": stream, "val": one_pass}, accepts=ACCEPTS)
        dataset = load("mem/x", batch=4, val_split="val", streaming=True, shuffle_buffer=8, records=40)
        assert (dataset.train, dataset.val, dataset.records, dataset.steps_per_epoch) == (stream, one_pass, 40, 10)
        assert [(r.streaming, r.shuffle_buffer, r.records, r.validation) for r, _ in memory.opened] == [
            (True, 8, 40, False),
            (True, 8, None, True),
        ]

    def test_a_stream_that_does_not_know_its_length(self, mem: Register) -> None:
        mem({"train": stream})
        dataset = load("mem/x", batch=4)
        assert (dataset.records, dataset.steps_per_epoch) == (None, None)

    def test_validation_of_records_beside_a_stream(self, mem: Register) -> None:
        mem({"train": stream, "val": Rows("val", 5)})
        dataset = load("mem/x", batch=4, val_split="val", loading=IN_PROCESS)
        assert dataset.val is not None
        assert [batch["valid"].sum() for batch in dataset.val(DataPartition())] == [4, 1]

    def test_a_validation_stream_beside_records(self, mem: Register) -> None:
        mem({"train": Rows("train", 10), "val": one_pass})
        dataset = load("mem/x", batch=4, val_split="val", loading=IN_PROCESS)
        assert dataset.val is one_pass
        assert isinstance(dataset.train(DataPartition()), RecordStream)

    @pytest.mark.parametrize(("name", "value"), [("place_field", "place"), ("repeat_in_step", True)])
    def test_what_needs_random_access(self, mem: Register, name: str, value: Any) -> None:
        mem({"train": stream})
        message = f"{name} needs random access to the records, and split 'train' of 'mem/x' is a stream"
        with pytest.raises(OptionsError, match=message):
            load("mem/x", batch=4, **{name: value})

    def test_fewer_records_than_a_batch(self, mem: Register) -> None:
        mem({"train": stream})
        with pytest.raises(SourceError, match="holds 3 records, fewer than one global batch of 8"):
            load("mem/x", batch=8, records=3)

    def test_one_stream_for_both(self, mem: Register) -> None:
        mem({"train": stream, "val": stream})
        with pytest.raises(OverlapError, match="opened one stream for training and validation of 'mem/x'"):
            load("mem/x", batch=4, val_split="val")
        assert load("mem/x", batch=4, val_split="val", allow_overlap=True).val is stream


class TestSource:
    def test_a_mapping_without_entries(self) -> None:
        with pytest.raises(OptionsError, match="a mixture needs at least one part with a weight, got none"):
            load({}, batch=2)

    @pytest.mark.parametrize("source", [None, 3, Path("mem/x"), b"mem/x"])
    def test_another_type(self, source: Any) -> None:
        with pytest.raises(OptionsTypeError, match=re.escape(f'load takes a source "prefix/name", got {source!r}')):
            load(source, batch=2)

    @pytest.mark.parametrize("source", ["", "mem", "mem/", "/"])
    def test_half_a_name(self, source: str) -> None:
        with pytest.raises(OptionsError, match=re.escape(f'such as "tokens/path/to/corpus", got {source!r}')):
            load(source, batch=2)

    @pytest.mark.parametrize("source", ["/data/corpus", "s3://bucket/corpus", "memory://x"])
    def test_an_address_without_a_provider(self, source: str) -> None:
        message = f"{source!r} is an address without a provider; put one in front, for token shards 'tokens/{source}'"
        with pytest.raises(OptionsError, match=re.escape(message)):
            load(source, batch=2)


BAD_ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"batch": 0}, OptionsError, "batch must be at least 1, got 0"),
    ({"batch": 2.0}, OptionsTypeError, "batch must be an int, got 2.0 (float)"),
    ({"batch": True}, OptionsTypeError, "batch must be an int, got True (bool)"),
    ({"seed": -1}, OptionsError, "seed must be in [0, 2**64), got -1"),
    ({"seed": 1.5}, OptionsTypeError, "seed must be a Python int in [0, 2**64), got 1.5 (float)"),
    ({"records": 0}, OptionsError, "records must be at least 1, got 0"),
    ({"records": "10"}, OptionsTypeError, "records must be an int, got '10' (str)"),
    ({"shuffle_buffer": -1}, OptionsError, "shuffle_buffer must be at least 0, got -1"),
    ({"streaming": 1}, OptionsTypeError, "streaming must be True or False, got 1 (int)"),
    ({"allow_overlap": "no"}, OptionsTypeError, "allow_overlap must be True or False, got 'no' (str)"),
    ({"repeat_in_step": 0}, OptionsTypeError, "repeat_in_step must be True or False, got 0 (int)"),
    ({"split": None}, OptionsTypeError, "split must be a str, got None (NoneType)"),
    ({"split": ""}, OptionsError, "split must not be empty"),
    ({"val_split": 3}, OptionsTypeError, "val_split must be a str, got 3 (int)"),
    ({"valid_field": None}, OptionsTypeError, "valid_field must be a str, got None (NoneType)"),
    ({"place_field": 7}, OptionsTypeError, "place_field must be a str, got 7 (int)"),
    ({"val_remainder": "fill"}, OptionsError, 'val_remainder must be "pad" or "drop", got \'fill\''),
    ({"preprocess": "identity"}, OptionsTypeError, "preprocess must be a function"),
    ({"loading": 4}, OptionsTypeError, "loading must be a dew.data.Loading, got 4"),
]


@pytest.mark.parametrize(("changes", "kind", "message"), BAD_ARGUMENTS)
def test_arguments_are_checked_before_anything_is_opened(
    mem: Register, changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    memory = mem()
    with pytest.raises(kind, match=re.escape(message)):
        load("mem/x", **{"batch": 2, **changes})
    assert memory.opened == []


HERE = MemOptions.__module__


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "found"),
        [
            (NeedyOptions(width=1, height=2), f"an instance of NeedyOptions ({HERE}); pass options=MemOptions(...)"),
            ({"val_split": "val"}, "an instance of dict (builtins); pass options=MemOptions(...)"),
            (MemOptions, f"the class MemOptions ({HERE}) itself; pass an instance, MemOptions(...)"),
        ],
    )
    def test_another_class_is_refused_before_anything_is_opened(self, mem: Register, options: Any, found: str) -> None:
        memory = mem()
        message = f"load('mem/x') takes options of the class MemOptions ({HERE}), got {found}"
        with pytest.raises(TypeError, match=re.escape(message)):
            load("mem/x", batch=2, options=options)
        assert memory.opened == []

    def test_a_provider_without_options(self, mem: Register) -> None:
        memory = mem(options=None)
        load("mem/x", batch=2)
        assert memory.opened[0][0].options is None
        with pytest.raises(OptionsTypeError, match=r"'mem' takes no options, and load\('mem/x'\) was given MemOptions"):
            load("mem/x", batch=2, options=MemOptions())

    def test_options_without_defaults_are_asked_for(self, mem: Register) -> None:
        memory = mem(options=NeedyOptions)
        message = "load('mem/x') needs options=NeedyOptions(width=..., height=...), got none"
        with pytest.raises(OptionsTypeError, match=re.escape(message)):
            load("mem/x", batch=2)
        assert memory.opened == []

    @pytest.mark.parametrize(
        ("name", "value"),
        [("streaming", True), ("shuffle_buffer", 5), ("dataset", Rows("a", 4)), ("val_dataset", Rows("a", 4))],
    )
    def test_what_means_nothing_to_the_provider_is_refused(self, mem: Register, name: str, value: Any) -> None:
        needed = name.removeprefix("val_")
        memory = mem(accepts=ACCEPTS - {needed})
        accepted = ", ".join(sorted(ACCEPTS - {needed}))
        message = (
            f"load('mem/x') was given {name}, which means nothing to the provider 'mem'; "
            f"it accepts {accepted}: leave {name} out"
        )
        with pytest.raises(TypeError, match=re.escape(message)):
            load("mem/x", batch=2, **{name: value})
        assert memory.opened == []

    def test_a_provider_that_accepts_none_of_them(self, mem: Register) -> None:
        mem()
        with pytest.raises(OptionsTypeError, match="it accepts none of streaming, shuffle_buffer, dataset"):
            load("mem/x", batch=2, streaming=True)


class Picture(Rows):
    def __getitem__(self, index: int) -> Any:
        return {
            "image": np.zeros((4, 5, 3), np.uint8),
            "label": 7,
            "text": "a" * 100,
            "boxes": {"corners": np.zeros((0, 4), np.float32)},
        }


class TestPreprocess:
    def test_a_missing_one_shows_the_fields_of_record_0(self, mem: Register) -> None:
        mem({"train": Picture("train", 10)}, needs_preprocess=True)
        with pytest.raises(TypeError, match=re.escape("load('mem/x') needs preprocess=")) as caught:
            load("mem/x", batch=2)
        assert str(caught.value).split("has\n")[1].splitlines() == [
            "  image: uint8 (4, 5, 3)",
            "  label: int 7",
            "  text: str '" + "a" * 39 + "...",
            "  boxes:",
            "    corners: float32 (0, 4)",
        ]
        assert load("mem/x", batch=2, preprocess=dew.data.identity).records == 10

    def test_a_source_may_state_its_fields(self, mem: Register) -> None:
        class Stating(Picture):
            def fields(self) -> Any:
                return {"image": "uint8, a picture", "boxes": {"corners": "float32 (?, 4)"}}

        mem({"train": Stating("train", 10)}, needs_preprocess=True)
        with pytest.raises(TypeError) as caught:
            load("mem/x", batch=2)
        lines = str(caught.value).split("has\n")[1].splitlines()
        assert lines == ["  image: uint8, a picture", "  boxes:", "    corners: float32 (?, 4)"]

    def test_a_record_that_is_no_mapping(self, mem: Register) -> None:
        mem({"train": [3, 4]}, needs_preprocess=True)
        with pytest.raises(OptionsTypeError, match="no fields: it is int 3"):
            load("mem/x", batch=2)

    def test_record_0_is_read_through_a_reader_that_is_closed(self, mem: Register) -> None:
        closed: list[bool] = []

        class Reader(Picture):
            def close(self) -> None:
                closed.append(True)

        class Opens(Picture):
            def open(self) -> Reader:
                return Reader("train", 10)

            def __getitem__(self, index: int) -> Any:
                raise AssertionError("not through the reader")

        mem({"train": Opens("train", 10)}, needs_preprocess=True)
        with pytest.raises(OptionsTypeError, match="image: uint8"):
            load("mem/x", batch=2)
        assert closed == [True]

    def test_a_stream_has_no_record_0_to_show(self, mem: Register) -> None:
        mem({"train": stream}, needs_preprocess=True)
        with pytest.raises(
            OptionsTypeError, match="split 'train' has the fields that the provider's documentation lists"
        ):
            load("mem/x", batch=4)


class TestRecords:
    def test_fewer_than_a_batch(self, mem: Register) -> None:
        mem({"train": Rows("train", 3)})
        message = (
            "split 'train' of 'mem/x' holds 3 records, fewer than one global batch of 8: steps_per_epoch would be 0; "
            "use batch=3 or less, or repeat_in_step=True"
        )
        with pytest.raises(ValueError, match=re.escape(message)):
            load("mem/x", batch=8)

    @pytest.mark.parametrize("split", ["train", "val"])
    def test_none_at_all(self, mem: Register, split: str) -> None:
        mem({"train": Rows("train", 10), "val": Rows("val", 5), split: Rows(split, 0)}, needs_preprocess=True)
        with pytest.raises(SourceError, match=re.escape(f"Rows('{split}') holds no records")):
            load("mem/x", batch=2, val_split="val", preprocess=dew.data.identity)

    def test_an_empty_split_is_not_asked_for_record_0(self, mem: Register) -> None:
        mem({"train": Rows("train", 0)}, needs_preprocess=True)
        with pytest.raises(SourceError, match="holds no records"):
            load("mem/x", batch=2)

    def test_a_stated_number_that_the_source_contradicts(self, mem: Register) -> None:
        mem()
        with pytest.raises(OptionsError, match=r"records=11 was given, but Rows\('train'\) counts 10"):
            load("mem/x", batch=2, records=11)
        assert load("mem/x", batch=2, records=10).records == 10

    @pytest.mark.parametrize("opened", [None, 3, object()])
    def test_what_is_neither_records_nor_a_stream(self, mem: Register, opened: object) -> None:
        mem({"train": opened})
        message = f"opened split 'train' of 'mem/x' as a {type(opened).__name__}; open must return a record source"
        with pytest.raises(ProviderError, match=message):
            load("mem/x", batch=2)


class TestOverlap:
    def test_the_same_split_is_refused_before_it_is_opened(self, mem: Register) -> None:
        memory = mem()
        with pytest.raises(
            OverlapError, match="split and val_split both are 'train'; validate on other records, or allow"
        ):
            load("mem/x", batch=2, val_split="train")
        assert memory.opened == []
        assert load("mem/x", batch=2, val_split="train", allow_overlap=True).val is not None

    def test_the_same_split_by_the_options(self, mem: Register) -> None:
        mem()
        with pytest.raises(OverlapError, match="both are 'train'"):
            load("mem/x", batch=2, options=MemOptions(val_split="train"))

    def test_one_dataset_for_both(self, mem: Register) -> None:
        mem(accepts={"dataset"})
        rows = Rows("a", 4)
        with pytest.raises(OverlapError, match="dataset and val_dataset both are one object"):
            load("mem/x", batch=2, dataset=rows, val_dataset=rows)

    def test_splits_with_the_same_description_and_fingerprint(self, mem: Register) -> None:
        mem({"train": Printed("all", 10), "val": Printed("all", 10)})
        with pytest.raises(OverlapError, match=re.escape("Rows('all') (fingerprint abc)")):
            load("mem/x", batch=2, val_split="val")
        assert load("mem/x", batch=2, val_split="val", allow_overlap=True).val is not None

    @pytest.mark.parametrize(
        "val",
        [Printed("all", 10, digest="def"), Printed("rest", 10), Rows("all", 10)],
        ids=["digest", "description", "none"],
    )
    def test_another_description_or_fingerprint_is_other_data(self, mem: Register, val: Rows) -> None:
        mem({"train": Printed("all", 10), "val": val})
        assert load("mem/x", batch=2, val_split="val").val is not None

    @pytest.mark.parametrize("knows", ["train", "val"])
    def test_sources_that_know_what_they_share(self, mem: Register, knows: str) -> None:
        class Knowing(Rows):
            def shares_records_with(self, other: object) -> int:
                return 3 if isinstance(other, Rows) else 0

        splits = {"train": Rows("train", 10), "val": Rows("val", 10)}
        mem(splits | {knows: Knowing(knows, 10)})
        message = "training and validation would share 3 records: Rows('train') and Rows('val'); validate on other"
        with pytest.raises(OverlapError, match=re.escape(message)):
            load("mem/x", batch=2, val_split="val")
        assert load("mem/x", batch=2, val_split="val", allow_overlap=True).val is not None

    def test_no_fingerprint_says_nothing(self, mem: Register) -> None:
        mem({"train": Rows("all", 10), "val": Rows("all", 10)})
        assert load("mem/x", batch=2, val_split="val").val is not None
