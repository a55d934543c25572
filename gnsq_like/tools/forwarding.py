"""Messages passed on to one of several destinations, or to all: the choice, the next one after a failure, and status.

Another destination is tried only if nothing was sent, so that there is no duplicate. A refused connection costs only
the time of the refusal. :class:`Status` logs counts and times.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from gevent.event import Event

from gnsq_like import Message
from gnsq_like.runtime.quantiles import Buckets
from gnsq_like.tools.host_pool import HostPool

logger = logging.getLogger(__name__)

#: No further destination is tried when the message has only these seconds left.
_LAST_MOMENT = 5.0
#: Quantiles from 0.01 ms on, within a percent.
_BUCKETS = Buckets(1.02, 1e-5)


class Forwarding:
    """The destinations of a tool.

    :param mode: see :mod:`gnsq_like.tools.host_pool`
    :param stop: once it is set, a message that could not be sent is tried at no further destination
    :param is_unsent: whether the exception of a request means that nothing was sent
    :param status_every: requests between two lines in the log; 0 for none
    :param shown: a destination as it is logged
    """

    def __init__(
        self,
        destinations: Sequence[str],
        mode: str,
        *,
        stop: Event,
        is_unsent: Callable[[Exception], bool],
        status_every: int,
        shown: Callable[[str], str] = str,
    ) -> None:
        self._destinations = tuple(dict.fromkeys(destinations))
        self._pool = HostPool(self._destinations, mode)
        self._stop = stop
        self._is_unsent = is_unsent
        self._all = Status(status_every, "aggregate")
        several = self._destinations if len(self._destinations) > 1 else ()
        self._each = {each: Status(status_every, shown(each)) for each in several}

    @property
    def count(self) -> int:
        """Requests that succeeded."""
        return self._all.count

    def to_one(self, message: Message, send: Callable[[str], object]) -> None:
        """Send a message to one of the destinations. May switch.

        :param send: called with the destination; what it raises for the last one tried is raised
        """
        tried: set[str] = set()
        while True:
            began = time.monotonic()
            destination = self._pool.get(began)
            tried.add(destination)
            try:
                self._send(destination, send)
            except Exception as exc:
                now = time.monotonic()
                self._pool.failed(destination, now)
                is_last = len(tried) == len(self._destinations) or message.timeout_at - now < _LAST_MOMENT
                if is_last or self._stop.is_set() or not self._is_unsent(exc):
                    raise
            except BaseException:
                self._pool.abandoned(destination)
                raise
            else:
                self._pool.succeeded(destination, time.monotonic() - began)
                return

    def to_all(self, send: Callable[[str], object]) -> None:
        """Send a message to every destination. May switch.

        :param send: called with each; the first exception ends it, and is raised
        """
        for destination in self._destinations:
            self._send(destination, send)

    def _send(self, destination: str, send: Callable[[str], object]) -> None:
        began = time.monotonic()
        send(destination)
        seconds = time.monotonic() - began
        self._all.add(seconds)
        if destination in self._each:
            self._each[destination].add(seconds)


class Status:
    """Counts requests, and logs a line for every so many.

    :param every: requests between two lines; 0 for no lines
    :param label: the destination, for the log
    """

    def __init__(self, every: int, label: str) -> None:
        self._every = every
        self._label = label
        self._times: Counter[int] = Counter()
        self._seconds = 0.0
        #: Requests since the start.
        self.count = 0

    def add(self, seconds: float) -> None:
        """Add a request that took this time. Never switches."""
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
