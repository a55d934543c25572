"""A turn ends after some milliseconds of work, not before."""

from time import monotonic

import gevent

from gnsq_like.server.shared.turn import TURN_TIME, Turn


def work_until_over(turn: Turn) -> None:
    start = monotonic()
    while monotonic() < start + TURN_TIME:
        pass
    assert turn.is_over


def test_others_run_when_the_turn_is_over() -> None:
    ran: list[int] = []
    turn = Turn()
    gevent.spawn(ran.append, 1)
    work_until_over(turn)
    assert ran == []
    turn.share()
    assert ran == [1]
