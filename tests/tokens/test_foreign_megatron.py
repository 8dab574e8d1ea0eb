"""Megatron's `.bin` and `.idx`: what its writers make is read, and every kind of damage is refused with its values."""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dew.data.errors import DamagedSourceError, OptionsError, SourceError
from dew.tokens import CorpusOptions, open_corpus
from dew.tokens.reader import TokenReader

Writer = Callable[..., Path]

DOCUMENTS = [[[1, 2, 3]], [[4], [5, 6]], [[7, 8, 9, 10]]]
STREAM = list(range(1, 11))
HEAD = 34


def opened(path: Path, **options: Any) -> TokenReader:
    return open_corpus(str(path), options=CorpusOptions(**options))


def edited(path: Path, change: Callable[[bytearray], Any]) -> Path:
    """The file at `path`, changed in place."""
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def put(at: int, form: str, value: int) -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into(form, data, at, value)


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 8])
def test_every_dtype_and_both_ways_to_count(megatron: Writer, tmp_path: Path, code: int, counted: bool) -> None:
    path = megatron(tmp_path / "data", DOCUMENTS, code, counted=counted)
    corpus = opened(path)
    assert corpus.read(0, corpus.tokens).tolist() == STREAM
    assert (corpus.tokens, corpus.documents) == (10, 3)
    assert corpus.offsets.tolist() == [0, 3, 6, 10]
    assert [part.tolist() for part in corpus.document_lengths()] == [[3, 3, 4]]
    assert corpus.gather([0, 7], 3).tolist() == [[1, 2, 3], [8, 9, 10]]
    assert corpus.gather([0], 2).dtype == np.int32
    assert [corpus.document_start(token) for token in range(10)] == [0, 0, 0, 3, 3, 3, 6, 6, 6, 6]
    assert corpus.read(0, 1).dtype == np.dtype({1: "u1", 2: "i1", 3: "i2", 4: "i4", 5: "i8", 8: "u2"}[code])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    documents=st.lists(st.lists(st.lists(st.integers(0, 120), max_size=5), max_size=4), min_size=1, max_size=8).filter(
        lambda documents: any(sequence for document in documents for sequence in document)
    ),
    code=st.sampled_from([1, 2, 3, 4, 5, 8]),
    counted=st.booleans(),
)
def test_any_documents_come_back(
    megatron: Writer, tmp_path: Path, documents: list[list[list[int]]], code: int, counted: bool
) -> None:
    corpus = opened(megatron(tmp_path / "data", documents, code, counted=counted))
    flat = [[token for sequence in document for token in sequence] for document in documents]
    filled = [document for document in flat if document]
    found = [corpus.read(a, b).tolist() for a, b in zip(corpus.offsets[:-1], corpus.offsets[1:], strict=True)]
    assert found == filled
    assert corpus.documents == len(filled)


def test_the_path_may_be_either_file_or_what_they_share(megatron: Writer, tmp_path: Path) -> None:
    path = megatron(tmp_path / "my_text.v2", DOCUMENTS)
    for name in (path, path.with_suffix(".idx"), tmp_path / "my_text.v2", tmp_path):
        assert opened(name).read(0, 10).tolist() == STREAM


def test_several_pairs_are_one_corpus_in_order(megatron: Writer, tmp_path: Path) -> None:
    for number in (10, 2, 1):
        megatron(tmp_path / f"part_{number}", [[[number] * 3]])
    megatron(tmp_path / "part_3", [[]])  # a pair without tokens
    corpus = opened(tmp_path)
    assert corpus.read(0, 9).tolist() == [1] * 3 + [2] * 3 + [10] * 3
    assert corpus.offsets.tolist() == [0, 3, 6, 9]
    assert corpus.gather([1], 6).tolist() == [[1, 1, 2, 2, 2, 10]]


