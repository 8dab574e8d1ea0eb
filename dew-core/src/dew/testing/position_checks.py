"""What a saved position must do, as checks of a `Subject`: resume anywhere, change nothing, refuse another's."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from dew.data.dataset import Batch
from dew.data.errors import PositionError, PositionMismatchError
from dew.data.position import rebatch
from dew.testing.counterexample import Check, Counterexample
from dew.testing.subject import Step, Subject, in_words, whole

_OTHER = "something else"


def resumes_on_every_count(subject: Subject) -> Check:
    """Saved at each step by each process count, restored on each other one: what follows is the same."""
    alone: list[Step] = []
    yield from subject.read(1, subject.steps + 2, alone)
    tried: list[list[Any]] = [[] for _ in range(subject.steps)]
    for saved_by in subject.counts:
        for step, state in enumerate(states(subject, saved_by)):
            if state in tried[step]:
                continue  # what another count saved, to the letter, goes on as it did
            tried[step].append(state)
            for count in subject.counts:
                with subject.streams(count) as streams:
                    _restore(streams, state, step)
                    for later in (step, step + 1):
                        how = f"on {in_words(count)} from what {in_words(saved_by)} saved before step {step}"
                        alone[later].check(whole(streams, later), how)
                yield True


def restores_wherever_it_stands(subject: Subject) -> Check:
    """A stream that has read any number of steps goes back or forward to any saved position."""
    alone: list[Step] = []
    yield from subject.read(1, subject.steps + 1, alone)
    saved = states(subject, 1)
    for count in subject.counts:
        with subject.streams(count) as streams:
            stands = 0
            for step in _tour(subject.steps):
                _restore(streams, saved[step], step)
                alone[step].check(whole(streams, step), f"restored into streams that stood before step {stands}")
                stands = step + 1
                yield True


def _tour(steps: int) -> list[int]:
    """The shortest walk in which every step follows every step: 0 01 02 ... 1 12 ... (a de Bruijn sequence)."""
    return [at for one in range(steps) for at in (one, *(two for more in range(one + 1, steps) for two in (one, more)))]


def saves_one_position(subject: Subject) -> Check:
    """Every process saves the same position, which JSON carries and which counts the records delivered."""
    for count in subject.counts:
        with subject.streams(count) as streams:
            for step in range(subject.steps):
                saved = [_state(stream, step) for stream in streams]
                for index, state in enumerate(saved):
                    if state != saved[0]:
                        raise Counterexample(
                            f"shares 0 and {index} of {count} save {_unlike(saved[0], state)}", step=step
                        )
                start = _start(streams[0], step)
                if start is not None and saved[0]["records"] != start:
                    raise Counterexample(
                        f"the position counts {saved[0]['records']} records before a step that starts at place {start}",
                        step=step,
                        place=start,
                    )
                whole(streams, step)
                yield True


def setting_its_own_state_changes_nothing(subject: Subject) -> Check:
    """`set_state(get_state())`, before and after reading."""
    with subject.streams(1) as streams, subject.streams(1) as others:
        for step in range(subject.steps):
            state = _state(streams[0], step)
            cast("Any", streams[0]).set_state(state)
            if (after := _state(streams[0], step)) != state:
                raise Counterexample(f"set_state(get_state()) turns {_unlike(state, after)}", step=step)
            whole(others, step).check(whole(streams, step), "after set_state(get_state())")
            yield True


def refuses_other_positions(subject: Subject) -> Check:
    """A position of other data, another count, seed, order version or batch is refused by name, as are other kinds."""
    with subject.streams(1) as streams:
        stream: Any = streams[0]
        state = _state(stream, 0)
        for part in state["order"]:
            other = {**state, "order": {**state["order"], part: _OTHER}}
            _refused(stream, other, part, f"a position with another {part}")
            yield True
        if "batch" not in state["order"]:  # else `rebatch` refuses to make one
            _refused(stream, rebatch(state, 2 * subject.make().batch), "batch", "a position of another global batch")
            yield True
        shard: dict[str, Any] = {"kind": "shard", "index": 0, "count": 1, "state": {}}
        _refused(stream, shard, None, "the position of a shard")
        yield True
        if _state(stream, 0) != state:
            raise Counterexample("a position that was refused has changed the stream's own")


def _refused(stream: Any, state: Mapping[str, Any], part: str | None, what: str) -> None:
    try:
        stream.set_state(state)
    except PositionMismatchError as error:
        if part is not None and part not in str(error):
            raise Counterexample(f"{what} is refused without naming it: {error}") from error
    except PositionError as error:
        if part is not None:
            raise Counterexample(
                f"{what} is refused as {type(error).__name__}, not by the part that differs"
            ) from error
    else:
        raise Counterexample(f"{what} is taken as the stream's own")


def resumes_its_own_shard(subject: Subject) -> Check:
    """Saved at each step by each share, restored on the same share of the same count: what follows is the same."""
    for count in subject.counts:
        alone: list[Step] = []
        yield from subject.read(count, subject.steps + 2, alone)
        saved = shard_states(subject, count)
        for step, shares in enumerate(saved):
            with subject.streams(count) as streams:
                for stream, state in zip(streams, shares, strict=True):
                    cast("Any", stream).set_state(state)
                for later in (step, step + 1):
                    how = f"restored on {in_words(count)} from what they saved before step {step}"
                    alone[later].check(whole(streams, later), how)
            yield True


def refuses_other_shards(subject: Subject) -> Check:
    """A shard's position is refused by another share and by another process count, naming both."""
    largest = subject.counts[-1]
    if largest == 1:
        return
    with subject.streams(largest) as streams, subject.streams(1) as (alone,):
        state = _state(streams[0], 0)
        if state.get("kind") != "shard":
            return  # a state of the iterator's own, which Checkpoints wraps and refuses
        for index, stream in enumerate(streams[1:], 1):
            _refused_shard(stream, state, f"by share {index}", (0, index))
            yield True
        _refused_shard(alone, state, "by one process", (largest, 1))
        yield True


