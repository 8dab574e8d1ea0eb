"""The data's positions in a checkpoint: a table with one row for each process that wrote it.

Rows of the records kind are one position, the same in every process, and continue on any number of them. Rows of the
shard kind belong to one share each and continue only on as many processes as wrote them. Everything here is plain JSON.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, cast

import attrs

from dew.data.dataset import DataPartition
from dew.data.errors import CheckpointError, PositionError, PositionMismatchError
from dew.data.position import RecordPosition, ShardPosition, State, position_from_json

_FORMAT: Final = 1


def row_of(state: object, *, process: int, processes: int, partition: DataPartition) -> State:
    """The row of `process`: a position of Dew as it is, any other state wrapped with the share it belongs to.

    Raises:
        PositionError: the state is not a JSON value, or a damaged position of Dew.
    """
    if isinstance(state, Mapping):
        fields = cast("Mapping[str, Any]", state)
        if fields.get("kind") in ("records", "shard"):
            return position_from_json(fields).to_json()
    shard = ShardPosition(partition.index, partition.count, state).to_json()
    return {"kind": "shard", "processes": processes, "process": process, **shard}


@attrs.frozen
class PositionTable:
    """One row for each process of the run that saved it, by process index.

    Raises:
        PositionMismatchError: processes stand at different places of one order; names both.
        PositionError: rows of different kinds, or one that is no position.
    """

    rows: tuple[State, ...]

    def __attrs_post_init__(self) -> None:
        first = _position(self.rows[0], 0, len(self.rows))
        for process, row in enumerate(self.rows[1:], 1):
            if row != self.rows[0]:
                self._check_beside(first, process, row)

    @property
    def kind(self) -> str:
        """`"records"` or `"shard"`."""
        return self.rows[0]["kind"]

    def to_json(self) -> State:
        """JSON values: each distinct row once, which of them each process has, and a digest over both."""
        texts = [json.dumps(row, sort_keys=True) for row in self.rows]
        numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        held = {"positions": [json.loads(text) for text in numbers], "rows": [numbers[text] for text in texts]}
        return {"format": _FORMAT, **held, "digest": _digest(held)}

    @classmethod
    def from_text(cls, text: str, where: str) -> "PositionTable":
        """The table that `to_json` gave, from its text; `where` is for messages.

        Raises:
            CheckpointError: it is cut, altered, or of another format.
            PositionMismatchError: its processes stood at different places.
        """
        try:
            read: Any = json.loads(text)
            form, held = read["format"], {"positions": read["positions"], "rows": read["rows"]}
            if form == _FORMAT and read["digest"] != _digest(held):
                raise PositionError("its digest does not fit its content")
            if form == _FORMAT:
                return cls(tuple(held["positions"][row] for row in held["rows"]))
        except PositionMismatchError:
            raise
        except (ValueError, TypeError, LookupError) as error:
            raise CheckpointError(
                f"the data position in {where} is damaged: {error}; restore another step, or restart the data with "
                "restart_data=True"
            ) from error
        raise CheckpointError(
            f"the data position in {where} has the format {form!r}, this release of Dew reads {_FORMAT}: "
            "restore it with the release that wrote it, or restart the data with restart_data=True"
        )

    def state_for(self, partition: DataPartition, *, process: int, processes: int) -> Any:
        """What the iterator of `process`, which reads `partition`, is to be set to.

        Raises:
            PositionMismatchError: a shard position, and another number of processes or shares; names both.
        """
        if self.kind == "records":
            return self.rows[0]
        if processes != len(self.rows):
            raise PositionMismatchError(
                f"this position was saved by {len(self.rows)} processes, a state for each, and cannot continue on "
                f"{processes}: a state counts inside one shard; run {len(self.rows)} processes, or restart the data "
                "with restart_data=True",
                part="processes",
                saved=len(self.rows),
                current=processes,
            )
        # Devices may be dealt out anew: a state belongs to its share, whichever process reads it now.
        own = self.rows[process]
        row = next((row for row in (own, *self.rows) if row["index"] == partition.index), own)
        position = _position(row, row.get("process", process), processes)
        assert isinstance(position, ShardPosition)
        position.check_share(partition.index, partition.count)
        return position.state if "process" in row else row

    def _check_beside(self, first: RecordPosition | ShardPosition, process: int, row: State) -> None:
        """Whether the row of `process` may stand in one table with that of process 0, which differs from it."""
        position, zero = _position(row, process, len(self.rows)), self.rows[0]
        if type(position) is not type(first):
            raise PositionError(
                f"process 0 has a position of the kind {zero['kind']!r}, process {process} one of the kind "
                f"{row['kind']!r}; all processes must read the same dataset"
            )
        if isinstance(position, ShardPosition):
            return
        part = next(name for name in (*zero, *row) if zero.get(name) != row.get(name))
        raise PositionMismatchError(
            f"the processes of one run stand at different places: {part} is {zero.get(part)!r} in process 0 and "
            f"{row.get(part)!r} in process {process}; all must have taken the same steps of the same data",
            part=part,
            saved=zero.get(part),
            current=row.get(part),
        )


def _position(row: Any, process: int, processes: int) -> RecordPosition | ShardPosition:
    """The position in a row; of another iterator's state too, which says whose it is."""
    if not isinstance(row, Mapping) or "process" not in row:
        return position_from_json(cast("object", row))
    fields = dict(cast("Mapping[str, Any]", row))
    said = fields.pop("process"), fields.pop("processes", None)
    if said != (process, processes):
        raise PositionError(f"row {process} of {processes} says that it belongs to process {said[0]} of {said[1]}")
    return position_from_json(fields)


def _digest(held: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()
