"""Long texts are encoded in parts that have the ids of the whole, or in one."""

import functools
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from dew.tokens.prepare import engines
from dew.tokens.prepare.longtexts import TextCutter
from dew.tokens.prepare.tokenizers import load_definition

# Shaped like the expressions that large models use, written for this test.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{Lo}\p{M}]+(?i:'s|'t|'ll)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+|\p{L}+"
)


def split(*patterns: str) -> Any:
    parts: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRE_TOKENIZERS = {
    "bytes": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "prefixed": lambda: pre_tokenizers.ByteLevel(add_prefix_space=True),
    "words": lambda: split(WORDS),
    "cased": lambda: split(CASED),
    "staged": lambda: split(r"\p{N}{1,3}", "[一-龥]+", WORDS),
    "whitespace": pre_tokenizers.Whitespace,
    "bert": pre_tokenizers.BertPreTokenizer,
    "digits": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)]),
}
NORMALIZERS = {"none": None, "nfkc": normalizers.NFKC, "bert": normalizers.BertNormalizer}

_TEXT = (
    "word The don't 's I'LL . !? ... 1 12 12345 é e\u0301 中文 日本 \u017f 😀 \u200d \u00a0 \u2028 -- / a _ # A1 x\n"
)
PIECES = _TEXT.split(" ")
TEXTS = st.lists(
    st.sampled_from([*PIECES, " ", "  ", "\n", "\n\n", "\r\n", "\t", " b", "\n\u0301", " \n"]), max_size=120
).map("".join)


def trained(pre_tokenizer: Any, normalizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator([" ".join(PIECES * 3), "\n".join(PIECES)] * 5, trainer)
    return tokenizer


TOKENIZERS = {
    f"{name}-{other}": trained(make(), normalizer and normalizer())
    for name, make in PRE_TOKENIZERS.items()
    for other, normalizer in NORMALIZERS.items()
}


def cutter(tokenizer: Tokenizer, longest: int, **changes: Any) -> TextCutter:
    return TextCutter(tokenizer, {**json.loads(tokenizer.to_str()), "added_tokens": [], **changes}, longest)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=40)
@given(text=TEXTS, longest=st.integers(4, 60))
def test_parts_have_the_ids_of_the_whole(name: str, text: str, longest: int) -> None:
    tokenizer = TOKENIZERS[name]
    parts = cutter(tokenizer, longest).parts(text)
    assert "".join(parts) == text
    whole = tokenizer.encode(text, add_special_tokens=False).ids
    assert [token for part in parts for token in tokenizer.encode(part, add_special_tokens=False).ids] == whole


@pytest.mark.parametrize("name", TOKENIZERS)
def test_plain_prose_is_cut(name: str) -> None:
    text = "The quick brown fox\njumps over the lazy dog. " * 50
    parts = cutter(TOKENIZERS[name], 100).parts(text)
    assert max(map(len, parts)) <= 100


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        pre_tokenizers.Metaspace(prepend_scheme="first"),
        pre_tokenizers.Metaspace(),
        split(r"(?<=a)b|\w+|\s+"),
        pre_tokenizers.UnicodeScripts(),
    ],
)
def test_others_are_given_whole_texts(pre_tokenizer: Any) -> None:
    text = "word\nother words " * 50
    assert cutter(trained(pre_tokenizer), 100).parts(text) == [text]


def test_without_words_there_are_no_parts() -> None:
    tokenizer = Tokenizer(models.BPE())
    text = "word\nother words " * 50
    assert cutter(tokenizer, 100).parts(text) == [text]


@pytest.mark.parametrize(
    "token",
    [
        {"content": "x", "rstrip": True},
        {"content": "x", "lstrip": True},
        {"content": "x", "single_word": True},
        {"content": "word\nother"},
    ],
)
def test_added_tokens_that_reach_over_a_cut(token: dict[str, Any]) -> None:
    tokenizer, text = TOKENIZERS["words-none"], "word\nother words " * 50
    assert len(cutter(tokenizer, 100).parts(text)) > 1
    assert len(cutter(tokenizer, 100, added_tokens=[{"content": "word"}]).parts(text)) > 1
    assert cutter(tokenizer, 100, added_tokens=[token]).parts(text) == [text]
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    assert cutter(tokenizer, 100, normalizer=strip).parts(text) == [text]


def test_the_engine_uses_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = TOKENIZERS["words-none"]
    several = ["short", "The quick brown fox\njumps over it " * 400, "", "short too", "x" * 9000]
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in several]
    monkeypatch.setattr(engines, "LONGEST", 500)
    monkeypatch.setattr(engines, "TextCutter", functools.partial(TextCutter, longest=500))
    engine = engines.make_engine("hf", load_definition(tokenizer), parse_special=False)
    ids, offsets = engine.encode(several)
    assert [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)] == expected
