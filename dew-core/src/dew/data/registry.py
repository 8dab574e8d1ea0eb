"""The registry: finds the one provider of a prefix, imports only that one, and refuses what is ambiguous.

Installed packages state their prefixes as entry points of the group `dew.providers`. Listing them reads metadata
alone, so a plugin that is broken or slow to import cannot hurt another: only the one asked for is imported, with a
plugin manager of its own, so that no plugin can answer for another's prefix. Two claims of one prefix are refused.
"""

import importlib
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import attrs
import pluggy

from dew.data.errors import (
    DewWarning,
    ProviderConflictError,
    ProviderError,
    ProviderImportError,
    ProviderNotFoundError,
    ProviderNotInstalledError,
    ProviderVersionError,
)
from dew.data.provider import API_VERSION, ENTRY_POINT_GROUP, Provider, ProviderHooks

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

OWNERS: Final[Mapping[str, str]] = {
    "hf": "dew-hf",
    "images": "dew-media",
    "tfds": "dew-tfds",
    "tokens": "dew-core",
    "video": "dew-media",
}
"""Dew's own prefixes and the distributions that may claim them; `pip install` of the value brings the key."""

Scan: TypeAlias = "Callable[[], Iterable[EntryPoint]]"
_Claim: TypeAlias = "tuple[InstalledProvider, EntryPoint]"
_Claims: TypeAlias = "dict[str, list[_Claim]]"

_NAMELESS = "a distribution without a name"


@attrs.frozen(order=True)
class InstalledProvider:
    """What an installed distribution states about one prefix; nothing of it has been imported.

    Args:
        prefix: what stands before the `/` in `dew.data.load`.
        distribution: the package as pip names it.
        version: its version, empty where its metadata has none.
        target: the module that holds the hook.
    """

    prefix: str
    distribution: str
    version: str
    target: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".rstrip()


class Registry:
    """Providers by prefix: those that are installed, and those registered in this process.

    Args:
        scan: lists the entry points of the group `dew.providers`, with their distributions; metadata only.
    """

    def __init__(self, scan: "Scan | None" = None) -> None:
        self._scan: Scan = installed_entry_points if scan is None else scan
        self._index: _Claims | None = None
        self._loaded: dict[str, Provider] = {}
        self._registered: dict[str, Provider] = {}

    def find(self, prefix: str) -> Provider:
        """The provider of `prefix`; imports its module on first use, and no other.

        Raises:
            ProviderNotFoundError: no installed package provides it.
            ProviderNotInstalledError: it is one of Dew's own, and its package is absent.
            ProviderConflictError: two distributions claim it, or a stranger's claims one of Dew's own.
            ProviderImportError: its module fails to import.
            ProviderVersionError: it was written for another version of the interface.
            ProviderError: its hook is missing or does not return exactly one provider of this prefix.
        """
        known = self._registered.get(prefix) or self._loaded.get(prefix)
        if known is not None:
            return known
        claims = self._claims(prefix)
        if not claims:
            raise self._unknown(prefix)
        claim, entry_point = _sole(prefix, claims)
        provider = _import(claim, entry_point)
        self._loaded[prefix] = provider
        return provider

    def installed(self) -> list[InstalledProvider]:
        """Every claim of every installed distribution, sorted; works with broken and conflicting plugins present."""
        return sorted(claim for claims in self._rescan().values() for claim, _ in claims)

    def register(self, plugin: object, prefix: str | None = None) -> Provider:
        """Adds a provider to this process without an entry point, for tests and notebooks.

        Args:
            plugin: a module or object with the hook `dew_provider`, or a `Provider`.
            prefix: what it is called here; the provider's own prefix by default.

        Raises:
            ProviderConflictError: the prefix is taken, or is one of Dew's own.
            ProviderError: as `find`.
        """
        who = f"the plugin {_short(plugin)} given to register"
        provider = plugin if isinstance(plugin, Provider) else _ask(plugin, who)
        _check_version(provider, who)
        if prefix is not None:
            provider = attrs.evolve(provider, prefix=prefix)
        self._check_free(provider.prefix)
        self._registered[provider.prefix] = provider
        return provider

    def unregister(self, prefix: str) -> None:
        """Takes back `register`.

        Raises:
            ProviderNotFoundError: nothing is registered under `prefix` in this process.
        """
        if prefix not in self._registered:
            raise ProviderNotFoundError(
                f"{prefix!r} cannot be unregistered: the prefixes registered in this process are "
                f"{_listed(self._registered)}; an installed provider goes when its package is uninstalled"
            )
        del self._registered[prefix]

    def _check_free(self, prefix: str) -> None:
        if prefix in self._registered:
            raise ProviderConflictError(
                f"the prefix {prefix!r} is already registered in this process; call unregister({prefix!r}) first"
            )
        if prefix in OWNERS:
            raise ProviderConflictError(f"the prefix {prefix!r} belongs to {OWNERS[prefix]}; register another prefix")
        if claims := self._claims(prefix):
            owners = " and ".join(str(claim) for claim, _ in claims)
            raise ProviderConflictError(
                f"the prefix {prefix!r} is already provided by {owners}; register another prefix, or uninstall that one"
            )

    def _claims(self, prefix: str) -> list[_Claim]:
        """The claims of `prefix`; a miss looks again, since a package may have been installed meanwhile."""
        if self._index is None or prefix not in self._index:
            self._rescan()
        return (self._index or {}).get(prefix, [])

    def _rescan(self) -> _Claims:
        if self._index is not None:
            importlib.invalidate_caches()
        try:
            index = _grouped(self._scan())
        except Exception as error:
            # Nothing is remembered of a scan that failed: the next call looks again.
            raise ProviderError(
                f"the installed packages could not be listed ({_cause(error)}); "
                "repair or reinstall the package whose metadata cannot be read"
            ) from error
        self._index = index
        return index

    def _unknown(self, prefix: str) -> ProviderError:
        if owner := OWNERS.get(prefix):
            return ProviderNotInstalledError(
                f"'{prefix}/...' needs the {owner} package, which is not installed: pip install {owner}"
            )
        present: list[str] = sorted({*(self._index or {}), *self._registered})
        return ProviderNotFoundError(
            f"no installed package provides '{prefix}/...'{_nearest(prefix, present)}; "
            f"installed providers: {_listed(present)}"
        )


