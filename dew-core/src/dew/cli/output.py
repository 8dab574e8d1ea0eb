"""What commands print: tables for people, one JSON value for scripts."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")


def print_json(value: Any) -> None:
    """One JSON value on stdout; a number that JSON cannot hold is refused rather than written as `NaN`."""
    click.echo(json.dumps(value, allow_nan=False))


@contextlib.contextmanager
def stdout_kept_clean() -> Generator[None]:
    """What is printed meanwhile goes to stderr, also by threads, child processes and code that is not Python.

    stdout may be one JSON value, and a user's own functions print whenever records are read.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # one of the two is closed
            sys.stdout.flush()
            kept = os.dup(1)
            stack.callback(os.close, kept)
            os.dup2(2, 1)
            stack.callback(os.dup2, kept, 1)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


class Tell(Protocol):
    """Tells a bar how much of a job is done, 0 to 1, and what to say beside its name."""

    def __call__(self, part: float, words: str = "", /) -> None:
        """Moves the bar."""
        ...


@contextlib.contextmanager
def jobs_bar(jobs: int, *, quiet: bool) -> Generator[Callable[[str], Tell]]:
    """A bar on stderr over all jobs, on a terminal only: `begin(name)` begins the next, and gives its `tell`."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    screen = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn(), console=screen, transient=True,
        disable=quiet or not screen.is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task("", total=jobs)
        begun = 0

        def begin(name: str) -> Tell:
            nonlocal begun
            first, begun = begun, begun + 1
            bar.update(task, completed=first, description=name)

            def tell(part: float, words: str = "", /) -> None:
                bar.update(task, completed=first + min(part, 1.0), description=f"{name} {words}".rstrip())

            return tell

        yield begin


def console() -> "Console":
    """The console on stdout; text is printed as it is, since names of files and fields may hold brackets."""
    from rich.console import Console

    return Console(highlight=False, markup=False)


def say(screen: "Console", text: str) -> None:
    """A line of text, wrapped by the terminal alone, so that it can be copied and searched whole."""
    screen.print(text, soft_wrap=True)


def table(columns: Iterable[str], *, right: Sequence[str] = ()) -> "Table":
    """An empty table; the columns named in `right` are aligned to the right and never wrapped."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        numbers = name in right
        made.add_column(Text(name), justify="right" if numbers else "left", no_wrap=numbers, overflow="fold")
    return made


def row(target: "Table", *cells: object, style: str | None = None) -> None:
    """Adds a row of plain text; a cell that is already rich text stays as it is."""
    from rich.text import Text

    target.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells), style=style)


def listed(numbers: Iterable[int], most: int | None = None) -> str:
    """`"4 8 15 ..."`: the numbers with spaces between, cut after `most`."""
    words = [str(int(number)) for number in numbers]
    return " ".join(words if most is None or len(words) <= most else [*words[:most], "..."])
