"""What a type checker tells a user: the programs of `programs/` are refused where they say so, and nowhere else."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TypeAlias

import pytest

PROGRAMS = Path(__file__).parent / "programs"
PLANTED = re.compile(r"# error: (report\w+)$")

Finding: TypeAlias = tuple[str, int, str]
"""File, line, rule."""


@pytest.fixture(scope="module")
def findings() -> dict[Finding, str]:
    """Every error of one run of pyright over all programs, with what it says."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(PROGRAMS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)
    assert told["summary"]["filesAnalyzed"] == len(list(PROGRAMS.glob("*.py")))
    found: dict[Finding, str] = {}
    for entry in told["generalDiagnostics"]:
        if entry["severity"] == "error":
            place = (Path(entry["file"]).name, entry["range"]["start"]["line"] + 1, entry.get("rule", "syntax"))
            found[place] = entry["message"]
    return found


def planted() -> set[Finding]:
    return {
        (path.name, number, found[1])
        for path in PROGRAMS.glob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := PLANTED.search(line))
    }


def test_a_checker_finds_what_was_planted_and_nothing_else(findings: dict[Finding, str]) -> None:
    expected = planted()
    unseen = sorted(expected - set(findings))
    surprising = sorted((*place, findings[place]) for place in set(findings) - expected)
    assert (unseen, surprising) == ([], [])


def test_enough_was_planted() -> None:
    """In every program, and of every kind: a wrong name, a wrong type, a change of what is frozen."""
    kinds = Counter(rule for _, _, rule in planted())
    assert {name for name, _, _ in planted()} == {path.name for path in PROGRAMS.glob("*.py")}
    for rule in ("reportCallIssue", "reportArgumentType", "reportAttributeAccessIssue"):
        assert kinds[rule] >= 5, kinds


def test_messages_name_the_mistake(findings: dict[Finding, str]) -> None:
    told = "\n".join(findings.values())
    for words in (
        'No parameter named "spilt"',
        'No parameter named "shuffle"',
        '"TokenWindow" is unknown import symbol',
    ):
        assert words in told
