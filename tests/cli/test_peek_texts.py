"""`dew peek` shows token ids as text: by itself where a corpus is bytes, else by the tokenizer that made the ids."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dew.cli.look import Look
from dew.cli.peek import peek
from dew.cli.texts import MOST_ROWS, texts_of
from dew.data.errors import OptionsError
from dew.tokens import ByteTokenizer, write_corpus

DOCUMENTS = ["a document", "another <b>one</b>, café", "x" * 50, "the\nlast"]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """Bytes, with a token at the end of each document."""
    tokenizer = ByteTokenizer(eos=True)
    write_corpus(map(tokenizer.encode, DOCUMENTS), tmp_path / "corpus", tokenizer=tokenizer.info, eos=True)
    return f"tokens/{tmp_path}/corpus"


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A tokenizer.json of whole words."""
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "one": 1, "two": 2, "three": 3}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.WordPiece()
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def run(*words: object) -> Result:
    return CliRunner().invoke(peek, list(map(str, words)), catch_exceptions=False)


def test_a_corpus_of_bytes_shows_its_text(corpus: str, tmp_path: Path) -> None:
    options = (corpus, "--batch", 2, "-o", "seq_len=60", "-o", "pack=true")
    answer = json.loads(run(*options, "--json", "--html", tmp_path / "page.html").stdout)
    shown = "".join(answer["texts"]["text"])
    assert all(document in shown for document in DOCUMENTS)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'title="segment 1">' in page
    assert "another &lt;b&gt;one&lt;/b&gt;, caf\u00e9" in page
    assert "<b>" not in page
    said = run(*options).output
    record = answer["ids"][0]
    assert f"text of record {record}: {' '.join(answer['texts']['text'][0].split())}" in said


def test_windows_are_text_too(corpus: str) -> None:
    answer = json.loads(run(corpus, "--batch", 1, "-o", "seq_len=9", "--json").stdout)
    (shown,) = answer["texts"]["text"]
    assert len(shown.encode()) in (9, 10)  # one of ten may be the token that ends a document


def test_another_tokenizer_is_refused(corpus: str, words: Path) -> None:
    digest = re.escape(str(ByteTokenizer(eos=True).info.sha256))
    with pytest.raises(OptionsError, match=rf"--tokenizer .*tokenizer.json was given.* made by .* with {digest}"):
        run(corpus, "--batch", 1, "-o", "seq_len=9", "--tokenizer", words)


def batch_of(**fields: Any) -> Look:
    return Look(step=0, rows=2, batch=fields)


def test_a_named_tokenizer(words: Path) -> None:
    ids = np.array([[1, 2, 3, 3, 0], [3, 2, 1, -1, 99]], np.int32)
    assert [row.text for row in texts_of(batch_of(text=ids), str(words))["text"]] == [
        "one two three three [UNK]", "three two one",
    ]  # fmt: skip


def test_pieces_are_of_one_document_and_one_role(words: Path) -> None:
    ids = np.array([[1, 2, 3, 1, 2]], np.int32)
    marks = {"answer_segment_ids": np.array([[1, 1, 2, 2, 0]]), "answer_roles": np.array([[2, 3, 3, 3, 0]])}
    (row,) = texts_of(batch_of(answer=ids, other=ids, **marks), str(words))["answer"]
    assert [(piece.text, piece.segment, piece.role) for piece in row.pieces] == [
        ("one", 1, 2), ("two", 1, 3), ("three one", 2, 3),
    ]  # fmt: skip


def test_roles_colour_the_text_of_a_page(words: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import numpy as np\n"
        "from dew.data import from_records\n"
        "ids = np.array([[1, 2, 3], [3, 2, 1]], np.int32)\n"
        "data = from_records({'text': ids, 'text_segment_ids': ids * 0 + 1, 'text_roles': ids}, batch=2)\n"
    )
    run(f"{tmp_path}/train.py:data", "--tokenizer", words, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for role, colour, word in (
        ("system", "e6ccff", "one"),
        ("user", "cce6ff", "two"),
        ("assistant", "b3f0b3", "three"),
    ):
        assert page.count(f'<span class="role" style="background:#{colour}" title="{role}">{word}</span>') == 2
        assert page.count(f'<span class="role" style="background:#{colour}" title="{role}">{role}</span>') == 1


def test_bytes_by_name_and_without_a_source() -> None:
    ids = np.array([[104, 105, 300, 256]] * 40, np.int32)
    shown = texts_of(batch_of(text=ids), "bytes")["text"]
    assert [row.text for row in shown] == ["hi"] * MOST_ROWS
    assert texts_of(batch_of(text=ids), None) == {}


def test_batches_without_tokens(words: Path) -> None:
    for fields in ({"x": np.zeros((2, 2), int)}, {"text": np.zeros((2, 2))}, {"text": np.zeros(2, int)}):
        with pytest.raises(
            OptionsError, match=r"--tokenizer .* was given, and no field of \['(x|text)'\] holds token ids"
        ):
            texts_of(batch_of(**fields), str(words))
        assert texts_of(batch_of(**fields), None) == {}


def test_nothing_acts_on_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import numpy as np\n"
        "from dew.data import from_records\n"
        "ids = np.frombuffer(b'\\x1b[2Jab', np.uint8)\n"
        "data = from_records({'text': ids[None], 'x': np.array(['\\x1b]0;y'])}, batch=1)\n"
    )
    said = run(f"{tmp_path}/train.py:data", "--tokenizer", "bytes").output
    assert "\x1b" not in said
    assert r"text of record 0: \x1b[2Jab" in said
    assert r"\x1b]0;y" in said
