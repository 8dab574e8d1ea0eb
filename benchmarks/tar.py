"""Collections of encoded files against other readers of the same files: indexed tar shards, and folders.

4 shards of 1000 samples, a JPEG of 54 KB, a caption and a JSON note each; the same 4000 images loose; all in the page
cache. Bytes are read and not decoded. Seconds are those of the CPU, as all of it is work of one thread: on a machine
that is shared, the clock measures the neighbours.
"""

import io
import itertools
import os
import random
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, at_least, at_most
from dew.data.storage import Storage
from dew_media.files.collection import MediaFiles
from dew_media.files.open import open_files
from dew_media.files.tar_places import ShardSpec, build_index

SHARDS = 4
SAMPLES = 1000
IMAGE = b"\xff\xd8" + os.urandom(54_000)
ROUNDS = 7


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for number in range(SHARDS):
            _write_shard(root / f"shards/{number}.tar", number)
        yield from _index(root / "shards")
        yield from _reads(root)
        yield from _openings(root)


def _write_shard(path: Path, shard: int) -> None:
    path.parent.mkdir(exist_ok=True)
    loose = path.parent.parent / "loose"
    loose.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number in range(SAMPLES):
            key = f"{shard:02}{number:06}"
            image = IMAGE[: 53_000 + number]
            (loose / f"{key}.jpg").write_bytes(image)
            parts = {"jpg": image, "txt": b"a photo of a flower, number %d" % number, "json": b'{"width": 500}' * 12}
            for suffix, data in parts.items():
                entry = tarfile.TarInfo(f"{key}.{suffix}")
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))


def _index(shards: Path) -> Iterator[Figure]:
    spec = ShardSpec(storage=Storage(str(shards)))
    found = spec.shards()

    def python() -> None:
        for shard in found:
            with tarfile.open(shards / shard.name) as archive:
                archive.getmembers()

    times = _cpu_seconds_each({"dew": lambda: build_index(spec, found), "python": python}, calls=1)
    rates = {name: 3 * SHARDS * SAMPLES / seconds / 1e3 for name, seconds in times.items()}
    yield at_least("tar index, k members a second", rates["dew"], 100, f" (tarfile {rates['python']:.0f})")


def _cpu_seconds_each(variants: Mapping[str, Callable[[], object]], *, calls: int) -> dict[str, float]:
    """Median CPU seconds of one call of each variant; each round runs every variant `calls` times."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, call in variants.items():
            started = time.process_time()
            for _ in range(calls):
                call()
            times[name].append((time.process_time() - started) / calls)
    return {name: statistics.median(values) for name, values in times.items()}


def _reads(root: Path) -> Iterator[Figure]:
    import webdataset

    shards = [str(path) for path in sorted((root / "shards").glob("*.tar"))]
    tar, folder = open_files(root / "shards"), open_files(root / "loose")

    def sequential() -> Iterator[Any]:
        while True:
            yield from webdataset.WebDataset(shards, shardshuffle=False)

    samples, rows = sequential(), _hugging_face(root)
    times = _cpu_seconds_each(
        {
            "webdataset": lambda: next(samples),
            "tar": _at_random(tar, lambda index: (tar.read(index), tar.captions(index))),
            "folder": _at_random(folder, folder.read),
            "hf": _at_random(folder, lambda index: _row_bytes(rows[index]["image"])),
        },
        calls=1000,
    )
    rates = {name: f"{1 / seconds / 1e3:.1f} k/s" for name, seconds in times.items()}
    detail = f" ({rates['tar']}; webdataset {rates['webdataset']})"
    yield at_least("tar random reads / webdataset sequential", times["webdataset"] / times["tar"], 1.5, detail)
    yield Figure(
        what="folder random reads / HF imagefolder rows, undecoded",
        value=f"{times['hf'] / times['folder']:.2f} ({rates['folder']}; imagefolder {rates['hf']})",
        budget="",
    )


def _at_random(files: MediaFiles, read: Callable[[int], object]) -> Callable[[], object]:
    order = list(range(len(files)))
    random.Random(1).shuffle(order)
    places = itertools.cycle(order)
    return lambda: read(next(places))


def _row_bytes(image: Mapping[str, Any]) -> bytes:
    """Of a folder the rows hold paths alone, and the library opens them when it decodes."""
    return image["bytes"] or Path(image["path"]).read_bytes()


def _hugging_face(root: Path) -> Any:
    """The loose images as Hugging Face's `imagefolder`, rows of bytes or paths."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets

    datasets.disable_progress_bars()
    rows = datasets.load_dataset(
        "imagefolder", data_dir=str(root / "loose"), split="train", cache_dir=str(root / "cache")
    )
    return rows.cast_column("image", datasets.Image(decode=False))


def _openings(root: Path) -> Iterator[Figure]:
    for count, name in ((10_000, "10 000"), (100_000, "100 000")):
        folder = root / f"many-{count}"
        for inside in range(10):
            (folder / str(inside)).mkdir(parents=True)
            first = folder / f"{inside}/0.jpg"
            first.write_bytes(b"x")
            for number in range(1, count // 10):
                if number % 10_000 == 0:
                    (first := folder / f"{inside}/{number}.jpg").write_bytes(b"x")
                else:
                    os.link(first, folder / f"{inside}/{number}.jpg")
        seconds = _cpu_seconds_each({"open": lambda folder=folder: open_files(folder).digest()}, calls=1)["open"]
        yield at_most(f"opening a folder of {name} files, with its fingerprint", seconds, 1, "s")
