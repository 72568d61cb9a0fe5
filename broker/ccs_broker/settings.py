"""Settings of the broker side, parsed once; no other module of the package reads the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ccs_broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

URL_VARIABLE: Final = "CCS_REDIS_URL"
_SCHEMES: Final = ("redis", "rediss", "unix")


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
    #: Waiting jobs a claim looks at in each queue.
    claim_candidates: int = 32
    #: Ids of each kind that one sweep looks at.
    sweep_limit: int = 1000
    #: Lost workers after which a job is quarantined.
    most_losses: int = 20
    #: Dead letters kept, and the longest of them in bytes.
    dead_letters: int = 1000
    dead_letter_bytes: int = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Where the server is and how long a caller waits for it."""

    url: str
    #: Seconds over connect, write and reply after which a call gives up.
    timeout_s: float = 5.0
    ledger: LedgerSettings = field(default_factory=LedgerSettings)


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
    scheme = urlsplit(found).scheme
    if scheme not in _SCHEMES:
        raise ConfigurationError(
            f"not a Redis URL: the scheme must be one of {', '.join(_SCHEMES)}, not {scheme!r}"
        )
    return found
