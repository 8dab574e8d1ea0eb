"""Corpora that several test modules read."""

import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
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


Ids = Sequence[Sequence[int]]

MEGATRON_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}


@pytest.fixture(scope="session")
def megatron() -> Callable[..., Path]:
    """Writes `stem.bin` and `stem.idx` from the format's description; returns the `.bin`."""

    def write(
        stem: Path, documents: Sequence[Ids], code: int = 8, *, counted: bool = True, modes: bool = False
    ) -> Path:
        """`documents`: each some sequences of ids. `counted`: the head counts documents, not entries of the list."""
        sequences = [sequence for document in documents for sequence in document]
        dtype = np.dtype(MEGATRON_DTYPES[code])
        lengths = np.array([len(sequence) for sequence in sequences], "<i4")
        begins = np.concatenate([[0], np.cumsum(lengths, dtype="<i8")[:-1]])[: len(lengths)] * dtype.itemsize
        firsts = np.cumsum([0, *(len(document) for document in documents)], dtype="<i8")
        count = len(documents) if counted else len(firsts)
        head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sequences), count)
        parts = [head, lengths.tobytes(), begins.astype("<i8").tobytes(), firsts.tobytes()]
        stem.parent.mkdir(parents=True, exist_ok=True)
        stem.with_name(stem.name + ".idx").write_bytes(b"".join([*parts, bytes(len(sequences) if modes else 0)]))
        path = stem.with_name(stem.name + ".bin")
        path.write_bytes(b"".join(np.array(sequence, dtype).tobytes() for sequence in sequences))
        return path

    return write


@pytest.fixture(scope="session")
def datatrove() -> Callable[..., Path]:
    """Writes `x.ds`, `x.ds.index` and `x.ds.metadata` from the format's description; returns the `.ds`."""

    def write(path: Path, documents: Ids, itemsize: int = 2, *, index: bool = True, metadata: bool = True) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(np.array(document, f"<u{itemsize}").tobytes() for document in documents))
        ends = np.cumsum([len(document) for document in documents], dtype="<u8")
        if index:
            path.with_name(path.name + ".index").write_bytes(ends.tobytes())
        if metadata:
            text = f"some/tokenizer|{itemsize}\n{ends[-1]}\n{ends[-1]} T"
            path.with_name(path.name + ".metadata").write_text(text)
        return path

    return write
