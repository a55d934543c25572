"""The thread that publishes alone, to which the connection is lent (``connection.lease``).

Only a thread without a hub, because it has no greenlets that would wait meanwhile. Only with one nsqd, and without
replicas and batches, so that the next publish can use the same connection. A thread qualifies by a row of publishes
that follow each other quickly, without one of another thread in between: threads that take turns hand their publishes
over.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from gnsq_like.connection.connection import Connection
from gnsq_like.connection.lease import IS_POSSIBLE, PATIENCE, Lease
from gnsq_like.options import ProducerOptions
from gnsq_like.producer.deadlines import Deadlines
from gnsq_like.producer.nsqds import Nsqds
from gnsq_like.producer.publish import Publish
from gnsq_like.runtime import native
from gnsq_like.runtime.hub_calls import HubHandle

#: How many publishes in a row qualify a thread, and the most seconds from the end of one to the next.
_ROW = 8
_PAUSE = 0.010
#: A publish with fewer seconds left is handed over, because the hub watches deadlines.
_LEAST_LEFT = 2 * PATIENCE


class LoneCallerOwner(Protocol):
    """The pool. Nothing here switches."""

    options: ProducerOptions
    deadlines: Deadlines
    nsqds: Nsqds

    def changed(self) -> None: ...


class LoneCaller:
    """Finds the lone caller of a pool, and has its connection lent.

    :param hub_handle: the pool's hub
    """

    def __init__(self, pool: LoneCallerOwner, hub_handle: HubHandle) -> None:
        self._pool = pool
        self._hub_handle = hub_handle
        self._allowed = IS_POSSIBLE and pool.options.replicas == 1 and not pool.options.batching
        #: None while the connection is the hub's.
        self._lease: Lease | None = None
        self._address = ""
        #: The thread of the last publishes, and how many it has made in a row.
        self._thread = 0
        self.row = 0
        #: Monotonic time when the last publish that was handed over ended; its caller sets it.
        self.ended_at = 0.0

    @property
    def is_lent(self) -> bool:
        """Whether a thread has the connection. From any thread."""
        return self._lease is not None

    # -- in callers' threads ------------------------------------------------------------------------

    def publish(self, publish: Publish, now: float) -> bool:
        """Send a publish on the lease of this thread, which has no hub. Never switches; may block.

        :returns: False if it must be handed over; otherwise it is settled, or the pool's thread will settle it
        """
        thread = native.thread_id()
        lease = self._lease
        if lease is None or lease.thread != thread:
            self._note(thread, now)
            return False
        if publish.deadline - now < _LEAST_LEFT:
            return False
        publish.sent_to = self._address
        if lease.publish(publish.command, publish):
            return True
        publish.sent_to = None
        return False

    def _note(self, thread: int, now: float) -> None:
        if thread != self._thread or now - self.ended_at > _PAUSE:
            self._thread = thread
            self.row = 0
        self.row += 1

    def disturbed(self) -> None:
        """Something else is published: what this thread publishes next must come after it. Never switches."""
        self._lease = None
        self.row = 0

    # -- in the pool's thread -----------------------------------------------------------------------

    def answered(self, connection: Connection) -> None:
        """The connection has had answers: lend it if a thread qualifies. Never switches."""
        if self.row < _ROW or not self._allowed or self._hub_handle.backlog or len(self._pool.nsqds.destinations) > 1:
            return
        lease = connection.lend(self._thread, self._hub_handle, self._pool.options.heartbeat_interval)
        if lease is not None:
            lease.over.link(partial(self._over, lease))
            self._address = connection.address
            self._lease = lease

    def _over(self, lease: Lease) -> None:
        if self._lease is lease:
            self._lease = None
        self.row = 0
        if isinstance(lease.left, Publish):
            self._pool.deadlines.add([lease.left])
        self._pool.changed()

    def close(self) -> None:
        """Lend nothing more, and take back what is lent. Never switches."""
        self._allowed = False
        for destination in self._pool.nsqds.destinations:
            destination.recall()
