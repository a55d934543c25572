"""Delays, in seconds: before a message is redelivered, an address is redialled, nsqlookupds are polled.

`draw` returns a random float in [0, 1). Randomness keeps a fleet of Readers from acting in step after an nsqd or an
nsqlookupd was restarted.
"""

from __future__ import annotations

from collections.abc import Callable

Draw = Callable[[], float]

#: Keeps floats finite; every maximum is reached far below.
_MOST_DOUBLINGS = 60

#: First delay before an address is redialled.
REDIAL_BASE = 1.0
#: The longest: a restarted nsqd is found within five seconds, and a dead one costs a packet in that time.
REDIAL_MAXIMUM = 5.0

#: First delay after a lookup round that found no nsqd; doubled each time, up to the poll interval.
FRUITLESS_BASE = 1.0

#: First delay after a lookup round that misses an nsqd which an earlier one listed, doubled likewise: a restarted nsqd
#: is listed again within seconds, and one that is gone for good costs four more rounds.
MISSING_BASE = 5.0

#: An extra lookup round follows a lost connection after a random time between these two ...
EXTRA_ROUND_SOONEST = 0.5
EXTRA_ROUND_LATEST = 3.0
#: ... and begins at least this long after the extra round before.
EXTRA_ROUND_SPACING = 5.0


def _doubled(base: float, times: int, maximum: float) -> float:
    """``base * 2**times``, at most `maximum`."""
    return min(maximum, base * 2.0 ** min(max(times, 0), _MOST_DOUBLINGS))


def requeue_delay(attempts: int, default: float = 90.0, maximum: float = 900.0) -> float:
    """Seconds until a message that failed in its `attempts`-th attempt is redelivered."""
    return max(0.0, min(maximum, default * max(attempts, 1)))


def redial_delay(failures: int, draw: Draw, base: float = REDIAL_BASE, maximum: float = REDIAL_MAXIMUM) -> float:
    """Seconds until an address is redialled after `failures` in a row (1 = the first).

    Exponential; the upper half of the delay is random.
    """
    return _doubled(base, failures - 1, maximum) * (0.5 + 0.5 * draw())


def poll_delay(interval: float, jitter: float, draw: Draw) -> float:
    """Seconds until the next lookup round: the interval, plus or minus half of `jitter` (a fraction of it)."""
    return interval * (1.0 + jitter * (draw() - 0.5))


def first_poll_delay(interval: float, jitter: float, draw: Draw) -> float:
    """Seconds until the second lookup round: anywhere in the interval, so that a fleet that starts together spreads.

    Without `jitter` it is the interval.
    """
    return interval * (1.0 - draw()) if jitter else interval


def fruitless_delay(rounds: int, interval: float) -> float:
    """Seconds until the next lookup round when the last `rounds` found nothing (1 = the first): 1, 2, 4, …

    So a Reader that starts before its topic exists gets its first message soon, and one whose topic is never created
    slows down to the interval.
    """
    return _doubled(FRUITLESS_BASE, rounds - 1, interval)


def missing_delay(rounds: int, interval: float) -> float:
    """Seconds until the next lookup round when the last `rounds` missed an nsqd (1 = the first): 5, 10, 20, …

    At the interval, it is missed no longer.
    """
    return _doubled(MISSING_BASE, rounds - 1, interval)


class ExtraRounds:
    """When to poll the lookupds once more because a connection was lost.

    Call `ask` after a loss, start the round at the time it returns, and report it with `began`. Losses meanwhile
    share that round.
    """

    __slots__ = ("_last", "due")

    def __init__(self) -> None:
        self._last = float("-inf")
        #: when the next extra round is due, or None
        self.due: float | None = None

    def ask(self, now: float, draw: Draw) -> float:
        """A connection was lost. Returns when the extra round is due."""
        if self.due is None:
            wait = EXTRA_ROUND_SOONEST + (EXTRA_ROUND_LATEST - EXTRA_ROUND_SOONEST) * draw()
            self.due = max(now + wait, self._last + EXTRA_ROUND_SPACING)
        return self.due

    def began(self, now: float) -> None:
        """A round began, extra or not; it covers all losses so far."""
        if self.due is not None:
            self._last = now
        self.due = None
