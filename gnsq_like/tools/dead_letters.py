"""The messages of a dead-letter topic on all its nsqds: read, replayed or dropped, by ``gnsq-like dlq`` and the admin.

Reading takes letters in flight from a durable channel. Nothing is finished before the user says so: a letter that is
neither replayed nor dropped is given back, and after a crash nsqd delivers it again.

As many letters are read as there were at the beginning, because replayed messages may fail and come back. The nsqds'
own counts show when all have arrived; no idle time is awaited.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Self

import gevent
from gevent.queue import Empty, Queue

from gnsq_like import Message, NsqdHTTPClient, Producer, Reader
from gnsq_like.cluster.counting import TopicCount, count_topic
from gnsq_like.cluster.daemons import Daemons
from gnsq_like.cluster.figures import TopicFigures, read_topics
from gnsq_like.cluster.rounds import NotFound, Unreachable
from gnsq_like.deadletter import DeadLetter, open_envelope
from gnsq_like.errors import NSQError, UsageError

#: The channel; a topic without any gives its backlog to it.
CHANNEL = "dead-letters"
#: Options of a Reader that holds letters: unlimited attempts, no backoff.
READER_OPTIONS: Mapping[str, object] = {"max_attempts": 0, "max_backoff_duration": 0}


#: Letters of an nsqd that may be in flight at once: its default max-rdy-count.
MOST_IN_FLIGHT = 2500
#: Seconds without a letter after which nsqds are asked whether more will come.
_POLL_SECONDS = 0.1
_STOP_TIMEOUT = 5.0
#: nsqd refuses what is too large for it.
_ANY_SIZE = 2**31 - 1


class CannotReplay(NSQError):
    """A letter that is not held any more, or cannot be published again; the text is for the user."""


def read_letter(message: Message) -> DeadLetter | None:
    """The envelope in a message; None if the message is not an envelope."""
    try:
        letter = open_envelope(message.body)
    except UsageError:
        return None
    texts = (letter.topic, letter.channel, letter.reason, letter.error_type, letter.error_text, letter.error_place)
    numbers = (letter.attempts, letter.timestamp_ns, letter.given_up_ns)
    is_one = all(isinstance(each, str) for each in texts) and all(isinstance(each, int) for each in numbers)
    return letter if is_one else None  # anybody may have published it


def name_of(message: Message) -> str:
    """A letter's name: ids alone collide between nsqds."""
    return f"{message.nsqd_address}/{message.id}"


class ChannelUnclear(NSQError):
    """The topic has channels, but not the usual one, and creating that would keep a copy of each later letter.

    :ivar topic: the topic
    :ivar channels: its channels
    """

    def __init__(self, topic: str, channels: list[str]) -> None:
        super().__init__(topic, channels)
        self.topic = topic
        self.channels = channels

    def __str__(self) -> str:
        return f"topic {self.topic} has no channel {CHANNEL}; choose one of its own: {', '.join(self.channels)}"


