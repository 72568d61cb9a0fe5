"""A server that is down, frozen, full or refusing: a clear error within the deadline, and nothing doubled."""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from hiredis import Reader

from ccs_broker.client import AsyncClient, Client, JobState
from ccs_broker.errors import QueueFullError, QueueUnavailableError
from ccs_broker.server import EmbeddedServer
from ccs_broker.server_binary import server_binaries
from tests.helpers import frozen, wait_until
from tests.scripted_worker import ScriptedWorker

DEADLINE_S = 1.0
#: What a test machine may add to a deadline.
LATE_S = 0.7


@contextmanager
def within_the_deadline():
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < DEADLINE_S + LATE_S


def every_call(client, first=next):
    job = client.job("some-job")
    return [
        lambda: client.submit("text", prompt="p"),
        lambda: client.submit("vision", images=[b"x" * 20_000_000]),
        lambda: client.submit_many([{"modality": "text", "prompt": "p"}] * 300),
        lambda: first(job.stream()),
        job.result,
        job.status,
        job.cancel,
        client.queues,
        client.workers,
        client.ping,
    ]


CALLS = range(len(every_call(Client("redis://127.0.0.1:1"))))


@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_is_down(call):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"redis://user:secret@127.0.0.1:{unused.getsockname()[1]}/0"
        client = Client(url, timeout_s=DEADLINE_S)
        with (
            within_the_deadline(),
            pytest.raises(QueueUnavailableError, match="could not be reached") as caught,
        ):
            every_call(client)[call]()
    assert caught.value.retryable
    assert not caught.value.maybe_accepted
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "new"])
def test_a_server_that_is_frozen(private_server, connected):
    clients = [Client(private_server.url, timeout_s=DEADLINE_S) for _ in CALLS]
    for client in clients if connected else ():
        client.ping()

    def attempt(call):
        with within_the_deadline(), pytest.raises(QueueUnavailableError):
            every_call(clients[call])[call]()

    with frozen(private_server), ThreadPoolExecutor(len(CALLS)) as pool:
        for attempted in [pool.submit(attempt, call) for call in CALLS]:
            attempted.result()


def test_a_server_that_freezes_under_a_stream(private_server):
    with Client(private_server.url, timeout_s=DEADLINE_S) as client:
        stream = client.submit("text", prompt="p").stream(timeout=None)
        next(stream)
        with frozen(private_server):
            begun = time.monotonic()
            with pytest.raises(QueueUnavailableError):
                next(stream)
            # A second of trust in the bell, then the deadline.
            assert time.monotonic() - begun < 1.0 + DEADLINE_S + LATE_S


def test_an_address_that_swallows_packets_counts_against_the_deadline():
    with socket.socket() as listener, Client(f"redis://127.0.0.1:{_full(listener)}", timeout_s=0.5) as client:
        begun = time.monotonic()
        with pytest.raises(QueueUnavailableError, match="in time"):
            client.ping()
        assert time.monotonic() - begun < 0.5 + LATE_S


def _full(listener):
    """Port of a listener whose queue of connections nobody empties."""
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    return listener.getsockname()[1]


def test_a_paused_server_took_the_job_once(private_server):
    """The reply is lost, the job isn't; repeating it with its key gives the same job."""
    with (
        Client(private_server.url, timeout_s=DEADLINE_S) as client,
        ScriptedWorker(private_server.url) as worker,
    ):
        client.ping()
        worker.redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        with within_the_deadline(), pytest.raises(QueueUnavailableError, match="did not answer") as caught:
            client.submit("text", prompt="p", idempotency_key="k")
        assert caught.value.maybe_accepted
        worker.redis.execute_command("CLIENT", "UNPAUSE")
        job = client.submit("text", prompt="p", idempotency_key="k")
        assert job.status().state is JobState.WAITING
        assert client.queues().waiting == 1


