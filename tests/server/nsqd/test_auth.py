"""AUTH, and what it allows, to the letter (docs/internals 1.4); the auth server is scripted."""

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from gevent import socket
from gevent.event import Event
from gevent.pywsgi import WSGIServer
from gevent.ssl import SSLContext

from gnsq_like.server.nsqd.auth_servers import MAX_ANSWER_BYTES, Applicant
from tests.support.certificates import certificate, client_context, stranger, write_ca, write_certificate
from tests.support.daemons import LATER_KINDS, Kind, Running, running_nsqd, wait_for
from tests.support.raw import RESPONSE, Client, get, mpub_body, post, sized, stats
from tests.support.upgraded import upgrade

ALL = [{"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}]
FAILED = b"E_AUTH_FAILED AUTH failed"


class AuthServer:
    """Answers /auth with ``answer``, and keeps what it was asked; while ``answering`` is clear, it waits.

    :param context: for https
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.answer: Any = {}
        self.status = "200 OK"
        self.answering = Event()
        self.answering.set()
        self.asked: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.accept: list[str] = []
        self.authorization: list[str | None] = []
        #: Those of POSTs, with their types.
        self.bodies: list[tuple[str, bytes]] = []
        tls = {"ssl_context": context} if context is not None else {}
        self._server = WSGIServer(("127.0.0.1", 0), self._serve, log=None, error_log=None, **tls)
        self._server.start()
        self.address = f"127.0.0.1:{self._server.server_port}"

    def _serve(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        if environ["REQUEST_METHOD"] == "POST":
            self.bodies.append((environ["CONTENT_TYPE"], environ["wsgi.input"].read()))
        query = parse_qs(environ["QUERY_STRING"], keep_blank_values=True, encoding="latin-1")
        self.asked.append({name: value for name, (value,) in query.items()})
        self.paths.append(environ["PATH_INFO"])
        self.accept.append(environ["HTTP_ACCEPT"])
        self.authorization.append(environ.get("HTTP_AUTHORIZATION"))
        self.answering.wait(10)
        start_response(self.status, [("Content-Type", "application/json")])
        if self.status == "204 No Content":
            return []
        return [self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()]

    def allow(self, *authorizations: dict[str, Any], ttl: int = 3600, **others: Any) -> None:
        self.answer = {"ttl": ttl, "identity": "bob", "identity_url": "http://example.net/?a=1&b=2"}
        self.answer |= {"authorizations": list(authorizations), **others}

    def stop(self) -> None:
        self.answering.set()
        self._server.stop(0)


@pytest.fixture(scope="module")
def running_auth() -> Iterator[AuthServer]:
    server = AuthServer()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def running(kind: Kind, running_auth: AuthServer) -> Iterator[Running]:
    with running_nsqd(kind, auth_http_addresses=[running_auth.address], http_client_request_timeout=3.0) as nsqd:
        yield nsqd


@pytest.fixture
def auth(running_auth: AuthServer) -> Iterator[AuthServer]:
    """The auth server of ``running``; allows everything."""
    running_auth.status = "200 OK"
    running_auth.allow(*ALL)
    asked = running_auth
    for record in (asked.asked, asked.paths, asked.accept, asked.authorization, asked.bodies):
        record.clear()
    yield running_auth
    running_auth.answering.set()


@pytest.fixture
def client(running: Running, auth: AuthServer) -> Iterator[Client]:
    with Client(running.tcp_address) as client:
        yield client


def authorize(client: Client, secret: bytes = b"s3cret") -> dict[str, Any]:
    client.send(b"AUTH\n", sized(secret))
    frame_type, payload = client.frame()
    assert frame_type == RESPONSE, payload
    answer: dict[str, Any] = json.loads(payload)
    return answer


@pytest.mark.parametrize("kind", LATER_KINDS)
def test_a_post_has_everything_in_its_body(kind: Kind, auth: AuthServer) -> None:
    options: dict[str, Any] = {"auth_http_addresses": [auth.address], "auth_http_request_method": "post"}
    with running_nsqd(kind, **options) as nsqd, Client(nsqd.tcp_address) as client:
        authorize(client, 's<&é"'.encode())
    body = {"common_name": [""], "remote_ip": ["127.0.0.1"], "secret": ['s<&é"'], "tls": ["false"]}
    assert [(content_type, json.loads(text)) for content_type, text in auth.bodies] == [("application/json", body)]
    assert (auth.paths, auth.asked, auth.accept) == (["/auth"], [{}], ["application/vnd.nsq; version=1.0"])


# -- the command -----------------------------------------------------------------------------------------


def test_the_answer_to_identify_tells_that_auth_is_required(client: Client) -> None:
    assert upgrade(client)["auth_required"] is True


def test_success_is_answered_to_the_letter(client: Client, auth: AuthServer) -> None:
    client.send(b"AUTH\n", sized(b"s3cret"))
    _, answer = client.frame()
    url = b"http://example.net/?a=1&b=2"  # Go escapes the &
    assert answer.replace(b"\\u0026", b"&") == b'{"identity":"bob","identity_url":"%b","permission_count":1}' % url
    assert auth.asked == [{"common_name": "", "remote_ip": "127.0.0.1", "secret": "s3cret", "tls": "false"}]
    assert (auth.paths, auth.accept) == (["/auth"], ["application/vnd.nsq; version=1.0"])


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        ([b"AUTH x\n"], b"E_INVALID AUTH invalid number of parameters"),
        ([b"AUTH \n"], b"E_INVALID AUTH invalid number of parameters"),
        ([b"AUTH\n\x7f\xff\xff\xff"], b"E_BAD_BODY AUTH body too big 2147483647 > 5242880"),
        ([b"AUTH\n", sized(b"")], b"E_BAD_BODY AUTH invalid body size 0"),
        ([b"AUTH\n\xff\xff\xff\xff"], b"E_BAD_BODY AUTH invalid body size -1"),
        ([b"AUTH\n", sized(b"a"), b"AUTH\n", sized(b"a")], b"E_INVALID AUTH already set"),
        ([b"AUTH\n", sized(b"a"), b"SUB t c\nAUTH\n"], b"E_INVALID cannot AUTH in current state"),
        ([b"PUB t\n", sized(b"a")], b"E_AUTH_FIRST AUTH required before PUB"),
        ([b"DPUB t 1\n", sized(b"a")], b"E_AUTH_FIRST AUTH required before DPUB"),
        ([b"MPUB t\n"], b"E_AUTH_FIRST AUTH required before MPUB"),
        ([b"SUB t c\n"], b"E_AUTH_FIRST AUTH required before SUB"),
        ([b"PUB t\n", sized(b"")], b"E_BAD_MESSAGE PUB invalid message body size 0"),
        ([b"SUB t *\n"], b'E_BAD_CHANNEL SUB channel name "*" is not valid'),
    ],
)
def test_errors_are_fatal_and_in_order(client: Client, sent: list[bytes], error: bytes) -> None:
    client.send(*sent)
    while (frame := client.frame())[0] == RESPONSE:
        pass
    assert frame[1] == error
    client.expect_end()


@pytest.mark.parametrize(
    ("sent", "error"),
    [(b"AUTH\n\x00", b"AUTH failed to read body size"), (b"AUTH\n\x00\x00\x00\x02a", b"AUTH failed to read body")],
)
def test_a_body_that_breaks_off(client: Client, sent: bytes, error: bytes) -> None:
    client.send(sent)
    client.sock.shutdown(socket.SHUT_WR)
    client.expect_fatal(b"E_BAD_BODY " + error)


def test_where_no_auth_server_is_configured_auth_is_disabled(kind: Kind) -> None:
    with running_nsqd(kind) as nsqd, Client(nsqd.tcp_address) as client:
        client.send(b"AUTH\n", sized(b"a"))
        client.expect_fatal(b"E_AUTH_DISABLED AUTH disabled")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no JSON",
        b"[]",
        {},
        {"ttl": 0, "authorizations": ALL},
        {"ttl": -1, "authorizations": ALL},
        b'{"ttl": 1.0, "authorizations": []}',
        {"ttl": "60", "authorizations": ALL},
        {"ttl": 60, "identity": 1, "authorizations": ALL},
        {"ttl": 60, "authorizations": {}},
        {"ttl": 60, "authorizations": [{**ALL[0], "permissions": ["admin"]}]},
        {"ttl": 60, "authorizations": [{**ALL[0], "topic": "("}]},
        {"ttl": 60, "authorizations": [{**ALL[0], "topic": "a(?=b)"}]},
        {"ttl": 60, "authorizations": [{**ALL[0], "topic": r"(a)\1"}]},
        {"ttl": 60, "authorizations": [*ALL, {**ALL[0], "channels": [".*", "["]}]},
        {"ttl": 60, "authorizations": [{**ALL[0], "channels": ".*"}]},
    ],
)
def test_35_an_unusable_answer_is_a_failure_without_detail(client: Client, auth: AuthServer, answer: Any) -> None:
    auth.answer = answer
    client.send(b"AUTH\n", sized(b"a"))
    client.expect_fatal(FAILED)


@pytest.mark.parametrize(
    "status",
    ["401 Unauthorized", "403 Forbidden", "404 Not Found", "500 Oops", "202 Accepted", "204 No Content"],
)
def test_35_any_status_but_200_is_a_failure(client: Client, auth: AuthServer, status: str) -> None:
    auth.status = status
    client.send(b"AUTH\n", sized(b"a"))
    client.expect_fatal(FAILED)


def test_35_an_answer_that_comes_too_late_is_a_failure(client: Client, auth: AuthServer) -> None:
    auth.answering.clear()
    client.send(b"AUTH\n", sized(b"a"))
    client.expect_fatal(FAILED)
    assert len(auth.asked) == 1


def test_35_a_slow_auth_server_holds_up_no_other_client(kind: Kind, auth: AuthServer) -> None:
    with (
        running_nsqd(kind, auth_http_addresses=[auth.address]) as nsqd,
        Client(nsqd.tcp_address) as client,
        Client(nsqd.tcp_address) as other,
    ):
        auth.answering.clear()
        client.send(b"AUTH\n", sized(b"a"))
        wait_for(lambda: auth.asked)
        other.send(b"NOP\nNO_SUCH\n")
        other.expect_fatal(b"E_INVALID invalid command NO_SUCH")
        auth.answering.set()
        # Had the other waited for the end of this request, it would have failed.
        assert client.frame()[0] == RESPONSE


def test_many_clients_are_authorized_at_the_same_time(kind: Kind, auth: AuthServer) -> None:
    with running_nsqd(kind, auth_http_addresses=[auth.address]) as nsqd, ExitStack() as stack:
        clients = [stack.enter_context(Client(nsqd.tcp_address)) for _ in range(20)]
        auth.answering.clear()
        for client in clients:
            client.send(b"AUTH\n", sized(b"a"))
        wait_for(lambda: len(auth.asked) == len(clients))
        auth.answering.set()
        assert [client.frame()[0] for client in clients] == [RESPONSE] * len(clients)


@pytest.mark.parametrize("authorizations", [[], None])
def test_35_an_empty_list_is_told_apart(client: Client, auth: AuthServer, authorizations: Any) -> None:
    auth.allow(authorizations=authorizations)
    client.send(b"AUTH\n", sized(b"a"))
    client.expect_fatal(b"E_UNAUTHORIZED AUTH no authorizations found")


def test_keys_of_the_answer_in_any_case_and_null(client: Client, auth: AuthServer) -> None:
    auth.answer = b'{"TTL":60,"Identity":null,"authorizations":[{"Topic":"t","CHANNELS":[".*"],"permissions":null}]}'
    assert authorize(client) == {"identity": "", "identity_url": "", "permission_count": 1}


def test_any_secret_reaches_the_auth_server(client: Client, auth: AuthServer) -> None:
    secret = bytes(range(256))
    authorize(client, secret)
    assert auth.asked[0]["secret"].encode("latin-1") == secret


def test_the_secret_is_in_no_log(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    addresses = ["127.0.0.1:1", "http://[broken", "ftp://127.0.0.1/x"]
    with running_nsqd(kind, auth_http_addresses=addresses) as nsqd, Client(nsqd.tcp_address) as client:
        client.send(b"AUTH\n", sized(b"s3cret"))
        client.expect_fatal(FAILED)
    if kind == "ours":
        assert "failed to auth against 127.0.0.1:1 - " in caplog.text
    assert "s3cret" not in caplog.text


def test_the_secret_of_a_request_that_succeeds_is_in_no_log(auth: AuthServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with running_nsqd("ours", auth_http_addresses=[auth.address]) as nsqd, Client(nsqd.tcp_address) as client:
        authorize(client, b"s3cret")
        auth.status = "301 Moved Permanently"
        with Client(nsqd.tcp_address) as other:
            other.send(b"AUTH\n", sized(b"s3cret"))
            other.expect_fatal(FAILED)
    assert [asked["secret"] for asked in auth.asked] == ["s3cret", "s3cret"]
    assert '"GET /auth HTTP/1.1" 200' in caplog.text  # urllib3's
    assert "s3cret" not in caplog.text


# -- what is allowed -------------------------------------------------------------------------------------


def entry(topic: str, channels: list[str], *permissions: str) -> dict[str, Any]:
    return {"topic": topic, "channels": channels, "permissions": list(permissions)}


PUB = b"PUB %b\n" + sized(b"a")
SUB = b"SUB %b %b\n"


@pytest.mark.parametrize(
    ("given", "command", "error"),
    [
        (entry("^t$", [".*"], "publish"), PUB % b"t", b""),
        (entry("^t$", [".*"], "publish"), PUB % b"xt", b'PUB on "xt" ""'),
        (entry("^t", [".*"], "publish"), PUB % b"xt", b'PUB on "xt" ""'),
        (entry("t", [".*"], "publish"), PUB % b"xtx", b""),
        (entry("", [""], "publish"), PUB % b"any", b""),
        # Statement 34: publishing needs a channel expression that matches the empty name.
        (entry("t", [], "publish"), PUB % b"t", b'PUB on "t" ""'),
        (entry("t", ["^bar$"], "publish"), PUB % b"t", b'PUB on "t" ""'),
        (entry("t", ["^bar$", "^$"], "publish"), PUB % b"t", b""),
        (entry("t", [".*"], "subscribe"), PUB % b"t", b'PUB on "t" ""'),
        (entry("t", [".*"], "subscribe"), b"DPUB t 1\n" + sized(b"a"), b'DPUB on "t" ""'),
        (entry("t", [".*"], "subscribe"), b"MPUB t\n", b'MPUB on "t" ""'),
        (entry("t", [".*"], "publish"), b"MPUB t\n" + mpub_body(b"a"), b""),
        (entry("t", [".*"], "publish"), b"DPUB t 1\n" + sized(b"a"), b""),
        (entry("t", [".*"], "publish"), SUB % (b"t", b"c"), b'SUB on "t" "c"'),
        (entry("t", ["c"], "subscribe"), SUB % (b"t", b"c"), b""),
        (entry("t", ["^c$"], "subscribe"), SUB % (b"t", b"cc"), b'SUB on "t" "cc"'),
        (entry("t", ["^c$"], "subscribe"), SUB % (b"t", b"c#ephemeral"), b'SUB on "t" "c#ephemeral"'),
        (entry("t", [], "subscribe"), SUB % (b"t", b"c"), b'SUB on "t" "c"'),
        (entry(r"^t\z", [r"(?i)^C\z"], "subscribe"), SUB % (b"t", b"c"), b""),
        (entry("^[[a-z]$", [".*"], "publish"), PUB % b"t", b""),
    ],
)
def test_34_55_what_the_expressions_allow(
    client: Client, auth: AuthServer, given: dict[str, Any], command: bytes, error: bytes
) -> None:
    auth.allow(given)
    authorize(client)
    client.send(command)
    if error:
        client.expect_fatal(b"E_UNAUTHORIZED AUTH failed for " + error)
    else:
        client.expect(b"OK")


def test_the_first_entry_that_matches_is_enough(client: Client, auth: AuthServer) -> None:
    auth.allow(entry("^a$", [".*"], "publish"), entry("^b$", ["^c$"], "subscribe"))
    assert authorize(client)["permission_count"] == 2
    client.send(PUB % b"a")
    client.expect(b"OK")
    client.send(SUB % (b"b", b"c"))
    client.expect(b"OK")


def test_a_refused_mpub_makes_no_topic(running: Running, client: Client, auth: AuthServer) -> None:
    auth.allow(entry("x", [".*"], "publish"))
    authorize(client)
    client.send(b"MPUB refused\n", mpub_body(b"a"))
    client.expect_fatal(b'E_UNAUTHORIZED AUTH failed for MPUB on "refused" ""')
    assert stats(running.http_address, "topic=refused")["topics"] is None


def test_36_an_expired_answer_is_asked_for_again_and_consumers_are_not_cut_off(
    running: Running, client: Client, auth: AuthServer
) -> None:
    def publish() -> int:
        client.send(PUB % b"t36")
        client.expect(b"OK")
        return len(auth.asked)

    auth.allow(*ALL, ttl=1)
    with Client(running.tcp_address) as consumer:
        authorize(consumer)
        consumer.subscribe("t36", rdy=1)
        authorize(client)
        auth.allow(entry("t36", [".*"], "publish"), ttl=3600)
        wait_for(lambda: publish() == 3)
        assert auth.asked[2] == auth.asked[0]
        assert [publish(), publish()] == [3, 3]
        assert consumer.message().body == b"a"
        consumer.send(b"RDY 2\n")
        assert consumer.message().body == b"a"
        auth.status = "500 Oops"
        consumer.send(PUB % b"t36")
        consumer.expect_fatal(FAILED)


def test_stats_tell_who_it_is(running: Running, client: Client, auth: AuthServer) -> None:
    auth.allow(*ALL, identity_url="")
    authorize(client)
    client.send(PUB % b"tstats")
    client.expect(b"OK")
    (shown,) = stats(running.http_address, "topic=tstats")["producers"]
    assert (shown["authed"], shown["auth_identity"]) == (True, "bob")
    assert "auth_identity_url" not in shown


def test_http_is_not_subject_to_auth(running: Running, auth: AuthServer) -> None:
    assert post(running.http_address, "/pub?topic=thttp", b"a").status == 200
    assert auth.asked == []


def test_a_client_is_not_cut_off_for_the_time_the_auth_server_takes(kind: Kind, auth: AuthServer) -> None:
    auth.answering.clear()
    patient = {"auth_http_addresses": [auth.address], "http_client_request_timeout": 60.0}
    with running_nsqd(kind, **patient) as nsqd, Client(nsqd.tcp_address) as client:
        client.identify(heartbeat_interval=1000)  # cut off after two of them without a command
        client.send(b"AUTH\n", sized(b"a"))
        assert [client.frame(heartbeats=True)[1] for _ in range(3)] == [b"_heartbeat_"] * 3
        auth.answering.set()
        assert json.loads(client.frame()[1])["identity"] == "bob"


# -- the servers -----------------------------------------------------------------------------------------


def server_context() -> ssl.SSLContext:
    context: ssl.SSLContext = SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate().configure_cert(context)
    return context


def test_several_servers_are_tried_in_turn(kind: Kind, auth: AuthServer) -> None:
    broken = AuthServer()
    broken.status = "503 Unavailable"
    with running_nsqd(kind, auth_http_addresses=[broken.address, "127.0.0.1:1", auth.address]) as nsqd:
        for _ in range(6):
            with Client(nsqd.tcp_address) as client:
                authorize(client)
    broken.stop()
    assert len(auth.asked) == 6


@pytest.mark.parametrize("path", ["/my/path", "/my/path/"])
def test_55_a_url_keeps_its_path(kind: Kind, auth: AuthServer, path: str) -> None:
    url = f"http://{auth.address}{path}"
    with running_nsqd(kind, auth_http_addresses=[url]) as nsqd, Client(nsqd.tcp_address) as client:
        authorize(client)
    assert auth.paths == [path]


def test_credentials_in_a_url_are_sent_and_not_logged(
    kind: Kind, auth: AuthServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"http://me:passw0rd@{auth.address}/auth"
    with running_nsqd(kind, auth_http_addresses=[url]) as nsqd, Client(nsqd.tcp_address) as client:
        authorize(client)
        auth.status = "500 Oops"
        with Client(nsqd.tcp_address) as other:
            other.send(b"AUTH\n", sized(b"a"))
            other.expect_fatal(FAILED)
    assert auth.authorization == ["Basic bWU6cGFzc3cwcmQ="] * 2
    assert "passw0rd" not in caplog.text


def test_an_answer_that_points_to_https_is_followed_once(kind: Kind, auth: AuthServer, tmp_path: Path) -> None:
    secure = AuthServer(server_context())
    secure.allow(*ALL)
    auth.status = "403 Forbidden"
    auth.answer = {"message": "TLS_REQUIRED", "https_port": int(secure.address.rpartition(":")[2])}
    for ca, asked in ((None, 1), (stranger(), 0)):
        options = {"auth_http_addresses": [auth.address], "tls_root_ca_file": write_ca(tmp_path, ca)}
        secure.asked.clear()
        with running_nsqd(kind, **options) as nsqd, Client(nsqd.tcp_address) as client:
            client.send(b"AUTH\n", sized(b"s3cret"))
            assert client.frame()[0] == (RESPONSE if asked else 1)
        assert len(secure.asked) == asked
    # A second redirection is not followed.
    secure.status, secure.answer = auth.status, auth.answer
    secure.asked.clear()
    options = {"auth_http_addresses": [auth.address], "tls_root_ca_file": write_ca(tmp_path)}
    with running_nsqd(kind, **options) as nsqd, Client(nsqd.tcp_address) as client:
        client.send(b"AUTH\n", sized(b"s3cret"))
        client.expect_fatal(FAILED)
    assert len(secure.asked) == 1
    secure.stop()


def test_an_answer_of_more_than_a_mebibyte_is_none(auth: AuthServer) -> None:
    whole = json.dumps(auth.answer).encode()
    with running_nsqd("ours", auth_http_addresses=[auth.address]) as nsqd:
        for size in (MAX_ANSWER_BYTES, MAX_ANSWER_BYTES + 1):
            auth.answer = whole.rjust(size)
            with Client(nsqd.tcp_address) as client:
                if size > MAX_ANSWER_BYTES:
                    client.send(b"AUTH\n", sized(b"s3cret"))
                    client.expect_fatal(FAILED)
                else:
                    authorize(client)


def test_tls_and_the_name_in_the_clients_certificate_are_told(kind: Kind, auth: AuthServer, tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    context = client_context()
    certificate("client.example").configure_cert(context)
    for policy, name in (("require-verify", "client.example"), ("", "")):
        auth.asked.clear()
        options: dict[str, Any] = {"tls_cert": cert, "tls_key": key, "tls_root_ca_file": write_ca(tmp_path)}
        options |= {"tls_client_auth_policy": policy, "auth_http_addresses": [auth.address]}
        with running_nsqd(kind, **options) as nsqd, Client(nsqd.tcp_address) as client:
            upgrade(client, context)
            authorize(client)
        assert auth.asked == [{"common_name": name, "remote_ip": "127.0.0.1", "secret": "s3cret", "tls": "true"}]


def test_over_a_unix_socket_there_is_no_remote_ip(auth: AuthServer, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/nsqd.sock"
    with running_nsqd("ours", tcp_address=address, auth_http_addresses=[auth.address]), Client(address) as client:
        authorize(client)
    assert auth.asked[0]["remote_ip"] == ""


def test_a_ping_needs_no_auth(running: Running) -> None:
    assert get(running.http_address, "/ping").body == b"OK"


def test_an_applicants_secret_is_not_shown() -> None:
    applicant = Applicant("name", "127.0.0.1", b"open sesame", tls=True)
    assert "open" not in repr(applicant)
    assert "secret=open+sesame" in applicant.query()
