"""How the demo counts: every message carries a number, and each channel counts the numbers that were handled.

A delivery counts when its handler has done its work, just before it returns. A handler that raises counts nothing,
so the next delivery of its message is the first that counts. A number is *lost* if nsqd confirmed it and no handler
of the channel counted it, and *delivered twice* if it was counted more than once. Message ids would not do: those of
two nsqds can collide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Digits of the number at the head of a body, and so the smallest size of a body.
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
    """How often each of the numbers from 0 to ``size`` - 1 was counted."""

    def __init__(self, size: int) -> None:
        #: How often each number was counted; 2 also stands for more.
        self.times = bytearray(size)
        #: Numbers counted at least once, and more than once.
        self.once = 0
        self.twice = 0

    def count(self, number: int) -> None:
        """Count ``number``. Never switches."""
        times = self.times[number]
        if times == 0:
            self.once += 1
        elif times == 1:
            self.twice += 1
        if times < 2:
            self.times[number] = times + 1

    def missing_in(self, other: Tally) -> int:
        """How many numbers were counted here and not in ``other``."""
        return sum(1 for here, there in zip(self.times, other.times, strict=True) if here and not there)


@dataclass(frozen=True)
class Verdict:
    """How many messages were lost, and how many delivered twice, for each channel."""

    lost: Mapping[str, int]
    twice: Mapping[str, int]

    @classmethod
    def of(cls, published: Tally, channels: Mapping[str, Tally]) -> Verdict:
        """Compare the numbers that nsqd confirmed with those that each channel's handlers counted."""
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
