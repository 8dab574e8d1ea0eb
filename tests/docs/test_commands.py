"""`.ci/run` runs what README.md tells a reader to run: seen with a stand-in for Python that writes down its orders."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Writes down what it was asked to do. `pip install uv` works where PIP_WORKS is 1; --target gets a uv of the same kind.
STAND_IN = """\
#!/bin/sh
echo "$(basename "$0") $*" >> "$ORDERS"
case "$*" in
  "-m pip install uv") [ "$PIP_WORKS" = 1 ] ;;
  "-m pip install --target "*) mkdir -p "$5/bin" && cp "$0" "$5/bin/uv" ;;
  "$FAILS") exit 3 ;;
esac
"""


def orders(folder: Path, *, pip_works: bool, fails: str = "nothing", code: int = 0) -> list[str]:
    """What `.ci/run` runs, in order; `fails` is the command that fails."""
    (folder / "bin").mkdir()
    stand_in = folder / "bin" / "python3"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    browser = folder / "bin" / "chromium"  # so that none is installed
    browser.symlink_to("python3")
    log = folder / "orders"
    environment = {
        "PATH": f"{stand_in.parent}:{os.defpath}",
        "TMPDIR": str(folder),
        "ORDERS": str(log),
        "PIP_WORKS": str(int(pip_works)),
        "FAILS": fails,
        "CI": "true",
    }
    script = ["bash", str(ROOT / ".ci" / "run")]
    done = subprocess.run(
        script, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["bin", "orders"]  # its scratch folder is gone
    lines = [line.removeprefix("python3 -m ") for line in log.read_text().splitlines()]
    return [re.sub(r"(--site-dir) .*", r"\1", line) for line in lines]


def readme_commands() -> list[str]:
    """The commands of the README's first shell block."""
    block = re.search(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1].splitlines()


def test_ci_runs_the_readmes_commands(tmp_path: Path) -> None:
    commands = orders(tmp_path, pip_works=True)
    assert commands[:2] == readme_commands() == ["pip install uv", "uv run pytest"]
    assert commands[2:] == [
        "uv run ruff check",
        "uv run ruff format --check",
        "uv run pyright",
        "uv run --group docs mkdocs build --strict --site-dir",
        "uv run pytest -m wheels",
    ]


def test_ci_manages_where_pip_may_not_install(tmp_path: Path) -> None:
    commands = orders(tmp_path, pip_works=False)
    assert commands[0] == "pip install uv"
    assert re.fullmatch(r"pip install --target .*/uv uv", commands[1])
    assert commands[2] == "uv run pytest"
    assert commands[-1] == "uv run pytest -m wheels"


@pytest.mark.parametrize("command", ["uv run pytest", "uv run ruff check", "uv run pyright", "uv run pytest -m wheels"])
def test_ci_fails_with_its_first_failure(tmp_path: Path, command: str) -> None:
    commands = orders(tmp_path, pip_works=True, fails=f"-m {command}", code=3)
    assert commands[-1] == command
