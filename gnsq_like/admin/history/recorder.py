"""Watches one cluster: takes an overview every 10 s, and keeps what graphs, trends, changes and alerts need."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import gevent

from gnsq_like.admin.admin_options import AdminOptions
from gnsq_like.admin.history.alerts import Alert, Alerts, alerts_of
from gnsq_like.admin.history.columns import FINE_SECONDS, Columns
from gnsq_like.admin.history.store import Store
from gnsq_like.admin.history.trend import Trend, figures_of, is_peek, topic_trend, total, trend_of
from gnsq_like.admin.upstream.departures import Departures
from gnsq_like.admin.upstream.overview import Overview

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Seconds that trends look back, and between two overviews that are kept for them.
_WINDOW, _STEP = 60.0, 5.0
#: Changes that are remembered.
KEPT = 200


class Recorder:
    """One cluster's history. Only :meth:`run` and :meth:`look` may switch.

    :param cluster: its name
    :param take: takes an overview of at most this age in seconds; may switch
    :param departures: the cluster's, in this process
    :param store: where figures outlive the process; None for memory only
    """

    def __init__(
        self,
        cluster: str,
        take: Callable[[float], Overview],
        options: AdminOptions,
        departures: Callable[[], Departures],
        store: Store | None = None,
    ) -> None:
        self._cluster = cluster
        self._departures = departures
        #: The state of the departures in the file.
        self._kept: dict[str, object] | None = None
        self._take = take
        self._options = options
        self._store = store
        self.columns = Columns(options.history_series)
        self.changes = ChangeLog()
        self.alerts = Alerts(self._note)
        #: Those of the last minute.
        self._overviews: deque[Overview] = deque()
        #: The one of the last column.
        self._recorded: Overview | None = None
        #: Trends by topic and channel, made for the newest overview.
        self._trends: dict[tuple[str, str], Trend] = {}
        if store is not None:
            for at, figures in store.load(cluster):
                self.columns.restore(at, figures)

    def restore(self) -> None:
        """Load the nsqds that had left from the file; before the first overview. Never switches."""
        if self._store is not None:
            self._store.restore_departures(self._cluster, self._departures())

    def run(self) -> None:
        """Greenlet of the core's thread: watch. May switch."""
        while True:
            begun = time.monotonic()
            try:
                self.look(FINE_SECONDS / 2)
            except Exception:
                logger.exception("watching the cluster failed")
            gevent.sleep(max(1.0, FINE_SECONDS - (time.monotonic() - begun)))

    @property
    def overview(self) -> Overview | None:
        """The newest overview."""
        return self._overviews[-1] if self._overviews else None

    def look(self, max_age: float) -> Overview:
        """An overview of at most this age in seconds; the history gets it, too. May switch."""
        overview = self._take(max_age)
        self.add(overview)
        return overview

    def add(self, overview: Overview) -> None:
        """Add an overview, unless it was added before. Never switches."""
        last, recorded = self.overview, self._recorded
        if last is not None and overview.taken <= last.taken:
            return
        overview = replace(overview, reported={})  # which is large, and of use only in the newest
        if last is not None:
            for change in differences(last, overview):
                self.changes.add(change)
        # Overviews that viewers cause come more often.
        if len(self._overviews) > 1 and overview.taken - self._overviews[-2].taken < _STEP:
            self._overviews.pop()
        self._overviews.append(overview)
        while len(self._overviews) > 2 and overview.taken - self._overviews[1].taken >= _WINDOW:
            self._overviews.popleft()
        self._trends = self._make_trends()
        if self._store is not None and (state := self._departures().state()) != self._kept:
            self._kept = state
            self._store.save_departures(self._cluster, state)
        if recorded is None or overview.taken - recorded.taken >= 0.9 * FINE_SECONDS:
            self._recorded = overview
            complete = self.columns.add(overview.at, figures_of(recorded, overview))
            self.alerts.update(alerts_of(overview, self._trends, self._options), overview.at)
            if complete is not None and self._store is not None:
                self._store.save(self._cluster, complete.at, self.columns.figures_of(complete))

    def _make_trends(self) -> dict[tuple[str, str], Trend]:
        trends = {}
        for topic, each in self._overviews[-1].topics.items():
            for name, channel in each.channels.items():
                old, seconds = self._before(partial(Overview.channel, topic=topic, name=name))
                trends[topic, name] = trend_of(old, channel, seconds)
        return trends

    def _before(self, find: Callable[[Overview], _T | None]) -> tuple[_T | None, float]:
        """The first find in an older overview of the last minute, and how many seconds older than the newest that
        is."""
        newest = self._overviews[-1]
        for old in self._overviews:
            if old is not newest and (found := find(old)) is not None:
                return found, newest.taken - old.taken
        return None, 0.0

    def trend(self, topic: str, channel: str) -> Trend:
        """The trend of a channel over the last minute."""
        return self._trends.get((topic, channel), Trend())

    def topic_trend(self, topic: str) -> Trend:
        """The trend of a topic over the last minute."""
        if not self._overviews or topic not in self._overviews[-1].topics:
            return Trend()
        old, seconds = self._before(lambda overview: overview.topics.get(topic))
        return topic_trend(old, self._overviews[-1].topics[topic], seconds)

    def cluster_rates(self) -> tuple[float, float, float]:
        """Messages a second: published, arriving in channels, and finished by these; nan while unknown."""
        topics = self._overviews[-1].topics if self._overviews else ()
        return (
            total(self.topic_trend(name).rate_in for name in topics),
            total(trend.rate_in for trend in self._trends.values()),
            total(trend.rate_out for trend in self._trends.values()),
        )

    def _note(self, alert: Alert, at: float, begins: bool) -> None:
        text, kind = (alert.text, "bad") if begins else (f"over: {alert.text}", "good")
        self.changes.add(Change(at, text, alert.topic, alert.channel, alert.node, kind))


