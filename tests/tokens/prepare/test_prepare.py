"""From files to a corpus: the same bytes whoever does it, and exactly the documents that are there."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.data import load
from dew.data.errors import DewWarning, OptionsError, OptionsTypeError, OverlapError, SourceError
from dew.data.storage import Storage
from dew.tokens import ByteTokenizer, Framing, TokenCorpus, TokenOptions, TokenWindows, verify_corpus
from dew.tokens.prepare import Origin, Prepared, PrepareProgress, find_origin, merge, prepare, prepare_texts

Documents = Callable[[Path], list[list[int]]]
Encode = Callable[[str], list[int]]

SMALL = 6000  # bytes of text in a shard, so that a small input has many


@pytest.fixture(scope="module")
def clean(mixed: Path, tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory, digests: Any) -> dict[str, str]:
    """What `mixed` comes to in this process."""
    out = tmp_path_factory.mktemp("clean") / "out"
    prepare(mixed, out, tokenizer=tokenizer_dir, eos=True, workers=0, task_bytes=SMALL)
    return digests(out)


class TestSameBytes:
    @pytest.mark.parametrize("workers", [1, 2, 3])
    def test_workers(
        self, mixed: Path, tokenizer_dir: Path, tmp_path: Path, clean: Any, digests: Any, workers: int
    ) -> None:
        prepared = prepare(mixed, tmp_path, tokenizer=tokenizer_dir, eos=True, workers=workers, task_bytes=SMALL)
        assert digests(tmp_path) == clean
        assert prepared.ran == prepared.tasks > 10
        assert prepared.tokens == prepared.manifests["train"].tokens

    def test_shares(self, mixed: Path, tokenizer_dir: Path, tmp_path: Path, clean: Any, digests: Any) -> None:
        ran = []
        for index in (2, 0, 1):
            prepared = prepare(
                mixed, tmp_path, tokenizer=tokenizer_dir, eos=True, workers=0, task_bytes=SMALL, task=(index, 3)
            )
            assert not prepared.manifests
            ran.append(prepared.ran)
        assert (sum(ran), prepared.missing) == (prepared.tasks, 0)
        assert merge(tmp_path).manifests["train"].documents == 851
        assert digests(tmp_path) == clean

    def test_from_another_place_and_in_another_order(
        self, mixed: Path, tokenizer_dir: Path, tmp_path: Path, clean: Any, digests: Any
    ) -> None:
        import shutil

        shutil.copytree(mixed, tmp_path / "moved" / "deeper")
        here = tmp_path / "moved" / "deeper"
        os.utime(here / "d.txt", (1, 1))
        shutil.copy(tokenizer_dir / "tokenizer.json", tmp_path / "other.json")
        prepare(
            [here / "d.txt", here / "b.parquet", here / "*/*.jsonl", here / "e.txt", here / "c.jsonl.gz"],
            tmp_path / "out",
            tokenizer=tmp_path / "other.json",
            bos_token="<s>",
            eos_token="</s>",
            pad_token="<pad>",
            eos=True,
            workers=0,
            task_bytes=SMALL,
        )
        assert digests(tmp_path / "out") == clean

    def test_to_an_object_store(self, mixed: Path, tokenizer_dir: Path, memory_url: str, clean: Any) -> None:
        remote = Storage(f"{memory_url}/in")
        for path in mixed.rglob("*.*"):
            remote.write(str(path.relative_to(mixed)), path.read_bytes())
        out = f"{memory_url}/out"
        prepare(f"{memory_url}/in", out, tokenizer=tokenizer_dir, eos=True, workers=0, task_bytes=SMALL)
        stored = Storage(out)
        assert {name: hashlib.sha256(stored.read(name)).hexdigest() for name in clean} == clean
        verify_corpus(out)


def test_what_is_written(
    mixed: Path, tokenizer_dir: Path, tmp_path: Path, documents_of: Documents, encode: Encode, texts: Any
) -> None:
    prepare(mixed, tmp_path, tokenizer=tokenizer_dir, bos=True, eos=True, workers=0, task_bytes=SMALL)
    manifest = verify_corpus(tmp_path)
    own = (mixed / "d.txt").read_text()
    expected = [*texts(300, seed=1), *texts(200, seed=2), *texts(250, seed=3), *texts(100, seed=4), own]
    assert documents_of(tmp_path) == [[1, *encode(text), 2] for text in expected]
    assert manifest.framing == Framing(bos=True, eos=True)
    assert manifest.empty_documents == 1
    assert manifest.preparation is not None
    assert manifest.preparation["inputs"]["files"] == 6
    assert manifest.preparation["left_out"] == {"rows": 0, "listed": []}
    assert manifest.preparation["engine"]["name"] == "hf"
    assert {"plan.json", "manifest.json", "tokenizer.json", "tasks"} <= set(os.listdir(tmp_path))
    origins = [find_origin(tmp_path, document) for document in range(manifest.documents)]
    assert origins == [
        *(Origin("a/part-2.jsonl", row) for row in range(300)),
        *(Origin("a/part-10.jsonl", row) for row in range(200)),
        *(Origin("b.parquet", row) for row in range(250)),
        *(Origin("c.jsonl.gz", row) for row in range(100)),
        Origin("d.txt", 0),
    ]
    with pytest.raises(IndexError, match=r"document 851 was asked for, the split 'train' has 851"):
        find_origin(tmp_path, 851)


def test_framing_as_asked(
    tmp_path: Path, tokenizer_dir: Path, write_lines: Any, documents_of: Documents, encode: Encode
) -> None:
    """C12 and C10: a tokenizer whose post-processor begins every text adds nothing here."""
    path = write_lines(tmp_path / "a.jsonl", ["one", "two three", "<s>four</s>"])
    for bos, eos in ((False, False), (True, False), (False, True), (True, True)):
        out = tmp_path / f"{bos}{eos}"
        prepare(path, out, tokenizer=tokenizer_dir, bos=bos, eos=eos, workers=0)
        expected = [[1] * bos + encode(text) + [2] * eos for text in ("one", "two three", "<s>four</s>")]
        assert documents_of(out) == expected
        assert TokenCorpus(out).manifest.framing == Framing(bos=bos, eos=eos)


def test_special_tokens_in_a_text(
    tmp_path: Path, tokenizer_dir: Path, write_lines: Any, documents_of: Documents, encode: Encode
) -> None:
    path = write_lines(tmp_path / "a.jsonl", ["<s>one</s>two</s>", "three"])
    prepare(path, tmp_path / "parsed", tokenizer=tokenizer_dir, bos=True, eos=True, parse_special=True, workers=0)
    assert documents_of(tmp_path / "parsed") == [[1, *encode("one"), 2, *encode("two"), 2], [1, *encode("three"), 2]]


def test_a_text_that_a_model_makes_special_itself(tmp_path: Path, write_lines: Any, documents_of: Documents) -> None:
    """In a vocabulary of words a special token is a word like any other: it is refused rather than let through."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "[END]": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(["[UNK]", "[END]"])
    path = write_lines(tmp_path / "a.jsonl", ["a b", "a [END] b", "b", "a [END]"])
    asked = {"tokenizer": words, "eos_token": "[END]", "eos": True, "workers": 0}
    message = (
        r"a\.jsonl, line 2: the tokenizer makes the id 1 of it, which is that of a special token; .* parse_special"
    )
    with pytest.raises(SourceError, match=message):
        prepare(path, tmp_path / "refused", **asked)  # type: ignore[arg-type]
    prepare(path, tmp_path / "skipped", on_bad="skip", **asked)  # type: ignore[arg-type]
    assert documents_of(tmp_path / "skipped") == [[2, 3, 1], [3, 1]]
    prepare(path, tmp_path / "parsed", parse_special=True, **asked)  # type: ignore[arg-type]
    assert documents_of(tmp_path / "parsed") == [[2, 3, 1], [2, 1, 3, 1], [3, 1], [2, 1]]


