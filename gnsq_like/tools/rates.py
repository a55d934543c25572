"""How fast a channel gets and passes on messages, report by report, as NSQ's nsq_stat counts it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import gevent

from gnsq_like.errors import NSQError
from gnsq_like.tools.counting import ChannelCount, count_topic
from gnsq_like.tools.daemons import Daemons
from gnsq_like.tools.sources import Unreachable


@dataclass
class Report:
    """A channel on all nsqds at one moment."""

    #: Seconds since the epoch.
    time: float
    count: ChannelCount
    #: Messages a second since the report before, into the channel and out of its depth; None where there is none.
    ingress: float | None = None
    egress: float | None = None
    #: Daemons that gave no usable answer; their messages are missing.
    failures: list[NSQError] = field(default_factory=list)


def report_once(daemons: Daemons, topic: str, channel: str) -> Report:
    """A report without rates. May switch.

    :raises NotFound: there is no such topic or channel
    :raises Unreachable: none of the given daemons answers, or none of the nsqds that nsqlookupds know
    """
    found, counts = count_topic(daemons, topic, channel)
    return Report(time.time(), found.channels[channel], failures=counts.failures)


def reports(daemons: Daemons, topic: str, channel: str, interval: float) -> Iterator[Report | Unreachable]:
    """A report after each interval, for ever; an Unreachable for one in which no daemon answered. May switch.

    :param interval: seconds
    :raises NotFound: there is no such topic or channel, or no longer
    :raises Unreachable: no daemon answers at the start
    """
    due = time.monotonic()
    # Those that did not answer may be back at the next report: a rate is that since their last answer.
    last: dict[str, tuple[float, ChannelCount]] = {}
    renew_rates(last, due, report_once(daemons, topic, channel).count.nodes)
    while True:
        now = time.monotonic()
        due = max(due + interval, now)  # what was missed is not made up for
        gevent.sleep(due - now)
        try:
            report = report_once(daemons, topic, channel)
        except Unreachable as exc:
            yield exc
            continue
        report.ingress, report.egress = renew_rates(last, time.monotonic(), report.count.nodes)
        yield report


def renew_rates(
    last: dict[str, tuple[float, ChannelCount]], now: float, nodes: Mapping[str, ChannelCount]
) -> tuple[float | None, float | None]:
    """The rates of all nsqds together; None if no nsqd has answered before. Never switches.

    An nsqd that was restarted counts from 0 again: its rate is left out once.

    :param last: when each nsqd answered before, and what; renewed here
    """
    ingress: float | None = None
    egress = 0.0
    for address, count in nodes.items():
        then, before = last.get(address, (now, count))
        last[address] = now, count
        came = count.message_count - before.message_count
        if now > then and came >= 0:
            ingress = (ingress or 0.0) + came / (now - then)
            egress += (came - (count.depth - before.depth)) / (now - then)
    return ingress, None if ingress is None else egress
