"""What a Producer is made of while it runs: its pool, and the ways into it.

Rules for editors: call this in the pool's thread only, except ``abandon``. ``waiting`` does that for the callers.
"""

from __future__ import annotations

import logging
from typing import Any

from gnsq_like.producer.batching import Member
from gnsq_like.producer.pool import Pool
from gnsq_like.producer.publish import Publish
from gnsq_like.runtime import native, owner
from gnsq_like.runtime.hub_calls import HubHandle, may_wait_here

logger = logging.getLogger(__name__)


class Running:
    """The parts of a started Producer: made by the first publish, until a fork, close, or the end of their thread."""

    __slots__ = ("_beginning", "hub_handle", "local", "pool", "thread")

    def __init__(self, hub_handle: HubHandle, pool: Pool) -> None:
        self.hub_handle = hub_handle
        self.thread = hub_handle.thread
        self.pool = pool
        #: Whether ``begin`` runs.
        self._beginning = False
        #: What ``waiting`` keeps for each thread that publishes.
        self.local: Any = native.local()

    def may_begin(self) -> bool:
        """Whether ``begin`` may be called here, and may be waited for. In the pool's thread; never switches.

        Not in the hub, nor in a signal handler that interrupted the hub, the greenlet of a connection, or ``begin``.
        """
        return not self._beginning and may_wait_here()

    def begin(self, publish: Publish, now: float) -> None:
        """Send a publish. In the pool's thread; never switches."""
        if publish.done:
            return
        try:
            self._beginning = True
            pool = self.pool
            pool.begin_to_look()
            if type(publish) is Member and pool.batching is not None and pool.nsqds.circuit.reason is None:
                pool.batching.add(publish)
            else:
                pool.deadlines.add(publish)
                pool.send(publish, now)
        finally:
            self._beginning = False

    def begin_all(self, publishes: list[tuple[Publish, float]]) -> None:
        """Send publishes that came together, in one write for each connection. In the pool's hub; never switches."""
        self.pool.holds = len(publishes) > 1
        try:
            for publish, now in publishes:
                try:
                    self.begin(publish, now)
                except Exception:
                    logger.exception("%r could not be begun", publish)
        finally:
            self.pool.holds = False

    def abandon(self) -> None:
        """Drop the connections of a thread that has ended. From any thread; never switches."""
        owner.keep(self)
        self.pool.abandon()

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is pending; False after ``timeout`` seconds. In the pool's thread; may switch."""
        self.pool.lone_caller.close()
        if self.pool.batching is not None:
            self.pool.batching.flush()
        return not self.pool.pending_count or self.pool.drained().wait(timeout)

    def end(self, timeout: float) -> bool:
        """Drain and close. In the pool's thread; may switch."""
        try:
            return self.drain(timeout)
        finally:
            self.pool.close()
