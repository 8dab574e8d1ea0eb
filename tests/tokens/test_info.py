"""`dew tokens info`: the facts of a corpus, the packing report, and the picture of rows."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dew.cli import main
from dew.tokens import ByteTokenizer, PackedDocuments, TokenCorpus, write_corpus

Run = tuple[int, str, str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`run("info", ...)` in this process: exit code, what it printed, and its errors."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: object) -> Run:
        code = main(["tokens", *map(str, words)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_a_real_process(corpus_path: Path) -> None:
    words = [sys.executable, "-m", "dew", "tokens", "info", str(corpus_path), "--pack", "64", "--rows", "3"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "200 (0 empty ones kept out)" in done.stdout
    assert "rows " in done.stdout
    assert done.stderr == ""


def test_the_facts_of_a_corpus(run: Any, text_path: Path) -> None:
    code, out, _ = run("info", text_path)
    assert code == 0
    facts = dict(re.findall(r"^(\w+) {2,}(.*?)\s*$", out, re.MULTILINE))
    corpus = TokenCorpus(text_path)
    assert facts["corpus"] == corpus.manifest.id[:12]
    assert facts["documents"] == "4 (1 empty ones kept out)"
    assert facts["tokens"].startswith(f"{corpus.tokens} of <u2, ")
    assert facts["tokens"].endswith(f"in {len(corpus.manifest.shards)} shards")
    assert facts["tokenizer"] == "bytes, 257 ids"
    assert facts["framing"] == "every document has its end token"
    assert facts["lengths"].startswith("6 to 32 tokens, ")
    assert re.search(r"4 - 7 +1 +\d+\.\d% +█", out)
    assert "rows" not in facts


def test_the_facts_as_json(run: Any, text_path: Path, documents: Any, corpus_path: Path) -> None:
    code, out, _ = run("info", text_path, "--json")
    values = json.loads(out)
    manifest = TokenCorpus(text_path).manifest
    assert code == 0
    assert "packing" not in values
    assert values["id"] == manifest.id
    assert values["framing"] == {"bos": False, "eos": True}
    assert values["tokenizer"]["sha256"] == ByteTokenizer(eos=True).info.sha256
    assert values["bytes"] == sum(
        path.stat().st_size for path in text_path.iterdir() if path.name.endswith((".tokens.npy", ".docs.npy"))
    )
    lengths = json.loads(run("info", corpus_path, "--json")[1])["lengths"]
    found = [len(document) for document in documents]
    assert (lengths["min"], lengths["max"]) == (min(found), max(found))
    assert lengths["mean"] == sum(found) / len(found)
    for entry in lengths["histogram"]:
        inside = [length for length in found if entry["from"] <= length <= entry["to"]]
        assert (entry["documents"], entry["tokens"]) == (len(inside), sum(inside))
    assert sum(entry["documents"] for entry in lengths["histogram"]) == len(found)


def test_the_packing_report(run: Any, corpus_path: Path) -> None:
    code, out, _ = run("info", corpus_path, "--pack", 64, "--json")
    assert code == 0
    assert json.loads(out)["packing"] == PackedDocuments(corpus_path, seq_len=64).report().to_json()


def test_what_is_dropped_is_shown(corpus_path: Path) -> None:
    """In a process of its own, where the warning is printed."""
    words = ["--pack", "40", "--long", "drop", "--max-segments", "2"]
    command = [sys.executable, "-m", "dew", "tokens", "info", str(corpus_path), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    cut = PackedDocuments(corpus_path, seq_len=40).report().counts.cut
    assert cut > 0
    assert f" targets in 0 truncated and {cut} dropped documents" in done.stdout
    assert re.search(r"^segments +1\.\d\d a row, at most 2$", done.stdout, re.MULTILINE)
    assert "5 documents of one token" in done.stdout
    assert done.stderr.startswith("dew: DewWarning: long='drop' loses ")


def test_the_picture_of_rows(run: Any, tmp_path: Path) -> None:
    write_corpus([range(20), range(20, 30), range(40), range(9)], tmp_path, vocab_size=50)
    _, out, _ = run("info", tmp_path, "--pack", 39)
    # Segment 1 is drawn in one way, segment 2 in another, padding as dots.
    picture = re.findall(r"^ +(\d+) ([█▓·]+)$", out, re.MULTILINE)
    assert picture == [("0", "▓" * 20 + "█" * 10 + "▓" * 9 + "·"), ("1", "▓" * 40)]
    _, out, _ = run("info", tmp_path, "--pack", 39, "--rows", 0)
    assert "▓" not in out
    _, out, _ = run("info", tmp_path, "--pack", 39, "--rows", 1)
    assert re.findall(r"^ +(\d+) [█▓·]+$", out, re.MULTILINE) == ["0"]


def test_wide_rows_are_drawn_as_wide_as_the_terminal(run: Any, tmp_path: Path) -> None:
    write_corpus([range(1000), range(1000), range(48)], tmp_path, vocab_size=1000)
    _, out, _ = run("info", tmp_path, "--pack", 2047)
    (row,) = re.findall(r"^ +0 ([█▓·]+)$", out, re.MULTILINE)
    assert len(row) == 88
    assert row == "▓" * 43 + "█" * 43 + "▓" * 2


def test_the_plan_is_kept_where_asked(run: Any, corpus_path: Path, tmp_path: Path) -> None:
    assert run("info", corpus_path, "--pack", 64, "--plans", tmp_path / "plans", "--json")[0] == 0
    assert len(list((tmp_path / "plans").iterdir())) == 4


def test_splits(run: Any, tmp_path: Path) -> None:
    write_corpus([range(100)], tmp_path / "train", vocab_size=200)
    write_corpus([range(60)], tmp_path / "heldout", vocab_size=200)
    assert json.loads(run("info", tmp_path, "--json")[1])["tokens"] == 100
    assert json.loads(run("info", tmp_path, "--split", "heldout", "--json")[1])["tokens"] == 60
    code, _, err = run("info", tmp_path, "--split", "other")
    assert code == 1
    assert "no split 'other'" in err


def test_what_is_refused(run: Any, corpus_path: Path, tmp_path: Path) -> None:
    for words, message in (
        (["--long", "drop"], "--long, --max-segments and --plans belong to --pack"),
        (["--pack", "0"], "0 is not in the range x>=1"),
        (["--pack", "9", "--long", "cut"], "'cut' is not one of 'split', 'truncate', 'drop', 'error'"),
    ):
        code, out, err = run("info", corpus_path, *words)
        assert (code, out) == (2, "")
        assert message in err
    code, _, err = run("info", tmp_path / "nowhere")
    assert code == 1
    assert err.startswith("dew: no token corpus at ")
    code, _, err = run("info", corpus_path, "--pack", 9, "--long", "error")
    assert code == 1
    assert "a row of seq_len 9 has room for 10" in err