def test_wide_ids(tmp_path: Path, write_lines: Any, documents_of: Documents) -> None:
    """C02: the width is that of the largest possible id."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    ids = {"[UNK]": 1, "a": 69_999, "b": 65_536, "c": 65_535, "d": 0}
    words = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = write_lines(tmp_path / "a.jsonl", ["a b c d"])
    prepare(path, tmp_path / "out", tokenizer=words, workers=0)
    assert documents_of(tmp_path / "out") == [[69_999, 65_536, 65_535, 0]]
    assert TokenCorpus(tmp_path / "out").manifest.dtype == "<u4"


def test_every_process_has_the_same_steps(tmp_path: Path, write_lines: Any) -> None:
    """B08: shards of any size, and still one number of steps."""
    from dew.data import DataPartition

    rng = np.random.default_rng(42)
    rows = ["x" * int(length) for length in rng.integers(10, 20, 100)]
    prepare(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "out", tokenizer="bytes", workers=0, task_bytes=200)
    dataset = load(f"tokens/{tmp_path}/out", batch=8, options=TokenOptions(seq_len=9))
    assert dataset.steps_per_epoch is not None
    shapes = set()
    for index in range(4):
        with dataset.train(DataPartition(index, 4)) as share:  # type: ignore[attr-defined]
            shapes |= {next(share)["text"].shape for _ in range(dataset.steps_per_epoch)}
    assert shapes == {(2, 10)}


class TestBrokenRows:
    ROWS = b'{"text": "one"}\n{"text": "two\n{"text": null}\n{"text": ""}\n{"txt": "three"}\n{"text": "four"}\n'

    @pytest.fixture
    def broken(self, tmp_path: Path) -> Path:
        path = tmp_path / "in" / "a.jsonl"
        path.parent.mkdir()
        path.write_bytes(self.ROWS)
        return path

    def test_refused_with_file_and_line(self, broken: Path, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match=r"/in/a\.jsonl, line 2: no JSON: .*; correct it, or .*on_bad='skip'"):
            prepare(broken, tmp_path / "out", tokenizer="bytes", workers=0)
        assert not list((tmp_path / "out").rglob("shard-*"))
        with pytest.raises(SourceError, match=r"1 of 1 tasks of .*/out are not done, the first is task 0"):
            merge(tmp_path / "out")

    @pytest.mark.parametrize("task_bytes", [10, 40, 1 << 20])
    def test_left_out_and_listed(self, broken: Path, tmp_path: Path, task_bytes: int) -> None:
        prepared = prepare(broken, tmp_path / "out", tokenizer="bytes", workers=0, on_bad="skip", task_bytes=task_bytes)
        manifest = prepared.manifests["train"]
        assert (manifest.documents, manifest.empty_documents) == (2, 1)
        assert manifest.preparation is not None
        left_out = manifest.preparation["left_out"]
        assert left_out["rows"] == 3
        assert [(row["input"], row["row"]) for row in left_out["listed"]] == [("a.jsonl", row) for row in (1, 2, 4)]
        assert left_out["listed"][1]["why"] == "the field 'text' is null (None) and not a string"
        assert [find_origin(tmp_path / "out", document).row for document in range(2)] == [0, 5]

    def test_going_on_with_other_care(self, broken: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        with pytest.raises(SourceError, match=r"line 2"):
            prepare(broken, out, tokenizer="bytes", workers=0, task_bytes=10)
        assert prepare(broken, out, tokenizer="bytes", workers=0, task_bytes=10, on_bad="skip").manifests
        with pytest.raises(OptionsError, match=r"was begun with on_bad='skip', and 3 rows were left out"):
            prepare(broken, out, tokenizer="bytes", workers=0, task_bytes=10)
        (out / "manifest.json").unlink()
        with pytest.raises(OptionsError, match=r"was begun with on_bad='skip', and 3 rows were left out"):
            prepare(broken, out, tokenizer="bytes", workers=0, task_bytes=10)

    def test_many_are_counted_and_some_listed(self, tmp_path: Path, write_lines: Any) -> None:
        path = write_lines(tmp_path / "a.jsonl", [None] * 500 + ["end"])
        manifest = prepare(path, tmp_path / "out", tokenizer="bytes", workers=0, on_bad="skip").manifests["train"]
        assert manifest.preparation is not None
        assert manifest.preparation["left_out"]["rows"] == 500
        assert len(manifest.preparation["left_out"]["listed"]) == 100

    def test_a_text_that_the_tokenizer_refuses(self, tmp_path: Path, write_lines: Any, documents_of: Documents) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers

        words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="[UNK]"))  # which it does not have
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        path = write_lines(tmp_path / "a.jsonl", ["a b", "a c", "b"])
        with pytest.raises(SourceError, match=r"a\.jsonl, line 2: the tokenizer refuses it: WordLevel error: Missing"):
            prepare(path, tmp_path / "out", tokenizer=words, workers=0)
        prepare(path, tmp_path / "out", tokenizer=words, workers=0, on_bad="skip")
        assert documents_of(tmp_path / "out") == [[0, 1], [1]]
        with pytest.raises(SourceError, match=r"the tokenizer refuses document 1: WordLevel error"):
            prepare_texts(["a b", "a c", "b"], tmp_path / "texts", tokenizer=words)


class TestSplits:
    def test_a_fraction_by_content(
        self, tmp_path: Path, texts: Any, write_lines: Any, digests: Any, documents_of: Documents
    ) -> None:
        rows = texts(600, seed=5)
        path = write_lines(tmp_path / "in" / "b.jsonl", rows + rows[:50])
        for workers in (0, 2):
            prepare(
                path, tmp_path / f"{workers}", tokenizer="bytes", workers=workers, val_fraction=0.1, task_bytes=9000
            )
        assert digests(tmp_path / "0") == digests(tmp_path / "2")
        sides = {split: {bytes(ids) for ids in documents_of(tmp_path / "0" / split)} for split in ("train", "val")}
        assert not sides["train"] & sides["val"]
        assert sides["train"] | sides["val"] == {text.encode() for text in rows}
        assert 30 < len(sides["val"]) < 90
        dataset = load(f"tokens/{tmp_path}/0", batch=4, options=TokenOptions(seq_len=32, val="val"))
        assert dataset.val is not None

        write_lines(tmp_path / "in" / "a.jsonl", texts(300, seed=6))
        prepare(tmp_path / "in", tmp_path / "more", tokenizer="bytes", workers=0, val_fraction=0.1, task_bytes=4000)
        later = {split: {bytes(ids) for ids in documents_of(tmp_path / "more" / split)} for split in ("train", "val")}
        assert sides["val"] <= later["val"]
        assert sides["train"] <= later["train"]
        assert find_origin(tmp_path / "more", 0, split="val").input == "a.jsonl"

    def test_files_of_their_own(self, tmp_path: Path, write_lines: Any, documents_of: Documents) -> None:
        train = write_lines(tmp_path / "z.jsonl", ["one", "two"])
        val = write_lines(tmp_path / "a.jsonl", ["three", ""])
        prepared = prepare(train, tmp_path / "out", tokenizer="bytes", workers=0, val=val)
        assert [bytes(ids) for ids in documents_of(tmp_path / "out" / "train")] == [b"one", b"two"]
        assert [bytes(ids) for ids in documents_of(tmp_path / "out" / "val")] == [b"three"]
        assert {split: m.empty_documents for split, m in prepared.manifests.items()} == {"train": 0, "val": 1}
        assert find_origin(tmp_path / "out", 0, split="val") == Origin("a.jsonl", 0)

    def test_both_ways_at_once(self, tmp_path: Path, write_lines: Any) -> None:
        path = write_lines(tmp_path / "a.jsonl", ["one"])
        with pytest.raises(OptionsError, match=r"as files \(val\) or as a fraction, not both: got 0\.1 and files"):
            prepare(path, tmp_path / "out", tokenizer="bytes", val=path, val_fraction=0.1)
        with pytest.raises(OverlapError, match=r"a\.jsonl is an input of training and of validation"):
            prepare(path, tmp_path / "out", tokenizer="bytes", val=path)

    def test_a_fraction_that_catches_nothing(self, tmp_path: Path, write_lines: Any) -> None:
        path = write_lines(tmp_path / "a.jsonl", ["one", "two"])
        with pytest.warns(DewWarning, match=r"no document is in validation, all 2 are in training; raise val_fraction"):
            prepared = prepare(path, tmp_path / "out", tokenizer="bytes", workers=0, val_fraction=1e-9)
        assert list(prepared.manifests) == ["train"]

    @pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan")])
    def test_no_fraction(self, tmp_path: Path, write_lines: Any, fraction: float) -> None:
        with pytest.raises(OptionsError, match=r"val_fraction must be above 0 and below 1, got "):
            prepare(
                write_lines(tmp_path / "a.jsonl", ["a"]), tmp_path / "out", tokenizer="bytes", val_fraction=fraction
            )


class TestAgain:
    def test_a_finished_corpus_is_left_alone(self, tmp_path: Path, texts: Any, write_lines: Any, digests: Any) -> None:
        path = write_lines(tmp_path / "a.jsonl", texts(50))
        first = prepare(path, tmp_path / "out", tokenizer="bytes", workers=0)
        before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*")}
        again = prepare(path, tmp_path / "out", tokenizer="bytes", workers=2)
        assert (again.ran, again.manifests) == (0, first.manifests)
        assert merge(tmp_path / "out").manifests == first.manifests
        assert {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*")} == before

    def test_a_lost_task_is_done_again(self, tmp_path: Path, texts: Any, write_lines: Any, digests: Any) -> None:
        path = write_lines(tmp_path / "a.jsonl", texts(100))
        prepare(path, tmp_path / "out", tokenizer="bytes", workers=0, task_bytes=2000)
        before = digests(tmp_path / "out")
        (tmp_path / "out" / "manifest.json").unlink()
        for name in ("tasks/task-00003.json", "shard-00003.tokens.npy", "tasks/task-00001.json"):
            (tmp_path / "out" / name).unlink()
        assert prepare(path, tmp_path / "out", tokenizer="bytes", workers=0, task_bytes=2000).ran == 2
        assert digests(tmp_path / "out") == before

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"field": "body"}, r"the option field was 'text' and now is 'body'"),
            ({"eos": True}, r"the option eos was False and now is True"),
            ({"val_fraction": 0.5}, r"the option val_fraction was None and now is 0\.5"),
            ({"parse_special": True}, r"the option parse_special was False and now is True"),
            ({"task_bytes": 77}, r"the option task_bytes was \d+ and now is 77"),
            ({"tokenizer": ByteTokenizer(bos=True)}, r"the tokenizer's vocab_size was 257 and now is 258"),
        ],
    )
    @pytest.mark.parametrize("finished", [False, True])
    def test_other_options_do_not_mix(
        self, tmp_path: Path, write_lines: Any, changes: dict[str, Any], message: str, finished: bool
    ) -> None:
        path = write_lines(tmp_path / "a.jsonl", ["one", "two"])
        asked: dict[str, Any] = {"tokenizer": "bytes", "workers": 0}
        prepare(path, tmp_path / "out", **asked, task=None if finished else (1, 2))
        with pytest.raises(
            OptionsError, match=rf"/out holds a corpus that was begun otherwise: {message}; ask for the"
        ):
            prepare(path, tmp_path / "out", **{**asked, **changes})

    def test_other_inputs_do_not_mix(self, tmp_path: Path, write_lines: Any) -> None:
        home = tmp_path / "in"
        for name in ("a", "b"):
            write_lines(home / f"{name}.jsonl", ["one", name])
        asked: dict[str, Any] = {"tokenizer": "bytes", "workers": 0, "task": (0, 9)}
        prepare(home, tmp_path / "out", **asked)
        original = (home / "a.jsonl").read_bytes()

        def refused(message: str) -> None:
            with pytest.raises(OptionsError, match=rf"begun otherwise: {message}"):
                prepare(home, tmp_path / "out", **asked)

        write_lines(home / "a.jsonl", ["two", "a"])
        refused(r"the input 'a\.jsonl' has changed: it had 30 bytes, now it has 30 other ones")
        write_lines(home / "a.jsonl", ["three", "a"])
        refused(r"the input 'a\.jsonl' has changed: it had 30 bytes, now it has 32;")
        (home / "a.jsonl").unlink()
        (home / "b.jsonl").rename(home / "c.jsonl")
        refused(r"the input 'c\.jsonl' was not part of it")
        (home / "c.jsonl").rename(home / "b.jsonl")
        write_lines(home / "sub" / "x.jsonl", ["x"])
        (home / "a.jsonl").write_bytes(original)
        refused(r"the input 'sub/x\.jsonl' was not part of it")
        (home / "sub" / "x.jsonl").unlink()
        prepare(home, tmp_path / "out", **asked)

    def test_an_input_that_is_missing_now(self, tmp_path: Path, write_lines: Any) -> None:
        home = tmp_path / "in"
        for name in ("a", "b", "c"):
            write_lines(home / f"{name}.jsonl", ["one", name])
        prepare(home, tmp_path / "out", tokenizer="bytes", workers=0)
        (home / "b.jsonl").unlink()
        with pytest.raises(OptionsError, match=r"the input 'b\.jsonl' was part of it and is missing now"):
            prepare(home, tmp_path / "out", tokenizer="bytes", workers=0)

    def test_a_corpus_of_another_making(self, tmp_path: Path, write_lines: Any) -> None:
        path = write_lines(tmp_path / "a.jsonl", ["one"])
        prepare_texts(["one"], tmp_path / "out", tokenizer="bytes")
        with pytest.raises(OptionsError, match=r"/out already holds manifest\.json, but no plan\.json"):
            prepare(path, tmp_path / "out", tokenizer="bytes")

    def test_another_tokenizer_put_in_place(self, tmp_path: Path, write_lines: Any, tokenizer_dir: Path) -> None:
        path = write_lines(tmp_path / "a.jsonl", ["one", "two"])
        asked: dict[str, Any] = {"tokenizer": tokenizer_dir, "workers": 0, "task_bytes": 10}
        prepare(path, tmp_path / "out", **asked, task=(1, 2))
        (tmp_path / "out" / "tokenizer.json").write_text("{}")
        with pytest.raises(SourceError, match=r"/out/tokenizer\.json is not the tokenizer that this corpus was begun"):
            prepare(path, tmp_path / "out", **asked)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"on_bad": "warn"}, OptionsError, r"on_bad must be one of 'error', 'skip', got 'warn'"),
        ({"runner": "spark"}, OptionsError, r"runner must be one of 'local', 'ray', got 'spark'"),
        ({"workers": -1}, OptionsError, r"workers must be at least 0, got -1"),
        ({"workers": 1.5}, OptionsTypeError, r"workers must be an int, got 1\.5"),
        ({"task": (3, 3)}, OptionsError, r"task must be \(i, n\) with i from 0 to n - 1, got \(3, 3\)"),
        ({"task": (0, 0)}, OptionsError, r"n of task must be at least 1, got 0"),
        ({"task": 3}, OptionsTypeError, r"task must be a pair \(i, n\), got 3"),
        ({"task_bytes": 0}, OptionsError, r"task_bytes must be at least 1, got 0"),
        ({"bos": True}, OptionsError, r"bos=True \(--bos\) was asked for, but the tokenizer does not say which token"),
        ({"engine": "fast"}, OptionsError, r"the byte tokenizer has no engines to choose from"),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, write_lines: Any, changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    path = write_lines(tmp_path / "a.jsonl", ["one"])
    with pytest.raises(kind, match=message):
        prepare(path, tmp_path / "out", **{"tokenizer": "bytes", **changes})
    assert not (tmp_path / "out").exists()


def test_nothing_to_make_a_corpus_of(tmp_path: Path, write_lines: Any) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [])
    with pytest.raises(SourceError, match=r"nothing to make a corpus of: all inputs of training are empty, 1 files"):
        prepare(tmp_path / "in", tmp_path / "out", tokenizer="bytes")
    write_lines(tmp_path / "in" / "b.jsonl", ["", ""])
    with pytest.raises(SourceError, match=r"no tokens for .*/out: of 2 rows, 2 are empty, 0 were left out"):
        prepare(tmp_path / "in", tmp_path / "out", tokenizer="bytes", workers=0)


def test_shards_without_documents(tmp_path: Path, write_lines: Any) -> None:
    """Tasks of empty documents alone leave no shard, but their documents are counted."""
    path = write_lines(tmp_path / "a.jsonl", ["", "", "one", "", "", "two", ""])
    prepared = prepare(path, tmp_path / "out", tokenizer="bytes", workers=0, task_bytes=20)
    manifest = verify_corpus(tmp_path / "out")
    assert (manifest.documents, manifest.empty_documents) == (2, 5)
    assert len(manifest.shards) == 2 < prepared.tasks
    assert [find_origin(tmp_path / "out", number).row for number in range(2)] == [2, 5]


def test_unknown_tokens_are_warned_of(tmp_path: Path, write_lines: Any) -> None:
    """K13."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "known": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = write_lines(tmp_path / "a.jsonl", ["known x y", "known z"])
    with pytest.warns(
        DewWarning, match=r"60\.0% of the tokens \(3 of 5\) stand for text that the tokenizer does not kn"
    ):
        manifest = prepare(path, tmp_path / "out", tokenizer=words, workers=0).manifests["train"]
    assert manifest.preparation is not None
    assert manifest.preparation["unknown_tokens"] == 3


