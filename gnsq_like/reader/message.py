"""A message that nsqd delivered, its answer, and the decoding of its body (option ``decoder``)."""

from __future__ import annotations

import enum
import json
import logging
import time
from collections.abc import Callable, Sequence
from itertools import repeat
from types import TracebackType
from typing import Any, Protocol

from gnsq_like.errors import DecodeError, Requeue, check_seconds
from gnsq_like.runtime.dispatcher import log_soon
from gnsq_like.runtime.user_code import ENDS, check_callable, undone
from gnsq_like.wire.frames import RawMessage

logger = logging.getLogger(__name__)

Decode = Callable[[bytes], Any]


def _msgpack(body: bytes) -> Any:
    import msgpack

    return msgpack.unpackb(body)


def make_decoder(given: str | Decode | None) -> Decode | None:
    """The function for the option ``decoder``; it raises DecodeError for any failure.

    :raises InvalidOption: if it is a callable that cannot be called with a body
    """
    if given is None:
        return None
    if isinstance(given, str):
        return {"json": decode_json, "msgpack": _guarded(_msgpack, "msgpack")}[given]
    check_callable("decoder", given, 1)
    return _guarded(given, f"for {getattr(given, '__qualname__', None) or repr(given)}")


def _guarded(decode: Decode, name: str) -> Decode:
    def guarded(body: bytes) -> Any:
        try:
            value = decode(body)
        except Exception as exc:
            raise DecodeError(name, body, f"{type(exc).__name__}: {exc}") from exc
        if (fault := undone(value)) is not None:
            raise DecodeError(name, body, fault)
        return value

    return guarded


#: Decodes JSON in UTF-8, UTF-16 or UTF-32; raises DecodeError.
decode_json: Decode = _guarded(json.loads, "JSON")


#: ``Message._data`` before it is decoded.
_UNDECODED: Any = object()
#: Makes a message without attributes.
_new: Callable[[type[Message]], Message] = object.__new__


class Outcome(enum.Enum):
    """How a delivery ends."""

    HANDLED = "FIN, after its handler"
    GIVEN_UP = "FIN, after too many attempts"
    EXPIRED = "FIN, because the message is too old"
    FAILED = "REQ, which counts for backoff"
    FAILED_LAST = "FIN, because its last permitted delivery failed, which counts for backoff"
    REQUEUED = "REQ, which does not"
    LOST = "no answer, because its connection or its time is over"


class Source(Protocol):
    """The origin of a message, which takes its answers.

    Methods may be called from any thread, and never switch, but for ``give_up``.
    """

    @property
    def topic(self) -> str: ...

    channel: str
    #: The nsqd's address.
    address: str
    #: Seconds within which nsqd expects an answer, and up to which TOUCH can extend that (None: without limit).
    msg_timeout: float
    max_msg_timeout: float | None
    #: The Reader's decoder of bodies; raises DecodeError.
    decode: Callable[[bytes], Any] | None

    @property
    def alive(self) -> bool: ...
    def finish(self, message: Message, outcome: Outcome = Outcome.HANDLED) -> None: ...
    def drop(self, message: Message) -> None: ...
    def failed(self, message: Message, exc: BaseException) -> None: ...
    def give_up(self, message: Message, exc: BaseException, backoff: bool, /) -> bool:
        """A delivery has failed: if it was the last one permitted, give the message up and return True. May switch.

        :param backoff: whether it counts for backoff
        """
        ...

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None: ...
    def touch(self, message: Message) -> None: ...
    def touch_until_answered(self, message: Message) -> None: ...


