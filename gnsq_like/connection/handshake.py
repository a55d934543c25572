"""Dials, and negotiates until the connection may subscribe and publish: IDENTIFY, TLS, codec, AUTH.

The session decides the next step; this module performs it, in the caller's greenlet, before the connection has one of
its own: write, wait for the reply, put TLS or a codec around the socket, pass on bytes already received, and so on
until ``Identified``. One deadline covers all of it.

Rules for editors: the secret goes from the option into the bytes of AUTH, and nowhere else.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gevent

from gnsq_like.addresses import Address
from gnsq_like.errors import ConnectionFailed, NegotiationFailed, NsqdError, ProtocolError, TLSError, reason_of
from gnsq_like.options import (
    DEFAULT_HEARTBEAT_INTERVAL,
    DEFAULT_OUTPUT_BUFFER_SIZE,
    DEFAULT_OUTPUT_BUFFER_TIMEOUT,
    ConnectionOptions,
    secret_fault,
)
from gnsq_like.runtime.dispatcher import log_soon
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.runtime.timer import LEAST_TIMEOUT
from gnsq_like.transport.dial import dial
from gnsq_like.transport.layered import CodecStack, LayeredTransport
from gnsq_like.transport.tcp import TcpTransport
from gnsq_like.wire.session import AuthRequired, Broken, Event, Identified, Session, Upgrade

if TYPE_CHECKING:
    from gnsq_like.transport.compression import Codec
    from gnsq_like.transport.tls import Tls

logger = logging.getLogger(__name__)

#: Defaults of ours that nsqd's flags may not allow; its errors name them with blanks for underscores.
_ASKED_BY_DEFAULT = {
    "output_buffer_size": DEFAULT_OUTPUT_BUFFER_SIZE,
    "output_buffer_timeout": DEFAULT_OUTPUT_BUFFER_TIMEOUT,
    "heartbeat_interval": DEFAULT_HEARTBEAT_INTERVAL,
}

#: Addresses for which the log has a warning that the secret is sent unencrypted.
_warned: set[str] = set()


def shake_hands(address: Address, options: ConnectionOptions, deadline: float) -> Handshake:
    """Dial, and negotiate as the options say. May switch.

    If nsqd refuses one of our own defaults, it is dialled again with its default, or a shorter heartbeat interval.

    :param deadline: monotonic time by which all must be done
    :returns: the completed handshake
    :raises ConnectionFailed: its cause is nsqd's error, a TLSError, a NegotiationFailed or an OSError
    """
    given = options
    while True:
        handshake = Handshake(address, dial(address, deadline - time.monotonic()), options, deadline)
        try:
            handshake.run()
            return handshake
        except OSError as exc:
            timed_out = f"no answer to {handshake.step} in time"
            reason = timed_out if isinstance(exc, TimeoutError) else reason_of(exc)
            raise ConnectionFailed(str(address), reason) from exc
        except (NsqdError, ProtocolError, NegotiationFailed) as exc:
            less = _without_refused_default(exc, given, options)
            if less is None:
                raise ConnectionFailed(str(address), str(exc)) from exc
            log_soon(logger.info, "%s: %s; connecting again with %s", address, exc, less)
            options = replace(options, **less)


def _without_refused_default(
    error: Exception, given: ConnectionOptions, options: ConnectionOptions
) -> dict[str, Any] | None:
    """The value to request instead of a default of ours that nsqd refused: None for nsqd's default.

    nsqd does not report its default heartbeat interval, which is needed to detect a dead peer; so ours is halved until
    it is accepted.
    """
    if isinstance(error, NsqdError):
        for name, default in _ASKED_BY_DEFAULT.items():
            if error.detail.startswith(f"IDENTIFY {name.replace('_', ' ')} (") and getattr(given, name) == default:
                if name != "heartbeat_interval":
                    return {name: None}
                if options.heartbeat_interval > 1:
                    return {name: max(1.0, options.heartbeat_interval / 2)}
    return None


class Handshake:
    """One handshake; call :meth:`run` once.

    :param tcp: a new connection
    :param deadline: monotonic time by which all must be done
    """

    def __init__(self, address: Address, tcp: TcpTransport, options: ConnectionOptions, deadline: float) -> None:
        self._address = address
        self.options = options
        self.session: Session[PendingReply] = Session(
            options.identify_fields(), options.max_frame_bytes, options.required_upgrades
        )
        self._deadline = deadline
        #: To read from and write to: the socket, from the first upgrade on with TLS and codec.
        self.transport: TcpTransport = tcp
        #: The current step, for an error's text.
        self.step = "IDENTIFY"
        #: Seconds from IDENTIFY to its reply.
        self.round_trip = 0.0
        #: Monotonic time of the last bytes from nsqd.
        self.last_received_at = 0.0
        #: Monotonic time just before AUTH was sent; nsqd's answer cannot have begun to expire earlier.
        self.asked_auth_at = 0.0
        #: Events that came with the end of the handshake, for the connection.
        self.early: list[Event[PendingReply]] = []

    def run(self) -> None:
        """Negotiate; if that fails, close the connection. May switch.

        :raises OSError: if the socket fails; TimeoutError after the deadline
        :raises NsqdError, ProtocolError, NegotiationFailed: if nsqd, TLS or the options prevent the connection
        """
        with ExitStack() as failed:
            failed.callback(lambda: self.transport.close())
            started = time.monotonic()
            self._write(self.session.start())
            data = self._receive()
            self.round_trip = self.last_received_at - started
            while not self._take(data):
                data = self._receive()
            failed.pop_all()

    def _take(self, data: bytes) -> bool:
        """Process input; returns whether the negotiation is complete."""
        while data:
            events, data = self.session.receive(data), b""
            done = False
            for event in events:
                if isinstance(event, Upgrade):
                    data = self._start_tls(event) if event.feature == "tls_v1" else self._start_codec(event)
                elif isinstance(event, AuthRequired):
                    if not self.session.broken:  # by what came behind it
                        self._authenticate()
                elif isinstance(event, Identified):
                    done = True
                elif isinstance(event, Broken) and not done:
                    raise event.error
                else:
                    self.early.append(event)
            if done:
                return True
        return False

    def _authenticate(self) -> None:
        self.step = "AUTH"
        secret = self._secret()
        self.asked_auth_at = time.monotonic()
        self._write(self.session.authenticate(secret))

    # -- upgrades -----------------------------------------------------------------------------------

    def _start_tls(self, upgrade: Upgrade) -> bytes:
        self.step = "TLS"
        tls = self._make_tls()
        data = upgrade.rest
        try:
            while not tls.handshake(data):
                self._write(tls.take_output())
                data = self._receive()
            self._write(tls.take_output())
        except TLSError:
            with suppress(OSError):  # the alert; nsqd may have closed the connection
                self._write(tls.take_output())
            raise
        self._layered().tls = tls
        return b""

    def _make_tls(self) -> Tls:
        # Imported at first use: an application may have to patch before ssl is imported.
        from gnsq_like.transport.tls import Tls, client_context

        options = self.options
        context = options.ssl_context
        if context is None:
            context = client_context(options.tls_root_ca_file, options.tls_cert, options.tls_key, options.verify)
        name = options.server_hostname
        if callable(name):
            try:
                name = name(str(self._address))
            except Exception as exc:
                reason = f"server_hostname({str(self._address)!r}) raised {exc!r}"
                raise NegotiationFailed("tls_v1", reason, may_pass=True) from exc
        if name is not None and not (isinstance(name, str) and name):
            raise NegotiationFailed("tls_v1", f"server_hostname() returned {name!r}, not a name", may_pass=True)
        if name is None and self._address.host:
            name = self._address.host.partition("%")[0]  # an IPv6 address without its zone
        if name is None and context.check_hostname:
            raise NegotiationFailed("tls_v1", "a unix socket has no host name to verify; set server_hostname=")
        try:
            return Tls(context, server_hostname=name)
        except TLSError as exc:  # a local error
            reason = f"cannot start TLS with server_hostname={name!r}: {exc.detail}"
            raise NegotiationFailed("tls_v1", reason, may_pass=callable(options.server_hostname)) from exc

    def _start_codec(self, upgrade: Upgrade) -> bytes:
        from gnsq_like.transport.compression import Deflate, Snappy

        self.step = upgrade.feature
        codec: Codec = Snappy() if upgrade.feature == "snappy" else Deflate(self.session.negotiated.deflate_level)
        self._layered().codec = codec
        return codec.decompress(upgrade.rest)

    def _layered(self) -> CodecStack:
        if not isinstance(self.transport, LayeredTransport):
            self.transport = LayeredTransport(self.transport, CodecStack())
        return self.transport.layers

    # -- AUTH ---------------------------------------------------------------------------------------

    def _secret(self) -> str:
        secret = self.options.auth_secret
        if callable(secret):
            try:
                secret = secret()
            except Exception as exc:
                raise NegotiationFailed("auth", f"auth_secret() raised {type(exc).__name__}", may_pass=True) from exc
            if not isinstance(secret, str):
                reason = f"auth_secret() returned {type(secret).__name__}, not str"
                raise NegotiationFailed("auth", reason, may_pass=True)
            fault = secret_fault(secret)
            if fault is not None:
                raise NegotiationFailed("auth", f"auth_secret() returned an invalid secret: {fault}", may_pass=True)
        if secret is None:
            raise NegotiationFailed("auth", "nsqd requires a secret; set auth_secret=")
        name = str(self._address)
        if not (self.session.negotiated.tls_v1 or self._address.path or name in _warned):
            _warned.add(name)
            log_soon(logger.warning, "auth_secret is sent to %s in the clear; set tls_v1=True to encrypt it", name)
        return secret

    # -- bytes --------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        # A new socket's buffer holds all of this, so there is no waiting for it to become writable.
        left = memoryview(data)
        while left or self.transport.unsent:
            unsent = self.transport.unsent
            sent = self.transport.send_now(left)
            if not sent and self.transport.unsent >= unsent:
                raise OSError("the socket accepted no bytes")
            left = left[sent:]

    def _receive(self) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0:  # for a peer that never stops sending
            raise TimeoutError
        with gevent.Timeout(max(left, LEAST_TIMEOUT), TimeoutError):
            while (data := self.transport.receive_now()) is None:
                self.transport.wait()
        if not data:
            raise OSError(f"nsqd closed the connection at {self.step}")
        self.last_received_at = time.monotonic()
        return data
