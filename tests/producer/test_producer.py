"""A Producer from its first publish to its close."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from gnsq_like import Producer
from gnsq_like.errors import InvalidOption, NotRunning, NotSent, OutcomeUnknown
from tests.support.daemons import wait_for
from tests.support.nsqds import answer_one, beat, identified, nowhere
from tests.support.peer import OK, PATIENCE, ScriptedNsqd
from tests.support.scripts import run_script

Make = Callable[..., Producer]


def test_a_misspelt_attribute_is_refused(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address)
    with pytest.raises(AttributeError, match="'timeout'"):
        producer.timeout = 5  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'option'"):
        producer.option = 5  # type: ignore[attr-defined]


def test_close_waits_for_answers(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address)
    results = [producer.publish_async("t", b"x") for _ in range(3)]
    closing = gevent.spawn(producer.close)
    peer = identified(nsqd)
    for _ in range(2):
        answer_one(peer, b"x")
    assert (peer.line(), peer.body()) == (b"PUB t", b"x")
    beat(peer)
    assert not closing.ready()
    with pytest.raises(NotRunning):
        producer.publish("t", b"y")
    peer.send(OK)
    assert closing.get(timeout=PATIENCE) is True
    for result in results:
        result.get(timeout=PATIENCE)
    assert peer.ended()
    assert producer.close() is True
    stats = producer.stats()
    assert (stats["state"], stats["confirmed"], stats["waiting"]) == ("closed", 3, 0)


def test_a_timeout_of_close_that_is_no_seconds_is_refused(make: Make) -> None:
    producer = make(nowhere())
    with pytest.raises(InvalidOption, match="timeout='x': it must be a number of seconds"):
        producer.close("x")  # type: ignore[arg-type]
    assert producer.stats()["state"] == "new"


def test_close_gives_up_at_its_time(make: Make, nsqd: ScriptedNsqd) -> None:
    producer = make(nsqd.address, max_pending_count=1)
    sent = producer.publish_async("t", b"sent")
    queued = gevent.spawn(producer.publish, "t", b"queued")
    peer = identified(nsqd)
    assert peer.line() == b"PUB t"
    assert producer.close(timeout=0.05) is False
    with pytest.raises(OutcomeUnknown):
        sent.get(timeout=PATIENCE)
    with pytest.raises(NotSent):
        queued.get(timeout=PATIENCE)


def test_failures_are_logged_and_reported(
    make: Make, nsqd: ScriptedNsqd, other: ScriptedNsqd, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[tuple[Any, ...]] = []
    caplog.set_level(logging.INFO)
    away = nowhere()
    producer = make(
        away,
        other.address,
        on_connect=lambda address: heard.append(("connect", address)),
        on_disconnect=lambda address, error: heard.append(("disconnect", address, error)),
        on_error=lambda address, error: heard.append(("error", address, type(error).__name__)),
    )
    producer.publish("t", b"x")
    wait_for(lambda: ("error", away, "ConnectionFailed") in heard)
    producer.close()
    assert ("connect", other.address) in heard
    assert ("disconnect", other.address, None) in heard
    assert "the next try is in" in caplog.text


@pytest.mark.parametrize("patched", ["patched", "plain"])
@pytest.mark.parametrize("method", ["publish", "publish_async"])
def test_a_publish_while_the_interpreter_is_finalized_fails_as_others_do(method: str, patched: str) -> None:
    """For instance in a ``__del__``, where greenlet answers nothing any more."""
    lines = run_script(
        """
        import sys
        if sys.argv[2] == "patched":
            from gevent import monkey
            monkey.patch_all()
        import builtins
        from gnsq_like import Producer
        from gnsq_like.errors import NotRunning

        class Last:
            producer = Producer("127.0.0.1:1", timeout=1)
            publish = getattr(producer, sys.argv[1])

            def __del__(self, NotRunning=NotRunning):
                try:
                    self.publish("t", b"x")
                except NotRunning as exc:
                    print(exc, flush=True)

        builtins.kept = Last()
        """,
        method,
        patched,
    )
    assert lines == ["the interpreter is exiting"]
