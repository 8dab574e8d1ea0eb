"""Merging: the receipts of all tasks become a manifest. Nothing is copied, and no shard is read."""

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import attrs

from dew.data.errors import DamagedSourceError, DewWarning, OptionsError, SourceError, SourceNotFoundError
from dew.data.storage import Storage
from dew.tokens.manifest import MANIFEST, Framing, Manifest, Shard, dtype_for, make_manifest, manifest_json
from dew.tokens.prepare.plan import Plan, task_receipt
from dew.tokens.prepare.receipts import Receipt, finished, parse_receipt
from dew.tokens.prepare.task import OnBad

LISTED: Final = 1000
"""Rows left out that a manifest lists; the others are counted."""

_THREADS: Final = 16
_UNKNOWN: Final = 0.01
_TEMPORARY: Final = re.compile(r"\.dew-tmp-.*")


def merge_tasks(out: Storage, plan: Plan, *, on_bad: OnBad = "skip") -> dict[str, Manifest]:
    """Write the manifests of all splits of a plan, that of training last; split -> manifest.

    Args:
        out: where the plan is.
        plan: what was planned.
        on_bad: `"error"` refuses a corpus from which rows were left out.

    Raises:
        OptionsError: rows were left out, and this run may leave none out.
        SourceError: tasks are missing, or no document is left.
        DamagedSourceError: a receipt belongs to another plan, or a shard's file is missing or has another size.
    """
    done = finished(out)
    missing = [number for number in range(len(plan.tasks)) if number not in done]
    if missing:
        raise SourceError(
            f"{len(missing)} of {len(plan.tasks)} tasks of {out.location()} are not done, the first is task "
            f"{missing[0]}; run dew tokenize with the same inputs and options again, then merge"
        )
    receipts = _read_receipts(out, plan)
    if on_bad == "error":
        refuse_left_out(out, sum(receipt.left_out for receipt in receipts))
    manifests = {split: manifest for split in plan.splits if (manifest := _manifest(plan, receipts, split))}
    if "train" not in manifests:
        raise SourceError(
            f"no tokens for {out.location()}: of {sum(sum(receipt.rows) for receipt in receipts)} rows, "
            f"{sum(receipt.empty for receipt in receipts)} are empty, "
            f"{sum(receipt.left_out for receipt in receipts)} were left out, and none is in training"
        )
    _warn(plan, receipts, manifests)
    for split in sorted(manifests):
        out_of_split = plan.corpus(out, split)
        if split != "train":
            out_of_split.write(MANIFEST, manifest_json(manifests[split]))
    _clear(out, plan)
    plan.corpus(out, "train").write(MANIFEST, manifest_json(manifests["train"]))
    return manifests


def refuse_left_out(out: Storage, rows: int) -> None:
    """A run that may leave no row out does not go on with what a run that may has left.

    Raises:
        OptionsError: `rows` is not 0.
    """
    if rows:
        raise OptionsError(
            f"{out.location()} was begun with on_bad='skip', and {rows} rows were left out; ask for on_bad='skip' "
            "(--on-bad skip) again, or give another directory"
        )


def _read_receipts(out: Storage, plan: Plan) -> list[Receipt]:
    """All receipts, once the files that they state are seen to be there."""
    corpora = {split: _Files(plan.corpus(out, split)) for split in plan.splits}

    def read(number: int) -> Receipt:
        name = task_receipt(number)
        receipt = parse_receipt(out.read(name), out.location(name))
        if (receipt.plan, receipt.task) != (plan.id, number):
            raise DamagedSourceError(
                f"{out.location(name)} is of task {receipt.task} of the plan {receipt.plan}, this is the plan "
                f"{plan.id}; remove it and run again"
            )
        for split, shard in receipt.shards.items():
            corpora[split].check(shard, out.location(name))
        return receipt

    numbers = range(len(plan.tasks))
    if out.local:
        return [read(number) for number in numbers]  # threads would only wait for each other
    with ThreadPoolExecutor(_THREADS, "dew-merge") as pool:
        return list(pool.map(read, numbers))


class _Files:
    """The files of a corpus: those of a directory are listed once, of others each is asked for."""

    def __init__(self, corpus: Storage) -> None:
        self._corpus = corpus
        self._sizes: dict[str, int] | None = None
        directory = corpus.path()
        if directory is not None:
            entries = os.scandir(directory) if directory.is_dir() else ()
            self._sizes = {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}

    def check(self, shard: Shard, receipt: str) -> None:
        """Compare sizes with what the receipt of that name states."""
        for kind, record in shard.files.items():
            found = self._size(shard.file(kind))
            if found != record.bytes:
                state = "is missing" if found is None else f"has {found} bytes"
                raise DamagedSourceError(
                    f"{self._corpus.location(shard.file(kind))} {state}, its receipt states {record.bytes} bytes; "
                    f"remove {receipt} and run again to write it again"
                )

    def _size(self, name: str) -> int | None:
        if self._sizes is not None:
            return self._sizes.get(name)
        try:
            return self._corpus.size(name)
        except SourceNotFoundError:
            return None


