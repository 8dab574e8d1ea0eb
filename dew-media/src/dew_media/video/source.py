"""The record source of videos: encoded files in, records of one clip each out.

`source[i]` leaves nothing to chance: the clip in the middle of a file, the middle of its pictures, its first caption.
`drawn(i, rng)` is the same record with its random parts, which a training stream reads with the record's own draws.
"""

import hashlib
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from dew.data.errors import SourceError
from dew_media.files.collection import MediaFiles
from dew_media.video.clips import Clip, ClipPolicy
from dew_media.video.container import VideoFile
from dew_media.video.frames import FrameTable
from dew_media.video.index import Facts, VideoIndex
from dew_media.video.opened import OpenVideos
from dew_media.video.options import ClipOptions
from dew_media.video.statistics import statistics_of

LABEL, CAPTION, AUDIO = "label", "caption", "audio"

_NAMED: Final = 5


class VideoSource:
    """The clips of a collection as records.

    A record is `{"video": (T, H, W, 3) uint8}`, with `"label"` (int32) and `"caption"` (str) where the collection has
    them, and `"audio"` (samples, channels) float32 where asked for. With `clips_per_video=n`, records n*f to n*f+n-1
    are the clips of file f; else record f is one clip of file f.

    Args:
        files: the encoded videos, all of them in the index.
        index: their timestamp tables.
        options: which clips, and how they become arrays.

    Raises:
        SourceError: captions are required and there are none; files are too short, or have pixels that are not square,
            and that is to be refused.
    """

    def __init__(self, files: MediaFiles, index: VideoIndex, options: ClipOptions) -> None:
        if options.captions == "require" and not files.has_captions:
            raise SourceError(
                f"captions are required, and there are none: {files.description()}; put them in a metadata table or in "
                '.txt files beside the videos, or ask for captions="keep"'
            )
        self.files = files
        self._index = index
        self._options = options
        self._policy = options.policy
        self._geometry = options.geometry
        self._captioned = files.has_captions and options.captions != "drop"
        self._samples = 0 if options.audio is None else options.audio.samples(self._policy)
        self._videos = OpenVideos()
        self._check()

    def __len__(self) -> int:
        return len(self.files) * self._clips

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        """Record `index`, without chance.

        Raises:
            IndexError: there is no such record.
            DamagedSourceError, SourceError: the clip cannot be read; names file and time.
        """
        return self._record(operator.index(index), None)

    def drawn(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        """Record `index` with its random parts.

        Five 64-bit words of `rng` are taken, whatever is needed of them: one for the clip's start, three for the
        geometry, one for the caption.

        Raises:
            As `source[index]`.
        """
        return self._record(operator.index(index), rng)

    def __repr__(self) -> str:
        return f"VideoSource({self.files.description()}, clips_per_video={self._policy.clips_per_video})"

    @property
    def label_names(self) -> tuple[str, ...]:
        """Name of each label, `()` where there are none."""
        return self.files.label_names

    @property
    def field(self) -> str:
        """Name of the field of clips."""
        return self._options.field

    def fingerprint(self) -> str:
        """Of the collection, and of every frame's time and every packet's checksum as they were indexed."""
        return hashlib.sha256(f"{self.files.digest()}\0{self._index.digest()}".encode()).hexdigest()

    def identity(self) -> dict[str, Any]:
        """What shapes clips, pixels and sound, and whether there are captions."""
        return {**self._options.shape(), "captioned": self._captioned}

    def made_by(self) -> dict[str, str]:
        """Version of the library that decodes."""
        from importlib.metadata import version

        return {"av": version("av")}

    def statistics(self) -> Mapping[str, Mapping[str, int]]:
        """Lengths, sizes, rates, codecs and sound of up to 10 000 videos, from their tables."""
        return statistics_of(self.files, self._index)

    def shares_records_with(self, other: object) -> int:
        """How many files both read, where that can be told: local files by their paths."""
        if not isinstance(other, VideoSource) or not len(self.files) or self.files.path(0) is None:
            return 0
        ours = {self.files.path(index) for index in range(len(self.files))}
        return sum(other.files.path(index) in ours for index in range(len(other.files)))

    def clip(self, index: int, rng: np.random.Generator | None = None) -> tuple[FrameTable, Clip]:
        """Which frames record `index` holds, with these draws, and the table of their file; decodes nothing."""
        file, number = divmod(self._checked(index), self._clips)
        table = self._index.table(self.files.key(file))
        chosen = None if self._policy.clips_per_video is None else number
        return table, self._policy.plan(table, name=self.files.name(file), rng=rng, number=chosen)

    def open(self) -> Self:
        """A reader of the same records with files of its own."""
        reader = object.__new__(type(self))
        reader.__dict__.update(self.__dict__, files=self.files.reopened(), _videos=OpenVideos())
        return reader

    def close(self) -> None:
        """Closes its files; reading again opens them again."""
        videos, self._videos = self._videos, OpenVideos()
        videos.close()
        self.files.close()

    @property
    def _clips(self) -> int:
        return self._policy.clips_per_video or 1

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} was asked for, there are records 0 to {len(self) - 1}")
        return index

    def _record(self, index: int, rng: np.random.Generator | None) -> dict[str, Any]:
        table, clip = self.clip(index, rng)
        files, options, file = self.files, self._options, index // self._clips
        name = files.name(file)
        width, height = table.size(square_pixels=options.aspect != "ignore")
        placement = self._geometry.plan(width, height, rng, name=name)
        with self._videos.opened(file, lambda: self._file(file), name=name) as video:
            # Sound first: it needs a container that nothing was read from.
            sound = None if options.audio is None else video.sound(table, clip, self._samples, options.audio)
            pixels = video.clip(table, clip.times, geometry=self._geometry, placement=placement)
        record: dict[str, Any] = {options.field: pixels}
        if sound is not None:
            record[AUDIO] = sound
        if options.times is not None:
            record[options.times] = table.seconds(clip.times).astype(np.float32)
        word = 0 if rng is None else int(rng.bit_generator.random_raw())
        if (label := files.label(file)) is not None:
            record[LABEL] = np.int32(label)
        if self._captioned:
            captions = files.captions(file)
            record[CAPTION] = captions[word * len(captions) >> 64]
        return record

    def _file(self, index: int) -> VideoFile:
        path = self.files.path(index)
        return self.files.open_file(index) if path is None else path

    def _check(self) -> None:
        """What would fail in the middle of a run is refused here: the head of the index says it."""
        options, policy, files = self._options, self._policy, self.files
        facts = self._index.facts[self._index.rows(files.key(at) for at in range(len(files)))]

        def named(which: npt.NDArray[np.bool_], value: Callable[[Any], str]) -> list[str]:
            return [f"{files.name(int(at))}{value(facts[at])}" for at in np.flatnonzero(which)]

        if options.short == "error":
            rate = f"stride={policy.stride or 1}" if policy.fps is None else f"fps={float(policy.fps):g}"
            _refuse(
                named(_too_short(policy, facts), lambda row: f" ({row['frames']} frames)"),
                f"too short for a clip of {policy.frames} frames with {rate}",
                "short='repeat_last' or short='loop' fills them up",
            )
        if options.aspect == "refuse":
            oblong = facts["aspect"][:, 0] != facts["aspect"][:, 1]
            _refuse(
                named(oblong, lambda row: " ({}/{})".format(*row["aspect"])),
                "pixels that are not square",
                "aspect='respect' stretches them",
            )
        if options.audio is not None and options.audio.missing == "error":
            _refuse(
                named(~facts["sound"], lambda _: ""),
                "no sound",
                "AudioOptions(missing='silence') takes them as silent",
            )


def _too_short(policy: ClipPolicy, facts: Facts) -> npt.NDArray[np.bool_]:
    """Files that no whole clip fits into, as `policy.starts` says of their tables."""
    if policy.fps is None:
        return facts["frames"] <= (policy.frames - 1) * (policy.stride or 1)
    kinds, which = np.unique(np.column_stack([facts["base"], facts["rounded"]]), axis=0, return_inverse=True)
    reaches = [policy.reach(Fraction(base, per), rounded=bool(rounded)) for base, per, rounded in kinds.tolist()]
    return facts["ticks"] <= np.array(reaches, np.int64)[which]


def _refuse(names: list[str], what: str, advice: str) -> None:
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        count = f"{len(names)} file{'s' * (len(names) > 1)}"
        raise SourceError(
            f"{what}: {count}, {', '.join(names[:_NAMED])}{more}; {advice}, or leave them out with exclude="
        )
