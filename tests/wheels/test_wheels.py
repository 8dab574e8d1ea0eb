"""What ships, tested as it ships: the wheels are built and installed into environments that hold nothing else of Dew.

The commands run outside the repository, so that nothing but the wheels can be imported. Dependencies come from the
package index, in the versions that pyproject.toml pins.
"""

import json
import os
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path

import attrs
import pytest

pytestmark = pytest.mark.wheels

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "dew-example"
PACKAGES = {"dew_core": "dew", "dew_hf": "dew_hf", "dew_media": "dew_media", "dew_tfds": "dew_tfds"}
ENTRY_POINTS = {"dew_core": ["tokens"], "dew_hf": ["hf"], "dew_media": ["images", "video"], "dew_tfds": ["tfds"]}

# Tests of core that need nothing but core: they run on the wheel as they do on the source.
CORE_TESTS = (
    "core/test_collate.py",
    "core/test_fields.py",
    "testing/conftest.py",
    "testing/test_exemptions.py",
    "testing/test_forward_streams.py",
    "testing/test_sources.py",
)

FROM_RECORDS = """
import numpy as np
from dew.data import DataPartition, from_records

dataset = from_records({"x": np.arange(10)}, batch=4, seed=3)
with dataset.train(DataPartition()) as steps:
    whole = [next(steps)["x"].tolist() for _ in range(5)]
    state = steps.get_state()
assert sorted(sum(whole, [])) == sorted(2 * list(range(10))), whole
for index in range(2):
    with dataset.train(DataPartition(index=index, count=2)) as share:
        assert [next(share)["x"].tolist() for _ in range(5)] == [rows[index::2] for rows in whole]
        share.set_state(state)
        assert share.get_state() == state
print("ok")
"""

TOKENS = """
import numpy as np
from dew.data import DataPartition, load
from dew.tokens import TokenOptions, write_corpus

write_corpus([np.arange(100), np.arange(100, 201)], "corpus", vocab_size=256)
dataset = load("tokens/corpus", batch=4, options=TokenOptions(seq_len=10))
assert (dataset.records, dataset.steps_per_epoch) == (20, 5)
with dataset.train(DataPartition()) as steps:
    text = np.concatenate([next(steps)["text"] for _ in range(5)])
assert text.shape == (20, 11) and text.dtype == np.int32
assert sorted(text[:, 0].tolist()) == list(range(0, 200, 10))
assert (np.diff(text) == 1).all()
print("ok")
"""

LIGHT = """
import sys
import dew.data
heavy = {"av", "click", "datasets", "fsspec", "grain", "importlib.metadata", "jax", "PIL", "rich", "tokenizers"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
print("ok")
"""

ABSENT = """
import pytest
import dew.data
with pytest.raises(ImportError, match="pip install dew-hf"):
    dew.data.load("hf/x", batch=4)
print("ok")
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Output of a command that must succeed, away from this repository and its environment."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=kept, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@attrs.frozen
class Environment:
    """A virtual environment with some of the wheels."""

    home: Path

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    def script(self, code: str, folder: Path) -> str:
        """Runs a script file, as a user would."""
        (folder / "script.py").write_text(code)
        return run(self.python, "script.py", cwd=folder)

    def providers(self, folder: Path) -> dict[str, bool]:
        """Prefix -> installed, as `dew providers` tells it."""
        found = json.loads(run(self.home / "bin" / "dew", "providers", "--json", cwd=folder))
        return {entry["prefix"]: entry["installed"] for entry in found}


@pytest.fixture(scope="module")
def uv() -> str:
    found = os.environ.get("UV") or shutil.which("uv")  # `uv run` says which uv it is
    if found is None:
        pytest.fail("these tests need uv: pip install uv, then uv run pytest -m wheels")
    return found


@pytest.fixture(scope="module")
def dist(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(uv, "build", "--all-packages", "--wheel", "--out-dir", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def pins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The versions of pyproject.toml, as a file for pip."""
    path = tmp_path_factory.mktemp("pins") / "constraints.txt"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    path.write_text("\n".join(settings["tool"]["uv"]["constraint-dependencies"]))
    return path


