"""What was published, how that ended, and what was handled: the books of one run."""

from __future__ import annotations

from collections import Counter

PENDING, CONFIRMED, NOT_SENT, UNKNOWN = "pending", "confirmed", "not sent", "unknown"


class Ledger:
    """The books. A body is published once."""

    def __init__(self) -> None:
        #: How the publish of each body ended.
        self.outcomes: dict[bytes, str] = {}
        #: How often each body was handled with success, by its topic's only channel.
        self.handled: Counter[bytes] = Counter()
        #: Confirmed bodies that may be missing: an nsqd was killed, or a topic deleted, that had them in memory.
        self.excused: set[bytes] = set()
        #: Bodies that may come twice: published twice, or their handler failed, was slow or answered oddly.
        self.doubtful: set[bytes] = set()
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

    def handling_ended(self, body: bytes, when: float) -> bool:
        """A handler has returned; whether it is the first time for this message."""
        self.handled[body] += 1
        outcome = self.outcomes.get(body)
        if outcome is None:
            self.fail(f"@{when:.3f} {body[:40]!r} was never published")
        elif outcome == NOT_SENT:
            self.fail(f"@{when:.3f} {body[:12]!r} was not sent, and arrives")
        return self.handled[body] == 1

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
