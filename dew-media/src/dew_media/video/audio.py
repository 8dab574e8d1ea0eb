"""The sound of a clip: float32 samples that begin with its first frame, to within a sample.

Every piece that the decoder gives is put where its own time says, so that a gap in the sound stays a gap; then the
whole is resampled once. Sound before the stream begins and after it ends is silence.
"""

import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import attrs
import numpy as np
import numpy.typing as npt

from dew.data import checks
from dew.data.errors import DamagedSourceError, OptionsError, OptionsTypeError, SourceError
from dew_media.video.clips import Clip, ClipPolicy
from dew_media.video.container import failures, library, reason
from dew_media.video.frames import FrameTable
from dew_media.video.sound import Sound

if TYPE_CHECKING:
    from av.container import InputContainer

Samples: TypeAlias = npt.NDArray[np.float32]
Missing: TypeAlias = Literal["error", "silence"]

_LAYOUTS: Final = {1: "mono", 2: "stereo"}
_BEFORE: Final = Fraction(1, 2)
"""Seconds decoded ahead of a clip: decoders need some tenths after a seek before what they give is right."""
_BESIDE: Final = Fraction(1, 20)
"""Seconds of neighbouring sound at each side, for the resampling filter."""


@attrs.frozen(kw_only=True)
class AudioOptions:
    """The sound that comes with a clip.

    Args:
        rate: samples a second; sound of another rate is resampled.
        channels: 1 (mixed to mono) or 2.
        seconds: how much sound a clip has; by default as long as it lasts, which needs `fps`, since by `stride` that
            differs from file to file.
        missing: what becomes of files without sound: an error, or silence.

    Raises:
        OptionsError, OptionsTypeError: an option is out of range.
    """

    rate: int = attrs.field(default=16_000, validator=checks.count())
    channels: int = attrs.field(default=1, validator=checks.count())
    seconds: float | None = None
    missing: Missing = "error"

    def __attrs_post_init__(self) -> None:
        if self.channels not in _LAYOUTS:
            raise OptionsError(f"channels must be 1 or 2, got {self.channels}")
        number = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if self.seconds is not None and not number:
            raise OptionsTypeError(f"seconds must be a number, got {self.seconds!r}")
        if self.seconds is not None and not 0 < self.seconds < float("inf"):
            raise OptionsError(f"seconds must be greater than 0, got {self.seconds}")
        if self.missing not in get_args(Missing):
            raise OptionsError(f"missing must be one of 'error', 'silence', got {self.missing!r}")

    def samples(self, policy: ClipPolicy) -> int:
        """How many samples a clip has.

        Raises:
            OptionsError: neither `seconds` nor the policy's `fps` says how long a clip lasts.
        """
        lasts = policy.seconds if self.seconds is None else self.seconds
        if lasts is None:
            raise OptionsError(
                "with stride, clips of different files last differently long, but sound of one length is needed: "
                "give fps= instead of stride=, or AudioOptions(seconds=)"
            )
        return max(1, round(lasts * self.rate))

    def identity(self) -> dict[str, Any]:
        """Everything that shapes the sound, as JSON values."""
        return attrs.asdict(self)


class SeekFailedError(Exception):
    """The place of a clip's sound was not found by seeking."""


def clip_sound(
    container: "InputContainer",
    table: FrameTable,
    clip: Clip,
    samples: int,
    options: AudioOptions,
    *,
    name: str,
    seek: bool = True,
) -> Samples:
    """`samples` of a clip's sound, `(samples, channels)` float32, nominally -1 to 1.

    Without `seek` the container is read from where it is, its beginning.

    Raises:
        SeekFailedError: read it again from the beginning.
        SourceError: the file has no sound, and `options.missing` is "error".
        DamagedSourceError: its sound cannot be decoded.
    """
    made = np.zeros((samples, options.channels), np.float32)
    if table.sound is None or not container.streams.audio:
        if options.missing == "error":
            raise SourceError(
                f"{name} has no sound that can be decoded; leave the file out, or say AudioOptions(missing='silence')"
            )
        return made
    begin = clip.start * table.time_base
    for first, stop in _rounds(table, samples, options.rate) if clip.looped else [(0, samples)]:
        made[first:stop] = _piece(container, table.sound, begin, stop - first, options, name, seek=seek)
    return made


