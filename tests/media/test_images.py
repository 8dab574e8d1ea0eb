"""Images as records and as batches, in every layout: what is read, what is drawn, and what is refused."""

import io
import itertools
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from dew.data import (
    DataPartition,
    Dataset,
    ImageFolder,
    ImageOptions,
    ImageParquet,
    ImageTar,
    Loading,
    Mixture,
    OptionsError,
    OptionsTypeError,
    OverlapError,
    PositionMismatchError,
    SourceError,
    SplitError,
    load,
)
from dew.data.order import draws_at
from dew.data.source import RecordSource
from dew.testing import SourceSuite, StreamSuite

Pixels = npt.NDArray[np.uint8]

COUNT = 24
CLASSES = ("cat", "dog", "owl")
CAPTIONS = ("a {} in the grass", "one {}", "the {}, asleep")


def pixels(number: int, width: int = 20, height: int = 14) -> Pixels:
    """A picture that says which one it is, and has another colour in each corner."""
    image = np.full((height, width, 3), 100, np.uint8)
    image[..., 0] = number % 32 * 8
    image[: height // 2, : width // 2, 1], image[height // 2 :, width // 2 :, 2] = 200, 250
    return image


def encoded(image: Pixels, form: str = "PNG") -> bytes:
    made = io.BytesIO()
    Image.fromarray(image).save(made, form)
    return made.getvalue()


def number_of(image: Pixels) -> int:
    return round(float(image[..., 0].mean()) / 8)


def label_of(number: int) -> int:
    return number % len(CLASSES)


def captions_of(number: int) -> list[str]:
    return [caption.format(CLASSES[label_of(number)]) for caption in CAPTIONS]


def folder(root: Path, numbers: Sequence[int] = range(COUNT), *, captions: bool = True) -> Path:
    """Class directories and a metadata table."""
    rows: list[dict[str, Any]] = []
    for number in numbers:
        name = f"{CLASSES[label_of(number)]}/{number:03d}.png"
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(encoded(pixels(number)))
        rows.append({"file_name": name, "text": captions_of(number), "label": CLASSES[label_of(number)]})
    if captions:
        (root / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def tar(root: Path, numbers: Sequence[int] = range(COUNT), shards: int = 2, prefix: str = "") -> Path:
    """Shards of the webdataset layout."""
    root.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        with tarfile.open(root / f"{prefix}{shard:04d}.tar", "w") as packed:
            for number in list(numbers)[shard::shards]:
                members = {
                    "png": encoded(pixels(number)),
                    "json": json.dumps({"caption": captions_of(number)}).encode(),
                    "cls": str(label_of(number)).encode(),
                }
                for suffix, data in members.items():
                    info = tarfile.TarInfo(f"{number:05d}.{suffix}")
                    info.size = len(data)
                    packed.addfile(info, io.BytesIO(data))
    return root


def parquet(root: Path, numbers: Sequence[int] = range(COUNT), group: int = 5) -> Path:
    """One file with row groups, images as Hugging Face stores them."""
    import pyarrow as arrow
    import pyarrow.parquet as library

    root.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": encoded(pixels(number)), "path": f"{number}.png"} for number in numbers]
    columns = {
        "image": arrow.array(images),
        "label": [label_of(number) for number in numbers],
        "text": [captions_of(number) for number in numbers],
    }
    library.write_table(arrow.table(columns), root / "data.parquet", row_group_size=group)
    return root


KEYS = ("cat/000.png", "dog/001.png", "owl/002.png")

LAYOUTS: dict[str, tuple[Callable[..., Path], Any]] = {
    "folder": (folder, ImageFolder),
    "tar": (tar, ImageTar),
    "parquet": (parquet, ImageParquet),
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same images in each layout."""
    return {layout: make(tmp_path_factory.mktemp(layout) / "data") for layout, (make, _) in LAYOUTS.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_holds_the_same_records(stored: dict[str, Path], layout: str) -> None:
    source = LAYOUTS[layout][1](stored[layout]).open("train")
    assert len(source) == COUNT
    seen: set[int] = set()
    for index in range(COUNT):
        record = source[index]
        number = number_of(record["image"])
        np.testing.assert_array_equal(record["image"], pixels(number))
        assert record["label"] == label_of(number)
        assert record["label"].dtype == np.int32
        assert record["caption"] == captions_of(number)[0]
        seen.add(number)
    assert seen == set(range(COUNT))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_load_finds_the_layout_and_says_so(
    stored: dict[str, Path], layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "dew.media"):
        dataset = load(f"images/{stored[layout]}", batch=4, options=ImageOptions(size=8))
    assert f"{layout}, " in caplog.text
    assert f"{COUNT} " in caplog.text
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        batch = next(stream)
    assert {name: (array.dtype.kind, array.shape) for name, array in batch.items()} == {
        "image": ("u", (4, 8, 8, 3)),
        "label": ("i", (4,)),
        "caption": ("U", (4,)),
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_specification_says_the_same_as_options(stored: dict[str, Path], layout: str) -> None:
    spec = LAYOUTS[layout][1](stored[layout], size=8, crop="random", flip=0.5, seed=7)
    by_name = load(f"images/{stored[layout]}", batch=4, options=spec.options, seed=7)
    with spec.load(batch=4).train(DataPartition()) as one, by_name.train(DataPartition()) as other:  # type: ignore[attr-defined]
        for _ in range(3):
            ours, theirs = next(one), next(other)
            for name in ours:
                np.testing.assert_array_equal(ours[name], theirs[name])
        other.set_state(one.get_state())


class LayoutSuite(SourceSuite):
    """The conformance suite for a layout."""

    layout = "folder"

    @pytest.fixture(autouse=True)
    def _stored(self, stored: dict[str, Path]) -> None:
        self.location = str(stored[self.layout])

    def make_source(self) -> RecordSource:
        assert self.location is not None
        return LAYOUTS[self.layout][1](self.location, size=8, crop="random", flip=0.5).open("train")


class TestFolderSource(LayoutSuite):
    layout = "folder"


class TestTarSource(LayoutSuite):
    layout = "tar"


class TestParquetSource(LayoutSuite):
    layout = "parquet"


class LayoutStreamSuite(StreamSuite):
    """Positions, tiling, resume and draws for a layout, with validation on a split of its own."""

    layout = "folder"
    options: dict[str, Any] = {}  # noqa: RUF012
    steps = 5
    largest_count = 4

    @pytest.fixture(autouse=True)
    def _stored(self, tmp_path: Path) -> None:
        self.path = tmp_path
        make = LAYOUTS[self.layout][0]
        make(tmp_path / "train", range(18))
        make(tmp_path / "val", range(18, COUNT))

    def make_dataset(self, seed: int = 0, loading: Loading = Loading()) -> Dataset:  # noqa: B008 - frozen
        spec = LAYOUTS[self.layout][1](
            self.path, size=8, crop="random", flip=0.5, val_split="val", seed=seed, loading=loading, **self.options
        )
        return spec.load(batch=8)


class TestFolderStream(LayoutStreamSuite):
    layout = "folder"
    workers = 1


class TestTarStream(LayoutStreamSuite):
    layout = "tar"
    steps = 3
    largest_count = 2
    workers = 1


class TestParquetLanes(LayoutStreamSuite):
    layout = "parquet"
    options = {"lanes": 2}  # noqa: RUF012
    steps = 3
    largest_count = 2


del LayoutSuite, LayoutStreamSuite


def test_draws_follow_the_place_and_validation_has_none(stored: dict[str, Path]) -> None:
    source = ImageFolder(stored["folder"], size=(8, 20), crop="random", flip=0.5).open("train")
    plain = source[3]
    seen: set[bytes] = set()
    words: set[str] = set()
    for place in range(40):
        record, again = source.drawn(3, draws_at(1, place)), source.drawn(3, draws_at(1, place))
        np.testing.assert_array_equal(record["image"], again["image"])
        assert record["caption"] == again["caption"]
        assert {name: np.asarray(value).dtype.kind for name, value in record.items()} == {
            name: np.asarray(value).dtype.kind for name, value in plain.items()
        }
        seen.add(record["image"].tobytes())
        words.add(record["caption"])
    assert len(seen) > 5
    assert words == set(captions_of(number_of(plain["image"])))
    np.testing.assert_array_equal(plain["image"], pixels(number_of(plain["image"]))[3:11])


def test_a_preprocess_goes_on_with_the_same_draws(stored: dict[str, Path]) -> None:
    def noisy(record: Any, rng: np.random.Generator) -> Any:
        return {"image": record["image"], "noise": rng.random()}

    options = ImageOptions(size=8, crop="random")
    data = load(f"images/{stored['folder']}", batch=4, options=options, preprocess=noisy)
    with data.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        ids = stream.ids(0)
        batch = next(stream)
        for row, record in enumerate(ids):
            rng = draws_at(0, row)
            np.testing.assert_array_equal(stream.source.drawn(int(record), rng)["image"], batch["image"][row])
            assert rng.random() == batch["noise"][row]


def test_options_that_change_no_draw_leave_the_others_alone(stored: dict[str, Path]) -> None:
    """A flip, or captions, that are switched on do not move the crops."""
    plain = ImageFolder(stored["folder"], size=8, crop="random").open("train")
    other = ImageFolder(stored["folder"], size=8, crop="random", flip=1.0, captions="drop").open("train")
    for place in range(10):
        one, two = plain.drawn(2, draws_at(0, place)), other.drawn(2, draws_at(0, place))
        np.testing.assert_array_equal(one["image"][:, ::-1], two["image"])


def test_captions_are_kept_dropped_or_required(stored: dict[str, Path], tmp_path: Path) -> None:
    bare = folder(tmp_path / "bare", range(3), captions=False)
    assert "caption" not in ImageFolder(bare).open("train")[0]
    assert "caption" not in ImageFolder(stored["folder"], captions="drop").open("train")[0]
    with pytest.raises(SourceError, match=r"captions are required, and there are none: folder, 3 files"):
        ImageFolder(bare, captions="require").open("train")
    assert ImageTar(stored["tar"], captions="require").open("train")[0]["caption"]
    (bare / "cat" / "000.txt").write_text("by its side")
    (bare / "dog" / "001.txt").write_text("beside")
    (bare / "owl" / "002.caption").write_text("also")
    assert ImageFolder(bare).open("train")[0]["caption"] == "by its side"
    assert "label" not in ImageFolder(bare, labels="none").open("train")[0]
    (bare / "metadata.csv").write_text("file_name,text\n" + "".join(f"{key},table\n" for key in KEYS))
    with pytest.raises(SourceError, match="captions='metadata' or 'sidecars' says which count"):
        ImageFolder(bare).open("train")
    assert ImageFolder(bare, captions="metadata").open("train")[0]["caption"] == "table"
    assert ImageFolder(bare, captions="sidecars").open("train")[0]["caption"] == "by its side"


def test_splits_are_directories_or_names_of_shards(tmp_path: Path) -> None:
    folder(tmp_path / "images" / "train", range(10))
    folder(tmp_path / "images" / "test", range(10, 16))
    dataset = load(f"images/{tmp_path / 'images'}", batch=2, options=ImageOptions(size=8, val_split="test"))
    assert dataset.records == 10
    assert dataset.val is not None
    scored = [number_of(image) for batch in dataset.val(DataPartition()) for image in batch["image"]]
    assert sorted(scored) == list(range(10, 16))
    with pytest.raises(SplitError, match=r"no split 'val' .*'train'.*'test'|no split 'val' .*'test', 'train'"):
        load(f"images/{tmp_path / 'images'}", batch=2, val_split="val")
    tar(tmp_path / "shards", range(8), prefix="train-")
    tar(tmp_path / "shards", range(8, 12), shards=1, prefix="val-")
    assert len(ImageTar(tmp_path / "shards").open("validation")) == 4


def test_a_url_is_read_through_fsspec() -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    for number in range(4):
        files.pipe(f"/test-images/{number}.png", encoded(pixels(number)))
    try:
        with load("images/memory://test-images", batch=4).train(DataPartition()) as stream:  # type: ignore[attr-defined]
            assert sorted(number_of(image) for image in next(stream)["image"]) == [0, 1, 2, 3]
    finally:
        files.rm("/test-images", recursive=True)


def test_overlap_is_refused(stored: dict[str, Path], tmp_path: Path) -> None:
    for layout, (_, spec) in LAYOUTS.items():
        with pytest.raises(OverlapError, match="validation"):
            spec(stored[layout], val_split="train").load(batch=2)
    whole = ImageFolder(stored["folder"]).open("train")
    fewer = ImageFolder(stored["folder"], exclude=[whole.files.key(0)]).open("train")
    assert len(fewer) == COUNT - 1
    assert whole.shares_records_with(fewer) == COUNT - 1
    moved = ImageFolder(folder(tmp_path / "copy", range(4))).open("train")
    assert whole.shares_records_with(moved) == 0
    assert whole.shares_records_with(object()) == 0
    inside = ImageFolder(stored["folder"] / "cat", captions="drop").open("train")
    assert whole.shares_records_with(inside) == inside.shares_records_with(whole) == len(inside) == COUNT // 3
    assert inside.shares_records_with(ImageFolder(stored["folder"] / "dog", captions="drop").open("train")) == 0


def test_a_moved_folder_goes_on_and_other_pixels_do_not(stored: dict[str, Path], tmp_path: Path) -> None:
    copy = folder(tmp_path / "elsewhere")
    with ImageFolder(stored["folder"], size=8).load(batch=4).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        next(stream)
        state = json.loads(json.dumps(stream.get_state()))
    assert str(stored["folder"]) not in json.dumps(state)
    with ImageFolder(copy, size=8).load(batch=4).train(DataPartition()) as other:  # type: ignore[attr-defined]
        other.set_state(state)
    for changed in (
        {"size": 9},
        {"size": 8, "resample": "lanczos"},
        {"size": 8, "flip": 0.5},
        {"size": 8, "icc": "srgb"},
    ):
        with (
            ImageFolder(copy, **changed).load(batch=4).train(DataPartition()) as other,  # type: ignore[attr-defined]
            pytest.raises(PositionMismatchError, match="another pixels"),
        ):
            other.set_state(state)
    with (
        ImageFolder(copy, size=8, captions="drop").load(batch=4).train(DataPartition()) as other,  # type: ignore[attr-defined]
        pytest.raises(PositionMismatchError),
    ):
        other.set_state(state)


def test_a_parquet_of_many_row_groups_says_what_a_full_shuffle_costs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parquet(tmp_path, range(21 * 3), group=3)
    assert len(ImageParquet(tmp_path).open("train")) == 63
    assert "63 images lie in 21 row groups of about 3" in caplog.text
    caplog.clear()
    ImageParquet(tmp_path, lanes=4).open("train")
    assert "row groups" not in caplog.text


def test_lanes_read_each_row_group_once_an_epoch(stored: dict[str, Path]) -> None:
    dataset = ImageParquet(stored["parquet"], size=8, lanes=1).load(batch=4)
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        groups = [int(record) // 5 for step in range(6) for record in stream.ids(step)]
        assert stream.get_state()["order"]["kind"] == "blocks"
    changes = sum(one != other for one, other in itertools.pairwise(groups))
    assert changes == 4
    with pytest.raises(OptionsError, match=r"lanes=2 are row groups of parquet.*folder, 24 files"):
        ImageFolder(stored["folder"], lanes=2).open("train")


def test_a_mixture_of_layouts_draws_too(stored: dict[str, Path]) -> None:
    parts = {
        "folder": (ImageFolder(stored["folder"], size=8, crop="random", flip=0.5), 1),
        "tar": (ImageTar(stored["tar"], size=8, crop="random", flip=0.5), 1),
    }
    with Mixture(parts).load(batch=8).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        first = next(stream)
        assert first["image"].shape == (8, 8, 8, 3)
        stream.set_state(stream.position.at_step(0).to_json())
        np.testing.assert_array_equal(next(stream)["image"], first["image"])


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"layout": "zip"}, OptionsError, "layout must be one of 'folder', 'tar', 'parquet' or None, got 'zip'"),
    ({"size": "big"}, OptionsTypeError, "size must be a side or .height, width."),
    ({"size": 8, "fit": "none"}, OptionsError, "do not go together"),
    ({"crop": "random"}, OptionsError, 'crop="random" has no meaning'),
    ({"flip": 2}, OptionsError, "from 0 to 1, got 2"),
    ({"missing": "skip"}, OptionsError, "missing must be 'error' or 'drop', got 'skip'"),
    ({"captions": "names"}, OptionsError, "captions must be one of 'keep', 'drop', 'require', 'metadata', 'sidecars'"),
    ({"labels": "names"}, OptionsError, "labels must be one of 'metadata', 'folders', 'none' or None, got 'names'"),
    ({"captions": "drop", "caption_field": "text"}, OptionsError, "reads none; leave caption_field='text' out"),
    ({"background": (0, 0)}, OptionsError, "background is .red, green, blue."),
    ({"lanes": 0}, OptionsError, "lanes must be at least 1, got 0"),
    ({"buckets": True}, OptionsError, "buckets need size=, the side of a square.*size=None"),
    ({"buckets": True, "size": (8, 16)}, OptionsError, "size=.8, 16."),
    ({"buckets": "many", "size": 8}, OptionsTypeError, "True, False, or sizes .height, width., got 'many'"),
    ({"buckets": [(8, 8, 8)], "size": 8}, OptionsTypeError, "a bucket is .height, width. in pixels"),
    ({"buckets": True, "size": 64, "lanes": 2}, OptionsError, "two orders of training"),
    ({"storage_options": "key"}, OptionsTypeError, "storage_options must be a mapping, got str"),
    ({"val_split": 3}, OptionsTypeError, "val_split must be a text or None, got 3 .int."),
    ({"index": 3}, OptionsTypeError, "index must be a path or None, got 3 .int."),
    ({"cache": "here"}, OptionsTypeError, "cache must be a BlockCache or None, got 'here' .str."),
    ({"max_pixels": 0}, OptionsError, "max_pixels must be at least 1"),
]


@pytest.mark.parametrize(("wrong", "error", "match"), WRONG)
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        ImageOptions(**wrong)


def test_options_as_a_command_line_writes_them() -> None:
    options = ImageOptions(size=[8, 16], background=[0, 0, 0])
    assert options.geometry.size == (8, 16)
    assert options.geometry.background == (0, 0, 0)
    with pytest.raises(TypeError, match="storage_options"):
        ImageOptions(storage_options=3)  # type: ignore[arg-type]
