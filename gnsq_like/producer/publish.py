"""One publish on its way: waiting for a connection, sent, or done.

A ``Publish`` is also the token that a connection settles. Its owner, the pool, decides what an error means: the
publish may go to another nsqd, and only the last word reaches the caller. The caller may be gone by then (killed,
or out of time): that changes nothing on the wire.

Rules for editors: a Publish belongs to the thread of its pool, except for ``link`` before it is handed
over. Nothing here switches greenlets but ``wait_here``.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from gevent import getcurrent
from gevent.exceptions import BlockingSwitchOutError

from gnsq_like.errors import NotSent, OutcomeUnknown
from gnsq_like.producer.outcomes import PublishCounts, Waker
from gnsq_like.runtime.pending_reply import PendingReply


class PublishOwner(Protocol):
    """What sends a publish: the pool."""

    hub: Any
    counts: PublishCounts
    waker: Waker

    def failed(self, publish: Publish, error: Exception) -> None: ...
    def expired(self, address: str) -> None: ...
    def abandoned(self) -> None: ...
    def why(self) -> str: ...


class Carrier(Protocol):
    """What a publish travels in or as: a batch, or a group of copies."""

    def too_late(self) -> Exception: ...


class Publish(PendingReply):
    """A PUB, MPUB or DPUB and its answer.

    :param owner: sends it
    :param command: its bytes; empty for one that is made later (a batch, or one of its members)
    :param deadline: monotonic time
    :param count: messages in it, for the statistics
    """

    __slots__ = ("carrier", "command", "count", "deadline", "doubt", "greenlet", "owner", "sent_to", "topic")

    #: Whether it is one of several copies, each of which goes to another nsqd.
    is_copy = False

    def __init__(self, owner: PublishOwner, topic: str, command: bytes, deadline: float, count: int = 1) -> None:
        super().__init__()
        self.owner = owner
        self.topic = topic
        self.command = command
        self.deadline = deadline
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

    def avoids(self) -> AbstractSet[str]:
        """The addresses that it may not go to, because another copy went there."""
        return frozenset()

    def settle(self, error: Exception | None = None) -> None:
        """A connection's word; the pool may give it another try instead. Never switches."""
        if self.done:
            return
        if error is None:
            self.complete(None)
        else:
            self.owner.failed(self, error)

    def complete(self, error: Exception | None) -> None:
        """The last word: wake whoever waits. Never switches."""
        if self.done:
            return
        owner = self.owner
        if error is None:
            owner.counts.confirmed += self.count
        else:
            owner.counts.failed(error, self.count)
        super().settle(error)
        if self.greenlet is not None:
            owner.waker.wake(self)

    def expire(self) -> None:
        """Its deadline is here. Never switches."""
        error = self.too_late()
        if isinstance(error, OutcomeUnknown):
            self.owner.expired(error.address)
        self.complete(error)

    def too_late(self) -> Exception:
        """What a deadline means for it: nothing was sent, or the outcome is unknown."""
        if self.carrier is not None:
            return self.carrier.too_late()
        if self.sent_to is not None:
            return OutcomeUnknown(self.sent_to, "no answer in time")
        if self.doubt is not None:
            return self.doubt
        return NotSent(f"not sent in time: {self.owner.why()}")

    def abandon(self) -> None:
        """Its caller is gone: what was not sent yet is not sent, and the answer is dropped. Never switches."""
        self.forget()
        self.owner.abandoned()

    def wait_here(self) -> None:
        """Wait, in a greenlet of the pool's thread, until done; a wait that ends sooner abandons it. May switch."""
        if self.done:
            return
        hub = self.owner.hub
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
