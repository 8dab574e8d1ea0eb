"""The one decoder: every kind of image becomes (H, W, 3) uint8, and what is no image is refused by name."""

import concurrent.futures
import io
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage
import sklearn
from PIL import Image, ImageCms, ImageOps

from dew.data.errors import DamagedSourceError, OptionsError, SourceError
from dew.data.pixels import MAX_PIXELS, check_engine, decode_image, read_header, resized, upright_image

CHINA = Path(sklearn.__file__).parent / "datasets" / "images" / "china.jpg"
FLOWER = CHINA.with_name("flower.jpg")
SHIPPED = Path(skimage.__file__).parent / "data"
PHOTOS = [CHINA, FLOWER, *(SHIPPED / name for name in ("rocket.jpg", "chelsea.png", "coffee.png", "astronaut.png"))]
UNREAD = SHIPPED / "multipage_rgb.tif"  # of a layout that Pillow does not know
SHIPPED_PICTURES = sorted(
    path for path in SHIPPED.iterdir() if path.suffix in (".png", ".gif", ".tif") and path != UNREAD
)
NOISE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)


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
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {"quality": 100, "subsampling": 0}),
        ("PNG", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("WEBP", {"lossless": True}),
        ("AVIF", {"quality": 100, "subsampling": "4:4:4"}),
    ],
)
def test_orientation_is_that_of_the_viewer(orientation: int, kind: str, options: dict[str, Any]) -> None:
    upright = np.kron(np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10, np.ones((16, 16, 1), np.uint8))
    turns: dict[int, Callable[[Any], Any]] = {
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
    data = encoded(stored, kind, exif=exif, **options)
    np.testing.assert_allclose(decode_image(data).astype(int), upright, atol=2)
    header = read_header(data)
    assert (header.height, header.width, header.format, header.mode) == (32, 64, kind, "RGB")


def test_an_orientation_that_only_xmp_states() -> None:
    xmp = b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
    data = encoded(Image.new("RGB", (8, 4)), "WEBP", xmp=xmp)
    assert decode_image(data).shape == (8, 4, 3)


def test_an_orientation_after_the_pixels() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = png_with(encoded(Image.new("RGB", (8, 4))), chunk(b"eXIf", exif.tobytes()[6:]), last=True)
    assert decode_image(data).shape == (8, 4, 3)
    assert (read_header(data).height, read_header(data).width) == (8, 4)


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


def test_bytes_decide_and_not_the_name() -> None:
    assert colour(encoded(Image.new("RGB", (4, 3), (1, 2, 3))), name="cat.jpg") == [1, 2, 3]
    assert colour(encoded(Image.new("RGB", (4, 3), (9, 9, 9)), "BMP"), name="cat.png") == [9, 9, 9]


def test_colours_under_no_alpha_stay_hidden() -> None:
    image = Image.new("RGBA", (4, 3), (255, 0, 255, 0))
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True, "exact": True}), ("TIFF", {})):
        assert colour(encoded(image, kind, **options), background=(1, 2, 3)) == [1, 2, 3]


