"""Videos made on the spot: every frame carries its number as black and white blocks, readable after lossy coding."""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import attrs
import av
import numpy as np
import numpy.typing as npt
import pytest

Image = npt.NDArray[np.uint8]

WIDTH, HEIGHT = 64, 48
COLUMNS, ROWS = 4, 2
X264 = {"crf": "20", "preset": "veryfast", "threads": "1"}


@attrs.frozen(kw_only=True)
class Video:
    """A file to be made. `times` are in ticks of `time_base`; by default frame k is at k frame durations."""

    name: str = "clip.mp4"
    codec: str = "libx264"
    frames: int = 40
    rate: Fraction = Fraction(25)
    size: tuple[int, int] = (WIDTH, HEIGHT)
    gop: int = 12
    bframes: int = 0
    options: dict[str, str] = attrs.field(factory=dict)
    muxer: dict[str, str] = attrs.field(factory=dict)
    pixels: str = "yuv420p"
    times: Sequence[int] | None = None
    time_base: Fraction | None = None
    rotation: int = 0
    mirrored: bool = False
    aspect: Fraction | None = None
    sound: Callable[[int], npt.NDArray[np.float32]] | None = None
    sound_codec: str = "aac"
    sound_rate: int = 48000
    sound_first: bool = False
    sound_delay: int = 0
    matrix: int | None = None  # of the conversion from RGB; FFmpeg's default is BT.601
    tagged: int | None = None  # what the file says of it
    seconds_of_sound: float | None = None


def numbered(number: int, size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image:
    """Frame `number` (0 to 255), (H, W, 3): its bits as blocks on a grid of four by two, the first bit top left."""
    width, height = size
    bits = [(number >> bit) & 1 for bit in range(COLUMNS * ROWS)]
    grid = np.array(bits, np.uint8).reshape(ROWS, COLUMNS) * 200 + 28
    y = np.arange(height) * ROWS // height
    x = np.arange(width) * COLUMNS // width
    return np.repeat(grid[y][:, x, None], 3, axis=2).astype(np.uint8)


def number_in(image: Image) -> int:
    """The number that the blocks of an upright, uncropped frame of any size spell."""
    height, width = image.shape[:2]
    number = 0
    for bit in range(COLUMNS * ROWS):
        row, column = divmod(bit, COLUMNS)
        y, x = (2 * row + 1) * height // (2 * ROWS), (2 * column + 1) * width // (2 * COLUMNS)
        block = image[max(0, y - 2) : y + 2, max(0, x - 2) : x + 2].astype(np.float64)
        number |= int(block.mean() > 128) << bit
    return number


def write_video(path: Path, video: Video, paint: Callable[[int], Image] | None = None) -> Path:
    """Writes the file; `paint(k)` draws frame k, by default its number."""
    with av.open(str(path / video.name), "w", options=dict(video.muxer)) as container:
        sound: Any = _sound_stream(container, video) if video.sound_first else None
        stream: Any = container.add_stream(video.codec, rate=video.rate, options=_options(video))
        stream.width, stream.height = video.size
        stream.pix_fmt = video.pixels
        stream.codec_context.gop_size = video.gop
        stream.codec_context.thread_count = 1
        if video.codec in ("libx264", "libx265", "mpeg4"):
            stream.codec_context.max_b_frames = video.bframes
        if video.time_base is not None:
            stream.codec_context.time_base = video.time_base
        if video.aspect is not None:
            stream.codec_context.sample_aspect_ratio = video.aspect
        stream.codec_context.colorspace = 2 if video.tagged is None else video.tagged
        if video.rotation or video.mirrored:
            stream.set_display_rotation(video.rotation, hflip=video.mirrored)
        if sound is None:
            sound = _sound_stream(container, video)
        if sound is not None and video.sound_first:
            _write_sound(container, sound, video)
        _write_frames(container, stream, video, paint or (lambda k: numbered(k, video.size)))
        if sound is not None and not video.sound_first:
            _write_sound(container, sound, video)
    return path / video.name


def _options(video: Video) -> dict[str, str]:
    if video.codec == "libx264":
        return {**X264, "bf": str(video.bframes), "sc_threshold": "0"} | video.options
    if video.codec == "libx265":
        quiet = (
            f"log-level=none:pools=1:frame-threads=1:bframes={video.bframes}:keyint={video.gop}:min-keyint={video.gop}"
        )
        own = video.options.get("x265-params")
        return (
            {"preset": "ultrafast", "crf": "20"} | video.options | {"x265-params": f"{quiet}:{own}" if own else quiet}
        )
    if video.codec == "libsvtav1":
        return {"preset": "12", "crf": "30", "svtav1-params": f"lp=1:keyint={video.gop}"} | video.options
    if video.codec == "libvpx-vp9":
        return {"deadline": "realtime", "cpu-used": "8", "crf": "25", "b": "0"} | video.options
    return dict(video.options)


def _write_frames(container: Any, stream: Any, video: Video, paint: Callable[[int], Image]) -> None:
    for number in range(video.frames):
        frame = av.VideoFrame.from_ndarray(paint(number), "rgb24")
        frame = frame.reformat(format=video.pixels, dst_colorspace=video.matrix, threads=1)
        if video.times is None:
            frame.pts, frame.time_base = number, 1 / video.rate
        else:
            frame.pts, frame.time_base = video.times[number], video.time_base
        frame.colorspace = 2 if video.tagged is None else video.tagged
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def _sound_stream(container: Any, video: Video) -> Any:
    if video.sound is None:
        return None
    return container.add_stream(video.sound_codec, rate=video.sound_rate, layout="mono")


def _write_sound(container: Any, stream: Any, video: Video) -> None:
    assert video.sound is not None
    seconds = video.seconds_of_sound or float(video.frames / video.rate)
    samples = video.sound(round(seconds * video.sound_rate))
    size = stream.codec_context.frame_size or 1024
    resampler = av.AudioResampler(format=stream.codec_context.format.name, layout="mono", rate=video.sound_rate)
    for start in range(0, len(samples), size):
        block = np.ascontiguousarray(samples[None, start : start + size], np.float32)
        frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="mono")
        frame.sample_rate = video.sound_rate
        frame.pts, frame.time_base = start + video.sound_delay, Fraction(1, video.sound_rate)
        for converted in resampler.resample(frame):
            converted.pts, converted.time_base = frame.pts, frame.time_base
            container.mux(stream.encode(converted))
    container.mux(stream.encode(None))


