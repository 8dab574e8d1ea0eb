"""`ProviderSuite` on a sound provider, and on providers with one planted fault each.

Providers are registered in this process; what a suite asks of an installed distribution is tried on distributions that
are written by hand into a folder on `sys.path`.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np
import pytest

from dew.data import registry
from dew.data.build import ColumnSource
from dew.data.errors import ProviderNotFoundError, SplitError
from dew.data.provider import LoadRequest, Provider
from dew.data.source import RecordSource
from dew.testing import ProviderSuite

Failing: TypeAlias = Callable[[Any], dict[str, BaseException]]

SPLITS = {"train": 37, "val": 10}


@attrs.frozen(kw_only=True)
class Options:
    scale: int = 1
    val_split: str | None = "val"


@dataclasses.dataclass(frozen=True)
class DataclassOptions:
    scale: int = 1
    val_split: str = "val"


@attrs.define
class MutableOptions:
    scale: int = 1
    val_split: str = "val"


class Squares(ColumnSource):
    def __init__(self, split: str, scale: int) -> None:
        first = 0 if split == "train" else 1000
        ids = np.arange(first, first + SPLITS[split])
        super().__init__({"id": ids, "square": scale * ids**2})
        self.name = f"Squares({split}, scale={scale})"

    def __repr__(self) -> str:
        return self.name

    def fingerprint(self) -> str:
        return self.name


def open_split(request: LoadRequest, split: str) -> RecordSource:
    if split not in SPLITS:
        raise SplitError(f"there is no split {split!r} of {request.name}; there are train and val")
    return Squares(split, request.options.scale if request.options is not None else 1)


SOUND = Provider(prefix="squares", summary="Squares of numbers.", options=Options, open=open_split)


@pytest.fixture
def suite() -> Iterator[Callable[..., ProviderSuite]]:
    """`suite(provider, **attributes)`, with the provider registered as "squares"."""

    def made(provider: Provider, prefix: str = "squares", **changes: Any) -> ProviderSuite:
        if prefix not in {claim.prefix for claim in registry.installed()}:
            registry.register(provider, prefix)

        class Suite(ProviderSuite):
            source = f"{prefix}/small"
            splits = ("train", "val")
            steps = 3
            largest_count = 2
            largest_pickle = None

            def arguments(self) -> dict[str, Any]:
                return changes

        return Suite()

    yield made
    with contextlib.suppress(ProviderNotFoundError):
        registry.unregister("squares")


def without_names(request: LoadRequest, split: str) -> RecordSource:
    if split not in SPLITS:
        raise SplitError("there is no such split")
    return open_split(request, split)


def with_key_error(request: LoadRequest, split: str) -> RecordSource:
    return Squares(split, SPLITS[split] and 1)


def any_split(request: LoadRequest, split: str) -> RecordSource:
    return Squares(split if split in SPLITS else "train", 1)


def other_each_time(request: LoadRequest, split: str) -> RecordSource:
    """Opens other data each time, as a service that samples would."""
    if split not in SPLITS:
        return open_split(request, split)
    return Squares(split, int(np.random.default_rng().integers(1 << 40)))


WRONG_OPTIONS = "test_wrong_options_are_a_type_error"
VALUES = "test_options_are_values"
SPLIT = "test_an_unknown_split_lists_those_there_are"
FOUND = "test_is_found_by_its_prefix"
LIGHT = "test_imports_lightly"
OWNS = "test_the_distribution_owns_no_file_of_dew"

FAULTS = [
    ({"options": object}, {"options": Options()}, WRONG_OPTIONS, "AttributeError, not a TypeError"),
    ({"options": MutableOptions}, {}, VALUES, r"MutableOptions\.scale can be set"),
    ({"open": without_names}, {}, SPLIT, "without naming 'no-such-split'"),
    ({"open": with_key_error}, {}, SPLIT, "a KeyError, not a SplitError"),
    ({"open": any_split}, {}, SPLIT, "opened as if it existed"),
    ({"summary": "two\nlines"}, {}, FOUND, "one line says what it reads"),
]


def test_a_sound_provider_passes(suite: Any, failing: Failing) -> None:
    assert failing(suite(SOUND)) == {}


def test_options_may_be_a_dataclass_or_absent(suite: Any) -> None:
    suite(attrs.evolve(SOUND, options=DataclassOptions)).test_options_are_values()
    registry.unregister("squares")
    plain = suite(attrs.evolve(SOUND, options=None))
    plain.test_wrong_options_are_a_type_error()
    with pytest.raises(pytest.skip.Exception, match="no options"):
        plain.test_options_are_values()


@pytest.mark.parametrize(("changes", "arguments", "found_by", "says"), FAULTS)
def test_each_fault_is_found_by_its_test(
    changes: Any, arguments: Any, found_by: str, says: str, suite: Any, failing: Failing
) -> None:
    found = failing(suite(attrs.evolve(SOUND, **changes), **arguments))
    assert set(found) == {found_by}
    with pytest.raises(AssertionError, match=says):
        raise found[found_by]


def test_what_streams_and_sources_must_do_is_asked_too(suite: Any, failing: Failing) -> None:
    found = set(failing(suite(attrs.evolve(SOUND, open=other_each_time))))
    assert {
        "test_describes_its_data",
        "test_identity_is_stable",
        "test_reads_the_same_record_twice",
        "test_shares_tile_the_global_batch",
        "test_resumes_at_every_step_on_every_process_count",
    } <= found
    assert not found & {WRONG_OPTIONS, VALUES, SPLIT, FOUND, LIGHT, OWNS, "test_a_share_has_its_rows"}


PLUGIN = """
from dew.data.provider import Provider, hookimpl
{more}
@hookimpl
def dew_provider():
    return Provider(prefix="installed", summary="Nothing.", options=None, open=open_split)

