"""Frames at wanted times: exactly those, upright, in the size of a batch; or an error that names the file and the time.

Every clip is found through the file's `FrameTable`: decoding starts at the last key packet that is not after the first
wanted frame, which is recognised by its own time and checksum, not by where a seek happened to land (FFmpeg's may land
behind it where frames are reordered). What comes out is compared with the table frame by frame. Where anything differs,
the clip is read once more from an earlier start, at last from the beginning of the file, before it is an error.

One decoding thread, and a reformatter of the clip's own with one thread: no thread pools, so neither forks nor many
readers at once can hang on them.
"""

import itertools
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import DamagedSourceError, SourceError
from dew_media.geometry import Geometry, Placement
from dew_media.video.audio import AudioOptions, Samples, SeekFailedError, clip_sound
from dew_media.video.clips import Clip
from dew_media.video.container import VideoFile, failures, library, opened, picture_stream, prepare, reason, seconds
from dew_media.video.frames import KEY, FrameTable, Ticks, checked, header_of

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.reformatter import VideoReformatter
    from av.video.stream import VideoStream

Pixels = npt.NDArray[np.uint8]

_FILTERS = {"box": "AREA", "bilinear": "BILINEAR", "bicubic": "BICUBIC", "lanczos": "LANCZOS"}
_UNSPECIFIED = 2
_CHECK = KEY - 1


class _FailedError(Exception):
    """A clip cannot be read from this start."""

    def __init__(self, time: int, why: str) -> None:
        super().__init__(why)
        self.time = time


