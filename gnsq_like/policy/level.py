"""The RDY in force on one connection, never above its share: which command to send, if any.

There are three: the share itself (`Level`), less of it that follows the traffic (`adaptive_rdy.AdaptiveRdy`), and a
credit (`Renewal`) for an nsqd that counts RDY down: versions before 0.3, or a plain OK as the reply to IDENTIFY. There
deliveries use RDY up, and it has to be renewed before it is gone. For all others it is a level (docs/internals 1.12).

Report `received` and `sent`; ask `command` after messages, after answers, and when the share has changed.
"""

from __future__ import annotations

from typing import ClassVar

from gnsq_like.policy.charge import Charge, K


class Level:
    """RDY is the share."""

    __slots__ = ("rdy",)

    #: Whether an answer may need a command although RDY is the share.
    counts_down: ClassVar[bool] = False

    def __init__(self) -> None:
        #: RDY as last sent
        self.rdy = 0

    def received(self, n: int, in_flight: int, now: float) -> None:
        """`n` messages arrived in one pass; `in_flight` includes them."""

    def command(self, charge: Charge[K], now: float) -> int | None:
        """The RDY to send now, or None."""
        most = charge.sent_rdy
        return None if most == self.rdy else most

    def sent(self, rdy: int, now: float) -> None:
        """RDY `rdy`, possibly 0, was sent on this connection."""
        self.rdy = rdy

    @property
    def due(self) -> float | None:
        """When to call `quiet` if no message arrives before, or None."""
        return None

    def quiet(self, now: float) -> None:
        """`due` may have passed. Ask `command` afterwards."""


class Renewal(Level):
    """RDY is a credit of at most the share, less what is in flight and what may be on the network."""

    __slots__ = ("left",)

    counts_down = True
    #: RDY is renewed when this part of it is left.
    AT = 0.25

    def __init__(self) -> None:
        super().__init__()
        #: the part of the RDY last sent that nsqd has not used
        self.left = 0

    def received(self, n: int, in_flight: int, now: float) -> None:
        self.left = max(0, self.left - n)

    def command(self, charge: Charge[K], now: float) -> int | None:
        room = charge.rdy - charge.in_time
        if self.left > max(0, room):  # the share was lowered: this replaces what nsqd may still send
            return max(0, room)
        if self.left > self.AT * self.rdy or room - self.left <= self.left:
            return None
        return room - self.left

    def sent(self, rdy: int, now: float) -> None:
        self.rdy = self.left = rdy
