"""The steps a plan asks for: a plan is a generator that holds all logic and leaves waiting to its driver.

A driver performs each step and sends its answer into the plan, or throws the ``QueueUnavailableError`` it
met. So the synchronous and the asynchronous client run the same plans, and tests run them without a server.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

from ccs_broker.contract.event import Event

Argument = str | int | bytes
Command = tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """Send commands in one round trip; the answer is the list of replies, an error reply as its exception."""

    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Listen to a channel on a connection of its own; answered when the server has confirmed it."""

    channel: str


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Stop listening."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Wait for the next message; the answer is its bytes, or None after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    seconds: float


T = TypeVar("T")

Step = Ask | Subscribe | Unsubscribe | Listen | Pause
#: A plan that only asks.
Asking = Generator[Ask, list[object], T]
#: A plan that also listens, and perhaps gives out events; what is sent into it depends on the step.
Following = Generator[Step | Event, object, T]
