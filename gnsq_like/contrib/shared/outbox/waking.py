"""How a relay waits: until a transaction with new rows has committed, or for a time.

In the relay's own process the commit writes a byte into a pipe. On PostgreSQL the transaction sends a notification,
which the server passes on when it commits, and the relay listens on a connection of its own. Notifications may be
missed (a lost connection, a pooler in between), so the relay also polls after each interval.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

#: PostgreSQL's name for the notifications.
CHANNEL = "gnsq_like_outbox"
#: Seconds between two tries to listen.
_RETRY = 5.0


class Listening:
    """A connection that listens; made by the function that opens one.

    :param raw: psycopg's connection, 3 or 2, in autocommit mode, after LISTEN
    :param close: closes it
    """

    def __init__(self, raw: Any, close: Callable[[], object]) -> None:
        self._raw = raw
        self._close = close

    def fileno(self) -> int:
        """For select."""
        return int(self._raw.fileno())

    def take(self) -> None:
        """Read the notifications that have arrived. Raises what the driver raises when the connection is lost."""
        if hasattr(self._raw, "pgconn"):
            self._raw.pgconn.consume_input()
            while self._raw.pgconn.notifies():
                pass
        else:
            self._raw.poll()
            self._raw.notifies.clear()

    def close(self) -> None:
        """Close the connection, whatever its state."""
        with contextlib.suppress(Exception):
            self._close()

    @staticmethod
    def is_possible(raw: Any) -> bool:
        """Whether this driver's connections can be waited for."""
        return hasattr(raw, "pgconn") or (hasattr(raw, "poll") and hasattr(raw, "notifies"))


class Waiting:
    """A relay's place to wait. :meth:`wake` may be called from anywhere; the rest belongs to the relay's thread.

    :param listen: opens a connection that listens; None if that is impossible. May raise any exception
    """

    def __init__(self, listen: Callable[[], Listening | None]) -> None:
        self._listen = listen
        self._listening: Listening | None = None
        self._may_listen = True
        #: Monotonic time of the next try to listen.
        self._next_try = 0.0
        #: Held while the pipe is written or closed, because a closed descriptor may soon be another file's.
        self._lock = threading.Lock()
        self._is_closed = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        _places.add(self)

    def wake(self) -> None:
        """End the wait, or the next one. Never blocks."""
        with self._lock, contextlib.suppress(BlockingIOError):  # full: it wakes anyway
            if not self._is_closed:
                os.write(self._write, b"x")

    def wait(self, seconds: float) -> None:
        """Wait until :meth:`wake`, a notification, or the end of the time. May switch, or block."""
        listening = self._connected()
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if listening is not None:
            poll.register(listening.fileno(), select.POLLIN)
        ready = {file for file, _ in poll.poll(max(0.0, seconds) * 1000)}
        if self._read in ready:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._read, 4096):
                    pass
        if listening is not None and ready - {self._read}:
            try:
                listening.take()
            except Exception as exc:
                logger.info("the outbox's relay no longer listens, and looks from time to time: %s", exc)
                self._drop()

    def listen(self) -> None:
        """Begin to listen, where that is possible, so that nothing that commits from now on is missed."""
        self._connected()

    def _connected(self) -> Listening | None:
        if self._listening is None and self._may_listen and time.monotonic() >= self._next_try:
            self._next_try = time.monotonic() + _RETRY
            try:
                self._listening = self._listen()
                self._may_listen = self._listening is not None
            except Exception as exc:
                logger.info("the outbox's relay cannot listen, and looks from time to time: %s", exc)
        return self._listening

    def _drop(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def close(self) -> None:
        """Close the pipe and the connection."""
        _places.discard(self)
        self._drop()
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._read)
                os.close(self._write)


#: The relays that wait in this process.
_places: weakref.WeakSet[Waiting] = weakref.WeakSet()


def wake_all() -> None:
    """Wake this process's relays: a transaction with new rows has committed. Never blocks."""
    for place in list(_places):
        place.wake()
