"""Plugins as an environment has them: distributions on disk, found by a fresh interpreter."""

from collections.abc import Callable
from pathlib import Path

import pytest

WriteDistribution = Callable[..., Path]
RunPython = Callable[..., str]

REFUSED = """
from dew.data import load
try:
    load({source!r}, batch=2)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("backwards", [False, True])
def test_two_claimants_are_refused_in_both_path_orders(
    tmp_path: Path, write_distribution: WriteDistribution, run_python: RunPython, backwards: bool
) -> None:
    sites = [tmp_path / "one", tmp_path / "two"]
    write_distribution(sites[0], "firstone", "1.0", "same")
    write_distribution(sites[1], "secondone", "2.0", "same")
    said = run_python(REFUSED.format(source="same/x"), *(reversed(sites) if backwards else sites))
    assert said == (
        "ProviderConflictError 'same/...' is claimed by firstone 1.0 (firstone_plugin) and "
        "secondone 2.0 (secondone_plugin); uninstall all but one of them\n"
    )


@pytest.mark.parametrize("backwards", [False, True])
def test_one_distribution_visible_twice_is_the_first_on_the_path(
    tmp_path: Path, write_distribution: WriteDistribution, run_python: RunPython, backwards: bool
) -> None:
    sites = [tmp_path / "editable", tmp_path / "wheel"]
    write_distribution(sites[0], "dew-mem", "1.1.dev0", "mem", number=1)
    write_distribution(sites[1], "dew-mem", "1.0", "mem", number=2)
    script = """
from dew.data import DataPartition, load, registry
with load("mem/x", batch=2).train(DataPartition()) as stream:
    print(next(stream)["from"].tolist(), [c.version for c in registry.installed() if c.prefix == "mem"])
"""
    said = run_python(script, *(reversed(sites) if backwards else sites))
    assert said == ("[2, 2] ['1.0']\n" if backwards else "[1, 1] ['1.1.dev0']\n")


def test_a_broken_plugin_does_not_hurt_a_good_one(
    tmp_path: Path, write_distribution: WriteDistribution, run_python: RunPython
) -> None:
    write_distribution(tmp_path, "dew-bad", "1.0", "bad", body="import a_module_that_is_not_there\n")
    write_distribution(tmp_path, "dew-good", "2.0", "good")
    script = """
from dew.data import load, registry
for prefix in ("bad", "good"):
    try:
        print(load(f"{prefix}/x", batch=2).records)
    except ImportError as error:
        print(type(error).__name__, error, "|", repr(error.__cause__))
print([str(claim) for claim in registry.installed() if claim.prefix in ("bad", "good")])
"""
    cause = "No module named 'a_module_that_is_not_there'"
    assert run_python(script, tmp_path).splitlines() == [
        f"ProviderImportError the provider 'bad' (dew-bad 1.0, dew_bad_plugin) failed to import: ModuleNotFoundError: "
        f'{cause}; update or uninstall dew-bad, other providers are not affected | ModuleNotFoundError("{cause}")',
        "8",
        "['dew-bad 1.0', 'dew-good 2.0']",
    ]


def test_a_stranger_may_not_take_the_place_of_ours(
    tmp_path: Path, core_alone: Path, write_distribution: WriteDistribution, run_python: RunPython
) -> None:
    write_distribution(tmp_path / "site", "stranger", "3.0", "hf")
    said = run_python(REFUSED.format(source="hf/x"), tmp_path / "site", core_alone, alone=True)
    assert said == (
        "ProviderConflictError the prefix 'hf' belongs to dew-hf, but stranger 3.0 claims it; "
        "uninstall stranger 3.0, and pip install dew-hf\n"
    )


@pytest.mark.parametrize(
    ("prefix", "owner"),
    [("hf", "dew-hf"), ("tfds", "dew-tfds"), ("images", "dew-media"), ("video", "dew-media")],
)
def test_an_absent_package_of_ours_is_named(core_alone: Path, run_python: RunPython, prefix: str, owner: str) -> None:
    said = run_python(REFUSED.format(source=f"{prefix}/x"), core_alone, alone=True)
    assert said == (
        f"ProviderNotInstalledError '{prefix}/...' needs the {owner} package, which is not installed: "
        f"pip install {owner}\n"
    )


def test_metadata_that_cannot_be_read_hides_no_other_plugin_and_is_read_once_repaired(
    tmp_path: Path, write_distribution: WriteDistribution, run_python: RunPython
) -> None:
    write_distribution(tmp_path, "dew-good", "2.0", "good")
    damaged = write_distribution(tmp_path, "dew-odd", "1.0", "odd", entry_points=b"[dew.providers]\nodd = \xff\n")
    script = f"""
import warnings
from pathlib import Path
from dew.data import DewWarning, load

for repaired in (False, True):
    if repaired:
        Path({str(damaged / "entry_points.txt")!r}).write_text("[dew.providers]\\nodd = dew_odd_plugin\\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        print(load("good/x", batch=2).records)
        try:
            print(load("odd/x", batch=2).records)
        except LookupError as error:
            print(type(error).__name__)
    warned = {{(w.category, "dew_odd-1.0.dist-info cannot be read" in str(w.message)) for w in caught}}
    print(warned == set() if repaired else warned == {{(DewWarning, True)}})
"""
    assert run_python(script, tmp_path).split() == ["8", "ProviderNotFoundError", "True", "8", "8", "True"]


def test_a_plugin_installed_later_in_the_same_process_is_found(
    tmp_path: Path, write_distribution: WriteDistribution, run_python: RunPython
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    write_distribution(tmp_path / "staged", "dew-late", "1.0", "late")
    script = f"""
import shutil
from dew.data import load
try:
    load("late/x", batch=2)
except LookupError as error:
    print(type(error).__name__)
shutil.copytree({str(tmp_path / "staged")!r}, {str(site)!r}, dirs_exist_ok=True)
print(load("late/x", batch=2).records)
"""
    assert run_python(script, site).split() == ["ProviderNotFoundError", "8"]
