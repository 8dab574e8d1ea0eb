"""Parquet files with images in them: columns, row groups, what is refused."""

import json
import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dew.data.errors import DamagedSourceError, OptionsError, SourceError, StorageDeniedError
from dew_media.files.collection import MediaFiles
from dew_media.files.open import open_files, splits_in
from dew_media.files.parquet import ParquetFiles

Encode: TypeAlias = Callable[..., bytes]
Write: TypeAlias = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, encode: Encode) -> Write:
    """`write(name, count, struct=True, group=4, names=None, **columns)`: rows of images."""

    def write(
        name: str,
        count: int,
        *,
        struct: bool = True,
        group: int = 4,
        names: Sequence[str] | None = None,
        **columns: Any,
    ) -> Path:
        data = [encode(number) for number in range(count)]
        image = [{"bytes": one, "path": f"{number}.jpg"} for number, one in enumerate(data)] if struct else data
        table = pa.table({"image": image, **columns})
        if names is not None:
            features = {"image": {"_type": "Image"}, "label": {"names": list(names), "_type": "ClassLabel"}}
            table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        path = tmp_path / "rows" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        pq.write_table(table, path, row_group_size=group)
        return tmp_path / "rows"

    return write


def keys(files: MediaFiles) -> list[str]:
    return [files.key(index) for index in range(len(files))]


@pytest.mark.parametrize("struct", [True, False])
def test_rows_of_several_files(write: Write, encode: Encode, struct: bool) -> None:
    texts = [f"no {number}" for number in range(10)]
    write("part-10.parquet", 3, struct=struct, text=texts[:3])
    folder = write("part-2.parquet", 10, struct=struct, text=texts)
    files = open_files(folder)
    assert files.description() == "parquet, 13 rows in 2 files, files in 'image', captions in 'text'"
    assert files.blocks == (4, 4, 2, 3)
    assert keys(files)[8:11] == ["part-2.parquet/8", "part-2.parquet/9", "part-10.parquet/0"]
    assert files.name(9) == "part-2.parquet: row 9"
    assert [files.read(index) for index in range(13)] == [encode(index % 10) for index in range(13)]
    assert (files.captions(11), files.label(11), files.path(11)) == (("no 1",), None, None)
    with files.open_file(5) as opened:
        assert opened.read() == encode(5)
    for index in (-1, 13):
        for method in (files.read, files.key, files.captions, files.label, files.name):
            with pytest.raises(IndexError, match=f"file {index} was asked for, there are files 0 to 12"):
                method(index)


def test_one_file(write: Write) -> None:
    folder = write("a.parquet", 5)
    assert keys(open_files(folder / "a.parquet"))[:1] == ["a.parquet/0"]


def test_a_row_group_is_read_once(write: Write, encode: Encode) -> None:
    files = open_files(write("a.parquet", 16))
    assert isinstance(files, ParquetFiles)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(files.read, range(16))) == [encode(index) for index in range(16)]
    files.captions(3)
    assert files.reads == 4
    files.close()
    files.close()
    assert files.read(0) == encode(0)


