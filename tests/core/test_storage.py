import contextlib
import errno
import functools
import http.server
import io
import os
import pathlib
import pickle
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
import urllib.parse
import uuid
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.asyn import sync
from fsspec.implementations.http import HTTPFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from dew.data import storage as module
from dew.data.errors import (
    DamagedSourceError,
    OptionsError,
    OptionsTypeError,
    SourceError,
    SourceNotFoundError,
    StorageDeniedError,
    StorageError,
)
from dew.data.storage import Storage

ODD_NAME = "ä b#c?d%20e+f&g.bin"
CONTENT = bytes(range(256)) * 5


class Handler(http.server.BaseHTTPRequestHandler):
    """Files of one directory with ranges, pages of links for its directories, PUT, and faults on demand."""

    protocol_version = "HTTP/1.1"
    timeout = 10
    server: "WebServer"

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        fault = self.server.note(self)
        if fault is not None:
            self.send(int(fault), b"")
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(data)
        self.send(201, b"")

    @property
    def file(self) -> pathlib.Path:
        return self.server.root / urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).strip("/")

    def answer(self, *, body: bool) -> None:
        fault = self.server.note(self)
        folder = urllib.parse.urlsplit(self.path).path.endswith("/")
        if fault is not None and fault.isdigit():
            self.send(int(fault), b"told to", body=body)
        elif self.file.is_dir():
            inside = [urllib.parse.quote(path.name) + "/" * path.is_dir() for path in self.file.iterdir()]
            links = ["../", "?C=N;O=D", "far/away", "http://elsewhere.test/b", *inside]
            page = "".join(f'<a href="{link}">x</a>' for link in links).encode()
            self.send(200, page, {"Content-Type": "text/html"}, body=body)
        elif not self.file.is_file() or folder:
            self.send(404, b"no such file", body=body)
        else:
            self.answer_file(self.file.read_bytes(), fault, body=body)

    def answer_file(self, data: bytes, fault: str | None, *, body: bool) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        status, size = 200, len(data)
        if asked and self.server.ranges:
            start, stop = int(asked[1]), int(asked[2]) + 1
            if start >= size:
                self.send(416, b"", {"Content-Range": f"bytes */{size}"}, body=body)
                return
            status, data = 206, data[start:stop]
        self.send(status, data, {"Content-Type": "application/octet-stream"}, body=body, fault=fault)

    def send(
        self,
        status: int,
        data: bytes,
        headers: dict[str, str] | None = None,
        *,
        body: bool = True,
        fault: str | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if fault == "short" or not self.server.sizes:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data if fault is None else data[: len(data) // 2])
        if fault is not None or not self.server.sizes:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


class WebServer(http.server.ThreadingHTTPServer):
    daemon_threads = False  # so that server_close() waits for them

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = root
        self.ranges = True  # answer them
        self.sizes = True  # tell them
        self.faults: list[str] = []  # "drop" and "short" halve the body; digits are a status
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def note(self, handler: Handler) -> str | None:
        with self.lock:
            self.requests.append((handler.command, handler.path, dict(handler.headers)))
            return self.faults.pop(0) if self.faults else None


def close_sessions() -> None:
    for files in list(HTTPFileSystem._cache.values()):
        if files._session is not None:
            sync(files.loop, files._session.close)
    HTTPFileSystem.clear_instance_cache()


@contextlib.contextmanager
def serving(root: pathlib.Path) -> Iterator[WebServer]:
    root.mkdir(exist_ok=True)
    with WebServer(root) as server:
        thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        try:
            yield server
        finally:
            close_sessions()
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def in_memory() -> Iterator[str]:
    url = f"memory://dew-{uuid.uuid4().hex}"
    try:
        yield url
    finally:
        files = fsspec.filesystem("memory")
        if files.exists(url):
            files.rm(url, recursive=True)


@pytest.fixture
def web(tmp_path: pathlib.Path) -> Iterator[WebServer]:
    with serving(tmp_path / "www") as server:
        yield server


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_DELAY", 0.001)


@pytest.fixture(params=["path", "file", "memory", "web"])
def storage(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Storage]:
    """An empty storage of each kind."""
    with contextlib.ExitStack() as stack:
        if request.param == "path":
            yield Storage(str(tmp_path / "files"))
        elif request.param == "file":
            yield Storage(f"file://{tmp_path}/files/")
        elif request.param == "memory":
            yield Storage(stack.enter_context(in_memory()))
        else:
            yield Storage(stack.enter_context(serving(tmp_path / "www")).url + "/files")


class TestEveryKind:
    def test_what_is_written_is_read_back(self, storage: Storage) -> None:
        storage.write("deep/down/a.bin", CONTENT)
        storage.write("empty", b"")
        assert storage.read("deep/down/a.bin") == CONTENT
        assert storage.read_range("deep/down/a.bin", 3, 700) == CONTENT[3:700]
        assert storage.read_range("deep/down/a.bin", 0, len(CONTENT)) == CONTENT
        assert storage.size("deep/down/a.bin") == len(CONTENT)
        assert storage.read("empty") == b""
        assert storage.size("empty") == 0

    def test_a_second_write_replaces_the_first(self, storage: Storage) -> None:
        storage.write("a", b"first and longer")
        storage.write("a", b"second")
        assert storage.read("a") == b"second"
        assert storage.list() == ["a"]

    def test_listing(self, storage: Storage) -> None:
        for name in ("b", "B", "a10", "a9", "é", "sub/x", "sub/deeper/y"):
            storage.write(name, b"1")
        assert storage.list() == ["B", "a10", "a9", "b", "sub", "é"]
        assert storage.list("sub") == storage.list("./sub//") == ["deeper", "x"]
        assert storage.child("sub").list("deeper") == ["y"]

    def test_what_is_there(self, storage: Storage) -> None:
        storage.write("sub/x", b"12")
        there = {name: (storage.exists(name), storage.is_dir(name)) for name in ("sub", "sub/x", "no", "sub/x/y", "")}
        assert there == {
            "sub": (True, True),
            "sub/x": (True, False),
            "no": (False, False),
            "sub/x/y": (False, False),
            "": (True, True),
        }

    def test_a_child_stands_for_its_directory(self, storage: Storage) -> None:
        storage.child("a").child("b/c").write("x", b"1")
        assert storage.read("a/b/c/x") == b"1"
        assert storage.child("") == storage
        assert storage.child("a").local == storage.local

    def test_odd_names_are_names(self, storage: Storage) -> None:
        storage.write(f"sub/{ODD_NAME}", CONTENT)
        assert storage.list("sub") == [ODD_NAME]
        assert storage.size(f"sub/{ODD_NAME}") == len(CONTENT)
        assert storage.child("sub").read_range(ODD_NAME, 1, 5) == CONTENT[1:5]

    def test_missing_names_the_full_location(self, storage: Storage, tmp_path: pathlib.Path) -> None:
        where = re.escape(str(tmp_path / "files" / "sub" / "no") if storage.local else f"{storage.url}/sub/no")
        with pytest.raises(SourceNotFoundError, match=f"nothing is stored at {where}; check the path"):
            storage.read("sub/no")
        with pytest.raises(FileNotFoundError, match=where):
            storage.child("sub").read_range("no", 0, 1)
        with pytest.raises(SourceNotFoundError, match=where):
            storage.size("sub/no")
        with pytest.raises(SourceNotFoundError, match=where):
            storage.list("sub/no")

    def test_a_range_past_the_end_is_refused(self, storage: Storage) -> None:
        storage.write("a.bin", CONTENT)
        with pytest.raises(
            DamagedSourceError,
            match=r"a\.bin is cut: 100 bytes, 1250 to 1350, were asked for and 30 of them found, since it holds 1280 ",
        ):
            storage.read_range("a.bin", 1250, 1350)
        with pytest.raises(DamagedSourceError, match="10 bytes, 2000 to 2010, were asked for and 0 of them found"):
            storage.read_range("a.bin", 2000, 2010)

    def test_an_empty_range_asks_for_nothing(self, storage: Storage) -> None:
        assert storage.read_range("not-even-there", 7, 7) == b""

    @pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a/..", "..", "a\0b"])
    def test_names_stay_inside(self, storage: Storage, name: str) -> None:
        calls = (storage.exists, storage.is_dir, storage.size, storage.list, storage.read, storage.child, storage.path)
        for call in calls if storage.local else calls[:-1]:
            with pytest.raises(OptionsError, match=re.escape(f"name {name!r} leads out of ")):
                call(name)
        with pytest.raises(OptionsError, match="use a relative name without"):
            storage.read_range(name, 0, 1)
        with pytest.raises(OptionsError, match="use a relative name without"):
            storage.write(name, b"")

    @pytest.mark.parametrize("name", ["", ".", "./"])
    def test_a_file_needs_a_name(self, storage: Storage, name: str) -> None:
        for call in (storage.read, storage.size, lambda name: storage.write(name, b"")):
            with pytest.raises(OptionsError, match=f"a file in .* was asked for, got the name {name!r}"):
                call(name)

    def test_offsets_are_checked(self, storage: Storage) -> None:
        storage.write("a", CONTENT)
        with pytest.raises(OptionsError, match="start must be at least 0, got -1"):
            storage.read_range("a", -1, 3)
        with pytest.raises(OptionsError, match="stop must be at least 5, got 4"):
            storage.read_range("a", 5, 4)
        with pytest.raises(OptionsTypeError, match=r"start must be an int, got 1\.0"):
            storage.read_range("a", 1.0, 3)  # type: ignore[arg-type]
        assert storage.read_range("a", np.int64(2), np.uint64(9)) == CONTENT[2:9]  # type: ignore[arg-type]

    def test_threads_share_one_storage(self, storage: Storage) -> None:
        content = random.Random(7).randbytes(200_000)
        storage.write("a", content)
        spans = [(at, at + 1 + at % 977) for at in range(0, 190_000, 1900)]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda span: storage.read_range("a", *span), spans))
        assert found == [content[start:stop] for start, stop in spans]

    def test_pickles_and_compares_by_value(self, storage: Storage) -> None:
        storage.write("a", b"1")
        copy = pickle.loads(pickle.dumps(storage))
        assert copy == storage
        assert hash(copy) == hash(storage)
        assert copy.read("a") == b"1"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Storage]]:
    root = tmp_path_factory.mktemp("ranges")
    with in_memory() as url, serving(root / "www") as server:
        storages = [Storage(str(root / "files")), Storage(url), Storage(server.url)]
        for storage in storages:
            storage.write("a.bin", CONTENT)
        yield storages


