"""Where a run stands, and what must match for it to go on.

The position of a record stream is one integer, the place of the next record in the endless order. What is saved beside
it says which order over which data that place belongs to, and by which segments places became steps: a segment begins
at the start of the run, at a `skip` past a bad stretch, and at a `rebatch`. Every process saves the same position.
"""

import bisect
import itertools
import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import attrs

from dew.data import checks
from dew.data.errors import (
    DewWarning,
    OptionsError,
    OptionsTypeError,
    PositionError,
    PositionMismatchError,
)
from dew.data.schedule import FixedBatch, Schedule, schedule_from_json, whole_steps

State: TypeAlias = dict[str, Any]
"""A position as JSON values."""

_ABSENT: Final = "(absent)"

# Places are int64; this leaves room for the steps after a position.
MAX_PLACE: Final = (1 << 63) - (1 << 40)

# Without these two a place has no meaning, so no override exists for them.
_NEVER_ACCEPTED: Final = ("version", "kind")

# Nor for these, under which the places that were read have a meaning; "weights@1000" are later weights.
_CHANGED_BY: Final = {
    "weights": "Weights change where a stage begins: Mixture.add_stage_at(state, weights) goes on from this position "
    "under others, and skips or repeats no record",
    "batch": "Its order reads steps of that many records and no others, such as those of aspect buckets: make the "
    "dataset with the batch that the position was saved with",
}


@attrs.frozen(kw_only=True)
class Segment:
    """From step `step` on, which starts at `place`, steps follow `schedule`."""

    step: int = attrs.field(validator=checks.count(0))
    place: int = attrs.field(validator=checks.count(0))
    schedule: Schedule

    def span(self, step: int) -> tuple[int, int]:
        """Places `[start, stop)` of an absolute step number at or after `self.step`."""
        start, stop = self.schedule.span(step - self.step)
        return start + self.place, stop + self.place

    def step_at(self, place: int) -> int:
        """The absolute step that starts at `place`; PositionError inside a step."""
        try:
            return self.schedule.step_at(place - self.place) + self.step
        except PositionError:  # it counts from the segment's start
            step = self.step + whole_steps(self.schedule, place - self.place)
            start, stop = self.span(step)
            raise PositionError(
                f"place {place} lies inside step {step}, which takes the places {start} to {stop - 1}; "
                f"a stream can only stand at a border of a step: {start} or {stop}"
            ) from None

    def to_json(self) -> State:
        """`{"step", "place", "batch"}` or `{"step", "place", "schedule"}`."""
        saved = self.schedule.to_json()
        return {"step": self.step, "place": self.place, **(saved if set(saved) == {"batch"} else {"schedule": saved})}


