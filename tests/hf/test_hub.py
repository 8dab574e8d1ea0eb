"""A hub on this machine: a real HTTP server behind HF_ENDPOINT, whose branch moves between two commits."""

import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

REPO = "someone/numbers"
COMMITS = ("a" * 40, "b" * 40)
TOKEN = "hf_a_secret_token"
FILES = 3
ROWS = 4000


class Hub(ThreadingHTTPServer):
    """One dataset with two commits; the branch `main` is the one of number `head`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Reply)
        self.head = 0
        self.commits = [
            {f"data/train-{file}.parquet": _table(file, commit) for file in range(FILES)} for commit in (0, 1)
        ]
        for files in self.commits:
            files["README.md"] = b"---\nlicense: mit\n---\n"
        self.asked: list[str] = []
        self.sent = 0
        self.failures: list[str] = []
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, name="hub")
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def data_size(self) -> int:
        return sum(len(data) for name, data in self.commits[0].items() if name.startswith("data/"))

    def files_of(self, revision: str) -> dict[str, bytes] | None:
        names = {"main": self.head, COMMITS[0]: 0, COMMITS[1]: 1}
        return self.commits[names[revision]] if revision in names else None

    def end(self) -> None:
        self.shutdown()
        self.thread.join(10)
        self.server_close()


def _table(file: int, commit: int) -> bytes:
    written = io.BytesIO()
    ids = range(file * ROWS + commit, (file + 1) * ROWS + commit)
    table = pa.table({"id": ids, "noise": [hashlib.sha256(str(i).encode()).digest() * 4 for i in ids]})
    pq.write_table(table, written, row_group_size=500, compression="none")
    return written.getvalue()


class _Reply(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        if path == f"/api/datasets/{REPO}":
            path += "/revision/main"
        for pattern, reply in _ROUTES.items():
            if found := re.fullmatch(pattern, path):
                files = self.server.files_of(found["revision"])
                if files is None:
                    self._missing("RevisionNotFound")
                else:
                    reply(self, files, found["revision"], found["name"])
                return
        self._missing("EntryNotFound" if REPO in path else "RepoNotFound")

    do_HEAD = do_GET
    do_POST = do_GET

    def log_message(self, *_arguments: Any) -> None:
        """Nothing: the test's own output stays readable."""

    def info(self, files: Any, revision: str, _name: str) -> None:
        commit = COMMITS[self.server.commits.index(files)]
        self._json({"id": REPO, "sha": commit, "private": False, "siblings": [{"rfilename": name} for name in files]})

    def paths_info(self, files: Any, _revision: str, _name: str) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        wanted = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body)["paths"]
        self._json([_entry(name, files[name]) for name in wanted if name in files])

    def tree(self, files: Any, _revision: str, name: str) -> None:
        prefix = f"{name}/" if name else ""
        inside = {file.removeprefix(prefix): data for file, data in files.items() if file.startswith(prefix)}
        folders = sorted({file.partition("/")[0] for file in inside if "/" in file})
        found = [{"type": "directory", "path": prefix + folder, "oid": "0"} for folder in folders]
        found += [_entry(prefix + file, data) for file, data in inside.items() if "/" not in file]
        if inside:
            self._json(found)
        else:
            self._missing("EntryNotFound")

    def file(self, files: Any, _revision: str, name: str) -> None:
        if name not in files:
            self._missing("EntryNotFound")
            return
        if name.endswith(".parquet") and self.command == "GET" and self._fails():
            return
        data, status = files[name], 200
        commit = COMMITS[self.server.commits.index(files)]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(data).hexdigest()}"', "Accept-Ranges": "bytes"}
        if found := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or ""):
            start, stop = int(found[1]), int(found[2]) + 1
            headers["Content-Range"] = f"bytes {start}-{min(stop, len(data)) - 1}/{len(data)}"
            data, status = data[start:stop], 206
        self._send(status, data, headers)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _missing(self, code: str) -> None:
        self._send(404, b"{}", {"X-Error-Code": code, "X-Error-Message": f"{code}: {self.path}"})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.server.sent += len(data)
            self.wfile.write(data)

    def _fails(self) -> bool:
        """Whether this request is to go wrong, in the way that is next."""
        way = self.server.failures.pop(0) if self.server.failures else None
        if way == "busy":
            self._send(429, b"", {"Retry-After": "0"})
        elif way == "cut":
            self.send_response(206)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"few")
            self.close_connection = True
        return way in ("busy", "cut")


_ROUTES = {
    rf"/api/datasets/{REPO}/revision/(?P<revision>[^/]+)(?P<name>)": _Reply.info,
    rf"/api/datasets/{REPO}/paths-info/(?P<revision>[^/]+)(?P<name>)": _Reply.paths_info,
    rf"/api/datasets/{REPO}/tree/(?P<revision>[^/]+)/?(?P<name>.*)": _Reply.tree,
    rf"/datasets/{REPO}/resolve/(?P<revision>[^/]+)/(?P<name>.+)": _Reply.file,
}


