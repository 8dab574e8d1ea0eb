"""Whether the end of a file is there, by the sizes that containers write down.

FFmpeg reads cut Matroska, AVI, GIF and fragmented MP4 files to their end without a word.
"""

import contextlib
import io
from typing import Any

from dew_media.video.container import VideoFile


def missing_end(file: VideoFile, kind: str) -> str | None:
    """Why the end of a file of the container `kind` (FFmpeg's name) is missing.

    None for a whole file, and where it cannot be told: MPEG streams have no size, live recordings an open one.
    """
    stream: Any = io.BytesIO(file) if isinstance(file, bytes) else file
    with open(file, "rb") if isinstance(file, str) else contextlib.nullcontext(stream) as stream:
        size = stream.seek(0, io.SEEK_END)
        declared = _ENDS[kind](stream, size) if kind in _ENDS else size
    return None if declared <= size else f"it should have {declared} bytes or more, {size} are there"


def _read(stream: Any, place: int, count: int) -> bytes:
    stream.seek(place)
    return stream.read(count)


def _riff_end(stream: Any, size: int) -> int:
    head = _read(stream, 0, 8)
    declared = int.from_bytes(head[4:8], "little")
    return declared + 8 if head[:4] == b"RIFF" and 0 < declared < 2**32 - 16 else size


def _boxes_end(stream: Any, size: int) -> int:
    """Where the last of an MP4 file's boxes ends; behind a fragment's index must come its data."""
    place, kind = 0, b""
    while place < size:
        head = _read(stream, place, 16)
        if len(head) < 8:
            return place + 8
        length = int.from_bytes(head[:4], "big")
        kind = head[4:8]
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if length < 8:
            return size  # 0: to the end of the file
        place += length
    return place + 8 * (kind == b"moof")


def _segment_end(stream: Any, size: int) -> int:
    """Where the one segment of a Matroska file ends, unless its writer left it open."""
    head = _read(stream, 0, 256)
    length, place = _number(head, 4)
    place += 0 if length is None else length
    if head[:4] != b"\x1aE\xdf\xa3" or length is None or head[place : place + 4] != b"\x18S\x80g":
        return size
    length, place = _number(head, place + 4)
    return size if length is None else place + length


def _number(data: bytes, place: int) -> tuple[int | None, int]:
    """A number as EBML writes it, and the place behind it; None for "unknown"."""
    if place >= len(data) or not data[place]:
        return None, place
    width = 9 - data[place].bit_length()
    raw = int.from_bytes(data[place : place + width], "big") & (1 << 7 * width) - 1
    return (None if raw == (1 << 7 * width) - 1 else raw), place + width


def _gif_end(stream: Any, size: int) -> int:
    """Where a GIF's end mark is, by walking over its blocks; a byte behind the file where there is none."""
    head = _read(stream, 0, 13)
    place = 13 + (3 << (head[10] & 7) + 1 if len(head) == 13 and head[10] & 0x80 else 0)
    while place < size:
        mark = _read(stream, place, 10)
        if mark[:1] == b";":
            return place + 1
        if mark[:1] == b"!":
            place += 2
        elif mark[:1] == b"," and len(mark) == 10:
            place += 11 + (3 << (mark[9] & 7) + 1 if mark[9] & 0x80 else 0)
        else:
            return size + 1
        stream.seek(place)
        while length := stream.read(1):
            place += 1 + length[0]
            if not length[0]:
                break
            stream.seek(place)
    return size + 1


_ENDS = {"gif": _gif_end, "avi": _riff_end, "matroska,webm": _segment_end, "mov,mp4,m4a,3gp,3g2,mj2": _boxes_end}
