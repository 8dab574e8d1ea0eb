"""Which formats there are, and which of them some files are of."""

import logging
from collections.abc import Sequence
from typing import Final

from dew.data.errors import SourceError
from dew.data.filenames import in_order
from dew.data.storage import Storage
from dew.tokens.access import CorpusOptions
from dew.tokens.foreign import arrays, headerless
from dew.tokens.foreign.arrays import NPY
from dew.tokens.foreign.corpus import ForeignCorpus, in_parallel
from dew.tokens.foreign.datatrove import DATATROVE
from dew.tokens.foreign.headerless import HEADERLESS, LLMC
from dew.tokens.foreign.megatron import MEGATRON
from dew.tokens.foreign.shard import ForeignShard, Format

_LOG: Final = logging.getLogger("dew.tokens")

FORMATS: Final = (MEGATRON, DATATROVE, NPY, LLMC, HEADERLESS)


def format_named(name: str) -> Format:
    """The format of that name."""
    return next(format for format in FORMATS if format.name == name)


def files_in(storage: Storage, names: Sequence[str], options: CorpusOptions) -> tuple[Format, list[str]] | None:
    """The format of files `names` and those of them that hold ids, in order; None where none is of a known format.

    Raises:
        SourceError: they could be of several formats.
    """
    if options.format is not None:
        format = format_named(options.format)
        chosen = format.select(names)
        return (format, in_order(set(chosen))) if chosen else None
    found = {format: in_order(chosen) for format, chosen in _by_format(storage, names).items()}
    if len(found) > 1:
        listed = "; ".join(f"{format.name!r} ({', '.join(chosen[:2])})" for format, chosen in found.items())
        raise SourceError(
            f"{storage.location()} has files of several formats: {listed}; name one with format=, or its files by a "
            "path or a pattern"
        )
    return next(iter(found.items()), None)


def open_files(storage: Storage, format: Format, names: Sequence[str], options: CorpusOptions) -> ForeignCorpus:
    """The corpus of files `names`, in this order.

    Raises:
        SourceError: a file is damaged, or not of the format; there are no tokens.
        OptionsError: `options` contradict the files, or lack what the files do not say.
    """

    def opened(name: str) -> ForeignShard:
        return format.open(storage, name, options)

    shards = in_parallel(storage, opened, names)
    corpus = ForeignCorpus(storage, format, shards, options)
    _LOG.info(
        "%s is read as %r: %d tokens of %s in %d files, %s",
        storage.location(names[0] if len(names) == 1 else ""),
        format.name,
        corpus.tokens,
        corpus.dtype,
        len(names),
        names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}",
    )
    return corpus


def signs() -> str:
    """How each format is recognised, for messages."""
    return "; ".join(f"{format.name!r}, {format.sign}" for format in FORMATS)


def _by_format(storage: Storage, names: Sequence[str]) -> dict[Format, list[str]]:
    found: dict[Format, list[str]] = {}
    claimed: set[str] = set()
    for format in (MEGATRON, DATATROVE):
        if chosen := set(format.select(names)):
            found[format] = sorted(chosen)
            claimed |= chosen
    for ending in (".npy", ".bin", ".ds"):
        rest = sorted(name for name in names if name.endswith(ending) and name not in claimed)
        if rest:
            found.setdefault(_by_content(storage, rest[0]), []).extend(rest)
    return found


def _by_content(storage: Storage, name: str) -> Format:
    """The format of a file that its name does not tell, by its first bytes; opening looks at those of every file."""
    head = storage.read_range(name, 0, min(storage.size(name), 16))
    if head.startswith(arrays.MAGIC):
        return NPY
    return LLMC if headerless.is_llmc(head) and name.endswith(".bin") else HEADERLESS
