"""A message and its one answer."""

import asyncio
import logging
import pickle

import gevent
import pytest

from gnsq_like import Message, Requeue
from gnsq_like.reader.message import make_messages
from gnsq_like.runtime.dispatcher import flush_log
from tests.support.messages import ID, Source, make_message


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def message(source: Source) -> Message:
    return make_message(attempts=65535, source=source, received_at=100.0)


def test_what_it_says_of_itself(message):
    assert message.id == ID
    assert (message.attempts, message.body) == (65535, b"body")
    assert message.timestamp_ns == 1_500_000_000_123_456_789
    assert message.timestamp == pytest.approx(1_500_000_000.123456789)
    assert (message.topic, message.channel, message.nsqd_address) == ("t", "c", "127.0.0.1:4150")
    assert not message.has_responded
    assert ID in repr(message)
    assert "t/c from 127.0.0.1:4150" in repr(message)


def test_those_of_one_read_are_as_those_made_alone(source):
    raw_messages = [(time, attempts, b"%016d" % time, b"%d" % time) for time, attempts in ((5, 1), (6, 2), (7, 1))]
    made = make_messages(raw_messages, source, 100.0)
    for message, raw in zip(made, raw_messages, strict=True):
        alone = Message(raw, source, 100.0)
        for name in Message.__slots__:
            assert getattr(message, name) == getattr(alone, name), name
    assert (made[1].body, made[1].attempts, made[1].timestamp_ns, made[1].timeout_at) == (b"6", 2, 6, 160.0)
    assert make_messages([], source, 100.0) == []


def test_it_cannot_be_pickled(message):
    with pytest.raises(TypeError, match="pass on its body"):
        pickle.dumps(message)


def test_finish_and_requeue_answer_it(source):
    for answer, expected in (
        (lambda message: message.finish(), ("finish", ID)),
        (lambda message: message.requeue(), ("requeue", ID, None, True)),
        (lambda message: message.requeue(1.5, backoff=False), ("requeue", ID, 1.5, False)),
        (lambda message: message.requeue(0), ("requeue", ID, 0, True)),
    ):
        message = make_message(source=source)
        answer(message)
        assert source.answers.pop() == expected
        assert message.has_responded


@pytest.mark.parametrize(
    ("raised", "answer"),
    [
        (ValueError(), (None, True)),
        (gevent.Timeout(1), (None, True)),
        (asyncio.CancelledError(), (None, True)),
        (Requeue(2.5, backoff=False), (2.5, False)),
        (gevent.GreenletExit(), (0, False)),
        (KeyboardInterrupt(), (0, False)),
        (SystemExit(), (0, False)),
    ],
)
def test_what_the_block_raises_requeues_it(message, source, raised, answer):
    try:
        with message:
            raise raised
    except BaseException as exc:
        assert exc is raised
        assert not isinstance(exc, Requeue)
    assert source.answers == [("requeue", ID, *answer)]


@pytest.mark.parametrize("first", ["finish", "requeue"])
@pytest.mark.parametrize("late", ["finish", "requeue", "touch", "touch_until_answered"])
def test_a_later_answer_is_logged_and_does_nothing(message, source, first, late, caplog):
    caplog.set_level(logging.DEBUG, "gnsq_like.reader.message")
    getattr(message, first)()
    sent = list(source.answers)
    getattr(message, late)()
    assert source.answers == sent
    flush_log(60)
    assert f"{late} of message {ID}" in caplog.text


@pytest.mark.parametrize("delay", [-1, -0.001, float("nan"), float("inf"), 2**31, "5", True])
def test_a_wrong_delay_is_refused_and_answers_nothing(message, source, delay):
    with pytest.raises(ValueError, match="seconds"):
        message.requeue(delay)
    assert not message.has_responded
    assert source.answers == []


def test_the_deadline_moves_with_touches_up_to_nsqds_maximum(message, source):
    assert message.timeout_at == 160.0
    message.touch()
    assert source.answers == [("touch", ID)]
    assert message.timeout_at == 160.0  # nothing was sent yet
    message.touched_at = 130.0  # as its subscription notes
    assert message.timeout_at == 190.0
    message.touched_at = 990.0
    assert message.timeout_at == 1000.0
    source.max_msg_timeout = None
    assert message.timeout_at == 1050.0


class TestAsContextManager:
    def test_it_finishes_itself(self, message, source):
        with message as entered:
            assert entered is message
            assert source.answers == []
        assert source.answers == [("finish", ID)]

    @pytest.mark.parametrize("error", [None, KeyError("meant"), Requeue()])
    def test_what_was_answered_inside_is_left_alone(self, message, source, error):
        def block():
            with message:
                message.finish()
                if error is not None:
                    raise error

        if isinstance(error, KeyError):
            with pytest.raises(KeyError):
                block()
        else:
            block()
        assert source.answers == [("finish", ID)]

    def test_async_leaves_it_unanswered(self, message, source):
        with message:
            message.enable_async()
        assert source.answers == []
        message.finish()
        assert source.answers == [("finish", ID)]
