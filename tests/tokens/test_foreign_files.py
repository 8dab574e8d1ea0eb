"""Bare files of ids, llm.c's and `.npy`: what they state is checked, and what they do not state is never guessed."""

import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dew.data.errors import DamagedSourceError, DewWarning, OptionsError, OptionsTypeError, SourceError
from dew.tokens import CorpusOptions, open_corpus
from dew.tokens.foreign import corpus as corpus_module
from dew.tokens.reader import TokenReader

INTEGERS = ["|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", ">u2", ">i4"]
DOCUMENTS = [[11, 12, 0], [13, 0], [14, 15, 16, 0]]
STREAM = [token for document in DOCUMENTS for token in document]


def opened(path: Path, **options: Any) -> TokenReader:
    return open_corpus(str(path), options=CorpusOptions(**options))


def bare(path: Path, ids: Any, dtype: str = "<u2") -> Path:
    path.write_bytes(np.array(ids, dtype).tobytes())
    return path


def llmc(path: Path, ids: Any, magic: int = 20240520, version: int = 1, count: int | None = None) -> Path:
    head = struct.pack("<3i", magic, version, len(ids) if count is None else count).ljust(1024, b"\0")
    path.write_bytes(head + np.array(ids, "<u4" if magic == 20240801 else "<u2").tobytes())
    return path


