"""Options together: a clear refusal, or the clip whose frame numbers, read from its pixels, are those asked for."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.media.video.conftest import IRREGULAR, MILLI, Video, beep, number_in, painted, write_video

from dew.data import DataPartition, Loading, VideoFolder, VideoOptions
from dew.data.errors import DewDataError, SourceError
from dew.data.order import draws_at
from dew_media.video.audio import AudioOptions
from dew_media.video.clips import ClipPolicy
from dew_media.video.opening import open_split
from dew_media.video.source import VideoSource

HERE = Loading(workers=0, threads=1, read_buffer=0)

FILES = (
    Video(name="b.mp4", bframes=3, frames=30, sound=beep),
    Video(name="irregular.mkv", bframes=2, times=IRREGULAR, time_base=MILLI),
    Video(name="short.webm", codec="libvpx-vp9", frames=5, rate=Fraction(10)),
    Video(name="turned.mov", rotation=90, frames=26, rate=Fraction(30000, 1001)),
    Video(name="wide.mp4", aspect=Fraction(3, 2), frames=40, gop=250),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mixed") / "clips"
    root.mkdir()
    for number, video in enumerate(FILES):
        path = write_video(root, video, painted(video))
        path.with_suffix(".txt").write_text(f"caption {number}")
    return root


def _or_none(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([None, *values])


clips = st.fixed_dictionaries(
    {"frames": st.integers(1, 9), "short": st.sampled_from(["error", "repeat_last", "loop"])},
    optional={
        "stride": _or_none(1, 2, 3, 7),
        "fps": _or_none(1, 5, 8, 12.5, 24, Fraction(30000, 1001), 60),
        "clips_per_video": _or_none(1, 2, 5),
        "aspect": st.sampled_from(["respect", "refuse", "ignore"]),
        "times": _or_none("when"),
        "captions": st.sampled_from(["keep", "drop", "require"]),
        "exclude": _or_none(["short.webm"], ["short.webm", "wide.mp4"], ["absent.mp4"]),
        "audio": _or_none(
            AudioOptions(), AudioOptions(missing="silence"), AudioOptions(seconds=0.5, missing="silence", channels=2)
        ),
    },
)
pictures = st.fixed_dictionaries(
    {},
    optional={
        "size": _or_none(16, 33, (24, 40), (41, 17), 200),
        "fit": _or_none("crop", "squash", "pad"),
        "crop": st.sampled_from(["center", "random"]),
        "resample": st.sampled_from(["box", "bilinear", "bicubic", "lanczos"]),
        "flip": st.sampled_from([0.0, 0.5, 1.0]),
        "upscale": st.booleans(),
        "background": st.sampled_from([(255, 255, 255), (3, 200, 5)]),
    },
)


def spelled(clip: np.ndarray) -> list[int]:
    return [number_in(frame) for frame in clip]


def opened(folder: Path, **options: Any) -> VideoSource:
    return open_split(str(folder), "train", VideoOptions(**options))


def check(folder: Path, clip: dict[str, Any], picture: dict[str, Any]) -> bool:
    """Whether these options can be used together; if so, that what they give is right."""
    try:
        source = opened(folder, **clip, **picture)
    except DewDataError:
        return False
    # The same clips as whole pictures, in which numbers can be read.
    whole = opened(folder, **clip, size=(48, 64), fit="squash")
    for index in range(len(source)):
        for rng in (None, 3):
            draws = [None if rng is None else draws_at(rng, index) for _ in range(3)]
            table, wanted = source.clip(index, draws[0])
            try:
                record = source[index] if draws[1] is None else source.drawn(index, draws[1])
            except SourceError as error:
                if picture.get("upscale", True) or "upscale" not in str(error):
                    raise
                continue
            shown = whole[index] if draws[2] is None else whole.drawn(index, draws[2])
            assert spelled(shown["video"]) == wanted.frames.tolist()
            _check_record(record, table, wanted, clip, picture)
    source.close()
    whole.close()
    return True


def _check_record(
    record: dict[str, Any], table: Any, wanted: Any, clip: dict[str, Any], picture: dict[str, Any]
) -> None:
    video, size = record["video"], picture.get("size")
    assert video.dtype == np.uint8
    width, height = table.size(square_pixels=clip.get("aspect") != "ignore")
    expected = (height, width) if size is None else (size, size) if isinstance(size, int) else size
    assert video.shape == (clip["frames"], *expected, 3)
    assert ("caption" in record) == (clip.get("captions") != "drop")
    if clip.get("times"):
        np.testing.assert_allclose(record["when"], table.seconds(table.times[wanted.frames]), atol=1e-5)
    if (audio := clip.get("audio")) is not None:
        assert record["audio"].shape[1] == audio.channels
        assert np.isfinite(record["audio"]).all()
    if picture.get("fit") == "squash" or size is None:
        read = spelled(video)
        mirrored = spelled(video[:, :, ::-1])
        assert wanted.frames.tolist() in ([read, mirrored] if picture.get("flip") else [read])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(clip=clips, picture=pictures)
def test_any_options_together(folder: Path, clip: dict[str, Any], picture: dict[str, Any]) -> None:
    event("read" if check(folder, clip, picture) else "refused")


@pytest.mark.nightly
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(clip=clips, picture=pictures)
def test_many_options_together(folder: Path, clip: dict[str, Any], picture: dict[str, Any]) -> None:
    event("read" if check(folder, clip, picture) else "refused")


@pytest.mark.parametrize(
    "policy",
    [
        *({"frames": frames, "stride": stride} for frames in (1, 5, 6, 31) for stride in (1, 3)),
        *({"frames": frames, "fps": fps} for frames in (1, 2, 5, 8) for fps in (1, 5, 10, Fraction(30000, 1001), 60)),
    ],
    ids=str,
)
def test_files_are_refused_before_a_run_exactly_where_no_clip_fits(folder: Path, policy: dict[str, Any]) -> None:
    loop = opened(folder, short="loop", **policy)
    fit = ClipPolicy(**policy)
    tables = [loop.clip(index)[0] for index in range(len(loop))]
    short = [loop.files.key(index) for index, table in enumerate(tables) if not fit.starts(table)]
    if short:
        with pytest.raises(SourceError, match=rf"too short .*: {len(short)} files?, {short[0]} \("):
            opened(folder, **policy)
    if len(short) < len(tables):
        assert len(opened(folder, exclude=short or None, **policy)) == len(tables) - len(short)


@pytest.mark.parametrize("options", [{"fps": 10}, {"stride": 2, "clips_per_video": 3}, {"size": None, "fit": None}])
def test_batches_of_them(folder: Path, options: dict[str, Any]) -> None:
    wanted: dict[str, Any] = {
        "frames": 4,
        "short": "loop",
        "size": (48, 64),
        "fit": "squash",
        "loading": HERE,
    } | options
    dataset = VideoFolder(folder, seed=1, **wanted).load(batch=3)
    stream: Any = dataset.train(DataPartition())
    with stream:
        if wanted["size"] is None:
            with pytest.raises(DewDataError, match=r"video.*shape"):
                list(stream)
            return
        for step in range(4):
            ids, batch = stream.ids(step).tolist(), next(stream)
            for row, record in enumerate(ids):
                place = 3 * step + row
                _, clip = stream.source.clip(record, draws_at(1, place))
                assert spelled(batch["video"][row]) == clip.frames.tolist()
