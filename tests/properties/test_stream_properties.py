"""Properties of streams: shares tile, any step can be resumed on any process count, loading never changes content."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dew.data import (
    DataPartition,
    Loading,
    Ramp,
    RecordStream,
    rebatch,
    skip,
    train_stream,
    validation_pass,
)
from dew.data.order import SequentialOrder, ShuffledOrder, draws_at

HERE = Loading(workers=0, threads=1, read_buffer=0)


@pytest.fixture(autouse=True, scope="module")
def by_value() -> Iterator[None]:
    """Workers cannot import a test module: what it defines travels by value, as from a script."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Ids:
    def __init__(self, records: int) -> None:
        self.records = records

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return {"id": index}


class Many(Ids):
    def __getitems__(self, indices: list[int]) -> list[Mapping[str, Any]]:
        return [self[index] for index in indices]


class Taking(Ids):
    def take(self, indices: Any) -> Mapping[str, Any]:
        return {"id": np.array(indices)}


class Shelf(Ids):
    def open(self) -> "Shelf":
        return Shelf(self.records)

    def close(self) -> None:
        self.records = 0


def draw(record: Mapping[str, Any], rng: np.random.Generator) -> Mapping[str, Any]:
    return {"id": record["id"], "u": int(rng.integers(1 << 62)), "x": np.full(record["id"] * 0 + 2, record["id"])}


def divisors(*numbers: int) -> list[int]:
    return [count for count in range(1, min(numbers) + 1) if all(number % count == 0 for number in numbers)]


sources = st.sampled_from([Ids, Many, Taking, Shelf])
seeds = st.one_of(st.integers(0, 3), st.integers(0, (1 << 64) - 1))
loadings = st.builds(
    Loading,
    workers=st.just(0),
    threads=st.integers(0, 4),
    read_buffer=st.integers(0, 4),
    memory=st.sampled_from([1, 100, 1 << 30]),
)


@attrs.frozen(kw_only=True)
class Run:
    """A run's data; `rows` is what its steps must hold, by the definition of the order."""

    source: type[Ids]
    records: int
    batch: int
    seed: int
    shuffle: bool
    ramp: Ramp | None

    def stream(self, index: int, count: int, loading: Loading, batch: int | None = None) -> RecordStream:
        own = batch is None or batch == self.batch
        return train_stream(
            self.source(self.records),
            batch=self.batch if batch is None else batch,
            seed=self.seed,
            shuffle=self.shuffle,
            schedule=self.ramp if own else None,
            partition=DataPartition(index, count),
            place_field="place",
            repeat_in_step=True,
            loading=loading,
        )

    def rows(self, places: Iterable[int]) -> list[tuple[int, int]]:
        """(place, record) of each of `places`."""
        shuffled = ShuffledOrder(records=self.records, seed=self.seed)
        order = shuffled if self.shuffle else SequentialOrder(records=self.records)
        places = list(places)
        return list(zip(places, order.at(np.array(places, np.int64)).tolist(), strict=True))

    def counts(self) -> list[int]:
        """Process counts that divide every batch of the run."""
        sizes = self.ramp.schedule(self.batch).batches() if self.ramp else (self.batch,)
        return divisors(*sizes)


def rows_of(batch: Mapping[str, Any]) -> list[tuple[int, int]]:
    places = [(int(high) << 32) + int(low) for high, low in batch["place"]]
    return list(zip(places, batch["id"].tolist(), strict=True))


def whole(run: Run, count: int, steps: int, loading: Loading, state: Any = None) -> tuple[list[list[Any]], Any]:
    """Steps of all shares together, and the state that every share agrees on."""
    shares: list[list[list[Any]]] = []
    states: list[Any] = []
    for index in range(count):
        with run.stream(index, count, loading) as stream:
            if state is not None:
                stream.set_state(json.loads(json.dumps(state)))
            shares.append([rows_of(next(stream)) for _ in range(steps)])
            states.append(stream.get_state())
    assert all(other == states[0] for other in states)
    joined = [
        [row for rows in zip(*(share[step] for share in shares), strict=True) for row in rows] for step in range(steps)
    ]
    return joined, states[0]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    batch = draw(st.integers(1, 24))
    ramp = None
    if draw(st.booleans()):
        start = draw(st.integers(1, batch))
        increment = draw(st.sampled_from(divisors(batch - start))) if batch > start else 1
        ramp = Ramp(start, increment, draw(st.integers(1, 100)))
    return Run(
        source=draw(sources),
        records=draw(st.integers(1, 60)),
        batch=batch,
        seed=draw(seeds),
        shuffle=draw(st.booleans()),
        ramp=ramp,
    )


