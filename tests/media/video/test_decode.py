"""Every clip of every kind of file is exactly the frames that were asked for."""

import io
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dew.data.errors import DamagedSourceError, SourceError, SourceNotFoundError, StorageError
from dew_media.geometry import Geometry
from dew_media.video.clean import is_clean
from dew_media.video.clips import ClipPolicy
from dew_media.video.decode import OpenVideo
from dew_media.video.frames import FrameTable, read_table

WHOLE = Geometry()


def clip(video: OpenVideo, table: FrameTable, frames: Any, geometry: Geometry = WHOLE) -> Any:
    placement = geometry.plan(*table.size(), None)
    return video.clip(table, table.times[frames], geometry=geometry, placement=placement)


def test_the_table_holds_every_frame_once(made: Any) -> None:
    table = read_table(str(made.path), name=made.name)
    assert len(table) == len(made.numbers)
    assert np.all(np.diff(table.times) > 0)
    assert table.cut is None


def test_decoding_every_frame_changes_nothing_in_the_table(made: Any) -> None:
    assert (
        read_table(str(made.path), name=made.name, decode=True).digest()
        == read_table(made.path.read_bytes(), name=made.name).digest()
    )


def test_a_table_comes_back_from_its_parts(made: Any) -> None:
    table = read_table(str(made.path), name=made.name)
    again = FrameTable.from_parts(table.facts(), table.times, table.packets)
    assert again.digest() == table.digest()


def test_random_clips_are_the_frames_asked_for(made: Any, videos: Any) -> None:
    table = read_table(str(made.path), name=made.name)
    with OpenVideo(str(made.path), name=made.name) as video:
        first = video.container

        @settings(max_examples=12)
        @given(st.lists(st.integers(0, len(table) - 1), min_size=1, max_size=9))
        def check(frames: list[int]) -> None:
            numbers = [videos.number_in(image) for image in clip(video, table, frames)]
            assert numbers == [made.numbers[frame] for frame in frames]

        check()
        # No clip needed a second start, but for streams that cannot be sought.
        assert video.container is first or table.counted or made.kind in ("transport stream", "program stream")


@pytest.mark.nightly
def test_many_clips_of_every_policy_are_the_frames_asked_for(made: Any, videos: Any) -> None:
    table = read_table(str(made.path), name=made.name)
    rng = np.random.Generator(np.random.Philox(5))
    with OpenVideo(str(made.path), name=made.name) as video:
        for _ in range(150):
            stride = int(rng.integers(1, 12))
            policy = ClipPolicy(frames=int(rng.integers(1, 12)), stride=stride, short="loop")
            planned = policy.plan(table, name=made.name, rng=rng)
            pixels = video.clip(table, planned.times, geometry=WHOLE, placement=WHOLE.plan(*table.size(), None))
            assert [videos.number_in(image) for image in pixels] == [made.numbers[frame] for frame in planned.frames]


def test_bytes_a_path_and_a_file_object_give_the_same(library: Any) -> None:
    made = library["open gop mp4"]
    table = read_table(str(made.path), name="clip")
    sources = [str(made.path), made.path.read_bytes(), io.BytesIO(made.path.read_bytes()), made.path.open("rb")]
    clips = []
    for source in sources:
        with OpenVideo(source, name="clip") as video:
            clips.append(clip(video, table, [30, 9, 10, 11]))
    assert all(np.array_equal(other, clips[0]) for other in clips[1:])
    assert sources[3].closed  # pyright: ignore[reportAttributeAccessIssue]


def test_the_arrays_are_the_callers_own(library: Any) -> None:
    made = library["h264"]
    table = read_table(str(made.path), name="clip")
    with OpenVideo(str(made.path), name="clip") as video:
        one, other = clip(video, table, [3, 4]), clip(video, table, [3, 4])
    assert one.flags.c_contiguous
    assert one.flags.writeable
    one[:] = 0
    assert other.any()


def test_a_clip_is_scaled_cut_padded_and_mirrored_as_placed(library: Any, videos: Any) -> None:
    made = library["turned 90"]
    table = read_table(str(made.path), name="clip")
    assert table.size() == (48, 64)
    whole = Geometry(size=(128, 96))
    with OpenVideo(str(made.path), name="clip") as video:
        big = clip(video, table, [5, 6], whole)
        middle = clip(video, table, [5, 6], Geometry(size=(96, 96)))
        padded = clip(video, table, [5, 6], Geometry(size=(128, 128), fit="pad", background=(9, 8, 7)))
        geometry = Geometry(size=(128, 96), flip=1.0)
        placement = geometry.plan(*table.size(), np.random.Generator(np.random.Philox(0)))
        mirrored = video.clip(table, table.times[[5, 6]], geometry=geometry, placement=placement)
    assert [videos.number_in(image) for image in big] == [5, 6]
    assert np.array_equal(middle, big[:, 16:112])
    assert np.array_equal(padded[:, :, 16:112], big)
    assert (padded[:, :, :16] == (9, 8, 7)).all()
    assert np.array_equal(mirrored[:, :, ::-1], big)


def test_pixels_that_are_not_square_are_stretched_unless_told_otherwise(library: Any) -> None:
    table = read_table(str(library["wide pixels"].path), name="clip")
    assert table.aspect == Fraction(3, 2)
    assert table.size() == (96, 48)
    assert table.size(square_pixels=False) == (64, 48)


