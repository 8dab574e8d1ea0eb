"""Oxford Flowers from a tiny directory in each form that people have, and fetched from a server on loopback."""

import contextlib
import hashlib
import io
import pickle
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from dew.data import (
    DamagedSourceError,
    DataPartition,
    Dataset,
    OptionsError,
    OptionsTypeError,
    OverlapError,
    OxfordFlowers,
    SourceError,
    SourceNotFoundError,
    SplitError,
    StorageError,
)
from dew.data.source import RecordSource
from dew.testing import SourceSuite, StreamSuite
from dew_media.images import flower_download
from dew_media.images.flower_download import ARCHIVE, Origin, download
from dew_media.images.flower_files import check_names
from dew_media.images.flower_names import NAMES, TEMPLATES

COUNT = 24
IDS = {"trnid": [3, 1, 8, 20, 24], "valid": [2, 5, 7], "tstid": [4, 6, 9, 10, 11, 12, 13, 14]}
SPLITS = {"train": "trnid", "validation": "valid", "test": "tstid"}
CLASSES = [1 + (number * 37) % 102 for number in range(1, COUNT + 1)]  # of images 1 to 24, from 1

Pixels = npt.NDArray[np.uint8]


def flower(number: int) -> bytes:
    """Image `number` as a JPEG: its level of red says which it is."""
    made = io.BytesIO()
    image = np.zeros((40 + number, 60, 3), np.uint8)
    image[..., 0] = number * 10
    Image.fromarray(image).save(made, "JPEG", quality=95)
    return made.getvalue()


def number_of(image: Pixels) -> int:
    return round(float(image[..., 0].mean()) / 10)


def archive(folder: Path, **changed: Any) -> Path:
    """The files of the original archive."""
    from scipy.io import savemat

    (folder / "jpg").mkdir(parents=True)
    for number in range(1, COUNT + 1):
        (folder / "jpg" / f"image_{number:05d}.jpg").write_bytes(flower(number))
    variables = {"labels": CLASSES, **IDS, **changed}
    mats = {"imagelabels.mat": ("labels",), "setid.mat": tuple(IDS)}
    for name, names in mats.items():
        savemat(folder / name, {key: np.array([variables[key]], np.uint16) for key in names})
    return folder


def tfds(folder: Path, names: tuple[str, ...] = NAMES) -> Path:
    """As tensorflow-datasets prepares it; a `data_dir`."""
    import tensorflow_datasets as library

    features = library.features

    def records(ids: list[int]) -> Any:
        for number in ids:
            name = f"image_{number:05d}.jpg"
            yield name, {"image": io.BytesIO(flower(number)), "label": CLASSES[number - 1] - 1, "file_name": name}

    class Builder(library.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[misc, call-arg]
        VERSION = library.core.Version("2.1.1")

        def _info(self) -> Any:
            label = features.ClassLabel(names=list(names))
            parts = {"image": features.Image(), "label": label, "file_name": features.Text()}
            return library.core.DatasetInfo(builder=self, features=features.FeaturesDict(parts))

        def _split_generators(self, _downloads: Any) -> Any:
            return {split: records(IDS[key]) for split, key in SPLITS.items()}

        def _generate_examples(self) -> Any:
            yield from ()

    kind = type("oxford_flowers102", (Builder,), {"name": "oxford_flowers102"}, skip_registration=True)
    with (
        tempfile.TemporaryDirectory() as scratch,  # where TFDS leaves a folder behind
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        patch.setattr(tempfile, "tempdir", scratch)
        config = library.download.DownloadConfig(num_shards=1, try_download_gcs=False)
        kind(data_dir=str(folder), file_format="array_record").download_and_prepare(download_config=config)
    return folder


def hf_parts() -> dict[str, Any]:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(NAMES))})

    def part(ids: list[int]) -> Any:
        images = [{"bytes": flower(number), "path": f"image_{number:05d}.jpg"} for number in ids]
        labels = [CLASSES[number - 1] - 1 for number in ids]
        return datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)

    return {split: part(IDS[key]) for split, key in SPLITS.items()}


def saved(folder: Path) -> Path:
    """As `datasets` saves it to disk."""
    import datasets

    datasets.disable_progress_bars()
    datasets.DatasetDict(**hf_parts()).save_to_disk(str(folder))
    return folder


