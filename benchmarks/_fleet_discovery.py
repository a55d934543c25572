"""What a fleet asks of nsqlookupds, and how often it dials, while nsqds and nsqlookupds come and go.

Without messages, for twenty minutes: all Readers start at once; an nsqd comes; one is killed and replaced by another;
one nsqlookupd is restarted, then all of them; all nsqds are restarted one after the other; a switch fails, and all
connections are lost at the same moment.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import gevent
from _fleet import Fleet, Setup
from _fleet_nsqd import Lookupd, Nsqd

from tests.support.virtual_hub import run_in_virtual_time

#: Seconds from one event to the next.
SPAN = 150.0
#: Seconds that an nsqlookupd is away, and an nsqd.
LOOKUPD_AWAY = 10.0
NSQD_AWAY = 2.0
#: Seconds in which requests are counted for the peak.
BURST = 0.1


class Discovery:
    """A run, and what it found."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup._replace(with_traffic=False)
        self.began: dict[str, float] = {}
        #: For each event its figures, by name.
        self.figures: dict[str, dict[str, float]] = {}
        self._fleet = Fleet(self.setup)

    def run(self) -> None:
        run_in_virtual_time(self._fleet.clock, self._main)

    def _main(self) -> None:
        fleet = self._fleet
        nsqds, spare = fleet.nsqds[: self.setup.nsqds], fleet.spare
        self._event("all Readers start", fleet.start)
        self._event("an nsqd comes", lambda: fleet.begin(spare[:1]), new=spare[0])
        self._event("an nsqd is replaced", lambda: self._replace(nsqds[0], spare[1]), new=spare[1])
        self._event("one nsqlookupd restarts", lambda: self._restart(fleet.lookupds[:1]))
        self._event("all nsqlookupds restart", lambda: self._restart(fleet.lookupds))
        self._event("all nsqds restart in turn", lambda: self._upgrade(nsqds))
        self._event("all connections are lost", lambda: self._drop_all(nsqds))

    def _restart(self, lookupds: Sequence[Lookupd]) -> None:
        for lookupd in lookupds:
            lookupd.restart(LOOKUPD_AWAY)

    def _drop_all(self, nsqds: Sequence[Nsqd]) -> None:
        for nsqd in nsqds:
            nsqd.drop_consumers()

    def _replace(self, old: Nsqd, new: Nsqd) -> None:
        self._fleet.end([old])
        self._fleet.begin([new])

    def _upgrade(self, nsqds: Sequence[Nsqd]) -> None:
        fleet, clock = self._fleet, self._fleet.clock
        for number, nsqd in enumerate(nsqds):
            at = number * 0.8 * SPAN / len(nsqds)
            clock.after(at, lambda nsqd=nsqd: fleet.end([nsqd]))  # type: ignore[misc]
            clock.after(at + NSQD_AWAY, lambda nsqd=nsqd: fleet.begin([nsqd]))  # type: ignore[misc]

    def _event(self, name: str, happen: Callable[[], object], new: Nsqd | None = None) -> None:
        fleet = self._fleet
        began = self.began[name] = fleet.clock.now
        happen()
        gevent.sleep(SPAN)
        figures = {}
        for what, times in (("lookups", fleet.requests()), ("dials", fleet.dials())):
            times = times[bisect.bisect_left(times, began) :]
            figures[f"{what} a second"] = len(times) / SPAN
            figures[f"{what}, most in a second"] = _most(times, 1.0)
            figures[f"{what}, most in {BURST:g} s"] = _most(times, BURST)
        figures["not connected at the end"] = self._missing()
        if new is not None:
            found = sorted(at - began for at in new.accepted if at >= began)
            figures["found after, median"] = found[len(found) // 2]
            figures["found after, latest"] = found[-1]
        self.figures[name] = figures

    def _missing(self) -> int:
        up = [nsqd for nsqd in self._fleet.nsqds if nsqd.is_up]
        return sum(self.setup.readers - len(nsqd.consumers) for nsqd in up)

    def rates(self, times: Sequence[float]) -> list[int]:
        """How many there are in each second."""
        counts = [0] * (int(self._fleet.clock.now) + 1)
        for at in times:
            counts[int(at)] += 1
        return counts

    def as_dict(self) -> dict[str, Any]:
        return {
            "lookupd_poll_interval": self.setup.options.lookupd_poll_interval,
            "lookupd_poll_jitter": self.setup.options.lookupd_poll_jitter,
            "began": self.began,
            "figures": self.figures,
            "lookups": self.rates(self._fleet.requests()),
            "dials": self.rates(self._fleet.dials()),
        }


def _most(times: Sequence[float], seconds: float) -> int:
    """The most of these (in order) within so many seconds."""
    return max((bisect.bisect_left(times, at + seconds) - index for index, at in enumerate(times)), default=0)
