"""The block cache: what it keeps is what is stored, whatever crashes, is full, is damaged, or is removed meanwhile."""

import functools
import hashlib
import http.server
import itertools
import logging
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.asyn import sync
from fsspec.implementations.http import HTTPFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dew.data import storage as storage_module
from dew.data.cache import BlockCache, place_of
from dew.data.errors import DamagedSourceError, OptionsError, OptionsTypeError, SourceNotFoundError, StorageError
from dew.data.storage import Storage

MIB = 1 << 20


def content(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


class Server(http.server.ThreadingHTTPServer):
    """Objects in memory with ETags and ranges; notes every request for content, and fails on demand."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.tags = True
        self.asked: list[str] = []
        self.failing = False
        self.arrived = threading.Event()
        self.wait: threading.Event | None = None  # requests for content wait for it

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data"

    def take(self) -> list[str]:
        """What was asked for since the last time, as `name start-stop`."""
        asked, self.asked = self.asked, []
        return asked


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10
    server: Server

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        name = self.path.rpartition("/")[2]
        data = self.server.objects.get(name)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, stop = (int(asked[1]), int(asked[2]) + 1) if asked else (0, len(data or b""))
        if body:
            self.server.asked.append(f"{name} {start}-{stop}")
            self.server.arrived.set()
            if self.server.wait is not None:
                self.server.wait.wait(10)
        failed = self.server.failing and body
        self.send_response(503 if failed else 404 if data is None else 206 if asked else 200)
        part = b"" if failed or data is None else data[start:stop]
        if data is not None and self.server.tags:
            self.send_header("ETag", hashlib.sha256(data).hexdigest()[:16])
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if body:
            self.wfile.write(part)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=functools.partial(made.serve_forever, poll_interval=0.01))
        thread.start()
        try:
            yield made
        finally:
            for files in list(HTTPFileSystem._cache.values()):
                if files._session is not None:
                    sync(files.loop, files._session.close)
            HTTPFileSystem.clear_instance_cache()
            made.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_module, "_FIRST_DELAY", 0.001)


@pytest.fixture
def cache(tmp_path: Path) -> BlockCache:
    return BlockCache(tmp_path / "cache", block=MIB, size=64 * MIB)


@pytest.fixture
def storage(server: Server, cache: BlockCache) -> Storage:
    """A storage with a file `a` of 3.5 MiB, read through the cache."""
    server.objects["a"] = content(7 * MIB // 2)
    return Storage(server.url, cache=cache, retries=1)


def blocks(cache: BlockCache) -> list[Path]:
    return sorted(path for path in Path(cache.directory).rglob("*") if path.is_file())


class TestReading:
    def test_what_was_read_is_not_asked_for_again(self, server: Server, storage: Storage, cache: BlockCache) -> None:
        data = server.objects["a"]
        assert storage.read_range("a", 10, 20) == data[10:20]
        assert server.take() == [f"a 0-{MIB}"]
        assert storage.read_range("a", 0, MIB) == data[:MIB]
        assert Storage(server.url, cache=cache).read_range("a", MIB - 1, MIB) == data[MIB - 1 : MIB]
        assert server.take() == []

    def test_only_missing_blocks_are_asked_for_and_neighbours_at_once(self, server: Server, storage: Storage) -> None:
        data = server.objects["a"]
        storage.read_range("a", MIB, MIB + 1)
        server.take()
        assert storage.read_range("a", 5, len(data)) == data[5:]
        assert server.take() == [f"a 0-{MIB}", f"a {2 * MIB}-{len(data)}"]
        assert storage.read_range("a", 0, len(data)) == storage.read("a") == data
        assert server.take() == []

    def test_a_file_smaller_than_a_block(self, server: Server, storage: Storage) -> None:
        server.objects |= {"small": b"abc", "empty": b""}
        assert storage.read("small") == b"abc"
        assert storage.read_range("small", 1, 3) == b"bc"
        assert server.take() == ["small 0-3"]
        assert storage.read("empty") == b""

    def test_a_range_past_the_end_is_refused(self, server: Server, storage: Storage) -> None:
        size = len(server.objects["a"])
        storage.read("a")
        with pytest.raises(
            DamagedSourceError, match=rf"/data/a is cut: 20 bytes, {size - 10} to {size + 10}, .* 10 of"
        ):
            storage.read_range("a", size - 10, size + 10)

    def test_a_missing_file_is_named(self, server: Server, storage: Storage) -> None:
        with pytest.raises(SourceNotFoundError, match=re.escape(f"nothing is stored at {server.url}/none")):
            storage.read_range("none", 0, 1)
        with pytest.raises(SourceNotFoundError, match=re.escape(f"nothing is stored at {server.url}/none")):
            storage.read("none")

    def test_faults_are_those_of_the_storage_and_nothing_is_kept(
        self, server: Server, storage: Storage, cache: BlockCache
    ) -> None:
        server.failing = True
        with pytest.raises(StorageError, match=r"/data/a could not be read in 2 tries"):
            storage.read_range("a", 0, 1)
        assert blocks(cache) == []
        server.failing = False
        assert storage.read_range("a", 0, 1) == server.objects["a"][:1]

    def test_threads_that_want_one_block_ask_once(self, server: Server, storage: Storage) -> None:
        storage.size("a")
        server.wait = threading.Event()
        with ThreadPoolExecutor(8) as pool:
            reads = [pool.submit(storage.read_range, "a", i, i + 10) for i in range(8)]
            server.arrived.wait(10)
            server.wait.set()
            assert [read.result() for read in reads] == [server.objects["a"][i : i + 10] for i in range(8)]
        assert server.take() == [f"a 0-{MIB}"]

    def test_a_fault_reaches_every_thread_that_waits(self, server: Server, storage: Storage) -> None:
        storage.size("a")
        server.wait, server.failing = threading.Event(), True
        with ThreadPoolExecutor(4) as pool:
            reads = [pool.submit(storage.read_range, "a", 0, 10) for _ in range(4)]
            server.arrived.wait(10)
            server.wait.set()
            for read in reads:
                with pytest.raises(StorageError, match="could not be read in 2 tries"):
                    read.result()
        server.failing = False
        assert storage.read_range("a", 0, 10) == server.objects["a"][:10]

    def test_local_files_are_not_copied(self, tmp_path: Path, cache: BlockCache) -> None:
        (tmp_path / "file").write_bytes(b"bytes")
        local = Storage(str(tmp_path), cache=cache)
        assert (local.read("file"), local.read_range("file", 1, 3), local.size("file")) == (b"bytes", b"yt", 5)
        assert blocks(cache) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_a_range_is_a_slice(server: Server, storage: Storage, data: st.DataObject) -> None:
    whole = server.objects["a"]
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert storage.read_range("a", start, stop) == whole[start:stop]


class TestVersions:
    def test_another_file_under_the_name_is_seen(self, server: Server, storage: Storage, cache: BlockCache) -> None:
        old, new = server.objects["a"], content(len(server.objects["a"]), seed=1)
        assert storage.read("a") == old
        server.objects["a"] = new
        assert storage.read("a") == new
        server.objects["a"] = old
        assert storage.size("a") == len(old)  # looks again
        assert storage.read_range("a", 0, 9) == old[:9]
        assert storage.read("a") == old

    def test_without_versions_whole_files_are_read_anew(self, server: Server, storage: Storage) -> None:
        server.tags = False
        for data in (b"one", b"two"):
            server.objects["manifest"] = data
            assert storage.read("manifest") == data
        assert storage.read_range("a", 0, 9) == storage.read_range("a", 0, 9) == server.objects["a"][:9]
        assert server.take()[2:] == [f"a 0-{MIB}"]

    def test_a_file_that_grew(self, server: Server, storage: Storage) -> None:
        storage.read("a")
        server.objects["a"] += b"more"
        size = len(server.objects["a"])
        assert storage.read_range("a", size - 4, size) == b"more"

    def test_place_is_where_and_not_who(self) -> None:
        options = {"key": "me", "client_kwargs": {"endpoint_url": "http://here", "aws_secret_access_key": "x"}}
        other = {"key": "you", "client_kwargs": {"endpoint_url": "http://here", "aws_secret_access_key": "y"}}
        there = {"key": "me", "client_kwargs": {"endpoint_url": "http://there", "aws_secret_access_key": "x"}}
        assert place_of("s3://b/n", options) == place_of("s3://b/n", other)
        assert len({place_of("s3://b/n", options), place_of("s3://b/n", there), place_of("s3://b/m", options)}) == 3
        assert "me" not in place_of("s3://b/n", {**options, "hook": object(), "flags": [1, None]}).split('"')

    def test_what_was_written_is_read(self, cache: BlockCache) -> None:
        files = fsspec.filesystem("memory")
        storage = Storage("memory://dew-cache-written", cache=cache)
        for data in (b"one", b"two", b"three"):
            storage.write("a", data)
            assert storage.read_range("a", 0, 3) == data[:3]
            assert storage.read("a") == data
        files.rm("/dew-cache-written", recursive=True)

    def test_a_file_has_one_place_however_it_is_reached(self, server: Server, cache: BlockCache) -> None:
        server.objects["a"] = content(100)
        base = server.url.removesuffix("/data")
        for storage, name in ((Storage(server.url, cache=cache), "a"), (Storage(base, cache=cache), "data/a")):
            assert storage.read_range(name, 0, 9) == server.objects["a"][:9]
        assert Storage(base + "/", cache=cache).child("data").read("a") == server.objects["a"]
        assert server.take() == ["a 0-100"]


class TestDamage:
    @pytest.mark.parametrize("damage", ["cut", "longer", "flipped", "emptied", "folder"])
    def test_a_damaged_block_is_fetched_again(
        self, server: Server, storage: Storage, cache: BlockCache, damage: str
    ) -> None:
        code = (
            "import sys; from dew.data.cache import BlockCache; from dew.data.storage import Storage\n"
            f"Storage(sys.argv[1], cache=BlockCache(sys.argv[2], block={MIB})).read_range('a', 0, 1)"
        )
        subprocess.run([sys.executable, "-c", code, server.url, cache.directory], check=True)  # not verified by us
        (block,) = blocks(cache)
        data = block.read_bytes()
        if damage == "folder":
            block.unlink()
            block.mkdir()
        else:
            middle = bytes([data[100] ^ 1])
            block.write_bytes(
                {"cut": data[:-1], "longer": data + b"x", "flipped": data[:100] + middle + data[101:], "emptied": b""}[
                    damage
                ]
            )
        server.take()
        for _ in range(2):
            assert storage.read_range("a", 90, 110) == server.objects["a"][90:110]
        assert server.take() == [f"a 0-{MIB}"] * (2 if damage == "folder" else 1)
        assert damage == "folder" or block.read_bytes() == data

    def test_a_killed_writer_leaves_no_block(self, server: Server, storage: Storage, cache: BlockCache) -> None:
        code = (
            "import os, signal, sys; from dew.data import cache; from dew.data.storage import Storage\n"
            "def half(write, data):\n"
            "    write(data[:len(data) // 2]); os.kill(os.getpid(), signal.SIGKILL)\n"
            "cache._write_all = half\n"
            f"Storage(sys.argv[1], cache=cache.BlockCache(sys.argv[2], block={MIB})).read_range('a', 0, 1)"
        )
        killed = subprocess.run([sys.executable, "-c", code, server.url, cache.directory], check=False)
        assert killed.returncode == -signal.SIGKILL
        (left,) = blocks(cache)
        assert left.name.startswith(".dew-tmp-")
        assert left.stat().st_size == MIB // 2
        server.take()
        assert storage.read_range("a", 0, 9) == server.objects["a"][:9]
        assert server.take() == [f"a 0-{MIB}"]
        assert left.exists()  # its writer might live
        os.utime(left, (0, 0))
        storage.read_range("a", MIB, MIB + 1)
        assert not left.exists()

    def test_blocks_that_vanish_are_fetched_again(self, server: Server, storage: Storage, cache: BlockCache) -> None:
        whole, stop = server.objects["a"], threading.Event()

        def clear() -> None:
            while not stop.is_set():
                shutil.rmtree(cache.directory, ignore_errors=True)

        with ThreadPoolExecutor(4) as pool:
            clearing = pool.submit(clear)
            starts = range(0, len(whole) - MIB, MIB // 16)
            reads = [pool.submit(storage.read_range, "a", start, start + MIB) for start in starts]
            found = [read.result() for read in reads]
            stop.set()
            clearing.result()
        assert found == [whole[start : start + MIB] for start in starts]

    def test_a_disk_that_takes_nothing_costs_no_read(
        self, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.objects["a"] = content(2 * MIB)
        (tmp_path / "file").write_bytes(b"no directory")
        storage = Storage(server.url, cache=BlockCache(tmp_path / "file" / "cache"))
        with caplog.at_level(logging.WARNING, "dew.data.cache"):
            for _ in range(3):
                assert storage.read("a") == server.objects["a"]
        (message,) = caplog.messages
        assert re.search(r"the cache .*/file/cache could not be \w+, reading goes on .*Not a directory", message)

    def test_a_full_disk_costs_no_read_and_leaves_no_half_block(
        self, server: Server, storage: Storage, cache: BlockCache
    ) -> None:
        code = (
            "import hashlib, resource, sys\n"
            "from dew.data.cache import BlockCache; from dew.data.storage import Storage\n"
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({MIB // 2}, {MIB // 2}))\n"
            f"data = Storage(sys.argv[1], cache=BlockCache(sys.argv[2], block={MIB})).read('a')\n"
            "print(hashlib.sha256(data).hexdigest())"
        )
        command = [sys.executable, "-c", code, server.url, cache.directory]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert done.stdout.strip() == hashlib.sha256(server.objects["a"]).hexdigest()
        assert "could not be written" in done.stderr
        assert blocks(cache) == []


class TestBound:
    def test_it_holds_and_the_longest_unused_go_first(self, server: Server, tmp_path: Path) -> None:
        server.objects["big"] = content(12 * MIB)
        cache = BlockCache(tmp_path / "cache", block=MIB, size=4 * MIB + MIB // 2)
        storage = Storage(server.url, cache=cache)
        for number in range(12):
            storage.read_range("big", number * MIB, number * MIB + 9)
            assert sum(path.stat().st_size for path in blocks(cache)) <= cache.size
            for path in blocks(cache):  # as if each step were a day later
                os.utime(path, (path.stat().st_mtime - 86400,) * 2)
            storage.read_range("big", 0, 9)  # block 0 stays in use
        assert server.take().count(f"big 0-{MIB}") == 1
        storage.read_range("big", 5, 9)
        storage.read_range("big", 11 * MIB, 11 * MIB + 9)
        assert server.take() == []
        storage.read_range("big", MIB, MIB + 9)
        assert server.take() == [f"big {MIB}-{2 * MIB}"]

    def test_other_files_in_the_directory_stay(self, server: Server, tmp_path: Path) -> None:
        server.objects["big"] = content(4 * MIB)
        cache = BlockCache(tmp_path, block=MIB, size=MIB)
        (tmp_path / "ab").mkdir()
        others = [tmp_path / "thesis.tex", tmp_path / "ab" / "notes", tmp_path / "ab" / ("0" * 64)]
        for path in others:
            path.write_bytes(b"dear to someone")
            os.utime(path, (0, 0))
        for number in range(4):
            Storage(server.url, cache=cache).read_range("big", number * MIB, number * MIB + 1)
        assert all(path.read_bytes() == b"dear to someone" for path in others)

    def test_processes_share_a_directory(self, server: Server, tmp_path: Path) -> None:
        server.objects["big"] = data = content(16 * MIB)
        (tmp_path / "truth").write_bytes(data)
        code = (
            "import random, sys; from dew.data.cache import BlockCache; from dew.data.storage import Storage\n"
            f"cache = BlockCache(sys.argv[2], block={MIB}, size={8 * MIB}); random.seed(int(sys.argv[4]))\n"
            "truth = open(sys.argv[3], 'rb').read(); storage = Storage(sys.argv[1], cache=cache)\n"
            "for _ in range(120):\n"
            f"    start = random.randrange(len(truth) - {MIB}); stop = start + random.randrange({MIB})\n"
            "    assert storage.read_range('big', start, stop) == truth[start:stop]"
        )
        arguments = [server.url, str(tmp_path / "cache"), str(tmp_path / "truth")]
        processes = [subprocess.Popen([sys.executable, "-c", code, *arguments, str(seed)]) for seed in range(3)]
        assert [process.wait(60) for process in processes] == [0, 0, 0]
        left = blocks(BlockCache(tmp_path / "cache"))
        assert not [path for path in left if path.name.startswith(".dew-tmp-")]
        assert sum(path.stat().st_size for path in left) <= 8 * MIB + 3 * (MIB + 8)

    def test_processes_read_what_another_fetched(self, server: Server, storage: Storage, cache: BlockCache) -> None:
        storage.read("a")
        server.take()
        code = (
            "import sys; from dew.data.cache import BlockCache; from dew.data.storage import Storage\n"
            f"print(len(Storage(sys.argv[1], cache=BlockCache(sys.argv[2], block={MIB})).read('a')))"
        )
        command = [sys.executable, "-c", code, server.url, cache.directory]
        assert int(subprocess.run(command, check=True, capture_output=True).stdout) == len(server.objects["a"])
        assert server.take() == []


class TestOptions:
    def test_it_is_a_value(self, storage: Storage, cache: BlockCache, server: Server) -> None:
        copy = pickle.loads(pickle.dumps(storage))
        assert copy == storage
        assert copy.cache == cache
        assert copy.read_range("a", 0, 9) == server.objects["a"][:9]
        assert copy.child("x").cache == cache
        assert str(cache.directory) not in repr(storage)

    def test_sizes(self, tmp_path: Path) -> None:
        for block, wrong in itertools.product((MIB - 1, 8 * MIB + 1), ("block must be from 1048576 to 8388608",)):
            with pytest.raises(OptionsError, match=f"{wrong} bytes .*got {block}"):
                BlockCache(tmp_path, block=block)
        with pytest.raises(OptionsTypeError, match=r"block must be an int, got 1000000\.0"):
            BlockCache(tmp_path, block=1e6)  # type: ignore[arg-type]
        with pytest.raises(OptionsError, match="size must be at least one block of 4194304 bytes, got 5"):
            BlockCache(tmp_path, size=5)
        with pytest.raises(OptionsError, match="size must be at least 1, got 0"):
            BlockCache(tmp_path, size=0)

    @pytest.mark.parametrize("directory", ["", "s3://bucket/cache"])
    def test_the_directory_is_local(self, directory: str) -> None:
        with pytest.raises(OptionsError, match=f"directory must be a path on a local disk, got '{directory}'"):
            BlockCache(directory)
