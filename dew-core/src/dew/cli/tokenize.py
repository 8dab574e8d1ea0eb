"""`dew tokenize`: text files become a token corpus; a run that is stopped goes on where it was."""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from dew.cli.output import console, json_option, print_json, say

if TYPE_CHECKING:
    from dew.tokens.manifest import Manifest
    from dew.tokens.prepare import Prepared
    from dew.tokens.prepare.job import OnProgress

_RAY: Final = "ray"
_SLURM: Final = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP")
_KUBERNETES: Final = "JOB_COMPLETION_INDEX"


@click.command(short_help="Make a token corpus of text files.")
@click.argument("inputs", nargs=-1, metavar="INPUTS...")
@click.option("--out", required=True, help="The corpus: a directory or URL of its own.")
@click.option("--tokenizer", metavar="T", help="tokenizer.json, its directory, a model on the hub, or bytes.")
@click.option("--field", default="text", show_default=True, help="JSON field or column that holds the text.")
@click.option("--bos", is_flag=True, help="Begin each document with the begin token.")
@click.option("--eos", is_flag=True, help="End each document with the end token.")
@click.option("--bos-token", metavar="TEXT", help="The begin token, where the tokenizer does not say.")
@click.option("--eos-token", metavar="TEXT", help="The end token, where the tokenizer does not say.")
@click.option("--pad-token", metavar="TEXT", help="The padding token, where the tokenizer does not say.")
@click.option("--parse-special", is_flag=True, help="Let text that spells a special token become that token.")
@click.option("--val", multiple=True, metavar="PATH", help="An input of the split val; may be given again.")
@click.option("--val-fraction", type=float, metavar="F", help="Or the share of the documents that make it.")
@click.option("--on-bad", type=click.Choice(["error", "skip"]), default="error", show_default=True, help="Broken rows.")
@click.option(
    "--engine", default="hf", show_default=True, metavar="E", help="hf, gigatoken, fastokens, module:factory."
)
@click.option("--runner", type=click.Choice(["local", _RAY]), default="local", show_default=True, help="Who works.")
@click.option("--workers", type=click.IntRange(min=0), metavar="N", help="Processes; by default one for each core.")
@click.option("--task", metavar="I/N", help="Do share I of N of the tasks: 0/8; or auto, auto/8 in a job array.")
@click.option("--merge", "only_merge", is_flag=True, help="Only join finished shares; looks at --out alone.")
@click.option("--task-bytes", type=click.IntRange(min=1), metavar="BYTES", help="Text in a shard, about [256 MiB].")
@json_option
def tokenize(inputs: tuple[str, ...], out: str, only_merge: bool, as_json: bool, **words: Any) -> None:
    """Make a token corpus of INPUTS: files, directories, patterns in quotes, or URLs.

    Reads .txt (one document a file), .jsonl, .ndjson, .parquet, .arrow and directories that datasets saved; text and
    lines also as .gz, .zst or .xz. The same inputs, tokenizer and options make the same bytes, and running the same
    command again goes on where it was stopped.

    On a cluster: dew tokenize ... --task 0/8, and so on to 7/8, then once --merge. "--task auto" takes the share from
    SLURM_ARRAY_TASK_ID, "--task auto/8" from JOB_COMPLETION_INDEX. "--engine ray" is short for --runner ray.
    """
    from dew.tokens.prepare import merge

    if only_merge:
        if words["task"]:
            raise click.UsageError("--task does a share and --merge joins all of them; give one of the two")
        _show(merge(out), as_json)
        return
    if not inputs:
        raise click.UsageError("Missing argument 'INPUTS...'.")
    if words["tokenizer"] is None:
        raise click.UsageError("Missing option '--tokenizer'.")
    with _bar(quiet=as_json) as progress:
        prepared = _prepare(inputs, out, words, progress)
    _show(prepared, as_json)


def _prepare(inputs: tuple[str, ...], out: str, words: Mapping[str, Any], progress: "OnProgress") -> "Prepared":
    from dew.tokens.prepare import prepare
    from dew.tokens.prepare.plan import TASK_BYTES
    from dew.tokens.tokenizer import ByteTokenizer

    tokenizer = ByteTokenizer(bos=words["bos"]) if words["tokenizer"] == "bytes" else words["tokenizer"]
    on_ray = words["engine"] == _RAY
    return prepare(
        inputs,
        out,
        tokenizer=tokenizer,
        field=words["field"],
        bos=words["bos"],
        eos=words["eos"],
        bos_token=words["bos_token"],
        eos_token=words["eos_token"],
        pad_token=words["pad_token"],
        parse_special=words["parse_special"],
        val=words["val"] or None,
        val_fraction=words["val_fraction"],
        on_bad=words["on_bad"],
        engine="hf" if on_ray else words["engine"],
        runner=_RAY if on_ray else words["runner"],
        workers=words["workers"],
        task=None if words["task"] is None else share(words["task"]),
        task_bytes=words["task_bytes"] or TASK_BYTES,
        progress=progress,
    )


