"""A Reader on scripted nsqds, and what an nsqd says to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gevent.event import Event

from gnsq_like import Batch, Message, Reader
from tests.support.daemons import Running
from tests.support.patient import NsqdHTTPClient
from tests.support.peer import CLOSE_WAIT, Peer, ScriptedNsqd

#: Ids of messages: ``ID % 1``.
ID = b"0123456789abcde%d"


def ignore(message: Message) -> None:
    """A handler that does nothing."""


def reading(
    nsqds: Iterable[ScriptedNsqd], handler: Callable[[Message], bool | None] | Batch | None = ignore, **options: Any
) -> Reader:
    """A Reader of t/c at these nsqds, not started."""
    addresses = [nsqd.address for nsqd in nsqds]
    return Reader("t", "c", handler, nsqd_tcp_addresses=addresses, **options)


class Gate:
    """A handler that blocks until it is let go."""

    def __init__(self) -> None:
        self.open = Event()
        self.inside = 0
        self.most_inside = 0
        self.entered = Event()
        self.bodies: list[bytes] = []

    def __call__(self, message: Message) -> None:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.entered.set()
        self.bodies.append(message.body)
        try:
            self.open.wait()
        finally:
            self.inside -= 1


def serve(nsqd: ScriptedNsqd, **answer: object) -> Peer:
    """Accept a Reader's connection and answer up to its first RDY; ``answer`` is nsqd's to IDENTIFY."""
    peer = nsqd.accept()
    peer.subscribe(**answer)
    assert peer.line().startswith(b"RDY")
    return peer


def answer_cls(peer: Peer) -> list[bytes]:
    """Read on until CLS comes, and answer it; the lines before it."""
    lines = []
    while (line := peer.line()) != b"CLS":
        lines.append(line)
    peer.send(CLOSE_WAIT)
    return lines


def until(peer: Peer, last: bytes) -> list[bytes]:
    """The lines up to one that begins so, that one included."""
    lines = [peer.line()]
    while not lines[-1].startswith(last):
        lines.append(peer.line())
    return lines


# -- a channel's figures, from the nsqd's HTTP API -------------------------------------------------


def channel_stats(nsqd: Running, topic: str = "t", channel: str = "c") -> dict[str, Any]:
    """Empty while there is no such channel."""
    with NsqdHTTPClient(nsqd.http_address) as client:
        for found in client.stats(topic=topic)["topics"] or []:
            for each in found["channels"]:
                if each["channel_name"] == channel:
                    return dict(each)
    return {}


def finished(nsqd: Running, topic: str = "t", channel: str = "c") -> bool:
    """Whether the channel exists and holds nothing more."""
    stats = channel_stats(nsqd, topic, channel)
    return bool(stats) and stats["depth"] == stats["in_flight_count"] == stats["deferred_count"] == 0
