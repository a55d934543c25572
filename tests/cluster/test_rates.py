"""Rates between two answers of nsqds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_like.cluster.counting import renew_rates
from gnsq_like.cluster.figures import ChannelFigures


def count(messages: int, depth: int, **more: Any) -> ChannelFigures:
    return ChannelFigures("a:1", "", "clicks", "archive", message_count=messages, depth=depth, **more)


def test_rates_are_since_each_nsqds_own_last_answer() -> None:
    last: dict[str, tuple[float, ChannelFigures]] = {}
    assert renew_rates(last, 0.0, {"a:1": count(100, 10), "b:1": count(7, 7)}) == (None, None)
    # 20 came to a in two seconds, of which 5 are left; b does not answer.
    assert renew_rates(last, 2.0, {"a:1": count(120, 15)}) == (10.0, 7.5)
    # Nothing at a; b has given 4 messages of its depth in four seconds.
    assert renew_rates(last, 4.0, {"a:1": count(120, 15), "b:1": count(7, 3)}) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("messages", "depth", "more", "egress"),
    [
        (100, 20, {"timeout_count": 15}, 5.0),  # 15 came back, of which 5 were delivered again
        (100, 14, {"requeue_count": 4}, 0.0),
        (100, 10, {"requeue_count": 4, "deferred_count": 4}, 0.0),
        (103, 10, {"deferred_count": 3}, 0.0),  # published to be delivered later
        (100, 6, {}, 4.0),
        (100, 12, {}, 0.0),  # nsqd counts one after the other
    ],
)
def test_messages_that_return_are_delivered_again(
    messages: int, depth: int, more: dict[str, Any], egress: float
) -> None:
    last = {"a:1": (0.0, count(100, 10))}
    assert renew_rates(last, 1.0, {"a:1": count(messages, depth, **more)}) == (messages - 100.0, egress)


@given(
    st.lists(st.sampled_from(["publish", "defer", "due", "deliver", "finish", "requeue", "back later"]), max_size=50)
)
def test_egress_is_what_was_delivered(events: list[str]) -> None:
    messages, depth, deferred, in_flight, requeued, delivered = 0, 0, 0, 0, 0, 0
    last = {"a:1": (0.0, count(0, 0))}
    for event in events:
        if event == "publish":
            messages, depth = messages + 1, depth + 1
        elif event == "defer":
            messages, deferred = messages + 1, deferred + 1
        elif event == "due" and deferred:
            deferred, depth = deferred - 1, depth + 1
        elif event == "deliver" and depth:
            depth, in_flight, delivered = depth - 1, in_flight + 1, delivered + 1
        elif event == "finish" and in_flight:
            in_flight -= 1
        elif event == "requeue" and in_flight:
            in_flight, depth, requeued = in_flight - 1, depth + 1, requeued + 1
        elif event == "back later" and in_flight:
            in_flight, deferred, requeued = in_flight - 1, deferred + 1, requeued + 1
    now = count(messages, depth, deferred_count=deferred, requeue_count=requeued)
    assert renew_rates(last, 1.0, {"a:1": now}) == (messages, delivered)


def test_an_nsqd_that_counts_from_0_again_has_no_rate_once() -> None:
    last = {"a:1": (0.0, count(100, 10))}
    assert renew_rates(last, 1.0, {"a:1": count(2, 2)}) == (None, None)
    assert renew_rates(last, 2.0, {"a:1": count(3, 2)}) == (1.0, 1.0)
