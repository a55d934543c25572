"""The result of publish_async: its callbacks. Waiting for it is tested in test_producer.py and test_threads.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gnsq_like import Producer
from gnsq_like.errors import PublishRefused
from gnsq_like.producer.result import PublishResult
from tests.support.daemons import wait_for
from tests.support.peer import ScriptedNsqd

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
