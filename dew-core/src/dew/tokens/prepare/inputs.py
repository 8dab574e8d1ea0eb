"""Which files a corpus is made of, and in which order.

Files, directories and patterns become one list in the order of `dew.data.filenames`, whatever the order of the
arguments. A name is relative to the directory that all inputs share, so the same files make the same corpus wherever
they lie.
"""

import fnmatch
import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

from dew.data.errors import DamagedSourceError, OptionsError, OptionsTypeError, OverlapError, SourceError
from dew.data.filenames import in_order
from dew.data.storage import Storage
from dew.tokens.entry import Entry, parse_object

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"

KINDS: Final = {".txt": "text", ".jsonl": "lines", ".ndjson": "lines", ".parquet": "parquet", ".arrow": "arrow"}
COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd", ".xz": "xz"}

_THREADS: Final = 16
_SAMPLE_BYTES: Final = 1 << 16
_SAMPLES: Final = 4
_DATASET: Final = "state.json"  # a Hugging Face dataset on disk: this lists its files
_DATASETS: Final = "dataset_dict.json"


@attrs.frozen
class Input:
    """One file.

    Args:
        name: below the directory that all inputs share.
        size: bytes.
        fingerprint: digest of its size and of samples of its bytes; of all bytes up to 256 KiB.
        split: `"train"` or `"val"`.
    """

    name: str
    size: int
    fingerprint: str
    split: str = "train"

    @property
    def kind(self) -> str:
        """`"text"`, `"lines"`, `"parquet"` or `"arrow"`."""
        return KINDS[_suffix(self.name.removesuffix(self.suffix))]

    @property
    def compression(self) -> str | None:
        """`"gzip"`, `"zstd"`, `"xz"` or None."""
        return COMPRESSIONS.get(self.suffix.lower())

    @property
    def suffix(self) -> str:
        """The suffix that names the compression, `""` without one."""
        suffix = posixpath.splitext(self.name)[1]
        return suffix if suffix.lower() in COMPRESSIONS else ""


@attrs.frozen
class Inputs:
    """All inputs, and the directory that they share.

    Args:
        root: where names are looked up.
        files: those of training in order, then those of validation.
        left_out: files in directories and patterns that are of no known kind.
    """

    root: Storage
    files: tuple[Input, ...]
    left_out: tuple[str, ...] = ()


def find_inputs(train: Paths, val: "Paths | None" = None, *, options: Mapping[str, Any] | None = None) -> Inputs:
    """The files behind paths, directories, patterns (`*`, `?`, `[...]`, `**`) and URLs.

    A directory stands for all files of known kinds below it, without names that begin with `.` or `_`; one that
    `datasets` saved stands for the files that it lists.

    Raises:
        OptionsError: a file of unknown kind, the same file twice, or no file at all.
        SourceError: two names are the same text in different Unicode forms.
        OverlapError: the same file, or one of the same content, is in training and validation.
        SourceNotFoundError: nothing is stored at a path.
    """
    found = _Found(options or {})
    for split, paths in (("train", train), ("val", val)):
        for path in [] if paths is None else _listed(paths):
            found.add(split, path)
    return found.inputs()


def fingerprint(size: int, read: Callable[[int, int], bytes]) -> str:
    """Digest of the size and of samples; `read(start, stop)` gives bytes of the file."""
    digest = hashlib.sha256(f"{size}:".encode())
    for start, stop in _sample_spans(size):
        digest.update(read(start, stop))
    return digest.hexdigest()[:32]


def check_input(storage: Storage, found: Input, data: bytes | None = None) -> None:
    """Compare a file, of which `data` may be the whole content, with what was planned.

    Raises:
        DamagedSourceError: it has changed since.
        SourceNotFoundError: it is gone.
    """

    def read(start: int, stop: int) -> bytes:
        return storage.read_range(found.name, start, stop) if data is None else data[start:stop]

    size = storage.size(found.name) if data is None else len(data)
    if size == found.size and fingerprint(size, read) == found.fingerprint:
        return
    raise DamagedSourceError(
        f"{storage.location(found.name)} has changed since this corpus was planned: it had {found.size} bytes and now "
        f"has {size}{', but other ones' if size == found.size else ''}; restore it, or prepare another corpus"
    )


