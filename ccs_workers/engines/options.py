"""Reads an engine's options from its model spec: typed, bounded, and no unknown name goes unnoticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccs_broker.errors import ConfigurationError

if TYPE_CHECKING:
    from pydantic import JsonValue

    from ccs_workers.models.spec import ModelSpec


class OptionReader:
    """Typed access to the options of one model; ``finish`` refuses names that nobody asked for."""

    def __init__(self, spec: ModelSpec) -> None:
        self._alias = spec.alias
        self._options = dict(spec.options)
        self._known: set[str] = set()

    def whole(self, name: str, default: int, *, least: int = 1, most: int = 1_000_000_000) -> int:
        """Return a whole number between ``least`` and ``most``."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fault(name, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        """Return a number between ``least`` and ``most``."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.fault(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def threshold(self, name: str, default: float, *, least: float, most: float) -> float | None:
        """Return a number between ``least`` and ``most``, or None where the option is ``false``."""
        if self._options.get(name, default) in (None, False):
            self._take(name, default)
            return None
        return self.number(name, default, least=least, most=most)

    def text(self, name: str) -> str | None:
        """Return a text that isn't empty, or None where the option isn't given."""
        value = self._take(name, None)
        if value is not None and (not isinstance(value, str) or not value):
            raise self.fault(name, "a text that is not empty")
        return value

    def words(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """Return a non-empty choice of the words in ``default``, in the default's order."""
        value = self._take(name, list(default))
        if not isinstance(value, list) or not value or any(word not in default for word in value):
            raise self.fault(name, f"a list of one or more of {', '.join(map(repr, default))}")
        return tuple(word for word in default if word in value)

    def finish(self) -> None:
        """Raise ``ConfigurationError`` if the spec has an option that nobody asked for."""
        if strangers := sorted(set(self._options) - self._known):
            known = ", ".join(sorted(self._known))
            raise ConfigurationError(
                f"model {self._alias!r}: option {strangers[0]!r} is unknown; known: {known}"
            )

    def fault(self, name: str, wanted: str) -> ConfigurationError:
        return ConfigurationError(
            f"model {self._alias!r}: option {name!r} must be {wanted}, not {self._options.get(name)!r}"
        )

    def _take(self, name: str, default: JsonValue) -> JsonValue:
        self._known.add(name)
        return self._options.get(name, default)
