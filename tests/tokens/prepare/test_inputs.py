"""Which files, in which order: the same list whatever the arguments' order, and doubts are refused."""

import json
from pathlib import Path

import fsspec
import pytest

from dew.data.errors import (
    DamagedSourceError,
    OptionsError,
    OptionsTypeError,
    OverlapError,
    SourceError,
    SourceNotFoundError,
)
from dew.tokens.prepare.documents import documents
from dew.tokens.prepare.inputs import Input, check_input, find_inputs
from dew.tokens.prepare.pieces import Piece


def make(directory: Path, *names: str) -> Path:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return directory


def found(*paths: Path | str) -> list[str]:
    return [file.name for file in find_inputs([str(path) for path in paths]).files]


def test_one_name_in_two_forms_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "caf\u00e9.txt", "b.txt", "cafe\u0301.txt")
    with pytest.raises(
        SourceError, match=r"two files have one name spelt in two ways, 'cafe\\u0301\.txt' and 'caf\\xe9"
    ):
        find_inputs(tmp_path)


def test_a_directory_stands_for_what_is_below_it(tmp_path: Path) -> None:
    make(tmp_path, "b/x.jsonl", "b/deep/y.txt.gz", "a.parquet", "z.NDJSON", "b/.hidden.txt", "_tmp/x.txt", "notes.md")
    inputs = find_inputs(tmp_path)
    assert [file.name for file in inputs.files] == ["a.parquet", "b/deep/y.txt.gz", "b/x.jsonl", "z.NDJSON"]
    assert [(file.kind, file.compression) for file in inputs.files] == [
        ("parquet", None),
        ("text", "gzip"),
        ("lines", None),
        ("lines", None),
    ]
    assert inputs.left_out == (str(tmp_path / "notes.md"),)


def test_arguments_are_one_list(tmp_path: Path) -> None:
    make(tmp_path, "x/2.jsonl", "x/10.jsonl", "y/1.jsonl")
    expected = ["x/2.jsonl", "x/10.jsonl", "y/1.jsonl"]
    assert found(tmp_path / "y" / "1.jsonl", tmp_path / "x") == found(tmp_path) == expected
    assert found(tmp_path / "x/10.jsonl") == ["10.jsonl"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.jsonl", ["1.jsonl"]),
        ("*/*.jsonl", ["a/2.jsonl", "c/3.jsonl"]),
        ("a/[12].*", ["2.jsonl"]),
        ("?/3.jsonl", ["3.jsonl"]),
        ("**/*.jsonl", ["1.jsonl", "a/2.jsonl", "a/b/4.jsonl", "c/3.jsonl"]),
        ("a/**", ["2.jsonl", "b/4.jsonl"]),
        ("*", ["1.jsonl", "a/2.jsonl", "a/b/4.jsonl", "c/3.jsonl"]),
        ("a/b/*.jsonl", ["4.jsonl"]),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, names: list[str]) -> None:
    make(tmp_path, "1.jsonl", "a/2.jsonl", "c/3.jsonl", "a/b/4.jsonl", "a/.5.jsonl", "notes.md")
    assert found(tmp_path / pattern) == names


def test_a_name_with_brackets_is_itself(tmp_path: Path) -> None:
    make(tmp_path, "a[1].jsonl", "a1.jsonl")
    assert found(tmp_path / "a[1].jsonl") == ["a[1].jsonl"]


def test_names_do_not_say_where_files_lie(tmp_path: Path) -> None:
    for home in ("here", "over/there"):
        make(tmp_path / home, "x/1.txt", "y/2.txt")
    here, there = find_inputs(tmp_path / "here"), find_inputs(tmp_path / "over" / "there")
    assert here.files == there.files
    assert here.root != there.root


def test_relative_paths_and_urls_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "x/1.txt")
    monkeypatch.chdir(tmp_path)
    assert find_inputs("x").files == find_inputs(f"file://{tmp_path}/x").files == find_inputs(["./x/../x/1.txt"]).files


def test_a_saved_dataset_stands_for_the_files_that_it_lists(tmp_path: Path) -> None:
    make(tmp_path, "data-00000-of-00002.arrow", "data-00001-of-00002.arrow", "cache-1234.arrow", "dataset_info.json")
    files = [{"filename": f"data-0000{number}-of-00002.arrow"} for number in range(2)]
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": files, "_split": "train"}))
    assert found(tmp_path) == ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]


