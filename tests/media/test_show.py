"""The contact sheet: every picture is on it, with its record, its file, its class and its caption."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dew.data import DataPartition, ImageFolder
from dew.data.provider import ShowRequest
from dew_media.images.plugin import IMAGES
from dew_media.images.show import MOST, show

COLOURS = ((200, 0, 0), (0, 180, 0), (0, 0, 220), (180, 180, 0))


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    rows: list[dict[str, Any]] = []
    for number, colour in enumerate(COLOURS):
        name = f"{('cat', 'dog')[number % 2]}/{number}.png"
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (40, 30), colour).save(tmp_path / name)
        label = name.partition("/")[0]
        rows.append({"file_name": name, "label": label, "text": f"animal number {number}, " + "seen from afar " * 12})
    (tmp_path / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def test_every_picture_is_on_the_sheet_with_what_is_known_of_it(animals: Path) -> None:
    dataset = ImageFolder(animals, size=(30, 40)).load(batch=4)
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        ids = tuple(stream.ids(0).tolist())
        batch = next(stream)
        (picture,) = show(ShowRequest(batch=batch, ids=ids, source=stream.source))
    assert (picture.name, picture.media_type) == ("image", "image/png")
    sheet = opened(picture.data)
    colours = {colour for _, colour in sheet.convert("RGB").getcolors(1 << 20) or []}
    assert set(COLOURS) <= colours
    assert sheet.width <= 1200
    for row, record in enumerate(ids):
        key = stream.source.files.key(record)
        name = ("cat", "dog")[batch["label"][row]]
        assert f"record {record}, {key}, {name}, animal number" in picture.alt
    assert "4 pictures of 40 by 30 pixels" in picture.alt
    assert picture.alt.count(" ...") == 4


def test_pictures_stand_without_a_source_and_without_ids() -> None:
    images = np.zeros((MOST + 6, 4, 4, 3), np.uint8)
    batch = {"image": images, "label": np.arange(MOST + 6, dtype=np.int32), "caption": np.array([""] * (MOST + 6))}
    (picture,) = show(ShowRequest(batch=batch))
    assert f"{MOST} of {MOST + 6} pictures" in picture.alt
    assert "row 0, label 0, (empty caption); row 1, label 1" in picture.alt
    assert f"row {MOST}" not in picture.alt
    assert opened(picture.data).height > 500


@pytest.mark.parametrize(
    "batch",
    [{}, {"text": np.zeros((2, 3), np.int32)}, {"image": np.zeros((2, 4, 4, 3), np.float32)}, {"image": np.zeros(4)}],
)
def test_a_batch_without_pictures_has_no_sheet(batch: Any) -> None:
    assert show(ShowRequest(batch=batch)) == []


def test_the_provider_names_it() -> None:
    assert IMAGES.show == f"{show.__module__}:{show.__name__}"
