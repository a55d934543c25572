"""One client connection's course: bytes in, events out.

The session knows what was asked and is unanswered, so it can say whose answer an OK or an error is:
nsqd executes and answers the commands of a connection strictly in order (NSQ.md 1.1). IDENTIFY, SUB,
CLS and the publishes have one answer each; RDY, FIN, REQ, TOUCH and NOP have none, except that a FIN,
REQ or TOUCH that failed is told by an error frame that ends nothing.

States, and what moves them (``_NEXT`` is the one place where that is written)::

    NEW ─start→ IDENTIFYING ─identified→ READY ─ask_sub→ SUBSCRIBING ─subscribed→ SUBSCRIBED
                                                                                     │ask_cls
                                         any ─broken→ BROKEN          CLOSING ←──────┘ (CLOSE_WAIT: still CLOSING)

Publishes are possible from READY on, in every state but BROKEN.

Rules for editors: the caller writes the bytes that belong to a call in the order of the calls. Bytes
from the peer can cause a ``Broken`` event and nothing else; after it the session refuses to go on.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from gnsq_like.errors import NotRunning, NsqdError, ProtocolError
from gnsq_like.wire import commands, frames
from gnsq_like.wire.frames import DEFAULT_MAX_FRAME_BYTES, Frame, FrameDecoder, RawMessage


class State(Enum):
    """Where a session stands."""

    NEW = auto()
    IDENTIFYING = auto()
    READY = auto()
    SUBSCRIBING = auto()
    SUBSCRIBED = auto()
    CLOSING = auto()
    BROKEN = auto()


class _Input(Enum):
    START = auto()
    IDENTIFIED = auto()
    ASK_SUB = auto()
    SUBSCRIBED = auto()
    ASK_CLS = auto()


_NEXT: dict[tuple[State, _Input], State] = {
    (State.NEW, _Input.START): State.IDENTIFYING,
    (State.IDENTIFYING, _Input.IDENTIFIED): State.READY,
    (State.READY, _Input.ASK_SUB): State.SUBSCRIBING,
    (State.SUBSCRIBING, _Input.SUBSCRIBED): State.SUBSCRIBED,
    (State.SUBSCRIBED, _Input.ASK_CLS): State.CLOSING,
}


class _Ask(Enum):
    """What stands in the queue of the unanswered for a command that is not a publish."""

    IDENTIFY = auto()
    SUB = auto()
    CLS = auto()


#: nsqd's own default of max-rdy-count, for one that does not say (NSQ.md 1.6).
DEFAULT_MAX_RDY_COUNT = 2500
#: nsqd's own default of msg-timeout in seconds, for one that does not say (NSQ.md 7.1).
DEFAULT_MSG_TIMEOUT = 60.0
#: From this version on RDY is a level and is not counted down.
_RDY_IS_A_LEVEL_SINCE = (0, 3)


@dataclass(frozen=True, slots=True)
class Negotiated:
    """What nsqd answered to IDENTIFY (NSQ.md 1.3); durations in seconds, sizes in bytes."""

    version: str = ""
    max_rdy_count: int = DEFAULT_MAX_RDY_COUNT
    msg_timeout: float = DEFAULT_MSG_TIMEOUT
    max_msg_timeout: float | None = None
    sample_rate: int = 0
    output_buffer_size: int | None = None
    output_buffer_timeout: float | None = None
    auth_required: bool = False
    #: Whether this nsqd counts RDY down (before 0.3, or a plain OK to IDENTIFY).
    counts_rdy_down: bool = False

    @classmethod
    def from_payload(cls, payload: bytes) -> Negotiated:
        """Read the answer to IDENTIFY: its JSON object, or the plain OK of an nsqd that negotiates nothing.

        :raises ProtocolError: for anything else
        """
        if payload == frames.OK:
            return cls(counts_rdy_down=True)
        try:
            answer = json.loads(payload)
        except (ValueError, RecursionError) as exc:  # UnicodeDecodeError is a ValueError
            raise ProtocolError(f"IDENTIFY was answered with neither OK nor JSON: {payload[:80]!r}") from exc
        if not isinstance(answer, dict):
            raise ProtocolError(f"IDENTIFY was answered with JSON that is no object: {payload[:80]!r}")

        def number(key: str) -> int | None:
            value = answer.get(key)
            if value is None:
                return None
            # The bound keeps what follows from it a plain number; nsqd's are 32-bit or less.
            if type(value) is not int or not -1 <= value < 2**63:
                raise ProtocolError(f"IDENTIFY was answered with {key}={value!r:.80}, no whole number")
            return value

        def seconds(key: str) -> float | None:
            value = number(key)
            return None if value is None else value / 1000

        version = answer.get("version", "")
        if not isinstance(version, str):
            raise ProtocolError(f"IDENTIFY was answered with version={version!r:.80}, no string")
        max_rdy_count = number("max_rdy_count")
        return cls(
            version=version,
            max_rdy_count=DEFAULT_MAX_RDY_COUNT if max_rdy_count is None else max(0, max_rdy_count),
            msg_timeout=seconds("msg_timeout") or DEFAULT_MSG_TIMEOUT,
            max_msg_timeout=seconds("max_msg_timeout"),
            sample_rate=number("sample_rate") or 0,
            output_buffer_size=number("output_buffer_size"),
            output_buffer_timeout=seconds("output_buffer_timeout"),
            auth_required=answer.get("auth_required") is True,
            counts_rdy_down=_version_tuple(version) < _RDY_IS_A_LEVEL_SINCE,
        )


def _version_tuple(version: str) -> tuple[int, ...]:
    """``"0.2.31-alpha"`` as (0, 2, 31); what cannot be read counts as new."""
    numbers = version.split("-")[0].split(".")
    if not all(number.isascii() and number.isdigit() and len(number) < 10 for number in numbers):
        return _RDY_IS_A_LEVEL_SINCE
    return tuple(int(number) for number in numbers)


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


class Identified(NamedTuple):
    """IDENTIFY was answered; the connection may subscribe and publish."""

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
    """The session is over: nsqd's fatal error, or bytes that the protocol does not allow."""

    error: NsqdError | ProtocolError


