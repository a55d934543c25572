"""Where nothing may wait, a signal handler included."""

from __future__ import annotations

import gevent
from gevent.event import AsyncResult

from gnsq_like.runtime.inner_greenlet import InnerGreenlet, may_wait_here


def test_waiting_is_for_other_greenlets() -> None:
    assert may_wait_here()
    assert gevent.spawn(may_wait_here).get() is True
    assert InnerGreenlet.spawn(may_wait_here).get() is False
    in_the_hub: AsyncResult[bool] = AsyncResult()
    gevent.get_hub().loop.run_callback(lambda: in_the_hub.set(may_wait_here()))
    assert in_the_hub.get() is False
