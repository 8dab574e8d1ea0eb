"""`StreamSuite` on datasets with one planted fault each.

A fault is a small change of a sound dataset. Each must be found by the test that is there to find it, and the tests
that it does not concern must pass.
"""

import itertools
import threading
from collections.abc import Callable, Mapping
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import attrs
import numpy as np
import pytest

from dew.data import DataPartition, Dataset, Loading
from dew.data.build import ColumnSource, dataset_of
from dew.data.errors import PositionMismatchError
from dew.data.order import SequentialOrder
from dew.data.position import RecordPosition, position_from_json
from dew.data.stream import RecordStream, ValidationPass
from dew.testing import StreamSuite

Failing: TypeAlias = Callable[[Any], dict[str, BaseException]]
Later: TypeAlias = list[Callable[[], object]]

BATCH = 12
RECORDS = 150  # of a dataset with a fault; the sound ones have 37, so that epochs end within a step


def columns(records: int = 37, first: int = 0) -> dict[str, Any]:
    ids = np.arange(first, first + records)
    return {"id": ids, "x": np.linspace(0, 1, records * 3, dtype=np.float32).reshape(records, 3)}


def jitter(record: Any, rng: np.random.Generator) -> Any:
    return {"id": record["id"], "x": record["x"] + rng.random(3, dtype=np.float32)}


# Faults of what `train` returns: each takes the sound dataset, and returns a dataset with one fault


class Memory(ColumnSource):
    """Columns in memory, with a fingerprint that is not computed anew for every one of many streams."""

    def __init__(self, records: int = RECORDS, first: int = 0) -> None:
        super().__init__(columns(records, first))
        self.digest = f"{records} from {first}"

    def fingerprint(self) -> str:
        return self.digest


def sound() -> Dataset:
    return dataset_of(
        Memory(),
        batch=BATCH,
        seed=5,
        preprocess=jitter,
        val=Memory(29, 100),
        loading=Loading(workers=0, read_buffer=0, threads=1),
    )


@attrs.frozen
class Changed:
    """`train` whose streams are of a faulty class."""

    train: Any
    kind: type[RecordStream]

    def __call__(self, partition: DataPartition) -> RecordStream:
        return self.kind(self.train(partition)._setup)


def train_of(kind: "type[RecordStream]") -> Callable[[], Dataset]:
    def make() -> Dataset:
        data = sound()
        return attrs.evolve(data, train=Changed(data.train, kind))

    return make


class Counted(RecordStream):
    """Counts its batches; a subclass changes one."""

    number = 0

    def __next__(self) -> Any:
        batch = super().__next__()
        self.number += 1
        return self.changed(batch)

    def changed(self, batch: Any) -> Any:
        return batch


class LaterDtype(Counted):
    def changed(self, batch: Any) -> Any:
        return batch if self.number < 3 else {**batch, "x": batch["x"].astype(np.float64)}


class WholeBatch(RecordStream):
    """Every share gets as many rows as the global batch has."""

    def __next__(self) -> Any:
        batch = super().__next__()
        return {name: np.concatenate([value] * self.partition.count) for name, value in batch.items()}


class SharedArrays(Counted):
    """Fills the arrays of the first batch anew for each step."""

    kept: Any = None

    def changed(self, batch: Any) -> Any:
        if self.kept is None:
            self.kept = batch
        for name, value in batch.items():
            self.kept[name][...] = value
        return self.kept


class ReadOnly(Counted):
    def changed(self, batch: Any) -> Any:
        batch["x"].flags.writeable = False
        return batch


class Lists(Counted):
    def changed(self, batch: Any) -> Any:
        return {**batch, "id": batch["id"].tolist()}


class LocalIds(RecordStream):
    def ids(self, step: int) -> Any:
        return super().ids(step)[self.partition.index :: self.partition.count]


class EndsEarly(Counted):
    def __next__(self) -> Any:
        if self.number == 3:
            raise StopIteration
        return super().__next__()


class CountsAhead(RecordStream):
    """Saves the position of what was read ahead."""

    def get_state(self) -> Any:
        return self.position.at_step(self._step + 1).to_json()


class NamesItsShare(RecordStream):
    def get_state(self) -> Any:
        return {**super().get_state(), "accepted": [{"share": self.partition.index}]}

    def set_state(self, state: Any, accept: Any = ()) -> None:
        super().set_state({**state, "accepted": []}, accept)


class NoJson(RecordStream):
    def get_state(self) -> Any:
        return {**super().get_state(), "records": np.int64(super().get_state()["records"])}


class Deaf(RecordStream):
    """Takes no position."""

    def set_state(self, state: Any, accept: Any = ()) -> None:
        position_from_json(state)


