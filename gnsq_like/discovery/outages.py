"""Log lines about daemons that cannot be reached: one when it begins, one a minute with a count, one at its end.

An unreachable daemon is tried every second or so, by each Reader; a line for each try would bury everything else. The
lines name the time of the next try; if that is not known yet, :meth:`Outages.look` writes the line within a second.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gnsq_like.errors import NSQError, is_incurable
from gnsq_like.runtime.dispatcher import log_soon

if TYPE_CHECKING:
    from gnsq_like.discovery.dialler import Dialler
    from gnsq_like.discovery.lookupd_poller import LookupdPoller

logger = logging.getLogger(__name__)

#: Seconds between two lines about the same outage.
_EVERY = 60.0


class _Outage:
    __slots__ = ("began", "count", "error", "said_at", "said_incurable")

    def __init__(self, began: float, error: NSQError) -> None:
        self.began = began
        #: The last failure, and how many there were since the last line.
        self.error = error
        self.count = 0
        #: When the last line was logged; None before the first.
        self.said_at: float | None = None
        self.said_incurable = False


class Outages:
    """The daemons that one Reader or Producer cannot reach. Never switches.

    :param name: of the Reader or Producer
    :param diallers: returns those of its nsqds
    """

    def __init__(self, name: str, diallers: Callable[[], Iterable[Dialler]]) -> None:
        self._name = name
        self._diallers = diallers
        #: Of its nsqlookupds, if any are asked.
        self.poller: LookupdPoller | None = None
        self._outages: dict[str, _Outage] = {}

    def failed(self, where: str, error: NSQError) -> None:
        """A connection to this address or URL was lost, or a try has failed."""
        outage = self._outages.setdefault(where, _Outage(time.monotonic(), error))
        outage.error = error
        outage.count += 1
        if outage.said_at is None and self._next_try(where) is not None:
            self._say(where, outage, "")

    def answered(self, where: str) -> None:
        """It has been reached."""
        outage = self._outages.pop(where, None)
        if outage is None:
            return
        seconds = time.monotonic() - outage.began
        if outage.said_at is None:
            log_soon(logger.warning, "%s: %s; reached again after %.1f s", self._name, outage.error, seconds)
        else:
            log_soon(logger.info, "%s: %s is reached again, after %.1f s", self._name, where, seconds)

    def look(self, nsqds: Iterable[str]) -> None:
        """Log the lines that are due.

        :param nsqds: the nsqds that are still tried; others are forgotten
        """
        wanted = set(nsqds)
        if self.poller is not None:
            wanted.update(self.poller.failures)
            for url in self.poller.answering:
                self.answered(url)
        now = time.monotonic()
        for where, outage in list(self._outages.items()):
            if outage.said_at is None:
                self._say(where, outage, "")
            elif where not in wanted:
                del self._outages[where]
            elif outage.count and (
                now - outage.said_at >= _EVERY or (is_incurable(outage.error) and not outage.said_incurable)
            ):
                self._say(where, outage, f"; failures since the last line: {outage.count}")

    def _next_try(self, where: str) -> float | None:
        """The monotonic time of the next try; None if it is under way or unknown."""
        if self.poller is not None and where in self.poller.failures:
            return self.poller.next_at
        times = [each.next_try for each in self._diallers() if each.name == where]
        return min((at for at in times if at is not None), default=None)

    def _say(self, where: str, outage: _Outage, count: str) -> None:
        now = time.monotonic()
        due = self._next_try(where)
        after = "" if due is None else f"; the next try is in {max(0.0, due - now):.1f} s"
        log_soon(logger.warning, "%s: %s%s%s", self._name, outage.error, count, after)
        outage.said_at, outage.count = now, 0
        outage.said_incurable = is_incurable(outage.error)
