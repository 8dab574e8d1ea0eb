"""One task: the documents of its pieces become one shard, and its receipt says so, last of all.

A task may run any number of times, anywhere, also at the same time: what it writes depends on the plan and the inputs
alone, and every file appears whole under its name.
"""

import errno
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from dew.data.errors import SourceError, SourceNotFoundError, StorageError
from dew.data.storage import Storage
from dew.tokens.manifest import Shard, dtype_for, shard_name
from dew.tokens.part import ShardPart
from dew.tokens.prepare.documents import documents, place
from dew.tokens.prepare.engines import Encoded, WatchedEngine, make_engine
from dew.tokens.prepare.framing import framed
from dew.tokens.prepare.plan import Plan, Task, read_plan, task_receipt
from dew.tokens.prepare.receipts import LISTED, LeftOut, Receipt, finished, parse_receipt, receipt_text
from dew.tokens.prepare.splits import in_validation
from dew.tokens.prepare.tokenizers import DEFINITION, Definition

OnBad: TypeAlias = Literal["error", "skip"]
Progress: TypeAlias = Callable[[int, int, int], None]
"""Called with what was added: documents, bytes of text, tokens."""

_Place: TypeAlias = "tuple[int, int]"  # the number of a piece in its task, and a row of it

_BATCH_CHARACTERS: Final = 1 << 19  # the reference needs 25 bytes of memory for a byte of text
_BATCH_DOCUMENTS: Final = 1 << 13
_FULL: Final = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


@attrs.frozen
class Setting:
    """What a worker needs to begin: where things are. It pickles small; the plan is read where it is used.

    Args:
        out: where plan and corpus are.
        root: where the inputs are.
        plan: id of the plan.
        on_bad: what a row that is no document does.
    """

    out: Storage
    root: Storage
    plan: str
    on_bad: OnBad

    def job(self) -> "Job":
        """The plan, and the engine that it names.

        Raises:
            SourceError: what is stored in `out` is not what this setting was made for.
        """
        plan = read_plan(self.out)
        if plan.id != self.plan:
            raise SourceError(f"the plan in {self.out.location()} has been replaced while it was worked on; run again")
        info = plan.asked.tokenizer
        definition = Definition(info, None)
        if info.library == "tokenizers":
            definition = Definition(info, self.out.read(DEFINITION).decode())
            definition.check(self.out.location(DEFINITION))
        engine = make_engine(plan.asked.engine.name, definition, parse_special=plan.asked.choices.parse_special)
        return Job(self, plan, engine, definition.control_ids(), definition.unknown_id())


@attrs.frozen
class Job:
    """A plan ready to be worked on in this process."""

    setting: Setting
    plan: Plan
    engine: WatchedEngine
    control_ids: npt.NDArray[np.int64]
    unknown_id: int | None

    def run(self, number: int, progress: Progress | None = None) -> Receipt:
        """Do task `number`, or find that it is done.

        Raises:
            SourceError: a row is no document, names file and line; or the engine is wrong.
            StorageError: something could not be read or written; a full disk is named with what is needed.
        """
        out, name = self.setting.out, task_receipt(number)
        if out.exists(name):
            return parse_receipt(out.read(name), out.location(name))
        work = _Work(self, number, progress)
        try:
            receipt = work.done()
        except (StorageError, OSError) as error:
            if _is_full(error):
                raise self._no_room(work, number, error) from error
            if isinstance(error, SourceNotFoundError | FileNotFoundError) and out.exists(name):
                # Another run did the same task in the meantime, and cleared up after it.
                return parse_receipt(out.read(name), out.location(name))
            raise
        finally:
            work.discard()
        return receipt

    def _no_room(self, work: "_Work", number: int, error: Exception) -> StorageError:
        out, tasks = self.setting.out, self.plan.tasks
        a_byte = work.bytes_written / max(work.text_bytes, 1) or 0.5
        left = sum(task.weight for at, task in enumerate(tasks) if at not in finished(out))
        directory = out.path()
        free = "" if directory is None else f", and {_size(shutil.disk_usage(directory).free)} are free there"
        return StorageError(
            f"there is no room for {shard_name(number)} in {out.location()}, by the disk, a quota or a limit: {error}; "
            f"it needs about {_size(a_byte * tasks[number].weight)}, all that is left to write about "
            f"{_size(a_byte * left)}{free}; make room and run the same again: what is finished is kept"
        )


