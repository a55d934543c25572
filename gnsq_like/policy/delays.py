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

#: Seconds between lookup rounds while an nsqd is missing: a restarted one is found within a second of its registration.
SEARCH_BASE = 0.7
#: Seconds for which they are so close, because a restart takes no longer; then they are a quarter of the search apart.
SEARCH_CLOSE = 15.0

#: Seconds from the beginning of a round to that of one which a lost connection causes.
ROUND_SPACING = 0.5
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
