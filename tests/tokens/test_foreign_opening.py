"""From a path to a corpus: which format it is, which files are which split, and the data sets made of them."""

import logging
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.data import DataPartition, Dataset, Loading, PositionMismatchError, load
from dew.data.cache import BlockCache
from dew.data.errors import DamagedSourceError, OptionsError, OverlapError, SourceError, SourceNotFoundError, SplitError
from dew.data.source import RecordSource, describe, fingerprint
from dew.testing import SourceSuite, StreamSuite
from dew.tokens import (
    CorpusOptions,
    PackedDocuments,
    PackedSource,
    TokenCorpus,
    TokenOptions,
    TokenWindows,
    WindowSource,
    open_corpus,
    write_corpus,
)
from dew.tokens.foreign.corpus import ForeignCorpus
from dew.tokens.reader import TokenReader

Writer = Callable[..., Path]
Documents = list[np.ndarray[Any, np.dtype[np.int64]]]

FAST = Loading(read_buffer=0)


def opened(path: Path, split: str = "train", **options: Any) -> TokenReader:
    return open_corpus(str(path), split, CorpusOptions(**options))


def ids(corpus: TokenReader) -> list[int]:
    return corpus.read(0, corpus.tokens).tolist()


def bare(path: Path, values: Any, dtype: str = "<u2") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.array(values, dtype).tobytes())
    return path


def rows(dataset: Dataset, steps: int = 12) -> np.ndarray[Any, Any]:
    with dataset.train(DataPartition()) as stream:
        return np.concatenate([next(stream)["text"] for _ in range(steps)])