class OpenVideo:
    """An open video file, for one thread at a time. A context manager; it owns `file` and closes it.

    Args:
        file: a local path, bytes, or a seekable binary file object.
        name: of the file, for messages.

    Raises:
        SourceNotFoundError, DamagedSourceError, SourceError: it cannot be opened, or holds no video.
    """

    def __init__(self, file: VideoFile, *, name: str) -> None:
        self.name = name
        self._file = file
        self._container: InputContainer | None = None
        self._fresh = True
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the container and the file; a second call does nothing."""
        self._close_container()
        close = getattr(self._file, "close", None)
        if close is not None:
            close()

    def clip(self, table: FrameTable, times: Ticks, *, geometry: Geometry, placement: Placement) -> Pixels:
        """The frames that are shown from `times` on.

        Args:
            table: the file's own.
            times: (T,) of `table.times`, in any order; one may come several times.
            geometry: the filter and the background.
            placement: where a picture of `table.size()` goes; the same for every frame.

        Returns:
            `(T, H, W, 3)` uint8, a new array.

        Raises:
            DamagedSourceError: the file is damaged, or no longer the one that the table was made of; names the time.
            SourceError: a frame has another size than the table says.
        """
        self._check(table)
        wanted, places = np.unique(times, return_inverse=True)
        nearest = np.minimum(np.searchsorted(table.times, wanted), len(table) - 1)
        unknown = wanted[table.times[nearest] != wanted]
        if len(unknown):
            raise SourceError(f"{self.name} has no frame at tick {int(unknown[0])} of {table.time_base} s")
        width, height = placement.output
        reformatter = library().video.reformatter.VideoReformatter()
        picture = _Picture(table=table, geometry=geometry, placement=placement, name=self.name, reformatter=reformatter)
        made = np.empty((len(wanted), height, width, 3), np.uint8)
        if placement.kept != placement.output:
            made[:] = geometry.background
        for first, last in _runs(table, wanted):
            self._run(table, wanted[first:last], made[first:last], picture)
        return made if np.array_equal(places, np.arange(len(made))) else made[places]

    def sound(self, table: FrameTable, clip: Clip, samples: int, options: AudioOptions) -> Samples:
        """A clip's sound, the same whatever was read before.

        That takes a container that nothing was read from: decoders of sound keep noise and rounding of what they
        decoded before, and where a seek leads may depend on what was read. So it costs less before `clip`.

        Args:
            table: the file's own.
            clip: of the file.
            samples: how many; `options.samples(policy)`.
            options: rate, channels, and what becomes of a file without sound.

        Returns:
            `(samples, channels)` float32, nominally from -1 to 1; the first at the clip's start.

        Raises:
            SourceError: the file has no sound.
            DamagedSourceError: its sound cannot be decoded.
        """
        self._check(table)
        if not self._fresh:
            self._close_container()
        container, self._fresh = self.container, False
        try:
            return clip_sound(container, table, clip, samples, options, name=self.name)
        except SeekFailedError:
            self._close_container()
        return clip_sound(self.container, table, clip, samples, options, name=self.name, seek=False)

    @property
    def container(self) -> "InputContainer":
        """FFmpeg's; opened anew where it was closed after an error."""
        return self._container or self._open()

    def _open(self, *, strict: bool = True) -> "InputContainer":
        self._container, self._fresh = opened(self._file, name=self.name), True
        prepare(picture_stream(self._container, name=self.name), strict=strict)
        for stream in self._container.streams.audio[:1]:
            if stream.codec_context is not None:  # pyright: ignore[reportUnnecessaryComparison] — an unknown codec
                stream.codec_context.thread_count = 1
        return self._container

    def _close_container(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            container.close()

    def _check(self, table: FrameTable) -> None:
        stream = picture_stream(self.container, name=self.name)
        found = stream.codec_context.name, stream.time_base, header_of(stream)
        if found != (table.codec, table.time_base, table.header):
            raise DamagedSourceError(
                f"{self.name} was changed: it is {found[0]} in ticks of {found[1]} s (header {found[2]:08x}), but was "
                f"{table.codec} in ticks of {table.time_base} s (header {table.header:08x}) when it was indexed; "
                "index it again"
            )

    def _run(self, table: FrameTable, wanted: Ticks, made: Pixels, picture: "_Picture") -> None:
        """Decodes the frames at `wanted`, of neighbouring groups of pictures, into `made`."""
        failed: _FailedError | None = None
        for start in _starts(table, int(wanted[0])):
            try:
                self._read(table, start, wanted, made, picture)
                return
            except _FailedError as error:
                failed = error
            finally:
                if not start.strict:
                    self._close_container()
        assert failed is not None
        raise DamagedSourceError(
            f"{self.name} is damaged at {seconds(failed.time, table.time_base)}: {failed}; leave it out, or index it "
            "again if it was changed on purpose"
        ) from failed

    def _read(self, table: FrameTable, start: "_Start", wanted: Ticks, made: Pixels, picture: "_Picture") -> None:
        done = 0
        for time, frame in self._frames(table, start, int(wanted[0])):
            if frame.is_corrupt:
                raise _FailedError(time, "the decoder marks a frame as corrupt")
            if time > wanted[done]:
                raise _FailedError(int(wanted[done]), "its packet is there, but no frame comes out of it")
            if time == wanted[done]:
                picture.draw(frame, time, made[done])
                done += 1
                if done == len(wanted):
                    return
        raise _FailedError(int(wanted[done]), "its frames end before")

    def _frames(self, table: FrameTable, start: "_Start", first: int) -> "Iterator[tuple[int, VideoFrame]]":
        """Decoded frames and their times, from `start` on, or from the beginning of the file."""
        at, number = first, 0
        try:
            if start.number < 0:
                self._close_container()
                self._open(strict=start.strict)
            stream = picture_stream(self.container, name=self.name)
            self._fresh = False
            for packet in _packets(self.container, stream, table, start):
                for frame in _decoded(packet, start.sure):
                    time = int(table.times[min(number, len(table) - 1)]) if table.counted else frame.pts
                    number += 1
                    if time is not None and (table.counted or time >= start.sure):
                        at = time
                        yield time, frame
        except failures() as error:
            raise _FailedError(at, reason(error)) from error


@attrs.frozen
class _Start:
    """Where to begin: at a key packet, or, with the number -1, at the beginning of the file.

    Attributes:
        time, seek, number: the key packet's time, where a seek finds it, and its number.
        sure: the time from which on nothing may be missing.
        strict: concealed damage is an error.
    """

    time: int
    seek: int
    number: int
    sure: int
    strict: bool = True


def _runs(table: FrameTable, wanted: Ticks) -> list[tuple[int, int]]:
    """`wanted` in pieces, each decoded in one go; groups of pictures that hold nothing wanted lie between them."""
    if table.counted:
        return [(0, len(wanted))]
    groups = np.searchsorted(table.keys[:, 0], wanted, side="right")
    apart = np.diff(groups) > 1
    if not table.clean:
        apart |= groups[:-1] != groups[1:]  # the first group is decoded in another way
    edges = [0, *(np.flatnonzero(apart) + 1).tolist(), len(wanted)]
    return list(itertools.pairwise(edges))


def _starts(table: FrameTable, first: int) -> list[_Start]:
    """Where to begin, best first, the beginning of the file last.

    The last key packet not after the wanted time. Else the one before it: in an open group of pictures H.264 may keep
    books of references to the group before, and a strict decoder misses them, though no picture needs them.
    """
    whole = _Start(time=table.begin[1], seek=0, number=-1, sure=table.begin[1])
    if table.counted:
        return [attrs.evolve(whole, strict=table.clean)]
    keys = table.keys
    usable = int(np.searchsorted(keys[:, 0], first, side="right"))
    rows = [keys[row].tolist() for row in (usable - 1, usable - 2) if row >= 0]
    starts = [*(_Start(*row, sure=rows[0][0]) for row in rows), whole]
    return starts if table.clean or usable != 1 else [attrs.evolve(whole, strict=False)]


def _packets(
    container: "InputContainer", stream: "VideoStream", table: FrameTable, start: _Start
) -> "Iterator[Packet[VideoStream]]":
    """The packets from the key packet `start` on, each one compared with its checksum in the table."""
    if start.number >= 0:
        container.seek(start.seek, stream=stream, backward=True)
    number = 0 if start.number < 0 else -1
    for packet in container.demux(stream):
        if not packet.size:
            yield packet  # the last one, which empties the decoder
            continue
        if number < 0:
            if packet.is_keyframe and packet.pts is not None and packet.pts > start.time:
                break
            if not packet.is_keyframe or packet.pts != start.time:
                continue
            number = start.number
        _compare(table, number, packet)
        if number >= table.begin[0]:
            yield packet
        number += 1
    if number < 0:
        raise _FailedError(start.time, "its key packet is not where it was")


def _compare(table: FrameTable, number: int, packet: "Packet[VideoStream]") -> None:
    """Packet by packet in the file's order: one that is lost is noticed too."""
    if number >= table.packets.shape[1]:
        if table.cut is not None:
            return  # what is left of a packet at the cut; no frame of the table needs it
        raise _FailedError(int(table.times[-1]), "it has more packets than were indexed")
    time, _, check = table.packets[:, number].tolist()
    if check & _CHECK != checked(packet) or (packet.pts is not None and packet.pts != time and not table.counted):
        at = int(table.times[min(number, len(table) - 1)]) if table.counted else time
        raise _FailedError(at, "a packet differs from the one that was indexed")


def _decoded(packet: "Packet[VideoStream]", sure: int) -> "list[VideoFrame]":
    """What the decoder gives for a packet; what is shown before the time `sure` may lack what it refers to."""
    av = library()
    try:
        return packet.decode()
    except av.FFmpegError:
        if packet.pts is not None and packet.pts < sure:
            return []
        raise


@attrs.frozen(kw_only=True)
class _Picture:
    """How the frames of one clip become pixels of a batch."""

    table: FrameTable
    geometry: Geometry
    placement: Placement
    name: str
    reformatter: "VideoReformatter"

    def draw(self, frame: "VideoFrame", time: int, made: Pixels) -> None:
        """Writes the frame that is shown at `time` into `made` (H, W, 3)."""
        if (frame.width, frame.height) != (self.table.width, self.table.height):
            at = seconds(time, self.table.time_base)
            raise SourceError(
                f"{self.name} changes its picture size at {at}: {self.table.width} x {self.table.height} before, "
                f"{frame.width} x {frame.height} there; cut it into files of one size"
            )
        place = self.placement
        pixels = self.table.orientation.upright(self._scaled(frame))
        (x, y), (width, height), (left, top) = place.crop, place.kept, place.pad
        kept = pixels[y : y + height, x : x + width]
        if place.flip:
            kept = kept[:, ::-1]
            left = place.output[0] - left - width
        made[top : top + height, left : left + width] = kept

    def _scaled(self, frame: "VideoFrame") -> Pixels:
        """The whole stored picture, scaled, (H, W, 3)."""
        width, height = self.placement.scaled
        if self.table.orientation.transposed:
            width, height = height, width
        clear = any(component.is_alpha for component in frame.format.components)
        scaled = self.reformatter.reformat(
            frame,
            width=width,
            height=height,
            format="rgba" if clear else "rgb24",
            interpolation=_FILTERS[self.geometry.resample],
            src_colorspace=_colorspace(frame),
            threads=1,
        )
        pixels = _pixels(scaled, 4 if clear else 3)
        return _over(pixels, self.geometry.background) if clear else pixels


def _colorspace(frame: "VideoFrame") -> int | None:
    """BT.709 for HD that does not say; FFmpeg takes BT.601 for all that does not."""
    hd = frame.width >= 1280 or frame.height >= 720
    return int(library().video.reformatter.Colorspace.ITU709) if hd and frame.colorspace == _UNSPECIFIED else None


def _pixels(frame: "VideoFrame", channels: int) -> Pixels:
    """A view of a packed frame, (H, W, channels); it holds the frame."""
    plane: Any = frame.planes[0]
    stride: int = plane.line_size
    rows: Pixels = np.frombuffer(plane, np.uint8)[: stride * frame.height].reshape(frame.height, stride)
    return rows[:, : frame.width * channels].reshape(frame.height, frame.width, channels)


def _over(pixels: Pixels, background: tuple[int, int, int]) -> Pixels:
    """RGBA over a background colour."""
    alpha = pixels[..., 3:].astype(np.uint16)
    mixed = pixels[..., :3] * alpha + np.array(background, np.uint16) * (255 - alpha)
    return ((mixed + 127) // 255).astype(np.uint8)
