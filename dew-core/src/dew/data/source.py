"""Record sources: what a provider opens, and how a source is named in a saved position.

A source is a length and `source[i]`. Two optional methods make it fast: `__getitems__` (a list of records at once) and
`take` (whole columns, already stacked). `drawn` gives records that have random parts. Two more bind a saved position to
the data: `fingerprint()` and `identity()`.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from dew.data.errors import SourceError

Record: TypeAlias = Mapping[str, Any]
"""Field name -> array, scalar, string, or a nested mapping of these."""

_LONGEST_DESCRIPTION = 500
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")


@runtime_checkable
class RecordSource(Protocol):
    """Records with random access.

    A source must read the same record at the same index for as long as it exists, be safe to read from several threads,
    and pickle by path, never by content: worker processes open it again.

    Its `repr` names its data (format, options that change records), never a location, cache, loading setting or
    address: it is saved in every position, and a moved corpus must still be recognised.

    Optional methods, looked up by name:
        `__getitems__(indices: list[int]) -> list[Record]`: many records in one call.
        `take(indices: (k,) int64) -> Mapping[str, ndarray]`: many records as columns `(k, ...)`, used where there is no
            `preprocess`. The arrays must be new ones, owned by the caller.
        `drawn(index: int, rng: Generator) -> Record`: a record with random parts, such as a crop or one caption of
            several. A training stream reads this instead, with the record's own draws; `source[index]`, which a
            validation pass reads, is the same record without chance, with the same fields, dtypes and shapes.
        `fingerprint() -> str`: a cheap digest of the content, at most a second at 100 000 files; never of times or
            inodes.
        `identity() -> Mapping[str, JSON value]`: further parts that must match to resume, such as a tokenizer's hash.
        `made_by() -> Mapping[str, str]`: library -> version, of those that shape content, such as a decoder; saved in
            every position, where another version warns.
        `order(seed: int) -> Order`: the order that `load` trains in, for a source whose records are dear to read in a
            uniformly random one, such as `BlockOrder`.
        `open() -> RecordSource`: a reader of the same records with files of its own; the stream that opened it calls
            its `close()`. A source without `open` is read as it is and never closed by a stream.
        `shares_records_with(other: object) -> int`: how many of its records `other` reads too, 0 where it cannot tell.
            Training and validation that share some are refused.
        `statistics() -> Mapping[str, Mapping[str, int]]`: name of a table -> label -> count, for `dew peek --stats`.
        `fields() -> Mapping[str, str or a nested mapping]`: what each field is, in words; shown in place of record 0
            where a `preprocess` is asked for.
    """

    def __len__(self) -> int:
        """Number of records."""
        ...

    def __getitem__(self, index: int, /) -> Record:
        """Record `index`, 0 to `len(self) - 1`."""
        ...


Preprocess: TypeAlias = Callable[..., Record]
"""`preprocess(record) -> record` or `preprocess(record, rng) -> record`; `rng`: a Generator keyed by the place."""


def describe(source: object) -> str:
    """What a position says of a source: its `repr` where its class defines one, else its type.

    Lists, arrays and dicts are described by type, length and dtype; a repr that holds an object's address names nothing
    and is replaced by the type; over 500 characters the digest stands for the text.
    """
    text = _describe(source)
    if len(text) <= _LONGEST_DESCRIPTION:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{type(source).__qualname__}(sha256={digest})"


def _describe(source: object) -> str:
    if isinstance(source, np.ndarray):
        return f"ndarray(shape={source.shape}, dtype={source.dtype})"  # pyright: ignore[reportUnknownMemberType]
    if isinstance(source, Mapping):
        columns = cast("Mapping[object, object]", source)
        entries = sorted(f"{key}: {_describe(value)}" for key, value in columns.items())
        return "{" + ", ".join(entries) + "}"
    if isinstance(source, list | tuple):
        rows = cast("Sequence[object]", source)
        return f"{type(rows).__name__}(length={len(rows)})"
    text = repr(source)
    if type(source).__repr__ is object.__repr__ or _ADDRESS.search(text):
        return type(source).__qualname__
    return text


def fingerprint(source: object) -> str | None:
    """The source's own digest of its content, or None where it has none."""
    own = getattr(source, "fingerprint", None)
    digest = None if own is None else own()
    return None if digest is None else str(digest)


def identity(source: object) -> dict[str, Any]:
    """The further parts that must match to resume, as the source states them.

    Raises:
        SourceError: a part is not a JSON value.
    """
    own = getattr(source, "identity", None)
    parts: dict[str, Any] = {} if own is None else dict(own())
    try:
        return json.loads(json.dumps(parts, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SourceError(
            f"{describe(source)}.identity() must hold JSON values only, got {parts!r}: {error}"
        ) from error


def made_by(source: object) -> dict[str, str]:
    """Version of each library that shapes the content, as the source states them."""
    own = getattr(source, "made_by", None)
    return {} if own is None else {str(name): str(version) for name, version in own().items()}


def shared_records(one: object, other: object) -> int:
    """How many records the two sources have in common, as far as either can tell."""
    for source, against in ((one, other), (other, one)):
        own = getattr(source, "shares_records_with", None)
        if own is not None and (shared := int(own(against))):
            return shared
    return 0


def check_one_tokenizer(sources: Mapping[str, object]) -> None:
    """Refuses sources of one run whose token ids mean different text, as far as their `identity()` says.

    Raises:
        SourceError: names two of them and both tokenizers.
    """
    known = {name: identity(source).get("tokenizer") for name, source in sources.items()}
    stated = [(name, tokenizer) for name, tokenizer in known.items() if tokenizer is not None]
    for name, tokenizer in stated[1:]:
        if tokenizer != stated[0][1]:
            raise SourceError(
                f"{stated[0][0]} and {name} were prepared with different tokenizers, {stated[0][1]} and {tokenizer}: "
                "the same id is other text in each; prepare both with one tokenizer"
            )


def records_in(source: object) -> int:
    """`len(source)`, refused where it is missing or 0.

    Raises:
        SourceError: the source has no length or no records.
    """
    try:
        records = len(source)  # pyright: ignore[reportArgumentType]
    except TypeError as error:
        raise SourceError(
            f"{describe(source)} has no length, so it has no order that can be resumed; "
            "a record source defines __len__ and __getitem__"
        ) from error
    if records < 1:
        raise SourceError(f"{describe(source)} holds no records")
    return records


Indices: TypeAlias = npt.NDArray[np.int64]
