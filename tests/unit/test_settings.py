"""The server's URL is checked in one place, whoever reads it."""

from __future__ import annotations

import pytest

from ccs_broker.client import AsyncClient, Client
from ccs_broker.errors import ConfigurationError
from ccs_broker.settings import require_url
from ccs_workers.settings import worker_settings_from_environment

READERS = {
    "argument": require_url,
    "variable": lambda url: require_url(None, {"CCS_REDIS_URL": url}),
    "client": Client,
    "async client": AsyncClient,
    "worker": lambda url: worker_settings_from_environment({"CCS_REDIS_URL": url}),
}


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:6379/0", "redis://127.0.0.1", "redis://127.0.0.1/", "rediss://u:p@h:7000/15",
        "redis://h/1?db=2", "redis://h?db=3", "unix:///run/redis.sock", "unix:///run/redis.sock?db=4",
    ],
)  # fmt: skip
def test_a_good_url_is_taken_as_it_is(url):
    assert require_url(url) == url


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "url",
    [
        "redis://h/jobs", "redis://h:6379/-1", "redis://h/0/1", "redis://h/0/", "redis://h//", "redis://h/1.5",
        "redis://h/\N{SUPERSCRIPT TWO}", "rediss://h/db0", "redis://h?db=jobs", "redis://user:12/secret@h/0",
    ],
)  # fmt: skip
def test_a_database_that_is_no_number_is_refused_with_what_to_write(reader, url):
    with pytest.raises(
        ConfigurationError, match=r"must be a number.* write redis://127\.0\.0\.1:6379/0"
    ) as caught:
        READERS[reader](url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["redis://h:port/0", "redis://h:99999/0", "redis://[::1/0", "redis://:secret/x@h/0"]
)
def test_what_can_not_be_read_is_refused_without_repeating_it(url):
    with pytest.raises(ConfigurationError, match="can't be read; an example is redis://") as caught:
        require_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://h", "127.0.0.1:6379", "redis:/h", "amqp://secret@h"])
def test_another_scheme_is_refused(url):
    with pytest.raises(ConfigurationError, match="must begin with redis://, rediss://, unix://") as caught:
        require_url(url)
    assert "secret" not in str(caught.value)


def test_a_server_must_be_named(monkeypatch):
    monkeypatch.delenv("CCS_REDIS_URL", raising=False)
    for kind in (Client, AsyncClient):
        with pytest.raises(ConfigurationError, match="CCS_REDIS_URL"):
            kind()
