"""Indexed tar shards: samples by key, what is refused, the index file, and reads at random."""

import io
import json
import os
import pickle
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dew.data.errors import (
    DamagedSourceError,
    DewWarning,
    OptionsError,
    SourceError,
    SourceNotFoundError,
    SplitError,
    StorageDeniedError,
)
from dew.data.storage import Storage
from dew_media.files.collection import MediaFiles
from dew_media.files.open import VIDEO_SUFFIXES, open_files, splits_in, tar_places
from dew_media.files.tar_index import parse_index
from dew_media.files.tar_places import write_index

Encode: TypeAlias = Callable[..., bytes]
WriteTar: TypeAlias = Callable[..., Path]

COMPLETE = [("1.jpg", b"x"), ("1.txt", b"x"), ("1.cls", b"1")]

pytestmark = pytest.mark.usefixtures("user_cache")


@pytest.fixture
def shards(tmp_path: Path, encode: Encode, write_tar: WriteTar) -> Path:
    """Shards 1, 2 and 10 of 5 samples each, with captions and labels."""
    for shard in (1, 2, 10):
        members: list[tuple[str, bytes]] = []
        for number in range(5):
            key = f"in/{shard:02}{number}"
            members += [(f"{key}.jpg", encode(shard * 10 + number)), (f"{key}.TXT", f"no {number}".encode())]
            members += [(f"{key}.cls", b"%d\n" % (number % 3))]
        write_tar(tmp_path / f"shards/{shard}.tar", members)
    return tmp_path / "shards"


def keys(files: MediaFiles) -> list[str]:
    return [files.key(index) for index in range(len(files))]


