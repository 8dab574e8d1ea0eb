"""Positions that cannot be read are a PositionError that says what is wrong, whatever their shape."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dew.data.errors import OptionsError, PositionError
from dew.data.errors import PositionMismatchError as MismatchError
from dew.data.loading import Loading
from dew.data.position import ShardPosition, position_from_json, record_position
from dew.data.schedule import Ramp
from dew.data.stream import RecordStream, train_stream

HERE = Loading(workers=0, threads=1, read_buffer=0)
RAMP = Ramp(start=2, increment=2, samples=24)


def stream(schedule: Ramp | None = None) -> RecordStream:
    return train_stream([{"id": index} for index in range(100)], batch=8, schedule=schedule, loading=HERE)


def damaged() -> Iterator[tuple[str, Any, str]]:
    """A name, what is read, and what the error says."""
    good: Any = json.loads(json.dumps(stream(schedule=RAMP).get_state()))
    plain: Any = json.loads(json.dumps(stream().get_state()))

    def changed(base: Any, *path: Any, value: Any) -> Any:
        made = copy.deepcopy(base)
        inner = made
        for part in path[:-1]:
            inner = inner[part]
        inner[path[-1]] = value
        return made

    for value in (None, 3, "{}", b"", [], [good], good["order"] and json.dumps(good)):
        yield f"whole {value!r:.20}", value, "a position is a mapping with a 'kind', got"
    for value in (None, "record", 1, [], {"a": 1}):
        yield f"kind {value!r}", good | {"kind": value}, "a position has the kind 'records' or 'shard', got"
    yield "empty", {}, "a position has the kind 'records' or 'shard', got None"
    for name in ("records", "order", "segments"):
        left = {key: value for key, value in good.items() if key != name}
        yield f"no {name}", left, rf"a record position lacks \['{name}'\]"
    yield "unknown", good | {"extra": 1}, r"unknown fields \['extra'\]; was it saved by a newer Dew\?"
    yield "unknown, no name", good | {3: 1}, r"unknown fields \['3'\]"
    for value in (None, True, 8.0, "8", [8], {"n": 8}):
        yield f"records {value!r}", good | {"records": value}, "records must be an int, got"
    yield "records -1", good | {"records": -1}, "records must be at least 0, got -1"
    yield "records past 2^63", plain | {"records": 1 << 70}, r"at most 2\^63"
    for value in (None, 3, "abc", [], [["version", 1]]):
        yield f"order {value!r}", good | {"order": value}, "order in a position is a mapping, got"
        yield f"made_by {value!r}", good | {"made_by": value}, "made_by in a position is a mapping, got"
    for value in (None, 3, "abc", {}, {"step": 0}):
        yield f"segments {value!r}", good | {"segments": value}, "segments in a position is a list, got"
        yield f"accepted {value!r}", good | {"accepted": value}, "accepted in a position is a list, got"
    yield "accepted entry", good | {"accepted": ["seed"]}, "an entry of accepted in a position is a mapping, got 'seed'"
    for value in (3, [], {"name": "a"}):
        yield f"preprocess {value!r}", good | {"preprocess": value}, "preprocess in a position is a name or null, got"
    yield "segments []", good | {"segments": []}, "a position needs at least one segment"
    for value in (None, 3, "step", [0, 0, 8]):
        yield f"segment {value!r}", good | {"segments": [value]}, "a segment in a position is a mapping, got"
    for value, match in (
        ({}, r"a segment of a position lacks \['place', 'step'\]"),
        ({"step": 0, "batch": 8}, r"a segment of a position lacks \['place'\]; it has \['batch', 'step'\]"),
        ({"step": 0, "place": 0}, "a saved batch schedule has the wrong fields"),
        ({"step": "0", "place": 0, "batch": 8}, "step must be an int, got '0'"),
        ({"step": -1, "place": 0, "batch": 8}, "step must be at least 0, got -1"),
        ({"step": 0, "place": -8, "batch": 8}, "place must be at least 0, got -8"),
        ({"step": 0, "place": 0.0, "batch": 8}, "place must be an int, got 0.0"),
        ({"step": 0, "place": 0, "batch": 0}, "batch must be at least 1, got 0"),
        ({"step": 0, "place": 0, "batch": None}, "batch must be an int, got None"),
        ({"step": 0, "place": 0, "batch": 8, "more": 1}, "a saved batch schedule has the wrong fields"),
        ({"step": 0, "place": 0, "schedule": {"batch": 8}, "batch": 8}, "a saved batch schedule has the wrong fields"),
        ({"step": 0, "place": 0, "schedule": None}, "a schedule in a position is a mapping, got None"),
        ({"step": 0, "place": 0, "schedule": [8]}, "a schedule in a position is a mapping"),
        ({"step": 0, "place": 0, "schedule": {"ramp": 8}}, "a saved batch schedule has the wrong fields"),
        ({"step": 0, "place": 8, "batch": 8}, "the position 0 lies before its last segment, which starts at 8"),
    ):
        yield f"segment {value!r}", good | {"segments": [value]}, match
    yield (
        "batch of the ramp",
        changed(good, "segments", 0, "schedule", "batch", value=7),
        "never reaches the batch of 7",
    )
    yield "done inside", changed(good, "segments", 0, "schedule", "done", value=3), "record 3 lies inside step 1"
    yield "inside a step", plain | {"records": 4}, "place 4 lies inside step 0"
    yield "twice the segment", plain | {"segments": plain["segments"] * 2}, "must go forward"
    shard = {"kind": "shard", "index": 0, "count": 2, "state": None}
    yield "shard without state", {key: shard[key] for key in ("kind", "index", "count")}, "has the fields index, count"
    yield "shard with more", shard | {"records": 8}, "has the fields index, count and state, got"
    for name, value, match in (
        ("index", "0", "index must be an int, got '0'"),
        ("index", -1, "index must be at least 0, got -1"),
        ("index", 2, "share 2 does not exist among 2"),
        ("count", 0, "count must be at least 1, got 0"),
        ("count", None, "count must be an int, got None"),
        ("state", {1, 2}, "must be a JSON value, got set"),
    ):
        yield f"shard {name} {value!r}", shard | {name: value}, match


@pytest.mark.parametrize(("state", "match"), [pytest.param(*rest, id=name) for name, *rest in damaged()])
def test_damaged_positions_are_refused(state: Any, match: str) -> None:
    kept = copy.deepcopy(state)
    with pytest.raises(PositionError, match=match):
        position_from_json(state)
    assert state == kept
    with pytest.raises(PositionError):
        record_position(state)


# Shard positions


def test_a_shard_position_is_its_shares_own() -> None:
    position = ShardPosition(1, 2, {"offset": 3, "files": ["a", None, 0.5, True]})
    saved = json.loads(json.dumps(position.to_json()))
    assert saved == {"kind": "shard", "index": 1, "count": 2, "state": {"offset": 3, "files": ["a", None, 0.5, True]}}
    assert position_from_json(saved) == position
    position.check_share(1, 2)
    with pytest.raises(MismatchError, match=r"saved by share 1 of 2 and .* on 3 shares: .* 2 processes") as a:
        position.check_share(1, 3)
    assert (a.value.part, a.value.saved, a.value.current) == ("count", 2, 3)
    with pytest.raises(MismatchError, match="belongs to share 1 of 2, not to share 0; give each process") as b:
        position.check_share(0, 2)
    assert (b.value.part, b.value.saved, b.value.current) == ("index", 1, 0)


@pytest.mark.parametrize(
    ("state", "match"),
    [
        (np.arange(3), "a JSON value, got ndarray: Object of type ndarray"),
        ({"offset": np.int64(3)}, "a JSON value, got dict: Object of type int64"),
        (float("nan"), "a JSON value, got float"),
        ({1, 2}, "a JSON value, got set"),
        (b"abc", "a JSON value, got bytes"),
        ({"at": (1, 2)}, r"got \{'at': \(1, 2\)\}, which would come back as \{'at': \[1, 2\]\}"),
        ({3: "a"}, r"got \{3: 'a'\}, which would come back as \{'3': 'a'\}"),
    ],
)
def test_shard_states_that_json_does_not_keep_are_refused(state: object, match: str) -> None:
    with pytest.raises(PositionError, match=match + r".*; convert it in the iterator's get_state\(\)"):
        ShardPosition(0, 1, state)


def test_shares_that_cannot_be_are_refused() -> None:
    with pytest.raises(PositionError, match="share 2 does not exist among 2: they are 0 to 1"):
        ShardPosition(2, 2, None)
    with pytest.raises(OptionsError, match="count must be at least 1, got 0"):
        ShardPosition(0, 0, None)


def test_a_record_stream_refuses_a_shard_position() -> None:
    expected = "cannot continue from the position of share 1 of 2: it was saved by a stream of another kind"
    with pytest.raises(PositionError, match=expected):
        stream().set_state(ShardPosition(1, 2, {"offset": 3}).to_json())
