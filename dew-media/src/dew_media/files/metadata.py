"""Tables that say what files show: `metadata.jsonl`, `.csv` or `.parquet`, a row a file.

A row has `file_name`, relative to the table's own directory, and a caption or a label or both. What cannot be read one
way only is refused: two caption columns, two tables in one directory, a label that is a number here and a word there.
"""

import csv
import hashlib
import io
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import attrs

from dew.data.errors import DamagedSourceError, OptionsError, SourceError
from dew.data.storage import Storage
from dew_media.files.problems import listed

TABLES: Final = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
CAPTIONS: Final = ("caption", "text")
NAME: Final = "file_name"
LABEL: Final = "label"

Label: TypeAlias = int | str

_LARGEST_LABEL: Final = (1 << 31) - 1
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@attrs.frozen(kw_only=True)
class Row:
    """One row.

    Args:
        file_name: of the file, relative to the directory that was listed.
        captions: one or more; None where the row has none.
        label: a number or a word; None where the row has none.
    """

    file_name: str
    captions: tuple[str, ...] | None
    label: Label | None


@attrs.frozen(kw_only=True)
class Table:
    """One table.

    Args:
        name: relative to the directory that was listed.
        rows: in order.
        has_captions, has_labels: whether it has such a column.
        digest: sha256 of its bytes.
    """

    name: str
    rows: tuple[Row, ...]
    has_captions: bool
    has_labels: bool
    digest: str


def tables_among(names: Iterable[str]) -> list[str]:
    """The metadata tables among `names`, at most one a directory.

    Raises:
        SourceError: a directory has two, or one whose name is spelled another way.
    """
    found: dict[str, str] = {}
    for name in names:
        folder, _, base = name.rpartition("/")
        if base.lower() in TABLES and base not in TABLES:
            raise SourceError(f"{name!r} is no metadata table by its spelling; rename it to {base.lower()!r}")
        if base in TABLES:
            other = found.setdefault(folder, name)
            if other != name:
                raise SourceError(
                    f"two metadata tables lie in one directory, {other!r} and {name!r}; which of them counts cannot be "
                    "known: remove one"
                )
    return sorted(found.values())


def read_table(
    storage: Storage, below: str, name: str, caption_field: str | None = None, *, captions: bool = True
) -> Table:
    """The table `name` in the directory `below`.

    Args:
        storage: where it is.
        below: the directory that was listed.
        name: relative to it.
        caption_field: the column of captions; None: `text` or `caption`.
        captions: whether captions are wanted at all.

    Raises:
        DamagedSourceError: it cannot be parsed, or it has no rows.
        SourceError: it has no `file_name`, no caption or label, or values of another kind.
        OptionsError: it lacks the column `caption_field`.
    """
    path = f"{below}/{name}" if below else name
    data, where = storage.read(path), storage.location(path)
    rows = _PARSERS[name.rpartition(".")[2]](data, where)
    if not rows:  # files would silently be without captions
        raise DamagedSourceError(f"{where} has no rows ({len(data)} bytes); write it again, or remove it")
    columns = tuple(dict.fromkeys(key for row in rows for key in row))
    _check_named(columns, where)
    field = _caption_column(columns, caption_field, where) if captions else None
    folder = name.rpartition("/")[0]
    made = tuple(_row(row, number, field, folder, where) for number, row in enumerate(rows, 1))
    return Table(
        name=name,
        rows=made,
        has_captions=field is not None,
        has_labels=LABEL in columns,
        digest=hashlib.sha256(data).hexdigest(),
    )


def label_names(labels: Iterable[Label], where: str) -> tuple[str, ...]:
    """The names of labels that are words, sorted; `()` where they are numbers.

    Raises:
        SourceError: some are words and some are numbers, or two words look the same.
    """
    words, numbers = set[str](), set[int]()
    for label in labels:
        if isinstance(label, str):
            words.add(label)
        else:
            numbers.add(label)
    if words and numbers:
        raise SourceError(
            f"labels in {where} are words and numbers, such as {min(words)!r} and {min(numbers)}; use one kind"
        )
    check_alike(words, where)
    return tuple(sorted(words))


def check_alike(words: Iterable[str], where: str) -> None:
    """Refuses two labels that look the same, and would silently be two classes.

    Raises:
        SourceError: two differ in the space around them, or in the Unicode form alone.
    """
    seen: dict[str, str] = {}
    for word in sorted(words):
        other = seen.setdefault(unicodedata.normalize("NFC", word).strip(), word)
        if other != word:
            raise SourceError(
                f"the labels {other!a} and {word!a} in {where} look the same and would be two classes; "
                "write them in one way"
            )


