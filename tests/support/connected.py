"""A connection to a scripted nsqd, what it reports, and an nsqd that runs in a thread while the hub stands still."""

from __future__ import annotations

import socket as plain
import threading
from collections.abc import Callable
from typing import Any, Self

import gevent
from gevent.event import Event

from gnsq_like.connection.connection import Connection
from gnsq_like.errors import NsqdError, NSQError
from gnsq_like.options import ConnectionOptions
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.wire.frames import RawMessage
from tests.support.nsqds import identified
from tests.support.peer import OK, PATIENCE, Peer, ScriptedNsqd


class Watcher:
    """Keeps what a connection reports to its owner."""

    def __init__(self) -> None:
        self.passes: list[list[RawMessage]] = []
        self.errors: list[NsqdError] = []
        self.ends: list[NSQError | None] = []
        self.answers = 0
        self.at_answers: Callable[[Connection], object] = lambda _: None
        self.ended = Event()
        self.came = Event()

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_messages": self.on_messages,
            "on_error": self.on_error,
            "on_close": self.on_close,
            "on_answers": self.on_answers,
        }

    def on_messages(self, _: Connection, messages: list[RawMessage]) -> None:
        self.passes.append(messages)
        self.came.set()

    def on_error(self, _: Connection, error: NsqdError) -> None:
        self.errors.append(error)
        self.came.set()

    def on_close(self, _: Connection, error: NSQError | None) -> None:
        self.ends.append(error)
        self.ended.set()

    def on_answers(self, connection: Connection) -> None:
        self.answers += 1
        self.at_answers(connection)


def connect(
    nsqd: ScriptedNsqd, watcher: Watcher | None = None, subscribe: bool = False, **options: Any
) -> tuple[Connection, Peer]:
    """A connection that stands, and its peer."""
    callbacks = {} if watcher is None else watcher.callbacks()
    connection = Connection(nsqd.address, ConnectionOptions(**options), **callbacks)
    script = gevent.spawn(identified, nsqd)
    connection.connect()
    peer: Peer = script.get(timeout=PATIENCE)
    if subscribe:
        asked = gevent.spawn(connection.subscribe, "t", "c")
        assert peer.line() == b"SUB t c"
        peer.send(OK)
        asked.get(timeout=PATIENCE)
    return connection, peer


def confirmed(reply: PendingReply) -> None:
    """Wait for the reply, and raise its error if it has one."""
    assert reply.wait(PATIENCE)
    if reply.error is not None:
        raise reply.error


class PeerInAThread:
    """An nsqd that runs while the hub does not: it takes IDENTIFY, and once ``go`` is set runs ``script``."""

    def __init__(self, script: Callable[[plain.socket], object]) -> None:
        self.go = threading.Event()
        self._script = script
        self._listener = plain.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        with peer:
            peer.settimeout(PATIENCE)
            peer.recv(4096)
            peer.sendall(OK)
            self.go.wait(PATIENCE)
            self._script(peer)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self._thread.join()
        self._listener.close()


class Sink:
    """A script for PeerInAThread: takes all that comes, and answers the publish that is in it."""

    def __init__(self, answer_at: int = 0) -> None:
        self.received = bytearray()
        self._answer_at = answer_at
        self._came = threading.Condition()

    def __call__(self, peer: plain.socket) -> None:
        while data := peer.recv(1 << 20):
            with self._came:
                before = len(self.received)
                self.received += data
                self._came.notify_all()
            if before < self._answer_at <= len(self.received):
                peer.sendall(OK)

    def block_until(self, count: int) -> None:
        """Block this thread, and its hub, until so many bytes came."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.received) >= count, PATIENCE)
