"""The order is fair: neighbours, positions and epochs are as unrelated as chance makes them.

Shown by statistics over fixed seeds, each with a bound that a planted unfair order breaks. A statistic is a normal
deviate, so that 4 is about one chance in 16 000, in both directions: counts that are too even are no accident either.
"""

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest

from dew.data import order as order_module
from dew.data.order import Places, ShuffledOrder, draws_at

BOUND = 4.0


def stretch(order: ShuffledOrder, start: int, count: int) -> Places:
    return order.at(np.arange(start, start + count, dtype=np.int64))


def epochs(order: ShuffledOrder, count: int) -> Places:
    """The first epochs, (count, records)."""
    return stretch(order, 0, count * order.records).reshape(count, order.records)


# Autocorrelation

LENGTH = 1 << 20
LAGS = 64


def autocorrelation(values: npt.NDArray[Any]) -> float:
    """The largest |r| over lags 1 to 64."""
    centred = values - values.mean()
    spectrum = np.fft.rfft(centred, 2 * LENGTH)
    products = np.fft.irfft(spectrum * np.conj(spectrum))[: LAGS + 1]
    return float(np.abs(products[1:] / products[0]).max())


def random_values(records: int, seed: int) -> npt.NDArray[Any]:
    """NumPy's own permutations; past what it can permute, numbers that are as good as drawn from one."""
    rng = np.random.default_rng(seed)
    if records > LENGTH:
        return rng.random(LENGTH)
    return np.concatenate([rng.permutation(records) for _ in range(LENGTH // records + 1)])[:LENGTH]


def autocorrelation_ratio(records: int, seeds: range, at: Callable[[int], npt.NDArray[Any]]) -> float:
    ours = max(autocorrelation(at(seed)) for seed in seeds)
    return ours / max(autocorrelation(random_values(records, seed)) for seed in seeds)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(8), marks=pytest.mark.nightly)])
@pytest.mark.parametrize("records", [10**6, 10**9, 10**12])
def test_neighbours_are_as_unrelated_as_random_numbers(records: int, seeds: range) -> None:
    def ours(seed: int) -> Places:
        return stretch(ShuffledOrder(records=records, seed=seed), 0, LENGTH)

    assert autocorrelation_ratio(records, seeds, ours) <= 1.3


def test_related_neighbours_are_found() -> None:
    def in_pairs(seed: int) -> Places:
        """One record in 200 stands beside its neighbour in the source."""
        found = stretch(ShuffledOrder(records=10**9, seed=seed), 0, LENGTH)
        found[1::200] = found[0::200][: len(found[1::200])] + 1
        return found

    assert autocorrelation_ratio(10**9, range(2), in_pairs) > 1.3


# Fairness, over 20 000 pairs of seed and epoch

PAIRS = 20_000
EPOCHS = 100


@attrs.define
class Counts:
    """How often each of N x N cells was hit, by permutations: each adds one to every row and every column."""

    records: int
    permutations: int = 0
    table: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.table = np.zeros(self.records**2, np.int64)

    def add(self, rows: Places, columns: Places) -> None:
        cells = (rows * self.records + columns).ravel()
        self.table += np.bincount(cells, minlength=self.records**2)
        self.permutations += cells.size // self.records

    def deviate(self) -> float:
        """Chi squared of the table as a normal deviate.

        Rows and columns have fixed sums, which leaves (N - 1)^2 degrees of freedom, and the entries of one permutation
        hang together, which makes Pearson's sum larger by N / (N - 1).
        """
        expected = self.permutations / self.records
        chi2 = ((self.table - expected) ** 2 / expected).sum() * (self.records - 1) / self.records
        return as_normal(chi2, (self.records - 1) ** 2)


def as_normal(chi2: float, freedom: int) -> float:
    """Wilson and Hilferty's approximation: the cube root of chi squared is nearly normal."""
    spread = 2 / (9 * freedom)
    return float(((chi2 / freedom) ** (1 / 3) - 1 + spread) / np.sqrt(spread))


def fairness(records: int, sample: Iterator[Places]) -> dict[str, float]:
    """Deviates: where records stand, and whether an epoch says anything about the next one."""
    position = np.arange(records)
    standing, next_record, next_place = Counts(records), Counts(records), Counts(records)
    for found in sample:
        standing.add(np.broadcast_to(position, found.shape), found)
        next_record.add(found[:-1], found[1:])
        places = np.argsort(found, axis=1)
        next_place.add(places[:-1], places[1:])
    return {
        "record at a position": standing.deviate(),
        "record of the next epoch at the position of a record": next_record.deviate(),
        "position in the next epoch of the record at a position": next_place.deviate(),
    }