@attrs.frozen(kw_only=True)
class RecordPosition:
    """The position of a record stream: resumes on any process count that divides the global batch.

    Args:
        records: place of the next record, which is the number of records so far where none were skipped.
        order: everything that must match: order version, source, fingerprint, records, seed, ...
        segments: how places became steps, oldest first.
        preprocess: qualified name of the function applied to each record; a difference warns.
        made_by: versions of the libraries that shape content; a difference warns.
        accepted: differences that somebody accepted on the way, as `{"part", "saved", "current"}`.
    """

    records: int = attrs.field(validator=checks.count(0))
    order: Mapping[str, Any]
    segments: tuple[Segment, ...]
    preprocess: str | None = None
    made_by: Mapping[str, str] = attrs.field(factory=dict[str, str])
    accepted: tuple[Mapping[str, Any], ...] = ()

    def __attrs_post_init__(self) -> None:
        if not self.segments:
            raise PositionError("a position needs at least one segment")
        for earlier, later in itertools.pairwise(self.segments):
            if later.step <= earlier.step or later.place < earlier.span(later.step)[0]:
                raise PositionError(f"segments of a position must go forward, got {earlier!r} before {later!r}")
        last = self.segments[-1]
        if self.records > MAX_PLACE:
            raise PositionError(f"a position is at most 2^63 - 2^40, since places are int64, got {self.records}")
        if self.records < last.place:
            raise PositionError(
                f"the position {self.records} lies before its last segment, which starts at {last.place}"
            )
        _ = self.step

    @property
    def step(self) -> int:
        """Number of the next step, counted over the whole run."""
        return self.segments[-1].step_at(self.records)

    def segment(self, step: int) -> Segment:
        """The segment that step `step` belongs to."""
        at = bisect.bisect_right(self.segments, step, key=lambda segment: segment.step) - 1
        if at < 0:
            raise OptionsError(f"step {step} does not exist: this run starts at step {self.segments[0].step}")
        return self.segments[at]

    def span(self, step: int) -> tuple[int, int]:
        """Places `[start, stop)` of step `step`, in the past or to come."""
        return self.segment(step).span(step)

    def step_of(self, place: int) -> int | None:
        """The step that reads `place`, or None where a skip passed over it."""
        at = bisect.bisect_right(self.segments, place, key=lambda segment: segment.place) - 1
        if at < 0:
            return None
        segment = self.segments[at]
        step = segment.step + whole_steps(segment.schedule, place - segment.place)
        ends = at + 1 < len(self.segments) and step >= self.segments[at + 1].step
        return None if ends else step

    def at_step(self, step: int) -> "RecordPosition":
        """The same run before step `step` of its last segment."""
        last = self.segments[-1]
        if step < last.step:
            raise OptionsError(f"step {step} lies before the last segment of this run, which starts at {last.step}")
        return attrs.evolve(self, records=last.span(step)[0])

    def to_json(self) -> State:
        """The position as JSON values; `position_from_json` reads it."""
        return {
            "kind": "records",
            "records": self.records,
            "order": dict(self.order),
            "segments": [segment.to_json() for segment in self.segments],
            "preprocess": self.preprocess,
            "made_by": dict(self.made_by),
            "accepted": [dict(entry) for entry in self.accepted],
        }

    def resumed_by(self, current: "RecordPosition", accept: Iterable[str] = ()) -> "RecordPosition":
        """This saved position, for the stream whose own start is `current`.

        Args:
            current: the position of the fresh stream that should continue.
            accept: parts that may differ, each by name; a difference is then kept in `accepted`.

        Raises:
            PositionMismatchError: a part differs; names it, both values and how to accept it alone.
            OptionsError: `accept` names a part that there is not, or one that cannot be accepted.
        """
        allowed = _checked_accept(accept, {*self.order, *current.order})
        accepted = list(self.accepted)
        before, after = _as_json(self.order), _as_json(current.order)
        refused: list[str] = []
        for part in _parts(before, after):
            saved, now = before.get(part, _ABSENT), after.get(part, _ABSENT)
            if saved == now:
                continue
            if part not in allowed:
                refused.append(part)
            accepted.append({"part": part, "saved": saved, "current": now})
        if refused:
            raise _mismatch(refused, before.get(refused[0], _ABSENT), after.get(refused[0], _ABSENT))
        _check_schedule(self, current)
        _warn_of_differences(self, current)
        return attrs.evolve(
            self,
            order=current.order,
            preprocess=current.preprocess,
            made_by=current.made_by,
            accepted=tuple(accepted),
        )


@attrs.frozen
class ShardPosition:
    """The position of a stream that only its own share can continue: part `index` of `count`, with its `state`."""

    index: int = attrs.field(validator=checks.count(0))
    count: int = attrs.field(validator=checks.count())
    state: Any = attrs.field()

    def __attrs_post_init__(self) -> None:
        if self.index >= self.count:
            raise PositionError(f"share {self.index} does not exist among {self.count}: they are 0 to {self.count - 1}")

    @state.validator  # pyright: ignore[reportAttributeAccessIssue, reportUntypedFunctionDecorator, reportUnknownMemberType]
    def _check_state(self, _attribute: "attrs.Attribute[Any]", value: Any) -> None:
        try:
            read = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise PositionError(
                f"the state of a shard must be a JSON value, got {type(value).__name__}: {error}; "
                "convert it in the iterator's get_state()"
            ) from error
        if read != value:  # tuples become lists, and keys become strings
            raise PositionError(
                f"the state of a shard must be a JSON value, got {value!r}, which would come back as {read!r}; "
                "convert it in the iterator's get_state()"
            )

    def to_json(self) -> State:
        """`{"kind": "shard", "index", "count", "state"}`."""
        return {"kind": "shard", "index": self.index, "count": self.count, "state": self.state}

    def check_share(self, index: int, count: int) -> None:
        """Refuses another share than the one that was saved.

        Raises:
            PositionMismatchError: naming both process counts, or both shares.
        """
        if count != self.count:
            raise PositionMismatchError(
                f"this position was saved by share {self.index} of {self.count} and cannot continue on {count} shares: "
                f"its state counts inside one shard; run {self.count} processes, or restart the data",
                part="count",
                saved=self.count,
                current=count,
            )
        if index != self.index:
            raise PositionMismatchError(
                f"this position belongs to share {self.index} of {self.count}, not to share {index}; "
                "give each process the position that it saved",
                part="index",
                saved=self.index,
                current=index,
            )


