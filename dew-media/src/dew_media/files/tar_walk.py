"""The headers of a tar archive, walked without reading what lies between them.

A tar has no table of contents: every member is found by adding up the sizes of those before it. Formats read are ustar,
GNU long names and pax; whatever else a header says is named and left out, and the walk ends where it cannot be trusted.
"""

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn, TypeAlias

import attrs
import numpy as np

from dew_media.files.problems import Kind

BLOCK: Final = 512
LONGEST_NAME: Final = 1 << 20
"""Bytes of the longest extended header; a bigger one is taken for damage."""

TRUNCATED: Final = Kind("truncated member", "truncated members")
DAMAGED: Final = Kind("damaged header", "damaged headers")
LINK: Final = Kind("link in the place of a file", "links in the place of files")
SPECIAL: Final = Kind("member of a kind that holds no file", "members of kinds that hold no file")
OUTSIDE: Final = Kind("name that leads out of the archive", "names that lead out of the archive")
AFTER_END: Final = Kind("archive with more after its end", "archives with more after their end")
NOT_UTF8: Final = Kind("member whose name is not UTF-8", "members whose names are not UTF-8")

Read = Callable[[int, int], bytes]
"""`read(start, stop)`: exactly these bytes of the archive, fewer only where it ends."""

_ZEROS: Final = bytes(BLOCK)
_PIECE: Final = 1 << 20
_AHEAD: Final = 8 * BLOCK  # a header, and small members after it
_CHECKED: Final = 4096  # headers whose checksums are added up at once
_REGULAR: Final = frozenset(b"07\0")
_LINKS: Final = frozenset(b"12")
_OCTAL: Final = 8 ** np.arange(5, -1, -1)
_COMMON: Final = re.compile(rb".{124}[0-7]{11}[\0 ].{209}\0", re.DOTALL).match  # a size in full, and no prefix
_ODD: Final = re.compile(rb"(?:\A|[/\0])(?:[./\0]|\Z)|\n")  # an empty part or one with a dot in front
_USTAR: Final = b"ustar\x0000"
_RECORD: Final = re.compile(rb"(\d{1,20}) ([^=]+)=")
_TELLING: Final = re.compile(rb"path=|size=|GNU\.sparse")


@attrs.define
class Members:
    """The regular files of one archive, and what is wrong with it.

    Attributes:
        names: as stored, `./` in front taken off.
        offsets, sizes: of each file's bytes.
        headers: CRC-32 of the block in front of each, which tells another archive of the same size.
        problems: kind -> names.
        ended: whether the archive has its end mark.
    """

    names: list[str] = attrs.field(factory=list[str])
    offsets: list[int] = attrs.field(factory=list[int])
    sizes: list[int] = attrs.field(factory=list[int])
    headers: list[int] = attrs.field(factory=list[int])
    problems: dict[Kind, list[str]] = attrs.field(factory=dict[Kind, list[str]])
    ended: bool = False


def walk(read: Read, size: int) -> Members:
    """The members of an archive of `size` bytes."""
    walked = _Walk(read, size)
    walked.run()
    return walked.found


_Held: TypeAlias = tuple[bytes, int, int]
"""A header whose checksum was not added up yet, its place, and how many problems were known before it."""

_Row: TypeAlias = tuple[int, bytes, int, int]
"""A member: the number of its header among those held, its name, where it begins, and its size."""


class _StopWalk(Exception):
    """What follows cannot be trusted."""


