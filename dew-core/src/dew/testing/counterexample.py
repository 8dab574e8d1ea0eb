"""What a check finds: the first case in which a promise does not hold.

A check is a generator. It yields True after each case that held, and False on the way to one, so that whoever runs it
can count, show progress or stop in time; it raises the first `Counterexample`. The suites and `dew check` run the same
checks.
"""

from collections.abc import Generator, Iterable
from typing import Any, TypeAlias

Check: TypeAlias = Generator[bool]
"""Yields True once a case that held, False where only time has passed; raises `Counterexample`."""


class Counterexample(AssertionError):
    """A promise does not hold.

    Attributes:
        what: what was expected and what was found.
        step, place: where; None where the check is not about one.
        records: the records concerned, by their number in the source.
    """

    def __init__(
        self, what: str, *, step: int | None = None, place: int | None = None, records: Iterable[int] = ()
    ) -> None:
        self.what = what
        self.step = step
        self.place = place
        self.records = tuple(int(record) for record in records)
        super().__init__(self.text)

    @property
    def text(self) -> str:
        """One line: what, and where."""
        where = [f"{name} {value}" for name, value in (("step", self.step), ("place", self.place)) if value is not None]
        if self.records:
            shown = " ".join(map(str, self.records[:8])) + (" ..." if len(self.records) > 8 else "")
            where.append(f"record{'s' if len(self.records) > 1 else ''} {shown}")
        return f"{self.what} ({', '.join(where)})" if where else self.what

    def to_json(self) -> dict[str, Any]:
        """`{"what", "step", "place", "records"}`."""
        return {"what": self.what, "step": self.step, "place": self.place, "records": list(self.records)}


def said_by(error: Exception) -> str:
    """An error and its notes, in one line."""
    notes = [f"({note})" for note in getattr(error, "__notes__", ())]
    return " ".join(" ".join([f"{type(error).__name__}: {error}", *notes]).split())


def passes(check: Check) -> int:
    """Runs a check to its end; returns how many cases it looked at.

    Raises:
        Counterexample: the first case that does not hold.
    """
    return sum(check)
