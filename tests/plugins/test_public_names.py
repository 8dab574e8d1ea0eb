"""The names of `dew.data`: one list, resolved on first use, and those that provider packages define."""

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dew.data
from dew.data import names

RunPython = Callable[..., str]


def typed_imports() -> dict[str, str]:
    """Name -> module, as type checkers see them."""
    assert dew.data.__file__ is not None
    tree = ast.parse(Path(dew.data.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return {
        alias.asname or alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_type_checkers_and_the_table_agree() -> None:
    own = {name: module for module, of_module in names.OWN.items() for name in of_module}
    elsewhere = {name: package for name, (package, _) in names.ELSEWHERE.items()}
    assert typed_imports() == own | elsewhere


def test_all_lists_the_own_names_sorted() -> None:
    own = [name for of_module in names.OWN.values() for name in of_module]
    assert sorted(dew.data.__all__) == sorted([*own, "load"])
    assert dew.data.__all__ == [
        *sorted(n for n in own if n[0].isupper()),
        *sorted(["load", *(n for n in own if n[0].islower())]),
    ]


@pytest.mark.parametrize("name", [*dew.data.__all__, *names.ELSEWHERE])
def test_every_name_is_the_object_of_its_module(name: str) -> None:
    module = typed_imports().get(name, "dew.data.load")
    value = getattr(dew.data, name)
    assert value is getattr(sys.modules[module], name)
    assert name in dir(dew.data)


def test_a_name_that_is_nowhere() -> None:
    with pytest.raises(AttributeError, match=re.escape("module 'dew.data' has no attribute 'TDFSOptions'")):
        dew.data.TDFSOptions  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'TDFSOptions'"):
        exec("from dew.data import TDFSOptions")


def test_load_is_the_function_whatever_is_imported_first(run_python: RunPython) -> None:
    for first in (
        "import dew.data",
        "import dew.data.load",
        "from dew.data.load import load",
        "import dew.data.opening",
    ):
        assert run_python(f"{first}\nimport dew.data\nprint(type(dew.data.load).__name__)") == "function\n"


@pytest.mark.parametrize(
    ("name", "distribution"),
    [(name, brought) for name, (_, brought) in names.ELSEWHERE.items() if brought != "dew-core"],
)
def test_an_absent_package_is_named_with_its_pip_line(
    core_alone: Path, run_python: RunPython, name: str, distribution: str
) -> None:
    script = f"""
import dew.data
from dew.data import *
try:
    from dew.data import {name}
except ImportError as error:
    print(error)
print({name!r} in dir(dew.data), {name!r} in dew.data.__all__, load is dew.data.load)
"""
    assert run_python(script, core_alone, alone=True).splitlines() == [
        f"dew.data.{name} needs the {distribution} package, which is not installed: pip install {distribution}",
        "False False True",
    ]


def test_a_package_that_is_there_and_broken_shows_its_own_error(
    core_alone: Path, tmp_path: Path, run_python: RunPython
) -> None:
    (tmp_path / "dew_hf.py").write_text("import a_module_that_is_not_there\n")
    script = """
try:
    from dew.data import HFOptions
except ImportError as error:
    print(error)
"""
    assert run_python(script, tmp_path, core_alone, alone=True) == "No module named 'a_module_that_is_not_there'\n"
