"""Messages a second by max_in_flight and the duration of a handler.

An nsqd is started on free loopback ports. For each cell a Reader in a process of its own, with one connection, handles
messages of 100 bytes from a full channel for some seconds; its handlers wait cooperatively, as for a database. The
last column is what max_in_flight and the handler alone would allow.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from typing import Any

from _consumers import CONSUMERS, start_script
from _nsqd import Nsqd, running_nsqd

WINDOWS = (1, 10, 50, 200, 1000, 2500)
PAUSES_MS = (0, 5, 20, 100)
#: More messages than are handled in a cell.
_MESSAGES = 1_000_000
_SIZE = 100
#: Seconds for a cell to begin and end.
_PATIENCE = 60.0


def consume(address: str, topic: str, window: int, pause: float, seconds: float) -> None:
    """Print the messages a second of a while that begins with the first message."""
    began = count = 0.0

    def note(_body: Any) -> None:
        nonlocal began, count
        now = time.monotonic()
        began = began or now
        count += 1
        if now - began >= seconds:
            print(count / (now - began), flush=True)
            os._exit(0)

    CONSUMERS["gnsq_like"](address, topic, window, note, pause)


def measure(nsqd: Nsqd, topic: str, window: int, pause: float, seconds: float) -> float:
    """A cell: messages a second."""
    most = window / pause if pause else _MESSAGES
    nsqd.make_topic(topic)
    nsqd.fill(topic, itertools.repeat(b"x" * _SIZE, int(min(_MESSAGES, most * (seconds + 2) + 2 * window))))
    process = start_script(
        sys.executable, __file__, "--seconds", seconds, "--cell", nsqd.tcp_address, topic, window, pause
    )
    try:
        output, _ = process.communicate(timeout=_PATIENCE + seconds)
    finally:
        process.kill()
    nsqd.delete_topic(topic)
    return float(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nsqd", default="nsqd", help="the nsqd to start (default: the one on PATH)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a cell (default: %(default)s)")
    parser.add_argument("--window", type=int, action="append", help="a max_in_flight; may be repeated")
    parser.add_argument("--handler-ms", type=float, action="append", help="may be repeated")
    parser.add_argument("--cell", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        address, topic, window, pause = arguments.cell
        consume(address, topic, int(window), float(pause), arguments.seconds)
        return
    print(f"{'handler':>10}{'max_in_flight':>16}{'messages/s':>13}{'at most':>11}")
    cells = itertools.product(arguments.handler_ms or PAUSES_MS, arguments.window or WINDOWS)
    with running_nsqd(arguments.nsqd, 2 * _MESSAGES, "--max-rdy-count=2500") as nsqd:
        for number, (pause_ms, window) in enumerate(cells):
            rate = measure(nsqd, f"window-{number}", window, pause_ms / 1000, arguments.seconds)
            most = f"{1000 * window / pause_ms:,.0f}" if pause_ms else ""
            print(f"{pause_ms:>7g} ms{window:>16}{rate:>13,.0f}{most:>11}", flush=True)


if __name__ == "__main__":
    main()
