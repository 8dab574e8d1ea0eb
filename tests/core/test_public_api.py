"""Public names, signatures, fields and commands are those of tests/golden/public_api.txt, which is reviewed like code.

After a change that is meant: `DEW_UPDATE_GOLDEN=1 uv run pytest tests/core/test_public_api.py`; then read what differs.
"""

import ast
import difflib
import importlib
import inspect
import os
import re
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import click
import pytest

from dew.cli import cli
from dew.data import registry

GOLDEN = Path(__file__).parents[1] / "golden" / "public_api.txt"
MODULES = (
    "dew.data",
    "dew.data.errors",
    "dew.data.provider",
    "dew.testing",
    "dew.tokens",
    "dew.training",
    "dew_hf",
    "dew_media",
    "dew_tfds",
)
OURS = {"dew", "dew_hf", "dew_media", "dew_tfds", __name__.partition(".")[0]}
MODULE_PATH = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])")
PROTOCOL_METHODS = ("__len__", "__getitem__", "__iter__", "__next__", "__call__")


def public_names(module: types.ModuleType) -> list[str]:
    """What `__all__` lists and what Dew's packages lend the module; without an `__all__`, what it defines itself."""
    if not hasattr(module, "__all__"):
        return sorted(name for name in defined(module) if not name.startswith("_"))
    own = {name for name in dir(module) if not name.startswith("_") and is_ours(getattr(module, name))}
    return sorted(own | set(module.__all__))


def defined(module: types.ModuleType) -> set[str]:
    """Names that the module's source defines, as opposed to imports."""
    names: set[str] = set()
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def is_ours(value: object) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in OURS


def describe(name: str, value: Any) -> Iterator[str]:
    """`name` as lines: a signature, a class with its public members, an alias or a constant with its value."""
    if inspect.isclass(value) and not isinstance(value, types.GenericAlias):
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        yield f"class {name}({bases})" if bases else f"class {name}"
        yield from (f"    {line}" for line in members(value))
    elif inspect.isfunction(value):
        yield f"{name}{signature(value)}"
    elif isinstance(value, bool | int | float | str | frozenset | tuple | None):
        yield f"{name} = {constant(value)}"
    elif isinstance(value, types.GenericAlias | types.UnionType) or type(value).__module__ == "typing":
        yield f"{name} = {re.sub(MODULE_PATH, '', str(value))}"
    else:
        yield f"{name}: {type(value).__name__}"


def members(owner: type) -> Iterator[str]:
    """Its public members, with those of its bases in Dew: fields first; `*` stands before keyword-only fields."""
    bases = [base for base in reversed(owner.__mro__) if is_ours(base)]
    fields: tuple[Any, ...] = attrs.fields(owner) if attrs.has(owner) else ()
    types_of_fields = {name: text for base in bases for name, text in annotations(base).items()}
    starred = False
    for field in sorted(fields, key=lambda field: field.kw_only):
        if field.init and field.kw_only and not starred:
            starred = True
            yield "*"
        if not field.name.startswith("_"):
            yield f"{field.name}: {types_of_fields[field.name]}{default(field)}"
    protocol = getattr(owner, "_is_protocol", False)
    for name, value in {name: value for base in bases for name, value in vars(base).items()}.items():
        shown = name in PROTOCOL_METHODS if protocol else name == "__init__" and not fields
        if (shown or not name.startswith("_")) and name not in {field.name for field in fields}:
            yield member(name, value)


def annotations(owner: type) -> dict[str, str]:
    """Field -> type, as the class's source writes it, the same under every Python."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def member(name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"{name}: property {signature(value.fget)}"
    if isinstance(value, classmethod | staticmethod):
        return f"{type(value).__name__} {name}{signature(value.__func__)}"
    if inspect.isfunction(value):
        return f"{name}{signature(value)}"
    return f"{name} = {constant(value)}" if isinstance(value, bool | int | float | str | tuple) else name


def constant(value: object) -> str:
    """The value of a constant or default; sets in a fixed order."""
    return f"frozenset({sorted(value) or ''})" if isinstance(value, frozenset) else repr(value)


def default(field: Any) -> str:
    if field.default is attrs.NOTHING:
        return "" if field.init else " (set by itself)"
    if isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]
        return f" = {getattr(field.default.factory, '__name__', '...')}()"
    return f" = {constant(field.default)}"


def signature(function: Any) -> str:
    """The signature as the source writes it, the same under every Python."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    returns = f" -> {ast.unparse(tree.returns)}" if tree.returns else ""
    return f"({ast.unparse(tree.args)}){returns}".replace("'", '"')