class _Work:
    """A task while it is done."""

    def __init__(self, job: Job, number: int, progress: Progress | None) -> None:
        self._job = job
        self._number = number
        self._progress = progress
        self._task: Task = job.plan.tasks[number]
        self._choices = job.plan.asked.choices
        info = job.plan.asked.tokenizer
        self._vocab_size = info.vocab_size
        self._dtype = dtype_for(info.vocab_size)
        self._bos = info.bos_id if self._choices.bos else None
        self._eos = info.eos_id if self._choices.eos else None
        self._inputs = np.array([piece.input for piece in self._task.pieces], np.uint64)
        self._is_control: npt.NDArray[np.bool_] = np.zeros(info.vocab_size, np.bool_)
        if not self._choices.parse_special:
            self._is_control[job.control_ids] = True
        self._parts: dict[str, ShardPart] = {}
        self._listed: list[LeftOut] = []
        self._left_out = 0
        self._seen = 0
        self._empty = 0
        self._unknown = 0
        self._tokens = 0
        self.text_bytes = 0

    @property
    def bytes_written(self) -> int:
        """Bytes that the shard has so far, about."""
        return self._tokens * np.dtype(self._dtype).itemsize

    def done(self) -> Receipt:
        """All of it, receipt included."""
        rows = self._read()
        main = self._parts.get(self._task.split)
        if main is not None:
            main.empty = self._empty
        shards: dict[str, Shard] = {split: part.commit() for split, part in self._parts.items()}
        receipt = Receipt(
            plan=self._job.plan.id,
            task=self._number,
            shards=shards,
            documents=sum(shard.documents for shard in shards.values()),
            empty=self._empty,
            text_bytes=self.text_bytes,
            tokens=sum(shard.tokens for shard in shards.values()),
            unknown=self._unknown,
            rows=tuple(rows),
            left_out=self._left_out,
            listed=tuple(self._listed),
        )
        self._job.setting.out.write(task_receipt(self._number), receipt_text(receipt))
        return receipt

    def discard(self) -> None:
        """Remove what is unfinished."""
        for part in self._parts.values():
            part.discard()

    def _read(self) -> list[int]:
        """Encodes everything; returns how many rows each piece has."""
        rows: list[int] = []
        batch = _Batch()
        for number, piece in enumerate(self._task.pieces):
            found = self._job.plan.asked.inputs[piece.input]
            rows.append(0)
            for row, text in documents(self._job.setting.root, found, piece, self._choices.field):
                rows[-1] = row + 1
                if isinstance(text, str):
                    batch.add((number, row), text)
                    if batch.full:
                        self._encode(batch)
                        batch = _Batch()
                elif text is not None:
                    self._leave_out((number, row), text.why)
        self._encode(batch)
        return rows

    def _encode(self, batch: "_Batch") -> None:
        if not batch.texts:
            return
        encoded = self._encoded(batch)
        while wrong := self._wrong(encoded):  # at most twice, once for each reason
            for at, why in wrong:
                self._leave_out(batch.places[at], why)
            batch.remove([at for at, _ in wrong])
            encoded = self._encoded(batch)
        self._job.engine.check(batch.texts, self._seen, encoded, lambda at: self._where(batch.places[at]))
        self._seen += len(batch.texts)
        self._append(batch, *encoded)

    def _encoded(self, batch: "_Batch") -> Encoded:
        """Ids of a batch; texts that the engine refuses leave it."""
        if not batch.texts:
            return np.empty(0, np.uint32), np.zeros(1, np.int64)
        try:
            return self._job.engine.encode(batch.texts)
        except Exception:
            refused = [at for at, text in enumerate(batch.texts) if self._refused(batch.places[at], text)]
            if not refused:
                raise
        batch.remove(refused)
        return self._encoded(batch)

    def _refused(self, at: "_Place", text: str) -> bool:
        try:
            self._job.engine.encode([text])
        except Exception as error:
            self._leave_out(at, f"the tokenizer refuses it: {error}")
            return True
        return False

    def _wrong(self, encoded: Encoded) -> list[tuple[int, str]]:
        """The documents whose ids cannot be right, and why."""
        ids, offsets = encoded
        if not len(ids):
            return []
        past = int(ids.max()) >= self._vocab_size
        wrong = ids >= self._vocab_size if past else self._is_control[ids]
        places = np.flatnonzero(wrong)
        what = "is past the vocabulary" if past else "is that of a special token"
        firsts = dict(
            zip(*_first_in_each(np.searchsorted(offsets, places, side="right") - 1, ids[places]), strict=True)
        )
        return [
            (
                at,
                f"the tokenizer makes the id {token} of it, which {what}; text that spells a special token is text "
                "unless parse_special=True (--parse-special) is asked for",
            )
            for at, token in firsts.items()
        ]

    def _append(self, batch: "_Batch", ids: npt.NDArray[np.uint32], offsets: npt.NDArray[np.int64]) -> None:
        lengths = np.diff(offsets)
        texts, places = batch.texts, np.array(batch.places, np.uint64).reshape(-1, 2)
        kept = lengths > 0
        if not kept.all():
            self._empty += int(np.count_nonzero(~kept))
            texts = [text for text, keep in zip(texts, kept.tolist(), strict=True) if keep]
            lengths, places = lengths[kept], places[kept]
        if self._job.unknown_id is not None:
            self._unknown += int(np.count_nonzero(ids == self._job.unknown_id))
        size = sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
        self.text_bytes += size
        origins = np.stack([self._inputs[places[:, 0].astype(np.int64)], places[:, 1]], axis=1)
        before = self._tokens
        for split, chosen in self._sides(texts):
            self._add(split, *_selected(ids, lengths, origins, chosen))
        if self._progress is not None:
            self._progress(len(lengths), size, self._tokens - before)

    def _sides(self, texts: list[str]) -> Iterator[tuple[str, npt.NDArray[np.bool_] | None]]:
        """Each split, and which texts belong to it; None for all."""
        fraction = self._choices.val_fraction
        if fraction is None:
            yield self._task.split, None
            return
        validation = in_validation(texts, fraction)
        yield "train", ~validation
        yield "val", validation

    def _add(
        self,
        split: str,
        ids: npt.NDArray[np.uint32],
        lengths: npt.NDArray[np.int64],
        origins: npt.NDArray[np.uint64],
    ) -> None:
        if not len(lengths):
            return
        if split not in self._parts:
            out = self._job.plan.corpus(self._job.setting.out, split)
            self._parts[split] = ShardPart(out, shard_name(self._number), self._dtype, origin=True)
        ids_framed, lengths_framed = framed(ids, lengths, self._bos, self._eos)
        self._parts[split].add_documents(ids_framed, lengths_framed, origins)
        self._tokens += len(ids_framed)

    def _leave_out(self, at: "_Place", why: str) -> None:
        if self._job.setting.on_bad == "error":
            raise SourceError(
                f"{self._where(at)}: {why}; correct it, or leave such rows out with on_bad='skip' (--on-bad skip)"
            )
        self._left_out += 1
        if len(self._listed) < LISTED:
            self._listed.append(LeftOut(piece=at[0], row=at[1], why=why))

    def _where(self, at: "_Place") -> str:
        piece = self._task.pieces[at[0]]
        return place(self._job.setting.root, self._job.plan.asked.inputs[piece.input], piece, at[1])


class _Batch:
    """Documents that are encoded together."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.places: list[_Place] = []
        self._characters = 0

    def add(self, at: "_Place", text: str) -> None:
        self.texts.append(text)
        self.places.append(at)
        self._characters += len(text)

    def remove(self, several: Sequence[int]) -> None:
        for at in sorted(several, reverse=True):
            del self.texts[at], self.places[at]

    @property
    def full(self) -> bool:
        return self._characters >= _BATCH_CHARACTERS or len(self.texts) >= _BATCH_DOCUMENTS


def _first_in_each(groups: npt.NDArray[np.int64], values: npt.NDArray[np.uint32]) -> tuple[list[int], list[int]]:
    """Each group of a sorted array, and the first of its values."""
    numbers, firsts = np.unique(groups, return_index=True)
    return numbers.tolist(), values[firsts].tolist()


def _selected(
    ids: npt.NDArray[Any],
    lengths: npt.NDArray[np.int64],
    origins: npt.NDArray[np.uint64],
    chosen: npt.NDArray[np.bool_] | None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    if chosen is None or chosen.all():
        return ids, lengths, origins
    return ids[np.repeat(chosen, lengths)], lengths[chosen], origins[chosen]


def _is_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__
    return False


def _size(number: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"
