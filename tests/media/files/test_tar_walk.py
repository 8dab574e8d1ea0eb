"""The walk through a tar's headers: against Python's own reader, and over archives made byte by byte."""

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dew_media.files.problems import Kind
from dew_media.files.tar_walk import (
    AFTER_END,
    BLOCK,
    DAMAGED,
    LINK,
    NOT_UTF8,
    OUTSIDE,
    SPECIAL,
    TRUNCATED,
    Members,
    walk,
)

END = bytes(2 * BLOCK)


def walked(data: bytes) -> Members:
    return walk(lambda start, stop: data[start:stop], len(data))


def header(
    name: bytes = b"a.jpg",
    size: int | bytes = 0,
    kind: bytes = b"0",
    *,
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    checksum: bytes | None = None,
    sign: Callable[[bytes], int] = sum,
) -> bytes:
    """One header, as POSIX writes it but for what is asked for."""
    field = size if isinstance(size, bytes) else b"%011o\0" % size
    block = bytearray(name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + field + b"%011o\0" % 7)
    block += b" " * 8 + kind + bytes(100) + magic.ljust(8, b"\0") + bytes(32 + 32 + 16) + prefix.ljust(155, b"\0")
    block = block.ljust(BLOCK, b"\0")
    block[148:156] = b"%06o\0 " % sign(bytes(block)) if checksum is None else checksum
    return bytes(block)


def member(name: bytes = b"a.jpg", data: bytes = b"data", kind: bytes = b"0", **more: Any) -> bytes:
    return header(name, len(data), kind, **more) + data + bytes(-len(data) % BLOCK)


def record(text: bytes) -> bytes:
    """One record of pax, of less than 97 bytes."""
    return b"%d " % (len(text) + 4) + text + b"\n"


def signed(block: bytes) -> int:
    return sum(value - 256 if value > 127 else value for value in block)


PARTS = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0\n", exclude_categories=("Cs",)), min_size=1, max_size=60
)
NAMES = st.lists(PARTS, min_size=1, max_size=6).map("/".join)


@settings(max_examples=150)
@given(
    st.lists(st.tuples(NAMES, st.binary(max_size=1300), st.sampled_from(["file", "file", "file", "dir"])), max_size=12),
    st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]),
    st.sampled_from([0, 1.5, 2**34]),
)
def test_the_members_are_those_that_python_finds(
    entries: list[tuple[str, bytes, str]], format: int, mtime: float
) -> None:
    made = io.BytesIO()
    expected: dict[int, tuple[str, int]] = {}
    with tarfile.open(fileobj=made, mode="w", format=format) as archive:
        for name, data, kind in entries:
            entry = tarfile.TarInfo(name)
            entry.mtime = mtime
            if kind == "dir":
                entry.type, data = tarfile.DIRTYPE, b""
            entry.size = len(data)
            try:
                archive.addfile(entry, io.BytesIO(data))
            except ValueError:  # too long for the format
                continue
    stored = made.getvalue()
    found = walked(stored)
    with tarfile.open(fileobj=io.BytesIO(stored)) as archive:
        for entry in archive.getmembers():
            parts = entry.name.split("/")
            if entry.isreg() and ".." not in parts and not entry.name.startswith("/"):
                plain = "/".join(part for part in parts if part not in ("", "."))
                expected[entry.offset_data] = (plain, entry.size)
    got = zip(found.offsets, zip(found.names, found.sizes, strict=True), strict=True)
    assert dict(got) == expected
    assert found.ended
    assert set(found.problems) <= {OUTSIDE}


@settings(max_examples=60)
@given(st.data())
def test_a_cut_archive_gives_its_whole_members_and_says_where_it_ends(data: st.DataObject) -> None:
    bodies = data.draw(st.lists(st.binary(max_size=1200), min_size=1, max_size=6))
    whole = b"".join(member(b"%d.jpg" % number, body) for number, body in enumerate(bodies)) + END
    full = walked(whole)
    cut = data.draw(st.integers(1, len(whole) - 1))
    found = walked(whole[:cut])
    complete = [name for name, at, size in zip(full.names, full.offsets, full.sizes, strict=True) if at + size <= cut]
    assert found.names == complete
    assert found.ended == (cut >= len(whole) - BLOCK)
    assert set(found.problems) <= ({TRUNCATED} if cut >= BLOCK else {DAMAGED})
    ends = {at + size + -size % BLOCK for at, size in zip(full.offsets, full.sizes, strict=True)}
    if not found.ended and cut not in ends and not found.problems:
        # Only padding is missing: every byte of every member is there.
        assert any(
            at + size <= cut < at + size + -size % BLOCK for at, size in zip(full.offsets, full.sizes, strict=True)
        )


