"""Geometry: whole-pixel plans, one resampling as Pillow would do it, and chance from the record's draws alone."""

import concurrent.futures
import io
import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import skimage
import sklearn
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dew.data.errors import DamagedSourceError, OptionsError, OptionsTypeError, SourceError
from dew.data.order import draws_at
from dew.data.pixels import decode_image
from dew_media.geometry import Geometry, Placement, decode_placed

CHINA = Path(sklearn.__file__).parent / "datasets" / "images" / "china.jpg"  # 640 x 427
FLOWER = CHINA.with_name("flower.jpg")
SHIPPED = Path(skimage.__file__).parent / "data"
PHOTOS = [CHINA, FLOWER, SHIPPED / "rocket.jpg", SHIPPED / "chelsea.png", SHIPPED / "hubble_deep_field.jpg"]

sides = st.integers(1, 5000)
targets = st.integers(1, 600)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def photograph(path: Path) -> Image.Image:
    return Image.open(io.BytesIO(path.read_bytes())).convert("RGB")


def decibels(one: Any, other: Any) -> float:
    return 10 * np.log10(255**2 / max(np.square(one.astype(float) - other).mean(), 1e-9))


# Plans


@given(sides, sides, targets, targets, st.booleans(), st.integers(0, 99))
def test_a_crop_covers_the_size_and_no_more_than_it_must(
    width: int, height: int, out_height: int, out_width: int, drawn: bool, place: int
) -> None:
    geometry = Geometry(size=(out_height, out_width), crop="random")
    placed = geometry.plan(width, height, draws_at(0, place) if drawn else None)
    assert placed.output == placed.kept == (out_width, out_height)
    assert placed.pad == (0, 0)
    assert placed.scaled[0] == out_width or placed.scaled[1] == out_height
    for scaled, crop, out in zip(placed.scaled, placed.crop, placed.output, strict=True):
        assert scaled >= out
        assert 0 <= crop <= scaled - out
        if not drawn:
            assert crop == (scaled - out) // 2
    assert abs(placed.scaled[0] * height - placed.scaled[1] * width) <= max(width, height) / 2


@given(sides, sides, targets, targets, st.booleans())
def test_padding_shows_the_whole_picture(
    width: int, height: int, out_height: int, out_width: int, upscale: bool
) -> None:
    placed = Geometry(size=(out_height, out_width), fit="pad", upscale=upscale).plan(width, height)
    assert placed.output == (out_width, out_height)
    assert placed.kept == placed.scaled
    assert placed.crop == (0, 0)
    for kept, pad, out in zip(placed.kept, placed.pad, placed.output, strict=True):
        assert 1 <= kept <= out
        assert pad == (out - kept) // 2
    if upscale:
        assert placed.kept[0] == out_width or placed.kept[1] == out_height
    else:
        assert placed.kept[0] <= width
        assert placed.kept[1] <= height


def test_squashed_or_left_as_it_is() -> None:
    squashed = Geometry(size=(30, 40), fit="squash").plan(500, 100)
    assert (squashed.scaled, squashed.kept, squashed.output) == ((40, 30),) * 3
    for geometry in (Geometry(), Geometry(size=None), Geometry(fit="none")):
        plain = geometry.plan(500, 100)
        assert (plain.scaled, plain.kept, plain.output) == ((500, 100),) * 3


def test_the_part_that_is_kept_in_pixels_of_the_picture() -> None:
    placed = Geometry(size=256).plan(500, 375)
    assert placed == Placement(
        scaled=(341, 256), crop=(42, 0), kept=(256, 256), output=(256, 256), pad=(0, 0), flip=False
    )
    left, top, right, bottom = placed.box((0, 0, 500, 375))
    assert (top, bottom) == (0, 375)
    assert (left, right) == pytest.approx((42 * 500 / 341, 298 * 500 / 341))
    moved = placed.box((10, 20, 260, 207.5))
    assert moved == pytest.approx((10 + left / 2, 20, 10 + right / 2, 207.5))


# Chance


# (seed, place) of the draws -> x in a picture of 400 x 300, y in one of 300 x 400, mirrored
GOLDEN = {
    (0, 0): (2, 13, True),
    (0, 1): (2, 20, False),
    (7, 10**12): (2, 14, False),
    (2**64 - 1, 2**62): (8, 26, False),
}


