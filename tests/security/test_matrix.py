"""TLS, codecs and AUTH, asked for in every way, of an nsqd that grants, refuses, or requires them.

Every pair of values occurs; the cells where all is granted publish and consume through the same options, and
nsqd's own statistics say what the connection is.
"""

from __future__ import annotations

import itertools
import random
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent import socket
from gevent.event import Event
from gevent.server import StreamServer

from gnsq_like import Message, Producer, Reader
from gnsq_like.addresses import parse_address
from gnsq_like.errors import ConnectionFailed, NegotiationFailed, NotSent, NsqdError, PublishRefused, TLSError
from gnsq_like.http.nsqd import ClientStats
from gnsq_like.testing import FaultProxy
from gnsq_like.wire.negotiated import Authorized
from tests.support.auth_server import running_auth_server
from tests.support.certificates import client_context, stranger, write_ca, write_certificate
from tests.support.daemons import KINDS, Kind, Running, running_nsqd, wait_for
from tests.support.patient import NsqdHTTPClient

# -- a relay that hands on every byte in a write of its own, so that whatever is read is cut everywhere


@contextmanager
def dripping(address: str) -> Iterator[str]:
    """Between here and ``address``; gives the relay's own address."""
    target = parse_address(address)

    def drip(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                for at in range(len(data)):
                    sink.sendall(data[at : at + 1])
                    gevent.sleep(0)  # the other side reads it before the next one comes
            sink.shutdown(socket.SHUT_WR)

    def handle(client: socket.socket, _address: object) -> None:
        with socket.create_connection((target.host, target.port)) as nsqd:
            for sock in (client, nsqd):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            gevent.joinall([gevent.spawn(drip, client, nsqd), gevent.spawn(drip, nsqd, client)])

    server = StreamServer(("127.0.0.1", 0), handle)
    server.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.stop(timeout=0.1)


BODIES = [
    b"x",
    b"the same over and over " * 9000,
    random.Random(1).randbytes(150_000),
    *(b"message %d" % each for each in range(50)),
]
_topics = itertools.count()


def new_topic() -> str:
    return f"t{next(_topics)}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("certificates")
    cert, key = write_certificate(directory)
    return {"ca": write_ca(directory), "cert": cert, "key": key}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture(scope="module")
def nsqds(kind: Kind, files: dict[str, str]) -> Iterator[dict[str, Running]]:
    """By what they ask for; all of them grant everything."""
    grants = {"tls_cert": files["cert"], "tls_key": files["key"], "max_deflate_level": 9}
    with ExitStack() as stack:
        auth = stack.enter_context(running_auth_server(good="bob"))
        yield {
            "nothing": stack.enter_context(running_nsqd(kind, **grants)),
            "auth": stack.enter_context(running_nsqd(kind, **grants, auth_http_addresses=(auth.address,))),
        }


def round_trip(
    nsqd: Running, address: str = "", bodies: Sequence[bytes] = BODIES, **options: Any
) -> tuple[ClientStats, list[Authorized]]:
    """Publish and consume; what nsqd says of the consumer's connection, and what both hooks on_auth were told."""
    address = address or nsqd.tcp_address
    topic = new_topic()
    seen: list[bytes] = []
    told: list[Authorized] = []
    options["on_auth"] = lambda _, authorized: told.append(authorized)

    def handler(message: Message) -> None:
        seen.append(message.body)

    with (
        Producer(address, own_thread=False, **options) as producer,
        Reader(topic, "c", handler, nsqd_tcp_addresses=address, max_in_flight=20, **options),
    ):
        producer.multi_publish(topic, bodies[:3])
        for body in bodies[3:]:
            producer.publish_async(topic, body)
        wait_for(lambda: len(seen) == len(bodies))
        stats = NsqdHTTPClient(nsqd.http_address).stats(topic=topic)
        [client] = stats["topics"][0]["channels"][0]["clients"] or []
    assert sorted(seen) == sorted(bodies)
    return client, told


def refusals(nsqd: Running, **options: Any) -> list[ConnectionFailed]:
    """What a Reader's run() raises and a Producer's on_error hears, each told once, and no message gone anywhere."""
    told: list[Any] = []
    reader = Reader(
        new_topic(),
        "c",
        print,
        nsqd_tcp_addresses=nsqd.tcp_address,
        on_error=lambda *each: told.append(each),
        **options,
    )
    with pytest.raises(ConnectionFailed) as caught:
        reader.run()
    assert [error for _, error in told] == [caught.value]
    heard: list[Any] = []
    producer = Producer(nsqd.tcp_address, own_thread=False, on_error=lambda *each: heard.append(each), **options)
    producer.publish_async(new_topic(), b"x")
    wait_for(lambda: heard)
    with pytest.raises(NotSent) as unsent:
        producer.publish(new_topic(), b"x", timeout=0.05)
    producer.close(timeout=0)
    (_, error), *_ = heard  # there may have been time for another try
    assert str(error) in str(unsent.value)
    for each in (error, caught.value):
        assert nsqd.tcp_address in str(each)
    return [caught.value, error]


def test_nothing_but_the_wire_is_different_without_anything(nsqds: dict[str, Running]) -> None:
    client, told = round_trip(nsqds["nothing"])
    assert (client["tls"], client["snappy"], client["deflate"]) == (False, False, False)
    assert told == []


CODECS: list[dict[str, Any]] = [{}, {"snappy": True}, *({"deflate": True, "deflate_level": n} for n in range(1, 10))]


@pytest.mark.parametrize(
    ("number", "codec"), list(enumerate(CODECS)), ids=["-".join(map(str, codec.values())) or "none" for codec in CODECS]
)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_what_is_granted(
    nsqds: dict[str, Running], files: dict[str, str], tls: bool, codec: dict[str, Any], number: int
) -> None:
    # Required or preferred, with AUTH or without: by turns, each with each codec and with and without TLS.
    options: dict[str, Any]
    options = {name: "prefer" if value is True and (number + tls) % 2 else value for name, value in codec.items()}
    if tls:
        options |= {"tls_v1": True if number % 2 else "prefer", "tls_root_ca_file": files["ca"]}
    asks = "auth" if (number // 2 + tls) % 2 else "nothing"
    if asks == "auth":
        options["auth_secret"] = "good" if number % 3 else lambda: "good"
    client, told = round_trip(nsqds[asks], **options)
    assert (client["tls"], client["snappy"], client["deflate"]) == (tls, "snappy" in codec, "deflate" in codec)
    if tls:
        assert client["tls_version"] == "TLS1.3"
    assert client.get("auth_identity", "") == ("bob" if asks == "auth" else "")
    assert told == [Authorized("bob", "http://people.example/bob", 1)] * (2 if asks == "auth" else 0)


ASKED: list[dict[str, Any]] = [
    {"snappy": True},
    {"deflate": True},
    {"tls_v1": True},
    {"tls_v1": True, "snappy": "prefer"},
    {"tls_v1": "prefer", "deflate": True},
]


def test_what_is_refused_is_an_error_unless_it_is_preferred(kind: Kind) -> None:
    with running_nsqd(kind, snappy=False, deflate=False) as nsqd:
        for options in ASKED:
            [required] = [name for name, value in options.items() if value is True]
            prefer: dict[str, Any] = dict.fromkeys(options, "prefer")
            for error in refusals(nsqd, **options):
                assert isinstance(error.__cause__, NegotiationFailed)
                assert error.__cause__.feature == required
                assert f'{required}="prefer"' in str(error)
            client, _ = round_trip(nsqd, **prefer)
            assert (client["tls"], client["snappy"], client["deflate"]) == (False, False, False)


def test_tls_that_nsqd_requires(kind: Kind, files: dict[str, str]) -> None:
    with running_nsqd(kind, tls_cert=files["cert"], tls_key=files["key"], tls_required="tcp-https") as nsqd:
        reader = Reader(new_topic(), "c", print, nsqd_tcp_addresses=nsqd.tcp_address)
        with pytest.raises(ConnectionFailed, match=r"\(TLS required\); set tls_v1=True"):
            reader.run()
        with (
            Producer(nsqd.tcp_address, own_thread=False, timeout=60) as producer,
            pytest.raises(PublishRefused, match=r"\(TLS required\); set tls_v1=True"),
        ):
            producer.publish(new_topic(), b"x")
        client, _ = round_trip(nsqd, tls_v1="prefer", tls_root_ca_file=files["ca"], snappy=True)
        assert (client["tls"], client["snappy"]) == (True, True)


def test_a_certificate_that_nsqd_requires(kind: Kind, files: dict[str, str]) -> None:
    required = {"tls_client_auth_policy": "require-verify", "tls_root_ca_file": files["ca"]}
    with running_nsqd(kind, tls_cert=files["cert"], tls_key=files["key"], **required, tls_required="tcp-https") as nsqd:
        for error in refusals(nsqd, tls_v1=True, tls_root_ca_file=files["ca"]):
            assert isinstance(error.__cause__, TLSError)
            assert error.__cause__.kind == "refused"
            assert "tls_cert=" in str(error)
        mine: dict[str, Any] = {"tls_root_ca_file": files["ca"], "tls_cert": files["cert"], "tls_key": files["key"]}
        client, _ = round_trip(nsqd, tls_v1=True, **mine, deflate=True)
        assert (client["tls"], client["deflate"]) == (True, True)


def test_a_certificate_that_is_wrong_is_refused_and_the_error_says_how(
    kind: Kind, files: dict[str, str], tmp_path: Path
) -> None:
    stranger_file = write_ca(tmp_path, stranger())
    with running_nsqd(kind, tls_cert=files["cert"], tls_key=files["key"]) as nsqd:
        for options, kind_of_fault, says in (
            ({"tls_root_ca_file": stranger_file}, "unknown_ca", "issuer is unknown"),
            ({}, "unknown_ca", "tls_root_ca_file="),
            ({"tls_root_ca_file": files["ca"], "server_hostname": "nsqd.example"}, "wrong_hostname", "nsqd.example"),
            (
                {"tls_root_ca_file": files["ca"], "server_hostname": lambda _: "x.example"},
                "wrong_hostname",
                "x.example",
            ),
        ):
            for error in refusals(nsqd, tls_v1="prefer", **options):
                assert isinstance(error.__cause__, TLSError)
                assert error.__cause__.kind == kind_of_fault
                assert says in str(error)
        client, _ = round_trip(nsqd, tls_v1=True, verify=False)
        assert client["tls"]
    for names, expired, kind_of_fault in ((("nsqd.example",), False, "wrong_hostname"), ((), True, "expired")):
        cert, key = write_certificate(tmp_path, *names, expired=expired)
        with running_nsqd(kind, tls_cert=cert, tls_key=key) as nsqd:
            for error in refusals(nsqd, tls_v1=True, tls_root_ca_file=files["ca"]):
                assert isinstance(error.__cause__, TLSError)
                assert error.__cause__.kind == kind_of_fault
            if names:
                client, _ = round_trip(nsqd, tls_v1=True, tls_root_ca_file=files["ca"], server_hostname=names[0])
                assert client["tls"]


def test_a_context_of_ones_own(nsqds: dict[str, Running]) -> None:
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    client, _ = round_trip(nsqds["nothing"], tls_v1=True, ssl_context=context)
    assert client["tls_version"] == "TLS1.2"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"auth_secret": "wrong"}, "E_AUTH_FAILED"),
        ({"auth_secret": lambda: "wrong"}, "E_AUTH_FAILED"),
        ({}, "auth_secret="),
        ({"auth_secret": lambda: None}, "returned NoneType"),
        ({"auth_secret": lambda: ""}, "must not be empty"),
        ({"auth_secret": lambda: "wrong\udce9"}, "UTF-8"),
        ({"auth_secret": lambda: 1 / 0}, "raised ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"tls_v1": True, "verify": False, "snappy": True}], ids=["plain", "tls-snappy"])
def test_a_secret_that_is_wrong_or_missing(
    nsqds: dict[str, Running], options: dict[str, Any], says: str, more: dict[str, Any]
) -> None:
    for error in refusals(nsqds["auth"], **options, **more):
        assert isinstance(error.__cause__, NsqdError | NegotiationFailed)
        assert says in str(error)
        assert "wrong" not in str(error) + repr(error)


def test_a_reader_outlives_an_auth_server_that_is_away(kind: Kind) -> None:
    with (
        running_auth_server(good="bob") as auth,
        running_nsqd(kind, auth_http_addresses=(auth.address,)) as nsqd,
        FaultProxy(nsqd.tcp_address) as proxy,
    ):
        topic, seen, told = new_topic(), [], []
        NsqdHTTPClient(nsqd.http_address).publish(topic, b"x")
        with Reader(
            topic,
            "c",
            lambda message: seen.append(message.body),
            nsqd_tcp_addresses=proxy.address,
            auth_secret="good",
            on_error=lambda _, error: told.append(str(error)),
        ):
            wait_for(lambda: seen == [b"x"])
            auth.identities.clear()
            proxy.cut()
            wait_for(lambda: any("E_AUTH_FAILED" in each for each in told))
            auth.identities["good"] = "bob"
            NsqdHTTPClient(nsqd.http_address).publish(topic, b"y")
            wait_for(lambda: seen == [b"x", b"y"])


def test_a_secret_is_not_told_to_those_who_do_not_ask(nsqds: dict[str, Running]) -> None:
    def unasked() -> str:
        raise AssertionError("nobody asked")

    _, told = round_trip(nsqds["nothing"], auth_secret=unasked)
    assert told == []


@pytest.mark.parametrize("allows_nothing", [False, True], ids=["403", "allows-nothing"])
def test_a_publish_after_its_secret_expired_goes_with_a_fresh_one(kind: Kind, allows_nothing: bool) -> None:
    with running_auth_server(first="alice") as auth, running_nsqd(kind, auth_http_addresses=(auth.address,)) as nsqd:
        auth.ttl = 1
        auth.allows_nothing = allows_nothing
        secrets = iter(["first", "second"])
        told: list[str] = []
        topic = new_topic()
        with Producer(
            nsqd.tcp_address,
            own_thread=False,
            auth_secret=lambda: next(secrets),
            on_auth=lambda _, authorized: told.append(authorized.identity),
        ) as producer:
            producer.publish(topic, b"0")
            auth.identities = {"second": "bob"}
            count = 1
            while len(told) < 2:  # every publish succeeds: the one that meets the refusal is sent again
                producer.publish(topic, b"%d" % count)
                count += 1
            assert producer.stats()["retried"] == 1
        assert told == ["alice", "bob"]
        assert set(auth.asked) == {"first", "second"}
        [stats] = NsqdHTTPClient(nsqd.http_address).stats(topic=topic)["topics"]
        assert stats["message_count"] == count


def test_what_was_never_allowed_is_refused_though_the_secret_might_be_stale(kind: Kind) -> None:
    with running_auth_server(same="alice") as auth, running_nsqd(kind, auth_http_addresses=(auth.address,)) as nsqd:
        auth.topics = "^open$"
        calls: list[str] = []

        def fresh() -> str:
            calls.append("same")
            return "same"

        with Producer(nsqd.tcp_address, own_thread=False, auth_secret=fresh) as producer:
            producer.publish("open", b"x")
            authorized_by = time.monotonic()
            # The least for which an auth server's answer holds: then it might be stale.
            wait_for(lambda: time.monotonic() - authorized_by > 1.1)
            with pytest.raises(PublishRefused, match='E_UNAUTHORIZED AUTH failed for PUB on "closed"'):
                producer.publish("closed", b"x")
            # Once on the old connection, where it might have been for that, and once on a new one.
            assert len(calls) == 2
        with Producer(nsqd.tcp_address, own_thread=False, auth_secret="same") as producer:
            producer.publish("open", b"x")
            with pytest.raises(PublishRefused):
                producer.publish("closed", b"x")
            assert producer.stats()["retried"] == 0


def test_a_timeout_in_the_users_callable_is_one_failed_try(nsqds: dict[str, Running]) -> None:
    tries = 0

    def slow_at_first() -> str:
        nonlocal tries
        tries += 1
        if tries in (1, 3):  # the Producer's and the Reader's first
            with gevent.Timeout(0.01):
                Event().wait()
        return "good"

    heard: list[Any] = []
    round_trip(
        nsqds["auth"],
        bodies=[b"a", b"b", b"c", b"d"],
        auth_secret=slow_at_first,
        on_error=lambda *each: heard.append(each),
    )
    assert tries == 4
    assert ["unexpected: <Timeout" in str(error) for _, error in heard] == [True, True]


def test_the_log_says_once_that_a_secret_goes_in_the_clear_and_never_the_secret(
    nsqds: dict[str, Running], files: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        round_trip(nsqds["auth"], tls_v1=True, tls_root_ca_file=files["ca"], auth_secret="good")
        assert "in the clear" not in caplog.text
        with dripping(nsqds["auth"].tcp_address) as address:  # nobody went there before
            round_trip(nsqds["auth"], address, [b"x"], auth_secret="good")
    assert caplog.text.count("in the clear") == 1
    assert "good" not in caplog.text
