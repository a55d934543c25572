"""nsqd in Python: a daemon that NSQ's clients and tools take for the real one (NSQ.md 1 to 3).

:class:`Nsqd` joins the parts: the broker decides, the TCP and HTTP faces ask it and are told, and the
lookup peers announce what exists. It runs the broker in one place, ``_work``, in the hub: once for all
that the clients did in one turn of the event loop, and when a deadline has come.

Messages are kept in memory only, and are lost when the daemon stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic, time
from typing import Any

import gevent
from gevent import socket

from gnsq_like.server.alarm import Alarm
from gnsq_like.server.broker import Broker
from gnsq_like.server.channel import Channel, Consumer
from gnsq_like.server.daemon import Daemon
from gnsq_like.server.http_face import Application
from gnsq_like.server.listen import broadcast_host, port_of
from gnsq_like.server.lookup_peer import LookupPeer
from gnsq_like.server.nsqd_http import routes
from gnsq_like.server.nsqd_tcp import NsqdClient
from gnsq_like.server.options import NsqdOptions
from gnsq_like.server.topic import Topic
from gnsq_like.wire.names import is_ephemeral

log = logging.getLogger("gnsq_like.nsqd")


class Nsqd(Daemon):
    """An nsqd that runs in this process, on gevent.

    The constructor does nothing but keep the options; :meth:`start` listens. Afterwards ``tcp_address``
    and ``http_address`` are the real addresses, and ``broker`` is there to be looked at.

    :param options: the options; or give them one by one, as ``Nsqd(tcp_address="127.0.0.1:0", msg_timeout=1)``
    :param clock: monotonic seconds, by which messages time out and deferred ones come back
    """

    def __init__(
        self, options: NsqdOptions | None = None, *, clock: Callable[[], float] = monotonic, **changes: Any
    ) -> None:
        self.options = options or NsqdOptions(**changes)
        self.clock = clock
        super().__init__(self.options.tcp_address, self.options.http_address, log)
        #: Topics, channels and messages; a new one at every start.
        self.broker = Broker(self.options)
        #: All connected clients.
        self.clients: set[NsqdClient] = set()
        #: Unix seconds.
        self.start_time = 0
        self._lookup_peers: list[LookupPeer] = []
        self._deadline = Alarm(self._work)
        #: The deadline that ``_deadline`` is set for.
        self._deadline_at: float | None = None

    # -- what others are told of this nsqd -----------------------------------------------------------

    @property
    def broadcast_address(self) -> str:
        """The host name or address that clients are told to use."""
        return self.options.broadcast_address or broadcast_host(self.tcp_address)

    @property
    def broadcast_tcp_port(self) -> int:
        """The TCP port that clients are told to use."""
        return self.options.broadcast_tcp_port or port_of(self.tcp_address)

    @property
    def broadcast_http_port(self) -> int:
        """The HTTP port that clients are told to use."""
        return self.options.broadcast_http_port or (port_of(self.http_address) if self.http_address else 0)

    # -- life ----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self.broker = Broker(self.options, self._note_work, self._on_change)
        self.start_time = int(time())
        self._lookup_peers = [LookupPeer(address, self) for address in self.options.lookupd_tcp_addresses]
        for peer in self._lookup_peers:
            self._greenlets.spawn(peer.run)

    def _dispose(self) -> None:
        self._deadline.cancel()
        self._deadline_at = None
        self._lookup_peers = []

    def _application(self) -> Application:
        return Application(routes(self))

    def _serve_client(self, sock: socket.socket, address: str) -> None:
        client = NsqdClient(sock, address, self.broker, self.clock)
        self.clients.add(client)
        try:
            client.run()
        finally:
            self.clients.discard(client)

    # -- running the broker --------------------------------------------------------------------------

    def _note_work(self) -> None:
        gevent.get_hub().loop.run_callback(self._work)

    def _work(self) -> None:
        """Do what is on the broker's agenda. Never switches."""
        if not self.is_running:
            return
        for consumer, messages in self.broker.work(self.clock()):
            _client_of(consumer).send_messages(messages)
        due = self.broker.next_due
        if due is None:
            self._deadline.cancel()
        elif due != self._deadline_at or not self._deadline.is_set:
            self._deadline.set(due - self.clock())
        self._deadline_at = due

    # -- managing topics and channels (the HTTP face) ------------------------------------------------

    def set_channel_paused(self, channel: Channel, paused: bool) -> None:
        """Pause or unpause a channel."""
        channel.set_paused(paused)
        for consumer in channel.consumers:
            _client_of(consumer).flush_if_full()

    def delete_topic(self, topic: Topic) -> None:
        """Drop a topic; its consumers' connections are closed."""
        _close_clients(self.broker.delete_topic(topic))

    def delete_channel(self, topic: Topic, channel: Channel) -> None:
        """Drop a channel; its consumers' connections are closed."""
        _close_clients(self.broker.delete_channel(topic, channel))

    # -- nsqlookupd ----------------------------------------------------------------------------------

    def _on_change(self, topic: Topic, channel: Channel | None, exists: bool) -> None:
        for peer in self._lookup_peers:
            peer.announce(topic.name, channel.name if channel else None, exists)
        if exists and channel is None and self._lookup_peers:
            topic.set_held(True, self.clock())
            self._greenlets.spawn(self._fetch_channels, topic)

    def _fetch_channels(self, topic: Topic) -> None:
        """Greenlet: make the channels that nsqlookupd knows of a new topic; only then its messages move."""
        jobs = [gevent.spawn(peer.channels_of, topic.name) for peer in self._lookup_peers]
        try:
            gevent.joinall(jobs)
            names = {name for job in jobs for name in job.value or ()}
            for name in sorted(names):
                if not is_ephemeral(name) and self.broker.topics.get(topic.name) is topic:
                    self.broker.channel(topic, name, self.clock())
        finally:
            gevent.killall(jobs, block=False)
            topic.set_held(False, self.clock())


def _client_of(consumer: Consumer) -> NsqdClient:
    assert isinstance(consumer.client, NsqdClient)
    return consumer.client


def _close_clients(consumers: list[Consumer]) -> None:
    for consumer in consumers:
        _client_of(consumer).abort()
