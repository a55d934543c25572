"""RDY for an nsqd that counts it down: before 0.3, and one that answers IDENTIFY with a plain OK.

There RDY is a credit, used up by deliveries, and has to be renewed before it is gone. Everywhere else
it is a level (docs/internals 1.12) and is sent when the plan or the level changes.
"""

from __future__ import annotations

__all__ = ["Renewal"]


class Renewal:
    """Counts one connection's credit.

    Report `sent` and `received`; after messages and after answers ask `wanted`. A changed share is sent
    as ``max(0, share - in_flight)``.
    """

    __slots__ = ("last", "left")

    #: The part of the last RDY that is left when it is renewed.
    AT = 0.25

    def __init__(self) -> None:
        #: the RDY last sent
        self.last = 0
        #: what of it nsqd may still use
        self.left = 0

    def sent(self, rdy: int) -> None:
        """RDY `rdy` was sent: it replaces what was left."""
        self.last = self.left = rdy

    def received(self, n: int) -> None:
        """`n` messages came."""
        self.left = max(0, self.left - n)

    def wanted(self, share: int, in_flight: int) -> int | None:
        """The RDY to send now, or None. Never above share - in_flight, less what may be on its way."""
        if self.left > self.AT * self.last:
            return None
        rdy = share - in_flight - self.left
        return rdy if rdy > self.left else None
