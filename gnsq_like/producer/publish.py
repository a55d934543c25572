"""One publish on its way: waiting for a connection, sent, or done.

A ``Publish`` is also the token that a connection settles. The pool decides what an error means: the
publish may go to another nsqd, and only what is left in the end is told to whoever waits. Its caller may
be gone by then (killed, or out of time): that changes nothing on the wire.

Rules for editors: a Publish belongs to the thread of its pool, except for ``link`` before it is handed
over. Nothing here switches greenlets but ``wait_here``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gevent import getcurrent
from gevent.exceptions import BlockingSwitchOutError

from gnsq_like.errors import NotSent, OutcomeUnknown
from gnsq_like.runtime.pending_reply import PendingReply

if TYPE_CHECKING:
    from gnsq_like.producer.pool import Pool


class Carrier(Protocol):
    """What a publish travels in or as: a batch, or a group of copies."""

    def too_late(self) -> Exception: ...


class Publish(PendingReply):
    """A PUB, MPUB or DPUB and its answer.

    :param pool: sends it
    :param command: its bytes; empty for one that is made later (a batch, or one of its members)
    :param deadline: monotonic time
    """

    __slots__ = ("carrier", "command", "count", "deadline", "doubt", "greenlet", "pool", "sent_to", "topic")

    #: Who may not get it; see ``replicas``. For all but copies: nobody.
    group: Any = None

    def __init__(self, pool: Pool, topic: str, command: bytes, deadline: float, count: int = 1) -> None:
        # Reply's own attributes, set here because a call more is felt at 100,000 a second. ``size`` and
        # ``end`` belong to the connection, which sets them.
        self.done = False
        self.error = None
        self._links = None
        self.pool = pool
        self.topic = topic
        self.command = command
        self.deadline = deadline
        #: Messages in it, for the statistics.
        self.count = count
        #: The greenlet of the pool's thread that waits for it.
        self.greenlet: Any = None
        #: The address of the nsqd it was given to; None while it waits for one.
        self.sent_to: str | None = None
        #: An earlier try whose outcome is unknown: then no later error can say that nsqd has not got it.
        self.doubt: OutcomeUnknown | None = None
        #: None where it goes by itself.
        self.carrier: Carrier | None = None

    def encode(self) -> bytes:
        """The command, when a connection is about to take it; empty if there is nothing left to send."""
        return b"" if self.done else self.command

    def settle(self, error: Exception | None = None) -> None:
        """A connection's word; the pool may give it another try instead. Never switches."""
        if self.done:
            return
        if error is None:
            self.complete(None)
        else:
            self.pool.failed(self, error)

    def complete(self, error: Exception | None) -> None:
        """The last word: wake who waits. Never switches."""
        if self.done:
            return
        self.done = True
        self.error = error
        pool = self.pool
        if error is None:
            pool.confirmed_count += self.count
        else:
            pool.count_failure(error, self.count)
        if self.greenlet is not None:
            pool.wake_soon(self)
        if self._links is not None:
            self.call_links()

    def call_links(self) -> None:
        """Tell those who are not greenlets of this thread. Never switches."""
        links, self._links = self._links, None
        for link in links or ():
            link()

    def expire(self) -> None:
        """Its deadline is here. Never switches."""
        error = self.too_late()
        if isinstance(error, OutcomeUnknown):
            self.pool.expired(error.address)
        self.complete(error)

    def too_late(self) -> Exception:
        """What a deadline means for it: nothing was sent, or nobody knows."""
        if self.carrier is not None:
            return self.carrier.too_late()
        if self.sent_to is not None:
            return OutcomeUnknown(self.sent_to, "no answer in time")
        if self.doubt is not None:
            return self.doubt
        return NotSent(f"not sent in time: {self.pool.why()}")

    def abandon(self) -> None:
        """Its caller is gone: what was not sent yet is not sent, and nobody wants the answer. Never switches."""
        self.done = True
        self._links = None
        self.pool.abandoned()

    def wait_here(self) -> None:
        """Wait, in a greenlet of the pool's thread, until done; a wait that ends sooner abandons it. May switch."""
        if self.done:
            return
        hub = self.pool.hub
        current = getcurrent()
        if current is hub:
            self.abandon()
            raise BlockingSwitchOutError("publish must not be called from the hub: use publish_async")
        self.greenlet = current
        try:
            while not self.done:
                hub.switch()
        except BaseException:
            self.abandon()
            raise
        finally:
            self.greenlet = None
