"""The index of tar shards: where every member of every sample lies, made once and kept in a file beside the shards.

Its bytes depend on the shards alone, so that processes that make it at once write the same file. It is compared with
the shards whenever it is used: names, sizes, and the first and last bytes of local ones at open; the header in front of
every member when that is read. So an index never gives another record's bytes, however old it is.
"""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast, overload

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import DamagedSourceError
from dew_media.files.problems import Kind
from dew_media.files.tar_walk import Members

FORMAT: Final = "dew-tar-index"
VERSION: Final = 1
SUFFIX: Final = ".idx.npz"
COMMAND: Final = "dew images index"

DUPLICATE: Final = Kind("member named as one before it", "members named as one before them")

_ARRAYS: Final = {
    "key_bytes": "|u1",
    "key_ends": "<i8",
    "sample_shards": "<i4",
    "part_starts": "<i8",
    "part_suffixes": "<i4",
    "offsets": "<i8",
    "sizes": "<i8",
    "headers": "<u4",
}


_HIDDEN: Final = re.compile(r"(?:^|/)(?:\.|__MACOSX/|__[^/]*$)")


class Names(Sequence[str]):
    """Many strings in one piece of memory."""

    def __init__(self, data: bytes, ends: "npt.NDArray[np.int64]") -> None:
        self._data, self._ends = data, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        start = int(self._ends[index - 1]) if index else 0
        return self._data[start : int(self._ends[index])].decode()


@attrs.frozen(kw_only=True)
class Shard:
    """One archive.

    Args:
        name: relative to the directory of the index.
        size: bytes.
        ends: sha256 of its first and last bytes.
        digest: sha256 of its members' names and sizes.
        samples, members: how many.
        problems: kind -> names, of members that cannot be used.
        ended: whether it has its end mark.
    """

    name: str
    size: int
    ends: str
    digest: str
    samples: int
    members: int
    problems: Mapping[Kind, tuple[str, ...]]
    ended: bool


