"""The command itself: help, providers, commands of plugins, exit codes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Dew: TypeAlias = Callable[..., Any]
Script: TypeAlias = Callable[[str], Any]


def test_help_is_light(script: Script, dew: Dew) -> None:
    ran = script("""
        import sys
        from dew.cli import main
        code = main(["--help"])
        heavy = {"jax", "grain", "rich", "tokenizers", "importlib.metadata", "fsspec"} & set(sys.modules)
        sys.exit(f"{code} {sorted(heavy)}")
    """)
    assert ran.err == "0 []\n"
    for command in ("demo", "order", "peek", "providers"):
        assert f"  {command} " in ran.out
    assert dew("peek", "-h").code == 0
    assert dew("--version").out.startswith("dew, version ")


def test_the_installed_command() -> None:
    dew = os.path.join(os.path.dirname(sys.executable), "dew")
    done = subprocess.run([dew, "providers", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    done = subprocess.run([dew, "peek", "x", "--batch", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 1


@pytest.mark.parametrize("words", [["bogus"], ["demo", "--bogus"], ["providers", "extra"]])
def test_wrong_usage(dew: Dew, words: list[str]) -> None:
    ran = dew(*words)
    assert ran.code == 2
    assert words[-1] in ran.err
    assert "Traceback" not in ran.err


def test_providers(dew: Dew, strangers: str) -> None:
    found = {entry["prefix"]: entry for entry in dew("providers", "--json", PYTHONPATH=strangers).json}
    assert found["tokens"]["distribution"] == "dew-core"
    assert found["tokens"]["target"] == "dew.tokens.plugin"
    assert found["toy"] == {
        "prefix": "toy", "distribution": "dew-toy", "version": "1.5", "target": "dew_toy", "installed": True,
    }  # fmt: skip
    # A plugin that cannot be imported is listed like any other: nothing is imported.
    assert found["broken"]["version"] == "1.5"
    ran = dew("providers", PYTHONPATH=strangers)
    assert ran.code == 0
    assert "dew-toy" in ran.out


def test_absent_providers_have_their_pip_line(script: Script) -> None:
    ran = script("""
        import sys
        from dew.data import registry
        registry._PROCESS._scan = lambda: []
        from dew.cli import main
        sys.exit(main(["providers"]))
    """)
    assert ran.code == 0
    for line in ("pip install dew-hf", "pip install dew-tfds", "pip install dew-media", "absent"):
        assert line in ran.out


def test_providers_check(dew: Dew, strangers: str) -> None:
    ran = dew("providers", "--check", "--json", PYTHONPATH=strangers)
    found = {entry["prefix"]: entry for entry in ran.json}
    assert ran.code == 1
    assert found["toy"]["error"] is None
    assert found["toy"]["summary"] == "rows of a toy"
    assert found["tokens"]["error"] is None
    assert "this plugin is broken" in found["broken"]["error"]
    shown = dew("providers", "--check", PYTHONPATH=strangers, COLUMNS="200")
    assert shown.code == 1
    assert "this plugin is broken" in shown.out
    assert "ok: rows of a toy" in shown.out


def test_command_of_a_plugin(dew: Dew, strangers: str) -> None:
    ran = dew("toy", "hello", "world", PYTHONPATH=strangers)
    assert (ran.code, ran.out, ran.err) == (0, "hello world\n", "")
    assert "Greets." in dew("toy", "--help", PYTHONPATH=strangers).out
    assert "usage: dew toy" in dew("toy", "--help", PYTHONPATH=strangers).out.lower()
    assert dew("toy", "hello", PYTHONPATH=strangers).code == 2


def test_plugins_without_a_usable_command(dew: Dew, strangers: str) -> None:
    ran = dew("bare", PYTHONPATH=strangers)
    assert ran.code == 2
    assert "the provider 'bare' is installed, but brings no command of its own" in ran.err
    dew("astray", PYTHONPATH=strangers).fails("dew_absent:cli", "failed to import", "ModuleNotFoundError")
    dew("broken", PYTHONPATH=strangers).fails("this plugin is broken", "dew-broken 1.5")


def test_an_error_is_one_line_or_a_traceback(dew: Dew, strangers: str) -> None:
    dew("toy", "fail", PYTHONPATH=strangers).fails("dew: the toy is broken (step 3)")
    ran = dew("--traceback", "toy", "fail", PYTHONPATH=strangers)
    assert ran.code == 1
    assert "Traceback" in ran.err
    assert "SourceError: the toy is\nbroken\nstep 3" in ran.err


def test_ctrl_c_ends_quietly(strangers: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "dew", "toy", "wait", str(tmp_path / "started")]
    env = {**os.environ, "PYTHONPATH": strangers}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "started").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert (out, err.strip()) == ("", "")
