"""Throughput, memory and durability of an nsqd: gnsq_like's, or another one given with --nsqd.

Four measurements, each on an nsqd of its own with a data path of its own, and all with plain sockets:

``throughput``: one process publishes by MPUB while another consumes, over loopback: messages a second from the
first publish to the last FIN, and the largest number of them on disk. With ``--mem-queue-size 0`` every
message goes through the disk.

``backlog``: messages are published without a consumer, then consumed: messages a second of both, and the
resident memory of nsqd in MB before, with all messages waiting, and at its peak.

``kill``: nsqd is killed (SIGKILL) during publishing, and started again: how many of the confirmed messages are
delivered, how many of them twice, and how many are lost.

``one``: one PUB at a time, each sent after the answer to the one before. Ours, the one given with ``--nsqd`` and the
floor, which is a gevent server that cuts a PUB and answers OK, all run, and are measured in turns: the median of PUBs
a second, nsqd's CPU time for each, and the median of the rate beside that of the given one in the same round.
``--count`` is of all rounds together, as 60,000.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shlex
import signal
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection

from _consumers import cut
from _nsqd import CHANNEL, OK_FRAME, Nsqd, connect, multi_publish, publish_command, running_nsqd
from _processes import cpu_of, resident

#: Seconds without a message after which nothing more is expected.
_QUIET = 3.0
_TOPIC = "carried"
#: Of ``one``: short ones, because this machine's speed may change from one second to the next.
_ROUNDS = 40
_OURS = f"{shlex.quote(sys.executable)} -m gnsq_like nsqd"


def publish(address: str, count: int, size: int, batch: int) -> None:
    """MPUBs of ``batch`` messages, a few of them on the way at a time; returns when all are confirmed."""
    filler = b"x" * (size - 8)
    with connect(address) as sock:
        answers = sock.makefile("rb")
        unanswered = 0
        for first in range(0, count, batch):
            numbers = range(first, min(first + batch, count))
            multi_publish(sock, _TOPIC, [b"%08d" % number + filler for number in numbers])
            unanswered += 1
            if unanswered > 4:
                answers.read(10)
                unanswered -= 1
        answers.read(10 * unanswered)


def consumed(address: str) -> Iterator[list[int]]:
    """The numbers of the messages of each read, finished; ends when none came for a while."""
    with connect(address, heartbeats=True) as sock:
        sock.sendall(b"SUB %b %b\nRDY 2500\n" % (_TOPIC.encode(), CHANNEL.encode()))
        sock.settimeout(_QUIET)
        rest = b""
        while True:
            try:
                data = sock.recv(256 * 1024)
            except TimeoutError:
                return
            if not data:
                return
            numbers: list[int] = []
            rest, answers = cut(rest + data, lambda body: numbers.append(int(body[:8])))  # noqa: B023
            if answers:
                sock.sendall(b"".join(answers))
            if numbers:
                yield numbers


class Watch(threading.Thread):
    """Looks at nsqd's memory and disk while something else goes on."""

    def __init__(self, nsqd: Nsqd) -> None:
        super().__init__(daemon=True)
        self._nsqd = nsqd
        self._done = threading.Event()
        self.most_memory = 0.0
        self.most_on_disk = 0

    def run(self) -> None:
        while not self._done.wait(0.1):
            self.most_memory = max(self.most_memory, resident(self._nsqd.pid))
            self.most_on_disk = max(self.most_on_disk, self._nsqd.channel(_TOPIC)["backend_depth"])

    def stop(self) -> None:
        self._done.set()
        self.join()


def throughput(given: argparse.Namespace) -> None:
    with running_nsqd(given.nsqd, given.mem_queue_size) as nsqd:
        nsqd.make_topic(_TOPIC)
        publisher = multiprocessing.Process(
            target=publish, args=(nsqd.tcp_address, given.count, given.size, given.batch)
        )
        watch = Watch(nsqd)
        watch.start()
        start = time.monotonic()
        publisher.start()
        left = given.count
        for numbers in consumed(nsqd.tcp_address):
            left -= len(numbers)
            if not left:
                break
        seconds = time.monotonic() - start
        watch.stop()
        publisher.join()
    if left:
        sys.exit(f"{left} messages did not come")
    print(f"{given.count / seconds:,.0f} messages/s, {given.count:,} of {given.size} bytes; on disk at most ", end="")
    print(f"{watch.most_on_disk:,}; resident at most {watch.most_memory:.0f} MB")


def backlog(given: argparse.Namespace) -> None:
    with running_nsqd(given.nsqd, given.mem_queue_size) as nsqd:
        nsqd.make_topic(_TOPIC)
        before = resident(nsqd.pid)
        watch = Watch(nsqd)
        watch.start()
        start = time.monotonic()
        publish(nsqd.tcp_address, given.count, given.size, given.batch)
        published = time.monotonic() - start
        time.sleep(1)
        waiting = resident(nsqd.pid)
        start = time.monotonic()
        seen = Counter(number for numbers in consumed(nsqd.tcp_address) for number in numbers)
        took = time.monotonic() - start - _QUIET
        watch.stop()
    print(f"published {given.count / published:,.0f}/s, consumed {given.count / took:,.0f}/s; ", end="")
    print(f"{len(seen):,} of {given.count:,} came, {seen.total() - len(seen):,} twice; on disk {watch.most_on_disk:,}")
    print(f"resident MB: {before:.0f} at the start, {waiting:.0f} with the backlog, {watch.most_memory:.0f} at most")


