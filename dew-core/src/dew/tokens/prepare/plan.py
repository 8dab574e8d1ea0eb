"""The plan: which pieces of which inputs become which shard. It depends on inputs, tokenizer and options alone.

It is computed once, stored as `plan.json` in the corpus's directory by whoever comes first, and never replaced: every
later run with the same inputs, tokenizer and options works on it, and every other run is refused.
"""

import hashlib
import itertools
import json
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast

import attrs

from dew.data import checks
from dew.data.errors import DamagedSourceError, DewWarning, OptionsError, SourceError
from dew.data.storage import Storage
from dew.tokens.entry import Entry, parse_object
from dew.tokens.manifest import MANIFEST, TokenizerInfo
from dew.tokens.prepare.engines import EngineName
from dew.tokens.prepare.inputs import Input, Inputs
from dew.tokens.prepare.pieces import Piece
from dew.tokens.prepare.tables import row_groups

PLAN: Final = "plan.json"
TASKS: Final = "tasks"
TASK_BYTES: Final = 256 << 20

_FORMAT: Final = "dew-tokenize-plan"
_VERSION: Final = 1  # raised when the same plan would make other shards
_EXPANSION: Final = 4  # text over compressed text, for the sizes of tasks
_LARGE: Final = 1 << 30
_THREADS: Final = 16


@attrs.frozen(kw_only=True)
class Choices:
    """Options that decide what is in a corpus.

    Args:
        field: of a JSON object, or the column of a table, that holds the text.
        bos, eos: whether the tokenizer's begin (end) id is put before (after) each document.
        parse_special: whether text that spells a special token becomes that token.
        val_fraction: share of the documents that make the split `val`, by a hash of their text.
        task_bytes: bytes of text that make a shard, about.
    """

    field: str = "text"
    bos: bool = False
    eos: bool = False
    parse_special: bool = False
    val_fraction: float | None = None
    task_bytes: int = attrs.field(default=TASK_BYTES, validator=checks.count())

    def __attrs_post_init__(self) -> None:
        if self.val_fraction is not None and not 0 < self.val_fraction < 1:
            raise OptionsError(f"val_fraction must be above 0 and below 1, got {self.val_fraction}")


@attrs.frozen(kw_only=True)
class Asked:
    """What a run asks for: all that a plan follows from."""

    choices: Choices
    tokenizer: TokenizerInfo
    engine: EngineName
    inputs: tuple[Input, ...]


@attrs.frozen
class Task:
    """What becomes one shard, in each split that has documents of it.

    Args:
        pieces: in order.
        weight: bytes of text, about.
        split: of the inputs.
    """

    pieces: tuple[Piece, ...]
    weight: int
    split: str


@attrs.frozen
class Plan:
    """A stored plan; `id` is the sha256 of what it says."""

    id: str
    asked: Asked
    tasks: tuple[Task, ...]

    @property
    def splits(self) -> tuple[str, ...]:
        """`("train",)`, or with `"val"`."""
        both = self.asked.choices.val_fraction is not None or any(task.split == "val" for task in self.tasks)
        return ("train", "val") if both else ("train",)

    def corpus(self, out: Storage, split: str) -> Storage:
        """Where the corpus of a split is: a lone one in the directory itself."""
        return out.child(split) if len(self.splits) > 1 else out


def task_receipt(number: int) -> str:
    """Name of the file that says that task `number` is done."""
    return f"{TASKS}/task-{number:05d}.json"


def settle(out: Storage, asked: Asked, inputs: Inputs) -> Plan:
    """The plan stored in `out`, made and stored now if there is none.

    Raises:
        OptionsError: what is there belongs to other inputs, another tokenizer or other options; says which.
        SourceError: there is nothing to make a corpus of.
    """
    if not out.exists(PLAN):
        _refuse_strangers(out)
        plan = make_plan(asked, inputs)
        if _store(out, plan):
            return plan
    plan = read_plan(out)
    _refuse_differences(plan, asked, out)
    return plan


