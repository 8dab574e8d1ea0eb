"""What `dew demo` shows while it runs: facts, progress, and the table of record ids. With `--json` it shows nothing."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from dew.cli.output import console, row, table

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.text import Text

    from dew.cli.demo_compare import Compared
    from dew.cli.demo_pool import Taken

Ids: TypeAlias = Sequence[int]

_LABEL: Final = 11
_COLOURS: Final = ("cyan", "magenta")
_ID_WIDTH: Final = 5
_BLOCKS: Final = "▁▂▃▄▅▆▇█"


class Screen:
    """The terminal; `quiet` shows nothing at all."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = console()
        self._console.quiet = quiet

    def line(self, label: str, text: str, style: str = "") -> None:
        """One fact: a label in the left column, and what there is to say."""
        from rich.text import Text

        said = Text(f"{label:<{_LABEL}}", style="bold")
        said.append(text, style=style or "not bold")
        self._console.print(said, soft_wrap=True)

    def gap(self) -> None:
        """An empty line."""
        self._console.print()

    @contextmanager
    def runs(self, steps: int) -> Generator["Runs"]:
        """Progress bars, one for each set of processes that takes steps of a run of `steps`."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        with Progress(
            TextColumn(f"[bold]{{task.description:<{_LABEL + 2}}}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            console=self._console,
            disable=self._console.quiet,
        ) as bars:
            yield Runs(bars, steps)

    def ids(self, shown: Sequence["Compared"]) -> None:
        """Some steps: the records of the killed run, in the colours of its processes, beside those of the whole one."""
        from rich.text import Text

        width = max(2, (self._console.width - 42) // (2 * _ID_WIDTH))
        made = table(["step"], right=["step"])
        for name in ("processes", "the killed run", "never stopped", ""):
            made.add_column(name, no_wrap=True)
        for step in shown:
            verdict = f"{len(step.different)} differ" if step.different else "same"
            count = step.killed.processes
            row(
                made,
                step.killed.step,
                _in_turn([f"{at} " for at in range(count)], count),
                _ids(step.ids.tolist(), count, width),
                _ids(step.whole_ids.tolist(), 1, width),
                Text(verdict, style="bold red" if step.different else "green"),
            )
        self._console.print(made)

    def curve(self, losses: Sequence[float], width: int = 24) -> str:
        """The losses as a line of blocks, `->` where the terminal's encoding has none."""
        if not self._console.encoding.lower().startswith("utf"):
            return "->"
        picked = [losses[at * (len(losses) - 1) // max(width - 1, 1)] for at in range(min(width, len(losses)))]
        low, high = min(picked), max(picked)
        return "".join(_BLOCKS[round((loss - low) / max(high - low, 1e-9) * (len(_BLOCKS) - 1))] for loss in picked)


class Runs:
    """The bars; `begin` adds one."""

    def __init__(self, bars: "Progress", steps: int) -> None:
        self._bars = bars
        self._steps = steps

    def begin(self, label: str) -> "RunBar":
        """A bar for processes that are being started."""
        return RunBar(self._bars, self._bars.add_task(label, total=self._steps, said="starting"))


class RunBar:
    """One bar; called with every step."""

    def __init__(self, bars: "Progress", task: "TaskID") -> None:
        self._bars = bars
        self._task = task
        self._first: int | None = None
        self._said = ""

    def __call__(self, taken: "Taken") -> None:
        """One step more."""
        if self._first is None:
            self._first = taken.step
        begun = f"from step {self._first}, " if self._first else ""
        self._said = f"{begun}loss {taken.loss:.2f}"
        self._bars.update(self._task, completed=taken.step + 1, said=self._said)

    def killed(self) -> None:
        """Its processes are no more."""
        self._bars.update(self._task, said=f"{self._said}   [red]killed[/red]")


def _ids(ids: Ids, processes: int, shown: int) -> "Text":
    """The first ids of a step, each in the colour of the process that read it."""
    words = [f"{record:>{_ID_WIDTH}}" for record in ids[:shown]]
    return _in_turn(words, processes).append(" ..." if len(ids) > shown else "")


def _in_turn(words: Sequence[str], processes: int) -> "Text":
    """Words in the colours of the processes, which take turns as the rows of a batch do."""
    from rich.text import Text

    text = Text()
    for at, word in enumerate(words):
        text.append(word, style=_COLOURS[at % processes] if processes > 1 else "")
    return text
