"""What the sound stream of a file is, and where its pieces lie in time."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self

import attrs

from dew_media.video.container import failures

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.container import InputContainer


@attrs.frozen(kw_only=True)
class Sound:
    """A file's first sound stream.

    Attributes:
        codec: FFmpeg's name of the codec.
        rate: samples a second.
        layout: FFmpeg's name of the channels, such as "mono", "stereo", "5.1".
        channels: their number.
        first: time of the first sample, in samples.
        head, piece: samples of the decoder's first piece and of those that follow; 0 where they differ.
    """

    codec: str
    rate: int
    layout: str
    channels: int
    first: int
    head: int
    piece: int

    def facts(self) -> Mapping[str, Any]:
        """As JSON values."""
        return attrs.asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """The inverse of `facts`."""
        return cls(**{field.name: facts[field.name] for field in attrs.fields(cls)})

    def sample(self, frame: "AudioFrame") -> int:
        """The number of a decoded piece's first sample, counted from time 0.

        Where ticks are coarser than samples, as Matroska's milliseconds are, times are rounded; but pieces of one
        length follow each other from the first on, so the count of them is exact.
        """
        tick = (frame.time_base or Fraction(1, self.rate)) * self.rate
        time = (frame.pts or 0) * tick
        if tick <= 1 or not self.piece:
            return round(time)
        if abs(time - self.first) <= tick:
            return self.first
        start = self.first + self.head
        exact = start + round((time - start) / self.piece) * self.piece
        return exact if abs(exact - time) <= tick else round(time)


def sound_of(container: "InputContainer") -> Sound | None:
    """The first sound stream, by decoding its first pieces; None where there is none that can be decoded."""
    if not container.streams.audio:
        return None
    stream = container.streams.audio[0]
    if stream.codec_context is None:  # pyright: ignore[reportUnnecessaryComparison] — an unknown codec
        return None
    frames = _first_frames(container)
    if not frames or frames[0].pts is None:
        return None
    lengths = [frame.samples for frame in frames]
    layout: Any = frames[0].layout
    rate = frames[0].sample_rate
    return Sound(
        codec=stream.codec_context.name,
        rate=rate,
        layout=layout.name,
        channels=layout.nb_channels,
        first=round(frames[0].pts * (frames[0].time_base or Fraction(1, rate)) * rate),
        head=lengths[0],
        piece=lengths[1] if len(set(lengths[1:])) == 1 else 0,
    )


def _first_frames(container: "InputContainer") -> "Sequence[AudioFrame]":
    stream = container.streams.audio[0]
    stream.codec_context.thread_count = 1
    frames: list[AudioFrame] = []
    try:
        for packet in container.demux(stream):
            frames.extend(packet.decode())
            if len(frames) > 4:
                break
    except failures():
        pass  # what was decoded before the damage says enough
    return frames[:5]