def test_golden_draws() -> None:
    """For ever: the first three words of a record's draws are for x, y and the mirror."""
    geometry = Geometry(size=(100, 120), crop="random", flip=0.5)
    for (seed, place), (x, y, flip) in GOLDEN.items():
        wide = geometry.plan(400, 300, draws_at(seed, place))
        assert (wide.scaled, wide.crop, wide.flip) == ((133, 100), (x, 0), flip)
        tall = geometry.plan(300, 400, draws_at(seed, place))
        assert (tall.scaled, tall.crop, tall.flip) == ((120, 160), (0, y), flip)
        words = draws_at(seed, place).bit_generator.random_raw(3).tolist()
        assert (x, y, flip) == (words[0] * 14 >> 64, words[1] * 61 >> 64, words[2] < 1 << 63)


def test_no_option_changes_the_draws_of_another() -> None:
    for place in range(50):
        both = Geometry(size=50, crop="random", flip=0.5).plan(200, 300, draws_at(1, place))
        cropped = Geometry(size=50, crop="random").plan(200, 300, draws_at(1, place))
        flipped = Geometry(size=50, flip=0.5).plan(200, 300, draws_at(1, place))
        assert (both.crop, both.flip) == (cropped.crop, flipped.flip)
        words = []
        for geometry in (Geometry(), Geometry(size=50), Geometry(size=50, crop="random", flip=1.0)):
            rng = draws_at(1, place)
            geometry.plan(200, 300, rng)
            words.append(rng.bit_generator.random_raw())
        assert len(set(words)) == 1, "what is drawn next does not depend on the geometry"


def test_every_part_and_both_sides_are_drawn_alike() -> None:
    geometry = Geometry(size=10, crop="random", flip=0.25)
    placed = [geometry.plan(14, 10, draws_at(3, place)) for place in range(5000)]
    counts = np.bincount([each.crop[0] for each in placed])
    assert len(counts) == 5
    assert np.abs(counts - 1000).max() < 150
    assert 1100 < sum(each.flip for each in placed) < 1400


@pytest.mark.parametrize(("flip", "expected"), [(0.0, 0), (1.0, 200), (0, 0), (1, 200)])
def test_never_and_always(flip: float, expected: int) -> None:
    placed = [Geometry(size=5, flip=flip).plan(9, 9, draws_at(0, place)) for place in range(200)]
    assert sum(each.flip for each in placed) == expected


def test_without_draws_nothing_is_left_to_chance() -> None:
    placed = Geometry(size=5, crop="random", flip=1.0).plan(9, 5)
    assert (placed.crop, placed.flip) == ((2, 0), False)


def test_draws_of_32_bits_are_refused() -> None:
    rng = np.random.Generator(np.random.MT19937(0))
    with pytest.raises(OptionsTypeError, match="rng must draw words of 64 bits, as Philox does; MT19937 draws 32"):
        Geometry(size=5).plan(9, 9, rng)
    Geometry(size=5).plan(9, 9, np.random.default_rng(0))


# Pixels


@pytest.mark.parametrize("path", PHOTOS, ids=lambda path: path.name)
@pytest.mark.parametrize("resample", ["box", "bilinear", "bicubic", "lanczos"])
def test_one_resampling_is_resize_and_then_crop(path: Path, resample: Any) -> None:
    data = path.read_bytes()
    geometry = Geometry(size=(96, 128), crop="random", resample=resample, exact=True)
    found = decode_placed(data, geometry=geometry, rng=draws_at(0, 5))
    assert (found.shape, found.dtype) == ((96, 128, 3), np.uint8)
    image = photograph(path)
    placed = geometry.plan(*image.size, draws_at(0, 5))
    whole = np.asarray(image.resize(placed.scaled, Image.Resampling[resample.upper()]))
    x, y = placed.crop
    expected = whole[y : y + 96, x : x + 128].astype(int)
    differences = np.abs(found.astype(int) - expected)
    if resample == "box":  # its edges are sharp: a pixel that lies on one falls to either side
        assert differences.mean() < 0.1
    else:
        assert differences.max() <= 1


@pytest.mark.parametrize("path", [path for path in PHOTOS if path.suffix == ".jpg"], ids=lambda path: path.name)
@pytest.mark.parametrize("size", [32, 64, 100, 200])
def test_scaled_decoding_shows_next_to_no_difference(path: Path, size: int) -> None:
    data = path.read_bytes()
    exact = decode_placed(data, geometry=Geometry(size=size, exact=True))
    drafted = decode_placed(data, geometry=Geometry(size=size))
    assert decibels(exact, drafted) > 44
    if 4 * size > min(photograph(path).size):
        np.testing.assert_array_equal(exact, drafted)
    else:
        assert (exact != drafted).any(), "half the size or less was decoded"


