"""The time from a message's publish to the beginning of its handler, and what a message costs its client.

An nsqd is started on free loopback ports. For each cell (a publishing rate, a duration of the handler, and
max_in_flight) every client in turn subscribes, in a process of its own, with one connection and default settings;
handlers wait cooperatively. Another process publishes with a plain socket on a schedule that is fixed beforehand
(open loop): every body carries the time at which it should be sent, and the latency is measured from that time to
the handler's first line, both on CLOCK_MONOTONIC. So it includes any slowing of the machine, by the consumer or by
other processes: "publisher p99" is the lateness of the publisher itself, the noise floor of the cell.

gnsq runs its handler inside its reading loop, one at a time. If rate x handler is 1 or more it cannot keep up, and the
latency shows only the length of the queue; such cells, and all in which some messages did not arrive within two
seconds after the last publish, are marked "behind".

CPU is that of the client's process for a message, from the first message after a sixteenth of them to the last. Two
settings decide what a sparse message costs. At max_in_flight 1 nsqd sends each at once, to any client; with more, it
collects them for output_buffer_timeout, of which each client has its default. "gnsq_like, buffered" leaves nsqd's
250 ms, as gnsq and pynsq do.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import threading
import time
from typing import NamedTuple

from _children import python_of
from _consumers import CONSUMERS, Note, start_script
from _modes import PEERS
from _nsqd import Nsqd, connect, publish_command, running_nsqd

RATES = (20, 100, 1000, 3000)
PAUSES_MS = (0, 5, 50)
#: The least number of messages in a cell.
_LEAST = 200
#: Seconds from the publisher's start to its first message, and from its last one to the end of the cell.
_LEAD = 0.5
_GRACE = 2.0
#: The goals for each cell, in ms.
_P50, _P99 = 2.0, 25.0
#: More messages than are ever behind.
_MEM_QUEUE_SIZE = 100_000


class Figures(NamedTuple):
    """Of one client in one cell; times in ms, CPU in µs for a message."""

    p50: float
    p99: float
    longest: float
    cpu: float
    #: Messages that did not arrive in time.
    missing: float
    #: The publisher's own lateness.
    publisher_p99: float


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


# -- in processes of their own --------------------------------------------------------------------------


def publish(address: str, topic: str, rate: float, count: int) -> None:
    """Publish on schedule, and print the seconds by which each message left late."""
    late: list[float] = []
    with connect(address) as sock:
        threading.Thread(target=_swallow, args=(sock,), daemon=True).start()
        start = time.monotonic_ns() + int(_LEAD * 1e9)
        schedule = [start + int(number * 1e9 / rate) for number in range(count)]
        commands = [publish_command(topic, b"%d" % moment) for moment in schedule]
        for moment, command in zip(schedule, commands, strict=True):
            wait = moment - time.monotonic_ns()
            if wait > 0:
                time.sleep(wait / 1e9)
            late.append((time.monotonic_ns() - moment) / 1e9)
            sock.sendall(command)
        print(json.dumps(late), flush=True)
        time.sleep(_LEAD)


def _swallow(sock) -> None:  # type: ignore[no-untyped-def]
    try:
        while sock.recv(65536):
            pass
    except OSError:
        pass


def noting(count: int, seconds: float) -> Note:
    """A note of latencies; the process prints them and ends, after ``count`` or ``seconds`` after the first."""
    latencies: list[float] = []
    ending = threading.Lock()
    warm = count // 16
    cpu = 0.0

    def end() -> None:
        if ending.acquire(blocking=False):  # the timer's thread and the client's may both come here
            each = (time.process_time() - cpu) / max(1, len(latencies) - warm)
            print(json.dumps([latencies[:], each]), flush=True)
            os._exit(0)

    def note(body: bytes) -> None:
        nonlocal cpu
        latencies.append((time.monotonic_ns() - int(body)) / 1e9)
        if len(latencies) == warm:
            cpu = time.process_time()
        if len(latencies) == 1:
            # An OS thread, for any client's loop may be busy.
            timer = threading.Timer(seconds, end)
            timer.daemon = True
            timer.start()
        elif len(latencies) == count:
            end()

    return note


# -- the table ------------------------------------------------------------------------------------------


def measure(
    nsqd: Nsqd, client: str, python: str, rate: float, pause_ms: float, seconds: float, max_in_flight: int, topic: str
) -> Figures:
    """One client in one cell, once."""
    count = max(_LEAST, int(rate * seconds))
    limit = count / rate + _GRACE
    nsqd.make_topic(topic)
    consumer = start_script(
        python,
        __file__,
        *("--run", client, nsqd.tcp_address, topic, count, pause_ms, limit),
        *("--max-in-flight", max_in_flight),
    )
    publisher: subprocess.Popen[bytes] | None = None
    try:
        nsqd.wait_for_consumer(topic)
        publisher = start_script(python, __file__, "--publish", nsqd.tcp_address, topic, rate, count)
        answer, _ = consumer.communicate(timeout=limit + 30)
        late, _ = publisher.communicate(timeout=limit + 30)
        seconds_late, cpu = json.loads(answer)
        latencies = sorted(1000 * each for each in seconds_late)
        lateness = sorted(1000 * each for each in json.loads(late))
    finally:
        for process in (consumer, publisher):
            if process is not None:
                process.kill()
                process.wait()
        nsqd.delete_topic(topic)
    longest = latencies[-1] if latencies else float("nan")
    return Figures(
        percentile(latencies, 0.5),
        percentile(latencies, 0.99),
        longest,
        cpu * 1e6,
        count - len(latencies),
        percentile(lateness, 0.99),
    )


def table(nsqd: Nsqd, clients: list[str], given: argparse.Namespace) -> None:
    rounds = f", medians of {given.rounds} rounds" * (given.rounds > 1)
    print(f"latency in ms from the scheduled publish to the handler, CPU in µs for a message{rounds}")
    columns = "".join(f"{name:>9}" for name in ("p50", "p99", "max", "CPU"))
    print(f"{'rate/s':>6}{'handler':>9}{'window':>8}  {'client':<24}{columns}{'publisher p99':>15}")
    cells = itertools.product(given.rate or RATES, given.handler_ms or PAUSES_MS, given.max_in_flight or [200])
    for rate, pause, window in cells:
        found: dict[str, list[Figures]] = {client: [] for client in clients}
        for number, (position, client) in itertools.product(range(given.rounds), enumerate(clients)):
            topic = f"cell-{rate:g}-{pause:g}-{window}-{number}-{position}"
            found[client].append(
                measure(nsqd, client, python_of(client), rate, pause, given.seconds, window, topic),
            )
        for client, figures in found.items():
            found_here = Figures(*(statistics.median(column) for column in zip(*figures, strict=True)))
            _print(f"{rate:>6g}{pause:>6g} ms{window:>8}", client, found_here, max(_LEAST, int(rate * given.seconds)))


def _print(cell: str, client: str, found: Figures, count: int) -> None:
    mark = ""
    if found.missing:
        mark = f"behind: {found.missing:.0f} of {count} did not arrive in time"
    elif client == "gnsq_like" and (found.p50 > _P50 or found.p99 > _P99):
        mark = "missed"
    figures = f"{found.p50:>9.2f}{found.p99:>9.2f}{found.longest:>9.2f}{found.cpu:>9.1f}{found.publisher_p99:>15.2f}"
    print(f"{cell}  {client:<24}{figures}  {mark}".rstrip(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nsqd", default="nsqd", help="the nsqd to start (default: the one on PATH)")
    parser.add_argument(
        "--seconds", type=float, default=4.0, help=f"of a cell, but {_LEAST} messages at least (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=1, help="of each cell (default: %(default)s)")
    parser.add_argument("--rate", type=float, action="append", help="messages a second; may be repeated")
    parser.add_argument("--handler-ms", type=float, action="append", help="duration of a handler; may be repeated")
    parser.add_argument("--max-in-flight", type=int, action="append", help="may be repeated (default: 200)")
    parser.add_argument("--only", metavar="CLIENT", action="append", choices=CONSUMERS, help="may be repeated")
    parser.add_argument("--run", nargs=6, help=argparse.SUPPRESS)
    parser.add_argument("--publish", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.publish:
        address, topic, rate, count = given.publish
        publish(address, topic, float(rate), int(count))
        return
    if given.run:
        client, address, topic, count, pause_ms, limit = given.run
        note, [window] = noting(int(count), float(limit)), given.max_in_flight
        CONSUMERS[client](address, topic, window, note, float(pause_ms) / 1000)
        raise SystemExit(f"{client} ended before its last message")
    clients = given.only or [client for client in CONSUMERS if client not in PEERS]
    with running_nsqd(given.nsqd, _MEM_QUEUE_SIZE) as nsqd:
        table(nsqd, clients, given)


if __name__ == "__main__":
    main()