Event = Messages | Confirmed | Refused | Identified | Subscribed | CloseWait | Heartbeat | CommandFailed | Broken


class Session:
    """The protocol's client side of one connection.

    :param identify: the fields of IDENTIFY, in the wire's own units (NSQ.md 1.3)
    :param max_frame_bytes: a larger frame from nsqd breaks the session
    """

    def __init__(self, identify: Mapping[str, object], max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self._identify = dict(identify)
        self._decoder = FrameDecoder(max_frame_bytes)
        #: What was asked and is unanswered, oldest first: an ``_Ask``, or a publish's token.
        self._unanswered: deque[object] = deque()
        self.state = State.NEW

    @property
    def broken(self) -> bool:
        """Whether the session is over."""
        return self.state is State.BROKEN

    @property
    def unanswered_count(self) -> int:
        """How many commands wait for their answer."""
        return len(self._unanswered)

    def start(self) -> bytes:
        """The first bytes to write: magic and IDENTIFY. Next: feed what comes to :meth:`receive`."""
        self._move(_Input.START)
        self._unanswered.append(_Ask.IDENTIFY)
        return commands.MAGIC_V2 + commands.identify(self._identify)

    def subscribe(self, topic: str, channel: str) -> bytes:
        """SUB, to be written now; a ``Subscribed`` or ``Broken`` event answers it. Raises InvalidName."""
        command = commands.sub(topic, channel)
        self._move(_Input.ASK_SUB)
        self._unanswered.append(_Ask.SUB)
        return command

    def close(self) -> bytes:
        """CLS, to be written now; a ``CloseWait`` event answers it."""
        self._move(_Input.ASK_CLS)
        self._unanswered.append(_Ask.CLS)
        return commands.CLS

    def expect(self, token: object) -> None:
        """Note that a publish is written now; ``token`` comes back in ``Confirmed`` or ``Refused``."""
        if self.state in (State.NEW, State.IDENTIFYING, State.BROKEN):
            raise NotRunning(f"no publish is possible on a session that is {self.state.name}")
        self._unanswered.append(token)

    def abandon(self) -> list[object]:
        """End the session: the connection is gone. Gives the tokens of the publishes left unanswered."""
        self.state = State.BROKEN
        left = [token for token in self._unanswered if not isinstance(token, _Ask)]
        self._unanswered.clear()
        return left

    def receive(self, data: bytes) -> list[Event]:
        """What ``data`` completes, in its order; may be empty. ``Broken`` is always the last event."""
        if self.broken:
            raise NotRunning("the session is broken")
        events: list[Event] = []
        confirmed: list[object] | None = None
        unanswered = self._unanswered
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

    def _other(self, frame: Frame, events: list[Event]) -> None:
        if frame.type == frames.ERROR:
            self._error(NsqdError.from_payload(frame.payload), events)
        elif frame.type != frames.RESPONSE:
            self._break(ProtocolError(f"a frame of the unknown type {frame.type}"), events)
        elif frame.payload == frames.HEARTBEAT:
            events.append(Heartbeat())
        else:
            oldest = self._unanswered[0] if self._unanswered else None
            if isinstance(oldest, _Ask):
                self._unanswered.popleft()
                self._answer(oldest, frame.payload, events)
            else:
                # A publish stays in the queue: its outcome is unknown, and whoever waits must hear so.
                what = "nothing asked for it" if oldest is None else "to a publish"
                self._break(ProtocolError(f"a wrong answer, {what}: {frame.payload[:80]!r}"), events)

    def _answer(self, ask: _Ask, payload: bytes, events: list[Event]) -> None:
        if ask is _Ask.IDENTIFY:
            try:
                negotiated = Negotiated.from_payload(payload)
            except ProtocolError as exc:
                self._break(exc, events)
            else:
                self._move(_Input.IDENTIFIED)
                events.append(Identified(negotiated))
        elif ask is _Ask.SUB and payload == frames.OK:
            self._move(_Input.SUBSCRIBED)
            events.append(Subscribed())
        elif ask is _Ask.CLS and payload == frames.CLOSE_WAIT:
            events.append(CloseWait())
        else:
            self._break(ProtocolError(f"{ask.name} was answered with {payload[:80]!r}"), events)

    def _error(self, error: NsqdError, events: list[Event]) -> None:
        if not error.fatal:
            events.append(CommandFailed(error))
            return
        if self._unanswered and not isinstance(self._unanswered[0], _Ask):
            events.append(Refused(self._unanswered.popleft(), error))
        self._break(error, events)

    def _break(self, error: NsqdError | ProtocolError, events: list[Event]) -> None:
        self.state = State.BROKEN
        events.append(Broken(error))

    def _move(self, step: _Input) -> None:
        following = _NEXT.get((self.state, step))
        if following is None:
            raise NotRunning(f"a session that is {self.state.name} cannot {step.name}")
        self.state = following
