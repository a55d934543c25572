"""What one connection can cost, on any course of events: never less than what is in flight or may still come."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.charge import Charge, Settings

SETTINGS = Settings()
#: The longest that a lowered RDY takes to hold, with the round trip that these tests have.
SETTLED = SETTINGS.settling(0.01)


def made(**more: float) -> Charge[Any]:
    return Charge("a", 0.0, SETTINGS, round_trip=0.01, **more)  # type: ignore[arg-type]


def test_rdy_costs_what_it_allows_and_then_what_came_of_it() -> None:
    charge = made()
    assert charge.cost == 0
    charge.sent(5, 0.0)
    assert charge.cost == 5
    charge.received(3, 0.1)
    assert charge.cost == 5
    charge.answered(3, 0.2)
    assert (charge.in_flight, charge.cost) == (0, 5)


def test_the_cost_after_a_change_is_known_before_it() -> None:
    """Also with a handler that runs past its deadline, whose message nsqd does not count."""
    charge = made()
    charge.sent(5, 0.0)
    charge.received(1, 0.1)
    charge.reserve(1, 0.0)
    for rdy in (7, 3):
        expected = charge.cost_after(rdy)
        charge.sent(rdy, 1.0)
        assert charge.cost == expected == 8


def test_lowered_rdy_costs_what_may_be_under_way_until_it_holds() -> None:
    charge = made()
    charge.sent(5, 0.0)
    charge.received(2, 1.0)
    assert charge.cost_after(0) == 5
    charge.sent(0, 2.0)
    assert (charge.coming, charge.cost) == (3, 5)
    charge.received(1, 2.001)  # one of the three was
    assert (charge.coming, charge.cost) == (2, 5)
    charge.settle(2.0 + SETTLED, lambda _: False)
    assert charge.coming, "it waits in the socket"
    charge.settle(2.004 + SETTLED, lambda _: True)
    assert charge.coming, "not looked at again so soon"
    charge.settle(2.005 + SETTLED, lambda _: True)
    assert (charge.coming, charge.cost) == (0, 3)


def test_where_nothing_is_under_way_lowered_rdy_holds_at_once() -> None:
    charge = made()
    charge.sent(3, 0.0)
    charge.received(3, 1.0)
    charge.sent(1, 2.0)
    assert charge.coming == 0
    charge = made()
    charge.sent(3, 0.0)
    charge.sent(0, 1.0)
    charge.received(3, 1.001)
    assert charge.coming == 0


def test_a_handler_past_its_deadline_is_charged_beside_what_nsqd_may_send() -> None:
    charge = made()
    charge.sent(2, 0.0)
    charge.received(2, 0.1)
    charge.reserve(1, 0.1)
    assert (charge.in_time, charge.rdy, charge.cost) == (1, 1, 2), "it leaves the share"
    charge.sent(2, 0.2)
    assert charge.cost == 3
    assert not charge.answered(1, 0.3), "nsqd sends another one in its place"
    assert charge.answered(1, 0.3, reserved=1), "that frees something"
    assert (charge.reserved, charge.cost) == (0, 2)


def test_a_slow_message_leaves_the_share_and_the_rdy_sent_counts_it() -> None:
    charge = made()
    charge.sent(5, 0.0)
    charge.received(3, 0.1)
    charge.reserve(2, 2.1, slow=2)
    assert (charge.rdy, charge.sent_rdy, charge.in_time) == (3, 5, 1), "nothing to send"
    assert charge.cost == 5
    charge.reserve(0, 59.0, slow=-1)
    assert charge.sent_rdy == 4, "nsqd will not count one of them any more"
    charge.answered(1, 60.0, reserved=1, slow=1)
    assert (charge.sent_rdy, charge.reserved) == (3, 1)


def test_the_rdy_sent_is_within_what_nsqd_allows_and_0_without_a_share() -> None:
    charge = Charge("a", 0.0, SETTINGS, max_rdy=5)
    charge.sent(5, 0.0)
    charge.received(5, 0.1)
    charge.reserve(2, 2.1, slow=2)
    charge.sent(5, 3.0)
    assert charge.sent_rdy == 5
    charge.reserve(3, 4.0, slow=3)
    charge.sent(0, 4.0)
    assert charge.sent_rdy == 0


def test_the_only_place_is_given_up_with_a_slow_message() -> None:
    charge = made()
    charge.sent(1, 0.0)
    charge.received(1, 0.1)
    charge.reserve(1, 2.1, slow=1)
    assert (charge.rdy, charge.sent_rdy, charge.waiting_since, charge.cost) == (0, 0, 2.1, 1)


def test_what_asks_for_another_plan() -> None:
    charge = made()
    charge.sent(3, 0.0)
    assert charge.received(1, 0.1), "the first of a turn"
    assert not charge.received(1, 0.2)
    charge.reserve(1, 0.2)
    charge.sent(3, 0.2)
    assert not charge.received(1, 0.3), "nsqd no longer counts one of them"
    assert charge.received(1, 0.3), "all of its RDY is in flight"
    charge.answered(1, 0.3, reserved=1)
    charge.answered(1, 0.4)
    assert not charge.received(1, 0.5), "again, soon after"
    assert charge.received(1, 0.6), "more than its RDY"
    assert charge.answered(1, 0.4)
    assert not charge.answered(1, 0.5)
    assert charge.received(1, 0.5 + SETTINGS.low_rdy_idle_timeout), "the first after a long silence"


def test_a_closing_connection_costs_what_it_holds_and_a_lost_one_waits_for_nothing() -> None:
    charge = made()
    charge.sent(5, 0.0)
    charge.received(2, 0.1)
    charge.close(0.2)
    assert charge.closing
    assert charge.cost == 5
    charge.lost(0.2)
    assert charge.cost == 2
    charge.answered(2, 0.3)
    assert charge.cost == 0


def test_a_turn_begins_with_rdy_and_with_its_return_to_one() -> None:
    charge = made()
    assert charge.is_fresh(0.0)
    charge.sent(4, 1.0)
    assert charge.turn_at == 1.0
    assert charge.is_fresh(1.0), "its first RDY may still bring something"
    assert not charge.is_fresh(1.0 + SETTLED)
    charge.received(3, 2.0)
    charge.sent(2, 3.0)
    assert charge.turn_at == 1.0
    charge.sent(1, 4.0)
    assert charge.turn_at == 4.0
    charge.sent(0, 5.0)
    assert charge.waiting_since == 5.0


def test_the_times() -> None:
    assert [SETTINGS.settling(each) for each in (0.0, 0.0025, 1.0)] == [0.005, 0.005, 2.0]
    assert [SETTINGS.quick(each) for each in (0.0, 0.0625, 1.0)] == [0.25, 0.25, 4.0]
    assert Settings(low_rdy_idle_timeout=0.125).quick(0.0) == 0.125
    assert [SETTINGS.slice(0.0, crowd) for crowd in (1, 10, 20, 1000)] == [1.0, 1.0, 0.5, 0.1]
    assert [SETTINGS.slice(each, 20) for each in (0.01, 0.0625, 1.0)] == [0.5, 0.625, 10.0]
    assert Settings(low_rdy_timeout=0.25).slice(0.0, 2) == 0.25
    assert [SETTINGS.silent(each) for each in (0.0, 0.016, 1.0)] == [0.025, 0.025, 1.5]


def test_what_is_exposed_to_come() -> None:
    charge = made()
    charge.sent(5, 0.0)
    charge.received(3, 1.0)
    assert [charge.exposed(answers) for answers in (0, 1, 3)] == [2, 3, 5]
    charge.sent(1, 2.0)
    assert (charge.exposed(), charge.exposed(3)) == (2, 2)
    charge.settle(2.0 + SETTLED, lambda _: True)
    assert (charge.exposed(), charge.exposed(3)) == (0, 1)


def test_time_in_which_the_process_stood_still_is_not_in_the_future() -> None:
    charge = made()
    charge.excuse(5.0, 10.0)
    assert charge.idle_since == 0.0, "without RDY there is nothing to excuse"
    charge.sent(2, 10.0)
    charge.excuse(5.0, 12.0)
    assert (charge.idle_since, charge.turn_at) == (5.0, 12.0)
    charge.excuse(100.0, 13.0)
    assert (charge.idle_since, charge.turn_at) == (13.0, 13.0)


steps = st.lists(
    st.tuples(st.sampled_from(["sent", "received", "answered", "reserve"]), st.integers(0, 10), st.floats(0, 0.05)),
    max_size=40,
)


@given(steps)
def test_it_is_never_charged_less_than_it_holds(steps: list[tuple[str, int, float]]) -> None:
    charge = made()
    now = 0.0
    for event, number, passed in steps:
        now += passed
        charge.settle(now, lambda _: True)
        before = charge.cost
        if event == "sent":
            expected = charge.cost_after(number)
            charge.sent(number, now)
            assert charge.cost == expected
        elif event == "received":
            # What a peer that keeps to RDY can send just now.
            number = min(number, max(charge.rdy - charge.in_time, charge.coming_after(charge.rdy)))
            charge.received(number, now)
            assert charge.cost == before, "what comes was charged before it came"
        elif event == "answered":
            number = min(number, charge.in_time)
            charge.answered(number, now)
            assert charge.cost <= before
        else:
            charge.reserve(min(number, charge.in_time), now, slow=min(number, charge.in_time))
            assert charge.cost <= before, "nothing is sent for it"
        assert charge.cost >= charge.in_flight
        assert charge.cost >= charge.firm(charge.rdy)
        assert 0 <= charge.reserved <= charge.in_flight