class TestSamples:
    def test_are_read_at_random(self, shards: Path, encode: Encode) -> None:
        files = open_files(shards)
        assert files.description() == "tar, 15 samples in 3 tar shards, labels, captions"
        assert keys(files)[4:7] == ["1.tar/in/014", "2.tar/in/020", "2.tar/in/021"]
        assert keys(files)[-1] == "10.tar/in/104"  # shards by number, as everywhere in Dew
        order = list(range(15)) * 4
        random.Random(1).shuffle(order)

        def check(index: int) -> None:
            shard, number = (1, 2, 10)[index // 5], index % 5
            assert files.read(index) == encode(shard * 10 + number)
            assert files.captions(index) == (f"no {number}",)
            assert files.label(index) == number % 3
            assert files.path(index) is None

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(check, order))

    def test_a_member_as_a_file(self, shards: Path, encode: Encode) -> None:
        with open_files(shards).open_file(7) as opened:
            assert opened.seekable()
            assert opened.read() == encode(22)
            assert opened.read() == b""
            assert opened.seek(-5, io.SEEK_END) == len(encode(22)) - 5
            assert opened.read(100) == encode(22)[-5:]
            with pytest.raises(ValueError, match="before the beginning"):
                opened.seek(-1)

    def test_names_say_shard_key_and_byte(self, shards: Path, encode: Encode) -> None:
        files = open_files(shards)
        name = files.name(6)
        assert name.startswith("2.tar: in/021 at byte ")
        start = int(name.rpartition(" ")[2])
        assert (shards / "2.tar").read_bytes()[start : start + len(encode(21))] == encode(21)
        for index in (-1, 15):
            for method in (files.read, files.name, files.key, files.label, files.captions, files.open_file, files.path):
                with pytest.raises(IndexError, match=f"file {index} was asked for, there are files 0 to 14"):
                    method(index)

    def test_one_shard(self, shards: Path) -> None:
        files = open_files(shards / "2.tar")
        assert keys(files)[0] == "2.tar/in/020"
        assert (shards / "2.tar.idx.npz").exists()
        with pytest.raises(OptionsError, match=r"layout='folder' was asked for, and .*2\.tar is tar"):
            open_files(shards / "2.tar", layout="folder")
        with pytest.raises(SourceNotFoundError, match=r"nothing is stored at .*3\.tar"):
            open_files(shards / "3.tar")

    def test_keys_are_cut_at_the_first_dot(self, tmp_path: Path, write_tar: WriteTar) -> None:
        members = [("a/x.y/1.seg.PNG", b"mask"), ("a/x.y/1.Jpg", b"image"), ("a/x.y/1.meta.json", b"{}")]
        write_tar(tmp_path / "s.tar", members)
        files = open_files(tmp_path / "s.tar")
        assert (keys(files), files.read(0)) == (["s.tar/a/x.y/1"], b"image")
        masks = open_files(tmp_path / "s.tar", part="seg.PNG")
        assert (masks.read(0), masks.description()) == (b"mask", "tar, 1 sample in 1 tar shard, part='seg.png'")
        assert masks.digest() != files.digest()

    def test_samples_whose_files_lie_apart(self, tmp_path: Path, write_tar: WriteTar) -> None:
        members = [(f"{n}.jpg", b"%d" % n) for n in range(4)] + [(f"{n}.txt", b"c%d" % n) for n in (3, 1, 0, 2)]
        files = open_files(write_tar(tmp_path / "s.tar", members))
        assert [(files.read(n), files.captions(n)) for n in range(4)] == [(b"%d" % n, (f"c{n}",)) for n in range(4)]

    def test_hidden_files_and_notes_are_no_samples(self, tmp_path: Path, write_tar: WriteTar) -> None:
        members = [("._1.jpg", b"x"), ("__MACOSX/1.jpg", b"x"), ("__meta__.json", b"{}"), ("README", b"x")]
        files = open_files(write_tar(tmp_path / "s.tar", [*members, ("./1.jpg", b"y"), (".git/2.jpg", b"x")]))
        assert keys(files) == ["s.tar/1"]

    def test_videos(self, tmp_path: Path, write_tar: WriteTar) -> None:
        files = open_files(
            write_tar(tmp_path / "s.tar", [("1.mp4", b"video"), ("1.txt", b"x")]), suffixes=VIDEO_SUFFIXES
        )
        with files.open_file(0) as opened:
            assert (opened.read(), files.captions(0)) == (b"video", ("x",))

    def test_captions_in_json(self, tmp_path: Path, write_tar: WriteTar) -> None:
        notes = [{"caption": "one", "label": 3, "url": "x"}, {"caption": ["two", "three"], "label": 0}, {"label": "b"}]
        members = [(f"{n}.{kind}", data) for n, note in enumerate(notes)
                   for kind, data in (("jpg", b"x"), ("json", json.dumps(note).encode()))]  # fmt: skip
        path = write_tar(tmp_path / "s.tar", members)
        files = open_files(path, labels="metadata")
        assert [files.captions(n) for n in (0, 1)] == [("one",), ("two", "three")]
        assert [files.label(n) for n in (0, 1)] == [3, 0]
        assert files.description() == "tar, 3 samples in 1 tar shard, labels, captions in .json, 'caption'"
        with pytest.raises(
            SourceError, match=r"the caption of s\.tar: 2 at byte \d+ is missing: its \.json has no 'cap"
        ):
            files.captions(2)
        with pytest.raises(
            SourceError, match=r"the label of s\.tar: 2 .* is 'b'; in tar shards a label is a whole num"
        ):
            files.label(2)
        assert open_files(path, caption_field="url").captions(0) == ("x",)
        with pytest.raises(
            OptionsError, match=r"'s\.tar/0' has no 'nothing', which caption_field names; it has 'caption'"
        ):
            open_files(path, caption_field="nothing")
        assert not open_files(path, captions="none").has_captions

    def test_text_wins_over_json(self, tmp_path: Path, write_tar: WriteTar) -> None:
        path = write_tar(tmp_path / "s.tar", [("1.jpg", b"x"), ("1.json", b'{"caption": "json"}'), ("1.txt", b"text")])
        assert open_files(path).captions(0) == ("text",)
        assert open_files(path, captions="metadata").captions(0) == ("json",)

    @pytest.mark.parametrize(
        ("note", "error", "match"),
        [
            (b"{", DamagedSourceError, r"the \.json of 's\.tar/1' is no JSON"),
            (b"[1]", DamagedSourceError, r"the \.json of 's\.tar/1' is no JSON object: b'\[1\]'"),
            (b'{"text": "a", "caption": "b"}', SourceError, r"has 'caption' and 'text'; caption_field says which one"),
        ],
    )
    def test_json_that_says_nothing_clear(
        self, tmp_path: Path, write_tar: WriteTar, note: bytes, error: type[Exception], match: str
    ) -> None:
        with pytest.raises(error, match=match):
            open_files(write_tar(tmp_path / "s.tar", [("1.jpg", b"x"), ("1.json", note)]))