def installed_entry_points() -> Iterable["EntryPoint"]:
    """The entry points of the group `dew.providers` in this environment, each with its distribution.

    A distribution whose metadata cannot be read is left out with a warning, so that it does not hide the others.
    """
    from importlib import metadata

    try:
        return metadata.entry_points(group=ENTRY_POINT_GROUP)
    except Exception:
        return _readable_entry_points(metadata.distributions())


def _readable_entry_points(distributions: Iterable["Distribution"]) -> list["EntryPoint"]:
    found: list[EntryPoint] = []
    seen: set[str] = set()
    for distribution in distributions:
        try:
            name = _normalised(_name_and_version(distribution)[0])
            stated = [point for point in distribution.entry_points if point.group == ENTRY_POINT_GROUP]
        except Exception as error:
            path = getattr(distribution, "_path", distribution)
            warnings.warn(
                f"the metadata of {path} cannot be read ({_cause(error)}), so no provider of it is seen; reinstall it",
                DewWarning,
                stacklevel=2,
            )
            continue
        if name not in seen:
            found += stated
            seen.add(name)
    return found


def _grouped(entry_points: Iterable["EntryPoint"]) -> _Claims:
    """Claims by prefix. The same distribution seen twice on the path (an editable install beside a wheel) is one claim:
    the first one, which is also the one that Python imports.
    """
    claims: _Claims = {}
    first: dict[tuple[str, str], Distribution | None] = {}
    for point in entry_points:
        # Absent from objects made by hand before Python 3.12.
        distribution: Distribution | None = getattr(point, "dist", None)
        name, version = _name_and_version(distribution)
        key = (point.name, _normalised(name))
        if name != _NAMELESS and first.setdefault(key, distribution) is not distribution:
            continue
        claim = InstalledProvider(point.name, name, version, point.value)
        of_prefix = claims.setdefault(point.name, [])
        if claim not in [other for other, _ in of_prefix]:
            of_prefix.append((claim, point))
    for of_prefix in claims.values():
        of_prefix.sort(key=lambda pair: pair[0])
    return claims


def _name_and_version(distribution: "Distribution | None") -> tuple[str, str]:
    if distribution is None:
        return _NAMELESS, ""
    headers = cast("Mapping[str, str | None]", distribution.metadata)
    return headers.get("Name") or _NAMELESS, headers.get("Version") or ""


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _sole(prefix: str, claims: list[_Claim]) -> _Claim:
    """The one claim of `prefix`, by its owner where it is one of Dew's own prefixes."""
    owner = OWNERS.get(prefix)
    strangers = [str(claim) for claim, _ in claims if owner and _normalised(claim.distribution) != owner]
    if strangers:
        raise ProviderConflictError(
            f"the prefix {prefix!r} belongs to {owner}, but {' and '.join(strangers)} claims it; "
            f"uninstall {' and '.join(strangers)}, and pip install {owner}"
        )
    if len(claims) > 1:
        both = " and ".join(f"{claim} ({claim.target})" for claim, _ in claims)
        raise ProviderConflictError(f"'{prefix}/...' is claimed by {both}; uninstall all but one of them")
    return claims[0]


