"""What goes wrong between a client and its server, in the words of the error tree."""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from ccs_broker.errors import CcsError, QueueFullError, QueueUnavailableError


def unavailable(error: Exception, where: str, *, sent: bool) -> QueueUnavailableError:
    """The error for a call that got no reply.

    Args:
        error: what redis-py or the socket raised.
        where: the server's address, without its password.
        sent: the request may have reached the server.
    """
    if isinstance(error, RedisTimeoutError | TimeoutError):
        what = "did not answer in time" if sent else "could not be reached in time"
    elif isinstance(error, AuthenticationError | AuthorizationError):
        what, sent = "refused the login", False
    elif "max number of clients" in str(error):
        what, sent = "has no connection left for this client", False
    elif isinstance(error, BusyLoadingError):
        what, sent = "is still loading its data", False
    elif isinstance(error, ResponseError):
        return refusal(error)
    else:
        what = "closed the connection" if sent else "could not be reached"
    return QueueUnavailableError(f"the server at {where} {what}", maybe_accepted=sent)


def refusal(error: ResponseError) -> QueueUnavailableError:
    """The error for an error reply: the server refused, so nothing was accepted."""
    if isinstance(error, OutOfMemoryError):
        return QueueFullError("the server's memory is used up; it takes no more jobs until some have ended")
    if isinstance(error, ReadOnlyError):
        return QueueUnavailableError("the server is a replica and takes no writes")
    if isinstance(error, NoPermissionError):
        return QueueUnavailableError("the server's access list does not permit this command to this user")
    if "unauthenticated" in str(error):
        # What a server with a password says to a long command without one.
        return QueueUnavailableError("the server wants a login; its URL has none")
    # The rest of the text may quote arguments; it stays in the cause.
    word = (str(error).split(maxsplit=1) or ["?"])[0].strip(":,")
    return QueueUnavailableError(f"the server answered with an error ({word})")


def checked(reply: object) -> object:
    """A reply that isn't an error; an error reply is raised as one of ours."""
    if isinstance(reply, CcsError):
        raise reply
    if isinstance(reply, ResponseError):
        raise refusal(reply) from reply
    return reply
