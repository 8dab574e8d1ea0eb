"""What `dew peek video/...` draws: strips with the time of each frame, and clips in motion."""

import io
from pathlib import Path

import attrs
import numpy as np
import pytest
from PIL import Image
from tests.media.video.conftest import Video, write_video

import dew.cli
from dew.data import DataPartition, Loading, VideoFolder
from dew.data.order import draws_at
from dew.data.provider import ShowRequest
from dew_media.video.show import CLIPS, show

HERE = Loading(workers=0, threads=1, read_buffer=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shown") / "clips"
    root.mkdir()
    for number in range(4):
        write_video(root, Video(name=f"{number}.mp4", frames=40))
        (root / f"{number}.txt").write_text(f"a caption {number}")
    return root


def request(folder: Path, *, moving: bool = False) -> ShowRequest:
    dataset = VideoFolder(folder, frames=6, size=(24, 32), seed=4, loading=HERE).load(batch=3)
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        ids = tuple(int(record) for record in stream.ids(0))
        return ShowRequest(
            batch=next(stream), ids=ids, source=stream.source, draws=lambda row: draws_at(4, row), moving=moving
        )


def test_a_strip_has_a_row_a_clip(folder: Path) -> None:
    asked = request(folder)
    (picture,) = show(asked)
    assert (picture.name, picture.media_type) == ("video", "image/png")
    assert "3 clips, a row each, 6 frames of 32 by 24 pixels" in picture.alt
    assert asked.ids is not None
    assert f"record {asked.ids[0]} · {asked.ids[0]}.mp4 · a caption {asked.ids[0]}" in picture.alt
    image = Image.open(io.BytesIO(picture.data))
    assert image.size[0] > 6 * 144
    # The first frame of the first row, magnified without blur, is on the sheet as it is in the batch.
    shown = np.asarray(image.convert("RGB"))[8 + 15 : 8 + 15 + 108, 8 : 8 + 144]
    np.testing.assert_array_equal(shown[2::9, 2::9][:12, :16], asked.batch["video"][0, 0][::2, ::2])


def test_times_are_not_made_up_for_frames_that_a_preprocess_left_out(folder: Path) -> None:
    asked = request(folder)
    batch = {**asked.batch, "video": asked.batch["video"][:, ::2]}
    (picture,) = show(attrs.evolve(asked, batch=batch))
    assert "3 frames of 32 by 24" in picture.alt
    plain = {**batch, "caption": np.array(["two\nlines\t and more " * 20] * 3)}
    (wordy,) = show(attrs.evolve(asked, batch=plain))
    assert Image.open(io.BytesIO(wordy.data)).size == Image.open(io.BytesIO(picture.data)).size


def test_motion_has_a_picture_a_frame(folder: Path) -> None:
    (picture,) = show(request(folder, moving=True))
    assert picture.media_type == "image/webp"
    image = Image.open(io.BytesIO(picture.data))
    assert getattr(image, "n_frames", 1) == 6


def test_batches_without_clips_show_nothing() -> None:
    assert show(ShowRequest(batch={"video": np.zeros((2, 3), np.uint8)})) == []
    assert show(ShowRequest(batch={"other": np.zeros((2, 3, 4, 4, 3), np.uint8)})) == []


def test_a_batch_alone_is_numbered_by_rows() -> None:
    (picture,) = show(ShowRequest(batch={"video": np.zeros((CLIPS + 2, 3, 4, 4, 3), np.uint8)}))
    assert "row 0" in picture.alt
    assert f"{CLIPS} clips" in picture.alt


@pytest.mark.parametrize(
    ("options", "kind"), [(["--out", "strip.png"], "PNG"), (["--webp", "--out", "clip.webp"], "WEBP")]
)
def test_from_the_command_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["peek", f"video/{folder}", "--batch", "3", "-o", "frames=6", "-o", "size=32", *options]
    assert dew.cli.main(words) == 0
    with Image.open(options[-1]) as image:
        assert image.format == kind
