"""``gnsq-like pubsub`` as a process, spoken to by plain sockets and requests."""

import base64
import http.client
import json
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

from gnsq_like.testing import wait_until
from tests.support.commands import PATIENCE
from tests.support.daemons import Running, running_nsqd
from tests.support.tools import (
    NOBODY,
    TOOL_KINDS,
    Tool,
    counts,
    fill,
    numbered,
    run_tool,
    running_tool,
    taken,
    unfinished,
)

pytestmark = pytest.mark.commands

both = pytest.mark.parametrize("kind", TOOL_KINDS)
SUB = "/sub?topic=t&channel=c"


@contextmanager
def serving(nsqd: Running | str, *more: str) -> Iterator[tuple[Tool, str]]:
    """The tool, and its address."""
    address = nsqd if isinstance(nsqd, str) else nsqd.tcp_address
    with running_tool("pubsub", f"--nsqd-tcp-address={address}", "--http-address=127.0.0.1:0", *more) as tool:
        tool.wait_for_line("listening on .*\n")
        found = re.search(r"listening on (\S+)", tool.err)
        assert found
        yield tool, found[1]


def ask(address: str, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
    """The status and text of a response that ends."""
    with closing(http.client.HTTPConnection(address, timeout=PATIENCE)) as connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body or None, named)
        response = connection.getresponse()
        return response.status, response.read().decode()


@contextmanager
def stream(address: str, path: str = SUB, **headers: str) -> Iterator[http.client.HTTPResponse]:
    """A response that goes on until it is left."""
    with closing(http.client.HTTPConnection(address, timeout=PATIENCE)) as connection:
        connection.request("GET", path, headers=headers)
        with closing(connection.getresponse()) as response:
            yield response


def next_event(response: http.client.HTTPResponse) -> list[str]:
    """The lines of the next server-sent event, or comment, up to the empty line."""
    lines: list[str] = []
    while (line := response.readline().decode()) != "\n":
        assert line.endswith("\n"), f"the stream ended after {[*lines, line]}"
        lines.append(line.removesuffix("\n"))
    return lines


