"""Shows the messages of topics as they come, as NSQ's nsq_tail does: ``gnsq-like tail``."""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable, Sequence
from itertools import compress

from gevent.event import Event

from gnsq_like import Message
from gnsq_like.errors import InvalidOption
from gnsq_like.tools.channel_guard import ChannelGuard
from gnsq_like.tools.consuming import Consumption, Gathering, give_back, in_a_thread
from gnsq_like.tools.sources import Source

#: Seconds for a last write, whose reader may have stopped reading.
_STOP_TIMEOUT = 2.0


def tail(
    source: Source,
    topics: Sequence[str],
    show: Callable[[list[Message]], object],
    *,
    stop: Event,
    channel: str | None = None,
    count: int = 0,
    matching: re.Pattern[bytes] | None = None,
    create: bool = False,
    nsqd_http_addresses: Sequence[str] = (),
) -> int:
    """Show messages until ``stop`` is set, or ``count`` of them have been shown. May switch.

    A message is finished after ``show`` returned; one that was not shown goes back to its channel.

    :param show: called in a native thread with a list of messages; what it raises ends the tail, and is raised
    :param channel: None for an ephemeral one of its own, so that other consumers lose nothing
    :param count: of all topics together; 0 for no limit
    :param matching: show only messages whose body has a match; needs a channel of its own, where those without one
        are finished
    :param create: subscribe even if that makes a topic, a durable channel, or a topic's first channel, which takes its
        whole backlog
    :param nsqd_http_addresses: of fixed nsqds whose HTTP port is not the TCP port + 1, unless ``create`` is set
    :returns: the number of messages shown
    :raises InvalidOption: ``matching`` with a channel
    :raises ChannelRefused: see ``create``
    :raises HTTPAddressUnknown: it cannot be found out; see ``nsqd_http_addresses``
    :raises Unreachable: none of the nsqds or nsqlookupds could be reached
    """
    if matching is not None and channel is not None:
        reason = "messages without a match would be finished unseen; leave out the channel"
        raise InvalidOption("grep", matching.pattern.decode(errors="replace"), reason)
    channel = channel or f"tail{random.randrange(1_000_000):06d}#ephemeral"
    guard = None if create else ChannelGuard(source, channel, nsqd_http_addresses)
    if guard is not None:
        for topic in topics:
            guard.check(topic)
    consumption = Consumption(source, stop, needs_lookupd=True, stop_timeout=_STOP_TIMEOUT)
    options = {}
    if count and matching is None:
        options["max_in_flight"] = min(count, source.options.get("max_in_flight", count))
    screen = _Screen(show, count, matching, stop)
    gathering = Gathering(screen.take, consumption.fail)
    try:
        for topic in topics:
            if guard is not None and source.lookupd_http_addresses:
                options["discovery_filter"] = guard.filter_for(topic)
            consumption.add(topic, channel, gathering, **options)
        consumption.wait()
    finally:
        consumption.end()
        screen.close()
    return screen.shown


class _Screen:
    """Shows messages and finishes them, up to a number."""

    def __init__(
        self,
        show: Callable[[list[Message]], object],
        count: int,
        matching: re.Pattern[bytes] | None,
        stop: Event,
    ) -> None:
        self._show = show
        self._count = count
        self._matching = matching
        self._stop = stop
        self._threads = in_a_thread()
        self.shown = 0

    def take(self, messages: list[Message]) -> None:
        """May switch."""
        wanted, unwanted = messages, []
        if self._matching is not None:
            matches = [self._matching.search(each.body) is not None for each in messages]
            wanted = list(compress(messages, matches))
            unwanted = list(compress(messages, map(operator.not_, matches)))
        if self._count:
            wanted = wanted[: self._count - self.shown]
        if wanted:
            self._threads.call(self._show, wanted)
        self.shown += len(wanted)
        for message in [*wanted, *unwanted]:
            message.finish()
        give_back(messages)
        if self._count and self.shown >= self._count:
            self._stop.set()

    def close(self) -> None:
        """May switch."""
        self._threads.close()
