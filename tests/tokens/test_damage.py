"""Corpora that are missing, half-written, cut or altered, or contradict themselves: refused, never read wrongly."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.data.errors import DamagedSourceError, SourceNotFoundError
from dew.data.storage import Storage
from dew.tokens import TokenCorpus, verify_corpus, write_corpus

Values = dict[str, Any]


def canonical_id(values: Values) -> str:
    """The id as the format defines it, computed here once more."""
    rest = {key: value for key, value in values.items() if key != "id"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def rewrite(path: Path, change: Callable[[Values], Any], *, new_id: bool = True) -> None:
    """Change a corpus's manifest as someone would who also corrects its id."""
    values = json.loads((path / "manifest.json").read_text())
    change(values)
    if new_id:
        values["id"] = canonical_id(values)
    (path / "manifest.json").write_text(json.dumps(values))


def read_all(path: Path) -> None:
    """Everything a training run reads."""
    corpus = TokenCorpus(path)
    corpus.read(0, corpus.tokens)
    corpus.gather(np.arange(corpus.tokens - 3), 4)


def test_a_missing_path(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"no token corpus at .*/nowhere: there is no such directory"):
        TokenCorpus(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="no such directory"):
        verify_corpus(tmp_path / "nowhere")


def test_a_file_in_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "tokens.npy").write_bytes(b"")
    with pytest.raises(SourceNotFoundError, match=r"tokens\.npy: there is no such directory"):
        TokenCorpus(tmp_path / "tokens.npy")


def test_a_missing_remote_path(memory_url: str) -> None:
    with pytest.raises(SourceNotFoundError, match=r"no token corpus at memory://dew-.*: there is no such directory"):
        TokenCorpus(memory_url)


def test_credentials_are_not_shown(memory_url: str) -> None:
    url = memory_url.replace("memory://", "memory://user:secret@") + "?key=secret"
    with pytest.raises(SourceNotFoundError, match=r"memory://\*\*\*@dew-") as caught:
        TokenCorpus(url)
    assert "secret" not in str(caught.value)


def test_a_half_written_corpus(text_path: Path) -> None:
    (text_path / "manifest.json").unlink()
    with pytest.raises(
        DamagedSourceError, match=r"no manifest\.json, which is written last, and 3 shards with receipts"
    ):
        TokenCorpus(text_path)


def test_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(DamagedSourceError, match=r"and 0 shards with receipts; write the corpus again"):
        TokenCorpus(tmp_path)


def test_an_altered_manifest(text_path: Path) -> None:
    def change(values: Values) -> None:
        values["tokenizer"]["name"] = "other"

    rewrite(text_path, change, new_id=False)
    with pytest.raises(
        DamagedSourceError, match=r"manifest\.json was altered.*states the id \w{64}, its contents have the id"
    ):
        TokenCorpus(text_path)


def test_layout_of_the_json_does_not_matter(text_path: Path) -> None:
    rewrite(text_path, lambda values: None, new_id=False)
    read_all(text_path)
    verify_corpus(text_path)


def test_unknown_keys_are_covered_by_the_id(text_path: Path) -> None:
    before = TokenCorpus(text_path).manifest
    rewrite(text_path, lambda values: values.update(sources=["a.txt"]))
    after = TokenCorpus(text_path).manifest
    assert after.id != before.id
    rewrite(text_path, lambda values: values.update(sources=["b.txt"]), new_id=False)
    with pytest.raises(DamagedSourceError, match="was altered"):
        TokenCorpus(text_path)


def shard(**changes: Any) -> Callable[[Values], None]:
    """A change of the first shard's entry."""
    return lambda values: values["shards"][0].update(changes)


def top(**changes: Any) -> Callable[[Values], None]:
    return lambda values: values.update(changes)


def two_alike(values: Values) -> None:
    values["shards"] = [values["shards"][0]] * 2
    for total in ("tokens", "documents", "empty_documents"):
        values[total] = 2 * values["shards"][0][total]


def longer(values: Values) -> None:
    for entry in (values, values["shards"][0]):
        entry["tokens"] += 1
    values["shards"][0]["files"]["tokens"]["bytes"] += 2


def fewer_documents(values: Values) -> None:
    for entry in (values, values["shards"][0]):
        entry["documents"] -= 1


