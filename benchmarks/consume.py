"""Messages a second that a consumer takes from one nsqd, for gnsq_like and other clients.

An nsqd is started on free loopback ports. For each run a channel is filled; then one client, in a process of
its own and with one connection, takes and finishes all messages with a handler that does nothing but count.
The client measures itself, from its first message to the last counted one; the channel holds some more, so that
no client waits for nsqd's buffer timeout at the end. Rounds are interleaved (A B C A B C ...) and the table shows
the median, the least and the most of the rounds, and the median of the ratios to gnsq_like in the same round, so
that a machine that is busy for a while does not distort it.

"bare gevent loop" is the minimum with gevent and a socket, and so the upper bound: no Message, no flow control,
no error handling.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

from _consumers import CONSUMERS, Note, add_python_options, available, start_script
from _nsqd import Nsqd, running_nsqd

#: Seconds for one run; slower clients count as broken.
_RUN_LIMIT = 300.0
_OURS = "gnsq_like"


def counting(total: int) -> Note:
    """A note that ends the process with the seconds from the first message to the last."""
    left = total
    started = 0.0

    def note(body: bytes) -> None:
        nonlocal left, started
        if left == total:
            started = time.monotonic()
        left -= 1
        if not left:
            print(json.dumps(time.monotonic() - started), flush=True)
            os._exit(0)

    return note


def rate(nsqd: Nsqd, client: str, python: str, count: int, size: int, max_in_flight: int, topic: str) -> float:
    """Messages a second of one run."""
    nsqd.make_topic(topic)
    try:
        nsqd.fill(topic, [b"x" * size] * (count + 2 * max_in_flight))
        child = start_script(
            python,
            __file__,
            "--run",
            client,
            nsqd.tcp_address,
            topic,
            "--count",
            count,
            "--max-in-flight",
            max_in_flight,
        )
        try:
            answer, _ = child.communicate(timeout=_RUN_LIMIT)
        finally:
            child.kill()
            child.wait()
        return count / float(json.loads(answer))
    finally:
        nsqd.delete_topic(topic)


def rounds_of(
    nsqd: Nsqd, pythons: dict[str, str], rounds: int, count: int, size: int, max_in_flight: int
) -> dict[str, list[float]]:
    """Messages a second, for each client and round; interleaved."""
    rates: dict[str, list[float]] = {client: [] for client in pythons}
    for number in range(rounds):
        for position, (client, python) in enumerate(pythons.items()):
            topic = f"flood-{number}-{position}"
            rates[client].append(rate(nsqd, client, python, count, size, max_in_flight, topic))
    return rates


def print_table(rates: dict[str, list[float]]) -> None:
    print(f"{'client':<26}{'messages/s':>12}{'least':>10}{'most':>10}   ratio to {_OURS}")
    for client, found in rates.items():
        ratio = ""
        if _OURS in rates:
            ratio = f"{statistics.median([a / b for a, b in zip(found, rates[_OURS], strict=True)]):.2f}"
        print(f"{client:<26}{statistics.median(found):>12,.0f}{min(found):>10,.0f}{max(found):>10,.0f}   {ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_python_options(parser)
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--count", type=int, default=300_000, help="messages of a run (default: %(default)s)")
    parser.add_argument("--size", type=int, default=100, help="bytes of a message (default: %(default)s)")
    parser.add_argument("--max-in-flight", type=int, default=2000, help="(default: %(default)s)")
    parser.add_argument("--only", metavar="CLIENT", action="append", choices=CONSUMERS, help="may be repeated")
    parser.add_argument("--run", nargs=3, metavar=("CLIENT", "ADDRESS", "TOPIC"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        client, address, topic = given.run
        CONSUMERS[client](address, topic, given.max_in_flight, counting(given.count), 0.0)
        raise SystemExit(f"{client} ended before its last message")
    pythons = {client: python for client, python in available(given).items() if client in (given.only or CONSUMERS)}
    with running_nsqd(given.nsqd, 2 * given.count) as nsqd:
        print_table(rounds_of(nsqd, pythons, given.rounds, given.count, given.size, given.max_in_flight))


if __name__ == "__main__":
    main()
