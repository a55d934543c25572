"""One client's TCP connection to nsqd: messages, heartbeats, output buffer (docs/internals 1.12 to 1.14)."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gevent import socket

from gnsq_like.runtime.timer import Timer
from gnsq_like.server.broker.broker import Broker
from gnsq_like.server.broker.channel import Consumer
from gnsq_like.server.broker.message import Message
from gnsq_like.server.nsqd.authorizations import Access
from gnsq_like.server.nsqd.identify import ClientSettings, Negotiated
from gnsq_like.server.shared.connection import Connection
from gnsq_like.server.shared.tls import shake_hands
from gnsq_like.transport.compression import Deflate, Snappy
from gnsq_like.transport.layered import CodecStack
from gnsq_like.wire.frames import ERROR, HEARTBEAT, OK, RESPONSE, encode_frame, encode_messages

log = logging.getLogger("gnsq_like.nsqd")

#: A client's state, as /stats shows it.
INIT, SUBSCRIBED, CLOSING = 0, 3, 4

_HEARTBEAT_FRAME = encode_frame(RESPONSE, HEARTBEAT)


class NsqdClient(Connection):
    """One client of nsqd.

    :param address: "ip:port" of the client
    :param clock: monotonic seconds
    :param tls_context: None if TLS is not offered
    """

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        broker: Broker,
        clock: Callable[[], float],
        tls_context: ssl.SSLContext | None,
    ) -> None:
        super().__init__(sock, address, log)
        self.broker = broker
        self.clock = clock
        self.connected_at = int(time.time())
        #: Empty for a unix socket.
        self.ip = address.rpartition(":")[0].strip("[]")
        self._tls_context = tls_context
        self.settings = ClientSettings(broker.options, self.ip)
        self.state = INIT
        #: Its subscription, after SUB.
        self.consumer: Consumer | None = None
        #: Its permissions, after AUTH.
        self.access: Access | None = None
        #: Messages published, by topic.
        self.publish_counts: dict[str, int] = {}
        self._heartbeat = Timer(self._send_heartbeat)
        #: The time (``monotonic``) since which the next command is awaited, and the timer that limits the wait.
        self.waits_since = 0.0
        self._deadline_timer = Timer(self._check_deadline)

    # -- life ----------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Take nothing more from the broker."""
        self._heartbeat.cancel()
        self._deadline_timer.cancel()
        if self.consumer is not None:
            consumer, self.consumer = self.consumer, None
            self.broker.unsubscribe(consumer)

    def apply_settings(self) -> None:
        """Apply the negotiated settings: buffer, ticker, heartbeats."""
        settings = self.settings
        self.output.size = settings.output_buffer_size
        self.output.ticker.restart(settings.output_buffer_timeout)
        self.output.write_timeout = settings.heartbeat_interval or None
        self._heartbeat.cancel()
        self._deadline_timer.cancel()
        if settings.heartbeat_interval:
            self._heartbeat.set(settings.heartbeat_interval)
        self._watch_commands()

    # -- TLS, compression ----------------------------------------------------------------------------

    @property
    def has_tls(self) -> bool:
        """Whether the connection uses TLS."""
        return self.layers is not None and self.layers.tls is not None

    def upgrade(self, negotiated: Negotiated) -> None:
        """Make the upgrades that were negotiated, and send OK through each (docs/internals 1.3). May switch.

        :raises HandshakeFailed: the connection is as before then
        """
        if not (negotiated.tls or negotiated.snappy or negotiated.deflate):
            return
        self.output.flush()
        # nsqd loses input that it has read after the IDENTIFY.
        self.requests.take_bytes(self.requests.held_bytes)
        if negotiated.tls:
            assert self._tls_context is not None
            self._heartbeat.cancel()  # it would get between the handshake's records
            self._deadline_timer.cancel()
            layers = CodecStack()
            layers.tls = shake_hands(self, self._tls_context)
            self._switch_to(layers)
        if negotiated.snappy or negotiated.deflate:
            layers = self.layers or CodecStack()
            layers.codec = Snappy() if negotiated.snappy else Deflate(negotiated.deflate_level)
            self._switch_to(layers)

    def _switch_to(self, layers: CodecStack) -> None:
        self.layers = layers
        self.output.encode = layers.encode
        self.respond(OK)
        self.output.flush()

    # -- deadlines -----------------------------------------------------------------------------------

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Context manager: while nsqd itself waits, the client's deadline is off. Its responses are written first."""
        self.output.flush()
        self._deadline_timer.cancel()
        yield
        self._watch_commands()

    def _watch_commands(self) -> None:
        if interval := self.settings.heartbeat_interval:
            self.waits_since = time.monotonic()
            self._deadline_timer.set(2 * interval)

    def _check_deadline(self) -> None:
        # The timer is not restarted for each command, so commands may have arrived since.
        left = self.waits_since + 2 * self.settings.heartbeat_interval - time.monotonic()
        if left > 0:
            self._deadline_timer.set(left)
        elif self.output.held_up:
            self._deadline_timer.set(self.settings.heartbeat_interval)  # then write_timeout applies
        else:
            self.abort()

    def _send_heartbeat(self) -> None:
        self._heartbeat.set(self.settings.heartbeat_interval)
        if not self.output.held_up:
            self.output.add(_HEARTBEAT_FRAME)
            self.output.flush()

    # -- writing -------------------------------------------------------------------------------------

    def respond(self, payload: bytes) -> None:
        """Send a response frame once the client's commands read so far are executed."""
        self.output.add(encode_frame(RESPONSE, payload))

    def respond_error(self, payload: bytes) -> None:
        """Send an error frame once the client's commands read so far are executed."""
        self.output.add(encode_frame(ERROR, payload))

    def send_messages(self, messages: list[Message]) -> None:
        """Send messages that the broker has dealt to this client."""
        self.output.send_buffered(encode_messages([(m.timestamp_ns, m.attempts, m.id, m.body) for m in messages]))
        if self.consumer is not None and self.consumer.room() > 0:
            self.output.ticker.wait()
        else:
            self.output.flush_and_rest()

    def flush_if_full(self) -> None:
        """Flush if the client can be sent nothing more for now: RDY lowered, or its channel paused."""
        if self.consumer is not None and self.consumer.room() <= 0:
            self.output.flush_and_rest()

    def on_held_up(self, held_up: bool) -> None:
        if self.consumer is not None:
            self.consumer.set_held_up(held_up)
