"""A folder of files: captions and labels from a metadata table, from files beside them, or from their directories.

Which of these a folder uses is found from what is there, and said; what contradicts itself is refused when the folder
is opened, with counts and names, since a file that silently lacks its caption is never missed again.
"""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final, Literal, TypeAlias, cast

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import DamagedSourceError, OptionsError, SourceError, SourceNotFoundError
from dew.data.storage import Storage
from dew_media.files import metadata
from dew_media.files.collection import Missing, Opened, StoredFiles, check_index
from dew_media.files.listing import UNKNOWN, Listing, list_files, suffix_of
from dew_media.files.problems import (
    BAD_NAME,
    BROKEN_LINK,
    CLASSES,
    FILES,
    NO_CAPTION,
    NO_FILE,
    NO_LABEL,
    NO_ROW,
    STRAY_CAPTION,
    TWICE,
    TWO_CAPTIONS,
    Kind,
    Problems,
)
from dew_media.files.ranged import open_range

SIDECARS: Final = (".caption", ".txt")

_LEAVE: Final = "leave it as it is while a run reads it"

CaptionsFrom: TypeAlias = Literal["metadata", "sidecars", "none"]
LabelsFrom: TypeAlias = Literal["metadata", "folders", "none"]


@attrs.frozen(kw_only=True)
class FolderSpec:
    """A folder and how to read it.

    Args:
        storage: the directory that was named.
        below: the directory of the split in it, "" for all of it.
        suffixes: of the files, in lower case with their dot.
        missing: whether what does not fit together is refused or left out.
        captions, labels: where they come from; None: found from what is there.
        caption_field: the column of captions in a table.
        siblings: directories of the other splits, so that a label means the same in each.
    """

    storage: Storage
    below: str = ""
    suffixes: frozenset[str]
    missing: Missing = "error"
    captions: CaptionsFrom | None = None
    labels: LabelsFrom | None = None
    caption_field: str | None = None
    siblings: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Folder(Opened):
    """What a folder holds.

    Args:
        sizes: of the files, `UNKNOWN` where a server does not tell.
        labels: one a file, or None.
        texts: captions of each file out of a table, or None.
        sidecars: the caption file of each file, or None.
    """

    sizes: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int32] | None = None
    texts: list[tuple[str, ...]] | None = None
    sidecars: list[str] | None = None


class FolderFiles(StoredFiles[Folder]):
    """`MediaFiles` of a folder."""

    def __init__(self, spec: FolderSpec, listing: Listing | None = None) -> None:
        self._spec = spec
        self._listing = listing  # made a moment ago
        super().__init__()
        self._listing = None

    def _open(self) -> Folder:
        return read_folder(self._spec, self._listing)

    def _location(self) -> str:
        return self._spec.storage.location(self._spec.below)

    def name(self, index: int) -> str:
        """The path, relative to what was opened."""
        return self._inside(self.key(index))

    def read(self, index: int) -> bytes:
        """The file, as long as it was when it was listed."""
        name, size = self.name(index), int(self.known.sizes[index])
        where = self._spec.storage.location(name)
        try:
            data = self._spec.storage.read(name)
        except SourceNotFoundError as error:
            raise SourceNotFoundError(f"{where} is gone since the folder was listed; {_LEAVE}") from error
        if size not in (len(data), UNKNOWN):
            raise DamagedSourceError(
                f"{where} had {size} bytes when the folder was listed, and has {len(data)}; {_LEAVE}"
            )
        return data

    def open_file(self, index: int) -> BinaryIO:
        """The file, opened."""
        name, size = self.name(index), int(self.known.sizes[index])
        remote = not self._spec.storage.local and size != UNKNOWN
        return open_range(self._spec.storage, name, 0, size if remote else None)

    def path(self, index: int) -> str | None:
        """The file's path, where it is local."""
        path = self._spec.storage.path(self.name(index))
        return None if path is None else str(path)

    def label(self, index: int) -> int | None:
        """From the table or the directory."""
        known = self.known
        check_index(index, len(known.keys))
        return None if known.labels is None else int(known.labels[index])

    def captions(self, index: int) -> tuple[str, ...]:
        """From the table, or from the file beside it, which is read now."""
        known = self.known
        check_index(index, len(known.keys))
        if known.texts is not None:
            return known.texts[index]
        if known.sidecars is None:
            return ()
        name = self._inside(known.sidecars[index])
        return (caption_text(self._spec.storage.read(name), f"the caption {self._spec.storage.location(name)}"),)

    def _inside(self, key: str) -> str:
        return f"{self._spec.below}/{key}" if self._spec.below else key