CONTRADICTIONS: list[tuple[Callable[[Values], Any], str]] = [
    (top(tokens=1), r"states 1 tokens, but its shards add up to 73"),
    (top(documents=9), r"states 9 documents, but its shards add up to 4"),
    (top(empty_documents=0), r"states 0 empty_documents, but its shards add up to 1"),
    (top(format="other"), r"has the format 'other', not 'dew-tokens'"),
    (top(version=2), r"has version 2 of the format 'dew-tokens', this dew-core reads version 1"),
    (top(dtype="<i2"), r"states dtype '<i2', token files are <u2 or <u4"),
    (top(dtype="|O"), r"states dtype '\|O'"),
    (top(dtype="<u4"), r"states 166 bytes for shard-00000\.tokens\.npy, 19 elements take 204"),
    (top(tokens=1 << 70), r"'tokens' must be a whole number in \[0, 2\*\*62\), got 1180591620717411303424"),
    (top(tokens=-1), r"'tokens' must be a whole number in \[0, 2\*\*62\), got -1"),
    (top(tokens=73.0), r"'tokens' must be a whole number in \[0, 2\*\*62\), got 73\.0"),
    (top(tokens=True), r"'tokens' must be a whole number in \[0, 2\*\*62\), got True"),
    (top(shards=[], tokens=0, documents=0, empty_documents=0), r"lists no shards; a corpus has at least one"),
    (top(shards={}), r"'shards' must be a list, got \{\}"),
    (top(shards=[5]), r"'shards\[0\]' must be an object, got 5"),
    (top(framing=None), r"'framing' must be an object, got None"),
    (top(framing={"bos": 0, "eos": True}), r"framing: 'bos' must be true or false, got 0"),
    (lambda values: values.pop("dtype"), r"manifest\.json has no 'dtype'; it has \['documents', 'empty_documents'"),
    (lambda values: values["tokenizer"].update(name=5), r"tokenizer: 'name' must be a string, got 5"),
    (lambda values: values["tokenizer"].update(sha256="x"), r"sha256 must be 64 hexadecimal digits"),
    (lambda values: values["tokenizer"].update(vocab_size=0), r"vocab_size must be at least 1, got 0"),
    (lambda values: values["tokenizer"].update(vocab_size=256), r"eos_id is 256, but vocab_size is 256"),
    (
        lambda values: values["tokenizer"].update(vocab_size=70_000),
        r"dtype <u2, which cannot hold every id of .* 70000",
    ),
    (shard(name="../shard-00000"), r"names a shard '\.\./shard-00000'; a name is shard- and at least five digits"),
    (shard(name="/etc/shard-00000"), r"names a shard '/etc/shard-00000'"),
    (shard(name="shard-00000\n"), r"names a shard 'shard-00000\\n'"),
    (shard(name="shard-" + 5 * "\N{ARABIC-INDIC DIGIT ZERO}"), r"names a shard 'shard-"),
    (shard(max_id=257), r"shard-00000 holds the id 257, but the tokenizer has ids 0 to 256"),
    (shard(tokens=20), r"states 73 tokens, but its shards add up to 74"),
    (shard(files={}), r"shard-00000 lists the files \[\], not tokens and docs"),
    (
        lambda values: values["shards"][0]["files"].update({"../x": {"bytes": 1, "sha256": "0" * 64}}),
        r"shard-00000 lists the files \['\.\./x', 'docs', 'tokens'\]",
    ),
    (
        lambda values: values["shards"][0]["files"]["docs"].update(bytes=10**12),
        r"states 1000000000000 bytes for shard-00000\.docs\.npy, 2 elements take 144",
    ),
    (
        lambda values: values["shards"][0]["files"]["docs"].update(sha256="A" * 64),
        r"shard-00000\.docs\.npy has no sha256, but 'AAAA",
    ),
    (fewer_documents, r"shard-00000 states 0 documents and 19 tokens"),
    (two_alike, r"names a shard twice: \['shard-00000'\]"),
]


@pytest.mark.parametrize(("change", "message"), CONTRADICTIONS, ids=[message for _, message in CONTRADICTIONS])
def test_a_manifest_that_contradicts_itself(text_path: Path, change: Callable[[Values], Any], message: str) -> None:
    rewrite(text_path, change)
    with pytest.raises(DamagedSourceError, match=message):
        TokenCorpus(text_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"is not JSON \(0 bytes\)"),
        (b'{"format": "dew-tokens", "ver', r"is not JSON \(29 bytes\)"),
        (b"\xff\xfe", r"is not JSON"),
        (b"[" * 200_000, r"is not JSON"),
        (b'{"tokens": NaN}', r"is not JSON .*NaN is not a JSON value"),
        (b"[]", r"holds a JSON list, not an object"),
        (b"{}", r"has no 'format'; it has \[\]"),
    ],
)
def test_a_manifest_that_is_none(text_path: Path, data: bytes, message: str) -> None:
    (text_path / "manifest.json").write_bytes(data)
    with pytest.raises(DamagedSourceError, match=rf"manifest\.json {message}"):
        TokenCorpus(text_path)


