"""The connections of a broker for job frameworks: one Producer, independent Readers, delays and dead letters.

A message that no worker can take is published elsewhere and then finished. If that fails, for whatever reason, it is
requeued with a delay: nothing is lost, and nothing circulates without a pause.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from gnsq_like import Message, Producer, Reader, ReaderGroup, deadletter
from gnsq_like.errors import InvalidBody, NotRunning, NotSent, NSQError, OutcomeUnknown, PublishRefused
from gnsq_like.wire.names import encode_topic

logger = logging.getLogger(__name__)

#: Deliveries of a message after which it is a dead letter: workers died with it, or handed it back.
_MAX_ATTEMPTS = 10
#: Seconds for jobs that run when a consumer ends: a day, because nsqd's max-msg-timeout is their limit, not this.
_CONSUMER_ENDS = 86_400.0
#: The same when all connections end, at the end of the program.
_ALL_END = 1.0


class Jobs:
    """Publishes and consumes, in one thread of its own, or in the hub of a patched process.

    :param where: addresses and options of all connections
    :param producer: further options of the Producer
    :param reader: further options of the Readers
    :param max_defer: the longest delay in seconds that nsqd takes at once
    :param dead_letters: the topic for the dead letters of a topic; None to drop them
    :param unreachable: the framework's error for a publish that may succeed later
    """

    def __init__(
        self,
        where: Mapping[str, Any],
        *,
        producer: Mapping[str, Any],
        reader: Mapping[str, Any],
        max_defer: float,
        dead_letters: Callable[[str], str | None],
        unreachable: type[Exception],
    ) -> None:
        self._producer = Producer(**{**where, **producer})
        self._reader = {"max_attempts": _MAX_ATTEMPTS, **where, **reader}
        self._max_defer = max_defer
        self._dead_letters = dead_letters
        self._unreachable = unreachable
        #: The Readers of all consumers, once there is one. The lock is for consumers that start at the same time.
        self._group: ReaderGroup | None = None
        self._starting = threading.Lock()

    def check_topic(self, topic: str) -> None:
        """Check the names of a topic and of that for its dead letters.

        :raises InvalidName: if nsqd would refuse one
        """
        encode_topic(topic)
        dead = self._dead_letters(topic)
        if dead is not None:
            encode_topic(dead)

    def publish(self, topic: str, body: bytes, delay: float = 0.0) -> None:
        """Publish a message's body, deferred for ``delay`` seconds, or ``max_defer`` if that is less.

        :raises Exception: ``unreachable``: no nsqd could be reached, or none confirmed it
        :raises NSQError: if nsqd refuses it
        """
        try:
            self._publish(topic, body, delay)
        except (NotSent, OutcomeUnknown) as exc:
            raise self._unreachable(str(exc)) from exc

    def _publish(self, topic: str, body: bytes, delay: float = 0.0) -> None:
        self._producer.publish(topic, body, defer=min(delay, self._max_defer) if delay > 0 else None)

    def make_reader(self, topic: str, channel: str, handler: Any = None, *, max_in_flight: int) -> Reader:
        """A Reader, not started; the options of all Readers come before ``max_in_flight``."""
        options = {"max_in_flight": max_in_flight, **self._reader}
        return Reader(topic, channel, handler, on_giving_up=self._store, **options)

    def start(self, reader: Reader) -> None:
        """Start a Reader beside the others. May block for an instant."""
        with self._starting:
            try:
                if self._group is None:
                    raise NotRunning
                self._group.add(reader)
            except NotRunning:  # there is none, or its last Reader has stopped
                self._group = ReaderGroup(reader, own_thread=True, independent=True)
                self._group.start()

    def pause(self) -> None:
        """Take no more messages for any consumer. Never switches."""
        if self._group is not None:
            for reader in self._group.readers:
                reader.pause()

    def end(self, reader: Reader) -> None:
        """Take no more messages; those that are being processed can still be answered. Never switches."""
        reader.begin_to_stop(_CONSUMER_ENDS)

    def defer(self, message: Message, left: float) -> None:
        """Defer a message again that is not due: its delay was too long for nsqd, or was lost in a restart."""
        try:
            # As a new message: a requeue would count as an attempt.
            self._publish(message.topic, message.body, left)
        except NSQError:
            message.requeue(min(left, self._max_defer), backoff=False)
        else:
            message.finish()

    def bury(self, reason: str, *deliveries: Message) -> None:
        """Make a message a dead letter.

        :param reason: why, for the envelope
        :param deliveries: all unanswered deliveries of this message, the last one at the end
        """
        try:
            self._store(deliveries[-1], reason)
        except NSQError as exc:
            message = deliveries[-1]
            text = "message %s of %s cannot become a dead letter, and is requeued: %s"
            logger.error(text, message.id, message.topic, exc, extra=message.log_fields)
            for message in deliveries:
                message.requeue(backoff=False)
        else:
            for message in deliveries:
                message.finish()

    def _store(self, message: Message, reason: str = "") -> None:
        """Publish a dead letter; the Readers' ``on_giving_up``, which requeues the message if this raises."""
        topic = self._dead_letters(message.topic)
        if topic is None:
            return
        try:
            self._publish(topic, deadletter.make_envelope(message, reason))
        except (InvalidBody, PublishRefused):  # the envelope is larger than nsqd allows
            self._publish(topic, message.body)

    def close(self) -> None:
        """End the Readers and all connections. Messages that are still held are requeued. May block."""
        if self._group is not None:
            self._group.stop(_ALL_END)
        self._producer.close()
