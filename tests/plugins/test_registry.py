"""The registry over in-memory distributions: one provider by prefix, and every refusal with its message."""

import re
import sys
import types
from collections.abc import Callable, Iterable
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import Any

import pytest

from dew.data import registry as registry_module
from dew.data.errors import (
    DewDataError,
    OptionsError,
    ProviderConflictError,
    ProviderError,
    ProviderImportError,
    ProviderNotFoundError,
    ProviderNotInstalledError,
    ProviderVersionError,
)
from dew.data.provider import API_VERSION, LoadRequest, Provider, hookimpl
from dew.data.registry import OWNERS, InstalledProvider, Registry

MakePlugin = Callable[..., str]


class InMemory(Distribution):
    """A distribution that states entry points of the group `dew.providers`, with no file behind it."""

    def __init__(self, name: str | None, version: str, *targets: str) -> None:
        self.texts = {
            "METADATA": "Metadata-Version: 2.1\n" + (f"Name: {name}\nVersion: {version}\n" if name else ""),
            "entry_points.txt": "[dew.providers]\n" + "\n".join(targets) + "\n",
        }

    def read_text(self, filename: str) -> str | None:
        return self.texts.get(filename)

    def locate_file(self, path: Any) -> Any:
        return Path(path)


def scan(*distributions: Distribution) -> Callable[[], Iterable[EntryPoint]]:
    return lambda: [point for distribution in distributions for point in distribution.entry_points]


def rows(request: LoadRequest, split: str) -> Any:
    return [{"x": 1}]


def provider(prefix: str, **changes: Any) -> Provider:
    return Provider(**{"prefix": prefix, "summary": "for tests", "options": None, "open": rows, **changes})


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> MakePlugin:
    """Puts a module with the hook `answer` into sys.modules; returns its name."""

    def make(name: str, answer: Callable[[], Any] | None) -> str:
        module = types.ModuleType(name)
        if answer is not None:
            module.dew_provider = hookimpl(answer)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
        return name

    return make


def test_find_imports_and_returns_the_provider(plugin: MakePlugin) -> None:
    wanted = provider("mem")
    plugin("mem_plugin", lambda: wanted)
    registry = Registry(scan(InMemory("dew-mem", "1.2", "mem = mem_plugin")))
    assert registry.find("mem") is wanted
    assert registry.find("mem") is wanted


def test_find_touches_no_other_plugin(plugin: MakePlugin) -> None:
    plugin("mem_plugin", lambda: provider("mem"))
    registry = Registry(
        scan(
            InMemory("dew-bad", "1.0", "bad = no_such_module_anywhere"), InMemory("dew-mem", "1.2", "mem = mem_plugin")
        )
    )
    assert registry.find("mem").prefix == "mem"


def test_an_unknown_prefix_lists_the_installed_ones(plugin: MakePlugin) -> None:
    registry = Registry(scan(InMemory("dew-mem", "1.2", "mem = m", "other = o")))
    with pytest.raises(
        ProviderNotFoundError,
        match=re.escape("no installed package provides 'zzz/...'; installed providers: mem, other"),
    ):
        registry.find("zzz")


def test_an_unknown_prefix_where_nothing_is_installed() -> None:
    with pytest.raises(
        LookupError, match=re.escape("no installed package provides 'zzz/...'; installed providers: none")
    ):
        Registry(scan()).find("zzz")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("memm", "did you mean 'mem/...'; installed providers: mem"),
        ("MEM", "did you mean 'mem/...';"),
        ("tdfs", "did you mean 'tfds/...' (pip install dew-tfds);"),
        ("image", "did you mean 'images/...' (pip install dew-media);"),
    ],
)
def test_an_unknown_prefix_names_the_nearest(asked: str, said: str) -> None:
    registry = Registry(scan(InMemory("dew-mem", "1.2", "mem = m")))
    with pytest.raises(ProviderNotFoundError, match=re.escape(said)):
        registry.find(asked)


@pytest.mark.parametrize(("prefix", "owner"), sorted(OWNERS.items()))
def test_an_absent_package_of_ours_gives_its_pip_line(prefix: str, owner: str) -> None:
    message = f"'{prefix}/...' needs the {owner} package, which is not installed: pip install {owner}"
    with pytest.raises(ProviderNotInstalledError, match=re.escape(message)) as caught:
        Registry(scan()).find(prefix)
    assert isinstance(caught.value, ImportError)


