"""The state machine of one client connection: bytes in, events out.

The session keeps the unanswered commands, so it can match each OK or error to its command: nsqd executes and
answers the commands of a connection strictly in order (docs/internals 1.1). IDENTIFY, SUB, CLS and the publishes
get one reply each; RDY, FIN, REQ, TOUCH and NOP get none, except that a failed FIN, REQ or TOUCH causes an error
frame that does not end the connection.

``_NEXT`` has all transitions between its states. A second upgrade enters UPGRADING again; CLOSING lasts after
CLOSE_WAIT, too.

Publishing is possible in every state from READY on except BROKEN.

Negotiation: nsqd's reply to IDENTIFY says which upgrades follow: TLS first, then a codec. Each causes an
``Upgrade`` event, the last of its list. The caller then changes the stream (TLS: performs the handshake), beginning
with the event's ``rest``, and passes the decoded bytes on; nsqd's OK already comes through the new layer. If nsqd
requires authorization, ``AuthRequired`` follows, answered with :meth:`Session.authenticate`. ``Identified`` ends the
negotiation. Nothing is pipelined: nsqd drops commands it read together with IDENTIFY at an upgrade (docs/internals
1.3).

Rules for editors: the caller writes the bytes that each call returns, in the order of the calls. Bytes from the peer
can cause a ``Broken`` event and nothing else; after it the session refuses further input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from gnsq_like.errors import NegotiationFailed, NotRunning, NsqdError, ProtocolError
from gnsq_like.wire import commands, frames
from gnsq_like.wire.frames import DEFAULT_MAX_FRAME_BYTES, OK_ANSWER, Frame, FrameDecoder, Messages
from gnsq_like.wire.negotiated import UPGRADES, Authorized, Negotiated

#: The token with which a command is registered if nsqd replies to it, and which is returned with the reply. Tokens are
#: compared by identity.
T = TypeVar("T")


class State(Enum):
    """The state of a session."""

    NEW = auto()
    IDENTIFYING = auto()
    UPGRADING = auto()
    UNAUTHORIZED = auto()
    AUTHENTICATING = auto()
    READY = auto()
    SUBSCRIBING = auto()
    SUBSCRIBED = auto()
    CLOSING = auto()
    BROKEN = auto()


#: Looked at by every publish and every read: a member of an Enum is looked up slowly.
_BROKEN = State.BROKEN


#: The successors of each state; any may also become BROKEN.
_NEXT = {
    State.NEW: {State.IDENTIFYING},
    State.IDENTIFYING: {State.UPGRADING, State.UNAUTHORIZED, State.READY},
    State.UPGRADING: {State.UPGRADING, State.UNAUTHORIZED, State.READY},
    State.UNAUTHORIZED: {State.AUTHENTICATING},
    State.AUTHENTICATING: {State.READY},
    State.READY: {State.SUBSCRIBING},
    State.SUBSCRIBING: {State.SUBSCRIBED},
    State.SUBSCRIBED: {State.CLOSING},
}


#: The commands with a reply that is known beforehand, by the state in which it is expected.
_REPLIES = {
    State.UPGRADING: ("UPGRADE", frames.OK),
    State.SUBSCRIBING: ("SUB", frames.OK),
    State.CLOSING: ("CLS", frames.CLOSE_WAIT),
}


class Confirmed(list[T]):
    """nsqd accepted these commands, oldest first: publishes, SUB, or CLS, after which no further message arrives."""

    __slots__ = ()


class Refused(NamedTuple, Generic[T]):
    """nsqd refused this publish; a ``Broken`` event follows. Later publishes were not executed."""

    token: T
    error: NsqdError


class Upgrade(NamedTuple):
    """The stream changes its encoding now; the last event of its list."""

    #: One of ``negotiated.UPGRADES``.
    feature: str
    #: Bytes already received in the new encoding.
    rest: bytes


class AuthRequired(NamedTuple):
    """nsqd requires a secret. Next: :meth:`Session.authenticate`."""


class Identified(NamedTuple):
    """The negotiation is complete; the connection may subscribe and publish."""


class Heartbeat(NamedTuple):
    """nsqd expects a NOP, or any other command."""


class CommandFailed(NamedTuple):
    """A FIN, REQ or TOUCH failed; the connection stays open."""

    error: NsqdError


class Broken(NamedTuple):
    """The session is over: a fatal error of nsqd, a required upgrade it does not offer, or a protocol violation."""

    error: NsqdError | ProtocolError | NegotiationFailed


Event = (
    Messages
    | Confirmed[T]
    | Refused[T]
    | Upgrade
    | AuthRequired
    | Authorized
    | Identified
    | Heartbeat
    | CommandFailed
    | Broken
)


class Session(Generic[T]):
    """The client side of the protocol on one connection.

    :param identify: the fields of IDENTIFY, in its own units (docs/internals 1.3)
    :param max_frame_bytes: a larger frame from nsqd breaks the session
    :param required: upgrades without which the session breaks
    """

    def __init__(
        self,
        identify: Mapping[str, object],
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        required: Collection[str] = (),
    ) -> None:
        self._identify = dict(identify)
        self._required = required
        #: nsqd's reply to IDENTIFY, and the upgrades still to come.
        self.negotiated = Negotiated()
        self._upgrades: list[str] = []
        #: True until READY; frames are then decoded one at a time, because an upgrade changes how the rest is read.
        self._negotiating = True
        self._rest = b""
        self._decoder = FrameDecoder(max_frame_bytes)
        #: The tokens of the unanswered commands from READY on, oldest first. Others may read it.
        self.unanswered: deque[T] = deque()
        #: The one of them that is not a publish's, but that of SUB or CLS.
        self._asked: T | None = None
        self.state = State.NEW

    @property
    def broken(self) -> bool:
        """Whether the session is over."""
        return self.state is _BROKEN

    @property
    def at_rest(self) -> bool:
        """Whether it is negotiated, no command is unanswered, and no frame incomplete."""
        return not (self._negotiating or self.broken or self.unanswered) and self._decoder.is_empty

    def start(self) -> bytes:
        """The first bytes to write: magic and IDENTIFY. Next: pass what arrives to :meth:`receive`."""
        self._enter(State.IDENTIFYING)
        return commands.MAGIC_V2 + commands.identify(self._identify)

    def authenticate(self, secret: str) -> bytes:
        """AUTH, to be written now. The reply is ``Authorized`` and ``Identified``, or ``Broken``."""
        self._enter(State.AUTHENTICATING)
        return commands.auth(secret)

    def subscribe(self, topic: str, channel: str, token: T) -> bytes:
        """SUB. Next: :meth:`expect` its token. Raises InvalidName."""
        command = commands.sub(topic, channel)
        self._enter(State.SUBSCRIBING)
        self._asked = token
        return command

    def close(self, token: T) -> bytes:
        """CLS. Next: :meth:`expect` its token."""
        self._enter(State.CLOSING)
        self._asked = token
        return commands.CLS

    def expect(self, token: T) -> None:
        """Register a command that is written now: a publish, SUB or CLS.

        ``token`` is returned in ``Confirmed``; that of a publish in ``Refused``, if nsqd answers it with an error.
        """
        if self._negotiating or self.state is _BROKEN:
            raise NotRunning(f"cannot publish while the session is {self.state.name}")
        self.unanswered.append(token)

    def abandon(self) -> list[T]:
        """End the session, because the connection is gone. Returns the tokens of the unanswered commands."""
        self.state = State.BROKEN
        left = list(self.unanswered)
        self.unanswered.clear()
        return left

    def receive(self, data: bytes, events: list[Event[T]] | None = None) -> list[Event[T]]:
        """The events that ``data`` completes, in order; may be empty. ``Broken`` is always the last event.

        :param events: the list to add them to, which has those before if this is interrupted; None for a new one
        """
        if self.state is _BROKEN:
            raise NotRunning("the session is broken")
        events = [] if events is None else events
        if self._negotiating:
            self._negotiate(data, events)
            if self._negotiating or self.broken:
                return events
            data, self._rest = self._rest, b""
        confirmed: Confirmed[T] | None = None
        unanswered, asked = self.unanswered, self._asked
        for item in self._decoder.feed(data):
            if item is OK_ANSWER and unanswered and (oldest := unanswered[0]) is not asked:
                if confirmed is None:
                    confirmed = Confirmed()
                    events.append(confirmed)
                confirmed.append(oldest)
                unanswered.popleft()
            elif isinstance(item, Messages):
                confirmed = None
                events.append(item)
            else:
                confirmed = None
                self._other(item, events)
                if self.broken:
                    return events
        if self._decoder.error is not None:
            self._break(self._decoder.error, events)
        return events

    def _negotiate(self, data: bytes, events: list[Event[T]]) -> None:
        """Process frames until the negotiation is complete or the next upgrade begins."""
        self._rest = data
        while self._rest and self._negotiating and not self.broken:
            wants = self._decoder.wants
            data, self._rest = self._rest[:wants], self._rest[wants:]
            for item in self._decoder.feed(data):
                self._other(item if isinstance(item, Frame) else Frame(frames.MESSAGE, b""), events)
            if self._decoder.error is not None:
                self._break(self._decoder.error, events)

    def _other(self, frame: Frame, events: list[Event[T]]) -> None:
        if frame.type == frames.ERROR:
            self._error(NsqdError.from_payload(frame.payload), events)
        elif frame.type != frames.RESPONSE:
            self._break(ProtocolError(f"unknown frame type {frame.type}"), events)
        elif frame.payload == frames.HEARTBEAT:
            events.append(Heartbeat())
        elif self.state in (State.IDENTIFYING, State.AUTHENTICATING):
            self._described(frame.payload, events)
        else:
            self._answered(frame.payload, events)

    def _described(self, payload: bytes, events: list[Event[T]]) -> None:
        """The reply to IDENTIFY or AUTH."""
        try:
            if self.state is State.IDENTIFYING:
                self._identified(Negotiated.from_payload(payload))
            else:
                events.append(Authorized.from_payload(payload))
        except (ProtocolError, NegotiationFailed) as exc:
            self._break(exc, events)
        else:
            self._go_on(events)

    def _answered(self, payload: bytes, events: list[Event[T]]) -> None:
        """The reply to an upgrade, SUB or CLS; nothing else has such a reply."""
        unanswered = self.unanswered
        command, expected = _REPLIES.get(self.state, ("", b""))
        if unanswered and unanswered[0] is not self._asked:
            # The publish stays in the queue: abandon() returns it, so that its caller learns that it is unknown.
            wrong = "wrong reply to a publish"
        elif not command or not (unanswered or self._negotiating):
            wrong = "reply to no command"
        elif payload != expected:
            wrong = f"wrong reply to {command}"
        elif self._negotiating:
            self._go_on(events)
            return
        else:
            if self.state is State.SUBSCRIBING:
                self._enter(State.SUBSCRIBED)
            self._asked = None
            events.append(Confirmed([unanswered[0]]))
            unanswered.popleft()
            return
        self._break(ProtocolError(f"{wrong}: {payload[:80]!r}"), events)

    def _identified(self, negotiated: Negotiated) -> None:
        """Check nsqd's reply against the request, and keep it."""
        for feature in UPGRADES:
            granted = getattr(negotiated, feature)
            if granted and not self._identify.get(feature):
                raise ProtocolError(f"nsqd switched to {feature}, which was not requested")
            if feature in self._required and not granted:
                raise NegotiationFailed(
                    feature,
                    f'nsqd does not offer it; enable it by nsqd\'s flags, or set {feature}="prefer" to go without',
                )
        if negotiated.snappy and negotiated.deflate:
            raise ProtocolError("nsqd switched to both snappy and deflate")
        self.negotiated = negotiated
        self._upgrades = [feature for feature in UPGRADES if getattr(negotiated, feature)]

    def _go_on(self, events: list[Event[T]]) -> None:
        """Take the next step of the negotiation."""
        if self._upgrades:
            self._enter(State.UPGRADING)
            events.append(Upgrade(self._upgrades.pop(0), self._rest))
            self._rest = b""
        elif self.negotiated.auth_required and self.state is not State.AUTHENTICATING:
            self._enter(State.UNAUTHORIZED)
            events.append(AuthRequired())
        else:
            self._enter(State.READY)
            self._negotiating = False
            events.append(Identified())

    def _error(self, error: NsqdError, events: list[Event[T]]) -> None:
        if not error.fatal:
            events.append(CommandFailed(error))
            return
        if self.unanswered and (oldest := self.unanswered[0]) is not self._asked:
            events.append(Refused(oldest, error))
            self.unanswered.popleft()
        self._break(error, events)

    def _break(self, error: NsqdError | ProtocolError | NegotiationFailed, events: list[Event[T]]) -> None:
        self.state = State.BROKEN
        events.append(Broken(error))

    def _enter(self, state: State) -> None:
        if state not in _NEXT.get(self.state, ()):
            raise NotRunning(f"the session is {self.state.name}, so it cannot become {state.name}")
        self.state = state