def test_a_corpus_of_another_tokenizer_is_refused(tmp_path: Path, write_lines: Any) -> None:
    """K13, the other half."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    paths = []
    for size in (1000, 500):
        words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(size)}, unk_token="w0"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        words.save(str(tmp_path / f"{size}.json"))
        paths.append(str(tmp_path / f"{size}.json"))
    lines = write_lines(tmp_path / "a.jsonl", ["w1 w2 w3 w4 w5 w6 w7 w8 w9"] * 8)
    prepare(lines, tmp_path / "out", tokenizer=paths[0], workers=0)
    corpus = str(tmp_path / "out")
    assert TokenWindows(corpus, seq_len=4, tokenizer=paths[0]).load(batch=2).records == 17
    with pytest.raises(SourceError, match=r"prepared with tokenizer [0-9a-f]{64} of 1000 ids, and .* of 500 ids"):
        TokenWindows(corpus, seq_len=4, tokenizer=paths[1]).load(batch=2)
    with pytest.raises(SourceError, match="of 500 ids"):
        load(f"tokens/{corpus}", batch=2, options=TokenOptions(seq_len=4, tokenizer=paths[1]))


def test_a_very_long_document(tmp_path: Path, write_lines: Any, documents_of: Documents) -> None:
    """K11: one line of 2,000,000 words among short ones."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "end": 1, "word": 2, "other": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    path = write_lines(tmp_path / "a.jsonl", ["word", "word other " * 1_000_000, "other"])
    prepare(path, tmp_path / "out", tokenizer=words, eos_token="end", eos=True, workers=0)
    first, long, last = documents_of(tmp_path / "out")
    assert (first, last) == ([2, 1], [3, 1])
    assert long == [2, 3] * 1_000_000 + [1]


