"""Corpora in an object store: a real S3 endpoint on this machine (moto's server), read through s3fs.

Between the two stands a proxy that counts bytes and cuts connections.
"""

import asyncio
import contextlib
import logging
import re
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from s3fs import S3FileSystem
from tests.s3 import close_clients, s3_server

from dew.data import DataPartition, Dataset, Loading, load
from dew.data import storage as storage_module
from dew.data.cache import BlockCache
from dew.data.errors import DamagedSourceError, SourceError, SourceNotFoundError, StorageError
from dew.data.source import RecordSource
from dew.data.storage import Storage
from dew.testing import SourceSuite, StreamSuite
from dew.tokens import (
    CorpusOptions,
    PackedDocuments,
    TokenCorpus,
    TokenOptions,
    TokenWindows,
    WindowSource,
    open_corpus,
    verify_corpus,
    write_corpus,
)

Documents = list[np.ndarray[Any, np.dtype[np.int64]]]

KEY, SECRET, TOKEN = "AKIAOFNOBODY", "s3cr3t-of-nobody", "t0ken-of-nobody"
FAST = Loading(read_buffer=0)
MIB = 1 << 20


class Proxy:
    """Hands bytes between clients and the server; the next `cuts` replies end after `after` bytes."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.cuts = 0
        self.after = 0
        self.received = 0  # bytes of replies
        self.requests: list[str] = []
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="proxy")
        self._thread.start()
        assert self._started.wait(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take(self) -> list[str]:
        """The requests since the last time, as `GET path range`."""
        requests, self.requests = self.requests, []
        return requests

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._joined, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _joined(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        server, forth = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            await asyncio.gather(self._forward(client, forth), self._reply(server, back))
        except OSError:
            return
        finally:
            self._tasks.discard(task)
            forth.transport.abort()
            back.transport.abort()

    async def _forward(self, client: asyncio.StreamReader, forth: asyncio.StreamWriter) -> None:
        while data := await client.read(1 << 16):
            if head := re.match(rb"(GET|HEAD) (\S+) HTTP", data):
                span = re.search(rb"\r\nrange: (\S+)", data, re.IGNORECASE)
                words = [head[1], head[2].partition(b"?")[0], span[1] if span else b""]
                self.requests.append(b" ".join(words).decode().strip())
            forth.write(data)
            await forth.drain()
        forth.close()

    async def _reply(self, server: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        while data := await server.read(1 << 16):
            if self.cuts:
                self.cuts -= 1
                back.write(data[: self.after])
                with contextlib.suppress(OSError):
                    await back.drain()
                raise ConnectionResetError
            self.received += len(data)
            back.write(data)
            await back.drain()
        back.close()


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    """A proxy before a server that speaks S3."""
    with s3_server() as port:
        made = Proxy(port)
        try:
            yield made
        finally:
            close_clients()
            made.close()


@pytest.fixture(scope="module")
def options(proxy: Proxy) -> dict[str, Any]:
    """fsspec's options for the server, behind the proxy; the client library itself tries once."""
    return {
        "key": KEY,
        "secret": SECRET,
        "token": TOKEN,
        "client_kwargs": {"endpoint_url": proxy.url},
        "config_kwargs": {"retries": {"max_attempts": 0}},
    }


@pytest.fixture(scope="module")
def bucket(options: dict[str, Any]) -> str:
    S3FileSystem(**options).mkdir("dew")
    return "s3://dew"


@pytest.fixture
def url(bucket: str) -> str:
    """A place of its own."""
    return f"{bucket}/{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def remote(bucket: str, options: dict[str, Any], documents: Documents) -> str:
    """A corpus of `documents` in a few shards. Not to be changed."""
    write_corpus(documents, f"{bucket}/corpus", vocab_size=1000, shard_tokens=1000, options=options)
    return f"{bucket}/corpus"


@pytest.fixture
def fragile(url: str, options: dict[str, Any]) -> str:
    """A corpus of three small shards, for a test to damage."""
    write_corpus([[1, 2, 3], [4, 5, 6], [7, 8]], url, vocab_size=9, shard_tokens=3, options=options)
    return url


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "_FIRST_DELAY", 0.001)
    monkeypatch.setattr(S3FileSystem, "retries", 1)  # so that it is Dew who tries again


def batches(dataset: Dataset, steps: int = 8) -> list[Any]:
    with dataset.train(DataPartition()) as stream:
        return [next(stream)["text"] for _ in range(steps)]


