"""Documents -> corpus -> reads give the same ids, however the corpus is cut and wherever it is stored."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from dew.data.storage import Storage
from dew.tokens import TokenCorpus, TokenizerInfo, WindowSource, verify_corpus, write_corpus
from dew.tokens.shards import ManifestFiles, Pieces, RemoteShards


def windows_of(ids: np.ndarray[Any, Any], starts: list[int], width: int) -> np.ndarray[Any, Any]:
    """What `gather` should return."""
    return np.array([ids[start : start + width] for start in starts], np.int32).reshape(len(starts), width)


@given(data=st.data(), vocab_size=st.sampled_from([2, 257, 65535, 65536, 65537, 1 << 31]))
def test_any_documents_come_back(data: st.DataObject, vocab_size: int) -> None:
    ids = st.integers(0, vocab_size - 1)
    documents = data.draw(st.lists(st.lists(ids, max_size=12), min_size=1, max_size=12).filter(any))
    shard_tokens = data.draw(st.integers(1, 40))
    full = [document for document in documents if document]
    expected = np.concatenate([np.array(document, np.int64) for document in full])
    with tempfile.TemporaryDirectory() as path:
        manifest = write_corpus(documents, path, vocab_size=vocab_size, shard_tokens=shard_tokens)
        corpus = TokenCorpus(path)
        assert corpus.manifest == manifest == verify_corpus(path)
        assert (corpus.tokens, corpus.documents) == (len(expected), len(full))
        assert manifest.empty_documents == len(documents) - len(full)
        np.testing.assert_array_equal(corpus.read(0, corpus.tokens), expected)
        np.testing.assert_array_equal(corpus.offsets, np.cumsum([0, *map(len, full)]))
        width = data.draw(st.integers(1, len(expected)))
        starts = data.draw(st.lists(st.integers(0, len(expected) - width), max_size=20))
        found = corpus.gather(np.array(starts, np.int64), width)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, windows_of(expected, starts, width))
        token = data.draw(st.integers(0, len(expected) - 1))
        assert corpus.document_start(token) == corpus.offsets[corpus.offsets <= token][-1]
        first = data.draw(st.integers(0, len(expected)))
        last = data.draw(st.integers(first, len(expected)))
        np.testing.assert_array_equal(corpus.read(first, last), expected[first:last])


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65536, "<u2"), (65537, "<u4")])
def test_numpy_alone_reads_every_file(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    documents = [[5, 0, vocab_size - 1], [7], [1, 2]]
    write_corpus(documents, tmp_path, vocab_size=vocab_size, shard_tokens=4)
    first = np.load(tmp_path / "shard-00000.tokens.npy", mmap_mode="r")
    assert first.dtype == dtype
    assert first.tolist() == [5, 0, vocab_size - 1, 7]
    assert np.load(tmp_path / "shard-00001.tokens.npy").tolist() == [1, 2]
    offsets = np.load(tmp_path / "shard-00000.docs.npy", mmap_mode="r")
    assert offsets.dtype == "<u8"
    assert offsets.tolist() == [0, 3, 4]


def test_files_are_those_that_numpy_saves(tmp_path: Path) -> None:
    write_corpus([[1, 2, 3]], tmp_path / "corpus", vocab_size=10)
    np.save(tmp_path / "tokens.npy", np.array([1, 2, 3], "<u2"))
    np.save(tmp_path / "docs.npy", np.array([0, 3], "<u8"))
    for kind in ("tokens", "docs"):
        written = (tmp_path / "corpus" / f"shard-00000.{kind}.npy").read_bytes()
        assert written == (tmp_path / f"{kind}.npy").read_bytes()


def test_shards_do_not_move_windows(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    documents = [rng.integers(0, 99, size=length) for length in rng.integers(1, 30, 50)]
    found = []
    for shard_tokens in (1, 17, 64, 10_000):
        path = tmp_path / str(shard_tokens)
        write_corpus(documents, path, vocab_size=99, shard_tokens=shard_tokens)
        source = WindowSource(TokenCorpus(path), seq_len=8)
        found.append(source.take(np.arange(len(source))[::-1])["text"])
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_ids_of_65536_and_more_do_not_wrap(tmp_path: Path) -> None:
    """Case C02."""
    ids = [69999, 65536, 65535, 0]
    manifest = write_corpus([ids], tmp_path, vocab_size=70_000)
    assert manifest.dtype == "<u4"
    corpus = TokenCorpus(tmp_path)
    assert corpus.read(0, 4).tolist() == ids
    assert corpus.gather([0], 4).tolist() == [ids]


def test_zero_and_padding_ids_are_ordinary(tmp_path: Path) -> None:
    info = TokenizerInfo(vocab_size=10, bos_id=0, eos_id=1, pad_id=0)
    documents = [[0, 0, 0], [0], [5, 0, 1, 0, 1], [1]]
    write_corpus(documents, tmp_path, tokenizer=info)
    corpus = TokenCorpus(tmp_path)
    assert corpus.read(0, corpus.tokens).tolist() == [0, 0, 0, 0, 5, 0, 1, 0, 1, 1]
    assert corpus.offsets.tolist() == [0, 3, 4, 9, 10]
    assert WindowSource(corpus, seq_len=3)[0]["text"].tolist() == [0, 0, 0, 0]


def test_remote_reads_are_the_local_ones(
    memory_url: str, corpus_path: Path, documents: list[Any], stream: np.ndarray[Any, Any]
) -> None:
    write_corpus(documents, memory_url, vocab_size=1000, shard_tokens=100)
    remote, local = TokenCorpus(memory_url), TokenCorpus(corpus_path)
    assert remote.manifest == local.manifest == verify_corpus(memory_url)
    for name in ("shard-00003.tokens.npy", "shard-00003.docs.npy", "shard-00003.json", "manifest.json"):
        assert fsspec.filesystem("memory").cat_file(f"{memory_url}/{name}") == (corpus_path / name).read_bytes()
    np.testing.assert_array_equal(remote.offsets, local.offsets)
    np.testing.assert_array_equal(remote.read(50, 3000), stream[50:3000])
    starts = np.random.default_rng(0).integers(0, len(stream) - 129, 64)
    for width in (1, 2, 129):
        np.testing.assert_array_equal(remote.gather(starts, width), local.gather(starts, width))
        np.testing.assert_array_equal(remote.gather(starts, width), windows_of(stream, starts.tolist(), width))


class CountingFiles(MemoryFileSystem):
    """fsspec's memory, and which byte ranges were asked for."""

    protocol = "dewcounting"
    store: dict[str, Any] = {}  # noqa: RUF012 - fsspec's own form
    pseudo_dirs = [""]  # noqa: RUF012
    asked: list[tuple[str, int, int]] = []  # noqa: RUF012

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        if start is not None:
            self.asked.append((path.rpartition("/")[2], start, end))
        return super().cat_file(path, start=start, end=end, **kwargs)


