"""The sound of a clip begins with its first frame, to within a sample."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dew.data.errors import OptionsError, OptionsTypeError, SourceError
from dew_media.video.audio import AudioOptions
from dew_media.video.clips import ClipPolicy
from dew_media.video.decode import OpenVideo
from dew_media.video.frames import read_table

SECONDS = 2
FILES = [
    ("clip.mp4", "libx264", "aac", 48_000),
    ("clip.mp4", "libx264", "aac", 44_100),
    ("clip.mkv", "libx264", "aac", 44_100),
    ("clip.webm", "libvpx-vp9", "libopus", 48_000),
    ("clip.mkv", "libx264", "pcm_s16le", 48_000),
    ("clip.avi", "mpeg4", "pcm_s16le", 48_000),
    ("clip.mp4", "libx264", "libmp3lame", 48_000),
    ("clip.mkv", "libx264", "flac", 44_100),
]


def chirp(times: Any) -> Any:
    """A tone that rises from 200 to 3000 Hz, so that no two places are alike."""
    return (0.6 * np.sin(2 * np.pi * (200 * times + 700 * times**2))).astype(np.float32)


def made(videos: Any, path: Any, *, rate: int = 48_000, **options: Any) -> Any:
    video = videos.Video(frames=25 * SECONDS, sound=lambda count: chirp(np.arange(count) / rate), sound_rate=rate)
    return videos.write_video(path, videos.attrs.evolve(video, **options))


def delay(sound: Any, start: float, rate: int) -> float:
    """By how many samples `sound` is later than the chirp from `start` on."""
    lags = np.arange(-3, 3.01, 0.25)
    times = start + np.arange(len(sound)) / rate
    scores = [float(np.dot(sound, chirp(times - lag / rate))) for lag in lags]
    return float(lags[int(np.argmax(scores))])


@pytest.mark.parametrize(("name", "codec", "sound_codec", "rate"), FILES)
def test_the_sound_is_aligned_to_within_a_sample(
    tmp_path: Any, videos: Any, name: str, codec: str, sound_codec: str, rate: int
) -> None:
    path = made(videos, tmp_path, name=name, codec=codec, sound_codec=sound_codec, rate=rate)
    table = read_table(str(path), name=name)
    policy = ClipPolicy(frames=10, fps=25)
    with OpenVideo(str(path), name=name) as video:
        for seed, asked in ((1, rate), (2, 16_000), (3, 22_050), (4, rate), (5, 16_000)):
            clip = policy.plan(table, name=name, rng=np.random.Generator(np.random.Philox(seed)))
            options = AudioOptions(rate=asked)
            sound = video.sound(table, clip, options.samples(policy), options)
            assert sound.shape == (round(0.4 * asked), 1)
            assert sound.dtype == np.float32
            start = float(clip.start * table.time_base)
            assert abs(delay(sound[:, 0], start, asked)) <= 1
            expected = chirp(start + np.arange(len(sound)) / asked)
            inner = slice(len(sound) // 8, -len(sound) // 8)
            assert np.corrcoef(sound[inner, 0], expected[inner])[0, 1] > 0.98


def test_frames_and_sound_of_one_clip_come_from_one_open_file(tmp_path: Any, videos: Any) -> None:
    from dew_media.geometry import Geometry

    path = made(videos, tmp_path, sound_first=True)
    table = read_table(str(path), name="clip")
    policy, options, whole = ClipPolicy(frames=5, fps=25), AudioOptions(), Geometry()
    with OpenVideo(str(path), name="clip") as video:
        for number in (40, 3, 20):
            clip = ClipPolicy(frames=5, fps=25).plan(
                table, name="clip", rng=np.random.Generator(np.random.Philox(number))
            )
            sound = video.sound(table, clip, options.samples(policy), options)
            pixels = video.clip(table, clip.times, geometry=whole, placement=whole.plan(*table.size(), None))
            assert [videos.number_in(image) for image in pixels] == clip.frames.tolist()
            assert abs(delay(sound[:, 0], float(clip.start * table.time_base), 16_000)) <= 1


def test_two_channels_and_mono_of_one_file(tmp_path: Any, videos: Any) -> None:
    path = made(videos, tmp_path)
    table = read_table(str(path), name="clip")
    policy = ClipPolicy(frames=10, fps=25)
    clip = policy.plan(table, name="clip")
    with OpenVideo(str(path), name="clip") as video:
        two = video.sound(table, clip, 6400, AudioOptions(channels=2))
        one = video.sound(table, clip, 6400, AudioOptions())
    assert two.shape == (6400, 2)
    assert np.allclose(two[:, 0], two[:, 1])
    assert np.corrcoef(two[:, 0], one[:, 0])[0, 1] > 0.999


def test_sound_that_starts_late_or_ends_early_is_silence_there(tmp_path: Any, videos: Any) -> None:
    # With the encoder's 1024 samples ahead of it, half a second: MP4 writes such delays in milliseconds.
    path = made(videos, tmp_path, sound_delay=24_000 + 1024, seconds_of_sound=1.0)
    begins = 25_024 / 48_000
    table = read_table(str(path), name="clip")
    policy, options = ClipPolicy(frames=50, fps=25), AudioOptions(rate=16_000)
    with OpenVideo(str(path), name="clip") as video:
        sound = video.sound(table, policy.plan(table, name="clip"), options.samples(policy), options)[:, 0]
    assert np.abs(sound[: 8_000 - 100]).max() < 0.02
    assert np.abs(sound[24_000 + 1200 :]).max() < 0.02
    assert abs(delay(sound[9_000:20_000], 9_000 / 16_000 - begins, 16_000)) <= 1


def test_a_looped_clip_has_looped_sound(tmp_path: Any, videos: Any) -> None:
    path = made(videos, tmp_path)
    table = read_table(str(path), name="clip")
    policy, options = ClipPolicy(frames=125, fps=25, short="loop"), AudioOptions(rate=16_000)
    with OpenVideo(str(path), name="clip") as video:
        sound = video.sound(table, policy.plan(table, name="clip"), options.samples(policy), options)[:, 0]
        held = ClipPolicy(frames=125, fps=25, short="repeat_last")
        silent = video.sound(table, held.plan(table, name="clip"), options.samples(held), options)[:, 0]
    assert sound.shape == (80_000,)
    assert np.allclose(sound[1000:31_000], sound[33_000:63_000], atol=0.01)
    assert np.abs(silent[32_000 + 1200 :]).max() < 0.02


def test_a_file_without_sound_is_refused_or_silent_as_asked(library: Any) -> None:
    path = library["h264"].path
    table = read_table(str(path), name="mute.mp4")
    assert table.sound is None
    clip = ClipPolicy(frames=5, fps=25).plan(table, name="mute.mp4")
    with OpenVideo(str(path), name="mute.mp4") as video:
        with pytest.raises(SourceError, match=r"mute\.mp4 has no sound .*\(missing='silence'\)"):
            video.sound(table, clip, 100, AudioOptions())
        silent = video.sound(table, clip, 100, AudioOptions(missing="silence", channels=2))
    assert silent.shape == (100, 2)
    assert not silent.any()


def test_how_many_samples_a_clip_has() -> None:
    assert AudioOptions(rate=16_000).samples(ClipPolicy(frames=16, fps=8)) == 32_000
    assert AudioOptions(rate=44_100).samples(ClipPolicy(frames=16, fps=Fraction(30_000, 1001))) == 23_544
    assert AudioOptions(seconds=0.5).samples(ClipPolicy(stride=2)) == 8_000
    with pytest.raises(OptionsError, match=r"with stride, clips of different files last .* AudioOptions\(seconds=\)"):
        AudioOptions().samples(ClipPolicy(stride=2))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rate": 0}, OptionsError, r"rate must be at least 1, got 0"),
        ({"channels": 3}, OptionsError, r"channels must be 1 or 2, got 3"),
        ({"seconds": 0}, OptionsError, r"seconds must be greater than 0, got 0"),
        ({"seconds": "1"}, OptionsTypeError, r"seconds must be a number, got '1'"),
        ({"missing": "zeros"}, OptionsError, r"missing must be one of 'error', 'silence', got 'zeros'"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        AudioOptions(**options)
