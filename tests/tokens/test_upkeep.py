"""`dew tokens verify`, `import`, and `info` of other programs' files."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dew.cli import main
from dew.data.errors import DamagedSourceError, OptionsError, SourceError, SourceNotFoundError
from dew.tokens import ByteTokenizer, TokenCorpus, TokenizerInfo, verify_corpus, write_corpus
from dew.tokens.importing import import_parquet

Run = tuple[int, str, str]
Writer = Callable[..., Path]

DOCUMENTS = [[1, 2, 3], [4], [], [5, 6]]
FILLED = [document for document in DOCUMENTS if document]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """`run("verify", ...)` in this process: exit code, what it printed, and its errors."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: object) -> Run:
        code = main(["tokens", *map(str, words)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def table(documents: Any = DOCUMENTS, kind: Any = None, column: str = "input_ids") -> pa.Table:
    return pa.table({"text": ["x"] * len(documents), column: pa.array(documents, kind or pa.list_(pa.int32()))})


def documents_of(path: Path) -> list[list[int]]:
    corpus = TokenCorpus(path)
    return [corpus.read(a, b).tolist() for a, b in zip(corpus.offsets[:-1], corpus.offsets[1:], strict=True)]


class TestVerify:
    def test_a_whole_corpus(self, run: Callable[..., Run], text_path: Path) -> None:
        code, out, err = run("verify", text_path)
        corpus = TokenCorpus(text_path)
        assert (code, err) == (0, "")
        assert out == (
            f"train: every file has the hash that the manifest states; {corpus.tokens} tokens, the largest id is 256; "
            f"corpus {corpus.id[:12]}\n"
        )

    def test_a_damaged_one_in_a_real_process(self, text_path: Path) -> None:
        file = text_path / "shard-00001.tokens.npy"
        data = bytearray(file.read_bytes())
        data[-3] ^= 1
        file.write_bytes(data)
        words = [sys.executable, "-m", "dew", "tokens", "verify", str(text_path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert "is not the corpus that was written, 1 findings" in done.stderr
        assert "shard-00001.tokens.npy has the sha256" in done.stderr

    def test_every_split(self, run: Callable[..., Run], tmp_path: Path) -> None:
        for split in ("train", "val"):
            write_corpus([[1, 2, 3]], tmp_path / split, vocab_size=9)
        code, out, _ = run("verify", tmp_path, "--json")
        assert code == 0
        assert [facts["split"] for facts in json.loads(out)] == ["train", "val"]
        (tmp_path / "val" / "shard-00000.json").unlink()
        code, _, err = run("verify", tmp_path)
        assert code == 1
        assert "val/shard-00000.json is missing" in err

    def test_an_unfinished_one(self, run: Callable[..., Run], text_path: Path) -> None:
        (text_path / "manifest.json").unlink()
        code, _, err = run("verify", text_path)
        assert code == 1
        assert "is no finished token corpus" in err

    def test_files_of_other_programs(self, run: Callable[..., Run], megatron: Writer, tmp_path: Path) -> None:
        path = megatron(tmp_path / "data", [[[1, 2]], [[7, 4]]], 4)
        code, out, _ = run("verify", path)
        assert code == 0
        assert "sizes, indexes and ids are as they must be; there are no hashes" in out
        assert "4 tokens, the largest id is 7" in out
        path.write_bytes(np.array([1, 2, -7, 4], "<i4").tobytes())
        code, _, err = run("verify", path)
        assert code == 1
        assert "is -7 as int32" in err

    def test_bare_files_and_their_splits(self, run: Callable[..., Run], tmp_path: Path) -> None:
        for name, ids in (("train.bin", [1, 2, 0]), ("val.bin", [3, 0])):
            np.array(ids, "<u2").tofile(tmp_path / name)
        code, _, err = run("verify", tmp_path)
        assert code == 1
        assert "is headerless: nothing in it says how many bytes an id takes" in err
        code, out, _ = run("verify", tmp_path, "--dtype", "uint16", "--split", "val", "--eos-id", 0, "--json")
        assert code == 0
        (facts,) = json.loads(out)
        assert (facts["split"], facts["tokens"], facts["documents"], facts["max_id"]) == ("val", 2, 1, 3)

    def test_nothing_there(self, run: Callable[..., Run], tmp_path: Path) -> None:
        code, _, err = run("verify", tmp_path / "nowhere")
        assert code == 1
        assert "no token corpus at" in err


class TestInfo:
    def test_megatron(self, run: Callable[..., Run], megatron: Writer, tmp_path: Path) -> None:
        path = megatron(tmp_path / "data", [[[1, 2]], [[7, 4]], [[]]])
        code, out, _ = run("info", path, "--json")
        facts = json.loads(out)
        assert code == 0
        assert (facts["format"], facts["documents"], facts["empty_documents"]) == ("megatron", 2, 1)
        assert facts["lengths"]["max"] == 2
        code, out, _ = run("info", path, "--pack", 3)
        assert code == 0
        assert "tokenizer         not recorded" in out

    def test_files_that_do_not_say_where_documents_end(self, run: Callable[..., Run], tmp_path: Path) -> None:
        np.array([1, 2, 0, 3, 0], "<u2").tofile(tmp_path / "x.bin")
        code, out, _ = run("info", tmp_path, "--dtype", "uint16")
        assert code == 0
        assert "documents         not known: neither the files nor --eos-id or --bos-id say where they end" in out
        code, out, _ = run("info", tmp_path, "--dtype", "uint16", "--eos-id", 0)
        assert code == 0
        assert "documents         2 (0 empty ones kept out)" in out
        code, _, err = run("info", tmp_path, "--dtype", "uint16", "--pack", 4)
        assert code == 1
        assert "does not say where documents end; give eos_id=" in err

    def test_datatrove_names_its_tokenizer(self, run: Callable[..., Run], datatrove: Writer, tmp_path: Path) -> None:
        datatrove(tmp_path / "x.ds", FILLED)
        assert "tokenizer         some/tokenizer" in run("info", tmp_path)[1]


class TestImport:
    @pytest.mark.parametrize(
        "kind",
        [
            pa.list_(pa.int32()),
            pa.list_(pa.int64()),
            pa.large_list(pa.uint16()),
            pa.list_(pa.uint8()),
            pa.list_view(pa.int32()),
        ],
        ids=str,
    )
    def test_parquet_and_arrow(self, tmp_path: Path, kind: Any) -> None:
        if kind != pa.list_view(pa.int32()):  # Parquet has no such type
            pq.write_table(table(kind=kind), tmp_path / "a.parquet", row_group_size=3)
        with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_file(file, table(kind=kind).schema) as out:
            out.write_table(table(kind=kind), max_chunksize=2)
        with (
            pa.OSFile(str(tmp_path / "c.arrow"), "wb") as file,
            pa.ipc.new_stream(file, table(kind=kind).schema) as out,
        ):
            out.write_table(table(kind=kind))
        for source in tmp_path.iterdir():
            corpus = tmp_path / "corpora" / source.name
            manifest = import_parquet(source, corpus, vocab_size=7)
            assert documents_of(corpus) == FILLED
            assert (manifest.empty_documents, manifest.dtype) == (1, "<u2")
            verify_corpus(corpus)

    def test_lists_of_one_length(self, tmp_path: Path) -> None:
        pq.write_table(table([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), tmp_path / "a.parquet")
        import_parquet(tmp_path / "a.parquet", tmp_path / "c", vocab_size=7)
        assert documents_of(tmp_path / "c") == [[1, 2], [3, 4]]

    def test_rows_keep_their_order_over_many_batches_and_files(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(1)
        documents = [rng.integers(0, 70000, length).tolist() for length in rng.integers(1, 30, 900)]
        for number, part in ((2, documents[:300]), (10, documents[300:])):
            pq.write_table(table(part), tmp_path / f"part-{number}.parquet", row_group_size=170)
        import_parquet(tmp_path / "part-*.parquet", tmp_path / "c", vocab_size=70000, shard_tokens=1000)
        assert documents_of(tmp_path / "c") == documents
        assert TokenCorpus(tmp_path / "c").dtype == "<u4"

    def test_a_directory_that_datasets_saved(self, tmp_path: Path) -> None:
        folder = tmp_path / "saved"
        folder.mkdir()
        for number in range(2):
            path = str(folder / f"data-0000{number}-of-00002.arrow")
            with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table().schema) as out:
                out.write_table(table())
        names = [{"filename": f"data-0000{number}-of-00002.arrow"} for number in range(2)]
        (folder / "state.json").write_text(json.dumps({"_data_files": names}))
        (folder / "dataset_info.json").write_text("{}")
        import_parquet(folder, tmp_path / "c", vocab_size=7)
        assert documents_of(tmp_path / "c") == FILLED * 2

    def test_framing_is_added_once(self, tmp_path: Path) -> None:
        pq.write_table(table([[1, 5, 2], [5, 6], [1, 7]]), tmp_path / "a.parquet")
        info = TokenizerInfo(vocab_size=9, bos_id=1, eos_id=2)
        manifest = import_parquet(tmp_path / "a.parquet", tmp_path / "c", tokenizer=info, bos=True, eos=True)
        assert documents_of(tmp_path / "c") == [[1, 5, 2], [1, 5, 6, 2], [1, 7, 2]]
        assert (manifest.framing.bos, manifest.framing.eos) == (True, True)

    @pytest.mark.parametrize(
        ("documents", "kind", "match"),
        [
            ([[1], None, [2]], None, r"a\.parquet, column 'input_ids' has no list in row 1, but null"),
            ([[1], [2, 3], [4, None]], None, r"column 'input_ids' has a null among the ids of row 2"),
            ([[1], [2, 7]], None, r"column 'input_ids', row 1: document 1 has 7 at position 1, and ids are .* 0 to 6"),
            ([[1], [-1]], None, r"column 'input_ids', row 1: document 1 has -1 at position 0"),
            ([[2**40]], pa.list_(pa.int64()), r"row 0: document 0 has 1099511627776 at position 0"),
            (
                [[1.5]],
                pa.list_(pa.float32()),
                r"the column 'input_ids' holds lists of float, and ids are whole numbers",
            ),
            (["text"], pa.string(), r"the column 'input_ids' holds string and not lists of ids; name another column"),
        ],
    )
    def test_what_is_no_id_is_refused_by_row(self, tmp_path: Path, documents: Any, kind: Any, match: str) -> None:
        pq.write_table(table(documents, kind), tmp_path / "a.parquet")
        with pytest.raises(SourceError, match=match):
            import_parquet(tmp_path / "a.parquet", tmp_path / "c", vocab_size=7)
        assert not (tmp_path / "c" / "manifest.json").exists()

    def test_other_refusals(self, tmp_path: Path) -> None:
        pq.write_table(table(), tmp_path / "a.parquet")
        with pytest.raises(SourceError, match=r"a\.parquet has no column 'ids'; it has 'text', 'input_ids'"):
            import_parquet(tmp_path / "a.parquet", tmp_path / "c", vocab_size=7, column="ids")
        (tmp_path / "b.parquet").write_bytes(b"PAR1 and nothing else")
        with pytest.raises(DamagedSourceError, match=r"b\.parquet is no parquet file, or a damaged one"):
            import_parquet(tmp_path / "b.parquet", tmp_path / "c", vocab_size=7)
        (tmp_path / "t.jsonl").write_text("{}")
        with pytest.raises(
            OptionsError, match=r"t\.jsonl holds text, not ids; make a corpus of it with `dew tokenize`"
        ):
            import_parquet(tmp_path / "t.jsonl", tmp_path / "c", vocab_size=7)
        with pytest.raises(SourceNotFoundError):
            import_parquet(tmp_path / "nowhere.parquet", tmp_path / "c", vocab_size=7)
        write_corpus([[1]], tmp_path / "c", vocab_size=7)
        with pytest.raises(OptionsError, match="already holds a finished corpus"):
            import_parquet(tmp_path / "a.parquet", tmp_path / "c", vocab_size=7)
        import_parquet(tmp_path / "a.parquet", tmp_path / "c", tokenizer=ByteTokenizer(), overwrite=True)
        assert documents_of(tmp_path / "c") == FILLED

    def test_the_command(self, run: Callable[..., Run], tmp_path: Path) -> None:
        pq.write_table(table(column="ids"), tmp_path / "a.parquet")
        words = ("import", tmp_path / "a.parquet", "--out", tmp_path / "c", "--column", "ids", "--eos-id", 6)
        code, _, err = run(*words)
        assert code == 2
        assert "Missing option '--vocab-size'" in err
        code, out, _ = run(*words, "--vocab-size", 7)
        assert code == 0
        assert out.startswith("8 tokens of <u2 in 3 documents (1 empty ones kept out) are in ")
        assert documents_of(tmp_path / "c") == [[1, 2, 3, 6], [4, 6], [5, 6]]
        code, out, _ = run(*words, "--vocab-size", 7, "--overwrite", "--json")
        assert code == 0
        assert json.loads(out)["id"] == TokenCorpus(tmp_path / "c").id
        assert run("verify", tmp_path / "c")[0] == 0
