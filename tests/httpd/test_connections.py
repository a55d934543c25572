"""Clients that send half a request, or do not read, cost an HTTP server little: limits and deadlines."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from ssl import PROTOCOL_TLS_SERVER
from typing import Any

import gevent
import pytest
from gevent.ssl import SSLContext

from gnsq_like.httpd.connections import (
    BYTES_PER_SECOND,
    HTTPConnections,
    TooManyConnections,
)
from gnsq_like.httpd.listen import bound_address, listen
from gnsq_like.httpd.server import HTTPServer
from tests.support import raw
from tests.support.certificates import write_certificate
from tests.support.daemons import wait_for
from tests.support.raw import parse


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The server's and the client's end of a connection."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(0)
    with ours, theirs:
        yield ours, theirs


def has_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


# -- the table ----------------------------------------------------------------------------------------


def test_a_client_that_owes_for_too_long_is_shut_out() -> None:
    clock = Clock()
    connections = HTTPConnections(seconds=20, clock=clock)
    with pair() as (ours, theirs), connections.opened(ours) as connection:
        clock.now = 1000.0  # idle for long: it owes nothing
        connections.shut_overdue()
        assert not has_ended(theirs)
        with connection.owed(20):
            clock.now += 19
            connections.shut_overdue()
            assert (has_ended(theirs), connection.seconds_left) == (False, 1)
        clock.now += 1000  # an application is at work
        connections.shut_overdue()
        assert not has_ended(theirs)
        with connection.owed(20):
            clock.now += 20
            connections.shut_overdue()
            assert has_ended(theirs)


def test_the_one_that_is_idle_longest_makes_room_then_the_one_that_has_owed_longest() -> None:
    connections = HTTPConnections(3)
    with ExitStack() as stack:
        ends = [stack.enter_context(pair()) for _ in range(3)]
        first, _, third = (stack.enter_context(connections.opened(ours)) for ours, _ in ends)
        stack.enter_context(first.owed(20))
        stack.enter_context(third.owed(20))
        order = []
        for _ in range(3):
            assert connections.make_room()
            order.append([has_ended(theirs) for _, theirs in ends])
            if len(order) == 2:
                third.idle()
        assert order == [[False, True, False], [True, True, False], [True, True, True]]
        assert not connections.make_room()


def test_a_new_one_is_refused_where_all_have_an_application_at_work() -> None:
    connections = HTTPConnections(1)
    with pair() as (ours, theirs), connections.opened(ours) as connection:
        with connection.owed(20):
            pass
        with pytest.raises(TooManyConnections), connections.opened(ours):
            pass
        assert not has_ended(theirs)
    with connections.opened(ours):
        pass


# -- the server ---------------------------------------------------------------------------------------


class Application:
    """Answers with the request's body; ``calls`` counts."""

    def __init__(self, answer: bytes = b"") -> None:
        self.calls = 0
        self._answer = answer

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.calls += 1
        try:
            body = self._answer or environ["wsgi.input"].read()
        except OSError:
            start_response("400 Bad Request", [("Content-Length", "0")])
            return []
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]


@contextmanager
def serving(application: Application, connections: HTTPConnections, **options: Any) -> Iterator[str]:
    listener = listen("127.0.0.1:0")
    server = HTTPServer(listener, application, logging.getLogger("served"), connections=connections, **options)
    server.start()
    try:
        yield bound_address(listener)
    finally:
        server.stop()


HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "half",
    [
        b"P",
        HEAD,
        HEAD + b"Content-Length: 5\r\n\r\n",
        HEAD + b"Content-Length: 5\r\n\r\nfour",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nfour",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5",
    ],
)
@pytest.mark.parametrize("body_limit", [None, 1 << 20], ids=["read by the application", "read before"])
def test_half_a_request_ends_its_connection(half: bytes, body_limit: int | None) -> None:
    application = Application()
    with (
        serving(application, HTTPConnections(seconds=0.01), body_limit=body_limit) as address,
        raw.connect(address) as client,
    ):
        client.sendall(half)
        answer = client.makefile("rb").read()
    assert b"200 OK" not in answer


def test_bytes_that_keep_coming_keep_the_connection() -> None:
    """Each byte adds to the time that the client has; the time of two bytes is that of the whole body."""
    clock = Clock()
    connections = HTTPConnections(seconds=20, clock=clock)
    application = Application()
    with serving(application, connections) as address, raw.connect(address) as client:
        client.sendall(HEAD + f"Content-Length: {40 * BYTES_PER_SECOND}\r\n\r\n".encode())
        for _ in range(40):
            wait_for(lambda: len(connections.owing) == 1, "the server to wait for the body")
            (connection,) = connections.owing
            was = connection.deadline
            clock.now += 1
            client.sendall(b"x" * BYTES_PER_SECOND)
            wait_for(lambda: connection.deadline > was or application.calls == 1, "the server to read it")  # noqa: B023
        response = parse(client.recv(1 << 20), "POST")
    assert response[0].status == 200 and application.calls == 1


def test_a_response_that_nobody_reads_ends_its_connection() -> None:
    connections = HTTPConnections(seconds=0.01)
    body = b"x" * (64 << 20)
    clock = Clock()
    connections = HTTPConnections(seconds=20, clock=clock)
    with serving(Application(body), connections) as address, raw.connect(address) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_for(lambda: len(connections.owing) == 1, "the server to wait for the client to read")
        clock.now += 20 + len(body) / BYTES_PER_SECOND + 1
        wait_for(lambda: not connections.owing, "the server to give up")
        assert len(client.makefile("rb").read()) < len(body)


def test_a_handshake_that_is_not_finished_ends_its_connection(tmp_path: Any) -> None:
    context = SSLContext(PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*write_certificate(tmp_path, "127.0.0.1"))
    with (
        serving(Application(), HTTPConnections(seconds=0.01), ssl_context=context) as address,
        raw.connect(address) as client,
    ):
        client.sendall(b"\x16\x03\x01\x02")
        assert client.recv(1) == b""


def test_hundreds_of_half_requests_leave_room_for_a_whole_one() -> None:
    application = Application(b"here")
    connections = HTTPConnections(50)
    with serving(application, connections) as address, ExitStack() as stack:
        halves = [stack.enter_context(raw.connect(address)) for _ in range(300)]
        for half in halves:
            half.sendall(b"GET / HT")
        assert raw.get(address, "/").body == b"here"
        wait_for(lambda: len(connections.owing) == 49, "the last 49 to be kept")
        for half in halves:
            half.settimeout(0)
        assert sum(map(has_ended, halves)) == 251


def test_idle_clients_stay_unless_there_are_too_many() -> None:
    application = Application(b"here")
    connections = HTTPConnections(2)
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    with serving(application, connections) as address, ExitStack() as stack:
        first, second = (stack.enter_context(raw.connect(address)) for _ in range(2))
        for client in (first, second, first):
            client.sendall(request)
            assert client.recv(1000).endswith(b"here")
        wait_for(lambda: len(connections.idle) == 2, "both to be idle")
        assert raw.get(address, "/").body == b"here"
        assert second.recv(1) == b""
        first.sendall(request)
        assert first.recv(1000).endswith(b"here")


def test_nothing_runs_while_nobody_owes() -> None:
    connections = HTTPConnections(seconds=0.01)
    with serving(Application(b"here"), connections) as address, raw.connect(address) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(1000).endswith(b"here")
        wait_for(lambda: len(connections.idle) == 1, "it to be idle")
        gevent.sleep(0)
        assert not connections.owing
