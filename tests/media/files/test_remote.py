"""The same collections in an object store, and on a plain web server, on this machine: moto's S3 through s3fs, http."""

import functools
import http.server
import pickle
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from fsspec.asyn import sync
from fsspec.implementations.http import HTTPFileSystem
from s3fs import S3FileSystem
from tests.s3 import s3_server

from dew.data.cache import BlockCache
from dew.data.errors import DamagedSourceError, SourceError, SourceNotFoundError
from dew_media.files.collection import MediaFiles
from dew_media.files.exclude import BadRecord, Manifest
from dew_media.files.open import open_files, splits_in, tar_places
from dew_media.files.tar_places import write_index

Encode: TypeAlias = Callable[..., bytes]
WriteTar: TypeAlias = Callable[..., Path]

KEY, SECRET = "AKIATESTKEY", "very-secret-value"

pytestmark = pytest.mark.usefixtures("user_cache")


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    with s3_server() as port:
        yield {"key": KEY, "secret": SECRET, "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"}}


@pytest.fixture(scope="module")
def remote(options: dict[str, Any]) -> S3FileSystem:
    files = S3FileSystem(**options)
    files.mkdir("media")
    return files


@pytest.fixture
def put(remote: S3FileSystem) -> Callable[[Path], str]:
    """`put(folder)`: all files below it, in a place of their own; gives its URL."""

    def put(folder: Path) -> str:
        place = f"media/{uuid.uuid4().hex}"
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                remote.pipe_file(f"{place}/{path.relative_to(folder)}", path.read_bytes())
        return f"s3://{place}"

    return put


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Python's own server, which answers ranges too."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if found is None or not path.is_file():
            super().do_GET()
            return
        first, size = int(found[1]), path.stat().st_size
        data = path.read_bytes()[first : int(found[2]) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(data) - 1}/{size}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing: the test's output is not the place."""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """The URL of `tmp_path`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Ranges, directory=str(tmp_path)))
    server.daemon_threads = False  # so that server_close() waits for them
    thread = threading.Thread(target=server.serve_forever, name="web")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        for files in list(HTTPFileSystem._cache.values()):
            if files._session is not None:
                sync(files.loop, files._session.close)
        HTTPFileSystem.clear_instance_cache()
        server.shutdown()
        server.server_close()
        thread.join(10)


def content(files: MediaFiles) -> list[Any]:
    return [(files.key(n), files.name(n), files.read(n), files.captions(n), files.label(n)) for n in range(len(files))]


def test_a_folder(put: Callable[[Path], str], options: dict[str, Any], encode: Encode, tmp_path: Path) -> None:
    for number in range(6):
        for split in ("train", "val"):
            path = tmp_path / f"{split}/{'ab'[number % 2]}/é{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(number))
            path.with_suffix(".txt").write_text(f"{split} {number}")
    url = put(tmp_path)
    assert splits_in(url, storage_options=options) == ["train", "val"]
    for split in ("train", "val"):
        here = open_files(tmp_path, split=split)
        there = open_files(url, split=split, storage_options=options)
        assert content(there) == content(here)
        assert (there.digest(), there.description()) == (here.digest(), here.description())
        assert there.path(0) is None
        assert content(pickle.loads(pickle.dumps(there))) == content(here)
    assert SECRET not in repr(there.description())
    with there.open_file(2) as opened:
        opened.seek(10)
        assert opened.read(7) == here.read(2)[10:17]


