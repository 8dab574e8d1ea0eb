"""Folders: what is found in them, what is refused, and what a collection of them promises."""

import csv
import json
import os
import pickle
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from dew.data.errors import DamagedSourceError, OptionsError, SourceError, SourceNotFoundError, SplitError
from dew_media.files.collection import MediaFiles
from dew_media.files.open import VIDEO_SUFFIXES, open_files, splits_in

Encode: TypeAlias = Callable[..., bytes]
Fill: TypeAlias = Callable[..., Path]


@pytest.fixture
def fill(tmp_path: Path, encode: Encode) -> Fill:
    """`fill(names, folder="data")`: files of these names, each another image."""

    def fill(names: Iterable[str], folder: str = "data") -> Path:
        for number, name in enumerate(names):
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(number, format="PNG" if name.lower().endswith("png") else "JPEG"))
        return tmp_path / folder

    return fill


def keys(files: MediaFiles) -> list[str]:
    return [files.key(index) for index in range(len(files))]


def jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class TestFiles:
    def test_by_code_points_with_suffixes_of_any_case_and_without_hidden_files(self, fill: Fill) -> None:
        folder = fill(["b.JPG", "a10.png", "a2.jpeg", "B.webp", ".hidden.jpg", ".thumbs/1.jpg", "sub/.x/1.jpg"])
        (folder / "notes.md").write_text("x")
        files = open_files(folder)
        assert keys(files) == ["B.webp", "a10.png", "a2.jpeg", "b.JPG"]
        assert files.description() == "folder, 4 files"
        assert files.read(3) == (folder / "b.JPG").read_bytes()
        assert files.path(3) == str(folder / "b.JPG")
        assert files.name(3) == "b.JPG"
        assert (files.label(3), files.captions(3), files.has_labels, files.has_captions) == (None, (), False, False)

    def test_images_that_are_not_read_are_told(self, fill: Fill, caplog: pytest.LogCaptureFixture) -> None:
        folder = fill(["a.jpg", "b.JFIF", "c.heic", "d.HEIC", "e.jxl", "notes.md"])
        with caplog.at_level("WARNING", "dew.media"):
            assert keys(open_files(folder)) == ["a.jpg", "b.JFIF"]
        assert "also holds images that are not read: 2 with .heic, 1 with .jxl; convert them" in caplog.text

    def test_videos_by_their_suffixes(self, fill: Fill) -> None:
        folder = fill(["a.mp4", "b.MKV", "c.webm", "d.mov", "e.avi", "f.gif", "g.jpg"])
        files = open_files(folder, suffixes=VIDEO_SUFFIXES)
        assert keys(files) == ["a.mp4", "b.MKV", "c.webm", "d.mov", "e.avi", "f.gif"]
        with files.open_file(1) as opened:
            opened.seek(4)
            assert opened.read() == (folder / "b.MKV").read_bytes()[4:]

    def test_indices_out_of_range(self, fill: Fill) -> None:
        files = open_files(fill(["a.jpg", "b.jpg"]))
        for index in (-1, 2):
            for method in (files.read, files.key, files.name, files.path, files.label, files.captions, files.open_file):
                with pytest.raises(IndexError, match=rf"file {index} was asked for, there are files 0 to 1"):
                    method(index)

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFoundError, match=r"nothing is stored at .*nowhere; check the path"):
            open_files(tmp_path / "nowhere")
        (tmp_path / "a.txt").write_text("x")
        (tmp_path / "b.zip").write_text("x")
        with pytest.raises(SourceError, match=r"holds no file with \.apng .*; it holds 1 with \.txt, 1 with \.zip; "
                           r"'b\.zip' is compressed: unpack it"):  # fmt: skip
            open_files(tmp_path)
        with pytest.raises(SourceError, match=r"a\.txt is a file; a directory, a \.tar or a \.parquet"):
            open_files(tmp_path / "a.txt")

    def test_a_file_that_goes_is_named(self, fill: Fill) -> None:
        folder = fill(["a.jpg", "b.jpg"])
        files = open_files(folder)
        (folder / "b.jpg").unlink()
        with pytest.raises(SourceNotFoundError, match=r"data/b\.jpg is gone since the folder was listed"):
            files.read(1)
        with (folder / "a.jpg").open("ab") as file:
            file.write(b"more")
        with pytest.raises(
            DamagedSourceError, match=r"a\.jpg had \d+ bytes when the folder was listed, and has \d+; le"
        ):
            files.read(0)

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"missing": "skip"}, "missing must be 'error' or 'drop', got 'skip'"),
            ({"layout": "zip"}, "layout must be 'folder', 'tar' or 'parquet', got 'zip'"),
            ({"suffixes": frozenset({"jpg"})}, r"suffixes begin with a dot, got 'jpg'"),
            ({"part": "jpg"}, r"part='jpg' is for the layout 'tar', and this is 'folder'"),
            ({"column": "image"}, r"column='image' is for the layout 'parquet', and this is 'folder'"),
            ({"captions": "metadata"}, r"asked for from metadata, and .* has no metadata\.csv or metadata\.jsonl or"),
            ({"captions": "sidecars"}, r"captions='sidecars': no file in .* has a \.txt or \.caption file beside it"),
        ],
    )
    def test_options_without_a_meaning(self, fill: Fill, options: dict[str, Any], match: str) -> None:
        with pytest.raises(OptionsError, match=match):
            open_files(fill(["a.jpg", "b.jpg"]), **options)


