"""`dew check SOURCE`: the conformance kit's checks on a user's own data, at the process counts of the user's own run.

The checks are those that the suites of `dew.testing` run; here each gets its share of the time, and one that is cut
short says how many cases held so far. pytest is not needed.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import attrs
import click

from dew.cli.opening import Asked, dataset_stream, source_options
from dew.cli.output import Tell, console, jobs_bar, print_json, row, say, table
from dew.data.errors import OptionsError

if TYPE_CHECKING:
    from dew.data.dataset import Dataset
    from dew.testing.counterexample import Check, Counterexample
    from dew.testing.subject import Subject

_PROCESSES: Final = (1, 2, 4)
_PAST_THE_LAST: Final = 2  # steps that resuming reads past the last
_STAGE_SHARE: Final = 0.1  # of the time goes to the figures of the stages
_LONGEST_VALUE: Final = 60
_STYLES: Final = {"held so far": "dim", "not reached": "dim", "does not apply": "dim", "failed": "red"}
_MEMORY: Final = 1 << 30  # for the steps that others are compared with

Status: TypeAlias = Literal["held", "held so far", "not reached", "does not apply", "failed"]


@attrs.frozen
class Planned:
    """A check to run: what it is called, what it says of the data, and how to begin it."""

    name: str
    says: str
    begin: "Callable[[], Check]"


@attrs.frozen(kw_only=True)
class Outcome:
    """What became of a check: how many cases held, in how many seconds, and what did not."""

    check: Planned
    status: Status
    cases: int
    seconds: float
    found: "Counterexample | None" = None

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        counterexample = None if self.found is None else self.found.to_json()
        facts = {"name": self.check.name, "says": self.check.says, "status": self.status}
        return {**facts, "cases": self.cases, "seconds": round(self.seconds, 3), "counterexample": counterexample}


def _counts(_context: object, _parameter: object, value: str | None) -> tuple[int, ...] | None:
    """`1,2,4` as process counts."""
    if value is None:
        return None
    words = value.split(",")
    if not all(word.isdecimal() and word.isascii() and int(word) for word in words):
        raise click.BadParameter(f"process counts with commas between, such as 1,2,4, got {value!r}")
    return tuple(sorted({1, *map(int, words)}))


@click.command(short_help="Whether a source keeps Dew's promises, at several process counts.")
@source_options
@click.option("--processes", callback=_counts, metavar="N,...",
              help="Process counts of your run [those of 1,2,4 that divide the batch].")  # fmt: skip
@click.option("--steps", type=click.IntRange(min=2), default=6, show_default=True, help="Steps that are read.")
@click.option("--seconds", type=click.FloatRange(min=0.0, min_open=True), default=60.0, show_default=True,
              help="Most time; a check that is cut short says so.")  # fmt: skip
@click.pass_context
def check(
    context: click.Context,
    source: str,
    batch: int | None,
    split: str,
    seed: int,
    pairs: tuple[str, ...],
    as_json: bool,
    processes: tuple[int, ...] | None,
    steps: int,
    seconds: float,
) -> None:
    """Whether SOURCE keeps Dew's promises: the same records and draws on any process count, before and after a resume.

    SOURCE is written as for dew.data.load ("tokens/my-corpus"), or names a dataset of your own program
    ("train.py:data"). Ends with exit code 1 and the first counter-example where one is found.
    """
    asked = Asked(source=source, batch=batch, split=split, seed=seed, pairs=pairs)
    with asked.opened() as dataset:
        counts = _dividing(dataset, processes, source)
        steps = min(steps, _most_steps(dataset, steps), _affordable(dataset, asked))
        plan = planned(dataset, asked, counts, steps)
        outcomes = list(_run(plan, seconds * (1 - _STAGE_SHARE), quiet=as_json))
        resume = _resume(dataset)
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    stages = None if failed else _stages(asked, steps, seconds * _STAGE_SHARE)
    answer = {
        "source": source,
        "split": split,
        "batch": dataset.batch,
        "processes": list(counts),
        "steps": steps,
        "holds": not failed,
        "checks": [outcome.to_json() for outcome in outcomes],
        "stages": stages,
        "resume": resume,
    }
    if as_json:
        print_json(answer)
    else:
        _print(answer, outcomes)
    if failed:
        context.exit(1)


def _dividing(dataset: "Dataset", asked: Sequence[int] | None, source: str) -> tuple[int, ...]:
    from dew.testing.subject import counts_dividing

    counts = counts_dividing(dataset, _PROCESSES if asked is None else asked)
    if asked is not None and (odd := [count for count in asked if count not in counts]):
        raise OptionsError(
            f"--processes {odd[0]} was given, and the global batch of {source}, {dataset.batch} rows, does not divide "
            f"over {odd[0]} processes; it does over {', '.join(map(str, _divisors(dataset)))}"
        )
    return counts


def _divisors(dataset: "Dataset") -> tuple[int, ...]:
    from dew.testing.subject import counts_dividing

    return counts_dividing(dataset, range(1, min(dataset.batch, 1 << 16) + 1))


def _most_steps(dataset: "Dataset", wanted: int) -> int:
    """Steps of a dataset that ends, less the two that resuming reads past the last.

    A stream without an order, such as a pass over validation data, is read to learn whether it ends before `wanted`.
    """
    from dew.data.schedule import FixedBatch, whole_steps
    from dew.data.stream import RecordStream, stop_of

    with closing(_Closing(dataset)) as opened:
        if not isinstance(opened.stream, RecordStream):
            try:
                found = sum(1 for _ in itertools.islice(opened.stream, wanted + _PAST_THE_LAST))
            except Exception:
                return sys.maxsize  # the checks say where and why
            return sys.maxsize if found == wanted + _PAST_THE_LAST else max(1, found - _PAST_THE_LAST)
        stop = stop_of(opened.stream.order)
    schedule = FixedBatch(dataset.batch) if dataset.ramp is None else dataset.ramp.schedule(dataset.batch)
    return sys.maxsize if stop is None else max(1, whole_steps(schedule, stop) - _PAST_THE_LAST)


def _affordable(dataset: "Dataset", asked: Asked) -> int:
    """Steps that fit into memory together, by the size of the first; at least two.

    Raises:
        OptionsError: the rows are read as they are stored, and form no batch.
    """
    from dew.data.errors import CollateError
    from dew.data.step import batch_bytes
    from dew.testing.subject import DIRECT, varied

    with closing(_Closing(varied(dataset, loading=DIRECT) or dataset)) as opened:
        try:
            size = batch_bytes(next(opened.stream))
        except CollateError as error:
            if not asked.stored_rows:
                return sys.maxsize  # the checks say where and why
            raise OptionsError(
                f"as they are stored, the rows of {asked.source} form no batch ({error}); check the dataset that your "
                "program makes of them: dew check train.py:data"
            ) from error
        except Exception:
            return sys.maxsize
    return max(2, _MEMORY // max(1, size))


def planned(dataset: "Dataset", asked: Asked, counts: tuple[int, ...], steps: int) -> list[Planned]:
    """The checks that apply to the training streams and the validation of `dataset`."""
    from dew.data.stream import RecordStream
    from dew.testing import position_checks, stream_checks
    from dew.testing.apart import another_process_reads_the_same
    from dew.testing.subject import DIRECT, Subject, varied

    # Each step is built when it is asked for: a program's own workers would start anew for every stream.
    direct = varied(dataset, loading=DIRECT) or dataset
    every = Subject(make=lambda: direct, steps=steps, counts=counts)
    alone = attrs.evolve(every, counts=(1,))
    with closing(_Closing(direct)) as opened:
        stream = opened.stream
        kind = _kind(stream)
        plan = _of_records(stream, alone) if isinstance(stream, RecordStream) else []
    plan += [
        Planned("layout", "every batch has the same fields, dtypes and shapes",
                lambda: stream_checks.batches_have_one_layout(alone)),
        Planned("rows", "a share has its part of the global batch",
                lambda: stream_checks.shares_have_their_rows(every)),
        Planned("draws", "no global random generator is used", lambda: stream_checks.uses_no_global_generator(alone)),
        Planned("loading", "threads and buffers change nothing",
                lambda: stream_checks.loading_changes_nothing(alone, _others(dataset, direct))),
        Planned("processes", "another process reads the same records and draws",
                lambda: another_process_reads_the_same(alone, asked.opened)),
        *(_of_positions(every) if kind == "records" else []),
    ]  # fmt: skip
    if kind not in (None, "records"):
        plan.append(Planned("resume", "a run goes on where it was, on the process count that saved it",
                            lambda: position_checks.resumes_its_own_shard(every)))  # fmt: skip
    return plan + (_of_validation(every) if dataset.val is not None else [])


def _kind(stream: Any) -> str | None:
    """The kind of position that a stream saves; a state of its own is a shard's, and None that it has none."""
    if not hasattr(stream, "get_state"):
        return None
    state = stream.get_state()
    return cast("dict[str, Any]", state).get("kind", "shard") if isinstance(state, dict) else "shard"


