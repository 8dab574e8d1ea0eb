"""Progress bars on standard error; they appear only on a terminal, and only once there is something to tell."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def index_bar(*, quiet: bool = False) -> "Generator[Callable[[int, int, int], None]]":
    """A bar for the index of tar shards: `tell(bytes done, bytes in all, members found)`."""
    with _Bar("index", quiet) as bar:
        yield lambda done, total, members: bar.tell(done, total, f"{members:,} members")


@contextmanager
def files_bar(what: str, *, quiet: bool = False) -> "Generator[Callable[[int, int, int], None]]":
    """A bar over files: `tell(files done, files in all, bad ones found)`."""
    with _Bar(what, quiet) as bar:
        yield lambda done, total, bad: bar.tell(done, total, f"{done:,} of {total:,} files, {bad:,} bad")


class _Bar:
    def __init__(self, what: str, quiet: bool) -> None:
        self._what, self._quiet = what, quiet
        self._progress: Progress | None = None

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def tell(self, done: int, total: int, words: str) -> None:
        """Moves the bar."""
        if self._quiet:
            return
        if self._progress is None:
            self._progress = _bar()
            self._progress.add_task(self._what, total=None, words="")
            self._progress.start()
        self._progress.update(self._progress.task_ids[0], completed=done, total=total, words=words)


def _bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    screen = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[words]}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=screen, disable=not screen.is_terminal)