class TestLinks:
    def test_are_followed_and_stated(self, fill: Fill, tmp_path: Path) -> None:
        folder, other = fill(["1.jpg"]), fill(["2.jpg", "deep/3.jpg"], "other")
        (folder / "link.jpg").symlink_to(other / "2.jpg")
        (folder / "more").symlink_to(other / "deep")
        files = open_files(folder, labels="none")
        assert keys(files) == ["1.jpg", "link.jpg", "more/3.jpg"]
        assert files.description() == "folder, 3 files, 1 in directories below, 2 links followed"
        assert files.read(2) == (other / "deep/3.jpg").read_bytes()

    def test_loops_are_refused(self, fill: Fill) -> None:
        folder = fill(["a/1.jpg", "a/b/2.jpg"])
        (folder / "a/b/up").symlink_to(folder / "a")
        with pytest.raises(SourceError, match=r"a/b/up leads back to a directory that it lies in; remove the link"):
            open_files(folder)

    def test_a_link_to_itself(self, fill: Fill) -> None:
        folder = fill(["1.jpg"])
        (folder / "self.jpg").symlink_to(folder / "self.jpg")
        with pytest.raises(SourceError, match=r"self\.jpg cannot be followed"):
            open_files(folder)

    def test_broken_ones(self, fill: Fill) -> None:
        folder = fill(["1.jpg"])
        (folder / "gone.jpg").symlink_to(folder / "nowhere.jpg")
        (folder / "gone.md").symlink_to(folder / "nowhere.md")
        with pytest.raises(SourceError, match=r"is not whole: 1 link that leads nowhere: 'gone\.jpg'"):
            open_files(folder)
        assert open_files(folder, missing="drop").description() == "folder, 1 file, dropped: 1 link that leads nowhere"

    def test_names_that_are_not_utf8(self, fill: Fill) -> None:
        folder = fill(["1.jpg"])
        (folder / os.fsdecode(b"\xff\xfe.jpg")).write_bytes(b"x")
        with pytest.raises(SourceError, match=r"1 name that is not UTF-8: "):
            open_files(folder)
        assert len(open_files(folder, missing="drop")) == 1