@pytest.fixture(scope="module")
def core(uv: str, dist: Path, pins: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the core alone, and what its own tests need."""
    folder = tmp_path_factory.mktemp("core")
    run(uv, "venv", folder / "venv", cwd=folder)
    environment = Environment(folder / "venv")
    wheels = ("--find-links", dist, "--constraint", pins)
    run(uv, "pip", "install", "--python", environment.python, *wheels, "dew-core[testing]", cwd=folder)
    return environment


@pytest.mark.parametrize("package", PACKAGES)
def test_a_wheel_holds_its_package_and_nothing_else(dist: Path, package: str) -> None:
    (path,) = dist.glob(f"{package}-*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        assert {name.partition("/")[0] for name in names} == {
            PACKAGES[package],
            path.name[: -len("-py3-none-any.whl")] + ".dist-info",
        }
        assert f"{PACKAGES[package]}/py.typed" in names
        (licence,) = [name for name in names if name.endswith("licenses/LICENSE")]
        assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
        (listed,) = [name for name in names if name.endswith("entry_points.txt")]
        _, _, providers = wheel.read(listed).decode().partition("[dew.providers]\n")
    lines = providers.partition("\n\n")[0].splitlines()
    assert [line.partition(" = ")[0] for line in lines] == ENTRY_POINTS[package]


@pytest.mark.parametrize(
    "code", [FROM_RECORDS, TOKENS, LIGHT, ABSENT], ids=["from_records", "tokens", "light", "absent"]
)
def test_core_alone(core: Environment, tmp_path: Path, code: str) -> None:
    assert core.script(code, tmp_path) == "ok\n"


def test_core_alone_is_what_is_tested(core: Environment, tmp_path: Path) -> None:
    code = "import dew, importlib.util as u; print(dew.__file__, dew.__version__, u.find_spec('dew_hf'))"
    path, version, other = core.script(code, tmp_path).split()
    assert Path(path).is_relative_to(core.home)
    assert (version, other) == ("0.1.0", "None")


def test_core_alone_lists_its_provider(core: Environment, tmp_path: Path) -> None:
    listed = core.providers(tmp_path)
    assert [prefix for prefix, installed in listed.items() if installed] == ["tokens"]


def test_core_alone_passes_core_tests(core: Environment, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "golden", tmp_path / "golden")
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    for name in CORE_TESTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "tests" / name, tmp_path / name)
    options = ("-q", "-W", "error", "--import-mode=importlib", "-p", "no:cacheprovider", "--basetemp", "base")
    report = run(core.python, "-m", "pytest", *options, ".", cwd=tmp_path)
    assert " passed" in report.splitlines()[-1]


def test_a_strangers_provider(uv: str, dist: Path, pins: Path, tmp_path: Path) -> None:
    """Built, installed beside core from wheels alone, found by its entry point, and put through its own tests."""
    shutil.copytree(EXAMPLE, tmp_path / "project", ignore=shutil.ignore_patterns(".*", "__pycache__"))
    run(uv, "build", "--wheel", "--out-dir", tmp_path / "dist", tmp_path / "project", cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as names:
        assert {name.partition("/")[0] for name in names.namelist()} == {
            "dew_example",
            "dew_example-1.0.0.dist-info",
        }
    run(uv, "venv", "venv", cwd=tmp_path)
    theirs = Environment(tmp_path / "venv")
    sources = ("--find-links", dist, "--find-links", tmp_path / "dist", "--constraint", pins)
    run(uv, "pip", "install", "--python", theirs.python, *sources, "dew-example[test]", cwd=tmp_path)
    listed = theirs.providers(tmp_path)
    assert [prefix for prefix, installed in listed.items() if installed] == ["example", "tokens"]
    shutil.rmtree(tmp_path / "project" / "src")
    options = ("-q", "-p", "no:cacheprovider", "--basetemp", tmp_path / "base")
    report = run(theirs.python, "-m", "pytest", *options, cwd=tmp_path / "project")
    assert " passed" in report.splitlines()[-1]
    assert "skipped" not in report


def test_pip_installs_core_and_a_provider(uv: str, dist: Path, pins: Path, tmp_path: Path) -> None:
    run(uv, "venv", "--seed", "venv", cwd=tmp_path)
    both = Environment(tmp_path / "venv")
    pip = (both.python, "-m", "pip", "install", "--quiet", "--constraint", pins)
    run(*pip, "--find-links", dist, "dew-core", "dew-hf", cwd=tmp_path)
    listed = both.providers(tmp_path)
    assert [prefix for prefix, installed in listed.items() if installed] == ["hf", "tokens"]
    assert both.script(FROM_RECORDS, tmp_path) == "ok\n"
