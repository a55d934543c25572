"""One connection to one nsqd: transport + session + write buffer.

Reader, Producer and the Spark source build on it. It reports to its owner by callbacks: it answers heartbeats, passes
on the messages of each read as one list, and detects a dead peer.

The caller of :meth:`Connection.connect` dials and negotiates. After that one greenlet reads (``_read``): it waits for
input, processes it, and tears the connection down at last. Writes belong to the write buffer. Whatever ends a
connection calls ``end``, which shuts the socket down; that wakes the reader, so a connection ends in one place. An
exception that escapes while session, write buffer or transport change ends the connection, too, and its owner makes
another.

The end, in order: 1. no further command is accepted; 2. the socket is closed; 3. unanswered commands get their error;
4. ``on_close`` is called, once.

Its state is a ``Life``; ``_NEXT`` has all transitions, and ``_enter`` makes them.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import gevent

from gnsq_like.addresses import Address, parse_address
from gnsq_like.connection.handshake import shake_hands
from gnsq_like.connection.write_buffer import WriteBuffer
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
    reason_of,
)
from gnsq_like.options import ConnectionOptions
from gnsq_like.runtime import owner
from gnsq_like.runtime.dispatcher import log_soon
from gnsq_like.runtime.hub_calls import InnerGreenlet
from gnsq_like.runtime.pending_reply import PendingReply
from gnsq_like.runtime.user_code import check_callable
from gnsq_like.transport.tcp import TcpTransport
from gnsq_like.wire import commands
from gnsq_like.wire.frames import Messages, RawMessage
from gnsq_like.wire.negotiated import Authorized, Negotiated
from gnsq_like.wire.session import (
    Broken,
    CommandFailed,
    Confirmed,
    Event,
    Heartbeat,
    Refused,
    Session,
)

logger = logging.getLogger(__name__)

#: Heartbeat intervals of silence after which nsqd is dead (its own rule for clients, docs/internals 1.14).
_SILENT_INTERVALS = 2.0
#: Seconds between two looks at that: often enough for write_timeout's default of 5.
_EVERY = 1.0
#: The shortest validity of an auth server's response, in seconds: its ttl is a whole number (docs/internals 1.4).
_LEAST_TTL = 1.0


def _ignore(*_: object) -> None: ...


def _log(connection: Connection, error: NsqdError) -> None:
    log_soon(logger.info, "nsqd at %s: %s", connection.address, error)


class Life(enum.Enum):
    """The state of a connection."""

    NEW = "not connected"
    CONNECTING = "connecting"
    OPEN = "open"
    #: Its socket is shut down, which wakes its reader.
    ENDING = "ending"
    CLOSED = "closed"
    #: It belongs to the parent of this process, or its thread has ended: nothing of it runs here.
    LET_GO = "let go"


#: The successors of each state. Other transitions are ignored, because a connection may end for several causes at once.
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
    :param on_answers: called with (connection) after publishes, SUB or CLS were confirmed, once per read
    :param on_error: called with (connection, error) when nsqd reports that a FIN, REQ or TOUCH failed; without it, that
        is logged
    :param on_close: called with (connection, error) when the connection has ended; error is None after :meth:`close`

    They run in the connection's reader greenlet; none may switch greenlets.
    """

    def __init__(
        self,
        address: str | Address,
        options: ConnectionOptions | None = None,
        *,
        on_messages: Callable[[Connection, list[RawMessage]], object] = _ignore,
        on_answers: Callable[[Connection], object] = _ignore,
        on_error: Callable[[Connection, NsqdError], object] = _log,
        on_close: Callable[[Connection, NSQError | None], object] = _ignore,
    ) -> None:
        self.address: str = str(address if isinstance(address, Address) else parse_address(address))
        self.options: ConnectionOptions = options if options is not None else ConnectionOptions()
        check_callable("on_messages", on_messages, 2)
        check_callable("on_answers", on_answers, 1)
        check_callable("on_error", on_error, 2)
        check_callable("on_close", on_close, 2)
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
        self.unanswered: Sequence[PendingReply] = ()
        #: The RDY last sent.
        self.rdy: int = 0
        #: Seconds from IDENTIFY or SUB to its reply, the lowest seen; an estimate of the network's round trip.
        self.round_trip: float = 0.0
        #: Monotonic time of the last bytes from nsqd.
        self.last_received_at: float = 0.0
        self._state = Life.NEW
        #: Whether commands may be sent: while it is open, until nsqd has refused a publish.
        self.alive: bool = False
        #: Why the connection ended; None while it is open, or after :meth:`close`.
        self.error: NSQError | None = None
        #: nsqd's error for a publish, which ends the connection.
        self.refusal: NsqdError | None = None
        #: The greenlet that reads.
        self._reader: Any = None
        #: The following three are set by connect(), before it is OPEN.
        self._transport: TcpTransport
        self._write_buffer: WriteBuffer
        #: Has it look after itself; see _look.
        self._seconds: Any

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
        handshake = shake_hands(parse_address(self.address), self.options, deadline)
        if self._state is not Life.CONNECTING:
            handshake.transport.close()
            raise ConnectionFailed(self.address, "closed while it was connecting")
        self.options, self._session = handshake.options, handshake.session
        self.unanswered = self._session.unanswered
        self.negotiated = handshake.session.negotiated
        self._asked_auth_at = handshake.asked_auth_at
        self.round_trip = handshake.round_trip
        self.last_received_at = handshake.last_received_at
        loop = gevent.get_hub().loop
        transport = self._transport = handshake.transport
        self._write_buffer = WriteBuffer(transport, loop, self._write_failed)
        self._seconds = loop.timer(_EVERY, _EVERY)
        self._reader = InnerGreenlet.spawn(self._read)  # first: whatever happens from now on, it ends the connection
        self._enter(Life.OPEN)
        self._seconds.start(self._look)
        owner.register(self, Connection.let_go)
        self._take_in(handshake.early)
        return self.negotiated

    def close(self) -> None:
        """End the connection now, after one attempt to write queued commands; twice is fine. May switch.

        nsqd delivers messages in flight again after their timeout (docs/internals 2.6). For an orderly end, call
        :meth:`close_subscription` first and answer them. A :meth:`connect` in progress in another greenlet fails.
        """
        if self.alive:
            self._write_buffer.flush()
        self.end(None)
        if self._state is Life.ENDING and gevent.getcurrent() not in (self._reader, gevent.get_hub()):
            self._reader.join()

    def end(self, why: BaseException | str | None, doing: str = "") -> None:
        """Have the reader end the connection. Never switches."""
        error = None if why is None else _lost_by(self.address, why, doing)
        if self._enter(Life.ENDING):
            self.error = error
            if self._reader is None:
                self._enter(Life.CLOSED)
            else:
                self._write_buffer.close()
                self._transport.shut()

    def _look(self) -> None:
        """Once a second, in the hub: end it if nsqd is dead, or if its reader was killed before it began, or
        interrupted at its end. Never switches.

        Time in which the hub was blocked must not count against nsqd, so each suspicion is verified on the socket:
        whether it accepts output, whether it has input.
        """
        if self._reader.dead:
            self._end_now()
            return
        self._write_buffer.flush()
        now = time.monotonic()
        stalled_since, silent = self._write_buffer.stalled_since, now - self.last_received_at
        if stalled_since is not None and now - stalled_since > self.options.write_timeout:
            self.end(f"it accepted no bytes for {now - stalled_since:.1f} s")
        elif silent > _SILENT_INTERVALS * self.options.heartbeat_interval and not self._transport.has_input():
            self.end(f"nothing received for {silent:.1f} s, not even heartbeats")

    def let_go(self, loop_lives: bool) -> None:
        """Close the descriptor and nothing else, in a forked child or after the end of its thread. Never switches.

        :param loop_lives: see ``owner``; if not, keep this from being collected
        """
        if not self._enter(Life.LET_GO):
            return
        self.error = ConnectionLost(self.address, "it belongs to the parent process, or its thread has ended")
        for watching in (self._write_buffer, self._seconds) if loop_lives else ():
            watching.close()
        self._transport.abandon(loop_lives)

    def _end_now(self) -> None:
        """The end of the connection, in its reader. Never switches."""
        self.end("its greenlet was killed")
        if self._state is not Life.ENDING:
            return  # it was let go
        self._transport.close()
        failure = self.error or ConnectionLost(self.address, "it was closed")
        for reply in self._session.abandon():
            reply.failed(_not_answered(self.address, failure, reply.end <= self._write_buffer.sent_count))
        try:
            self._on_close(self, self.error)
        except Exception as exc:
            log_soon(logger.error, "connection to %s: on_close raised", self.address, exc_info=exc)
        self._seconds.close()  # last: it calls this again if this was interrupted
        self._enter(Life.CLOSED)

    # -- input --------------------------------------------------------------------------------------

    def _read(self) -> None:
        """The reader greenlet: all input, and at last the end of the connection."""
        try:
            while self._state is Life.OPEN:
                self._transport.wait()
                self._take_in()
        finally:
            self._end_now()

    def _process(self, events: list[Event[PendingReply]]) -> None:
        """The events of one read. Never switches."""
        has_answers = False
        for event in events:
            if isinstance(event, Messages):
                self._on_messages(self, event)
            elif isinstance(event, Confirmed):
                for reply in event:
                    reply.settle()
                has_answers = True
            elif isinstance(event, Heartbeat):
                self._write_buffer.put(commands.NOP)
            elif isinstance(event, Refused):
                self.alive = False  # nsqd closes the connection: a caller that sees the error must not publish here
                self.refusal = event.error
                is_renewable = callable(self.options.auth_secret)
                age = time.monotonic() - self._asked_auth_at if is_renewable else 0.0
                event.token.failed(_refused(self.address, event.error, age))
            elif isinstance(event, CommandFailed):
                self._on_error(self, event.error)
            elif isinstance(event, Authorized):
                self.authorized = event
            elif isinstance(event, Broken):
                self.end(event.error)
                return
        if has_answers:
            self._on_answers(self)

    def _write_failed(self, exc: BaseException) -> None:
        # Unread input may hold replies to publishes, and nsqd's reason for closing the connection.
        self.catch_up()
        self.end(exc, "writing failed: ")

    def catch_up(self) -> None:
        """Process the input that has arrived, without waiting for more. Never switches.

        For a thread that did not run its hub for long: ``alive`` is False afterwards if nsqd closed the connection.
        """
        while self.alive and (self._take_in() or self._transport.has_input()):
            pass

    def _take_in(self, events: list[Event[PendingReply]] | None = None) -> bool:
        """Process ``events``, or those of one read. Never switches.

        :returns: False if no input has arrived, or none may be read
        """
        if not self.alive:
            return False
        completed: list[Event[PendingReply]] = [] if events is None else events
        try:
            if events is None:
                data = self._transport.receive_now()
                if data is None:
                    return False
                self.last_received_at = time.monotonic()
                if not data:
                    self.end("nsqd closed it")
                    return False
                self._session.receive(data, completed)
            self._process(completed)
        except BaseException as exc:
            self.end(exc)
            for event in completed:
                for reply in event if isinstance(event, Confirmed) else ():
                    reply.settle()
            if not isinstance(exc, Exception):
                raise
        return True

    # -- output -------------------------------------------------------------------------------------

    def _require_alive(self) -> None:
        if not self.alive:
            raise self.error or NotRunning(f"the connection to {self.address} is not open")

    def subscribe(self, topic: str, channel: str, timeout: float | None = None) -> None:
        """Subscribe to a channel (SUB) and wait for the reply. May switch. Next: :meth:`set_rdy`.

        :param timeout: seconds; None for ``connect_timeout``
        :raises InvalidName: before anything is sent
        :raises ConnectionFailed: nsqd refused, and its error is the cause; or there was no reply in time
        :raises NotRunning: if it is not connected, or already subscribed
        """
        self._require_alive()
        reply = PendingReply()
        started = time.monotonic()
        self.publish(self._session.subscribe(topic, channel, reply), reply)
        self._wait_for(reply, "SUB", timeout)
        self.round_trip = min(self.round_trip, time.monotonic() - started)

    def close_subscription(self, timeout: float | None = None) -> None:
        """Send CLS and wait for CLOSE_WAIT, after which no further message arrives. May switch.

        Messages in flight can still be answered (docs/internals 1.8). Next: :meth:`close`.

        :param timeout: seconds; None for ``connect_timeout``
        :raises ConnectionFailed: if the connection ended, or there was no reply in time
        :raises NotRunning: after an earlier call, or without a subscription
        """
        self._require_alive()
        reply = PendingReply()
        self.publish(self._session.close(reply), reply)
        self.rdy = 0
        self._wait_for(reply, "CLS", timeout)

    def _wait_for(self, reply: PendingReply, command: str, timeout: float | None) -> None:
        limit = self.options.connect_timeout if timeout is None else timeout
        if not reply.wait(limit):
            raise ConnectionFailed(self.address, f"no answer to {command} in {limit:g} s")
        if reply.error is not None:
            lost = self.error or reply.error
            cause = lost.__cause__ if isinstance(lost.__cause__, NsqdError) else lost
            raise ConnectionFailed(self.address, f"{command}: {cause}") from cause

    def set_rdy(self, count: int) -> bool:
        """RDY: let nsqd deliver while fewer than ``count`` messages are in flight. Never switches.

        :returns: False if the connection is gone
        :raises UsageError: if nsqd would close the connection because of this count
        """
        if not 0 <= count <= self.negotiated.max_rdy_count:
            raise UsageError(f"RDY {count} is outside nsqd's range, 0 to {self.negotiated.max_rdy_count}")
        if not self.alive:
            return False
        self._write_buffer.put_now(commands.rdy(count))
        self.rdy = count
        return True

    def finish(self, message_id: bytes) -> bool:
        """FIN: the message is done. Returns False if the connection is gone. Never switches."""
        return self.alive and self._write_buffer.put(commands.fin(message_id))

    def finish_many(
        self, message_ids: Sequence[bytes], *, rdy_before: int | None = None, rdy_after: int | None = None
    ) -> bool:
        """FIN for each of several messages, written at once. False if the connection is gone. Never switches.

        :param rdy_before: RDY to write before them, and ``rdy_after`` after them; see :meth:`set_rdy`
        """
        if not self.alive:
            return False
        data = commands.fin_many(message_ids)
        if rdy_before is not None:
            data = commands.rdy(rdy_before) + data
            self.rdy = rdy_before
        if rdy_after is not None:
            data += commands.rdy(rdy_after)
            self.rdy = rdy_after
        return self._write_buffer.put_now(data)

    def requeue(self, message_id: bytes, delay: float = 0.0) -> bool:
        """REQ: nsqd delivers the message again after ``delay`` seconds. Never switches.

        :returns: False if the connection is gone
        """
        return self.alive and self._write_buffer.put(commands.req(message_id, max(0, round(delay * 1000))))

    def touch(self, message_id: bytes) -> bool:
        """TOUCH: nsqd's timeout for the message restarts. Returns False if the connection is gone. Never switches."""
        return self.alive and self._write_buffer.put(commands.touch(message_id))

    def publish(self, command: bytes, reply: PendingReply | None = None) -> PendingReply:
        """Queue a PUB, MPUB or DPUB, given as its whole bytes. Never switches.

        SUB and CLS pass here, too, because they are the only other commands with a reply.

        :param reply: settled by nsqd's reply; None for a new one
        :returns: the reply; its error is PublishRefused if nsqd refused the command, NotSent if nsqd does not have the
            message, OutcomeUnknown if it may have it
        :raises NSQError: if the connection is gone; nothing was queued
        """
        if not self.alive:
            self._require_alive()  # raises
        write_buffer = self._write_buffer
        reply = PendingReply() if reply is None else reply
        reply.size = size = len(command)
        reply.end = write_buffer.put_count + size
        alone = not self.unanswered
        try:
            self._session.expect(reply)
            if alone:
                write_buffer.put_now(command)
            else:
                # Not now: further publishes of this iteration of the hub leave in the same write.
                write_buffer.put(command)
        except BaseException as exc:
            self.end(exc)
            raise
        return reply

    @property
    def is_written(self) -> bool:
        """Whether all commands are written. Never switches."""
        return self._write_buffer.idle

    @property
    def at_rest(self) -> bool:
        """Whether all commands are written, and nothing that nsqd sent waits to be read. Never switches."""
        return self._write_buffer.idle and self._session.at_rest and not self._transport.has_input()

    @property
    def unanswered_bytes(self) -> int:
        """Bytes of the unanswered publishes, and of all commands put between and after them."""
        if not self.unanswered:
            return 0
        oldest = self.unanswered[0]
        return self._write_buffer.put_count - oldest.end + oldest.size

    @property
    def unanswered_count(self) -> int:
        """The number of publishes that nsqd has not answered."""
        return len(self.unanswered)


