"""Clips of video files beside bare PyAV with the same settings; right frames beside OpenCV and decord.

Every frame carries its number as black and white blocks, so that what a reader gives proves which frame it is.
"""

import importlib.util
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from benchmarks.measure import BareLoop, Figure, at_least, run_all, seconds_each
from dew_media.geometry import Geometry
from dew_media.video.decode import OpenVideo
from dew_media.video.frames import FrameTable, read_table
from dew_media.video.opened import OpenVideos

os.environ.update({"OPENCV_FFMPEG_LOGLEVEL": "-8", "SVT_LOG": "0"})  # no lines of theirs between the figures

FRAMES, STRIDE, SIDE = 16, 2, 256
LONG = 300
STEPS = 3  # clips of a core in one round
SPEEDS = {
    "H.264 640x360, GOP 30": ("speed360.mp4", "libx264", (640, 360), 30),
    "H.264 640x360, GOP 250": ("speed250.mp4", "libx264", (640, 360), 250),
    "H.264 1280x720, GOP 60": ("speed720.mp4", "libx264", (1280, 720), 60),
    "H.265 640x360, GOP 30": ("speed265.mp4", "libx265", (640, 360), 30),
    "VP9 640x360, GOP 30": ("speed.webm", "libvpx-vp9", (640, 360), 30),
}
X265 = "log-level=none:bframes=3:keyint=30:min-keyint=30"
SHARES: dict[str, dict[str, Any]] = {
    "H.264, B-frames": {"name": "b.mp4", "codec": "libx264"},
    "H.264, open GOP": {"name": "open.mp4", "codec": "libx264", "options": {"x264-params": "open-gop=1"}},
    "H.264, variable rate": {"name": "vfr.mp4", "codec": "libx264", "varied": True},
    "H.265, open GOP": {"name": "open265.mp4", "codec": "libx265", "options": {"x265-params": X265 + ":open-gop=1"}},
    "VP9": {"name": "vp9.webm", "codec": "libvpx-vp9"},
    "AV1": {"name": "av1.mp4", "codec": "libsvtav1"},
    "MPEG-4 in AVI, B-frames": {"name": "b.avi", "codec": "mpeg4"},
    "GIF": {"name": "clip.gif", "codec": "gif", "pixels": "rgb8"},
    "H.264, damaged since it was indexed": {"name": "damaged.mp4", "codec": "libx264", "damaged": True},
}


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        for what, (name, codec, size, gop) in SPEEDS.items():
            path = _write(Path(directory) / name, codec, size=size, gop=gop, frames=LONG)
            yield from _speeds(what, str(path))
        yield from _open_files(str(Path(directory) / SPEEDS["H.264 640x360, GOP 30"][0]))
        for what, options in SHARES.items():
            yield _shares(what, Path(directory), **options)


