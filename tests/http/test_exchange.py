"""Every way in which a server, a network or a response can be bad, from every place that requests are made from."""

from __future__ import annotations

import gc
import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gnsq_like.errors import HTTPRequestFailed, HTTPStatusError
from gnsq_like.http.client import DEFAULT_MAX_ANSWER_BYTES
from tests.support.certificates import write_ca
from tests.support.hub import Place
from tests.support.patient import LookupdClient, NsqdHTTPClient
from tests.support.scripted_http import Peer, always, once, response, scripted


def failure(anywhere: Place, ask: Callable[[], object]) -> HTTPRequestFailed:
    with pytest.raises(HTTPRequestFailed) as caught:
        anywhere(ask)
    return caught.value


def timed_failure(anywhere: Place, ask: Callable[[], object]) -> tuple[HTTPRequestFailed, float]:
    start = time.monotonic()
    error = failure(anywhere, ask)
    return error, time.monotonic() - start


# --- no connection ---


def test_refused(anywhere: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    error = failure(anywhere, NsqdHTTPClient(address).ping)
    assert error.url == f"http://{address}/ping"
    assert error.reason == "Connection refused"
    assert error.__cause__ is not None


def test_a_host_name_that_is_none(anywhere: Place) -> None:
    # A zone that does not exist: fails without asking any DNS server.
    error = failure(anywhere, NsqdHTTPClient("[fe80::1%nowhere]:4151").ping)
    assert error.reason.startswith("the host name is not known: ")
    error = failure(anywhere, NsqdHTTPClient(f"{'x' * 300}:4151").ping)
    assert "x" * 300 in error.url


def test_a_host_that_does_not_take_the_connection(anywhere: Place) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:  # fill the backlog: further connects are not answered
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        error, elapsed = timed_failure(anywhere, NsqdHTTPClient(address, connect_timeout=0.2).ping)
        assert error.reason == "no connection within 0.2 s"
        assert elapsed >= 0.2
        error, elapsed = timed_failure(anywhere, NsqdHTTPClient(address, timeout=0.3).ping)
        assert error.reason in ("no connection within 0.3 s", "no answer within 0.3 s")
        assert elapsed >= 0.25
        for sock in waiting:
            sock.close()


# --- the deadline: without it, each of these requests would last until the test fails, or end otherwise ---


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(lambda peer: peer.hang(), id="silent"),
        pytest.param(lambda peer: (peer.request(), peer.hang()), id="silent after the request"),
        pytest.param(lambda peer: peer.drip(response("OK", "200 OK", "X-Long: " + "x" * 500)), id="dripping headers"),
        pytest.param(lambda peer: peer.drip(b"HTTP/1.1 100 Continue\r\n\r\n" * 50), id="dripping 100 Continue"),
        pytest.param(
            lambda peer: (peer.send(response(b"", "200 OK")[:-2]), peer.drip(b"X: y\r\n" * 100)), id="endless headers"
        ),
        pytest.param(
            lambda peer: (peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"), peer.drip(b"x" * 500)),
            id="dripping body",
        ),
        pytest.param(
            lambda peer: (peer.send(b"HTTP/1.1 200 OK\r\n\r\n"), peer.drip(b"x" * 500)), id="dripping without a length"
        ),
        pytest.param(
            lambda peer: (
                peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
                peer.drip(b"1\r\nx\r\n" * 100),
            ),
            id="dripping chunks",
        ),
    ],
)
def test_the_deadline_holds(anywhere: Place, script: Callable[[Peer], object]) -> None:
    with scripted(script) as server:
        error, elapsed = timed_failure(anywhere, NsqdHTTPClient(server.address, timeout=0.5).ping)
    assert error.reason == "no answer within 0.5 s"
    assert elapsed >= 0.45


def test_the_deadline_holds_while_the_server_does_not_read(anywhere: Place) -> None:
    with scripted(lambda peer: peer.hang()) as server:
        client = NsqdHTTPClient(server.address, timeout=0.5)
        error, elapsed = timed_failure(anywhere, lambda: client.publish("t", bytes(32 * 1024 * 1024)))
    assert error.reason == "no answer within 0.5 s"
    assert elapsed >= 0.45


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_deadline_holds_for_a_tls_handshake(anywhere: Place) -> None:
    def script(peer: Peer) -> None:
        peer.drip(b"\x16\x03\x03\x40\x00" + bytes(500))

    with scripted(script) as server:
        error, elapsed = timed_failure(anywhere, NsqdHTTPClient(f"https://{server.address}", timeout=0.5).ping)
    assert error.reason == "no answer within 0.5 s"
    assert elapsed >= 0.45
    # gevent leaves a socket whose handshake is interrupted to the garbage collector, which warns about it.
    del error
    gc.collect()


