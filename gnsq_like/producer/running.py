"""``Running``: the parts of a started Producer, and how publishes begin and end with them.

Rules for editors: a Running may be made in any thread; its methods are called in the pool's only.
"""

from __future__ import annotations

from gnsq_like.producer.pool import Pool
from gnsq_like.producer.publish import Publish
from gnsq_like.runtime.hub_calls import HubHandle


class Running:
    """The parts of a started Producer: made by the first publish, until a fork, close, or the end of their thread."""

    __slots__ = ("beginning", "hub_handle", "pool", "thread")

    def __init__(self, hub_handle: HubHandle, pool: Pool) -> None:
        self.hub_handle = hub_handle
        self.thread = hub_handle.thread
        self.pool = pool
        #: Whether ``begin`` runs: a signal handler that interrupts it must begin no other, because each publish would
        #: take the other's answer, or wait for one that never comes.
        self.beginning = False

    def begin(self, publish: Publish, now: float) -> None:
        """Send a publish, or add it to a batch. In the pool's thread; never switches."""
        pool = self.pool
        try:
            self.beginning = True
            if pool.batching is not None and pool.away is None and publish.command.startswith(b"PUB "):
                pool.batching.add(publish, now)
            else:
                pool.send(publish, now)
                pool.watch(publish)  # last, because that costs no time while nsqd works on its answer
        finally:
            self.beginning = False

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is pending; False after ``timeout`` seconds. In the pool's thread; may switch."""
        if self.pool.batching is not None:
            self.pool.batching.flush()
        return self.pool.is_drained() or self.pool.when(self.pool.is_drained).wait(timeout)

    def end(self, timeout: float) -> bool:
        """Drain and close. In the pool's thread; may switch."""
        try:
            return self.drain(timeout)
        finally:
            self.pool.close()