def samples(records: int, *, run: int = EPOCHS, pairs: int = PAIRS) -> Iterator[Places]:
    for seed in range(pairs // run):
        yield epochs(ShuffledOrder(records=records, seed=seed), run)


@pytest.mark.parametrize("records", [*range(2, 17), 100, pytest.param(1000, marks=pytest.mark.nightly)])
def test_every_record_stands_everywhere_equally_often(records: int) -> None:
    found = fairness(records, samples(records))
    assert max(map(abs, found.values())) < BOUND, found


@pytest.mark.nightly
@pytest.mark.parametrize("records", [2, 3, 5, 16, 100])
def test_fair_over_seeds_as_over_epochs(records: int) -> None:
    found = fairness(records, samples(records, run=2))
    assert max(map(abs, found.values())) < BOUND, found


def permutation_deviate(records: int, sample: Iterator[Places]) -> float:
    """Chi squared over all N! permutations, as a normal deviate."""
    codes = np.concatenate([found @ records ** np.arange(records) for found in sample])
    _, counts = np.unique(codes, return_counts=True)
    possible = int(np.prod(np.arange(1, records + 1)))
    expected = len(codes) / possible
    chi2 = ((counts - expected) ** 2 / expected).sum() + (possible - len(counts)) * expected
    return as_normal(float(chi2), possible - 1)


@pytest.mark.parametrize("records", [2, 3, 4, 5, 6])
def test_every_permutation_comes_up_equally_often(records: int) -> None:
    assert abs(permutation_deviate(records, samples(records))) < BOUND


# Planted unfair orders: the bounds above find each of them


def naive_shuffles(records: int, seed: int) -> Places:
    """Each place swapped with any place, a common mistake: some permutations come up more often."""
    rng = np.random.default_rng(seed)
    found = np.tile(np.arange(records), (EPOCHS, 1))
    row = np.arange(EPOCHS)
    for place in range(records):
        other = rng.integers(records, size=EPOCHS)
        found[row, place], found[row, other] = found[row, other].copy(), found[row, place].copy()
    return found


def random_shuffles(records: int, seed: int) -> Places:
    rng = np.random.default_rng(seed)
    return rng.permuted(np.tile(np.arange(records), (EPOCHS, 1)), axis=1)


def rotated_shuffles(records: int, seed: int) -> Places:
    """One epoch in eight is the one before, moved by one: fair in every epoch, and no fresh permutation."""
    found = random_shuffles(records, seed)
    found[1::8] = np.roll(found[0::8][: len(found[1::8])], 1, axis=1)
    return found


@pytest.mark.parametrize("records", [5, 16, 100])
def test_random_shuffles_pass(records: int) -> None:
    found = fairness(records, (random_shuffles(records, seed) for seed in range(PAIRS // EPOCHS)))
    assert max(map(abs, found.values())) < BOUND, found


@pytest.mark.parametrize("records", [3, 5, 16, 100])
def test_a_biased_shuffle_is_found(records: int) -> None:
    found = fairness(records, (naive_shuffles(records, seed) for seed in range(PAIRS // EPOCHS)))
    assert found["record at a position"] > BOUND


@pytest.mark.parametrize("records", [5, 16])
def test_epochs_that_hang_together_are_found(records: int) -> None:
    found = fairness(records, (rotated_shuffles(records, seed) for seed in range(PAIRS // EPOCHS)))
    assert abs(found["record at a position"]) < BOUND
    assert found["position in the next epoch of the record at a position"] > BOUND


def test_too_few_rounds_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_module, "_ROUNDS_SMALL", 4)
    assert fairness(5, samples(5))["record at a position"] > BOUND
    monkeypatch.setattr(order_module, "_ROUNDS_SMALL", 8)
    assert permutation_deviate(5, samples(5)) > BOUND


# Draws


def test_draws_are_uniform_over_places() -> None:
    values = np.array([draws_at(0, place).random() for place in range(20_000)])
    counts = np.bincount((values * 16).astype(int), minlength=16)
    chi2 = float(((counts - 1250) ** 2 / 1250).sum())
    assert abs(as_normal(chi2, 15)) < BOUND
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < BOUND / np.sqrt(len(values))