def test_the_deadline_holds_over_redirects(anywhere: Place) -> None:
    def script(peer: Peer) -> None:
        while peer.request():
            peer.server.over.wait(0.2)
            peer.send(response(b"", "301 Moved Permanently", "Location: /again"))

    with scripted(script) as server:
        error, elapsed = timed_failure(anywhere, NsqdHTTPClient(server.address, timeout=0.5).ping)
    assert error.reason == "no answer within 0.5 s"
    assert elapsed >= 0.45


# --- the size ---


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", id="declared"),
        pytest.param(response(b"x" * 1001), id="declared and sent"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001, id="without a length"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n",
            id="chunked",
        ),
        pytest.param(response(b"x" * 1001, "500 Internal Server Error"), id="of an error"),
        pytest.param(response(b"x" * 1001, "301 Moved Permanently", "Location: /ping"), id="of a redirect"),
    ],
)
def test_an_answer_above_the_limit(anywhere: Place, answer: bytes) -> None:
    with scripted(once(answer)) as server:
        error = failure(anywhere, NsqdHTTPClient(server.address, max_answer_bytes=1000).stats)
    assert error.reason == "the answer is larger than 1000 bytes"


def test_an_answer_at_the_limit(anywhere: Place) -> None:
    with scripted(always(response(b"x" * 1000))) as server:
        assert len(anywhere(NsqdHTTPClient(server.address, max_answer_bytes=1000).stats_text)) == 1000


def test_an_endless_answer_is_given_up_at_the_limit(anywhere: Place) -> None:
    sent = [0]

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while not peer.server.over.is_set():
            peer.send(bytes(65536))
            sent[0] += 65536

    with scripted(script) as server:
        error = failure(anywhere, NsqdHTTPClient(server.address, timeout=60).stats)
    assert error.reason == f"the answer is larger than {16 * 1024 * 1024} bytes"
    assert sent[0] < 2 * DEFAULT_MAX_ANSWER_BYTES  # the network's buffers hold some more


# --- redirects ---


def test_a_redirect_to_another_server_is_not_followed(anywhere: Place) -> None:
    with scripted(always(response())) as other:
        location = f"Location: http://me:secret@{other.address}/ping"
        with scripted(always(response(b"", "301 Moved Permanently", location))) as server:
            error = failure(anywhere, NsqdHTTPClient(server.address).ping)
        assert other.connections == 0
    assert error.reason == f"redirected to another server, http://{other.address}; not followed"


@pytest.mark.parametrize("location", ["https://{}/ping", "//elsewhere.example/ping", "ftp://{}/", "http://[::1/"])
def test_other_redirects_that_are_not_followed(anywhere: Place, location: str) -> None:
    def answer(_: object) -> bytes:
        return response(b"", "302 Found", "Location: " + location.format(server.address))

    with scripted(always(answer)) as server:
        error = failure(anywhere, NsqdHTTPClient(server.address).ping)
    assert error.reason.startswith("redirected to ")
    assert len(server.asked) == 1


@pytest.mark.parametrize("location", ["/nsq/ping", "http://{}/nsq/ping", "nsq/ping"])
def test_a_redirect_within_the_host_is_followed(anywhere: Place, location: str) -> None:
    def answer(asked: Any) -> bytes:
        if asked.line.startswith("GET /nsq/"):
            return response()
        return response(b"", "301 Moved Permanently", "Location: " + location.format(server.address))

    with scripted(always(answer)) as server:
        assert anywhere(NsqdHTTPClient(server.address).ping) == "OK"
    assert [asked.line for asked in server.asked] == ["GET /ping HTTP/1.1", "GET /nsq/ping HTTP/1.1"]


