"""The publishers that bench.py compares, each as a function that publishes for a while and returns how much.

``PUBLISHERS[name](address, at_once, seconds)`` publishes bodies of 100 bytes to one nsqd and returns a ``Done``. The
topic is ephemeral, so nsqd drops messages beyond its memory and the disk is not measured.

The "bare" ones are the minimum with gevent and a socket, without deadlines and without errors: the upper bounds.
Clients other than gnsq_like run in a Python of their own; nothing is imported before it is used.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

TOPIC = "bench#ephemeral"
BODY = b"x" * 100
#: Messages of one MPUB.
MPUB = 100
#: Publishes between two looks at the clock.
_PIECE = 50
_OK = b"\0\0\0\6\0\0\0\0OK"
_PUB = b"PUB %b\n%b%b" % (TOPIC.encode(), struct.pack(">i", len(BODY)), BODY)


class Done(NamedTuple):
    """What a run has done: messages, seconds, and seconds of CPU in the client's process."""

    messages: int
    seconds: float
    cpu: float


class Clock:
    """Begins when made; ``done`` after ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._cpu = time.process_time()
        self._started = time.monotonic()
        self._end = self._started + seconds

    @property
    def done(self) -> bool:
        return time.monotonic() >= self._end

    def stop(self, count: int) -> Done:
        return Done(count, time.monotonic() - self._started, time.process_time() - self._cpu)


def mpub_command() -> bytes:
    body = struct.pack(">i", MPUB) + (struct.pack(">i", len(BODY)) + BODY) * MPUB
    return b"MPUB %b\n%b%b" % (TOPIC.encode(), struct.pack(">i", len(body)), body)


# -- how they are called --------------------------------------------------------------------------------


def alone(publish: Callable[[], object], seconds: float, each: int = 1) -> Done:
    """One caller, one publish after the other."""
    publish()  # connects
    clock = Clock(seconds)
    count = 0
    piece = max(1, _PIECE // each)
    while not clock.done:
        for _ in range(piece):
            publish()
        count += piece * each
    return clock.stop(count)


def _callers(
    publish: Callable[[], object], callers: int, seconds: float
) -> tuple[Clock, list[int], Callable[[int], None]]:
    """The clock of callers that begin now, what each has published, and the work of caller N."""
    publish()  # connects
    counts = [0] * callers
    clock = Clock(seconds)

    def work(number: int) -> None:
        while not clock.done:
            for _ in range(_PIECE):
                publish()
            counts[number] += _PIECE

    return clock, counts, work


def in_greenlets(publish: Callable[[], object], greenlets: int, seconds: float) -> Done:
    import gevent

    clock, counts, work = _callers(publish, greenlets, seconds)
    gevent.joinall([gevent.spawn(work, number) for number in range(greenlets)], raise_error=True)
    return clock.stop(sum(counts))


def in_threads(publish: Callable[[], object], threads: int, seconds: float) -> Done:
    import threading

    clock, counts, work = _callers(publish, threads, seconds)
    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return clock.stop(sum(counts))


# -- the bare loops -------------------------------------------------------------------------------------


def connect(address: str) -> Any:
    from gevent import socket

    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(b"  V2")
    return sock


def bare_alone(address: str, at_once: int, seconds: float) -> Done:
    sock = connect(address)

    def publish() -> None:
        sock.sendall(_PUB)
        assert sock.recv(10) == _OK

    return alone(publish, seconds)


def bare_mpub(address: str, at_once: int, seconds: float) -> Done:
    sock = connect(address)

    def publish() -> None:
        sock.sendall(mpub_command())
        assert sock.recv(10) == _OK

    return alone(publish, seconds, MPUB)


class Answers:
    """Reads nsqd's answers in a greenlet and calls ``answered`` for each OK."""

    def __init__(self, sock: Any, answered: Callable[[], object]) -> None:
        import gevent

        self._sock = sock
        self._answered = answered
        gevent.spawn(self._read)

    def _read(self) -> None:
        rest = b""
        while data := self._sock.recv(65536):
            data = rest + data
            position = 0
            while position + 8 <= len(data):
                size, kind = struct.unpack_from(">ii", data, position)
                if position + 4 + size > len(data):
                    break
                payload = data[position + 8 : position + 4 + size]
                position += 4 + size
                if payload == b"_heartbeat_":
                    self._sock.sendall(b"NOP\n")
                    continue
                assert (kind, payload) == (0, b"OK"), payload
                self._answered()
            rest = data[position:]