def test_two_distributions_that_claim_one_prefix_are_refused_in_both_orders() -> None:
    first = InMemory("firstone", "1.0", "same = first_plugin")
    second = InMemory("secondone", "2.5", "same = second_plugin")
    said = []
    for order in ((first, second), (second, first)):
        with pytest.raises(ProviderConflictError) as caught:
            Registry(scan(*order)).find("same")
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert said[0] == (
        "'same/...' is claimed by firstone 1.0 (first_plugin) and secondone 2.5 (second_plugin); "
        "uninstall all but one of them"
    )


def test_two_nameless_distributions_are_two_claims() -> None:
    registry = Registry(scan(InMemory(None, "", "same = one"), InMemory(None, "", "same = two")))
    with pytest.raises(ProviderConflictError, match="a distribution without a name"):
        registry.find("same")


def test_one_distribution_that_claims_a_prefix_twice_is_refused() -> None:
    with pytest.raises(ProviderConflictError, match=r"dew-mem 1\.0 \(one\) and dew-mem 1\.0 \(two\)"):
        Registry(scan(InMemory("dew-mem", "1.0", "mem = one", "mem = two"))).find("mem")


def test_the_same_distribution_seen_twice_is_one_claim(plugin: MakePlugin) -> None:
    plugin("mem_plugin", lambda: provider("mem"))
    editable = InMemory("dew-mem", "1.3.dev0", "mem = mem_plugin")
    wheel = InMemory("dew_Mem", "1.2", "mem = another_module")
    registry = Registry(scan(editable, wheel))
    assert registry.find("mem").prefix == "mem"
    assert registry.installed() == [InstalledProvider("mem", "dew-mem", "1.3.dev0", "mem_plugin")]


@pytest.mark.parametrize("prefix", sorted(OWNERS))
def test_a_stranger_may_not_claim_a_prefix_of_ours(prefix: str) -> None:
    owner = OWNERS[prefix]
    message = f"the prefix '{prefix}' belongs to {owner}, but stranger 1.0 claims it; uninstall stranger 1.0"
    with pytest.raises(ProviderConflictError, match=re.escape(message)):
        Registry(scan(InMemory("stranger", "1.0", f"{prefix} = stranger"))).find(prefix)
    both = [InMemory(owner, "0.1.0", f"{prefix} = ours"), InMemory("stranger", "1.0", f"{prefix} = stranger")]
    with pytest.raises(ProviderConflictError, match=re.escape(message)):
        Registry(scan(*both)).find(prefix)


def test_an_owner_is_recognised_however_its_name_is_spelt(plugin: MakePlugin) -> None:
    plugin("ours", lambda: provider("hf"))
    assert Registry(scan(InMemory("Dew_HF", "0.1.0", "hf = ours"))).find("hf").prefix == "hf"


def test_a_failed_import_names_the_distribution_and_keeps_the_cause() -> None:
    registry = Registry(scan(InMemory("dew-bad", "1.0", "bad = no_such_module_anywhere")))
    message = (
        "the provider 'bad' (dew-bad 1.0, no_such_module_anywhere) failed to import: ModuleNotFoundError: "
        "No module named 'no_such_module_anywhere'; update or uninstall dew-bad, other providers are not affected"
    )
    with pytest.raises(ProviderImportError, match=re.escape(message)) as caught:
        registry.find("bad")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_plugin_that_exits_while_it_is_imported_does_not_end_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugin_that_exits.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry(scan(InMemory("dew-exits", "1.0", "exits = plugin_that_exits")))
    with pytest.raises(ProviderImportError, match=r"dew-exits 1\.0.*SystemExit: 3"):
        registry.find("exits")


def test_a_failed_import_is_tried_again(plugin: MakePlugin) -> None:
    registry = Registry(scan(InMemory("dew-late", "1.0", "late = late_plugin")))
    with pytest.raises(ProviderImportError, match="late_plugin"):
        registry.find("late")
    plugin("late_plugin", lambda: provider("late"))
    assert registry.find("late").prefix == "late"