class Rows:
    def __len__(self): return 40
    def __getitem__(self, index):
        if index >= 40: raise IndexError(index)
        return {{"x": {value}}}
    def __repr__(self): return "Rows()"

def open_split(request, split):
    return Rows()
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a distribution `dew-installed` by hand, with a plugin and more files."""

    def write(more: str = "", *, files: tuple[str, ...] = (), value: str = "index") -> None:
        info = tmp_path / "dew_installed-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dew-installed\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[dew.providers]\ninstalled = dew_installed\n")
        (info / "RECORD").write_text("".join(f"{name},,\n" for name in ("dew_installed.py", *files)))
        (tmp_path / "dew_installed.py").write_text(PLUGIN.format(more=more, value=value))
        for name in files:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        monkeypatch.syspath_prepend(tmp_path)

    # Of its own, so that what is installed here is forgotten.
    monkeypatch.setattr(registry, "_PROCESS", registry.Registry())
    yield write
    sys.modules.pop("dew_installed", None)


def test_a_light_plugin_of_its_own_package_passes(suite: Any, install: Any) -> None:
    install(files=("dew_installed_more/data.txt",))
    tests = suite(SOUND, "installed")
    tests.test_is_found_by_its_prefix()
    tests.test_imports_lightly()
    tests.test_another_process_reads_the_same()
    tests.test_the_distribution_owns_no_file_of_dew()


def test_records_that_depend_on_the_process_are_found(suite: Any, install: Any) -> None:
    """Python's hashes of text differ from process to process."""
    install(value="hash('a name') % 1_000_003 + index")
    with pytest.raises(
        AssertionError, match=r"row 0 of the step is another in a process with another PYTHONHASHSEED, in '.*': no"
    ):
        suite(SOUND, "installed").test_another_process_reads_the_same()


def test_what_another_process_cannot_read_is_found(suite: Any, install: Any) -> None:
    install(value="__import__('sys').modules['pytest'] and index")
    with pytest.raises(AssertionError, match="another process cannot read the source: KeyError: 'pytest'"):
        suite(SOUND, "installed").test_another_process_reads_the_same()


def test_a_plugin_that_imports_jax_is_found(suite: Any, install: Any) -> None:
    install("import jax")
    with pytest.raises(AssertionError, match="importing dew_installed imports jax"):
        suite(SOUND, "installed").test_imports_lightly()


def test_a_plugin_that_cannot_be_imported_alone_is_found(suite: Any, install: Any) -> None:
    install("import sys; sys.modules['pytest'].skip")
    with pytest.raises(AssertionError, match="dew_installed cannot be imported alone: KeyError: 'pytest'"):
        suite(SOUND, "installed").test_imports_lightly()


def test_a_distribution_that_ships_a_file_of_dew_is_found(suite: Any, install: Any) -> None:
    install(files=("dew/installed.py",))
    with pytest.raises(AssertionError, match=r"dew-installed owns dew/installed\.py; ship a package of your own"):
        suite(SOUND, "installed").test_the_distribution_owns_no_file_of_dew()


def test_an_editable_one_is_found_too(suite: Any, install: Any, tmp_path: Path) -> None:
    install(files=("editable.pth",))
    source = tmp_path / "src"
    (source / "dew").mkdir(parents=True)
    (tmp_path / "editable.pth").write_text(f"{source}\n")
    with pytest.raises(AssertionError, match="dew-installed owns dew; ship a package of your own"):
        suite(SOUND, "installed").test_the_distribution_owns_no_file_of_dew()


def test_a_suite_without_a_source_says_so() -> None:
    with pytest.raises(TypeError, match=r'ProviderSuite must say what to load: source = "prefix/name"'):
        ProviderSuite().make_dataset()
