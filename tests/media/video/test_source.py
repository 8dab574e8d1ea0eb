"""Clips as records: the layouts, the index, what is refused before a run, and the same clips on any topology."""

import pickle
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.media.video.conftest import Video, beep, number_in, write_sound_only, write_video

import dew.cli
from dew.data import (
    DataPartition,
    Dataset,
    Loading,
    OptionsError,
    PositionMismatchError,
    SourceError,
    SplitError,
    VideoFolder,
    VideoOptions,
    load,
)
from dew.data.errors import DamagedSourceError, OptionsTypeError
from dew.data.order import draws_at
from dew.data.source import RecordSource
from dew.testing import ProviderSuite, SourceSuite, StreamSuite
from dew_media.video.audio import AudioOptions
from dew_media.video.opening import open_split
from dew_media.video.source import VideoSource

FILES = 7
SILENCE = AudioOptions(rate=8000, missing="silence")
HERE = Loading(workers=0, threads=1, read_buffer=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven videos of 24 to 30 frames in two classes, with captions."""
    root = tmp_path_factory.mktemp("videos") / "clips"
    for number in range(FILES):
        below = root / ("walk" if number % 2 else "run")
        below.mkdir(parents=True, exist_ok=True)
        write_video(below, Video(name=f"{number}.mp4", frames=24 + number, bframes=number % 3))
        (below / f"{number}.txt").write_text(f"video {number}")
    return root


@pytest.fixture(scope="module")
def tar(folder: Path) -> Path:
    import tarfile

    path = folder.parent / "shard.tar"
    with tarfile.open(path, "w") as made:
        for file in sorted(folder.rglob("*.*")):
            made.add(file, arcname=file.name)
    return path


@pytest.fixture(scope="module")
def indexed(folder: Path) -> Path:
    """The same videos with an index beside them."""
    root = folder.parent / "indexed"
    shutil.copytree(folder, root)
    assert dew.cli.main(["video", "index", str(root), "--json"]) == 0
    return root


@pytest.fixture(scope="module")
def splits(folder: Path) -> Path:
    """Five to train on, and two of other content to validate on."""
    root = folder.parent / "splits"
    for name, numbers in (("train", (0, 2, 4, 6, 1)), ("val", (3, 5))):
        (root / name).mkdir(parents=True)
        for number in numbers:
            shutil.copy(next(folder.rglob(f"{number}.mp4")), root / name)
            (root / name / f"{number}.txt").write_text(f"video {number}")
    return root


def opened(path: Path, **options: Any) -> VideoSource:
    wanted: dict[str, Any] = {"frames": 4, "size": 32, "fit": "squash"} | options
    return open_split(str(path), "train", VideoOptions(**wanted))


def numbers(clip: np.ndarray) -> list[int]:
    return [number_in(frame) for frame in clip]


class TestFolder(SourceSuite):
    largest_pickle = None  # without an index the tables travel with the source

    @pytest.fixture(autouse=True)
    def _stored(self, folder: Path) -> None:
        self.path, self.location = folder, str(folder.parent)

    def make_source(self) -> RecordSource:
        return opened(self.path, stride=2)


class TestTar(SourceSuite):
    largest_pickle = None

    @pytest.fixture(autouse=True)
    def _stored(self, tar: Path) -> None:
        self.path, self.location = tar, str(tar.parent)

    def make_source(self) -> RecordSource:
        return opened(self.path, stride=2)


class TestClipsPerVideo(SourceSuite):
    """With an index, so that it pickles by path."""

    largest_pickle = 4_000

    @pytest.fixture(autouse=True)
    def _stored(self, indexed: Path) -> None:
        self.path, self.location = indexed, str(indexed.parent)

    def make_source(self) -> RecordSource:
        return opened(self.path, clips_per_video=2, fps=12.5, audio=AudioOptions(rate=8000, missing="silence"))


class TestStream(StreamSuite):
    @pytest.fixture(autouse=True)
    def _stored(self, splits: Path) -> None:
        self.path = splits

    steps = 4
    largest_count = 2
    workers = 1

    def make_dataset(self, seed: int = 0, loading: Loading = HERE) -> Dataset:
        wanted: dict[str, Any] = {"frames": 3, "size": 16, "crop": "random", "flip": 0.5, "val_split": "validation"}
        return VideoFolder(self.path, seed=seed, loading=loading, **wanted).load(batch=4)


class TestProvider(ProviderSuite):
    """By name, from an index, with sound, several clips a file, and a validation split."""

    batch = 4
    splits = ("train", "val")
    steps = 3
    largest_count = 2
    largest_pickle = 4_000

    @pytest.fixture(autouse=True)
    def _stored(self, splits: Path) -> None:
        for split in ("train", "val"):
            if not (splits / f"dew-video-{split}.index").exists():
                assert dew.cli.main(["video", "index", str(splits), "--split", split, "--json"]) == 0
        self.source, self.location = f"video/{splits}", str(splits.parent)

    def arguments(self) -> dict[str, Any]:
        options = VideoOptions(frames=3, size=16, fps=10, crop="random", clips_per_video=2, audio=SILENCE, times="when")
        return {"options": options, "val_split": "val"}


def test_a_record_is_a_clip_with_its_label_and_caption(folder: Path) -> None:
    source = opened(folder, stride=2, times="when")
    assert len(source) == FILES
    assert source.label_names == ("run", "walk")
    for index in range(FILES):
        record = source[index]
        table, clip = source.clip(index)
        assert record["video"].shape == (4, 32, 32, 3)
        assert numbers(record["video"]) == clip.frames.tolist()
        assert clip.frames[0] == (len(table) - 6 - 1) // 2  # the middle one of all starts
        assert np.diff(clip.frames).tolist() == [2, 2, 2]
        np.testing.assert_allclose(record["when"], clip.frames / 25, atol=1e-6)
        key = source.files.key(index)
        assert record["caption"] == f"video {Path(key).stem}"
        assert record["label"] == (key.startswith("walk"))


def test_a_tar_shard_holds_the_same_clips(folder: Path, tar: Path) -> None:
    loose, packed = opened(folder, stride=3), opened(tar, stride=3)
    by_stem = {Path(loose.files.key(index)).stem: loose[index]["video"] for index in range(FILES)}
    for index in range(FILES):
        stem = packed.files.key(index).rpartition("/")[2]
        np.testing.assert_array_equal(packed[index]["video"], by_stem[stem])


def test_training_draws_the_start_and_one_crop_a_clip(folder: Path) -> None:
    source = opened(folder, frames=6, size=24, fit="crop", crop="random")
    starts = set()
    for place in range(40):
        record = source.drawn(place % FILES, draws_at(5, place))
        _, clip = source.clip(place % FILES, draws_at(5, place))
        starts.add(int(clip.frames[0]))
        np.testing.assert_array_equal(record["video"], source.drawn(place % FILES, draws_at(5, place))["video"])
    assert len(starts) > 10


def test_several_clips_of_each_file_are_records_of_their_own(folder: Path) -> None:
    source = opened(folder, frames=5, clips_per_video=3)
    assert len(source) == 3 * FILES
    firsts = [int(source.clip(index)[1].frames[0]) for index in range(3)]
    table = source.clip(0)[0]
    assert firsts == [0, (len(table) - 5) // 2, len(table) - 5]
    assert numbers(source[2]["video"]) == list(range(len(table) - 5, len(table)))


@pytest.mark.parametrize(
    "loading", [HERE, Loading(workers=0, threads=3), Loading(workers=2)], ids=["here", "threads", "workers"]
)
def test_any_topology_reads_the_same_clips(folder: Path, loading: Loading) -> None:
    def steps(count: int, index: int, loading: Loading) -> list[dict[str, np.ndarray]]:
        made = VideoFolder(folder, frames=3, size=16, crop="random", flip=0.5, seed=9, loading=loading).load(batch=4)
        with made.train(DataPartition(index, count)) as stream:  # type: ignore[attr-defined]
            return [next(stream) for _ in range(3)]

    whole = steps(1, 0, HERE)
    for index in range(2):
        for ours, theirs in zip(steps(2, index, loading), whole, strict=True):
            np.testing.assert_array_equal(ours["video"], theirs["video"][index::2])
            assert ours["caption"].tolist() == theirs["caption"][index::2].tolist()


def test_by_name_and_as_a_value_are_one(folder: Path) -> None:
    by_name = load(f"video/{folder}", batch=3, options=VideoOptions(frames=3, size=16, fps=10), seed=2)
    as_value = VideoFolder(folder, frames=3, size=16, fps=10, seed=2).load(batch=3)
    for dataset in (by_name, as_value):
        with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
            batch = next(stream)
        assert batch["video"].shape == (3, 3, 16, 16, 3)
    with by_name.train(DataPartition()) as one, as_value.train(DataPartition()) as other:  # type: ignore[attr-defined]
        assert one.get_state() == other.get_state()


def test_splits_are_directories(splits: Path) -> None:
    dataset = VideoFolder(splits, frames=4, size=16, val_split="val", loading=HERE).load(batch=4)
    assert dataset.records == 5
    assert dataset.val is not None
    valid = [batch["valid"].tolist() for batch in dataset.val(DataPartition())]
    assert valid == [[True, True, False, False]]
    with pytest.raises(SplitError, match=r"'test'.*train.*val"):
        VideoFolder(splits, frames=4, split="test").load(batch=2)


def test_each_split_has_an_index_of_its_own(splits: Path, tmp_path: Path) -> None:
    root = tmp_path / "splits"
    shutil.copytree(splits, root)
    for split in ("train", "validation"):
        assert dew.cli.main(["video", "index", str(root), "--split", split, "--json"]) == 0
    assert sorted(path.name for path in root.glob("*.index")) == ["dew-video-train.index", "dew-video-val.index"]
    for split, count in (("train", 5), ("val", 2), ("validation", 2), ("valid", 2)):
        source = open_split(str(root), split, VideoOptions(frames=4, size=16))
        assert (len(source), len(pickle.dumps(source)) < 4_000) == (count, True)


def test_captions_change_without_a_new_index(indexed: Path, tmp_path: Path) -> None:
    root = tmp_path / "clips"
    shutil.copytree(indexed, root)
    before = opened(root)
    (root / "run/0.txt").write_text("another and longer caption")
    after = opened(root)
    assert after.fingerprint() != before.fingerprint()
    assert after[0]["caption"] == "another and longer caption"
    for options in ({"captions": "drop"}, {"labels": "none"}, {"captions": "sidecars", "missing": "drop"}):
        assert len(pickle.dumps(opened(root, **options))) < 4_000, options
    (root / "run/2.txt").unlink()
    with pytest.raises(SourceError, match=r"1 file without a caption: 'run/2.mp4'"):
        opened(root)
    assert len(opened(root, missing="drop")) == FILES - 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stride": 2}, r"another clips.*stride"),
        ({"size": 17}, r"another pixels"),
        ({"aspect": "ignore"}, r"another pixels.*aspect"),
        ({"audio": AudioOptions(seconds=0.1, missing="silence")}, r"another audio"),
        ({"captions": "drop"}, r"captioned"),
        ({"exclude": ["run/0.mp4"]}, r"records|fingerprint"),
    ],
)
def test_positions_of_other_clips_are_refused(indexed: Path, change: dict[str, Any], message: str) -> None:
    def stream(**options: Any) -> Any:
        wanted: dict[str, Any] = {"frames": 3, "size": 16, "loading": HERE} | options
        return VideoFolder(indexed, seed=1, **wanted).load(batch=3).train(DataPartition())

    with stream() as one, stream(**change) as other, pytest.raises(PositionMismatchError, match=message):
        other.set_state(one.get_state())


def test_positions_of_videos_encoded_again_are_refused(indexed: Path, tmp_path: Path) -> None:
    """Of the same names and sizes: packets are compared, not only names."""
    root = tmp_path / "clips"
    shutil.copytree(indexed, root)
    (root / "dew-video-train.index").unlink()
    with VideoFolder(indexed, frames=3, size=16, loading=HERE).load(batch=3).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        state = stream.get_state()
    path = root / "run/0.mp4"
    data = bytearray(path.read_bytes())
    data[data.index(b"mdat") + 900] ^= 1
    path.write_bytes(data)
    other: Any = VideoFolder(root, frames=3, size=16, loading=HERE).load(batch=3).train(DataPartition())
    with other, pytest.raises(PositionMismatchError, match="fingerprint"):
        other.set_state(state)


@pytest.mark.parametrize(
    ("rate", "name"),
    [(Fraction(40), "forty.mp4"), (Fraction(30000, 1001), "ntsc.mp4"), (Fraction(24), "film.mkv")],
    ids=["40", "29.97", "24"],
)
def test_constant_rates_are_read_and_sampled_by_frame_times(tmp_path: Path, rate: Fraction, name: str) -> None:
    """Case E11: no rate is refused, and times are those of frames, not an index times a mean rate."""
    write_video(tmp_path, Video(name=name, rate=rate, frames=40, bframes=2))
    source = opened(tmp_path, frames=9, fps=4, times="when", short="repeat_last")
    record = source[0]
    first = int(source.clip(0)[1].frames[0])
    # The frame that is shown at first / rate + k / 4 seconds is the last that began before, in exact arithmetic.
    exact = [int((Fraction(first) / rate + Fraction(k, 4)) * rate) for k in range(9)]
    assert numbers(record["video"]) == [min(frame, 39) for frame in exact]
    shown = [float(min(frame, 39) / rate) for frame in exact]
    np.testing.assert_allclose(record["when"], shown, atol=0.6e-3)


def test_statistics_are_read_from_the_index(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = opened(folder).statistics()
    assert found["videos"] == {"in the collection": FILES, "looked at": FILES}
    assert found["width x height"] == {"64 x 48": FILES}
    assert found["frames a second"] == {"25": FILES}
    assert found["seconds"] == {"under 1": 1, "1 to 2": FILES - 1}
    assert found["sound"] == {"none": FILES}
    assert found["label"] == {"run": 4, "walk": 3}
    write_video(tmp_path, Video(name="a.mkv", times=[0, 20, 90, 91], time_base=Fraction(1, 1000), frames=4, sound=beep))
    uneven = opened(tmp_path, frames=1).statistics()
    assert list(uneven["sound"]) == ["aac, 48000 Hz"]
    assert "uneven" in next(iter(uneven["frames a second"]))
    assert dew.cli.main(["peek", f"video/{folder}", "--stats", "-o", "frames=3"]) == 0
    assert "64 x 48" in capsys.readouterr().out


def test_sound_comes_with_its_clip(tmp_path: Path) -> None:
    write_video(tmp_path, Video(name="loud.mp4", sound=beep))
    options = {"fps": 12.5, "audio": AudioOptions(rate=8000)}
    record = opened(tmp_path, **options)[0]
    assert record["audio"].shape == (round(4 / 12.5 * 8000), 1)
    assert record["audio"].dtype == np.float32
    assert np.abs(record["audio"]).max() > 0.5
    write_video(tmp_path, Video(name="quiet.mp4"))
    with pytest.raises(SourceError, match=r"no sound: 1 file, quiet.mp4; AudioOptions\(missing='silence'\)"):
        opened(tmp_path, **options)
    silent = opened(tmp_path, fps=12.5, audio=AudioOptions(rate=8000, missing="silence"))
    assert not silent[1]["audio"].any()


def test_what_was_read_before_changes_nothing(tmp_path: Path) -> None:
    """Decoders of sound keep what they decoded before: a container that was read from would give other roundings."""
    for name, codec, sound in (
        ("a.mp4", "libx264", "aac"),
        ("b.webm", "libvpx-vp9", "libopus"),
        ("c.avi", "mpeg4", "mp3"),
    ):
        write_video(tmp_path, Video(name=name, codec=codec, frames=60, sound=beep, sound_codec=sound))
    source = opened(tmp_path, fps=10, crop="random", fit="crop", audio=AudioOptions(rate=8000))
    reads = [(index, seed) for seed in range(4) for index in range(len(source))]
    alone: dict[tuple[int, int], dict[str, Any]] = {}
    for index, seed in reads:
        alone[index, seed] = source.drawn(index, np.random.default_rng(seed))
        source.close()
    for place in np.random.default_rng(0).integers(0, len(reads), 60):
        index, seed = reads[place]
        record = source.drawn(index, np.random.default_rng(seed))
        for field in ("video", "audio"):
            np.testing.assert_array_equal(record[field], alone[index, seed][field])
    source.close()


def test_files_too_short_for_a_clip_are_named_before_a_run(folder: Path, tmp_path: Path) -> None:
    write_video(tmp_path, Video(name="long.mp4"))
    write_video(tmp_path, Video(name="short.mp4", frames=5))
    match = r"too short for a clip of 8 frames with stride=1: 1 file, short.mp4 \(5 frames\); short='repeat_last' or"
    with pytest.raises(SourceError, match=match):
        opened(tmp_path, frames=8)
    assert numbers(opened(tmp_path, frames=8, short="repeat_last")[1]["video"]) == [0, 1, 2, 3, 4, 4, 4, 4]
    assert numbers(opened(tmp_path, frames=8, short="loop")[1]["video"]) == [0, 1, 2, 3, 4, 0, 1, 2]
    assert len(opened(tmp_path, frames=8, exclude=["short.mp4"])) == 1


def test_pixels_that_are_not_square(tmp_path: Path) -> None:
    write_video(tmp_path, Video(name="wide.mp4", aspect=Fraction(3, 2)))
    assert opened(tmp_path, size=None, fit=None)[0]["video"].shape[1:3] == (48, 96)
    assert opened(tmp_path, size=None, fit=None, aspect="ignore")[0]["video"].shape[1:3] == (48, 64)
    with pytest.raises(SourceError, match=r"pixels that are not square: 1 file, wide.mp4 \(3/2\); aspect="):
        opened(tmp_path, aspect="refuse")


def _empty(path: Path) -> None:
    (path / "bad.mp4").write_bytes(b"")


def _page(path: Path) -> None:
    (path / "bad.mp4").write_text("<html>404</html>")


def _cut(path: Path) -> None:
    made = write_video(path, Video(name="bad.mp4"))
    made.write_bytes(made.read_bytes()[:-3000])


def _sound(path: Path) -> None:
    write_sound_only(path).rename(path / "bad.mp4")


@pytest.mark.parametrize("spoil", [_empty, _page, _cut, _sound])
def test_files_that_cannot_be_read_are_refused_or_left_out_by_name(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    write_video(tmp_path, Video(name="good.mp4"))
    spoil(tmp_path)
    with pytest.raises(SourceError, match=r"1 of 2 videos cannot be read: 'bad.mp4'; the first: .*unreadable='drop'"):
        opened(tmp_path)
    source = opened(tmp_path, unreadable="drop")
    assert len(source) == 1
    assert "1 excluded" in repr(source)
    assert len(opened(tmp_path, exclude=["bad.mp4"])) == 1


def test_a_file_that_changed_after_it_was_opened_is_named(tmp_path: Path) -> None:
    write_video(tmp_path, Video(name="a.mp4"))
    source = opened(tmp_path)
    write_video(tmp_path, Video(name="a.mp4"), lambda number: np.full((48, 64, 3), 5 * number, np.uint8))
    with pytest.raises((DamagedSourceError, SourceError), match=r"a\.mp4"):
        source[0]


def test_a_pickled_source_reads_the_same(folder: Path) -> None:
    source = opened(folder)
    again = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(again[3]["video"], source[3]["video"])
    assert again.fingerprint() == source.fingerprint()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fps": 8, "stride": 2}, "not both"),
        ({"engine": "fast"}, r"engine='fast' is for images"),
        ({"exact": True}, r"exact=True is for images"),
        ({"max_pixels": 1000}, r"max_pixels=1000 is for images"),
        ({"aspect": "square"}, r"aspect must be one of 'respect', 'refuse', 'ignore', got 'square'"),
        ({"unreadable": "skip"}, r"unreadable must be one of 'error', 'drop', got 'skip'"),
        ({"field": "label"}, r"must be two names"),
        ({"field": ""}, r"field must not be empty"),
        ({"frames": 0}, r"frames"),
        ({"audio": AudioOptions()}, r"give fps= instead of stride="),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        VideoOptions(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"audio": True}, r"audio must be AudioOptions\(\.\.\.\) or None, got True"),
        ({"cache": "blocks"}, r"cache must be a BlockCache or None, got 'blocks'"),
        ({"field": 3}, r"field must be the name of a field, got 3"),
        ({"fps": "10"}, r"fps must be a number of frames a second, got '10'"),
    ],
)
def test_options_of_another_type(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsTypeError, match=message):
        VideoOptions(**options)


def test_what_shapes_a_clip_is_part_of_the_identity(folder: Path) -> None:
    base = opened(folder).identity()
    for change in ({"stride": 2}, {"size": 33}, {"aspect": "ignore"}, {"flip": 0.5}, {"captions": "drop"}):
        assert opened(folder, **change).identity() != base, change
