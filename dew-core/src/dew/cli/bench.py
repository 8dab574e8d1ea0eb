"""`dew bench SOURCE`: how fast a source can be read on this machine, by which `Loading`, and where the time goes."""

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from typing import IO, Any, Final, cast

import attrs
import click

from dew.cli.opening import Asked, dataset_stream, source_options
from dew.cli.output import Tell, console, jobs_bar, print_json, row, say, table
from dew.data.errors import OptionsError, SourceError

_MOST_THREADS, _MOST_WORKERS = 16, 32
_NEAR: Final = 0.95  # of the best rate: the cheaper setting is as good, within what a measurement can tell
_HIDDEN: Final = 0.05  # share of time that a run may wait for data
_USE, _DEFAULT = ">", "*"  # marks of two rows
_CHILD: Final = "import sys; sys.path[:] = {path!r}; from dew.cli.measuring import main; main()"


@attrs.frozen(order=True)
class Setting:
    """What of `Loading` is tried, in the order of what it costs."""

    workers: int
    threads: int
    read_buffer: int

    def __str__(self) -> str:
        return f"workers={self.workers}, threads={self.threads}, read_buffer={self.read_buffer}"

    def code(self) -> str:
        """As a user writes it."""
        return f"Loading({self})"


@attrs.frozen(kw_only=True)
class Tried:
    """A setting, and what was measured or what went wrong; a setting of None is a stream that reads itself."""

    setting: Setting | None
    result: dict[str, Any] | None
    error: str | None = None

    @property
    def rate(self) -> float:
        """Steps a second; 0 where it failed."""
        return 0.0 if self.result is None else self.result["steps_per_second"]


def _numbers(_context: object, _parameter: object, value: str | None) -> tuple[int, ...] | None:
    """`0,1,2` as numbers."""
    if value is None:
        return None
    words = value.split(",")
    if not all(word.isdecimal() and word.isascii() for word in words):
        raise click.BadParameter(f"numbers with commas between, such as 0,1,2, got {value!r}")
    return tuple(dict.fromkeys(map(int, words)))


@click.command(short_help="How fast a source can be read here, and by which Loading.")
@source_options
@click.option("--seconds", type=click.FloatRange(min=0.0), default=3.0, show_default=True, help="Most time a setting.")
@click.option("--steps", type=click.IntRange(min=1), help="Most steps a setting.")
@click.option("--compute", type=click.FloatRange(min=0.0), default=0.0, metavar="MS",
              help="What a step of your run takes, in milliseconds: loading may hide behind it.")  # fmt: skip
@click.option("--workers", callback=_numbers, metavar="N,...", help="Worker processes to try.")
@click.option("--threads", callback=_numbers, metavar="N,...", help="Threads to try.")
@click.option("--read-buffer", "buffers", callback=_numbers, metavar="N,...", help="Steps read ahead to try.")
def bench(
    source: str,
    batch: int | None,
    split: str,
    seed: int,
    pairs: tuple[str, ...],
    as_json: bool,
    seconds: float,
    steps: int | None,
    compute: float,
    workers: tuple[int, ...] | None,
    threads: tuple[int, ...] | None,
    buffers: tuple[int, ...] | None,
) -> None:
    """How fast SOURCE can be read here: a process for each setting of Loading, on the whole global batch.

    SOURCE is written as for dew.data.load ("tokens/my-corpus"), or names a dataset of your own program
    ("train.py:data"). The settings are picked for this machine, or are all of --workers x --threads x --read-buffer.
    """
    asked = Asked(source=source, batch=batch, split=split, seed=seed, pairs=pairs)
    opened = _opened(asked)
    settings: Sequence[Setting | None] = [None]
    if opened.loadable:
        settings = grid(opened.cores, opened.whole_steps, workers, threads, buffers)
    elif (workers, threads, buffers) != (None, None, None):
        raise OptionsError(f"{source} is read as a stream that reads itself, so no setting of Loading applies to it")
    runner = _Runner(asked, steps=steps, seconds=seconds, compute=compute / 1000)
    with jobs_bar(len(settings) + opened.loadable, quiet=as_json) as begin:
        stages = runner.stages(begin("where a step's time goes")) if opened.loadable else None
        tried = [runner.tried(setting, begin(str(setting or "as it is"))) for setting in settings]
    if not any(one.result for one in tried):
        raise SourceError(f"{source} could not be read by any setting: {tried[0].error}")
    answer = _answer(asked, opened, tried, stages, compute)
    if as_json:
        print_json(answer)
    else:
        _print(answer)


