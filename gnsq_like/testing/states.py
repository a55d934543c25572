"""The counts of an nsqd at one moment, and their comparison with the counts that a test waits for.

No I/O here. The states of several nsqds can be added: a cluster's channel is the sum of its nsqds'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict, cast

from gnsq_like.cluster.figures import ChannelFigures, TopicFigures
from gnsq_like.errors import InvalidOption
from gnsq_like.wire.names import is_ephemeral

#: A number, or a function that accepts or rejects a number.
Wanted = int | Callable[[int], bool]


class WantedCounts(TypedDict, total=False):
    """Counts to wait for, by the names of :class:`ChannelState`."""

    depth: Wanted
    in_flight: Wanted
    deferred: Wanted
    left: Wanted
    clients: Wanted
    messages: Wanted
    requeued: Wanted
    timed_out: Wanted


@dataclass(frozen=True)
class ChannelState:
    """A channel's counts."""

    #: Messages that wait.
    depth: int = 0
    #: Messages that consumers have and have not answered.
    in_flight: int = 0
    #: Messages published or requeued with a delay that is not over.
    deferred: int = 0
    #: Connected consumers.
    clients: int = 0
    #: Since nsqd's start: messages that arrived, that consumers requeued, and that timed out.
    messages: int = 0
    requeued: int = 0
    timed_out: int = 0
    paused: bool = False

    @property
    def left(self) -> int:
        """Messages that are not finished: waiting, in flight or deferred."""
        return self.depth + self.in_flight + self.deferred

    def __add__(self, other: ChannelState) -> ChannelState:
        numbers = {name: getattr(self, name) + getattr(other, name) for name in CHANNEL_COUNTS if name != "left"}
        return ChannelState(**numbers, paused=self.paused or other.paused)


@dataclass(frozen=True)
class TopicState:
    """A topic's counts."""

    #: Messages that wait in the topic itself, because it has no channel or is paused.
    depth: int = 0
    #: Messages published since nsqd's start.
    messages: int = 0
    paused: bool = False
    channels: Mapping[str, ChannelState] = field(default_factory=dict)

    def __add__(self, other: TopicState) -> TopicState:
        channels = dict(self.channels)
        for name, state in other.channels.items():
            channels[name] = channels.get(name, ChannelState()) + state
        return TopicState(
            self.depth + other.depth, self.messages + other.messages, self.paused or other.paused, channels
        )


CHANNEL_COUNTS = tuple(WantedCounts.__annotations__)
TOPIC_COUNTS = ("depth", "messages")

Topics = Mapping[str, TopicState]


def states_of(topics: Iterable[TopicFigures]) -> Topics:
    """The states of an nsqd's topics."""
    return {topic.topic_name: _topic(topic) for topic in topics}


def _topic(topic: TopicFigures) -> TopicState:
    channels = {channel.channel_name: _channel(channel) for channel in topic.channels}
    return TopicState(topic.depth, topic.message_count, topic.paused, channels)


def _channel(channel: ChannelFigures) -> ChannelState:
    return ChannelState(
        depth=channel.depth,
        in_flight=channel.in_flight_count,
        deferred=channel.deferred_count,
        clients=channel.client_count,
        messages=channel.message_count,
        requeued=channel.requeue_count,
        timed_out=channel.timeout_count,
        paused=channel.paused,
    )


def add_up(all_topics: Iterable[Topics]) -> Topics:
    """The topics of several nsqds as if they were one."""
    total: dict[str, TopicState] = {}
    for topics in all_topics:
        for name, state in topics.items():
            total[name] = total[name] + state if name in total else state
    return total


def find(topics: Topics, topic: str, channel: str | None) -> TopicState | ChannelState | None:
    """The state of a channel, or of a topic if ``channel`` is None; None if it does not exist.

    nsqd drops an ephemeral topic or channel with its last consumer, so these count as empty and not as missing.
    """
    found = topics.get(topic)
    if channel is None:
        return TopicState() if found is None and is_ephemeral(topic) else found
    if found is None or channel not in found.channels:
        return ChannelState() if is_ephemeral(channel) else None
    return found.channels[channel]


def check_wanted(counts: WantedCounts, channel: str | None) -> Mapping[str, Wanted]:
    """The counts to wait for.

    :raises InvalidOption: if there are none, or some that a topic or channel does not have
    """
    known = TOPIC_COUNTS if channel is None else CHANNEL_COUNTS
    wanted = {name: cast(Wanted, value) for name, value in counts.items() if value is not None}
    for name, value in wanted.items():
        if name not in known:
            hint = "; name a channel" if name in CHANNEL_COUNTS else ""
            raise InvalidOption(name, value, f"the counts here are {', '.join(known)}{hint}")
    if not wanted:
        raise InvalidOption("wait_until", "nothing", f"give at least one of {', '.join(known)}")
    return wanted


def satisfies(state: TopicState | ChannelState, wanted: Mapping[str, Wanted]) -> bool:
    """Whether each count is as wanted."""
    for name, each in wanted.items():
        count = getattr(state, name)
        if not (each(count) if callable(each) else count == each):
            return False
    return True


def describe_wanted(wanted: Mapping[str, Wanted]) -> str:
    """In words: "depth 0 and in_flight 2"."""
    words = [
        f"{name} accepted by {getattr(each, '__name__', each)}" if callable(each) else f"{name} {each}"
        for name, each in wanted.items()
    ]
    return " and ".join(words)


def describe(topics: Topics, topic: str, channel: str | None) -> str:
    """In words: the counts; or, if the topic or channel does not exist, the names of those that do."""
    found = find(topics, topic, channel)
    if found is None:
        if topic not in topics:
            return f"there is no topic {topic}; topics: {_listed(topics)}"
        return f"there is no channel {channel} of {topic}; channels: {_listed(topics[topic].channels)}"
    names = TOPIC_COUNTS if isinstance(found, TopicState) else CHANNEL_COUNTS
    words = [f"{name} {getattr(found, name)}" for name in names]
    if isinstance(found, TopicState):
        words.append(f"channels {_listed(found.channels)}")
    return ", ".join([*words, *(["paused"] if found.paused else [])])


def _listed(names: Iterable[str]) -> str:
    return " and ".join(sorted(names)) or "none"