@given(run=runs(), steps=st.integers(1, 6), loading=loadings)
def test_shares_of_every_divisor_tile_the_order(run: Run, steps: int, loading: Loading) -> None:
    expected: list[list[Any]] | None = None
    for count in run.counts():
        joined, state = whole(run, count, steps, loading)
        rows = [row for step in joined for row in step]
        assert rows == run.rows(range(len(rows)))
        assert state["records"] == len(rows)
        assert expected is None or joined == expected
        expected = joined
    assert expected is not None
    epochs = Counter(place // run.records for step in expected for place, _ in step)
    for epoch in [epoch for epoch, size in epochs.items() if size == run.records]:
        read = [record for step in expected for place, record in step if place // run.records == epoch]
        assert sorted(read) == list(range(run.records))


@given(run=runs(), before=st.integers(0, 8), after=st.integers(1, 4), loading=loadings, data=st.data())
def test_resume_of_a_save_is_the_tail(run: Run, before: int, after: int, loading: Loading, data: st.DataObject) -> None:
    counts = st.sampled_from(run.counts())
    straight, end = whole(run, data.draw(counts), before + after, HERE)
    head, state = whole(run, data.draw(counts), before, loading)
    tail, again = whole(run, data.draw(counts), after, loading, state)
    assert head + tail == straight
    assert again == end


@given(run=runs(), start=st.integers(0, 1 << 45), loading=loadings)
def test_any_place_can_be_reached(run: Run, start: int, loading: Loading) -> None:
    run = attrs.evolve(run, ramp=None)
    with run.stream(0, 1, loading) as stream:
        state = stream.get_state()
        state["records"] = start - start % run.batch
        stream.set_state(state)
        for step in range(3):
            first = state["records"] + step * run.batch
            assert rows_of(next(stream)) == run.rows(range(first, first + run.batch))
            assert stream.ids(first // run.batch).tolist() == [r for _, r in run.rows(range(first, first + run.batch))]


@given(run=runs(), data=st.data())
def test_a_run_of_reads_skips_and_rebatches(run: Run, data: st.DataObject) -> None:
    """Whatever happens to a run, its rows are those of the order from the place where it stands."""
    run = attrs.evolve(run, ramp=None)
    place, step, batch = 0, 0, run.batch
    state: Any = None
    for _ in range(data.draw(st.integers(1, 6), label="events")):
        event = data.draw(st.sampled_from(["read", "skip", "rebatch"]), label="event")
        if state is not None and event == "skip":
            skipped = data.draw(st.integers(1, 100), label="skipped")
            state, place = skip(state, skipped), place + skipped
        if state is not None and event == "rebatch":
            batch = data.draw(st.integers(1, 24), label="batch")
            state = rebatch(state, batch)
        count = data.draw(st.sampled_from(divisors(batch)), label="count")
        steps = data.draw(st.integers(0, 4), label="steps")
        shares: list[list[Any]] = []
        for index in range(count):
            with run.stream(index, count, HERE, batch) as stream:
                if state is not None:
                    stream.set_state(state)
                assert stream.position.records == place
                assert stream.position.step == step
                shares.append([row for _ in range(steps) for row in rows_of(next(stream))])
                after = stream.get_state()
        state = after
        rows = sorted(row for share in shares for row in share)
        assert rows == run.rows(range(place, place + steps * batch))
        place, step = place + steps * batch, step + steps
        assert (state["records"], stream.position.step) == (place, step)


@given(
    records=st.integers(1, 40), batch=st.integers(1, 12), seed=seeds, source=sources, loading=loadings, data=st.data()
)
def test_loading_and_topology_change_neither_records_nor_draws(
    records: int, batch: int, seed: int, source: type[Ids], loading: Loading, data: st.DataObject
) -> None:
    count = data.draw(st.sampled_from(divisors(batch)))
    order = ShuffledOrder(records=records, seed=seed)
    for index in range(count):
        with train_stream(
            source(records),
            batch=batch,
            seed=seed,
            partition=DataPartition(index, count),
            preprocess=draw,
            repeat_in_step=True,
            loading=loading,
        ) as stream:
            for step in range(4):
                places = np.arange(step * batch + index, (step + 1) * batch, count)
                got = next(stream)
                assert got["id"].tolist() == order.at(places).tolist()
                expected = [int(draws_at(seed, int(place)).integers(1 << 62)) for place in places]
                assert got["u"].tolist() == expected
                assert got["x"].tolist() == [[record, record] for record in got["id"].tolist()]


@given(records=st.integers(1, 40), batch=st.integers(1, 12), source=sources, loading=loadings, drop=st.booleans())
def test_a_pass_scores_every_record_once(
    records: int, batch: int, source: type[Ids], loading: Loading, drop: bool
) -> None:
    steps = records // batch if drop else -(-records // batch)
    if not steps:
        return
    for count in divisors(batch):
        scored: list[int] = []
        for index in range(count):
            with validation_pass(
                source(records),
                batch=batch,
                partition=DataPartition(index, count),
                remainder="drop" if drop else "pad",
                loading=loading,
            ) as stream:
                batches = list(stream)
            assert len(batches) == steps
            for got in batches:
                valid = got.get("valid", np.ones(batch // count, np.bool_))
                assert got["id"].shape == valid.shape == (batch // count,)
                assert not got["id"][~valid].any()
                scored += got["id"][valid].tolist()
        assert sorted(scored) == list(range(steps * batch if drop else records))


@given(
    bad=st.sets(st.integers(0, 39), min_size=1, max_size=6),
    batch=st.integers(1, 12),
    seed=seeds,
    loading=loadings,
)
def test_the_first_bad_record_is_the_one_reported(bad: set[int], batch: int, seed: int, loading: Loading) -> None:
    def check(record: Mapping[str, Any]) -> Mapping[str, Any]:
        if int(record["id"]) in bad:
            raise KeyError(int(record["id"]))
        return record

    order = ShuffledOrder(records=40, seed=seed).at(np.arange(80)).tolist()
    place = next(place for place, record in enumerate(order) if record in bad)
    with train_stream(Ids(40), batch=batch, seed=seed, preprocess=check, loading=loading) as stream:
        for step in range(place // batch):
            assert next(stream)["id"].tolist() == order[step * batch : (step + 1) * batch]
        for _ in range(2):
            with pytest.raises(KeyError) as caught:
                next(stream)
            assert caught.value.args == (order[place],)
            assert caught.value.__notes__[0] == f"reading record {order[place]} (place {place})"
        assert stream.position.records == place // batch * batch


def _matrix(run: Run, loading: Loading) -> None:
    count = max(run.counts())
    straight, end = whole(run, 1, 12, HERE)
    head, state = whole(run, count, 5, loading)
    tail, again = whole(run, 1, 7, loading, state)
    assert head + tail == straight
    assert again == end


@pytest.mark.parametrize("workers", [1, 2, 3])
@given(
    run=runs().filter(lambda run: max(run.counts()) <= 3),
    threads=st.integers(0, 3),
    read_buffer=st.integers(0, 3),
    worker_buffer=st.integers(1, 3),
)
@settings(max_examples=max(1, settings.default.max_examples // 50))  # each starts processes
def test_workers_change_nothing(workers: int, run: Run, threads: int, read_buffer: int, worker_buffer: int) -> None:
    _matrix(run, Loading(workers=workers, threads=threads, read_buffer=read_buffer, worker_buffer=worker_buffer))


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("read_buffer", [0, 1, 2, 8])
@pytest.mark.parametrize("source", [Ids, Many, Taking])
def test_the_whole_matrix(workers: int, threads: int, read_buffer: int, source: type[Ids]) -> None:
    run = Run(source=source, records=31, batch=12, seed=7, shuffle=True, ramp=Ramp(4, 4, 40))
    _matrix(run, Loading(workers=workers, threads=threads, read_buffer=read_buffer))
