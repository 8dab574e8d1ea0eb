"""Images as they are declared, whatever encoding they are stored in."""

import base64
import io
import json
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds

from dew.data import TFDSOptions
from dew.data.errors import DamagedSourceError, SourceError
from dew_tfds.images import decode_image
from dew_tfds.source import open_split

F = tfds.features
Prepare = Callable[..., Path]

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (6, 9, 3), np.uint8)
GREY = RNG.integers(0, 256, (6, 9), np.uint8)
ALPHA = RNG.integers(1, 255, (6, 9), np.uint8)
DEEP = RNG.integers(0, 65536, (6, 9, 3), np.uint16)
PALETTE = RNG.integers(0, 256, (5, 3), np.uint8)
INDEX = RNG.integers(0, 5, (6, 9), np.uint8)
U8, U16, F32 = np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.float32)
UNKNOWN = (None, None)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(array: Any, colour: int, bits: int = 8, palette: Any = None) -> bytes:
    """A PNG file written by hand: 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGB and alpha."""
    rows = [row.astype(">u2" if bits == 16 else np.uint8).tobytes() for row in array]
    if bits == 1:
        rows = [np.packbits(row).tobytes() for row in array]
    head = struct.pack(">IIBBBBB", array.shape[1], array.shape[0], bits, colour, 0, 0, 0)
    data = chunk(b"IHDR", head)
    if palette is not None:
        data += chunk(b"PLTE", palette.tobytes())
    return b"\x89PNG\r\n\x1a\n" + data + chunk(b"IDAT", zlib.compress(b"\0" + b"\0".join(rows))) + chunk(b"IEND", b"")


def grey_of(rgb: Any) -> Any:
    """As TensorFlow's decoder has it, with libpng's weights."""
    return cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)


BITS = GREY > 127
FILES: dict[str, tuple[bytes, Any]] = {  # the file, and its colours
    "rgb": (png(RGB, 2), RGB),
    "grey": (png(GREY, 0), np.repeat(GREY[..., None], 3, -1)),
    "1-bit": (png(BITS, 0, bits=1), np.repeat(BITS[..., None] * U8.type(255), 3, -1)),
    "palette": (png(INDEX, 3, palette=PALETTE), PALETTE[INDEX]),
    "rgb and alpha": (png(np.dstack([RGB, ALPHA]), 6), RGB),
    "grey and alpha": (png(np.dstack([GREY, ALPHA]), 4), np.repeat(GREY[..., None], 3, -1)),
    "16-bit rgb": (png(DEEP, 2, bits=16), (DEEP >> 8).astype(np.uint8)),
    "16-bit grey": (png(DEEP[..., 0], 0, bits=16), np.repeat((DEEP[..., :1] >> 8).astype(np.uint8), 3, -1)),
    "bmp": (cv2.imencode(".bmp", RGB[..., ::-1])[1].tobytes(), RGB),
    "webp": (cv2.imencode(".webp", RGB[..., ::-1], [cv2.IMWRITE_WEBP_QUALITY, 101])[1].tobytes(), RGB),
}


@pytest.mark.parametrize("name", FILES)
def test_three_channels_are_colours(name: str) -> None:
    data, colours = FILES[name]
    found = decode_image(data, (6, 9, 3), U8)
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    assert found.flags.writeable
    np.testing.assert_array_equal(found, colours)


@pytest.mark.parametrize("name", ["grey", "1-bit", "grey and alpha", "16-bit grey"])
def test_one_channel_of_a_grey_file_is_its_grey(name: str) -> None:
    data, colours = FILES[name]
    np.testing.assert_array_equal(decode_image(data, (None, None, 1), U8), colours[..., :1])


@pytest.mark.parametrize("name", ["rgb", "palette", "rgb and alpha"])
def test_one_channel_of_a_coloured_file_is_its_brightness(name: str) -> None:
    data, colours = FILES[name]
    found = decode_image(data, (6, 9, 1), U8)
    assert found.shape == (6, 9, 1)
    # The decoders' weights differ in the last place.
    assert np.abs(found[..., 0].astype(int) - grey_of(colours)).max() <= 2


def test_four_channels_have_alpha() -> None:
    opaque = np.full((6, 9), 255, np.uint8)
    np.testing.assert_array_equal(decode_image(FILES["rgb and alpha"][0], (6, 9, 4), U8), np.dstack([RGB, ALPHA]))
    np.testing.assert_array_equal(decode_image(FILES["rgb"][0], (6, 9, 4), U8), np.dstack([RGB, opaque]))
    grey = np.dstack([GREY, GREY, GREY, opaque])
    np.testing.assert_array_equal(decode_image(FILES["grey"][0], (6, 9, 4), U8), grey)
    np.testing.assert_array_equal(decode_image(FILES["grey and alpha"][0], (6, 9, 2), U8), np.dstack([GREY, ALPHA]))
    np.testing.assert_array_equal(decode_image(FILES["rgb"][0], (6, 9, 0), U8), RGB)


