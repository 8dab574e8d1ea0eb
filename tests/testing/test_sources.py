"""`SourceSuite` on sound sources, and on sources with one planted fault each, which a named test must find."""

import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import numpy as np
import pytest

from dew.data.build import in_memory
from dew.data.source import RecordSource
from dew.testing import SourceSuite

Failing: TypeAlias = Callable[[Any], dict[str, BaseException]]
Later: TypeAlias = list[Callable[[], object]]

RECORDS = 20


class TestColumnSource(SourceSuite):
    largest_pickle = None

    def make_source(self) -> RecordSource:
        return in_memory({"id": np.arange(37), "x": np.linspace(0, 1, 37 * 3, dtype=np.float32).reshape(37, 3)})


class TestRowSource(SourceSuite):
    largest_pickle = None

    def make_source(self) -> RecordSource:
        return in_memory([{"id": index, "name": f"record {index}", "in": {"y": np.ones(2)}} for index in range(9)])


class TestRaggedSource(SourceSuite):
    largest_pickle = None
    one_shape = False

    def make_source(self) -> RecordSource:
        return in_memory([{"x": np.arange(index % 4)} for index in range(9)])


class Sound:
    """A source with every optional method, without a fault."""

    def __init__(self) -> None:
        self.x = np.arange(2.0 * RECORDS).reshape(RECORDS, 2)

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < RECORDS:
            raise IndexError(index)
        return {"x": self.x[index].copy(), "in": {"id": np.int64(index)}}

    def __getitems__(self, indices: Any) -> Any:
        return [self[index] for index in indices]

    def take(self, indices: Any) -> Any:
        return {"x": self.x[indices], "in": {"id": np.array(indices, np.int64)}}

    def drawn(self, index: int, rng: np.random.Generator) -> Any:
        record = self[index]
        return {**record, "x": record["x"] + rng.random(2)}

    def open(self) -> Any:
        return type(self)()

    def close(self) -> None:
        """Nothing is held."""

    def fingerprint(self) -> str:
        return "0"

    def identity(self) -> Any:
        return {"columns": 2}

    def __repr__(self) -> str:
        return "Sound()"

    def __reduce__(self) -> Any:
        return type(self), ()


class Grows(Sound):
    opened = 0

    def __init__(self) -> None:
        super().__init__()
        Grows.opened += 1
        self.records = RECORDS + Grows.opened % 2

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> Any:
        if index >= self.records:
            raise IndexError(index)
        return super().__getitem__(index % RECORDS)

    def take(self, indices: Any) -> Any:
        return super().take(np.asarray(indices) % RECORDS)


class Noisy(Sound):
    def __getitem__(self, index: int) -> Any:
        record = super().__getitem__(index)
        return {**record, "x": record["x"] + time.monotonic_ns()}

    take = None  # type: ignore[assignment]


class OneBufferForAll(Sound):
    """All sources share one buffer, so that each record seems to be what is read next."""

    buffer = np.zeros(2)

    def __getitem__(self, index: int) -> Any:
        OneBufferForAll.buffer[:] = super().__getitem__(index)["x"]
        return {"x": OneBufferForAll.buffer, "in": {"id": np.int64(index)}}

    __getitems__ = take = drawn = property()  # type: ignore[assignment]


class NoPickle(Sound):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle a lock")


class OtherDtype(Sound):
    def __getitem__(self, index: int) -> Any:
        record = super().__getitem__(index)
        return {**record, "x": record["x"].astype(np.float32)} if index == RECORDS - 1 else record

    def drawn(self, index: int, rng: Any) -> Any:
        return self[index]


class OtherShape(OtherDtype):
    def __getitem__(self, index: int) -> Any:
        record = Sound.__getitem__(self, index)
        return {**record, "x": record["x"][:1]} if index == 0 else record


class OtherFields(OtherDtype):
    def __getitem__(self, index: int) -> Any:
        record = Sound.__getitem__(self, index)
        return {**record, "more": 1} if index == RECORDS - 1 else record