class _Walk:
    """One walk through one archive."""

    def __init__(self, read: Read, size: int) -> None:
        self._read, self._size = read, size
        self.found = Members()
        self._held: list[_Held] = []
        self._rows: list[_Row] = []
        self._problems: list[tuple[Kind, str]] = []
        self._extended: dict[str, bytes] = {}  # what headers in front of the next member say of it
        self._global: dict[str, bytes] = {}

    def run(self) -> None:
        """Walks to the end, or to where the archive is damaged."""
        if not self._size:
            self.found.problems[DAMAGED] = ["an empty file, 0 bytes"]
            return
        try:
            at = self._members()
            self._check()
            if self._extended:
                self._problem(TRUNCATED, f"the member that a header announces at byte {at}")
        except _StopWalk:
            pass
        for kind, name in self._problems:
            self.found.problems.setdefault(kind, []).append(name)

    def _members(self) -> int:
        at, base, chunk = 0, 0, b""
        size, held, rows = self._size, self._held, self._rows
        while at < size:
            first = at - base
            if first + BLOCK > len(chunk):
                chunk, base, first = self._read(at, min(at + _AHEAD, size)), at, 0
            header = chunk[first : first + BLOCK]
            if len(header) < BLOCK and at == 0:
                self._stop(DAMAGED, f"at byte 0, {_what_it_is(header, 0)}")
            if len(header) < BLOCK:
                self._stop(TRUNCATED, f"a header cut after {len(header)} of {BLOCK} bytes at byte {at}")
            if header == _ZEROS:
                self._check()
                self._end(at)
                return at
            held.append((header, at, len(self._problems)))
            name = header[:100].partition(b"\0")[0]
            # Nearly every header is of this kind, and this is the loop that the time goes to.
            if (
                header[156] in _REGULAR
                and _COMMON(header)
                and name[-1:] != b"/"
                and not (self._extended or self._global)
            ):
                start = at + BLOCK
                length = int(header[124:135], 8)
                if start + length > size:
                    self._truncated(name, start, length)
                rows.append((len(held) - 1, name, start, length))
                at = start + length + -length % BLOCK
            else:
                at = self._member(header, at, chunk[first + BLOCK :])
            if len(held) >= _CHECKED:
                self._check()
        return at

    def _member(self, header: bytes, at: int, after: bytes) -> int:
        """Notes the member whose header is at `at`; returns where the next header is."""
        start, kind = at + BLOCK, header[156]
        length = self._number(header, at)
        if length < 0:
            self._damaged(at, f"a size of {length}")
        if kind in b"LKxXg":
            return self._extension(chr(kind), start, length, after, at)
        name = self._extended.get("path") or self._global.get("path") or self._name(header)
        length = self._stated_size(length, at)
        sparse = any(key.startswith("GNU.sparse") for key in self._extended)
        self._extended = {}
        if kind not in _REGULAR or sparse or (name.endswith(b"/") and kind != 0x37):
            return self._irregular(chr(kind), name, sparse, start, length)
        if start + length > self._size:
            self._truncated(name, start, length)
        self._rows.append((len(self._held) - 1, name, start, length))
        return start + length + -length % BLOCK

    def _note(self, rows: list[_Row], held: list[_Held]) -> None:
        """Members whose headers are good."""
        found, names = self.found, [row[1] for row in rows]
        joined = b"\0".join(names)
        texts: Sequence[str | None]
        if not joined.isascii() or _ODD.search(joined) or joined.count(b"\0") + 1 != len(names):
            texts = [self._text(name) for name in names]
        else:
            texts = joined.decode().split("\0")
        for text, (number, _, start, length) in zip(texts, rows, strict=True):
            if text is not None:
                found.names.append(text)
                found.offsets.append(start)
                found.sizes.append(length)
                found.headers.append(zlib.crc32(held[number][0]))

    def _text(self, name: bytes) -> str | None:
        """A name without empty parts and `.`; None, and a problem, where it is none."""
        try:
            text = name.decode()
        except UnicodeDecodeError:
            self._problem(NOT_UTF8, ascii(name))
            return None
        parts = text.split("/")
        plain = "/".join(part for part in parts if part not in ("", "."))
        if text.startswith("/") or ".." in parts or "\0" in text or "\n" in text or not plain:
            self._problem(OUTSIDE, text)
            return None
        return plain

    def _irregular(self, kind: str, name: bytes, sparse: bool, start: int, length: int) -> int:
        text = name.decode(errors="backslashreplace")
        if sparse or kind == "S":
            self._problem(SPECIAL, f"{text} (a sparse file)")
            if kind == "S":  # its map may go on in blocks that no size tells
                raise _StopWalk
        elif ord(kind) in _LINKS:
            self._problem(LINK, text)
            return start
        elif kind in "5D" or name.endswith(b"/"):
            return start if kind != "D" else start + length + -length % BLOCK
        elif kind in "346":
            self._problem(SPECIAL, f"{text} (a device or a pipe)")
            return start
        elif kind != "V":
            self._problem(SPECIAL, f"{text} (of type {kind!a})")
        return start + length + -length % BLOCK

    def _extension(self, kind: str, start: int, length: int, after: bytes, at: int) -> int:
        if length > LONGEST_NAME:
            self._stop(DAMAGED, f"an extended header of {length} bytes at byte {at}")
        data = after[:length] if length <= len(after) else self._read(start, min(start + length, self._size))
        if len(data) < length:
            self._stop(TRUNCATED, f"an extended header at byte {at}, of which {length - len(data)} bytes are missing")
        if kind == "L":
            self._extended["path"] = data.partition(b"\0")[0]
        elif kind in "xXg" and _TELLING.search(data):
            records = _pax_records(data)
            if records is None:
                self._stop(DAMAGED, f"an extended header at byte {at}")
            (self._global if kind == "g" else self._extended).update(records)
        elif kind in "xX":
            self._extended.setdefault("", b"")  # a member must follow
        return start + length + -length % BLOCK

    def _stated_size(self, length: int, at: int) -> int:
        stated = self._extended.get("size") or self._global.get("size")
        if stated is None:
            return length
        if not stated.isdigit() or len(stated) > 19:
            self._stop(DAMAGED, f"a size of {stated[:20]!r} at byte {at}")
        return int(stated)

    def _name(self, header: bytes) -> bytes:
        name = header[:100].partition(b"\0")[0]
        if header[345] and header[257:265] == _USTAR:
            return header[345:500].partition(b"\0")[0] + b"/" + name
        return name

    def _number(self, header: bytes, at: int) -> int:
        """A size that is not eleven octal digits: shorter, padded in another way, or binary."""
        field = header[124:136]
        if field[0] in (0x80, 0xFF):
            value = int.from_bytes(field[1:], "big")
            return value if field[0] == 0x80 else value - (1 << 88)
        try:
            return int(field.partition(b"\0")[0].strip() or b"0", 8)
        except ValueError:
            self._damaged(at, f"a size of {field!r}")

    def _check(self) -> None:
        """Adds up the headers since the last time, notes their members, and takes back what followed a wrong one."""
        held, rows = list(self._held), list(self._rows)
        self._held.clear()
        self._rows.clear()
        if not held:
            return
        blocks = np.frombuffer(b"".join([header for header, _, _ in held]), np.uint8).reshape(-1, BLOCK)
        fields = blocks[:, 148:156].astype(np.int64)
        sums = blocks.sum(1, dtype=np.int64) - fields.sum(1) + 8 * 32
        digits = fields[:, :6] - ord("0")
        usual = (digits >= 0).all(1) & (digits < 8).all(1) & (fields[:, 6] == 0)
        doubtful = np.flatnonzero(~usual | (digits @ _OCTAL != sums)).tolist()
        wrong = next((one for one in doubtful if not _fits(held[one][0], int(sums[one]))), None)
        if wrong is None:
            self._note(rows, held)
            return
        header, at, problems = held[wrong]
        del self._problems[problems:]
        self._note([row for row in rows if row[0] < wrong], held)
        self._stop(DAMAGED, f"at byte {at}, {_what_it_is(header, at)}")

    def _damaged(self, at: int, what: str) -> NoReturn:
        self._stop(DAMAGED, f"at byte {at}, {what}")

    def _truncated(self, name: bytes, start: int, length: int) -> NoReturn:
        lost = start + length - self._size
        text = name.decode(errors="backslashreplace")
        self._stop(TRUNCATED, f"{text} at byte {start}, of which {lost} of {length} bytes are missing")

    def _end(self, at: int) -> None:
        self.found.ended = True
        for first in range(at, self._size, _PIECE):
            piece = self._read(first, min(first + _PIECE, self._size))
            rest = piece.lstrip(b"\0")
            if rest:
                where = first + len(piece) - len(rest)
                self._problem(AFTER_END, f"it ends at byte {at}, and goes on at byte {where}")
                return

    def _problem(self, kind: Kind, name: str) -> None:
        self._problems.append((kind, name))

    def _stop(self, kind: Kind, name: str) -> NoReturn:
        self._check()  # an earlier header may be the one that led here
        self._problem(kind, name)
        raise _StopWalk


