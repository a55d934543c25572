"""What is put leaves whole, in order, in as few writes as the hub's rounds allow, and nobody waits."""

from __future__ import annotations

from collections.abc import Iterable

import gevent
from gevent import socket
from gevent.event import Event
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.connection.write_buffer import WriteBuffer
from gnsq_like.transport.tcp import TcpTransport
from tests.support.daemons import wait_for


class Pipe(TcpTransport):
    """A transport that takes as many bytes at each write as it is told to, and is writable at all times."""

    def __init__(self, takes: Iterable[int] = ()) -> None:
        self._readable, writable = socket.socketpair()
        super().__init__(writable)
        self.takes = list(takes)
        self.writes: list[bytes] = []
        self.failure: BaseException | None = None

    def send_now(self, data: bytes | memoryview) -> int:
        if self.failure is not None:
            raise self.failure
        count = min(len(data), self.takes.pop(0)) if self.takes else len(data)
        if count:
            self.writes.append(bytes(data[:count]))
        return count

    def close(self) -> None:
        self._readable.close()
        super().close()


def buffer_on(pipe: Pipe, broken: list[BaseException] | None = None) -> WriteBuffer:
    return WriteBuffer(pipe, gevent.get_hub().loop, (broken if broken is not None else []).append)


def test_put_now_writes_at_once_when_nothing_waits_and_in_order_when_something_does() -> None:
    pipe = Pipe()
    write_buffer = buffer_on(pipe)
    write_buffer.put_now(b"a")
    assert pipe.writes == [b"a"]
    write_buffer.put(b"b")
    write_buffer.put_now(b"c")
    assert pipe.writes == [b"a"]
    wait_for(lambda: len(pipe.writes) == 2)
    assert pipe.writes == [b"a", b"bc"]
    write_buffer.close()
    pipe.close()


def test_it_is_idle_when_all_is_written_and_it_is_open() -> None:
    pipe = Pipe()
    write_buffer = buffer_on(pipe)
    assert write_buffer.idle
    write_buffer.put(b"ab")
    assert not write_buffer.idle
    wait_for(lambda: pipe.writes)
    assert write_buffer.idle
    write_buffer.put_now(b"c")
    assert write_buffer.idle
    write_buffer.close()
    assert not write_buffer.idle
    pipe.close()


@given(
    st.lists(st.tuples(st.sampled_from(["put", "put_now", "flush", "hub"]), st.binary(min_size=1, max_size=20))),
    st.lists(st.integers(0, 7), max_size=60),
)
def test_all_leaves_in_order_whatever_the_kernel_takes(steps: list[tuple[str, bytes]], takes: list[int]) -> None:
    pipe = Pipe(takes)
    write_buffer = buffer_on(pipe)
    expected = b""
    for step, data in steps:
        if step == "hub":
            gevent.sleep(0)
        elif step == "flush":
            write_buffer.flush()
        else:
            getattr(write_buffer, step)(data)
            expected += data
    wait_for(lambda: sum(map(len, pipe.writes)) == len(expected))
    assert b"".join(pipe.writes) == expected
    assert write_buffer.put_count == write_buffer.sent_count == len(expected)
    wait_for(lambda: write_buffer.stalled_since is None)
    write_buffer.close()
    pipe.close()


def test_what_interrupts_a_write_may_put() -> None:
    """What it puts goes after that, and nothing is lost or written twice."""

    class Interrupted(Pipe):
        def send_now(self, data: bytes | memoryview) -> int:
            if interruptions:
                interruptions.pop()()
            return super().send_now(data)

    pipe = Interrupted([1, 2])
    write_buffer = buffer_on(pipe)
    interruptions = [
        lambda: write_buffer.put(b"last"),
        write_buffer.flush,
        lambda: write_buffer.put_now(b"inner"),
    ]
    write_buffer.put_now(b"outer")
    wait_for(lambda: write_buffer.sent_count == write_buffer.put_count)
    assert b"".join(pipe.writes) == b"outerinnerlast"
    write_buffer.put_now(b"after")
    assert pipe.writes[-1] == b"after"
    interruptions.append(write_buffer.close)
    write_buffer.put_now(b"cut short")
    assert write_buffer.stalled_since is None
    pipe.close()


