"""What bench.py runs: a line for each mode, in sections that share a bare loop.

A mode is one client in one situation. It runs in a process of its own (``python _modes.py NAME ADDRESS ...``), which
prints a ``Done`` as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import _publishers as publishers
from _consumers import CONSUMERS, Note
from _publishers import Done

MAX_IN_FLIGHT = 2000
#: What the other clients are installed from; each has an environment of its own.
PEERS = {
    "gnsq": ("gnsq==1.0.2",),
    "pynsq": ("pynsq==0.9.1",),
    "ansq": ("ansq==0.3.0",),
    "nsq-py": ("nsq-py==0.1.12",),
    "asyncnsq": ("asyncnsq==1.2.1",),
}


class Mode(NamedTuple):
    """One client in one situation; ``name`` is unique."""

    section: str
    #: Whose client: "gnsq_like", "bare" or a peer.
    client: str
    #: Publishes for a number of seconds; None for a consumer.
    publish: Callable[[str, int, float], Done] | None
    #: How many publish at once.
    at_once: int = 1
    #: Whether its process is monkey-patched first.
    patched: bool = False
    #: For a consumer: its name in CONSUMERS, the bytes of a message, its max_in_flight, and how many messages a second
    #: are published; 0 for a full channel.
    consumer: str = ""
    size: int = 100
    window: int = MAX_IN_FLIGHT
    rate: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.section}: {self.client}"


def _consuming(section: str, size: int, clients: dict[str, str]) -> list[Mode]:
    return [Mode(section, client, None, consumer=consumer, size=size) for client, consumer in clients.items()]


def _sparse(section: str, ours: str, ours_window: int, window: int) -> list[Mode]:
    """A section of messages that come one by one, a hundred a second."""
    clients = {"bare": "bare gevent loop", "gnsq_like": ours, "gnsq": "gnsq", "pynsq": "pynsq"}
    return [
        Mode(section, client, None, consumer=name, window=ours_window if name == ours else window, rate=100.0)
        for client, name in clients.items()
    ]


def _publishing(
    section: str, how: str, at_once: int, patched: bool, bare: str, *peers: str, **options: Any
) -> list[Mode]:
    """A section of publishing: the bare loop, ours, and peers that can do this."""
    ours = partial(publishers.gnsq_like, how=how, **options)
    modes = [
        Mode(section, "bare", getattr(publishers, bare), at_once),
        Mode(section, "gnsq_like", ours, at_once, patched),
    ]
    for peer in peers:
        function = partial(getattr(publishers, peer.replace("-", "_")), how=how)
        modes.append(Mode(section, peer, function, at_once, patched and peer == "gnsq"))
    return modes


def _busy(section: str, interval: float) -> list[Mode]:
    """A section of one caller while a thread computes, with this switch interval of Python's."""
    ways: dict[str, Callable[[str, int, float], Done]] = {
        "bare": publishers.bare_alone,
        "gnsq_like": partial(publishers.gnsq_like, how="plain"),
    }
    return [
        Mode(section, client, partial(publishers.beside_a_busy_thread, publish=publish, interval=interval))
        for client, publish in ways.items()
    ]


MODES = [
    *_consuming(
        "consuming, 100 bytes",
        100,
        {
            "bare": "bare gevent loop",
            "gnsq_like": "gnsq_like",
            "gnsq_like, Batch": "gnsq_like, Batch",
            "gnsq_like, pulled": "gnsq_like, pulled",
            "gnsq": "gnsq",
            "pynsq": "pynsq",
            "ansq": "ansq",
            "nsq-py": "nsq-py",
        },
    ),
    *_consuming(
        "consuming, 10,000 bytes", 10_000, {"bare": "bare gevent loop", "gnsq_like": "gnsq_like", "nsq-py": "nsq-py"}
    ),
    # nsqd sends a message at once to whoever has room for one, or if the client asked for that, as ours does.
    *_sparse("100 a second, at once", "gnsq_like", 200, 1),
    *_sparse("100 a second, in nsqd's buffer", "gnsq_like, buffered", 200, 200),
    *_publishing("one caller, patched", "plain", 1, True, "bare_alone", "gnsq"),
    *_publishing("one caller", "plain", 1, False, "bare_alone", "gnsq", "pynsq", "asyncnsq", "nsq-py"),
    *_publishing("100 greenlets, patched", "plain", 100, True, "bare_greenlets", "gnsq"),
    *_publishing("100 greenlets", "plain", 100, False, "bare_greenlets", "gnsq", "pynsq", "asyncnsq"),
    Mode("100 greenlets", "bare, two threads", publishers.bare_two_threads, 100),
    *_publishing("100 greenlets, batching, patched", "plain", 100, True, "bare_batching", batching=True),
    *_publishing("publish_async, patched", "async", 100, True, "bare_greenlets"),
    *_publishing("MPUB of 100, patched", "mpub", 1, True, "bare_mpub", "gnsq"),
    *_publishing("MPUB of 100", "mpub", 1, False, "bare_mpub", "gnsq", "pynsq", "nsq-py"),
    *_publishing("50 threads", "threads", 50, False, "bare_threads"),
    *_busy("one caller beside a busy thread", 0.005),
    *_busy("the same, switching every 0.5 ms", 0.0005),
]

BY_NAME = {mode.name: mode for mode in MODES}


def _consume(mode: Mode, address: str, topic: str, count: int) -> None:
    """Consume; the process ends with the last message."""
    left = count
    started = cpu = 0.0

    def note(body: bytes) -> None:
        nonlocal left, started, cpu
        if left == count:
            started, cpu = time.monotonic(), time.process_time()
        left -= 1
        if not left:
            print(json.dumps(Done(count, time.monotonic() - started, time.process_time() - cpu)), flush=True)
            os._exit(0)

    noted: Note = note
    CONSUMERS[mode.consumer](address, topic, mode.window, noted, 0.0)
    raise SystemExit(f"{mode.name} ended before its last message")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=BY_NAME)
    parser.add_argument("address")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--topic")
    parser.add_argument("--count", type=int)
    given = parser.parse_args()
    mode = BY_NAME[given.name]
    if mode.patched:
        from gevent import monkey

        monkey.patch_all()
    if mode.publish is None:
        _consume(mode, given.address, given.topic, given.count)
    else:
        done = mode.publish(given.address, mode.at_once, given.seconds)
        print(json.dumps(done), flush=True)
        os._exit(0)  # without the client's own end, which is not measured


if __name__ == "__main__":
    main()
