"""The nsqlookupds that nsqd registers with, and the channels they know of a new topic (docs/internals 2.1, 4.4)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Protocol

import gevent

from gnsq_like.server.broker.broker import Broker
from gnsq_like.server.broker.channel import Channel
from gnsq_like.server.broker.topic import Topic
from gnsq_like.server.daemon_options import VERSION, NsqdOptions
from gnsq_like.server.nsqd.lookup_peer import LookupPeer
from gnsq_like.wire.names import is_ephemeral


class Registered(Protocol):
    """The members of a listening nsqd that are used here."""

    broker: Broker
    clock: Callable[[], float]
    options: NsqdOptions

    @property
    def broadcast_address(self) -> str: ...
    @property
    def broadcast_tcp_port(self) -> int: ...
    @property
    def broadcast_http_port(self) -> int: ...


class LookupPeers:
    """All of one nsqd.

    :param spawn: runs a function in a greenlet that ends with the nsqd
    """

    def __init__(self, nsqd: Registered, spawn: Callable[..., gevent.Greenlet]) -> None:
        self._nsqd = nsqd
        self._spawn = spawn
        #: Each with its greenlet.
        self._peers: dict[LookupPeer, gevent.Greenlet] = {}

    def follow(self, addresses: Iterable[str]) -> None:
        """Register with exactly these from now on."""
        wanted = dict.fromkeys(addresses)
        for peer in [peer for peer in self._peers if peer.address not in wanted]:
            self._peers.pop(peer).kill(block=False)
        followed = {peer.address for peer in self._peers}
        for address in [address for address in wanted if address not in followed]:
            peer = LookupPeer(address, self._identity(), self._nsqd.broker.topics.values, self._nsqd.options)
            self._peers[peer] = self._spawn(peer.run)

    def _identity(self) -> dict[str, object]:
        nsqd = self._nsqd
        return {
            "broadcast_address": nsqd.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": nsqd.broadcast_http_port,
            "tcp_port": nsqd.broadcast_tcp_port,
            "topology_region": nsqd.options.topology_region,
            "topology_zone": nsqd.options.topology_zone,
            "version": VERSION,
        }

    def announce(self, topic: Topic, channel: Channel | None, exists: bool) -> None:
        """Announce a topic or channel that was created or deleted. A new topic is held until it has the channels that
        nsqlookupds know."""
        for peer in self._peers:
            peer.announce(topic.name, channel.name if channel else None, exists)
        if exists and channel is None and self._peers:
            topic.set_held(True, self._nsqd.clock())
            self._spawn(self._fetch_channels, topic)

    def _fetch_channels(self, topic: Topic) -> None:
        """Greenlet: create a new topic's channels that nsqlookupds know; only then do its messages move."""
        broker = self._nsqd.broker
        jobs = [gevent.spawn(peer.channels_of, topic.name) for peer in self._peers]
        try:
            gevent.joinall(jobs)
            names = {name for job in jobs for name in job.value or ()}
            for name in sorted(names):
                if not is_ephemeral(name) and broker.topics.get(topic.name) is topic:
                    broker.channel(topic, name, self._nsqd.clock())
        finally:
            gevent.killall(jobs, block=False)
            topic.set_held(False, self._nsqd.clock())