@both
def test_lines(kind: Any) -> None:
    with running_nsqd(kind) as nsqd:
        fill(nsqd, "t", numbered(100), "c")
        with serving(nsqd) as (tool, address):
            with stream(address) as response:
                assert (response.status, response.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
                assert sorted(response.readline().rstrip() for _ in range(100)) == numbered(100)
                wait_until(lambda: unfinished(nsqd, "t", "c") == 0, PATIENCE)
                status, text = ask(address, "GET", "/stats")
                assert status == 200
                assert re.fullmatch(r"Total Messages: 100\n\n\[127.0.0.1:\d+\] \[t : c\] connected: \d+s\n", text)
            wait_until(lambda: counts(nsqd, "t", "c")["clients"] == 0, PATIENCE)
            found = json.loads(ask(address, "GET", "/stats?format=json")[1])
            assert found == {"messages": 100, "clients": []}
            assert tool.end() == 0


@pytest.mark.parametrize(("path", "accept"), [(f"{SUB}&format=sse", "*/*"), (SUB, "text/event-stream")])
def test_server_sent_events(path: str, accept: str) -> None:
    with running_nsqd("process") as nsqd:
        fill(nsqd, "t", ["ä\nb".encode()], "c")
        with serving(nsqd, "--heartbeat=100ms") as (tool, address):
            with stream(address, path, Accept=accept) as response:
                assert response.headers["Content-Type"] == "text/event-stream"
                event = next_event(response)
                while event == [": heartbeat"]:  # until it has subscribed, and the message has come
                    event = next_event(response)
                assert re.fullmatch(r"id: [0-9a-f]{16}", event[0])
                assert event[1:] == ["data: ä", "data: b"]
                assert next_event(response) == [": heartbeat"]
            assert tool.end() == 0


@pytest.mark.parametrize("body", [b"\xff\x00", b"a\r\nb", b"a\rb"])
def test_a_body_that_a_server_sent_event_would_change_comes_in_base64(body: bytes) -> None:
    with running_nsqd("process") as nsqd:
        fill(nsqd, "t", [body], "c")
        with serving(nsqd) as (tool, address):
            with stream(address, f"{SUB}&format=sse") as response:
                _, kind, data = next_event(response)
                assert kind == "event: base64"
                assert base64.b64decode(data.removeprefix("data: ")) == body
            assert tool.end() == 0


def test_heartbeats_of_lines() -> None:
    with (
        running_nsqd("process") as nsqd,
        serving(nsqd, "--heartbeat=50ms") as (_, address),
        stream(address) as response,
    ):
        assert re.fullmatch(rb'\{"_heartbeat_":\d{10}\}\n', response.readline())


@both
def test_publishing(kind: Any) -> None:
    with running_nsqd(kind) as nsqd, serving(nsqd) as (tool, address):
        assert ask(address, "POST", "/pub?topic=t", b"one") == (200, "OK")
        assert taken(nsqd, "t", 1) == [b"one"]
        fill(nsqd, "t", [], "c")
        assert ask(address, "POST", "/pub?topic=t&defer=3600000", b"later")[0] == 200
        assert counts(nsqd, "t", "c")["deferred"] == 1
        for path, body, word in (
            ("/pub", b"x", "MISSING_ARG_TOPIC"),
            ("/pub?topic=%3F", b"x", "INVALID_ARG_TOPIC"),
            ("/pub?topic=t&defer=x", b"x", "INVALID_ARG_DEFER"),
            ("/pub?topic=t", b"", "body"),
        ):
            status, text = ask(address, "POST", path, body)
            assert status == 400
            assert word in text
        assert tool.end() == 0


@pytest.mark.parametrize(
    ("method", "path", "status", "word"),
    [
        ("GET", "/sub?channel=c", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/sub?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("GET", "/sub?topic=t&channel=%3F", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/sub?topic=t&channel=c", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/pub?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/", 404, "NOT_FOUND"),
    ],
)
def test_wrong_requests(method: str, path: str, status: int, word: str) -> None:
    with serving(NOBODY) as (_, address):
        assert ask(address, method, path) == (status, word)


def test_pages_of_other_origins_are_refused() -> None:
    with running_nsqd("process") as nsqd, serving(nsqd, "--allow-origin=https://app.example.com") as (_, address):
        fill(nsqd, "t", [b"x"], "c")
        assert ask(address, "GET", SUB, Origin="https://evil.example")[0] == 403
        assert ask(address, "POST", "/pub?topic=t", b"x", Origin="null")[0] == 403
        assert ask(address, "GET", SUB, Sec_Fetch_Site="cross-site")[0] == 403
        assert ask(address, "GET", SUB, Host="rebound.example:80")[0] == 403
        assert counts(nsqd, "t", "c")["message"] == 1
        assert counts(nsqd, "t", "c")["depth"] == 1
        assert ask(address, "POST", "/pub?topic=t", b"x", Origin="https://app.example.com")[0] == 200
        assert ask(address, "POST", "/pub?topic=t", b"x", Origin=f"http://{address}")[0] == 200
        assert ask(address, "POST", "/pub?topic=t", b"x", Host="localhost")[0] == 200


@both
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle(kind: Any, number: int) -> None:
    """Its client reads no further, so it is in the middle of a write; what was not written stays."""
    bodies = [body.ljust(10_000, b".") for body in numbered(2000)]
    with running_nsqd(kind) as nsqd:
        fill(nsqd, "t", bodies, "c")
        with serving(nsqd) as (tool, address), stream(address) as response:
            got = [response.readline().rstrip() for _ in range(10)]
            wait_until(lambda: counts(nsqd, "t", "c")["in_flight"] == 100, PATIENCE)
            tool.process.send_signal(number)
            assert tool.wait() == 0
            assert "Traceback" not in tool.err
            with suppress(http.client.IncompleteRead, ConnectionError):
                while line := response.readline():
                    got.append(line.rstrip())
        left = unfinished(nsqd, "t", "c")
        rest = taken(nsqd, "t", left, "c")
        assert {*rest, *got} >= set(bodies)
        assert len(bodies) - left <= len(got)


def test_a_client_that_goes_away_leaves_its_messages() -> None:
    bodies = [body.ljust(10_000, b".") for body in numbered(2000)]
    with running_nsqd("process") as nsqd:
        fill(nsqd, "t", bodies, "c")
        with serving(nsqd) as (tool, address):
            with stream(address) as response:
                got = [response.readline().rstrip() for _ in range(5)]
                wait_until(lambda: counts(nsqd, "t", "c")["in_flight"] == 100, PATIENCE)
            wait_until(lambda: counts(nsqd, "t", "c")["clients"] == 0, PATIENCE)
            assert unfinished(nsqd, "t", "c") >= 1000
            assert tool.end() == 0
        assert got


def test_nsqd_cannot_be_reached() -> None:
    with serving(NOBODY, "--timeout=200ms") as (tool, address):
        for method, path, body in (("GET", SUB, b""), ("POST", "/pub?topic=t", b"x")):
            status, text = ask(address, method, path, body)
            assert status == 503
            assert NOBODY in text
        assert tool.end() == 0


def test_an_address_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken_one:
        address = f"127.0.0.1:{taken_one.getsockname()[1]}"
        done = run_tool("pubsub", f"--nsqd-tcp-address={NOBODY}", f"--http-address={address}")
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("Error: ")
    assert "in use" in line
