"""Present problems of a cluster, and when each began.

A problem becomes an alert when two polls in a row show it, and ends when two in a row do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from gnsq_like.admin.admin_options import AdminOptions
from gnsq_like.admin.history.trend import Trend, is_peek, states_of
from gnsq_like.admin.upstream.overview import Overview

#: Polls in a row that must show a problem before it is an alert, or its absence before it ends.
_IN_A_ROW = 2


@dataclass(frozen=True)
class Alert:
    """A problem, for as long as it lasts. Alerts that differ only in their figures are equal."""

    #: A word for programs: node_down, nsqlookupd_down, unhealthy, depth; or a state, such as stuck,
    #: paused, no_consumers.
    name: str
    #: For people, with the figures of the last round.
    text: str = field(compare=False)
    topic: str = ""
    channel: str = ""
    node: str = ""

    def as_json(self) -> dict[str, str]:
        """The alert for /api/alerts."""
        where = {"topic": self.topic, "channel": self.channel, "node": self.node}
        return {"alert": self.name, "text": self.text, **where}


class Alerts:
    """The alerts of one cluster.

    :param note: called with each alert, when, and whether it begins
    """

    def __init__(self, note: Callable[[Alert, float, bool], None] = lambda *_: None) -> None:
        self._note = note
        #: The beginning of each (epoch); replaced as a whole, so any thread may read it.
        self.present: dict[Alert, float] = {}
        #: Polls in a row that contradict the present state of each.
        self._counted: dict[Alert, int] = {}

    def update(self, found: Iterable[Alert], at: float) -> None:
        """Add the problems that a poll has found. Never switches."""
        now = {alert: alert for alert in found}
        counted = {}
        for alert in [*self.present, *(each for each in now if each not in self.present)]:
            if (alert in now) == (alert in self.present):
                continue
            counted[alert] = self._counted.get(alert, 0) + 1
            if counted[alert] >= _IN_A_ROW:
                del counted[alert]
                self._turn(alert, at)
        self._counted = counted
        self.present = {now.get(alert, alert): since for alert, since in self.present.items()}

    def end(self, alert: Alert, at: float) -> None:
        """End an alert at once, if there is one. Never switches."""
        if alert in self.present:
            self._turn(alert, at)

    def _turn(self, alert: Alert, at: float) -> None:
        begins = alert not in self.present
        others = {each: since for each, since in self.present.items() if each != alert}
        self.present = {**others, alert: at} if begins else others
        self._note(alert, at, begins)

    def newest_first(self) -> dict[Alert, float]:
        """The alerts with the time of their beginning (epoch)."""
        return dict(sorted(self.present.items(), key=lambda item: -item[1]))


def down(node: str, why: str = "does not answer") -> Alert:
    """The alert of an nsqd that does not answer, or has left."""
    return Alert("node_down", f"nsqd {node} {why}", node=node)


def of_daemons(overview: Overview) -> Iterator[Alert]:
    """The daemons that do not answer, or report an error."""
    for address, problem in overview.lookupds.items():
        if problem:
            yield Alert("nsqlookupd_down", f"nsqlookupd {address} does not answer", node=address)
    for total in overview.nodes:
        if total.left_at is not None and total.problem:
            yield down(total.node.address, "has left: no nsqlookupd lists it, and it was not tombstoned")
        elif total.problem:
            yield down(total.node.address)
        elif total.health not in ("OK", ""):
            yield Alert("unhealthy", f"nsqd {total.node.address} is unhealthy", node=total.node.address)


def alerts_of(overview: Overview, trends: dict[tuple[str, str], Trend], options: AdminOptions) -> Iterator[Alert]:
    """All problems, each once: a depth that another alert explains is left out. Dead letters need no consumer."""
    depth = options.alert_depth
    yield from of_daemons(overview)
    for topic, each in overview.topics.items():
        is_ephemeral = topic.endswith("#ephemeral")  # made for a moment, such as those of Celery's workers
        if each.paused:
            yield Alert("paused", f"{topic} is paused, with {each.depth:,} messages in the topic", topic)
        elif each.depth and not each.channels and not is_ephemeral and not options.is_dead_letter(topic):
            yield Alert("no_consumers", f"{topic} has {each.depth:,} messages and no channel", topic)
        elif depth and each.depth >= depth:
            yield Alert("depth", f"{topic} has a depth of {each.depth:,} in the topic itself", topic)
        for name, channel in each.channels.items():
            if is_peek(name):
                continue
            states = states_of(channel, trends.get((topic, name), Trend()))
            if options.is_dead_letter(topic) and "no consumers" in states:
                states.remove("no consumers")
            if states:
                state = states[0]
                text = f"{topic}/{name}: {_SENTENCES.get(state, state)} ({channel.left:,} messages wait)"
                yield Alert(state.removeprefix("partly ").replace(" ", "_"), text, topic, name)
            elif depth and channel.depth >= depth:
                yield Alert("depth", f"{topic}/{name} has a depth of {channel.depth:,}", topic, name)


#: The states of a channel that need more than the word.
_SENTENCES = {"stuck": "it grows, and nothing is finished", "many retries": "messages are tried again and again"}
