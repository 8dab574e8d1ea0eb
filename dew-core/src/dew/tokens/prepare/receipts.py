"""What a finished task says of itself: its receipt, written after everything else of it."""

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs

from dew.data.errors import DamagedSourceError
from dew.data.storage import Storage
from dew.tokens.entry import Entry, parse_object
from dew.tokens.manifest import FileRecord, Shard
from dew.tokens.prepare.plan import TASKS

LISTED: Final = 100
"""Rows left out that a receipt lists; the others are counted."""

_FORMAT: Final = "dew-tokenize-task"
_VERSION: Final = 1


@attrs.frozen(kw_only=True)
class LeftOut:
    """A row that is no document and was left out.

    Args:
        piece: number of the piece in its task.
        row: as `documents` counts them.
        why: the reason.
    """

    piece: int
    row: int
    why: str


@attrs.frozen(kw_only=True)
class Receipt:
    """What one task did.

    Args:
        plan: id of the plan.
        task: its number.
        shards: split -> shard, for splits that got documents.
        documents, empty: documents with tokens, and without.
        text_bytes, tokens, unknown: of the documents; `unknown` counts ids for what the vocabulary does not hold.
        rows: of each piece, documents or not.
        left_out: rows left out, in all.
        listed: the first of them.
    """

    plan: str
    task: int
    shards: Mapping[str, Shard]
    documents: int
    empty: int
    text_bytes: int
    tokens: int
    unknown: int
    rows: tuple[int, ...]
    left_out: int
    listed: tuple[LeftOut, ...]


def receipt_text(receipt: Receipt) -> bytes:
    """The file of a receipt, the same bytes for the same task."""
    values = {"format": _FORMAT, "version": _VERSION, **attrs.asdict(receipt)}
    return (json.dumps(values, sort_keys=True, ensure_ascii=True) + "\n").encode()


def parse_receipt(data: bytes, where: str) -> Receipt:
    """Read a receipt; `where` names it in errors.

    Raises:
        DamagedSourceError: it is none, or of another version.
    """
    entry = Entry(parse_object(data, where), where)
    if (entry.text("format"), entry.integer("version")) != (_FORMAT, _VERSION):
        raise DamagedSourceError(f"{where} is no receipt of dew tokenize that this dew-core reads; remove it")
    shards = entry.part("shards")
    return Receipt(
        plan=entry.text("plan"),
        task=entry.integer("task"),
        shards={split: _shard(shards.part(split)) for split in shards.names()},
        documents=entry.integer("documents"),
        empty=entry.integer("empty"),
        text_bytes=entry.integer("text_bytes"),
        tokens=entry.integer("tokens"),
        unknown=entry.integer("unknown"),
        rows=tuple(entry.values["rows"]),
        left_out=entry.integer("left_out"),
        listed=tuple(
            LeftOut(piece=part.integer("piece"), row=part.integer("row"), why=part.text("why"))
            for part in entry.parts("listed")
        ),
    )


def finished(out: Storage) -> set[int]:
    """Numbers of the tasks that have a receipt."""
    names = out.list(TASKS) if out.is_dir(TASKS) else []
    numbers = (name.removeprefix("task-").removesuffix(".json") for name in names if name.endswith(".json"))
    return {int(number) for number in numbers if number.isdecimal()}


def _shard(entry: Entry) -> Shard:
    values: dict[str, Any] = {**entry.values}
    files = entry.part("files")
    values["files"] = {
        kind: FileRecord(bytes=files.part(kind).integer("bytes"), sha256=files.part(kind).text("sha256"))
        for kind in files.names()
    }
    return Shard(**values)
