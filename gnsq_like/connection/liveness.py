"""Detects a dead peer: one that sent nothing for two heartbeat intervals, or accepts no bytes.

Checked from a timer of the hub, which also has the connection look after itself. Time in which the hub was blocked must
not count against the peer, so each suspicion is first verified on the socket itself: whether it has input, whether it
accepts output.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from gnsq_like.connection.write_buffer import WriteBuffer
from gnsq_like.options import ConnectionOptions

#: Heartbeat intervals of silence after which the peer is dead (nsqd's own rule for clients, docs/internals 1.14).
_SILENT_INTERVALS = 2.0
#: Seconds between checks: often enough for write_timeout's default of 5.
_INTERVAL = 1.0


class Watched(Protocol):
    """The part of a transport that is needed here."""

    def has_input(self) -> bool: ...


class Liveness:
    """Watches one connection, from :meth:`start` until :meth:`close`.

    :param options: of which ``heartbeat_interval`` and ``write_timeout`` count
    :param last_received_at: returns the monotonic time of the last bytes received
    :param on_dead: called with the reason; must not switch
    :param on_look: called first at each check; must not switch
    """

    def __init__(
        self,
        loop: Any,
        transport: Watched,
        write_buffer: WriteBuffer,
        options: ConnectionOptions,
        last_received_at: Callable[[], float],
        on_dead: Callable[[str], object],
        on_look: Callable[[], object],
    ) -> None:
        self._transport = transport
        self._write_buffer = write_buffer
        self._options = options
        self._last_received_at = last_received_at
        self._on_dead = on_dead
        self._on_look = on_look
        self._timer = loop.timer(_INTERVAL, _INTERVAL)

    def start(self) -> None:
        """Start watching. Never switches."""
        self._timer.start(self._check)

    def close(self) -> None:
        """Stop watching; twice is fine."""
        self._timer.close()

    def _check(self) -> None:
        self._on_look()
        # A hub that was blocked may not have noticed that the socket is writable again.
        self._write_buffer.flush()
        now = time.monotonic()
        since = self._write_buffer.stalled_since
        if since is not None and now - since > self._options.write_timeout:
            self._on_dead(f"it accepted no bytes for {now - since:.1f} s")
            return
        silent = now - self._last_received_at()
        if silent > _SILENT_INTERVALS * self._options.heartbeat_interval and not self._transport.has_input():
            self._on_dead(f"nothing received for {silent:.1f} s, not even heartbeats")