def read_plan(out: Storage) -> Plan:
    """The plan stored in `out`.

    Raises:
        SourceNotFoundError: there is none.
        DamagedSourceError: it is not what was written, or of another version.
    """
    return _parse(out.read(PLAN), out.location(PLAN))


def make_plan(asked: Asked, inputs: Inputs) -> Plan:
    """The plan for `asked`; reads the footers of Parquet files and nothing else."""
    tasks: list[Task] = []
    units = _units(asked, inputs)
    for split in ("train", "val"):
        some = [unit for unit in units if asked.inputs[unit[0].input].split == split]
        tasks += _tasks(some, split, asked.choices.task_bytes)
    if not any(task.split == "train" for task in tasks):
        files = sum(file.split == "train" for file in asked.inputs)
        raise SourceError(f"nothing to make a corpus of: all inputs of training are empty, {files} files")
    plan = Plan("", asked, tuple(tasks))
    return attrs.evolve(plan, id=hashlib.sha256(_canonical(_contents(plan))).hexdigest())


def _tasks(units: list[tuple[Piece, int]], split: str, task_bytes: int) -> Iterator[Task]:
    pieces: list[Piece] = []
    weight = 0
    for piece, size in units:
        if pieces and weight + size > task_bytes:
            yield Task(tuple(pieces), weight, split)
            pieces, weight = [], 0
        pieces.append(piece)
        weight += size
    if pieces:
        yield Task(tuple(pieces), weight, split)


def _units(asked: Asked, inputs: Inputs) -> list[tuple[Piece, int]]:
    """The smallest pieces, each with its bytes of text."""
    tables = [number for number, file in enumerate(asked.inputs) if file.kind == "parquet"]
    groups: dict[int, list[tuple[int, int]]] = {}
    if tables:

        def look(number: int) -> list[tuple[int, int]]:
            return row_groups(inputs.root, asked.inputs[number], asked.choices.field)

        with ThreadPoolExecutor(_THREADS, "dew-plan") as pool:
            groups = dict(zip(tables, pool.map(look, tables), strict=True))
    units: list[tuple[Piece, int]] = []
    for number, file in enumerate(asked.inputs):
        if file.kind == "parquet":
            units += [(Piece(number, at, at + 1), size) for at, (rows, size) in enumerate(groups[number]) if rows]
        elif file.kind == "lines" and file.compression is None:
            units += _ranges(number, file.size, asked.choices.task_bytes)
        else:
            units.append((Piece(number), file.size * (_EXPANSION if file.compression else 1)))
            _warn_of_size(file, inputs.root)
    return _joined(units, asked.choices.task_bytes)