@given(start=st.integers(0, len(CONTENT) + 20), length=st.integers(1, len(CONTENT) + 20))
@settings(max_examples=60, deadline=None)
def test_a_range_is_a_slice_or_a_refusal(stored: list[Storage], start: int, length: int) -> None:
    for storage in stored:
        if start + length <= len(CONTENT):
            assert storage.read_range("a.bin", start, start + length) == CONTENT[start : start + length]
        else:
            found = max(0, len(CONTENT) - start)
            with pytest.raises(DamagedSourceError, match=f" {length} bytes, .* asked for and {found} of them found"):
                storage.read_range("a.bin", start, start + length)


class TestLocal:
    def test_paths(self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert Storage(str(tmp_path)).path() == tmp_path
        assert Storage(f"file://{tmp_path}").path("a/b") == tmp_path / "a" / "b"
        assert Storage(f"local://{tmp_path}").local
        assert Storage(tmp_path).path("a") == tmp_path / "a"  # type: ignore[arg-type]
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SourceNotFoundError, match=re.escape(str(tmp_path / "here" / "x"))):
            Storage("here").read("x")

    def test_a_directory_must_be_named(self) -> None:
        with pytest.raises(OptionsError, match="must name a directory, got ''"):
            Storage("")

    def test_retries_are_a_count(self) -> None:
        with pytest.raises(OptionsError, match="retries must be at least 0, got -1"):
            Storage("x", retries=-1)

    def test_files_and_directories_are_told_apart(self, tmp_path: pathlib.Path) -> None:
        storage = Storage(str(tmp_path))
        storage.write("folder/file", b"1")
        for call in (storage.read, storage.size, lambda name: storage.write(name, b"")):
            with pytest.raises(SourceError, match=f"{tmp_path}/folder is a directory, and a file was asked for"):
                call("folder")
        with pytest.raises(SourceNotFoundError, match=f"no directory at {tmp_path}/folder/file: it, or a part"):
            storage.list("folder/file")
        with pytest.raises(StorageError, match=f"{tmp_path}/folder/file/x could not be written: FileExistsError"):
            storage.write("folder/file/x", b"")

    def test_an_absurd_range_takes_no_memory(self, tmp_path: pathlib.Path) -> None:
        storage = Storage(str(tmp_path))
        storage.write("a", b"123")
        with pytest.raises(DamagedSourceError, match="3 of them found"):
            storage.read_range("a", 0, 1 << 60)

    def test_only_bytes_are_written(self, tmp_path: pathlib.Path) -> None:
        storage = Storage(str(tmp_path))
        with pytest.raises(StorageError, match="a could not be written: TypeError: a bytes-like object is required"):
            storage.write("a", "text")  # type: ignore[arg-type]
        assert os.listdir(tmp_path) == []

    def test_a_failed_write_leaves_nothing(self, tmp_path: pathlib.Path) -> None:
        storage = Storage(str(tmp_path))
        (tmp_path / "folder").mkdir()
        with pytest.raises(SourceError, match="is a directory"):
            storage.write("folder", b"1")
        assert os.listdir(tmp_path) == ["folder"]

    def test_a_written_file_has_the_mode_of_any_new_file(self, tmp_path: pathlib.Path) -> None:
        (tmp_path / "plain").write_bytes(b"")
        Storage(str(tmp_path)).write("ours", b"")
        assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode

    def test_bytes_are_on_disk_before_the_name_and_the_name_before_the_return(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events: list[str] = []
        real_sync, real_replace = os.fsync, os.replace

        def fsync(descriptor: int) -> None:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            events.append("sync " + ("file" if pathlib.Path(target).is_file() else os.path.relpath(target, tmp_path)))
            real_sync(descriptor)

        def replace(source: Any, target: Any) -> None:
            events.append("rename")
            real_replace(source, target)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", replace)
        Storage(str(tmp_path)).write("new/deep/a", b"1")
        assert sorted(events[:2]) == ["sync .", "sync new"]  # the folders made on the way
        assert events[2:] == ["sync file", "rename", "sync new/deep"]

    def test_a_large_file_is_written_beside_its_name_and_adopted(self, tmp_path: pathlib.Path) -> None:
        storage = Storage(str(tmp_path / "new"))
        path = storage.unfinished("deep/a")
        path.write_bytes(b"12")
        assert path.parent == tmp_path / "new" / "deep"
        assert storage.list("deep") == []
        storage.adopt("deep/a", path)
        assert os.listdir(path.parent) == ["a"]
        assert storage.read("deep/a") == b"12"

    def test_a_killed_writer_leaves_a_whole_file(self, tmp_path: pathlib.Path) -> None:
        script = (
            "import sys\nfrom dew.data.storage import Storage\n"
            "storage = Storage(sys.argv[1])\nversions = [bytes([n]) * 3_000_000 for n in (1, 2)]\n"
            "storage.write('f', versions[0])\nprint('ready', flush=True)\n"
            "while True:\n    for version in versions:\n        storage.write('f', version)\n"
        )
        storage = Storage(str(tmp_path))
        whole = {bytes([n]) * 3_000_000 for n in (1, 2)}
        for _ in range(3):
            with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as child:
                assert child.stdout is not None
                assert child.stdout.readline() == b"ready\n"
                for _ in range(10):
                    assert storage.read("f") in whole
                child.send_signal(signal.SIGKILL)
            assert storage.read("f") in whole
            assert storage.list() == ["f"]

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_forbidden_file(self, tmp_path: pathlib.Path) -> None:
        storage = Storage(str(tmp_path))
        storage.write("a", b"1")
        (tmp_path / "a").chmod(0)
        with pytest.raises(StorageDeniedError, match=f"{tmp_path}/a may not be read: PermissionError"):
            storage.read("a")

    def test_fsspec_is_not_imported(self, tmp_path: pathlib.Path) -> None:
        script = (
            "import pickle, sys\nfrom dew.data.storage import Storage\n"
            "storage = Storage(sys.argv[1])\nstorage.write('a/b', b'12345')\n"
            "assert storage.read_range('a/b', 1, 3) == b'23' and storage.read('a/b') == b'12345'\n"
            "assert storage.list() == ['a'] and storage.is_dir('a') and storage.size('a/b') == 5\n"
            "assert storage.child('a').exists('b')\n"
            "remote = Storage('s3://bucket/data', options={'key': 'k'})\n"
            "assert pickle.loads(pickle.dumps(remote.child('x'))).path() is None and repr(remote)\n"
            "heavy = {'fsspec', 'aiohttp', 'jax', 'grain', 'importlib.metadata'} & set(sys.modules)\n"
            "assert not heavy, heavy\n"
        )
        subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)


