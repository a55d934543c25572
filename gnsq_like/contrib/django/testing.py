"""For tests of applications: assertions about published messages, and their delivery to readers.

::

    class OrderTests(NSQTestMixin, TestCase):
        def test_an_order_is_announced(self):
            with self.captureOnCommitCallbacks(execute=True):
                self.client.post("/order", {"item": "tea"})
            self.assertPublished("orders", {"id": 1})
            self.deliver()                              # the readers of "orders" are called
            self.assertEqual(Order.objects.get().state, "sent")

During such a test, nothing is sent. ``recording()`` does the same for a ``with`` block, and the setting ``RECORD`` for
a whole process, whose messages are then in ``producer().outbox``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gnsq_like.contrib.django.publishing import producer, recording
from gnsq_like.contrib.django.readers import declared

if TYPE_CHECKING:
    # The class that the mixin is mixed into.
    from unittest import TestCase as _Case

    from gnsq_like import Message
    from gnsq_like.testing import Published
else:
    _Case = object

__all__ = ["NSQTestMixin", "deliver", "recording"]

#: nsqd's default, in seconds.
_MSG_TIMEOUT = 60.0

_ANY: object = object()


class NSQTestMixin(_Case):
    """A mixin for Django's test cases, to be named before them: records the messages that each test publishes."""

    #: The messages that this test has published so far, the oldest first.
    published: list[Published]
    #: The positions in ``published`` that ``deliver`` has delivered.
    _delivered: set[int]

    @classmethod
    def setUpClass(cls) -> None:
        """Messages published by ``setUpTestData`` and the like are not sent either, and belong to no test."""
        cls.enterClassContext(recording())
        super().setUpClass()

    def run(self, result: Any = None) -> Any:
        """Run the test in a recording."""
        self._delivered = set()
        with recording() as self.published:
            return super().run(result)

    def assertPublished(self, topic: str, body: object = _ANY, *, count: int | None = None) -> list[Published]:
        """Fail unless a message was published to the topic.

        :param body: with this body, as given to publish; JSON is compared by value
        :param count: exactly this many times
        :returns: the messages found
        """
        there = [each for each in self.published if each.topic == topic]
        found = there if body is _ANY else [each for each in there if _is_same(each, body)]
        wanted = f"to {topic!r}" if body is _ANY else f"to {topic!r} with the body {body!r}"
        held = "\n".join(f"  {each.body!r}" for each in there) or "  nothing"
        if not (found if count is None else len(found) == count):
            many = "nothing was" if count is None else f"{len(found)} and not {count} messages were"
            raise self.failureException(f"{many} published {wanted}; to {topic!r} was published\n{held}")
        return found

    def assertNothingPublished(self, topic: str | None = None) -> None:
        """Fail if any message was published, or one to this topic."""
        found = [each for each in self.published if topic in (None, each.topic)]
        if found:
            what = ", ".join(f"{each.body!r} to {each.topic!r}" for each in found)
            raise self.failureException(f"{len(found)} messages were published: {what}")

    def deliver(self, topic: str | None = None) -> list[Message]:
        """Call the readers with the messages that this test published; see :func:`deliver`.

        Each message is delivered once; messages that readers publish are left for the next call.

        :param topic: deliver only messages of this topic
        """
        fresh = [
            number
            for number, each in enumerate(self.published)
            if number not in self._delivered and topic in (None, each.topic)
        ]
        self._delivered.update(fresh)
        return deliver([self.published[number] for number in fresh])


def deliver(messages: Iterable[Published]) -> list[Message]:
    """Call the declared readers with recorded messages: as with nsqd, each channel gets every message.

    They run one after the other, in this thread and its transaction; their exceptions are not caught.

    :returns: the messages, each with its ``answer``: "FIN", "REQ", or None after ``enable_async()``
    """
    from gnsq_like import Batch

    messages = list(messages)
    delivered = []
    for each in declared():
        own = [_message(one.topic, each.channel, one.body) for one in messages if each.reads(one.topic)]
        delivered += own
        size = 1 if each.batch is None else Batch(each.function, **each.batch).size
        for start in range(0, len(own), size):
            batch = own[start : start + size]
            result = each.handle(batch[0]) if each.batch is None else each.handle_many(batch)
            for message in batch:
                if message.answer is None and result is False:
                    message.requeue()
                elif message.answer is None and not message.is_async:
                    message.finish()
    return delivered


def _is_same(published: Published, body: object) -> bool:
    wanted = producer().check(published.topic, body)
    if published.body == wanted:
        return True
    try:
        return bool(json.loads(published.body) == json.loads(wanted))
    except ValueError:
        return False


class _Nowhere:
    """Takes a message's answers in place of a Reader's connection."""

    address = "127.0.0.1:4150"
    msg_timeout = _MSG_TIMEOUT
    max_msg_timeout = None
    alive = True
    decode = None

    def __init__(self, topic: str, channel: str) -> None:
        self.topic = topic
        self.channel = channel

    def drop(self, message: Message) -> None: ...

    def failed(self, message: Message, exc: BaseException) -> None: ...

    def give_up(self, message: Message, exc: BaseException, backoff: bool, /) -> bool:
        return False

    def finish(self, message: Message, outcome: object = None) -> None:
        message.answer = "FIN"

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None: ...

    def touch(self, message: Message) -> None: ...

    def touch_until_answered(self, message: Message) -> None: ...


def _message(topic: str, channel: str, body: bytes) -> Message:
    from gnsq_like import Message

    source: Any = _Nowhere(topic, channel)
    raw: Any = (time.time_ns(), 1, b"%016x" % time.monotonic_ns(), body)
    return Message(raw, source, time.monotonic())
