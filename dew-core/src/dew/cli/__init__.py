"""The command line. A command is a file of this package, imported only when it is run or listed.

`dew <prefix> ...` runs the command that an installed provider brings (`Provider.cli`), imported only then. Errors that
Dew raises on purpose are one line on stderr and exit code 1; wrong usage is exit code 2, Ctrl-C is 130.
"""

import importlib
import sys
import warnings
from collections.abc import Sequence
from typing import Any, Final

import click

from dew.data.errors import DewDataError, ProviderError

_COMMANDS: Final = {
    "bench": "dew.cli.bench:bench",
    "check": "dew.cli.check:check",
    "demo": "dew.cli.demo:demo",
    "order": "dew.cli.order:order",
    "peek": "dew.cli.peek:peek",
    "providers": "dew.cli.providers:providers",
    "tokenize": "dew.cli.tokenize:tokenize",
}

_INTERRUPTED = 130  # 128 + SIGINT, as a shell counts


class _Commands(click.Group):
    """Dew's own commands, then those of installed providers by their prefix."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Dew's own; which providers bring a command is known only after importing them, so they are not listed."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None where neither Dew nor a provider has it."""
        if own := _COMMANDS.get(cmd_name):
            return _imported(own)
        return _provider_command(cmd_name)


def _provider_command(prefix: str) -> click.Command | None:
    from dew.data import registry

    if prefix not in registry.OWNERS and prefix not in {claim.prefix for claim in registry.installed()}:
        return None
    provider = registry.find(prefix)
    if provider.cli is None:
        raise click.UsageError(f"the provider {prefix!r} is installed, but brings no command of its own")
    try:
        command = _imported(provider.cli)
    except (ImportError, AttributeError) as error:
        raise ProviderError(
            f"{provider.cli}, the command of the provider {prefix!r}, failed to import: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(command, click.Command):
        raise ProviderError(f"{provider.cli} of the provider {prefix!r} must be a click command, got {command!r}")
    return command


def _imported(target: str) -> Any:
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A provider may bring a command of its own: dew PREFIX --help.",
)
@click.version_option(package_name="dew-core", prog_name="dew")
@click.option("--traceback", is_flag=True, help="Show the whole traceback of an error.")
def cli(traceback: bool) -> None:
    """Training data for JAX runs: one endless order, one integer position, any number of processes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `dew` with `arguments` (by default those of the process) and returns the exit code: 0, 1, 2 or 130."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _run(words)


def _run(words: list[str]) -> int:
    try:
        # Without standalone mode click hands back the code of an early exit such as --help.
        code = cli.main(words, prog_name="dew", standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except DewDataError as error:
        if "--traceback" in _before_command(words):
            raise
        click.echo(f"dew: {_one_line(error)}", err=True)
        return 1
    return code if isinstance(code, int) else 0


def _before_command(words: list[str]) -> list[str]:
    """The group's own options."""
    first = next((at for at, word in enumerate(words) if not word.startswith("-")), len(words))
    return words[:first]


def _show_warning(message: Warning | str, category: type[Warning], *where: Any) -> None:
    """What a user should know, without the line of code that said it."""
    click.echo(f"dew: {category.__name__}: {message}", err=True)


def _one_line(error: DewDataError) -> str:
    notes = getattr(error, "__notes__", ())
    return " ".join(" ".join([str(error), *(f"({note})" for note in notes)]).split())
