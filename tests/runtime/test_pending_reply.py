import gevent
import pytest

from gnsq_like.runtime.pending_reply import PendingReply


def test_all_who_wait_get_the_answer():
    reply = PendingReply()
    waiting = [gevent.spawn(reply.wait, 10) for _ in range(3)]
    gevent.sleep(0)
    reply.settle()
    assert [greenlet.get(timeout=10) for greenlet in waiting] == [True] * 3
    assert reply.wait()


def test_the_first_settlement_counts():
    reply = PendingReply()
    reply.settle(ValueError("first"))
    reply.settle()
    with pytest.raises(ValueError, match="first"):
        reply.get()


def test_a_wait_ends_at_its_time():
    reply = PendingReply()
    assert not reply.wait(0)
    assert not reply.wait(0.001)
    with pytest.raises(gevent.Timeout):
        reply.get(0.001)


def test_a_waiter_that_was_killed_changes_nothing():
    reply = PendingReply()
    killed = gevent.spawn(reply.wait)
    other = gevent.spawn(reply.wait, 10)
    gevent.sleep(0)
    killed.kill()
    reply.settle()
    assert other.get(timeout=10) is True


def test_a_waiter_that_timed_out_is_not_woken_elsewhere():
    """A late settlement must not cut short what the greenlet waits for by then."""
    reply = PendingReply()
    other = PendingReply()

    def work():
        with gevent.Timeout(0.001, False):
            reply.wait()
        return other.wait(10)

    greenlet = gevent.spawn(work)
    gevent.sleep(0.01)
    reply.settle()
    gevent.sleep(0)
    assert not greenlet.ready()
    other.settle()
    assert greenlet.get(timeout=10) is True


def test_settling_never_switches():
    reply = PendingReply()
    order = []
    greenlet = gevent.spawn(lambda: (reply.wait(), order.append("waiter")))
    gevent.sleep(0)
    reply.settle()
    order.append("settler")
    greenlet.join()
    assert order == ["settler", "waiter"]


def test_a_link_is_called_once_even_when_it_comes_late():
    reply = PendingReply()
    calls = []
    reply.link(lambda: calls.append("early"))
    reply.settle()
    reply.link(lambda: calls.append("late"))
    assert calls == ["early", "late"]


def test_a_wait_that_ended_early_leaves_nothing_behind():
    reply = PendingReply()
    calls = []
    reply.link(lambda: calls.append("other"))
    for _ in range(3):
        assert not reply.wait(0.001)
    for timeout in (None, 10):
        killed = gevent.spawn(reply.wait, timeout)
        gevent.sleep(0)
        killed.kill()
    assert len(reply._links) == 1
    reply.settle()
    assert calls == ["other"]


def test_a_wait_that_ends_in_the_round_of_the_settlement():
    reply = PendingReply()
    killed = gevent.spawn(reply.wait)
    gevent.sleep(0)
    killed.kill(block=False)
    reply.settle()
    killed.join()
    assert reply.wait()
