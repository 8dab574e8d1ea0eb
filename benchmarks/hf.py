"""Hugging Face rows against the library's own reading: Arrow rows, streamed parquet, and row groups by position.

Text of 330 bytes and a label in each of 160 000 rows, 8 parquet files, row groups of 1000, all in the page cache.
"""

import contextlib
import itertools
import os
import re
import select
import socket
import socketserver
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Figure, at_least, at_most
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
        variants = {"bare": bare, "access": lambda: table.__getitems__(next(picks)), "dew": lambda: next(stream)}
        yield _beside("hf Arrow rows / bare loop", variants, 64, 0.8)


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
        variants = {"bare": lambda: next(own), "dew": lambda: next(stream)}
        yield _beside("hf streamed parquet / bare .iter", variants, BATCH, 0.9)
    own.close()


def _positioned(datasets: Any, options: Any) -> Iterator[Figure]:
    def opened(**more: Any) -> Any:
        return load(
            "hf/parquet",
            batch=BATCH,
            streaming=True,
            options=HFOptions(**{**options, **more}, position="records"),
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

    own = shuffled()
    with opened().train(DataPartition()) as stream:
        variants = {"bare": lambda: next(own), "dew": lambda: next(stream)}
        yield _beside("hf position='records' / the library's shuffle", variants, BATCH, 0.9)
    own.close()
    state = {**opened().train(DataPartition()).get_state(), "records": BATCH * 10**9}
    started = time.perf_counter()
    with opened().train(DataPartition()) as stream:
        stream.set_state(state)
        next(stream)
        yield at_most(
            "hf position='records', opened, resumed deep, first batch", time.perf_counter() - started, 0.5, "s"
        )
    yield _bytes_read("local files", opened, options["data_files"], _read_from_files)
    with _s3(options["data_files"]) as (urls, storage, received):
        remote = {"data_files": urls, "storage_options": storage}
        yield _bytes_read("S3", lambda: opened(**remote), options["data_files"], received)
        before = received()
        with opened(**remote).train(DataPartition()) as stream:
            stream.set_state({**stream.get_state(), "records": BATCH * 10**6})
            next(stream)
        part = (received() - before) / sum(os.path.getsize(path) for path in options["data_files"])
        yield Figure(what="hf S3, bytes to open and go on / the data", value=f"{part:.2f}", budget="")


def _beside(what: str, variants: dict[str, Any], rows: int, budget: float) -> Figure:
    """CPU time of all threads, since other work on the machine would decide elapsed time; that stands beside it.

    Many short rounds: the library's buffer is filled in bursts.
    """
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for _ in range(25):
        for name, call in variants.items():
            before = time.process_time(), time.perf_counter()
            for _ in range(16):
                call()
            spent[name].append(((time.process_time() - before[0]) / 16, (time.perf_counter() - before[1]) / 16))
    cpu = {name: statistics.median(one for one, _ in both) for name, both in spent.items()}
    elapsed = {name: statistics.median(one for _, one in both) for name, both in spent.items()}
    rates = ", ".join(f"{name} {rows / seconds / 1e3:.0f} k" for name, seconds in cpu.items())
    detail = f" ({elapsed['bare'] / elapsed['dew']:.2f} elapsed; rows a CPU second: {rates})"
    return at_least(what, cpu["bare"] / cpu["dew"], budget, detail)


def _bytes_read(where: str, opened: Any, files: list[str], counter: Any) -> Figure:
    """Opening and two epochs, against the bytes of all files."""
    before = counter()
    with opened().train(DataPartition()) as stream:
        for _ in range(2 * FILES * ROWS // BATCH):
            next(stream)
    ratio = (counter() - before) / 2 / sum(map(os.path.getsize, files))
    return at_most(f"hf position='records', bytes of {where} / the data", ratio, 1.1, "x")


def _read_from_files() -> int:
    """Bytes that this process has read, as the system counts them."""
    return int(Path("/proc/self/io").read_text().split()[1])


@contextlib.contextmanager
def _s3(files: list[str]) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """A pattern of the files on an S3 endpoint of this machine, storage options for it, and what it has sent."""
    import s3fs
    from fsspec.asyn import sync

    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        log = iter(server.stderr.readline, "")
        port = next(int(found[1]) for line in log if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
        threading.Thread(target=lambda: [None for _ in log], daemon=True).start()
        tap = _Tap(port)
        endpoint = f"http://127.0.0.1:{tap.server_address[1]}"
        storage = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": endpoint}}
        bucket = s3fs.S3FileSystem(**storage)
        bucket.mkdir("rows")
        for path in files:
            bucket.put_file(path, f"rows/{Path(path).name}")
        os.environ["HF_HUB_OFFLINE"] = "0"
        import datasets

        datasets.config.HF_HUB_OFFLINE = False
        try:
            yield "s3://rows/*.parquet", storage, lambda: tap.sent
        finally:
            datasets.config.HF_HUB_OFFLINE = True
            sync(bucket.loop, bucket._s3.close)
            s3fs.S3FileSystem.clear_instance_cache()
            tap.shutdown()
            tap.server_close()
            server.terminate()


class _Tap(socketserver.ThreadingTCPServer):
    """Stands between a client and the server at `port`, and counts what the server sends."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.server_port, self.sent = port, 0
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Connection(socketserver.BaseRequestHandler):
    server: _Tap

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.server_port)) as above, contextlib.suppress(OSError):
            while True:
                for end in select.select([self.request, above], [], [])[0]:
                    data = end.recv(1 << 20)
                    if not data:
                        return
                    if end is above:
                        self.server.sent += len(data)
                    (self.request if end is above else above).sendall(data)