def write_sound_only(path: Path) -> Path:
    """A file with sound and no picture."""
    video = Video(name="sound.m4a", sound=lambda count: np.zeros(count, np.float32))
    with av.open(str(path / video.name), "w") as container:
        _write_sound(container, _sound_stream(container, video), video)
    return path / video.name


def copied(
    source: Path,
    target: Path,
    *,
    shift: int = 0,
    muxer: Mapping[str, str] | None = None,
    without: Collection[int] = (),
) -> Path:
    """The packets of `source` in another file, their times moved by `shift` ticks, some left out by number.

    Times before 0 are cut by an edit list where the container has them.
    """
    with av.open(str(source)) as read, av.open(str(target), "w", options=dict(muxer or {})) as written:
        stream = read.streams.video[0]
        copy = written.add_stream_from_template(stream)
        for number, packet in enumerate(read.demux(stream)):
            if packet.size and number not in without:
                packet.pts = None if packet.pts is None else packet.pts + shift
                packet.dts = None if packet.dts is None else packet.dts + shift
                packet.stream = copy
                written.mux(packet)
    return target


def patched(path: Path, *changes: tuple[bytes, int, bytes]) -> Path:
    """The file with bytes written over it, each at a distance behind the first place of a mark."""
    data = bytearray(path.read_bytes())
    for mark, distance, replaced in changes:
        place = data.index(mark) + distance
        data[place : place + len(replaced)] = replaced
    path.write_bytes(data)
    return path


def _edited(path: Path) -> Path:
    """Seven frames hidden by an edit list, as a player's cut without encoding makes it."""
    plain = write_video(path, Video(name="plain.mp4", bframes=2, gop=12))
    return copied(plain, path / "edit-list.mp4", shift=-7 * 512)


def _before_zero(path: Path) -> Path:
    plain = write_video(path, Video(name="plain.mkv", bframes=2))
    return copied(plain, path / "negative.mkv", shift=-400, muxer={"avoid_negative_ts": "disabled"})


def _delayed(path: Path) -> Path:
    plain = write_video(path, Video(name="plain.mp4", bframes=2))
    return copied(plain, path / "delayed.mp4", shift=5 * 12800)


def _wrong_avi_count(path: Path) -> Path:
    made = write_video(path, Video(name="count.avi", codec="mpeg4"))
    # Frames in the main header, and the length in the stream's header.
    return patched(made, (b"avih", 24, b"\x99\0\0\0"), (b"strh", 40, b"\x99\0\0\0"))


def _no_avi_count(path: Path) -> Path:
    made = write_video(path, Video(name="nocount.avi", codec="mpeg4"))
    return patched(made, (b"avih", 24, bytes(4)), (b"strh", 40, bytes(4)))


def beep(count: int) -> npt.NDArray[np.float32]:
    return np.sin(np.arange(count, dtype=np.float32) / 20)