def test_progress(mixed: Path, tmp_path: Path) -> None:
    seen: list[PrepareProgress] = []
    prepared: Prepared = prepare(mixed, tmp_path, tokenizer="bytes", workers=2, task_bytes=SMALL, progress=seen.append)
    last = seen[-1]
    assert (last.tasks_done, last.weight_done) == (last.tasks, last.weight)
    assert (
        (last.documents, last.tokens)
        == (prepared.documents, prepared.tokens)
        == (851, prepared.manifests["train"].tokens)
    )
    assert [now.weight_done for now in seen] == sorted(now.weight_done for now in seen)


class TestTexts:
    def test_any_iterable(
        self, tmp_path: Path, tokenizer_dir: Path, texts: Any, documents_of: Documents, encode: Encode
    ) -> None:
        rows = [*texts(100), "", "end"]
        manifest = prepare_texts(iter(rows), tmp_path / "out", tokenizer=tokenizer_dir, bos=True, eos=True)
        assert documents_of(tmp_path / "out") == [[1, *encode(text), 2] for text in rows if text]
        assert (manifest.empty_documents, manifest.framing) == (1, Framing(bos=True, eos=True))

    def test_a_document_that_is_no_string(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match=r"document 1 is 5 \(int\) and not a string"):
            prepare_texts(["a", 5], tmp_path / "out", tokenizer="bytes")  # type: ignore[list-item]
        assert not (tmp_path / "out" / "manifest.json").exists()

    def test_no_documents(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match=r"of 0 documents given"):
            prepare_texts([], tmp_path / "out", tokenizer="bytes")

    def test_refuses_and_replaces(self, tmp_path: Path) -> None:
        prepare_texts(["a"], tmp_path / "out", tokenizer="bytes")
        with pytest.raises(OptionsError, match=r"already holds a finished corpus"):
            prepare_texts(["b"], tmp_path / "out", tokenizer="bytes")
        prepare_texts(["b"], tmp_path / "out", tokenizer="bytes", overwrite=True)
        assert TokenCorpus(tmp_path / "out").read(0, 1).tolist() == [ord("b")]


def test_an_import_is_light() -> None:
    import subprocess
    import sys

    code = (
        "import sys, dew.tokens, dew.tokens.prepare; "
        "heavy = 'pyarrow tokenizers zstandard huggingface_hub jax rich ray'; "
        "print(sorted(set(heavy.split()) & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_plan_is_plain_json(mixed: Path, tmp_path: Path) -> None:
    prepare(mixed, tmp_path, tokenizer="bytes", workers=0)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert [name for name, *_ in plan["inputs"]] == [
        "a/part-2.jsonl",
        "a/part-10.jsonl",
        "b.parquet",
        "c.jsonl.gz",
        "d.txt",
        "e.txt",
    ]
    assert str(tmp_path) not in (tmp_path / "plan.json").read_text() + (tmp_path / "manifest.json").read_text()
