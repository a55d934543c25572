"""The result of ``publish_async``, waited for in the thread of the connections and in others."""

from __future__ import annotations

from collections.abc import Callable

import gevent
import pytest
from gevent.threadpool import ThreadPool

from gnsq_like import Producer
from gnsq_like.errors import NotSent
from tests.support.nsqds import answer_one, identified, nowhere
from tests.support.peer import OK, PATIENCE, ScriptedNsqd


def test_it_is_ready_once_nsqd_has_answered(make: Callable[..., Producer], nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address)
    result = producer.publish_async("t", b"x")
    peer = identified(nsqd)
    assert (peer.line(), peer.body()) == (b"PUB t", b"x")
    with pytest.raises(gevent.Timeout):
        result.get(timeout=0.01)
    result.wait(timeout=0.01)
    assert not result.ready()
    peer.send(OK)
    result.wait(timeout=PATIENCE)
    assert result.ready()
    assert result.get(timeout=PATIENCE) is None


def test_any_thread_may_wait_for_it(make: Callable[..., Producer], nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address)
    result = producer.publish_async("t", b"x")
    thread = ThreadPool(1)
    waiting = thread.spawn(result.get, timeout=PATIENCE)
    answer_one(identified(nsqd), b"x")
    assert waiting.get(timeout=PATIENCE) is None
    thread.kill()


def test_it_has_the_publishs_error(make: Callable[..., Producer]) -> None:
    result = make(nowhere()).publish_async("t", b"x", timeout=0.05)
    with pytest.raises(NotSent):
        result.get(timeout=PATIENCE)
    assert isinstance(result.exception, NotSent)
