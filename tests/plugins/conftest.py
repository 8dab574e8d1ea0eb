"""Real distributions, written by hand into a folder of their own and read by a fresh interpreter."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

WriteDistribution = Callable[..., Path]
RunPython = Callable[..., str]

PLUGIN = """\
from dew.data.provider import Provider, hookimpl

class Rows:
    def __len__(self): return 8
    def __getitem__(self, index): return {{"x": index, "from": {number}}}
    def __repr__(self): return "Rows()"

@hookimpl
def dew_provider():
    return Provider(prefix={prefix!r}, summary="", options=None, open=lambda request, split: Rows())
"""


@pytest.fixture
def write_distribution() -> WriteDistribution:
    """Writes `name` with one plugin module into the folder `site`, as an installer would; returns its dist-info."""

    def write(
        site: Path,
        name: str,
        version: str,
        prefix: str,
        *,
        body: str | None = None,
        number: int = 0,
        entry_points: bytes | None = None,
    ) -> Path:
        module = name.replace("-", "_") + "_plugin"
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        stated = f"[dew.providers]\n{prefix} = {module}\n".encode() if entry_points is None else entry_points
        (info / "entry_points.txt").write_bytes(stated)
        (site / f"{module}.py").write_text(PLUGIN.format(prefix=prefix, number=number) if body is None else body)
        return info

    return write


@pytest.fixture
def run_python() -> RunPython:
    """Runs a script in a fresh interpreter with `paths` in front of its installed packages; returns what it printed."""

    def run(script: str, *paths: Path, alone: bool = False) -> str:
        """`alone`: nothing but `paths` and the standard library can be imported."""
        first = "import sys\n" + "".join(f"sys.path.insert({number}, {str(p)!r})\n" for number, p in enumerate(paths))
        flags = ["-I", "-S"] if alone else ["-I"]
        done = subprocess.run(
            [sys.executable, *flags, "-W", "error", "-c", first + script],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    return run


@pytest.fixture
def core_alone(tmp_path: Path) -> Path:
    """A folder of packages that holds dew-core and what `import dew.data` may need: numpy, attrs, pluggy."""
    site = tmp_path / "core_alone"
    site.mkdir()
    for name in ("attr", "attrs", "dew", "numpy", "pluggy"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        folder = Path(next(iter(spec.submodule_search_locations)))
        (site / name).symlink_to(folder)
        libraries = folder.with_name(f"{name}.libs")
        if libraries.is_dir():
            (site / libraries.name).symlink_to(libraries)
    return site