class TestReading:
    def test_a_corpus_is_written_and_read_back(
        self, remote: str, options: dict[str, Any], stream: np.ndarray[Any, Any], documents: Documents
    ) -> None:
        corpus = TokenCorpus(remote, options=options)
        np.testing.assert_array_equal(corpus.read(0, corpus.tokens), stream)
        assert np.diff(corpus.offsets).tolist() == [len(document) for document in documents]
        assert verify_corpus(remote, options=options).id == corpus.id

    def test_a_window_is_one_exact_range(self, url: str, options: dict[str, Any], proxy: Proxy) -> None:
        write_corpus([range(60000)] * 20, f"{url}/large", vocab_size=60000, options=options)
        corpus = TokenCorpus(f"{url}/large", options=options)
        corpus.gather([0], 10)  # looks at size and header once
        proxy.take()
        before = proxy.received
        assert corpus.gather([500_000], 2049).tolist() == [[(500_000 + i) % 60000 for i in range(2049)]]
        (request,) = proxy.take()
        assert request.endswith(
            f"/large/shard-00000.tokens.npy bytes={128 + 1_000_000}-{128 + 1_000_000 + 2 * 2049 - 1}"
        )
        assert proxy.received - before < 2 * 2049 + 2000

    def test_streams_equal_local_ones_and_resume(
        self, remote: str, options: dict[str, Any], corpus_path: Path, documents: Documents, tmp_path: Path
    ) -> None:
        write_corpus(documents, tmp_path / "local", vocab_size=1000, shard_tokens=1000)
        local = TokenWindows(str(tmp_path / "local"), seq_len=32, val=0.1, loading=FAST).load(batch=6)
        there = TokenWindows(remote, seq_len=32, val=0.1, storage_options=options, loading=FAST).load(batch=6)
        for expected, found in zip(batches(local), batches(there), strict=True):
            np.testing.assert_array_equal(found, expected)
        with local.train(DataPartition()) as stream:
            for _ in range(5):
                next(stream)
            state, expected = stream.get_state(), next(stream)["text"]  # type: ignore[attr-defined]
        for index in range(2):
            with there.train(DataPartition(index, 2)) as share:
                share.set_state(state)  # type: ignore[attr-defined]
                np.testing.assert_array_equal(next(share)["text"], expected[index::2])

    def test_worker_processes_read_too(self, remote: str, options: dict[str, Any]) -> None:
        plain = load(
            f"tokens/{remote}", batch=6, options=TokenOptions(seq_len=32, storage_options=options), loading=FAST
        )
        spread = load(
            f"tokens/{remote}",
            batch=6,
            options=TokenOptions(seq_len=32, storage_options=options),
            loading=Loading(workers=1),
        )
        np.testing.assert_array_equal(batches(spread, 4), batches(plain, 4))

    def test_packed_documents(self, remote: str, options: dict[str, Any], corpus_path: Path, tmp_path: Path) -> None:
        there = PackedDocuments(remote, seq_len=64, storage_options=options, plans=str(tmp_path), loading=FAST)
        here = PackedDocuments(str(corpus_path), seq_len=64, loading=FAST)
        np.testing.assert_array_equal(batches(there.load(batch=4)), batches(here.load(batch=4)))

    def test_megatron_and_bare_files(
        self, url: str, options: dict[str, Any], megatron: Callable[..., Path], tmp_path: Path
    ) -> None:
        storage = Storage(f"{url}/foreign", options=options)
        for number in (2, 10):
            path = megatron(tmp_path / f"part{number}", [[[number, 1]], [[number, 2, 3]]], 4)
            for file in (path, path.with_suffix(".idx")):
                storage.write(f"megatron/{file.name}", file.read_bytes())
            storage.write(f"bare/train_{number}.bin", np.array([number] * 4, "<u4").tobytes())
        storage.write("bare/val.bin", np.array([7] * 4, "<u4").tobytes())
        access = CorpusOptions(storage_options=options)
        for name in ("megatron", "megatron/part*.bin"):
            corpus = open_corpus(f"{url}/foreign/{name}", options=access)
            assert corpus.read(0, 10).tolist() == [2, 1, 2, 2, 3, 10, 1, 10, 2, 3]
            assert corpus.offsets.tolist() == [0, 2, 5, 7, 10]
        for name in ("part10", "part10.bin", "part10.idx"):
            assert open_corpus(f"{url}/foreign/megatron/{name}", options=access).read(0, 2).tolist() == [10, 1]
        access = CorpusOptions(storage_options=options, dtype="uint32")
        assert open_corpus(f"{url}/foreign/bare", options=access).read(0, 8).tolist() == [2] * 4 + [10] * 4
        assert open_corpus(f"{url}/foreign/bare", "val", access).read(0, 4).tolist() == [7] * 4


