"""One connection to one nsqd: transport + session + outbox.

Reader, Producer and the Spark source build on it. It reports to its owner by callbacks: it answers heartbeats, passes
on the messages of each read as one list, and detects a dead peer.

The caller of :meth:`Connection.connect` dials and negotiates. After that the hub calls ``_take_in`` whenever nsqd has
sent something; a greenlet that waits for it would cost two switches for each answer. Writes belong to the outbox.
Whatever ends a connection calls ``_stop``, so that it ends in one place: ``_tear_down``, in a greenlet of its own.

A signal handler may raise anywhere here. The rule is: what interrupts code that changes the session, the outbox or the
transport ends the connection, so that its owner makes another, and is raised (``publish``, ``_put``, ``_take_in``,
``Outbox.flush``); and what it may have kept from being done at all is done a second later (``_look``).

The end, in order: 1. no further command is accepted; 2. the socket is closed; 3. unanswered commands get their error;
4. ``on_close`` is called, once.

Where a connection is in its life is its ``Life``; ``_NEXT`` has all changes, and ``_enter`` makes them.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Sequence, Sized
from typing import Any

import gevent

from gnsq_like.addresses import Address, parse_address
from gnsq_like.connection.handshake import shake_hands
from gnsq_like.connection.lease import PATIENCE, TICK, Lease
from gnsq_like.connection.liveness import Liveness
from gnsq_like.connection.outbox import Outbox
from gnsq_like.errors import (
    ConnectionFailed,
    ConnectionLost,
    NegotiationFailed,
    NotRunning,
    NotSent,
    NsqdError,
    NSQError,
    OutcomeUnknown,
    ProtocolError,
    PublishRefused,
    UsageError,
)
from gnsq_like.options import ConnectionOptions
from gnsq_like.runtime import owner
from gnsq_like.runtime.hub_calls import HubHandle, InnerGreenlet
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.runtime.user_code import check_callables
from gnsq_like.transport.layered import LayeredTransport
from gnsq_like.transport.tcp import TcpTransport
from gnsq_like.wire import commands
from gnsq_like.wire.frames import RawMessage
from gnsq_like.wire.negotiated import Authorized, Negotiated
from gnsq_like.wire.session import (
    Broken,
    CloseWait,
    CommandFailed,
    Confirmed,
    Event,
    Heartbeat,
    Messages,
    Refused,
    Session,
    Subscribed,
)

logger = logging.getLogger(__name__)

#: The shortest validity of an auth server's response, in seconds: its ttl is a whole number (docs/internals 1.4).
_LEAST_TTL = 1.0


def _ignore(*_: object) -> None: ...


class Life(enum.Enum):
    """Where a connection is in its life."""

    NEW = "not connected"
    CONNECTING = "connecting"
    OPEN = "open"
    #: A greenlet is about to end it.
    ENDING = "ending"
    CLOSED = "closed"
    #: It belongs to the parent of this process, or its thread has ended: nothing of it runs here.
    LET_GO = "let go"


#: What may follow each state. Anything else changes nothing, because a connection may end for several causes at once.
_NEXT = {
    Life.NEW: {Life.CONNECTING, Life.ENDING},
    Life.CONNECTING: {Life.OPEN, Life.ENDING},
    Life.OPEN: {Life.ENDING, Life.LET_GO},
    Life.ENDING: {Life.CLOSED, Life.LET_GO},
    Life.CLOSED: set(),
    Life.LET_GO: set(),
}


class Connection:
    """One connection to one nsqd, for applications that control RDY themselves.

    Nothing happens before :meth:`connect`. Next: :meth:`subscribe` and :meth:`set_rdy`, or :meth:`publish`; at the end,
    :meth:`close`. All methods must be called in the thread that called ``connect``. Of its attributes, ``alive`` is
    whether commands may be sent, ``error`` why it ended, ``negotiated`` nsqd's reply to IDENTIFY, and ``authorized``
    that to AUTH.

    :param address: "host:port", "[ipv6]:port" or "unix:/path"
    :param options: the connection's options; None for the defaults
    :param on_messages: called with (connection, messages) after each read that completed messages; a message is
        (timestamp in ns, attempts, 16-byte id, body)
    :param on_answers: called with (connection) after publishes were confirmed, once per read
    :param on_error: called with (connection, error) when nsqd reports that a FIN, REQ or TOUCH failed
    :param on_close: called with (connection, error) when the connection has ended; error is None after :meth:`close`

    ``on_messages`` and ``on_answers`` run in the hub, the others in a greenlet; none may switch greenlets.
    """

    def __init__(
        self,
        address: str | Address,
        options: ConnectionOptions | None = None,
        *,
        on_messages: Callable[[Connection, list[RawMessage]], object] = _ignore,
        on_answers: Callable[[Connection], object] = _ignore,
        on_error: Callable[[Connection, NsqdError], object] = _ignore,
        on_close: Callable[[Connection, NSQError | None], object] = _ignore,
    ) -> None:
        self._target: Address = address if isinstance(address, Address) else parse_address(address)
        self.address: str = str(self._target)
        self.options: ConnectionOptions = options if options is not None else ConnectionOptions()
        hooks = {"on_messages": on_messages, "on_error": on_error, "on_close": on_close}
        check_callables(dict.fromkeys(hooks, 2) | {"on_answers": 1}, **hooks, on_answers=on_answers)
        self._on_messages, self._on_answers = on_messages, on_answers
        self._on_error, self._on_close = on_error, on_close
        self._session: Session[PendingReply] = Session({})
        #: nsqd's reply to IDENTIFY.
        self.negotiated: Negotiated = Negotiated()
        #: nsqd's reply to AUTH; None if it required none.
        self.authorized: Authorized | None = None
        #: Monotonic time just before AUTH was sent.
        self._asked_auth_at = 0.0
        #: The unanswered publishes; read ``unanswered_count``, or this length where a call costs too much.
        self.unanswered: Sized = ()
        #: Bytes of the unanswered publishes.
        self.unanswered_bytes: int = 0
        #: The RDY last sent.
        self.rdy: int = 0
        #: Seconds from IDENTIFY or SUB to its reply, the lowest seen; an estimate of the network's round trip.
        self.round_trip: float = 0.0
        #: Monotonic time of the last bytes from nsqd.
        self.last_received_at: float = 0.0
        self._state = Life.NEW
        #: Whether commands may be sent: while it is open, until nsqd has refused a publish.
        self.alive: bool = False
        #: While another thread has the socket: nothing may be read or written here.
        self.lease: Lease | None = None
        #: Why the connection ended; None while it is open, or after :meth:`close`.
        self.error: NSQError | None = None
        #: The greenlet that ends it.
        self._ending: Any = None
        #: The following three are set by connect(), before it is OPEN.
        self._transport: TcpTransport | LayeredTransport
        self._outbox: Outbox
        self._liveness: Liveness
        #: The reply to SUB, and later that to CLS, which can only follow.
        self._subscription_reply: PendingReply | None = None

    def __repr__(self) -> str:
        return f"<Connection {self.address} {self._state.value} rdy={self.rdy}>"

    # -- life ---------------------------------------------------------------------------------------

    def _enter(self, state: Life) -> bool:
        """Go into this state, if it may follow; returns whether it did. Never switches."""
        if state not in _NEXT[self._state]:
            return False
        self._state = state
        self.alive = state is Life.OPEN
        return True

    def connect(self) -> Negotiated:
        """Dial, negotiate (IDENTIFY, TLS, codec, AUTH) and start reading, within ``connect_timeout``. May switch.

        Next: :meth:`subscribe` or :meth:`publish`; ``authorized`` has nsqd's reply to AUTH.

        :returns: nsqd's reply to IDENTIFY
        :raises ConnectionFailed: its cause is nsqd's error, a TLSError, a NegotiationFailed or an OSError; no cause if
            :meth:`close` was called meanwhile
        :raises NotRunning: after an earlier call, even a failed one, or after ``close``
        """
        if not self._enter(Life.CONNECTING):
            raise NotRunning("a Connection can connect only once; make a new one")
        deadline = time.monotonic() + self.options.connect_timeout
        handshake, self.options = shake_hands(self._target, self.options, deadline)
        if self._state is not Life.CONNECTING:
            handshake.transport.close()
            raise ConnectionFailed(self.address, "closed while it was connecting")
        self._session = handshake.session
        self.unanswered = self._session.unanswered
        self.negotiated = handshake.negotiated
        self._asked_auth_at = handshake.asked_auth_at
        self.round_trip = handshake.round_trip
        self.last_received_at = handshake.last_received_at
        loop = gevent.get_hub().loop
        transport = self._transport = handshake.transport
        self._outbox = Outbox(transport, loop, self._write_failed)
        options = self.options
        self._liveness = Liveness(
            loop, transport, self._outbox, options, lambda: self.last_received_at, self._stop, self._look
        )
        self._enter(Life.OPEN)
        owner.register(self, Connection.let_go)
        self._take_in(handshake.early)
        self._watch()
        return self.negotiated

    def close(self) -> None:
        """End the connection now, after one attempt to write what is queued; twice is fine. May switch.

        nsqd delivers messages in flight again after their timeout (docs/internals 2.6). For an orderly end, call
        :meth:`close_subscription` first and answer them. A :meth:`connect` in progress in another greenlet fails.
        """
        if self.alive:
            self._outbox.flush()
        self._stop(None)
        if self._ending is not None and gevent.getcurrent() not in (self._ending, gevent.get_hub()):
            self._ending.join()

    def _stop(self, why: NSQError | str | None) -> None:
        """Have a greenlet end the connection. Never switches."""
        was_open = self._state is Life.OPEN
        if self._enter(Life.ENDING):
            self.error = ConnectionLost(self.address, why) if isinstance(why, str) else why
            if was_open:
                self._ending = InnerGreenlet.spawn(self._tear_down)
            else:
                self._enter(Life.CLOSED)

    def _look(self) -> None:
        """Once a second: do what an exception of a signal handler has kept from being done. Never switches."""
        if self._state is Life.ENDING:
            self._ending = InnerGreenlet.spawn(self._tear_down)
        elif not self._outbox.idle:
            self._outbox.flush()
        if self.lease is None and not self._transport.is_watched:
            self._watch()

    def let_go(self, loop_lives: bool) -> None:
        """Close the descriptor and nothing else, in a forked child or after the end of its thread. Never switches.

        :param loop_lives: see ``owner``; if not, keep this from being collected
        """
        if not self._enter(Life.LET_GO):
            return
        self.error = ConnectionLost(self.address, "it belongs to the parent process, or its thread has ended")
        if self.lease is not None:
            self.lease.let_go(loop_lives)
        for watching in (self._outbox, self._liveness) if loop_lives else ():
            watching.close()
        self._transport.abandon(loop_lives)

    def _lost_by(self, exc: BaseException, doing: str = "") -> NSQError:
        """Why the connection ends after this exception."""
        if isinstance(exc, OSError | ProtocolError | NsqdError | NegotiationFailed):
            reason = doing + (getattr(exc, "strerror", None) or str(exc))
        else:
            text = "connection to %s: interrupted by a signal handler, or by a bug in gnsq_like or in a callback"
            # In a greenlet: what handles the log may wait, and the hub must not.
            InnerGreenlet.spawn(logger.error, text, self.address, exc_info=(type(exc), exc, exc.__traceback__))
            reason = f"interrupted by {exc!r}"
        lost = ConnectionLost(self.address, reason)
        # Without its frames, which would keep this connection as long as a log keeps the error.
        lost.__cause__ = exc.with_traceback(None)
        return lost

    def _tear_down(self) -> None:
        """The end of the connection. Never switches."""
        if self._state is not Life.ENDING:
            return
        if self.lease is not None:
            self.lease.end()
        self._outbox.close()
        self._transport.close()
        failure = self.error or ConnectionLost(self.address, "it was closed")
        if self._subscription_reply is not None:
            self._subscription_reply.settle(failure)
        self._fail_unanswered(failure)
        try:
            self._on_close(self, self.error)
        except Exception:
            logger.exception("connection to %s: on_close raised", self.address)
        self._liveness.close()  # last: until then, _look would do the rest
        self._enter(Life.CLOSED)

    def _fail_unanswered(self, failure: NSQError) -> None:
        """Settle the publishes that nsqd has not answered."""
        # nsqd executes nothing after a fatal error, and no incomplete command.
        not_executed = isinstance(failure.__cause__, NsqdError)
        for reply in self._session.abandon():
            if not_executed or reply.end > self._outbox.sent_count:
                reply.failed(NotSent(f"nsqd at {self.address} did not execute it: {failure}"))
            else:
                reply.failed(OutcomeUnknown(self.address, str(failure)))
        self.unanswered_bytes = 0

    # -- input --------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Have the hub take in what nsqd sends, one read in each iteration, so that each socket has its turn."""
        if self.alive:
            self._transport.watch(self._take_in)

    def _process(self, events: list[Event[PendingReply]]) -> None:
        """The events of one read. Never switches."""
        has_answers = False
        for event in events:
            if isinstance(event, Messages):
                self._on_messages(self, event.messages)
            elif isinstance(event, Confirmed):
                for reply in event:
                    self.unanswered_bytes -= reply.size
                    reply.settle()
                has_answers = True
            elif isinstance(event, Heartbeat):
                self._put(commands.NOP)
            elif isinstance(event, Refused):
                self.alive = False  # nsqd closes the connection: a caller that sees the error must not publish here
                event.token.failed(self._refusal(event.error))
            elif isinstance(event, CommandFailed):
                InnerGreenlet.spawn(self._command_failed, event.error)  # what handles the log may wait
            elif isinstance(event, Authorized):
                self.authorized = event
            elif isinstance(event, Subscribed | CloseWait):
                assert self._subscription_reply is not None
                self._subscription_reply.settle()
            elif isinstance(event, Broken):
                self._stop(self._lost_by(event.error))
                return
        if has_answers:
            self._on_answers(self)

    def _command_failed(self, error: NsqdError) -> None:
        logger.info("nsqd at %s: %s", self.address, error)
        self._on_error(self, error)

    def _refusal(self, error: NsqdError) -> NSQError:
        """The error of a publish that nsqd answered with this one."""
        verdict = error.publish_verdict
        if verdict == "unknown":
            return OutcomeUnknown(self.address, str(error))
        # The permissions of AUTH may have expired: a new connection with a fresh secret may be allowed the same.
        may_be_allowed = callable(self.options.auth_secret) and time.monotonic() - self._asked_auth_at >= _LEAST_TTL
        if verdict == "not taken" or (error.code == "E_UNAUTHORIZED" and may_be_allowed):
            return NotSent(f"nsqd at {self.address} did not execute it: {error}")
        return PublishRefused(error, self.address)

    def _write_failed(self, exc: BaseException) -> None:
        # Unread input may hold replies to publishes, and nsqd's reason for closing the connection.
        self.catch_up()
        self._stop(self._lost_by(exc, "writing failed: "))

    def catch_up(self) -> None:
        """Process the input that has arrived, without waiting for more. Never switches.

        For a thread that did not run its hub for long: ``alive`` is False afterwards if nsqd closed the connection.
        """
        while self._take_in():
            pass

    def _take_in(self, events: list[Event[PendingReply]] | None = None) -> bool:
        """Process ``events``, or those of one read. Never switches.

        :returns: False if no input has arrived, or none may be read
        """
        if not self.alive or self.lease is not None:
            return False
        try:
            if events is None:
                data = self._transport.receive_now()
                if data is None:
                    return False
                self.last_received_at = time.monotonic()
                if not data:
                    self._stop("nsqd closed it")
                    return False
                events = self._session.receive(data)
            self._process(events)
        except BaseException as exc:
            self._stop(self._lost_by(exc))
            if not isinstance(exc, Exception):
                raise
        return True

    # -- a lease --------------------------------------------------------------------------------------

    def lend(
        self, thread: int, owner: HubHandle, quiet: float, patience: float = PATIENCE, tick: float = TICK
    ) -> Lease | None:
        """Lend the socket to another thread, until ``lease`` is None again. Never switches.

        Call it at the end of ``on_answers``.

        :param thread: the borrower: a thread without a hub
        :param owner: the hub of the connection
        :param quiet: seconds without input after which the connection must be read before it is written to
        :param patience: see ``lease.PATIENCE``
        :param tick: see ``lease.TICK``
        :returns: None if that is not possible now, or never
        """
        # TLS and codecs have states of their own.
        if not self.alive or not isinstance(self._transport, TcpTransport):
            return None
        if not self._session.at_rest or not self._outbox.idle:
            return None
        self._transport.unwatch()
        self.lease = Lease(self, self._transport.bare, thread, owner, quiet, patience, tick)
        self.lease.over.link(self._watch)
        return self.lease

    def take_back(self, command: bytes, reply: PendingReply, sent: int, received: bytes) -> None:
        """For ``lease``: go on with a publish, of which the borrower has done so much. Never switches."""
        reply.size = size = len(command)
        reply.end = self._outbox.put_count + size
        self._session.expect(reply)
        self.unanswered_bytes += size
        self._outbox.written_elsewhere(sent)
        if sent < size:
            self._outbox.put(command[sent:])
        if self.alive:
            self._take_in(self._session.receive(received))

    # -- output -------------------------------------------------------------------------------------

    def _put(self, data: bytes) -> bool:
        if not self.alive:
            return False
        try:
            self._outbox.put(data)
        except BaseException as exc:
            self._stop(self._lost_by(exc))
            raise
        return True

    def _require_alive(self) -> Outbox:
        if not self.alive:
            raise self.error or NotRunning(f"the connection to {self.address} is not open")
        return self._outbox

    def subscribe(self, topic: str, channel: str, timeout: float | None = None) -> None:
        """Subscribe to a channel (SUB) and wait for the reply. May switch. Next: :meth:`set_rdy`.

        :param timeout: seconds; None for ``connect_timeout``
        :raises InvalidName: before anything is sent
        :raises ConnectionFailed: nsqd refused, and its error is the cause; or there was no reply in time
        :raises NotRunning: if it is not connected, or already subscribed
        """
        outbox = self._require_alive()
        command = self._session.subscribe(topic, channel)  # raises for a second SUB, before anything is registered
        reply = self._subscription_reply = PendingReply()
        started = time.monotonic()
        outbox.put_now(command)
        self._answered(reply, "SUB", timeout)
        self.round_trip = min(self.round_trip, time.monotonic() - started)

    def close_subscription(self, timeout: float | None = None) -> None:
        """Send CLS and wait for CLOSE_WAIT, after which no further message arrives. May switch.

        Messages in flight can still be answered (docs/internals 1.8). Next: :meth:`close`.

        :param timeout: seconds; None for ``connect_timeout``
        :raises ConnectionFailed: if the connection ended, or there was no reply in time
        :raises NotRunning: after an earlier call, or without a subscription
        """
        outbox = self._require_alive()
        command = self._session.close()  # raises for a second CLS, before anything is registered
        reply = self._subscription_reply = PendingReply()
        self.rdy = 0
        outbox.put_now(command)
        self._answered(reply, "CLS", timeout)

    def _answered(self, reply: PendingReply, command: str, timeout: float | None) -> None:
        limit = self.options.connect_timeout if timeout is None else timeout
        if not reply.wait(limit):
            raise ConnectionFailed(self.address, f"no answer to {command} in {limit:g} s")
        if reply.error is not None:
            refusal = reply.error.__cause__
            cause = refusal if isinstance(refusal, NsqdError) else reply.error
            raise ConnectionFailed(self.address, f"{command}: {cause}") from cause

    def set_rdy(self, count: int) -> bool:
        """RDY: let nsqd deliver while fewer than ``count`` messages are in flight. Never switches.

        :returns: False if the connection is gone
        :raises UsageError: if nsqd would close the connection because of this count
        """
        if not 0 <= count <= self.negotiated.max_rdy_count:
            raise UsageError(f"RDY {count} is outside nsqd's range, 0 to {self.negotiated.max_rdy_count}")
        if not self._put(commands.rdy(count)):
            return False
        lowered, self.rdy = count < self.rdy, count
        if lowered:
            self._outbox.flush()  # its time until it is in force begins now
        return True

    def finish(self, message_id: bytes) -> bool:
        """FIN: the message is done. Returns False if the connection is gone. Never switches."""
        return self._put(commands.fin(message_id))

    def finish_many(self, message_ids: Sequence[bytes]) -> bool:
        """FIN for each of several messages, written at once. False if the connection is gone. Never switches."""
        if not self.alive:
            return False
        self._outbox.put_now(commands.fin_many(message_ids))
        return True

    def requeue(self, message_id: bytes, delay: float = 0.0) -> bool:
        """REQ: nsqd delivers the message again after ``delay`` seconds. Never switches.

        :returns: False if the connection is gone
        """
        return self._put(commands.req(message_id, max(0, round(delay * 1000))))

    def touch(self, message_id: bytes) -> bool:
        """TOUCH: nsqd's timeout for the message restarts. Returns False if the connection is gone. Never switches."""
        return self._put(commands.touch(message_id))

    def publish(self, command: bytes, reply: PendingReply | None = None, several: bool = False) -> PendingReply:
        """Queue a PUB, MPUB or DPUB, given as its whole bytes. Never switches.

        :param reply: settled by nsqd's reply; None for a new one
        :param several: whether others follow at once, so that it is written with them
        :returns: the reply; its error is PublishRefused if nsqd refused the command, NotSent if nsqd does not have the
            message, OutcomeUnknown if it may have it
        :raises NSQError: if the connection is gone; nothing was queued
        """
        if not self.alive:
            self._require_alive()  # raises
        outbox = self._outbox
        reply = PendingReply() if reply is None else reply
        reply.size = size = len(command)
        reply.end = outbox.put_count + size
        alone = not (several or self.unanswered)
        try:
            self._session.expect(reply)
            self.unanswered_bytes += size
            if alone:
                outbox.put_now(command)
            else:
                # Not now: further publishes of this iteration of the hub leave in the same write.
                outbox.put(command)
        except BaseException as exc:
            self._stop(self._lost_by(exc))
            raise
        return reply

    @property
    def at_rest(self) -> bool:
        """Whether all commands are written, and nothing that nsqd sent waits to be read. Never switches."""
        return self._outbox.idle and self._session.at_rest and not self._transport.has_input()

    @property
    def unanswered_count(self) -> int:
        """The number of publishes that nsqd has not answered."""
        return len(self.unanswered) + (self.lease is not None and self.lease.busy)
