"""What the readers of all kinds of files share: a piece of an input, and a row of it."""

from typing import TypeAlias

import attrs


@attrs.frozen
class Piece:
    """A part of one input.

    Args:
        input: its number in the plan.
        start, stop: bytes of a plain file of lines, row groups of a parquet file; 0 and 0 elsewhere.
    """

    input: int
    start: int = 0
    stop: int = 0


@attrs.frozen
class Refused:
    """A row that is no document, and why."""

    why: str


Row: TypeAlias = "tuple[int, str | Refused | None]"
"""The number of a row with its text, with why it is no document, or with None for a blank line."""