def parquet(folder: Path) -> Path:
    """As a repository of the hub holds it."""
    (folder / "data").mkdir(parents=True)
    for split, part in hf_parts().items():
        part.to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))
    (folder / "README.md").write_text("a copy")
    return folder


FORMS: dict[str, Callable[[Path], Path]] = {"archive": archive, "tfds": tfds, "saved": saved, "parquet": parquet}


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A directory in each form."""
    with pytest.MonkeyPatch.context() as patch:
        from datasets import config

        patch.setattr(config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        return {form: make(tmp_path_factory.mktemp(form) / "flowers") for form, make in FORMS.items()}


def expected(split: str) -> set[tuple[int, int]]:
    """Number and label of each image of a split."""
    ids = [number for key in IDS for number in IDS[key]] if split == "all" else IDS[SPLITS[split]]
    return {(number, CLASSES[number - 1] - 1) for number in ids}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("split", ["train", "validation", "test", "all"])
def test_each_form_holds_the_same_flowers(copies: dict[str, Path], form: str, split: str) -> None:
    source = OxfordFlowers(copies[form]).open(split)
    records = [source[index] for index in range(len(source))]
    assert {(number_of(record["image"]), int(record["label"])) for record in records} == expected(split)
    for record in records:
        assert record["label"].dtype == np.int32
        assert record["caption"] == TEMPLATES[0].format(name=NAMES[record["label"]])
    assert str(copies[form]) not in repr(source)
    assert split in repr(source)
    assert source.label_names == NAMES


@pytest.mark.parametrize("form", FORMS)
def test_each_form_trains_and_validates(copies: dict[str, Path], form: str) -> None:
    dataset = OxfordFlowers(copies[form], size=16, crop="random", flip=0.5, seed=3).load(batch=4)
    assert dataset.records == 5
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        batch = next(stream)
        assert batch["image"].shape == (4, 16, 16, 3)
        assert batch["label"].dtype == np.int32
        epoch = {(number_of(image), int(label)) for image, label in zip(batch["image"], batch["label"], strict=True)}
        assert epoch < expected("train")
        stream.set_state(stream.get_state())
    assert dataset.val is not None
    assert sum(int(batch["valid"].sum()) for batch in dataset.val(DataPartition())) == 3


class FlowerSuite(SourceSuite):
    """The conformance suite for a form."""

    form = "archive"
    largest_pickle = 10_000

    @pytest.fixture(autouse=True)
    def _copy(self, copies: dict[str, Path]) -> None:
        self.path = copies[self.form]
        self.location = str(self.path)

    def make_source(self) -> RecordSource:
        return OxfordFlowers(self.path, size=8, crop="random").open("train")


class TestArchive(FlowerSuite):
    form = "archive"


class TestPreparedByTFDS(FlowerSuite):
    form = "tfds"


class TestSavedByDatasets(FlowerSuite):
    form = "saved"
    largest_pickle = 20_000  # the library's own description of 102 classes


class TestParquetCopy(FlowerSuite):
    form = "parquet"


del FlowerSuite


class TestFlowerStream(StreamSuite):
    steps = 2
    largest_count = 2

    @pytest.fixture(autouse=True)
    def _copy(self, copies: dict[str, Path]) -> None:
        self.path = copies["archive"]

    def make_dataset(self) -> Dataset:
        return OxfordFlowers(self.path, size=8, crop="random", flip=0.5).load(batch=4)


def test_templates_are_drawn_by_the_record(copies: dict[str, Path]) -> None:
    flowers = OxfordFlowers(copies["archive"], size=8, templates=["a {name}", "one {name}", "{name}!"], val_split=None)
    seen: set[str] = set()
    with flowers.load(batch=5).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        for _ in range(12):
            batch = next(stream)
            for caption, label in zip(batch["caption"].tolist(), batch["label"].tolist(), strict=True):
                assert NAMES[label] in caption
                seen.add(caption.replace(NAMES[label], "{name}"))
    assert seen == set(flowers.templates)
    bare = OxfordFlowers(copies["archive"], captions="drop").open("test")
    assert sorted(bare[0]) == ["image", "label"]


def test_names_are_the_102_in_order() -> None:
    assert len(set(NAMES)) == len(NAMES) == 102
    assert NAMES[:3] == ("pink primrose", "hard-leaved pocket orchid", "canterbury bells")
    assert NAMES[-2:] == ("trumpet creeper", "blackberry lily")
    assert {"pink-yellow dahlia?", "colt's foot", "barbeton daisy", "bromelia", "hippeastrum"} <= set(NAMES)
    assert all(name == name.lower().strip() and "  " not in name for name in NAMES)


def test_overlap_is_refused(copies: dict[str, Path]) -> None:
    for form in ("archive", "saved"):
        with pytest.raises(OverlapError, match=r"validation on 'validation' .* the split 'all' .*allow_overlap=True"):
            OxfordFlowers(copies[form], split="all").load(batch=2)
        with pytest.raises(OverlapError, match="'train'"):
            OxfordFlowers(copies[form], val_split="train").load(batch=2)
    shared = OxfordFlowers(copies["archive"], split="all", allow_overlap=True).load(batch=2)
    assert shared.records == 16
    flowers = OxfordFlowers(copies["tfds"])
    assert flowers.open("all").shares_records_with(flowers.open("test")) == 8
    assert flowers.open("train").shares_records_with(flowers.open("test")) == 0


def test_a_moved_copy_goes_on_and_another_does_not(tmp_path: Path) -> None:
    first, moved = archive(tmp_path / "a"), archive(tmp_path / "b")
    other = archive(tmp_path / "c", labels=[*CLASSES[:-1], 5])
    sources = [OxfordFlowers(folder).open("train") for folder in (first, moved, other)]
    digests = [source.fingerprint() for source in sources]
    assert digests[0] == digests[1] != digests[2]
    copy = pickle.loads(pickle.dumps(sources[0]))
    (first / "jpg" / "image_00024.jpg").write_bytes(b"shorter")
    with pytest.raises(DamagedSourceError, match="changed after it was opened"):
        copy[0]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"labels": [*CLASSES[:-1], 103]}, DamagedSourceError, "must hold classes 1 to 102"),
    ({"trnid": [1, 25]}, DamagedSourceError, "names image 25, and imagelabels.mat has the classes of images 1 to 24"),
    ({"trnid": [1, 1]}, DamagedSourceError, "names an image twice in the split 'train'"),
    ({"trnid": []}, SourceError, "holds no images for the split 'train'"),
]


@pytest.mark.parametrize(("changed", "error", "match"), REFUSED)
def test_an_archive_that_contradicts_itself_is_refused(
    tmp_path: Path, changed: dict[str, Any], error: type[Exception], match: str
) -> None:
    flowers = OxfordFlowers(archive(tmp_path / "flowers", **changed))
    with pytest.raises(error, match=match):
        flowers.open("train")


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    folder = archive(tmp_path / "flowers")
    for number in (3, 20):
        (folder / "jpg" / f"image_{number:05d}.jpg").unlink()
    with pytest.raises(SourceError, match=r"lacks 2 of the 5 images .*'image_00003.jpg', 'image_00020.jpg'"):
        OxfordFlowers(folder).open("train")
    source = OxfordFlowers(folder).open("test")
    (folder / "jpg" / "image_00004.jpg").write_bytes(b"<html>not found</html>")
    with pytest.raises(DamagedSourceError, match=r"jpg/image_00004.jpg is no image"):
        source[0]
    (folder / "setid.mat").write_bytes(b"no mat")
    with pytest.raises(DamagedSourceError, match=r"setid.mat holds no numbers called 'trnid' \(6 bytes\)"):
        OxfordFlowers(folder).open("train")


def test_a_copy_of_other_classes_is_refused(tmp_path: Path) -> None:
    swapped = (*NAMES[:5], NAMES[6], NAMES[5], *NAMES[7:])
    folder = tfds(tmp_path / "swapped", swapped)
    with pytest.raises(SourceError, match=r"label 5 is 'moon orchid' there, and 'tiger lily' here"):
        OxfordFlowers(folder).open("train")
    with pytest.raises(SourceError, match=r"label 2 is None there.*2 and 102 classes"):
        check_names(NAMES[:2], "a copy")
    check_names(None, "a copy without names")


def test_a_copy_without_a_split_lists_those_there_are(tmp_path: Path) -> None:
    import datasets

    parts = hf_parts()
    datasets.disable_progress_bars()
    datasets.DatasetDict({"train": parts["train"], "valid": parts["test"]}).save_to_disk(str(tmp_path / "two"))
    flowers = OxfordFlowers(tmp_path / "two")
    assert len(flowers.open("validation")) == 8
    with pytest.raises(SplitError, match=r"no split 'test'; it has \['train', 'valid', 'all'\]"):
        flowers.open("test")
    parts["train"].rename_column("label", "class").save_to_disk(str(tmp_path / "columns"))
    with pytest.raises(SourceError, match=r"no column \['label'\]; it has \['image', 'class'\]"):
        OxfordFlowers(tmp_path / "columns").open("train")


ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"split": "val"}, OptionsError, "split must be one of 'train', 'validation', 'test', 'all', got 'val'"),
    ({"form": "zip"}, OptionsError, "form must be one of .* got 'zip'"),
    ({"templates": ["a flower"]}, OptionsError, r"holds \{name\} once and no other braces, got 'a flower'"),
    ({"templates": "a {name}"}, OptionsTypeError, "must be a sequence of texts, got 'a {name}'"),
    ({"captions": "some"}, OptionsError, "captions must be one of 'keep', 'drop', 'require', got 'some'"),
    ({"size": 0}, OptionsError, "at least 1, got 0"),
]


@pytest.mark.parametrize(("wrong", "error", "match"), ARGUMENTS)
def test_arguments_that_cannot_be_are_refused(wrong: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        OxfordFlowers("flowers", **wrong)


def test_nothing_is_downloaded_unless_asked(tmp_path: Path) -> None:
    match = r"no Oxford flowers in .*nowhere.* \(329 MiB\) from https://www.robots.ox.ac.uk/.* download=True"
    with pytest.raises(SourceNotFoundError, match=match):
        OxfordFlowers(tmp_path / "nowhere").load(batch=2)
    assert not (tmp_path / "nowhere").exists()


class Quiet(SimpleHTTPRequestHandler):
    """Serves a directory and writes no log."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[Origin]:
    """The original files on a server of this machine."""
    files = archive(tmp_path / "served")
    with tarfile.open(files / ARCHIVE, "w:gz") as packed:
        packed.add(files / "jpg", "jpg")
        packed.addfile(tarfile.TarInfo("jpg/../../outside.jpg"))
        link = tarfile.TarInfo("jpg/image_00025.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        packed.addfile(link)
    md5 = {
        name: hashlib.md5((files / name).read_bytes(), usedforsecurity=False).hexdigest()
        for name in (ARCHIVE, "imagelabels.mat", "setid.mat")
    }
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(files))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Origin(url=f"http://127.0.0.1:{server.server_port}", md5=md5, size="2 MiB")
        finally:
            server.shutdown()
            thread.join()


