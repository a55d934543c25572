"""A plan under construction."""

from __future__ import annotations

from typing import Any

from gnsq_like.policy.board import FOREVER, UNLIMITED, Board
from gnsq_like.policy.charge import Charge, Settings

SETTINGS = Settings()


def make(*charges: Charge[Any], max_in_flight: int = 10) -> Board[Any]:
    return Board(charges, max_in_flight, 0.0, SETTINGS, lambda: 0.0, UNLIMITED)


def test_room_and_limit_are_what_the_charges_leave() -> None:
    held, gone = Charge("held", -1.0, SETTINGS), Charge("gone", -1.0, SETTINGS)
    held.rdy, held.in_flight, held.reserved = 3, 2, 1
    gone.in_flight = 2
    gone.close(-1.0)
    board = make(held, gone)
    assert (board.limit, board.room) == (7, 4)


def test_only_changes_are_in_the_plan_decreases_first() -> None:
    charges = [Charge(name, -1.0, SETTINGS) for name in "abc"]
    charges[1].rdy = charges[2].rdy = 2
    board = make(*charges)
    board.grant(charges[0], 4)
    board.grant(charges[1], 2)
    board.grant(charges[2], 0)
    assert board.finish().changes == [("c", 0), ("a", 4)]


def test_room_that_is_lacking_wakes_the_plan_when_what_was_lowered_has_settled() -> None:
    charge = Charge("a", -1.0, SETTINGS)
    charge.rdy = 10
    board = make(charge)
    board.grant(charge, 5)
    board.wait()
    made = board.finish()
    assert (made.next_at, made.grows) == (SETTINGS.settle_minimum, False)
    board.is_short = True
    assert board.finish().grows


def test_the_plan_wakes_at_the_first_of_all_times_that_are_ahead() -> None:
    board = make()
    for at in (-1.0, 0.0, FOREVER):
        board.wake(at)
        assert board.finish().next_at is None
    for at in (0.3, 0.2, 0.4):
        board.wake(at)
    assert board.finish().next_at == 0.2
