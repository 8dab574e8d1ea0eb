"""The one decoder: every kind of image becomes (H, W, 3) uint8, and what is no image is refused by name."""

import io
import re
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dew.data.errors import DamagedSourceError, OptionsError, SourceError
from dew.data.pixels import MAX_PIXELS, decode_image


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def colour(data: bytes, **options: Any) -> list[int]:
    pixels = decode_image(data, **options)
    assert (pixels.ndim, pixels.shape[2], pixels.dtype) == (3, 3, np.uint8)
    assert pixels.flags.writeable
    assert pixels.flags.c_contiguous
    return pixels[0, 0].tolist()


@pytest.mark.parametrize(
    ("image", "kind", "expected"),
    [
        (Image.new("RGB", (4, 3), (1, 2, 3)), "PNG", [1, 2, 3]),
        (Image.new("RGB", (4, 3), (1, 2, 3)), "BMP", [1, 2, 3]),
        (Image.new("L", (4, 3), 77), "PNG", [77] * 3),
        (Image.new("LA", (4, 3), (77, 255)), "PNG", [77] * 3),
        (Image.new("1", (4, 3), 1), "PNG", [255] * 3),
        (Image.new("1", (4, 3), 1), "TIFF", [255] * 3),
        (Image.new("1", (4, 3), 0), "PNG", [0] * 3),
        (Image.new("RGBA", (4, 3), (9, 8, 7, 255)), "PNG", [9, 8, 7]),
        (Image.new("RGB", (4, 3), (1, 2, 3)), "PPM", [1, 2, 3]),
        (Image.new("I;16", (4, 3), 0x1234), "PNG", [0x12] * 3),
        (Image.new("I;16", (4, 3), 0xFFFF), "TIFF", [0xFF] * 3),
        (Image.new("RGB", (1, 1), (5, 6, 7)), "PNG", [5, 6, 7]),
    ],
)
def test_every_kind_becomes_rgb(image: Image.Image, kind: str, expected: list[int]) -> None:
    assert colour(encoded(image, kind)) == expected


def test_palettes() -> None:
    image = Image.new("P", (4, 3), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    assert colour(encoded(image)) == [10, 20, 30]
    assert colour(encoded(image, "GIF")) == [10, 20, 30]


@pytest.mark.parametrize(
    ("ink", "expected"), [((0, 255, 255, 0), [255, 0, 0]), ((0, 0, 0, 255), [0, 0, 0]), ((0, 0, 0, 0), [255] * 3)]
)
def test_cmyk_is_as_the_printer_meant_it(ink: Any, expected: list[int]) -> None:
    jpeg = encoded(Image.new("CMYK", (8, 8), ink), "JPEG")
    assert b"Adobe" in jpeg, "inverted, as Adobe writes it"
    np.testing.assert_allclose(colour(jpeg), expected, atol=3)
    assert colour(encoded(Image.new("CMYK", (8, 8), ink), "TIFF")) == expected


@pytest.mark.parametrize(("background", "expected"), [((255, 255, 255), [255, 127, 127]), ((0, 0, 0), [128, 0, 0])])
def test_transparency_lies_over_the_background(background: Any, expected: list[int]) -> None:
    half = encoded(Image.new("RGBA", (4, 3), (255, 0, 0, 128)))
    np.testing.assert_allclose(colour(half, background=background), expected, atol=1)


def test_transparency_by_palette_and_by_key() -> None:
    image = Image.new("P", (4, 3), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    assert colour(encoded(image, transparency=1), background=(1, 2, 3)) == [1, 2, 3]
    keyed = encoded(Image.new("RGB", (4, 3), (9, 9, 9)), transparency=(9, 9, 9))
    assert colour(keyed, background=(1, 2, 3)) == [1, 2, 3]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_that_of_the_viewer(orientation: int) -> None:
    upright = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    turns = {
        1: lambda a: a,
        2: np.fliplr,
        3: lambda a: np.rot90(a, 2),
        4: np.flipud,
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
        8: lambda a: np.rot90(a, -1),
    }
    stored = Image.fromarray(np.ascontiguousarray(turns[orientation](upright)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    np.testing.assert_array_equal(decode_image(encoded(stored, exif=exif)), upright)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_orientation_says_nothing() -> None:
    jpeg = encoded(Image.new("RGB", (8, 4), (200, 0, 0)), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff broken")
    assert decode_image(jpeg).shape == (4, 8, 3)


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (4, 3), (255, 0, 0)), Image.new("RGB", (4, 3), (0, 255, 0))]
    for kind in ("GIF", "PNG", "WEBP"):
        options = {"lossless": True} if kind == "WEBP" else {}
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert colour(data) == [255, 0, 0]


@pytest.mark.parametrize("data", [b"<html>not found</html>", b"\x89PNG\r\n\x1a\n", b"GIF89a"])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedSourceError, match=re.escape(f"cat.png is no image that can be read ({len(data)} bytes")):
        decode_image(data, name="cat.png")


def test_empty_data_is_refused() -> None:
    with pytest.raises(DamagedSourceError, match=r"cat\.png is empty: 0 bytes"):
        decode_image(b"", name="cat.png")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_cut_file_is_refused(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), kind)
    with pytest.raises(DamagedSourceError, match=r"the image is (cut or damaged|no image)"):
        decode_image(data[: len(data) // 2])


def png_of(width: int, height: int) -> bytes:
    """A few bytes that say they are a large image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    with pytest.raises(SourceError, match="decompression bomb"):
        decode_image(png_of(100_000, 100_000))
    with pytest.raises(SourceError, match="decompression bomb"):
        decode_image(png_of(10_000, 10_000))
    with pytest.raises(SourceError, match=r"has 100 x 50 pixels, at most 4999 are decoded"):
        decode_image(encoded(Image.new("RGB", (100, 50))), max_pixels=4999)


def test_pixels_without_an_8_bit_meaning_are_refused() -> None:
    with pytest.raises(SourceError, match="pixels of the kind 'F'"):
        decode_image(encoded(Image.new("F", (4, 3), 0.5), "TIFF"))


def test_formats_that_start_other_programs_are_not_read() -> None:
    with pytest.raises(DamagedSourceError, match="is no image that can be read"):
        decode_image(encoded(Image.new("RGB", (4, 3)), "EPS"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"background": (1, 2)}, "background is"),
        ({"background": (0, 0, 256)}, "background is"),
        ({"max_pixels": MAX_PIXELS + 1}, "max_pixels is at most"),
        ({"max_pixels": 0}, "max_pixels must be at least 1"),
    ],
)
def test_options_out_of_range(options: Any, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        decode_image(b"", **options)