@pytest.mark.parametrize(
    ("speaks", "advice"),
    [
        (API_VERSION + 1, "update dew-core, or install an older version of the plugin"),
        (API_VERSION - 1, "update the plugin, or install an older dew-core"),
    ],
)
def test_another_version_of_the_interface_is_refused(
    plugin: MakePlugin, monkeypatch: pytest.MonkeyPatch, speaks: int, advice: str
) -> None:
    # There is no version 0 yet: the plugin speaks one version and this registry is moved by one.
    monkeypatch.setattr(registry_module, "API_VERSION", ours := 2 * API_VERSION - speaks)
    plugin("new_plugin", lambda: provider("new", api=API_VERSION))
    message = (
        f"the provider 'new' (dew-new 9.0, new_plugin) speaks version {API_VERSION} of the provider interface, "
        f"and this dew-core speaks {ours}; {advice}"
    )
    with pytest.raises(ProviderVersionError, match=re.escape(message)):
        Registry(scan(InMemory("dew-new", "9.0", "new = new_plugin"))).find("new")


def test_a_hook_of_another_prefix_is_refused(plugin: MakePlugin) -> None:
    plugin("liar", lambda: provider("said"))
    message = (
        "states the prefix 'stated' as its entry point, but its hook returns a provider of the prefix 'said'; "
        "they must be the same"
    )
    with pytest.raises(ProviderError, match=re.escape(message)):
        Registry(scan(InMemory("dew-liar", "1.0", "stated = liar"))).find("stated")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "has no hook: define `@hookimpl def dew_provider() -> Provider`"),
        (lambda: None, "returned None (NoneType); it must return one dew.data.provider.Provider"),
        (lambda: "mem", "returned 'mem' (str); it must return one"),
        (lambda: [provider("mem"), provider("mem2")], "returned 2 values in a list; it must return one"),
        (lambda: (provider("mem"),), "returned 1 values in a tuple"),
        (lambda: 1 / 0, "has a hook dew_provider() that raised ZeroDivisionError: division by zero"),
        (lambda: provider("a/b"), "raised OptionsError: a provider's prefix must be a word without '/'"),
        (lambda surprise: None, "does not fit the hook dew_provider(): "),
    ],
)
def test_a_hook_that_does_not_return_one_provider_is_refused(
    plugin: MakePlugin, answer: Callable[[], Any] | None, message: str
) -> None:
    plugin("odd", answer)
    with pytest.raises(ProviderError, match=r"\(dew-odd 1\.0, odd\)") as caught:
        Registry(scan(InMemory("dew-odd", "1.0", "mem = odd"))).find("mem")
    assert message in str(caught.value)


def test_two_hooks_in_one_module_are_refused(plugin: MakePlugin) -> None:
    module = sys.modules[plugin("two", lambda: provider("mem"))]
    module.again = hookimpl(specname="dew_provider")(lambda: provider("mem"))  # type: ignore[attr-defined]
    with pytest.raises(ProviderError, match=r"has 2 hooks dew_provider\(\), and must have exactly one"):
        Registry(scan(InMemory("dew-two", "1.0", "mem = two"))).find("mem")


def test_a_misspelt_hook_is_named(plugin: MakePlugin) -> None:
    module = sys.modules[plugin("misspelt", None)]
    module.dew_provders = hookimpl(lambda: provider("mem"))  # type: ignore[attr-defined]
    with pytest.raises(ProviderError, match="unknown hook 'dew_provders'"):
        Registry(scan(InMemory("dew-odd", "1.0", "mem = misspelt"))).find("mem")


def test_a_miss_looks_again_and_finds_what_was_installed_since(plugin: MakePlugin) -> None:
    environment: list[Distribution] = []
    registry = Registry(lambda: scan(*environment)())
    with pytest.raises(ProviderNotFoundError, match=r"provides 'mem/\.\.\.'"):
        registry.find("mem")
    plugin("mem_plugin", lambda: provider("mem"))
    environment.append(InMemory("dew-mem", "1.0", "mem = mem_plugin"))
    assert registry.find("mem").prefix == "mem"


def test_a_scan_that_failed_is_not_remembered(plugin: MakePlugin) -> None:
    plugin("mem_plugin", lambda: provider("mem"))
    calls: list[int] = []

    def fails_once() -> Iterable[EntryPoint]:
        calls.append(1)
        if len(calls) == 1:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return scan(InMemory("dew-mem", "1.0", "mem = mem_plugin"))()

    registry = Registry(fails_once)
    with pytest.raises(
        ProviderError, match=r"the installed packages could not be listed \(UnicodeDecodeError"
    ) as caught:
        registry.find("mem")
    assert isinstance(caught.value.__cause__, UnicodeDecodeError)
    assert registry.find("mem").prefix == "mem"