def _of_records(stream: Any, alone: "Subject") -> list[Planned]:
    """Checks of the source and of the order."""
    from dew.testing import source_checks, stream_checks

    source, ids = stream.source, [int(record) for record in stream.ids(0)]
    return [
        Planned("records", "a record is the same when it is read again",
                lambda: source_checks.reads_the_same_record_twice(lambda: source, list(dict.fromkeys(ids)))),
        Planned("many", "records read together are those read one by one",
                lambda: source_checks.many_are_the_same_records(lambda: source)),
        Planned("threads", "eight threads read the same records",
                lambda: source_checks.threads_read_the_same(lambda: source)),
        Planned("epochs", "an epoch holds each record once", lambda: stream_checks.epochs_hold_each_record_once(alone)),
        Planned("order", "the order finds a record again", lambda: stream_checks.order_has_an_inverse(alone)),
    ]  # fmt: skip


def _of_positions(every: "Subject") -> list[Planned]:
    """Checks of streams with one order, whatever the process count."""
    from dew.testing import position_checks, stream_checks

    return [
        Planned("tiling", "the shares of every process count are the same step",
                lambda: stream_checks.shares_tile(every)),
        Planned("position", "every process saves the same position", lambda: position_checks.saves_one_position(every)),
        Planned("resume", "a run goes on where it was, on any process count",
                lambda: position_checks.resumes_on_every_count(every)),
        Planned("jumps", "a stream goes back and forward to any position",
                lambda: position_checks.restores_wherever_it_stands(attrs.evolve(every, counts=(1,)))),
        Planned("refusals", "a position of other data is refused",
                lambda: position_checks.refuses_other_positions(every)),
    ]  # fmt: skip


