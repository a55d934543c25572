"""Sends each publish to several different nsqds (NSQ's redundant pair).

A group sends ``replicas`` copies, each to a different nsqd, and succeeds when ``quorum`` of them are confirmed; the
others continue until the deadline. A copy that could not be sent is tried on another nsqd, like any publish. If the
quorum is not reached when all copies are done or the deadline has passed, the publish fails: with NotSent or
PublishRefused if that holds for all copies, otherwise with OutcomeUnknown and the addresses that have the message.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from gnsq_like.errors import NotSent, OutcomeUnknown, PublishRefused
from gnsq_like.producer.publish import Publish, PublishOwner


class Copy(Publish):
    """One copy; avoids the nsqds of the others."""

    __slots__ = ("group",)

    is_copy = True

    def __init__(self, pool: PublishOwner, group: Group) -> None:
        super().__init__(pool, b"", group.publish.deadline, count=0)
        self.group = group

    @property
    def description(self) -> str:
        return self.group.publish.description

    def avoids(self) -> AbstractSet[str]:
        return self.group.taken

    def encode(self) -> bytes:
        """The command; empty if the group has failed."""
        failed = self.group.publish.done and self.group.publish.error is not None
        if failed:
            self.forget()
        return b"" if self.done else self.group.encode()

    def settle(self, error: Exception | None = None) -> None:
        if not self.done:
            super().settle(error)
            self.group.check()


class Group:
    """All copies of a publish, as its carrier."""

    __slots__ = ("_command", "_copies", "_pool", "_quorum", "publish")

    def __init__(self, pool: PublishOwner, publish: Publish, replicas: int, quorum: int) -> None:
        self._pool = pool
        self.publish = publish
        self._quorum = quorum
        self._command = b""
        self._copies = [Copy(pool, self) for _ in range(replicas)]

    @property
    def taken(self) -> AbstractSet[str]:
        """The addresses of the nsqds that have a copy, or may have."""
        sent = {copy.sent_to for copy in self._copies if copy.sent_to is not None}
        return sent | {copy.doubt.address for copy in self._copies if copy.doubt is not None}

    @property
    def is_sent(self) -> bool:
        """Whether a copy is sent."""
        return bool(self.taken)

    def send(self, now: float) -> None:
        """Send the copies. Never switches."""
        for copy in self._copies:
            # Copies still queued when the quorum is reached need a deadline of their own.
            self._pool.watch(copy)
            self._pool.submit(copy, now)

    def encode(self) -> bytes:
        """The command for a copy that is now sent; the same for all copies, once another was sent."""
        if len(self.taken) == 1:
            self._command = self.publish.encode()
        return self._command

    def check(self) -> None:
        """A copy is done: complete the publish if that decides it. Never switches."""
        if self.publish.done and not self.publish.is_abandoned:
            return
        confirmed = sum(copy.done and copy.error is None for copy in self._copies)
        still_open = sum(not copy.done for copy in self._copies)
        if confirmed >= self._quorum:
            self.publish.settle(None)
        elif not still_open:
            self.publish.settle(self.too_late())

    def too_late(self) -> Exception:
        """The publish's error if no more copies are confirmed."""
        confirmed = tuple(str(copy.sent_to) for copy in self._copies if copy.done and copy.error is None)
        errors = [copy.error for copy in self._copies if copy.error is not None]
        unknown = [error for error in errors if isinstance(error, OutcomeUnknown)]
        unknown += [copy.doubt for copy in self._copies if copy.doubt is not None]
        refused = [error for error in errors if isinstance(error, PublishRefused)]
        for copy in self._copies:
            if not copy.done and copy.sent_to is not None:
                return OutcomeUnknown(copy.sent_to, "no answer in time", confirmed)
        if unknown:
            return OutcomeUnknown(unknown[0].address, unknown[0].reason, confirmed)
        if confirmed and refused:
            return OutcomeUnknown(refused[0].address, str(refused[0]), confirmed)
        if confirmed:
            return OutcomeUnknown("", f"not sent to another in time: {self._pool.why(but=confirmed)}", confirmed)
        if refused:
            return refused[0]
        return errors[0] if errors else NotSent(f"not sent in time: {self._pool.why()}")
