"""`dew order SOURCE`: which records a step holds, and at which steps a record is read.

Both are computed from the order and its inverse; no record is read.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import click

from dew.cli.opening import Asked, record_stream, source_options
from dew.cli.output import console, listed, print_json, row, say, table

if TYPE_CHECKING:
    from dew.data.stream import RecordStream

_MOST_EPOCHS = 100_000


@click.command(short_help="Which records a step holds, or at which steps a record is read.")
@source_options
@click.option("--step", type=click.IntRange(min=0), help="Show the records of this step.")
@click.option("--record", type=click.IntRange(min=0), help="Show the steps that read this record, past and to come.")
@click.option("--partitions", type=click.IntRange(min=1), default=1, help="Show which of N processes reads what.")
@click.option(
    "--epochs", type=click.IntRange(min=1), help="With --record: look through the first E epochs.", metavar="E"
)
@click.option("--until", type=click.IntRange(min=1), help="With --record: look through the steps before this one.")
@click.option("--at", type=click.IntRange(min=0), help="With --record: the step before which the run stands.")
@click.option("--position", type=click.File(), help="A saved position (JSON): its steps, and its step for --at.")
def order(
    source: str,
    batch: int | None,
    split: str,
    seed: int,
    pairs: tuple[str, ...],
    as_json: bool,
    step: int | None,
    record: int | None,
    partitions: int,
    epochs: int | None,
    until: int | None,
    at: int | None,
    position: Any,
) -> None:
    """Which records step --step of a run on SOURCE holds, or at which steps record --record is read."""
    if (step is None) == (record is None):
        raise click.UsageError("give exactly one of --step and --record")
    if record is None and (epochs, until, at) != (None, None, None):
        raise click.UsageError("--epochs, --until and --at belong to --record")
    if epochs is not None and until is not None:
        raise click.UsageError("give at most one of --epochs and --until")
    asked = Asked(source=source, batch=batch, split=split, seed=seed, pairs=pairs)
    with asked.opened() as dataset, record_stream(dataset, source) as stream:
        if position is not None:
            _restore(stream, position)
            at = stream.position.step if at is None else at
        about = {"source": source, "split": split, "seed": seed, "batch": dataset.batch, "partitions": partitions}
        if step is not None:
            answer = about | _step(stream, step, partitions)
        else:
            assert record is not None
            answer = about | _record(stream, record, partitions, _stop(stream, epochs, until, at), at)
    if as_json:
        print_json(answer)
    elif step is not None:
        _show_step(answer)
    else:
        _show_record(answer)


def _restore(stream: "RecordStream", position: Any) -> None:
    from dew.data.errors import PositionError

    try:
        state = json.load(position)
    except ValueError as error:
        raise PositionError(f"{position.name} does not hold a position as JSON: {error}") from error
    stream.set_state(state)


def _stop(stream: "RecordStream", epochs: int | None, until: int | None, at: int | None) -> int:
    """The place before which to look: by default three epochs, and at least a whole one past where the run stands."""
    from dew.data.errors import OptionsError

    records, position = stream.order.records, stream.position
    if until is not None:
        stop = position.span(until)[0]
    elif epochs is not None:
        stop = epochs * records
    else:
        stop = max(3, 0 if at is None else position.span(at)[0] // records + 2) * records
    if stop > _MOST_EPOCHS * records:
        raise OptionsError(
            f"{stop // records} epochs were asked for; at most {_MOST_EPOCHS} are looked through at once"
        )
    return stop


def _step(stream: "RecordStream", step: int, partitions: int) -> dict[str, Any]:
    from dew.data.dataset import DataPartition

    start, stop = stream.position.span(step)
    DataPartition(0, partitions).rows(stop - start)
    ids = [int(record) for record in stream.ids(step)]
    last = (stop - 1) // stream.order.records
    return {
        "step": step,
        "places": [start, stop],
        "epochs": [start // stream.order.records, last],
        "ids": ids,
        "shares": [{"index": index, "ids": ids[index::partitions]} for index in range(partitions)],
    }


@attrs.frozen
class _Read:
    """One place at which a record is read; `step`, `row` and `partition` are None where a skip passed over it."""

    place: int
    epoch: int
    step: int | None
    row: int | None
    partition: int | None
    past: bool | None


def _record(stream: "RecordStream", record: int, partitions: int, stop: int, at: int | None) -> dict[str, Any]:
    reads = [_read(stream, int(place), partitions, at) for place in stream.order.places(record, 0, stop)]
    return {"record": record, "places": [0, stop], "at": at, "reads": [attrs.asdict(read) for read in reads]}


def _read(stream: "RecordStream", place: int, partitions: int, at: int | None) -> _Read:
    from dew.data.dataset import DataPartition

    step, epoch = stream.position.step_of(place), place // stream.order.records
    if step is None:
        return _Read(place, epoch, None, None, None, None)
    start, stop = stream.position.span(step)
    DataPartition(0, partitions).rows(stop - start)
    return _Read(place, epoch, step, place - start, (place - start) % partitions, None if at is None else step < at)


def _show_step(answer: Mapping[str, Any]) -> None:
    made = table(["partition", "rows", "records"], right=["partition", "rows"])
    for share in answer["shares"]:
        row(made, f"{share['index']} of {answer['partitions']}", len(share["ids"]), listed(share["ids"]))
    first, last = answer["epochs"]
    epochs = f"epoch {first}" if first == last else f"epochs {first} to {last}"
    start, stop = answer["places"]
    screen = console()
    say(screen, f"step {answer['step']} of {answer['source']}: places {start} to {stop - 1}, {epochs}")
    screen.print(made)


def _show_record(answer: Mapping[str, Any]) -> None:
    when = {True: "past", False: "to come", None: ""}
    numbers = ["step", "row", "partition", "epoch", "place"]
    made = table([*numbers, "when"], right=numbers)
    for read in answer["reads"]:
        skipped = read["step"] is None
        style = "dim" if skipped or read["past"] else None
        cells = ["-" if read[name] is None else read[name] for name in numbers]
        row(made, *cells, "skipped" if skipped else when[read["past"]], style=style)
    screen = console()
    here = "" if answer["at"] is None else f", seen from before step {answer['at']}"
    say(screen, f"record {answer['record']} of {answer['source']} in places 0 to {answer['places'][1] - 1}{here}")
    screen.print(made)
