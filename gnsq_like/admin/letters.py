"""Dead letters: sessions in which they are held, read with their reasons, published again, or dropped.

What is neither replayed nor dropped is given back when the time is up. All of this runs in the core's thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gevent

from gnsq_like import Message, Reader
from gnsq_like.admin.upstream import actions
from gnsq_like.admin.upstream.cluster import Cluster
from gnsq_like.errors import NSQError
from gnsq_like.tools.held_letters import CHANNEL, READER_OPTIONS, CannotReplay, HeldLetters

#: The limits of a session.
MOST_LETTERS, SECONDS = 50, 300.0
_MOST_PROBLEMS = 3


@dataclass
class Session:
    """The letters of one topic that are held."""

    topic: str
    #: Seconds since the epoch.
    until: float
    reader: Reader
    letters: HeldLetters
    #: Why a node's letters could not be read.
    problems: deque[str]

    @property
    def held(self) -> dict[str, Message]:
        """By name."""
        return self.letters.held

    @property
    def left(self) -> float:
        return max(0.0, self.until - time.time())

    def end(self) -> None:
        """Give back what is held. May switch."""
        self.reader.pause()  # or nsqd would deliver at once what is given back
        self.letters.release()
        self.reader.stop(1.0)


class Letters:
    """The sessions of this process, one a topic.

    :param options: of Readers, for TLS and AUTH
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._sessions: dict[tuple[str, str], Session] = {}

    def find(self, cluster: str, topic: str) -> Session | None:
        """The session of a topic."""
        return self._sessions.get((cluster, topic))

    def open(self, cluster: Cluster, topic: str) -> Session:
        """Take letters in flight, unless they are already. May switch. Raises NSQError."""
        key = (cluster.name, topic)
        if (found := self._sessions.get(key)) is not None:
            return found
        nodes = cluster.producers_of(topic)
        if not nodes:
            raise CannotReplay(f"no node has {topic}")
        letters = HeldLetters()
        problems: deque[str] = deque(maxlen=_MOST_PROBLEMS)
        reader = Reader(
            topic,
            CHANNEL,
            letters.hold,
            nsqd_tcp_addresses=[node.tcp_address for node in nodes],
            max_in_flight=MOST_LETTERS,
            on_error=lambda address, error: problems.append(f"{address}: {error}"),
            **{**self._options, **READER_OPTIONS},
        )
        session = self._sessions[key] = Session(topic, time.time() + SECONDS, reader, letters, problems)
        reader.start()
        gevent.spawn_later(SECONDS, self.release, cluster, topic, session)
        return session

    def replay(self, cluster: Cluster, topic: str, letter: str) -> str:
        """Publish a letter to the topic that it came from, then finish it. May switch. Raises NSQError.

        :returns: that topic
        """

        def publish(to: str, body: bytes) -> None:
            nodes = cluster.producers_of(to)
            if not nodes:
                raise CannotReplay(f"no node has the topic {to}")
            actions.publish(cluster, nodes[0].address, to, body, None)

        return self._held(cluster, topic).replay(letter, publish)

    def replay_all(self, cluster: Cluster, topic: str) -> tuple[int, list[str]]:
        """Publish all letters that are held, each to its topic. May switch.

        :returns: how many were, and why others were not
        """
        count = 0
        problems: dict[str, None] = {}
        for letter in list(self._held(cluster, topic).held):
            try:
                self.replay(cluster, topic, letter)
            except NSQError as exc:
                problems[str(exc)] = None
            else:
                count += 1
        return count, [*problems]

    def drop(self, cluster: Cluster, topic: str, letter: str) -> None:
        """Finish a letter. Never switches. Raises CannotReplay."""
        self._held(cluster, topic).drop(letter)

    def _held(self, cluster: Cluster, topic: str) -> HeldLetters:
        session = self._sessions.get((cluster.name, topic))
        return session.letters if session is not None else HeldLetters()

    def release(self, cluster: Cluster, topic: str, session: Session | None = None) -> None:
        """Give back what is held. May switch.

        :param session: only this one
        """
        key = (cluster.name, topic)
        found = self._sessions.get(key)
        if found is None or (session is not None and session is not found):
            return
        del self._sessions[key]
        found.end()

    def stop(self) -> None:
        """Give everything back. May switch."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.end()