class TestFormats:
    def test_what_was_found_is_said(self, megatron: Writer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        megatron(tmp_path / "data", [[[1, 2, 3]]])
        with caplog.at_level(logging.INFO, "dew.tokens"):
            opened(tmp_path)
        (message,) = caplog.messages
        assert re.search(r"data\.bin is read as 'megatron': 3 tokens of <u2 in 1 files, data\.bin", message)

    def test_several_formats_are_refused(self, megatron: Writer, datatrove: Writer, tmp_path: Path) -> None:
        megatron(tmp_path / "m", [[[1, 2, 3]]])
        datatrove(tmp_path / "d.ds", [[4, 5]])
        np.save(tmp_path / "n.npy", np.array([6, 7], np.uint16))
        bare(tmp_path / "b.bin", [8, 9])
        match = r"has files of several formats: 'megatron' \(m\.bin\); 'datatrove' \(d\.ds\); 'npy' \(n\.npy\); 'head"
        with pytest.raises(SourceError, match=match):
            opened(tmp_path)
        assert ids(opened(tmp_path, format="megatron")) == [1, 2, 3]
        assert ids(opened(tmp_path, format="datatrove")) == [4, 5]
        assert ids(opened(tmp_path / "n.npy")) == [6, 7]
        assert ids(opened(tmp_path / "b.bin", dtype="uint16")) == [8, 9]

    def test_a_format_that_is_not_there(self, tmp_path: Path) -> None:
        bare(tmp_path / "b.bin", [8, 9])
        with pytest.raises(
            SourceError, match=r"holds no token corpus: there are \['b\.bin'\], and format='megatron' was"
        ):
            opened(tmp_path, format="megatron")

    def test_nothing_that_is_known(self, tmp_path: Path) -> None:
        (tmp_path / "text.jsonl").write_text("{}")
        match = (
            r"holds no token corpus: there are \['text\.jsonl'\], and known are 'dew'; 'megatron', x\.bin with x\.idx"
        )
        with pytest.raises(SourceError, match=match):
            opened(tmp_path)

    @pytest.mark.parametrize("name", ["nowhere", "nowhere/x.bin", "part-*.bin", "nowhere/*.bin"])
    def test_nothing_at_all(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(
            SourceNotFoundError, match=r"no token corpus at .*there is no such directory, file or pattern"
        ):
            opened(tmp_path / name)

    def test_a_corpus_of_dew_is_not_taken_for_npy_files(self, text_path: Path) -> None:
        (text_path / "manifest.json").unlink()
        with pytest.raises(DamagedSourceError, match=r"is no finished token corpus: it has no manifest\.json"):
            opened(text_path)

    def test_options_that_a_manifest_makes_needless(self, text_path: Path) -> None:
        with pytest.raises(
            OptionsError, match=r"a corpus that Dew wrote, whose manifest .* leave dtype and eos_id out"
        ):
            opened(text_path, dtype="uint16", eos_id=0)
        assert isinstance(opened(text_path, format="dew"), TokenCorpus)

    def test_dew_asked_for_and_not_there(self, tmp_path: Path) -> None:
        bare(tmp_path / "x.bin", [1, 2])
        with pytest.raises(DamagedSourceError, match=r"no finished token corpus: it has no manifest\.json"):
            opened(tmp_path, format="dew")

    def test_patterns(self, tmp_path: Path, megatron: Writer) -> None:
        for name in ("a_1", "a_2", "b_1"):
            megatron(tmp_path / name, [[[len(name), int(name[-1])]]])
        assert ids(opened(tmp_path / "a_*.bin")) == [3, 1, 3, 2]
        assert ids(opened(tmp_path / "?_1*")) == [3, 1, 3, 1]

    def test_relative_paths(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bare(tmp_path / "x.bin", [1, 2])
        monkeypatch.chdir(tmp_path)
        for path in ("x.bin", "./x.bin", ".", f"file://{tmp_path}/x.bin", f"local://{tmp_path}"):
            assert ids(open_corpus(path, options=CorpusOptions(dtype="uint16"))) == [1, 2]


class TestSplits:
    def test_names_of_files_as_nanogpt_has_them(self, tmp_path: Path) -> None:
        bare(tmp_path / "train.bin", [1, 2])
        bare(tmp_path / "val.bin", [3])
        (tmp_path / "meta.pkl").write_bytes(b"not read")
        assert ids(opened(tmp_path, dtype="uint16")) == [1, 2]
        assert ids(opened(tmp_path, "val", dtype="uint16")) == [3]
        with pytest.raises(
            SplitError, match=r"no split 'test' in .*; by the names of its files there are \['train', 'val'\]"
        ):
            opened(tmp_path, "test", dtype="uint16")

    def test_words_in_names_as_llmc_has_them(self, tmp_path: Path) -> None:
        for name, value in (("fineweb_train_000002", 2), ("fineweb_train_000001", 1), ("fineweb_val_000000", 0)):
            bare(tmp_path / f"{name}.bin", [value])
        assert ids(opened(tmp_path, dtype="uint16")) == [1, 2]
        assert ids(opened(tmp_path, "val", dtype="uint16")) == [0]

    def test_a_file_of_no_split_among_others(self, tmp_path: Path) -> None:
        for name in ("train.bin", "pretraining.bin"):
            bare(tmp_path / name, [1])
        with pytest.raises(
            SourceError, match=r"files of the splits \['train'\] .* \['pretraining\.bin'\] are of none or of"
        ):
            opened(tmp_path, dtype="uint16")
        assert ids(opened(tmp_path / "*.bin", dtype="uint16")) == [1, 1]

    def test_a_file_of_two_splits(self, tmp_path: Path) -> None:
        bare(tmp_path / "train_and_test.bin", [1])
        with pytest.raises(SourceError, match=r"\['train_and_test\.bin'\] are of none or of several"):
            opened(tmp_path, dtype="uint16")

    def test_directories(self, tmp_path: Path, megatron: Writer) -> None:
        megatron(tmp_path / "train" / "test_a", [[[1, 2]]])
        megatron(tmp_path / "val" / "b", [[[3]]])
        assert ids(opened(tmp_path)) == [1, 2]
        assert ids(opened(tmp_path, "val")) == [3]

    def test_one_corpus_is_the_split_train(self, tmp_path: Path) -> None:
        bare(tmp_path / "part0.bin", [1])
        with pytest.raises(SplitError, match=r"no split 'val' in .*: its files are one corpus, the split 'train'"):
            opened(tmp_path, "val", dtype="uint16")

    def test_validation_on_named_files(self, tmp_path: Path) -> None:
        bare(tmp_path / "train.bin", range(100))
        bare(tmp_path / "val.bin", range(500, 550))
        dataset = TokenWindows(tmp_path, seq_len=7, val="val", dtype="uint16", loading=FAST).load(batch=2)  # type: ignore[arg-type]
        assert dataset.val is not None
        found = np.concatenate([batch["text"][batch["valid"]] for batch in dataset.val(DataPartition())])
        assert found[:, :-1].ravel().tolist() == list(range(500, 549))
        with pytest.raises(
            OptionsError, match=r"would be cut from the split 'train', but .* has a split 'val' of its own"
        ):
            TokenWindows(str(tmp_path), seq_len=7, val=0.5, dtype="uint16", eos_id=0).load(batch=2)

    def test_validation_on_the_tail(self, tmp_path: Path) -> None:
        path = str(bare(tmp_path / "x.bin", [*range(1, 50), 0, *range(50, 90), 0, 90, 91, 0, *range(7)]))
        options = TokenOptions(seq_len=4, val=0.095, dtype="uint16", eos_id=0)
        dataset = load(f"tokens/{path}", batch=1, options=options)
        assert dataset.val is not None
        with dataset.val(DataPartition()) as one_pass:  # type: ignore[attr-defined]
            assert next(one_pass)["text"].tolist() == [[90, 91, 0, 0, 1]]
        with pytest.raises(OptionsError, match="does not say where documents end; give eos_id="):
            load(f"tokens/{path}", batch=1, options=TokenOptions(seq_len=4, val=0.1, dtype="uint16"))

    def test_validation_on_a_copy_of_the_training_files(self, tmp_path: Path) -> None:
        for name in ("train.bin", "val.bin"):
            bare(tmp_path / name, range(100))
        with pytest.raises(OverlapError, match="validat"):
            load(f"tokens/{tmp_path}", batch=2, options=TokenOptions(seq_len=7, val="val", dtype="uint16"))


class TestSameAsDew:
    """The same ids in another format make the same rows, step for step."""

    @pytest.fixture
    def places(
        self, megatron: Writer, datatrove: Writer, documents: Documents, corpus_path: Path, tmp_path: Path
    ) -> dict[str, dict[str, Any]]:
        parts = [documents[:70], documents[70:71], documents[71:]]
        for number, part in enumerate(parts):
            megatron(tmp_path / "megatron" / f"p{number}", [[d[:3].tolist(), d[3:].tolist()] for d in part], 4)
            datatrove(tmp_path / "datatrove" / f"p{number}.ds", part, 4)
            bare(tmp_path / "headerless" / f"p{number}.bin", np.concatenate(part), "<u4")
        (tmp_path / "npy").mkdir()
        for number, part in enumerate(parts):
            np.save(tmp_path / "npy" / f"p{number}.npy", np.concatenate(part))
        own = {"headerless": {"dtype": "uint32"}}
        made = {name: {"path": str(tmp_path / name), **own.get(name, {})} for name in ("megatron", "datatrove", "npy")}
        made["headerless"] = {"path": str(tmp_path / "headerless"), "dtype": "uint32"}
        return made

    @pytest.mark.parametrize("name", ["megatron", "datatrove", "npy", "headerless"])
    def test_windows(self, places: dict[str, dict[str, Any]], corpus_path: Path, name: str) -> None:
        expected = rows(TokenWindows(str(corpus_path), seq_len=24, seed=3, loading=FAST).load(batch=8))
        found = rows(TokenWindows(**places[name], seq_len=24, seed=3, loading=FAST).load(batch=8))
        np.testing.assert_array_equal(found, expected)

    @pytest.mark.parametrize("name", ["megatron", "datatrove"])
    def test_packed_documents(self, places: dict[str, dict[str, Any]], corpus_path: Path, name: str) -> None:
        sources = [PackedSource(open_corpus(path), seq_len=30) for path in (str(corpus_path), places[name]["path"])]
        indices = np.arange(len(sources[0]))
        for key, expected in sources[0].take(indices).items():
            np.testing.assert_array_equal(sources[1].take(indices)[key], expected)
        PackedDocuments(**places[name], seq_len=30, loading=FAST).load(batch=2)

    @pytest.mark.parametrize("name", ["megatron", "headerless"])
    def test_resume_with_workers_and_another_process_count(self, places: dict[str, dict[str, Any]], name: str) -> None:
        dataset = TokenWindows(**places[name], seq_len=24, loading=Loading(workers=1)).load(batch=8)
        with dataset.train(DataPartition()) as stream:
            for _ in range(3):
                next(stream)
            state = stream.get_state()  # type: ignore[attr-defined]
            expected = next(stream)["text"]
        plain = TokenWindows(**places[name], seq_len=24, loading=FAST).load(batch=8)
        for index in range(2):
            with plain.train(DataPartition(index, 2)) as share:
                share.set_state(state)  # type: ignore[attr-defined]
                np.testing.assert_array_equal(next(share)["text"], expected[index::2])

    def test_a_moved_corpus_resumes_and_a_changed_one_does_not(
        self, places: dict[str, dict[str, Any]], tmp_path: Path
    ) -> None:
        with (
            TokenWindows(**places["megatron"], seq_len=24, loading=FAST).load(batch=8).train(DataPartition()) as stream
        ):
            next(stream)
            state = stream.get_state()  # type: ignore[attr-defined]
        moved = tmp_path / "elsewhere"
        shutil.move(places["megatron"]["path"], moved)
        with TokenWindows(str(moved), seq_len=24, loading=FAST).load(batch=8).train(DataPartition()) as stream:
            stream.set_state(state)  # type: ignore[attr-defined]
        data = bytearray((moved / "p2.bin").read_bytes())
        data[40] ^= 1
        (moved / "p2.bin").write_bytes(data)
        with TokenWindows(str(moved), seq_len=24, loading=FAST).load(batch=8).train(DataPartition()) as stream:
            with pytest.raises(PositionMismatchError) as caught:
                stream.set_state(state)  # type: ignore[attr-defined]
            assert caught.value.part == "fingerprint"


class TestIdentity:
    def test_descriptions_say_nothing_of_places_or_access(self, tmp_path: Path) -> None:
        path = bare(tmp_path / "x.bin", range(50))
        options = TokenOptions(
            seq_len=4, dtype="uint16", storage_options={"key": "s3cr3t"}, cache=BlockCache(tmp_path / "cache")
        )
        dataset = load(f"tokens/{path}", batch=2, options=options)
        with dataset.train(DataPartition()) as stream:
            state = stream.get_state()  # type: ignore[attr-defined]
        plain = load(f"tokens/{path}", batch=2, options=TokenOptions(seq_len=4, dtype="uint16"))
        with plain.train(DataPartition()) as stream:
            assert stream.get_state() == state  # type: ignore[attr-defined]
        for text in (repr(state), repr(options), repr(opened(path, dtype="uint16"))):
            assert str(tmp_path) not in text
            assert "s3cr3t" not in text

    def test_the_fingerprint_is_of_the_content(self, tmp_path: Path, megatron: Writer) -> None:
        first = opened(megatron(tmp_path / "a", [[[1, 2, 3]], [[4, 5]]])).id
        assert re.fullmatch("[0-9a-f]{64}", first)
        assert opened(megatron(tmp_path / "other", [[[1, 2, 3]], [[4, 5]]])).id == first
        assert opened(megatron(tmp_path / "a", [[[1, 2]], [[3, 4, 5]]])).id != first
        assert opened(megatron(tmp_path / "a", [[[1, 2, 3]], [[4, 6]]])).id != first
        assert opened(megatron(tmp_path / "a", [[[1, 2, 3]], [[4, 5]]], 4)).id != first
        path = bare(tmp_path / "x.bin", range(1, 9))
        assert (
            len({opened(path, dtype=d, **o).id for d in ("<u2", "<i2") for o in ({}, {"eos_id": 3}, {"bos_id": 3})})
            == 6
        )

    def test_both_ends_of_large_files_count_and_their_sizes(self, tmp_path: Path) -> None:
        ids = np.zeros(3 << 20, np.uint8)
        seen = set()
        for place in (None, 0, -1, 3 << 19):
            changed = ids.copy()
            if place is not None:
                changed[place] = 1
            seen.add(opened(bare(tmp_path / "x.bin", changed, "u1"), dtype="uint8").id)
        assert len(seen) == 3  # what lies between first and last MiB is not read: this is the documented limit
        assert opened(bare(tmp_path / "x.bin", ids[:-1], "u1"), dtype="uint8").id not in seen

    def test_a_copy_reads_nothing_and_refuses_another_size(self, tmp_path: Path, megatron: Writer) -> None:
        path = megatron(tmp_path / "a", [[[1, 2, 3]], [[4, 5]]])
        corpus = opened(path)
        expected = corpus.id
        data = pickle.dumps(corpus)
        path.with_suffix(".idx").rename(tmp_path / "away.idx")
        copy = pickle.loads(data)
        assert (copy.id, copy.documents, ids(copy)) == (expected, 2, [1, 2, 3, 4, 5])
        path.write_bytes(path.read_bytes() + b"\0\0")
        with pytest.raises(DamagedSourceError, match=r"a\.bin has 12 bytes, it had 10 when the corpus was opened"):
            pickle.loads(data).read(0, 1)
        path.unlink()
        with pytest.raises(DamagedSourceError, match=r"a\.bin is missing, and it was there when the corpus was opened"):
            pickle.loads(data).read(0, 1)

    def test_close_and_open(self, tmp_path: Path) -> None:
        corpus = opened(bare(tmp_path / "x.bin", range(50)), dtype="uint16", eos_id=3)
        other = corpus.open()
        corpus.close()
        assert ids(other) == ids(corpus) == list(range(50))
        assert other.documents == 2
        corpus.close()


class TestMegatronSource(SourceSuite):
    @pytest.fixture(autouse=True)
    def _path(self, megatron: Writer, documents: Documents, tmp_path: Path) -> None:
        self.path = megatron(tmp_path / "data", [[document.tolist()] for document in documents], 4)
        self.location = str(tmp_path)

    def make_source(self) -> RecordSource:
        return WindowSource(open_corpus(str(self.path)), seq_len=16)

    def test_describes_itself(self) -> None:
        source = self.make_source()
        assert describe(source).startswith("WindowSource(seq_len=16, tokens 0 to ")
        assert isinstance(source.corpus, ForeignCorpus)  # type: ignore[attr-defined]
        assert fingerprint(source) == source.corpus.id  # type: ignore[attr-defined]


class TestRemoteHeaderlessSource(SourceSuite):
    @pytest.fixture(autouse=True)
    def _url(self, memory_url: str, stream: np.ndarray[Any, Any]) -> None:
        import fsspec

        for number, part in enumerate(np.array_split(stream.astype("<u4"), 3)):
            with fsspec.open(f"{memory_url}/part-{number}.bin", "wb") as file:
                file.write(part.tobytes())  # type: ignore[union-attr]
        self.url = self.location = memory_url

    def make_source(self) -> RecordSource:
        return WindowSource(open_corpus(self.url, options=CorpusOptions(dtype="uint32")), seq_len=16)


class TestStream(StreamSuite):
    @pytest.fixture(autouse=True)
    def _path(self, datatrove: Writer, documents: Documents, tmp_path: Path) -> None:
        self.path = datatrove(tmp_path / "x.ds", documents)

    def make_dataset(self) -> Dataset:
        return load(f"tokens/{self.path}", batch=12, options=TokenOptions(seq_len=40, val=0.2), seed=5)


def test_a_mapped_file_of_each_kind_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More files than may be mapped are read all the same."""
    from dew.tokens import shards

    monkeypatch.setattr(shards, "MAX_MAPS", 3)
    for number in range(12):
        bare(tmp_path / f"{number}.bin", [number] * 5, "<i4")
    corpus = opened(tmp_path, dtype="int32")
    assert ids(corpus) == [number for number in range(12) for _ in range(5)]
    assert corpus.gather(np.arange(0, 55, 5), 6)[:, 5].tolist() == list(range(1, 12))


def test_write_corpus_is_still_the_default(tmp_path: Path) -> None:
    write_corpus([[1, 2], [3]], tmp_path / "c", vocab_size=9)
    assert isinstance(open_corpus(str(tmp_path / "c")), TokenCorpus)
