"""What a Producer is made of while it runs: its pool, and the ways into it.

Rules for editors: call this in the pool's thread only, except ``abandon``. ``waiting`` does that for the callers.
"""

from __future__ import annotations

import logging
from typing import Any

from gnsq_like.producer.batching import Batching, Member
from gnsq_like.producer.encoder import Encoder
from gnsq_like.producer.pool import Pool
from gnsq_like.producer.publish import Publish
from gnsq_like.producer.replicas import Replicas
from gnsq_like.runtime import native, owner
from gnsq_like.runtime.hub_calls import HubHandle, may_wait_here

logger = logging.getLogger(__name__)


class Running:
    """The parts of a started Producer: made by the first publish, until a fork, close, or the end of their thread."""

    __slots__ = ("_beginning", "batching", "hub_handle", "local", "pool", "submit", "thread")

    def __init__(self, hub_handle: HubHandle, pool: Pool, encoder: Encoder) -> None:
        options = pool.options
        self.hub_handle = hub_handle
        self.thread = hub_handle.thread
        self.pool = pool
        self.submit = pool.submit
        if options.replicas > 1:
            self.submit = Replicas(pool, options.replicas, options.quorum).submit
        self.batching = Batching(pool, encoder, self.submit) if options.batching else None
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
            self.pool.begin_to_look()
            if type(publish) is Member and self.pool.circuit.reason is None:
                self.batching.add(publish)  # type: ignore[union-attr]
            else:
                self.pool.deadlines.add(publish)
                self.submit(publish, now)
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
        if self.batching is not None:
            self.batching.flush()
        return not self.pool.pending_count or self.pool.drained().wait(timeout)

    def end(self, timeout: float) -> bool:
        """Drain and close. In the pool's thread; may switch."""
        try:
            return self.drain(timeout)
        finally:
            self.pool.close()
