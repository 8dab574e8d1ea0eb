"""Image decoding against Pillow alone: JPEG files of 500 x 375 to 256 x 256, through the stream and bare, in one run.

The files are made from photographs that scikit-learn and scikit-image ship, in the page cache. `Pillow alone` reads the
file, decodes, and resizes its middle, in as many threads as cores; `Dew` is a stream of batches.
"""

import concurrent.futures
import contextlib
import functools
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast, get_args

import attrs
import numpy as np
import skimage
import sklearn
from PIL import Image

from benchmarks.measure import Figure, at_least, seconds_each
from dew.data import DataPartition, ImageFolder, Loading
from dew.data.pixels import Engine
from dew_media.geometry import Geometry, decode_placed
from dew_media.images.buckets import BucketOrder, bucketed, choose_buckets

CORES = len(os.sched_getaffinity(0))
SIDE = 256
LOADING = Loading(workers=0, threads=CORES)


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        small, large = Path(directory, "small"), Path(directory, "large")
        _write(small, 500, 375, 512)
        _write(large, 2048, 1536, 96)
        yield from _against_pillow(small, "500x375 -> 256", batch=64)
        yield from _against_pillow(large, "2048x1536 -> 256", batch=24)
        yield from _in_one_thread(small, "500x375")
        yield from _in_one_thread(large, "2048x1536")
        yield from _buckets()


def _photographs() -> list[Image.Image]:
    shipped = Path(skimage.__file__).parent / "data"
    own = Path(sklearn.__file__).parent / "datasets" / "images"
    names = [
        own / "china.jpg",
        own / "flower.jpg",
        *(shipped / f"{name}.png" for name in ("astronaut", "chelsea", "coffee")),
    ]
    return [Image.open(io.BytesIO(path.read_bytes())).convert("RGB") for path in [*names, shipped / "rocket.jpg"]]


def _write(directory: Path, width: int, height: int, count: int) -> None:
    directory.mkdir()
    photographs = _photographs()
    for number in range(count):
        image = photographs[number % len(photographs)].resize((width, height), Image.Resampling.BICUBIC)
        image.save(directory / f"{number:04}.jpg", quality=90)


def _pillow(path: Path) -> Any:
    """What a careful hand would write with Pillow alone: scaled decoding and one resize of the middle."""
    with path.open("rb") as file:
        image = Image.open(io.BytesIO(file.read()))
        image.draft("RGB", (2 * SIDE * image.width // image.height, 2 * SIDE))
        left = (image.width - image.height) / 2
        box = (left, 0, left + image.height, image.height)
        return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=box))


def _against_pillow(directory: Path, what: str, *, batch: int) -> Iterator[Figure]:
    paths = sorted(directory.iterdir())
    found: dict[str, list[_Rate]] = {}
    with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
        variants: dict[str, Callable[[], _Rate]] = {
            "pillow": lambda: _rate(lambda: list(pool.map(_pillow, paths)), len(paths)),
            "dew": _stream_rate(directory, "pillow", batch),
            "fast": _stream_rate(directory, "fast", batch),
        }
        for _ in range(7):
            for name, measure in variants.items():
                found.setdefault(name, []).append(measure())
    wall = {name: max(rate.wall for rate in rates) for name, rates in found.items()}  # neighbours only take cores away
    cpu = {name: statistics.median(rate.cpu for rate in rates) for name, rates in found.items()}
    alone = f" ({wall['dew']:.0f} images/s; Pillow alone on {CORES} threads {wall['pillow']:.0f})"
    yield at_least(f"images {what}, Dew / Pillow alone", wall["dew"] / wall["pillow"], 0.9, alone)
    yield at_least(f"images {what}, the same per CPU-second", cpu["dew"] / cpu["pillow"], 0.9, f" ({cpu['dew']:.0f})")
    least = 1.7 if batch == 64 else 1.2  # of large ones the decoding is the cost, and that is the same
    for unit, rates in (("", wall), (" per CPU-second", cpu)):
        detail = f" ({rates['fast']:.0f})"
        yield at_least(f"images {what}, fast / pillow{unit}", rates["fast"] / rates["dew"], least, detail)


@attrs.frozen
class _Rate:
    """Images a second, and a second of all cores together, which neighbours do not change."""

    wall: float
    cpu: float


def _rate(read: Callable[[], object], count: int) -> _Rate:
    wall, cpu = time.perf_counter(), time.process_time()
    read()
    return _Rate(count / (time.perf_counter() - wall), count / (time.process_time() - cpu))


def _stream_rate(directory: Path, engine: Any, batch: int) -> Callable[[], _Rate]:
    """With the default read-ahead for the wall, and without any for the cores: it must not count what comes later."""
    datasets = [
        ImageFolder(directory, size=SIDE, engine=engine, loading=loading).load(batch=batch)
        for loading in (LOADING, attrs.evolve(LOADING, read_buffer=0))
    ]
    steps = len(list(directory.iterdir())) // batch

    def measure() -> _Rate:
        rates: list[_Rate] = []
        for dataset in datasets:
            with contextlib.closing(cast("Any", dataset.train(DataPartition()))) as stream:
                for _ in range(3):  # until as much is read ahead as will be at the end
                    next(stream)
                rates.append(_rate(functools.partial(_read, stream, steps), steps * batch))
        return _Rate(rates[0].wall, rates[1].cpu)

    return measure


def _read(stream: Iterator[Any], steps: int) -> None:
    for _ in range(steps):
        next(stream)


def _in_one_thread(directory: Path, what: str) -> Iterator[Figure]:
    path = next(directory.iterdir())
    data = path.read_bytes()
    engines: tuple[Engine, ...] = get_args(Engine)
    geometries = {engine: Geometry(size=SIDE, engine=engine) for engine in engines}
    found = seconds_each(
        {
            "alone": lambda: _pillow(path),
            "pillow": lambda: decode_placed(data, geometry=geometries["pillow"]),
            "fast": lambda: decode_placed(data, geometry=geometries["fast"]),
        },
        rounds=9,
        calls=10,
    )
    yield at_least(f"one {what}, Dew / Pillow alone", found["alone"] / found["pillow"], 0.9)
    yield Figure(what=f"one {what}, engine fast / pillow", value=f"{found['pillow'] / found['fast']:.2f}", budget="")


def _buckets() -> Iterator[Figure]:
    rng = np.random.default_rng(0)
    heights = rng.integers(300, 2000, 1_000_000)
    widths = (heights * np.exp(rng.normal(0, 0.35, len(heights)))).astype(np.int64) + 1
    started = time.perf_counter()
    plan = bucketed(widths, heights, choose_buckets(widths, heights, base=512, least=256))
    chosen = time.perf_counter() - started
    yield Figure(what="aspect buckets, 1e6 images", value=f"{len(plan.sizes)} chosen in {chosen:.2f} s", budget="")
    order = BucketOrder(plan, batch=256, seed=1)
    places = np.arange(4096, dtype=np.int64) + 10**12
    found = seconds_each({"block": lambda: order.at(places)}, rounds=9, calls=20)["block"]
    yield Figure(what="aspect buckets, order", value=f"{found / 4096 * 1e6:.2f} us/record", budget="")