class TestWeb:
    @pytest.mark.parametrize("fault", ["drop", "short", "503", "500", "429"])
    def test_faults_that_pass_are_outlived(self, web: WebServer, fault: str) -> None:
        storage = Storage(web.url, retries=3)
        (web.root / "a").write_bytes(CONTENT)
        web.faults = [fault]
        if fault == "short":  # the first reply looks whole; the range and the size tell
            assert storage.read_range("a", 10, 500) == CONTENT[10:500]
            assert [method for method, *_ in web.requests] == ["GET", "HEAD", "GET"]
            return
        web.faults = [fault] * 3
        assert storage.read_range("a", 10, 500) == CONTENT[10:500]
        assert len(web.requests) == 4
        web.faults = [fault] * 3
        assert storage.read("a") == CONTENT

    def test_after_the_last_try(self, web: WebServer) -> None:
        (web.root / "a").write_bytes(CONTENT)
        web.faults = ["503"] * 3
        match = rf"{web.url}/a could not be read in 3 tries, the last ended with ClientResponseError: 503.*\(now 2\)"
        with pytest.raises(StorageError, match=match) as caught:
            Storage(web.url, retries=2).read("a")
        assert type(caught.value.__cause__).__name__ == "ClientResponseError"
        assert caught.value.__context__ is caught.value.__cause__ or caught.value.__context__ is None
        assert len(web.requests) == 3
        assert isinstance(caught.value, OSError)

    def test_no_retries_is_one_try(self, web: WebServer) -> None:
        web.faults = ["503"]
        with pytest.raises(StorageError, match="in 1 tries"):
            Storage(web.url, retries=0).read("a")

    def test_dropped_to_the_end(self, web: WebServer) -> None:
        (web.root / "a").write_bytes(CONTENT)
        web.faults = ["drop"] * 2
        with pytest.raises(StorageError, match="in 2 tries, the last ended with ClientPayloadError"):
            Storage(web.url, retries=1).read_range("a", 0, 1000)

    def test_short_to_the_end(self, web: WebServer) -> None:
        (web.root / "a").write_bytes(CONTENT)
        web.faults = ["short", "200", "200", "short"]  # a GET, then what HEAD and GET tell of the size
        web.sizes = False
        with pytest.raises(StorageError, match="does not tell its size"):
            Storage(web.url, retries=1).read_range("a", 0, 1000)

    def test_nobody_listens(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        storage = Storage(f"http://127.0.0.1:{port}", retries=1)
        try:
            with pytest.raises(StorageError, match=rf"http://127.0.0.1:{port}/a could not be read in 2 tries"):
                storage.read("a")
            # fsspec calls this a missing file; a source would call the corpus half-written
            with pytest.raises(StorageError, match="could not be looked up in 2 tries"):
                storage.exists("a")
        finally:
            close_sessions()

    def test_a_server_in_trouble_hides_no_files(self, web: WebServer) -> None:
        (web.root / "sub").mkdir()
        (web.root / "sub" / "a").write_bytes(b"1")
        storage = Storage(web.url, retries=1)
        for call in (storage.exists, storage.size):
            web.faults = ["503", "503"]
            assert call("sub/a") == 1
            web.faults = ["503"] * 4
            with pytest.raises(StorageError, match=r"sub/a could not be \w+ ?\w* in 2 tries"):
                call("sub/a")
        web.faults = ["503"]
        assert storage.list("sub") == ["a"]
        web.faults = ["503", "503"]
        with pytest.raises(StorageError, match="sub could not be listed in 2 tries"):
            storage.list("sub")

    def test_missing_and_forbidden_are_asked_for_once(self, web: WebServer) -> None:
        storage = Storage(web.url)
        with pytest.raises(SourceNotFoundError, match="nothing is stored at"):
            storage.read("no")
        assert len(web.requests) == 1
        web.faults = ["403"]
        with pytest.raises(
            StorageDeniedError, match=f"{web.url}/a may not be read: ClientResponseError: 403"
        ) as caught:
            storage.read("a")
        assert isinstance(caught.value, PermissionError)
        assert len(web.requests) == 2
        web.faults = ["401", "401"]
        with pytest.raises(StorageDeniedError, match=r"may not be looked up.*check permissions and credentials"):
            storage.exists("a")
        web.faults = ["400"]
        with pytest.raises(StorageError, match="a could not be read: ClientResponseError: 400"):
            storage.read("a")

    def test_ranges_are_one_exact_request(self, web: WebServer) -> None:
        (web.root / "a").write_bytes(CONTENT)
        Storage(web.url).read_range("a", 10, 20)
        assert [(method, headers.get("Range")) for method, _, headers in web.requests] == [("GET", "bytes=10-19")]
        assert web.requests[0][2]["Accept-Encoding"] == "identity"

    def test_a_server_that_ignores_ranges_is_refused(self, web: WebServer) -> None:
        (web.root / "a").write_bytes(CONTENT)
        web.ranges = False
        storage = Storage(web.url)
        size = len(CONTENT)
        # A range as long as the whole file would pass for it.
        for start, stop in ((10, 20), (0, 20), (5, size + 5), (size, 2 * size)):
            with pytest.raises(
                StorageError, match=f"ignores byte ranges: bytes {start} to {stop} were asked for, and {size} "
            ):
                storage.read_range("a", start, stop)
        assert storage.read_range("a", 0, size) == CONTENT
        web.sizes = False
        with pytest.raises(
            StorageError, match=f"ignores byte ranges: bytes 0 to 20 were asked for, and {size} bytes came"
        ):
            storage.read_range("a", 0, 20)

    def test_writes_are_one_put_tried_again(self, web: WebServer) -> None:
        web.faults = ["503"]
        options = {"headers": {"X-Team": "blue-team"}, "cookies": {"pass": "42"}}
        Storage(web.url, options=options).write("sub/a", b"12")
        assert [(method, path) for method, path, _ in web.requests] == [("PUT", "/sub/a")] * 2
        assert web.requests[0][2]["X-Team"] == "blue-team"
        assert web.requests[0][2]["Cookie"] == "pass=42"
        assert options["headers"] == {"X-Team": "blue-team"}
        assert (web.root / "sub" / "a").read_bytes() == b"12"

    def test_waits_grow_within_bounds_and_leave_the_generators_alone(
        self, web: WebServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waits: list[float] = []
        monkeypatch.setattr(module, "time", types.SimpleNamespace(sleep=waits.append))
        monkeypatch.setattr(module, "_FIRST_DELAY", 1.0)
        web.faults = ["503"] * 7
        before = random.getstate(), pickle.dumps(np.random.get_state())
        with pytest.raises(StorageError, match="in 7 tries"):
            Storage(web.url, retries=6).read("a")
        assert (random.getstate(), pickle.dumps(np.random.get_state())) == before
        bounds = [1, 2, 4, 8, 8, 8]
        assert len(waits) == len(bounds)
        assert all(bound / 2 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))
        assert len(set(waits)) == len(waits)


class TestCredentials:
    SECRETS = ("ann:pa55word", "pa55word", "s1gnature", "t0ken-value")

    def shown(self, error: BaseException) -> str:
        links, text = [error], io.StringIO()
        while links[-1].__cause__ is not None:
            links.append(links[-1].__cause__)
        traceback.print_exception(error, file=text)
        return text.getvalue() + "".join(f"{link} {link!r} {link.__context__!r}" for link in links)

    @pytest.mark.parametrize("faults", [["503", "503"], ["403"], ["404"], ["400"], ["drop", "drop"]])
    def test_they_are_used_and_never_shown(self, web: WebServer, faults: list[str]) -> None:
        (web.root / "sub").mkdir()
        (web.root / "sub" / "a").write_bytes(CONTENT)
        url = web.url.replace("//", "//ann:pa55word@") + "/sub?sig=s1gnature&x=a/b"
        storage = Storage(url, options={"headers": {"X-Token": "t0ken-value"}}, retries=1)
        assert storage.read_range("a", 1, 3) == CONTENT[1:3]
        _, path, headers = web.requests[0]
        assert path == "/sub/a?sig=s1gnature&x=a/b"
        assert headers["Authorization"].startswith("Basic ")
        assert headers["X-Token"] == "t0ken-value"
        web.faults = list(faults)
        with pytest.raises(
            (StorageError, SourceNotFoundError), match=r"//\*\*\*@127\.0\.0\.1:\d+/sub/a\?\*\*\* ?"
        ) as caught:
            storage.read("a")
        shown = self.shown(caught.value) + repr(storage) + repr(storage.child("b"))
        assert [secret for secret in (*self.SECRETS, headers["Authorization"]) if secret in shown] == []
        assert caught.value.__cause__ is not None

    def test_damage_and_names(self, web: WebServer) -> None:
        (web.root / "a").write_bytes(CONTENT)
        storage = Storage(web.url.replace("//", "//ann:pa55word@") + "?sig=s1gnature")
        for name, stop in (("a", 5000), ("../a", 1)):
            with pytest.raises((DamagedSourceError, OptionsError), match=r"//\*\*\*@127") as caught:
                storage.read_range(name, 0, stop)
            assert [secret for secret in self.SECRETS if secret in self.shown(caught.value)] == []

    def test_signed_listings(self, web: WebServer) -> None:
        (web.root / "sub" / "deeper").mkdir(parents=True)
        (web.root / "sub" / "a").write_bytes(CONTENT)
        storage = Storage(web.url + "?sig=a/b")
        assert storage.list("sub") == ["a", "deeper"]
        assert storage.child("sub").url == f"{web.url}/sub?sig=a/b"
        assert storage.is_dir("sub")

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("s3://key:secret@bucket/data", "s3://***@bucket/data"),
            ("https://token@host/data?sig=1", "https://***@host/data?***"),
            ("zip://inner::https://u:p@host/x.zip?sig=1", "zip://inner::https://***@host/x.zip?***"),
            ("/data/a@b?c", "/data/a@b?c"),
        ],
    )
    def test_repr(self, url: str, shown: str) -> None:
        assert repr(Storage(url, options={"secret": "t0ken-value"})) == f"Storage(url={shown!r}, retries=4)"


