"""Engines: the ids of one plain call, however texts are batched; and one that is wrong stops on the first document."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.data.errors import OptionsError, SourceError
from dew.tokens import ByteTokenizer
from dew.tokens.prepare import prepare, prepare_texts
from dew.tokens.prepare.engines import engine_name, make_engine
from dew.tokens.prepare.tokenizers import load_definition

Encode = Callable[[str], list[int]]

ENGINE = '''
import numpy as np
from dew.tokens.prepare.engines import HuggingFaceEngine

class Wrong(HuggingFaceEngine):
    """As the reference, but not for texts that hold `odd`."""
    def encode(self, texts):
        ids, offsets = super().encode(texts)
        ids = ids.copy()
        for at, text in enumerate(texts):
            if "odd" in text:
                ids[offsets[at + 1] - 1] += 1
        return ids, offsets

class Right(HuggingFaceEngine):
    """The reference under another name."""

class Short(HuggingFaceEngine):
    """Loses the last token of long texts."""
    def encode(self, texts):
        ids, offsets = super().encode(texts)
        kept = [ids[a : b - (b - a > 5)] for a, b in zip(offsets, offsets[1:])]
        return np.concatenate([ids[:0], *kept]), np.cumsum([0, *map(len, kept)])

def broken(definition, *, parse_special):
    raise RuntimeError("unknown pre-tokenizer")
'''


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of engines on the path, as a user's own."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own_engines.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path / "own")
    yield  # type: ignore[misc]
    sys.modules.pop("own_engines", None)


def test_the_reference_makes_the_ids_of_one_plain_call(tokenizer_dir: Path, encode: Encode, texts: Any) -> None:
    engine = make_engine("hf", load_definition(tokenizer_dir), parse_special=False)
    several = ["", *texts(50), "a literal </s> and <s>\n", "", "end"]
    ids, offsets = engine.encode(several)
    assert ids.dtype == np.uint32
    assert offsets.dtype == np.int64
    assert [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)] == [encode(text) for text in several]
    assert [part.tolist() for part in engine.encode([])] == [[], [0]]


def test_special_tokens_are_text_unless_asked(tokenizer_dir: Path, encode: Encode) -> None:
    definition = load_definition(tokenizer_dir)
    text = "one</s>two"
    as_text = make_engine("hf", definition, parse_special=False).encode([text])[0].tolist()
    parsed = make_engine("hf", definition, parse_special=True).encode([text])[0].tolist()
    assert as_text == encode(text)
    assert parsed == [*encode("one"), 2, *encode("two")]


def test_bytes() -> None:
    engine = make_engine("hf", load_definition("bytes"), parse_special=False)
    ids, offsets = engine.encode(["é", "", "ab"])
    assert (ids.tolist(), offsets.tolist()) == ([195, 169, 97, 98], [0, 2, 2, 4])
    assert engine_name("hf", load_definition(ByteTokenizer())).name == "bytes"
    with pytest.raises(OptionsError, match=r"the byte tokenizer has no engines to choose from, got engine='gigatoken'"):
        engine_name("gigatoken", load_definition("bytes"))


@pytest.mark.usefixtures("engines")
class TestOwnEngines:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_wrong_one_stops_on_the_first_document_that_differs(
        self, tmp_path: Path, tokenizer_dir: Path, texts: Any, write_lines: Any, workers: int
    ) -> None:
        rows = texts(30)
        rows[7], rows[9] = "an odd one", "another odd one"
        path = write_lines(tmp_path / "a.jsonl", rows)
        message = (
            r"the engine 'own_engines:Wrong' differs from the reference on .*/a\.jsonl, line 8: at token \d+ it has"
        )
        with pytest.raises(SourceError, match=message):
            prepare(path, tmp_path / "out", tokenizer=tokenizer_dir, engine="own_engines:Wrong", workers=workers)
        assert not (tmp_path / "out" / "manifest.json").exists()
        assert not list((tmp_path / "out").glob("shard-*"))

    def test_the_sample_goes_on_through_a_task(self, tmp_path: Path, tokenizer_dir: Path, write_lines: Any) -> None:
        path = write_lines(tmp_path / "a.jsonl", ["even"] * 20 + ["odd"] * 4000)
        with pytest.raises(SourceError, match=r"differs from the reference on .*/a\.jsonl, line \d+"):
            prepare(path, tmp_path / "out", tokenizer=tokenizer_dir, engine="own_engines:Wrong", workers=0)

    def test_one_that_is_wrong_on_the_texts_to_try(self, tmp_path: Path, tokenizer_dir: Path) -> None:
        with pytest.raises(
            SourceError, match=r"'own_engines:Short' differs from the reference on a text to try engines"
        ):
            prepare_texts(["x"], tmp_path / "out", tokenizer=tokenizer_dir, engine="own_engines:Short")

    def test_a_right_one_makes_the_same_shards(
        self, tmp_path: Path, tokenizer_dir: Path, texts: Any, write_lines: Any, digests: Any
    ) -> None:
        path = write_lines(tmp_path / "a.jsonl", texts(200))
        for name, engine in (("hf", "hf"), ("own", "own_engines:Right")):
            prepare(path, tmp_path / name, tokenizer=tokenizer_dir, engine=engine, workers=0)
        found = [{k: v for k, v in digests(tmp_path / name).items() if "shard" in k} for name in ("hf", "own")]
        assert found[0] == found[1] != {}

    def test_one_that_cannot_be_made(self, tmp_path: Path, tokenizer_dir: Path) -> None:
        message = r"the engine 'own_engines:broken' cannot be made for this tokenizer: RuntimeError: unknown pre-token"
        with pytest.raises(OptionsError, match=message):
            prepare_texts(["x"], tmp_path / "out", tokenizer=tokenizer_dir, engine="own_engines:broken")
        with pytest.raises(OptionsError, match=r"'own_engines:absent' cannot be made for this tokenizer: AttributeErr"):
            prepare_texts(["x"], tmp_path / "out", tokenizer=tokenizer_dir, engine="own_engines:absent")


def test_unknown_engines(tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    definition = load_definition(tokenizer_dir)
    with pytest.raises(
        OptionsError, match=r"there is no engine 'fast'; there are hf, gigatoken, fastokens, and your own"
    ):
        engine_name("fast", definition)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionsError, match=r"the engine 'gigatoken' needs its package: pip install gigatoken"):
        engine_name("gigatoken", definition)


@pytest.mark.parametrize("name", ["gigatoken", "fastokens"])
@pytest.mark.parametrize("parse_special", [False, True])
def test_fast_engines(tokenizer_dir: Path, texts: Any, name: str, parse_special: bool) -> None:
    """Where they are installed; they are no dependency."""
    pytest.importorskip(name)
    definition = load_definition(tokenizer_dir)
    several = ["", *texts(500), "a literal </s> and <s>\n", "", "<pad><extra>", "end"]
    found = make_engine(name, definition, parse_special=parse_special).encode(several)
    expected = make_engine("hf", definition, parse_special=parse_special).encode(several)
    for mine, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, right)
    assert engine_name(name, definition).version
