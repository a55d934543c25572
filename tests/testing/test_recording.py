"""A RecordingProducer is used like a Producer, and keeps the published messages."""

import asyncio

import pytest

from gnsq_like import Producer
from gnsq_like.errors import InvalidBody, InvalidName, InvalidOption, NotRunning
from gnsq_like.testing import Published, RecordingProducer


def test_what_is_published_is_kept_in_order():
    with RecordingProducer(encoder="json") as producer:
        assert isinstance(producer, Producer)
        producer.publish("t", {"a": 1})
        producer.publish("t", 2, defer=1.5)
        producer.multi_publish("u", iter([3, 4]))
        assert producer.publish_async("v", 5).get() is None
        assert producer.outbox == [
            Published("t", b'{"a":1}'),
            Published("t", b"2", 1.5),
            Published("u", b"3"),
            Published("u", b"4"),
            Published("v", b"5"),
        ]
        assert producer.outbox[0].json() == {"a": 1}
        assert producer.stats()["state"] == "new"  # nothing was started


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (InvalidName, lambda producer: producer.publish("no topic", b"x")),
        (InvalidName, lambda producer: producer.publish("no topic", b"x", defer=1)),
        (InvalidName, lambda producer: producer.multi_publish("no topic", [b"x"])),
        (InvalidBody, lambda producer: producer.publish("t", "text")),
        (InvalidBody, lambda producer: producer.publish_async("t", b"x" * 11)),
        (InvalidBody, lambda producer: producer.multi_publish("t", b"one")),
        (InvalidBody, lambda producer: producer.multi_publish("t", [b"x" * 9] * 3, atomic=True)),
        (InvalidOption, lambda producer: producer.publish("t", b"x", defer=-1)),
        (InvalidOption, lambda producer: producer.publish("t", b"x", timeout=0)),
    ],
)
def test_what_a_producer_refuses_is_refused(error, call):
    for kind in (RecordingProducer, Producer):
        producer = kind("127.0.0.1:1", max_msg_bytes=10, max_body_bytes=30, timeout=0.1)
        with pytest.raises(error):
            call(producer)
        producer.close()


def test_after_close_it_takes_nothing():
    producer = RecordingProducer()
    producer.close()
    for call in (producer.publish, producer.publish_async):
        with pytest.raises(NotRunning):
            call("t", b"x")
    with pytest.raises(NotRunning):
        producer.multi_publish("t", [b"x"])
    assert producer.outbox == []


def test_publishes_from_asyncio_are_recorded_too():
    producer = RecordingProducer()
    asyncio.run(producer.apublish("t", b"x", defer=1.5))
    assert producer.outbox == [Published("t", b"x", 1.5)]
    with pytest.raises(InvalidBody):
        asyncio.run(producer.apublish("t", b""))
