"""What a fleet does with its window while the traffic moves.

Backlogs, one kind after the other: on all nsqds; on a tenth of them; on another tenth; those are killed, and as many
new ones take over. At last a trickle on all nsqds: a message a second for each Reader.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import gevent
from _fleet import Fleet, Setup
from _fleet_nsqd import Nsqd

from tests.support.virtual_hub import run_in_virtual_time

#: Seconds between two samples of the window.
SAMPLE = 0.25
#: Seconds for a fleet to connect, and of each phase.
CONNECTING = 3.0
PHASES = {"all": 6.0, "a tenth": 14.0, "another tenth": 14.0, "killed, replaced": 10.0, "trickle": 6.0}
#: At the end of a phase, the seconds that count as its steady state.
STEADY = 3.0
#: A phase is steady from the moment on when this part of its last share is in use.
RECOVERED = 0.9


class Sample(NamedTuple):
    at: float
    share: float
    rdy_count: int


class Traffic:
    """A run, and what it found."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.samples: list[Sample] = []
        #: When each phase began.
        self.began: dict[str, float] = {}
        #: For each phase its figures, by name.
        self.figures: dict[str, dict[str, float]] = {}
        self._fleet = Fleet(setup)

    def run(self) -> None:
        run_in_virtual_time(self._fleet.clock, self._main)

    def as_dict(self) -> dict[str, Any]:
        return {
            "max_in_flight": self.setup.options.max_in_flight,
            "low_rdy_idle_timeout": self.setup.options.low_rdy_idle_timeout,
            "began": self.began,
            "figures": self.figures,
            "samples": [[sample.at, round(sample.share, 4), sample.rdy_count] for sample in self.samples],
        }

    def _main(self) -> None:
        fleet, tenth = self._fleet, self.setup.spare()
        nsqds = fleet.nsqds[: self.setup.nsqds]
        fleet.start()
        gevent.sleep(CONNECTING)
        fleet.every(SAMPLE, self._sample)
        self._backlog("all", nsqds)
        self._backlog("a tenth", nsqds[:tenth])
        self._backlog("another tenth", nsqds[-tenth:])
        fleet.begin(fleet.spare)
        fleet.end(nsqds[-tenth:])
        self._backlog("killed, replaced", fleet.spare)
        self._trickle(nsqds[:-tenth])

    def _sample(self) -> None:
        self.samples.append(Sample(self._fleet.clock.now, self._fleet.share_in_use(), self._fleet.rdy_count))

    def _backlog(self, name: str, busy: Sequence[Nsqd]) -> None:
        fleet = self._fleet
        began = self.began[name] = fleet.clock.now
        fleet.take_logs()
        for nsqd in fleet.nsqds:
            nsqd.set_endless(nsqd in busy)
        gevent.sleep(PHASES[name] - STEADY)
        early = fleet.take_logs()
        sent = [nsqd.sent_count for nsqd in busy]
        gevent.sleep(STEADY)
        steady = fleet.take_logs()
        sources = {nsqd.name for nsqd in busy}
        figures = self._steady(name)
        figures |= _spread("a Reader", [len(log) / STEADY for log in steady])
        figures |= _spread("an nsqd", [(nsqd.sent_count - was) / STEADY for nsqd, was in zip(busy, sent, strict=True)])
        firsts = [
            next((at - began for at, connection, _ in log + more if connection.nsqd.name in sources), PHASES[name])
            for log, more in zip(early, steady, strict=True)
        ]
        figures |= _times("first message", firsts)
        self.figures[name] = figures

    def _trickle(self, nsqds: Sequence[Nsqd]) -> None:
        fleet, name = self._fleet, "trickle"
        for nsqd in fleet.nsqds:
            nsqd.set_endless(False)
        began = self.began[name] = fleet.clock.now
        fleet.take_logs()
        rate = float(self.setup.readers)

        def publish() -> None:
            fleet.rng.choice(nsqds).publish()
            fleet.clock.after(fleet.rng.expovariate(rate), publish)

        publish()
        gevent.sleep(PHASES[name])
        delays = [
            at - message.published_at
            for log in fleet.take_logs()
            for at, _, message in log
            if message.published_at >= began + PHASES[name] - STEADY
        ]
        self.figures[name] = self._steady(name) | _times("delivered", delays)

    def _steady(self, name: str) -> dict[str, float]:
        """The share in use at the end of a phase, RDY commands, and how long it took to get there."""
        began, now = self.began[name], self._fleet.clock.now
        samples = [sample for sample in self.samples if began <= sample.at <= now]
        last = [sample for sample in samples if sample.at >= now - STEADY]
        share = statistics.fmean(sample.share for sample in last)
        commands = (last[-1].rdy_count - last[0].rdy_count) / (last[-1].at - last[0].at)
        late = [sample.at - began for sample in samples if sample.share < RECOVERED * share]
        return {
            "share in use": share,
            "share in use, lowest": min(sample.share for sample in samples),
            "seconds until steady": max(late, default=0.0),
            "RDY a second, a Reader": commands / self.setup.readers,
            "RDY a second, an nsqd": commands / self.setup.nsqds,
        }


def _spread(whose: str, rates: Sequence[float]) -> dict[str, float]:
    """Fairness: the least and the most of them, by the mean; and Jain's index, 1 where all are equal."""
    mean = statistics.fmean(rates)
    squares = sum(rate * rate for rate in rates)
    return {
        f"messages a second, {whose}": mean,
        f"least, {whose}": min(rates) / mean if mean else 0.0,
        f"most, {whose}": max(rates) / mean if mean else 0.0,
        f"fairness, {whose}": sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0,
    }


def _times(what: str, seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    if not ordered:
        return {}
    return {
        f"{what}, median": ordered[len(ordered) // 2],
        f"{what}, 99 %": ordered[len(ordered) * 99 // 100],
        f"{what}, latest": ordered[-1],
    }
