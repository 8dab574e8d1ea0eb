"""`examples/dew-example` as a stranger has it: found by metadata alone, run by its own tests, shown by the tutorial."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "dew-example"
TUTORIAL = ROOT / "docs" / "providers.md"
SHOWN = re.compile(r'^```\w+ title="(?P<name>[^"]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)

# Not worth a block of the tutorial.
NOT_SHOWN = {"README.md", "src/dew_example/py.typed"}


def files() -> set[str]:
    """The example's files, without what tools leave."""
    paths = (path.relative_to(EXAMPLE) for path in EXAMPLE.rglob("*") if path.is_file())
    return {str(path) for path in paths if not any(part.startswith((".", "__pycache__")) for part in path.parts)}


def test_the_tutorial_shows_every_file() -> None:
    shown = [block["name"] for block in SHOWN.finditer(TUTORIAL.read_text())]
    assert sorted(shown) == sorted(files() - NOT_SHOWN)


@pytest.mark.parametrize("name", sorted(files() - NOT_SHOWN))
def test_what_the_tutorial_shows_is_the_file(name: str) -> None:
    (shown,) = [block["text"] for block in SHOWN.finditer(TUTORIAL.read_text()) if block["name"] == name]
    assert shown == (EXAMPLE / name).read_text()


def test_the_example_is_a_strangers_project() -> None:
    """No member of the workspace, and nothing in it that only works inside of it."""
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["workspace"]
    assert not any("example" in member for member in workspace["members"])
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    assert "uv" not in project["tool"]
    assert not any(name.startswith("src/dew/") for name in files())


def test_its_own_tests_pass(tmp_path: Path) -> None:
    """With the entry point in a dist-info of its own; tests/wheels does the same with the built wheels."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    site = tmp_path / "site"
    info = site / f"dew_example-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["dew.providers"]
    (info / "entry_points.txt").write_text(
        "[dew.providers]\n" + "".join(f"{name} = {module}\n" for name, module in points.items())
    )
    shutil.copytree(EXAMPLE / "src" / "dew_example", site / "dew_example")
    shutil.copytree(EXAMPLE / "tests", tmp_path / "tests")
    shutil.copy(EXAMPLE / "pyproject.toml", tmp_path)
    options = ["--basetemp", "base", "-p", "no:cacheprovider"]
    code = f"import sys, pytest; sys.path.insert(0, {str(site)!r}); sys.exit(pytest.main({options}))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"\b[6-9]\d passed", ran.stdout), ran.stdout
    assert "skipped" not in ran.stdout
