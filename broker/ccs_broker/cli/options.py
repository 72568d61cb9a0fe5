"""Options that several commands share, and the parameter types behind them."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ccs_broker.contract.limits import MAX_LIFETIME_S
from ccs_broker.errors import ConfigurationError
from ccs_broker.settings import URL_VARIABLE, require_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccs_broker.contract.wording import Bounds
    from ccs_broker.errors import InvalidInputError

__all__ = [
    "DURATION",
    "PAIR",
    "Real",
    "Whole",
    "in_words_of_the_command",
    "json_option",
    "url_option",
    "with_options",
]

_Function = TypeVar("_Function", bound="Callable[..., Any]")

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", re.ASCII)
_DAY_S: Final = 86400


class Whole(click.IntRange):
    """A whole number within bounds."""

    name = "whole number"

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds.least, bounds.most)  # type: ignore[arg-type]  # whole bounds of a whole number
        self._bounds = bounds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        try:
            number = int(value)
        except ValueError:
            self.fail(f"should be a whole number {self._bounds}, not {value!r}", param, ctx)
        if not _within(number, self._bounds):
            self.fail(f"should be a whole number {self._bounds}, not {number}", param, ctx)
        return number


class Real(click.FloatRange):
    """A number within bounds."""

    name = "number"

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds.least, bounds.most, min_open=bounds.above)
        self._bounds = bounds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or not _within(number, self._bounds):
            self.fail(f"should be a number {self._bounds}, not {str(value)!r}", param, ctx)
        return number


def _within(number: float, bounds: Bounds) -> bool:
    low = bounds.least is None or (number > bounds.least if bounds.above else number >= bounds.least)
    return low and (bounds.most is None or number <= bounds.most)


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic since Click 8.4 only
    """A length of time such as 500ms, 5s, 2m or 1h, as seconds; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds, above 0 and at most ``MAX_LIFETIME_S``."""
        if isinstance(value, int | float):
            return float(value)
        match = _DURATION.fullmatch(str(value).strip().lower())
        seconds = float(match[1]) * _SECONDS[match[2] or "s"] if match else 0.0
        if not 0 < seconds <= MAX_LIFETIME_S:
            longest = f"{MAX_LIFETIME_S / _DAY_S:g}d"
            self.fail(
                f"should be a duration above zero and at most {longest}, such as 500ms, 5s, 2m or 1h, "
                f"not {str(value)!r}",
                param,
                ctx,
            )
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


def _url(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return require_url(value)
    except ConfigurationError as error:
        raise click.BadParameter(error.message) from None


url_option = click.option(
    "--url",
    metavar="URL",
    envvar=URL_VARIABLE,
    show_envvar=True,
    callback=_url,
    help="The server, such as redis://127.0.0.1:6379/0.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def in_words_of_the_command(error: InvalidInputError) -> InvalidInputError:
    """The same error with the running command's option in the place of the field that it stands for."""
    field, colon, rule = error.message.partition(": ")
    for parameter in click.get_current_context().command.params:
        if colon and parameter.name == field.partition("[")[0]:
            shown = parameter.opts[0] if isinstance(parameter, click.Option) else field.upper()
            return type(error)(f"{shown}: {rule}")
    return error


def with_options(*options: Callable[[_Function], _Function]) -> Callable[[_Function], _Function]:
    """Apply several option decorators; the help lists them in this order."""

    def decorate(function: _Function) -> _Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate
