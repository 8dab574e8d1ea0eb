"""Bytes as ids."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dew.data.errors import OptionsError
from dew.tokens import ByteTokenizer, Tokenizer


@given(st.text())
def test_text_comes_back(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert ids.tolist() == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_special_ids_follow_the_bytes() -> None:
    info = ByteTokenizer(bos=True, eos=True, pad=True).info
    assert (info.bos_id, info.eos_id, info.pad_id, info.vocab_size) == (256, 257, 258, 259)
    info = ByteTokenizer(eos=False, pad=True).info
    assert (info.bos_id, info.eos_id, info.pad_id, info.vocab_size) == (None, None, 256, 257)
    assert ByteTokenizer(eos=False).info.vocab_size == 256


def test_digest_tells_vocabularies_apart() -> None:
    digests = {
        ByteTokenizer(bos=bos, eos=eos, pad=pad).info.sha256
        for bos in (False, True)
        for eos in (False, True)
        for pad in (False, True)
    }
    assert len(digests) == 8
    assert ByteTokenizer().info.sha256 == "fb187c2fb541710c94ab3caa02c95f3f29e4e51a09a3f0a8a007c1e645c8e2f5"


def test_decoding() -> None:
    tokenizer = ByteTokenizer(bos=True, eos=True)
    assert tokenizer.decode(np.array([256, 104, 105, 257], np.int32)) == "hi"
    assert tokenizer.decode(np.array([195], np.uint16)) == "\N{REPLACEMENT CHARACTER}"
    with pytest.raises(OptionsError, match=r"the byte tokenizer has ids 0 to 257, it cannot decode 258"):
        tokenizer.decode(np.array([65, 258]))
    with pytest.raises(OptionsError, match=r"it cannot decode -1"):
        tokenizer.decode(np.array([-1]))


def test_it_is_a_tokenizer() -> None:
    assert isinstance(ByteTokenizer(), Tokenizer)
    assert ByteTokenizer() == ByteTokenizer(eos=True)


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        ByteTokenizer().encode("\ud800")