class OnlyForwards(RecordStream):
    """Goes on from a position only before it has read anything past it."""

    def set_state(self, state: Any, accept: Any = ()) -> None:
        if "order" not in state or state["order"] != super().get_state()["order"] or state["records"] >= self._read():
            super().set_state(state, accept)

    def _read(self) -> int:
        return super().get_state()["records"]


class OneProcessOnly(RecordStream):
    """Restores in steps of its own share: a batch of n shares is taken for n steps."""

    def set_state(self, state: Any, accept: Any = ()) -> None:
        super().set_state(state, accept)
        self._step *= self.partition.count


class BeginsAgain(RecordStream):
    """A restored stream delivers its last batch once more."""

    def set_state(self, state: Any, accept: Any = ()) -> None:
        super().set_state(state, accept)
        self._step = max(0, self._step - 1)


class TakesAnything(RecordStream):
    """Takes the number out of a position, and looks at nothing else."""

    def set_state(self, state: Any, accept: Any = ()) -> None:
        position = position_from_json(state)
        if isinstance(position, RecordPosition):
            self._drop_feed()
            self._step = position.step


class TakesOtherSeeds(RecordStream):
    def set_state(self, state: Any, accept: Any = ()) -> None:
        order = {**state["order"], "seed": super().get_state()["order"]["seed"]} if "order" in state else {}
        super().set_state({**state, "order": order} if order else state, accept)


class RefusesNamelessly(RecordStream):
    def set_state(self, state: Any, accept: Any = ()) -> None:
        try:
            super().set_state(state, accept)
        except PositionMismatchError as error:
            raise PositionMismatchError("no", part=error.part, saved=None, current=None) from None


class KeepsAThread(RecordStream):
    stop = threading.Event()

    def __next__(self) -> Any:
        threading.Thread(target=self.stop.wait, name="left").start()
        return super().__next__()


class KeepsAFile(RecordStream):
    files: ClassVar[list[Any]] = []

    def __next__(self) -> Any:
        self.files.append(Path(__file__).open())  # noqa: SIM115 - on purpose
        return super().__next__()


class KeepsSharedMemory(RecordStream):
    blocks: ClassVar[list[Any]] = []

    def __next__(self) -> Any:
        self.blocks.append(shared_memory.SharedMemory(create=True, size=16))
        return super().__next__()


class NeverCloses(RecordStream):
    def close(self) -> None:
        """Nothing."""


class LooksEnded(RecordStream):
    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        return super().__next__()


class Undroppable(RecordStream):
    """Kept alive by what it started, so that only close() ends it."""

    alive: ClassVar[set[Any]] = set()

    def __next__(self) -> Any:
        if self not in self.alive:
            self.alive.add(self)
            self.stop = threading.Event()
            self.kept = threading.Thread(target=self.stop.wait, name="kept")
            self.kept.start()
        return super().__next__()

    def close(self) -> None:
        if self in self.alive:
            self.alive.discard(self)
            self.stop.set()
            self.kept.join()
        super().close()


# Faults of the order, of `preprocess` and of the dataset


@attrs.frozen
class Twice(SequentialOrder):
    """Reads every even record twice."""

    def at(self, places: Any) -> Any:
        return super().at(places) // 2 * 2

    def places(self, record: int, start: int, stop: int) -> Any:
        return np.array([place for place in range(start, stop) if self.at(place) == record], np.int64)


@attrs.frozen
class WrongInverse(SequentialOrder):
    def places(self, record: int, start: int, stop: int) -> Any:
        return super().places(record, start, stop)[1:]


def with_order(order: Any) -> Callable[[], Dataset]:
    return lambda: attrs.evolve(sound(), train=dataset_of(Memory(), batch=BATCH, order=order).train)


def with_preprocess(preprocess: Any) -> Callable[[], Dataset]:
    loading = Loading(workers=0, read_buffer=0, threads=1)
    return lambda: attrs.evolve(
        sound(), train=dataset_of(Memory(), batch=BATCH, preprocess=preprocess, loading=loading).train
    )


def careless(record: Any) -> Any:
    np.random.shuffle([1, 2])
    return {"id": record["id"]}


def of_the_thread(record: Any) -> Any:
    return {"id": record["id"], "thread": threading.current_thread() is threading.main_thread()}


def ignores_its_share() -> Dataset:
    data = sound()
    return attrs.evolve(data, train=lambda partition: data.train(DataPartition(0, partition.count)))


def draws_of_its_share() -> Dataset:
    """Each process seeds its draws with its own number."""

    def train(partition: DataPartition) -> Any:
        def draw(record: Any) -> Any:
            return {"id": record["id"], "x": np.random.default_rng([int(record["id"]), partition.index]).random()}

        return dataset_of(Memory(), batch=BATCH, preprocess=draw).train(partition)

    return Dataset(train=train, records=RECORDS, batch=BATCH)


