"""Files on a real S3 endpoint on this machine (moto's server), with every byte and request counted on the way."""

import contextlib
import re
import select
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3fs import S3FileSystem
from tests.s3 import close_clients, s3_server

from dew.data import DataPartition, Dataset, HFOptions, Loading, columns, identity, load

DIRECT = Loading(read_buffer=0, threads=1, workers=0)
KEY, SECRET = "AKIATESTKEY", "very-secret-value"
FILES, GROUPS, GROUP_ROWS = 6, 10, 200
ROWS = FILES * GROUPS * GROUP_ROWS


class Tap(socketserver.ThreadingTCPServer):
    """Stands between a client and a server, and counts what the server sends and what it is asked for."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.upstream = port
        self.port = self.server_address[1]
        self.received = 0
        self.requests: list[str] = []
        self.ending = False
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, name="tap")
        self.thread.start()

    def clear(self) -> None:
        self.received = 0
        self.requests.clear()

    def asked(self, method: str) -> list[str]:
        """Paths of the requests of a method."""
        return [line.split(" ")[1] for line in self.requests if line.startswith(f"{method} ")]

    def end(self) -> None:
        self.ending = True
        self.shutdown()
        self.thread.join(10)
        self.server_close()


class _Connection(socketserver.BaseRequestHandler):
    server: Tap

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.upstream)) as above, contextlib.suppress(OSError):
            while not self.server.ending:
                readable, _, _ = select.select([self.request, above], [], [], 0.05)
                for end in readable:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    if end is above:
                        self.server.received += len(data)
                        self.request.sendall(data)
                    else:
                        line = data.split(b"\r\n", 1)[0].decode("latin-1")
                        if re.match(r"(GET|HEAD|PUT|POST) ", line):
                            self.server.requests.append(line)
                        above.sendall(data)


@pytest.fixture(scope="module")
def tap() -> Iterator[Tap]:
    with s3_server() as port:
        made = Tap(port)
        try:
            yield made
        finally:
            close_clients()
            made.end()


@pytest.fixture(scope="module")
def storage_options(tap: Tap) -> dict[str, Any]:
    return {"key": KEY, "secret": SECRET, "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{tap.port}"}}


@pytest.fixture(scope="module")
def bucket(storage_options: dict[str, Any]) -> str:
    S3FileSystem(**storage_options).mkdir("rows")
    return "s3://rows"


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    # The hub stays out of reach; the library counts any other address as online too.
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)


def put(bucket: str, storage_options: dict[str, Any], paths: Any) -> list[str]:
    remote = S3FileSystem(**storage_options)
    for path in paths:
        remote.put_file(path, f"{bucket}/{Path(path).name}")
    return [f"{bucket}/{Path(path).name}" for path in paths]


@pytest.mark.parametrize("mode", [{}, {"position": "records"}])
def test_a_remote_stream_is_the_local_one(
    mode: Any, bucket: str, storage_options: dict[str, Any], write_files: Any
) -> None:
    files = write_files("parquet", group=2)
    urls = put(bucket, storage_options, files.paths)

    def first(options: Any) -> list[list[int]]:
        dataset = load("hf/parquet", batch=6, streaming=True, options=options, preprocess=identity, loading=DIRECT)
        with dataset.train(DataPartition(1, 2)) as stream:
            found = [next(stream)["id"].tolist() for _ in range(5)]
            state = str(stream.get_state())
        assert "s3://" not in state
        assert SECRET not in state
        return found

    local = first(HFOptions(data_files=list(files.paths), **mode))
    assert first(HFOptions(data_files=urls, storage_options=storage_options, **mode)) == local


def test_a_missing_remote_file_is_named_without_secrets(bucket: str, storage_options: dict[str, Any]) -> None:
    options = HFOptions(data_files=f"{bucket}/nothing.parquet", storage_options=storage_options)
    with pytest.raises(FileNotFoundError, match=r"nothing\.parquet") as caught:
        load("hf/parquet", batch=2, streaming=True, options=options, preprocess=identity)
    assert SECRET not in f"{caught.value} {caught.value.__cause__!r}"


@pytest.mark.parametrize("mode", [{}, {"position": "records"}])
def test_a_pattern_reads_by_spelling_here_too(mode: Any, storage_options: dict[str, Any], tmp_path: Path) -> None:
    remote = S3FileSystem(**storage_options)
    if not remote.exists("spelled"):
        remote.mkdir("spelled")
    for number in (2, 10, 1):
        pq.write_table(pa.table({"id": [number] * 4}), tmp_path / f"part-{number}.parquet")
    put("s3://spelled", storage_options, tmp_path.glob("*.parquet"))
    options = HFOptions(
        data_files={"train": "s3://spelled/*.parquet", "val": "s3://spelled/*.parquet"},
        storage_options=storage_options,
        cache_dir=str(tmp_path),
        **mode,
    )
    dataset = load(
        "hf/parquet",
        batch=12,
        streaming=True,
        val_split="val",
        allow_overlap=True,
        options=options,
        preprocess=columns("id"),
        loading=DIRECT,
    )
    assert dataset.val is not None
    assert [batch["id"].tolist() for batch in dataset.val(DataPartition())] == [[1] * 4 + [10] * 4 + [2] * 4]


# What is read of row groups, by count


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, storage_options: dict[str, Any], tap: Tap) -> tuple[str, int]:
    """A pattern of six files of ten row groups of about 80 kB, and the bytes of all."""
    folder, rng = tmp_path_factory.mktemp("large"), np.random.default_rng(0)
    per_file = GROUPS * GROUP_ROWS
    for number in range(FILES):
        ids = range(number * per_file, (number + 1) * per_file)
        noise = [rng.bytes(400) for _ in ids]
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table({"id": ids, "noise": noise}), path, row_group_size=GROUP_ROWS, compression="none")
    S3FileSystem(**storage_options).mkdir("large")
    put("s3://large", storage_options, sorted(folder.iterdir()))
    return "s3://large/*.parquet", sum(path.stat().st_size for path in folder.iterdir())


def opened(large: tuple[str, int], storage_options: dict[str, Any], cache: Path, **more: Any) -> Dataset:
    S3FileSystem(**storage_options).invalidate_cache()
    options = HFOptions(
        data_files=large[0], storage_options=storage_options, cache_dir=str(cache), position="records", lanes=8, **more
    )
    return load("hf/parquet", batch=400, streaming=True, options=options, preprocess=columns("id"), loading=DIRECT)


@pytest.mark.parametrize("count", [1, 2])
def test_two_epochs_read_the_data_twice_and_little_more(
    count: int, large: tuple[str, int], storage_options: dict[str, Any], tap: Tap, tmp_path: Path
) -> None:
    tap.clear()
    ids: list[int] = []
    for index in range(count):
        with opened(large, storage_options, tmp_path).train(DataPartition(index, count)) as stream:
            for _ in range(2 * ROWS // 400):
                ids += next(stream)["id"].tolist()
    np.testing.assert_array_equal(np.sort(ids), np.repeat(np.arange(ROWS), 2))
    assert tap.received <= 1.1 * 2 * large[1], f"{tap.received / large[1]:.3f} times the data in two epochs"


def test_going_on_reads_one_window_however_deep(
    large: tuple[str, int], storage_options: dict[str, Any], tap: Tap, tmp_path: Path
) -> None:
    with opened(large, storage_options, tmp_path).train(DataPartition()) as stream:
        state = stream.get_state()
    received: list[int] = []
    for depth in (400, 10**6 * ROWS + 400):  # past a window's middle the next is read ahead
        tap.clear()
        with opened(large, storage_options, tmp_path).train(DataPartition()) as stream:
            stream.set_state({**state, "records": depth})
            next(stream)
        received.append(tap.received)
    window = 8 * large[1] / (FILES * GROUPS)
    assert max(received) <= 1.1 * window + 200_000, "eight row groups, the listing, and the types of the first file"
    assert abs(received[0] - received[1]) < 1000 + window / 8, "no more at a depth of a million epochs"


def test_opening_again_reads_no_footer(
    large: tuple[str, int], storage_options: dict[str, Any], tap: Tap, tmp_path: Path
) -> None:
    tap.clear()
    opened(large, storage_options, tmp_path)
    assert len({path.partition("?")[0] for path in tap.asked("GET") if ".parquet" in path}) == FILES
    tap.clear()
    opened(large, storage_options, tmp_path)
    read = {path.partition("?")[0] for path in tap.asked("GET") + tap.asked("HEAD") if ".parquet" in path}
    assert read <= {"/large/0.parquet"}, "the library looks at the types of the first file"
    assert len(tap.requests) <= 6, tap.requests


def test_an_overwritten_file_is_noticed_by_its_etag(storage_options: dict[str, Any], tmp_path: Path) -> None:
    remote = S3FileSystem(**storage_options)
    remote.mkdir("changing")
    fingerprints: list[str] = []
    for start in (0, 1):
        table = pa.table({"id": range(start, start + 500)})
        pq.write_table(table, tmp_path / "a.parquet", compression="none", use_dictionary=False)
        remote.put_file(str(tmp_path / "a.parquet"), "s3://changing/a.parquet")
        large = "s3://changing/a.parquet", 0
        with opened(large, storage_options, tmp_path / "cache").train(DataPartition()) as stream:
            assert min(stream.source[row]["id"] for row in range(500)) == start
            fingerprints.append(stream.source.fingerprint())
    assert fingerprints[0] != fingerprints[1]
    assert len(list((tmp_path / "cache" / "dew-footers").iterdir())) == 2


def test_chosen_columns_are_all_that_is_fetched(
    large: tuple[str, int], storage_options: dict[str, Any], tap: Tap, tmp_path: Path
) -> None:
    dataset = opened(large, storage_options, tmp_path, config_kwargs={"columns": ["id"]})
    tap.clear()
    with dataset.train(DataPartition()) as stream:
        for _ in range(ROWS // 400):
            next(stream)
    assert tap.received < 0.1 * large[1]
    assert len(tap.asked("GET")) <= FILES * GROUPS + 8, "one request a row group"
    assert not tap.asked("HEAD")


def test_the_next_window_is_there_when_it_begins(
    large: tuple[str, int], storage_options: dict[str, Any], tmp_path: Path
) -> None:
    with opened(large, storage_options, tmp_path).train(DataPartition()) as stream:
        source, order = stream.source.open(), stream.order
        start, stop = order.window(0)
        for place in range(start, stop, 400):
            source.__getitems__(order.at(np.arange(place, place + 400)).tolist())
        before, deadline = source.reads, time.monotonic() + 30
        while source.waiting and time.monotonic() < deadline:
            time.sleep(0.01)
        source.__getitems__(order.at(np.arange(stop, stop + 400)).tolist())
        assert (before, source.reads) == (16, 16), "all eight were read ahead"
        source.close()
