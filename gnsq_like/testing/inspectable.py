"""Looking at the counts of a running nsqd or cluster, and waiting for them."""

from __future__ import annotations

from time import monotonic

from gnsq_like.errors import HTTPError, InvalidOption
from gnsq_like.runtime.hub_calls import sleep
from gnsq_like.testing.states import (
    CHANNEL_COUNTS,
    TOPIC_COUNTS,
    ChannelState,
    Topics,
    TopicState,
    Wanted,
    describe,
    describe_wanted,
    find,
    satisfies,
)
from gnsq_like.testing.waits import INTERVAL, TIMEOUT


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
        self,
        topic: str,
        channel: str | None = None,
        *,
        depth: Wanted | None = None,
        in_flight: Wanted | None = None,
        deferred: Wanted | None = None,
        left: Wanted | None = None,
        clients: Wanted | None = None,
        messages: Wanted | None = None,
        requeued: Wanted | None = None,
        timed_out: Wanted | None = None,
        timeout: float = TIMEOUT,
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
        wanted = {
            name: value
            for name, value in {
                "depth": depth,
                "in_flight": in_flight,
                "deferred": deferred,
                "left": left,
                "clients": clients,
                "messages": messages,
                "requeued": requeued,
                "timed_out": timed_out,
            }.items()
            if value is not None
        }
        for name, value in wanted.items():
            if channel is None and name not in TOPIC_COUNTS:
                raise InvalidOption(name, value, f"a topic has only {' and '.join(TOPIC_COUNTS)}; name a channel")
        if not wanted:
            raise InvalidOption("wait_until", "nothing", f"give at least one of {', '.join(CHANNEL_COUNTS)}")
        deadline = monotonic() + timeout
        seen = "nothing"
        looks = 0
        while True:
            try:
                topics = self.topics()
            except HTTPError as exc:
                seen = f"no answer ({exc})"
                looks = 0
            else:
                seen = describe(topics, topic, channel)
                state = find(topics, topic, channel)
                looks = looks + 1 if state is not None and satisfies(state, wanted) else 0
            if looks == self._looks:
                return
            if monotonic() >= deadline:
                name = topic if channel is None else f"{topic}/{channel}"
                raise AssertionError(
                    f"{self}: {name} did not reach {describe_wanted(wanted)} within {timeout:g} s; last seen: {seen}"
                )
            sleep(INTERVAL)