def commands(name: str, command: click.Command) -> Iterator[str]:
    """`name` with its arguments and options, then its own commands; brackets are around what may be left out."""
    yield name
    with click.Context(command) as context:
        for parameter in command.params:
            word = (parameter.name or "").upper()
            if isinstance(parameter, click.Option):
                word = " ".join([*parameter.opts, *parameter.secondary_opts])
                word += "" if parameter.is_flag else f" {parameter.make_metavar(context)}"
            yield f"    {word}" if parameter.required else f"    [{word}]"
        yield ""
        if isinstance(command, click.Group):
            for own in command.list_commands(context):
                found = command.get_command(context, own)
                assert found is not None
                yield from commands(f"{name} {own}", found)


def provider_commands() -> Iterator[str]:
    """Those of Dew's own providers."""
    for prefix in sorted(registry.OWNERS):
        if (target := registry.find(prefix).cli) is not None:
            module, name = target.split(":")
            yield from commands(f"dew {prefix}", getattr(importlib.import_module(module), name))


def snapshot() -> str:
    lines: list[str] = []
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        lines += [f"# {module_name}", ""]
        for name in public_names(module):
            lines += [*describe(name, getattr(module, name)), ""]
    return "\n".join([*lines, "# commands", "", *commands("dew", cli), *provider_commands()])


def test_public_api_is_the_reviewed_one() -> None:
    found = snapshot()
    if os.environ.get("DEW_UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(found)
    changes = difflib.unified_diff(
        GOLDEN.read_text().splitlines(), found.splitlines(), "reviewed", "found", lineterm=""
    )
    if told := "\n".join(changes):
        pytest.fail(f"if this change is meant, see the top of {Path(__file__).name}\n{told}", pytrace=False)


@pytest.mark.parametrize("name", MODULES)
def test_all_lists_what_there_is(name: str) -> None:
    module = importlib.import_module(name)
    assert [entry for entry in getattr(module, "__all__", ()) if not hasattr(module, entry)] == []


@attrs.frozen(kw_only=True)
class Sample:
    """Every kind of member."""

    size: int | None = None
    names: list[str] = attrs.field(factory=list)
    _secret: int = 0

    def grow(self, by: int, *, twice: bool = False) -> "Sample":
        return self

    @property
    def doubled(self) -> int:
        return 2

    @classmethod
    def empty(cls) -> "Sample":
        return cls()


@attrs.frozen
class Named(Sample):
    """Positional fields stand before the star, whatever their order in the class."""

    name: str = "x"


def test_every_kind_of_member_is_described() -> None:
    assert list(describe("Named", Named))[:4] == [
        "class Named(Sample)", "    name: str = 'x'", "    *", "    size: int | None = None",
    ]  # fmt: skip
    assert list(describe("Sample", Sample)) == [
        "class Sample",
        "    *",
        "    size: int | None = None",
        "    names: list[str] = list()",
        '    grow(self, by: int, *, twice: bool=False) -> "Sample"',
        "    doubled: property (self) -> int",
        '    classmethod empty(cls) -> "Sample"',
    ]
    assert list(describe("LIMIT", frozenset({"b", "a"}))) == ["LIMIT = frozenset(['a', 'b'])"]
    assert list(describe("Alias", dict[str, Path])) == ["Alias = dict[str, Path]"]
    assert list(describe("constant", constant)) == ["constant(value: object) -> str"]


def test_every_kind_of_parameter_is_described() -> None:
    @click.group()
    @click.option("--loud/--quiet")
    def tool() -> None: ...

    @tool.command()
    @click.argument("source", metavar="SOURCE")
    @click.argument("more", nargs=-1)
    @click.option("-o", "pairs", multiple=True, metavar="KEY=VALUE")
    @click.option("--batch", metavar="N", required=True)
    @click.option("--json", is_flag=True)
    def peek() -> None: ...

    assert list(commands("tool", tool)) == [
        "tool", "    [--loud --quiet]", "",
        "tool peek", "    SOURCE", "    [MORE]", "    [-o KEY=VALUE]", "    --batch N", "    [--json]", "",
    ]  # fmt: skip