def of_unknown_length() -> Dataset:
    return attrs.evolve(sound(), records=None)


class AlwaysOneSeed(StreamSuite):
    def make_dataset(self, *, seed: int = 5) -> Dataset:
        return sound()


# Faults of validation


class AllValid(ValidationPass):
    def __next__(self) -> Any:
        batch = super().__next__()
        return {**batch, "valid": np.ones_like(batch["valid"])}


def all_valid(data: Dataset, partition: DataPartition) -> Any:
    assert data.val is not None
    passed: Any = data.val(partition)
    return AllValid(passed._load, steps=len(passed), loading=passed._loading)


def val_of(change: Callable[[Dataset, DataPartition], Any]) -> Callable[[], Dataset]:
    def make() -> Dataset:
        data = sound()
        return attrs.evolve(data, val=lambda partition: change(data, partition))

    return make


def without_mask(data: Dataset, partition: DataPartition) -> Any:
    assert data.val is not None
    return ({name: value for name, value in batch.items() if name != "valid"} for batch in data.val(partition))


def fewer_on_the_last(data: Dataset, partition: DataPartition) -> Any:
    assert data.val is not None
    last = partition.count > 1 and partition.index == partition.count - 1
    return itertools.islice(data.val(partition), 2 if last else None)


def never_ends(data: Dataset, partition: DataPartition) -> Any:
    assert data.val is not None
    return itertools.cycle(list(data.val(partition)))


def same_share(data: Dataset, partition: DataPartition) -> Any:
    assert data.val is not None
    return data.val(DataPartition(0, partition.count))


def shuffles() -> Dataset:
    data, passes = sound(), itertools.count()

    def val(partition: DataPartition) -> Any:
        assert data.val is not None
        shift = next(passes)
        return ({**batch, "x": np.roll(batch["x"], shift, 0)} for batch in data.val(partition))

    return attrs.evolve(data, val=val)


def overlaps() -> Dataset:
    source = Memory()
    return dataset_of(source, batch=BATCH, val=source, allow_overlap=True)


def reversed_rows() -> Dataset:
    """A pass whose rows are not the records of the split in their order."""

    class Backwards(Memory):
        def take(self, indices: Any) -> Any:
            return super().take(len(self) - 1 - indices)

    return dataset_of(Memory(), batch=BATCH, val=Backwards(29, 100))


@attrs.frozen
class Fault:
    """A faulty dataset, the test that is there to find it, and others that cannot but fail with it."""

    make: Any
    found_by: str
    also: tuple[str, ...] = ()
    says: str = "."
    name: str = ""
    suite: Mapping[str, Any] = attrs.field(factory=dict[str, Any])

    def __str__(self) -> str:
        return self.name or self.make.__name__


LAYOUT = "test_batches_have_stable_fields_dtypes_and_shapes"
ROWS = "test_a_share_has_its_rows"
TILE = "test_shares_tile_the_global_batch"
OWNED = "test_batches_are_owned_by_the_receiver"
LENGTH = "test_knows_its_length_or_says_that_it_does_not"
LOADING = "test_content_does_not_depend_on_loading"
GLOBAL = "test_leaves_the_global_random_generators_alone"
CLOSE = "test_close_leaves_nothing_behind"
DROP = "test_a_dropped_stream_leaves_nothing_behind"
IDS = "test_rows_are_the_records_that_ids_names"
EPOCHS = "test_epochs_hold_each_record_once"
INVERSE = "test_the_order_finds_a_record_again"
SEED = "test_the_seed_makes_the_order"
CLAIM = "test_has_the_position_it_claims"
SAVES = "test_every_process_saves_the_same_position"
RESUMES = "test_resumes_at_every_step_on_every_process_count"
ANYWHERE = "test_restores_wherever_it_stands"
NEUTRAL = "test_setting_its_own_state_changes_nothing"
REFUSES = "test_refuses_positions_of_other_data"
V_ENDS = "test_validation_ends_together"
V_REPEATS = "test_validation_repeats"
V_TILE = "test_validation_shares_tile"
V_ONCE = "test_validation_scores_each_record_once"
V_SHARED = "test_validation_shares_nothing_with_training"

