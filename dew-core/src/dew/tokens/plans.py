"""Packing plans on disk: made once, found again by what they were made of, mapped, and verified when they are found.

A plan is cheap to make again and is the same wherever it is made, so it is kept without locks: every file appears whole
under its name, two processes that make one plan write the same bytes, and a damaged one is made anew. The files are
plain `.npy` arrays, closed by a JSON file that names what they belong to and their digests. They may be deleted.
"""

import hashlib
import json
import logging
import mmap
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import attrs
import numpy as np

from dew.data.errors import DamagedSourceError, DewDataError, DewWarning, StorageError
from dew.tokens.entry import Entry, parse_object
from dew.tokens.npy import HEADER_BYTES, file_bytes, header, parse_header
from dew.tokens.packing import (
    ARRAYS,
    WINDOW,
    Int64s,
    PackingCounts,
    PackingPlan,
    PackingRules,
    PlanDigest,
    check_not_empty,
    plan_id,
    plan_rows,
    plan_windows,
)
from dew.tokens.reader import TokenReader

FORMAT: Final = "dew-packing-plan"
FOLDER: Final = ".dew-plans"  # beside the corpus

logger = logging.getLogger("dew.tokens")

_PIECE: Final = 1 << 22


@attrs.frozen(kw_only=True)
class PlanKey:
    """What a plan is made of: documents and rules.

    Args:
        corpus: its id.
        start, stop: the documents in tokens `[start, stop)`.
        rules: how they become rows.
    """

    corpus: str
    start: int
    stop: int
    rules: PackingRules

    def values(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "format": FORMAT,
            "corpus": self.corpus,
            "start": self.start,
            "stop": self.stop,
            "rules": self.rules.identity(),
        }

    def name(self) -> str:
        """Begin of the names of its files."""
        text = json.dumps(self.values(), sort_keys=True, separators=(",", ":"))
        return f"packing-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


@attrs.frozen(kw_only=True)
class StoredPlan:
    """A plan in files; `open` maps them.

    Args:
        folder: where they are.
        key: what they were made of.
        counts, arrays: of the plan, and the sha256 of the elements of each array.
    """

    folder: str
    key: PlanKey
    counts: PackingCounts
    arrays: dict[str, str]

    @property
    def id(self) -> str:
        """The plan's id."""
        return plan_id(self.key.rules, self.counts, self.arrays)

    def open(self) -> PackingPlan:
        """The plan, in read-only maps that go with its arrays.

        Raises:
            DamagedSourceError: a file is missing, or has another size or header.
        """
        maps = {name: self._map(name) for name in ARRAYS}
        return PackingPlan(rules=self.key.rules, counts=self.counts, id=self.id, **maps)

    def verify(self) -> None:
        """Read all of it.

        Raises:
            DamagedSourceError: it is not what was written.
        """
        for name, digest in self.arrays.items():
            elements = self._map(name).view(np.uint8)
            found = hashlib.sha256()
            for first in range(0, len(elements), _PIECE):
                found.update(elements[first : first + _PIECE].data)
            if found.hexdigest() != digest:
                raise DamagedSourceError(
                    f"{self._path(name)} has the sha256 {found.hexdigest()}, the plan states {digest}"
                )
        plan = self.open()
        if not (_rows_follow(plan) and _pieces_fit(plan, self.key.stop - self.key.start)):
            raise DamagedSourceError(f"{self._path('rows')} and its like hold no plan of these documents")

    def _map(self, name: str) -> "np.ndarray[Any, np.dtype[Any]]":
        path, dtype = self._path(name), ARRAYS[name]
        length = self.counts.rows + 1 if name == "rows" else self.counts.pieces
        try:
            with path.open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                stated = parse_header(file.read(HEADER_BYTES))
                if size != file_bytes(dtype, length) or stated != (dtype, length):
                    raise ValueError(f"{size} bytes, by its header {stated[1]} elements of {stated[0]}")
                data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise DamagedSourceError(f"{path} should hold {length} elements of {dtype}: {error}") from error
        return np.frombuffer(data, dtype, length, HEADER_BYTES)

    def _path(self, name: str) -> Path:
        return Path(self.folder, f"{self.key.name()}.{name}.npy")


def _rows_follow(plan: PackingPlan) -> bool:
    """Whether every row has a piece, and rows share none: digests alone do not tell who wrote the files."""
    if plan.rows[0] != 0 or plan.rows[-1] != plan.counts.pieces:
        return False
    firsts = range(0, len(plan), _PIECE)
    return all(bool((np.diff(plan.rows[first : first + _PIECE + 1]) > 0).all()) for first in firsts)


def _pieces_fit(plan: PackingPlan, tokens: int) -> bool:
    """Whether every piece lies in the documents and fits a row."""
    for first in range(0, plan.counts.pieces, _PIECE):
        starts, lengths = plan.starts[first : first + _PIECE], plan.lengths[first : first + _PIECE]
        if lengths.min() < 1 or lengths.max() > plan.rules.width:
            return False
        if starts.min() < 0 or starts.max() >= tokens or (starts + lengths).max() > tokens:
            return False
    return True