def _of_validation(every: "Subject") -> list[Planned]:
    from dew.testing import validation_checks

    return [
        Planned("validation", "every pass is the same",
                lambda: validation_checks.passes_repeat(every, limit=every.steps)),
        Planned("validation tiling", "the shares of every process count are the same step",
                lambda: validation_checks.shares_of_passes_tile(every, limit=every.steps)),
        Planned("overlap", "validation shares no record with training",
                lambda: validation_checks.shares_nothing_with_training(every)),
    ]  # fmt: skip


def _others(dataset: "Dataset", direct: "Dataset") -> list[tuple[str, Any]]:
    """The dataset as it is where that is another way of reading, and with threads and read-ahead."""
    from dew.data.loading import Loading
    from dew.testing.stream_checks import loading_in_words
    from dew.testing.subject import varied

    ahead = Loading(workers=0, threads=4, read_buffer=3)
    threads = varied(dataset, loading=ahead)
    others = [] if direct is dataset else [("its own loading", dataset)]
    return others if threads is None else [*others, (loading_in_words(ahead), threads)]


class _Closing:
    """A stream of a dataset, to be asked what it is."""

    def __init__(self, dataset: "Dataset") -> None:
        self.stream = dataset_stream(dataset)

    def close(self) -> None:
        """Closes it, where it can be."""
        if hasattr(self.stream, "close"):
            cast("Any", self.stream).close()


def _run(plan: Sequence[Planned], seconds: float, *, quiet: bool) -> Iterator[Outcome]:
    """Runs the checks in turn, each with its share of the time that is left."""
    end = time.monotonic() + seconds
    with jobs_bar(len(plan), quiet=quiet) as begin:
        for number, one in enumerate(plan):
            left = max(0.0, end - time.monotonic()) / (len(plan) - number)
            yield _outcome(one, left, begin(one.name))


