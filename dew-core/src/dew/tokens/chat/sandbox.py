"""Where chat templates run: Jinja's immutable sandbox, with the filters and globals that templates count on.

A template comes with a model, so it is a stranger's code: it can read what it is given, and nothing else. What a
template renders depends on its arguments alone; a template that asks for the date gets the one that was configured.
"""

import datetime
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

OPEN: Final = "_dew_generation_opens"
CLOSE: Final = "_dew_generation_closes"
_LONGEST: Final = 1 << 26  # characters that a template may make by repetition


def mark(name: str, arguments: list[nodes.Expr], lineno: int) -> nodes.ExprStmt:
    """The statement `{% do name(arguments) %}`, which renders to nothing."""
    call = nodes.Call(nodes.Name(name, "load"), arguments, [], None, None)
    return nodes.ExprStmt(call, lineno=lineno)


class GenerationTag(Extension):
    """`{% generation %}`: what stands in it is what the model learns to write."""

    tags: set[str] = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """The body in a scope of its own, between two marks."""
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope([mark(OPEN, [], lineno), *body, mark(CLOSE, [], lineno)], lineno=lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of every template. `date`: what `strftime_now` writes; None refuses it."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, date: datetime.date | None) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"])
        untyped: Any = self
        filters, names = untyped.filters, untyped.globals
        filters["tojson"] = _to_json
        names["raise_exception"] = _raise_exception
        names["strftime_now"] = _clock(date)
        names["dict"] = _Dicts()
        names["namespace"] = _Namespace

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`left * right` and `left ** right`, of a size that a chat can have."""
        if operator == "**":
            if not all(isinstance(value, int | float) and abs(value) < 1024 for value in (left, right)):
                raise SecurityError(f"a chat template may not compute {left!r:.40} ** {right!r:.40}")
        else:
            for text, times in ((left, right), (right, left)):
                if hasattr(text, "__len__") and isinstance(times, int) and len(text) * times > _LONGEST:
                    raise SecurityError(f"a chat template may not repeat {len(text)} elements {times} times")
        return super().call_binop(context, operator, left, right)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which is no part of what models were trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _clock(date: datetime.date | None) -> Callable[[str], str]:
    def strftime_now(format: str) -> str:
        if date is None:
            raise TemplateError(
                "the template writes today's date, so that the text would depend on the day it is made; "
                "say which date it is with date="
            )
        return datetime.datetime.combine(date, datetime.time()).strftime(format)

    return strftime_now


class _Dicts:
    """`dict(...)` without the type and what hangs on it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        """As `dict.fromkeys`."""
        return dict.fromkeys(keys, value)


class _Namespace(Namespace):
    """`namespace(...)`, whose attributes are data: none begins with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args  # so that a template may call an attribute "self"
        values: Mapping[str, Any] = dict(*given, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a chat template may not set the attribute {name!r} of a namespace")