def _entry(name: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    yield made
    made.end()


CHILD = """
import json, sys
import datasets
datasets.disable_progress_bars()
from dew.data import DataPartition, DewDataError, HFOptions, Loading, columns, load

def read(name, options, state, steps):
    dataset = load(
        name, batch=100, streaming=True, options=HFOptions(**options), preprocess=columns("id"),
        loading=Loading(workers=0, read_buffer=0),
    )
    with dataset.train(DataPartition()) as stream:
        if state is not None:
            stream.set_state(state)
        ids = [next(stream)["id"].tolist() for _ in range(steps)]
        return {"ids": ids, "state": stream.get_state()}

def main():
    for job in json.loads(sys.argv[1]):
        try:
            print(json.dumps(read(*job)))
        except DewDataError as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}))

main()
"""


def job(name: str = f"hf/{REPO}", state: Any = None, steps: int = 2, **options: Any) -> list[Any]:
    return [name, options, state, steps]


def run(hub: Hub, home: Path, *jobs: list[Any]) -> list[Any]:
    """Each job's rows and position, or its error, out of one new process."""
    given = [[name, {"cache_dir": str(home / "cache"), "token": TOKEN, **more}, *rest] for name, more, *rest in jobs]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", CHILD, json.dumps(given)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


POSITIONED = {"position": "records"}
PATTERN = {"name": "hf/parquet", "data_files": f"hf://datasets/{REPO}/data/*.parquet"}


def test_a_branch_is_resolved_to_its_commit_once(hub: Hub, tmp_path: Path) -> None:
    shard, records, pattern, both = run(
        hub, tmp_path, job(), job(**POSITIONED), job(**PATTERN), job(**PATTERN, **POSITIONED)
    )
    assert shard["ids"] == pattern["ids"] == [list(range(100)), list(range(100, 200))]
    assert records["ids"] == both["ids"]
    for found in (shard, pattern):
        assert found["state"]["state"]["identity"]["commit"] == COMMITS[0]
    assert not [line for line in hub.asked if "/resolve/main/data" in line], "data is read from the commit"

    hub.head = 1
    states = [found["state"] for found in (shard, records, pattern, both)]
    moved = run(
        hub,
        tmp_path,
        job(state=states[0]),
        job(state=states[1], **POSITIONED),
        job(state=states[2], **PATTERN),
        job(state=states[3], **PATTERN, **POSITIONED),
        job(state=states[0], revision=COMMITS[0]),
        job(),
    )
    for found in (moved[0], moved[2]):
        assert f"another commit: saved {COMMITS[0]!r}, this stream has {COMMITS[1]!r}" in found["error"]
    for found in (moved[1], moved[3]):
        assert re.match(r"PositionMismatchError: .*fingerprint", found["error"])
    assert f"HFOptions(revision={COMMITS[0]!r}) reads what it was saved on" in moved[0]["error"]
    assert moved[4]["ids"] == [list(range(200, 300)), list(range(300, 400))]
    assert moved[5]["ids"][0] == list(range(1, 101))


def test_an_epoch_of_hub_files_reads_their_bytes_and_few_more(hub: Hub, tmp_path: Path) -> None:
    epoch = FILES * ROWS // 100
    (first,) = run(hub, tmp_path, job(steps=epoch, revision=COMMITS[0], **POSITIONED))
    assert sorted(itertools.chain(*first["ids"])) == list(range(FILES * ROWS))
    once = hub.sent
    hub.sent = 0
    hub.asked.clear()
    (again,) = run(hub, tmp_path, job(steps=1, revision=COMMITS[0], state=first["state"], **POSITIONED))
    assert len(again["ids"][0]) == 100
    # The first file is looked at for its types by the library; a window holds 16 of 24 row groups.
    assert once <= 1.1 * hub.data_size + 70_000 + 16 * hub.data_size / 24
    assert hub.sent <= 1.1 * 16 * hub.data_size / 24 + 70_000
    assert not [line for line in hub.asked if "paths-info" in line]


def test_what_is_not_there_is_one_line_and_other_servers_are_read(hub: Hub, tmp_path: Path) -> None:
    # Another name of the same machine: the address is not that of the hub.
    server = hub.url.replace("127.0.0.1", "localhost")
    url = f"{server}/datasets/{REPO}/resolve/main/data/train-1.parquet?signature=do-not-show"
    signed = {"name": "hf/parquet", "data_files": url, "steps": ROWS // 100}
    missing, revision, *found = run(
        hub, tmp_path, job("hf/someone/else"), job(revision="nothing"), job(**signed), job(**signed, **POSITIONED)
    )
    for one in (missing, revision):
        assert re.match(r"SourceNotFoundError: nothing to read for 'hf/someone/", one["error"])
        assert "\n" not in one["error"]
    assert "nothing" in revision["error"]
    for one in found:
        assert sorted(itertools.chain(*one["ids"])) == list(range(ROWS, 2 * ROWS))
        assert "do-not-show" not in json.dumps(one["state"])
    assert all("signature=do-not-show" in line for line in hub.asked if "train-1" in line)


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["busy", "cut"])
def test_a_hub_that_is_busy_or_hangs_up_is_asked_again(way: str, hub: Hub, tmp_path: Path) -> None:
    (quiet,) = run(hub, tmp_path / "quiet", job(**POSITIONED))
    # The first reply with data goes to the library, which looks at the types; the others are Dew's own reading.
    hub.failures = ["none", way, way] if way == "cut" else [way, way]
    (found,) = run(hub, tmp_path / "busy", job(**POSITIONED))
    assert found.get("ids") == quiet["ids"], found
    assert not hub.failures
