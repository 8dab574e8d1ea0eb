"""Tar shards in the layout of webdataset, read at random: files with one key are one sample.

`a/0001.jpg`, `a/0001.txt` and `a/0001.cls` are an image, its caption and its label. What a sample lacks is found in the
index, before anything is read.
"""

import hashlib
import threading
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Final, cast, overload

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import DamagedSourceError, DewWarning, OptionsError, SourceError, StorageError
from dew_media.files import metadata
from dew_media.files.collection import Missing, Opened, StoredFiles, check_index, real_place
from dew_media.files.folder import CaptionsFrom, LabelsFrom, caption_text
from dew_media.files.problems import NO_CAPTION, NO_LABEL, SHARDS, TWO_CAPTIONS, Kind, Problems, listed
from dew_media.files.ranged import open_range
from dew_media.files.tar_index import TarIndex, problems_of
from dew_media.files.tar_places import OnProgress, ShardSpec, no_longer, open_index
from dew_media.files.tar_walk import BLOCK

TEXTS: Final = ("caption", "txt")
LABELS: Final = ("cls",)
NOTES: Final = ("json",)

_ALONG: Final = 1 << 16  # bytes that are read beside a main file, so that its caption costs no request of its own

NO_MEDIA: Final = Kind("sample without its main file", "samples without their main file")
TWO_MEDIA: Final = Kind("sample with two main files", "samples with two main files")


@attrs.frozen(kw_only=True)
class TarSpec:
    """Tar shards and how to read them.

    Args:
        shards: where they are.
        suffixes: of the main files, in lower case with their dot.
        prefix: what the names of this split's shards begin with, "" for all.
        part: what follows the first dot in the name of the main file, such as `jpg` or `seg.png`; None: a suffix.
        missing: whether what does not fit together is refused or left out.
        captions, labels: where they come from (`sidecars`: `.txt`, `.caption` and `.cls`; `metadata`: `.json`); None:
            found from what is there.
        caption_field: the field of captions in `.json`.
    """

    shards: ShardSpec
    suffixes: frozenset[str]
    prefix: str = ""
    part: str | None = None
    missing: Missing = "error"
    captions: CaptionsFrom | None = None
    labels: LabelsFrom | None = None
    caption_field: str | None = None


@attrs.frozen(kw_only=True, eq=False)
class Parts:
    """One file of every sample: its shard, its place and its header's CRC-32."""

    shards: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    headers: npt.NDArray[np.uint32]


@attrs.frozen(kw_only=True, eq=False)
class TarSamples(Opened):
    """What shards hold.

    Args:
        names: of the shards.
        media, captions, labels: the files of each sample; None where there are none.
        caption_json: the field that holds captions, where they are in `.json`; "" elsewhere.
        label_json: whether labels are in `.json`.
        unended: shards without the mark that ends an archive.
    """

    names: tuple[str, ...]
    media: Parts
    captions: Parts | None
    labels: Parts | None
    caption_json: str = ""
    label_json: bool = False
    unended: tuple[str, ...] = ()