class TestRefusals:
    def test_what_samples_lack(self, tmp_path: Path, write_tar: WriteTar) -> None:
        members = [("1.jpg", b"a"), ("1.txt", b"x"), ("1.cls", b"1"), ("2.jpg", b"b"), ("2.cls", b"1"), ("3.txt", b"x")]
        members += [("4.jpg", b"d"), ("4.txt", b"x"), ("5.jpg", b"e"), ("5.PNG", b"e"), ("5.txt", b"x")]
        path = write_tar(tmp_path / "s.tar", members)
        match = (
            r"is not whole: 1 sample with two main files: 's\.tar/5'; 1 sample without its main file: 's\.tar/3'; "
            r"1 file without a caption: 's\.tar/2'; 1 file without a label: 's\.tar/4'\. Correct"
        )
        with pytest.raises(SourceError, match=match):
            open_files(path)
        files = open_files(path, missing="drop")
        assert keys(files) == ["s.tar/1"]
        assert files.description() == (
            "tar, 1 sample in 1 tar shard, labels, captions, dropped: 1 sample with two main files, 1 sample without "
            "its main file, 1 file without a caption, 1 file without a label"
        )
        assert keys(open_files(path, missing="drop", part="jpg", captions="none", labels="none")) == [
            f"s.tar/{number}" for number in (1, 2, 4, 5)
        ]

    def test_members_that_cannot_be_used(self, tmp_path: Path, write_tar: WriteTar) -> None:
        path = write_tar(tmp_path / "s.tar", [("1.jpg", b"a"), ("../2.jpg", b"b"), ("3.jpg", b"c"), ("3.JPG", b"d")])
        with tarfile.open(path, "a") as archive:
            link = tarfile.TarInfo("4.jpg")
            link.type, link.linkname = tarfile.SYMTYPE, "1.jpg"
            archive.addfile(link)
        match = (
            r"1 link in the place of a file: 's\.tar: 4\.jpg'; "
            r"1 name that leads out of the archive: 's\.tar: \.\./2\.jpg'; "
            r"1 member named as one before it: 's\.tar: 3\.JPG'"
        )
        with pytest.raises(SourceError, match=match):
            open_files(path)
        files = open_files(path, missing="drop")
        assert (keys(files), files.read(1)) == (["s.tar/1", "s.tar/3"], b"c")

    def test_a_shard_that_is_cut(self, shards: Path, encode: Encode) -> None:
        whole = (shards / "2.tar").read_bytes()
        (shards / "2.tar").write_bytes(whole[: whole.index(encode(23)) + 100])
        lost = len(encode(23)) - 100
        match = rf"is not whole: 1 truncated member: '2\.tar: in/023\.jpg at byte \d+, of which {lost} of \d+ bytes are"
        with pytest.raises(SourceError, match=match):
            open_files(shards)
        files = open_files(shards, missing="drop")
        assert len(files) == 13
        assert files.read(7) == encode(22)

    def test_a_shard_without_its_end(self, tmp_path: Path, write_tar: WriteTar) -> None:
        path = write_tar(tmp_path / "s.tar", [("1.jpg", b"x" * 512)])
        path.write_bytes(path.read_bytes()[:1024])
        for _ in range(2):
            with pytest.warns(
                DewWarning, match=r"the mark that ends an archive is missing in 1 tar shard, 's\.tar'; all"
            ):
                assert open_files(path).read(0) == b"x" * 512

    def test_no_main_file(self, tmp_path: Path, write_tar: WriteTar) -> None:
        path = write_tar(tmp_path / "s.tar", [("1.v2.jpg", b"x"), ("1.txt", b"x"), ("2.v2.jpg", b"x")])
        match = r"no sample in .* has a file with \.apng .*; .* is 'v2\.jpg' \(2 times\), 'txt' \(1 times\); give part="
        with pytest.raises(SourceError, match=match):
            open_files(path)
        assert open_files(path, part="v2.jpg", missing="drop").read(0) == b"x"

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"labels": "folders"}, r"labels='folders' is for folders"),
            ({"labels": "metadata"}, r"labels='metadata': no sample in .* has a \.json"),
            ({"captions": "metadata"}, r"captions were asked for from \.json"),
            ({"column": "x"}, r"column='x' is for the layout 'parquet', and this is 'tar'"),
        ],
    )
    def test_options_without_a_meaning(self, shards: Path, options: dict[str, Any], match: str) -> None:
        with pytest.raises(OptionsError, match=match):
            open_files(shards, **options)

    def test_sidecars_that_are_not_there(self, tmp_path: Path, write_tar: WriteTar) -> None:
        with pytest.raises(OptionsError, match=r"captions='sidecars': no sample in .* has a \.txt or \.caption"):
            open_files(write_tar(tmp_path / "s.tar", [("1.jpg", b"x")]), captions="sidecars")

    def test_compressed_shards(self, tmp_path: Path) -> None:
        for name in ("s.tar.gz", "t.tgz"):
            with tarfile.open(tmp_path / name, "w:gz"):
                pass
            with pytest.raises(SourceError, match=r"is compressed, and its members cannot be read at random: unpack"):
                open_files(tmp_path / name)
        with pytest.raises(SourceError, match=r"holds no file with .*'s\.tar\.gz' is compressed: unpack it"):
            open_files(tmp_path)
        (tmp_path / "s.tar.gz").rename(tmp_path / "u.tar")
        with pytest.raises(SourceError, match=r"1 damaged header: 'u\.tar: at byte 0, this is gzip and not tar"):
            open_files(tmp_path / "u.tar")

    def test_several_layouts(self, shards: Path) -> None:
        (shards / "loose.jpg").write_bytes(b"x")
        with pytest.raises(SourceError, match=r"several layouts: 1 for 'folder', 3 for 'tar'; layout= decides"):
            open_files(shards)
        assert len(open_files(shards, layout="tar")) == 15
        assert open_files(shards, layout="folder").description() == "folder, 1 file"
        with pytest.raises(SourceError, match=r"layout='parquet' was asked for, and .* holds 3 with \.tar"):
            open_files(shards, layout="parquet")

    def test_a_label_that_is_no_number(self, tmp_path: Path, write_tar: WriteTar) -> None:
        files = open_files(write_tar(tmp_path / "s.tar", [("1.jpg", b"x"), ("1.cls", b"cat"), ("1.txt", b"\xff")]))
        with pytest.raises(SourceError, match=r"the label of s\.tar: 1 at byte \d+ is 'cat'; in tar shards a label is"):
            files.label(0)
        with pytest.raises(DamagedSourceError, match=r"the caption of s\.tar: 1 at byte \d+ is no UTF-8: byte 0xff"):
            files.captions(0)