@settings(max_examples=80)
@given(st.integers(0, 3 * BLOCK - 1), st.integers(1, 255))
def test_a_changed_header_is_seen(at: int, change: int) -> None:
    whole = bytearray(member(b"a.jpg", b"") + member(b"b.jpg", b"") + member(b"c.jpg", b"") + END)
    hypothesis.assume(not 148 <= at % BLOCK < 156)  # the checksum itself may be written in several ways
    whole[at] ^= change
    found = walked(bytes(whole))
    assert found.names == [b"abc"[i : i + 1].decode() + ".jpg" for i in range(at // BLOCK)]
    assert list(found.problems) == [DAMAGED]
    assert found.problems[DAMAGED][0].startswith(f"at byte {at // BLOCK * BLOCK}, ")


def check_damage(data: st.DataObject) -> None:
    """Whatever is in a file: no error, no hang, and members lie inside it under names that stay inside."""
    files = [member(b"d/%d.jpg" % number, b"x" * data.draw(st.integers(0, 1100))) for number in range(3)]
    files += [member(b"l", b"n" * 700, b"L"), member(b"n"), member(b"p", record(b"path=p/q.jpg"), b"x"), member()]
    whole = bytearray(b"".join(files) + END)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) // BLOCK - 1)) * BLOCK
        block = whole[at : at + BLOCK]
        block[data.draw(st.integers(0, BLOCK - 1))] = data.draw(st.integers(0, 255))
        block[156] = data.draw(st.sampled_from(list(b"0LKxgS12567VMD\0")))
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)  # so that the walk goes on
        whole[at : at + BLOCK] = block
    stored = bytes(whole[: data.draw(st.integers(1, len(whole)))])
    found = walked(stored)
    assert len(found.names) == len(found.offsets) == len(found.sizes) == len(found.headers)
    for name, at, size in zip(found.names, found.offsets, found.sizes, strict=True):
        assert BLOCK <= at <= at + size <= len(stored)
        assert name
        assert not {"", ".", ".."} & set(name.split("/"))


@settings(max_examples=100)
@given(st.data())
def test_damage_that_checksums_do_not_see(data: st.DataObject) -> None:
    check_damage(data)


@pytest.mark.nightly
@settings(max_examples=10_000)
@given(st.data())
def test_damage_that_checksums_do_not_see_at_length(data: st.DataObject) -> None:
    check_damage(data)


@pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar program")
@pytest.mark.parametrize("format", ["v7", "ustar", "oldgnu", "gnu", "posix"])
def test_archives_of_the_tar_program(tmp_path: Path, format: str) -> None:
    long = format in ("gnu", "posix", "oldgnu")
    names = ["a.jpg", "in/é b.jpg", f"{'d' * 60}/{'e' * (200 if long else 30)}.jpg", "x/empty.jpg"]
    for number, name in enumerate(names):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if "empty" in name else bytes([number]) * 700 * (number + 1))
    os.link(tmp_path / "in/a.jpg", tmp_path / "in/z-hard.jpg")
    os.symlink("a.jpg", tmp_path / "in/z-soft.jpg")
    command = ["tar", f"--format={format}", "-cf", tmp_path / "s.tar", "-C", tmp_path / "in", "."]
    subprocess.run([*command, "--sort=name"], check=True)
    data = (tmp_path / "s.tar").read_bytes()
    found = walked(data)
    assert found.names == sorted(names)
    assert found.ended
    assert found.problems == {LINK: ["./z-hard.jpg", "./z-soft.jpg"]}
    for name, at, size in zip(found.names, found.offsets, found.sizes, strict=True):
        assert data[at : at + size] == (tmp_path / "in" / name).read_bytes()


