"""What is put leaves whole, in order, in as few writes as the hub's rounds allow, and nobody waits."""

from __future__ import annotations

from collections.abc import Iterable

import gevent
from gevent import socket
from gevent.event import Event
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.connection.outbox import Outbox
from gnsq_like.transport.tcp import TcpTransport
from tests.support.daemons import wait_for


class Pipe:
    """A transport that takes as many bytes at each write as it is told to, and is writable at all times."""

    unsent = 0

    def __init__(self, takes: Iterable[int] = ()) -> None:
        self._readable, self._writable = socket.socketpair()
        self.takes = list(takes)
        self.writes: list[bytes] = []
        self.failure: BaseException | None = None

    def fileno(self) -> int:
        return int(self._writable.fileno())

    def send_now(self, data: bytes | memoryview) -> int:
        if self.failure is not None:
            raise self.failure
        count = min(len(data), self.takes.pop(0)) if self.takes else len(data)
        if count:
            self.writes.append(bytes(data[:count]))
        return count

    def close(self) -> None:
        self._readable.close()
        self._writable.close()


def outbox_on(pipe: Pipe, broken: list[BaseException] | None = None) -> Outbox:
    return Outbox(pipe, gevent.get_hub().loop, (broken if broken is not None else []).append)


def test_put_now_writes_at_once_when_nothing_waits_and_in_order_when_something_does() -> None:
    pipe = Pipe()
    outbox = outbox_on(pipe)
    outbox.put_now(b"a")
    assert pipe.writes == [b"a"]
    outbox.put(b"b")
    outbox.put_now(b"c")
    assert pipe.writes == [b"a"]
    wait_for(lambda: len(pipe.writes) == 2)
    assert pipe.writes == [b"a", b"bc"]
    outbox.close()
    pipe.close()


def test_it_is_idle_when_all_is_written_and_it_is_open() -> None:
    pipe = Pipe()
    outbox = outbox_on(pipe)
    assert outbox.idle
    outbox.put(b"ab")
    assert not outbox.idle
    wait_for(lambda: pipe.writes)
    assert outbox.idle
    outbox.put_now(b"c")
    assert outbox.idle
    outbox.close()
    assert not outbox.idle
    pipe.close()


@given(
    st.lists(st.tuples(st.sampled_from(["put", "put_now", "flush", "hub"]), st.binary(min_size=1, max_size=20))),
    st.lists(st.integers(0, 7), max_size=60),
)
def test_all_leaves_in_order_whatever_the_kernel_takes(steps: list[tuple[str, bytes]], takes: list[int]) -> None:
    pipe = Pipe(takes)
    outbox = outbox_on(pipe)
    expected = b""
    for step, data in steps:
        if step == "hub":
            gevent.sleep(0)
        elif step == "flush":
            outbox.flush()
        else:
            getattr(outbox, step)(data)
            expected += data
    wait_for(lambda: sum(map(len, pipe.writes)) == len(expected))
    assert b"".join(pipe.writes) == expected
    assert outbox.put_count == outbox.sent_count == len(expected)
    wait_for(lambda: outbox.stalled_since is None)
    outbox.close()
    pipe.close()


def test_what_interrupts_a_write_may_put() -> None:
    """What it puts goes after that, and nothing is lost or written twice."""

    class Interrupted(Pipe):
        def send_now(self, data: bytes | memoryview) -> int:
            if interruptions:
                interruptions.pop()()
            return super().send_now(data)

    pipe = Interrupted([1, 2])
    outbox = outbox_on(pipe)
    interruptions = [
        lambda: outbox.put(b"last"),
        outbox.flush,
        lambda: outbox.put_now(b"inner"),
    ]
    outbox.put_now(b"outer")
    wait_for(lambda: outbox.sent_count == outbox.put_count)
    assert b"".join(pipe.writes) == b"outerinnerlast"
    outbox.put_now(b"after")
    assert pipe.writes[-1] == b"after"
    interruptions.append(outbox.close)
    outbox.put_now(b"cut short")
    assert outbox.stalled_since is None
    pipe.close()


def test_a_large_backlog_is_not_joined_into_one_copy() -> None:
    pipe = Pipe()
    outbox = outbox_on(pipe)
    for _ in range(40):
        outbox.put(bytes(100_000))
    wait_for(lambda: outbox.sent_count == 4_000_000)
    assert max(map(len, pipe.writes)) <= 1_200_000
    outbox.close()
    pipe.close()


def test_a_failed_write_is_told_once_and_ends_writing() -> None:
    broken: list[BaseException] = []
    pipe = Pipe()
    outbox = outbox_on(pipe, broken)
    pipe.failure = ConnectionResetError("gone")
    outbox.put(b"a")
    wait_for(lambda: broken)
    outbox.put(b"b")
    outbox.put_now(b"c")
    outbox.flush()
    gevent.sleep(0)
    assert broken == [pipe.failure]
    assert pipe.writes == []
    pipe.close()


def test_a_write_that_fails_when_the_socket_becomes_writable_is_told_too() -> None:
    broken: list[BaseException] = []
    pipe = Pipe([0])
    outbox = outbox_on(pipe, broken)
    outbox.put_now(b"a")
    pipe.failure = BrokenPipeError("gone")
    wait_for(lambda: broken)
    pipe.close()


def test_a_peer_that_reads_nothing_shows_as_stalled_and_catches_up() -> None:
    ours, theirs = socket.socketpair()
    transport = TcpTransport(ours)
    broken: list[BaseException] = []
    outbox = Outbox(transport, gevent.get_hub().loop, broken.append)
    data = bytes(range(256)) * 40_000
    outbox.put(data)
    wait_for(lambda: outbox.stalled_since is not None)
    assert outbox.sent_count < len(data)
    received = b""
    while len(received) < len(data):
        received += theirs.recv(1 << 20)
    assert received == data
    assert broken == []
    wait_for(lambda: outbox.stalled_since is None)
    outbox.close()
    theirs.close()
    transport.close()


def test_flush_tries_also_while_a_write_waits_for_the_socket() -> None:
    pipe = Pipe([1, 0, 1])
    outbox = outbox_on(pipe)
    outbox.put_now(b"abcd")
    stalled = outbox.stalled_since
    assert stalled is not None
    outbox.flush()
    assert (outbox.sent_count, outbox.stalled_since) == (1, stalled)
    outbox.flush()
    assert outbox.sent_count == 2
    assert outbox.stalled_since is not None
    assert outbox.stalled_since > stalled
    outbox.put(b"e")
    outbox.flush()
    assert pipe.writes == [b"a", b"b", b"cd", b"e"]
    assert outbox.stalled_since is None
    outbox.put_now(b"f")
    assert pipe.writes[-1] == b"f"
    outbox.close()
    outbox.flush()
    pipe.close()


def test_close_forgets_what_is_queued() -> None:
    pipe = Pipe([1])
    outbox = outbox_on(pipe)
    outbox.put_now(b"abc")
    outbox.close()
    outbox.close()
    done = Event()
    gevent.get_hub().loop.run_callback(done.set)
    assert done.wait(10)
    assert pipe.writes == [b"a"]
    pipe.close()


def test_put_never_switches() -> None:
    pipe = Pipe()
    outbox = outbox_on(pipe)
    ran: list[bool] = []
    greenlet = gevent.spawn(ran.append, True)
    for _ in range(100):
        outbox.put(b"x" * 100_000)
        outbox.put_now(b"y")
    assert not ran
    greenlet.join()
    outbox.close()
    pipe.close()