class TarFiles(StoredFiles[TarSamples]):
    """`MediaFiles` of tar shards."""

    def __init__(self, spec: TarSpec, on_progress: OnProgress | None = None) -> None:
        self._spec = spec
        self._near = threading.local()
        self._tell = on_progress
        super().__init__()
        self._tell = None
        if lacking := self.known.unended:
            warnings.warn(
                f"{self._location()}: the mark that ends an archive is missing in {SHARDS.counted(len(lacking))}, "
                f"{listed(lacking)}; all members that are there are whole, but more may have been cut off",
                DewWarning,
                stacklevel=2,
            )

    def _open(self) -> TarSamples:
        index = open_index(self._spec.shards, self._tell)
        return _Choice(self._spec, index, self._read_part).samples()

    def _location(self) -> str:
        return self._spec.shards.where

    @property
    def origin(self) -> str:
        """The directory of the shards, also where one of them was named."""
        return real_place(self._spec.shards.storage.location(self._spec.shards.below))

    def name(self, index: int) -> str:
        """Shard, key and place."""
        known = self.known
        check_index(index, len(known.keys))
        shard = known.names[int(known.media.shards[index])]
        key = known.keys[index].removeprefix(f"{shard}/")
        return f"{shard}: {key} at byte {int(known.media.offsets[index])}"

    def read(self, index: int) -> bytes:
        """The main file of the sample; its caption and label are read along where they lie close to it."""
        known = self.known
        check_index(index, len(known.keys))
        others = [parts for parts in (known.captions, known.labels) if parts is not None]
        spans = [_span(parts, index) for parts in (known.media, *others)]
        start, stop = min(first for first, _ in spans), max(last for _, last in spans)
        if not others or stop - start > spans[0][1] - spans[0][0] + _ALONG:
            return self._part(known, known.media, index)
        shard = self._spec.shards.inside(known.names[int(known.media.shards[index])])
        try:
            data = self._spec.shards.storage.read_range(shard, start, stop)
        except DamagedSourceError:  # the shard is cut: reading the main file alone says whether it is
            return self._part(known, known.media, index)
        found = {first: data[first - start : last - start] for first, last in spans}
        self._near.sample = index, {first: found[first] for first, _ in spans[1:]}
        try:
            return _checked(known.media, index, found[spans[0][0]])
        except _OtherHeaderError:
            raise no_longer(self.name(index)) from None

    def open_file(self, index: int) -> BinaryIO:
        """The main file, as a file."""
        known = self.known
        check_index(index, len(known.keys))
        media, where = known.media, self._spec.shards
        start, size = int(media.offsets[index]), int(media.sizes[index])
        shard = where.inside(known.names[int(media.shards[index])])
        if zlib.crc32(where.storage.read_range(shard, start - BLOCK, start)) != int(media.headers[index]):
            raise no_longer(self.name(index))
        return open_range(where.storage, shard, start, size)

    def label(self, index: int) -> int | None:
        """Read now, from `.cls` or `.json`."""
        known = self.known
        check_index(index, len(known.keys))
        if known.labels is None:
            return None
        data, where = self._part(known, known.labels, index), f"the label of {self.name(index)}"
        value: Any = _note(data, where).get("label") if known.label_json else caption_text(data, where)
        label = metadata.label_of(metadata.label_in_text(value) if isinstance(value, str) else value, where)
        if not isinstance(label, int):
            raise SourceError(f"{where} is {label!r:.60}; in tar shards a label is a whole number from 0")
        return label

    def captions(self, index: int) -> tuple[str, ...]:
        """Read now, from `.txt`, `.caption` or `.json`."""
        known = self.known
        check_index(index, len(known.keys))
        if known.captions is None:
            return ()
        data, where = self._part(known, known.captions, index), f"the caption of {self.name(index)}"
        if not known.caption_json:
            return (caption_text(data, where),)
        found = metadata.captions_of(_note(data, where).get(known.caption_json), f"{where}, {known.caption_json!r}")
        if found is None:
            raise SourceError(
                f"{where} is missing: its .json has no {known.caption_json!r}; list the sample in exclude"
            )
        return found

    def _part(self, known: TarSamples, parts: Parts, index: int) -> bytes:
        """One file of a sample: read along with its main file by this thread a moment ago, or read now."""
        near: tuple[int, dict[int, bytes]] = getattr(self._near, "sample", (-1, {}))
        data = near[1].get(_span(parts, index)[0]) if near[0] == index else None
        try:
            return self._read_part(known.names, parts, index) if data is None else _checked(parts, index, data)
        except _OtherHeaderError:
            raise no_longer(self.name(index)) from None
        except DamagedSourceError as error:
            raise DamagedSourceError(f"{self.name(index)} cannot be read: {error}") from error
        except StorageError as error:
            error.add_note(f"while {self.name(index)} was read")
            raise

    def _read_part(self, names: Sequence[str], parts: Parts, index: int) -> bytes:
        where, (start, stop) = self._spec.shards, _span(parts, index)
        name = where.inside(names[int(parts.shards[index])])
        return _checked(parts, index, where.storage.read_range(name, start, stop))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_near"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._near = threading.local()


class _OtherHeaderError(DamagedSourceError):
    """Another header is in front of a member than when it was indexed."""


def _span(parts: Parts, index: int) -> tuple[int, int]:
    """Where a file's header begins and where the file ends."""
    start = int(parts.offsets[index])
    return start - BLOCK, start + int(parts.sizes[index])


def _checked(parts: Parts, index: int, data: bytes) -> bytes:
    """A file's bytes, out of those that begin with its header."""
    if zlib.crc32(data[:BLOCK]) != int(parts.headers[index]):
        raise _OtherHeaderError(f"another header is at byte {_span(parts, index)[0]} than when the shard was indexed")
    return data[BLOCK:]


def _note(data: bytes, where: str) -> dict[str, Any]:
    try:
        note = metadata.parse_json(data)
    except (ValueError, RecursionError) as error:
        raise DamagedSourceError(f"{where} is no JSON: {error}") from error
    if not isinstance(note, dict):
        raise DamagedSourceError(f"{where} is no JSON object: {data[:60]!r}")
    return cast("dict[str, Any]", note)