def _outcome(planned: Planned, seconds: float, report: Tell) -> Outcome:
    from dew.testing.counterexample import Counterexample, said_by

    started = time.monotonic()
    cases, cut, found = 0, False, None
    check = planned.begin()
    try:
        for held in check:
            cases += held
            report(0.0, f"{cases:,}")
            # The first case may take longer: steps to compare with are read before it.
            cut = time.monotonic() - started > (seconds if cases else 2 * seconds)
            if cut:
                break
    except Counterexample as error:
        found = error
    except Exception as error:
        found = Counterexample(said_by(error))
    finally:
        check.close()
    status = _status(cases, cut=cut, found=found is not None)
    return Outcome(check=planned, status=status, cases=cases, seconds=time.monotonic() - started, found=found)


def _status(cases: int, *, cut: bool, found: bool) -> Status:
    if found:
        return "failed"
    if cut:
        return "held so far" if cases else "not reached"
    return "held" if cases else "does not apply"


def _stages(asked: Asked, steps: int, seconds: float) -> dict[str, Any] | None:
    """Seconds a step in each stage of one thread; None for a stream that reads itself."""
    from dew.cli.measuring import Job, measure

    job = Job(asked=attrs.asdict(asked), setting=None, steps=max(steps, 32), seconds=seconds, stages=True)
    found = measure(job)
    return found if "read" in found else None


def _resume(dataset: "Dataset") -> dict[str, Any] | None:
    """What must match for a saved position to go on, what only warns, and the process counts it goes on with."""
    with closing(_Closing(dataset)) as opened:
        kind = _kind(opened.stream)
        if kind != "records":
            return None if kind is None else {"kind": kind, "must_match": {}, "warns": {}, "processes": None}
        saved: dict[str, Any] = cast("Any", opened.stream).get_state()
    return {
        "kind": "records",
        "must_match": {**saved["order"], "batch": dataset.batch},
        "warns": {"preprocess": saved["preprocess"], **saved["made_by"]},
        "processes": list(_divisors(dataset)),
    }


def _print(answer: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    screen = console()
    made = table(["check", "", "cases", "seconds", ""], right=["cases", "seconds"])
    for outcome in outcomes:
        seconds = f"{outcome.seconds:.1f}"
        row(made, outcome.check.name, outcome.status, outcome.cases, seconds, outcome.check.says,
            style=_STYLES.get(outcome.status))  # fmt: skip
    counts = ", ".join(map(str, answer["processes"]))
    say(screen, f"{answer['source']}: batches of {answer['batch']} rows, {answer['steps']} steps, processes {counts}")
    screen.print(made)
    for line in _lines(answer):
        say(screen, line)
    said: set[str] = set()
    for outcome in outcomes:
        if outcome.found is not None and outcome.found.text not in said:
            said.add(outcome.found.text)
            say(screen, f"{outcome.check.name}: {outcome.found.text}")


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    stages, resume = answer["stages"], answer["resume"]
    if stages is not None:
        parts = {name: stages[name] for name in ("read", "preprocess", "collate")}
        total = sum(parts.values()) or 1e-9
        shown = ", ".join(f"{name} {1000 * part:.2f}" for name, part in parts.items())
        yield f"one thread builds a step in {1000 * total:.2f} ms ({shown}): {answer['batch'] / total:,.0f} records/s"
    if resume is None:
        yield "the stream has no position: a run on it cannot go on where it was"
    elif resume["kind"] == "shard":
        yield "a run goes on only on the process count that saved it, each process from its own position"
    else:
        shown = [f"{part} {_short(value)}" for part, value in resume["must_match"].items()]
        yield f"a run goes on where all of this is the same: {'; '.join(shown)}"
        yield f"a difference of {', '.join(resume['warns'])} warns"
        yield f"it may go on on {_some(resume['processes'])} processes"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."


def _some(counts: Sequence[int]) -> str:
    words = list(map(str, counts))
    return ", ".join(words if len(words) <= 12 else [*words[:11], "...", words[-1]])
