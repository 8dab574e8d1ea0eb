"""`dew peek SOURCE`: one batch as a table, with the records it holds."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from dew.cli.opening import Asked, dataset_stream, source_options
from dew.cli.output import console, listed, print_json, row, say, table

if TYPE_CHECKING:
    from dew.data.dataset import Batch
    from dew.data.stream import RecordStream

_SAMPLE = 6


@click.command(short_help="One batch of a source as a table.")
@source_options
@click.option("--step", type=click.IntRange(min=0), default=0, show_default=True, help="The step to look at.")
@click.option("--roles", metavar="MODEL", help="SOURCE is a file of conversations: colour a row's tokens by role.")
@click.option("--row", "number", type=click.IntRange(min=0), default=0, help="With --roles: which row [0].")
@click.option("--html", type=click.Path(dir_okay=False), help="With --roles: write a page and print nothing.")
def peek(
    source: str,
    batch: int | None,
    split: str,
    seed: int,
    pairs: tuple[str, ...],
    as_json: bool,
    step: int,
    roles: str | None,
    number: int,
    html: str | None,
) -> None:
    """One batch of SOURCE, written as for dew.data.load ("tokens/my-corpus"): shapes, dtypes, ranges, records.

    Or, with --roles and the directory of a model's tokenizer, one conversation of a .jsonl, .json or .parquet file:
    each token in the colour of its role, as dew.data.ChatMessages reads it. There, -o is an option of ChatMessages.
    """
    if roles is not None:
        from dew.cli.roles import show_roles

        show_roles(source, roles, number, pairs=pairs, as_json=as_json, html=html)
        return
    if batch is None:
        raise click.UsageError("Missing option '--batch'.")
    asked = Asked(source=source, batch=batch, split=split, seed=seed, pairs=pairs)
    found, ids, alone = _read(asked, step)
    fields = {name: _facts(value) for name, value in _flat(found)}
    if as_json:
        about = {"source": source, "split": split, "seed": seed, "batch": batch, "step": step}
        print_json({**about, "ids": ids, "alone": alone, "fields": fields})
        return
    made = table(["field", "shape", "dtype", "min", "max", "sample"], right=["min", "max"])
    for name, facts in fields.items():
        shape = "(" + ", ".join(map(str, facts["shape"])) + ("," if len(facts["shape"]) == 1 else "") + ")"
        row(made, name, shape, facts["dtype"], _short(facts["min"]), _short(facts["max"]), _sample_text(facts))
    screen = console()
    screen.print(made)
    if alone is not None:
        say(screen, f"As they are stored, the rows of this step form no batch, so this is record {alone} alone:")
        say(screen, "load the source with preprocess=, a function that makes the fields arrays of one shape.")
    say(screen, f"step {step}, records {'unknown' if ids is None else listed(ids, 24)}")


# With --roles there is no batch.
next(param for param in peek.params if param.name == "batch").required = False


def _read(asked: Asked, step: int) -> "tuple[Mapping[str, Any], list[int] | None, int | None]":
    """The batch of `step`, its record ids, and the one record shown where the stored rows form no batch."""
    from dew.data.errors import CollateError
    from dew.data.stream import RecordStream

    stream = dataset_stream(asked.dataset())
    if not isinstance(stream, RecordStream):
        return _nth(stream, step), None, None
    with stream:
        ids = [int(record) for record in stream.ids(step)]
        try:
            return _at(stream, step), ids, None
        except CollateError:
            if not asked.stored_rows:
                raise
            return stream.source[ids[0]], ids, ids[0]


def _at(stream: "RecordStream", step: int) -> "Batch":
    stream.set_state(stream.position.at_step(step).to_json())
    return next(stream)


def _nth(stream: "Iterator[Batch]", step: int) -> "Batch":
    """Batch `step` of a stream that can only be read forwards."""
    from dew.data.errors import OptionsError

    for number, batch in enumerate(stream):
        if number == step:
            return batch
    raise OptionsError(f"step {step} was asked for, but the stream ended before it")


def _flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _facts(value: Any) -> dict[str, Any]:
    import numpy as np

    array = np.asarray(value)
    ordered = array.dtype.kind in "biuf" and array.size > 0
    return {
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "min": _number(array.min()) if ordered else None,
        "max": _number(array.max()) if ordered else None,
        "sample": [_number(item) for item in array.reshape(-1)[:_SAMPLE]],
    }


def _number(value: Any) -> Any:
    """A JSON value; a number that JSON cannot hold, or a value of another type, as its text."""
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, bool | int) or (isinstance(plain, float) and math.isfinite(plain)):
        return plain
    return plain if isinstance(plain, str) else str(plain)


def _short(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _sample_text(facts: Mapping[str, Any]) -> str:
    words = [_short(item) for item in facts["sample"]]
    return " ".join([*words, *(["..."] if math.prod(facts["shape"]) > len(words) else [])])