class TestFaults:
    @pytest.mark.parametrize("after", [0, 10, 400])
    def test_dropped_connections_are_outlived(
        self, remote: str, options: dict[str, Any], proxy: Proxy, stream: np.ndarray[Any, Any], after: int
    ) -> None:
        corpus = TokenCorpus(remote, options=options)
        expected = corpus.read(0, 900)
        proxy.cuts, proxy.after = 3, after
        np.testing.assert_array_equal(corpus.read(0, 900), expected)
        np.testing.assert_array_equal(expected, stream[:900])
        assert proxy.cuts == 0

    def test_dropped_to_the_end(self, remote: str, options: dict[str, Any], proxy: Proxy) -> None:
        storage = Storage(remote, options=options, retries=1)
        corpus = TokenCorpus(storage)
        corpus.read(0, 10)
        proxy.cuts = 10**9
        with pytest.raises(
            StorageError, match=rf"{remote}/shard-00000\.tokens\.npy could not be read in 2 tries"
        ) as caught:
            corpus.read(0, 900)
        assert_hidden(caught.value)
        proxy.cuts = 0
        assert len(corpus.read(0, 900)) == 900

    def test_a_missing_object_is_named(self, fragile: str, options: dict[str, Any]) -> None:
        S3FileSystem(**options).rm(f"{fragile}/shard-00002.tokens.npy")
        corpus = TokenCorpus(fragile, options=options)
        match = rf"{fragile}/shard-00002\.tokens\.npy is missing, the manifest lists it with \d+ bytes"
        with pytest.raises(DamagedSourceError, match=match) as caught:
            corpus.read(0, corpus.tokens)
        assert_hidden(caught.value)

    def test_a_cut_object_is_refused(self, fragile: str, options: dict[str, Any]) -> None:
        storage = Storage(fragile, options=options)
        storage.write("shard-00001.tokens.npy", storage.read("shard-00001.tokens.npy")[:-2])
        corpus = TokenCorpus(fragile, options=options)
        with pytest.raises(
            DamagedSourceError, match=r"shard-00001\.tokens\.npy has \d+ bytes, the manifest states \d+"
        ):
            corpus.read(0, corpus.tokens)

    def test_missing_corpora_and_buckets(self, url: str, options: dict[str, Any]) -> None:
        for place in (f"{url}/nowhere", "s3://no-such-bucket/corpus", f"{url}/nowhere.bin"):
            with pytest.raises(SourceNotFoundError, match=f"no token corpus at {place}") as caught:
                load(f"tokens/{place}", batch=1, options=TokenOptions(seq_len=4, storage_options=options))
            assert_hidden(caught.value)

    def test_nobody_listens(self, options: dict[str, Any]) -> None:
        wrong = {**options, "client_kwargs": {"endpoint_url": "http://127.0.0.1:1"}}
        storage = Storage("s3://bucket/corpus", options=wrong, retries=1)
        with pytest.raises(
            StorageError, match=r"s3://bucket/corpus/manifest\.json could not be looked up in 2 tries"
        ) as caught:
            TokenCorpus(storage)
        assert_hidden(caught.value)

    def test_credentials_are_in_nothing_that_is_shown(
        self, remote: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "dew"):
            wishes = TokenOptions(seq_len=32, storage_options=options)
            dataset = load(f"tokens/{remote}", batch=6, options=wishes)
            with dataset.train(DataPartition()) as stream:
                next(stream)
                shown = [repr(wishes), repr(dataset), repr(stream), repr(stream.get_state())]  # type: ignore[attr-defined]
        corpus = TokenCorpus(remote, options=options)
        shown += [repr(corpus), repr(corpus._storage), repr(WindowSource(corpus, seq_len=4)), *caplog.messages]
        shown.append(repr(TokenWindows(remote, seq_len=4, storage_options=options)))
        assert not [text for text in shown if any(secret in text for secret in (KEY, SECRET, TOKEN))]
        with pytest.raises(SourceError, match=r"one window of seq_len 99999 takes") as caught:
            TokenWindows(remote, seq_len=99999, storage_options=options).load(batch=1)
        assert_hidden(caught.value)


