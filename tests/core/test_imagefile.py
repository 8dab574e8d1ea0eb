"""Files that Pillow alone stumbles over: long texts, damaged EXIF, cut files; and no warning out of any thread."""

import concurrent.futures
import io
import itertools
import pickle
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
from PIL import Image, ImageFile

from dew.data import imagefile
from dew.data.errors import DamagedSourceError, DewDataError, SourceError
from dew.data.pixels import decode_image, read_header

CHINA = Path(sklearn.__file__).parent / "datasets" / "images" / "china.jpg"
NOISE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


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


TEXTS = {
    "zTXt": chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"x" * 3_000_000)),
    "iTXt": chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(b"x" * 3_000_000)),
    "iCCP": chunk(b"iCCP", b"icc\0\0" + zlib.compress(b"x" * 3_000_000)),
    "68 of 1 MB": chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"x" * 1_000_000)) * 68,
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_a_png_with_long_texts_is_a_good_picture(text: str, last: bool) -> None:
    plain = encoded(Image.fromarray(NOISE))
    data = png_with(plain, TEXTS[text], last=last)
    with pytest.raises(ValueError, match="MAX_TEXT"), Image.open(io.BytesIO(data)) as image:
        image.load()
    np.testing.assert_array_equal(decode_image(data), NOISE)
    assert read_header(data) == read_header(plain)


def test_a_long_text_hides_neither_an_orientation_nor_damage() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = png_with(encoded(Image.fromarray(NOISE), exif=exif), TEXTS["zTXt"], last=False)
    assert decode_image(data).shape == (64, 48, 3)
    broken = bytearray(data)
    broken[-40] ^= 1
    with pytest.raises(DamagedSourceError, match="is cut or damaged"):
        decode_image(bytes(broken))


def _with_segments(jpeg: bytes, *segments: bytes) -> bytes:
    marked = [b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment for segment in segments]
    return jpeg[:2] + b"".join(marked) + jpeg[20:]  # without JFIF's own, so that Pillow looks for a resolution in EXIF


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_damaged_exif_and_xmp_change_no_pixel(kind: str) -> None:
    exif = Image.Exif()
    exif.update({0x0112: 1, 0x010F: "Maker", 0x011A: 72.0, 0x0128: 2})
    exif.get_ifd(0x8769)[0x9286] = b"comment"
    body, xmp = exif.tobytes()[6:], b'<rdf:Description tiff:Orientation="1" x="\xff\xfe"/>'
    image = Image.fromarray(NOISE)
    rng = np.random.default_rng(5)
    expected = decode_image(encoded(image, kind))
    for _ in range(150):
        damaged = bytearray(body)
        for at in rng.integers(0, len(body), 4):
            damaged[at] = rng.integers(0, 256)
        if kind == "JPEG":
            data = _with_segments(encoded(image, kind), b"Exif\0\0" + damaged, b"http://ns.adobe.com/xap/1.0/\0" + xmp)
        else:
            extra = chunk(b"eXIf", bytes(damaged)) + chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp)
            data = png_with(encoded(image, kind), extra, last=False)
        found = decode_image(data)
        assert sorted(found.shape) == sorted(expected.shape)
        if found.shape == expected.shape:  # else the damage made another orientation
            assert sorted(found.sum(axis=(1, 2))) == sorted(expected.sum(axis=(1, 2)))


def test_damage_is_refused_and_raises_nothing_else() -> None:
    rng = np.random.default_rng(6)
    image = Image.fromarray(NOISE)
    for kind in ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "JPEG2000", "PPM"):
        data = encoded(image, kind)
        for _ in range(30):
            damaged = bytearray(data[: rng.integers(1, len(data) + 1)])
            for at in rng.integers(0, len(damaged), 3):
                damaged[at] = rng.integers(0, 256)
            for read in (decode_image, read_header):
                try:
                    read(bytes(damaged))
                except DewDataError as error:
                    assert "the image" in str(error)  # noqa: PT017 - damage that no format can notice passes


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.99])
def test_a_cut_photograph_is_never_a_grey_picture(cut: float) -> None:
    data = CHINA.read_bytes()
    with pytest.raises(DamagedSourceError, match=r"china.jpg is cut or damaged \(JPEG, 640 x 427\)"):
        decode_image(data[: int(cut * len(data))], name="china.jpg")


def test_pillows_own_leniency_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(SourceError, match=r"a.jpg is not read, because PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set"):
        decode_image(CHINA.read_bytes(), name="a.jpg")


# Warnings


def _warning_jpeg() -> bytes:
    """Pillow warns when it opens this one."""
    exif = b"MM\0*\0\0\0\x08\0\x01\x01\x1a\0\x05\0\0\0\x09\0\0\xff\xff"
    return _with_segments(encoded(Image.fromarray(NOISE), "JPEG"), b"Exif\0\0" + exif)


@pytest.mark.parametrize("action", ["error", "always"])
@pytest.mark.parametrize("own_filters", [False, True])
def test_no_warning_comes_out(action: Any, own_filters: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagefile, "_OWN_FILTERS", own_filters)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        Image.open(io.BytesIO(_warning_jpeg()))
    assert seen, "Pillow itself warns"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        decode_image(_warning_jpeg())
        read_header(_warning_jpeg())
        with pytest.raises(SourceError):
            decode_image(png_of(10_000, 10_000))
        assert not seen
        with pytest.warns(UserWarning, match="of the user's own"):
            warnings.warn("of the user's own", stacklevel=1)
        warnings.simplefilter("always")
        Image.open(io.BytesIO(_warning_jpeg()))
    assert seen, "what others do with Pillow warns as ever"


def test_the_filter_is_there_once_and_pickles() -> None:
    for _ in range(3):
        decode_image(encoded(Image.fromarray(NOISE)))
        warnings.simplefilter("error")
    decode_image(encoded(Image.fromarray(NOISE)))
    ours = [entry for entry in warnings.filters if "_Decoding" in repr(entry)]
    assert len(ours) == 1
    pickle.loads(pickle.dumps(list(warnings.filters)))  # as joblib hands them to its processes


def test_threads_read_the_same_pixels_without_a_warning() -> None:
    files = [_warning_jpeg(), CHINA.read_bytes(), encoded(Image.fromarray(NOISE)), TEXT_PNG]
    expected = [decode_image(data) for data in files]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(decode_image, files * 12))
    for pixels, wanted in zip(found, itertools.cycle(expected)):
        np.testing.assert_array_equal(pixels, wanted)


TEXT_PNG = png_with(encoded(Image.fromarray(NOISE)), TEXTS["zTXt"], last=True)
