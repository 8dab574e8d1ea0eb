"""The timestamp table of a video file: which frames it really has, and when each is shown.

The one idea: times come from the packets (after edit lists), never from a rate times an index, and never from counts in
a header. A checksum of every packet is kept beside its time, so that a file which changed after it was indexed is
noticed even where the codec itself cannot tell.
"""

import functools
import hashlib
import json
import zlib
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import DamagedSourceError, SourceError
from dew_media.video.clean import is_clean
from dew_media.video.container import VideoFile, failures, opened, picture_stream, prepare, reason, seconds
from dew_media.video.sound import Sound, sound_of
from dew_media.video.whole import missing_end

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

Ticks = npt.NDArray[np.int64]

KEY, HIDDEN = 1 << 32, 1 << 33
"""Flags above the checksum in the third row of `FrameTable.packets`."""

_UNKNOWN = np.iinfo(np.int64).min
_FINE = 8
"""With at least so many ticks between two frames, a file's times are taken to be rounded to whole ticks."""
_NO_TIMES = frozenset({"h264", "hevc", "m4v", "mpegvideo", "obu"})
"""Raw streams, without a container that could hold times."""


@attrs.frozen(kw_only=True)
class Orientation:
    """How a stored picture is turned to stand upright: transposed first, then mirrored along x and y."""

    transposed: bool = False
    flip_x: bool = False
    flip_y: bool = False

    def upright(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """`pixels` (H, W, ...) turned; a view."""
        turned = pixels.swapaxes(0, 1) if self.transposed else pixels
        return turned[:: -1 if self.flip_y else 1, :: -1 if self.flip_x else 1]

    @property
    def code(self) -> int:
        """0 to 7, for storage."""
        return self.transposed * 4 + self.flip_x * 2 + self.flip_y

    @classmethod
    def of(cls, code: int) -> "Orientation":
        """The inverse of `code`."""
        return cls(transposed=bool(code & 4), flip_x=bool(code & 2), flip_y=bool(code & 1))


@attrs.frozen(kw_only=True, eq=False)
class FrameTable:
    """What a file holds, as its packets say.

    Attributes:
        codec: FFmpeg's name of the codec.
        header: checksum of what the decoder is set up with.
        width, height: of a stored picture, in pixels.
        aspect: width of a pixel over its height.
        orientation: how stored pictures are turned to stand upright.
        time_base: seconds in a tick.
        times: when each frame is shown, (N,) increasing, in ticks.
        end: when the last frame stops being shown, in ticks.
        packets: (3, P) int64, for each packet in the file's order: its time; where a seek finds it; its CRC-32 with
            the flags `KEY` and `HIDDEN`.
        counted: the packets have no usable times; frames are found by decoding from the start and counting.
        clean: the first key packet is a clean start; where it is not, its group is decoded less strictly.
        cut: why the end of the file is missing, None for a whole file.
        sound: its sound, None where there is none.
    """

    codec: str
    header: int
    width: int
    height: int
    aspect: Fraction
    orientation: Orientation
    time_base: Fraction
    times: Ticks
    end: int
    packets: Ticks
    counted: bool = False
    clean: bool = True
    cut: str | None = None
    sound: Sound | None = None

    def __len__(self) -> int:
        """Number of frames."""
        return len(self.times)

    @property
    def rate(self) -> float:
        """Mean frames a second; what is true of the whole need not be true of any two frames."""
        return float(len(self.times) / ((self.end - int(self.times[0])) * self.time_base))

    @functools.cached_property
    def rounded(self) -> bool:
        """Whether times may be rounded to whole ticks, as a 24 fps file's are in milliseconds."""
        return len(self.times) > 1 and int(np.diff(self.times).min()) >= _FINE

    @functools.cached_property
    def begin(self) -> tuple[int, int]:
        """Number and time of the first packet that decoding can start from; nothing before it is ever decoded."""
        numbers = np.flatnonzero(self.packets[2] & KEY)
        number = int(numbers[0]) if len(numbers) else 0
        return number, int(self.packets[0, number])

    @functools.cached_property
    def keys(self) -> Ticks:
        """Time, seek target and number of every packet that decoding can start from, (K, 3) int64, by time."""
        numbers = np.flatnonzero(self.packets[2] & KEY)
        times, seeks = self.packets[:2, numbers]
        return np.stack([times, seeks, numbers], axis=1)[np.argsort(times, kind="stable")]

    def size(self, *, square_pixels: bool = True) -> tuple[int, int]:
        """Width and height of an upright picture; with `square_pixels` stretched by the pixels' aspect."""
        width = max(1, round(self.width * self.aspect)) if square_pixels else self.width
        return (self.height, width) if self.orientation.transposed else (width, self.height)

    def seconds(self, times: Ticks) -> npt.NDArray[np.float64]:
        """Times in seconds from the first frame."""
        return (times - self.times[0]) * float(self.time_base)

    def facts(self) -> dict[str, Any]:
        """All but the arrays, as JSON values."""
        return {
            "codec": self.codec,
            "header": self.header,
            "size": [self.width, self.height],
            "aspect": [self.aspect.numerator, self.aspect.denominator],
            "orientation": self.orientation.code,
            "time_base": [self.time_base.numerator, self.time_base.denominator],
            "end": self.end,
            "counted": self.counted,
            "clean": self.clean,
            "cut": self.cut,
            "sound": None if self.sound is None else self.sound.facts(),
        }

    @classmethod
    def from_parts(cls, facts: Mapping[str, Any], times: Ticks, packets: Ticks) -> "FrameTable":
        """The table that `facts()`, `times` and `packets` were taken from.

        Raises:
            DamagedSourceError: a part is missing or has another form.
        """
        try:
            return cls(
                codec=str(facts["codec"]),
                header=int(facts["header"]),
                width=int(facts["size"][0]),
                height=int(facts["size"][1]),
                aspect=Fraction(*facts["aspect"]),
                orientation=Orientation.of(facts["orientation"]),
                time_base=Fraction(*facts["time_base"]),
                times=np.asarray(times, np.int64).reshape(-1),
                end=int(facts["end"]),
                packets=np.asarray(packets, np.int64).reshape(3, -1),
                counted=bool(facts["counted"]),
                clean=bool(facts["clean"]),
                cut=facts["cut"],
                sound=None if facts["sound"] is None else Sound.from_facts(facts["sound"]),
            )
        except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError) as error:
            raise DamagedSourceError(
                f"not a frame table: {error!r} in {dict(facts)!r}; index the file again"
            ) from error

    def digest(self) -> str:
        """SHA-256 of the table, in hexadecimal: of the pictures themselves too, by the packets' checksums."""
        digest = hashlib.sha256(json.dumps(self.facts(), sort_keys=True).encode())
        for array in (self.times, self.packets):
            digest.update(np.ascontiguousarray(array, "<i8").tobytes())
        return digest.hexdigest()


