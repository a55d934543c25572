"""Topics into other nsqds, of which one is dead."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import gevent
import pytest
from gevent.event import Event

from gnsq_like.tools.sources import Source
from gnsq_like.tools.to_nsq import copy_topics
from tests.support.daemons import Running, running_nsqd, wait_for
from tests.support.peer import full_listener
from tests.support.tools import NOBODY, counts, fill, numbered

#: Of a publish, in seconds: longer than a test may take.
FOR_EVER = 3600.0


@contextmanager
def copying(source: Running, destinations: list[str], **options: Any) -> Iterator[Callable[[], int]]:
    """Copies a topic; what is yielded stops that, and returns the number of messages."""
    stop = Event()
    reading = Source((source.tcp_address,), options={"max_in_flight": 10})
    publishing = {"timeout": FOR_EVER, "connect_timeout": FOR_EVER, **options}
    run = gevent.spawn(copy_topics, reading, ["t"], destinations, stop=stop, producer_options=publishing)

    def end() -> int:
        stop.set()
        return int(run.get())

    try:
        yield end
    finally:
        run.kill()


def test_one_that_refuses_costs_nothing() -> None:
    with running_nsqd() as source, running_nsqd() as there:
        fill(source, "t", numbered(100), "to-nsq")
        with copying(source, [NOBODY, there.tcp_address]) as end:
            wait_for(lambda: counts(source, "t", "to-nsq")["finished"] == 100)
            assert counts(source, "t", "to-nsq")["requeued"] == 0
            assert end() == 100


def test_one_that_does_not_answer_keeps_its_share_of_the_messages_in_flight_at_most() -> None:
    with running_nsqd() as source, running_nsqd() as there, ExitStack() as stack:
        fill(source, "t", numbered(100), "to-nsq")
        silent = stack.enter_context(full_listener())
        with copying(source, [silent, there.tcp_address]) as end:

            def held() -> int:
                """The messages in flight, once all others are finished; 0 before."""
                found = counts(source, "t", "to-nsq")
                return found["in_flight"] if found["finished"] + found["in_flight"] == 100 else 0

            # At most half of the ten: fewer if the other one never had five at a time.
            wait_for(lambda: 1 <= held() <= 5)
            stack.close()  # from now on, it refuses
            wait_for(lambda: counts(source, "t", "to-nsq")["finished"] == 100)
            assert end() == 100


@pytest.mark.parametrize("count", [1, 2])
def test_if_all_refuse_the_messages_go_back_and_the_end_waits_for_nothing(count: int) -> None:
    with running_nsqd() as source:
        fill(source, "t", numbered(10), "to-nsq")
        with copying(source, [NOBODY, "127.0.0.1:2"][:count]) as end:
            wait_for(lambda: counts(source, "t", "to-nsq")["requeued"] > 0)
            assert end() == 0
        assert counts(source, "t", "to-nsq")["in_flight"] == 0
