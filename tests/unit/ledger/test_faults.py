"""Which errors of a server pass, as redis-py makes them from a reply."""

from __future__ import annotations

import pytest
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError, DataError, TimeoutError

from ccs_broker.ledger.faults import fault_word, is_transient


@pytest.mark.parametrize(
    ("reply", "transient"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'. script: on @user_script:2.", True),
        ("READONLY You can't write against a read only replica. script: x, on @user_script:5.", True),
        ("LOADING Redis is loading the dataset in memory", True),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", True),
        ("MISCONF Errors writing to the AOF file: No space left on device", True),
        ("BUSY Redis is busy running a script.", True),
        ("UNBLOCKED force unblock from blocking operation, instance state changed", True),
        ("NOREPLICAS Not enough good replicas to write.", True),
        ("TRYAGAIN Multiple keys request during rehashing of slot", True),
        ("NOSCRIPT No matching script.", True),
        ("ERR max number of clients reached", True),
        ("NOPERM User worker has no permissions to run the 'evalsha' command", False),
        ("NOAUTH Authentication required.", False),
        ("WRONGPASS invalid username-password pair or user is disabled.", False),
        ("WRONGTYPE Operation against a key holding the wrong kind of value script: x", False),
        ("ERR user_script:3: Script attempted to access nonexistent global variable 'x'", False),
        ("ERR unknown command 'EVALSHA'", False),
    ],
)
def test_error_replies(reply: str, transient: bool) -> None:
    assert is_transient(BaseParser.parse_error(reply)) is transient


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (ConnectionError("Connection closed by server."), True),
        (TimeoutError("Timeout reading from socket"), True),
        (OSError(104, "Connection reset by peer"), True),
        (DataError("Invalid input of type"), False),
        (ValueError("a fault of ours"), False),
    ],
)
def test_other_errors(error: Exception, transient: bool) -> None:
    assert is_transient(error) is transient


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        ("UNBLOCKED force unblock", "UNBLOCKED"),
        ("OOM command not allowed", "OutOfMemoryError"),
        ("wrong number of arguments: a secret", "ResponseError"),
        ("", "ResponseError"),
    ],
)
def test_a_fault_in_a_word_quotes_nothing(reply: str, word: str) -> None:
    assert fault_word(BaseParser.parse_error(reply)) == word
