"""`dew tokenize` in real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import click
import pytest

from dew.cli.tokenize import share
from dew.tokens import TokenCorpus, verify_corpus

Dew: TypeAlias = Callable[..., Any]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two files of lines, a text, and a file of another kind."""
    home = tmp_path / "in"
    home.mkdir()
    for name in ("2", "10"):
        rows = (json.dumps({"text": f"document {number} of {name}", "body": "x"}) for number in range(50))
        (home / f"part-{name}.jsonl").write_text("\n".join(rows))
    (home / "a.txt").write_text("")
    (home / "notes.md").write_text("notes")
    return home


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        vocab_size=270,
    )
    made.train_from_iterator(["document of text"] * 9, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def test_a_corpus_and_what_is_said_of_it(dew: Dew, source: Path, tmp_path: Path, tokenizer: Path) -> None:
    words = ("tokenize", source, "--out", "corpus", "--tokenizer", tokenizer, "--eos", "--eos-token", "</s>")
    ran = dew(*words)
    assert (ran.code, ran.err) == (0, "")
    for said in (
        "tokenize",
        "100 documents",
        "MB/s",
        "tokens/s",
        "train: 100 documents",
        "1 empty documents were kept",
    ):
        assert said in ran.out
    assert f"1 files of other kinds were passed over, such as {source}/notes.md" in ran.out
    assert f"written to {tmp_path}/corpus" in ran.out
    manifest = verify_corpus(tmp_path / "corpus")
    assert (manifest.documents, manifest.framing.eos, manifest.framing.bos) == (100, True, False)
    again = dew(*words)
    assert (again.code, again.err) == (0, "")
    assert f"{tmp_path}/corpus was already finished" in again.out
    assert dew("peek", "tokens/corpus", "--batch", 2, "-o", "seq_len=16").code == 0


def test_json(dew: Dew, source: Path) -> None:
    (source / "b.jsonl").write_text('{"text": "one"}\n{"text": 5}\n')
    words = ("tokenize", source, "--out", "out", "--tokenizer", "bytes", "--on-bad", "skip", "--json", "--workers", 0)
    found = dew(*words).json
    assert found["ran"] == found["tasks"] == 1
    assert found["left_out_files"] == 1
    train = found["manifests"]["train"]
    assert (train["documents"], train["empty_documents"], train["left_out_rows"]) == (101, 1, 1)
    assert train["framing"] == {"bos": False, "eos": False}


def test_validation(dew: Dew, source: Path, tmp_path: Path) -> None:
    words = ("--tokenizer", "bytes", "--workers", 0, "--json")
    found = dew("tokenize", source, "--out", "split", "--val-fraction", 0.2, *words).json["manifests"]
    assert found["train"]["documents"] + found["val"]["documents"] == 100
    one, two = source / "part-2.jsonl", source / "part-10.jsonl"
    (source / "part-10.jsonl").write_text('{"text": "other"}\n')
    found = dew("tokenize", one, "--val", two, "--out", "files", *words).json["manifests"]
    assert (found["train"]["documents"], found["val"]["documents"]) == (50, 1)
    assert TokenCorpus(tmp_path / "files" / "val").tokens == 5


def test_begin_and_end_for_bytes(dew: Dew, source: Path, tmp_path: Path) -> None:
    words = ("--tokenizer", "bytes", "--bos", "--eos", "--field", "body", "--workers", 0)
    assert dew("tokenize", source / "part-2.jsonl", "--out", "out", *words).code == 0
    assert TokenCorpus(tmp_path / "out").read(0, 6).tolist() == [256, ord("x"), 257] * 2


def test_shares_of_a_job_array(dew: Dew, source: Path, tmp_path: Path) -> None:
    words = ("tokenize", source, "--out", "out", "--tokenizer", "bytes", "--workers", 0, "--task-bytes", 300)
    ran = dew(*words, "--task", "1/3")
    assert (ran.code, ran.err) == (0, "")
    assert "tasks are left for other shares; after the last one: dew tokenize --out " in ran.out
    dew("tokenize", "--out", "out", "--merge").fails("tasks of", "are not done, the first is task 0")
    slurm = {"SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "4", "SLURM_ARRAY_TASK_STEP": "2"}
    assert dew(*words, "--task", "auto", SLURM_ARRAY_TASK_ID="4", **slurm).code == 0
    assert dew(*words, "--task", "auto/3", JOB_COMPLETION_INDEX="2").code == 0
    merged = dew("tokenize", "--out", "out", "--merge")
    assert merged.code == 0
    assert "train: 100 documents" in merged.out
    assert dew("tokenize", source, "--out", "out", "--tokenizer", "bytes", "--merge").code == 0
    assert dew("tokenize", source, "--out", "one", "--tokenizer", "bytes", "--task-bytes", 300).code == 0
    names = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert all((tmp_path / "out" / name).read_bytes() == (tmp_path / "one" / name).read_bytes() for name in names)


@pytest.mark.parametrize(
    ("words", "environment", "found"),
    [
        ("2/5", {}, (2, 5)),
        ("auto", {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "5"}, (2, 4)),
        ("auto/9", {"SLURM_ARRAY_TASK_ID": "7"}, (7, 9)),
        ("auto/9", {"JOB_COMPLETION_INDEX": "0"}, (0, 9)),
    ],
)
def test_which_share(words: str, environment: dict[str, str], found: tuple[int, int]) -> None:
    assert share(words, environment) == found


@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        ("5/5", {}, r"--task is written I/N with I from 0 to N - 1, or auto, got '5/5'"),
        ("5", {}, r"got '5'"),
        ("-1/5", {}, r"got '-1/5'"),
        ("auto", {}, r"--task auto needs SLURM_ARRAY_TASK_ID or JOB_COMPLETION_INDEX, and neither is set"),
        ("auto", {"JOB_COMPLETION_INDEX": "0"}, r"does not tell how many shares there are; write --task auto/N"),
        ("auto/2", {"JOB_COMPLETION_INDEX": "2"}, r"got '2/2'"),
    ],
)
def test_no_share(words: str, environment: dict[str, str], message: str) -> None:
    with pytest.raises(click.UsageError, match=message):
        share(words, environment)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Missing option '--out'"),
        (("--out", "out"), "Missing argument 'INPUTS...'"),
        (("in", "--out", "out"), "Missing option '--tokenizer'"),
        (("--out", "out", "--merge", "--task", "0/2"), "--task does a share and --merge joins all of them"),
        (("in", "--out", "out", "--tokenizer", "bytes", "--on-bad", "warn"), "'warn' is not one of"),
    ],
)
def test_wrong_usage(dew: Dew, words: tuple[str, ...], message: str) -> None:
    ran = dew("tokenize", *words)
    assert ran.code == 2
    assert message in ran.err


