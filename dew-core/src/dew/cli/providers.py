"""`dew providers`: what is installed, from metadata alone; with `--check`, whether it works."""

from typing import Any

import click

from dew.cli.output import console, json_option, print_json, row, table


@click.command(short_help="The installed providers, and Dew's own that are absent.")
@click.option("--check", is_flag=True, help="Import each and show whether it works; exit code 1 if one does not.")
@json_option
def providers(check: bool, as_json: bool) -> int:
    """The prefixes that dew.data.load knows here.

    Reads package metadata and imports no provider, unless --check is given.
    """
    found = _installed() + _absent()
    if check:
        for entry in found:
            entry.update(_checked(entry))
    if as_json:
        print_json(found)
    else:
        _show(found, check)
    return int(check and any(entry["installed"] and entry["error"] for entry in found))


def _installed() -> list[dict[str, Any]]:
    from dew.data import registry

    return [
        {
            "prefix": claim.prefix,
            "distribution": claim.distribution,
            "version": claim.version,
            "target": claim.target,
            "installed": True,
        }
        for claim in registry.installed()
    ]


def _absent() -> list[dict[str, Any]]:
    from dew.data import registry

    present = {claim.prefix for claim in registry.installed()}
    return [
        {"prefix": prefix, "distribution": owner, "version": None, "target": None, "installed": False}
        for prefix, owner in sorted(registry.OWNERS.items())
        if prefix not in present
    ]


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    from dew.data import registry
    from dew.data.errors import DewDataError

    if not entry["installed"]:
        return {"summary": None, "error": None}
    try:
        return {"summary": registry.find(entry["prefix"]).summary, "error": None}
    except DewDataError as error:
        return {"summary": None, "error": str(error)}


def _show(found: list[dict[str, Any]], check: bool) -> None:
    made = table(["prefix", "distribution", "version", "check" if check else "target"])
    for entry in found:
        cells = (entry["prefix"], entry["distribution"])
        if not entry["installed"]:
            row(made, *cells, "absent", f"pip install {entry['distribution']}", style="dim")
        elif not check:
            row(made, *cells, entry["version"], entry["target"])
        elif entry["error"]:
            row(made, *cells, entry["version"], entry["error"], style="red")
        else:
            row(made, *cells, entry["version"], f"ok: {entry['summary']}")
    console().print(made)