class _Place:
    """One nsqd's letters."""

    def __init__(self, queue: DeadLetterQueue, http_address: str, tcp_address: str, expected: int) -> None:
        self.http_address = http_address
        self.expected = expected
        self.received = 0
        #: Whether no more will come, and why, if that is an error.
        self.is_done = False
        self.error: NSQError | None = None
        self._connected = False
        self._queue = queue
        self._most = min(expected, MOST_IN_FLIGHT)
        self._client_id = f"gnsq-like-dlq-{secrets.token_hex(6)}"
        self.reader = Reader(
            queue.topic,
            queue.channel,
            self._take,
            nsqd_tcp_addresses=tcp_address,
            on_connect=self._on_connect,
            on_error=self._on_error,
            **{
                **queue.options,
                **READER_OPTIONS,
                "max_in_flight": self._most,
                "client_id": self._client_id,
            },
        )

    def _on_connect(self, address: str) -> None:
        self._connected = True

    def _on_error(self, address: str, error: NSQError) -> None:
        if not self._connected:
            self.fail(error)

    def fail(self, error: NSQError) -> None:
        """No more will come."""
        self.error = error
        self.is_done = True

    def _take(self, message: Message) -> None:
        if self.received == self.expected:  # it was on its way when the last one came
            message.requeue(delay=0, backoff=False)
            return
        self.received += 1
        if self.received == self.expected:
            self.reader.pause()
            self.is_done = True
        self._queue.came(message)

    def ask(self, client: NsqdHTTPClient) -> None:
        """Ask the nsqd whether more letters will arrive. May switch."""
        if self.reader.error is not None:
            self.fail(self.reader.error)
        if self.is_done:
            return
        before = self.received
        topics = read_topics(client.stats(self._queue.topic, include_mem=False))
        found = next((each for topic in topics if (each := topic.channel(self._queue.channel))), None)
        if found is None:
            self.is_done = self._connected
            return
        waiting = found.depth + sum(topic.depth for topic in topics if not topic.paused)
        ours = [each for each in found.clients or () if each["client_id"] == self._client_id]
        in_flight = sum(int(each["in_flight_count"]) for each in ours)
        unanswered = self.reader.stats()["in_flight"]
        # All letters that nsqd has sent have arrived, and it has no more, or sends no more.
        if ours and self.received == before and in_flight <= unanswered:
            self.is_done = not waiting or found.paused or unanswered >= self._most