def greenlet_publisher(address: str) -> Callable[[], None]:
    """Greenlets add their PUB to one buffer; one write for all, one reader that wakes them in order."""
    from gevent import get_hub
    from gevent.hub import Waiter

    sock, hub = connect(address), get_hub()
    run = hub.loop.run_callback
    waiting: deque[Waiter] = deque()
    buffer: list[bytes] = []

    def flush() -> None:
        data = b"".join(buffer)
        buffer.clear()
        assert sock.send(data, 0, 0.0) == len(data)

    def publish() -> None:
        if not buffer:
            run(flush)
        buffer.append(b"PUB %b\n%b%b" % (TOPIC.encode(), struct.pack(">i", len(BODY)), BODY))
        waiter = Waiter(hub)
        waiting.append(waiter)
        waiter.get()

    Answers(sock, lambda: run(waiting.popleft().switch, None))
    return publish


def bare_greenlets(address: str, at_once: int, seconds: float) -> Done:
    return in_greenlets(greenlet_publisher(address), at_once, seconds)


def bare_batching(address: str, at_once: int, seconds: float) -> Done:
    """The same with one MPUB for all that wait."""
    from gevent import get_hub
    from gevent.hub import Waiter

    sock, hub = connect(address), get_hub()
    run = hub.loop.run_callback
    batches: deque[list[Waiter]] = deque()
    bodies: list[bytes] = []
    waiters: list[Waiter] = []

    def flush() -> None:
        nonlocal waiters
        body = struct.pack(">i", len(bodies)) + b"".join([struct.pack(">i", len(each)) + each for each in bodies])
        bodies.clear()
        batches.append(waiters)
        waiters = []
        data = b"MPUB %b\n%b%b" % (TOPIC.encode(), struct.pack(">i", len(body)), body)
        assert sock.send(data, 0, 0.0) == len(data)

    def answered() -> None:
        for waiter in batches.popleft():
            run(waiter.switch, None)

    def publish() -> None:
        if not bodies:
            run(flush)
        bodies.append(BODY)
        waiter = Waiter(hub)
        waiters.append(waiter)
        waiter.get()

    Answers(sock, answered)
    return in_greenlets(publish, at_once, seconds)


def begin_in_a_thread(begin: Callable[[], object]) -> None:
    """Call ``begin`` in a thread with a hub of its own, which lives on; returns when it has returned."""
    import threading

    import gevent

    ready = threading.Event()

    def live() -> None:
        begin()
        ready.set()
        while True:
            gevent.sleep(3600)

    threading.Thread(target=live, daemon=True).start()
    ready.wait()


def bare_threads(address: str, at_once: int, seconds: float) -> Done:
    """Threads pass their PUB to a thread with a hub, which writes and wakes them."""
    import threading

    import gevent

    calls: deque[tuple[bytes, Any]] = deque()
    wakeup: Any = None

    def begin() -> None:
        nonlocal wakeup
        sock = connect(address)
        waiting: deque[Any] = deque()

        def take() -> None:
            data = []
            while calls:
                command, lock = calls.popleft()
                data.append(command)
                waiting.append(lock)
            if data:
                sock.sendall(b"".join(data))

        wakeup = gevent.get_hub().loop.async_()
        wakeup.start(take)
        Answers(sock, lambda: waiting.popleft().release())

    begin_in_a_thread(begin)

    def publish() -> None:
        lock = threading.Lock()
        lock.acquire()
        calls.append((_PUB, lock))
        wakeup.send()
        lock.acquire()

    return in_threads(publish, at_once, seconds)


def bare_two_threads(address: str, at_once: int, seconds: float) -> Done:
    """Greenlets whose hub hands over what they publish in one iteration to a thread with the connection, and gets the
    answers of one read back: the least that a client pays which keeps its connection apart from a program's threads."""
    import gevent
    from gevent.hub import Waiter

    hub = gevent.get_hub()
    gathered: list[Waiter] = []
    handed: deque[list[Waiter]] = deque()
    answered: deque[list[Waiter]] = deque()
    wake_there: Any = None

    def begin() -> None:
        nonlocal wake_there
        sock = connect(address)
        waiting: deque[Waiter] = deque()
        done: list[Waiter] = []

        def take() -> None:
            data = []
            while handed:
                for waiter in handed.popleft():
                    data.append(b"PUB %b\n%b%b" % (TOPIC.encode(), struct.pack(">i", len(BODY)), BODY))
                    waiting.append(waiter)
            if data:
                sock.sendall(b"".join(data))

        def give_back() -> None:
            nonlocal done
            answered.append(done)
            done = []
            wake_here.send()

        def note() -> None:
            if not done:
                gevent.get_hub().loop.run_callback(give_back)
            done.append(waiting.popleft())

        wake_there = gevent.get_hub().loop.async_()
        wake_there.start(take)
        Answers(sock, note)

    def resume() -> None:
        while answered:
            for waiter in answered.popleft():
                waiter.switch(None)

    def hand_over() -> None:
        nonlocal gathered
        handed.append(gathered)
        gathered = []
        wake_there.send()

    wake_here = hub.loop.async_()
    wake_here.start(resume)
    begin_in_a_thread(begin)

    def publish() -> None:
        if not gathered:
            hub.loop.run_callback(hand_over)
        waiter = Waiter(hub)
        gathered.append(waiter)
        waiter.get()

    return in_greenlets(publish, at_once, seconds)


