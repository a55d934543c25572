"""Whether publishes fail at once because nsqd is unreachable: the option ``fail_fast``.

Without it each publish waits for an nsqd until its own deadline, and a web server's threads wait with it. With it the
circuit opens when fewer nsqds are left than a publish needs, and the pool fails every publish with the reason. An nsqd
is away if the last try to connect to it failed, or if it is connected but doubted; one whose first try is under way is
not. A round of discovery must have ended, because it may find others.

While the circuit is open no publish is sent. The nsqds are redialled instead, at least once a second, also beside a
doubted connection, and the circuit closes when as many as needed have answered IDENTIFY, or their doubted connections
have come back to life.

Rules for editors: ``check`` alone opens and closes. Nothing here switches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Protocol

from gnsq_like.options import ProducerOptions
from gnsq_like.producer.destination import Destination
from gnsq_like.runtime.timer import Timer

logger = logging.getLogger(__name__)

#: Seconds between two checks while the circuit is open, at most: nothing reports a heartbeat of a doubted nsqd.
_INTERVAL = 0.5


class CircuitOwner(Protocol):
    """``Nsqds``. Nothing here switches."""

    options: ProducerOptions
    destinations: list[Destination]
    surveyed: bool

    def why(self, but: Collection[str] = ()) -> str: ...
    def look_again(self) -> None: ...
    def changed(self) -> None: ...


class Circuit:
    """Open or closed, for one pool; to be used in the pool's thread, except for reading ``reason``."""

    def __init__(self, nsqds: CircuitOwner) -> None:
        options = nsqds.options
        self._nsqds = nsqds
        self._enabled = options.fail_fast
        #: How many nsqds a publish needs.
        self._needed = options.replicas if options.quorum is None else options.quorum
        #: Why publishes fail at once; None while the circuit is closed, and always without ``fail_fast``.
        self.reason: str | None = None
        #: Monotonic time since which it is open; None while it is closed.
        self.since: float | None = None
        self._timer = Timer(nsqds.changed)

    def check(self) -> bool:
        """Open or close as the destinations require, and redial them while open. Returns whether it is open."""
        if not self._enabled:
            return False
        now = time.monotonic()
        destinations = self._nsqds.destinations
        too_few_usable = sum(destination.usable for destination in destinations) < self._needed
        left = [destination.name for destination in destinations if not destination.away]
        is_open = self.reason is not None
        if is_open and not too_few_usable:
            self._close(now)
            return False
        if not is_open and (len(left) >= self._needed or not self._nsqds.surveyed):
            if too_few_usable:
                for destination in destinations:
                    destination.reconnect(now)
            return False
        away = "every nsqd is unreachable" if self._needed == 1 else f"fewer than {self._needed} nsqds are left"
        self.reason = f"{away}: {self._nsqds.why(but=left)}"
        if not is_open:
            self.since = now
            self._nsqds.look_again()
            logger.warning("publishes fail at once from now on: %s", self.reason)
        self._redial(now)
        return True

    def _redial(self, now: float) -> None:
        due = [destination.redial(now) for destination in self._nsqds.destinations if not destination.usable]
        self._timer.set_at(min([now + _INTERVAL, *due]))

    def _close(self, now: float) -> None:
        assert self.since is not None
        logger.warning("publishes are sent again, after %.1f s", now - self.since)
        self.reason = self.since = None
        self._timer.cancel()

    def cancel(self) -> None:
        """Check no more by itself; twice is fine."""
        self._timer.cancel()