def _write(
    path: Path,
    codec: str,
    *,
    size: tuple[int, int] = (160, 96),
    gop: int = 30,
    frames: int = 120,
    options: dict[str, str] | None = None,
    pixels: str = "yuv420p",
    varied: bool = False,
) -> Path:
    defaults = {
        "libx264": {"crf": "23", "preset": "veryfast"},
        "libx265": {"crf": "26", "preset": "ultrafast", "x265-params": X265},
        "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "crf": "30", "b": "0"},
        "libsvtav1": {"preset": "8", "crf": "20"},
    }
    steps = np.random.default_rng(1).integers(20, 200, frames) if varied else np.full(frames, 33)
    times = np.cumsum(steps) - steps[0]
    paint = _painter(size)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=30, options=defaults.get(codec, {}) | (options or {}))
        stream.width, stream.height, stream.pix_fmt = *size, pixels
        stream.codec_context.gop_size = gop
        if varied:
            stream.codec_context.time_base = Fraction(1, 1000)
        if codec in ("libx264", "libx265", "mpeg4"):
            stream.codec_context.max_b_frames = 3
        for number in range(frames):
            frame: Any = av.VideoFrame.from_ndarray(paint(number), "rgb24").reformat(format=pixels, threads=1)
            frame.pts = int(times[number]) if varied else number
            frame.time_base = Fraction(1, 1000) if varied else Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def _painter(size: tuple[int, int]) -> Callable[[int], Any]:
    """A textured picture that pans, with the number of the frame in its middle: nine blocks of three by three."""
    width, height = size
    noise = np.random.default_rng(0).integers(0, 256, (height // 8, width // 4, 3), np.uint8)
    wide = cv2.resize(noise, (2 * width, height), interpolation=cv2.INTER_CUBIC)
    side = min(size) // 6

    def paint(number: int) -> Any:
        image = wide[:, 4 * number % width :][:, :width].copy()
        bits = np.array([number >> bit & 1 for bit in range(9)], np.uint8).reshape(3, 3) * 200 + 28
        blocks = bits.repeat(side, 0).repeat(side, 1)[..., None]
        top, left = (height - 3 * side) // 2, (width - 3 * side) // 2
        image[top : top + 3 * side, left : left + 3 * side] = blocks
        return image

    return paint


def _number(image: Any) -> int:
    """The number in the middle of a frame, or of a square cut from its middle."""
    height, width = image.shape[:2]
    side = min(height, width) // 6
    centres = [
        ((height - 3 * side) // 2 + row * side + side // 2, (width - 3 * side) // 2 + column * side + side // 2)
        for row in range(3)
        for column in range(3)
    ]
    return sum(int(image[y - 2 : y + 2, x - 2 : x + 2].mean() > 128) << bit for bit, (y, x) in enumerate(centres))


def _first(number: int) -> int:
    """The first frame of clip `number`: every reader reads the same clips, at all distances from key frames."""
    return number * 97 % (LONG - FRAMES * STRIDE)


def _speeds(what: str, path: str) -> Iterator[Figure]:
    cores = len(os.sched_getaffinity(0))
    loops = [BareLoop(_LOOP, path, str(number), str(cores)) for number in range(cores)]
    table, pool, geometry = read_table(path, name="clip"), OpenVideos(), Geometry(size=SIDE)
    placement = geometry.plan(*table.size(), None)

    def dew(number: int) -> None:
        with pool.opened(0, lambda: path, name="clip") as video:
            times = table.times[_first(number) :][: FRAMES * STRIDE : STRIDE]
            video.clip(table, times, geometry=geometry, placement=placement)

    with ThreadPoolExecutor(cores) as threads:

        def reading(read: Callable[[int], None]) -> Callable[[], object]:
            numbers = itertools.count()
            return lambda: list(threads.map(read, itertools.islice(numbers, cores * STEPS)))

        variants: dict[str, Callable[[], object]] = {
            "dew": reading(dew),
            "bare": lambda: run_all(loops, STEPS),
            "opencv": reading(lambda number: _by_opencv(path, _first(number))),
        }
        if importlib.util.find_spec("decord"):
            variants["decord"] = reading(lambda number: _by_decord(path, _first(number)))
        seconds_each(variants, rounds=1, calls=1)
        times = seconds_each(variants, rounds=7, calls=1)
    pool.close()
    for loop in loops:
        loop.close()
    rates = {name: cores * STEPS / seconds for name, seconds in times.items()}
    detail = f" ({rates['dew']:.1f} of {rates['bare']:.1f} clips/s)"
    yield at_least(f"{what}, {cores} threads / {cores} bare PyAV loops", rates["dew"] / rates["bare"], 0.9, detail)
    for key, reader in (("opencv", "OpenCV"), ("decord", "decord")):
        value = f"{rates['dew'] / rates[key]:.2f} (of {rates[key]:.1f} clips/s)" if key in rates else "not installed"
        yield Figure(what=f"{what}, {cores} threads / {reader} in {cores} threads", value=value, budget="")


def bare(path: str, number: int, step: int) -> Iterator[Any]:
    """Clips by PyAV alone: packet times once, one decoding thread, BICUBIC, a reformatter of the clip's own."""
    with av.open(path) as container:
        stream = container.streams.video[0]
        times = sorted(packet.pts for packet in container.demux(stream) if packet.pts is not None)
        width, height = stream.codec_context.width, stream.codec_context.height
    width = round(width * SIDE / height)
    left = (width - SIDE) // 2
    for clip in itertools.count(number, step):
        wanted = times[_first(clip) :][: FRAMES * STRIDE : STRIDE]
        made, done = np.empty((FRAMES, SIDE, SIDE, 3), np.uint8), 0
        reformatter = av.video.reformatter.VideoReformatter()
        with av.open(path) as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            container.seek(wanted[0], stream=stream, backward=True)
            for frame in container.decode(stream):
                if frame.pts != wanted[done]:
                    continue
                scaled = reformatter.reformat(
                    frame, width=width, height=SIDE, format="rgb24", interpolation="BICUBIC", threads=1
                )
                made[done] = scaled.to_ndarray()[:, left : left + SIDE]
                done += 1
                if done == FRAMES:
                    break
        yield made


_LOOP = """
import sys
from benchmarks.video import bare
loop = bare(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
for line in sys.stdin:
    for _ in range(int(line)):
        next(loop)
    print("done", flush=True)
"""


def _by_opencv(path: str, first: int) -> None:
    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
    capture.set(cv2.CAP_PROP_POS_FRAMES, first)
    made = np.empty((FRAMES, SIDE, SIDE, 3), np.uint8)
    for number in range(FRAMES):
        frame = capture.read()[1]
        capture.grab()
        width = round(frame.shape[1] * SIDE / frame.shape[0])
        scaled = cv2.resize(frame, (width, SIDE), interpolation=cv2.INTER_AREA)
        left = (width - SIDE) // 2
        made[number] = scaled[:, left : left + SIDE, ::-1]
    capture.release()


def _by_decord(path: str, first: int) -> None:
    import decord  # pyright: ignore[reportMissingImports]

    width = round(16 * SIDE / 9)
    reader = decord.VideoReader(path, width=width, height=SIDE, num_threads=1)
    left = (width - SIDE) // 2
    clip = reader.get_batch(range(first, first + FRAMES * STRIDE, STRIDE)).asnumpy()
    np.ascontiguousarray(clip[:, :, left : left + SIDE])


def _open_files(path: str) -> Iterator[Figure]:
    table, pool, geometry = read_table(path, name="clip"), OpenVideos(), Geometry(size=SIDE)
    placement = geometry.plan(*table.size(), None)
    numbers = {"kept": itertools.count(), "anew": itertools.count()}

    def read(video: OpenVideo, way: str) -> None:
        times = table.times[_first(next(numbers[way])) :][: FRAMES * STRIDE : STRIDE]
        video.clip(table, times, geometry=geometry, placement=placement)

    def kept() -> None:
        with pool.opened(0, lambda: path, name="clip") as video:
            read(video, "kept")

    def anew() -> None:
        with OpenVideo(path, name="clip") as video:
            read(video, "anew")

    times = seconds_each({"kept": kept, "anew": anew}, rounds=9, calls=6)
    pool.close()
    value = f"{times['anew'] / times['kept']:.2f}x ({1 / times['anew']:.1f} clips/s anew)"
    yield Figure(what="H.264 640x360, clips of a file kept open / opened anew", value=value, budget="")


def _shares(what: str, directory: Path, *, name: str, damaged: bool = False, **options: Any) -> Figure:
    """32 frames at random places, of each reader: how many are the ones asked for."""
    path = _write(directory / name, options.pop("codec"), **options)
    table = read_table(str(path), name=name)
    if damaged:
        data = bytearray(path.read_bytes())
        start = len(data) // 2
        data[start : start + 400] = np.random.default_rng(2).bytes(400)
        path.write_bytes(data)
    rng = np.random.default_rng(3)
    starts = [40, 52, 56, 60] if damaged else rng.integers(0, 110, 4).tolist()
    wanted = [np.arange(start, start + 8) for start in starts]
    readers = {"Dew": partial(_dew_frames, table), "OpenCV": _opencv_frames, "decord": _decord_frames}
    values = {reader: _right(read, str(path), wanted) for reader, read in readers.items()}
    shown = ", ".join(f"{reader} {value}" for reader, value in values.items())
    only_right = values["Dew"].startswith("32") or (damaged and "wrong" not in values["Dew"])
    return Figure(what=f"right frames of 32, {what}", value=shown, budget="Dew: all, or an error", met=only_right)


def _right(read: Callable[[str, Any], list[int]], path: str, wanted: list[Any]) -> str:
    right = wrong = errors = 0
    for frames in wanted:
        try:
            found = read(path, frames)
        except ImportError:
            return "not installed"
        except Exception:
            errors += len(frames)
            continue
        good = sum(number == frame for number, frame in zip(found, frames, strict=False))
        right, wrong = right + good, wrong + len(frames) - good
    return f"{right}" + f" ({wrong} wrong)" * bool(wrong) + f" ({errors} refused)" * bool(errors)


def _dew_frames(table: FrameTable, path: str, frames: Any) -> list[int]:
    geometry = Geometry()
    with OpenVideo(path, name="clip") as video:
        clip = video.clip(table, table.times[frames], geometry=geometry, placement=geometry.plan(*table.size(), None))
    return [_number(image) for image in clip]


def _opencv_frames(path: str, frames: Any) -> list[int]:
    capture = cv2.VideoCapture(path)
    capture.set(cv2.CAP_PROP_POS_FRAMES, int(frames[0]))
    read = [capture.read() for _ in frames]
    capture.release()
    return [_number(frame) if found else -1 for found, frame in read]


def _decord_frames(path: str, frames: Any) -> list[int]:
    import decord  # pyright: ignore[reportMissingImports]

    reader = decord.VideoReader(path, num_threads=1)
    return [_number(image) for image in reader.get_batch(frames.tolist()).asnumpy()]
