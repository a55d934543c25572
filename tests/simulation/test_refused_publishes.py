"""Publishes that nsqd refuses, each of which costs their connection, delay no others."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import gevent
import pytest

from gnsq_like import Producer
from gnsq_like.errors import NotSent, NsqdError, NSQError, PublishRefused
from tests.simulation import Cluster, simulated

#: Virtual seconds that a valid publish may take longer because of those that are refused.
_DELAY = 0.3
#: A publish that this nsqd refuses: (body, defer).
_INVALID = {"defer": (b"x", 3600.0), "size": (b"x" * 200, None), "deferred size": (b"x" * 200, 1.0)}

small = simulated(max_msg_size=100, max_req_timeout=60, timeout=100)


class Callers:
    """Publish valid and invalid messages at the same time."""

    def __init__(self, cluster: Cluster, invalid: str, **options: Any) -> None:
        self._cluster = cluster
        self._invalid, self._defer = _INVALID[invalid]
        self.producer: Producer = cluster.producer(**options)
        self.producer.publish("t", b"first")
        self.refused = 0
        #: Seconds that each valid publish has taken.
        self.took: list[float] = []

    def refuse(self) -> None:
        """Publish one that is refused."""
        with pytest.raises(PublishRefused):
            self.producer.publish("t", self._invalid, defer=self._defer)
        self.refused += 1

    def publish(self) -> None:
        """Publish a valid one."""
        began = self._cluster.now
        self.producer.publish("t", b"valid")
        self.took.append(self._cluster.now - began)


@pytest.mark.parametrize("fail_fast", [False, True], ids=["patient", "fail_fast"])
@pytest.mark.parametrize("invalid", _INVALID)
@pytest.mark.parametrize("count", [1, 3, 20])
@small
def test_at_one_moment(cluster: Cluster, count: int, invalid: str, fail_fast: bool) -> None:
    callers = Callers(cluster, invalid, fail_fast=fail_fast)
    greenlets = [gevent.spawn(callers.refuse) for _ in range(count)] + [gevent.spawn(callers.publish)]
    gevent.joinall(greenlets, raise_error=True)
    assert callers.refused == count
    assert max(callers.took) < _DELAY


@pytest.mark.parametrize("fail_fast", [False, True], ids=["patient", "fail_fast"])
@pytest.mark.parametrize("percent", [1, 10])
@small
def test_some_of_many(cluster: Cluster, percent: int, fail_fast: bool) -> None:
    callers = Callers(cluster, "defer", fail_fast=fail_fast)
    random = Random(percent)
    greenlets = []
    for _ in range(500):
        caller = callers.refuse if random.random() < percent / 100 else callers.publish
        greenlets.append(gevent.spawn(caller))
        cluster.sleep(0.005)
    gevent.joinall(greenlets, raise_error=True)
    assert callers.refused > 0
    assert max(callers.took) < _DELAY


@pytest.mark.parametrize("refused", [False, True], ids=["alone", "beside refused ones"])
@simulated(data_path=True, mem_queue_size=0, max_req_timeout=60, timeout=100)
def test_a_full_disk_is_dialled_as_seldom_as_ever(cluster: Cluster, refused: bool) -> None:
    lost: list[str] = []

    def on_disconnect(_: str, error: NSQError | None) -> None:
        assert error is not None
        assert isinstance(error.__cause__, NsqdError)
        lost.append(error.__cause__.code)

    producer = cluster.producer(on_disconnect=on_disconnect)
    producer.publish("t", b"first")
    cluster.nsqds[0].disk.is_full = True  # type: ignore[union-attr]
    while cluster.now < 60.0:
        if refused:
            with suppress(NotSent), pytest.raises(PublishRefused):
                producer.publish("t", b"x", defer=3600.0, timeout=2.0)
        with pytest.raises(NotSent):
            producer.publish("t", b"x", timeout=2.0)
    # 34 in both, as when a refusal was a failure; 27 then beside refused ones.
    assert lost.count("E_PUB_FAILED") <= 37
    assert ("E_INVALID" in lost) is refused
