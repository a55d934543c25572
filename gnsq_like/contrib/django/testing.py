"""For tests of applications: what was published, and readers that get it.

::

    class OrderTests(NSQTestMixin, TestCase):
        def test_an_order_is_announced(self):
            with self.captureOnCommitCallbacks(execute=True):
                self.client.post("/order", {"item": "tea"})
            self.assertPublished("orders", {"id": 1})
            self.deliver()                              # the readers of "orders" are called
            self.assertEqual(Order.objects.get().state, "sent")

While a test of this kind runs, nothing is sent. ``recording()`` does the same for a ``with`` block, and the
setting ``RECORD`` for a whole process, whose publishes are then in ``producer().outbox``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gnsq_like.contrib.django.publishing import producer, recording
from gnsq_like.contrib.django.readers import declared

if TYPE_CHECKING:
    # What the mixin is mixed into.
    from unittest import TestCase as _Case

    from gnsq_like import Message
    from gnsq_like.testing import Published
else:
    _Case = object

__all__ = ["NSQTestMixin", "deliver", "recording"]

#: Seconds that nsqd would wait for an answer.
_MSG_TIMEOUT = 60.0

_ANY: Any = object()


class NSQTestMixin(_Case):
    """For Django's test cases, put before them: each test records what is published."""

    #: What this test published so far, the oldest first.
    published: list[Published]
    #: How much of that ``deliver`` has passed on.
    _delivered: set[int]

    @classmethod
    def setUpClass(cls) -> None:
        """Also what ``setUpTestData`` and the like publish is not sent; it belongs to no test."""
        cls.enterClassContext(recording())
        super().setUpClass()

    def run(self, result: Any = None) -> Any:
        """Run the test inside of a recording."""
        self._delivered = set()
        with recording() as self.published:
            return super().run(result)

    def assertPublished(self, topic: str, body: Any = _ANY, *, count: int | None = None) -> list[Published]:
        """Something was published to the topic.

        :param body: this body, as it would be given to publish; JSON is compared by its meaning
        :param count: exactly so often
        :returns: what was found
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
        """Nothing was published at all, or to this topic."""
        found = [each for each in self.published if topic in (None, each.topic)]
        if found:
            what = ", ".join(f"{each.body!r} to {each.topic!r}" for each in found)
            raise self.failureException(f"{len(found)} messages were published: {what}")

    def deliver(self, topic: str | None = None) -> list[Message]:
        """Have the readers called with what this test published; see :func:`deliver`.

        Each message is delivered once: what readers publish is for the next call.

        :param topic: deliver what is of this topic only
        """
        fresh = [
            number
            for number, each in enumerate(self.published)
            if number not in self._delivered and topic in (None, each.topic)
        ]
        self._delivered.update(fresh)
        return deliver([self.published[number] for number in fresh])


def deliver(messages: Iterable[Published]) -> list[Message]:
    """Call the declared readers with what was recorded, as nsqd would: each channel gets every message.

    They run here, one after the other, in this thread and its transaction; what they raise comes out.

    :returns: the messages, each with its ``answer``: "FIN", "REQ", or None after ``enable_async()``
    """
    from gnsq_like import Batch

    messages = list(messages)
    delivered = []
    for each in declared():
        own = [_message(each.topic, each.channel, one.body) for one in messages if one.topic == each.topic]
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


def _is_same(published: Published, body: Any) -> bool:
    wanted = producer().check(published.topic, body)
    if published.body == wanted:
        return True
    try:
        return bool(json.loads(published.body) == json.loads(wanted))
    except ValueError:
        return False


class _Nowhere:
    """In place of a Reader's connection: where a message's answer goes."""

    address = "127.0.0.1:4150"
    msg_timeout = _MSG_TIMEOUT
    max_msg_timeout = None

    def __init__(self, topic: str, channel: str) -> None:
        self.topic = topic
        self.channel = channel

    def finish(self, message: Message) -> None: ...

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None: ...

    def touch(self, message: Message) -> None: ...


def _message(topic: str, channel: str, body: bytes) -> Message:
    from gnsq_like import Message

    source: Any = _Nowhere(topic, channel)
    raw: Any = (time.time_ns(), 1, b"%016x" % time.monotonic_ns(), body)
    return Message(raw, source, time.monotonic())