def _ranges(number: int, size: int, task_bytes: int) -> list[tuple[Piece, int]]:
    count = -(-size // task_bytes)
    bounds = [size * at // count for at in range(count)] + [size] if count else [0]
    return [(Piece(number, start, stop), stop - start) for start, stop in itertools.pairwise(bounds)]


def _joined(units: list[tuple[Piece, int]], task_bytes: int) -> list[tuple[Piece, int]]:
    """Row groups that follow each other in one file and fit into one task become one piece."""
    joined: list[tuple[Piece, int]] = []
    for piece, size in units:
        last, weight = joined[-1] if joined else (Piece(-1), 0)
        if last.input == piece.input and last.stop == piece.start and weight + size <= task_bytes:
            joined[-1] = (Piece(piece.input, last.start, piece.stop), weight + size)
        else:
            joined.append((piece, size))
    return joined


def _warn_of_size(file: Input, root: Storage) -> None:
    if file.compression and file.size > _LARGE:
        warnings.warn(
            f"{root.location(file.name)} is one task of {file.size / 1e9:.1f} GB, since a compressed file cannot be "
            "read from the middle; smaller files, or Parquet, spread over more workers and lose less to a kill",
            DewWarning,
            stacklevel=2,
        )


def _refuse_strangers(out: Storage) -> None:
    if not out.is_dir(""):
        return
    for name in (MANIFEST, TASKS, f"train/{MANIFEST}"):
        if out.exists(name):
            raise OptionsError(
                f"{out.location()} already holds {name}, but no {PLAN}: a corpus that was not made by dew tokenize, or "
                "what is left of one; give another directory, or remove it"
            )


def _store(out: Storage, plan: Plan) -> bool:
    """Store `plan` unless there is one; whether it was stored. Two runs that start at once agree on one."""
    data = (json.dumps({**_contents(plan), "id": plan.id}, indent=None, ensure_ascii=True) + "\n").encode()
    directory = out.path()
    if directory is None:
        out.write(PLAN, data)
        return True
    name = f".dew-tmp-plan-{plan.id[:16]}"
    out.write(name, data)
    try:
        os.link(directory / name, directory / PLAN)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        out.write(PLAN, data)
    finally:
        (directory / name).unlink(missing_ok=True)
    return True


def _refuse_differences(plan: Plan, asked: Asked, out: Storage) -> None:
    difference = next(_differences(plan.asked, asked), None)
    if difference:
        raise OptionsError(
            f"{out.location()} holds a corpus that was begun otherwise: {difference}; ask for the same again, give "
            "another directory, or remove this one"
        )


def _differences(old: Asked, new: Asked) -> Iterator[str]:
    sections = (("option", old.choices, new.choices), ("tokenizer's", old.tokenizer, new.tokenizer))
    for what, before, after in (*sections, ("engine's", old.engine, new.engine)):
        for field in attrs.fields(type(before)):
            values = getattr(before, field.name), getattr(after, field.name)
            if values[0] != values[1]:
                yield f"the {what} {field.name} was {values[0]!r} and now is {values[1]!r}"
    files = {file.name: file for file in old.inputs}
    for file in new.inputs:
        known = files.pop(file.name, None)
        if known is None:
            yield f"the input {file.name!r} was not part of it"
        elif known.split != file.split:
            yield f"the input {file.name!r} was one of {known.split} and now is one of {file.split}"
        elif known != file:
            sizes = f"it had {known.size} bytes, now it has {file.size}"
            yield f"the input {file.name!r} has changed: {sizes}{' other ones' if known.size == file.size else ''}"
    for name in files:
        yield f"the input {name!r} was part of it and is missing now"


def _contents(plan: Plan) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "choices": attrs.asdict(plan.asked.choices),
        "tokenizer": attrs.asdict(plan.asked.tokenizer),
        "engine": attrs.asdict(plan.asked.engine),
        "inputs": [attrs.astuple(file) for file in plan.asked.inputs],
        "tasks": [[task.split, task.weight, [attrs.astuple(piece) for piece in task.pieces]] for task in plan.tasks],
    }


def _canonical(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _parse(data: bytes, where: str) -> Plan:
    values = parse_object(data, where)
    entry = Entry(values, where)
    if (entry.text("format"), entry.integer("version")) != (_FORMAT, _VERSION):
        raise DamagedSourceError(
            f"{where} has format {entry.text('format')!r} and version {entry.integer('version')}, this dew-core works "
            f"on {_FORMAT!r} version {_VERSION}; use the dew-core that began it, or another directory"
        )
    found = hashlib.sha256(_canonical({key: value for key, value in values.items() if key != "id"})).hexdigest()
    if entry.text("id") != found:
        raise DamagedSourceError(
            f"{where} was altered since it was written: it states the id {entry.text('id')}, its contents have the id "
            f"{found}; remove the directory and begin again"
        )
    return Plan(found, _asked(values), tuple(_task(*task) for task in values["tasks"]))


def _asked(values: dict[str, Any]) -> Asked:
    return Asked(
        choices=Choices(**values["choices"]),
        tokenizer=TokenizerInfo(**values["tokenizer"]),
        engine=EngineName(**values["engine"]),
        inputs=tuple(Input(*file) for file in values["inputs"]),
    )


def _task(split: str, weight: int, pieces: list[Any]) -> Task:
    return Task(tuple(Piece(*cast("list[int]", piece)) for piece in pieces), weight, split)