class ClientError(Exception):
    """As botocore shapes its errors."""

    def __init__(self, status: int) -> None:
        super().__init__(f"An error occurred, status {status}")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class ConnectTimeoutError(ConnectionError):
    pass


class Timeout(Exception):
    pass


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class FlakyFileSystem(MemoryFileSystem):
    """A storage whose client library raises what it is told to before it works, and keeps listings."""

    protocol = "dewflaky"
    failures: list[Exception] = []  # noqa: RUF012
    listings: dict[str | None, list[Any]] = {}  # noqa: RUF012
    calls = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("dewflaky://", "memory://"))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        if path not in FlakyFileSystem.listings:
            FlakyFileSystem.listings[path] = super().ls(path, detail=detail)
        return FlakyFileSystem.listings[path]

    def invalidate_cache(self, path: str | None = None) -> None:
        FlakyFileSystem.listings.pop(path, None)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        FlakyFileSystem.calls += 1
        if FlakyFileSystem.failures:
            raise FlakyFileSystem.failures.pop(0)
        return super().cat_file(path, start, end, **kwargs)


@pytest.fixture
def flaky() -> Iterator[Storage]:
    fsspec.register_implementation("dewflaky", FlakyFileSystem, clobber=True)
    FlakyFileSystem.failures, FlakyFileSystem.listings, FlakyFileSystem.calls = [], {}, 0
    with in_memory() as url:
        storage = Storage(url.replace("memory", "dewflaky"), retries=2)
        storage.write("a", CONTENT)
        yield storage
    FlakyFileSystem.clear_instance_cache()


