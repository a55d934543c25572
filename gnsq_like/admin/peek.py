"""A look at the messages that are published from now on, for a short time.

It uses an additional, ephemeral channel, so consumers notice nothing. Nodes where the topic has no other channel are
skipped, because a topic's first channel takes the whole backlog, and an ephemeral one drops it at its end. Runs in the
core's thread.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gevent

from gnsq_like import Message, Reader
from gnsq_like.admin.history.trend import PEEK_PREFIX, is_peek
from gnsq_like.admin.upstream.cluster import Cluster
from gnsq_like.admin.web.words import body
from gnsq_like.errors import NSQError

#: The limits of a look.
MOST_MESSAGES, SECONDS = 50, 30.0
#: Looks at the same time, and ended ones that are kept for their pages.
_MOST_RUNNING, _MOST_KEPT = 8, 32
#: Messages a second that a look at a busy topic should get, by its sample rate.
_ENOUGH = 20.0


class CannotLook(NSQError):
    """The look was refused; the text is for the user."""


@dataclass
class Look:
    """One look at a topic."""

    topic: str
    #: Seconds since the epoch.
    began: float
    #: Percent; 0 for all messages.
    sample_rate: int
    #: Nodes where the topic has no channel.
    skipped: list[str]
    messages: list[dict[str, Any]] = field(default_factory=list)
    running: bool = True
    #: Why a node could not be looked at.
    problems: list[str] = field(default_factory=list)

    @property
    def left(self) -> float:
        """Seconds until it ends."""
        return max(0.0, self.began + SECONDS - time.time())


class Peeks:
    """The looks of this process, one a topic.

    :param options: of Readers, for TLS and AUTH
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._looks: dict[tuple[str, str], Look] = {}
        self._readers: dict[tuple[str, str], Reader] = {}

    def find(self, cluster: str, topic: str) -> Look | None:
        """The last look at a topic."""
        return self._looks.get((cluster, topic))

    def start(self, cluster: Cluster, topic: str, rate: float) -> Look:
        """Begin a look, unless one is under way. May switch.

        :param rate: messages a second of the topic; nan if unknown
        :raises NSQError: CannotLook, or NoAnswer
        """
        key = (cluster.name, topic)
        found = self._looks.get(key)
        if found is not None and found.running:
            return found
        if len(self._readers) >= _MOST_RUNNING:
            raise CannotLook("too many looks are under way; wait for half a minute")
        report = cluster.topic(topic).value
        eligible = {
            figures.node
            for figures in report.total.nodes
            if any(not is_peek(channel.channel_name) for channel in figures.channels)
        }
        nodes = [node for node in report.nodes if node.address in eligible]
        if not nodes:
            raise CannotLook(
                f"{topic} has no channel yet. The first channel takes the whole backlog, and a look would lose it."
            )
        skipped = [node.address for node in report.nodes if node.address not in eligible]
        sample_rate = 0 if math.isnan(rate) or rate <= 2 * _ENOUGH else max(1, min(99, round(100 * _ENOUGH / rate)))
        look = Look(topic, time.time(), sample_rate, skipped)
        self._keep(key, look)
        reader = Reader(
            topic,
            f"{PEEK_PREFIX}{secrets.token_hex(4)}#ephemeral",
            lambda message: self._take(key, look, message),
            nsqd_tcp_addresses=[node.tcp_address for node in nodes],
            max_in_flight=MOST_MESSAGES,
            sample_rate=sample_rate,
            on_error=lambda address, error: look.problems.append(f"{address}: {error}"),
            **self._options,
        )
        reader.start()
        self._readers[key] = reader
        gevent.spawn_later(SECONDS, self._end, key, look)
        return look

    def _keep(self, key: tuple[str, str], look: Look) -> None:
        self._looks.pop(key, None)
        self._looks[key] = look
        for old in list(self._looks):
            if len(self._looks) > _MOST_KEPT and not self._looks[old].running:
                del self._looks[old]

    def _take(self, key: tuple[str, str], look: Look, message: Message) -> None:
        if len(look.messages) < MOST_MESSAGES:
            look.messages.append(
                {
                    "id": message.id,
                    "node": message.nsqd_address,
                    "timestamp": message.timestamp,
                    "attempts": message.attempts,
                    "size": len(message.body),
                    "text": body(message.body),
                }
            )
        if len(look.messages) == MOST_MESSAGES and look.running:
            look.running = False
            gevent.spawn(self._end, key, look)

    def _end(self, key: tuple[str, str], look: Look) -> None:
        look.running = False
        if self._looks.get(key) in (look, None) and (reader := self._readers.pop(key, None)) is not None:
            reader.stop(1.0)

    def stop(self) -> None:
        """End all. May switch."""
        for key, look in list(self._looks.items()):
            self._end(key, look)