Position: TypeAlias = RecordPosition | ShardPosition


def position_from_json(state: object) -> Position:
    """The position that `to_json` wrote.

    Raises:
        PositionError: `state` is not a position; says what is wrong with it.
    """
    if not isinstance(state, Mapping):
        raise PositionError(f"a position is a mapping with a 'kind', got {type(state).__name__}")
    fields = {str(name): value for name, value in cast("Mapping[Any, Any]", state).items()}
    kind = fields.pop("kind", None)
    readers = {"records": _record_position, "shard": _shard_position}
    if not isinstance(kind, str) or kind not in readers:
        raise PositionError(f"a position has the kind 'records' or 'shard', got {kind!r}")
    try:
        return readers[kind](fields)
    except PositionError:
        raise
    except (TypeError, ValueError) as error:
        raise PositionError(f"a position of the kind {kind!r} cannot be read: {error}") from error


def record_position(state: object) -> RecordPosition:
    """`position_from_json`, for a record stream; a shard position is refused."""
    position = position_from_json(state)
    if not isinstance(position, RecordPosition):
        raise PositionError(
            f"a record stream cannot continue from the position of share {position.index} of {position.count}: "
            "it was saved by a stream of another kind"
        )
    return position


def skip(state: State, records: int) -> State:
    """The position `records` further on: the steps after it start there, and nothing else changes.

    For a stretch that makes a run diverge. `records` counts all processes and need not be a multiple of the batch,
    unless the order can be read with one batch only.

    Raises:
        OptionsError: the steps after it would begin inside a step of such an order; names the two borders.
    """
    checks.check_count("records", records)
    position = record_position(state)
    batch = _own_batch(position)
    if batch is not None and records % batch:
        raise OptionsError(
            f"skip(state, {records}) would end inside a step: the order of this position reads steps of {batch} "
            f"records and no others; skip a multiple of {batch}, such as {(records // batch + 1) * batch}"
        )
    return _with_segment(position, position.records + records, _rest(position)).to_json()


def rebatch(state: State, batch: int) -> State:
    """The same position with the global batch `batch` from here on; no record is lost or repeated. Ends a ramp.

    Raises:
        OptionsError: its order can be read with another batch only, as that of aspect buckets; names both.
    """
    position = record_position(state)
    own = _own_batch(position)
    if own is not None and batch != own:
        raise OptionsError(
            f"rebatch(state, {batch}) cannot be: the order of this position reads steps of {own} records and no "
            f"others, such as those of aspect buckets; go on with {own}, or begin a new run with {batch}"
        )
    return _with_segment(position, position.records, FixedBatch(batch)).to_json()


def _own_batch(position: RecordPosition) -> int | None:
    """The only batch that the position's order can be read with, None where any will do."""
    own = position.order.get("batch")
    return None if own is None else checks.check_count("batch in a position's order", own)


def _rest(position: RecordPosition) -> Schedule:
    last = position.segments[-1]
    return last.schedule.after(position.records - last.place)


def _with_segment(position: RecordPosition, place: int, schedule: Schedule) -> RecordPosition:
    step = position.step
    kept = tuple(segment for segment in position.segments if segment.step < step)
    added = Segment(step=step, place=place, schedule=schedule)
    return attrs.evolve(position, records=place, segments=(*kept, added))


def _record_position(fields: State) -> RecordPosition:
    needed = {"records", "order", "segments"}
    known = {*needed, "preprocess", "made_by", "accepted"}
    if missing := sorted(needed - set(fields)):
        raise PositionError(f"a record position lacks {missing}; it has {sorted(fields)}")
    if unknown := sorted(set(fields) - known):
        raise PositionError(f"a record position has the unknown fields {unknown}; was it saved by a newer Dew?")
    preprocess = fields.get("preprocess")
    if preprocess is not None and not isinstance(preprocess, str):
        raise PositionError(f"preprocess in a position is a name or null, got {preprocess!r}")
    return RecordPosition(
        records=fields["records"],
        order=_mapping("order", fields["order"]),
        segments=tuple(_segment(entry) for entry in _list("segments", fields["segments"])),
        preprocess=preprocess,
        made_by=_mapping("made_by", fields.get("made_by", {})),
        accepted=tuple(
            _mapping("an entry of accepted", entry) for entry in _list("accepted", fields.get("accepted", []))
        ),
    )


def _shard_position(fields: State) -> ShardPosition:
    if set(fields) != {"index", "count", "state"}:
        raise PositionError(f"a shard position has the fields index, count and state, got {sorted(fields)}")
    return ShardPosition(fields["index"], fields["count"], fields["state"])


