"""A small tokenizer trained on the spot, text to prepare, and ways to look at what came of it."""

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dew.tokens import TokenCorpus

Digests = Callable[[Path], dict[str, str]]
Texts = Callable[..., list[str]]

_SENTENCE = "the of and a to in is was he for it with as his on be at by I this had not are but from or have an they"
_WORDS = _SENTENCE.split()


def make_texts(count: int, *, seed: int = 0, most: int = 60) -> list[str]:
    """Documents of words, numbers and line ends; some with letters beyond ASCII."""
    rng = random.Random(seed)
    odd = ["naïve", "12,5", "中文", "\n", "it's", "\u2028", "😀"]
    return [
        " ".join(rng.choice(_WORDS if rng.random() < 0.9 else odd) for _ in range(rng.randint(1, most)))
        for _ in range(count)
    ]


@pytest.fixture(scope="session")
def texts() -> Texts:
    return make_texts


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of 340 ids whose <s> is 1, </s> 2 and <pad> 3, with the file that says so. Not to be changed."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<extra>", "<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(make_texts(300, seed=99), trainer)
    # What tokenizers of models bring along, and what must not reach a corpus: begin tokens, cutting, padding.
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(pad_id=3, pad_token="<pad>", length=8)
    directory = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}, "pad_token": "<pad>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(names))
    return directory


@pytest.fixture(scope="session")
def encode(tokenizer_dir: Path) -> Callable[[str], list[int]]:
    """One plain call of the library for one text: nothing added, nothing cut."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="session")
def documents_of() -> Callable[[Path], list[list[int]]]:
    """The documents of a corpus as lists of ids."""

    def read(path: Path) -> list[list[int]]:
        corpus = TokenCorpus(path)
        bounds = corpus.offsets.tolist()
        return [corpus.read(*bounds[at : at + 2]).tolist() for at in range(corpus.documents)]

    return read


@pytest.fixture(scope="session")
def digests() -> Digests:
    """File -> sha256, of everything in a directory."""

    def read(path: Path) -> dict[str, str]:
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    return read


def _lines(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def write_lines() -> Callable[[Path, list[Any]], Path]:
    """Writes texts as a file of lines."""
    return _lines


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of lines, a table, a compressed file and two texts, one of them empty. Not to be changed."""
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq

    directory = tmp_path_factory.mktemp("mixed")
    _lines(directory / "a" / "part-2.jsonl", make_texts(300, seed=1))
    _lines(directory / "a" / "part-10.jsonl", make_texts(200, seed=2))
    pq.write_table(
        pa.table({"n": range(250), "text": make_texts(250, seed=3)}), directory / "b.parquet", row_group_size=60
    )
    rows = "".join(json.dumps({"text": row}) + "\n" for row in make_texts(100, seed=4))
    (directory / "c.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    (directory / "d.txt").write_text("a text of its own\n")
    (directory / "e.txt").write_text("")
    (directory / "README.md").write_text("not a text to train on")
    return directory
