"""The shape of the source: imports go one way, files and functions stay short, what is public is described and typed.

A rule is a function from one parsed module to what is wrong in it. Each rule is also run on a small bad sample, so that
it is known to fail where it should.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pytest

ROOT = Path(__file__).parents[2]

# A module of dew.data imports its own layer and those before it.
LAYERS = (
    {"errors", "checks", "filenames"},
    {"blocks", "order", "schedule", "position", "quotas", "mixture"},
    {"cache", "ranged", "storage", "source", "dataset", "collate", "encoders", "fields", "imagefile", "pixels"},
    {"checkpointable", "loading", "metrics", "pool", "step", "stepstream", "workers", "stream"},
    {"build", "conditioning", "mixed", "mixing", "recipe"},
    {"provider", "registry", "opening", "load", "names"},
)
LAYER = {f"dew.data.{name}": number for number, names in enumerate(LAYERS) for name in names}
LAYER["dew.data"] = len(LAYERS)  # the public names

# Package -> the packages of this workspace that it may import.
MAY_IMPORT = {
    "dew": {"dew"},
    "dew.__main__": {"dew.cli"},
    "dew.data": {"dew", "dew.data"},
    "dew.tokens": {"dew", "dew.data", "dew.tokens"},
    "dew.training": {"dew", "dew.data", "dew.training"},
    "dew.testing": {"dew", "dew.data", "dew.testing"},
    "dew.cli": {"dew", "dew.data", "dew.tokens", "dew.training", "dew.testing", "dew.cli"},
    "dew_hf": {"dew", "dew.data", "dew.tokens", "dew_hf"},
    "dew_media": {"dew", "dew.data", "dew.tokens", "dew_media"},
    "dew_tfds": {"dew", "dew.data", "dew.tokens", "dew_tfds"},
}

# The distribution that an imported name comes from, where the two differ; in lower case, with "_" for "-".
DISTRIBUTIONS = {"PIL": "pillow", "cv2": "opencv_python_headless", "dew": "dew_core", "orbax": "orbax_checkpoint"}

PURE = {f"dew.data.{name}" for name in LAYERS[1]}
LIGHT = {"attrs", "numpy", "pluggy"}
FILE_LINES = 500
FUNCTION_LINES = 80

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Rule: TypeAlias = "Callable[[Module], Iterator[str]]"


@attrs.frozen
class Module:
    """One parsed source file."""

    name: str
    text: str
    tree: ast.Module
    package: bool = False

    @classmethod
    def read(cls, path: Path) -> "Module":
        parts = path.relative_to(next(parent for parent in path.parents if parent.name == "src")).with_suffix("").parts
        text = path.read_text()
        package = parts[-1] == "__init__"
        return cls(".".join(parts[:-1] if package else parts), text, ast.parse(text), package)

    @property
    def home(self) -> str:
        """The package of `MAY_IMPORT` that it belongs to."""
        return home(self.name)


def home(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:2]) if ".".join(parts[:2]) in MAY_IMPORT else parts[0]


MODULES = [Module.read(path) for path in sorted(ROOT.glob("dew-*/src/**/*.py"))]
NAMES = {module.name for module in MODULES}


@attrs.frozen
class Import:
    """One import at run time: what stands under `if TYPE_CHECKING` is none."""

    line: int
    target: str
    inside: bool  # inside a function


def imports(module: Module, names: set[str] = NAMES) -> Iterator[Import]:
    """Every import of `module`; `from package import x` counts as the module `package.x` where that is in `names`."""

    def walk(node: ast.AST, inside: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(module, node)
            targets = {f"{base}.{alias.name}" if f"{base}.{alias.name}" in names else base for alias in node.names}
            yield from (Import(node.lineno, target, inside) for target in sorted(targets))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            literal = node.args[0] if node.args else None
            if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                yield Import(node.lineno, literal.value, inside)
        checking = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        inside = inside or isinstance(node, Function | ast.Lambda)
        for child in node.orelse if checking else ast.iter_child_nodes(node):  # type: ignore[attr-defined]
            yield from walk(child, inside)

    return walk(module.tree, inside=False)


def _base(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    parts = parts[: len(parts) - node.level + module.package]
    return ".".join([*parts, node.module] if node.module else parts)


def ours(target: str) -> bool:
    return home(target) in MAY_IMPORT


def functions(module: Module) -> Iterator[Function]:
    return (node for node in ast.walk(module.tree) if isinstance(node, Function))


def imports_stay_in_their_packages(module: Module) -> Iterator[str]:
    if module.home not in MAY_IMPORT:
        yield f"1: {module.home} is a new package: say in MAY_IMPORT what it may import"
        return
    for found in imports(module):
        if ours(found.target) and home(found.target) not in MAY_IMPORT[module.home]:
            yield f"{found.line}: {module.home} must not import {found.target}"


def imports_go_down_the_layers(module: Module) -> Iterator[str]:
    if module.home != "dew.data":
        return
    if module.name not in LAYER:
        yield f"1: {module.name} is new: give it a place in LAYERS"
        return
    for found in imports(module):
        if home(found.target) == "dew.data" and LAYER.get(found.target, 0) > LAYER[module.name]:
            yield f"{found.line}: {module.name} must not import {found.target}, which stands above it"


def data_imports_are_light(module: Module) -> Iterator[str]:
    if module.home != "dew.data":
        return
    for found in imports(module):
        root = found.target.partition(".")[0]
        light = root in LIGHT or (root in sys.stdlib_module_names and found.target != "importlib.metadata")
        if not found.inside and not light and not ours(found.target):
            yield f"{found.line}: import {found.target} inside the function that needs it"


def pure_modules_only_compute(module: Module) -> Iterator[str]:
    if module.name not in PURE:
        return
    outside = {"io", "multiprocessing", "os", "pathlib", "random", "shutil", "socket", "subprocess", "tempfile", "time"}
    for found in imports(module):
        root = found.target.partition(".")[0]
        if root in outside or not (root in LIGHT - {"pluggy"} or root in sys.stdlib_module_names or ours(root)):
            yield f"{found.line}: {module.name} only computes and must not import {found.target}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "open":
            yield f"{node.lineno}: {module.name} only computes and must not open files"


def grain_has_one_door(module: Module) -> Iterator[str]:
    for found in imports(module):
        if found.target.partition(".")[0] == "grain" and module.name != "dew.data.loading":
            yield f"{found.line}: only dew.data.loading imports grain"


def files_are_short(module: Module) -> Iterator[str]:
    lines = len(module.text.splitlines())
    if lines > FILE_LINES:
        yield f"1: {lines} lines, at most {FILE_LINES}: split by meaning"


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def functions_are_short(module: Module) -> Iterator[str]:
    for node in functions(module):
        lines = _lines(node) - (_lines(node.body[0]) if ast.get_docstring(node) else 0)
        if lines > FUNCTION_LINES:
            yield f"{node.lineno}: {node.name} has {lines} lines, at most {FUNCTION_LINES}: split by meaning"


def public_names_are_described(module: Module) -> Iterator[str]:
    def walk(body: list[ast.stmt]) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.If | ast.Try):
                yield from walk([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)])
            elif isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
                if not ast.get_docstring(node) and not decorators & {"overload", "override", "setter"}:
                    yield f"{node.lineno}: {node.name} has no docstring"
                if isinstance(node, ast.ClassDef):
                    yield from walk(node.body)

    if not ast.get_docstring(module.tree):
        yield "1: the module has no docstring"
    yield from walk(module.tree.body)


def functions_are_annotated(module: Module) -> Iterator[str]:
    for node in functions(module):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        bare = [a.arg for a in arguments if a and not a.annotation and a.arg not in {"self", "cls", "_cls", "mcs"}]
        if node.returns is None:
            bare.append("return")
        if bare:
            yield f"{node.lineno}: {node.name} lacks annotations: {', '.join(bare)}"


def exports_are_sorted(module: Module) -> Iterator[str]:
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            try:
                names = list(ast.literal_eval(node.value))
            except ValueError:
                yield f"{node.lineno}: __all__ is not a list of strings"
            else:
                # CONSTANTS, Classes, functions: the order that ruff wants.
                kind = lambda name: (not name.isupper(), not name[:1].isupper(), name)  # noqa: E731
                if names != sorted(set(names), key=kind):
                    yield f"{node.lineno}: __all__ is not sorted, or names something twice"


def nothing_is_unfinished(module: Module) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT and re.search(r"\b(TODO|FIXME|XXX|HACK)\b", token.string):
            yield f"{token.start[0]}: {token.string}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and node.id == "NotImplementedError":
            yield f"{node.lineno}: NotImplementedError"


def names_say_something(module: Module) -> Iterator[str]:
    for part in module.name.split("."):
        if part.strip("_") in {"util", "utils", "helper", "helpers", "manager", "common", "misc"}:
            yield f"1: {module.name}: {part!r} says nothing of what is inside"


GOOD = '''
"""A module."""
from typing import TYPE_CHECKING, overload
from dew.data import checks
from dew.data.order import Order
if TYPE_CHECKING:
    import jax
    from dew.data.stream import RecordStream
    from dew_hf import HFOptions
__all__ = ["LIMIT", "Thing", "Width", "make"]
class Thing:
    """A thing."""
    def __len__(self) -> int:
        return 1
    @overload
    def method(self, x: int) -> int: ...
    def method(self, *parts: int, **more: int) -> "NotImplemented":
        """What it does; TODO is a word like any other here."""
        import jax
        return (lambda x: x)(1)
def _private(self: int) -> None:
    def inside() -> None: ...
'''

# Rule -> the module a bad sample stands for, the sample, and what the rule says of it.
BAD: dict[Rule, tuple[str, str, str]] = {
    imports_stay_in_their_packages: (
        "dew.data.build",
        "def f():\n  from dew.tokens import TokenWindows",
        "2: dew.data must not import dew.tokens",
    ),
    imports_go_down_the_layers: (
        "dew.data.schedule",
        "from dew.data import checks, dataset",
        "1: dew.data.schedule must not import dew.data.dataset, which stands above it",
    ),
    data_imports_are_light: (
        "dew.data.build",
        "import os, numpy.typing\nimport importlib.metadata",
        "2: import importlib.metadata inside the function that needs it",
    ),
    pure_modules_only_compute: (
        "dew.data.order",
        "import math, numpy\ndef f(): return open('x')",
        "2: dew.data.order only computes and must not open files",
    ),
    grain_has_one_door: (
        "dew.data.stream",
        "def f():\n  import importlib\n  importlib.import_module('grain.python')",
        "3: only dew.data.loading imports grain",
    ),
    files_are_short: ("dew.data.build", "\n" * 501, "1: 501 lines, at most 500: split by meaning"),
    functions_are_short: (
        "dew.data.build",
        'def f():\n  """Described\n  at length."""\n' + "  x = 1\n" * 80,
        "1: f has 81 lines, at most 80: split by meaning",
    ),
    public_names_are_described: (
        "dew.data.build",
        '"""A module."""\nclass Thing:\n  """A thing."""\n  @property\n  def size(self) -> int: return 1',
        "5: size has no docstring",
    ),
    functions_are_annotated: (
        "dew.data.build",
        "class Thing:\n  def f(self, x, *y, z: int): return x",
        "2: f lacks annotations: x, y, return",
    ),
    exports_are_sorted: (
        "dew.data",
        '__all__ = ["Width", "Thing"]',
        "1: __all__ is not sorted, or names something twice",
    ),
    nothing_is_unfinished: ("dew.data.build", "x = 1  # TODO: more", "1: # TODO: more"),
    names_say_something: ("dew.data.utils", "", "1: dew.data.utils: 'utils' says nothing of what is inside"),
}


@pytest.mark.parametrize("rule", BAD, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Rule) -> None:
    problems = [f"{module.name}:{problem}" for module in MODULES for problem in rule(module)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("rule", BAD, ids=lambda rule: rule.__name__)
def test_rule_can_fail(rule: Rule) -> None:
    name, text, problem = BAD[rule]
    assert list(rule(Module(name, text, ast.parse(text)))) == [problem]
    assert list(rule(Module("dew.data.source", GOOD, ast.parse(GOOD)))) == []


def graph(modules: list[Module]) -> dict[str, set[str]]:
    """Module -> the modules of this workspace that it imports at run time, inside functions too."""
    names = {module.name for module in modules}
    return {m.name: {i.target for i in imports(m, names)} & names - {m.name} for m in modules}


def test_no_cycles() -> None:
    TopologicalSorter(graph(MODULES)).prepare()


def test_a_cycle_is_found() -> None:
    texts = {"dew.a": "from dew import b", "dew.b": "def f():\n  import dew.a"}
    modules = [Module(name, text, ast.parse(text)) for name, text in texts.items()]
    with pytest.raises(CycleError, match="nodes are in a cycle"):
        TopologicalSorter(graph(modules)).prepare()


def undeclared(modules: list[Module], project: dict[str, Any]) -> set[str]:
    """What `modules` import that `project`, the table of a pyproject.toml, does not require, not even as an extra."""
    required = [
        *project["dependencies"],
        *(r for extra in project.get("optional-dependencies", {}).values() for r in extra),
    ]
    declared = {re.split(r"[^\w-]", requirement)[0].lower().replace("-", "_") for requirement in required}
    roots = {found.target.partition(".")[0] for module in modules for found in imports(module)}
    own = {module.name.partition(".")[0] for module in modules}
    names = {DISTRIBUTIONS.get(root, root.lower()) for root in roots - own - sys.stdlib_module_names}
    return names - declared


@pytest.mark.parametrize("package", sorted(path.parent.name for path in ROOT.glob("dew-*/pyproject.toml")))
def test_imports_are_declared(package: str) -> None:
    folder = ROOT / package
    modules = [Module.read(path) for path in sorted(folder.glob("src/**/*.py"))]
    assert undeclared(modules, tomllib.loads((folder / "pyproject.toml").read_text())["project"]) == set()


def test_an_undeclared_import_is_found() -> None:
    text = "import os, numpy.typing, dew.data, PIL.Image, yaml"
    project = {
        "dependencies": ["numpy>=2"],
        "optional-dependencies": {"images": ["Pillow[x]>=10; python_version > '3'"]},
    }
    assert undeclared([Module("dew", text, ast.parse(text))], project) == {"yaml"}


def test_there_is_something_to_check() -> None:
    assert {"dew", "dew.data", "dew.data.order", "dew_hf", "dew_media", "dew_tfds"} <= NAMES


def test_importing_dew_data_is_light() -> None:
    heavy = (
        "av click datasets fsspec grain importlib.metadata jax PIL rich tensorflow tensorflow_datasets tokenizers torch"
    )
    code = f"import sys, dew.data; print(sorted(set({heavy.split()}) & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