def test_a_large_backlog_is_not_joined_into_one_copy() -> None:
    pipe = Pipe()
    write_buffer = buffer_on(pipe)
    for _ in range(40):
        write_buffer.put(bytes(100_000))
    wait_for(lambda: write_buffer.sent_count == 4_000_000)
    assert max(map(len, pipe.writes)) <= 1_200_000
    write_buffer.close()
    pipe.close()


def test_a_failed_write_is_told_once_and_ends_writing() -> None:
    broken: list[BaseException] = []
    pipe = Pipe()
    write_buffer = buffer_on(pipe, broken)
    pipe.failure = ConnectionResetError("gone")
    write_buffer.put(b"a")
    wait_for(lambda: broken)
    write_buffer.put(b"b")
    write_buffer.put_now(b"c")
    write_buffer.flush()
    gevent.sleep(0)
    assert broken == [pipe.failure]
    assert pipe.writes == []
    pipe.close()


def test_a_write_that_fails_when_the_socket_becomes_writable_is_told_too() -> None:
    broken: list[BaseException] = []
    pipe = Pipe([0])
    write_buffer = buffer_on(pipe, broken)
    write_buffer.put_now(b"a")
    pipe.failure = BrokenPipeError("gone")
    wait_for(lambda: broken)
    pipe.close()


def test_a_peer_that_reads_nothing_shows_as_stalled_and_catches_up() -> None:
    ours, theirs = socket.socketpair()
    transport = TcpTransport(ours)
    broken: list[BaseException] = []
    write_buffer = WriteBuffer(transport, gevent.get_hub().loop, broken.append)
    data = bytes(range(256)) * 40_000
    write_buffer.put(data)
    wait_for(lambda: write_buffer.stalled_since is not None)
    assert write_buffer.sent_count < len(data)
    received = b""
    while len(received) < len(data):
        received += theirs.recv(1 << 20)
    assert received == data
    assert broken == []
    wait_for(lambda: write_buffer.stalled_since is None)
    write_buffer.close()
    theirs.close()
    transport.close()


def test_flush_tries_also_while_a_write_waits_for_the_socket() -> None:
    pipe = Pipe([1, 0, 1])
    write_buffer = buffer_on(pipe)
    write_buffer.put_now(b"abcd")
    stalled = write_buffer.stalled_since
    assert stalled is not None
    write_buffer.flush()
    assert (write_buffer.sent_count, write_buffer.stalled_since) == (1, stalled)
    write_buffer.flush()
    assert write_buffer.sent_count == 2
    assert write_buffer.stalled_since is not None
    assert write_buffer.stalled_since > stalled
    write_buffer.put(b"e")
    write_buffer.flush()
    assert pipe.writes == [b"a", b"b", b"cd", b"e"]
    assert write_buffer.stalled_since is None
    write_buffer.put_now(b"f")
    assert pipe.writes[-1] == b"f"
    write_buffer.close()
    write_buffer.flush()
    pipe.close()


def test_close_forgets_what_is_queued() -> None:
    pipe = Pipe([1])
    write_buffer = buffer_on(pipe)
    write_buffer.put_now(b"abc")
    write_buffer.close()
    write_buffer.close()
    done = Event()
    gevent.get_hub().loop.run_callback(done.set)
    assert done.wait(10)
    assert pipe.writes == [b"a"]
    pipe.close()


def test_put_never_switches() -> None:
    pipe = Pipe()
    write_buffer = buffer_on(pipe)
    ran: list[bool] = []
    greenlet = gevent.spawn(ran.append, True)
    for _ in range(100):
        write_buffer.put(b"x" * 100_000)
        write_buffer.put_now(b"y")
    assert not ran
    greenlet.join()
    write_buffer.close()
    pipe.close()
