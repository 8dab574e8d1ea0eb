"""Files on a real S3 endpoint on this machine (moto's server), through `storage_options`."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.asyn import sync
from s3fs import S3FileSystem

from dew.data import DataPartition, HFOptions, Loading, identity, load

DIRECT = Loading(read_buffer=0, threads=1, workers=0)
KEY, SECRET = "AKIATESTKEY", "very-secret-value"


@pytest.fixture(scope="module")
def storage_options() -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        log = iter(server.stderr.readline, "")
        try:
            port = next(int(found[1]) for line in log if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
            drain = threading.Thread(target=lambda: [None for _ in log], name="moto's log")
            drain.start()
            yield {"key": KEY, "secret": SECRET, "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"}}
        finally:
            for files in list(S3FileSystem._cache.values()):
                if files._s3 is not None:
                    sync(files.loop, files._s3.close)
            S3FileSystem.clear_instance_cache()
            server.terminate()
            server.wait(10)
            drain.join(10)


@pytest.fixture(scope="module")
def bucket(storage_options: dict[str, Any]) -> str:
    S3FileSystem(**storage_options).mkdir("rows")
    return "s3://rows"


def put(bucket: str, storage_options: dict[str, Any], files: Any) -> list[str]:
    remote = S3FileSystem(**storage_options)
    for path in files.paths:
        remote.put_file(path, f"{bucket}/{Path(path).name}")
    return [f"{bucket}/{Path(path).name}" for path in files.paths]


@pytest.mark.parametrize("mode", [{}, {"position": "records"}])
def test_a_remote_stream_is_the_local_one(
    mode: Any, bucket: str, storage_options: dict[str, Any], write_files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    # The hub stays out of reach; the library counts any other address as online too.
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    files = write_files("parquet", group=2)
    urls = put(bucket, storage_options, files)

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


def test_a_missing_remote_file_is_named_without_secrets(
    bucket: str, storage_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    options = HFOptions(data_files=f"{bucket}/nothing.parquet", storage_options=storage_options)
    with pytest.raises(FileNotFoundError, match=r"nothing\.parquet") as caught:
        load("hf/parquet", batch=2, streaming=True, options=options, preprocess=identity)
    assert SECRET not in f"{caught.value} {caught.value.__cause__!r}"
