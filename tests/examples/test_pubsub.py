"""examples/pubsub.py as a process: a topic as an HTTP stream."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import running_nsqd, running_nsqlookupd, wait_for
from tests.support.patient import LookupdClient, NsqdHTTPClient
from tests.support.web import ROOT, Server, running

pytestmark = pytest.mark.commands

#: Far more than the kernel holds for a client that does not read.
LARGE, COUNT = bytes(1_000_000), 40
CHANNEL = "/sub?topic=clicks&channel=archive"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Server, NsqdHTTPClient]]:
    with (
        running_nsqlookupd("process") as lookupd,
        running_nsqd("process", lookupd_tcp_addresses=[lookupd.tcp_address]) as nsqd,
        NsqdHTTPClient(nsqd.http_address) as http,
        LookupdClient(lookupd.http_address) as lookup,
    ):
        http.create_topic("clicks")
        http.create_channel("clicks", "archive")
        wait_for(lambda: lookup.lookup("clicks", missing_ok=True).producers, "the topic is known")
        command = [str(ROOT / "examples" / "pubsub.py"), lookupd.http_address, "0"]
        with running(command, tmp_path, r"Listening on http://127\.0\.0\.1:(\d+)/sub") as server:
            yield server, http


@contextmanager
def client_of(server: Server, target: str) -> Iterator[Any]:
    """A request, and what its answer is read from."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        with sock.makefile("rb") as answer:
            yield answer


def status_of(answer: Any) -> bytes:
    status: bytes = answer.readline()
    while answer.readline().strip():
        pass
    return status.strip()


def channel_of(http: NsqdHTTPClient) -> Any:
    [channel] = http.stats("clicks", "archive")["topics"][0]["channels"]
    return channel


def test_each_message_is_a_line(served: tuple[Server, NsqdHTTPClient]) -> None:
    server, http = served
    http.multi_publish("clicks", [b"one", b"two"])
    with client_of(server, CHANNEL) as answer:
        assert status_of(answer) == b"HTTP/1.1 200 OK"
        assert {answer.readline() for _ in range(2)} == {b"one\n", b"two\n"}
        wait_for(lambda: not channel_of(http)["in_flight_count"], "both are finished")
    assert channel_of(http)["depth"] == 0


def test_without_a_channel_it_is_what_is_published_from_now_on(served: tuple[Server, NsqdHTTPClient]) -> None:
    server, http = served
    http.publish("clicks", b"before")
    with client_of(server, "/sub?topic=clicks") as answer:
        status_of(answer)
        wait_for(lambda: len(http.stats("clicks")["topics"][0]["channels"]) == 2, "it has subscribed")
        http.publish("clicks", b"after")
        assert answer.readline() == b"after\n"


def test_a_slow_client_holds_its_messages_and_one_that_leaves_gives_them_back(
    served: tuple[Server, NsqdHTTPClient],
) -> None:
    server, http = served
    for _ in range(COUNT):
        http.publish("clicks", LARGE)
    with client_of(server, CHANNEL) as slow:
        assert status_of(slow) == b"HTTP/1.1 200 OK"
        wait_for(lambda: channel_of(http)["in_flight_count"] == 10, "it holds what it may")
        assert channel_of(http)["depth"] > 0
    wait_for(lambda: not channel_of(http)["client_count"], "it has left")
    channel = channel_of(http)
    assert channel["in_flight_count"] == 0
    left = channel["depth"] + channel["deferred_count"]
    with client_of(server, CHANNEL) as fast:
        status_of(fast)
        assert [len(fast.readline()) for _ in range(left)] == [len(LARGE) + 1] * left


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/", b"HTTP/1.1 404 Not Found"),
        ("/sub", b"HTTP/1.1 404 Not Found"),
        ("/sub?topic=a%20name", b"HTTP/1.1 400 Bad Request"),
    ],
)
def test_a_request_that_names_no_topic(served: tuple[Server, NsqdHTTPClient], target: str, status: bytes) -> None:
    with client_of(served[0], target) as answer:
        assert status_of(answer) == status