@pytest.mark.parametrize(("mode", "kind"), [("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "MPO"), ("progressive", "JPEG")])
def test_scaled_decoding_of_other_kinds_of_jpeg(mode: str, kind: str) -> None:
    progressive = mode == "progressive"
    image = photograph(CHINA).convert("RGB" if progressive else mode)
    more = {"save_all": True, "append_images": [image.rotate(180)]} if kind == "MPO" else {}
    data = encoded(image, kind, quality=90, progressive=progressive, **more)
    exact = decode_placed(data, geometry=Geometry(size=64, exact=True))
    drafted = decode_placed(data, geometry=Geometry(size=64))
    assert (exact != drafted).any()
    assert decibels(exact, drafted) > 44


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("exact", [False, True])
def test_a_turned_photograph_is_cut_like_an_upright_one(orientation: int, exact: bool) -> None:
    turns = Image.Transpose
    turn_back = {
        2: turns.FLIP_LEFT_RIGHT,
        3: turns.ROTATE_180,
        4: turns.FLIP_TOP_BOTTOM,
        5: turns.TRANSPOSE,
        6: turns.ROTATE_90,
        7: turns.TRANSVERSE,
        8: turns.ROTATE_270,
    }[orientation]
    upright = photograph(CHINA).crop((0, 0, 601, 403))  # neither side divides by what decoding may scale by
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, Any] = {"quality": 98, "subsampling": 0}
    turned = encoded(upright.transpose(turn_back), "JPEG", exif=exif, **options)
    geometry = Geometry(size=64, crop="random", exact=exact)
    found = decode_placed(turned, geometry=geometry, rng=draws_at(2, 3))
    expected = decode_placed(encoded(upright, "JPEG", **options), geometry=geometry, rng=draws_at(2, 3))
    assert decibels(found, expected) > 36


def test_mirrored_as_the_last_step() -> None:
    data = CHINA.read_bytes()
    for fit in ("crop", "squash", "pad", "none"):
        size = None if fit == "none" else (64, 91)
        plain = decode_placed(data, geometry=Geometry(size=size, fit=fit), rng=draws_at(0, 0))
        mirrored = decode_placed(data, geometry=Geometry(size=size, fit=fit, flip=1.0), rng=draws_at(0, 0))
        np.testing.assert_array_equal(mirrored, plain[:, ::-1])
        assert mirrored.flags.c_contiguous
        assert mirrored.flags.owndata
        assert mirrored.flags.writeable


def test_padding_and_what_is_transparent_have_the_background() -> None:
    image = Image.new("RGBA", (20, 10), (255, 0, 0, 255))
    image.paste((9, 9, 9, 0), (0, 0, 10, 10))
    geometry = Geometry(size=20, fit="pad", background=(1, 2, 3))
    found = decode_placed(encoded(image), geometry=geometry)
    assert found.shape == (20, 20, 3)
    assert (found[:5] == (1, 2, 3)).all()
    assert (found[15:] == (1, 2, 3)).all()
    assert (found[5:15, :10] == (1, 2, 3)).all()
    assert (found[5:15, 10:] == (255, 0, 0)).all()


def test_pictures_that_keep_their_size_are_what_the_decoder_reads() -> None:
    data = CHINA.read_bytes()
    np.testing.assert_array_equal(decode_placed(data, geometry=Geometry()), decode_image(data))


def test_small_pictures_grow_are_refused_or_stay_as_they_are() -> None:
    data = encoded(Image.new("RGB", (20, 30), (1, 2, 3)))
    assert decode_placed(data, geometry=Geometry(size=64)).shape == (64, 64, 3)
    message = r"cats/1.png has 20 x 30 pixels and would have to grow to 64 x 96; allow it with upscale=True"
    with pytest.raises(SourceError, match=message):
        decode_placed(data, geometry=Geometry(size=64, upscale=False), name="cats/1.png")
    padded = decode_placed(data, geometry=Geometry(size=64, fit="pad", upscale=False, background=(9, 9, 9)))
    assert (padded[17:47, 22:42] == (1, 2, 3)).all()
    assert (padded == (9, 9, 9)).all(axis=2).sum() == 64 * 64 - 20 * 30
    fits = Geometry(size=20, upscale=False)
    assert decode_placed(data, geometry=fits).shape == (20, 20, 3)


def test_what_cannot_be_read_is_named() -> None:
    with pytest.raises(DamagedSourceError, match=r"shards/1.tar: a.jpg at byte 512 is cut or damaged"):
        decode_placed(CHINA.read_bytes()[:9000], geometry=Geometry(size=64), name="shards/1.tar: a.jpg at byte 512")
    with pytest.raises(SourceError, match="has 640 x 427 pixels, at most 1000 are decoded"):
        decode_placed(CHINA.read_bytes(), geometry=Geometry(size=64), max_pixels=1000)


@pytest.mark.parametrize("engine", ["pillow", "fast"])
def test_the_same_pixels_from_any_number_of_threads(engine: Any) -> None:
    if engine == "fast":
        pytest.importorskip("cykooz_resizer")
    files = [path.read_bytes() for path in PHOTOS]
    geometry = Geometry(size=96, crop="random", flip=0.5, engine=engine)

    def read(place: int) -> Any:
        return decode_placed(files[place % len(files)], geometry=geometry, rng=draws_at(4, place))

    expected = [read(place) for place in range(40)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for one, other in zip(pool.map(read, range(40)), expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_fast_engine_differs_by_rounding() -> None:
    pytest.importorskip("cykooz_resizer")
    for path in PHOTOS:
        one, other = (
            decode_placed(path.read_bytes(), geometry=Geometry(size=128, engine=engine))
            for engine in ("pillow", "fast")
        )
        assert decibels(one, other) > 50


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "the height in size must be at least 1, got 0"),
        ({"size": (4, -1)}, "the width in size must be at least 1, got -1"),
        ({"size": (10**5, 10**5)}, "size must have at most 89478485 pixels, got 100000 x 100000"),
        ({"size": 8, "fit": "cover"}, "fit must be one of 'crop', 'squash', 'pad', 'none', got 'cover'"),
        ({"size": 8, "crop": "top"}, "crop must be one of 'center', 'random', got 'top'"),
        ({"size": 8, "resample": "nearest"}, "resample must be one of 'box', .*, got 'nearest'"),
        ({"size": 8, "fit": "none"}, r"size=\(8, 8\) and fit='none' do not go together"),
        ({"fit": "pad"}, "size=None and fit='pad' do not go together"),
        ({"size": 8, "fit": "pad", "crop": "random"}, "crop=\"random\" has no meaning with fit='pad'"),
        ({"flip": 1.5}, r"flip must be a probability from 0 to 1, got 1\.5"),
        ({"flip": float("nan")}, "flip must be a probability from 0 to 1, got nan"),
        ({"background": (0, 0)}, "background is"),
        ({"engine": "opencv"}, 'engine must be "pillow" or "fast"'),
    ],
)
def test_options_that_cannot_be(options: Any, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        Geometry(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "8"}, "size must be a side or"),
        ({"size": (8, 8, 3)}, "size must be a side or"),
        ({"size": (8, 8.0)}, r"the width in size must be an int, got 8\.0"),
        ({"size": True}, "size must be a side or"),
        ({"flip": "half"}, "flip must be a probability from 0 to 1, got 'half'"),
        ({"flip": True}, "flip must be a probability"),
        ({"upscale": 1}, "upscale must be True or False, got 1"),
        ({"exact": None}, "exact must be True or False, got None"),
    ],
)
def test_options_of_a_wrong_type(options: Any, message: str) -> None:
    with pytest.raises(OptionsTypeError, match=message):
        Geometry(**options)


def test_the_identity_is_json_and_tells_everything_apart() -> None:
    base = Geometry(size=64)
    identity = base.identity()
    assert json.loads(json.dumps(identity)) == identity
    assert (identity["version"], identity["size"], identity["engine"]) == (1, [64, 64], "pillow")
    assert set(identity) == {"version", *(field.name for field in attrs.fields(Geometry))}
    others = [{"size": (64, 65)}, {"fit": "squash"}, {"crop": "random"}, {"resample": "lanczos"}, {"flip": 0.5}]
    others += [{"upscale": False}, {"background": (0, 0, 0)}, {"exact": True}]
    assert all(attrs.evolve(base, **other).identity() != identity for other in others)
    assert base.at_size((32, 48)).size == (32, 48)
    assert pickle.loads(pickle.dumps(base)) == base


def test_the_fast_engine_absent_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cykooz_resizer", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'dew-media[fast]'")):
        Geometry(size=8, engine="fast")
