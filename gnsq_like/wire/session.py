"""One client connection's course: bytes in, events out.

The session knows what was asked and is unanswered, so it can say whose answer an OK or an error is:
nsqd executes and answers the commands of a connection strictly in order (docs/internals 1.1). IDENTIFY, SUB,
CLS and the publishes have one answer each; RDY, FIN, REQ, TOUCH and NOP have none, except that a FIN,
REQ or TOUCH that failed is told by an error frame that ends nothing.

States, and what moves them (``_NEXT`` is the one place where that is written)::

    NEW ─start→ IDENTIFYING ─granted→ READY ─ask_sub→ SUBSCRIBING ─subscribed→ SUBSCRIBED
                 │upgrade │auth_required ↑granted                                 │ask_cls
                 ↓        ↓              │           any ─broken→ BROKEN          ↓
      (again) UPGRADING → UNAUTHORIZED ─ask_auth→ AUTHENTICATING               CLOSING (CLOSE_WAIT: still CLOSING)
                 └─granted→ READY

Publishes are possible from READY on, in every state but BROKEN.

Negotiating: nsqd's answer to IDENTIFY says which upgrades come, TLS first, then a codec. For each there is
an ``Upgrade`` event, the last of its list; the caller changes the stream (TLS: it shakes hands), beginning
with the ``rest`` that came already, and feeds what it decodes. nsqd's OK comes in the new form. Then, if nsqd
asks for it, ``AuthRequired``, answered with :meth:`Session.authenticate`. ``Identified`` ends it. Nothing is
pipelined: what nsqd reads together with IDENTIFY is lost at an upgrade (docs/internals 1.3).

Rules for editors: the caller writes the bytes that belong to a call in the order of the calls. Bytes
from the peer can cause a ``Broken`` event and nothing else; after it the session refuses to go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import NamedTuple

from gnsq_like.errors import NegotiationFailed, NotRunning, NsqdError, ProtocolError
from gnsq_like.wire import commands, frames
from gnsq_like.wire.frames import DEFAULT_MAX_FRAME_BYTES, Frame, FrameDecoder, RawMessage
from gnsq_like.wire.negotiated import UPGRADES, Authorized, Negotiated


class State(Enum):
    """Where a session stands."""

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


class _Input(Enum):
    START = auto()
    UPGRADE = auto()
    AUTH_REQUIRED = auto()
    ASK_AUTH = auto()
    GRANTED = auto()
    ASK_SUB = auto()
    SUBSCRIBED = auto()
    ASK_CLS = auto()


_NEXT: dict[tuple[State, _Input], State] = {
    (State.NEW, _Input.START): State.IDENTIFYING,
    (State.IDENTIFYING, _Input.UPGRADE): State.UPGRADING,
    (State.UPGRADING, _Input.UPGRADE): State.UPGRADING,
    (State.IDENTIFYING, _Input.AUTH_REQUIRED): State.UNAUTHORIZED,
    (State.UPGRADING, _Input.AUTH_REQUIRED): State.UNAUTHORIZED,
    (State.UNAUTHORIZED, _Input.ASK_AUTH): State.AUTHENTICATING,
    (State.IDENTIFYING, _Input.GRANTED): State.READY,
    (State.UPGRADING, _Input.GRANTED): State.READY,
    (State.AUTHENTICATING, _Input.GRANTED): State.READY,
    (State.READY, _Input.ASK_SUB): State.SUBSCRIBING,
    (State.SUBSCRIBING, _Input.SUBSCRIBED): State.SUBSCRIBED,
    (State.SUBSCRIBED, _Input.ASK_CLS): State.CLOSING,
}


class _Ask(Enum):
    """What stands in the queue of the unanswered for a command that is not a publish."""

    IDENTIFY = auto()
    UPGRADE = auto()
    AUTH = auto()
    SUB = auto()
    CLS = auto()


class Messages(NamedTuple):
    """A run of messages, in the order of their arrival."""

    messages: list[RawMessage]


class Confirmed(NamedTuple):
    """nsqd took these publishes, oldest first."""

    tokens: list[object]


class Refused(NamedTuple):
    """nsqd refused this publish; a ``Broken`` event follows. Later publishes were not executed."""

    token: object
    error: NsqdError


class Upgrade(NamedTuple):
    """From here on the stream has another form; the last event of its list."""

    #: One of ``negotiated.UPGRADES``.
    feature: str
    negotiated: Negotiated
    #: Bytes of the new form that came already.
    rest: bytes


class AuthRequired(NamedTuple):
    """nsqd wants to be told a secret; next: :meth:`Session.authenticate`."""


class Identified(NamedTuple):
    """IDENTIFY was answered, and all that follows from it is done; the connection may subscribe and publish."""

    negotiated: Negotiated


class Subscribed(NamedTuple):
    """SUB was answered; messages come as soon as RDY allows."""


class CloseWait(NamedTuple):
    """CLS was answered; no further message comes."""


class Heartbeat(NamedTuple):
    """nsqd wants a NOP, or any other command."""


class CommandFailed(NamedTuple):
    """A FIN, REQ or TOUCH failed; the connection goes on."""

    error: NsqdError


class Broken(NamedTuple):
    """The session is over: nsqd's fatal error, what it does not grant, or bytes that the protocol does not allow."""

    error: NsqdError | ProtocolError | NegotiationFailed