class _Keys(Sequence[str]):
    """`shard.tar/key` of chosen samples."""

    def __init__(self, index: TarIndex, samples: npt.NDArray[np.int64]) -> None:
        self._index, self._samples = index, samples

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        sample = int(self._samples[index])
        shard = self._index.shards[int(self._index.sample_shards[sample])]
        return f"{shard.name}/{self._index.keys[sample]}"


class _Choice:
    """Which file of each sample is what."""

    def __init__(self, spec: TarSpec, index: TarIndex, read: Callable[[Sequence[str], Parts, int], bytes]) -> None:
        self._spec, self._index, self._read = spec, index, read
        self._owners = np.repeat(np.arange(len(index.keys)), np.diff(index.part_starts))
        chosen = [in_split(shard.name, spec.prefix) for shard in index.shards]
        self._shards = [shard for shard, taken in zip(index.shards, chosen, strict=True) if taken]
        self._within = np.array(chosen, bool)[index.sample_shards]
        self._kept = self._within.copy()
        self._problems = Problems()
        for kind, names in problems_of(self._shards):
            self._problems.add(kind, names)

    def samples(self) -> TarSamples:
        spec, index = self._spec, self._index
        media = self._media()
        self._require(media, NO_MEDIA)
        captions, field = self._captions()
        labels, in_json = self._labels()
        dropped = self._problems.settle(spec.missing, spec.shards.where)
        chosen = np.flatnonzero(self._kept)
        if not len(chosen):
            raise SourceError(f"{spec.shards.where} has no sample left{dropped}")
        return TarSamples(
            keys=_Keys(index, chosen),
            names=tuple(shard.name for shard in index.shards),
            media=self._parts(media, chosen),
            captions=None if captions is None else self._parts(captions, chosen),
            labels=None if labels is None else self._parts(labels, chosen),
            caption_json=field,
            label_json=in_json,
            unended=tuple(shard.name for shard in self._shards if not shard.ended and not shard.problems),
            has_captions=captions is not None,
            has_labels=labels is not None,
            stored=self._stored(),
            digest=self._digest(media, captions, labels, field),
            description=self._describe(len(chosen), captions, labels, field) + dropped,
        )

    def _media(self) -> npt.NDArray[np.int64]:
        """The main part of each sample, -1 where there is none."""
        suffixes = self._index.suffixes
        wanted = [
            suffix == self._spec.part if self._spec.part else f".{suffix}" in self._spec.suffixes for suffix in suffixes
        ]
        found = self._pick(np.array(wanted, bool), TWO_MEDIA)
        if not (found[self._kept] >= 0).any():
            self._problems.settle(self._spec.missing, self._spec.shards.where)  # they may be the reason
            asked = f"part={self._spec.part!r}" if self._spec.part else " ".join(sorted(self._spec.suffixes))
            raise SourceError(
                f"no sample in {self._spec.shards.where} has a file with {asked}; what follows the first dot in their "
                f"names is {self._there()}; give part= to say which is the main one"
            )
        return found

    def _there(self) -> str:
        numbers = cast("list[int]", self._index.part_suffixes[self._kept[self._owners]].tolist())
        counts = Counter(numbers).most_common(6)
        return ", ".join(f"{self._index.suffixes[number]!r} ({count} times)" for number, count in counts) or "nothing"

    def _pick(self, wanted: npt.NDArray[np.bool_], twice: Kind) -> npt.NDArray[np.int64]:
        """The part of each sample with a wanted suffix, -1 where there is none; samples with several are problems."""
        index = self._index
        parts = np.flatnonzero(wanted[index.part_suffixes]) if len(wanted) else np.empty(0, np.int64)
        owners = self._owners[parts]
        found = np.full(len(index.keys), -1, np.int64)
        found[owners] = parts
        several = np.flatnonzero((np.bincount(owners, minlength=len(found)) > 1) & self._kept)
        self._problems.add(twice, self._names(several))
        self._kept[several] = False
        return found

    def _require(self, parts: npt.NDArray[np.int64], kind: Kind) -> None:
        lacking = np.flatnonzero((parts < 0) & self._kept)
        self._problems.add(kind, self._names(lacking))
        self._kept[lacking] = False

    def _names(self, samples: npt.NDArray[np.int64]) -> list[str]:
        return list(_Keys(self._index, samples)[:])

    def _with_suffix(self, suffixes: Sequence[str], twice: Kind) -> npt.NDArray[np.int64] | None:
        """The part of each sample with one of these suffixes; None where no sample has one."""
        wanted = np.array([suffix in suffixes for suffix in self._index.suffixes], bool)
        if not wanted.any():
            return None
        found = self._pick(wanted, twice)
        return found if (found[self._kept] >= 0).any() else None

    def _captions(self) -> tuple[npt.NDArray[np.int64] | None, str]:
        """The part with the captions of each sample, and the field of it, "" where it is the whole part."""
        wanted = self._spec.captions
        if wanted == "none":
            return None, ""
        if wanted != "metadata" and not (wanted is None and self._spec.caption_field):
            texts = self._with_suffix(TEXTS, TWO_CAPTIONS)
            if texts is not None:
                self._require(texts, NO_CAPTION)
                return texts, ""
            if wanted == "sidecars":
                raise OptionsError(
                    f"captions='sidecars': no sample in {self._spec.shards.where} has a .txt or .caption"
                )
        notes = self._with_suffix(NOTES, TWO_CAPTIONS)
        field = None if notes is None else self._field(notes)
        if notes is None or field is None:
            if wanted == "metadata" or self._spec.caption_field:
                raise OptionsError(f"captions were asked for from .json, and {self._spec.shards.where} has none there")
            return None, ""
        self._require(notes, NO_CAPTION)
        return notes, field

    def _field(self, notes: npt.NDArray[np.int64]) -> str | None:
        """The field of captions, as the first sample that has a `.json` shows it."""
        first = np.flatnonzero((notes >= 0) & self._kept)[:1]
        names = tuple(shard.name for shard in self._index.shards)
        note = _note(self._read(names, self._parts(notes, first), 0), f"the .json of {self._names(first)[0]!r}")
        if self._spec.caption_field is not None:
            if self._spec.caption_field not in note:
                raise OptionsError(
                    f"the .json of {self._names(first)[0]!r} has no {self._spec.caption_field!r}, which caption_field "
                    f"names; it has {listed(list(note))}"
                )
            return self._spec.caption_field
        fields = [field for field in metadata.CAPTIONS if field in note]
        if len(fields) > 1:
            raise SourceError(
                f"the .json of {self._names(first)[0]!r} has {fields[0]!r} and {fields[1]!r}; caption_field says which "
                "one counts"
            )
        return fields[0] if fields else None

    def _labels(self) -> tuple[npt.NDArray[np.int64] | None, bool]:
        """The part with the label of each sample, and whether it is a `.json`."""
        wanted = self._spec.labels
        if wanted == "folders":
            raise OptionsError("labels='folders' is for folders; in tar shards a label is in .cls, or in .json")
        if wanted == "none":
            return None, False
        found = self._with_suffix(NOTES if wanted == "metadata" else LABELS, NO_LABEL)
        if found is None:
            if wanted == "metadata":
                raise OptionsError(f"labels='metadata': no sample in {self._spec.shards.where} has a .json")
            return None, False
        self._require(found, NO_LABEL)
        return found, wanted == "metadata"

    def _parts(self, parts: npt.NDArray[np.int64], samples: npt.NDArray[np.int64]) -> Parts:
        index, chosen = self._index, parts[samples]
        return Parts(
            shards=index.sample_shards[samples],
            offsets=index.offsets[chosen],
            sizes=index.sizes[chosen],
            headers=index.headers[chosen],
        )

    def _stored(self) -> str:
        """Of the shards' names and members, and of which of these are main files."""
        digest = hashlib.sha256(f"dew-tar-1\0{self._spec.part}\0".encode())
        digest.update("".join(f"{shard.name}\0{shard.digest}\n" for shard in self._shards).encode())
        return digest.hexdigest()

    def _digest(self, media: Any, captions: Any, labels: Any, field: str) -> str:
        """Of the shards' names and members, and of what was made of them.

        Not of where members lie or when they were packed: the same files packed again are the same collection.
        """
        digest = hashlib.sha256(self._stored().encode())
        digest.update(np.packbits(self._kept[self._within]).tobytes())
        for parts in (media, captions, labels):
            chosen = np.empty(0, np.int64) if parts is None else parts[self._kept]
            numbers = cast("list[int]", self._index.part_suffixes[chosen].tolist())
            digest.update(("\n".join(self._index.suffixes[number] for number in numbers) + "\0").encode())
        digest.update(field.encode())
        return digest.hexdigest()

    def _describe(self, count: int, captions: Any, labels: Any, field: str) -> str:
        facts = [
            "tar",
            f"{Kind('sample', 'samples').counted(count)} in {SHARDS.counted(len(self._shards))}",
            f"part={self._spec.part!r}" if self._spec.part else "",
            "" if labels is None else "labels",
            "" if captions is None else f"captions in .json, {field!r}" if field else "captions",
        ]
        return ", ".join(fact for fact in facts if fact)


def in_split(name: str, prefix: str) -> bool:
    """Whether a shard's name begins with a split's, as in `train-0001.tar`."""
    base = name.rpartition("/")[2]
    return prefix == "" or (base.startswith(prefix) and not base[len(prefix) : len(prefix) + 1].isalpha())
