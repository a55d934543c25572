"""Latencies from publishing to FIN: percentiles over a moving window (docs/internals 3.4).

As in nsqd, the window consists of two halves: the older one is dropped as a whole when the newer one is full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gnsq_like.runtime.native import wall_clock_ns
from gnsq_like.runtime.quantiles import Buckets

#: Of nanoseconds; each bucket is 1 % wider than the one before.
_BUCKETS = Buckets(growth=1.01, least=1)

#: The value in /stats if nothing is measured.
NOT_MEASURED: dict[str, Any] = {"count": 0, "percentiles": None}


class Latencies:
    """Latencies of one channel's messages, over the last ``window_time`` seconds or at least half of that.

    :param clock: nanoseconds since the epoch, as messages' timestamps are
    """

    def __init__(self, window_time: float, clock: Callable[[], int] = wall_clock_ns) -> None:
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
        self._newer[_BUCKETS.index(max(1, now - timestamp))] += 1

    def counts(self) -> Counter[int]:
        """The number of messages in each bucket."""
        self._move(self._clock())
        return self._newer + self._older

    def _move(self, now: int) -> None:
        passed = (now - self._since) // self._half
        if passed > 0:
            self._older = self._newer if passed == 1 else Counter()
            self._newer = Counter()
            self._since += passed * self._half


def percentiles_of(measured: Iterable[Latencies], percentiles: Sequence[float]) -> dict[str, Any]:
    """As in /stats: the number of messages, and the nanoseconds of each of ``percentiles`` (0.99 for 99 %)."""
    together: Counter[int] = Counter()
    for each in measured:
        together += each.counts()
    return {
        "count": together.total(),
        "percentiles": [{"quantile": each, "value": round(_BUCKETS.quantile(together, each))} for each in percentiles],
    }