@pytest.mark.redis
def test_a_full_server_takes_no_more_jobs_and_gives_what_it_has(private_server):
    with Client(private_server.url) as client, ScriptedWorker(private_server.url) as worker:
        job = client.submit("text", prompt="p")
        worker.redis.config_set("maxmemory", "1")
        with pytest.raises(QueueFullError, match="takes no more jobs") as caught:
            client.submit("text", prompt="p")
        assert caught.value.code == "QUEUE_FULL"
        assert not caught.value.maybe_accepted
        with pytest.raises(QueueFullError):
            client.submit("vision", images=[b"x"])
        found = client.submit_many([{"modality": "text", "prompt": "p"}] * 3, return_errors=True)
        assert [type(each) for each in found] == [QueueFullError] * 3
        assert job.status().state is JobState.WAITING
        assert next(job.stream()).seq == 1
        worker.redis.config_set("maxmemory", "0")
        assert client.submit("text", prompt="p").status().position == 1
        assert client.queues().waiting == 2


@pytest.mark.redis
def test_a_replica_takes_no_jobs(private_server):
    with Client(private_server.url) as client, ScriptedWorker(private_server.url) as worker:
        job = client.submit("text", prompt="p")
        worker.redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(QueueUnavailableError, match="is a replica"):
            client.submit("text", prompt="p")
        assert job.status().state is JobState.WAITING


def test_a_wrong_password_is_told_at_once(server_kind):
    with EmbeddedServer(binary=server_binaries()[server_kind], config={"requirepass": "right"}) as server:
        port = server.port
        with (
            Client(f"redis://:wrong@127.0.0.1:{port}/0") as client,
            pytest.raises(QueueUnavailableError, match=f"127.0.0.1:{port} refused the login"),
        ):
            client.ping()
        with (
            Client(f"redis://127.0.0.1:{port}/0") as client,
            pytest.raises(QueueUnavailableError, match="wants a login"),
        ):
            client.submit("text", prompt="p")
        with Client(f"redis://:right@127.0.0.1:{port}/2") as client:
            assert client.submit("text", prompt="p").status().state is JobState.WAITING


@pytest.mark.redis
def test_a_user_who_may_not_is_told(private_server):
    with ScriptedWorker(private_server.url) as worker:
        worker.redis.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "&*", "+@read", "+ping")
    url = private_server.url.replace("redis://", "redis://reader:pw@")
    with Client(url) as client:
        client.ping()
        with pytest.raises(QueueUnavailableError, match="does not permit"):
            client.submit("text", prompt="p")
        with pytest.raises(QueueUnavailableError, match="does not permit"):
            client.job("x").cancel()


@pytest.mark.redis
def test_idle_connections_that_died_are_replaced_unnoticed(redis_url):
    with Client(redis_url) as client, ScriptedWorker(redis_url) as worker:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: client.ping(), range(200)))
        for expected in range(1, 6):
            worker.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            client.submit("text", prompt="p")
            assert client.queues().waiting == expected


def test_a_server_that_went_while_the_client_was_idle_took_nothing(private_server):
    with Client(private_server.url) as client:
        client.ping()
        private_server.kill()
        with pytest.raises(QueueUnavailableError) as caught:
            client.submit("text", prompt="p")
        assert not caught.value.maybe_accepted


def _serve_one_ping_and_die(listener):
    connection, _ = listener.accept()
    with connection:
        connection.recv(1000)
        connection.sendall(b"+PONG\r\n")
        connection.recv(1000)
        listener.close()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_server_that_dies_with_the_job_in_hand_may_have_taken_it(kind):
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        server = pool.submit(_serve_one_ping_and_die, listener)
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}"

        async def scene():
            client = kind(url, timeout_s=DEADLINE_S)
            for call in (client.ping, lambda: client.submit("text", prompt="p")):
                answer = call()
                if kind is AsyncClient:
                    await answer

        with pytest.raises(QueueUnavailableError) as caught:
            asyncio.run(scene())
        assert caught.value.maybe_accepted
        server.result(5)


