"""Corpora that several test modules read."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from dew.tokens import ByteTokenizer, write_corpus

Documents = list[np.ndarray[Any, np.dtype[np.int64]]]


@pytest.fixture(scope="session")
def documents() -> Documents:
    """200 documents of 1 to 60 ids below 1000."""
    rng = np.random.default_rng(7)
    return [rng.integers(0, 1000, size=length) for length in rng.integers(1, 60, 200)]


@pytest.fixture(scope="session")
def stream(documents: Documents) -> np.ndarray[Any, np.dtype[np.int64]]:
    """All of their ids, one after the other."""
    return np.concatenate(documents)


@pytest.fixture(scope="session")
def corpus_path(documents: Documents, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of `documents` in about 60 shards. Not to be changed."""
    path = tmp_path_factory.mktemp("tokens") / "corpus"
    write_corpus(documents, path, vocab_size=1000, shard_tokens=100)
    return path


@pytest.fixture
def text_path(tmp_path: Path) -> Path:
    """A small corpus of text in three shards, for a test to damage."""
    tokenizer = ByteTokenizer(eos=True)
    texts = ["the first document", "", "the second one, a little longer", "third", "fourth and last"]
    path = tmp_path / "corpus"
    write_corpus(map(tokenizer.encode, texts), path, tokenizer=tokenizer, eos=True, shard_tokens=40)
    return path


@pytest.fixture
def memory_url() -> Iterator[str]:
    """A place of its own in fsspec's memory file system."""
    url = f"memory://dew-{uuid.uuid4().hex}"
    yield url
    files, path = fsspec.core.url_to_fs(url)
    if files.exists(path):
        files.rm(path, recursive=True)