class TestClasses:
    def test_directories_are_labels(self, fill: Fill) -> None:
        files = open_files(fill(["dog/1.jpg", "cat/2.jpg", "dog/deep/3.jpg", "ant/9.jpg"]))
        assert files.label_names == ("ant", "cat", "dog")
        assert [files.label(index) for index in range(4)] == [0, 1, 2, 2]
        assert files.description() == "folder, 4 files, 3 classes"

    def test_one_directory_is_no_class(self, fill: Fill) -> None:
        folder = fill(["images/1.jpg", "images/2.jpg"])
        files = open_files(folder)
        assert (files.has_labels, files.label_names) == (False, ())
        assert files.description() == "folder, 2 files, 2 in directories below"
        assert open_files(folder, labels="folders").label_names == ("images",)

    def test_files_beside_class_directories_are_refused(self, fill: Fill) -> None:
        folder = fill(["cat/1.jpg", "dog/2.jpg", "loose.jpg"])
        with pytest.raises(SourceError, match=r"1 of 3 files in .* lie in no directory, such as 'loose\.jpg', so that"):
            open_files(folder)
        assert not open_files(folder, labels="none").has_labels

    def test_a_label_means_the_same_in_every_split(self, fill: Fill) -> None:
        folder = fill(["train/ant/1.jpg", "train/cat/1.jpg", "val/bee/1.jpg", "val/cat/1.jpg"])
        train, val = open_files(folder), open_files(folder, split="val")
        assert train.label_names == val.label_names == ("ant", "bee", "cat")
        assert [train.label(0), train.label(1), val.label(0), val.label(1)] == [0, 2, 1, 2]
        assert train.digest() != val.digest()

    def test_words_in_tables_too(self, fill: Fill) -> None:
        folder = fill(["train/1.jpg", "train/2.jpg", "test/1.jpg"])
        jsonl(folder / "train/metadata.jsonl", [{"file_name": f"{n}.jpg", "label": "bc"[n - 1]} for n in (1, 2)])
        jsonl(folder / "test/metadata.jsonl", [{"file_name": "1.jpg", "label": "a"}])
        train, test = open_files(folder), open_files(folder, split="test")
        assert train.label_names == test.label_names == ("a", "b", "c")
        assert [train.label(0), train.label(1), test.label(0)] == [1, 2, 0]


class TestSplits:
    def test_directories(self, fill: Fill) -> None:
        folder = fill(["train/1.jpg", "train/2.jpg", "validation/3.jpg", "Test/4.jpg"])
        assert splits_in(folder) == ["test", "train", "validation"]
        assert keys(open_files(folder, split="val")) == ["3.jpg"]
        assert open_files(folder, split="test").name(0) == "Test/4.jpg"
        with pytest.raises(SplitError, match=r"no split 'dev' in .*; there are 'test', 'train', 'validation'"):
            open_files(folder, split="dev")

    def test_none(self, fill: Fill) -> None:
        folder = fill(["a.jpg", "b.jpg"])
        assert splits_in(folder) == ["train"]
        with pytest.raises(SplitError, match=r"no split 'val' in .*: neither directories .* all of it is the split"):
            open_files(folder, split="val")

    def test_the_moved_split_is_the_same_collection(self, fill: Fill) -> None:
        folder = fill(["train/1.jpg", "train/2.jpg", "test/3.jpg"])
        assert open_files(folder).digest() == open_files(folder / "train").digest()

    def test_directories_that_may_be_classes(self, fill: Fill) -> None:
        folder = fill(["train/1.jpg", "bus/2.jpg"])
        with pytest.raises(SourceError, match=r"holds 'train', which look like splits, beside 'bus', which do not"):
            open_files(folder)
        assert open_files(folder, labels="folders").label_names == ("bus", "train")

    def test_two_spellings(self, fill: Fill) -> None:
        with pytest.raises(SourceError, match=r"holds 'val', 'valid', which are names of one split"):
            open_files(fill(["train/1.jpg", "val/1.jpg", "valid/2.jpg"]))