def test_empty_data_is_refused() -> None:
    with pytest.raises(DamagedSourceError, match=r"cat\.png is empty: 0 bytes"):
        decode_image(b"", name="cat.png")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_cut_file_is_refused(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), kind)
    with pytest.raises(DamagedSourceError, match=r"the image is (cut or damaged|no image)"):
        decode_image(data[: len(data) // 2])


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width: int, height: int, rows: bytes = b"", *, bits: int = 8, colour: int = 2, extra: bytes = b"") -> bytes:
    """A PNG by hand: one of few bytes can say that it is a large image."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + data + chunk(b"IEND", b"")


def png_with(data: bytes, extra: bytes, *, last: bool) -> bytes:
    """`data` with further chunks, before or after its pixels."""
    at = len(data) - 12 if last else 33
    return data[:at] + extra + data[at:]


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    with pytest.raises(SourceError, match="decompression bomb"):
        decode_image(png_of(100_000, 100_000))
    with pytest.raises(
        SourceError, match=r"the image is taken for a decompression bomb: 10000 x 10000 pixels, at most"
    ):
        decode_image(png_of(10_000, 10_000))
    with pytest.raises(SourceError, match="decompression bomb"):
        read_header(png_of(10_000, 10_000))
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
        ({"icc": "convert"}, 'icc must be "ignore" or "srgb", got \'convert\''),
    ],
)
def test_options_out_of_range(options: Any, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        decode_image(b"", **options)


# Real photographs, and Pillow beside


@pytest.mark.parametrize("path", PHOTOS, ids=lambda path: path.name)
def test_photographs_are_what_pillow_reads(path: Path) -> None:
    pixels = decode_image(path.read_bytes(), name=path.name)
    np.testing.assert_array_equal(pixels, np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("RGB")))
    header = read_header(path.read_bytes())
    assert pixels.shape == (header.height, header.width, 3)


@pytest.mark.parametrize("path", SHIPPED_PICTURES, ids=lambda path: path.name)
def test_every_picture_that_scikit_image_ships(path: Path) -> None:
    """Grey, 1-bit, palette, alpha, several pages; laid over white where there is alpha."""
    with Image.open(path) as image:
        if image.mode == "I;16":
            expected = np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., None], 3, axis=2)
        else:
            canvas = Image.new("RGBA", image.size, "white")
            canvas.alpha_composite(image.convert("RGBA"))
            expected = np.asarray(canvas.convert("RGB"))
    np.testing.assert_allclose(decode_image(path.read_bytes()).astype(int), expected, atol=1)


def test_a_tiff_of_an_unknown_layout_is_refused() -> None:
    with pytest.raises(DamagedSourceError, match=r"multipage_rgb.tif is no image that can be read \(5278 bytes"):
        decode_image(UNREAD.read_bytes(), name=UNREAD.name)


@pytest.mark.parametrize("path", [CHINA, FLOWER], ids=lambda path: path.name)
@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_photographs_in_other_colour_models(path: Path, mode: str) -> None:
    data = encoded(Image.open(path).convert(mode), "JPEG", quality=95)
    np.testing.assert_array_equal(decode_image(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_a_jpeg_of_several_pictures_is_its_first() -> None:
    frames = [Image.new("RGB", (16, 8), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "MPO", save_all=True, append_images=frames[1:])
    assert Image.open(io.BytesIO(data)).format == "MPO"
    np.testing.assert_allclose(colour(data), [255, 0, 0], atol=2)
    assert read_header(data).format == "MPO"


# Depth and transparency, chunk by chunk


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_grey_of_few_bits_with_a_transparent_level(bits: int) -> None:
    levels = list(range(min(1 << bits, 4)))
    line = "".join(format(level, f"0{bits}b") for level in levels)
    packed = int(line.ljust(-(-len(line) // 8) * 8, "0"), 2).to_bytes(-(-len(line) // 8), "big")
    data = png_of(len(levels), 1, b"\0" + packed, bits=bits, colour=0, extra=chunk(b"tRNS", b"\0\1"))
    expected = [[level * 255 // ((1 << bits) - 1)] * 3 for level in levels]
    expected[1] = [1, 2, 3]
    assert decode_image(data, background=(1, 2, 3))[0].tolist() == expected


def test_16_bits_with_a_transparent_colour() -> None:
    grey = png_of(
        3, 1, b"\0" + struct.pack(">3H", 0x1234, 0x1235, 0xFFFF), bits=16, colour=0, extra=chunk(b"tRNS", b"\x12\x34")
    )
    assert decode_image(grey, background=(1, 2, 3))[0].tolist() == [[1, 2, 3], [0x12] * 3, [255] * 3]
    key = struct.pack(">3H", 0xFFFF, 0, 0xFFFF)
    rgb = png_of(2, 1, b"\0" + key + struct.pack(">3H", 0x1234, 5, 6), bits=16, colour=2, extra=chunk(b"tRNS", key))
    assert decode_image(rgb, background=(1, 2, 3))[0].tolist() == [[1, 2, 3], [0x12, 0, 0]]


def test_16_bits_with_alpha() -> None:
    grey = png_of(2, 1, b"\0" + struct.pack(">4H", 0x8000, 0xFFFF, 0x8000, 0), bits=16, colour=4)
    assert decode_image(grey, background=(1, 2, 3))[0].tolist() == [[128] * 3, [1, 2, 3]]
    rgb = png_of(1, 1, b"\0" + struct.pack(">4H", 0x8000, 0x4000, 0x2000, 0xFFFF), bits=16, colour=6)
    assert decode_image(rgb)[0].tolist() == [[128, 64, 32]]


def test_16_bit_grey_is_scaled_by_its_header_and_not_by_its_values() -> None:
    dark = Image.fromarray(np.array([[0x01FF, 0x0000]], np.uint16))
    assert decode_image(encoded(dark))[0].tolist() == [[1] * 3, [0] * 3]
    assert decode_image(b"P5 2 1 65535\n" + struct.pack(">2H", 0x1234, 0xFFFF))[0].tolist() == [[0x12] * 3, [255] * 3]


def test_a_palette_with_an_alpha_for_each_colour() -> None:
    palette = chunk(b"PLTE", bytes([255, 0, 0, 0, 255, 0, 0, 0, 255])) + chunk(b"tRNS", bytes([0, 128]))
    data = png_of(3, 1, b"\0\0\1\2", colour=3, extra=palette)
    assert decode_image(data, background=(1, 2, 3))[0].tolist() == [[1, 2, 3], [0, 129, 1], [0, 0, 255]]


def test_grey_with_alpha_shows_no_hidden_colour() -> None:
    image = Image.merge("LA", (Image.new("L", (2, 1), 200), Image.frombytes("L", (2, 1), bytes([0, 255]))))
    assert decode_image(encoded(image), background=(1, 2, 3))[0].tolist() == [[1, 2, 3], [200] * 3]


# Colour profiles


def test_a_profile_is_left_alone_unless_asked() -> None:
    data = encoded(Image.fromarray(NOISE), icc_profile=_swapping_profile())
    np.testing.assert_array_equal(decode_image(data), NOISE)
    converted = decode_image(data, icc="srgb").astype(int)
    assert np.abs(converted - NOISE).mean() > 20


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_the_profile_of_srgb_changes_next_to_nothing(mode: str) -> None:
    image = Image.fromarray(NOISE).convert(mode)
    expected = np.asarray(image.convert("RGB"))
    data = encoded(image, icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    np.testing.assert_allclose(decode_image(data, icc="srgb").astype(int), expected, atol=2)


def test_threads_share_a_profile() -> None:
    data = encoded(Image.fromarray(NOISE), icc_profile=_swapping_profile())
    expected = decode_image(data, icc="srgb")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: decode_image(data, icc="srgb"), range(64)):
            np.testing.assert_array_equal(found, expected)


def test_a_profile_for_other_channels_says_nothing() -> None:
    data = encoded(Image.fromarray(NOISE).convert("L"), icc_profile=_swapping_profile())
    np.testing.assert_array_equal(decode_image(data, icc="srgb"), decode_image(data))


def test_a_profile_that_cannot_be_used_is_refused() -> None:
    data = encoded(Image.fromarray(NOISE), icc_profile=b"no profile at all")
    np.testing.assert_array_equal(decode_image(data), NOISE)
    with pytest.raises(
        SourceError, match=r'a.png has a colour profile of 17 bytes that cannot be used: .*icc="ignore"'
    ):
        decode_image(data, name="a.png", icc="srgb")


def _swapping_profile() -> bytes:
    """sRGB with red and blue exchanged, so that a conversion cannot go unnoticed."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    red, blue = profile.index(b"rXYZ"), profile.index(b"bXYZ")
    profile[red : red + 4], profile[blue : blue + 4] = b"bXYZ", b"rXYZ"
    return bytes(profile)


# Scaled decoding, and the resize


@pytest.mark.parametrize(
    ("needed", "scale"), [((640, 427), 1), ((321, 100), 1), ((160, 100), 2), ((80, 53), 4), ((40, 26), 8), ((1, 1), 8)]
)
def test_a_jpeg_is_decoded_at_twice_what_is_needed_or_more(needed: tuple[int, int], scale: int) -> None:
    asked: list[tuple[int, int]] = []

    def answer(width: int, height: int) -> tuple[int, int]:
        asked.append((width, height))
        return needed

    upright = upright_image(CHINA.read_bytes(), needed=answer)
    assert asked == [(640, 427)]
    assert upright.image.size == (-(-640 // scale), -(-427 // scale))
    assert upright.box == (0, 0, 640 / scale, 427 / scale)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_where_a_scaled_jpeg_lies_follows_its_orientation(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(NOISE).resize((101, 67)), "JPEG", exif=exif)
    upright = upright_image(data, needed=lambda width, height: (width // 4, height // 4))
    left, top, right, bottom = upright.box
    width, height = (50.5, 33.5) if orientation < 5 else (33.5, 50.5)
    assert (right - left, bottom - top) == (width, height)
    assert (upright.image.width, upright.image.height) == (int(width + 0.5), int(height + 0.5))
    assert left == (0.5 if orientation in (2, 3, 6, 7) else 0)
    assert top == (0.5 if orientation in (3, 4, 7, 8) else 0)


@pytest.mark.parametrize("resample", ["box", "bilinear", "bicubic", "lanczos"])
def test_the_engines_agree_to_rounding(resample: Any) -> None:
    pytest.importorskip("cykooz_resizer")
    image = upright_image(CHINA.read_bytes()).image
    box = (10.25, 3.5, 600.75, 420.0)
    ours, fast = (
        np.asarray(resized(image, (256, 200), box=box, resample=resample, engine=engine)).astype(int)
        for engine in ("pillow", "fast")
    )
    assert ours.shape == fast.shape == (200, 256, 3)
    assert np.abs(ours - fast).max() <= 8, "where a filter overshoots, it matters which axis comes first"
    assert 10 * np.log10(255**2 / np.square(ours - fast).mean()) > 50


def test_a_part_of_the_same_size_is_not_resampled() -> None:
    image = Image.fromarray(NOISE)
    for engine in ("pillow", "fast"):
        found = np.asarray(resized(image, (20, 10), box=(5, 6, 25, 16), engine=engine))
        np.testing.assert_array_equal(found, NOISE[6:16, 5:25])


@pytest.mark.parametrize("resample", ["bilinear", "bicubic", "lanczos"])
def test_no_filter_aliases(resample: Any) -> None:
    """Stripes of one pixel, finer than what is left, become grey; an interpolator would keep or beat them."""
    stripes = np.repeat(np.tile(np.array([0, 255], np.uint8), 512)[None, :, None], 16, axis=0).repeat(3, axis=2)
    image = Image.fromarray(np.ascontiguousarray(stripes))
    found = np.asarray(resized(image, (300, 16), box=(0, 0, 1024, 16), resample=resample))[:, 8:-8]
    assert found.std() < 12


def test_an_engine_that_is_absent_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cykooz_resizer", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'dew-media[fast]', or use engine=\"pillow\"")):
        check_engine("fast")
    check_engine("pillow")
    with pytest.raises(OptionsError, match='engine must be "pillow" or "fast", got \'opencv\''):
        check_engine("opencv")


def test_pillows_memory_pool_is_used_unless_its_variable_says_otherwise() -> None:
    script = (
        "import sys; from dew.data.pixels import decode_image; from PIL import Image\n"
        f"decode_image(open({str(CHINA)!r}, 'rb').read()); print(Image.core.get_blocks_max())"
    )
    for variables, blocks in (({}, "4"), ({"PILLOW_BLOCKS_MAX": "7"}, "7")):
        done = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [blocks]


def test_a_header_of_a_file_reads_only_its_first_parts(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "photo.jpg"
    Image.open(CHINA).save(path, exif=exif)
    with path.open("rb") as file:
        header = read_header(file, name="photo.jpg")
    assert (header.width, header.height, header.format, header.mode) == (427, 640, "JPEG", "RGB")
    with pytest.raises(DamagedSourceError, match="a is empty: 0 bytes"):
        read_header(b"", name="a")
    with pytest.raises(DamagedSourceError, match="a is no image that can be read"):
        read_header(b"nothing", name="a")