class TestIndexDamage:
    @pytest.fixture
    def index(self, megatron: Writer, tmp_path: Path) -> Path:
        return megatron(tmp_path / "data", DOCUMENTS).with_suffix(".idx")

    def refused(self, index: Path, match: str, error: type[Exception] = DamagedSourceError) -> None:
        with pytest.raises(error, match=match):
            opened(index.with_suffix(".bin"))

    def test_no_index_left(self, index: Path) -> None:
        index.write_bytes(b"")
        self.refused(index, r"data\.idx has 0 bytes, the head of a Megatron index alone takes 34")

    def test_magic(self, index: Path) -> None:
        edited(index, put(0, "<B", 77 + 1))
        self.refused(index, r"no Megatron index: it begins with b'NMIDIDX.* instead of b'MMIDIDX")

    def test_version(self, index: Path) -> None:
        edited(index, put(9, "<Q", 2))
        self.refused(index, "of version 2, and Dew reads version 1")

    @pytest.mark.parametrize("code", [0, 9, 255])
    def test_dtype_code(self, index: Path, code: int) -> None:
        edited(index, put(17, "<B", code))
        self.refused(index, f"states the dtype code {code}, the codes are 1 to 8")

    @pytest.mark.parametrize(("code", "name"), [(6, "float64"), (7, "float32")])
    def test_floats(self, megatron: Writer, tmp_path: Path, code: int, name: str) -> None:
        index = megatron(tmp_path / "data", DOCUMENTS, code).with_suffix(".idx")
        self.refused(index, f"the dtype code {code}, {name}, and ids are whole numbers", SourceError)

    @pytest.mark.parametrize("counted", [True, False])
    def test_trailing_bytes(self, megatron: Writer, tmp_path: Path, counted: bool) -> None:
        index = megatron(tmp_path / "data", DOCUMENTS, counted=counted).with_suffix(".idx")
        size = index.stat().st_size
        index.write_bytes(index.read_bytes() + bytes(11))
        wanted = f"{size - 8} or {size}" if counted else f"{size} or {size + 8}"
        self.refused(
            index, rf"has {size + 11} bytes; 4 sequences and . documents take {wanted}, so it goes on after its end"
        )

    def test_a_cut_index(self, index: Path) -> None:
        size = index.stat().st_size
        edited(index, lambda data: data.__delitem__(slice(size - 9, size)))
        self.refused(
            index, rf"has {size - 9} bytes; 4 sequences and 3 documents take {size - 8} or {size}, so it is cut"
        )

    def test_a_list_that_lost_its_last_entry(self, index: Path) -> None:
        edited(index, lambda data: data.__delitem__(slice(len(data) - 8, len(data))))
        self.refused(index, "lists documents from sequence 0 to 3, and has sequences 0 to 4")

    def test_absurd_counts(self, index: Path) -> None:
        edited(index, put(18, "<Q", 2**63))
        self.refused(index, rf"{2**63} sequences and 3 documents take \d+ or \d+, so it is cut")

    @pytest.mark.parametrize("counted", [True, False])
    @pytest.mark.parametrize("sequences", [3, 8, 9])
    def test_modes(self, megatron: Writer, tmp_path: Path, counted: bool, sequences: int) -> None:
        documents = [[[1, 2]] for _ in range(sequences)]
        index = megatron(tmp_path / "data", documents, counted=counted, modes=True).with_suffix(".idx")
        self.refused(index, f"and {sequences} more are the modes of a multimodal file", SourceError)

    @pytest.mark.parametrize("counted", [True, False])
    def test_eight_sequences_without_modes(self, megatron: Writer, tmp_path: Path, counted: bool) -> None:
        path = megatron(tmp_path / "data", [[[number, number]] for number in range(8)], counted=counted)
        assert opened(path).documents == 8

    def test_a_negative_length(self, index: Path) -> None:
        edited(index, put(HEAD + 4, "<i", -1))
        self.refused(index, "states the length -1 for sequence 1")

    def test_lengths_and_byte_offsets_that_differ(self, index: Path) -> None:
        edited(index, put(HEAD, "<i", 4))
        self.refused(index, "states that sequence 1 begins at byte 6, and those before it end at 8")

    def test_a_gap_between_sequences(self, index: Path) -> None:
        edited(index, put(HEAD + 4 * 4 + 3 * 8, "<q", 14))
        self.refused(index, "sequence 3 begins at byte 14, and those before it end at 12; only sequences that follow")

    @pytest.mark.parametrize(
        ("entries", "wrong"),
        [
            ({1: 3, 2: 2}, "document 2 begins with sequence 2"),
            ({2: 7}, "2 begins with sequence 7"),
            ({1: -1}, "1 .* -1"),
        ],
    )
    def test_the_list_of_documents(self, index: Path, entries: dict[int, int], wrong: str) -> None:
        for place, value in entries.items():
            edited(index, put(HEAD + 4 * 12 + place * 8, "<q", value))
        self.refused(index, rf"states that .*{wrong}; documents rise from sequence 0 to 4")

    def test_documents_that_begin_late(self, index: Path) -> None:
        edited(index, put(HEAD + 4 * 12, "<q", 1))
        self.refused(index, "lists documents from sequence 1 to 4, and has sequences 0 to 4")