def find_or_make(corpus: TokenReader, key: PlanKey, folder: str | None) -> "StoredPlan | PackingPlan":
    """The plan of `key`: found, or made and stored.

    A plan of one window of a local corpus takes a tenth of a second, so it is made in memory, unless `folder` is given.

    Args:
        corpus: whose documents are packed.
        key: which of them, and how.
        folder: the directory for plans; None: beside a local corpus, else (also where that cannot be written) the
            user's cache directory.

    Raises:
        SourceError: there is nothing to pack, or `long="error"` and a document is too long.
        StorageError: `folder` cannot be written.
    """
    local = corpus.directory
    if folder is None and local is not None and corpus.documents <= WINDOW:
        return make(corpus, key)
    places = [Path(folder)] if folder else [*([local / FOLDER] if local is not None else []), user_folder()]
    for place in places:
        found = _found(place, key)
        if found is not None:
            return found
    for place in places:
        try:
            return _store(place, corpus, key)
        except DewDataError:
            raise
        except OSError as error:
            if folder:
                raise StorageError(f"plans={folder!r} cannot hold the packing plan: {error}") from error
            logger.info("no packing plan can be kept in %s: %s", place, str(error))
    return make(corpus, key)


def make(corpus: TokenReader, key: PlanKey) -> PackingPlan:
    """The plan of `key` in memory."""
    parts = list(corpus.document_lengths(key.start, key.stop))
    return plan_rows(np.concatenate([np.empty(0, np.int64), *parts]), key.rules)


def user_folder() -> Path:
    """Where plans go that cannot lie beside their corpus: `$XDG_CACHE_HOME/dew/plans`, by default in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dew", "plans")


def _found(folder: Path, key: PlanKey) -> StoredPlan | None:
    """The plan of `key` in `folder`, verified; None where there is none, or a damaged one, which is said."""
    path = folder / f"{key.name()}.json"
    try:
        data = path.read_bytes()
    except OSError:
        return None
    try:
        stored = _parse(data, path, key)
        stored.verify()
    except DamagedSourceError as error:
        warnings.warn(f"{error}; the packing plan is made again", DewWarning, stacklevel=2)
        return None
    return stored


def _parse(data: bytes, path: Path, key: PlanKey) -> StoredPlan:
    entry = Entry(parse_object(data, str(path)), str(path))
    other = {name: entry.values.get(name) for name, value in key.values().items() if entry.values.get(name) != value}
    if other:
        raise DamagedSourceError(f"{path} is of another plan: it has {other}")
    counts, arrays = entry.part("counts"), entry.part("arrays")
    stored = StoredPlan(
        folder=str(path.parent),
        key=key,
        counts=PackingCounts(**{field.name: counts.integer(field.name) for field in attrs.fields(PackingCounts)}),
        arrays={name: arrays.text(name) for name in ARRAYS},
    )
    if entry.text("id") != stored.id:
        raise DamagedSourceError(f"{path} was altered: it states the id {entry.text('id')}, and has {stored.id}")
    return stored


def _store(folder: Path, corpus: TokenReader, key: PlanKey) -> StoredPlan:
    """Make the plan of `key` window by window, in memory of one window."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = {name: folder / f".dew-tmp-{os.urandom(8).hex()}" for name in (*ARRAYS, "json")}
    try:
        stored = _write(temporary, folder, corpus, key)
        for name in ARRAYS:
            os.replace(temporary[name], folder / f"{key.name()}.{name}.npy")
        os.replace(temporary["json"], folder / f"{key.name()}.json")
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)
    logger.info("packing plan of %d rows written to %s", stored.counts.rows, folder)
    return stored


def _write(temporary: dict[str, Path], folder: Path, corpus: TokenReader, key: PlanKey) -> StoredPlan:
    digest = PlanDigest(key.rules)
    files: dict[str, BinaryIO] = {}
    try:
        for name, dtype in ARRAYS.items():
            files[name] = temporary[name].open("xb")
            files[name].write(header(dtype, 0))
        files["rows"].write(bytes(8))
        for window in plan_windows(_windows(corpus.document_lengths(key.start, key.stop)), key.rules):
            for name, part in digest.add(window).items():
                files[name].write(part.data)
        check_not_empty(digest.counts, key.rules)
        for name, dtype in ARRAYS.items():
            files[name].seek(0)
            files[name].write(header(dtype, digest.counts.rows + 1 if name == "rows" else digest.counts.pieces))
    finally:
        for file in files.values():
            file.close()
    stored = StoredPlan(folder=str(folder), key=key, counts=digest.counts, arrays=digest.arrays())
    values = {**key.values(), "counts": attrs.asdict(stored.counts), "arrays": stored.arrays, "id": stored.id}
    temporary["json"].write_text(json.dumps(values, sort_keys=True, indent=1) + "\n")
    return stored


def _windows(parts: Iterable[Int64s]) -> Iterator[Int64s]:
    """The same lengths, `WINDOW` documents at a time."""
    held: list[Int64s] = []
    count = 0
    for part in parts:
        held.append(part)
        count += len(part)
        if count >= WINDOW:
            whole = np.concatenate(held)
            last = count - count % WINDOW
            for first in range(0, last, WINDOW):
                yield whole[first : first + WINDOW]
            held, count = [whole[last:]], count - last
    if count:
        yield np.concatenate(held)
