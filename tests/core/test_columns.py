"""Ready-made preprocess functions: fields kept and cast by name, and nothing cast that does not fit."""

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from dew.data.build import columns, dataset_of, identity
from dew.data.dataset import DataPartition
from dew.data.errors import OptionsError, SourceError


class Lazy(Mapping[str, Any]):
    """A row that reads a field when it is asked for."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values_ = values
        self.read: list[str] = []

    def __getitem__(self, name: str) -> Any:
        self.read.append(name)
        return self.values_[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


def test_identity_gives_the_record_back() -> None:
    record = {"x": 1}
    assert identity(record) is record


def test_columns_keeps_and_casts_by_name() -> None:
    row = Lazy({"image": np.zeros(2, np.uint8), "label": 7, "text": "abc"})
    kept = columns("image", label="int32")(row)
    assert list(kept) == ["image", "label"]
    assert kept["image"].dtype == np.uint8
    assert (kept["label"].dtype, kept["label"].shape, int(kept["label"])) == (np.dtype("int32"), (), 7)
    assert row.read == ["image", "label"]
    assert pickle.loads(pickle.dumps(columns("image", label="int32"))) == columns("image", label="int32")
    dataset = dataset_of([{"id": index} for index in range(8)], batch=4, preprocess=columns(id="uint8"))
    with dataset.train(DataPartition()) as stream:  # type: ignore[attr-defined]
        assert next(stream)["id"].dtype == np.uint8


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(255, "uint8"), (-128, "int8"), (2.0, "int32"), (True, "int32"), (1, "bool"), (1.5, "float16"), (7, "float32")],
)
def test_values_that_fit_are_cast(value: Any, dtype: str) -> None:
    found = columns(x=dtype)({"x": value})["x"]
    assert found.dtype == np.dtype(dtype)
    assert found == value
    assert columns(x=dtype)({"x": np.zeros((0, 3))})["x"].shape == (0, 3)
    assert np.isnan(columns(x="float32")({"x": np.nan})["x"])
    assert np.isinf(columns(x="float32")({"x": np.inf})["x"])


@pytest.mark.parametrize(
    ("value", "dtype", "match"),
    [
        (256, "uint8", "field 'x' holds 256 to 256, which uint8 cannot"),
        (np.array([3, -1]), "uint8", "field 'x' holds -1 to 3, which uint8 cannot"),
        (1 << 63, "int64", "which int64 cannot"),
        (1.5, "int32", "field 'x' holds fractions or no numbers, which int32 cannot"),
        (np.nan, "int32", "field 'x' holds fractions or no numbers, which int32 cannot"),
        (np.inf, "int32", "field 'x' holds fractions or no numbers, which int32 cannot"),
        (2, "bool", "field 'x' holds 2 to 2, which bool cannot"),
        (1e300, "float32", r"field 'x' holds 1e\+300 to 1e\+300, which float32 cannot"),
        (70_000, "float16", "field 'x' holds 70000 to 70000, which float16 cannot"),
        ("7", "int32", "field 'x' holds <U1 values, which cannot become int32"),
        (None, "int32", "field 'x' holds object values, which cannot become int32"),
    ],
)
def test_values_that_do_not_fit_are_refused(value: Any, dtype: str, match: str) -> None:
    with pytest.raises(SourceError, match=match):
        columns(x=dtype)({"x": value})


def test_columns_that_cannot_be_are_refused() -> None:
    with pytest.raises(SourceError, match=r"the record has no field 'y'; it has \['x', 'z'\]"):
        columns("y")({"z": 1, "x": 2})
    with pytest.raises(OptionsError, match=r"columns\(\) needs at least one field to keep"):
        columns()
    for dtype in ("U4", "S4", "O", "datetime64[s]"):
        with pytest.raises(OptionsError, match=r"columns\(x=.*\) is asked for, but fields are cast to numbers only"):
            columns(x=dtype)