IRREGULAR = [0, *np.cumsum([20 + 180 * (number % 7 == 3) + 13 * (number % 3) for number in range(39)]).tolist()]
MILLI = Fraction(1, 1000)
KINDS: dict[str, Video | Callable[[Path], Path]] = {
    "h264": Video(),
    "b-frames": Video(bframes=3),
    "gop 1": Video(gop=1),
    "gop 30": Video(gop=30, bframes=2),
    "gop 250": Video(gop=250, bframes=3),
    "open gop mp4": Video(bframes=3, options={"x264-params": "open-gop=1"}),
    "open gop mkv": Video(name="clip.mkv", bframes=3, options={"x264-params": "open-gop=1"}),
    "h265": Video(codec="libx265", bframes=3),
    "h265 open gop": Video(codec="libx265", bframes=3, options={"x265-params": "open-gop=1"}),
    "h265 mkv": Video(name="clip.mkv", codec="libx265", bframes=2),
    "10 bit": Video(codec="libx265", pixels="yuv420p10le"),
    "10 bit h264": Video(pixels="yuv422p10le", bframes=2),
    "vp9": Video(name="clip.webm", codec="libvpx-vp9"),
    "vp9 hidden frames": Video(
        name="clip.webm",
        codec="libvpx-vp9",
        options={"deadline": "good", "lag-in-frames": "16", "auto-alt-ref": "1"},
    ),
    "vp8": Video(name="clip.webm", codec="libvpx", options={"b": "300k"}),
    "av1": Video(codec="libsvtav1"),
    "av1 webm": Video(name="clip.webm", codec="libsvtav1"),
    "avi": Video(name="clip.avi", codec="mpeg4"),
    "avi b-frames": Video(name="clip.avi", codec="mpeg4", bframes=2),
    "avi h264": Video(name="clip.avi", bframes=2),
    "avi wrong count": _wrong_avi_count,
    "avi no count": _no_avi_count,
    "gif": Video(name="clip.gif", codec="gif", pixels="rgb8", rate=Fraction(20)),
    "mov": Video(name="clip.mov", bframes=2),
    "fragments": Video(bframes=2, muxer={"movflags": "frag_keyframe+empty_moov"}),
    "live mkv": Video(name="clip.mkv", bframes=2, muxer={"live": "1"}),
    "transport stream": Video(name="clip.ts", bframes=2),
    "program stream": Video(name="clip.mpg", codec="mpeg2video", bframes=2),
    "no times at all": Video(name="clip.h264", bframes=2),
    "variable rate": Video(bframes=2, times=IRREGULAR, time_base=MILLI),
    "variable rate mkv": Video(name="clip.mkv", bframes=2, times=IRREGULAR, time_base=MILLI),
    "40 fps": Video(rate=Fraction(40), bframes=2),
    "29.97 fps": Video(name="clip.mkv", rate=Fraction(30000, 1001), bframes=2),
    "24 fps": Video(name="clip.mkv", rate=Fraction(24), bframes=2),
    "odd size": Video(size=(65, 49), pixels="yuv444p"),
    "odd multiple": Video(size=(66, 50), bframes=2),
    "turned 90": Video(rotation=90),
    "turned 180": Video(rotation=180),
    "turned 270": Video(rotation=270),
    "mirrored": Video(mirrored=True),
    "turned and mirrored": Video(rotation=90, mirrored=True),
    "wide pixels": Video(aspect=Fraction(3, 2)),
    "sound first": Video(sound=beep, sound_first=True, bframes=2),
    "sound mkv": Video(name="clip.mkv", sound=beep, bframes=2),
    "edit list": _edited,
    "negative times": _before_zero,
    "late start": _delayed,
}
HIDDEN = {"edit list": 7}


@attrs.frozen(kw_only=True)
class Made:
    """A file of one kind, and the number of the frame that each of its frames carries."""

    kind: str
    path: Path
    numbers: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.path.name


@attrs.frozen
class Library:
    """Every kind of file, made when it is first asked for, once a session. Not to be changed."""

    root: Path
    made: dict[str, Made] = attrs.field(factory=dict[str, Made])

    def __getitem__(self, kind: str) -> Made:
        if kind not in self.made:
            recipe, folder = KINDS[kind], self.root / kind.replace(" ", "-")
            folder.mkdir()
            path = recipe(folder) if callable(recipe) else write_video(folder, recipe, painted(recipe))
            self.made[kind] = Made(kind=kind, path=path, numbers=tuple(range(HIDDEN.get(kind, 0), 40)))
        return self.made[kind]


def painted(video: Video) -> Callable[[int], Image]:
    """Draws the numbers so that they are upright once the file's rotation is applied."""

    def paint(number: int) -> Image:
        width, height = video.size
        turned = video.rotation % 180 == 90
        image = numbered(number, (height, width) if turned else (width, height))
        image = image[:, ::-1] if video.mirrored else image
        return np.ascontiguousarray(np.rot90(image, -video.rotation // 90))

    return paint


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(tmp_path_factory.mktemp("videos"))


@pytest.fixture(scope="session", params=list(KINDS))
def made(request: pytest.FixtureRequest, library: Library) -> Made:
    """Each kind of file in turn."""
    return library[request.param]


@pytest.fixture(scope="session")
def videos() -> Any:
    """The functions of this module, for tests that make files of their own."""
    return sys.modules[__name__]
