"""What every provider must do besides opening good sources, as checks of a source `"prefix/name"`."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dew.data import registry
from dew.data.dataset import Dataset
from dew.data.errors import SplitError
from dew.data.provider import API_VERSION, Provider
from dew.testing.counterexample import Check, Counterexample

if TYPE_CHECKING:
    from importlib.metadata import Distribution

# Libraries that a plugin imports only when it reads.
_HEAVY = ("av", "datasets", "grain", "jax", "pyarrow", "tensorflow", "tensorflow_datasets", "tokenizers", "torch")

ABSENT_SPLIT = "no-such-split"

Load: TypeAlias = "Callable[[Mapping[str, Any]], Dataset]"
"""`dew.data.load` of the source under test, with some arguments changed."""


class ForeignOptions:
    """Options of no provider."""


def is_found_by_its_prefix(source: str) -> Check:
    """The registry finds the provider, which says what it is in one line."""
    found = provider_of(source)
    prefix = source.partition("/")[0]
    if found.prefix != prefix:
        raise Counterexample(f"the provider of {source!r} has the prefix {found.prefix!r}")
    if found.api != API_VERSION:
        raise Counterexample(f"the provider speaks version {found.api} of the interface, this is version {API_VERSION}")
    if not found.summary.strip() or "\n" in found.summary:
        raise Counterexample(f"the provider's summary is {found.summary!r}; one line says what it reads")
    yield True


def refuses_foreign_options(source: str, load: Load) -> Check:
    """Options of another class are a TypeError that names both classes."""
    wanted = provider_of(source).options
    try:
        load({"options": ForeignOptions()})
    except TypeError as error:
        for name in ("ForeignOptions", *([] if wanted is None else [wanted.__name__])):
            if name not in str(error):
                raise Counterexample(f"options of another class are refused without naming {name}: {error}") from error
        yield True
        return
    except Exception as error:
        raise Counterexample(
            f"options of another class are a {type(error).__name__}, not a TypeError: {error}"
        ) from error
    raise Counterexample("options of another class are taken")


def lists_the_splits(splits: Sequence[str], load: Load) -> Check:
    """An unknown split is a SplitError whose message names it, and those there are."""
    try:
        load({"split": ABSENT_SPLIT})
    except SplitError as error:
        for name in (ABSENT_SPLIT, *splits):
            if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", str(error)):
                raise Counterexample(f"an unknown split is refused without naming {name!r}: {error}") from error
        yield True
        return
    except Exception as error:
        raise Counterexample(f"an unknown split is a {type(error).__name__}, not a SplitError: {error}") from error
    raise Counterexample(f"the split {ABSENT_SPLIT!r} is opened as if it existed")


def options_are_frozen(options: object) -> Check:
    """Options are values: no field can be set, and equal ones are equal."""
    described: Any = getattr(options, "__attrs_attrs__", None) or getattr(options, "__dataclass_fields__", {}).values()
    for name in [field.name for field in described]:
        try:
            setattr(options, name, getattr(options, name))
        except AttributeError:  # what a frozen class raises
            yield True
            continue
        raise Counterexample(f"{type(options).__name__}.{name} can be set; options are a frozen class")


def asks_for_preprocess(source: str, load: Load) -> Check:
    """A provider whose rows have a shape of their own asks for `preprocess`, showing the fields."""
    if not provider_of(source).needs_preprocess:
        return
    try:
        load({"preprocess": None})
    except TypeError as error:
        if "preprocess" not in str(error):
            raise Counterexample(f"a missing preprocess is refused without naming it: {error}") from error
        yield True
        return
    raise Counterexample("a missing preprocess is not asked for")


def imports_lightly(source: str) -> Check:
    """Importing the plugin imports no library that reads data or computes: a list of providers is quick."""
    modules = [claim.target for claim in registry.installed() if claim.prefix == source.partition("/")[0]]
    if not modules:
        return  # registered in this process
    code = (
        f"import importlib, sys; sys.path[:0] = {sys.path!r}; importlib.import_module({modules[0]!r}); "
        f"print(*sorted(set({_HEAVY!r}) & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Counterexample(f"{modules[0]} cannot be imported alone: {ran.stderr.strip().rpartition(chr(10))[2]}")
    if loaded := ran.stdout.split():
        raise Counterexample(f"importing {modules[0]} imports {', '.join(loaded)}; import them where they are used")
    yield True


def owns_no_file_of_dew(source: str) -> Check:
    """The distribution installs nothing under `dew/`, which belongs to dew-core."""
    from importlib import metadata

    prefix = source.partition("/")[0]
    for claim in registry.installed():
        if claim.prefix == prefix and claim.distribution != registry.OWNERS["tokens"]:
            for path in _files(metadata.distribution(claim.distribution)):
                if path.parts[:1] == ("dew",):
                    raise Counterexample(
                        f"{claim.distribution} owns {path}; ship a package of your own, as dew_{prefix}, never dew/"
                    )
            yield True


def _files(distribution: "Distribution") -> Iterator[Path]:
    """What a distribution installs, from where packages are looked up; of an editable one, what its paths hold."""
    for file in distribution.files or ():
        yield Path(file)
        if str(file).endswith(".pth"):
            for line in Path(str(distribution.locate_file(file))).read_text().splitlines():
                if Path(line).is_dir():
                    yield from (Path(path.name) for path in Path(line).iterdir())


def is_installed(source: str) -> bool:
    """Whether an installed distribution brings the provider, so that other processes find it too."""
    return source.partition("/")[0] in {claim.prefix for claim in registry.installed()}


def provider_of(source: str) -> Provider:
    """The provider of `"prefix/name"`."""
    return registry.find(source.partition("/")[0])
