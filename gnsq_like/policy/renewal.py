"""RDY for an nsqd that counts it down: versions before 0.3, or a plain OK as the reply to IDENTIFY.

There RDY is a credit that deliveries use up and that has to be renewed before it is gone. For all others it is a
level (docs/internals 1.12).
"""

from __future__ import annotations


class Renewal:
    """The credit of one connection.

    Report `sent` and `received`; call `wanted` after messages and after answers. A changed share is sent as
    ``max(0, share - in_flight)``.
    """

    __slots__ = ("last", "left")

    #: RDY is renewed when this part of it is left.
    AT = 0.25

    def __init__(self) -> None:
        #: the RDY last sent
        self.last = 0
        #: the part of it that nsqd has not used
        self.left = 0

    def sent(self, rdy: int) -> None:
        """RDY `rdy` was sent; it replaces the rest of the previous one."""
        self.last = self.left = rdy

    def received(self, n: int) -> None:
        """`n` messages arrived."""
        self.left = max(0, self.left - n)

    def wanted(self, share: int, in_flight: int) -> int | None:
        """The RDY to send now, or None. At most share - in_flight, minus what may be on the network."""
        if self.left > self.AT * self.last:
            return None
        rdy = share - in_flight - self.left
        return rdy if rdy > self.left else None
