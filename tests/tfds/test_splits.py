"""Split expressions mean what tensorflow-datasets means by them; what cannot be read is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import given
from hypothesis import strategies as st

from dew.data import DataPartition, Mixture, OptionsError, OverlapError, SourceError, SplitError, TFDSOptions, load
from dew.data.build import dataset_of
from dew.data.errors import DamagedSourceError
from dew_tfds import even_splits
from dew_tfds.source import TFDSSource, open_split
from dew_tfds.splits import Shard, Stretch, shared

Prepare = Callable[..., Path]


def opened(path: Path, split: Any) -> TFDSSource:
    return open_split("dew_images", split, TFDSOptions(path=str(path)))


def ids(source: Any) -> list[int]:
    found = [int(source[index]["id"]) for index in range(len(source))]
    source.close()
    return found


TRAIN, TEST = list(range(100)), list(range(1000, 1020))
EXPRESSIONS: dict[str, list[int]] = {
    "train": TRAIN,
    "test": TEST,
    "train[:80%]": TRAIN[:80],
    "train[80%:]": TRAIN[80:],
    "train[10%:20%]": TRAIN[10:20],
    "train[-10%:]": TRAIN[-10:],
    "train[10:30]": TRAIN[10:30],
    "train[24:26]": TRAIN[24:26],
    "train[-7:]": TRAIN[-7:],
    "train[:-90]": TRAIN[:-90],
    "train[:2shard]": TRAIN[:50],
    "train[1shard]": TRAIN[25:50],
    "train[3shard:]": TRAIN[75:],
    "train[-1shard:]": TRAIN[75:],
    "train+test": TRAIN + TEST,
    "test+train[:1%]": [*TEST, 0],
    "train[:5]+train[3:6]": [0, 1, 2, 3, 4, 3, 4, 5],
    "train[90:]+test[:2]+train[:2]": [*TRAIN[90:], 1000, 1001, 0, 1],
    "all": TRAIN + TEST,
    "even(train, 0/3)": TRAIN[:34],
    "even(train, 1/3)": TRAIN[34:67],
    "even(train, 2/3)": TRAIN[67:],
    "even(train, 2/3, drop)": TRAIN[66:99],
    "even(train[:10]+test[:5], 1/2)": [5, 6, 7, 8, 9, 1003, 1004],
    "even(even(train, 1/2), 0/2)": TRAIN[50:75],
}


@pytest.mark.parametrize("split", EXPRESSIONS)
def test_expressions(images: Path, split: str) -> None:
    source = opened(images, split)
    assert len(source) == len(EXPRESSIONS[split])
    assert ids(source) == EXPRESSIONS[split]


@pytest.mark.parametrize("split", [split for split in EXPRESSIONS if not split.startswith("even")])
def test_expressions_are_those_of_tensorflow_datasets(images: Path, split: str) -> None:
    theirs = tfds.builder_from_directory(str(images)).as_data_source(split)
    found = [record["id"] for record in theirs]
    theirs.data_source.__exit__(None, None, None)
    assert ids(opened(images, split)) == found


def test_even_splits_are_those_of_tensorflow_datasets(images: Path) -> None:
    builder = tfds.builder_from_directory(str(images))
    for expression, count, drop in (("train", 3, False), ("train[5:]+test", 7, True), ("all", 4, False)):
        for ours, theirs in zip(
            even_splits(expression, count, drop_remainder=drop),
            tfds.even_splits(expression, count, drop_remainder=drop),
            strict=True,
        ):
            source = builder.as_data_source(theirs)
            assert ids(opened(images, ours)) == [record["id"] for record in source]
            source.data_source.__exit__(None, None, None)


def test_even_splits_are_text() -> None:
    assert even_splits("train[:50%]", 2) == ["even(train[:50%], 0/2)", "even(train[:50%], 1/2)"]
    assert even_splits("train", 1, drop_remainder=True) == ["even(train, 0/1, drop)"]
    with pytest.raises(OptionsError, match="count must be at least 1, got 0"):
        even_splits("train", 0)


def test_tfds_own_names_of_splits(images: Path) -> None:
    assert len(opened(images, tfds.Split.TEST)) == 20


SPLITS = "it has 'train' (100 records), 'test' (20 records)"


@pytest.mark.parametrize("split", ["valid", "valid[:10%]", "train+valid", "even(valid, 0/2)", "Train"])
def test_unknown_splits_list_those_there_are(images: Path, split: str) -> None:
    name = "Train" if split == "Train" else "valid"
    with pytest.raises(SplitError, match=re.escape(f"no split {name!r} in dew_images/small/1.2.0; {SPLITS}")):
        opened(images, split)


@pytest.mark.parametrize("split", ["train[50:50]", "train[:0]", "train[:0%]", "train[:0]+test[9:9]"])
def test_empty_splits_are_refused(images: Path, split: str) -> None:
    with pytest.raises(SourceError, match=re.escape(f"split {split!r} of dew_images/small/1.2.0 holds no records; ")):
        opened(images, split)


@pytest.mark.parametrize(
    ("split", "reason"),
    [
        ("train[90:300]", "Requested slice [90:300] incompatible with 100 examples."),
        ("train[:101%]", "percent slice boundaries"),
        ("train[7]", "Absolute or percent only support slice syntax."),
        ("train[10:5]", "a slice ends before it begins"),
        ("train+train[10:5]", "a slice ends before it begins"),
        ("test[9:8]", "a slice ends before it begins, at 8 of 'test'"),
        ("train[50:10]", "a slice ends before it begins, at 10 of 'train'"),
        ("train[", "Unrecognized split format"),
        ("train[a:b]", "Unrecognized split format"),
        ("train[::2]", "Unrecognized split format"),
        ("all[:5]", "does not support slice"),
        ("+", "Unrecognized split format"),
        ("even(train, 3/3)", "part 3 of 3 does not exist: use 0 to 2"),
        ("even(train, 0)", "Unrecognized split format"),
    ],
)
def test_what_is_no_expression(images: Path, split: str, reason: str) -> None:
    message = f"split {split!r} of dew_images/small/1.2.0 cannot be read: "
    with pytest.raises(OptionsError, match=re.escape(message) + ".*" + re.escape(reason) + f".*{re.escape(SPLITS)}"):
        opened(images, split)


def test_splits_in_load(images: Path) -> None:
    options = TFDSOptions(path=str(images))

    def made(**splits: Any) -> Any:
        return load("tfds/dew_images", batch=8, options=options, preprocess=identifier, **splits)

    dataset = made(split="train[:80%]", val_split="train[80%:]")
    assert dataset.records == 80
    scored = [int(row) for batch in dataset.val(DataPartition()) for row in batch["id"][batch["valid"]]]
    assert scored == TRAIN[80:]
    assert made(split="train[:5]+train[3:6]").records == 8
    with pytest.raises(TypeError, match="split must be a str, got"):
        made(split=tfds.even_splits("train", 2)[0])


def identifier(record: Any) -> Any:
    return {"id": record["id"]}


@pytest.mark.parametrize(
    ("split", "val_split", "count"),
    [
        ("train[:80%]", "train[79%:]", 1),
        ("train", "train[:10%]", 10),
        ("train[:80%]", "train", 80),
        ("train+test", "test", 20),
        ("all", "test[:5]", 5),
        ("train[:5]+train[3:9]", "train[4:6]+train[5:10]", 5),
        ("even(train, 0/2)", "train[49:51]", 1),
        ("train[:2shard]", "train[1shard]", 25),
    ],
)
def test_overlap_is_refused_with_its_extent(images: Path, split: str, val_split: str, count: int) -> None:
    options = TFDSOptions(path=str(images))
    given = {"batch": 4, "split": split, "val_split": val_split, "options": options, "preprocess": identifier}
    message = f"training and validation would share {count} records: TFDSSource(dew_images/small/1.2.0, split={split!r}"
    with pytest.raises(OverlapError, match=re.escape(message)):
        load("tfds/dew_images", **given)
    assert load("tfds/dew_images", **given, allow_overlap=True).val is not None


def test_equal_splits_are_refused_before_they_are_opened(tmp_path: Path) -> None:
    with pytest.raises(OverlapError, match="split and val_split both are 'train'"):
        load("tfds/x", batch=4, val_split="train", options=TFDSOptions(path=str(tmp_path)), preprocess=identifier)


def test_overlap_is_seen_through_a_copy(images: Path, copied: Path, data_dir: Path) -> None:
    train, val = opened(images, "train[:60%]"), opened(copied, "train[50%:]")
    assert train.shares_records_with(val) == val.shares_records_with(train) == 10
    with pytest.raises(OverlapError, match="would share 10 records"):
        dataset_of(train, batch=4, val=val, preprocess=identifier)
    big = open_split("dew_images", "train", TFDSOptions(path=str(data_dir), config="big"))
    assert train.shares_records_with(big) == 0
    assert train.shares_records_with("something else") == 0


def test_overlap_between_the_parts_of_a_mixture(images: Path) -> None:
    options = TFDSOptions(path=str(images))

    def part(**splits: Any) -> Any:
        return load("tfds/dew_images", batch=4, options=options, preprocess=identifier, **splits)

    parts = {
        "one": (part(split="train[:50%]", val_split="test[:10]"), 1),
        "two": (part(split="train[50%:]+test[5:]", val_split="train[:10]", allow_overlap=True), 1),
    }
    with pytest.raises(OverlapError, match=r"validation of part '(one|two)' would share (5|10) records with what part"):
        Mixture(parts).load(batch=4)
    weights = {"tfds/dew_images": 1.0}
    with pytest.raises(OverlapError, match="would share 10 records"):
        load(weights, batch=4, split="train", val_split="train[:10%]", options=options, preprocess=identifier)


STRETCHES = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.integers(1, 8)).map(
        lambda one: Stretch(Shard(one[0], 30), one[1], one[1] + one[2])
    ),
    max_size=8,
)


@given(ours=STRETCHES, theirs=STRETCHES)
def test_shared_counts_each_record_once(ours: list[Stretch], theirs: list[Stretch]) -> None:
    def records(stretches: list[Stretch]) -> set[tuple[str, int]]:
        return {(one.shard.name, at) for one in stretches for at in range(one.start, one.stop)}

    assert shared(ours, theirs) == len(records(ours) & records(theirs))


@pytest.mark.parametrize(
    "template",
    ["../{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}", "sub/{SPLIT}-{SHARD_X_OF_Y}", "/etc/{SHARD_X_OF_Y}"],
)
def test_shards_outside_of_the_directory(copied: Path, template: str) -> None:
    file = copied / "dataset_info.json"
    info = json.loads(file.read_text())
    info["splits"][0]["filepathTemplate"] = template
    file.write_text(json.dumps(info))
    with pytest.raises(DamagedSourceError, match=r"names the file '.*', which is not in .*|cannot open dew_images"):
        opened(copied, "train")


def test_the_order_is_that_of_the_files(tmp_path: Path, prepare: Prepare) -> None:
    """Which is not the order of generation, unless the builder says so."""
    records = [{"id": number} for number in range(10)]
    path = prepare(tmp_path, "keyed", {"id": np.int64}, {"train": records}, ordered=False)
    options = TFDSOptions(path=str(path))
    source = open_split("keyed", "train", options)
    stored = ids(source)
    assert stored != list(range(10))
    assert sorted(stored) == list(range(10))
    dataset = load(
        "tfds/keyed",
        batch=4,
        split="train[:4]",
        val_split="train",
        options=options,
        preprocess=identifier,
        allow_overlap=True,
    )
    assert dataset.val is not None
    for count in (1, 2):
        for _ in range(2):
            shares = [list(dataset.val(DataPartition(index, count))) for index in range(count)]
            rows = [
                [int(row) for row in np.stack([batch["id"] for batch in batches], 1).reshape(-1)]
                for batches in zip(*shares, strict=True)
            ]
            assert [row for batch in rows for row in batch][:10] == stored