def _segment(entry: object) -> Segment:
    fields = _mapping("a segment", entry)
    if missing := sorted({"step", "place"} - set(fields)):
        raise PositionError(f"a segment of a position lacks {missing}; it has {sorted(fields)}")
    step, place = fields.pop("step"), fields.pop("place")
    schedule = fields["schedule"] if set(fields) == {"schedule"} else fields
    return Segment(step=step, place=place, schedule=schedule_from_json(_mapping("a schedule", schedule)))


def _mapping(name: str, value: object) -> State:
    if not isinstance(value, Mapping):
        raise PositionError(f"{name} in a position is a mapping, got {value!r}")
    return {str(key): entry for key, entry in cast("Mapping[Any, Any]", value).items()}


def _list(name: str, value: object) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise PositionError(f"{name} in a position is a list, got {value!r}")
    return cast("Sequence[object]", value)


def _as_json(order: Mapping[str, Any]) -> State:
    """What a file would keep of it: an order of somebody else may state tuples, which come back as lists."""
    try:
        return json.loads(json.dumps(dict(order)))
    except TypeError as error:
        raise OptionsError(
            f"what must match to resume must be JSON values, got {dict(order)!r}: {error}; "
            "convert it in the order's identity()"
        ) from error


def _parts(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """All parts: the version first, under which the others have a meaning, then the source, which explains the rest."""
    return list(dict.fromkeys((*_NEVER_ACCEPTED, "source", *saved, *current)))


def _family(part: str) -> str:
    return part.partition("@")[0]


def _checked_accept(accept: Iterable[str], parts: set[str]) -> frozenset[str]:
    if isinstance(accept, str) or not isinstance(accept, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsTypeError(f'accept is a set of parts such as {{"fingerprint"}}, got {accept!r}')
    allowed = frozenset(accept)
    acceptable = {part for part in parts - set(_NEVER_ACCEPTED) if _family(part) not in _CHANGED_BY}
    if unknown := sorted(allowed - acceptable, key=str):
        raise OptionsError(f"accept={unknown} cannot be accepted; parts that can be: {sorted(acceptable)}")
    return allowed


def _mismatch(refused: list[str], saved: object, current: object) -> PositionMismatchError:
    part, *others = refused
    text = f"the saved position has another {part}: saved {saved!r}, this stream has {current!r}. "
    if others:
        text += f"Other parts that differ: {', '.join(others)}. "
    if part == "kind":
        text += "A place of one order means nothing in another: make the stream with the order that saved the position"
    elif part in _NEVER_ACCEPTED:
        text += "A place of one order means nothing in another: continue with the Dew release that saved the position"
    elif (family := _family(part)) in _CHANGED_BY:
        text += _CHANGED_BY[family]
    else:
        text += f"If that is what you want, restore with accept={{{part!r}}}, which overrides this part alone"
    return PositionMismatchError(text, part=part, saved=saved, current=current)


def _check_schedule(saved: RecordPosition, current: RecordPosition) -> None:
    before, now = saved.segments[-1].schedule, current.segments[0].schedule
    if before.whole() == now.whole():
        return
    small = [count for count in range(1, min(math.isqrt(before.batch), 1 << 16) + 1) if before.batch % count == 0]
    counts = sorted({*small, *(before.batch // count for count in small)})
    plain = "" if isinstance(now.whole(), FixedBatch) else " into a stream without a ramp"
    raise PositionMismatchError(
        f"the saved position has the global batch {before.whole()}, this stream has {now.whole()}. "
        f"A batch of {before.batch} divides over {', '.join(map(str, counts))} processes. "
        f"To go on with {now.batch} from here, restore rebatch(state, {now.batch}){plain}",
        part="batch",
        saved=before.to_json(),
        current=now.to_json(),
    )


def _warn_of_differences(saved: RecordPosition, current: RecordPosition) -> None:
    if saved.preprocess != current.preprocess:
        _warn(
            f"the saved position was made with preprocess {saved.preprocess!r}, this stream has {current.preprocess!r}"
        )
    for name in dict.fromkeys((*saved.made_by, *current.made_by)):
        before, now = saved.made_by.get(name, _ABSENT), current.made_by.get(name, _ABSENT)
        if before != now:
            _warn(
                f"the saved position was made with {name} {before}, here is {name} {now}; records may differ in content"
            )


def _warn(message: str) -> None:
    warnings.warn(message, DewWarning, stacklevel=5)