class TestTables:
    @pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
    @pytest.mark.parametrize("column", ["text", "caption", "prompt"])
    def test_captions_and_labels(self, fill: Fill, kind: str, column: str) -> None:
        folder = fill(["a.jpg", "in/b.jpg"])
        rows = [
            {"file_name": "in/b.jpg", column: 'two, "b"\nlines', "label": 4},
            {"file_name": "a.jpg", column: "ünø", "label": 1},
        ]
        if kind == "jsonl":
            jsonl(folder / "metadata.jsonl", rows)
        elif kind == "csv":
            with (folder / "metadata.csv").open("w", newline="", encoding="utf-8-sig") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
        else:
            arrow = pytest.importorskip("pyarrow")
            pytest.importorskip("pyarrow.parquet").write_table(
                arrow.Table.from_pylist(rows), folder / "metadata.parquet"
            )
        files = open_files(folder, caption_field=column if column == "prompt" else None)
        assert [files.captions(0), files.captions(1)] == [("ünø",), ('two, "b"\nlines',)]
        assert [files.label(0), files.label(1), files.label_names] == [1, 4, ()]
        assert files.description() == "folder, 2 files, labels in a table, captions in a table"

    def test_several_captions(self, fill: Fill) -> None:
        folder = fill(["a.jpg", "b.jpg"])
        jsonl(
            folder / "metadata.jsonl",
            [{"file_name": "a.jpg", "text": ["x", "y"]}, {"file_name": "b.jpg", "text": ["z"]}],
        )
        files = open_files(folder)
        assert [files.captions(0), files.captions(1)] == [("x", "y"), ("z",)]

    def test_nested_tables(self, fill: Fill) -> None:
        folder = fill(["x/a.jpg", "x/deep/b.jpg", "y/a.jpg"])
        jsonl(folder / "x/metadata.jsonl", [{"file_name": n, "text": f"x {n}"} for n in ("a.jpg", "./deep/b.jpg")])
        jsonl(folder / "y/metadata.jsonl", [{"file_name": "a.jpg", "text": "y a"}])
        files = open_files(folder)
        assert [files.captions(index)[0] for index in range(3)] == ["x a.jpg", "x ./deep/b.jpg", "y a"]
        assert not files.has_labels

    def test_names_in_another_unicode_form(self, fill: Fill) -> None:
        folder = fill([unicodedata.normalize("NFD", "é.jpg")])
        jsonl(folder / "metadata.jsonl", [{"file_name": unicodedata.normalize("NFC", "é.jpg"), "text": "x"}])
        assert open_files(folder).captions(0) == ("x",)

    def test_what_does_not_fit_is_refused_with_counts_and_names(self, fill: Fill) -> None:
        folder = fill([f"{number}.jpg" for number in range(10)])
        rows = [{"file_name": f"{number}.jpg", "text": "t"} for number in (*range(7, 16), 8, 8)]
        jsonl(folder / "metadata.jsonl", [*rows, {"file_name": "0.jpg", "text": None}])
        with pytest.raises(SourceError) as caught:
            open_files(folder)
        assert str(caught.value) == (
            f"{folder} is not whole: 2 rows that name a file named before: '8.jpg', '8.jpg'; 6 files without a row in "
            "the metadata: '1.jpg', '2.jpg', '3.jpg', '4.jpg', '5.jpg' and 1 more; 6 rows without a file: '10.jpg', "
            "'11.jpg', '12.jpg', '13.jpg', '14.jpg' and 1 more; 1 file without a caption: '0.jpg'. Correct that, or "
            "leave them out with missing='drop'"
        )
        files = open_files(folder, missing="drop")
        assert keys(files) == ["7.jpg", "8.jpg", "9.jpg"]
        assert files.description() == (
            "folder, 3 files, captions in a table, dropped: 2 rows that name a file named before, 6 files without a "
            "row in the metadata, 6 rows without a file, 1 file without a caption"
        )

    def test_two_tables_in_one_directory(self, fill: Fill) -> None:
        folder = fill(["a.jpg"])
        jsonl(folder / "metadata.jsonl", [{"file_name": "a.jpg", "text": "x"}])
        (folder / "metadata.csv").write_text("file_name,text\na.jpg,x\n")
        with pytest.raises(
            SourceError, match=r"in one directory, 'metadata\.csv' and 'metadata\.jsonl'; .* remove one"
        ):
            open_files(folder, missing="drop")

    @pytest.mark.parametrize(("name", "words"), [
        ("data/a.jpg", r"relative to a directory above it: without 'data'/ they fit"),
        ("c.heic", r"'c\.heic' is there, and files with \.heic are not read"),
        ("b.jpg", r"A row names 'b\.jpg', and there is 'in/b\.jpg': file_name is relative to 'metadata\.jsonl'"),
    ])  # fmt: skip
    def test_names_relative_to_another_directory(self, fill: Fill, name: str, words: str) -> None:
        folder = fill(["a.jpg", "in/b.jpg", "c.heic"])
        jsonl(folder / "metadata.jsonl", [{"file_name": name, "text": "x"}])
        with pytest.raises(SourceError, match=words):
            open_files(folder)

    @pytest.mark.parametrize(
        ("table", "error", "match"),
        [
            ('{"file_name": "../a.jpg", "text": "x"}', SourceError, r"row 1 names '\.\./a\.jpg', which leads out"),
            ('{"file_name": "/a.jpg", "text": "x"}', SourceError, r"names '/a\.jpg', which leads out"),
            ('{"file_name": 3, "text": "x"}', SourceError, r"row 1 has the file_name 3; it must be a relative path"),
            ('{"name": "a.jpg", "text": "x"}', SourceError, r"has no column 'file_name'.*; it has 'name', 'text'"),
            ('{"file_name": "a.jpg", "prompt": "x"}', SourceError, r"has neither 'text' nor 'caption' nor 'label'; it "
             r"has 'file_name', 'prompt'; caption_field names"),
            ('{"file_name": "a.jpg", "text": "x", "caption": "y"}', SourceError, r"the columns 'caption' and 'text'; "
             "caption_field says"),
            ('{"file_name": "a.jpg", "text": 3}', SourceError, r"row 1, 'text' is 3; a caption is a text, or a list"),
            ('{"file_name": "a.jpg", "label": -1}', SourceError, r"row 1, 'label' is -1; a label is a whole number"),
            ('{"file_name": "a.jpg", "label": true}', SourceError, r"'label' is True; a label"),
            ('{"file_name": "a.jpg", "label": 1.5}', SourceError, r"'label' is 1\.5; a label"),
            ('{"file_name": "a.jpg", "te', DamagedSourceError, r"metadata\.jsonl, line 1 is no JSON: "),
            ('["a.jpg"]', DamagedSourceError, r"metadata\.jsonl, line 1 is no JSON object: '\[\"a\.jpg\"\]'"),
        ],
    )  # fmt: skip
    def test_tables_that_say_nothing_clear(self, fill: Fill, table: str, error: type[Exception], match: str) -> None:
        folder = fill(["a.jpg"])
        (folder / "metadata.jsonl").write_text(table)
        with pytest.raises(error, match=match):
            open_files(folder, missing="drop")

    @pytest.mark.parametrize(
        ("table", "match"),
        [
            ("file_name,text\na.jpg,one, two\n", r"row 1 has 3 values and the head has 2; quote a caption that holds"),
            ("file_name,text,text\na.jpg,x,y\n", r"names a column twice: 'file_name', 'text', 'text'"),
            ('file_name,text\na.jpg,"x\n', r"line \d is no CSV"),
        ],
    )
    def test_csv(self, fill: Fill, table: str, match: str) -> None:
        folder = fill(["a.jpg"])
        (folder / "metadata.csv").write_text(table)
        with pytest.raises(DamagedSourceError, match=match):
            open_files(folder)

    @pytest.mark.parametrize(("name", "text"), [("metadata.csv", "file_name,text\n"), ("metadata.jsonl", "")])
    def test_tables_without_rows(self, fill: Fill, name: str, text: str) -> None:
        """All images would be without captions, and nothing would say so."""
        folder = fill(["a.jpg"])
        (folder / name).write_text(text)
        with pytest.raises(DamagedSourceError, match=rf"{name} has no rows \({len(text)} bytes\); write it again, or"):
            open_files(folder, missing="drop")
        assert len(open_files(folder, captions="none", labels="none")) == 1

    def test_a_table_spelled_another_way(self, fill: Fill) -> None:
        folder = fill(["a.jpg"])
        jsonl(folder / "Metadata.JSONL", [{"file_name": "a.jpg", "text": "x"}])
        with pytest.raises(SourceError, match=r"'Metadata\.JSONL' is no metadata table by its .* to 'metadata\.jsonl'"):
            open_files(folder)

    def test_empty_values_in_csv_are_none(self, fill: Fill) -> None:
        folder = fill(["a.jpg", "b.jpg"])
        (folder / "metadata.csv").write_text("file_name,text\na.jpg,\nb.jpg,x\n")
        with pytest.raises(SourceError, match=r"1 file without a caption: 'a\.jpg'"):
            open_files(folder)
        assert open_files(folder, missing="drop").captions(0) == ("x",)

    @pytest.mark.parametrize("label", ["1.0", "-1", "1e3", "9" * 5000])
    def test_numbers_in_csv_that_are_no_labels(self, fill: Fill, label: str) -> None:
        """A column with an empty value is written as 1.0, 2.0, 10.0; as words these would be sorted 1, 10, 2."""
        folder = fill(["a.jpg"])
        (folder / "metadata.csv").write_text(f"file_name,label\na.jpg,{label}\n")
        with pytest.raises(SourceError, match=r"row 1, 'label' is .*; a label is a whole number from 0, or a word"):
            open_files(folder)

    def test_space_around_labels_in_csv(self, fill: Fill) -> None:
        folder = fill(["a.jpg", "b.jpg"])
        (folder / "metadata.csv").write_text("file_name,label\na.jpg,cat \nb.jpg, cat\n")
        assert open_files(folder).label_names == ("cat",)
        (folder / "metadata.csv").write_text("file_name,label\na.jpg, 1\nb.jpg,02\n")
        files = open_files(folder)
        assert [files.label(index) for index in range(2)] == [1, 2]

    def test_labels_that_look_the_same(self, fill: Fill) -> None:
        match = r"the labels .* and .* in .* look the same and would be two classes; write them in one way"
        with pytest.raises(SourceError, match=match):
            open_files(fill(["caf\u00e9/a.jpg", "cafe\u0301/b.jpg"]))
        folder = fill(["a.jpg", "b.jpg"], folder="rows")
        jsonl(folder / "metadata.jsonl", [{"file_name": "a.jpg", "label": "x"}, {"file_name": "b.jpg", "label": "x "}])
        with pytest.raises(SourceError, match=match):
            open_files(folder)

    @pytest.mark.parametrize(
        ("row", "match"),
        [
            ('{"file_name": "a.jpg", "text": "x", "text": "y"}', r"line 1 is no JSON: it has a key twice, among '"),
            ('{"file_name": "a.jpg", "text": "\\ud83d"}', r"line 1 is no JSON: it has '\\ud83d', which is half of"),
            ('{"file_name": "a.jpg", "label": "\\ud83d"}', r"line 1 is no JSON: it has '\\ud83d', which is half of"),
        ],
    )  # fmt: skip
    def test_json_that_says_two_things_or_none(self, fill: Fill, row: str, match: str) -> None:
        folder = fill(["a.jpg"])
        (folder / "metadata.jsonl").write_text(row)
        with pytest.raises(DamagedSourceError, match=match):
            open_files(folder)

    def test_names_with_backslashes(self, fill: Fill) -> None:
        folder = fill(["s/a.jpg"])
        jsonl(folder / "metadata.jsonl", [{"file_name": "s\\a.jpg", "text": "x"}])
        with pytest.raises(SourceError, match=r"'metadata\.jsonl' are written with backslashes: write 's/a\.jpg'\. "):
            open_files(folder)

    def test_bytes_that_are_no_text_and_no_parquet(self, fill: Fill) -> None:
        folder = fill(["a.jpg"])
        (folder / "metadata.csv").write_bytes(b"file_name,text\na.jpg,\xff\n")
        with pytest.raises(DamagedSourceError, match=r"metadata\.csv is no UTF-8: byte 0xff at 21; save it as UTF-8"):
            open_files(folder)
        (folder / "metadata.csv").unlink()
        (folder / "metadata.parquet").write_bytes(b"PAR1")
        with pytest.raises(DamagedSourceError, match=r"metadata\.parquet is not a parquet file that can be read"):
            open_files(folder)

    def test_words_and_numbers(self, fill: Fill) -> None:
        folder = fill(["a.jpg", "b.jpg"])
        jsonl(folder / "metadata.jsonl", [{"file_name": "a.jpg", "label": 1}, {"file_name": "b.jpg", "label": "x"}])
        with pytest.raises(SourceError, match=r"labels in .* are words and numbers, such as 'x' and 1; use one kind"):
            open_files(folder)

    def test_labels_of_some(self, fill: Fill) -> None:
        folder = fill(["a.jpg", "b.jpg"])
        jsonl(folder / "metadata.jsonl", [{"file_name": "a.jpg", "label": "x"}, {"file_name": "b.jpg"}])
        with pytest.raises(SourceError, match=r"1 file without a label: 'b\.jpg'"):
            open_files(folder)
        assert open_files(folder, missing="drop").label(0) == 0

    def test_a_table_can_be_left_aside(self, fill: Fill) -> None:
        folder = fill(["x/a.jpg", "y/b.jpg"])
        jsonl(folder / "metadata.jsonl", [{"file_name": "x/a.jpg", "prompt": "x"}])
        files = open_files(folder, captions="none", labels="folders")
        assert (files.has_captions, files.label_names) == (False, ("x", "y"))
        assert not open_files(folder, captions="none").has_captions
        with pytest.raises(OptionsError, match=r"has no column 'words', which caption_field names; it has 'file_name'"):
            open_files(folder, caption_field="words")
        with pytest.raises(SourceError, match="neither 'text' nor"):
            open_files(folder)