def caption_text(data: bytes, where: str) -> str:
    """The caption in a text file: all of it, without the space around it.

    Raises:
        DamagedSourceError: it is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise DamagedSourceError(
            f"{where} is no UTF-8: byte {error.object[error.start]:#04x} at {error.start}"
        ) from error


def read_folder(spec: FolderSpec, listing: Listing | None = None) -> Folder:
    """List the folder, and bring files, captions and labels together.

    Raises:
        SourceError: they do not fit together and `missing` is "error", or there is no file.
    """
    return _Reading(spec, listing or list_files(spec.storage, spec.below)).folder()


class _Reading:
    """One look at a folder."""

    def __init__(self, spec: FolderSpec, listing: Listing) -> None:
        self._spec = spec
        self._where = spec.storage.location(spec.below)
        self._listing = listing
        self._sizes = dict(zip(self._listing.names, self._listing.sizes, strict=True))
        self._problems = Problems()
        self._problems.add(BROKEN_LINK, [name for name in self._listing.broken if suffix_of(name) in spec.suffixes])
        self._problems.add(BAD_NAME, self._listing.unreadable)
        self._names = [name for name in self._listing.names if suffix_of(name) in spec.suffixes]
        self._tables = self._read_tables()
        self._advice = ""
        self._ambiguous = set[str]()  # files with two captions

    def folder(self) -> Folder:
        if not self._names:
            raise SourceError(_no_files(self._where, self._spec.suffixes, self._listing))
        keep = self._names
        rows = self._rows()
        if rows is not None:
            keep = self._with_rows(keep, rows)
        sidecars = self._sidecars()
        if sidecars is not None:
            keep = self._with_sidecars(keep, sidecars)
        if rows is not None and self._by_table:
            self._problems.add(NO_CAPTION, [name for name in keep if rows[name].captions is None])
            keep = [name for name in keep if rows[name].captions is not None]
        keep, labels, names, words = self._labels(keep, rows)
        dropped = self._problems.settle(self._spec.missing, self._where, self._advice)
        if not keep:
            raise SourceError(f"{self._where} has no file left{dropped}")
        texts = [rows[name].captions or () for name in keep] if rows is not None and self._by_table else None
        return Folder(
            keys=keep,
            sizes=np.array([self._sizes[name] for name in keep], np.int64),
            labels=labels,
            label_names=names,
            has_labels=labels is not None,
            has_captions=texts is not None or sidecars is not None,
            texts=texts,
            sidecars=None if sidecars is None else [sidecars[name] for name in keep],
            stored=self._stored(),
            digest=self._digest(keep, labels, names, sidecars),
            description=self._describe(len(keep), sidecars is not None, words) + dropped,
        )

    @property
    def _by_table(self) -> bool:
        """Whether captions come from tables."""
        return self._spec.captions in (None, "metadata") and any(table.has_captions for table in self._tables)

    def _read_tables(self) -> list[metadata.Table]:
        spec = self._spec
        captions, labels = spec.captions in (None, "metadata"), spec.labels in (None, "metadata")
        found = metadata.tables_among(self._listing.names) if captions or labels else []
        if not found and "metadata" in (spec.captions, spec.labels):
            raise OptionsError(
                f"captions or labels were asked for from metadata, and {self._where} has no "
                f"{' or '.join(metadata.TABLES)}"
            )
        tables = [
            metadata.read_table(spec.storage, spec.below, name, spec.caption_field, captions=captions) for name in found
        ]
        used = any((captions and table.has_captions) or (labels and table.has_labels) for table in tables)
        return tables if used else []

    def _rows(self) -> dict[str, metadata.Row] | None:
        """Rows by the name of their file, None without a table."""
        if not self._tables:
            return None
        # Where a file system stores names in another Unicode form than the table, they are the same names.
        forms = {unicodedata.normalize("NFC", name): name for name in self._names}
        rows: dict[str, metadata.Row] = {}
        for table in self._tables:
            for row in table.rows:
                name = row.file_name
                if name not in self._sizes:
                    name = forms.get(unicodedata.normalize("NFC", name), name)
                if name in rows:
                    self._problems.add(TWICE, [name])
                else:
                    rows[name] = row
        return rows

    def _with_rows(self, names: list[str], rows: Mapping[str, metadata.Row]) -> list[str]:
        there = set(names)
        absent = [name for name in rows if name not in there]
        self._problems.add(NO_ROW, [name for name in names if name not in rows])
        self._problems.add(NO_FILE, absent)
        self._advice = _advice(absent, there, self._sizes, self._tables)
        return [name for name in names if name in rows]

    def _sidecars(self) -> dict[str, str] | None:
        """Caption file by file; None where captions come from elsewhere or there are none."""
        wanted = self._spec.captions
        if wanted in ("none", "metadata"):
            return None
        stems: dict[str, list[str]] = {}
        for name in self._listing.names:
            if suffix_of(name) in SIDECARS:
                stems.setdefault(_stem(name), []).append(name)
        found = {name: stems[_stem(name)] for name in self._names if _stem(name) in stems}
        if not found:
            if wanted == "sidecars":
                raise OptionsError(
                    f"captions='sidecars': no file in {self._where} has a .txt or .caption file beside it"
                )
            return None
        if self._by_table and wanted is None:
            raise SourceError(
                f"{self._where} has captions in {self._tables[0].name!r} and in {len(found)} files beside its files, "
                f"such as {next(iter(found.values()))[0]!r}; captions='metadata' or 'sidecars' says which count"
            )
        used = {_stem(name) for name in found}
        self._problems.add(STRAY_CAPTION, [name for stem, all_ in stems.items() if stem not in used for name in all_])
        self._ambiguous = {name for name, all_ in found.items() if len(all_) > 1}
        self._problems.add(TWO_CAPTIONS, sorted(self._ambiguous))
        return {name: all_[0] for name, all_ in found.items() if len(all_) == 1}

    def _with_sidecars(self, names: list[str], sidecars: Mapping[str, str]) -> list[str]:
        stems = Counter(_stem(name) for name in names)
        shared = [name for name in names if name in sidecars and stems[_stem(name)] > 1]
        if shared:
            raise SourceError(
                f"{len(shared)} files in {self._where} share a name but for the suffix, such as {shared[0]!r} and "
                f"{shared[1]!r}, so that one caption file would be both of theirs; rename them"
            )
        self._problems.add(NO_CAPTION, [name for name in names if name not in sidecars and name not in self._ambiguous])
        return [name for name in names if name in sidecars]

    def _labels(
        self, names: list[str], rows: Mapping[str, metadata.Row] | None
    ) -> "tuple[list[str], npt.NDArray[np.int32] | None, tuple[str, ...], str]":
        wanted = self._spec.labels
        if wanted == "none":
            return names, None, (), ""
        if rows is not None and wanted != "folders":
            if not any(table.has_labels for table in self._tables):
                if wanted == "metadata":
                    raise OptionsError(f"labels='metadata': {self._tables[0].name!r} has no column 'label'")
                return names, None, (), ""
            return self._labels_in_rows(names, rows)
        return self._labels_by_folder(names, asked=wanted == "folders")

    def _labels_in_rows(
        self, names: list[str], rows: Mapping[str, metadata.Row]
    ) -> "tuple[list[str], npt.NDArray[np.int32], tuple[str, ...], str]":
        self._problems.add(NO_LABEL, [name for name in names if rows[name].label is None])
        names = [name for name in names if rows[name].label is not None]
        values = [cast("metadata.Label", rows[name].label) for name in names]
        words = metadata.label_names([*values, *self._sibling_labels(values)], self._where)
        numbers = {word: number for number, word in enumerate(words)}
        labels = np.array([numbers[value] if isinstance(value, str) else value for value in values], np.int32)
        return names, labels, words, CLASSES.counted(len(words)) if words else "labels in a table"

    def _sibling_labels(self, values: Sequence[metadata.Label]) -> list[metadata.Label]:
        """Labels of the other splits, where labels are words: their numbers must be the same in each split."""
        spec = self._spec
        if not spec.siblings or not any(isinstance(value, str) for value in values):
            return []
        found: list[metadata.Label] = []
        for sibling in spec.siblings:
            names = list_files(spec.storage, sibling).names
            for name in metadata.tables_among(names):
                table = metadata.read_table(spec.storage, sibling, name, spec.caption_field)
                found += [row.label for row in table.rows if row.label is not None]
        return found

    def _labels_by_folder(
        self, names: list[str], *, asked: bool
    ) -> "tuple[list[str], npt.NDArray[np.int32] | None, tuple[str, ...], str]":
        loose = [name for name in names if "/" not in name]
        if loose and (asked or (len(loose) < len(names) and not self._captioned)):
            raise SourceError(
                f"{len(loose)} of {len(names)} files in {self._where} lie in no directory, such as {loose[0]!r}, so "
                "that directories cannot be their labels; move them, or give labels='none'"
            )
        first = {name: name.partition("/")[0] for name in names if "/" in name}
        classes = set(first.values())
        if self._spec.siblings:
            # One rule for all splits, whichever is opened: a directory in any of them is a class.
            classes.update(*(self._folders_in(split) for split in (self._spec.below, *self._spec.siblings)))
        if loose or (len(classes) < 2 and not asked):
            return names, None, (), ""
        metadata.check_alike(classes, self._where)
        words = tuple(sorted(classes))
        numbers = {word: number for number, word in enumerate(words)}
        return names, np.array([numbers[first[name]] for name in names], np.int32), words, CLASSES.counted(len(words))

    def _folders_in(self, split: str) -> set[str]:
        storage = self._spec.storage
        names = [name for name in storage.list(split) if not name.startswith(".")]
        if storage.local:
            return {name for name in names if storage.is_dir(f"{split}/{name}")}
        return {name for name in names if not suffix_of(name)}  # to look at each would be a request for each

    @property
    def _captioned(self) -> bool:
        return bool(self._tables) or any(suffix_of(name) in SIDECARS for name in self._listing.names)

    def _stored(self) -> str:
        """Of names and sizes of all files, those that are left out too."""
        names = "".join(f"{name}\0{self._sizes[name]}\n" for name in self._names)
        return hashlib.sha256(b"dew-folder-files-1\0" + names.encode()).hexdigest()

    def _digest(
        self,
        keys: Sequence[str],
        labels: Any,
        names: Sequence[str],
        sidecars: Mapping[str, str] | None,
    ) -> str:
        """Of names and sizes of files and their caption files, of the tables' bytes, and of the labels' names."""
        digest = hashlib.sha256(b"dew-folder-1\0")
        sizes = self._sizes
        digest.update("".join(f"{key}\0{sizes[key]}\n" for key in keys).encode())
        if sidecars is not None:
            digest.update("".join(f"{sidecars[key]}\0{sizes[sidecars[key]]}\n" for key in keys).encode())
        digest.update("".join(f"{table.name}\0{table.digest}\n" for table in self._tables).encode())
        digest.update("\n".join(names).encode())
        if labels is not None:
            digest.update(labels.astype("<i4").tobytes())
        return digest.hexdigest()

    def _describe(self, count: int, sidecars: bool, labels: str) -> str:
        nested = sum("/" in name for name in self._names)
        facts = [
            "folder",
            FILES.counted(count),
            labels,
            "captions in files beside them" if sidecars else "captions in a table" if self._by_table else "",
            f"{nested} in directories below" if nested and not labels else "",
            Kind("link followed", "links followed").counted(self._listing.links) if self._listing.links else "",
            "sizes not known" if UNKNOWN in self._listing.sizes else "",
        ]
        return ", ".join(fact for fact in facts if fact)


def _stem(name: str) -> str:
    return name[: len(name) - len(suffix_of(name))]


def _no_files(where: str, suffixes: frozenset[str], listing: Listing) -> str:
    found = Counter(suffix_of(name) or "no suffix" for name in listing.names).most_common(6)
    there = ", ".join(f"{count} with {suffix}" for suffix, count in found) or "no file at all"
    return f"{where} holds no file with {' '.join(sorted(suffixes))}; it holds {there}"


def _advice(absent: Sequence[str], there: set[str], stored: Mapping[str, int], tables: Sequence[metadata.Table]) -> str:
    """Says so where the names in the table would fit from another directory, or name files of another kind."""
    for name in absent[:1]:
        if name in stored:
            return f"{name!r} is there, and files with {suffix_of(name) or 'no suffix'} are not read. "
        if (slashes := name.replace("\\", "/")) in there:
            return f"The names in {tables[0].name!r} are written with backslashes: write {slashes!r}. "
        if "/" in name and name.partition("/")[2] in there:
            outer = name.partition("/")[0]
            return (
                f"The names in {tables[0].name!r} are relative to a directory above it: without {outer!r}/ they fit. "
            )
        if (inside := next((other for other in there if other.endswith("/" + name)), None)) is not None:
            return f"A row names {name!r}, and there is {inside!r}: file_name is relative to {tables[0].name!r}. "
    return ""