class Message:
    """One delivery of a message from nsqd.

    A message is identified by (``nsqd_address``, ``topic``, ``id``); ids alone collide between nsqds. It is answered
    once, with :meth:`finish` or :meth:`requeue`; later answers are logged and ignored. All methods may be called from
    any thread.

    :ivar body: the published bytes
    :ivar attempts: number of deliveries on this channel, including this one
    :ivar timestamp_ns: time of publishing, in ns since the epoch
    :ivar answer: None until answered, then "FIN" or "REQ"; "LOST" if nsqd delivers it again, because its connection or
        its time was over while no handler had it
    :ivar failure: in ``on_giving_up``: the exception that the last permitted delivery ended with, or an NSQError if
        nobody answered in time
    :ivar is_async: whether :meth:`enable_async` was called
    :ivar received_at: monotonic time of its arrival
    :ivar touched_at: monotonic time of the last TOUCH, or of its arrival
    :ivar is_overdue: whether nsqd delivers it again now, or in a moment, because it was not answered in time

    As a context manager, it is finished at the end of the block, or requeued if the block raises (unless it was
    answered inside or :meth:`enable_async` was called)::

        for message in reader:
            with message:
                work(message.body)
    """

    __slots__ = (
        "_data",
        "_id",
        "_is_left",
        "_source",
        "answer",
        "attempts",
        "body",
        "failure",
        "is_async",
        "is_overdue",
        "received_at",
        "timestamp_ns",
        "touched_at",
    )

    # Set by _fill(). Those without underscore: see above.
    timestamp_ns: int
    attempts: int
    body: bytes
    answer: str | None
    failure: BaseException | None
    is_async: bool
    received_at: float
    touched_at: float
    is_overdue: bool
    # The others are for this room only.
    _id: bytes
    _source: Source
    _data: Any
    #: Whether its handler, or the loop that took it, has gone on without answering it.
    _is_left: bool

    def __init__(self, raw: RawMessage, source: Source, received_at: float) -> None:
        _fill([self], [raw], source, received_at)

    @property
    def id(self) -> str:
        """nsqd's id of the message, 16 characters."""
        return self._id.decode("latin-1")

    @property
    def data(self) -> Any:
        """The body as the Reader's ``decoder`` decodes it, once; the body itself if the Reader has none.

        :raises DecodeError: if it cannot be decoded; not in a handler, which is not called then
        """
        if self._data is _UNDECODED:
            decode = self._source.decode
            self._data = self.body if decode is None else decode(self.body)
        return self._data

    def json(self) -> Any:
        """The body, decoded as JSON.

        :raises DecodeError: if it is not JSON; the text shows the beginning of the body
        """
        return decode_json(self.body)

    @property
    def timestamp(self) -> float:
        """Time of publishing, in seconds since the epoch."""
        return self.timestamp_ns / 1e9

    @property
    def topic(self) -> str:
        """The topic."""
        return self._source.topic

    @property
    def channel(self) -> str:
        """The channel."""
        return self._source.channel

    @property
    def nsqd_address(self) -> str:
        """The address of the nsqd that delivered it."""
        return self._source.address

    @property
    def has_responded(self) -> bool:
        """Whether it has been answered."""
        return self.answer is not None

    @property
    def is_lost(self) -> bool:
        """Whether nsqd delivers it again: its connection is lost, or its time is over.

        Check it in long handlers, for instance before an effect that should happen once. A handler that gives up for
        this reason should raise or requeue: nsqd, which checks ten times a second, may still accept a FIN.
        """
        if self.answer is not None:
            return self.answer == "LOST"
        return not self._source.alive or time.monotonic() >= self.timeout_at

    @property
    def timeout_at(self) -> float:
        """Monotonic time at which nsqd delivers it again unless it is answered (docs/internals 1.7, 2.5)."""
        deadline = self.touched_at + self._source.msg_timeout
        longest = self._source.max_msg_timeout
        return deadline if longest is None else min(deadline, self.received_at + longest)

    def finish(self) -> None:
        """FIN: the message is done, and nsqd removes it from the channel. Never switches."""
        if self.answer is not None:
            self._late("finish")
            return
        self._source.finish(self)

    def requeue(self, delay: float | None = None, backoff: bool = True) -> None:
        """REQ: nsqd delivers the message again. Never switches.

        :param delay: seconds until then; None for ``default_requeue_delay`` times the attempts
        :param backoff: whether this counts as a failure for the Reader's backoff
        :raises InvalidOption: if delay is not a number of seconds below 2**31
        """
        if self.answer is not None:
            self._late("requeue")
            return
        check_seconds("delay", delay, or_none=True, minimum=0)
        self.answer = "REQ"
        self._source.requeue(self, delay, backoff)

    def touch(self) -> None:
        """TOUCH: restart nsqd's timeout for the message, up to max-msg-timeout in total. Never switches."""
        if self.answer is not None:
            self._late("touch")
            return
        self._source.touch(self)

    def touch_until_answered(self) -> None:
        """Have the Reader call :meth:`touch` in time until it is answered, or max-msg-timeout is over. Never switches.

        If its handler hangs, no other consumer gets it until then, or until the connection is closed.
        """
        if self.answer is not None:
            self._late("touch_until_answered")
            return
        self._source.touch_until_answered(self)

    def enable_async(self) -> None:
        """Leave the message unanswered when the handler returns. Next: :meth:`finish` or :meth:`requeue`, later."""
        self.is_async = True

    def _handled(self, outcome: Outcome = Outcome.HANDLED) -> None:
        """Its handler has returned: finish it, unless it is answered or ``is_async``. Never switches."""
        if self.answer is None:
            if self.is_async:
                self._leave()
            else:
                self._source.finish(self, outcome)

    def _leave(self) -> None:
        """Its handler, or the loop that took it, goes on without an answer to it. Never switches.

        From now on it is dropped if its connection is lost, because nobody needs to answer it then.
        """
        # In this order: lose() looks at the flag after the connection's end.
        self._is_left = True
        if not self._source.alive:
            self._source.drop(self)

    def _late(self, what: str) -> None:
        log_soon(logger.debug, "%s of message %s after its %s: ignored", what, self.id, self.answer)

    def __enter__(self) -> Message:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if exc is not None:
            self.fail(exc)
            return isinstance(exc, Requeue)
        self._handled()
        return False

    def fail(self, exc: BaseException) -> None:
        """Requeue it, unless it is answered, as if its handler had raised ``exc``.

        For work that goes on after :meth:`enable_async`. ``Requeue`` carries its own parameters; what ends a greenlet
        or the program requeues without delay; any other exception counts as a failure. May switch: if this was the last
        delivery that ``max_attempts`` permits, ``on_giving_up`` is called here, and the message is finished.
        """
        counts = True
        answer: tuple[float | None, bool] = (None, True)
        if isinstance(exc, Requeue):
            counts, answer = exc.counts, (exc.delay, exc.backoff)
        elif isinstance(exc, ENDS):
            counts, answer = False, (0, False)
        else:
            self._source.failed(self, exc)
        if self.answer is None and not (counts and self._source.give_up(self, exc, answer[1])):
            self.requeue(*answer)

    @property
    def log_fields(self) -> dict[str, object]:
        """Fields for log records about it: ``logger.info("stored", extra=message.log_fields)``."""
        return {
            "topic": self.topic,
            "channel": self.channel,
            "message_id": self.id,
            "attempts": self.attempts,
            "nsqd": self.nsqd_address,
        }

    def __reduce__(self) -> str:
        raise TypeError("a Message belongs to its connection and cannot be pickled or copied; pass on its body")

    def __repr__(self) -> str:
        return (
            f"<Message {self.id} {self.topic}/{self.channel} from {self.nsqd_address} "
            f"attempts={self.attempts} bytes={len(self.body)} answer={self.answer}>"
        )


def make_messages(raw_messages: Sequence[RawMessage], source: Source, received_at: float) -> list[Message]:
    """The messages of one read, made together: a call of ``__init__`` for each would cost a quarter more.

    :param received_at: monotonic time
    """
    messages = list(map(_new, repeat(Message, len(raw_messages))))
    _fill(messages, raw_messages, source, received_at)
    return messages


def _fill(
    messages: list[Message],
    raw_messages: Sequence[RawMessage],
    source: Source,
    received_at: float,
) -> None:
    for message, raw in zip(messages, raw_messages, strict=True):
        message.timestamp_ns, message.attempts, message._id, message.body = raw
        message.answer = message.failure = None
        message._source = source
        message._data = _UNDECODED
        message.received_at = message.touched_at = received_at
        message.is_async = message.is_overdue = message._is_left = False