class TestCache:
    def test_the_second_epoch_asks_for_nothing(
        self, remote: str, options: dict[str, Any], proxy: Proxy, tmp_path: Path
    ) -> None:
        wishes = {"storage_options": options, "seq_len": 32, "loading": FAST}
        plain = TokenWindows(remote, **wishes).load(batch=6)
        cache = BlockCache(tmp_path / "cache", block=MIB, size=64 * MIB)
        kept = TokenWindows(remote, **wishes, cache=cache).load(batch=6)
        steps = 2 * plain.records // 6  # type: ignore[operator]
        proxy.take()
        found = batches(kept, steps)
        asked = [request for request in proxy.take() if re.match(r"GET .*\.tokens\.npy bytes=0-", request)]
        assert len(asked) == len(TokenCorpus(remote, options=options).manifest.shards)  # each shard is one block
        np.testing.assert_array_equal(found, batches(plain, steps))
        with kept.train(DataPartition()) as stream:
            state = stream.get_state()  # type: ignore[attr-defined]
        with plain.train(DataPartition()) as stream:
            assert stream.get_state() == state  # type: ignore[attr-defined]
        proxy.take()
        batches(kept, steps)
        assert [request for request in proxy.take() if request.startswith("GET")] == []

    def test_worker_processes_share_it(
        self, remote: str, options: dict[str, Any], proxy: Proxy, tmp_path: Path
    ) -> None:
        cache = BlockCache(tmp_path / "cache", block=MIB, size=64 * MIB)
        wishes = TokenOptions(seq_len=32, storage_options=options, cache=cache)
        first = batches(load(f"tokens/{remote}", batch=6, options=wishes, loading=Loading(workers=1)), 100)
        proxy.take()
        second = batches(load(f"tokens/{remote}", batch=6, options=wishes, loading=FAST), 100)
        np.testing.assert_array_equal(first, second)
        assert [request for request in proxy.take() if request.startswith("GET")] == []

    def test_verification_reads_the_store_not_the_cache(
        self, fragile: str, options: dict[str, Any], tmp_path: Path
    ) -> None:
        cached = Storage(fragile, options=options, cache=BlockCache(tmp_path / "cache", block=MIB, size=64 * MIB))
        assert TokenCorpus(cached).read(0, 8).size == 8
        data = bytearray(cached.read("shard-00000.tokens.npy"))
        data[130] ^= 1
        Storage(fragile, options=options).write("shard-00000.tokens.npy", bytes(data))
        with pytest.raises(DamagedSourceError, match=r"shard-00000\.tokens\.npy has the sha256"):
            verify_corpus(cached)

    def test_a_corpus_written_anew_is_seen(self, url: str, options: dict[str, Any], tmp_path: Path) -> None:
        storage = Storage(f"{url}/c", options=options, cache=BlockCache(tmp_path / "cache", block=MIB, size=64 * MIB))
        for first in (1, 2):
            write_corpus([[first, 5, 6]], tmp_path / str(first), vocab_size=9)
            for file in (tmp_path / str(first)).iterdir():
                storage.write(file.name, file.read_bytes())
            assert TokenCorpus(storage).read(0, 3).tolist() == [first, 5, 6]


class TestRemoteSource(SourceSuite):
    @pytest.fixture(autouse=True)
    def _place(self, remote: str, options: dict[str, Any]) -> None:
        self.location, self.options = remote, options

    def make_source(self) -> RecordSource:
        return WindowSource(TokenCorpus(self.location or "", options=self.options), seq_len=16)


@pytest.mark.nightly
class TestRemoteStream(StreamSuite):
    @pytest.fixture(autouse=True)
    def _place(self, remote: str, options: dict[str, Any], tmp_path: Path) -> None:
        cache = BlockCache(tmp_path / "cache", block=MIB, size=64 * MIB)
        self.path, self.options = remote, TokenOptions(seq_len=40, val=0.2, storage_options=options, cache=cache)

    def make_dataset(self) -> Dataset:
        return load(f"tokens/{self.path}", batch=12, options=self.options, seed=5)


def assert_hidden(error: BaseException) -> None:
    """No credential in anything that a traceback shows, notes and causes included."""
    shown = "".join(traceback.format_exception(error)) + repr(error)
    assert not [secret for secret in (KEY, SECRET, TOKEN) if secret in shown]