def kill(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as directory:
        confirmed = 0
        with running_nsqd(given.nsqd, given.mem_queue_size, f"--data-path={directory}") as nsqd:
            nsqd.make_topic(_TOPIC)
            time.sleep(1)
            with connect(nsqd.tcp_address) as sock:
                filler = b"x" * (given.size - 8)
                while confirmed < given.count:
                    multi_publish(
                        sock, _TOPIC, [b"%08d" % n + filler for n in range(confirmed, confirmed + given.batch)]
                    )
                    sock.recv(10, socket.MSG_WAITALL)
                    confirmed += given.batch
                os.kill(nsqd.pid, signal.SIGKILL)
        with running_nsqd(given.nsqd, given.mem_queue_size, f"--data-path={directory}") as nsqd:
            seen = Counter(number for numbers in consumed(nsqd.tcp_address) for number in numbers)
    back = sum(number < confirmed for number in seen)
    print(
        f"{confirmed:,} confirmed, {back:,} came back, {seen.total() - len(seen):,} twice, {confirmed - back:,} never"
    )


def _serve_floor(answer: Connection) -> None:
    """A process: the least that a server on gevent does for a PUB."""
    import gevent
    from gevent.server import StreamServer

    def serve(sock, address):  # type: ignore[no-untyped-def]
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.recv(65536)  # IDENTIFY
        sock.sendall(OK_FRAME)
        readable = gevent.get_hub().loop.io(sock.fileno(), 1)
        sock.setblocking(False)
        while True:
            gevent.get_hub().wait(readable)
            data = sock.recv(65536)
            if not data:
                break
            start = data.index(b"\n") + 5
            body = data[start : start + struct.unpack_from(">i", data, start - 4)[0]]
            sock.send(OK_FRAME * bool(body))
        readable.close()

    server = StreamServer(("127.0.0.1", 0), serve)
    server.start()
    answer.send(server.server_port)
    gevent.wait()


@contextmanager
def _floor() -> Iterator[tuple[str, int]]:
    """Run the floor; its address and process id."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_floor, args=(theirs,))
    process.start()
    try:
        assert process.pid is not None
        yield f"127.0.0.1:{ours.recv()}", process.pid
    finally:
        process.terminate()
        process.join()


def _one_by_one(address: str, pid: int, count: int, size: int) -> tuple[float, float]:
    """PUBs a second, and seconds of the process's CPU time."""
    command = publish_command(_TOPIC, b"x" * size)
    with connect(address) as sock:
        cpu, start = cpu_of(pid) or 0.0, time.monotonic()
        for _ in range(count):
            sock.sendall(command)
            if sock.recv(10) != OK_FRAME:
                sys.exit("a PUB was refused")
        seconds = time.monotonic() - start
        return count / seconds, (cpu_of(pid) or 0.0) - cpu


def one(given: argparse.Namespace) -> None:
    commands = {"gnsq_like": _OURS} | ({"given": given.nsqd} if given.nsqd != _OURS else {})
    found: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        servers = {"floor": stack.enter_context(_floor())}
        for name, command in commands.items():
            nsqd = stack.enter_context(running_nsqd(command, max(given.mem_queue_size, given.count)))
            nsqd.make_topic(_TOPIC)
            servers[name] = nsqd.tcp_address, nsqd.pid
        for _ in range(_ROUNDS):
            for name, (address, pid) in servers.items():
                found.setdefault(name, []).append(_one_by_one(address, pid, given.count // _ROUNDS, given.size))
    base = found[list(commands)[-1]]
    for name, rounds in found.items():
        rate = statistics.median(rate for rate, _ in rounds)
        cpu = sum(cpu for _, cpu in rounds) / (given.count // _ROUNDS * _ROUNDS) * 1e6
        beside = statistics.quantiles([mine[0] / theirs[0] for mine, theirs in zip(rounds, base, strict=True)])
        print(f"{name:9} {rate:7,.0f} PUBs/s, {cpu:3.0f} µs of CPU each; ", end="")
        print("{:.2f} (half of the rounds {:.2f} to {:.2f})".format(*(beside[at] for at in (1, 0, 2))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["throughput", "backlog", "kill", "one"])
    parser.add_argument("--nsqd", default=_OURS, help="the command that starts nsqd (default: %(default)s)")
    parser.add_argument("--count", type=int, default=1_000_000, help="messages (default: %(default)s)")
    parser.add_argument("--size", type=int, default=200, help="bytes of a message, 8 at least (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=500, help="messages of an MPUB (default: %(default)s)")
    parser.add_argument("--mem-queue-size", type=int, default=10_000, help="(default: %(default)s)")
    given = parser.parse_args()
    print(json.dumps({key: value for key, value in vars(given).items() if key not in ("nsqd", "what")}))
    {"throughput": throughput, "backlog": backlog, "kill": kill, "one": one}[given.what](given)


if __name__ == "__main__":
    main()
