"""What `dew demo` shows while it runs: facts, progress, and the table of record ids. With `--json` it shows nothing."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from dew.cli.output import console, row, table

if TYPE_CHECKING:
    from rich.text import Text

    from dew.cli.demo_training import Compared, Taken

OnStep: TypeAlias = Callable[[float, float], None]
"""Called after every step with its loss and the share of time so far spent waiting for data."""

_LABEL: Final = 11
_COLOURS: Final = ("cyan", "magenta")
_SHOWN_STEPS: Final = 3
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
    def training(self, label: str, steps: int) -> Generator[OnStep]:
        """A progress bar over `steps` steps, with the loss and the share of time spent waiting for data."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        with Progress(
            TextColumn(f"[bold]{label:<{_LABEL - 1}}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            console=self._console,
            disable=self._console.quiet,
        ) as bars:
            bar = bars.add_task(label, total=steps, said="")

            def on_step(loss: float, wait_share: float) -> None:
                bars.update(bar, advance=1, said=f"loss {loss:.2f}   waiting for data {wait_share:.1%}")

            yield on_step

    def ids(self, compared: Sequence["Compared"], partitions: int) -> None:
        """The first steps after the resume, and the last: records of the resumed run beside those of a whole one."""
        from rich.text import Text

        shown = max(2, (self._console.width - 26) // (2 * _ID_WIDTH))
        made = table(["step"], right=["step"])
        made.add_column(_in_turn([f" partition {at}" for at in range(partitions)], partitions), no_wrap=True)
        made.add_column(_in_turn([" never stopped"], 1), no_wrap=True)
        made.add_column()
        for pair in [*compared[:_SHOWN_STEPS], *compared[_SHOWN_STEPS:][-1:]]:
            verdict = f"{len(pair.different)} differ" if pair.different else "same"
            row(
                made,
                pair.resumed.step,
                _ids(pair.resumed, partitions, shown),
                _ids(pair.whole, 1, shown),
                Text(verdict, style="bold red" if pair.different else "green"),
            )
        self._console.print(made)

    def curve(self, losses: Sequence[float], width: int = 24) -> str:
        """The losses as a line of blocks, empty where the terminal's encoding has none."""
        if not self._console.encoding.lower().startswith("utf"):
            return ""
        picked = [losses[at * (len(losses) - 1) // max(width - 1, 1)] for at in range(min(width, len(losses)))]
        low, high = min(picked), max(picked)
        return "".join(_BLOCKS[round((loss - low) / max(high - low, 1e-9) * (len(_BLOCKS) - 1))] for loss in picked)


def _ids(taken: "Taken", partitions: int, shown: int) -> "Text":
    """The first ids of a step, each in the colour of the partition that read it."""
    words = [f"{record:>{_ID_WIDTH}}" for record in taken.ids[:shown]]
    return _in_turn(words, partitions).append(" ..." if len(taken.ids) > shown else "")


def _in_turn(words: Sequence[str], partitions: int) -> "Text":
    """Words in the colours of the partitions, which take turns as the rows of a batch do."""
    from rich.text import Text

    text = Text()
    for at, word in enumerate(words):
        text.append(word, style=_COLOURS[at % partitions] if partitions > 1 else "")
    return text