MISSING = FileNotFoundError(errno.ENOENT, "no such key")


@pytest.mark.parametrize(
    "failure",
    [
        TimeoutError("slow"),
        ConnectionResetError(errno.ECONNRESET, "reset"),
        OSError(errno.EBUSY, "slow down"),
        OSError(errno.ESTALE, "stale file handle"),
        ConnectTimeoutError("botocore's kind"),
        Timeout("requests' kind"),
        ClientError(503),
        ClientError(429),
        caused(OSError(errno.EIO, "s3fs's kind"), ClientError(500)),
        caused(FileNotFoundError("fsspec's kind"), ConnectionResetError()),
    ],
    ids=repr,
)
def test_transient_errors_are_tried_again(flaky: Storage, failure: Exception) -> None:
    FlakyFileSystem.failures = [failure, failure]
    assert flaky.read_range("a", 0, 5) == CONTENT[:5]
    assert FlakyFileSystem.calls == 3


@pytest.mark.parametrize(
    ("failure", "kind", "match"),
    [
        (MISSING, SourceNotFoundError, "nothing is stored at dewflaky://.*/a; check the path"),
        (caused(OSError(errno.EIO, ""), ClientError(404)), SourceNotFoundError, "nothing is stored at"),
        (PermissionError(errno.EACCES, "no"), StorageDeniedError, r"may not be read: PermissionError: \[Errno 13\] no"),
        (caused(OSError(errno.EIO, "x"), ClientError(403)), StorageDeniedError, "check permissions and credentials"),
        (ClientError(400), StorageError, "could not be read: ClientError: An error occurred, status 400"),
        (ValueError("odd"), StorageError, "could not be read: ValueError: odd"),
        (ImportError("Install s3fs"), StorageError, "could not be read: ImportError: Install s3fs"),
    ],
    ids=repr,
)
def test_other_errors_are_not(flaky: Storage, failure: Exception, kind: type[Exception], match: str) -> None:
    FlakyFileSystem.failures = [failure]
    with pytest.raises(kind, match=match) as caught:
        flaky.read_range("a", 0, 5)
    assert caught.value.__cause__ is failure
    assert FlakyFileSystem.calls == 1


