"""How long to wait: before a message comes back, before an address is dialled again, before lookupds are asked.

Every function takes what it needs and returns seconds. `draw` returns a random float in [0, 1). Random
parts keep a fleet of Readers from acting in step after an nsqd or an nsqlookupd was restarted.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["ExtraRounds", "discovery_delay", "fruitless_delay", "poll_delay", "redial_delay", "requeue_delay"]

Draw = Callable[[], float]

#: Doubling stops here; every maximum is far below, and floats stay finite.
_MOST_DOUBLINGS = 60

#: First wait before a fixed address is dialled again.
REDIAL_BASE = 1.0
#: The longest: a restarted nsqd is found within a minute, and a dead one costs a packet a minute.
REDIAL_MAXIMUM = 60.0

#: First wait before an address that lookupds list, and that failed, is dialled again; doubled each time.
DISCOVERY_BASE = 8.0

#: First wait after a lookup round that found no nsqd; doubled each time, up to the poll interval.
FRUITLESS_BASE = 1.0

#: An extra lookup round follows a lost connection after so many seconds, drawn between the two ...
EXTRA_ROUND_SOONEST = 0.5
EXTRA_ROUND_LATEST = 3.0
#: ... and no extra round begins sooner than this after the one before.
EXTRA_ROUND_SPACING = 5.0


def _doubled(base: float, times: int, maximum: float) -> float:
    """``base * 2**times``, at most `maximum`, for any number of times."""
    return min(maximum, base * 2.0 ** min(max(times, 0), _MOST_DOUBLINGS))


def requeue_delay(attempts: int, default: float = 90.0, maximum: float = 900.0) -> float:
    """Seconds until a message that failed in its `attempts`-th attempt comes back."""
    return max(0.0, min(maximum, default * max(attempts, 1)))


def redial_delay(failures: int, draw: Draw, base: float = REDIAL_BASE, maximum: float = REDIAL_MAXIMUM) -> float:
    """Seconds until an address of a fixed list is dialled again after `failures` in a row (1 = the first).

    Exponential, with the upper half drawn at random.
    """
    return _doubled(base, failures - 1, maximum) * (0.5 + 0.5 * draw())


def discovery_delay(failures: int, poll_interval: float) -> float:
    """Seconds for which an address is left alone even when listed, after `failures` in a row (0 = none)."""
    if failures <= 0:
        return 0.0
    return _doubled(DISCOVERY_BASE, failures, poll_interval)


def poll_delay(interval: float, jitter: float, draw: Draw) -> float:
    """Seconds until the next lookup round: the interval, give or take half of `jitter` (a fraction of it)."""
    return interval * (1.0 + jitter * (draw() - 0.5))


def fruitless_delay(rounds: int, interval: float) -> float:
    """Seconds until the next lookup round when the last `rounds` found nothing (1 = the first): 1, 2, 4, …

    A Reader that was started before its topic exists gets its first message soon, and a fleet that waits for
    a topic that never comes ends up at the interval.
    """
    return _doubled(FRUITLESS_BASE, rounds - 1, interval)


class ExtraRounds:
    """When to ask the lookupds once more because a connection was lost.

    `ask` at a loss; start the round at the time it returns and report it by `began`. Losses meanwhile
    share that round.
    """

    __slots__ = ("_last", "due")

    def __init__(self) -> None:
        self._last = float("-inf")
        #: when the next extra round is due, or None
        self.due: float | None = None

    def ask(self, now: float, draw: Draw) -> float:
        """A connection was lost: return when the extra round is due."""
        if self.due is None:
            wait = EXTRA_ROUND_SOONEST + (EXTRA_ROUND_LATEST - EXTRA_ROUND_SOONEST) * draw()
            self.due = max(now + wait, self._last + EXTRA_ROUND_SPACING)
        return self.due

    def began(self, now: float) -> None:
        """Any round began, extra or not: it answers for the losses so far."""
        if self.due is not None:
            self._last = now
        self.due = None
