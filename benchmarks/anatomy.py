"""Where the CPU time of consuming goes: microseconds a message for each part, beside those of a bare loop.

    PYTHONPATH=. .venv/test/bin/python benchmarks/anatomy.py

Starts the nsqd on PATH (or ``--nsqd``), and runs the Reader and the bare loop in turn, each in a process of its own.
Each part is called once for a read, which has some hundred messages, so the clock costs next to nothing. What belongs
to no part ("sockets and the event loop") is the rest of the process's CPU time. Medians of the rounds.

With ``--rate`` messages come one by one, so many a second, as most do in the world; then the clock costs a few
microseconds of each. nsqd sends each at once there: the Reader asks it to, and the bare loop has one in flight.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import _consumers
from _nsqd import CHANNEL, Nsqd, running_nsqd

MAX_IN_FLIGHT = 2000
_BODY = b"x" * 100
_REST = "sockets and the event loop"
_PATIENCE = 300.0

_spent: defaultdict[str, float] = defaultdict(float)
#: When the part on top began, or went on; parts may contain parts.
_stack: list[tuple[str, float]] = []


def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, whose CPU time, without that of parts in it, counts for ``part``. It must not switch."""

    def call(*arguments: Any, **options: Any) -> Any:
        now = time.process_time()
        if _stack:
            outer, since = _stack[-1]
            _spent[outer] += now - since
        _stack.append((part, now))
        try:
            return function(*arguments, **options)
        finally:
            now = time.process_time()
            _, since = _stack.pop()
            _spent[part] += now - since
            if _stack:
                _stack[-1] = (_stack[-1][0], now)

    return call


def count_down(count: int) -> Callable[[object], None]:
    """A handler; after ``count`` messages it prints the parts and ends the process."""
    left = count
    began = 0.0

    def handle(message: object) -> None:
        nonlocal left, began
        if left == count:
            _spent.clear()
            began = time.process_time()
        left -= 1
        if not left:
            total = time.process_time() - began
            _spent[_REST] = total - sum(_spent.values())
            print(json.dumps({part: seconds / count * 1e6 for part, seconds in _spent.items()}), flush=True)
            os._exit(0)

    return handle


def reader(address: str, topic: str, count: int) -> None:
    from gnsq_like import Reader
    from gnsq_like.connection.connection import Connection
    from gnsq_like.reader import subscription
    from gnsq_like.runtime.worker_pool import WorkerPool
    from gnsq_like.wire.frames import FrameDecoder

    parts: list[tuple[str, Any, str]] = [
        ("cut the frames", FrameDecoder, "feed"),
        ("make Messages", subscription, "make_messages"),
        ("in flight, RDY, backoff", subscription.Subscription, "receive"),
        # A worker runs until it goes idle, and then this goes on in the hub.
        ("call the handler, note its outcome", WorkerPool, "_pump"),
        ("account for the answers", subscription.Subscription, "write_finished"),
        ("make and write FINs", Connection, "finish_many"),
    ]
    for part, owner, name in parts:
        setattr(owner, name, timed(part, getattr(owner, name)))
    Reader(topic, CHANNEL, count_down(count), nsqd_tcp_addresses=address, max_in_flight=MAX_IN_FLIGHT).run()


def bare(address: str, topic: str, count: int, window: int = MAX_IN_FLIGHT) -> None:
    cut = timed("cut the frames, call the handler, make FINs", _consumers.cut)
    _consumers.bare(address, topic, window, count_down(count), 0.0, cut)


KINDS: dict[str, Callable[[str, str, int], None]] = {
    "gnsq_like": reader,
    "bare": bare,
    "bare, one in flight": partial(bare, window=1),
}


def measure(nsqd: Nsqd, kind: str, topic: str, given: argparse.Namespace) -> dict[str, float]:
    """What each part costs a message, in one run."""
    nsqd.make_topic(topic)
    if not given.rate:
        nsqd.fill(topic, [_BODY] * (given.count + 10_000))
    arguments = ["--count", given.count, "--child", kind, nsqd.tcp_address, topic]
    processes = [_consumers.start_script(sys.executable, __file__, *arguments)]
    try:
        if given.rate:
            nsqd.wait_for_consumer(topic)
            publisher = str(Path(__file__).with_name("latency.py"))
            arguments = ["--publish", nsqd.tcp_address, topic, given.rate, given.count]
            processes.append(_consumers.start_script(sys.executable, publisher, *arguments))
        answer, _ = processes[0].communicate(timeout=_PATIENCE)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        nsqd.delete_topic(topic)
    result: dict[str, float] = json.loads(answer.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nsqd", default="nsqd", help="the nsqd to start (default: the one on PATH)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--count", type=int, help="messages of a run (default: 500,000, or 1,000 with --rate)")
    parser.add_argument("--rate", type=float, help="messages a second, one by one (default: as many as can be)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.count = given.count or (1_000 if given.rate else 500_000)
    if given.child:
        kind, address, topic = given.child
        KINDS[kind](address, topic, given.count)
        sys.exit(f"{kind} ended before its last message")
    kinds = ["gnsq_like", "bare, one in flight" if given.rate else "bare"]
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with running_nsqd(given.nsqd, 10_000_000) as nsqd:
        for number, (position, kind) in itertools.product(range(given.rounds), enumerate(kinds)):
            found[kind].append(measure(nsqd, kind, f"anatomy-{position}-{number}", given))
    for kind, results in found.items():
        print(f"{kind}: CPU µs a message")
        medians = {part: statistics.median(result[part] for result in results) for part in results[0]}
        for part, median in medians.items():
            print(f"  {median:5.2f}  {part}")
        print(f"  {statistics.median(sum(result.values()) for result in results):5.2f}  in all")


if __name__ == "__main__":
    main()
