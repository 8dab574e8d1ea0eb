"""What is a document, whatever the file looks like; and what is none, with file and line."""

import bz2
import gzip
import itertools
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dew.data.errors import DamagedSourceError, SourceError
from dew.data.storage import Storage
from dew.tokens.prepare import documents as module
from dew.tokens.prepare.compression import decompressed
from dew.tokens.prepare.documents import documents, line_text, place
from dew.tokens.prepare.inputs import find_inputs
from dew.tokens.prepare.pieces import Piece, Refused

BOM = b"\xef\xbb\xbf"
COMPRESS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
TWO = b'{"text": "first"}\n{"text": "second"}\n'


def rows(path: Path, piece: Piece | None = None, field: str = "text") -> list[Any]:
    inputs = find_inputs(path)
    file = inputs.files[0]
    return list(documents(inputs.root, file, piece or Piece(0, 0, file.size), field))


def texts(path: Path) -> list[str]:
    return [text for _, text in rows(path) if text is not None]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


class TestLines:
    @pytest.mark.parametrize(
        "data",
        [
            TWO,
            BOM + TWO,
            TWO[:-1],
            TWO.replace(b"\n", b"\r\n"),
            b"\n\n" + TWO + b"\n  \n\t\n",
            TWO.replace(b"\n", b"\n\n \r\n"),
            TWO.replace(b"}", b', "n": 1}'),
            BOM + TWO[:18] + BOM + TWO[18:],  # two files with a mark each, joined
        ],
    )
    def test_the_same_documents(self, tmp_path: Path, data: bytes) -> None:
        assert texts(write(tmp_path / "a.jsonl", data)) == ["first", "second"]

    def test_only_line_feeds_end_lines(self, tmp_path: Path) -> None:
        text = "one\u2028two\u2029three\u0085four\x0b\x0cfive\nsix\r"
        data = json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"
        assert texts(write(tmp_path / "a.jsonl", data)) == [text]

    def test_rows_count_blank_lines(self, tmp_path: Path) -> None:
        assert rows(write(tmp_path / "a.jsonl", b"\n" + TWO + b"\n")) == [
            (0, None),
            (1, "first"),
            (2, "second"),
            (3, None),
        ]

    def test_an_empty_file(self, tmp_path: Path) -> None:
        assert rows(write(tmp_path / "a.jsonl", b"")) == []

    @pytest.mark.parametrize(
        ("line", "why"),
        [
            (b'{"text": "cut', "no JSON: Unterminated string"),
            (b'{"text": "a"}{"text": "b"}', "no JSON: Extra data"),
            (b'{"text": "caf\xe9"}', "no UTF-8: byte 0xe9 at 13"),
            (b'["text"]', "a JSON list and not an object"),
            (b'"text"', "a JSON string and not an object"),
            (b"null", "a JSON null and not an object"),
            (b"12", "a JSON number and not an object"),
            (b'{"txt": "a", "n": 1}', "no field 'text'; it has 'txt', 'n'"),
            (b"{}", "no field 'text'; it has no fields"),
            (b'{"text": null}', "the field 'text' is null (None) and not a string"),
            (b'{"text": 5}', "the field 'text' is number (5) and not a string"),
            (b'{"text": ["a"]}', "the field 'text' is list (['a']) and not a string"),
            (b'{"text": true}', "the field 'text' is boolean (True) and not a string"),
            (b'{"text": "half \\ud83d of one"}', "half of a surrogate pair, '\\ud83d', at character 5 of the text"),
            (b"[" * 100_000, "no JSON: "),
            (b"\xff\xfe{\x00", "no UTF-8: byte 0xff at 0"),
        ],
    )
    def test_what_is_no_document(self, line: bytes, why: str) -> None:
        refused = line_text(line, "text")
        assert isinstance(refused, Refused)
        assert refused.why.startswith(why)

    def test_a_whole_surrogate_pair_is_a_letter(self) -> None:
        assert line_text(b'{"text": "\\ud83d\\ude00"}', "text") == "\U0001f600"

    def test_a_line_without_end_takes_no_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "LONGEST", 1000)
        monkeypatch.setattr(module, "_READ_BYTES", 1600)
        long = json.dumps({"text": "x" * 5000}).encode() + b"\n"
        path = write(tmp_path / "a.jsonl", TWO + long + TWO)
        assert [text if isinstance(text, str) else text.why for text in texts(path)] == [
            "first",
            "second",
            "a line of more than 1000 bytes",
            "first",
            "second",
        ]
        split = [rows(path, Piece(0, *span)) for span in ((0, 100), (100, 3000), (3000, path.stat().st_size))]
        assert [len(part) for part in split] == [3, 0, 2]

    @settings(max_examples=60)
    @given(
        st.lists(st.text("ab\\é\u2028\n", max_size=20) | st.none(), max_size=30),
        st.lists(st.integers(0, 1000), max_size=5),
        st.sampled_from([1, 3, 7, 64]),
        st.booleans(),
    )
    def test_pieces_share_the_lines(
        self, tmp_path_factory: pytest.TempPathFactory, found: list[Any], cuts: list[int], size: int, end: bool
    ) -> None:
        """However a file is cut and read, each line belongs to one piece, and its place is that in the file."""
        lines = [b"" if text is None else json.dumps({"text": text}, ensure_ascii=False).encode() for text in found]
        data = b"\n".join(lines) + b"\n" * end
        path = write(tmp_path_factory.mktemp("lines") / "a.jsonl", data)
        inputs = find_inputs(path)
        file = inputs.files[0]
        bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        read: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_READ_BYTES", 16 * size)
            for start, stop in itertools.pairwise(bounds):
                piece = Piece(0, start, stop)
                for row, text in documents(inputs.root, file, piece, "text"):
                    assert place(inputs.root, file, piece, row) == f"{path}, line {len(read) + 1}"
                    read.append(text)
        whole = data.split(b"\n") if data[-1:] not in (b"", b"\n") else data.split(b"\n")[:-1]
        assert read == [line_text(line, "text") for line in whole]