def share(text: str, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Which share of the tasks, `(i, n)`: `"i/n"`, or what a job array says of itself for `"auto"` and `"auto/n"`.

    Raises:
        click.UsageError: it is written otherwise, or there is no job array.
    """
    index, slash, count = text.partition("/")
    if index == "auto":
        return _share_of_array(count if slash else None, environment)
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise click.UsageError(f"--task is written I/N with I from 0 to N - 1, or auto, got {text!r}")
    return int(index), int(count)


def _share_of_array(count: str | None, environment: Mapping[str, str]) -> tuple[int, int]:
    ident, total, first, step = (environment.get(name) for name in _SLURM)
    completion = environment.get(_KUBERNETES)
    if ident is not None and (count or total):
        number = (int(ident) - int(first or 0)) // int(step or 1)
        return share(f"{number}/{count or total}")
    if completion is not None and count:
        return share(f"{completion}/{count}")
    if completion is not None:
        raise click.UsageError(f"{_KUBERNETES} does not tell how many shares there are; write --task auto/N")
    raise click.UsageError(f"--task auto needs {_SLURM[0]} or {_KUBERNETES}, and neither is set")


@contextmanager
def _bar(*, quiet: bool) -> "Generator[OnProgress]":
    """A progress bar: documents, MB/s, tokens/s and the time left."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    screen = console()
    screen.quiet = quiet
    columns = (
        TextColumn("[bold]tokenize"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    with Progress(*columns, console=screen, disable=quiet) as bars:
        bar = bars.add_task("tokenize", total=None, said="listing inputs")

        def progress(now: Any) -> None:
            seconds = max(bars.tasks[0].elapsed or 0.0, 1e-3)
            rates = f"{now.text_bytes / seconds / 1e6:.1f} MB/s   {_short(now.tokens / seconds)} tokens/s"
            said = f"{_short(now.documents)} documents   {rates}"
            bars.update(bar, total=now.weight, completed=now.weight_done, said=said)

        try:
            yield progress
        except BaseException:
            bars.remove_task(bar)
            raise
        if bars.tasks[0].total is None:
            bars.update(bar, total=1, completed=1, said="nothing left to do")


def _short(number: float) -> str:
    for unit in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.0f}{unit}" if not unit else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:.1f}T"


def _show(prepared: "Prepared", as_json: bool) -> None:
    if as_json:
        print_json(_summary(prepared))
        return
    screen = console()
    if prepared.left_out_files:
        more = f"{len(prepared.left_out_files)} files of other kinds were passed over"
        say(screen, f"{more}, such as {prepared.left_out_files[0]}")
    if not prepared.manifests:
        missing = f"{prepared.missing} of {prepared.tasks} tasks are left for other shares"
        say(
            screen,
            f"{prepared.ran} tasks done, {missing}; after the last one: dew tokenize --out {prepared.path} --merge",
        )
        return
    for split, manifest in prepared.manifests.items():
        say(screen, f"{split}: {manifest.documents:,} documents, {manifest.tokens:,} tokens in {_shards(manifest)}")
        _show_dropped(screen, manifest)
    say(screen, f"written to {prepared.path}" if prepared.ran else f"{prepared.path} was already finished")


def _show_dropped(screen: Any, manifest: "Manifest") -> None:
    if manifest.empty_documents:
        say(screen, f"  {manifest.empty_documents:,} empty documents were kept out")
    left_out = (manifest.preparation or {}).get("left_out", {"rows": 0, "listed": []})
    if left_out["rows"]:
        say(screen, f"  {left_out['rows']:,} rows were left out; the manifest lists them:")
        for row in left_out["listed"][:3]:
            say(screen, f"    {row['input']}, row {row['row']}: {row['why']}")
    if not (manifest.framing.bos or manifest.framing.eos):
        say(screen, "  documents follow each other without a begin or end token (--bos, --eos)")


def _shards(manifest: "Manifest") -> str:
    return f"{len(manifest.shards)} shard{'s' * (len(manifest.shards) > 1)}"


def _summary(prepared: "Prepared") -> dict[str, Any]:
    values = attrs.asdict(prepared, recurse=False)
    values["left_out_files"] = len(prepared.left_out_files)
    values["manifests"] = {
        split: {
            "id": manifest.id,
            "documents": manifest.documents,
            "tokens": manifest.tokens,
            "empty_documents": manifest.empty_documents,
            "left_out_rows": (manifest.preparation or {}).get("left_out", {}).get("rows", 0),
            "shards": len(manifest.shards),
            "dtype": manifest.dtype,
            "framing": attrs.asdict(manifest.framing),
        }
        for split, manifest in prepared.manifests.items()
    }
    return values
