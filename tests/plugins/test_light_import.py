"""`import dew.data` stays light, and loading from one provider imports that provider's plugin alone."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

WriteDistribution = Callable[..., Path]
RunPython = Callable[..., str]

HEAVY = {
    "PIL",
    "av",
    "click",
    "datasets",
    "fsspec",
    "grain",
    "jax",
    "jinja2",
    "pyarrow",
    "rich",
    "tensorflow",
    "tensorflow_datasets",
    "tokenizers",
    "torch",
}
PROVIDERS = {"dew.tokens", "dew_hf", "dew_media", "dew_tfds"}

# What is loaded, by the first word and, for Dew's own and the one module of the standard library, by the first two.
PRINT_MODULES = """
import json, sys
print(json.dumps(sorted({".".join(name.split(".")[:n]) for name in sys.modules for n in (1, 2)})))
"""


def loaded(run_python: RunPython, script: str, *paths: Path, alone: bool = False) -> set[str]:
    return set(json.loads(run_python(script + PRINT_MODULES, *paths, alone=alone)))


def test_import_dew_data_loads_nothing_heavy(run_python: RunPython) -> None:
    modules = loaded(run_python, "import dew.data")
    assert modules & (HEAVY | PROVIDERS | {"importlib.metadata", "dew.training", "dew.cli", "dew.testing"}) == set()


def test_a_plugin_is_not_imported_with_dew_data(
    tmp_path: Path, write_distribution: WriteDistribution, run_python: RunPython
) -> None:
    write_distribution(tmp_path, "dew-heavy", "1.0", "heavy")
    assert "dew_heavy_plugin" not in loaded(run_python, "import dew.data", tmp_path)


def test_every_public_name_is_light_too(run_python: RunPython) -> None:
    script = "import dew.data\nfor name in dew.data.__all__: getattr(dew.data, name)\ndir(dew.data)\n"
    assert loaded(run_python, script) & (HEAVY | PROVIDERS | {"importlib.metadata"}) == set()


@pytest.mark.parametrize("owner", ["dew_hf", "dew_media", "dew_tfds", "dew.tokens"])
def test_the_packages_of_providers_are_light(run_python: RunPython, owner: str) -> None:
    others = PROVIDERS - {owner}
    assert loaded(run_python, f"import {owner}") & (HEAVY | others) == set()


def test_load_imports_the_plugin_that_was_asked_for_alone(
    tmp_path: Path, write_distribution: WriteDistribution, run_python: RunPython
) -> None:
    write_distribution(tmp_path, "dew-asked", "1.0", "asked")
    write_distribution(tmp_path, "dew-other", "1.0", "other")
    script = """
from dew.data import DataPartition, Loading, load
with load("asked/x", batch=2, loading=Loading(workers=0)).train(DataPartition()) as stream:
    next(stream)
"""
    modules = loaded(run_python, script, tmp_path)
    assert "dew_asked_plugin" in modules
    assert modules & (HEAVY | PROVIDERS | {"dew_other_plugin"}) == set()


def test_arrays_are_read_with_numpy_attrs_and_pluggy_alone(core_alone: Path, run_python: RunPython) -> None:
    script = """
import numpy as np
from dew.data import DataPartition, Loading, from_records
dataset = from_records({"x": np.arange(6)}, batch=3, val={"x": np.arange(4)}, loading=Loading(workers=0))
with dataset.train(DataPartition()) as stream:
    assert sorted([*next(stream)["x"], *next(stream)["x"]]) == list(range(6))
with dataset.val(DataPartition()) as stream:
    assert [batch["valid"].tolist() for batch in stream] == [[True] * 3, [True, False, False]]
"""
    assert loaded(run_python, script, core_alone, alone=True) & HEAVY == set()
