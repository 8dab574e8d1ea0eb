"""Sources whose records have random parts: `drawn` in training, `source[index]` in validation."""

from typing import Any

import numpy as np
import pytest

from dew.data import DataPartition, DewWarning, Loading, Mixture, train_stream, validation_pass
from dew.data.build import dataset_of
from dew.data.order import ShuffledOrder, draws_at

NOW = Loading(workers=0, read_buffer=0)
RECORDS, BATCH, SEED = 24, 6, 5


class Drawing:
    """Record i is `{"id": i, "chance": 0}`, and a random number in place of 0 when it is drawn."""

    def __init__(self, start: int = 0) -> None:
        self.start = start

    def __len__(self) -> int:
        return RECORDS

    def __repr__(self) -> str:
        return f"Drawing({self.start})"

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < RECORDS:
            raise IndexError(index)
        return {"id": self.start + index, "chance": 0}

    def drawn(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        return {"id": self.start + index, "chance": int(rng.integers(1, 2**62))}


class Whole(Drawing):
    """The same where the source could build whole steps, without chance."""

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        return {"id": self.start + indices, "chance": np.zeros(len(indices), np.int64)}

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


def expected(place: int) -> tuple[int, int]:
    record = int(ShuffledOrder(records=RECORDS, seed=SEED).at(np.array([place]))[0])
    return record, int(draws_at(SEED, place).integers(1, 2**62))


def rows(batch: Any) -> list[tuple[int, int]]:
    return list(zip(batch["id"].tolist(), batch["chance"].tolist(), strict=True))


@pytest.mark.parametrize("source", [Drawing(), Whole()], ids=["one by one", "whole steps"])
@pytest.mark.parametrize("loading", [NOW, Loading(workers=0, threads=3), Loading(workers=2)], ids=str)
def test_training_reads_each_record_with_the_draws_of_its_place(source: Drawing, loading: Loading) -> None:
    for count in (1, 2, 3):
        for index in range(count):
            partition = DataPartition(index, count)
            with train_stream(source, batch=BATCH, seed=SEED, partition=partition, loading=loading) as stream:
                for step in range(6):
                    places = range(step * BATCH, (step + 1) * BATCH)[index::count]
                    assert rows(next(stream)) == [expected(place) for place in places]


@pytest.mark.parametrize("source", [Drawing(), Whole()], ids=["one by one", "whole steps"])
def test_validation_reads_records_without_chance(source: Drawing) -> None:
    with validation_pass(source, batch=BATCH, seed=SEED, loading=NOW) as one_pass:
        assert [row for batch in one_pass for row in rows(batch)] == [(index, 0) for index in range(RECORDS)]


def twice(record: Any, rng: np.random.Generator) -> dict[str, Any]:
    return {**record, "more": int(rng.integers(1, 2**62))}


def test_a_preprocess_goes_on_with_the_same_draws() -> None:
    with train_stream(Drawing(), batch=BATCH, seed=SEED, preprocess=twice, loading=NOW) as stream:
        batch = next(stream)
    for place in range(BATCH):
        rng = draws_at(SEED, place)
        assert (batch["chance"][place], batch["more"][place]) == (rng.integers(1, 2**62), rng.integers(1, 2**62))


def test_a_preprocess_without_draws_gets_the_drawn_record() -> None:
    with train_stream(Drawing(), batch=BATCH, seed=SEED, preprocess=dict, loading=NOW) as stream:
        assert rows(next(stream)) == [expected(place) for place in range(BATCH)]


def test_a_mixture_hands_the_draws_to_the_parts_that_take_them() -> None:
    plain = [{"id": 100 + index, "chance": -1} for index in range(RECORDS)]
    parts = {
        "drawn": (dataset_of(Drawing(), batch=BATCH, loading=NOW), 1),
        "plain": (dataset_of(plain, batch=BATCH, loading=NOW), 1),
    }
    dataset = Mixture(parts, seed=SEED, loading=NOW).load(batch=BATCH)
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        found = [row for _ in range(8) for row in rows(next(stream))]
    drawn = [(place, row) for place, row in enumerate(found) if row[0] < 100]
    assert 16 < len(drawn) < 32
    assert all(chance == int(draws_at(SEED, place).integers(1, 2**62)) for place, (_, chance) in drawn)
    assert all(chance == -1 for record, chance in found if record >= 100)


def test_an_error_names_the_part_that_was_drawing() -> None:
    class Failing(Drawing):
        def drawn(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
            raise KeyError("caption")

    parts = {
        "bad": (dataset_of(Failing(), batch=BATCH, loading=NOW), 1),
        "good": (dataset_of(Drawing(50), batch=BATCH, loading=NOW), 1),
    }
    dataset = Mixture(parts, loading=NOW).load(batch=BATCH)
    with dataset.train(DataPartition()) as stream, pytest.raises(KeyError, match="caption") as raised:  # type: ignore[attr-defined]
        next(stream)
    assert any("part 'bad'" in note for note in raised.value.__notes__)


class Decoded(Drawing):
    """Made by a library of some version."""

    version = "1"

    def made_by(self) -> dict[str, str]:
        return {"decoder": self.version}


class Newer(Decoded):
    version = "2"


def test_another_version_of_a_library_that_shapes_content_warns() -> None:
    Newer.__qualname__ = Decoded.__qualname__
    with train_stream(Decoded(), batch=BATCH, seed=SEED, loading=NOW) as stream:
        state = stream.get_state()
    assert state["made_by"]["decoder"] == "1"
    newer = train_stream(Newer(), batch=BATCH, seed=SEED, loading=NOW)
    with newer, pytest.warns(DewWarning, match="decoder"):
        newer.set_state(state)


def test_a_mixture_is_made_by_what_its_parts_are_made_by() -> None:
    parts = {
        "one": (dataset_of(Decoded(), batch=BATCH, loading=NOW), 1),
        "two": (dataset_of(Drawing(99), batch=BATCH), 1),
    }
    with Mixture(parts, loading=NOW).load(batch=BATCH).train(DataPartition()) as stream:  # type: ignore[attr-defined]
        assert stream.get_state()["made_by"]["decoder"] == "1"
