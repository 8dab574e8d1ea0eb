"""What is wrong with a collection as a whole: counted by kind, refused at open with names, or left out and counted."""

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from dew.data.errors import OptionsError, SourceError

Missing: TypeAlias = Literal["error", "drop"]
"""What becomes of a file without a row, a row without a file, and the like: refused, or left out and counted."""

SHOWN: Final = 5
"""How many names a message lists."""


class Kind(NamedTuple):
    """A kind of problem in words, for one file and for several."""

    one: str
    many: str

    def counted(self, count: int) -> str:
        """`3 files without a row`."""
        return f"{count} {self.one if count == 1 else self.many}"


NO_ROW: Final = Kind("file without a row in the metadata", "files without a row in the metadata")
NO_FILE: Final = Kind("row without a file", "rows without a file")
TWICE: Final = Kind("row that names a file named before", "rows that name a file named before")
NO_CAPTION: Final = Kind("file without a caption", "files without a caption")
NO_LABEL: Final = Kind("file without a label", "files without a label")
STRAY_CAPTION: Final = Kind("caption file without its file", "caption files without their file")
TWO_CAPTIONS: Final = Kind("file with two caption files", "files with two caption files")
BROKEN_LINK: Final = Kind("link that leads nowhere", "links that lead nowhere")
BAD_NAME: Final = Kind("name that is not UTF-8", "names that are not UTF-8")


FILES: Final = Kind("file", "files")
SHARDS: Final = Kind("tar shard", "tar shards")
CLASSES: Final = Kind("class", "classes")


class Problems:
    """Problems found so far, in the order of their kinds' first appearance."""

    def __init__(self) -> None:
        self._found: dict[Kind, list[str]] = {}

    def add(self, kind: Kind, names: Iterable[str]) -> None:
        """More of one kind."""
        if names := list(names):
            self._found.setdefault(kind, []).extend(names)

    def __bool__(self) -> bool:
        return bool(self._found)

    def texts(self) -> list[str]:
        """A sentence for each kind, with the first five names."""
        return [f"{kind.counted(len(names))}: {listed(names)}" for kind, names in self._found.items()]

    def counts(self) -> dict[str, int]:
        """Kind -> how many."""
        return {kind.many: len(names) for kind, names in self._found.items()}

    def settle(self, missing: Missing, where: str, advice: str = "") -> str:
        """What a description says of them: nothing where there are none, else that they were dropped, and how many.

        Raises:
            SourceError: there are some, and `missing` is "error".
        """
        check_missing(missing)
        if not self._found:
            return ""
        if missing == "error":
            found = "; ".join(self.texts())
            raise SourceError(
                f"{where} is not whole: {found}. {advice}Correct that, or leave them out with missing='drop'"
            )
        return ", dropped: " + ", ".join(kind.counted(len(names)) for kind, names in self._found.items())


def check_missing(missing: str) -> None:
    """Refuses another word than those of `Missing`."""
    if missing not in ("error", "drop"):
        raise OptionsError(f"missing must be 'error' or 'drop', got {missing!r}")


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(repr(name) for name in names[:SHOWN]) + more