#: What a server may answer to any command, among the replies of a pipeline too, and what a caller reads then.
ERROR_REPLIES = {
    b"LOADING Redis is loading the dataset in memory": "is still loading",
    b"ERR max number of clients reached": "no connection left",
    b"NOAUTH Authentication required.": "refused the login",
    b"NOPERM this user has no permissions": "access list",
    b"READONLY You can't write against a read only replica.": "replica",
    b"OOM command not allowed when used memory > 'maxmemory'.": "memory is used up",
    b"MISCONF Redis is configured to save RDB snapshots": r"\(MISCONF\)",
    b"BUSY Redis is busy running a script.": r"\(BUSY\)",
    b"MASTERDOWN Link with MASTER is down": "error",
    b"CLUSTERDOWN The cluster is down": "error",
    b"TRYAGAIN Multiple keys request during rehashing of slot": "error",
    b"MOVED 3999 127.0.0.1:6381": "error",
    b"EXECABORT Transaction discarded": "error",
    b"": "error",
    b"something that nobody has thought of": "error",
}


@contextmanager
def answering(reply):
    """Address of a server that answers every command, well formed or not, with one error."""

    opened = []

    def serve(connection):
        opened.append(connection)
        with connection, suppress(OSError):
            reader = Reader()
            while data := connection.recv(1 << 20):
                reader.feed(data)
                while reader.gets() is not False:
                    connection.sendall(b"-" + reply + b"\r\n")

    def accept(listener):
        with suppress(OSError):
            while True:
                pool.submit(serve, listener.accept()[0])

    with ThreadPoolExecutor() as pool, socket.create_server(("127.0.0.1", 0)) as listener:
        pool.submit(accept, listener)
        try:
            yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for connection in opened:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("reply", "told"), ERROR_REPLIES.items(), ids=[r.split(b" ")[0].decode() for r in ERROR_REPLIES]
)
def test_an_error_reply_is_told_in_our_words_by_every_call(kind, reply, told):
    async def outcome(client, call):
        answer = every_call(client, anext if kind is AsyncClient else next)[call]()
        return await answer if kind is AsyncClient else answer

    async def scene(url):
        client = kind(url, timeout_s=DEADLINE_S)
        for call in CALLS:
            # The second time on a connection that has served.
            for _ in range(2):
                with pytest.raises(QueueUnavailableError, match=told) as caught:
                    await outcome(client, call)
                assert not caught.value.maybe_accepted
        closing = client.close()
        if kind is AsyncClient:
            await closing

    with answering(reply) as url:
        asyncio.run(scene(url))


def test_a_server_that_restarts_between_two_calls(private_server):
    with Client(private_server.url) as client:
        client.submit("text", prompt="p")
        private_server.restart()
        assert client.submit("text", prompt="p").status().position == 0


def test_a_call_that_is_interrupted_leaves_no_reply_behind(redis_url, monkeypatch):
    """The next call on the client must not read the interrupted one's reply."""

    def interrupt(*_):
        raise KeyboardInterrupt

    with Client(redis_url) as client:
        # So that the server knows the script, and one round trip is enough.
        client.submit("text", prompt="p")
        with monkeypatch.context() as patch:
            patch.setattr("ccs_broker.client.wire.Wire.receive", interrupt)
            with pytest.raises(KeyboardInterrupt):
                client.submit("text", prompt="p")
        assert client.ping() < 1
        # The request was out; the server may read it after the next one, on another connection.
        wait_until(lambda: client.queues().waiting == 2, 5)


def test_a_closed_client_keeps_no_connection(redis_url):
    with ScriptedWorker(redis_url) as worker:
        before = worker.redis.info("clients")["connected_clients"]
        client = Client(redis_url)
        client.ping()
        assert worker.redis.info("clients")["connected_clients"] == before + 1
        client.close()
        client.ping()
        assert worker.redis.info("clients")["connected_clients"] == before
