"""Dead letters: sessions that hold them in flight, and show, replay or drop them.

Letters that are neither replayed nor dropped are given back when the session ends. Runs in the core's thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gevent

from gnsq_like.admin.upstream.cluster import Cluster
from gnsq_like.errors import NSQError
from gnsq_like.tools.dead_letters import CannotReplay, DeadLetterQueue

#: The limits of a session.
MOST_LETTERS, SECONDS = 50, 300.0


@dataclass
class Session:
    """The letters of one topic that are held."""

    queue: DeadLetterQueue
    #: Seconds since the epoch.
    until: float

    @property
    def left(self) -> float:
        return max(0.0, self.until - time.time())


class Letters:
    """The sessions of this process, one a topic.

    :param options: of connections, for TLS and AUTH
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
        queue = DeadLetterQueue(cluster.daemons, topic, most=MOST_LETTERS, options=self._options)
        session = self._sessions.setdefault(key, Session(queue, time.time() + SECONDS))
        if session.queue is queue:  # nobody else has opened it meanwhile
            queue.__enter__()
            gevent.spawn_later(SECONDS, self.release, cluster, topic, session)
        return session

    def replay(self, cluster: Cluster, topic: str, letter: str) -> str:
        """Publish a letter to the topic that it came from, then finish it. May switch. Raises NSQError.

        :returns: that topic
        """
        try:
            return self._queue(cluster, topic).replay(letter)
        finally:
            cluster.shared.forget()

    def replay_all(self, cluster: Cluster, topic: str) -> tuple[int, list[str]]:
        """Publish all letters that are held, each to its topic. May switch.

        :returns: how many were published, and why others were not
        """
        count = 0
        problems: dict[str, None] = {}
        for letter in list(self._queue(cluster, topic).held):
            try:
                self.replay(cluster, topic, letter)
            except NSQError as exc:
                problems[str(exc)] = None
            else:
                count += 1
        return count, [*problems]

    def drop(self, cluster: Cluster, topic: str, letter: str) -> None:
        """Finish a letter. Never switches. Raises CannotReplay."""
        self._queue(cluster, topic).drop(letter)

    def _queue(self, cluster: Cluster, topic: str) -> DeadLetterQueue:
        session = self._sessions.get((cluster.name, topic))
        if session is None:
            raise CannotReplay("the letters are not held any more; read again")
        return session.queue

    def release(self, cluster: Cluster, topic: str, session: Session | None = None) -> None:
        """Give back what is held. May switch.

        :param session: only this one
        """
        key = (cluster.name, topic)
        found = self._sessions.get(key)
        if found is None or (session is not None and session is not found):
            return
        del self._sessions[key]
        found.queue.__exit__()

    def stop(self) -> None:
        """Give everything back. May switch."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.queue.__exit__()