def test_a_redirected_post_stays_a_post(anywhere: Place) -> None:
    def answer(asked: Any) -> bytes:
        if asked.line.startswith("POST /pub/"):
            return response()
        return response(b"", "307 Temporary Redirect", "Location: /pub/?topic=t")

    with scripted(always(answer)) as server:
        anywhere(lambda: NsqdHTTPClient(server.address).publish("t", b"body"))
    assert [asked.line for asked in server.asked] == ["POST /pub?topic=t HTTP/1.1", "POST /pub/?topic=t HTTP/1.1"]
    assert [asked.body for asked in server.asked] == [b"body", b"body"]


def test_a_redirect_that_would_make_a_post_a_get_is_not_followed(anywhere: Place) -> None:
    with scripted(always(response(b"", "302 Found", "Location: /pub2"))) as server:
        error = failure(anywhere, lambda: NsqdHTTPClient(server.address).publish("t", b"body"))
    assert error.reason == "redirected with status 302, which would turn it into a GET"
    assert len(server.asked) == 1


def test_redirects_in_a_circle(anywhere: Place) -> None:
    with scripted(always(response(b"", "301 Moved Permanently", "Location: /ping"))) as server:
        error = failure(anywhere, NsqdHTTPClient(server.address).ping)
    assert error.reason == "redirected more than 3 times"
    assert len(server.asked) == 4


# --- responses that are unusable ---

PORT = "; is this the port of the HTTP API?"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "the connection was closed without an answer"),
        (b"\x00\x00\x00\x0f\x00\x00\x00\x01E_BAD_PROTOCOL", f"the answer is not HTTP (BadStatusLine){PORT}"),
        (b"HTTP/1.1 abc OK\r\n\r\n", f"the answer is not HTTP (BadStatusLine){PORT}"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70000 + b"\r\n\r\n", f"the answer is not HTTP (LineTooLong){PORT}"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "the answer ended early"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal", "the answer ended early"),
        (
            response(b"\x1f\x8b", "200 OK", "Content-Encoding: gzip"),
            "the answer is compressed, which was not asked for",
        ),
    ],
)
def test_no_usable_answer(anywhere: Place, answer: bytes, reason: str) -> None:
    with scripted(once(answer)) as server:
        assert failure(anywhere, NsqdHTTPClient(server.address).ping).reason == reason


def test_chunks_that_are_none(anywhere: Place) -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nOK\r\n0\r\n\r\n"
    with scripted(once(answer)) as server:
        failure(anywhere, NsqdHTTPClient(server.address).ping)


def test_tls_where_there_is_none(anywhere: Place) -> None:
    with scripted(lambda peer: peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server:
        error = failure(anywhere, NsqdHTTPClient(f"https://{server.address}").ping)
    assert error.reason.startswith("TLS failed: ")


def test_a_certificate_of_an_unknown_authority(anywhere: Place) -> None:
    with scripted(always(response()), tls=True) as server:
        error = failure(anywhere, NsqdHTTPClient(f"https://localhost:{server.port}").ping)
    assert error.reason == "the TLS certificate is not accepted: unable to get local issuer certificate"
    assert server.asked == []


def test_a_certificate_of_an_authority_of_the_system(
    anywhere: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", write_ca(tmp_path))  # in the place of the system's
    with scripted(always(response("OK")), tls=True) as server:
        assert anywhere(NsqdHTTPClient(f"https://localhost:{server.port}").ping) == "OK"


def test_a_certificate_of_another_host(anywhere: Place, tmp_path: Path) -> None:
    with scripted(always(response()), host="127.0.0.2", tls=True) as server:
        client = NsqdHTTPClient(f"https://{server.address}", verify=write_ca(tmp_path))
        error = failure(anywhere, client.ping)
    assert "certificate" in error.reason.lower()
    assert server.asked == []


def test_certificates_that_are_missing(anywhere: Place) -> None:
    error = failure(anywhere, NsqdHTTPClient("https://127.0.0.1:1", verify="/nowhere/ca.pem").ping)
    assert "/nowhere/ca.pem" in error.reason


def test_the_text_ok_is_looked_at(anywhere: Place) -> None:
    with scripted(always(response("<html>\n Please log in</html>"))) as server:
        error = failure(anywhere, lambda: NsqdHTTPClient(server.address).publish("t", b"body"))
    assert error.reason == "the answer is not OK but '<html> Please log in</html>'"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "it is not JSON"),
        (b"OK", "it is not JSON"),
        (b'{"topics": ["a"]', "it is not JSON"),
        (b"\xff\xfe\xfd", "it is not JSON"),
        (b"[" * 200_000, "it is not JSON"),
        (b"null", "a JSON object was expected"),
        (b'["a"]', "a JSON object was expected"),
        (b"{}", '"topics" is not a list of str'),
        (b'{"topics": "abc"}', '"topics" is not a list of str'),
        (b'{"topics": ["a", 5]}', '"topics" is not a list of str'),
    ],
)
@pytest.mark.usefixtures("no_garbage_collection")
def test_malformed_json(anywhere: Place, body: bytes, reason: str) -> None:
    with scripted(always(response(body))) as server:
        error = failure(anywhere, LookupdClient(server.address).topics)
    assert error.reason == f"the answer is malformed: {reason}"