def _refused_shard(stream: Any, state: Mapping[str, Any], who: str, both: tuple[int, int]) -> None:
    what = f"the position of share {state['index']} of {state['count']}"
    try:
        stream.set_state(state)
    except PositionError as error:
        if not all(str(number) in str(error) for number in both):
            raise Counterexample(f"{what} is refused {who} without naming {both[0]} and {both[1]}: {error}") from error
    else:
        raise Counterexample(f"{what} is taken {who}")


def has_the_position_it_claims(subject: Subject, kind: str | None) -> Check:
    """A stream of the kind "records" or "shard" saves such positions; one of no kind has no `get_state` at all."""
    with subject.streams(1) as (stream,):
        methods = [name for name in ("get_state", "set_state") if hasattr(stream, name)]
        if kind is None and methods:
            raise Counterexample(f"a stream without a position has {' and '.join(methods)}")
        if kind is not None:
            if len(methods) < 2:
                raise Counterexample(f"a stream with a position of the kind {kind!r} lacks get_state or set_state")
            state: Any = _state(stream, 0)
            # A state of the iterator's own, without a kind, is wrapped as a shard's.
            found = cast("dict[str, Any]", state).get("kind", "shard") if isinstance(state, dict) else "shard"
            if found != kind:
                raise Counterexample(f"the stream saves a position of the kind {found!r}, not {kind!r}")
        yield True


def states(subject: Subject, count: int) -> list[dict[str, Any]]:
    """Positions before each of the first steps, saved by share 0 of `count`."""
    return [shares[0] for shares in shard_states(subject, count)]


def shard_states(subject: Subject, count: int) -> list[list[dict[str, Any]]]:
    """Positions of every share before each of the first steps."""
    saved: list[list[dict[str, Any]]] = []
    with subject.streams(count) as streams:
        for step in range(subject.steps):
            saved.append([_state(stream, step) for stream in streams])
            whole(streams, step)
    return saved


def _state(stream: Iterator[Batch], step: int) -> dict[str, Any]:
    """`get_state()` as a file gives it back."""
    state = cast("Any", stream).get_state()
    try:
        read = json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise Counterexample(f"get_state() is not JSON: {error}", step=step) from error
    if read != state:
        raise Counterexample(f"get_state() comes back from JSON as another: {_unlike(state, read)}", step=step)
    return read


def _restore(streams: Sequence[Iterator[Batch]], state: Mapping[str, Any], step: int) -> None:
    for stream in streams:
        try:
            cast("Any", stream).set_state(state)
        except PositionError as error:
            raise Counterexample(f"a position of the run itself is refused: {error}", step=step) from error


def _start(stream: Any, step: int) -> int | None:
    """The place at which a step starts, where the stream can say."""
    position = getattr(stream, "position", None)
    return None if position is None else int(position.span(step)[0])


def _unlike(one: Any, other: Any) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in dict.fromkeys([*cast("dict[str, Any]", one), *cast("dict[str, Any]", other)]):
            here, there = cast("Any", one).get(name), cast("Any", other).get(name)
            if here != there:
                return f"{name}: {here!r} and {there!r}"
    return f"{one!r} and {other!r}"
