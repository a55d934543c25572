"""The answer to one command, and those who wait for it."""

from __future__ import annotations

import gevent
import pytest
from gevent.event import Event

from gnsq_like.runtime.dispatcher import flush_log
from gnsq_like.runtime.pending_reply import PendingReply
from tests.support.hub import settle
from tests.support.peer import PATIENCE


def test_all_who_wait_get_the_answer() -> None:
    reply = PendingReply()
    waiting = [gevent.spawn(reply.wait, PATIENCE) for _ in range(3)]
    settle()
    reply.settle()
    assert [greenlet.get(timeout=PATIENCE) for greenlet in waiting] == [True] * 3
    assert reply.wait()


def test_the_first_settlement_counts() -> None:
    reply = PendingReply()
    reply.settle(ValueError("first"))
    reply.settle()
    assert reply.wait()
    assert str(reply.error) == "first"


def test_a_wait_ends_at_its_time() -> None:
    reply = PendingReply()
    assert not reply.wait(0)
    assert not reply.wait(0.001)


def test_a_waiter_that_was_killed_changes_nothing() -> None:
    reply = PendingReply()
    killed = gevent.spawn(reply.wait)
    other = gevent.spawn(reply.wait, PATIENCE)
    settle()
    killed.kill()
    reply.settle()
    assert other.get(timeout=PATIENCE) is True


def test_a_waiter_that_timed_out_is_not_woken_elsewhere() -> None:
    """A late settlement must not cut short what the greenlet waits for by then."""
    reply = PendingReply()
    other = PendingReply()

    def work() -> bool:
        with gevent.Timeout(0.001, False):
            reply.wait()
        timed_out.set()
        return other.wait(PATIENCE)

    timed_out = Event()
    greenlet = gevent.spawn(work)
    assert timed_out.wait(PATIENCE)
    reply.settle()
    settle()
    assert not greenlet.ready()
    other.settle()
    assert greenlet.get(timeout=PATIENCE) is True


def test_settling_never_switches() -> None:
    reply = PendingReply()
    order: list[str] = []

    def wait() -> None:
        reply.wait()
        order.append("waiter")

    greenlet = gevent.spawn(wait)
    settle()
    reply.settle()
    order.append("settler")
    greenlet.join()
    assert order == ["settler", "waiter"]


def test_a_link_is_called_once_even_when_it_comes_late() -> None:
    reply = PendingReply()
    calls: list[str] = []
    reply.link(lambda: calls.append("early"))
    reply.settle()
    reply.link(lambda: calls.append("late"))
    assert calls == ["early", "late"]


def test_a_wait_that_ended_early_leaves_nothing_behind() -> None:
    reply = PendingReply()
    calls: list[str] = []
    reply.link(lambda: calls.append("other"))
    for _ in range(3):
        assert not reply.wait(0.001)
    for timeout in (None, 10):
        killed = gevent.spawn(reply.wait, timeout)
        settle()
        killed.kill()
    assert reply._links is not None
    assert len(reply._links) == 1
    reply.settle()
    assert calls == ["other"]


def test_a_wait_that_ends_in_the_round_of_the_settlement() -> None:
    reply = PendingReply()
    killed = gevent.spawn(reply.wait)
    settle()
    killed.kill(block=False)
    reply.settle()
    killed.join()
    assert reply.wait()


def test_a_link_that_raises_is_logged_and_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    reply = PendingReply()
    calls: list[str] = []

    def fail() -> None:
        raise OSError("no descriptors")

    reply.link(fail)
    reply.link(lambda: calls.append("the next one"))
    reply.settle()
    assert calls == ["the next one"]
    flush_log(60)
    assert "called with an outcome, failed" in caplog.text
