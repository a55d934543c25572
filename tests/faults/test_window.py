"""What the window takes for an excess, and what it excuses."""

from __future__ import annotations

import pytest

from tests.faults.window import RDY_ON_ITS_WAY, RDY_TAKES, TIMED_OUT, Window

MSG_TIMEOUT = 2.0
A, B = (0, 0), (1, 0)


@pytest.fixture
def window() -> Window:
    window = Window(MSG_TIMEOUT)
    window.limit("c", 2)
    for connection in (A, B):
        window.identified(connection, "c")
    return window


def arrive(window: Window, connection: tuple[int, int], *ids: int, at: float = 10.0) -> None:
    for number in ids:
        window.delivered(connection, b"%d" % number, at)
        window.received(connection, b"%d" % number, at)


def test_the_window_may_be_full(window: Window) -> None:
    window.granted(A, 1, 9.0)
    window.granted(B, 1, 9.0)
    arrive(window, A, 1)
    arrive(window, B, 2)
    window.answered(A, b"1")
    arrive(window, A, 3)
    window.client_closed(B)
    window.granted(A, 2, 10.0)
    arrive(window, A, 4)
    assert window.excesses == [] and not window.excused


def test_too_much_rdy_is_found(window: Window) -> None:
    window.granted(A, 2, 9.0)
    window.granted(B, 1, 9.0)
    arrive(window, A, 1, 2)
    arrive(window, B, 3)
    [excess] = window.excesses
    assert (excess.client, excess.in_flight, excess.max_in_flight, excess.excused) == ("c", 3, 2, 0)


def test_rdy_that_is_granted_again_before_messages_are_answered_is_found(window: Window) -> None:
    window.granted(A, 2, 9.0)
    arrive(window, A, 1, 2)
    window.granted(A, 0, 10.0)
    window.granted(B, 1, 10.0)
    arrive(window, B, 3, at=10.1)
    assert len(window.excesses) == 1


def test_a_message_that_was_sent_before_a_lower_rdy_arrived_is_excused(window: Window) -> None:
    window.granted(A, 1, 9.0)
    window.granted(A, 0, 10.0)
    window.granted(B, 2, 10.0)
    arrive(window, B, 2, 3, at=10.0)
    arrive(window, A, 1, at=10.0 + RDY_TAKES)
    assert window.excesses == []
    assert window.excused == {RDY_ON_ITS_WAY: 1}
    assert window.most_excused == 1


def test_but_not_later_unless_the_way_was_disturbed(window: Window) -> None:
    window.granted(A, 1, 9.0)
    window.granted(A, 0, 10.0)
    window.granted(B, 2, 10.0)
    arrive(window, B, 2, 3, at=10.0)
    window.disturbed_until[0] = 12.0
    arrive(window, A, 1, at=12.0)
    assert window.excused == {RDY_ON_ITS_WAY: 1}
    window.answered(A, b"1")
    arrive(window, A, 4, at=12.1 + RDY_TAKES)
    assert len(window.excesses) == 1


def test_a_message_that_was_held_up_on_its_way_counts_as_of_when_it_was_sent(window: Window) -> None:
    window.granted(A, 2, 9.0)
    for number in (1, 2):
        window.delivered(A, b"%d" % number, 9.5)
    window.granted(A, 1, 9.6)
    window.granted(A, 0, 9.7 + RDY_TAKES)
    for number in (1, 2):
        window.received(A, b"%d" % number, 15.0)
    assert window.beyond_rdy == []
    arrive(window, A, 3, at=15.0)
    assert window.beyond_rdy == [(0, 15.0, 0)]


def test_no_more_than_the_earlier_rdy_is_excused(window: Window) -> None:
    window.granted(A, 1, 9.0)
    window.granted(A, 0, 10.0)
    arrive(window, A, 1, at=10.1)
    assert window.beyond_rdy == []
    arrive(window, A, 2, at=10.1)
    assert window.beyond_rdy == [(0, 10.1, 0)]


def test_an_nsqd_that_sends_beyond_rdy_is_found_within_the_window(window: Window) -> None:
    window.granted(A, 1, 9.0)
    arrive(window, A, 1)
    assert window.beyond_rdy == []
    arrive(window, A, 2)
    assert window.beyond_rdy == [(0, 10.0, 1)]


def test_a_message_in_place_of_one_that_nsqd_has_taken_back_is_excused(window: Window) -> None:
    window.granted(A, 2, 9.0)
    arrive(window, A, 1, 2, at=10.0)
    arrive(window, A, 3, at=10.0 + MSG_TIMEOUT)
    assert window.excesses == []
    assert window.excused == {TIMED_OUT: 1}


def test_a_timeout_begins_when_nsqd_sends_the_message(window: Window) -> None:
    window.granted(A, 1, 9.0)
    window.limit("c", 1)
    window.delivered(A, b"1", 10.0)
    window.received(A, b"1", 10.0 + MSG_TIMEOUT)
    arrive(window, A, 2, at=10.0 + MSG_TIMEOUT)
    assert window.excesses == []


def test_a_message_that_comes_again_counts_once(window: Window) -> None:
    window.granted(A, 2, 9.0)
    arrive(window, A, 1, 2)
    arrive(window, A, 1, 2, at=20.0)
    assert window.excesses == [] and not window.excused


def test_clients_without_a_limit_are_not_counted(window: Window) -> None:
    window.identified((2, 0), "a Producer")
    arrive(window, (2, 0), 1, 2, 3)
    arrive(window, (3, 0), 1, 2, 3)
    assert window.excesses == []