@dataclass(frozen=True)
class Change:
    """Something that changed."""

    #: Seconds since the epoch.
    at: float
    text: str
    topic: str = ""
    channel: str = ""
    node: str = ""
    #: "" for neutral, "bad" or "good".
    kind: str = ""


def differences(old: Overview, new: Overview) -> Iterator[Change]:
    """Changes in the newer overview. The topics of a node that is missing count as unchanged."""
    at = new.at
    before = {total.node.address: total for total in old.nodes}
    after = {total.node.address: total for total in new.nodes}
    for address in after.keys() - before.keys():
        yield Change(at, "node joined", node=address, kind="good")
    for address in before.keys() - after.keys():
        yield Change(at, "node left", node=address, kind="bad")
    for address in after.keys() & before.keys():
        if bool(before[address].problem) != bool(after[address].problem):
            is_down = bool(after[address].problem)
            yield Change(at, "node down" if is_down else "node up", node=address, kind="bad" if is_down else "good")
    is_whole = not any(total.problem for total in (*old.nodes, *new.nodes)) and before.keys() == after.keys()
    if not is_whole:
        return
    for name in new.topics.keys() - old.topics.keys():
        yield Change(at, "topic created", topic=name)
    for name in old.topics.keys() - new.topics.keys():
        yield Change(at, "topic deleted", topic=name)
    for name in new.topics.keys() & old.topics.keys():
        was, topic = old.topics[name], new.topics[name]
        if bool(was.paused) != bool(topic.paused):
            yield Change(at, "topic paused" if topic.paused else "topic unpaused", topic=name)
        for channel in topic.channels.keys() - was.channels.keys():
            if not is_peek(channel):
                yield Change(at, "channel created", topic=name, channel=channel)
        for channel in was.channels.keys() - topic.channels.keys():
            if not is_peek(channel):
                yield Change(at, "channel deleted", topic=name, channel=channel)
        for channel in topic.channels.keys() & was.channels.keys():
            was_paused, is_paused = bool(was.channels[channel].paused), bool(topic.channels[channel].paused)
            if was_paused != is_paused:
                yield Change(at, f"channel {'paused' if is_paused else 'unpaused'}", topic=name, channel=channel)


class ChangeLog:
    """The last changes; the newest is last."""

    def __init__(self) -> None:
        self._changes: deque[Change] = deque(maxlen=KEPT)

    def add(self, change: Change) -> None:
        self._changes.append(change)

    def recent(self, count: int, since: float = 0.0) -> list[Change]:
        """The last ones, the newest first."""
        return [change for change in reversed(self._changes) if change.at > since][:count]
