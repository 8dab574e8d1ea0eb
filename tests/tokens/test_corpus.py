"""Reading: bounds, ownership, and what opening and reading cost in files, whatever the number of shards."""

import json
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dew.data.errors import OptionsError
from dew.tokens import TokenCorpus, shards, write_corpus


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1000 shards of 7 tokens: token i of the stream is i % 1000."""
    path = tmp_path_factory.mktemp("thousand") / "corpus"
    write_corpus(np.arange(7000).reshape(1000, 7) % 1000, path, vocab_size=1000, shard_tokens=7)
    return path


def run(script: str, *arguments: Any) -> dict[str, Any]:
    """A child process's answer, printed as JSON."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_opening_reads_one_file(thousand: Path) -> None:
    answer = run(
        """
        import json, sys

        import psutil
        from dew.tokens import TokenCorpus, WindowSource

        root, touched = sys.argv[1], []
        sys.addaudithook(lambda event, args: touched.append((event, str(args[0]))) if event == "open" else None)
        source = WindowSource(TokenCorpus(root), seq_len=4)
        opened = [name for event, name in touched if name.startswith(root)]
        held = len(psutil.Process().open_files())
        print(json.dumps({"opened": opened, "held": held, "records": len(source)}))
        """,
        thousand,
    )
    assert answer == {"opened": [f"{thousand}/manifest.json"], "held": 0, "records": 6999 // 4}


def test_a_thousand_shards_keep_a_bounded_number_of_files_open(thousand: Path) -> None:
    process = psutil.Process()
    before = len(process.open_files())
    corpus, other = TokenCorpus(thousand), TokenCorpus(thousand)
    for reader in (corpus, other, corpus):
        found = reader.gather(np.arange(0, 6990), 10)
        np.testing.assert_array_equal(found, (np.arange(6990)[:, None] + np.arange(10)) % 1000)
        assert len(process.open_files()) - before <= shards.MAX_MAPS
    assert len(process.open_files()) - before >= shards.MAX_MAPS // 2
    corpus.close()
    other.close()
    assert len(process.open_files()) == before
    assert corpus.gather([6990], 10).tolist() == [list(range(990, 1000))]


def test_few_files_may_be_open(thousand: Path) -> None:
    """With room for 64 files, most shards are read without a map; the ids are the same."""
    answer = run(
        """
        import json, resource, sys

        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        import numpy as np
        import psutil
        from dew.tokens import TokenCorpus, shards

        corpus = TokenCorpus(sys.argv[1])
        starts = np.random.default_rng(0).integers(0, 6990, 2000)
        found = corpus.gather(starts, 10)
        right = bool((found == (starts[:, None] + np.arange(10)) % 1000).all())
        held = len(psutil.Process().open_files())
        print(json.dumps({"right": right, "bound": shards.MAX_MAPS, "held": held}))
        """,
        thousand,
    )
    assert answer == {"right": True, "bound": 16, "held": 16}


def test_a_shard_that_is_cut_while_it_is_read_without_a_map(text_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_MAPS", 0)
    corpus = TokenCorpus(text_path)
    assert corpus.read(0, 3).tolist() == list(b"the")
    path = text_path / "shard-00000.tokens.npy"
    path.write_bytes(path.read_bytes()[:150])
    with pytest.raises(
        ValueError, match=r"was cut while it was read: 38 bytes from 128 on were asked for, 22 are there"
    ):
        corpus.read(0, 19)


def test_it_pickles_by_path(thousand: Path) -> None:
    corpus = TokenCorpus(thousand)
    corpus.gather(np.arange(0, 6990, 7), 10)
    data = pickle.dumps(corpus)
    assert len(data) < 1000
    copy = pickle.loads(data)
    assert copy.manifest == corpus.manifest
    assert copy.read(5, 9).tolist() == [5, 6, 7, 8]


def test_another_process_reads_the_same(thousand: Path) -> None:
    corpus = TokenCorpus(thousand)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found = pool.submit(corpus.gather, [0, 500], 10).result()
    np.testing.assert_array_equal(found, corpus.gather([0, 500], 10))


def test_importing_loads_nothing_heavy() -> None:
    answer = run(
        """
        import json, sys
        import dew.tokens.plugin

        heavy = {"jax", "grain", "fsspec", "tokenizers", "importlib.metadata", "click", "rich"}
        print(json.dumps({"loaded": sorted(heavy & set(sys.modules))}))
        """
    )
    assert answer == {"loaded": []}


@pytest.fixture
def corpus(corpus_path: Path) -> Iterator[TokenCorpus]:
    corpus = TokenCorpus(corpus_path)
    yield corpus
    corpus.close()


def test_windows_must_be_in_the_corpus(corpus: TokenCorpus) -> None:
    last = corpus.tokens
    assert corpus.gather([last - 5], 5).shape == (1, 5)
    for starts in ([last - 4], [0, last - 4], [-1], [0, -1], [last], [1 << 62], [-(1 << 63)]):
        with pytest.raises(IndexError, match=rf"\) were asked for, there are tokens \[0, {last}\)"):
            corpus.gather(starts, 5)
    with pytest.raises(IndexError, match=rf"tokens \[0, {last + 1}\) were asked for"):
        corpus.gather([0], last + 1)
    with pytest.raises(OptionsError, match=r"width must be at least 1, got 0"):
        corpus.gather([0], 0)


def test_windows_can_be_kept_within_a_stretch(corpus: TokenCorpus, stream: np.ndarray[Any, Any]) -> None:
    np.testing.assert_array_equal(corpus.gather([100, 195], 5, within=(100, 200)), [stream[100:105], stream[195:200]])
    for start in (99, 196, 0, -(1 << 63), (1 << 63) - 1):
        with pytest.raises(IndexError, match=rf"tokens \[{start}, .*\) were asked for, there are tokens \[100, 200\)"):
            corpus.gather([150, start], 5, within=(100, 200))


def test_no_windows(corpus: TokenCorpus) -> None:
    found = corpus.gather(np.empty(0, np.int64), 7)
    assert (found.shape, found.dtype) == ((0, 7), np.int32)


def test_ranges_must_be_in_the_corpus(corpus: TokenCorpus) -> None:
    last = corpus.tokens
    assert corpus.read(last, last).size == 0
    for start, stop in ((-1, 3), (3, 2), (0, last + 1)):
        with pytest.raises(
            IndexError, match=rf"tokens \[{start}, {stop}\) were asked for, the corpus has tokens \[0, {last}\)"
        ):
            corpus.read(start, stop)
    with pytest.raises(IndexError, match="were asked for"):
        corpus.document_start(last)


def test_arrays_belong_to_the_caller(corpus: TokenCorpus, thousand: Path, tmp_path: Path) -> None:
    write_corpus([range(100)], tmp_path, vocab_size=100)
    for reader in (corpus, TokenCorpus(thousand), TokenCorpus(tmp_path)):
        for starts in ([0], [0, 3], np.arange(0, 90)):
            first = reader.gather(starts, 5)
            assert first.flags.c_contiguous
            assert first.flags.writeable
            assert first.flags.owndata  # a view would be copied once more by the stream
            expected = first.copy()
            first[...] = -1
            np.testing.assert_array_equal(reader.gather(starts, 5), expected)
        first = reader.read(0, 5)
        first[...] = 0
        assert reader.read(0, 5).tolist() != [0] * 5
        with pytest.raises(ValueError, match="read-only"):
            reader.offsets[0] = 1


def test_readers_are_closed_one_by_one(corpus: TokenCorpus) -> None:
    one, two = corpus.open(), corpus.open()
    expected = corpus.gather([0, 300], 9)
    np.testing.assert_array_equal(one.gather([0, 300], 9), expected)
    one.close()
    one.close()
    np.testing.assert_array_equal(two.gather([0, 300], 9), expected)
    np.testing.assert_array_equal(one.gather([0, 300], 9), expected)


def test_description(corpus: TokenCorpus) -> None:
    assert repr(corpus) == f"TokenCorpus(tokens={corpus.tokens}, documents=200, id={corpus.manifest.id[:12]})"
