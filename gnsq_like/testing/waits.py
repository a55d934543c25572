"""What a running nsqd and a cluster of them can be asked, and waited for."""

from __future__ import annotations

from time import monotonic

from gnsq_like.errors import HTTPError, InvalidOption
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
from gnsq_like.testing.waiting import INTERVAL, TIMEOUT, sleep


class Watched:
    """Topics and channels that can be looked at.

    A topic or channel that does not exist counts as an empty one here, except in :meth:`wait_until`.
    All methods may be called from any thread, and may switch.
    """

    #: Looks in a row that must show what is waited for. Between a queue and a consumer a message of the real
    #: nsqd is counted nowhere for some microseconds.
    _looks = 1

    def topics(self) -> Topics:
        """All topics with their channels, as they are now."""
        raise NotImplementedError

    def topic(self, name: str) -> TopicState:
        """A topic, as it is now."""
        return self.topics().get(name, TopicState())

    def channel(self, topic: str, channel: str) -> ChannelState:
        """A channel, as it is now."""
        return self.topic(topic).channels.get(channel, ChannelState())

    def depth(self, topic: str, channel: str | None = None) -> int:
        """Messages that wait in a channel; without one, in the topic itself."""
        return self.topic(topic).depth if channel is None else self.channel(topic, channel).depth

    def in_flight(self, topic: str, channel: str) -> int:
        """Messages that a channel's consumers have and did not answer."""
        return self.channel(topic, channel).in_flight

    def deferred(self, topic: str, channel: str) -> int:
        """Messages of a channel that wait for the end of a delay."""
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
            nsqd.wait_until("clicks", "archive", messages=10, left=0)    # ten came, and all are finished
            nsqd.wait_until("clicks", "archive", depth=lambda count: count > 100)

        The topic and channel must exist by then; only ephemeral ones may be gone, and are empty then. The counts
        are those of :class:`ChannelState` and :class:`TopicState` (a topic has ``depth`` and ``messages`` only).

        :param timeout: seconds
        :raises AssertionError: when that did not come; it says what was seen last
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
                raise InvalidOption(name, value, f"a topic has {' and '.join(TOPIC_COUNTS)} only; name a channel")
        if not wanted:
            raise InvalidOption("wait_until", "nothing", f"give one at least of {', '.join(CHANNEL_COUNTS)}")
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
                    f"{self}: {name} did not come to {describe_wanted(wanted)} within {timeout:g} s; last seen: {seen}"
                )
            sleep(INTERVAL)