class TestSplits:
    def test_by_the_names_of_shards(self, tmp_path: Path, write_tar: WriteTar) -> None:
        for name in ("train-0", "train_1", "val.0", "test-000"):
            write_tar(tmp_path / f"{name}.tar", [(f"{name[0]}{name[-1]}.jpg", name.encode())])
        assert splits_in(tmp_path) == ["train", "val", "test"]
        files = open_files(tmp_path)
        assert [files.read(n) for n in range(2)] == [b"train-0", b"train_1"]
        assert open_files(tmp_path, split="validation").read(0) == b"val.0"
        assert os.listdir(tmp_path).count("dew.idx.npz") == 1  # one index for all splits
        first = files.digest()
        write_tar(tmp_path / "val.0.tar", [("other.jpg", b"x")])
        write_index(tar_places(tmp_path)[0])
        assert open_files(tmp_path).digest() == first
        with pytest.raises(SplitError, match=r"no split 'eval' in .*; there are 'train', 'val', 'test'"):
            open_files(tmp_path, split="eval")

    def test_by_directories(self, tmp_path: Path, write_tar: WriteTar) -> None:
        for split in ("train", "val"):
            write_tar(tmp_path / split / "0.tar", [("1.jpg", split.encode())])
        assert open_files(tmp_path, split="val").read(0) == b"val"
        assert [spec.below for spec in tar_places(tmp_path)] == ["train", "val"]

    def test_some_names_alone(self, shards: Path, write_tar: WriteTar) -> None:
        write_tar(shards / "val-0.tar", [("1.jpg", b"x")])
        with pytest.raises(SourceError, match=r"tell a split, such as 'val-0\.tar', and those of 3 do not, such as '1"):
            open_files(shards)

    def test_names_that_only_begin_so(self, tmp_path: Path, write_tar: WriteTar) -> None:
        write_tar(tmp_path / "training.tar", [("1.jpg", b"x")])
        write_tar(tmp_path / "validated.tar", [("2.jpg", b"x")])
        assert splits_in(tmp_path) == ["train"]
        assert len(open_files(tmp_path)) == 2