STREAMS = [
    (LaterDtype, LAYOUT, (RESUMES, ANYWHERE), "float64"),
    (WholeBatch, ROWS, (TILE, IDS, RESUMES), "share 0 of 2 has 12 rows instead of 6"),
    (SharedArrays, OWNED, (), "after others were read"),
    (ReadOnly, OWNED, (), "contiguous and writable"),
    (Lists, OWNED, (), "is a list"),
    (LocalIds, IDS, (), "ids"),
    (EndsEarly, TILE, (LAYOUT, ROWS, OWNED, LOADING, GLOBAL, IDS, SEED, SAVES, RESUMES, ANYWHERE, NEUTRAL), "ended"),
    (CountsAhead, SAVES, (RESUMES, ANYWHERE, NEUTRAL), "counts 12 records"),
    (NamesItsShare, SAVES, (), "shares 0 and 1 of 2 save accepted"),
    (NoJson, SAVES, (CLAIM, RESUMES, ANYWHERE, NEUTRAL, REFUSES, SEED), "is not JSON"),
    (Deaf, RESUMES, (ANYWHERE, REFUSES, SEED), "step 1"),
    (OnlyForwards, ANYWHERE, (), "stood before step"),
    (OneProcessOnly, RESUMES, (), "on 2 processes"),
    (BeginsAgain, NEUTRAL, (RESUMES, ANYWHERE), "records: 12 and 0"),
    (TakesAnything, REFUSES, (SEED,), "taken as the stream's own"),
    (TakesOtherSeeds, SEED, (REFUSES,), "another seed"),
    (RefusesNamelessly, REFUSES, (), "without naming it"),
    (KeepsAThread, CLOSE, (DROP,), "thread 'left'"),
    (KeepsAFile, CLOSE, (DROP,), "open file"),
    (KeepsSharedMemory, CLOSE, (DROP,), "shm"),
    (NeverCloses, CLOSE, (), "still hands out batches"),
    (LooksEnded, CLOSE, (), "raise StreamClosedError"),
    (Undroppable, DROP, (), "thread 'kept'"),
]

FAULTS = [
    *(Fault(train_of(kind), test, also, says, kind.__name__) for kind, test, also, says in STREAMS),
    Fault(with_order(Twice(records=RECORDS)), EPOCHS, (), "2 times instead of once", "twice"),
    Fault(with_order(WrongInverse(records=RECORDS)), INVERSE, (), "order.places says", "wrong inverse"),
    Fault(with_preprocess(careless), GLOBAL, (), "global random generator of numpy", "global generator"),
    Fault(with_preprocess(of_the_thread), LOADING, (), "threads=4", "of the thread"),
    Fault(ignores_its_share, TILE, (RESUMES,), "on 2 processes than on one"),
    Fault(draws_of_its_share, TILE, (RESUMES,), "field 'x'"),
    Fault(of_unknown_length, LENGTH, (), "known_length=True"),
    Fault(sound, CLAIM, (), "kind 'records', not 'shard'", "claims a shard", {"position": "shard"}),
    Fault(sound, CLAIM, (), "has get_state and set_state", "claims no position", {"position": None}),
    Fault(val_of(all_valid), V_ONCE, (), "scores 36 records; the split has 29", "all valid"),
    Fault(val_of(without_mask), V_ONCE, (), "no field 'valid'", "without mask"),
    Fault(val_of(fewer_on_the_last), V_ENDS, (V_TILE,), "sees 2 validation steps", "fewer on the last"),
    Fault(val_of(never_ends), V_ENDS, (V_REPEATS, V_TILE, V_ONCE), "not ended after 50 steps", "never ends"),
    Fault(val_of(same_share), V_TILE, (), "in validation on 2 processes", "same share"),
    Fault(shuffles, V_REPEATS, (V_TILE,), "second validation pass"),
    Fault(overlaps, V_SHARED, (), "share 150 records"),
    Fault(reversed_rows, V_ONCE, (), "is not record"),
]


def suite_of(fault: Fault | None) -> StreamSuite:
    class Suite(StreamSuite):
        steps = 4
        largest_count = 2
        leak_seconds = 0.1
        longest_pass = 50

        def make_dataset(self) -> Dataset:
            return sound() if fault is None else fault.make()

    for name, value in ({} if fault is None else fault.suite).items():
        setattr(Suite, name, value)
    return Suite()


@pytest.fixture
def leaks(later: Later) -> None:
    """Ends what the leaking streams leave."""
    KeepsAThread.stop.clear()
    later.append(KeepsAThread.stop.set)
    later.append(lambda: [file.close() for file in KeepsAFile.files])
    later.append(lambda: [(block.close(), block.unlink()) for block in KeepsSharedMemory.blocks])
    later.append(KeepsSharedMemory.blocks.clear)
    later.append(lambda: [stream.close() for stream in list(Undroppable.alive)])


def test_a_sound_dataset_passes(failing: Failing) -> None:
    assert failing(suite_of(None)) == {}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_each_fault_is_found_by_its_test(fault: Fault, failing: Failing, leaks: None) -> None:
    found = failing(suite_of(fault))
    assert set(found) == {fault.found_by, *fault.also}
    with pytest.raises(AssertionError, match=fault.says):
        raise found[fault.found_by]


def test_a_seed_that_changes_nothing_is_found(failing: Failing) -> None:
    assert set(failing(AlwaysOneSeed())) == {SEED}
