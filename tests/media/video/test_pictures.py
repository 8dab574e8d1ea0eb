"""Rotation and colours, beside a second decoder and known colours."""

from typing import Any

import cv2
import numpy as np
import pytest

from dew.data.errors import SourceError
from dew_media.geometry import Geometry
from dew_media.video.decode import OpenVideo
from dew_media.video.frames import Orientation, orientation_of, read_table

COLOUR = (200, 50, 20)
BT709, BT601 = 1, 5


def decoded(path: Any, geometry: Geometry | None = None) -> Any:
    geometry = geometry or Geometry()
    table = read_table(str(path), name=path.name)
    with OpenVideo(str(path), name=path.name) as video:
        return video.clip(table, table.times, geometry=geometry, placement=geometry.plan(*table.size(), None))


def by_opencv(path: Any) -> Any:
    capture = cv2.VideoCapture(str(path))
    frames = []
    while (read := capture.read())[0]:
        frames.append(read[1][..., ::-1])
    capture.release()
    return np.array(frames)


@pytest.mark.parametrize(
    "kind",
    [
        "h264",
        "h265 open gop",
        "10 bit",
        "10 bit h264",
        "vp9",
        "avi",
        "odd size",
        "turned 90",
        "turned 180",
        "turned 270",
        "variable rate",
    ],
)
def test_every_frame_is_as_opencv_decodes_it(library: Any, kind: str) -> None:
    path = library[kind].path
    ours, theirs = decoded(path), by_opencv(path)
    assert ours.shape == theirs.shape
    # OpenCV converts with other rounding, and rounds 10 bits down first.
    assert np.abs(ours.astype(int) - theirs).max() <= 6
    assert np.abs(ours.astype(int) - theirs).mean() < 2


@pytest.mark.parametrize(
    ("size", "matrix", "tagged"),
    [
        ((1280, 720), BT709, None),
        ((1280, 544), BT709, None),
        ((720, 1280), BT709, None),
        ((1280, 720), BT709, BT709),
        ((1280, 720), BT601, BT601),
        ((640, 480), BT601, None),
        ((640, 480), BT709, BT709),
    ],
)
def test_colours_come_out_as_they_went_in(
    tmp_path: Any, videos: Any, size: Any, matrix: int, tagged: int | None
) -> None:
    flat = np.full((size[1], size[0], 3), COLOUR, np.uint8)
    video = videos.Video(size=size, frames=2, matrix=matrix, tagged=tagged)
    path = videos.write_video(tmp_path, video, lambda _: flat)
    assert np.abs(decoded(path, Geometry(size=64)).astype(int) - COLOUR).max() <= 3


def test_full_range_is_not_stretched(tmp_path: Any, videos: Any) -> None:
    grey = np.full((48, 64, 3), 250, np.uint8)
    path = videos.write_video(tmp_path, videos.Video(frames=2, pixels="yuvj420p", bframes=0), lambda _: grey)
    assert np.abs(decoded(path).astype(int) - 250).max() <= 2


def test_clear_parts_show_the_background(tmp_path: Any) -> None:
    from PIL import Image

    frames = [Image.new("RGBA", (64, 48), (255, 0, 0, 0)) for _ in range(3)]
    for number, frame in enumerate(frames):
        frame.paste((0, 200, 0, 255), (number * 8, 0, number * 8 + 16, 48))
    frames[0].save(tmp_path / "clear.gif", save_all=True, append_images=frames[1:], duration=50, disposal=2)
    pixels = decoded(tmp_path / "clear.gif", Geometry(background=(10, 20, 30)))
    assert np.abs(pixels[1, 24, 12].astype(int) - (0, 200, 0)).max() <= 3
    assert tuple(pixels[1, 24, 40]) == (10, 20, 30)


def test_orientations_survive_storage_and_other_angles_are_refused() -> None:
    for code in range(8):
        assert Orientation.of(code).code == code
    one = 1 << 16
    assert orientation_of((0, -one, 0, one, 0, 0, 0, 0, 1 << 30), name="f") == Orientation(transposed=True, flip_y=True)
    half = int(one * 0.7071)
    with pytest.raises(SourceError, match=r"f is to be shown turned by the matrix \[0.707, -0.707, 0.707, 0.707\]"):
        orientation_of((half, -half, 0, half, half, 0, 0, 0, 1 << 30), name="f")
