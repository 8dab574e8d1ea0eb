"""datatrove's `.ds`, `.ds.index` and `.ds.metadata`: read, compared with each other, and refused where they differ."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dew.data.errors import DamagedSourceError, DewWarning, OptionsError
from dew.tokens import CorpusOptions, open_corpus
from dew.tokens.reader import TokenReader

Writer = Callable[..., Path]

DOCUMENTS = [[5, 6, 2], [7, 2], [8, 9, 10, 2]]
STREAM = [5, 6, 2, 7, 2, 8, 9, 10, 2]


def opened(path: Path, **options: Any) -> TokenReader:
    return open_corpus(str(path), options=CorpusOptions(**options))


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("metadata", [True, False])
def test_both_sizes_with_and_without_metadata(datatrove: Writer, tmp_path: Path, itemsize: int, metadata: bool) -> None:
    path = datatrove(tmp_path / "00000_00000_shuffled.ds", DOCUMENTS, itemsize, metadata=metadata)
    for corpus in (opened(path), opened(tmp_path), opened(path, format="datatrove", dtype=f"<u{itemsize}")):
        assert corpus.read(0, 9).tolist() == STREAM
        assert corpus.dtype == f"<u{itemsize}"
        assert (corpus.documents, corpus.offsets.tolist()) == (3, [0, 3, 5, 9])
        assert corpus.gather([4], 3).tolist() == [[2, 8, 9]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    documents=st.lists(st.lists(st.integers(0, 65535), max_size=6), min_size=1, max_size=8).filter(any),
    itemsize=st.sampled_from([2, 4]),
)
def test_any_documents_come_back(datatrove: Writer, tmp_path: Path, documents: list[list[int]], itemsize: int) -> None:
    corpus = opened(datatrove(tmp_path / "x.ds", documents, itemsize))
    found = [corpus.read(a, b).tolist() for a, b in zip(corpus.offsets[:-1], corpus.offsets[1:], strict=True)]
    assert found == [document for document in documents if document]


def test_old_metadata_without_a_size(datatrove: Writer, tmp_path: Path) -> None:
    path = datatrove(tmp_path / "x.ds", DOCUMENTS, 2)
    (tmp_path / "x.ds.metadata").write_text("gpt2\n9\n9 T")
    assert opened(path).read(0, 9).tolist() == STREAM


def test_metadata_alone(datatrove: Writer, tmp_path: Path) -> None:
    path = datatrove(tmp_path / "merged.ds", DOCUMENTS, 4, index=False)
    assert opened(path).read(0, 9).tolist() == STREAM
    with pytest.raises(
        OptionsError, match=r"merged\.ds is read as 'datatrove', which does not say where documents end"
    ):
        _ = opened(path).documents
    assert opened(path, eos_id=2).offsets.tolist() == [0, 3, 5, 9]


def test_files_are_read_in_order(datatrove: Writer, tmp_path: Path) -> None:
    for number in (10, 9, 1):
        datatrove(tmp_path / f"rank_{number}.ds", [[number], [number]], 2)
    assert opened(tmp_path).read(0, 6).tolist() == [1, 1, 9, 9, 10, 10]


def test_sizes_that_differ_from_file_to_file(datatrove: Writer, tmp_path: Path) -> None:
    datatrove(tmp_path / "a.ds", DOCUMENTS, 2)
    datatrove(tmp_path / "b.ds", DOCUMENTS, 4)
    with pytest.raises(
        ValueError, match=r"ids of several types, uint16 in a\.ds and uint32 in b\.ds; name files of one"
    ):
        opened(tmp_path)


def test_loss_masks_are_not_read_and_that_is_said(datatrove: Writer, tmp_path: Path) -> None:
    path = datatrove(tmp_path / "x.ds", DOCUMENTS)
    (tmp_path / "x.ds.loss").write_bytes(bytes(9))
    with pytest.warns(
        DewWarning, match=r"x\.ds\.loss says which tokens are not to be learned, and Dew does not read it"
    ):
        opened(path)


class TestDamage:
    @pytest.fixture
    def path(self, datatrove: Writer, tmp_path: Path) -> Path:
        return datatrove(tmp_path / "x.ds", DOCUMENTS)

    def refused(self, path: Path, match: str) -> None:
        with pytest.raises(DamagedSourceError, match=match):
            opened(path)

    def test_a_cut_file(self, path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-2])
        self.refused(path, r"x\.ds has 16 bytes, and x\.ds\.metadata states 9 tokens, 18 bytes")
        path.with_name("x.ds.metadata").unlink()
        self.refused(path, r"x\.ds has 16 bytes, and x\.ds\.index states 9 tokens, 18 or 36 bytes")

    def test_a_longer_file(self, path: Path) -> None:
        path.write_bytes(path.read_bytes() + bytes(2))
        self.refused(path, r"has 20 bytes, and x\.ds\.metadata states 9 tokens, 18 bytes")

    def test_a_missing_file(self, path: Path) -> None:
        path.unlink()
        self.refused(path.parent, r"x\.ds is missing, and its index or metadata is there")

    def test_a_cut_index(self, path: Path) -> None:
        path.with_name("x.ds.index").write_bytes(bytes(23))
        self.refused(path, r"x\.ds\.index has 23 bytes, and each document takes 8: it is cut")

    def test_an_index_that_lost_a_document(self, path: Path) -> None:
        path.with_name("x.ds.index").write_bytes(struct.pack("<2Q", 3, 5))
        self.refused(path, r"has 18 bytes, and x\.ds\.index states 5 tokens, 10 bytes")

    @pytest.mark.parametrize(
        ("ends", "wrong"), [((3, 2, 9), "1 ends at token 2, .*at 3"), ((2**63, 5, 9), "0 ends at .*at 0")]
    )
    def test_ends_that_do_not_rise(self, path: Path, ends: tuple[int, ...], wrong: str) -> None:
        path.with_name("x.ds.index").write_bytes(struct.pack("<3Q", *ends))
        self.refused(path, rf"states that document {wrong}; the ends must rise")

    def test_ends_that_fall_over_the_seam_of_two_pieces(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from dew.tokens.foreign import shard

        monkeypatch.setattr(shard, "_PIECE", 2)
        assert opened(path).offsets.tolist() == [0, 3, 5, 9]
        path.with_name("x.ds.index").write_bytes(struct.pack("<3Q", 3, 5, 4))
        self.refused(path, r"states that document 2 ends at token 4, the one before it at 5")

    @pytest.mark.parametrize("text", ["", "gpt2|3\n9", "gpt2|2\n", "gpt2|2", "gpt2|2\nnine", "gpt2|2\n²", "\xff\xfe"])
    def test_metadata(self, path: Path, text: str) -> None:
        path.with_name("x.ds.metadata").write_bytes(text.encode("latin1"))
        self.refused(
            path, r"x\.ds\.metadata should state a tokenizer, '\|' and 2 or 4, and in its second line .*begins"
        )

    def test_metadata_that_states_another_count(self, path: Path) -> None:
        path.with_name("x.ds.metadata").write_text("gpt2|2\n8\n8 T")
        self.refused(path, r"has 18 bytes, and x\.ds\.metadata states 8 tokens, 16 bytes")

    def test_an_index_changed_after_opening(self, datatrove: Writer, path: Path) -> None:
        corpus = opened(path)
        datatrove(path, [[5, 6], [2, 7, 2], [8, 9, 10, 2]])
        with pytest.raises(
            DamagedSourceError, match=r"x\.ds\.index had the sha256 \w{64} when it was opened, now it has"
        ):
            _ = corpus.offsets

    def test_options(self, path: Path) -> None:
        with pytest.raises(OptionsError, match=r"x\.ds\.index says where documents end; leave eos_id and bos_id out"):
            opened(path, eos_id=2)
        with pytest.raises(OptionsError, match=r"dtype='uint32' was given, and .*x\.ds states uint16"):
            opened(path, dtype="uint32")
