"""The HTTP server of the daemons at the wire: which requests are executed, and when.

``kind``, ``nsqd`` and ``lookupd`` are ours and the real ones; where NSQ's differ, ours alone is asked.
"""

from collections.abc import Callable, Iterator
from logging import getLogger
from pathlib import Path
from ssl import PROTOCOL_TLS_CLIENT
from typing import Any

import pytest
from gevent import spawn
from gevent.ssl import SSLContext

from gnsq_like.httpd.listen import bound_address, listen
from gnsq_like.httpd.server import HTTPServer
from tests.support.certificates import write_ca, write_certificate
from tests.support.daemons import KINDS, Kind, Running, running_nsqd
from tests.support.raw import Response, connect, exchange, parse, post, topic_stats

HIDDEN = b"POST /topic/delete?topic=kept HTTP/1.1\r\nHost: x\r\n\r\n"


def request(target: str, *lines: str, body: bytes = b"") -> bytes:
    return "\r\n".join([f"POST {target} HTTP/1.1", "Host: x", *lines, "", ""]).encode() + body


def statuses(responses: list[Response]) -> list[int]:
    return [response.status for response in responses]


@pytest.fixture
def kept(nsqd: Running) -> Running:
    """An nsqd with the topic "kept", which a hidden request would delete."""
    assert post(nsqd.http_address, "/topic/create?topic=kept").status == 200
    return nsqd


def is_kept(nsqd: Running) -> bool:
    return topic_stats(nsqd.http_address, "kept") is not None


SMUGGLING = {
    "space before the colon of TE": ["Transfer-Encoding : chunked", f"Content-Length: {len(HIDDEN) + 5}"],
    "two lengths": ["Content-Length: 5", f"Content-Length: {len(HIDDEN) + 5}"],
    "length with a sign": ["Content-Length: +5"],
    "identity": ["Transfer-Encoding: identity", f"Content-Length: {len(HIDDEN) + 5}"],
    "two TE": ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
    "CR inside of a value": ["Transfer-Encoding: chunked\r"],
    "first line folded": [" Transfer-Encoding: chunked"],
}


@pytest.mark.parametrize("lines", SMUGGLING.values(), ids=SMUGGLING)
def test_no_second_request_hides_behind_an_ambiguous_length(kept: Running, lines: list[str]) -> None:
    first = lines if lines[0].startswith(" ") else ["Host: x", *lines]
    sent = "\r\n".join(["POST /topic/create?topic=first HTTP/1.1", *first, "", ""]).encode() + b"0\r\n\r\n" + HIDDEN
    found = exchange(kept.http_address, sent)
    assert statuses(found) in ([400], [501])
    assert found[0].fields["connection"] == "close"
    assert is_kept(kept)


@pytest.mark.parametrize(
    "chunks",
    [
        b"0\r\n" + HIDDEN,
        b"2\r\nxxx\r\n0\r\n\r\n" + HIDDEN,
        b"0x2\r\nxx\r\n0\r\n\r\n" + HIDDEN,
        b"2;x\nxx" + HIDDEN,
    ],
)
def test_nothing_is_executed_after_malformed_chunks(kept: Running, chunks: bytes) -> None:
    found = exchange(kept.http_address, request("/topic/empty?topic=kept", "Transfer-Encoding: chunked", body=chunks))
    assert statuses(found) == [400]
    assert is_kept(kept)


def test_what_nsq_accepts_is_accepted(nsqd: Running) -> None:
    last = b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    chunks = b"2;x=y\r\nab\r\n0\r\nA: b\r\n\r\n"
    for sent in (
        request("/pub?topic=t", "Transfer-Encoding: chunked", "Content-Length: 3", body=chunks),
        request("/pub?topic=t", "Content-Length: 3", "Content-Length: 3", body=b"abc"),
        request("/pub?topic=t", "Transfer-Encoding:", " Chunked", body=chunks),
        request("/pub?topic=t", "X: a", "  b", "Content-Length: 3", body=b"abc"),
        request("/pub?topic=t", "Content-Length: 3", body=b"abc\r\n"),
        request("/pub?topic=t", "Content-Length: 3").replace(b"\r\n", b"\n") + b"abc",
        b"POST http://host:80/pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 003\r\n\r\nabc",
    ):
        assert statuses(exchange(nsqd.http_address, sent + last)) == [200, 200], sent


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /topic/delete?topic=kept",
        b"POST /topic/delete?topic=kept HTTP/1.1\r\nHost: x\r\n",
        b"POST /topic/delete?topic=kept HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r",
        request("/topic/delete?topic=kept", "Content-Length: 5", body=b"four"),
        request("/topic/delete?topic=kept", "Transfer-Encoding: chunked", body=b"5\r\nfour"),
        request("/topic/delete?topic=kept", "Transfer-Encoding: chunked", body=b"5\r\nfifth\r\n"),
        request("/topic/delete?topic=kept", "Transfer-Encoding: chunked", body=b"5\r\nfifth\r\n0\r\n"),
    ],
)
def test_a_request_that_is_cut_off_is_not_executed(kept: Running, sent: bytes) -> None:
    assert statuses(exchange(kept.http_address, sent)) == [400]
    assert is_kept(kept)


