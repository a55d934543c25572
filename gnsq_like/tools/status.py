"""The lines in which a forwarding tool logs how fast it is, as NSQ's do."""

from __future__ import annotations

import logging
from collections import Counter

from gnsq_like.quantiles import Buckets

logger = logging.getLogger(__name__)

#: From a hundredth of a millisecond on, to a percent.
_BUCKETS = Buckets(1.02, 1e-5)


class Status:
    """Counts requests, and logs a line for every so many.

    :param every: requests between two lines; 0 for no lines
    :param label: what the requests are to
    """

    def __init__(self, every: int, label: str) -> None:
        self._every = every
        self._label = label
        self._times: Counter[int] = Counter()
        self._seconds = 0.0
        #: Requests since the start.
        self.count = 0

    def add(self, seconds: float) -> None:
        """A request took so long. Never switches."""
        self.count += 1
        if not self._every:
            return
        self._times[_BUCKETS.index(seconds)] += 1
        self._seconds += seconds
        if self.count % self._every == 0:
            logger.info("%s", self._line())
            self._times.clear()
            self._seconds = 0.0

    def _line(self) -> str:
        p99, p95 = (1000 * _BUCKETS.quantile(self._times, share) for share in (0.99, 0.95))
        average = 1000 * self._seconds / self._every
        return (
            f"[{self._label}]: finished {self._every} - 99th: {p99:.02f}ms - 95th: {p95:.02f}ms - avg: {average:.02f}ms"
        )


class Statuses:
    """One for each destination if there are several, and one for all together."""

    def __init__(self, every: int, addresses: list[str]) -> None:
        self._all = Status(every, "aggregate")
        self._each = {address: Status(every, address) for address in addresses} if len(addresses) > 1 else {}

    @property
    def count(self) -> int:
        """Requests since the start."""
        return self._all.count

    def add(self, address: str, seconds: float) -> None:
        """A request to a destination took so long. Never switches."""
        self._all.add(seconds)
        if address in self._each:
            self._each[address].add(seconds)
