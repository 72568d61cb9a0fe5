"""The servers that the tests stand on: of the promised kind, empty, private, and checked for leaks."""

from __future__ import annotations

import pytest
import redis

from ccs_broker.client import Client, JobState
from ccs_broker.server import EmbeddedServer
from ccs_broker.server_binary import server_binaries
from tests.helpers import leaked_keys


@pytest.mark.redis
@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_finds_an_empty_server_of_its_kind(redis_url, server_kind, turn):
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        assert client.dbsize() == 0
        assert ("valkey_version" in client.info("server")) == (server_kind == "valkey")
        client.set("left", "behind", ex=60)


def test_only_undeclared_lasting_keys_count_as_leaks(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.set("ccs:job:1", "x", ex=60)
        client.sadd("_kombu.binding.celery", "x")
        assert leaked_keys(client) == []
        client.set("ccs:job:2", "x")
        client.zadd("ccs:running", {"x|1": 1})
        assert leaked_keys(client) == ["ccs:job:2", "ccs:running"]


@pytest.mark.usefixtures("no_key_leaks")
def test_a_test_that_leaves_only_expiring_keys_passes_the_check(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.set("key", "x", ex=60)


def test_a_private_server_is_not_the_shared_one(redis_server, private_server):
    private_server.kill()
    assert redis_server.alive
    assert redis_server.port != private_server.port


def test_a_unix_socket_serves_as_well(server_kind):
    with (
        EmbeddedServer(binary=server_binaries()[server_kind], unix_socket=True) as server,
        Client(server.url) as client,
    ):
        assert client.submit("text", prompt="p").status().state is JobState.WAITING
