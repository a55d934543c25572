"""Dead letters: read with their reasons, published again, or dropped.

They are taken in flight from a durable channel, and nothing is finished before the user says so: what is neither
replayed nor dropped is requeued when the time is up, and after a crash nsqd delivers it again. All of this runs in the
core's thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import gevent

from gnsq_like import Message, Reader
from gnsq_like.admin.upstream import actions
from gnsq_like.admin.upstream.cluster import Cluster
from gnsq_like.deadletter import DeadLetter, open_envelope
from gnsq_like.errors import NSQError, UsageError

#: The channel; a topic without any gives its backlog to it.
CHANNEL = "dead-letters"
#: The limits of a session.
MOST_LETTERS, SECONDS = 50, 300.0
#: Seconds for which nsqd leaves a letter to us: longer than a session.
_MSG_TIMEOUT = SECONDS + 60.0


class CannotReplay(NSQError):
    """A letter that is not held any more, or cannot be published again; the text is for the user."""


@dataclass
class Session:
    """The letters of one topic that are held."""

    topic: str
    #: Seconds since the epoch.
    until: float
    reader: Reader
    #: By node and id.
    held: dict[str, Message] = field(default_factory=dict)

    @property
    def left(self) -> float:
        return max(0.0, self.until - time.time())


def read_letter(message: Message) -> DeadLetter | None:
    """The envelope in a message; None if it is none."""
    try:
        return open_envelope(message.body)
    except UsageError:
        return None


class Letters:
    """The sessions of this process, one a topic."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], Session] = {}

    def find(self, cluster: str, topic: str) -> Session | None:
        """The session of a topic."""
        return self._sessions.get((cluster, topic))

    def open(self, cluster: Cluster, topic: str) -> Session:
        """Take letters in flight, unless they are already. May switch. Raises NSQError."""
        key = (cluster.name, topic)
        if (found := self._sessions.get(key)) is not None:
            return found
        nodes = cluster.producers_of(topic).value
        if not nodes:
            raise CannotReplay(f"no node has {topic}")
        reader = Reader(
            topic,
            CHANNEL,
            lambda message: self._hold(session, message),
            nsqd_tcp_addresses=[node.tcp_address for node in nodes],
            max_in_flight=MOST_LETTERS,
            max_attempts=0,
            max_backoff_duration=0,
            msg_timeout=_MSG_TIMEOUT,
        )
        session = self._sessions[key] = Session(topic, time.time() + SECONDS, reader)
        reader.start()
        gevent.spawn_later(SECONDS, self.release, cluster, topic, session)
        return session

    def _hold(self, session: Session, message: Message) -> None:
        message.enable_async()
        session.held[f"{message.nsqd_address}/{message.id}"] = message

    def replay(self, cluster: Cluster, topic: str, letter: str) -> str:
        """Publish a letter to the topic that it came from, then finish it. May switch. Raises NSQError.

        :returns: that topic
        """
        session, message = self._take(cluster, topic, letter)
        try:
            found = read_letter(message)
            if found is None:
                raise CannotReplay("it is no envelope, so nobody knows where it came from")
            nodes = cluster.producers_of(found.topic).value
            if not nodes:
                raise CannotReplay(f"no node has the topic {found.topic}")
            actions.publish(cluster, nodes[0].address, found.topic, found.body, None)
        except BaseException:
            if self._sessions.get((cluster.name, topic)) is session:
                session.held[letter] = message
            else:
                message.requeue(delay=0, backoff=False)
            raise
        message.finish()
        return found.topic

    def drop(self, cluster: Cluster, topic: str, letter: str) -> None:
        """Finish a letter. Never switches. Raises CannotReplay."""
        self._take(cluster, topic, letter)[1].finish()

    def _take(self, cluster: Cluster, topic: str, letter: str) -> tuple[Session, Message]:
        # Taken out, so that two clicks do not publish it twice.
        session = self._sessions.get((cluster.name, topic))
        message = session.held.pop(letter, None) if session is not None else None
        if session is None or message is None:
            raise CannotReplay("the letter is not held any more; read again")
        return session, message

    def release(self, cluster: Cluster, topic: str, session: Session | None = None) -> None:
        """Give back what is held. May switch.

        :param session: only this one
        """
        key = (cluster.name, topic)
        found = self._sessions.get(key)
        if found is None or (session is not None and session is not found):
            return
        del self._sessions[key]
        for message in found.held.values():
            message.requeue(delay=0, backoff=False)
        found.held.clear()
        found.reader.stop(1.0)

    def stop(self) -> None:
        """Give everything back. May switch."""
        for key, session in list(self._sessions.items()):
            del self._sessions[key]
            for message in session.held.values():
                message.requeue(delay=0, backoff=False)
            session.reader.stop(1.0)
