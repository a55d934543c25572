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
#: The longest delay: a restarted nsqd is reached within five seconds, and a dead one costs a packet in that time.
REDIAL_MAXIMUM = 5.0

#: Seconds between lookup rounds while an nsqd is missing: a restarted one is found within a second of its registration.
SEARCH_BASE = 0.7
#: Seconds for which rounds are this close, because a restart takes no longer; later, the pause is a quarter of the time
#: since the loss.
SEARCH_CLOSE = 15.0

#: Seconds from the beginning of a round to that of one which a lost connection causes.
ROUND_SPACING = 0.5
#: A round that begins so shortly before a regular one replaces it: a part of the interval.
_NEAR = 0.02
#: Seconds without an answer before a round repeats the last one: a restart of nsqlookupd is no outage.
_SILENT = 3.0
#: Seconds after a loss before nsqlookupd is believed that the nsqd still has the topic: it closes a topic's connections
#: before all nsqlookupds have heard of the deletion.
RELIST_AFTER = 0.5


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


def search_delay(seconds: float, interval: float) -> float:
    """Seconds until the next lookup round when nothing was found, or an nsqd has been missing, for `seconds`.

    An nsqd that is gone for good, or a topic that is never created, slows the rounds down to the interval.
    """
    return min(interval, SEARCH_BASE if seconds < SEARCH_CLOSE else seconds / 4)


class Rounds:
    """When the nsqlookupds are asked.

    Regular rounds are one interval apart, with new random jitter each time, and the second one follows the first at any
    time within the interval. Others follow each other closely while an nsqd is missing, or nothing is found; the longer
    that lasts, the less closely. Regular rounds keep their times: if they followed the others, all Readers that lost
    connections together would ask together from then on.
    """

    __slots__ = (
        "_draw",
        "_fruitless_since",
        "_interval",
        "_jitter",
        "_regular_at",
        "_silent_since",
        "began",
        "lost_at",
    )

    def __init__(self, interval: float, jitter: float, draw: Draw) -> None:
        self._interval = interval
        self._jitter = jitter
        self._draw = draw
        #: When the last round began.
        self.began = 0.0
        #: The time at which the last of the missing nsqds was lost; set as soon as it is known.
        self.lost_at: float | None = None
        #: When the next regular round is due; None before the first one.
        self._regular_at: float | None = None
        #: Since when rounds have found nothing, and since when no nsqlookupd has answered; otherwise None.
        self._fruitless_since: float | None = None
        self._silent_since: float | None = None

    def ended(self, *, answered: bool, fruitful: bool) -> None:
        """Note whether an nsqlookupd has answered in this round, and whether anything was found."""
        self._silent_since = None if answered else self._silent_since or self.began
        self._fruitless_since = None if fruitful else self._fruitless_since or self.began

    def are_silent(self, now: float) -> bool:
        """Whether no nsqlookupd has answered for so long that the last answer is to be repeated."""
        return self._silent_since is not None and now - self._silent_since >= _SILENT

    def next_at(self, now: float) -> float:
        """When the next round is due, if no connection is lost; that ends the time of the present one."""
        interval, jitter = self._interval, self._jitter
        if self._regular_at is None:
            self._regular_at = now + first_poll_delay(interval, jitter, self._draw)
        elif self._regular_at - now <= _NEAR * interval:
            self._regular_at = now + poll_delay(interval, jitter, self._draw)
        due = self._regular_at
        for since in (self._fruitless_since, self.lost_at):
            if since is not None and (closer := search_delay(now - since, interval)) < interval:
                due = min(due, now + poll_delay(closer, jitter, self._draw))
        return due
