"""Options that several commands share, and the parameter types behind them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ccs_broker.settings import URL_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DURATION", "PAIR", "json_option", "url_option", "with_options"]

_Function = TypeVar("_Function", bound="Callable[..., Any]")

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", re.ASCII)


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic since Click 8.4 only
    """A length of time such as 500ms, 5s, 2m or 1h, as seconds; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds, above 0."""
        if isinstance(value, int | float):
            return float(value)
        match = _DURATION.fullmatch(str(value).strip().lower())
        seconds = float(match[1]) * _SECONDS[match[2] or "s"] if match else 0.0
        if seconds <= 0:
            self.fail(f"{value!r} is no duration above zero; write 500ms, 5s, 2m or 1h", param, ctx)
        return seconds


class Pair(click.ParamType):  # type: ignore[type-arg]  # as above
    """KEY=VALUE, both strings; the value may be empty and may hold further equals signs."""

    name = "key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return key and value."""
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not equals or not key:
            self.fail(f"{value!r} isn't KEY=VALUE", param, ctx)
        return key, text


DURATION: Final = Duration()
PAIR: Final = Pair()

url_option = click.option(
    "--url",
    metavar="URL",
    envvar=URL_VARIABLE,
    show_envvar=True,
    help="The server, such as redis://127.0.0.1:6379/0.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def with_options(*options: Callable[[_Function], _Function]) -> Callable[[_Function], _Function]:
    """Apply several option decorators; the help lists them in this order."""

    def decorate(function: _Function) -> _Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate
