"""`dew peek --stats`: what a source counts of itself, as tables with bars."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from dew.cli.look import name_text
from dew.cli.output import row, table
from dew.data.errors import OptionsError, SourceError

if TYPE_CHECKING:
    from rich.console import Console

    from dew.data.dataset import Dataset

Statistics: TypeAlias = Mapping[str, Mapping[str, int]]
"""Table -> label -> count."""

_BAR: Final = 32  # letters


def statistics_of(dataset: "Dataset", asked: str) -> Statistics:
    """What `source.statistics()` says; `asked` is the source as it was written.

    Raises:
        OptionsError: the source has no such method, or is a stream without random access.
        SourceError: it returns something else than tables of counts.
    """
    from dew.cli.opening import dataset_stream

    stream: Any = dataset_stream(dataset)
    source = getattr(stream, "source", None)
    if hasattr(stream, "close"):
        stream.close()
    own = getattr(source, "statistics", None)
    if own is None:
        what = "a stream without random access" if source is None else type(source).__name__
        raise OptionsError(
            f"--stats was given, and {asked} has none: {what} has no method statistics(); "
            "image and video sources have one"
        )
    return _checked(own(), type(source).__name__)


def _checked(found: Any, name: str) -> Statistics:
    wanted = f"{name}.statistics() must return a mapping of table name to a mapping of label to count"
    if not isinstance(found, Mapping):
        raise SourceError(f"{wanted}, got {type(found).__name__}")
    for title, counts in cast("Mapping[Any, Any]", found).items():
        if not isinstance(counts, Mapping) or not all(
            isinstance(label, str) and isinstance(count, int) for label, count in cast("Any", counts).items()
        ):
            raise SourceError(f"{wanted}, got {counts!r} in {title!r}")
    return cast("Statistics", found)


def print_statistics(screen: "Console", statistics: Statistics) -> None:
    """A table for each, longest bar for the greatest count."""
    for title, counts in statistics.items():
        made = table([title, "count", ""], right=["count"])
        most = max(counts.values(), default=0) or 1
        for label, count in counts.items():
            row(made, name_text(label), f"{count:,}", "█" * round(_BAR * count / most))
        screen.print(made)
