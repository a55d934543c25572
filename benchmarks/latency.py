"""The time from a message's publish to the beginning of its handler.

An nsqd is started on free loopback ports. For each cell (a publishing rate and a duration of the handler) every
client in turn subscribes, in a process of its own, with one connection, default settings and max_in_flight 200;
handlers wait cooperatively. Another process publishes with a plain socket on a schedule that is fixed beforehand
(open loop): every body carries the time at which it should be sent, and the latency is measured from that time to
the handler's first line, both on CLOCK_MONOTONIC. So it includes any slowing of the machine, by the consumer or by
other processes: "publisher p99" is the lateness of the publisher itself, the noise floor of the cell.

gnsq runs its handler inside its reading loop, one at a time. If rate x handler is 1 or more it cannot keep up, and the
latency shows only the length of the queue; such cells, and all in which some messages did not arrive within two
seconds after the last publish, are marked "behind".
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import threading
import time

from _consumers import CONSUMERS, Note, add_python_options, available, start_script
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

#: p50, p99 and the longest latency in ms, the number of missing messages, and the publisher's own p99 in ms.
Figures = tuple[float, float, float, int, float]


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

    def end() -> None:
        if ending.acquire(blocking=False):  # the timer's thread and the client's may both come here
            print(json.dumps(latencies[:]), flush=True)
            os._exit(0)

    def note(body: bytes) -> None:
        latencies.append((time.monotonic_ns() - int(body)) / 1e9)
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
        latencies = sorted(1000 * each for each in json.loads(answer))
        lateness = sorted(1000 * each for each in json.loads(late))
    finally:
        for process in (consumer, publisher):
            if process is not None:
                process.kill()
                process.wait()
        nsqd.delete_topic(topic)
    longest = latencies[-1] if latencies else float("nan")
    return (
        percentile(latencies, 0.5),
        percentile(latencies, 0.99),
        longest,
        count - len(latencies),
        percentile(lateness, 0.99),
    )


def table(nsqd: Nsqd, pythons: dict[str, str], given: argparse.Namespace) -> None:
    print(
        "latency in ms from the scheduled publish to the handler"
        + f", medians of {given.rounds} rounds" * (given.rounds > 1)
    )
    print(f"{'rate/s':>6}{'handler':>9}  {'client':<24}{'p50':>9}{'p99':>9}{'max':>9}{'publisher p99':>15}")
    for rate in given.rate or RATES:
        for pause in PAUSES_MS if given.handler_ms is None else given.handler_ms:
            found: dict[str, list[Figures]] = {client: [] for client in pythons}
            for number in range(given.rounds):
                for position, (client, python) in enumerate(pythons.items()):
                    topic = f"cell-{rate:g}-{pause:g}-{number}-{position}"
                    found[client].append(
                        measure(nsqd, client, python, rate, pause, given.seconds, given.max_in_flight, topic)
                    )
            for client, rounds in found.items():
                p50, p99, longest, missing, late = (statistics.median(column) for column in zip(*rounds, strict=True))
                marks = []
                if missing:
                    marks.append(
                        f"behind: {missing:.0f} of {max(_LEAST, int(rate * given.seconds))} did not arrive in time"
                    )
                elif client == "gnsq_like" and (p50 > _P50 or p99 > _P99):
                    marks.append("missed")
                print(
                    f"{rate:>6g}{pause:>6g} ms  {client:<24}{p50:>9.2f}{p99:>9.2f}{longest:>9.2f}{late:>15.2f}  "
                    + ", ".join(marks),
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_python_options(parser)
    parser.add_argument(
        "--seconds", type=float, default=4.0, help=f"of a cell, but {_LEAST} messages at least (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=1, help="of each cell (default: %(default)s)")
    parser.add_argument("--rate", type=float, action="append", help="messages a second; may be repeated")
    parser.add_argument("--handler-ms", type=float, action="append", help="duration of a handler; may be repeated")
    parser.add_argument("--max-in-flight", type=int, default=200, help="(default: %(default)s)")
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
        CONSUMERS[client](address, topic, given.max_in_flight, noting(int(count), float(limit)), float(pause_ms) / 1000)
        raise SystemExit(f"{client} ended before its last message")
    wanted = given.only or [client for client in CONSUMERS if client != "bare gevent loop"]
    pythons = {client: python for client, python in available(given).items() if client in wanted}
    with running_nsqd(given.nsqd, _MEM_QUEUE_SIZE) as nsqd:
        table(nsqd, pythons, given)


if __name__ == "__main__":
    main()
