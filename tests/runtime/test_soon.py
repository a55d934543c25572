"""A call in the hub's next iteration."""

from __future__ import annotations

import gevent

from gnsq_like.runtime.soon import Soon
from tests.support.hub import settle


def test_it_is_made_once_however_often_it_is_asked_for() -> None:
    made: list[bool] = []
    soon = Soon(gevent.get_hub().loop, lambda: made.append(soon.due))
    assert not soon.due
    soon()
    soon()
    assert soon.due
    assert not made
    settle()
    assert made == [False], "while it is made, it can be asked for again"
    soon()
    settle()
    assert made == [False, False]