def test_running_out_of_memory_and_interrupts_pass_as_they_are(flaky: Storage) -> None:
    FlakyFileSystem.failures = [MemoryError()]
    with pytest.raises(MemoryError):
        flaky.read("a")
    FlakyFileSystem.failures = [KeyboardInterrupt()]  # type: ignore[list-item]
    with pytest.raises(KeyboardInterrupt):
        flaky.read("a")
    assert FlakyFileSystem.calls == 2


def test_a_range_that_begins_past_the_end_of_an_object_is_damage(flaky: Storage) -> None:
    FlakyFileSystem.failures = [ClientError(416)]
    with pytest.raises(DamagedSourceError, match="10 bytes, 5000 to 5010, were asked for and 0 of them found"):
        flaky.read_range("a", 5000, 5010)


def test_secrets_in_options_are_hidden_in_what_a_library_says(flaky: Storage) -> None:
    secret = Storage(flaky.url, options={"client": {"login": ("me", "hunter22"), "ssl": True}})
    FlakyFileSystem.failures = [caused(ValueError("bad answer"), OSError("hunter22 is not known"))]
    with pytest.raises(StorageError, match="could not be read: ValueError: bad answer") as caught:
        secret.read("a")
    assert "hunter22" not in "".join(traceback.format_exception(caught.value))
    assert repr(caught.value.__cause__) == "OSError('ValueError: bad answer')"
    FlakyFileSystem.failures = [ValueError("hunter22 is not known")]
    with pytest.raises(StorageError, match=r"could not be read: ValueError: \*\*\* is not known"):
        secret.read("a")


