"""Damaged and cut files: the right frames, or an error that names the file; never others, never a hang."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dew.data.errors import DamagedSourceError, SourceError
from dew_media.geometry import Geometry
from dew_media.video.decode import OpenVideo
from dew_media.video.frames import FrameTable, read_table

WHOLE = Geometry()
CUT = (
    "b-frames",
    "fragments",
    "fast start",
    "open gop mkv",
    "h265 mkv",
    "vp9",
    "av1",
    "avi",
    "avi b-frames",
    "gif",
    "transport stream",
)


def clip(data: bytes, table: FrameTable, first: int, count: int, name: str = "clip.mp4") -> Any:
    with OpenVideo(data, name=name) as video:
        times = table.times[first : first + count]
        return video.clip(table, times, geometry=WHOLE, placement=WHOLE.plan(*table.size(), None))


class Good:
    """A file's bytes and every frame of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.table = read_table(data, name="clip.mp4")
        self.frames = clip(data, self.table, 0, len(self.table))
        self.place = {int(time): number for number, time in enumerate(self.table.times)}


@pytest.fixture(scope="module")
def good(library: Any, videos: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    known: dict[str, Good] = {}

    def of(kind: str) -> Good:
        if kind not in known:
            if kind == "fast start":
                video = videos.Video(bframes=3, muxer={"movflags": "faststart"})
                path = videos.write_video(tmp_path_factory.mktemp("fast"), video)
            else:
                path = library[kind].path
            known[kind] = Good(path.read_bytes())
        return known[kind]

    return of


def check_names(error: Exception, name: str) -> None:
    assert name in str(error)


def check_cut(whole: Good, size: int, place: float) -> None:
    part = whole.data[:size]
    try:
        table = read_table(part, name="cut.mp4")
    except SourceError as error:
        check_names(error, "cut.mp4")
        return
    for first in {0, int(place * (len(table) - 1)), len(table) - 1}:
        try:
            frames = clip(part, table, first, 3, "cut.mp4")
        except DamagedSourceError as error:
            check_names(error, "cut.mp4 is damaged at")
            continue
        for time, frame in zip(table.times[first : first + 3].tolist(), frames, strict=True):
            assert np.array_equal(frame, whole.frames[whole.place[time]])


def check_times(whole: Good, size: int, *, told: bool) -> None:
    """What is left of a cut file is its beginning, without gaps."""
    try:
        table = read_table(whole.data[:size], name="cut.mp4")
    except SourceError:
        return
    assert table.cut is not None or not told
    assert np.array_equal(table.times, whole.table.times[: len(table)])


@pytest.mark.parametrize("kind", CUT)
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True), place=st.floats(0, 1))
def test_a_file_cut_at_any_byte_gives_right_frames_or_an_error(
    good: Any, kind: str, share: float, place: float
) -> None:
    whole = good(kind)
    size = int(share * len(whole.data))
    check_cut(whole, size, place)
    if kind != "transport stream":  # its size is written down nowhere
        check_times(whole, size, told=kind != "fragments")  # which may end between two


@pytest.mark.nightly
@pytest.mark.parametrize("kind", CUT)
def test_a_file_cut_at_two_hundred_bytes(good: Any, kind: str) -> None:
    whole, rng = good(kind), random.Random(7)
    for _ in range(200):
        size = rng.randrange(len(whole.data))
        check_cut(whole, size, rng.random())
        if kind != "transport stream":
            check_times(whole, size, told=kind != "fragments")  # which may end between two