class TestIndex:
    def test_its_bytes_depend_on_the_shards_alone(self, shards: Path, tmp_path: Path) -> None:
        open_files(shards)
        first = (shards / "dew.idx.npz").read_bytes()
        moved = tmp_path / "moved"
        shards.rename(moved)
        for path in moved.glob("*.tar"):
            os.utime(path, (1, 1))
        (moved / "dew.idx.npz").unlink()
        open_files(moved)
        assert (moved / "dew.idx.npz").read_bytes() == first
        assert sorted(os.listdir(moved)) == ["1.tar", "10.tar", "2.tar", "dew.idx.npz"]  # nothing half-written

    def test_numpy_reads_it(self, shards: Path) -> None:
        open_files(shards)
        with np.load(shards / "dew.idx.npz") as arrays:
            about = json.loads(arrays["about"].tobytes())
            assert (about["format"], about["suffixes"]) == ("dew-tar-index", ["jpg", "txt", "cls"])
            assert [shard["name"] for shard in about["shards"]] == ["1.tar", "2.tar", "10.tar"]
            assert len(arrays["offsets"]) == 45

    def test_it_is_used(self, shards: Path) -> None:
        told: list[tuple[int, int, int]] = []
        open_files(shards, on_progress=lambda *now: told.append(now))
        size = sum(path.stat().st_size for path in shards.glob("*.tar"))
        assert told[-1] == (size, size, 45)
        told.clear()
        open_files(shards, on_progress=lambda *now: told.append(now))
        assert not told

    @pytest.mark.parametrize("change", ["size", "end", "head", "new", "gone"])
    def test_a_stale_one_is_refused(self, shards: Path, write_tar: WriteTar, change: str) -> None:
        open_files(shards)
        data = (shards / "2.tar").read_bytes()
        if change == "size":
            (shards / "2.tar").write_bytes(data + bytes(10240))
        elif change == "end":
            (shards / "2.tar").write_bytes(data[:-1] + b"\1")
        elif change == "head":
            (shards / "2.tar").write_bytes(data[:600] + b"other" + data[605:])
        elif change == "new":
            write_tar(shards / "3.tar", COMPLETE)
        else:
            (shards / "2.tar").unlink()
        words = {
            "size": rf"'2\.tar' had {len(data)} bytes and has {len(data) + 10240}",
            "end": r"'2\.tar' begins or ends with other bytes than it did",
            "head": r"'2\.tar' begins or ends with other bytes than it did",
            "new": r"it lists 3 shards, 4 are there, and '3\.tar' is not in it",
            "gone": r"it lists 3 shards, 2 are there, and '2\.tar' is in it and is not there any more",
        }
        match = rf"the index .*dew\.idx\.npz is stale: {words[change]}; make it again with 'dew images index PATH'"
        with pytest.raises(SourceError, match=match):
            open_files(shards)
        if change != "end":
            write_index(tar_places(shards)[0])
            assert len(open_files(shards)) == {"new": 16, "gone": 10}.get(change, 15)

    def test_a_shard_written_again_while_it_is_read(self, shards: Path, encode: Encode) -> None:
        files, alone = open_files(shards), pickle.dumps(open_files(shards, captions="none", labels="none"))
        bare = pickle.loads(alone)
        assert bare.read(7) == encode(22)
        data = bytearray((shards / "2.tar").read_bytes())
        at = data.index(b"in/022.jpg")
        data[at + 5 : at + 6] = b"9"
        (shards / "2.tar").write_bytes(data)
        assert files.read(6) == encode(21)
        for method in (files.read, bare.read):
            match = (
                r"2\.tar: in/022 at byte \d+ is not what the index says: another header is in front of it, so the sh"
            )
            with pytest.raises(DamagedSourceError, match=match):
                method(7)
        assert files.captions(7) == ("no 2",)
        with pytest.raises(DamagedSourceError, match=r"2\.tar: in/022 at byte \d+ is not what the index says"):
            files.open_file(7)
        (shards / "2.tar").write_bytes(data[:3000])
        with pytest.raises(
            DamagedSourceError, match=r"2\.tar: in/024 at byte \d+ cannot be read: .* is cut: \d+ bytes"
        ):
            files.read(9)
        (shards / "2.tar").unlink()
        with pytest.raises(SourceNotFoundError, match=r"2\.tar"):
            files.read(9)

    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_a_damaged_one_is_refused(self, shards: Path, data: st.DataObject) -> None:
        path = shards / "dew.idx.npz"
        if not path.exists():
            open_files(shards)
        whole = path.read_bytes()
        at = data.draw(st.integers(0, len(whole) - 1))
        cut = data.draw(st.booleans())
        try:
            path.write_bytes(whole[:at] if cut else whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
            try:
                files = open_files(shards)
            except DamagedSourceError as error:
                said = str(error)
                assert "is no index of tar shards (version 1)" in said
            else:  # a byte of the archive's own notes, which say nothing of the shards
                assert files.captions(14) == ("no 4",)
        finally:
            path.write_bytes(whole)

    def test_a_directory_for_it(self, shards: Path, tmp_path: Path, write_tar: WriteTar) -> None:
        into = tmp_path / "indexes"
        files = open_files(shards, index=str(into))
        assert not (shards / "dew.idx.npz").exists()
        assert len(os.listdir(into)) == 1
        assert pickle.loads(pickle.dumps(files)).read(3) == files.read(3)
        write_tar(shards / "2.tar", COMPLETE)
        assert len(open_files(shards, index=str(into))) == 11  # another state has another index
        assert len(os.listdir(into)) == 2

    def test_where_nothing_can_be_written(
        self, shards: Path, user_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = Storage.write

        def refused(self: Storage, name: str, data: bytes) -> None:
            if self.url == str(shards):
                raise StorageDeniedError("read-only")
            write(self, name, data)

        monkeypatch.setattr(Storage, "write", refused)
        files = open_files(shards)
        assert len(list((user_cache / "dew/indexes").iterdir())) == 1
        told: list[Any] = []
        assert open_files(shards, on_progress=lambda *now: told.append(now)).digest() == files.digest()
        assert not told

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_shard_that_may_not_be_read(self, shards: Path) -> None:
        next(shards.glob("*.tar")).chmod(0)
        with pytest.raises(StorageDeniedError, match=r"\.tar may not be read: Permission denied; check its per"):
            open_files(shards)

    def test_parsing_what_is_none(self) -> None:
        with pytest.raises(DamagedSourceError, match=r"x\.idx\.npz is no index of tar shards \(version 1\): "):
            parse_index(b"PK", "x.idx.npz")


class TestIdentity:
    def test_the_same_files_packed_again_are_the_same(self, tmp_path: Path, write_tar: WriteTar) -> None:
        members = [("1.jpg", b"a"), ("1.txt", b"x"), ("2.jpg", b"b"), ("2.txt", b"y")]
        first = open_files(write_tar(tmp_path / "s.tar", members)).digest()
        again = write_tar(tmp_path / "other/s.tar", members, mtime=99.5, format=tarfile.GNU_FORMAT)
        assert open_files(again).digest() == first
        longer = open_files(write_tar(tmp_path / "third/s.tar", [*members[:3], ("2.txt", b"yy")]))
        assert longer.digest() != first

    def test_what_is_stored_is_the_same_whatever_is_made_of_it(self, shards: Path) -> None:
        files, bare = open_files(shards), open_files(shards, captions="none", labels="none")
        assert files.stored() == bare.stored()
        assert len({files.digest(), bare.digest(), files.stored()}) == 3
        assert files.stored() != open_files(shards, part="txt", captions="none", labels="none").stored()

    def test_what_is_left_out_is_seen(self, tmp_path: Path, write_tar: WriteTar) -> None:
        members = [("1.jpg", b"a"), ("1.txt", b"x"), ("2.jpg", b"b")]
        path = write_tar(tmp_path / "s.tar", members)
        digests = {open_files(path, captions="none").digest(), open_files(path, missing="drop").digest()}
        assert len(digests) == 2

    def test_pickles_by_path(self, shards: Path) -> None:
        files = open_files(shards)
        data = pickle.dumps(files)
        assert len(data) < 2000
        other = pickle.loads(data)
        assert [other.read(n) for n in range(15)] == [files.read(n) for n in range(15)]
        reopened = files.reopened()
        assert reopened.read(4) == files.read(4)
        reopened.close()
        assert files.read(0)

    def test_another_process_refuses_other_shards(self, shards: Path, write_tar: WriteTar) -> None:
        data = pickle.dumps(open_files(shards))
        write_tar(shards / "2.tar", COMPLETE)
        write_index(tar_places(shards)[0])
        with pytest.raises(
            DamagedSourceError, match=r"shards changed after it was opened: it was [0-9a-f]{12} and is now"
        ):
            pickle.loads(data).read(0)


NAMES = st.from_regex(r"[a-z]{1,3}(/[a-zé]{1,3})?\.(jpg|txt|cls)", fullmatch=True)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    members=st.dictionaries(NAMES, st.binary(max_size=2000), min_size=1, max_size=20),
    format=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]),
    mtime=st.sampled_from([0, 0.5]),
)
def test_every_image_of_an_archive_comes_back(
    tmp_path: Path, write_tar: WriteTar, members: dict[str, bytes], format: int, mtime: float
) -> None:
    path = write_tar(tmp_path / "any.tar", members.items(), format=format, mtime=mtime)
    path.with_suffix(".tar.idx.npz").unlink(missing_ok=True)
    images = {name.partition(".")[0]: data for name, data in members.items() if name.endswith(".jpg")}
    if not images:
        with pytest.raises(SourceError, match="no sample in"):
            open_files(path)
        return
    files = open_files(path, missing="drop", captions="none", labels="none")
    assert {key.removeprefix("any.tar/"): files.read(n) for n, key in enumerate(keys(files))} == images