def test_an_old_listing_hides_nothing(flaky: Storage) -> None:
    assert flaky.list() == ["a"]
    Storage(flaky.url.replace("dewflaky", "memory")).write("b", b"1")
    assert fsspec.filesystem("dewflaky").listings
    assert flaky.list() == ["a", "b"]


def test_chained_urls(tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("inner/deep/a", CONTENT)
    storage = Storage(f"zip://inner::file://{tmp_path}/x.zip")
    assert not storage.local
    assert storage.list() == ["deep"]
    assert storage.child("deep").read_range("a", 5, 9) == CONTENT[5:9]
    assert storage.child("deep").url == f"zip://inner/deep::file://{tmp_path}/x.zip"
    with pytest.raises(SourceNotFoundError, match="nothing is stored at zip://inner/no::file://"):
        storage.read("no")
    with pytest.raises(OptionsError, match="to fsspec '::' chains URLs"):
        storage.read("a::b")
    fsspec.get_filesystem_class("zip").clear_instance_cache()


def test_a_listing_of_a_file_and_of_an_unknown_protocol() -> None:
    with in_memory() as url:
        storage = Storage(url)
        storage.write("a", b"1")
        with pytest.raises(SourceNotFoundError, match=f"there is no directory at {url}/a: it, or a part of its path"):
            storage.list("a")
        with pytest.raises(SourceError, match=f"{url} is a directory, and a file was asked for"):
            Storage("memory://").size(url.removeprefix("memory://"))
    with pytest.raises(StorageError, match="nosuch://x/a could not be read: ValueError: Protocol not known: nosuch"):
        Storage("nosuch://x").read("a")


def test_locations_are_whole_paths_and_urls_without_secrets(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Storage("corpus").location("a/b") == f"{tmp_path}/corpus/a/b"
    assert Storage(f"file://{tmp_path}").location() == str(tmp_path)
    assert Storage("s3://bucket/c").location("x") == "s3://bucket/c/x"
    assert Storage("https://me:pw@host/c?signature=1").location("x") == "https://***@host/c/x?***"