def parse_json(text: str | bytes) -> Any:
    """JSON in which every key stands once and every text is one.

    Raises:
        ValueError, RecursionError: it is none.
    """
    value = json.loads(text, object_pairs_hook=_object)
    if ("\\u" if isinstance(text, str) else b"\\u") in text:  # type: ignore[operator]
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"it has {error.object[error.start]!a}, which is half of a character") from error
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"it has a key twice, among {listed([key for key, _ in pairs])}")
    return found


def _check_named(columns: Sequence[str], where: str) -> None:
    if columns and NAME not in columns:
        raise SourceError(f"{where} has no column {NAME!r}, which says whose row it is; it has {listed(columns)}")


def _caption_column(columns: Sequence[str], wanted: str | None, where: str) -> str | None:
    shown = listed(columns)
    if wanted is not None:
        if wanted not in columns:
            raise OptionsError(f"{where} has no column {wanted!r}, which caption_field names; it has {shown}")
        return wanted
    found = [column for column in CAPTIONS if column in columns]
    if len(found) > 1:
        raise SourceError(f"{where} has the columns {found[0]!r} and {found[1]!r}; caption_field says which one counts")
    if not found and LABEL not in columns:
        raise SourceError(
            f"{where} has neither 'text' nor 'caption' nor 'label'; it has {shown}; caption_field names a column of "
            "captions, captions='none' ignores the table"
        )
    return found[0] if found else None


def _row(row: Mapping[str, Any], number: int, field: str | None, folder: str, where: str) -> Row:
    at = f"{where}, row {number}"
    name = row.get(NAME)
    if not isinstance(name, str) or not name:
        raise SourceError(f"{at} has the {NAME} {name!r}; it must be a relative path")
    return Row(
        file_name=_inside(name, folder, at),
        captions=None if field is None else captions_of(row.get(field), f"{at}, {field!r}"),
        label=label_of(row.get(LABEL), f"{at}, {LABEL!r}"),
    )


def _inside(name: str, folder: str, at: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise SourceError(f"{at} names {name!r}, which leads out of the table's directory; use a relative path")
    return "/".join((folder, *parts) if folder else parts)


def captions_of(value: Any, at: str) -> tuple[str, ...] | None:
    """A caption or a list of them; None where there is none.

    Raises:
        SourceError: it is something else.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple):
        several = cast("Sequence[Any]", value)
        if all(isinstance(one, str) for one in several):
            return tuple(several) or None
    raise SourceError(f"{at} is {value!r:.60}; a caption is a text, or a list of texts")


def label_of(value: Any, at: str) -> Label | None:
    """A label; None where there is none.

    Raises:
        SourceError: it is neither a number from 0 nor a word.
    """
    if value is None or value == "":
        return None
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_LABEL
    if whole or isinstance(value, str):
        return cast("Label", value)
    raise SourceError(f"{at} is {value!r:.60}; a label is a whole number from 0, or a word")


def _lines(data: bytes, where: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(_text(data, where).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise DamagedSourceError(f"{where}, line {number} is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise DamagedSourceError(f"{where}, line {number} is no JSON object: {line[:60]!r}")
        rows.append(cast("dict[str, Any]", row))
    return rows


def _separated(data: bytes, where: str) -> list[dict[str, Any]]:
    reader = csv.reader(io.StringIO(_text(data, where), newline=""), strict=True)
    try:
        lines = [line for line in reader if line]
    except csv.Error as error:
        raise DamagedSourceError(f"{where}, line {reader.line_num} is no CSV: {error}") from error
    head, *others = lines or [[]]
    if len(set(head)) < len(head):
        raise DamagedSourceError(f"{where} names a column twice: {listed(head)}")
    for number, line in enumerate(others, 1):
        if len(line) != len(head):
            raise DamagedSourceError(
                f"{where}, row {number} has {len(line)} values and the head has {len(head)}; quote a caption that "
                "holds a comma"
            )
    return [dict(_typed(zip(head, line, strict=True))) for line in others]


def _typed(values: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """A CSV file has texts only: a label that is written as a number is one, and an empty value is none."""
    for column, value in values:
        yield column, label_in_text(value) if column == LABEL else value or None


def label_in_text(text: str) -> Any:
    """What a label is that was written down: a number, a word, or `1.0` and the like, which is neither."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) <= len(str(_LARGEST_LABEL)):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text or None


def _columns(data: bytes, where: str) -> list[dict[str, Any]]:
    from dew_media.files.arrow import pyarrow

    arrow = pyarrow()
    try:
        return arrow.parquet.read_table(arrow.BufferReader(data)).to_pylist()
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())  # some are several lines
        raise DamagedSourceError(f"{where} is not a parquet file that can be read: {why}") from error


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DamagedSourceError(
            f"{where} is no UTF-8: byte {error.object[error.start]:#04x} at {error.start}; save it as UTF-8"
        ) from error


_PARSERS: Final = {"jsonl": _lines, "csv": _separated, "parquet": _columns}
