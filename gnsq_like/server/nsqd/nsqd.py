"""nsqd in Python: a daemon that NSQ's clients and tools can use in place of the real one (docs/internals 1 to 3).

:class:`Nsqd` connects the parts: TCP connections and the HTTP API call the broker, the broker decides what
is sent, and the lookup peers register what exists. The broker runs in one place, ``look_at_clock``, in the hub: once
for everything that clients did in one turn of the event loop, and at deadlines.

With a data path, messages that do not fit in memory go to disk, and a stop writes everything to disk, as in
NSQ's nsqd. Without one, all messages stay in memory and are lost when the daemon stops.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any
from wsgiref.types import WSGIApplication

import gevent
from gevent import socket

from gnsq_like.httpd.listen import broadcast_host, port_of
from gnsq_like.httpd.wsgi import Application
from gnsq_like.runtime.native import monotonic
from gnsq_like.runtime.timer import Timer
from gnsq_like.server.broker.broker import Broker
from gnsq_like.server.broker.channel import Channel, Consumer
from gnsq_like.server.broker.data_path import DataPath
from gnsq_like.server.broker.metadata import Entry
from gnsq_like.server.broker.topic import Topic
from gnsq_like.server.daemon_options import NsqdOptions
from gnsq_like.server.nsqd import http, information
from gnsq_like.server.nsqd.auth_servers import AuthServers
from gnsq_like.server.nsqd.commands import Commands
from gnsq_like.server.nsqd.lookup_peers import LookupPeers
from gnsq_like.server.nsqd.tcp import NsqdClient
from gnsq_like.server.shared.daemon import Daemon
from gnsq_like.server.shared.tls import client_context, server_context
from gnsq_like.wire.commands import MAGIC_V2
from gnsq_like.wire.names import is_ephemeral

log = logging.getLogger("gnsq_like.nsqd")


class Nsqd(Daemon):
    """An nsqd that runs in this process, on gevent.

    The constructor only keeps the options; :meth:`start` listens. After that, ``tcp_address`` and
    ``http_address`` are the real addresses, and ``broker`` can be inspected.

    :param options: the options; or pass them one by one, as in ``Nsqd(tcp_address="127.0.0.1:0", msg_timeout=1)``
    :param clock: monotonic seconds, by which messages time out and deferrals end
    """

    def __init__(
        self, options: NsqdOptions | None = None, *, clock: Callable[[], float] = monotonic, **changes: Any
    ) -> None:
        self.options: NsqdOptions = options or NsqdOptions(**changes)
        self.clock = clock
        super().__init__(self.options.tcp_address, self.options.http_address, log, self.options.https_address)
        #: Topics, channels and messages; a new one at every start.
        self.broker: Broker = Broker(self.options)
        #: All connected clients, in the order of their connections.
        self.clients: dict[NsqdClient, None] = {}
        #: Unix seconds.
        self.start_time: int = 0
        #: Messages that the last stop could not write to disk.
        self.lost_count: int = 0
        #: The nsqlookupds that it registers with, while it runs.
        self._lookups: LookupPeers | None = None
        #: The data path, None without one; and the topics found there.
        self._data_path: DataPath | None = None
        self._entries: list[Entry] = []
        #: The auth servers; None if clients may do everything.
        self._auth_servers: AuthServers | None = None
        self._deadline = Timer(self.look_at_clock)
        #: The deadline that ``_deadline`` is set for.
        self._deadline_at: float | None = None

    # -- what clients are told -----------------------------------------------------------------------

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

    @property
    def health(self) -> str:
        """``OK``, or ``NOK -`` and the reason why the last write to disk failed."""
        problem = self._data_path.problem if self._data_path else ""
        return f"NOK - {problem}" if problem else "OK"

    # -- life ----------------------------------------------------------------------------------------

    def _claim(self) -> None:
        self._tls_context = server_context(self.options)
        if self.options.auth_http_addresses:
            self._auth_servers = AuthServers(self.options, client_context(self.options))
        if self.options.data_path:
            data_path = DataPath(self.options, lambda: self.broker.retry(self.clock()))
            self._entries = data_path.open()
            self._data_path = data_path

    def _release(self) -> None:
        if self._data_path is not None:
            data_path, self._data_path = self._data_path, None
            self.lost_count = data_path.close(self.broker.close)

    def _prepare(self) -> None:
        options, data_path = self.options, self._data_path
        make_queue = data_path.make_queue if data_path else None
        note_work = partial(gevent.get_hub().loop.run_callback, self.look_at_clock)
        self.broker = broker = Broker(options, note_work, self._on_change, make_queue=make_queue)
        self.start_time = int(time.time())
        if data_path is not None:
            broker.restore(self._entries, self.clock())
            data_path.start(broker.topics.values)
        self._lookups = LookupPeers(self, self._spawn)
        self._lookups.follow(options.lookupd_tcp_addresses)

    def _dispose(self) -> None:
        self._deadline.cancel()
        self._deadline_at = None
        self._lookups = None

    def _application(self, over_tls: bool) -> WSGIApplication:
        if self.options.tls_required == "true" and not over_tls:
            return information.TlsRequired(self.https_address)
        return Application({**information.routes(self), **http.routes(self)})

    def _serve_client(self, sock: socket.socket, address: str) -> None:
        client = NsqdClient(sock, address, self.broker, self.clock, self._tls_context)
        self.clients[client] = None
        try:
            client.serve(MAGIC_V2, Commands(client, self._auth_servers).run)
        finally:
            self.clients.pop(client, None)

    # -- running the broker --------------------------------------------------------------------------

    def look_at_clock(self) -> None:
        """Do the broker's work that is due. Never switches; tests call it after moving their clock."""
        if not self.is_running:
            return
        for consumer, messages in self.broker.work(self.clock()):
            consumer.client.send_messages(messages)
        due = self.broker.next_due
        if due is None:
            self._deadline.cancel()
        elif due != self._deadline_at or not self._deadline.is_set:
            self._deadline.set(due - self.clock())
        self._deadline_at = due

    # -- managing topics and channels ----------------------------------------------------------------

    def _on_change(self, topic: Topic, channel: Channel | None, exists: bool) -> None:
        if self._data_path is not None and not is_ephemeral((channel or topic).name):
            self._data_path.metadata_changed()
        if self._lookups is not None:
            self._lookups.announce(topic, channel, exists)

    def set_channel_paused(self, channel: Channel, paused: bool) -> None:
        """Pause or unpause a channel."""
        channel.set_paused(paused)
        self._save_metadata()
        for consumer in channel.consumers:
            consumer.client.flush_if_full()

    def set_topic_paused(self, topic: Topic, paused: bool) -> None:
        """Pause or unpause a topic."""
        topic.set_paused(paused, self.clock())
        self._save_metadata()

    def _save_metadata(self) -> None:
        """At once, since a pause must survive even a crash."""
        if self._data_path is not None:
            self._data_path.save_metadata()

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic; its consumers' connections are closed."""
        _close_clients(self.broker.delete_topic(topic))

    def delete_channel(self, topic: Topic, channel: Channel) -> None:
        """Delete a channel; its consumers' connections are closed."""
        _close_clients(self.broker.delete_channel(topic, channel))

    # -- changing options ----------------------------------------------------------------------------

    def set_log_level(self, level: str) -> None:
        """Set the log level of gnsq_like, in the whole process."""
        self.options = replace(self.options, log_level=level)
        logging.getLogger("gnsq_like").setLevel(level.upper())

    def set_lookupd_tcp_addresses(self, addresses: Iterable[str]) -> None:
        """Register with exactly these nsqlookupds from now on."""
        self.options = replace(self.options, lookupd_tcp_addresses=tuple(addresses))
        if self._lookups is not None:
            self._lookups.follow(self.options.lookupd_tcp_addresses)


def _close_clients(consumers: list[Consumer]) -> None:
    for consumer in consumers:
        consumer.client.abort()
