"""Rates between two answers of nsqds."""

from gnsq_like.tools.counting import renew_rates
from gnsq_like.tools.figures import ChannelFigures


def count(messages: int, depth: int) -> ChannelFigures:
    return ChannelFigures("a:1", "", "clicks", "archive", message_count=messages, depth=depth)


def test_rates_are_since_each_nsqds_own_last_answer() -> None:
    last: dict[str, tuple[float, ChannelFigures]] = {}
    assert renew_rates(last, 0.0, {"a:1": count(100, 10), "b:1": count(7, 7)}) == (None, None)
    # 20 came to a in two seconds, of which 5 are left; b does not answer.
    assert renew_rates(last, 2.0, {"a:1": count(120, 15)}) == (10.0, 7.5)
    # Nothing at a; b has given 4 messages of its depth in four seconds.
    assert renew_rates(last, 4.0, {"a:1": count(120, 15), "b:1": count(7, 3)}) == (0.0, 1.0)


def test_an_nsqd_that_counts_from_0_again_has_no_rate_once() -> None:
    last = {"a:1": (0.0, count(100, 10))}
    assert renew_rates(last, 1.0, {"a:1": count(2, 2)}) == (None, None)
    assert renew_rates(last, 2.0, {"a:1": count(3, 2)}) == (1.0, 1.0)