def read_table(file: VideoFile, *, name: str, decode: bool = False) -> FrameTable:
    """Reads every packet of a file, and decodes its first frame.

    Args:
        file: a local path, bytes, or a seekable file object, which stays open.
        name: of the file, for messages.
        decode: decode every frame too, which finds damage that only the decoder sees. Done in any case where packets
            have no times of their own.

    Raises:
        SourceNotFoundError: there is no such file.
        SourceError: it holds no video, or pictures turned by other than quarter turns.
        DamagedSourceError: it is empty, no video, or no frame of it can be decoded; with `decode` any damage.
    """
    with opened(file, name=name) as container:
        stream = picture_stream(container, name=name)
        scan = _Scan.of(container, stream)
        kind = container.format.name
        scan.cut = scan.cut or missing_end(file, kind)
        if scan.cut is not None and kind == "gif":
            del scan.rows[-1:]  # FFmpeg gives what there is of it, and does not say so
        facts = _Facts.of(container, stream)
    if not scan.rows:
        raise DamagedSourceError(f"{name} holds no frames: {scan.cut or 'its video stream is empty'}")
    counted = scan.without_times or facts.guessed_times
    decoded = _decoded(file, scan, name, every=decode or counted)
    first = decoded[0]
    times, end = _times_by_count(decoded, facts, name) if counted else scan.shown()
    if not len(times):
        raise DamagedSourceError(f"{name} holds no whole frame: {scan.cut or 'every one is hidden by an edit list'}")
    if decode and not counted:
        _check_all(times, decoded, facts.time_base, name)
    sound = None
    if facts.has_sound:
        with opened(file, name=name) as container:
            sound = sound_of(container)
    return FrameTable(
        codec=facts.codec,
        header=facts.header,
        width=first.width,
        height=first.height,
        aspect=facts.aspect,
        orientation=orientation_of(first.matrix, name=name),
        time_base=facts.time_base,
        times=times,
        end=end,
        packets=scan.packets(),
        counted=counted,
        clean=scan.clean,
        cut=scan.cut,
        sound=sound,
    )


