"""Hugging Face rows against the library's own reading: Arrow rows, streamed parquet, and row groups by position.

Text of 330 bytes and a label in each of 160 000 rows, 8 parquet files, row groups of 1000, all in the page cache.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Figure, at_least, at_most, seconds_each
from dew.data import DataPartition, HFOptions, Loading, load

FILES = 8
ROWS = 20_000
BATCH = 1000
GROUP = 1000
DIRECT = Loading(workers=0, threads=1, read_buffer=0)


def figures() -> Iterator[Figure]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets

    datasets.disable_progress_bars()
    datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
    with tempfile.TemporaryDirectory() as directory:
        paths = [_write(Path(directory) / f"part-{number}.parquet", number) for number in range(FILES)]
        options = {"data_files": paths, "cache_dir": str(Path(directory) / "cache")}
        yield from _arrow(datasets, options)
        yield from _streamed(datasets, options)
        yield from _positioned(datasets, options)


def _write(path: Path, number: int) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(number)
    text = ["".join(map(chr, rng.integers(97, 122, 330))) for _ in range(ROWS)]
    ids = np.arange(number * ROWS, (number + 1) * ROWS)
    pq.write_table(pa.table({"id": ids, "text": text}), path, row_group_size=GROUP)
    return str(path)


def _length(record: Any) -> Any:
    return {"id": np.int64(record["id"]), "length": np.int64(len(record["text"]))}


def _noisy(record: Any, rng: Any) -> Any:
    return {"id": np.int64(record["id"]), "draw": rng.random()}


def _arrow(datasets: Any, options: Any) -> Iterator[Figure]:
    dataset = load("hf/parquet", batch=64, options=HFOptions(**options), preprocess=_noisy, loading=DIRECT)
    table = datasets.load_dataset("parquet", split="train", **options)
    picks = itertools.cycle(np.random.default_rng(1).integers(0, len(table), (500, 64)).tolist())

    def bare() -> Any:
        rows = table.__getitems__(next(picks))
        made = [_noisy(row, np.random.Generator(np.random.Philox(key=7, counter=row["id"]))) for row in rows]
        return {name: np.stack([row[name] for row in made]) for name in made[0]}

    with dataset.train(DataPartition()) as stream:
        times = seconds_each({"bare": bare, "dew": lambda: next(stream)}, rounds=9, calls=30)
    access = seconds_each({"access": lambda: table.__getitems__(next(picks))}, rounds=5, calls=30)["access"]
    rate = f" ({64 / times['dew'] / 1e3:.0f} k rows/s; bare access {64 / access / 1e3:.0f} k)"
    yield at_least("hf Arrow rows / bare loop", times["bare"] / times["dew"], 0.8, rate)


def _streamed(datasets: Any, options: Any) -> Iterator[Figure]:
    dataset = load(
        "hf/parquet", batch=BATCH, streaming=True, options=HFOptions(**options), preprocess=_length, loading=DIRECT
    )

    def bare() -> Iterator[Any]:
        while True:
            opened = datasets.load_dataset("parquet", split="train", streaming=True, **options)
            for columns in opened.iter(batch_size=BATCH):
                rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
                made = [_length(row) for row in rows]
                yield {name: np.stack([row[name] for row in made]) for name in made[0]}

    own = bare()
    with dataset.train(DataPartition()) as stream:
        times = seconds_each({"bare": lambda: next(own), "dew": lambda: next(stream)}, rounds=9, calls=10)
    own.close()
    rate = f" ({BATCH / times['dew'] / 1e3:.0f} k rows/s)"
    yield at_least("hf streamed parquet / bare .iter", times["bare"] / times["dew"], 0.9, rate)


def _positioned(datasets: Any, options: Any) -> Iterator[Figure]:
    dataset = load(
        "hf/parquet",
        batch=BATCH,
        streaming=True,
        options=HFOptions(**options, position="records"),
        preprocess=_length,
        loading=DIRECT,
    )

    def shuffled() -> Iterator[Any]:
        while True:
            opened = datasets.load_dataset("parquet", split="train", streaming=True, **options)
            for columns in opened.shuffle(seed=1, buffer_size=1000).iter(batch_size=BATCH):
                rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
                made = [_length(row) for row in rows]
                yield {name: np.stack([row[name] for row in made]) for name in made[0]}

    # Many calls a round: the buffer is filled in bursts.
    own = shuffled()
    with dataset.train(DataPartition()) as stream:
        times = seconds_each({"bare": lambda: next(own), "dew": lambda: next(stream)}, rounds=5, calls=48)
        state = stream.get_state()
    own.close()
    rate = f" ({BATCH / times['dew'] / 1e3:.0f} k rows/s)"
    yield at_least("hf position='records' / the library's shuffle", times["bare"] / times["dew"], 0.9, rate)
    deep = BATCH * 10**9
    with dataset.train(DataPartition()) as stream:
        stream.set_state({**state, "records": deep})
        started = time.perf_counter()
        next(stream)
        yield at_most("hf position='records', first batch after a resume", time.perf_counter() - started, 0.5, "s")
        reader = stream.source.open()
        order = stream.source.order(0)
    rows = FILES * ROWS
    for start in range(0, rows, BATCH):
        reader.__getitems__(order.at(np.arange(start, start + BATCH)).tolist())
    yield at_most("hf position='records', groups read / groups there are", reader.reads / (rows // GROUP), 1.1, "x")
    reader.close()
