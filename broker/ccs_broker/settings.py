"""Settings of the broker side, parsed once; no other module of the package reads the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from ccs_broker.errors import ConfigurationError
from ccs_broker.policy import DEFAULT_POLICY, POLICIES, Policy

if TYPE_CHECKING:
    from collections.abc import Mapping

URL_VARIABLE: Final = "CCS_REDIS_URL"
POLICY_VARIABLE: Final = "CCS_POLICY"
QUEUE_LIMIT_VARIABLE: Final = "CCS_QUEUE_LIMIT"
_SCHEMES: Final = ("redis", "rediss", "unix")
_EXAMPLE: Final = "an example is redis://127.0.0.1:6379/0"
UNREADABLE_URL: Final = f"the server's URL can't be read; {_EXAMPLE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """Times and bounds of the ledger; the same on every worker of a fleet."""

    #: Seconds a claim holds without renewal.
    lease_s: float = 10.0
    #: Seconds between two sweeps of one worker.
    sweep_s: float = 1.0
    #: Seconds an outcome (and Celery's result) can be read.
    job_ttl_s: int = 24 * 3600
    #: Seconds an ended job's event log can be replayed.
    log_ttl_s: int = 3600
    #: Seconds a medium stays after its last job ended.
    blob_grace_s: int = 60
    #: Name of the scheduling policy; the same on every producer, too.
    policy: str = DEFAULT_POLICY
    #: Jobs that may wait in one queue before it takes no more.
    queue_limit: int = 1_000_000
    #: Waiting jobs of each pool of memory that a claim looks at, the best that its worker serves; others wait.
    claim_candidates: int = 32
    #: Seconds for which a job may be passed over for want of memory before a worker keeps its memory free for it;
    #: fifteen times as long for the classes below interactive.
    reserve_after_s: float = 2.0
    #: Ids of each kind that one sweep looks at.
    sweep_limit: int = 1000
    #: Lost workers after which a job is quarantined.
    most_losses: int = 20
    #: Seconds for which a cancel waits for a job that isn't there yet, and how many such cancels are kept.
    tombstone_ttl_s: int = 24 * 3600
    tombstones: int = 50_000
    #: Dead letters kept, and the longest of them in bytes.
    dead_letters: int = 1000
    dead_letter_bytes: int = 64 * 1024

    @property
    def scheduling(self) -> Policy:
        """The policy itself; ``ConfigurationError`` if there is none of the name."""
        return policy_named(self.policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Where the server is and how long a caller waits for it."""

    url: str
    #: Seconds over connect, write and reply after which a call gives up.
    timeout_s: float = 5.0
    ledger: LedgerSettings = field(default_factory=LedgerSettings)


def policy_named(name: str) -> Policy:
    """The scheduling policy of a name; ``ConfigurationError`` if there is none."""
    if name not in POLICIES:
        raise ConfigurationError(f"the policy must be one of {', '.join(POLICIES)}, not {name!r}")
    return POLICIES[name]


def ledger_settings(
    standard: LedgerSettings | None = None, environ: Mapping[str, str] | None = None
) -> LedgerSettings:
    """Settings that producers and workers share: ``CCS_POLICY`` and ``CCS_QUEUE_LIMIT``, over ``standard``.

    Raises:
        ConfigurationError: a value is wrong.
    """
    found = os.environ if environ is None else environ
    settings = standard or LedgerSettings()
    policy = found.get(POLICY_VARIABLE) or settings.policy
    limit = found.get(QUEUE_LIMIT_VARIABLE) or str(settings.queue_limit)
    if not limit.isdecimal() or int(limit) < 1:
        raise ConfigurationError(f"{QUEUE_LIMIT_VARIABLE} must be a whole number from 1 on, not {limit!r}")
    return replace(settings, policy=policy_named(policy).name, queue_limit=int(limit))


def require_url(url: str | None, environ: Mapping[str, str] | None = None) -> str:
    """The server's URL: the argument, else ``CCS_REDIS_URL``.

    Raises:
        ConfigurationError: neither is given, or it isn't a Redis URL.
    """
    found = url or (os.environ if environ is None else environ).get(URL_VARIABLE)
    if not found:
        raise ConfigurationError(
            f"no server given: pass a URL such as redis://127.0.0.1:6379/0, or set {URL_VARIABLE}"
        )
    if not isinstance(found, str):
        raise ConfigurationError(f"the server's URL must be a string, not {type(found).__name__}")
    scheme = found.partition("://")[0]
    if scheme not in _SCHEMES:
        raise ConfigurationError(
            f"not a Redis URL: it must begin with {', '.join(f'{scheme}://' for scheme in _SCHEMES)}; {_EXAMPLE}"
        )
    _check_database(found)
    return found


def _check_database(url: str) -> None:
    """Refuse a database that isn't a number: redis-py would take database 0 without a word, Kombu would fail late."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        named = [parts.path.removeprefix("/")] if parts.scheme != "unix" else []
        named += parse_qs(parts.query).get("db", [])
    except ValueError:
        raise ConfigurationError(UNREADABLE_URL) from None
    if any(name and not (name.isascii() and name.isdigit()) for name in named):
        # What stands there may be a piece of a password with a slash in it.
        raise ConfigurationError(
            "the database in the server's URL must be a number, 0 or more: write redis://127.0.0.1:6379/0; "
            "a slash in a password is written %2F"
        )
