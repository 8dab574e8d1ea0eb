"""Rows rendered once, into a token corpus that is found again by what it was made of.

The corpus lies in a directory named by a digest of the rows, the tokenizer, the template and the rules. It is made
under another name and appears whole, so no lock is needed: of two processes that make it, both make the same bytes. It
may be deleted at any time; it is made again.
"""

import hashlib
import json
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from dew.data.errors import DamagedSourceError, DewWarning, PoolError, StorageError
from dew.tokens.chat.renderer import ChatRenderer
from dew.tokens.chat.rows import FileRows, Rows
from dew.tokens.corpus import TokenCorpus
from dew.tokens.verify import verify_corpus
from dew.tokens.writer import TokenWriter

if TYPE_CHECKING:
    from dew.tokens.chat.encoding import Encoded
    from dew.tokens.chat.roles import Painted

FOLDER: Final = ".dew-chats"  # beside the file of rows
FORMAT: Final = "dew-chat"

logger = logging.getLogger("dew.tokens")

_AT_ONCE: Final = 64  # conversations that are encoded together

Fill = Callable[[TokenWriter], Mapping[str, int]]
"""Writes the documents, and says what became of the rows."""


@attrs.frozen(kw_only=True)
class Artefact:
    """What a rendered corpus is made of.

    Args:
        kind: what is made of the rows, such as "messages".
        rows: which rows.
        renderer: by what.
        rules: further JSON values that decide what is made.
        folder: where renders are kept; None for beside the file, else the user's cache directory.
    """

    kind: str
    rows: Rows
    renderer: ChatRenderer
    rules: Mapping[str, Any]
    folder: str | None

    def key(self) -> str:
        """sha256 of all of it."""
        values = {
            "format": FORMAT,
            "kind": self.kind,
            "rows": self.rows.digest(),
            "arrow": self.rows.arrow,
            "renderer": self.renderer.digest(),
            "rules": dict(self.rules),
        }
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def find_or_make(self, fill: Fill, *, in_pool: bool) -> TokenCorpus:
        """The corpus: found and verified, or made by `fill`.

        Args:
            fill: writes its documents.
            in_pool: make it also where many processes would.

        Raises:
            SourceError: what `fill` raises.
            PoolError: it is missing, and this is a process of a pool.
            StorageError: it cannot be kept anywhere.
        """
        key = self.key()
        places = _places(self)
        for place in places:
            found = _found(place / f"chat-{key[:32]}", key)
            if found is not None:
                return found
        if not in_pool and _processes() > 1:
            raise PoolError(
                f"these rows have not been rendered yet, and each of {_processes()} processes would do it: call "
                "prepare() once, in one process, with renders= a directory that all of them see"
            )
        failed: OSError | None = None
        for place in places:
            try:
                place.mkdir(parents=True, exist_ok=True)
                unfinished = place / f".dew-tmp-{os.urandom(8).hex()}"
                unfinished.mkdir()
            except OSError as error:
                failed = error
                continue
            return _make(self, key, fill, unfinished, place / f"chat-{key[:32]}")
        raise StorageError(f"renders={self.folder!r} cannot hold the rendered rows: {failed}") from failed


def counts_in(corpus: TokenCorpus) -> Mapping[str, int]:
    """What became of the rows of a rendered corpus."""
    return (corpus.manifest.preparation or {})[FORMAT]["counts"]


def content_digest(corpus: TokenCorpus) -> str:
    """sha256 of the ids, roles and documents of a rendered corpus, whatever it was made by."""
    shards = [[shard.files[kind].sha256 for kind in ("tokens", "docs", "roles")] for shard in corpus.manifest.shards]
    return hashlib.sha256(json.dumps(shards).encode()).hexdigest()


def _places(artefact: Artefact) -> list[Path]:
    if artefact.folder is not None:
        return [Path(artefact.folder)]
    beside: list[Path] = []
    if isinstance(artefact.rows, FileRows) and (directory := artefact.rows.storage.path()) is not None:
        beside = [directory / FOLDER]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [*beside, Path(cache, "dew", "chats")]


def _processes() -> int:
    """Processes of this pool, as far as JAX was told."""
    jax: Any = sys.modules.get("jax")
    return jax.process_count() if jax is not None and jax.distributed.is_initialized() else 1


def _jinja2_version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("jinja2")
    except PackageNotFoundError:
        return None


def _found(path: Path, key: str) -> TokenCorpus | None:
    if not path.is_dir():
        return None
    try:
        manifest = verify_corpus(path)
        stated = (manifest.preparation or {}).get(FORMAT, {}).get("key")
        if stated != key:
            raise DamagedSourceError(f"{path} was made of something else: it states the key {stated}, not {key}")
    except DamagedSourceError as error:
        warnings.warn(f"{error}; the rows are rendered again", DewWarning, stacklevel=2)
        shutil.rmtree(path, ignore_errors=True)
        return None
    return TokenCorpus(path)


def _make(artefact: Artefact, key: str, fill: Fill, unfinished: Path, path: Path) -> TokenCorpus:
    try:
        with TokenWriter(unfinished, tokenizer=artefact.renderer.tokenizer.info, roles=True) as writer:
            counts = fill(writer)
            facts = {"key": key, "kind": artefact.kind, "counts": dict(counts), "jinja2": _jinja2_version()}
            writer.preparation = {FORMAT: facts}
        try:
            os.rename(unfinished, path)
        except OSError:
            if not path.is_dir():
                raise
            logger.info("another process made %s in the meantime", str(path))
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    logger.info("%d rows rendered to %s", counts["rows"], str(path))
    return TokenCorpus(path)


def encoded_ahead(renderer: ChatRenderer, texts: "Iterable[Painted]") -> "Iterator[Encoded]":
    """`texts` encoded in order, some at a time in a thread, while the next ones are made in this one."""
    with ThreadPoolExecutor(1, "dew-chat") as pool:
        waiting: Future[list[Encoded]] | None = None
        for some in _batches(texts):
            started = pool.submit(renderer.encode, some)
            if waiting is not None:
                yield from waiting.result()
            waiting = started
        if waiting is not None:
            yield from waiting.result()


def _batches(texts: "Iterable[Painted]") -> "Iterator[list[Painted]]":
    held: list[Painted] = []
    for text in texts:
        held.append(text)
        if len(held) == _AT_ONCE:
            yield held
            held = []
    if held:
        yield held