class TestSidecars:
    def test_text_beside_the_files(self, fill: Fill) -> None:
        folder = fill(["a.jpg", "in/b.c.png"])
        (folder / "a.txt").write_bytes("\ufeffa flower\n".encode())
        (folder / "in/b.c.caption").write_text("  two\nlines ")
        files = open_files(folder)
        assert [files.captions(0), files.captions(1)] == [("a flower",), ("two\nlines",)]
        assert "captions in files beside them" in files.description()
        assert not open_files(folder, captions="none", labels="none").has_captions

    def test_what_does_not_fit(self, fill: Fill) -> None:
        folder = fill(["a.jpg", "b.jpg", "c.jpg"])
        for name in ("a.txt", "a.caption", "b.txt", "README.txt"):
            (folder / name).write_text(name)
        match = (
            r"1 caption file without its file: 'README\.txt'; 1 file with two caption files: 'a\.jpg'; "
            r"1 file without a caption: 'c\.jpg'"
        )
        with pytest.raises(SourceError, match=match):
            open_files(folder)
        assert keys(open_files(folder, missing="drop")) == ["b.jpg"]

    def test_notes_beside_images_are_no_captions(self, fill: Fill) -> None:
        folder = fill(["a.jpg"])
        (folder / "README.txt").write_text("x")
        assert not open_files(folder).has_captions

    def test_two_files_of_one_name(self, fill: Fill) -> None:
        folder = fill(["a.jpg", "a.png"])
        (folder / "a.txt").write_text("x")
        with pytest.raises(SourceError, match=r"2 files in .* share a name but for the suffix, such as 'a\.jpg' and"):
            open_files(folder)

    def test_table_and_text(self, fill: Fill) -> None:
        folder = fill(["a.jpg"])
        (folder / "a.txt").write_text("text")
        jsonl(folder / "metadata.jsonl", [{"file_name": "a.jpg", "text": "table", "label": 2}])
        with pytest.raises(
            SourceError, match=r"has captions in 'metadata\.jsonl' and in 1 files beside its files, such"
        ):
            open_files(folder)
        assert open_files(folder, captions="metadata").captions(0) == ("table",)
        files = open_files(folder, captions="sidecars")
        assert (files.captions(0), files.label(0)) == (("text",), 2)

    def test_text_that_is_no_text(self, fill: Fill) -> None:
        folder = fill(["a.jpg"])
        (folder / "a.txt").write_bytes(b"\xff")
        with pytest.raises(DamagedSourceError, match=r"the caption .*a\.txt is no UTF-8: byte 0xff at 0"):
            open_files(folder).captions(0)


