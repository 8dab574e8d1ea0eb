"""Prepared TFDS data: beside a bare loop over tensorflow-datasets' own data source, the image decoder alone, and Grain.

The bare loop makes the same batches: the same access, one Philox Generator a record, the same preprocess, numpy.stack.
"""

import contextlib
import io
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np
import tensorflow_datasets as tfds

from benchmarks.measure import BareLoop, Figure, at_least, at_most, run_all, seconds_each
from dew.data import DataPartition, Loading, TFDSOptions, load
from dew_tfds.source import open_split

BATCH = 64
RECORDS = 20_000
IMAGES = 1024
SIDE = 256
SHARDS = 1000
LONG = 100_000
STEPS = 6
F = tfds.features


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        yield from _small(directory)
        yield from _images(directory)
        yield from _shards(directory)


class _Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A builder of one split."""

    VERSION = tfds.core.Version("1.0.0")
    features: Any
    records: Any

    def _info(self) -> Any:
        return tfds.core.DatasetInfo(builder=self, features=F.FeaturesDict(self.features), disable_shuffling=True)

    def _split_generators(self, _downloads: Any) -> Any:
        return {"train": enumerate(self.records)}

    def _generate_examples(self) -> Iterator[Any]:
        yield from ()


def _prepare(directory: str, name: str, features: Any, records: Any, shards: int) -> str:
    kind = type(name, (_Builder,), {"name": name, "features": features, "records": records}, skip_registration=True)
    config = tfds.download.DownloadConfig(num_shards=shards, try_download_gcs=False)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        builder = kind(data_dir=directory, file_format="array_record")
        builder.download_and_prepare(download_config=config)
    return str(builder.data_dir)


def _small(directory: str) -> Iterator[Figure]:
    rng = np.random.default_rng(0)
    features = {"text": F.Text(), "x": F.Tensor(shape=(64,), dtype=np.float32), "label": F.ClassLabel(num_classes=10)}
    records = (
        {"text": "word " * 48, "x": rng.random(64, dtype=np.float32), "label": number % 10} for number in range(RECORDS)
    )
    path = _prepare(directory, "small_records", features, records, 8)
    yield from _beside(path, "small_records", _numbers)


def _numbers(record: Any, rng: np.random.Generator) -> Any:
    return {"x": record["x"] + rng.random(dtype=np.float32), "label": record["label"]}


def _beside(path: str, name: str, preprocess: Callable[..., Any]) -> Iterator[Figure]:
    source = tfds.builder_from_directory(path).as_data_source("train")
    loop = bare(source, preprocess)
    ours = {
        "built directly": _stream(path, name, preprocess, Loading(workers=0, read_buffer=0)),
        "read ahead": _stream(path, name, preprocess, Loading(workers=0)),
    }
    chain = _grain_loader(source, preprocess)
    variants: dict[str, Callable[[], object]] = {"bare": lambda: next(loop), "grain": lambda: next(chain)}
    variants |= {what: lambda stream=stream: next(stream) for what, stream in ours.items()}
    seconds_each(variants, rounds=1, calls=20)
    times = seconds_each(variants, rounds=7, calls=40)
    what = f"TFDS {name.replace('_', ' ')}"
    yield Figure(what=f"{what}, bare loop", value=_rate(times["bare"]), budget="")
    for way, stream in ours.items():
        stream.close()
        yield at_least(f"{what}, {way} / bare loop", times["bare"] / times[way], 0.8, f" ({_rate(times[way])})")
    ratio = times["grain"] / times["read ahead"]
    yield Figure(
        what=f"{what}, read ahead / Grain's DataLoader", value=f"{ratio:.1f}x ({_rate(times['grain'])})", budget=""
    )


def _rate(seconds: float) -> str:
    return f"{BATCH / seconds:,.0f} records/s"


def _stream(path: str, name: str, preprocess: Any, loading: Loading) -> Any:
    dataset = load(f"tfds/{name}", batch=BATCH, preprocess=preprocess, options=TFDSOptions(path=path), loading=loading)
    return dataset.train(DataPartition())


def bare(source: Any, preprocess: Any) -> Iterator[Any]:
    place = 0
    while True:
        order = np.random.default_rng(place).permutation(len(source))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            rows: list[Any] = []
            for index in order[start : start + BATCH]:
                draws = np.random.Generator(np.random.Philox(key=7, counter=place))
                rows.append(preprocess(source[index], draws))
                place += 1
            yield {field: np.stack([row[field] for row in rows]) for field in rows[0]}


def _grain_loader(source: Any, preprocess: Any) -> Iterator[Any]:
    import grain

    class Transform(grain.transforms.RandomMap):
        def random_map(self, element: Any, rng: np.random.Generator) -> Any:
            return preprocess(element, rng)

    sampler = grain.samplers.IndexSampler(len(source), num_epochs=None, shuffle=True, seed=0)
    operations = [Transform(), grain.transforms.Batch(BATCH, drop_remainder=True)]
    return iter(grain.DataLoader(data_source=source, sampler=sampler, operations=operations, worker_count=0))


def _images(directory: str) -> Iterator[Figure]:
    files = [_photograph(number) for number in range(16)]
    features = {"image": F.Image(shape=(SIDE, SIDE, 3), encoding_format="jpeg"), "label": F.ClassLabel(num_classes=10)}
    records = ({"image": files[number % 16], "label": number % 10} for number in range(IMAGES))
    path = _prepare(directory, "photographs", features, records, 4)
    cores = len(os.sched_getaffinity(0))
    # Nothing is built ahead, so that neither side works while the other is measured.
    stream = _stream(path, "photographs", image, Loading(workers=0, read_buffer=0))
    loops = [BareLoop(_LOOP, path) for _ in range(cores)]
    variants = {
        "dew": lambda: [next(stream) for _ in range(cores * STEPS)],
        "loops": lambda: run_all(loops, STEPS),
        "decoder": lambda: [_decode_all(files) for _ in range(cores * STEPS)],
    }
    seconds_each(variants, rounds=1, calls=1)
    times = seconds_each(variants, rounds=15, calls=1)
    stream.close()
    for loop in loops:
        loop.close()
    rates = {name: cores * STEPS * BATCH / seconds for name, seconds in times.items()}
    what = f"TFDS JPEG {SIDE}x{SIDE}, built directly / "
    detail = f" ({rates['dew']:,.0f} of {rates['loops']:,.0f} images/s)"
    yield at_least(f"{what}{cores} bare loops at once", rates["dew"] / rates["loops"], 0.9, detail)
    value = f"{rates['dew'] / rates['decoder']:.2f} (of {rates['decoder']:,.0f} images/s)"
    yield Figure(what=f"{what}the decoder alone in {cores} threads", value=value, budget="")
    yield from _beside(path, "photographs", image)


_LOOP = """
import sys
import tensorflow_datasets as tfds
from benchmarks.tfds import bare, image
loop = bare(tfds.builder_from_directory(sys.argv[1]).as_data_source("train"), image)
for line in sys.stdin:
    for _ in range(int(line)):
        next(loop)
    print("done", flush=True)
