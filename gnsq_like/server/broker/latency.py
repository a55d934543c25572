"""How long messages took from their publishing to their FIN: percentiles over a moving window (docs/internals 3.4).

Values are counted in buckets whose width grows with them, so that any number of messages needs a bounded
table, and the counts of several channels add up. As nsqd does, the window is made of two halves: the older
one is dropped whole when the newer one is full.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from time import time_ns
from typing import Any

#: Buckets for each power of e: the middle of a bucket is within half a percent of all its values.
_RESOLUTION = 100

#: What /stats says where nothing is measured.
NOT_MEASURED: dict[str, Any] = {"count": 0, "percentiles": None}


class Latencies:
    """What one channel's messages took during the last ``window_time`` seconds, or at least half of them.

    :param clock: nanoseconds since the epoch, as messages' timestamps are
    """

    def __init__(self, window_time: float, clock: Callable[[], int] = time_ns) -> None:
        self._half = max(1, round(window_time * 1e9 / 2))
        self._clock = clock
        self._newer: Counter[int] = Counter()
        self._older: Counter[int] = Counter()
        #: When the newer half began.
        self._since = clock()

    def add(self, timestamp: int) -> None:
        """Count a message that was published at ``timestamp`` and is finished now."""
        now = self._clock()
        self._move(now)
        self._newer[math.floor(math.log(max(1, now - timestamp)) * _RESOLUTION)] += 1

    def counts(self) -> Counter[int]:
        """How many messages fell into each bucket."""
        self._move(self._clock())
        return self._newer + self._older

    def _move(self, now: int) -> None:
        passed = (now - self._since) // self._half
        if passed > 0:
            self._older = self._newer if passed == 1 else Counter()
            self._newer = Counter()
            self._since += passed * self._half


def percentiles_of(measured: Iterable[Latencies], percentiles: Sequence[float]) -> dict[str, Any]:
    """As /stats has it: how many messages, and for each of ``percentiles`` (0.99 for 99 %) the nanoseconds."""
    together: Counter[int] = Counter()
    for each in measured:
        together += each.counts()
    buckets = sorted(together.items())
    count = together.total()
    return {
        "count": count,
        "percentiles": [{"quantile": each, "value": _value(buckets, each * count)} for each in percentiles],
    }


def _value(buckets: Iterable[tuple[int, int]], rank: float) -> float:
    """The middle of the bucket that holds the message of that rank; 0 where there is none."""
    below = 0
    for bucket, number in buckets:
        below += number
        if below >= rank:
            return math.exp((bucket + 0.5) / _RESOLUTION)
    return 0.0
