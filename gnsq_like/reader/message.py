"""A message that nsqd delivered, and its answer."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Protocol

from gevent import Timeout

from gnsq_like.errors import Requeue
from gnsq_like.wire.frames import RawMessage

logger = logging.getLogger(__name__)


class Source(Protocol):
    """Where a message came from and its answer goes; each method may be called from any thread and never switches."""

    topic: str
    channel: str
    #: The nsqd's address.
    address: str
    #: Seconds in which nsqd wants an answer, and for how long TOUCH can put that off (None: for ever).
    msg_timeout: float
    max_msg_timeout: float | None

    @property
    def alive(self) -> bool: ...
    def finish(self, message: Message) -> None: ...
    def give_up(self, message: Message) -> None: ...
    def drop(self, message: Message) -> None: ...
    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None: ...
    def touch(self, message: Message) -> None: ...


class Message:
    """One delivery of a message; made by a Reader.

    A message is told from all others by (nsqd_address, topic, id): ids alone collide between nsqds.
    It is answered once, by :meth:`finish` or :meth:`requeue`; a later answer is logged and does nothing.
    All methods may be called from any thread.

    As a context manager it finishes itself at the end of the block, and requeues itself when the block
    raises (unless it was answered inside, or :meth:`enable_async` was called)::

        for message in reader:
            with message:
                work(message.body)
    """

    __slots__ = (
        "_id",
        "_is_overdue",
        "_received_at",
        "_source",
        "_stamp",
        "_touched_at",
        "answer",
        "attempts",
        "body",
        "is_async",
        "timestamp_ns",
    )

    def __init__(self, raw: RawMessage, source: Source, received_at: float, stamp: int = 0) -> None:
        #: When it was published, in ns since the epoch; nsqd keeps it over all deliveries.
        self.timestamp_ns: int
        #: How often nsqd has delivered it on this channel, this time included.
        self.attempts: int
        #: What was published.
        self.body: bytes
        self.timestamp_ns, self.attempts, self._id, self.body = raw
        #: None until it is answered; then "FIN" or "REQ". "LOST" when its connection was lost before a handler began.
        self.answer: str | None = None
        #: Whether the end of the handler leaves it unanswered; see :meth:`enable_async`.
        self.is_async = False
        # What begins with an underscore is for this room alone.
        self._source = source
        #: Monotonic time of its arrival, and of the last TOUCH.
        self._received_at = received_at
        self._touched_at = received_at
        #: For backoff: the test that this message's result belongs to.
        self._stamp = stamp
        #: Whether nsqd has given up waiting for its answer, or is about to.
        self._is_overdue = False

    @property
    def id(self) -> str:
        """Its 16 characters of id."""
        return self._id.decode("latin-1")

    @property
    def timestamp(self) -> float:
        """When it was published, in seconds since the epoch."""
        return self.timestamp_ns / 1e9

    @property
    def topic(self) -> str:
        """The topic it was published to."""
        return self._source.topic

    @property
    def channel(self) -> str:
        """The channel it came through."""
        return self._source.channel

    @property
    def nsqd_address(self) -> str:
        """The nsqd it came from."""
        return self._source.address

    @property
    def has_responded(self) -> bool:
        """Whether it was finished or requeued."""
        return self.answer is not None

    @property
    def timeout_at(self) -> float:
        """The monotonic time at which nsqd gives up waiting and delivers it again (docs/internals 1.7, 2.5)."""
        deadline = self._touched_at + self._source.msg_timeout
        longest = self._source.max_msg_timeout
        return deadline if longest is None else min(deadline, self._received_at + longest)

    def finish(self) -> None:
        """FIN: it is done, and nsqd forgets it. Never switches."""
        if self.answer is not None:
            self._late("finish")
            return
        self.answer = "FIN"
        self._source.finish(self)

    def requeue(self, delay: float | None = None, backoff: bool = True) -> None:
        """REQ: have nsqd deliver it again. Never switches.

        :param delay: seconds until then; None for the Reader's delay, which grows with the attempts
        :param backoff: whether this counts as a failure for the Reader's backoff
        """
        if self.answer is not None:
            self._late("requeue")
            return
        if delay is not None and not (isinstance(delay, int | float) and 0 <= delay < 2**31):
            raise ValueError(f"requeue(delay={delay!r}): it must be seconds, 0 or more")
        self.answer = "REQ"
        self._source.requeue(self, delay, backoff)

    def touch(self) -> None:
        """TOUCH: have nsqd's timeout for it start anew, up to its max-msg-timeout in all. Never switches."""
        if self.answer is not None:
            self._late("touch")
            return
        self._source.touch(self)

    def enable_async(self) -> None:
        """Leave it unanswered when the handler returns: finish or requeue is called later."""
        self.is_async = True

    def _late(self, what: str) -> None:
        logger.debug("%s of message %s after its %s: ignored", what, self.id, self.answer)

    def __enter__(self) -> Message:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if exc is not None:
            self._requeue_for(exc)
        elif self.answer is None and not self.is_async:
            self.finish()
        return isinstance(exc, Requeue)

    def _requeue_for(self, exc: BaseException) -> None:
        """Answer what its handler raised, unless it is answered; also after :meth:`enable_async`. Never switches.

        Requeue says how; an Exception or a gevent.Timeout counts as a failure; what else there is
        (GreenletExit, SystemExit …) says nothing about the message, and requeues it at once.
        """
        if self.answer is not None:
            return
        if isinstance(exc, Requeue):
            self.requeue(exc.delay, exc.backoff)
        elif isinstance(exc, Exception | Timeout):
            self.requeue()
        else:
            self.requeue(0, backoff=False)

    def __repr__(self) -> str:
        return (
            f"<Message {self.id} {self.topic}/{self.channel} from {self.nsqd_address} "
            f"attempts={self.attempts} bytes={len(self.body)} answer={self.answer}>"
        )