class DeadLetterQueue:
    """A topic of dead letters.

    :param channel: None for "dead-letters", which gets the letters of a topic without channels
    :param most: letters to read; None for all
    :param options: of connections, see :class:`gnsq_like.options.ConnectionOptions`
    :raises NotFound: there is no such topic or channel
    :raises ChannelUnclear: without ``channel``, the topic has others
    :raises Unreachable: none of the given daemons answers

    The constructor asks the daemons, and may switch. Next: use it in a ``with`` block, and :meth:`letters`.
    """

    def __init__(
        self,
        daemons: Daemons,
        topic: str,
        channel: str | None = None,
        *,
        most: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.topic = topic
        self.options = dict(options or {})
        self._daemons = daemons
        counted = count_topic(daemons, topic, channel)
        count = counted.total
        #: Daemons that gave no usable answer.
        self.failures: list[NSQError] = counted.failures
        self.channel = channel or _usual_channel(count)
        found = counted.channel(self.channel)
        if channel is not None and found is None:
            raise NotFound(f"channel {topic}/{channel}", counted.failures)
        #: Letters that other consumers have now, or that wait for a time.
        self.elsewhere = found.in_flight_count + found.deferred_count if found else 0
        #: Letters that can be read now.
        self.depth = 0
        #: Letters that have arrived and are neither replayed nor dropped, by name.
        self.held: dict[str, Message] = {}
        self._is_over = False
        self._came: Queue[Message] = Queue()
        self._producers: dict[str, Producer] = {}
        self._places = self._find_places(counted, most)

    def _find_places(self, counted: TopicCount, most: int | None) -> list[_Place]:
        depths = {}
        for each in counted.total.nodes:
            if (found := each.channel(self.channel)) is not None:
                depths[each.node] = found.depth + each.depth
            elif not each.channels:
                depths[each.node] = each.depth
        self.depth = sum(depths.values())
        left = self.depth if most is None else most
        places = []
        for node in counted.nodes:
            expected = min(depths.get(node.address, 0), left)
            left -= expected
            if expected:
                places.append(_Place(self, node.address, node.tcp_address, expected))
        return places

    def __enter__(self) -> Self:
        for place in self._places:
            place.reader.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        """Give back what was neither replayed nor dropped, and close. May switch."""
        for place in self._places:
            place.reader.pause()  # or nsqd would deliver at once what is given back
        self._is_over = True
        for message in self.held.values():
            message.requeue(delay=0, backoff=False)
        self.held.clear()
        closing = [gevent.spawn(place.reader.stop, _STOP_TIMEOUT) for place in self._places]
        closing += [gevent.spawn(producer.close, _STOP_TIMEOUT) for producer in self._producers.values()]
        gevent.joinall(closing)

    def came(self, message: Message) -> None:
        """Take a letter that has arrived; it is held until nsqd's max-msg-timeout at most. Never switches."""
        if self._is_over:
            message.requeue(delay=0, backoff=False)
            return
        self._hold(message)
        self._came.put(message)

    def _hold(self, message: Message) -> None:
        message.enable_async()
        message.touch_until_answered()
        self.held[name_of(message)] = message

    @property
    def problems(self) -> list[str]:
        """Why some nsqds' letters cannot be read."""
        return [f"{place.http_address}: {place.error}" for place in self._places if place.error is not None]

    def letters(self) -> Iterator[Message]:
        """Yield each letter as it arrives; then it may be replayed or dropped. May switch.

        :raises Unreachable: none of the nsqds that have letters can be read from
        """
        while True:
            try:
                yield self._came.get(timeout=_POLL_SECONDS)
            except Empty:
                waiting = [place for place in self._places if not place.is_done]
                if not waiting:
                    break
                gevent.joinall([gevent.spawn(self._ask, place) for place in waiting])
        errors = {place.http_address: place.error for place in self._places if place.error is not None}
        if errors and len(errors) == len(self._places):
            raise Unreachable(errors)
        self.failures += errors.values()

    def _ask(self, place: _Place) -> None:
        """Ask an nsqd whether more letters will arrive. May switch."""
        for error in self._daemons.ask_nsqds([place.http_address], place.ask).failures.values():
            place.fail(error)

    @property
    def unread(self) -> int:
        """The number of letters that did not arrive: too many are held, the channel is paused, or another consumer has
        them."""
        return sum(place.expected - place.received for place in self._places if place.error is None)

    def replay(self, name: str, topic: str | None = None) -> str:
        """Publish a letter, then finish it; returns the topic. May switch.

        If it cannot be published, it is held again.

        :param topic: where to; None for the topic that it came from
        :raises CannotReplay: it is not held; it is not an envelope and no topic is given; or the topic is the
            dead-letter topic
        :raises NotFound: no nsqd has the topic
        :raises PublishError: it was not confirmed
        """
        message = self._take(name)  # taken out, so that two clicks do not publish it twice
        try:
            found = read_letter(message)
            if topic is None and found is None:
                raise CannotReplay("it is no envelope, so nobody knows where it came from")
            to = topic or (found.topic if found else "")
            if to == message.topic:
                raise CannotReplay("it came from this topic itself")
            self._publish(to, found.body if found else message.body)
        except BaseException:
            if self._is_over:
                message.requeue(delay=0, backoff=False)
            else:
                self._hold(message)
            raise
        message.finish()
        return to

    def drop(self, name: str) -> None:
        """Finish a letter. Never switches. Raises CannotReplay."""
        self._take(name).finish()

    def _take(self, name: str) -> Message:
        message = self.held.pop(name, None)
        if message is None:
            raise CannotReplay("the letter is not held any more; read again")
        return message

    def _publish(self, topic: str, body: bytes) -> None:
        producer = self._producers.get(topic)
        if producer is None:
            # Another nsqd would create the topic, where perhaps no consumer reads it.
            addresses = [node.tcp_address for node in self._daemons.nodes_of(topic).answers.values()]
            if not addresses:
                raise NotFound(f"topic {topic} on any nsqd")
            sizes = {"max_msg_bytes": _ANY_SIZE, "max_body_bytes": _ANY_SIZE}
            producer = Producer(addresses, own_thread=False, **{**self.options, **sizes})
            self._producers[topic] = producer
        producer.publish(topic, body)


def _usual_channel(count: TopicFigures) -> str:
    names = [each.channel_name for each in count.channels]
    if names and CHANNEL not in names:
        raise ChannelUnclear(count.topic_name, names)
    return CHANNEL
