"""Dialling, and a socket that is read and written without waiting."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import gevent
import pytest
from gevent import socket

from gnsq_like.addresses import parse_address
from gnsq_like.errors import ConnectionFailed
from gnsq_like.server.shared.turn import give_way
from gnsq_like.transport.tcp import READ_BYTES, TcpTransport, dial
from tests.support.daemons import wait_for
from tests.support.nsqds import nowhere
from tests.support.peer import PATIENCE, scripted_nsqd
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


@pytest.fixture
def no_resolver() -> Iterator[None]:
    """All threads that could ask DNS are busy."""
    pool, free = gevent.get_hub().threadpool, threading.Event()
    busy = [pool.spawn(free.wait) for _ in range(pool.maxsize)]
    yield
    free.set()
    gevent.joinall(busy, timeout=PATIENCE)


def test_a_timeout_of_the_caller_passes_through_the_resolver(no_resolver: None) -> None:
    with pytest.raises(gevent.Timeout) as caught, gevent.Timeout(0.05) as theirs:
        dial(parse_address("localhost:1"), PATIENCE)
    assert caught.value is theirs


def test_a_resolver_that_does_not_answer(no_resolver: None) -> None:
    with pytest.raises(ConnectionFailed, match="not resolved within"):
        dial(parse_address("localhost:1"), 0.05)


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


def test_a_wait_for_bytes_ends_with_its_timeout(pair: Pair) -> None:
    transport, theirs = pair
    with pytest.raises(TimeoutError):
        transport.receive(0.01)
    reader = gevent.spawn(transport.receive, PATIENCE)
    gevent.sleep(0)
    theirs.send(b"x")
    assert reader.get(timeout=PATIENCE) == b"x"


def test_input_is_reported_as_long_as_some_is_left_and_somebody_watches(pair: Pair) -> None:
    transport, theirs = pair
    received: list[bytes | None] = []
    transport.watch(lambda: received.append(transport.receive_now()))
    theirs.send(bytes(READ_BYTES + 1))
    wait_for(lambda: len(received) == 2)
    assert (received[0], received[1]) == (bytes(READ_BYTES), b"\0")
    transport.unwatch()
    transport.unwatch()
    theirs.send(b"x")
    give_way()
    assert len(received) == 2
    transport.watch(lambda: received.append(transport.receive_now()))
    wait_for(lambda: received[2:] == [b"x"])
    theirs.close()
    wait_for(lambda: received[3:4] == [b""])


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


def test_a_connection_that_is_closed_ends_although_a_forked_child_has_not_closed_its_copy_yet(pair: Pair) -> None:
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
