"""The command `dew` in real processes, a corpus made by a real demo run, and a stranger's provider on PYTHONPATH."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest


@attrs.frozen
class Ran:
    """What a process left: exit code and output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def fails(self, *words: str) -> None:
        """One line on stderr with all `words`, no traceback, exit code 1."""
        assert self.code == 1, (self.out, self.err)
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("dew: "), self.err
        for word in words:
            assert word in self.err


Dew = Callable[..., Ran]


def _run(arguments: list[str], cwd: Path, env: Mapping[str, str]) -> Ran:
    done = subprocess.run(arguments, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def dew(tmp_path: Path) -> Dew:
    """`dew("peek", ..., cwd=..., **environment)` in a child process, by default in an empty directory."""

    def run(*words: object, cwd: Path = tmp_path, **env: str) -> Ran:
        return _run([sys.executable, "-m", "dew", *map(str, words)], cwd, env)

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Ran]:
    """Runs Python source in a child process."""

    def run(source: str) -> Ran:
        return _run([sys.executable, "-c", textwrap.dedent(source)], tmp_path, {})

    return run


@attrs.frozen
class Demo:
    """A directory in which `dew demo --steps 8 --json` ran."""

    home: Path
    ran: Ran

    @property
    def source(self) -> str:
        return f"tokens/{self.home}/dew-demo/corpus"


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    home = tmp_path_factory.mktemp("demo")
    ran = _run([sys.executable, "-m", "dew", "demo", "--steps", "8", "--json"], home, {})
    assert ran.code == 0, ran.err
    return Demo(home, ran)


_TOY = """
import attrs
from dew.data.errors import SplitError
from dew.data.provider import Provider, hookimpl

@attrs.frozen(kw_only=True)
class ToyOptions:
    rows: int = 10
    ragged: bool = False
    stream: bool = False
    val_split: str | None = None

@attrs.frozen
class Toy:
    rows: int
    ragged: bool
    def __len__(self):
        return self.rows
    def __getitem__(self, index):
        import numpy as np
        return {"value": np.full(index % 3 if self.ragged else 2, index, np.float32), "name": f"[bold]row {index}"}

def open_split(request, split):
    if split != "train":
        raise SplitError(f"no split {split!r}, there is: train")
    options = request.options
    if options.stream:
        import numpy as np
        return lambda partition: iter([{"value": np.full(request.batch, k)} for k in range(3)])
    return Toy(options.rows, options.ragged)

@hookimpl
def dew_provider():
    return Provider(prefix="toy", summary="rows of a toy", options=ToyOptions, open=open_split,
                    needs_preprocess=True, cli="dew_toy_cli:cli")
"""

_TOY_CLI = '''
import click

@click.group()
def cli():
    """Commands of the toy."""

@cli.command()
@click.argument("name")
def hello(name):
    """Greets."""
    click.echo(f"hello {name}")

@cli.command()
def fail():
    from dew.data.errors import SourceError
    error = SourceError("the toy is\\nbroken")
    error.add_note("step 3")
    raise error

@cli.command()
@click.argument("path")
def wait(path):
    import pathlib, time
    pathlib.Path(path).touch()
    time.sleep(120)
'''

_BARE = """
from dew.data.provider import Provider, hookimpl

@hookimpl
def dew_provider():
    return Provider(prefix="bare", summary="nothing", options=None, open=lambda request, split: [{"x": 1}] * 4)
"""

_ASTRAY = """
from dew.data.provider import Provider, hookimpl

@hookimpl
def dew_provider():
    return Provider(prefix="astray", summary="nothing", options=None, open=list, cli="dew_absent:cli")
"""


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PYTHONPATH with four installed distributions, one of which fails to import."""
    site = tmp_path_factory.mktemp("site")
    modules = {"dew_toy": _TOY, "dew_toy_cli": _TOY_CLI, "dew_bare": _BARE, "dew_astray": _ASTRAY}
    modules["dew_broken"] = "raise ValueError('this plugin is broken')"
    for name, source in modules.items():
        (site / f"{name}.py").write_text(source)
    for prefix in ("toy", "bare", "astray", "broken"):
        info = site / f"dew_{prefix}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dew-{prefix}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[dew.providers]\n{prefix} = dew_{prefix}\n")
    return str(site)