def beside_a_busy_thread(
    address: str, at_once: int, seconds: float, publish: Callable[[str, int, float], Done], interval: float
) -> Done:
    """``publish`` while another thread computes without end.

    :param interval: seconds after which Python takes the interpreter from a thread that computes, if another wants it
    """
    import sys
    import threading

    def compute() -> None:
        while True:
            sum(range(1000))

    sys.setswitchinterval(interval)
    threading.Thread(target=compute, daemon=True).start()
    return publish(address, at_once, seconds)


# -- the clients ----------------------------------------------------------------------------------------


def gnsq_like(address: str, at_once: int, seconds: float, how: str, **options: Any) -> Done:
    from gnsq_like import Producer

    producer = Producer(address, **options)
    if how == "mpub":
        bodies = [BODY] * MPUB
        return alone(lambda: producer.multi_publish(TOPIC, bodies), seconds, MPUB)
    if how == "async":
        return _async(producer, seconds)

    def publish() -> None:
        producer.publish(TOPIC, BODY)

    if how == "threads":
        return in_threads(publish, at_once, seconds)
    return alone(publish, seconds) if at_once == 1 else in_greenlets(publish, at_once, seconds)


def _async(producer: Any, seconds: float, in_flight: int = 1000) -> Done:
    """One caller that waits for the oldest of many results."""
    producer.publish(TOPIC, BODY)
    results: deque[Any] = deque()
    count = 0
    clock = Clock(seconds)
    while not clock.done:
        for _ in range(_PIECE):
            results.append(producer.publish_async(TOPIC, BODY))
        count += _PIECE
        while len(results) > in_flight:
            results.popleft().get()
    while results:
        results.popleft().get()
    return clock.stop(count)


def gnsq(address: str, at_once: int, seconds: float, how: str) -> Done:
    from gnsq import Producer

    producer = Producer([address])
    producer.start()
    if how == "mpub":
        bodies = [BODY] * MPUB
        return alone(lambda: producer.multipublish(TOPIC, bodies), seconds, MPUB)

    def publish() -> None:
        producer.publish(TOPIC, BODY)

    return alone(publish, seconds) if at_once == 1 else in_greenlets(publish, at_once, seconds)


def nsq_py(address: str, at_once: int, seconds: float, how: str) -> Done:
    from nsq.client import Client

    client = Client(nsqd_tcp_addresses=[address])
    topic = TOPIC.encode()
    if how == "mpub":
        bodies = [BODY] * MPUB
        return alone(lambda: client.mpub(topic, *bodies), seconds, MPUB)
    return alone(lambda: client.pub(topic, BODY), seconds)


def pynsq(address: str, at_once: int, seconds: float, how: str) -> Done:
    import asyncio

    import nsq

    async def main() -> Done:
        writer = nsq.Writer([address])
        loop = asyncio.get_running_loop()

        async def publish() -> None:
            answered = loop.create_future()
            if how == "mpub":
                writer.mpub(TOPIC, [BODY] * MPUB, callback=lambda _, data: answered.set_result(data))
            else:
                writer.pub(TOPIC, BODY, callback=lambda _, data: answered.set_result(data))
            data = await answered
            assert data == b"OK", data

        while not writer.conns:  # it has no other sign of being connected
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        each = MPUB if how == "mpub" else 1
        return await _in_tasks(publish, at_once, seconds, each)

    return asyncio.run(main())


def asyncnsq(address: str, at_once: int, seconds: float, how: str) -> Done:
    import asyncio

    async def main() -> Done:
        from asyncnsq.tcp.writer import create_writer

        host, _, port = address.rpartition(":")
        writer = await create_writer(host=host, port=int(port), heartbeat_interval=30000)
        return await _in_tasks(lambda: writer.pub(TOPIC, BODY), at_once, seconds, 1)

    return asyncio.run(main())


async def _in_tasks(publish: Callable[[], Any], tasks: int, seconds: float, each: int) -> Done:
    import asyncio

    await publish()
    counts = [0] * tasks
    clock = Clock(seconds)
    piece = max(1, _PIECE // each)

    async def work(number: int) -> None:
        while not clock.done:
            for _ in range(piece):
                await publish()
            counts[number] += piece * each

    await asyncio.gather(*[work(number) for number in range(tasks)])
    return clock.stop(sum(counts))