def _sample_spans(size: int) -> list[tuple[int, int]]:
    if size <= _SAMPLES * _SAMPLE_BYTES:
        return [(0, size)] if size else []
    last = size - _SAMPLE_BYTES
    starts = [last * at // (_SAMPLES - 1) for at in range(_SAMPLES)]
    return [(start, start + _SAMPLE_BYTES) for start in starts]


def _listed(paths: Paths) -> list[str]:
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    for path in several:
        if not isinstance(path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsTypeError(
                f"inputs are paths, got {path!r:.80} ({type(path).__name__}); for texts there is prepare_texts"
            )
    if not several:
        raise OptionsError("no inputs were given; name files, directories or patterns")
    return [os.fspath(path) for path in several]


class _Found:
    """Files found so far, by their whole path below an anchor: `/`, or the scheme of a URL."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._anchor: str | None = None
        self._split: dict[str, str] = {}  # whole path -> split
        self._real: dict[str, str] = {}  # the same without symbolic links -> whole path
        self._sizes: dict[str, int] = {}
        self._left_out: list[str] = []

    def add(self, split: str, path: str) -> None:
        anchor, name = _anchored(path)
        if self._anchor not in (None, anchor):
            raise OptionsError(
                f"inputs lie in {self._anchor} and in {anchor}, and a corpus is made from one storage; "
                "copy them to one, or prepare two corpora"
            )
        self._anchor = anchor
        self._storage = Storage(anchor, options=self._options)
        names = list(self._expand(name))
        if not names:
            raise OptionsError(f"no file of a known kind at {self._where(name)}; known are {_known()}")
        for found, size in self._measured(names):
            self._add(split, found, size)

    def inputs(self) -> Inputs:
        assert self._anchor is not None
        names = list(self._split)
        shared = os.path.commonpath([os.path.dirname(name) for name in names])
        root = Storage(_below(self._anchor, shared), options=self._options)
        whole = {os.path.relpath(name, shared) if shared else name: name for name in names}
        ordered = in_order(whole)
        digests = dict(zip(ordered, self._digests([whole[name] for name in ordered]), strict=True))
        files = [
            Input(name, self._sizes[whole[name]], digests[name], split)
            for split in ("train", "val")
            for name in ordered
            if self._split[whole[name]] == split
        ]
        _check_overlap(files, root)
        return Inputs(root, tuple(files), tuple(self._left_out))

    def _add(self, split: str, name: str, size: int) -> None:
        real = os.path.realpath(f"/{name}") if self._storage.local else name
        if real in self._real:
            other, where = self._split[self._real[real]], self._where(name)
            if other != split:
                raise OverlapError(f"{where} is an input of training and of validation; leave it out of one of them")
            linked = "" if self._real[real] == name else f" (it is the same file as {self._where(self._real[real])})"
            raise OptionsError(f"{where} is given twice{linked}; its documents would count twice")
        self._real[real] = name
        self._split[name], self._sizes[name] = split, size

    def _expand(self, name: str) -> Iterator[str]:
        if self._storage.is_dir(name):
            yield from self._below(name)
        elif self._storage.exists(name) or not re.search(r"[*?[]", name):
            if _kind(name) is None:
                self._storage.size(name)  # that it is missing is said first
                raise OptionsError(f"{self._where(name)} is a file of no known kind; known are {_known()}")
            yield name
        else:
            yield from self._matching("", name.split("/"))

    def _below(self, directory: str) -> Iterator[str]:
        names = self._storage.list(directory)
        if _DATASETS in names:
            splits = [name for name in names if self._storage.is_dir(f"{directory}/{name}")]
            raise OptionsError(
                f"{self._where(directory)} holds the splits {', '.join(splits)} of a dataset; name one of them, such "
                f"as {self._where(directory)}/{splits[0] if splits else 'train'}"
            )
        if _DATASET in names:
            yield from self._dataset_files(directory)
            return
        for name in names:
            if name.startswith((".", "_")):
                continue
            yield from self._known(f"{directory}/{name}" if directory else name)

    def _known(self, path: str) -> Iterator[str]:
        if _kind(path) is not None:
            yield path
        elif self._storage.is_dir(path):
            yield from self._below(path)
        else:
            self._left_out.append(self._where(path))

    def _dataset_files(self, directory: str) -> Iterator[str]:
        where = self._where(f"{directory}/{_DATASET}")
        entry = Entry(parse_object(self._storage.read(f"{directory}/{_DATASET}"), where), where)
        for part in entry.parts("_data_files"):
            yield f"{directory}/{part.text('filename')}"

    def _matching(self, directory: str, parts: list[str]) -> Iterator[str]:
        part, rest = parts[0], parts[1:]
        if not re.search(r"[*?[]", part):
            path = f"{directory}/{part}" if directory else part
            if rest and self._storage.is_dir(path):
                yield from self._matching(path, rest)
            elif not rest and self._storage.exists(path):
                yield from self._known(path)
            return
        if part == "**" and rest:
            yield from self._matching(directory, rest)
        for name in self._storage.list(directory):
            path = f"{directory}/{name}" if directory else name
            if part == "**":
                if name.startswith("."):
                    continue
                if _kind(name) is None and self._storage.is_dir(path):
                    yield from self._matching(path, parts)
                elif not rest:
                    yield from self._known(path)
            elif fnmatch.fnmatchcase(name, part) and name.startswith(".") == part.startswith("."):
                yield from self._matching_below(path, rest)

    def _matching_below(self, path: str, rest: list[str]) -> Iterator[str]:
        if not rest:
            yield from self._known(path)
        elif self._storage.is_dir(path):
            yield from self._matching(path, rest)

    def _measured(self, names: list[str]) -> Iterator[tuple[str, int]]:
        """Names with sizes; a directory that is named like a file, as Spark names its output, stands for its files."""
        for name, size in zip(names, self._parallel(self._size, names), strict=True):
            if size is None:
                yield from self._measured(list(self._below(name)))
            else:
                yield name, size

    def _size(self, name: str) -> int | None:
        try:
            return self._storage.size(name)
        except SourceError:
            if self._storage.is_dir(name):
                return None
            raise

    def _digests(self, names: list[str]) -> list[str]:
        def digest(name: str) -> str:
            return fingerprint(self._sizes[name], lambda start, stop: self._storage.read_range(name, start, stop))

        return self._parallel(digest, names)

    def _parallel(self, call: Callable[[str], Any], names: list[str]) -> list[Any]:
        if self._storage.local or len(names) < 2:
            return [call(name) for name in names]
        with ThreadPoolExecutor(_THREADS, "dew-inputs") as pool:
            return list(pool.map(call, names))

    def _where(self, name: str) -> str:
        return f"/{name}" if self._storage.local else self._storage.location(name)


def _anchored(path: str) -> tuple[str, str]:
    """`/` and the rest of an absolute path, or the scheme of a URL and the rest."""
    if not path:
        raise OptionsError("an input must name a file, a directory or a pattern, got ''")
    scheme, mark, rest = path.partition("://")
    if mark and scheme not in ("file", "local"):
        if "::" in path or (scheme in ("http", "https") and "?" in rest):
            raise OptionsError(
                f"chained URLs and URLs with a query cannot be inputs, got {path!r}; copy the file first"
            )
        return f"{scheme}://", rest.strip("/")
    return "/", os.path.abspath(rest if mark else path).lstrip("/")


def _below(anchor: str, name: str) -> str:
    return str(Path("/", name)) if anchor == "/" else f"{anchor}{name}"


def _kind(name: str) -> str | None:
    stem, suffix = posixpath.splitext(name)
    if suffix.lower() in COMPRESSIONS:
        inner = KINDS.get(_suffix(stem))
        return inner if inner in ("text", "lines") else None
    return KINDS.get(suffix.lower())


def _suffix(name: str) -> str:
    return posixpath.splitext(name)[1].lower()


def _known() -> str:
    return f"{', '.join(KINDS)}, and text and lines with {', '.join(COMPRESSIONS)} after it"


def _check_overlap(files: list[Input], root: Storage) -> None:
    train = {(file.size, file.fingerprint): file for file in files if file.split == "train" and file.size}
    for file in files:
        same = train.get((file.size, file.fingerprint)) if file.split == "val" else None
        if same is not None:
            raise OverlapError(
                f"{root.location(file.name)}, an input of validation, has the content of {root.location(same.name)}, "
                "an input of training; leave it out of one of them"
            )
