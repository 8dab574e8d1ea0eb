"""`prepare`: plan, run and merge in one call, or one of them at a time on the machines of a cluster."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs

from dew.data import checks
from dew.data.errors import OptionsError, OptionsTypeError, SourceError
from dew.data.loading import cores_here
from dew.data.storage import Storage
from dew.tokens.corpus import read_manifest
from dew.tokens.manifest import MANIFEST, Manifest
from dew.tokens.prepare.engines import Encoded, WatchedEngine, engine_name, make_engine
from dew.tokens.prepare.inputs import Inputs, Paths, find_inputs
from dew.tokens.prepare.merge import merge_tasks, refuse_left_out
from dew.tokens.prepare.plan import TASK_BYTES, Asked, Choices, Plan, read_plan, settle
from dew.tokens.prepare.receipts import finished
from dew.tokens.prepare.task import OnBad, Progress, Setting
from dew.tokens.prepare.tokenizers import (
    DEFINITION,
    Definition,
    TokenizerSource,
    load_definition,
    special_tokens_of,
)
from dew.tokens.prepare.workers import Advance, run_in_workers
from dew.tokens.writer import SHARD_TOKENS, TokenWriter

Runner: TypeAlias = Literal["local", "ray"]
OnProgress: TypeAlias = "Callable[[PrepareProgress], None]"

_TEXTS_AT_ONCE: Final = 1 << 20


@attrs.frozen(kw_only=True)
class PrepareProgress:
    """How far a run is.

    Args:
        tasks, tasks_done: of this run.
        weight, weight_done: bytes of text, about, of these tasks; a task counts by and by.
        documents, text_bytes, tokens: done by this run.
    """

    tasks: int
    tasks_done: int
    weight: int
    weight_done: int
    documents: int
    text_bytes: int
    tokens: int


@attrs.frozen(kw_only=True)
class Prepared:
    """What a run found and did.

    Args:
        path: the directory or URL.
        manifests: split -> manifest; empty while tasks are missing.
        tasks: in the plan.
        ran: by this run.
        missing: still to be done, by other runs.
        documents, text_bytes, tokens: done by this run.
        seconds: that its tasks took.
        left_out_files: files of no known kind in the directories and patterns given.
    """

    path: str
    manifests: Mapping[str, Manifest]
    tasks: int
    ran: int
    missing: int
    documents: int
    text_bytes: int
    tokens: int
    seconds: float
    left_out_files: tuple[str, ...] = ()


def prepare(
    inputs: Paths,
    out: str | os.PathLike[str],
    *,
    tokenizer: TokenizerSource,
    field: str = "text",
    bos: bool = False,
    eos: bool = False,
    bos_token: str | None = None,
    eos_token: str | None = None,
    pad_token: str | None = None,
    parse_special: bool = False,
    val: "Paths | None" = None,
    val_fraction: float | None = None,
    on_bad: OnBad = "error",
    engine: str = "hf",
    runner: Runner = "local",
    workers: int | None = None,
    task: tuple[int, int] | None = None,
    task_bytes: int = TASK_BYTES,
    options: Mapping[str, Any] | None = None,
    out_options: Mapping[str, Any] | None = None,
    progress: "OnProgress | None" = None,
) -> Prepared:
    """Make a token corpus of text files, or go on where an earlier run of the same inputs and options stopped.

    The same inputs, tokenizer and options make the same bytes, whoever does the tasks. With validation, `out` holds the
    corpora `train` and `val`; without, it is one corpus.

    Args:
        inputs: files, directories, patterns or URLs: `.txt` (one document a file), `.jsonl`, `.ndjson`, `.parquet`,
            `.arrow`, directories that `datasets` saved; text and lines also with `.gz`, `.zst` or `.xz`.
        out: a directory or URL of its own.
        tokenizer: path of a `tokenizer.json` or its directory, a model on the Hugging Face hub, a
            `tokenizers.Tokenizer`, a `ByteTokenizer`, or `"bytes"`.
        field: of a JSON object, or the column of a table, that holds the text.
        bos, eos: put the begin (end) id before (after) each document.
        bos_token, eos_token, pad_token: their texts, where the tokenizer's directory does not say.
        parse_special: let text that spells a special token become that token.
        val: inputs of the split `val`.
        val_fraction: or the share of the documents that make it, chosen by a hash of each text.
        on_bad: `"skip"` leaves rows out that are no documents, and lists them in the manifest.
        engine: `"hf"`, `"gigatoken"`, `"fastokens"`, or your own as `"package.module:factory"`.
        runner: `"local"` for processes of this machine, `"ray"` for a cluster.
        workers: processes; by default one for each core. 0 works in this process.
        task: `(i, n)`: do only tasks i, i + n, ... and do not merge; for one of n machines.
        task_bytes: bytes of text that make a shard, about.
        options, out_options: for the file systems of URLs, as fsspec takes them.
        progress: called now and then, in the calling thread.

    Raises:
        OptionsError: a wrong argument, or `out` holds something else.
        SourceError: an input is damaged, or a row is no document; names file and line.
        StorageError: something could not be read or written.
        WorkerError: a worker process ended.
    """
    _check_switches(on_bad, runner, workers, task)
    storage = Storage(out, options=out_options or {})
    choices = Choices(
        field=field,
        bos=bos,
        eos=eos,
        parse_special=parse_special,
        val_fraction=val_fraction,
        task_bytes=task_bytes,
    )
    if val is not None and val_fraction is not None:
        raise OptionsError(f"give validation as files (val) or as a fraction, not both: got {val_fraction} and files")
    definition = load_definition(tokenizer, bos_token=bos_token, eos_token=eos_token, pad_token=pad_token)
    _check_framing(definition, bos=bos, eos=eos)
    found = find_inputs(inputs, val, options=options)
    asked = Asked(
        choices=choices, tokenizer=definition.info, engine=engine_name(engine, definition), inputs=found.files
    )
    plan = settle(storage, asked, found)
    return _run(_Run(storage, plan, found, definition, on_bad, runner, workers, task, progress))


def merge(out: str | os.PathLike[str], *, out_options: Mapping[str, Any] | None = None) -> Prepared:
    """Write the manifest of a corpus whose tasks are all done; a finished corpus is left alone.

    Raises:
        SourceError: tasks are missing.
        SourceNotFoundError: there is no plan.
        DamagedSourceError: a receipt or shard is not what was written.
    """
    storage = Storage(out, options=out_options or {})
    plan = read_plan(storage)
    manifests = _finished(storage, plan) or merge_tasks(storage, plan)
    return _prepared(storage, plan, manifests)


def prepare_texts(
    texts: Iterable[str],
    out: str | os.PathLike[str],
    *,
    tokenizer: TokenizerSource,
    bos: bool = False,
    eos: bool = False,
    bos_token: str | None = None,
    eos_token: str | None = None,
    pad_token: str | None = None,
    parse_special: bool = False,
    engine: str = "hf",
    shard_tokens: int = SHARD_TOKENS,
    overwrite: bool = False,
    out_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Make a token corpus of strings, in this process and from the beginning; the arguments are those of `prepare`.

    Args:
        texts: the documents.
        shard_tokens: tokens at which a shard is closed.
        overwrite: replace a finished corpus; without it one is refused. Only on local disks.

    Raises:
        OptionsError: a wrong argument, or a finished corpus is there.
        SourceError: a document is no string, or the tokenizer refuses it; names its number.
    """
    definition = load_definition(tokenizer, bos_token=bos_token, eos_token=eos_token, pad_token=pad_token)
    _check_framing(definition, bos=bos, eos=eos)
    made = make_engine(engine, definition, parse_special=parse_special)
    with TokenWriter(
        out,
        tokenizer=definition.info,
        bos=bos,
        eos=eos,
        shard_tokens=shard_tokens,
        overwrite=overwrite,
        options=out_options,
    ) as writer:
        for first, batch in _batches(texts):
            ids, offsets = _encoded(made, batch, first)
            for at in range(len(batch)):
                writer.add(ids[offsets[at] : offsets[at + 1]])
    return writer.close()