def _manifest(plan: Plan, receipts: Sequence[Receipt], split: str) -> Manifest | None:
    shards = tuple(receipt.shards[split] for receipt in receipts if split in receipt.shards)
    if not shards:
        return None
    asked = plan.asked
    of_split = [receipt for receipt in receipts if plan.tasks[receipt.task].split == split]
    counted = sum(shard.empty_documents for shard in shards)
    return make_manifest(
        dtype=dtype_for(asked.tokenizer.vocab_size),
        framing=Framing(bos=asked.choices.bos, eos=asked.choices.eos),
        tokenizer=asked.tokenizer,
        shards=shards,
        empty_elsewhere=sum(receipt.empty for receipt in of_split) - counted,
        preparation=_preparation(plan, receipts, split),
    )


def _preparation(plan: Plan, receipts: Sequence[Receipt], split: str) -> dict[str, Any]:
    """What the manifest says of how it was made; JSON."""
    asked = plan.asked
    firsts = first_rows(plan, receipts)
    shared = asked.choices.val_fraction is not None  # both splits come from the same inputs
    of_split = [receipt for receipt in receipts if shared or plan.tasks[receipt.task].split == split]
    files = [file for file in asked.inputs if shared or file.split == split]
    listed = [
        {
            "input": asked.inputs[piece.input].name,
            "row": firsts[receipt.task] * (row.piece == 0) + row.row,
            "why": row.why,
        }
        for receipt in of_split
        for row in receipt.listed
        for piece in [plan.tasks[receipt.task].pieces[row.piece]]
    ]
    return {
        "plan": plan.id,
        "split": split,
        "choices": attrs.asdict(asked.choices),
        "engine": attrs.asdict(asked.engine),
        "inputs": {"files": len(files), "bytes": sum(file.size for file in files)},
        "text_bytes": sum(receipt.text_bytes for receipt in of_split),
        "unknown_tokens": sum(receipt.unknown for receipt in of_split),
        "left_out": {"rows": sum(receipt.left_out for receipt in of_split), "listed": listed[:LISTED]},
        "first_rows": [firsts[receipt.task] for receipt in receipts if split in receipt.shards],
    }


def first_rows(plan: Plan, receipts: Sequence[Receipt]) -> list[int]:
    """For each task, which row of its input the rows of its first piece are counted from.

    Only a plain file of lines is read from the middle, and only the first piece of a task can begin there.
    """
    before: dict[int, int] = {}
    firsts: list[int] = []
    for task, receipt in zip(plan.tasks, receipts, strict=True):
        lines = plan.asked.inputs[task.pieces[0].input].kind == "lines"
        firsts.append(before.get(task.pieces[0].input, 0) if lines else 0)
        for piece, rows in zip(task.pieces, receipt.rows, strict=True):
            before[piece.input] = before.get(piece.input, 0) + rows
    return firsts


def _warn(plan: Plan, receipts: Sequence[Receipt], manifests: Mapping[str, Manifest]) -> None:
    tokens, unknown = sum(receipt.tokens for receipt in receipts), sum(receipt.unknown for receipt in receipts)
    if unknown > _UNKNOWN * tokens:
        warnings.warn(
            f"{unknown / tokens:.1%} of the tokens ({unknown} of {tokens}) stand for text that the tokenizer does not "
            "know; is it the right one for this text?",
            DewWarning,
            stacklevel=3,
        )
    if len(manifests) < len(plan.splits):
        documents = manifests["train"].documents
        warnings.warn(
            f"no document is in validation, all {documents} are in training; raise val_fraction (--val-fraction), or "
            "give validation files of their own",
            DewWarning,
            stacklevel=3,
        )


def _clear(out: Storage, plan: Plan) -> None:
    """Remove what killed runs left unfinished. A run that still works on a task finds that it is done."""
    for split in plan.splits:
        for directory in {out.path(), out.path("tasks"), plan.corpus(out, split).path()}:
            for path in directory.iterdir() if directory is not None and directory.is_dir() else ():
                if _TEMPORARY.fullmatch(path.name):
                    path.unlink(missing_ok=True)
