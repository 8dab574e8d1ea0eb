"""Writing: ids are checked before any cast, files are always whole, and a crash leaves no corpus."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.data.errors import (
    DamagedSourceError,
    OptionsError,
    OptionsTypeError,
    SourceError,
    StorageError,
    StreamClosedError,
)
from dew.data.storage import Storage
from dew.tokens import ByteTokenizer, Framing, TokenCorpus, TokenizerInfo, TokenWriter, verify_corpus, write_corpus

GOLDEN = Path(__file__).parent.parent / "golden" / "token-corpus-v1.json"


def test_golden_bytes(tmp_path: Path) -> None:
    """The format, byte by byte: a change here breaks corpora and saved positions, and needs a new format version."""
    tokenizer = ByteTokenizer(bos=True, eos=True, pad=True)
    texts = ["Step k of a run", "", "is the same set of records", "é \N{SNOWMAN} \0", "end"]
    documents = [tokenizer.encode(text) for text in texts]
    write_corpus(documents, tmp_path / "bytes", tokenizer=tokenizer, bos=True, eos=True, shard_tokens=32)
    write_corpus([[0, 69_999], [65_536]], tmp_path / "wide", vocab_size=70_000)
    found = {
        f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(tmp_path.glob("*/*"))
    }
    assert found == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(1, "<u2"), (65_535, "<u2"), (65_536, "<u2"), (65_537, "<u4"), (1 << 31, "<u4")],
)
def test_width_is_that_of_the_largest_possible_id(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    assert write_corpus([[0, vocab_size - 1]], tmp_path, vocab_size=vocab_size).dtype == dtype
    assert TokenCorpus(tmp_path).read(0, 2).tolist() == [0, vocab_size - 1]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (
            [3, 70_000],
            r"document 2 has 70000 at position 1, and ids are whole numbers from 0 to 999; if .* added tokens",
        ),
        ([3, 4, 1000, -1], r"document 2 has 1000 at position 2"),
        ([-1], r"document 2 has -1 at position 0"),
        (np.array([1, 65_536 + 5], np.uint32), r"document 2 has 65541 at position 1"),
        (np.array([1, -5], np.int16), r"document 2 has -5 at position 1"),
        ([1, 1 << 63], r"document 2 has 9223372036854775808 at position 1"),
        ([1, -3, 1 << 63], r"document 2 has -3 at position 1, and ids are whole numbers from 0"),
        ([1, 1 << 70], r"document 2 has 1180591620717411303424 at position 1"),
        ([1, 2.0], r"document 2 has 2\.0 at position 1"),
        (np.array([7.0]), r"document 2 has (np\.float64\(7\.0\)|7\.0) at position 0"),
        ([True, False], r"document 2 has True at position 0"),
        (["a"], r"document 2 has 'a' at position 0"),
        ([None], r"document 2 has None at position 0"),
        ([[1, 2]], r"document 2 has the shape \(1, 2\), ids are a flat sequence"),
        ([[1], [2, 3]], r"document 2 is no flat sequence of ids \(n,\): "),
        (5, r"document 2 has the shape \(\), ids are a flat sequence"),
    ],
)
def test_ids_are_refused_before_the_cast(tmp_path: Path, ids: Any, message: str) -> None:
    with TokenWriter(tmp_path / "corpus", vocab_size=1000) as writer:
        writer.add([1, 2])
        writer.add([])
        with pytest.raises(SourceError, match=message):
            writer.add(ids)
        writer.add([3])
    corpus = TokenCorpus(tmp_path / "corpus")
    assert corpus.read(0, corpus.tokens).tolist() == [1, 2, 3]
    assert (corpus.documents, corpus.manifest.empty_documents) == (2, 1)


def test_framing_puts_exactly_one_of_each(tmp_path: Path) -> None:
    info = TokenizerInfo(vocab_size=10, bos_id=1, eos_id=2)
    documents = [[5, 6], [], [1, 5], [5, 2], [1, 7, 2], [2]]
    manifest = write_corpus(documents, tmp_path / "both", tokenizer=info, bos=True, eos=True)
    assert manifest.framing == Framing(bos=True, eos=True)
    corpus = TokenCorpus(tmp_path / "both")
    found = [corpus.read(*corpus.offsets[d : d + 2].tolist()).tolist() for d in range(corpus.documents)]
    assert found == [[1, 5, 6, 2], [1, 5, 2], [1, 5, 2], [1, 7, 2], [1, 2]]
    assert write_corpus(documents, tmp_path / "none", tokenizer=info).framing == Framing()
    assert TokenCorpus(tmp_path / "none").tokens == 10


def test_documents_are_never_split(tmp_path: Path) -> None:
    lengths = [3, 4, 20, 1, 1, 8, 2]
    manifest = write_corpus([[0] * length for length in lengths], tmp_path, vocab_size=1, shard_tokens=8)
    assert [shard.tokens for shard in manifest.shards] == [7, 20, 2, 8, 2]
    assert [shard.documents for shard in manifest.shards] == [2, 1, 2, 1, 1]


def test_empty_documents_are_counted_in_their_shard(tmp_path: Path) -> None:
    manifest = write_corpus([[], [1], [], [2], [], []], tmp_path, vocab_size=3, shard_tokens=1)
    assert [shard.empty_documents for shard in manifest.shards] == [2, 2]
    assert (manifest.documents, manifest.empty_documents, manifest.tokens) == (2, 4, 2)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({}, OptionsError, r"give tokenizer= or vocab_size=, one of them"),
        ({"vocab_size": 5, "tokenizer": ByteTokenizer()}, OptionsError, r"give tokenizer= or vocab_size=, one of them"),
        ({"vocab_size": 0}, OptionsError, r"vocab_size must be at least 1, got 0"),
        ({"vocab_size": 1.5}, OptionsTypeError, r"vocab_size must be an int, got 1\.5"),
        ({"vocab_size": (1 << 31) + 1}, OptionsError, r"vocab_size must be at most 2\*\*31.*got 2147483649"),
        ({"tokenizer": "bytes"}, OptionsTypeError, r"tokenizer must be a Tokenizer or a TokenizerInfo, got str"),
        ({"vocab_size": 5, "bos": True}, OptionsError, r"bos=True was asked for, but the tokenizer has no bos_id"),
        ({"tokenizer": ByteTokenizer(eos=False), "eos": True}, OptionsError, r"the tokenizer has no eos_id"),
        ({"vocab_size": 5, "shard_tokens": 0}, OptionsError, r"shard_tokens must be at least 1, got 0"),
    ],
)
def test_wrong_arguments(tmp_path: Path, options: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        write_corpus([[1]], tmp_path / "corpus", **options)
    assert not (tmp_path / "corpus").exists()


def test_special_ids_must_be_in_the_vocabulary() -> None:
    with pytest.raises(OptionsError, match=r"eos_id is 50257, but vocab_size is 50257: count added tokens too"):
        TokenizerInfo(vocab_size=50257, eos_id=50257)
    with pytest.raises(OptionsError, match=r"pad_id must be at least 0, got -1"):
        TokenizerInfo(vocab_size=5, pad_id=-1)
    with pytest.raises(OptionsError, match=r"sha256 must be 64 hexadecimal digits in lower case or None, got 'abc'"):
        TokenizerInfo(vocab_size=5, sha256="abc")


def test_a_finished_corpus_is_not_written_over(tmp_path: Path) -> None:
    first = write_corpus([[1]] * 3, tmp_path, vocab_size=5, shard_tokens=1)
    with pytest.raises(OptionsError, match=r"already holds a finished corpus; pass overwrite=True"):
        write_corpus([[2]], tmp_path, vocab_size=5)
    assert verify_corpus(tmp_path) == first
    second = write_corpus([[2]], tmp_path, vocab_size=5, overwrite=True)
    assert verify_corpus(tmp_path) == second != first
    assert len(list(tmp_path.iterdir())) == 4


def test_an_overwrite_that_fails_leaves_no_corpus(tmp_path: Path) -> None:
    """Neither the old one, whose shards are gone, nor a mixture."""
    write_corpus([[1]] * 3, tmp_path, vocab_size=5, shard_tokens=1)
    with pytest.raises(SourceError, match="document 1 has 9"):
        write_corpus([[1], [9]], tmp_path, vocab_size=5, shard_tokens=1, overwrite=True)
    with pytest.raises(
        DamagedSourceError, match=r"no manifest\.json, which is written last, and 0 shards with receipts"
    ):
        TokenCorpus(tmp_path)


def test_a_finished_remote_corpus_is_not_written_over(memory_url: str) -> None:
    write_corpus([[1]], memory_url, vocab_size=5)
    with pytest.raises(OptionsError, match=r"memory://.* already holds a finished corpus; remove it first"):
        write_corpus([[2]], memory_url, vocab_size=5, overwrite=True)


def test_other_files_of_the_directory_stay(tmp_path: Path) -> None:
    for name in ("notes.txt", "shard-1.json", "shard-00000.txt", "plan.json"):
        (tmp_path / name).write_text("mine")
    for name in ("shard-00009.json", "shard-00009.tokens.npy", "shard-00004.roles.npy", ".dew-tmp-0123456789abcdef"):
        (tmp_path / name).write_text("left over")
    write_corpus([[1]], tmp_path, vocab_size=5)
    ours = {"manifest.json", "shard-00000.json", "shard-00000.tokens.npy", "shard-00000.docs.npy"}
    assert {path.name for path in tmp_path.iterdir()} == ours | {
        "notes.txt",
        "shard-1.json",
        "shard-00000.txt",
        "plan.json",
    }


def test_nothing_to_write(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no tokens to write to .*: of 2 documents given, all are empty"):
        write_corpus([[], []], tmp_path / "corpus", vocab_size=5)
    with pytest.raises(SourceError, match=r"of 0 documents given"):
        write_corpus([], tmp_path / "corpus", vocab_size=5)
    assert not (tmp_path / "corpus").exists()


def test_an_exception_in_the_block_leaves_no_corpus(tmp_path: Path) -> None:
    writer = TokenWriter(tmp_path, vocab_size=5, shard_tokens=1)

    def documents() -> Iterator[list[int]]:
        yield from ([1], [2], [3])
        raise KeyError

    with pytest.raises(KeyError), writer:
        list(map(writer.add, documents()))
    with pytest.raises(
        DamagedSourceError, match=r"no manifest\.json, which is written last, and 2 shards with receipts"
    ):
        TokenCorpus(tmp_path)
    with pytest.raises(StreamClosedError, match=r"this writer was left by an exception"):
        writer.close()
    with pytest.raises(StreamClosedError, match=r"this writer was closed after 3 documents"):
        writer.add([4])


def test_a_closed_writer(tmp_path: Path) -> None:
    with TokenWriter(tmp_path, vocab_size=5) as writer:
        writer.add([1])
        assert repr(writer) == "TokenWriter(documents=1, shards=0, dtype='<u2')"
    assert writer.close() == writer.manifest == TokenCorpus(tmp_path).manifest
    with pytest.raises(StreamClosedError, match=r"closed after 1 documents; make one for the next corpus"):
        writer.add([1])


def test_a_fault_at_any_write_leaves_no_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are written before their receipt, receipts before the manifest: whichever write fails, nothing opens."""
    documents = [[1, 2], [3], [4, 5, 6]]
    write = Storage.write
    left = 0

    def failing(self: Storage, name: str, data: bytes) -> None:
        nonlocal left
        if left == 0:
            raise StorageError("the disk is full")
        left -= 1
        write(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "write", failing)
        for written in range(10):
            left = written
            with pytest.raises(StorageError, match="the disk is full"):
                write_corpus(documents, tmp_path, vocab_size=9, shard_tokens=2)
            if written:
                with pytest.raises(DamagedSourceError, match=rf"and {written // 3} shards with receipts"):
                    TokenCorpus(tmp_path)
        left = 10
        write_corpus(documents, tmp_path, vocab_size=9, shard_tokens=2)
    verify_corpus(tmp_path)


def test_a_killed_writer_leaves_no_corpus_and_can_run_again(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import itertools, sys
        from dew.tokens import write_corpus

        documents = ([number % 1000] * 5000 for number in itertools.count())
        if len(sys.argv) > 2:
            documents = itertools.islice(documents, int(sys.argv[2]))
        write_corpus(documents, sys.argv[1], vocab_size=1000, shard_tokens=20_000)
        """
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    writer = subprocess.Popen(command)
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "shard-00004.json").exists():
            assert writer.poll() is None
            assert time.monotonic() < end, "no fifth shard in a minute"
            time.sleep(0.005)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert not (tmp_path / "manifest.json").exists()
    receipts = len(list(tmp_path.glob("shard-*.json")))
    with pytest.raises(DamagedSourceError, match=rf"no manifest\.json, which is written last, and {receipts} shards"):
        TokenCorpus(tmp_path)
    subprocess.run([*command, "10"], check=True)
    assert verify_corpus(tmp_path).tokens == 50_000
    assert sorted(os.listdir(tmp_path)) == [
        "manifest.json",
        *(f"shard-0000{n}.{kind}" for n in range(3) for kind in ("docs.npy", "json", "tokens.npy")),
    ]