def test_the_original_files_are_fetched_when_asked(
    tmp_path: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flower_download, "OXFORD", origin)
    folder = tmp_path / "fetched"
    dataset = OxfordFlowers(folder, size=8, download=True).load(batch=2)
    assert dataset.records == 5
    assert [record.message for record in caplog.records if origin.url in record.message] != []
    assert sorted(path.name for path in folder.iterdir()) == ["imagelabels.mat", "jpg", "setid.mat"]
    assert len(list((folder / "jpg").iterdir())) == COUNT
    assert not (tmp_path / "outside.jpg").exists()
    again = OxfordFlowers(folder, size=8, download=True).load(batch=2)
    assert again.records == 5
    assert len([record for record in caplog.records if origin.url in record.message]) == 1


def test_a_failed_download_leaves_nothing_behind(tmp_path: Path, origin: Origin) -> None:
    folder = tmp_path / "fetched"
    with pytest.raises(DamagedSourceError, match=r"setid.mat is not the file that was published: its md5 is \w+, exp"):
        download(folder, Origin(url=origin.url, md5={**origin.md5, "setid.mat": "0" * 32}, size=""))
    with pytest.raises(StorageError, match=r"nowhere/102flowers.tgz could not be fetched: .*404"):
        download(folder, Origin(url=f"{origin.url}/nowhere", md5=origin.md5, size=""))
    with pytest.raises(StorageError, match="could not be fetched"):
        download(folder, Origin(url="http://127.0.0.1:1", md5=origin.md5, size=""))
    assert list(folder.iterdir()) == []
