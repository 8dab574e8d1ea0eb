"""Images of many sizes and kinds in one collection: what forms a batch, buckets, bad files, and what is counted."""

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from dew.data import (
    CollateError,
    DamagedSourceError,
    DataPartition,
    ImageFolder,
    ImageOptions,
    OptionsError,
    Ramp,
    load,
    ramped,
)

Pixels = npt.NDArray[np.uint8]

COUNT = 24


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


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Pictures of three proportions, of which bucketed training makes three buckets."""
    for number in range(COUNT):
        width, height = ((40, 20), (20, 40), (24, 24))[number % 3]
        (tmp_path / f"{number:03d}.png").write_bytes(encoded(pixels(number, width, height)))
    return tmp_path


def test_images_of_unequal_size_are_refused_naming_two_records(tmp_path: Path) -> None:
    """E13, and how geometry makes them fit."""
    for number, (height, width) in enumerate([(4, 5), (5, 4), (4, 5), (5, 4)]):
        (tmp_path / f"{number}.png").write_bytes(encoded(pixels(number, width, height)))
    match = (
        r"'image'.*\(4, 5, 3\) in record \d \(place \d\).*\(5, 4, 3\) in record \d|'image'.*\(5, 4, 3\).*\(4, 5, 3\)"
    )
    with load(f"images/{tmp_path}", batch=4).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        with pytest.raises(CollateError, match=match) as caught:
            next(stream)
        assert str(caught.value).count("record ") >= 2
    with ImageFolder(tmp_path, size=4).load(batch=4).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        assert next(stream)["image"].shape == (4, 4, 4, 3)


def test_a_bad_file_is_named_and_excluding_it_is_part_of_the_identity(tmp_path: Path) -> None:
    """E06: one file is empty, one is an error page."""
    for number in range(10):
        (tmp_path / f"{number}.png").write_bytes(encoded(pixels(number)))
    (tmp_path / "3.png").write_bytes(b"")
    (tmp_path / "7.png").write_bytes(b"<html>404 not found</html>")
    source = ImageFolder(tmp_path).open("train")
    with pytest.raises(DamagedSourceError, match=r"3\.png.*0 bytes"):
        source[3]
    with pytest.raises(DamagedSourceError, match=r"7\.png is no image that can be read \(26 bytes"):
        source[7]
    with ImageFolder(tmp_path).load(batch=10).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        with pytest.raises(DamagedSourceError, match=r"[37]\.png") as caught:
            next(stream)
        assert any("record " in note for note in caught.value.__notes__)
    spared = ImageFolder(tmp_path, exclude=["3.png", "7.png"])
    assert "2 excluded" in repr(spared.open("train"))
    assert spared.open("train").fingerprint() != source.fingerprint()
    with spared.load(batch=8).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        assert sorted(number_of(image) for image in next(stream)["image"]) == [0, 1, 2, 4, 5, 6, 8, 9]


def test_statistics_say_what_is_there(tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / ("cat", "dog", "owl")[number % 3] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded(pixels(number)))
    (tmp_path / "cat" / "wide.jpg").write_bytes(encoded(pixels(1, 64, 16), "JPEG"))
    grey = io.BytesIO()
    Image.new("L", (10, 20)).save(grey, "PNG")
    (tmp_path / "dog" / "grey.png").write_bytes(grey.getvalue())
    (tmp_path / "dog" / "cut.png").write_bytes(grey.getvalue()[:20])
    tables = ImageFolder(tmp_path).open("train").statistics()
    assert tables["images"] == {"in the collection": 9, "looked at": 9, "unreadable": 1}
    assert tables["format"] == {"PNG": 7, "JPEG": 1}
    assert tables["pixel mode"] == {"RGB": 7, "L": 1}
    assert tables["width x height"]["20 x 14"] == 6
    assert tables["proportions"] == {"1:2": 1, "3:2": 6, "3:1 and wider": 1}
    assert tables["label"] == {"cat": 3, "dog": 4, "owl": 2}


def test_buckets_train_on_one_size_a_step(mixed: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = ImageFolder(mixed, size=16, buckets=[(8, 16), (16, 8), (12, 12)], crop="random")
    with caplog.at_level("INFO", "dew.media"):
        dataset = spec.load(batch=4)
    assert "3 aspect buckets for 24 records" in caplog.text
    counts: dict[int, int] = {}
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        shapes: set[tuple[int, ...]] = set()
        for step in range(6):
            ids = stream.ids(step)
            batch = next(stream)
            shapes.add(batch["image"].shape)
            for record, image in zip(ids, batch["image"], strict=True):
                assert number_of(image) == record
                counts[int(record)] = counts.get(int(record), 0) + 1
        assert shapes == {(4, 8, 16, 3), (4, 16, 8, 3), (4, 12, 12, 3)}
        assert counts == dict.fromkeys(range(COUNT), 1)
        state = stream.get_state()
        expected = next(stream)
    for count in (1, 2, 4):
        shares = [dataset.train(DataPartition(index, count)) for index in range(count)]
        for share in shares:
            share.set_state(state)  # type: ignore[attr-defined]
        parts = [next(share)["image"] for share in shares]
        whole = np.stack(parts, axis=1).reshape(expected["image"].shape)
        np.testing.assert_array_equal(whole, expected["image"])
        for share in shares:
            share.close()  # type: ignore[attr-defined]


def test_buckets_are_chosen_and_validation_reads_the_square(tmp_path: Path) -> None:
    sides = [(300, 200), (200, 300), (256, 256), (400, 200), (200, 400)]
    for split, numbers in (("train", range(20)), ("val", range(20, 25))):
        (tmp_path / split).mkdir()
        for number in numbers:
            width, height = sides[number % 5]
            (tmp_path / split / f"{number}.png").write_bytes(encoded(pixels(number, width, height)))
    options = ImageOptions(size=128, buckets=True, bucket_step=32, val_split="val")
    dataset = load(f"images/{tmp_path}", batch=4, options=options)
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        shapes = {next(stream)["image"].shape for _ in range(5)}
    assert len(shapes) > 2
    assert all(
        side % 32 == 0 and height * width <= 128 * 128 for _, height, width, _ in shapes for side in (height, width)
    )
    assert dataset.val is not None
    assert {batch["image"].shape for batch in dataset.val(DataPartition())} == {(4, 128, 128, 3)}


def test_too_few_buckets_to_choose_from() -> None:
    """At 64 x 64 the square alone has sides of 64, and buckets=True would silently be no buckets at all."""
    match = r"bucket_step=64 leaves 1 of the 5 buckets or more that are chosen at size=64; .* as bucket_step=8, or"
    with pytest.raises(OptionsError, match=match):
        ImageOptions(size=64, buckets=True)
    assert ImageOptions(size=64, buckets=True, bucket_step=8).buckets is True


def test_buckets_refuse_another_batch(mixed: Path) -> None:
    dataset = ImageFolder(mixed, size=16, buckets=[(8, 16), (16, 8), (12, 12)]).load(batch=4)
    with pytest.raises(OptionsError, match="4"):
        ramped(dataset, Ramp(start=2, increment=2, samples=8)).train(DataPartition())


def test_a_damaged_image_stops_the_measuring_by_name(mixed: Path) -> None:
    (mixed / "005.png").write_bytes(b"")
    with pytest.raises(DamagedSourceError, match=r"005\.png"):
        ImageFolder(mixed, size=16, buckets=True, bucket_step=4).load(batch=4)
    ImageFolder(mixed, size=16, buckets=True, bucket_step=4, exclude=["005.png"]).load(batch=4)
