"""How the demo counts: every message carries a number, and each channel notes which numbers were handled.

A delivery counts when its handler has done its work, just before it returns. A handler that raises has
counted nothing, so the delivery that nsqd makes up for it is the first that counts. *Lost* is a number that
nsqd confirmed and no handler of the channel ever counted; *delivered twice* is a number that was counted
more than once. Ids would not do: those of two nsqds can collide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Digits of the number at the head of a body: enough for any run, and the least that a body can have.
NUMBER_BYTES = 12
#: Fills a body up to its size.
_FILLER = b"."


def body_of(number: int, size: int) -> bytes:
    """The body that carries ``number``, in ``size`` bytes."""
    return b"%0*d" % (NUMBER_BYTES, number) + _FILLER * (size - NUMBER_BYTES)


def number_of(body: bytes) -> int:
    """The number that a body carries.

    :raises ValueError: for a body that :func:`body_of` did not make
    """
    number = int(body[:NUMBER_BYTES])
    if body != body_of(number, len(body)):
        raise ValueError(f"not a body of this demo: {body[:40]!r}")
    return number


class Tally:
    """Which of the numbers from 0 to ``size`` - 1 were counted, and how often."""

    def __init__(self, size: int) -> None:
        #: For each number how often it was counted; 2 stands for more, too.
        self._times = bytearray(size)
        #: Numbers counted at least once, and more than once.
        self.once = 0
        self.twice = 0

    def count(self, number: int) -> None:
        """Count ``number``. Never switches."""
        times = self._times[number]
        if times == 0:
            self.once += 1
        elif times == 1:
            self.twice += 1
        if times < 2:
            self._times[number] = times + 1

    def missing_in(self, other: Tally) -> int:
        """How many numbers are counted here and not there."""
        return sum(1 for here, there in zip(self._times, other._times, strict=True) if here and not there)


@dataclass(frozen=True)
class Verdict:
    """What the demo found: for each channel how many messages were lost, and how many delivered twice."""

    lost: Mapping[str, int]
    twice: Mapping[str, int]

    @classmethod
    def of(cls, published: Tally, channels: Mapping[str, Tally]) -> Verdict:
        """Compare what nsqd confirmed with what each channel's handlers counted."""
        return cls(
            {name: published.missing_in(tally) for name, tally in channels.items()},
            {name: tally.twice for name, tally in channels.items()},
        )

    @property
    def exit_status(self) -> int:
        """1 if anything was lost, else 0."""
        return 1 if any(self.lost.values()) else 0

    def __str__(self) -> str:
        each = ", ".join(f"{name} {self.lost[name]:,} and {self.twice[name]:,}" for name in self.lost)
        return f"{sum(self.lost.values()):,} lost, {sum(self.twice.values()):,} delivered twice ({each})."