@pytest.mark.parametrize("target", ["/pub?topic=new", "/mpub?topic=new", "/topic/create?topic=new"])
@pytest.mark.parametrize(
    ("line", "body"), [("Content-Length: 5", b"a\nb\n"), ("Transfer-Encoding: chunked", b"4\r\na\nb\n\r\n")]
)
def test_a_body_that_is_cut_off_makes_no_topic(target: str, line: str, body: bytes) -> None:
    """NSQ's creates the topic before it reads the body of /mpub and /topic/create."""
    with running_nsqd("ours") as nsqd:
        assert statuses(exchange(nsqd.http_address, request(target, line, body=body))) in ([400], [500])
        assert topic_stats(nsqd.http_address, "new") is None


@pytest.mark.parametrize(
    ("sent", "status_line"),
    [
        (
            b"GET /ping HTTP/2.0\r\nHost: x\r\n\r\n",
            "HTTP/1.1 505 HTTP Version Not Supported: unsupported protocol version",
        ),
        (b"GET /ping\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        (b"GET /ping HTTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request: missing required Host header"),
        (b"GET /ping HTTP/1.1\r\nHost: x\r\nExpect: y\r\n\r\n", "HTTP/1.1 417 Expectation Failed"),
        (b"GET /ping HTTP/1.0\r\nExpect: y\r\n\r\n", "HTTP/1.0 417 Expectation Failed"),
        (b"GET /ping HTTP/1.1\r\nA: " + b"x" * 1100000 + b"\r\n\r\n", "HTTP/1.1 431 Request Header Fields Too Large"),
    ],
)
def test_refusals_have_gos_status_line(nsqd: Running, sent: bytes, status_line: str) -> None:
    (response,) = exchange(nsqd.http_address, sent)
    assert response.status_line == status_line
    assert response.fields["connection"] == "close"
    # No length, unless there is no body.
    assert {*response.fields} - {"date"} == {"connection", "content-length" if "417" in status_line else "content-type"}


def test_http_1_0_is_answered_in_kind(nsqd: Running) -> None:
    (response,) = exchange(nsqd.http_address, b"GET /ping HTTP/1.0\r\n\r\nGET /ping HTTP/1.0\r\n\r\n")
    assert (response.status_line, response.body) == ("HTTP/1.0 200 OK", b"OK")
    assert "connection" not in response.fields
    twice = exchange(
        nsqd.http_address, b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /ping HTTP/1.0\r\n\r\n"
    )
    assert [response.fields.get("connection") for response in twice] == ["keep-alive", None]


def test_a_response_says_that_the_connection_ends(nsqd: Running) -> None:
    (response,) = exchange(nsqd.http_address, b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert response.fields["connection"] == "close"
    (response,) = exchange(nsqd.http_address, b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
    assert "connection" not in response.fields


def test_100_continue_is_sent_when_the_body_is_wanted(nsqd: Running) -> None:
    expecting = ["Expect: 100-continue", "Content-Length: 3"]
    assert statuses(exchange(nsqd.http_address, request("/pub?topic=t", *expecting, body=b"abc"))) == [100, 200]
    assert statuses(exchange(nsqd.http_address, request("/nope", *expecting))) == [404]
    too_big = request("/pub?topic=t", "Expect: 100-continue", "Content-Length: 2000000")
    (response,) = exchange(nsqd.http_address, too_big)
    assert (response.status, response.fields["connection"]) == (413, "close")


def test_a_body_that_is_refused_unread_is_skipped_or_ends_the_connection(nsqd: Running) -> None:
    little = request("/nope", "Content-Length: 1000", body=b"x" * 1000)
    assert statuses(exchange(nsqd.http_address, little + little)) == [404, 404]
    much = request("/nope", "Content-Length: 300000", body=b"x" * 300000)
    (response,) = exchange(nsqd.http_address, much + little)
    assert (response.status, response.fields["connection"]) == (404, "close")


def test_other_targets(nsqd: Running) -> None:
    def ask(line: str) -> Response:
        return exchange(nsqd.http_address, f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), line.split()[0])[0]

    assert (ask("OPTIONS *").status, ask("OPTIONS *").body) == (200, b"")
    assert ask("GET http://host/ping").body == b"OK"
    assert ask("GET /p%69ng").body == b"OK"
    assert ask("GET /%6").status == 400
    head = ask("HEAD /ping")
    assert (head.status, head.fields["content-length"], head.body) == (405, "32", b"")
    # A path that is another method's is not corrected.
    assert (
        statuses([ask(line) for line in ("HEAD /stats/", "OPTIONS /STATS", "POST /stats/", "GET /pub/")]) == [404] * 4
    )
    assert ask("GET /config/log_level/").fields["location"] == "/config/log_level"
    assert ask("GET /CONFIG/log_level?a=b").fields["location"] == "/config/log_level?a=b"


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_over_tls(kind: Kind, tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    context = SSLContext(PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(write_ca(tmp_path))

    def ask(sent: bytes) -> list[Response]:
        with context.wrap_socket(connect(nsqd.https_address), server_hostname="127.0.0.1") as sock:
            sock.sendall(sent)
            received = b""
            while piece := sock.recv(65536):
                received += piece
        return parse(received)

    with running_nsqd(kind, tls_cert=cert, tls_key=key) as nsqd:
        assert ask(b"GET /ping HTTP/1.0\r\n\r\n")[0].body == b"OK"
        assert post(nsqd.http_address, "/topic/create?topic=kept").status == 200
        assert statuses(ask(request("/ping", "Content-Length : 9", body=HIDDEN))) == [400]
        assert is_kept(nsqd)
        (plain,) = exchange(nsqd.https_address, b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert plain.status_line == "HTTP/1.0 400 Bad Request"
        assert plain.body == b"Client sent an HTTP request to an HTTPS server.\n"


class Echo:
    """A WSGI application that returns the request's body, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        self.asked.append(environ)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return iter([environ["wsgi.input"].read(), b"", b"."])


@pytest.fixture
def echo() -> Iterator[tuple[Echo, str]]:
    application = Echo()
    listener = listen("127.0.0.1:0")
    server = HTTPServer(listener, application, getLogger("gnsq_like.test"), body_limit=10)
    server.start()
    try:
        yield application, bound_address(listener)
    finally:
        server.stop()


def test_any_application_is_called_with_the_whole_body_only(echo: tuple[Echo, str]) -> None:
    application, address = echo
    found = exchange(
        address,
        request("/a%20b?c=d", "Content-Length: 3", "A_B: 1", "A-B: 2", "A-B: 3", "Cookie: a", "Cookie: b", body=b"abc")
        + request("/", "Transfer-Encoding: chunked", "Content-Type: x", body=b"3\r\ndef\r\n0\r\n\r\n")
        + request("/", "Content-Length: 10", body=b"cut off"),
    )
    assert [(each.status, each.body) for each in found] == [(200, b"abc."), (200, b"def."), (400, b"400 Bad Request")]
    first, second = application.asked
    assert (first["PATH_INFO"], first["QUERY_STRING"], first["CONTENT_LENGTH"]) == ("/a b", "c=d", "3")
    assert (first["HTTP_A_B"], first["HTTP_COOKIE"], first["REMOTE_ADDR"]) == ("2,3", "a; b", "127.0.0.1")
    assert (second["CONTENT_LENGTH"], second["CONTENT_TYPE"]) == ("3", "x")
    assert "HTTP_CONTENT_LENGTH" not in first and "HTTP_CONTENT_TYPE" not in second


def test_a_body_above_the_limit_is_refused(echo: tuple[Echo, str]) -> None:
    application, address = echo
    chunks = b"6\r\nabcdef\r\n" * 2 + b"0\r\n\r\n"
    for sent in (
        request("/", "Content-Length: 11", "Expect: 100-continue"),
        request("/", "Transfer-Encoding: chunked", body=chunks),
    ):
        assert statuses(exchange(address, sent)) == [413]
    assert application.asked == []


def test_the_response_to_head_has_no_body(echo: tuple[Echo, str]) -> None:
    _, address = echo
    first, second = exchange(address, b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", "HEAD")
    assert (first.status, second.body) == (200, b".")


def test_a_response_of_unknown_length_ends_a_connection_of_http_1_0(echo: tuple[Echo, str]) -> None:
    _, address = echo
    (response,) = exchange(address, b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" * 2)
    assert (response.status_line, response.body) == ("HTTP/1.0 200 OK", b".")
    assert "connection" not in response.fields


def test_a_client_that_still_sends_gets_the_refusal(nsqd: Running) -> None:
    """What is sent to a closed socket resets the connection, and takes away a response not yet read."""
    sent = request("/pub?topic=t", "Content-Length: +1000000", body=b"x" * 1000000)
    with connect(nsqd.http_address) as sock:
        sender = spawn(sock.sendall, sent)
        response = parse(sock.recv(65536))
        sender.kill()
    assert statuses(response) == [400]
