"""RDY that follows the traffic: what it promises event by event."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.policy.adaptive_rdy import LOOKS, AdaptiveRdy, is_worth_while
from tests.support.scale import examples


def burst_at(rate: float, share: int, *, deflated: bool) -> int:
    """The burst after a while in which nsqd always has messages, and sends so many a second."""
    controller, now = AdaptiveRdy(round_trip=0.0002, deflated=deflated), 0.0
    for _ in range(300):
        rdy = controller.target(0, share, now)
        if rdy != controller.rdy:
            controller.sent(rdy, now)
        count = min(controller.burst, controller.rdy)
        now += count / rate
        for _ in range(LOOKS):
            controller.quiet(now)
        controller.received(count, count, now)
    return controller.burst


def test_bursts_reach_the_share_in_a_flood_that_nsqd_sends_slowly() -> None:
    """With deflate a burst of 500 may take 20 ms. In lesser floods they stay at what comes in a millisecond or two."""
    assert burst_at(25000.0, 500, deflated=True) == 500
    assert burst_at(10000.0, 500, deflated=True) <= 32
    assert burst_at(60000.0, 500, deflated=False) == 500
    assert burst_at(25000.0, 500, deflated=False) <= 64


# --- event by event


def test_in_flight_and_one_while_messages_trickle() -> None:
    level, now = AdaptiveRdy(0.0002), 0.0
    level.sent(1, now)
    for in_flight in range(1, 8):
        now += 0.01
        level.received(1, in_flight, now)
        assert level.target(in_flight, 200, now) == in_flight + 1
        level.sent(in_flight + 1, now)
    for in_flight in range(7, -1, -1):
        assert level.target(in_flight, 200, now) == in_flight + 1
        level.sent(in_flight + 1, now)


def test_a_far_nsqd_gets_the_whole_share() -> None:
    assert not is_worth_while(0.05, 0.025)
    assert is_worth_while(0.05, 1.0)
    assert not is_worth_while(0.0, 0.0)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["message", "answer", "quiet", "share"]),
        st.integers(0, 300),
        st.sampled_from([0.0, 0.0001, 0.001, 0.01, 0.3]),
    ),
    max_size=60,
)


@examples(20)
@given(EVENTS, st.sampled_from([0.0, 0.0002, 0.003, 0.1]))
def test_never_above_the_share_and_never_without_room(events: list[tuple[str, int, float]], round_trip: float) -> None:
    level, now, in_flight, share = AdaptiveRdy(round_trip), 0.0, 0, 10
    for name, number, gap in events:
        now += gap
        if name == "message":
            number = min(number, max(0, level.rdy - in_flight))
            if number:
                in_flight += number
                level.received(number, in_flight, now)
        elif name == "answer":
            in_flight -= min(number, in_flight)
        elif name == "quiet":
            level.quiet(now)
        else:
            share = number
        rdy = level.target(in_flight, share, now)
        assert 0 <= rdy <= share
        assert rdy > in_flight or in_flight >= share, "else nsqd could send nothing"
        assert rdy <= max(in_flight + 2 * level.burst, 1) or rdy == share
        if rdy != level.rdy:
            level.sent(rdy, now)
        assert level.target(in_flight, share, now) == rdy, "asked twice"
        assert level.burst >= 1


def test_time_at_the_full_share_does_not_count_against_nsqd() -> None:
    level = AdaptiveRdy(0.0002)
    level.sent(4, 0.0)
    level.target(0, 4, 0.0)
    for n in range(1, 4):
        level.received(level.burst, 0, n * 0.0002)
        level.target(0, 4, n * 0.0002)
    assert level.burst == 4
    level.received(4, 4, 0.001)
    level.received(1, 4, 1.0)  # one was answered a moment ago, and nobody asked for the target
    assert level.burst == 4
