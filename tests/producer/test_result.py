"""The result of publish_async: waited for in the thread of the connections and in others, and its callbacks."""

from __future__ import annotations

from collections.abc import Callable

import gevent
import pytest
from gevent.threadpool import ThreadPool

from gnsq_like import Producer
from gnsq_like.errors import NotSent, PublishRefused
from gnsq_like.producer.result import PublishResult
from tests.support.daemons import wait_for
from tests.support.nsqds import answer_one, identified, nowhere
from tests.support.peer import OK, PATIENCE, ScriptedNsqd

Make = Callable[..., Producer]


@pytest.mark.parametrize("answer", [b"\0\0\0\6\0\0\0\0OK", b"\0\0\0\x0f\0\0\0\1E_BAD_TOPIC"], ids=["OK", "refused"])
def test_callbacks_get_the_outcome_though_nobody_waits(make: Make, nsqd: ScriptedNsqd, answer: bytes) -> None:
    outcomes: list[tuple[str, Exception | None]] = []
    result = make(nsqd.address).publish_async("t", b"x")
    assert isinstance(result, PublishResult)
    result.add_done_callback(lambda error: outcomes.append(("first", error)))
    peer = nsqd.accept()
    peer.identify(version="1.3.0")
    peer.line()
    peer.body()
    assert outcomes == []
    peer.send(answer)
    wait_for(lambda: outcomes, "the callback")
    result.add_done_callback(lambda error: outcomes.append(("late", error)))
    wait_for(lambda: len(outcomes) == 2, "the late one")
    assert [name for name, _ in outcomes] == ["first", "late"]
    for _, error in outcomes:
        assert isinstance(error, PublishRefused) if b"E_" in answer else error is None


def test_it_is_ready_once_nsqd_has_answered(make: Make, nsqd: ScriptedNsqd) -> None:
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


def test_any_thread_may_wait_for_it(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address)
    result = producer.publish_async("t", b"x")
    thread = ThreadPool(1)
    waiting = thread.spawn(result.get, timeout=PATIENCE)
    answer_one(identified(nsqd), b"x")
    assert waiting.get(timeout=PATIENCE) is None
    thread.kill()


def test_it_has_the_publishs_error(make: Make) -> None:
    result = make(nowhere()).publish_async("t", b"x", timeout=0.05)
    with pytest.raises(NotSent):
        result.get(timeout=PATIENCE)
    assert isinstance(result.exception, NotSent)
