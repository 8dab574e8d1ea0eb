"""Videos in an object store and on a web server, on this machine: an index beside them, and stores that fail."""

import http.server
import io
import json
import pickle
import re
import tarfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.asyn import sync
from fsspec.implementations.http import HTTPFileSystem
from s3fs import S3FileSystem
from tests.media.video.conftest import Video, number_in, write_video
from tests.s3 import s3_server

import dew.cli
from dew.data import DamagedSourceError, SourceError, StorageError, VideoOptions
from dew.data import storage as storage_module
from dew.data.cache import BlockCache
from dew.data.errors import SourceNotFoundError
from dew_media.video import index as index_module
from dew_media.video import opening as opening_module
from dew_media.video.opening import open_split
from dew_media.video.source import VideoSource

KEY, SECRET = "AKIATESTKEY", "very-secret-value"


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    with s3_server() as port:
        yield {"key": KEY, "secret": SECRET, "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"}}


@pytest.fixture(scope="module")
def remote(options: dict[str, Any]) -> S3FileSystem:
    files = S3FileSystem(**options)
    files.mkdir("videos")
    return files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("remote") / "clips"
    root.mkdir()
    for number in range(3):
        write_video(root, Video(name=f"{number}.mp4", frames=20 + number, bframes=2))
        (root / f"{number}.txt").write_text(f"video {number}")
    return root


@pytest.fixture
def url(remote: S3FileSystem, folder: Path) -> str:
    """The folder in a place of its own."""
    place = f"videos/{uuid.uuid4().hex}"
    for path in sorted(folder.iterdir()):
        remote.pipe_file(f"{place}/{path.name}", path.read_bytes())
    return f"s3://{place}"


@pytest.fixture
def command(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, user_cache: Path) -> Path:
    """Lets `dew video index` find the server; gives the user's cache."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["client_kwargs"]["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    return user_cache


def opened(where: str | Path, options: dict[str, Any] | None = None, **wanted: Any) -> VideoSource:
    asked: dict[str, Any] = {"frames": 4, "size": 32, "fit": "squash", "storage_options": options} | wanted
    return open_split(str(where), "train", VideoOptions(**asked))


def test_an_index_beside_remote_videos(
    url: str, options: dict[str, Any], folder: Path, command: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = opened(folder)
    assert opened(url, options).fingerprint() == here.fingerprint()  # few are scanned when they are opened
    assert dew.cli.main(["video", "index", url, "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["index"] == f"{url}/dew-video-train.index"
    assert (about["files"], about["frames"]) == (3, 63)
    assert list(command.rglob("*")) == [command / "dew", command / "dew/indexes"]  # the journal was there, and is gone
    there = opened(url, options)
    assert there.fingerprint() == here.fingerprint()
    assert len(pickle.dumps(there)) < 4_000
    for source in (there, pickle.loads(pickle.dumps(there))):
        for index in range(3):
            np.testing.assert_array_equal(source[index]["video"], here[index]["video"])
            assert source[index]["caption"] == f"video {index}"
        source.close()
    assert SECRET not in repr(there)


def test_tables_of_a_large_remote_index_are_fetched_one_by_one(
    url: str, options: dict[str, Any], command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dew.cli.main(["video", "index", url]) == 0
    monkeypatch.setattr(index_module, "AT_ONCE", 100)
    for cache in (None, BlockCache(str(tmp_path / "blocks"))):
        source = opened(url, options, cache=cache)
        assert [number_in(frame) for frame in source[1]["video"]] == source.clip(1)[1].frames.tolist()
        source.close()


def test_a_remote_index_that_is_not_whole(
    url: str, options: dict[str, Any], command: Path, remote: S3FileSystem
) -> None:
    assert dew.cli.main(["video", "index", url]) == 0
    data = remote.cat_file(f"{url}/dew-video-train.index")
    remote.pipe_file(f"{url}/dew-video-train.index", data[:-5])
    with pytest.raises(DamagedSourceError, match=r"s3://videos/\w+/dew-video-train.index is no index of videos"):
        opened(url, options)


def test_many_remote_videos_need_an_index(url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening_module, "FEW_REMOTE", 2)
    match = r"the 3 videos of split 'train' have no index .*more than 2 remote ones .*dew video index s3://videos/"
    with pytest.raises(SourceError, match=match):
        opened(url, options)


def test_a_remote_video_that_is_gone_or_another(url: str, options: dict[str, Any], remote: S3FileSystem) -> None:
    source = opened(url, options)
    data = bytearray(remote.cat_file(f"{url}/0.mp4"))
    data[data.index(b"mdat") + 60] ^= 0x55
    remote.pipe_file(f"{url}/0.mp4", bytes(data))
    remote.rm_file(f"{url}/1.mp4")
    with pytest.raises(DamagedSourceError, match=r"0\.mp4 is damaged at .* differs from the one that was indexed"):
        source.drawn(0, np.random.default_rng(0))
    with pytest.raises(SourceNotFoundError, match=r"1\.mp4 does not exist"):
        _ = source[1]
    source.close()


def test_remote_tar_shards(
    remote: S3FileSystem, options: dict[str, Any], folder: Path, command: Path, tmp_path: Path
) -> None:
    place = f"videos/{uuid.uuid4().hex}"
    for shard in range(2):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as made:
            for path in sorted(folder.iterdir())[2 * shard :: 4]:
                made.add(path, arcname=path.name)
            for path in sorted(folder.iterdir())[2 * shard + 1 :: 4]:
                made.add(path, arcname=path.name)
        remote.pipe_file(f"{place}/train-{shard}.tar", data.getvalue())
    url = f"s3://{place}"
    with pytest.raises(SourceError, match=r"has no index of its 2 tar shards.*dew images index"):
        opened(url, options)
    assert dew.cli.main(["images", "index", url]) == 0
    assert dew.cli.main(["video", "index", url]) == 0
    assert remote.exists(f"{place}/dew-video-train.index")
    source, here = opened(url, options), opened(folder)
    stems = {Path(here.files.key(index)).stem: index for index in range(3)}
    for index in range(3):
        same = stems[source.files.key(index).rpartition("/")[2]]
        np.testing.assert_array_equal(source[index]["video"], here[same]["video"])
    source.close()
    # One shard by its own name: the index lies beside it.
    assert dew.cli.main(["images", "index", f"{url}/train-0.tar"]) == 0
    assert dew.cli.main(["video", "index", f"{url}/train-0.tar"]) == 0
    assert remote.exists(f"{place}/train-0.tar.video-train.index")


class Server(http.server.SimpleHTTPRequestHandler):
    """Ranges, until `broken` is set."""

    protocol_version = "HTTP/1.1"
    broken = False

    def do_GET(self) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if Server.broken:
            self.send_error(503)
        elif found is None or not path.is_file():
            super().do_GET()
        else:
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
def web(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of the directory above the folder."""
    monkeypatch.setattr(Server, "broken", False)
    monkeypatch.setattr(storage_module, "_FIRST_DELAY", 0.001)

    def handler(*words: Any) -> Server:
        return Server(*words, directory=str(folder.parent))

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = False
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


def test_a_store_that_fails_is_not_taken_for_a_damaged_file(
    web: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = opened(f"{web}/clips"), opened(folder)
    np.testing.assert_array_equal(there[2]["video"], here[2]["video"])
    Server.broken = True
    with pytest.raises(StorageError, match=r"1\.mp4 could not be (read|measured) in 5 tries.*503"):
        _ = there[1]
    Server.broken = False
    np.testing.assert_array_equal(there[1]["video"], here[1]["video"])
    there.close()