@attrs.frozen
class _Facts:
    codec: str
    header: int
    time_base: Fraction
    aspect: Fraction
    rate: Fraction | None
    guessed_times: bool
    has_sound: bool

    @classmethod
    def of(cls, container: "InputContainer", stream: "VideoStream") -> "_Facts":
        context = stream.codec_context
        kind = container.format.name
        # AVI stores no presentation times: FFmpeg's guesses are wrong where frames are reordered.
        guessed = kind in _NO_TIMES or (kind == "avi" and bool(context.has_b_frames))
        aspect = stream.sample_aspect_ratio
        return cls(
            codec=context.name,
            header=header_of(stream),
            time_base=stream.time_base or Fraction(1, 1000),
            aspect=aspect if aspect is not None and aspect > 0 else Fraction(1),
            rate=stream.guessed_rate or stream.average_rate,
            guessed_times=guessed,
            has_sound=bool(container.streams.audio),
        )


_Row: TypeAlias = tuple[int, int, int, int]


@attrs.define
class _Scan:
    """The packets of a file, as they are stored."""

    rows: list["_Row"] = attrs.field(factory=list["_Row"])  # time, decoding time, check, duration
    cut: str | None = None
    clean: bool = True
    started: bool = False

    @classmethod
    def of(cls, container: "InputContainer", stream: "VideoStream") -> "_Scan":
        scan = cls()
        try:
            for packet in container.demux(stream):
                if packet.size and not scan.add(packet):
                    break
        except failures() as error:
            scan.cut = reason(error)
        return scan

    def add(self, packet: "Packet[VideoStream]") -> bool:
        if packet.is_corrupt:
            self.cut = "its last packet is cut"
            return False
        if packet.is_keyframe and not self.started:
            context, self.started = packet.stream.codec_context, True
            self.clean = context.name != "h264" or is_clean(bytes(packet), context.extradata)
        check = checked(packet) | KEY * packet.is_keyframe | HIDDEN * packet.is_discard
        time, seek = packet.pts, packet.dts
        self.rows.append(
            (_UNKNOWN if time is None else time, _UNKNOWN if seek is None else seek, check, packet.duration or 0)
        )
        return True

    @property
    def without_times(self) -> bool:
        times = [row[0] for row in self.rows]
        return _UNKNOWN in times or len(set(times)) < len(times)

    def packets(self) -> Ticks:
        rows = [(time, time if seek == _UNKNOWN else seek, check) for time, seek, check, _ in self.rows]
        return np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, 3).T)

    @property
    def begin(self) -> tuple[int, int]:
        """Number and time of the first key packet. A recording may begin within a group of pictures: what comes before
        has nothing to refer to, and is no frame."""
        return next(((number, row[0]) for number, row in enumerate(self.rows) if row[2] & KEY), (0, _UNKNOWN))

    def shown(self) -> tuple[Ticks, int]:
        """The times of the frames that are shown, and the end of the last."""
        begin = self.begin[1]
        kept = sorted((row for row in self.rows if not row[2] & HIDDEN and row[0] >= begin), key=lambda row: row[0])
        if self.cut is not None:
            kept = [row for row in kept if row[0] <= self._certain()]
        times = np.array([row[0] for row in kept], np.int64)
        return times, _end(times, kept[-1][3] if kept else 0)

    def _certain(self) -> int:
        """The last time before which no frame can be missing, of a file whose end is."""
        last = self.rows[-1][1]
        if last != _UNKNOWN:
            return last
        keys = [place for place, row in enumerate(self.rows) if row[2] & KEY]
        before = [row[0] for row in self.rows[: keys[-1]]] if keys else []
        return max(before, default=_UNKNOWN)


def header_of(stream: "VideoStream") -> int:
    """The checksum of what the decoder is set up with."""
    return zlib.crc32(stream.codec_context.extradata or b"")


def checked(packet: "Packet[VideoStream]") -> int:
    """The checksum of a packet's bytes."""
    return zlib.crc32(packet)  # pyright: ignore[reportArgumentType] — a packet has the buffer protocol


def _end(times: Ticks, duration: int) -> int:
    if not len(times):
        return 0
    if duration <= 0:
        duration = int(times[-1] - times[-2]) if len(times) > 1 else 1
    return int(times[-1]) + duration