def _import(claim: InstalledProvider, entry_point: "EntryPoint") -> Provider:
    who = f"the provider {claim.prefix!r} ({claim}, {claim.target})"
    try:
        plugin = entry_point.load()
    except (Exception, SystemExit) as error:
        raise ProviderImportError(
            f"{who} failed to import: {_cause(error)}; update or uninstall {claim.distribution}, "
            "other providers are not affected"
        ) from error
    provider = _ask(plugin, who)
    _check_version(provider, who)
    if provider.prefix != claim.prefix:
        raise ProviderError(
            f"{who} states the prefix {claim.prefix!r} as its entry point, but its hook returns a provider of the "
            f"prefix {provider.prefix!r}; they must be the same, report it to the author of {claim.distribution}"
        )
    return provider


def _ask(plugin: Any, who: str) -> Provider:
    """Calls the plugin's one hook, with a plugin manager that knows no other plugin."""
    hooks = pluggy.PluginManager("dew")
    hooks.add_hookspecs(ProviderHooks)
    try:
        hooks.register(plugin, name=who)
        hooks.check_pending()
    except pluggy.PluginValidationError as error:
        raise ProviderError(f"{who} does not fit the hook dew_provider(): {error}") from error
    implementations = hooks.hook.dew_provider.get_hookimpls()
    if not implementations:
        raise ProviderError(
            f"{who} has no hook: define `@hookimpl def dew_provider() -> Provider` with hookimpl from dew.data.provider"
        )
    if len(implementations) > 1:
        raise ProviderError(f"{who} has {len(implementations)} hooks dew_provider(), and must have exactly one")
    try:
        answers: list[Any] = hooks.hook.dew_provider()
    except Exception as error:
        raise ProviderError(f"{who} has a hook dew_provider() that raised {_cause(error)}") from error
    return _one_provider(answers, who)


def _one_provider(answers: list[Any], who: str) -> Provider:
    # pluggy leaves out an answer of None.
    answer = answers[0] if answers else None
    if isinstance(answer, Provider):
        return answer
    if isinstance(answer, list | tuple | set | frozenset):
        found = f"{len(cast('Collection[object]', answer))} values in a {type(cast('object', answer)).__name__}"
    else:
        found = f"{answer!r} ({type(answer).__name__})"
    raise ProviderError(
        f"{who} has a hook dew_provider() that returned {found}; it must return one dew.data.provider.Provider, "
        "and a package with several prefixes has a module and an entry point for each"
    )


def _check_version(provider: Provider, who: str) -> None:
    if provider.api == API_VERSION:
        return
    advice = "update dew-core, or install an older version of the plugin"
    if provider.api < API_VERSION:
        advice = "update the plugin, or install an older dew-core"
    raise ProviderVersionError(
        f"{who} speaks version {provider.api} of the provider interface, and this dew-core speaks {API_VERSION}; "
        f"{advice}"
    )


def _nearest(prefix: str, present: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(prefix.casefold(), sorted({*present, *OWNERS}), n=1)
    if not near:
        return ""
    advice = "" if near[0] in present else f" (pip install {OWNERS[near[0]]})"
    return f", did you mean '{near[0]}/...'{advice}"


def _listed(prefixes: Iterable[str]) -> str:
    return ", ".join(sorted(prefixes)) or "none"


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _short(plugin: object) -> str:
    name = getattr(plugin, "__name__", None)
    if name is None and isinstance(plugin, Provider):
        name = plugin.prefix
    return repr(name) if name is not None else f"of type {type(plugin).__name__}"


_PROCESS: Final = Registry()
"""The registry that `dew.data.load` asks."""


def find(prefix: str) -> Provider:
    """The provider of `prefix` in this process; see `Registry.find`."""
    return _PROCESS.find(prefix)


def installed() -> list[InstalledProvider]:
    """The providers that installed packages state, from metadata alone; see `Registry.installed`."""
    return _PROCESS.installed()


def register(plugin: object, prefix: str | None = None) -> Provider:
    """Adds a provider to this process without an entry point, for tests and notebooks; see `Registry.register`."""
    return _PROCESS.register(plugin, prefix)


def unregister(prefix: str) -> None:
    """Takes back `register`; see `Registry.unregister`."""
    _PROCESS.unregister(prefix)