def test_captions_are_read_along_by_the_thread_that_reads_the_image(
    shards: Path, monkeypatch: pytest.MonkeyPatch, encode: Encode
) -> None:
    files = open_files(shards)
    asked: list[tuple[int, int]] = []
    read_range = Storage.read_range

    def counted(self: Storage, name: str, start: int, stop: int) -> bytes:
        asked.append((start, stop))
        return read_range(self, name, start, stop)

    monkeypatch.setattr(Storage, "read_range", counted)
    assert (files.read(7), files.captions(7), files.label(7)) == (encode(22), ("no 2",), 2)
    assert len(asked) == 1
    with ThreadPoolExecutor(1) as thread:  # another thread has not read it
        assert thread.submit(files.captions, 7).result() == ("no 2",)
    assert (files.captions(6), files.captions(12)) == (("no 1",), ("no 2",))
    assert len(asked) == 4


def test_far_captions_are_read_alone(tmp_path: Path, write_tar: WriteTar) -> None:
    members = [("1.jpg", b"a"), ("2.jpg", bytes(100_000)), ("1.txt", b"x"), ("2.txt", b"y")]
    files = open_files(write_tar(tmp_path / "s.tar", members))
    assert [(files.read(n)[:1], files.captions(n)) for n in (0, 1)] == [(b"a", ("x",)), (b"\0", ("y",))]


def test_shards_in_common(shards: Path, tmp_path: Path) -> None:
    files, one = open_files(shards), open_files(shards / "2.tar")
    assert (files.shares_records_with(one), one.shares_records_with(files)) == (5, 5)  # type: ignore[attr-defined]
    (tmp_path / "link").symlink_to(shards)
    assert open_files(tmp_path / "link" / "10.tar").shares_records_with(files) == 5  # type: ignore[attr-defined]
    fewer = one.without([one.key(0)])
    assert (fewer.shares_records_with(files), files.shares_records_with(fewer)) == (4, 4)  # type: ignore[attr-defined]
    assert open_files(shards / "1.tar").shares_records_with(one) == 0  # type: ignore[attr-defined]
    assert files.shares_records_with(object()) == 0  # type: ignore[attr-defined]


def test_processes_that_open_at_once_make_one_index(shards: Path) -> None:
    source = f"from dew_media.files.open import open_files; print(open_files({str(shards)!r}).digest())"
    command = [sys.executable, "-c", source]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    digests = {process.communicate(timeout=60)[0].strip() for process in started}
    assert digests == {open_files(shards).digest()}
    assert sorted(os.listdir(shards)) == ["1.tar", "10.tar", "2.tar", "dew.idx.npz"]
