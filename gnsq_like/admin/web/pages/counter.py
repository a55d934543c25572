"""One large number: how many messages all channels have had; and the channels that have had the most."""

from __future__ import annotations

import math

from gnsq_like.admin.history.trend import is_peek
from gnsq_like.admin.web.pages.page import Page, Route, View


def counter_page(view: View) -> Page:
    """One large number: all messages that channels have had."""
    channels = [
        channel
        for topic in view.overview.topics.values()
        for name, channel in topic.channels.items()
        if not is_peek(name)
    ]
    rates = [view.recorder.trend(channel.topic, channel.name) for channel in channels]
    known = [trend.rate_in for trend in rates if not math.isnan(trend.rate_in)]
    top = sorted(channels, key=lambda channel: -channel.messages)[:10]
    values = {
        "count": sum(channel.messages for channel in channels),
        "rate": sum(known) if known else math.nan,
        "top": [(channel, view.recorder.trend(channel.topic, channel.name)) for channel in top],
        "most": top[0].messages if top else 0,
    }
    return Page("counter.html", "Counter", values)


ROUTE = Route("/counter", "counter", "counter", counter_page, kept=True)
