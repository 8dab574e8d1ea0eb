"""What must match for a saved position to go on, how each difference is accepted alone, and what only warns."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
import pytest

from dew.data.dataset import DataPartition
from dew.data.errors import DewWarning, OptionsError, OptionsTypeError, PartitionError
from dew.data.errors import PositionMismatchError as MismatchError
from dew.data.loading import Loading
from dew.data.order import DRAWS_VERSION, ShuffledOrder
from dew.data.position import State, rebatch
from dew.data.schedule import Ramp
from dew.data.stream import RecordStream, train_stream

HERE = Loading(workers=0, threads=1, read_buffer=0)
RAMP = Ramp(start=2, increment=2, samples=24)  # steps start at 0, 2, 4, 6, 8, 12, 16, 22, 28, 36, ...


@attrs.frozen
class Numbers:
    """Record i is the number i."""

    records: int = attrs.field(default=100, repr=False)
    name: str = "numbers"
    content: str | None = attrs.field(default="a1", repr=False)
    parts: Mapping[str, Any] = attrs.field(factory=dict, repr=False)

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index}

    def fingerprint(self) -> str | None:
        return self.content

    def identity(self) -> Mapping[str, Any]:
        return self.parts


def stream(source: Numbers = Numbers(), *, batch: int = 8, **options: Any) -> RecordStream:
    return train_stream(source, batch=batch, loading=HERE, **options)


def streams(count: int, *, batch: int, state: State | None = None, **options: Any) -> list[RecordStream]:
    """All shares of a run."""
    made = [stream(batch=batch, partition=DataPartition(index, count), **options) for index in range(count)]
    for share in made:
        if state is not None:
            share.set_state(state)
    return made


def steps(run: list[RecordStream], count: int) -> list[list[int]]:
    """The global batches of the next steps, put together from all shares."""
    found: list[list[int]] = []
    for _ in range(count):
        shares = [next(share)["id"].tolist() for share in run]
        found.append([record for row in zip(*shares, strict=True) for record in row])
    return found


def one_state(run: list[RecordStream]) -> State:
    """The position that every share saves, through JSON."""
    states = [json.dumps(share.get_state()) for share in run]
    assert len(set(states)) == 1
    return json.loads(states[0])


def order_of(seed: int = 0, records: int = 100) -> Callable[[int, int], list[int]]:
    order = ShuffledOrder(records=records, seed=seed)
    return lambda start, stop: order.at(np.arange(start, stop)).tolist()


PARTS: dict[str, tuple[Callable[[], RecordStream], Any, Any]] = {
    "kind": (lambda: stream(shuffle=False), "shuffled", "sequential"),
    "source": (lambda: stream(Numbers(name="letters")), "Numbers(name='numbers')", "Numbers(name='letters')"),
    "fingerprint": (lambda: stream(Numbers(content="b2")), "a1", "b2"),
    "records": (lambda: stream(Numbers(120)), 100, 120),
    "seed": (lambda: stream(seed=1), 0, 1),
    "salt": (lambda: stream(order=ShuffledOrder(records=100, salt=3)), 0, 3),
    "draws_seed": (lambda: stream(order=ShuffledOrder(records=100), seed=4), "(absent)", 4),
    "tokenizer": (lambda: stream(Numbers(parts={"tokenizer": {"sha": "t2"}})), "(absent)", {"sha": "t2"}),
}
ACCEPTED_PARTS = [part for part in PARTS if part != "kind"]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_differs_is_named_with_both_values(part: str) -> None:
    make, saved, current = PARTS[part]
    state = stream().get_state()
    run = make()
    expected = f"the saved position has another {part}: saved {saved!r}, this stream has {current!r}. "
    with pytest.raises(MismatchError, match=re.escape(expected)) as found:
        run.set_state(state)
    assert (found.value.part, found.value.saved, found.value.current) == (part, saved, current)
    with pytest.raises(MismatchError, match=f"another {part}: saved {re.escape(repr(current))}, this stream has"):
        stream().set_state(run.get_state())


@pytest.mark.parametrize("part", ACCEPTED_PARTS)
def test_a_difference_is_accepted_by_its_name_and_remembered(part: str) -> None:
    make, saved, current = PARTS[part]
    old = stream()
    next(old)
    run = make()
    override = f"If that is what you want, restore with accept={{'{part}'}}, which overrides this part alone"
    with pytest.raises(MismatchError, match=re.escape(override)):
        run.set_state(old.get_state())
    run.set_state(json.loads(json.dumps(old.get_state())), accept={part})
    assert run.position.records == 8
    state = run.get_state()
    assert state["accepted"] == [{"part": part, "saved": saved, "current": current}]
    assert state["order"] == make().get_state()["order"]
    next(run)
    fresh = make()
    fresh.set_state(run.get_state())  # needs no override again
    assert fresh.get_state() == run.get_state()
    assert fresh.get_state()["accepted"] == state["accepted"]


def test_each_difference_needs_its_own_name() -> None:
    state = stream().get_state()
    run = stream(Numbers(name="letters", content="b2"), seed=1)
    for accept, part in (
        ((), "source"),
        ({"seed"}, "source"),
        ({"seed", "fingerprint"}, "source"),
        ({"seed", "source"}, "fingerprint"),
        ({"source", "fingerprint"}, "seed"),
    ):
        with pytest.raises(MismatchError, match=f"another {part}:") as found:
            run.set_state(state, accept=accept)
        assert found.value.part == part
    run.set_state(state, accept=["fingerprint", "source", "seed"])
    assert [entry["part"] for entry in run.get_state()["accepted"]] == ["source", "seed", "fingerprint"]


def test_accepted_differences_add_up_over_restores() -> None:
    moved = stream(Numbers(content="b2"))
    moved.set_state(stream().get_state(), accept={"fingerprint"})
    again = stream(Numbers(content="c3"))
    again.set_state(moved.get_state(), accept={"fingerprint"})
    assert again.get_state()["accepted"] == [
        {"part": "fingerprint", "saved": "a1", "current": "b2"},
        {"part": "fingerprint", "saved": "b2", "current": "c3"},
    ]


def test_what_need_not_be_accepted_may_be_named() -> None:
    run = stream()
    run.set_state(stream().get_state(), accept={"fingerprint", "seed"})
    assert run.get_state()["accepted"] == []


@pytest.mark.parametrize("part", ["version", "draws"])
@pytest.mark.parametrize("version", [0, 2, "(absent)"])
def test_another_version_is_named_before_all_else(part: str, version: Any) -> None:
    state = stream(seed=3).get_state()
    state["order"][part] = version
    if version == "(absent)":
        del state["order"][part]
    run = stream(seed=3)
    with pytest.raises(MismatchError, match=re.escape(f"another {part}: saved {version!r}, this stream has 1")):
        run.set_state(state)
    state["order"]["seed"] = 4
    with pytest.raises(MismatchError) as found:
        run.set_state(state)
    assert found.value.part == ("version" if part == "version" else "seed")


@pytest.mark.parametrize("part", ["version", "kind"])
def test_no_override_makes_a_place_of_another_order_mean_something(part: str) -> None:
    state = stream().get_state()
    state["order"][part] = 0
    run = stream()
    release = "continue with the Dew release that saved the position"
    advice = release if part == "version" else "make the stream with the order that saved the position"
    with pytest.raises(MismatchError, match=f"A place of one order means nothing in another: {advice}"):
        run.set_state(state)
    with pytest.raises(OptionsError, match=rf"accept=\['{part}'\] cannot be accepted; parts that can be: \['draws'"):
        run.set_state(state, accept={part})


def test_an_older_drawing_of_random_numbers_can_be_accepted() -> None:
    state = stream().get_state()
    state["order"]["draws"] = 0
    run = stream()
    run.set_state(state, accept={"draws"})
    assert run.get_state()["accepted"] == [{"part": "draws", "saved": 0, "current": DRAWS_VERSION}]


@pytest.mark.parametrize("accept", [{"all"}, {"batch"}, {"preprocess"}, {"seed", "sed"}, {""}])
def test_parts_that_there_are_not_cannot_be_accepted(accept: set[str]) -> None:
    unknown = sorted(accept - {"seed"})
    expected = (
        f"accept={unknown} cannot be accepted; parts that can be: "
        "['draws', 'fingerprint', 'records', 'salt', 'seed', 'source']"
    )
    with pytest.raises(OptionsError, match=re.escape(expected)):
        stream().set_state(stream().get_state(), accept=accept)


@pytest.mark.parametrize("accept", ["fingerprint", 3, True, None])
def test_accept_is_a_set(accept: Any) -> None:
    expected = re.escape(f'accept is a set of parts such as {{"fingerprint"}}, got {accept!r}')
    with pytest.raises(OptionsTypeError, match=expected):
        stream(Numbers(content="b2")).set_state(stream().get_state(), accept=accept)


@pytest.mark.parametrize("saved", [None, "a1"])
def test_a_fingerprint_that_comes_or_goes_is_a_difference(saved: str | None) -> None:
    current = None if saved else "a1"
    expected = f"another fingerprint: saved {saved!r}, this stream has {current!r}"
    with pytest.raises(MismatchError, match=expected):
        stream(Numbers(content=current)).set_state(stream(Numbers(content=saved)).get_state())


def test_a_moved_corpus_resumes_and_a_swapped_one_is_refused() -> None:
    old = stream(Numbers(content="a1"))
    stream(Numbers(content="a1")).set_state(old.get_state())
    with pytest.raises(MismatchError, match="another fingerprint"):
        stream(Numbers(content="b2")).set_state(old.get_state())


def test_another_batch_names_both_and_the_way_on() -> None:
    state = stream().get_state()
    expected = (
        "the saved position has the global batch 8, this stream has 6. A batch of 8 divides over 1, 2, 4, 8 processes. "
        "To go on with 6 from here, restore rebatch(state, 6)"
    )
    with pytest.raises(MismatchError, match=re.escape(expected)) as found:
        stream(batch=6).set_state(state)
    assert (found.value.part, found.value.saved, found.value.current) == ("batch", {"batch": 8}, {"batch": 6})
    run = stream(batch=6)
    run.set_state(rebatch(state, 6))
    assert steps([run], 1) == [order_of()(0, 6)]


@pytest.mark.parametrize(
    ("saved", "current", "expected"),
    [
        (None, RAMP, "batch 8, this stream has 8 reached from 2 by 2 over 24 records"),
        (RAMP, None, "batch 8 reached from 2 by 2 over 24 records, this stream has 8"),
        (RAMP, Ramp(2, 2, 30), "over 24 records, this stream has 8 reached from 2 by 2 over 30 records"),
        (RAMP, Ramp(4, 2, 24), "from 2 by 2 over 24 records, this stream has 8 reached from 4 by 2"),
        (RAMP, Ramp(2, 3, 24), "from 2 by 2 over 24 records, this stream has 8 reached from 2 by 3"),
    ],
)
def test_another_ramp_is_another_batch(saved: Ramp | None, current: Ramp | None, expected: str) -> None:
    old = stream(schedule=saved)
    next(old)
    with pytest.raises(MismatchError, match=expected) as found:
        stream(schedule=current).set_state(old.get_state())
    assert found.value.part == "batch"
    way = r"restore rebatch\(state, 8\) into a stream without a ramp" if current else r"restore rebatch\(state, 8\)$"
    assert re.search(way, str(found.value))
    run = stream()
    run.set_state(rebatch(old.get_state(), 8))


def test_a_batch_that_nobody_uses_is_refused_at_once() -> None:
    state = stream().get_state()
    state["segments"][0]["batch"] = 10**18
    with pytest.raises(MismatchError, match="the saved position has the global batch 1000000000000000000"):
        stream().set_state(state)


def test_a_count_that_does_not_divide_the_batch_is_refused() -> None:
    state = one_state(streams(4, batch=8))
    expected = "a global batch of 8 rows does not divide over 3 processes; use a batch of 6 or 9"
    with pytest.raises(PartitionError, match=expected):
        streams(3, batch=8, state=state)
    ramped = one_state(streams(2, batch=8, schedule=RAMP))
    with pytest.raises(PartitionError, match="a global batch of 2 rows does not divide over 4 processes"):
        streams(4, batch=8, schedule=RAMP, state=ramped)


class Stating(ShuffledOrder):
    """An order of somebody else, with a part of its own."""

    stated: Any = None

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "blocks": self.stated}


def stating(value: Any) -> RecordStream:
    order = Stating(records=100)
    object.__setattr__(order, "stated", value)
    return stream(order=order)


def test_an_order_may_state_tuples() -> None:
    run = stating((1, (2, 3)))
    state = run.get_state()
    for saved in (state, json.loads(json.dumps(state))):
        run.set_state(saved)
    with pytest.raises(MismatchError, match=re.escape("another blocks: saved [1, [2, 3]], this stream has [1, 2]")):
        stating((1, 2)).set_state(state)


def test_an_order_that_states_no_json_is_refused() -> None:
    expected = r"must be JSON values, got \{.*\}: Object of type int64 .*; convert it in the order's identity\(\)"
    with pytest.raises(OptionsError, match=expected):
        stating(np.int64(3)).set_state(stating(3).get_state())


# What only warns


def double(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"id": record["id"] * 2}


def half(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"id": record["id"] // 2}


def test_another_preprocess_warns_at_the_callers_line() -> None:
    state = stream(preprocess=double).get_state()
    assert state["preprocess"] == f"{__name__}.double"
    run = stream(preprocess=half)
    expected = rf"made with preprocess '{__name__}\.double', this stream has '{__name__}\.half'"
    with pytest.warns(DewWarning, match=expected) as found:
        run.set_state(state)
    assert [warning.filename for warning in found] == [__file__]
    run.set_state(run.get_state())  # once is enough
    with pytest.warns(DewWarning, match=r"preprocess '.*double', this stream has None"):
        stream().set_state(state)


def test_other_libraries_warn_by_name() -> None:
    state = stream().get_state()
    state["made_by"] = {"numpy": "1.0", "pillow": "11.0"}
    run = stream()
    with pytest.warns(DewWarning) as found:
        run.set_state(state)
    assert [str(warning.message) for warning in found] == [
        f"the saved position was made with numpy 1.0, here is numpy {np.__version__}; records may differ in content",
        "the saved position was made with pillow 11.0, here is pillow (absent); records may differ in content",
    ]
    assert {warning.filename for warning in found} == {__file__}
    assert run.get_state()["made_by"] == {"numpy": np.__version__}


def test_a_warning_made_an_error_restores_nothing() -> None:
    run = stream()
    next(run)
    state = run.get_state()
    changed = stream().get_state() | {"made_by": {}}
    with pytest.raises(DewWarning, match=r"numpy \(absent\), here is numpy"):  # the tests run with warnings as errors
        run.set_state(changed)
    assert run.get_state() == state
