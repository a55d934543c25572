"""Rates, the time to drain and problems of a channel, from the last minute.

Arithmetic on an older and a newer overview.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gnsq_like.admin.history.columns import Figures, Key
from gnsq_like.admin.upstream.overview import ChannelTotal, Overview, TopicTotal

#: Seconds without a finished message after which a growing channel is stuck.
STUCK_SECONDS = 50.0
#: Requeues and timeouts for each finished message from which messages are tried too often.
MANY_ATTEMPTS = 0.5
#: The beginning of the admin's own channels, which lists leave out.
PEEK_PREFIX = "admin-peek-"


def is_peek(channel: str) -> bool:
    """Whether a channel is one of the admin's own."""
    return channel.startswith(PEEK_PREFIX) and channel.endswith("#ephemeral")


@dataclass(frozen=True, slots=True)
class Trend:
    """A channel, or a topic with all of its channels, over the last minute."""

    #: Messages a second that arrive, and that are finished; nan while unknown.
    rate_in: float = math.nan
    rate_out: float = math.nan
    #: Seconds until no message waits at this pace; 0 for empty, inf if it does not fall, nan while unknown.
    drain: float = math.nan
    #: Requeues and timeouts a second.
    retries: float = math.nan
    is_stuck: bool = False
    many_attempts: bool = False


def trend_of(old: ChannelTotal | None, new: ChannelTotal, seconds: float) -> Trend:
    """The trend of a channel that had these figures ``seconds`` ago; None if it did not exist then."""
    if old is None or seconds <= 0:
        return Trend(drain=0.0 if not new.depth else math.nan)
    if new.messages < old.messages or new.requeued < old.requeued:  # an nsqd was restarted, or is missing
        return Trend(drain=0.0 if not new.depth else math.nan)
    came = new.messages - old.messages
    finished = max(0, came - (new.left - old.left))
    retried = new.requeued - old.requeued + max(0, new.timed_out - old.timed_out)
    return Trend(
        rate_in=came / seconds,
        rate_out=finished / seconds,
        drain=drain_seconds(new.depth, came / seconds, finished / seconds),
        retries=retried / seconds,
        is_stuck=seconds >= STUCK_SECONDS and new.depth > old.depth and not finished and not new.paused,
        many_attempts=retried > MANY_ATTEMPTS * max(finished, 1) and retried >= 5,
    )


def topic_trend(old: TopicTotal | None, new: TopicTotal, seconds: float) -> Trend:
    """The trend of a topic: its own rate, and the longest time to drain of its channels."""
    rate = math.nan
    if old is not None and seconds > 0 and new.messages >= old.messages:
        rate = (new.messages - old.messages) / seconds
    channels = [
        trend_of(old.channels.get(name) if old else None, channel, seconds)
        for name, channel in new.channels.items()
        if not is_peek(name)
    ]
    return Trend(
        rate_in=rate,
        rate_out=math.nan if not channels else total(each.rate_out for each in channels),
        drain=max((each.drain for each in channels), default=math.nan, key=_by_length),
        retries=total(each.retries for each in channels),
        is_stuck=any(each.is_stuck for each in channels),
        many_attempts=any(each.many_attempts for each in channels),
    )


def _by_length(drain: float) -> float:
    return -1.0 if math.isnan(drain) else drain


def total(values: Iterable[float]) -> float:
    """The sum of the values that are known; nan if none is."""
    known = [value for value in values if value == value]
    return sum(known) if known else math.nan


def drain_seconds(depth: int, rate_in: float, rate_out: float) -> float:
    """Seconds until no message waits; those in flight do not count."""
    if not depth:
        return 0.0
    return depth / (rate_out - rate_in) if rate_out > rate_in else math.inf


def states_of(channel: ChannelTotal, trend: Trend) -> list[str]:
    """Words for the unusual states of a channel, causes before their effects."""
    states = []
    if channel.paused:
        states.append("paused" if channel.paused == channel.nodes else "partly paused")
    if not channel.clients and channel.left:
        states.append("no consumers")
    if trend.is_stuck:
        states.append("stuck")
    if trend.many_attempts:
        states.append("many retries")
    return states


def topic_states(topic: TopicTotal, trends: dict[str, Trend]) -> list[str]:
    """The same for a topic, with the number of its channels in each state."""
    states: dict[str, int] = {}
    for name, channel in topic.channels.items():
        if not is_peek(name):
            for state in states_of(channel, trends.get(name, Trend())):
                states[state] = states.get(state, 0) + 1
    words = [state if count == 1 else f"{state} ×{count}" for state, count in states.items()]
    if topic.paused:
        words.insert(0, "topic paused" if topic.paused == topic.nodes else "topic partly paused")
    if topic.depth and not topic.channels:
        words.append("no channel")
    return words


def figures_of(old: Overview | None, new: Overview) -> dict[Key, Figures]:
    """The figures that the history keeps of an overview: rates since the previous one."""
    seconds = new.taken - old.taken if old is not None else 0.0
    found: dict[Key, Figures] = {}
    total = [0.0, 0.0, math.nan, math.nan, math.nan]
    for name, topic in new.topics.items():
        before = old.topics.get(name) if old is not None else None
        sums = [0, 0, 0, 0]
        for channel_name, channel in topic.channels.items():
            if is_peek(channel_name):
                continue
            then = before.channels.get(channel_name) if before is not None else None
            found[name, channel_name] = (
                channel.depth,
                channel.in_flight,
                _rate(then.messages if then else None, channel.messages, seconds),
                _rate(then.requeued if then else None, channel.requeued, seconds),
                _rate(then.timed_out if then else None, channel.timed_out, seconds),
            )
            sums = [
                sums[0] + channel.depth,
                sums[1] + channel.in_flight,
                sums[2] + channel.requeued,
                sums[3] + channel.timed_out,
            ]
        requeued = timed_out = None
        if before is not None:
            requeued = sum(each.requeued for each in before.channels.values())
            timed_out = sum(each.timed_out for each in before.channels.values())
        found[name,] = figures = (
            topic.depth + sums[0],
            sums[1],
            _rate(before.messages if before else None, topic.messages, seconds),
            _rate(requeued, sums[2], seconds),
            _rate(timed_out, sums[3], seconds),
        )
        for number, value in enumerate(figures):
            if value == value:
                total[number] = value if total[number] != total[number] else total[number] + value
    found[()] = (total[0], total[1], total[2], total[3], total[4])
    return found


def _rate(then: int | None, now: int, seconds: float) -> float:
    """A count's growth a second; nan if it is not known, as after a restart of nsqd."""
    if then is None or seconds <= 0 or now < then:
        return math.nan
    return (now - then) / seconds