@attrs.frozen(kw_only=True)
class _Opened:
    """What the parent learns of the source before anything is measured."""

    batch: int
    cores: int
    loadable: bool
    whole_steps: bool
    default: Setting
    stored_rows: bool


def _opened(asked: Asked) -> _Opened:
    from dew.data.loading import Loading, cores_here
    from dew.data.stream import RecordStream

    with asked.opened() as dataset:
        stream = dataset_stream(dataset)
        whole = loadable = False
        if isinstance(stream, RecordStream):
            loadable = True
            drawn = hasattr(stream.source, "drawn")
            whole = stream.preprocess is None and not drawn and hasattr(stream.source, "take")
        if hasattr(stream, "close"):
            cast("Any", stream).close()
        picked = Loading().picked(whole_steps=whole)
        return _Opened(
            batch=dataset.batch,
            cores=cores_here(),
            loadable=loadable,
            whole_steps=whole,
            default=Setting(picked.workers, picked.threads, Loading().read_buffer),
            stored_rows=asked.stored_rows,
        )


def grid(
    cores: int,
    whole_steps: bool,
    workers: Sequence[int] | None = None,
    threads: Sequence[int] | None = None,
    buffers: Sequence[int] | None = None,
) -> list[Setting]:
    """The settings to try, cheapest first: those asked for in all combinations, else some for a machine of `cores`."""
    if workers is not None or threads is not None or buffers is not None:
        chosen = product(workers or (0,), threads or (1,), buffers or (2,))
        return sorted(Setting(*numbers) for numbers in chosen)
    pools = {1} if whole_steps else {1, 2, 4, cores}
    inside = [Setting(0, threads, 2) for threads in pools if threads <= min(max(2, cores), _MOST_THREADS)]
    counts = {1, cores // 4, cores // 2, cores - 1, cores}
    outside = [Setting(workers, 1, 2) for workers in counts if 0 < workers <= _MOST_WORKERS]
    return sorted({Setting(0, 1, 0), *inside, *outside})


class _Runner:
    """Runs jobs, each in a process of its own."""

    def __init__(self, asked: Asked, *, steps: int | None, seconds: float, compute: float) -> None:
        self._job = {"asked": attrs.asdict(asked), "steps": steps, "seconds": seconds, "compute": compute}

    def tried(self, setting: Setting | None, report: Tell) -> Tried:
        """One setting, measured."""
        numbers = None if setting is None else attrs.asdict(setting)
        result, error = self._run({**self._job, "setting": numbers}, report)
        return Tried(setting=setting, result=result, error=error)

    def stages(self, report: Tell) -> dict[str, float] | None:
        """Seconds a step in each stage, None where the steps cannot be built."""
        result, _ = self._run({**self._job, "setting": None, "compute": 0.0, "stages": True}, report)
        return result

    def _run(self, job: dict[str, Any], report: Tell) -> tuple[dict[str, Any] | None, str | None]:
        with tempfile.TemporaryFile() as said:
            child = subprocess.Popen(
                [sys.executable, "-c", _CHILD.format(path=sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
            with child:
                try:
                    result, error = _conversation(child, job, report)
                    code = child.wait()
                except BaseException:
                    child.kill()
                    raise
            if result is None and error is None:
                error = _death(code, said)
            return result, error


def _conversation(
    child: "subprocess.Popen[str]", job: dict[str, Any], report: Tell
) -> tuple[dict[str, Any] | None, str | None]:
    """Hands the job over and listens to the end; neither a result nor an error where the process died."""
    assert child.stdin is not None
    assert child.stdout is not None
    result = error = None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps(job))
        child.stdin.close()
    for line in child.stdout:
        told = json.loads(line)
        report(told.get("done", 1.0))
        result, error = told.get("result"), told.get("error")
    return result, error


def _death(code: int, said: IO[bytes]) -> str:
    """Why a process ended without an answer: its signal, or the last line that it wrote."""
    if code < 0:
        hint = "; out of memory is the usual reason" if -code == signal.SIGKILL else ""
        return f"its process was ended by {signal.Signals(-code).name}{hint}"
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()
    return f"its process ended with exit code {code}" + (f": {lines[-1]}" if lines else "")


def recommended(tried: Sequence[Tried], compute: float) -> Tried:
    """The cheapest setting that is as fast as any; where a step computes, the cheapest that it can hide.

    Without read-ahead nothing is hidden, so that such a setting is advised only where `compute` says it is cheap beside
    the steps, or where there is no other.
    """
    usable = [one for one in tried if one.result is not None]
    if hidden := [one for one in usable if compute and one.result and one.result["wait_share"] <= _HIDDEN]:
        return min(hidden, key=_cost)
    usable = [one for one in usable if one.setting and one.setting.read_buffer] or usable
    best = max(one.rate for one in usable)
    return min((one for one in usable if one.rate >= _NEAR * best), key=_cost)


def _cost(tried: Tried) -> tuple[int, int, int]:
    """Processes before threads before memory."""
    return (0, 0, 0) if tried.setting is None else attrs.astuple(tried.setting)


def _answer(
    asked: Asked, opened: _Opened, tried: Sequence[Tried], stages: dict[str, float] | None, compute: float
) -> dict[str, Any]:
    use = recommended(tried, compute)
    assert use.result is not None
    settings = [
        {
            **({} if one.setting is None else attrs.asdict(one.setting)),
            **(one.result or {}),
            "error": one.error,
            "default": one.setting == opened.default,
            "use": one is use and one.setting is not None,
        }
        for one in tried
    ]
    return {
        "source": asked.source,
        "split": asked.split,
        "batch": opened.batch,
        "cores": opened.cores,
        "compute_ms": compute,
        "stored_rows": opened.stored_rows,
        "settings": settings,
        "stages": None if stages is None else {name: stages[name] for name in ("read", "preprocess", "collate")},
        "use": None
        if use.setting is None
        else {
            **attrs.asdict(use.setting),
            "code": use.setting.code(),
            "default": use.setting == opened.default,
            "steps_per_second": use.rate,
            "wait_seconds_per_step": use.result["wait_seconds_per_step"],
        },
    }


def _print(answer: dict[str, Any]) -> None:
    screen = console()
    numbers = ["workers", "threads", "ahead", "steps/s", "rows/s", "MB/s", "first", "wait", "memory"]
    made = table(["", *numbers], right=["", *numbers])
    made.padding = (0, 1, 0, 0)  # nine numbers fit into 80 columns
    for one in answer["settings"]:
        setting = [one.get(name, "-") for name in ("workers", "threads", "read_buffer")]
        cells = [""] * 6 if one["error"] is not None else _cells(one)
        style = "red" if one["error"] is not None else "bold" if one["use"] else None
        row(made, _USE if one["use"] else _DEFAULT if one["default"] else "", *setting, *cells, style=style)
    say(screen, f"{answer['source']}: batches of {answer['batch']} rows on {answer['cores']} cores")
    screen.print(made)
    for line in _lines(answer):
        say(screen, line)


def _cells(one: dict[str, Any]) -> list[str]:
    peak = one["peak_bytes"]
    return [
        _number(one["steps_per_second"]),
        _number(one["records_per_second"]),
        _number(one["bytes_per_second"] / 1e6),
        _seconds(one["open_seconds"] + one["first_batch_seconds"]),
        _seconds(one["wait_seconds_per_step"]),
        "" if peak is None else f"{peak / 2**20:,.0f} MiB",
    ]


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    for one in answer["settings"]:
        if one["error"] is not None:
            yield f"workers={one.get('workers')}, threads={one.get('threads')} failed: {one['error']}"
    if stages := answer["stages"]:
        whole = sum(stages.values()) or 1.0
        parts = ", ".join(f"{name} {_seconds(seconds)} ({seconds / whole:.0%})" for name, seconds in stages.items())
        yield f"One thread builds a step in {_seconds(whole)}: {parts}; collate is all that is neither of the others."
    if answer["stored_rows"]:
        yield "Rows were read as they are stored: what your preprocess costs is seen with FILE.py:NAME."
    if use := answer["use"]:
        compute = answer["compute_ms"]
        beside = f" beside {compute:g} ms of compute" if compute else ""
        marks = f"{_USE} is the cheapest of the fastest"
        if any(one["default"] for one in answer["settings"]):
            marks += f", {_DEFAULT} is what Loading() picks here" if not use["default"] else " and what Loading() picks"
        yield f"{marks}; with it a run waits {_seconds(use['wait_seconds_per_step'])} for each step{beside}:"
        yield f"    loading={use['code']}"
        if not compute:
            yield "With --compute MS, what a step of your run takes, it says what would be left to wait."


def _number(value: float) -> str:
    """Three digits: `12.3`, `850`, `6.38k`, `102k`, `1.2M`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _seconds(seconds: float) -> str:
    """`1.2 s`, `340 ms`, `23 us`."""
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