def test_what_is_no_video_is_refused_by_name(tmp_path: Any, videos: Any) -> None:
    sound = videos.write_sound_only(tmp_path)
    with pytest.raises(SourceError, match=r"sound\.m4a holds no video, only sound \(1 stream\)"):
        read_table(str(sound), name="sound.m4a")
    with pytest.raises(DamagedSourceError, match=r"a\.mp4 is empty \(0 bytes\)"):
        read_table(b"", name="a.mp4")
    with pytest.raises(DamagedSourceError, match=r"page\.mp4 is damaged, or is no video: .* Invalid data"):
        read_table(b"<html>not found</html>" * 40, name="page.mp4")
    with pytest.raises(SourceNotFoundError, match=r"gone\.mp4 does not exist"):
        read_table(str(tmp_path / "gone.mp4"), name="gone.mp4")


def test_a_picture_too_large_to_decode_is_refused_before_it_is(library: Any) -> None:
    data = bytearray(library["gif"].path.read_bytes())
    data[6:10] = struct.pack("<HH", 12_000, 12_000)
    with pytest.raises(DamagedSourceError, match=r"declares pictures of 12000 x 12000, more than 100,000,000 pixels"):
        read_table(bytes(data), name="bomb.gif")


class Failing(io.BytesIO):
    """A file whose storage fails once `broken` is set."""

    broken = False

    def read(self, size: int | None = -1, /) -> bytes:
        if self.broken:
            raise StorageError("the storage does not answer")
        return super().read(size)


def test_a_storage_that_fails_is_no_damage(library: Any) -> None:
    data = library["gif"].path.read_bytes()  # larger than what is read ahead
    file = Failing(data)
    file.broken = True
    with pytest.raises(StorageError, match="the storage does not answer"):
        read_table(file, name="clip")
    file.broken = False
    table = read_table(file, name="clip")
    with OpenVideo(file, name="clip") as video:
        clip(video, table, [3])
        file.broken = True
        with pytest.raises(StorageError, match="the storage does not answer"):
            clip(video, table, [39])


def test_a_recording_that_begins_within_a_group_of_pictures_begins_at_its_first_key_frame(
    library: Any, videos: Any, tmp_path: Any
) -> None:
    for kind, first in (("h264", 12), ("open gop mkv", 12), ("h265 mkv", 12), ("vp9", 12)):
        source = library[kind].path
        path = videos.copied(source, tmp_path / f"{kind}.mkv", without=range(5))
        table = read_table(str(path), name="clip", decode=True)
        assert len(table) == 40 - first
        with OpenVideo(str(path), name="clip") as video:
            numbers = [videos.number_in(image) for image in clip(video, table, np.arange(len(table)))]
        assert numbers == list(range(first, 40))


def test_a_clean_start_is_told_by_its_picture_in_both_ways_of_writing_h264(library: Any) -> None:
    header = b"\1\0\0\0\3"  # lengths of four bytes
    assert is_clean(b"\0\0\0\2\6\0" + b"\0\0\0\2\x65\0", header)
    assert not is_clean(b"\0\0\0\2\6\0" + b"\0\0\0\2\x41\0", header)
    assert is_clean(b"\0\0\0\1\x67\0\0\1\x65\0", None)
    assert not is_clean(b"\0\0\1\x67\0\0\1\x41\0", None)
    for kind in ("open gop mkv", "transport stream", "no times at all"):
        assert read_table(str(library[kind].path), name="clip").clean


def test_what_cannot_be_decoded_or_shown_is_refused(library: Any, videos: Any, tmp_path: Any) -> None:
    source = library["h264"].path
    unknown = source.read_bytes().replace(b"avc1", b"qqq1")
    with pytest.raises(SourceError, match=r"clip: this FFmpeg has no decoder for its video stream"):
        read_table(unknown, name="clip")
    hidden = videos.copied(source, tmp_path / "hidden.mp4", shift=-41 * 512)
    with pytest.raises(DamagedSourceError, match=r"clip holds no frame that can be decoded"):
        read_table(str(hidden), name="clip")


def test_a_playlist_opens_no_other_file(tmp_path: Any, library: Any) -> None:
    other = library["transport stream"].path
    lines = "#EXTM3U", "#EXT-X-TARGETDURATION:2", "#EXTINF:1.6,", f"file:{other}", "#EXT-X-ENDLIST", ""
    (tmp_path / "list.m3u8").write_text("\n".join(lines))
    with pytest.raises(DamagedSourceError, match="cannot be opened as a video"):
        read_table(str(tmp_path / "list.m3u8"), name="list.m3u8")


def test_a_time_that_is_no_frames_is_refused(library: Any) -> None:
    made = library["h264"]
    table = read_table(str(made.path), name="clip")
    with (
        OpenVideo(str(made.path), name="clip") as video,
        pytest.raises(SourceError, match=r"clip has no frame at tick 7 of 1/12800 s"),
    ):
        video.clip(table, np.array([7]), geometry=WHOLE, placement=WHOLE.plan(*table.size(), None))


def test_another_file_than_the_indexed_one_is_refused(library: Any) -> None:
    table = read_table(str(library["h264"].path), name="clip")
    with (
        OpenVideo(str(library["vp9"].path), name="clip") as video,
        pytest.raises(
            DamagedSourceError,
            match=r"clip was changed: it is vp9 in ticks of 1/1000 s .* was h264 in ticks of 1/12800 s",
        ),
    ):
        clip(video, table, [0])


def test_a_file_that_changes_its_picture_size_is_refused(tmp_path: Any, videos: Any) -> None:
    small = videos.write_video(tmp_path, videos.Video(name="small.h264", frames=10))
    large = videos.write_video(tmp_path, videos.Video(name="large.h264", frames=10, size=(96, 64)))
    both = small.read_bytes() + large.read_bytes()
    table = read_table(both, name="both.h264")
    with (
        OpenVideo(both, name="both.h264") as video,
        pytest.raises(SourceError, match=r"changes its picture size at 0\.480 s: 64 x 48 before, 96 x 64 there"),
    ):
        clip(video, table, [8, 12])
