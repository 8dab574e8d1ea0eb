"""`dew demo`: the whole of Dew on text that every Python carries, in well under a minute.

Real text becomes token shards; a small language model trains on them, is stopped half-way, and goes on as two
partitions from a JSON file that holds one integer; then a third stream shows that the steps after the resume are those
of a run that never stopped.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dew.cli.output import json_option, print_json

if TYPE_CHECKING:
    from dew.cli.demo_screen import Screen
    from dew.cli.demo_training import Compared, Outcome
    from dew.data.dataset import Dataset

_BATCH: Final = 32
_SEQ_LEN: Final = 64
_VAL: Final = 0.05
_PARTITIONS: Final = 2
_MARK: Final = "dew-demo.json"
_FILES: Final = {
    "corpus": "corpus",
    "tokenizer": "tokenizer.json",
    "position": "position.json",
    "model": "model.npz",
    "report": _MARK,
}


@click.command(short_help="Train a small model on real text, stop it, resume it on two partitions.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("dew-demo"),
    show_default=True,
    help="Where its files go; a second run replaces them.",
)
@click.option("--steps", type=click.IntRange(min=4), default=120, show_default=True, help="Training steps in all.")
@json_option
def demo(out: Path, steps: int, as_json: bool) -> int:
    """Train a small language model on real text, stop it half-way, resume it as two partitions, and compare.

    The text is that of Python's own help topics; nothing is downloaded. Everything runs on the CPU. Exit code 1 if the
    loss did not clearly fall, or if any record or token after the resume is not that of a run that never stopped.
    """
    from dew.cli.demo_corpus import check_tokenizers
    from dew.cli.demo_screen import Screen

    check_tokenizers()
    _claim(out)
    screen = Screen(quiet=as_json)
    dataset = _prepare(out, screen)
    outcome = _train(dataset, out, steps, screen)
    compared = _compare(dataset, outcome, screen)
    report = _report(out, outcome, compared)
    (out / _MARK).write_text(json.dumps(report) + "\n")
    _conclude(out, outcome, screen)
    if as_json:
        print_json(report)
    return int(not outcome.fell or report["compared"]["different"] > 0)


def _claim(out: Path) -> None:
    """Makes `out`, and marks it as the demo's so that a second run may replace what is in it.

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


def _train(dataset: "Dataset", out: Path, steps: int, screen: "Screen") -> "Outcome":
    """Trains, stops half-way, and goes on as two partitions from what was saved."""
    from dew.cli.demo_corpus import VOCABULARY
    from dew.cli.demo_model import Learner, Shape, on_cpu
    from dew.cli.demo_training import GlobalBatches, Outcome, compile_both, save, saved, train, validation_loss

    on_cpu()
    learner = Learner(Shape(vocabulary=VOCABULARY, length=_SEQ_LEN))
    compile_both(learner, _BATCH)
    model = learner.start()
    size = sum(weight.size for weight in model.weights.values())
    screen.line("model", f"decoder-only transformer, {size / 1e6:.2f} M weights, plain JAX on the CPU")
    screen.gap()
    outcome = Outcome(stopped_at=steps // 2, validation_before=validation_loss(learner, model, dataset))
    with GlobalBatches(dataset) as batches, screen.training("train", outcome.stopped_at) as on_step:
        model = train(learner, model, batches, outcome.stopped_at, outcome, on_step)
        save(out, model, batches.get_state())
    del model, batches
    model, state = saved(out)
    outcome.position = state["records"]
    screen.line("stop", f"after step {outcome.stopped_at - 1}; what is kept of the data is one integer:")
    screen.line("", f'{{"records": {outcome.position}}} in {out / _FILES["position"]}', style="bold cyan")
    with (
        GlobalBatches(dataset, _PARTITIONS, state) as batches,
        screen.training("resume", steps - outcome.stopped_at) as on_step,
    ):
        model = train(learner, model, batches, steps - outcome.stopped_at, outcome, on_step)
    screen.line("", f"as {_PARTITIONS} partitions, each reading its half of every batch from that integer")
    outcome.validation_after = validation_loss(learner, model, dataset)
    return outcome


def _compare(dataset: "Dataset", outcome: "Outcome", screen: "Screen") -> "list[Compared]":
    from dew.cli.demo_training import compare

    compared = compare(dataset, outcome.resumed, outcome.stopped_at)
    screen.gap()
    screen.ids(compared, _PARTITIONS)
    rows = sum(len(pair.resumed.ids) for pair in compared)
    different = sum(len(pair.different) for pair in compared)
    tokens = sum(pair.resumed.text.size for pair in compared)
    said = f"{len(compared)} steps after the resume: {rows:,} record ids and {tokens:,} tokens compared, "
    if different:
        screen.line("compare", f"{said}{different:,} rows DIFFER", style="bold red")
    else:
        screen.line("compare", f"{said}none differs", style="bold green")
    return compared


def _conclude(out: Path, outcome: "Outcome", screen: "Screen") -> None:
    curve = screen.curve(outcome.losses)
    screen.line("loss", f"{outcome.losses[0]:.2f} {curve or '->'} {outcome.losses[-1]:.2f}")
    fall = f"{outcome.validation_before:.2f} before, {outcome.validation_after:.2f} after"
    if outcome.fell:
        screen.line("validation", f"{fall}; training waited for data {outcome.wait_share:.1%} of the time")
    else:
        screen.line("validation", f"{fall}: the loss did NOT clearly fall; more --steps may help", style="bold red")
    screen.line("files", f"{out}: {', '.join(_FILES.values())}")
    options = f"--batch {_BATCH} -o seq_len={_SEQ_LEN} -o val={_VAL}"
    screen.line("go on", f"dew peek  {_source(out)} {options}")
    screen.line("", f"dew order {_source(out)} {options} --record 7")


def _report(out: Path, outcome: "Outcome", compared: "list[Compared]") -> dict[str, Any]:
    """What `--json` prints and the demo's directory keeps."""
    return {
        "steps": len(outcome.losses),
        "batch": _BATCH,
        "seq_len": _SEQ_LEN,
        "source": _source(out),
        "stopped_at": outcome.stopped_at,
        "position": outcome.position,
        "losses": outcome.losses,
        "loss": {
            "first": outcome.losses[0],
            "last": outcome.losses[-1],
            "validation_before": outcome.validation_before,
            "validation_after": outcome.validation_after,
            "fell": outcome.fell,
        },
        "wait_share": outcome.wait_share,
        "compared": {
            "partitions": _PARTITIONS,
            "records": sum(len(pair.resumed.ids) for pair in compared),
            "tokens": sum(pair.resumed.text.size for pair in compared),
            "different": sum(len(pair.different) for pair in compared),
            "steps": [
                {
                    "step": pair.resumed.step,
                    "resumed": pair.resumed.ids.tolist(),
                    "uninterrupted": pair.whole.ids.tolist(),
                    "different_rows": list(pair.different),
                }
                for pair in compared
            ],
        },
        "files": {name: str(out / file) for name, file in _FILES.items()},
    }