class OneBuffer(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.zeros(2)

    def __getitem__(self, index: int) -> Any:
        record = super().__getitem__(index)
        self.buffer[:] = record["x"]
        return {**record, "x": self.buffer}


class Wraps(Sound):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index % RECORDS)


class KeyErrors(Sound):
    def __getitem__(self, index: int) -> Any:
        if index >= RECORDS:
            raise KeyError(index)
        return super().__getitem__(index)


class SortedTake(Sound):
    def take(self, indices: Any) -> Any:
        return super().take(np.sort(indices))


class FewerItems(Sound):
    def __getitems__(self, indices: Any) -> Any:
        return super().__getitems__(list(dict.fromkeys(indices)))


class Views(Sound):
    kept = np.arange(2.0 * RECORDS).reshape(RECORDS, 2)

    def __init__(self) -> None:
        self.x = self.kept

    def __getitem__(self, index: int) -> Any:
        return {**super().__getitem__(index), "x": self.x[index]}


class HandsItsIndicesOn(Sound):
    """A batch that is written into would change the order that it was read in."""

    def take(self, indices: Any) -> Any:
        return {"x": self.x[indices], "in": {"id": indices}}


class KeptColumns(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.last: Any = None

    def take(self, indices: Any) -> Any:
        if self.last is None or len(self.last["x"]) != len(indices):
            self.last = super().take(indices)
        return self.last


class OneCursor(Sound):
    """As a file that is sought and then read, without a lock."""

    at = 0

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < RECORDS:
            raise IndexError(index)
        self.at = index
        time.sleep(0.001)
        return super().__getitem__(self.at)


class PicklesContent(Sound):
    def __init__(self, content: Any = None) -> None:
        super().__init__()

    def __reduce__(self) -> Any:
        return type(self), (np.zeros(9000),)


class ForgetsInPickle(Sound):
    def __init__(self, shift: int = 0) -> None:
        super().__init__()
        self.x += shift

    def __reduce__(self) -> Any:
        return type(self), (1,)


class NamesItsPath(Sound):
    def __repr__(self) -> str:
        return "Source(/data/corpus)"


class NamesItsAddress(Sound):
    def __repr__(self) -> str:
        return f"<Source at 0x{id(self):x}>"


class NamesNothing(Sound):
    __repr__ = object.__repr__


class OtherFingerprint(Sound):
    def fingerprint(self) -> str:
        return str(time.monotonic_ns())


class OtherIdentity(Sound):
    def identity(self) -> Any:
        return {"opened": time.monotonic_ns()}


class OneReader(Sound):
    """All readers share what the first to close closes."""

    closed = False

    def __getitem__(self, index: int) -> Any:
        if self.closed:
            raise ValueError("closed")
        return super().__getitem__(index)

    def open(self) -> Any:
        self.closed = False
        return self

    def close(self) -> None:
        self.closed = True


class LeavesAThread(Sound):
    stop = threading.Event()

    def open(self) -> Any:
        other = type(self)()
        threading.Thread(target=self.stop.wait, name="left").start()
        return other


class DrawsOfItsOwn(Sound):
    def drawn(self, index: int, rng: Any) -> Any:
        record = self[index]
        return {**record, "x": record["x"] + np.random.default_rng().random(2)}


class DrawsAnotherShape(Sound):
    def drawn(self, index: int, rng: Any) -> Any:
        record = self[index]
        return {**record, "x": record["x"][: int(rng.integers(1, 2))]}


class DrawsInPlace(Sound):
    def drawn(self, index: int, rng: Any) -> Any:
        self.x[index] += rng.random(2)
        return self[index]


class UsesRandom(Sound):
    def __getitem__(self, index: int) -> Any:
        random.random()
        return super().__getitem__(index)


class UsesNumpyRandom(Sound):
    def drawn(self, index: int, rng: Any) -> Any:
        np.random.shuffle([1, 2])
        return super().drawn(index, rng)


@attrs.frozen
class Fault:
    """A faulty source, the test that is there to find it, and others that cannot but fail with it."""

    source: type[Sound]
    found_by: str
    also: tuple[str, ...] = ()
    says: str = ""


TWICE = "test_reads_the_same_record_twice"
STAYS = "test_a_record_stays_what_it_was"
MANY = "test_many_at_once_are_the_same_records"
OWNED = "test_changing_a_record_in_place_leaves_the_source_alone"
THREADS = "test_threads_read_the_same_records"
PICKLES = "test_pickles_by_path"
LAYOUT = "test_fields_dtypes_and_shapes_are_stable"
ABSENT = "test_refuses_records_that_do_not_exist"
DESCRIBES = "test_describes_its_data"
IDENTITY = "test_identity_is_stable"
READER = "test_opens_a_reader_of_its_own"
FREES = "test_closing_a_reader_frees_what_it_holds"
DRAWN = "test_drawn_records_follow_their_generator"
GLOBAL = "test_reading_leaves_the_global_random_generators_alone"

FAULTS = [
    Fault(Grows, "test_has_a_length", (PICKLES, THREADS), "when it is opened anew"),
    Fault(Noisy, TWICE, (MANY, OWNED, THREADS, PICKLES, READER, DRAWN), "is not the same when it is read again"),
    Fault(OtherDtype, LAYOUT, (MANY,), "record 19"),
    Fault(OtherShape, LAYOUT, (MANY,), r"'x': 'float64 \(1,\)'"),
    Fault(OtherFields, LAYOUT, (MANY,), "'more'"),
    Fault(OneBuffer, STAYS, (THREADS, MANY), "changed when other records were read"),
    Fault(OneBufferForAll, STAYS, (THREADS,), "changed when other records were read"),
    Fault(NoPickle, PICKLES, says=r"does not pickle, .*TypeError: cannot pickle a lock; define __reduce__"),
    Fault(Wraps, ABSENT, says="as if it existed"),
    Fault(KeyErrors, ABSENT, says="KeyError, not an IndexError"),
    Fault(SortedTake, MANY, says="is another from take"),
    Fault(FewerItems, MANY, says="asked for 18 records and returned 16"),
    Fault(Views, OWNED, says="changed in place"),
    Fault(HandsItsIndicesOn, OWNED, says="columns from take were changed"),
    Fault(KeptColumns, OWNED, says="columns from take were changed"),
    Fault(OneCursor, THREADS, says="eight threads"),
    Fault(PicklesContent, PICKLES, says="by path, never by content"),
    Fault(ForgetsInPickle, PICKLES, says="after a pickle"),
    Fault(NamesItsPath, DESCRIBES, says="names a location"),
    Fault(NamesItsAddress, DESCRIBES, says="object's address"),
    Fault(NamesNothing, DESCRIBES, says="has no __repr__"),
    Fault(OtherFingerprint, IDENTITY, says="the fingerprint is"),
    Fault(OtherIdentity, IDENTITY, says="the identity is"),
    Fault(OneReader, READER, says="closing one reader broke another"),
    Fault(LeavesAThread, FREES, says="thread 'left'"),
    Fault(DrawsOfItsOwn, DRAWN, says="otherwise from an equal generator"),
    Fault(DrawsAnotherShape, DRAWN, says=r"drawn\(i\)"),
    Fault(DrawsInPlace, DRAWN, says="otherwise from an equal generator"),
    Fault(UsesRandom, GLOBAL, says="the module random"),
    Fault(UsesNumpyRandom, GLOBAL, says=r"numpy\.random"),
]


def suite_of(source: type[Sound]) -> SourceSuite:
    class Suite(SourceSuite):
        location = "/data"
        leak_seconds = 0.1

        def make_source(self) -> RecordSource:
            return source()

    return Suite()


def test_a_sound_source_passes(failing: Failing) -> None:
    assert failing(suite_of(Sound)) == {}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.source.__name__)
def test_each_fault_is_found_by_its_test(fault: Fault, failing: Failing, later: Later) -> None:
    LeavesAThread.stop.clear()
    later.append(LeavesAThread.stop.set)
    found = failing(suite_of(fault.source))
    assert set(found) == {fault.found_by, *fault.also}
    with pytest.raises(AssertionError, match=fault.says):
        raise found[fault.found_by]