class TestCompressed:
    @pytest.mark.parametrize("suffix", COMPRESS)
    def test_several_members(self, tmp_path: Path, suffix: str) -> None:
        compress = COMPRESS[suffix]
        lines = [json.dumps({"text": f"document {number} " * 50}) + "\n" for number in range(2000)]
        whole = "".join(lines).encode()
        members = compress(whole[:10_000]) + compress(b"") + compress(whole[10_000:])
        path = write(tmp_path / f"a.jsonl{suffix}", members)
        assert texts(path) == [json.loads(line)["text"] for line in lines]
        assert texts(write(tmp_path / f"b.txt{suffix}", members)) == [whole.decode()]

    @pytest.mark.parametrize("suffix", COMPRESS)
    @pytest.mark.parametrize("size", [5, 1000, 1 << 20])
    def test_pieces_of_any_size(self, suffix: str, size: int) -> None:
        data = COMPRESS[suffix](TWO * 1000) + COMPRESS[suffix](TWO)
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        kind = {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}[suffix]
        assert b"".join(decompressed(pieces, kind)) == TWO * 1001

    @pytest.mark.parametrize("suffix", COMPRESS)
    def test_a_cut_file(self, tmp_path: Path, suffix: str) -> None:
        data = COMPRESS[suffix](b"".join(json.dumps({"text": str(n) * 9}).encode() + b"\n" for n in range(9999)))
        for name, cut in (("half", len(data) // 2), ("last", len(data) - 1)):
            path = write(tmp_path / f"{name}.jsonl{suffix}", data[:cut])
            with pytest.raises(DamagedSourceError, match=rf"{name}\.jsonl{suffix} is cut: it ends inside .*; copy it"):
                rows(path)

    @pytest.mark.parametrize("suffix", COMPRESS)
    def test_another_kind_of_file(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / f"a.jsonl{suffix}", bz2.compress(TWO * 10))
        with pytest.raises(DamagedSourceError, match=r"a\.jsonl\S+ is no \w+ file, or a damaged one: "):
            rows(path)

    @pytest.mark.parametrize(("suffix", "most"), [(".gz", 4 << 20), (".xz", 4 << 20), (".zst", 270_000_000)])
    def test_a_bomb_comes_in_small_pieces(self, suffix: str, most: int) -> None:
        kind = {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}[suffix]
        size = 300_000_000 if suffix == ".zst" else 40_000_000
        sizes = [len(piece) for piece in decompressed([COMPRESS[suffix](bytes(size))], kind)]
        assert sum(sizes) == size
        assert max(sizes) <= most

    def test_padding_between_members(self) -> None:
        data = gzip.compress(b"one ") + bytes(100) + gzip.compress(b"two") + bytes(7)
        assert b"".join(decompressed([data], "gzip")) == b"one two"


class TestTexts:
    @pytest.mark.parametrize("suffix", ["", *COMPRESS])
    def test_one_document_a_file(self, tmp_path: Path, suffix: str) -> None:
        text = "two\r\nlines, é \u2028 and no end"
        data = COMPRESS.get(suffix, bytes)(BOM + text.encode())
        assert rows(write(tmp_path / f"a.txt{suffix}", data)) == [(0, text)]

    def test_empty(self, tmp_path: Path) -> None:
        assert rows(write(tmp_path / "a.txt", b"")) == [(0, "")]

    def test_no_text(self, tmp_path: Path) -> None:
        assert rows(write(tmp_path / "a.txt", b"caf\xe9")) == [(0, Refused("no UTF-8: byte 0xe9 at 3"))]

    @pytest.mark.parametrize("suffix", ["", ".gz"])
    def test_too_long(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
        monkeypatch.setattr(module, "LONGEST", 100)
        path = write(tmp_path / f"a.txt{suffix}", COMPRESS.get(suffix, bytes)(b"x" * 101))
        [(row, refused)] = rows(path)
        assert row == 0
        assert refused.why.endswith("at most 100 make a document") or "more than 100 bytes" in refused.why

    def test_changed_since_it_was_planned(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.txt", b"one")
        inputs = find_inputs(path)
        path.write_bytes(b"two")
        with pytest.raises(DamagedSourceError, match=r"a\.txt has changed since"):
            list(documents(inputs.root, inputs.files[0], Piece(0), "text"))


WORDS = ["first", "", "zwei \u2028", "third 😀"]


def tables() -> Iterator[tuple[str, Any]]:
    yield "string", pa.array(WORDS)
    yield "large", pa.array(WORDS, pa.large_string())
    yield "view", pa.array(WORDS, pa.string_view())
    yield "binary", pa.array([word.encode() for word in WORDS])
    yield "dictionary", pa.array(WORDS).dictionary_encode()


class TestTables:
    @pytest.mark.parametrize(("name", "column"), [*tables()])
    def test_types_of_text(self, tmp_path: Path, name: str, column: Any) -> None:
        table = pa.table({"n": range(4), "text": column})
        if name != "view":
            pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
            assert rows(tmp_path / "a.parquet", Piece(0, 0, 2)) == list(enumerate(WORDS))
            assert rows(tmp_path / "a.parquet", Piece(0, 1, 2)) == [(3, WORDS[3])]
        for stream in (pa.ipc.new_file, pa.ipc.new_stream):
            with stream(str(tmp_path / "a.arrow"), table.schema) as writer:
                writer.write_table(table, max_chunksize=3)
            assert rows(tmp_path / "a.arrow") == list(enumerate(WORDS))

    def test_many_rows(self, tmp_path: Path) -> None:
        words = [f"row {number}" for number in range(5000)]
        table = pa.table({"text": words})
        pq.write_table(table, tmp_path / "a.parquet")
        with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
            writer.write_table(table)
        assert rows(tmp_path / "a.parquet", Piece(0, 0, 1)) == rows(tmp_path / "a.arrow") == list(enumerate(words))

    def test_null_and_invalid_rows(self, tmp_path: Path) -> None:
        data = pa.array([b"good", None, b"caf\xe9", b"end"])
        pq.write_table(pa.table({"text": data}), tmp_path / "binary.parquet")
        pq.write_table(pa.table({"text": data.view(pa.string())}), tmp_path / "string.parquet")
        for name in ("binary", "string"):
            assert rows(tmp_path / f"{name}.parquet", Piece(0, 0, 1)) == [
                (0, "good"),
                (1, Refused("null and not a string")),
                (2, Refused("no UTF-8: byte 0xe9 at 3")),
                (3, "end"),
            ]
        inputs = find_inputs(tmp_path / "string.parquet")
        assert place(inputs.root, inputs.files[0], Piece(0, 0, 1), 2) == f"{tmp_path}/string.parquet, row 2"

    @pytest.mark.parametrize("suffix", ["parquet", "arrow"])
    def test_columns_that_hold_no_text(self, tmp_path: Path, suffix: str) -> None:
        table, path = pa.table({"n": [1], "name": ["x"]}), tmp_path / f"a.{suffix}"
        if suffix == "parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table)
        with pytest.raises(SourceError, match=rf"a\.{suffix} has no column 'text'; it has 'n', 'name'"):
            rows(path, Piece(0, 0, 1))
        with pytest.raises(
            SourceError, match=rf"a\.{suffix}: the column 'n' holds int64 and not strings; name another"
        ):
            rows(path, Piece(0, 0, 1), field="n")

    @pytest.mark.parametrize("suffix", ["parquet", "arrow"])
    @pytest.mark.parametrize("change", ["garbage", "cut", "holes"])
    def test_damaged_files(self, tmp_path: Path, suffix: str, change: str) -> None:
        table, path = pa.table({"text": [f"text {number}" * 20 for number in range(3000)]}), tmp_path / f"a.{suffix}"
        if suffix == "parquet":
            pq.write_table(table, path, use_dictionary=False)
        else:
            with pa.ipc.new_stream(str(path), table.schema) as writer:
                writer.write_table(table, max_chunksize=100)
        data = bytearray(path.read_bytes())
        if change == "holes":
            data[100:2000] = b"\xff" * 1900
        path.write_bytes({"garbage": b"garbage" * 100, "cut": data[: len(data) // 2]}.get(change, data))
        with pytest.raises(
            DamagedSourceError, match=rf"a\.{suffix} is no {suffix} file, or a damaged one: .*; copy it"
        ):
            rows(path, Piece(0, 0, 1))

    def test_remote_tables(self, tmp_path: Path, memory_url: str) -> None:
        table = pa.table({"text": [f"row {number}" * 100 for number in range(3000)]})
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
        with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=700)
        for name in ("a.parquet", "a.arrow"):
            Storage(memory_url).write(name, (tmp_path / name).read_bytes())
            inputs = find_inputs(f"{memory_url}/{name}")
            found = [text for _, text in documents(inputs.root, inputs.files[0], Piece(0, 0, 3), "text")]
            assert found == table["text"].to_pylist()
