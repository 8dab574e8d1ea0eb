"""Shards that are written as they come: the same bytes as those written at once, and nothing when they are given up."""

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.data.errors import SourceError
from dew.data.storage import Storage
from dew.tokens import TokenCorpus, TokenWriter, part, verify_corpus, write_corpus
from dew.tokens.part import ShardPart, discard_unfinished

DOCUMENTS = [np.full(length, length % 1000) for length in (1, 5000, 3, 40_000, 2, 7000, 1, 1)]


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("spill", [1, 100, 10_000, 70_000])
def test_the_same_bytes_whatever_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spill: int) -> None:
    write_corpus(DOCUMENTS, tmp_path / "once", vocab_size=1000, shard_tokens=50_000)
    monkeypatch.setattr(part, "_SPILL_BYTES", spill)
    write_corpus(DOCUMENTS, tmp_path / "pieces", vocab_size=1000, shard_tokens=50_000)
    assert files(tmp_path / "once") == files(tmp_path / "pieces")
    verify_corpus(tmp_path / "pieces")


def test_a_remote_shard_is_sent_whole(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "_SPILL_BYTES", 1000)
    write_corpus(DOCUMENTS, memory_url, vocab_size=1000)
    assert verify_corpus(memory_url).tokens == sum(map(len, DOCUMENTS))
    assert TokenCorpus(memory_url).read(0, 3).tolist() == [1, 0, 0]


@pytest.mark.parametrize("where", ["local", "remote"])
@pytest.mark.parametrize("how", ["error", "dropped", "discarded"])
def test_nothing_is_left_of_what_is_given_up(
    tmp_path: Path, memory_url: str, monkeypatch: pytest.MonkeyPatch, where: str, how: str
) -> None:
    monkeypatch.setattr(part, "_SPILL_BYTES", 1000)
    writer: Any = TokenWriter(tmp_path / "out" if where == "local" else memory_url, vocab_size=1000)
    if how == "error":
        with pytest.raises(SourceError, match="document 8 has 5000 at position 0"), writer:
            list(map(writer.add, [*DOCUMENTS, [5000]]))
    else:
        list(map(writer.add, DOCUMENTS))
        if how == "discarded":
            discard_unfinished()
        del writer
        gc.collect()
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []


def test_many_documents_at_once(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    lengths = np.array([2, 1, 3])
    shard = ShardPart(storage, "shard-00000", "<u2", origin=True)
    shard.add_documents(np.arange(6, dtype=np.uint16), lengths, np.array([[0, 5], [0, 7], [2, 0]], np.uint64))
    shard.add_documents(np.array([9]), np.array([1]), np.array([[3, 1]], np.uint64))
    made = shard.commit()
    assert (made.tokens, made.documents, made.max_id) == (7, 4, 9)
    assert np.load(tmp_path / "shard-00000.docs.npy").tolist() == [0, 2, 3, 6, 7]
    origin = np.load(tmp_path / "shard-00000.origin.npy").reshape(-1, 2).tolist()
    assert origin == [[0, 5], [0, 7], [2, 0], [3, 1]]
