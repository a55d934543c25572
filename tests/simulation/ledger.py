"""What was published, how that ended, and what was handled: the books of one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gnsq_like import Message

PENDING, CONFIRMED, NOT_SENT, UNKNOWN = "pending", "confirmed", "not sent", "unknown"


class Ledger:
    """The books. A body is published once."""

    def __init__(self) -> None:
        #: How the publish of each body ended.
        self.outcomes: dict[bytes, str] = {}
        #: How often each body was handled with success, by its topic's only channel.
        self.handled: Counter[bytes] = Counter()
        #: When each message of an nsqd, by its address, topic and id, was first handled.
        self._first_handled: dict[tuple[str, str, str], float] = {}
        #: Confirmed bodies that may be missing: an nsqd was killed, or a topic deleted, that had them in memory.
        self.excused: set[bytes] = set()
        #: Bodies that nobody has published, as a damaged disk has made them of others.
        self.damaged: set[bytes] = set()
        #: Bodies that may come twice: published twice, or their handler failed, was slow or answered oddly.
        self.doubtful: set[bytes] = set()
        #: Whether nothing has happened since a time that could make a message come twice; set by the run.
        self.is_undisturbed: Callable[[float], bool] = lambda since: False
        self.failures: list[str] = []

    def fail(self, text: str) -> None:
        """An oracle has failed."""
        if len(self.failures) < 20:
            self.failures.append(text)

    def publishing(self, body: bytes) -> None:
        self.outcomes[body] = PENDING

    def ended(self, body: bytes, outcome: str, when: float) -> None:
        """A publish has ended."""
        self.outcomes[body] = outcome
        if outcome == NOT_SENT and self.handled[body]:
            self.fail(f"@{when:.3f} {body[:12]!r} was not sent, but has arrived")
        if outcome != CONFIRMED:
            self.doubtful.add(body)

    def handling_ended(self, message: Message, when: float, settled_after: float) -> None:
        """A handler has returned.

        :param settled_after: seconds after the last fault from which its FIN certainly reaches nsqd
        """
        body = message.body
        self.handled[body] += 1
        if body in self.damaged:
            return
        outcome = self.outcomes.get(body)
        if outcome is None:
            self.fail(f"@{when:.3f} {body[:40]!r} was never published")
        elif outcome == NOT_SENT:
            self.fail(f"@{when:.3f} {body[:12]!r} was not sent, and arrives")
        first = self._first_handled.setdefault((message.nsqd_address, message.topic, message.id), when)
        if first != when and body not in self.doubtful and self.is_undisturbed(first - settled_after):
            self.fail(f"@{when:.3f} {message!r} was handled at {first:.3f}, and comes again without a cause")

    def missing(self) -> list[bytes]:
        """Confirmed messages that were not handled, and have no excuse."""
        return [
            body
            for body, outcome in self.outcomes.items()
            if outcome == CONFIRMED and not self.handled[body] and body not in self.excused
        ]

    def counts(self) -> dict[str, int]:
        """For the report."""
        outcomes = Counter(self.outcomes.values())
        twice = sum(count > 1 for count in self.handled.values())
        return {**outcomes, "handled": sum(self.handled.values()), "twice": twice, "excused": len(self.excused)}