class TestHeaderless:
    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_every_dtype(self, tmp_path: Path, dtype: str) -> None:
        path = bare(tmp_path / "train.bin", STREAM, dtype)
        corpus = opened(path, dtype=dtype)
        assert corpus.read(0, 9).tolist() == STREAM
        assert corpus.gather([0, 6], 3).tolist() == [[11, 12, 0], [15, 16, 0]]
        assert corpus.dtype == dtype

    @pytest.mark.parametrize("dtype", ["uint16", np.uint16, np.dtype("u2"), "<u2"])
    def test_spellings_of_a_dtype(self, tmp_path: Path, dtype: Any) -> None:
        assert opened(bare(tmp_path / "x.bin", STREAM), dtype=dtype).tokens == 9

    def test_npy_files_without_a_header_as_olmo_writes_them(self, tmp_path: Path) -> None:
        for number in (2, 10, 1):
            bare(tmp_path / f"part-{number}-00000.npy", [number] * 3, "<u4")
        corpus = opened(tmp_path, dtype="uint32")
        assert corpus.read(0, 9).tolist() == [1, 1, 1, 2, 2, 2, 10, 10, 10]

    def test_any_name_where_the_caller_says_what_it_is(self, tmp_path: Path) -> None:
        path = bare(tmp_path / "corpus.u16", STREAM)
        assert opened(path, format="headerless", dtype="uint16").read(0, 9).tolist() == STREAM

    @pytest.mark.parametrize("name", ["train.bin", "part.npy"])
    def test_the_dtype_is_never_guessed(self, tmp_path: Path, name: str) -> None:
        path = bare(tmp_path / name, STREAM)
        with pytest.raises(OptionsError, match=rf"{name} is headerless: nothing in it says .* give dtype='uint16' or"):
            opened(path)

    def test_a_size_that_no_number_of_ids_has(self, tmp_path: Path) -> None:
        (tmp_path / "x.bin").write_bytes(bytes(7))
        with pytest.raises(DamagedSourceError, match=r"has 7 bytes, no whole number of ids of 4 bytes \(uint32\)"):
            opened(tmp_path / "x.bin", dtype="uint32")

    def test_an_empty_file(self, tmp_path: Path) -> None:
        (tmp_path / "x.bin").write_bytes(b"")
        with pytest.raises(SourceError, match=r"holds no tokens: x\.bin are empty"):
            opened(tmp_path / "x.bin", dtype="uint32")

    def test_two_byte_ids_read_as_four(self, tmp_path: Path) -> None:
        path = bare(tmp_path / "x.bin", np.random.default_rng(0).integers(0, 50000, 1000))
        with pytest.raises(
            DamagedSourceError, match=r"token \d+ of .*x\.bin is \d{10} as uint32, .*is it of another dtype"
        ):
            opened(path, dtype="uint32")

    def test_four_byte_ids_read_as_two(self, tmp_path: Path) -> None:
        path = bare(tmp_path / "x.bin", np.random.default_rng(0).integers(0, 100000, 1000), "<u4")
        with pytest.warns(DewWarning, match=r"every second id of .* is below 64 as uint16, .*is it dtype='uint32'"):
            opened(path, dtype="uint16")

    def test_small_ids_are_no_reason_to_warn(self, tmp_path: Path) -> None:
        opened(bare(tmp_path / "x.bin", np.random.default_rng(0).integers(0, 60, 1000)), dtype="uint16")

    def test_a_bad_id_far_inside(self, tmp_path: Path) -> None:
        ids = np.ones(40000, "<i4")
        ids[39000] = -2
        corpus = opened(bare(tmp_path / "x.bin", ids, "<i4"), dtype="int32")
        with pytest.raises(DamagedSourceError, match=r"token 39000 of .* is -2 as int32"):
            corpus.gather([10, 38990], 20)

    @pytest.mark.parametrize(
        ("head", "kind"),
        [
            (b"PAR1", "a parquet file: bring it in with `dew tokens import`"),
            (b"ARROW1\0\0", "an Arrow file"),
            (b"MMIDIDX\0\0", "a Megatron index: name its .bin file"),
            (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
        ],
    )
    def test_other_files_are_told(self, tmp_path: Path, head: bytes, kind: str) -> None:
        (tmp_path / "x.bin").write_bytes(head.ljust(200, b"\0"))
        with pytest.raises(SourceError, match=re.escape(f"x.bin is not headerless, it begins like {kind}")):
            opened(tmp_path / "x.bin", format="headerless", dtype="uint8")

    def test_headers_are_not_read_as_ids(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.arange(9, dtype=np.uint16))
        with pytest.raises(SourceError, match=r"begins like a \.npy file with a header: use format='npy'"):
            opened(tmp_path / "a.npy", format="headerless", dtype="uint16")
        with pytest.raises(SourceError, match=r"begins like a file of llm\.c: use format='llm\.c'"):
            opened(llmc(tmp_path / "b.bin", STREAM), format="headerless", dtype="uint16")
        with zipfile.ZipFile(tmp_path / "c.bin", "w") as file:
            file.writestr("x", b"y")
        with pytest.raises(SourceError, match="begins like a zip archive"):
            opened(tmp_path / "c.bin", format="headerless", dtype="uint8")


class TestDocumentsOfHeaderlessFiles:
    def test_they_need_an_id(self, tmp_path: Path) -> None:
        corpus = opened(bare(tmp_path / "x.bin", STREAM), dtype="uint16")
        for ask in (
            lambda: corpus.documents,
            lambda: corpus.offsets,
            lambda: corpus.document_start(3),
            lambda: list(corpus.document_lengths()),
        ):
            with pytest.raises(OptionsError, match=r"x\.bin is read as 'headerless', .* give eos_id= .* or bos_id="):
                ask()

    def test_they_end_with_eos(self, tmp_path: Path) -> None:
        corpus = opened(bare(tmp_path / "x.bin", [*STREAM, 99]), dtype="uint16", eos_id=0)
        assert corpus.offsets.tolist() == [0, 3, 5, 9, 10]
        assert corpus.documents == 4
        assert [corpus.document_start(token) for token in range(10)] == [0, 0, 0, 3, 3, 5, 5, 5, 5, 9]

    def test_they_begin_with_bos(self, tmp_path: Path) -> None:
        corpus = opened(llmc(tmp_path / "x.bin", [99, 0, 1, 2, 0, 0, 3]), bos_id=0)
        assert corpus.offsets.tolist() == [0, 1, 4, 5, 7]
        assert [corpus.document_start(token) for token in range(7)] == [0, 1, 1, 1, 4, 5, 5]

    def test_both_is_one_too_many(self) -> None:
        with pytest.raises(OptionsError, match="eos_id=1 and bos_id=2 both say where documents end"):
            CorpusOptions(eos_id=1, bos_id=2)

    @pytest.mark.parametrize("ask", ["documents", "offsets", "document_start"])
    def test_an_id_that_is_nowhere(self, tmp_path: Path, ask: str) -> None:
        for name in ("a.bin", "b.bin"):
            bare(tmp_path / name, [1, 2, 3])
        corpus = opened(tmp_path, dtype="uint16", eos_id=50256)
        with pytest.raises(
            SourceError, match=r"eos_id=50256 is nowhere in the 6 tokens of .*; it is not the id between"
        ):
            corpus.document_start(2) if ask == "document_start" else getattr(corpus, ask)

    def test_the_end_of_a_file_ends_a_document(self, tmp_path: Path) -> None:
        bare(tmp_path / "a.bin", [1, 0, 2])
        bare(tmp_path / "b.bin", [3, 4])
        bare(tmp_path / "c.bin", [5, 0])
        corpus = opened(tmp_path, dtype="uint16", eos_id=0)
        assert corpus.offsets.tolist() == [0, 2, 3, 5, 7]
        assert [part.tolist() for part in corpus.document_lengths()] == [[2, 1], [2], [2]]
        assert [corpus.document_start(token) for token in range(7)] == [0, 0, 2, 3, 3, 5, 5]

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
    @given(ids=st.lists(st.integers(0, 3), min_size=1, max_size=40), begin=st.booleans(), piece=st.integers(1, 9))
    def test_any_stream(
        self, tmp_path: Path, ids: list[int], begin: bool, piece: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(corpus_module, "_SEARCHED", piece)
        ids = [*ids, 0, 1]
        corpus = opened(bare(tmp_path / "x.bin", ids), dtype="uint16", **{"bos_id" if begin else "eos_id": 0})
        expected = [0]
        for place, token in enumerate(ids):
            if token == 0:
                expected.append(place if begin else place + 1)
        expected = sorted({*expected, len(ids)})
        assert corpus.offsets.tolist() == expected
        starts = [max(start for start in expected if start <= token) for token in range(len(ids))]
        assert [corpus.document_start(token) for token in range(len(ids))] == starts


class TestLlmC:
    @pytest.mark.parametrize(
        ("magic", "version", "dtype"), [(20240520, 1, "<u2"), (20240801, 1, "<u4"), (20240801, 7, "<u4")]
    )
    def test_both_kinds(self, tmp_path: Path, magic: int, version: int, dtype: str) -> None:
        path = llmc(tmp_path / "tiny_train.bin", STREAM, magic, version)
        for corpus in (opened(path), opened(path, format="llm.c"), opened(tmp_path)):
            assert (corpus.read(0, 9).tolist(), corpus.dtype) == (STREAM, dtype)

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda data: data[:-2], r"has 1040 bytes, its header states 9 tokens of uint16, 1042 bytes"),
            (lambda data: data + b"\0\0", r"has 1044 bytes, its header states 9 tokens of uint16, 1042 bytes"),
            (lambda data: data[:1000], r"has 1000 bytes, the header of llm\.c alone takes 1024"),
            (
                lambda data: data[:4] + struct.pack("<i", 3) + data[8:],
                r"of version 3, and with magic 20240520 Dew reads 1",
            ),
            (lambda data: data[:8] + struct.pack("<i", -1) + data[12:], r"its header states -1 tokens of uint16"),
        ],
    )
    def test_damage(self, tmp_path: Path, change: Callable[[bytes], bytes], match: str) -> None:
        path = llmc(tmp_path / "x.bin", STREAM)
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(DamagedSourceError, match=match):
            opened(path)

    def test_evaluation_files(self, tmp_path: Path) -> None:
        path = llmc(tmp_path / "hellaswag_val.bin", STREAM, 20240522)
        with pytest.raises(SourceError, match=r"holds evaluation examples of llm\.c \(magic 20240522\)"):
            opened(path)

    def test_another_magic(self, tmp_path: Path) -> None:
        path = llmc(tmp_path / "x.bin", STREAM, 20240521)
        with pytest.raises(DamagedSourceError, match=r"begins with 20240521, files of llm\.c with 20240520 or"):
            opened(path, format="llm.c")

    def test_one_bare_file_among_them(self, tmp_path: Path) -> None:
        llmc(tmp_path / "a.bin", STREAM)
        bare(tmp_path / "b.bin", range(1000))
        with pytest.raises(DamagedSourceError, match=r"b\.bin begins with 65536, files of llm\.c with"):
            opened(tmp_path)


