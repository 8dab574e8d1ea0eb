"""What is said of two batches that differ: the field, the row, and values that are seen to differ."""

from typing import Any

import numpy as np
import pytest

from dew.testing.compare import difference, whole_step
from dew.testing.counterexample import Counterexample

ZEROS = np.zeros((40, 20), np.uint8)
CUBE = ZEROS.reshape(2, 20, 20)


def changed(row: int, column: int) -> Any:
    other = ZEROS.copy()
    other[row, column] = 7
    return other


@pytest.mark.parametrize(
    ("here", "there", "text", "row"),
    [
        (ZEROS, changed(2, 0), "field 'x' is [0 0 0 ... 0 0 0] and [7 0 0 ... 0 0 0] in row 2", 2),
        (ZEROS, changed(1, 9), "field 'x' is 0 and 7 at [9] in row 1", 1),
        (CUBE, changed(39, 9).reshape(2, 20, 20), "field 'x' is 0 and 7 at [19, 9] in row 1", 1),
        (np.array(["a" * 99]), np.array(["a" * 98 + "b"]), "field 'x' is 'a' and 'b' from letter 98 in row 0", 0),
        (np.array(3), np.array(4), "field 'x' is 3 and 4", None),
    ],
)
def test_the_first_difference_in_words(here: Any, there: Any, text: str, row: int | None) -> None:
    found = difference({"x": here}, {"x": there})
    assert found is not None
    assert (found.text, found.row) == (text, row)
    assert difference({"x": here}, {"x": here}) is None


def test_a_step_of_all_shares() -> None:
    """Also of fields without a value; a field without rows is no batch's."""
    shares = [{"x": np.array([n, n + 2]), "none": np.zeros((2, 0, 3))} for n in range(2)]
    whole = whole_step(shares)
    assert whole["x"].tolist() == [0, 1, 2, 3]
    assert whole["none"].shape == (4, 0, 3)
    with pytest.raises(Counterexample, match=r"field 'x' of a batch has no rows: 3"):
        whole_step([{"x": np.array(3)}])