class TestNames:
    def test_a_prefix_of_ustar(self) -> None:
        assert walked(member(b"name.jpg", prefix=b"some/dir") + END).names == ["some/dir/name.jpg"]

    def test_what_gnu_keeps_in_its_place(self) -> None:
        found = walked(member(b"name.jpg", prefix=b"13042354650\0", magic=b"ustar  \0") + END)
        assert found.names == ["name.jpg"]

    def test_a_long_name_of_gnu(self) -> None:
        name = b"d/" * 300 + b"1.jpg"
        found = walked(
            member(b"././@LongLink", name + b"\0", b"L") + member(name[:100], b"xyz") + member(b"2.jpg") + END
        )
        assert found.names == [name.decode(), "2.jpg"]
        assert found.sizes == [3, 4]

    def test_a_long_name_across_a_read(self) -> None:
        name = b"n" * 9000 + b".jpg"
        assert walked(member(b"x", name, b"L") + member(b"n", b"xyz") + END).names == [name.decode()]

    def test_pax(self) -> None:
        records = record(b"mtime=1700000000.123456789") + record("path=d/éx.jpg".encode()) + record(b"size=3")
        found = walked(member(b"pax", records, b"x") + header(b"e.jpg", 0) + b"xyz".ljust(BLOCK, b"\0") + END)
        assert (found.names, found.sizes) == (["d/éx.jpg"], [3])

    def test_pax_for_all_that_follow(self) -> None:
        found = walked(
            member(b"g", record(b"comment=written by size=9"), b"g") + member() + member(b"b.jpg", b"") + END
        )
        assert found.names == ["a.jpg", "b.jpg"]

    @pytest.mark.parametrize("records", [b"9 path=x.jpg\n", b"99 path=x.jpg\n", b"path=x.jpg\n", b"13 path=x.jpg "])
    def test_damaged_pax(self, records: bytes) -> None:
        found = walked(member() + member(b"pax", records, b"x") + member(b"e.jpg") + END)
        assert found.names == ["a.jpg"]
        assert found.problems == {DAMAGED: ["an extended header at byte 1024"]}

    def test_names_that_lead_out(self) -> None:
        names = (b"../a.jpg", b"/etc/b.jpg", b"x/../../c.jpg", b"./d.jpg", b"x//./e.jpg", b"new\nline.jpg", b"..f.jpg")
        found = walked(b"".join(member(name) for name in names) + END)
        assert found.names == ["d.jpg", "x/e.jpg", "..f.jpg"]
        assert found.problems == {OUTSIDE: ["../a.jpg", "/etc/b.jpg", "x/../../c.jpg", "new\nline.jpg"]}

    def test_names_that_are_not_utf8(self) -> None:
        found = walked(member(b"\xff.jpg") + member() + END)
        assert (found.names, found.problems) == (["a.jpg"], {NOT_UTF8: [r"b'\xff.jpg'"]})

    def test_directories_and_notes_are_passed_over(self) -> None:
        whole = header(b"dir/", 0, b"5") + header(b"old/", 0, b"\0") + member(b"label", b"", b"V") + member() + END
        assert walked(whole).names == ["a.jpg"]
        assert not walked(whole).problems


class TestSizes:
    @pytest.mark.parametrize(
        "field",
        [
            b"00000000004\0",
            b"          4 ",
            b"4\0".ljust(12, b"\0"),
            b"000000000004",
            b" 4 \0\0\0\0\0\0\0\0\0",
            b"\x80" + (4).to_bytes(11, "big"),
        ],
    )
    def test_all_ways_to_write_one(self, field: bytes) -> None:
        whole = header(b"a.jpg", field) + b"data".ljust(BLOCK, b"\0") + member(b"b.jpg") + END
        assert walked(whole).sizes == [4, 4]
        with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
            assert [entry.size for entry in archive] == [4, 4]

    def test_over_eight_gigabytes(self) -> None:
        size = 9 << 30
        start = header(b"big.jpg", b"\x80" + size.to_bytes(11, "big"))
        after = member(b"b.jpg") + END

        def read(first: int, last: int) -> bytes:
            return (start[first:last] if first < BLOCK else b"") or after[first - BLOCK - size : last - BLOCK - size]

        found = walk(read, BLOCK + size + len(after))
        assert list(zip(found.names, found.sizes, strict=True)) == [("big.jpg", size), ("b.jpg", 4)]
        assert found.offsets[1] == 2 * BLOCK + size

    @pytest.mark.parametrize("field", [b"-0000000004\0", b"0000000000x\0", b"\xff" * 12, b"00000000009\0"])
    def test_none(self, field: bytes) -> None:
        found = walked(member() + header(b"b.jpg", field) + END)
        assert found.names == ["a.jpg"]
        assert found.problems[DAMAGED][0].startswith("at byte 1024, a size of ")

    def test_a_size_that_leads_past_the_end(self) -> None:
        found = walked(member() + header(b"b.jpg", 10**9) + b"x" * 100)
        assert found.problems == {TRUNCATED: ["b.jpg at byte 1536, of which 999999900 of 1000000000 bytes are missing"]}

    def test_an_extended_header_of_any_size(self) -> None:
        found = walked(member() + header(b"x", 10**9, b"L") + b"x" * 100)
        assert found.problems == {DAMAGED: ["an extended header of 1000000000 bytes at byte 1024"]}
        found = walked(member() + header(b"x", 900, b"x") + b"x" * 100)
        assert found.problems == {TRUNCATED: ["an extended header at byte 1024, of which 800 bytes are missing"]}

    def test_a_header_without_its_member(self) -> None:
        found = walked(member(b"x", b"name.jpg\0", b"L") + END)
        assert found.problems == {TRUNCATED: ["the member that a header announces at byte 1024"]}


