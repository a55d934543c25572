"""The speed of publishing, compared with a bare gevent loop and with other clients, all in one run.

    python benchmarks/publish.py [--gnsq-python PATH] [--asyncnsq-python PATH] [--rounds N] [--seconds S]

Starts an nsqd from PATH, then runs every mode in a process of its own, one after the other, for several
rounds, and prints the medians. A ratio is the median over the rounds of (mode / its bare loop of the same
round), so that a machine that is busy in one round does not distort it. The topic is ephemeral, so nsqd drops
messages and the disk is not measured.

"bare" is the minimum with gevent and a socket: a hundred greenlets that add their PUB to one buffer, one write
for all, one reader that wakes the greenlets in order; no deadline, no error handling.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from _nsqd import running_nsqd

TOPIC = "bench#ephemeral"
BODY = b"x" * 100
GREENLETS = 100
#: nsqd's default.
_MEM_QUEUE_SIZE = 10_000
#: Publishes of a mode between two looks at the clock.
_PIECE = 50


# -- the bare loops -------------------------------------------------------------------------------------


class BareSocket:
    """A socket to nsqd, a buffer, and the greenlets that wait for an OK, oldest first."""

    def __init__(self, address: str) -> None:
        import gevent
        from gevent import socket

        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.sendall(b"  V2")
        self.buffer: list[bytes] = []
        self.waiting: list[object] = []
        self.loop = gevent.get_hub().loop
        self.scheduled = False
        gevent.spawn(self.read)

    def flush(self) -> None:
        self.scheduled = False
        data = b"".join(self.buffer)
        self.buffer.clear()
        if data:
            assert self.sock.send(data, 0, 0.0) == len(data)

    def schedule(self) -> None:
        if not self.scheduled:
            self.scheduled = True
            self.loop.run_callback(self.flush)

    def read(self) -> None:
        rest = b""
        while data := self.sock.recv(65536):
            data = rest + data
            position = 0
            while position + 8 <= len(data):
                size, kind = struct.unpack_from(">ii", data, position)
                if position + 4 + size > len(data):
                    break
                payload = data[position + 8 : position + 4 + size]
                position += 4 + size
                if payload == b"_heartbeat_":
                    self.sock.sendall(b"NOP\n")
                    continue
                assert (kind, payload) == (0, b"OK"), payload
                self.answered()
            rest = data[position:]

    def answered(self) -> None:
        self.loop.run_callback(self.waiting.pop(0).switch, None)  # type: ignore[attr-defined]


def bare_pipelined(address: str, greenlets: int) -> Callable[[], None]:
    from collections import deque

    from gevent import get_hub
    from gevent.hub import Waiter

    bare = BareSocket(address)
    waiting = bare.waiting = deque()  # type: ignore[assignment]
    bare.answered = lambda: bare.loop.run_callback(waiting.popleft().switch, None)  # type: ignore[method-assign]
    hub = get_hub()
    head = b"PUB %b\n" % TOPIC.encode()

    def publish() -> None:
        bare.buffer.append(b"%b%b%b" % (head, struct.pack(">i", len(BODY)), BODY))
        waiter = Waiter(hub)
        waiting.append(waiter)
        bare.schedule()
        waiter.get()

    return publish


def bare_batched(address: str, greenlets: int) -> Callable[[], None]:
    from collections import deque

    from gevent import get_hub
    from gevent.hub import Waiter

    bare = BareSocket(address)
    batches: deque[list[Waiter]] = deque()
    hub = get_hub()
    head = b"MPUB %b\n" % TOPIC.encode()
    bodies: list[bytes] = []
    waiters: list[Waiter] = []

    def flush() -> None:
        nonlocal waiters
        bare.scheduled = False
        body = struct.pack(">i", len(bodies)) + b"".join([struct.pack(">i", len(each)) + each for each in bodies])
        bodies.clear()
        batches.append(waiters)
        waiters = []
        data = head + struct.pack(">i", len(body)) + body
        assert bare.sock.send(data, 0, 0.0) == len(data)

    def answered() -> None:
        run = bare.loop.run_callback
        for waiter in batches.popleft():
            run(waiter.switch, None)

    bare.flush = flush  # type: ignore[method-assign]
    bare.answered = answered  # type: ignore[method-assign]

    def publish() -> None:
        bodies.append(BODY)
        waiter = Waiter(hub)
        waiters.append(waiter)
        bare.schedule()
        waiter.get()

    return publish


def bare_single(address: str, greenlets: int) -> Callable[[], None]:
    from gevent import socket

    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(b"  V2")
    head = b"PUB %b\n" % TOPIC.encode()

    def publish() -> None:
        sock.sendall(b"%b%b%b" % (head, struct.pack(">i", len(BODY)), BODY))
        answer = sock.recv(10)
        assert answer == b"\0\0\0\6\0\0\0\0OK", answer

    return publish


# -- the clients ----------------------------------------------------------------------------------------


def ours(address: str, greenlets: int) -> Callable[[], None]:
    from gnsq_like import Producer

    producer = Producer(address, own_thread=False)
    return lambda: producer.publish(TOPIC, BODY)


def ours_batched(address: str, greenlets: int) -> Callable[[], None]:
    from gnsq_like import Producer

    producer = Producer(address, own_thread=False, batching=True)
    return lambda: producer.publish(TOPIC, BODY)


def gnsq(address: str, greenlets: int) -> Callable[[], None]:
    from gnsq import Producer  # type: ignore[import-not-found]

    producer = Producer([address])
    producer.start()
    return lambda: producer.publish(TOPIC, BODY)


def run_greenlets(publish: Callable[[], None], greenlets: int, seconds: float) -> tuple[int, float]:
    import gevent

    publish()  # connects
    counts = [0] * greenlets
    started = time.monotonic()
    end = started + seconds

    def work(number: int) -> None:
        while time.monotonic() < end:
            for _ in range(_PIECE):
                publish()
            counts[number] += _PIECE

    gevent.joinall([gevent.spawn(work, number) for number in range(greenlets)], raise_error=True)
    return sum(counts), time.monotonic() - started


def run_threads(address: str, threads: int, seconds: float) -> tuple[int, float]:
    """Plain OS threads that share one Producer, in a process that patches nothing."""
    import threading

    from gnsq_like import Producer

    producer = Producer(address)
    producer.publish(TOPIC, BODY)
    counts = [0] * threads
    started = time.monotonic()
    end = started + seconds

    def work(number: int) -> None:
        while time.monotonic() < end:
            for _ in range(_PIECE):
                producer.publish(TOPIC, BODY)
            counts[number] += _PIECE

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts), time.monotonic() - started


def run_async(address: str, seconds: float, in_flight: int = 1000) -> tuple[int, float]:
    """One greenlet that publishes by publish_async and waits for the oldest result of many."""
    from collections import deque

    from gnsq_like import Producer

    producer = Producer(address, own_thread=False)
    producer.publish(TOPIC, BODY)
    results = deque()  # type: ignore[var-annotated]
    count = 0
    started = time.monotonic()
    end = started + seconds
    while time.monotonic() < end:
        for _ in range(_PIECE):
            results.append(producer.publish_async(TOPIC, BODY))
        count += _PIECE
        while len(results) > in_flight:
            results.popleft().get()
    while results:
        results.popleft().get()
    return count, time.monotonic() - started


def run_asyncnsq(address: str, tasks: int, seconds: float) -> tuple[int, float]:
    async def main() -> tuple[int, float]:
        from asyncnsq.tcp.writer import create_writer  # type: ignore[import-not-found]

        host, _, port = address.rpartition(":")
        writer = await create_writer(host=host, port=int(port), heartbeat_interval=30000)
        await writer.pub(TOPIC, BODY)
        counts = [0] * tasks
        started = time.monotonic()
        end = started + seconds

        async def work(number: int) -> None:
            while time.monotonic() < end:
                for _ in range(_PIECE):
                    await writer.pub(TOPIC, BODY)
                counts[number] += _PIECE

        await asyncio.gather(*[work(number) for number in range(tasks)])
        return sum(counts), time.monotonic() - started

    return asyncio.run(main())


GREENLET_MODES = {
    "bare": bare_pipelined,
    "bare-batched": bare_batched,
    "bare-single": bare_single,
    "ours": ours,
    "ours-batched": ours_batched,
    "gnsq": gnsq,
}

#: Mode, how many publish at once, and the bare loop it is measured against.
MODES = [
    ("bare", 100, None),
    ("ours", 100, "bare 100"),
    ("ours-async", 1, "bare 100"),
    ("gnsq", 100, "bare 100"),
    ("asyncnsq", 100, "bare 100"),
    ("bare-batched", 100, None),
    ("ours-batched", 100, "bare-batched 100"),
    ("bare-single", 1, None),
    ("ours", 1, "bare-single 1"),
    ("ours-batched", 1, "bare-single 1"),
    ("gnsq", 1, "bare-single 1"),
    ("asyncnsq", 1, "bare-single 1"),
    ("ours-threads", 1, "bare-single 1"),
    ("ours-threads", 8, "bare-single 1"),
    ("ours-threads", 50, "bare-single 1"),
]


def run_mode(mode: str, at_once: int, address: str, seconds: float) -> float:
    if mode == "asyncnsq":
        count, taken = run_asyncnsq(address, at_once, seconds)
    elif mode == "ours-threads":
        count, taken = run_threads(address, at_once, seconds)
    elif mode == "ours-async":
        count, taken = run_async(address, seconds)
    else:
        count, taken = run_greenlets(GREENLET_MODES[mode](address, at_once), at_once, seconds)
    return count / taken


# -- the run --------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nsqd", default="nsqd")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--gnsq-python", help="the python of a virtual environment with gnsq")
    parser.add_argument("--asyncnsq-python", help="the python of a virtual environment with asyncnsq")
    parser.add_argument("--only", help="comma separated modes; their bare loops are needed for ratios")
    parser.add_argument("--run", nargs=3, metavar=("MODE", "AT_ONCE", "ADDRESS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        mode, at_once, address = given.run
        print(json.dumps(run_mode(mode, int(at_once), address, given.seconds)))
        return
    pythons = {"gnsq": given.gnsq_python, "asyncnsq": given.asyncnsq_python}
    modes = [each for each in MODES if pythons.get(each[0], sys.executable)]
    if given.only:
        modes = [each for each in modes if each[0] in given.only.split(",")]
    root = str(Path(__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": root}
    rates: dict[str, list[float]] = {f"{mode} {at_once}": [] for mode, at_once, _ in modes}
    with running_nsqd(given.nsqd, _MEM_QUEUE_SIZE) as nsqd:
        for _ in range(given.rounds):
            for mode, at_once, _ in modes:
                python = pythons.get(mode) or sys.executable
                command = [python, __file__, "--seconds", str(given.seconds)]
                command += ["--run", mode, str(at_once), nsqd.tcp_address]
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
                rates[f"{mode} {at_once}"].append(json.loads(done.stdout))
    print(f"{'mode':<22}{'a second':>10}{'least':>10}{'most':>10}   ratio")
    for mode, at_once, base in modes:
        found = rates[f"{mode} {at_once}"]
        line = f"{mode + ' ' + str(at_once):<22}"
        line += "".join(f"{rate:>10,.0f}" for rate in (statistics.median(found), min(found), max(found)))
        if base in rates:
            ratio = statistics.median([rate / bare for rate, bare in zip(found, rates[base], strict=True)])
            line += f"   {ratio:.2f} of {base}"
        print(line)


if __name__ == "__main__":
    main()