def test_sixteen_bits() -> None:
    np.testing.assert_array_equal(decode_image(FILES["16-bit rgb"][0], (6, 9, 3), U16), DEEP)
    np.testing.assert_array_equal(decode_image(FILES["16-bit grey"][0], (6, 9, 1), U16), DEEP[..., :1])
    widened = decode_image(FILES["rgb"][0], (6, 9, 3), U16)
    assert widened.dtype == np.uint16
    np.testing.assert_array_equal(widened, RGB.astype(np.uint16) * 257)
    deep_alpha = np.dstack([DEEP, DEEP[..., 0]])
    np.testing.assert_array_equal(decode_image(png(deep_alpha, 6, bits=16), (6, 9, 4), U8), deep_alpha >> 8)


def test_floats_are_stored_in_four_bytes() -> None:
    values = RNG.random((6, 9, 1), dtype=np.float32)
    found = decode_image(png(values.view(np.uint8), 6), (6, 9, 1), F32)
    np.testing.assert_array_equal(found, values)
    assert found.dtype == np.float32


def test_jpegs_are_close_and_never_turned() -> None:
    smooth = cv2.resize(RGB, (64, 48), interpolation=cv2.INTER_CUBIC)
    jpeg = cv2.imencode(".jpg", smooth[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 100])[1].tobytes()
    turned = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    exif = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(turned) + 2) + turned + jpeg[2:]
    assert cv2.imdecode(np.frombuffer(exif, np.uint8), cv2.IMREAD_COLOR).shape[:2] == (64, 48), (
        "the tag means something"
    )
    for data in (jpeg, exif):
        found = decode_image(data, (48, 64, 3), U8)
        assert np.abs(found.astype(int) - smooth).mean() < 3
        assert decode_image(data, (None, None, 1), U8).shape == (48, 64, 1)


CMYK = (  # a JPEG of four channels, 8x8 of one colour; TensorFlow makes (200, 99, 50) of it
    "/9j/7gAOQWRvYmUAZAAAAAAA/9sAQwADAgIDAgIDAwMDBAMDBAUIBQUEBAUKBwcGCAwKDAwLCgsLDQ4SEA0OEQ4LCxAWEBETFBUVFQwPFxgWFBgSFBUU"
    "/8AAFAgACAAIBEMRAE0RAFkRAEsRAP/EABYAAQEBAAAAAAAAAAAAAAAAAAgHCf/EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAOBEMATQBZAEsAAD8AYCaB"
    "e1Tf/9k="
)


def test_cmyk_becomes_rgb() -> None:
    found = decode_image(base64.b64decode(CMYK), (8, 8, 3), U8)
    assert np.abs(found.astype(int) - [200, 99, 50]).max() <= 3


def gif(frames: Any, palette: Any) -> bytes:
    """An animation of indices below 128, uncompressed: each code is one byte, 128 clears the table and 129 ends."""
    height, width = frames.shape[1:]
    size = struct.pack("<HH", width, height)
    parts = [b"GIF89a", size, b"\xf6\0\0", palette.tobytes()]
    for frame in frames:
        codes = b"\x80" + frame.tobytes() + b"\x81"
        parts += [b"\x2c\0\0\0\0", size, b"\0\x07", bytes([len(codes)]), codes, b"\0"]
    return b"".join([*parts, b"\x3b"])


def test_an_animation_has_all_its_frames() -> None:
    palette = RNG.integers(0, 256, (128, 3), np.uint8)
    indices = RNG.integers(0, 128, (3, 8, 8), np.uint8)
    encoded = gif(indices, palette)
    np.testing.assert_array_equal(decode_image(encoded, (None, 8, 8, 3), U8), palette[indices])
    np.testing.assert_array_equal(decode_image(encoded, (8, 8, 3), U8), palette[indices[0]])
    with pytest.raises(SourceError, match=re.escape("an image is declared as (?, 8, 9, 3) and stored as (3, 8, 8, 3)")):
        decode_image(encoded, (None, 8, 9, 3), U8)
    with pytest.raises(SourceError, match="no image can be decoded from 5 bytes"):
        decode_image(b"GIF89", (None, 8, 8, 3), U8)