class TestChecksums:
    def test_signed_ones_of_old_writers(self) -> None:
        whole = member("é.jpg".encode(), sign=signed) + END
        assert walked(whole).names == ["é.jpg"]

    def test_wrong_ones_end_the_walk_there(self) -> None:
        whole = b"".join(member(b"%d.jpg" % number) for number in range(5))
        bad = member(b"bad.jpg", checksum=b"000001\0 ")
        found = walked(whole + bad + whole + END)
        assert found.names == [f"{number}.jpg" for number in range(5)]
        assert found.problems == {DAMAGED: ["at byte 5120, its checksum is wrong"]}

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (b"\x1f\x8b\x08" + bytes(600), "this is gzip and not tar: decompress it"),
            (b"\x28\xb5\x2f\xfd" + bytes(600), "this is compressed and not tar"),
            (b"<html>" + b" " * 600, "this is no tar: it begins with b'<html>"),
        ],
    )
    def test_what_is_no_tar(self, data: bytes, words: str) -> None:
        problem = walked(data).problems[DAMAGED][0]
        assert words in problem
        assert problem.startswith("at byte 0, ")


class TestKinds:
    @pytest.mark.parametrize(
        ("kind", "problem", "words"),
        [
            (b"1", LINK, "odd.jpg"),
            (b"2", LINK, "odd.jpg"),
            (b"3", SPECIAL, "odd.jpg (a device or a pipe)"),
            (b"6", SPECIAL, "odd.jpg (a device or a pipe)"),
            (b"M", SPECIAL, "odd.jpg (of type 'M')"),
            (b"Z", SPECIAL, "odd.jpg (of type 'Z')"),
        ],
    )
    def test_are_named(self, kind: bytes, problem: Kind, words: str) -> None:
        found = walked(member() + header(b"odd.jpg", 0, kind) + member(b"b.jpg") + END)
        assert (found.names, found.problems) == (["a.jpg", "b.jpg"], {problem: [words]})

    def test_contiguous_files_are_files(self) -> None:
        assert walked(member(kind=b"7") + member(b"b.jpg", kind=b"\0") + END).names == ["a.jpg", "b.jpg"]

    def test_sparse_files(self) -> None:
        found = walked(member() + member(b"s.jpg", b"x", b"S") + member(b"b.jpg") + END)
        assert found.problems == {SPECIAL: ["s.jpg (a sparse file)"]}
        records = record(b"GNU.sparse.major=1")
        found = walked(member(b"p", records, b"x") + member(b"s.jpg", b"x") + member(b"b.jpg") + END)
        assert (found.names, found.problems) == (["b.jpg"], {SPECIAL: ["s.jpg (a sparse file)"]})


class TestEnds:
    def test_none(self) -> None:
        found = walked(member())
        assert (found.names, found.ended, found.problems) == (["a.jpg"], False, {})

    def test_one_block_or_many(self) -> None:
        for blocks in (1, 2, 40, 5000):
            found = walked(member() + bytes(BLOCK * blocks))
            assert (found.names, found.ended, found.problems) == (["a.jpg"], True, {})

    def test_nothing_but_an_end(self) -> None:
        assert (walked(END).names, walked(END).ended) == ([], True)

    def test_an_empty_file(self) -> None:
        assert walked(b"").problems == {DAMAGED: ["an empty file, 0 bytes"]}

    def test_archives_one_after_the_other(self) -> None:
        found = walked(member() + END + member(b"b.jpg") + END)
        assert found.names == ["a.jpg"]
        assert found.problems == {AFTER_END: ["it ends at byte 1024, and goes on at byte 2048"]}
