"""`dew demo`: the whole of Dew on text that every Python carries, in well under a minute.

Real text becomes token shards; a small language model trains on them in one process, which is killed; two processes go
on, and are killed; one process finishes the run. Beside it another run trains that nothing stops: both must have read
the same records and tokens at every step, and their losses must agree.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dew.cli.output import json_option, print_json

if TYPE_CHECKING:
    from dew.cli.demo_compare import Compared, Outcome
    from dew.cli.demo_member import MemberOrder
    from dew.cli.demo_pool import Stage
    from dew.cli.demo_screen import RunBar, Runs, Screen
    from dew.data.dataset import Dataset

_BATCH: Final = 32
_SEQ_LEN: Final = 64
_VAL: Final = 0.05
_PROCESSES: Final = (1, 2, 1)
_MARK: Final = "dew-demo.json"
_FILES: Final = {
    "corpus": "corpus",
    "tokenizer": "tokenizer.json",
    "checkpoints": "checkpoints",
    "report": _MARK,
}


@click.command(short_help="Train a small model on real text, kill it, go on with two processes, kill them.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("dew-demo"),
    show_default=True,
    help="Where its files go; a second run replaces them.",
)
@click.option("--steps", type=click.IntRange(min=8), default=72, show_default=True, help="Training steps in all.")
@json_option
def demo(out: Path, steps: int, as_json: bool) -> int:
    """Train a small language model on real text, kill it twice, go on with other numbers of processes, and compare.

    The text is that of Python's own help topics; nothing is downloaded. Everything runs on the CPU, in processes of
    their own that are killed by SIGKILL. Exit code 1 if the loss did not clearly fall, if any record or token is not
    that of a run that was never stopped, or if a loss is not within the tolerance of that run's.
    """
    from dew.cli.demo_corpus import check_packages
    from dew.cli.demo_screen import Screen

    check_packages()
    _claim(out)
    screen = Screen(quiet=as_json)
    dataset = _prepare(out, screen)
    outcome = _train(dataset, out, steps, screen)
    report = _report(out, outcome)
    (out / _MARK).write_text(json.dumps(report) + "\n")
    _conclude(out, outcome, screen)
    if as_json:
        print_json(report)
    return int(not outcome.proven)


def _claim(out: Path) -> None:
    """Makes `out`, marks it as the demo's so that a second run may replace what is in it, and clears the checkpoints.

    Raises:
        OptionsError: `out` holds files that no demo wrote, or it cannot be written.
    """
    from dew.data.errors import OptionsError

    if out.is_dir() and not (out / _MARK).exists() and (found := sorted(path.name for path in out.iterdir())):
        raise OptionsError(
            f"{out} is not empty and was not made by dew demo (it holds {', '.join(found[:3])}"
            f"{', ...' if len(found) > 3 else ''}); give another directory with --out"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / _MARK).write_text("{}\n")
        if (out / _FILES["checkpoints"]).exists():
            shutil.rmtree(out / _FILES["checkpoints"])
    except OSError as error:
        raise OptionsError(f"{out} cannot be written ({error.strerror}); give another directory with --out") from error


def _prepare(out: Path, screen: "Screen") -> "Dataset":
    """Text -> tokenizer -> shards -> dataset."""
    from dew.cli.demo_corpus import texts, train_tokenizer, write_tokens
    from dew.data.load import load
    from dew.tokens import TokenOptions

    documents = texts()
    screen.line("text", f"{len(documents)} help topics of Python, {sum(map(len, documents)):,} characters")
    definition = out / _FILES["tokenizer"]
    tokenizer = train_tokenizer(documents, definition)
    screen.line("tokenizer", f"byte-level BPE trained on them, {tokenizer.get_vocab_size():,} ids")
    manifest = write_tokens(documents, tokenizer, definition, out / _FILES["corpus"])
    screen.line("shards", f"{manifest.tokens:,} tokens in {len(manifest.shards)} shards of plain .npy")
    dataset = load(_source(out), batch=_BATCH, options=TokenOptions(seq_len=_SEQ_LEN, val=_VAL))
    screen.line("load", f'dew.data.load("{_source(out)}", batch={_BATCH},')
    screen.line("", f"              options=TokenOptions(seq_len={_SEQ_LEN}, val={_VAL}))")
    screen.line("", f"{dataset.records:,} records, {dataset.steps_per_epoch} steps an epoch")
    return dataset


def _source(out: Path) -> str:
    return f"tokens/{out.as_posix()}/{_FILES['corpus']}"


def _order(out: Path, steps: int, programs: str) -> "MemberOrder":
    """What every process is to do."""
    from dew.cli.demo_corpus import VOCABULARY
    from dew.cli.demo_member import MemberOrder

    return MemberOrder(
        source=_source(out),
        batch=_BATCH,
        seq_len=_SEQ_LEN,
        val=_VAL,
        vocabulary=VOCABULARY,
        steps=steps,
        every=max(1, steps // 9),
        checkpoints=str(out / _FILES["checkpoints"]),
        programs=programs,
    )


def _stages(steps: int) -> "list[Stage]":
    """A third of the run each, and the kills some steps after a checkpoint, so that there is something to do again."""
    from dew.cli.demo_pool import Stage

    again = steps // 18
    holds = [steps // 3 + again, 2 * steps // 3 + again, None]
    return [Stage(processes, hold) for processes, hold in zip(_PROCESSES, holds, strict=True)]


def _train(dataset: "Dataset", out: Path, steps: int, screen: "Screen") -> "Outcome":
    """Both runs, side by side, and what comes of holding one against the other."""
    import attrs

    from dew.cli.demo_compare import compare
    from dew.cli.demo_pool import Members, Stage, run_killed
    from dew.data.dataset import DataPartition
    from dew.data.stream import RecordStream

    screen.line("model", "decoder-only transformer, 0.66 M weights, plain JAX on the CPU, trained by dew.training")
    screen.gap()
    with (
        tempfile.TemporaryDirectory(prefix="dew-demo-") as programs,
        screen.runs(steps) as runs,
        Members(attrs.evolve(order := _order(out, steps, programs), checkpoints=None), Stage(1, None)) as others,
        ThreadPoolExecutor(1) as pool,
    ):
        bar = runs.begin("never stopped")
        hearing = pool.submit(others.hear, bar, None)
        try:
            killed = run_killed(order, _stages(steps), lambda stage: _begin(runs, stage))
        except BaseException:
            others.kill()  # else its thread would be waited for
            raise
        whole = {each.step: each for each in hearing.result()}
    stream = dataset.train(DataPartition())
    assert isinstance(stream, RecordStream)
    assert others.validation is not None
    with stream:
        return compare(stream, killed, whole, others.validation)


def _begin(runs: "Runs", stage: "Stage") -> "tuple[RunBar, Callable[[], None]]":
    bar = runs.begin("1 process" if stage.processes == 1 else f"{stage.processes} processes")
    return bar, bar.killed


def _conclude(out: Path, outcome: "Outcome", screen: "Screen") -> None:
    """What was shown, and where to go from here."""
    from dew.cli.demo_compare import TOLERANCE

    screen.ids(_shown(outcome))
    rows, steps = _BATCH * len(outcome.steps), len(outcome.steps)
    said = f"{steps} steps: {rows:,} record ids and {rows * (_SEQ_LEN + 1):,} tokens compared, "
    if outcome.different:
        screen.line("records", f"{said}{outcome.different:,} rows DIFFER", style="bold red")
    else:
        screen.line("records", f"{said}none differs", style="bold green")
    for label, losses in (("loss", outcome.losses), ("", outcome.whole_losses)):
        ends = [end for _, _, end in outcome.killed.stages]
        which = f"killed after {ends[0]} and {ends[1]} steps" if label else "never stopped"
        screen.line(label, f"{losses[0]:.2f} {screen.curve(losses)} {losses[-1]:.2f}   {which}")
    apart = f"the two are at most {outcome.apart:.1g} nats apart; {TOLERANCE:g} would be too much"
    screen.line(
        "", apart if outcome.same_curve else f"{apart}: they DIFFER", "green" if outcome.same_curve else "bold red"
    )
    fall = f"{outcome.losses[0]:.2f} before, {outcome.validation:.2f} after"
    if outcome.fell:
        wait = outcome.steps[-1].killed.wait
        screen.line("validation", f"{fall}; training waited for data {wait:.1%} of the time")
    else:
        screen.line("validation", f"{fall}: the loss did NOT clearly fall; more --steps may help", style="bold red")
    screen.line("files", f"{out}: {', '.join(_FILES.values())}")
    options = f"--batch {_BATCH} -o seq_len={_SEQ_LEN} -o val={_VAL}"
    screen.line("go on", f"dew peek  {_source(out)} {options}")
    screen.line("", f"dew order {_source(out)} {options} --record 7")


def _shown(outcome: "Outcome") -> "list[Compared]":
    """The steps at which other processes took over, the ones before, and the last."""
    begun = [first for _, first, _ in outcome.killed.stages]
    numbers = {0, *begun, *(first - 1 for first in begun if first), len(outcome.steps) - 1}
    return [outcome.steps[number] for number in sorted(numbers)]


def _report(out: Path, outcome: "Outcome") -> dict[str, Any]:
    """What `--json` prints and the demo's directory keeps."""
    from dew.cli.demo_compare import TOLERANCE

    return {
        "steps": len(outcome.steps),
        "batch": _BATCH,
        "seq_len": _SEQ_LEN,
        "source": _source(out),
        "stages": [
            {"processes": processes, "from_step": first, "ended_before_step": end}
            for processes, first, end in outcome.killed.stages
        ],
        "loss": {
            "killed": outcome.losses,
            "never_stopped": outcome.whole_losses,
            "largest_difference": outcome.apart,
            "tolerance": TOLERANCE,
            "validation": outcome.validation,
            "validation_never_stopped": outcome.whole_validation,
            "fell": outcome.fell,
        },
        "wait_share": outcome.steps[-1].killed.wait,
        "compared": {
            "records": _BATCH * len(outcome.steps),
            "tokens": _BATCH * len(outcome.steps) * (_SEQ_LEN + 1),
            "different": outcome.different,
            "steps": [
                {
                    "step": step.killed.step,
                    "processes": step.killed.processes,
                    "killed": step.ids.tolist(),
                    "never_stopped": step.whole_ids.tolist(),
                    "different_rows": list(step.different),
                }
                for step in outcome.steps
            ],
        },
        "files": {name: str(out / file) for name, file in _FILES.items()},
    }
