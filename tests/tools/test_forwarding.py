"""Which destinations a message is tried at, and lines of status."""

import logging
import re
import time
from collections.abc import Callable

import pytest
from gevent.event import Event

from gnsq_like import Message
from gnsq_like.tools.forwarding import Forwarding
from tests.support.messages import Source, make_message


class Unsent(Exception):
    """Nothing was sent."""


def forwarding(destinations: list[str], stop: Event | None = None, status_every: int = 0) -> Forwarding:
    return Forwarding(
        destinations,
        "round-robin",
        stop=stop or Event(),
        is_unsent=lambda exc: isinstance(exc, Unsent),
        status_every=status_every,
    )


def message(seconds_left: float = 60.0) -> Message:
    return make_message(received_at=time.monotonic() + seconds_left - Source().msg_timeout)


def refusing(asked: list[str], error: type[Exception] = Unsent) -> Callable[[str], None]:
    def send(destination: str) -> None:
        asked.append(destination)
        raise error(destination)

    return send


def test_what_was_not_sent_goes_to_each_of_the_others_once() -> None:
    asked: list[str] = []
    with pytest.raises(Unsent):
        forwarding(["a", "b", "c"]).to_one(message(), refusing(asked))
    assert sorted(asked) == ["a", "b", "c"]


def test_what_may_have_been_sent_goes_nowhere_else() -> None:
    asked: list[str] = []
    with pytest.raises(ValueError, match=r"^[ab]$"):
        forwarding(["a", "b"]).to_one(message(), refusing(asked, ValueError))
    assert len(asked) == 1


def test_nothing_else_is_tried_at_the_end() -> None:
    """Of the tool, or of the message's time."""
    stop = Event()
    stop.set()
    for stopping, seconds_left in ((stop, 60.0), (Event(), 1.0)):
        asked: list[str] = []
        with pytest.raises(Unsent):
            forwarding(["a", "b"], stopping).to_one(message(seconds_left), refusing(asked))
        assert len(asked) == 1


def test_a_line_for_every_so_many_and_for_each_destination(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    to = forwarding(["a", "b"], status_every=100)
    for _ in range(75):
        to.to_all(lambda destination: None)
    lines = [record.getMessage() for record in caplog.records]
    times = r"99th: [\d.]+ms - 95th: [\d.]+ms - avg: [\d.]+ms"
    assert len(lines) == 1
    assert re.fullmatch(rf"\[aggregate\]: finished 100 - {times}", lines[0])
    assert to.count == 150


def test_no_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    to = forwarding(["a"])
    to.to_one(message(), lambda destination: None)
    assert (caplog.records, to.count) == ([], 1)
