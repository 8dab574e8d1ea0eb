"""Which frames of a file make a clip: a pure function of its timestamp table and the record's draws.

By `stride`, every n-th stored frame. By `fps`, the frames that are shown at evenly spaced times: the two differ where a
file's rate varies. Neither uses a mean rate, and all arithmetic is in whole ticks.
"""

import math
from fractions import Fraction
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs
import numpy as np

from dew.data import checks
from dew.data.errors import OptionsError, OptionsTypeError, SourceError
from dew_media.video.frames import FrameTable, Ticks

CLIPS_VERSION: Final = 1

Short: TypeAlias = Literal["error", "repeat_last", "loop"]
"""What becomes of a file that is shorter than a clip: refused, its last frame held, or begun again."""


@attrs.frozen(kw_only=True, eq=False)
class Clip:
    """The frames of one clip.

    Attributes:
        frames: number of each in the file, (T,).
        times: when each is shown, (T,) in ticks of the file's time base.
        start: when the clip begins, in ticks.
        looped: it begins again at the file's first frame, where it goes over the end.
    """

    frames: Ticks
    times: Ticks
    start: int
    looped: bool


def _rate(value: Any) -> Any:
    """15, 29.97 and Fraction(30000, 1001) are exactly what they say."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return Fraction(str(value))
    return value


@attrs.frozen(kw_only=True)
class ClipPolicy:
    """How clips are taken from files.

    Args:
        frames: frames T of a clip.
        stride: every `stride`-th stored frame; 1 where no `fps` is given.
        fps: frames a second of the clip, instead of `stride`: each is the one that the file shows at that time.
        clips_per_video: so many clips of each file, spread evenly from the first start to the last, so that a record
            is a file and a clip's number; by default one, whose start is drawn.
        short: what becomes of a file that is shorter than a clip.

    A clip begins with a frame; where its start is drawn, each frame from which a whole clip follows is equally likely.

    Raises:
        OptionsError, OptionsTypeError: an option is out of range, or both `stride` and `fps` are given.
    """

    frames: int = attrs.field(default=16, validator=checks.count())
    stride: int | None = attrs.field(default=None, validator=attrs.validators.optional(checks.count()))
    fps: Fraction | float | None = attrs.field(default=None, converter=_rate)
    clips_per_video: int | None = attrs.field(default=None, validator=attrs.validators.optional(checks.count()))
    short: Short = "error"

    def __attrs_post_init__(self) -> None:
        if self.fps is not None and not isinstance(self.fps, Fraction):
            raise OptionsTypeError(f"fps must be a number of frames a second, got {self.fps!r}")
        if self.fps is not None and self.fps <= 0:
            raise OptionsError(f"fps must be greater than 0, got {self.fps}")
        if self.fps is not None and self.stride is not None:
            raise OptionsError(
                f"give stride={self.stride} (every n-th stored frame) or fps={float(self.fps):g} (frames by time), "
                "not both"
            )
        if self.short not in get_args(Short):
            raise OptionsError(f"short must be one of {', '.join(map(repr, get_args(Short)))}, got {self.short!r}")

    @property
    def seconds(self) -> float | None:
        """How long a clip lasts; None by `stride`, where each file's own times decide."""
        return None if self.fps is None else float(self.frames / self.fps)

    def starts(self, table: FrameTable) -> int:
        """How many frames of a file a whole clip can begin with: the first so many; 0 where the file is too short."""
        if self.fps is None:
            return max(0, len(table) - (self.frames - 1) * (self.stride or 1))
        reach = self.reach(table.time_base, rounded=table.rounded)
        return int(np.searchsorted(table.times, table.end - reach, side="left"))

    def reach(self, time_base: Fraction, *, rounded: bool) -> int:
        """Ticks from a clip's start to the time of its last frame, by `fps`; see `FrameTable.rounded`."""
        return int(self._ticks(time_base, rounded=rounded)[-1])

    def plan(
        self, table: FrameTable, *, name: str, rng: np.random.Generator | None = None, number: int | None = None
    ) -> Clip:
        """One clip.

        Args:
            table: of the file.
            name: of the file, for messages.
            rng: the record's draws; one 64-bit word is taken, always. None leaves nothing to chance: the clip in the
                middle.
            number: of the clip, 0 to `clips_per_video - 1`; its start is no chance.

        Raises:
            SourceError: the file is shorter than a clip, and `short` is "error".
        """
        word = None if rng is None else int(rng.bit_generator.random_raw())
        starts = self.starts(table)
        if not starts:
            return self._short(table, name)
        first = self._first(starts, word, number)
        if self.fps is None:
            frames = first + np.arange(self.frames, dtype=np.int64) * (self.stride or 1)
        else:
            frames = _shown_at(table, table.times[first] + self._offsets(table))
        return Clip(frames=frames, times=table.times[frames], start=int(table.times[first]), looped=False)

    def identity(self) -> dict[str, Any]:
        """Everything that shapes a clip, as JSON values."""
        return {
            "version": CLIPS_VERSION,
            "frames": self.frames,
            "stride": None if self.fps is not None else self.stride or 1,
            "fps": None if self.fps is None else str(self.fps),
            "clips_per_video": self.clips_per_video,
            "short": self.short,
        }

    def _first(self, starts: int, word: int | None, number: int | None) -> int:
        if self.clips_per_video is not None:
            if number is None or not 0 <= number < self.clips_per_video:
                raise OptionsError(f"clips are numbered 0 to {self.clips_per_video - 1}, got {number}")
            if self.clips_per_video > 1:
                return number * (starts - 1) // (self.clips_per_video - 1)
        elif word is not None:
            return word * starts >> 64
        return (starts - 1) // 2

    def _offsets(self, table: FrameTable) -> Ticks:
        """Wanted times from the clip's start on, in whole ticks, (T,).

        A time between two ticks is rounded up where the file's own times are rounded, down where they are exact: a
        24 fps file in milliseconds has frames at 0, 42, 83, and at 41.67 ms the second one is wanted.
        """
        return self._ticks(table.time_base, rounded=table.rounded)

    def _ticks(self, time_base: Fraction, *, rounded: bool) -> Ticks:
        assert isinstance(self.fps, Fraction)
        step = 1 / (self.fps * time_base)
        whole = math.ceil if rounded else math.floor
        return np.array([whole(number * step) for number in range(self.frames)], np.int64)

    def _short(self, table: FrameTable, name: str) -> Clip:
        start = int(table.times[0])
        if self.short == "error":
            lasts = f"every {self.stride or 1}. frame" if self.fps is None else f"{float(self.fps):g} frames/s"
            held = float((table.end - start) * table.time_base)
            raise SourceError(
                f"{name} is too short: a clip is {self.frames} frames, {lasts}; the file has {len(table)} frames in "
                f"{held:.3f} s. Ask for less, leave the file out, or say short='repeat_last' or short='loop'"
            )
        looped = self.short == "loop"
        if self.fps is None:
            frames = np.arange(self.frames, dtype=np.int64) * (self.stride or 1)
            frames = frames % len(table) if looped else np.minimum(frames, len(table) - 1)
        else:
            offsets = self._offsets(table)
            frames = _shown_at(table, start + (offsets % (table.end - start) if looped else offsets))
        return Clip(frames=frames, times=table.times[frames], start=start, looped=looped)


def _shown_at(table: FrameTable, times: Ticks) -> Ticks:
    """The number of the frame that is shown at each time; the last one is held."""
    return np.searchsorted(table.times, times, side="right").astype(np.int64) - 1