class TestNpy:
    @pytest.mark.parametrize("dtype", INTEGERS)
    @pytest.mark.parametrize("version", [(1, 0), (2, 0)])
    def test_every_dtype(self, tmp_path: Path, dtype: str, version: tuple[int, int]) -> None:
        with open(tmp_path / "x.npy", "wb") as file:
            np.lib.format.write_array(file, np.array(STREAM, dtype), version)
        for corpus in (opened(tmp_path / "x.npy"), opened(tmp_path, format="npy")):
            assert (corpus.read(0, 9).tolist(), corpus.dtype) == (STREAM, np.dtype(dtype).str)
            assert corpus.gather([3], 4).tolist() == [[13, 0, 14, 15]]

    def refused(self, path: Path, match: str, kind: type[Exception] = SourceError) -> None:
        with pytest.raises(kind, match=match):
            opened(path, format="npy")

    def test_shapes_and_types(self, tmp_path: Path) -> None:
        path = tmp_path / "x.npy"
        for array, match in (
            (np.zeros((3, 4), np.uint16), r"has the shape \(3, 4\), and ids are one flat array"),
            (np.zeros((), np.uint16), r"has the shape \(\), and ids are one flat array"),
            (np.zeros(3), "holds float64, and ids are whole numbers"),
            (np.zeros(3, bool), "holds bool, and ids are whole numbers"),
            (np.zeros(3, [("a", "u2")]), r"holds \[\('a', '<u2'\)\], and ids are whole numbers"),
            (np.array([None, 1]), "holds object, and ids are whole numbers"),
        ):
            np.save(path, array, allow_pickle=True)
            self.refused(path, match)

    def test_damage(self, tmp_path: Path) -> None:
        path = tmp_path / "x.npy"
        np.save(path, np.arange(9, dtype=np.uint16))
        data = path.read_bytes()
        for damaged, match in (
            (data[:-1], r"has 145 bytes, its header states 9 elements of uint16, 146 bytes"),
            (data + b"\0", r"has 147 bytes, its header states 9 elements of uint16, 146 bytes"),
            (data[:50], r"x\.npy is no \.npy file that can be read: EOF"),
            (b"", r"is no \.npy file that can be read"),
            (b"\x93NUMPY\x09\x00" + data[8:], r"version \(9, 0\), and Dew reads 1\.0 and 2\.0"),
            (data.replace(b"(9,)", b"(99,"), r"is no \.npy file that can be read"),
            (b"bare ids, really".ljust(100), r"is no \.npy file that can be read: the magic string is not correct"),
        ):
            path.write_bytes(damaged)
            self.refused(path, match, DamagedSourceError)

    def test_a_dtype_that_the_header_contradicts(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.arange(9))
        with pytest.raises(OptionsError, match=r"dtype='uint16' was given, and .*x\.npy states int64; leave dtype out"):
            opened(tmp_path / "x.npy", dtype="uint16")


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "kind", "match"),
        [
            (
                {"format": "megatrom"},
                OptionsError,
                "format must be one of dew, megatron, .*, got 'megatrom'; did you mean 'megatron'",
            ),
            ({"format": 3}, OptionsTypeError, r"format must be a string or None, got 3 \(int\)"),
            (
                {"dtype": "uint17"},
                OptionsError,
                "dtype must name an integer type such as 'uint16' or 'uint32', got 'uint17'",
            ),
            ({"dtype": "float32"}, OptionsError, "dtype must be an integer type, .*got 'float32'"),
            ({"dtype": "bool"}, OptionsError, "dtype must be an integer type, .*got 'bool'"),
            ({"eos_id": -1}, OptionsError, "eos_id must be at least 0, got -1"),
            ({"bos_id": "1"}, OptionsTypeError, "bos_id must be an int, got '1'"),
            ({"storage_options": ["key"]}, OptionsTypeError, "storage_options must be a mapping or None, got list"),
            ({"cache": "folder"}, OptionsTypeError, r"cache must be a dew\.data\.BlockCache or None, got 'folder'"),
        ],
    )
    def test_wrong_values(self, options: dict[str, Any], kind: type[Exception], match: str) -> None:
        with pytest.raises(kind, match=match):
            CorpusOptions(**options)