def _rounds(table: FrameTable, samples: int, rate: int) -> Iterator[tuple[int, int]]:
    """The samples of each round of a looped file. Their ends are counted from the start: rounding does not add up."""
    period = (table.end - int(table.times[0])) * table.time_base * rate
    done = 0
    for number in itertools.count(1):
        stop = min(samples, round(number * period))
        if stop > done:
            yield done, stop
        done = stop
        if done == samples:
            return


def _piece(
    container: "InputContainer",
    sound: Sound,
    begin: Fraction,
    count: int,
    options: AudioOptions,
    name: str,
    *,
    seek: bool,
) -> Samples:
    """`count` samples from the time `begin` (in seconds) on, (count, channels)."""
    end = begin + Fraction(count, options.rate)
    first = round((begin - _BESIDE) * sound.rate)
    waves = np.zeros((sound.channels, round((end + _BESIDE) * sound.rate) - first), np.float32)
    for start, piece in _pieces(container, sound, begin, end, name, seek=seek):
        place = start - first
        low, high = max(0, place), min(waves.shape[1], place + piece.shape[1])
        if low < high:
            waves[:, low:high] = piece[: sound.channels, low - place : high - place]
    converted = _converted(waves, sound, options)
    skipped = round((begin - Fraction(first, sound.rate)) * options.rate)
    made = np.zeros((count, options.channels), np.float32)
    kept = converted[skipped : skipped + count]
    made[: len(kept)] = kept
    return made


def _pieces(
    container: "InputContainer", sound: Sound, begin: Fraction, end: Fraction, name: str, *, seek: bool
) -> "list[tuple[int, Samples]]":
    """What the decoder gives between two times: number of the first sample, and (channels, n) samples."""
    av = library()
    stream = container.streams.audio[0]
    base = stream.time_base or Fraction(1, sound.rate)
    tick = base * sound.rate
    found: list[tuple[int, Samples]] = []
    planes = av.AudioResampler(format="fltp")
    early = max(begin - _BEFORE, Fraction(sound.first, sound.rate))
    try:
        if seek:
            container.seek(round(early / base), stream=stream, backward=True)
    except av.FFmpegError as error:
        raise SeekFailedError(reason(error)) from error
    packets = container.demux(stream)
    at, begun = early, False
    while True:
        try:
            packet = next(packets, None)
            at = at if packet is None or packet.pts is None else packet.pts * base
            frames = [] if packet is None else packet.decode()
        except failures() as error:
            if at < begin - _BESIDE:
                continue  # after a seek, what the first packets refer to is missing
            raise DamagedSourceError(f"{name}: its sound is damaged at {float(at):.3f} s: {reason(error)}") from error
        for frame in frames:
            if frame.pts is not None and frame.samples:
                if not begun:
                    begun = True
                    if seek and at > max(early, begin - _BESIDE) + 2 * base:
                        raise SeekFailedError(f"a seek to {float(early)} s led to {float(at)} s")
                    if sound.sample(frame) > sound.first:
                        continue  # the first piece of a new decoder is shortened by the stream's own padding (Opus)
                follows = found[-1][0] + found[-1][1].shape[1] if found else None
                start = sound.sample(frame)
                if follows is not None and abs(start - follows) <= tick:
                    start = follows
                found.extend((start, piece.to_ndarray()) for piece in planes.resample(frame))
        if packet is None or at > end + _BESIDE:
            return found


def _converted(waves: Samples, sound: Sound, options: AudioOptions) -> Samples:
    """(channels, n) as (n', channels) at the rate and with the channels asked for."""
    av = library()
    layout = _LAYOUTS[options.channels]
    known = _LAYOUTS.get(sound.channels, sound.layout)  # a file may say no more than "2 channels"
    frame = av.AudioFrame.from_ndarray(waves, format="fltp", layout=known)
    frame.sample_rate = sound.rate
    resampler = av.AudioResampler(format="flt", layout=layout, rate=options.rate)
    pieces = [*resampler.resample(frame), *resampler.resample(None)]
    return np.concatenate([piece.to_ndarray().reshape(-1, options.channels) for piece in pieces])