class TestIdentity:
    def test_what_the_digest_sees(self, fill: Fill, tmp_path: Path) -> None:
        folder = fill(["a.jpg", "b.jpg"])
        jsonl(folder / "metadata.jsonl", [{"file_name": f"{n}.jpg", "text": n} for n in "ab"])
        first = open_files(folder).digest()
        os.utime(folder / "a.jpg", (1, 1))
        assert open_files(folder).digest() == first
        moved = tmp_path / "moved"
        folder.rename(moved)
        assert open_files(moved).digest() == first
        jsonl(moved / "metadata.jsonl", [{"file_name": f"{n}.jpg", "text": n.upper()} for n in "ab"])
        changed = open_files(moved).digest()
        assert changed != first
        (moved / "a.jpg").write_bytes((moved / "a.jpg").read_bytes() + b"x")
        assert open_files(moved).digest() not in (first, changed)

    def test_pickles_by_path(self, fill: Fill) -> None:
        folder = fill([f"{number}.jpg" for number in range(300)])
        files = open_files(folder)
        data = pickle.dumps(files)
        assert len(data) < 2000
        other = pickle.loads(data)
        assert keys(other) == keys(files)
        assert other.read(7) == files.read(7)
        (folder / "300.jpg").write_bytes(b"x")
        with pytest.raises(DamagedSourceError, match=r"data changed after it was opened: .*\(folder, 301 files\)"):
            pickle.loads(data).read(0)
        reopened = files.reopened()
        reopened.close()
        reopened.close()
        assert files.read(0) == reopened.read(0)


