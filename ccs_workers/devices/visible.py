"""``CUDA_VISIBLE_DEVICES`` as CUDA reads it: an ordered list that ends at its first invalid entry."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_workers.devices.cards import Card

__all__ = ["entries", "names_by_index", "visible_devices"]

_PREFIXES: Final = ("GPU-", "MIG-")


def visible_devices(cards: Sequence[Card], listed: str | None) -> tuple[str, ...]:
    """The UUIDs behind ``cuda:0``, ``cuda:1`` and so on.

    A GPU in MIG mode stands for its instances; named in the list, for its first one, as CUDA takes it.

    Args:
        cards: all GPUs, in PCI order.
        listed: value of the variable; None if it isn't set.
    """
    if listed is None:
        return tuple(uuid for card in cards for uuid in card.devices)
    found: list[str] = []
    for entry in entries(listed):
        uuid = _named(cards, entry)
        if uuid is None:
            break
        if uuid in found:
            return ()
        found.append(uuid)
    return tuple(found)


def entries(listed: str) -> list[str]:
    """The entries up to the first one that can't be any; empty if one is repeated.

    Indices (leading digits count, as in C), GPU UUIDs and MIG UUIDs don't mix: the first entry says which they are.
    """
    found: list[str] = []
    kind = None
    for word in (word.strip() for word in listed.split(",")):
        number = re.match(r"\+?(\d+)", word, re.ASCII)
        entry = str(int(number[1])) if number else word
        its = "index" if number else next((prefix for prefix in _PREFIXES if word.startswith(prefix)), None)
        kind = kind or its
        if its is None or its != kind:
            break
        if entry in found:
            return []
        found.append(entry)
    return found


def names_by_index(listed: str | None) -> bool:
    """Whether the order of the GPUs matters for what the list means."""
    return listed is None or any(entry.isdecimal() for entry in entries(listed))


def _named(cards: Sequence[Card], entry: str) -> str | None:
    """The device of one entry; None if it is none or not the only one."""
    if entry.isdecimal():
        chosen = cards[int(entry)].devices if int(entry) < len(cards) else ()
        return chosen[0] if chosen else None
    if entry.startswith("MIG-"):
        instances = [uuid for card in cards for uuid in card.instances]
        exact = [uuid for uuid in instances if uuid == entry]
        matching = exact or [uuid for uuid in instances if uuid.startswith(entry)]
        return matching[0] if len(matching) == 1 else None
    named = [card for card in cards if card.uuid.startswith(entry)]
    return named[0].devices[0] if len(named) == 1 and named[0].devices else None