@attrs.frozen
class _Decoded:
    time: int | None
    width: int
    height: int
    matrix: tuple[int, ...] | None


def _decoded(file: VideoFile, scan: _Scan, name: str, *, every: bool) -> list[_Decoded]:
    """The first frame that the decoder gives, or every one; a cut file's up to the cut."""
    found: list[_Decoded] = []
    failure: BaseException | None = None
    with opened(file, name=name) as container:
        stream = picture_stream(container, name=name)
        prepare(stream, strict=scan.clean)
        base = stream.time_base or Fraction(1, 1000)
        packets = container.demux(stream)
        first, begin = scan.begin
        number, time = -1, begin
        while every or not found:
            try:
                packet, number = next(packets, None), number + 1
                time = begin if packet is None or packet.pts is None else packet.pts
                frames = packet.decode() if packet is not None and number >= first else []
            except failures() as error:
                failure = failure or error
                if time < begin:
                    continue  # it is shown before the first key frame, and refers to what is not there
                if every and scan.cut is None:
                    at = seconds(found[-1].time or 0, base) if found else "its first frame"
                    raise DamagedSourceError(f"{name} is damaged after {at}: {reason(error)}") from error
                if every or len(scan.rows) < 2:
                    break
                continue
            if packet is None or (every and scan.cut is not None and not packet.size):
                break  # emptied, a decoder gives the last frames of a cut file in the wrong order
            for frame in frames:
                if frame.pts is not None and frame.pts < begin:
                    continue
                if every and frame.is_corrupt and scan.cut is None:
                    raise DamagedSourceError(
                        f"{name} is damaged at {seconds(frame.pts or 0, base)}: a frame is corrupt"
                    )
                found.append(_Decoded(frame.pts, frame.width, frame.height, matrix_of(frame)))
    if not found:
        why = "" if failure is None else f": {reason(failure)}"
        raise DamagedSourceError(f"{name} holds no frame that can be decoded{why}") from failure
    return found


def _times_by_count(decoded: list[_Decoded], facts: _Facts, name: str) -> tuple[Ticks, int]:
    """Times of frames in the order they are decoded: their own where they increase, else the declared rate's."""
    own = np.array([_UNKNOWN if frame.time is None else frame.time for frame in decoded], np.int64)
    if _UNKNOWN not in own and bool(np.all(own[1:] > own[:-1])):
        return own, _end(own, 0)
    step = 1 / (facts.rate * facts.time_base) if facts.rate else Fraction(0)
    if step < 1:
        raise SourceError(
            f"{name} has no times for its frames, and its frame rate of {facts.rate} gives none in ticks of "
            f"{facts.time_base} s; put it into an mp4 or mkv file"
        )
    times = np.array([round(number * step) for number in range(len(decoded) + 1)], np.int64)
    return times[:-1], int(times[-1])


def _check_all(times: Ticks, decoded: list[_Decoded], base: Fraction, name: str) -> None:
    """Every frame that a packet promises was decoded, and no other."""
    found = {frame.time for frame in decoded}
    missing = [time for time in times.tolist() if time not in found]
    if missing:
        raise DamagedSourceError(
            f"{name} is damaged: its packets hold {len(times)} frames, {len(missing)} of them cannot be decoded, "
            f"the first at {seconds(missing[0], base)}"
        )


def matrix_of(frame: "VideoFrame") -> tuple[int, ...] | None:
    """The display matrix of a frame: nine fixed-point numbers, None where it has none."""
    data: Any = frame.side_data.get("DISPLAYMATRIX")
    return None if data is None else tuple(np.frombuffer(bytes(data), "<i4")[:9].tolist())


def orientation_of(matrix: tuple[int, ...] | None, *, name: str) -> Orientation:
    """The quarter turns and mirrorings that a display matrix asks for.

    Raises:
        SourceError: it asks for something else.
    """
    if matrix is None:
        return Orientation()
    a, b, _, c, d = matrix[:5]
    if a and d and not b and not c:
        return Orientation(flip_x=a < 0, flip_y=d < 0)
    if b and c and not a and not d:
        return Orientation(transposed=True, flip_x=c < 0, flip_y=b < 0)
    shown = [round(value / 65536, 3) for value in (a, b, c, d)]
    raise SourceError(f"{name} is to be shown turned by the matrix {shown}; Dew turns by 90, 180 and 270 degrees only")
