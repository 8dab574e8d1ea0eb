"""`TokenCorpus`: a corpus that Dew wrote.

Opening reads `manifest.json` and nothing else, whatever the number of shards. A corpus pickles by path: the copy opens
the manifest again and refuses one that has changed in between.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dew.data.errors import DamagedSourceError, SourceNotFoundError
from dew.data.storage import Storage
from dew.tokens.manifest import FILE_DTYPES, MANIFEST, Manifest, is_receipt, parse_manifest
from dew.tokens.npy import HEADER_BYTES
from dew.tokens.reader import TokenReader
from dew.tokens.shards import ManifestFiles, check_file


class TokenCorpus(TokenReader):
    """A corpus of token ids with a manifest, read only.

    Args:
        path: a directory or URL that holds `manifest.json`, or its `Storage`.
        options: for the file system of a URL, as fsspec takes them; a `Storage` has its own.

    Raises:
        SourceNotFoundError: nothing is stored at `path`.
        DamagedSourceError: there is no manifest, or it is not what was written.
    """

    def __init__(self, path: str | os.PathLike[str] | Storage, *, options: Mapping[str, Any] | None = None) -> None:
        storage = path if isinstance(path, Storage) else Storage(path, options=options or {})
        self._set_manifest(storage, read_manifest(storage))

    def _set_manifest(self, storage: Storage, manifest: Manifest) -> None:
        self.manifest: Manifest = manifest
        self._set_up(storage, ManifestFiles(manifest))

    def __repr__(self) -> str:
        return f"TokenCorpus(tokens={self.tokens}, documents={self.documents}, id={self.manifest.id[:12]})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._storage, self.manifest.id)

    @property
    def id(self) -> str:
        """The manifest's id: a digest of the sizes and hashes of all files, and of how they were made."""
        return self.manifest.id

    @property
    def tokenizer_sha256(self) -> str | None:
        """Digest of the definition of the tokenizer that made the ids, None where the manifest does not state it."""
        return self.manifest.tokenizer.sha256

    @property
    def documents(self) -> int:
        """Number of documents that have tokens."""
        return self.manifest.documents

    def open(self) -> "TokenCorpus":
        """A second reader of the same corpus with maps of its own; reads the manifest again.

        Raises:
            DamagedSourceError: the corpus was replaced since it was opened.
        """
        return _reopen(self._storage, self.manifest.id)

    def _shard_offsets(self, number: int) -> npt.NDArray[np.int64]:
        shard = self.manifest.shards[number]
        name, size = shard.file("docs"), shard.files["docs"].bytes
        check_file(self._storage, name, size, FILE_DTYPES["docs"], shard.documents + 1)
        data = self._storage.read_range(name, HEADER_BYTES, size)
        offsets = np.frombuffer(data, FILE_DTYPES["docs"]).astype(np.int64)
        if offsets[0] != 0 or offsets[-1] != shard.tokens or (np.diff(offsets) < 1).any():
            raise DamagedSourceError(
                f"{self._storage.location(name)} must rise from 0 to {shard.tokens} in steps above 0, it goes from "
                f"{offsets[0]} to {offsets[-1]} with a step of {np.diff(offsets).min()}; copy the corpus again"
            )
        return offsets


def _reopen(storage: Storage, expected: str) -> TokenCorpus:
    corpus = TokenCorpus(storage)
    if corpus.manifest.id != expected:
        raise DamagedSourceError(
            f"{storage.location()} held the corpus {expected} when it was opened, now it holds {corpus.manifest.id}; "
            "a corpus must not be replaced while it is read"
        )
    return corpus


def read_manifest(storage: Storage) -> Manifest:
    """Read and check the manifest of the corpus in `storage`.

    Raises:
        SourceNotFoundError: nothing is stored there.
        DamagedSourceError: there is no manifest, or it is not what was written.
    """
    if storage.exists(MANIFEST):
        return parse_manifest(storage.read(MANIFEST), storage.location(MANIFEST))
    if not storage.is_dir(""):
        raise SourceNotFoundError(
            f"no token corpus at {storage.location()}: there is no such directory; check the path"
        )
    receipts = sum(is_receipt(name) for name in storage.list())
    raise DamagedSourceError(
        f"{storage.location()} is no finished token corpus: it has no {MANIFEST}, which is written last, and "
        f"{receipts} shards with receipts; write the corpus again"
    )