@pytest.mark.parametrize("data", [b"", b"nothing", FILES["rgb"][0][:30], b"\x89PNG\r\n\x1a\n" + bytes(60)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_what_is_no_image(data: bytes, channels: int) -> None:
    message = f"no image can be decoded from {len(data)} bytes that begin with"
    with pytest.raises(SourceError, match=message):
        decode_image(data, (None, None, channels), U8)


def test_another_size_than_declared() -> None:
    with pytest.raises(SourceError, match=re.escape("an image is declared as (8, ?, 3) and stored as (6, 9, 3)")):
        decode_image(FILES["rgb"][0], (8, None, 3), U8)
    assert decode_image(FILES["rgb"][0], (6, None, 3), U8).shape == (6, 9, 3)


FEATURES = {
    "image": F.Image(),
    "grey": F.Image(shape=(None, None, 1)),
    "mask": F.LabeledImage(labels=["sky", "sea"], shape=(6, 9, 1)),
    "frames": F.Sequence(F.Image(shape=(6, 9, 3))),
    "any": F.Sequence(F.Image()),
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory, prepare: Prepare) -> Path:
    def record(number: int) -> dict[str, Any]:
        names = list(FILES)
        data = FILES[names[number]][0]
        return {
            "image": io.BytesIO(data),
            "grey": io.BytesIO(data),
            "mask": io.BytesIO(png(INDEX, 0)),
            "frames": [io.BytesIO(data) for _ in range(number % 3)],
            "any": [io.BytesIO(data), io.BytesIO(png(GREY[:3], 0))][: number % 3],
        }

    records = [record(number) for number in range(len(FILES))]
    return prepare(tmp_path_factory.mktemp("pictures"), "pictures", FEATURES, {"train": records})


def test_prepared_images(pictures: Path) -> None:
    source = open_split("pictures", "train", TFDSOptions(path=str(pictures)))
    for number, (_, colours) in enumerate(FILES.values()):
        record = source[number]
        np.testing.assert_array_equal(record["image"], colours)
        assert record["grey"].shape == (6, 9, 1)
        np.testing.assert_array_equal(record["mask"], INDEX[..., None])
        frames = record["frames"]
        assert (frames.dtype, frames.shape) == (np.uint8, (number % 3, 6, 9, 3))
        assert all((frame == colours).all() for frame in frames)
        assert isinstance(record["any"], list)
        assert [image.shape for image in record["any"]] == [(6, 9, 3), (3, 9, 3)][: number % 3]
    source.close()
    assert source.labels == {"mask": ("sky", "sea")}
    words = source.fields()
    assert words["image"] == "uint8 (?, ?, 3), Image"
    assert words["frames"] == "uint8 (?, 6, 9, 3), Sequence of Image"
    assert words["any"] == "list of uint8 (?, ?, 3), Sequence of Image"


def as_video(path: Path, field: str, dimensions: list[str] | None) -> None:
    """Describes a sequence of images, which is how the frames are stored, as the video that TensorFlow would write."""
    file = path / "features.json"
    described = json.loads(file.read_text())
    video: dict[str, Any] = {"dtype": "uint8", "encodingFormat": "png"}
    if dimensions is not None:
        video["shape"] = {"dimensions": dimensions}
    described["featuresDict"]["features"][field] = {
        "pythonClassName": "tensorflow_datasets.core.features.video_feature.Video",
        "video": video,
    }
    file.write_text(json.dumps(described))


@pytest.mark.parametrize("dimensions", [["-1", "6", "9", "3"], ["-1", "-1", "-1", "3"], None])
def test_videos_are_frames(pictures: Path, tmp_path: Path, dimensions: Any) -> None:
    path = tmp_path / "pictures" / "1.2.0"
    shutil.copytree(pictures, path)
    as_video(path, "frames", dimensions)
    with pytest.raises(ModuleNotFoundError, match="tensorflow"):
        tfds.builder_from_directory(str(path))
    source = open_split("pictures", "train", TFDSOptions(path=str(path)))
    for number, (_, colours) in enumerate(FILES.values()):
        frames = source[number]["frames"]
        assert (frames.dtype, frames.ndim, len(frames)) == (np.uint8, 4, number % 3)
        assert all((frame == colours).all() for frame in frames)
    source.close()
    sizes = "?, ?, ?, 3" if dimensions is None or dimensions[1] == "-1" else "?, 6, 9, 3"
    assert source.fields()["frames"] == f"uint8 ({sizes}), Video of Image"
    assert source.labels == {"mask": ("sky", "sea")}, "what is read beside the features is there too"


def test_frames_of_unequal_size_are_no_video(pictures: Path, tmp_path: Path) -> None:
    path = tmp_path / "pictures" / "1.2.0"
    shutil.copytree(pictures, path)
    as_video(path, "any", None)
    source = open_split("pictures", "train", TFDSOptions(path=str(path)))
    assert source[1]["any"].shape == (1, 6, 9, 3)
    with pytest.raises(DamagedSourceError, match="field 'any': all input arrays must have the same shape"):
        source[2]
    source.close()