def test_errors_are_one_line(dew: Dew, source: Path, tmp_path: Path, tokenizer: Path) -> None:
    words = ("tokenize", source, "--out", "out")
    dew(*words, "--tokenizer", "absent.json").fails("there is no tokenizer at", "absent.json")
    dew(*words, "--tokenizer", tokenizer, "--eos").fails("--eos-token", "its special tokens are '<s>', '</s>'")
    (source / "b.jsonl").write_bytes(b'{"text": "one"}\n{"text": "caf\xe9"}\n')
    ran = dew(*words, "--tokenizer", "bytes", "--workers", 2)
    ran.fails(f"{source}/b.jsonl, line 2: no UTF-8", "--on-bad skip")
    assert "listing inputs" not in ran.out
    assert not (tmp_path / "out" / "manifest.json").exists()
    dew(*words, "--tokenizer", "bytes", "--engine", "ray").fails('pip install "dew-core[ray]"')


def test_ctrl_c(source: Path, tmp_path: Path) -> None:
    """In the middle of a run: quiet, exit code 130, and the same command goes on."""
    (source / "many.jsonl").write_text('{"text": "a document of some words"}\n' * 100_000)
    words = [sys.executable, "-m", "dew", "tokenize", str(source), "--out", str(tmp_path / "out")]
    words += ["--tokenizer", "bytes", "--workers", "2", "--task-bytes", "300000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not list(tmp_path.glob("out/tasks/task-*.json")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors.strip()) == (130, "")
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not [name for name in os.listdir(tmp_path / "out") if name.startswith(".dew-tmp")]
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert 0 < found["ran"] < found["tasks"]
    assert found["manifests"]["train"]["documents"] == 100_100