def test_what_is_kept_is_bounded(write: Write, encode: Encode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dew_media.files.parquet.KEPT_BYTES", 1)
    files = open_files(write("a.parquet", 16))
    assert isinstance(files, ParquetFiles)
    for index in (0, 5, 0, 1, 5):
        assert files.read(index) == encode(index)
    assert files.reads == 4
    files = open_files(write("a.parquet", 16), exclude=["a.parquet/2"])
    files.keep_blocks(3)  # type: ignore[attr-defined]
    inner = pickle.loads(pickle.dumps(files))._files
    for index in (0, 5, 0, 9, 1, 5, 13, 4):
        assert inner.read(index) == encode(index)
    assert inner.reads == 4


def test_labels_with_names_of_hugging_face(write: Write) -> None:
    files = open_files(write("a.parquet", 3, label=[1, 0, 1], names=("cat", "dog")))
    assert (files.label_names, [files.label(n) for n in range(3)]) == (("cat", "dog"), [1, 0, 1])
    with pytest.raises(SourceError, match=r"has the label 2 and names for 2 labels"):
        open_files(write("a.parquet", 3, label=[1, 0, 2], names=("cat", "dog")))


def test_labels_that_are_words_mean_the_same_in_every_split(write: Write) -> None:
    write("test-0.parquet", 2, label=["b", "a"])
    folder = write("train-0.parquet", 2, label=["c", "b"])
    train, test = open_files(folder), open_files(folder, split="test")
    assert splits_in(folder) == ["train", "test"]
    assert train.label_names == test.label_names == ("a", "b", "c")
    assert [train.label(0), train.label(1), test.label(0), test.label(1)] == [2, 1, 1, 0]
    assert not open_files(folder, labels="none").has_labels


def test_splits_in_directories(write: Write) -> None:
    write("train/0.parquet", 2, label=["x", "x"])
    folder = write("val/0.parquet", 3, label=["y", "x", "y"])
    files = open_files(folder, split="val")
    assert (len(files), files.label_names, files.label(1)) == (3, ("x", "y"), 0)
    assert files.name(1) == "0.parquet: row 1"


@pytest.mark.parametrize("struct", [True, False])
def test_rows_that_lack_something(tmp_path: Path, encode: Encode, struct: bool) -> None:
    data: list[Any] = [encode(0), None, encode(2), encode(3), encode(4)]
    if struct:
        data = [{"bytes": one, "path": "x.jpg"} for one in data]
        data.append(None)
    else:
        data.append(encode(5))
    table = pa.table({"image": data, "text": ["a", "b", None, "d", "e", "f"], "label": [0, 1, 2, None, 4, 5]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    lacking = r"2 rows without bytes: 'a\.parquet/1', 'a\.parquet/5'" if struct else "1 row without bytes: 'a"
    with pytest.raises(SourceError, match=lacking) as caught:
        open_files(tmp_path)
    assert "1 row without a caption: 'a.parquet/2'; 1 row without a label: 'a.parquet/3'" in str(caught.value)
    files = open_files(tmp_path, missing="drop")
    assert keys(files) == ["a.parquet/0", "a.parquet/4", *([] if struct else ["a.parquet/5"])]
    assert files.blocks == ((1, 1) if struct else (1, 2))
    assert (files.read(1), files.captions(1), files.label(1)) == (encode(4), ("e",), 4)
    assert "dropped: " in files.description()


def test_several_captions(write: Write) -> None:
    files = open_files(write("a.parquet", 2, caption=[["x", "y"], ["z"]]))
    assert [files.captions(0), files.captions(1)] == [("x", "y"), ("z",)]


def test_empty_lists_and_empty_labels_are_missing(write: Write) -> None:
    folder = write("a.parquet", 3, caption=[["x"], [], None], label=["p", "q", ""])
    with pytest.raises(SourceError, match=r"2 rows without a caption: 'a\.parquet/1', 'a\.parquet/2'"):
        open_files(folder)
    with pytest.raises(SourceError, match=r"is not whole: 1 row without a label: 'a\.parquet/2'"):
        open_files(folder, captions="none")
    files = open_files(folder, captions="none", missing="drop")
    assert (len(files), files.label_names, files.label(1)) == (2, ("p", "q"), 1)


def test_a_row_group_that_goes_is_an_error_for_every_thread(write: Write, encode: Encode) -> None:
    folder = write("a.parquet", 8)
    data = (folder / "a.parquet").read_bytes()
    files = open_files(folder)
    (folder / "a.parquet").write_bytes(data[:-20])
    with ThreadPoolExecutor(4) as threads:
        errors = [future.exception() for future in [threads.submit(files.read, index) for index in range(8)]]
    assert {type(error) for error in errors} == {DamagedSourceError}
    (folder / "a.parquet").write_bytes(data)
    assert files.read(7) == encode(7)  # what failed is tried again


@pytest.mark.parametrize(
    ("columns", "options", "error", "match"),
    [
        (
            {"mask": [b"x"]},
            {},
            SourceError,
            r"has 2 columns of bytes, 'image', 'mask', among 'image' \(struct<.*; column=",
        ),
        ({}, {"column": "mask"}, OptionsError, r"column='mask' is no column of bytes, or of struct\{bytes, path\}, in"),
        (
            {"text": ["x"], "caption": ["y"]},
            {},
            SourceError,
            r"has the columns 'caption' and 'text'; caption_field says",
        ),
        ({}, {"caption_field": "words"}, OptionsError, r"has no column 'words', which caption_field names; it has 'im"),
        ({}, {"captions": "sidecars"}, OptionsError, r"captions='sidecars' is for folders and tar shards"),
        ({}, {"labels": "folders"}, OptionsError, r"labels='folders' is for folders; in parquet labels are the column"),
        ({}, {"part": "jpg"}, OptionsError, r"part='jpg' is for the layout 'tar', and this is 'parquet'"),
    ],
)
def test_columns_that_say_nothing_clear(
    write: Write, columns: dict[str, Any], options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        open_files(write("a.parquet", 1, **columns), **options)


def test_a_column_is_named(write: Write) -> None:
    folder = write("a.parquet", 1, mask=[b"x"])
    assert open_files(folder, column="mask").read(0) == b"x"
    assert open_files(folder, column="mask").digest() != open_files(folder, column="image").digest()


def test_no_column_of_bytes(tmp_path: Path) -> None:
    pq.write_table(pa.table({"url": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"has 0 columns of bytes, none, among 'url' \(string\)"):
        open_files(tmp_path)


def test_files_of_two_kinds(write: Write) -> None:
    write("a.parquet", 1)
    with pytest.raises(
        SourceError, match=r"have other columns: 'a\.parquet' has no more, 'b\.parquet' has 'text \(string\)'; keep"
    ):
        open_files(write("b.parquet", 1, text=["x"]))
    with pytest.raises(
        SourceError, match=r"'a\.parquet' has 'text \(null\)', 'b\.parquet' has 'text \(string\)'; keep"
    ):
        open_files(write("a.parquet", 1, text=[None]))


def test_a_column_named_twice(tmp_path: Path, encode: Encode) -> None:
    columns = [pa.array([encode(0)]), pa.array(["a"]), pa.array(["b"])]
    pq.write_table(pa.Table.from_arrays(columns, names=["image", "text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"names a column twice: 'text'; write it with one of each"):
        open_files(tmp_path)


def test_views_are_bytes_too(tmp_path: Path, encode: Encode) -> None:
    columns = {"image": pa.array([encode(0)], pa.binary_view()), "text": pa.array(["a"], pa.string_view())}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    files = open_files(tmp_path)
    assert files.read(0) == encode(0)
    assert files.captions(0) == ("a",)


def test_text_that_is_no_utf8(tmp_path: Path, encode: Encode) -> None:
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    pq.write_table(pa.table({"image": [encode(0)], "text": text}), tmp_path / "a.parquet")
    files = open_files(tmp_path)
    with pytest.raises(DamagedSourceError, match=r"a\.parquet: row 0, 'text' is no UTF-8: invalid start byte at 0"):
        files.captions(0)
    pq.write_table(pa.table({"image": [encode(0)], "label": text}), tmp_path / "a.parquet")
    with pytest.raises(DamagedSourceError, match=r"a\.parquet, 'label' is no UTF-8: invalid start byte at 0"):
        open_files(tmp_path)


@pytest.mark.parametrize("place", ["page", "footer"])
def test_bytes_that_were_altered(tmp_path: Path, encode: Encode, place: str) -> None:
    """Arrow raises a plain OSError for some, and sees others by checksums alone."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": [encode(number) for number in range(4)]}), path, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[200 if place == "page" else len(data) - 9] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DamagedSourceError, match=r"a\.parquet is not a parquet file that can be read: .*; copy it"):
        open_files(tmp_path).read(0)


def test_damaged_files(write: Write) -> None:
    folder = write("a.parquet", 4)
    data = (folder / "a.parquet").read_bytes()
    (folder / "a.parquet").write_bytes(data[:-20])
    with pytest.raises(
        DamagedSourceError, match=r"a\.parquet is not a parquet file that can be read: .*; copy it again"
    ):
        open_files(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(write: Write) -> None:
    folder = write("a.parquet", 1)
    (folder / "a.parquet").chmod(0)
    with pytest.raises(StorageDeniedError, match=r"a\.parquet may not be read: .*; check its permissions"):
        open_files(folder)


def test_no_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": pa.array([], pa.binary())}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"holds no rows in 1 file"):
        open_files(tmp_path)


def test_identity(write: Write, tmp_path: Path) -> None:
    folder = write("a.parquet", 6, label=["x", "y"] * 3)
    files = open_files(folder)
    data = pickle.dumps(files)
    assert len(data) < 2000
    assert pickle.loads(data).read(3) == files.read(3)
    reopened = files.reopened()
    assert reopened.read(5) == files.read(5)
    reopened.close()
    folder.rename(tmp_path / "moved")
    assert open_files(tmp_path / "moved").digest() == files.digest()
    (tmp_path / "moved").rename(folder)
    write("a.parquet", 6, label=["x", "y", "y"] * 2)
    assert open_files(folder).digest() != files.digest()
    with pytest.raises(DamagedSourceError, match=r"rows changed after it was opened"):
        pickle.loads(data).read(0)
