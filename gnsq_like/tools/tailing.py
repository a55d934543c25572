"""Shows the messages of topics as they arrive, as NSQ's nsq_tail does: ``gnsq-like tail``, which formats the lines.

It asks the nsqds first, and creates no channel that would get a topic's backlog (:class:`ChannelGuard`).
"""

from __future__ import annotations

import logging
import operator
import random
import re
from collections.abc import Callable, Sequence
from itertools import compress

from gevent.event import Event

from gnsq_like import Message, NsqdHTTPClient, NsqdNode
from gnsq_like.addresses import join_host_port, parse_address
from gnsq_like.cluster.daemons import Daemons
from gnsq_like.cluster.figures import read_topics
from gnsq_like.cluster.rounds import NotFound, Unreachable
from gnsq_like.errors import InvalidOption, NSQError
from gnsq_like.tools.consuming import Consumption, Gathering, give_back, in_a_thread
from gnsq_like.tools.sources import Source
from gnsq_like.wire.names import is_ephemeral

logger = logging.getLogger(__name__)


#: Seconds for the last write: the reader of the pipe may have stopped.
_STOP_TIMEOUT = 2.0
#: Seconds for a request.
_TIMEOUT = 5.0


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
    :param matching: show only messages whose body has a match, and finish the others; only with an ephemeral channel
    :param create: subscribe even if that makes a topic, a durable channel, or a topic's first channel, which takes its
        whole backlog
    :param nsqd_http_addresses: of fixed nsqds whose HTTP port is not the TCP port + 1, unless ``create`` is set
    :returns: the number of messages shown
    :raises InvalidOption: ``matching`` with a channel
    :raises ChannelRefused: see ``create``
    :raises HTTPAddressUnknown: it is unknown; see ``nsqd_http_addresses``
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


class ChannelRefused(NSQError):
    """The channel does not exist, and creating it might do harm.

    :ivar topic: the topic
    :ivar reason: why
    """

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(topic, reason)
        self.topic = topic
        self.reason = reason

    def __str__(self) -> str:
        return f"topic {self.topic}: {self.reason}"


class ChannelGuard:
    """Keeps a tool from creating an unwanted channel: checks the nsqds of a source before it subscribes.

    A topic without channels keeps its messages, and its first channel takes them all: the ephemeral channel of a quick
    look would take, and drop, the backlog of later consumers. A durable channel that is left behind collects messages
    for ever. Only nsqd itself knows its channels, by its HTTP API.

    :param channel: the channel that the tool will use
    :param nsqd_http_addresses: of the source's nsqds, for those whose HTTP port is not the TCP port + 1
    """

    def __init__(self, source: Source, channel: str, nsqd_http_addresses: Sequence[str] = ()) -> None:
        self._source = source
        self._channel = channel
        self._http_addresses = nsqd_http_addresses

    def check(self, topic: str) -> None:
        """Ask all nsqds that have the topic now. May switch.

        :raises ChannelRefused: no nsqd has the topic, or one of them would make the channel, or cannot be asked
        :raises Unreachable: no nsqlookupd answers, or an nsqd does not
        """
        with self._source.daemons(_TIMEOUT) as daemons:
            if self._source.lookupd_http_addresses:
                try:
                    addresses = [node.address for node in daemons.lookup(topic).nodes]
                except NotFound:
                    addresses = []
            else:
                addresses = list(self._http_addresses or map(_http_address_of, self._source.nsqd_tcp_addresses))
            channels = self._channels(daemons, addresses, topic)
        if all(names is None for names in channels.values()):
            raise ChannelRefused(topic, "no nsqd has it; --create waits for it, or makes it")
        for address, names in channels.items():
            self._judge(topic, address, names)

    def filter_for(self, topic: str) -> Callable[[NsqdNode], bool]:
        """A ``discovery_filter`` that makes the same check of nsqds that appear later, and leaves them out."""
        accepted: set[str] = set()

        def is_wanted(node: NsqdNode) -> bool:
            if node.tcp_address in accepted:
                return True
            try:
                with self._source.daemons(_TIMEOUT) as daemons:
                    [names] = self._channels(daemons, [node.http_address], topic).values()
                self._judge(topic, node.http_address, names)
            except NSQError as exc:
                logger.warning("%s is left out: %s", node.tcp_address, exc)
                return False
            accepted.add(node.tcp_address)
            return True

        return is_wanted

    def _judge(self, topic: str, address: str, channels: list[str] | None) -> None:
        if channels is None or self._channel in channels:
            return  # without the topic there is no backlog
        if not channels:
            what = f"it has no channel at {address}, and the first one takes all its messages"
            raise ChannelRefused(topic, f"{what}; --create does that")
        if not is_ephemeral(self._channel):
            raise ChannelRefused(topic, f"it has no channel {self._channel} at {address}; --create makes it")

    @staticmethod
    def _channels(daemons: Daemons, addresses: list[str], topic: str) -> dict[str, list[str] | None]:
        """The channels of a topic by nsqd; None for an nsqd without the topic. All of them must answer."""
        found = daemons.ask_nsqds(
            addresses, lambda client: read_topics(client.stats(topic, include_clients=False, include_mem=False))
        )
        if found.failures:
            raise Unreachable(found.failures)
        return {
            address: [each.channel_name for each in topics[0].channels] if topics else None
            for address, topics in found.answers.items()
        }


def _http_address_of(tcp_address: str) -> str:
    """The HTTP address of an nsqd: that of the next port, if the same nsqd answers there. May switch.

    :raises ChannelRefused: it does not
    """
    address = parse_address(tcp_address)
    guess = join_host_port(address.host, address.port + 1) if not address.path and address.port < 65535 else ""
    try:
        with NsqdHTTPClient(guess, _TIMEOUT) as client:
            if client.info().tcp_port == address.port:
                return guess
    except NSQError:
        pass
    raise HTTPAddressUnknown(tcp_address)


class HTTPAddressUnknown(NSQError):
    """An nsqd cannot be asked for its channels.

    :ivar address: its TCP address
    """

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address

    def __str__(self) -> str:
        return (
            f"cannot ask the nsqd at {self.address} for its channels: give its --nsqd-http-address, "
            "or --create to subscribe anyway"
        )
