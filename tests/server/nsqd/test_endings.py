"""However a connection ends, what was executed before has its responses: else a publisher would send it again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gevent import socket

from tests.support.certificates import client_context, write_certificate
from tests.support.daemons import Kind, Running, running_nsqd, wait_for
from tests.support.raw import Client, post, sized, topic_stats
from tests.support.upgraded import Sock, upgrade

#: What follows the commands in the same write, and the error that it has.
ENDINGS = {
    "an over-long line": (b"N" * 20_000, None),
    "an unknown command": (b"NO\n", b"E_INVALID invalid command NO"),
    "a size that is too large": (b"PUB t\n\x7f\xff\xff\xff", b"E_BAD_MESSAGE PUB message too big 2147483647 > 1048576"),
    "a cut body": (b"PUB t\n\0\0\0\x09cut", b"E_BAD_MESSAGE PUB failed to read message body"),
    "a cut line": (b"PUB t", None),
    "nothing": (b"", None),
}
#: Those after which the client sends no more.
CUT = ("a cut body", "a cut line", "nothing")


@pytest.fixture(scope="module")
def nsqd(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    cert, key = write_certificate(tmp_path_factory.mktemp("certificates"))
    with running_nsqd(kind, tls_cert=cert, tls_key=key) as running:
        yield running


def end_of_sending(client: Client) -> None:
    sock = client.sock
    while isinstance(sock, Sock):
        sock = sock.sock
    sock.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("codec", ["", "snappy", "deflate"])
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
def test_commands_that_were_executed_have_their_responses(nsqd: Running, ending: str, tls: bool, codec: str) -> None:
    bytes_of_it, error = ENDINGS[ending]
    with Client(nsqd.tcp_address) as client:
        upgrade(client, client_context() if tls else None, codec)
        client.send(b"PUB t\n", sized(b"1"), b"PUB t\n", sized(b"2"), bytes_of_it)
        if ending in CUT:
            end_of_sending(client)
        client.expect(b"OK")
        client.expect(b"OK")
        if error is not None:
            client.expect_error(error)
        client.expect_end()


def test_a_consumer_whose_topic_is_deleted_gets_what_was_buffered_for_it() -> None:
    with running_nsqd() as nsqd, Client(nsqd.tcp_address) as client:
        client.identify(output_buffer_timeout=30_000)
        client.subscribe("t", rdy=100)
        with Client(nsqd.tcp_address) as publisher:
            publisher.publish("t", b"x")
        wait_for(lambda: topic_stats(nsqd.http_address, "t")["channels"][0]["in_flight_count"] == 1)
        assert post(nsqd.http_address, "/topic/delete?topic=t").status == 200
        assert client.message().body == b"x"
        client.expect_end()


def test_a_nsqlookupd_responds_before_it_closes(lookupd: Running) -> None:
    with Client(lookupd.tcp_address, magic=b"  V1") as client:
        client.send(b"PING\nPING\n", b"N" * 20_000)
        assert [client.answer(), client.answer()] == [b"OK", b"OK"]


def test_an_error_is_logged_as_text(caplog: pytest.LogCaptureFixture) -> None:
    with running_nsqd() as nsqd, caplog.at_level("INFO", "gnsq_like.nsqd"), Client(nsqd.tcp_address) as client:
        client.send(b"NO\x1b\n")
        client.expect_fatal(b"E_INVALID invalid command NO\x1b")
    assert "): E_INVALID invalid command NO\\x1b" in caplog.text