@pytest.mark.parametrize("workers", [0, 2])
def test_files_are_opened_one_at_a_time(fill: Fill, workers: int, tmp_path: Path) -> None:
    """E14: an epoch over more files than may be open."""
    folder = fill([f"{number}.jpg" for number in range(400)])
    script = tmp_path / "epoch.py"
    script.write_text(
        "import os, resource, sys\n"
        "from dew.data import DataPartition, Loading\n"
        "from dew.data.stream import train_stream\n"
        "from dew_media.files.open import open_files\n"
        "import numpy as np\n"
        "class Sizes:\n"
        "    def __init__(self, files): self.files = files\n"
        "    def __len__(self): return len(self.files)\n"
        "    def __getitem__(self, index): return {'size': np.int64(len(self.files.read(index)))}\n"
        "if __name__ == '__main__':\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\n"
        f"    source = Sizes(open_files({str(folder)!r}))\n"
        "    count = lambda: len(os.listdir('/proc/self/fd'))\n"
        f"    with train_stream(source, batch=20, loading=Loading(workers={workers}, threads=4)) as stream:\n"
        "        next(stream)\n"
        "        before = count()\n"
        "        for _ in range(24): next(stream)\n"
        "        after = count()\n"
        "    print(after - before)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True)
    assert abs(int(done.stdout)) <= 10