Event = (
    Messages
    | Confirmed
    | Refused
    | Upgrade
    | AuthRequired
    | Authorized
    | Identified
    | Subscribed
    | CloseWait
    | Heartbeat
    | CommandFailed
    | Broken
)


class Session:
    """The protocol's client side of one connection.

    :param identify: the fields of IDENTIFY, in the wire's own units (docs/internals 1.3)
    :param max_frame_bytes: a larger frame from nsqd breaks the session
    :param required: those upgrades that break it when nsqd does not grant them
    """

    def __init__(
        self,
        identify: Mapping[str, object],
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        required: Collection[str] = (),
    ) -> None:
        self._identify = dict(identify)
        self._required = required
        #: What nsqd answered, and the upgrades of it that are still to come.
        self._negotiated = Negotiated()
        self._upgrades: list[str] = []
        #: Whether the course up to READY is not over; then frames are cut one at a time.
        self._negotiating = True
        self._decoder = FrameDecoder(max_frame_bytes)
        #: What was asked and is unanswered, oldest first: an ``_Ask``, or a publish's token. Others may read it.
        self.unanswered: deque[object] = deque()
        self.state = State.NEW

    @property
    def broken(self) -> bool:
        """Whether the session is over."""
        return self.state is State.BROKEN

    def start(self) -> bytes:
        """The first bytes to write: magic and IDENTIFY. Next: feed what comes to :meth:`receive`."""
        self._move(_Input.START)
        self.unanswered.append(_Ask.IDENTIFY)
        return commands.MAGIC_V2 + commands.identify(self._identify)

    def authenticate(self, secret: str) -> bytes:
        """AUTH, to be written now; ``Authorized`` and ``Identified``, or ``Broken``, answer it."""
        self._move(_Input.ASK_AUTH)
        self.unanswered.append(_Ask.AUTH)
        return commands.auth(secret)

    def subscribe(self, topic: str, channel: str) -> bytes:
        """SUB, to be written now; a ``Subscribed`` or ``Broken`` event answers it. Raises InvalidName."""
        command = commands.sub(topic, channel)
        self._move(_Input.ASK_SUB)
        self.unanswered.append(_Ask.SUB)
        return command

    def close(self) -> bytes:
        """CLS, to be written now; a ``CloseWait`` event answers it."""
        self._move(_Input.ASK_CLS)
        self.unanswered.append(_Ask.CLS)
        return commands.CLS

    def expect(self, token: object) -> None:
        """Note that a publish is written now; ``token`` comes back in ``Confirmed`` or ``Refused``."""
        if self._negotiating or self.state is State.BROKEN:
            raise NotRunning(f"no publish is possible on a session that is {self.state.name}")
        self.unanswered.append(token)

    def abandon(self) -> list[object]:
        """End the session: the connection is gone. Gives the tokens of the publishes left unanswered."""
        self.state = State.BROKEN
        left = [token for token in self.unanswered if not isinstance(token, _Ask)]
        self.unanswered.clear()
        return left

    def receive(self, data: bytes) -> list[Event]:
        """What ``data`` completes, in its order; may be empty. ``Broken`` is always the last event."""
        if self.state is State.BROKEN:
            raise NotRunning("the session is broken")
        events: list[Event] = []
        if self._negotiating:
            self._negotiate(data, events)
            if self._negotiating or self.broken:
                return events
            data = b""
        confirmed: list[object] | None = None
        unanswered = self.unanswered
        for item in self._decoder.feed(data):
            if isinstance(item, list):
                confirmed = None
                events.append(Messages(item))
            elif item.payload == frames.OK and unanswered and not isinstance(unanswered[0], _Ask):
                if confirmed is None:
                    confirmed = []
                    events.append(Confirmed(confirmed))
                confirmed.append(unanswered.popleft())
            else:
                confirmed = None
                self._other(item, events)
                if self.broken:
                    return events
        if self._decoder.error is not None:
            self._break(self._decoder.error, events)
        return events

    def _negotiate(self, data: bytes, events: list[Event]) -> None:
        """Go through the frames up to the last one of the negotiation, or the one after which an upgrade comes."""
        while self._negotiating and not self.broken:
            frame = self._decoder.feed_one(data)
            data = b""
            if frame is None:
                break
            self._other(frame, events)
        if self._decoder.error is not None:
            self._break(self._decoder.error, events)

    def _other(self, frame: Frame, events: list[Event]) -> None:
        if frame.type == frames.ERROR:
            self._error(NsqdError.from_payload(frame.payload), events)
        elif frame.type != frames.RESPONSE:
            self._break(ProtocolError(f"a frame of the unknown type {frame.type}"), events)
        elif frame.payload == frames.HEARTBEAT:
            events.append(Heartbeat())
        else:
            oldest = self.unanswered[0] if self.unanswered else None
            if isinstance(oldest, _Ask):
                self.unanswered.popleft()
                self._answer(oldest, frame.payload, events)
            else:
                # A publish stays in the queue: its outcome is unknown, and whoever waits must hear so.
                what = "nothing asked for it" if oldest is None else "to a publish"
                self._break(ProtocolError(f"a wrong answer, {what}: {frame.payload[:80]!r}"), events)

    def _answer(self, ask: _Ask, payload: bytes, events: list[Event]) -> None:
        if ask in (_Ask.IDENTIFY, _Ask.AUTH):
            try:
                if ask is _Ask.IDENTIFY:
                    self._identified(Negotiated.from_payload(payload))
                else:
                    events.append(Authorized.from_payload(payload))
            except (ProtocolError, NegotiationFailed) as exc:
                self._break(exc, events)
            else:
                self._go_on(ask, events)
        elif ask is _Ask.UPGRADE and payload == frames.OK:
            self._go_on(ask, events)
        elif ask is _Ask.SUB and payload == frames.OK:
            self._move(_Input.SUBSCRIBED)
            events.append(Subscribed())
        elif ask is _Ask.CLS and payload == frames.CLOSE_WAIT:
            events.append(CloseWait())
        else:
            self._break(ProtocolError(f"{ask.name} was answered with {payload[:80]!r}"), events)

    def _identified(self, negotiated: Negotiated) -> None:
        """Take nsqd's answer, if it fits what was asked."""
        for feature in UPGRADES:
            granted = getattr(negotiated, feature)
            if granted and not self._identify.get(feature):
                raise ProtocolError(f"nsqd switches to {feature}, which was not asked for")
            if feature in self._required and not granted:
                raise NegotiationFailed(
                    feature,
                    f'nsqd does not offer it; its flags say what it offers, and {feature}="prefer" goes without',
                )
        if negotiated.snappy and negotiated.deflate:
            raise ProtocolError("nsqd switches to snappy and deflate at once")
        self._negotiated = negotiated
        self._upgrades = [feature for feature in UPGRADES if getattr(negotiated, feature)]

    def _go_on(self, answered: _Ask, events: list[Event]) -> None:
        """After an answer of the negotiation: what comes next."""
        if self._upgrades:
            self._move(_Input.UPGRADE)
            self.unanswered.append(_Ask.UPGRADE)
            events.append(Upgrade(self._upgrades.pop(0), self._negotiated, self._decoder.take_rest()))
        elif self._negotiated.auth_required and answered is not _Ask.AUTH:
            self._move(_Input.AUTH_REQUIRED)
            events.append(AuthRequired())
        else:
            self._move(_Input.GRANTED)
            self._negotiating = False
            events.append(Identified(self._negotiated))

    def _error(self, error: NsqdError, events: list[Event]) -> None:
        if not error.fatal:
            events.append(CommandFailed(error))
            return
        if self.unanswered and not isinstance(self.unanswered[0], _Ask):
            events.append(Refused(self.unanswered.popleft(), error))
        self._break(error, events)

    def _break(self, error: NsqdError | ProtocolError | NegotiationFailed, events: list[Event]) -> None:
        self.state = State.BROKEN
        events.append(Broken(error))

    def _move(self, step: _Input) -> None:
        following = _NEXT.get((self.state, step))
        if following is None:
            raise NotRunning(f"a session that is {self.state.name} cannot {step.name}")
        self.state = following