def test_installed_reads_metadata_only() -> None:
    registry = Registry(
        scan(
            InMemory("dew-same", "2.0", "same = also_no_module"),
            InMemory("dew-bad", "1.0", "same = no_such_module_anywhere", "bad = no_such_module_anywhere"),
            InMemory(None, "", "nameless = x"),
        )
    )
    assert registry.installed() == [
        InstalledProvider("bad", "dew-bad", "1.0", "no_such_module_anywhere"),
        InstalledProvider("nameless", "a distribution without a name", "", "x"),
        InstalledProvider("same", "dew-bad", "1.0", "no_such_module_anywhere"),
        InstalledProvider("same", "dew-same", "2.0", "also_no_module"),
    ]


def test_entry_points_without_a_distribution_are_named_as_such() -> None:
    registry = Registry(lambda: [EntryPoint("mem", "no_such_module_anywhere", "dew.providers")])
    with pytest.raises(ProviderImportError, match=r"'mem' \(a distribution without a name, no_such_module_anywhere\)"):
        registry.find("mem")


class TestRegister:
    def test_a_provider(self) -> None:
        registry, wanted = Registry(scan()), provider("mem")
        assert registry.register(wanted) is wanted
        assert registry.find("mem") is wanted

    def test_a_module_and_an_object_with_the_hook(self, plugin: MakePlugin) -> None:
        class Plugin:
            @hookimpl
            def dew_provider(self) -> Provider:
                return provider("object")

        registry = Registry(scan())
        registry.register(sys.modules[plugin("mem_plugin", lambda: provider("mem"))])
        registry.register(Plugin())
        assert [registry.find(prefix).prefix for prefix in ("mem", "object")] == ["mem", "object"]

    def test_under_another_prefix(self) -> None:
        registry = Registry(scan())
        assert registry.register(provider("mem"), prefix="other").prefix == "other"
        assert registry.find("other").prefix == "other"
        with pytest.raises(ProviderNotFoundError, match="installed providers: other"):
            registry.find("mem")

    def test_a_prefix_that_cannot_be(self) -> None:
        with pytest.raises(OptionsError, match="must be a word without '/', got 'a/b'"):
            Registry(scan()).register(provider("mem"), prefix="a/b")

    def test_a_registered_prefix_is_taken(self) -> None:
        registry = Registry(scan())
        registry.register(provider("mem"))
        message = "the prefix 'mem' is already registered in this process; call unregister('mem') first"
        with pytest.raises(ProviderConflictError, match=re.escape(message)):
            registry.register(provider("mem"))

    def test_an_installed_prefix_is_taken(self) -> None:
        registry = Registry(scan(InMemory("dew-mem", "1.0", "mem = no_such_module_anywhere")))
        message = "the prefix 'mem' is already provided by dew-mem 1.0; register another prefix, or uninstall that one"
        with pytest.raises(ProviderConflictError, match=re.escape(message)):
            registry.register(provider("mem"))

    @pytest.mark.parametrize("prefix", sorted(OWNERS))
    def test_a_prefix_of_ours_is_taken_even_when_absent(self, prefix: str) -> None:
        with pytest.raises(ProviderConflictError, match=f"the prefix '{prefix}' belongs to {OWNERS[prefix]}"):
            Registry(scan()).register(provider(prefix))

    def test_what_is_no_plugin(self) -> None:
        with pytest.raises(ProviderError, match="the plugin of type object given to register has no hook"):
            Registry(scan()).register(object())

    def test_another_version_of_the_interface(self) -> None:
        with pytest.raises(ProviderVersionError, match="the plugin 'mem' given to register speaks version 2"):
            Registry(scan()).register(provider("mem", api=API_VERSION + 1))

    def test_unregister(self) -> None:
        registry = Registry(scan())
        registry.register(provider("mem"))
        registry.unregister("mem")
        with pytest.raises(ProviderNotFoundError, match=r"provides 'mem/\.\.\.'"):
            registry.find("mem")
        registry.register(provider("mem"))

    def test_unregister_what_is_not_registered(self) -> None:
        registry = Registry(scan(InMemory("dew-mem", "1.0", "mem = m")))
        registry.register(provider("other"))
        message = "'mem' cannot be unregistered: the prefixes registered in this process are other"
        with pytest.raises(ProviderNotFoundError, match=re.escape(message)) as caught:
            registry.unregister("mem")
        assert isinstance(caught.value, DewDataError)
