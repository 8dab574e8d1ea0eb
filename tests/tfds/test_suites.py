"""The conformance kit on the provider "tfds"; see test_source.py for its sources and streams one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dew.data import TFDSOptions
from dew.testing import ProviderSuite


def cropped(record: Any, rng: np.random.Generator) -> Any:
    at = int(rng.integers(0, 4))
    return {"id": record["id"], "image": record["image"][at : at + 4], "draw": rng.random()}


class TestImages(ProviderSuite):
    """Rows are as the builder stored them until `preprocess` shapes them."""

    source = "tfds/dew_images"
    splits = ("train", "test")
    steps = 3
    largest_count = 4

    @pytest.fixture(autouse=True)
    def _given(self, images: Path) -> None:
        self.path = self.location = str(images)

    def arguments(self) -> dict[str, Any]:
        return {"options": TFDSOptions(path=self.path), "preprocess": cropped, "val_split": "test"}