class TestFileDamage:
    def test_a_cut_file(self, megatron: Writer, tmp_path: Path) -> None:
        path = megatron(tmp_path / "data", DOCUMENTS)
        path.write_bytes(path.read_bytes()[:-2])
        with pytest.raises(
            DamagedSourceError, match=r"data\.bin has 18 bytes, and data\.idx states 10 tokens of uint16, 20"
        ):
            opened(path)

    def test_trailing_bytes(self, megatron: Writer, tmp_path: Path) -> None:
        path = megatron(tmp_path / "data", DOCUMENTS)
        path.write_bytes(path.read_bytes() + b"\0\0")
        with pytest.raises(
            DamagedSourceError, match=r"has 22 bytes, and data\.idx states 10 tokens of uint16, 20 bytes"
        ):
            opened(path)

    def test_a_missing_file(self, megatron: Writer, tmp_path: Path) -> None:
        megatron(tmp_path / "data", DOCUMENTS).unlink()
        with pytest.raises(
            DamagedSourceError, match=r"data\.bin is missing, and data\.idx says where its documents end"
        ):
            opened(tmp_path)

    @pytest.mark.parametrize(("code", "name"), [(2, "int8"), (3, "int16"), (4, "int32"), (5, "int64")])
    def test_negative_ids(self, megatron: Writer, tmp_path: Path, code: int, name: str) -> None:
        corpus = opened(megatron(tmp_path / "data", [[[1, 2, 3, 4]], [[5, -7, 6]]], code))
        match = rf"token 5 of .* is -7 as {name}, and ids are whole numbers from 0 to 2147483647"
        for read in (
            lambda: corpus.read(2, 7),
            lambda: corpus.gather([0, 3], 3),
            lambda: corpus.gather_rows(np.array([0, 4]), np.array([4, 3]), np.array([1, 1]), 4),
            lambda: corpus.gather_rows(np.array([0, 4]), np.array([4, 3]), np.array([2]), 9),
        ):
            with pytest.raises(DamagedSourceError, match=match):
                read()
        assert corpus.gather([0], 4).tolist() == [[1, 2, 3, 4]]

    def test_ids_past_int32(self, megatron: Writer, tmp_path: Path) -> None:
        corpus = opened(megatron(tmp_path / "data", [[[1, 2**31]]], 5))
        with pytest.raises(DamagedSourceError, match=r"token 1 of .* is 2147483648 as int64"):
            corpus.gather([0], 2)

    def test_a_file_cut_after_opening(self, megatron: Writer, tmp_path: Path) -> None:
        path = megatron(tmp_path / "data", DOCUMENTS)
        corpus = opened(path)
        path.write_bytes(path.read_bytes()[:-2])
        with pytest.raises(DamagedSourceError, match=r"has 18 bytes, it had 20 when the corpus was opened"):
            corpus.read(0, 1)

    def test_an_index_changed_after_opening(self, megatron: Writer, tmp_path: Path) -> None:
        path = megatron(tmp_path / "data", DOCUMENTS)
        corpus = opened(path)
        megatron(tmp_path / "data", [[[1, 2]], [[3, 4], [5, 6]], [[7, 8, 9, 10]]])
        with pytest.raises(DamagedSourceError, match=r"data\.idx had the sha256 \w{64} when it was opened, now it has"):
            _ = corpus.offsets


class TestOptions:
    def test_a_dtype_that_the_index_contradicts(self, megatron: Writer, tmp_path: Path) -> None:
        path = megatron(tmp_path / "data", DOCUMENTS)
        with pytest.raises(
            OptionsError, match=r"dtype='uint32' was given, and .*data\.idx states uint16; leave dtype out"
        ):
            opened(path, dtype="uint32")
        assert opened(path, dtype="uint16").tokens == 10

    @pytest.mark.parametrize("option", ["eos_id", "bos_id"])
    def test_the_index_alone_says_where_documents_end(self, megatron: Writer, tmp_path: Path, option: str) -> None:
        path = megatron(tmp_path / "data", DOCUMENTS)
        with pytest.raises(
            OptionsError, match=re.escape("data.idx says where documents end; leave eos_id and bos_id out")
        ):
            opened(path, **{option: 3})
