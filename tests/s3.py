"""An S3 endpoint on this machine, moto's, for every test that reads from an object store."""

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Generator

from fsspec.asyn import sync
from s3fs import S3FileSystem


@contextlib.contextmanager
def s3_server() -> Generator[int]:
    """The port of a server that speaks S3 and keeps everything in its memory; it and its clients end with the block."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        log = iter(server.stderr.readline, "")
        try:
            port = next(int(found[1]) for line in log if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
            drain = threading.Thread(target=lambda: [None for _ in log], name="moto's log")
            drain.start()
            yield port
        finally:
            close_clients()
            server.terminate()
            server.wait(10)
            drain.join(10)


def close_clients() -> None:
    """Closes every client of s3fs, whose connections would outlive the server."""
    for files in list(S3FileSystem._cache.values()):
        if files._s3 is not None:
            sync(files.loop, files._s3.close)
    S3FileSystem.clear_instance_cache()