def _checksum(header: bytes) -> int:
    try:
        return int(header[148:156].partition(b"\0")[0].strip(), 8)
    except ValueError:
        return -1


def _fits(header: bytes, total: int) -> bool:
    """Whether a header's checksum is `total`, or that of old writers, who added up bytes as signed numbers."""
    stated = _checksum(header)
    if stated == total:
        return True
    values = np.frombuffer(header, np.int8)
    return stated == int(values.sum(dtype=np.int64) - values[148:156].sum(dtype=np.int64)) + 8 * 32


def _what_it_is(header: bytes, at: int) -> str:
    if at == 0:
        if header.startswith(b"\x1f\x8b"):
            return "this is gzip and not tar: decompress it, since it has no random access"
        if header.startswith((b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")):
            return "this is compressed and not tar: decompress it, since it has no random access"
        return f"this is no tar: it begins with {header[:12]!r}"
    return "its checksum is wrong"


def _pax_records(data: bytes) -> Mapping[str, bytes] | None:
    """Keyword -> value; None where they are damaged."""
    records: dict[str, bytes] = {}
    at = 0
    while at < len(data) and data[at]:
        found = _RECORD.match(data, at)
        if found is None:
            return None
        end = at + int(found[1])
        if end > len(data) or end <= found.end() or data[end - 1] != 0x0A:
            return None
        records[found[2].decode(errors="replace")] = data[found.end() : end - 1]
        at = end
    return records
