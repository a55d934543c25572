"""Dialling, and a socket that is read and written without waiting."""

from __future__ import annotations

import os
from collections.abc import Iterator

import gevent
import pytest
from gevent import socket

from gnsq_like.server.shared.loop_share import give_way
from gnsq_like.transport.tcp import READ_BYTES, TcpTransport
from tests.support.daemons import wait_for
from tests.support.peer import PATIENCE
from tests.support.scripts import run_script

Pair = tuple[TcpTransport, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    transport = TcpTransport(ours)
    theirs.settimeout(PATIENCE)
    yield transport, theirs
    transport.close()
    transport.close()
    theirs.close()


def test_what_there_is_to_read_is_known_without_waiting(pair: Pair) -> None:
    transport, theirs = pair
    assert transport.receive_now() is None
    assert not transport.has_input()
    theirs.send(b"x")
    assert transport.has_input()
    assert transport.receive_now() == b"x"
    theirs.close()
    assert transport.has_input()
    assert transport.receive_now() == b""


def test_a_greenlet_that_waits_is_woken_as_long_as_input_is_left_and_at_the_end(pair: Pair) -> None:
    transport, theirs = pair
    received: list[bytes | None] = []

    def read() -> None:
        while received[-1:] != [b""]:
            transport.wait()
            received.append(transport.receive_now())

    reader = gevent.spawn(read)
    theirs.send(bytes(READ_BYTES + 1))
    wait_for(lambda: len(received) == 2)
    assert (received[0], received[1]) == (bytes(READ_BYTES), b"\0")
    give_way()
    assert len(received) == 2
    theirs.send(b"x")
    wait_for(lambda: received[2:] == [b"x"])
    transport.shut()
    reader.join(PATIENCE)
    assert received[3:] == [b""]


def test_the_kernel_takes_what_it_has_room_for(pair: Pair) -> None:
    transport, theirs = pair
    sent = 0
    while count := transport.send_now(bytes(1 << 20)):
        sent += count
    assert sent > 0
    while sent:
        sent -= len(theirs.recv(1 << 20))
    assert transport.send_now(b"x") == 1
    assert theirs.recv(10) == b"x"


def test_what_is_written_to_a_peer_that_is_gone(pair: Pair) -> None:
    transport, theirs = pair
    theirs.close()
    with pytest.raises(OSError, match="Broken pipe"):
        transport.send_now(b"x")


def test_what_a_forked_child_abandons_stays_open_for_its_parent(pair: Pair) -> None:
    transport, theirs = pair
    parents = TcpTransport(socket.socket(fileno=os.dup(transport.fileno())))
    transport.abandon()
    transport.abandon()
    assert parents.send_now(b"x") == 1
    assert theirs.recv(10) == b"x"
    parents.close()


def test_a_closed_connection_ends_although_a_forked_child_has_a_copy_yet(pair: Pair) -> None:
    transport, theirs = pair
    childs = os.dup(transport.fileno())
    transport.close()
    assert theirs.recv(10) == b""
    os.close(childs)


def test_what_a_forked_child_closes_stays_open_for_its_parent() -> None:
    """The dials of its parent, for instance, whose greenlets the child ends."""
    assert run_script(
        """
        import os
        from gevent import socket
        from gnsq_like.transport.tcp import TcpTransport

        ours, theirs = socket.socketpair()
        transport = TcpTransport(ours)
        theirs.settimeout(30)
        pid = os.fork()
        if not pid:
            transport.close()
            os._exit(0)
        os.waitpid(pid, 0)
        transport.send_now(b"x")
        print(theirs.recv(10))
        transport.close()
        print(theirs.recv(10))
        theirs.close()
        """
    ) == ["b'x'", "b''"]


def test_abandoned_without_its_event_loop_its_watchers_are_left_alone(pair: Pair) -> None:
    transport, theirs = pair
    watcher = transport._sock._read_event
    parents = TcpTransport(socket.socket(fileno=os.dup(transport.fileno())))
    descriptor = transport.fileno()
    transport.abandon(loop_lives=False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert transport._sock._read_event is watcher
    assert transport.fileno() == descriptor
    assert parents.send_now(b"x") == 1
    assert theirs.recv(10) == b"x"
    os.dup2(parents.fileno(), descriptor)  # for the fixture's close
    parents.close()