def _batches(texts: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    batch: list[str] = []
    first = size = 0
    for number, text in enumerate(texts):
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SourceError(f"document {number} is {text!r:.80} ({type(text).__name__}) and not a string")
        batch.append(text)
        size += len(text)
        if size >= _TEXTS_AT_ONCE:
            yield first, batch
            first, size, batch = number + 1, 0, []
    if batch:
        yield first, batch


def _encoded(engine: WatchedEngine, batch: list[str], first: int) -> Encoded:
    try:
        encoded = engine.encode(batch)
    except Exception:
        for number, text in enumerate(batch, first):
            try:
                engine.encode([text])
            except Exception as error:
                raise SourceError(f"the tokenizer refuses document {number}: {error}") from error
        raise
    engine.check(batch, first, encoded, lambda at: f"document {first + at}")
    return encoded


@attrs.frozen
class _Run:
    """A run, once its plan is settled."""

    out: Storage
    plan: Plan
    inputs: Inputs
    definition: Definition
    on_bad: OnBad
    runner: Runner
    workers: int | None
    task: tuple[int, int] | None
    progress: "OnProgress | None"

    def to_do(self) -> list[int]:
        """Tasks of this run that have no receipt."""
        index, count = self.task or (0, 1)
        done = finished(self.out)
        return [number for number in range(index, len(self.plan.tasks), count) if number not in done]


def _run(run: _Run) -> Prepared:
    manifests = _finished(run.out, run.plan)
    if manifests is not None:
        if run.on_bad == "error":
            refuse_left_out(run.out, sum(_left_out(manifest) for manifest in manifests.values()))
        return _prepared(run.out, run.plan, manifests, run.inputs)
    if run.definition.text is not None and not run.out.exists(DEFINITION):
        run.out.write(DEFINITION, run.definition.text.encode())
    tasks = run.to_do()
    counted = _Counted(run.plan, tasks, run.progress)
    started = time.perf_counter()
    setting = Setting(run.out, run.inputs.root, run.plan.id, run.on_bad)
    if tasks:
        _do(run, setting, tasks, counted)
    seconds = time.perf_counter() - started
    manifests = {} if run.task is not None else merge_tasks(run.out, run.plan, on_bad=run.on_bad)
    prepared = _prepared(run.out, run.plan, manifests, run.inputs)
    return attrs.evolve(prepared, ran=len(tasks), seconds=seconds, **counted.totals())


def _do(run: _Run, setting: Setting, tasks: list[int], counted: "_Counted") -> None:
    if run.runner == "ray":
        from dew.tokens.prepare.cluster import run_on_ray

        run_on_ray(setting, tasks, counted.advanced)
    elif run.workers == 0:
        job = setting.job()
        for number in tasks:
            receipt = job.run(number, counted.of_task(number))
            counted.advanced(number, Advance(receipt=receipt))
    else:
        run_in_workers(setting, tasks, run.workers or cores_here(), counted.advanced)


class _Counted:
    """Adds up what workers say."""

    def __init__(self, plan: Plan, tasks: list[int], progress: "OnProgress | None") -> None:
        self._weights = {number: plan.tasks[number].weight for number in tasks}
        self._begun: dict[int, int] = {}
        self._done = 0
        self._weight_done = 0
        self._documents = 0
        self._text_bytes = 0
        self._tokens = 0
        self._progress = progress

    def advanced(self, task: int, by: Advance) -> None:
        """Task `task` has got on."""
        self._documents += by.documents
        self._text_bytes += by.text_bytes
        self._tokens += by.tokens
        self._begun[task] = min(self._begun.get(task, 0) + by.text_bytes, self._weights[task])
        if by.receipt is not None:
            self._done += 1
            self._weight_done += self._weights[task]
            del self._begun[task]
        if self._progress is not None:
            self._progress(
                PrepareProgress(
                    tasks=len(self._weights),
                    tasks_done=self._done,
                    weight=sum(self._weights.values()),
                    weight_done=self._weight_done + sum(self._begun.values()),
                    **self.totals(),
                )
            )

    def of_task(self, task: int) -> Progress:
        """Counts what is done of `task` in this process."""
        return lambda documents, text_bytes, tokens: self.advanced(task, Advance(documents, text_bytes, tokens))

    def totals(self) -> dict[str, int]:
        """Documents, bytes of text and tokens."""
        return {"documents": self._documents, "text_bytes": self._text_bytes, "tokens": self._tokens}


def _finished(out: Storage, plan: Plan) -> dict[str, Manifest] | None:
    """The manifests of a finished corpus; that of training is written last."""
    if not plan.corpus(out, "train").exists(MANIFEST):
        return None
    corpora = {split: plan.corpus(out, split) for split in plan.splits}
    return {split: read_manifest(corpus) for split, corpus in corpora.items() if corpus.exists(MANIFEST)}


def _prepared(out: Storage, plan: Plan, manifests: Mapping[str, Manifest], inputs: Inputs | None = None) -> Prepared:
    return Prepared(
        path=out.location(),
        manifests=manifests,
        tasks=len(plan.tasks),
        ran=0,
        missing=0 if manifests else len(plan.tasks) - len(finished(out)),
        documents=0,
        text_bytes=0,
        tokens=0,
        seconds=0.0,
        left_out_files=inputs.left_out if inputs else (),
    )


def _left_out(manifest: Manifest) -> int:
    return manifest.preparation["left_out"]["rows"] if manifest.preparation else 0


def _check_switches(on_bad: str, runner: str, workers: int | None, task: tuple[int, int] | None) -> None:
    for name, value, known in (("on_bad", on_bad, ("error", "skip")), ("runner", runner, ("local", "ray"))):
        if value not in known:
            raise OptionsError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
    if workers is not None:
        checks.check_count("workers", workers, 0)
    if task is None:
        return
    if not isinstance(task, tuple) or len(task) != 2:  # pyright: ignore[reportUnnecessaryIsInstance, reportUnnecessaryComparison]
        raise OptionsTypeError(f"task must be a pair (i, n), got {task!r}")
    index, count = task
    checks.check_count("n of task", count)
    if checks.check_count("i of task", index, 0) >= count:
        raise OptionsError(f"task must be (i, n) with i from 0 to n - 1, got {task}")


def _check_framing(definition: Definition, *, bos: bool, eos: bool) -> None:
    for kind, wanted, token in (("bos", bos, definition.info.bos_id), ("eos", eos, definition.info.eos_id)):
        if wanted and token is None:
            raise OptionsError(
                f"{kind}=True (--{kind}) was asked for, but the tokenizer does not say which token that is; name it "
                f"with {kind}_token= (--{kind}-token): {special_tokens_of(definition)}"
            )
