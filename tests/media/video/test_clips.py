"""Which frames make a clip, by stride and by time."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dew.data.errors import OptionsError, OptionsTypeError, SourceError
from dew_media.video.clips import ClipPolicy
from dew_media.video.frames import FrameTable, Orientation, read_table


def table_of(times: Any, *, end: int, time_base: Fraction = Fraction(1, 1000)) -> FrameTable:
    return FrameTable(
        codec="h264",
        header=0,
        width=64,
        height=48,
        aspect=Fraction(1),
        orientation=Orientation(),
        time_base=time_base,
        times=np.array(times, np.int64),
        end=end,
        packets=np.zeros((3, 0), np.int64),
    )


def draws(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


MILLISECONDS = [round(number * 1000 / 24) for number in range(24)]


def test_stride_takes_every_nth_stored_frame() -> None:
    table = table_of(range(0, 1000, 10), end=1000)
    clip = ClipPolicy(frames=4, stride=3).plan(table, name="f")
    assert np.diff(clip.frames).tolist() == [3, 3, 3]
    assert clip.times.tolist() == [int(frame) * 10 for frame in clip.frames]
    assert clip.start == clip.times[0]


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 8))
def test_a_drawn_clip_lies_within_the_file(seed: int, frames: int, stride: int) -> None:
    table = table_of(range(100), end=100)
    clip = ClipPolicy(frames=frames, stride=stride).plan(table, name="f", rng=draws(seed))
    assert 0 <= clip.frames[0] <= clip.frames[-1] < 100
    assert len(clip.frames) == frames


def test_every_start_is_drawn_the_first_and_the_last_too() -> None:
    table = table_of(range(10), end=10)
    policy = ClipPolicy(frames=4, stride=2)
    starts = {int(policy.plan(table, name="f", rng=draws(seed)).frames[0]) for seed in range(200)}
    assert starts == {0, 1, 2, 3}
    assert policy.starts(table) == 4


def test_one_word_is_drawn_whatever_the_policy() -> None:
    table = table_of(range(10), end=10)
    policies = ClipPolicy(frames=2), ClipPolicy(frames=20, short="loop"), ClipPolicy(frames=2, clips_per_video=3)
    left = []
    for policy in policies:
        rng = draws(3)
        policy.plan(table, name="f", rng=rng, number=1)
        left.append(rng.bit_generator.random_raw())
    assert len(set(left)) == 1


def test_without_chance_the_clip_in_the_middle_is_taken() -> None:
    table = table_of(range(11), end=11)
    assert ClipPolicy(frames=3).plan(table, name="f").frames.tolist() == [4, 5, 6]


def test_numbered_clips_are_spread_from_the_first_start_to_the_last() -> None:
    table = table_of(range(20), end=20)
    policy = ClipPolicy(frames=4, clips_per_video=3)
    clips = [policy.plan(table, name="f", number=number, rng=draws(9)).frames for number in range(3)]
    assert [clip[0] for clip in clips] == [0, 8, 16]
    assert clips[2][-1] == 19
    assert ClipPolicy(frames=4, clips_per_video=1).plan(table, name="f", number=0).frames[0] == 8
    with pytest.raises(OptionsError, match=r"clips are numbered 0 to 2, got 3"):
        policy.plan(table, name="f", number=3)


@pytest.mark.parametrize("kind", ["40 fps", "29.97 fps", "24 fps", "h264", "gif", "avi", "transport stream"])
def test_at_its_own_rate_a_file_gives_each_frame_once(library: Any, kind: str) -> None:
    made = library[kind]
    table = read_table(str(made.path), name=made.name)
    rate = {"40 fps": 40, "29.97 fps": 29.97, "24 fps": 24, "gif": 20}.get(kind, 25)
    policy = ClipPolicy(frames=20, fps=rate)
    for seed in range(30):
        assert np.diff(policy.plan(table, name="f", rng=draws(seed)).frames).tolist() == [1] * 19
    whole = ClipPolicy(frames=40, fps=rate)
    assert whole.starts(table) == 1
    assert whole.plan(table, name="f").frames.tolist() == list(range(40))


def test_fps_takes_the_frame_that_is_shown_at_each_time(library: Any) -> None:
    made = library["variable rate"]
    table = read_table(str(made.path), name=made.name)
    policy = ClipPolicy(frames=6, fps=8)
    for seed in range(30):
        clip = policy.plan(table, name="f", rng=draws(seed))
        for number, frame in enumerate(clip.frames):
            at = clip.start + Fraction(number, 8) / table.time_base
            shown = [place for place, time in enumerate(table.times) if time < at + 1]
            assert frame == shown[-1]


def test_times_are_rounded_up_only_where_the_file_rounded_them() -> None:
    rounded = table_of(MILLISECONDS, end=1000)
    assert rounded.rounded
    assert ClipPolicy(frames=24, fps=24).plan(rounded, name="f").frames.tolist() == list(range(24))
    exact = table_of(range(25), end=25, time_base=Fraction(1, 25))
    assert not exact.rounded
    # At 0.6 of a frame's time the frame before is still shown.
    assert ClipPolicy(frames=4, fps=Fraction(250, 6)).plan(exact, name="f").frames.tolist()[:4] == [11, 11, 12, 12]


def test_the_last_frame_counts_as_long_as_it_is_shown() -> None:
    table = table_of([0, 5000], end=10_000)
    policy = ClipPolicy(frames=8, fps=1)
    assert policy.starts(table) == 1
    assert policy.plan(table, name="f").frames.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert ClipPolicy(frames=11, fps=1).starts(table) == 0


def test_a_short_file_is_refused_held_or_begun_again() -> None:
    table = table_of([0, 40, 80], end=120)
    with pytest.raises(SourceError, match=r"f is too short: a clip is 5 frames, every 1. frame; the file has 3 frames"):
        ClipPolicy(frames=5).plan(table, name="f")
    with pytest.raises(SourceError, match=r"5 frames, 25 frames/s; the file has 3 frames in 0.120 s"):
        ClipPolicy(frames=5, fps=25).plan(table, name="f")
    held, looped = ClipPolicy(frames=5, short="repeat_last"), ClipPolicy(frames=5, short="loop")
    assert held.plan(table, name="f", rng=draws(0)).frames.tolist() == [0, 1, 2, 2, 2]
    assert looped.plan(table, name="f").frames.tolist() == [0, 1, 2, 0, 1]
    assert looped.plan(table, name="f").looped
    by_time = ClipPolicy(frames=8, fps=50, short="loop").plan(table, name="f")
    assert by_time.frames.tolist() == [0, 0, 1, 1, 2, 2, 0, 0]
    held_by_time = ClipPolicy(frames=8, fps=50, short="repeat_last").plan(table, name="f")
    assert held_by_time.frames.tolist() == [0, 0, 1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"frames": 0}, OptionsError, r"frames must be at least 1, got 0"),
        ({"stride": 2, "fps": 8}, OptionsError, r"give stride=2 .* or fps=8 .*, not both"),
        ({"fps": 0}, OptionsError, r"fps must be greater than 0, got 0"),
        ({"fps": "8"}, OptionsTypeError, r"fps must be a number of frames a second, got '8'"),
        ({"fps": float("nan")}, OptionsTypeError, r"fps must be a number of frames a second, got nan"),
        ({"short": "pad"}, OptionsError, r"short must be one of 'error', 'repeat_last', 'loop', got 'pad'"),
        ({"clips_per_video": 0}, OptionsError, r"clips_per_video must be at least 1, got 0"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        ClipPolicy(**options)


def test_the_identity_says_the_same_however_a_rate_is_written() -> None:
    assert ClipPolicy(fps=15).identity() == ClipPolicy(fps=15.0).identity() == ClipPolicy(fps=Fraction(15)).identity()
    assert ClipPolicy().identity() == ClipPolicy(stride=1).identity()
    assert ClipPolicy(fps=29.97).seconds == pytest.approx(16 / 29.97)
