"""What a connection costs, and its round trip."""

from __future__ import annotations

from gnsq_like.policy.charge import KEPT, SETTLE, SURE, Charge, RoundTrip


def held(rdy: int, in_flight: int) -> Charge:
    """A charge with so much RDY, the share, at time 0, and so many messages in flight."""
    charge = Charge(0.001, 2500)
    charge.share = rdy
    charge.sent(rdy, 0.0, SETTLE)
    if in_flight:
        charge.received(in_flight, 0.001, 0.0)
    return charge


def test_a_lowered_rdy_costs_what_nsqd_may_have_sent_before():
    charge = held(10, 4)
    charge.share = 2
    charge.sent(2, 1.0, SETTLE)
    assert (charge.coming, charge.cost, charge.settled_at) == (6, 10, 1.0 + SETTLE)
    charge.received(5, 1.001, 0.0)
    assert (charge.coming, charge.cost) == (1, 10)
    charge.answered(3, 1.002)
    assert charge.cost == 7


def test_a_lost_connection_costs_its_messages_until_they_are_answered():
    charge = held(10, 4)
    charge.lost()
    assert (charge.cost, charge.most) == (4, 0)
    charge.answered(4, 1.0)
    assert charge.cost == 0


def test_slow_messages_are_no_part_of_the_share_and_counted_by_nsqd():
    charge = held(10, 10)
    charge.slow, charge.share = 3, 7
    assert (charge.cost, charge.most, charge.in_time, charge.held) == (10, 10, 7, 10)
    charge.slow, charge.overdue = 1, 2
    assert (charge.cost, charge.most, charge.in_time, charge.held) == (10, 8, 7, 8)


def test_a_message_beyond_rdy_shows_a_longer_round_trip():
    charge = held(10, 0)
    charge.sent(0, 1.0, SETTLE)
    charge.received(1, 1.08, 0.02)
    assert round(charge.round_trip.seconds, 6) == 0.06


def test_a_message_that_fills_a_connection_shows_a_shorter_one():
    charge = held(2, 1)
    charge.round_trip.is_at_least(0.5, 1.0)
    charge.received(1, 2.0, 0.0)
    assert charge.round_trip.seconds == 0.5, "its place has been open for longer"
    charge.answered(1, 3.0)
    charge.received(1, 3.004, 0.0)
    assert round(charge.round_trip.seconds, 6) == 0.004


def test_while_more_may_be_coming_a_full_connection_shows_nothing():
    charge = held(10, 0)
    charge.round_trip.is_at_least(0.5, 1.0)
    charge.sent(2, 2.0, 1.0)
    charge.received(2, 2.001, 0.0)
    assert charge.round_trip.seconds == 0.5


def test_a_message_soon_after_rdy_was_lowered_shows_no_shorter_round_trip():
    charge = held(1, 0)
    charge.round_trip.is_at_least(0.02, 1.0)
    charge.sent(0, 10.0, 0.04)
    charge.coming = 0  # as the plan sets it after the settling time
    charge.sent(1, 10.045, 0.04)
    charge.received(1, 10.05, 0.0)
    assert charge.round_trip.seconds == 0.02, "it may have been sent before the RDY 0"
    charge.answered(1, 11.045)
    charge.received(1, 11.05, 0.0)
    assert round(charge.round_trip.seconds, 6) == 0.005


def test_a_longer_round_trip_is_forgotten_when_nothing_agrees_with_it():
    trip = RoundTrip(0.001)
    trip.is_at_least(0.05, 10.0)
    trip.is_at_most(0.08, 40.0)
    trip.forget(10.0 + KEPT)
    assert trip.seconds == 0.05
    trip.forget(40.0 + KEPT)
    assert trip.seconds == 0.001


def test_a_longer_round_trip_is_sure_when_several_messages_agree():
    trip = RoundTrip(0.001)
    assert not trip.doubts
    trip.is_at_least(0.05, 10.0)
    for number in range(SURE):
        assert trip.doubts
        trip.is_at_most(0.06, 10.0 + number)
    assert not trip.doubts
    trip.is_at_most(5.0, 20.0)
    assert not trip.doubts
