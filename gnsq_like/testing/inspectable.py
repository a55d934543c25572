"""Looking at the counts of a running nsqd or cluster, and waiting for them."""

from __future__ import annotations

from typing import Unpack

from gnsq_like.errors import HTTPError
from gnsq_like.testing.states import (
    ChannelState,
    Topics,
    TopicState,
    WantedCounts,
    check_wanted,
    describe,
    describe_wanted,
    find,
    satisfies,
)
from gnsq_like.testing.waits import TIMEOUT, wait_until


class Inspectable:
    """Topics and channels with counts.

    A topic or channel that does not exist counts as an empty one, except in :meth:`wait_until`.
    All methods may be called from any thread, and may switch or block.
    """

    #: How many times in a row the counts must be as wanted. Between a queue and a consumer the real nsqd does not
    #: count a message for some microseconds.
    _looks = 1

    def topics(self) -> Topics:
        """All topics with their channels, now."""
        raise NotImplementedError

    def topic(self, name: str) -> TopicState:
        """A topic, now."""
        return self.topics().get(name, TopicState())

    def channel(self, topic: str, channel: str) -> ChannelState:
        """A channel, now."""
        return self.topic(topic).channels.get(channel, ChannelState())

    def depth(self, topic: str, channel: str | None = None) -> int:
        """Messages that wait in a channel; without ``channel``, in the topic itself."""
        return self.topic(topic).depth if channel is None else self.channel(topic, channel).depth

    def in_flight(self, topic: str, channel: str) -> int:
        """Messages that a channel's consumers have not answered."""
        return self.channel(topic, channel).in_flight

    def deferred(self, topic: str, channel: str) -> int:
        """A channel's messages that wait for the end of a delay."""
        return self.channel(topic, channel).deferred

    def clients(self, topic: str, channel: str) -> int:
        """Consumers of a channel."""
        return self.channel(topic, channel).clients

    def wait_until(
        self, topic: str, channel: str | None = None, *, timeout: float = TIMEOUT, **counts: Unpack[WantedCounts]
    ) -> None:
        """Wait until a channel's counts are as given, all at the same moment; without a channel, the topic's.

        ::

            nsqd.wait_until("clicks", "archive", clients=2)
            nsqd.wait_until("clicks", "archive", messages=10, left=0)    # ten arrived, and all are finished
            nsqd.wait_until("clicks", "archive", depth=lambda count: count > 100)

        The topic and channel must exist; only ephemeral ones may be gone, and then count as empty. The counts are
        those of :class:`ChannelState` and :class:`TopicState` (a topic has only ``depth`` and ``messages``).

        :param timeout: seconds
        :raises AssertionError: when the counts are not as given in time; it shows the last ones
        """
        wanted = check_wanted(counts, channel)
        seen = "nothing"
        looks = 0

        def look() -> bool:
            nonlocal seen, looks
            try:
                topics = self.topics()
            except HTTPError as exc:
                seen = f"no answer ({exc})"
                looks = 0
                return False
            seen = describe(topics, topic, channel)
            state = find(topics, topic, channel)
            looks = looks + 1 if state is not None and satisfies(state, wanted) else 0
            return looks == self._looks

        name = topic if channel is None else f"{topic}/{channel}"
        wait_until(look, timeout, lambda: f"{self}: {name} with {describe_wanted(wanted)}; last seen: {seen}")