# -- what failures mean ---------------------------------------------------------------------------------


def _lost_by(address: str, why: BaseException | str, doing: str = "") -> ConnectionLost:
    """The reason for a connection's end after this exception, or this reason; a bug is logged. Never switches."""
    if isinstance(why, str):
        return ConnectionLost(address, why)
    if isinstance(why, OSError | ProtocolError | NsqdError | NegotiationFailed):
        reason = doing + reason_of(why)
    else:
        text = "connection to %s: interrupted, or ended by a bug in gnsq_like or in a callback"
        log_soon(logger.error, text, address, exc_info=(type(why), why, why.__traceback__))
        reason = f"interrupted by {why!r}"
    lost = ConnectionLost(address, reason)
    # Without its frames, which would keep the connection as long as a log keeps the error.
    lost.__cause__ = why.with_traceback(None)
    return lost


def _refused(address: str, error: NsqdError, permissions_age: float) -> NSQError:
    """The error of a publish that nsqd answered with this error.

    :param permissions_age: seconds since AUTH, if a new connection may have other permissions; otherwise 0
    """
    verdict = error.publish_verdict
    if verdict == "unknown":
        return OutcomeUnknown(address, str(error))
    # The permissions may have expired: a new connection with a fresh secret may be allowed the same.
    if verdict == "not taken" or (error.code == "E_UNAUTHORIZED" and permissions_age >= _LEAST_TTL):
        return _not_executed(address, error)
    return PublishRefused(error, address)


def _not_answered(address: str, failure: NSQError, is_written: bool) -> NSQError:
    """The error of a publish that nsqd had not answered when the connection ended.

    :param is_written: whether all of it was written
    """
    # nsqd executes nothing after a fatal error, and no incomplete command.
    if isinstance(failure.__cause__, NsqdError) or not is_written:
        return _not_executed(address, failure)
    return OutcomeUnknown(address, str(failure))


def _not_executed(address: str, why: NSQError) -> NotSent:
    return NotSent(f"nsqd at {address} did not execute it: {why}")
