"""Watches one cluster: takes an overview every 10 s, and keeps what graphs, trends, changes and alerts need."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import gevent

from gnsq_like.admin.history.changes import Alert, Change, ChangeLog, alerts_of, differences
from gnsq_like.admin.history.columns import FINE_SECONDS, Columns
from gnsq_like.admin.history.store import Store
from gnsq_like.admin.history.trend import Trend, figures_of, topic_trend, trend_of
from gnsq_like.admin.upstream.overview import Overview

logger = logging.getLogger(__name__)

#: Seconds that trends look back, and between two overviews that are kept for them.
_WINDOW, _STEP = 60.0, 5.0
#: Overviews in a row in which something must be wrong to be an alert, and right to end it.
_IN_A_ROW = 2


class Recorder:
    """One cluster's history. All methods but :meth:`run` are quick and never switch.

    :param cluster: its name
    :param take: takes an overview of at most this age in seconds; may switch
    :param send: sends an alert to its webhooks
    :param store: where figures outlive the process; None for memory only
    """

    def __init__(
        self,
        cluster: str,
        take: Callable[[float], Overview],
        most_series: int,
        alert_depth: int,
        send: Callable[[dict[str, Any]], None],
        store: Store | None = None,
    ) -> None:
        self._cluster = cluster
        self._take = take
        self._alert_depth = alert_depth
        self._send = send
        self._store = store
        self.columns = Columns(most_series)
        self.changes = ChangeLog()
        #: What is wrong now, since when (epoch).
        self.alerts: dict[Alert, float] = {}
        #: How often in a row each candidate was seen, or not seen.
        self._counted: dict[Alert, int] = {}
        #: Those of the last minute.
        self._overviews: deque[Overview] = deque()
        #: The one of the last column.
        self._recorded: Overview | None = None
        #: Trends by topic and channel, made for the newest overview.
        self._trends: dict[tuple[str, str], Trend] = {}
        if store is not None:
            for at, figures in store.load(cluster):
                self.columns.restore(at, figures)

    def run(self) -> None:
        """Greenlet of the core's thread: watch. May switch."""
        while True:
            begun = time.monotonic()
            try:
                self.add(self._take(FINE_SECONDS / 2))
            except Exception:
                logger.exception("watching the cluster failed")
            gevent.sleep(max(1.0, FINE_SECONDS - (time.monotonic() - begun)))

    @property
    def overview(self) -> Overview | None:
        """The newest overview."""
        return self._overviews[-1] if self._overviews else None

    def add(self, overview: Overview) -> None:
        """Take an overview in, unless it is in already. Never switches."""
        last, recorded = self.overview, self._recorded
        if last is not None and overview.taken <= last.taken:
            return
        if last is not None:
            for change in differences(last, overview):
                self.changes.add(change)
        # Those that viewers cause come more often.
        if len(self._overviews) > 1 and overview.taken - self._overviews[-2].taken < _STEP:
            self._overviews.pop()
        self._overviews.append(overview)
        while len(self._overviews) > 2 and overview.taken - self._overviews[1].taken >= _WINDOW:
            self._overviews.popleft()
        self._trends = self._make_trends()
        if recorded is None or overview.taken - recorded.taken >= 0.9 * FINE_SECONDS:
            self._recorded = overview
            complete = self.columns.add(overview.at, figures_of(recorded, overview))
            self._watch_alerts(overview)
            if complete is not None and self._store is not None:
                self._store.save(self._cluster, complete.at, self.columns.figures_of(complete))

    def _make_trends(self) -> dict[tuple[str, str], Trend]:
        old, new = self._overviews[0], self._overviews[-1]
        seconds = new.taken - old.taken
        return {
            (topic, name): trend_of(old.channel(topic, name), channel, seconds)
            for topic, each in new.topics.items()
            for name, channel in each.channels.items()
        }

    def trend(self, topic: str, channel: str) -> Trend:
        """The trend of a channel over the last minute."""
        return self._trends.get((topic, channel), Trend())

    def topic_trend(self, topic: str) -> Trend:
        """The trend of a topic over the last minute."""
        if not self._overviews or topic not in self._overviews[-1].topics:
            return Trend()
        old, new = self._overviews[0], self._overviews[-1]
        return topic_trend(old.topics.get(topic), new.topics[topic], new.taken - old.taken)

    def cluster_rates(self) -> tuple[float, float]:
        """Messages published and finished a second, in all; nan while unknown."""
        if len(self._overviews) < 2:
            return math.nan, math.nan
        old, new = self._overviews[0], self._overviews[-1]
        seconds = new.taken - old.taken
        before = old.topics
        published = sum(
            max(0, topic.messages - before[name].messages) for name, topic in new.topics.items() if name in before
        )
        finished = sum(trend.rate_out for trend in self._trends.values() if trend.rate_out == trend.rate_out)
        return published / seconds, finished

    def _watch_alerts(self, overview: Overview) -> None:
        now = {*alerts_of(overview, self._trends, self._alert_depth)}
        # The depth is in the text: the same alert with another depth is the same.
        known = {(alert.name, alert.topic, alert.channel, alert.node): alert for alert in self.alerts}
        found = {(alert.name, alert.topic, alert.channel, alert.node): alert for alert in now}
        for key, alert in found.items():
            if key in known:
                self._counted.pop(known[key], None)
            elif self._is_due(alert, {each for each in self._counted if _key(each) == key}):
                self.alerts[alert] = overview.at
                self._announce(alert, overview.at, begins=True)
        for key, alert in known.items():
            if key not in found and self._is_due(alert, {alert}):
                del self.alerts[alert]
                self._announce(alert, overview.at, begins=False)
        for alert in list(self._counted):
            if alert not in self.alerts and _key(alert) not in found:
                del self._counted[alert]

    def _is_due(self, alert: Alert, same: set[Alert]) -> bool:
        count = 1 + max((self._counted.pop(each, 0) for each in same), default=0)
        if count >= _IN_A_ROW:
            return True
        self._counted[alert] = count
        return False

    def _announce(self, alert: Alert, at: float, *, begins: bool) -> None:
        text = alert.text if begins else f"over: {alert.text}"
        kind = "bad" if begins else "good"
        self.changes.add(Change(at, text, alert.topic, alert.channel, alert.node, kind))
        self._send(
            {
                "alert": alert.name,
                "state": "begins" if begins else "ends",
                "text": alert.text,
                "cluster": self._cluster,
                "topic": alert.topic,
                "channel": alert.channel,
                "node": alert.node,
                "timestamp": int(at),
            }
        )


def _key(alert: Alert) -> tuple[str, str, str, str]:
    return alert.name, alert.topic, alert.channel, alert.node