"""


def _photograph(number: int) -> bytes:
    noise = np.random.default_rng(number).integers(0, 256, (SIDE // 8, SIDE // 8, 3), np.uint8)
    return cv2.imencode(".jpg", cv2.resize(noise, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC))[1].tobytes()


def image(record: Any, _rng: np.random.Generator) -> Any:
    return {"image": record["image"], "label": record["label"]}


def _decode_all(files: list[bytes]) -> None:
    """A batch of images through OpenCV, in one thread a core."""
    work = iter(range(BATCH))  # its next() is atomic

    def decode() -> None:
        for number in work:
            cv2.imdecode(np.frombuffer(files[number % len(files)], np.uint8), cv2.IMREAD_COLOR_RGB)

    threads = [threading.Thread(target=decode) for _ in range(len(os.sched_getaffinity(0)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _shards(directory: str) -> Iterator[Figure]:
    path = _prepare(directory, "many_shards", {"id": np.int64}, _numbered(2 * SHARDS), SHARDS)
    for check in ("sizes", "full"):
        started = time.perf_counter()
        load("tfds/many_shards", batch=BATCH, preprocess=dict, options=TFDSOptions(path=path, check=check))
        yield at_most(f"TFDS, open {SHARDS} shards, check={check!r}", time.perf_counter() - started, 2, "s")
    path = _prepare(directory, "one_shard", {"id": np.int64}, _numbered(LONG), 1)
    source = tfds.builder_from_directory(path).as_data_source("train")
    ours = open_split("one_shard", "train", TFDSOptions(path=path))
    picks = np.random.default_rng(0).integers(0, LONG, 100).tolist()
    variants = {
        "tfds": lambda: [source[index] for index in picks],
        "dew": lambda: [ours[index] for index in picks],
    }
    times = seconds_each(variants, rounds=5, calls=2)
    ours.close()
    each = {name: f"{seconds / len(picks) * 1e6:.0f} us" for name, seconds in times.items()}
    value = f"{each['dew']}, tensorflow-datasets' own {each['tfds']} ({times['tfds'] / times['dew']:.0f}x)"
    yield Figure(what=f"TFDS, a record of a shard of {LONG:,}", value=value, budget="")


def _numbered(count: int) -> Iterator[Any]:
    return ({"id": number} for number in range(count))
