"""What every HTTP client does: its arguments, what it sends, and the connections it keeps."""

from __future__ import annotations

import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gnsq_like import __version__
from gnsq_like.errors import NO_DESCRIPTORS, HTTPRequestFailed, InvalidAddress, InvalidOption
from gnsq_like.http.exchange import IDLE_SECONDS
from tests.support.certificates import client_context, stranger, write_ca
from tests.support.hub import Place, in_plain_thread
from tests.support.patient import LookupdClient, NsqdHTTPClient
from tests.support.scripted_http import Asked, Peer, always, response, scripted
from tests.support.scripts import run_script


def test_without_descriptors_the_first_request_fails_as_any_other() -> None:
    """It imports requests."""
    lines = run_script(
        """
        import os
        from gnsq_like import NsqdHTTPClient
        from gnsq_like.errors import HTTPRequestFailed
        from tests.support.processes import no_descriptors

        def ping():
            try:
                client.ping()
            except HTTPRequestFailed as exc:
                print(exc.reason)

        with NsqdHTTPClient("127.0.0.1:1") as client:
            with no_descriptors(os.getpid()):
                ping()
            ping()
        """
    )
    assert lines == [f"Too many open files: {NO_DESCRIPTORS} (ulimit -n)", "Connection refused"]


def test_an_extension_module_that_cannot_be_loaded_fails_the_request_only(tmp_path: Path) -> None:
    """As without descriptors, where that is an ImportError: here a part of requests is an empty file."""
    (tmp_path / "requests.so").touch()
    lines = run_script(
        """
        import sys
        from gnsq_like import NsqdHTTPClient
        from gnsq_like.errors import HTTPRequestFailed

        sys.path.insert(0, sys.argv[1])
        with NsqdHTTPClient("127.0.0.1:1") as client:
            for _ in range(2):
                try:
                    client.ping()
                except HTTPRequestFailed as exc:
                    print(exc.reason)
                sys.path[:] = [each for each in sys.path if each != sys.argv[1]]
        """,
        str(tmp_path),
    )
    assert lines == [f"{tmp_path}/requests.so: file too short", "Connection refused"]


# --- arguments ---


