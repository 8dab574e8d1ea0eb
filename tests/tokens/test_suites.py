"""The conformance kit on the provider "tokens" and on mixtures of its corpora; chat data has suites of its own."""

from pathlib import Path
from typing import Any

import pytest

from dew.data import Dataset, Mixture, TokenOptions
from dew.testing import ProviderSuite, StreamSuite
from dew.tokens import PackedDocuments, TokenWindows, write_corpus


class Tokens(ProviderSuite):
    steps = 3
    largest_count = 4


class TestNamedSplits(Tokens):
    """Directories of one corpus, each a split."""

    splits = ("even", "odd")

    @pytest.fixture(autouse=True)
    def _given(self, documents: Any, tmp_path: Path) -> None:
        for number, split in enumerate(self.splits):
            write_corpus(documents[number::2], tmp_path / "corpus" / split, vocab_size=1000)
        self.source = f"tokens/{tmp_path}/corpus"
        self.location = str(tmp_path)

    def arguments(self) -> dict[str, Any]:
        return {"options": TokenOptions(seq_len=40), "split": "even", "val_split": "odd"}


class TestPackedTail(Tokens):
    """Packed rows of 200 documents in about 60 shards, a fifth of which is set aside."""

    @pytest.fixture(autouse=True)
    def _given(self, corpus_path: Path) -> None:
        self.source = f"tokens/{corpus_path}"
        self.location = str(corpus_path)

    def arguments(self) -> dict[str, Any]:
        return {"options": TokenOptions(seq_len=64, val=0.2, pack=True)}


class TestMixture(StreamSuite):
    steps = 3
    largest_count = 4

    @pytest.fixture(autouse=True)
    def _given(self, documents: Any, tmp_path: Path) -> None:
        for number, name in enumerate(("web", "books")):
            write_corpus(documents[number::2], tmp_path / name, vocab_size=1000)
        self.path = tmp_path

    def make_dataset(self, *, seed: int = 0) -> Dataset:
        web = TokenWindows(self.path / "web", seq_len=40, val=0.1)
        books = TokenWindows(self.path / "books", seq_len=40)
        return Mixture({"web": (web, 3), "books": (books, 1)}, seed=seed).load(batch=12)


class TestPackedMixture(TestMixture):
    def make_dataset(self, *, seed: int = 0) -> Dataset:
        web = PackedDocuments(self.path / "web", seq_len=64)
        books = PackedDocuments(self.path / "books", seq_len=64)
        return Mixture({"web": (web, 1), "books": (books, 1)}, seed=seed).load(batch=12)