@attrs.frozen(kw_only=True, eq=False)
class TarIndex:
    """Members of shards, by sample: files with one key, which is the name up to the first dot.

    Args:
        shards: in order.
        suffixes: what follows the first dot, in lower case.
        keys: of the samples, in order.
        sample_shards: the shard of each sample.
        part_starts: sample `s` has the parts `part_starts[s]` to `part_starts[s + 1]`.
        part_suffixes, offsets, sizes, headers: of each part, its suffix, its place in the shard, its bytes, and the
            CRC-32 of its header.
    """

    shards: tuple[Shard, ...]
    suffixes: tuple[str, ...]
    keys: Names
    sample_shards: npt.NDArray[np.int32]
    part_starts: npt.NDArray[np.int64]
    part_suffixes: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    headers: npt.NDArray[np.uint32]

    def to_bytes(self) -> bytes:
        """The file: an `.npz` that NumPy alone can read, the same bytes for the same shards."""
        data, ends = self.keys._data, self.keys._ends  # pyright: ignore[reportPrivateUsage]
        arrays = {
            "key_bytes": np.frombuffer(data, np.uint8),
            "key_ends": ends,
            **{name: getattr(self, name) for name in _ARRAYS if not name.startswith("key_")},
        }
        arrays = {name: np.ascontiguousarray(array, _ARRAYS[name]) for name, array in arrays.items()}
        about = {
            "format": FORMAT,
            "version": VERSION,
            "suffixes": list(self.suffixes),
            "shards": [_shard_json(shard) for shard in self.shards],
        }
        text = json.dumps(about, ensure_ascii=False, sort_keys=True).encode()
        digest = _digest_of(text, arrays)
        arrays["about"] = np.frombuffer(text, np.uint8)
        arrays["sha256"] = np.frombuffer(digest, np.uint8)
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
            for name in sorted(arrays):
                entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                entry.create_system, entry.external_attr = 3, 0o644 << 16
                with archive.open(entry, "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, arrays[name], (1, 0), allow_pickle=False)
        return made.getvalue()


def parse_index(data: bytes, where: str) -> TarIndex:
    """The index in a file's bytes.

    Raises:
        DamagedSourceError: it is none, or not what was written.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            arrays = {name: _array(file, name) for name in (*_ARRAYS, "about", "sha256")}
        text = arrays.pop("about").tobytes()
        stated = arrays.pop("sha256").tobytes()
        if any(array.dtype.str != _ARRAYS[name] or array.ndim != 1 for name, array in arrays.items()):
            raise ValueError("an array has another type")
        if _digest_of(text, arrays) != stated:
            raise ValueError("its bytes are not those that were written")
        about = cast("dict[str, Any]", json.loads(text))
        if about["format"] != FORMAT or about["version"] != VERSION:
            raise ValueError(f"it has the format {about['format']!r}, version {about['version']!r}")
        return TarIndex(
            shards=tuple(_shard(entry) for entry in about["shards"]),
            suffixes=tuple(about["suffixes"]),
            keys=Names(arrays.pop("key_bytes").tobytes(), arrays.pop("key_ends")),
            **arrays,
        )
    except (KeyError, OSError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DamagedSourceError(
            f"{where} is no index of tar shards (version {VERSION}): {error}; make it again with '{COMMAND} PATH'"
        ) from error


class IndexBuilder:
    """Puts the members of shards together, shard by shard.

    `a/b.seg.PNG` is the part `seg.png` of the sample `a/b`: names are cut at the first dot of their last part. Hidden
    files, and names between double underscores, which hold notes of the archive's writer, are no samples.
    """

    def __init__(self) -> None:
        self._shards: list[Shard] = []
        self._suffixes: dict[str, int] = {}
        self._keys: list[str] = []
        self._sample_shards: list[int] = []
        self._counts: list[int] = []
        self._columns: dict[str, list[npt.NDArray[np.int64]]] = {
            name: [] for name in ("part_suffixes", "offsets", "sizes", "headers")
        }

    def add(self, name: str, size: int, ends: str, members: Members) -> Shard:
        """The next shard."""
        samples: dict[str, int] = {}
        taken = set[tuple[int, int]]()
        rows: list[tuple[int, int, int]] = []  # sample, suffix, member
        duplicates: list[str] = []
        digest = hashlib.sha256()
        suffixes = self._suffixes
        for member, path in enumerate(members.names):
            dot = path.find(".", path.rfind("/") + 1)
            if dot < 0 or _HIDDEN.search(path):
                continue
            suffix = path[dot + 1 :]
            number = suffixes.get(suffix)
            if number is None:
                number = suffixes.setdefault(suffix.lower(), len(suffixes))
            sample = samples.setdefault(path[:dot], len(samples))
            if (sample, number) in taken:
                duplicates.append(path)
                continue
            taken.add((sample, number))
            rows.append((sample, number, member))
        digest.update("".join(f"{members.names[row[2]]}\0{members.sizes[row[2]]}\n" for row in rows).encode())
        self._note(samples, rows, members)
        problems = dict(members.problems)
        if duplicates:
            problems[DUPLICATE] = duplicates
        shard = Shard(
            name=name,
            size=size,
            ends=ends,
            digest=digest.hexdigest(),
            samples=len(samples),
            members=len(members.names),
            problems={kind: tuple(names) for kind, names in problems.items()},
            ended=members.ended,
        )
        self._shards.append(shard)
        return shard

    def _note(self, samples: Mapping[str, int], rows: list[tuple[int, int, int]], members: Members) -> None:
        self._keys.extend(samples)
        self._sample_shards.extend([len(self._shards)] * len(samples))
        table = np.array(rows, np.int64).reshape(-1, 3)
        table = table[np.argsort(table[:, 0], kind="stable")]
        self._counts.extend(np.bincount(table[:, 0], minlength=len(samples)).tolist())
        self._columns["part_suffixes"].append(table[:, 1])
        for name in ("offsets", "sizes", "headers"):
            self._columns[name].append(np.array(getattr(members, name), np.int64)[table[:, 2]])

    def index(self) -> TarIndex:
        """All of it; suffixes are numbered in the order in which they were met."""
        keys = [key.encode() for key in self._keys]
        columns = {
            name: np.concatenate([np.empty(0, np.int64), *parts]).astype(_ARRAYS[name])
            for name, parts in self._columns.items()
        }
        return TarIndex(
            shards=tuple(self._shards),
            suffixes=tuple(self._suffixes),
            keys=Names(b"".join(keys), np.cumsum([len(key) for key in keys], dtype=np.int64)),
            sample_shards=np.array(self._sample_shards, np.int32),
            part_starts=np.cumsum([0, *self._counts], dtype=np.int64),
            **columns,
        )


def _digest_of(about: bytes, arrays: "Mapping[str, np.ndarray[Any, np.dtype[Any]]]") -> bytes:
    digest = hashlib.sha256(about)
    for name in sorted(_ARRAYS):
        digest.update(f"\0{name} {arrays[name].dtype.str} {arrays[name].shape}\0".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.digest()


def _array(file: zipfile.ZipFile, name: str) -> "np.ndarray[Any, np.dtype[Any]]":
    """One array, in no more memory than the file has bytes, whatever its header states."""
    entry = file.getinfo(f"{name}.npy")
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    stored = io.BytesIO(file.read(entry))
    np.lib.format.read_magic(stored)
    shape, _, dtype = np.lib.format.read_array_header_1_0(stored)
    return np.frombuffer(stored.getbuffer()[stored.tell() :], dtype).reshape(shape)


def _shard_json(shard: Shard) -> dict[str, Any]:
    problems = [[kind.one, kind.many, list(names)] for kind, names in shard.problems.items()]
    return attrs.asdict(shard, recurse=False) | {"problems": problems}


def _shard(entry: Mapping[str, Any]) -> Shard:
    fields = dict(entry)
    fields["problems"] = {Kind(one, many): tuple(names) for one, many, names in entry["problems"]}
    return Shard(**fields)


def problems_of(shards: Sequence[Shard]) -> Iterator[tuple[Kind, list[str]]]:
    """What is wrong with the shards, kind by kind, each name with its shard."""
    found: dict[Kind, list[str]] = {}
    for shard in shards:
        for kind, names in shard.problems.items():
            found.setdefault(kind, []).extend(f"{shard.name}: {name}" for name in names)
    yield from found.items()
