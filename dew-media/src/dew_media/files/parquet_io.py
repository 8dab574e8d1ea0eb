"""Parquet files as they are stored: which there are, their footers, and row groups of them."""

from collections.abc import Sequence
from typing import Any

import attrs

from dew.data import filenames
from dew.data.errors import DamagedSourceError, DewDataError, StorageDeniedError
from dew.data.storage import Storage
from dew_media.files import metadata
from dew_media.files.arrow import pyarrow
from dew_media.files.collection import Missing
from dew_media.files.folder import CaptionsFrom, LabelsFrom
from dew_media.files.listing import list_files, suffix_of
from dew_media.files.ranged import open_range
from dew_media.files.tar_files import in_split


@attrs.frozen(kw_only=True)
class ParquetSpec:
    """Parquet files and how to read them.

    Args:
        storage: the directory that was named.
        below: the directory of the files in it.
        only: one file there; None for all.
        prefix: what the names of this split's files begin with, "" for all.
        siblings: directories of the other splits, so that a label means the same in each.
        column: the column of encoded bytes; None: the only one there is.
        missing: whether rows without bytes, caption or label are refused or left out.
        captions, labels: "none" ignores such columns; None and "metadata" use them.
        caption_field: the column of captions; None: `text` or `caption`.
    """

    storage: Storage
    below: str = ""
    only: str | None = None
    prefix: str = ""
    siblings: tuple[str, ...] = ()
    column: str | None = None
    missing: Missing = "error"
    captions: CaptionsFrom | None = None
    labels: LabelsFrom | None = None
    caption_field: str | None = None

    @property
    def where(self) -> str:
        """For messages."""
        return self.storage.location(self.inside(self.only or ""))

    def inside(self, name: str) -> str:
        """A file's name in the storage."""
        return "/".join(filter(None, (self.below, name)))

    def names(self) -> list[str]:
        """The files, in order."""
        if self.only is not None:
            return [self.only]
        return filenames.in_order(name for name in self._data() if in_split(name, self.prefix))

    def others(self) -> "list[ParquetSpec]":
        """The files of the other splits, each by itself."""
        if self.only is not None:
            return []
        mine = [name for name in self._data() if not in_split(name, self.prefix)]
        found: list[ParquetSpec] = [attrs.evolve(self, only=name) for name in mine]
        for sibling in self.siblings:
            other = attrs.evolve(self, below=sibling, prefix="")
            found += [attrs.evolve(other, only=name) for name in other.names()]
        return found

    def _data(self) -> list[str]:
        return [name for name in list_files(self.storage, self.below).names if is_data(name)]


def is_data(name: str) -> bool:
    """Whether a file is parquet, and no metadata table."""
    return suffix_of(name) == ".parquet" and name.rpartition("/")[2] not in metadata.TABLES


def read_footer(spec: ParquetSpec, name: str) -> Any:
    """The `pyarrow.parquet.FileMetaData` of a file.

    Raises:
        DamagedSourceError: it is no whole parquet file.
    """
    return _with_file(spec, name, pyarrow().parquet.read_metadata)


def read_group(spec: ParquetSpec, name: str, group: int, columns: Sequence[str], footer: Any = None) -> Any:
    """Row group `group`, the `columns` of it, as a `pyarrow.Table`."""

    def read(file: Any) -> Any:
        library = pyarrow().parquet
        # Not every writer adds checksums; where they are, damage shows that would else be another picture.
        with library.ParquetFile(file, metadata=footer, pre_buffer=True, page_checksum_verification=True) as reader:
            return reader.read_row_group(group, columns=list(columns))

    return _with_file(spec, name, read)


def _with_file(spec: ParquetSpec, name: str, read: Any) -> Any:
    arrow = pyarrow()
    place = spec.inside(name)
    path = spec.storage.path(place)
    spec.storage.size(place)  # says what is wrong, where nothing is there
    try:
        if path is not None:
            return read(str(path))
        with open_range(spec.storage, place) as file:
            return read(file)
    except DewDataError:  # of the storage
        raise
    except PermissionError as error:
        where = spec.storage.location(place)
        raise StorageDeniedError(f"{where} may not be read: {error}; check its permissions") from error
    except (arrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system, which says nothing about the file
            raise
        why = " ".join(str(error).split())  # some are several lines
        raise DamagedSourceError(
            f"{spec.storage.location(place)} is not a parquet file that can be read: {why}; copy it again"
        ) from error
