"""Tells errors of the server that pass by themselves from those that stay: the one place that decides on retries."""

from __future__ import annotations

from typing import Final

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectionError,
    InvalidResponse,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

#: Replies that redis-py has no class for: the server is busy, full, loading, or between two roles.
_PASSING_WORDS: Final = frozenset(
    {
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "NOREPLICAS",
        "OOM",
        "READONLY",
        "TRYAGAIN",
        "UNBLOCKED",
    }
)
_PASSING: Final = (
    OSError,
    ConnectionError,
    TimeoutError,
    # Half a reply of a connection that broke: the next one is read from a new connection.
    InvalidResponse,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)
#: Connection errors in redis-py's tree, but no time heals a wrong password.
_STAYING: Final = (AuthenticationError, AuthorizationError)


def is_transient(error: BaseException) -> bool:
    """True if the same call may succeed later: the server is away, full, read-only, loading or busy.

    False for what repeating can't change: a missing permission, a wrong login, a fault in a script or an argument.
    """
    if isinstance(error, _STAYING):
        return False
    if isinstance(error, _PASSING):
        return True
    return isinstance(error, ResponseError) and fault_word(error) in _PASSING_WORDS


def fault_word(error: BaseException) -> str:
    """The error in one word for a log line; the rest of a server's reply may quote arguments."""
    word = (str(error).split(maxsplit=1) or [""])[0].strip(":,")
    return word if type(error) is ResponseError and word.isupper() else type(error).__name__
