"""``gnsq-like to-http`` as a process, beside NSQ's own."""

import itertools
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest

from tests.support.certificates import write_ca
from tests.support.daemons import KINDS, Running, running_nsqd, wait_for
from tests.support.scripted_http import Asked, Peer, ScriptedServer, always, response, scripted
from tests.support.tools import (
    counts,
    fill,
    go_tool,
    numbered,
    running_tool,
    unfinished,
)

pytestmark = pytest.mark.commands

both = pytest.mark.parametrize("kind", KINDS)
OK = response()
FAST = ["--default-requeue-delay=50ms", "--max-requeue-delay=50ms", "--max-backoff-duration=100ms"]


def flags(nsqd: Running, *more: str) -> list[str]:
    return ["-topic=t", f"-nsqd-tcp-address={nsqd.tcp_address}", *more]


def wait_until_done(nsqd: Running, count: int, channel: str = "nsq_to_http") -> None:
    """Wait until the tool that runs has finished so many messages."""
    wait_for(lambda: counts(nsqd, "t", channel)["finished"] == count)


def bodies_of(server: ScriptedServer) -> list[bytes]:
    return sorted(asked.body for asked in server.asked)


@both
def test_post(kind: Any) -> None:
    bodies = [*numbered(500), b"\xff\x00\r\n"]
    with running_nsqd(kind) as nsqd, scripted(always(response(b"", "201 Created"))) as server:
        fill(nsqd, "t", bodies, "nsq_to_http")
        more = [f"-post=http://{server.address}/in?x=%20", "-header", "X-Token: a b", "-content-type=text/plain"]
        with running_tool("to-http", *flags(nsqd, *more, "-status-every=200", "-n=10")) as tool:
            wait_until_done(nsqd, len(bodies))
            tool.wait_for_line(r"\[aggregate\]: finished 200 - 99th: ")
            assert tool.end() == 0
        assert bodies_of(server) == sorted(bodies)
        asked = server.asked[0]
        assert asked.line == "POST /in?x=%20 HTTP/1.1"
        assert (asked.headers["x-token"], asked.headers["content-type"]) == ("a b", "text/plain")
        assert asked.headers["user-agent"].startswith("to-http/")
        assert server.connections <= 10


def test_get_puts_the_message_into_the_url() -> None:
    bodies = [b"a b&c=/\xff%", b"x"]
    with running_nsqd() as nsqd, scripted(always(OK)) as server:
        fill(nsqd, "t", bodies, "nsq_to_http")
        with running_tool("to-http", *flags(nsqd, f"-get=http://{server.address}/in?m=%s&n=1")) as tool:
            wait_until_done(nsqd, 2)
            assert tool.end() == 0
        lines = sorted(asked.line for asked in server.asked)
        assert lines == ["GET /in?m=a+b%26c%3D%2F%FF%25&n=1 HTTP/1.1", "GET /in?m=x&n=1 HTTP/1.1"]


def test_one_request_in_ten_fails_and_every_message_arrives() -> None:
    bodies = numbered(300)
    accepted: Counter[bytes] = Counter()
    requests = iter(range(10**9))
    lock = threading.Lock()

    def answer(asked: Asked) -> bytes:
        with lock:
            if next(requests) % 10 == 9:
                return response(b"no", "500 Internal Server Error")
            accepted[asked.body] += 1
            return OK

    with running_nsqd() as nsqd, scripted(always(answer)) as server:
        fill(nsqd, "t", bodies, "nsq_to_http")
        arguments = flags(nsqd, f"--post=http://{server.address}/", *FAST, "--backoff-multiplier=5ms", "-n5")
        with running_tool("to-http", *arguments, "--max-in-flight=5") as tool:
            wait_until_done(nsqd, len(bodies))
            tool.wait_for_line("backoff of t/nsq_to_http: level 1")
            assert "500" in tool.err
            assert "Traceback" not in tool.err
            assert tool.end() == 0
    assert accepted == dict.fromkeys(bodies, 1)