def test_a_manifest_that_promises_more_than_the_file_has(text_path: Path) -> None:
    rewrite(text_path, longer)
    with pytest.raises(DamagedSourceError, match=r"shard-00000\.tokens\.npy has 166 bytes, the manifest states 168"):
        read_all(text_path)


def test_a_manifest_that_promises_the_moon(text_path: Path) -> None:
    """Consistent in itself, and refused before memory is asked for."""
    tokens, documents = 1 << 60, 1 << 58

    def change(values: Values) -> None:
        values["tokens"] += tokens
        values["documents"] += documents
        entry = values["shards"][2]
        entry["tokens"] += tokens
        entry["documents"] += documents
        entry["files"]["tokens"]["bytes"] += 2 * tokens
        entry["files"]["docs"]["bytes"] += 8 * documents

    rewrite(text_path, change)
    corpus = TokenCorpus(text_path)
    assert corpus.tokens == tokens + 73
    assert corpus.gather([0], 20).shape == (1, 20)
    with pytest.raises(DamagedSourceError, match=r"shard-00002\.docs\.npy has 144 bytes, the manifest states \d{19}"):
        _ = corpus.offsets
    with pytest.raises(DamagedSourceError, match=r"shard-00002\.tokens\.npy has 160 bytes, the manifest states \d{19}"):
        corpus.read(0, corpus.tokens)


def test_a_shard_that_grew(text_path: Path) -> None:
    with (text_path / "shard-00000.tokens.npy").open("ab") as file:
        file.write(b"xx")
    with pytest.raises(DamagedSourceError, match=r"shard-00000\.tokens\.npy has 168 bytes, the manifest states 166"):
        read_all(text_path)


@pytest.mark.parametrize("kept", [0, 100, 128, 165])
def test_a_truncated_shard(text_path: Path, kept: int) -> None:
    path = text_path / "shard-00000.tokens.npy"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        DamagedSourceError, match=rf"shard-00000\.tokens\.npy has {kept} bytes, the manifest states 166"
    ):
        read_all(text_path)
    with pytest.raises(DamagedSourceError, match=r"1 findings:\n.*shard-00000\.tokens\.npy has"):
        verify_corpus(text_path)


def test_a_truncated_remote_shard(text_path: Path, memory_url: str) -> None:
    storage = Storage(memory_url)
    for path in text_path.iterdir():
        storage.write(path.name, path.read_bytes()[:-1] if path.name == "shard-00001.tokens.npy" else path.read_bytes())
    corpus = TokenCorpus(memory_url)
    corpus.read(0, 19)
    with pytest.raises(
        DamagedSourceError, match=r"memory://.*shard-00001\.tokens\.npy has 203 bytes, the manifest states 204"
    ):
        corpus.read(0, corpus.tokens)


def test_a_missing_shard(text_path: Path) -> None:
    (text_path / "shard-00001.tokens.npy").unlink()
    with pytest.raises(
        DamagedSourceError, match=r"shard-00001\.tokens\.npy is missing, the manifest lists it with 204 bytes"
    ):
        read_all(text_path)


def with_header(path: Path, array: np.ndarray[Any, Any], size: int) -> None:
    """Replace the file by another array's header and bytes, of the size that is expected."""
    np.save(path, array, allow_pickle=True)
    path.write_bytes(path.read_bytes()[:size].ljust(size))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(19, "<i2"), r"has 19 elements of <i2 by its own header, 19 of <u2 by the manifest"),
        (np.zeros(18, "<u2"), r"has 18 elements of <u2 by its own header, 19 of <u2 by the manifest"),
        (np.zeros(19, ">u2"), r"has 19 elements of >u2 by its own header"),
        (np.zeros((19, 1), "<u2"), r"an array of shape \(19, 1\)"),
        (np.array([{}], object), r"an array of shape \(1,\) and dtype object instead of a flat one of integers"),
    ],
)
def test_headers_that_disagree(text_path: Path, array: np.ndarray[Any, Any], message: str) -> None:
    with_header(text_path / "shard-00000.tokens.npy", array, 166)
    with pytest.raises(DamagedSourceError, match=message):
        read_all(text_path)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"", r"is not a token file, it starts with no \.npy header of version 1\.0 and 128 bytes, but b'"),
        (b"\x93NUMPY\x02\x00", r"no \.npy header of version 1\.0"),
        (b"\x93NUMPY\x01\x00\xf6\x00", r"a \.npy header of 256 bytes instead of 128"),
        (b"\x93NUMPY\x01\x00\x76\x00__import__('os')", r"is not a token file"),
        (b"\x93NUMPY\x01\x00\x76\x00{'descr': ('<u2'".ljust(128), r"starts with a \.npy header that cannot be read"),
    ],
)
def test_files_that_are_no_arrays(text_path: Path, head: bytes, message: str) -> None:
    (text_path / "shard-00000.tokens.npy").write_bytes(head.ljust(166, b"\0"))
    with pytest.raises(DamagedSourceError, match=message):
        read_all(text_path)