@pytest.fixture
def counting_url() -> Any:
    fsspec.register_implementation("dewcounting", CountingFiles, clobber=True)
    yield "dewcounting://corpus"
    CountingFiles.store.clear()
    CountingFiles.asked.clear()


def test_neighbouring_remote_windows_are_one_request(counting_url: str) -> None:
    ids = np.random.default_rng(1).integers(0, 500, 200_000)
    write_corpus([ids], counting_url, vocab_size=500)
    corpus = TokenCorpus(counting_url)
    assert CountingFiles.asked == []
    corpus.gather([0], 8)
    assert len(CountingFiles.asked) == 2  # the header, once, and the window
    del CountingFiles.asked[:]
    starts = [150_000, 8, 0, 16, 150_004]
    np.testing.assert_array_equal(corpus.gather(starts, 9), windows_of(ids, starts, 9))
    assert sorted(CountingFiles.asked) == [
        ("shard-00000.tokens.npy", 128, 128 + 2 * 25),
        ("shard-00000.tokens.npy", 128 + 2 * 150_000, 128 + 2 * 150_013),
    ]


def test_remote_pieces_may_lie_in_each_other(memory_url: str) -> None:
    write_corpus([range(100)], memory_url, vocab_size=100)
    reader = RemoteShards(Storage(memory_url), ManifestFiles(TokenCorpus(memory_url).manifest))
    found = reader.read(Pieces([0, 0, 0], [20, 0, 10], [30, 100, 40]))
    expected = np.arange(100, dtype="<u2").tobytes()
    assert [bytes(piece) for piece in found] == [expected[20:30], expected[:100], expected[10:40]]


def test_threads_share_a_corpus(corpus_path: Path, stream: np.ndarray[Any, Any]) -> None:
    corpus = TokenCorpus(corpus_path)

    def read(seed: int) -> bool:
        starts = np.random.default_rng(seed).integers(0, len(stream) - 33, 16)
        width = 1 + seed % 33
        return bool((corpus.gather(starts, width) == windows_of(stream, starts.tolist(), width)).all())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(400)))
