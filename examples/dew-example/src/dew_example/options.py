"""The options of the provider. This module imports nothing that reads data, so that options are cheap to make."""

import attrs


@attrs.frozen(kw_only=True)
class ExampleOptions:
    """How the tables of a SQLite file are read.

    Args:
        columns: the columns of a record; empty: all of the table.
        val_split: the table to validate on when `load` names none.
    """

    columns: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    val_split: str | None = None
