"""Inputs and corpus in an object store, with worker processes: moto's server, through s3fs."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3fs import S3FileSystem
from tests.s3 import s3_server

from dew.data.errors import SourceError
from dew.data.storage import Storage
from dew.tokens import part, verify_corpus
from dew.tokens.prepare import find_origin, merge, prepare

SECRET = "s3cr3t-of-nobody"


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    """fsspec's options for a server that keeps everything in its memory."""
    with s3_server() as port:
        url = f"http://127.0.0.1:{port}"
        made = {"key": "AKIAOFNOBODY", "secret": SECRET, "client_kwargs": {"endpoint_url": url}}
        S3FileSystem(**made).mkdir("dew")
        yield made


@pytest.fixture(scope="module")
def inputs(options: dict[str, Any], mixed: Path) -> str:
    stored = Storage("s3://dew/in", options=options)
    for path in mixed.rglob("*.*"):
        stored.write(str(path.relative_to(mixed)), path.read_bytes())
    return "s3://dew/in"


def test_the_bytes_of_a_local_run(
    options: dict[str, Any],
    inputs: str,
    mixed: Path,
    tokenizer_dir: Path,
    tmp_path: Path,
    digests: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {"tokenizer": tokenizer_dir, "eos": True, "task_bytes": 30_000, "options": options}
    prepare(inputs, "s3://dew/out", workers=2, out_options=options, **asked)
    monkeypatch.setattr(part, "_SPILL_BYTES", 1000)  # shards go over a local file
    prepare(inputs, "s3://dew/spilled", workers=0, out_options=options, **asked)
    prepare(mixed, tmp_path, workers=0, **asked)
    for name in ("out", "spilled"):
        stored = Storage(f"s3://dew/{name}", options=options)
        assert {file: hashlib.sha256(stored.read(file)).hexdigest() for file in digests(tmp_path)} == digests(tmp_path)
        verify_corpus(f"s3://dew/{name}", options=options)
    assert find_origin("s3://dew/out", 150, options=options).row == 150
    again = prepare(inputs, "s3://dew/out", workers=2, out_options=options, **asked)
    assert again.ran == 0
    assert merge("s3://dew/out", out_options=options).manifests == again.manifests


def test_a_pattern_and_an_error(options: dict[str, Any], inputs: str) -> None:
    stored = Storage("s3://dew/bad", options=options)
    stored.write("a.jsonl", b'{"text": "one"}\n{"text": 5}\n')
    with pytest.raises(SourceError, match=r"s3://dew/bad/a\.jsonl, line 2: the field 'text' is number") as caught:
        prepare("s3://dew/bad/*.jsonl", "s3://dew/bad-out", tokenizer="bytes", options=options, out_options=options)
    assert SECRET not in str(caught.value)