def test_what_datasets_saves(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    words = [f"text {number}" for number in range(100)]
    saved = datasets.Dataset.from_dict({"text": words, "n": range(100)})
    saved.save_to_disk(tmp_path / "one", num_shards=3)
    datasets.DatasetDict({"train": saved.select(range(60)), "test": saved}).save_to_disk(tmp_path / "several")
    inputs = find_inputs(tmp_path / "one")
    assert len(inputs.files) == 3
    read = [text for file in inputs.files for _, text in documents(inputs.root, file, Piece(0), "text")]
    assert read == words
    assert len(find_inputs(tmp_path / "several" / "train").files) == 1
    with pytest.raises(OptionsError, match=r"holds the splits test, train of a dataset"):
        find_inputs(tmp_path / "several")


def test_a_dataset_of_splits_must_be_narrowed_down(tmp_path: Path) -> None:
    make(tmp_path, "train/state.json", "test/state.json", "dataset_dict.json")
    with pytest.raises(
        OptionsError, match=r"holds the splits test, train of a dataset; name one of them, such as .*/test"
    ):
        find_inputs(tmp_path)


def test_a_dataset_cannot_list_what_is_outside(tmp_path: Path) -> None:
    make(tmp_path, "secret.arrow")
    make(tmp_path / "set", "data.arrow")
    (tmp_path / "set" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../secret.arrow"}]}))
    with pytest.raises(OptionsError, match=r"leads out of"):
        find_inputs(tmp_path / "set")


def test_spark_names_directories_like_files(tmp_path: Path) -> None:
    make(tmp_path, "out.parquet/part-1.parquet", "out.parquet/part-0.parquet", "out.parquet/_SUCCESS", "one.parquet")
    expected = ["one.parquet", "out.parquet/part-0.parquet", "out.parquet/part-1.parquet"]
    assert found(tmp_path) == found(tmp_path / "*.parquet") == expected


def test_the_same_file_twice(tmp_path: Path) -> None:
    make(tmp_path, "a.jsonl")
    (tmp_path / "link.jsonl").symlink_to("a.jsonl")
    with pytest.raises(OptionsError, match=r"/a\.jsonl is given twice; its documents would count twice"):
        find_inputs([tmp_path / "a.jsonl", tmp_path / "." / "a.jsonl"])
    with pytest.raises(OptionsError, match=r"/link\.jsonl is given twice \(it is the same file as .*/a\.jsonl\)"):
        find_inputs(tmp_path)
    with pytest.raises(OverlapError, match=r"/a\.jsonl is an input of training and of validation"):
        find_inputs(tmp_path / "a.jsonl", tmp_path / "a.jsonl")


def test_the_same_content_in_training_and_validation(tmp_path: Path) -> None:
    make(tmp_path, "a.jsonl")
    (tmp_path / "b.jsonl").write_text("a.jsonl")
    for name in ("empty-1.jsonl", "empty-2.jsonl"):
        (tmp_path / name).touch()
    with pytest.raises(OverlapError, match=r"/b\.jsonl, an input of validation, has the content of .*/a\.jsonl"):
        find_inputs(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    files = find_inputs(tmp_path / "empty-1.jsonl", tmp_path / "empty-2.jsonl").files
    assert [file.split for file in files] == ["train", "val"]


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        ("absent.jsonl", SourceNotFoundError, r"nothing is stored at .*/absent\.jsonl"),
        ("absent", SourceNotFoundError, r"nothing is stored at .*/absent"),
        ("notes.md", OptionsError, r"notes\.md is a file of no known kind; known are \.txt, \.jsonl, .* with \.gz"),
        ("x.parquet.gz", OptionsError, r"x\.parquet\.gz is a file of no known kind"),
        ("empty", OptionsError, r"no file of a known kind at .*/empty"),
        ("*.ndjson", OptionsError, r"no file of a known kind at .*/\*\.ndjson"),
        ("", OptionsError, r"an input must name a file, a directory or a pattern, got ''"),
        ("https://host/a.jsonl?key=1", OptionsError, r"URLs with a query cannot be inputs"),
        ("zip://a.jsonl::b.zip", OptionsError, r"chained URLs"),
    ],
)
def test_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, kind: type[Exception], message: str
) -> None:
    make(tmp_path, "notes.md", "x.parquet.gz")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        find_inputs(path)


def test_wrong_types(tmp_path: Path) -> None:
    with pytest.raises(OptionsTypeError, match=r"inputs are paths, got 5 \(int\); for texts there is prepare_texts"):
        find_inputs([5])  # type: ignore[list-item]
    with pytest.raises(OptionsError, match=r"no inputs were given"):
        find_inputs([])


def test_one_storage_at_a_time(tmp_path: Path, memory_url: str) -> None:
    make(tmp_path, "a.txt")
    with fsspec.open(f"{memory_url}/b.txt", "w") as file:
        file.write("b")
    with pytest.raises(OptionsError, match=r"inputs lie in / and in memory://, and a corpus is made from one storage"):
        find_inputs([tmp_path / "a.txt", f"{memory_url}/b.txt"])


def test_remote_inputs(memory_url: str) -> None:
    for name in ("x/10.jsonl", "x/9.jsonl", "y.txt", "notes.md"):
        with fsspec.open(f"{memory_url}/{name}", "w") as file:
            file.write(name)
    inputs = find_inputs(memory_url)
    assert [(file.name, file.size) for file in inputs.files] == [("x/9.jsonl", 9), ("x/10.jsonl", 10), ("y.txt", 5)]
    assert [file.name for file in find_inputs(f"{memory_url}/x/*.jsonl").files] == ["9.jsonl", "10.jsonl"]
    assert inputs.root.read("y.txt") == b"y.txt"


def test_a_changed_input_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(bytes(range(256)) * 5000)
    inputs = find_inputs(path)
    check_input(inputs.root, inputs.files[0])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        DamagedSourceError, match=r"a\.jsonl has changed since .* had 1280000 bytes and now has 1279999"
    ):
        check_input(inputs.root, inputs.files[0])
    path.write_bytes(b"\0" * 1_280_000)
    with pytest.raises(DamagedSourceError, match=r"had 1280000 bytes and now has 1280000, but other ones; restore it"):
        check_input(inputs.root, inputs.files[0])
    path.unlink()
    with pytest.raises(SourceNotFoundError, match=r"nothing is stored at .*/a\.jsonl"):
        check_input(inputs.root, inputs.files[0])


def test_small_files_are_known_by_every_byte(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"x" * 200_000)
    (tmp_path / "b.jsonl").write_bytes(b"x" * 99_999 + b"y" + b"x" * 100_000)
    first, second = find_inputs(tmp_path).files
    assert first.fingerprint != second.fingerprint
    assert Input("a.jsonl", 200_000, first.fingerprint) == first