# --- error statuses ---


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (response('{"message":"TOPIC_NOT_FOUND"}', "404 Not Found"), 404, "TOPIC_NOT_FOUND"),
        (response("NOK - disk is\nfull\n", "500 Internal Server Error"), 500, "NOK - disk is full"),
        (response("x" * 5000, "502 Bad Gateway"), 502, "x" * 200),
        (response("", "503 Service Unavailable"), 503, ""),
        (response('{"message": 5}', "400 Bad Request"), 400, '{"message": 5}'),
        (response('["a"]', "400 Bad Request"), 400, '["a"]'),
        (response(b"\xff", "400 Bad Request"), 400, "\ufffd"),
        (response("", "204 No Content"), 204, ""),
        (
            response('{"message": "TLS_REQUIRED", "https_port": 4152}', "403 Forbidden"),
            403,
            "TLS_REQUIRED: this nsqd answers only over https, on port 4152",
        ),
    ],
)
def test_an_error_status(anywhere: Place, answer: bytes, status: int, message: str) -> None:
    with scripted(always(answer)) as server, pytest.raises(HTTPStatusError) as caught:
        anywhere(NsqdHTTPClient(server.address).info)
    assert caught.value.url == f"http://{server.address}/info"
    assert (caught.value.status, caught.value.message) == (status, message)


# --- afterwards ---


def test_after_a_failure_the_next_request_is_fine(anywhere: Place) -> None:
    given_up = threading.Event()

    def script(peer: Peer) -> None:
        while peer.request():
            if len(peer.server.asked) == 1:
                given_up.wait(60)
                peer.send(response("late"))
            else:
                peer.send(response())

    def ask() -> str:
        with pytest.raises(HTTPRequestFailed, match="no answer within 1 s"):
            client.ping()
        given_up.set()
        return client.ping()

    with scripted(script) as server:
        client = NsqdHTTPClient(server.address, timeout=1)
        assert anywhere(ask) == "OK"
        assert server.connections == 2


def test_credentials_are_never_shown(anywhere: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown = []

    def ask(client: NsqdHTTPClient) -> None:
        shown.extend([repr(client), str(client), client.url])
        with pytest.raises((HTTPRequestFailed, HTTPStatusError)) as caught:
            client.publish("t", b"body")
        error: BaseException | None = caught.value
        shown.append("".join(traceback.format_exception(error)))
        while error is not None:
            shown.append(f"{error!s} {error!r} {error.args!r} {vars(error)!r}")
            request = getattr(error, "request", None)
            shown.append(repr(getattr(request, "headers", None)))
            error = error.__context__

    endings = [
        b"",
        b"nonsense",
        response("no", "500 Internal Server Error"),
        response(b"", "301 Moved Permanently", "Location: http://elsewhere.example/"),
        response(b"", "307 Temporary Redirect", "Location: /pub"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
    ]
    for ending in endings:
        with scripted(once(ending)) as server:
            anywhere(partial(ask, NsqdHTTPClient(f"http://me:s3cret@{server.address}/x")))
            assert server.asked[0].headers["authorization"] == "Basic bWU6czNjcmV0"
            assert server.asked[0].line == "POST /x/pub?topic=t HTTP/1.1"
        anywhere(partial(ask, NsqdHTTPClient(server.address, authorization="Bearer s3cret")))  # refused
    shown.append(caplog.text)
    text = "\n".join(shown)
    assert "/x" in text
    assert "POST" in caplog.text
    assert "s3cret" not in text
    assert "czNjcmV0" not in text
