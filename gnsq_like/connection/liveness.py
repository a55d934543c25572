"""Whether the peer is alive: it sends something at least every two heartbeat intervals, and it takes bytes.

Looked at from a timer of the hub. A hub that was blocked for long must not count that against the peer, so each
finding is checked against the socket itself, which knows what has come and what would go, before it is believed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from gnsq_like.connection.outbox import Outbox

#: A peer that sent nothing for so many heartbeat intervals is dead (nsqd's own rule for clients, docs/internals 1.14).
_SILENT_INTERVALS = 2.0
#: Seconds between two looks: often enough for write_timeout's default of 5.
_INTERVAL = 1.0


class Watched(Protocol):
    """A connection's transport, as it is watched."""

    def has_input(self) -> bool: ...


class Liveness:
    """Watches one connection from the moment it is made.

    :param last_received_at: gives the monotonic time of the last bytes
    :param on_dead: called with the reason; must not switch
    """

    def __init__(
        self,
        loop: Any,
        transport: Watched,
        outbox: Outbox,
        *,
        heartbeat_interval: float,
        write_timeout: float,
        last_received_at: Callable[[], float],
        on_dead: Callable[[str], object],
    ) -> None:
        self._transport = transport
        self._outbox = outbox
        self._heartbeat_interval = heartbeat_interval
        self._write_timeout = write_timeout
        self._last_received_at = last_received_at
        self._on_dead = on_dead
        self._timer = loop.timer(_INTERVAL, _INTERVAL)
        self._timer.start(self._check)

    def close(self) -> None:
        """Watch no more; twice is fine."""
        self._timer.close()

    def _check(self) -> None:
        now = time.monotonic()
        if self._stalled(now) is not None:
            # A hub that was blocked for long has not seen yet that the socket takes bytes again.
            self._outbox.flush()
            stalled = self._stalled(now)
            if stalled is not None:
                self._on_dead(f"it took no bytes for {stalled:.1f} s")
                return
        silent = now - self._last_received_at()
        if silent > _SILENT_INTERVALS * self._heartbeat_interval and not self._transport.has_input():
            self._on_dead(f"nothing came for {silent:.1f} s, heartbeats included")

    def _stalled(self, now: float) -> float | None:
        """Seconds without a byte taken, if those are more than ``write_timeout``."""
        since = self._outbox.stalled_since
        return None if since is None or now - since <= self._write_timeout else now - since