def test_a_client_shows_where_it_asks_and_nothing_else() -> None:
    client = NsqdHTTPClient("https://me:secret@host:4152/nsq/", authorization="Bearer secret")
    assert repr(client) == "NsqdHTTPClient('https://host:4152/nsq')"
    assert client.url == "https://host:4152/nsq"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("timeout", "5"),
        ("timeout", None),
        ("timeout", True),
        ("connect_timeout", 0),
        ("connect_timeout", "2"),
        ("max_answer_bytes", 0),
        ("max_answer_bytes", 1.5),
        ("max_answer_bytes", True),
        ("verify", 3),
        ("verify", None),
        ("cert", 3),
        ("cert", ["cert", "key"]),
        ("cert", ("cert", None)),
    ],
)
def test_wrong_options_are_refused(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        LookupdClient("host:4161", **{option: value})
    assert caught.value.option == option


def test_a_wrong_address_is_refused() -> None:
    with pytest.raises(InvalidAddress):
        LookupdClient("host")


@pytest.mark.parametrize("secret", ["s3cret\n", " s3cret", "s3cret\r\nX: y", "s3crét", 5, b"s3cret"])
def test_a_wrong_authorization_is_refused_without_showing_it(secret: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        NsqdHTTPClient("host:4151", authorization=secret)
    assert "s3cr" not in f"{caught.value!s} {caught.value!r}"
    with pytest.raises(InvalidOption) as caught:
        NsqdHTTPClient("host:4151", authorization=lambda: secret).ping()
    assert "s3cr" not in f"{caught.value!s} {caught.value!r}"


# --- what is sent ---


def test_the_headers_of_a_request(anywhere: Place) -> None:
    with scripted(always(response())) as server:
        client = NsqdHTTPClient(server.address)
        anywhere(client.ping)
        anywhere(lambda: client.publish("t", b"\x00\xff"))
        anywhere(lambda: client.create_topic("t"))
        client.close()
    ping, publish, create = server.asked
    assert ping.headers["accept"] == "application/vnd.nsq; version=1.0"
    assert ping.headers["accept-encoding"] == "identity"
    assert ping.headers["user-agent"] == f"gnsq_like/{__version__}"
    assert ping.headers["host"] == server.address
    assert "authorization" not in ping.headers
    assert "content-length" not in ping.headers
    assert publish.headers["content-length"] == "2"
    assert publish.headers["content-type"] == "application/octet-stream"
    assert publish.body == b"\x00\xff"
    assert create.headers["content-length"] == "0"


def test_an_authorization_header(anywhere: Place) -> None:
    tokens = iter(["Bearer 1", "Bearer 2", None])
    callers = []

    def token() -> str | None:
        callers.append(threading.get_ident())
        return next(tokens)

    with scripted(always(response())) as server:
        with NsqdHTTPClient(server.address, authorization="Bearer x") as client:
            anywhere(client.ping)
        with NsqdHTTPClient(server.address, authorization=token) as client:
            assert callers == []
            asker = anywhere(lambda: (client.ping(), client.ping(), client.ping(), threading.get_ident()))[-1]
        with NsqdHTTPClient(f"me:secret@{server.address}", authorization="Bearer x") as client:
            anywhere(client.ping)
    sent = [asked.headers.get("authorization") for asked in server.asked]
    assert sent == ["Bearer x", "Bearer 1", "Bearer 2", None, "Basic bWU6c2VjcmV0"]
    assert set(callers) == {asker}


def test_what_a_function_for_the_authorization_raises_is_raised() -> None:
    def token() -> str:
        raise KeyError("no token")

    with pytest.raises(KeyError):
        NsqdHTTPClient("127.0.0.1:1", authorization=token).ping()


def test_a_path_before_the_api(anywhere: Place) -> None:
    answer = response('{"topics": []}')
    with scripted(always(answer)) as server, LookupdClient(f"http://{server.address}/nsq/a%20b/") as client:
        assert anywhere(client.topics) == []
    assert server.asked[0].line == "GET /nsq/a%20b/topics HTTP/1.1"


def test_names_are_encoded_in_the_query(anywhere: Place) -> None:
    with scripted(always(response('{"channels": []}'))) as server, LookupdClient(server.address) as client:
        anywhere(lambda: client.channels("t#ephemeral"))
    assert server.asked[0].line == "GET /channels?topic=t%23ephemeral HTTP/1.1"


def test_ipv6(anywhere: Place) -> None:
    try:
        running = scripted(always(response()), host="::1")
        server = running.__enter__()
    except OSError:
        pytest.skip("no IPv6 here")
    try:
        assert server.address.startswith("[::1]:")
        with NsqdHTTPClient(server.address) as client:
            assert anywhere(client.ping) == "OK"
        assert server.asked[0].headers["host"] == server.address
    finally:
        running.__exit__(None, None, None)


def test_a_name_with_an_address_that_is_refused(anywhere: Place) -> None:
    # localhost may be ::1 first, where nothing listens: the next address is tried.
    with scripted(always(response())) as server, NsqdHTTPClient(f"localhost:{server.port}") as client:
        assert anywhere(client.ping) == "OK"


def test_https(anywhere: Place, tmp_path: Path) -> None:
    with scripted(always(response()), tls=True) as server:
        address = f"https://localhost:{server.port}"
        with NsqdHTTPClient(address, verify=write_ca(tmp_path)) as client:

            def ask() -> None:
                assert client.ping() == "OK"
                client.publish("t", bytes(200_000))

            anywhere(ask)
        assert server.connections == 1
        assert len(server.asked[1].body) == 200_000


def test_https_with_an_ssl_context(anywhere: Place) -> None:
    def ask(context: ssl.SSLContext) -> str:
        with NsqdHTTPClient(f"https://localhost:{server.port}", verify=context) as client:
            return client.ping()

    with scripted(always(response()), tls=True) as server:
        assert anywhere(lambda: ask(client_context())) == "OK"
        with pytest.raises(HTTPRequestFailed, match="the TLS certificate is not accepted"):
            anywhere(lambda: ask(client_context(stranger())))
        # The client adds nothing to the authorities that the context trusts.
        context = client_context(stranger())
        trusted = context.get_ca_certs()
        with pytest.raises(HTTPRequestFailed):
            anywhere(lambda: ask(context))
        assert context.get_ca_certs() == trusted


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_https_without_verification() -> None:
    with (
        scripted(always(response()), tls=True) as server,
        NsqdHTTPClient(f"https://{server.address}", verify=False) as client,
    ):
        assert in_plain_thread(client.ping) == "OK"


def test_nothing_is_taken_from_the_environment(
    anywhere: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with scripted(always(response())) as server, NsqdHTTPClient(server.address) as client:
        assert anywhere(client.ping) == "OK"
    assert "authorization" not in server.asked[0].headers


def test_cookies_are_not_kept(anywhere: Place) -> None:
    answer = response(b"OK", "200 OK", "Set-Cookie: a=b")
    with scripted(always(answer)) as server, NsqdHTTPClient(server.address) as client:
        anywhere(lambda: (client.ping(), client.ping()))
    assert all("cookie" not in asked.headers for asked in server.asked)


# --- connections ---


def test_requests_one_after_the_other_share_a_connection(anywhere: Place) -> None:
    with scripted(always(response())) as server, NsqdHTTPClient(server.address) as client:
        anywhere(lambda: [client.ping() for _ in range(10)])
        assert server.connections == 1


def test_an_error_answer_keeps_the_connection(anywhere: Place) -> None:
    def ask() -> None:
        for _ in range(3):
            with pytest.raises(Exception, match="TOPIC_NOT_FOUND"):
                client.delete_topic("t")

    with scripted(always(response('{"message":"TOPIC_NOT_FOUND"}', "404 Not Found"))) as server:
        with NsqdHTTPClient(server.address) as client:
            anywhere(ask)
        assert server.connections == 1


def test_close_and_leaving_the_context_close_what_was_kept(anywhere: Place) -> None:
    ended = threading.Event()

    def script(peer: Peer) -> None:
        always(response())(peer)
        ended.set()

    def ask() -> None:
        client.ping()
        client.close()
        assert ended.wait(60)
        client.close()
        ended.clear()
        with client:
            client.ping()  # opens its own again
            assert not ended.is_set()
        assert ended.wait(60)

    with scripted(script) as server:
        client = NsqdHTTPClient(server.address)
        anywhere(ask)
        assert server.connections == 2


def test_a_connection_in_use_at_close_is_not_kept() -> None:
    asked, ended, closed = threading.Event(), threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        asked.set()
        closed.wait(60)
        peer.send(response())
        if peer.request() is None:
            ended.set()

    with scripted(script) as server, ThreadPoolExecutor(1) as executor:
        client = NsqdHTTPClient(server.address)
        asking = executor.submit(client.ping)
        assert asked.wait(60)
        client.close()
        closed.set()
        assert asking.result(60) == "OK"
        assert ended.wait(60)


def test_a_kept_connection_that_the_server_closed_is_replaced(anywhere: Place) -> None:
    gone = threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(response())
        peer.close()
        gone.set()

    def ask() -> str:
        client.ping()
        assert gone.wait(60)
        return client.ping()

    with scripted(script) as server, NsqdHTTPClient(server.address) as client:
        assert anywhere(ask) == "OK"
        assert server.connections == 2


@pytest.mark.parametrize(("idle_for", "connections"), [(0.5 * IDLE_SECONDS, 1), (IDLE_SECONDS, 2)])
def test_an_old_connection_is_not_used(anywhere: Place, idle_for: float, connections: int) -> None:
    def ask() -> None:
        client.ping()
        [session] = client._sessions.values()
        session._last_used -= idle_for
        client.ping()

    with scripted(always(response())) as server, NsqdHTTPClient(server.address) as client:
        anywhere(ask)
        assert server.connections == connections


def test_many_threads_share_a_client() -> None:
    def answer(asked: Asked) -> bytes:
        return response(asked.line.split("topic=")[1].split(" ")[0].join(['{"channels": ["', '"]}']))

    def ask(number: int) -> None:
        for turn in range(20):
            assert client.channels(f"t{number}.{turn}") == [f"t{number}.{turn}"]

    with scripted(always(answer)) as server, LookupdClient(server.address) as client:
        with ThreadPoolExecutor(12) as executor:
            list(executor.map(ask, range(12)))
        assert len(server.asked) == 240
        assert server.connections <= 12 * 20
        before = server.connections
        in_plain_thread(lambda: ask(0))
        assert server.connections <= before + 1


def test_a_request_that_fails_inside_an_exception_handler(anywhere: Place) -> None:
    def ask() -> None:
        try:
            raise OSError(5, "the caller's own trouble")
        except OSError:
            client.ping()

    client = NsqdHTTPClient("127.0.0.1:1")
    with pytest.raises(HTTPRequestFailed) as caught:
        anywhere(ask)
    assert caught.value.reason == "Connection refused"


def test_the_time_counts_from_the_call() -> None:
    with scripted(lambda peer: peer.hang()) as server:
        client = NsqdHTTPClient(server.address, timeout=0.3)
        start = time.monotonic()
        with pytest.raises(HTTPRequestFailed, match=r"no answer within 0\.3 s"):
            in_plain_thread(client.ping)
        assert time.monotonic() - start > 0.25


def test_a_body_may_take_longer_than_connecting(anywhere: Place) -> None:
    def script(peer: Peer) -> None:
        for _ in range(2):
            peer.server.over.wait(0.5)  # the client's write waits, once the network's buffers are full
            peer.request()
            peer.send(response())

    with (
        scripted(script) as server,
        NsqdHTTPClient(server.address, timeout=60, connect_timeout=0.2) as client,
    ):

        def publish() -> None:
            for _ in range(2):
                client.publish("t", bytes(16 * 1024 * 1024))

        anywhere(publish)
        assert server.connections == 1