def damaged(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    start = rng.randrange(len(data))
    for place in range(start, min(len(data), start + rng.choice((1, 8, 100)))):
        changed[place] ^= rng.randrange(1, 256)
    return bytes(changed)


def check_damaged(whole: Good, rng: random.Random) -> int:
    changed, refused = damaged(whole.data, rng), 0
    for first in (0, len(whole.table) - 3, rng.randrange(len(whole.table))):
        try:
            frames = clip(changed, whole.table, first, 3)
        except SourceError as error:
            check_names(error, "clip.mp4")
            refused += 1
        else:
            assert np.array_equal(frames, whole.frames[first : first + 3])
    return refused


@pytest.mark.parametrize("kind", CUT)
def test_damage_since_a_file_was_indexed_is_always_noticed(good: Any, kind: str) -> None:
    rng = random.Random(11)
    assert sum(check_damaged(good(kind), rng) for _ in range(12)) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("kind", CUT)
def test_much_damage_since_a_file_was_indexed_is_always_noticed(good: Any, kind: str) -> None:
    rng = random.Random(13)
    assert sum(check_damaged(good(kind), rng) for _ in range(300)) > 0


@pytest.mark.parametrize(
    ("examples", "seed"), [(40, 1), pytest.param(4000, 2, marks=pytest.mark.nightly)], ids=["few", "many"]
)
def test_files_damaged_before_they_are_indexed_give_clips_or_errors_of_ours(
    good: Any, examples: int, seed: int
) -> None:
    rng, geometry = random.Random(seed), Geometry(size=32)
    for number in range(examples):
        changed = bytearray(good(CUT[number % len(CUT)]).data)
        for _ in range(rng.choice((1, 2, 5, 20))):
            # Mostly at both ends, where the headers are.
            near = rng.randrange(min(len(changed), 800))
            place = rng.choice((near, len(changed) - 1 - near, rng.randrange(len(changed))))
            changed[place : place + 4] = rng.choice((rng.randbytes(4), b"\xff\xff\xff\xff"))
        try:
            table = read_table(bytes(changed), name="clip.mp4", decode=number % 3 == 0)
            with OpenVideo(bytes(changed), name="clip.mp4") as video:
                placement = geometry.plan(*table.size(), None)
                video.clip(table, table.times[:3], geometry=geometry, placement=placement)
        except SourceError as error:
            check_names(error, "clip.mp4")


def test_damage_is_named_with_the_time(good: Any) -> None:
    whole = good("avi")
    changed = bytearray(whole.data)
    with OpenVideo(whole.data, name="clip.avi") as video:
        stream = video.container.streams.video[0]
        position = [packet.pos for packet in video.container.demux(stream) if packet.size][20]
    assert position is not None
    changed[position + 12] ^= 0xFF
    message = (
        r"clip\.avi is damaged at 0\.800 s: a packet differs from the one that was indexed; leave it out, or index"
    )
    with pytest.raises(DamagedSourceError, match=message):
        clip(bytes(changed), whole.table, 18, 5, "clip.avi")
    assert np.array_equal(clip(bytes(changed), whole.table, 0, 5, "clip.avi"), whole.frames[:5])


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (20, r"clip\.mkv is damaged at 0\.800 s: a packet differs from the one that was indexed"),
        (39, r"clip\.mkv is damaged at 1\.560 s: its frames end before"),
    ],
)
def test_a_packet_that_is_lost_is_noticed(library: Any, videos: Any, tmp_path: Any, lost: int, message: str) -> None:
    whole = videos.copied(library["h264"].path, tmp_path / "whole.mkv")
    other = videos.copied(library["h264"].path, tmp_path / "other.mkv", without={lost})
    table = read_table(str(whole), name="clip.mkv")
    with pytest.raises(DamagedSourceError, match=message):
        clip(other.read_bytes(), table, 18, 22, "clip.mkv")


def test_a_packet_that_came_after_is_noticed(library: Any, videos: Any, tmp_path: Any) -> None:
    short = videos.copied(library["b-frames"].path, tmp_path / "short.mkv", without={39})
    whole = videos.copied(library["b-frames"].path, tmp_path / "whole.mkv")
    table = read_table(str(short), name="clip.mkv")
    with pytest.raises(DamagedSourceError, match=r"clip\.mkv is damaged at .*: it has more packets than were indexed"):
        clip(whole.read_bytes(), table, 38, 1, "clip.mkv")


def test_damage_from_before_is_found_by_decoding_where_the_decoder_can_tell(good: Any) -> None:
    whole, rng = good("b-frames"), random.Random(3)
    start, end = whole.data.index(b"mdat") + 800, whole.data.index(b"moov") - 4
    refused = 0
    for _ in range(20):
        changed = bytearray(whole.data)
        place = rng.randrange(start, end - 40)
        changed[place : place + 40] = rng.randbytes(40)
        try:
            table = read_table(bytes(changed), name="clip.mp4", decode=True)
        except DamagedSourceError as error:
            check_names(error, "clip.mp4")
            refused += 1
        else:
            assert np.array_equal(clip(bytes(changed), table, 0, len(table)), whole.frames)
    assert refused > 10


def test_a_table_that_is_not_one_is_refused(good: Any) -> None:
    table = good("gif").table
    with pytest.raises(DamagedSourceError, match=r"not a frame table: KeyError\('codec'\).* index the file again"):
        FrameTable.from_parts({}, table.times, table.packets)