def test_all() -> None:
    with running_nsqd() as nsqd, scripted(always(OK)) as one, scripted(always(OK)) as two:
        fill(nsqd, "t", numbered(10), "nsq_to_http")
        urls = [f"--post=http://{server.address}/" for server in (one, two)]
        with running_tool("to-http", *flags(nsqd, *urls, "--mode=all")) as tool:
            wait_until_done(nsqd, 10)
            assert tool.end() == 0
        assert bodies_of(one) == bodies_of(two) == numbered(10)


def test_tls_and_credentials(tmp_path: Path) -> None:
    ca = write_ca(tmp_path)
    with running_nsqd() as nsqd, scripted(always(OK), tls=True) as server:
        fill(nsqd, "t", [b"x"], "nsq_to_http")
        url = f"--post=https://me:se%20same@{server.address}/"
        with running_tool("to-http", *flags(nsqd, url, *FAST)) as tool:
            tool.wait_for_line("certificate")
            assert tool.end() == 0
            assert "same" not in tool.err
        with running_tool("to-http", *flags(nsqd, url, f"-http-client-tls-root-ca-file={ca}")) as tool:
            wait_until_done(nsqd, 1)
            assert tool.end() == 0
        (asked,) = server.asked
        assert asked.headers["authorization"] == "Basic bWU6c2Ugc2FtZQ=="
        fill(nsqd, "t", [b"y"])
        with running_tool("to-http", *flags(nsqd, url, "-http-client-tls-insecure-skip-verify")) as tool:
            wait_until_done(nsqd, 1)
            assert tool.end() == 0


@both
def test_a_signal_in_the_middle(kind: Any) -> None:
    """Requests that run are waited for; their messages are finished, and all others stay."""
    go_on = threading.Event()
    requests = itertools.count(1)  # each request has a number of its own, whichever of the threads is first

    def script(peer: Peer) -> None:
        while peer.request():
            if next(requests) > 50:
                go_on.wait()
            peer.send(OK)

    with running_nsqd(kind) as nsqd, scripted(script) as server:
        fill(nsqd, "t", numbered(100), "nsq_to_http")
        arguments = flags(nsqd, f"-post=http://{server.address}/", "-n=5", "-max-in-flight=20")
        with running_tool("to-http", *arguments) as tool:
            wait_for(lambda: len(server.asked) == 55)
            tool.process.send_signal(signal.SIGTERM)
            # It stops taking messages, and gives back those that it has not sent.
            wait_for(lambda: counts(nsqd, "t", "nsq_to_http")["in_flight"] <= 5)
            go_on.set()
            assert tool.wait() == 0
        sent = bodies_of(server)
        assert len(set(sent)) == len(sent) == 55
        assert unfinished(nsqd, "t", "nsq_to_http") == 45


@pytest.mark.real_nsqd
@pytest.mark.parametrize(
    "more",
    [
        ["-post=http://{}/in"],
        ["-get=http://{}/in?m=%s", "-header=X-A: b"],
        ["-post=http://{}/a", "-post=http://{}/b", "-mode=round-robin", "-content-type=text/x"],
    ],
)
def test_the_same_messages_give_the_requests_of_nsq_to_http(more: list[str]) -> None:
    bodies = [*numbered(50), b"a b/c?d&e=f+g%20~-_.!*'()", "äß".encode(), b"\xff\x00"]
    made: dict[str, list[Any]] = {}
    nsq_to_http = go_tool("nsq_to_http")
    with running_nsqd("real") as nsqd:
        fill(nsqd, "t", bodies, "ours", "theirs")
        for name in ("ours", "theirs"):
            with scripted(always(OK)) as server:
                arguments = flags(nsqd, f"-channel={name}", *(each.replace("{}", server.address) for each in more))
                started = (
                    running_tool("to-http", *arguments)
                    if name == "ours"
                    else running_tool(*arguments, command=[nsq_to_http])
                )
                with started as tool:
                    wait_until_done(nsqd, len(bodies), name)
                    assert tool.end() == 0
                names = ("content-type", "x-a", "content-length")
                # Apart from each other, because which of two URLs a message goes to is chance.
                made[name] = [
                    sorted(unquote_plus(asked.line) for asked in server.asked),
                    sorted(asked.body for asked in server.asked),
                    sorted(str([asked.headers.get(each) for each in names]) for asked in server.asked),
                ]

    assert made["ours"] == made["theirs"]
