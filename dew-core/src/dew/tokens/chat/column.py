"""The roles of a token corpus, read like its ids: one byte for each token."""

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import SourceError
from dew.data.storage import Storage
from dew.tokens.corpus import TokenCorpus
from dew.tokens.manifest import FILE_DTYPES, Manifest
from dew.tokens.npy import HEADER_BYTES
from dew.tokens.reader import TokenReader
from dew.tokens.shards import TokenFile, check_file


@attrs.frozen
class RoleFiles:
    """The role files of a corpus that Dew wrote."""

    manifest: Manifest

    @property
    def dtype(self) -> str:
        """`"|u1"`."""
        return FILE_DTYPES["roles"]

    @property
    def ids_fit(self) -> bool:
        """True."""
        return True

    def lengths(self) -> list[int]:
        """Tokens in each shard."""
        return [shard.tokens for shard in self.manifest.shards]

    def file(self, number: int) -> TokenFile:
        """The role file of shard `number`."""
        shard = self.manifest.shards[number]
        return TokenFile(shard.file("roles"), HEADER_BYTES, shard.tokens)

    def check(self, storage: Storage, number: int) -> None:
        """Compare size and header with the manifest."""
        shard = self.manifest.shards[number]
        check_file(storage, shard.file("roles"), shard.files["roles"].bytes, self.dtype, shard.tokens)


class RoleReader(TokenReader):
    """The roles of `corpus`, in the places of its tokens.

    Raises:
        SourceError: the corpus has none.
    """

    def __init__(self, corpus: TokenCorpus) -> None:
        without = [shard.name for shard in corpus.manifest.shards if "roles" not in shard.files]
        if without:
            raise SourceError(f"{corpus!r} has no roles: {without[0]} has none; ChatMessages makes corpora that have")
        self.corpus = corpus
        self._set_up(corpus._storage, RoleFiles(corpus.manifest))  # pyright: ignore[reportPrivateUsage]

    def __repr__(self) -> str:
        return f"RoleReader({self.corpus!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return RoleReader, (self.corpus,)

    @property
    def id(self) -> str:
        """The corpus's id."""
        return self.corpus.id

    @property
    def tokenizer_sha256(self) -> str | None:
        """As the corpus's."""
        return self.corpus.tokenizer_sha256

    @property
    def documents(self) -> int:
        """Number of documents that have tokens."""
        return self.corpus.documents

    def open(self) -> "RoleReader":
        """A second reader with maps of its own; reads nothing."""
        return RoleReader(self.corpus)

    def _shard_offsets(self, number: int) -> npt.NDArray[np.int64]:
        return self.corpus._shard_offsets(number)  # pyright: ignore[reportPrivateUsage]
