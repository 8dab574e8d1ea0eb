"""The site is whole: every public name, command, error class and benchmark has its place, and nothing is left over.

The site itself is built by CI: `uv run --group docs mkdocs build --strict`.
"""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from benchmarks.__main__ import MODULES
from tests.core.test_public_api import MODULES as PUBLIC
from tests.core.test_public_api import public_names

import dew.cli
from dew.data import errors, registry

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ENTRY = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
ENTRIES = {
    entry: page.name for page in sorted((DOCS / "reference").glob("*.md")) for entry in ENTRY.findall(page.read_text())
}


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name Python objects, without making any."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def resolved(entry: str) -> object:
    module, _, name = entry.rpartition(".")
    return getattr(importlib.import_module(module), name)


def pages(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for value in nav.values():
            yield from pages(value)
    elif isinstance(nav, list):
        for value in nav:
            yield from pages(value)


def commands(group: click.Group, name: str) -> Iterator[str]:
    for each in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), each)
        assert command is not None
        yield from commands(command, f"{name} {each}") if isinstance(command, click.Group) else [f"{name} {each}"]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    listed = {entry.rpartition(".")[2] for entry in ENTRIES}
    assert [name for name in public_names(importlib.import_module(module)) if name not in listed] == []


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_of_the_reference_is_there_and_public(entry: str) -> None:
    public = {name for module in PUBLIC for name in public_names(importlib.import_module(module))}
    assert resolved(entry) is not None
    assert entry.rpartition(".")[2] in public, f"{entry} in {ENTRIES[entry]} is not public"


def test_every_page_is_in_the_navigation() -> None:
    nav = list(pages(yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)["nav"]))
    assert sorted(nav) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_every_command_is_documented() -> None:
    text = (DOCS / "commands.md").read_text()
    own = list(commands(dew.cli.cli, "dew"))
    for prefix in sorted(registry.OWNERS):
        if (target := registry.find(prefix).cli) is not None:
            group = resolved(target.replace(":", "."))
            assert isinstance(group, click.Group)
            own += commands(group, f"dew {prefix}")
    assert [command for command in own if f"`{command}" not in text] == []


def test_every_documented_command_exists() -> None:
    text = (DOCS / "commands.md").read_text()
    for words in re.findall(r"^\| `dew ([a-z ]+?)(?: [A-Z]+)?` \|", text, re.MULTILINE):
        group: click.Command | None = dew.cli.cli
        for word in words.split():
            assert isinstance(group, click.Group), words
            group = group.get_command(click.Context(group), word)
            assert group is not None, words


def test_every_error_class_is_explained() -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    classes = [
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert len(classes) > 20
    assert [name for name in classes if f"`{name}`" not in text] == []


def test_every_benchmark_is_listed() -> None:
    text = (DOCS / "performance.md").read_text()
    assert [name for name in MODULES if f"| `{name}` |" not in text] == []
    listed = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    there = {module.name for module in pkgutil.iter_modules([str(ROOT / "benchmarks")])}
    assert [name for name in listed if name not in there] == []