def test_tar_shards(
    put: Callable[[Path], str],
    options: dict[str, Any],
    remote: S3FileSystem,
    encode: Encode,
    write_tar: WriteTar,
    tmp_path: Path,
) -> None:
    for shard in range(3):
        members = [
            (f"{n}.{kind}", encode(n) if kind == "jpg" else b"c%d" % n) for n in range(4) for kind in ("jpg", "txt")
        ]
        write_tar(tmp_path / f"in/train-{shard}.tar", [*members, ("large.jpg", bytes(9 << 20)), ("large.txt", b"x")])
    url = put(tmp_path / "in")
    here = open_files(tmp_path / "in", layout="tar")
    match = (
        r"s3://media/\w+ has no index of its 3 tar shards, and making one reads all of it: make it once with 'dew im"
    )
    with pytest.raises(SourceError, match=match):
        open_files(url, storage_options=options)
    (spec,) = tar_places(url, storage_options=options)
    index, where = write_index(spec)
    assert where == f"{url}/dew.idx.npz"
    assert index.to_bytes() == (tmp_path / "in/dew.idx.npz").read_bytes()  # wherever it is made
    there = open_files(url, storage_options=options)
    assert content(there) == content(here)
    assert there.digest() == here.digest()
    assert content(pickle.loads(pickle.dumps(there)))[3:5] == content(here)[3:5]
    cached = open_files(url, storage_options=options, cache=BlockCache(str(tmp_path / "blocks")))
    assert content(cached)[:6] == content(here)[:6]
    # Same size and name, written again with another header: read as another record by nobody.
    data = bytearray((tmp_path / "in/train-1.tar").read_bytes())
    at = data.index(b"2.jpg")
    data[at : at + 1] = b"9"
    remote.pipe_file(f"{url}/train-1.tar", bytes(data))
    with pytest.raises(DamagedSourceError, match=r"train-1\.tar: 2 at byte \d+ is not what the index says"):
        there.read(7)
    remote.pipe_file(f"{url}/train-1.tar", bytes(data) + bytes(512))
    with pytest.raises(SourceError, match=r"dew\.idx\.npz is stale: 'train-1\.tar' had \d+ bytes and has \d+"):
        open_files(url, storage_options=options)


def test_an_index_elsewhere(
    put: Callable[[Path], str], options: dict[str, Any], encode: Encode, write_tar: WriteTar, tmp_path: Path
) -> None:
    write_tar(tmp_path / "in/0.tar", [("1.jpg", encode(1))])
    url = put(tmp_path / "in")
    (spec,) = tar_places(f"{url}/0.tar", storage_options=options)
    _, where = write_index(spec, str(tmp_path / "indexes"))
    assert Path(where).parent == tmp_path / "indexes"
    files = open_files(f"{url}/0.tar", index=str(tmp_path / "indexes"), storage_options=options)
    assert files.read(0) == encode(1)


def test_parquet(put: Callable[[Path], str], options: dict[str, Any], encode: Encode, tmp_path: Path) -> None:
    arrow: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    rows = arrow.table({"image": [{"bytes": encode(n), "path": "x"} for n in range(9)], "text": list("abcdefghi")})
    parquet.write_table(rows, tmp_path / "0.parquet", row_group_size=4)
    here, there = open_files(tmp_path), open_files(put(tmp_path), storage_options=options)
    assert content(there) == content(here)
    assert (there.digest(), there.blocks) == (here.digest(), (4, 4, 1))


def test_a_manifest(put: Callable[[Path], str], options: dict[str, Any], encode: Encode, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(encode(number))
    url = put(tmp_path)
    files = open_files(url, storage_options=options)
    bad = (BadRecord(key="1.jpg", reason="empty", message="1.jpg is empty"),)
    Manifest(collection=files.stored(), files=3, bad=bad).write(f"{url}/bad.jsonl", options)
    chosen = open_files(url, exclude=f"{url}/bad.jsonl", storage_options=options)
    assert [chosen.key(n) for n in range(2)] == ["0.jpg", "2.jpg"]


def test_nothing_there(options: dict[str, Any], remote: S3FileSystem) -> None:
    for url in ("s3://media/nowhere", "s3://media/nowhere.tar", "s3://no-such-bucket/x"):
        with pytest.raises(SourceNotFoundError, match=f"nothing is stored at {url}; check the path") as caught:
            open_files(url, storage_options=options)
        assert SECRET not in f"{caught.value} {caught.value.__cause__!r}"


def test_a_web_server(web: str, tmp_path: Path, encode: Encode, write_tar: WriteTar) -> None:
    for number in range(4):
        path = tmp_path / f"folder/train/{'ab'[number % 2]}/{number} x.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(number))
        path.with_suffix(".txt").write_text(f"no {number}")
    here, there = open_files(tmp_path / "folder"), open_files(f"{web}/folder")
    assert content(there) == content(here)
    assert there.description() == f"{here.description()}, sizes not known"
    for shard in range(2):
        write_tar(tmp_path / f"tar/{shard}.tar", [("1.jpg", encode(shard)), ("1.txt", b"x")])
    here, there = open_files(tmp_path / "tar"), open_files(f"{web}/tar")
    assert content(there) == content(here)
    assert there.digest() == here.digest()
    with pytest.raises(SourceError, match=r"/tar/0\.tar has no index of its 1 tar shard"):
        open_files(f"{web}/tar/0.tar")
    open_files(tmp_path / "tar/0.tar")
    assert open_files(f"{web}/tar/0.tar").read(0) == encode(0)
