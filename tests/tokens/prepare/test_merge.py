"""Merging believes no receipt before it has seen what it speaks of, and copies nothing."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dew.data.errors import DamagedSourceError, OptionsError, SourceError, SourceNotFoundError
from dew.tokens import TokenCorpus, TokenWriter
from dew.tokens import prepare as package
from dew.tokens.prepare import find_origin, merge, prepare, prepare_texts

SIZE = 1500


@pytest.fixture
def done(tmp_path: Path, texts: Any, write_lines: Any) -> Path:
    """All tasks of a corpus, not merged."""
    path = write_lines(tmp_path / "in" / "a.jsonl", texts(80, seed=21))
    out = tmp_path / "out"
    prepare(path, out, tokenizer="bytes", workers=0, task_bytes=SIZE, task=(0, 1))
    return out


def receipt(out: Path, number: int) -> Path:
    return out / "tasks" / f"task-{number:05d}.json"


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_shards_are_left_as_they_are(done: Path) -> None:
    before = {path: path.stat() for path in done.glob("shard-*")}
    manifest = merge(done).manifests["train"]
    assert len(manifest.shards) * 4 == len(before)
    for path, stat in before.items():
        assert (path.stat().st_mtime_ns, path.stat().st_ino) == (stat.st_mtime_ns, stat.st_ino)


def test_missing_tasks(done: Path) -> None:
    for number in (3, 5):
        receipt(done, number).unlink()
    with pytest.raises(
        SourceError, match=r"2 of \d+ tasks of .*/out are not done, the first is task 3; run dew tokeni"
    ):
        merge(done)
    assert not (done / "manifest.json").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda out: (out / "shard-00002.docs.npy").unlink(), r"shard-00002\.docs\.npy is missing, its receipt states"),
        (
            lambda out: (out / "shard-00002.tokens.npy").write_bytes(b"cut"),
            r"shard-00002\.tokens\.npy has 3 bytes, its receipt states \d+ bytes; remove .*task-00002\.json and run",
        ),
        (lambda out: receipt(out, 2).write_text("{"), r"task-00002\.json is not JSON"),
        (
            lambda out: change(receipt(out, 2), plan="0"),
            r"task-00002\.json is of task 2 of the plan 0, this is the plan",
        ),
        (lambda out: os.replace(receipt(out, 3), receipt(out, 2)), r"the first is task 3|is of task 3 of the plan"),
        (lambda out: change(receipt(out, 2), version=9), r"task-00002\.json is no receipt .* that this dew-core reads"),
        (lambda out: change(out / "plan.json", engine=1), r"plan\.json was altered since it was written: it states"),
        (lambda out: change(out / "plan.json", version=2), r"plan\.json has format 'dew-tokenize-plan' and version 2"),
    ],
)
def test_damage(done: Path, damage: Any, message: str) -> None:
    damage(done)
    with pytest.raises(SourceError, match=message):
        merge(done)
    assert not (done / "manifest.json").exists()


def test_there_is_no_plan(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"nothing is stored at .*/plan\.json"):
        merge(tmp_path)


def test_what_killed_runs_left_is_cleared(done: Path) -> None:
    for name in (".dew-tmp-1234", "tasks/.dew-tmp-5678"):
        (done / name).write_text("half")
    (done / "notes.txt").write_text("mine")
    merge(done)
    names = {path.name for path in done.rglob("*")}
    assert "notes.txt" in names
    assert not [name for name in names if name.startswith(".dew-tmp")]


def test_a_writer_replaces_a_prepared_corpus(done: Path) -> None:
    """Both write one format; nothing of the shards before stays."""
    merge(done)
    with TokenWriter(done, vocab_size=5, overwrite=True) as writer:
        writer.add([1])
    assert [path.name for path in done.glob("shard-*")].count("shard-00000.origin.npy") == 0
    assert len(list(done.glob("shard-*"))) == 3
    assert TokenCorpus(done).tokens == 1


def test_origins_are_only_in_prepared_corpora(tmp_path: Path) -> None:
    prepare_texts(["one"], tmp_path / "out", tokenizer="bytes")
    with pytest.raises(
        OptionsError, match=r"/out does not say where its documents came from; dew tokenize writes that"
    ):
        find_origin(tmp_path / "out", 0)


def test_a_damaged_origin_is_seen(done: Path) -> None:
    merge(done)
    path = done / "shard-00001.origin.npy"
    path.write_bytes(path.read_bytes()[:-16])
    from dew.tokens import verify_corpus

    with pytest.raises(DamagedSourceError, match=r"shard-00001\.origin\.npy has \d+ bytes, the manifest states \d+"):
        verify_corpus(done)
    last = TokenCorpus(done).manifest.shards[0].documents + TokenCorpus(done).manifest.shards[1].documents - 1
    with pytest.raises(DamagedSourceError, match=r"shard-00001\.origin\.npy is cut"):
        find_origin(done, last)


def test_public_names() -> None:
    assert sorted(package.__all__, key=lambda name: (not name[0].isupper(), name)) == package.__all__
