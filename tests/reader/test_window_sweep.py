"""The window, counted frame by frame at proxies that delay each way: connections x max_in_flight x live changes.

A few cells run always; all of them with GNSQ_LIKE_SWEEP=1, or with the real nsqd on PATH by GNSQ_LIKE_SWEEP=real.
"""

from __future__ import annotations

import contextlib
import os
from itertools import product
from typing import Any

import gevent
import pytest

from gnsq_like import Message, Producer, Reader
from gnsq_like.testing import FaultProxy
from tests.support.daemons import running_nsqd, wait_for
from tests.support.frames import RDY_ON_ITS_WAY, Frames, hub_clock

SWEEP = os.environ.get("GNSQ_LIKE_SWEEP", "")
#: Connections, max_in_flight, milliseconds each way.
CELLS = (
    list(product([1, 3, 10], [1, 5, 50], [5, 20, 50])) if SWEEP else [(1, 5, 50), (3, 1, 5), (3, 50, 20), (10, 5, 5)]
)
#: Messages in each phase, beside as many as max_in_flight.
MESSAGES = 30


@pytest.mark.parametrize(("connections", "max_in_flight", "delay_ms"), CELLS)
def test_the_window_holds_while_it_is_changed(connections: int, max_in_flight: int, delay_ms: int) -> None:
    handled = [0]

    def handler(message: Message) -> None:
        gevent.sleep(0.005 * (handled[0] % 5))  # the handlers' own time
        handled[0] += 1

    with contextlib.ExitStack() as stack:
        frames = Frames(max_in_flight, delay_ms / 1000, stack.enter_context(hub_clock()))
        addresses = []
        for number in range(connections):
            kind: Any = "real" if SWEEP == "real" else "ours"
            nsqd = stack.enter_context(running_nsqd(kind, node_id=number))
            with Producer(nsqd.tcp_address) as producer:
                producer.multi_publish("t", [b"x"] * 1000)
            proxy = FaultProxy(nsqd.tcp_address, delay_ms / 1000, observer=frames.observer(number))
            addresses.append(stack.enter_context(proxy).address)
        options: dict[str, Any] = {"max_in_flight": max_in_flight, "low_rdy_timeout": 1.0}
        reader = stack.enter_context(Reader("t", "c", handler, nsqd_tcp_addresses=addresses, **options))
        for limit in (max_in_flight, max(1, max_in_flight // 5), max_in_flight, 2 * max_in_flight, 0, max_in_flight):
            if limit < reader.max_in_flight:
                frames.lower(limit)
                reader.max_in_flight = limit
            else:
                reader.max_in_flight = limit
                frames.lower(limit)
            if limit:
                count = handled[0] + MESSAGES + limit
                wait_for(lambda count=count: handled[0] >= count, timeout=60)  # type: ignore[misc]
            else:
                wait_for(lambda: not reader.stats()["in_flight"])
    if SWEEP:
        cell = f"{connections} connections, max_in_flight {max_in_flight}, {delay_ms} ms"
        counts = f"{frames.received} messages, {frames.rdys} RDY, most {frames.most_in_flight}"
        print(f"{cell}: {counts}, explained {dict(frames.explained)}, unexplained {frames.unexplained}", flush=True)
    assert frames.unexplained == []
    assert frames.most_in_flight >= max_in_flight


def test_the_count_finds_what_breaks_the_window() -> None:
    """One message that RDY allows, one that it does not, and one above max_in_flight."""
    frames = Frames(1, 0.0)
    observe: Any = frames.observer(0)
    other: Any = frames.observer(1)

    def message(number: int) -> bytes:
        data = b"\0\0\0\2" + bytes(8) + b"\0\1" + b"0123456789abcde%d" % number + b"body"
        return len(data).to_bytes(4, "big") + data

    observe(0, "from client", b"  V2IDENTIFY\n\0\0\0\2{}SUB t c\nRDY 1\n")
    observe(0, "to client", message(1))
    assert (frames.in_flight, frames.unexplained) == (1, [])
    observe(0, "to client", message(2))
    assert len(frames.unexplained) == 1
    observe(0, "from client", b"FIN 0123456789abcde1\nFIN 0123456789abcde2\nRDY 0\n")
    observe(0, "to client", message(3))
    assert (len(frames.unexplained), frames.explained[RDY_ON_ITS_WAY]) == (1, 1)
    observe(0, "from client", b"FIN 0123456789abcde3\nRDY 1\n")
    observe(0, "to client", message(5))
    other(0, "from client", b"RDY 1\n")
    other(0, "to client", message(4))
    assert len(frames.unexplained) == 2