@pytest.mark.parametrize(
    "offsets",
    [[0, 0, 38], [0, 38, 38], [1, 32, 38], [0, 32, 37], [0, 39, 38], [0, 1 << 63, 38]],
)
def test_offsets_that_make_no_documents(text_path: Path, offsets: list[int]) -> None:
    np.save(text_path / "shard-00001.docs.npy", np.array(offsets, "<u8"))
    corpus = TokenCorpus(text_path)
    assert corpus.manifest.shards[1].documents == 2
    with pytest.raises(DamagedSourceError, match=r"shard-00001\.docs\.npy must rise from 0 to 38"):
        _ = corpus.offsets
    with pytest.raises(DamagedSourceError, match=r"shard-00001\.docs\.npy must rise from 0 to 38"):
        corpus.document_start(20)
    assert corpus.document_start(18) == 0  # the other shard is whole


def test_a_corpus_that_is_replaced_after_it_was_pickled(text_path: Path) -> None:
    corpus = TokenCorpus(text_path)
    reopen, arguments = corpus.__reduce__()
    assert reopen(*arguments).manifest == corpus.manifest
    write_corpus([[1, 2]], text_path, vocab_size=5, overwrite=True)
    with pytest.raises(
        DamagedSourceError, match=rf"held the corpus {corpus.manifest.id} when it was opened, now it holds"
    ):
        reopen(*arguments)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_verify_finds_one_changed_bit(text_path: Path) -> None:
    verify_corpus(text_path)
    for name, position in (
        ("shard-00000.tokens.npy", -1),
        ("shard-00001.tokens.npy", 130),
        ("shard-00001.docs.npy", 137),
    ):
        copy = text_path.parent / "copy"
        shutil.copytree(text_path, copy)
        flip(copy / name, position)
        with pytest.raises(
            DamagedSourceError, match=rf"1 findings:\n  .*{name} has the sha256 \w+, the manifest states"
        ):
            verify_corpus(copy)
        shutil.rmtree(copy)


def test_verify_compares_receipts(text_path: Path) -> None:
    receipt = text_path / "shard-00000.json"
    values = json.loads(receipt.read_text())
    receipt.write_text(json.dumps({**values, "empty_documents": 5}))
    with pytest.raises(
        DamagedSourceError, match=r"shard-00000\.json states .*empty_documents=5.*, the manifest states"
    ):
        verify_corpus(text_path)
    receipt.write_text(json.dumps({**values, "format": "dew-tokens"}))
    with pytest.raises(DamagedSourceError, match=r"has the format 'dew-tokens', not 'dew-token-shard'"):
        verify_corpus(text_path)
    receipt.unlink()
    (text_path / "shard-00001.docs.npy").unlink()
    with pytest.raises(
        DamagedSourceError, match=r"2 findings:\n.*shard-00000\.json is missing\n.*docs\.npy is missing"
    ):
        verify_corpus(text_path)


def replace_file(path: Path, kind: str, array: np.ndarray[Any, Any]) -> None:
    """Another file for shard 1, with size and hash in manifest and receipt: what a faulty writer would leave."""
    file = path / f"shard-00001.{kind}.npy"
    np.save(file, array)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    rewrite(path, lambda values: values["shards"][1]["files"][kind].update(sha256=digest))
    receipt = json.loads((path / "shard-00001.json").read_text())
    receipt["files"][kind]["sha256"] = digest
    (path / "shard-00001.json").write_text(json.dumps(receipt))


def test_verify_reads_what_the_files_say(text_path: Path) -> None:
    replace_file(text_path, "tokens", np.full(38, 999, "<u2"))
    with pytest.raises(
        DamagedSourceError, match=r"shard-00001\.tokens\.npy has the largest id 999, the manifest states 256"
    ):
        verify_corpus(text_path)
    replace_file(text_path, "docs", np.array([0, 0, 38], "<u8"))
    with pytest.raises(DamagedSourceError, match=r"shard-00001\.docs\.npy does not rise from 0 to 38 in 2 steps"):
        verify_corpus(text_path)


def test_verify_lists_twenty_findings_at_most(tmp_path: Path) -> None:
    write_corpus([[1]] * 23, tmp_path, vocab_size=5, shard_tokens=1)
    for number in range(23):
        flip(tmp_path / f"shard-{number:05d}.tokens.npy", -1)
    with pytest.raises(DamagedSourceError, match=r"23 findings:(\n  .*){20}\n  and 3 more$"):
        verify_corpus(tmp_path)
