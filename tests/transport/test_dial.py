"""Dialling: names, their addresses, and addresses that do not answer."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest
from gevent import socket

from gnsq_like.addresses import parse_address
from gnsq_like.errors import ConnectionFailed
from gnsq_like.transport.dial import dial
from gnsq_like.transport.tcp import TcpTransport
from tests.support.commands import needs_proc
from tests.support.daemons import wait_for
from tests.support.nsqds import nowhere
from tests.support.peer import PATIENCE, connecting, full_listener, scripted_nsqd
from tests.support.processes import no_descriptors
from tests.support.scripts import run_script


def test_every_address_of_a_name_is_tried() -> None:
    with scripted_nsqd("127.0.0.1") as server:  # where localhost is ::1 as well, nothing listens there
        transport = dial(parse_address(server.address.replace("127.0.0.1", "localhost")), PATIENCE)
        assert server.accept().sock.getpeername() == transport._sock.getsockname()
        transport.close()


def test_nothing_listens() -> None:
    with pytest.raises(ConnectionFailed, match="refused"):
        dial(parse_address(nowhere()), PATIENCE)


def test_no_descriptors_are_left() -> None:
    address = parse_address(nowhere())
    with no_descriptors(os.getpid()), pytest.raises(ConnectionFailed, match="Too many open files"):
        dial(address, PATIENCE)


def test_no_time_is_left() -> None:
    with scripted_nsqd() as server, pytest.raises(ConnectionFailed, match="the time to connect is over"):
        dial(parse_address(server.address), 0.0)


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(ConnectionFailed, match="resolved"):
        dial(parse_address("no-such-host.invalid:4150"), PATIENCE)


@pytest.mark.parametrize("host", ["foo..bar", "x" * 64 + ".example"])
def test_a_name_that_cannot_be_written_in_dns(host: str) -> None:
    with pytest.raises(ConnectionFailed, match="cannot be resolved") as caught:
        dial(parse_address(f"{host}:4150"), PATIENCE)
    assert isinstance(caught.value.__cause__, UnicodeError)


def test_a_resolver_that_can_start_no_thread() -> None:
    """As at the interpreter's exit; here no thread is to be had because each would need too much memory."""
    caught: list[Exception] = []

    def work() -> None:
        before = threading.stack_size(1 << 46)
        try:
            dial(parse_address("localhost:1"), PATIENCE)
        except Exception as exc:
            caught.append(exc)
        finally:
            threading.stack_size(before)
            gevent.get_hub().destroy(destroy_loop=True)

    thread = threading.Thread(target=work)  # so that its hub has no thread yet that resolves
    thread.start()
    thread.join(PATIENCE)
    [error] = caught
    assert isinstance(error, ConnectionFailed)
    assert isinstance(error.__cause__, RuntimeError)


#: A program in which lookups of a name with "silent" in it are answered only when it ends. The names are looked up by
#: Python's own function, so that is what does not answer.
SILENT = """
import socket, threading
answer, real, asked = threading.Event(), socket.getaddrinfo, []

def getaddrinfo(host, *rest):
    if "silent" in host and rest[-1] != socket.AI_NUMERICHOST:
        asked.append(host)
        answer.wait(60)
        return []
    return real(host, *rest)

socket.getaddrinfo = getaddrinfo

import gevent
from gnsq_like.addresses import parse_address
from gnsq_like.errors import ConnectionFailed
from gnsq_like.transport.dial import dial
from tests.support.daemons import wait_for
from tests.support.nsqds import nowhere
from tests.support.peer import scripted_nsqd

def failure(address, timeout=60):
    try:
        dial(parse_address(address), timeout)
    except ConnectionFailed as exc:
        return exc.reason
"""


def test_names_that_are_not_resolved_hold_up_no_other_and_are_looked_up_once() -> None:
    lines = run_script(
        SILENT
        + """
silent = [gevent.spawn(failure, f"silent{number // 2}.example:1") for number in range(60)]
wait_for(lambda: len(asked) == 30)
with scripted_nsqd() as server:
    dial(parse_address("localhost:" + server.address.rpartition(":")[2]), 60).close()
print(failure("silent0.example:1", 0.05))
print(any(each.dead for each in silent), len(asked))
more = [gevent.spawn(failure, f"more-silent{number}.example:1") for number in range(2)]
wait_for(lambda: len(asked) == 32)
print(failure("localhost:1"))
try:
    with gevent.Timeout(0.05) as theirs:
        dial(parse_address("silent0.example:1"), 60)
except gevent.Timeout as exc:
    print(exc is theirs)
answer.set()
gevent.joinall(silent + more)
print({each.value for each in silent + more})
print("refused" in failure(nowhere().replace("127.0.0.1", "localhost")))
"""
    )
    assert lines == [
        "its name was not resolved: not within 0.05 s",
        "False 30",
        "its name was not resolved: 32 other lookups have had no answer yet; is the DNS server down?",
        "True",
        "{'its name resolves to no address'}",
        "True",
    ]


class Names:
    """In the place of gevent's resolver: one name, with these addresses."""

    def __init__(self, *hosts: str) -> None:
        self._hosts = hosts

    def getaddrinfo(self, _host: str, port: int, *_rest: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in self._hosts]

    def close(self) -> None:
        pass


def dialled(port: int, timeout: float, *hosts: str) -> TcpTransport:
    hub = gevent.get_hub()
    before, hub.resolver = hub.resolver, Names(*hosts)
    try:
        return dial(parse_address(f"several.example:{port}"), timeout)
    finally:
        hub.resolver = before


@contextmanager
def swallowed_and_not() -> Iterator[tuple[int, socket.socket]]:
    """A port at which 127.0.0.1 answers no SYN and 127.0.0.2 listens."""
    with full_listener() as address:
        port = int(address.rpartition(":")[2])
        with socket.create_server(("127.0.0.2", port)) as listener:
            yield port, listener


@pytest.mark.parametrize(
    "hosts",
    [
        ["127.0.0.2", "127.0.0.1"],
        ["127.0.0.1", "127.0.0.2"],
        ["127.0.0.1", "127.0.0.1", "127.0.0.2"],
        ["127.0.0.3", "127.0.0.1", "127.0.0.3", "127.0.0.2"],
    ],
)
@needs_proc
def test_an_address_that_swallows_packets_delays_the_next_for_a_moment(hosts: list[str]) -> None:
    with swallowed_and_not() as (port, listener):
        transport = dialled(port, PATIENCE, *hosts)
        accepted, peer = listener.accept()
        assert peer == transport._sock.getsockname()
        wait_for(lambda: connecting(f":{port}") == 1)  # the full listener's own
        accepted.close()
        transport.close()


@needs_proc
def test_a_dial_that_is_killed_leaves_no_socket() -> None:
    with full_listener() as address:
        port = int(address.rpartition(":")[2])
        dialling = gevent.spawn(dialled, port, PATIENCE, "127.0.0.1", "127.0.0.3", "127.0.0.1")
        wait_for(lambda: connecting(f":{port}") == 3)
        dialling.kill(timeout=PATIENCE)
        assert isinstance(dialling.value, gevent.GreenletExit)
        wait_for(lambda: connecting(f":{port}") == 1)


@needs_proc
def test_the_error_names_each_address() -> None:
    with full_listener() as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(ConnectionFailed) as caught:
            dialled(port, 0.6, "127.0.0.1", "127.0.0.3")
        assert caught.value.reason == (f"127.0.0.1:{port}: no answer in time; 127.0.0.3:{port}: Connection refused")
        wait_for(lambda: connecting(f":{port}") == 1)
